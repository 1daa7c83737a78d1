//! What is measured: each use of the log, and beside it the least that a program could do for the same bytes.
//!
//! The criterion benches and the `ratio` summary run the same code from here.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, ReadLimit, Record, TimestampMs,
    batches,
};
use tempfile::TempDir;

/// An append starts over with an empty file after so many bytes: enough that starting over does not count, and few
/// enough to stay in the page cache, which is what both sides write to.
const APPENDED_BYTES_MAX: u64 = 256 << 20;

/// The log that is read and opened.
const LOG_BYTES: u64 = 256 << 20;

/// The log that is scanned after a crash.
const SCANNED_BYTES: u64 = 64 << 20;

/// One read, as a fetch of that size does it.
const READ_BYTES: usize = 1 << 20;

/// The time of all appends.
pub const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
/// The epoch of all appends.
pub const EPOCH: LeaderEpoch = LeaderEpoch(0);

/// Something to measure.
pub trait Subject {
    /// Does the work once, and says how many bytes that was. `None` if it has to be prepared again first.
    fn once(&mut self) -> Option<u64>;

    /// Makes the next work possible. Not measured.
    fn prepare(&mut self) {}
}

/// Time and bytes of some rounds of a subject, without its preparations.
pub fn measure(subject: &mut dyn Subject, rounds: u64) -> (Duration, u64) {
    let (mut took, mut bytes, mut left) = (Duration::ZERO, 0, rounds);
    while left > 0 {
        let started = Instant::now();
        while left > 0 {
            let Some(done) = subject.once() else { break };
            bytes += done;
            left -= 1;
        }
        took += started.elapsed();
        if left > 0 {
            subject.prepare();
        }
    }
    (took, bytes)
}

/// A batch of so many records with values of so many bytes, as a producer sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// How it is called in the results.
    pub name: &'static str,
    records: usize,
    value_bytes: usize,
}

/// The batches that are appended.
pub const SHAPES: [Shape; 3] = [
    Shape { name: "100x1KiB", records: 100, value_bytes: 1024 },
    Shape { name: "1x1KiB", records: 1, value_bytes: 1024 },
    Shape { name: "1x100B", records: 1, value_bytes: 100 },
];

impl Shape {
    /// The encoded batch. Its values do not compress, in case anything below us tries.
    pub fn encode(self) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Codec::None);
        let mut state = 1_u64;
        for _ in 0..self.records {
            let value: Vec<u8> = (0..self.value_bytes)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    state.to_be_bytes()[0]
                })
                .collect();
            builder.push(Record::new(NOW, &value));
        }
        builder.build()
    }
}

/// A directory that goes when the subject does, beside cargo's other output: on the disk the project is on.
fn scratch() -> TempDir {
    let target = std::env::current_exe().expect("a bench knows where it is");
    let target = target.parent().expect("a bench lies in a directory");
    tempfile::Builder::new()
        .prefix("highwater-bench")
        .tempdir_in(target)
        .expect("the target directory can be written to")
}

/// Appending one batch to a log: checks, offsets, indexes, one write.
#[derive(Debug)]
pub struct LogAppend {
    directory: TempDir,
    log: Option<Log>,
    batch: Vec<u8>,
    /// The batch with its check behind it, if the check is not to be measured.
    checked: Option<CheckedBatch<Vec<u8>>>,
    /// Counted here as in the baseline: asking the log takes longer than to append a small record.
    appended: u64,
    round: u32,
}

impl LogAppend {
    /// An empty log.
    pub fn new(shape: Shape) -> Self {
        let batch = shape.encode();
        let mut subject = Self { directory: scratch(), log: None, batch, checked: None, appended: 0, round: 0 };
        subject.prepare();
        subject
    }

    /// An empty log, for a batch that was checked once beforehand: as a writer appends what its own encoder made, or
    /// what was checked on another thread.
    pub fn checked(shape: Shape) -> Self {
        let mut subject = Self::new(shape);
        let rules = &LogOptions::default().rules;
        let checked = CheckedBatch::check(subject.batch.clone(), rules, NOW).expect("the batch is good");
        subject.checked = Some(checked);
        subject
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(self.round.to_string())
    }
}

