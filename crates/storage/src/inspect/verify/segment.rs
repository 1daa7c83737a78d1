//! One segment: its place among the others, its batches, and its indexes beside them.

use std::io;
use std::ops::Range;
use std::path::Path;

use crate::batch::{BatchFault, BatchView};
use crate::error::DamageKind;
use crate::fs::{Fs, OpenMode};
use crate::io::{IoContext, IoError};
use crate::names::{SegmentFile, SegmentFileName};
use crate::{Offset, RepairedField};

use super::super::fault::{Correction, Fault, FaultKind};
use super::super::files::{FileFacts, SegmentFiles};
use super::super::records::{RecordsFault, check_records};
use super::super::summary::Stop;
use super::super::target::InspectError;
use super::super::walk::{DamagedBytes, Piece, SegmentWalk};
use super::VerifyEvent;
use super::indexes::{OffsetIndexCheck, Rules, TimeIndexCheck};
use super::transactions::TransactionIndexCheck;
use super::verifier::Verifier;

/// Bytes of batches between two reports of progress.
const PROGRESS_BYTES: u64 = 1 << 20;

impl Verifier<'_> {
    pub(super) fn segment(&mut self, files: &SegmentFiles, next: Option<Offset>) -> Result<(), InspectError> {
        let path = &files.log.path;
        let file = match self.fs.open(path, OpenMode::Read) {
            // Retention, or compaction, has removed it since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.context("open", path)?,
        };
        self.verified.segments += 1;
        self.epochs.segment(path);
        self.segment_base(files, next);
        self.expected = files.base;
        let is_open = self.is_open(next);
        let mut checks = Checks::open(self.fs, files, is_open, self.knows_all)?;
        self.missing(files, is_open);
        let mut walk = SegmentWalk::new(&*file, files.base, files.log.bytes, next);
        let mut ends_damaged = false;
        loop {
            let before = walk.position();
            match walk.next_piece().context("read", path)? {
                Piece::End => break,
                Piece::Batch { position, batch, corrections } => {
                    ends_damaged = false;
                    self.corrections(path, position, &batch, &corrections);
                    self.batch(path, position, &batch, &mut checks)?;
                }
                Piece::Damaged(damaged) => {
                    ends_damaged = damaged.is_last;
                    self.damaged(files, next, &damaged, &mut checks)?;
                }
                Piece::Zeros { position, bytes } => {
                    let fault = match next.filter(|next| *next > walk.expected()) {
                        // Batches were there: the next segment begins where they end.
                        Some(next) => Fault::new(FaultKind::Batch, path, "zeros in the place of batches")
                            .offsets(walk.expected()..next),
                        None => Fault::new(FaultKind::ZeroTail, path, "zeros to the end of the file"),
                    };
                    self.found(fault.at(position).bytes(bytes));
                }
            }
            let passed = walk.position() - before;
            self.verified.bytes += passed;
            self.unreported += passed;
            if self.unreported >= PROGRESS_BYTES {
                (self.tell)(VerifyEvent::Read(std::mem::take(&mut self.unreported)));
            }
        }
        self.expected = walk.expected();
        self.ends_damaged = ends_damaged;
        if let Some(next) = next.filter(|next| *next > self.expected) {
            self.forget(self.expected..next, &mut checks)?;
        }
        (self.tell)(VerifyEvent::Read(std::mem::take(&mut self.unreported)));
        let place = crate::checkpoint::parent_of(path);
        let transaction_index =
            place.join(SegmentFileName::live(files.base, SegmentFile::TransactionIndex).to_string());
        for fault in checks.finish(&transaction_index, ends_damaged, is_open)? {
            if is_open { self.found_in_motion(fault) } else { self.found(fault) }
        }
        Ok(())
    }

    /// Whether side files of a segment need not be complete: it grew, or was not checkpointed, when the log was left.
    fn is_open(&self, next: Option<Offset>) -> bool {
        match (self.summary.stop, next) {
            (Stop::Clean, _) if self.summary.in_use_by.is_none() => false,
            (_, None) => true,
            (Stop::Unknown, Some(_)) => false,
            (_, Some(next)) => self.summary.recovery_point.is_some_and(|point| next > point),
        }
    }

    /// Whether a segment begins where it may.
    fn segment_base(&mut self, files: &SegmentFiles, next: Option<Offset>) {
        let (base, expected) = (files.base, self.expected);
        if self.is_alone || base == expected {
            return;
        }
        let path = &files.log.path;
        if base > expected {
            self.missing_segments(expected..base, base);
            let what = format!("the segment begins at {base}, the one before ends at {expected}");
            self.found(Fault::new(FaultKind::Gap, path, what).offsets(expected..base));
        } else {
            let what = format!("the segment begins at {base}, but the one before ends at {expected}");
            let fault = Fault::new(FaultKind::Offsets, path, what).at(0).offsets(base..expected);
            self.found(self.trust.judge(fault, base, files, next));
        }
    }

    /// Segments of which only the indexes are left, with bases in `bases`; their offsets end at `end`.
    pub(super) fn missing_segments(&mut self, bases: Range<Offset>, end: Offset) {
        let files = &self.summary.files;
        let name = |facts: &FileFacts| facts.path.file_name()?.to_str().and_then(SegmentFileName::parse);
        let mut missing: Vec<_> = files
            .orphans
            .iter()
            .filter_map(name)
            .filter(|name| matches!(name.kind, SegmentFile::OffsetIndex | SegmentFile::TimeIndex))
            .map(|name| name.base_offset)
            .filter(|base| bases.contains(base))
            // Its removal was under way.
            .filter(|base| !files.leftovers.iter().filter_map(name).any(|name| name.base_offset == *base))
            .collect();
        missing.dedup();
        for (at, base) in missing.iter().enumerate() {
            let path = files.dir.join(SegmentFileName::live(*base, SegmentFile::Log).to_string());
            let end = missing.get(at + 1).copied().unwrap_or(end).max(*base);
            self.found(
                Fault::new(FaultKind::SegmentMissing, path, "it is gone, its indexes are left").offsets(*base..end),
            );
        }
    }

    /// Index files that should be there and are not.
    fn missing(&mut self, files: &SegmentFiles, is_open: bool) {
        if files.log.bytes == 0 || is_open || files.is_bare() {
            return;
        }
        let missing = [
            (files.offset_index.is_none(), SegmentFile::OffsetIndex, FaultKind::OffsetIndexMissing),
            (files.time_index.is_none(), SegmentFile::TimeIndex, FaultKind::TimeIndexMissing),
        ];
        for (_, file, kind) in missing.into_iter().filter(|(is_missing, ..)| *is_missing) {
            let name = SegmentFileName::live(files.base, file).to_string();
            let path = crate::checkpoint::parent_of(&files.log.path).join(name);
            self.found(Fault::new(kind, path, "there is none"));
        }
    }

    fn batch(
        &mut self,
        path: &Path,
        position: u64,
        batch: &BatchView<'_>,
        checks: &mut Checks,
    ) -> Result<(), InspectError> {
        self.snapshots_up_to(batch.base_offset())?;
        if batch.base_offset() > self.expected {
            // What is missing may have begun or ended transactions.
            self.forget(self.expected..batch.base_offset(), checks)?;
        }
        self.expected = batch.next_offset();
        self.verified.batches += 1;
        checks.offsets(|check| check.batch(position, batch.header()))?;
        checks.times(|check| check.batch(batch.header()))?;
        self.epochs.batch(position, batch.header());
        match check_records(batch) {
            Ok(records) => self.verified.records += records,
            Err(fault) => {
                // Everything in it can be read.
                let is_timestamp = matches!(fault, RecordsFault::MaxTimestamp { .. });
                let kind = if is_timestamp { FaultKind::MaxTimestamp } else { FaultKind::Records };
                let fault = Fault::new(kind, path, fault.to_string()).at(position);
                let offsets = batch.base_offset()..batch.next_offset();
                self.found(fault.bytes(batch.total_bytes() as u64).offsets(offsets));
            }
        }
        self.transactions.batch(batch.header());
        let completed = self.producers.replicated(batch);
        if batch.is_control() {
            checks.transactions.marker(batch.header(), completed, &mut self.transactions)?;
        }
        Ok(())
    }

    /// Fields of a batch that have to have other values than in the file.
    fn corrections(&mut self, path: &Path, position: u64, batch: &BatchView<'_>, corrections: &[Correction]) {
        for correction in corrections {
            let kind = match correction.field {
                RepairedField::LeaderEpoch => FaultKind::LeaderEpoch,
                _ => FaultKind::Field,
            };
            let fault = Fault::new(kind, path, correction.to_string()).at(position).bytes(batch.total_bytes() as u64);
            let offsets = batch.base_offset()..batch.next_offset();
            self.found(fault.offsets(offsets).correction(Some(*correction)));
        }
    }

    fn damaged(
        &mut self,
        files: &SegmentFiles,
        next: Option<Offset>,
        damaged: &DamagedBytes,
        checks: &mut Checks,
    ) -> Result<(), InspectError> {
        let DamagedBytes { position, bytes, what, offsets, is_last } = damaged;
        checks.offsets(|check| check.damaged(*position, *bytes))?;
        checks.times(|check| {
            check.damaged();
            Ok(())
        })?;
        self.forget(offsets.clone(), checks)?;
        let is_tail = *is_last && next.is_none();
        let kind = match what {
            DamageKind::Batch(BatchFault::Partial { .. }) if is_tail => FaultKind::TornTail,
            DamageKind::Batch(BatchFault::Crc { .. }) => FaultKind::Checksum,
            DamageKind::Offsets { .. } => FaultKind::Offsets,
            _ => FaultKind::Batch,
        };
        let mut fault = Fault::new(kind, &files.log.path, what.to_string()).at(*position).bytes(*bytes);
        if offsets.start < offsets.end {
            fault = fault.offsets(offsets.clone());
        }
        let fault = self.trust.judge(fault, offsets.start, files, next);
        if is_tail {
            self.found_in_motion(fault)
        } else {
            self.found(fault)
        }
        Ok(())
    }

    /// Notes that the batches with these offsets are not there.
    fn forget(&mut self, offsets: Range<Offset>, checks: &mut Checks) -> Result<(), InspectError> {
        self.knows_all = false;
        checks.transactions.forget_before();
        Ok(checks.transactions.damaged(&offsets)?)
    }
}

