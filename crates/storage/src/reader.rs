//! Reading while the writer goes on.

use std::io::BufReader;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use crate::batch::{BASE_OFFSET_BYTES, BatchHeader, BatchView};
use crate::compression;
use crate::epochs::EpochHistory;
use crate::error::{DamageKind, Damaged, Fence, ReadError};
use crate::index::AbortedTransaction;
use crate::legacy::MessageReader;
use crate::names::SegmentFileName;
use crate::record::{RecordSource, RecordStream};
use crate::records::{RecordsError, timestamp_of};
use crate::segment::{Located, Segment};
use crate::segments::Segments;
use crate::transactions::{self, Undecided};
use crate::{LeaderEpoch, Offset, TimestampMs};

/// How much to read, and up to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLimit {
    /// The most bytes to return. Whole batches only, so it is usually less.
    pub max_bytes: usize,
    /// No batch that reaches this offset or a later one is returned: the high watermark for a consumer,
    /// [`Offset::MAX`] for all there is.
    pub upper: Offset,
    /// Return the first batch even if it is larger than `max_bytes`, so that a reader always gets on.
    pub at_least_one: bool,
    /// The [generation](LogReader::generation) that the caller's idea of `from` and `upper` belongs to, if it matters:
    /// after a truncation the read fails with [`ReadError::Superseded`], for `upper` may lie in another history.
    pub generation: Option<u64>,
    /// Return only batches whose checksum matches.
    pub verified: bool,
}

impl ReadLimit {
    /// About `max_bytes`, at least one batch, up to the end of the log.
    pub fn bytes(max_bytes: usize) -> Self {
        Self { max_bytes, upper: Offset::MAX, at_least_one: true, generation: None, verified: false }
    }

    /// The same limit, and nothing rather than a first batch that is larger.
    pub fn or_nothing(self) -> Self {
        Self { at_least_one: false, ..self }
    }

    /// The same limit, for this generation only.
    pub fn in_generation(self, generation: u64) -> Self {
        Self { generation: Some(generation), ..self }
    }

    /// The same limit, and only batches whose checksum matches. Without this a batch that has rotted since it was
    /// written is returned as it is, for the user of the records to notice.
    pub fn verified(self) -> Self {
        Self { verified: true, ..self }
    }

    /// The same limit with this upper offset.
    pub fn below(self, upper: Offset) -> Self {
        Self { upper, ..self }
    }
}

/// Batches that were read, with the offsets stamped when they were appended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fetched {
    /// Whole batches, one after the other; see [`crate::batches`]. Empty if there is nothing to read yet.
    pub bytes: Vec<u8>,
    /// The first offset of the first batch, which may lie below the offset asked for: batches are not split.
    pub first: Offset,
    /// The offset to read next.
    pub next: Offset,
}

/// A record found by its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundTimestamp {
    /// The record's offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: TimestampMs,
    /// The epoch of the leader that appended it.
    pub leader_epoch: LeaderEpoch,
}

/// What the writer publishes and the readers look at.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Held for as long as it takes to clone or replace an `Arc`; appends do not touch it.
    segments: RwLock<Arc<Segments>>,
    epochs: RwLock<EpochHistory>,
    /// Touched by appends to transactions only.
    undecided: Mutex<Undecided>,
    start: AtomicI64,
    end: AtomicI64,
    flushed: AtomicI64,
    /// Goes up after a truncation was published and before it touches a file. A reader that finds another value after
    /// its read than before may have read bytes of two histories, and reads again.
    generation: AtomicU64,
    /// Boxed, for most logs have none.
    fence: OnceLock<Box<Fence>>,
    /// Held while files of the log are synced.
    syncing: Mutex<()>,
    /// Held while side files of a segment are written, and by the writer while it takes segments away or makes one active
    /// again: else a job could write an index of batches that were cut.
    side_files: Mutex<()>,
}

impl Shared {
    pub(crate) fn new(
        segments: Segments,
        epochs: EpochHistory,
        undecided: Undecided,
        (start, end): (Offset, Offset),
    ) -> Self {
        Self {
            segments: RwLock::new(Arc::new(segments)),
            epochs: RwLock::new(epochs),
            undecided: Mutex::new(undecided),
            start: AtomicI64::new(start.0),
            end: AtomicI64::new(end.0),
            flushed: AtomicI64::new(start.0),
            generation: AtomicU64::new(0),
            fence: OnceLock::new(),
            syncing: Mutex::default(),
            side_files: Mutex::default(),
        }
    }

