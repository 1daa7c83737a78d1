//! A small cluster for the tests of the administrative APIs.

use std::sync::Arc;

use highwater_replication::BrokerId;
use highwater_storage::TopicId;
use kafka_protocol::protocol::StrBytes;

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

pub(crate) fn name(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
