//! The transaction index: the aborted transactions whose markers lie in a segment.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use byteorder::{BigEndian, ByteOrder};

use super::map::IndexBytes;
use super::{IndexError, IndexFault, infallible, partition_point};
use crate::Offset;
use crate::fs::File;

/// A transaction that was aborted. Who reads committed records only leaves out those of its producer from its first
/// offset to its marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbortedTransaction {
    /// The producer.
    pub producer_id: i64,
    /// Offset of the transaction's first record.
    pub first_offset: Offset,
    /// Offset of the marker that ended it.
    pub last_offset: Offset,
    /// Below this all transactions were decided, in the log up to the marker: the first offset of the oldest other
    /// transaction that was open then, or the offset after the marker.
    pub last_stable_offset: Offset,
}

impl AbortedTransaction {
    /// Bytes of an entry in the index file.
    pub const BYTES: usize = 34;

    /// The version of the entries that there are.
    pub(crate) const VERSION: i16 = 0;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        BigEndian::write_i16(&mut bytes[0..2], Self::VERSION);
        BigEndian::write_i64(&mut bytes[2..10], self.producer_id);
        BigEndian::write_i64(&mut bytes[10..18], self.first_offset.0);
        BigEndian::write_i64(&mut bytes[18..26], self.last_offset.0);
        BigEndian::write_i64(&mut bytes[26..34], self.last_stable_offset.0);
        bytes
    }

    /// What is wrong with it, whatever is in the log.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        if self.producer_id < 0 {
            return Some("a negative producer id");
        }
        if self.first_offset < Offset::ZERO || self.first_offset >= self.last_offset {
            return Some("a first offset that is not before the marker's");
        }
        let is_past = self.last_stable_offset < Offset::ZERO || self.last_stable_offset > self.last_offset.next();
        is_past.then_some("a last stable offset past the marker")
    }

    /// The entry in these bytes, and the version in front of it.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> (i16, Self) {
        let entry = Self {
            producer_id: BigEndian::read_i64(&bytes[2..10]),
            first_offset: Offset(BigEndian::read_i64(&bytes[10..18])),
            last_offset: Offset(BigEndian::read_i64(&bytes[18..26])),
            last_stable_offset: Offset(BigEndian::read_i64(&bytes[26..34])),
        };
        (BigEndian::read_i16(&bytes[0..2]), entry)
    }
}

/// The bytes of an index file with these entries.
pub fn encode_transactions(entries: &[AbortedTransaction]) -> Vec<u8> {
    entries.iter().flat_map(AbortedTransaction::encode).collect()
}

/// The transaction index of a segment that no longer grows.
#[derive(Debug)]
pub struct SealedTransactionIndex {
    bytes: IndexBytes,
    len: usize,
}

impl SealedTransactionIndex {
    /// Opens an index file of `file_bytes` bytes, of a segment whose offsets go from `base` to below `end`, and checks
    /// that every entry can be right.
    ///
    /// # Errors
    /// If the file cannot be read, or the first entry that cannot be right.
    pub fn open(file: Arc<dyn File>, file_bytes: u64, base: Offset, end: Offset) -> Result<Self, IndexError> {
        const ENTRY_BYTES: u64 = AbortedTransaction::BYTES as u64;
        let whole = file_bytes - file_bytes % ENTRY_BYTES;
        let len = usize::try_from(whole / ENTRY_BYTES).unwrap_or(usize::MAX);
        let index = Self { bytes: IndexBytes::new(file, whole)?, len };
        let mut checker = Checker { base, end, position: 0, last: None };
        for at in 0..len {
            let (version, entry) = index.entry(at)?;
            checker.accept(version, entry)?;
        }
        if whole < file_bytes {
            return Err(IndexFault { position: whole, what: "a length that is no multiple of 34" }.into());
        }
        Ok(index)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn entries(&self) -> io::Result<Vec<AbortedTransaction>> {
        (0..self.len).map(|at| Ok(self.entry(at)?.1)).collect()
    }

    /// Appends the transactions that reach into the offsets from `from` to below `upper` to `found`. Returns whether no
    /// later one does, in this segment or the next ones.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn collect(&self, from: Offset, upper: Offset, found: &mut Vec<AbortedTransaction>) -> io::Result<bool> {
        collect(self.len, |at| Ok(self.entry(at)?.1), from, upper, found)
    }

    fn entry(&self, at: usize) -> io::Result<(i16, AbortedTransaction)> {
        let position = (at as u64).saturating_mul(AbortedTransaction::BYTES as u64);
        Ok(AbortedTransaction::decode(&self.bytes.read(position)?))
    }
}

/// As [`SealedTransactionIndex::collect`], from entries in memory.
pub(crate) fn collect_from(
    entries: &[AbortedTransaction],
    from: Offset,
    upper: Offset,
    found: &mut Vec<AbortedTransaction>,
) -> bool {
    const NONE: AbortedTransaction = AbortedTransaction {
        producer_id: -1,
        first_offset: Offset::MAX,
        last_offset: Offset::MAX,
        last_stable_offset: Offset::MAX,
    };
    let entry = |at: usize| Ok::<_, Infallible>(entries.get(at).copied().unwrap_or(NONE));
    infallible(collect(entries.len(), entry, from, upper, found))
}

/// Markers rise from entry to entry, so those before `from` are passed by. A transaction whose marker comes after an
/// entry began no earlier than that entry's last stable offset, or it would have been open and held it back.
fn collect<E>(
    len: usize,
    entry: impl Fn(usize) -> Result<AbortedTransaction, E>,
    from: Offset,
    upper: Offset,
    found: &mut Vec<AbortedTransaction>,
) -> Result<bool, E> {
    let first = partition_point(len, |at| Ok(entry(at)?.last_offset < from))?;
    for at in first..len {
        let transaction = entry(at)?;
        if transaction.first_offset < upper {
            found.push(transaction);
        }
        if transaction.last_stable_offset >= upper {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What entries must fulfil, one after the other.
struct Checker {
    base: Offset,
    end: Offset,
    position: u64,
    last: Option<AbortedTransaction>,
}

impl Checker {
    fn accept(&mut self, version: i16, entry: AbortedTransaction) -> Result<(), IndexFault> {
        let fault = |what| Err(IndexFault { position: self.position, what });
        if version != AbortedTransaction::VERSION {
            return fault("an unknown version");
        }
        if let Some(what) = entry.contradiction() {
            return fault(what);
        }
        if entry.last_offset < self.base || entry.last_offset >= self.end {
            return fault("a marker outside of the segment");
        }
        if let Some(last) = self.last
            && (entry.last_offset <= last.last_offset || entry.last_stable_offset < last.last_stable_offset)
        {
            return fault("a marker or last stable offset that does not rise");
        }
        self.position += AbortedTransaction::BYTES as u64;
        self.last = Some(entry);
        Ok(())
    }
}
