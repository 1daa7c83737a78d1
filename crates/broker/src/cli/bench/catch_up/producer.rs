//! A producer on a thread of its own: one batch over and over, some in flight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bytes::Bytes;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::{LOOK_EVERY, REQUEST_TIMEOUT};
use crate::api::ErrorCode;
use crate::client::Connection;

/// Produce names topics by id from version 13 on.
const VERSION_WITH_NAMES: i16 = 12;

const PACED_IN: Duration = Duration::from_millis(5);

/// Sends one batch over and over to all partitions in turn, with acks=1.
pub(super) struct Producer {
    pub(super) address: String,
    pub(super) topic: &'static str,
    pub(super) partitions: u16,
    pub(super) batch: Bytes,
    pub(super) in_flight: usize,
    /// As much as it can without it.
    pub(super) bytes_per_second: Option<f64>,
}

/// A producer at work.
pub(super) struct Sending {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Sending {
    /// Bytes acknowledged so far.
    pub(super) fn bytes(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Whether it has sent all.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until so many bytes are acknowledged, or it has ended.
    pub(super) async fn reached(&self, bytes: u64) {
        while self.bytes() < bytes && !self.has_ended() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Ends it once what is in flight is answered.
    pub(super) fn stop(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| bail!("the producer panicked"))
    }
}

impl Producer {
    /// Starts it on a thread and a runtime of its own, as a program elsewhere would be. It ends after so many bytes.
    pub(super) fn start(self, bytes_max: u64) -> anyhow::Result<Sending> {
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = {
            let (acknowledged, stop) = (Arc::clone(&acknowledged), Arc::clone(&stop));
            std::thread::spawn(move || {
                let enough = || stop.load(Ordering::Relaxed) || acknowledged.load(Ordering::Relaxed) >= bytes_max;
                runtime.block_on(self.send(&acknowledged, enough))
            })
        };
        Ok(Sending { acknowledged, stop, thread })
    }

    /// Sends so many bytes, about.
    pub(super) async fn send_all(self, bytes: u64) -> anyhow::Result<()> {
        let (acknowledged, size) = (AtomicU64::new(0), self.batch.len() as u64);
        let in_flight = self.in_flight as u64 * size;
        let enough = || acknowledged.load(Ordering::Relaxed) + in_flight >= bytes;
        self.send(&acknowledged, enough).await
    }

    async fn send(self, acknowledged: &AtomicU64, enough: impl Fn() -> bool) -> anyhow::Result<()> {
        let connection = Connection::connect(&self.address, "highwater-bench", REQUEST_TIMEOUT).await?;
        let version = connection.version_up_to::<ProduceRequest>(VERSION_WITH_NAMES)?;
        let (mut answers, since, mut sent) = (VecDeque::new(), Instant::now(), 0_u64);
        for partition in (0..i32::from(self.partitions)).cycle() {
            if enough() {
                break;
            }
            if answers.len() >= self.in_flight
                && let Some(answer) = answers.pop_front()
            {
                stored(answer.await?)?;
                acknowledged.fetch_add(self.batch.len() as u64, Ordering::Relaxed);
            }
            if let Some(rate) = self.bytes_per_second {
                // In steps that a timer keeps: it counts milliseconds.
                let early = Duration::from_secs_f64(sent as f64 / rate).saturating_sub(since.elapsed());
                if early > PACED_IN {
                    tokio::time::sleep(early).await;
                }
            }
            answers.push_back(connection.call(&self.request(partition), version));
            sent += self.batch.len() as u64;
        }
        for answer in answers {
            stored(answer.await?)?;
            acknowledged.fetch_add(self.batch.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    fn request(&self, partition: i32) -> ProduceRequest {
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(self.batch.clone()));
        let topic = TopicProduceData::default()
            .with_name(TopicName(StrBytes::from_static_str(self.topic)))
            .with_partition_data(vec![data]);
        let timeout_ms = i32::try_from(REQUEST_TIMEOUT.as_millis()).unwrap_or(i32::MAX);
        ProduceRequest::default().with_acks(1).with_timeout_ms(timeout_ms).with_topic_data(vec![topic])
    }
}

fn stored(response: ProduceResponse) -> anyhow::Result<()> {
    let part = response.responses.first().and_then(|topic| topic.partition_responses.first());
    match part.context("an answer about nothing")?.error_code {
        0 => Ok(()),
        code => bail!("a batch was refused: {:?} ({code})", ErrorCode::from_number(code)),
    }
}
