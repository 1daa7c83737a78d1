//! Message sets, the formats before record batches (magic 0 and 1): read, verified and served as they are, never made.
//!
//! ```text
//!  0        8      12     16  17  18          18 / 26
//!  ┌────────┬──────┬──────┬───┬───┬───────────┬────────────┬─────┬──────────────┬───────┐
//!  │ offset │ size │ crc  │mag│att│ timestamp │ key length │ key │ value length │ value │
//!  └────────┴──────┴──────┴───┴───┴───────────┴────────────┴─────┴──────────────┴───────┘
//!           │      │      └ CRC-32 (IEEE) covers all from here   └ i32 each, -1: null
//!           │      └ the size counts from here   └ i64, magic 1 only
//! ```
//!
//! Each message stands alone. A compressed one is a wrapper: its value is a compressed set of messages, and its offset is
//! that of the last of them. Inside, offsets are absolute with magic 0; with magic 1 they count from any number, and the
//! last one stands for the wrapper's. Here a message or a wrapper is a batch whose only certain offset is its last.
//! Source of the layout: Kafka's `LegacyRecord` and `AbstractLegacyRecordBatch`.

use std::io::{self, Read};

use byteorder::{BigEndian, ByteOrder};

use crate::batch::{
    Attributes, BatchFault, BatchHeader, BatchView, HEADER_BYTES, LENGTH_PREFIX_BYTES, MAGIC_END, TimestampType,
};
use crate::compression::{self, Codec};
use crate::records::{RecordsError, StoredRecord};
use crate::{LeaderEpoch, Offset, TimestampMs};

/// The first byte that the checksum covers: the format version.
const CRC_COVERS_FROM: usize = 16;
const CRC: usize = 12;
const ATTRIBUTES_AT: usize = 17;
/// With magic 0 the length of the key is here.
const TIMESTAMP_AT: usize = 18;
const TIMESTAMP_END: usize = 26;
/// Bytes of the lengths of key and value.
const LENGTHS_BYTES: usize = 8;

/// Whether a format version is one of these.
pub(crate) fn is_legacy(magic: i8) -> bool {
    matches!(magic, 0 | 1)
}

/// Bytes up to the length of the key.
fn fixed_bytes(magic: i8) -> usize {
    if magic == 0 { TIMESTAMP_AT } else { TIMESTAMP_END }
}

/// The least that the size field of a message can hold.
pub(crate) fn length_min(magic: i8) -> i32 {
    i32::try_from(fixed_bytes(magic) + LENGTHS_BYTES - LENGTH_PREFIX_BYTES).unwrap_or(i32::MAX)
}

/// The header of the batch that a message or wrapper is, from its first bytes (padded with zeros if it has fewer).
pub(crate) fn decode_header(bytes: &[u8; HEADER_BYTES]) -> BatchHeader {
    let magic = i8::from_be_bytes([bytes[CRC_COVERS_FROM]]);
    let attributes = attributes(magic, bytes[ATTRIBUTES_AT]);
    let timestamp = match magic {
        0 => TimestampMs::NONE,
        _ => TimestampMs(BigEndian::read_i64(&bytes[TIMESTAMP_AT..TIMESTAMP_END])),
    };
    BatchHeader {
        base_offset: Offset(BigEndian::read_i64(&bytes[..8])),
        batch_length: BigEndian::read_i32(&bytes[8..LENGTH_PREFIX_BYTES]),
        leader_epoch: LeaderEpoch::NONE,
        magic,
        crc: BigEndian::read_u32(&bytes[CRC..CRC_COVERS_FROM]),
        attributes,
        last_offset_delta: 0,
        base_timestamp: timestamp,
        max_timestamp: timestamp,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: if attributes.codec() == Ok(Codec::None) { 1 } else { -1 },
    }
}

/// The bits that mean something: the codec, and with magic 1 the timestamp type.
fn attributes(magic: i8, byte: u8) -> Attributes {
    Attributes(i16::from(byte & if magic == 0 { 0b0111 } else { 0b1111 }))
}

/// The CRC-32 of a message, as it should be stored in it.
pub(crate) fn computed_crc(message: &[u8]) -> u32 {
    crc32fast::hash(message.get(CRC_COVERS_FROM..).unwrap_or_default())
}

