//! A data root: one broker's directory of partitions, with the files that belong to all of them.
//!
//! ```text
//! .lock                               held while the root is open
//! meta.properties                     which broker of which cluster
//! .kafka_cleanshutdown                there only while nobody runs, and only if the last stop was clean
//! recovery-point-offset-checkpoint    per partition: everything below is synced
//! log-start-offset-checkpoint         per partition: nothing below is served
//! replication-offset-checkpoint       per partition: high watermark
//! cleaner-offset-checkpoint           per partition: everything below is compacted
//! books-0/ books-1/ ...               partitions
//! books-2.<32 hex>-delete/            to be removed; also -stray, -future
//! ```
//!
//! Anything else in a root (`lost+found`, an editor's or NFS's leftovers, a link) is reported once and left alone.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::checkpoint::{
    CheckpointError, parent_of, read_offsets_where, read_small_file, replace_file, sync_parent, write_offsets,
};
use crate::fs::{DirEntry, DirLock, FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::lock::{LOCK_FILE, LockError, lock_directory};
use crate::log::is_out_of_room;
use crate::metadata_files::{
    META_PROPERTIES_FILE, MetadataFileError, read_meta_properties, read_topic_id, write_meta_properties, write_topic_id,
};
use crate::names::{InvalidTopicName, PartitionDirName, PartitionDirRole, ReplacedFileName, check_topic_name};
use crate::root_checkpoints::RootCheckpoints;
use crate::{Offset, TopicId, TopicPartition};

/// The marker of a clean stop (Kafka `CleanShutdownFileHandler`).
pub(crate) const CLEAN_SHUTDOWN_FILE: &str = ".kafka_cleanshutdown";
pub(crate) const RECOVERY_POINTS_FILE: &str = "recovery-point-offset-checkpoint";
pub(crate) const LOG_STARTS_FILE: &str = "log-start-offset-checkpoint";
pub(crate) const HIGH_WATERMARKS_FILE: &str = "replication-offset-checkpoint";
pub(crate) const CLEANER_OFFSETS_FILE: &str = "cleaner-offset-checkpoint";

/// The checkpoints of a root, each with a line for a partition.
pub(crate) const CHECKPOINT_FILES: [&str; 4] =
    [RECOVERY_POINTS_FILE, LOG_STARTS_FILE, HIGH_WATERMARKS_FILE, CLEANER_OFFSETS_FILE];

/// The files that tell a data root from other directories.
pub(crate) struct RootFiles;

impl RootFiles {
    /// Their names.
    pub(crate) const NAMES: [&str; 5] =
        [META_PROPERTIES_FILE, RECOVERY_POINTS_FILE, LOG_STARTS_FILE, HIGH_WATERMARKS_FILE, CLEAN_SHUTDOWN_FILE];

    /// Whether this is one of them.
    pub(crate) fn is_one(name: &str) -> bool {
        Self::NAMES.contains(&name)
    }
}

/// Whether a directory of this name in a root is a partition in use.
pub(crate) fn is_live_partition(name: &str) -> bool {
    !OTHER_KAFKA_DIRS.contains(&name)
        && PartitionDirName::parse(name).is_some_and(|name| name.role == PartitionDirRole::Current)
}

/// A file of Kafka's that is known and not read here.
const OTHER_KAFKA_FILE: &str = "bootstrap.checkpoint";
/// Directories of Kafka's that are no partitions of ours, whatever their names look like.
const OTHER_KAFKA_DIRS: [&str; 2] = ["__cluster_metadata-0", "remote-log-index-cache"];
/// What the broker keeps beside the partitions begins with this.
const OWN_FILE_PREFIX: &str = "highwater-";

/// The marker holds some thirty bytes. More is not read: only its presence counts.
pub(crate) const CLEAN_SHUTDOWN_BYTES_MAX: u64 = 4096;
/// A directory to be removed is not followed further down than this.
pub(crate) const REMOVAL_DEPTH_MAX: usize = 16;

/// Whose root this should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataDirOptions {
    /// The cluster, if it is known already. `None` takes the root's word for it (see [`DataDir::adopt_cluster_id`]).
    pub cluster_id: Option<String>,
    /// The broker's number in the cluster.
    pub node_id: i32,
}

