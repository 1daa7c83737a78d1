//! One segment: the batches from its base offset to the next segment's, with their indexes.
//!
//! The writer and all readers share it. What the writer changes while they look on is published by atomics: the length
//! last, so that whoever sees it sees the index entries too.

mod look_up;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::batch::{BatchHeader, BatchView};
use crate::checkpoint::temporary_path;
use crate::damage::KnownDamage;
use crate::error::{DamageKind, Damaged, ReadError};
use crate::fs::{File, Fs, Metadata, OpenMode};
use crate::index::TimeEntry;
use crate::indexes::{FileIndexes, IndexWriter, Indexes};
use crate::io::{FileExt, IoContext, IoError, copy_bytes};
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::open_files::{LazySlot, OpenFiles};
use crate::options::LogOptions;
use crate::read_once::ReadOnce;
use crate::rebuilt::Rebuilt;
use crate::scan::{Found, Walk};
use crate::survey::{Frame, Sound, Step, Stretch, Survey};
use crate::transactions::SegmentTransactions;
use crate::{Offset, TimestampMs};

/// The largest timestamp of a segment is not known yet: its time index was not read.
const UNKNOWN: i64 = i64::MIN;

/// The places of a log's files, which all its segments share.
#[derive(Debug)]
pub(crate) struct Place {
    /// The file system.
    pub(crate) fs: Arc<dyn Fs>,
    /// The partition's directory.
    pub(crate) dir: Arc<Path>,
    /// The bound on open files.
    pub(crate) open_files: OpenFiles,
    /// The distance of index entries, where an index has to be built anew.
    pub(crate) index_interval_bytes: u32,
    /// Nothing is to be changed.
    pub(crate) read_only: bool,
    /// Segments whose index files are to be written anew.
    pub(crate) rebuilt: Rebuilt,
}

impl Place {
    /// Of a log that is opened with these options.
    pub(crate) fn with_options(fs: Arc<dyn Fs>, dir: &Path, options: &LogOptions, read_only: bool) -> Self {
        let LogOptions { open_files, index_interval_bytes, .. } = options;
        let (open_files, index_interval_bytes) = (open_files.clone(), *index_interval_bytes);
        Self { fs, dir: dir.into(), open_files, index_interval_bytes, read_only, rebuilt: Rebuilt::default() }
    }

    /// The same of another directory.
    pub(crate) fn of(&self, dir: &Path) -> Self {
        Self {
            fs: self.fs.clone(),
            dir: dir.into(),
            open_files: self.open_files.clone(),
            index_interval_bytes: self.index_interval_bytes,
            read_only: self.read_only,
            rebuilt: Rebuilt::default(),
        }
    }

    /// The path of a segment's file.
    pub(crate) fn path(&self, base: Offset, kind: SegmentFile) -> PathBuf {
        self.dir.join(SegmentFileName::live(base, kind).to_string())
    }

    /// The path of a segment's file after it was given up.
    pub(crate) fn deleted_path(&self, base: Offset, kind: SegmentFile) -> PathBuf {
        let name = SegmentFileName { base_offset: base, kind, state: SegmentFileState::Deleted };
        self.dir.join(name.to_string())
    }

    /// Removes a file that may not be there.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), IoError> {
        match self.fs.remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done.context("remove", path),
        }
    }

    /// Makes what was created, renamed and removed in the directory durable.
    pub(crate) fn sync_dir(&self) -> Result<(), IoError> {
        self.fs.sync_dir(&self.dir).context("sync directory", &self.dir)
    }
}

/// Where a batch lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located {
    pub(crate) position: u64,
    pub(crate) header: BatchHeader,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Segment {
    place: Arc<Place>,
    base: Offset,
    len: AtomicU64,
    largest_timestamp: AtomicI64,
    file: LazySlot,
    /// Its file's, once it was opened; 0 before, which no file has.
    inode: AtomicU64,
    indexes: Mutex<Option<Indexes>>,
    transactions: SegmentTransactions,
    rebuilt: AtomicBool,
    retired: AtomicBool,
    /// Its data file may still have the name of a replacement that is being put in place.
    in_swap: AtomicBool,
    damage: KnownDamage,
}

