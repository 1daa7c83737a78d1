//! The time index: sparse pairs of the largest timestamp so far and the offset of the batch that has it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use super::{IndexAppendError, IndexBytes, IndexError, IndexFault, Words, infallible, partition_point, relative};
use crate::fs::File;
use crate::{Offset, TimestampMs};

/// An entry: up to `offset` no record has a timestamp above `timestamp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeEntry {
    /// The largest timestamp so far.
    pub timestamp: TimestampMs,
    /// The last offset of the batch that has it.
    pub offset: Offset,
}

impl TimeEntry {
    /// Bytes of an entry in the file.
    pub const BYTES: usize = 12;

    fn encode(&self, base: Offset) -> [u8; Self::BYTES] {
        let relative = i32::try_from(self.offset - base).unwrap_or(i32::MAX);
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.timestamp.0.to_be_bytes());
        bytes[8..].copy_from_slice(&relative.to_be_bytes());
        bytes
    }

    fn decode(base: Offset, bytes: &[u8; Self::BYTES]) -> Self {
        let [timestamp @ .., a, b, c, d] = *bytes;
        Self {
            timestamp: TimestampMs(i64::from_be_bytes(timestamp)),
            offset: base + i64::from(i32::from_be_bytes([a, b, c, d])),
        }
    }
}

/// What a look-up gives that no entry helps: the start of the segment, without a time.
fn start_of(base: Offset) -> TimeEntry {
    TimeEntry { timestamp: TimestampMs::NONE, offset: base }
}

fn lookup<E>(
    base: Offset,
    len: usize,
    target: TimestampMs,
    entry: impl Fn(usize) -> Result<TimeEntry, E>,
) -> Result<TimeEntry, E> {
    let after = partition_point(len, |index| Ok(entry(index)?.timestamp <= target))?;
    after.checked_sub(1).map_or(Ok(start_of(base)), entry)
}

/// The time index of the active segment, in memory. Who may do what is as with [`super::ActiveOffsetIndex`].
#[derive(Debug)]
pub struct ActiveTimeIndex {
    base: Offset,
    entries_max: usize,
    /// Two words for an entry: the timestamp and the offset.
    words: Words,
}

impl ActiveTimeIndex {
    /// An empty index for the segment at `base` of at most `bytes_max` bytes (`segment.index.bytes`), rounded down to
    /// whole entries.
    pub fn new(base: Offset, bytes_max: u32) -> Self {
        let entries_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / TimeEntry::BYTES;
        Self { base, entries_max, words: Words::new() }
    }

