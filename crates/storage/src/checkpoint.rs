//! Kafka's text checkpoints, and the one way to write a small file durably.
//!
//! ```text
//! 0                      version
//! 2                      number of lines that follow
//! books 0 441            offsets: topic, partition, offset    epochs: leader epoch, start offset
//! books 1 17
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::SplitWhitespace;
use std::sync::Arc;

use crate::fs::{Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::{LeaderEpoch, Offset, TopicPartition};

/// The version of the text format, its first line.
const VERSION: &str = "0";

/// Far above any real checkpoint (a million partitions make about 40 MB), far below what would hurt.
pub(crate) const CHECKPOINT_BYTES_MAX: u64 = 128 << 20;

/// Why a checkpoint could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The content is not a checkpoint. Callers go on as if there were none, and say so.
    #[error("{} is no checkpoint: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line and complaint.
        what: String,
    },
}

/// Reads a checkpoint of offsets per partition. No file, an empty one or one with only the version: no entries.
///
/// Of two lines for one partition the later wins, as in Kafka (`OffsetCheckpointFile`).
///
/// # Errors
/// [`CheckpointError::Malformed`] names the line that is none; [`CheckpointError::Io`] if the file cannot be read.
pub fn read_offsets(fs: &dyn Fs, path: &Path) -> Result<BTreeMap<TopicPartition, Offset>, CheckpointError> {
    read_offsets_where(fs, path, |_| true)
}

/// As [`read_offsets`], keeping the lines of `wanted` partitions only: a checkpoint may have any number of others.
pub(crate) fn read_offsets_where(
    fs: &dyn Fs,
    path: &Path,
    mut wanted: impl FnMut(&TopicPartition) -> bool,
) -> Result<BTreeMap<TopicPartition, Offset>, CheckpointError> {
    let Some(text) = read_text(fs, path)? else { return Ok(BTreeMap::new()) };
    let mut offsets = BTreeMap::new();
    // The lines of a topic mostly follow each other: they share its name.
    let mut topic: Arc<str> = Arc::default();
    let parsed = parse(&text, |mut fields| {
        let name = fields.next()?;
        let partition: i32 = fields.next()?.parse().ok().filter(|partition| *partition >= 0)?;
        let offset = parse_offset(fields.next()?)?;
        if fields.next().is_some() {
            return None;
        }
        if *topic != *name {
            topic = name.into();
        }
        let topic_partition = TopicPartition { topic: topic.clone(), partition };
        if wanted(&topic_partition) {
            offsets.insert(topic_partition, offset);
        }
        Some(())
    });
    parsed.map_err(|what| malformed(path, what))?;
    Ok(offsets)
}

/// Writes a checkpoint of offsets per partition, in the order of the map, durably.
///
/// # Errors
/// [`CheckpointError::Io`]; what the file holds then [`replace_file`] says.
pub fn write_offsets(
    fs: &dyn Fs,
    path: &Path,
    offsets: &BTreeMap<TopicPartition, Offset>,
) -> Result<(), CheckpointError> {
    let lines =
        offsets.iter().map(|(TopicPartition { topic, partition }, offset)| format!("{topic} {partition} {offset}"));
    Ok(replace_file(fs, path, format(lines).as_bytes())?)
}

/// Reads `leader-epoch-checkpoint`: the start offset of each epoch, both strictly rising.
/// No file, an empty one or one with only the version: no entries.
///
/// # Errors
/// [`CheckpointError::Malformed`] names the line that is none or does not rise; [`CheckpointError::Io`] if the file cannot be
/// read.
pub fn read_epochs(fs: &dyn Fs, path: &Path) -> Result<Vec<(LeaderEpoch, Offset)>, CheckpointError> {
    Ok(read_epochs_if_there(fs, path)?.unwrap_or_default())
}

/// As [`read_epochs`], telling a file that is not there from one without entries.
pub(crate) fn read_epochs_if_there(
    fs: &dyn Fs,
    path: &Path,
) -> Result<Option<Vec<(LeaderEpoch, Offset)>>, CheckpointError> {
    let Some(text) = read_text(fs, path)? else { return Ok(None) };
    let mut entries = Vec::new();
    let parsed = parse(&text, |mut fields| {
        let epoch = LeaderEpoch(fields.next()?.parse().ok()?);
        let start = parse_offset(fields.next()?)?;
        if fields.next().is_some() || !epoch.is_some() {
            return None;
        }
        entries.push((epoch, start));
        Some(())
    });
    parsed.map_err(|what| malformed(path, what))?;
    for (at, (before, after)) in entries.iter().zip(entries.iter().skip(1)).enumerate() {
        if before.0 >= after.0 || before.1 >= after.1 {
            let what = format!("line {}: epochs and their starts must rise", at + 4);
            return Err(malformed(path, what));
        }
    }
    Ok(Some(entries))
}

