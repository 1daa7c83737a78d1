//! WriteTxnMarkers (27): the end of transactions in partitions that this broker leads, from coordinators on other brokers and
//! from Kafka's tool, which aborts what a coordinator has forgotten.

use std::collections::{BTreeMap, BTreeSet};

use highwater_groups::transactions::Partition;
use highwater_storage::TransactionMarker;
use kafka_protocol::messages::write_txn_markers_request::WritableTxnMarker;
use kafka_protocol::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
};
use kafka_protocol::messages::{WriteTxnMarkersRequest, WriteTxnMarkersResponse};

use super::{ErrorCode, RequestContext, topic_name};
use crate::transactions::write_here;

pub(crate) async fn handle(context: &RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse {
    let mut results = Vec::with_capacity(request.markers.len());
    for marker in request.markers {
        results.push(write(context, marker).await);
    }
    WriteTxnMarkersResponse::default().with_markers(results)
}

async fn write(context: &RequestContext, asked: WritableTxnMarker) -> WritableTxnMarkerResult {
    let marker = TransactionMarker {
        producer_id: asked.producer_id.0,
        producer_epoch: asked.producer_epoch,
        coordinator_epoch: asked.coordinator_epoch,
        is_abort: !asked.transaction_result,
    };
    let image = context.broker.cluster.image();
    let mut known: BTreeSet<Partition> = BTreeSet::new();
    // Names are copied only of what exists: a request may name a long one once and a million partitions of it. Each is written
    // to once, however often it is named.
    for topic in &asked.topics {
        let Some(there) = image.topic(&topic.name) else { continue };
        let there = topic.partition_indexes.iter().filter(|&&partition| there.partition(partition).is_some());
        known.extend(there.map(|&partition| (topic.name.to_string(), partition)));
    }
    let mut codes: BTreeMap<String, BTreeMap<i32, ErrorCode>> = BTreeMap::new();
    for ((topic, partition), how) in write_here(&context.broker, marker, known.into_iter().collect()).await {
        codes.entry(topic).or_default().insert(partition, how.err().unwrap_or(ErrorCode::None));
    }
    let topics = asked.topics.iter().map(|topic| {
        let codes = codes.get(topic.name.as_str());
        let result = |&partition: &i32| {
            let code = codes.and_then(|codes| codes.get(&partition)).copied();
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(partition)
                .with_error_code(code.unwrap_or(ErrorCode::UnknownTopicOrPartition).number())
        };
        WritableTxnMarkerTopicResult::default()
            .with_name(topic_name(&topic.name))
            .with_partitions(topic.partition_indexes.iter().map(result).collect())
    });
    WritableTxnMarkerResult::default().with_producer_id(asked.producer_id).with_topics(topics.collect())
}
