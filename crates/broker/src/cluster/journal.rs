//! What the embedded store keeps on disk: a snapshot of its nodes and a journal of the commits since.
//!
//! Both are plain files in the data directory: Kafka refuses to start on a directory there whose name it cannot parse,
//! but ignores files it does not know.
//!
//! ```text
//! highwater-coordination.journal     magic "HWCJRNL\n" 8 │ version u32 │ base i64 │ crc u32 of the 20 bytes before
//!                                    then frames: marker u32 │ length u32 │ crc u32 of the payload │ payload
//!                                    payload: commits u32, each: number i64 │ effects u32, each:
//!                                             kind u8 (1 create, 2 set, 3 delete) │ path u32+bytes │ data u32+bytes
//! highwater-coordination.snapshot    magic "HWCSNAP\n" 8 │ version u32 │ last commit i64 │ nodes u32, each:
//!                                             path u32+bytes │ data u32+bytes │ version i64 │ created i64
//!                                    then crc u32 of everything before
//! ```
//!
//! Integers are little-endian, CRCs are crc32fast. A frame holds all commits that shared one sync, so a torn write can only
//! damage the last frame: that one is cut. A bad frame with a good one behind it had been synced, so it is rot, and
//! the store refuses to open rather than forget who leads what. Files are replaced by writing a temporary one, syncing,
//! renaming and syncing the directory; a crash between the new snapshot and the new journal leaves commits in the
//! journal that the snapshot holds already, and these are skipped.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use highwater_storage::fs::{File, Fs, OpenMode};

use super::tree::{DATA_BYTES_MAX, Effect, Kept, PATH_BYTES_MAX, Tree};

/// The journal's name in the data directory.
pub const JOURNAL_FILE: &str = "highwater-coordination.journal";
/// The snapshot's name in the data directory.
pub const SNAPSHOT_FILE: &str = "highwater-coordination.snapshot";

const JOURNAL_MAGIC: &[u8; 8] = b"HWCJRNL\n";
const SNAPSHOT_MAGIC: &[u8; 8] = b"HWCSNAP\n";
const VERSION: u32 = 1;
const JOURNAL_HEADER_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 12;
const FRAME_MARKER: u32 = 0x464a_5748;
/// A snapshot is written once the journal is this long and longer than the snapshot: writing stays linear.
const JOURNAL_BYTES_MIN: u64 = 1024 * 1024;
/// Neither file is read if it is larger: nothing we write comes near, and a hostile length allocates nothing.
const FILE_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Why the embedded store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A file holds something that no crash leaves behind.
    #[error("{} is damaged at byte {position}: {what}; restore it from a backup, or remove both highwater-coordination \
             files to rebuild topics from the partitions in the data directory", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it, in bytes.
        position: u64,
        /// What was found.
        what: String,
    },
}

/// What opening the store found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreReport {
    /// The number of the last commit; 0 for a new store.
    pub last_commit: i64,
    /// Commits read from the journal on top of the snapshot.
    pub commits_replayed: u64,
    /// Bytes of a write that a crash had cut short, removed from the end of the journal.
    pub bytes_cut: u64,
}

/// The open journal.
#[derive(Debug)]
pub(super) struct Journal {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    file: Arc<dyn File>,
    len: u64,
    snapshot_bytes: u64,
}

/// Why commits could not be written down.
#[derive(Debug)]
pub(super) enum WriteFailed {
    /// The journal is as before: the commits did not happen.
    Refused(io::Error),
    /// What is on disk is not known: nothing more may be written until the store is opened again.
    Fenced(io::Error),
}

