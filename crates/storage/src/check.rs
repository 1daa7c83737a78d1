//! The check of a batch that a producer sent, before a leader appends it.
//!
//! What comes from a client is not trusted: one batch exactly, its checksum, its header's counts, and every record in
//! it, down to the lengths, are checked before a byte is stored. Followers and consumers rely on it: they take a stored
//! batch's header at its word. Source of the rules: Kafka's `LogValidator`, `ProduceRequest.validateRecords` and
//! `UnifiedLog.analyzeAndValidateRecords`.

use std::io::{self, BufReader};

use crate::batch::{
    Attributes, BatchError, BatchFault, BatchHeader, BatchView, CRC_START, HEADER_BYTES, MAGIC_END, TimestampType,
};
use crate::builder::Record;
use crate::checksum;
use crate::compression::{self, Codec, CodecNotBuiltIn, TooMuchOutput};
use crate::legacy::is_legacy;
use crate::producers::ProducerBatch;
use crate::record::{RecordFault, RecordShape, RecordSource, RecordStream, WalkError};
use crate::{LeaderEpoch, Offset, TimestampMs};

/// Who made a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A client, by a Produce request.
    #[default]
    Client,
    /// A coordinator in a broker, which also writes markers, and batches of a producer id without sequence numbers.
    Coordinator,
}

/// What a topic demands of the batches its producers send. The defaults are Kafka 4.1's. There will be more: write
/// `ProduceRules { max_message_bytes, ..ProduceRules::default() }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProduceRules {
    /// Who made the batch (a client).
    pub origin: Origin,
    /// The largest batch in bytes, as sent (`max.message.bytes`, 1 MiB + 12).
    pub max_message_bytes: usize,
    /// Whose clock stamps the records (`message.timestamp.type`, create time).
    pub timestamp_type: TimestampType,
    /// How far a record's time may lie before the broker's, in ms (`message.timestamp.before.max.ms`, unlimited).
    pub timestamp_before_max_ms: i64,
    /// How far a record's time may lie after the broker's, in ms (`message.timestamp.after.max.ms`, an hour). One record
    /// from the far future would keep its segment from ever expiring.
    pub timestamp_after_max_ms: i64,
    /// Whether each record needs a key: topics that are compacted (`cleanup.policy`, no).
    pub requires_keys: bool,
    /// The most a batch may hold after decompression, in bytes (256 MiB; Kafka has no such limit). It bounds the time a
    /// small batch of zeros can cost here and at each consumer; memory is bounded anyway.
    pub decompressed_bytes_max: u64,
}

impl Default for ProduceRules {
    fn default() -> Self {
        Self {
            origin: Origin::Client,
            max_message_bytes: 1024 * 1024 + 12,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            requires_keys: false,
            decompressed_bytes_max: 256 * 1024 * 1024,
        }
    }
}

impl ProduceRules {
    /// Whether a record may break a rule on records; [`CheckedBatch::check`] has the last word.
    pub(crate) fn may_refuse(&self, record: &Record<'_>, now: TimestampMs) -> bool {
        let (before, after) = (self.timestamp_before_max_ms, self.timestamp_after_max_ms);
        let timestamp = record.timestamp;
        (self.requires_keys && record.key.is_none())
            || timestamp.0 < 0
            || timestamp.since(now) > after
            || now.since(timestamp) > before
    }
}

/// At most so many records are named in a refusal. The batch is refused as a whole, and a small compressed batch may
/// hold millions of bad records.
pub const RECORD_ERRORS_MAX: usize = 1000;

/// What is wrong with one record of a refused batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordError {
    /// The record's index in the batch.
    pub index: i32,
    /// The reason, in words for a person.
    pub message: String,
}

