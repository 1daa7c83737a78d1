//! The header of a record batch (format version 2) and borrowed views of batches of every format.
//!
//! ```text
//!  0        8       12      16  17     21       23              27             35            43         51    53       57     61
//!  ┌────────┬───────┬───────┬───┬──────┬────────┬───────────────┬──────────────┬─────────────┬──────────┬─────┬────────┬──────┬─────────
//!  │ base   │ batch │leader │mag│ crc  │ attri- │ last offset   │ base         │ max         │ producer │ epo │ base   │record│ records…
//!  │ offset │ length│ epoch │ic │      │ butes  │ delta         │ timestamp    │ timestamp   │ id       │ ch  │sequence│count │
//!  └────────┴───────┴───────┴───┴──────┴────────┴───────────────┴──────────────┴─────────────┴──────────┴─────┴────────┴──────┴─────────
//!           └ counts what follows it    └ CRC-32C covers all from here to the end of the batch
//! ```
//!
//! All integers are big-endian. The checksum leaves out the first 17 bytes and itself, so that a leader can put in the
//! base offset and its epoch without touching the rest; the price is that damage in those 17 bytes has to be found by
//! other means. Source of the layout: Kafka's `DefaultRecordBatch`.
//!
//! Offset, length and format version stand in the same place in the older formats, whose messages are read as batches
//! too: [`crate::legacy`].

use std::io;
use std::ops::Deref;

use byteorder::{BigEndian, ByteOrder};

use crate::compression::Codec;
use crate::fs::File;
use crate::io::FileExt;
use crate::legacy;
use crate::record::Records;
use crate::{LeaderEpoch, Offset, TimestampMs};

/// Bytes of a batch header: the smallest batch, one without records, has just these.
pub const HEADER_BYTES: usize = 61;
/// Bytes of the base offset and length fields, which the batch length does not count.
pub const LENGTH_PREFIX_BYTES: usize = 12;
/// Bytes needed to tell a batch's length and format version, in every version.
pub const MAGIC_END: usize = 17;
/// The format version this crate writes. It reads the older ones, 0 and 1, as well.
pub const MAGIC: i8 = 2;
/// The first byte that the checksum covers.
pub const CRC_START: usize = 21;

/// Bytes of the field a batch begins with.
pub(crate) const BASE_OFFSET_BYTES: usize = 8;

const BASE_OFFSET: usize = 0;
const BATCH_LENGTH: usize = 8;
const LEADER_EPOCH: usize = 12;
const MAGIC_AT: usize = 16;
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const BASE_TIMESTAMP: usize = 27;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;

/// The smallest length field of any format.
const ENTRY_LENGTH_MIN: i32 = 14;
/// What the length field of a batch without records holds.
const BATCH_LENGTH_MIN: i32 = 49;

/// What the timestamps of a batch's records mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimestampType {
    /// Each record carries the time its producer gave it.
    #[default]
    CreateTime,
    /// All records carry the time of the append, which is the batch's max timestamp.
    LogAppendTime,
}

/// The attribute bits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC: i16 = 0b111;
    const LOG_APPEND_TIME: i16 = 1 << 3;
    const TRANSACTIONAL: i16 = 1 << 4;
    const CONTROL: i16 = 1 << 5;
    const DELETE_HORIZON: i16 = 1 << 6;
    const KNOWN: i16 = 0x7f;

    /// The compression of the records, or the number found if no codec has it.
    ///
    /// # Errors
    /// The number, which no codec has.
    pub fn codec(self) -> Result<Codec, u8> {
        let id = (self.0 & Self::CODEC).to_be_bytes()[1];
        Codec::from_id(id).ok_or(id)
    }

    /// What the timestamps mean.
    pub fn timestamp_type(self) -> TimestampType {
        if self.0 & Self::LOG_APPEND_TIME == 0 { TimestampType::CreateTime } else { TimestampType::LogAppendTime }
    }

    /// Whether the records belong to a transaction.
    pub fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether this is a marker that brokers write, and that no consumer sees.
    pub fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp holds the time after which compaction may drop the batch's tombstones.
    pub fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// Whether bits are set that have no meaning in this format version.
    pub fn has_unknown_bits(self) -> bool {
        self.0 & !Self::KNOWN != 0
    }

    pub(crate) fn with_codec(self, codec: Codec) -> Self {
        Self((self.0 & !Self::CODEC) | i16::from(codec.id()))
    }

    pub(crate) fn with_timestamp_type(self, timestamp_type: TimestampType) -> Self {
        match timestamp_type {
            TimestampType::CreateTime => Self(self.0 & !Self::LOG_APPEND_TIME),
            TimestampType::LogAppendTime => Self(self.0 | Self::LOG_APPEND_TIME),
        }
    }

    pub(crate) fn with_transactional(self) -> Self {
        Self(self.0 | Self::TRANSACTIONAL)
    }

    pub(crate) fn with_delete_horizon(self) -> Self {
        Self(self.0 | Self::DELETE_HORIZON)
    }

    /// Those of a batch without records: what was said of the records is gone.
    pub(crate) fn without_records(self) -> Self {
        Self(self.0 & (Self::LOG_APPEND_TIME | Self::TRANSACTIONAL | Self::CONTROL))
    }

    pub(crate) fn with_control(self) -> Self {
        Self(self.0 | Self::CONTROL)
    }
}

