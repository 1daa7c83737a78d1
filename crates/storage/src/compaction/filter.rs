//! What compaction does with one batch: drop it, keep it as it is, or write it anew with fewer records.

use std::io::{BufReader, Write};

use super::offset_map::{KeyHash, OffsetMap};
use super::records::RecordReader;
use super::transactions::{InTransaction, Transactions};
use crate::batch::{
    BatchFault, BatchHeader, BatchView, CRC_START, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC, TimestampType,
};
use crate::compression::{Compressor, decompress};
use crate::index::AbortedTransaction;
use crate::producers::{ProducerSnapshot, ProducerTable};
use crate::record::{RecordFault, WalkError};
use crate::{Offset, TimestampMs};

/// Decompression stops here: no batch that was let in grows to this, a damaged one might.
const RECORDS_BYTES_MAX: u64 = 1 << 31;
/// Bytes of records that are in memory at a time, beside a decompressor's own.
const BUFFER_BYTES: usize = 64 << 10;

/// What becomes of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes.
    Drop,
    /// It stays, byte for byte.
    Keep,
    /// These bytes take its place. They cover the same offsets.
    Replace(Vec<u8>),
}

/// Why a batch cannot be compacted. Its segment stays as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfilterable {
    #[error("{0}")]
    Batch(#[from] BatchFault),
    #[error("a message of format version {0}")]
    OldFormat(i8),
    #[error("records that cannot be read: {0}")]
    Records(String),
    #[error("offsets {first} to {next}, the latter not included, where only those from {from} to {end} may be")]
    Offsets { first: Offset, next: Offset, from: Offset, end: Offset },
    #[error("the record at {offset_delta} behind the batch's first offset is out of order")]
    Order { offset_delta: i32 },
}

impl From<WalkError> for Unfilterable {
    fn from(error: WalkError) -> Self {
        Self::Records(match error {
            WalkError::Record(fault) => fault.to_string(),
            WalkError::Read(error) => error.to_string(),
        })
    }
}

/// The last batch of each producer, which stays, if only as a header: it tells the last sequence number.
#[derive(Clone, Debug)]
pub(crate) struct LastBatches {
    producers: ProducerSnapshot,
}

impl LastBatches {
    pub(crate) fn of(producers: &ProducerTable) -> Self {
        Self { producers: producers.snapshot() }
    }

    fn contains(&self, header: &BatchHeader) -> bool {
        match self.producers.get(header.producer_id()) {
            Some(known) if known.last_offset() >= Offset::ZERO => header.last_offset() == known.last_offset(),
            // Only a marker of this epoch is known.
            Some(known) => header.is_control() && header.producer_epoch() == known.epoch(),
            None => false,
        }
    }
}

/// Kafka's rules (`Cleaner.cleanInto`, `MemoryRecords.filterTo`).
#[derive(Debug)]
pub(crate) struct Filter<'r> {
    pub(crate) map: &'r OffsetMap,
    pub(crate) last_batches: &'r LastBatches,
    pub(crate) now: TimestampMs,
    pub(crate) delete_retention_ms: i64,
    /// Something before could not be compacted: what tells that its records are deleted or aborted has to stay.
    pub(crate) keep_deletions: bool,
}

/// What a batch came to.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    /// It is the marker of this aborted transaction, which stays in the index.
    pub(crate) aborted: Option<AbortedTransaction>,
}

impl Filter<'_> {
    /// Judges the next batch. `is_last`: the offset after it must not be lost.
    pub(crate) fn judge(
        &self,
        batch: &BatchView<'_>,
        transactions: &mut Transactions,
        is_last: bool,
    ) -> Result<Judged, Unfilterable> {
        let header = batch.header();
        check(batch)?;
        let passed = transactions.pass(batch);
        let aborted = match passed {
            InTransaction::NeededMarker(aborted) => aborted,
            InTransaction::IdleMarker(aborted) if self.keep_deletions => aborted,
            _ => None,
        };
        let keep_empty = is_last || self.last_batches.contains(header);
        let horizon = header.attributes().has_delete_horizon().then(|| header.base_timestamp());
        let is_past = horizon.is_some_and(|horizon| horizon <= self.now) && !self.keep_deletions;
        let verdict = match passed {
            InTransaction::Data => self.judge_data(batch, is_past, horizon.is_some(), keep_empty)?,
            InTransaction::AbortedData => emptied(header, keep_empty),
            InTransaction::NeededMarker(_) => Verdict::Keep,
            InTransaction::IdleMarker(_) if header.record_count() == 0 || is_past => emptied(header, keep_empty),
            InTransaction::IdleMarker(_) if horizon.is_some() || self.keep_deletions => Verdict::Keep,
            InTransaction::IdleMarker(_) => {
                let mut all = Kept::default();
                each_record(batch, |_| {
                    all.push(true);
                    true
                })?;
                self.rewrite(batch, &all, true)?
            }
        };
        Ok(Judged { verdict, aborted })
    }

    fn judge_data(
        &self,
        batch: &BatchView<'_>,
        is_past: bool,
        has_horizon: bool,
        keep_empty: bool,
    ) -> Result<Verdict, Unfilterable> {
        let header = batch.header();
        let mut kept = Kept::default();
        let mut has_tombstones = false;
        each_record(batch, |seen| {
            let offset = header.base_offset() + i64::from(seen.offset_delta);
            let stays = if offset >= self.map.end() {
                true
            } else {
                let is_latest = |key: KeyHash| self.map.get(key).is_none_or(|latest| offset >= latest);
                seen.key.is_some_and(is_latest) && (seen.has_value || !is_past)
            };
            has_tombstones |= stays && !seen.has_value;
            kept.push(stays);
            true
        })?;
        if kept.count == 0 {
            return Ok(emptied(header, keep_empty));
        }
        let set_horizon = has_tombstones && !has_horizon;
        if kept.count == kept.len && !set_horizon {
            return Ok(Verdict::Keep);
        }
        self.rewrite(batch, &kept, set_horizon)
    }

    /// The batch with the records that are kept, and, if it has to have one, with the time until which its tombstones or
    /// its marker stay. That time takes the place of the base timestamp.
    fn rewrite(&self, batch: &BatchView<'_>, kept: &Kept, set_horizon: bool) -> Result<Verdict, Unfilterable> {
        let old = batch.header();
        let mut header = *old;
        if set_horizon {
            header.attributes = header.attributes.with_delete_horizon();
            header.base_timestamp = self.now.after(self.delete_retention_ms);
        }
        let shift = old.base_timestamp().0.wrapping_sub(header.base_timestamp.0);
        let codec = old.attributes().codec().map_err(|id| Unfilterable::Records(format!("unknown codec {id}")))?;
        let unreadable = |error: std::io::Error| Unfilterable::Records(error.to_string());
        let mut out = Compressor::new(codec).map_err(unreadable)?;
        let mut largest = TimestampMs::NONE;
        let source = decompress(codec, batch.records_bytes(), RECORDS_BYTES_MAX).map_err(unreadable)?;
        let mut records = RecordReader::new(BufReader::with_capacity(BUFFER_BYTES, source));
        for at in 0..kept.len {
            if kept.contains(at) {
                let timestamp_delta = records.copy(shift, &mut out)?;
                largest = largest.max(TimestampMs(old.base_timestamp().0.wrapping_add(timestamp_delta)));
            } else {
                records.skip()?;
            }
        }
        if old.attributes().timestamp_type() == TimestampType::CreateTime {
            header.max_timestamp = largest;
        }
        header.record_count = i32::try_from(kept.count).unwrap_or(i32::MAX);
        out.flush().map_err(unreadable)?;
        let records = out.finish().map_err(unreadable)?;
        sealed(header, &records).map(Verdict::Replace)
    }
}

