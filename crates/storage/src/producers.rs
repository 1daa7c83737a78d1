//! Idempotent producers: which sequence numbers of which producer are in the log.
//!
//! A producer that gets no answer sends its batch again; by producer id, epoch and sequence number the leader knows that
//! it has the batch already. The table remembers each producer's last five batches, as many as a client may have in
//! flight. Transactions are followed as far as the table needs: where an open one began. Source: Kafka's
//! `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`.

mod by_id;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use byteorder::{BigEndian, ByteOrder};

use crate::batch::{BatchHeader, BatchView, sequence_after};
use by_id::ById;

use crate::index::AbortedTransaction;
use crate::markers::TransactionMarker;
use crate::{Offset, TimestampMs};

/// Batches remembered of each producer: a client may have so many in flight.
const BATCHES_KEPT: usize = 5;

/// Producers remembered by default, before the least recently heard are forgotten: 100 bytes or so each.
pub const MAX_PRODUCERS: usize = 100_000;

/// What the table needs to know of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerBatch {
    /// The producer's id, not negative.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The sequence number of the first record.
    pub first_sequence: i32,
    /// The sequence number of the last record; smaller than the first if the numbers wrapped in the batch.
    pub last_sequence: i32,
    /// The batch's max timestamp.
    pub timestamp: TimestampMs,
    /// Whether it is part of a transaction.
    pub is_transactional: bool,
    /// Whether there are records in it. Compaction leaves batches without, for their sequence numbers, and only of
    /// transactions that have ended.
    pub has_records: bool,
}

impl ProducerBatch {
    /// The producer's side of a batch; none if it has no producer id.
    pub fn of(header: &BatchHeader) -> Option<Self> {
        (header.producer_id() >= 0).then(|| Self {
            producer_id: header.producer_id(),
            epoch: header.producer_epoch(),
            first_sequence: header.base_sequence(),
            last_sequence: header.last_sequence(),
            timestamp: header.max_timestamp(),
            is_transactional: header.is_transactional(),
            has_records: header.record_count() != 0,
        })
    }
}

/// What the sequence numbers of a batch say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sequence {
    /// The batch is the next one: append it.
    New,
    /// The batch is in the log already: answer as for the first time, append nothing.
    Duplicate {
        /// Offset of its first record.
        first: Offset,
        /// Offset of its last record.
        last: Offset,
        /// The max timestamp it was stored with.
        timestamp: TimestampMs,
    },
}

/// Why the sequence numbers of a batch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SequenceError {
    /// A gap, or an old batch that is not among the remembered ones (OUT_OF_ORDER_SEQUENCE_NUMBER, 45).
    #[error("producer {producer_id} sent sequence {sequence} in epoch {epoch} after {last} in epoch {last_epoch}")]
    OutOfOrder {
        /// The producer.
        producer_id: i64,
        /// The epoch sent.
        epoch: i16,
        /// The first sequence number sent.
        sequence: i32,
        /// The epoch known.
        last_epoch: i16,
        /// The last sequence number known, -1 for none.
        last: i32,
    },
    /// An epoch that a later one has replaced (INVALID_PRODUCER_EPOCH, 47).
    #[error("producer {producer_id} is in epoch {current}, the batch in {epoch}")]
    InvalidEpoch {
        /// The producer.
        producer_id: i64,
        /// The epoch sent.
        epoch: i16,
        /// The epoch known.
        current: i16,
    },
    /// A batch outside of a transaction while one is open (INVALID_TXN_STATE, 48).
    #[error("producer {producer_id} sent a batch outside of its open transaction")]
    InvalidTransactionState {
        /// The producer.
        producer_id: i64,
    },
    /// A marker of a coordinator that a later one has replaced (TRANSACTION_COORDINATOR_FENCED, 52).
    #[error("a marker for producer {producer_id} from coordinator epoch {given}, which {current} has replaced")]
    CoordinatorFenced {
        /// The producer.
        producer_id: i64,
        /// The coordinator's epoch.
        given: i32,
        /// The epoch of the last coordinator that wrote a marker for the producer.
        current: i32,
    },
}

