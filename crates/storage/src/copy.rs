//! A copy of a log while it goes on.
//!
//! What no longer changes is shared with the copy by hard links, only the segment that grows is copied. For this to hold,
//! nobody changes a file in place that has another name: see [`Segment::with_own_file`]. The copy is built under a
//! temporary name and gets its own last, so that a crash leaves all of it or none.
//!
//! What the copy has to be consistent with is taken on the writer's thread when it begins. The rest runs anywhere while
//! the log appends, rolls and retires segments. A truncation, which takes back what the copy has taken, spoils it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{replace_file, sync_parent, temporary_path};
use crate::error::Fence;
use crate::flush::{JobControl, JobKind, Sealed, Syncer};
use crate::fs::{FileKind, OpenMode};
use crate::index::{AbortedTransaction, TimeEntry};
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::{IoContext, IoError, copy_bytes};
use crate::lock::{LOCK_FILE, LockError, lock_directory};
use crate::log::{Log, write_epochs};
use crate::metadata_files::write_topic_id;
use crate::names::SegmentFile;
use crate::producers::ProducerSnapshot;
use crate::reader::Shared;
use crate::segment::{Place, Segment};
use crate::snapshots;
use crate::state_file::{FlushMark, LogState, StateFile};
use crate::tidy::is_name_of_log;
use crate::transactions;
use crate::truncation::copy_below;
use crate::{LeaderEpoch, Offset, TopicId};

/// What [`Log::snapshot`] made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// The first offset in the copy.
    pub start: Offset,
    /// The offset after the last one in the copy.
    pub end: Offset,
    /// Segments in the copy.
    pub segments: u32,
    /// Bytes of batches that the copy shares with the log.
    pub bytes_linked: u64,
    /// Bytes of batches that were copied.
    pub bytes_copied: u64,
}

/// Why a log could not be copied. Nothing is left of the copy then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// There is something where the copy should be.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// Another copy is being made there.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// The log was truncated or closed, or compaction or retention reached its newest segments, while the copy was made.
    /// Begin another.
    #[error("the log changed while it was copied")]
    Superseded,
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log takes no more calls.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

/// A copy to be made, on whatever thread. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "a job that is not run copies nothing"]
pub struct CopyJob {
    place: Arc<Place>,
    shared: Arc<Shared>,
    syncer: Syncer,
    control: Arc<JobControl>,
    target: PathBuf,
    /// Segments that are not synced, or whose side files are not written.
    sealed: Vec<Sealed>,
    active: Arc<Segment>,
    active_len: u64,
    indexes: Arc<MemoryIndexes>,
    largest: TimeEntry,
    /// The aborted transactions whose markers lie in the segment that grows.
    aborted: Arc<[AbortedTransaction]>,
    start: Offset,
    end: Offset,
    epochs: Vec<(LeaderEpoch, Offset)>,
    producers: ProducerSnapshot,
    topic_id: TopicId,
    mark: Option<FlushMark>,
}

impl Log {
    /// Makes a copy of the log as it is now in the directory `dir`, which must not be there but for its parent. The copy
    /// opens as a log that was closed well, and stays as it is whatever becomes of this one. Everything in it is durable
    /// when this returns, also what this log has not flushed.
    ///
    /// Segments that are full are shared by hard links, which takes no room until this log lets go of them; the one that
    /// is appended to is copied. Where the file system has no links between the two places, all is copied.
    ///
    /// # Errors
    /// As [`CopyJob::run`]. A failed sync of this log's own segments closes it.
    pub fn snapshot(&mut self, dir: impl AsRef<Path>) -> Result<Copied, CopyError> {
        self.begin_snapshot(dir)?.run()
    }