/// A batch of which no record stays.
fn emptied(header: &BatchHeader, keep_empty: bool) -> Verdict {
    if !keep_empty {
        return Verdict::Drop;
    }
    if header.record_count() == 0 {
        return Verdict::Keep;
    }
    let attributes = header.attributes().without_records();
    let empty = BatchHeader { attributes, base_timestamp: TimestampMs::NONE, record_count: 0, ..*header };
    sealed(empty, &[]).map_or(Verdict::Keep, Verdict::Replace)
}

/// The bytes of a batch, its length and checksum put in.
fn sealed(mut header: BatchHeader, records: &[u8]) -> Result<Vec<u8>, Unfilterable> {
    let length = i32::try_from(HEADER_BYTES - LENGTH_PREFIX_BYTES + records.len());
    header.batch_length = length.map_err(|_| Unfilterable::Records("more than 2 GiB of records".to_owned()))?;
    let covered = header.encode();
    let crc = crc32c::crc32c(covered.get(CRC_START..).unwrap_or_default());
    header.crc = crc32c::crc32c_append(crc, records);
    Ok([&header.encode(), records].concat())
}

/// Whether compaction can deal with a batch at all.
pub(crate) fn check(batch: &BatchView<'_>) -> Result<(), Unfilterable> {
    if batch.magic() != MAGIC {
        return Err(Unfilterable::OldFormat(batch.magic()));
    }
    Ok(batch.verify_crc()?)
}

/// Calls `visit` for each record of a batch, until it returns false.
pub(crate) fn each_record(
    batch: &BatchView<'_>,
    mut visit: impl FnMut(super::records::Seen) -> bool,
) -> Result<(), Unfilterable> {
    let header = batch.header();
    if header.record_count() == 0 {
        return Ok(());
    }
    let codec = header.attributes().codec().map_err(|id| Unfilterable::Records(format!("unknown codec {id}")))?;
    let records = decompress(codec, batch.records_bytes(), RECORDS_BYTES_MAX);
    let records = records.map_err(|error| Unfilterable::Records(error.to_string()))?;
    let mut reader = RecordReader::new(BufReader::with_capacity(BUFFER_BYTES, records));
    // An offset past the batch's would be one of another batch, whose records it would supersede.
    let last = header.last_offset() - header.base_offset();
    let mut smallest = 0;
    for _ in 0..header.record_count() {
        let seen = reader.look()?;
        let offset_delta = i64::from(seen.offset_delta);
        if offset_delta < smallest || offset_delta > last {
            return Err(Unfilterable::Order { offset_delta: seen.offset_delta });
        }
        smallest = offset_delta + 1;
        if !visit(seen) {
            return Ok(());
        }
    }
    if reader.at_end()? { Ok(()) } else { Err(WalkError::Record(RecordFault::Trailing).into()) }
}

/// Which records of a batch stay, one bit each.
#[derive(Debug, Default)]
struct Kept {
    bits: Vec<u64>,
    len: usize,
    count: usize,
}

impl Kept {
    fn push(&mut self, stays: bool) {
        let (word, bit) = (self.len / 64, self.len % 64);
        if bit == 0 {
            self.bits.push(0);
        }
        if let Some(word) = self.bits.get_mut(word) {
            *word |= u64::from(stays) << bit;
        }
        self.len += 1;
        self.count += usize::from(stays);
    }

    fn contains(&self, at: usize) -> bool {
        self.bits.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }
}
