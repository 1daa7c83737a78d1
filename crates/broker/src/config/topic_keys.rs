//! The keys that each topic has: one table.

use super::keys::{ConfigType, I32, I64};
use super::parse::{boolean, fraction, number, one_of, show};
use super::{CleanupPolicy, TimestampSource, TopicConfig};

/// One topic-level key.
pub struct TopicKey {
    /// Its name in CreateTopics and DescribeConfigs.
    pub name: &'static str,
    /// The broker's keys that set its default, strongest first. A factor turns their unit into the topic key's.
    pub broker_keys: &'static [(&'static str, i64)],
    /// How its values look.
    pub kind: ConfigType,
    /// Unit and meaning.
    pub doc: &'static str,
    pub(crate) set: fn(&mut TopicConfig, &str) -> Result<(), String>,
    pub(crate) show: fn(&TopicConfig) -> String,
}

impl std::fmt::Debug for TopicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! topic_key {
    ($name:literal, $broker:expr, Boolean, $field:ident, $doc:literal) => {
        TopicKey {
            name: $name,
            broker_keys: $broker,
            kind: ConfigType::Boolean,
            doc: $doc,
            set: |config, text| boolean(text).map(|value| config.$field = value),
            show: |config| show(config.$field),
        }
    };
    ($name:literal, $broker:expr, $kind:ident, $field:ident, $low:expr, $high:expr, $doc:literal) => {
        TopicKey {
            name: $name,
            broker_keys: $broker,
            kind: ConfigType::$kind,
            doc: $doc,
            set: |config, text| number(text, $low, $high).map(|value| config.$field = value),
            show: |config| show(config.$field),
        }
    };
}

const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;

