//! What coordinators keep in their internal topics, byte for byte as Kafka writes it.
//!
//! A record's key begins with the version of its kind, its value with the version of the value; from some version on a
//! value is *flexible*: lengths are unsigned variable-length integers, one higher than the length, and structures end with
//! tagged fields, which are passed over.

mod group;
mod offset;
mod transaction;

use bytes::{BufMut, Bytes, BytesMut};

pub use group::{GroupMember, GroupValue};
pub use offset::OffsetValue;
pub use transaction::{TransactionStatus, TransactionValue, TransactionalKey};

/// The most tagged fields, array elements and the like are trusted no further than the bytes that are left.
const ELEMENT_BYTES_MIN: usize = 1;

/// Why a record of an internal topic cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The bytes end inside of a field.
    #[error("the record ends inside of {0}")]
    CutOff(&'static str),
    /// A length or count that cannot be.
    #[error("{field} has a length of {length}")]
    Length {
        /// Of what.
        field: &'static str,
        /// As the record has it.
        length: i64,
    },
    /// A text that is not UTF-8.
    #[error("{0} is no text")]
    NoText(&'static str),
    /// A version that Kafka 4.1 does not have.
    #[error("version {version} of {of} is unknown")]
    Version {
        /// Of what.
        of: &'static str,
        /// As the record has it.
        version: i16,
    },
    /// A number that stands for nothing.
    #[error("{value} is no {of}")]
    Value {
        /// Of what.
        of: &'static str,
        /// As the record has it.
        value: i64,
    },
}

/// The key of a record in `__consumer_offsets`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OffsetsKey {
    /// An offset that a group has committed (versions 0 and 1).
    Offset {
        /// The group.
        group: String,
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// The members of a group of the classic protocol (version 2).
    Group(String),
    /// Of a protocol that is not spoken here (KIP-848 and later); such records are passed over.
    Other(i16),
}

impl OffsetsKey {
    /// Reads the key of a record of `__consumer_offsets`.
    ///
    /// # Errors
    /// If the bytes are no key.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut read = Reader::new(bytes);
        match read.i16("the key's version")? {
            0 | 1 => Ok(Self::Offset {
                group: read.text("the key's group", false)?,
                topic: read.text("the key's topic", false)?,
                partition: read.i32("the key's partition")?,
            }),
            2 => Ok(Self::Group(read.text("the key's group", false)?)),
            version @ 3.. => Ok(Self::Other(version)),
            version => Err(RecordError::Version { of: "a key of the offsets topic", version }),
        }
    }

    /// The key as Kafka 4.1 writes it; empty for [`OffsetsKey::Other`], which is never written.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Offset { group, topic, partition } => encode_offset_key(group, topic, *partition),
            Self::Group(group) => {
                let mut bytes = BytesMut::with_capacity(4 + group.len());
                bytes.put_i16(2);
                put_text(&mut bytes, group);
                bytes.freeze()
            }
            Self::Other(_) => Bytes::new(),
        }
    }
}

/// What [`OffsetsKey::Offset`] encodes to: most records are of offsets, and have no key of their own made for it.
pub(crate) fn encode_offset_key(group: &str, topic: &str, partition: i32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(10 + group.len() + topic.len());
    bytes.put_i16(1);
    put_text(&mut bytes, group);
    put_text(&mut bytes, topic);
    bytes.put_i32(partition);
    bytes.freeze()
}

