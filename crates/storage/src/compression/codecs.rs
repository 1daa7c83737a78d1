//! The codecs, by their libraries.

use std::io::{self, Read, Write};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use twox_hash::XxHash32;

use super::{Codec, LZ4_MAGIC, invalid, lz4_flags, truncated};

/// The uncompressed form as a stream.
pub(super) fn reader<'a>(codec: Codec, bytes: &'a [u8]) -> io::Result<Box<dyn Read + 'a>> {
    Ok(match codec {
        Codec::None => Box::new(bytes),
        Codec::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(bytes)),
        Codec::Snappy => Box::new(SnappyReader::new(bytes)),
        Codec::Lz4 => {
            check_lz4_frame(bytes)?;
            Box::new(FrameDecoder::new(bytes))
        }
        Codec::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(bytes)?),
    })
}

/// The uncompressed form of LZ4 whose frame header may have its checksum by either rule.
pub(super) fn lz4_reader_with_any_header_checksum(bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
    check_lz4_frame(bytes)?;
    let (header, rest) = bytes.split_at_checked(lz4_header_bytes(lz4_flags(bytes)?)).ok_or_else(truncated)?;
    let mut header = header.to_vec();
    if let Some((checksum, before)) = header.split_last_mut() {
        let descriptor = before.get(LZ4_MAGIC.len()..).unwrap_or_default();
        *checksum = XxHash32::oneshot(0, descriptor).to_be_bytes()[2];
    }
    Ok(Box::new(FrameDecoder::new(io::Cursor::new(header).chain(rest))))
}

/// Compresses what is written to it, as [`super::compress`] does. Only the output is in memory.
pub(crate) enum Compressor {
    None(Vec<u8>),
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Snappy(SnappyWriter),
    Lz4(Box<FrameEncoder<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
}

impl Compressor {
    pub(crate) fn new(codec: Codec) -> io::Result<Self> {
        Ok(match codec {
            Codec::None => Self::None(Vec::new()),
            Codec::Gzip => Self::Gzip(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default())),
            Codec::Snappy => Self::Snappy(SnappyWriter::new()),
            Codec::Lz4 => {
                // Kafka's decoder knows only independent blocks.
                let info = FrameInfo::new().block_size(BlockSize::Max64KB).block_mode(BlockMode::Independent);
                Self::Lz4(Box::new(FrameEncoder::with_frame_info(info, Vec::new())))
            }
            Codec::Zstd => Self::Zstd(zstd::stream::write::Encoder::new(Vec::new(), 3)?),
        })
    }

    /// Everything, compressed.
    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::None(bytes) => Ok(bytes),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Snappy(writer) => writer.finish(),
            Self::Lz4(encoder) => Ok(encoder.finish()?),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl Write for Compressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::None(out) => out.write(bytes),
            Self::Gzip(encoder) => encoder.write(bytes),
            Self::Snappy(writer) => writer.write(bytes),
            Self::Lz4(encoder) => encoder.write(bytes),
            Self::Zstd(encoder) => encoder.write(bytes),
        }
    }

    /// Nothing: the output is whole when it is finished.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// The magic and two version numbers, which snappy-java writes as 1 and 1, others as they like; nobody checks them.
const XERIAL_HEADER_BYTES: usize = 16;
/// Uncompressed bytes that snappy-java puts in one block.
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;
/// The most a snappy block can grow: its densest element makes 64 bytes out of 3.
const SNAPPY_GROWTH_MAX: usize = 22;

/// Writes snappy block by block, in the framing of snappy-java.
pub(crate) struct SnappyWriter {
    block: Vec<u8>,
    out: Vec<u8>,
}

impl SnappyWriter {
    fn new() -> Self {
        let mut out = Vec::from(XERIAL_MAGIC);
        out.extend_from_slice(&1i32.to_be_bytes());
        out.extend_from_slice(&1i32.to_be_bytes());
        Self { block: Vec::new(), out }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(XERIAL_BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(bytes.get(..count).unwrap_or_default());
        if self.block.len() == XERIAL_BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(count)
    }

    fn end_block(&mut self) -> io::Result<()> {
        let compressed = snap::raw::Encoder::new().compress_vec(&self.block).map_err(io::Error::other)?;
        let length = u32::try_from(compressed.len()).map_err(io::Error::other)?;
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(&compressed);
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<Vec<u8>> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        Ok(self.out)
    }
}

/// Decodes snappy block by block. What begins with the magic of snappy-java is framed, all else is one bare block.
struct SnappyReader<'a> {
    input: &'a [u8],
    framed: bool,
    block: Vec<u8>,
    position: usize,
}