impl Subject for LogAppend {
    fn once(&mut self) -> Option<u64> {
        let log = self.log.as_mut()?;
        if self.appended >= APPENDED_BYTES_MAX {
            return None;
        }
        self.appended += self.batch.len() as u64;
        let appended = match &self.checked {
            Some(checked) => log.append_checked(NOW, EPOCH, checked),
            None => log.append(NOW, EPOCH, &self.batch),
        };
        black_box(appended.expect("the batch is good and the disk has room"));
        Some(self.batch.len() as u64)
    }

    fn prepare(&mut self) {
        if self.log.take().is_some() {
            fs::remove_dir_all(self.path()).expect("it is ours");
        }
        self.round += 1;
        self.appended = 0;
        self.log = Some(Log::open(self.path(), LogOptions::default()).expect("an empty directory can be opened").0);
    }
}

/// The least for the same bytes: a pass of CRC-32C, one write.
#[derive(Debug)]
pub struct RawAppend {
    _directory: TempDir,
    file: File,
    position: u64,
    batch: Vec<u8>,
}

impl RawAppend {
    /// An empty file.
    pub fn new(shape: Shape) -> Self {
        let directory = scratch();
        let file = File::create(directory.path().join("raw")).expect("the directory is there");
        Self { _directory: directory, file, position: 0, batch: shape.encode() }
    }
}

impl Subject for RawAppend {
    fn once(&mut self) -> Option<u64> {
        if self.position >= APPENDED_BYTES_MAX {
            return None;
        }
        black_box(crc32c::crc32c(&self.batch));
        self.file.write_all_at(&self.batch, self.position).expect("the disk has room");
        self.position += self.batch.len() as u64;
        Some(self.batch.len() as u64)
    }

    fn prepare(&mut self) {
        self.file.set_len(0).expect("it is ours");
        self.position = 0;
    }
}

/// Writes a log of batches of 100 × 1 KiB, closed or dropped as by a crash.
fn written(directory: &Path, bytes: u64, segment_bytes: u32, close: bool) {
    let options = LogOptions { segment_bytes, ..LogOptions::default() };
    let (mut log, _) = Log::open(directory, options).expect("an empty directory can be opened");
    let batch = SHAPES[0].encode();
    while log.size_bytes() < bytes {
        log.append(NOW, EPOCH, &batch).expect("the batch is good and the disk has room");
    }
    if close {
        log.close().expect("it can be written");
    }
}

/// Reading a log from its start to its end, over and over, in fetches of 1 MiB, batch by batch.
#[derive(Debug)]
pub struct LogRead {
    _directory: Arc<TempDir>,
    _log: Log,
    reader: LogReader,
    next: Offset,
    buffer: Vec<u8>,
}

/// The least for the same bytes of the same files: one pread each.
#[derive(Debug)]
pub struct RawRead {
    _directory: Arc<TempDir>,
    segments: Vec<File>,
    segment: usize,
    position: u64,
    buffer: PageAligned,
}

/// A buffer that begins at a page. Where a file's page is copied to an address a few bytes past the start of one, as an
/// ordinary `Vec` of this size has it, some processors take half as long again (4 KiB aliasing in `rep movsb`); a
/// baseline should not have that against it.
#[derive(Debug)]
struct PageAligned {
    bytes: Vec<u8>,
    start: usize,
}

impl PageAligned {
    fn new() -> Self {
        let bytes = vec![0; READ_BYTES + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + READ_BYTES]
    }
}

/// Both readers over one log of 256 MiB in segments of 64 MiB: two logs may lie in memory in two ways.
pub fn readers() -> (RawRead, LogRead) {
    let directory = Arc::new(scratch());
    let path = directory.path().join("log");
    written(&path, LOG_BYTES, 64 << 20, true);
    let mut segments: Vec<PathBuf> = fs::read_dir(&path)
        .expect("it was just written")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    let segments = segments.iter().map(|path| File::open(path).expect("it was just written")).collect();
    let raw =
        RawRead { _directory: Arc::clone(&directory), segments, segment: 0, position: 0, buffer: PageAligned::new() };
    let (log, _) = Log::open(&path, LogOptions::default()).expect("it was just written");
    let reader = log.reader();
    (raw, LogRead { _directory: directory, _log: log, reader, next: Offset::ZERO, buffer: Vec::new() })
}

