//! Building batches: for embedders, tools and tests. (A broker stores the batches that clients built.)

use std::borrow::Cow;
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
    /// Room for the header, and the records behind it.
    bytes: Vec<u8>,
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
        Self { header, codec, bytes: vec![0; HEADER_BYTES] }
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
        let timestamp_delta = record.timestamp.0.wrapping_sub(self.header.base_timestamp.0);
        let (offset_delta, headers) = (self.header.record_count, record.headers);
        let sized_headers =
            headers.iter().map(|(name, value)| sized_bytes(Some(name.as_bytes())) + sized_bytes(*value));
        let fixed = 1 + varlong_bytes(timestamp_delta) + varlong_bytes(offset_delta.into());
        let content = sized_bytes(record.key) + sized_bytes(record.value) + varlong_bytes(length(headers.len()).into());
        let body_bytes = fixed + content + sized_headers.sum::<usize>();
        let out = &mut self.bytes;
        write_varint(out, length(body_bytes));
        out.push(0);
        write_varlong(out, timestamp_delta);
        write_varint(out, offset_delta);
        write_sized(out, record.key);
        write_sized(out, record.value);
        write_varint(out, length(headers.len()));
        for (name, value) in headers {
            write_sized(out, Some(name.as_bytes()));
            write_sized(out, *value);
        }
        self.header.last_offset_delta = self.header.record_count;
        self.header.record_count += 1;
        self.header.max_timestamp = self.header.max_timestamp.max(record.timestamp);
        self
    }

    /// The most bytes that a record takes in a batch.
    pub(crate) fn record_bytes_max(record: &Record<'_>) -> usize {
        /// Its length, attributes, two deltas and the number of its headers.
        const AROUND_BYTES: usize = 5 + 1 + 10 + 5 + 5;
        let headers =
            record.headers.iter().map(|(name, value)| sized_bytes(Some(name.as_bytes())) + sized_bytes(*value));
        AROUND_BYTES + sized_bytes(record.key) + sized_bytes(record.value) + headers.sum::<usize>()
    }

    /// The number of records so far.
    pub fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// The size of the records so far in bytes, before compression.
    pub fn records_bytes(&self) -> usize {
        self.records().len()
    }

    fn records(&self) -> &[u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or_default()
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
        if self.is_stored_as_it_is() {
            return Ok([&self.header_of(self.records()), self.records()].concat());
        }
        let records = compression::compress(self.codec, self.records())?;
        Ok([&self.header_of(&records), records.as_slice()].concat())
    }

    /// The batch without a copy of it, where nothing is compressed. The builder can go on after it.
    pub(crate) fn build_in_place(&mut self) -> io::Result<Cow<'_, [u8]>> {
        if !self.is_stored_as_it_is() {
            return self.try_build().map(Cow::Owned);
        }
        let header = self.header_of(self.records());
        if let Some(place) = self.bytes.first_chunk_mut() {
            *place = header;
        }
        Ok(Cow::Borrowed(&self.bytes))
    }

    /// Takes the records out again. Their room is kept.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
        self.header = BatchHeader {
            last_offset_delta: 0,
            base_timestamp: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
            record_count: 0,
            ..self.header
        };
    }

    fn is_stored_as_it_is(&self) -> bool {
        self.codec == Codec::None || self.header.record_count == 0
    }

    fn header_of(&self, records: &[u8]) -> [u8; HEADER_BYTES] {
        let batch_length = length(HEADER_BYTES - LENGTH_PREFIX_BYTES + records.len());
        let mut header = BatchHeader { batch_length, ..self.header };
        header.crc = crc32c::crc32c_append(crc32c::crc32c(&header.encode()[CRC_START..]), records);
        header.encode()
    }
}

/// Appends a length and the bytes, -1 for none.
fn write_sized(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    write_varint(out, bytes.map_or(-1, |bytes| length(bytes.len())));
    out.extend_from_slice(bytes.unwrap_or_default());
}

/// The length of what [`write_sized`] writes.
fn sized_bytes(bytes: Option<&[u8]>) -> usize {
    bytes.map_or(1, |bytes| varlong_bytes(length(bytes.len()).into()) + bytes.len())
}

/// The length of a zig-zag coded integer.
fn varlong_bytes(value: i64) -> usize {
    let coded = ((value << 1) ^ (value >> 63)).cast_unsigned();
    let bits = u64::BITS - (coded | 1).leading_zeros();
    bits.div_ceil(7) as usize
}

fn length(bytes: usize) -> i32 {
    i32::try_from(bytes).expect("a batch is at most 2 GiB")
}

#[cfg(test)]
mod tests;
