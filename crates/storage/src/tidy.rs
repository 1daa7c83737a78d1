//! The names in a partition's directory, before the log in it is opened: leftovers go, interrupted swaps are completed.
//! Everything here may be cut short by a crash and runs again with the same result.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use crate::Offset;
use crate::fs::{FileKind, Fs, OpenMode};
use crate::io::{IoContext, IoError};
use crate::lock::LOCK_FILE;
use crate::log::EPOCHS_FILE;
use crate::names::{HISTORY_FILE, ReplacedFileName, SegmentFile, SegmentFileName, SegmentFileState, SideFileName};
use crate::scan::{Found, Walk};
use crate::segment::Place;
use crate::state_file::STATE_FILE;

/// The file that names a partition's topic, which belongs to the data root.
const METADATA_FILE: &str = "partition.metadata";

/// What is in the directory once it is tidy, and what makes it so.
#[derive(Debug, Default)]
pub(crate) struct Tidied {
    /// The files of each segment that has a data file.
    pub(crate) segments: BTreeMap<Offset, Vec<SegmentFile>>,
    /// The offsets of the snapshots of producers, rising.
    pub(crate) snapshots: Vec<Offset>,
    /// Segments whose files wait for their final names.
    pub(crate) swapped: BTreeSet<Offset>,
    /// Files of interrupted work that are to be removed or put in place.
    pub(crate) leftovers: Vec<String>,
    /// Names that no log has. They are left alone.
    pub(crate) ignored: Vec<String>,
    /// Whether there is a file that names the topic.
    pub(crate) names_topic: bool,
    changes: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Remove(String),
    /// Make durable what was done before this, before what comes after.
    Sync,
    /// Give the file of a complete replacement segment its final name.
    PutInPlace(SegmentFileName),
}

/// What is to be done about a directory: Kafka's passes over it (`LogLoader.removeTempFilesAndCollectSwapFiles` and the
/// following). Changes nothing.
pub(crate) fn plan(place: &Place) -> Result<Tidied, IoError> {
    let mut tidied = Tidied::default();
    let mut names = Vec::new();
    for entry in place.fs.read_dir(&place.dir).context("list", &place.dir)? {
        match SegmentFileName::parse(&entry.name).filter(|_| entry.kind == FileKind::File) {
            Some(name) => names.push(name),
            None if is_temporary(&entry.name) => tidied.remove(entry.name),
            None if entry.name == METADATA_FILE => tidied.names_topic = true,
            None if is_known_small_file(&entry.name) || is_set_aside(&entry.name) => {}
            None => tidied.ignored.push(entry.name),
        }
    }
    tidied.ignored.sort_unstable();
    names.sort_unstable_by_key(|name| (name.base_offset, name.kind));

    let fates = Fates::of(&*place.fs, &place.dir, &names)?;
    let (given_up, names): (Vec<_>, Vec<_>) = names
        .into_iter()
        .partition(|name| name.state != SegmentFileState::Live && fates.of_file(name) == Fate::Removed);
    // First what was marked complete: without the incomplete one, which goes after that, it would count.
    let (marked, incomplete): (Vec<_>, Vec<_>) =
        given_up.into_iter().partition(|name| name.state == SegmentFileState::Swap);
    let is_marked = !marked.is_empty();
    marked.into_iter().for_each(|name| tidied.remove(name.to_string()));
    if is_marked {
        tidied.changes.push(Change::Sync);
    }
    incomplete.into_iter().for_each(|name| tidied.remove(name.to_string()));

    let mut live: BTreeMap<Offset, Vec<SegmentFile>> = BTreeMap::new();
    let (swapped, names): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| fates.of_file(name) == Fate::PutInPlace);
    for name in names {
        if fates.of_file(&name) == Fate::Removed {
            tidied.remove(name.to_string());
        } else {
            tidied.note_snapshot(&name);
            live.entry(name.base_offset).or_default().push(name.kind);
        }
    }
    // Rising, and each segment's data file first: what is left after a crash covers nothing that was put in place.
    if !swapped.is_empty() {
        // What they cover is gone for good before nothing says any more that they cover it.
        tidied.changes.push(Change::Sync);
    }
    for name in swapped {
        tidied.leftovers.push(name.to_string());
        tidied.note_snapshot(&name);
        tidied.changes.push(Change::PutInPlace(name));
        tidied.swapped.insert(name.base_offset);
        live.entry(name.base_offset).or_default().push(name.kind);
    }

    tidied.snapshots.sort_unstable();
    tidied.snapshots.dedup();
    for (base, kinds) in live {
        if kinds.contains(&SegmentFile::Log) {
            tidied.segments.insert(base, kinds);
            continue;
        }
        for kind in kinds.into_iter().filter(|kind| *kind != SegmentFile::ProducerSnapshot) {
            tidied.remove(SegmentFileName::live(base, kind).to_string());
        }
    }
    Ok(tidied)
}