/// A transaction that a marker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletedTransaction {
    /// The producer.
    pub producer_id: i64,
    /// Offset of the transaction's first record.
    pub first: Offset,
    /// Offset of the marker.
    pub last: Offset,
    /// Whether it was aborted.
    pub is_aborted: bool,
    /// First offset of the oldest other transaction that was open then; without one, the offset after the marker.
    pub last_stable_offset: Offset,
}

impl CompletedTransaction {
    /// What readers of committed records have to know of it, if it was aborted.
    pub fn aborted(&self) -> Option<AbortedTransaction> {
        self.is_aborted.then_some(AbortedTransaction {
            producer_id: self.producer_id,
            first_offset: self.first,
            last_offset: self.last,
            last_stable_offset: self.last_stable_offset,
        })
    }
}

/// One producer's batch in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredBatch {
    last_sequence: i32,
    last_offset: Offset,
    offset_delta: i32,
    timestamp: TimestampMs,
}

impl StoredBatch {
    fn first_offset(&self) -> Offset {
        Offset(self.last_offset.0.saturating_sub(i64::from(self.offset_delta)))
    }

    fn first_sequence(&self) -> i32 {
        sequence_after(self.last_sequence, self.offset_delta.saturating_neg())
    }
}

/// What is known of one producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerState {
    epoch: i16,
    /// The last batches in this epoch, oldest first; the first `batch_count` are in use.
    batches: [StoredBatch; BATCHES_KEPT],
    batch_count: u8,
    coordinator_epoch: i32,
    last_timestamp: TimestampMs,
    transaction_start: Option<Offset>,
    /// Offset of the last record or marker. Not in snapshots, where it is that of the last record.
    last_heard: Offset,
}

impl ProducerState {
    const UNUSED: StoredBatch =
        StoredBatch { last_sequence: -1, last_offset: Offset(-1), offset_delta: 0, timestamp: TimestampMs::NONE };

    fn new(epoch: i16) -> Self {
        Self {
            epoch,
            batches: [Self::UNUSED; BATCHES_KEPT],
            batch_count: 0,
            coordinator_epoch: -1,
            last_timestamp: TimestampMs::NONE,
            transaction_start: None,
            last_heard: Offset(-1),
        }
    }

    fn stored(&self) -> &[StoredBatch] {
        self.batches.get(..usize::from(self.batch_count)).unwrap_or_default()
    }

    fn last_stored(&self) -> StoredBatch {
        self.stored().last().copied().unwrap_or(Self::UNUSED)
    }

    /// The producer's epoch.
    pub fn epoch(&self) -> i16 {
        self.epoch
    }

    /// The last sequence number, -1 if none is known in this epoch.
    pub fn last_sequence(&self) -> i32 {
        self.last_stored().last_sequence
    }

    /// Offset of the last record, -1 if none is known in this epoch.
    pub fn last_offset(&self) -> Offset {
        self.last_stored().last_offset
    }

    /// Timestamp of the last batch or marker.
    pub fn last_timestamp(&self) -> TimestampMs {
        self.last_timestamp
    }

    /// The epoch of the transaction coordinator that wrote the last marker, -1 for none.
    pub fn coordinator_epoch(&self) -> i32 {
        self.coordinator_epoch
    }

    /// Offset of the first record of the open transaction.
    pub fn transaction_start(&self) -> Option<Offset> {
        self.transaction_start
    }

    fn enter_epoch(&mut self, epoch: i16) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.batch_count = 0;
        }
    }

    fn push(&mut self, batch: StoredBatch) {
        let count = usize::from(self.batch_count);
        if count == BATCHES_KEPT {
            self.batches.rotate_left(1);
        } else {
            self.batch_count += 1;
        }
        if let Some(slot) = self.batches.get_mut(count.min(BATCHES_KEPT - 1)) {
            *slot = batch;
        }
        self.last_timestamp = batch.timestamp;
        self.last_heard = batch.last_offset;
    }
}

