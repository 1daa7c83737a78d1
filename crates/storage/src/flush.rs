//! Making what was appended durable, in three parts: begin on the writer's thread, run on any other, finish on the
//! writer's again. Appends, rolls and truncations may happen in between.
//!
//! A *flush* syncs the batches, and the directory if there are new files in it: that is all an acknowledgement may have
//! to wait for. A *checkpoint* also writes and syncs what follows from the batches (indexes, producer snapshots, leader
//! epochs), and moves the recovery point, below which these are trusted unread.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

use crate::checkpoint::replace_file;
use crate::error::{Fence, FlushError};
use crate::fs::File;
use crate::index::AbortedTransaction;
use crate::indexes::{IndexWriter, MemoryIndexes};
use crate::io::{IoContext, IoError};
use crate::log::{Log, write_epochs};
use crate::names::SegmentFile;
use crate::producers::ProducerSnapshot;
use crate::reader::Shared;
use crate::segment::{Place, Segment};
use crate::state_file::{FlushMark, StateFile};
use crate::transactions;
use crate::{LeaderEpoch, Offset};

/// A segment that no longer grows and is not synced yet.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub(crate) segment: Arc<Segment>,
    /// Kept open until it is synced, so that the news of a failed write-back is not lost; `None` after that, when only
    /// its side files are missing.
    pub(crate) file: Option<Arc<dyn File>>,
    /// The offset after its last batch: the next segment's base.
    pub(crate) end: Offset,
    /// Indexes to be written to their files.
    pub(crate) indexes: Option<Arc<MemoryIndexes>>,
    /// Aborted transactions to be written to their file, if there are any.
    pub(crate) aborted: Option<Arc<[AbortedTransaction]>>,
    /// The producers' state at its end, to be written as a snapshot.
    pub(crate) snapshot: Option<ProducerSnapshot>,
}

/// What a job in flight and the log share.
#[derive(Debug)]
pub(crate) struct JobControl {
    /// The lowest end that a truncation left since the job began: what the job syncs above it is another history.
    lowest_end: AtomicI64,
    shared: Arc<Shared>,
    kind: JobKind,
}

/// What a job does, and so what may go on beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// It syncs.
    Flush,
    /// It writes side files: of such there is one at a time.
    SideFiles,
    /// It takes long, and syncs do not wait for it: a copy of the log, a compaction, a look at what may go.
    Long,
}

impl JobControl {
    /// A truncation left this end.
    pub(crate) fn lower(&self, end: Offset) {
        self.lowest_end.fetch_min(end.0, Ordering::SeqCst);
    }

    /// Whether a sealed segment with this end is still as it was. Asked with the lock for side files held.
    pub(crate) fn still_has(&self, segment: &Segment, end: Offset) -> bool {
        self.lowest_end() >= end && !segment.is_retired()
    }

    /// Waits for others that write side files, and keeps them out.
    pub(crate) fn writing(&self) -> MutexGuard<'_, ()> {
        self.shared.writing_side_files()
    }

    /// The lowest end that a truncation left since the job began, [`Offset::MAX`] if there was none.
    pub(crate) fn lowest_end(&self) -> Offset {
        Offset(self.lowest_end.load(Ordering::SeqCst))
    }
}

/// What syncs batches of a log, on whatever thread.
///
/// One at a time: the operating system tells of a failed write-back once, to whoever asks first, and a sync beside that one
/// succeeds. It may not take for synced what the other has been told is lost.
#[derive(Clone, Debug)]
pub(crate) struct Syncer {
    place: Arc<Place>,
    shared: Arc<Shared>,
    state: Arc<StateFile>,
}

impl Syncer {
    /// Syncs, unless the log is closed. If it fails the log and its readers are closed before another sync begins.
    pub(crate) fn run(&self, sync: impl FnOnce() -> Result<(), IoError>) -> Result<(), Fence> {
        let _alone = self.shared.syncing();
        self.shared.usable()?;
        sync().map_err(|error| self.failed(&error))
    }

    /// Closes the log and its readers for a sync that failed.
    pub(crate) fn failed(&self, error: &IoError) -> Fence {
        let fence = Fence::SyncFailed(error.to_string());
        self.shared.close(fence.clone());
        self.state.note_sync_failed(&self.place);
        fence
    }
}

/// A sync to be run, on whatever thread. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "a job that is not run syncs nothing"]
pub struct FlushJob {
    place: Arc<Place>,
    syncer: Syncer,
    control: Arc<JobControl>,
    upto: Offset,
    /// The flush mark once it is done; not of a log at rest, whose mark stays.
    mark: Option<FlushMark>,
    sealed: Vec<Sealed>,
    active: Option<(Arc<Segment>, Arc<dyn File>)>,
    /// The count of directory changes this job makes durable, if there were any.
    directory: Option<u64>,
    checkpoint: Option<Checkpoint>,
}

