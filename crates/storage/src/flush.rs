//! Making what was appended durable, in three parts: begin on the writer's thread, run on any other, finish on the
//! writer's again. Appends, rolls and truncations may happen in between.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Offset;
use crate::checkpoint::replace_file;
use crate::error::{Fence, FlushError};
use crate::fs::File;
use crate::indexes::{IndexWriter, MemoryIndexes};
use crate::io::{IoContext, IoError};
use crate::log::Log;
use crate::names::SegmentFile;
use crate::reader::Shared;
use crate::segment::{Place, Segment};

/// A segment that no longer grows and is not synced yet.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub(crate) segment: Arc<Segment>,
    /// Kept open until it is synced, so that the news of a failed write-back is not lost.
    pub(crate) file: Arc<dyn File>,
    /// The offset after its last batch: the next segment's base.
    pub(crate) end: Offset,
    /// Indexes to be written to their files.
    pub(crate) indexes: Option<Arc<MemoryIndexes>>,
    /// The producers' state at its end, to be written as a snapshot.
    pub(crate) snapshot: Option<Arc<[u8]>>,
}

/// What a job in flight and the log share.
#[derive(Debug)]
pub(crate) struct JobControl {
    /// The lowest end that a truncation left since the job began: what the job syncs above it is another history.
    lowest_end: AtomicI64,
    /// Held while side files of a segment are written, and by the writer while it takes segments away or makes one
    /// active again: else a job could write an index of batches that were cut.
    side_files: Arc<Mutex<()>>,
}

impl JobControl {
    /// A truncation left this end.
    pub(crate) fn lower(&self, end: Offset) {
        self.lowest_end.fetch_min(end.0, Ordering::SeqCst);
    }

    fn lowest_end(&self) -> Offset {
        Offset(self.lowest_end.load(Ordering::SeqCst))
    }
}

/// A sync to be run, on whatever thread. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "a job that is not run syncs nothing"]
pub struct FlushJob {
    place: Place,
    shared: Arc<Shared>,
    control: Arc<JobControl>,
    upto: Offset,
    sealed: Vec<Sealed>,
    active: Option<(Arc<Segment>, Arc<dyn File>)>,
    /// The count of directory changes this job makes durable, if there were any.
    directory: Option<u64>,
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
    side_files: Result<(), IoError>,
}

impl FlushJob {
    /// What will be durable: all offsets below.
    pub fn upto(&self) -> Offset {
        self.upto
    }

    /// Syncs. If that fails the log and its readers are closed at once, whoever gets the result.
    pub fn run(self) -> FlushDone {
        let synced = self.sync_data().map_err(|error| {
            let fence = Fence::SyncFailed(error.to_string());
            self.shared.close(fence.clone());
            fence
        });
        let mut written = Vec::new();
        let mut side_files = Ok(());
        if synced.is_ok() {
            for sealed in &self.sealed {
                match self.write_side_files(sealed) {
                    Ok(()) => written.push(sealed.segment.clone()),
                    Err(error) => side_files = side_files.and(Err(error)),
                }
            }
        }
        let Self { control, upto, directory, .. } = self;
        FlushDone { control, upto, sealed: written, directory, synced, side_files }
    }

    fn sync_data(&self) -> Result<(), IoError> {
        let sealed = self.sealed.iter().map(|sealed| (&sealed.segment, &sealed.file));
        for (segment, file) in sealed.chain(self.active.as_ref().map(|(segment, file)| (segment, file))) {
            file.sync_data().context("sync", &segment.path())?;
        }
        if self.directory.is_some() {
            self.place.sync_dir()?;
        }
        Ok(())
    }

    fn write_side_files(&self, sealed: &Sealed) -> Result<(), IoError> {
        let _writing = self.control.side_files.lock().unwrap_or_else(PoisonError::into_inner);
        if self.control.lowest_end() < sealed.end || sealed.segment.is_retired() {
            return Ok(());
        }
        if let Some(snapshot) = &sealed.snapshot {
            replace_file(&*self.place.fs, &self.place.path(sealed.end, SegmentFile::ProducerSnapshot), snapshot)?;
        }
        if let Some(indexes) = &sealed.indexes {
            IndexWriter::write_files(&self.place, sealed.segment.base(), indexes)?;
            sealed.segment.unload_indexes();
        }
        Ok(())
    }
}

impl Log {
    /// Begins to make all that was appended durable. `None` if it is already, or if another job is under way: begin
    /// again when that one is finished.
    ///
    /// The job can be [run](FlushJob::run) on another thread while the log goes on; give its result to
    /// [`Log::finish_flush`]. This way one sync serves all appends that came in while the last one ran.
    pub fn begin_flush(&mut self) -> Option<FlushJob> {
        self.jobs.retain(|job| job.strong_count() > 0);
        if !self.jobs.is_empty() || self.shared.usable().is_err() {
            return None;
        }
        self.flush_job()
    }

    /// Takes note of a sync that was run: the flush mark and the recovery point move, readers see it.
    ///
    /// # Errors
    /// [`FlushError::Closed`] if the sync failed: the log is closed. A side file (index, snapshot) that could not be
    /// written is no error; it holds the recovery point back and is tried again with the next flush.
    pub fn finish_flush(&mut self, done: FlushDone) -> Result<Offset, FlushError> {
        let FlushDone { control, upto, sealed, directory, synced, side_files } = done;
        synced?;
        self.shared.usable()?;
        self.side_file_error = side_files.err();
        self.sealed.retain(|kept| !sealed.iter().any(|written| Arc::ptr_eq(written, &kept.segment)));
        self.directory_synced = self.directory_synced.max(directory.unwrap_or(0));
        // A truncation may have cut what was synced, and other batches may have taken its place.
        let upto = upto.min(control.lowest_end());
        let flushed = self.shared.flushed().max(upto);
        self.shared.set_flushed(flushed);
        let complete = self.sealed.first().map_or(flushed, |kept| kept.segment.base().min(flushed));
        if complete > self.recovery_point {
            self.recovery_point = complete;
            self.state.mark(&*self.place.fs, complete);
        }
        if self.shared.flushed() == self.shared.end() {
            // Nothing unsynced is left in it: an idle log holds no descriptor beyond the bound.
            self.active.file = None;
        }
        Ok(flushed)
    }

    /// Makes all that was appended durable before it returns, and returns the end of it.
    ///
    /// # Errors
    /// As [`Log::finish_flush`].
    pub fn flush(&mut self) -> Result<Offset, FlushError> {
        self.shared.usable()?;
        match self.flush_job() {
            Some(job) => {
                let done = job.run();
                self.finish_flush(done)
            }
            None => Ok(self.shared.flushed()),
        }
    }

    /// A job for all that is not durable yet.
    fn flush_job(&mut self) -> Option<FlushJob> {
        let upto = self.shared.end();
        let directory = Some(self.directory_changes).filter(|changes| *changes > self.directory_synced);
        if self.shared.flushed() >= upto && self.sealed.is_empty() && directory.is_none() {
            return None;
        }
        let control = JobControl { lowest_end: AtomicI64::new(i64::MAX), side_files: self.side_files.clone() };
        let control = Arc::new(control);
        self.jobs.push(Arc::downgrade(&control));
        Some(FlushJob {
            place: self.place.clone(),
            shared: self.shared.clone(),
            control,
            upto,
            sealed: self.sealed.clone(),
            active: self.active.file.clone().map(|file| (self.active.segment.clone(), file)),
            directory,
        })
    }
}
