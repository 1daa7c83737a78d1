//! An embeddable commit log in Apache Kafka's on-disk format.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::unwrap_used))]

mod batch;
mod builder;
mod check;
pub mod checkpoint;
mod checksum;
pub mod compression;
pub mod data_dir;
mod epochs;
mod error;
mod flush;
pub mod fs;
mod housekeeping;
pub mod index;
mod indexes;
pub mod io;
pub mod lock;
mod log;
pub mod metadata_files;
pub mod names;
mod open_files;
mod options;
mod producers;
mod reader;
mod record;
mod recovery;
mod retention;
mod scan;
mod segment;
mod segments;
mod snapshots;
mod state_file;
mod tidy;
mod truncation;
mod types;

pub use batch::{
    Attributes, BatchError, BatchFault, BatchHeader, BatchView, Batches, CRC_START, HEADER_BYTES, HeaderScan,
    LENGTH_PREFIX_BYTES, MAGIC, MAGIC_END, TimestampType, batches, read_header,
};
pub use builder::{BatchBuilder, Record};
pub use check::{
    BatchRefused, CheckedBatch, CorruptBatch, InvalidBatch, Origin, ProduceRules, RECORD_ERRORS_MAX, RecordError,
};
pub use compression::Codec;
pub use data_dir::OpenHints;
pub use epochs::{EpochEnd, EpochHistory, InvalidHistory};
pub use error::{AppendError, Damage, DamageKind, Fence, FlushError, OpenError, ReadError, TruncateError};
pub use flush::{FlushDone, FlushJob};
pub use housekeeping::{Housekeeping, Step, WorkDone, WorkJob, WorkLimits};
pub use log::{Appended, CloseReport, Durability, Log, SegmentInfo};
pub use open_files::OpenFiles;
pub use options::{FlushPolicy, InvalidOption, LogOptions};
pub use producers::{
    CompletedTransaction, MAX_PRODUCERS, ProducerBatch, ProducerState, ProducerTable, Sequence, SequenceError,
    SnapshotError,
};
pub use reader::{Fetched, FoundTimestamp, LogReader, ReadLimit};
pub use record::{
    Headers, RECORD_BYTES_MIN, RecordFault, RecordHeader, RecordView, Records, read_varint, read_varlong, write_varint,
    write_varlong,
};
pub use recovery::{Cut, CutReason, RecoveryReport};
pub use truncation::Truncated;
pub use types::{InvalidTopicId, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};