/// Whether `prefix` begins a message of these formats whose key and value do not add up to its length.
///
/// Without reading a message as a whole this is what tells it from a record batch whose format version was damaged: there
/// those places hold bits of the checksum or of timestamps. With too few bytes to tell it finds no fault.
pub(crate) fn has_wrong_lengths(prefix: &[u8], total: usize) -> bool {
    let Some(magic) = prefix.get(CRC_COVERS_FROM).map(|&magic| i8::from_be_bytes([magic])) else { return false };
    if !is_legacy(magic) {
        return false;
    }
    // What key and value have to share. The value takes all that the key leaves.
    let mut left = total.saturating_sub(fixed_bytes(magic) + LENGTHS_BYTES);
    let mut at = fixed_bytes(magic);
    for is_value in [false, true] {
        let Some(length) = prefix.get(at..at + 4).map(BigEndian::read_i32) else { return false };
        let bytes = match usize::try_from(length) {
            Ok(bytes) => bytes,
            Err(_) if length == -1 => 0,
            Err(_) => return true,
        };
        if bytes > left || (is_value && bytes < left) {
            return true;
        }
        left -= bytes;
        at += 4 + bytes;
    }
    false
}

/// A message in memory, taken apart.
#[derive(Clone, Copy, Debug)]
struct Message<'a> {
    offset: Offset,
    magic: i8,
    attributes: Attributes,
    timestamp: TimestampMs,
    key: Option<&'a [u8]>,
    value: Option<&'a [u8]>,
}

impl<'a> Message<'a> {
    /// Takes apart a whole message, whose length was checked to be that of `bytes`.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let prefix = bytes.first_chunk::<MAGIC_END>()?;
        let magic = i8::from_be_bytes([prefix[CRC_COVERS_FROM]]);
        let attributes = attributes(magic, *bytes.get(ATTRIBUTES_AT)?);
        let timestamp = match magic {
            0 => TimestampMs::NONE,
            1 => TimestampMs(BigEndian::read_i64(bytes.get(TIMESTAMP_AT..TIMESTAMP_END)?)),
            _ => return None,
        };
        let (key, rest) = split_sized(bytes.get(fixed_bytes(magic)..)?)?;
        let (value, rest) = split_sized(rest)?;
        let offset = Offset(BigEndian::read_i64(&prefix[..8]));
        rest.is_empty().then_some(Self { offset, magic, attributes, timestamp, key, value })
    }
}

/// Splits off a length and as many bytes; -1 is null.
fn split_sized(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    match i32::from_be_bytes(*length) {
        -1 => Some((None, rest)),
        length => rest.split_at_checked(usize::try_from(length).ok()?).map(|(taken, rest)| (Some(taken), rest)),
    }
}

/// The records of a message or wrapper, one at a time, in memory bounded by the largest of them.
pub(crate) struct MessageReader<'a> {
    source: Source<'a>,
    /// Inner offsets are this much below the absolute ones.
    offset_shift: i64,
    /// The wrapper's time, if all messages in it were stamped with that.
    append_time: Option<TimestampMs>,
}