/// Why a batch is refused. Nothing of a refused batch is stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchRefused {
    /// The bytes are damaged (Kafka's CORRUPT_MESSAGE, 2).
    #[error("the batch is corrupt at byte {position}: {what}")]
    Corrupt {
        /// Where in the bytes sent.
        position: usize,
        /// What is wrong.
        what: CorruptBatch,
    },
    /// A message format from before record batches (UNSUPPORTED_FOR_MESSAGE_FORMAT, 43, or INVALID_RECORD, 87, where the
    /// request itself allows only batches: Produce version 3 and up).
    #[error("messages of format version {magic}; record batches of version 2 are accepted")]
    UnsupportedMagic {
        /// The version found.
        magic: i8,
    },
    /// The batch is larger than the topic allows (MESSAGE_TOO_LARGE, 10).
    #[error("a batch of {bytes} bytes where {max} are allowed")]
    TooLarge {
        /// The batch's size.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The batch is larger than allowed once decompressed (MESSAGE_TOO_LARGE, 10, on which producers split a batch).
    #[error("a batch of more than {max} bytes after decompression")]
    TooLargeDecompressed {
        /// The limit.
        max: u64,
    },
    /// The batch breaks a rule (INVALID_RECORD, 87).
    #[error("{reason}")]
    InvalidRecord {
        /// The rule.
        reason: InvalidBatch,
        /// The records to blame, if it is not the batch as a whole; at most [`RECORD_ERRORS_MAX`].
        errors: Vec<RecordError>,
    },
    /// Records with times that the topic does not take (INVALID_TIMESTAMP, 32).
    #[error("records with timestamps out of range")]
    InvalidTimestamp {
        /// The records to blame; at most [`RECORD_ERRORS_MAX`].
        errors: Vec<RecordError>,
    },
    /// A compression that does not exist (UNSUPPORTED_COMPRESSION_TYPE, 76).
    #[error("unknown compression {id}")]
    UnsupportedCodec {
        /// The number found.
        id: u8,
    },
    /// A compression that this build cannot look into (UNSUPPORTED_COMPRESSION_TYPE, 76).
    #[error(transparent)]
    CodecNotBuiltIn(#[from] CodecNotBuiltIn),
}

/// How a batch is damaged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptBatch {
    /// Its frame or checksum.
    #[error("{0}")]
    Frame(BatchFault),
    /// Its compressed records.
    #[error("{codec} data that does not decompress: {cause}")]
    Compression {
        /// The codec.
        codec: Codec,
        /// What the decompressor says.
        cause: String,
    },
}

/// Which rule for batches is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBatch {
    /// No bytes at all.
    #[error("no batch")]
    Missing,
    /// More bytes than one batch.
    #[error("{0} bytes after the batch: exactly one is accepted")]
    NotOne(usize),
    /// A base offset other than 0: offsets are the leader's to give.
    #[error("a base offset of {0} where producers send 0")]
    BaseOffset(Offset),
    /// A record count that is not positive, or not the last offset delta + 1.
    #[error("{record_count} records with a last offset delta of {last_offset_delta}")]
    Count {
        /// The record count.
        record_count: i32,
        /// The last offset delta.
        last_offset_delta: i32,
    },
    /// A marker, which only brokers write.
    #[error("a control batch from a producer")]
    Control,
    /// Attribute bits that producers do not set: a delete horizon, or bits without meaning.
    #[error("attribute bits {0:#06x} that no producer sets")]
    Attributes(i16),
    /// A producer id without a sequence number or epoch.
    #[error("producer {producer_id} with epoch {producer_epoch} and sequence {base_sequence}")]
    Producer {
        /// The producer's id.
        producer_id: i64,
        /// Its epoch.
        producer_epoch: i16,
        /// The sequence number.
        base_sequence: i32,
    },
    /// Bytes that are no record; the record is named in the errors.
    #[error("{0}")]
    Record(RecordFault),
    /// Records that break a rule; they are named in the errors.
    #[error("records that break the topic's rules")]
    Records,
    /// LZ4 blocks that refer to earlier ones, which Java consumers cannot read.
    #[error("an LZ4 frame with linked blocks")]
    LinkedLz4,
}

/// A producer's batch that passed the check, with the header it will be stored with.
///
/// The bytes stay where they are: a leader's append writes [`CheckedBatch::stamped`]'s header and rest in one vectored
/// write, without copying or changing them.
#[derive(Clone, Debug)]
pub struct CheckedBatch<B> {
    bytes: B,
    header: BatchHeader,
}

impl<B: AsRef<[u8]>> CheckedBatch<B> {
    /// Checks that `bytes` are one batch that a producer may append to a topic with these rules, at this time.
    ///
    /// # Errors
    /// The first rule broken by the batch; for rules on records, all records that break one.
    pub fn check(bytes: B, rules: &ProduceRules, now: TimestampMs) -> Result<Self, BatchRefused> {
        let header = check_bytes(bytes.as_ref(), rules, now)?;
        Ok(Self { bytes, header })
    }

