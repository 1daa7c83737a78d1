//! A small cluster for the tests of the administrative APIs.

use std::sync::Arc;

use highwater_replication::{Acks, BrokerId, Partition, Role, WaitToken};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, ProduceRules, Record, TimestampMs, TopicId, TopicPartition,
};
use kafka_protocol::protocol::StrBytes;

use super::RequestContext;
use crate::broker::Broker;
use crate::cluster::{ClusterConfig, ClusterHandle, EmbeddedStore, Endpoint, Intent, LastStop, NewTopic};
use crate::config::BrokerConfig;

/// Brokers 1 to `brokers` on one store in memory; none of them serves anything.
pub(crate) async fn cluster_of(brokers: i32) -> Vec<ClusterHandle> {
    let store = EmbeddedStore::in_memory();
    let mut members = Vec::new();
    for id in 1..=brokers {
        let session = Arc::new(store.session(30_000));
        let handle = ClusterHandle::join(ClusterConfig::new(BrokerId(id)), session).await.unwrap();
        let endpoint = Endpoint { host: "localhost".to_owned(), port: 9092, rack: None };
        handle.register(endpoint, LastStop::Clean).await.unwrap();
        members.push(handle);
    }
    for member in &members {
        let all = usize::try_from(brokers).unwrap();
        member.changes().wait_for(|image| image.brokers.len() == all).await.unwrap();
    }
    members
}

/// Makes a topic and waits for its leaders.
pub(crate) async fn make(cluster: &ClusterHandle, topic: &str, partitions: i32, replication_factor: i16) -> TopicId {
    let new = NewTopic {
        name: topic.to_owned(),
        partitions: Some(partitions),
        replication_factor: Some(replication_factor),
        ..NewTopic::default()
    };
    let created = cluster.create_topic(&new, Intent::Apply).await.unwrap();
    cluster.wait_for_leaders(topic, partitions, 10_000).await.unwrap();
    created.id
}

/// How a broker of one's own is told to run.
pub(crate) fn config(dir: &tempfile::TempDir) -> BrokerConfig {
    let mut config = BrokerConfig { data_dir: dir.path().to_owned(), ..BrokerConfig::default() };
    config.listen.port = 0;
    config
}

/// Broker 1, with a store of its own, in a directory that goes with it.
pub(crate) async fn broker() -> (Broker, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (Broker::start_embedded(config(&dir)).await.unwrap(), dir)
}

/// What a handler of this broker is told of a request.
pub(crate) fn context(broker: &Broker, version: i16) -> RequestContext {
    RequestContext {
        broker: broker.shared().clone(),
        version,
        client_id: StrBytes::default(),
        peer: ([127, 0, 0, 1], 1).into(),
    }
}

/// Waits until the broker leads the first partition of a topic.
pub(crate) async fn ready(broker: &Broker, topic: &str) {
    let of = TopicPartition::new(topic, 0);
    while !broker.status(&of).is_some_and(|status| status.role == Role::Leader) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Puts so many records into the first partition of a topic.
pub(crate) async fn fill(broker: &Broker, topic: &str, records: usize) {
    ready(broker, topic).await;
    let hosted = broker.shared().partitions.get(&TopicPartition::new(topic, 0)).unwrap();
    let append = move |partition: &mut Partition, now: TimestampMs| {
        let mut builder = BatchBuilder::new(Codec::None);
        for _ in 0..records {
            builder.push(Record::new(now, b"a record"));
        }
        let checked = CheckedBatch::check(builder.build(), &ProduceRules::default(), now).unwrap();
        partition.produce(now, &checked, Acks::Leader, now.after(10_000), WaitToken(u64::MAX)).unwrap();
    };
    hosted.ask(append).await.unwrap();
}

pub(crate) fn name(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
