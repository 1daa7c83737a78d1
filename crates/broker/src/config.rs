//! The broker's configuration: Kafka's `server.properties`, keys, units and defaults.
//!
//! [`Settings`] collects `key = value` pairs from a file and the command line, each with where it was written, and
//! [`Settings::build`] turns them into a [`BrokerConfig`]. A key that Kafka has and this broker does not act on is
//! reported once as ignored; a key that Kafka does not have is an error that names the nearest key. Topic-level
//! configs are [`TopicConfig`]: the broker's defaults with a topic's overrides on top.
//!
//! Where a default differs from Kafka's the key's text in [`keys::BROKER_KEYS`] says why.

pub(crate) mod dynamic;
pub(crate) mod kafka_defaults;
pub(crate) mod kafka_names;
pub mod keys;
mod parse;
pub(crate) mod resources;
mod settings;
pub mod topic;
pub mod topic_keys;

use std::collections::BTreeMap;
use std::path::PathBuf;

use highwater_groups::GroupConfig;
use highwater_groups::transactions::TransactionConfig;
use highwater_replication::BrokerId;

pub(crate) use settings::is_kafkas;
pub use settings::{ConfigError, IgnoredKey, Origin, Settings};
pub use topic::{CleanupPolicy, InvalidTopicConfig, TimestampSource, TopicConfig};

/// A host and a port as written in `listeners` and `advertised.listeners`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// A name or an address without brackets; empty stands for every interface.
    pub host: String,
    /// The port; 0 takes a free one.
    pub port: u16,
}