impl DataDirOptions {
    /// A root of the broker with this number, of whatever cluster it says it is.
    pub fn of_node(node_id: i32) -> Self {
        Self { cluster_id: None, node_id }
    }

    /// The same, of this cluster only.
    pub fn in_cluster(self, cluster_id: impl Into<String>) -> Self {
        Self { cluster_id: Some(cluster_id.into()), ..self }
    }
}

/// What the files of the root know about one log before it is opened. There will be more: write
/// `OpenHints { clean, ..OpenHints::default() }`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenHints {
    /// Whether the last stop was clean; `None` if nobody can tell.
    pub clean: Option<bool>,
    /// Everything below this offset was synced; `None` if there is no line for the log.
    pub recovery_point: Option<Offset>,
    /// Nothing below this offset may be served; `None` if there is no line for the log.
    pub log_start: Option<Offset>,
    /// Everything below this offset was compacted; `None` if there is no line for the log.
    pub cleaner_offset: Option<Offset>,
}

/// A partition's directory that was there when the root was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundPartition {
    /// The partition, by the directory's name.
    pub topic_partition: TopicPartition,
    /// The directory.
    pub dir: PathBuf,
    /// The topic's id; `None` if it has none (written before Kafka 2.8, or creation was cut short) or an unreadable one.
    pub topic_id: Option<TopicId>,
}

/// Something in the root that was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataDirWarning {
    /// The file or directory.
    pub path: PathBuf,
    /// What was done about it, and why.
    pub what: String,
}

/// What opening a root found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataDirReport {
    /// Whether the root was made just now.
    pub created: bool,
    /// Whether the last stop was clean.
    pub clean: bool,
    /// The broker epoch that the last clean stop recorded.
    pub broker_epoch: Option<i64>,
    /// The cluster that the root belongs to, if it says so or was told.
    pub cluster_id: Option<String>,
    /// Directories whose deletion was begun: for [`DataDir::remove_dir_tree`].
    pub to_delete: Vec<PathBuf>,
    /// Directories that were set aside for the operator.
    pub strays: Vec<PathBuf>,
    /// Copies that a move between roots had begun.
    pub futures: Vec<PathBuf>,
    /// What was passed over, each once, in the order of their names.
    pub warnings: Vec<DataDirWarning>,
}

/// An open data root. It is locked until this value is dropped; dropping it without [`DataDir::close_clean`] is a crash.
#[derive(Debug)]
pub struct DataDir {
    fs: Arc<dyn Fs>,
    root: PathBuf,
    node_id: i32,
    cluster_id: Option<String>,
    was_clean: bool,
    partitions: Vec<FoundPartition>,
    /// Guards the checkpoints, and with them every change of the root's entries.
    state: Mutex<RootState>,
    /// The last field: everything else is closed before the lock goes.
    _lock: Box<dyn DirLock>,
}

#[derive(Debug)]
struct RootState {
    recovery_points: Checkpoint,
    log_starts: Checkpoint,
    high_watermarks: Checkpoint,
    cleaner_offsets: Checkpoint,
    /// Whether a write has failed: what is on disk may be older than callers think, so no clean stop. One that lacked room
    /// only is made up for.
    write_failed: bool,
}

impl RootState {
    fn checkpoints(&mut self) -> [&mut Checkpoint; 4] {
        let Self { recovery_points, log_starts, high_watermarks, cleaner_offsets, write_failed: _ } = self;
        [recovery_points, log_starts, high_watermarks, cleaner_offsets]
    }
}