/// Reads big-endian fields, never past the end.
struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { left: bytes }
    }

    fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], RecordError> {
        let (taken, left) = self.left.split_at_checked(length).ok_or(RecordError::CutOff(field))?;
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], RecordError> {
        let (taken, left) = self.left.split_first_chunk().ok_or(RecordError::CutOff(field))?;
        self.left = left;
        Ok(*taken)
    }

    fn i8(&mut self, field: &'static str) -> Result<i8, RecordError> {
        self.array(field).map(i8::from_be_bytes)
    }

    fn i16(&mut self, field: &'static str) -> Result<i16, RecordError> {
        self.array(field).map(i16::from_be_bytes)
    }

    fn i32(&mut self, field: &'static str) -> Result<i32, RecordError> {
        self.array(field).map(i32::from_be_bytes)
    }

    fn i64(&mut self, field: &'static str) -> Result<i64, RecordError> {
        self.array(field).map(i64::from_be_bytes)
    }

    fn unsigned_varint(&mut self, field: &'static str) -> Result<u32, RecordError> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array(field)?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value)
                    .map_err(|_| RecordError::Length { field, length: i64::try_from(value).unwrap_or(i64::MAX) });
            }
        }
        Err(RecordError::Length { field, length: i64::MAX })
    }

    /// A length, `None` for null; `wide` where a length that is not flexible takes four bytes.
    fn length(&mut self, field: &'static str, flexible: bool, wide: bool) -> Result<Option<usize>, RecordError> {
        let length = if flexible {
            i64::from(self.unsigned_varint(field)?) - 1
        } else if wide {
            i64::from(self.i32(field)?)
        } else {
            i64::from(self.i16(field)?)
        };
        match length {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| RecordError::Length { field, length }),
        }
    }

    fn nullable_text(&mut self, field: &'static str, flexible: bool) -> Result<Option<String>, RecordError> {
        let Some(length) = self.length(field, flexible, false)? else { return Ok(None) };
        let text = std::str::from_utf8(self.take(length, field)?).map_err(|_| RecordError::NoText(field))?;
        Ok(Some(text.to_owned()))
    }

    fn text(&mut self, field: &'static str, flexible: bool) -> Result<String, RecordError> {
        self.nullable_text(field, flexible)?.ok_or(RecordError::Length { field, length: -1 })
    }

    fn bytes(&mut self, field: &'static str, flexible: bool) -> Result<Bytes, RecordError> {
        let length = self.length(field, flexible, true)?.unwrap_or(0);
        Ok(Bytes::copy_from_slice(self.take(length, field)?))
    }

    /// The number of elements of an array, each of which takes a byte at least; `None` for null.
    fn count(&mut self, field: &'static str, flexible: bool) -> Result<Option<usize>, RecordError> {
        let Some(count) = self.length(field, flexible, true)? else { return Ok(None) };
        if count > self.left.len() / ELEMENT_BYTES_MIN {
            return Err(RecordError::CutOff(field));
        }
        Ok(Some(count))
    }

    /// Passes over the tagged fields at the end of a structure, or has `known` read those it knows.
    fn tags(
        &mut self,
        field: &'static str,
        mut known: impl FnMut(u32, &mut Self) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        for _ in 0..self.unsigned_varint(field)? {
            let tag = self.unsigned_varint(field)?;
            let length = self.unsigned_varint(field)?;
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let mut inside = Reader::new(self.take(length, field)?);
            known(tag, &mut inside)?;
        }
        Ok(())
    }

    fn no_tags_known(&mut self, field: &'static str) -> Result<(), RecordError> {
        self.tags(field, |_, _| Ok(()))
    }
}

/// A text after its length in two bytes. Names and ids come from requests, whose texts are no longer than that.
fn put_text(bytes: &mut BytesMut, text: &str) {
    put_nullable_text(bytes, Some(text));
}

fn put_nullable_text(bytes: &mut BytesMut, text: Option<&str>) {
    let Some(text) = text else { return bytes.put_i16(-1) };
    let length = i16::try_from(text.len()).unwrap_or(i16::MAX);
    bytes.put_i16(length);
    bytes.put_slice(&text.as_bytes()[..usize::from(length.unsigned_abs())]);
}

/// A length or count of a flexible version.
fn put_compact_count(bytes: &mut BytesMut, count: usize) {
    put_unsigned_varint(bytes, u32::try_from(count).unwrap_or(u32::MAX - 1) + 1);
}

/// A text of a flexible version.
fn put_compact_text(bytes: &mut BytesMut, text: &str) {
    put_compact_count(bytes, text.len());
    bytes.put_slice(text.as_bytes());
}

fn put_bytes(bytes: &mut BytesMut, field: &[u8]) {
    bytes.put_i32(i32::try_from(field.len()).unwrap_or(i32::MAX));
    bytes.put_slice(field);
}

fn put_unsigned_varint(bytes: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        bytes.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.put_u8(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_kafkas() {
        let offset = OffsetsKey::Offset { group: "g".into(), topic: "books".into(), partition: 7 };
        assert_eq!(&offset.encode()[..], b"\0\x01\0\x01g\0\x05books\0\0\0\x07");
        let group = OffsetsKey::Group("g".into());
        assert_eq!(&group.encode()[..], b"\0\x02\0\x01g");
        for key in [offset, group] {
            assert_eq!(OffsetsKey::decode(&key.encode()).unwrap(), key);
        }
        assert_eq!(OffsetsKey::decode(b"\0\x05anything").unwrap(), OffsetsKey::Other(5));
        assert_eq!(OffsetsKey::decode(b"\0\x02\0\x05g"), Err(RecordError::CutOff("the key's group")));
        assert!(matches!(OffsetsKey::decode(b"\xff\xff"), Err(RecordError::Version { version: -1, .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), version in -1_i16..6) {
            let mut with_version = version.to_be_bytes().to_vec();
            with_version.extend(&bytes);
            for bytes in [&bytes, &with_version] {
                let _ = OffsetsKey::decode(bytes);
                let _ = OffsetValue::decode(bytes);
                let _ = GroupValue::decode(bytes);
                let _ = TransactionalKey::decode(bytes);
                let _ = TransactionValue::decode(bytes);
            }
        }
    }
}
