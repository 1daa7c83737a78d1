//! An embeddable commit log in Apache Kafka's on-disk format.

pub mod fs;
mod types;

pub use types::{InvalidTopicId, LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};