impl DataDir {
    /// Opens a root, making it if it is not there, and locks it. When this returns, the marker of a clean stop is gone
    /// for good: a crash from here on is one, even while logs are being opened (KAFKA-10471).
    ///
    /// # Errors
    /// If another process has it, if it belongs to another broker or cluster, and if a file or directory cannot be read, made or
    /// synced. A checkpoint that is damaged is a warning in the report and no error.
    pub fn open(fs: Arc<dyn Fs>, path: &Path, options: DataDirOptions) -> Result<(Self, DataDirReport), DataDirError> {
        let created = create_root(&*fs, path)?;
        let lock = lock_directory(&*fs, path)?;
        // Whose it is comes before anything is changed: a foreign root keeps its marker.
        let cluster_id = check_owner(&*fs, path, &options)?;
        let (clean, broker_epoch) = take_clean_marker(&*fs, path)?;
        let mut report = DataDirReport { created, clean, broker_epoch, cluster_id, ..DataDirReport::default() };
        let partitions = list_partitions(&*fs, path, &mut report)?;

        let known: Vec<&TopicPartition> = partitions.iter().map(|found| &found.topic_partition).collect();
        let mut load = |file| Checkpoint::load(&*fs, path, file, &known, &mut report.warnings);
        let state = RootState {
            recovery_points: load(RECOVERY_POINTS_FILE)?,
            log_starts: load(LOG_STARTS_FILE)?,
            high_watermarks: load(HIGH_WATERMARKS_FILE)?,
            cleaner_offsets: load(CLEANER_OFFSETS_FILE)?,
            write_failed: false,
        };
        let root = Self {
            fs,
            root: path.to_owned(),
            node_id: options.node_id,
            cluster_id: report.cluster_id.clone(),
            was_clean: clean,
            partitions,
            state: Mutex::new(state),
            _lock: lock,
        };
        Ok((root, report))
    }

    /// The root's path.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Whether the last stop was clean.
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// The partitions that were there when the root was opened, sorted.
    pub fn partitions(&self) -> &[FoundPartition] {
        &self.partitions
    }

    /// The directory that a partition has in this root.
    pub fn partition_dir(&self, topic_partition: &TopicPartition) -> PathBuf {
        self.root.join(PartitionDirName::current(topic_partition.clone()).to_string())
    }

    /// What the root knows about a log before it is opened.
    pub fn hints(&self, topic_partition: &TopicPartition) -> OpenHints {
        let state = self.lock_state();
        OpenHints {
            clean: Some(self.was_clean),
            recovery_point: state.recovery_points.entries.get(topic_partition).copied(),
            log_start: state.log_starts.entries.get(topic_partition).copied(),
            cleaner_offset: state.cleaner_offsets.entries.get(topic_partition).copied(),
        }
    }

    /// The high watermark as last written. It may be too low by some seconds, and above the end of a log that lost some.
    pub fn high_watermark(&self, topic_partition: &TopicPartition) -> Option<Offset> {
        self.lock_state().high_watermarks.entries.get(topic_partition).copied()
    }

    /// Tells the root its cluster, for roots that were opened without one: writes `meta.properties` if there is none.
    ///
    /// # Errors
    /// [`DataDirError::WrongCluster`] if it belongs to another one; else what reading or writing `meta.properties` met.
    pub fn adopt_cluster_id(&mut self, cluster_id: &str) -> Result<(), DataDirError> {
        if let Some(found) = self.cluster_id.as_ref().filter(|found| *found != cluster_id) {
            return Err(DataDirError::WrongCluster {
                directory: self.root.clone(),
                found: found.clone(),
                expected: cluster_id.to_owned(),
            });
        }
        if read_meta_properties(&*self.fs, &self.root)?.is_none() {
            write_meta_properties(&*self.fs, &self.root, self.node_id, cluster_id, None)?;
        }
        self.cluster_id = Some(cluster_id.to_owned());
        Ok(())
    }

    /// Makes a partition's directory with its topic id, durably, and returns it.
    ///
    /// Lines in the checkpoints that an earlier partition of this name left are taken out first: they would tell the new
    /// log to begin, or to trust its disk, at an offset it has never seen.
    ///
    /// # Errors
    /// If the name is none that a topic may have, if the directory is there, and if it cannot be made durably: nothing of it is
    /// left then, as far as it could be removed.
    pub fn create_partition(
        &self,
        topic_partition: &TopicPartition,
        topic_id: TopicId,
    ) -> Result<PathBuf, PartitionDirError> {
        check_topic_name(&topic_partition.topic)?;
        if topic_partition.partition < 0 {
            return Err(PartitionDirError::NegativePartition(topic_partition.partition));
        }
        let dir = self.partition_dir(topic_partition);
        let mut state = self.lock_state();
        if exists(&*self.fs, &dir)? {
            return Err(PartitionDirError::Exists(dir));
        }
        self.forget(&mut state, topic_partition)?;
        self.fs.create_dir(&dir).context("create directory", &dir)?;
        let made = write_topic_id(&*self.fs, &dir, topic_id)
            .and_then(|()| self.fs.sync_dir(&self.root).context("sync directory", &self.root));
        if let Err(error) = made {
            // Most likely a full disk. An empty directory left behind does no harm; the first error is the one to tell.
            let _ = remove_tree(&*self.fs, &dir, REMOVAL_DEPTH_MAX);
            return Err(error.into());
        }
        Ok(dir)
    }

