//! A transactional producer, in `__transaction_state`.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Reader, RecordError, put_compact_count, put_compact_text, put_text, put_unsigned_varint};

/// The key of a record in `__transaction_state`: the transactional id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionalKey(pub String);

impl TransactionalKey {
    /// Reads the key of a record.
    ///
    /// # Errors
    /// If the bytes are no such key.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut read = Reader::new(bytes);
        match read.i16("the key's version")? {
            0 => Ok(Self(read.text("the key's transactional id", false)?)),
            version => Err(RecordError::Version { of: "a key of the transactions topic", version }),
        }
    }

    /// The key as Kafka writes it.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(4 + self.0.len());
        bytes.put_i16(0);
        put_text(&mut bytes, &self.0);
        bytes.freeze()
    }
}

/// How far a producer's transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(i8)]
pub enum TransactionStatus {
    /// None has begun since the producer has its id.
    Empty = 0,
    /// Partitions take part in one.
    Ongoing = 1,
    /// It is decided that it commits; markers are being written.
    PrepareCommit = 2,
    /// It is decided that it aborts; markers are being written.
    PrepareAbort = 3,
    /// It has committed.
    CompleteCommit = 4,
    /// It has aborted.
    CompleteAbort = 5,
    /// The id is being forgotten.
    Dead = 6,
    /// A newer producer of this id takes over: the transaction aborts with a higher epoch.
    PrepareEpochFence = 7,
}

impl TransactionStatus {
    const ALL: [Self; 8] = [
        Self::Empty,
        Self::Ongoing,
        Self::PrepareCommit,
        Self::PrepareAbort,
        Self::CompleteCommit,
        Self::CompleteAbort,
        Self::Dead,
        Self::PrepareEpochFence,
    ];

    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "Empty",
            Self::Ongoing => "Ongoing",
            Self::PrepareCommit => "PrepareCommit",
            Self::PrepareAbort => "PrepareAbort",
            Self::CompleteCommit => "CompleteCommit",
            Self::CompleteAbort => "CompleteAbort",
            Self::Dead => "Dead",
            Self::PrepareEpochFence => "PrepareEpochFence",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    fn of(number: i8) -> Result<Self, RecordError> {
        let found = Self::ALL.into_iter().find(|&status| status as i8 == number);
        found.ok_or_else(|| RecordError::Value { of: "status of a transaction", value: number.into() })
    }
}

/// The value of a transactional id's record, versions 0 and 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionValue {
    /// The id its batches carry.
    pub producer_id: i64,
    /// The id before its epochs were used up, or -1.
    pub previous_producer_id: i64,
    /// The id it is to get once its transaction is done, or -1.
    pub next_producer_id: i64,
    /// The epoch its batches carry.
    pub producer_epoch: i16,
    /// How long a transaction may take.
    pub timeout_ms: i32,
    /// How far it is.
    pub status: TransactionStatus,
    /// The partitions that take part, by topic.
    pub partitions: BTreeMap<String, Vec<i32>>,
    /// When this record was written.
    pub last_update_timestamp_ms: i64,
    /// When the transaction began, or -1.
    pub start_timestamp_ms: i64,
    /// 0 for clients before transaction version 2 (KIP-890), 2 for others.
    pub client_transaction_version: i16,
}

