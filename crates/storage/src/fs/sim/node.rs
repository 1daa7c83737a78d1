//! Files and directories, each with what is live, what is durable, and what lies between.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Fault;
use crate::TimestampMs;
use crate::fs::{FileKind, Metadata};

pub(super) struct Node {
    pub(super) inode: u64,
    content: Content,
}

enum Content {
    File(Mutex<FileContent>),
    Directory(Mutex<Directory>),
}

#[derive(Clone, Debug)]
pub(super) struct FileContent {
    pub(super) live: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<PendingData>,
    pub(super) links: u64,
    pub(super) modified: TimestampMs,
}

/// A change of a file that no sync has made durable.
#[derive(Clone, Debug)]
pub(super) struct PendingData {
    /// Its place in the order of all changes on this disk.
    pub(super) sequence: u64,
    /// Whether a sync has failed on it, so that no later one will make it durable.
    pub(super) abandoned: bool,
    pub(super) change: DataChange,
}

#[derive(Clone, Debug)]
pub(super) enum DataChange {
    Write { position: usize, bytes: Vec<u8> },
    SetLen(usize),
}

impl DataChange {
    pub(super) fn apply(&self, to: &mut Vec<u8>) {
        match self {
            Self::Write { position, bytes } => write_bytes(to, *position, bytes),
            Self::SetLen(len) => to.resize(*len, 0),
        }
    }
}

/// Writes into a vector as into a file: a gap before `position` is zeros.
pub(super) fn write_bytes(to: &mut Vec<u8>, position: usize, bytes: &[u8]) {
    if to.len() < position {
        to.resize(position, 0);
    }
    let overlap = (to.len() - position).min(bytes.len());
    let (over, beyond) = bytes.split_at(overlap);
    if let Some(place) = to.get_mut(position..position + overlap) {
        place.copy_from_slice(over);
    }
    to.extend_from_slice(beyond);
}

impl FileContent {
    pub(super) fn write(&mut self, sequence: u64, position: usize, bytes: Vec<u8>) {
        write_bytes(&mut self.live, position, &bytes);
        self.pending.push(PendingData { sequence, abandoned: false, change: DataChange::Write { position, bytes } });
    }

    pub(super) fn set_len(&mut self, sequence: u64, len: usize) {
        self.live.resize(len, 0);
        self.pending.push(PendingData { sequence, abandoned: false, change: DataChange::SetLen(len) });
    }

    /// Makes everything durable that no earlier sync has failed on.
    pub(super) fn sync(&mut self) {
        let mut uncertain: Vec<PendingData> = Vec::new();
        for pending in self.pending.drain(..) {
            if pending.abandoned {
                uncertain.push(pending);
            } else {
                pending.change.apply(&mut self.durable);
                // What is durable now is certain, also where an older write was not.
                uncertain = uncertain.into_iter().flat_map(|older| older.not_covered_by(&pending.change)).collect();
            }
        }
        self.pending = uncertain;
    }

    pub(super) fn fail_sync(&mut self) {
        for pending in &mut self.pending {
            pending.abandoned = true;
        }
    }
}

impl PendingData {
    /// The parts of an older change that stay as uncertain as they were once `newer` is durable.
    fn not_covered_by(self, newer: &DataChange) -> Vec<Self> {
        let Self { sequence, abandoned, change } = self;
        let keep = |change| Self { sequence, abandoned, change };
        match (change, newer) {
            // The new length is certain.
            (DataChange::SetLen(_), DataChange::SetLen(_)) => Vec::new(),
            (DataChange::SetLen(len), DataChange::Write { .. }) => vec![keep(DataChange::SetLen(len))],
            (DataChange::Write { position, mut bytes }, DataChange::SetLen(len)) => {
                bytes.truncate(len.saturating_sub(position));
                if bytes.is_empty() { Vec::new() } else { vec![keep(DataChange::Write { position, bytes })] }
            }
            (DataChange::Write { position, bytes }, DataChange::Write { position: start, bytes: newer }) => {
                let head = bytes.get(..start.saturating_sub(position)).unwrap_or(&bytes).to_vec();
                let end = start + newer.len();
                let tail = bytes.get(end.saturating_sub(position)..).unwrap_or(&[]).to_vec();
                let tail_position = position.max(end);
                [(position, head), (tail_position, tail)]
                    .into_iter()
                    .filter(|(_, bytes)| !bytes.is_empty())
                    .map(|(position, bytes)| keep(DataChange::Write { position, bytes }))
                    .collect()
            }
        }
    }
}