    /// Writes down the topic's id in the directory of a partition that has none.
    ///
    /// # Errors
    /// If the file cannot be written durably.
    pub fn adopt_topic_id(&self, topic_partition: &TopicPartition, topic_id: TopicId) -> Result<(), PartitionDirError> {
        Ok(write_topic_id(&*self.fs, &self.partition_dir(topic_partition), topic_id)?)
    }

    /// Writes recovery points. Partitions that are not given keep their line: they may not have been opened yet.
    ///
    /// # Errors
    /// If the file cannot be written durably: what it held before stays, and this root can no longer be
    /// [closed as clean](DataDir::close_clean).
    pub fn write_recovery_points(&self, offsets: &BTreeMap<TopicPartition, Offset>) -> Result<(), CheckpointError> {
        self.write(offsets, |state| &mut state.recovery_points)
    }

    /// Writes log starts. Partitions that are not given keep their line.
    ///
    /// # Errors
    /// As [`DataDir::write_recovery_points`].
    pub fn write_log_starts(&self, offsets: &BTreeMap<TopicPartition, Offset>) -> Result<(), CheckpointError> {
        self.write(offsets, |state| &mut state.log_starts)
    }

    /// Writes high watermarks. Partitions that are not given keep their line.
    ///
    /// # Errors
    /// As [`DataDir::write_recovery_points`].
    pub fn write_high_watermarks(&self, offsets: &BTreeMap<TopicPartition, Offset>) -> Result<(), CheckpointError> {
        self.write(offsets, |state| &mut state.high_watermarks)
    }

    /// Writes how far logs are compacted. Partitions that are not given keep their line.
    ///
    /// # Errors
    /// As [`DataDir::write_recovery_points`].
    pub fn write_cleaner_offsets(&self, offsets: &BTreeMap<TopicPartition, Offset>) -> Result<(), CheckpointError> {
        self.write(offsets, |state| &mut state.cleaner_offsets)
    }

    /// Renames a partition's directory to what [`DataDir::remove_dir_tree`] takes, durably, and returns the new path.
    /// The partition's lines in the checkpoints go first. A deletion cut short is finished after the next opening.
    ///
    /// # Errors
    /// If it is no partition of this root, and if a checkpoint cannot be written or the directory not renamed durably.
    pub fn mark_for_deletion(&self, dir: &Path) -> Result<PathBuf, PartitionDirError> {
        self.set_aside(dir, PartitionDirRole::Delete)
    }

    /// As [`DataDir::mark_for_deletion`], for a partition that the cluster does not know in this form (any more): it gets
    /// a name under which it is not loaded, and is kept for the operator.
    ///
    /// # Errors
    /// As [`DataDir::mark_for_deletion`].
    pub fn set_aside_stray(&self, dir: &Path) -> Result<PathBuf, PartitionDirError> {
        self.set_aside(dir, PartitionDirRole::Stray)
    }

    /// Removes a directory that was marked for deletion, and nothing else. What is already gone is no error.
    ///
    /// # Errors
    /// [`PartitionDirError::NotMarked`] before anything is touched; else the first removal that failed, after which the rest can be
    /// removed by another call.
    pub fn remove_dir_tree(&self, dir: &Path) -> Result<(), PartitionDirError> {
        let name = self.own_dir(dir)?;
        if !matches!(name.role, PartitionDirRole::Delete(_)) {
            return Err(PartitionDirError::NotMarked(dir.to_owned()));
        }
        if exists(&*self.fs, dir)? {
            remove_tree(&*self.fs, dir, REMOVAL_DEPTH_MAX)?;
        }
        self.fs.sync_dir(&self.root).context("sync directory", &self.root)?;
        Ok(())
    }

