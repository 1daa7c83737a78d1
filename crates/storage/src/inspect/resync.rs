//! Finding the next batch behind bytes that are none.

use std::io;

use byteorder::{BigEndian, ByteOrder};

use crate::Offset;
use crate::batch::{CRC_START, HEADER_BYTES, MAGIC_END};
use crate::fs::File;
use crate::io::FileExt;

const WINDOW_BYTES: usize = 256 << 10;

/// What a search may read to check candidates: so many times the bytes it searches, and this much in any case. Bytes
/// that were made to look like the beginnings of large batches would otherwise be summed up over and over.
const CHECKED_FACTOR: u64 = 8;
const CHECKED_BYTES_MIN: u64 = 16 << 20;

/// The first position from `from` on at which a whole batch begins that ends at or below `end`, has a matching checksum
/// and a base offset from `expected` on that the segment of `base` can hold.
pub(crate) fn find_batch(
    file: &dyn File,
    from: u64,
    end: u64,
    base: Offset,
    expected: Offset,
) -> io::Result<Option<u64>> {
    let mut checked_left = end.saturating_sub(from).saturating_mul(CHECKED_FACTOR).max(CHECKED_BYTES_MIN);
    let mut window = vec![0; WINDOW_BYTES];
    let mut position = from;
    while position < end {
        let left = usize::try_from(end - position).unwrap_or(usize::MAX).min(window.len());
        let read = file.read_full_at(window.get_mut(..left).unwrap_or_default(), position)?;
        let bytes = window.get(..read).unwrap_or_default();
        if bytes.len() < MAGIC_END {
            return Ok(None);
        }
        for (at, prefix) in bytes.windows(MAGIC_END).enumerate() {
            let Ok(prefix) = prefix.try_into() else { continue };
            let here = position + at as u64;
            let Some(candidate) = Candidate::of(prefix, end - here, base, expected) else { continue };
            if candidate.bytes > checked_left {
                return Ok(None);
            }
            checked_left -= candidate.bytes;
            if candidate.is_whole(file, here)? {
                return Ok(Some(here));
            }
        }
        if position + read as u64 >= end {
            return Ok(None);
        }
        // The last few bytes may begin a batch whose prefix goes on in the next window.
        position += (read - (MAGIC_END - 1)) as u64;
    }
    Ok(None)
}

/// Bytes that may be the beginning of a batch.
struct Candidate {
    bytes: u64,
    magic: u8,
}

impl Candidate {
    fn of(prefix: &[u8; MAGIC_END], left: u64, base: Offset, expected: Offset) -> Option<Self> {
        let [.., magic] = *prefix;
        let length = BigEndian::read_i32(&prefix[8..12]);
        let offset = Offset(BigEndian::read_i64(&prefix[..8]));
        let least = match magic {
            2 => HEADER_BYTES as u64,
            1 => 34,
            0 => 26,
            _ => return None,
        };
        let bytes = u64::try_from(length).ok()?.checked_add(12)?;
        let is_in_reach = offset >= expected && offset - base <= i64::from(i32::MAX);
        (is_in_reach && (least..=left).contains(&bytes)).then_some(Self { bytes, magic })
    }

    /// Whether the checksum matches, read piece by piece: a candidate may be as large as the file.
    fn is_whole(&self, file: &dyn File, position: u64) -> io::Result<bool> {
        let (crc_at, covered) = if self.magic == 2 { (17, CRC_START as u64) } else { (12, 16) };
        let mut stored = [0; 4];
        file.read_exact_at(&mut stored, position + crc_at)?;
        let mut buffer = vec![0; WINDOW_BYTES.min(usize::try_from(self.bytes).unwrap_or(WINDOW_BYTES))];
        let mut at = covered;
        let mut castagnoli = 0;
        let mut ieee = crc32fast::Hasher::new();
        while at < self.bytes {
            let count = usize::try_from(self.bytes - at).unwrap_or(usize::MAX).min(buffer.len());
            let chunk = buffer.get_mut(..count).unwrap_or_default();
            file.read_exact_at(chunk, position + at)?;
            if self.magic == 2 {
                castagnoli = crc32c::crc32c_append(castagnoli, chunk);
            } else {
                ieee.update(chunk);
            }
            at += count as u64;
        }
        let computed = if self.magic == 2 { castagnoli } else { ieee.finalize() };
        Ok(computed == u32::from_be_bytes(stored))
    }
}
