//! Messages of the APIs of transactions, for the samples.

use super::*;

pub(super) fn add_partitions_to_txn(version: i16, _: bool) -> AddPartitionsToTxnRequest {
    use add_partitions_to_txn_request::*;
    let data = AddPartitionsToTxnTopic::default().with_name(topic("books")).with_partitions(vec![0, 1]);
    let topics = vec![data.clone(), data];
    let request = AddPartitionsToTxnRequest::default();
    if version < 4 {
        return request
            .with_v3_and_below_transactional_id(TransactionalId(text("t")))
            .with_v3_and_below_producer_id(ProducerId(4))
            .with_v3_and_below_topics(topics);
    }
    let one = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(TransactionalId(text("t")))
        .with_verify_only(true)
        .with_topics(topics)
        .with_unknown_tagged_fields(unknown(true));
    request.with_transactions(vec![one.clone(), one])
}

pub(super) fn add_partitions_to_txn_answer(version: i16, _: bool) -> AddPartitionsToTxnResponse {
    use add_partitions_to_txn_response::*;
    let data = AddPartitionsToTxnTopicResult::default()
        .with_name(topic("books"))
        .with_results_by_partition(vec![AddPartitionsToTxnPartitionResult::default(); 2]);
    let topics = vec![data.clone(), data];
    let response = AddPartitionsToTxnResponse::default();
    if version < 4 {
        return response.with_results_by_topic_v3_and_below(topics);
    }
    let one = AddPartitionsToTxnResult::default()
        .with_transactional_id(TransactionalId(text("t")))
        .with_topic_results(topics);
    response.with_error_code(3).with_results_by_transaction(vec![one.clone(), one])
}

pub(super) fn add_offsets_to_txn(_: i16, _: bool) -> AddOffsetsToTxnRequest {
    AddOffsetsToTxnRequest::default()
        .with_transactional_id(TransactionalId(text("t")))
        .with_group_id(GroupId(text("g")))
}

pub(super) fn end_txn(_: i16, null: bool) -> EndTxnRequest {
    EndTxnRequest::default().with_transactional_id(TransactionalId(text("t"))).with_committed(null)
}

pub(super) fn end_txn_answer(version: i16, _: bool) -> EndTxnResponse {
    let response = EndTxnResponse::default().with_error_code(51);
    if version >= 5 { response.with_producer_id(ProducerId(4)).with_producer_epoch(2) } else { response }
}

pub(super) fn write_txn_markers(_: i16, _: bool) -> WriteTxnMarkersRequest {
    use write_txn_markers_request::*;
    let data = WritableTxnMarkerTopic::default().with_name(topic("books")).with_partition_indexes(vec![0, 1]);
    let one = WritableTxnMarker::default()
        .with_producer_id(ProducerId(4))
        .with_topics(vec![data.clone(), data])
        .with_unknown_tagged_fields(unknown(true));
    WriteTxnMarkersRequest::default().with_markers(vec![one.clone(), one])
}

pub(super) fn write_txn_markers_answer(_: i16, _: bool) -> WriteTxnMarkersResponse {
    use write_txn_markers_response::*;
    let data = WritableTxnMarkerTopicResult::default()
        .with_name(topic("books"))
        .with_partitions(vec![WritableTxnMarkerPartitionResult::default(); 2]);
    let one = WritableTxnMarkerResult::default().with_topics(vec![data.clone(), data]);
    WriteTxnMarkersResponse::default().with_markers(vec![one.clone(), one])
}

pub(super) fn txn_offset_commit(version: i16, null: bool) -> TxnOffsetCommitRequest {
    use txn_offset_commit_request::*;
    let metadata = (!null).then(|| text("m"));
    let mut partition = TxnOffsetCommitRequestPartition::default().with_committed_metadata(metadata);
    if version >= 2 {
        partition.committed_leader_epoch = 3;
    }
    let data = TxnOffsetCommitRequestTopic::default()
        .with_name(topic("books"))
        .with_partitions(vec![partition.clone(), partition]);
    let mut request = TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(text("t")))
        .with_group_id(GroupId(text("g")))
        .with_topics(vec![data.clone(), data]);
    if version >= 3 {
        request.generation_id = 2;
        request.member_id = text("m");
        request.group_instance_id = (!null).then(|| text("i"));
    }
    request
}

pub(super) fn txn_offset_commit_answer(_: i16, _: bool) -> TxnOffsetCommitResponse {
    use txn_offset_commit_response::*;
    let data = TxnOffsetCommitResponseTopic::default()
        .with_name(topic("books"))
        .with_partitions(vec![TxnOffsetCommitResponsePartition::default(); 2]);
    TxnOffsetCommitResponse::default().with_topics(vec![data.clone(), data])
}

pub(super) fn describe_producers(_: i16, _: bool) -> DescribeProducersRequest {
    use describe_producers_request::*;
    let data = TopicRequest::default().with_name(topic("books")).with_partition_indexes(vec![0, 1]);
    DescribeProducersRequest::default().with_topics(vec![data.clone(), data])
}

pub(super) fn describe_producers_answer(_: i16, null: bool) -> DescribeProducersResponse {
    use describe_producers_response::*;
    let partition = PartitionResponse::default()
        .with_error_message((!null).then(|| text("wrong")))
        .with_active_producers(vec![ProducerState::default(); 2]);
    let data = TopicResponse::default().with_name(topic("books")).with_partitions(vec![partition.clone(), partition]);
    DescribeProducersResponse::default().with_topics(vec![data.clone(), data])
}

pub(super) fn describe_transactions(_: i16, _: bool) -> DescribeTransactionsRequest {
    DescribeTransactionsRequest::default().with_transactional_ids(vec![TransactionalId(text("t")); 2])
}

pub(super) fn describe_transactions_answer(_: i16, _: bool) -> DescribeTransactionsResponse {
    use describe_transactions_response::*;
    let data = TopicData::default().with_topic(topic("books")).with_partitions(vec![0, 1]);
    let state =
        TransactionState::default().with_transaction_state(text("Ongoing")).with_topics(vec![data.clone(), data]);
    DescribeTransactionsResponse::default().with_transaction_states(vec![state.clone(), state])
}

pub(super) fn list_transactions(version: i16, null: bool) -> ListTransactionsRequest {
    let mut request = ListTransactionsRequest::default()
        .with_state_filters(vec![text("Ongoing"); 2])
        .with_producer_id_filters(vec![ProducerId(1), ProducerId(2)]);
    if version >= 1 {
        request.duration_filter = 7;
    }
    if version >= 2 {
        request.transactional_id_pattern = (!null).then(|| text(".*"));
    }
    request
}

pub(super) fn list_transactions_answer(_: i16, _: bool) -> ListTransactionsResponse {
    use list_transactions_response::*;
    ListTransactionsResponse::default()
        .with_unknown_state_filters(vec![text("Odd"); 2])
        .with_transaction_states(vec![TransactionState::default().with_transaction_state(text("Ongoing")); 2])
}