/// The topic-level keys.
pub static TOPIC_KEYS: &[TopicKey] = &[
    TopicKey {
        name: "cleanup.policy",
        broker_keys: &[("log.cleanup.policy", 1)],
        kind: ConfigType::List,
        doc: "delete, compact, both, or nothing: what becomes of old records. Without either all are kept.",
        set: |config, text| {
            let mut policy = CleanupPolicy { delete: false, compact: false };
            // An empty list is none: everything is kept.
            for word in text.split(',').filter(|_| !text.trim().is_empty()) {
                match one_of(word, &["delete", "compact"])? {
                    "delete" => policy.delete = true,
                    _ => policy.compact = true,
                }
            }
            config.cleanup_policy = policy;
            Ok(())
        },
        show: |config| match config.cleanup_policy {
            CleanupPolicy { delete: true, compact: true } => "compact,delete".to_owned(),
            CleanupPolicy { compact: true, .. } => "compact".to_owned(),
            CleanupPolicy { delete: true, .. } => "delete".to_owned(),
            _ => String::new(),
        },
    },
    TopicKey {
        name: "compression.type",
        broker_keys: &[("compression.type", 1)],
        kind: ConfigType::String,
        doc: "Codec of the topic. Batches are stored as producers compressed them, whatever it says.",
        set: |config, text| {
            let codecs = ["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"];
            one_of(text, &codecs).map(|codec| config.compression_type = codec.to_owned())
        },
        show: |config| config.compression_type.clone(),
    },
    topic_key!(
        "delete.retention.ms",
        &[("log.cleaner.delete.retention.ms", 1)],
        Long,
        delete_retention_ms,
        0,
        I64,
        "Milliseconds a tombstone is kept in a compacted topic."
    ),
    topic_key!(
        "file.delete.delay.ms",
        &[("log.segment.delete.delay.ms", 1)],
        Long,
        file_delete_delay_ms,
        0,
        I64,
        "Milliseconds between dropping a segment and removing its files."
    ),
    topic_key!(
        "flush.messages",
        &[("log.flush.interval.messages", 1)],
        Long,
        flush_messages,
        1,
        I64,
        "Records after which a log is synced; 1 syncs before a produce is acknowledged."
    ),
    topic_key!(
        "flush.ms",
        &[("log.flush.interval.ms", 1)],
        Long,
        flush_ms,
        0,
        I64,
        "Milliseconds between syncs of a log."
    ),
    topic_key!(
        "index.interval.bytes",
        &[("log.index.interval.bytes", 1)],
        Int,
        index_interval_bytes,
        0,
        I32,
        "Bytes of records between two index entries."
    ),
    topic_key!(
        "max.compaction.lag.ms",
        &[("log.cleaner.max.compaction.lag.ms", 1)],
        Long,
        max_compaction_lag_ms,
        1,
        I64,
        "Milliseconds after which a record must be considered for compaction."
    ),
    topic_key!(
        "max.message.bytes",
        &[("message.max.bytes", 1)],
        Int,
        max_message_bytes,
        0,
        I32,
        "Bytes of the largest batch."
    ),
    topic_key!(
        "message.timestamp.after.max.ms",
        &[("log.message.timestamp.after.max.ms", 1)],
        Long,
        timestamp_after_max_ms,
        0,
        I64,
        "Milliseconds a record's timestamp may lie ahead of the broker's clock."
    ),
    topic_key!(
        "message.timestamp.before.max.ms",
        &[("log.message.timestamp.before.max.ms", 1)],
        Long,
        timestamp_before_max_ms,
        0,
        I64,
        "Milliseconds a record's timestamp may lie behind the broker's clock."
    ),
    TopicKey {
        name: "message.timestamp.type",
        broker_keys: &[("log.message.timestamp.type", 1)],
        kind: ConfigType::String,
        doc: "CreateTime or LogAppendTime: who sets the timestamps.",
        set: |config, text| {
            config.timestamp_source = match one_of(text, &["CreateTime", "LogAppendTime"])? {
                "LogAppendTime" => TimestampSource::LogAppendTime,
                _ => TimestampSource::CreateTime,
            };
            Ok(())
        },
        show: |config| format!("{:?}", config.timestamp_source),
    },
    TopicKey {
        name: "min.cleanable.dirty.ratio",
        broker_keys: &[("log.cleaner.min.cleanable.ratio", 1)],
        kind: ConfigType::Double,
        doc: "Share of a log that must be uncompacted before it is compacted.",
        set: |config, text| fraction(text, 0.0, 1.0).map(|ratio| config.min_cleanable_dirty_ratio = ratio),
        show: |config| show(config.min_cleanable_dirty_ratio),
    },
    topic_key!(
        "min.compaction.lag.ms",
        &[("log.cleaner.min.compaction.lag.ms", 1)],
        Long,
        min_compaction_lag_ms,
        0,
        I64,
        "Milliseconds a record is safe from compaction."
    ),
    topic_key!(
        "min.insync.replicas",
        &[("min.insync.replicas", 1)],
        Int,
        min_insync_replicas,
        1,
        I32,
        "In-sync replicas without which acks=all is refused."
    ),
    topic_key!(
        "preallocate",
        &[("log.preallocate", 1)],
        Boolean,
        preallocate,
        "Whether segments are allocated at once."
    ),
    topic_key!(
        "retention.bytes",
        &[("log.retention.bytes", 1)],
        Long,
        retention_bytes,
        -1,
        I64,
        "Bytes a partition may hold; -1 without limit."
    ),
    topic_key!(
        "retention.ms",
        &[("log.retention.ms", 1), ("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)],
        Long,
        retention_ms,
        -1,
        I64,
        "Milliseconds a record is kept; -1 for ever."
    ),
    topic_key!(
        "segment.bytes",
        &[("log.segment.bytes", 1)],
        Int,
        segment_bytes,
        14,
        I32,
        "Bytes of a segment. The least is 14 as up to Kafka 3.9 (Kafka 4 wants 1 MiB): small segments make good tests."
    ),
    topic_key!(
        "segment.index.bytes",
        &[("log.index.size.max.bytes", 1)],
        Int,
        segment_index_bytes,
        12,
        I32,
        "Bytes of the largest index of a segment. Kafka allows 4, which holds no entry; here at least one fits."
    ),
    topic_key!(
        "segment.jitter.ms",
        &[("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)],
        Long,
        segment_jitter_ms,
        0,
        I64,
        "Up to so many milliseconds are taken off segment.ms, so that segments do not roll together."
    ),
    topic_key!(
        "segment.ms",
        &[("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)],
        Long,
        segment_ms,
        1,
        I64,
        "Milliseconds after which a segment is rolled."
    ),
    topic_key!(
        "unclean.leader.election.enable",
        &[("unclean.leader.election.enable", 1)],
        Boolean,
        unclean_leader_election,
        "Whether a replica that is not in sync may lead when no other lives. Loses records."
    ),
];
