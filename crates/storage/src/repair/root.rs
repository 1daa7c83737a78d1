//! The files of a data root: checkpoints that are damaged are made anew from what is left of them and from the partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::checkpoint::{CHECKPOINT_BYTES_MAX, read_small_file, write_offsets};
use crate::data_dir::{
    CHECKPOINT_FILES, CLEAN_SHUTDOWN_BYTES_MAX, CLEAN_SHUTDOWN_FILE, LOG_STARTS_FILE, RECOVERY_POINTS_FILE,
    broker_epoch_in, write_clean_marker,
};
use crate::fs::Fs;
use crate::inspect::{
    Fault, FaultKind, InspectError, PartitionSummary, RootCheckpoints, Severity, Stop, Target, VerifyEvent, Writer,
    verify_locked_root,
};
use crate::{Offset, TopicPartition};

use super::{RepairAction, RepairError, kept::keep};

/// What is wrong with the files of a data root itself, and what a repair does about it. Its partitions have
/// [plans](super::RepairPlan) of their own, which also lower what the checkpoints say of them.
#[derive(Clone, Debug)]
pub struct RootRepairPlan {
    dir: PathBuf,
    /// What is done, in order.
    pub actions: Vec<RepairAction>,
    /// What stays as it is.
    pub left: Vec<Fault>,
    checkpoints: BTreeMap<PathBuf, BTreeMap<TopicPartition, Offset>>,
    /// The broker's epoch for the marker of a clean stop.
    marker: Option<i64>,
}

/// What a partition tells that its root should know.
struct Known {
    /// The base of its first segment.
    first: Offset,
    end: Offset,
    recovery_point: Option<Offset>,
    log_start: Option<Offset>,
}

