//! Reads what was written long ago, slowly, so that rot is found before somebody needs the records.
//!
//! A pass goes over the segments that no longer grow, from the oldest on: every batch is read and its checksum verified,
//! held against its neighbours and the leader epochs, and the indexes are held against the batches. What is damaged is
//! noted for all readers, an index that is wrong is built anew. A step reads a bounded number of bytes, and all logs that
//! share a [`ScrubRate`] read no faster than it together.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::batch::BatchHeader;
use crate::error::{FlushError, ReadError};
use crate::housekeeping::Step;
use crate::indexes::Indexes;
use crate::io::IoContext;
use crate::log::Log;
use crate::reader::Shared;
use crate::segment::{Place, Segment};
use crate::snapshots::with_view;
use crate::survey::{self, Frame, Sound, Survey};
use crate::transactions::AbortedBuilder;
use crate::{LeaderEpoch, Offset, TimestampMs};

/// Bytes after which a step ends, give or take a batch.
const STEP_BYTES: u64 = 1 << 20;

/// Time for which the rate may be saved up, so that it is reached although housekeeping runs only every so often.
const SAVED_MS: i64 = 30_000;

/// How fast logs are scrubbed, together: all that have a clone of it.
#[derive(Clone)]
pub struct ScrubRate {
    bytes_per_second: u64,
    /// Everything read so far was due before this.
    paid_until: Arc<Mutex<TimestampMs>>,
}

impl ScrubRate {
    /// So many bytes a second, by the time that housekeeping is told; 0 for none.
    pub fn bytes_per_second(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, paid_until: Arc::new(Mutex::new(TimestampMs(i64::MIN))) }
    }

    /// Whether a step may be taken now.
    fn allows(&self, now: TimestampMs) -> bool {
        self.bytes_per_second > 0 && *self.paid_until.lock().unwrap_or_else(PoisonError::into_inner) <= now
    }

    /// Pays for what a step that began now has read.
    fn pay(&self, now: TimestampMs, bytes: u64) {
        let ms = bytes.saturating_mul(1000).div_ceil(self.bytes_per_second.max(1));
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        *paid_until = (*paid_until).max(now.after(-SAVED_MS)).after(i64::try_from(ms).unwrap_or(i64::MAX));
    }
}

impl Default for ScrubRate {
    /// 4 MiB a second: 350 GB a day, and little beside what a disk can do.
    fn default() -> Self {
        Self::bytes_per_second(4 << 20)
    }
}

impl fmt::Debug for ScrubRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScrubRate").field("bytes_per_second", &self.bytes_per_second).finish_non_exhaustive()
    }
}

/// Where the scrubbing of a log is.
#[derive(Debug, Default)]
pub(crate) struct Scrubbing {
    /// When the last pass began.
    began: Option<TimestampMs>,
    /// All below was read in this pass; `None` between two passes.
    reached: Option<Offset>,
    /// The segment that is being read.
    within: Option<Box<Progress>>,
}

/// How far one segment was read.
#[derive(Debug)]
struct Progress {
    segment: Arc<Segment>,
    position: u64,
    expected: Offset,
    epoch: LeaderEpoch,
    /// Where the last batch began.
    last_batch: Option<u64>,
    /// What the transaction index should say so far; `None` behind damage, where that cannot be told.
    aborted: Option<AbortedBuilder>,
    /// Nobody had use for the indexes before.
    unloads_indexes: bool,
    /// Nor had its file open.
    closes_file: bool,
}

/// A step of scrubbing, for any thread.
#[derive(Debug)]
pub(crate) struct ScrubJob {
    place: Arc<Place>,
    shared: Arc<Shared>,
    rate: ScrubRate,
    now: TimestampMs,
    /// The segment's end: the base of the next.
    end: Offset,
    progress: Box<Progress>,
    is_new: bool,
    generation: u64,
}

/// What a step came to.
#[derive(Debug)]
pub(crate) struct ScrubDone {
    end: Offset,
    base: Offset,
    bytes: u64,
    damaged: u32,
    mislabelled: u32,
    indexes_rebuilt: bool,
    /// The segment is not read to its end yet.
    progress: Option<Box<Progress>>,
    failed: Option<FlushError>,
}

