//! The offset index: sparse pairs of an offset and the position in the data file where to look for it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use super::{IndexAppendError, IndexBytes, IndexError, IndexFault, Words, infallible, partition_point, relative};
use crate::Offset;
use crate::fs::File;

/// An entry: a scan from `position` meets every offset from `offset` on.
///
/// The entry of an append has the *last* offset of what was appended and the position of its *start*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetEntry {
    /// The offset.
    pub offset: Offset,
    /// The byte position in the data file.
    pub position: u32,
}

impl OffsetEntry {
    /// Bytes of an entry in the file.
    pub const BYTES: usize = 8;

    fn to_word(relative: u32, position: u32) -> u64 {
        (u64::from(relative) << 32) | u64::from(position)
    }

    fn from_word(base: Offset, word: u64) -> Self {
        // Taken apart as the file has it: a word is the entry's eight bytes, big-endian.
        let [a, b, c, d, rest @ ..] = word.to_be_bytes();
        Self { offset: base + i64::from(i32::from_be_bytes([a, b, c, d])), position: u32::from_be_bytes(rest) }
    }
}

/// Where a look-up begins that no entry helps: the start of the segment.
fn start_of(base: Offset) -> OffsetEntry {
    OffsetEntry { offset: base, position: 0 }
}

fn lookup<E>(
    base: Offset,
    len: usize,
    target: Offset,
    entry: impl Fn(usize) -> Result<OffsetEntry, E>,
) -> Result<OffsetEntry, E> {
    let after = partition_point(len, |index| Ok(entry(index)?.offset <= target))?;
    after.checked_sub(1).map_or(Ok(start_of(base)), entry)
}

fn upper_bound<E>(
    len: usize,
    from: OffsetEntry,
    bytes: u64,
    entry: impl Fn(usize) -> Result<OffsetEntry, E>,
) -> Result<Option<OffsetEntry>, E> {
    let end = u64::from(from.position).saturating_add(bytes);
    let at = partition_point(len, |index| Ok(u64::from(entry(index)?.position) < end))?;
    if at < len { entry(at).map(Some) } else { Ok(None) }
}

/// The offset index of the active segment, in memory.
///
/// One writer appends and truncates, through `&self` since readers hold the index too; any number of readers look up
/// meanwhile. A look-up that overlaps a truncation may give an entry that is no longer true: the reader must notice the
/// truncation (the engine's generation) and look again.
#[derive(Debug)]
pub struct ActiveOffsetIndex {
    base: Offset,
    entries_max: usize,
    words: Words,
}

impl ActiveOffsetIndex {
    /// An empty index for the segment at `base` of at most `bytes_max` bytes (`segment.index.bytes`), rounded down to
    /// whole entries.
    pub fn new(base: Offset, bytes_max: u32) -> Self {
        Self { base, entries_max: entries_max(bytes_max), words: Words::new() }
    }

