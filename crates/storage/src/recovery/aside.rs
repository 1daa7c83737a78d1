//! Keeping what a cut would destroy: the bytes from damage on go to a file of their own if batches behind it are intact.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::plan::Aside;
use crate::error::OpenError;
use crate::fs::{File, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::log::is_out_of_room;
use crate::names::{SegmentFile, SideFileName};
use crate::segment::Place;

/// What is in use of the room for such files.
pub(super) struct SideFiles<'p> {
    place: &'p Place,
    taken: Vec<String>,
    bytes_left: u64,
}

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

impl<'p> SideFiles<'p> {
    /// With at most `bytes_max` in all of them, those from before included.
    pub(super) fn new(place: &'p Place, bytes_max: u64) -> Result<Self, IoError> {
        let mut files = Self { place, taken: Vec::new(), bytes_left: bytes_max };
        for entry in place.fs.read_dir(&place.dir).context("list", &place.dir)? {
            if SideFileName::parse(&entry.name).is_some() {
                let path = place.dir.join(&entry.name);
                let len = place.fs.metadata(&path).context("read metadata of", &path)?.len;
                files.bytes_left = files.bytes_left.saturating_sub(len);
                files.taken.push(entry.name);
            }
        }
        Ok(files)
    }

    /// Keeps what is to be kept of a segment: all of its file under another name if it goes as a whole, else a copy.
    /// Returns the file, or `None` if there is no room.
    pub(super) fn keep(&mut self, aside: &Aside, goes_as_a_whole: bool) -> Result<Option<PathBuf>, OpenError> {
        let (position, bytes) = (aside.found.position, aside.found.bytes);
        // The log needs room more than what was cut off it.
        let free = self.place.fs.free_space(&self.place.dir).context("ask for free space in", &self.place.dir)?;
        if bytes > self.bytes_left || bytes > free / 2 {
            return Ok(None);
        }
        let base_offset = aside.segment.base();
        let names = (0..).map(|again| SideFileName { base_offset, position, again }.to_string());
        let Some(name) = names.into_iter().find(|name| !self.taken.contains(name)) else { return Ok(None) };
        let path = self.place.dir.join(&name);
        if goes_as_a_whole {
            let from = aside.segment.path();
            self.place.fs.rename(&from, &path).context("rename", &from)?;
        } else if !self.copy(&*aside.segment.file()?, aside, &path)? {
            return Ok(None);
        }
        self.bytes_left -= bytes;
        self.taken.push(name);
        Ok(Some(path))
    }

    /// Returns whether there was room.
    fn copy(&self, file: &dyn File, aside: &Aside, to: &std::path::Path) -> Result<bool, OpenError> {
        let Place { fs, dir, .. } = self.place;
        let (position, bytes) = (aside.found.position, aside.found.bytes);
        // Of a name that the next opening would remove.
        let temporary = dir.join(format!("{}.tmp", file_name(aside)));
        let written = (|| {
            let copy = fs.open(&temporary, OpenMode::Truncate).context("create", &temporary)?;
            copy_range(file, position, bytes, &copy).context("copy to", &temporary)?;
            copy.sync_data().context("sync", &temporary)?;
            fs.rename(&temporary, to).context("rename", &temporary)?;
            // Before anything is cut.
            self.place.sync_dir()
        })();
        match written {
            Err(error) if is_out_of_room(&error) => {
                self.place.remove(&temporary)?;
                Ok(false)
            }
            written => Ok(written.map(|()| true)?),
        }
    }
}

fn file_name(aside: &Aside) -> String {
    crate::names::SegmentFileName::live(aside.segment.base(), SegmentFile::Log).to_string()
}

fn copy_range(from: &dyn File, position: u64, bytes: u64, to: &Arc<dyn File>) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut done = 0;
    while done < bytes {
        let count = usize::try_from(bytes - done).unwrap_or(usize::MAX).min(buffer.len());
        let Some(chunk) = buffer.get_mut(..count) else { break };
        from.read_exact_at(chunk, position + done)?;
        to.write_all_at(chunk, done)?;
        done += count as u64;
    }
    Ok(())
}
