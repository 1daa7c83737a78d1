//! Building batches: for embedders, tools and tests. (A broker stores the batches that clients built.)

use std::io;

use crate::batch::{Attributes, BatchHeader, CRC_START, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC};
use crate::compression::{self, Codec};
use crate::record::{write_varint, write_varlong};
use crate::{LeaderEpoch, Offset, TimestampMs};

/// A record to put into a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When the record was created.
    pub timestamp: TimestampMs,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// Names and values of the headers.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
}

impl<'a> Record<'a> {
    /// A record with a value and no key or headers.
    pub fn new(timestamp: TimestampMs, value: &'a [u8]) -> Self {
        Self { timestamp, key: None, value: Some(value), headers: &[] }
    }

    /// A record with a key and a value.
    pub fn keyed(timestamp: TimestampMs, key: &'a [u8], value: &'a [u8]) -> Self {
        Self { timestamp, key: Some(key), value: Some(value), headers: &[] }
    }
}

/// Builds one batch.
///
/// ```
/// use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
///
/// let now = TimestampMs(1_700_000_000_000);
/// let mut builder = BatchBuilder::new(Codec::Lz4);
/// builder.push(Record::new(now, b"hello")).push(Record::keyed(now, b"key", b"world"));
/// let batch: Vec<u8> = builder.build();
/// ```
#[derive(Clone, Debug)]
pub struct BatchBuilder {
    header: BatchHeader,
    codec: Codec,
    records: Vec<u8>,
}

impl BatchBuilder {
    /// A batch without records, at offset 0, without producer.
    pub fn new(codec: Codec) -> Self {
        let header = BatchHeader {
            base_offset: Offset::ZERO,
            batch_length: 0,
            leader_epoch: LeaderEpoch::NONE,
            magic: MAGIC,
            crc: 0,
            attributes: Attributes::default().with_codec(codec),
            last_offset_delta: 0,
            base_timestamp: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 0,
        };
        Self { header, codec, records: Vec::new() }
    }

    /// Makes it the batch of an idempotent producer.
    pub fn producer(mut self, id: i64, epoch: i16, base_sequence: i32) -> Self {
        (self.header.producer_id, self.header.producer_epoch, self.header.base_sequence) = (id, epoch, base_sequence);
        self
    }

    /// Makes it part of a transaction.
    pub fn transactional(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_transactional();
        self
    }

    /// Makes it a control batch, as brokers write them.
    pub fn control(mut self) -> Self {
        self.header.attributes = self.header.attributes.with_control();
        self
    }

    /// Sets the base offset: batches as they stand in a log. Producers send 0.
    pub fn base_offset(mut self, offset: Offset) -> Self {
        self.header.base_offset = offset;
        self
    }

    /// Sets the leader epoch: batches as they stand in a log. Producers send none.
    pub fn leader_epoch(mut self, epoch: LeaderEpoch) -> Self {
        self.header.leader_epoch = epoch;
        self
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record<'_>) -> &mut Self {
        if self.header.record_count == 0 {
            self.header.base_timestamp = record.timestamp;
        }
        let mut body = vec![0];
        write_varlong(&mut body, record.timestamp.0.wrapping_sub(self.header.base_timestamp.0));
        write_varint(&mut body, self.header.record_count);
        write_sized(&mut body, record.key);
        write_sized(&mut body, record.value);
        write_varint(&mut body, length(record.headers.len()));
        for (name, value) in record.headers {
            write_sized(&mut body, Some(name.as_bytes()));
            write_sized(&mut body, *value);
        }
        write_varint(&mut self.records, length(body.len()));
        self.records.extend_from_slice(&body);
        self.header.last_offset_delta = self.header.record_count;
        self.header.record_count += 1;
        self.header.max_timestamp = self.header.max_timestamp.max(record.timestamp);
        self
    }

    /// The number of records so far.
    pub fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// The size of the records so far in bytes, before compression.
    pub fn records_bytes(&self) -> usize {
        self.records.len()
    }

    /// The batch. Without records it is a header alone, as compaction leaves it behind.
    ///
    /// # Panics
    /// If the batch would be larger than 2 GiB, which its length field cannot say, and where the codec is
    /// [not built in](Codec::is_built_in): [`BatchBuilder::try_build`] gives an error then.
    pub fn build(&self) -> Vec<u8> {
        self.try_build().expect("codecs that are built in write any bytes to memory")
    }

    /// As [`BatchBuilder::build`].
    ///
    /// # Errors
    /// Kind `Unsupported` with [`CodecNotBuiltIn`](compression::CodecNotBuiltIn) without the feature `compression`.
    ///
    /// # Panics
    /// If the batch would be larger than 2 GiB, which its length field cannot say.
    pub fn try_build(&self) -> io::Result<Vec<u8>> {
        let compressed;
        let records = if self.codec == Codec::None || self.header.record_count == 0 {
            &self.records
        } else {
            compressed = compression::compress(self.codec, &self.records)?;
            &compressed
        };
        let batch_length = length(HEADER_BYTES - LENGTH_PREFIX_BYTES + records.len());
        let mut header = BatchHeader { batch_length, ..self.header };
        header.crc = crc32c::crc32c_append(crc32c::crc32c(&header.encode()[CRC_START..]), records);
        Ok([&header.encode(), records.as_slice()].concat())
    }
}

/// Appends a length and the bytes, -1 for none.
fn write_sized(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    write_varint(out, bytes.map_or(-1, |bytes| length(bytes.len())));
    out.extend_from_slice(bytes.unwrap_or_default());
}

fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).expect("a batch is at most 2 GiB")
}

#[cfg(test)]
mod tests;
