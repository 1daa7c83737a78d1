//! The work that appends do not wait for, one piece at a time. What may take long is split like a flush: begun on the
//! writer's thread, run on any other, finished on the writer's again.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use crate::compaction::{Compactor, Piece, PieceDone};
use crate::error::FlushError;
use crate::flush::{FlushDone, FlushJob, JobControl, JobKind};
use crate::index::AbortedTransaction;
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::IoError;
use crate::log::Log;
use crate::retire::{LeaveDone, LeaveJob, RetireDone, RetireJob, Retiring};
use crate::scrub::{ScrubDone, ScrubJob, Scrubbing};
use crate::segment::{Place, Segment};
use crate::transactions;
use crate::zero_ahead::ZeroJob;
use crate::{Offset, TimestampMs};

/// How often producers are looked over for those that have expired (Kafka's
/// `producer.id.expiration.check.interval.ms`).
const PRODUCERS_INTERVAL_MS: i64 = 10 * 60 * 1000;

/// Segments looked at, at most, in search of the next whose index files are to be written: most of those that readers told
/// of have something to write.
const REBUILT_LOOKED_AT_MAX: usize = 64;

/// How far housekeeping may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkLimits {
    /// Records from here on stay, whatever their age: they may not be replicated yet.
    pub high_watermark: Offset,
    /// Whether to look for segments that may go, by their age, the log's size or its start.
    pub retention: bool,
}

impl WorkLimits {
    /// Records from the high watermark on stay. For a log that is not replicated that is [`Log::end`].
    pub fn new(high_watermark: Offset) -> Self {
        Self { high_watermark, retention: true }
    }

    /// The same without a look at retention, for who looks at it more seldom than at all else.
    #[must_use]
    pub fn without_retention(self) -> Self {
        Self { retention: false, ..self }
    }
}

/// A piece of work that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The files of a segment that left the log some time ago were removed.
    FilesRemoved,
    /// The active segment was old, and another one took its place.
    Rolled {
        /// The base offset of the new one.
        base: Offset,
    },
    /// Segments left the log: they lay below its start, or retention took them.
    SegmentsRetired {
        /// How many.
        segments: u32,
        /// Bytes of batches in them.
        bytes: u64,
        /// The log start now.
        log_start: Offset,
    },
    /// The largest timestamps of segments were read, to tell their age.
    AgeRead {
        /// The first one's base offset.
        base: Offset,
    },
    /// A segment that could go by its age holds a timestamp later than now, which would keep it for ever: its age counts from
    /// its last write. Told once of each while it is the oldest.
    TimestampAhead {
        /// The segment's base offset.
        base: Offset,
        /// Its largest timestamp.
        timestamp: TimestampMs,
    },
    /// The records that were due by the policy on syncs were synced.
    Flushed {
        /// The flush mark now.
        flushed: Offset,
    },
    /// Zeros were written ahead of the end, and synced.
    ZerosWritten {
        /// How many bytes.
        bytes: u64,
    },
    /// Segments that no longer grow were synced with their indexes and snapshots.
    Checkpointed {
        /// The recovery point now.
        recovery_point: Offset,
    },
    /// Index files that a reader found bad or missing were written anew.
    IndexesWritten {
        /// The segment's base offset.
        base: Offset,
    },
    /// A piece of a compaction was done, and there is more.
    Compacting,
    /// A compaction has come to its end.
    Compacted {
        /// Everything below is compacted.
        cleaner_offset: Offset,
        /// Bytes of batches in the segments it went over, before.
        bytes_before: u64,
        /// And after.
        bytes_after: u64,
        /// Segments that stay as they are, because of batches of an old format or damage in them.
        segments_left_out: u32,
    },
    /// Idempotent producers that were silent for too long were forgotten.
    ProducersExpired {
        /// How many.
        producers: usize,
    },
    /// A part of a segment was read and verified.
    Scrubbed {
        /// The segment's base offset.
        base: Offset,
        /// Bytes read.
        bytes: u64,
        /// Damaged stretches that were not known before; [`Log::damage`] tells all.
        damaged: u32,
        /// Batches with a wrong offset, epoch or length that their neighbours tell.
        mislabelled: u32,
        /// Index files were wrong, and right ones will be written.
        indexes_rebuilt: bool,
    },
}

