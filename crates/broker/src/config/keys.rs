//! The keys that the broker itself has: one table.

use highwater_replication::BrokerId;

use super::BrokerConfig;
use super::parse::{boolean, directory, listener, number, show, show_listener};
use crate::cluster::check_connect;

/// How a value looks, with the numbers DescribeConfigs gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
#[allow(missing_docs, reason = "Kafka's ConfigDef.Type, name for name")]
pub enum ConfigType {
    /// Of a key that nobody knows.
    Unknown = 0,
    Boolean = 1,
    String = 2,
    Int = 3,
    Short = 4,
    Long = 5,
    Double = 6,
    List = 7,
    Class = 8,
    Password = 9,
}

/// One key of `server.properties`.
pub struct BrokerKey {
    /// Its name in the file.
    pub name: &'static str,
    /// How its values look.
    pub kind: ConfigType,
    /// Unit and meaning, and where the default differs from Kafka's: why.
    pub doc: &'static str,
    pub(crate) set: fn(&mut BrokerConfig, &str) -> Result<(), String>,
    pub(crate) show: fn(&BrokerConfig) -> Option<String>,
}

impl std::fmt::Debug for BrokerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

pub(super) const I32: i64 = i32::MAX as i64;
pub(super) const I64: i64 = i64::MAX;

/// `key!(name, Type, field, low..high, doc)` for a number, `key!(name, Boolean, field, doc)` for a switch.
macro_rules! broker_key {
    ($name:literal, Boolean, $field:ident, $doc:literal) => {
        BrokerKey {
            name: $name,
            kind: ConfigType::Boolean,
            doc: $doc,
            set: |config, text| boolean(text).map(|value| config.$field = value),
            show: |config| Some(show(config.$field)),
        }
    };
    ($name:literal, $kind:ident, $field:ident, $low:expr, $high:expr, $doc:literal) => {
        BrokerKey {
            name: $name,
            kind: ConfigType::$kind,
            doc: $doc,
            set: |config, text| number(text, $low, $high).map(|value| config.$field = value),
            show: |config| Some(show(config.$field)),
        }
    };
}