/// The producers of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerTable {
    // Ordered, so that snapshots of equal tables are equal bytes.
    producers: ById,
    /// First offset and producer of each open transaction, oldest first.
    open: BTreeSet<(Offset, i64)>,
    max_producers: usize,
}

impl Default for ProducerTable {
    fn default() -> Self {
        Self::new(MAX_PRODUCERS)
    }
}

impl ProducerTable {
    /// An empty table that remembers at most `max_producers`, forgetting the least recently heard.
    ///
    /// A forgotten producer is an unknown one: its next batch is taken whatever its sequence number is, as after an
    /// expiry, so that only the detection of a duplicate is lost. Producers in a transaction are not forgotten.
    pub fn new(max_producers: usize) -> Self {
        Self { producers: ById::default(), open: BTreeSet::new(), max_producers: max_producers.max(1) }
    }

    /// The number of producers known.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// What is known of a producer.
    pub fn get(&self, producer_id: i64) -> Option<&ProducerState> {
        self.producers.get(producer_id)
    }

    /// All producers, by id.
    pub fn iter(&self) -> impl Iterator<Item = (i64, &ProducerState)> {
        self.producers.iter()
    }

    /// Whether none wrote at or above an offset, as in a snapshot that was taken there.
    pub(crate) fn is_below(&self, offset: Offset) -> bool {
        self.producers.iter().all(|(_, state)| state.last_offset() < offset)
    }

    /// Offset of the first record of the oldest open transaction.
    pub fn first_open_transaction(&self) -> Option<Offset> {
        self.open.first().map(|(first, _)| *first)
    }

    /// Judges the sequence numbers of a batch that a client sent. Changes nothing: [`ProducerTable::record`] follows when
    /// the batch is in the log.
    ///
    /// # Errors
    /// If the batch neither continues what is known of the producer nor repeats it.
    pub fn check(&self, batch: &ProducerBatch) -> Result<Sequence, SequenceError> {
        let ProducerBatch { producer_id, epoch, first_sequence, last_sequence, .. } = *batch;
        // Unknown here: never seen, expired, or forgotten. Any sequence number may be the next one.
        let Some(known) = self.producers.get(producer_id) else { return Ok(Sequence::New) };
        // Coordinators write without sequence numbers, on behalf of a producer whose epoch counts all the same.
        let is_numbered = first_sequence >= 0;
        if known.epoch == epoch
            && is_numbered
            && let Some(stored) = known
                .stored()
                .iter()
                .find(|stored| stored.first_sequence() == first_sequence && stored.last_sequence == last_sequence)
        {
            let (first, last) = (stored.first_offset(), stored.last_offset);
            return Ok(Sequence::Duplicate { first, last, timestamp: stored.timestamp });
        }
        if epoch < known.epoch {
            return Err(SequenceError::InvalidEpoch { producer_id, epoch, current: known.epoch });
        }
        let follows = match known.epoch {
            _ if !is_numbered => true,
            -1 => true,
            current if current == epoch => first_sequence == sequence_due(known.last_sequence()),
            _ => first_sequence == 0,
        };
        if !follows {
            let (last_epoch, last) = (known.epoch, known.last_sequence());
            return Err(SequenceError::OutOfOrder { producer_id, epoch, sequence: first_sequence, last_epoch, last });
        }
        if known.transaction_start.is_some() && !batch.is_transactional {
            return Err(SequenceError::InvalidTransactionState { producer_id });
        }
        Ok(Sequence::New)
    }

