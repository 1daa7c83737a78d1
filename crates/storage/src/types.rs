//! The vocabulary that all crates share: small values without I/O.
//!
//! An *offset* counts records in a partition, a *position* counts bytes in a file and an *index* counts entries in
//! memory. Only the first is a type of its own here; the other two are plain integers named for what they are.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::sync::Arc;

/// The number of a record in its partition. The first record ever is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(pub i64);

impl Offset {
    /// The offset of the first record of a log that was never trimmed.
    pub const ZERO: Self = Self(0);
    /// The largest offset.
    pub const MAX: Self = Self(i64::MAX);

    /// The offset `records` further on, or `None` past [`Offset::MAX`].
    pub fn checked_add(self, records: i64) -> Option<Self> {
        self.0.checked_add(records).map(Self)
    }

    /// The offset right after this one, staying at [`Offset::MAX`].
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Saturates at the ends of the range: arithmetic on an offset read from a file never panics or wraps.
impl Add<i64> for Offset {
    type Output = Self;
    fn add(self, records: i64) -> Self {
        Self(self.0.saturating_add(records))
    }
}

/// The number of records between two offsets, saturating.
impl Sub for Offset {
    type Output = i64;
    fn sub(self, other: Self) -> i64 {
        self.0.saturating_sub(other.0)
    }
}

/// The number of a leadership of one partition; each new leader gets a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaderEpoch(pub i32);

impl LeaderEpoch {
    /// "No epoch known", as Kafka writes it.
    pub const NONE: Self = Self(-1);

    /// Whether this is a real epoch and not [`LeaderEpoch::NONE`].
    pub fn is_some(self) -> bool {
        self.0 >= 0
    }
}

impl fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since 1970-01-01 UTC: the clock as callers pass it in, and the timestamps of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimestampMs(pub i64);

impl TimestampMs {
    /// "No timestamp", as Kafka writes it.
    pub const NONE: Self = Self(-1);

    /// Milliseconds from `earlier` to `self`, negative if it lies after, saturating.
    pub fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `ms` later, saturating.
    pub fn after(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

impl fmt::Display for TimestampMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A topic's identity across deletion and re-creation: 16 bytes, written as 22 characters of base64url without padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// The id that stands for "none" on the wire and is refused in `partition.metadata`.
    pub const ZERO: Self = Self([0; 16]);
}

const BASE64_URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = u128::from_be_bytes(self.0);
        // 21 groups of six bits from the top, then the last two bits padded with zeros to six.
        for group in 0..22u32 {
            let six = if group < 21 { (value >> (128 - 6 * (group + 1))) & 63 } else { (value & 3) << 4 };
            let character = BASE64_URL.get(usize::try_from(six).unwrap_or(0)).copied().unwrap_or(b'A');
            write!(f, "{}", char::from(character))?;
        }
        Ok(())
    }
}

/// A text that is no topic id: not 22 base64url characters, or bits set past the 128th.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no topic id: expected 22 characters of base64url")]
pub struct InvalidTopicId(pub String);

impl FromStr for TopicId {
    type Err = InvalidTopicId;

    fn from_str(text: &str) -> Result<Self, InvalidTopicId> {
        let invalid = || InvalidTopicId(text.to_owned());
        if text.len() != 22 {
            return Err(invalid());
        }
        let mut value = 0u128;
        for (at, character) in text.bytes().enumerate() {
            let six = BASE64_URL.iter().position(|&known| known == character).ok_or_else(invalid)?;
            let six = u128::try_from(six).map_err(|_| invalid())?;
            if at < 21 {
                value = (value << 6) | six;
            } else if six & 0b1111 == 0 {
                value = (value << 2) | (six >> 4);
            } else {
                return Err(invalid());
            }
        }
        Ok(Self(value.to_be_bytes()))
    }
}

/// One partition of a topic; its directory is `<topic>-<partition>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_round_trip_as_kafka_writes_them() {
        let id = TopicId([0x1b, 0xfe, 0x44, 0x09, 0x00, 0xff, 0x80, 0x7f, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(id.to_string().len(), 22);
        assert_eq!(id.to_string().parse::<TopicId>(), Ok(id));
        assert_eq!(TopicId::ZERO.to_string(), "AAAAAAAAAAAAAAAAAAAAAA");
        assert_eq!(TopicId([0xff; 16]).to_string(), "_____________________w");
        for bad in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAA+A", "AAAAAAAAAAAAAAAAAAAAAAA"] {
            assert!(bad.parse::<TopicId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Offset::MAX + 1, Offset::MAX);
        assert_eq!(Offset(3) - Offset(5), -2);
        assert_eq!(Offset::MAX.checked_add(1), None);
        assert_eq!(TimestampMs(5).since(TimestampMs(i64::MIN)), i64::MAX);
    }
}
