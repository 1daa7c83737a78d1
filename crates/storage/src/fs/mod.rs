//! The file system as the log sees it: a trait, the real one (`OsFs`) and one that crashes on demand (`SimFs`).
//!
//! Everything the storage crate reads or writes goes through [`Fs`] and [`File`], so that a test can stop after any
//! call, build every image a power cut may leave behind, and open the log on it. The trait is public: a program that
//! embeds the log can test its own crash safety the same way (`examples/crash_test_your_code.rs`).
//!
//! What the log may rely on, and nothing more: bytes written are durable after [`File::sync_data`]; a directory entry
//! (a created, renamed or removed file) is durable after [`Fs::sync_dir`] on its directory; [`Fs::rename`] replaces its
//! target in one step.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use crate::TimestampMs;
use crate::lock::Holder;

mod gate;
mod os;
mod sim;

pub use gate::Gate;
pub use os::{OsFs, RawDescriptor, descriptor_limit, raise_descriptor_limit};
pub use sim::{Call, Fault, Random, SimFs, SimulatedCrash};

/// How [`Fs::open`] opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A file that must not exist yet, for reading and writing.
    CreateNew,
    /// For reading and writing, emptied if it exists, created if not: for temporary files that a rename will publish.
    Truncate,
}

/// What kind of thing a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else (symbolic link, pipe, socket, device). The log never opens these.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The entry's name. Names that are not UTF-8 are given lossily: the log skips what it does not know.
    pub name: String,
    /// What it is (a link is not followed).
    pub kind: FileKind,
}

/// Facts about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last modification.
    pub modified: TimestampMs,
    /// The file's identity on its device: the same name with another number is another file.
    pub inode: u64,
    /// The number of names this file has.
    pub links: u64,
}

/// Bytes of a file mapped into memory for reading.
pub type Mapped = Box<dyn Deref<Target = [u8]> + Send + Sync>;

/// A lock that is held until it is dropped.
pub trait DirLock: Send + Sync + fmt::Debug {}

/// An open file. Positions are explicit, there is no cursor, and all calls take `&self`.
///
/// # Errors
/// What the operating system answers. After a failed write an unknown part of it may be in the file; after a failed sync
/// nobody knows what is on the disk.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of it")]
pub trait File: Send + Sync + fmt::Debug {
    /// Reads up to `buffer.len()` bytes at `position` and returns how many; 0 at or past the end. May be short.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes the slices one after the other at `position` and returns how many bytes went. May be short.
    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize>;

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Makes all bytes written so far, and the length, durable.
    fn sync_data(&self) -> io::Result<()>;

    /// Facts about the open file, whatever its name is by now.
    fn metadata(&self) -> io::Result<Metadata>;

    /// Maps the first `len` bytes for reading, or gives `None` where maps are not to be had; callers then read.
    /// The file must not be cut below `len` while the map lives.
    fn map(&self, len: usize) -> io::Result<Option<Mapped>>;

    /// The descriptor, for sending file bytes to a socket without copying; none in the simulator.
    fn raw_descriptor(&self) -> Option<RawDescriptor>;
}

/// A file system.
///
/// # Errors
/// What the operating system answers; what was asked for has then not been done, but for a sync, of which nobody knows.
/// `NotFound` and `AlreadyExists` are told from other errors.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of it")]
pub trait Fs: Send + Sync + fmt::Debug {
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>>;

    /// Opens a file and tells the facts about it, as [`Fs::open`] and [`File::metadata`] do one after the other: for file
    /// systems that learn them by opening.
    fn open_with_metadata(&self, path: &Path, mode: OpenMode) -> io::Result<(Arc<dyn File>, Metadata)> {
        let file = self.open(path, mode)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    }

    /// Renames a file or directory, replacing a file at `to`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Gives the file at `from` a second name.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates a directory. Its parent must exist.
    fn create_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// The entries of a directory in unspecified order, without `.` and `..`.
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>>;

    /// Facts about what has this name (a link is not followed).
    fn metadata(&self, path: &Path) -> io::Result<Metadata>;

    /// Makes the entries of a directory durable: creations, renames and removals in it.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Bytes an ordinary process may still write to the device that holds `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64>;

    /// Takes the lock file at `path`, creating it, for this process alone; `WouldBlock` if another one holds it.
    /// Both `flock` and an `fcntl` record lock are taken: Kafka takes only the second.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;

    /// Who holds the lock file at `path`, without taking it, creating it or disturbing who has it. `None` if nobody does,
    /// there is no such file, or the file system cannot tell, which is what it says unless it is told how to.
    fn lock_holder(&self, path: &Path) -> io::Result<Option<Holder>> {
        let _ = path;
        Ok(None)
    }
}
