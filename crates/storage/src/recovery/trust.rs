//! What is known to be synced, who says so, and whether the files bear it out.

use super::examine::Examined;
use crate::Offset;
use crate::batch::{BatchFault, HEADER_BYTES, MAGIC_END};
use crate::data_dir::OpenHints;
use crate::error::{DamageKind, OpenError};
use crate::io::{FileExt, IoContext};
use crate::scan::{Found, Walk};
use crate::segment::Segment;
use crate::state_file::{FlushMark, LogState};
use crate::survey::{Step, Stretch};

/// Up to where the batches were synced: damage below is rot, above it is a torn write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    /// The flush mark, if there is one and it fits: it tells the position too.
    pub(super) mark: Option<FlushMark>,
    /// All offsets below were synced.
    pub(super) offset: Offset,
    /// No newer mark can have been lost.
    pub(super) is_latest: bool,
    /// Nobody knows: all but the last segment is taken for synced.
    pub(super) is_guess: bool,
}

impl Trust {
    pub(super) fn new(mark: Option<FlushMark>, is_latest: bool, recovery_point: Offset, is_guess: bool) -> Self {
        // Where the recovery point says more, the mark's position is of no use.
        let mark = mark.filter(|mark| mark.offset >= recovery_point);
        Self { mark, is_latest, offset: mark.map_or(recovery_point, |mark| mark.offset), is_guess }
    }

    /// Whether this is a write that was torn, whatever the offset says: no mark tells how long the last file was.
    pub(super) fn is_torn_end(&self, step: &Step, len: u64) -> bool {
        self.mark.is_none()
            && match step {
                Step::Damage(Stretch { position, bytes, what, .. }) => {
                    position + bytes == len && matches!(what, DamageKind::Batch(BatchFault::Partial { .. }))
                }
                Step::Zeros(_) => true,
                Step::Batch(_) | Step::End => false,
            }
    }

    pub(super) fn mark_in(&self, segment: &Segment) -> Option<FlushMark> {
        self.mark.filter(|mark| mark.segment_base == segment.base())
    }
}

impl Examined {
    /// The base offset of the last segment.
    pub(super) fn last_base(&self) -> Option<Offset> {
        self.segments.last().map(|segment| segment.base())
    }

    /// Notes records that were synced and are not there any more: at the end, and before the first segment.
    pub(super) fn note_missing(&mut self, known: Option<LogState>, hints: OpenHints) {
        // Of the segments below the log start some may be left of those that were being removed.
        for missing in &mut self.report.missing {
            missing.start = missing.start.max(self.start);
        }
        self.report.missing.retain(|missing| missing.start < missing.end);
        let was_clean = hints.clean == Some(true);
        // A root that was closed well may have been so by another program, after us. It tells then where that one's log
        // began, if not at a segment, and where it ended.
        let start = known.and_then(|known| {
            let told = if was_clean { hints.log_start? } else { Offset::ZERO };
            Some(known.log_start.max(told))
        });
        let first = self.segments.first().map(|segment| segment.base());
        if let (Some(start), Some(first)) = (start, first)
            && !self.report.foreign_mark
            && start < first
        {
            self.report.missing.insert(0, start..first);
        }
        let ended_here = was_clean && hints.recovery_point.is_some_and(|point| point <= self.end);
        let synced = match known {
            Some(known) if !ended_here => known.synced(),
            Some(_) => return,
            None => hints.recovery_point.unwrap_or(self.end),
        };
        if self.end < synced {
            self.report.missing.push(self.end..synced);
        }
    }

    /// Whether the batches end where the flush mark says, or did before they were damaged. If not, another program wrote
    /// here.
    pub(super) fn mark_fits(&self, mark: &FlushMark, log_start: Offset) -> Result<bool, OpenError> {
        let Some(segment) = self.segments.iter().find(|segment| segment.base() == mark.segment_base) else {
            // A segment without batches gives way to another, and one below the log start goes.
            return Ok(mark.position == 0 || mark.offset <= log_start);
        };
        if segment.len() < mark.position {
            return Ok(false);
        }
        let Some(bytes) = mark.position.checked_sub(mark.batch_position).filter(|bytes| *bytes > 0) else {
            return Ok(true);
        };
        let kept = usize::try_from(bytes).unwrap_or(usize::MAX).min(HEADER_BYTES);
        let mut found = vec![0; kept];
        let file = segment.file()?;
        file.read_full_at(&mut found, mark.batch_position).context("read", &segment.path())?;
        let known = mark.header.get(..kept).unwrap_or_default();
        if found == known || found.get(MAGIC_END..) == known.get(MAGIC_END..) {
            return Ok(true);
        }
        let mut stands_there = Walk::small(&*file, mark.batch_position, mark.position);
        if let Found::Batch(_, batch) = stands_there.next_batch().context("read", &segment.path())?
            && batch.bytes().len() as u64 == bytes
            && batch.crc_matches()
        {
            return Ok(false);
        }
        // No batch as it stands: what is left of ours, or of another's? It is ours if what should end there does, or if
        // most of it is what it was.
        let mut behind = Walk::small(&*file, mark.position, segment.len());
        let ends_there = match behind.next_header().context("read", &segment.path())? {
            Found::Batch(_, next) => next.base_offset() == mark.offset,
            Found::End => true,
            Found::Bad(..) => false,
        };
        let same = found.iter().zip(known).filter(|(found, known)| found == known).count();
        Ok(ends_there || same * 2 >= kept)
    }
}
