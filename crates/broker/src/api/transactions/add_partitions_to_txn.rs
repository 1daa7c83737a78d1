//! AddPartitionsToTxn (24): partitions take part in a transaction; of brokers also the question whether they do.

use std::collections::BTreeSet;

use highwater_groups::Producer;
use highwater_groups::transactions::Partition;
use kafka_protocol::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};

use super::{ErrorCode, RequestContext, told_before, topic_name};
use crate::cluster::MetadataImage;
use crate::transactions::{Mode, TakenPart, take_part_here};

/// From this version on there are several transactions in a request.
const BATCHES_SINCE: i16 = 4;
/// From this version on a broker knows TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 5;
const FENCED_SINCE: i16 = 2;

pub(crate) async fn handle(context: &RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse {
    if context.version < BATCHES_SINCE {
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(request.v3_and_below_transactional_id)
            .with_producer_id(request.v3_and_below_producer_id)
            .with_producer_epoch(request.v3_and_below_producer_epoch)
            .with_topics(request.v3_and_below_topics);
        let topics = answer(context, &transaction).await;
        return AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(topics);
    }
    let mut results = Vec::with_capacity(request.transactions.len());
    for transaction in &request.transactions {
        let topics = answer(context, transaction).await;
        let id = transaction.transactional_id.to_string();
        let id = kafka_protocol::messages::TransactionalId(kafka_protocol::protocol::StrBytes::from_string(id));
        results.push(AddPartitionsToTxnResult::default().with_transactional_id(id).with_topic_results(topics));
    }
    AddPartitionsToTxnResponse::default().with_results_by_transaction(results)
}

async fn answer(
    context: &RequestContext,
    transaction: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mode = if transaction.verify_only { Mode::Verify } else { Mode::Add };
    let unknown =
        if mode == Mode::Add { unknown(&context.broker.cluster.image(), transaction) } else { BTreeSet::new() };
    let producer = Producer { id: transaction.producer_id.0, epoch: transaction.producer_epoch };
    let taken = if unknown.is_empty() {
        let all = each(transaction).collect();
        take_part_here(&context.broker, &transaction.transactional_id, producer, mode, all).await
    } else {
        TakenPart::new()
    };
    let code = |of: &Partition| {
        if unknown.contains(of) {
            return ErrorCode::UnknownTopicOrPartition;
        }
        // If one is not there none is added.
        let result = taken.get(of).copied().unwrap_or(Err(ErrorCode::OperationNotAttempted));
        match result {
            Ok(()) => ErrorCode::None,
            Err(ErrorCode::TransactionAbortable) if context.version < ABORTABLE_SINCE => ErrorCode::InvalidTxnState,
            Err(code) => told_before(FENCED_SINCE, context.version, code),
        }
    };
    let topic = |topic: &AddPartitionsToTxnTopic| {
        let result = |&partition: &i32| {
            let code = code(&(topic.name.to_string(), partition));
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(partition)
                .with_partition_error_code(code.number())
        };
        AddPartitionsToTxnTopicResult::default()
            .with_name(topic_name(&topic.name))
            .with_results_by_partition(topic.partitions.iter().map(result).collect())
    };
    transaction.topics.iter().map(topic).collect()
}

fn each(transaction: &AddPartitionsToTxnTransaction) -> impl Iterator<Item = Partition> {
    transaction
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|&partition| (topic.name.to_string(), partition)))
}

fn unknown(image: &MetadataImage, transaction: &AddPartitionsToTxnTransaction) -> BTreeSet<Partition> {
    let is_known =
        |(topic, partition): &Partition| image.topic(topic).is_some_and(|topic| topic.partition(*partition).is_some());
    each(transaction).filter(|of| !is_known(of)).collect()
}
