//! A stretch of a file in memory that moves along with whoever reads it.

use std::io;

use crate::fs::File;
use crate::io::FileExt;

/// See the module.
#[derive(Debug)]
pub(crate) struct Window<'f> {
    file: &'f dyn File,
    /// Bytes past it are not looked at.
    end: u64,
    /// Bytes read at a time.
    ahead: usize,
    bytes: Vec<u8>,
    /// The file position of the first byte.
    start: u64,
}

impl<'f> Window<'f> {
    /// A window over what lies below `end`, filled by reads of `ahead` bytes.
    pub(crate) fn new(file: &'f dyn File, end: u64, ahead: usize) -> Self {
        Self { file, end, ahead, bytes: Vec::new(), start: 0 }
    }

    /// Where the file ends for this window.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The bytes from `position` on: at least `need`, or all there are.
    pub(crate) fn get(&mut self, position: u64, need: usize) -> io::Result<&[u8]> {
        self.get_by(position, need, self.ahead)
    }

    /// As [`Window::get`], without reading ahead.
    pub(crate) fn get_only(&mut self, position: u64, need: usize) -> io::Result<&[u8]> {
        self.get_by(position, need, need)
    }

    fn get_by(&mut self, position: u64, need: usize, ahead: usize) -> io::Result<&[u8]> {
        // Held against the file's end, so that no more is allocated than the file has.
        let left = usize::try_from(self.end.saturating_sub(position)).unwrap_or(usize::MAX);
        let need = need.min(left);
        if self.held(position).len() < need {
            let want = need.max(ahead).min(left);
            // Keeps what is there and still ahead, so that no byte is read twice.
            let kept = self.held(position).len();
            let passed = self.bytes.len() - kept;
            self.bytes.drain(..passed);
            self.start = position;
            self.bytes.resize(want, 0);
            let read = match self.bytes.get_mut(kept..) {
                Some(rest) => self.file.read_full_at(rest, position + kept as u64)?,
                None => 0,
            };
            self.bytes.truncate(kept + read);
        }
        Ok(self.held(position))
    }

    /// What is in memory from `position` on.
    fn held(&self, position: u64) -> &[u8] {
        let from = position.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| self.bytes.get(from..)).unwrap_or_default()
    }
}
