//! Batches on their way into partitions: guards, verification, appends. In the order of the broker's (`hosted.rs`,
//! `transactions/verification.rs`).

use std::sync::Arc;

use highwater_groups::{Guard, KnownProducer, may_be_appended};
use highwater_replication::{Acknowledged, Acks, Partition, ProduceError, ProduceRefused, Produced};
use highwater_storage::{AppendError, CheckedBatch, LeaderEpoch, ProduceRules, SequenceError, TimestampMs};

use super::taking_part::{About, Key, Mode};
use super::*;

/// One of Kafka's error codes.
pub(super) type Code = i16;
pub(super) const NOT_LEADER: Code = 6;
pub(super) const TIMED_OUT: Code = 7;
pub(super) const NETWORK: Code = 13;
pub(super) const LOADING: Code = 14;
pub(super) const NOT_AVAILABLE: Code = 15;
pub(super) const NOT_COORDINATOR: Code = 16;
pub(super) const NOT_ENOUGH_REPLICAS: Code = 19;
pub(super) const OUT_OF_ORDER: Code = 45;
pub(super) const INVALID_PRODUCER_EPOCH: Code = 47;
pub(super) const INVALID_STATE: Code = 48;
pub(super) const CONCURRENT: Code = 51;
pub(super) const STORAGE: Code = 56;
pub(super) const FENCED: Code = 90;

/// How long a client's batch waits for its replicas.
const PRODUCE_MS: i64 = 120;

/// A batch to be appended.
pub(super) struct Given {
    pub(super) at: usize,
    pub(super) batch: CheckedBatch<Vec<u8>>,
    pub(super) acks: Acks,
    pub(super) deadline: TimestampMs,
    /// What lets it begin a transaction here.
    pub(super) guard: Option<Arc<Guard>>,
    /// Its producer counts from 0 again in each transaction.
    pub(super) counts_anew: bool,
    /// The only leadership in which it may be appended.
    pub(super) leader_epoch: Option<LeaderEpoch>,
    pub(super) then: Then,
}

impl Given {
    fn producer(&self) -> Producer {
        Producer { id: self.batch.producer_id(), epoch: self.batch.producer_epoch() }
    }
}

/// Who hears how it ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Then {
    Client(Caller),
    Driver { which: usize, driver: u64, number: u64 },
    Marker(MarkerSent),
}

/// Why a batch was not appended.
#[derive(Debug)]
pub(super) enum NotProduced {
    Partition(ProduceError),
    /// By the coordinator of its transaction, or it was not reached.
    Transaction(Code),
}

pub(super) type Outcome = Result<Acknowledged, NotProduced>;

/// What the log knows of a producer.
fn known(partition: &Partition, producer: Producer) -> Option<KnownProducer> {
    let known = partition.log().producers().get(producer.id)?;
    Some(KnownProducer { epoch: known.epoch(), in_transaction: known.transaction_start().is_some() })
}

impl World {
    /// What the producer's next batch needs to be appended, if it does not go on with a transaction that is open here.
    pub(super) fn guard(&mut self, node: usize, at: usize, producer: Producer) -> Option<Arc<Guard>> {
        let replica = self.nodes[node].replica(at)?;
        let guard = replica.guards.draw(producer);
        let goes_on = known(&replica.partition, producer).is_some_and(|known| known.goes_on(producer));
        (!goes_on).then_some(guard)
    }

    /// A client's batch comes, of a transaction if there is a mode.
    pub(super) fn produce_arrives(
        &mut self,
        node: usize,
        caller: Caller,
        at: usize,
        bytes: Vec<u8>,
        of: Option<(String, Mode)>,
    ) {
        let now = self.nodes[node].time(self.now);
        let rules = ProduceRules::default();
        let batch = CheckedBatch::check(bytes, &rules, now).expect("a valid batch");
        let counts_anew = of.as_ref().is_some_and(|(_, mode)| *mode == Mode::Add);
        let given = Given {
            at,
            batch,
            acks: Acks::All,
            deadline: now.after(PRODUCE_MS),
            guard: None,
            counts_anew,
            leader_epoch: None,
            then: Then::Client(caller),
        };
        let Some((id, mode)) = of else { return self.produce(node, given) };
        // At once where a transaction goes on, else after its coordinator was asked.
        let producer = given.producer();
        let guard = self.guard(node, at, producer);
        let key: Key = (at, producer);
        let Some(running) = &mut self.nodes[node].running else { return };
        if let Some(queue) = running.verifying.get_mut(&key) {
            return queue.push(given);
        }
        if guard.is_none() {
            return self.produce(node, given);
        }
        running.verifying.insert(key, vec![given]);
        self.open_question(node, id, producer, mode, at, About::Batches(key), guard);
    }

