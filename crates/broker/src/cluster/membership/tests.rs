use std::sync::Arc;

use highwater_replication::Versioned;

use super::*;
use crate::cluster::store::read_versioned_state;
use crate::cluster::{ClusterHandle, EmbeddedStore, Endpoint, LastStop};

fn found(topic: &str, partition: i32, id: Option<u8>, last_epoch: i32) -> FoundPartition {
    FoundPartition {
        topic_partition: TopicPartition::new(topic, partition),
        topic_id: id.map(|id| TopicId([id; 16])),
        last_epoch: LeaderEpoch(last_epoch),
    }
}

fn endpoint() -> Endpoint {
    Endpoint { host: "localhost".to_owned(), port: 9092, rack: None }
}

fn adopting(adopt: Vec<FoundPartition>) -> ClusterConfig {
    ClusterConfig { cluster_id: Some("kafkas-cluster-id".to_owned()), adopt, ..ClusterConfig::new(BrokerId(1)) }
}

#[tokio::test]
async fn partitions_that_kafka_left_become_topics_led_above_their_last_epoch() {
    let store = EmbeddedStore::in_memory();
    // A topic with a hole (partition 1 lived elsewhere), one from before topic ids, one without records.
    let directory = vec![
        found("books", 2, Some(5), 41),
        found("books", 0, Some(5), 7),
        found("old", 0, None, 0),
        found("__consumer_offsets", 0, Some(6), -1),
    ];
    let session = Arc::new(store.session(10_000));
    let handle = ClusterHandle::join(adopting(directory.clone()), session).await.unwrap();
    assert_eq!(handle.image().cluster_id, "kafkas-cluster-id");
    handle.register(endpoint(), LastStop::Clean).await.unwrap();
    for (topic, partitions) in [("books", 3), ("old", 1), ("__consumer_offsets", 1)] {
        handle.wait_for_leaders(topic, partitions, 10_000).await.unwrap();
    }
    let image = handle.image();
    let books = image.topic("books").unwrap();
    assert_eq!(books.id, TopicId([5; 16]));
    let epochs: Vec<i32> = books.partitions.iter().map(|partition| partition.state.value.leader_epoch.0).collect();
    assert_eq!(epochs, [8, 0, 42]);
    assert_ne!(image.topic("old").unwrap().id, TopicId::ZERO);
    assert_eq!(image.topics.len(), 3);

    // Once there are topics, the store is the truth: what lies around in the directory later is not taken over.
    let deleted = handle.delete_topic(&crate::cluster::TopicRef::Name("books".to_owned())).await.unwrap();
    assert_eq!(deleted.1, TopicId([5; 16]));
    let session = Arc::new(store.session(10_000));
    let again = ClusterHandle::join(adopting(directory), session).await.unwrap();
    assert!(again.image().topic("books").is_none());
}

#[tokio::test]
async fn partitions_that_make_no_topic_are_refused_and_nothing_is_taken_over() {
    for (broken, says) in [
        (
            vec![found("good", 0, Some(1), 0), found("t", 0, Some(1), 0), found("t", 1, Some(2), 0)],
            "different topic ids",
        ),
        (vec![found("good", 0, Some(1), 0), found("t", i32::MAX, Some(1), 0)], "partition 2147483647"),
        (vec![found("good", 0, Some(1), 0), found("bad/name", 0, Some(1), 0)], "is invalid"),
    ] {
        let store = EmbeddedStore::in_memory();
        let session = Arc::new(store.session(10_000));
        let error = ClusterHandle::join(adopting(broken), session.clone()).await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(session.children(znodes::TOPICS).await.unwrap(), Vec::<String>::new());
        assert_eq!(session.read(znodes::CLUSTER_ID).await.unwrap(), None);
    }
}

async fn write_topic(store: &dyn Coordination, states: &[(i32, &[i32])]) -> MetadataImage {
    let assignment = vec![[1, 2, 3].map(BrokerId).to_vec(); states.len()];
    let mut ops = admin::topic_ops("t", &TopicNode::new(TopicId([1; 16]), assignment.clone()), &BTreeMap::new());
    let mut image = MetadataImage::default();
    let mut partitions = Vec::new();
    for ((number, (leader, isr)), assignment) in (0..).zip(states).zip(assignment) {
        let state = PartitionState {
            leader: (*leader >= 0).then_some(BrokerId(*leader)),
            leader_epoch: LeaderEpoch(4),
            isr: isr.iter().copied().map(BrokerId).collect(),
            controller_epoch: 1,
            doubtful: Vec::new(),
            recovering: false,
        };
        ops.push(Op::Create { path: znodes::state_path("t", number), data: znodes::encode_state(&state) });
        partitions.push(crate::cluster::PartitionImage {
            assignment,
            reassignment: Default::default(),
            state: Versioned { value: state, version: 0 },
        });
    }
    store.commit(ops).await.unwrap();
    let (id, config) = (TopicId([1; 16]), BTreeMap::new());
    image.insert(Arc::new(crate::cluster::TopicImage { name: "t".into(), id, version: 1, config, partitions }));
    image
}

