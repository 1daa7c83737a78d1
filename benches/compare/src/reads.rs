//! Reading, from the start on and anywhere.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use commitlog::message::{MessageBuf, MessageSet};
use commitlog::{CommitLog, LogOptions as CommitLogOptions};
use highwater_benches::{EPOCH, NOW, SHAPES, Subject};
use highwater_storage::{Log, LogOptions, LogReader, Offset, ReadLimit};
use tempfile::TempDir;

use crate::rivals::Load;
use crate::scratch;

/// Bytes of the log that is read.
const LOG_BYTES: u64 = 256 << 20;

/// One fetch.
const READ_BYTES: usize = 1 << 20;

/// Reading from the start to the end, each batch's checksum verified.
pub(crate) struct Verified {
    _directory: TempDir,
    _log: Log,
    reader: LogReader,
    next: Offset,
    buffer: Vec<u8>,
}

impl Verified {
    pub(crate) fn new() -> Self {
        let (directory, log) = written(0, LOG_BYTES);
        let reader = log.reader();
        Self { _directory: directory, _log: log, reader, next: Offset(0), buffer: Vec::new() }
    }
}

impl Subject for Verified {
    fn once(&mut self) -> Option<u64> {
        if self.next >= self.reader.end() {
            self.next = Offset(0);
        }
        let limit = ReadLimit::bytes(READ_BYTES).verified();
        (_, self.next) = self.reader.read_into(self.next, limit, &mut self.buffer).expect("the log is whole");
        Some(self.buffer.len() as u64)
    }
}

/// commitlog's reading of the same records; it verifies each record's checksum.
pub(crate) struct CommitlogRead {
    _directory: TempDir,
    log: CommitLog,
    next: u64,
}

impl CommitlogRead {
    pub(crate) fn new() -> Self {
        let directory = scratch();
        let mut options = CommitLogOptions::new(directory.path());
        options.segment_max_bytes(1 << 30).message_max_bytes(1 << 20).index_max_items(10_000_000);
        let mut log = CommitLog::new(options).expect("an empty directory can be opened");
        let mut batch: MessageBuf = Load::new(100, false).values.iter().collect();
        for _ in 0..LOG_BYTES / (100 << 10) {
            log.append(&mut batch).expect("the disk has room");
        }
        Self { _directory: directory, log, next: 0 }
    }
}

impl Subject for CommitlogRead {
    fn once(&mut self) -> Option<u64> {
        if self.next >= self.log.next_offset() {
            self.next = 0;
        }
        let limit = commitlog::ReadLimit::max_bytes(READ_BYTES);
        let found = self.log.read(self.next, limit).expect("the log is whole");
        self.next += found.len() as u64;
        Some(black_box(found.bytes()).len() as u64)
    }
}

/// One record of 1 KiB at a drawn offset of a log of single records.
pub(crate) struct RandomRead {
    _directory: TempDir,
    _log: Log,
    reader: LogReader,
    draw: Draw,
    buffer: Vec<u8>,
}

impl RandomRead {
    pub(crate) fn new() -> Self {
        let (directory, log) = written(1, LOG_BYTES / 4);
        let reader = log.reader();
        Self { _directory: directory, _log: log, reader, draw: Draw(1), buffer: Vec::new() }
    }
}

impl Subject for RandomRead {
    fn once(&mut self) -> Option<u64> {
        let offset = Offset(self.draw.below(self.reader.end().0 as u64) as i64);
        let (first, _) =
            self.reader.read_into(offset, ReadLimit::bytes(1), &mut self.buffer).expect("the log is whole");
        assert_eq!(first, offset);
        Some(self.buffer.len() as u64)
    }
}

/// One `pread` of as much at a drawn place of a file of the same size.
pub(crate) struct RandomPread {
    _directory: TempDir,
    file: File,
    buffer: Vec<u8>,
    records: u64,
    draw: Draw,
}

impl RandomPread {
    pub(crate) fn new() -> Self {
        let directory = scratch();
        let file = File::create_new(directory.path().join("bare")).expect("the directory is there");
        let batch = SHAPES[1].encode();
        let records = LOG_BYTES / 4 / batch.len() as u64;
        for at in 0..records {
            file.write_all_at(&batch, at * batch.len() as u64).expect("the disk has room");
        }
        let file_again = File::open(directory.path().join("bare")).expect("it is there");
        drop(file);
        Self { _directory: directory, file: file_again, buffer: vec![0; batch.len()], records, draw: Draw(1) }
    }
}

impl Subject for RandomPread {
    fn once(&mut self) -> Option<u64> {
        let at = self.draw.below(self.records) * self.buffer.len() as u64;
        self.file.read_exact_at(&mut self.buffer, at).expect("it is there");
        Some(black_box(&self.buffer).len() as u64)
    }
}

/// commitlog's reading of one record.
pub(crate) struct CommitlogRandom {
    inner: CommitlogRead,
    draw: Draw,
}

impl CommitlogRandom {
    pub(crate) fn new() -> Self {
        Self { inner: CommitlogRead::new(), draw: Draw(1) }
    }
}

impl Subject for CommitlogRandom {
    fn once(&mut self) -> Option<u64> {
        let offset = self.draw.below(self.inner.log.next_offset() - 2);
        let limit = commitlog::ReadLimit::max_bytes(1100);
        let found = self.inner.log.read(offset, limit).expect("the log is whole");
        Some(black_box(found.bytes()).len() as u64)
    }
}

/// The same numbers for all.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn written(shape: usize, bytes: u64) -> (TempDir, Log) {
    let directory = scratch();
    let options = LogOptions { segment_bytes: 64 << 20, ..LogOptions::default() };
    let mut log = Log::open(directory.path().join("log"), options).expect("an empty directory can be opened").0;
    let batch = SHAPES[shape].encode();
    while log.size_bytes() < bytes {
        log.append(NOW, EPOCH, &batch).expect("the disk has room");
    }
    (directory, log)
}
