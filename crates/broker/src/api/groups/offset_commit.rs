//! OffsetCommit (8).

use highwater_groups::{Answer, Commit, CommittedOffset, Refused, Request};
use kafka_protocol::messages::offset_commit_response::{OffsetCommitResponsePartition, OffsetCommitResponseTopic};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse};

use super::super::{ErrorCode, RequestContext};
use super::{member_at, optional, topic_name};
use crate::cluster::MetadataImage;

/// From this version on a group that is not there is told as such; before, as a generation that is not its own.
const GROUP_NOT_FOUND_SINCE: i16 = 9;

pub(crate) async fn handle(context: &RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse {
    let (mut response, commit) = read(&context.broker.cluster.image(), context.version, request);
    if commit.offsets.is_empty() && !response.topics.is_empty() {
        return response;
    }
    let done = match super::ask(context, Request::Commit(commit)).await {
        Answer::Commit(done) => done,
        _ => Err(Refused::CoordinatorNotAvailable),
    };
    write(&mut response, done, context.version);
    response
}

/// What is to be committed, and the answer with a place for each partition: those that do not exist have their error there,
/// the others none.
fn read(image: &MetadataImage, version: i16, request: OffsetCommitRequest) -> (OffsetCommitResponse, Commit) {
    let generation = request.generation_id_or_member_epoch;
    let member = member_at(request.group_id.0, request.member_id, request.group_instance_id, generation);
    // -1 stands for "as long as others" (KIP-211).
    let retention_ms = Some(request.retention_time_ms).filter(|&kept_ms| (2..=4).contains(&version) && kept_ms >= 0);
    let mut offsets = Vec::new();
    let mut response = OffsetCommitResponse::default();
    for topic in request.topics {
        let known = image.topic(&topic.name);
        let mut places = Vec::with_capacity(topic.partitions.len());
        for partition in topic.partitions {
            let index = partition.partition_index;
            let mut place = OffsetCommitResponsePartition::default().with_partition_index(index);
            if known.is_some_and(|known| known.partition(index).is_some()) {
                offsets.push(CommittedOffset {
                    topic: topic.name.to_string(),
                    partition: index,
                    offset: partition.committed_offset,
                    leader_epoch: if version >= 6 { partition.committed_leader_epoch } else { -1 },
                    metadata: optional(partition.committed_metadata).unwrap_or_default(),
                    retention_ms,
                });
            } else {
                place.error_code = ErrorCode::UnknownTopicOrPartition.number();
            }
            places.push(place);
        }
        let topic = OffsetCommitResponseTopic::default().with_name(topic_name(&topic.name));
        response.topics.push(topic.with_partitions(places));
    }
    (response, Commit { member, transaction: None, offsets })
}

/// Puts the results into the places that have no error yet, in their order.
fn write(response: &mut OffsetCommitResponse, done: Result<Vec<Result<(), Refused>>, Refused>, version: i16) {
    let mut results = done.as_ref().map(|results| results.iter()).ok();
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        if partition.error_code != 0 {
            continue;
        }
        let result = match (&done, &mut results) {
            (Err(why), _) => Err(*why),
            (Ok(_), results) => results.as_mut().and_then(Iterator::next).copied().unwrap_or(Ok(())),
        };
        partition.error_code = match result {
            Err(Refused::GroupIdNotFound) if version < GROUP_NOT_FOUND_SINCE => Refused::IllegalGeneration.code(),
            result => super::code(result),
        };
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::{encodes, image};

    #[test]
    fn every_version_is_read_and_answered() {
        for version in 2..=9 {
            let partition = |index: i32, offset: i64| {
                OffsetCommitRequestPartition::default()
                    .with_partition_index(index)
                    .with_committed_offset(offset)
                    .with_committed_leader_epoch(4)
                    .with_committed_metadata(None)
            };
            let topic = |topic: &str, partitions| {
                OffsetCommitRequestTopic::default().with_name(name(topic).into()).with_partitions(partitions)
            };
            let request = OffsetCommitRequest::default()
                .with_group_id(name("g").into())
                .with_generation_id_or_member_epoch(7)
                .with_retention_time_ms(60_000)
                .with_topics(vec![
                    topic("books", vec![partition(0, 10), partition(9, 11), partition(2, 12)]),
                    topic("none", vec![partition(0, 13)]),
                ]);
            let (mut response, commit) = read(&image(), version, request);
            let offsets: Vec<_> = commit.offsets.iter().map(|one| (one.partition, one.offset)).collect();
            assert_eq!(offsets, [(0, 10), (2, 12)]);
            assert_eq!(commit.offsets[0].leader_epoch, if version >= 6 { 4 } else { -1 });
            assert_eq!(commit.offsets[0].retention_ms, (version <= 4).then_some(60_000));
            write(&mut response, Ok(vec![Ok(()), Err(Refused::OffsetMetadataTooLarge)]), version);
            let codes = |response: &OffsetCommitResponse| -> Vec<i16> {
                response.topics.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code).collect()
            };
            assert_eq!(codes(&response), [0, 3, 12, 3]);
            encodes(ApiKey::OffsetCommit, &response, version);
            let (_, again) = (response, commit);
            let mut refused = OffsetCommitResponse::default().with_topics(vec![
                OffsetCommitResponseTopic::default()
                    .with_partitions(vec![OffsetCommitResponsePartition::default(); again.offsets.len()]),
            ]);
            write(&mut refused, Err(Refused::GroupIdNotFound), version);
            assert_eq!(codes(&refused), if version >= 9 { [69, 69] } else { [22, 22] });
        }
    }
}
