//! Brokers that come back between the look at them and the commit that counts on it.

use std::sync::{Arc, Mutex};

use highwater_broker::cluster::{
    BoxFuture, ClusterConfig, ClusterHandle, CommitError, Coordination, CoordinationError, Endpoint, Intent, LastStop,
    NewTopic, Node, Op, OpDone, SessionState, Watch,
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
        let joins = ops.iter().any(|op| matches!(op, Op::Check { path, .. } if path == "/brokers/ids/2"));
        let happens = if joins { self.happens.lock().unwrap().take() } else { None };
        Box::pin(async move {
            if let Some(happens) = happens {
                happens.send_replace(true);
                // Dropped by the other side once it has happened.
                happens.closed().await;
            }
            self.inner.commit(ops).await
        })
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
