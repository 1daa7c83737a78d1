//! An idempotent producer: batches with sequence numbers, a few in flight, sent again in order after any failure.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bytes::Bytes;
use highwater_broker::api::ErrorCode;
use highwater_broker::client::{ClientError, Connection};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{InitProducerIdRequest, ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::watch;

use super::input::Input;
use super::random::Random;
use super::{CLIENT_ID, REQUEST_TIMEOUT, VERSION_WITH_NAMES, find_leader};

/// As many as a broker remembers per producer, so that each of them can be recognised when it is sent again.
const BATCHES_IN_FLIGHT: usize = 5;

const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// A longer time without an acknowledgement is one of the demo's pauses, not the pace of sending.
const GAP: Duration = Duration::from_millis(100);

/// How long a batch may go without an acknowledgement before the demo gives up.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(40);

/// What the producer and the conductor of the demo tell each other.
#[derive(Debug)]
pub(super) struct Progress {
    /// Records acknowledged so far.
    pub(super) acknowledged: AtomicU64,
    /// Records that may be sent so far: the conductor holds the producer at the turns of the story.
    pub(super) limit: watch::Sender<u64>,
}

/// One acknowledged batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    /// The number of its first record.
    pub(super) first: u64,
    /// Its records.
    pub(super) records: u32,
    /// The offset the broker gave its first record.
    pub(super) base_offset: i64,
}

/// What was sent and how it went.
#[derive(Debug)]
pub(super) struct Delivered {
    /// Every batch, in order.
    pub(super) batches: Vec<Acknowledged>,
    /// Batches that were sent again after a failure.
    pub(super) resent: u64,
    /// How long acknowledgements flowed: all the time between two of them, but for gaps above [`GAP`].
    pub(super) flowing: Duration,
}

/// A batch that is on its way.
struct Waiting {
    first: u64,
    records: u32,
    bytes: Bytes,
    built: Instant,
}

type Answer = Pin<Box<dyn Future<Output = Result<ProduceResponse, ClientError>> + Send>>;

/// Sends all records of `input` with acks=all to partition 0 of `topic`, each batch once and in order.
pub(super) async fn produce(
    bootstrap: Vec<String>,
    topic: String,
    input: Arc<Input>,
    progress: Arc<Progress>,
    mut random: Random,
) -> anyhow::Result<Delivered> {
    let (producer_id, producer_epoch) = init_producer_id(&bootstrap).await?;
    let mut limit = progress.limit.subscribe();
    let mut waiting: VecDeque<Waiting> = VecDeque::new();
    let mut answers: VecDeque<Answer> = VecDeque::new();
    let mut leader: Option<Connection> = None;
    let mut delivered = Delivered { batches: Vec::new(), resent: 0, flowing: Duration::ZERO };
    let mut last_acknowledgement = Instant::now();
    let mut next = 0;
    while next < input.records || !waiting.is_empty() {
        if waiting.front().is_some_and(|batch| batch.built.elapsed() > DELIVERY_TIMEOUT) {
            bail!("record {} was not acknowledged within {DELIVERY_TIMEOUT:?}", waiting[0].first);
        }
        let connection = match &leader {
            Some(connection) => connection.clone(),
            None => match connect_to_leader(&bootstrap, &topic).await {
                Ok(connection) => {
                    delivered.resent += waiting.len() as u64;
                    answers = waiting.iter().map(|batch| send(&connection, &topic, batch)).collect();
                    leader.insert(connection).clone()
                }
                Err(_) => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    continue;
                }
            },
        };
        let allowed = (*limit.borrow_and_update()).min(input.records);
        while waiting.len() < BATCHES_IN_FLIGHT && next < allowed {
            let records = (1 + random.below(200)).min(allowed - next);
            let batch = build(&input, next, records, (producer_id, producer_epoch))?;
            next += records;
            answers.push_back(send(&connection, &topic, &batch));
            waiting.push_back(batch);
        }
        let Some(answer) = answers.front_mut() else {
            limit.changed().await.context("the demo ended")?;
            continue;
        };
        match outcome(answer.await) {
            Outcome::Stored(base_offset) => {
                answers.pop_front();
                if let Some(batch) = waiting.pop_front() {
                    delivered.batches.push(Acknowledged { first: batch.first, records: batch.records, base_offset });
                    progress.acknowledged.fetch_add(u64::from(batch.records), Ordering::Release);
                    let gap = last_acknowledgement.elapsed();
                    last_acknowledgement = Instant::now();
                    if gap < GAP {
                        delivered.flowing += gap;
                    }
                }
            }
            Outcome::Again => {
                // Everything unacknowledged is sent again in order; the broker recognises what it already has.
                leader = None;
                answers.clear();
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            Outcome::Refused(code) => bail!("record {} was refused: {code:?}", waiting[0].first),
        }
    }
    Ok(delivered)
}