/// Files of a segment that left the log, and when to remove them.
#[derive(Debug)]
pub(crate) struct Unlink {
    paths: Vec<PathBuf>,
    due: TimestampMs,
}

/// What the housekeeping of a log remembers from one call to the next.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    pub(crate) compactor: Compactor,
    pub(crate) scrubbing: Scrubbing,
    pub(crate) retiring: Retiring,
    unlinks: VecDeque<Unlink>,
    /// Whether a piece of work is under way.
    work: Weak<()>,
    /// Kinds of work that have failed since there was none left to do.
    failed: Kinds,
    producers_looked_at: Option<TimestampMs>,
    /// From which one on they are to be looked over, while that is under way.
    producers_from: Option<i64>,
}

/// A piece of work to be run, on whatever thread. Dropping it puts it off.
#[derive(Debug)]
#[must_use = "a job that is not run does nothing"]
pub struct WorkJob {
    kind: Kind,
    work: Work,
    /// Tells the log that there is a job under way.
    running: Arc<()>,
}

/// The kinds of work, in the order in which they are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unlink,
    Roll,
    Retire,
    ReadAge,
    Flush,
    ZeroAhead,
    Checkpoint,
    WriteIndexes,
    ExpireProducers,
    Compact,
    Scrub,
}

/// A set of kinds of work.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds(u16);

impl Kinds {
    fn has(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }

    fn add(&mut self, kind: Kind) {
        self.0 |= 1 << kind as u16;
    }
}

#[derive(Debug)]
enum Work {
    /// It was done when it began, for it was quick.
    Done(Result<Option<Step>, FlushError>),
    Unlink {
        place: Arc<Place>,
        unlink: Unlink,
    },
    Retire(Box<RetireJob>),
    Leave(LeaveJob),
    Flush(FlushJob),
    ZeroAhead(ZeroJob),
    Checkpoint(FlushJob),
    WriteIndexes {
        place: Arc<Place>,
        segment: Arc<Segment>,
        end: Offset,
        indexes: Option<Arc<MemoryIndexes>>,
        aborted: Option<Arc<[AbortedTransaction]>>,
        control: Arc<JobControl>,
    },
    Compact(Piece),
    Scrub(ScrubJob),
}

/// Which index files of a segment were written.
#[derive(Clone, Copy, Debug)]
struct Written {
    indexes: bool,
    aborted: bool,
}

/// A piece of work that was run, to be given back to its log.
#[derive(Debug)]
#[must_use = "the log learns what was done by Log::finish_work"]
pub struct WorkDone {
    kind: Kind,
    outcome: Outcome,
    _running: Arc<()>,
}

#[derive(Debug)]
enum Outcome {
    Done(Result<Option<Step>, FlushError>),
    Unlinked(Unlink, Result<(), IoError>),
    Retired(RetireDone),
    Left(LeaveDone),
    Flushed(FlushDone),
    Checkpointed(FlushDone),
    IndexesWritten(Arc<Segment>, Written, Result<bool, IoError>),
    Compacted(PieceDone),
    Scrubbed(ScrubDone),
}

