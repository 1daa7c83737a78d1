//! The batches of a segment's file and what lies between them: it goes on behind damage, in the same way as a log that is
//! being opened.

use std::io;
use std::ops::Range;

use crate::Offset;
use crate::batch::{BatchHeader, BatchView, HeaderScan, read_header};
use crate::error::DamageKind;
use crate::fs::File;
use crate::survey::{Frame, Sound, Step, Stretch, Survey};

use super::fault::Correction;

/// Bytes that hold no batch, or one that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DamagedBytes {
    /// Where they begin, in bytes from the start of the file.
    pub position: u64,
    /// How many there are.
    pub bytes: u64,
    /// What is wrong with them.
    pub what: DamageKind,
    /// The offsets that are missing in the file because of it: from what was due to what follows. Where nothing follows
    /// and nobody knows the end, the end is that of the batch, if its header can be read, else the beginning.
    pub offsets: Range<Offset>,
    /// Nothing whole follows in the file.
    pub is_last: bool,
}

/// A part of a segment's file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Piece<'w> {
    /// A batch in its place whose checksum matches.
    Batch {
        /// Where it begins.
        position: u64,
        /// The batch, put right.
        batch: BatchView<'w>,
        /// What is wrong with it in the file, in fields that the checksum does not cover and only one value fits.
        corrections: Vec<Correction>,
    },
    /// Bytes that are no such batch.
    Damaged(DamagedBytes),
    /// Zeros up to the end of the file, as where room was allocated ahead.
    Zeros {
        /// Where they begin.
        position: u64,
        /// How many there are.
        bytes: u64,
    },
    /// The end of the file.
    End,
}

/// See the module.
#[derive(Debug)]
pub struct SegmentWalk<'f> {
    file: &'f dyn File,
    survey: Survey<'f>,
    bytes: u64,
    /// Where the next segment begins, if that is known.
    limit: Option<Offset>,
    position: u64,
    expected: Offset,
    /// A batch that was put right.
    corrected: Vec<u8>,
    ended: bool,
}

impl<'f> SegmentWalk<'f> {
    /// Walks the first `bytes` of the file of the segment at `base`, all of whose offsets lie below `limit`, the base of
    /// the next one.
    pub fn new(file: &'f dyn File, base: Offset, bytes: u64, limit: Option<Offset>) -> Self {
        Self::from_position(file, base, bytes, limit, (0, base))
    }

    /// As [`SegmentWalk::new`], from a batch boundary where a batch with this offset or a later one begins.
    pub fn from_position(
        file: &'f dyn File,
        base: Offset,
        bytes: u64,
        limit: Option<Offset>,
        (position, expected): (u64, Offset),
    ) -> Self {
        let whole = Frame::whole(base, bytes, limit.unwrap_or(Offset::MAX)).verified();
        let survey = Survey::new(file, Frame { position, expected, ..whole });
        Self { file, survey, bytes, limit, position, expected, corrected: Vec::new(), ended: false }
    }

    /// The lowest offset that the next batch may have.
    pub fn expected(&self) -> Offset {
        self.expected
    }

    /// Where the next piece begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The next piece. After [`Piece::Zeros`] and [`Piece::End`] there is only [`Piece::End`].
    ///
    /// # Errors
    /// What the file answers.
    pub fn next_piece(&mut self) -> io::Result<Piece<'_>> {
        if self.ended {
            return Ok(Piece::End);
        }
        match self.survey.step()? {
            Step::End => {
                self.ended = true;
                Ok(Piece::End)
            }
            Step::Zeros(position) => {
                (self.ended, self.position) = (true, self.bytes);
                Ok(Piece::Zeros { position, bytes: self.bytes - position })
            }
            Step::Damage(stretch) => self.damaged(stretch),
            Step::Batch(sound) => self.batch(&sound),
        }
    }

    fn batch(&mut self, sound: &Sound) -> io::Result<Piece<'_>> {
        let position = sound.position;
        self.position = position + sound.header.total_bytes() as u64;
        self.expected = sound.header.next_offset();
        let in_file = self.survey.bytes_of(sound)?;
        let bytes = if sound.fixes.is_empty() {
            in_file
        } else {
            self.corrected = sound.put_right(in_file);
            &self.corrected
        };
        let (batch, _) = BatchView::parse(bytes).map_err(io::Error::other)?;
        let corrections = sound.fixes.iter().map(|fix| Correction { field: fix.field, was: fix.was, is: fix.is });
        Ok(Piece::Batch { position, batch, corrections: corrections.collect() })
    }

    fn damaged(&mut self, stretch: Stretch) -> io::Result<Piece<'_>> {
        let Stretch { position, bytes, mut offsets, what } = stretch;
        self.position = position + bytes;
        let is_last = self.position >= self.bytes;
        if is_last && self.limit.is_none() {
            offsets.end = self.end_of_last(position, offsets.start)?;
        }
        self.expected = offsets.end;
        Ok(Piece::Damaged(DamagedBytes { position, bytes, what, offsets, is_last }))
    }

    /// Up to where the last batch went, by its header, if that is not nonsense as well.
    fn end_of_last(&self, position: u64, expected: Offset) -> io::Result<Offset> {
        let is_likely = |header: &BatchHeader| {
            let is_whole = position + header.total_bytes() as u64 == self.bytes;
            is_whole && header.base_offset() == expected && header.last_offset() >= expected
        };
        Ok(match read_header(self.file, position, self.bytes)? {
            HeaderScan::Batch(header) if is_likely(&header) => header.next_offset(),
            _ => expected,
        })
    }
}
