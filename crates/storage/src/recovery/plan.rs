//! What is to be changed on the disk once a log was examined.

use std::sync::Arc;

use super::report::{PutAside, RecoveryReport, Repaired, RepairedField};
use crate::Offset;
use crate::segment::Segment;
use crate::survey::{Fix, Sound, Stretch};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Producer snapshots that cannot be used.
    pub(super) unusable_snapshots: Vec<Offset>,
    /// Segments whose indexes were missing and are in memory now.
    pub(super) unindexed: Vec<Arc<Segment>>,
    /// Snapshots of the producers that are missing at the bases of segments.
    pub(super) snapshots: Vec<(Offset, Vec<u8>)>,
    /// A log that was closed well has no snapshot: what all batches told is to be written.
    pub(super) write_producers: bool,
    /// The file of the aborted transactions of the last segment is wrong; the entries are in memory.
    pub(super) write_active_transactions: bool,
    /// What is to be kept of that which goes.
    pub(super) aside: Vec<Aside>,
    /// Segments that go, oldest first.
    pub(super) removed: Vec<Arc<Segment>>,
    /// Segments whose files are longer than what of them stays: the last one, and those that zeros were left behind.
    pub(super) cuts: Vec<Arc<Segment>>,
    /// The one segment there will be is to be made.
    pub(super) creates: bool,
    /// Header fields to be put right.
    pub(super) repairs: Vec<Repair>,
    /// Segments from this base on may be readable and not on the disk.
    pub(super) rewrite_from: Option<Offset>,
    /// Segments from this one on were read.
    pub(super) scanned_from: Option<usize>,
}

impl Plan {
    /// Whether carrying it out writes or removes snapshots of the producers.
    pub(super) fn changes_snapshots(&self) -> bool {
        let Self { unusable_snapshots, removed, snapshots, write_producers, .. } = self;
        !unusable_snapshots.is_empty() || !removed.is_empty() || !snapshots.is_empty() || *write_producers
    }
}

/// Intact batches behind damage, in what is to be cut off.
#[derive(Debug)]
pub(super) struct Aside {
    pub(super) segment: Arc<Segment>,
    pub(super) found: PutAside,
}

/// A header that is to be put right.
#[derive(Debug)]
pub(super) struct Repair {
    pub(super) base: Offset,
    pub(super) batch: Sound,
}

impl Repair {
    /// Reports the repair as made.
    pub(super) fn made(&self, segment: &Segment, report: &mut RecoveryReport) {
        self.report(segment, report, true);
    }

    /// The file stays as it is. Where the field tells what a reader will find there, the batch is damage to readers.
    pub(super) fn leave(&self, segments: &[Arc<Segment>], report: &mut RecoveryReport) {
        let Some(segment) = segments.iter().find(|segment| segment.base() == self.base) else { return };
        self.report(segment, report, false);
        let header = &self.batch.header;
        for fix in self.batch.fixes.iter().filter(|fix| fix.field != RepairedField::LeaderEpoch) {
            let damaged = segment.damage(Stretch {
                position: self.batch.position,
                bytes: header.total_bytes() as u64,
                offsets: header.base_offset()..header.next_offset(),
                what: fix.damage(),
            });
            segment.note_damage(damaged);
        }
    }

    fn report(&self, segment: &Segment, report: &mut RecoveryReport, in_place: bool) {
        for Fix { field, was, is } in &self.batch.fixes {
            let (segment, position) = (segment.path(), self.batch.position);
            report.repaired.push(Repaired { segment, position, field: *field, was: *was, is: *is, in_place });
        }
    }
}