impl WorkJob {
    /// Does the work.
    pub fn run(self) -> WorkDone {
        let outcome = match self.work {
            Work::Done(step) => Outcome::Done(step),
            Work::Unlink { place, unlink } => {
                let removed = unlink.paths.iter().try_for_each(|path| place.remove(path));
                Outcome::Unlinked(unlink, removed)
            }
            Work::Retire(job) => Outcome::Retired(job.run()),
            Work::Leave(job) => Outcome::Left(job.run()),
            Work::Flush(job) => Outcome::Flushed(job.run()),
            Work::ZeroAhead(job) => Outcome::Done(job.run().map(|bytes| Some(Step::ZerosWritten { bytes }))),
            Work::Checkpoint(job) => Outcome::Checkpointed(job.run()),
            Work::WriteIndexes { place, segment, end, indexes, aborted, control } => {
                let what = Written { indexes: indexes.is_some(), aborted: aborted.is_some() };
                let written = {
                    let _writing = control.writing();
                    let still_there = control.still_has(&segment, end);
                    let write = || {
                        // First, as where a segment is sealed: where there are indexes, recovery looks for no more.
                        aborted.map_or(Ok(()), |aborted| transactions::write_file(&place, segment.base(), &aborted))?;
                        indexes.map_or(Ok(()), |indexes| IndexWriter::write_files(&place, segment.base(), &indexes))
                    };
                    if still_there { write().map(|()| true) } else { Ok(false) }
                };
                Outcome::IndexesWritten(segment, what, written)
            }
            Work::Compact(piece) => Outcome::Compacted(piece.run()),
            Work::Scrub(job) => Outcome::Scrubbed(job.run()),
        };
        let kind = if let Outcome::Retired(done) = &outcome { done.kind() } else { self.kind };
        WorkDone { kind, outcome, _running: self.running }
    }
}

/// The housekeeping of one log on one thread; from [`Log::housekeeping`].
#[derive(Debug)]
pub struct Housekeeping<'log> {
    log: &'log mut Log,
}

impl<'log> Housekeeping<'log> {
    pub(crate) fn new(log: &'log mut Log) -> Self {
        Self { log }
    }

    /// Does the next piece of work that is due, and waits for it; `None` if none is. Call it until then, and again
    /// after a while.
    ///
    /// # Errors
    /// As [`Log::finish_work`].
    pub fn step(&mut self, now: TimestampMs, limits: &WorkLimits) -> Result<Option<Step>, FlushError> {
        while let Some(job) = self.log.begin_work(now, limits) {
            if let Some(step) = self.log.finish_work(job.run())? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }
}

impl Log {
    /// Begins the next piece of housekeeping that is due. `None` if none is, or if one is under way: begin again when
    /// it is finished, until there is none, and then again after a while.
    ///
    /// What needs the disk is left to [`WorkJob::run`], but for a roll: it creates one file, here (by age) or in
    /// [`Log::finish_work`] (of a segment that may go as a whole), as it does in an append. So is going through lists: a log
    /// of many segments or producers holds appends up no longer than one of few.
    pub fn begin_work(&mut self, now: TimestampMs, limits: &WorkLimits) -> Option<WorkJob> {
        if !self.may_begin_work() {
            return None;
        }
        self.release_decided(limits.high_watermark);
        let Some((kind, work)) = self.next_work(now, limits) else {
            // What failed has been passed over by all the others, and gets another turn.
            self.upkeep.failed = Kinds::default();
            self.end_retire_round();
            self.forget_ended_jobs();
            return None;
        };
        Some(self.work_job(kind, work))
    }

    /// As [`Log::begin_work`], only what a log needs that is being written to: zeros ahead of its end and checkpoints. For
    /// who looks for the rest more rarely than appends come. Looks at a few numbers in memory.
    pub fn begin_pressing_work(&mut self, now: TimestampMs) -> Option<WorkJob> {
        let pressing = if self.may_begin_work() { self.pressing_work(now) } else { None };
        pressing.map(|(kind, work)| self.work_job(kind, work))
    }

    fn may_begin_work(&mut self) -> bool {
        self.upkeep.work.strong_count() == 0 && self.shared.usable().is_ok()
    }

    fn work_job(&mut self, kind: Kind, work: Work) -> WorkJob {
        let running = Arc::new(());
        self.upkeep.work = Arc::downgrade(&running);
        WorkJob { kind, work, running }
    }

