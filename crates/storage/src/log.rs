//! The log of one partition: its one writer.

mod active;
mod append;
mod replicated;
mod rolling;

use std::fmt;
use std::io;
use std::path::{self, Path, PathBuf};
use std::sync::{Arc, Weak};

use crate::checkpoint::{self, CheckpointError};
use crate::data_dir::{self, OpenHints};
use crate::epochs::{EpochEnd, EpochHistory};
use crate::error::{Damaged, Fence, FlushError, OpenError, ReadError};
use crate::flush::{JobControl, Sealed};
use crate::fs::{DirLock, Fs, OsFs};
use crate::housekeeping::Upkeep;
use crate::indexes::IndexWriter;
use crate::inspect::root_of;
use crate::io::{IoContext, IoError};
use crate::lock::lock_directory;
use crate::names::SegmentFile;
use crate::on_demand::OnDemand;
use crate::options::{InvalidOption, LogOptions};
use crate::producers::ProducerTable;
use crate::reader::{Fetched, LogReader, ReadLimit, Shared};
use crate::recovery::{self, RecoveryReport};
use crate::segment::{Place, Segment};
use crate::state_file::{FlushMark, LogState, StateFile};
use crate::transactions;
use crate::truncation::{reactivated, remove_index_files};
use crate::{LeaderEpoch, Offset, TimestampMs, TopicId};

pub(crate) use active::{Active, LastBatch, Writing};
pub use append::{Appended, Durability};

/// The file of a log's leader epochs.
pub(crate) const EPOCHS_FILE: &str = "leader-epoch-checkpoint";

/// The records of one partition, in one directory. There is one `Log` for a directory at a time; it writes. Any number
/// of [`LogReader`]s read.
///
/// Dropping a log is a crash as far as its files go: nothing is flushed, and the next open looks for a torn tail.
/// [`Log::close`] is the other way to end.
pub struct Log {
    pub(crate) place: Arc<Place>,
    pub(crate) options: Arc<LogOptions>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<StateFile>,
    pub(crate) active: Active,
    /// Segments before the active one that are not synced yet, oldest first.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) epochs: EpochHistory,
    pub(crate) producers: ProducerTable,
    pub(crate) recovery_point: Offset,
    /// Counts creations, renames and removals in the directory, and which of them are durable.
    pub(crate) directory_changes: u64,
    pub(crate) directory_synced: u64,
    /// Counts changes of the epochs, and which of them are in their file.
    pub(crate) epochs_version: u64,
    pub(crate) epochs_written: u64,
    pub(crate) jobs: Vec<Weak<JobControl>>,
    pub(crate) upkeep: OnDemand<Upkeep>,
    /// Everything below is compacted.
    pub(crate) cleaner_offset: Offset,
    /// Counts what the writer wrote to the state file.
    pub(crate) state_records: u64,
    /// The time of the first append since the last flush began.
    pub(crate) unsynced_since: Option<TimestampMs>,
    /// The time of the first append since the last checkpoint began, or of the first call that found one owed.
    pub(crate) checkpoint_owed_since: Option<TimestampMs>,
    pub(crate) topic_id: TopicId,
    /// Of its directory, and of the data root that lies in, if the log was opened by itself.
    pub(crate) locks: Box<[Box<dyn DirLock>]>,
}

/// A segment, as [`Log::segments`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentInfo {
    /// Its base offset.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// Bytes of batches in it.
    pub size_bytes: u64,
}

/// What [`Log::close`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// The end of the log, everything below which is synced.
    pub end: Offset,
    /// The start of the log.
    pub start: Offset,
}