impl RootRepairPlan {
    /// Looks at a data root and decides. Nothing is changed.
    ///
    /// # Errors
    /// What the file system answers, and if it is no data root.
    pub fn of(fs: &dyn Fs, dir: &Path) -> Result<Self, RepairError> {
        let mut plan = Self {
            dir: dir.to_owned(),
            actions: Vec::new(),
            left: Vec::new(),
            checkpoints: BTreeMap::new(),
            marker: None,
        };
        let mut damaged = BTreeSet::new();
        verify_locked_root(fs, dir, &mut |event| {
            let VerifyEvent::Found(fault) = event else { return };
            match fault.kind {
                FaultKind::Checkpoint => drop(damaged.insert(fault.file)),
                FaultKind::CleanMarker => plan.marker = Some(-1),
                _ if fault.severity() == Severity::Note => {}
                _ => plan.left.push(fault),
            }
        })?;
        if !damaged.is_empty() {
            let known = known(fs, dir)?;
            for path in damaged {
                let lines = lines(fs, &path, &known)?;
                plan.actions.push(RepairAction::Rebuild(path.clone()));
                plan.checkpoints.insert(path, lines);
            }
        }
        if plan.marker.is_some() {
            let path = dir.join(CLEAN_SHUTDOWN_FILE);
            // Digits that are left of a number may be another.
            let content = read_small_file(fs, &path, CLEAN_SHUTDOWN_BYTES_MAX).ok().flatten().unwrap_or_default();
            let text = String::from_utf8_lossy(&content);
            plan.marker = text.trim_end().ends_with('}').then(|| broker_epoch_in(&text)).flatten().or(plan.marker);
            plan.actions.push(RepairAction::Rebuild(path));
        }
        Ok(plan)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    /// Does what was planned; what was in the files stays beside them. The caller holds the [lock](super::RepairLock) of the
    /// root.
    ///
    /// # Errors
    /// At the first file operation that fails. The repair can be planned and tried again.
    pub fn apply(&self, fs: &dyn Fs) -> Result<(), RepairError> {
        for (path, lines) in &self.checkpoints {
            keep(fs, path)?;
            write_offsets(fs, path, lines).map_err(InspectError::from)?;
        }
        if let Some(broker_epoch) = self.marker {
            keep(fs, &self.dir.join(CLEAN_SHUTDOWN_FILE))?;
            write_clean_marker(fs, &self.dir, broker_epoch)?;
        }
        Ok(())
    }
}

/// Writes all checkpoints of a root whose logs were closed well, and marks it as one that was stopped well.
pub(super) fn settle(fs: &dyn Fs, dir: &Path) -> Result<(), RepairError> {
    let known = known(fs, dir)?;
    for name in CHECKPOINT_FILES {
        let path = dir.join(name);
        write_offsets(fs, &path, &lines(fs, &path, &known)?).map_err(InspectError::from)?;
    }
    let content = read_small_file(fs, &dir.join(CLEAN_SHUTDOWN_FILE), CLEAN_SHUTDOWN_BYTES_MAX).ok().flatten();
    let broker_epoch = broker_epoch_in(&String::from_utf8_lossy(&content.unwrap_or_default())).unwrap_or(-1);
    Ok(write_clean_marker(fs, dir, broker_epoch)?)
}

fn known(fs: &dyn Fs, dir: &Path) -> Result<BTreeMap<TopicPartition, Known>, RepairError> {
    let Target::Root { partitions, .. } = Target::of(fs, dir)? else {
        return Err(InspectError::Unknown(dir.to_owned()).into());
    };
    let checkpoints = RootCheckpoints::read(fs, dir)?;
    let mut known = BTreeMap::new();
    for partition in partitions {
        let summary = PartitionSummary::in_root(fs, &partition, &checkpoints)?;
        let Some(name) = summary.topic_partition else { continue };
        let is_own = summary.writer == Writer::Highwater;
        let recovery_point = match summary.stop {
            Stop::Clean => Some(summary.end),
            Stop::Unclean | Stop::Unknown => summary.recovery_point.filter(|_| is_own),
        };
        let first = summary.files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        let log_start = is_own.then_some(summary.log_start);
        known.insert(name, Known { first, end: summary.end, recovery_point, log_start });
    }
    Ok(known)
}

/// The lines of a damaged checkpoint: those that are left of it and can be right, and what the partitions know better. A
/// partition without a line is one that its broker knows nothing of: it is read from its beginning, or asks its leader. What
/// was synced no line that is left tells: where the file is damaged, it may be another number, and records that a power
/// cut tore would count as good for it.
fn lines(
    fs: &dyn Fs,
    path: &Path,
    known: &BTreeMap<TopicPartition, Known>,
) -> Result<BTreeMap<TopicPartition, Offset>, RepairError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // Of one that is too large to be a checkpoint nothing is left.
    let text = match read_small_file(fs, path, CHECKPOINT_BYTES_MAX) {
        Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => Vec::new(),
        read => read?.unwrap_or_default(),
    };
    let text = String::from_utf8_lossy(&text);
    let mut lines: BTreeMap<TopicPartition, Offset> = text
        .split_inclusive('\n')
        .skip(2)
        // A number that was cut is another number.
        .filter_map(|line| line.strip_suffix('\n'))
        .filter_map(entry)
        .filter(|(name, offset)| known.get(name).is_some_and(|known| *offset <= known.end))
        .filter(|_| name != RECOVERY_POINTS_FILE)
        .collect();
    for (partition, known) in known {
        let better = match name {
            RECOVERY_POINTS_FILE => known.recovery_point,
            // Kafka writes a line only where the log does not begin with its first segment.
            LOG_STARTS_FILE => known.log_start.filter(|start| *start > known.first),
            _ => None,
        };
        lines.extend(better.map(|offset| (partition.clone(), offset)));
    }
    Ok(lines)
}

fn entry(line: &str) -> Option<(TopicPartition, Offset)> {
    let mut fields = line.split_whitespace();
    let topic = fields.next()?;
    let partition: i32 = fields.next()?.parse().ok()?;
    let offset: i64 = fields.next()?.parse().ok().filter(|offset| *offset >= 0)?;
    fields.next().is_none().then(|| (TopicPartition::new(topic, partition), Offset(offset)))
}
