//! Batches of transactions on their way to partitions: the first of each transaction waits until the coordinator has said
//! that the partition takes part, and those behind it wait with it, so that a producer's batches keep their order.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use highwater_groups::Producer;
use highwater_replication::Acks;
use highwater_storage::{CheckedBatch, TimestampMs, TopicId};

use super::{Mode, take_part};
use crate::api::ErrorCode;
use crate::broker::BrokerShared;
use crate::gather::Slot;
use crate::hosted::{Guard, Hosted, NotProduced, ProduceAnswer};

/// A batch that is to go to a partition.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) hosted: Arc<Hosted>,
    pub(crate) batch: CheckedBatch<Bytes>,
    pub(crate) acks: Acks,
    pub(crate) deadline: TimestampMs,
    /// Its producer counts from 0 again in each transaction.
    pub(crate) counts_anew: bool,
    pub(crate) slot: Slot<ProduceAnswer>,
}

impl Given {
    fn producer(&self) -> Producer {
        Producer { id: self.batch.producer_id(), epoch: self.batch.producer_epoch() }
    }

    fn key(&self) -> Key {
        (self.hosted.topic_id(), self.hosted.topic_partition().partition, self.producer())
    }

    fn produce(self, guard: Option<Arc<Guard>>) {
        let Self { hosted, batch, acks, deadline, counts_anew, slot } = self;
        if counts_anew {
            hosted.produce_counting_anew(batch, acks, deadline, guard, slot);
        } else {
            hosted.produce(batch, acks, deadline, guard, slot);
        }
    }
}

/// A partition and a producer.
type Key = (TopicId, i32, Producer);

/// The batches that wait. Their bytes count among those of requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Verifications {
    waiting: Mutex<HashMap<Key, Vec<Given>>>,
}

/// A question to a coordinator, about one partition.
struct Open {
    key: Key,
    hosted: Arc<Hosted>,
    /// What was drawn before the last question; nothing where the transaction goes on by now.
    guard: Option<Arc<Guard>>,
}

impl Verifications {
    /// Hands the batches of a request on, at once where a transaction goes on, else after its coordinator was asked.
    /// `mode` is `None` where nobody is to be asked.
    pub(crate) fn admit(broker: &Arc<BrokerShared>, id: &str, mode: Option<Mode>, all: Vec<Given>) {
        let mut questions: BTreeMap<Producer, Vec<Open>> = BTreeMap::new();
        for given in all {
            let producer = given.producer();
            let guard = given.hosted.guard(producer);
            if mode == Some(Mode::Verify) && guard.is_some() {
                given.hosted.waits_with(producer, given.batch.header().base_sequence());
            }
            let mut waiting = broker.verifications.lock();
            if let Some(queue) = waiting.get_mut(&given.key()) {
                queue.push(given);
                continue;
            }
            match (guard, mode) {
                (Some(guard), Some(_)) => {
                    let open = Open { key: given.key(), hosted: Arc::clone(&given.hosted), guard: Some(guard) };
                    waiting.insert(open.key, vec![given]);
                    questions.entry(producer).or_default().push(open);
                }
                (guard, _) => {
                    drop(waiting);
                    given.produce(guard);
                }
            }
        }
        let Some(mode) = mode else { return };
        for (producer, mut open) in questions {
            let (broker, id) = (Arc::clone(broker), id.to_owned());
            let services = Arc::clone(&broker.services);
            services.spawn(async move {
                let name = |open: &Open| {
                    let of = open.hosted.topic_partition();
                    (of.topic.to_string(), of.partition)
                };
                let partitions = open.iter().map(name).collect();
                let draw = || open.iter_mut().for_each(|open| open.guard = open.hosted.guard(producer));
                let taken = take_part(&broker, &id, producer, mode, partitions, draw).await;
                for open in open {
                    let result = taken.get(&name(&open)).copied().unwrap_or(Err(ErrorCode::UnknownServerError));
                    broker.verifications.settle(open.key, &result.map(|()| open.guard));
                }
            });
        }
    }

    /// Hands on what waits, and what comes to wait meanwhile.
    fn settle(&self, key: Key, result: &Result<Option<Arc<Guard>>, ErrorCode>) {
        loop {
            let queue = {
                let mut waiting = self.lock();
                match waiting.get_mut(&key).map(std::mem::take) {
                    Some(queue) if !queue.is_empty() => queue,
                    _ => {
                        waiting.remove(&key);
                        return;
                    }
                }
            };
            for given in queue {
                match result {
                    Ok(guard) => given.produce(guard.clone()),
                    Err(code) => given.slot.fill(Err(NotProduced::Transaction(*code))),
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Given>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