impl Log {
    /// Opens the log in a directory of its own, which is created if it is not there and locked until the log is dropped.
    ///
    /// In a data root of this crate or of Kafka, which its name (`<topic>-<partition>`) and the files beside it tell, the
    /// root is locked as well: one log of a root can be opened like this at a time, and none while a broker has the root
    /// open. What the root knows of the log (the marker of a clean stop, recovery point, log start, how far it is
    /// compacted) is gone by as [`DataDir::hints`](data_dir::DataDir::hints) has it, and the marker is removed: Kafka reads
    /// its logs from their recovery points on after this. To open all logs of a root use [`DataDir`](data_dir::DataDir).
    ///
    /// Logs that are given an `Arc` of the same options share them, and take less memory.
    ///
    /// # Errors
    /// If the directory or its root is in use, an option is out of range or a file operation fails. Damage is no error:
    /// what was done about it is in the report.
    pub fn open(
        dir: impl AsRef<Path>,
        options: impl Into<Arc<LogOptions>>,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let (fs, dir): (Arc<dyn Fs>, _) = (Arc::new(OsFs), dir.as_ref());
        let options = options.into();
        options.validate()?;
        // The root first: a broker takes nothing else.
        let root = root_around(&*fs, dir)?;
        let root_lock = root.as_ref().map(|(root, _)| lock_directory(&*fs, root)).transpose()?;
        let is_new = match fs.create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            created => {
                created.context("create directory", dir)?;
                checkpoint::sync_parent(&*fs, dir)?;
                true
            }
        };
        let lock = lock_directory(&*fs, dir)?;
        let mut hints = OpenHints::default();
        if let Some((root, dir)) = &root {
            // What is said of a log that was not there is about one of this name that was deleted.
            hints = if is_new { hints } else { data_dir::hints_in(&*fs, root, dir)? };
            data_dir::take_clean_marker(&*fs, root)?;
        }
        let (mut log, report) = Self::open_with(fs, dir, options, hints)?;
        log.locks = [Some(lock), root_lock].into_iter().flatten().collect();
        Ok((log, report))
    }

    /// Opens the log in a directory for reading: what [`Log::open`] would make of it, without a change to any file. The
    /// directory may be read-only, on a full disk, or in use: then a log that goes on being written is read as it was.
    ///
    /// # Errors
    /// If a file operation fails. Damage is no error.
    pub fn open_read_only(dir: impl AsRef<Path>) -> Result<(LogReader, RecoveryReport), OpenError> {
        let (fs, dir): (Arc<dyn Fs>, _) = (Arc::new(OsFs), dir.as_ref());
        let hints = match root_around(&*fs, dir)? {
            Some((root, dir)) => data_dir::hints_in(&*fs, &root, &dir)?,
            None => OpenHints::default(),
        };
        Self::open_read_only_with(fs, dir, LogOptions::default(), hints)
    }

    /// As [`Log::open_read_only`], for a directory of a data root, with what the root knows about it.
    ///
    /// # Errors
    /// As [`Log::open_read_only`].
    pub fn open_read_only_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        options: impl Into<Arc<LogOptions>>,
        hints: OpenHints,
    ) -> Result<(LogReader, RecoveryReport), OpenError> {
        let options = options.into();
        options.validate()?;
        let place = Place::with_options(fs, dir, &options, true);
        recovery::open_read_only(place, options, hints)
    }

    /// Opens the log in an existing directory of a data root that is locked, with what the root knows about it.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        options: impl Into<Arc<LogOptions>>,
        hints: OpenHints,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        let options = options.into();
        options.validate()?;
        let place = Place::with_options(fs, dir, &options, false);
        recovery::open(place, options, hints)
    }

    /// Reads; see [`LogReader::read`].
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub fn read(&self, from: Offset, limit: ReadLimit) -> Result<Fetched, ReadError> {
        self.reader().read(from, limit)
    }

    /// A reader of this log, for any thread.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.shared.clone())
    }

    /// The first offset that can be read.
    pub fn start(&self) -> Offset {
        self.shared.start()
    }

    /// The offset of the next append.
    pub fn end(&self) -> Offset {
        self.shared.end()
    }

    /// The flush mark: every record below was synced.
    pub fn flushed(&self) -> Offset {
        self.shared.flushed()
    }

    /// Kafka's recovery point: below it, indexes and snapshots are synced as well. Recovery starts here.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point
    }

    /// Bytes of batches in all segments.
    pub fn size_bytes(&self) -> u64 {
        self.shared.segments().all().map(|segment| segment.len()).sum()
    }

    /// The segments, oldest first; appends go to the last.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = self.shared.segments();
        let info = |(segment, end): (&Arc<Segment>, Offset)| SegmentInfo {
            base: segment.base(),
            end,
            size_bytes: segment.len(),
        };
        segments.with_ends(self.end()).map(info).collect()
    }

    /// The damage that is known: found when the log was opened, by a read that met it, or by the scrubber.
    pub fn damage(&self) -> Vec<Damaged> {
        self.shared.segments().all().flat_map(|segment| segment.known_damage().all()).collect()
    }

    /// Goes up with each truncation; see [`LogReader::generation`].
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// Why the log takes no more calls, if it does not. The call in which that came about may have failed with another
    /// error, or not at all.
    pub fn fence(&self) -> Option<Fence> {
        self.shared.usable().err()
    }

    /// The options.
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Changes the options, for what comes from now on. The bound on open files stays as it was.
    ///
    /// # Errors
    /// If one is out of range; none is changed then.
    pub fn set_options(&mut self, options: impl Into<Arc<LogOptions>>) -> Result<(), InvalidOption> {
        let options = options.into();
        options.validate()?;
        if let Some(writing) = &mut self.active.writing {
            writing.indexes.set_interval(options.index_interval_bytes);
        }
        self.producers.set_max_producers(options.max_producer_ids);
        self.options = options;
        Ok(())
    }

    /// The last stable offset; see [`LogReader::last_stable_offset`].
    ///
    /// Transactions whose markers lie below the high watermark are forgotten by [housekeeping](Log::begin_work): it does
    /// not fall then, should a lower high watermark be given later.
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        self.shared.last_stable_offset(high_watermark)
    }

    /// The idempotent producers.
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// Notes that a leadership with this epoch begins at `start`, which is the end of the log for a new leader.
    ///
    /// It is written with the next [checkpoint](Log::begin_checkpoint). Until then the batches tell: an epoch that has
    /// none is forgotten in a crash, and needed by nobody.
    ///
    /// # Errors
    /// If the log is closed.
    pub fn assign_epoch(&mut self, epoch: LeaderEpoch, start: Offset) -> Result<(), FlushError> {
        self.shared.usable()?;
        self.assign_epoch_at(epoch, start);
        Ok(())
    }

    /// Where `epoch` ends in this log, as a leader tells a follower.
    pub fn end_of_epoch(&self, epoch: LeaderEpoch) -> EpochEnd {
        self.epochs.end_offset_for(epoch, self.end())
    }

    /// The latest epoch, [`LeaderEpoch::NONE`] if none is known.
    pub fn latest_epoch(&self) -> LeaderEpoch {
        self.epochs.latest()
    }

    /// The epochs and the offsets they start at.
    pub fn epochs(&self) -> &[(LeaderEpoch, Offset)] {
        self.epochs.entries()
    }

    /// Flushes everything, writes the side files and marks the log as closed well, so that the next open reads its tail
    /// only. Its readers end.
    ///
    /// # Errors
    /// If anything could not be written: the log is not marked then, and the next open recovers it.
    pub fn close(mut self) -> Result<CloseReport, FlushError> {
        self.shared.usable()?;
        // A look of housekeeping at what may go writes to the state file too.
        self.disown_jobs(|_| true);
        let report = CloseReport { end: self.end(), start: self.start() };
        let clean = LogState {
            clean: true,
            sync_failed: false,
            log_start: report.start,
            recovery_point: report.end,
            end: report.end,
            topic_id: self.topic_id,
            mark: self.mark_at_end(),
        };
        if self.state.last() == Some(clean) && self.epochs_version == self.epochs_written {
            return Ok(report);
        }
        self.wake()?;
        if self.trim_zeros()? {
            let segment = &self.active.segment;
            let synced = segment.file()?.sync_data().context("sync", &segment.path());
            synced.inspect_err(|error| self.close_if_sync_failed(error))?;
        }
        self.checkpoint()?;
        let (base, indexes) = (self.active.segment.base(), &self.active.writing().indexes);
        indexes.finish();
        IndexWriter::write_files(&self.place, base, indexes.indexes())?;
        let aborted = self.active.segment.transactions().in_memory();
        transactions::write_file(&self.place, base, &aborted.unwrap_or_default())?;
        let snapshot = self.place.path(report.end, SegmentFile::ProducerSnapshot);
        checkpoint::replace_file(&*self.place.fs, &snapshot, &self.producers.encode_snapshot())?;
        self.state.record(&self.place, clean)?;
        Ok(report)
    }

    /// Makes it durable that the log is not as its last clean close left it. Before the first change of any kind.
    pub(crate) fn mark_dirty(&mut self) -> Result<(), IoError> {
        if self.state.says_unclean() {
            return Ok(());
        }
        self.record_state(self.start(), self.recovery_point, self.flush_mark())
    }

    /// The flush mark as it stands in the state file; where everything is synced, at the end.
    pub(crate) fn flush_mark(&self) -> Option<FlushMark> {
        if self.flushed() >= self.end() { self.mark_at_end() } else { self.state.last()?.mark }
    }

    /// The flush mark once everything is synced. Of a log at rest it is what the state file says.
    fn mark_at_end(&self) -> Option<FlushMark> {
        self.active.mark(self.end()).or_else(|| self.state.last()?.mark)
    }

    /// Takes up what writing needs, if the log is at rest.
    pub(crate) fn wake(&mut self) -> Result<(), IoError> {
        if self.active.writing.is_none() {
            let Active { segment, len, .. } = &self.active;
            let awake = reactivated(&self.place, segment, *len, self.end(), &self.options)?;
            self.active.take_up(awake);
        }
        Ok(())
    }

    /// Writes the state file durably. A failed sync closes the log.
    pub(crate) fn record_state(
        &mut self,
        log_start: Offset,
        recovery_point: Offset,
        mark: Option<FlushMark>,
    ) -> Result<(), IoError> {
        let (end, topic_id) = (self.end(), self.topic_id);
        let state = LogState { clean: false, sync_failed: false, log_start, recovery_point, end, topic_id, mark };
        let was_clean = !self.state.says_unclean();
        // While there are the files that it is taken from.
        self.wake()?;
        self.state_records += 1;
        let recorded = self.state.record(&self.place, state);
        recorded.inspect_err(|error| self.close_if_sync_failed(error))?;
        if was_clean {
            // Durable with the next sync of the directory, and so before the recovery point moves past this segment.
            remove_index_files(&self.place, self.active.segment.base())?;
            self.directory_changes += 1;
        }
        Ok(())
    }

    /// What a failed sync should have written may be lost although the next one succeeds: nothing here is to be relied
    /// on any more.
    pub(crate) fn close_if_sync_failed(&self, error: &IoError) {
        if error.is_failed_sync() {
            self.state.note_sync_failed(&self.place);
            self.shared.close(Fence::SyncFailed(error.to_string()));
        }
    }

    fn latest_epoch_in_use(&self) -> LeaderEpoch {
        let end = self.end();
        let in_use = self.epochs.entries().iter().rev().find(|(_, start)| *start < end);
        in_use.map_or(LeaderEpoch::NONE, |(epoch, _)| *epoch)
    }

    fn assign_epoch_at(&mut self, epoch: LeaderEpoch, start: Offset) {
        if epoch != self.epochs.latest() && self.epochs.assign(epoch, start) {
            self.epochs_changed();
        }
    }

    /// The epochs in memory are not those in their file any more.
    pub(crate) fn epochs_changed(&mut self) {
        self.epochs_version += 1;
        self.shared.set_epochs(self.epochs.clone());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.close(Fence::Closed);
        // The directory may be opened again at once, by a log that knows nothing of them.
        self.disown_jobs(|_| true);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.place.dir)
            .field("start", &self.start())
            .field("end", &self.end())
            .field("flushed", &self.flushed())
            .finish_non_exhaustive()
    }
}

