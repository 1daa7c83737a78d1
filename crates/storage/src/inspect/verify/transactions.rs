//! The index of aborted transactions, beside the markers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::Offset;
use crate::batch::BatchHeader;
use crate::fs::Fs;
use crate::index::AbortedTransaction;
use crate::io::IoError;
use crate::producers::CompletedTransaction;

use super::super::fault::{Fault, FaultKind};
use super::super::files::FileFacts;
use super::entries::Entries;

const ENTRY_BYTES: usize = AbortedTransaction::BYTES;

/// Which producers have written records in the transactions that are open. Of a transaction that compaction emptied there
/// is nothing to be kept from anybody, and no entry in an index.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    with_records: BTreeSet<i64>,
}

impl OpenTransactions {
    pub(crate) fn batch(&mut self, header: &BatchHeader) {
        if header.is_transactional() && !header.is_control() && header.record_count() != 0 {
            self.with_records.insert(header.producer_id());
        }
    }

    /// Whether the transaction that ends had records.
    pub(crate) fn end(&mut self, producer_id: i64) -> bool {
        self.with_records.remove(&producer_id)
    }
}

/// Compares an index of aborted transactions with the markers.
pub(super) struct TransactionIndexCheck {
    entries: Option<Entries<ENTRY_BYTES>>,
    /// The next entry, and where it stands in the file.
    next: Option<(u64, AbortedTransaction)>,
    /// The first transaction that is missing, and how many are.
    missing: Option<(CompletedTransaction, u64)>,
    /// The data file is on its own: no index is expected beside it.
    is_bare: bool,
    /// Whether everything before the segment is known: which transactions were open, and where they began.
    knows_all_before: bool,
}

/// What is wrong with an entry beside the marker in its place, and the transaction that this ended as far as known.
pub(crate) fn contradiction(
    entry: &AbortedTransaction,
    marker: &BatchHeader,
    completed: Option<CompletedTransaction>,
) -> Option<String> {
    if entry.producer_id != marker.producer_id() {
        return Some(format!("producer {} at the marker of {}", entry.producer_id, marker.producer_id()));
    }
    // Without a beginning it cannot be told what was ended: the beginning may be below the log start.
    let completed = completed?;
    if !completed.is_aborted {
        return Some(format!("the transaction that offset {} ended was committed", entry.last_offset));
    }
    // Compaction may have taken the first batches of the transaction.
    (entry.first_offset > completed.first)
        .then(|| format!("begins at offset {}, the transaction at {}", entry.first_offset, completed.first))
}

/// An entry, if it can be right whatever is in the log; else what is wrong with it.
fn decode(bytes: &[u8; ENTRY_BYTES]) -> Result<AbortedTransaction, String> {
    match AbortedTransaction::decode(bytes) {
        (AbortedTransaction::VERSION, entry) => match entry.contradiction() {
            None => Ok(entry),
            Some(what) => Err(what.to_owned()),
        },
        (version, _) => Err(format!("version {version}")),
    }
}

/// The entries of one index, by where they end.
#[derive(Debug, Default)]
pub(crate) struct AbortedEntries {
    entries: BTreeMap<Offset, AbortedTransaction>,
}

impl AbortedEntries {
    /// Reads those that can be right; their number is bounded by the file's length.
    pub(crate) fn read(fs: &dyn Fs, facts: Option<&FileFacts>) -> Result<Self, IoError> {
        let mut entries = BTreeMap::new();
        if let Some(mut file) = facts.map(|facts| Entries::open(fs, facts)).transpose()?.flatten() {
            while let Some((_, bytes)) = file.next()? {
                if let Ok(entry) = decode(&bytes) {
                    entries.insert(entry.last_offset, entry);
                }
            }
        }
        Ok(Self { entries })
    }

    /// Takes out the entries that end in a range.
    pub(crate) fn take(
        &mut self,
        offsets: Range<Offset>,
    ) -> impl Iterator<Item = (Offset, AbortedTransaction)> + use<> {
        let mut taken = BTreeMap::new();
        if offsets.start < offsets.end {
            let mut rest = self.entries.split_off(&offsets.start);
            let mut behind = rest.split_off(&offsets.end);
            self.entries.append(&mut behind);
            taken = rest;
        }
        taken.into_iter()
    }
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
        self.next = match &mut self.entries {
            Some(entries) => entries.next_right(|at, bytes| decode(bytes).map(|entry| (at, entry)))?,
            None => None,
        };
        Ok(())
    }

    /// Takes a marker in; `completed` is the transaction it ended, as far as that is known.
    pub(super) fn marker(
        &mut self,
        header: &BatchHeader,
        completed: Option<CompletedTransaction>,
        open: &mut OpenTransactions,
    ) -> Result<(), IoError> {
        let had_records = open.end(header.producer_id());
        let at = header.last_offset();
        self.pass(at)?;
        let aborted = completed.filter(|completed| completed.is_aborted);
        let Some((position, entry)) = self.next.filter(|(_, entry)| entry.last_offset == at) else {
            if let Some(aborted) = aborted.filter(|_| had_records) {
                self.missing.get_or_insert((aborted, 0)).1 += 1;
            }
            return Ok(());
        };
        let mut wrong = contradiction(&entry, header, completed);
        if let Some(completed) = completed.filter(|_| wrong.is_none() && self.knows_all_before)
            && entry.last_stable_offset != completed.last_stable_offset
        {
            let (said, was) = (entry.last_stable_offset, completed.last_stable_offset);
            wrong = Some(format!("last stable offset {said}, where it was {was}"));
        }
        if let (Some(what), Some(entries)) = (wrong, &mut self.entries) {
            entries.wrong(position, what);
        }
        self.advance()
    }

    /// Entries that end before `offset` end at no marker.
    fn pass(&mut self, offset: Offset) -> Result<(), IoError> {
        while let Some((position, entry)) = self.next.filter(|(_, entry)| entry.last_offset < offset) {
            if let Some(entries) = &mut self.entries {
                entries.wrong(position, format!("no transaction was aborted at offset {}", entry.last_offset));
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
    pub(super) fn damaged(&mut self, offsets: &Range<Offset>) -> Result<(), IoError> {
        self.pass(offsets.start)?;
        while self.next.is_some_and(|(_, entry)| entry.last_offset < offsets.end) {
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
