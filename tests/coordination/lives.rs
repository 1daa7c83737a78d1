//! Brokers that come back between the look at them and the commit that counts on it.

use std::sync::{Arc, Mutex};

use highwater_broker::cluster::{
    AdminError, BoxFuture, ClusterConfig, ClusterHandle, CommitError, Coordination, CoordinationError, Endpoint,
    Intent, LastStop, MetadataImage, NewTopic, Node, Op, OpDone, SessionState, TopicRef, Watch,
};
use highwater_replication::{BrokerId, IsrDecision};
use highwater_storage::TopicPartition;
use tokio::sync::watch;

use crate::Store;
use crate::suite::within;

/// A session in which something happens right before the next change of a partition's state.
#[derive(Debug)]
struct Between {
    inner: Arc<dyn Coordination>,
    happens: Mutex<Option<watch::Sender<bool>>>,
}

impl Coordination for Between {
    fn read(&self, path: &str) -> BoxFuture<'_, Result<Option<Node>, CoordinationError>> {
        self.inner.read(path)
    }
    fn children(&self, path: &str) -> BoxFuture<'_, Result<Vec<String>, CoordinationError>> {
        self.inner.children(path)
    }
    fn watch(&self, path: &str, kind: Watch) -> BoxFuture<'static, Result<(), CoordinationError>> {
        self.inner.watch(path, kind)
    }
    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Vec<OpDone>, CommitError>> {
        let is_it = |path: &str| path.ends_with("/state");
        let writes_a_state = ops.iter().any(|op| matches!(op, Op::Set { path, .. } if is_it(path)));
        let happens = if writes_a_state { self.happens.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some(happens) = happens {
                happens.send_replace(true);
                // Dropped by the other side once it has happened.
                happens.closed().await;
            }
            self.inner.commit(ops).await
        })
    }
    fn fits(&self, ops: &[Op]) -> bool {
        self.inner.fits(ops)
    }
    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
    fn abandon(&self) {
        self.inner.abandon();
    }
}

async fn join(store: Arc<dyn Coordination>, id: i32) -> ClusterHandle {
    let handle = ClusterHandle::join(ClusterConfig::new(BrokerId(id)), store).await.unwrap();
    let endpoint = Endpoint { host: "localhost".to_owned(), port: 9092, rack: None };
    handle.register(endpoint, LastStop::Clean).await.unwrap();
    handle
}

pub(crate) async fn a_new_life_of_a_broker_is_not_the_one_that_was_seen(store: &Store) {
    let between = Arc::new(Between { inner: store.session(5000).await, happens: Mutex::new(None) });
    let leader = join(between.clone(), 1).await;
    let member = join(store.session(5000).await, 2).await;
    within(leader.changes().wait_for(|image| image.brokers.len() == 2)).await.unwrap();
    let assignment = [(0, vec![BrokerId(1), BrokerId(2)])].into();
    let new = NewTopic { name: "t".to_owned(), assignment: Some(assignment), ..NewTopic::default() };
    let topic = leader.create_topic(&new, Intent::Apply).await.unwrap();
    leader.wait_for_leaders("t", 1, 20_000).await.unwrap();
    let of = TopicPartition::new("t", 0);
    let both = leader.image().topic("t").unwrap().partitions[0].state.clone();
    let mut alone = both.value.clone();
    alone.isr = vec![BrokerId(1)];
    let IsrDecision::Committed(alone) = leader.propose_state(&of, topic.id, both.version, &alone, None).await else {
        panic!("the leader may go on alone");
    };

    // It is seen in one life, and has begun another when it is let in.
    let seen = leader.image().brokers[&BrokerId(2)].epoch;
    let (happens, mut now) = watch::channel(false);
    *between.happens.lock().unwrap() = Some(happens);
    let again = async {
        now.wait_for(|now| *now).await.unwrap();
        member.leave().await;
        let member = join(store.session(5000).await, 2).await;
        drop(now);
        member
    };
    let joining = Some((BrokerId(2), seen));
    let (decision, member) =
        within(async { tokio::join!(leader.propose_state(&of, topic.id, alone.version, &both.value, joining), again) })
            .await;
    assert_eq!(decision, IsrDecision::Refused);
    within(
        leader.changes().wait_for(|image| image.brokers.get(&BrokerId(2)).is_some_and(|broker| broker.epoch != seen)),
    )
    .await
    .unwrap();
    let joining = Some((BrokerId(2), leader.image().brokers[&BrokerId(2)].epoch));
    let decision = leader.propose_state(&of, topic.id, alone.version, &both.value, joining).await;
    assert!(matches!(decision, IsrDecision::Committed(_)), "{decision:?}");
    member.leave().await;
    leader.leave().await;
}