/// The fields of a batch header, decoded.
///
/// Decoding a header checks nothing: the values are what the bytes say. [`BatchView::parse`] checks the length and the
/// format version, [`BatchView::crc_matches`] the rest.
///
/// A message of the formats 0 and 1 counts as a batch. Its offset is both the first and the last, although a compressed
/// one holds those before it too ([`BatchView::first_offset`] looks inside); it has no leader epoch and no producer, its
/// time (none with format 0) is the largest, and the number of records of a compressed one is not known: -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    pub(crate) base_offset: Offset,
    pub(crate) batch_length: i32,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) magic: i8,
    pub(crate) crc: u32,
    pub(crate) attributes: Attributes,
    pub(crate) last_offset_delta: i32,
    pub(crate) base_timestamp: TimestampMs,
    pub(crate) max_timestamp: TimestampMs,
    pub(crate) producer_id: i64,
    pub(crate) producer_epoch: i16,
    pub(crate) base_sequence: i32,
    pub(crate) record_count: i32,
}

impl BatchHeader {
    /// Takes the fields out of a header's bytes. Messages of the formats 0 and 1 may be shorter; zeros follow them then.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        if legacy::is_legacy(i8::from_be_bytes([bytes[MAGIC_AT]])) {
            return legacy::decode_header(bytes);
        }
        Self {
            base_offset: Offset(BigEndian::read_i64(&bytes[BASE_OFFSET..BATCH_LENGTH])),
            batch_length: BigEndian::read_i32(&bytes[BATCH_LENGTH..LEADER_EPOCH]),
            leader_epoch: LeaderEpoch(BigEndian::read_i32(&bytes[LEADER_EPOCH..MAGIC_AT])),
            magic: i8::from_be_bytes([bytes[MAGIC_AT]]),
            crc: BigEndian::read_u32(&bytes[CRC..ATTRIBUTES]),
            attributes: Attributes(BigEndian::read_i16(&bytes[ATTRIBUTES..LAST_OFFSET_DELTA])),
            last_offset_delta: BigEndian::read_i32(&bytes[LAST_OFFSET_DELTA..BASE_TIMESTAMP]),
            base_timestamp: TimestampMs(BigEndian::read_i64(&bytes[BASE_TIMESTAMP..MAX_TIMESTAMP])),
            max_timestamp: TimestampMs(BigEndian::read_i64(&bytes[MAX_TIMESTAMP..PRODUCER_ID])),
            producer_id: BigEndian::read_i64(&bytes[PRODUCER_ID..PRODUCER_EPOCH]),
            producer_epoch: BigEndian::read_i16(&bytes[PRODUCER_EPOCH..BASE_SEQUENCE]),
            base_sequence: BigEndian::read_i32(&bytes[BASE_SEQUENCE..RECORD_COUNT]),
            record_count: BigEndian::read_i32(&bytes[RECORD_COUNT..HEADER_BYTES]),
        }
    }

    /// The header of the batch that begins `bytes`, of which there are at least the first 61 or as many as it is long.
    pub(crate) fn decode_first(bytes: &[u8]) -> Self {
        match bytes.first_chunk() {
            Some(header) => Self::decode(header),
            None => {
                let mut padded = [0; HEADER_BYTES];
                padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                Self::decode(&padded)
            }
        }
    }

    /// The header's bytes in format version 2, the checksum as it stands in [`BatchHeader::crc`].
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        BigEndian::write_i64(&mut bytes[BASE_OFFSET..BATCH_LENGTH], self.base_offset.0);
        BigEndian::write_i32(&mut bytes[BATCH_LENGTH..LEADER_EPOCH], self.batch_length);
        BigEndian::write_i32(&mut bytes[LEADER_EPOCH..MAGIC_AT], self.leader_epoch.0);
        bytes[MAGIC_AT] = self.magic.to_be_bytes()[0];
        BigEndian::write_u32(&mut bytes[CRC..ATTRIBUTES], self.crc);
        BigEndian::write_i16(&mut bytes[ATTRIBUTES..LAST_OFFSET_DELTA], self.attributes.0);
        BigEndian::write_i32(&mut bytes[LAST_OFFSET_DELTA..BASE_TIMESTAMP], self.last_offset_delta);
        BigEndian::write_i64(&mut bytes[BASE_TIMESTAMP..MAX_TIMESTAMP], self.base_timestamp.0);
        BigEndian::write_i64(&mut bytes[MAX_TIMESTAMP..PRODUCER_ID], self.max_timestamp.0);
        BigEndian::write_i64(&mut bytes[PRODUCER_ID..PRODUCER_EPOCH], self.producer_id);
        BigEndian::write_i16(&mut bytes[PRODUCER_EPOCH..BASE_SEQUENCE], self.producer_epoch);
        BigEndian::write_i32(&mut bytes[BASE_SEQUENCE..RECORD_COUNT], self.base_sequence);
        BigEndian::write_i32(&mut bytes[RECORD_COUNT..HEADER_BYTES], self.record_count);
        bytes
    }

    /// The offset of the first record.
    pub fn base_offset(&self) -> Offset {
        self.base_offset
    }

    /// The offset of the last record. Compaction may have removed that record, the batch still covers its offset.
    pub fn last_offset(&self) -> Offset {
        self.base_offset + i64::from(self.last_offset_delta)
    }

    /// The offset after the batch.
    pub fn next_offset(&self) -> Offset {
        self.last_offset().next()
    }

    /// The length field: the bytes that follow it.
    pub fn batch_length(&self) -> i32 {
        self.batch_length
    }

    /// The length of the whole batch in bytes, header included; the least it can be if the length field is nonsense.
    pub fn total_bytes(&self) -> usize {
        let length = self.batch_length.max(length_min(self.magic));
        usize::try_from(length).unwrap_or(0).saturating_add(LENGTH_PREFIX_BYTES)
    }

    /// The epoch of the leader that appended the batch.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// The format version.
    pub fn magic(&self) -> i8 {
        self.magic
    }

    /// Whether this is a message of format version 0 or 1, from before record batches.
    pub fn is_legacy(&self) -> bool {
        legacy::is_legacy(self.magic)
    }

    /// The checksum as stored: a CRC-32C, or for the formats 0 and 1 a CRC-32 (IEEE).
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// The attribute bits.
    pub fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// The last offset less the base offset.
    pub fn last_offset_delta(&self) -> i32 {
        self.last_offset_delta
    }

    /// What the records' timestamp deltas are added to.
    pub fn base_timestamp(&self) -> TimestampMs {
        self.base_timestamp
    }

    /// The largest timestamp of the records.
    pub fn max_timestamp(&self) -> TimestampMs {
        self.max_timestamp
    }

    /// The idempotent producer's id, -1 for none.
    pub fn producer_id(&self) -> i64 {
        self.producer_id
    }

    /// The producer's epoch, -1 for none.
    pub fn producer_epoch(&self) -> i16 {
        self.producer_epoch
    }

    /// The sequence number of the first record, -1 for none.
    pub fn base_sequence(&self) -> i32 {
        self.base_sequence
    }

    /// The sequence number of the last record, which wraps to 0 after 2^31-1; -1 for none.
    pub fn last_sequence(&self) -> i32 {
        sequence_after(self.base_sequence, self.last_offset_delta)
    }

    /// The number of records in the batch.
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// Whether the records belong to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes.is_transactional()
    }

    /// Whether this is a marker.
    pub fn is_control(&self) -> bool {
        self.attributes.is_control()
    }
}

