//! The records of a batch: checked as a stream, whatever they claim to be, or shown.

use std::io::{BufReader, Read};

use crate::batch::{BatchView, TimestampType, sequence_after};
use crate::compression::{Codec, decompress};
use crate::record::{Headers, RecordFault, RecordShape, RecordSource, RecordStream, Records, WalkError};
use crate::{Offset, TimestampMs};

/// A batch whose records take more than this is not decompressed to be shown. (To be checked it need not be in memory.)
pub const SHOWN_BYTES_MAX: u64 = 256 << 20;

/// No client can take a batch of more than this: it is Java's limit for an array.
const CHECKED_BYTES_MAX: u64 = i32::MAX as u64;

/// What a decompressor hands over at a time.
const CHUNK_BYTES: usize = 16 << 10;

/// Why the records of a batch cannot be read, or are not what its header says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsFault {
    /// A number of a codec that does not exist.
    #[error("codec {0}, which does not exist")]
    Codec(u8),
    /// The decompressor failed.
    #[error("{codec}: {cause}")]
    Compressed {
        /// The codec.
        codec: Codec,
        /// What it said.
        cause: String,
    },
    /// A record that is none.
    #[error("record {index} of {count}: {what}")]
    Record {
        /// Its number in the batch, from 0.
        index: i32,
        /// The records there should be.
        count: i32,
        /// What is wrong.
        what: RecordFault,
    },
    /// The batch says that it has a negative number of records.
    #[error("a count of {0} records")]
    Count(i32),
    /// Bytes follow the last record.
    #[error("bytes follow the last of {count} records")]
    Trailing {
        /// The records there should be.
        count: i32,
    },
    /// An offset that does not rise, or lies outside of the batch.
    #[error("record {index} has offset delta {delta} after {after}, in a batch whose last is {last}")]
    Offset {
        /// Its number in the batch, from 0.
        index: i32,
        /// Its offset less the batch's base offset.
        delta: i32,
        /// That of the record before.
        after: i32,
        /// The batch's last offset less its base offset.
        last: i32,
    },
    /// The largest timestamp of the records is not what the header says.
    #[error("the largest timestamp is {found}, the header says {stored}")]
    MaxTimestamp {
        /// That of the records.
        found: TimestampMs,
        /// That of the header.
        stored: TimestampMs,
    },
}

/// A record of a batch in a log.
#[derive(Clone, Debug)]
pub struct InspectedRecord<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: TimestampMs,
    /// Its sequence number, -1 if the batch has none.
    pub sequence: i32,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers.
    pub headers: Headers<'a>,
}

/// Gives the records of a batch to `show`, one after the other.
///
/// # Errors
/// If they cannot be read, or take more than [`SHOWN_BYTES_MAX`]; those before the fault have been shown.
pub fn for_each_record(batch: &BatchView<'_>, mut show: impl FnMut(InspectedRecord<'_>)) -> Result<(), RecordsFault> {
    let header = batch.header();
    let codec = header.attributes().codec().map_err(RecordsFault::Codec)?;
    let mut uncompressed = Vec::new();
    let bytes = match codec {
        Codec::None => batch.records_bytes(),
        codec => {
            let mut reader = decompressor(codec, batch.records_bytes(), SHOWN_BYTES_MAX)?;
            reader.read_to_end(&mut uncompressed).map_err(|error| compressed(codec, &error))?;
            &uncompressed
        }
    };
    let count = header.record_count();
    for (index, record) in (0..).zip(Records::new(bytes, count)) {
        let record = record.map_err(|what| RecordsFault::Record { index, count, what })?;
        let timestamp = match header.attributes().timestamp_type() {
            TimestampType::CreateTime => header.base_timestamp().after(record.timestamp_delta),
            TimestampType::LogAppendTime => header.max_timestamp(),
        };
        show(InspectedRecord {
            offset: header.base_offset() + i64::from(record.offset_delta),
            timestamp,
            sequence: sequence_after(header.base_sequence(), record.offset_delta),
            key: record.key,
            value: record.value,
            headers: record.headers(),
        });
    }
    Ok(())
}

/// Reads all records of a batch and compares them with its header, in memory that does not depend on what they claim.
pub(crate) fn check_records(batch: &BatchView<'_>) -> Result<(), RecordsFault> {
    let codec = batch.attributes().codec().map_err(RecordsFault::Codec)?;
    // A batch that compaction emptied has nothing to decompress, and often not even an empty frame of its codec.
    if batch.record_count() == 0 && batch.records_bytes().is_empty() {
        return Ok(());
    }
    match codec {
        Codec::None => check(batch, codec, &mut batch.records_bytes()),
        codec => {
            let reader = decompressor(codec, batch.records_bytes(), CHECKED_BYTES_MAX)?;
            check(batch, codec, &mut RecordStream::new(BufReader::with_capacity(CHUNK_BYTES, reader)))
        }
    }
}

fn check(batch: &BatchView<'_>, codec: Codec, source: &mut impl RecordSource) -> Result<(), RecordsFault> {
    let (count, last) = (batch.record_count(), batch.last_offset_delta());
    if count < 0 {
        return Err(RecordsFault::Count(count));
    }
    let fault = |index, error| match error {
        WalkError::Record(what) => RecordsFault::Record { index, count, what },
        WalkError::Read(error) => compressed(codec, &error),
    };
    let mut after = -1;
    let mut largest = TimestampMs::NONE;
    for index in 0..count {
        let RecordShape { offset_delta: delta, timestamp_delta, .. } =
            source.next_record().map_err(|error| fault(index, error))?;
        if delta <= after || delta > last {
            return Err(RecordsFault::Offset { index, delta, after, last });
        }
        after = delta;
        largest = largest.max(batch.base_timestamp().after(timestamp_delta));
    }
    if !source.at_end().map_err(|error| fault(count, error))? {
        return Err(RecordsFault::Trailing { count });
    }
    let stored = batch.max_timestamp();
    if count > 0 && batch.attributes().timestamp_type() == TimestampType::CreateTime && largest != stored {
        return Err(RecordsFault::MaxTimestamp { found: largest, stored });
    }
    Ok(())
}

fn decompressor(codec: Codec, bytes: &[u8], max: u64) -> Result<Box<dyn Read + '_>, RecordsFault> {
    decompress(codec, bytes, max).map_err(|error| compressed(codec, &error))
}

fn compressed(codec: Codec, error: &std::io::Error) -> RecordsFault {
    RecordsFault::Compressed { codec, cause: error.to_string() }
}
