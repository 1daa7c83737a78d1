//! When a segment is full or old, and the next one takes its place.

use std::path::Path;
use std::sync::Arc;

use crate::error::AppendError;
use crate::flush::Sealed;
use crate::io::IoError;
use crate::segment::Segment;
use crate::{Offset, TimestampMs};

use super::{Active, Log, Writing};

impl Log {
    /// Kafka's conditions (`LogSegment.shouldRoll`), for a batch that would follow `pending` bytes behind the segment.
    pub(super) fn is_roll_due(
        &self,
        now: TimestampMs,
        last: Offset,
        timestamp: TimestampMs,
        bytes: u64,
        pending: u64,
    ) -> bool {
        let active = &self.active;
        if last - active.segment.base() > i64::from(i32::MAX) {
            return true;
        }
        let occupied = active.len.saturating_add(pending);
        let fits = occupied.saturating_add(bytes) <= u64::from(self.options.segment_bytes);
        let is_full = |writing: &Writing| writing.indexes.indexes().is_full(&self.options);
        occupied > 0 && (!fits || self.is_old(now, timestamp) || active.writing.as_deref().is_some_and(is_full))
    }

    /// Whether the active segment is too old for a record of this time: by its first record's time, or by the clock.
    fn is_old(&self, now: TimestampMs, timestamp: TimestampMs) -> bool {
        let limit = self.segment_ms();
        let first = self.active.writing.as_deref().and_then(|writing| writing.first_timestamp);
        let age = match first.filter(|first| first.0 >= 0) {
            Some(first) => timestamp.since(first),
            None => self.active.since.map_or(0, |since| now.since(since)),
        };
        age > limit
    }

    /// The age at which the active segment rolls.
    pub(crate) fn segment_ms(&self) -> i64 {
        let base = self.active.segment.base();
        // The active segment is not compacted.
        let lag_ms = self.options.compaction.as_ref().map_or(i64::MAX, |compaction| compaction.max_compaction_lag_ms);
        let segment_ms = self.options.segment_ms.min(lag_ms);
        segment_ms.saturating_sub(jitter(&self.place.dir, base, self.options.segment_jitter_ms.min(segment_ms)))
    }

    pub(super) fn roll_if_due(
        &mut self,
        now: TimestampMs,
        first: Offset,
        last: Offset,
        timestamp: TimestampMs,
        bytes: u64,
    ) -> Result<(), AppendError> {
        if !self.is_roll_due(now, last, timestamp, bytes, 0) {
            return Ok(());
        }
        let end = self.end();
        if last - end <= i64::from(i32::MAX) {
            // The base is the end and not the batch's first offset (Kafka's choice): where every segment begins where
            // the one before ends, recovery sees a lost tail.
            self.roll(end)?;
            return Ok(());
        }
        // Too far off for that. The recovery point goes behind the gap, or recovery would take it for a lost tail.
        self.roll(first)?;
        self.checkpoint()?;
        self.recovery_point = first;
        self.record_state(self.start(), first, self.flush_mark())?;
        Ok(())
    }

    /// Makes a new active segment at `base`. Nothing is synced here; the next flush sees to it.
    pub(crate) fn roll(&mut self, base: Offset) -> Result<(), IoError> {
        if self.active.segment.base() == base {
            return Ok(());
        }
        // Synced with the segment's last batches, before those of the next one are.
        self.trim_zeros()?;
        let segment = Arc::new(Segment::new(self.place.clone(), base, 0));
        segment.create_file()?;
        self.directory_changes += 1;
        let mut next = Active::empty(segment.clone(), &self.options);
        // Nobody else has it: neither the first append nor zeros ahead of it need look.
        next.writing().file = Some(segment.file()?);
        if self.active.len == 0 {
            // An empty segment is replaced, not kept: two segments would begin at offsets with nothing between them.
            let old = std::mem::replace(&mut self.active, next);
            self.shared.update_segments(|segments| segments.with_last(segment));
            return self.place.remove(&old.segment.path());
        }
        let file = match &self.active.writing().file {
            Some(file) => file.clone(),
            None => self.active.segment.file()?,
        };
        let indexes = &self.active.writing().indexes;
        indexes.finish();
        let indexes = indexes.indexes().clone();
        let old = std::mem::replace(&mut self.active, next);
        let old_aborted = old.segment.transactions().in_memory();
        self.sealed.push(Sealed {
            segment: old.segment,
            file: Some(file),
            end: base,
            indexes: Some(indexes),
            aborted: old_aborted,
            snapshot: Some(self.producers.snapshot()),
        });
        self.shared.update_segments(|segments| segments.with(segment));
        Ok(())
    }
}

/// The milliseconds by which this segment rolls earlier than others. Drawn from its name, not from a generator: the
/// storage has no randomness, and what matters is that logs differ.
fn jitter(dir: &Path, base: Offset, max: i64) -> i64 {
    if max <= 0 {
        return 0;
    }
    let mut hash = crc32fast::Hasher::new();
    hash.update(dir.as_os_str().as_encoded_bytes());
    hash.update(&base.0.to_be_bytes());
    i64::from(hash.finalize()) % max
}
