//! DescribeProducers (61): who writes into a partition, by which Kafka's tool finds transactions that nobody ends.

use std::collections::{BTreeSet, HashMap};

use highwater_replication::Role;
use highwater_storage::names::check_topic_name;
use kafka_protocol::messages::describe_producers_response::{PartitionResponse, ProducerState, TopicResponse};
use kafka_protocol::messages::{DescribeProducersRequest, DescribeProducersResponse, ProducerId};

use super::{ErrorCode, RequestContext, topic_name};
use crate::partitions::TopicName;

pub(crate) async fn handle(context: &RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    // Each is told of once, however often it is named: four bytes name a hundred thousand producers.
    let mut seen: HashMap<_, BTreeSet<i32>> = HashMap::new();
    for topic in request.topics {
        let seen = seen.entry(topic.name.clone()).or_default();
        let mut partitions = Vec::with_capacity(topic.partition_indexes.len());
        for index in topic.partition_indexes.into_iter().filter(|index| seen.insert(*index)) {
            let answer = PartitionResponse::default().with_partition_index(index);
            partitions.push(match producers(context, &topic.name, index).await {
                Ok(producers) => answer.with_active_producers(producers),
                Err(code) => answer.with_error_code(code.number()),
            });
        }
        topics.push(TopicResponse::default().with_name(topic_name(&topic.name)).with_partitions(partitions));
    }
    DescribeProducersResponse::default().with_topics(topics)
}

async fn producers(context: &RequestContext, topic: &str, index: i32) -> Result<Vec<ProducerState>, ErrorCode> {
    check_topic_name(topic).map_err(|_| ErrorCode::InvalidTopicException)?;
    let hosted = context.broker.find(TopicName::Name(topic), index)?;
    let producers = hosted.ask(|partition, _| {
        if partition.status().role != Role::Leader {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        let state = |(id, state): (i64, &highwater_storage::ProducerState)| {
            ProducerState::default()
                .with_producer_id(ProducerId(id))
                .with_producer_epoch(state.epoch().into())
                .with_last_sequence(state.last_sequence())
                .with_last_timestamp(state.last_timestamp().0)
                .with_coordinator_epoch(state.coordinator_epoch())
                .with_current_txn_start_offset(state.transaction_start().map_or(-1, |offset| offset.0))
        };
        Ok(partition.log().producers().iter().map(state).collect())
    });
    producers.await.unwrap_or(Err(ErrorCode::NotLeaderOrFollower))
}
