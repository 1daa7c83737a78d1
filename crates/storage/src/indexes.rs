//! The two indexes of a segment together: in memory while it grows, in their files once it is sealed.

use std::io;
use std::sync::Arc;

use crate::batch::BatchHeader;
use crate::fs::OpenMode;
use crate::index::{ActiveOffsetIndex, ActiveTimeIndex, IndexError, SealedOffsetIndex, SealedTimeIndex, TimeEntry};
use crate::io::{FileExt, IoContext, IoError};
use crate::names::SegmentFile;
use crate::options::LogOptions;
use crate::segment::Place;
use crate::{Offset, TimestampMs};

/// Indexes in memory. The writer appends while readers look up.
#[derive(Debug)]
pub(crate) struct MemoryIndexes {
    pub(crate) offsets: ActiveOffsetIndex,
    pub(crate) times: ActiveTimeIndex,
}

/// Indexes in files that no longer change.
#[derive(Debug)]
pub(crate) struct FileIndexes {
    offsets: SealedOffsetIndex,
    times: SealedTimeIndex,
}

/// The indexes of one segment.
#[derive(Clone, Debug)]
pub(crate) enum Indexes {
    Memory(Arc<MemoryIndexes>),
    Files(Arc<FileIndexes>),
}

/// No limit of its own: the log rolls by its options, and recovery takes what it finds.
const BYTES_MAX: u32 = i32::MAX as u32;

impl MemoryIndexes {
    pub(crate) fn new(base: Offset) -> Self {
        Self { offsets: ActiveOffsetIndex::new(base, BYTES_MAX), times: ActiveTimeIndex::new(base, BYTES_MAX) }
    }

    /// Takes the indexes of a segment that becomes active again from their files. `None` if they are missing or bad.
    pub(crate) fn load(place: &Place, base: Offset, data_bytes: u64) -> Result<Option<Self>, IoError> {
        let offsets = read_whole(place, base, SegmentFile::OffsetIndex)?;
        let times = read_whole(place, base, SegmentFile::TimeIndex)?;
        let (Some(offsets), Some(times)) = (offsets, times) else { return Ok(None) };
        // As for sealed segments: an empty time index of a segment with batches is a missing one.
        if times.is_empty() && data_bytes > 0 {
            return Ok(None);
        }
        let offsets = ActiveOffsetIndex::load(base, BYTES_MAX, &offsets, data_bytes);
        let times = ActiveTimeIndex::load(base, BYTES_MAX, &times);
        Ok(offsets.ok().zip(times.ok()).map(|(offsets, times)| Self { offsets, times }))
    }

    /// Whether a segment may take another entry of each kind and still have room for the last one.
    pub(crate) fn is_full(&self, options: &LogOptions) -> bool {
        let max = u64::from(options.index_bytes_max);
        self.offsets.size_bytes() + OFFSET_ENTRY > max || self.times.size_bytes() + 2 * TIME_ENTRY > max
    }
}

const OFFSET_ENTRY: u64 = crate::index::OffsetEntry::BYTES as u64;
const TIME_ENTRY: u64 = TimeEntry::BYTES as u64;

