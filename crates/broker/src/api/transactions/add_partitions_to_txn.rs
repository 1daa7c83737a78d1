//! AddPartitionsToTxn (24): partitions take part in a transaction; of brokers also the question whether they do.

use std::collections::{BTreeMap, BTreeSet};

use highwater_groups::Producer;
use kafka_protocol::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};

use super::{ErrorCode, RequestContext, told_before, topic_name};
use crate::cluster::MetadataImage;
use crate::transactions::{Mode, take_part_here};

/// From this version on there are several transactions in a request.
const BATCHES_SINCE: i16 = 4;
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

/// A topic and a partition of it as a request names them. Names are copied only of what exists, or one at a time: a request
/// may name a long one once and a million partitions of it.
type Named<'a> = (&'a str, i32);

async fn answer(
    context: &RequestContext,
    transaction: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let broker = &context.broker;
    let id = &transaction.transactional_id;
    let producer = Producer { id: transaction.producer_id.0, epoch: transaction.producer_epoch };
    let mut results: BTreeMap<Named<'_>, Result<(), ErrorCode>> = BTreeMap::new();
    let all = each(transaction);
    let unknown = unknown(&broker.cluster.image(), &all);
    if !unknown.is_empty() {
        results.extend(unknown.into_iter().map(|of| (of, Err(ErrorCode::UnknownTopicOrPartition))));
    } else if transaction.verify_only {
        for of in all {
            let one = vec![(of.0.to_owned(), of.1)];
            let verified = take_part_here(broker, id, producer, Mode::Verify, one).await;
            results.extend(verified.into_values().map(|result| (of, result)));
        }
    } else {
        let owned = all.iter().map(|&(topic, partition)| (topic.to_owned(), partition)).collect();
        let added = take_part_here(broker, id, producer, Mode::Add, owned).await;
        // Each once, in order, as they were asked for.
        results.extend(all.into_iter().zip(added.into_values()));
    }
    let code = |of: Named<'_>| {
        // If one is not there none is added, or looked up.
        let result = results.get(&of).copied().unwrap_or(Err(ErrorCode::OperationNotAttempted));
        match result {
            Ok(()) => ErrorCode::None,
            Err(code) => told_before(FENCED_SINCE, context.version, code),
        }
    };
    let topic = |topic: &AddPartitionsToTxnTopic| {
        let result = |&partition: &i32| {
            let code = code((&topic.name, partition));
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

/// What a request names, each once.
fn each(transaction: &AddPartitionsToTxnTransaction) -> BTreeSet<Named<'_>> {
    transaction
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|&partition| (topic.name.as_str(), partition)))
        .collect()
}

fn unknown<'a>(image: &MetadataImage, all: &BTreeSet<Named<'a>>) -> BTreeSet<Named<'a>> {
    let is_known =
        |(topic, partition): Named<'_>| image.topic(topic).is_some_and(|topic| topic.partition(partition).is_some());
    all.iter().copied().filter(|&of| !is_known(of)).collect()
}
