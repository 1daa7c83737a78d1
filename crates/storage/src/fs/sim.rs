//! A file system in memory that crashes, tears and fails on demand, and repeats exactly.
//!
//! # What it assumes about disks
//!
//! Every file and every directory has two states: *live*, what calls see, and *durable*, what is certain to be there
//! after a power cut. Between the two lie the *pending* operations. On a power cut
//!
//! - each pending **write** may have reached the disk, or not, or in part: each 512-byte sector (aligned in the file) of
//!   each write on its own. Later writes may be there and earlier ones not. A write that extended the file may have left
//!   its length but not its bytes: zeros;
//! - each pending **`set_len`** may have happened or not, whatever became of the writes around it;
//! - each pending **change of a directory** (an entry made, renamed, linked, removed) may have happened or not, each on
//!   its own, also in another order than they were called; but one rename is one step, and a rename that happened implies
//!   the earlier ones of the same file. Entries and content are independent: a file may be there under its new name and
//!   be empty;
//! - a file without an entry is gone, and so is everything below a directory without one.
//!
//! [`File::sync_data`] makes all pending operations of that file durable, [`Fs::sync_dir`] those of that directory's
//! entries, and nothing else does. After a **failed** sync of a file the operations it should have made durable stay
//! uncertain for ever: the next sync returns success without them, as Linux does. After a failed sync of a directory every
//! later one of that directory fails too, as on a file system whose journal has been aborted.
//!
//! A **process crash** loses nothing that was written, only locks and open files.
//!
//! Not modelled: bytes that rot once they are durable (tests flip bits themselves), renames between directories (refused
//! as `CrossesDevices`), links of the symbolic kind, permissions.
//!
//! # How to use it
//!
//! ```
//! use std::path::Path;
//! use std::sync::Arc;
//! use highwater_storage::fs::{Fs, OpenMode, SimFs};
//! use highwater_storage::io::FileExt;
//!
//! fn program(fs: &dyn Fs) -> std::io::Result<()> {
//!     let file = fs.open(Path::new("/greeting"), OpenMode::CreateNew)?;
//!     file.write_all_at(b"hello", 0)?;
//!     file.sync_data()?;
//!     fs.sync_dir(Path::new("/"))
//! }
//!
//! // Once without a crash, to count the calls; then once for each call, crashing there.
//! let counted = SimFs::new(1);
//! program(&counted).unwrap();
//! for calls in 0..counted.calls() {
//!     let fs = SimFs::new(1);
//!     fs.crash_after(calls);
//!     assert!(program(&fs).is_err() && fs.crashed());
//!     for image in fs.images(20, 1) {
//!         // Here a real test opens its data and checks what it promised.
//!         let _ = image.open(Path::new("/greeting"), OpenMode::Read);
//!     }
//! }
//! ```

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DirEntry, DirLock, File, FileKind, Fs, Mapped, Metadata, OpenMode, RawDescriptor};
use crate::TimestampMs;
use crate::lock::Holder;

mod faults;
mod images;
mod node;
mod random;

pub use faults::{Call, Fault};
pub use random::Random;

use faults::Faults;
use node::{Directory, EntryChange, Node};

/// Files beyond this are refused: a wild position must not take the test's memory.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// What [`Fs::free_space`] says when no capacity was set.
const CAPACITY_DEFAULT: u64 = 1 << 40;

/// A simulated file system, and one process that uses it. Clones are the same process on the same disk.
#[derive(Clone)]
pub struct SimFs {
    disk: Arc<Disk>,
    process: Arc<Process>,
}

/// What outlives the process.
struct Disk {
    root: Arc<Node>,
    state: Mutex<DiskState>,
}

struct DiskState {
    next_inode: u64,
    /// Counts changes; the order in which they were made.
    sequence: u64,
    now: TimestampMs,
    used_bytes: u64,
    capacity_bytes: u64,
}

/// What dies with the process.
struct Process {
    state: Mutex<ProcessState>,
}

struct ProcessState {
    calls: u64,
    calls_left: Option<u64>,
    dead: bool,
    faults: Faults,
    random: Random,
    locked: Vec<u64>,
}

