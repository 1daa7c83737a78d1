//! A compaction that was interrupted while its result took the place of what it was made from.

use std::path::{Path, PathBuf};

use crate::fs::{FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::segment::Place;
use crate::tidy::{Fate, Fates};

use super::data::free_side_path;
use super::{kept, name_of};

/// What is to be done so that it is finished, as the next opening would finish it. But nothing is removed that an opening
/// removes: a file that waits for its place may be damaged, and what it replaces is not.
#[derive(Clone, Debug, Default)]
pub(super) struct Unfinished {
    /// Files in use of segments that are replaced.
    replaced: Vec<SegmentFileName>,
    /// Files that wait for their final names, each segment's data file first.
    waiting: Vec<SegmentFileName>,
}

impl Unfinished {
    /// Looks whether there is one.
    pub(super) fn of(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        let entries = fs.read_dir(dir).context("list", dir)?;
        let files = entries.iter().filter(|entry| entry.kind == FileKind::File);
        let mut names: Vec<_> = files.filter_map(|entry| SegmentFileName::parse(&entry.name)).collect();
        names.sort_unstable_by_key(|name| (name.base_offset, name.kind));
        let fates = Fates::of(fs, dir, &names)?;
        let is_replaced =
            |name: &SegmentFileName| name.state == SegmentFileState::Live && fates.of_file(name) == Fate::Removed;
        let replaced = names.iter().copied().filter(is_replaced).collect();
        names.retain(|name| fates.of_file(name) == Fate::PutInPlace);
        Ok(Self { replaced, waiting: names })
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The data files that get another name.
    pub(super) fn set_aside(&self, dir: &Path) -> impl Iterator<Item = PathBuf> {
        let logs = self.replaced.iter().filter(|name| name.kind == SegmentFile::Log);
        logs.map(|name| dir.join(name.to_string()))
    }

    /// The files that get their final names, by the names that they have.
    pub(super) fn waiting(&self, dir: &Path) -> impl Iterator<Item = PathBuf> {
        self.waiting.iter().map(|name| dir.join(name.to_string()))
    }

    /// In the order of an opening: what is replaced is out of the way, durably, before nothing says any more that it is.
    pub(super) fn finish(&self, place: &Place) -> Result<(), IoError> {
        for name in &self.replaced {
            let path = place.path(name.base_offset, name.kind);
            if name.kind == SegmentFile::Log {
                let aside = free_side_path(place, name.base_offset, 0)?;
                place.fs.rename(&path, &aside).context("rename", &path)?;
            } else {
                kept::keep(&*place.fs, &path)?;
                place.remove(&path)?;
            }
        }
        if !self.replaced.is_empty() {
            place.sync_dir()?;
        }
        for name in &self.waiting {
            let (from, to) = (place.dir.join(name.to_string()), place.path(name.base_offset, name.kind));
            kept::keep(&*place.fs, &to)?;
            place.fs.rename(&from, &to).context("rename to its final name", &from)?;
        }
        if self.waiting.is_empty() { Ok(()) } else { place.sync_dir() }
    }
}

/// The path of a segment's file once it is in its place.
pub(super) fn in_place(path: &Path) -> PathBuf {
    match name_of(path) {
        Some(name) if name.state == SegmentFileState::Swap => {
            path.with_file_name(SegmentFileName::live(name.base_offset, name.kind).to_string())
        }
        _ => path.to_owned(),
    }
}
