//! Standard output that may be closed before everything was said.

use std::io::{self, BufWriter, StdoutLock, Write};

use serde_json::Value;

use super::ResultFormat;

/// Where results go.
pub(crate) struct Output {
    writer: BufWriter<StdoutLock<'static>>,
    format: ResultFormat,
}

impl Output {
    pub(crate) fn new(format: ResultFormat) -> Self {
        Self { writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()), format }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == ResultFormat::Json
    }

    pub(crate) fn format(&self) -> ResultFormat {
        self.format
    }

    /// A line for people; nothing in the other format.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        if self.is_json() { Ok(()) } else { writeln!(self.writer, "{line}") }
    }

    /// An object for machines; nothing in the other format.
    pub(crate) fn object(&mut self, object: &Value) -> io::Result<()> {
        if self.is_json() { writeln!(self.writer, "{object}") } else { Ok(()) }
    }

    /// Has everything written. An error that would be lost when the value is dropped is told here.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Whether an error is that of a pipe whose reader has gone.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}
