//! The indexes of a segment: sparse ones from an offset to a position in the data file and from a time to an offset, and
//! the list of its aborted transactions.
//!
//! ```text
//! .index      entries of  8 bytes: offset less the segment's base offset i32 │ position u32
//! .timeindex  entries of 12 bytes: timestamp i64 │ offset less the segment's base offset i32
//! .txnindex   entries of 34 bytes: version i16 = 0 │ producer id i64 │ first offset i64 │ last offset i64
//!             │ last stable offset i64
//! ```
//!
//! Entries have no checksum and files no header. The sparse ones are hints: what an index says is compared with the batch
//! it points to. A file that cannot be right is rebuilt from the data. An *active* index lives in memory, where one
//! writer appends and readers look up without locks; a *sealed* one is a file that no longer changes. Source: Kafka's
//! `OffsetIndex`, `TimeIndex`, `TransactionIndex`.

mod map;
mod offset;
mod time;
mod transaction;

pub use map::IndexBytes;
pub(crate) use map::map_file;
pub use offset::{ActiveOffsetIndex, OffsetEntry, SealedOffsetIndex};
pub use time::{ActiveTimeIndex, SealedTimeIndex, TimeEntry};
pub(crate) use transaction::collect_from;
pub use transaction::{AbortedTransaction, SealedTransactionIndex, encode_transactions};

use std::convert::Infallible;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{Offset, TimestampMs};

/// Why an entry is not appended to an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexAppendError {
    /// The index has as many entries as it may: time to roll the segment.
    #[error("the index is full with {0} entries")]
    Full(usize),
    /// The offset is not above the last one (or, in a time index, below it).
    #[error("offset {offset} after {last}")]
    OffsetOutOfOrder {
        /// The offset.
        offset: Offset,
        /// The last entry's.
        last: Offset,
    },
    /// The timestamp is below the last one.
    #[error("timestamp {timestamp} after {last}")]
    TimestampOutOfOrder {
        /// The timestamp.
        timestamp: TimestampMs,
        /// The last entry's.
        last: TimestampMs,
    },
    /// The offset is not within 2^31-1 of the segment's base.
    #[error("offset {offset} in a segment with base {base}")]
    OffsetOutOfRange {
        /// The offset.
        offset: Offset,
        /// The segment's base offset.
        base: Offset,
    },
}

/// Why an index file cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index entry at byte {position}: {what}")]
pub struct IndexFault {
    /// Where the bad entry begins in the file.
    pub position: u64,
    /// What is wrong with it.
    pub what: &'static str,
}

/// Why a sealed index could not be opened or checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The file could not be read.
    #[error("reading an index: {0}")]
    Io(#[from] io::Error),
    /// The file is damaged, to be rebuilt.
    #[error(transparent)]
    Fault(#[from] IndexFault),
}

/// The number of leading indexes below `len` for which `is_before` holds, which must be a prefix of them. What is no
/// prefix, for instance entries that change while they are searched, gives some number up to `len`.
fn partition_point<E>(len: usize, mut is_before: impl FnMut(usize) -> Result<bool, E>) -> Result<usize, E> {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// Takes the result out of what cannot fail.
fn infallible<T>(result: Result<T, Infallible>) -> T {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

/// An offset less the base of its segment, if an index can hold it.
fn relative(base: Offset, offset: Offset) -> Result<u32, IndexAppendError> {
    offset
        .0
        .checked_sub(base.0)
        .and_then(|relative| i32::try_from(relative).ok())
        .and_then(|relative| u32::try_from(relative).ok())
        .ok_or(IndexAppendError::OffsetOutOfRange { offset, base })
}

/// Words in the first block; each further one has twice as many as the one before.
const FIRST_BLOCK_WORDS: usize = 8;
/// Enough blocks for any index: 8 * (2^28 - 1) words are 16 GiB, and an index file ends at 2 GiB.
const BLOCKS: usize = 28;

/// A growing array of words that one writer appends to while others read, without locks.
///
/// Words never move once written, so a reader needs only a length, which is published after them. After
/// [`Words::truncate`] and new appends a reader may see a word of either time: callers notice by other means (the
/// engine's generation), here it is only made sure that such a read is harmless.
///
/// Most logs are idle with few entries or none: the table of further blocks is made with the first of them.
#[derive(Debug)]
struct Words {
    first: Block,
    further: OnceLock<Box<[Block; BLOCKS - 1]>>,
    len: AtomicUsize,
}

type Block = OnceLock<Box<[AtomicU64]>>;

impl Words {
    fn new() -> Self {
        Self { first: OnceLock::new(), further: OnceLock::new(), len: AtomicUsize::new(0) }
    }

    /// The number of words published.
    fn len(&self) -> usize {
        // Pairs with the release stores below: who sees the length sees the words.
        self.len.load(Ordering::Acquire)
    }

    /// A word below a length that was published; 0 for others.
    fn get(&self, index: usize) -> u64 {
        let (block, at) = Self::place(index);
        let block = match block.checked_sub(1) {
            None => Some(&self.first),
            Some(further) => self.further.get().and_then(|blocks| blocks.get(further)),
        };
        let word = block.and_then(OnceLock::get).and_then(|block| block.get(at));
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Appends words and publishes them together. For one writer at a time; two would overwrite each other's words.
    fn append<const N: usize>(&self, words: [u64; N]) {
        let len = self.len();
        for (index, word) in (len..).zip(words) {
            let (block, at) = Self::place(index);
            let cell = match block.checked_sub(1) {
                None => Some(&self.first),
                Some(at) => self.further.get_or_init(|| Box::new([const { OnceLock::new() }; BLOCKS - 1])).get(at),
            };
            let Some(cell) = cell else { return };
            let block = cell
                .get_or_init(|| std::iter::repeat_with(AtomicU64::default).take(FIRST_BLOCK_WORDS << block).collect());
            if let Some(slot) = block.get(at) {
                slot.store(word, Ordering::Relaxed);
            }
        }
        self.len.store(len + N, Ordering::Release);
    }

    /// Drops all words from `len` on. The memory stays for the words to come.
    fn truncate(&self, len: usize) {
        if len < self.len() {
            self.len.store(len, Ordering::Release);
        }
    }

    /// The block of a word and its place in there.
    fn place(index: usize) -> (usize, usize) {
        // With FIRST_BLOCK_WORDS added, each block begins at a power of two.
        let shifted = index.saturating_add(FIRST_BLOCK_WORDS);
        let power = shifted.ilog2();
        let block = power - FIRST_BLOCK_WORDS.ilog2();
        (usize::try_from(block).unwrap_or(BLOCKS), shifted - (1 << power))
    }
}

#[cfg(test)]
pub(crate) mod tests;
