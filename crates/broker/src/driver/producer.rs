//! An idempotent producer: batches with sequence numbers, a few in flight, sent again in order after any failure.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::Bytes;
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};

use super::{Contact, VERSION_WITH_NAMES, code, name};
use crate::api::ErrorCode;
use crate::client::{ClientError, Connection};

/// As many as a broker remembers per producer, so that each of them can be recognised when it is sent again.
pub(crate) const BATCHES_IN_FLIGHT: usize = 5;

const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Sends with acks=all to one partition, each batch once and in order. `T` is what the caller knows a batch by.
pub(crate) struct Producer<T> {
    contact: Contact,
    topic: &'static str,
    partition: i32,
    identity: (i64, i16),
    /// Of the next record. Sequences count records and wrap to 0 after 2^31 - 1, as Kafka's do.
    sequence: i32,
    waiting: VecDeque<Waiting<T>>,
    answers: VecDeque<Answer>,
    leader: Option<Link>,
    /// Of the latest leader that it has heard of. As Kafka's clients it believes in no older one again: such a one has not what
    /// its successors have stored, and would find a gap before the next batch.
    leader_epoch: i32,
    /// Which broker is asked for the leader first.
    asks: usize,
    resent: u64,
}

/// A batch that is on its way.
struct Waiting<T> {
    tag: T,
    bytes: Bytes,
    built: Instant,
    maybe_stored: bool,
}

struct Link {
    connection: Connection,
    opened: Instant,
    /// Whether it has given no answer yet.
    fresh: bool,
}

type Answer = Pin<Box<dyn Future<Output = Result<ProduceResponse, ClientError>> + Send>>;

/// What became of the first batch that waits.
pub(crate) enum Outcome<T> {
    /// It is stored, by a leader to whom the connection was opened then.
    Stored { tag: T, base_offset: i64, opened: Instant },
    /// Not yet: all is sent again.
    Again,
    /// It will not be taken, nor will what waits behind it.
    Refused(ErrorCode),
}

/// A batch that was given up.
pub(crate) struct Abandoned<T> {
    pub(crate) tag: T,
    /// Whether it may be in the log all the same.
    pub(crate) maybe_stored: bool,
}

impl<T> Producer<T> {
    /// A producer with a new number, which one of the brokers gives.
    pub(crate) async fn new(
        contact: Contact,
        topic: &'static str,
        partition: i32,
        asks: usize,
    ) -> anyhow::Result<Self> {
        let identity = contact.init_producer_id(asks % contact.brokers.len().max(1)).await?;
        Ok(Self {
            contact,
            topic,
            partition,
            identity,
            sequence: 0,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            leader: None,
            leader_epoch: -1,
            asks,
            resent: 0,
        })
    }

    /// How many batches wait for their acknowledgement.
    pub(crate) fn in_flight(&self) -> usize {
        self.waiting.len()
    }

    /// How long the first of them has waited.
    pub(crate) fn waits_for(&self) -> Duration {
        self.waiting.front().map_or(Duration::ZERO, |batch| batch.built.elapsed())
    }

    /// The first batch that waits.
    pub(crate) fn first(&self) -> Option<&T> {
        self.waiting.front().map(|batch| &batch.tag)
    }

    /// Batches that were sent again after a failure.
    pub(crate) fn resent(&self) -> u64 {
        self.resent
    }

