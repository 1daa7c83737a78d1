//! Two replicas of one partition: up to where they are the same, and how they part.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use crate::batch::BatchHeader;
use crate::fs::{Fs, OpenMode};
use crate::io::{IoContext, IoError};
use crate::{LeaderEpoch, Offset};

use super::summary::{PartitionSummary, SegmentSummary};
use super::walk::{Piece, SegmentWalk};

/// Batches read from one replica before the other is looked at.
const AHEAD: usize = 1024;

/// How two replicas part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parting {
    /// The same offsets, other bytes.
    Content,
    /// The same bytes, appended by different leaders.
    Epoch,
    /// Batches that begin or end at other offsets.
    Boundaries,
    /// The first has damage there.
    DamageInFirst,
    /// The second has damage there.
    DamageInSecond,
}

/// What one replica has at the offset where they part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Side {
    /// The first offset it serves.
    pub start: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// The batch at the offset where they part, if it has one.
    pub batch: Option<BatchHeader>,
    /// Batches that the other has not, while both go on behind them: what compaction took from one only.
    pub only_here: u64,
}

/// Two replicas beside one another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Comparison {
    /// Where both begin to have records: the larger of the two starts.
    pub from: Offset,
    /// Up to here they are the same.
    pub same_until: Offset,
    /// The epoch of the last batch that is the same, [`LeaderEpoch::NONE`] if there is none.
    pub last_epoch: LeaderEpoch,
    /// How they part at [`Comparison::same_until`]. `None` if one only has more, or neither has.
    pub parting: Option<Parting>,
    /// The first replica.
    pub first: Side,
    /// The second.
    pub second: Side,
}

impl Comparison {
    /// Reads both replicas side by side.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn of(fs: &dyn Fs, first: &Path, second: &Path, read: &mut dyn FnMut(u64)) -> Result<Self, IoError> {
        let (first, second) = (PartitionSummary::of(fs, first)?, PartitionSummary::of(fs, second)?);
        let from = first.log_start.max(second.log_start);
        let side =
            |summary: &PartitionSummary| Side { start: summary.log_start, end: summary.end, batch: None, only_here: 0 };
        let mut comparison = Self {
            from,
            same_until: from,
            last_epoch: LeaderEpoch::NONE,
            parting: None,
            first: side(&first),
            second: side(&second),
        };
        let mut one = Cursor::new(fs, first.segments, from);
        let mut other = Cursor::new(fs, second.segments, from);
        loop {
            let (here, there) = (one.peek(read)?, other.peek(read)?);
            let (Some(here), Some(there)) = (here, there) else {
                comparison.first.batch = here.and_then(Met::batch);
                comparison.second.batch = there.and_then(Met::batch);
                break;
            };
            let parting = match (here, there) {
                (Met::Damage(_), _) => Some(Parting::DamageInFirst),
                (_, Met::Damage(_)) => Some(Parting::DamageInSecond),
                (Met::Batch(here), Met::Batch(there)) if here.last_offset() < there.base_offset() => {
                    comparison.first.only_here += 1;
                    one.pass();
                    continue;
                }
                (Met::Batch(here), Met::Batch(there)) if there.last_offset() < here.base_offset() => {
                    comparison.second.only_here += 1;
                    other.pass();
                    continue;
                }
                (Met::Batch(here), Met::Batch(there)) => compare(&here, &there),
            };
            if parting.is_some() {
                comparison.parting = parting;
                (comparison.first.batch, comparison.second.batch) = (here.batch(), there.batch());
                let at = |met: Met| met.offset();
                comparison.same_until = comparison.same_until.max(at(here).min(at(there)));
                return Ok(comparison);
            }
            if let Met::Batch(batch) = here {
                comparison.same_until = batch.next_offset();
                comparison.last_epoch = batch.leader_epoch();
            }
            one.pass();
            other.pass();
        }
        Ok(comparison)
    }

    /// Whether they are the same in all that both have.
    pub fn is_consistent(&self) -> bool {
        self.parting.is_none()
    }
}

fn compare(here: &BatchHeader, there: &BatchHeader) -> Option<Parting> {
    let bounds = |batch: &BatchHeader| (batch.base_offset(), batch.last_offset());
    if bounds(here) != bounds(there) {
        return Some(Parting::Boundaries);
    }
    // Compaction re-writes batches, and with them their checksums. Fewer records than offsets are its mark.
    let is_full = |batch: &BatchHeader| batch.record_count() > batch.last_offset_delta();
    if here.crc() != there.crc() && is_full(here) && is_full(there) {
        return Some(Parting::Content);
    }
    (here.leader_epoch() != there.leader_epoch()).then_some(Parting::Epoch)
}

#[derive(Clone, Copy)]
enum Met {
    Batch(BatchHeader),
    /// Damage in place of this offset.
    Damage(Offset),
}

impl Met {
    fn batch(self) -> Option<BatchHeader> {
        match self {
            Self::Batch(batch) => Some(batch),
            Self::Damage(_) => None,
        }
    }

    fn offset(self) -> Offset {
        match self {
            Self::Batch(batch) => batch.base_offset(),
            Self::Damage(offset) => offset,
        }
    }
}

/// Goes over the batches of one replica, a stretch at a time.
struct Cursor<'c> {
    fs: &'c dyn Fs,
    segments: VecDeque<SegmentSummary>,
    from: Offset,
    /// Where in the first segment the next stretch begins, and with which offset.
    next: Option<(u64, Offset)>,
    ahead: VecDeque<Met>,
}

impl<'c> Cursor<'c> {
    fn new(fs: &'c dyn Fs, segments: Vec<SegmentSummary>, from: Offset) -> Self {
        let segments = segments.into_iter().filter(|segment| segment.end > from).collect();
        Self { fs, segments, from, next: None, ahead: VecDeque::new() }
    }

    fn peek(&mut self, read: &mut dyn FnMut(u64)) -> Result<Option<Met>, IoError> {
        while self.ahead.is_empty() {
            let Some(segment) = self.segments.front() else { return Ok(None) };
            let (base, path) = (segment.files.base, &segment.files.log.path);
            let file: Arc<dyn crate::fs::File> = self.fs.open(path, OpenMode::Read).context("open", path)?;
            let (position, expected) = self.next.take().unwrap_or((0, base));
            let limit = self.segments.get(1).map(|next| next.files.base);
            let bytes = segment.files.log.bytes;
            let mut walk = SegmentWalk::from_position(&*file, base, bytes, limit, (position, expected));
            let mut at_end = false;
            while self.ahead.len() < AHEAD && !at_end {
                match walk.next_piece().context("read", path)? {
                    Piece::Batch { batch, .. } if batch.last_offset() >= self.from => {
                        self.ahead.push_back(Met::Batch(*batch.header()));
                    }
                    Piece::Batch { .. } => {}
                    Piece::Damaged(damaged) => self.ahead.push_back(Met::Damage(damaged.offsets.start)),
                    Piece::Zeros { .. } | Piece::End => at_end = true,
                }
            }
            read(walk.position() - position);
            if at_end {
                self.segments.pop_front();
            } else {
                self.next = Some((walk.position(), walk.expected()));
            }
        }
        Ok(self.ahead.front().copied())
    }

    fn pass(&mut self) {
        self.ahead.pop_front();
    }
}
