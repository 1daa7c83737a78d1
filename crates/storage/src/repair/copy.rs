//! Copies of stopped logs and data roots that open as ones that were closed well.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::{parent_of, temporary_path};
use crate::data_dir::{OpenHints, REMOVAL_DEPTH_MAX, is_known_file, is_live_partition, remove_tree};
use crate::error::{FlushError, OpenError};
use crate::fs::{FileKind, Fs, OpenMode};
use crate::inspect::{PartitionSummary, RootCheckpoints, checkpoints_around, in_use_by};
use crate::io::{IoContext, IoError, copy_bytes};
use crate::lock::{Holder, LOCK_FILE};
use crate::names::{PartitionDirName, PartitionDirRole};
use crate::{Log, LogOptions, Offset, RecoveryReport};

use super::{RepairError, root};

/// Why a directory could not be copied. Nothing is left of the copy then, unless removing it failed as well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyDirError {
    /// Somebody has it open.
    #[error("{} is in use by {holder}", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// There is something where the copy should be.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// The directory that the copy should lie in is not there, or is none.
    #[error("there is no directory {} for the copy to lie in", .0.display())]
    NoParent(PathBuf),
    /// The copy should lie in what is copied.
    #[error("{} lies in what is to be copied", .0.display())]
    Inside(PathBuf),
    /// A copy to the same place was interrupted, or is being made.
    #[error("{} is there: it is being copied to, or left of a copy that was interrupted, and then to be removed first", .0.display())]
    Leftover(PathBuf),
    /// A file changed while it was copied.
    #[error("{} changed while it was copied", .0.display())]
    Changed(PathBuf),
    /// The copy could not be opened, to be closed well.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The copy could not be closed well.
    #[error(transparent)]
    Close(#[from] FlushError),
    /// The checkpoints of the copied root could not be written.
    #[error(transparent)]
    Root(#[from] RepairError),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// What was copied.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CopiedDir {
    /// Files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// The logs that had not been closed well or are not whole, by their original's directory, and what opening the copy did.
    pub recovered: Vec<(PathBuf, RecoveryReport)>,
}

impl CopyDirError {
    /// Whether the copy cannot be where it was asked for: nothing was read or written.
    pub fn is_about_destination(&self) -> bool {
        matches!(self, Self::Exists(_) | Self::NoParent(_) | Self::Inside(_) | Self::Leftover(_))
    }
}

/// Copies the directory of a stopped log, durably. The copy is opened, with what the original's data root knows about it,
/// and closed: it stands on its own, as a log that was closed well. Where the original was not, the copy is recovered as
/// the original's next start would do it. Nothing is written to the original, so that it may be on read-only storage.
///
/// The copy is not made within the original, nor in a directory that somebody has open; paths are compared as they are given.
///
/// Damage is copied as it is; [`verify_partition`](crate::inspect::verify_partition) of the copy finds it.
///
/// # Errors
/// See [`CopyDirError`].
pub fn copy_dir(
    fs: &Arc<dyn Fs>,
    from: &Path,
    to: &Path,
    read: &mut dyn FnMut(u64),
) -> Result<CopiedDir, CopyDirError> {
    built(&**fs, from, to, |temporary| {
        let mut copied = CopiedDir::default();
        unless_used(&**fs, from, || {
            copy_files(&**fs, from, temporary, &mut copied, |_| true, read)?;
            Ok(checkpoints_around(&**fs, from)?.facts(from).hints())
        })
        .and_then(|hints| settle(fs, from, temporary, &RootCheckpoints::default(), hints, &mut copied))?;
        Ok(copied)
    })
}

/// Copies a stopped data root with all its partitions, and its own files, durably. Each log in it becomes one that was
/// closed well, as by [`copy_dir`], and so does the root; also those that are set aside, since a broker that believes the root
/// believes that of each log in it. Those that are being deleted, and what is no data root's, are not copied.
///
/// # Errors
/// See [`CopyDirError`].
pub fn copy_root(
    fs: &Arc<dyn Fs>,
    from: &Path,
    to: &Path,
    read: &mut dyn FnMut(u64),
) -> Result<CopiedDir, CopyDirError> {
    built(&**fs, from, to, |temporary| {
        let mut copied = CopiedDir::default();
        let logs = unless_used(&**fs, from, || {
            copy_files(&**fs, from, temporary, &mut copied, is_known_file, read)?;
            let checkpoints = RootCheckpoints::read(&**fs, from)?;
            let mut logs = Vec::new();
            for entry in fs.read_dir(from).context("list", from)? {
                let name = PartitionDirName::parse(&entry.name).filter(|_| entry.kind == FileKind::Directory);
                let Some(name) = name.filter(|name| !matches!(name.role, PartitionDirRole::Delete(_))) else {
                    continue;
                };
                let (original, copy) = (from.join(&entry.name), temporary.join(&entry.name));
                fs.create_dir(&copy).context("create directory", &copy)?;
                copy_files(&**fs, &original, &copy, &mut copied, |_| true, read)?;
                // One of Kafka's controllers' is never believed to have been closed well.
                if name.role != PartitionDirRole::Current || is_live_partition(&entry.name) {
                    logs.push((checkpoints.facts(&original).hints(), original, copy));
                }
            }
            fs.sync_dir(temporary).context("sync directory", temporary)?;
            Ok(logs)
        })?;
        let checkpoints = RootCheckpoints::read(&**fs, temporary)?;
        for (hints, original, copy) in logs {
            settle(fs, &original, &copy, &checkpoints, hints, &mut copied)?;
        }
        root::settle(&**fs, temporary)?;
        Ok(copied)
    })
}

/// Has a directory made under another name, and gives it its own when it is complete.
fn built(
    fs: &dyn Fs,
    from: &Path,
    to: &Path,
    build: impl FnOnce(&Path) -> Result<CopiedDir, CopyDirError>,
) -> Result<CopiedDir, CopyDirError> {
    // Without a slash at the end, behind which the other name would be one within.
    let to: PathBuf = to.components().collect();
    let parent = parent_of(&to);
    match fs.metadata(&to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
        Err(error) => return Err(error).context("look at", &to)?,
        Ok(_) => return Err(CopyDirError::Exists(to)),
    }
    if !fs.metadata(parent).is_ok_and(|parent| parent.kind == FileKind::Directory) {
        return Err(CopyDirError::NoParent(parent.to_owned()));
    }
    if to.starts_with(from) {
        return Err(CopyDirError::Inside(to));
    }
    unless_below_used(fs, &to)?;
    let temporary = temporary_path(&to);
    match fs.create_dir(&temporary) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(CopyDirError::Leftover(temporary)),
        made => made.context("create directory", &temporary)?,
    }
    let copied = build(&temporary).and_then(|copied| {
        unless_below_used(fs, &to)?;
        fs.rename(&temporary, &to).context("rename to its final name", &temporary)?;
        fs.sync_dir(parent).context("sync directory", parent)?;
        Ok(copied)
    });
    if copied.is_err() {
        // The first error is the one to tell.
        let _ = remove_tree(fs, &temporary, REMOVAL_DEPTH_MAX);
    }
    copied
}