    /// Marks the stop as clean and gives the lock back. Only after every log was flushed and closed without an error and
    /// the checkpoints were written: this is a promise that the next opening reads nothing but the logs' ends.
    ///
    /// # Errors
    /// [`CloseError::WriteFailed`] if an earlier write of a checkpoint failed, unless it lacked room only and there is room now;
    /// and what writing the marker met. The stop counts as unclean then.
    pub fn close_clean(self, broker_epoch: i64) -> Result<(), CloseError> {
        let mut state = self.lock_state();
        let made_up_for =
            |checkpoint: &mut Checkpoint| !checkpoint.behind || checkpoint.store(&*self.fs, &self.root).is_ok();
        if state.write_failed || !state.checkpoints().into_iter().all(made_up_for) {
            return Err(CloseError::WriteFailed { directory: self.root.clone() });
        }
        drop(state);
        Ok(write_clean_marker(&*self.fs, &self.root, broker_epoch)?)
    }

    fn lock_state(&self) -> MutexGuard<'_, RootState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(
        &self,
        offsets: &BTreeMap<TopicPartition, Offset>,
        which: impl FnOnce(&mut RootState) -> &mut Checkpoint,
    ) -> Result<(), CheckpointError> {
        let mut state = self.lock_state();
        let written = which(&mut state).merge(&*self.fs, &self.root, offsets);
        state.write_failed |= written.as_ref().is_err_and(|error| !lacked_room(error));
        written
    }

    /// Takes a partition out of all checkpoints, durably.
    fn forget(&self, state: &mut RootState, topic_partition: &TopicPartition) -> Result<(), CheckpointError> {
        let forget = |checkpoint: &mut Checkpoint| checkpoint.forget(&*self.fs, &self.root, topic_partition);
        let forgotten = state.checkpoints().into_iter().try_for_each(forget);
        state.write_failed |= forgotten.as_ref().is_err_and(|error| !lacked_room(error));
        forgotten
    }

    fn set_aside(&self, dir: &Path, role: fn(u128) -> PartitionDirRole) -> Result<PathBuf, PartitionDirError> {
        let PartitionDirName { topic_partition, role: current } = self.own_dir(dir)?;
        if current != PartitionDirRole::Current {
            return Err(PartitionDirError::NotAPartition(dir.to_owned()));
        }
        let mut state = self.lock_state();
        if !exists(&*self.fs, dir)? {
            return Err(IoError { verb: "rename", path: dir.to_owned(), source: io::ErrorKind::NotFound.into() }.into());
        }
        // Before the rename: were the lines still there when a partition of this name is made again, it would begin at
        // the old one's offsets. In the other order a crash between the two would leave them.
        self.forget(&mut state, &topic_partition)?;
        // Kafka draws the unique part; the first free number does as well, and needs no randomness.
        let mut unique = 0;
        let to = loop {
            let name = PartitionDirName { topic_partition: topic_partition.clone(), role: role(unique) };
            let to = self.root.join(name.to_string());
            if !exists(&*self.fs, &to)? {
                break to;
            }
            unique += 1;
        };
        self.fs.rename(dir, &to).context("rename", dir)?;
        self.fs.sync_dir(&self.root).context("sync directory", &self.root)?;
        Ok(to)
    }

    /// The name of a partition's directory directly in this root.
    fn own_dir(&self, dir: &Path) -> Result<PartitionDirName, PartitionDirError> {
        let name = dir.file_name().and_then(|name| name.to_str()).and_then(PartitionDirName::parse);
        name.filter(|_| dir.parent() == Some(&self.root))
            .ok_or_else(|| PartitionDirError::NotAPartition(dir.to_owned()))
    }
}

/// One of the root's checkpoints, as it is (or should be) in its file.
#[derive(Debug)]
struct Checkpoint {
    file: &'static str,
    entries: BTreeMap<TopicPartition, Offset>,
    /// Whether the file is known to hold `entries`, so that writing them again can be saved.
    stored: bool,
    /// Whether the last write of `entries` lacked room.
    behind: bool,
}