impl TransactionValue {
    /// Reads the value of a record.
    ///
    /// # Errors
    /// If the bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut read = Reader::new(bytes);
        let version = read.i16("the transaction's version")?;
        if !(0..=1).contains(&version) {
            return Err(RecordError::Version { of: "a transaction", version });
        }
        let flexible = version >= 1;
        let mut value = Self {
            producer_id: read.i64("the producer id")?,
            previous_producer_id: -1,
            next_producer_id: -1,
            producer_epoch: read.i16("the producer epoch")?,
            timeout_ms: read.i32("the transaction's time-out")?,
            status: TransactionStatus::of(read.i8("the transaction's status")?)?,
            partitions: BTreeMap::new(),
            last_update_timestamp_ms: -1,
            start_timestamp_ms: -1,
            client_transaction_version: 0,
        };
        for _ in 0..read.count("the transaction's topics", flexible)?.unwrap_or(0) {
            let topic = read.text("a topic of the transaction", flexible)?;
            let mut partitions = Vec::new();
            for _ in 0..read.count("a topic's partitions", flexible)?.unwrap_or(0) {
                partitions.push(read.i32("a partition of the transaction")?);
            }
            if flexible {
                read.no_tags_known("a topic's tags")?;
            }
            value.partitions.insert(topic, partitions);
        }
        value.last_update_timestamp_ms = read.i64("the transaction's last time")?;
        value.start_timestamp_ms = read.i64("the transaction's first time")?;
        if flexible {
            read.tags("the transaction's tags", |tag, read| {
                match tag {
                    0 => value.previous_producer_id = read.i64("the previous producer id")?,
                    1 => value.next_producer_id = read.i64("the next producer id")?,
                    2 => value.client_transaction_version = read.i16("the client's transaction version")?,
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(value)
    }

    /// The value as Kafka 4.1 writes it: version 1.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_i16(1);
        bytes.put_i64(self.producer_id);
        bytes.put_i16(self.producer_epoch);
        bytes.put_i32(self.timeout_ms);
        bytes.put_i8(self.status as i8);
        self.put_partitions(&mut bytes);
        bytes.put_i64(self.last_update_timestamp_ms);
        bytes.put_i64(self.start_timestamp_ms);
        self.put_tags(&mut bytes);
        bytes.freeze()
    }

    fn put_partitions(&self, bytes: &mut BytesMut) {
        // An empty transaction has no list, which is not one without elements.
        if self.status == TransactionStatus::Empty {
            return bytes.put_u8(0);
        }
        put_compact_count(bytes, self.partitions.len());
        for (topic, partitions) in &self.partitions {
            put_compact_text(bytes, topic);
            put_compact_count(bytes, partitions.len());
            for &partition in partitions {
                bytes.put_i32(partition);
            }
            bytes.put_u8(0);
        }
    }

    /// Those that have their default are left out.
    fn put_tags(&self, bytes: &mut BytesMut) {
        let ids = [(0, self.previous_producer_id), (1, self.next_producer_id)];
        let ids: Vec<_> = ids.into_iter().filter(|&(_, id)| id != -1).collect();
        let version = Some(self.client_transaction_version).filter(|&version| version != 0);
        put_unsigned_varint(bytes, u32::try_from(ids.len() + usize::from(version.is_some())).unwrap_or(0));
        for (tag, id) in ids {
            put_unsigned_varint(bytes, tag);
            put_unsigned_varint(bytes, 8);
            bytes.put_i64(id);
        }
        if let Some(version) = version {
            put_unsigned_varint(bytes, 2);
            put_unsigned_varint(bytes, 2);
            bytes.put_i16(version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_comes_back_as_it_was_written() {
        let plain = TransactionValue {
            producer_id: 1000,
            previous_producer_id: -1,
            next_producer_id: -1,
            producer_epoch: 2,
            timeout_ms: 60_000,
            status: TransactionStatus::Ongoing,
            partitions: BTreeMap::from([("a".to_owned(), vec![0, 3]), ("b".to_owned(), vec![1])]),
            last_update_timestamp_ms: 5,
            start_timestamp_ms: 4,
            client_transaction_version: 0,
        };
        let tagged = TransactionValue {
            previous_producer_id: 999,
            next_producer_id: 1001,
            client_transaction_version: 2,
            status: TransactionStatus::PrepareAbort,
            ..plain.clone()
        };
        let empty = TransactionValue { partitions: BTreeMap::new(), status: TransactionStatus::Empty, ..plain.clone() };
        for value in [plain, tagged, empty] {
            let bytes = value.encode();
            assert_eq!(TransactionValue::decode(&bytes).unwrap(), value);
            for length in 0..bytes.len() {
                assert!(TransactionValue::decode(&bytes[..length]).is_err(), "cut at {length}");
            }
        }
    }

    #[test]
    fn the_version_before_is_read() {
        let head = b"\0\0\0\0\0\0\0\0\x03\xe8\0\x02\0\0\xea\x60\x01";
        let tail = b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x04";
        let bytes = [&head[..], b"\0\0\0\x01\0\x01a\0\0\0\x01\0\0\0\x07", tail].concat();
        let value = TransactionValue::decode(&bytes).unwrap();
        assert_eq!((value.producer_id, value.producer_epoch, value.timeout_ms), (1000, 2, 60_000));
        assert_eq!(value.partitions, BTreeMap::from([("a".to_owned(), vec![7])]));
        assert_eq!((value.last_update_timestamp_ms, value.start_timestamp_ms), (5, 4));
        let none = [&head[..], b"\xff\xff\xff\xff", tail].concat();
        assert_eq!(TransactionValue::decode(&none).unwrap().partitions, BTreeMap::new());
    }

    #[test]
    fn a_status_that_is_none_is_said() {
        let bytes = b"\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01\x09";
        assert_eq!(
            TransactionValue::decode(bytes),
            Err(RecordError::Value { of: "status of a transaction", value: 9 })
        );
    }

    #[test]
    fn keys_are_kafkas() {
        let key = TransactionalKey("app".into());
        assert_eq!(&key.encode()[..], b"\0\0\0\x03app");
        assert_eq!(TransactionalKey::decode(&key.encode()).unwrap(), key);
        assert!(TransactionalKey::decode(b"\0\x01\0\0").is_err());
    }
}