    /// The index in a file's bytes, for a segment that becomes active again.
    ///
    /// # Errors
    /// If the bytes cannot be an index of a segment at `base`.
    pub fn load(base: Offset, bytes_max: u32, bytes: &[u8]) -> Result<Self, IndexFault> {
        let index = Self::new(base, bytes_max);
        let (entries, rest) = bytes.as_chunks::<{ TimeEntry::BYTES }>();
        let mut checker = Checker::new(base);
        for entry in entries {
            let entry = TimeEntry::decode(base, entry);
            checker.accept(entry)?;
            index.push(entry);
        }
        checker.finish(rest.len() as u64)?;
        Ok(index)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.words.len() / 2
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether only the slot is left that is kept for the last entry of a segment: the segment has to roll.
    pub fn is_full(&self) -> bool {
        self.len() >= self.entries_max.saturating_sub(1)
    }

    /// The bytes of the entries in the file.
    pub fn size_bytes(&self) -> u64 {
        (self.len() * TimeEntry::BYTES) as u64
    }

    /// Appends an entry if its timestamp is above the last one, and returns whether it was. For the writer.
    ///
    /// # Errors
    /// If the index is full, or the offset or timestamp goes back. Nothing is changed.
    pub fn append(&self, timestamp: TimestampMs, offset: Offset) -> Result<bool, IndexAppendError> {
        self.append_up_to(self.entries_max.saturating_sub(1), timestamp, offset)
    }

    /// Appends the last entry of a segment that is rolled or closed, for which a slot is kept. For the writer.
    ///
    /// # Errors
    /// As [`ActiveTimeIndex::append`].
    pub fn append_final(&self, timestamp: TimestampMs, offset: Offset) -> Result<bool, IndexAppendError> {
        self.append_up_to(self.entries_max, timestamp, offset)
    }

    fn append_up_to(
        &self,
        entries_max: usize,
        timestamp: TimestampMs,
        offset: Offset,
    ) -> Result<bool, IndexAppendError> {
        if self.len() >= entries_max {
            return Err(IndexAppendError::Full(self.len()));
        }
        if let Some(last) = self.last() {
            // The offset first: an entry that goes back in both is out of order in the log, not only in time.
            if offset < last.offset {
                return Err(IndexAppendError::OffsetOutOfOrder { offset, last: last.offset });
            }
            if timestamp < last.timestamp {
                return Err(IndexAppendError::TimestampOutOfOrder { timestamp, last: last.timestamp });
            }
        }
        // Also the first entry needs a time: "none" is what a look-up before all entries answers.
        if timestamp <= self.last().map_or(TimestampMs::NONE, |last| last.timestamp) {
            return Ok(false);
        }
        relative(self.base, offset)?;
        self.push(TimeEntry { timestamp, offset });
        Ok(true)
    }

    fn push(&self, entry: TimeEntry) {
        self.words.append([entry.timestamp.0.cast_unsigned(), entry.offset.0.cast_unsigned()]);
    }

    /// Drops the entries with offsets from `offset` on. For the writer.
    pub fn truncate_to(&self, offset: Offset) {
        let kept =
            infallible(partition_point(self.len(), |index| Ok::<_, Infallible>(self.entry(index).offset < offset)));
        self.words.truncate(kept * 2);
    }

    /// Drops all entries. For the writer.
    pub fn clear(&self) {
        self.words.truncate(0);
    }

    /// The last entry.
    pub fn last(&self) -> Option<TimeEntry> {
        self.len().checked_sub(1).map(|index| self.entry(index))
    }

    /// The last entry with a timestamp not above `target`: no record up to its offset has a later time. If there is none,
    /// [`TimestampMs::NONE`] at the start of the segment.
    pub fn lookup(&self, target: TimestampMs) -> TimeEntry {
        infallible(lookup(self.base, self.len(), target, |index| Ok::<_, Infallible>(self.entry(index))))
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = TimeEntry> {
        (0..self.len()).map(|index| self.entry(index))
    }

    /// The file's bytes from the entry with this index on: what is still to be written behind as many entries.
    pub fn encode_from(&self, index: usize) -> Vec<u8> {
        (index..self.len()).flat_map(|index| self.entry(index).encode(self.base)).collect()
    }

    fn entry(&self, index: usize) -> TimeEntry {
        TimeEntry {
            timestamp: TimestampMs(self.words.get(index * 2).cast_signed()),
            offset: Offset(self.words.get(index * 2 + 1).cast_signed()),
        }
    }
}

/// The time index of a segment that no longer grows, in its file.
#[derive(Debug)]
pub struct SealedTimeIndex {
    base: Offset,
    bytes: IndexBytes,
    len: usize,
}

impl SealedTimeIndex {
    /// Opens the first `file_bytes` of a file: its whole length.
    ///
    /// Looks at the length and the last entry only; [`SealedTimeIndex::verify`] reads it all.
    ///
    /// # Errors
    /// If the file cannot be read, or cannot be an index of a segment at `base`.
    pub fn open(file: Arc<dyn File>, file_bytes: u64, base: Offset) -> Result<Self, IndexError> {
        let len = file_bytes / TimeEntry::BYTES as u64;
        let bytes = IndexBytes::new(file, file_bytes)?;
        let index = Self { base, bytes, len: usize::try_from(len).unwrap_or(usize::MAX) };
        let mut checker = Checker::new(base);
        if let Some(last) = index.len.checked_sub(1) {
            if last > 0 {
                checker.accept(index.entry(0)?)?;
            }
            checker.position = (last * TimeEntry::BYTES) as u64;
            checker.accept(index.entry(last)?)?;
        }
        checker.finish(file_bytes % TimeEntry::BYTES as u64)?;
        Ok(index)
    }

    /// Reads all entries and checks that timestamps rise, offsets do not fall, and both lie within the segment.
    ///
    /// # Errors
    /// If the file cannot be read, or the first entry that cannot be right.
    pub fn verify(&self) -> Result<(), IndexError> {
        let mut checker = Checker::new(self.base);
        for index in 0..self.len {
            checker.accept(self.entry(index)?)?;
        }
        Ok(())
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// As [`ActiveTimeIndex::lookup`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn lookup(&self, target: TimestampMs) -> io::Result<TimeEntry> {
        lookup(self.base, self.len, target, |index| self.entry(index))
    }

    /// The last entry.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last(&self) -> io::Result<Option<TimeEntry>> {
        self.len.checked_sub(1).map(|index| self.entry(index)).transpose()
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = io::Result<TimeEntry>> {
        (0..self.len).map(|index| self.entry(index))
    }

    fn entry(&self, index: usize) -> io::Result<TimeEntry> {
        let position = (index as u64).saturating_mul(TimeEntry::BYTES as u64);
        Ok(TimeEntry::decode(self.base, &self.bytes.read(position)?))
    }
}

/// What entries must fulfil, one after the other.
struct Checker {
    base: Offset,
    /// Where the next entry stands in the file.
    position: u64,
    last: Option<TimeEntry>,
}

impl Checker {
    fn new(base: Offset) -> Self {
        Self { base, position: 0, last: None }
    }

    fn accept(&mut self, entry: TimeEntry) -> Result<(), IndexFault> {
        let fault = |what| Err(IndexFault { position: self.position, what });
        if entry.offset < self.base {
            return fault("an offset below the segment's base");
        }
        let last = self.last.unwrap_or_else(|| start_of(self.base));
        if entry.timestamp <= last.timestamp || entry.offset < last.offset {
            return fault("a timestamp that does not rise, or an offset that falls");
        }
        self.position += TimeEntry::BYTES as u64;
        self.last = Some(entry);
        Ok(())
    }

    fn finish(&self, bytes_left: u64) -> Result<(), IndexFault> {
        if bytes_left == 0 {
            return Ok(());
        }
        Err(IndexFault { position: self.position, what: "a length that is no multiple of 12" })
    }
}
