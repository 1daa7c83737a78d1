//! Repairing what [`crate::inspect`] found: a plan first, then its execution.
//!
//! Nothing of value is deleted. Bytes that are no batch are cut out of their segment and put into a file beside it,
//! `<segment>.log.damaged-<position>`; what lies behind them moves up, so that Kafka, which stops at the first such byte,
//! can go on: gaps in the offsets are legal, as compaction makes them. A field outside of the checksum that only one
//! value fits gets that value. Indexes, epochs and snapshots are made anew from the batches, checkpoints of a data root from
//! what is left of them and from its partitions; what was in their files stays in `<file>.damaged-<number>`. Whatever was
//! written is synced, and each file is replaced in one step, so that a crash leaves a directory that can be repaired again.

mod copy;
mod data;
mod kept;
mod rebuild;
mod root;
mod truncate;
mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{self, CheckpointError};
use crate::data_dir::{CHECKPOINT_FILES, LOG_STARTS_FILE};
use crate::fs::{DirLock, Fs};
use crate::inspect::{
    Correction, Fault, FaultKind, InspectError, PartitionFiles, RootFacts, Severity, Verified, VerifyEvent,
    partition_of, root_of, verify_as_closed, verify_locked, verify_locked_root,
};
use crate::io::{IoContext, IoError};
use crate::lock::{LockError, lock_directory};
use crate::names::{SegmentFile, SegmentFileName};
use crate::open_files::OpenFiles;
use crate::segment::Place;
use crate::state_file::{LogState, StateFile};
use crate::{LogOptions, Offset, TopicId};

pub use copy::{CopiedDir, CopyDirError, copy_dir, copy_root};
use rebuild::{Rebuild, Snapshots};
pub use root::RootRepairPlan;
pub use truncate::{CutError, TruncatePlan, truncate};
use unfinished::{Unfinished, in_place};

/// Why a directory could not be repaired, cut or copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// Somebody has it open.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// It could not be looked at.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// A file operation failed. Repairing it again goes on where this stopped.
    #[error(transparent)]
    Io(#[from] IoError),
    /// Each round of a repair brought something new to light.
    #[error(
        "{}{} is still not as it should be after {rounds} rounds of repairs",
        file.display(),
        position.map(|position| format!(", byte {position}")).unwrap_or_default()
    )]
    Unsettled {
        /// The first file that another round would change.
        file: PathBuf,
        /// Where in it, if that is known.
        position: Option<u64>,
        /// How many there were.
        rounds: u32,
    },
}

/// Rounds of a repair. Two or three are enough for directories of any bytes: what one finds was hidden by what the one
/// before it put right.
const ROUNDS_MAX: u32 = 16;

/// What a repair tells while it goes on.
#[derive(Debug)]
#[non_exhaustive]
pub enum RepairEvent<'p> {
    /// So many more bytes of batches were read.
    Read(u64),
    /// What this plan says was done.
    Done(&'p RepairPlan),
}

/// The locks of a partition's directory and of the data root it lies in.
#[derive(Debug)]
pub struct RepairLock {
    dir: PathBuf,
    _held: Vec<Box<dyn DirLock>>,
}

impl RepairLock {
    /// Keeps brokers, logs and other repairs out of a partition's directory, or a data root, until it is dropped.
    ///
    /// # Errors
    /// If somebody has the directory open: the error says who.
    pub fn take(fs: &dyn Fs, dir: &Path) -> Result<Self, LockError> {
        let mut held = Vec::new();
        if let Some(root) = root_of(fs, dir) {
            held.push(lock_directory(fs, &root)?);
        }
        held.push(lock_directory(fs, dir)?);
        Ok(Self { dir: dir.to_owned(), _held: held })
    }