/// Reads an index file whole. No file of 2 GiB or more is an index.
pub(crate) fn read_whole(place: &Place, base: Offset, kind: SegmentFile) -> Result<Option<Vec<u8>>, IoError> {
    let path = place.path(base, kind);
    let (file, len) = match place.fs.open_with_metadata(&path, OpenMode::Read) {
        Ok((file, metadata)) => (file, metadata.len),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("open", &path),
    };
    let Some(len) = u32::try_from(len).ok().filter(|len| *len <= BYTES_MAX) else { return Ok(None) };
    let mut bytes = vec![0; len as usize];
    let read = file.read_full_at(&mut bytes, 0).context("read", &path)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

impl Indexes {
    /// Opens the index files of a sealed segment and checks every entry. `None` if they are missing or cannot be right.
    pub(crate) fn load(place: &Place, base: Offset, data_bytes: u64) -> Result<Option<Self>, IoError> {
        let damaged = |error| match error {
            IndexError::Io(source) => Some(source),
            IndexError::Fault(_) => None,
        };
        let path = place.path(base, SegmentFile::OffsetIndex);
        let open = |file, len| {
            let index = SealedOffsetIndex::open(file, len, base, data_bytes)?;
            index.verify(data_bytes)?;
            Ok(index)
        };
        let Some(offsets) = open_file(place, base, SegmentFile::OffsetIndex, open, damaged).context("read", &path)?
        else {
            return Ok(None);
        };
        let path = place.path(base, SegmentFile::TimeIndex);
        let open = |file, len| {
            let index = SealedTimeIndex::open(file, len, base)?;
            index.verify()?;
            Ok(index)
        };
        let Some(times) = open_file(place, base, SegmentFile::TimeIndex, open, damaged).context("read", &path)? else {
            return Ok(None);
        };
        // Kafka creates an empty time index where one is missing, and then keeps or loses segments by the wrong age.
        if times.is_empty() && data_bytes > 0 {
            return Ok(None);
        }
        Ok(Some(Self::Files(Arc::new(FileIndexes { offsets, times }))))
    }

    /// Where to begin to look for the batch that holds `offset`.
    pub(crate) fn position_of(&self, offset: Offset) -> io::Result<u64> {
        Ok(u64::from(match self {
            Self::Memory(indexes) => indexes.offsets.lookup(offset).position,
            Self::Files(indexes) => indexes.offsets.lookup(offset)?.position,
        }))
    }

    /// The entry whose offset is where to begin to look for the first record with this timestamp or a later one.
    pub(crate) fn time_before(&self, timestamp: TimestampMs) -> io::Result<TimeEntry> {
        match self {
            Self::Memory(indexes) => Ok(indexes.times.lookup(timestamp)),
            Self::Files(indexes) => indexes.times.lookup(timestamp),
        }
    }

    /// The last time entry: of a sealed segment, its largest timestamp.
    pub(crate) fn last_time(&self) -> io::Result<Option<TimeEntry>> {
        match self {
            Self::Memory(indexes) => Ok(indexes.times.last()),
            Self::Files(indexes) => indexes.times.last(),
        }
    }
}

fn open_file<T>(
    place: &Place,
    base: Offset,
    kind: SegmentFile,
    open: impl FnOnce(Arc<dyn crate::fs::File>, u64) -> Result<T, IndexError>,
    damaged: impl FnOnce(IndexError) -> Option<io::Error>,
) -> io::Result<Option<T>> {
    let (file, len) = match place.fs.open_with_metadata(&place.path(base, kind), OpenMode::Read) {
        Ok((file, metadata)) => (file, metadata.len),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match open(file, len) {
        Ok(index) => Ok(Some(index)),
        Err(error) => damaged(error).map_or(Ok(None), Err),
    }
}

/// Fills the indexes of one segment, batch by batch: the same entries whether the batches are appended, replicated or
/// found by recovery.
#[derive(Debug)]
pub(crate) struct IndexWriter {
    indexes: Arc<MemoryIndexes>,
    interval_bytes: u64,
    /// Bytes since the last offset entry.
    since_entry: u64,
    largest: TimeEntry,
}

impl IndexWriter {
    pub(crate) fn new(base: Offset, interval_bytes: u32) -> Self {
        Self::resume(Arc::new(MemoryIndexes::new(base)), base, 0, interval_bytes)
    }

    /// Goes on with indexes whose entries are right, behind `data_bytes` of batches. Batches behind the last entry are
    /// to be [noted](Self::note) by the caller.
    pub(crate) fn resume(indexes: Arc<MemoryIndexes>, base: Offset, data_bytes: u64, interval_bytes: u32) -> Self {
        let last = indexes.offsets.last().map_or(0, |last| u64::from(last.position));
        let largest = indexes.times.last().unwrap_or(TimeEntry { timestamp: TimestampMs::NONE, offset: base });
        Self {
            indexes,
            interval_bytes: u64::from(interval_bytes),
            since_entry: data_bytes.saturating_sub(last),
            largest,
        }
    }

    pub(crate) fn indexes(&self) -> &Arc<MemoryIndexes> {
        &self.indexes
    }

    /// Takes over a changed option.
    pub(crate) fn set_interval(&mut self, interval_bytes: u32) {
        self.interval_bytes = u64::from(interval_bytes);
    }

    pub(crate) fn largest_timestamp(&self) -> TimestampMs {
        self.largest.timestamp
    }

    /// Takes account of a batch's timestamp without an entry.
    pub(crate) fn note(&mut self, header: &BatchHeader) {
        if header.max_timestamp() > self.largest.timestamp {
            self.largest = TimeEntry { timestamp: header.max_timestamp(), offset: header.last_offset() };
        }
    }

    /// Takes a batch in, with an entry if one is due.
    pub(crate) fn add(&mut self, position: u64, header: &BatchHeader) {
        self.note(header);
        if self.since_entry > self.interval_bytes
            && let Ok(position) = u32::try_from(position)
        {
            // An entry that does not fit its rules is left out: a sparse index is right with any entry missing. The
            // batches were checked to rise before, so this happens only past what an entry can express.
            let _ = self.indexes.offsets.append(header.last_offset(), position);
            let _ = self.indexes.times.append(self.largest.timestamp, self.largest.offset);
            self.since_entry = 0;
        }
        self.since_entry += header.total_bytes() as u64;
    }

    /// Makes the last entry of a segment that is sealed or closed, so that the time index tells its largest timestamp.
    pub(crate) fn finish(&self) {
        let _ = self.indexes.times.append_final(self.largest.timestamp, self.largest.offset);
    }

    /// The largest timestamp so far, and the offset it belongs to.
    pub(crate) fn largest(&self) -> TimeEntry {
        self.largest
    }

    /// Writes the files of the indexes, durably.
    pub(crate) fn write_files(place: &Place, base: Offset, indexes: &MemoryIndexes) -> Result<(), IoError> {
        let offsets = place.path(base, SegmentFile::OffsetIndex);
        crate::checkpoint::replace_file(&*place.fs, &offsets, &indexes.offsets.encode_from(0))?;
        let times = place.path(base, SegmentFile::TimeIndex);
        crate::checkpoint::replace_file(&*place.fs, &times, &indexes.times.encode_from(0))
    }

    /// Whether the files hold exactly these indexes.
    pub(crate) fn files_match(place: &Place, base: Offset, indexes: &MemoryIndexes) -> Result<bool, IoError> {
        Ok(read_whole(place, base, SegmentFile::OffsetIndex)? == Some(indexes.offsets.encode_from(0))
            && read_whole(place, base, SegmentFile::TimeIndex)? == Some(indexes.times.encode_from(0)))
    }
}
