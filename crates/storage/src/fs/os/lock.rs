//! The lock file of a data directory, locked twice.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fs2::FileExt as _;
use rustix::fs::{FlockOperation, OFlags, fcntl_lock};
use rustix::process::{Flock, FlockOffsetType, FlockType, Pid, fcntl_getlk};

use crate::fs::DirLock;
use crate::lock::Holder;

/// Device and inode of a lock file.
type FileId = (u64, u64);

/// The lock files that this process holds, each with descriptors that must stay open until it is released.
///
/// Two rules of POSIX record locks make this necessary. A process never conflicts with itself, and closing *any*
/// descriptor of a file drops *all* record locks that the process has on it. So a second attempt in this process may not
/// even open the file: the close that follows would silently take the lock away from the first.
static HELD: Mutex<BTreeMap<FileId, Vec<fs::File>>> = Mutex::new(BTreeMap::new());

fn held() -> MutexGuard<'static, BTreeMap<FileId, Vec<fs::File>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `flock` and `fcntl` record lock on one file. `flock` belongs to the open file, so it also holds against a program
/// that uses only that one; the record lock is the only one that Java's `FileChannel`, and with it Kafka, looks at.
#[derive(Debug)]
pub(super) struct OsLock {
    file: Option<fs::File>,
    id: FileId,
}

impl DirLock for OsLock {}

impl OsLock {
    /// Takes both locks, or fails with `WouldBlock` around a [`Holder`].
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let mut held = held();
        match fs::symlink_metadata(path) {
            Ok(metadata) if held.contains_key(&id_of(&metadata)) => return Err(Holder::this_process().into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the lock file is not a regular file"));
        }
        let id = id_of(&metadata);
        if let Some(kept_open) = held.get_mut(&id) {
            // The name came to point at a file we hold between the look and the open. It must not be closed now.
            kept_open.push(file);
            return Err(Holder::this_process().into());
        }
        // The record lock first: if it is Kafka that holds the directory, it is this one that says so.
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => return Err(holder_of(&file).into()),
            Err(error) => return Err(error.into()),
        }
        // On an error from here on the close of `file` gives the record lock back.
        if let Err(error) = file.try_lock_exclusive() {
            if error.raw_os_error() == fs2::lock_contended_error().raw_os_error() {
                return Err(Holder::unknown().into());
            }
            return Err(error);
        }
        held.insert(id, Vec::new());
        Ok(Self { file: Some(file), id })
    }
}

impl Drop for OsLock {
    fn drop(&mut self) {
        let mut held = held();
        if let Some(file) = self.file.take() {
            // Unlocked by name and not only by the close: a child process between fork and exec still has a copy of the
            // descriptor, and `flock` lives as long as any copy. An error leaves it to the close.
            let _ = fs2::FileExt::unlock(&file);
            let _ = fcntl_lock(&file, FlockOperation::NonBlockingUnlock);
        }
        held.remove(&self.id);
    }
}

/// Who holds the lock file at `path`, by its record lock: a broker of either kind has that one.
pub(super) fn holder(path: &Path) -> io::Result<Option<Holder>> {
    // Held over the close of the file, which would take a record lock of this very process with it.
    let held = held();
    match fs::symlink_metadata(path) {
        Ok(metadata) if held.contains_key(&id_of(&metadata)) => return Ok(Some(Holder::this_process())),
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let whole_file =
        Flock { start: 0, length: 0, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set };
    Ok(match fcntl_getlk(&file, &whole_file)? {
        Some(Flock { pid: Some(pid), .. }) => Some(holder_with(pid)),
        Some(_) => Some(Holder::unknown()),
        None => None,
    })
}

fn id_of(metadata: &fs::Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Who holds the record lock on `file`.
fn holder_of(file: &fs::File) -> Holder {
    let whole_file =
        Flock { start: 0, length: 0, pid: None, typ: FlockType::WriteLock, offset_type: FlockOffsetType::Set };
    match fcntl_getlk(file, &whole_file) {
        // Without a number the holder lives in a process namespace we do not see into.
        Ok(Some(Flock { pid: Some(pid), .. })) => holder_with(pid),
        _ => Holder::unknown(),
    }
}

/// The holder with this process id.
fn holder_with(pid: Pid) -> Holder {
    let pid = pid.as_raw_nonzero().get().cast_unsigned();
    Holder { pid: Some(pid), program: program_of(pid) }
}

/// The program a process runs, where `/proc` is there and readable.
fn program_of(pid: u32) -> Option<String> {
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if command_line.split(|&byte| byte == 0).any(|argument| argument == b"kafka.Kafka") {
        return Some("Apache Kafka".to_owned());
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_process_is_found() {
        assert!(program_of(std::process::id()).is_some());
        assert_eq!(program_of(u32::MAX), None);
    }
}
