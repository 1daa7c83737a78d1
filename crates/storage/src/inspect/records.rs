//! Whether the records of a batch are what its header says.

use std::io::BufReader;

use crate::TimestampMs;
use crate::batch::{BatchView, TimestampType};
use crate::compression::{Codec, decompress};
use crate::record::{RecordFault, RecordShape, RecordSource, RecordStream, WalkError};
use crate::records::RecordsError;

/// No client can take a batch of more than this: it is Java's limit for an array.
const UNCOMPRESSED_BYTES_MAX: u64 = i32::MAX as u64;

/// Messages in a wrapper of magic 0 or 1 have to be in memory one by one to be checked.
const WRAPPER_BYTES_MAX: u64 = 64 << 20;

/// Why the records of a batch cannot be read, or are not what its header says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsFault {
    /// They cannot be read.
    #[error("record {index} of {count}: {source}")]
    Unreadable {
        /// The number of the first that cannot, from 0.
        index: i32,
        /// The records there should be.
        count: i32,
        /// What is wrong.
        source: RecordsError,
    },
    /// The batch says that it has a negative number of records.
    #[error("a count of {0} records")]
    Count(i32),
    /// An offset that does not rise, or lies outside of the batch.
    #[error("record {index} has offset delta {delta} after {after}, in a batch whose last is {last}")]
    Offset {
        /// Its number in the batch, from 0.
        index: i32,
        /// Its offset less the batch's base offset.
        delta: i64,
        /// That of the record before.
        after: i64,
        /// The batch's last offset less its base offset.
        last: i64,
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

/// Reads all records of a batch and compares them with its header. Of batches of magic 2 no record need fit in memory.
/// Returns how many records there are.
pub(crate) fn check_records(batch: &BatchView<'_>) -> Result<u64, RecordsFault> {
    if batch.is_legacy() {
        return check_messages(batch);
    }
    let count = batch.record_count();
    let unreadable = |index, source| RecordsFault::Unreadable { index, count, source };
    // A batch that compaction emptied has nothing to decompress, and often not even an empty frame of its codec.
    if count == 0 && batch.records_bytes().is_empty() {
        return Ok(0);
    }
    match batch.attributes().codec() {
        Ok(Codec::None) => check(batch, Codec::None, &mut batch.records_bytes()),
        Ok(codec) => {
            let reader = decompress(codec, batch.records_bytes(), UNCOMPRESSED_BYTES_MAX)
                .map_err(|source| unreadable(0, RecordsError::Compression { codec, source }))?;
            check(batch, codec, &mut RecordStream::new(BufReader::new(reader)))
        }
        Err(id) => Err(unreadable(0, RecordsError::Codec(id))),
    }
}

fn check(batch: &BatchView<'_>, codec: Codec, source: &mut impl RecordSource) -> Result<u64, RecordsFault> {
    let (count, last) = (batch.record_count(), batch.last_offset_delta());
    let unreadable = |index, error| {
        let source = match error {
            WalkError::Record(fault) => RecordsError::Record(fault),
            WalkError::Read(source) => RecordsError::Compression { codec, source },
        };
        RecordsFault::Unreadable { index, count, source }
    };
    let mut after = -1;
    let mut largest = TimestampMs::NONE;
    let read = u64::try_from(count).map_err(|_| RecordsFault::Count(count))?;
    for index in 0..count {
        let RecordShape { offset_delta, timestamp_delta, .. } =
            source.next_record().map_err(|error| unreadable(index, error))?;
        if offset_delta <= after || offset_delta > last {
            let (delta, after, last) = (offset_delta.into(), after.into(), last.into());
            return Err(RecordsFault::Offset { index, delta, after, last });
        }
        after = offset_delta;
        largest = largest.max(batch.base_timestamp().after(timestamp_delta));
    }
    if !source.at_end().map_err(|error| unreadable(count, error))? {
        return Err(unreadable(count, WalkError::Record(RecordFault::Trailing)));
    }
    check_timestamp(batch, count, largest)?;
    Ok(read)
}

/// The same for a message, or a wrapper of messages, of magic 0 or 1.
fn check_messages(batch: &BatchView<'_>) -> Result<u64, RecordsFault> {
    let count = batch.record_count();
    let unreadable = |index, source| RecordsFault::Unreadable { index, count, source };
    let mut reader = batch.read_records(WRAPPER_BYTES_MAX).map_err(|source| unreadable(0, source))?;
    let mut index = 0;
    let mut before = None;
    let mut largest = TimestampMs::NONE;
    while let Some(record) = reader.next().map_err(|source| unreadable(index, source))? {
        if before.is_some_and(|before| record.offset <= before) || record.offset > batch.last_offset() {
            let delta = |offset| offset - batch.last_offset();
            let (delta, after) = (delta(record.offset), before.map_or(i64::MIN, delta));
            return Err(RecordsFault::Offset { index, delta, after, last: 0 });
        }
        before = Some(record.offset);
        largest = largest.max(record.timestamp);
        index = index.saturating_add(1);
    }
    check_timestamp(batch, index, largest)?;
    Ok(u64::try_from(index).unwrap_or(0))
}

fn check_timestamp(batch: &BatchView<'_>, count: i32, found: TimestampMs) -> Result<(), RecordsFault> {
    let stored = batch.max_timestamp();
    if count > 0 && batch.attributes().timestamp_type() == TimestampType::CreateTime && found != stored {
        return Err(RecordsFault::MaxTimestamp { found, stored });
    }
    Ok(())
}