impl Subject for LogRead {
    fn once(&mut self) -> Option<u64> {
        let limit = ReadLimit::bytes(READ_BYTES);
        let (_, next) = self.reader.read_into(self.next, limit, &mut self.buffer).expect("what is there can be read");
        for batch in batches(&self.buffer) {
            black_box(batch.expect("only whole batches are read").header().next_offset());
        }
        self.next = if next == self.reader.end() { Offset::ZERO } else { next };
        Some(self.buffer.len() as u64)
    }
}

impl Subject for RawRead {
    fn once(&mut self) -> Option<u64> {
        let mut read = self.segments[self.segment].read_at(self.buffer.slice(), self.position);
        if matches!(read, Ok(0)) {
            self.segment = (self.segment + 1) % self.segments.len();
            self.position = 0;
            read = self.segments[self.segment].read_at(self.buffer.slice(), 0);
        }
        let read = read.expect("what is there can be read") as u64;
        self.position += read;
        Some(black_box(read))
    }
}

/// Opening a log that was closed well.
#[derive(Debug)]
pub struct LogOpen {
    directory: TempDir,
}

impl LogOpen {
    /// A log of 256 MiB in 16 segments.
    pub fn new() -> Self {
        let directory = scratch();
        written(&directory.path().join("log"), LOG_BYTES, 16 << 20, true);
        Self { directory }
    }
}

impl Default for LogOpen {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for LogOpen {
    fn once(&mut self) -> Option<u64> {
        let options = LogOptions { segment_bytes: 16 << 20, ..LogOptions::default() };
        let (log, report) = Log::open(self.directory.path().join("log"), options).expect("it was closed well");
        assert!(report.clean, "opening changed the log");
        black_box(log.end());
        Some(LOG_BYTES)
    }
}

/// The least for the same: list the directory, ask each file's length, read the end of the last one.
#[derive(Debug)]
pub struct RawOpen {
    directory: TempDir,
    buffer: Vec<u8>,
}

impl RawOpen {
    /// The same log.
    pub fn new() -> Self {
        Self { directory: LogOpen::new().directory, buffer: vec![0; SHAPES[0].encode().len()] }
    }
}

impl Default for RawOpen {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for RawOpen {
    fn once(&mut self) -> Option<u64> {
        let mut last = (PathBuf::new(), 0);
        for entry in fs::read_dir(self.directory.path().join("log")).expect("it is there") {
            let entry = entry.expect("it can be listed");
            let len = entry.metadata().expect("it is there").len();
            if entry.path().extension().is_some_and(|extension| extension == "log") && entry.path() > last.0 {
                last = (entry.path(), len);
            }
        }
        let file = File::open(&last.0).expect("it is there");
        let position = last.1.saturating_sub(self.buffer.len() as u64);
        black_box(file.read_at(&mut self.buffer, position).expect("it can be read"));
        Some(LOG_BYTES)
    }
}

/// Opening a log after a crash: every batch is read and its checksum verified.
#[derive(Debug)]
pub struct LogScan {
    directory: TempDir,
}

impl LogScan {
    /// A log of 64 MiB that was never flushed.
    pub fn new() -> Self {
        let directory = scratch();
        written(&directory.path().join("log"), SCANNED_BYTES, 1 << 30, false);
        Self { directory }
    }
}

impl Default for LogScan {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for LogScan {
    fn once(&mut self) -> Option<u64> {
        let (log, report) = Log::open(self.directory.path().join("log"), LogOptions::default()).expect("it is whole");
        assert!(report.bytes_scanned >= SCANNED_BYTES, "only {} bytes were scanned", report.bytes_scanned);
        black_box(log.end());
        Some(report.bytes_scanned)
    }
}

/// The least for the same: read the file once and take its CRC-32C.
#[derive(Debug)]
pub struct RawScan {
    directory: TempDir,
    buffer: PageAligned,
}

impl RawScan {
    /// The same log.
    pub fn new() -> Self {
        Self { directory: LogScan::new().directory, buffer: PageAligned::new() }
    }
}

impl Default for RawScan {
    fn default() -> Self {
        Self::new()
    }
}

impl Subject for RawScan {
    fn once(&mut self) -> Option<u64> {
        let path = self.directory.path().join("log/00000000000000000000.log");
        let file = File::open(path).expect("it is there");
        let (mut position, mut crc) = (0, 0);
        loop {
            let buffer = self.buffer.slice();
            let read = file.read_at(buffer, position).expect("it can be read");
            if read == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..read]);
            position += read as u64;
        }
        black_box(crc);
        Some(position)
    }
}
