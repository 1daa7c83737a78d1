//! What a coordination store promises, asked of each store that there is.

mod lives;
mod suite;
mod zookeeper;

use std::sync::Arc;

use highwater_broker::cluster::{Coordination, EmbeddedStore, ZooKeeperStore};
use highwater_tests::ZooKeeper;

/// One store, new and empty.
enum Store {
    Embedded(EmbeddedStore),
    ZooKeeper(ZooKeeper),
}

impl Store {
    async fn session(&self, timeout_ms: u64) -> Arc<dyn Coordination> {
        match self {
            Self::Embedded(store) => Arc::new(store.session(timeout_ms)),
            Self::ZooKeeper(server) => {
                let setting = format!("{}/a/chroot", server.connect());
                Arc::new(ZooKeeperStore::connect(&setting, timeout_ms).await.unwrap())
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_store_keeps_its_promises() {
    let store = Store::Embedded(EmbeddedStore::in_memory());
    suite::run(&store).await;
    lives::a_new_life_of_a_broker_is_not_the_one_that_was_seen(&store).await;
    lives::a_topic_made_again_is_not_the_one_that_was_seen(&store).await;
    lives::a_topic_that_cannot_be_changed_as_a_whole_is_refused(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_its_promises() {
    let store = Store::ZooKeeper(ZooKeeper::start().unwrap());
    suite::run(&store).await;
    lives::a_new_life_of_a_broker_is_not_the_one_that_was_seen(&store).await;
    lives::a_topic_made_again_is_not_the_one_that_was_seen(&store).await;
    lives::a_topic_that_cannot_be_changed_as_a_whole_is_refused(&store).await;
}
