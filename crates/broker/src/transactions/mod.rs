//! Transactions on this broker: a coordinator for each partition of `__transaction_state` that it leads, the markers they have
//! written, and what is asked of them before a batch of a transaction is taken.

mod markers;
mod taking_part;
mod verification;

use std::sync::Arc;
use std::time::Duration;

use highwater_groups::transactions::{
    Partition, TransactionAnswer, TransactionCoordinator, TransactionEffect, TransactionInput, TransactionRefused,
    TransactionRequest,
};
use highwater_groups::{LoadedBatch, Now, Producer, Ticket};

use crate::broker::BrokerShared;
use crate::cluster::AdminError;
use crate::config::BrokerConfig;
use crate::coordinators::{Away, Coordinators, Deed, Event, InternalTopic, Machine, Place};

pub(crate) use markers::write_here;
pub(crate) use taking_part::{Mode, take_part, take_part_here};
pub(crate) use verification::{Given, Verifications};

/// The topic in which transactional ids are kept.
pub(crate) const TRANSACTIONS_TOPIC: &str = "__transaction_state";

/// How long a producer waits for its record to be replicated until it is told to try again.
const PATIENCE: Duration = Duration::from_secs(5);

/// The coordinators that run here.
pub(crate) type Transactions = Coordinators<TransactionCoordinator>;

/// What a coordinator wants done besides appends and answers.
#[derive(Debug)]
pub(crate) enum Wish {
    /// A producer id that nobody has.
    ProducerId(Ticket),
    /// Markers in all partitions that take part.
    Mark(Ending),
}

/// A transaction that is decided.
#[derive(Debug)]
pub(crate) struct Ending {
    id: String,
    producer: Producer,
    commits: bool,
    partitions: Vec<Partition>,
}

impl Machine for TransactionCoordinator {
    type Request = TransactionRequest;
    type Answer = TransactionAnswer;
    type News = TransactionInput;
    type Wish = Wish;

    const TOPIC: &'static str = TRANSACTIONS_TOPIC;
    const KEEPS: &'static str = "transactions";

    fn new(config: &BrokerConfig) -> Self {
        Self::new(config.transactions.clone())
    }

    fn handle(&mut self, now: Now, event: Event<Self>) -> Vec<Deed<Self>> {
        let input = match event {
            Event::Load(LoadedBatch::Records { records, .. }) => {
                let loads = records.into_iter().map(TransactionInput::Load);
                return loads.flat_map(|input| self.handle(now, input)).filter_map(deed).collect();
            }
            // Nobody writes markers here.
            Event::Load(LoadedBatch::Marker { .. }) | Event::Marker { .. } => return Vec::new(),
            Event::Loaded => TransactionInput::Loaded,
            Event::Request(ticket, request) => TransactionInput::Request(ticket, request),
            Event::Appended(id, how) => TransactionInput::Appended(id, how),
            Event::News(news) => news,
            Event::Tick => TransactionInput::Tick,
            Event::Resigned => TransactionInput::Resigned,
        };
        self.handle(now, input).into_iter().filter_map(deed).collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        self.next_deadline_ms()
    }

    fn away(request: &TransactionRequest, why: Away) -> TransactionAnswer {
        request.refused(match why {
            Away::NotHere => TransactionRefused::NotCoordinator,
            Away::Nowhere => TransactionRefused::CoordinatorNotAvailable,
            Away::Loading => TransactionRefused::CoordinatorLoadInProgress,
        })
    }

    fn patience(_config: &BrokerConfig) -> Duration {
        PATIENCE
    }

    async fn carry_out(at: Place<Self>, wish: Wish) {
        match wish {
            Wish::ProducerId(ticket) => {
                let id = at.broker.cluster.producer_id().await;
                let id = id.inspect_err(|error| tracing::warn!(%error, "no producer id can be had")).ok();
                at.tell(TransactionInput::ProducerId(ticket, id)).await;
            }
            Wish::Mark(ending) => markers::write(at, ending).await,
        }
    }
}

fn deed(effect: TransactionEffect) -> Option<Deed<TransactionCoordinator>> {
    Some(match effect {
        TransactionEffect::Answer(ticket, answer) => Deed::Answer(ticket, answer),
        TransactionEffect::Append { id, record, spare_bytes } => {
            Deed::Append { id, transaction: None, records: vec![record], spare_bytes }
        }
        TransactionEffect::NeedProducerId(ticket) => Deed::Wish(Wish::ProducerId(ticket)),
        TransactionEffect::Mark { id, producer, commits, partitions } => {
            Deed::Wish(Wish::Mark(Ending { id, producer, commits, partitions }))
        }
        TransactionEffect::Odd(what) => Deed::Odd(what),
        _ => return None,
    })
}

/// Asks the coordinator of a transactional id, which is this broker's if the client asks the right one.
pub(crate) async fn ask(broker: &BrokerShared, id: &str, request: TransactionRequest) -> TransactionAnswer {
    broker.transactions.ask(broker.config.broker_id, &broker.cluster.image(), id, request, None).await
}

/// Makes the topic of transactions if it is not there.
///
/// # Errors
/// If it cannot be made: too few brokers are there, or the store is away.
pub(crate) async fn make_topic(broker: &BrokerShared) -> Result<(), AdminError> {
    let config = &broker.config;
    let setting = config.transactions_topic_replication_factor;
    let replication_factor = InternalTopic::replicas(setting, config, &broker.cluster.image());
    let min_isr = config.transactions_topic_min_isr.unwrap_or(if replication_factor < 3 { 1 } else { 2 });
    let topic = InternalTopic {
        name: TRANSACTIONS_TOPIC,
        partitions: config.transactions_topic_partitions,
        replication_factor,
        config: [
            ("cleanup.policy", "compact".to_owned()),
            ("compression.type", "uncompressed".to_owned()),
            ("min.insync.replicas", min_isr.to_string()),
            ("segment.bytes", config.transactions_topic_segment_bytes.to_string()),
            ("unclean.leader.election.enable", "false".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    };
    topic.make(broker).await
}

/// Starts and ends coordinators as leaderships come and go. Ends with the broker.
pub(crate) async fn run(broker: Arc<BrokerShared>) {
    let mut images = broker.cluster.changes();
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        broker.transactions.follow(&broker, &image);
        if images.changed().await.is_err() {
            return;
        }
    }
}
