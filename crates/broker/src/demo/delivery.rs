//! The demo's producer: all records of a file, and how long acknowledgements flowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::sync::watch;

use super::input::Input;
use crate::driver::Contact;
use crate::driver::producer::{BATCHES_IN_FLIGHT, Outcome, Producer};
use crate::driver::random::Random;

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

/// Records that go together.
struct Batch {
    first: u64,
    records: u32,
}

/// Sends all records of `input` with acks=all to partition 0 of `topic`, each batch once and in order.
pub(super) async fn produce(
    contact: Contact,
    topic: &'static str,
    input: Arc<Input>,
    progress: Arc<Progress>,
    mut random: Random,
) -> anyhow::Result<Delivered> {
    let mut producer: Producer<Batch> = Producer::new(contact, topic, 0, 0).await?;
    let mut limit = progress.limit.subscribe();
    let mut delivered = Delivered { batches: Vec::new(), resent: 0, flowing: Duration::ZERO };
    let mut last_acknowledgement = Instant::now();
    let mut next = 0;
    while next < input.records || producer.in_flight() > 0 {
        if let Some(batch) = producer.first().filter(|_| producer.waits_for() > DELIVERY_TIMEOUT) {
            bail!("record {} was not acknowledged within {DELIVERY_TIMEOUT:?}", batch.first);
        }
        let allowed = (*limit.borrow_and_update()).min(input.records);
        while producer.in_flight() < BATCHES_IN_FLIGHT && next < allowed {
            let records = (1 + random.below(200)).min(allowed - next);
            let batch = Batch { first: next, records: u32::try_from(records)? };
            producer.push((next..next + records).map(|number| input.value(number)), batch)?;
            next += records;
        }
        if producer.in_flight() == 0 {
            limit.changed().await.context("the demo ended")?;
            continue;
        }
        match producer.outcome().await {
            Outcome::Stored { tag: Batch { first, records }, base_offset, .. } => {
                delivered.batches.push(Acknowledged { first, records, base_offset });
                progress.acknowledged.fetch_add(u64::from(records), Ordering::Release);
                let gap = last_acknowledgement.elapsed();
                last_acknowledgement = Instant::now();
                if gap < GAP {
                    delivered.flowing += gap;
                }
            }
            Outcome::Again => {}
            Outcome::Refused(code) => {
                bail!("record {} was refused: {code:?}", producer.first().map_or(next, |batch| batch.first));
            }
        }
    }
    delivered.resent = producer.resent();
    Ok(delivered)
}