/// The keys of the broker, except the defaults of topic configs, which [`TOPIC_KEYS`](super::topic_keys::TOPIC_KEYS) names.
pub static BROKER_KEYS: &[BrokerKey] = &[
    BrokerKey {
        name: "node.id",
        kind: ConfigType::Int,
        doc: "This broker's number in its cluster. Kafka has no default; here 1.",
        set: |config, text| number(text, 0, I32).map(|id| config.broker_id = BrokerId(id)),
        show: |config| Some(show(config.broker_id)),
    },
    BrokerKey {
        name: "broker.id",
        kind: ConfigType::Int,
        doc: "The old name of node.id. If both are set they must agree.",
        set: |config, text| number(text, 0, I32).map(|id| config.broker_id = BrokerId(id)),
        show: |config| Some(show(config.broker_id)),
    },
    BrokerKey {
        name: "broker.rack",
        kind: ConfigType::String,
        doc: "The rack this broker stands in, as told to clients.",
        set: |config, text| {
            config.rack = Some(text.trim().to_owned()).filter(|rack| !rack.is_empty());
            Ok(())
        },
        show: |config| config.rack.clone(),
    },
    BrokerKey {
        name: "listeners",
        kind: ConfigType::String,
        doc: "PLAINTEXT://HOST:PORT to listen on; port 0 takes a free one. Kafka listens on every interface by default, \
              here only 127.0.0.1 does: nothing is exposed unless asked for.",
        set: |config, text| listener(text).map(|address| config.listen = address),
        show: |config| Some(show_listener(&config.listen)),
    },
    BrokerKey {
        name: "advertised.listeners",
        kind: ConfigType::String,
        doc: "PLAINTEXT://HOST:PORT that clients are told to connect to. Default: what is listened on.",
        set: |config, text| {
            let address = listener(text)?;
            if matches!(address.host.as_str(), "" | "0.0.0.0" | "::") {
                return Err("a client cannot connect to every interface: give a name or an address".to_owned());
            }
            config.advertised = Some(address);
            Ok(())
        },
        show: |config| config.advertised.as_ref().map(show_listener),
    },
    BrokerKey {
        name: "log.dirs",
        kind: ConfigType::String,
        doc: "The directory that holds the partitions. Kafka's default is /tmp/kafka-logs, here ./highwater-data: \
              data does not belong in /tmp.",
        set: |config, text| directory(text).map(|dir| config.data_dir = dir),
        show: |config| Some(show(config.data_dir.display())),
    },
    BrokerKey {
        name: "log.dir",
        kind: ConfigType::String,
        doc: "The same as log.dirs, which goes before it.",
        set: |config, text| directory(text).map(|dir| config.data_dir = dir),
        show: |config| Some(show(config.data_dir.display())),
    },
    broker_key!("num.partitions", Int, num_partitions, 1, I32, "Partitions of a topic created without a count."),
    broker_key!(
        "default.replication.factor",
        Int,
        default_replication_factor,
        1,
        i64::from(i16::MAX),
        "Replicas of a topic created without a factor."
    ),
    broker_key!("auto.create.topics.enable", Boolean, auto_create_topics, "Whether topics are created on first use."),
    broker_key!("delete.topic.enable", Boolean, delete_topics, "Whether topics can be deleted."),
    broker_key!(
        "auto.leader.rebalance.enable",
        Boolean,
        leader_rebalance,
        "Whether the controller gives leaderships back to preferred replicas."
    ),
    broker_key!(
        "leader.imbalance.check.interval.seconds",
        Long,
        leader_imbalance_check_interval_seconds,
        1,
        I64,
        "Seconds between two looks at who lacks leaderships."
    ),
    broker_key!(
        "leader.imbalance.per.broker.percentage",
        Int,
        leader_imbalance_percentage_max,
        0,
        I32,
        "Of how many leaderships in a hundred a broker may lack before it gets them back."
    ),
    broker_key!(
        "controlled.shutdown.enable",
        Boolean,
        controlled_shutdown,
        "Whether a broker that stops first hands its leaderships over to other in-sync replicas."
    ),
    broker_key!(
        "controlled.shutdown.max.retries",
        Int,
        controlled_shutdown_retries_max,
        1,
        I32,
        "How many times a broker that stops says so before it stops without an answer."
    ),
    broker_key!(
        "controlled.shutdown.retry.backoff.ms",
        Long,
        controlled_shutdown_retry_backoff_ms,
        1,
        I64,
        "Milliseconds that it waits each time for others to take over. Kafka waits 5000; here 1000, so that a stop that \
         nobody answers ends within the 10 s that Docker, for one, leaves a process."
    ),
    broker_key!("socket.request.max.bytes", Int, request_bytes_max, 1024, I32, "Bytes of the largest request."),
    BrokerKey {
        name: "queued.max.request.bytes",
        kind: ConfigType::Long,
        doc: "Bytes of all requests that are being read or answered. Kafka sets no limit (-1); here 256 MiB, since \
              every queue has a bound. -1 sets none.",
        set: |config, text| {
            let bytes: i64 = number(text, -1, I64)?;
            config.queued_request_bytes_max = usize::try_from(bytes).unwrap_or(usize::MAX);
            Ok(())
        },
        show: |config| match config.queued_request_bytes_max {
            usize::MAX => Some("-1".to_owned()),
            bytes => Some(show(bytes)),
        },
    },
    broker_key!(
        "queued.max.requests",
        Int,
        queued_requests_max,
        1,
        I32,
        "Produces that wait at one partition. Past it they are answered REQUEST_TIMED_OUT (7), which clients try again."
    ),
    broker_key!(
        "highwater.max.in.flight.requests.per.connection",
        Int,
        in_flight_requests_max,
        1,
        10_000,
        "Requests of one connection that are taken before the first of them is answered."
    ),
    broker_key!(
        "max.connections",
        Int,
        connections_max,
        1,
        I32,
        "Connections at a time; further ones wait. Kafka sets no limit; here 10000, since every queue has a bound."
    ),
    broker_key!(
        "max.connections.per.ip",
        Int,
        connections_per_ip_max,
        1,
        I32,
        "Connections of one address; further ones are closed. Kafka sets no limit; here as many as in all."
    ),
    BrokerKey {
        name: "connections.max.idle.ms",
        kind: ConfigType::Long,
        doc: "Milliseconds after which a connection without traffic is closed; -1 never.",
        set: |config, text| {
            let ms: i64 = number(text, -1, I64)?;
            config.connections_idle_max_ms = u64::try_from(ms).unwrap_or(u64::MAX);
            Ok(())
        },
        show: |config| match config.connections_idle_max_ms {
            u64::MAX => Some("-1".to_owned()),
            ms => Some(show(ms)),
        },
    },
    broker_key!("socket.listen.backlog.size", Int, listen_backlog, 1, I32, "Connections that wait to be accepted."),
    broker_key!(
        "num.network.threads",
        Int,
        network_threads,
        1,
        1024,
        "Threads that serve sockets. Kafka's default is 3; here one per CPU, at most 8."
    ),
    broker_key!(
        "num.io.threads",
        Int,
        io_threads,
        1,
        1024,
        "Threads that own partitions. Kafka's default is 8; here one per CPU, at most 8: they never wait for a disk."
    ),
    broker_key!(
        "background.threads",
        Int,
        background_threads,
        1,
        1024,
        "Threads that read from disk for fetches. Kafka's default is 10 for a wider use of the word; here 4."
    ),
    broker_key!(
        "fetch.max.bytes",
        Int,
        fetch_bytes_max,
        1024,
        I32,
        "The most bytes of records in one Fetch response, whatever the client asks for."
    ),
    broker_key!(
        "highwater.queued.max.response.bytes",
        Long,
        queued_response_bytes_max,
        1024,
        I64,
        "Bytes of records in all Fetch responses that are not sent yet. Past it a response carries one batch."
    ),
    broker_key!(
        "max.incremental.fetch.session.cache.slots",
        Int,
        fetch_sessions_max,
        0,
        I32,
        "Clients and followers whose partitions are remembered from fetch to fetch; further ones are answered in full."
    ),
    broker_key!(
        "highwater.fetch.session.cache.bytes",
        Long,
        fetch_session_bytes_max,
        0,
        I64,
        "Bytes that these take together, 256 for each partition and its topic's name if it is fetched by name."
    ),
    broker_key!(
        "replica.lag.time.max.ms",
        Long,
        replica_lag_time_max_ms,
        1,
        I64,
        "Milliseconds after which a follower that has not caught up leaves the ISR. Kafka's default is 30000; here \
         10000: a replica that stands still holds back acks=all no longer than that."
    ),
    broker_key!(
        "replica.fetch.max.bytes",
        Int,
        replica_fetch_bytes_max,
        0,
        I32,
        "Bytes a follower asks for per partition."
    ),
    broker_key!(
        "replica.fetch.response.max.bytes",
        Int,
        replica_fetch_response_bytes_max,
        0,
        I32,
        "Bytes a follower asks for per response."
    ),
    broker_key!("replica.fetch.min.bytes", Int, replica_fetch_bytes_min, 0, I32, "Bytes a follower waits for."),
    broker_key!("replica.fetch.wait.max.ms", Int, replica_fetch_wait_max_ms, 0, I32, "Milliseconds it waits for them."),
    broker_key!(
        "replica.fetch.backoff.ms",
        Int,
        replica_fetch_backoff_ms,
        0,
        I32,
        "Milliseconds a follower waits after a failed fetch."
    ),
    broker_key!(
        "replica.socket.timeout.ms",
        Int,
        replica_socket_timeout_ms,
        1,
        I32,
        "Milliseconds after which a silent leader is connected to anew."
    ),
    broker_key!(
        "replica.high.watermark.checkpoint.interval.ms",
        Long,
        high_watermark_checkpoint_interval_ms,
        1,
        I64,
        "Milliseconds between checkpoints of the high watermarks."
    ),
    broker_key!(
        "log.flush.offset.checkpoint.interval.ms",
        Int,
        recovery_point_checkpoint_interval_ms,
        1,
        I32,
        "Milliseconds between checkpoints of the recovery points."
    ),
    broker_key!(
        "log.flush.start.offset.checkpoint.interval.ms",
        Int,
        log_start_checkpoint_interval_ms,
        1,
        I32,
        "Milliseconds between checkpoints of the log starts."
    ),
    broker_key!(
        "log.retention.check.interval.ms",
        Long,
        retention_check_interval_ms,
        1,
        I64,
        "Milliseconds between looks for segments to delete."
    ),
    broker_key!(
        "log.cleaner.enable",
        Boolean,
        cleaner_enable,
        "Whether topics with cleanup.policy=compact are compacted."
    ),
    broker_key!(
        "log.cleaner.dedupe.buffer.size",
        Long,
        cleaner_dedupe_buffer_bytes,
        1024,
        I64,
        "Bytes for the keys of all compactions under way: 24 and a ninth for each key. Taken as they are needed."
    ),
    broker_key!(
        "log.cleaner.io.buffer.size",
        Int,
        cleaner_io_buffer_bytes,
        1,
        I32,
        "Bytes a compaction reads and writes at a time."
    ),
    broker_key!(
        "log.cleaner.backoff.ms",
        Long,
        cleaner_backoff_ms,
        0,
        I64,
        "Milliseconds before another look at a log in which nothing was old enough to compact."
    ),
    broker_key!(
        "highwater.background.flush.ms",
        Long,
        background_flush_ms,
        1,
        I64,
        "Milliseconds between syncs of every log that has grown. Bounds what recovery scans after a crash."
    ),
    BrokerKey {
        name: "highwater.open.files.max",
        kind: ConfigType::Int,
        doc: "Segment files kept open, of all logs together; the least used are closed first and opened again when they \
              are needed. -1, the default, takes half of the descriptors that the process may have (RLIMIT_NOFILE) and \
              that threads and small files leave, 10000 at most.",
        set: |config, text| {
            let files: i64 = number(text, -1, I32)?;
            config.open_files_max = usize::try_from(files).ok();
            Ok(())
        },
        show: |config| Some(config.open_files_max.map_or_else(|| "-1".to_owned(), show)),
    },
    broker_key!(
        "num.recovery.threads.per.data.dir",
        Int,
        recovery_threads,
        1,
        1024,
        "Logs that are opened at a time when the broker starts."
    ),
    BrokerKey {
        name: "group.min.session.timeout.ms",
        kind: ConfigType::Int,
        doc: "The shortest session of a group member that is taken, in milliseconds.",
        set: |config, text| number(text, 1, I32).map(|value| config.groups.session_timeout_min_ms = value),
        show: |config| Some(show(config.groups.session_timeout_min_ms)),
    },
    BrokerKey {
        name: "group.max.session.timeout.ms",
        kind: ConfigType::Int,
        doc: "The longest session of a group member that is taken, in milliseconds.",
        set: |config, text| number(text, 1, I32).map(|value| config.groups.session_timeout_max_ms = value),
        show: |config| Some(show(config.groups.session_timeout_max_ms)),
    },
    BrokerKey {
        name: "group.initial.rebalance.delay.ms",
        kind: ConfigType::Int,
        doc: "Milliseconds that a group without members waits for more before it gives out partitions.",
        set: |config, text| number(text, 0, I32).map(|value| config.groups.initial_rebalance_delay_ms = value),
        show: |config| Some(show(config.groups.initial_rebalance_delay_ms)),
    },
    BrokerKey {
        name: "group.max.size",
        kind: ConfigType::Int,
        doc: "Members that a group may have.",
        set: |config, text| number(text, 1, I32).map(|value| config.groups.members_max = value),
        show: |config| Some(show(config.groups.members_max)),
    },
    BrokerKey {
        name: "offset.metadata.max.bytes",
        kind: ConfigType::Int,
        doc: "Bytes that a client may keep beside an offset it commits.",
        set: |config, text| number(text, 0, I32).map(|value| config.groups.offset_metadata_max_bytes = value),
        show: |config| Some(show(config.groups.offset_metadata_max_bytes)),
    },
    BrokerKey {
        name: "offsets.retention.minutes",
        kind: ConfigType::Int,
        doc: "Minutes that the offsets of a group are kept that has no members, or of topics it is not subscribed to any more.",
        set: |config, text| {
            number(text, 1, I32).map(|minutes: i64| config.groups.offsets_retention_ms = minutes * 60_000)
        },
        show: |config| Some(show(config.groups.offsets_retention_ms / 60_000)),
    },
    BrokerKey {
        name: "offsets.retention.check.interval.ms",
        kind: ConfigType::Long,
        doc: "Milliseconds between looks for offsets to forget.",
        set: |config, text| number(text, 1, I64).map(|value| config.groups.offsets_retention_check_interval_ms = value),
        show: |config| Some(show(config.groups.offsets_retention_check_interval_ms)),
    },
    broker_key!(
        "offsets.commit.timeout.ms",
        Int,
        offsets_commit_timeout_ms,
        1,
        I32,
        "Milliseconds after which a commit that is not replicated yet is answered with an error."
    ),
    broker_key!(
        "offsets.topic.num.partitions",
        Int,
        offsets_topic_partitions,
        1,
        I32,
        "Partitions of __consumer_offsets when it is made."
    ),
    BrokerKey {
        name: "offsets.topic.replication.factor",
        kind: ConfigType::Short,
        doc: "Replicas of __consumer_offsets when it is made; it is not made, and groups do not work, before so many brokers are \
              there. Without it 3 in a cluster of processes (zookeeper.connect), as in Kafka, and 1 of a broker alone.",
        set: |config, text| {
            number(text, 1, 32_767).map(|factor| config.offsets_topic_replication_factor = Some(factor))
        },
        show: |config| config.offsets_topic_replication_factor.map(show),
    },
    broker_key!(
        "offsets.topic.segment.bytes",
        Int,
        offsets_topic_segment_bytes,
        1,
        I32,
        "Bytes of a segment of __consumer_offsets when it is made."
    ),
    BrokerKey {
        name: "transaction.max.timeout.ms",
        kind: ConfigType::Int,
        doc: "The longest time in milliseconds that a producer may give its transactions.",
        set: |config, text| number(text, 1, I32).map(|value| config.transactions.timeout_max_ms = value),
        show: |config| Some(show(config.transactions.timeout_max_ms)),
    },
    BrokerKey {
        name: "transactional.id.expiration.ms",
        kind: ConfigType::Int,
        doc: "Milliseconds after which a transactional id is forgotten that nobody uses.",
        set: |config, text| number(text, 1, I32).map(|value| config.transactions.id_expiration_ms = value),
        show: |config| Some(show(config.transactions.id_expiration_ms)),
    },
    BrokerKey {
        name: "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        kind: ConfigType::Int,
        doc: "Milliseconds between looks for transactions that take too long.",
        set: |config, text| number(text, 1, I32).map(|value| config.transactions.abort_check_interval_ms = value),
        show: |config| Some(show(config.transactions.abort_check_interval_ms)),
    },
    BrokerKey {
        name: "transaction.remove.expired.transaction.cleanup.interval.ms",
        kind: ConfigType::Int,
        doc: "Milliseconds between looks for transactional ids to forget.",
        set: |config, text| number(text, 1, I32).map(|value| config.transactions.expiry_check_interval_ms = value),
        show: |config| Some(show(config.transactions.expiry_check_interval_ms)),
    },
    broker_key!(
        "transaction.partition.verification.enable",
        Boolean,
        verifies_transactions,
        "Whether the coordinator is asked before a batch begins a transaction in a partition."
    ),
    broker_key!(
        "transaction.state.log.num.partitions",
        Int,
        transactions_topic_partitions,
        1,
        I32,
        "Partitions of __transaction_state when it is made."
    ),
    BrokerKey {
        name: "transaction.state.log.replication.factor",
        kind: ConfigType::Short,
        doc: "Replicas of __transaction_state when it is made; it is not made, and there are no transactions, before so many \
              brokers are there. Without it 3 in a cluster of processes (zookeeper.connect), as in Kafka, and 1 of a broker \
              alone.",
        set: |config, text| {
            number(text, 1, 32_767).map(|factor| config.transactions_topic_replication_factor = Some(factor))
        },
        show: |config| config.transactions_topic_replication_factor.map(show),
    },
    BrokerKey {
        name: "transaction.state.log.min.isr",
        kind: ConfigType::Int,
        doc: "Replicas of __transaction_state that must be in sync when it is made. Kafka's default is 2; here that is so with \
              three replicas or more, else one is enough.",
        set: |config, text| number(text, 1, I32).map(|replicas| config.transactions_topic_min_isr = Some(replicas)),
        show: |config| config.transactions_topic_min_isr.map(show),
    },
    broker_key!(
        "transaction.state.log.segment.bytes",
        Int,
        transactions_topic_segment_bytes,
        1,
        I32,
        "Bytes of a segment of __transaction_state when it is made."
    ),
    broker_key!(
        "producer.id.expiration.ms",
        Int,
        producer_id_expiration_ms,
        1,
        I32,
        "Milliseconds after which a silent idempotent producer is forgotten."
    ),
    broker_key!(
        "highwater.max.producer.ids.per.partition",
        Int,
        producer_ids_max,
        1,
        I32,
        "Idempotent producers remembered per partition; the idlest is forgotten first."
    ),
    broker_key!(
        "broker.session.timeout.ms",
        Int,
        session_timeout_ms,
        1,
        I32,
        "Milliseconds without a heartbeat after which this broker counts as dead."
    ),
    broker_key!("broker.heartbeat.interval.ms", Int, heartbeat_interval_ms, 1, I32, "Milliseconds between heartbeats."),
    BrokerKey {
        name: "zookeeper.connect",
        kind: ConfigType::String,
        doc: "The ZooKeeper servers that coordinate this broker's cluster, HOST:PORT,HOST:PORT with an optional /DIRECTORY at \
              the end. Without it the broker is a cluster of its own. The broker needs a number of its own (broker.id).",
        set: |config, text| {
            let text = text.trim();
            config.zookeeper_connect = None;
            if !text.is_empty() {
                check_connect(text)
                    .map_err(|_| format!("{text:?} is no list HOST:PORT,HOST:PORT with a /DIRECTORY or none"))?;
                config.zookeeper_connect = Some(text.to_owned());
            }
            Ok(())
        },
        show: |config| config.zookeeper_connect.clone(),
    },
    broker_key!(
        "zookeeper.session.timeout.ms",
        Int,
        zookeeper_session_timeout_ms,
        1,
        I32,
        "Milliseconds without a sign of life after which ZooKeeper counts this broker as dead, within what its servers allow."
    ),
    BrokerKey {
        name: "zookeeper.connection.timeout.ms",
        kind: ConfigType::Int,
        doc: "Milliseconds that a start waits for ZooKeeper to answer; as long as a session lasts if it is not set.",
        set: |config, text| number(text, 1, I32).map(|ms| config.zookeeper_connection_timeout_ms = Some(ms)),
        show: |config| config.zookeeper_connection_timeout_ms.map(show),
    },
];