impl Journal {
    /// Reads what is there, cuts a torn end, and is ready to write.
    pub(super) fn open(fs: Arc<dyn Fs>, dir: &Path) -> Result<(Self, Tree, StoreReport), StoreError> {
        let snapshot_path = dir.join(SNAPSHOT_FILE);
        let journal_path = dir.join(JOURNAL_FILE);
        let snapshot = read_file(&*fs, &snapshot_path)?;
        let mut tree = match &snapshot {
            Some(bytes) => decode_snapshot(bytes).map_err(|at| at.within(&snapshot_path))?,
            None => Tree::new(),
        };
        let mut report = StoreReport::default();
        let snapshot_bytes = snapshot.map_or(0, |bytes| bytes.len() as u64);

        let Some(bytes) = read_file(&*fs, &journal_path)? else {
            let file = write_new_journal(&*fs, dir, tree.last_commit())?;
            report.last_commit = tree.last_commit();
            let journal = Self { fs, dir: dir.to_owned(), file, len: JOURNAL_HEADER_BYTES as u64, snapshot_bytes };
            return Ok((journal, tree, report));
        };
        let good =
            replay(&bytes, &mut tree, &mut report.commits_replayed).map_err(|damage| damage.within(&journal_path))?;
        let file = fs.open(&journal_path, OpenMode::ReadWrite).map_err(io_error("open", &journal_path))?;
        let len = good as u64;
        if good < bytes.len() {
            report.bytes_cut = (bytes.len() - good) as u64;
            file.set_len(len).map_err(io_error("cut", &journal_path))?;
        }
        // Also when nothing was cut: what a killed process wrote without a sync is in the tree now, so it must stay.
        file.sync_data().map_err(io_error("sync", &journal_path))?;
        report.last_commit = tree.last_commit();
        Ok((Self { fs, dir: dir.to_owned(), file, len, snapshot_bytes }, tree, report))
    }

    /// Makes commits durable, all with one write and one sync.
    pub(super) fn write(&mut self, commits: &[(i64, Vec<Effect>)]) -> Result<(), WriteFailed> {
        let frame = encode_frame(commits);
        if let Err(error) = write_all_at(&*self.file, &frame, self.len) {
            // A later frame must not follow a torn one, or opening would take the tear for rot.
            return Err(match self.file.set_len(self.len) {
                Ok(()) => WriteFailed::Refused(error),
                Err(_) => WriteFailed::Fenced(error),
            });
        }
        // After a failed sync the pages read well and may still not be on disk: never retried.
        self.file.sync_data().map_err(WriteFailed::Fenced)?;
        self.len += frame.len() as u64;
        Ok(())
    }

    /// Starts the journal afresh behind a snapshot once it has grown long. An error fences: the journal may be either.
    pub(super) fn compact(&mut self, tree: &Tree) -> Result<(), StoreError> {
        if self.len < JOURNAL_BYTES_MIN.max(self.snapshot_bytes) {
            return Ok(());
        }
        let snapshot = encode_snapshot(tree);
        replace_file(&*self.fs, &self.dir, SNAPSHOT_FILE, &snapshot)?;
        self.snapshot_bytes = snapshot.len() as u64;
        self.file = write_new_journal(&*self.fs, &self.dir, tree.last_commit())?;
        self.len = JOURNAL_HEADER_BYTES as u64;
        Ok(())
    }
}

fn io_error<'a>(verb: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io { verb, path: path.to_owned(), source }
}

fn read_file(fs: &dyn Fs, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match fs.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io_error("open", path))?,
    };
    let len = file.metadata().map_err(io_error("stat", path))?.len;
    if len > FILE_BYTES_MAX {
        return Err(Damage { position: FILE_BYTES_MAX, what: format!("it is {len} bytes long") }.within(path));
    }
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error("read", path)(error)),
        }
    }
    bytes.truncate(filled);
    Ok(Some(bytes))
}

