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
pub mod fs;
pub mod index;
pub mod io;
pub mod lock;
pub mod metadata_files;
pub mod names;
mod producers;
mod record;
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
pub use epochs::{EpochEnd, EpochHistory, InvalidHistory};
pub use producers::{
    CompletedTransaction, MAX_PRODUCERS, ProducerBatch, ProducerState, ProducerTable, Sequence, SequenceError,
    SnapshotError,
};
pub use record::{
    Headers, RECORD_BYTES_MIN, RecordFault, RecordHeader, RecordView, Records, read_varint, read_varlong, write_varint,
    write_varlong,
};
pub use types::{InvalidTopicId, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};