    fn pressing_work(&mut self, now: TimestampMs) -> Option<(Kind, Work)> {
        // What was tried and failed waits for its turn in [`Log::begin_work`].
        let failed = self.upkeep.failed;
        if !failed.has(Kind::ZeroAhead)
            && let Some(job) = self.zeros_due()
        {
            return Some((Kind::ZeroAhead, Work::ZeroAhead(job)));
        }
        if !failed.has(Kind::Checkpoint)
            && self.is_checkpoint_due(now)
            && let Some(job) = self.checkpoint_beside_flushes()
        {
            return Some((Kind::Checkpoint, Work::Checkpoint(job)));
        }
        None
    }

    /// Takes note of a piece of work that was run. `None` if it came to nothing.
    ///
    /// # Errors
    /// If a file operation failed. Work of that kind is not begun again before there is none of the others left, so that
    /// one that always fails (a roll on a full disk) keeps none of them back (retention, which makes room).
    pub fn finish_work(&mut self, done: WorkDone) -> Result<Option<Step>, FlushError> {
        self.upkeep.work = Weak::new();
        let kind = done.kind;
        let finished = self.finish(done.outcome);
        if finished.is_err() {
            self.upkeep.failed.add(kind);
        }
        finished
    }

    fn finish(&mut self, outcome: Outcome) -> Result<Option<Step>, FlushError> {
        match outcome {
            Outcome::Done(step) => step,
            Outcome::Unlinked(unlink, removed) => {
                if let Err(error) = removed {
                    self.upkeep.unlinks.push_back(unlink);
                    return Err(error.into());
                }
                Ok(Some(Step::FilesRemoved))
            }
            Outcome::Retired(done) => self.finish_retire(done),
            Outcome::Left(done) => self.finish_leave(done),
            Outcome::Flushed(done) => self.finish_flush(done).map(|flushed| Some(Step::Flushed { flushed })),
            Outcome::Checkpointed(done) => {
                self.finish_flush(done)?;
                Ok(Some(Step::Checkpointed { recovery_point: self.recovery_point }))
            }
            Outcome::IndexesWritten(segment, what, written) => {
                if !written? {
                    return Ok(None);
                }
                // What a reader found out meanwhile is still to be written.
                if what.indexes {
                    segment.rebuilt_indexes_written();
                }
                if what.aborted {
                    segment.transactions().rebuilt_written();
                }
                Ok(Some(Step::IndexesWritten { base: segment.base() }))
            }
            Outcome::Compacted(done) => self.finish_compaction(done),
            Outcome::Scrubbed(done) => self.finish_scrub(done),
        }
    }

    /// Housekeeping on this thread.
    pub fn housekeeping(&mut self) -> Housekeeping<'_> {
        Housekeeping::new(self)
    }

    fn next_work(&mut self, now: TimestampMs, limits: &WorkLimits) -> Option<(Kind, Work)> {
        let failed = self.upkeep.failed;
        let may = |kind| !failed.has(kind);
        if may(Kind::Unlink)
            && self.upkeep.unlinks.front().is_some_and(|unlink| unlink.due <= now)
            && let Some(unlink) = self.upkeep.unlinks.pop_front()
        {
            return Some((Kind::Unlink, Work::Unlink { place: self.place.clone(), unlink }));
        }
        if may(Kind::Flush)
            && self.is_flush_due(now)
            && let Some(job) = self.begin_flush()
        {
            return Some((Kind::Flush, Work::Flush(job)));
        }
        if may(Kind::Roll)
            && let Some(step) = self.roll_by_age(now).transpose()
        {
            return Some((Kind::Roll, Work::Done(step.map(Some))));
        }
        if may(Kind::Retire) {
            if let Some(job) = self.leave_job(now) {
                return Some((Kind::Retire, Work::Leave(job)));
            }
            if limits.retention
                && let Some(job) = self.retire_job(now, limits.high_watermark, may(Kind::ReadAge))
            {
                return Some((Kind::Retire, Work::Retire(Box::new(job))));
            }
        }
        if let Some(pressing) = self.pressing_work(now) {
            return Some(pressing);
        }
        if may(Kind::WriteIndexes)
            && let Some(work) = self.rebuilt_indexes()
        {
            return Some((Kind::WriteIndexes, work));
        }
        if let Some(step) = self.expire_producers(now) {
            return Some((Kind::ExpireProducers, Work::Done(Ok(step))));
        }
        if may(Kind::Compact)
            && let Some(piece) = self.compaction_piece(now, limits.high_watermark)
        {
            return Some((Kind::Compact, Work::Compact(piece)));
        }
        if !may(Kind::Scrub) {
            return None;
        }
        self.scrub_due(now).map(|job| (Kind::Scrub, Work::Scrub(job)))
    }

