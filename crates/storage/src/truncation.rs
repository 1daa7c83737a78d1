//! Taking records off either end of the log, in an order that a crash at any point survives.

use std::sync::Arc;

use crate::Offset;
use crate::epochs::EpochHistory;
use crate::error::{AppendError, Damaged, Fence, FlushError, ReadError, TruncateError};
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::{FileExt, IoContext, IoError};
use crate::log::{Active, EPOCHS_FILE, LastBatch, Log, is_out_of_room, write_epochs};
use crate::names::SegmentFile;
use crate::producers::ProducerTable;
use crate::scan::{Found, Walk};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::snapshots;
use crate::survey::{Frame, Step, Survey};

/// What was really cut off the end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncated {
    /// The end of the log before.
    pub from: Offset,
    /// The end of the log now.
    pub end: Offset,
    /// Bytes of batches that are gone.
    pub bytes: u64,
    /// Segments that are gone as a whole.
    pub segments: u32,
}

/// All kinds of files a segment may have, the data first: without it the others mean nothing.
pub(crate) const SEGMENT_FILES: [SegmentFile; 4] =
    [SegmentFile::Log, SegmentFile::OffsetIndex, SegmentFile::TimeIndex, SegmentFile::TransactionIndex];

/// Removes segments for good, the last one first, so that a crash leaves a prefix and no hole.
pub(crate) fn remove_segments<'s>(
    place: &Place,
    segments: impl DoubleEndedIterator<Item = &'s Arc<Segment>>,
) -> Result<(), IoError> {
    for segment in segments.rev() {
        for kind in SEGMENT_FILES {
            place.remove(&place.path(segment.base(), kind))?;
        }
    }
    Ok(())
}

/// Removes the index files of a segment that grows (again): its indexes are in memory, and what the files say of them
/// is believed only of a segment that is sealed.
pub(crate) fn remove_index_files(place: &Place, base: Offset) -> Result<(), IoError> {
    place.remove(&place.path(base, SegmentFile::OffsetIndex))?;
    place.remove(&place.path(base, SegmentFile::TimeIndex))
}

/// As [`remove_index_files`], with the transaction index: of a segment that may have been longer. One that only grows
/// keeps it, for it holds as far as it goes, and were it missing nobody would notice.
pub(crate) fn remove_all_index_files(place: &Place, base: Offset) -> Result<(), IoError> {
    remove_index_files(place, base)?;
    place.remove(&place.path(base, SegmentFile::TransactionIndex))
}