impl Segment {
    /// A segment whose file has `len` bytes of whole batches. Its indexes are read when they are first needed.
    pub(crate) fn new(place: impl Into<Arc<Place>>, base: Offset, len: u64) -> Self {
        Self {
            place: place.into(),
            base,
            len: AtomicU64::new(len),
            largest_timestamp: AtomicI64::new(UNKNOWN),
            file: LazySlot::default(),
            inode: AtomicU64::new(0),
            indexes: Mutex::new(None),
            transactions: SegmentTransactions::default(),
            rebuilt: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            in_swap: AtomicBool::new(false),
            damage: KnownDamage::default(),
        }
    }

    /// A segment made by compaction from others, until [`Segment::in_place`] under the name of a replacement.
    pub(crate) fn replacement(
        place: Arc<Place>,
        base: Offset,
        len: u64,
        largest_timestamp: TimestampMs,
        file: &dyn File,
    ) -> io::Result<Self> {
        let segment = Self::new(place, base, len);
        segment.inode.store(file.metadata()?.inode, Ordering::Relaxed);
        segment.largest_timestamp.store(largest_timestamp.0, Ordering::Relaxed);
        segment.in_swap.store(true, Ordering::SeqCst);
        Ok(segment)
    }

    /// A segment of a log that is being opened; if it waits for its swap, its file still has the name of a replacement.
    pub(crate) fn found(place: Arc<Place>, base: Offset, waits_for_swap: bool) -> Result<Self, IoError> {
        let segment = Self::new(place, base, 0);
        segment.in_swap.store(waits_for_swap, Ordering::SeqCst);
        let path = segment.path();
        let metadata = if waits_for_swap {
            segment.open_data().map(|(_, metadata)| metadata)
        } else {
            segment.place.fs.metadata(&path)
        };
        segment.len.store(metadata.context("read metadata of", &path)?.len, Ordering::Release);
        Ok(segment)
    }

    /// As [`Segment::found`], for the one that is read in several ways while the log is opened: its file is open, and
    /// what is read of it is kept in memory, until it is [released](Segment::release_file).
    pub(crate) fn found_open(place: Arc<Place>, base: Offset, waits_for_swap: bool) -> Result<Self, IoError> {
        let segment = Self::new(place, base, 0);
        segment.in_swap.store(waits_for_swap, Ordering::SeqCst);
        let (file, metadata) = segment.open_data().context_at("open", || segment.path())?;
        segment.inode.store(metadata.inode, Ordering::Relaxed);
        segment.len.store(metadata.len, Ordering::Release);
        segment.file.preset(Arc::new(ReadOnce::new(file, metadata.len)));
        Ok(segment)
    }

    /// The same segment without anything that can be had from its files again. It has no damage.
    pub(crate) fn at_rest(&self) -> Self {
        let segment = Self::new(self.place.clone(), self.base, self.len());
        segment.inode.store(self.inode.load(Ordering::Relaxed), Ordering::Relaxed);
        segment.largest_timestamp.store(self.largest_timestamp.load(Ordering::Relaxed), Ordering::Relaxed);
        segment.transactions.set_from(&self.transactions);
        segment
    }

    /// Its files have their names.
    pub(crate) fn in_place(&self) {
        self.unload_indexes();
        self.transactions.unload();
        self.in_swap.store(false, Ordering::SeqCst);
    }

    /// The offset its name tells.
    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    /// The places of the log's files.
    pub(crate) fn place(&self) -> &Arc<Place> {
        &self.place
    }

    /// The aborted transactions whose markers lie in it.
    pub(crate) fn transactions(&self) -> &SegmentTransactions {
        &self.transactions
    }

    /// Bytes of whole batches that readers may see.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Publishes an append, or a cut.
    pub(crate) fn publish(&self, len: u64, largest_timestamp: TimestampMs) {
        self.largest_timestamp.store(largest_timestamp.0, Ordering::Relaxed);
        self.len.store(len, Ordering::Release);
    }

