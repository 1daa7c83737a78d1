//! What a data root tells of itself.

use std::path::{Path, PathBuf};

use crate::checkpoint::read_small_file;
use crate::data_dir::{CLEAN_SHUTDOWN_BYTES_MAX, CLEAN_SHUTDOWN_FILE, broker_epoch_in};
use crate::fs::{FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::lock::Holder;
use crate::metadata_files::{MetaProperties, read_meta_properties};
use crate::names::{PartitionDirName, PartitionDirRole};

use super::target::in_use_by;

/// A data root at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RootSummary {
    /// The directory.
    pub dir: PathBuf,
    /// Whose it is; `None` if that cannot be read.
    pub meta: Option<MetaProperties>,
    /// Whether the marker of a clean stop is there. It never is while a broker runs.
    pub clean: bool,
    /// The broker epoch in that marker.
    pub broker_epoch: Option<i64>,
    /// Directories of partitions that are on their way out or in, or were set aside.
    pub set_aside: Vec<PathBuf>,
    /// Who has it open.
    pub in_use_by: Option<Holder>,
}

impl RootSummary {
    /// Looks at a data root.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn of(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        let mut set_aside: Vec<_> = fs
            .read_dir(dir)
            .context("list", dir)?
            .into_iter()
            .filter(|entry| entry.kind == FileKind::Directory)
            .filter(|entry| {
                let name = PartitionDirName::parse(&entry.name);
                name.is_some_and(|name| name.role != PartitionDirRole::Current)
            })
            .map(|entry| dir.join(entry.name))
            .collect();
        set_aside.sort_unstable();
        let marker = dir.join(CLEAN_SHUTDOWN_FILE);
        let content = read_small_file(fs, &marker, CLEAN_SHUTDOWN_BYTES_MAX).ok().flatten().unwrap_or_default();
        Ok(Self {
            dir: dir.to_owned(),
            meta: read_meta_properties(fs, dir).ok().flatten(),
            clean: fs.metadata(&marker).is_ok(),
            broker_epoch: broker_epoch_in(&String::from_utf8_lossy(&content)),
            set_aside,
            in_use_by: in_use_by(fs, dir)?,
        })
    }
}
