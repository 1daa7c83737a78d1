//! Keeping others out, and repairing until nothing is left to repair.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Offset;
use crate::fs::{DirLock, Fs};
use crate::inspect::{
    Fault, InspectError, RootCheckpoints, Terms, Verified, VerifyEvent, checkpoints_around, root_of, verify_file_on,
    verify_locked_root, verify_partition_on,
};
use crate::lock::{LockError, lock_directory};
use crate::names::{SegmentFile, SegmentFileName};

use super::apply::{checkpoints_to_lower, write_lowered};
use super::{RepairError, RepairPlan};

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

/// What is to be repaired in a partition's directory.
#[derive(Clone, Copy)]
enum Scope {
    All,
    Segment(Offset),
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
        self.repair_scope(fs, Scope::All, tell)
    }

    /// As [`RepairLock::repair`], of one segment with its indexes; all other files stay as they are, but for the checkpoints
    /// where the log ends earlier afterwards.
    ///
    /// # Errors
    /// As [`RepairPlan::of_segment`] and [`RepairPlan::apply`]; [`RepairError::Unsettled`] if there is no end to it.
    pub fn repair_segment(
        &self,
        fs: &Arc<dyn Fs>,
        base: Offset,
        tell: &mut dyn FnMut(RepairEvent<'_>),
    ) -> Result<Vec<Fault>, RepairError> {
        self.repair_scope(fs, Scope::Segment(base), tell)
    }

    fn repair_scope(
        &self,
        fs: &Arc<dyn Fs>,
        scope: Scope,
        tell: &mut dyn FnMut(RepairEvent<'_>),
    ) -> Result<Vec<Fault>, RepairError> {
        let mut checkpoints = checkpoints_to_lower(&**fs, &self.dir)?;
        let repaired = repair(fs, &self.dir, scope, &mut checkpoints, tell);
        // Also where a later round failed: the lines belong to what was done.
        let written = write_lowered(&**fs, &mut checkpoints);
        let left = repaired?;
        written?;
        Ok(left)
    }

    /// Verifies the directory, as [`verify_partition`](crate::inspect::verify_partition) does, which would take it for
    /// one that somebody is writing to.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn verify(&self, fs: &dyn Fs, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
        verify_partition_on(Terms::Locked, fs, &self.dir, &checkpoints_around(fs, &self.dir)?, tell)
    }

    /// Verifies one segment, as [`verify_file`](crate::inspect::verify_file) does.
    ///
    /// # Errors
    /// What the file system answers; [`InspectError::Unknown`] if there is no such segment.
    pub fn verify_segment(
        &self,
        fs: &dyn Fs,
        base: Offset,
        tell: &mut dyn FnMut(VerifyEvent),
    ) -> Result<Verified, InspectError> {
        let name = SegmentFileName::live(base, SegmentFile::Log);
        verify_file_on(Terms::Locked, fs, &self.dir.join(name.to_string()), name, tell)
    }

    /// Verifies the files of the data root that was locked, as [`verify_root`](crate::inspect::verify_root) does.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn verify_root(&self, fs: &dyn Fs, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
        verify_locked_root(fs, &self.dir, tell)
    }
}

/// The repair of all partitions of a data root, under one lock. The root's checkpoints are read once, and written once: what
/// was in them is kept once, however many partitions end earlier afterwards.
#[derive(Debug)]
pub struct RootRepair {
    lock: RepairLock,
    checkpoints: RootCheckpoints,
}

impl RootRepair {
    /// Begins it. The root's [own files](super::RootRepairPlan) are repaired before.
    ///
    /// # Errors
    /// If the checkpoints cannot be read.
    pub fn begin(fs: &dyn Fs, lock: RepairLock) -> Result<Self, RepairError> {
        let checkpoints = RootCheckpoints::read(fs, &lock.dir)?;
        Ok(Self { lock, checkpoints })
    }

    /// Repairs a partition, as [`RepairLock::repair`] does.
    ///
    /// # Errors
    /// As [`RepairLock::take`] and [`RepairLock::repair`].
    pub fn partition(
        &mut self,
        fs: &Arc<dyn Fs>,
        dir: &Path,
        tell: &mut dyn FnMut(RepairEvent<'_>),
    ) -> Result<Vec<Fault>, RepairError> {
        let _held = lock_directory(&**fs, dir)?;
        repair(fs, dir, Scope::All, &mut self.checkpoints, tell)
    }

    /// Verifies a partition.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn verify(&self, fs: &dyn Fs, dir: &Path, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
        verify_partition_on(Terms::Locked, fs, dir, &self.checkpoints, tell)
    }

    /// Writes the checkpoints, also after a partition whose repair failed.
    ///
    /// # Errors
    /// If they cannot be written. Lines past the ends of logs stay then.
    pub fn finish(mut self, fs: &dyn Fs) -> Result<(), RepairError> {
        let written = write_lowered(fs, &mut self.checkpoints);
        drop(self.lock);
        written
    }
}

fn repair(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    scope: Scope,
    checkpoints: &mut RootCheckpoints,
    tell: &mut dyn FnMut(RepairEvent<'_>),
) -> Result<Vec<Fault>, RepairError> {
    let mut rounds = 0;
    loop {
        let mut read = |bytes| tell(RepairEvent::Read(bytes));
        let plan = match scope {
            Scope::All => RepairPlan::in_root(&**fs, dir, checkpoints, &mut read)?,
            Scope::Segment(base) => RepairPlan::of_segment(&**fs, dir, base, &mut read)?,
        };
        let Some(action) = plan.actions.first() else { return Ok(plan.left) };
        if rounds == ROUNDS_MAX {
            let (file, position) = action.location();
            return Err(RepairError::Unsettled { file: file.to_owned(), position, rounds });
        }
        plan.apply_in_root(fs, checkpoints, &mut read)?;
        tell(RepairEvent::Done(&plan));
        rounds += 1;
    }
}
