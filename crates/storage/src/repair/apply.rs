//! Doing what a plan says, in an order in which a crash loses nothing.

use std::path::Path;
use std::sync::Arc;

use crate::checkpoint::{self, CheckpointError};
use crate::fs::{Fs, OpenMode};
use crate::inspect::{PartitionFiles, RootCheckpoints, root_of};
use crate::io::{IoContext, IoError};
use crate::log::{EPOCHS_FILE, write_epochs};
use crate::segment::Place;
use crate::state_file::{LogState, STATE_FILE, StateFile};
use crate::{Offset, TopicId};

use super::{RepairAction, RepairError, RepairPlan, kept, place};

impl RepairPlan {
    /// Does what was planned. The caller holds the [lock](super::RepairLock).
    ///
    /// # Errors
    /// At the first file operation that fails. The repair can be planned and tried again.
    pub fn apply(&self, fs: &Arc<dyn Fs>, read: &mut dyn FnMut(u64)) -> Result<(), RepairError> {
        let mut checkpoints = checkpoints_to_lower(&**fs, &self.dir)?;
        self.apply_in_root(fs, &mut checkpoints, read)?;
        write_lowered(&**fs, &mut checkpoints)
    }

    /// As [`RepairPlan::apply`], but the checkpoints of the data root are left to be written.
    pub(super) fn apply_in_root(
        &self,
        fs: &Arc<dyn Fs>,
        checkpoints: &mut RootCheckpoints,
        read: &mut dyn FnMut(u64),
    ) -> Result<(), RepairError> {
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
        let end = self.rebuild.run(&place, checkpoints, read)?;
        place.sync_dir()?;
        if let Some(base) = self.segment {
            let bases = PartitionFiles::list(&**fs, &self.dir)?.segments.into_iter().map(|segment| segment.base);
            let next = bases.into_iter().find(|other| *other > base);
            record_segment(&place, base, next, end)?;
            if next.is_some() {
                return Ok(());
            }
            forget_epochs(&place, end)?;
        } else {
            record_state(&place, end, checkpoints)?;
        }
        if self.lowers_checkpoints() {
            checkpoints.lower(&self.dir, end);
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

/// All lines of the checkpoints of the data root around a partition's directory: those of other partitions are written
/// with its own.
pub(super) fn checkpoints_to_lower(fs: &dyn Fs, dir: &Path) -> Result<RootCheckpoints, IoError> {
    Ok(root_of(fs, dir).map(|root| RootCheckpoints::read(fs, &root)).transpose()?.unwrap_or_default())
}

/// Writes the checkpoints whose lines were lowered, with what was in them kept.
pub(super) fn write_lowered(fs: &dyn Fs, checkpoints: &mut RootCheckpoints) -> Result<(), RepairError> {
    for path in checkpoints.changed() {
        kept::keep(fs, &path)?;
    }
    Ok(checkpoints.write(fs)?)
}

/// The state file of ours, if there is one, goes along: everything is synced by now, and the log ends at `end`. Otherwise
/// the next open would take the holes for lost tails.
fn record_state(place: &Place, end: Offset, checkpoints: &RootCheckpoints) -> Result<(), IoError> {
    let file = StateFile::load(place)?;
    let path = place.dir.join(STATE_FILE);
    if place.fs.metadata(&path).is_err() {
        return Ok(());
    }
    sync_segments(place, Offset::MAX)?;
    let (last, sync_failed) = (file.last(), file.had_sync_failed());
    if last.is_none() && sync_failed {
        // It tells of that and nothing else: the log is not one of ours yet.
        return Ok(());
    }
    // Where ours cannot be read, the data root may know where the log starts.
    let hinted = || checkpoints.facts(&place.dir).log_start;
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

/// After the repair of one segment, followed by the one at `next`: all up to its end is synced, so that the next open does
/// not take the holes in it for lost tails. What lies behind is as it was.
fn record_segment(place: &Place, base: Offset, next: Option<Offset>, end: Offset) -> Result<(), IoError> {
    let file = StateFile::load(place)?;
    let Some(last) = file.last() else { return Ok(()) };
    sync_segments(place, base)?;
    let state = match next {
        Some(next) => LogState {
            recovery_point: last.recovery_point.max(next),
            // In this segment its position is another now, and below there is nothing left that it would tell.
            mark: last.mark.filter(|mark| mark.segment_base > base),
            ..last
        },
        None => LogState { log_start: last.log_start.min(end), recovery_point: end, end, mark: None, ..last },
    };
    file.record(place, state)
}

/// Takes the epochs out that begin past the end of the log. A checkpoint that is damaged is left as it is.
fn forget_epochs(place: &Place, end: Offset) -> Result<(), RepairError> {
    let path = place.dir.join(EPOCHS_FILE);
    let entries = match checkpoint::read_epochs(&*place.fs, &path) {
        Err(CheckpointError::Malformed { .. }) => return Ok(()),
        entries => entries?,
    };
    let left: Vec<_> = entries.iter().copied().filter(|(_, start)| *start <= end).collect();
    if left.len() < entries.len() {
        kept::keep(&*place.fs, &path)?;
        write_epochs(place, &left)?;
    }
    Ok(())
}

/// Syncs the data files of the segments up to the one with this base.
fn sync_segments(place: &Place, up_to: Offset) -> Result<(), IoError> {
    let files = PartitionFiles::list(&*place.fs, &place.dir)?;
    for segment in files.segments.iter().filter(|segment| segment.base <= up_to) {
        let log = place.fs.open(&segment.log.path, OpenMode::Read).context("open", &segment.log.path)?;
        log.sync_data().context("sync", &segment.log.path)?;
    }
    Ok(())
}
