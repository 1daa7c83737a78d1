//! Everything in a partition's directory that can be checked, checked in one pass over its batches.

mod entries;
mod epochs;
mod indexes;
mod root;
mod snapshots;
mod transactions;
mod trust;

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::batch::{BatchFault, BatchView};
use crate::error::DamageKind;
use crate::fs::{Fs, OpenMode};
use crate::io::{IoContext, IoError};
use crate::metadata_files::{MetadataFileError, read_topic_id};
use crate::names::{SegmentFile, SegmentFileName};
use crate::producers::{MAX_PRODUCERS, ProducerTable};
use crate::state_file::{FlushMark, STATE_FILE, StateFile};
use crate::{Offset, RepairedField};

use super::fault::{Correction, Fault, FaultKind, Severity};
use super::files::{FileFacts, SegmentFiles};
use super::records::{RecordsFault, check_records};
use super::summary::{PartitionSummary, RootFacts, Stop, name_of};
use super::target::InspectError;
use super::walk::{DamagedBytes, Piece, SegmentWalk};

use epochs::EpochCheck;
use indexes::{OffsetIndexCheck, Rules, TimeIndexCheck};
use transactions::TransactionIndexCheck;
use trust::Trust;

pub(crate) use root::verify_locked_root;
pub use root::verify_root;
pub(crate) use transactions::{AbortedEntries, OpenTransactions, contradiction};

/// Bytes of batches between two reports of progress.
const PROGRESS_BYTES: u64 = 1 << 20;

/// What a verification tells while it goes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum VerifyEvent {
    /// So many more bytes of batches were read.
    Read(u64),
    /// Something is wrong, or worth knowing.
    Found(Fault),
}

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Segments.
    pub segments: u64,
    /// Batches that are whole; of magic 0 and 1, messages and wrappers.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of data files.
    pub bytes: u64,
    /// Faults: what was found, but for notes.
    pub faults: u64,
    /// Notes.
    pub notes: u64,
}

impl Verified {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.batches += other.batches;
        self.records += other.records;
        self.bytes += other.bytes;
        self.faults += other.faults;
        self.notes += other.notes;
    }

    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.faults == 0
    }
}

/// Checks a partition's directory: every batch with its checksum and its neighbours, every record, every index entry,
/// epoch, snapshot and checkpoint.
///
/// # Errors
/// What the file system answers. What is wrong with the files is told to `tell`.
pub fn verify_partition(fs: &dyn Fs, dir: &Path, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
    verify_summarized(fs, &PartitionSummary::of(fs, dir)?, tell)
}

/// As [`verify_partition`], for a caller that holds the directory's lock itself: nothing in it is being written.
pub(crate) fn verify_locked(
    fs: &dyn Fs,
    dir: &Path,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let summary = PartitionSummary { in_use_by: None, ..PartitionSummary::of(fs, dir)? };
    verify_summarized(fs, &summary, tell)
}

/// As [`verify_locked`], by the rules for a log that was closed well, however it was left.
pub(crate) fn verify_as_closed(
    fs: &dyn Fs,
    dir: &Path,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let summary = PartitionSummary { in_use_by: None, stop: Stop::Clean, ..PartitionSummary::of(fs, dir)? };
    verify_summarized(fs, &summary, tell)
}

fn verify_summarized(
    fs: &dyn Fs,
    summary: &PartitionSummary,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let dir = &summary.files.dir;
    let mut verifier = Verifier::new(fs, summary, tell)?;
    verifier.names();
    verifier.metadata(dir)?;
    for (at, segment) in summary.files.segments.iter().enumerate() {
        let next = summary.files.segments.get(at + 1).map(|next| next.base);
        verifier.segment(segment, next)?;
    }
    verifier.finish(dir)?;
    Ok(verifier.verified)
}

