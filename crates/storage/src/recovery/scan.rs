//! Reading a log that was not closed well, batch by batch, and deciding what of it stays.

use std::io;
use std::sync::Arc;

use super::examine::{Examined, take_epoch};
use super::plan::Aside;
use super::report::{Cut, CutReason, PutAside, RepairedField};
use super::trust::Trust;
use super::unread;
use crate::batch::{BatchFault, MAGIC_END};
use crate::epochs::EpochHistory;
use crate::error::{DamageKind, OpenError};
use crate::fs::File;
use crate::indexes::{IndexWriter, Indexes};
use crate::io::{IoContext, IoError};
use crate::scan::{Found, Walk};
use crate::segment::Segment;
use crate::snapshots;
use crate::state_file::FlushMark;
use crate::survey::{Fix, Frame, Sound, Step, Stretch, Survey};
use crate::truncation::resume;
use crate::{LeaderEpoch, Offset};

/// Where a scan is.
struct Scan {
    trust: Trust,
    /// What the epoch file says, and up to where the batches are known to agree with it.
    history: Option<(EpochHistory, Offset)>,
    /// The end of the last batch.
    expected: Offset,
    epoch: LeaderEpoch,
}

/// Where a segment has to be cut, and why.
type Stop = (u64, CutReason);

impl Examined {
    /// Reads every batch from the recovery point's segment on, and cuts at the first above what was synced that does not
    /// belong.
    pub(super) fn scan(
        &mut self,
        trust: Trust,
        epochs_upto: Offset,
        contiguous: bool,
        sync_failed: bool,
    ) -> Result<(), OpenError> {
        let mut floor =
            self.segments.partition_point(|segment| segment.base() <= self.recovery_point).saturating_sub(1);
        // The point may have come to the end of a segment before that was sealed: then its side files were not written.
        let before = floor.checked_sub(1).and_then(|at| self.segments.get(at));
        if before.is_some_and(|before| self.unindexed.contains(&before.base()))
            && self.segments.get(floor).is_some_and(|segment| segment.base() == self.recovery_point)
        {
            floor -= 1;
        }
        let Some(base) = self.segments.get(floor).map(|segment| segment.base()) else { return Ok(()) };
        (self.report.recovery_point, self.report.flushed) = (self.recovery_point, trust.offset);
        self.rebuild_missing_indexes(floor)?;
        self.load_producers_at(base, floor)?;
        // What the file says from here on may be another history's: the batches tell.
        if let Some(epochs) = &mut self.epochs {
            epochs.truncate_from_end(epochs_upto);
        }
        let history = self.epochs.clone().map(|epochs| (epochs, epochs_upto));
        self.rebuild_missing_epochs(floor)?;
        let epoch = self.epochs.as_ref().map_or(LeaderEpoch::NONE, |epochs| epochs.epoch_of(base + -1));
        let mut scan = Scan { trust, history, expected: base, epoch };
        if sync_failed {
            self.plan_rewrite(trust.mark, base)?;
        }
        let mut behind_gap = self.recovery_point;
        let mut at = floor;
        while let Some(segment) = self.segments.get(at).cloned() {
            let is_lost_tail = contiguous && segment.base() > scan.expected && segment.base() > trust.offset;
            if segment.base() < scan.expected || is_lost_tail {
                let reason = CutReason::LostTail { expected: scan.expected, found: segment.base() };
                if let Some(last) = self.segments.get(at.saturating_sub(1)).cloned() {
                    self.cut(at, &last, last.len(), scan.expected, reason)?;
                }
                break;
            }
            if segment.base() > scan.expected {
                if contiguous {
                    self.report.missing.push(scan.expected..segment.base());
                }
                (scan.expected, behind_gap) = (segment.base(), segment.base());
            }
            if let Some((position, reason)) = self.scan_segment(at, &segment, &mut scan)? {
                self.cut(at + 1, &segment, position, scan.expected, reason)?;
                break;
            }
            at += 1;
            if self.segments.get(at).is_some_and(|next| next.base() == scan.expected) {
                self.plan_snapshot(scan.expected)?;
            }
        }
        self.end = scan.expected;
        self.plan.scanned_from = Some(floor);
        if let Some(last) = self.segments.last() {
            let Indexes::Memory(indexes) = last.indexes().map_err(unread)? else { unreachable!("set by the scan") };
            self.active = Some(resume(last, indexes, last.len(), &self.options).map_err(unread)?);
        }
        // All of it is synced by now. Were the point to stay before a gap, the next recovery would take that, in a log of
        // ours, for a lost tail.
        self.recovery_point = self.recovery_point.max(behind_gap).min(self.end);
        Ok(())
    }