/// What a checkpoint has to do beyond a flush, apart from the side files of segments.
#[derive(Debug)]
struct Checkpoint {
    /// The epochs, with their version, if they are not written yet.
    epochs: Option<(u64, Vec<(LeaderEpoch, Offset)>)>,
}

/// A sync that was run, to be given back to its log.
#[derive(Debug)]
#[must_use = "the log learns what is durable by Log::finish_flush"]
pub struct FlushDone {
    control: Arc<JobControl>,
    upto: Offset,
    sealed: Vec<Arc<Segment>>,
    directory: Option<u64>,
    synced: Result<(), Fence>,
    checkpoint: Option<Checkpointed>,
}

/// What a checkpoint wrote beside the batches.
#[derive(Debug)]
struct Checkpointed {
    /// Segments whose side files are written.
    written: Vec<Arc<Segment>>,
    epochs: Option<u64>,
    /// The epochs were not written, for they may be another history's.
    left_epochs: bool,
    failed: Option<IoError>,
}

impl Checkpointed {
    /// Whether everything below is there that follows from the batches.
    fn is_complete(&self) -> bool {
        self.failed.is_none() && !self.left_epochs
    }
}

impl FlushDone {
    /// Whether it was a checkpoint: a flush may have run beside it.
    pub fn is_checkpoint(&self) -> bool {
        self.control.kind == JobKind::SideFiles
    }
}

impl FlushJob {
    /// What will be durable: all offsets below.
    pub fn upto(&self) -> Offset {
        self.upto
    }

    /// Syncs. If that fails the log and its readers are closed at once, whoever gets the result.
    pub fn run(self) -> FlushDone {
        let synced = self.syncer.run(|| self.sync_data());
        let checkpoint = synced.is_ok().then(|| self.write_checkpoint()).flatten();
        if synced.is_ok() {
            self.write_mark(checkpoint.as_ref());
        }
        let sealed = self.sealed.into_iter().map(|sealed| sealed.segment).collect();
        let Self { control, upto, directory, .. } = self;
        FlushDone { control, upto, sealed, directory, synced, checkpoint }
    }

    /// Oldest first, so that what is durable after a crash half way is a prefix; then the entries of new files.
    fn sync_data(&self) -> Result<(), IoError> {
        let sealed = self.sealed.iter().filter_map(|sealed| Some((&sealed.segment, sealed.file.as_ref()?)));
        for (segment, file) in sealed.chain(self.active.as_ref().map(|(segment, file)| (segment, file))) {
            file.sync_data().context("sync", &segment.path())?;
        }
        if self.directory.is_some() {
            self.place.sync_dir()?;
        }
        Ok(())
    }

    /// Puts down what is durable now. That itself is made durable where it costs little beside the rest: after a roll, for
    /// a mark in an old segment says nothing of the later ones, and in a checkpoint.
    fn write_mark(&self, checkpoint: Option<&Checkpointed>) {
        let Some(mark) = self.mark else { return };
        let complete = checkpoint.is_some_and(Checkpointed::is_complete);
        let durably = checkpoint.is_some() || !self.sealed.is_empty();
        let still = || self.control.lowest_end() >= self.upto;
        self.syncer.state.mark(&self.place, mark, complete.then_some(self.upto), durably, still);
    }

    fn write_checkpoint(&self) -> Option<Checkpointed> {
        let Checkpoint { epochs } = self.checkpoint.as_ref()?;
        let mut done = Checkpointed { written: Vec::new(), epochs: None, left_epochs: false, failed: None };
        if let Some((version, entries)) = epochs {
            match self.write_epochs(entries) {
                Ok(written) => (done.epochs, done.left_epochs) = (written.then_some(*version), !written),
                Err(error) => done.failed = Some(error),
            }
        }
        for sealed in &self.sealed {
            match self.write_side_files(sealed) {
                Ok(()) => done.written.push(sealed.segment.clone()),
                Err(error) => done.failed = done.failed.or(Some(error)),
            }
        }
        Some(done)
    }

    /// Not after a truncation, which may have written others; if it had none to write, the next checkpoint does.
    fn write_epochs(&self, entries: &[(LeaderEpoch, Offset)]) -> Result<bool, IoError> {
        let _writing = self.control.writing();
        if self.control.lowest_end() < Offset::MAX {
            return Ok(false);
        }
        write_epochs(&self.place, entries).map(|()| true)
    }

