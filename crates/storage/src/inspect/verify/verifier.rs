//! The pass over the batches of a partition: what is known at each point of it, and what is told.

use std::path::Path;

use crate::Offset;
use crate::fs::Fs;
use crate::producers::{MAX_PRODUCERS, ProducerTable};

use super::super::fault::{Fault, FaultKind, Severity};
use super::super::summary::{PartitionSummary, Stop};
use super::super::target::InspectError;
use super::epochs::EpochCheck;
use super::transactions::OpenTransactions;
use super::trust::Trust;
use super::{Verified, VerifyEvent, snapshots};

/// One verification of one partition.
pub(super) struct Verifier<'v> {
    pub(super) fs: &'v dyn Fs,
    pub(super) tell: &'v mut dyn FnMut(VerifyEvent),
    pub(super) summary: &'v PartitionSummary,
    pub(super) trust: Trust,
    pub(super) verified: Verified,
    pub(super) unreported: u64,
    /// Where the next segment should begin at the earliest.
    pub(super) expected: Offset,
    pub(super) epochs: EpochCheck,
    pub(super) producers: ProducerTable,
    pub(super) transactions: OpenTransactions,
    /// Whether the batches read so far tell everything of producers and transactions: none are missing before them.
    pub(super) knows_all: bool,
    /// Only one segment is looked at.
    pub(super) is_alone: bool,
    pub(super) next_snapshot: usize,
    /// The last segment ends in bytes that are no batch.
    pub(super) ends_damaged: bool,
}

impl<'v> Verifier<'v> {
    pub(super) fn new(
        fs: &'v dyn Fs,
        summary: &'v PartitionSummary,
        tell: &'v mut dyn FnMut(VerifyEvent),
    ) -> Result<Self, InspectError> {
        let dir = &summary.files.dir;
        let first = summary.files.segments.first().map_or(Offset::ZERO, |segment| segment.base);
        let mut producers = ProducerTable::new(MAX_PRODUCERS);
        let mut knows_all = first == Offset::ZERO;
        if let Some((_, facts)) = summary.files.snapshots.iter().find(|(offset, _)| *offset == first)
            && let Some(Ok(table)) = snapshots::read(fs, facts, MAX_PRODUCERS)?
            && table.is_below(first)
        {
            (producers, knows_all) = (table, true);
        }
        Ok(Self {
            fs,
            tell,
            summary,
            trust: Trust::of(fs, dir, summary)?,
            verified: Verified::default(),
            unreported: 0,
            expected: first,
            epochs: EpochCheck::load(fs, dir, summary.files.epochs.is_some(), summary.log_start)?,
            producers,
            transactions: OpenTransactions::default(),
            knows_all,
            is_alone: false,
            next_snapshot: 0,
            ends_damaged: false,
        })
    }

    /// What depends on other segments is not checked.
    pub(super) fn look_at_one_segment(&mut self) {
        (self.knows_all, self.is_alone) = (false, true);
    }

    /// Tells of something in a file that a running broker does not change any more.
    pub(super) fn found(&mut self, fault: Fault) {
        match fault.severity() {
            Severity::Note => self.verified.notes += 1,
            Severity::Error | Severity::Loss => self.verified.faults += 1,
        }
        (self.tell)(VerifyEvent::Found(fault));
    }

    /// Tells of something in a file that a running broker changes: what is not finished is no fault.
    pub(super) fn found_in_motion(&mut self, mut fault: Fault) {
        if self.summary.in_use_by.is_some() && fault.severity() != Severity::Note {
            fault.what = format!("being written: {}", fault.what);
            fault.kind = FaultKind::InUse;
        }
        self.found(fault);
    }

    /// What can be told once all batches were read.
    pub(super) fn finish(&mut self, dir: &Path) -> Result<(), InspectError> {
        let end = self.expected;
        // Where a truncation may have been interrupted, they may be what is left of it.
        if self.summary.stop == Stop::Clean && self.summary.in_use_by.is_none() {
            self.missing_segments(end..Offset::MAX, end);
        }
        self.snapshots_up_to(end)?;
        let files = &self.summary.files;
        for (offset, facts) in files.snapshots.iter().skip(self.next_snapshot) {
            let what = format!("it covers offsets up to {offset}, the log ends at {end}");
            self.found_in_motion(Fault::new(FaultKind::SnapshotContent, &facts.path, what));
        }
        let may_have_none = files.segments.len() < 2 && self.summary.stop != Stop::Clean;
        if files.snapshots.is_empty() && !self.producers.is_empty() && !may_have_none {
            let what = format!("there is none, and {} producers wrote to the log", self.producers.len());
            self.found_in_motion(Fault::new(FaultKind::SnapshotsMissing, dir, what));
        }
        // Without a clean stop the checkpoint need not know what was appended last.
        let settled = match self.summary.stop {
            Stop::Clean => end,
            Stop::Unclean | Stop::Unknown => self.summary.recovery_point.unwrap_or(end),
        };
        let epochs = std::mem::replace(&mut self.epochs, EpochCheck::none(dir));
        for fault in epochs.finish(end, settled) {
            if fault.kind == FaultKind::LeaderEpoch { self.found(fault) } else { self.found_in_motion(fault) }
        }
        self.state(dir, end)?;
        self.root_offsets(end);
        Ok(())
    }
}
