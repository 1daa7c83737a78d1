//! The work that appends do not wait for, as a queue of steps.

use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;

use crate::error::FlushError;
use crate::indexes::{IndexWriter, Indexes};
use crate::io::{IoContext, IoError};
use crate::log::Log;
use crate::retention::{self, Candidate};
use crate::snapshots;
use crate::truncation::SEGMENT_FILES;
use crate::{Offset, TimestampMs};

/// Files of a segment that left the log, and when to remove them.
#[derive(Debug)]
pub(crate) struct Unlink {
    paths: Vec<PathBuf>,
    due: TimestampMs,
}

/// How often producers are looked over for those that have expired (Kafka's
/// `producer.id.expiration.check.interval.ms`).
const PRODUCERS_INTERVAL_MS: i64 = 10 * 60 * 1000;

/// A step that was done.
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
    /// Index files that a reader found bad or missing were written anew.
    IndexesWritten {
        /// The segment's base offset.
        base: Offset,
    },
    /// Idempotent producers that were silent for too long were forgotten.
    ProducersExpired {
        /// How many.
        producers: usize,
    },
}

/// The housekeeping of one log; from [`Log::housekeeping`].
#[derive(Debug)]
pub struct Housekeeping<'log> {
    log: &'log mut Log,
}

impl<'log> Housekeeping<'log> {
    pub(crate) fn new(log: &'log mut Log) -> Self {
        Self { log }
    }

    /// Does the next step that is due, or nothing if none is. Call it until it returns `None`, then again after a while.
    ///
    /// Records from `deletable_below` on are kept whatever their age: give the high watermark, or [`Log::end`] for a
    /// log that is not replicated.
    ///
    /// # Errors
    /// If a file operation fails. The step is tried again with the next call.
    pub fn step(&mut self, now: TimestampMs, deletable_below: Offset) -> Result<Option<Step>, FlushError> {
        let log = &mut *self.log;
        log.shared.usable()?;
        if let Some(step) = log.remove_files(now)? {
            return Ok(Some(step));
        }
        if let Some(step) = log.roll_by_age(now)? {
            return Ok(Some(step));
        }
        if let Some(step) = log.retire(now, deletable_below)? {
            return Ok(Some(step));
        }
        if let Some(step) = log.write_rebuilt_indexes()? {
            return Ok(Some(step));
        }
        Ok(log.expire_producers(now))
    }
}

impl Log {
    fn remove_files(&mut self, now: TimestampMs) -> Result<Option<Step>, IoError> {
        let Some(unlink) = self.unlinks.pop_front_if(|unlink| unlink.due <= now) else { return Ok(None) };
        for path in &unlink.paths {
            if let Err(error) = self.place.remove(path) {
                self.unlinks.push_front(unlink);
                return Err(error);
            }
        }
        self.directory_changes += 1;
        Ok(Some(Step::FilesRemoved))
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

    fn retire(&mut self, now: TimestampMs, deletable_below: Offset) -> Result<Option<Step>, FlushError> {
        let segments = self.shared.segments();
        let mut candidates = Vec::with_capacity(segments.all().len());
        let ages_count = self.options.retention && self.options.retention_ms >= 0;
        for (segment, end) in segments.with_ends(self.end()) {
            // The timestamps of a segment that cannot be read, or that stays anyway, are not looked for.
            let timestamp = if ages_count && end <= deletable_below {
                let largest = segment.largest_timestamp().unwrap_or(TimestampMs::NONE);
                self.age_from(largest, &segment.path(), now)?
            } else {
                now
            };
            candidates.push(Candidate { end, size_bytes: segment.len(), timestamp });
        }
        let count = retention::plan(&candidates, self.start(), deletable_below, now, &self.options);
        let Some(last) = count.checked_sub(1).and_then(|last| candidates.get(last)) else { return Ok(None) };
        let new_base = last.end;
        self.mark_dirty()?;
        if count == candidates.len() {
            self.roll(new_base)?;
        }
        // The start first, durably: a start below the first segment would be raised by the next open, but one that was
        // told and lost would not come back.
        if new_base > self.start() {
            self.advance_start(new_base).map_err(|error| match error {
                crate::TruncateError::Io(error) => FlushError::Io(error),
                crate::TruncateError::Closed(fence) => FlushError::Closed(fence),
                other => unreachable!("a segment's end is neither negative nor past the log's: {other}"),
            })?;
        }
        let side_files = self.side_files.clone();
        let _writing = side_files.lock().unwrap_or_else(PoisonError::into_inner);
        let (retired, kept) = self.shared.segments().split_below(new_base);
        self.shared.set_segments(kept);
        self.sealed.retain(|sealed| sealed.segment.base() >= new_base);
        for segment in &retired {
            segment.retire();
            let mut paths = Vec::new();
            for kind in SEGMENT_FILES {
                let (from, to) = (self.place.path(segment.base(), kind), self.place.deleted_path(segment.base(), kind));
                match self.place.fs.rename(&from, &to) {
                    Ok(()) => paths.push(to),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error).context("rename", &from)?,
                }
            }
            self.unlinks.push_back(Unlink { paths, due: now.after(self.options.file_delete_delay_ms) });
        }
        self.directory_changes += 1;
        snapshots::remove_unless(&self.place, |offset| offset >= new_base)?;
        Ok(Some(Step::SegmentsRetired {
            segments: u32::try_from(retired.len()).unwrap_or(u32::MAX),
            bytes: retired.iter().map(|segment| segment.len()).sum(),
            log_start: self.start(),
        }))
    }

    /// The time a segment's age counts from: its largest timestamp. Without one, and where it lies in the future and
    /// would keep the segment for ever, the time of the last write.
    fn age_from(&self, largest: TimestampMs, path: &std::path::Path, now: TimestampMs) -> Result<TimestampMs, IoError> {
        if largest >= TimestampMs(0) && largest <= now {
            return Ok(largest);
        }
        let modified = self.place.fs.metadata(path).context("read metadata of", path)?.modified;
        Ok(if largest > now { largest.min(modified) } else { modified })
    }

    fn write_rebuilt_indexes(&mut self) -> Result<Option<Step>, IoError> {
        for segment in self.shared.segments().all() {
            let Some(Indexes::Memory(indexes)) = segment.rebuilt_indexes() else { continue };
            // The active segment's are written when it is sealed or the log closed.
            if segment.base() < self.active.segment.base() {
                IndexWriter::write_files(&self.place, segment.base(), &indexes)?;
                segment.unload_indexes();
            }
            segment.rebuilt_indexes_written();
            return Ok(Some(Step::IndexesWritten { base: segment.base() }));
        }
        Ok(None)
    }

    fn expire_producers(&mut self, now: TimestampMs) -> Option<Step> {
        let looked_at = *self.producers_looked_at.get_or_insert(now);
        if now.since(looked_at) < PRODUCERS_INTERVAL_MS {
            return None;
        }
        self.producers_looked_at = Some(now);
        let producers = self.producers.expire(now, self.options.producer_id_expiration_ms);
        (producers > 0).then_some(Step::ProducersExpired { producers })
    }
}