/// Everything a broker is told before it starts. Build one from [`Default`] or with [`Settings`].
///
/// Times are milliseconds and sizes are bytes unless a field says otherwise.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BrokerConfig {
    /// `node.id` or `broker.id`: this broker's number in its cluster, 0 or more.
    pub broker_id: BrokerId,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// `listeners`: where to listen.
    pub listen: ListenAddress,
    /// `advertised.listeners`: what clients are told to connect to. `None` advertises what is listened on.
    pub advertised: Option<ListenAddress>,
    /// `log.dirs`: the one directory that holds the partitions.
    pub data_dir: PathBuf,

    /// `num.partitions` of a topic that is created without a count.
    pub num_partitions: i32,
    /// `default.replication.factor` of a topic that is created without one.
    pub default_replication_factor: i16,
    /// `auto.create.topics.enable`: topics are created on first use.
    pub auto_create_topics: bool,
    /// `delete.topic.enable`.
    pub delete_topics: bool,
    /// `auto.leader.rebalance.enable`: leaderships go back to preferred replicas by themselves.
    pub leader_rebalance: bool,
    /// `leader.imbalance.check.interval.seconds`, in seconds.
    pub leader_imbalance_check_interval_seconds: u64,
    /// `leader.imbalance.per.broker.percentage`.
    pub leader_imbalance_percentage_max: u32,
    /// `controlled.shutdown.enable`: leaderships are handed over before a stop.
    pub controlled_shutdown: bool,
    /// `controlled.shutdown.max.retries`.
    pub controlled_shutdown_retries_max: u32,
    /// `controlled.shutdown.retry.backoff.ms`.
    pub controlled_shutdown_retry_backoff_ms: u64,
    /// What a topic without overrides gets.
    pub topic: TopicConfig,

    /// Consumer groups: `group.*`, `offset.metadata.max.bytes` and `offsets.retention.*`.
    pub groups: GroupConfig,
    /// `offsets.topic.num.partitions` of `__consumer_offsets`, when it is made.
    pub offsets_topic_partitions: i32,
    /// `offsets.topic.replication.factor`; `None` takes 3 in a cluster of processes; where brokers share a store in one process
    /// as many as there are, up to three.
    pub offsets_topic_replication_factor: Option<i16>,
    /// `offsets.topic.segment.bytes`.
    pub offsets_topic_segment_bytes: u32,
    /// `offsets.commit.timeout.ms`: a commit that is not replicated by then is answered with an error.
    pub offsets_commit_timeout_ms: u64,

    /// Transactions: `transaction.max.timeout.ms`, `transactional.id.expiration.ms` and how often is looked for both.
    pub transactions: TransactionConfig,
    /// `transaction.state.log.num.partitions` of `__transaction_state`, when it is made.
    pub transactions_topic_partitions: i32,
    /// `transaction.state.log.replication.factor`; `None` takes 3 in a cluster of processes; where brokers share a store in one process
    /// as many as there are, up to three.
    pub transactions_topic_replication_factor: Option<i16>,
    /// `transaction.state.log.min.isr`; `None` takes 2 with three replicas or more, else 1.
    pub transactions_topic_min_isr: Option<i32>,
    /// `transaction.state.log.segment.bytes`.
    pub transactions_topic_segment_bytes: u32,
    /// `transaction.partition.verification.enable`: the coordinator is asked before a batch begins a transaction.
    pub verifies_transactions: bool,

    /// `socket.request.max.bytes`: the largest request.
    pub request_bytes_max: usize,
    /// `queued.max.request.bytes`: all requests that are being read or answered, together.
    pub queued_request_bytes_max: usize,
    /// `queued.max.requests`: produces waiting at one partition; more are refused.
    pub queued_requests_max: usize,
    /// `highwater.max.in.flight.requests.per.connection`: requests of one connection taken before the first is answered.
    pub in_flight_requests_max: usize,
    /// `max.connections`: further ones wait in the listen backlog.
    pub connections_max: usize,
    /// `max.connections.per.ip`: further ones are closed.
    pub connections_per_ip_max: usize,
    /// `connections.max.idle.ms`: a connection without any traffic for so long is closed.
    pub connections_idle_max_ms: u64,
    /// `socket.listen.backlog.size`.
    pub listen_backlog: u32,
    /// `num.network.threads`: threads that serve sockets.
    pub network_threads: usize,
    /// `num.io.threads`: threads that own partitions.
    pub io_threads: usize,
    /// `background.threads`: threads that read for fetches.
    pub background_threads: usize,

    /// `fetch.max.bytes`: the most one Fetch response carries, whatever the client asks for (one batch may exceed it).
    pub fetch_bytes_max: usize,
    /// `highwater.queued.max.response.bytes`: records in answers that are not sent yet, together.
    pub queued_response_bytes_max: usize,
    /// `max.incremental.fetch.session.cache.slots`: fetch sessions kept; further clients are answered in full.
    pub fetch_sessions_max: usize,
    /// `highwater.fetch.session.cache.bytes`: what they take together.
    pub fetch_session_bytes_max: usize,

    /// `replica.lag.time.max.ms`: a follower that was not caught up for so long leaves the ISR.
    pub replica_lag_time_max_ms: i64,
    /// `replica.fetch.max.bytes` per partition.
    pub replica_fetch_bytes_max: i32,
    /// `replica.fetch.response.max.bytes` per response.
    pub replica_fetch_response_bytes_max: i32,
    /// `replica.fetch.min.bytes`.
    pub replica_fetch_bytes_min: i32,
    /// `replica.fetch.wait.max.ms`.
    pub replica_fetch_wait_max_ms: i32,
    /// `replica.fetch.backoff.ms` after a failed fetch.
    pub replica_fetch_backoff_ms: u64,
    /// `replica.socket.timeout.ms`: a leader that is silent for so long is connected to anew.
    pub replica_socket_timeout_ms: u64,
    /// `replica.high.watermark.checkpoint.interval.ms`.
    pub high_watermark_checkpoint_interval_ms: u64,
    /// `log.flush.offset.checkpoint.interval.ms`: how often recovery points are written.
    pub recovery_point_checkpoint_interval_ms: u64,
    /// `log.flush.start.offset.checkpoint.interval.ms`: how often log starts are written.
    pub log_start_checkpoint_interval_ms: u64,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: u64,
    /// `log.cleaner.enable`: whether topics with `cleanup.policy=compact` are compacted.
    pub cleaner_enable: bool,
    /// `log.cleaner.dedupe.buffer.size`: the keys of all compactions that are under way, in bytes, 24 for each key.
    pub cleaner_dedupe_buffer_bytes: u64,
    /// `log.cleaner.io.buffer.size`: what a compaction reads at a time, in bytes.
    pub cleaner_io_buffer_bytes: u32,
    /// `log.cleaner.backoff.ms`: how long a log is left alone in which nothing was old enough to be compacted.
    pub cleaner_backoff_ms: i64,
    /// `highwater.background.flush.ms`: every log is synced so often, which bounds the scan after a crash.
    pub background_flush_ms: u64,
    /// `highwater.open.files.max`: segment files kept open, of all logs together; `None` goes by what the process may
    /// have open.
    pub open_files_max: Option<usize>,
    /// `num.recovery.threads.per.data.dir`: logs opened at a time.
    pub recovery_threads: usize,
    /// `producer.id.expiration.ms`: an idempotent producer that is silent for so long is forgotten.
    pub producer_id_expiration_ms: i64,
    /// `highwater.max.producer.ids.per.partition`: the idlest one is forgotten beyond.
    pub producer_ids_max: usize,

    /// `broker.session.timeout.ms`: how long the coordination store waits for a heartbeat.
    pub session_timeout_ms: u64,
    /// `broker.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: u64,
    /// `zookeeper.connect`: the ensemble that coordinates this broker's cluster, `host:port,host:port/directory`. `None`
    /// for a broker with a store of its own.
    pub zookeeper_connect: Option<String>,
    /// `zookeeper.session.timeout.ms`: how long the ensemble waits for a sign of life.
    pub zookeeper_session_timeout_ms: u64,
    /// `zookeeper.connection.timeout.ms`: how long a start waits for the ensemble; `None` as long as a session lasts.
    pub zookeeper_connection_timeout_ms: Option<u64>,

    /// The keys that were set and how, for the sources that DescribeConfigs reports.
    pub(crate) set_keys: BTreeMap<String, String>,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            broker_id: BrokerId(1),
            rack: None,
            listen: ListenAddress { host: "127.0.0.1".to_owned(), port: 9092 },
            advertised: None,
            data_dir: PathBuf::from("highwater-data"),
            num_partitions: 1,
            default_replication_factor: 1,
            auto_create_topics: true,
            delete_topics: true,
            leader_rebalance: true,
            leader_imbalance_check_interval_seconds: 300,
            leader_imbalance_percentage_max: 10,
            controlled_shutdown: true,
            controlled_shutdown_retries_max: 3,
            controlled_shutdown_retry_backoff_ms: 1_000,
            topic: TopicConfig::default(),
            groups: GroupConfig::default(),
            offsets_topic_partitions: 50,
            offsets_topic_replication_factor: None,
            offsets_topic_segment_bytes: 100 << 20,
            offsets_commit_timeout_ms: 5_000,
            transactions: TransactionConfig::default(),
            transactions_topic_partitions: 50,
            transactions_topic_replication_factor: None,
            transactions_topic_min_isr: None,
            transactions_topic_segment_bytes: 100 << 20,
            verifies_transactions: true,
            request_bytes_max: 100 << 20,
            queued_request_bytes_max: 256 << 20,
            queued_requests_max: 500,
            in_flight_requests_max: 64,
            connections_max: 10_000,
            connections_per_ip_max: 10_000,
            connections_idle_max_ms: 600_000,
            listen_backlog: 50,
            network_threads: cpus.min(8),
            io_threads: cpus.min(8),
            background_threads: 4,
            fetch_bytes_max: 55 << 20,
            queued_response_bytes_max: 256 << 20,
            fetch_sessions_max: 1_000,
            fetch_session_bytes_max: 128 << 20,
            replica_lag_time_max_ms: 10_000,
            replica_fetch_bytes_max: 1 << 20,
            replica_fetch_response_bytes_max: 10 << 20,
            replica_fetch_bytes_min: 1,
            replica_fetch_wait_max_ms: 500,
            replica_fetch_backoff_ms: 1_000,
            replica_socket_timeout_ms: 30_000,
            high_watermark_checkpoint_interval_ms: 5_000,
            recovery_point_checkpoint_interval_ms: 60_000,
            log_start_checkpoint_interval_ms: 60_000,
            retention_check_interval_ms: 300_000,
            cleaner_enable: true,
            cleaner_dedupe_buffer_bytes: 128 << 20,
            cleaner_io_buffer_bytes: 512 << 10,
            cleaner_backoff_ms: 15_000,
            background_flush_ms: 5_000,
            open_files_max: None,
            recovery_threads: 2,
            producer_id_expiration_ms: 86_400_000,
            producer_ids_max: 10_000,
            session_timeout_ms: 9_000,
            heartbeat_interval_ms: 2_000,
            zookeeper_connect: None,
            zookeeper_session_timeout_ms: 18_000,
            zookeeper_connection_timeout_ms: None,
            set_keys: BTreeMap::new(),
        }
    }
}

impl BrokerConfig {
    /// Whether `key` was set, as opposed to defaulted.
    pub fn is_set(&self, key: &str) -> bool {
        self.set_keys.contains_key(key)
    }
}