    /// After a failed sync what can be read above the flush mark may not be on the disk. It is written once more, with the
    /// segments that it lies in. Where there is no room for that the log is not opened: whoever read on would take as kept
    /// what a power cut takes away, and whoever cut it off would lose what may be there.
    fn plan_rewrite(&mut self, mark: Option<FlushMark>, base: Offset) -> Result<(), OpenError> {
        let from = mark.map_or(base, |mark| mark.segment_base);
        let bytes: u64 =
            self.segments.iter().filter(|segment| segment.base() >= from).map(|segment| segment.len()).sum();
        let dir = &self.place.dir;
        let has_room = self.place.fs.free_space(dir).context("ask for free space in", dir)? > bytes;
        let is_needed = bytes > mark.map_or(0, |mark| mark.position);
        if is_needed && !has_room && !self.place.read_only {
            let (path, source) = (dir.to_path_buf(), io::ErrorKind::StorageFull.into());
            return Err(IoError { verb: "write anew, after a failed sync, segments in", path, source }.into());
        }
        self.plan.rewrite_from = Some(from).filter(|_| has_room);
        Ok(())
    }

    /// Reads one segment. Returns where and why it has to be cut, if it has to.
    fn scan_segment(&mut self, at: usize, segment: &Arc<Segment>, scan: &mut Scan) -> Result<Option<Stop>, OpenError> {
        let (base, len, path) = (segment.base(), segment.len(), segment.path());
        let file = segment.file()?;
        let next_base = self.segments.get(at + 1).map_or(Offset::MAX, |next| next.base());
        let is_last = at + 1 == self.segments.len();
        let mut writer = IndexWriter::new(base, self.options.index_interval_bytes);
        let mut aborted = Vec::new();
        self.report.segments_scanned += 1;
        // The flush mark divides its segment to the byte. Elsewhere the offsets tell.
        let mark = scan.trust.mark_in(segment);
        let parts = match mark {
            Some(mark) => vec![(mark.position, mark.offset, Some(true)), (len, next_base, Some(false))],
            None => vec![(len, next_base, None)],
        };
        // Where the next segment begins below the point, this one was synced to its last byte, whatever its offsets say.
        let is_below = !is_last && next_base <= scan.trust.offset;
        let (mut position, mut stopped) = (0, None);
        let mut stays = len;
        let history = scan.history.take();
        for (end, limit, is_synced) in parts {
            let frame = Frame {
                position,
                expected: scan.expected,
                epoch: scan.epoch,
                epochs: history.as_ref().map(|(epochs, upto)| (epochs, *upto)),
                ..Frame::whole(base, end, limit)
            };
            let mut survey = Survey::new(&*file, frame);
            let mut marked_epoch = None;
            stopped = loop {
                let is_synced = is_synced.unwrap_or(is_below || scan.expected < scan.trust.offset);
                if !is_synced || scan.trust.is_guess {
                    survey.verify();
                }
                let before = survey.epoch();
                let step = survey.step().context("read", &path)?;
                let is_synced = is_synced && !(is_last && scan.trust.is_torn_end(&step, len));
                match step {
                    Step::Batch(mut batch) => {
                        if !is_synced && let Some(what) = torn_header(&batch) {
                            self.put_aside_behind(segment, &mut survey, batch.position)?;
                            break Some((batch.position, CutReason::Damage(what)));
                        }
                        if let Some(mark) = mark.filter(|mark| batch.position == mark.batch_position) {
                            let behind = epoch_at(&*file, mark.position, len).context("read", &path)?;
                            take_marked_epoch(&mark, &mut batch, [before, behind], scan.trust.is_latest);
                            marked_epoch = Some(batch.header.leader_epoch()).filter(|epoch| epoch.is_some());
                        }
                        let completed =
                            snapshots::take_in(&mut survey, &batch, &mut self.producers).context("read", &path)?;
                        aborted.extend(completed.and_then(|completed| completed.aborted()));
                        self.ended.extend(completed);
                        if let Some(epochs) = &mut self.epochs {
                            take_epoch(epochs, &batch);
                        }
                        writer.add(batch.position, &batch.header);
                        self.note_batch(segment, &batch);
                        scan.expected = batch.header.next_offset();
                    }
                    Step::Damage(stretch) if is_synced => {
                        scan.expected = self.rot(segment, stretch, end, scan.trust.offset);
                    }
                    Step::Damage(stretch) => {
                        self.put_aside_behind(segment, &mut survey, stretch.position)?;
                        break Some((stretch.position, CutReason::Damage(stretch.what)));
                    }
                    Step::Zeros(position) if end == len && scan.expected == next_base => {
                        // Room that was allocated ahead, and a power cut before its removal was synced: nothing is
                        // missing between the last batch and the next segment.
                        stays = position;
                        break None;
                    }
                    Step::Zeros(position) if is_synced => {
                        let (bytes, offsets) = (end - position, scan.expected..limit);
                        let what = BatchFault::Length(0).into();
                        let stretch = Stretch { position, bytes, offsets, what };
                        scan.expected = self.rot(segment, stretch, end, scan.trust.offset);
                        break None;
                    }
                    Step::Zeros(position) => break Some((position, CutReason::Zeros)),
                    Step::End => break None,
                }
            };
            (position, scan.epoch) = (end, marked_epoch.unwrap_or_else(|| survey.epoch()));
            if stopped.is_some() {
                break;
            }
            if is_synced == Some(true) {
                scan.expected = scan.expected.max(limit);
            }
        }
        scan.history = history;
        writer.finish();
        self.report.bytes_scanned += stopped.as_ref().map_or(stays, |(position, _)| *position);
        if stays < len {
            self.report.zero_tails += 1;
            self.plan.cuts.push(segment.clone());
        }
        segment.publish(stays, writer.largest_timestamp());
        segment.set_indexes(Indexes::Memory(writer.indexes().clone()));
        segment.transactions().set(aborted);
        Ok(stopped)
    }