/// Checks one file of a segment, with its segment if the file is not a snapshot. What depends on other segments is not
/// checked: whether producers' states and transactions that began earlier are right.
///
/// # Errors
/// As [`verify_partition`].
pub fn verify_file(
    fs: &dyn Fs,
    path: &Path,
    name: SegmentFileName,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let dir = crate::checkpoint::parent_of(path);
    let mut summary = PartitionSummary::of(fs, dir)?;
    if name.kind == SegmentFile::ProducerSnapshot {
        let metadata = fs.metadata(path).context("look at", path)?;
        let facts = FileFacts { path: path.to_owned(), bytes: metadata.len, modified: metadata.modified };
        let mut verified = Verified::default();
        if let Some(Err(fault)) = snapshots::read(fs, &facts, MAX_PRODUCERS)? {
            verified.faults = 1;
            tell(VerifyEvent::Found(fault));
        }
        return Ok(verified);
    }
    let (segment, next) = summary.files.segment_of(fs, path, name)?;
    summary.files.snapshots.clear();
    let mut verifier = Verifier::new(fs, &summary, tell)?;
    verifier.knows_all = false;
    verifier.is_alone = true;
    verifier.segment(&segment, next)?;
    Ok(verifier.verified)
}

/// One verification of one partition.
struct Verifier<'v> {
    fs: &'v dyn Fs,
    tell: &'v mut dyn FnMut(VerifyEvent),
    summary: &'v PartitionSummary,
    root: RootFacts,
    trust: Trust,
    verified: Verified,
    unreported: u64,
    /// Where the next segment should begin at the earliest.
    expected: Offset,
    epochs: EpochCheck,
    producers: ProducerTable,
    transactions: OpenTransactions,
    /// Whether the batches read so far tell everything of producers and transactions: none are missing before them.
    knows_all: bool,
    /// Only one segment is looked at.
    is_alone: bool,
    next_snapshot: usize,
    /// The last segment ends in bytes that are no batch.
    ends_damaged: bool,
}

impl<'v> Verifier<'v> {
    fn new(
        fs: &'v dyn Fs,
        summary: &'v PartitionSummary,
        tell: &'v mut dyn FnMut(VerifyEvent),
    ) -> Result<Self, InspectError> {
        let dir = &summary.files.dir;
        let first = summary.files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        let mut producers = ProducerTable::new(MAX_PRODUCERS);
        let mut knows_all = first == Offset::ZERO;
        if let Some((_, facts)) = summary.files.snapshots.iter().find(|(offset, _)| *offset == first)
            && let Some(Ok(table)) = snapshots::read(fs, facts, MAX_PRODUCERS)?
            && table.is_below(first)
        {
            (producers, knows_all) = (table, true);
        }
        let root = RootFacts::of(fs, dir, name_of(dir).as_ref());
        Ok(Self {
            fs,
            tell,
            summary,
            trust: Trust::of(fs, dir, summary, &root)?,
            root,
            verified: Verified::default(),
            unreported: 0,
            expected: first,
            epochs: EpochCheck::load(fs, dir, summary.files.epochs.is_some(), summary.log_start)?,
            producers,
            transactions: OpenTransactions::default(),
            knows_all,
            is_alone: false,
            next_snapshot: 0,
            ends_damaged: false,
        })
    }

    /// Tells of something in a file that a running broker does not change any more.
    fn found(&mut self, fault: Fault) {
        match fault.severity() {
            Severity::Note => self.verified.notes += 1,
            Severity::Error | Severity::Loss => self.verified.faults += 1,
        }
        (self.tell)(VerifyEvent::Found(fault));
    }

    /// Tells of something in a file that a running broker changes: what is not finished is no fault.
    fn found_in_motion(&mut self, mut fault: Fault) {
        if self.summary.in_use_by.is_some() && fault.severity() != Severity::Note {
            fault.what = format!("being written: {}", fault.what);
            fault.kind = FaultKind::InUse;
        }
        self.found(fault);
    }

    /// Files beside the segments, by their names.
    fn names(&mut self) {
        let files = &self.summary.files;
        let kinds = [
            (FaultKind::Leftover, &files.leftovers, "left by work that was interrupted or postponed"),
            (FaultKind::Orphan, &files.orphans, "there is no segment of this name"),
            (FaultKind::SetAside, &files.set_aside, "bytes that were put aside"),
        ];
        for (kind, listed, what) in kinds {
            for facts in listed {
                self.found(Fault::new(kind, &facts.path, what).bytes(facts.bytes));
            }
        }
        for name in &files.unknown {
            self.found(Fault::new(FaultKind::Unknown, files.dir.join(name), "no log has a file of this name"));
        }
    }

