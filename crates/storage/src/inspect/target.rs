//! What a path is, and who has it open.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{CheckpointError, parent_of};
use crate::data_dir::{self, RootFiles};
use crate::fs::{FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::lock::{Holder, LOCK_FILE};
use crate::metadata_files::MetadataFileError;
use crate::names::{PartitionDirName, SegmentFileName};
use crate::root_checkpoints::RootCheckpoints;

/// Why something could not be looked at. Damage is no such reason: it is what is to be found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The path is neither a data root, nor a partition's directory, nor a file of a segment.
    #[error("{} is neither a data directory, nor a partition's directory, nor a file of a segment", .0.display())]
    Unknown(PathBuf),
}

impl From<CheckpointError> for InspectError {
    fn from(error: CheckpointError) -> Self {
        match error {
            CheckpointError::Io(error) => Self::Io(error),
            malformed @ CheckpointError::Malformed { .. } => Self::Io(invalid(&malformed)),
        }
    }
}

impl From<MetadataFileError> for InspectError {
    fn from(error: MetadataFileError) -> Self {
        match error {
            MetadataFileError::Io(error) => Self::Io(error),
            malformed @ MetadataFileError::Malformed { .. } => Self::Io(invalid(&malformed)),
        }
    }
}

fn invalid(error: &dyn std::error::Error) -> IoError {
    let source = io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    IoError { verb: "read", path: PathBuf::new(), source }
}

/// What there is to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A broker's directory of partitions.
    Root {
        /// The directory.
        dir: PathBuf,
        /// The partitions in it, sorted by name; not those that are set aside.
        partitions: Vec<PathBuf>,
    },
    /// One partition's directory.
    Partition(PathBuf),
    /// One file of a segment.
    File(PathBuf, SegmentFileName),
}

impl Target {
    /// Tells what `path` is.
    ///
    /// # Errors
    /// [`InspectError::Unknown`] if it is none of these; else what the file system answers.
    pub fn of(fs: &dyn Fs, path: &Path) -> Result<Self, InspectError> {
        let unknown = || InspectError::Unknown(path.to_owned());
        if fs.metadata(path).context("look at", path)?.kind == FileKind::File {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(SegmentFileName::parse);
            return name.map(|name| Self::File(path.to_owned(), name)).ok_or_else(unknown);
        }
        let entries = fs.read_dir(path).context("list", path)?;
        if entries.iter().any(|entry| entry.kind == FileKind::File && SegmentFileName::parse(&entry.name).is_some()) {
            return Ok(Self::Partition(path.to_owned()));
        }
        let mut names: Vec<_> = entries
            .iter()
            .filter(|entry| entry.kind == FileKind::Directory && data_dir::is_live_partition(&entry.name))
            .filter_map(|entry| PartitionDirName::parse(&entry.name))
            .map(|name| name.topic_partition)
            .collect();
        names.sort_unstable();
        let is_root = entries.iter().any(|entry| entry.kind == FileKind::File && RootFiles::is_one(&entry.name));
        if !names.is_empty() || is_root {
            let partitions = names.iter().map(|name| path.join(name.to_string())).collect();
            return Ok(Self::Root { dir: path.to_owned(), partitions });
        }
        // A partition that was made and not written to yet.
        let name = path.file_name().and_then(|name| name.to_str()).and_then(PartitionDirName::parse);
        name.map(|_| Self::Partition(path.to_owned())).ok_or_else(unknown)
    }
}

/// The data root that a partition's directory lies in, if what is around it looks like one.
pub(crate) fn root_of(fs: &dyn Fs, partition_dir: &Path) -> Option<PathBuf> {
    partition_dir.file_name().and_then(|name| name.to_str()).and_then(PartitionDirName::parse)?;
    let root = parent_of(partition_dir);
    // A broker that has just begun to make a root has made its lock first.
    let mut names = RootFiles::NAMES.iter().chain([&LOCK_FILE]);
    names.any(|name| fs.metadata(&root.join(name)).is_ok()).then(|| root.to_owned())
}

/// What the data root around a partition's directory says of the partition; nothing if there is none.
pub(crate) fn checkpoints_around(fs: &dyn Fs, partition_dir: &Path) -> Result<RootCheckpoints, IoError> {
    match root_of(fs, partition_dir) {
        Some(root) => RootCheckpoints::read_of(fs, &root, partition_dir),
        None => Ok(RootCheckpoints::default()),
    }
}

/// Who has a data root or a partition's directory open: a broker of ours or Kafka's, or a log that is open by itself.
/// The look changes nothing, so it may be outdated the moment it is told.
///
/// # Errors
/// What the file system answers about the lock files.
pub fn in_use_by(fs: &dyn Fs, dir: &Path) -> Result<Option<Holder>, IoError> {
    let own = dir.join(LOCK_FILE);
    if let Some(holder) = fs.lock_holder(&own).context("look at", &own)? {
        return Ok(Some(holder));
    }
    let Some(root) = root_of(fs, dir) else { return Ok(None) };
    let above = root.join(LOCK_FILE);
    fs.lock_holder(&above).context("look at", &above)
}