impl Checkpoint {
    /// Reads the file; one that cannot be understood counts as missing. Lines of partitions that are not in this root are
    /// dropped: they belong to logs that have gone, and would mislead a new one of that name.
    fn load(
        fs: &dyn Fs,
        root: &Path,
        file: &'static str,
        known: &[&TopicPartition],
        warnings: &mut Vec<DataDirWarning>,
    ) -> Result<Self, DataDirError> {
        let path = root.join(file);
        let mut dropped = 0_usize;
        let is_known = |topic_partition: &TopicPartition| {
            let is_known = known.binary_search(&topic_partition).is_ok();
            dropped += usize::from(!is_known);
            is_known
        };
        let entries = match read_offsets_where(fs, &path, is_known) {
            Ok(entries) => entries,
            Err(CheckpointError::Io(error)) => return Err(error.into()),
            Err(error @ CheckpointError::Malformed { .. }) => {
                warnings.push(DataDirWarning { path, what: format!("ignored: {error}") });
                return Ok(Self { file, entries: BTreeMap::new(), stored: false, behind: false });
            }
        };
        let cut_short = fs.metadata(&path).is_ok_and(|metadata| is_cut_short(file, metadata.len));
        if cut_short {
            warnings.push(DataDirWarning { path, what: "ignored: it is cut short".to_owned() });
        }
        let stored = !cut_short && dropped == 0;
        Ok(Self { file, entries, stored, behind: false })
    }

    fn merge(
        &mut self,
        fs: &dyn Fs,
        root: &Path,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<(), CheckpointError> {
        let changed = offsets.iter().any(|(partition, offset)| self.entries.get(partition) != Some(offset));
        if !changed && self.stored {
            return Ok(());
        }
        self.entries.extend(offsets.iter().map(|(partition, offset)| (partition.clone(), *offset)));
        self.store(fs, root)
    }

    fn forget(&mut self, fs: &dyn Fs, root: &Path, topic_partition: &TopicPartition) -> Result<(), CheckpointError> {
        let removed = self.entries.remove(topic_partition).is_some();
        // Lines that were dropped when the file was read are still in it.
        if removed || !self.stored { self.store(fs, root) } else { Ok(()) }
    }

    fn store(&mut self, fs: &dyn Fs, root: &Path) -> Result<(), CheckpointError> {
        let written = write_offsets(fs, &root.join(self.file), &self.entries);
        self.stored = written.is_ok();
        self.behind = written.as_ref().is_err_and(lacked_room);
        written
    }
}

fn lacked_room(error: &CheckpointError) -> bool {
    matches!(error, CheckpointError::Io(error) if is_out_of_room(error))
}

/// Whether a checkpoint of this name and length in bytes lacks its end. Kafka writes at least "0\n0\n"; less is what a power
/// cut leaves. It reads as "no entries", and is worth a word. (The cleaner's Kafka creates empty.)
pub(crate) fn is_cut_short(file: &str, len: u64) -> bool {
    len < 4 && !(file == CLEANER_OFFSETS_FILE && len == 0)
}

/// What the files of a root know about the log in one of its directories, as [`DataDir::hints`] tells. Nothing is changed.
pub(crate) fn hints_in(fs: &dyn Fs, root: &Path, dir: &Path) -> Result<OpenHints, IoError> {
    Ok(RootCheckpoints::read_of(fs, root, dir)?.facts(dir).hints())
}

/// Makes the root with its missing parents, durably; true if it was not there.
fn create_root(fs: &dyn Fs, path: &Path) -> Result<bool, DataDirError> {
    match fs.metadata(path) {
        Ok(metadata) if metadata.kind == FileKind::File => {
            return Err(DataDirError::NotADirectory(path.to_owned()));
        }
        Ok(_) => return Ok(false), // A link to a directory is fine here; to anything else it fails at the lock.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context("look at", path)?,
    }
    let parent = parent_of(path);
    if parent != path && parent != Path::new(".") {
        create_root(fs, parent)?;
    }
    match fs.create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {} // Somebody else was faster; the lock decides.
        Err(error) => return Err(error).context("create directory", path)?,
    }
    sync_parent(fs, path)?;
    Ok(true)
}