    /// Repairs the partition's directory until there is nothing left that a repair can do: where several files are damaged,
    /// one fault may hide another. Returns what stays as it is.
    ///
    /// # Errors
    /// As [`RepairPlan::of`] and [`RepairPlan::apply`]; [`RepairError::Unsettled`] if there is no end to it.
    pub fn repair(&self, fs: &Arc<dyn Fs>, tell: &mut dyn FnMut(RepairEvent<'_>)) -> Result<Vec<Fault>, RepairError> {
        for _ in 0..ROUNDS_MAX {
            let plan = RepairPlan::of(&**fs, &self.dir, &mut |bytes| tell(RepairEvent::Read(bytes)))?;
            if plan.is_empty() {
                return Ok(plan.left);
            }
            plan.apply(fs, &mut |bytes| tell(RepairEvent::Read(bytes)))?;
            tell(RepairEvent::Done(&plan));
        }
        let plan = RepairPlan::of(&**fs, &self.dir, &mut |_| {})?;
        let Some(action) = plan.actions.first() else { return Ok(plan.left) };
        let (file, position) = action.location();
        Err(RepairError::Unsettled { file: file.to_owned(), position, rounds: ROUNDS_MAX })
    }

    /// Verifies the directory, as [`verify_partition`](crate::inspect::verify_partition) does, which would take it for
    /// one that somebody is writing to.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn verify(&self, fs: &dyn Fs, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
        verify_locked(fs, &self.dir, tell)
    }

    /// Verifies the files of the data root that was locked, as [`verify_root`](crate::inspect::verify_root) does.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn verify_root(&self, fs: &dyn Fs, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
        verify_locked_root(fs, &self.dir, tell)
    }
}

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
    fn location(&self) -> (&Path, Option<u64>) {
        match self {
            Self::Cut { file, position, .. } | Self::Correct { file, position, .. } => (file, Some(*position)),
            Self::SetAside(file) | Self::PutInPlace(file) | Self::Rebuild(file) => (file, None),
        }
    }
}

/// What is wrong with a partition, and what a repair does about it.
#[derive(Clone, Debug)]
pub struct RepairPlan {
    dir: PathBuf,
    /// What is done, in order.
    pub actions: Vec<RepairAction>,
    /// What stays as it is.
    pub left: Vec<Fault>,
    unfinished: Unfinished,
    repairs: BTreeMap<PathBuf, data::SegmentRepair>,
    rebuild: Rebuild,
    /// Files of which what is in them is kept, though others take their place.
    kept: BTreeSet<PathBuf>,
}