impl Log {
    /// Cuts the log so that no offset from `to` on is left. The batch that holds `to` goes as a whole, and the end is
    /// then the end of the last batch that stays. At or below the log start everything goes and the log goes on at `to`.
    ///
    /// At or past the end only epochs that have no record are forgotten.
    ///
    /// The order holds for a crash at any point: first the recovery point is lowered durably, then segments go from the
    /// last down, then the batches, and everything is synced before this returns. After a crash the end is anything
    /// from the new one to the old.
    ///
    /// # Errors
    /// [`TruncateError::Io`] and [`TruncateError::Damaged`] if nothing was changed; [`TruncateError::Closed`] if it
    /// failed half way.
    pub fn truncate_to(&mut self, to: Offset) -> Result<Truncated, TruncateError> {
        self.shared.usable()?;
        if to < Offset::ZERO {
            return Err(TruncateError::Negative(to));
        }
        let from = self.end();
        if to >= from {
            if self.epochs.truncate_from_end(from) {
                self.epochs_changed();
            }
            return Ok(Truncated { from, end: from, bytes: 0, segments: 0 });
        }
        if to <= self.start() {
            return self.reset(to, to);
        }
        let segments = self.shared.segments();
        let Some((segment, next)) = segments.holding_with_next(to).next() else { return self.reset(to, to) };
        let (position, kept_end) = segment.cut_for(to, next)?;
        let segment = segment.clone();
        if kept_end < self.start() {
            // The log starts inside of the batch that goes.
            return self.reset(self.start(), self.start());
        }
        // From the look at who else has the file to its change, or a copy of the log could begin in between. And a job
        // could write an index of batches that were cut.
        let shared = self.shared.clone();
        let _writing = shared.writing_side_files();
        let own = segment.with_own_file(position)?;
        let mut active = reactivated(&self.place, &segment, position, kept_end, &self.options)?;
        active.segment = own.clone().unwrap_or(active.segment);
        let end_before = segments.end_of(&segment, from);
        let mut aborted = segment.aborted(&segments, end_before)?;
        aborted.retain(|transaction| transaction.last_offset < kept_end);
        let (mut kept, removed) = segments.split_below(segment.base().next());
        let bytes = segment.len() - position + removed.all().map(|segment| segment.len()).sum::<u64>();

        let marks = self.state.last().and_then(|state| state.mark).zip(active.mark(kept_end));
        let mark = marks.map(|(known, kept)| if known.offset > kept.offset { kept } else { known });
        self.lower_jobs(kept_end);
        self.record_state(self.start(), self.recovery_point.min(kept_end), mark)?;
        let done = self.half_done_closes(|log| {
            log.lower_marks(kept_end);
            if let Some(own) = &own {
                kept.pop();
                kept.push(own.clone());
            }
            let segment = own.as_ref().unwrap_or(&segment);
            active.share_indexes();
            segment.transactions().set(aborted);
            log.shared.set_segments(Segments::new(&kept));
            log.active = active;
            log.sealed.retain(|sealed| sealed.segment.base() < segment.base());
            log.active.publish();
            log.shared.set_end(kept_end);
            log.shared.next_generation();
            segment.known_damage().cut(position);
            // Only now the files: a reader that was under way notices and reads again.
            remove_segments(&log.place, removed.all())?;
            remove_all_index_files(&log.place, segment.base())?;
            snapshots::remove_unless(&log.place, |offset| offset <= kept_end)?;
            // Both synced before anything is appended: else a crash could put old batches behind new ones.
            log.place.sync_dir()?;
            log.directory_synced = log.directory_changes;
            if own.is_some() {
                segment.take_name()?;
                log.place.sync_dir()?;
            } else {
                let file = segment.file()?;
                file.set_len(position).context("cut", &segment.path())?;
                file.sync_data().context("sync", &segment.path())?;
            }
            if log.epochs.truncate_from_end(kept_end) {
                log.epochs_changed();
                match log.write_epochs() {
                    // For the next checkpoint, then. Until it the recovery point lies below what the file has too much.
                    Err(error) if is_out_of_room(&error) => {}
                    written => written?,
                }
            }
            if has_entries_from(&log.producers, kept_end) {
                let segments = log.shared.segments();
                let max_producers = log.options.max_producer_ids;
                let reloaded = snapshots::reload(&log.place, &segments, kept_end, max_producers)?;
                snapshots::remove_unusable(&log.place, &reloaded.unusable)?;
                log.producers = reloaded.producers;
            }
            log.shared.undecided().truncate(kept_end, log.producers.first_open_transaction());
            Ok(())
        });
        done?;
        let segments = u32::try_from(removed.len()).unwrap_or(u32::MAX);
        Ok(Truncated { from, end: kept_end, bytes, segments })
    }

    /// Empties the log and lets it go on at `start`, whether that lies before, in or past it: for a follower whose
    /// leader's log starts above the end of its own.
    ///
    /// # Errors
    /// As [`Log::truncate_to`].
    pub fn reset_to(&mut self, start: Offset) -> Result<Truncated, TruncateError> {
        self.shared.usable()?;
        if start < Offset::ZERO {
            return Err(TruncateError::Negative(start));
        }
        self.reset(start, start)
    }

    /// Moves the log start up to `to`, durably; at or below the start nothing happens. Returns the start.
    ///
    /// What lies below cannot be read any more; the files of segments wholly below go with
    /// [housekeeping](Log::housekeeping). What is below is [flushed](Log::flush) before, if it was not: the state of the
    /// producers behind the start follows from it.
    ///
    /// # Errors
    /// [`TruncateError::PastEnd`] past the end of the log; [`TruncateError::Io`] if nothing was changed;
    /// [`TruncateError::Closed`] if the flush failed.
    pub fn advance_start(&mut self, to: Offset) -> Result<Offset, TruncateError> {
        self.shared.usable()?;
        let (start, end) = (self.start(), self.end());
        if to > end {
            return Err(TruncateError::PastEnd { to, end });
        }
        if to <= start {
            return Ok(start);
        }
        if to > self.flushed() {
            self.flush().map_err(|error| match error {
                FlushError::Io(error) => TruncateError::Io(error),
                FlushError::Closed(fence) => TruncateError::Closed(fence),
            })?;
        }
        self.move_start(to)?;
        Ok(to)
    }