    /// Hands on what waits.
    pub(super) fn verified(&mut self, node: usize, key: Key, result: Result<Option<Arc<Guard>>, Code>) {
        let Some(running) = &mut self.nodes[node].running else { return };
        for mut given in running.verifying.remove(&key).unwrap_or_default() {
            match &result {
                Ok(guard) => {
                    given.guard.clone_from(guard);
                    self.produce(node, given);
                }
                Err(code) => self.produced(node, given.at, given.then, Err(NotProduced::Transaction(*code))),
            }
        }
    }

    /// A batch comes to its partition.
    pub(super) fn produce(&mut self, node: usize, given: Given) {
        let now = self.nodes[node].time(self.now);
        if self.boundary(node) {
            return;
        }
        let (at, then, producer) = (given.at, given.then, given.producer());
        let Some(replica) = self.nodes[node].replica(at) else { return };
        let told_epoch = replica.told.as_ref().map_or(LeaderEpoch::NONE, |told| told.value.leader_epoch);
        let refused =
            |error: SequenceError| Err(NotProduced::Partition(ProduceError::Append(AppendError::Sequence(error))));
        if given.leader_epoch.is_some_and(|epoch| epoch != told_epoch) {
            let refused = ProduceRefused::NotLeader { leader: None, leader_epoch: told_epoch };
            return self.produced(node, at, then, Err(NotProduced::Partition(refused.into())));
        }
        let known = known(&replica.partition, producer);
        if given.batch.header().is_control() {
            replica.guards.break_of(producer);
        } else if given.batch.is_transactional() && !may_be_appended(producer, known, given.guard.as_deref()) {
            if given.counts_anew && given.guard.is_some() {
                return self.produced(node, at, then, Err(NotProduced::Transaction(CONCURRENT)));
            }
            let error = SequenceError::InvalidTransactionState { producer_id: producer.id };
            return self.produced(node, at, then, refused(error));
        } else if given.counts_anew && known.is_none() && given.batch.base_sequence() != 0 {
            let sequence = given.batch.base_sequence();
            let Producer { id: producer_id, epoch } = producer;
            let error = SequenceError::OutOfOrder { producer_id, epoch, sequence, last_epoch: epoch, last: -1 };
            return self.produced(node, at, then, refused(error));
        }
        let token = replica.token();
        let end = replica.partition.log().end();
        let produced = replica.partition.produce(now, &given.batch, given.acks, given.deadline, token);
        let is_new = replica.partition.log().end() > end;
        if self.nodes[node].fs.crashed() {
            return; // It died before anybody could hear of it.
        }
        if is_new && given.batch.is_transactional() && !given.batch.header().is_control() {
            self.check_fencing(node, at, producer);
        }
        if self.boundary(node) {
            return;
        }
        match produced {
            Ok(Produced::Waiting) => {
                if let Some(replica) = self.nodes[node].replica(at) {
                    replica.produces.insert(token, then);
                }
            }
            Ok(Produced::Done(done)) => {
                self.counts.duplicates += u64::from(done.duplicate);
                self.produced(node, at, then, Ok(done));
            }
            Err(error) => self.produced(node, at, then, Err(NotProduced::Partition(error))),
        }
    }

    /// How it ended.
    pub(super) fn produced(&mut self, node: usize, _at: usize, then: Then, outcome: Outcome) {
        match then {
            Then::Client(caller) => {
                let produced = outcome.map(|done| done.base_offset).map_err(|why| code(&why));
                self.answer(node, caller, Told::Produced(produced));
            }
            Then::Driver { which, driver, number } => self.append_ended(node, which, driver, number, outcome),
            Then::Marker(sent) => self.marker_ends(node, sent, markers::marked(outcome)),
        }
    }
}

fn code(why: &NotProduced) -> Code {
    match why {
        NotProduced::Transaction(code) => *code,
        NotProduced::Partition(ProduceError::Append(AppendError::Sequence(error))) => match error {
            SequenceError::InvalidEpoch { .. } => INVALID_PRODUCER_EPOCH,
            SequenceError::InvalidTransactionState { .. } => INVALID_STATE,
            _ => OUT_OF_ORDER,
        },
        NotProduced::Partition(ProduceError::Refused(refused)) => match refused {
            ProduceRefused::NotLeader { .. } => NOT_LEADER,
            ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::NotEnoughReplicasAfterAppend { .. } => {
                NOT_ENOUGH_REPLICAS
            }
            ProduceRefused::TimedOut => TIMED_OUT,
            _ => STORAGE,
        },
        NotProduced::Partition(_) => STORAGE,
    }
}
