//! OffsetForLeaderEpoch: where the records of an epoch end, so that clients and followers notice that theirs were cut.

use highwater_replication::{BrokerId, Fetcher, Isolation};
use highwater_storage::{LeaderEpoch, Offset};
use kafka_protocol::messages::offset_for_leader_epoch_request::OffsetForLeaderPartition;
use kafka_protocol::messages::offset_for_leader_epoch_response::{EpochEndOffset, OffsetForLeaderTopicResult};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};

use super::{Close, ErrorCode, RequestContext};
use crate::partitions::TopicName;

/// Answers an OffsetForLeaderEpoch request.
pub(crate) async fn handle(
    context: &RequestContext,
    request: OffsetForLeaderEpochRequest,
) -> Result<OffsetForLeaderEpochResponse, Close> {
    let by = match request.replica_id.0 {
        id @ 0.. => Fetcher::Follower { id: BrokerId(id), broker_epoch: None, log_start: Offset::ZERO },
        _ => Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
    };
    let mut response = OffsetForLeaderEpochResponse::default();
    for topic in request.topics {
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let answer = EpochEndOffset::default().with_partition(asked.partition);
            answers.push(match find(context, TopicName::Name(&topic.topic), by, asked).await {
                Ok((epoch, end)) => answer.with_leader_epoch(epoch.0).with_end_offset(end.0),
                Err(code) => answer.with_error_code(code.number()).with_leader_epoch(-1).with_end_offset(-1),
            });
        }
        response.topics.push(OffsetForLeaderTopicResult::default().with_topic(topic.topic).with_partitions(answers));
    }
    Ok(response)
}

async fn find(
    context: &RequestContext,
    topic: TopicName<'_>,
    by: Fetcher,
    asked: &OffsetForLeaderPartition,
) -> Result<(LeaderEpoch, Offset), ErrorCode> {
    let hosted = context.broker.find(topic, asked.partition)?;
    let current = Some(LeaderEpoch(asked.current_leader_epoch)).filter(|&epoch| epoch != LeaderEpoch::NONE);
    let epoch = LeaderEpoch(asked.leader_epoch);
    let end = hosted.ask(move |partition, _| partition.end_of_epoch(by, current, epoch)).await;
    let end = end.ok_or(ErrorCode::NotLeaderOrFollower)?.map_err(|error| ErrorCode::from(&error))?;
    Ok((end.epoch, end.end))
}
