//! What of a log may and should be compacted now. Pure but for the timestamps it has to look up.

use std::sync::Arc;

use super::options::CompactionOptions;
use crate::error::ReadError;
use crate::io::IoContext;
use crate::scan::{Found, Walk};
use crate::segment::Segment;
use crate::{Offset, TimestampMs};

/// A segment with the offset after it.
pub(crate) type Ended = (Arc<Segment>, Offset);

/// What may be compacted.
#[derive(Debug, Default)]
pub(crate) struct Cleanable {
    /// Bytes that are compacted already.
    pub(crate) clean_bytes: u64,
    /// The segments that are not, or not as a whole.
    pub(crate) dirty: Vec<Ended>,
}

impl Cleanable {
    /// Of all segments that end at or below `limit` those from `first_dirty` on are dirty. One that begins there is not among
    /// them, though it ends there while it is empty: it is about to grow.
    pub(crate) fn of<'s>(
        segments: impl Iterator<Item = (&'s Arc<Segment>, Offset)>,
        first_dirty: Offset,
        limit: Offset,
    ) -> Self {
        let mut cleanable = Self::default();
        for (segment, end) in segments.take_while(|(segment, end)| *end <= limit && segment.base() < limit) {
            if end <= first_dirty {
                cleanable.clean_bytes += segment.len();
            } else {
                cleanable.dirty.push((segment.clone(), end));
            }
        }
        cleanable
    }

    /// The offset up to which it goes.
    pub(crate) fn end(&self) -> Option<Offset> {
        self.dirty.last().map(|(_, end)| *end)
    }

    fn dirty_bytes(&self) -> u64 {
        self.dirty.iter().map(|(segment, _)| segment.len()).sum()
    }

    /// Whether so much is dirty that it is worth the work.
    pub(crate) fn is_worth_it(&self, options: &CompactionOptions) -> bool {
        let dirty = self.dirty_bytes();
        let ratio = dirty as f64 / (dirty + self.clean_bytes).max(1) as f64;
        dirty > 0 && ratio > options.min_cleanable_dirty_ratio
    }

    /// Leaves out what is too young, from the first segment on that has a record younger than the lag.
    pub(crate) fn leave_young(&mut self, now: TimestampMs, options: &CompactionOptions) -> Result<(), ReadError> {
        if options.min_compaction_lag_ms == 0 {
            return Ok(());
        }
        let mut old = 0;
        for (segment, _) in &self.dirty {
            let mut largest = segment.largest_timestamp()?;
            if largest < TimestampMs(0) {
                let metadata = segment.file()?.metadata();
                largest = metadata.context("read metadata of", &segment.path())?.modified;
            }
            if now.since(largest) < options.min_compaction_lag_ms {
                break;
            }
            old += 1;
        }
        self.dirty.truncate(old);
        Ok(())
    }

    /// Whether something is dirty for longer than the largest lag.
    pub(crate) fn is_overdue(&self, now: TimestampMs, options: &CompactionOptions) -> Result<bool, ReadError> {
        if options.max_compaction_lag_ms == i64::MAX {
            return Ok(false);
        }
        for (segment, _) in &self.dirty {
            let file = segment.file()?;
            let first = Walk::small(&*file, 0, segment.len()).next_header().context("read", &segment.path())?;
            if let Found::Batch(_, header) = first
                && header.max_timestamp() >= TimestampMs(0)
                && now.since(header.max_timestamp()) > options.max_compaction_lag_ms
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Puts neighbours together whose batches fit into one segment, and whose offsets into its index.
pub(crate) fn group(segments: Vec<Ended>, segment_bytes: u64) -> Vec<Vec<Ended>> {
    let mut groups: Vec<Vec<Ended>> = Vec::new();
    let mut bytes = 0;
    for (segment, end) in segments {
        let fits = groups.last().and_then(|group| group.first()).is_some_and(|(first, _)| {
            bytes + segment.len() <= segment_bytes && end - first.base() <= i64::from(i32::MAX)
        });
        match groups.last_mut().filter(|_| fits) {
            Some(group) => {
                bytes += segment.len();
                group.push((segment, end));
            }
            None => {
                bytes = segment.len();
                groups.push(vec![(segment, end)]);
            }
        }
    }
    groups
}