/// Compares `meta.properties` with what is expected, or writes it. Returns the cluster, if it is known.
fn check_owner(fs: &dyn Fs, root: &Path, options: &DataDirOptions) -> Result<Option<String>, DataDirError> {
    let Some(meta) = read_meta_properties(fs, root)? else {
        if let Some(cluster_id) = &options.cluster_id {
            write_meta_properties(fs, root, options.node_id, cluster_id, None)?;
        }
        return Ok(options.cluster_id.clone());
    };
    if let Some(found) = meta.node_id.filter(|found| *found != options.node_id) {
        return Err(DataDirError::WrongNode { directory: root.to_owned(), found, expected: options.node_id });
    }
    match (meta.cluster_id, &options.cluster_id) {
        (Some(found), Some(expected)) if found != *expected => {
            Err(DataDirError::WrongCluster { directory: root.to_owned(), found, expected: expected.clone() })
        }
        (found, expected) => Ok(found.or_else(|| expected.clone())),
    }
}

/// Whether the marker was there, and the broker epoch in it. It is durably gone afterwards.
pub(crate) fn take_clean_marker(fs: &dyn Fs, root: &Path) -> Result<(bool, Option<i64>), IoError> {
    let path = root.join(CLEAN_SHUTDOWN_FILE);
    if !exists(fs, &path)? {
        return Ok((false, None));
    }
    // Only the presence decides. Kafka before 3.x wrote an empty file, so anything that cannot be read is no error.
    let content = read_small_file(fs, &path, CLEAN_SHUTDOWN_BYTES_MAX).ok().flatten().unwrap_or_default();
    fs.remove_file(&path).context("remove", &path)?;
    fs.sync_dir(root).context("sync directory", root)?;
    Ok((true, broker_epoch_in(&String::from_utf8_lossy(&content))))
}

/// Marks a root as one that was stopped well.
pub(crate) fn write_clean_marker(fs: &dyn Fs, root: &Path, broker_epoch: i64) -> Result<(), IoError> {
    let marker = format!("{{\"version\":0,\"brokerEpoch\":{broker_epoch}}}");
    replace_file(fs, &root.join(CLEAN_SHUTDOWN_FILE), marker.as_bytes())
}

/// The number behind `"brokerEpoch":` in the marker's JSON.
pub(crate) fn broker_epoch_in(marker: &str) -> Option<i64> {
    let (_, rest) = marker.split_once("\"brokerEpoch\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let end = rest.find(|character: char| !character.is_ascii_digit() && character != '-').unwrap_or(rest.len());
    rest.get(..end)?.parse().ok()
}

/// Sorts the root's entries into partitions, what is set aside, and what is passed over with a warning.
fn list_partitions(fs: &dyn Fs, root: &Path, report: &mut DataDirReport) -> Result<Vec<FoundPartition>, DataDirError> {
    let mut entries = fs.read_dir(root).context("list", root)?;
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let mut partitions = Vec::new();
    for DirEntry { name, kind } in entries {
        let path = root.join(&name);
        let mut warn = |what: String| report.warnings.push(DataDirWarning { path: root.join(&name), what });
        match kind {
            FileKind::File if is_known_file(&name) => {}
            FileKind::File => warn("skipped: not a file of a data root".to_owned()),
            FileKind::Other => warn("skipped: neither a file nor a directory".to_owned()),
            FileKind::Directory if OTHER_KAFKA_DIRS.contains(&name.as_str()) => {}
            FileKind::Directory => match PartitionDirName::parse(&name) {
                None => warn("skipped: the name is not <topic>-<partition>".to_owned()),
                Some(PartitionDirName { role: PartitionDirRole::Delete(_), .. }) => report.to_delete.push(path),
                Some(PartitionDirName { role: PartitionDirRole::Stray(_), .. }) => report.strays.push(path),
                Some(PartitionDirName { role: PartitionDirRole::Future(_), .. }) => report.futures.push(path),
                Some(PartitionDirName { topic_partition, role: PartitionDirRole::Current }) => {
                    let topic_id = match read_topic_id(fs, &path) {
                        Ok(topic_id) => topic_id,
                        Err(MetadataFileError::Io(error)) if error.kind() != io::ErrorKind::FileTooLarge => {
                            return Err(error.into());
                        }
                        Err(error) => {
                            warn(format!("loaded without a topic id: {error}"));
                            None
                        }
                    };
                    partitions.push(FoundPartition { topic_partition, dir: path, topic_id });
                }
            },
        }
    }
    partitions.sort_by(|one, other| one.topic_partition.cmp(&other.topic_partition));
    Ok(partitions)
}

pub(crate) fn is_known_file(name: &str) -> bool {
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    let ours = [
        LOCK_FILE,
        META_PROPERTIES_FILE,
        CLEAN_SHUTDOWN_FILE,
        RECOVERY_POINTS_FILE,
        LOG_STARTS_FILE,
        HIGH_WATERMARKS_FILE,
        CLEANER_OFFSETS_FILE,
    ];
    // What one of them was before a repair made it anew.
    let name = ReplacedFileName::parse(name).map_or(name, |replaced| replaced.name);
    ours.contains(&name) || name == OTHER_KAFKA_FILE || name.starts_with(OWN_FILE_PREFIX)
}

pub(crate) fn exists(fs: &dyn Fs, path: &Path) -> Result<bool, IoError> {
    match fs.metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("look at", path),
    }
}

