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

use std::io::{self, BufRead, Read as _};

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
///
/// # Errors
/// If the bytes end before the integer does, or it has more than 32 bits. Nothing is taken off then.
pub fn read_varint(bytes: &mut &[u8]) -> Result<i32, RecordFault> {
    let (value, rest) = split_varint(bytes)?;
    *bytes = rest;
    Ok(value)
}

/// Takes a zig-zag coded 64-bit integer off the front of `bytes`.
///
/// # Errors
/// If the bytes end before the integer does, or it has more than 64 bits. Nothing is taken off then.
pub fn read_varlong(bytes: &mut &[u8]) -> Result<i64, RecordFault> {
    let (value, rest) = split_varlong(bytes)?;
    *bytes = rest;
    Ok(value)
}

// The check of a batch splits some eight integers off each record. Slices that are passed and returned by value, and
// inlined, stay in registers, which made the walk three times as fast as slices behind a reference; one and two bytes
// are the usual lengths.

#[inline(always)]
fn split_varint(bytes: &[u8]) -> Result<(i32, &[u8]), RecordFault> {
    match *bytes {
        [first, ref rest @ ..] if first < 0x80 => Ok((unzigzag(u32::from(first)), rest)),
        [first, second, ref rest @ ..] if second < 0x80 => {
            Ok((unzigzag(u32::from(first & 0x7f) | u32::from(second) << 7), rest))
        }
        _ => split_long_varint(bytes),
    }
}

fn split_long_varint(mut bytes: &[u8]) -> Result<(i32, &[u8]), RecordFault> {
    let value = varint(|| next_byte(&mut bytes))?;
    Ok((value, bytes))
}

#[inline(always)]
fn split_varlong(bytes: &[u8]) -> Result<(i64, &[u8]), RecordFault> {
    match *bytes {
        [first, ref rest @ ..] if first < 0x80 => Ok((i64::from(unzigzag(u32::from(first))), rest)),
        [first, second, ref rest @ ..] if second < 0x80 => {
            Ok((i64::from(unzigzag(u32::from(first & 0x7f) | u32::from(second) << 7)), rest))
        }
        _ => split_long_varlong(bytes),
    }
}

fn split_long_varlong(mut bytes: &[u8]) -> Result<(i64, &[u8]), RecordFault> {
    let value = varlong(|| next_byte(&mut bytes))?;
    Ok((value, bytes))
}

fn next_byte(bytes: &mut &[u8]) -> Result<u8, RecordFault> {
    let (&first, rest) = bytes.split_first().ok_or(RecordFault::Short)?;
    *bytes = rest;
    Ok(first)
}

#[inline(always)]
fn unzigzag(value: u32) -> i32 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
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
    ///
    /// # Errors
    /// [`RecordFault::Short`] if and only if `bytes` end before the record does. Nothing is taken then.
    pub fn parse(bytes: &mut &'a [u8]) -> Result<Self, RecordFault> {
        let (record, rest) = Self::split(bytes)?;
        *bytes = rest;
        Ok(record)
    }

    #[inline(always)]
    fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), RecordFault> {
        let (body, rest) = split_sized(bytes)?;
        Ok((Self::whole(body.ok_or(RecordFault::NegativeLength)?)?, rest))
    }

    /// The record whose bytes, without the length before them, are `body`.
    #[inline(always)]
    pub(crate) fn whole(body: &'a [u8]) -> Result<Self, RecordFault> {
        match Self::fields(body) {
            // Inside a record a field that runs past the end contradicts the length field, whose bytes are all there.
            Err(RecordFault::Short) => Err(RecordFault::Length),
            parsed => parsed,
        }
    }

    #[inline(always)]
    fn fields(body: &'a [u8]) -> Result<Self, RecordFault> {
        // No bit of the attributes has a meaning yet, and Kafka does not look at them either.
        let body = body.get(1..).ok_or(RecordFault::Length)?;
        let (timestamp_delta, body) = split_varlong(body)?;
        let (offset_delta, body) = split_varint(body)?;
        let (key, body) = split_sized(body)?;
        let (value, body) = split_sized(body)?;
        let (header_count, headers) = split_varint(body)?;
        if header_count != 0 {
            check_headers(header_count, headers)?;
        } else if !headers.is_empty() {
            return Err(RecordFault::Length);
        }
        Ok(Self { offset_delta, timestamp_delta, key, value, header_count, headers })
    }
}

/// Passes over a record whose fields do not add up, by its length. False, and nothing is passed over, if that leads nowhere.
pub(crate) fn pass_over(bytes: &mut &[u8]) -> bool {
    let Ok((Some(_), rest)) = split_sized(bytes) else { return false };
    *bytes = rest;
    true
}

fn check_headers(count: i32, mut bytes: &[u8]) -> Result<(), RecordFault> {
    if count < 0 {
        return Err(RecordFault::NegativeLength);
    }
    for _ in 0..count {
        let (key, rest) = split_sized(bytes)?;
        key.ok_or(RecordFault::NegativeLength)?;
        (_, bytes) = split_sized(rest)?;
    }
    if bytes.is_empty() { Ok(()) } else { Err(RecordFault::Length) }
}

/// Splits off a length and as many bytes; -1 is null, less is refused.
#[inline(always)]
fn split_sized(bytes: &[u8]) -> Result<(Option<&[u8]>, &[u8]), RecordFault> {
    let (length, bytes) = split_varint(bytes)?;
    let Ok(length) = usize::try_from(length) else {
        return if length == -1 { Ok((None, bytes)) } else { Err(RecordFault::NegativeLength) };
    };
    let (taken, rest) = bytes.split_at_checked(length).ok_or(RecordFault::Short)?;
    Ok((Some(taken), rest))
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
#[derive(Clone, Debug, Default)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    left: i32,
}

