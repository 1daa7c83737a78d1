//! What the tests of running brokers share: starting them, and a client that looks for leaders as real ones do.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_broker::client::{ClientError, Connection};
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId, Role, Status};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs, batches};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreateTopicsRequest, FetchRequest, FetchResponse, InitProducerIdRequest, MetadataRequest, ProduceRequest,
};
use kafka_protocol::messages::{TopicName, metadata_request::MetadataRequestTopic};
use kafka_protocol::protocol::StrBytes;

pub(crate) const TOPIC: &str = "books";
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) async fn start(brokers: usize, dir: &Path) -> Cluster {
    let options = ClusterOptions::new(brokers, dir).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.replica_lag_time_max_ms = 2_000;
        config.replica_fetch_wait_max_ms = 100;
        config.replica_fetch_backoff_ms = 100;
    });
    Cluster::start(options).await.expect("the cluster starts")
}

/// Waits until `done` gives something, and gives up with `what` after a while.
pub(crate) async fn until<T>(what: &str, mut done: impl AsyncFnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(result) = done().await {
            return result;
        }
        assert!(started.elapsed() < PATIENCE, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn create_topic(cluster: &Cluster, partitions: i32, replicas: i16, config: &[(&str, &str)]) {
    use kafka_protocol::messages::create_topics_request::CreatableTopicConfig;
    let configs = config.iter().map(|(name, value)| {
        CreatableTopicConfig::default()
            .with_name(StrBytes::from_string((*name).to_owned()))
            .with_value(Some(StrBytes::from_string((*value).to_owned())))
    });
    let topic = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas)
        .with_configs(configs.collect());
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let address = cluster.address(BrokerId(1)).expect("broker 1").to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let response = connection.send(&request).await.expect("an answer");
    assert_eq!(response.topics[0].error_code, 0, "{:?}", response.topics[0].error_message);
    // The leader is known a moment before it leads; clients get 6 meanwhile and try again.
    until("the first leadership", async || {
        let leads = |(_, status): (BrokerId, Option<Status>)| status.is_some_and(|status| status.role == Role::Leader);
        cluster.statuses(TOPIC, 0).into_iter().any(leads).then_some(())
    })
    .await;
}

/// A client that looks for the leader and tries again, as real ones do.
pub(crate) struct Client {
    addresses: Vec<String>,
    pub(crate) connection: Option<Connection>,
}

impl Client {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        Self { addresses: cluster.bootstrap(), connection: None }
    }

    pub(crate) async fn leader(&mut self) -> Option<Connection> {
        if let Some(connection) = &self.connection {
            return Some(connection.clone());
        }
        let topic = MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(TOPIC))));
        let request = MetadataRequest::default().with_topics(Some(vec![topic]));
        for address in &self.addresses {
            let Ok(connection) = Connection::connect(address, "test", TIMEOUT).await else { continue };
            let Ok(metadata) = connection.send(&request).await else { continue };
            let Some(partition) = metadata.topics.first().and_then(|topic| topic.partitions.first()) else { continue };
            let Some(leader) = metadata.brokers.iter().find(|known| known.node_id == partition.leader_id) else {
                continue;
            };
            let address = format!("{}:{}", &*leader.host, leader.port);
            self.connection = Connection::connect(&address, "test", TIMEOUT).await.ok();
            return self.connection.clone();
        }
        None
    }

    pub(crate) async fn produce_once(&mut self, batch: &[u8], acks: i16) -> Result<i64, i16> {
        let Some(connection) = self.leader().await else { return Err(5) };
        let data = PartitionProduceData::default().with_index(0).with_records(Some(batch.to_vec().into()));
        let topic = TopicProduceData::default()
            .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default().with_acks(acks).with_timeout_ms(2_000).with_topic_data(vec![topic]);
        match connection.send_version(&request, 9).await {
            Ok(response) => {
                let answer = &response.responses[0].partition_responses[0];
                if answer.error_code == 0 { Ok(answer.base_offset) } else { Err(answer.error_code) }
            }
            Err(_) => Err(13),
        }
    }

    /// Sends until it is acknowledged, and returns the base offset.
    pub(crate) async fn produce(&mut self, batch: &[u8]) -> i64 {
        let started = Instant::now();
        loop {
            match self.produce_once(batch, -1).await {
                Ok(offset) => return offset,
                Err(code) => {
                    assert!(started.elapsed() < PATIENCE, "never acknowledged, lastly {code}");
                    assert!(
                        matches!(code, 3 | 5 | 6 | 7 | 13 | 19 | 20 | 56),
                        "a code that producers do not retry: {code}"
                    );
                    self.connection = None;
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    pub(crate) async fn fetch(
        &mut self,
        from: i64,
        max_wait_ms: i32,
        min_bytes: i32,
    ) -> Result<FetchResponse, ClientError> {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(from)
            .with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default()
            .with_topic(TopicName(StrBytes::from_static_str(TOPIC)))
            .with_partitions(vec![partition]);
        let request = FetchRequest::default()
            .with_replica_id(kafka_protocol::messages::BrokerId(-1))
            .with_max_wait_ms(max_wait_ms)
            .with_min_bytes(min_bytes)
            .with_max_bytes(10 << 20)
            .with_topics(vec![topic]);
        let connection = self.leader().await.expect("a leader");
        connection.send_version(&request, 12).await
    }

    /// Everything from the beginning up to the high watermark: value by offset.
    pub(crate) async fn read_all(&mut self) -> BTreeMap<i64, Vec<u8>> {
        let (mut records, mut from) = (BTreeMap::new(), 0);
        loop {
            let response = self.fetch(from, 0, 0).await.expect("an answer");
            let part = &response.responses[0].partitions[0];
            assert_eq!(part.error_code, 0);
            let bytes = part.records.clone().expect("never null");
            if bytes.is_empty() && part.high_watermark == -1 {
                // A leader that was elected just now does not know yet.
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            if bytes.is_empty() {
                assert_eq!(from, part.high_watermark);
                return records;
            }
            for batch in batches(&bytes) {
                let batch = batch.expect("whole batches");
                assert!(batch.crc_matches());
                for record in batch.records().expect("not compressed") {
                    let record = record.expect("a record");
                    let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                    records.insert(offset, record.value.expect("a value").to_vec());
                }
                from = batch.last_offset().0 + 1;
            }
        }
    }
}

pub(crate) async fn producer_id(cluster: &Cluster) -> i64 {
    let address = cluster.running().next().expect("one runs").local_addr().to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let request = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
    let response = connection.send(&request).await.expect("an answer");
    assert_eq!(response.error_code, 0);
    response.producer_id.0
}

/// A batch of two records that say which they are.
pub(crate) fn batch(producer: i64, number: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).producer(producer, 0, number * 2);
    for record in 0..2 {
        let value = format!("record {}", number * 2 + record);
        builder.push(Record { timestamp: now(), key: None, value: Some(value.as_bytes()), headers: &[] });
    }
    builder.build()
}

pub(crate) fn now() -> TimestampMs {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    TimestampMs(i64::try_from(since.as_millis()).expect("before the year 292 million"))
}

/// A cyclic redundancy check by its reflected polynomial: `0x82f6_3b78` is CRC-32C, `0xedb8_8320` zlib's.
pub(crate) fn crc(polynomial: u32, bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ polynomial } else { crc >> 1 };
        }
    }
    !crc
}