    /// A batch that was built here, of records that keep to the rules.
    pub(crate) fn built(bytes: B, rules: &ProduceRules, now: TimestampMs) -> Result<Self, BatchError> {
        let (batch, _) = BatchView::parse(bytes.as_ref())?;
        let header = stored_header(&batch, rules.timestamp_type, batch.max_timestamp, now);
        Ok(Self { bytes, header })
    }

    /// The header to write for this place in the log, and the bytes that follow it.
    pub fn stamped(&self, base: Offset, epoch: LeaderEpoch) -> ([u8; HEADER_BYTES], &[u8]) {
        let header = BatchHeader { base_offset: base, leader_epoch: epoch, ..self.header };
        (header.encode(), self.bytes.as_ref().get(HEADER_BYTES..).unwrap_or_default())
    }

    /// The whole batch as it is stored, in one piece: for callers that do not write it in two.
    pub fn to_stamped_vec(&self, base: Offset, epoch: LeaderEpoch) -> Vec<u8> {
        let (header, rest) = self.stamped(base, epoch);
        [&header, rest].concat()
    }

    /// The header as it will be stored, but for the base offset (0) and the leader epoch (as sent).
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The length of the batch in bytes.
    pub fn size_bytes(&self) -> usize {
        self.header.total_bytes()
    }

    /// The number of records, at least 1; it is [`CheckedBatch::last_offset_delta`] + 1.
    pub fn record_count(&self) -> i32 {
        self.header.record_count
    }

    /// The last record's offset less the first one's.
    pub fn last_offset_delta(&self) -> i32 {
        self.header.last_offset_delta
    }

    /// The producer's id, -1 for none.
    pub fn producer_id(&self) -> i64 {
        self.header.producer_id
    }

    /// The producer's epoch, -1 for none.
    pub fn producer_epoch(&self) -> i16 {
        self.header.producer_epoch
    }

    /// The sequence number of the first record, -1 for none.
    pub fn base_sequence(&self) -> i32 {
        self.header.base_sequence
    }

    /// What the producer table wants to know; none for a producer without id.
    pub fn producer(&self) -> Option<ProducerBatch> {
        ProducerBatch::of(&self.header)
    }

    /// The largest timestamp of the records, computed from them; the broker's time if that is the topic's rule.
    pub fn max_timestamp(&self) -> TimestampMs {
        self.header.max_timestamp
    }

    /// The broker's time if records are stamped with that, else [`TimestampMs::NONE`].
    pub fn append_time(&self) -> TimestampMs {
        match self.header.attributes.timestamp_type() {
            TimestampType::CreateTime => TimestampMs::NONE,
            TimestampType::LogAppendTime => self.header.max_timestamp,
        }
    }

    /// Whether the records belong to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.header.is_transactional()
    }

    /// How the records are compressed.
    pub fn codec(&self) -> Codec {
        self.header.attributes.codec().unwrap_or_default()
    }
}

/// The check proper; not generic, so that it is compiled once.
fn check_bytes(bytes: &[u8], rules: &ProduceRules, now: TimestampMs) -> Result<BatchHeader, BatchRefused> {
    if bytes.is_empty() {
        return Err(invalid(InvalidBatch::Missing));
    }
    if let Some(magic) = bytes.get(MAGIC_END - 1).map(|&magic| i8::from_be_bytes([magic])).filter(|m| is_legacy(*m)) {
        // Whatever else may be wrong with it.
        return Err(BatchRefused::UnsupportedMagic { magic });
    }
    let (batch, total) = BatchView::parse(bytes)
        .map_err(|error| BatchRefused::Corrupt { position: error.position, what: CorruptBatch::Frame(error.what) })?;
    if total < bytes.len() {
        return Err(invalid(InvalidBatch::NotOne(bytes.len() - total)));
    }
    if batch.base_offset != Offset::ZERO {
        return Err(invalid(InvalidBatch::BaseOffset(batch.base_offset)));
    }
    if total > rules.max_message_bytes {
        return Err(BatchRefused::TooLarge { bytes: total, max: rules.max_message_bytes });
    }
    batch
        .verify_crc()
        .map_err(|what| BatchRefused::Corrupt { position: CRC_START, what: CorruptBatch::Frame(what) })?;
    let codec = check_header(&batch, rules.origin)?;
    let mut records =
        RecordRules { rules, header: *batch.header(), now, max_timestamp: TimestampMs::NONE, found: None };
    let body = batch.records_bytes();
    match codec {
        Codec::None => records.walk(&mut &*body).map_err(|error| stopped(error, codec))?,
        _ => walk_compressed(&mut records, codec, body)?,
    }
    let max_timestamp = records.finish()?;
    Ok(stored_header(&batch, rules.timestamp_type, max_timestamp, now))
}

