//! Appends that are on the disk before they count.

use std::fs::File;
use std::os::unix::fs::FileExt;

use highwater_benches::{EPOCH, NOW, Shape, Subject};
use highwater_storage::{FlushPolicy, Log, LogOptions, SharedLog, WorkLimits};
use tempfile::TempDir;

use crate::rivals::{Load, Okaywal, RaftEngine, Rival};
use crate::scratch;

/// Room that is filled with zeros before it is measured, here and in the baseline.
const FILLED_BYTES: u32 = 64 << 20;

/// Appends of each thread in one round.
const EACH: usize = 32;

/// One write and one sync into a file that was filled with zeros, over and over.
pub(crate) struct BareSync {
    _directory: TempDir,
    file: File,
    batch: Vec<u8>,
    position: u64,
}

impl BareSync {
    pub(crate) fn new(shape: Shape) -> Self {
        let directory = scratch();
        let file = File::create(directory.path().join("bare")).expect("the directory is there");
        let zeros = vec![0; 1 << 20];
        for at in 0..u64::from(FILLED_BYTES) >> 20 {
            file.write_all_at(&zeros, at << 20).expect("the disk has room");
        }
        file.sync_all().expect("the disk has room");
        Self { _directory: directory, file, batch: shape.encode(), position: 0 }
    }
}

impl Subject for BareSync {
    fn once(&mut self) -> Option<u64> {
        if self.position + self.batch.len() as u64 > u64::from(FILLED_BYTES) {
            self.position = 0;
        }
        self.file.write_all_at(&self.batch, self.position).expect("it is there");
        self.file.sync_data().expect("it is there");
        self.position += self.batch.len() as u64;
        Some(self.batch.len() as u64)
    }
}

/// A log that syncs each append.
pub(crate) struct LogSync {
    directory: TempDir,
    log: Option<Log>,
    batch: Vec<u8>,
    round: u32,
    zero_ahead_bytes: u32,
}

impl LogSync {
    /// With its zeros written beforehand, as in the baseline.
    pub(crate) fn filled(shape: Shape) -> Self {
        Self::new(shape, FILLED_BYTES)
    }

    /// With the zeros written by steps of housekeeping between the appends, which count.
    pub(crate) fn filling(shape: Shape) -> Self {
        Self::new(shape, LogOptions::default().zero_ahead_bytes)
    }

    /// Without zeros: each append makes the file longer.
    pub(crate) fn growing(shape: Shape) -> Self {
        Self::new(shape, 0)
    }

    fn new(shape: Shape, zero_ahead_bytes: u32) -> Self {
        let mut subject = Self { directory: scratch(), log: None, batch: shape.encode(), round: 0, zero_ahead_bytes };
        subject.prepare();
        subject
    }
}

impl Subject for LogSync {
    fn once(&mut self) -> Option<u64> {
        let log = self.log.as_mut()?;
        if log.size_bytes() + (1 << 20) > u64::from(FILLED_BYTES) {
            return None;
        }
        log.append(NOW, EPOCH, &self.batch).expect("the batch is good and the disk has room");
        if self.zero_ahead_bytes < FILLED_BYTES {
            let limits = WorkLimits::new(log.end());
            log.housekeeping().step(NOW, &limits).expect("the disk has room");
        }
        Some(self.batch.len() as u64)
    }

    fn prepare(&mut self) {
        self.log = None;
        self.round += 1;
        let options = LogOptions {
            flush: FlushPolicy::EachAppend,
            zero_ahead_bytes: self.zero_ahead_bytes,
            ..LogOptions::default()
        };
        let mut log = Log::open(self.directory.path().join(self.round.to_string()), options).expect("it is empty").0;
        log.append(NOW, EPOCH, &self.batch).expect("the batch is good and the disk has room");
        let limits = WorkLimits::new(log.end());
        while log.housekeeping().step(NOW, &limits).expect("the disk has room").is_some() {}
        self.log = Some(log);
    }
}