    /// Judges a marker that a transaction coordinator wants to have appended. Changes nothing.
    ///
    /// # Errors
    /// If the producer or the coordinator has been replaced by one with a higher epoch.
    pub fn check_marker(&self, marker: &TransactionMarker) -> Result<(), SequenceError> {
        let TransactionMarker { producer_id, producer_epoch, coordinator_epoch, .. } = *marker;
        let Some(known) = self.producers.get(producer_id) else { return Ok(()) };
        if producer_epoch < known.epoch {
            return Err(SequenceError::InvalidEpoch { producer_id, epoch: producer_epoch, current: known.epoch });
        }
        if coordinator_epoch < known.coordinator_epoch {
            let (given, current) = (coordinator_epoch, known.coordinator_epoch);
            return Err(SequenceError::CoordinatorFenced { producer_id, given, current });
        }
        Ok(())
    }

    /// Notes a batch that is in the log at these offsets.
    pub fn record(&mut self, batch: &ProducerBatch, offsets: RangeInclusive<Offset>) {
        let (first, last) = offsets.into_inner();
        let new = || ProducerState::new(batch.epoch);
        let opens_transaction = self.producers.update(batch.producer_id, new, |state| {
            state.enter_epoch(batch.epoch);
            state.push(StoredBatch {
                last_sequence: batch.last_sequence,
                last_offset: last,
                offset_delta: i32::try_from(last - first).unwrap_or(i32::MAX),
                timestamp: batch.timestamp,
            });
            let opens = batch.is_transactional && batch.has_records && state.transaction_start.is_none();
            if opens {
                state.transaction_start = Some(first);
            }
            opens
        });
        if opens_transaction {
            self.open.insert((first, batch.producer_id));
        }
        if self.producers.len() > self.max_producers {
            self.forget_some();
        }
    }

    /// Notes a batch as it stands in the log, from a leader or from recovery: what is stored is not judged. Returns the
    /// transaction that it ended, if it is a marker that did.
    pub fn replicated(&mut self, batch: &BatchView<'_>) -> Option<CompletedTransaction> {
        let producer = ProducerBatch::of(batch.header())?;
        if batch.is_control() {
            let marker = TransactionMarker::of(batch)?;
            return self.end_transaction(&marker, producer.timestamp, batch.last_offset());
        }
        self.record(&producer, batch.base_offset()..=batch.last_offset());
        None
    }

    fn end_transaction(
        &mut self,
        marker: &TransactionMarker,
        timestamp: TimestampMs,
        at: Offset,
    ) -> Option<CompletedTransaction> {
        let TransactionMarker { producer_id, producer_epoch, coordinator_epoch, is_abort } = *marker;
        let new = || ProducerState::new(producer_epoch);
        let first = self.producers.update(producer_id, new, |state| {
            state.enter_epoch(producer_epoch);
            state.coordinator_epoch = coordinator_epoch;
            state.last_timestamp = timestamp;
            state.last_heard = at;
            state.transaction_start.take()
        });
        if let Some(first) = first {
            self.open.remove(&(first, producer_id));
        }
        if self.producers.len() > self.max_producers {
            self.forget_some();
        }
        let last_stable_offset = self.first_open_transaction().unwrap_or_else(|| at.next());
        first.map(|first| CompletedTransaction {
            producer_id,
            first,
            last: at,
            is_aborted: is_abort,
            last_stable_offset,
        })
    }

    /// Forgets producers that were last heard `expiration_ms` ago or longer and have no open transaction, and returns
    /// how many (`producer.id.expiration.ms`).
    pub fn expire(&mut self, now: TimestampMs, expiration_ms: i64) -> usize {
        let (mut expired, mut from) = (0, Some(i64::MIN));
        while let Some(next) = from {
            let (more, rest) = self.expire_from(next, now, expiration_ms);
            (expired, from) = (expired + more, rest);
        }
        expired
    }

    /// As [`ProducerTable::expire`], of the producers from an id on, as many as are looked over while somebody waits. Also
    /// returns the id to go on from, if there are more.
    pub(crate) fn expire_from(&mut self, from: i64, now: TimestampMs, expiration_ms: i64) -> (usize, Option<i64>) {
        let before = self.producers.len();
        let next = self.producers.retain_from(from, |state| {
            state.transaction_start.is_some() || now.since(state.last_timestamp) < expiration_ms
        });
        (before - self.producers.len(), next)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.producers.clear();
        self.open.clear();
    }