enum Source<'a> {
    Message(Option<Message<'a>>),
    Wrapped(Inner<'a>),
}

impl<'a> MessageReader<'a> {
    /// Reads the records of a batch of magic 0 or 1, which may grow to `max_bytes` by decompression.
    pub(crate) fn new(batch: &BatchView<'a>, max_bytes: u64) -> Result<Self, RecordsError> {
        let message = Message::parse(batch.bytes()).ok_or(RecordsError::Message)?;
        let codec = batch.attributes().codec().map_err(RecordsError::Codec)?;
        if codec == Codec::None {
            return Ok(Self { source: Source::Message(Some(message)), offset_shift: 0, append_time: None });
        }
        let set = message.value.ok_or(RecordsError::Message)?;
        let open = || Inner::new(message.magic, codec, set, max_bytes);
        let offset_shift = match message.magic {
            0 => 0,
            // Only the last message tells how far off they all are.
            _ => match open()?.last_offset()? {
                Some(last) => message.offset.0.checked_sub(last).ok_or(RecordsError::Message)?,
                None => 0,
            },
        };
        let append_time =
            (message.attributes.timestamp_type() == TimestampType::LogAppendTime).then_some(message.timestamp);
        Ok(Self { source: Source::Wrapped(open()?), offset_shift, append_time })
    }

    /// The next record, checked against its own checksum.
    pub(crate) fn next(&mut self) -> Result<Option<StoredRecord<'_>>, RecordsError> {
        let message = match &mut self.source {
            Source::Message(message) => message.take(),
            Source::Wrapped(inner) => inner.next()?,
        };
        let Some(Message { offset, timestamp, key, value, .. }) = message else { return Ok(None) };
        let offset = offset.0.checked_add(self.offset_shift).filter(|offset| *offset >= 0);
        let offset = Offset(offset.ok_or(RecordsError::Message)?);
        Ok(Some(StoredRecord::without_headers(offset, self.append_time.unwrap_or(timestamp), key, value)))
    }

    /// Offset and time of the next record, whose key and value are passed over.
    pub(crate) fn next_place(&mut self) -> Result<Option<(Offset, TimestampMs)>, RecordsError> {
        let (offset, timestamp) = match &mut self.source {
            Source::Message(message) => match message.take() {
                Some(message) => (message.offset.0, message.timestamp),
                None => return Ok(None),
            },
            Source::Wrapped(inner) => match inner.skip()? {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        let offset = offset.checked_add(self.offset_shift).filter(|offset| *offset >= 0);
        Ok(Some((Offset(offset.ok_or(RecordsError::Message)?), self.append_time.unwrap_or(timestamp))))
    }
}

/// The messages in a wrapper, as they come out of the decompressor.
struct Inner<'a> {
    reader: Box<dyn Read + 'a>,
    codec: Codec,
    magic: i8,
    message: Vec<u8>,
}

impl<'a> Inner<'a> {
    fn new(magic: i8, codec: Codec, set: &'a [u8], max_bytes: u64) -> Result<Self, RecordsError> {
        let reader = match (magic, codec) {
            (0, Codec::Lz4) => compression::decompress_lz4_with_any_header_checksum(set, max_bytes),
            _ => compression::decompress(codec, set, max_bytes),
        };
        let reader = reader.map_err(|source| RecordsError::Compression { codec, source })?;
        Ok(Self { reader: Box::new(io::BufReader::new(reader)), codec, magic, message: Vec::new() })
    }

    /// Reads up to the fields that all have in one place. `None` at the end.
    fn read_prefix(&mut self) -> Result<Option<usize>, RecordsError> {
        let fixed = fixed_bytes(self.magic);
        self.message.clear();
        self.read(fixed)?;
        if self.message.is_empty() {
            return Ok(None);
        }
        let prefix = self.message.get(..fixed).ok_or(RecordsError::Message)?;
        let magic = prefix.get(CRC_COVERS_FROM).map(|&magic| i8::from_be_bytes([magic]));
        let length = prefix.get(8..LENGTH_PREFIX_BYTES).map_or(0, BigEndian::read_i32);
        // Kafka refuses other versions than the wrapper's in it, and wrappers in wrappers.
        let is_wrapper = prefix.get(ATTRIBUTES_AT).is_none_or(|byte| byte & 0b0111 != 0);
        if magic != Some(self.magic) || is_wrapper || length < length_min(self.magic) {
            return Err(RecordsError::Message);
        }
        let total = usize::try_from(length).map_err(|_| RecordsError::Message)? + LENGTH_PREFIX_BYTES;
        Ok(Some(total - fixed))
    }

    /// Appends `count` bytes to the message, or all there are: the buffer grows as bytes come, not as they are claimed.
    fn read(&mut self, count: usize) -> Result<(), RecordsError> {
        let codec = self.codec;
        let read = (&mut self.reader).take(count as u64).read_to_end(&mut self.message);
        read.map(|_| ()).map_err(|source| RecordsError::Compression { codec, source })
    }

    fn next(&mut self) -> Result<Option<Message<'_>>, RecordsError> {
        let Some(rest) = self.read_prefix()? else { return Ok(None) };
        let total = self.message.len() + rest;
        self.read(rest)?;
        if self.message.len() < total {
            return Err(RecordsError::Message);
        }
        let stored = self.message.get(CRC..CRC_COVERS_FROM).map_or(0, BigEndian::read_u32);
        let computed = computed_crc(&self.message);
        if stored != computed {
            return Err(RecordsError::Crc(BatchFault::Crc { stored, computed }));
        }
        Message::parse(&self.message).map(Some).ok_or(RecordsError::Message)
    }

    /// Passes over a message. Its offset as it stands, and its time.
    fn skip(&mut self) -> Result<Option<(i64, TimestampMs)>, RecordsError> {
        let Some(rest) = self.read_prefix()? else { return Ok(None) };
        let skipped = io::copy(&mut (&mut self.reader).take(rest as u64), &mut io::sink());
        let skipped = skipped.map_err(|source| RecordsError::Compression { codec: self.codec, source })?;
        if skipped < rest as u64 {
            return Err(RecordsError::Message);
        }
        let offset = self.message.get(..8).map_or(0, BigEndian::read_i64);
        let timestamp = match self.magic {
            0 => TimestampMs::NONE,
            _ => TimestampMs(self.message.get(TIMESTAMP_AT..TIMESTAMP_END).map_or(0, BigEndian::read_i64)),
        };
        Ok(Some((offset, timestamp)))
    }

    /// The last offset as it stands.
    fn last_offset(mut self) -> Result<Option<i64>, RecordsError> {
        let mut last = None;
        while let Some((offset, _)) = self.skip()? {
            last = Some(offset);
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests;