fn write_all_at(file: &dyn File, mut bytes: &[u8], mut position: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_vectored_at(&[IoSlice::new(bytes)], position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                bytes = bytes.get(count..).unwrap_or_default();
                position += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Replaces a file in one durable step and gives it open for writing.
fn replace_file(fs: &dyn Fs, dir: &Path, name: &str, bytes: &[u8]) -> Result<Arc<dyn File>, StoreError> {
    let path = dir.join(name);
    let temporary = dir.join(format!("{name}.tmp"));
    let file = fs.open(&temporary, OpenMode::Truncate).map_err(io_error("create", &temporary))?;
    write_all_at(&*file, bytes, 0).map_err(io_error("write", &temporary))?;
    file.sync_data().map_err(io_error("sync", &temporary))?;
    fs.rename(&temporary, &path).map_err(io_error("rename", &temporary))?;
    fs.sync_dir(dir).map_err(io_error("sync", dir))?;
    Ok(file)
}

fn write_new_journal(fs: &dyn Fs, dir: &Path, base: i64) -> Result<Arc<dyn File>, StoreError> {
    let mut header = Vec::with_capacity(JOURNAL_HEADER_BYTES);
    header.extend_from_slice(JOURNAL_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&base.to_le_bytes());
    header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
    replace_file(fs, dir, JOURNAL_FILE, &header)
}

/// What is wrong, and where.
#[derive(Debug)]
struct Damage {
    position: u64,
    what: String,
}

impl Damage {
    fn within(self, path: &Path) -> StoreError {
        StoreError::Corrupt { path: path.to_owned(), position: self.position, what: self.what }
    }
}

/// Reads integers and strings from untrusted bytes; `None` once they run out.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }
    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
    fn i64(&mut self) -> Option<i64> {
        self.take(8)?.try_into().ok().map(i64::from_le_bytes)
    }
    fn block(&mut self, bytes_max: usize) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok().filter(|&len| len <= bytes_max)?;
        self.take(len)
    }
    fn path(&mut self) -> Option<String> {
        String::from_utf8(self.block(PATH_BYTES_MAX)?.to_vec()).ok()
    }
    fn data(&mut self) -> Option<Bytes> {
        self.block(DATA_BYTES_MAX).map(Bytes::copy_from_slice)
    }
    fn at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}

fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("the tree limits paths and values far below 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn count(of: usize) -> [u8; 4] {
    u32::try_from(of).expect("far fewer than 2^32 fit in memory with their paths").to_le_bytes()
}

fn encode_frame(commits: &[(i64, Vec<Effect>)]) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend_from_slice(&count(commits.len()));
    for (number, effects) in commits {
        payload.extend_from_slice(&number.to_le_bytes());
        payload.extend_from_slice(&count(effects.len()));
        for effect in effects {
            let (kind, path, data): (u8, _, &[u8]) = match effect {
                Effect::Create { path, data } => (1, path, data),
                Effect::Set { path, data } => (2, path, data),
                Effect::Delete { path } => (3, path, &[]),
            };
            payload.push(kind);
            put_block(&mut payload, path.as_bytes());
            put_block(&mut payload, data);
        }
    }
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + payload.len());
    frame.extend_from_slice(&FRAME_MARKER.to_le_bytes());
    frame.extend_from_slice(&count(payload.len()));
    frame.extend_from_slice(&crc32fast::hash(&payload).to_le_bytes());
    frame.extend_from_slice(&payload);
    frame
}

/// The payload of the frame at the start of `bytes`, if a whole and sound one is there.
fn frame_at(bytes: &[u8]) -> Option<&[u8]> {
    let mut cursor = Cursor::new(bytes);
    if cursor.u32()? != FRAME_MARKER {
        return None;
    }
    let len = usize::try_from(cursor.u32()?).ok()?;
    let crc = cursor.u32()?;
    cursor.take(len).filter(|payload| crc32fast::hash(payload) == crc)
}

fn decode_commits(payload: &[u8]) -> Option<Vec<(i64, Vec<Effect>)>> {
    let mut cursor = Cursor::new(payload);
    let mut commits = Vec::new();
    for _ in 0..cursor.u32()? {
        let number = cursor.i64()?;
        let mut effects = Vec::new();
        for _ in 0..cursor.u32()? {
            let (kind, path, data) = (cursor.u8()?, cursor.path()?, cursor.data()?);
            effects.push(match kind {
                1 => Effect::Create { path, data },
                2 => Effect::Set { path, data },
                3 => Effect::Delete { path },
                _ => return None,
            });
        }
        commits.push((number, effects));
    }
    cursor.at_end().then_some(commits)
}