    /// Changes how many producers are remembered at most, forgetting those that are too many.
    pub fn set_max_producers(&mut self, max_producers: usize) {
        self.max_producers = max_producers.max(1);
        if self.producers.len() > self.max_producers {
            self.forget_some();
        }
    }

    /// Forgets the eighth of the producers that was heard of longest ago: many at a time, so that a table at its limit
    /// does not look for the oldest at each append.
    fn forget_some(&mut self) {
        // By place in the log, not by time: clients set the time.
        let mut idle: Vec<_> = self
            .producers
            .iter()
            .filter(|(_, state)| state.transaction_start.is_none())
            .map(|(id, state)| (state.last_heard, id))
            .collect();
        let excess = (self.producers.len() - self.max_producers + self.max_producers / 8).min(idle.len());
        if excess < idle.len() {
            idle.select_nth_unstable(excess);
        }
        for (_, id) in idle.iter().take(excess) {
            self.producers.remove(*id);
        }
    }
}

/// The sequence number after `last`, which is -1 for none.
fn sequence_due(last: i32) -> i32 {
    if last == i32::MAX { 0 } else { last + 1 }
}

const SNAPSHOT_VERSION: i16 = 1;
/// Version, checksum and count.
const SNAPSHOT_HEADER_BYTES: usize = 10;
/// Where the bytes begin that the checksum covers.
const SNAPSHOT_CRC_START: usize = 6;
const SNAPSHOT_ENTRY_BYTES: usize = 46;

/// Why bytes are no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// Another length than its count of entries takes.
    #[error("{bytes} bytes are no snapshot of {count} producers")]
    Length {
        /// The bytes there are.
        bytes: usize,
        /// The count in them, 0 if there is none.
        count: i32,
    },
    /// A version that does not exist.
    #[error("snapshot version {0}")]
    Version(i16),
    /// The checksum does not match.
    #[error("checksum {stored:08x} stored, {computed:08x} computed")]
    Crc {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// An entry that no table holds: a negative producer id, or one that is there twice.
    #[error("an entry for producer {0} that cannot be")]
    Entry(i64),
}

/// Kafka's `.snapshot` file:
///
/// ```text
/// version i16 = 1 │ CRC-32C u32 of what follows │ count i32 │ entries of 46 bytes:
///   producer id i64 │ epoch i16 │ last sequence i32 │ last offset i64 │ offset delta i32 │ timestamp i64
///   │ coordinator epoch i32 │ first offset of the open transaction i64
/// ```
///
/// Only the last batch of each producer is in it: after a restart a duplicate of an earlier one is refused as out of
/// order, not answered.
impl ProducerTable {
    /// The table as a snapshot's bytes.
    pub fn encode_snapshot(&self) -> Vec<u8> {
        self.snapshot().encode()
    }

    /// What a snapshot is written from, as it is now. Costs next to nothing.
    pub(crate) fn snapshot(&self) -> ProducerSnapshot {
        ProducerSnapshot { producers: self.producers.clone() }
    }

