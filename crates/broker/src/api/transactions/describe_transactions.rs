//! DescribeTransactions (65).

use std::collections::{BTreeMap, BTreeSet};

use highwater_groups::transactions::{TransactionAnswer, TransactionDescription, TransactionRequest};
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext, topic_name};
use crate::transactions;

pub(crate) async fn handle(
    context: &RequestContext,
    request: DescribeTransactionsRequest,
) -> DescribeTransactionsResponse {
    let mut states = Vec::with_capacity(request.transactional_ids.len());
    // Each is told of once, however often it is named: its partitions may be many.
    let mut seen = BTreeSet::new();
    for id in request.transactional_ids.into_iter().filter(|id| seen.insert(id.clone())) {
        let id = id.to_string();
        if id.is_empty() {
            states.push(state(id, Err(ErrorCode::InvalidRequest.number())));
            continue;
        }
        let described = match transactions::ask(&context.broker, &id, TransactionRequest::Describe(id.clone())).await {
            TransactionAnswer::Described(described) => described.map_err(|why| why.code()),
            _ => Err(ErrorCode::UnknownServerError.number()),
        };
        states.push(state(id, described));
    }
    DescribeTransactionsResponse::default().with_transaction_states(states)
}

fn state(id: String, described: Result<TransactionDescription, i16>) -> TransactionState {
    let state = TransactionState::default().with_transactional_id(TransactionalId(StrBytes::from_string(id)));
    let described = match described {
        Ok(described) => described,
        Err(code) => return state.with_error_code(code),
    };
    let mut topics: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in described.partitions {
        topics.entry(topic).or_default().push(partition);
    }
    let topics = topics
        .into_iter()
        .map(|(topic, partitions)| TopicData::default().with_topic(topic_name(&topic)).with_partitions(partitions));
    state
        .with_transaction_state(StrBytes::from_static_str(described.status.name()))
        .with_transaction_timeout_ms(described.timeout_ms)
        .with_transaction_start_time_ms(described.start_timestamp_ms)
        .with_producer_id(ProducerId(described.producer.id))
        .with_producer_epoch(described.producer.epoch)
        .with_topics(topics.collect())
}