    fn write_side_files(&self, sealed: &Sealed) -> Result<(), IoError> {
        let _writing = self.control.writing();
        if !self.control.still_has(&sealed.segment, sealed.end) {
            return Ok(());
        }
        if let Some(snapshot) = &sealed.snapshot {
            replace_file(
                &*self.place.fs,
                &self.place.path(sealed.end, SegmentFile::ProducerSnapshot),
                &snapshot.encode(),
            )?;
        }
        // Before the indexes: where those are, recovery takes this file to be complete, or to be missing for good.
        if let Some(aborted) = &sealed.aborted {
            transactions::write_file(&self.place, sealed.segment.base(), aborted)?;
            sealed.segment.transactions().unload();
        }
        if let Some(indexes) = &sealed.indexes {
            IndexWriter::write_files(&self.place, sealed.segment.base(), indexes)?;
            sealed.segment.unload_indexes();
        }
        Ok(())
    }
}

impl Log {
    /// Begins to make all batches durable that were appended. `None` if they are, or if another flush is under way: begin
    /// again when that one is finished.
    ///
    /// The job can be [run](FlushJob::run) on another thread while the log goes on; give its result to
    /// [`Log::finish_flush`]. This way one sync serves all appends that came in while the last one ran.
    pub fn begin_flush(&mut self) -> Option<FlushJob> {
        // Beside a checkpoint of housekeeping: that may wait for its turn, and a flush has somebody who waits for it.
        if self.has_job(|kind| kind == JobKind::Flush) { None } else { self.flush_job() }
    }

    /// Begins to make the batches durable and what follows from them: indexes, producer snapshots, leader epochs. Moves
    /// the recovery point, and so bounds what the next recovery has to read. Otherwise as [`Log::begin_flush`].
    pub fn begin_checkpoint(&mut self) -> Option<FlushJob> {
        if self.has_job(|kind| kind != JobKind::Long) { None } else { self.checkpoint_job() }
    }

    /// As [`Log::begin_checkpoint`], also while flushes are under way: where one follows the other there is always one.
    pub(crate) fn checkpoint_beside_flushes(&mut self) -> Option<FlushJob> {
        if self.has_job(|kind| kind == JobKind::SideFiles) { None } else { self.checkpoint_job() }
    }

    /// Takes note of a sync that was run: the flush mark moves, after a checkpoint the recovery point too, and readers
    /// see it. What a truncation has cut off since does not count.
    ///
    /// # Errors
    /// [`FlushError::Closed`] if the sync failed: the log is closed. [`FlushError::Io`] if only a side file (index,
    /// snapshot, epochs) could not be written: the log goes on, the recovery point stays behind, and the next checkpoint
    /// tries again.
    pub fn finish_flush(&mut self, done: FlushDone) -> Result<Offset, FlushError> {
        let FlushDone { control, upto, sealed, directory, synced, checkpoint } = done;
        synced?;
        self.shared.usable()?;
        self.directory_synced = self.directory_synced.max(directory.unwrap_or(0));
        // A truncation may have cut what was synced, and other batches may have taken its place, in the same segment too.
        let lowest_end = control.lowest_end();
        let upto = upto.min(lowest_end);
        let has = |list: &[Arc<Segment>], kept: &Sealed| {
            kept.end <= lowest_end && list.iter().any(|segment| Arc::ptr_eq(segment, &kept.segment))
        };
        for kept in self.sealed.iter_mut().filter(|kept| has(&sealed, kept)) {
            kept.file = None;
        }
        let flushed = self.shared.flushed().max(upto);
        self.shared.set_flushed(flushed);
        if flushed == self.end() && checkpoint.is_some() {
            // Nothing unsynced is left in them, and nothing came meanwhile: an idle log holds no descriptor. Not after each sync: to
            // take a file up again the next append asks for its metadata, and a file that was asked is given a new time of
            // change by the next write, which the sync then has to write as well (Linux 6.13 and later).
            if let Some(writing) = &mut self.active.writing {
                writing.file = None;
            }
            self.active.segment.release_file();
            sealed.iter().for_each(|segment| segment.release_file());
            self.state.release();
        }
        let Some(Checkpointed { written, epochs, left_epochs, failed }) = checkpoint else { return Ok(flushed) };
        self.sealed.retain(|kept| !has(&written, kept));
        self.epochs_written = self.epochs_written.max(epochs.unwrap_or(0));
        if let Some(error) = failed {
            return Err(error.into());
        }
        if left_epochs && self.epochs_version > self.epochs_written {
            return Ok(flushed);
        }
        let complete = self.sealed.first().map_or(upto, |kept| kept.segment.base().min(upto));
        self.recovery_point = self.recovery_point.max(complete);
        Ok(flushed)
    }