/// The rules on the header alone.
fn check_header(header: &BatchHeader, origin: Origin) -> Result<Codec, BatchRefused> {
    let BatchHeader { attributes, record_count, last_offset_delta, .. } = *header;
    let codec = attributes.codec().map_err(|id| BatchRefused::UnsupportedCodec { id })?;
    if record_count <= 0 || last_offset_delta.checked_add(1) != Some(record_count) {
        return Err(invalid(InvalidBatch::Count { record_count, last_offset_delta }));
    }
    if attributes.is_control() && origin == Origin::Client {
        return Err(invalid(InvalidBatch::Control));
    }
    if attributes.has_delete_horizon() || attributes.has_unknown_bits() {
        return Err(invalid(InvalidBatch::Attributes(attributes.0)));
    }
    let BatchHeader { producer_id, producer_epoch, base_sequence, .. } = *header;
    let has_sequence = base_sequence >= 0 || origin == Origin::Coordinator;
    if producer_id >= 0 && (!has_sequence || producer_epoch < 0) {
        return Err(invalid(InvalidBatch::Producer { producer_id, producer_epoch, base_sequence }));
    }
    if attributes.timestamp_type() == TimestampType::LogAppendTime {
        let message = "a producer must not set the timestamp type to log append time".to_owned();
        return Err(BatchRefused::InvalidTimestamp { errors: vec![RecordError { index: 0, message }] });
    }
    Ok(codec)
}

fn walk_compressed(records: &mut RecordRules<'_>, codec: Codec, body: &[u8]) -> Result<(), BatchRefused> {
    // Enough for what codecs hand out at a time, and little beside their own buffers.
    const BUFFER_BYTES: usize = 16 * 1024;
    if !codec.is_built_in() {
        return Err(CodecNotBuiltIn { codec }.into());
    }
    let failed = |error| stopped(WalkError::Read(error), codec);
    if codec == Codec::Lz4 && compression::lz4_blocks_are_linked(body).map_err(failed)? {
        return Err(invalid(InvalidBatch::LinkedLz4));
    }
    let reader = compression::decompress(codec, body, records.rules.decompressed_bytes_max).map_err(failed)?;
    let mut source = RecordStream::new(BufReader::with_capacity(BUFFER_BYTES, reader));
    records.walk(&mut source).map_err(|error| stopped(error, codec))
}

/// Why the walk over the records stopped, and at which record.
fn stopped(error: impl Into<Stopped>, codec: Codec) -> BatchRefused {
    let Stopped { at, cause } = error.into();
    match cause {
        WalkError::Record(fault) => {
            let errors = at.map(|index| RecordError { index, message: fault.to_string() }).into_iter().collect();
            BatchRefused::InvalidRecord { reason: InvalidBatch::Record(fault), errors }
        }
        WalkError::Read(error) => match too_much(&error) {
            Some(TooMuchOutput { max }) => BatchRefused::TooLargeDecompressed { max },
            None => BatchRefused::Corrupt {
                position: HEADER_BYTES,
                what: CorruptBatch::Compression { codec, cause: error.to_string() },
            },
        },
    }
}

fn too_much(error: &io::Error) -> Option<TooMuchOutput> {
    error.get_ref()?.downcast_ref().copied()
}

/// A walk that stopped at a record, or behind the last.
struct Stopped {
    at: Option<i32>,
    cause: WalkError,
}

impl From<WalkError> for Stopped {
    fn from(cause: WalkError) -> Self {
        Self { at: None, cause }
    }
}

/// The rules on records, and what was found so far.
struct RecordRules<'a> {
    rules: &'a ProduceRules,
    header: BatchHeader,
    now: TimestampMs,
    max_timestamp: TimestampMs,
    /// Allocated when the first bad record is met.
    found: Option<Box<Found>>,
}

