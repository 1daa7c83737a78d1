//! Topic-level configs: what a topic can override, and what the broker's defaults for them are called.

use std::collections::BTreeMap;

use super::keys::{ConfigType, TOPIC_KEYS, TopicKey};

/// `cleanup.policy`: what becomes of old records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Whole segments go by age and size.
    pub delete: bool,
    /// The last record of each key stays. Records need a key.
    pub compact: bool,
}

/// `message.timestamp.type`: who sets the timestamps of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimestampSource {
    /// The producer.
    CreateTime,
    /// The broker, when it appends.
    LogAppendTime,
}

/// What one topic is configured to do. Times are milliseconds, sizes bytes; `-1` and `i64::MAX` mean what they mean
/// in Kafka for the key.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TopicConfig {
    /// `segment.bytes`.
    pub segment_bytes: u32,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `segment.jitter.ms`.
    pub segment_jitter_ms: i64,
    /// `segment.index.bytes`.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `flush.messages`.
    pub flush_messages: i64,
    /// `flush.ms`.
    pub flush_ms: i64,
    /// `retention.ms`, -1 for ever.
    pub retention_ms: i64,
    /// `retention.bytes`, -1 without limit.
    pub retention_bytes: i64,
    /// `max.message.bytes`: the largest batch.
    pub max_message_bytes: u32,
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag_ms: i64,
    /// `min.cleanable.dirty.ratio`.
    pub min_cleanable_dirty_ratio: f64,
    /// `file.delete.delay.ms`.
    pub file_delete_delay_ms: i64,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election: bool,
    /// `min.insync.replicas`.
    pub min_insync_replicas: i32,
    /// `compression.type`. Batches are stored as they come, whatever it says.
    pub compression_type: String,
    /// `preallocate`.
    pub preallocate: bool,
    /// `message.timestamp.type`.
    pub timestamp_source: TimestampSource,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: 604_800_000,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            retention_ms: 604_800_000,
            retention_bytes: -1,
            max_message_bytes: 1_048_588,
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            delete_retention_ms: 86_400_000,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            min_cleanable_dirty_ratio: 0.5,
            file_delete_delay_ms: 60_000,
            unclean_leader_election: false,
            min_insync_replicas: 1,
            compression_type: "producer".to_owned(),
            preallocate: false,
            timestamp_source: TimestampSource::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
        }
    }
}

/// A topic config that is refused (code 40).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTopicConfig {
    /// Kafka has no such topic config.
    #[error("unknown topic config {name:?}{}", super::settings::did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name as given.
        name: String,
        /// The closest name there is.
        nearest: Option<String>,
    },
    /// The value is not one the config takes.
    #[error("invalid value for topic config {name}: {problem}")]
    Value {
        /// The config's name.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl TopicConfig {
    /// `defaults` with `overrides` on top. Names that Kafka has and this broker does not act on are accepted.
    pub fn resolve(defaults: &Self, overrides: &BTreeMap<String, String>) -> Result<Self, InvalidTopicConfig> {
        let mut config = defaults.clone();
        for (name, value) in overrides {
            let Some(key) = TopicKey::named(name) else {
                if super::kafka_names::UNUSED_TOPIC_KEYS.contains(&name.as_str()) {
                    continue;
                }
                let names = TOPIC_KEYS.iter().map(|key| key.name);
                let nearest = super::settings::nearest(name, names).map(str::to_owned);
                return Err(InvalidTopicConfig::Unknown { name: name.clone(), nearest });
            };
            (key.set)(&mut config, value)
                .map_err(|problem| InvalidTopicConfig::Value { name: name.clone(), problem })?;
        }
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms {
            return Err(InvalidTopicConfig::Value {
                name: "min.compaction.lag.ms".to_owned(),
                problem: "it exceeds max.compaction.lag.ms".to_owned(),
            });
        }
        Ok(config)
    }
}

impl TopicKey {
    /// The key called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        TOPIC_KEYS.iter().find(|key| key.name == name)
    }

    /// What the values look like.
    pub fn config_type(&self) -> ConfigType {
        self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(pairs: &[(&str, &str)]) -> Result<TopicConfig, InvalidTopicConfig> {
        let overrides = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        TopicConfig::resolve(&TopicConfig::default(), &overrides)
    }

    #[test]
    fn overrides_lie_on_top_of_the_defaults() {
        let config = resolve(&[("retention.ms", "1000"), ("cleanup.policy", "compact, delete")]).unwrap();
        assert_eq!(config.retention_ms, 1000);
        assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: true });
        assert_eq!(config.segment_bytes, 1 << 30);
        assert!(resolve(&[("leader.replication.throttled.replicas", "*")]).is_ok());
    }

    #[test]
    fn wrong_names_and_values_say_what_would_be_right() {
        let error = resolve(&[("retention.mss", "1")]).unwrap_err().to_string();
        assert!(error.contains("did you mean retention.ms?"), "{error}");
        let error = resolve(&[("min.insync.replicas", "0")]).unwrap_err().to_string();
        assert!(error.contains("min.insync.replicas: 0 is outside 1.."), "{error}");
        assert!(resolve(&[("cleanup.policy", "shred")]).is_err());
        assert!(resolve(&[("cleanup.policy", "")]).is_err());
        assert!(resolve(&[("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]).is_err());
    }

    #[test]
    fn a_name_of_any_length_is_refused_at_once() {
        let started = std::time::Instant::now();
        let error = resolve(&[(&"retention.ms".repeat(200_000), "1")]).unwrap_err();
        assert!(matches!(error, InvalidTopicConfig::Unknown { nearest: None, .. }));
        assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    }

    #[test]
    fn every_value_shown_reads_back_to_the_same_config() {
        let odd = resolve(&[
            ("message.timestamp.type", "LogAppendTime"),
            ("min.cleanable.dirty.ratio", "0.25"),
            ("compression.type", "zstd"),
            ("cleanup.policy", "compact"),
            ("preallocate", "true"),
            ("flush.messages", "1"),
        ])
        .unwrap();
        for config in [TopicConfig::default(), odd] {
            let shown = TOPIC_KEYS.iter().map(|key| (key.name.to_owned(), (key.show)(&config))).collect();
            assert_eq!(TopicConfig::resolve(&TopicConfig::default(), &shown), Ok(config));
        }
    }
}