/// The sequence number `records` after `sequence`. Sequence numbers wrap from 2^31-1 to 0; "none" (-1) stays.
pub(crate) fn sequence_after(sequence: i32, records: i32) -> i32 {
    if sequence < 0 {
        return sequence;
    }
    let sum = i64::from(sequence) + i64::from(records);
    i32::try_from(sum.rem_euclid(i64::from(i32::MAX) + 1)).unwrap_or(0)
}

/// Why bytes are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchFault {
    /// Fewer bytes than the batch needs: a partial tail, or a length field that lies.
    #[error("{have} bytes where the batch needs {need}")]
    Partial {
        /// Bytes there are.
        have: usize,
        /// Bytes the batch needs, or at least needs.
        need: usize,
    },
    /// The length field holds what no batch can have.
    #[error("a length field of {0}")]
    Length(i32),
    /// A message of version 0 or 1 of the format whose fields do not add up to its length.
    #[error("a message of format version {0} whose fields do not add up to its length")]
    Message(i8),
    /// A format version that does not exist.
    #[error("format version {0}, which does not exist")]
    Magic(i8),
    /// The checksum does not match.
    #[error("checksum {stored:08x} stored, {computed:08x} computed")]
    Crc {
        /// As stored in the header.
        stored: u32,
        /// As computed over the bytes.
        computed: u32,
    },
}

