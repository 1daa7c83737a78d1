//! Producers and consumers of one partition, who write down what they see.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_checker::{Client as Who, Event, Payload, check};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs, batches};
use highwater_tests::Client;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    BrokerId, CreateTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

use crate::process::LIMIT;

/// A producer that hears nothing for so long looks for another leader.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(1);
/// From this version on an answer names the leader to whoever asked another broker (KIP-951).
const PRODUCE_VERSION: i16 = 10;
/// How long a broker may wait for the in-sync replicas of a record.
const ACKS_WITHIN: Duration = Duration::from_secs(3);

/// When a record counts as acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acks {
    /// The leader has it. Such an acknowledgement promises nothing once that leader fails.
    Leader,
    /// All in-sync replicas have it.
    All,
}

/// Why a record was not taken.
#[derive(Debug)]
struct Refused {
    code: i16,
    /// Who leads, if the broker says so.
    leader: Option<SocketAddr>,
}

/// Partition 0 of a topic, as its clients know it.
#[derive(Debug)]
pub(crate) struct Partition {
    topic: &'static str,
    brokers: Vec<SocketAddr>,
    history: Mutex<Vec<Event>>,
    payloads: AtomicU64,
}

impl Partition {
    /// Makes the topic, with this many replicas.
    pub(crate) fn create(topic: &'static str, replicas: i16, brokers: Vec<SocketAddr>) -> anyhow::Result<Self> {
        create_topic(*brokers.first().context("there are no brokers")?, topic, 1, replicas)?;
        Ok(Self { topic, brokers, history: Mutex::default(), payloads: AtomicU64::new(0) })
    }

    fn note(&self, event: Event) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Sends one record and gives its offset, or Kafka's error code.
    pub(crate) fn send(&self, who: u32, to: &mut Client, acks: Acks) -> anyhow::Result<Result<i64, i16>> {
        Ok(self.send_one(who, to, acks)?.map_err(|refused| refused.code))
    }

    fn send_one(&self, who: u32, to: &mut Client, acks: Acks) -> anyhow::Result<Result<i64, Refused>> {
        let payload = Payload(self.payloads.fetch_add(1, Ordering::Relaxed));
        self.note(Event::Sent { client: Who(who), payload, idempotent: false });
        let answer = self.produce_one(payload, to, acks);
        match &answer {
            Ok(Ok(offset)) if acks == Acks::All => self.note(Event::Acked { payload, offset: *offset }),
            _ => self.note(Event::Unknown { payload }),
        }
        answer
    }