    /// By the clock only: a log that takes in old records would roll each time if it went by theirs.
    fn roll_by_age(&mut self, now: TimestampMs) -> Result<Option<Step>, FlushError> {
        let since = *self.active.since.get_or_insert(now);
        if self.active.len == 0 || now.since(since) <= self.segment_ms() {
            return Ok(None);
        }
        let base = self.end();
        self.mark_dirty()?;
        self.roll(base)?;
        Ok(Some(Step::Rolled { base }))
    }

    /// Has files that were given up removed after the delay.
    pub(crate) fn unlink_later(&mut self, paths: Vec<PathBuf>, now: TimestampMs) {
        let due = now.after(self.options.file_delete_delay_ms);
        self.upkeep.unlinks.push_back(Unlink { paths, due });
    }

    /// The next segment of which a reader found that its index files are wrong.
    fn rebuilt_indexes(&mut self) -> Option<Work> {
        for _ in 0..REBUILT_LOOKED_AT_MAX {
            let base = self.place.rebuilt.take()?;
            if let Some(work) = self.rebuilt_at(base) {
                // It may be put off, or fail. Once it is done the next look finds nothing there.
                self.place.rebuilt.add(base);
                return Some(work);
            }
        }
        None
    }

    fn rebuilt_at(&mut self, base: Offset) -> Option<Work> {
        let segments = self.shared.segments();
        // The active segment's are written when it is sealed or the log closed.
        let segment = segments.at(base).filter(|segment| segment.base() < self.active.segment.base())?;
        let indexes = segment.rebuilt_indexes().and_then(|indexes| match indexes {
            Indexes::Memory(indexes) => Some(indexes),
            Indexes::Files(_) => None,
        });
        let aborted = segment.transactions().rebuilt();
        if indexes.is_none() && aborted.is_none() {
            return None;
        }
        let (place, end, control) =
            (self.place.clone(), segments.end_of(segment, self.end()), self.job_control(JobKind::SideFiles));
        Some(Work::WriteIndexes { place, segment: segment.clone(), end, indexes, aborted, control })
    }

    /// Looks over so many producers as are quickly done. `None` if that is not due, or was the last of it and found none.
    fn expire_producers(&mut self, now: TimestampMs) -> Option<Option<Step>> {
        let upkeep = &mut *self.upkeep;
        let looked_at = *upkeep.producers_looked_at.get_or_insert(now);
        if upkeep.producers_from.is_none() && now.since(looked_at) >= PRODUCERS_INTERVAL_MS {
            (upkeep.producers_looked_at, upkeep.producers_from) = (Some(now), Some(i64::MIN));
        }
        let from = upkeep.producers_from.take()?;
        let (producers, next) = self.producers.expire_from(from, now, self.options.producer_id_expiration_ms);
        upkeep.producers_from = next;
        let step = (producers > 0).then_some(Step::ProducersExpired { producers });
        (step.is_some() || next.is_some()).then_some(step)
    }
}