/// The side files of one segment.
struct Checks {
    offsets: Option<OffsetIndexCheck>,
    times: Option<TimeIndexCheck>,
    transactions: TransactionIndexCheck,
}

impl Checks {
    fn open(fs: &dyn Fs, files: &SegmentFiles, is_open: bool, knows_all: bool) -> Result<Self, IoError> {
        let rules = Rules { base: files.base, data_bytes: files.log.bytes, is_open };
        let offsets = files.offset_index.as_ref().map(|facts| OffsetIndexCheck::open(fs, facts, rules)).transpose()?;
        let times = files.time_index.as_ref().map(|facts| TimeIndexCheck::open(fs, facts, rules)).transpose()?;
        let transactions =
            TransactionIndexCheck::open(fs, files.transaction_index.as_ref(), files.is_bare(), knows_all)?;
        Ok(Self { offsets: offsets.flatten(), times: times.flatten(), transactions })
    }

    fn offsets(&mut self, check: impl FnOnce(&mut OffsetIndexCheck) -> Result<(), IoError>) -> Result<(), IoError> {
        self.offsets.as_mut().map_or(Ok(()), check)
    }

    fn times(&mut self, check: impl FnOnce(&mut TimeIndexCheck) -> Result<(), IoError>) -> Result<(), IoError> {
        self.times.as_mut().map_or(Ok(()), check)
    }

    fn finish(self, transaction_index: &Path, ends_damaged: bool, is_open: bool) -> Result<Vec<Fault>, IoError> {
        let offsets = self.offsets.map(OffsetIndexCheck::finish).transpose()?.flatten();
        let times = self.times.map(TimeIndexCheck::finish).transpose()?.flatten();
        let transactions = self.transactions.finish(transaction_index, ends_damaged, is_open)?;
        Ok([offsets, times, transactions].into_iter().flatten().collect())
    }
}
