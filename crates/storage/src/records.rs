//! The records of a stored batch of any format and compression, one at a time.

use std::fmt;
use std::io::{self, BufReader, Read};

use crate::batch::{BatchFault, BatchHeader, BatchView, TimestampType};
use crate::compression::{self, Codec};
use crate::legacy::{self, MessageReader};
use crate::record::{self, Headers, RecordFault, RecordSource, RecordStream, RecordView, WalkError};
use crate::{Offset, TimestampMs};

/// A record of any format, with what its batch says about it filled in.
#[derive(Clone, Debug)]
pub struct StoredRecord<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Its time: its producer's, or the broker's where the batch was stamped with that; [`TimestampMs::NONE`] in
    /// messages of magic 0.
    pub timestamp: TimestampMs,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; none is a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    headers: Headers<'a>,
}

impl<'a> StoredRecord<'a> {
    pub(crate) fn without_headers(
        offset: Offset,
        timestamp: TimestampMs,
        key: Option<&'a [u8]>,
        value: Option<&'a [u8]>,
    ) -> Self {
        Self { offset, timestamp, key, value, headers: Headers::default() }
    }

    fn of(record: &RecordView<'a>, header: &BatchHeader) -> Self {
        Self {
            offset: header.base_offset() + i64::from(record.offset_delta),
            timestamp: timestamp_of(header, record.timestamp_delta),
            key: record.key,
            value: record.value,
            headers: record.headers(),
        }
    }

    /// The headers in order.
    pub fn headers(&self) -> Headers<'a> {
        self.headers.clone()
    }
}

/// The time of a record with this delta in a batch.
pub(crate) fn timestamp_of(header: &BatchHeader, delta: i64) -> TimestampMs {
    match header.attributes().timestamp_type() {
        TimestampType::CreateTime => header.base_timestamp().after(delta),
        TimestampType::LogAppendTime => header.max_timestamp(),
    }
}

/// Why the records of a batch cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordsError {
    /// Bytes that are no record.
    #[error(transparent)]
    Record(#[from] RecordFault),
    /// Bytes that are no message, or no set of messages where a wrapper should hold one (magic 0 and 1).
    #[error("fields that do not add up to a message")]
    Message,
    /// A message in a wrapper whose own checksum does not match (magic 0 and 1).
    #[error("a message in a wrapper: {0}")]
    Crc(BatchFault),
    /// A compression that does not exist.
    #[error("unknown compression {0}")]
    Codec(u8),
    /// Compressed bytes that are damaged, or more of them than the caller allowed.
    #[error("{codec} data that does not decompress: {source}")]
    Compression {
        /// The codec.
        codec: Codec,
        /// What the decompressor says.
        source: io::Error,
    },
}

/// Reads the records of one batch in order. See [`BatchView::read_records`].
pub struct RecordReader<'a> {
    header: BatchHeader,
    source: Source<'a>,
    left: i32,
    /// Where the next record begins cannot be told any more.
    lost: bool,
}

enum Source<'a> {
    Memory(&'a [u8]),
    Stream { records: RecordStream<BufReader<Box<dyn Read + 'a>>>, codec: Codec, body: Vec<u8> },
    Messages(MessageReader<'a>),
}

impl<'a> BatchView<'a> {
    /// Reads the records, of any format and compression, which may grow to `max_bytes` by decompression.
    ///
    /// Memory is bounded by what the decompressor holds (see [`compression::decompress`]) and the largest record.
    ///
    /// # Errors
    /// If the compression is unknown or the compressed bytes do not begin as they should; with magic 0 and 1 anything
    /// that may be wrong with a wrapper.
    pub fn read_records(&self, max_bytes: u64) -> Result<RecordReader<'a>, RecordsError> {
        let header = *self.header();
        let source = if legacy::is_legacy(header.magic()) {
            Source::Messages(MessageReader::new(self, max_bytes)?)
        } else {
            match header.attributes().codec().map_err(RecordsError::Codec)? {
                Codec::None => Source::Memory(self.records_bytes()),
                codec => {
                    let reader = compression::decompress(codec, self.records_bytes(), max_bytes)
                        .map_err(|source| RecordsError::Compression { codec, source })?;
                    Source::Stream { records: RecordStream::new(BufReader::new(reader)), codec, body: Vec::new() }
                }
            }
        };
        Ok(RecordReader { header, source, left: header.record_count().max(0), lost: false })
    }

    /// The first offset, which for a compressed message of magic 0 or 1 stands inside of it only: it is decompressed, to
    /// `max_bytes` at most.
    ///
    /// # Errors
    /// As [`BatchView::read_records`], for such a message.
    pub fn first_offset(&self, max_bytes: u64) -> Result<Offset, RecordsError> {
        if !self.is_legacy() {
            return Ok(self.base_offset());
        }
        match MessageReader::new(self, max_bytes)?.next_place()? {
            Some((offset, _)) => Ok(offset),
            None => Ok(self.base_offset()),
        }
    }
}

impl fmt::Debug for RecordReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordReader").field("header", &self.header).field("left", &self.left).finish_non_exhaustive()
    }
}

