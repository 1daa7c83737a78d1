//! The index of aborted transactions, beside the markers.

use std::collections::BTreeSet;

use byteorder::{BigEndian, ByteOrder};

use crate::Offset;
use crate::batch::BatchHeader;
use crate::fs::Fs;
use crate::io::IoError;
use crate::producers::CompletedTransaction;

use super::super::fault::{Fault, FaultKind};
use super::super::files::FileFacts;
use super::entries::Entries;

const ENTRY_BYTES: usize = 34;

/// Which producers have written records in the transactions that are open. Of a transaction that compaction emptied there
/// is nothing to be kept from anybody, and no entry in an index.
#[derive(Debug, Default)]
pub(super) struct OpenTransactions {
    with_records: BTreeSet<i64>,
}

impl OpenTransactions {
    pub(super) fn batch(&mut self, header: &BatchHeader) {
        if header.is_transactional() && !header.is_control() && header.record_count() != 0 {
            self.with_records.insert(header.producer_id());
        }
    }

    /// Whether the transaction that ends had records.
    fn end(&mut self, producer_id: i64) -> bool {
        self.with_records.remove(&producer_id)
    }
}

/// Compares an index of aborted transactions with the markers.
pub(super) struct TransactionIndexCheck {
    entries: Option<Entries<ENTRY_BYTES>>,
    next: Option<Entry>,
    /// The first transaction that is missing, and how many are.
    missing: Option<(CompletedTransaction, u64)>,
    /// The data file is on its own: no index is expected beside it.
    is_bare: bool,
    /// Whether everything before the segment is known: which transactions were open, and where they began.
    knows_all_before: bool,
}

#[derive(Clone, Copy)]
struct Entry {
    at: u64,
    producer_id: i64,
    first: Offset,
    last: Offset,
    last_stable: Offset,
}

impl TransactionIndexCheck {
    pub(super) fn open(
        fs: &dyn Fs,
        facts: Option<&FileFacts>,
        is_bare: bool,
        knows_all_before: bool,
    ) -> Result<Self, IoError> {
        let entries = facts.map(|facts| Entries::open(fs, facts)).transpose()?.flatten();
        let mut check = Self { entries, next: None, missing: None, is_bare, knows_all_before };
        check.advance()?;
        Ok(check)
    }

    fn advance(&mut self) -> Result<(), IoError> {
        self.next = None;
        let Some(entries) = &mut self.entries else { return Ok(()) };
        while let Some((at, bytes)) = entries.next()? {
            let version = BigEndian::read_i16(&bytes[..2]);
            if version != 0 {
                entries.wrong(at, format!("version {version}"));
                continue;
            }
            let offset = |from: usize| Offset(BigEndian::read_i64(bytes.get(from..from + 8).unwrap_or(&[0; 8])));
            self.next = Some(Entry {
                at,
                producer_id: offset(2).0,
                first: offset(10),
                last: offset(18),
                last_stable: offset(26),
            });
            break;
        }
        Ok(())
    }

    /// Takes a marker in; `completed` is the transaction it ended, as far as that is known, and `last_stable` what lies
    /// before all others that are open.
    pub(super) fn marker(
        &mut self,
        header: &BatchHeader,
        completed: Option<CompletedTransaction>,
        open: &mut OpenTransactions,
        last_stable: Offset,
    ) -> Result<(), IoError> {
        let had_records = open.end(header.producer_id());
        let at = header.last_offset();
        self.pass(at)?;
        let aborted = completed.filter(|completed| completed.is_aborted);
        match self.next.filter(|entry| entry.last == at) {
            Some(entry) => {
                let what = self.judge(&entry, header, completed, last_stable);
                if let (Some(what), Some(entries)) = (what, &mut self.entries) {
                    entries.wrong(entry.at, what);
                }
                self.advance()
            }
            None => {
                if let Some(aborted) = aborted.filter(|_| had_records) {
                    self.missing.get_or_insert((aborted, 0)).1 += 1;
                }
                Ok(())
            }
        }
    }

    /// What is wrong with an entry that names the place of this marker.
    fn judge(
        &self,
        entry: &Entry,
        header: &BatchHeader,
        completed: Option<CompletedTransaction>,
        last_stable: Offset,
    ) -> Option<String> {
        if entry.producer_id != header.producer_id() {
            return Some(format!("producer {} at the marker of {}", entry.producer_id, header.producer_id()));
        }
        // Without a beginning it cannot be told what was ended: the beginning may be below the log start.
        let completed = completed?;
        if !completed.is_aborted {
            return Some(format!("the transaction that offset {} ended was committed", entry.last));
        }
        // Compaction may have taken the first batches of the transaction.
        if entry.first > completed.first {
            return Some(format!("begins at offset {}, the transaction at {}", entry.first, completed.first));
        }
        (self.knows_all_before && entry.last_stable != last_stable)
            .then(|| format!("last stable offset {}, where it was {last_stable}", entry.last_stable))
    }

    /// Entries that end before `offset` end at no marker.
    fn pass(&mut self, offset: Offset) -> Result<(), IoError> {
        while let Some(entry) = self.next.filter(|entry| entry.last < offset) {
            if let Some(entries) = &mut self.entries {
                entries.wrong(entry.at, format!("no transaction was aborted at offset {}", entry.last));
            }
            self.advance()?;
        }
        Ok(())
    }

    /// Batches are missing: from here on it is not known which transactions are open.
    pub(super) fn forget_before(&mut self) {
        self.knows_all_before = false;
    }

    /// Nothing can be said of markers in damage.
    pub(super) fn damaged(&mut self, offsets: &std::ops::Range<Offset>) -> Result<(), IoError> {
        self.pass(offsets.start)?;
        while self.next.is_some_and(|entry| entry.last < offsets.end) {
            self.advance()?;
        }
        Ok(())
    }

    /// `path` is where the file is, or should be. What a segment that grew when it was left lacks is no fault, and neither
    /// are entries for what was behind damage at its end.
    pub(super) fn finish(
        mut self,
        path: &std::path::Path,
        ends_damaged: bool,
        is_open: bool,
    ) -> Result<Option<Fault>, IoError> {
        if !ends_damaged {
            self.pass(Offset::MAX)?;
        }
        if let Some((first, count)) = self.missing.filter(|_| !self.is_bare && !is_open) {
            let more = if count > 1 { format!(", and {} more", count - 1) } else { String::new() };
            let CompletedTransaction { producer_id, first, last, .. } = first;
            let what = format!("the aborted transaction of producer {producer_id} is missing{more}");
            return Ok(Some(Fault::new(FaultKind::TransactionIndex, path, what).offsets(first..last.next())));
        }
        Ok(self.entries.and_then(|entries| entries.finish(FaultKind::TransactionIndex, false)))
    }
}