    fn metadata(&mut self, dir: &Path) -> Result<(), InspectError> {
        match read_topic_id(self.fs, dir) {
            Ok(_) => {}
            Err(MetadataFileError::Io(error)) if error.kind() != io::ErrorKind::FileTooLarge => {
                return Err(error.into());
            }
            Err(MetadataFileError::Io(error)) => {
                self.found(Fault::new(FaultKind::Metadata, &error.path, error.source.to_string()));
            }
            Err(MetadataFileError::Malformed { path, what }) => self.found(Fault::new(FaultKind::Metadata, path, what)),
        }
        let state = StateFile::read(self.fs, dir)?;
        let path = dir.join(STATE_FILE);
        match state.last() {
            None if self.summary.files.state.is_some() && !state.had_sync_failed() => {
                self.found_in_motion(Fault::new(FaultKind::State, path, "no part of it can be read"));
            }
            Some(known) if !state.is_whole() => {
                // A mark is written without a sync. Before a log is marked as closed, a part that was torn is written anew.
                let kind = if known.clean { FaultKind::State } else { FaultKind::StateTorn };
                self.found_in_motion(Fault::new(kind, path, "a part of it cannot be read"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether side files of a segment need not be complete: it grew, or was not checkpointed, when the log was left.
    fn is_open(&self, next: Option<Offset>) -> bool {
        match (self.summary.stop, next) {
            (Stop::Clean, _) if self.summary.in_use_by.is_none() => false,
            (_, None) => true,
            (Stop::Unknown, Some(_)) => false,
            (_, Some(next)) => self.summary.recovery_point.is_some_and(|point| next > point),
        }
    }

    fn segment(&mut self, files: &SegmentFiles, next: Option<Offset>) -> Result<(), InspectError> {
        let path = &files.log.path;
        let file = match self.fs.open(path, OpenMode::Read) {
            // Retention, or compaction, has removed it since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.context("open", path)?,
        };
        self.verified.segments += 1;
        self.epochs.segment(path);
        self.segment_base(files, next);
        self.expected = files.base;
        let is_open = self.is_open(next);
        let mut checks = Checks::open(self.fs, files, is_open, self.knows_all)?;
        self.missing(files, is_open);
        let mut walk = SegmentWalk::new(&*file, files.base, files.log.bytes, next);
        let mut ends_damaged = false;
        loop {
            let before = walk.position();
            match walk.next_piece().context("read", path)? {
                Piece::End => break,
                Piece::Batch { position, batch, corrections } => {
                    ends_damaged = false;
                    self.corrections(path, position, &batch, &corrections);
                    self.batch(path, position, &batch, &mut checks)?;
                }
                Piece::Damaged(damaged) => {
                    ends_damaged = damaged.is_last;
                    self.damaged(files, next, &damaged, &mut checks)?;
                }
                Piece::Zeros { position, bytes } => {
                    let fault = match next.filter(|next| *next > walk.expected()) {
                        // Batches were there: the next segment begins where they end.
                        Some(next) => Fault::new(FaultKind::Batch, path, "zeros in the place of batches")
                            .offsets(walk.expected()..next),
                        None => Fault::new(FaultKind::ZeroTail, path, "zeros to the end of the file"),
                    };
                    self.found(fault.at(position).bytes(bytes));
                }
            }
            let passed = walk.position() - before;
            self.verified.bytes += passed;
            self.unreported += passed;
            if self.unreported >= PROGRESS_BYTES {
                (self.tell)(VerifyEvent::Read(std::mem::take(&mut self.unreported)));
            }
        }
        self.expected = walk.expected();
        self.ends_damaged = ends_damaged;
        if let Some(next) = next.filter(|next| *next > self.expected) {
            self.forget(self.expected..next, &mut checks)?;
        }
        (self.tell)(VerifyEvent::Read(std::mem::take(&mut self.unreported)));
        let place = crate::checkpoint::parent_of(path);
        let transaction_index =
            place.join(SegmentFileName::live(files.base, SegmentFile::TransactionIndex).to_string());
        for fault in checks.finish(&transaction_index, ends_damaged, is_open)? {
            if is_open { self.found_in_motion(fault) } else { self.found(fault) }
        }
        Ok(())
    }

    /// Whether a segment begins where it may.
    fn segment_base(&mut self, files: &SegmentFiles, next: Option<Offset>) {
        let (base, expected) = (files.base, self.expected);
        if self.is_alone || base == expected {
            return;
        }
        let path = &files.log.path;
        if base > expected {
            self.missing_segments(expected..base, base);
            let what = format!("the segment begins at {base}, the one before ends at {expected}");
            self.found(Fault::new(FaultKind::Gap, path, what).offsets(expected..base));
        } else {
            let what = format!("the segment begins at {base}, but the one before ends at {expected}");
            let fault = Fault::new(FaultKind::Offsets, path, what).at(0).offsets(base..expected);
            self.found(self.trust.judge(fault, base, files, next));
        }
    }

    /// Segments of which only the indexes are left, with bases in `bases`; their offsets end at `end`.
    fn missing_segments(&mut self, bases: Range<Offset>, end: Offset) {
        let files = &self.summary.files;
        let name = |facts: &FileFacts| facts.path.file_name()?.to_str().and_then(SegmentFileName::parse);
        let mut missing: Vec<_> = files
            .orphans
            .iter()
            .filter_map(name)
            .filter(|name| matches!(name.kind, SegmentFile::OffsetIndex | SegmentFile::TimeIndex))
            .map(|name| name.base_offset)
            .filter(|base| bases.contains(base))
            // Its removal was under way.
            .filter(|base| !files.leftovers.iter().filter_map(name).any(|name| name.base_offset == *base))
            .collect();
        missing.dedup();
        for (at, base) in missing.iter().enumerate() {
            let path = files.dir.join(SegmentFileName::live(*base, SegmentFile::Log).to_string());
            let end = missing.get(at + 1).copied().unwrap_or(end).max(*base);
            self.found(
                Fault::new(FaultKind::SegmentMissing, path, "it is gone, its indexes are left").offsets(*base..end),
            );
        }
    }

    /// Index files that should be there and are not.
    fn missing(&mut self, files: &SegmentFiles, is_open: bool) {
        if files.log.bytes == 0 || is_open || files.is_bare() {
            return;
        }
        let missing = [
            (files.offset_index.is_none(), SegmentFile::OffsetIndex, FaultKind::OffsetIndexMissing),
            (files.time_index.is_none(), SegmentFile::TimeIndex, FaultKind::TimeIndexMissing),
        ];
        for (_, file, kind) in missing.into_iter().filter(|(is_missing, ..)| *is_missing) {
            let name = SegmentFileName::live(files.base, file).to_string();
            let path = crate::checkpoint::parent_of(&files.log.path).join(name);
            self.found(Fault::new(kind, path, "there is none"));
        }
    }

    fn batch(
        &mut self,
        path: &Path,
        position: u64,
        batch: &BatchView<'_>,
        checks: &mut Checks,
    ) -> Result<(), InspectError> {
        self.snapshots_up_to(batch.base_offset())?;
        if batch.base_offset() > self.expected {
            // What is missing may have begun or ended transactions.
            self.forget(self.expected..batch.base_offset(), checks)?;
        }
        self.expected = batch.next_offset();
        self.verified.batches += 1;
        checks.offsets(|check| check.batch(position, batch.header()))?;
        checks.times(|check| check.batch(batch.header()))?;
        self.epochs.batch(position, batch.header());
        match check_records(batch) {
            Ok(records) => self.verified.records += records,
            Err(fault) => {
                // Everything in it can be read.
                let is_timestamp = matches!(fault, RecordsFault::MaxTimestamp { .. });
                let kind = if is_timestamp { FaultKind::MaxTimestamp } else { FaultKind::Records };
                let fault = Fault::new(kind, path, fault.to_string()).at(position);
                let offsets = batch.base_offset()..batch.next_offset();
                self.found(fault.bytes(batch.total_bytes() as u64).offsets(offsets));
            }
        }
        self.transactions.batch(batch.header());
        let completed = self.producers.replicated(batch);
        if batch.is_control() {
            checks.transactions.marker(batch.header(), completed, &mut self.transactions)?;
        }
        Ok(())
    }

    /// Fields of a batch that have to have other values than in the file.
    fn corrections(&mut self, path: &Path, position: u64, batch: &BatchView<'_>, corrections: &[Correction]) {
        for correction in corrections {
            let kind = match correction.field {
                RepairedField::LeaderEpoch => FaultKind::LeaderEpoch,
                _ => FaultKind::Field,
            };
            let fault = Fault::new(kind, path, correction.to_string()).at(position).bytes(batch.total_bytes() as u64);
            let offsets = batch.base_offset()..batch.next_offset();
            self.found(fault.offsets(offsets).correction(Some(*correction)));
        }
    }

    fn damaged(
        &mut self,
        files: &SegmentFiles,
        next: Option<Offset>,
        damaged: &DamagedBytes,
        checks: &mut Checks,
    ) -> Result<(), InspectError> {
        let DamagedBytes { position, bytes, what, offsets, is_last } = damaged;
        checks.offsets(|check| check.damaged(*position, *bytes))?;
        checks.times(|check| {
            check.damaged();
            Ok(())
        })?;
        self.forget(offsets.clone(), checks)?;
        let is_tail = *is_last && next.is_none();
        let kind = match what {
            DamageKind::Batch(BatchFault::Partial { .. }) if is_tail => FaultKind::TornTail,
            DamageKind::Batch(BatchFault::Crc { .. }) => FaultKind::Checksum,
            DamageKind::Offsets { .. } => FaultKind::Offsets,
            _ => FaultKind::Batch,
        };
        let mut fault = Fault::new(kind, &files.log.path, what.to_string()).at(*position).bytes(*bytes);
        if offsets.start < offsets.end {
            fault = fault.offsets(offsets.clone());
        }
        let fault = self.trust.judge(fault, offsets.start, files, next);
        if is_tail {
            self.found_in_motion(fault)
        } else {
            self.found(fault)
        }
        Ok(())
    }

    /// Notes that the batches with these offsets are not there.
    fn forget(&mut self, offsets: Range<Offset>, checks: &mut Checks) -> Result<(), InspectError> {
        self.knows_all = false;
        checks.transactions.forget_before();
        Ok(checks.transactions.damaged(&offsets)?)
    }

    /// Compares the snapshots that cover the batches up to `offset`.
    fn snapshots_up_to(&mut self, offset: Offset) -> Result<(), InspectError> {
        let files = &self.summary.files;
        let known_from = files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        while let Some((at, facts)) = files.snapshots.get(self.next_snapshot).filter(|(at, _)| *at <= offset) {
            self.next_snapshot += 1;
            match snapshots::read(self.fs, facts, MAX_PRODUCERS)? {
                None => {}
                Some(Err(fault)) => self.found(fault),
                // The batches below it are gone, and those behind it say nothing of it.
                Some(Ok(_)) if *at < known_from => {}
                Some(Ok(table)) => {
                    let known = snapshots::Known { table: &self.producers, from: known_from, all: self.knows_all };
                    if let Some(fault) = snapshots::compare(facts, *at, &table, known) {
                        self.found(fault);
                    }
                }
            }
        }
        Ok(())
    }

    /// What can be told once all batches were read.
    fn finish(&mut self, dir: &Path) -> Result<(), InspectError> {
        let end = self.expected;
        // Where a truncation may have been interrupted, they may be what is left of it.
        if self.summary.stop == Stop::Clean && self.summary.in_use_by.is_none() {
            self.missing_segments(end..Offset::MAX, end);
        }
        self.snapshots_up_to(end)?;
        let files = &self.summary.files;
        for (offset, facts) in files.snapshots.iter().skip(self.next_snapshot) {
            let what = format!("it covers offsets up to {offset}, the log ends at {end}");
            self.found_in_motion(Fault::new(FaultKind::SnapshotContent, &facts.path, what));
        }
        let may_have_none = files.segments.len() < 2 && self.summary.stop != Stop::Clean;
        if files.snapshots.is_empty() && !self.producers.is_empty() && !may_have_none {
            let what = format!("there is none, and {} producers wrote to the log", self.producers.len());
            self.found_in_motion(Fault::new(FaultKind::SnapshotsMissing, dir, what));
        }
        // Without a clean stop the checkpoint need not know what was appended last.
        let settled = match self.summary.stop {
            Stop::Clean => end,
            Stop::Unclean | Stop::Unknown => self.summary.recovery_point.unwrap_or(end),
        };
        let epochs = std::mem::replace(&mut self.epochs, EpochCheck::none(dir));
        for fault in epochs.finish(end, settled) {
            if fault.kind == FaultKind::LeaderEpoch { self.found(fault) } else { self.found_in_motion(fault) }
        }
        self.state(dir, end)?;
        self.root_offsets(end);
        Ok(())
    }

    /// Whether the log ends where the state file says that it was closed, or reaches what it says was synced.
    fn state(&mut self, dir: &Path, end: Offset) -> Result<(), IoError> {
        let Some(state) = StateFile::read(self.fs, dir)?.last() else { return Ok(()) };
        let (verb, said) = if state.clean { ("closed", state.end) } else { ("synced", state.synced()) };
        let path = dir.join(STATE_FILE);
        // Bytes at the end that are no batch any more are told as what they are, and keep their offsets.
        let is_there = self.ends_damaged && state.mark.is_some_and(|mark| self.reaches(&mark));
        let foreign = if said > end && !is_there {
            let what = format!("the log was {verb} up to {said}, and ends at {end}");
            if !(self.root.clean && self.root.recovery_point.is_some_and(|point| point <= end)) {
                self.found_in_motion(Fault::new(FaultKind::RecordsMissing, path, what).offsets(end..said));
                return Ok(());
            }
            format!("{what}, as another program closed it")
        } else if state.clean && said < end {
            format!("the log was closed at {said}, and ends at {end}: another program wrote to it since")
        } else {
            return Ok(());
        };
        self.found_in_motion(Fault::new(FaultKind::StateForeign, path, foreign));
        Ok(())
    }

    /// Whether the file with a flush mark is as long as the mark says.
    fn reaches(&self, mark: &FlushMark) -> bool {
        let segments = &self.summary.files.segments;
        segments.iter().any(|segment| segment.base == mark.segment_base && segment.log.bytes >= mark.position)
    }

    /// What the checkpoints of the root say of this log.
    fn root_offsets(&mut self, end: Offset) {
        let Some(root) = self.root.dir.clone() else { return };
        for (name, said) in self.root.offsets() {
            if let Some(said) = said.filter(|said| *said > end) {
                let what = format!("it says {said}, the log ends at {end}");
                let fault = Fault::new(FaultKind::CheckpointOffset, root.join(name), what).offsets(end..said);
                self.found_in_motion(fault);
            }
        }
    }
}

/// The side files of one segment.
struct Checks {
    offsets: Option<OffsetIndexCheck>,
    times: Option<TimeIndexCheck>,
    transactions: TransactionIndexCheck,
}

impl Checks {
    fn open(fs: &dyn Fs, files: &SegmentFiles, is_open: bool, knows_all: bool) -> Result<Self, IoError> {
        let rules = Rules { base: files.base, data_bytes: files.log.bytes, is_open };
        let offsets = files.offset_index.as_ref().map(|facts| OffsetIndexCheck::open(fs, facts, rules)).transpose()?;
        let times = files.time_index.as_ref().map(|facts| TimeIndexCheck::open(fs, facts, rules)).transpose()?;
        let transactions =
            TransactionIndexCheck::open(fs, files.transaction_index.as_ref(), files.is_bare(), knows_all)?;
        Ok(Self { offsets: offsets.flatten(), times: times.flatten(), transactions })
    }

    fn offsets(&mut self, check: impl FnOnce(&mut OffsetIndexCheck) -> Result<(), IoError>) -> Result<(), IoError> {
        self.offsets.as_mut().map_or(Ok(()), check)
    }

    fn times(&mut self, check: impl FnOnce(&mut TimeIndexCheck) -> Result<(), IoError>) -> Result<(), IoError> {
        self.times.as_mut().map_or(Ok(()), check)
    }

    fn finish(self, transaction_index: &Path, ends_damaged: bool, is_open: bool) -> Result<Vec<Fault>, IoError> {
        let offsets = self.offsets.map(OffsetIndexCheck::finish).transpose()?.flatten();
        let times = self.times.map(TimeIndexCheck::finish).transpose()?.flatten();
        let transactions = self.transactions.finish(transaction_index, ends_damaged, is_open)?;
        Ok([offsets, times, transactions].into_iter().flatten().collect())
    }
}