enum Outcome {
    Stored(i64),
    Again,
    Refused(ErrorCode),
}

fn outcome(answer: Result<ProduceResponse, ClientError>) -> Outcome {
    let Ok(response) = answer else { return Outcome::Again };
    let Some(partition) = response.responses.first().and_then(|topic| topic.partition_responses.first()) else {
        return Outcome::Again;
    };
    match ErrorCode::from_number(partition.error_code) {
        Some(ErrorCode::None) => Outcome::Stored(partition.base_offset),
        // What a leader change, a small ISR or a half-sent pipeline may give; all of it passes.
        Some(code) if code.is_retriable() || code == ErrorCode::OutOfOrderSequenceNumber => Outcome::Again,
        code => Outcome::Refused(code.unwrap_or(ErrorCode::UnknownServerError)),
    }
}

fn build(input: &Input, first: u64, records: u64, producer: (i64, i16)) -> anyhow::Result<Waiting> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let timestamp = TimestampMs(i64::try_from(now)?);
    // Sequences count records and wrap to 0 after 2^31 - 1, as Kafka's do.
    let sequence = i32::try_from(first % (1 << 31))?;
    let mut batch = BatchBuilder::new(Codec::None).producer(producer.0, producer.1, sequence);
    for number in first..first + records {
        batch.push(Record::new(timestamp, input.value(number)));
    }
    Ok(Waiting { first, records: u32::try_from(records)?, bytes: Bytes::from(batch.build()), built: Instant::now() })
}

fn send(connection: &Connection, topic: &str, batch: &Waiting) -> Answer {
    let partition = PartitionProduceData::default().with_index(0).with_records(Some(batch.bytes.clone()));
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(i32::try_from(REQUEST_TIMEOUT.as_millis()).unwrap_or(i32::MAX))
        .with_topic_data(vec![
            TopicProduceData::default()
                .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
                .with_partition_data(vec![partition]),
        ]);
    match connection.version_up_to::<ProduceRequest>(VERSION_WITH_NAMES) {
        Ok(version) => Box::pin(connection.call(&request, version)),
        Err(error) => Box::pin(std::future::ready(Err(error))),
    }
}

async fn connect_to_leader(bootstrap: &[String], topic: &str) -> anyhow::Result<Connection> {
    let address = find_leader(bootstrap, topic).await?;
    Ok(Connection::connect(&address, CLIENT_ID, REQUEST_TIMEOUT).await?)
}

async fn init_producer_id(bootstrap: &[String]) -> anyhow::Result<(i64, i16)> {
    let address = bootstrap.first().context("no broker to ask for a producer id")?;
    let connection = Connection::connect(address, CLIENT_ID, REQUEST_TIMEOUT).await?;
    let request = InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
    let response = connection.send(&request).await?;
    match ErrorCode::from_number(response.error_code) {
        Some(ErrorCode::None) => Ok((response.producer_id.0, response.producer_epoch)),
        code => bail!("no producer id: {}", code.unwrap_or(ErrorCode::UnknownServerError)),
    }
}