/// Bytes at `position` that are not a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no batch at byte {position}: {what}")]
pub struct BatchError {
    /// Where the batch should have begun, in bytes from the start of what was parsed.
    pub position: usize,
    /// What is wrong.
    pub what: BatchFault,
}

/// One batch in a buffer: its header, decoded, and its bytes.
#[derive(Clone, Copy, Debug)]
pub struct BatchView<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
}

impl Deref for BatchView<'_> {
    type Target = BatchHeader;
    fn deref(&self) -> &BatchHeader {
        &self.header
    }
}

impl<'a> BatchView<'a> {
    /// Reads the batch at the start of `bytes` and returns it with its length; more bytes may follow.
    ///
    /// Checks the length and the format version, not the checksum.
    ///
    /// # Errors
    /// What about the length or the format version cannot be right, or that the batch goes on past `bytes`.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, usize), BatchError> {
        let fault = |what| BatchError { position: 0, what };
        let total = frame_length(bytes).map_err(fault)?;
        let Some(batch) = bytes.get(..total) else {
            return Err(fault(BatchFault::Partial { have: bytes.len(), need: total }));
        };
        Ok((Self { header: BatchHeader::decode_first(batch), bytes: batch }, total))
    }

    /// The header's fields.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The whole batch.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// What follows the header: the records, compressed if a codec is set. Nothing in the formats 0 and 1, whose
    /// messages have no such header.
    pub fn records_bytes(&self) -> &'a [u8] {
        if self.is_legacy() { &[] } else { self.bytes.get(HEADER_BYTES..).unwrap_or_default() }
    }

    /// The records, if they lie there as they are: neither compressed nor in format 0 or 1. For any batch there is
    /// [`BatchView::read_records`].
    pub fn records(&self) -> Option<Records<'a>> {
        match self.header.attributes.codec() {
            Ok(Codec::None) if !self.is_legacy() => Some(Records::new(self.records_bytes(), self.header.record_count)),
            _ => None,
        }
    }

    /// The checksum of the bytes as they are, by the rule of their format.
    pub fn computed_crc(&self) -> u32 {
        if self.is_legacy() {
            return legacy::computed_crc(self.bytes);
        }
        crc32c::crc32c(self.bytes.get(CRC_START..).unwrap_or_default())
    }

    /// Whether the stored checksum is that of the bytes.
    pub fn crc_matches(&self) -> bool {
        self.computed_crc() == self.header.crc
    }

    /// An error that names both checksums, unless they match.
    ///
    /// # Errors
    /// [`BatchFault::Crc`] if they do not match.
    pub fn verify_crc(&self) -> Result<(), BatchFault> {
        let computed = self.computed_crc();
        if computed == self.header.crc {
            return Ok(());
        }
        Err(BatchFault::Crc { stored: self.header.crc, computed })
    }
}