/// Removes a directory with what is in it. Links are removed, not followed.
pub(crate) fn remove_tree(fs: &dyn Fs, dir: &Path, depth_left: usize) -> Result<(), IoError> {
    let Some(depth_left) = depth_left.checked_sub(1) else {
        let too_deep = io::Error::other("there are too many directories in one another");
        return Err(too_deep).context("remove directory", dir);
    };
    for DirEntry { name, kind } in fs.read_dir(dir).context("list", dir)? {
        let path = dir.join(name);
        match kind {
            FileKind::Directory => remove_tree(fs, &path, depth_left)?,
            FileKind::File | FileKind::Other => fs.remove_file(&path).context("remove", &path)?,
        }
    }
    fs.remove_dir(dir).context("remove directory", dir)
}

/// Why a data root could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] IoError),
    /// It is locked by somebody, or cannot be.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// `meta.properties` cannot be read.
    #[error(transparent)]
    Metadata(#[from] MetadataFileError),
    /// There is a file where the directory should be.
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// It is another broker's.
    #[error(
        "{} belongs to broker {found} and this is broker {expected}; use that number, or another directory",
        directory.display()
    )]
    WrongNode {
        /// The root.
        directory: PathBuf,
        /// The broker in its `meta.properties`.
        found: i32,
        /// The broker that tried to open it.
        expected: i32,
    },
    /// It is of another cluster.
    #[error(
        "{} belongs to cluster {found} and this broker to cluster {expected}; use another directory",
        directory.display()
    )]
    WrongCluster {
        /// The root.
        directory: PathBuf,
        /// The cluster in its `meta.properties`.
        found: String,
        /// The cluster of the broker that tried to open it.
        expected: String,
    },
}

/// Why a partition's directory could not be made, set aside or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionDirError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The partition could not be taken out of a checkpoint, which comes first.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The topic's name cannot be one.
    #[error(transparent)]
    TopicName(#[from] InvalidTopicName),
    /// Partitions are numbered from 0.
    #[error("{0} is no number of a partition")]
    NegativePartition(i32),
    /// It is there already.
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// Not the directory of a partition in this root.
    #[error("{} is not the directory of a partition in this root", .0.display())]
    NotAPartition(PathBuf),
    /// Only what was marked for deletion is removed.
    #[error("{} was not marked for deletion", .0.display())]
    NotMarked(PathBuf),
}

/// Why a stop could not be marked as clean. The next opening recovers as after a crash.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] IoError),
    /// A checkpoint could not be written earlier.
    #[error("{} is not marked as cleanly closed: a checkpoint in it could not be written", directory.display())]
    WriteFailed {
        /// The root.
        directory: PathBuf,
    },
}

#[cfg(test)]
mod tests;
