//! The operating system's file system. What differs from one system to the next is in this module and in no other.
//!
//! - **Linux** is what it is made for and tested on.
//! - **macOS**: a sync is `F_FULLFSYNC`, for `fsync` leaves the data in the drive's cache. It builds; nobody has run the
//!   tests there.
//! - Other **Unix** systems with `pwritev`, `flock` and `fcntl` record locks should do.
//! - **Windows** is refused at compile time. It lacks, or has in another way: renaming over a file that is open or mapped
//!   (small files and indexes are replaced like that while readers have them), removing an open file (retention does),
//!   syncing a directory, an inode to tell a file from another of the same name, record locks that a JVM respects.

#[cfg(not(unix))]
compile_error!("highwater-storage runs on Unix: its README says what other systems lack");

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{DirEntry, DirLock, File, FileKind, Fs, Mapped, Metadata, OpenMode};
use crate::TimestampMs;
use crate::index::map_file;
use crate::lock::Holder;

mod lock;

/// What the operating system knows an open file by.
pub type RawDescriptor = std::os::fd::RawFd;

/// The largest number of slices one `pwritev` takes (`IOV_MAX`; 1024 on Linux and macOS).
const SLICES_PER_WRITE_MAX: usize = 1024;

/// The real file system. Has no state: all values are alike.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFs;

impl OsFs {
    /// The real file system, in the shape that [`Fs`] is passed around in.
    pub fn shared() -> Arc<dyn Fs> {
        Arc::new(Self)
    }
}

impl Fs for OsFs {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let (file, _) = open_regular(path, mode)?;
        Ok(Arc::new(OsFile { file }))
    }

    fn open_with_metadata(&self, path: &Path, mode: OpenMode) -> io::Result<(Arc<dyn File>, Metadata)> {
        let (file, metadata) = open_regular(path, mode)?;
        Ok((Arc::new(OsFile { file }), metadata_of(&metadata)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            // An entry that was removed between the listing and the question is not there.
            let kind = match entry.file_type() {
                Ok(file_type) => kind_of(file_type),
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let name = entry.file_name().into_string();
            let name = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
            entries.push(DirEntry { name, kind });
        }
        Ok(entries)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        Ok(metadata_of(&fs::symlink_metadata(path)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let directory = OpenOptions::new().read(true).custom_flags(flags(OFlags::DIRECTORY)).open(path)?;
        sync(&directory)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        fs2::available_space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        Ok(Box::new(lock::OsLock::take(path)?))
    }

    fn lock_holder(&self, path: &Path) -> io::Result<Option<Holder>> {
        lock::holder(path)
    }
}

#[derive(Debug)]
struct OsFile {
    file: fs::File,
}

impl File for OsFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        match slices {
            [] => Ok(0),
            [one] => self.file.write_at(one, position),
            many => {
                let many = many.get(..SLICES_PER_WRITE_MAX).unwrap_or(many);
                Ok(rustix::io::pwritev(&self.file, many, position)?)
            }
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        sync(&self.file)
    }

    fn metadata(&self) -> io::Result<Metadata> {
        Ok(metadata_of(&self.file.metadata()?))
    }

    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        map_file(&self.file, len).map(Some)
    }

    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        Some(self.file.as_raw_fd())
    }
}

/// How many descriptors this process may have: files and sockets together (`RLIMIT_NOFILE`, the soft limit). `None` if
/// there is no limit.
pub fn descriptor_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the limit on this process's descriptors as far as it may by itself, to the hard limit, and returns what holds
/// then. For programs; a library should leave it to them.
pub fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused where the system has a limit of its own below: what was in force stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    descriptor_limit()
}

/// Opens a regular file and nothing else: a link is not followed, a pipe does not block the open.
fn open_regular(path: &Path, mode: OpenMode) -> io::Result<(fs::File, fs::Metadata)> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK));
    match mode {
        OpenMode::Read => {}
        OpenMode::ReadWrite => {
            options.write(true);
        }
        OpenMode::CreateNew => {
            options.write(true).create_new(true);
        }
        OpenMode::Truncate => {
            options.write(true).create(true).truncate(true);
        }
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, metadata))
}

/// Brings what was written to the medium itself.
#[cfg(not(target_vendor = "apple"))]
fn sync(file: &fs::File) -> io::Result<()> {
    file.sync_data()
}

/// Brings what was written to the medium itself: `fsync` stops at the drive's cache here.
#[cfg(target_vendor = "apple")]
fn sync(file: &fs::File) -> io::Result<()> {
    Ok(rustix::io::retry_on_intr(|| rustix::fs::fcntl_fullfsync(file))?)
}

/// The error of a full disk, with the number that code may look at.
pub(super) fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

/// The error of a file system that is mounted for reading only.
pub(super) fn read_only() -> io::Error {
    rustix::io::Errno::ROFS.into()
}

/// The error of a device that fails.
pub(super) fn device_failed() -> io::Error {
    rustix::io::Errno::IO.into()
}

fn flags(flags: OFlags) -> i32 {
    // The bits are those of a C `int`.
    flags.bits().cast_signed()
}

fn kind_of(file_type: fs::FileType) -> FileKind {
    if file_type.is_file() {
        FileKind::File
    } else if file_type.is_dir() {
        FileKind::Directory
    } else {
        FileKind::Other
    }
}

fn metadata_of(metadata: &fs::Metadata) -> Metadata {
    Metadata {
        kind: kind_of(metadata.file_type()),
        len: metadata.len(),
        modified: TimestampMs(metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000)),
        inode: metadata.ino(),
        links: metadata.nlink(),
    }
}

#[cfg(test)]
mod tests;
