//! Errors on demand.

use std::io;
use std::path::Path;

use crate::fs::os;

/// A kind of call, for choosing where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Call {
    /// Opening an existing file.
    Open,
    /// Opening with `CreateNew` or `Truncate`.
    Create,
    /// `read_at` and `map`.
    Read,
    /// `write_vectored_at`.
    Write,
    /// `set_len`.
    SetLen,
    /// `sync_data`.
    SyncData,
    /// `sync_dir`.
    SyncDir,
    /// `rename`.
    Rename,
    /// `remove_file`.
    Remove,
    /// `hard_link`.
    Link,
    /// `create_dir`.
    CreateDir,
    /// `remove_dir`.
    RemoveDir,
    /// `read_dir`.
    ReadDir,
    /// `metadata` of a path or an open file, and `free_space`.
    Metadata,
    /// `lock`.
    Lock,
    /// Any of them that changes something (those that [`super::SimFs::calls`] counts).
    AnyChange,
}

impl Call {
    pub(super) fn changes(self) -> bool {
        !matches!(self, Self::Open | Self::Read | Self::ReadDir | Self::Metadata)
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The call does nothing and fails with `EIO`.
    Eio,
    /// The call does nothing and fails with `ENOSPC`.
    Enospc,
    /// The call does nothing and fails with `EROFS`, as each that changes something does on a file system that is mounted for
    /// reading only: choose [`Call::AnyChange`].
    ReadOnly,
    /// A write does only some of the bytes, and succeeds. Other calls are not harmed.
    ShortWrite,
    /// A read does only some of the bytes, and succeeds. Other calls are not harmed.
    ShortRead,
    /// A sync fails with `EIO`. What a file's sync should have made durable stays uncertain for ever, whatever later syncs
    /// say; a directory's later syncs all fail. Other calls are not harmed.
    SyncFails,
}

impl Fault {
    /// The error a program sees: the real numbers, as code may look at them.
    pub(super) fn error(self) -> io::Error {
        match self {
            Self::Enospc => os::no_space(),
            Self::ReadOnly => os::read_only(),
            _ => os::device_failed(),
        }
    }

    /// Fails the call, or hands on a fault that the call itself must carry out.
    pub(super) fn before(self, call: Call) -> io::Result<Option<Self>> {
        match (self, call) {
            (Self::Eio | Self::Enospc | Self::ReadOnly, _) => Err(self.error()),
            (Self::ShortWrite, Call::Write)
            | (Self::ShortRead, Call::Read)
            | (Self::SyncFails, Call::SyncData | Call::SyncDir) => Ok(Some(self)),
            _ => Ok(None),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Faults {
    waiting: Vec<Waiting>,
    hit: u64,
    /// One in so many reads and writes is short; 0: none.
    pub(super) short_one_in: u32,
}

#[derive(Debug)]
struct Waiting {
    fault: Fault,
    call: Call,
    part: Option<String>,
    calls_left: u64,
    lasting: bool,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault, call: Call, part: Option<&str>, nth: u64, lasting: bool) {
        self.waiting.push(Waiting { fault, call, part: part.map(str::to_owned), calls_left: nth.max(1), lasting });
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    pub(super) fn hit(&self) -> u64 {
        self.hit
    }

    /// Counts the call with every fault that waits for it, and returns the first that is due.
    pub(super) fn meet(&mut self, call: Call, path: &Path) -> Option<Fault> {
        if self.waiting.is_empty() {
            return None;
        }
        let path = path.to_string_lossy();
        let mut due = None;
        self.waiting.retain_mut(|waiting| {
            let matches = (waiting.call == call || (waiting.call == Call::AnyChange && call.changes()))
                && waiting.part.as_ref().is_none_or(|part| path.contains(part.as_str()));
            if !matches {
                return true;
            }
            waiting.calls_left = waiting.calls_left.saturating_sub(1);
            if waiting.calls_left > 0 || due.is_some() {
                return true;
            }
            due = Some(waiting.fault);
            waiting.lasting
        });
        self.hit += u64::from(due.is_some());
        due
    }
}
