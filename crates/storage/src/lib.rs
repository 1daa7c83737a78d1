//! An embeddable commit log in Apache Kafka's on-disk format.
//!
//! A [`Log`] is one partition: a directory of segments with their indexes, which Kafka can open and which may come from
//! Kafka. It appends record batches, reads them while it goes on writing, truncates, forgets old ones, and recovers what
//! a crash left. There are no threads, no clock and no network in here: the caller tells the time, chooses when to sync
//! and on which thread, and runs the housekeeping. All file access goes through [`fs::Fs`], and with [`fs::SimFs`] comes
//! a disk that crashes, tears and fails on demand, for your own tests too.
//!
//! ```
//! use highwater_storage::{
//!     BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, ReadLimit, Record, TimestampMs, batches,
//! };
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("log");
//! let (mut log, report) = Log::open(&path, LogOptions::default())?;
//! assert!(report.created);
//!
//! let now = TimestampMs(1_700_000_000_000);
//! let mut builder = BatchBuilder::new(Codec::None);
//! builder.push(Record::new(now, b"first")).push(Record::keyed(now, b"key", b"second"));
//! let appended = log.append(now, LeaderEpoch(0), &builder.build())?;
//! assert_eq!((appended.first, appended.last), (Offset(0), Offset(1)));
//! log.flush()?; // From here on it survives a power cut.
//!
//! let reader = log.reader(); // For any thread, while the log goes on.
//! let fetched = reader.read(Offset(1), ReadLimit::bytes(1 << 20))?;
//! for batch in batches(&fetched.bytes) {
//!     let batch = batch?; // Whole batches: this one begins at offset 0.
//!     let values: Vec<_> = batch.records().unwrap().map(|record| record.unwrap().value.unwrap()).collect();
//!     assert_eq!(values, [b"first".as_slice(), b"second"]);
//! }
//! log.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What may be lost when:
//!
//! | after | a crash of the process | a power cut |
//! |---|---|---|
//! | [`Log::append`] | nothing | what was not flushed, from some batch on; never one in the middle |
//! | [`Log::flush`], or a [`FlushPolicy`] that synced | nothing | nothing |
//! | [`Log::truncate_to`], [`Log::advance_start`], [`Log::reset_to`] | nothing comes back | nothing comes back |
//!
//! Start with [`Log`] and [`LogReader`]. What there is beside them:
//!
//! | you want | look at |
//! |---|---|
//! | one log for many threads, which share syncs | [`SharedLog`] |
//! | records gathered into batches | [`RecordBuffer`], [`BatchBuilder`] |
//! | to know what opening found; to read without writing anything | [`RecoveryReport`], [`Log::open_read_only`] |
//! | the disk off the writer's thread | [`Log::begin_flush`], [`Log::begin_work`], [`FlushPolicy`] |
//! | retention, rolls, checkpoints, step by step | [`Log::housekeeping`], [`Step`] |
//! | the last record of each key only | [`LogOptions::compaction`], [`CompactionOptions`] |
//! | rot found before somebody needs the records | [`LogOptions::scrub_interval_ms`], [`ScrubRate`], [`Log::damage`] |
//! | a copy, while the log goes on | [`Log::snapshot`], [`Log::begin_snapshot`] |
//! | records of committed transactions only | [`LogReader::last_stable_offset`], [`LogReader::aborted_transactions`] |
//! | a directory looked into and checked, without a change | [`inspect`] |
//! | a damaged directory put right | [`repair`] |
//! | many logs in one directory, as a Kafka broker has them | [`data_dir`] |
//! | your own program tried on a disk that crashes, a network that loses and clocks that lie | [`fs::SimFs`]; the feature `sim` |
//!
//! The examples `append_and_read`, `tail`, `housekeeping_thread`, `crash_test_your_code` and `simulate_your_program` show one
//! use each.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]
#![deny(clippy::missing_errors_doc)]

mod batch;
mod builder;
mod check;
pub mod checkpoint;
mod checksum;
mod compaction;
pub mod compression;
mod copy;
mod damage;
pub mod data_dir;
mod epochs;
mod error;
mod flush;
mod flush_policy;
pub mod fs;
mod heal;
mod housekeeping;
pub mod index;
mod indexes;
pub mod inspect;
pub mod io;
mod legacy;
pub mod lock;
mod log;
mod markers;
pub mod metadata_files;
pub mod names;
mod on_demand;
mod open_files;
mod options;
mod producers;
mod read_once;
mod reader;
mod rebuilt;
mod record;
mod record_buffer;
mod records;
mod recovery;
pub mod repair;
mod retention;
mod retire;
mod root_checkpoints;
mod scan;
mod scrub;
mod segment;
mod segments;
mod shared_log;
#[cfg(feature = "sim")]
pub mod sim;
mod snapshots;
mod state_file;
mod survey;
mod tidy;
mod transactions;
mod truncation;
mod types;
mod window;
mod zero_ahead;

pub use batch::{
    Attributes, BatchError, BatchFault, BatchHeader, BatchView, Batches, CRC_START, HEADER_BYTES, HeaderScan,
    LENGTH_PREFIX_BYTES, MAGIC, MAGIC_END, TimestampType, batches, last_batch, read_header,
};
pub use builder::{BatchBuilder, Record};
pub use check::{
    BatchRefused, CheckedBatch, CorruptBatch, InvalidBatch, Origin, ProduceRules, RECORD_ERRORS_MAX, RecordError,
};
pub use compaction::{CompactionMemory, CompactionOptions};
pub use compression::Codec;
pub use copy::{Copied, CopyError, CopyJob};
pub use data_dir::OpenHints;
pub use epochs::{EpochEnd, EpochHistory, InvalidHistory};
pub use error::{
    AppendError, DamageKind, Damaged, Fence, FlushError, HealError, Misfit, OpenError, ReadError, TruncateError,
};
pub use flush::{FlushDone, FlushJob};
pub use housekeeping::{Housekeeping, Step, WorkDone, WorkJob, WorkLimits};
pub use index::AbortedTransaction;
pub use log::{Appended, CloseReport, Durability, Log, SegmentInfo};
pub use markers::TransactionMarker;
pub use open_files::OpenFiles;
pub use options::{FlushPolicy, InvalidOption, LogOptions, ZeroAheadMode};
pub use producers::{
    CompletedTransaction, MAX_PRODUCERS, ProducerBatch, ProducerState, ProducerTable, Sequence, SequenceError,
    SnapshotError,
};
pub use reader::{Fetched, FoundTimestamp, LogReader, ReadLimit};
pub use record::{
    Headers, RECORD_BYTES_MIN, RecordFault, RecordHeader, RecordView, Records, read_varint, read_varlong, write_varint,
    write_varlong,
};
pub use record_buffer::{BufferPolicy, Pushed, RecordBuffer};
pub use records::{RecordReader, RecordsError, StoredRecord};
pub use recovery::{Cut, CutReason, PutAside, RecoveryReport, Repaired, RepairedField};
pub use scrub::ScrubRate;
pub use shared_log::SharedLog;
pub use truncation::Truncated;
pub use types::{InvalidTopicId, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