    /// Begins a [copy](Log::snapshot), to be [run](CopyJob::run) on another thread while the log goes on.
    ///
    /// # Errors
    /// [`CopyError::Closed`] if the log is closed; [`CopyError::Io`] if what it is copied from cannot be read.
    pub fn begin_snapshot(&mut self, dir: impl AsRef<Path>) -> Result<CopyJob, CopyError> {
        self.shared.usable()?;
        self.wake()?;
        let indexes = &self.active.writing().indexes;
        let (indexes, largest) = (indexes.indexes().clone(), indexes.largest());
        Ok(CopyJob {
            place: self.place.clone(),
            shared: self.shared.clone(),
            syncer: self.syncer(),
            control: self.job_control(JobKind::Long),
            target: dir.as_ref().to_owned(),
            sealed: self.sealed.clone(),
            active: self.active.segment.clone(),
            active_len: self.active.len,
            indexes,
            largest,
            aborted: self.active.segment.transactions().in_memory().unwrap_or_default(),
            start: self.start(),
            end: self.end(),
            epochs: self.epochs.entries().to_vec(),
            producers: self.producers.snapshot(),
            topic_id: self.topic_id,
            mark: self.active.mark(self.end()),
        })
    }
}

impl CopyJob {
    /// The end of what will be in the copy.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Makes the copy.
    ///
    /// # Errors
    /// [`CopyError::Superseded`] if the log was truncated or closed meanwhile; [`CopyError::Io`] if a file operation
    /// failed. Nothing is left of the copy, unless removing it failed as well or the process died: what is left then has
    /// the name `<dir>.tmp` and is removed by the next copy to the same place. Only if the very last sync fails the copy
    /// is there, and not known to be durable.
    pub fn run(self) -> Result<Copied, CopyError> {
        let (fs, temporary) = (&*self.place.fs, temporary_path(&self.target));
        match fs.metadata(&self.target) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => {
                found.context("read metadata of", &self.target)?;
                return Err(CopyError::Exists(self.target));
            }
        }
        match fs.create_dir(&temporary) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => created.context("create directory", &temporary)?,
        }
        let lock = lock_directory(fs, &temporary)?;
        let target = self.place.of(&temporary);
        clear(&target)?;
        let made = self.fill(&target).and_then(|copied| {
            target.sync_dir()?;
            fs.rename(&temporary, &self.target).context("rename to its final name", &temporary)?;
            Ok(copied)
        });
        let Ok(copied) = made else {
            // The first error is the one to tell.
            let _ = clear(&target).and_then(|()| target.remove(&temporary.join(LOCK_FILE)));
            drop(lock);
            let _ = fs.remove_dir(&temporary);
            return made;
        };
        // By the new name, under which nobody else looks for a lock yet. Left behind, it would do no harm.
        let _ = fs.remove_file(&self.target.join(LOCK_FILE));
        drop(lock);
        fs.sync_dir(&self.target).context("sync directory", &self.target)?;
        sync_parent(fs, &self.target)?;
        Ok(copied)
    }

    fn fill(&self, target: &Place) -> Result<Copied, CopyError> {
        let (segments, linked) = self.link(target)?;
        let mut copied = Copied { end: self.end, segments: 1, ..Copied::default() };
        for (segment, linked) in segments.iter().zip(&linked) {
            copied.segments += 1;
            if *linked {
                copied.bytes_linked += segment.len();
            } else {
                self.copy_segment(target, segment)?;
                copied.bytes_copied += segment.len();
            }
        }
        self.sync_linked()?;
        self.write_missing_side_files(target, &segments)?;
        self.copy_active(target)?;
        copied.bytes_copied += self.active_len;
        let first = segments.first().unwrap_or(&self.active).base();
        // Retention may have gone on since.
        copied.start = self.start.max(first);
        self.write_facts(target, copied.start)?;
        self.still_stands()?;
        Ok(copied)
    }

    /// Gives the files of the segments before the active one, and the producer snapshots, a second name in the copy.
    /// Returns these segments, and for each whether it was linked: where it was not, nothing of it was.
    fn link(&self, target: &Place) -> Result<(Vec<Arc<Segment>>, Vec<bool>), CopyError> {
        // What truncates, retires or replaces segments waits for this.
        let _writing = self.control.writing();
        self.still_stands()?;
        let segments = self.shared.segments();
        let below = segments
            .with_ends(self.end)
            .filter(|(segment, end)| segment.base() < self.active.base() && *end > self.start);
        let segments: Vec<_> = below.map(|(segment, _)| segment.clone()).collect();
        let mut linked = Vec::with_capacity(segments.len());
        for segment in &segments {
            let is_linked = self.link_file(target, segment.base(), SegmentFile::Log)?;
            for kind in [SegmentFile::OffsetIndex, SegmentFile::TimeIndex, SegmentFile::TransactionIndex] {
                if is_linked {
                    self.link_file(target, segment.base(), kind)?;
                }
            }
            linked.push(is_linked);
        }
        for offset in snapshots::list(&self.place)?.into_iter().filter(|offset| *offset < self.end) {
            if !self.link_file(target, offset, SegmentFile::ProducerSnapshot)? {
                self.copy_file(target, offset, SegmentFile::ProducerSnapshot)?;
            }
        }
        Ok((segments, linked))
    }

    /// Links one file. False if that cannot be done here; a file that is not there needs no link, unless it is data.
    fn link_file(&self, target: &Place, base: Offset, kind: SegmentFile) -> Result<bool, IoError> {
        let from = self.place.path(base, kind);
        match self.place.fs.hard_link(&from, &target.path(base, kind)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound && kind != SegmentFile::Log => Ok(true),
            Err(error) if are_links_refused(&error) => Ok(false),
            Err(error) => Err(error).context("link", &from),
        }
    }

    /// Copies the files of a segment that could not be linked.
    fn copy_segment(&self, target: &Place, segment: &Segment) -> Result<(), CopyError> {
        self.still_stands()?;
        let path = target.path(segment.base(), SegmentFile::Log);
        let from = match segment.file() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CopyError::Superseded),
            opened => opened?,
        };
        let to = target.fs.open(&path, OpenMode::CreateNew).context("create", &path)?;
        copy_bytes(&*from, &*to, segment.len()).context("copy to", &path)?;
        to.sync_data().context("sync", &path)?;
        for kind in [SegmentFile::OffsetIndex, SegmentFile::TimeIndex, SegmentFile::TransactionIndex] {
            self.copy_file(target, segment.base(), kind)?;
        }
        Ok(())
    }

    /// Copies a file that may not be there.
    fn copy_file(&self, target: &Place, base: Offset, kind: SegmentFile) -> Result<(), IoError> {
        let (from_path, path) = (self.place.path(base, kind), target.path(base, kind));
        let from = match self.place.fs.open(&from_path, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.context("open", &from_path)?,
        };
        let len = from.metadata().context("read metadata of", &from_path)?.len;
        let to = target.fs.open(&path, OpenMode::CreateNew).context("create", &path)?;
        copy_bytes(&*from, &*to, len).context("copy to", &path)?;
        to.sync_data().context("sync", &path)
    }

    /// Makes the batches durable that the copy shares with the log and the log has not synced yet.
    fn sync_linked(&self) -> Result<(), CopyError> {
        for sealed in &self.sealed {
            let Some(file) = &sealed.file else { continue };
            // The log's own batches: if it fails, whether they are on the disk nobody can tell any more.
            self.syncer.run(|| file.sync_data().context("sync", &sealed.segment.path()))?;
        }
        Ok(())
    }

    /// Writes what the log itself has in memory only: side files of segments that were sealed since the last checkpoint,
    /// and indexes whose files were found wrong.
    fn write_missing_side_files(&self, target: &Place, segments: &[Arc<Segment>]) -> Result<(), IoError> {
        let is_in_copy = |segment: &Arc<Segment>| segments.iter().any(|other| Arc::ptr_eq(other, segment));
        for sealed in self.sealed.iter().filter(|sealed| is_in_copy(&sealed.segment)) {
            if let Some(snapshot) = &sealed.snapshot {
                replace_file(&*target.fs, &target.path(sealed.end, SegmentFile::ProducerSnapshot), &snapshot.encode())?;
            }
            if let Some(indexes) = &sealed.indexes {
                IndexWriter::write_files(target, sealed.segment.base(), indexes)?;
            }
            if let Some(aborted) = &sealed.aborted {
                transactions::write_file(target, sealed.segment.base(), aborted)?;
            }
        }
        for segment in segments {
            if let Some(aborted) = segment.transactions().rebuilt() {
                transactions::write_file(target, segment.base(), &aborted)?;
            }
            if let Some(Indexes::Memory(indexes)) = segment.rebuilt_indexes() {
                IndexWriter::write_files(target, segment.base(), &indexes)?;
            }
        }
        Ok(())
    }

    /// Copies the segment that grows, up to where it reached when the copy began.
    fn copy_active(&self, target: &Place) -> Result<(), CopyError> {
        let base = self.active.base();
        let path = target.path(base, SegmentFile::Log);
        let to = target.fs.open(&path, OpenMode::CreateNew).context("create", &path)?;
        if self.active_len > 0 {
            let from = match self.active.file() {
                // It was sealed since, and compacted or retired.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CopyError::Superseded),
                opened => opened?,
            };
            if let Err(source) = copy_bytes(&*from, &*to, self.active_len) {
                // A truncation may have cut it short.
                self.still_stands()?;
                return Err(IoError { verb: "copy to", path, source }.into());
            }
        }
        to.sync_data().context("sync", &path)?;
        let indexes = copy_below(base, &self.indexes, self.active_len, self.end);
        let _ = indexes.times.append_final(self.largest.timestamp, self.largest.offset);
        IndexWriter::write_files(target, base, &indexes)?;
        Ok(transactions::write_file(target, base, &self.aborted)?)
    }

    /// Writes what is known of the log as a whole, as a clean close does.
    fn write_facts(&self, target: &Place, start: Offset) -> Result<(), IoError> {
        let fs = &*target.fs;
        if !self.epochs.is_empty() {
            write_epochs(target, &self.epochs)?;
        }
        replace_file(fs, &target.path(self.end, SegmentFile::ProducerSnapshot), &self.producers.encode())?;
        if self.topic_id != TopicId::ZERO {
            write_topic_id(fs, &target.dir, self.topic_id)?;
        }
        let end = self.end;
        let clean = LogState {
            clean: true,
            sync_failed: false,
            log_start: start,
            recovery_point: end,
            end,
            topic_id: self.topic_id,
            mark: self.mark,
        };
        StateFile::load(target)?.record(target, clean)
    }

    /// Whether what was taken when the copy began is still part of the log.
    fn still_stands(&self) -> Result<(), CopyError> {
        self.shared.usable()?;
        let segments = self.shared.segments();
        let has_active = segments.all().any(|segment| Arc::ptr_eq(segment, &self.active));
        if self.control.lowest_end() < self.end || !(has_active || self.active_len == 0) {
            return Err(CopyError::Superseded);
        }
        Ok(())
    }
}

/// Whether there can be no link between the two places, though there can be a copy.
fn are_links_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::CrossesDevices
            | io::ErrorKind::Unsupported
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::TooManyLinks
    )
}

/// Empties a directory that a copy was being built in, but for its lock.
///
/// # Errors
/// If something is in it that no copy would have: it is somebody else's then.
fn clear(target: &Place) -> Result<(), IoError> {
    let entries = target.fs.read_dir(&target.dir).context("list", &target.dir)?;
    if entries.iter().any(|entry| entry.kind != FileKind::File || !is_name_of_log(&entry.name)) {
        let foreign = io::Error::new(io::ErrorKind::AlreadyExists, "it holds what is no log's");
        return Err(foreign).context("copy to", &target.dir);
    }
    for entry in entries.iter().filter(|entry| entry.name != LOCK_FILE) {
        target.remove(&target.dir.join(&entry.name))?;
    }
    Ok(())
}
