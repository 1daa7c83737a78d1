//! From a topic's configuration to the options of its logs and replicas.

use std::collections::BTreeMap;

use highwater_replication::{BrokerEpoch, ReplicaConfig};
use highwater_storage::fs::descriptor_limit;
use highwater_storage::{
    CompactionMemory, CompactionOptions, FlushPolicy, LogOptions, OpenFiles, ProduceRules, TimestampType, ZeroAheadMode,
};

use crate::config::{BrokerConfig, TimestampSource, TopicConfig};

/// A topic's configuration: the defaults with the topic's own on top. Overrides that this broker cannot read,
/// which another program accepted, are reported and left out; all others hold.
pub(crate) fn of_topic(defaults: &TopicConfig, topic: &str, overrides: &BTreeMap<String, String>) -> TopicConfig {
    let (config, unreadable) = TopicConfig::stored(defaults, overrides);
    for error in unreadable {
        tracing::warn!(topic, %error, "leaving a setting of this topic out");
    }
    config
}

/// What all logs are told: with the memory that compactions share.
pub(crate) fn shared(broker: &BrokerConfig) -> LogOptions {
    let compaction = CompactionOptions {
        memory: CompactionMemory::bounded(broker.cleaner_dedupe_buffer_bytes),
        ..CompactionOptions::default()
    };
    let open_files = broker.open_files_max.unwrap_or_else(|| open_files_within(descriptor_limit()));
    LogOptions { compaction: Some(compaction), open_files: OpenFiles::bounded(open_files), ..LogOptions::default() }
}

/// How many segment files are kept open where the process may have so many descriptors: half of them, for the other half
/// are sockets, after what is needed in any case.
fn open_files_within(limit: Option<u64>) -> usize {
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    (limit.saturating_sub(DESCRIPTORS_IN_ANY_CASE) / 2).clamp(4, OPEN_FILES_MAX)
}

/// Threads' event queues, the listener, lock files, the cluster's journal, files that are read and closed at once.
const DESCRIPTORS_IN_ANY_CASE: usize = 40;

/// More files than this are not worth what the system keeps for each.
const OPEN_FILES_MAX: usize = 10_000;

/// What its logs are told. The log never syncs by itself here: the replica asks for syncs, which run on their own
/// threads. Where those come with each message, a log writes zeros ahead for them.
pub(crate) fn log_options(broker: &BrokerConfig, topic: &TopicConfig, shared: &LogOptions) -> LogOptions {
    let is_compacted = topic.cleanup_policy.compact && broker.cleaner_enable;
    let compaction = shared.compaction.clone().filter(|_| is_compacted).map(|shared| CompactionOptions {
        io_buffer_bytes: broker.cleaner_io_buffer_bytes,
        backoff_ms: broker.cleaner_backoff_ms,
        delete_retention_ms: topic.delete_retention_ms,
        min_cleanable_dirty_ratio: topic.min_cleanable_dirty_ratio,
        min_compaction_lag_ms: topic.min_compaction_lag_ms,
        max_compaction_lag_ms: topic.max_compaction_lag_ms,
        ..shared
    });
    LogOptions {
        compaction,
        segment_bytes: topic.segment_bytes,
        segment_ms: topic.segment_ms,
        segment_jitter_ms: topic.segment_jitter_ms,
        index_interval_bytes: topic.index_interval_bytes,
        index_bytes_max: topic.segment_index_bytes,
        retention: topic.cleanup_policy.delete,
        retention_ms: topic.retention_ms,
        retention_bytes: topic.retention_bytes,
        flush: FlushPolicy::None,
        zero_ahead: if topic.flush_messages <= 1 { ZeroAheadMode::Always } else { ZeroAheadMode::ByPolicy },
        checkpoint_interval_ms: i64::try_from(broker.background_flush_ms).unwrap_or(i64::MAX),
        file_delete_delay_ms: topic.file_delete_delay_ms,
        rules: produce_rules(topic),
        producer_id_expiration_ms: broker.producer_id_expiration_ms,
        max_producer_ids: broker.producer_ids_max,
        ..shared.clone()
    }
}

/// What its replicas are told.
pub(crate) fn replica_config(broker: &BrokerConfig, topic: &TopicConfig, epoch: BrokerEpoch) -> ReplicaConfig {
    let background_flush_ms = i64::try_from(broker.background_flush_ms).unwrap_or(i64::MAX);
    let mut config = ReplicaConfig::new(broker.broker_id, epoch);
    config.lag_time_max_ms = broker.replica_lag_time_max_ms;
    config.min_insync_replicas = usize::try_from(topic.min_insync_replicas).unwrap_or(1).max(1);
    config.flush_messages = topic.flush_messages;
    config.flush_ms = topic.flush_ms.min(background_flush_ms);
    config.fetch_backoff_ms = i64::try_from(broker.replica_fetch_backoff_ms).unwrap_or(i64::MAX);
    config
}

