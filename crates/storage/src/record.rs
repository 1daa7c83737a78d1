//! Records inside a batch: variable-length integers, borrowed views, and the walk that checks them.
//!
//! ```text
//! record:  length varint │ attributes i8 │ timestamp delta varlong │ offset delta varint
//!          │ key length varint (-1: null) │ key │ value length varint (-1: null) │ value
//!          │ header count varint │ headers…
//! header:  key length varint │ key (UTF-8) │ value length varint (-1: null) │ value
//! ```
//!
//! The integers are zig-zag coded in groups of seven bits, lowest first. Source: Kafka's `DefaultRecord`, `ByteUtils`.

use std::io::{self, BufRead};

/// The fewest bytes a record takes, its length included.
pub const RECORD_BYTES_MIN: usize = 7;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// The bytes end inside a record, or before the last one.
    #[error("the bytes end before the record does")]
    Short,
    /// A variable-length integer that does not fit its type.
    #[error("a variable-length integer that is too long")]
    Varint,
    /// A length or count that is negative where that means nothing.
    #[error("a negative length")]
    NegativeLength,
    /// The fields of a record are longer or shorter than its length field says.
    #[error("fields that do not add up to the record's length")]
    Length,
    /// Bytes after the last record.
    #[error("bytes after the last record")]
    Trailing,
}

/// Takes a zig-zag coded 32-bit integer off the front of `bytes`.
///
/// Kafka drops bits past the 32nd; here they are refused, since other readers refuse them too and a broker should not
/// store what its readers understand differently.
pub fn read_varint(bytes: &mut &[u8]) -> Result<i32, RecordFault> {
    SliceSource { bytes: std::mem::take(bytes) }.restore(bytes, |source| varint(source).map_err(into_fault))
}

/// Takes a zig-zag coded 64-bit integer off the front of `bytes`.
pub fn read_varlong(bytes: &mut &[u8]) -> Result<i64, RecordFault> {
    SliceSource { bytes: std::mem::take(bytes) }.restore(bytes, |source| varlong(source).map_err(into_fault))
}

/// Appends a zig-zag coded 32-bit integer: 1 to 5 bytes.
pub fn write_varint(out: &mut Vec<u8>, value: i32) {
    write_varlong(out, i64::from(value));
}

/// Appends a zig-zag coded 64-bit integer: 1 to 10 bytes.
pub fn write_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while rest >= 0x80 {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A record, borrowed from the uncompressed bytes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// The record's offset less the batch's base offset.
    pub offset_delta: i32,
    /// The record's timestamp less the batch's base timestamp.
    pub timestamp_delta: i64,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; none is a tombstone in a compacted topic.
    pub value: Option<&'a [u8]>,
    header_count: i32,
    headers: &'a [u8],
}

impl<'a> RecordView<'a> {
    /// The headers in order; their lengths were checked when the record was parsed.
    pub fn headers(&self) -> Headers<'a> {
        Headers { bytes: self.headers, left: self.header_count }
    }

    /// Takes one record off the front of `bytes`.
    pub fn parse(bytes: &mut &'a [u8]) -> Result<Self, RecordFault> {
        let mut rest = *bytes;
        let mut body = take_sized(&mut rest)?.ok_or(RecordFault::NegativeLength)?;
        let (_attributes, after) = body.split_first().ok_or(RecordFault::Length)?;
        body = after;
        let record = Self::fields(&mut body).map_err(|fault| match fault {
            // Inside a record a field that runs past the end contradicts the length field, which the batch does hold.
            RecordFault::Short => RecordFault::Length,
            other => other,
        })?;
        if !body.is_empty() {
            return Err(RecordFault::Length);
        }
        *bytes = rest;
        Ok(record)
    }

    fn fields(body: &mut &'a [u8]) -> Result<Self, RecordFault> {
        let timestamp_delta = read_varlong(body)?;
        let offset_delta = read_varint(body)?;
        let key = take_sized(body)?;
        let value = take_sized(body)?;
        let header_count = read_varint(body)?;
        if header_count < 0 {
            return Err(RecordFault::NegativeLength);
        }
        let headers = *body;
        for _ in 0..header_count {
            take_sized(body)?.ok_or(RecordFault::NegativeLength)?;
            take_sized(body)?;
        }
        Ok(Self { offset_delta, timestamp_delta, key, value, header_count, headers })
    }
}

