//! Producers and consumers of one partition, who write down what they see.

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
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, FetchRequest, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::process::LIMIT;

/// A producer that hears nothing for so long looks for another leader.
const PATIENCE: Duration = Duration::from_millis(500);
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
        let wanted =
            CreatableTopic::default().with_name(name(topic)).with_num_partitions(1).with_replication_factor(replicas);
        let request = CreateTopicsRequest::default().with_topics(vec![wanted]).with_timeout_ms(10_000);
        let first = *brokers.first().context("there are no brokers")?;
        let response = Client::connect(first)?.send(7, &request)?;
        let made = response.topics.first().context("no topic in the answer")?;
        ensure!(made.error_code == 0, "creating {topic} gives {}: {:?}", made.error_code, made.error_message);
        Ok(Self { topic, brokers, history: Mutex::default(), payloads: AtomicU64::new(0) })
    }

    fn note(&self, event: Event) {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Sends one record and gives its offset, or Kafka's error code.
    pub(crate) fn send(&self, who: u32, to: &mut Client, acks: Acks) -> anyhow::Result<Result<i64, i16>> {
        let payload = Payload(self.payloads.fetch_add(1, Ordering::Relaxed));
        self.note(Event::Sent { client: Who(who), payload, idempotent: false });
        let answer = self.produce_one(payload, to, acks);
        match &answer {
            Ok(Ok(offset)) if acks == Acks::All => self.note(Event::Acked { payload, offset: *offset }),
            _ => self.note(Event::Unknown { payload }),
        }
        answer
    }

    fn produce_one(&self, payload: Payload, to: &mut Client, acks: Acks) -> anyhow::Result<Result<i64, i16>> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(TimestampMs(i64::try_from(now.as_millis())?), payload.0.to_string().as_bytes()));
        let part = PartitionProduceData::default().with_index(0).with_records(Some(batch.build().into()));
        let topic = TopicProduceData::default().with_name(name(self.topic)).with_partition_data(vec![part]);
        let request = ProduceRequest::default()
            .with_acks(if acks == Acks::All { -1 } else { 1 })
            .with_timeout_ms(i32::try_from(ACKS_WITHIN.as_millis())?)
            .with_topic_data(vec![topic]);
        let response = to.send(9, &request)?;
        let topic = response.responses.first().context("no topic in the answer")?;
        let part = topic.partition_responses.first().context("no partition in the answer")?;
        Ok(if part.error_code == 0 { Ok(part.base_offset) } else { Err(part.error_code) })
    }

    /// Sends record after record to whoever takes them, until it is told to stop. Gives the moments of acknowledgements.
    pub(crate) fn produce(&self, who: u32, acks: Acks, stop: &AtomicBool, acked: &Mutex<Vec<Instant>>) {
        let mut connection = None;
        for broker in self.brokers.iter().cycle() {
            while !stop.load(Ordering::Relaxed) {
                let open = connection.take().map_or_else(|| Client::connect_within(*broker, PATIENCE), Ok);
                let Ok(mut open) = open else { break };
                match self.send(who, &mut open, acks) {
                    Ok(Ok(_)) => {
                        acked.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                        connection = Some(open);
                    }
                    _ => break,
                }
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            connection = None;
            thread::sleep(Duration::from_millis(5));
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

fn name(topic: &'static str) -> TopicName {
    TopicName(StrBytes::from_static_str(topic))
}
