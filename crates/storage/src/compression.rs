//! Compression of the records of a batch: what Kafka's producers send, and what their other dialects are.
//!
//! A broker stores compressed records as they came. It decompresses them for two reasons: to check what a producer sent,
//! and to find a record by its time. Both read the output as a stream, bounded in memory whatever the input claims.
//! Source: Kafka's `org.apache.kafka.common.compress`.
//!
//! The codecs' libraries come with the feature `compression`. Without it compressed batches are stored, replicated,
//! served and recovered all the same; only what has to look inside of them fails, with [`CodecNotBuiltIn`].

use std::fmt;
use std::io::{self, Read, Write};

#[cfg(feature = "compression")]
mod codecs;
#[cfg(any(test, not(feature = "compression")))]
mod no_codecs;

#[cfg(not(feature = "compression"))]
use no_codecs as codecs;

pub(crate) use codecs::Compressor;

/// How the records of a batch are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not at all.
    #[default]
    None,
    /// RFC 1952, any number of members.
    Gzip,
    /// Blocks in the framing of snappy-java ("xerial"), or, as librdkafka sends it, one bare block.
    Snappy,
    /// The LZ4 frame format.
    Lz4,
    /// Zstandard, any number of frames.
    Zstd,
}

impl Codec {
    /// All codecs, by id.
    pub const ALL: [Self; 5] = [Self::None, Self::Gzip, Self::Snappy, Self::Lz4, Self::Zstd];

    /// The codec with a number, as it stands in the attributes of a batch.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|codec| codec.id() == id)
    }

    /// Whether this build can compress and decompress by it: always [`Codec::None`], the others with the feature
    /// `compression`.
    pub fn is_built_in(self) -> bool {
        self == Self::None || cfg!(feature = "compression")
    }

    /// The number in the attributes of a batch.
    pub fn id(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Gzip => 1,
            Self::Snappy => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
        }
    }
}

/// The name as in Kafka's `compression.type`.
impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// The limit that a decompressor ran into: the source of an [`io::Error`] of kind `FileTooLarge`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {max} bytes after decompression")]
pub struct TooMuchOutput {
    /// The limit in bytes.
    pub max: u64,
}

/// The source of an [`io::Error`] of kind `Unsupported`: the crate was built without the feature `compression`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the codec {codec} is not built in (feature `compression` of highwater-storage)")]
pub struct CodecNotBuiltIn {
    /// The codec that is missing.
    pub codec: Codec,
}

impl From<CodecNotBuiltIn> for io::Error {
    fn from(error: CodecNotBuiltIn) -> Self {
        Self::new(io::ErrorKind::Unsupported, error)
    }
}

/// The uncompressed form of `bytes` as a stream of at most `max_bytes`.
///
/// Memory is bounded: a few buffers, whose size is at most 22 times the input (snappy, whose blocks are decoded whole),
/// 12 MiB (lz4) or the window of the frame up to 128 MiB (zstd; it is touched only as far as output fills it).
///
/// # Errors
/// Kind `Unsupported` with [`CodecNotBuiltIn`] for a codec without the feature `compression`.
/// Reading fails with kind `FileTooLarge` and [`TooMuchOutput`] past `max_bytes`, with other kinds when the input is
/// damaged, breaks off, or has bytes behind its end.
pub fn decompress<'a>(codec: Codec, bytes: &'a [u8], max_bytes: u64) -> io::Result<Box<dyn Read + 'a>> {
    let reader = if codec == Codec::None { Box::new(bytes) } else { codecs::reader(codec, bytes)? };
    Ok(Capped::boxed(reader, max_bytes))
}

/// As [`decompress`] for LZ4 in messages of magic 0, whose producers took the checksum of the frame's header over the
/// magic number as well. Which of the two rules it follows is not held against it: the message has a checksum of its own.
pub(crate) fn decompress_lz4_with_any_header_checksum(bytes: &[u8], max_bytes: u64) -> io::Result<Box<dyn Read + '_>> {
    Ok(Capped::boxed(codecs::lz4_reader_with_any_header_checksum(bytes)?, max_bytes))
}

/// Compresses `bytes` the way Kafka's own producer does with default levels.
///
/// # Errors
/// Kind `Unsupported` with [`CodecNotBuiltIn`] without the feature `compression`. Otherwise only what the codec's library
/// answers; none of them fails for input that fits in memory.
pub fn compress(codec: Codec, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut compressor = Compressor::new(codec)?;
    compressor.write_all(bytes)?;
    compressor.finish()
}

/// A reader that fails past a number of bytes. (`Read::take` would end there, and a bomb would look like a short batch.)
struct Capped<'a> {
    inner: Box<dyn Read + 'a>,
    left: u64,
    max: u64,
}

impl<'a> Capped<'a> {
    fn boxed(inner: Box<dyn Read + 'a>, max: u64) -> Box<dyn Read + 'a> {
        Box::new(Self { inner, left: max, max })
    }
}

impl Read for Capped<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, TooMuchOutput { max: self.max }))?;
        Ok(count)
    }
}

const LZ4_MAGIC: [u8; 4] = 0x184d_2204u32.to_le_bytes();
const LZ4_INDEPENDENT_BLOCKS: u8 = 1 << 5;

/// The flag byte of an LZ4 frame.
fn lz4_flags(bytes: &[u8]) -> io::Result<u8> {
    match bytes.split_first_chunk() {
        Some((&LZ4_MAGIC, [flags, ..])) => Ok(*flags),
        Some((&LZ4_MAGIC, [])) | None => Err(truncated()),
        Some(_) => Err(invalid("no LZ4 frame")),
    }
}

/// Whether the blocks of an LZ4 frame refer to earlier ones. Kafka's Java clients cannot read such frames.
///
/// # Errors
/// If the bytes do not begin with an LZ4 frame.
pub fn lz4_blocks_are_linked(bytes: &[u8]) -> io::Result<bool> {
    Ok(lz4_flags(bytes)? & LZ4_INDEPENDENT_BLOCKS == 0)
}

fn truncated() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "compressed records break off")
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