    /// Notes damage in what was synced. Returns where the log goes on.
    fn rot(&mut self, segment: &Segment, mut stretch: Stretch, end: u64, synced: Offset) -> Offset {
        if stretch.position + stretch.bytes == end {
            // Nothing behind it tells how many records it held, but all below were synced.
            stretch.offsets.end = stretch.offsets.end.min(synced.max(stretch.offsets.start));
        }
        let goes_on = stretch.offsets.end;
        self.note_rot(segment, stretch);
        goes_on
    }

    /// Ends the log at `position` of `last`, without the segments from the one with index `from` on.
    fn cut(
        &mut self,
        from: usize,
        last: &Arc<Segment>,
        position: u64,
        end: Offset,
        reason: CutReason,
    ) -> Result<(), OpenError> {
        let removed = self.segments.split_off(from.min(self.segments.len()));
        let bytes = last.len() - position + removed.iter().map(|segment| segment.len()).sum::<u64>();
        for segment in &removed {
            self.put_segment_aside(segment)?;
        }
        if position < last.len() {
            self.plan.cuts.push(last.clone());
            last.publish(position, last.largest_timestamp().map_err(unread)?);
        }
        let segments = u32::try_from(removed.len()).unwrap_or(u32::MAX);
        self.plan.removed = removed;
        self.report.cut = Some(Cut { file: last.path(), at: position, bytes, segments, end, reason });
        Ok(())
    }

    /// Puts aside what is intact in a segment that goes.
    fn put_segment_aside(&mut self, segment: &Arc<Segment>) -> Result<(), OpenError> {
        let file = segment.file()?;
        self.put_aside_behind(segment, &mut whole(segment, &*file), 0)
    }

    /// As [`Examined::put_segment_aside`], of one that may have been cut: what is behind the cut was looked at.
    pub(super) fn put_all_aside(&mut self, segment: &Arc<Segment>) -> Result<(), OpenError> {
        let file = segment.file()?;
        let before = intact_behind(segment, &mut whole(segment, &*file), 0)?;
        let behind = self.plan.aside.iter().position(|aside| Arc::ptr_eq(&aside.segment, segment));
        let found = match behind.map(|at| self.plan.aside.remove(at).found) {
            None => before,
            Some(behind) => Some(PutAside {
                position: 0,
                bytes: behind.position + behind.bytes,
                batches: behind.batches + before.as_ref().map_or(0, |before| before.batches),
                offsets: (before.as_ref().map_or(behind.offsets.0, |before| before.offsets.0), behind.offsets.1),
                ..behind
            }),
        };
        self.plan_aside(segment, found);
        Ok(())
    }