/// The error of every call after the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the simulated machine has crashed")]
pub struct SimulatedCrash;

impl SimFs {
    /// An empty disk: the root directory `/`, durable. The seed decides the order of [`Fs::read_dir`] and the places of
    /// short reads and writes.
    pub fn new(seed: u64) -> Self {
        Self::with(Node::directory(1, Directory::default()), 2, 0, CAPACITY_DEFAULT, TimestampMs(0), seed)
    }

    fn with(root: Node, next_inode: u64, used_bytes: u64, capacity_bytes: u64, now: TimestampMs, seed: u64) -> Self {
        let state = Mutex::new(DiskState { next_inode, sequence: 0, now, used_bytes, capacity_bytes });
        let disk = Arc::new(Disk { root: Arc::new(root), state });
        Self { disk, process: Process::new(Random::new(seed)) }
    }

    /// The number of calls so far that change something: opening for creation, write, `set_len`, both syncs, rename,
    /// link, removal, `create_dir`, and the lock. Images differ only from one of these to the next.
    pub fn calls(&self) -> u64 {
        self.process.lock().calls
    }

    /// Lets `calls` more of the calls counted by [`SimFs::calls`] happen; the next one and every call after it, of any
    /// kind, fail with [`SimulatedCrash`] and change nothing.
    pub fn crash_after(&self, calls: u64) {
        self.process.lock().calls_left = Some(calls);
    }

    /// Whether the crash has come.
    pub fn crashed(&self) -> bool {
        self.process.lock().dead
    }

