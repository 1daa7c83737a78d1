//! Compaction (`cleanup.policy=compact`): of the records of one key the last one stays.
//!
//! The log has a clean part, from its start to the *cleaner offset*, and a dirty one behind it. A compaction puts the
//! keys of the dirty part, with the last offset of each, into a map of fixed size, and then writes the segments from the
//! start up to where the map reaches anew, without the records that a later one of their key supersedes. Small neighbours
//! become one segment. Offsets never change: a batch that loses records still covers its offsets, and the last batch of
//! each segment that is written stays, if only as a header, so that segments go on where the one before ends. The active
//! segment, what is not flushed, what is not replicated, and open transactions are not touched.
//!
//! Tombstones go after `delete_retention_ms`, counted from the compaction that first sees them clean, which writes the
//! time into the batch (KIP-534); markers of transactions likewise, once no record of theirs is left. Records of aborted
//! transactions go at once. A segment with a batch that cannot be compacted (of an old format, or damaged) stays as it
//! is, and behind it tombstones and markers stay too: what they are about may be in it.
//!
//! Memory: 24 bytes for each key of the dirty part plus a ninth, within [`CompactionMemory`], and per compaction four buffers
//! of `io_buffer_bytes` and four times the largest batch (as it is stored, and as it is written anew), what a decompressor
//! needs, an entry for each known producer and each aborted transaction, some for each segment, and the indexes of the
//! segment being written. `tests/memory_of_work.rs` measures it.
//!
//! Source of the rules: Kafka's `LogCleaner`, `Cleaner`, `LogCleanerManager`.

mod filter;
mod offset_map;
mod options;
mod output;
mod plan;
mod records;
mod run;
mod swap;
mod transactions;

use std::sync::Arc;

use filter::LastBatches;
pub use options::{CompactionMemory, CompactionOptions};
use run::{Begin, Look, Progress, Run};

use crate::error::FlushError;
use crate::flush::JobKind;
use crate::housekeeping::Step;
use crate::io::IoError;
use crate::log::Log;
use crate::options::LogOptions;
use crate::{Offset, TimestampMs};

/// What a log knows about its compaction.
#[derive(Debug, Default)]
pub(crate) struct Compactor {
    /// A pass has ended below this, for want of memory.
    unfinished_below: Offset,
    /// The compaction under way, between two pieces of it.
    run: Option<Box<Run>>,
    /// Not before this time is there to be another.
    not_before: Option<TimestampMs>,
    /// What the last look at it found too little to do in.
    idle: Option<Box<Idle>>,
}

/// What a look found nothing to do in: there is no other before something has changed.
#[derive(Debug)]
struct Idle {
    log_options: Arc<LogOptions>,
    first_dirty: Offset,
    limit: Offset,
    ends: IdleEnds,
}

#[derive(Debug)]
enum IdleEnds {
    /// Too little is dirty, or too young.
    At(TimestampMs),
    /// Others have the memory.
    WithMemory(u64),
}

impl Idle {
    fn lasts(&self, now: TimestampMs, options: &CompactionOptions) -> bool {
        match self.ends {
            IdleEnds::At(end) => now < end,
            IdleEnds::WithMemory(bytes) => !options.memory.has(bytes),
        }
    }
}

/// A piece of a compaction, to be run on whatever thread.
#[derive(Debug)]
pub(crate) struct Piece {
    run: Box<Run>,
    now: TimestampMs,
}

/// A piece that was run.
#[derive(Debug)]
pub(crate) struct PieceDone {
    run: Box<Run>,
    now: TimestampMs,
    progress: Result<Progress, IoError>,
}

impl Piece {
    pub(crate) fn run(mut self) -> PieceDone {
        let progress = self.run.advance();
        PieceDone { run: self.run, now: self.now, progress }
    }
}

impl Compactor {
    /// What is compacted now ends at `end` at the latest.
    pub(crate) fn lower(&mut self, end: Offset) {
        self.unfinished_below = self.unfinished_below.min(end);
        (self.run, self.idle) = (None, None);
    }
}

impl Log {
    /// Everything below is compacted (Kafka's first dirty offset); the log start if nothing is.
    pub fn cleaner_offset(&self) -> Offset {
        let known = self.cleaner_offset;
        if known < self.start() || known > self.end() { self.start() } else { known }
    }