pub(super) type Entries = BTreeMap<Arc<str>, Arc<Node>>;

#[derive(Clone, Default)]
pub(super) struct Directory {
    pub(super) live: Entries,
    pub(super) durable: Entries,
    pub(super) pending: Vec<PendingEntry>,
    /// Whether a sync has failed: the journal is dead, and no later one will work.
    pub(super) sync_failed: bool,
}

/// A change of a directory that no sync has made durable.
#[derive(Clone)]
pub(super) struct PendingEntry {
    /// Its place in the order of all changes on this disk.
    pub(super) sequence: u64,
    pub(super) change: EntryChange,
}

#[derive(Clone)]
pub(super) enum EntryChange {
    Set { name: Arc<str>, node: Arc<Node> },
    Rename { from: Arc<str>, to: Arc<str>, node: Arc<Node> },
    Unset { name: Arc<str>, node: Arc<Node> },
}

impl EntryChange {
    pub(super) fn apply(&self, entries: &mut Entries) {
        match self {
            Self::Set { name, node } => {
                entries.insert(name.clone(), node.clone());
            }
            Self::Rename { from, to, node } => {
                Self::remove(entries, from, node);
                entries.insert(to.clone(), node.clone());
            }
            Self::Unset { name, node } => Self::remove(entries, name, node),
        }
    }

    /// Only if the name still means this node: the change that gave it to another may have happened before.
    fn remove(entries: &mut Entries, name: &Arc<str>, node: &Arc<Node>) {
        if entries.get(name).is_some_and(|there| Arc::ptr_eq(there, node)) {
            entries.remove(name);
        }
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        match self {
            Self::Set { node, .. } | Self::Rename { node, .. } | Self::Unset { node, .. } => node,
        }
    }
}

impl Directory {
    pub(super) fn change(&mut self, sequence: u64, change: EntryChange) {
        change.apply(&mut self.live);
        self.pending.push(PendingEntry { sequence, change });
    }

    /// Makes all entries durable, or fails as an earlier sync did.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.sync_failed {
            return Err(Fault::SyncFails.error());
        }
        for pending in self.pending.drain(..) {
            pending.change.apply(&mut self.durable);
        }
        Ok(())
    }
}

impl Node {
    pub(super) fn directory(inode: u64, directory: Directory) -> Self {
        Self { inode, content: Content::Directory(Mutex::new(directory)) }
    }

    /// A new, empty file with one name.
    pub(super) fn file_with(inode: u64, modified: TimestampMs) -> Self {
        let content = FileContent { live: Vec::new(), durable: Vec::new(), pending: Vec::new(), links: 1, modified };
        Self::file_of(inode, content)
    }

    pub(super) fn file_of(inode: u64, content: FileContent) -> Self {
        Self { inode, content: Content::File(Mutex::new(content)) }
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.content {
            Content::File(_) => FileKind::File,
            Content::Directory(_) => FileKind::Directory,
        }
    }

    /// The file's content, or `IsADirectory`.
    pub(super) fn file(&self) -> io::Result<MutexGuard<'_, FileContent>> {
        match &self.content {
            Content::File(file) => Ok(file.lock().unwrap_or_else(PoisonError::into_inner)),
            Content::Directory(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// `IsADirectory` for a directory.
    pub(super) fn check_is_file(&self) -> io::Result<()> {
        self.file().map(drop)
    }

    /// The directory's entries, or `NotADirectory`.
    pub(super) fn entries(&self) -> io::Result<MutexGuard<'_, Directory>> {
        match &self.content {
            Content::File(_) => Err(io::ErrorKind::NotADirectory.into()),
            Content::Directory(directory) => Ok(directory.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    pub(super) fn metadata(&self) -> Metadata {
        let (len, modified, links) = match &self.content {
            Content::File(file) => {
                let file = file.lock().unwrap_or_else(PoisonError::into_inner);
                (file.live.len() as u64, file.modified, file.links)
            }
            Content::Directory(_) => (0, TimestampMs(0), 1),
        };
        Metadata { kind: self.kind(), len, modified, inode: self.inode, links }
    }

    /// Makes this node and all below it durable, whatever syncs have failed.
    pub(super) fn sync_tree(&self) {
        if let Ok(mut file) = self.file() {
            file.durable = file.live.clone();
            file.pending.clear();
        } else if let Ok(mut directory) = self.entries() {
            directory.durable = directory.live.clone();
            directory.pending.clear();
            directory.sync_failed = false;
            for node in directory.live.values() {
                node.sync_tree();
            }
        }
    }
}
