//! Topic-level configs: what a topic can override, and what the broker's defaults for them are called.

use std::collections::BTreeMap;

use super::kafka_defaults::KAFKA_TOPIC_KEYS;
use super::keys::ConfigType;
use super::topic_keys::{TOPIC_KEYS, TopicKey};

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
    #[error("Unknown topic config name: {name}{}", super::settings::did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The name as given.
        name: String,
        /// The closest name there is.
        nearest: Option<String>,
    },
    /// The value is not one the config takes.
    #[error("Invalid value {value} for configuration {name}: {problem}")]
    Value {
        /// The config's name.
        name: String,
        /// The value as given.
        value: String,
        /// What is wrong.
        problem: String,
    },
    /// Two values contradict each other.
    #[error("conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})")]
    Conflict {
        /// The one, in milliseconds.
        least: i64,
        /// The other.
        most: i64,
    },
    /// There are no tiers here.
    #[error(
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage."
    )]
    NoTiers,
}

impl TopicConfig {
    /// `defaults` with `overrides` on top. Names that Kafka has and this broker does not act on are accepted.
    pub fn resolve(defaults: &Self, overrides: &BTreeMap<String, String>) -> Result<Self, InvalidTopicConfig> {
        let mut config = defaults.clone();
        overrides.iter().try_for_each(|(name, value)| config.take(name, value))?;
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms {
            let (least, most) = (config.min_compaction_lag_ms, config.max_compaction_lag_ms);
            return Err(InvalidTopicConfig::Conflict { least, most });
        }
        Ok(config)
    }

    /// `defaults` with those of the `overrides` on top that can be read, and what is wrong with the others. What was set once is
    /// held to whatever became of the defaults since: one setting that is not understood must not have a topic that is to keep
    /// its records lose them.
    pub(crate) fn stored(defaults: &Self, overrides: &BTreeMap<String, String>) -> (Self, Vec<InvalidTopicConfig>) {
        let mut config = defaults.clone();
        let unreadable = overrides.iter().filter_map(|(name, value)| config.take(name, value).err()).collect();
        (config, unreadable)
    }

    /// Takes one setting over. After an error nothing has changed.
    fn take(&mut self, name: &str, value: &str) -> Result<(), InvalidTopicConfig> {
        let Some(key) = TopicKey::named(name) else {
            if super::kafka_names::UNUSED_TOPIC_KEYS.contains(&name) {
                return Ok(());
            }
            let names = TOPIC_KEYS.iter().map(|key| key.name);
            let nearest = super::settings::nearest(name, names).map(str::to_owned);
            return Err(InvalidTopicConfig::Unknown { name: name.to_owned(), nearest });
        };
        (key.set)(self, value).map_err(|problem| InvalidTopicConfig::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            problem,
        })
    }

    /// Whether a config can be set now: to a value it takes, and not one of a Kafka of the past, which is only read.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_new(name: &str, value: &str) -> Result<(), InvalidTopicConfig> {
        let problem = match KAFKA_TOPIC_KEYS.iter().find(|(key, ..)| *key == name) {
            Some(("remote.storage.enable", ..)) if !value.trim().eq_ignore_ascii_case("false") => {
                return Err(InvalidTopicConfig::NoTiers);
            }
            Some((_, ConfigType::Boolean, ..)) => super::parse::boolean(value).err(),
            Some((_, ConfigType::Int | ConfigType::Long, ..)) => {
                super::parse::number::<i64>(value, i64::MIN, i64::MAX).err()
            }
            Some((_, ConfigType::List, ..)) if name.ends_with(".throttled.replicas") && !are_replicas(value) => {
                Some(format!(
                    "{name} must be the literal '*' or a list of replicas in the following format: \
                     [partitionId]:[brokerId],[partitionId]:[brokerId],..."
                ))
            }
            Some(_) => None,
            None if TopicKey::named(name).is_some() => None,
            None => {
                let nearest = super::settings::nearest(name, TOPIC_KEYS.iter().map(|key| key.name)).map(str::to_owned);
                return Err(InvalidTopicConfig::Unknown { name: name.to_owned(), nearest });
            }
        };
        let refused = |problem| InvalidTopicConfig::Value { name: name.to_owned(), value: value.to_owned(), problem };
        problem.map_or(Ok(()), |problem| Err(refused(problem)))
    }
}

/// Whether this is a list of replicas, each PARTITION:BROKER, or all (Kafka's `ThrottledReplicaListValidator`).
fn are_replicas(value: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_replica = |text: &str| {
        text.is_empty() || text.split_once(':').is_some_and(|(left, right)| is_number(left) && is_number(right))
    };
    value.trim() == "*" || value.split(',').all(|replica| is_replica(replica.trim()))
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
        assert!(
            error.starts_with("Invalid value 0 for configuration min.insync.replicas: 0 is outside 1.."),
            "{error}"
        );
        assert!(resolve(&[("cleanup.policy", "shred")]).is_err());
        assert!(resolve(&[("cleanup.policy", "delete,")]).is_err());
        assert!(resolve(&[("min.compaction.lag.ms", "5"), ("max.compaction.lag.ms", "4")]).is_err());
    }

    #[test]
    fn what_a_kafka_of_the_past_has_left_is_read_and_not_set_again() {
        let left = [("message.format.version", "2.0"), ("message.downconversion.enable", "true")];
        assert!(resolve(&left).is_ok());
        for (name, value) in left.into_iter().chain([("no.such", "1"), ("remote.storage.enable", "true")]) {
            assert!(TopicConfig::check_new(name, value).is_err(), "{name}");
        }
        assert!(TopicConfig::check_new("compression.gzip.level", "much").is_err());
        for (value, is_good) in
            [("*", true), ("", true), ("0:1, 1:2", true), ("a:b", false), ("0:1,*", false), ("0", false)]
        {
            for name in ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"] {
                assert_eq!(TopicConfig::check_new(name, value).is_ok(), is_good, "{name}={value}");
            }
        }
        for (name, value) in
            [("compression.gzip.level", "5"), ("remote.storage.enable", "false"), ("retention.ms", "1")]
        {
            assert_eq!(TopicConfig::check_new(name, value), Ok(()), "{name}");
        }
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
            ("cleanup.policy", ""),
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
