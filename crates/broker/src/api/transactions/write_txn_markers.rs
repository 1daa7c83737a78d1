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
    let each = asked.topics.iter().flat_map(|topic| {
        topic.partition_indexes.iter().map(|&partition| -> Partition { (topic.name.to_string(), partition) })
    });
    // Each once, however often it is named.
    let each: BTreeSet<Partition> = each.collect();
    let written = write_here(&context.broker, marker, each.into_iter().collect()).await;
    let written: BTreeMap<Partition, Result<(), ErrorCode>> = written.into_iter().collect();
    let code = |of: &Partition| match written.get(of) {
        Some(Ok(())) => ErrorCode::None,
        Some(Err(code)) => *code,
        None => ErrorCode::UnknownServerError,
    };
    let topics = asked.topics.iter().map(|topic| {
        let name = topic.name.to_string();
        let result = |&partition: &i32| {
            WritableTxnMarkerPartitionResult::default()
                .with_partition_index(partition)
                .with_error_code(code(&(name.clone(), partition)).number())
        };
        WritableTxnMarkerTopicResult::default()
            .with_name(topic_name(&topic.name))
            .with_partitions(topic.partition_indexes.iter().map(result).collect())
    });
    WritableTxnMarkerResult::default().with_producer_id(asked.producer_id).with_topics(topics.collect())
}
