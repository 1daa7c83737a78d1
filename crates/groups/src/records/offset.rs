//! A committed offset.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Reader, RecordError, put_compact_text, put_text};

/// The value of an offset's record, versions 0 to 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetValue {
    /// The next offset that the group reads.
    pub offset: i64,
    /// The epoch of the leader from whom the last record was read, or -1.
    pub leader_epoch: i32,
    /// What the client wrote beside it.
    pub metadata: String,
    /// When it was committed.
    pub commit_timestamp_ms: i64,
    /// When it goes, if the client said so (version 1, clients before Kafka 2.1); -1 otherwise.
    pub expire_timestamp_ms: i64,
}

impl OffsetValue {
    /// Reads the value of a record.
    ///
    /// # Errors
    /// If the bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut read = Reader::new(bytes);
        let version = read.i16("the offset's version")?;
        if !(0..=4).contains(&version) {
            return Err(RecordError::Version { of: "a committed offset", version });
        }
        let flexible = version >= 4;
        let offset = read.i64("the offset")?;
        let leader_epoch = if version >= 3 { read.i32("the offset's leader epoch")? } else { -1 };
        let metadata = read.text("the offset's metadata", flexible)?;
        let commit_timestamp_ms = read.i64("the offset's time")?;
        let expire_timestamp_ms = if version == 1 { read.i64("the offset's end")? } else { -1 };
        if flexible {
            read.no_tags_known("the offset's tags")?;
        }
        Ok(Self { offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms })
    }

    /// The value as Kafka 4.1 writes it: version 4, and 1 if the client said when it goes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(40 + self.metadata.len());
        if self.expire_timestamp_ms >= 0 {
            bytes.put_i16(1);
            bytes.put_i64(self.offset);
            put_text(&mut bytes, &self.metadata);
            bytes.put_i64(self.commit_timestamp_ms);
            bytes.put_i64(self.expire_timestamp_ms);
        } else {
            bytes.put_i16(4);
            bytes.put_i64(self.offset);
            bytes.put_i32(self.leader_epoch);
            put_compact_text(&mut bytes, &self.metadata);
            bytes.put_i64(self.commit_timestamp_ms);
            bytes.put_u8(0);
        }
        bytes.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_read_and_two_are_written() {
        let value = OffsetValue {
            offset: 10,
            leader_epoch: 4,
            metadata: "m".into(),
            commit_timestamp_ms: 3,
            expire_timestamp_ms: -1,
        };
        assert_eq!(&value.encode()[..], b"\0\x04\0\0\0\0\0\0\0\x0a\0\0\0\x04\x02m\0\0\0\0\0\0\0\x03\0");
        let before = b"\0\x03\0\0\0\0\0\0\0\x0a\0\0\0\x04\0\x01m\0\0\0\0\0\0\0\x03";
        assert_eq!(OffsetValue::decode(before).unwrap(), value);
        assert_eq!(OffsetValue::decode(&value.encode()).unwrap(), value);
        let ends = OffsetValue { expire_timestamp_ms: 9, leader_epoch: -1, ..value.clone() };
        assert_eq!(ends.encode()[..2], [0, 1]);
        assert_eq!(OffsetValue::decode(&ends.encode()).unwrap(), ends);
        let bare = OffsetValue { leader_epoch: -1, ..value.clone() };
        for version in [0, 2] {
            let bytes = [&[0, version][..], b"\0\0\0\0\0\0\0\x0a\0\x01m\0\0\0\0\0\0\0\x03"].concat();
            assert_eq!(OffsetValue::decode(&bytes).unwrap(), bare);
        }
        let flexible = b"\0\x04\0\0\0\0\0\0\0\x0a\0\0\0\x04\x02m\0\0\0\0\0\0\0\x03\x01\x09\x02ab";
        assert_eq!(OffsetValue::decode(flexible).unwrap(), value);
        assert!(matches!(OffsetValue::decode(b"\0\x05"), Err(RecordError::Version { version: 5, .. })));
    }
}