    fn produce_one(&self, payload: Payload, to: &mut Client, acks: Acks) -> anyhow::Result<Result<i64, Refused>> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(TimestampMs(i64::try_from(now.as_millis())?), payload.0.to_string().as_bytes()));
        let part = PartitionProduceData::default().with_index(0).with_records(Some(batch.build().into()));
        let topic = TopicProduceData::default().with_name(name(self.topic)).with_partition_data(vec![part]);
        let request = ProduceRequest::default()
            .with_acks(if acks == Acks::All { -1 } else { 1 })
            .with_timeout_ms(i32::try_from(ACKS_WITHIN.as_millis())?)
            .with_topic_data(vec![topic]);
        let response = to.send(PRODUCE_VERSION, &request)?;
        let topic = response.responses.first().context("no topic in the answer")?;
        let part = topic.partition_responses.first().context("no partition in the answer")?;
        if part.error_code == 0 {
            return Ok(Ok(part.base_offset));
        }
        let leads = response.node_endpoints.iter().find(|node| node.node_id == part.current_leader.leader_id);
        let leader = leads.and_then(|node| format!("{}:{}", &*node.host, node.port).parse().ok());
        Ok(Err(Refused { code: part.error_code, leader }))
    }

    /// Sends record after record to whoever takes them, until it is told to stop: to the leader that an answer names, else to
    /// one broker after the other. Gives the moments of acknowledgements.
    pub(crate) fn produce(&self, who: u32, acks: Acks, stop: &AtomicBool, acked: &Mutex<Vec<Instant>>) {
        let (mut others, mut connection, mut told) = (self.brokers.iter().copied().cycle(), None, None);
        while !stop.load(Ordering::Relaxed) {
            let open = match (connection.take(), told.take().or_else(|| others.next())) {
                (Some(open), _) => Ok(open),
                (None, Some(broker)) => Client::connect_within(broker, PATIENCE),
                (None, None) => return,
            };
            let sent = open.and_then(|mut open| Ok((self.send_one(who, &mut open, acks)?, open)));
            match sent {
                Ok((Ok(_), open)) => {
                    acked.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                    connection = Some(open);
                    continue;
                }
                Ok((Err(refused), _)) => told = refused.leader,
                Err(_) => {}
            }
            thread::sleep(PAUSE);
        }
    }

    /// Fetches once from the leader, whoever that is.
    fn fetch(&self, offset: i64) -> anyhow::Result<PartitionData> {
        let started = Instant::now();
        let mut last = None;
        for broker in self.brokers.iter().cycle() {
            let answer = Client::connect(*broker).and_then(|mut client| self.fetch_from(&mut client, offset));
            match answer {
                Ok(part) if part.error_code == 0 => return Ok(part),
                answer if started.elapsed() > LIMIT => bail!("nobody serves offset {offset}: {answer:?}, {last:?}"),
                answer => last = Some(answer),
            }
            thread::sleep(Duration::from_millis(5));
        }
        bail!("there are no brokers")
    }

    /// Fetches from one broker without waiting.
    pub(crate) fn fetch_from(&self, client: &mut Client, offset: i64) -> anyhow::Result<PartitionData> {
        let part =
            FetchPartition::default().with_partition(0).with_fetch_offset(offset).with_partition_max_bytes(1 << 20);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_min_bytes(0)
            .with_max_bytes(8 << 20)
            .with_topics(vec![FetchTopic::default().with_topic(name(self.topic)).with_partitions(vec![part])]);
        let mut response = client.send(12, &request)?;
        let mut topic = response.responses.pop().context("no topic in the answer")?;
        topic.partitions.pop().context("no partition in the answer")
    }

    /// Reads everything, then looks for what a log may not have shown. Gives how many records it holds.
    pub(crate) fn read_and_check(&self, who: u32) -> anyhow::Result<usize> {
        let (mut next, mut read) = (0, 0);
        loop {
            let part = self.fetch(next)?;
            if part.high_watermark >= 0 {
                self.note(Event::Watermark { client: Who(who), high_watermark: part.high_watermark });
            }
            let bytes = part.records.unwrap_or_default();
            for batch in batches(&bytes) {
                let batch = batch?;
                let records = batch.records().context("they were sent uncompressed")?;
                for (offset, record) in (batch.header().base_offset().0..).zip(records) {
                    let value = record?.value.context("a record without a value")?.to_vec();
                    let payload = Payload(String::from_utf8(value)?.parse()?);
                    self.note(Event::Read { client: Who(who), offset, payload });
                    read += 1;
                }
                next = batch.header().next_offset().0;
            }
            if next >= part.high_watermark && part.high_watermark >= 0 {
                break;
            }
        }
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        let anomalies = check(&history);
        let told: Vec<String> = anomalies.iter().map(|anomaly| anomaly.explain(&history).to_string()).collect();
        ensure!(anomalies.is_empty(), "{}", told.join("\n"));
        Ok(read)
    }

    /// How many records were acknowledged by all in-sync replicas.
    pub(crate) fn acknowledged(&self) -> usize {
        let history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.iter().filter(|event| matches!(event, Event::Acked { .. })).count()
    }
}

/// Makes a topic, and waits until its partitions have leaders.
pub(crate) fn create_topic(at: SocketAddr, topic: &'static str, partitions: i32, replicas: i16) -> anyhow::Result<()> {
    let wanted = CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas);
    let wait_ms = i32::try_from(LIMIT.as_millis())?;
    let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(wait_ms);
    let response = Client::connect_within(at, LIMIT * 2)?.send(7, &request)?;
    let made = response.topics.first().context("no topic in the answer")?;
    ensure!(made.error_code == 0, "creating {topic} gives {}: {:?}", made.error_code, made.error_message);
    Ok(())
}

/// Leader and number of in-sync replicas of each partition, as a broker says; without those that it cannot tell of.
pub(crate) fn leaders(at: SocketAddr, topic: &'static str) -> anyhow::Result<BTreeMap<i32, (i32, usize)>> {
    let asked = MetadataRequestTopic::default().with_name(Some(name(topic)));
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    let response = Client::connect(at)?.send(9, &request)?;
    let known = response.topics.into_iter().flat_map(|topic| topic.partitions);
    Ok(known.map(|of| (of.partition_index, (of.leader_id.0, of.isr_nodes.len()))).collect())
}

fn name(topic: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(topic))
}
