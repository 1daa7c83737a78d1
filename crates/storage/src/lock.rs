//! One process per directory: the lock of a data root, and who holds it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{DirLock, Fs};
use crate::io::IoError;

/// The name of the lock file in a locked directory. Kafka's (`LogManager.LockFileName`).
pub const LOCK_FILE: &str = ".lock";

/// Takes the lock of `directory`, which must exist, until the guard is dropped.
///
/// Kafka and this crate keep each other out, and so do two logs in one process.
///
/// # Errors
/// [`LockError::Held`] if somebody has it; [`LockError::Io`] if the lock file cannot be made or locked.
pub fn lock_directory(fs: &dyn Fs, directory: &Path) -> Result<Box<dyn DirLock>, LockError> {
    let path = directory.join(LOCK_FILE);
    fs.lock(&path).map_err(|source| {
        if source.kind() == io::ErrorKind::WouldBlock {
            let holder = Holder::of(&source).unwrap_or_else(Holder::unknown);
            LockError::Held { directory: directory.to_owned(), holder }
        } else {
            LockError::Io(IoError { verb: "lock", path, source })
        }
    })
}

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else has it.
    #[error("{} is in use by {holder}; stop it, or choose another directory", directory.display())]
    Held {
        /// The directory asked for.
        directory: PathBuf,
        /// Who has it, as far as that can be known.
        holder: Holder,
    },
    /// The lock file could not be made or locked.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Who holds a lock, as far as the operating system tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process, if its number is known.
    pub pid: Option<u32>,
    /// What it is, if that is known: `Apache Kafka`, or the name of its program.
    pub program: Option<String>,
}

impl Holder {
    /// Something in this very process.
    pub(crate) fn this_process() -> Self {
        Self { pid: Some(std::process::id()), program: Some("this process".to_owned()) }
    }

    /// Somebody: in another container or on another host, or with a lock that names nobody.
    pub(crate) fn unknown() -> Self {
        Self { pid: None, program: None }
    }

    /// The holder that a file system put into a `WouldBlock` error.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().cloned()
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.pid, &self.program) {
            (Some(pid), Some(program)) => write!(f, "{program} (pid {pid})"),
            (Some(pid), None) => write!(f, "the process with pid {pid}"),
            (None, Some(program)) => f.write_str(program),
            (None, None) => f.write_str("another process that cannot be named from here"),
        }
    }
}

impl std::error::Error for Holder {}

impl From<Holder> for io::Error {
    fn from(holder: Holder) -> Self {
        Self::new(io::ErrorKind::WouldBlock, holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_read_well_and_survive_the_way_through_an_io_error() {
        let cases = [
            (Holder { pid: Some(7), program: Some("Apache Kafka".into()) }, "Apache Kafka (pid 7)"),
            (Holder { pid: Some(7), program: None }, "the process with pid 7"),
            (Holder::unknown(), "another process that cannot be named from here"),
        ];
        for (holder, text) in cases {
            assert_eq!(holder.to_string(), text);
            assert_eq!(Holder::of(&io::Error::from(holder.clone())), Some(holder));
        }
        assert_eq!(Holder::of(&io::ErrorKind::WouldBlock.into()), None);
    }
}
