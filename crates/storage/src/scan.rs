//! Walks the batches of a segment's file from any batch boundary, by whole batches or by headers alone.

use std::io;

use crate::batch::{BatchFault, BatchHeader, BatchView, HEADER_BYTES, frame_length};
use crate::fs::File;
use crate::io::FileExt;

/// Bytes read at a time while batches are small enough for several to fit.
const WINDOW_BYTES: usize = 256 << 10;

/// Bytes read at a time by look-ups, which usually end within the distance of two index entries.
const SMALL_WINDOW_BYTES: usize = 8 << 10;

/// Batches above this are passed by reading their headers alone.
const LARGE_BATCH_BYTES: usize = 16 << 10;

/// What a walk came upon.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// A batch at this position.
    Batch(u64, T),
    /// The end, exactly at a batch boundary.
    End,
    /// No batch begins at this position.
    Bad(u64, BatchFault),
}

/// A walk over the batches of one file.
#[derive(Debug)]
pub(crate) struct Walk<'f> {
    file: &'f dyn File,
    /// Where the next batch begins.
    position: u64,
    /// Where the walk ends: bytes past it are not looked at.
    end: u64,
    window_bytes: usize,
    window: Vec<u8>,
    /// The file position of the window's first byte.
    window_start: u64,
    last_batch_bytes: usize,
}

impl<'f> Walk<'f> {
    /// Begins at `position`, which must be a batch boundary, and stays below `end`.
    pub(crate) fn new(file: &'f dyn File, position: u64, end: u64) -> Self {
        let (window_bytes, window) = (WINDOW_BYTES, Vec::new());
        Self { file, position, end, window_bytes, window, window_start: position, last_batch_bytes: 0 }
    }

    /// As [`Walk::new`], for a walk that will be short.
    pub(crate) fn small(file: &'f dyn File, position: u64, end: u64) -> Self {
        Self { window_bytes: SMALL_WINDOW_BYTES, ..Self::new(file, position, end) }
    }

    /// As [`Walk::new`], reading so many bytes at a time.
    pub(crate) fn with_window(file: &'f dyn File, position: u64, end: u64, window_bytes: usize) -> Self {
        Self { window_bytes, ..Self::new(file, position, end) }
    }

    /// The next batch, whole.
    pub(crate) fn next_batch(&mut self) -> io::Result<Found<BatchView<'_>>> {
        let position = self.position;
        let header = match self.peek(self.window_bytes)? {
            Found::Batch(_, header) => header,
            Found::End => return Ok(Found::End),
            Found::Bad(position, fault) => return Ok(Found::Bad(position, fault)),
        };
        // The length was held against the file's end, so this allocates no more than the file has.
        self.fill(header.total_bytes(), self.window_bytes)?;
        self.position = position + header.total_bytes() as u64;
        match BatchView::parse(self.rest(position)) {
            Ok((batch, _)) => Ok(Found::Batch(position, batch)),
            Err(error) => Ok(Found::Bad(position, error.what)),
        }
    }

    /// The next batch's header. The records of large batches are not read.
    pub(crate) fn next_header(&mut self) -> io::Result<Found<BatchHeader>> {
        let window = if self.last_batch_bytes > LARGE_BATCH_BYTES { HEADER_BYTES } else { self.window_bytes };
        let found = self.peek(window)?;
        if let Found::Batch(_, header) = &found {
            self.last_batch_bytes = header.total_bytes();
            self.position += header.total_bytes() as u64;
        }
        Ok(found)
    }

    /// The header at the position, if a batch that ends within the walk begins there.
    fn peek(&mut self, window: usize) -> io::Result<Found<BatchHeader>> {
        let position = self.position;
        if position >= self.end {
            return Ok(Found::End);
        }
        self.fill(HEADER_BYTES, window)?;
        let bytes = self.rest(position);
        let left = usize::try_from(self.end - position).unwrap_or(usize::MAX);
        let total = match frame_length(bytes) {
            Ok(total) => total,
            Err(fault) => return Ok(Found::Bad(position, fault)),
        };
        // Messages of the old formats may be shorter than a header: it ends with them, not with what follows.
        match bytes.get(..total.min(HEADER_BYTES)) {
            Some(first) if total <= left => Ok(Found::Batch(position, BatchHeader::decode_first(first))),
            _ => Ok(Found::Bad(position, BatchFault::Partial { have: left, need: total })),
        }
    }

    /// The bytes of the window from a file position on.
    fn rest(&self, position: u64) -> &[u8] {
        let from = usize::try_from(position.saturating_sub(self.window_start)).unwrap_or(usize::MAX);
        self.window.get(from..).unwrap_or_default()
    }

    /// Sees to it that the window holds `need` bytes from the position on, or all there are.
    fn fill(&mut self, need: usize, window: usize) -> io::Result<()> {
        if self.rest(self.position).len() >= need {
            return Ok(());
        }
        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
        let want = need.max(window).min(left);
        // Keeps what is already there and is still ahead, so that no byte is read twice.
        let kept = self.rest(self.position).len().min(want);
        let passed = self.window.len() - kept;
        self.window.drain(..passed);
        self.window_start = self.position;
        self.window.resize(want, 0);
        let read = match self.window.get_mut(kept..) {
            Some(rest) => self.file.read_full_at(rest, self.position + kept as u64)?,
            None => 0,
        };
        self.window.truncate(kept + read);
        Ok(())
    }
}