/// Writes `leader-epoch-checkpoint` durably.
///
/// # Errors
/// [`CheckpointError::Io`]; what the file holds then [`replace_file`] says.
pub fn write_epochs(fs: &dyn Fs, path: &Path, epochs: &[(LeaderEpoch, Offset)]) -> Result<(), CheckpointError> {
    let lines = epochs.iter().map(|(epoch, start)| format!("{epoch} {start}"));
    Ok(replace_file(fs, path, format(lines).as_bytes())?)
}

/// Puts `bytes` in place of the file at `path`, durably: after a crash at any point the file holds either what it held
/// before (or is absent, if it was) or all of `bytes`. On success it is `bytes`, whatever happens then.
///
/// Writes `<path>.tmp`, syncs it, renames it, and syncs the directory, in this order: a rename that becomes durable
/// before the bytes it publishes would leave an empty file. A leftover `.tmp` is overwritten.
///
/// # Errors
/// The first operation that failed. The file holds what it held before; only if it was the sync of the directory it holds
/// `bytes`, and a power cut may take them back.
pub fn replace_file(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let temporary = temporary_path(path);
    let written = write_temporary(fs, &temporary, bytes)
        .and_then(|()| fs.rename(&temporary, path).context("rename to its final name", &temporary));
    if let Err(error) = written {
        // On a full disk the leftover would take the room that is missing. The first error is the one to tell.
        let _ = fs.remove_file(&temporary);
        return Err(error);
    }
    sync_parent(fs, path)
}

/// The name under which what is to become `path` is built.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    PathBuf::from(temporary)
}

/// Makes the entry of `path` in its directory durable.
pub(crate) fn sync_parent(fs: &dyn Fs, path: &Path) -> Result<(), IoError> {
    let parent = parent_of(path);
    fs.sync_dir(parent).context("sync directory", parent)
}

/// The directory that holds `path`; the current one for a bare name.
pub(crate) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => path,
    }
}

/// Reads a small file whole, or gives `None` if there is none. More than `bytes_max` is refused before it is read.
pub(crate) fn read_small_file(fs: &dyn Fs, path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, IoError> {
    let (file, len) = match fs.open_with_metadata(path, OpenMode::Read) {
        Ok((file, metadata)) => (file, metadata.len),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("open", path),
    };
    if len > bytes_max {
        let too_large =
            io::Error::new(io::ErrorKind::FileTooLarge, format!("{len} bytes, at most {bytes_max} expected"));
        return Err(too_large).context("read", path);
    }
    // The length is below `bytes_max`, so it fits and is safe to reserve.
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let read = file.read_full_at(&mut bytes, 0).context("read", path)?;
    bytes.truncate(read);
    Ok(Some(bytes))
}

fn write_temporary(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> Result<(), IoError> {
    let file = fs.open(path, OpenMode::Truncate).context("create", path)?;
    file.write_all_at(bytes, 0).context("write", path)?;
    file.sync_data().context("sync", path)
}

fn read_text(fs: &dyn Fs, path: &Path) -> Result<Option<String>, CheckpointError> {
    let Some(bytes) = read_small_file(fs, path, CHECKPOINT_BYTES_MAX)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| malformed(path, "it is not text".to_owned()))
}

fn format(lines: impl ExactSizeIterator<Item = String>) -> String {
    let mut text = format!("{VERSION}\n{}\n", lines.len());
    for line in lines {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Has the lines after the head taken in by `entry`, which gives `None` for one that it cannot. The declared number is
/// compared with the lines, never reserved.
fn parse(text: &str, mut entry: impl FnMut(SplitWhitespace<'_>) -> Option<()>) -> Result<(), String> {
    let mut lines = text.lines();
    let Some(version) = lines.next() else { return Ok(()) };
    if version.trim() != VERSION {
        return Err(format!("line 1: version {:?}, expected {VERSION}", start_of(version)));
    }
    let Some(declared) = lines.next() else { return Ok(()) };
    let declared: usize =
        declared.trim().parse().map_err(|_| format!("line 2: {:?} is not a number of entries", start_of(declared)))?;
    let mut follow = 0;
    for (at, line) in lines.enumerate() {
        entry(line.split_whitespace())
            .ok_or_else(|| format!("line {}: {:?} is not an entry", at + 3, start_of(line)))?;
        follow += 1;
    }
    if follow != declared {
        return Err(format!("line 2 says {declared} entries, {follow} follow"));
    }
    Ok(())
}

/// As much of a line as belongs in a message.
fn start_of(line: &str) -> String {
    line.chars().take(40).collect()
}

fn parse_offset(field: &str) -> Option<Offset> {
    field.parse().ok().filter(|offset| *offset >= 0).map(Offset)
}

fn malformed(path: &Path, what: String) -> CheckpointError {
    CheckpointError::Malformed { path: path.to_owned(), what }
}

#[cfg(test)]
mod tests;
