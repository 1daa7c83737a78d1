//! Cutting a stopped log off at an offset, and copying one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{parent_of, temporary_path};
use crate::data_dir::OpenHints;
use crate::error::{FlushError, OpenError, TruncateError};
use crate::fs::{FileKind, Fs, OpenMode};
use crate::inspect::{PartitionSummary, Piece, RootFacts, SegmentWalk, Stop, in_use_by, partition_of};
use crate::io::{IoContext, IoError, copy_bytes};
use crate::lock::{Holder, LOCK_FILE};
use crate::{Log, LogOptions, Offset, RecoveryReport, Truncated};

use super::{RepairError, lower_checkpoints};

/// What cutting a log off at an offset takes away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TruncatePlan {
    /// The end of the log after the cut: where the first batch that goes begins, which may be below what was asked for.
    pub to: Offset,
    /// The end of the log before.
    pub from: Offset,
    /// Batches that go. One in which the offset lies goes as a whole.
    pub batches: u64,
    /// Bytes of batches that go.
    pub bytes: u64,
    /// Segments that go as a whole.
    pub segments: Vec<PathBuf>,
}

impl TruncatePlan {
    /// Looks what would go. Nothing is changed.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn of(fs: &dyn Fs, dir: &Path, to: Offset) -> Result<Self, RepairError> {
        let summary = PartitionSummary::of(fs, dir)?;
        let mut plan = Self { to, from: summary.end, ..Self::default() };
        for segment in summary.segments.iter().filter(|segment| segment.end > to) {
            let path = &segment.files.log.path;
            if segment.files.base >= to {
                plan.segments.push(path.clone());
            }
            let file = fs.open(path, OpenMode::Read).context("open", path)?;
            let mut walk = SegmentWalk::new(&*file, segment.files.base, segment.files.log.bytes, None);
            loop {
                match walk.next_piece().context("read", path)? {
                    Piece::Batch { batch, .. } if batch.last_offset() >= to => {
                        plan.to = plan.to.min(batch.base_offset());
                        plan.batches += 1;
                        plan.bytes += batch.total_bytes() as u64;
                    }
                    Piece::Batch { .. } => {}
                    Piece::Damaged(damaged) if damaged.offsets.end > to => plan.bytes += damaged.bytes,
                    Piece::Damaged(_) => {}
                    Piece::Zeros { .. } | Piece::End => break,
                }
            }
        }
        Ok(plan)
    }
}

/// Why a stopped log could not be cut off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CutError {
    /// It could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It could not be cut.
    #[error(transparent)]
    Truncate(#[from] TruncateError),
    /// It could not be closed.
    #[error(transparent)]
    Close(#[from] FlushError),
    /// Its data root could not be looked at or written.
    #[error(transparent)]
    Repair(#[from] RepairError),
}

/// Cuts a log off at `to` as a replica does: opens it, which recovers it if it was not closed well, truncates and closes
/// it, and lowers the checkpoints of the data root. The caller holds the [lock](super::RepairLock).
///
/// # Errors
/// If the log cannot be opened, cut or closed. What was cut by then stays cut.
pub fn truncate(fs: &Arc<dyn Fs>, dir: &Path, to: Offset) -> Result<(Truncated, RecoveryReport), CutError> {
    let root = RootFacts::of(&**fs, dir, partition_of(dir).as_ref());
    let summary = PartitionSummary::of(&**fs, dir).map_err(RepairError::from)?;
    let hints = OpenHints {
        clean: root.dir.as_ref().map(|_| summary.stop == Stop::Clean),
        recovery_point: root.recovery_point,
        log_start: root.log_start,
        ..OpenHints::default()
    };
    let (mut log, report) = Log::open_with(fs.clone(), dir, LogOptions::default(), hints)?;
    let truncated = log.truncate_to(to)?;
    let closed = log.close()?;
    lower_checkpoints(&**fs, dir, closed.end).map_err(RepairError::from)?;
    Ok((truncated, report))
}

/// Why a directory could not be copied. Nothing is left of the copy then, unless removing it failed as well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyDirError {
    /// Somebody has it open.
    #[error("{} is in use by {holder}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// There is something where the copy should be.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// A file changed while it was copied.
    #[error("{} changed while it was copied", .0.display())]
    Changed(PathBuf),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Copies the directory of a stopped log as it is, byte for byte and durably, and returns how many files and bytes that
/// were. Nothing is written to the original, so that it may be on read-only storage.
///
/// # Errors
/// See [`CopyDirError`].
pub fn copy_dir(fs: &dyn Fs, from: &Path, to: &Path, read: &mut dyn FnMut(u64)) -> Result<(u64, u64), CopyDirError> {
    match fs.metadata(to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("look at", to)?,
        Ok(_) => return Err(CopyDirError::Exists(to.to_owned())),
    }
    let temporary = temporary_path(to);
    fs.create_dir(&temporary).context("create directory", &temporary)?;
    let copied = copy_files(fs, from, &temporary, read).and_then(|copied| {
        fs.rename(&temporary, to).context("rename to its final name", &temporary)?;
        let parent = parent_of(to);
        fs.sync_dir(parent).context("sync directory", parent)?;
        Ok(copied)
    });
    if copied.is_err() {
        // The first error is the one to tell.
        for entry in fs.read_dir(&temporary).unwrap_or_default() {
            let _ = fs.remove_file(&temporary.join(entry.name));
        }
        let _ = fs.remove_dir(&temporary);
    }
    copied
}

fn copy_files(fs: &dyn Fs, from: &Path, to: &Path, read: &mut dyn FnMut(u64)) -> Result<(u64, u64), CopyDirError> {
    let unused = || match in_use_by(fs, from)? {
        Some(holder) => Err(CopyDirError::InUse { dir: from.to_owned(), holder }),
        None => Ok(()),
    };
    unused()?;
    let (mut files, mut bytes) = (0, 0);
    for entry in fs.read_dir(from).context("list", from)? {
        if entry.kind != FileKind::File || entry.name == LOCK_FILE {
            continue;
        }
        let (source, target) = (from.join(&entry.name), to.join(&entry.name));
        let original = fs.open(&source, OpenMode::Read).context("open", &source)?;
        let before = original.metadata().context("look at", &source)?;
        let copy = fs.open(&target, OpenMode::CreateNew).context("create", &target)?;
        copy_bytes(&*original, &*copy, before.len).context("copy", &source)?;
        copy.sync_data().context("sync", &target)?;
        if fs.metadata(&source).context("look at", &source)? != before {
            return Err(CopyDirError::Changed(source));
        }
        files += 1;
        bytes += before.len;
        read(before.len);
    }
    unused()?;
    fs.sync_dir(to).context("sync directory", to)?;
    Ok((files, bytes))
}
