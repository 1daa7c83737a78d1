//! Cutting a stopped log off at an offset.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{FlushError, OpenError, TruncateError};
use crate::fs::{Fs, OpenMode};
use crate::inspect::{PartitionSummary, Piece, SegmentWalk};
use crate::io::IoContext;
use crate::{Log, LogOptions, Offset, RecoveryReport, Truncated};

use super::RepairError;
use super::apply::checkpoints_to_lower;
use super::copy::keeping_all;

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
    let mut checkpoints = checkpoints_to_lower(&**fs, dir).map_err(RepairError::from)?;
    let summary = PartitionSummary::in_root(&**fs, dir, &checkpoints).map_err(RepairError::from)?;
    let hints = keeping_all(summary.root.hints(), summary.end);
    let (mut log, report) = Log::open_with(fs.clone(), dir, LogOptions::default(), hints)?;
    let truncated = log.truncate_to(to)?;
    let closed = log.close()?;
    checkpoints.lower(dir, closed.end);
    checkpoints.write(&**fs).map_err(RepairError::from)?;
    Ok((truncated, report))
}
