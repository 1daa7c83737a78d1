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
    pub(crate) indexes: IndexWriter,
    pub(crate) len: u64,
    pub(crate) last: LastBatch,
    /// Its file, from the first append after a sync to the sync of the last.
    pub(crate) file: Option<Arc<dyn File>>,
    /// Zeros behind its end, if there are or may be some.
    pub(crate) zeros: Option<ZeroAhead>,
    /// The largest timestamp of its first batch, by which it ages.
    pub(crate) first_timestamp: Option<TimestampMs>,
    /// When it was first seen by a call that tells the time; it ages by this if its first batch has no timestamp.
    pub(crate) since: Option<TimestampMs>,
}

impl Active {
    pub(crate) fn new(segment: Arc<Segment>, options: &LogOptions) -> Self {
        let indexes = IndexWriter::new(segment.base(), options.index_interval_bytes);
        segment.set_indexes(Indexes::Memory(indexes.indexes().clone()));
        segment.transactions().set(Vec::new());
        segment.publish(0, TimestampMs::NONE);
        let last = LastBatch::none(0);
        Self { segment, indexes, len: 0, last, file: None, zeros: None, first_timestamp: None, since: None }
    }

    /// The flush mark once everything up to the end of the log is synced.
    pub(crate) fn mark(&self, end: Offset) -> FlushMark {
        FlushMark {
            segment_base: self.segment.base(),
            batch_position: self.last.position,
            position: self.len,
            // A segment that begins behind a gap begins above the end, until it has a batch.
            offset: end.max(self.segment.base()),
            header: self.last.header,
        }
    }

    pub(super) fn publish(&self) {
        self.segment.publish(self.len, self.indexes.largest_timestamp());
    }
}