/// What the length field of a batch of this format holds at least.
fn length_min(magic: i8) -> i32 {
    if legacy::is_legacy(magic) { legacy::length_min(magic) } else { BATCH_LENGTH_MIN }
}

/// The length of the batch that begins `bytes`, from its first 17 bytes (or, if they are there, a few more).
pub(crate) fn frame_length(bytes: &[u8]) -> Result<usize, BatchFault> {
    let Some(prefix) = bytes.first_chunk::<MAGIC_END>() else {
        return Err(BatchFault::Partial { have: bytes.len(), need: MAGIC_END });
    };
    let length = BigEndian::read_i32(&prefix[BATCH_LENGTH..LEADER_EPOCH]);
    let magic = i8::from_be_bytes([prefix[MAGIC_AT]]);
    if length < ENTRY_LENGTH_MIN {
        return Err(BatchFault::Length(length));
    }
    if !(0..=MAGIC).contains(&magic) {
        return Err(BatchFault::Magic(magic));
    }
    if length < length_min(magic) {
        return Err(BatchFault::Length(length));
    }
    let total = usize::try_from(length).map_err(|_| BatchFault::Length(length))?.saturating_add(LENGTH_PREFIX_BYTES);
    if legacy::has_wrong_lengths(bytes, total) {
        return Err(BatchFault::Message(magic));
    }
    Ok(total)
}

/// The batches in `bytes`, one after the other.
///
/// Ends at the end of the bytes or at a partial batch, as Kafka's readers do: a fetch may cut the last batch short.
/// [`Batches::position`] tells which it was. After an error there is nothing more.
pub fn batches(bytes: &[u8]) -> Batches<'_> {
    Batches { bytes, position: 0, failed: false }
}

/// The last of [`batches`] before their end or an error. The others are passed over by their lengths.
pub fn last_batch(bytes: &[u8]) -> Option<BatchView<'_>> {
    let (mut last, mut rest) = (None, bytes);
    while let Some((batch, behind)) = frame_length(rest).ok().and_then(|length| rest.split_at_checked(length)) {
        (last, rest) = (Some(batch), behind);
    }
    last.map(|bytes| BatchView { header: BatchHeader::decode_first(bytes), bytes })
}

/// See [`batches`].
#[derive(Clone, Debug)]
pub struct Batches<'a> {
    bytes: &'a [u8],
    position: usize,
    failed: bool,
}

impl Batches<'_> {
    /// Bytes of whole batches passed so far; the position of the next batch, of the partial tail or of the error.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        match BatchView::parse(rest) {
            Ok((batch, total)) => {
                self.position += total;
                Some(Ok(batch))
            }
            Err(BatchError { what: BatchFault::Partial { .. }, .. }) => None,
            Err(BatchError { what, .. }) => {
                self.failed = true;
                Some(Err(BatchError { position: self.position, what }))
            }
        }
    }
}

/// What [`read_header`] found in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeaderScan {
    /// A batch that ends at or before the limit.
    Batch(BatchHeader),
    /// Nothing: the position is the limit.
    End,
    /// Bytes that are no whole batch: [`BatchFault::Partial`] if they break off before the limit would allow.
    Fault(BatchFault),
}

/// Reads the header of the batch at `position` of a file whose batches end at `limit`, without reading its records.
///
/// # Errors
/// What the file answers; a file that ends before `limit` gives [`HeaderScan::Fault`].
pub fn read_header(file: &dyn File, position: u64, limit: u64) -> io::Result<HeaderScan> {
    let Some(left) = limit.checked_sub(position).filter(|&left| left > 0) else {
        return Ok(HeaderScan::End);
    };
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let mut buffer = [0; HEADER_BYTES];
    let wanted = buffer.get_mut(..left.min(HEADER_BYTES)).unwrap_or_default();
    let have = file.read_full_at(wanted, position)?;
    let total = match frame_length(buffer.get(..have).unwrap_or_default()) {
        Ok(total) => total,
        Err(fault) => return Ok(HeaderScan::Fault(fault)),
    };
    if total > left || have < total.min(HEADER_BYTES) {
        return Ok(HeaderScan::Fault(BatchFault::Partial { have: left, need: total }));
    }
    Ok(HeaderScan::Batch(BatchHeader::decode_first(buffer.get(..have.min(total)).unwrap_or_default())))
}

#[cfg(test)]
mod tests;