    /// Puts aside what is intact in what goes, from `from` on.
    fn put_aside_behind(
        &mut self,
        segment: &Arc<Segment>,
        survey: &mut Survey<'_>,
        from: u64,
    ) -> Result<(), OpenError> {
        let found = intact_behind(segment, survey, from)?;
        self.plan_aside(segment, found);
        Ok(())
    }

    fn plan_aside(&mut self, segment: &Arc<Segment>, found: Option<PutAside>) {
        self.plan.aside.extend(found.map(|found| Aside { segment: segment.clone(), found }));
    }
}

/// Looks for intact batches in what goes of a segment, from `from` on.
fn intact_behind(segment: &Segment, survey: &mut Survey<'_>, from: u64) -> Result<Option<PutAside>, OpenError> {
    let mut found: Option<PutAside> = None;
    loop {
        match survey.step().context("read", &segment.path())? {
            Step::Batch(Sound { header, .. }) => {
                let (first, last) = (header.base_offset(), header.last_offset());
                let found = found.get_or_insert_with(|| PutAside {
                    file: None,
                    segment: segment.path(),
                    position: from,
                    bytes: segment.len() - from,
                    batches: 0,
                    offsets: (first, last),
                });
                found.batches += 1;
                found.offsets.1 = last;
            }
            Step::Damage(_) => {}
            Step::Zeros(_) | Step::End => return Ok(found),
        }
    }
}

/// A verified survey of all of a segment.
fn whole<'f>(segment: &Segment, file: &'f dyn File) -> Survey<'f> {
    Survey::new(file, Frame::whole(segment.base(), segment.len(), Offset::MAX).verified())
}

/// Whether a batch that is whole but for its header may have been torn by a power cut, and what is wrong with it then.
///
/// A cut loses whole sectors. Where one ends within the bytes before the checksum, all that the checksum covers may have come
/// to the disk without them. Its epoch, whatever would fit, is not to be guessed then: it tells whose record this is.
fn torn_header(batch: &Sound) -> Option<DamageKind> {
    let first_bytes = 1..=MAGIC_END as u64;
    let sector_ends_after = batch.position.next_multiple_of(SECTOR_BYTES) - batch.position;
    let lost = |fix: &&Fix| matches!(fix.field, RepairedField::BaseOffset | RepairedField::Length);
    batch.fixes.iter().find(lost).filter(|_| first_bytes.contains(&sector_ends_after)).map(Fix::damage)
}

/// What a device writes as a whole; larger units end at its multiples too.
const SECTOR_BYTES: u64 = 512;

/// The epoch of the batch that begins at `position`, [`LeaderEpoch::NONE`] if none does.
fn epoch_at(file: &dyn File, position: u64, len: u64) -> io::Result<LeaderEpoch> {
    Ok(match Walk::small(file, position, len).next_header()? {
        Found::Batch(_, header) => header.leader_epoch(),
        Found::End | Found::Bad(..) => LeaderEpoch::NONE,
    })
}

/// The flush mark knows the header of the last batch that was synced: where no batch behind it tells its epoch, the mark
/// does. Not against the batches around it, though, nor where a newer mark may have been lost: it may be older than a
/// truncation, and the same records may have been appended once more, under another leader.
fn take_marked_epoch(mark: &FlushMark, batch: &mut Sound, [before, behind]: [LeaderEpoch; 2], is_latest: bool) {
    let known = crate::batch::BatchHeader::decode(&mark.header);
    let (found, marked) = (batch.header.leader_epoch(), known.leader_epoch());
    // The checksum alone does not tell one batch from another: equal records have equal ones.
    if known.base_offset() != batch.header.base_offset()
        || known.is_legacy()
        || known.crc() != batch.header.crc()
        || marked == found
    {
        return;
    }
    let fits = |epoch: LeaderEpoch| epoch >= before && (!behind.is_some() || epoch <= behind);
    if !fits(marked) || (fits(found) && (found == behind || !is_latest)) {
        return;
    }
    let (was, is) = (i64::from(found.0), i64::from(marked.0));
    batch.fixes.retain(|fix| fix.field != RepairedField::LeaderEpoch);
    batch.fixes.push(Fix { field: RepairedField::LeaderEpoch, was, is });
    (batch.header.leader_epoch, batch.doubtful_epoch) = (marked, false);
}
