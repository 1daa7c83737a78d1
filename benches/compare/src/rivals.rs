//! The other crates, each through its own API in the way its documentation shows.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use commitlog::message::MessageBuf;
use commitlog::{CommitLog, LogOptions as CommitLogOptions};
use highwater_benches::Subject;
use mrecordlog::{MultiRecordLog, SyncPolicy};
use okaywal::{Configuration, LogVoid, WriteAheadLog};
use raft_engine::{Config, Engine, LogBatch, ReadableSize};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::scratch;

/// A contender starts over after so many bytes, as ours and the baseline do.
const BYTES_MAX: u64 = 256 << 20;

/// What each operation appends.
#[derive(Clone)]
pub(crate) struct Load {
    /// The values of its records.
    pub(crate) values: Vec<Vec<u8>>,
    /// Whether it is synced before it counts.
    pub(crate) synced: bool,
}

impl Load {
    /// So many values of 1 KiB that do not compress.
    pub(crate) fn new(records: usize, synced: bool) -> Self {
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        Self { values: (0..records).map(|_| (0..1024).map(|_| byte()).collect()).collect(), synced }
    }

    /// Bytes of values.
    pub(crate) fn bytes(&self) -> u64 {
        self.values.iter().map(|value| value.len() as u64).sum()
    }
}

/// A crate's log that can be made anew.
pub(crate) trait Rival: Sized {
    /// An empty one.
    fn open(directory: &Path, load: &Load) -> Self;
    /// Appends the load once.
    fn append(&mut self, load: &Load);
}

/// A rival as a subject.
pub(crate) struct Appends<R> {
    directory: TempDir,
    rival: Option<R>,
    load: Load,
    appended: u64,
    round: u32,
}

impl<R: Rival> Appends<R> {
    pub(crate) fn new(load: &Load) -> Self {
        let mut subject = Self { directory: scratch(), rival: None, load: load.clone(), appended: 0, round: 0 };
        subject.prepare();
        subject
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(self.round.to_string())
    }
}

impl<R: Rival> Subject for Appends<R> {
    fn once(&mut self) -> Option<u64> {
        if self.appended >= BYTES_MAX {
            return None;
        }
        self.rival.as_mut()?.append(&self.load);
        self.appended += self.load.bytes();
        Some(self.load.bytes())
    }

    fn prepare(&mut self) {
        if self.rival.take().is_some() {
            // Some of them still have threads that write for a moment.
            let _ = std::fs::remove_dir_all(self.path());
        }
        self.round += 1;
        self.appended = 0;
        std::fs::create_dir(self.path()).expect("the directory can be written to");
        self.rival = Some(R::open(&self.path(), &self.load));
    }
}

/// commitlog 0.2. Its `flush` is that of `std::fs::File`, which does nothing: it cannot sync.
pub(crate) struct Commitlog {
    log: CommitLog,
    batch: MessageBuf,
}

impl Rival for Commitlog {
    fn open(directory: &Path, load: &Load) -> Self {
        assert!(!load.synced, "it has no sync");
        let mut options = CommitLogOptions::new(directory);
        options.segment_max_bytes(1 << 30).message_max_bytes(1 << 20).index_max_items(10_000_000);
        let log = CommitLog::new(options).expect("an empty directory can be opened");
        Self { log, batch: load.values.iter().collect() }
    }

    fn append(&mut self, _: &Load) {
        self.log.append(&mut self.batch).expect("the disk has room");
    }
}

/// mrecordlog 0.4. It keeps all records in memory as well, and in no file of its source is there a sync: what it calls so
/// is the flush of a buffer.
pub(crate) struct Mrecordlog {
    runtime: Runtime,
    log: MultiRecordLog,
}

impl Rival for Mrecordlog {
    fn open(directory: &Path, load: &Load) -> Self {
        assert!(!load.synced, "it has no sync");
        let runtime = runtime();
        let policy = SyncPolicy::OnDelay(Duration::from_secs(1_000_000));
        let log = runtime.block_on(async {
            let mut log = MultiRecordLog::open_with_prefs(directory, policy).await.expect("an empty directory");
            log.create_queue("queue").await.expect("a new queue");
            log
        });
        Self { runtime, log }
    }

    fn append(&mut self, load: &Load) {
        let records = load.values.iter().map(Vec::as_slice);
        self.runtime.block_on(self.log.append_records("queue", None, records)).expect("the disk has room");
    }
}

/// okaywal 0.3, which syncs each entry.
pub(crate) struct Okaywal {
    pub(crate) log: WriteAheadLog,
}

impl Rival for Okaywal {
    fn open(directory: &Path, load: &Load) -> Self {
        assert!(load.synced, "it always syncs");
        let configuration =
            Configuration::default_for(directory).preallocate_bytes(64 << 20).checkpoint_after_bytes(48 << 20);
        Self { log: configuration.open(LogVoid).expect("an empty directory can be opened") }
    }

    fn append(&mut self, load: &Load) {
        let mut entry = self.log.begin_entry().expect("it is open");
        for value in &load.values {
            entry.write_chunk(value).expect("the disk has room");
        }
        entry.commit().expect("the disk has room");
    }
}

/// raft-engine 0.4, through its keys and values; without compression, as for all others.
pub(crate) struct RaftEngine {
    pub(crate) engine: Arc<Engine>,
    batch: LogBatch,
    next: u64,
}

impl Rival for RaftEngine {
    fn open(directory: &Path, _: &Load) -> Self {
        let dir = directory.to_str().expect("a path of ours").to_owned();
        let config = Config { dir, batch_compression_threshold: ReadableSize::kb(0), ..Config::default() };
        let engine = Engine::open(config).expect("an empty directory can be opened");
        Self { engine: Arc::new(engine), batch: LogBatch::default(), next: 0 }
    }

    fn append(&mut self, load: &Load) {
        for value in &load.values {
            self.batch.put(1, self.next.to_be_bytes().to_vec(), value.clone()).expect("a key of ours");
            self.next += 1;
        }
        self.engine.write(&mut self.batch, load.synced).expect("the disk has room");
    }
}

/// kafko 0.3, one partition.
pub(crate) struct Kafko {
    runtime: Runtime,
    partition: kafko::Partition,
}

impl Rival for Kafko {
    fn open(directory: &Path, _: &Load) -> Self {
        let runtime = runtime();
        let opened = runtime.block_on(kafko::Partition::open(directory, kafko::LogConfig::default()));
        Self { runtime, partition: opened.expect("an empty directory can be opened") }
    }

    fn append(&mut self, load: &Load) {
        let record = |value: &Vec<u8>| kafko::Record::new(1_700_000_000_000, None, value.clone().into());
        let records = load.values.iter().map(record).collect();
        self.runtime.block_on(async {
            self.partition.append_batch(records).await.expect("the disk has room");
            if load.synced {
                self.partition.sync().await.expect("the disk has room");
            }
        });
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("threads can be made")
}