/// Threads that share a log.
pub(crate) struct SharedSync {
    inner: LogSync,
    threads: usize,
    shared: Option<SharedLog>,
}

impl SharedSync {
    pub(crate) fn new(shape: Shape, threads: usize) -> Self {
        let mut inner = LogSync::filled(shape);
        let shared = inner.log.take().map(SharedLog::new);
        Self { inner, threads, shared }
    }
}

impl Subject for SharedSync {
    fn once(&mut self) -> Option<u64> {
        let (log, batch) = (self.shared.as_ref()?, &self.inner.batch);
        let bytes = (batch.len() * EACH * self.threads) as u64;
        let size = log.with(|log| log.size_bytes()).ok()?;
        if size + bytes > u64::from(FILLED_BYTES) {
            return None;
        }
        in_threads(self.threads, || {
            log.append(NOW, EPOCH, batch).expect("the batch is good and the disk has room");
        });
        Some(bytes)
    }

    fn prepare(&mut self) {
        self.shared = None;
        self.inner.prepare();
        self.shared = self.inner.log.take().map(SharedLog::new);
    }
}

/// Threads that share an okaywal.
pub(crate) struct SharedOkaywal {
    directory: TempDir,
    threads: usize,
    load: Load,
}

impl SharedOkaywal {
    pub(crate) fn new(threads: usize) -> (Self, Okaywal) {
        let (directory, load) = (scratch(), Load::new(1, true));
        let rival = Okaywal::open(directory.path(), &load);
        (Self { directory, threads, load }, rival)
    }
}

/// An okaywal with those that use it.
pub(crate) struct OkaywalThreads(pub(crate) SharedOkaywal, pub(crate) Okaywal);

impl Subject for OkaywalThreads {
    fn once(&mut self) -> Option<u64> {
        let Self(shared, rival) = self;
        assert!(shared.directory.path().exists());
        in_threads(shared.threads, || {
            let mut entry = rival.log.begin_entry().expect("it is open");
            entry.write_chunk(&shared.load.values[0]).expect("the disk has room");
            entry.commit().expect("the disk has room");
        });
        Some(shared.load.bytes() * (EACH * shared.threads) as u64)
    }
}

/// Threads that share a raft-engine.
pub(crate) struct RaftEngineThreads {
    _directory: TempDir,
    threads: usize,
    load: Load,
    rival: RaftEngine,
    next: std::sync::atomic::AtomicU64,
}

impl RaftEngineThreads {
    pub(crate) fn new(threads: usize) -> Self {
        let (directory, load) = (scratch(), Load::new(1, true));
        let rival = RaftEngine::open(directory.path(), &load);
        Self { _directory: directory, threads, load, rival, next: std::sync::atomic::AtomicU64::new(0) }
    }
}

impl Subject for RaftEngineThreads {
    fn once(&mut self) -> Option<u64> {
        in_threads(self.threads, || {
            let key = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_be_bytes().to_vec();
            let mut batch = raft_engine::LogBatch::default();
            batch.put(1, key, self.load.values[0].clone()).expect("a key of ours");
            self.rival.engine.write(&mut batch, true).expect("the disk has room");
        });
        Some(self.load.bytes() * (EACH * self.threads) as u64)
    }
}

/// Operations in one round of so many threads.
pub(crate) fn operations(threads: usize) -> f64 {
    (EACH * threads) as f64
}

fn in_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..EACH).for_each(|_| work()));
        }
    });
}

/// So many rounds of threads' worth of another subject in one.
pub(crate) struct Repeated<S> {
    inner: S,
    times: usize,
}

impl<S: Subject> Repeated<S> {
    pub(crate) fn new(inner: S, threads: usize) -> Self {
        Self { inner, times: EACH * threads }
    }
}

impl<S: Subject> Subject for Repeated<S> {
    fn once(&mut self) -> Option<u64> {
        (0..self.times).map(|_| self.inner.once()).sum()
    }

    fn prepare(&mut self) {
        self.inner.prepare();
    }
}
