//! Repairing what [`crate::inspect`] found: a plan first, then its execution.
//!
//! Nothing of value is deleted. Bytes that are no batch are cut out of their segment and put into a file beside it,
//! `<segment>.log.damaged-<position>`; what lies behind them moves up, so that Kafka, which stops at the first such byte,
//! can go on: gaps in the offsets are legal, as compaction makes them. A field outside of the checksum that only one
//! value fits gets that value. Indexes, epochs and snapshots are made anew from the batches, checkpoints of a data root from
//! what is left of them and from its partitions; what was in their files stays in `<file>.damaged-<number>`. Whatever was
//! written is synced, and each file is replaced in one step, so that a crash leaves a directory that can be repaired again.

mod apply;
mod copy;
mod data;
mod kept;
mod lock;
mod plan;
mod rebuild;
mod root;
mod truncate;
mod unfinished;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::LogOptions;
use crate::checkpoint::CheckpointError;
use crate::fs::Fs;
use crate::inspect::InspectError;
use crate::io::IoError;
use crate::lock::LockError;
use crate::names::SegmentFileName;
use crate::open_files::OpenFiles;
use crate::segment::Place;

pub use copy::{CopiedDir, CopyDirError, copy_dir, copy_root};
pub use lock::{RepairEvent, RepairLock, RootRepair};
pub use plan::{RepairAction, RepairPlan};
pub use root::RootRepairPlan;
pub use truncate::{CutError, TruncatePlan, truncate};

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
    /// A compaction was interrupted in there, so that one segment cannot be repaired by itself.
    #[error("{} holds an interrupted compaction, which is finished when the whole directory is repaired", .0.display())]
    Unfinished(PathBuf),
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

impl From<CheckpointError> for RepairError {
    fn from(error: CheckpointError) -> Self {
        Self::Inspect(error.into())
    }
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

pub(crate) fn name_of(path: &Path) -> Option<SegmentFileName> {
    path.file_name().and_then(|name| name.to_str()).and_then(SegmentFileName::parse)
}
