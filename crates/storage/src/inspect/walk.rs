//! The batches of a segment's file and what lies between them: unlike recovery, this goes on behind damage.

use std::io;

use crate::Offset;
use crate::batch::{BatchFault, BatchHeader, BatchView, HeaderScan, read_header};
use crate::error::DamageKind;
use crate::fs::File;
use crate::scan::{Found, Walk};

use super::fault::FieldValue;
use super::resync::find_batch;

/// Bytes that hold no batch, or one that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBytes {
    /// Where they begin, in bytes from the start of the file.
    pub position: u64,
    /// How many there are.
    pub bytes: u64,
    /// What is wrong with them.
    pub what: DamageKind,
    /// The header that stands there, where its length at least was right.
    pub header: Option<BatchHeader>,
    /// The offsets that are missing in the file because of it: from what was due to what follows. Where nothing follows,
    /// the end is not known and is that of the batch, if it can be read, else the beginning.
    pub offsets: std::ops::Range<Offset>,
    /// Nothing whole follows in the file.
    pub is_last: bool,
    /// The only value that fits, where a field outside of the checksum is what is wrong.
    pub fits: Option<FieldValue>,
}

/// A part of a segment's file.
#[derive(Debug)]
pub enum Piece<'w> {
    /// A batch in its place whose checksum matches.
    Batch {
        /// Where it begins.
        position: u64,
        /// The batch.
        batch: BatchView<'w>,
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
    base: Offset,
    end: u64,
    expected: Offset,
    position: u64,
    walk: Walk<'f>,
}

/// A look at the batch that is next, before it is handed out.
enum Next {
    Batch(u64),
    Damaged(DamagedBytes),
    Zeros(u64),
    End,
}

impl<'f> SegmentWalk<'f> {
    /// Walks the first `bytes` of the file of the segment at `base`, from its beginning.
    pub fn new(file: &'f dyn File, base: Offset, bytes: u64) -> Self {
        Self::from_position(file, base, bytes, 0, base)
    }

    /// As [`SegmentWalk::new`], from `position`, a batch boundary where a batch with the offset `expected` or a later one
    /// begins.
    pub fn from_position(file: &'f dyn File, base: Offset, bytes: u64, position: u64, expected: Offset) -> Self {
        Self { file, base, end: bytes, expected, position, walk: Walk::new(file, position, bytes) }
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
        match self.look()? {
            Next::End => Ok(Piece::End),
            Next::Damaged(damaged) => {
                self.position = damaged.position + damaged.bytes;
                self.walk = Walk::new(self.file, self.position, self.end);
                if damaged.what_is_misplaced() {
                    return Ok(Piece::Damaged(damaged));
                }
                self.expected = self.expected.max(damaged.offsets.end);
                Ok(Piece::Damaged(damaged))
            }
            Next::Zeros(position) => {
                let bytes = self.end - position;
                self.position = self.end;
                self.walk = Walk::new(self.file, self.end, self.end);
                Ok(Piece::Zeros { position, bytes })
            }
            Next::Batch(position) => match self.walk.batch_at(position) {
                Some(batch) => {
                    self.position = position + batch.total_bytes() as u64;
                    self.expected = batch.next_offset();
                    Ok(Piece::Batch { position, batch })
                }
                None => Ok(Piece::End),
            },
        }
    }

    fn look(&mut self) -> io::Result<Next> {
        let (header, crc) = match self.walk.next_batch()? {
            Found::End => return Ok(Next::End),
            Found::Bad(position, fault) => return self.no_batch(position, fault),
            Found::Batch(_, batch) => (*batch.header(), batch.verify_crc()),
        };
        let position = self.position;
        let bytes = header.total_bytes() as u64;
        if let Err(fault) = crc {
            return self.bad_checksum(position, header, fault);
        }
        let (first, last, expected) = (header.base_offset(), header.last_offset(), self.expected);
        let fits_segment = last - self.base <= i64::from(i32::MAX) && last != Offset::MAX;
        let mut is_misplaced = first < expected || last < first || !fits_segment;
        // The base offset is outside of the checksum. One that jumps, and that the next batch does not follow, is wrong.
        if !is_misplaced
            && first > expected
            && let HeaderScan::Batch(next) = read_header(self.file, position + bytes, self.end)?
        {
            is_misplaced = next.base_offset() < header.next_offset() && next.base_offset() >= expected;
        }
        if !is_misplaced {
            return Ok(Next::Batch(position));
        }
        let next = match read_header(self.file, position + bytes, self.end)? {
            HeaderScan::Batch(next) if next.base_offset() >= expected => Some(next.base_offset()),
            _ => None,
        };
        // A batch that fills what is missing exactly belongs there.
        let records = i64::from(header.last_offset_delta()) + 1;
        let fills = next.is_some_and(|next| records > 0 && expected.checked_add(records) == Some(next));
        Ok(Next::Damaged(DamagedBytes {
            position,
            bytes,
            what: DamageKind::Offsets { first, last, expected },
            header: Some(header),
            offsets: expected..next.unwrap_or(expected),
            is_last: position + bytes >= self.end,
            fits: fills.then_some(FieldValue::BaseOffset(expected)),
        }))
    }

    /// A batch whose length leads to another batch, or to the end of the file, was there; else the length may be what is
    /// wrong with it.
    fn bad_checksum(&mut self, position: u64, header: BatchHeader, fault: BatchFault) -> io::Result<Next> {
        let after = position + header.total_bytes() as u64;
        let next = match read_header(self.file, after, self.end)? {
            HeaderScan::End => {
                let last = header.last_offset();
                let is_likely = header.base_offset() >= self.expected && last - self.base <= i64::from(i32::MAX);
                let end = if is_likely && last >= header.base_offset() { last.next() } else { self.expected };
                Some((end, true))
            }
            HeaderScan::Batch(next) if self.may_follow(next.base_offset()) => Some((next.base_offset(), false)),
            _ => None,
        };
        let Some((end, is_last)) = next else { return self.no_batch(position, fault) };
        Ok(Next::Damaged(DamagedBytes {
            position,
            bytes: after - position,
            what: fault.into(),
            header: Some(header),
            offsets: self.expected..end,
            is_last,
            fits: None,
        }))
    }

    fn may_follow(&self, offset: Offset) -> bool {
        offset >= self.expected && offset - self.base <= i64::from(i32::MAX)
    }

    /// No batch begins at `position`: everything to the next one that does is damaged.
    fn no_batch(&mut self, position: u64, fault: BatchFault) -> io::Result<Next> {
        if matches!(fault, BatchFault::Length(0) | BatchFault::Partial { .. })
            && Walk::new(self.file, position, self.end).only_zeros_left()?
        {
            return Ok(Next::Zeros(position));
        }
        let found = find_batch(self.file, position + 1, self.end, self.base, self.expected)?;
        let next = match found {
            Some(at) => match read_header(self.file, at, self.end)? {
                HeaderScan::Batch(next) => next.base_offset(),
                _ => self.expected,
            },
            None => self.expected,
        };
        Ok(Next::Damaged(DamagedBytes {
            position,
            bytes: found.unwrap_or(self.end) - position,
            what: fault.into(),
            header: None,
            offsets: self.expected..next.max(self.expected),
            is_last: found.is_none(),
            fits: None,
        }))
    }
}

impl DamagedBytes {
    /// Whether this is a batch that is whole, in a place where it cannot be.
    pub fn what_is_misplaced(&self) -> bool {
        matches!(self.what, DamageKind::Offsets { .. })
    }
}