    /// The index in a file's bytes, for a segment that becomes active again.
    ///
    /// # Errors
    /// If the bytes cannot be an index of a segment at `base` whose data file has `data_bytes`.
    pub fn load(base: Offset, bytes_max: u32, bytes: &[u8], data_bytes: u64) -> Result<Self, IndexFault> {
        let index = Self::new(base, bytes_max);
        let (entries, rest) = bytes.as_chunks::<{ OffsetEntry::BYTES }>();
        let mut checker = Checker::new(base, data_bytes);
        for entry in entries {
            let word = u64::from_be_bytes(*entry);
            checker.accept(OffsetEntry::from_word(base, word))?;
            index.words.append([word]);
        }
        checker.finish(rest.len() as u64)?;
        Ok(index)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no entry fits any more: the segment has to roll.
    pub fn is_full(&self) -> bool {
        self.len() >= self.entries_max
    }

    /// The bytes of the entries in the file.
    pub fn size_bytes(&self) -> u64 {
        (self.len() * OffsetEntry::BYTES) as u64
    }

    /// Appends an entry. For the writer.
    ///
    /// # Errors
    /// If the index is full, the offset not above the last, or out of reach of the segment's base. Nothing is changed.
    pub fn append(&self, offset: Offset, position: u32) -> Result<(), IndexAppendError> {
        if self.is_full() {
            return Err(IndexAppendError::Full(self.entries_max));
        }
        let relative = relative(self.base, offset)?;
        if let Some(last) = self.last()
            && offset <= last.offset
        {
            return Err(IndexAppendError::OffsetOutOfOrder { offset, last: last.offset });
        }
        self.words.append([OffsetEntry::to_word(relative, position)]);
        Ok(())
    }

    /// Drops the entries with offsets from `offset` on. For the writer.
    pub fn truncate_to(&self, offset: Offset) {
        let kept =
            infallible(partition_point(self.len(), |index| Ok::<_, Infallible>(self.entry(index).offset < offset)));
        self.words.truncate(kept);
    }

    /// Drops all entries. For the writer.
    pub fn clear(&self) {
        self.words.truncate(0);
    }

    /// The last entry.
    pub fn last(&self) -> Option<OffsetEntry> {
        self.len().checked_sub(1).map(|index| self.entry(index))
    }

    /// The last entry with an offset not above `target`, or the start of the segment.
    pub fn lookup(&self, target: Offset) -> OffsetEntry {
        infallible(lookup(self.base, self.len(), target, |index| Ok::<_, Infallible>(self.entry(index))))
    }

    /// The first entry whose position is `bytes` or more behind that of `from`: its offset bounds the offsets in a read
    /// of so many bytes. None if there is no such entry.
    pub fn upper_bound(&self, from: OffsetEntry, bytes: u64) -> Option<OffsetEntry> {
        infallible(upper_bound(self.len(), from, bytes, |index| Ok::<_, Infallible>(self.entry(index))))
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = OffsetEntry> {
        (0..self.len()).map(|index| self.entry(index))
    }

    /// The file's bytes from the entry with this index on: what is still to be written behind as many entries.
    pub fn encode_from(&self, index: usize) -> Vec<u8> {
        (index..self.len()).flat_map(|index| self.words.get(index).to_be_bytes()).collect()
    }

    fn entry(&self, index: usize) -> OffsetEntry {
        OffsetEntry::from_word(self.base, self.words.get(index))
    }
}

/// The offset index of a segment that no longer grows, in its file.
#[derive(Debug)]
pub struct SealedOffsetIndex {
    base: Offset,
    bytes: IndexBytes,
    len: usize,
}

impl SealedOffsetIndex {
    /// Opens the first `file_bytes` of a file: its whole length.
    ///
    /// Looks at the length and the last entry only; [`SealedOffsetIndex::verify`] reads it all.
    ///
    /// # Errors
    /// If the file cannot be read, or cannot be an index of a segment at `base` whose data file has `data_bytes`.
    pub fn open(file: Arc<dyn File>, file_bytes: u64, base: Offset, data_bytes: u64) -> Result<Self, IndexError> {
        let len = file_bytes / OffsetEntry::BYTES as u64;
        let bytes = IndexBytes::new(file, file_bytes)?;
        let index = Self { base, bytes, len: usize::try_from(len).unwrap_or(usize::MAX) };
        let mut checker = Checker::new(base, data_bytes);
        if let Some(last) = index.len.checked_sub(1) {
            checker.position = (last * OffsetEntry::BYTES) as u64;
            checker.accept(index.entry(last)?)?;
        }
        checker.finish(file_bytes % OffsetEntry::BYTES as u64)?;
        Ok(index)
    }

    /// Reads all entries and checks that offsets and positions rise and lie within the segment.
    ///
    /// # Errors
    /// If the file cannot be read, or the first entry that cannot be right.
    pub fn verify(&self, data_bytes: u64) -> Result<(), IndexError> {
        let mut checker = Checker::new(self.base, data_bytes);
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

    /// As [`ActiveOffsetIndex::lookup`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn lookup(&self, target: Offset) -> io::Result<OffsetEntry> {
        lookup(self.base, self.len, target, |index| self.entry(index))
    }

    /// As [`ActiveOffsetIndex::upper_bound`].
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn upper_bound(&self, from: OffsetEntry, bytes: u64) -> io::Result<Option<OffsetEntry>> {
        upper_bound(self.len, from, bytes, |index| self.entry(index))
    }

    /// The last entry.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn last(&self) -> io::Result<Option<OffsetEntry>> {
        self.len.checked_sub(1).map(|index| self.entry(index)).transpose()
    }

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = io::Result<OffsetEntry>> {
        (0..self.len).map(|index| self.entry(index))
    }

    fn entry(&self, index: usize) -> io::Result<OffsetEntry> {
        let position = (index as u64).saturating_mul(OffsetEntry::BYTES as u64);
        Ok(OffsetEntry::from_word(self.base, u64::from_be_bytes(self.bytes.read(position)?)))
    }
}

/// What entries must fulfil, one after the other.
struct Checker {
    base: Offset,
    data_bytes: u64,
    /// Where the next entry stands in the file.
    position: u64,
    last: Option<OffsetEntry>,
}

impl Checker {
    fn new(base: Offset, data_bytes: u64) -> Self {
        Self { base, data_bytes, position: 0, last: None }
    }

    fn accept(&mut self, entry: OffsetEntry) -> Result<(), IndexFault> {
        let fault = |what| Err(IndexFault { position: self.position, what });
        if entry.offset < self.base {
            return fault("an offset below the segment's base");
        }
        if u64::from(entry.position) >= self.data_bytes {
            return fault("a position past the end of the data");
        }
        if let Some(last) = self.last
            && (entry.offset <= last.offset || entry.position <= last.position)
        {
            return fault("an offset or position that does not rise");
        }
        self.position += OffsetEntry::BYTES as u64;
        self.last = Some(entry);
        Ok(())
    }

    fn finish(&self, bytes_left: u64) -> Result<(), IndexFault> {
        if bytes_left == 0 {
            return Ok(());
        }
        Err(IndexFault { position: self.position, what: "a length that is no multiple of 8" })
    }
}

fn entries_max(bytes_max: u32) -> usize {
    usize::try_from(bytes_max).unwrap_or(usize::MAX) / OffsetEntry::BYTES
}