/// Does what was planned.
pub(crate) fn apply(place: &Place, tidied: &Tidied) -> Result<(), IoError> {
    for change in &tidied.changes {
        match change {
            Change::Remove(name) => place.remove(&place.dir.join(name))?,
            Change::Sync => place.sync_dir()?,
            Change::PutInPlace(name) => {
                let from = place.dir.join(name.to_string());
                let to = place.path(name.base_offset, name.kind);
                place.fs.rename(&from, &to).context("rename", &from)?;
            }
        }
    }
    if tidied.changes.is_empty() { Ok(()) } else { place.sync_dir() }
}

impl Tidied {
    fn remove(&mut self, name: String) {
        self.leftovers.push(name.clone());
        self.changes.push(Change::Remove(name));
    }

    fn note_snapshot(&mut self, name: &SegmentFileName) {
        if name.kind == SegmentFile::ProducerSnapshot {
            self.snapshots.push(name.base_offset);
        }
    }
}

/// Whether a file of this name may be a log's, in use or temporary.
pub(crate) fn is_name_of_log(name: &str) -> bool {
    is_known_small_file(name)
        || is_set_aside(name)
        || SegmentFileName::parse(name).is_some()
        || is_temporary(name)
        || name.strip_suffix(".tmp") == Some(METADATA_FILE)
}

/// Whether a name is that of bytes that a recovery or a repair put aside, or of what a file was before it was made anew.
pub(crate) fn is_set_aside(name: &str) -> bool {
    let is_beside = |name: &str| {
        is_known_small_file(name) || SegmentFileName::parse(name).is_some_and(|name| name.kind != SegmentFile::Log)
    };
    SideFileName::parse(name).is_some()
        || ReplacedFileName::parse(name).is_some_and(|replaced| is_beside(replaced.name))
}

/// Whether a name is that of a file beside the segments.
pub(crate) fn is_known_small_file(name: &str) -> bool {
    [EPOCHS_FILE, STATE_FILE, METADATA_FILE, LOCK_FILE, HISTORY_FILE].contains(&name)
}

/// Whether a name is that of a small file of this log that was being written.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| {
        [EPOCHS_FILE, STATE_FILE, HISTORY_FILE].contains(&name) || SegmentFileName::parse(name).is_some()
    })
}

/// What the next opening does with a segment's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    /// It belongs to a complete replacement segment and gets its final name.
    PutInPlace,
    Removed,
}

/// What the next opening does with the files of segments, going by all of their names.
#[derive(Debug)]
pub(crate) struct Fates {
    /// Base of the first segment that a compaction had not finished writing. It goes, and so does what was already marked
    /// complete behind it.
    first_cleaned: Option<Offset>,
    /// The base offsets that complete replacement segments stand for.
    covered: Vec<Range<Offset>>,
}

impl Fates {
    pub(crate) fn of(fs: &dyn Fs, dir: &Path, names: &[SegmentFileName]) -> Result<Self, IoError> {
        let cleaned = names.iter().filter(|name| name.state == SegmentFileState::Cleaned);
        let mut fates = Self { first_cleaned: cleaned.map(|name| name.base_offset).min(), covered: Vec::new() };
        let swapped = names.iter().filter(|name| fates.of_file(name) == Fate::PutInPlace);
        fates.covered = covered_by(fs, dir, swapped)?;
        Ok(fates)
    }

    pub(crate) fn of_file(&self, name: &SegmentFileName) -> Fate {
        match name.state {
            SegmentFileState::Deleted | SegmentFileState::Cleaned => Fate::Removed,
            SegmentFileState::Swap if self.first_cleaned.is_some_and(|first| name.base_offset >= first) => {
                Fate::Removed
            }
            SegmentFileState::Swap => Fate::PutInPlace,
            SegmentFileState::Live if self.is_replaced(name) => Fate::Removed,
            SegmentFileState::Live => Fate::Stays,
        }
    }

    fn is_replaced(&self, name: &SegmentFileName) -> bool {
        self.covered.iter().any(|covered| match name.kind {
            // A transaction index may have got its name before the data did. One of the segment that was replaced tells of
            // more than is left, which does no harm; without one, records of aborted transactions would be taken for
            // others. A snapshot tells of what lies below the segment, which nothing replaced.
            SegmentFile::TransactionIndex | SegmentFile::ProducerSnapshot => {
                covered.start < name.base_offset && name.base_offset < covered.end
            }
            SegmentFile::Log | SegmentFile::OffsetIndex | SegmentFile::TimeIndex => covered.contains(&name.base_offset),
        })
    }
}

/// The base offsets that complete replacement segments stand for, each those of its own batches: between two of them there
/// may be one that is in place already.
fn covered_by<'n>(
    fs: &dyn Fs,
    dir: &Path,
    swapped: impl Iterator<Item = &'n SegmentFileName>,
) -> Result<Vec<Range<Offset>>, IoError> {
    let mut covered = Vec::new();
    for name in swapped.filter(|name| name.kind == SegmentFile::Log) {
        let path = dir.join(name.to_string());
        let file = fs.open(&path, OpenMode::Read).context("open", &path)?;
        let len = file.metadata().context("read metadata of", &path)?.len;
        let mut walk = Walk::new(&*file, 0, len);
        let mut end = name.base_offset.next();
        while let Found::Batch(_, header) = walk.next_header().context("read", &path)? {
            end = end.max(header.next_offset());
        }
        covered.push(name.base_offset..end);
    }
    Ok(covered)
}
