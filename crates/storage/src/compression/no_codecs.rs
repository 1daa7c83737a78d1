//! What stands in for the codecs in a build without the feature `compression`.

#![cfg_attr(feature = "compression", allow(dead_code, reason = "only its errors are tested there"))]

use std::io::{self, Read, Write};

use super::{Codec, CodecNotBuiltIn};

pub(super) fn reader(codec: Codec, _bytes: &[u8]) -> io::Result<Box<dyn Read>> {
    Err(CodecNotBuiltIn { codec }.into())
}

pub(super) fn lz4_reader_with_any_header_checksum(_bytes: &[u8]) -> io::Result<Box<dyn Read>> {
    Err(CodecNotBuiltIn { codec: Codec::Lz4 }.into())
}

/// Hands on what is written to it: there is nothing to compress with.
pub(crate) struct Compressor(Vec<u8>);

impl Compressor {
    pub(crate) fn new(codec: Codec) -> io::Result<Self> {
        if codec == Codec::None { Ok(Self(Vec::new())) } else { Err(CodecNotBuiltIn { codec }.into()) }
    }

    pub(crate) fn finish(self) -> io::Result<Vec<u8>> {
        Ok(self.0)
    }
}

impl Write for Compressor {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
