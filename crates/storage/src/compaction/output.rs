//! A segment that compaction writes, beside the ones it will take the place of.

use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::{BatchHeader, BatchView};
use crate::fs::{File, OpenMode};
use crate::index::{AbortedTransaction, encode_transactions};
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::{FileExt, IoContext, IoError};
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::options::LogOptions;
use crate::segment::{Place, Segment};
use crate::{Offset, TimestampMs};

/// The files a compacted segment may have, the data last: in this order they are marked complete, and while one of them
/// is not, the next opening gives all of them up.
pub(crate) const CLEANED_FILES: [SegmentFile; 4] =
    [SegmentFile::OffsetIndex, SegmentFile::TimeIndex, SegmentFile::TransactionIndex, SegmentFile::Log];

/// See the module.
#[derive(Debug)]
pub(crate) struct Output {
    place: Arc<Place>,
    base: Offset,
    file: Arc<dyn File>,
    /// Bytes in the file.
    written: u64,
    /// Bytes behind them.
    pending: Vec<u8>,
    pending_max: usize,
    indexes: IndexWriter,
    aborted: Vec<AbortedTransaction>,
    end: Offset,
}

/// A segment whose files are complete and synced, under the names of unfinished ones.
#[derive(Debug)]
pub(crate) struct Cleaned {
    pub(crate) base: Offset,
    pub(crate) len: u64,
    largest_timestamp: TimestampMs,
    file: Arc<dyn File>,
    indexes: Arc<MemoryIndexes>,
    aborted: Vec<AbortedTransaction>,
    /// Which of [`CLEANED_FILES`] it has.
    pub(crate) kinds: Vec<SegmentFile>,
}

impl Output {
    /// Begins a segment. A leftover of the same name is overwritten.
    pub(crate) fn create(place: &Arc<Place>, base: Offset, pending_max: usize) -> Result<Self, IoError> {
        let path = path(place, base, SegmentFile::Log, SegmentFileState::Cleaned);
        let file = place.fs.open(&path, OpenMode::Truncate).context("create", &path)?;
        Ok(Self {
            base,
            file,
            written: 0,
            pending: Vec::new(),
            pending_max,
            indexes: IndexWriter::new(base, place.index_interval_bytes),
            aborted: Vec::new(),
            end: base,
            place: place.clone(),
        })
    }

    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    /// Bytes of batches in it.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// The offset after the last batch.
    pub(crate) fn end(&self) -> Offset {
        self.end
    }

    /// Whether another batch has to go into another segment.
    pub(crate) fn is_full_for(&self, batch: &BatchHeader, options: &LogOptions) -> bool {
        let bytes = self.len() + batch.total_bytes() as u64;
        self.len() > 0 && (bytes > u64::from(options.segment_bytes) || self.indexes.indexes().is_full(options))
    }

    /// Adds a batch.
    pub(crate) fn add(&mut self, batch: &BatchView<'_>) -> Result<(), IoError> {
        self.indexes.add(self.len(), batch.header());
        self.pending.extend_from_slice(batch.bytes());
        self.end = batch.next_offset();
        if self.pending.len() >= self.pending_max { self.write_pending() } else { Ok(()) }
    }

    /// Keeps an aborted transaction, whose marker was just added, in the index.
    pub(crate) fn add_aborted(&mut self, aborted: AbortedTransaction) {
        self.aborted.push(aborted);
    }

    fn write_pending(&mut self) -> Result<(), IoError> {
        let path = path(&self.place, self.base, SegmentFile::Log, SegmentFileState::Cleaned);
        self.file.write_all_at(&self.pending, self.written).context("write", &path)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes what is left, and the indexes, and syncs all of it.
    pub(crate) fn finish(mut self) -> Result<Cleaned, IoError> {
        self.write_pending()?;
        let data = path(&self.place, self.base, SegmentFile::Log, SegmentFileState::Cleaned);
        self.file.sync_data().context("sync", &data)?;
        self.indexes.finish();
        let indexes = self.indexes.indexes();
        let mut kinds = vec![SegmentFile::OffsetIndex, SegmentFile::TimeIndex];
        self.write_side_file(SegmentFile::OffsetIndex, &indexes.offsets.encode_from(0))?;
        self.write_side_file(SegmentFile::TimeIndex, &indexes.times.encode_from(0))?;
        if !self.aborted.is_empty() {
            self.write_side_file(SegmentFile::TransactionIndex, &encode_transactions(&self.aborted))?;
            kinds.push(SegmentFile::TransactionIndex);
        }
        kinds.push(SegmentFile::Log);
        let largest_timestamp = self.indexes.largest_timestamp();
        let indexes = indexes.clone();
        let Self { base, written: len, file, aborted, .. } = self;
        Ok(Cleaned { base, len, largest_timestamp, file, indexes, aborted, kinds })
    }

    fn write_side_file(&self, kind: SegmentFile, bytes: &[u8]) -> Result<(), IoError> {
        let path = path(&self.place, self.base, kind, SegmentFileState::Cleaned);
        let file = self.place.fs.open(&path, OpenMode::Truncate).context("create", &path)?;
        file.write_all_at(bytes, 0).context("write", &path)?;
        file.sync_data().context("sync", &path)
    }
}

impl Cleaned {
    /// The segment, for readers.
    pub(crate) fn segment(&self, place: &Arc<Place>) -> Result<Segment, IoError> {
        let path = path(place, self.base, SegmentFile::Log, SegmentFileState::Cleaned);
        let segment = Segment::replacement(place.clone(), self.base, self.len, self.largest_timestamp, &*self.file)
            .context("read metadata of", &path)?;
        // Until the files have their names, under which the old ones may still be found.
        segment.set_indexes(Indexes::Memory(self.indexes.clone()));
        segment.transactions().set(self.aborted.clone());
        Ok(segment)
    }
}

/// Removes what was written of segments that will not take the place of others. They may be complete or not.
pub(crate) fn discard(place: &Place, bases: impl IntoIterator<Item = Offset>) {
    for base in bases {
        // What stays is overwritten by the next compaction, or removed by the next opening.
        let _ = remove_files(place, base, SegmentFileState::Cleaned);
    }
}

/// Removes the files of a segment in one state.
pub(crate) fn remove_files(place: &Place, base: Offset, state: SegmentFileState) -> Result<(), IoError> {
    CLEANED_FILES.iter().try_for_each(|kind| place.remove(&path(place, base, *kind, state)))
}

/// The path of a segment's file in a state of its life.
pub(crate) fn path(place: &Place, base: Offset, kind: SegmentFile, state: SegmentFileState) -> PathBuf {
    place.dir.join(SegmentFileName { base_offset: base, kind, state }.to_string())
}
