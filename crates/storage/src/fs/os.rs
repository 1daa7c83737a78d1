//! The operating system's file system.

use std::fs::{self, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::{DirEntry, DirLock, File, FileKind, Fs, Mapped, Metadata, OpenMode};
use crate::TimestampMs;
use crate::lock::Holder;

mod lock;

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
        let file = open_regular(path, mode)?;
        Ok(Arc::new(OsFile { file }))
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
            entries.push(DirEntry { name: entry.file_name().to_string_lossy().into_owned(), kind });
        }
        Ok(entries)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        Ok(metadata_of(&fs::symlink_metadata(path)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let directory = OpenOptions::new().read(true).custom_flags(flags(OFlags::DIRECTORY)).open(path)?;
        directory.sync_all()
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
        self.file.sync_data()
    }

    fn metadata(&self) -> io::Result<Metadata> {
        Ok(metadata_of(&self.file.metadata()?))
    }

    #[expect(unsafe_code, reason = "a memory map is unsafe to make; this is the one place that makes one")]
    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        if len == 0 {
            return Ok(Some(Box::new(&[][..])));
        }
        if self.file.metadata()?.len() < len as u64 {
            // Touching pages past the end of the file would be SIGBUS.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // SAFETY: the map is read-only, and `File::map` asks that nobody cuts the file below `len` while the map lives;
        // the log maps sealed index files only, and replaces those by rename. Another process that writes to the file
        // (which the directory lock keeps away) could change bytes under the slice; readers copy integers out of it and
        // check them, so that would be a wrong number that is caught, never a broken reference.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(&self.file)? };
        Ok(Some(Box::new(map)))
    }

    fn raw_descriptor(&self) -> Option<RawFd> {
        Some(self.file.as_raw_fd())
    }
}

/// Opens a regular file and nothing else: a link is not followed, a pipe does not block the open.
fn open_regular(path: &Path, mode: OpenMode) -> io::Result<fs::File> {
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
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
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
