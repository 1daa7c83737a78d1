//! Asking a coordinator whether partitions take part in a transaction, or having them take part.

use std::collections::BTreeMap;
use std::time::Duration;

use highwater_groups::Producer;
use highwater_groups::transactions::{Partition, TransactionAnswer, TransactionRefused, TransactionRequest};
use kafka_protocol::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, ProducerId, TopicName, TransactionalId};
use kafka_protocol::protocol::StrBytes;
use tokio::time::Instant;

use super::TRANSACTIONS_TOPIC;
use crate::api::ErrorCode;
use crate::broker::BrokerShared;
use crate::coordinators::partition_of;

/// The version of AddPartitionsToTxn that brokers speak among themselves: the first that tells a transaction that can only be
/// aborted.
const VERSION: i16 = 5;

/// A transaction that ends is waited for this long, and looked at so often (`add.partitions.to.txn.retry.backoff.max.ms`,
/// `add.partitions.to.txn.retry.backoff.ms`): the producer's next one begins when the markers of the last are written, which
/// is soon.
const WAIT: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(20);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// That they take part from now on.
    Add,
    /// Whether they do.
    Verify,
}

/// The result for each partition.
pub(crate) type TakenPart = BTreeMap<Partition, Result<(), ErrorCode>>;

/// Asks the coordinator, wherever that is. A producer that has been replaced is told so as brokers tell it.
///
/// `draw` is called before each question, for guards: the markers of a producer's last transaction, which are waited for, bear
/// the epoch of the next one and break what was drawn before them.
pub(crate) async fn take_part(
    broker: &BrokerShared,
    id: &str,
    producer: Producer,
    mode: Mode,
    partitions: Vec<Partition>,
    mut draw: impl FnMut() + Send,
) -> TakenPart {
    let until = Instant::now() + WAIT;
    loop {
        draw();
        let asked = ask(broker, id, producer, mode, partitions.clone()).await;
        let ends = asked.values().any(|result| *result == Err(ErrorCode::ConcurrentTransactions));
        if !ends || mode == Mode::Verify || Instant::now() >= until {
            let told = |result: Result<(), ErrorCode>| match result {
                Err(ErrorCode::ProducerFenced) => Err(ErrorCode::InvalidProducerEpoch),
                result => result,
            };
            return asked.into_iter().map(|(of, result)| (of, told(result))).collect();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(broker: &BrokerShared, id: &str, producer: Producer, mode: Mode, partitions: Vec<Partition>) -> TakenPart {
    let image = broker.cluster.image();
    let topic = image.topic(TRANSACTIONS_TOPIC);
    let partition = topic.and_then(|topic| topic.partition(partition_of(id, topic.partitions.len())));
    let Some(leader) = partition.and_then(|partition| partition.state.value.leader) else {
        return all(partitions, Err(ErrorCode::CoordinatorNotAvailable));
    };
    if leader == broker.config.broker_id {
        return take_part_here(broker, id, producer, mode, partitions).await;
    }
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in &partitions {
        topics.entry(topic.clone()).or_default().push(*partition);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        AddPartitionsToTxnTopic::default()
            .with_name(TopicName(StrBytes::from_string(topic)))
            .with_partitions(partitions)
    });
    let transaction = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(TransactionalId(StrBytes::from_string(id.to_owned())))
        .with_producer_id(ProducerId(producer.id))
        .with_producer_epoch(producer.epoch)
        .with_verify_only(mode == Mode::Verify)
        .with_topics(topics.collect());
    let request = AddPartitionsToTxnRequest::default().with_transactions(vec![transaction]);
    let response = match broker.peers.ask(&broker.services, leader, &request, VERSION).await {
        Ok(response) => response,
        Err(problem) => {
            tracing::debug!(broker = leader.0, problem, "a coordinator of transactions was not reached");
            return all(partitions, Err(ErrorCode::NetworkException));
        }
    };
    let whole = ErrorCode::from_number(response.error_code).unwrap_or(ErrorCode::UnknownServerError);
    // Whatever the answer does not name.
    let rest = if whole.is_none() { ErrorCode::UnknownServerError } else { whole };
    let mut taken = all(partitions, Err(rest));
    for topic in response.results_by_transaction.into_iter().flat_map(|transaction| transaction.topic_results) {
        for result in topic.results_by_partition {
            let code = ErrorCode::from_number(result.partition_error_code).unwrap_or(ErrorCode::UnknownServerError);
            if let Some(place) = taken.get_mut(&(topic.name.to_string(), result.partition_index)) {
                *place = if code.is_none() { Ok(()) } else { Err(code) };
            }
        }
    }
    taken
}

/// Asks the coordinator on this broker. All partitions are added or none.
pub(crate) async fn take_part_here(
    broker: &BrokerShared,
    id: &str,
    producer: Producer,
    mode: Mode,
    partitions: Vec<Partition>,
) -> TakenPart {
    if mode == Mode::Add {
        let added = done(
            broker,
            id,
            |partitions| TransactionRequest::Add { id: id.to_owned(), producer, partitions },
            partitions.clone(),
        )
        .await;
        return all(partitions, added);
    }
    let mut taken = TakenPart::new();
    for of in partitions {
        let verify = |partitions| TransactionRequest::Verify { id: id.to_owned(), producer, partitions };
        let verified = done(broker, id, verify, vec![of.clone()]).await;
        taken.insert(of, verified);
    }
    taken
}

async fn done(
    broker: &BrokerShared,
    id: &str,
    request: impl FnOnce(Vec<Partition>) -> TransactionRequest,
    partitions: Vec<Partition>,
) -> Result<(), ErrorCode> {
    let answer = super::ask(broker, id, request(partitions)).await;
    let TransactionAnswer::Done(done) = answer else { return Err(ErrorCode::UnknownServerError) };
    done.map_err(code)
}

fn code(why: TransactionRefused) -> ErrorCode {
    ErrorCode::from_number(why.code()).unwrap_or(ErrorCode::UnknownServerError)
}

fn all(partitions: Vec<Partition>, result: Result<(), ErrorCode>) -> TakenPart {
    partitions.into_iter().map(|of| (of, result)).collect()
}