impl RecordReader<'_> {
    /// The next record; `None` after the last. (It borrows from the reader, so this is no `Iterator`.)
    ///
    /// After an error it goes on with the record behind the bad one, if the length of that says where it begins; if not there is
    /// none any more, and [`RecordReader::left`] tells how many were to come.
    ///
    /// # Errors
    /// If the bytes are not the records that the batch claims to hold, and nothing else.
    #[expect(clippy::should_implement_trait, reason = "the record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<StoredRecord<'_>>, RecordsError> {
        if self.lost {
            return Ok(None);
        }
        let is_last = self.left == 0;
        self.left -= i32::from(!is_last);
        // Unless the record's own fields are all that is wrong.
        self.lost = true;
        let record = match &mut self.source {
            Source::Messages(messages) => messages.next()?,
            Source::Memory([]) if is_last => None,
            Source::Memory(_) if is_last => return Err(RecordFault::Trailing.into()),
            Source::Memory(bytes) => {
                let record = RecordView::parse(bytes).inspect_err(|_| self.lost = !record::pass_over(bytes))?;
                Some(StoredRecord::of(&record, &self.header))
            }
            Source::Stream { records, codec, body } => {
                let codec = *codec;
                let failed = |error| match error {
                    WalkError::Record(fault) => RecordsError::Record(fault),
                    WalkError::Read(source) => RecordsError::Compression { codec, source },
                };
                if is_last {
                    let is_end = records.at_end().map_err(failed)?;
                    return if is_end { Ok(None) } else { Err(RecordFault::Trailing.into()) };
                }
                records.read_body(body).map_err(failed)?;
                self.lost = false;
                Some(StoredRecord::of(&RecordView::whole(body)?, &self.header))
            }
        };
        self.lost = false;
        Ok(record)
    }

    /// How many records the batch claims to hold beside those that were asked for.
    pub fn left(&self) -> i32 {
        self.left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, CRC_START, HEADER_BYTES, Record};

    /// Three records with the keys 0, 1 and 2, in a batch whose uncompressed bytes `spoil` changes.
    fn batch(codec: Codec, spoil: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Codec::None);
        for key in [b"0", b"1", b"2"] {
            builder.push(Record::keyed(TimestampMs(1_000), key, b"value"));
        }
        let plain = builder.build();
        let (header, records) = plain.split_at(HEADER_BYTES);
        let mut records = records.to_vec();
        spoil(&mut records);
        let mut header: [u8; HEADER_BYTES] = header.try_into().unwrap();
        header[22] = codec.id();
        let mut bytes = header.to_vec();
        bytes.extend(if codec == Codec::None { records } else { compression::compress(codec, &records).unwrap() });
        let length = i32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let crc = crc32c::crc32c(&bytes[CRC_START..]);
        bytes[CRC_START - 4..CRC_START].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// What can be read, and how many records cannot.
    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, i32) {
        let (batch, _) = BatchView::parse(bytes).unwrap();
        let (mut keys, mut bad) = (Vec::new(), 0);
        let mut reader = batch.read_records(1 << 20).unwrap();
        loop {
            match reader.next() {
                Ok(Some(record)) => keys.push(record.key.unwrap().to_vec()),
                Ok(None) => return (keys, bad + reader.left()),
                Err(_) => bad += 1,
            }
            assert!(bad < 10, "it comes to an end");
        }
    }

    #[test]
    fn a_bad_record_does_not_hide_those_behind_it_if_its_length_is_right() {
        // length, attributes, time, offset, key length, key, value length, value, headers
        let record_bytes = 1 + 1 + 1 + 1 + 1 + 1 + 1 + 5 + 1;
        let key = |key: &[u8; 1]| key.to_vec();
        for codec in Codec::ALL.into_iter().filter(|codec| codec.is_built_in()) {
            assert_eq!(read(&batch(codec, |_| {})), (vec![key(b"0"), key(b"1"), key(b"2")], 0), "{codec}");
            // The key of the second record claims more than there is.
            let inside = batch(codec, |bytes| bytes[record_bytes + 4] = 100);
            assert_eq!(read(&inside), (vec![key(b"0"), key(b"2")], 1), "{codec}");
            // Its length does.
            let outside = batch(codec, |bytes| bytes[record_bytes] = 100);
            assert_eq!(read(&outside), (vec![key(b"0")], 2), "{codec}");
            let cut = batch(codec, |bytes| bytes.truncate(record_bytes + 3));
            assert_eq!(read(&cut), (vec![key(b"0")], 2), "{codec}");
            let more = batch(codec, |bytes| bytes.extend(b"more"));
            assert_eq!(read(&more), (vec![key(b"0"), key(b"1"), key(b"2")], 1), "{codec}");
        }
    }
}
