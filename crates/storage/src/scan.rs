//! Walks the batches of a segment's file from any batch boundary, by whole batches or by headers alone.

use std::io;

use crate::batch::{BatchFault, BatchHeader, BatchView, HEADER_BYTES, frame_length};
use crate::fs::File;
use crate::window::Window;

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
    /// Where the next batch begins.
    position: u64,
    /// What is read; it ends where the walk ends.
    window: Window<'f>,
    last_batch_bytes: usize,
}

impl<'f> Walk<'f> {
    /// Begins at `position`, which must be a batch boundary, and stays below `end`.
    pub(crate) fn new(file: &'f dyn File, position: u64, end: u64) -> Self {
        Self::with_window(file, position, end, WINDOW_BYTES)
    }

    /// As [`Walk::new`], for a walk that will be short.
    pub(crate) fn small(file: &'f dyn File, position: u64, end: u64) -> Self {
        Self::with_window(file, position, end, SMALL_WINDOW_BYTES)
    }

    /// As [`Walk::new`], reading so many bytes at a time.
    pub(crate) fn with_window(file: &'f dyn File, position: u64, end: u64, window_bytes: usize) -> Self {
        Self { position, window: Window::new(file, end, window_bytes), last_batch_bytes: 0 }
    }

    /// The next batch, whole.
    pub(crate) fn next_batch(&mut self) -> io::Result<Found<BatchView<'_>>> {
        let position = self.position;
        let header = match self.peek(true)? {
            Found::Batch(_, header) => header,
            Found::End => return Ok(Found::End),
            Found::Bad(position, fault) => return Ok(Found::Bad(position, fault)),
        };
        self.position = position + header.total_bytes() as u64;
        match BatchView::parse(self.window.get(position, header.total_bytes())?) {
            Ok((batch, _)) => Ok(Found::Batch(position, batch)),
            Err(error) => Ok(Found::Bad(position, error.what)),
        }
    }

    /// The next batch's header. The records of large batches are not read.
    pub(crate) fn next_header(&mut self) -> io::Result<Found<BatchHeader>> {
        let found = self.peek(self.last_batch_bytes <= LARGE_BATCH_BYTES)?;
        if let Found::Batch(_, header) = &found {
            self.last_batch_bytes = header.total_bytes();
            self.position += header.total_bytes() as u64;
        }
        Ok(found)
    }

    /// The header at the position, if a batch that ends within the walk begins there. `reads_ahead` if more is read than
    /// that.
    fn peek(&mut self, reads_ahead: bool) -> io::Result<Found<BatchHeader>> {
        let position = self.position;
        if position >= self.window.end() {
            return Ok(Found::End);
        }
        let left = usize::try_from(self.window.end() - position).unwrap_or(usize::MAX);
        let bytes = if reads_ahead {
            self.window.get(position, HEADER_BYTES)?
        } else {
            self.window.get_only(position, HEADER_BYTES)?
        };
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
}
