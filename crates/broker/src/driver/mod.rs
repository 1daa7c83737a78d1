//! What the demo, the attack and the benches drive a cluster with: small clients, draws, a screen.

pub(crate) mod producer;
pub(crate) mod random;
pub(crate) mod replicas;
pub(crate) mod screen;

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, InitProducerIdRequest, MetadataRequest, MetadataResponse, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::api::ErrorCode;
use crate::client::{ClientError, Connection};

/// Produce and Fetch name topics by id from version 13 on; these clients know their topic by name.
const VERSION_WITH_NAMES: i16 = 12;

const FETCH_BYTES: i32 = 1 << 20;

/// How long a fetch waits at the leader for records.
const FETCH_WAIT_MS: i32 = 100;

/// The cluster as a client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Contact {
    /// The brokers to ask, as `HOST:PORT`.
    pub(crate) brokers: Vec<String>,
    /// What the clients call themselves.
    pub(crate) client_id: &'static str,
    /// How long they wait for a connection and for an answer.
    pub(crate) patience: Duration,
}

/// The topic that is driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topic {
    pub(crate) name: &'static str,
    pub(crate) partitions: i32,
    pub(crate) replicas: i16,
    pub(crate) min_insync_replicas: i16,
}

/// Who leads a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    /// As `HOST:PORT`.
    pub(crate) address: String,
    pub(crate) epoch: i32,
}

/// What a fetch gave.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) records: Bytes,
    pub(crate) high_watermark: i64,
}

/// Why a fetch gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    /// No answer, or none that makes sense.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The broker says no.
    #[error("offset {offset}: cannot be read: {code}")]
    Refused { offset: i64, code: ErrorCode },
}

impl Contact {
    pub(crate) async fn connect(&self, address: &str) -> Result<Connection, ClientError> {
        Connection::connect(address, self.client_id, self.patience).await
    }

    /// Who leads a partition, asked of whichever broker answers; `first` is the one to begin with.
    pub(crate) async fn leader(&self, topic: &str, partition: i32, first: usize) -> anyhow::Result<Leader> {
        self.leader_since(topic, partition, first, -1).await
    }

    /// The same, of those who have heard of a leader epoch: one that slept while another was elected takes itself for the leader
    /// until the store tells it, and answers by what it had then.
    pub(crate) async fn leader_since(
        &self,
        topic: &str,
        partition: i32,
        first: usize,
        epoch: i32,
    ) -> anyhow::Result<Leader> {
        let mut last = None;
        for number in 0..self.brokers.len() {
            let address = &self.brokers[(first + number) % self.brokers.len()];
            match self.leader_according_to(address, topic, partition).await {
                Ok(leader) if leader.epoch >= epoch => return Ok(leader),
                Ok(leader) => {
                    let known = leader.epoch;
                    last = Some(anyhow::anyhow!(
                        "{address} knows of epoch {known} of {topic}-{partition}, not of {epoch}"
                    ));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| anyhow::anyhow!("no broker to ask")))
    }

    async fn leader_according_to(&self, address: &str, topic: &str, partition: i32) -> anyhow::Result<Leader> {
        let metadata = self.metadata(address, topic).await?;
        let named = metadata.topics.first().map_or(&[][..], |topic| &topic.partitions);
        let found = named.iter().find(|found| found.partition_index == partition);
        let Some(found) = found.filter(|found| found.error_code == ErrorCode::None.number()) else {
            bail!("{topic}-{partition} has no leader at present");
        };
        let leader = metadata.brokers.iter().find(|broker| broker.node_id == found.leader_id);
        let leader = leader.with_context(|| format!("{topic}-{partition} has no live leader at present"))?;
        Ok(Leader { address: format!("{}:{}", leader.host, leader.port), epoch: found.leader_epoch })
    }

    /// What one broker knows of a topic.
    pub(crate) async fn metadata(&self, address: &str, topic: &str) -> Result<MetadataResponse, ClientError> {
        let connection = self.connect(address).await?;
        let request = MetadataRequest::default()
            .with_topics(Some(vec![MetadataRequestTopic::default().with_name(Some(name(topic)))]))
            .with_allow_auto_topic_creation(false);
        connection.send(&request).await
    }

    pub(crate) async fn create_topic(&self, topic: Topic) -> anyhow::Result<()> {
        let connection = self.connect(self.brokers.first().context("no broker")?).await?;
        let min_insync_replicas = CreatableTopicConfig::default()
            .with_name(StrBytes::from_static_str("min.insync.replicas"))
            .with_value(Some(StrBytes::from_string(topic.min_insync_replicas.to_string())));
        let wanted = CreatableTopic::default()
            .with_name(name(topic.name))
            .with_num_partitions(topic.partitions)
            .with_replication_factor(topic.replicas)
            .with_configs(vec![min_insync_replicas]);
        create_topic(&connection, wanted, 10_000).await
    }

    /// A number for an idempotent producer, and its epoch.
    pub(crate) async fn init_producer_id(&self, broker: usize) -> anyhow::Result<(i64, i16)> {
        let address = self.brokers.get(broker).context("no broker to ask for a producer id")?;
        let connection = self.connect(address).await?;
        let request = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
        let response = connection.send(&request).await?;
        match code(response.error_code) {
            ErrorCode::None => Ok((response.producer_id.0, response.producer_epoch)),
            code => bail!("no producer id: {code}"),
        }
    }
}

/// Makes a topic, and waits so long for its leaders.
pub(crate) async fn create_topic(
    connection: &Connection,
    wanted: CreatableTopic,
    timeout_ms: i32,
) -> anyhow::Result<()> {
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(timeout_ms);
    let response = connection.send(&request).await?;
    let made = response.topics.first().context("an answer without the topic")?;
    match code(made.error_code) {
        ErrorCode::None => Ok(()),
        code => bail!("cannot create the topic: {code}"),
    }
}

/// Reads a partition from `offset` on, as a consumer. `leader_epoch` is the one that the consumer has heard of, or -1.
pub(crate) async fn fetch(
    connection: &Connection,
    topic: &str,
    partition: i32,
    offset: i64,
    leader_epoch: i32,
) -> Result<Fetched, FetchError> {
    let wanted = FetchPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(leader_epoch)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(FETCH_BYTES);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(FETCH_WAIT_MS)
        .with_min_bytes(1)
        .with_max_bytes(FETCH_BYTES)
        .with_session_epoch(-1)
        .with_topics(vec![FetchTopic::default().with_topic(name(topic)).with_partitions(vec![wanted])]);
    let version = connection.version_up_to::<FetchRequest>(VERSION_WITH_NAMES)?;
    let response = connection.send_version(&request, version).await?;
    let found = response.responses.into_iter().next().and_then(|topic| topic.partitions.into_iter().next());
    let refused = |code| FetchError::Refused { offset, code };
    let found = found.ok_or_else(|| refused(code(response.error_code)))?;
    match code(found.error_code) {
        ErrorCode::None => {
            Ok(Fetched { records: found.records.unwrap_or_default(), high_watermark: found.high_watermark })
        }
        code => Err(refused(code)),
    }
}

pub(crate) fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

fn code(number: i16) -> ErrorCode {
    ErrorCode::from_number(number).unwrap_or(ErrorCode::UnknownServerError)
}