/// Whether nobody has open what a copy would lie in: a data directory, or a log's in one.
fn unless_below_used(fs: &dyn Fs, to: &Path) -> Result<(), CopyDirError> {
    for dir in to.ancestors().skip(1).take(2).map(|dir| dir.join(LOCK_FILE)) {
        if let Some(holder) = fs.lock_holder(&dir).context("look at", &dir)? {
            return Err(CopyDirError::InUse { dir: parent_of(&dir).to_owned(), holder });
        }
    }
    Ok(())
}

/// Does something while nobody has the directory open, as far as looks before and after can tell.
fn unless_used<T>(fs: &dyn Fs, dir: &Path, work: impl FnOnce() -> Result<T, CopyDirError>) -> Result<T, CopyDirError> {
    let unused = || match in_use_by(fs, dir)? {
        Some(holder) => Err(CopyDirError::InUse { dir: dir.to_owned(), holder }),
        None => Ok(()),
    };
    unused()?;
    let done = work()?;
    unused()?;
    Ok(done)
}

fn copy_files(
    fs: &dyn Fs,
    from: &Path,
    to: &Path,
    copied: &mut CopiedDir,
    is_wanted: impl Fn(&str) -> bool,
    read: &mut dyn FnMut(u64),
) -> Result<(), CopyDirError> {
    for entry in fs.read_dir(from).context("list", from)? {
        if entry.kind != FileKind::File || entry.name == LOCK_FILE || !is_wanted(&entry.name) {
            continue;
        }
        let (source, target) = (from.join(&entry.name), to.join(&entry.name));
        let original = fs.open(&source, OpenMode::Read).context("open", &source)?;
        let before = original.metadata().context("look at", &source)?;
        let copy = fs.open(&target, OpenMode::CreateNew).context("create", &target)?;
        copy_bytes(&*original, &*copy, before.len).context("copy", &source)?;
        copy.sync_data().context("sync", &target)?;
        if fs.metadata(&source).context("look at", &source)? != before {
            return Err(CopyDirError::Changed(source));
        }
        copied.files += 1;
        copied.bytes += before.len;
        read(before.len);
    }
    fs.sync_dir(to).context("sync directory", to)?;
    Ok(())
}

/// What is known of a log that ends at `end`, but for a start behind that: a broker that believed it would leave nothing.
pub(super) fn keeping_all(hints: OpenHints, end: Offset) -> OpenHints {
    OpenHints { log_start: hints.log_start.filter(|start| *start <= end), ..hints }
}

/// Makes a copied log one that was closed well.
fn settle(
    fs: &Arc<dyn Fs>,
    original: &Path,
    copy: &Path,
    checkpoints: &RootCheckpoints,
    hints: OpenHints,
    copied: &mut CopiedDir,
) -> Result<(), CopyDirError> {
    let hints = keeping_all(hints, PartitionSummary::in_root(&**fs, copy, checkpoints)?.end);
    let (log, report) = Log::open_with(fs.clone(), copy, LogOptions::default(), hints)?;
    log.close()?;
    fs.sync_dir(copy).context("sync directory", copy)?;
    // Of one that is set aside nobody knows how it was closed.
    let was_unclean = !report.clean && hints.clean.is_some();
    if was_unclean || report.cut.is_some() || !report.missing.is_empty() {
        copied.recovered.push((original.to_owned(), report));
    }
    Ok(())
}