/// Takes a length and as many bytes; -1 is null, less is refused.
fn take_sized<'a>(bytes: &mut &'a [u8]) -> Result<Option<&'a [u8]>, RecordFault> {
    let length = match read_varint(bytes)? {
        -1 => return Ok(None),
        length => usize::try_from(length).map_err(|_| RecordFault::NegativeLength)?,
    };
    let (taken, rest) = bytes.split_at_checked(length).ok_or(RecordFault::Short)?;
    *bytes = rest;
    Ok(Some(taken))
}

/// A record header: a name and an optional value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader<'a> {
    /// The name's bytes. They should be UTF-8, but nothing on the way from the producer checks it.
    pub key: &'a [u8],
    /// The value.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record. See [`RecordView::headers`].
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    left: i32,
}

impl<'a> Iterator for Headers<'a> {
    type Item = RecordHeader<'a>;

    fn next(&mut self) -> Option<RecordHeader<'a>> {
        self.left = self.left.checked_sub(1).filter(|&left| left >= 0)?;
        let key = take_sized(&mut self.bytes).ok()??;
        let value = take_sized(&mut self.bytes).ok()?;
        Some(RecordHeader { key, value })
    }
}

/// The records in the uncompressed bytes of a batch.
///
/// Yields as many as the batch claims to hold, then an error if bytes are left over. After an error there is nothing
/// more.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    bytes: &'a [u8],
    left: i32,
    failed: bool,
}

impl<'a> Records<'a> {
    /// The records in `bytes`, which should hold `count` of them and nothing else.
    pub fn new(bytes: &'a [u8], count: i32) -> Self {
        Self { bytes, left: count.max(0), failed: false }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<RecordView<'a>, RecordFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let result = if self.left > 0 {
            self.left -= 1;
            RecordView::parse(&mut self.bytes)
        } else if self.bytes.is_empty() {
            return None;
        } else {
            Err(RecordFault::Trailing)
        };
        self.failed = result.is_err();
        Some(result)
    }
}

/// What the check of a producer's batch needs to know of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordShape {
    pub(crate) offset_delta: i32,
    pub(crate) timestamp_delta: i64,
    pub(crate) has_key: bool,
}

/// Why a walk over records stopped.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// The bytes are not records.
    Record(RecordFault),
    /// The decompressor failed.
    Read(io::Error),
}

impl From<RecordFault> for WalkError {
    fn from(fault: RecordFault) -> Self {
        Self::Record(fault)
    }
}

fn into_fault(error: WalkError) -> RecordFault {
    match error {
        WalkError::Record(fault) => fault,
        // A slice cannot fail to be read.
        WalkError::Read(_) => RecordFault::Short,
    }
}

/// Where a walk takes its bytes from: memory, or a decompressor whose output never exists as a whole.
pub(crate) trait Source {
    /// The next byte.
    fn byte(&mut self) -> Result<u8, WalkError>;
    /// Passes over bytes.
    fn skip(&mut self, count: u64) -> Result<(), WalkError>;
    /// Whether all bytes were passed.
    fn at_end(&mut self) -> Result<bool, WalkError>;
}

/// Bytes in memory.
pub(crate) struct SliceSource<'a> {
    bytes: &'a [u8],
}

impl<'a> SliceSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Runs `read` and puts what it left back into `bytes`.
    fn restore<T>(mut self, bytes: &mut &'a [u8], read: impl FnOnce(&mut Self) -> T) -> T {
        let result = read(&mut self);
        *bytes = self.bytes;
        result
    }
}

impl Source for SliceSource<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, WalkError> {
        let (&first, rest) = self.bytes.split_first().ok_or(RecordFault::Short)?;
        self.bytes = rest;
        Ok(first)
    }

    #[inline]
    fn skip(&mut self, count: u64) -> Result<(), WalkError> {
        let count = usize::try_from(count).map_err(|_| RecordFault::Short)?;
        self.bytes = self.bytes.get(count..).ok_or(RecordFault::Short)?;
        Ok(())
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.bytes.is_empty())
    }
}