impl RepairPlan {
    /// A plan to do nothing.
    fn none(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            actions: Vec::new(),
            left: Vec::new(),
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
        let mut plan = Self::none(dir);
        verify_locked(fs, dir, &mut |event| match event {
            VerifyEvent::Read(bytes) => read(bytes),
            VerifyEvent::Found(fault) => plan.decide(fault),
        })?;
        if !plan.is_empty() {
            // What is repaired counts as closed well, and then nothing in it may be unfinished: an index that a log which
            // is still written to need not have, or epochs above the recovery point.
            plan = Self::none(dir);
            verify_as_closed(fs, dir, &mut |event| {
                if let VerifyEvent::Found(fault) = event {
                    plan.decide(fault);
                }
            })?;
        }
        plan.complete(&PartitionFiles::list(fs, dir)?);
        plan.finish_first(fs)?;
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
        let corrects_epochs = self.repairs.values().any(data::SegmentRepair::corrects_epochs);
        self.rebuild.epochs |= corrects_epochs;
        let rebuilt = self.actions.iter().filter_map(|action| match action {
            RepairAction::Rebuild(path) if *path != self.dir => Some(path.clone()),
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

    /// Does what was planned. The caller holds the [lock](RepairLock).
    ///
    /// # Errors
    /// At the first file operation that fails. The repair can be planned and tried again.
    pub fn apply(&self, fs: &Arc<dyn Fs>, read: &mut dyn FnMut(u64)) -> Result<(), RepairError> {
        if self.is_empty() {
            return Ok(());
        }
        let place = place(fs, &self.dir);
        self.unfinished.finish(&place)?;
        for path in &self.kept {
            kept::keep(&**fs, path)?;
        }
        for (path, repair) in &self.repairs {
            repair.apply(&place, path)?;
        }
        place.sync_dir()?;
        let end = self.rebuild.run(&place, read)?;
        place.sync_dir()?;
        record_state(&place, end)?;
        if self.lowers_checkpoints() {
            lower_checkpoints(&**fs, &self.dir, end)?;
        }
        Ok(())
    }

    /// Whether the log may end below what its root's checkpoints say, or does.
    fn lowers_checkpoints(&self) -> bool {
        let is_of_root =
            |action: &RepairAction| matches!(action, RepairAction::Rebuild(file) if !file.starts_with(&self.dir));
        !self.repairs.is_empty() || self.actions.iter().any(is_of_root)
    }
}

/// That both indexes of a segment are made anew.
fn rebuilt_indexes(dir: &Path, base: Offset) -> impl Iterator<Item = RepairAction> {
    [SegmentFile::OffsetIndex, SegmentFile::TimeIndex]
        .into_iter()
        .map(move |kind| RepairAction::Rebuild(dir.join(SegmentFileName::live(base, kind).to_string())))
}

/// A place whose files are opened one at a time.
pub(crate) fn place(fs: &Arc<dyn Fs>, dir: &Path) -> Place {
    let options = LogOptions::default();
    Place {
        fs: fs.clone(),
        dir: Arc::from(dir),
        open_files: OpenFiles::bounded(8),
        index_interval_bytes: options.index_interval_bytes,
        read_only: false,
        rebuilt: Default::default(),
    }
}

/// The state file of ours, if there is one, goes along: everything is synced by now, and the log ends at `end`. Otherwise
/// the next open would take the holes for lost tails.
fn record_state(place: &Place, end: Offset) -> Result<(), IoError> {
    let file = StateFile::load(place)?;
    let path = place.dir.join(crate::state_file::STATE_FILE);
    if place.fs.metadata(&path).is_err() {
        return Ok(());
    }
    for segment in PartitionFiles::list(&*place.fs, &place.dir)?.segments {
        let log = place.fs.open(&segment.log.path, crate::fs::OpenMode::Read).context("open", &segment.log.path)?;
        log.sync_data().context("sync", &segment.log.path)?;
    }
    let (last, sync_failed) = (file.last(), file.had_sync_failed());
    if last.is_none() && sync_failed {
        // It tells of that and nothing else: the log is not one of ours yet.
        return Ok(());
    }
    // Where ours cannot be read, the data root may know where the log starts.
    let hinted = || RootFacts::of(&*place.fs, &place.dir, partition_of(&place.dir).as_ref()).log_start;
    let log_start = last.map(|last| last.log_start).or_else(hinted).unwrap_or(Offset::ZERO);
    // After a failed sync the one above may have written nothing, which the next opening sees to.
    let state = LogState {
        clean: !sync_failed,
        sync_failed,
        log_start: log_start.min(end),
        recovery_point: end,
        end,
        topic_id: last.map_or(TopicId::ZERO, |last| last.topic_id),
        mark: None,
    };
    file.record(place, state)
}

pub(crate) fn name_of(path: &Path) -> Option<SegmentFileName> {
    path.file_name().and_then(|name| name.to_str()).and_then(SegmentFileName::parse)
}

/// Lowers the lines of a data root's checkpoints that lie past the end of a log.
pub(crate) fn lower_checkpoints(fs: &dyn Fs, dir: &Path, end: Offset) -> Result<(), InspectError> {
    let Some((root, name)) = root_of(fs, dir).zip(partition_of(dir)) else { return Ok(()) };
    for file in CHECKPOINT_FILES.into_iter().filter(|file| *file != LOG_STARTS_FILE) {
        let path = root.join(file);
        let mut offsets = match checkpoint::read_offsets(fs, &path) {
            // A broker takes no line from it.
            Err(CheckpointError::Malformed { .. }) => continue,
            read => read?,
        };
        if let Some(offset) = offsets.get_mut(&name).filter(|offset| **offset > end) {
            *offset = end;
            checkpoint::write_offsets(fs, &path, &offsets)?;
        }
    }
    Ok(())
}