    /// The table in a snapshot's bytes. Allocates no more than the bytes justify.
    ///
    /// # Errors
    /// If the bytes are no snapshot: an older one is to be tried, and the log replayed from there.
    pub fn decode_snapshot(bytes: &[u8], max_producers: usize) -> Result<Self, SnapshotError> {
        let length = |count| SnapshotError::Length { bytes: bytes.len(), count };
        let header: &[u8; SNAPSHOT_HEADER_BYTES] = bytes.first_chunk().ok_or_else(|| length(0))?;
        let version = BigEndian::read_i16(&header[0..2]);
        if version != SNAPSHOT_VERSION {
            return Err(SnapshotError::Version(version));
        }
        let stored = BigEndian::read_u32(&header[2..SNAPSHOT_CRC_START]);
        let computed = crc32c::crc32c(bytes.get(SNAPSHOT_CRC_START..).unwrap_or_default());
        if stored != computed {
            return Err(SnapshotError::Crc { stored, computed });
        }
        let count = BigEndian::read_i32(&header[SNAPSHOT_CRC_START..SNAPSHOT_HEADER_BYTES]);
        let (entries, rest) =
            bytes.get(SNAPSHOT_HEADER_BYTES..).unwrap_or_default().as_chunks::<SNAPSHOT_ENTRY_BYTES>();
        if !rest.is_empty() || usize::try_from(count) != Ok(entries.len()) {
            return Err(length(count));
        }
        let mut table = Self::new(max_producers);
        for entry in entries {
            let (id, state) = decode_entry(entry);
            if let Some(first) = state.transaction_start {
                table.open.insert((first, id));
            }
            if id < 0 || table.producers.get(id).is_some() {
                return Err(SnapshotError::Entry(id));
            }
            table.producers.update(id, || state, |_| ());
        }
        if table.producers.len() > table.max_producers {
            table.forget_some();
        }
        Ok(table)
    }
}

/// The producers of one log as they were at some moment.
#[derive(Clone, Debug)]
pub(crate) struct ProducerSnapshot {
    producers: ById,
}

impl ProducerSnapshot {
    /// What was known of a producer.
    pub(crate) fn get(&self, producer_id: i64) -> Option<&ProducerState> {
        self.producers.get(producer_id)
    }

    /// The bytes of its file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SNAPSHOT_HEADER_BYTES + SNAPSHOT_ENTRY_BYTES * self.producers.len());
        bytes.extend_from_slice(&SNAPSHOT_VERSION.to_be_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&i32::try_from(self.producers.len()).unwrap_or(i32::MAX).to_be_bytes());
        for (id, state) in self.producers.iter() {
            let last = state.last_stored();
            bytes.extend_from_slice(&id.to_be_bytes());
            bytes.extend_from_slice(&state.epoch.to_be_bytes());
            bytes.extend_from_slice(&last.last_sequence.to_be_bytes());
            bytes.extend_from_slice(&last.last_offset.0.to_be_bytes());
            bytes.extend_from_slice(&last.offset_delta.to_be_bytes());
            bytes.extend_from_slice(&state.last_timestamp.0.to_be_bytes());
            bytes.extend_from_slice(&state.coordinator_epoch.to_be_bytes());
            bytes.extend_from_slice(&state.transaction_start.unwrap_or(Offset(-1)).0.to_be_bytes());
        }
        let crc = crc32c::crc32c(bytes.get(SNAPSHOT_CRC_START..).unwrap_or_default());
        if let Some(field) = bytes.get_mut(2..SNAPSHOT_CRC_START) {
            BigEndian::write_u32(field, crc);
        }
        bytes
    }
}

fn decode_entry(entry: &[u8; SNAPSHOT_ENTRY_BYTES]) -> (i64, ProducerState) {
    let mut state = ProducerState::new(BigEndian::read_i16(&entry[8..10]));
    let last = StoredBatch {
        last_sequence: BigEndian::read_i32(&entry[10..14]),
        last_offset: Offset(BigEndian::read_i64(&entry[14..22])),
        offset_delta: BigEndian::read_i32(&entry[22..26]),
        timestamp: TimestampMs(BigEndian::read_i64(&entry[26..34])),
    };
    if last.last_offset.0 >= 0 {
        state.push(last);
    }
    state.last_timestamp = last.timestamp;
    state.coordinator_epoch = BigEndian::read_i32(&entry[34..38]);
    state.transaction_start = Some(Offset(BigEndian::read_i64(&entry[38..46]))).filter(|first| first.0 >= 0);
    (BigEndian::read_i64(&entry[0..8]), state)
}

#[cfg(test)]
mod tests;