    /// Moves the log start up, durably, to an offset in the log.
    pub(crate) fn move_start(&mut self, to: Offset) -> Result<(), IoError> {
        self.record_state(to, self.recovery_point, self.flush_mark())?;
        self.shared.set_start(to);
        if self.epochs.truncate_from_start(to) {
            self.epochs_changed();
        }
        Ok(())
    }

    /// Empties the log, to go on at `base`, with everything below `start` unreadable.
    fn reset(&mut self, base: Offset, start: Offset) -> Result<Truncated, TruncateError> {
        let from = self.end();
        let bytes = self.size_bytes();
        let listed = self.shared.segments();
        // Those that housekeeping took out of the list just now may have their files still.
        let removed: Vec<_> = self.leaving().into_iter().chain(listed.all().cloned()).collect();
        // A start that moves up moves before the files go, one that moves down after: a crash in between neither gives
        // offsets again nor brings records back that were below the start.
        self.lower_jobs(Offset(i64::MIN));
        // Whatever job is giving files other names sees that before it touches another.
        drop(self.shared.writing_side_files());
        self.record_state(self.start().max(start), self.recovery_point.min(base), None)?;
        let segment = Arc::new(Segment::new(self.place.clone(), base, 0));
        // A full disk refuses the file here, where nothing has gone yet. One of this name makes room for it when it goes.
        let replaces = removed.iter().any(|old| old.base() == base);
        if !replaces && let Err(error) = segment.create_file() {
            self.half_done_closes(|log| Ok(log.record_state(log.start(), log.recovery_point, log.flush_mark())?))?;
            return Err(error.into());
        }
        let done = self.half_done_closes(|log| {
            let shared = log.shared.clone();
            let _writing = shared.writing_side_files();
            log.lower_marks(Offset(i64::MIN));
            log.active = Active::empty(segment.clone(), &log.options);
            log.sealed.clear();
            log.shared.set_segments(Segments::new(std::slice::from_ref(&segment)));
            log.shared.set_start(start);
            log.shared.set_end(base);
            log.shared.set_flushed(base);
            log.shared.next_generation();
            remove_segments(&log.place, removed.iter())?;
            log.forget_leaving();
            snapshots::remove_unless(&log.place, |_| false)?;
            if replaces {
                segment.create_file()?;
            }
            log.epochs = EpochHistory::new();
            log.epochs_changed();
            match log.write_epochs() {
                // A missing file is made anew from the batches, of which there are none.
                Err(error) if is_out_of_room(&error) => log.place.remove(&log.place.dir.join(EPOCHS_FILE))?,
                written => written?,
            }
            log.place.sync_dir()?;
            log.directory_synced = log.directory_changes;
            log.producers = ProducerTable::new(log.options.max_producer_ids);
            log.shared.undecided().truncate(Offset::ZERO, None);
            log.recovery_point = base;
            log.record_state(start, base, log.active.mark(base))?;
            Ok(())
        });
        done?;
        let segments = u32::try_from(listed.len()).unwrap_or(u32::MAX);
        Ok(Truncated { from, end: base, bytes, segments })
    }

    /// Empties a log that is empty but for its start, to take in the batch at `base` that the start lies in.
    pub(crate) fn restart_at(&mut self, base: Offset) -> Result<(), AppendError> {
        match self.reset(base, self.start()) {
            Ok(_) => Ok(()),
            Err(TruncateError::Io(error)) => Err(AppendError::Io(error)),
            Err(TruncateError::Closed(fence)) => Err(AppendError::Closed(fence)),
            Err(other) => unreachable!("emptying an empty log reads nothing: {other}"),
        }
    }

    /// Runs the part of a change after which there is no way back: if it fails, the log is closed.
    fn half_done_closes(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), ReadError>,
    ) -> Result<(), TruncateError> {
        change(self).map_err(|error| {
            if let ReadError::Io(error) = &error {
                self.close_if_sync_failed(error);
            }
            self.shared.close(Fence::HalfDone(error.to_string()));
            match self.shared.usable() {
                Err(fence) => fence.into(),
                Ok(()) => error.into(),
            }
        })
    }

    /// What jobs under way sync from `end` on counts for nothing. Before the lowered mark is recorded: none of them may
    /// raise it again.
    fn lower_jobs(&self, end: Offset) {
        for job in self.jobs.iter().filter_map(std::sync::Weak::upgrade) {
            job.lower(end);
        }
    }

    /// Nothing from `end` on counts as flushed any more, by this log or by a job under way.
    fn lower_marks(&mut self, end: Offset) {
        self.lower_jobs(end);
        self.cleaner_offset = self.cleaner_offset.min(end.max(Offset::ZERO));
        self.upkeep.compactor.lower(end);
        self.recovery_point = self.recovery_point.min(end.max(Offset::ZERO));
        self.shared.set_flushed(self.shared.flushed().min(end.max(Offset::ZERO)));
    }

    /// Writes the epochs now. With the lock for side files held, or a job could write older ones after.
    fn write_epochs(&mut self) -> Result<(), IoError> {
        write_epochs(&self.place, self.epochs.entries())?;
        self.epochs_written = self.epochs_version;
        Ok(())
    }
}