fn produce_rules(topic: &TopicConfig) -> ProduceRules {
    let timestamp_type = match topic.timestamp_source {
        TimestampSource::CreateTime => TimestampType::CreateTime,
        TimestampSource::LogAppendTime => TimestampType::LogAppendTime,
    };
    ProduceRules {
        max_message_bytes: usize::try_from(topic.max_message_bytes).unwrap_or(usize::MAX),
        timestamp_type,
        timestamp_before_max_ms: topic.timestamp_before_max_ms,
        timestamp_after_max_ms: topic.timestamp_after_max_ms,
        requires_keys: topic.cleanup_policy.compact,
        ..ProduceRules::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_that_syncs_each_message_writes_zeros_ahead() {
        let broker = BrokerConfig { background_flush_ms: 7, ..BrokerConfig::default() };
        let options = |flush_messages| {
            let topic = TopicConfig { flush_messages, ..broker.topic.clone() };
            let options = log_options(&broker, &topic, &shared(&broker));
            (options.flush, options.zero_ahead, options.checkpoint_interval_ms)
        };
        assert_eq!(options(1), (FlushPolicy::None, ZeroAheadMode::Always, 7));
        assert_eq!(options(i64::MAX), (FlushPolicy::None, ZeroAheadMode::ByPolicy, 7));
    }

    /// Field fault S53: each rule of a topic's logs is the topic's own where it has one.
    #[test]
    fn s53_a_topics_own_settings_come_before_the_brokers() {
        let mut broker = BrokerConfig::default();
        broker.topic.retention_ms = 1_000;
        broker.topic.retention_bytes = 2_000;
        broker.topic.segment_bytes = 3_000_000;
        broker.topic.segment_ms = 4_000;
        let rules = |overrides: &[(&str, &str)]| {
            let overrides = overrides.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
            let options = log_options(&broker, &of_topic(&broker.topic, "t", &overrides), &shared(&broker));
            (
                options.retention_ms,
                options.retention_bytes,
                options.segment_bytes,
                options.segment_ms,
                options.retention,
            )
        };
        assert_eq!(rules(&[]), (1_000, 2_000, 3_000_000, 4_000, true));
        assert_eq!(rules(&[("retention.ms", "-1")]), (-1, 2_000, 3_000_000, 4_000, true));
        assert_eq!(rules(&[("retention.bytes", "7")]), (1_000, 7, 3_000_000, 4_000, true));
        let (size, age) = (("segment.bytes", "2000000"), ("segment.ms", "8"));
        assert_eq!(rules(&[size, age]), (1_000, 2_000, 2_000_000, 8, true));
        assert_eq!(rules(&[("cleanup.policy", "compact")]), (1_000, 2_000, 3_000_000, 4_000, false));
        // What cannot be read is left out alone.
        assert_eq!(rules(&[age, ("retention.ms", "much")]), (1_000, 2_000, 3_000_000, 8, true));
    }

    /// They had all settings of a topic left out for one: a compacted topic was cut by age then, as topics are by default.
    #[test]
    fn a_topic_keeps_its_settings_whatever_becomes_of_one_of_them_or_of_the_defaults() {
        let settings = |more: &[(&str, &str)]| -> BTreeMap<String, String> {
            let own = [("cleanup.policy", "compact"), ("retention.ms", "-1"), ("max.compaction.lag.ms", "1000")];
            own.iter().chain(more).map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let kept = |defaults: &TopicConfig, more: &[(&str, &str)]| {
            let config = of_topic(defaults, "t", &settings(more));
            let policy = (config.cleanup_policy.delete, config.cleanup_policy.compact);
            (policy, config.retention_ms, config.max_compaction_lag_ms, config.min_compaction_lag_ms)
        };
        let defaults = TopicConfig::default();
        let as_set = ((false, true), -1, 1_000, 0);
        assert_eq!(kept(&defaults, &[]), as_set);
        for odd in [("of.a.newer.kafka", "1"), ("segment.ms", "much"), ("segment.bytes", "-7"), ("preallocate", "")] {
            assert_eq!(kept(&defaults, &[odd]), as_set, "{odd:?}");
        }
        // Set of all brokers while they run, or in their files: more than this topic allows at most.
        let defaults = TopicConfig { min_compaction_lag_ms: 5_000, ..defaults };
        assert!(TopicConfig::resolve(&defaults, &settings(&[])).is_err(), "it could not be set so now");
        assert_eq!(kept(&defaults, &[]), ((false, true), -1, 1_000, 5_000));
    }

    #[test]
    fn open_files_leave_room_for_sockets_whatever_the_limit_is() {
        for (limit, expected) in [
            (Some(0), 4),
            (Some(64), 12),
            (Some(256), 108),
            (Some(1024), 492),
            (Some(1 << 20), 10_000),
            (Some(u64::MAX), 10_000),
            (None, 10_000),
        ] {
            assert_eq!(open_files_within(limit), expected, "{limit:?}");
        }
    }
}