/// Bytes that come out of a reader.
pub(crate) struct StreamSource<R> {
    reader: R,
}

impl<R: BufRead> StreamSource<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader }
    }
}

impl<R: BufRead> Source for StreamSource<R> {
    #[inline]
    fn byte(&mut self) -> Result<u8, WalkError> {
        let first = *self.reader.fill_buf().map_err(WalkError::Read)?.first().ok_or(RecordFault::Short)?;
        self.reader.consume(1);
        Ok(first)
    }

    fn skip(&mut self, mut count: u64) -> Result<(), WalkError> {
        while count > 0 {
            let there = self.reader.fill_buf().map_err(WalkError::Read)?.len();
            if there == 0 {
                return Err(RecordFault::Short.into());
            }
            let step = usize::try_from(count).unwrap_or(usize::MAX).min(there);
            self.reader.consume(step);
            count -= step as u64;
        }
        Ok(())
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.reader.fill_buf().map_err(WalkError::Read)?.is_empty())
    }
}

/// Passes over one record and checks that its fields add up to its length.
pub(crate) fn walk_record(source: &mut impl Source) -> Result<RecordShape, WalkError> {
    let length = varint(source)?;
    let length = u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?;
    let mut body = Body { source, left: length };
    body.skip(1)?; // Attributes: no bit has a meaning yet, and Kafka does not look at them either.
    let timestamp_delta = varlong(&mut body)?;
    let offset_delta = varint(&mut body)?;
    let has_key = skip_sized(&mut body)?;
    skip_sized(&mut body)?;
    let headers = varint(&mut body)?;
    if headers < 0 {
        return Err(RecordFault::NegativeLength.into());
    }
    for _ in 0..headers {
        if !skip_sized(&mut body)? {
            return Err(RecordFault::NegativeLength.into());
        }
        skip_sized(&mut body)?;
    }
    if body.left != 0 {
        return Err(RecordFault::Length.into());
    }
    Ok(RecordShape { offset_delta, timestamp_delta, has_key })
}

/// The part of a source that one record may use.
struct Body<'s, S> {
    source: &'s mut S,
    left: u64,
}

impl<S: Source> Source for Body<'_, S> {
    #[inline]
    fn byte(&mut self) -> Result<u8, WalkError> {
        self.left = self.left.checked_sub(1).ok_or(RecordFault::Length)?;
        self.source.byte()
    }

    #[inline]
    fn skip(&mut self, count: u64) -> Result<(), WalkError> {
        self.left = self.left.checked_sub(count).ok_or(RecordFault::Length)?;
        self.source.skip(count)
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.left == 0)
    }
}

/// Passes over a length and as many bytes; false for null.
#[inline]
fn skip_sized(source: &mut impl Source) -> Result<bool, WalkError> {
    match varint(source)? {
        -1 => Ok(false),
        length => {
            source.skip(u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?)?;
            Ok(true)
        }
    }
}

#[inline]
fn varint(source: &mut impl Source) -> Result<i32, WalkError> {
    let first = source.byte()?;
    if first < 0x80 {
        return Ok(i32::from(first >> 1) ^ -i32::from(first & 1));
    }
    let mut value = u32::from(first & 0x7f);
    for shift in [7, 14, 21, 28] {
        let byte = source.byte()?;
        if shift == 28 && byte > 0x0f {
            return Err(RecordFault::Varint.into());
        }
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

#[inline]
fn varlong(source: &mut impl Source) -> Result<i64, WalkError> {
    let first = source.byte()?;
    if first < 0x80 {
        return Ok(i64::from(first >> 1) ^ -i64::from(first & 1));
    }
    let mut value = u64::from(first & 0x7f);
    for shift in [7, 14, 21, 28, 35, 42, 49, 56, 63] {
        let byte = source.byte()?;
        if shift == 63 && byte > 0x01 {
            return Err(RecordFault::Varint.into());
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

#[cfg(test)]
mod tests;
