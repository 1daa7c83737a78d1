//! Samples of messages for administration.

use kafka_protocol::messages::*;

use super::{id, text, topic, unknown};

pub(super) fn alter_configs(version: i16, null: bool) -> AlterConfigsRequest {
    use alter_configs_request::*;
    let config = AlterableConfig::default().with_name(text("retention.ms")).with_value((!null).then(|| text("5")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("books"))
        .with_configs(vec![config.clone(), config])
        .with_unknown_tagged_fields(unknown(version >= 2));
    AlterConfigsRequest::default().with_resources(vec![resource.clone(), resource]).with_validate_only(null)
}

pub(super) fn alter_configs_answer(_: i16, null: bool) -> AlterConfigsResponse {
    use alter_configs_response::*;
    let one = AlterConfigsResourceResponse::default()
        .with_error_message((!null).then(|| text("bad")))
        .with_resource_name(text("books"));
    AlterConfigsResponse::default().with_responses(vec![one.clone(), one])
}

pub(super) fn incremental_alter_configs(version: i16, null: bool) -> IncrementalAlterConfigsRequest {
    use incremental_alter_configs_request::*;
    let config = AlterableConfig::default()
        .with_name(text("cleanup.policy"))
        .with_config_operation(2)
        .with_value((!null).then(|| text("compact")));
    let resource = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("books"))
        .with_configs(vec![config.clone(), config])
        .with_unknown_tagged_fields(unknown(version >= 1));
    IncrementalAlterConfigsRequest::default().with_resources(vec![resource.clone(), resource])
}

pub(super) fn incremental_alter_configs_answer(_: i16, null: bool) -> IncrementalAlterConfigsResponse {
    use incremental_alter_configs_response::*;
    let one = AlterConfigsResourceResponse::default()
        .with_error_message((!null).then(|| text("bad")))
        .with_resource_name(text("books"));
    IncrementalAlterConfigsResponse::default().with_responses(vec![one.clone(), one])
}

pub(super) fn list_config_resources(version: i16, null: bool) -> ListConfigResourcesRequest {
    let types = if version == 0 || null { Vec::new() } else { vec![2, 16, 32] };
    ListConfigResourcesRequest::default().with_resource_types(types)
}

pub(super) fn list_config_resources_answer(version: i16, _: bool) -> ListConfigResourcesResponse {
    use list_config_resources_response::*;
    let mut one = ConfigResource::default().with_resource_name(text("m"));
    if version >= 1 {
        one.resource_type = 32;
    }
    ListConfigResourcesResponse::default().with_config_resources(vec![one.clone(), one])
}

pub(super) fn delete_records(version: i16, _: bool) -> DeleteRecordsRequest {
    use delete_records_request::*;
    let partition = DeleteRecordsPartition::default().with_partition_index(1).with_offset(-1);
    let one = DeleteRecordsTopic::default()
        .with_name(topic("books"))
        .with_partitions(vec![partition.clone(), partition])
        .with_unknown_tagged_fields(unknown(version >= 2));
    DeleteRecordsRequest::default().with_topics(vec![one.clone(), one]).with_timeout_ms(9)
}

pub(super) fn delete_records_answer(_: i16, _: bool) -> DeleteRecordsResponse {
    use delete_records_response::*;
    let one = DeleteRecordsTopicResult::default()
        .with_name(topic("books"))
        .with_partitions(vec![DeleteRecordsPartitionResult::default().with_low_watermark(7); 2]);
    DeleteRecordsResponse::default().with_topics(vec![one.clone(), one])
}

pub(super) fn describe_log_dirs(version: i16, null: bool) -> DescribeLogDirsRequest {
    use describe_log_dirs_request::*;
    let one = DescribableLogDirTopic::default()
        .with_topic(topic("books"))
        .with_partitions(vec![1, 2])
        .with_unknown_tagged_fields(unknown(version >= 2));
    DescribeLogDirsRequest::default().with_topics((!null).then(|| vec![one.clone(), one]))
}

pub(super) fn describe_log_dirs_answer(version: i16, _: bool) -> DescribeLogDirsResponse {
    use describe_log_dirs_response::*;
    let one = DescribeLogDirsTopic::default()
        .with_name(topic("books"))
        .with_partitions(vec![DescribeLogDirsPartition::default().with_partition_size(7); 2]);
    let mut dir = DescribeLogDirsResult::default().with_log_dir(text("/data")).with_topics(vec![one.clone(), one]);
    if version >= 4 {
        (dir.total_bytes, dir.usable_bytes) = (9, 8);
    }
    DescribeLogDirsResponse::default().with_results(vec![dir.clone(), dir])
}

pub(super) fn describe_topic_partitions(_: i16, null: bool) -> DescribeTopicPartitionsRequest {
    use describe_topic_partitions_request::*;
    let one = TopicRequest::default().with_name(topic("books")).with_unknown_tagged_fields(unknown(true));
    let cursor = (!null).then(|| Cursor::default().with_topic_name(topic("books")).with_partition_index(1));
    DescribeTopicPartitionsRequest::default().with_topics(vec![one.clone(), one]).with_cursor(cursor)
}

pub(super) fn describe_topic_partitions_answer(_: i16, null: bool) -> DescribeTopicPartitionsResponse {
    use describe_topic_partitions_response::*;
    let ids = || vec![BrokerId(1), BrokerId(2)];
    let partition = DescribeTopicPartitionsResponsePartition::default()
        .with_replica_nodes(ids())
        .with_isr_nodes(ids())
        .with_eligible_leader_replicas((!null).then(ids))
        .with_last_known_elr((!null).then(ids))
        .with_offline_replicas(ids());
    let one = DescribeTopicPartitionsResponseTopic::default()
        .with_name((!null).then(|| topic("books")))
        .with_topic_id(id())
        .with_partitions(vec![partition.clone(), partition]);
    let cursor = (!null).then(|| Cursor::default().with_topic_name(topic("books")).with_partition_index(1));
    DescribeTopicPartitionsResponse::default().with_topics(vec![one.clone(), one]).with_next_cursor(cursor)
}
