//! The names in a partition's directory, before the log in it is opened: leftovers go, interrupted swaps are completed.
//! Everything here may be cut short by a crash and runs again with the same result.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Offset;
use crate::fs::{FileKind, Fs, OpenMode};
use crate::io::{IoContext, IoError};
use crate::lock::LOCK_FILE;
use crate::log::EPOCHS_FILE;
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::scan::{Found, Walk};
use crate::segment::Place;
use crate::state_file::STATE_FILE;

/// The file that names a partition's topic, which belongs to the data root.
const METADATA_FILE: &str = "partition.metadata";

/// What is in the directory once it is tidy.
#[derive(Debug, Default)]
pub(crate) struct Tidied {
    /// The files of each segment that has a data file.
    pub(crate) segments: BTreeMap<Offset, Vec<SegmentFile>>,
    /// Files of interrupted work that were removed or put in place.
    pub(crate) leftovers: Vec<String>,
    /// Names that no log has. They are left alone.
    pub(crate) ignored: Vec<String>,
}

/// Kafka's passes over a directory (`LogLoader.removeTempFilesAndCollectSwapFiles` and the following).
pub(crate) fn tidy(place: &Place) -> Result<Tidied, IoError> {
    let mut tidied = Tidied::default();
    let mut names = Vec::new();
    for entry in place.fs.read_dir(&place.dir).context("list", &place.dir)? {
        match SegmentFileName::parse(&entry.name).filter(|_| entry.kind == FileKind::File) {
            Some(name) => names.push(name),
            None if is_temporary(&entry.name) => remove(place, entry.name, &mut tidied)?,
            None if is_known_small_file(&entry.name) => {}
            None => tidied.ignored.push(entry.name),
        }
    }
    tidied.ignored.sort_unstable();
    names.sort_unstable_by_key(|name| (name.base_offset, name.kind));

    // A compaction that had not finished writing: what it wrote goes, and so does what it had already marked complete
    // behind the first incomplete one.
    let in_state = |state| move |name: &&SegmentFileName| name.state == state;
    let first_cleaned = names.iter().filter(in_state(SegmentFileState::Cleaned)).map(|name| name.base_offset).min();
    let (given_up, names): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| match name.state {
        SegmentFileState::Deleted | SegmentFileState::Cleaned => true,
        SegmentFileState::Swap => first_cleaned.is_some_and(|first| name.base_offset >= first),
        SegmentFileState::Live => false,
    });
    for name in given_up {
        remove(place, name.to_string(), &mut tidied)?;
    }

    // A compaction that was complete: its segments replace all that they cover.
    let swapped: Vec<_> = names.iter().filter(in_state(SegmentFileState::Swap)).copied().collect();
    let covered = covered_by(&*place.fs, &place.dir, &swapped)?;
    let mut live: BTreeMap<Offset, Vec<SegmentFile>> = BTreeMap::new();
    for name in names.iter().filter(in_state(SegmentFileState::Live)) {
        if covered.as_ref().is_some_and(|covered| covered.contains(&name.base_offset)) {
            remove(place, name.to_string(), &mut tidied)?;
        } else {
            live.entry(name.base_offset).or_default().push(name.kind);
        }
    }
    // Rising, and each segment's data file first: what is left after a crash covers nothing that was put in place.
    for name in swapped {
        let from = place.dir.join(name.to_string());
        let to = place.path(name.base_offset, name.kind);
        place.fs.rename(&from, &to).context("rename", &from)?;
        tidied.leftovers.push(name.to_string());
        live.entry(name.base_offset).or_default().push(name.kind);
    }

    for (base, kinds) in live {
        if kinds.contains(&SegmentFile::Log) {
            tidied.segments.insert(base, kinds);
            continue;
        }
        for kind in kinds.into_iter().filter(|kind| *kind != SegmentFile::ProducerSnapshot) {
            remove(place, SegmentFileName::live(base, kind).to_string(), &mut tidied)?;
        }
    }
    if !tidied.leftovers.is_empty() {
        place.sync_dir()?;
    }
    Ok(tidied)
}

fn remove(place: &Place, name: String, tidied: &mut Tidied) -> Result<(), IoError> {
    place.remove(&place.dir.join(&name))?;
    tidied.leftovers.push(name);
    Ok(())
}

/// Whether a file of this name may be a log's, in use or temporary.
pub(crate) fn is_name_of_log(name: &str) -> bool {
    is_known_small_file(name)
        || SegmentFileName::parse(name).is_some()
        || is_temporary(name)
        || name.strip_suffix(".tmp") == Some(METADATA_FILE)
}

/// Whether a name is that of a file beside the segments.
pub(crate) fn is_known_small_file(name: &str) -> bool {
    [EPOCHS_FILE, STATE_FILE, METADATA_FILE, LOCK_FILE].contains(&name)
}

/// Whether a name is that of a small file of this log that was being written.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp")
        .is_some_and(|name| [EPOCHS_FILE, STATE_FILE].contains(&name) || SegmentFileName::parse(name).is_some())
}

/// The base offsets that complete replacement segments stand for.
pub(crate) fn covered_by(
    fs: &dyn Fs,
    dir: &Path,
    swapped: &[SegmentFileName],
) -> Result<Option<std::ops::Range<Offset>>, IoError> {
    let mut covered: Option<std::ops::Range<Offset>> = None;
    for name in swapped.iter().filter(|name| name.kind == SegmentFile::Log) {
        let path = dir.join(name.to_string());
        let file = fs.open(&path, OpenMode::Read).context("open", &path)?;
        let len = file.metadata().context("read metadata of", &path)?.len;
        let mut walk = Walk::new(&*file, 0, len);
        let mut end = name.base_offset.next();
        while let Found::Batch(_, header) = walk.next_header().context("read", &path)? {
            end = end.max(header.next_offset());
        }
        let start = covered.as_ref().map_or(name.base_offset, |covered| covered.start);
        covered = Some(start..covered.map_or(end, |covered| covered.end.max(end)));
    }
    Ok(covered)
}