    /// Waits for others that sync files of the log, and keeps them out.
    pub(crate) fn syncing(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for others that write side files of the log, and keeps them out.
    pub(crate) fn writing_side_files(&self) -> MutexGuard<'_, ()> {
        self.side_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn segments(&self) -> Arc<Segments> {
        self.segments.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_segments(&self, segments: Segments) {
        *self.segments.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(segments);
    }

    /// Replaces the list by one made from it. A roll and a compaction may do so at the same time.
    pub(crate) fn update_segments(&self, change: impl FnOnce(&Segments) -> Segments) {
        let mut segments = self.segments.write().unwrap_or_else(PoisonError::into_inner);
        *segments = Arc::new(change(&segments));
    }

    pub(crate) fn epochs(&self) -> EpochHistory {
        self.epochs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_epochs(&self, epochs: EpochHistory) {
        *self.epochs.write().unwrap_or_else(PoisonError::into_inner) = epochs;
    }

    /// What holds the last stable offset back.
    pub(crate) fn undecided(&self) -> MutexGuard<'_, Undecided> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        let high_watermark = high_watermark.min(self.end());
        let unstable = self.undecided().first_unstable(high_watermark);
        // What began below the log start is undecided in what is left of it.
        unstable.map_or(high_watermark, |first| first.max(self.start()).min(high_watermark))
    }

    pub(crate) fn start(&self) -> Offset {
        Offset(self.start.load(Ordering::Acquire))
    }

    pub(crate) fn set_start(&self, start: Offset) {
        self.start.store(start.0, Ordering::Release);
    }

    pub(crate) fn end(&self) -> Offset {
        Offset(self.end.load(Ordering::Acquire))
    }

    pub(crate) fn set_end(&self, end: Offset) {
        self.end.store(end.0, Ordering::Release);
    }

    pub(crate) fn flushed(&self) -> Offset {
        Offset(self.flushed.load(Ordering::Acquire))
    }

    pub(crate) fn set_flushed(&self, flushed: Offset) {
        self.flushed.store(flushed.0, Ordering::Release);
    }

    /// Makes readers that are under way read again. After the cut was published, before a file is touched.
    pub(crate) fn next_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Closes the log to all calls, for the first reason given.
    pub(crate) fn close(&self, fence: Fence) {
        let _ = self.fence.set(Box::new(fence));
    }

    pub(crate) fn usable(&self) -> Result<(), Fence> {
        self.fence.get().map_or(Ok(()), |fence| Err(Fence::clone(fence)))
    }
}

/// Reads a log, up to what was appended when a call begins. Clones are cheap and may be used from any thread; they
/// never make the writer wait. After the log is closed or dropped all reads fail.
#[derive(Clone, Debug)]
pub struct LogReader {
    shared: Arc<Shared>,
}

impl LogReader {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The first offset that can be read.
    pub fn start(&self) -> Offset {
        self.shared.start()
    }

    /// The offset of the next append.
    pub fn end(&self) -> Offset {
        self.shared.end()
    }

    /// Why the log takes no more calls, if it does not.
    pub(crate) fn usable(&self) -> Result<(), Fence> {
        self.shared.usable()
    }

    /// Closes the log.
    pub(crate) fn close(&self, fence: Fence) {
        self.shared.close(fence);
    }

    /// Everything below was synced.
    pub fn flushed(&self) -> Offset {
        self.shared.flushed()
    }

    /// Goes up with each truncation: offsets told before one may name other records after it.
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// The epoch in which the record at `offset` was appended, [`LeaderEpoch::NONE`] if that is not known.
    pub fn epoch_of(&self, offset: Offset) -> LeaderEpoch {
        self.shared.epochs().epoch_of(offset)
    }

    /// Reads batches from the one that holds `from`, or the first one after it, on.
    ///
    /// Reads from one segment only, so a short answer does not mean the end. Checksums are not verified: that is for
    /// those who use the records.
    ///
    /// # Errors
    /// [`ReadError::OutOfRange`] below the start or past the end (at the end there is nothing to read, which is no
    /// error); [`ReadError::Corrupt`] if no batch can be made out.
    pub fn read(&self, from: Offset, limit: ReadLimit) -> Result<Fetched, ReadError> {
        let mut bytes = Vec::new();
        let (first, next) = self.read_into(from, limit, &mut bytes)?;
        Ok(Fetched { bytes, first, next })
    }

    /// As [`LogReader::read`], into a buffer that is used again: its content is replaced, its room is kept.
    /// Returns the first batch's first offset and the offset to read next.
    ///
    /// # Errors
    /// As [`LogReader::read`]; the buffer is empty then.
    pub fn read_into(
        &self,
        from: Offset,
        limit: ReadLimit,
        bytes: &mut Vec<u8>,
    ) -> Result<(Offset, Offset), ReadError> {
        let outcome = self.steady(limit.generation, |segments| {
            let (start, end) = (self.shared.start(), self.shared.end());
            if from < start || from > end {
                return Err(ReadError::OutOfRange { from, start, end });
            }
            let limit = ReadLimit { upper: limit.upper.min(end), ..limit };
            for (segment, next) in segments.holding_with_next(from).filter(|_| from < limit.upper) {
                if let Some(located) = segment.locate(from, next)? {
                    let located = if located.header.last_offset() < end {
                        located
                    } else {
                        // No batch that holds what lies below the end reaches past it.
                        segment.locate_below(from, next.min(end))?
                    };
                    return read_from(segment, &located, from, limit, next, bytes);
                }
            }
            Ok((from, from))
        });
        // Only now: bytes that are there already need not be zeroed before they are read over.
        if !matches!(outcome, Ok((first, next)) if first < next) {
            bytes.clear();
        }
        outcome
    }

    /// The first record whose timestamp is `timestamp` or later, at or after the start and below `upper`.
    ///
    /// # Errors
    /// If a batch that has to be looked at cannot be read.
    pub fn offset_for_timestamp(
        &self,
        timestamp: TimestampMs,
        upper: Offset,
    ) -> Result<Option<FoundTimestamp>, ReadError> {
        self.steady(None, |segments| {
            let found = self.first_from(segments, timestamp)?;
            Ok(found.filter(|found| found.offset < upper))
        })
    }

    /// The first record with the largest timestamp of all records from the start on and below `upper`.
    ///
    /// # Errors
    /// If a batch that has to be looked at cannot be read.
    pub fn max_timestamp(&self, upper: Offset) -> Result<Option<FoundTimestamp>, ReadError> {
        self.steady(None, |segments| {
            let (start, end) = (self.shared.start(), self.shared.end());
            let upper = upper.min(end);
            // A segment's largest timestamp may be that of a batch which compaction left no record in. Only if it turns out
            // to be are the batches asked.
            for by_batches in [false, true] {
                let mut largest = TimestampMs::NONE;
                for (segment, next) in
                    segments.with_ends(end).filter(|(segment, next)| segment.base() < upper && *next > start)
                {
                    let in_segment = segment.largest_timestamp()?;
                    if in_segment <= largest {
                        continue;
                    }
                    let whole = start <= segment.base() && next <= upper;
                    largest = if whole && !by_batches {
                        in_segment
                    } else {
                        largest.max(largest_between(segment, next, start, upper)?)
                    };
                }
                if largest == TimestampMs::NONE {
                    return Ok(None);
                }
                let found = self.first_from(segments, largest)?.filter(|found| found.offset < upper);
                if found.is_some() {
                    return Ok(found);
                }
            }
            Ok(None)
        })
    }

    fn first_from(&self, segments: &Segments, timestamp: TimestampMs) -> Result<Option<FoundTimestamp>, ReadError> {
        let (start, end) = (self.shared.start(), self.shared.end());
        for (segment, next) in segments.holding_with_next(start) {
            if segment.largest_timestamp()? < timestamp {
                continue;
            }
            // All batches up to the one that holds this offset have smaller timestamps, or it is the one itself.
            let mut near = segment.offset_before(timestamp)?.max(start);
            let wanted =
                |header: &BatchHeader, near| header.max_timestamp() >= timestamp && header.last_offset() >= near;
            while let Some(located) = segment.locate_where(near, next.min(end), |header| wanted(header, near))? {
                near = located.header.next_offset();
                match segment.read_batch(&located) {
                    Ok(bytes) => {
                        if let Some(found) = first_in_batch(segment, &located, &bytes, start, timestamp)? {
                            return Ok(Some(found));
                        }
                    }
                    // Its timestamps mean nothing.
                    Err(ReadError::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// The last stable offset: below it every transaction is committed or aborted, by a marker below the high watermark.
    /// That is where readers of committed records stop; at or below the high watermark and the end of the log.
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        self.shared.last_stable_offset(high_watermark)
    }

    /// The aborted transactions that reach into the offsets from `from` to below `upper`, by rising marker. A reader of
    /// committed records that read these offsets leaves out what their producers wrote from the first offset on to the
    /// marker. (It may be told of one of which nothing is left in there.)
    ///
    /// A transaction index that is damaged is taken from the batches of its segment; housekeeping writes it anew.
    ///
    /// # Errors
    /// [`ReadError::Io`] if a file cannot be read, [`ReadError::Closed`] if the log is closed.
    pub fn aborted_transactions(&self, from: Offset, upper: Offset) -> Result<Vec<AbortedTransaction>, ReadError> {
        self.steady(None, |segments| transactions::collect_between(segments, self.shared.end(), from, upper))
    }

    /// Runs a read until no truncation came in between.
    fn steady<T>(
        &self,
        wanted: Option<u64>,
        mut read: impl FnMut(&Segments) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        loop {
            self.shared.usable()?;
            let generation = self.shared.generation();
            if wanted.is_some_and(|wanted| wanted != generation) {
                return Err(ReadError::Superseded);
            }
            let segments = self.shared.segments();
            let outcome = read(&segments);
            if self.shared.generation() != generation {
                continue;
            }
            // The log may have ended meanwhile, and a file that was opened just now be that of a later log of this name.
            self.shared.usable()?;
            match outcome {
                Err(ReadError::Corrupt { segment, position, bytes, offsets, what }) => {
                    let end = self.shared.end().max(offsets.start.next());
                    let offsets = offsets.start..offsets.end.min(end).max(offsets.start.next());
                    let damaged = Damaged { segment, position, bytes, offsets, what };
                    self.note(&segments, &damaged, generation);
                    return Err(damaged.into());
                }
                // A segment left the log between our look at the list and the opening of its file.
                Err(ReadError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                    if Arc::ptr_eq(&self.shared.segments(), &segments) {
                        return Err(ReadError::Io(error));
                    }
                }
                outcome => return outcome,
            }
        }
    }
}

impl LogReader {
    /// Has all readers know of damage, unless the log was truncated since this generation: that may be what was read.
    fn note(&self, segments: &Segments, damaged: &Damaged, generation: u64) {
        // A batch whose checksum is right was written like that.
        if matches!(damaged.what, DamageKind::Records(_)) {
            return;
        }
        let name = damaged.segment.file_name().and_then(|name| SegmentFileName::parse(name.to_str()?));
        let segment = name.and_then(|name| segments.at(name.base_offset));
        if let Some(segment) = segment {
            segment.known_damage().note(damaged.clone(), || self.shared.generation() == generation);
        }
    }
}

/// Reads from the batch on that holds `from`.
fn read_from(
    segment: &Segment,
    located: &Located,
    from: Offset,
    limit: ReadLimit,
    next_segment: Offset,
    bytes: &mut Vec<u8>,
) -> Result<(Offset, Offset), ReadError> {
    let header = &located.header;
    if header.last_offset() >= limit.upper || (header.total_bytes() > limit.max_bytes && !limit.at_least_one) {
        return Ok((from, from));
    }
    if let Some(next) = read_batches(segment, located, limit, next_segment, bytes)? {
        return Ok((header.base_offset(), next));
    }
    // The very first batch does not fit what lies around it, or its checksum is wrong. It may be what lies behind it that
    // is wrong: then this one can be read.
    bytes.clear();
    let Some(located) = segment.locate_past_damage(from, next_segment, true)? else { return Ok((from, from)) };
    let header = &located.header;
    if header.last_offset() >= limit.upper {
        return Ok((from, from));
    }
    bytes.extend_from_slice(&segment.read_batch(&located)?);
    Ok((header.base_offset(), header.next_offset()))
}

/// Reads from a known batch on. `None` if that batch itself does not fit.
fn read_batches(
    segment: &Segment,
    Located { position, header }: &Located,
    limit: ReadLimit,
    next_segment: Offset,
    bytes: &mut Vec<u8>,
) -> Result<Option<Offset>, ReadError> {
    let position = *position;
    let len = segment.len();
    let known = segment.known_damage().next_from(position).map_or(len, |known| known.position);
    let left = usize::try_from(known.saturating_sub(position)).unwrap_or(usize::MAX);
    let most = limit.max_bytes.max(header.total_bytes());
    // With the base offset of the batch behind the last one: it tells whether that one is where it should be.
    bytes.resize(most.saturating_add(BASE_OFFSET_BYTES).min(left), 0);
    segment.read(bytes, position)?;
    let mut whole = 0;
    let mut next = header.base_offset();
    // Whatever stops this after the first batch (a limit, a cut-off batch, damage) is for the next read to tell.
    while let Some(Ok((batch, length))) = bytes.get(whole..).map(BatchView::parse) {
        let (first, last, behind) = (batch.base_offset(), batch.last_offset(), whole + length);
        if behind > most || first < next || last < first || last >= limit.upper.min(next_segment) {
            break;
        }
        let begins_behind = match bytes.get(behind..).and_then(|bytes| bytes.first_chunk()) {
            Some(base_offset) => Offset(i64::from_be_bytes(*base_offset)),
            None if position + behind as u64 >= len => next_segment,
            None => Offset::MAX,
        };
        // The checksum does not cover the format version, and an older one has another checksum.
        let verify = limit.verified || batch.is_legacy();
        if begins_behind <= last || (verify && !batch.crc_matches()) {
            break;
        }
        whole = behind;
        next = batch.next_offset();
    }
    bytes.truncate(whole);
    Ok((whole > 0).then_some(next))
}

/// The largest timestamp of the records from `start` on and below `upper` in a segment whose offsets lie below `next`.
fn largest_between(segment: &Segment, next: Offset, start: Offset, upper: Offset) -> Result<TimestampMs, ReadError> {
    let mut largest = TimestampMs::NONE;
    let mut near = start.max(segment.base());
    while near < upper {
        let wanted = |header: &BatchHeader| {
            header.last_offset() >= near && header.max_timestamp() > largest && header.record_count() != 0
        };
        let Some(located) = segment.locate_where(near, next, wanted)? else { break };
        let header = &located.header;
        if header.base_offset() >= start && header.last_offset() < upper {
            largest = header.max_timestamp();
        } else if header.base_offset() < upper {
            // A limit lies inside of this batch.
            match segment.read_batch(&located) {
                Ok(bytes) => for_each_record(segment, &located, &bytes, |offset, timestamp| {
                    if start <= offset && offset < upper {
                        largest = largest.max(timestamp);
                    }
                    true
                })?,
                Err(ReadError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        near = header.next_offset();
    }
    Ok(largest)
}

/// The first record of a batch at or after `start` whose timestamp is `timestamp` or later.
fn first_in_batch(
    segment: &Segment,
    located: &Located,
    bytes: &[u8],
    start: Offset,
    timestamp: TimestampMs,
) -> Result<Option<FoundTimestamp>, ReadError> {
    let mut first = None;
    for_each_record(segment, located, bytes, |offset, record_timestamp| {
        if offset >= start && record_timestamp >= timestamp {
            let leader_epoch = located.header.leader_epoch();
            first = Some(FoundTimestamp { offset, timestamp: record_timestamp, leader_epoch });
        }
        first.is_none()
    })?;
    Ok(first)
}

/// Calls `visit` with offset and timestamp of each record of a batch, until it returns false.
fn for_each_record(
    segment: &Segment,
    located: &Located,
    bytes: &[u8],
    mut visit: impl FnMut(Offset, TimestampMs) -> bool,
) -> Result<(), ReadError> {
    let header = &located.header;
    let undecodable = |what: String| segment.damage_of(located, DamageKind::Records(what));
    let (batch, _) = BatchView::parse(bytes).map_err(|error| undecodable(error.to_string()))?;
    if header.is_legacy() {
        let undecodable = |error: RecordsError| undecodable(error.to_string());
        let mut messages = MessageReader::new(&batch, RECORDS_BYTES_MAX).map_err(undecodable)?;
        while let Some((offset, timestamp)) = messages.next_place().map_err(undecodable)? {
            if !visit(offset, timestamp) {
                break;
            }
        }
        return Ok(());
    }
    let codec = header.attributes().codec().map_err(|id| undecodable(format!("unknown compression {id}")))?;
    let records = compression::decompress(codec, batch.records_bytes(), RECORDS_BYTES_MAX);
    let mut source = RecordStream::new(BufReader::new(records.map_err(|error| undecodable(error.to_string()))?));
    for _ in 0..header.record_count() {
        let record = source.next_record().map_err(|error| undecodable(format!("{error:?}")))?;
        let timestamp = timestamp_of(header, record.timestamp_delta);
        if !visit(header.base_offset() + i64::from(record.offset_delta), timestamp) {
            break;
        }
    }
    Ok(())
}

/// Decompression stops here: no batch that was let in grows to this, a damaged one might.
const RECORDS_BYTES_MAX: u64 = 1 << 31;