    /// Whether this error is the crash's.
    pub fn is_crash(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<SimulatedCrash>())
    }

    /// Ends the process: locks are free, its open files and this handle fail from now on, and nothing written is lost.
    /// Returns a new process on the same disk. Unsynced data stay unsynced.
    pub fn kill(&self) -> Self {
        let mut process = self.process.lock();
        process.dead = true;
        process.locked.clear();
        let random = process.random.fork();
        Self { disk: self.disk.clone(), process: Process::new(random) }
    }

    /// Makes the `nth` next matching call (1 is the very next) fail, once.
    pub fn inject(&self, fault: Fault, call: Call, nth: u64) {
        self.process.lock().faults.add(fault, call, None, nth, false);
    }

    /// As [`SimFs::inject`], counting only calls on paths that contain `part`; an open file has the path it was opened by.
    pub fn inject_on(&self, fault: Fault, call: Call, part: &str, nth: u64) {
        self.process.lock().faults.add(fault, call, Some(part), nth, false);
    }

    /// As [`SimFs::inject_on`], but the call fails from the `nth` on, until [`SimFs::clear_faults`].
    pub fn inject_lasting(&self, fault: Fault, call: Call, part: &str, nth: u64) {
        self.process.lock().faults.add(fault, call, Some(part), nth, true);
    }

    /// Takes all faults back that have not come up.
    pub fn clear_faults(&self) {
        self.process.lock().faults.clear();
    }

    /// How many injected faults have come up.
    pub fn faults_hit(&self) -> u64 {
        self.process.lock().faults.hit()
    }

    /// From now on about one in `one_in` reads and writes of more than one byte is short. 0 turns it off.
    pub fn shorten(&self, one_in: u32) {
        self.process.lock().faults.short_one_in = one_in;
    }

    /// Sets the size of the disk. Writes that do not fit are cut short, and then fail with `StorageFull`.
    pub fn set_capacity(&self, bytes: u64) {
        self.disk.lock().capacity_bytes = bytes;
    }

    /// Sets the time that files get as their time of modification.
    pub fn set_now(&self, now: TimestampMs) {
        self.disk.lock().now = now;
    }

    /// Changes bytes of a file under everybody's feet, live and durable alike: rot.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let node = self.find(path)?;
        let mut file = node.file()?;
        change(&mut file.live);
        file.durable = file.live.clone();
        file.pending.clear();
        Ok(())
    }

    /// Makes everything durable, as a clean shutdown of the machine does.
    pub fn sync_everything(&self) {
        self.disk.root.sync_tree();
    }

    /// Counts a call and lets the crash and the faults have their say.
    fn enter(&self, call: Call, path: &Path) -> io::Result<Option<Fault>> {
        let mut process = self.process.lock();
        if process.dead {
            return Err(io::Error::other(SimulatedCrash));
        }
        if call.changes() {
            if let Some(left) = process.calls_left.as_mut() {
                let Some(fewer) = left.checked_sub(1) else {
                    process.dead = true;
                    process.locked.clear();
                    return Err(io::Error::other(SimulatedCrash));
                };
                *left = fewer;
            }
            process.calls += 1;
        }
        let fault = process.faults.meet(call, path);
        fault.map_or(Ok(None), |fault| fault.before(call))
    }

    /// How many of `len` bytes a read or write may do now.
    fn allowance(&self, fault: Option<Fault>, short: Fault, len: usize) -> usize {
        if len < 2 {
            return len;
        }
        let mut process = self.process.lock();
        let ProcessState { faults, random, .. } = &mut *process;
        let shorten =
            fault == Some(short) || (faults.short_one_in > 0 && random.below(faults.short_one_in.into()) == 0);
        if shorten { 1 + usize::try_from(random.below(len as u64 - 1)).unwrap_or(0) } else { len }
    }

    /// The node at an absolute path. `.` is skipped and `..` refused: nothing here needs it.
    fn find(&self, path: &Path) -> io::Result<Arc<Node>> {
        let mut node = self.disk.root.clone();
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let name = name.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
                    let next = node.entries()?.live.get(name).cloned();
                    node = next.ok_or(io::ErrorKind::NotFound)?;
                }
                Component::ParentDir | Component::Prefix(_) => return Err(io::ErrorKind::InvalidFilename.into()),
            }
        }
        Ok(node)
    }

    /// The directory that `path` lies in, and its name there.
    fn find_parent<'p>(&self, path: &'p Path) -> io::Result<(Arc<Node>, &'p str)> {
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidFilename)?;
        if name.len() > 255 {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        let parent = self.find(path.parent().unwrap_or(path))?;
        Ok((parent, name))
    }

    /// Numbers a new node.
    fn number(&self) -> (u64, TimestampMs) {
        let mut disk = self.disk.lock();
        let inode = disk.next_inode;
        disk.next_inode += 1;
        (inode, disk.now)
    }

    fn sequence(&self) -> u64 {
        let mut disk = self.disk.lock();
        disk.sequence += 1;
        disk.sequence
    }

    /// Takes an entry out of the count of used bytes if it was the file's last name.
    fn unlinked(&self, node: &Node) {
        if let Ok(mut file) = node.file() {
            file.links = file.links.saturating_sub(1);
            if file.links == 0 {
                let mut disk = self.disk.lock();
                disk.used_bytes = disk.used_bytes.saturating_sub(file.live.len() as u64);
            }
        }
    }
}

