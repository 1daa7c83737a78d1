//! Data files: what is damaged goes to side files, what remains moves up.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::checkpoint::temporary_path;
use crate::fs::{File, OpenMode};
use crate::inspect::Correction;
use crate::io::{FileExt, IoContext, IoError};
use crate::names::{SegmentFile, SideFileName};
use crate::segment::Place;
use crate::{Offset, RepairedField};

use super::name_of;

/// Bytes copied at a time.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// What is to be done to one data file.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentRepair {
    /// Position and length of what is cut out, rising.
    pub(super) cut: Vec<(u64, u64)>,
    /// Positions of batches and the fields to correct.
    corrections: Vec<(u64, Correction)>,
    /// The whole file is put aside.
    pub(super) set_aside: bool,
}

impl SegmentRepair {
    pub(super) fn correct(&mut self, position: u64, correction: Correction) {
        self.corrections.push((position, correction));
    }

    pub(super) fn corrects_epochs(&self) -> bool {
        self.corrections.iter().any(|(_, correction)| correction.field == RepairedField::LeaderEpoch)
    }

    /// In this order: bytes are safe in their side file before the segment loses them, and indexes are gone before they
    /// point into another file.
    pub(super) fn apply(&self, place: &Place, path: &Path) -> Result<(), IoError> {
        let Some(base) = name_of(path).map(|name| name.base_offset) else { return Ok(()) };
        let file = place.fs.open(path, OpenMode::Read).context("open", path)?;
        let len = file.metadata().context("read metadata of", path)?.len;
        if self.set_aside {
            let aside = free_side_path(place, base, 0)?;
            self.remove_indexes(place, base)?;
            return place.fs.rename(path, &aside).context("rename", path);
        }
        for &(position, bytes) in &self.cut {
            let side = free_side_path(place, base, position)?;
            let copy = place.fs.open(&side, OpenMode::CreateNew).context("create", &side)?;
            append(&*file, position..position + bytes, &*copy, 0).context("write", &side)?;
            copy.sync_data().context("sync", &side)?;
        }
        place.sync_dir()?;
        let temporary = temporary_path(path);
        let written = self.write(&*file, len, place, &temporary);
        if let Err(error) = written {
            // On a full disk it would take the room that is missing. The first error is the one to tell.
            let _ = place.fs.remove_file(&temporary);
            return Err(error);
        }
        self.remove_indexes(place, base)?;
        place.sync_dir()?;
        place.fs.rename(&temporary, path).context("rename to its final name", &temporary)
    }

    fn write(&self, file: &dyn File, len: u64, place: &Place, temporary: &Path) -> Result<(), IoError> {
        let out = place.fs.open(temporary, OpenMode::Truncate).context("create", temporary)?;
        let mut written = 0;
        let mut from = 0;
        let ends = self.cut.iter().copied().chain([(len, 0)]);
        for (position, bytes) in ends {
            append(file, from..position.max(from), &*out, written).context("write", temporary)?;
            for (batch, correction) in self.corrections.iter().filter(|(batch, _)| (from..position).contains(batch)) {
                let at = written + (batch - from);
                let (offset, bytes) = in_header(correction);
                out.write_all_at(&bytes, at + offset).context("write", temporary)?;
            }
            written += position.saturating_sub(from);
            from = position.max(from) + bytes;
        }
        out.sync_data().context("sync", temporary)
    }

    fn remove_indexes(&self, place: &Place, base: Offset) -> Result<(), IoError> {
        for kind in [SegmentFile::OffsetIndex, SegmentFile::TimeIndex] {
            place.remove(&place.path(base, kind))?;
        }
        Ok(())
    }
}

/// Where in a batch a field stands, and its bytes.
fn in_header(correction: &Correction) -> (u64, Vec<u8>) {
    let is = correction.is.to_be_bytes();
    let (at, bytes) = match correction.field {
        RepairedField::BaseOffset => (0, 8),
        RepairedField::Length => (8, 4),
        RepairedField::LeaderEpoch => (12, 4),
        RepairedField::Magic => (16, 1),
    };
    (at, is.iter().skip(is.len() - bytes).copied().collect())
}

/// Copies a stretch of one file into another.
pub(super) fn append(from: &dyn File, range: Range<u64>, to: &dyn File, mut at: u64) -> io::Result<()> {
    let mut position = range.start;
    let mut buffer = vec![0; CHUNK_BYTES];
    while position < range.end {
        let count = usize::try_from(range.end - position).unwrap_or(usize::MAX).min(buffer.len());
        let chunk = buffer.get_mut(..count).unwrap_or_default();
        from.read_exact_at(chunk, position)?;
        to.write_all_at(chunk, at)?;
        position += count as u64;
        at += count as u64;
    }
    Ok(())
}

/// The name of a side file that is not taken: an earlier repair may have cut at the same position.
pub(super) fn free_side_path(place: &Place, base_offset: Offset, position: u64) -> Result<PathBuf, IoError> {
    for again in 0u32.. {
        let side = place.dir.join(SideFileName { base_offset, position, again }.to_string());
        match place.fs.metadata(&side) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(side),
            Err(error) => return Err(error).context("look at", &side),
            Ok(_) => {}
        }
    }
    unreachable!("no directory holds 2^32 files")
}