async fn state(store: &dyn Coordination, partition: i32) -> Versioned<PartitionState> {
    read_versioned_state(store, &TopicPartition::new("t", partition)).await.unwrap().unwrap()
}

/// Decision 20, on the store: it says so wherever it is in sync, and every state it concerns gets a new version.
#[tokio::test]
async fn after_an_unclean_stop_a_broker_marks_itself_wherever_it_is_in_sync() {
    let store = EmbeddedStore::in_memory();
    let (session, second) = (store.session(10_000), store.session(10_000));
    prepare(&session, &ClusterConfig::new(BrokerId(1)), Vec::new()).await.unwrap();
    let image = write_topic(&session, &[(1, &[1, 2]), (2, &[2, 1, 3]), (2, &[2]), (1, &[1])]).await;
    register(&second, BrokerId(2), &Bytes::from_static(b"{}"), 1000).await.unwrap();
    let mut before = Vec::new();
    for number in 0..4 {
        before.push(state(&session, number).await);
    }
    mark_doubtful(&session, BrokerId(1), &image).await.unwrap();
    let after = |number: i32| state(&session, number);
    for (number, leader, epoch) in [(0, None, 5), (1, Some(BrokerId(2)), 4)] {
        let (after, before) = (after(number).await.value, before[number as usize].value.clone());
        assert_eq!((after.leader, after.leader_epoch.0), (leader, epoch), "whoever led leads no more: {number}");
        assert_eq!((after.isr, after.doubtful), (before.isr, vec![BrokerId(1)]), "{number}");
    }
    let alone = after(3).await.value;
    assert_eq!((alone.leader, alone.leader_epoch.0, alone.doubtful), (Some(BrokerId(1)), 5, vec![]), "nobody has more");
    let outside = after(2).await;
    assert_eq!(outside.value, before[2].value);
    assert!(outside.version > before[2].version, "a proposal to take its earlier life in must fail");
}

/// As long as it stands, a leader may take this broker in for what it fetched then.
#[tokio::test]
async fn an_unclean_return_waits_for_the_end_of_the_former_life() {
    let store = EmbeddedStore::in_memory();
    let (former, session) = (store.session(10_000), store.session(10_000));
    prepare(&former, &ClusterConfig::new(BrokerId(1)), Vec::new()).await.unwrap();
    register(&former, BrokerId(1), &Bytes::from_static(b"{}"), 1000).await.unwrap();
    let error = wait_for_former_life(&session, BrokerId(1), 20).await.unwrap_err();
    assert!(matches!(error, JoinError::DuplicateBroker { .. }), "{error}");
    let waits = wait_for_former_life(&session, BrokerId(1), 60_000);
    let (waited, ()) = tokio::join!(waits, former.close());
    waited.unwrap();
    assert_eq!(session.read(&znodes::broker_path(BrokerId(1))).await.unwrap(), None);
}

/// Kafka, and stores of earlier versions, have no node for the topic's id.
#[tokio::test]
async fn topics_without_a_node_for_their_id_get_one_when_a_broker_registers() {
    let store = EmbeddedStore::in_memory();
    let session = Arc::new(store.session(10_000));
    let handle = ClusterHandle::join(ClusterConfig::new(BrokerId(1)), session.clone()).await.unwrap();
    handle.register(endpoint(), LastStop::Clean).await.unwrap();
    let new = crate::cluster::NewTopic { name: "t".to_owned(), ..Default::default() };
    let topic = handle.create_topic(&new, crate::cluster::Intent::Apply).await.unwrap();
    let path = znodes::topic_id_path(topic.id).unwrap();
    assert!(session.read(&path).await.unwrap().is_some());
    session.commit(vec![Op::Delete { path: path.clone(), version: None }]).await.unwrap();
    let second = Arc::new(store.session(10_000));
    let second = ClusterHandle::join(ClusterConfig::new(BrokerId(2)), second).await.unwrap();
    second.register(endpoint(), LastStop::Clean).await.unwrap();
    assert!(session.read(&path).await.unwrap().is_some());

    // One that nobody gave such a node can be deleted all the same.
    session.commit(vec![Op::Delete { path, version: None }]).await.unwrap();
    second.delete_topic(&crate::cluster::TopicRef::Id(topic.id)).await.unwrap();
}