impl Log {
    /// The next step of scrubbing, if one is due.
    pub(crate) fn scrub_due(&mut self, now: TimestampMs) -> Option<ScrubJob> {
        let interval = self.options.scrub_interval_ms;
        if interval < 0 || !self.options.scrub_rate.allows(now) {
            return None;
        }
        let scrubbing = &mut self.upkeep.scrubbing;
        if scrubbing.reached.is_none() {
            if scrubbing.began.is_some_and(|began| now.since(began) < interval) {
                return None;
            }
            *scrubbing = Scrubbing { began: Some(now), reached: Some(Offset(i64::MIN)), within: None };
        }
        let reached = scrubbing.reached?;
        let within = scrubbing.within.take();
        let segments = self.shared.segments();
        let next = segments.holding_with_next(reached).find(|(_, end)| *end > reached);
        // What is not synced is being read by the sync soon enough; the active segment is for a later pass.
        let next = next.filter(|(segment, end)| segment.base() < self.active.segment.base() && *end <= self.flushed());
        let Some((segment, end)) = next else {
            self.upkeep.scrubbing.reached = None;
            return None;
        };
        let within = within.filter(|within| Arc::ptr_eq(&within.segment, segment));
        let is_new = within.is_none();
        let progress = within.unwrap_or_else(|| Box::new(Progress::new(segment.clone())));
        Some(ScrubJob {
            place: self.place.clone(),
            shared: self.shared.clone(),
            rate: self.options.scrub_rate.clone(),
            now,
            end,
            progress,
            is_new,
            generation: self.shared.generation(),
        })
    }

    /// Takes note of a step that was run.
    pub(crate) fn finish_scrub(&mut self, done: ScrubDone) -> Result<Option<Step>, FlushError> {
        let scrubbing = &mut self.upkeep.scrubbing;
        if scrubbing.reached.is_some() {
            if done.progress.is_none() {
                scrubbing.reached = Some(done.end);
            }
            scrubbing.within = done.progress;
        }
        let ScrubDone { base, bytes, damaged, mislabelled, indexes_rebuilt, failed, .. } = done;
        match failed {
            // Once for each pass: it goes on with the next segment.
            Some(error) => Err(error),
            None => Ok(Some(Step::Scrubbed { base, bytes, damaged, mislabelled, indexes_rebuilt })),
        }
    }
}

impl Progress {
    fn new(segment: Arc<Segment>) -> Self {
        let (expected, epoch) = (segment.base(), LeaderEpoch::NONE);
        let (unloads_indexes, closes_file) = (!segment.has_indexes(), !segment.has_open_file());
        Self { segment, position: 0, expected, epoch, last_batch: None, aborted: None, unloads_indexes, closes_file }
    }
}

impl ScrubJob {
    /// Reads and verifies the next bytes of the segment.
    pub(crate) fn run(mut self) -> ScrubDone {
        let from = self.progress.position;
        let mut done = ScrubDone {
            end: self.end,
            base: self.progress.segment.base(),
            bytes: 0,
            damaged: 0,
            mislabelled: 0,
            indexes_rebuilt: false,
            progress: None,
            failed: None,
        };
        let read = self.read(&mut done);
        done.bytes = self.progress.position - from;
        self.rate.pay(self.now, done.bytes.max(1));
        if !self.still_stands() {
            // What was read may be of two histories, or gone.
            (done.damaged, done.mislabelled) = (0, 0);
            return done;
        }
        match read {
            Ok(true) => {
                if self.progress.unloads_indexes && !done.indexes_rebuilt {
                    self.progress.segment.unload_read_indexes();
                }
                if self.progress.closes_file {
                    self.progress.segment.release_file();
                }
            }
            Ok(false) => done.progress = Some(self.progress),
            Err(ReadError::Io(error)) => done.failed = Some(error.into()),
            // It is noted as damage, or the log was truncated or closed: then there is nothing to say.
            Err(_) => {}
        }
        done
    }

