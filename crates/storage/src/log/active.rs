//! The segment that grows.

use std::sync::Arc;

use crate::batch::{BatchHeader, HEADER_BYTES};
use crate::fs::File;
use crate::indexes::{IndexWriter, Indexes};
use crate::options::LogOptions;
use crate::segment::Segment;
use crate::state_file::FlushMark;
use crate::zero_ahead::ZeroAhead;
use crate::{Offset, TimestampMs};

/// The last batch of a segment that grows, by which the flush mark is told from a foreign one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBatch {
    /// Where it begins; where the segment ends if there is none.
    pub(crate) position: u64,
    /// Its first bytes, zeros behind a shorter one; zeros if there is none.
    pub(crate) header: [u8; HEADER_BYTES],
}

impl LastBatch {
    /// There is none, at this position.
    pub(crate) fn none(position: u64) -> Self {
        Self { position, header: [0; HEADER_BYTES] }
    }

    /// The batch at this position, whose bytes these are or begin with.
    pub(super) fn of(position: u64, bytes: &[u8], header: &BatchHeader) -> Self {
        if let Some(header) = bytes.first_chunk().filter(|_| header.total_bytes() >= HEADER_BYTES) {
            return Self { position, header: *header };
        }
        let mut last = Self::none(position);
        for (to, from) in last.header.iter_mut().zip(bytes.iter().take(header.total_bytes())) {
            *to = *from;
        }
        last
    }
}

/// The segment that appends go to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) segment: Arc<Segment>,
    pub(crate) len: u64,
    /// When it was first seen by a call that tells the time; it ages by this if its first batch has no timestamp.
    pub(crate) since: Option<TimestampMs>,
    /// Not there while the log is at rest: it was opened after a clean close and not changed since, and all that writing
    /// needs is in files. A log that is marked as not closed well has it.
    pub(crate) writing: Option<Box<Writing>>,
}

/// What it takes to write to a segment.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) indexes: IndexWriter,
    pub(crate) last: LastBatch,
    /// The segment's file, from the first append after a sync to the sync of the last.
    pub(crate) file: Option<Arc<dyn File>>,
    /// Zeros behind its end, if there are or may be some.
    pub(crate) zeros: Option<ZeroAhead>,
    /// The largest timestamp of its first batch, by which it ages.
    pub(crate) first_timestamp: Option<TimestampMs>,
}

impl Active {
    /// Of a segment of `len` bytes, with these indexes.
    pub(crate) fn new(
        segment: Arc<Segment>,
        len: u64,
        indexes: IndexWriter,
        last: LastBatch,
        first_timestamp: Option<TimestampMs>,
    ) -> Self {
        let writing = Writing { indexes, last, file: None, zeros: None, first_timestamp };
        Self { segment, len, since: None, writing: Some(Box::new(writing)) }
    }

    /// Of a segment without batches.
    pub(crate) fn empty(segment: Arc<Segment>, options: &LogOptions) -> Self {
        let indexes = IndexWriter::new(segment.base(), options.index_interval_bytes);
        segment.set_indexes(Indexes::Memory(indexes.indexes().clone()));
        segment.transactions().set(Vec::new());
        segment.publish(0, TimestampMs::NONE);
        Self::new(segment, 0, indexes, LastBatch::none(0), None)
    }

    /// The same at rest, if that is all in its files.
    pub(crate) fn at_rest(&self) -> Self {
        Self { segment: Arc::new(self.segment.at_rest()), len: self.len, since: self.since, writing: None }
    }

    /// Takes up what writing needs, as it was read of the segment, unless it has something newer.
    pub(crate) fn take_up(&mut self, awake: Self) {
        if self.writing.is_none() {
            self.writing = awake.writing;
            self.share_indexes();
            self.publish();
        }
    }

    /// What it takes to write to it, of a log that is not at rest.
    pub(crate) fn writing(&mut self) -> &mut Writing {
        match &mut self.writing {
            Some(writing) => writing,
            None => unreachable!("a log is woken before its first change"),
        }
    }

    /// The flush mark once everything up to the end of the log is synced; not of a log at rest.
    pub(crate) fn mark(&self, end: Offset) -> Option<FlushMark> {
        let Writing { last, .. } = self.writing.as_deref()?;
        Some(FlushMark {
            segment_base: self.segment.base(),
            batch_position: last.position,
            position: self.len,
            // A segment that begins behind a gap begins above the end, until it has a batch.
            offset: end.max(self.segment.base()),
            header: last.header,
        })
    }

    /// Its file with the segment, while there are unsynced writes in it.
    pub(crate) fn open_file(&self) -> Option<(Arc<Segment>, Arc<dyn File>)> {
        Some((self.segment.clone(), self.writing.as_deref()?.file.clone()?))
    }

    /// Has readers use its indexes.
    pub(crate) fn share_indexes(&self) {
        if let Some(writing) = &self.writing {
            self.segment.set_indexes(Indexes::Memory(writing.indexes.indexes().clone()));
        }
    }

    /// Has readers see up to its length.
    pub(crate) fn publish(&self) {
        if let Some(writing) = &self.writing {
            self.segment.publish(self.len, writing.indexes.largest_timestamp());
        }
    }
}
