//! What a repair will do, by what a verification finds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Offset;
use crate::data_dir::LOG_STARTS_FILE;
use crate::fs::Fs;
use crate::inspect::{
    Correction, Fault, FaultKind, InspectError, PartitionFiles, RootCheckpoints, Severity, Terms, VerifyEvent,
    checkpoints_around, verify_file_on, verify_partition_on,
};
use crate::io::IoError;
use crate::log::EPOCHS_FILE;
use crate::names::{SegmentFile, SegmentFileName};
use crate::state_file::StateFile;

use super::data::SegmentRepair;
use super::rebuild::{Rebuild, Snapshots};
use super::unfinished::{Unfinished, in_place};
use super::{RepairError, name_of};

/// One thing that a repair does.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairAction {
    /// Bytes are cut out of a segment and put into a file of their own.
    Cut {
        /// The segment's file.
        file: PathBuf,
        /// Where the bytes begin.
        position: u64,
        /// How many there are.
        bytes: u64,
    },
    /// A field of a batch gets the only value that fits.
    Correct {
        /// The segment's file.
        file: PathBuf,
        /// Where the batch begins.
        position: u64,
        /// The field and its value.
        correction: Correction,
    },
    /// A segment that cannot be where it is, or that an interrupted compaction has replaced, gets another name.
    SetAside(PathBuf),
    /// A file of a compaction that was interrupted gets its final name, as the next opening would give it.
    PutInPlace(PathBuf),
    /// A file is made anew from the batches, or from the partitions. If it is there, what is in it gets a file of its own,
    /// unless all indexes are [made anew](RepairPlan::rebuild_indexes) whatever is in them.
    Rebuild(PathBuf),
}

impl RepairAction {
    /// The file that changes, and where it does.
    pub(super) fn location(&self) -> (&Path, Option<u64>) {
        match self {
            Self::Cut { file, position, .. } | Self::Correct { file, position, .. } => (file, Some(*position)),
            Self::SetAside(file) | Self::PutInPlace(file) | Self::Rebuild(file) => (file, None),
        }
    }
}

/// What is wrong with a partition, and what a repair does about it.
#[derive(Clone, Debug)]
pub struct RepairPlan {
    pub(super) dir: PathBuf,
    /// What is done, in order.
    pub actions: Vec<RepairAction>,
    /// What stays as it is.
    pub left: Vec<Fault>,
    /// Only the segment with this base is looked at.
    pub(super) segment: Option<Offset>,
    pub(super) unfinished: Unfinished,
    pub(super) repairs: BTreeMap<PathBuf, SegmentRepair>,
    pub(super) rebuild: Rebuild,
    /// Files of which what is in them is kept, though others take their place.
    pub(super) kept: BTreeSet<PathBuf>,
}