    /// Whether the segment is still part of the log, and the log was not truncated since.
    fn still_stands(&self) -> bool {
        let has_segment = |segment| Arc::ptr_eq(segment, &self.progress.segment);
        self.shared.generation() == self.generation && self.shared.segments().all().any(has_segment)
    }

    /// Whether the segment was read to its end.
    fn read(&mut self, done: &mut ScrubDone) -> Result<bool, ReadError> {
        let segment = self.progress.segment.clone();
        let (file, path) = (segment.file()?, segment.path());
        if self.is_new {
            self.progress.aborted = Some(AbortedBuilder::at(&self.place, &self.shared.segments(), segment.base())?);
        }
        let epochs = self.shared.epochs();
        let start = self.progress.position;
        let mut survey = Survey::new(
            &*file,
            Frame {
                position: start,
                expected: self.progress.expected,
                epoch: self.progress.epoch,
                epochs: Some((&epochs, self.end)),
                verify_from: start,
                ..Frame::whole(segment.base(), segment.len(), self.end)
            },
        );
        let was_rebuilt = segment.rebuilt_indexes().is_some();
        let indexes = segment.indexes()?;
        done.indexes_rebuilt |= !was_rebuilt && segment.rebuilt_indexes().is_some();
        let mut is_index_wrong = false;
        let is_at_end = loop {
            if self.progress.position - start >= STEP_BYTES {
                break false;
            }
            match survey.step().context("read", &path)? {
                survey::Step::Batch(batch) => {
                    done.mislabelled += u32::from(!batch.fixes.is_empty() || batch.doubtful_epoch);
                    if let Some(damaged) = segment.mislabelled(&batch) {
                        done.damaged += self.note(damaged);
                    }
                    if let Some(aborted) = &mut self.progress.aborted {
                        with_view(&mut survey, &batch, |view| aborted.take(view)).context("read", &path)?;
                    }
                    is_index_wrong |= !self.confirms(&indexes, &batch)?;
                    self.progress.last_batch = Some(batch.position);
                    self.progress.position = batch.position + batch.header.total_bytes() as u64;
                    self.progress.expected = batch.header.next_offset();
                }
                survey::Step::Damage(stretch) => {
                    self.progress.position = stretch.position + stretch.bytes;
                    self.progress.expected = stretch.offsets.end;
                    (self.progress.aborted, self.progress.last_batch) = (None, None);
                    done.damaged += self.note(segment.damage(stretch));
                }
                survey::Step::Zeros(_) | survey::Step::End => break true,
            }
            self.progress.epoch = survey.epoch();
        };
        if let Indexes::Files(wrong) = &indexes
            && is_index_wrong
        {
            segment.rebuild_wrong_indexes(wrong)?;
            done.indexes_rebuilt = true;
        }
        if is_at_end && let Some(aborted) = self.progress.aborted.take() {
            done.indexes_rebuilt |= segment.reconcile_aborted(&self.shared.segments(), self.end, aborted)?;
        }
        Ok(is_at_end)
    }

    /// Has all readers know of damage. Returns how much of it is news.
    fn note(&self, damaged: crate::error::Damaged) -> u32 {
        let known = self.progress.segment.known_damage();
        let is_news = known.next_from(damaged.position).is_none_or(|known| known != damaged);
        known.note(damaged, || self.shared.generation() == self.generation);
        u32::from(is_news)
    }

    /// Whether index files lead to this batch, by its offsets and by its time, and to the start of a batch.
    fn confirms(&self, indexes: &Indexes, batch: &Sound) -> Result<bool, ReadError> {
        if !matches!(indexes, Indexes::Files(_)) {
            return Ok(true);
        }
        let Sound { position, header: BatchHeader { max_timestamp, .. }, .. } = batch;
        let (path, last) = (self.progress.segment.path(), batch.header.last_offset());
        let found = indexes.position_of(last).context("read an index of", &path)?;
        let is_start = found == *position
            || (found < *position && self.progress.last_batch.is_none_or(|last_batch| found <= last_batch));
        let before = indexes.time_before(*max_timestamp).context("read an index of", &path)?.offset;
        Ok(is_start && before <= last)
    }
}