/// The data root that a directory lies in, if it does, and the directory with its name: it may be given as `.`, or by a
/// link.
fn root_around(fs: &dyn Fs, dir: &Path) -> Result<Option<(PathBuf, PathBuf)>, OpenError> {
    let dir = match dir.canonicalize() {
        Ok(dir) => dir,
        Err(_) => {
            // It is still to be made.
            let dir = path::absolute(dir).context("find", dir)?;
            let parent = dir.parent().and_then(|parent| parent.canonicalize().ok());
            parent.zip(dir.file_name()).map_or_else(|| dir.clone(), |(parent, name)| parent.join(name))
        }
    };
    Ok(root_of(fs, &dir).map(|root| (root, dir)))
}

/// Whether a write failed for want of room, which may be there again later.
pub(crate) fn is_out_of_room(error: &IoError) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

/// Writes the file of leader epochs, durably.
pub(crate) fn write_epochs(place: &Place, entries: &[(LeaderEpoch, Offset)]) -> Result<(), IoError> {
    let path = place.dir.join(EPOCHS_FILE);
    checkpoint::write_epochs(&*place.fs, &path, entries).map_err(|error| match error {
        CheckpointError::Io(error) => error,
        malformed => IoError { verb: "write", path, source: io::Error::other(malformed) },
    })
}
