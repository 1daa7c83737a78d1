//! What the checkpoints of a data root say of its partitions: each file is read once, for however many of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{CheckpointError, parent_of, read_offsets_where, write_offsets};
use crate::data_dir::{
    CHECKPOINT_FILES, CLEAN_SHUTDOWN_FILE, CLEANER_OFFSETS_FILE, HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, OpenHints,
    RECOVERY_POINTS_FILE, exists,
};
use crate::fs::Fs;
use crate::io::IoError;
use crate::names::{PartitionDirName, PartitionDirRole};
use crate::{Offset, TopicPartition};

type Lines = BTreeMap<TopicPartition, Offset>;

/// The lines of a data root's checkpoints, and whether the root was closed well. A checkpoint that is damaged has no lines: a
/// broker takes none from it.
#[derive(Clone, Debug, Default)]
pub struct RootCheckpoints {
    dir: Option<PathBuf>,
    clean: bool,
    lines: BTreeMap<&'static str, Lines>,
    /// The files whose lines are others here than on the disk.
    changed: BTreeSet<&'static str>,
}

/// What the files of a data root say of one partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RootFacts {
    pub(crate) dir: Option<PathBuf>,
    pub(crate) clean: bool,
    pub(crate) log_start: Option<Offset>,
    pub(crate) recovery_point: Option<Offset>,
    pub(crate) high_watermark: Option<Offset>,
    pub(crate) cleaner_offset: Option<Offset>,
}

impl RootFacts {
    /// What the checkpoints say, each with its name.
    pub(crate) fn offsets(&self) -> [(&'static str, Option<Offset>); 4] {
        [
            (RECOVERY_POINTS_FILE, self.recovery_point),
            (LOG_STARTS_FILE, self.log_start),
            (HIGH_WATERMARKS_FILE, self.high_watermark),
            (CLEANER_OFFSETS_FILE, self.cleaner_offset),
        ]
    }

    /// For a log that is about to be opened.
    pub(crate) fn hints(&self) -> OpenHints {
        OpenHints {
            clean: self.dir.as_ref().map(|_| self.clean),
            recovery_point: self.recovery_point,
            log_start: self.log_start,
            cleaner_offset: self.cleaner_offset,
        }
    }
}

impl RootCheckpoints {
    /// Reads the checkpoints of a data root.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn read(fs: &dyn Fs, root: &Path) -> Result<Self, IoError> {
        Self::read_where(fs, root, |_| true)
    }

    /// As [`RootCheckpoints::read`], keeping the lines of one of its partitions only, by the name of its directory.
    pub(crate) fn read_of(fs: &dyn Fs, root: &Path, partition_dir: &Path) -> Result<Self, IoError> {
        let name = current(partition_dir);
        Self::read_where(fs, root, |found| Some(found) == name.as_ref())
    }

    fn read_where(fs: &dyn Fs, root: &Path, wanted: impl Fn(&TopicPartition) -> bool) -> Result<Self, IoError> {
        let mut lines = BTreeMap::new();
        for file in CHECKPOINT_FILES {
            let read = match read_offsets_where(fs, &root.join(file), &wanted) {
                Ok(read) => read,
                Err(CheckpointError::Io(error)) if error.kind() != io::ErrorKind::FileTooLarge => return Err(error),
                Err(_) => Lines::new(),
            };
            lines.insert(file, read);
        }
        let clean = exists(fs, &root.join(CLEAN_SHUTDOWN_FILE))?;
        Ok(Self { dir: Some(root.to_owned()), clean, lines, changed: BTreeSet::new() })
    }

    /// What they say of the log in a directory. Under another name than a partition's own it is not the log that they tell
    /// of, and nobody has closed it with the root; nor if it lies elsewhere.
    pub(crate) fn facts(&self, partition_dir: &Path) -> RootFacts {
        let is_here = self.dir.as_deref() == Some(parent_of(partition_dir));
        let Some(name) = current(partition_dir).filter(|_| is_here) else { return RootFacts::default() };
        let line = |file: &str| self.lines.get(file)?.get(&name).copied();
        RootFacts {
            dir: self.dir.clone(),
            clean: self.clean,
            log_start: line(LOG_STARTS_FILE),
            recovery_point: line(RECOVERY_POINTS_FILE),
            high_watermark: line(HIGH_WATERMARKS_FILE),
            cleaner_offset: line(CLEANER_OFFSETS_FILE),
        }
    }

    /// Lowers the lines that lie past the end of a log; not where it starts, since then nobody can tell which is wrong.
    pub(crate) fn lower(&mut self, partition_dir: &Path, end: Offset) {
        let is_here = self.dir.as_deref() == Some(parent_of(partition_dir));
        let Some(name) = current(partition_dir).filter(|_| is_here) else { return };
        for (file, lines) in self.lines.iter_mut().filter(|(file, _)| **file != LOG_STARTS_FILE) {
            if let Some(offset) = lines.get_mut(&name).filter(|offset| **offset > end) {
                *offset = end;
                self.changed.insert(file);
            }
        }
    }

    /// The files that [`RootCheckpoints::write`] writes.
    pub(crate) fn changed(&self) -> impl Iterator<Item = PathBuf> {
        self.dir.iter().flat_map(|dir| self.changed.iter().map(move |file| dir.join(file)))
    }

    /// Writes the files whose lines were lowered, durably. They were read whole.
    pub(crate) fn write(&mut self, fs: &dyn Fs) -> Result<(), CheckpointError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        while let Some(file) = self.changed.first().copied() {
            if let Some(lines) = self.lines.get(file) {
                write_offsets(fs, &dir.join(file), lines)?;
            }
            self.changed.remove(file);
        }
        Ok(())
    }
}

/// The partition whose own directory this is, by its name.
fn current(dir: &Path) -> Option<TopicPartition> {
    let name = dir.file_name()?.to_str().and_then(PartitionDirName::parse)?;
    (name.role == PartitionDirRole::Current).then_some(name.topic_partition)
}