    /// Forgets transactions that nothing will decide anew. For readers those are below the high watermark. Compaction, which
    /// takes away what a marker has superseded, waits until the marker is flushed; a log that is not compacted and hardly
    /// ever flushed need not remember them as long.
    pub(crate) fn release_decided(&mut self, high_watermark: Offset) {
        let waits = self.options.compaction.is_some();
        let decided = if waits { high_watermark.min(self.flushed()) } else { high_watermark.min(self.end()) };
        self.shared.undecided().release(decided);
    }

    /// The next piece of compaction that is due. Which segments there are to compact is for the first piece to find out: no
    /// list is gone through here.
    pub(crate) fn compaction_piece(&mut self, now: TimestampMs, high_watermark: Offset) -> Option<Piece> {
        let compactor = &mut self.upkeep.compactor;
        let Some(options) = self.options.compaction.clone() else {
            compactor.run = None;
            return None;
        };
        if let Some(run) = compactor.run.take() {
            return Some(Piece { run, now });
        }
        // What a marker that a power cut or another leader may take has decided is not decided.
        let decided = high_watermark.min(self.flushed());
        let not_before = self.upkeep.compactor.not_before;
        if not_before.is_some_and(|due| now < due) || decided < self.shared.undecided().known_from() {
            return None;
        }
        let first_dirty = self.cleaner_offset();
        // What is being compacted must be durable with all that follows from it, and must not be where the flush mark is.
        let durable = self.sealed.first().map_or(self.recovery_point, |sealed| sealed.segment.base());
        let stable = self.last_stable_offset(decided);
        let limit = stable.min(durable).min(self.recovery_point).min(self.active.segment.base());
        let is_idle = |idle: &Idle| {
            Arc::ptr_eq(&idle.log_options, &self.options)
                && (idle.first_dirty, idle.limit) == (first_dirty, limit)
                && idle.lasts(now, &options)
        };
        if limit <= first_dirty || self.upkeep.compactor.idle.as_deref().is_some_and(is_idle) {
            return None;
        }
        let begin = Begin {
            place: self.place.clone(),
            shared: self.shared.clone(),
            control: self.job_control(JobKind::Long),
            log_options: self.options.clone(),
            options,
            now,
            last_batches: LastBatches::of(&self.producers),
            look: Look {
                segments: self.shared.segments(),
                end: self.end(),
                first_dirty,
                limit,
                forced: self.upkeep.compactor.unfinished_below > first_dirty,
            },
            decided,
        };
        Some(Piece { run: Box::new(Run::new(begin)), now })
    }

    /// Takes note of a piece that was run.
    pub(crate) fn finish_compaction(&mut self, done: PieceDone) -> Result<Option<Step>, FlushError> {
        let PieceDone { mut run, now, progress } = done;
        let given_up = run.take_given_up();
        if !given_up.is_empty() {
            self.unlink_later(given_up, now);
        }
        // Never at once, or who calls until there is nothing left to do would call for ever.
        let backoff_ms = self.options.compaction.as_ref().map_or(1, |options| options.backoff_ms.max(1));
        let not_before = Some(now.after(backoff_ms));
        match progress {
            Ok(Progress::Idle { first_dirty, limit, memory_wanted }) => {
                let ends = memory_wanted.map_or_else(|| IdleEnds::At(now.after(backoff_ms)), IdleEnds::WithMemory);
                let log_options = self.options.clone();
                self.upkeep.compactor.idle = Some(Box::new(Idle { log_options, first_dirty, limit, ends }));
                Ok(None)
            }
            Ok(Progress::Superseded) => {
                self.upkeep.compactor.not_before = not_before;
                Ok(None)
            }
            Ok(_) if run.is_void() => {
                self.upkeep.compactor.not_before = not_before;
                Ok(None)
            }
            Ok(Progress::Going) => {
                self.upkeep.compactor.run = Some(run);
                Ok(Some(Step::Compacting))
            }
            Ok(Progress::Finished { upto, limit, totals }) => {
                self.cleaner_offset = upto;
                self.upkeep.compactor.unfinished_below = limit;
                Ok(Some(Step::Compacted {
                    cleaner_offset: upto,
                    bytes_before: totals.bytes_before,
                    bytes_after: totals.bytes_after,
                    segments_left_out: totals.segments_left_out,
                }))
            }
            Err(error) => {
                self.upkeep.compactor.not_before = not_before;
                Err(error.into())
            }
        }
    }
}