/// Whether what is known of any producer may come from `end` on. Markers leave no offset behind: where there were any,
/// it may.
fn has_entries_from(producers: &ProducerTable, end: Offset) -> bool {
    producers.iter().any(|(_, state)| state.last_offset() >= end || state.coordinator_epoch() >= 0)
}

/// A segment's writing side, as of a cut at `position`.
pub(crate) fn reactivated(
    place: &Place,
    segment: &Arc<Segment>,
    position: u64,
    end: Offset,
    options: &crate::LogOptions,
) -> Result<Active, ReadError> {
    let indexes = match segment.indexes()? {
        Indexes::Memory(indexes) => copy_below(segment.base(), &indexes, position, end),
        Indexes::Files(_) => match MemoryIndexes::load(place, segment.base(), segment.len())? {
            Some(indexes) => copy_below(segment.base(), &indexes, position, end),
            None => MemoryIndexes::new(segment.base()),
        },
    };
    resume(segment, Arc::new(indexes), position, options)
}

/// The entries for batches below a cut, in new indexes: a reader that was under way, or a job that writes the old ones
/// out, sees them unchanged.
pub(crate) fn copy_below(base: Offset, indexes: &MemoryIndexes, position: u64, end: Offset) -> MemoryIndexes {
    let copy = MemoryIndexes::new(base);
    for entry in indexes.offsets.iter().take_while(|entry| u64::from(entry.position) < position && entry.offset < end) {
        let _ = copy.offsets.append(entry.offset, entry.position);
    }
    for entry in indexes.times.iter().take_while(|entry| entry.offset < end) {
        let _ = copy.times.append(entry.timestamp, entry.offset);
    }
    copy
}

/// The writing side of a segment of `len` bytes whose indexes are right as far as they go.
pub(crate) fn resume(
    segment: &Arc<Segment>,
    indexes: Arc<MemoryIndexes>,
    len: u64,
    options: &crate::LogOptions,
) -> Result<Active, ReadError> {
    let mut writer = IndexWriter::resume(indexes, segment.base(), len, options.index_interval_bytes);
    let mut first_timestamp = None;
    let mut last = LastBatch::none(len);
    if len > 0 {
        let file = segment.file()?;
        if let Found::Batch(_, header) = Walk::small(&*file, 0, len).next_header().context("read", &segment.path())? {
            first_timestamp = Some(header.max_timestamp());
        }
        let from = writer.indexes().offsets.last().map_or(0, |last| u64::from(last.position));
        let frame = Frame { position: from, ..Frame::whole(segment.base(), len, Offset::MAX) };
        let frame = if from > 0 { frame.small() } else { frame };
        let mut survey = Survey::new(&*file, frame).passing_over(segment.known_damage().all());
        loop {
            match survey.step().context("read", &segment.path())? {
                Step::Batch(batch) => {
                    writer.note(&batch.header);
                    last.position = batch.position;
                }
                Step::Damage(stretch) => last.position = stretch.position + stretch.bytes,
                Step::Zeros(_) | Step::End => break,
            }
        }
        // As it stands there: a batch may be shorter than what is kept of it, and nothing behind it belongs to it.
        let kept = last.header.len().min(usize::try_from(len - last.position).unwrap_or(usize::MAX));
        let header = last.header.get_mut(..kept).unwrap_or_default();
        file.read_full_at(header, last.position).context("read", &segment.path())?;
    }
    let segment = segment.clone();
    Ok(Active::new(segment, len, writer, last, first_timestamp))
}

impl From<ReadError> for TruncateError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::OutOfRange { from, end, .. } => Self::PastEnd { to: from, end },
            ReadError::Superseded => unreachable!("the writer reads in no generation"),
            ReadError::Corrupt { segment, position, bytes, offsets, what } => {
                Self::Damaged(Damaged { segment, position, bytes, offsets, what })
            }
            ReadError::Io(error) => Self::Io(error),
            ReadError::Closed(fence) => Self::Closed(fence),
        }
    }
}