impl<'a> Iterator for Headers<'a> {
    type Item = RecordHeader<'a>;

    fn next(&mut self) -> Option<RecordHeader<'a>> {
        self.left = self.left.checked_sub(1).filter(|&left| left >= 0)?;
        let (key, rest) = split_sized(self.bytes).ok()?;
        let (value, rest) = split_sized(rest).ok()?;
        self.bytes = rest;
        let key = key?;
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

impl From<RecordView<'_>> for RecordShape {
    #[inline]
    fn from(record: RecordView<'_>) -> Self {
        let RecordView { offset_delta, timestamp_delta, key, .. } = record;
        Self { offset_delta, timestamp_delta, has_key: key.is_some() }
    }
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

/// Where a walk takes its records from: memory, or a decompressor whose output never exists as a whole.
pub(crate) trait RecordSource {
    /// Passes over one record and checks that its fields add up to its length.
    fn next_record(&mut self) -> Result<RecordShape, WalkError>;
    /// Whether all bytes were passed.
    fn at_end(&mut self) -> Result<bool, WalkError>;
}

/// Records in memory.
impl RecordSource for &[u8] {
    #[inline]
    fn next_record(&mut self) -> Result<RecordShape, WalkError> {
        let (record, rest) = RecordView::split(self)?;
        *self = rest;
        Ok(record.into())
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.is_empty())
    }
}

/// Records that come out of a reader, in memory bounded by the reader's buffer whatever their lengths.
pub(crate) struct RecordStream<R> {
    reader: R,
}

impl<R: BufRead> RecordStream<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader }
    }

    /// Reads the bytes of one record, without its length, into `body`, which grows as bytes come and not as they are claimed.
    pub(crate) fn read_body(&mut self, body: &mut Vec<u8>) -> Result<(), WalkError> {
        let length = varint(|| self.byte())?;
        let length = u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?;
        body.clear();
        (&mut self.reader).take(length).read_to_end(body).map_err(WalkError::Read)?;
        if (body.len() as u64) < length {
            return Err(RecordFault::Short.into());
        }
        Ok(())
    }

    /// Passes over one record that need not be in memory as a whole.
    fn walk_record(&mut self) -> Result<RecordShape, WalkError> {
        let length = varint(|| self.byte())?;
        let length = u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?;
        let mut body = Body { stream: self, left: length };
        body.skip(1)?;
        let timestamp_delta = varlong(|| body.byte())?;
        let offset_delta = varint(|| body.byte())?;
        let has_key = body.skip_sized()?;
        body.skip_sized()?;
        let headers = varint(|| body.byte())?;
        if headers < 0 {
            return Err(RecordFault::NegativeLength.into());
        }
        for _ in 0..headers {
            if !body.skip_sized()? {
                return Err(RecordFault::NegativeLength.into());
            }
            body.skip_sized()?;
        }
        if body.left != 0 {
            return Err(RecordFault::Length.into());
        }
        Ok(RecordShape { offset_delta, timestamp_delta, has_key })
    }

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
}

impl<R: BufRead> RecordSource for RecordStream<R> {
    fn next_record(&mut self) -> Result<RecordShape, WalkError> {
        let buffer = self.reader.fill_buf().map_err(WalkError::Read)?;
        let mut rest = buffer;
        match RecordView::parse(&mut rest) {
            Ok(record) => {
                let (shape, used) = (record.into(), buffer.len() - rest.len());
                self.reader.consume(used);
                Ok(shape)
            }
            // It goes on past the buffer.
            Err(RecordFault::Short) => self.walk_record(),
            Err(fault) => Err(fault.into()),
        }
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.reader.fill_buf().map_err(WalkError::Read)?.is_empty())
    }
}

/// The part of a stream that one record may use.
struct Body<'s, R> {
    stream: &'s mut RecordStream<R>,
    left: u64,
}

impl<R: BufRead> Body<'_, R> {
    fn byte(&mut self) -> Result<u8, WalkError> {
        self.left = self.left.checked_sub(1).ok_or(RecordFault::Length)?;
        self.stream.byte()
    }

    fn skip(&mut self, count: u64) -> Result<(), WalkError> {
        self.left = self.left.checked_sub(count).ok_or(RecordFault::Length)?;
        self.stream.skip(count)
    }

    /// Passes over a length and as many bytes; false for null.
    fn skip_sized(&mut self) -> Result<bool, WalkError> {
        match varint(|| self.byte())? {
            -1 => Ok(false),
            length => {
                self.skip(u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?)?;
                Ok(true)
            }
        }
    }
}

#[inline]
pub(crate) fn varint<E: From<RecordFault>>(mut next: impl FnMut() -> Result<u8, E>) -> Result<i32, E> {
    let first = next()?;
    if first < 0x80 {
        return Ok(i32::from(first >> 1) ^ -i32::from(first & 1));
    }
    let mut value = u32::from(first & 0x7f);
    for shift in [7, 14, 21, 28] {
        let byte = next()?;
        if shift == 28 && byte > 0x0f {
            return Err(RecordFault::Varint.into());
        }
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    Ok(unzigzag(value))
}

#[inline]
pub(crate) fn varlong<E: From<RecordFault>>(mut next: impl FnMut() -> Result<u8, E>) -> Result<i64, E> {
    let first = next()?;
    if first < 0x80 {
        return Ok(i64::from(first >> 1) ^ -i64::from(first & 1));
    }
    let mut value = u64::from(first & 0x7f);
    for shift in [7, 14, 21, 28, 35, 42, 49, 56, 63] {
        let byte = next()?;
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