/// The records that break a rule.
#[derive(Default)]
struct Found {
    errors: Vec<RecordError>,
    all_are_timestamps: bool,
}

impl RecordRules<'_> {
    fn walk(&mut self, source: &mut impl RecordSource) -> Result<(), Stopped> {
        // The count is the batch's claim; nothing is allocated by it, and the walk ends where the bytes do.
        for index in 0..self.header.record_count {
            let shape = source.next_record().map_err(|cause| Stopped { at: Some(index), cause })?;
            self.check(index, &shape);
        }
        if source.at_end()? { Ok(()) } else { Err(WalkError::Record(RecordFault::Trailing).into()) }
    }

    #[inline]
    fn check(&mut self, index: i32, shape: &RecordShape) {
        if shape.offset_delta != index {
            let delta = shape.offset_delta;
            self.found(index, format!("an offset delta of {delta} where {index} is due"), false);
        }
        if self.rules.requires_keys && !shape.has_key {
            self.found(index, "a record without a key in a compacted topic".to_owned(), false);
        }
        if self.rules.timestamp_type == TimestampType::CreateTime {
            self.check_timestamp(index, shape.timestamp_delta);
        }
    }

    #[inline]
    fn check_timestamp(&mut self, index: i32, delta: i64) {
        let base = self.header.base_timestamp.0;
        let Some(timestamp) = base.checked_add(delta).map(TimestampMs) else {
            return self.found(index, format!("a timestamp of {base} + {delta}"), true);
        };
        self.max_timestamp = self.max_timestamp.max(timestamp);
        if timestamp == TimestampMs::NONE {
            return;
        }
        let (before, after) = (self.rules.timestamp_before_max_ms, self.rules.timestamp_after_max_ms);
        // No look-up by time can find a negative one, and Kafka's own producer cannot send it.
        if timestamp.0 < 0 || timestamp.since(self.now) > after || self.now.since(timestamp) > before {
            let (least, most) = (self.now.after(before.saturating_neg()).0.max(0), self.now.after(after));
            self.found(index, format!("a timestamp of {timestamp} where {least} to {most} is accepted"), true);
        }
    }

    #[cold]
    fn found(&mut self, index: i32, message: String, is_timestamp: bool) {
        let found = self.found.get_or_insert_with(|| Box::new(Found { errors: Vec::new(), all_are_timestamps: true }));
        found.all_are_timestamps &= is_timestamp;
        if found.errors.len() < RECORD_ERRORS_MAX {
            found.errors.push(RecordError { index, message });
        }
    }

    /// The largest timestamp, or the refusal; like Kafka, timestamps alone are to blame only if nothing else is.
    fn finish(self) -> Result<TimestampMs, BatchRefused> {
        match self.found.map(|found| *found) {
            None => Ok(self.max_timestamp),
            Some(Found { errors, all_are_timestamps: true }) => Err(BatchRefused::InvalidTimestamp { errors }),
            Some(Found { errors, .. }) => Err(BatchRefused::InvalidRecord { reason: InvalidBatch::Records, errors }),
        }
    }
}

/// The header to store: with the max timestamp that is true, and the timestamp type of the topic.
fn stored_header(
    batch: &BatchView<'_>,
    timestamp_type: TimestampType,
    max_timestamp: TimestampMs,
    now: TimestampMs,
) -> BatchHeader {
    let sent = *batch.header();
    let attributes: Attributes = sent.attributes.with_timestamp_type(timestamp_type);
    let max_timestamp = match timestamp_type {
        TimestampType::CreateTime => max_timestamp,
        TimestampType::LogAppendTime => now,
    };
    let mut stored = BatchHeader { attributes, max_timestamp, ..sent };
    if stored != sent {
        stored.crc = crc_with_header(&sent, &stored, batch.records_bytes().len());
    }
    stored
}

/// The checksum of a batch whose header changed, without reading the records again.
fn crc_with_header(old: &BatchHeader, new: &BatchHeader, records_bytes: usize) -> u32 {
    let crc = |header: &BatchHeader| crc32c::crc32c(&header.encode()[CRC_START..]);
    checksum::with_prefix(old.crc, crc(old), crc(new), records_bytes)
}

fn invalid(reason: InvalidBatch) -> BatchRefused {
    BatchRefused::InvalidRecord { reason, errors: Vec::new() }
}

#[cfg(test)]
mod tests;
