//! One transactional id: the producer it has, and how far its transaction is.

use std::collections::{BTreeMap, BTreeSet};

use super::vocabulary::{Partition, TransactionDescription, TransactionRefused};
use crate::records::{TransactionStatus, TransactionValue};
use crate::vocabulary::{Now, Producer};

/// The last epoch that a producer may write with. The one above it is for aborting what it has left.
const EPOCH_MAX: i16 = i16::MAX - 1;

/// A producer before it has its first epoch.
const NO_EPOCH: i16 = -1;

/// What of a transactional id is in its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) producer: Producer,
    /// The id it had before its epochs were used up, or -1.
    pub(super) previous_producer_id: i64,
    /// The id it gets once its transaction is done, or -1.
    next_producer_id: i64,
    /// The epoch before the present one, which a producer may still have that did not hear of this one.
    last_epoch: i16,
    timeout_ms: i32,
    pub(super) status: TransactionStatus,
    pub(super) partitions: BTreeSet<Partition>,
    pub(super) last_update_ms: i64,
    start_ms: i64,
    /// 2 if its producer goes on with a new epoch after each transaction.
    client_version: i16,
}

/// What a request comes to. Where all is so already the state is written once more, and the answer waits for that: a coordinator that
/// was deposed and has not heard of it may know of the transaction before with the same epoch only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// That state is to be written.
    Becomes(State),
    /// The same, of a transaction that is aborted before the request can be asked again.
    Fences(State),
    /// First a producer id is needed.
    NeedsProducerId,
}

impl State {
    pub(super) fn new(producer_id: i64, timeout_ms: i32) -> Self {
        Self {
            producer: Producer { id: producer_id, epoch: NO_EPOCH },
            previous_producer_id: -1,
            next_producer_id: -1,
            last_epoch: NO_EPOCH,
            timeout_ms,
            status: TransactionStatus::Empty,
            partitions: BTreeSet::new(),
            last_update_ms: -1,
            start_ms: -1,
            client_version: 0,
        }
    }

    pub(super) fn of(value: TransactionValue) -> Self {
        let each = |(topic, partitions): (String, Vec<i32>)| {
            partitions.into_iter().map(move |partition| (topic.clone(), partition))
        };
        Self {
            producer: Producer { id: value.producer_id, epoch: value.producer_epoch },
            previous_producer_id: value.previous_producer_id,
            next_producer_id: value.next_producer_id,
            last_epoch: NO_EPOCH,
            timeout_ms: value.timeout_ms,
            status: value.status,
            partitions: value.partitions.into_iter().flat_map(each).collect(),
            last_update_ms: value.last_update_timestamp_ms,
            start_ms: value.start_timestamp_ms,
            client_version: value.client_transaction_version,
        }
    }

    pub(super) fn value(&self) -> TransactionValue {
        let mut partitions: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for (topic, partition) in &self.partitions {
            partitions.entry(topic.clone()).or_default().push(*partition);
        }
        TransactionValue {
            producer_id: self.producer.id,
            previous_producer_id: self.previous_producer_id,
            next_producer_id: self.next_producer_id,
            producer_epoch: self.producer.epoch,
            timeout_ms: self.timeout_ms,
            status: self.status,
            partitions,
            last_update_timestamp_ms: self.last_update_ms,
            start_timestamp_ms: self.start_ms,
            client_transaction_version: self.client_version,
        }
    }

    pub(super) fn describe(&self, id: &str) -> TransactionDescription {
        TransactionDescription {
            id: id.to_owned(),
            producer: self.producer,
            status: self.status,
            timeout_ms: self.timeout_ms,
            start_timestamp_ms: self.start_ms,
            partitions: self.partitions.iter().cloned().collect(),
        }
    }

    /// Its transaction has taken longer than it may.
    pub(super) fn is_overdue(&self, now: Now) -> bool {
        self.status == TransactionStatus::Ongoing
            && now.timestamp_ms.saturating_sub(self.start_ms) >= i64::from(self.timeout_ms)
    }