impl Fs for SimFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let creates = matches!(mode, OpenMode::CreateNew | OpenMode::Truncate);
        self.enter(if creates { Call::Create } else { Call::Open }, path)?;
        let node = if creates {
            let (parent, name) = self.find_parent(path)?;
            let mut directory = parent.entries()?;
            match directory.live.get(name).cloned() {
                Some(_) if mode == OpenMode::CreateNew => return Err(io::ErrorKind::AlreadyExists.into()),
                Some(node) => {
                    drop(directory);
                    node.check_is_file()?;
                    self.resize(&node, 0)?;
                    node
                }
                None => {
                    let (inode, now) = self.number();
                    let node = Arc::new(Node::file_with(inode, now));
                    directory.change(self.sequence(), EntryChange::Set { name: name.into(), node: node.clone() });
                    node
                }
            }
        } else {
            self.find(path)?
        };
        node.check_is_file()?;
        let writable = mode != OpenMode::Read;
        Ok(Arc::new(SimFile { fs: self.clone(), path: path.to_owned(), node, writable }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(Call::Rename, from)?;
        let (parent, old_name) = self.find_parent(from)?;
        let (new_parent, new_name) = self.find_parent(to)?;
        if !Arc::ptr_eq(&parent, &new_parent) {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        let mut directory = parent.entries()?;
        let node = directory.live.get(old_name).cloned().ok_or(io::ErrorKind::NotFound)?;
        let replaced = directory.live.get(new_name).cloned();
        if let Some(replaced) = &replaced {
            if Arc::ptr_eq(&node, replaced) {
                return Ok(()); // Two names of one file: POSIX does nothing.
            }
            match (node.kind(), replaced.kind()) {
                (FileKind::Directory, FileKind::Directory) if !replaced.entries()?.live.is_empty() => {
                    return Err(io::ErrorKind::DirectoryNotEmpty.into());
                }
                (FileKind::Directory, FileKind::File) => return Err(io::ErrorKind::NotADirectory.into()),
                (FileKind::File, FileKind::Directory) => return Err(io::ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        let change = EntryChange::Rename { from: old_name.into(), to: new_name.into(), node };
        directory.change(self.sequence(), change);
        drop(directory);
        if let Some(replaced) = replaced {
            self.unlinked(&replaced);
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.enter(Call::Remove, path)?;
        let (parent, name) = self.find_parent(path)?;
        let mut directory = parent.entries()?;
        let node = directory.live.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        node.check_is_file()?;
        directory.change(self.sequence(), EntryChange::Unset { name: name.into(), node: node.clone() });
        drop(directory);
        self.unlinked(&node);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.enter(Call::Link, from)?;
        let node = self.find(from)?;
        let (parent, name) = self.find_parent(to)?;
        let mut directory = parent.entries()?;
        if directory.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        node.file()?.links += 1; // Directories have one name, and fail here.
        directory.change(self.sequence(), EntryChange::Set { name: name.into(), node });
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.enter(Call::CreateDir, path)?;
        let (parent, name) = self.find_parent(path)?;
        let mut directory = parent.entries()?;
        if directory.live.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (inode, _) = self.number();
        let node = Arc::new(Node::directory(inode, Directory::default()));
        directory.change(self.sequence(), EntryChange::Set { name: name.into(), node });
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.enter(Call::RemoveDir, path)?;
        let (parent, name) = self.find_parent(path)?;
        let mut directory = parent.entries()?;
        let node = directory.live.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        if !node.entries()?.live.is_empty() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        directory.change(self.sequence(), EntryChange::Unset { name: name.into(), node });
        Ok(())
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.enter(Call::ReadDir, path)?;
        let node = self.find(path)?;
        let directory = node.entries()?;
        let mut entries: Vec<DirEntry> =
            directory.live.iter().map(|(name, node)| DirEntry { name: name.to_string(), kind: node.kind() }).collect();
        drop(directory);
        self.process.lock().random.shuffle(&mut entries);
        Ok(entries)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.enter(Call::Metadata, path)?;
        Ok(self.find(path)?.metadata())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let fault = self.enter(Call::SyncDir, path)?;
        let node = self.find(path)?;
        let mut directory = node.entries()?;
        if fault == Some(Fault::SyncFails) {
            directory.sync_failed = true;
        }
        directory.sync()
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.enter(Call::Metadata, path)?;
        let disk = self.disk.lock();
        Ok(disk.capacity_bytes.saturating_sub(disk.used_bytes))
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.enter(Call::Lock, path)?;
        let (parent, name) = self.find_parent(path)?;
        let mut directory = parent.entries()?;
        let node = match directory.live.get(name).cloned() {
            Some(node) => node,
            None => {
                let (inode, now) = self.number();
                let node = Arc::new(Node::file_with(inode, now));
                directory.change(self.sequence(), EntryChange::Set { name: name.into(), node: node.clone() });
                node
            }
        };
        drop(directory);
        node.check_is_file()?;
        let mut process = self.process.lock();
        if process.locked.contains(&node.inode) {
            return Err(Holder::this_process().into());
        }
        process.locked.push(node.inode);
        Ok(Box::new(SimLock { process: self.process.clone(), inode: node.inode }))
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<Holder>> {
        let inode = match self.metadata(path) {
            Ok(metadata) => metadata.inode,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(self.process.lock().locked.contains(&inode).then(Holder::this_process))
    }
}

impl SimFs {
    fn resize(&self, node: &Node, len: u64) -> io::Result<()> {
        if len > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut file = node.file()?;
        let sequence = self.sequence();
        let mut disk = self.disk.lock();
        let before = file.live.len() as u64;
        if file.links > 0 {
            if len.saturating_sub(before) > disk.capacity_bytes.saturating_sub(disk.used_bytes) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.used_bytes = (disk.used_bytes + len).saturating_sub(before);
        }
        file.modified = disk.now;
        file.set_len(sequence, usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?);
        Ok(())
    }
}

impl fmt::Debug for SimFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = self.process.lock();
        f.debug_struct("SimFs").field("calls", &process.calls).field("crashed", &process.dead).finish_non_exhaustive()
    }
}

impl Disk {
    fn lock(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Process {
    fn new(random: Random) -> Arc<Self> {
        let faults = Faults::default();
        let state = ProcessState { calls: 0, calls_left: None, dead: false, faults, random, locked: Vec::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct SimLock {
    process: Arc<Process>,
    inode: u64,
}

impl DirLock for SimLock {}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimLock").field("inode", &self.inode).finish_non_exhaustive()
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.process.lock().locked.retain(|&inode| inode != self.inode);
    }
}

/// An open file.
struct SimFile {
    fs: SimFs,
    path: PathBuf,
    node: Arc<Node>,
    writable: bool,
}

impl SimFile {
    fn check_writable(&self) -> io::Result<()> {
        if self.writable { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile").field("path", &self.path).field("inode", &self.node.inode).finish_non_exhaustive()
    }
}

impl File for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let fault = self.fs.enter(Call::Read, &self.path)?;
        let file = self.node.file()?;
        let rest = usize::try_from(position).ok().and_then(|position| file.live.get(position..)).unwrap_or(&[]);
        let count = self.fs.allowance(fault, Fault::ShortRead, rest.len().min(buffer.len()));
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        let fault = self.fs.enter(Call::Write, &self.path)?;
        self.check_writable()?;
        let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
        if wanted == 0 {
            return Ok(0);
        }
        if position.saturating_add(wanted as u64) > FILE_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let start = usize::try_from(position).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut count = self.fs.allowance(fault, Fault::ShortWrite, wanted);
        let mut file = self.node.file()?;
        let sequence = self.fs.sequence();
        let mut disk = self.fs.disk.lock();
        let before = file.live.len();
        if file.links > 0 {
            let room = usize::try_from(disk.capacity_bytes.saturating_sub(disk.used_bytes)).unwrap_or(usize::MAX);
            count = count.min(before.saturating_add(room).saturating_sub(start));
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.used_bytes += (start + count).saturating_sub(before) as u64;
        }
        file.modified = disk.now;
        drop(disk);
        let mut bytes = Vec::with_capacity(count);
        for slice in slices {
            let wanted = slice.len().min(count - bytes.len());
            bytes.extend_from_slice(slice.get(..wanted).unwrap_or_default());
        }
        file.write(sequence, start, bytes);
        Ok(count)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.fs.enter(Call::SetLen, &self.path)?;
        self.check_writable()?;
        self.fs.resize(&self.node, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let fault = self.fs.enter(Call::SyncData, &self.path)?;
        let mut file = self.node.file()?;
        if fault == Some(Fault::SyncFails) {
            file.fail_sync();
            return Err(Fault::SyncFails.error());
        }
        file.sync();
        Ok(())
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.fs.enter(Call::Metadata, &self.path)?;
        Ok(self.node.metadata())
    }

    fn map(&self, _len: usize) -> io::Result<Option<Mapped>> {
        self.fs.enter(Call::Read, &self.path)?;
        Ok(None)
    }

    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        None
    }
}

#[cfg(test)]
mod tests;