/// Applies the journal to `tree` and gives the length of its sound part.
fn replay(bytes: &[u8], tree: &mut Tree, replayed: &mut u64) -> Result<usize, Damage> {
    let damage = |position: usize, what: &str| Damage { position: position as u64, what: what.to_owned() };
    let mut header = Cursor::new(bytes);
    let sound = (|| {
        let magic = header.take(8)? == JOURNAL_MAGIC;
        let version = header.u32()?;
        let base = header.i64()?;
        let crc = header.u32()?;
        (magic && crc32fast::hash(bytes.get(..JOURNAL_HEADER_BYTES - 4)?) == crc).then_some((version, base))
    })();
    // The header came by rename, whole and synced, so there is no torn one.
    let (version, base) = sound.ok_or_else(|| damage(0, "its header is not a journal's"))?;
    if version != VERSION {
        return Err(damage(8, &format!("format version {version} is newer than this program's {VERSION}")));
    }
    if tree.last_commit() < base {
        return Err(damage(12, &format!("it continues commit {base}, which the snapshot should hold")));
    }
    let mut at = JOURNAL_HEADER_BYTES;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let Some(payload) = frame_at(rest) else {
            let later = (1..rest.len()).find(|&skip| rest.get(skip..).and_then(frame_at).is_some());
            return match later {
                Some(skip) => Err(damage(at, &format!("a bad frame, and a good one at byte {}", at + skip))),
                None => Ok(at),
            };
        };
        let commits = decode_commits(payload).ok_or_else(|| damage(at, "its checksum is right, its content is not"))?;
        for (number, effects) in commits {
            if number <= tree.last_commit() && *replayed == 0 {
                continue;
            }
            tree.replay(number, &effects).map_err(|what| damage(at, &what))?;
            *replayed += 1;
        }
        at += FRAME_HEADER_BYTES + payload.len();
    }
    Ok(at)
}

fn encode_snapshot(tree: &Tree) -> Vec<u8> {
    let mut nodes = Vec::new();
    let mut found = 0;
    for Kept { path, data, version, created } in tree.kept() {
        put_block(&mut nodes, path.as_bytes());
        put_block(&mut nodes, &data);
        nodes.extend_from_slice(&version.to_le_bytes());
        nodes.extend_from_slice(&created.to_le_bytes());
        found += 1;
    }
    let mut out = Vec::with_capacity(nodes.len() + 28);
    out.extend_from_slice(SNAPSHOT_MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&tree.last_commit().to_le_bytes());
    out.extend_from_slice(&count(found));
    out.extend_from_slice(&nodes);
    out.extend_from_slice(&crc32fast::hash(&out).to_le_bytes());
    out
}

fn decode_snapshot(bytes: &[u8]) -> Result<Tree, Damage> {
    let damage = |position: usize, what: String| Damage { position: position as u64, what };
    let body_len = bytes.len().saturating_sub(4);
    let (body, crc) = bytes.split_at_checked(body_len).unwrap_or_default();
    if crc != crc32fast::hash(body).to_le_bytes() || !body.starts_with(SNAPSHOT_MAGIC) {
        return Err(damage(0, "it is no snapshot, or its checksum is wrong".to_owned()));
    }
    let mut cursor = Cursor { bytes: body, at: SNAPSHOT_MAGIC.len() };
    match cursor.u32() {
        Some(VERSION) => {}
        version => return Err(damage(8, format!("format version {version:?} is not this program's {VERSION}"))),
    }
    let short = || damage(body_len, "it ends too early".to_owned());
    let last_commit = cursor.i64().ok_or_else(short)?;
    let expected = cursor.u32().ok_or_else(short)?;
    let mut nodes = Vec::new();
    for _ in 0..expected {
        let node = (|| {
            Some(Kept { path: cursor.path()?, data: cursor.data()?, version: cursor.i64()?, created: cursor.i64()? })
        })();
        nodes.push(node.ok_or_else(short)?);
    }
    if !cursor.at_end() {
        return Err(damage(cursor.at, "bytes follow the last node".to_owned()));
    }
    Tree::restore(last_commit, nodes).map_err(|what| damage(SNAPSHOT_MAGIC.len(), what))
}

#[cfg(test)]
mod tests;