    /// It left the log: nothing is to be written for it any more.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
    }

    /// Whether it left the log.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::SeqCst)
    }

    /// The path of its data file.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.path(self.base, SegmentFile::Log)
    }

    /// Its data file. `NotFound` if it is gone, or if the name is another file's by now.
    pub(crate) fn file(&self) -> Result<Arc<dyn File>, IoError> {
        let open = || {
            let (file, Metadata { inode, .. }) = self.open_data()?;
            let known = self.inode.compare_exchange(0, inode, Ordering::Relaxed, Ordering::Relaxed);
            if known.is_err_and(|known| known != inode) {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the name is another file's now"));
            }
            Ok(file)
        };
        self.file.get(&self.place.open_files, open).context_at("open", || self.path())
    }

    fn open_data(&self) -> io::Result<(Arc<dyn File>, Metadata)> {
        let mode = if self.place.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        if self.in_swap.load(Ordering::SeqCst) {
            // First under the name that it will lose: between the two looks it may get the other one.
            let name =
                SegmentFileName { base_offset: self.base, kind: SegmentFile::Log, state: SegmentFileState::Swap };
            match self.place.fs.open_with_metadata(&self.place.dir.join(name.to_string()), mode) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => return opened,
            }
        }
        self.place.fs.open_with_metadata(&self.path(), mode)
    }

    /// Whether its data file is open.
    pub(crate) fn has_open_file(&self) -> bool {
        self.file.is_open()
    }

    /// Closes its data file until it is next used.
    pub(crate) fn release_file(&self) {
        self.file.release();
    }

    /// Creates its data file, empty. A leftover of the same name that is no part of the log is removed first.
    pub(crate) fn create_file(&self) -> Result<(), IoError> {
        let path = self.path();
        let file = match self.place.fs.open(&path, OpenMode::CreateNew) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.place.fs.remove_file(&path).context("remove", &path)?;
                self.place.fs.open(&path, OpenMode::CreateNew)
            }
            opened => opened,
        };
        let file = file.context("create", &path)?;
        let inode = file.metadata().context("read metadata of", &path)?.inode;
        // A new segment: nobody can have opened its file before.
        self.inode.store(inode, Ordering::Relaxed);
        self.file.get(&self.place.open_files, || Ok(file)).context("open", &path).map(|_| ())
    }

    /// What is changed in place has to be this log's alone, and a copy of the log ([`Log::snapshot`](crate::Log::snapshot))
    /// may have the same file under another name. If so, this is the segment to take this one's place before the change:
    /// its file holds the first `len` bytes, synced, and has a temporary name until [`Segment::take_name`].
    pub(crate) fn with_own_file(&self, len: u64) -> Result<Option<Arc<Self>>, IoError> {
        let links = self.file()?.metadata().context("read metadata of", &self.path())?.links;
        if links <= 1 { Ok(None) } else { self.in_new_file(len).map(Some) }
    }

    /// The segment to take this one's place whose file is a new one with the first `len` bytes, synced. It has a temporary
    /// name until [`Segment::take_name`].
    pub(crate) fn in_new_file(&self, len: u64) -> Result<Arc<Self>, IoError> {
        let (file, path) = (self.file()?, self.path());
        let temporary = temporary_path(&path);
        let create = || {
            let own = self.place.fs.open(&temporary, OpenMode::Truncate).context("create", &temporary)?;
            copy_bytes(&*file, &*own, len).context("copy to", &temporary)?;
            own.sync_data().context("sync", &temporary)?;
            let inode = own.metadata().context("read metadata of", &temporary)?.inode;
            let segment = Self::new(self.place.clone(), self.base, len);
            segment.inode.store(inode, Ordering::Relaxed);
            segment.file.preset(own);
            segment.transactions.set_from(&self.transactions);
            for damaged in self.damage.all() {
                segment.note_damage(damaged);
            }
            segment.damage.cut(len);
            Ok(Arc::new(segment))
        };
        create().inspect_err(|_| {
            // On a full disk the leftover would take the room that is missing.
            let _ = self.place.fs.remove_file(&temporary);
        })
    }

    /// Gives the file of a segment made by [`Segment::with_own_file`] its name. Durable with the next sync of the
    /// directory.
    pub(crate) fn take_name(&self) -> Result<(), IoError> {
        let (path, open_files) = (self.path(), &self.place.open_files);
        let temporary = temporary_path(&path);
        self.place.fs.rename(&temporary, &path).context("rename to its final name", &temporary)?;
        self.file.admit(open_files);
        Ok(())
    }

    /// The indexes: those in memory while it is active, else those in its files, rebuilt if they are bad or missing.
    pub(crate) fn indexes(&self) -> Result<Indexes, ReadError> {
        let mut indexes = self.lock_indexes();
        if let Some(indexes) = &*indexes {
            return Ok(indexes.clone());
        }
        let loaded = match Indexes::load(&self.place, self.base, self.len())? {
            Some(loaded) if self.confirms_last_time(&loaded)? => loaded,
            _ => self.rebuild_indexes()?,
        };
        Ok(indexes.insert(loaded).clone())
    }

    /// Whether the batch that the last time entry names has that time. The order of entries does not tell: a single one
    /// may say anything.
    pub(crate) fn confirms_last_time(&self, indexes: &Indexes) -> Result<bool, ReadError> {
        match indexes.last_time().context_at("read an index of", || self.path())? {
            Some(last) => self.confirms_time(indexes, last),
            None => Ok(true),
        }
    }

    /// Whether the batch that a time entry names has that time.
    fn confirms_time(&self, indexes: &Indexes, entry: TimeEntry) -> Result<bool, ReadError> {
        let from = indexes.position_of(entry.offset).context_at("read an index of", || self.path())?;
        let file = self.file()?;
        let mut walk = Walk::small(&*file, from, self.len());
        let mut is_first = from > 0;
        loop {
            match walk.next_header().context_at("read", || self.path())? {
                // What an entry points at between batches looks like damage.
                Found::Bad(..) if is_first => return Ok(false),
                Found::Batch(_, header) if header.last_offset() >= entry.offset => {
                    return Ok(header.base_offset() <= entry.offset && header.max_timestamp() == entry.timestamp);
                }
                Found::Batch(..) => is_first = false,
                Found::End => return Ok(false),
                Found::Bad(..) => break,
            }
        }
        let mut survey = self.survey(&*file, from, Offset::MAX);
        loop {
            match survey.step().context_at("read", || self.path())? {
                Step::Batch(Sound { header, .. }) if header.last_offset() >= entry.offset => {
                    return Ok(header.base_offset() <= entry.offset && header.max_timestamp() == entry.timestamp);
                }
                // Nothing says otherwise, and the indexes could not be built any better.
                Step::Damage(stretch) if stretch.offsets.contains(&entry.offset) => return Ok(true),
                Step::Batch(_) | Step::Damage(_) => {}
                Step::Zeros(_) | Step::End => return Ok(false),
            }
        }
    }

    /// Puts the writer's indexes in place.
    pub(crate) fn set_indexes(&self, indexes: Indexes) {
        *self.lock_indexes() = Some(indexes);
    }

    /// Has the indexes read from their files when they are next needed.
    pub(crate) fn unload_indexes(&self) {
        *self.lock_indexes() = None;
    }

    /// The indexes that a reader found its files' to be wrong against and built anew, until they are written.
    pub(crate) fn rebuilt_indexes(&self) -> Option<Indexes> {
        let rebuilt = self.rebuilt.load(Ordering::SeqCst);
        if rebuilt { self.lock_indexes().clone() } else { None }
    }

    /// The rebuilt indexes were written.
    pub(crate) fn rebuilt_indexes_written(&self) {
        self.rebuilt.store(false, Ordering::SeqCst);
    }

    fn lock_indexes(&self) -> MutexGuard<'_, Option<Indexes>> {
        self.indexes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The largest timestamp of its batches if that is known without reading.
    pub(crate) fn known_largest_timestamp(&self) -> Option<TimestampMs> {
        Some(self.largest_timestamp.load(Ordering::Relaxed)).filter(|known| *known != UNKNOWN).map(TimestampMs)
    }

    /// Its batches cannot be read: it ages by the time of its last write.
    pub(crate) fn give_up_largest_timestamp(&self) {
        self.largest_timestamp.store(TimestampMs::NONE.0, Ordering::Relaxed);
    }

    /// The largest timestamp of its batches, [`TimestampMs::NONE`] if they have none.
    pub(crate) fn largest_timestamp(&self) -> Result<TimestampMs, ReadError> {
        if let Some(known) = self.known_largest_timestamp() {
            return Ok(known);
        }
        let last = self.indexes()?.last_time().context_at("read an index of", || self.path())?;
        let largest = last.map_or(TimestampMs::NONE, |last| last.timestamp);
        self.largest_timestamp.store(largest.0, Ordering::Relaxed);
        Ok(largest)
    }

    /// Where to begin to look for the first record with this timestamp or a later one.
    pub(crate) fn offset_before(&self, timestamp: TimestampMs) -> Result<Offset, ReadError> {
        let look_up = |indexes: &Indexes| indexes.time_before(timestamp).context_at("read an index of", || self.path());
        let indexes = self.indexes()?;
        let before = look_up(&indexes)?;
        if before.timestamp == TimestampMs::NONE || self.confirms_time(&indexes, before)? {
            return Ok(before.offset);
        }
        // Of the entries only the last was held against a batch: one before it may be of another time or offset, and the
        // records passed over for it would not be found.
        match &indexes {
            Indexes::Files(bad) => Ok(look_up(&self.rebuild_wrong_indexes(bad)?)?.offset),
            // Those of the active segment, from their files: all of it is looked through.
            Indexes::Memory(_) => Ok(self.base),
        }
    }

    /// Builds indexes in place of those in files, which are wrong: the log has the last word. Somebody else may have found
    /// out already.
    pub(crate) fn rebuild_wrong_indexes(&self, wrong: &Arc<FileIndexes>) -> Result<Indexes, ReadError> {
        let rebuilt = self.rebuild_indexes()?;
        let mut current = self.lock_indexes();
        if matches!(&*current, Some(Indexes::Files(files)) if Arc::ptr_eq(files, wrong)) {
            *current = Some(rebuilt.clone());
        }
        Ok(rebuilt)
    }

    /// Lets go of the indexes of a segment that no longer grows: those in memory may have been built without batches that
    /// are there now. Whoever needs them next takes those in the files, or builds them.
    pub(crate) fn forget_indexes(&self) {
        *self.lock_indexes() = None;
        self.rebuilt.store(false, Ordering::SeqCst);
        self.largest_timestamp.store(UNKNOWN, Ordering::Relaxed);
    }

    /// Whether the indexes are in memory, or their files open.
    pub(crate) fn has_indexes(&self) -> bool {
        self.lock_indexes().is_some()
    }

    /// Lets index files go that were opened for one use.
    pub(crate) fn unload_read_indexes(&self) {
        let mut indexes = self.lock_indexes();
        if matches!(&*indexes, Some(Indexes::Files(_))) {
            *indexes = None;
        }
    }

    /// The whole batch at `position`, if its checksum is right.
    pub(crate) fn read_batch(&self, located: &Located) -> Result<Vec<u8>, ReadError> {
        let mut bytes = vec![0; located.header.total_bytes()];
        self.read(&mut bytes, located.position)?;
        let checked = BatchView::parse(&bytes).map_err(|error| error.what).and_then(|(batch, _)| batch.verify_crc());
        match checked {
            Ok(()) => Ok(bytes),
            Err(fault) => Err(self.damage_of(located, fault.into()).into()),
        }
    }

    /// Fills the buffer from `position`. The end of the file is damage: what is published is there.
    pub(crate) fn read(&self, buffer: &mut [u8], position: u64) -> Result<(), ReadError> {
        let read = self.file()?.read_full_at(buffer, position).context_at("read", || self.path())?;
        if read < buffer.len() {
            let (position, bytes) = (position + read as u64, (buffer.len() - read) as u64);
            let offsets = self.base..self.base;
            return Err(self.damage(Stretch { position, bytes, offsets, what: DamageKind::Short }).into());
        }
        Ok(())
    }

    /// Names damage in its data file.
    pub(crate) fn damage(&self, Stretch { position, bytes, offsets, what }: Stretch) -> Damaged {
        Damaged { segment: self.path(), position, bytes, offsets, what }
    }

    /// Names damage in a batch whose header can be read.
    pub(crate) fn damage_of(&self, Located { position, header }: &Located, what: DamageKind) -> Damaged {
        let offsets = header.base_offset()..header.next_offset();
        self.damage(Stretch { position: *position, bytes: header.total_bytes() as u64, offsets, what })
    }

    /// Notes damage in its data file, for all readers: who asks for what lies in it gets an error, and goes on behind.
    pub(crate) fn note_damage(&self, damaged: Damaged) {
        self.damage.note(damaged, || true);
    }

    /// The damage that is known in its data file.
    pub(crate) fn known_damage(&self) -> &KnownDamage {
        &self.damage
    }

    /// The indexes as they follow from the batches.
    fn rebuild_indexes(&self) -> Result<Indexes, ReadError> {
        let file = self.file()?;
        let mut writer = IndexWriter::new(self.base, self.place.index_interval_bytes);
        let frame = Frame::whole(self.base, self.len(), Offset::MAX);
        let mut survey = Survey::new(&*file, frame).passing_over(self.damage.all());
        loop {
            match survey.step().context_at("read", || self.path())? {
                Step::Batch(batch) => writer.add(batch.position, &batch.header),
                Step::Damage(_) => {}
                Step::Zeros(_) | Step::End => break,
            }
        }
        writer.finish();
        self.rebuilt.store(true, Ordering::SeqCst);
        self.place.rebuilt.add(self.base);
        Ok(Indexes::Memory(writer.indexes().clone()))
    }
}
