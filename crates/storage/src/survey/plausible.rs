//! What the bytes of a batch must fulfil whatever lies around it.

use std::ops::Range;

use crate::LeaderEpoch;
use crate::batch::{BatchHeader, CRC_START, MAGIC, MAGIC_END};

/// The checksum of a batch, piece by piece: which one it is depends on the format version.
pub(super) enum Checksum {
    Crc32c(u32),
    Crc32(crc32fast::Hasher),
}

impl Checksum {
    pub(super) fn new(header: &BatchHeader) -> Self {
        if header.is_legacy() { Self::Crc32(crc32fast::Hasher::new()) } else { Self::Crc32c(0) }
    }

    /// The first byte it covers.
    pub(super) fn covers_from(&self) -> usize {
        match self {
            Self::Crc32c(_) => CRC_START,
            Self::Crc32(_) => MAGIC_END - 1,
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(crc) => *crc = crc32c::crc32c_append(*crc, bytes),
            Self::Crc32(hasher) => hasher.update(bytes),
        }
    }

    pub(super) fn finish(self) -> u32 {
        match self {
            Self::Crc32c(crc) => crc,
            Self::Crc32(hasher) => hasher.finalize(),
        }
    }
}

/// Whether a header may begin with these bytes, by the two fields that rule out most.
pub(super) fn may_begin_batch(bytes: &[u8], offsets: &Range<i64>) -> bool {
    let base = bytes.first_chunk().map(|base| i64::from_be_bytes(*base));
    let magic = bytes.get(MAGIC_END - 1).copied();
    base.is_some_and(|base| offsets.contains(&base))
        && magic.is_some_and(|magic| i8::try_from(magic).is_ok_and(|magic| magic <= MAGIC))
}

/// Whether no field of a header has a value that no program writes.
pub(super) fn has_plausible_fields(header: &BatchHeader) -> bool {
    let records = i64::from(header.record_count());
    header.last_offset_delta() >= 0
        && !header.attributes().has_unknown_bits()
        && header.attributes().codec().is_ok()
        // Compaction takes records away and leaves the offsets.
        && records <= i64::from(header.last_offset_delta()) + 1
}

/// Whether a number is an epoch or says that there is none.
pub(super) fn is_an_epoch(epoch: LeaderEpoch) -> bool {
    epoch.is_some() || epoch == LeaderEpoch::NONE
}