impl<'a> SnappyReader<'a> {
    fn new(input: &'a [u8]) -> Self {
        Self { input, framed: input.starts_with(&XERIAL_MAGIC), block: Vec::new(), position: 0 }
    }

    /// The next compressed block.
    fn next_block(&mut self) -> io::Result<Option<&'a [u8]>> {
        if !self.framed {
            let block = std::mem::take(&mut self.input);
            return Ok(Some(block).filter(|block| !block.is_empty()));
        }
        // A header may stand before any block: streams that were joined are one stream to snappy-java.
        while self.input.starts_with(&XERIAL_MAGIC) {
            self.input = self.input.get(XERIAL_HEADER_BYTES..).ok_or_else(truncated)?;
        }
        if self.input.is_empty() {
            return Ok(None);
        }
        let (length, rest) = self.input.split_first_chunk().ok_or_else(truncated)?;
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| truncated())?;
        let (block, rest) = rest.split_at_checked(length).ok_or_else(truncated)?;
        self.input = rest;
        Ok(Some(block))
    }

    fn decode(&mut self, block: &[u8]) -> io::Result<()> {
        let length = snap::raw::decompress_len(block)?;
        if length > block.len().saturating_mul(SNAPPY_GROWTH_MAX) {
            return Err(invalid("a snappy block that claims more bytes than it can hold"));
        }
        self.block.clear();
        self.block.resize(length, 0);
        self.position = 0;
        let written = snap::raw::Decoder::new().decompress(block, &mut self.block)?;
        self.block.truncate(written);
        Ok(())
    }
}

impl Read for SnappyReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.position >= self.block.len() {
            let Some(block) = self.next_block()? else { return Ok(0) };
            self.decode(block)?;
        }
        let count = self.block.get(self.position..).unwrap_or_default().read(buffer)?;
        self.position += count;
        Ok(count)
    }
}

const LZ4_DICTIONARY_ID: u8 = 1 << 0;
const LZ4_CONTENT_CHECKSUM: u8 = 1 << 2;
const LZ4_CONTENT_SIZE: u8 = 1 << 3;
const LZ4_BLOCK_CHECKSUM: u8 = 1 << 4;

/// The length of the header of an LZ4 frame: magic, flags, block size, content size, dictionary id, checksum of these.
fn lz4_header_bytes(flags: u8) -> usize {
    let optional = |flag: u8, bytes: usize| if flags & flag == 0 { 0 } else { bytes };
    4 + 2 + optional(LZ4_CONTENT_SIZE, 8) + optional(LZ4_DICTIONARY_ID, 4) + 1
}

/// Checks that the bytes are one whole LZ4 frame, by the lengths of its blocks.
///
/// The decoder takes a missing end mark for the end, and goes on with what follows it as another frame; Kafka's does
/// neither.
fn check_lz4_frame(bytes: &[u8]) -> io::Result<()> {
    const UNCOMPRESSED_BLOCK: u32 = 1 << 31;
    let flags = lz4_flags(bytes)?;
    let optional = |flag: u8, bytes: usize| if flags & flag == 0 { 0 } else { bytes };
    let mut rest = bytes.get(lz4_header_bytes(flags)..).ok_or_else(truncated)?;
    loop {
        let (length, block) = rest.split_first_chunk().ok_or_else(truncated)?;
        let length = u32::from_le_bytes(*length);
        if length == 0 {
            rest = block;
            break;
        }
        let block_bytes = usize::try_from(length & !UNCOMPRESSED_BLOCK).map_err(|_| truncated())?;
        let block_bytes = block_bytes.saturating_add(optional(LZ4_BLOCK_CHECKSUM, 4));
        rest = block.get(block_bytes..).ok_or_else(truncated)?;
    }
    match rest.len().checked_sub(optional(LZ4_CONTENT_CHECKSUM, 4)) {
        Some(0) => Ok(()),
        Some(_) => Err(invalid("bytes after the LZ4 frame")),
        None => Err(truncated()),
    }
}
