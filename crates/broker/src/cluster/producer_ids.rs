//! Producer ids: each broker takes blocks of them from the store and gives them out one by one.

use highwater_replication::BrokerId;
use tokio::sync::Mutex;

use super::znodes::{self, PRODUCER_ID_BLOCK};
use super::{CommitCause, Coordination, Op, StoreFailure};

/// Ids in a block, as in Kafka. What is left of one is lost when its broker stops: 2^63 ids are enough for that.
const BLOCK_LENGTH: i64 = 1000;

/// A broker's present block.
#[derive(Debug)]
pub(super) struct ProducerIds {
    broker: BrokerId,
    /// The next id and the last one.
    block: Mutex<Option<(i64, i64)>>,
}

impl ProducerIds {
    pub(super) fn new(broker: BrokerId) -> Self {
        Self { broker, block: Mutex::new(None) }
    }

    /// Those who ask while a block is being taken wait for it, so that one block serves them all.
    pub(super) async fn next(&self, store: &dyn Coordination) -> Result<i64, StoreFailure> {
        let mut block = self.block.lock().await;
        let (next, last) = match *block {
            Some(block) => block,
            None => take_block(self.broker, store).await?,
        };
        *block = (next < last).then_some((next + 1, last));
        Ok(next)
    }
}

async fn take_block(broker: BrokerId, store: &dyn Coordination) -> Result<(i64, i64), StoreFailure> {
    loop {
        let node = store.read(PRODUCER_ID_BLOCK).await?;
        let first = match &node {
            // Kafka makes the node without a value before the first block is taken.
            Some(node) if !node.data.is_empty() => znodes::parse_producer_id_block(&node.data)?.checked_add(1),
            _ => Some(0),
        };
        let block = first.and_then(|first| Some((first, first.checked_add(BLOCK_LENGTH - 1)?)));
        let Some((first, last)) = block else {
            let what = "all producer ids have been given out".to_owned();
            return Err(znodes::BadNode { path: PRODUCER_ID_BLOCK.to_owned(), what }.into());
        };
        let (path, data) = (PRODUCER_ID_BLOCK.to_owned(), znodes::encode_producer_id_block(broker, first, last));
        let op = match node {
            Some(node) => Op::Set { path, data, version: Some(node.version) },
            None => Op::Create { path, data },
        };
        match store.commit(vec![op]).await {
            Ok(_) => return Ok((first, last)),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Exists | CommitCause::Missing) => {}
            // If it did happen after all, the block is lost and the next one is taken: never an id twice.
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::cluster::EmbeddedStore;

    #[tokio::test]
    async fn no_id_is_given_out_twice_by_any_broker_or_any_life_of_one() {
        let store = EmbeddedStore::in_memory();
        let mut tasks = Vec::new();
        for broker in 0..4 {
            let session = Arc::new(store.session(10_000));
            let ids = Arc::new(ProducerIds::new(BrokerId(broker % 3)));
            for _ in 0..2 {
                let (session, ids) = (session.clone(), ids.clone());
                tasks.push(tokio::spawn(async move {
                    let mut given = Vec::new();
                    for _ in 0..1200 {
                        given.push(ids.next(&*session).await.unwrap());
                    }
                    given
                }));
            }
        }
        let mut all = BTreeSet::new();
        for task in tasks {
            for id in task.await.unwrap() {
                assert!(all.insert(id), "{id} was given out twice");
            }
        }
        assert_eq!(all.len(), 9600);
        assert!(*all.first().unwrap() == 0 && *all.last().unwrap() < 12_000, "blocks of 1000, each used up");
    }

    #[tokio::test]
    async fn kafkas_block_is_continued_and_nonsense_is_not_overwritten() {
        let session = EmbeddedStore::in_memory().session(10_000);
        let path = PRODUCER_ID_BLOCK.to_owned();
        let data = Bytes::from_static(br#"{"version":1,"broker":7,"block_start":"4000","block_end":"4999"}"#);
        session.commit(vec![Op::Create { path: path.clone(), data: Bytes::new() }]).await.unwrap();
        assert_eq!(ProducerIds::new(BrokerId(1)).next(&session).await, Ok(0));
        session.commit(vec![Op::Set { path: path.clone(), data, version: None }]).await.unwrap();
        assert_eq!(ProducerIds::new(BrokerId(1)).next(&session).await, Ok(5000));
        assert_eq!(ProducerIds::new(BrokerId(1)).next(&session).await, Ok(6000));

        for data in ["{}", &format!(r#"{{"block_end":"{}"}}"#, i64::MAX - 5)] {
            let data = Bytes::copy_from_slice(data.as_bytes());
            session.commit(vec![Op::Set { path: path.clone(), data, version: None }]).await.unwrap();
            assert!(matches!(ProducerIds::new(BrokerId(1)).next(&session).await, Err(StoreFailure::BadNode(_))));
        }
    }
}