    /// It is being decided, and markers are to be written.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.status, TransactionStatus::PrepareCommit | TransactionStatus::PrepareAbort)
    }

    fn updated(&self, now: Now, status: TransactionStatus) -> Self {
        Self { status, last_update_ms: now.timestamp_ms, ..self.clone() }
    }

    /// A producer of this id begins: what is under way is aborted, and everyone before it is fenced.
    pub(super) fn begin(
        &self,
        now: Now,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh: Option<i64>,
    ) -> Result<Outcome, TransactionRefused> {
        if let Some(expected) = expected
            && !self.may_come_from(expected)
        {
            return Err(TransactionRefused::ProducerFenced);
        }
        match self.status {
            TransactionStatus::PrepareCommit
            | TransactionStatus::PrepareAbort
            | TransactionStatus::PrepareEpochFence
            | TransactionStatus::Dead => Err(TransactionRefused::ConcurrentTransactions),
            TransactionStatus::Ongoing => Ok(Outcome::Fences(self.fenced(now))),
            TransactionStatus::Empty | TransactionStatus::CompleteCommit | TransactionStatus::CompleteAbort => {
                self.next_producer(now, timeout_ms, expected, fresh)
            }
        }
    }

    /// Whether someone may have that who begins: the present producer; the one before, if its epochs were used up and it did
    /// not hear of the new id; anyone, of an id that is new here.
    fn may_come_from(&self, expected: Producer) -> bool {
        self.producer.epoch == NO_EPOCH
            || expected.id == self.producer.id
            || expected.id == self.previous_producer_id && expected.epoch >= EPOCH_MAX
    }

    fn next_producer(
        &self,
        now: Now,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh: Option<i64>,
    ) -> Result<Outcome, TransactionRefused> {
        let mut next = self.updated(now, TransactionStatus::Empty);
        next.timeout_ms = timeout_ms;
        next.partitions.clear();
        next.start_ms = -1;
        next.next_producer_id = -1;
        let expected = expected.filter(|_| self.producer.epoch != NO_EPOCH);
        match expected {
            Some(expected) if expected == self.producer => {}
            // It asks a second time for what it did not hear of. What it had before is over by that.
            Some(expected) if expected.epoch == self.last_epoch => {
                return Ok(Outcome::Becomes(next));
            }
            Some(_) => return Err(TransactionRefused::ProducerFenced),
            None => {}
        }
        if self.producer.epoch >= EPOCH_MAX {
            let Some(fresh) = fresh else { return Ok(Outcome::NeedsProducerId) };
            next.previous_producer_id = self.producer.id;
            next.producer = Producer { id: fresh, epoch: 0 };
            next.last_epoch = if expected.is_some() { self.producer.epoch } else { NO_EPOCH };
        } else {
            next.producer.epoch = self.producer.epoch + 1;
            next.last_epoch = expected.map_or(NO_EPOCH, |expected| expected.epoch);
        }
        Ok(Outcome::Becomes(next))
    }

    /// The transaction aborts, in an epoch above that of whoever began it.
    pub(super) fn fenced(&self, now: Now) -> Self {
        let mut fenced = self.updated(now, TransactionStatus::PrepareAbort);
        // The highest epoch of all is for just that. Nobody is told of the new one but who had the one before and asks for the
        // next: as in Kafka that is this one, unless somebody else has begun meanwhile.
        fenced.producer.epoch = self.producer.epoch.saturating_add(1);
        fenced.last_epoch = self.producer.epoch;
        fenced
    }

    fn check(&self, producer: Producer) -> Result<(), TransactionRefused> {
        if producer.id != self.producer.id {
            return Err(TransactionRefused::InvalidProducerIdMapping);
        }
        if producer.epoch != self.producer.epoch {
            return Err(TransactionRefused::ProducerFenced);
        }
        Ok(())
    }

    /// Partitions take part.
    pub(super) fn add(
        &self,
        now: Now,
        producer: Producer,
        partitions: &[Partition],
    ) -> Result<Outcome, TransactionRefused> {
        self.check(producer)?;
        if self.is_ending() {
            return Err(TransactionRefused::ConcurrentTransactions);
        }
        let ongoing = self.status == TransactionStatus::Ongoing;
        let mut next = self.updated(now, TransactionStatus::Ongoing);
        if !ongoing {
            next.partitions.clear();
            next.start_ms = now.timestamp_ms;
        }
        next.partitions.extend(partitions.iter().cloned());
        Ok(Outcome::Becomes(next))
    }

    /// Whether they do.
    pub(super) fn verify(&self, producer: Producer, partitions: &[Partition]) -> Result<(), TransactionRefused> {
        self.check(producer)?;
        if self.is_ending() {
            return Err(TransactionRefused::ConcurrentTransactions);
        }
        let ongoing = self.status == TransactionStatus::Ongoing;
        if ongoing && partitions.iter().all(|partition| self.partitions.contains(partition)) {
            return Ok(());
        }
        Err(TransactionRefused::TransactionAbortable)
    }

    /// The transaction is to end.
    pub(super) fn end(
        &self,
        now: Now,
        producer: Producer,
        commits: bool,
        bumps: bool,
        fresh: Option<i64>,
    ) -> Result<Outcome, TransactionRefused> {
        let asks_again = bumps && self.is_what_became_of(producer);
        if !asks_again {
            self.check(producer)?;
        }
        // Each of its ends has an epoch of its own: the present one is that of the next, which cannot end before this has.
        let is_of_its_time = match self.status {
            _ if !bumps => true,
            TransactionStatus::CompleteCommit | TransactionStatus::CompleteAbort => true,
            _ => asks_again == self.is_ending(),
        };
        if !is_of_its_time {
            return Err(TransactionRefused::ProducerFenced);
        }
        let (preparing, complete) = if commits {
            (TransactionStatus::PrepareCommit, TransactionStatus::CompleteCommit)
        } else {
            (TransactionStatus::PrepareAbort, TransactionStatus::CompleteAbort)
        };
        match self.status {
            TransactionStatus::Ongoing if !asks_again => self.prepare(now, preparing, bumps, fresh),
            // With transaction version 2 a producer may abort what no partition took part in, and has a new epoch after it.
            TransactionStatus::Empty | TransactionStatus::CompleteCommit | TransactionStatus::CompleteAbort
                if bumps && !commits && !asks_again =>
            {
                self.prepare(now, preparing, bumps, fresh)
            }
            status if status == complete && (asks_again || !bumps) => Ok(Outcome::Becomes(self.clone())),
            status if status == preparing => Err(TransactionRefused::ConcurrentTransactions),
            _ => Err(TransactionRefused::InvalidTransactionState),
        }
    }

    /// Whether that producer's end has brought it here already, which it has not heard.
    fn is_what_became_of(&self, producer: Producer) -> bool {
        let next_epoch = producer.id == self.producer.id && producer.epoch.checked_add(1) == Some(self.producer.epoch);
        let next_id = producer.id == self.previous_producer_id
            && producer.id != self.producer.id
            && producer.epoch >= EPOCH_MAX
            && self.producer.epoch == 0;
        next_epoch || next_id
    }

    fn prepare(
        &self,
        now: Now,
        status: TransactionStatus,
        bumps: bool,
        fresh: Option<i64>,
    ) -> Result<Outcome, TransactionRefused> {
        let mut next = self.updated(now, status);
        if self.status != TransactionStatus::Ongoing {
            next.partitions.clear();
            next.start_ms = now.timestamp_ms;
        }
        next.client_version = if bumps { 2 } else { 0 };
        if bumps {
            if self.producer.epoch >= EPOCH_MAX {
                let Some(fresh) = fresh else { return Ok(Outcome::NeedsProducerId) };
                next.next_producer_id = fresh;
            }
            next.producer.epoch = self.producer.epoch.saturating_add(1);
            next.last_epoch = self.producer.epoch;
        }
        Ok(Outcome::Becomes(next))
    }

    /// What its producer writes with after the transaction.
    pub(super) fn producer_after(&self) -> Producer {
        match self.next_producer_id {
            -1 => self.producer,
            id => Producer { id, epoch: 0 },
        }
    }

    /// All markers are written.
    pub(super) fn completed(&self, now: Now) -> Self {
        let status = if self.status == TransactionStatus::PrepareCommit {
            TransactionStatus::CompleteCommit
        } else {
            TransactionStatus::CompleteAbort
        };
        let mut complete = self.updated(now, status);
        complete.partitions.clear();
        if self.next_producer_id != -1 {
            complete.previous_producer_id = self.producer.id;
            complete.last_epoch = self.last_epoch;
        }
        complete.producer = self.producer_after();
        complete.next_producer_id = -1;
        complete
    }
}