/// Made again as it was, the topic's node and its states have the versions that they had, in a store that counts them per
/// node.
pub(crate) async fn a_topic_made_again_is_not_the_one_that_was_seen(store: &Store) {
    let between = Arc::new(Between { inner: store.session(5000).await, happens: Mutex::new(None) });
    let (leader, other) = (join(between.clone(), 1).await, join(store.session(5000).await, 2).await);
    let assignment = [(0, vec![BrokerId(1)])].into();
    let new = NewTopic { name: "again".to_owned(), assignment: Some(assignment), ..NewTopic::default() };
    within(other.changes().wait_for(|image| image.brokers.len() == 2)).await.unwrap();
    let topic = leader.create_topic(&new, Intent::Apply).await.unwrap();
    leader.wait_for_leaders("again", 1, 20_000).await.unwrap();
    let of = TopicPartition::new("again", 0);
    let before = leader.image().topic("again").unwrap().partitions[0].state.clone();

    let (happens, mut now) = watch::channel(false);
    *between.happens.lock().unwrap() = Some(happens);
    let again = async {
        now.wait_for(|now| *now).await.unwrap();
        other.delete_topic(&TopicRef::Name("again".to_owned())).await.unwrap();
        let topic = other.create_topic(&new, Intent::Apply).await.unwrap();
        // Of the new one: the image may have the old one still.
        let led = |image: &Arc<MetadataImage>| {
            let topic = image.topic_by_id(topic.id);
            topic.is_some_and(|topic| topic.partitions[0].state.value.leader.is_some())
        };
        within(other.changes().wait_for(led)).await.unwrap();
        drop(now);
        topic
    };
    let mut state = before.value.clone();
    state.leader_epoch.0 += 7;
    let (decision, topic_again) =
        within(async { tokio::join!(leader.propose_state(&of, topic.id, before.version, &state, None), again) }).await;
    assert_eq!(decision, IsrDecision::Fenced);
    within(leader.changes().wait_for(|image| image.topic_by_id(topic_again.id).is_some())).await.unwrap();
    leader.wait_for_leaders("again", 1, 20_000).await.unwrap();
    let after = leader.image().topic("again").unwrap().partitions[0].state.clone();
    assert_eq!(after.value.leader_epoch, before.value.leader_epoch, "written by who led another topic of this name");
    let decision = leader.propose_state(&of, topic_again.id, after.version, &state, None).await;
    assert!(matches!(decision, IsrDecision::Committed(_)), "{decision:?}");
    leader.delete_topic(&TopicRef::Id(topic_again.id)).await.unwrap();
    let ids = between.children("/highwater/topics").await.unwrap();
    assert!(!ids.contains(&topic.id.to_string()) && !ids.contains(&topic_again.id.to_string()), "{ids:?}");
    other.leave().await;
    leader.leave().await;
}

/// One that could be made but not deleted would stay for ever.
pub(crate) async fn a_topic_that_cannot_be_changed_as_a_whole_is_refused(store: &Store) {
    let handle = join(store.session(5000).await, 1).await;
    let new = |partitions| NewTopic { name: "x".repeat(249), partitions: Some(partitions), ..NewTopic::default() };
    let made = handle.create_topic(&new(1000), Intent::Apply).await.unwrap();
    handle.wait_for_leaders(&new(1).name, 1000, 20_000).await.unwrap();
    let limited = matches!(store, Store::ZooKeeper(_));
    for result in [
        handle.create_partitions(&new(1).name, 2000, None, Intent::Validate).await.map(|_| ()),
        handle.create_topic(&NewTopic { name: "y".repeat(249), ..new(2000) }, Intent::Validate).await.map(|_| ()),
    ] {
        assert_eq!(matches!(result, Err(AdminError::InvalidPartitions(_))), limited, "{result:?}");
    }
    handle.delete_topic(&TopicRef::Id(made.id)).await.unwrap();
    handle.leave().await;
}