    /// Makes all batches durable that were appended before it returns, and returns the end of them.
    ///
    /// # Errors
    /// As [`Log::finish_flush`].
    pub fn flush(&mut self) -> Result<Offset, FlushError> {
        self.shared.usable()?;
        match self.flush_job() {
            Some(job) => self.finish_flush(job.run()),
            None => Ok(self.flushed()),
        }
    }

    /// Makes everything durable before it returns, and returns the recovery point.
    ///
    /// # Errors
    /// As [`Log::finish_flush`].
    pub fn checkpoint(&mut self) -> Result<Offset, FlushError> {
        self.shared.usable()?;
        // What another job under way has yet to write is older than what this one does.
        self.disown_jobs(|kind| kind != JobKind::Long);
        if let Some(job) = self.checkpoint_job() {
            self.finish_flush(job.run())?;
        }
        Ok(self.recovery_point)
    }

    /// Whatever jobs of such a kind are under way write no more side files, and what they sync counts for nothing. Waits for
    /// a file that one of them is writing.
    pub(crate) fn disown_jobs(&mut self, such: impl Fn(JobKind) -> bool) {
        let _writing = self.shared.writing_side_files();
        self.jobs.retain(|job| {
            let Some(job) = job.upgrade() else { return false };
            if such(job.kind) {
                job.lower(Offset(i64::MIN));
            }
            !such(job.kind)
        });
        self.state.wait_for_marks();
    }

    /// Whether a job of such a kind is under way, or none may be.
    fn has_job(&self, such: impl Fn(JobKind) -> bool) -> bool {
        self.jobs.iter().filter_map(Weak::upgrade).any(|job| such(job.kind)) || self.shared.usable().is_err()
    }

    /// A job for the batches that are not durable yet.
    pub(crate) fn flush_job(&mut self) -> Option<FlushJob> {
        let unsynced_files = self.directory_changes > self.directory_synced;
        if self.flushed() >= self.end() && !unsynced_files {
            return None;
        }
        let sealed = self.sealed.iter().filter(|sealed| sealed.file.is_some()).cloned().collect();
        Some(self.job(sealed, None))
    }

    /// Whether a checkpoint would make anything durable that is not.
    pub(crate) fn owes_checkpoint(&self) -> bool {
        self.recovery_point < self.end()
            || !self.sealed.is_empty()
            || self.epochs_version > self.epochs_written
            || self.directory_changes > self.directory_synced
    }

    /// A job for all that is not durable yet.
    pub(crate) fn checkpoint_job(&mut self) -> Option<FlushJob> {
        if !self.owes_checkpoint() {
            return None;
        }
        let epochs =
            (self.epochs_version > self.epochs_written).then(|| (self.epochs_version, self.epochs.entries().to_vec()));
        self.checkpoint_owed_since = None;
        Some(self.job(self.sealed.clone(), Some(Checkpoint { epochs })))
    }

    fn job(&mut self, sealed: Vec<Sealed>, checkpoint: Option<Checkpoint>) -> FlushJob {
        self.unsynced_since = None;
        FlushJob {
            place: self.place.clone(),
            syncer: self.syncer(),
            control: self.job_control(if checkpoint.is_some() { JobKind::SideFiles } else { JobKind::Flush }),
            upto: self.end(),
            mark: self.active.mark(self.end()),
            sealed,
            active: self.active.open_file(),
            directory: Some(self.directory_changes).filter(|changes| *changes > self.directory_synced),
            checkpoint,
        }
    }

    /// What syncs batches in a job.
    pub(crate) fn syncer(&self) -> Syncer {
        Syncer { place: self.place.clone(), shared: self.shared.clone(), state: self.state.clone() }
    }

    /// A log at rest keeps nothing of jobs that were run.
    pub(crate) fn forget_ended_jobs(&mut self) {
        self.jobs.retain(|job| job.strong_count() > 0);
        self.jobs.shrink_to_fit();
    }

    /// What a new job shares with the log.
    pub(crate) fn job_control(&mut self, kind: JobKind) -> Arc<JobControl> {
        self.jobs.retain(|job| job.strong_count() > 0);
        let lowest_end = AtomicI64::new(i64::MAX);
        let control = Arc::new(JobControl { lowest_end, shared: self.shared.clone(), kind });
        self.jobs.push(Arc::downgrade(&control));
        control
    }
}

#[cfg(test)]
mod tests;