    /// Sends a batch of these values, once there is a leader.
    pub(crate) fn push<V: AsRef<[u8]>>(&mut self, values: impl Iterator<Item = V>, tag: T) -> anyhow::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let timestamp = TimestampMs(i64::try_from(now).context("the clock is far off")?);
        let mut batch = BatchBuilder::new(Codec::None).producer(self.identity.0, self.identity.1, self.sequence);
        for value in values {
            batch.push(Record::new(timestamp, value.as_ref()));
        }
        let next = (i64::from(self.sequence) + i64::from(batch.record_count())) % (1 << 31);
        self.sequence = i32::try_from(next)?;
        let bytes = Bytes::from(batch.build());
        if let Some(leader) = &self.leader {
            self.answers.push_back(self.send(&leader.connection, &bytes));
        }
        self.waiting.push_back(Waiting { tag, bytes, built: Instant::now(), maybe_stored: false });
        Ok(())
    }

    /// Waits until something is known of the first batch that waits. There must be one.
    pub(crate) async fn outcome(&mut self) -> Outcome<T> {
        if self.leader.is_none() && !self.find_leader().await {
            tokio::time::sleep(RETRY_PAUSE).await;
            return Outcome::Again;
        }
        let (Some(answer), Some(leader)) = (self.answers.front_mut(), &mut self.leader) else {
            return Outcome::Again;
        };
        let answer = answer.await;
        let was_fresh = std::mem::take(&mut leader.fresh);
        self.answers.pop_front();
        match of_partition(answer) {
            Some((ErrorCode::None, base_offset)) => {
                let opened = leader.opened;
                match self.waiting.pop_front() {
                    Some(batch) => Outcome::Stored { tag: batch.tag, base_offset, opened },
                    None => Outcome::Again,
                }
            }
            // A half-sent pipeline gives this for what comes behind a gap, but not for the first that is sent. What was
            // acknowledged before it is missing there.
            Some((ErrorCode::OutOfOrderSequenceNumber, _)) if was_fresh => {
                self.failed(true);
                Outcome::Refused(ErrorCode::OutOfOrderSequenceNumber)
            }
            // What a leader change, a small ISR or a gap in the pipeline gives; all of it passes.
            Some((code, _)) if code.is_retriable() || code == ErrorCode::OutOfOrderSequenceNumber => {
                self.failed(says_not_stored(code));
                tokio::time::sleep(RETRY_PAUSE).await;
                Outcome::Again
            }
            Some((code, _)) => {
                self.failed(says_not_stored(code));
                Outcome::Refused(code)
            }
            None => {
                self.failed(false);
                tokio::time::sleep(RETRY_PAUSE).await;
                Outcome::Again
            }
        }
    }

    /// Gives up all that waits; the producer sends nothing more, since sequences would be missing.
    pub(crate) fn abandon(mut self) -> impl Iterator<Item = Abandoned<T>> {
        if self.leader.is_some() {
            self.failed(false);
        }
        self.waiting.into_iter().map(|batch| Abandoned { tag: batch.tag, maybe_stored: batch.maybe_stored })
    }

    /// Finds the leader and sends it all that waits, in order: it recognises what it already has.
    async fn find_leader(&mut self) -> bool {
        self.asks = self.asks.wrapping_add(1);
        let (contact, known) = (&self.contact, self.leader_epoch);
        let found = contact.leader_since(self.topic, self.partition, self.asks, known).await;
        let Ok(leader) = found else { return false };
        self.leader_epoch = leader.epoch;
        let Ok(connection) = self.contact.connect(&leader.address).await else { return false };
        self.resent += self.waiting.len() as u64;
        self.answers = self.waiting.iter().map(|batch| self.send(&connection, &batch.bytes)).collect();
        self.leader = Some(Link { connection, opened: Instant::now(), fresh: true });
        true
    }

    /// The connection is of no more use. `first_is_not_stored`: what was said of the first batch says so.
    fn failed(&mut self, first_is_not_stored: bool) {
        self.leader = None;
        self.answers.clear();
        let unsure = self.waiting.iter_mut().skip(usize::from(first_is_not_stored));
        unsure.for_each(|batch| batch.maybe_stored = true);
    }

    fn send(&self, connection: &Connection, batch: &Bytes) -> Answer {
        let partition = PartitionProduceData::default().with_index(self.partition).with_records(Some(batch.clone()));
        let topic = TopicProduceData::default().with_name(name(self.topic)).with_partition_data(vec![partition]);
        let request = ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(i32::try_from(self.contact.patience.as_millis()).unwrap_or(i32::MAX))
            .with_topic_data(vec![topic]);
        match connection.version_up_to::<ProduceRequest>(VERSION_WITH_NAMES) {
            Ok(version) => Box::pin(connection.call(&request, version)),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// What the answer says of the one partition, if there is one.
fn of_partition(answer: Result<ProduceResponse, ClientError>) -> Option<(ErrorCode, i64)> {
    let response = answer.ok()?;
    let partition = response.responses.first()?.partition_responses.first()?;
    Some((code(partition.error_code), partition.base_offset))
}

/// Whether a refusal says that this very request has stored nothing. NOT_LEADER_OR_FOLLOWER does not: it is what a leader says
/// as well that stored a batch and was deposed before its followers had it.
fn says_not_stored(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotEnoughReplicas
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::UnknownProducerId
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::MessageTooLarge
    )
}

#[cfg(test)]
mod tests;