impl RepairPlan {
    /// A plan to do nothing.
    fn none(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            actions: Vec::new(),
            left: Vec::new(),
            segment: None,
            unfinished: Unfinished::default(),
            repairs: BTreeMap::new(),
            rebuild: Rebuild::default(),
            kept: BTreeSet::new(),
        }
    }

    /// Looks at a partition's directory and decides. Nothing is changed.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub fn of(fs: &dyn Fs, dir: &Path, read: &mut dyn FnMut(u64)) -> Result<Self, RepairError> {
        Self::in_root(fs, dir, &checkpoints_around(fs, dir)?, read)
    }

    /// As [`RepairPlan::of`], for one of the partitions of a data root whose checkpoints were read.
    ///
    /// # Errors
    /// As [`RepairPlan::of`].
    pub fn in_root(
        fs: &dyn Fs,
        dir: &Path,
        checkpoints: &RootCheckpoints,
        read: &mut dyn FnMut(u64),
    ) -> Result<Self, RepairError> {
        let mut plan = Self::none(dir);
        verify_partition_on(Terms::Locked, fs, dir, checkpoints, &mut |event| match event {
            VerifyEvent::Read(bytes) => read(bytes),
            VerifyEvent::Found(fault) => plan.decide(fault),
        })?;
        if !plan.is_empty() {
            // What is repaired counts as closed well, and then nothing in it may be unfinished: an index that a log which
            // is still written to need not have, or epochs above the recovery point.
            plan = Self::none(dir);
            verify_partition_on(Terms::Closed, fs, dir, checkpoints, &mut |event| {
                if let VerifyEvent::Found(fault) = event {
                    plan.decide(fault);
                }
            })?;
        }
        plan.complete(&PartitionFiles::list(fs, dir)?);
        plan.finish_first(fs)?;
        Ok(plan)
    }

    /// Looks at one segment with its indexes, and not at the others: its file keeps what is intact, its indexes are made anew.
    /// Epochs and snapshots of producers that would lie past the end of the log go along.
    ///
    /// # Errors
    /// If it cannot be looked at; [`InspectError::Unknown`] if there is no segment with this base, and
    /// [`RepairError::Unfinished`] if there is something to repair and a compaction was interrupted in the directory.
    pub fn of_segment(fs: &dyn Fs, dir: &Path, base: Offset, read: &mut dyn FnMut(u64)) -> Result<Self, RepairError> {
        let files = PartitionFiles::list(fs, dir)?;
        let named = SegmentFileName::live(base, SegmentFile::Log);
        let segment = files.segments.iter().find(|segment| segment.base == base);
        let path = segment.map(|segment| segment.log.path.clone());
        let path = path.ok_or_else(|| InspectError::Unknown(dir.join(named.to_string())))?;
        let name = name_of(&path).unwrap_or(named);
        let none = || Self { segment: Some(base), ..Self::none(dir) };
        let mut plan = none();
        verify_file_on(Terms::Locked, fs, &path, name, &mut |event| match event {
            VerifyEvent::Read(bytes) => read(bytes),
            VerifyEvent::Found(fault) => plan.decide(fault),
        })?;
        if plan.is_empty() {
            return Ok(plan);
        }
        if !Unfinished::of(fs, dir)?.is_empty() {
            return Err(RepairError::Unfinished(dir.to_owned()));
        }
        plan = none();
        verify_file_on(Terms::Closed, fs, &path, name, &mut |event| {
            if let VerifyEvent::Found(fault) = event {
                plan.decide(fault);
            }
        })?;
        plan.complete(&files);
        if let Some(state) = StateFile::read(fs, dir)?.last().filter(|state| !state.clean) {
            plan.settle_below(base, state.recovery_point, &files);
        }
        Ok(plan)
    }

    /// A plan to make the index files of all segments anew, whatever is in them.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn rebuild_indexes(fs: &dyn Fs, dir: &Path) -> Result<Self, RepairError> {
        Self::rebuild_indexes_if(fs, dir, |_| true)
    }

    /// As [`RepairPlan::rebuild_indexes`], of the segment with this base only. There is nothing to do if there is none. All
    /// segments before it are read: which transactions were open where it begins, they tell.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub fn rebuild_indexes_of(fs: &dyn Fs, dir: &Path, base: Offset) -> Result<Self, RepairError> {
        Self::rebuild_indexes_if(fs, dir, |segment| segment == base)
    }

    fn rebuild_indexes_if(fs: &dyn Fs, dir: &Path, is_asked: impl Fn(Offset) -> bool) -> Result<Self, RepairError> {
        let files = PartitionFiles::list(fs, dir)?;
        let mut plan = Self::none(dir);
        for segment in files.segments.iter().filter(|segment| is_asked(segment.base)) {
            plan.rebuild.indexes.insert(segment.base);
            plan.rebuild.transactions.insert(segment.base);
            plan.actions.extend(rebuilt_indexes(dir, segment.base));
            plan.actions
                .extend(segment.transaction_index.iter().map(|facts| RepairAction::Rebuild(in_place(&facts.path))));
        }
        plan.finish_first(fs)?;
        Ok(plan)
    }

    /// Where anything is done, an interrupted compaction is finished before: files that wait for their places would take
    /// those of files that were made anew.
    fn finish_first(&mut self, fs: &dyn Fs) -> Result<(), IoError> {
        if self.is_empty() {
            return Ok(());
        }
        self.unfinished = Unfinished::of(fs, &self.dir)?;
        let set_aside = self.unfinished.set_aside(&self.dir).map(RepairAction::SetAside);
        let put_in_place = self.unfinished.waiting(&self.dir).map(RepairAction::PutInPlace);
        self.actions.splice(0..0, set_aside.chain(put_in_place).collect::<Vec<_>>());
        Ok(())
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    fn decide(&mut self, fault: Fault) {
        let base = name_of(&fault.file).map(|name| name.base_offset);
        let file = in_place(&fault.file);
        match (fault.kind, base, fault.position, fault.bytes) {
            (FaultKind::Offsets, Some(_), Some(_), None) => {
                self.repairs.entry(file.clone()).or_default().set_aside = true;
                self.actions.push(RepairAction::SetAside(file));
            }
            (FaultKind::Field | FaultKind::LeaderEpoch, Some(_), Some(position), _) if fault.correction.is_some() => {
                let Some(correction) = fault.correction else { return };
                self.repairs.entry(file.clone()).or_default().correct(position, correction);
                self.actions.push(RepairAction::Correct { file, position, correction });
            }
            (
                FaultKind::Batch | FaultKind::Checksum | FaultKind::Offsets | FaultKind::TornTail | FaultKind::Records,
                Some(_),
                Some(position),
                Some(bytes),
            ) => {
                self.repairs.entry(file.clone()).or_default().cut.push((position, bytes));
                self.actions.push(RepairAction::Cut { file, position, bytes });
            }
            (FaultKind::OffsetIndexMissing | FaultKind::OffsetIndex, Some(base), ..)
            | (FaultKind::TimeIndexMissing | FaultKind::TimeIndex, Some(base), ..) => {
                self.rebuild.indexes.insert(base);
                self.actions.push(RepairAction::Rebuild(file));
            }
            (FaultKind::TransactionIndex, Some(base), ..) => {
                self.rebuild.transactions.insert(base);
                self.actions.push(RepairAction::Rebuild(file));
            }
            (FaultKind::EpochsMissing | FaultKind::Epochs, ..) => {
                self.rebuild.epochs = true;
                self.actions.push(RepairAction::Rebuild(file));
            }
            (FaultKind::Snapshot | FaultKind::SnapshotContent, Some(base), ..) => {
                self.rebuild.snapshots.add(base);
                self.actions.push(RepairAction::Rebuild(file));
            }
            (FaultKind::SnapshotsMissing, ..) => {
                self.rebuild.snapshots = Snapshots::All;
                self.actions.push(RepairAction::Rebuild(file));
            }
            (FaultKind::State | FaultKind::RecordsMissing, ..) => self.actions.push(RepairAction::Rebuild(file)),
            // Whether the start is wrong or the log has lost its end nobody can tell.
            (FaultKind::CheckpointOffset, ..) if !fault.file.ends_with(LOG_STARTS_FILE) => {
                self.actions.push(RepairAction::Rebuild(file));
            }
            _ if fault.severity() == Severity::Note => {}
            _ => self.left.push(fault),
        }
    }

    /// Of a log that was not closed well, all below the end of the segment at `base` will count as synced: then the side files
    /// that recovery would have made are there too, from the recovery point on.
    fn settle_below(&mut self, base: Offset, recovery_point: Offset, files: &PartitionFiles) {
        let nexts = files.segments.iter().skip(1).map(|segment| segment.base);
        for (segment, next) in files.segments.iter().zip(nexts) {
            if segment.base >= base || next <= recovery_point {
                continue;
            }
            self.rebuild.indexes.insert(segment.base);
            let indexes = [&segment.offset_index, &segment.time_index];
            self.kept.extend(indexes.into_iter().flatten().map(|facts| facts.path.clone()));
            self.actions.extend(rebuilt_indexes(&self.dir, segment.base));
        }
        self.rebuild.epochs = true;
        self.kept.extend(files.epochs.iter().map(|facts| facts.path.clone()));
        self.actions.push(RepairAction::Rebuild(self.dir.join(EPOCHS_FILE)));
    }

    /// What follows from changed data: indexes that point elsewhere, and epochs.
    fn complete(&mut self, files: &PartitionFiles) {
        let rewritten: BTreeSet<Offset> = self
            .repairs
            .iter()
            .filter(|(_, repair)| !repair.set_aside)
            .filter_map(|(path, _)| name_of(path).map(|name| name.base_offset))
            .collect();
        for segment in files.segments.iter().filter(|segment| rewritten.contains(&segment.base)) {
            for action in rebuilt_indexes(&self.dir, segment.base) {
                if !self.actions.contains(&action) {
                    self.actions.push(action);
                }
            }
            self.rebuild.indexes.insert(segment.base);
            self.rebuild.transactions.insert(segment.base);
        }
        let corrects_epochs = self.repairs.values().any(SegmentRepair::corrects_epochs);
        self.rebuild.epochs |= corrects_epochs && self.segment.is_none();
        let is_last = self.segment.is_some_and(|base| files.segments.last().is_some_and(|last| last.base == base));
        if let Some(base) = self.segment.filter(|_| is_last && !self.repairs.is_empty()) {
            // The log may end earlier afterwards, and no snapshot may know more than it.
            for (offset, facts) in files.snapshots.iter().filter(|(offset, _)| *offset > base) {
                self.rebuild.snapshots.add(*offset);
                self.actions.push(RepairAction::Rebuild(facts.path.clone()));
            }
        }
        let rebuilt = self.actions.iter().filter_map(|action| match action {
            // Checkpoints of the data root are kept when they are written, once for all partitions.
            RepairAction::Rebuild(path) if *path != self.dir && path.starts_with(&self.dir) => Some(path.clone()),
            _ => None,
        });
        self.kept = rebuilt.collect();
        // Also what goes along unnamed: indexes of a segment that is set aside, transactions of one that is cut.
        for segment in files.segments.iter().filter(|segment| self.repairs.contains_key(&in_place(&segment.log.path))) {
            let indexes = [&segment.offset_index, &segment.time_index, &segment.transaction_index];
            self.kept.extend(indexes.into_iter().flatten().map(|facts| in_place(&facts.path)));
        }
        self.kept.extend(files.epochs.iter().filter(|_| self.rebuild.epochs).map(|facts| facts.path.clone()));
    }
}

/// That both indexes of a segment are made anew.
fn rebuilt_indexes(dir: &Path, base: Offset) -> impl Iterator<Item = RepairAction> {
    [SegmentFile::OffsetIndex, SegmentFile::TimeIndex]
        .into_iter()
        .map(move |kind| RepairAction::Rebuild(dir.join(SegmentFileName::live(base, kind).to_string())))
}
