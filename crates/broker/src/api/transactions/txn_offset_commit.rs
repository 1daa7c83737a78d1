//! TxnOffsetCommit (28): offsets of a group that count once their transaction commits.

use highwater_groups::{Answer, Commit, CommittedOffset, MemberAt, Producer, Refused, Request};
use highwater_storage::TopicPartition;
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};

use super::{ErrorCode, RequestContext, topic_name};
use crate::cluster::MetadataImage;
use crate::coordinators::partition_of;
use crate::groups::OFFSETS_TOPIC;
use crate::transactions::{Mode, take_part};

/// From this version on members are named, with their generation.
const MEMBERS_SINCE: i16 = 3;
/// From this version on a client knows TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 4;
/// From this version on the offsets take part in the transaction without AddOffsetsToTxn (KIP-890).
const ADDS_SINCE: i16 = 5;

pub(crate) async fn handle(context: &RequestContext, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse {
    let (mut response, commit) = read(&context.broker.cluster.image(), context.version, &request);
    if commit.offsets.is_empty() && !response.topics.is_empty() {
        return response;
    }
    let done = commit_offsets(context, &request.transactional_id, commit).await;
    write(&mut response, &done, context.version);
    response
}

/// The result of each offset, or of all.
type Done = Result<Vec<Result<(), ErrorCode>>, ErrorCode>;

async fn commit_offsets(context: &RequestContext, id: &str, commit: Commit) -> Done {
    let broker = &context.broker;
    let image = broker.cluster.image();
    let group = commit.member.group.clone();
    if group.is_empty() {
        return Err(ErrorCode::InvalidGroupId);
    }
    let topic = image.topic(OFFSETS_TOPIC).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let of = TopicPartition::new(topic.name.clone(), partition_of(&group, topic.partitions.len()));
    let hosted = broker.partitions.get(&of).ok_or(ErrorCode::NotCoordinator)?;
    let mode = match context.version {
        ADDS_SINCE.. => Some(Mode::Add),
        _ => Some(Mode::Verify).filter(|_| broker.partitions.running().verifies_transactions),
    };
    let producer = commit.transaction.unwrap_or(Producer { id: -1, epoch: -1 });
    let mut guard = hosted.guard(producer);
    if let (Some(mode), Some(_)) = (mode, &guard) {
        let partition = vec![(OFFSETS_TOPIC.to_owned(), of.partition)];
        let taken = take_part(broker, id, producer, mode, partition, || guard = hosted.guard(producer)).await;
        taken.into_values().next().unwrap_or(Err(ErrorCode::UnknownServerError)).map_err(|code| match code {
            // These are about the coordinator of the transaction: that of the group is the right one, and to be asked again.
            ErrorCode::NetworkException | ErrorCode::NotCoordinator => ErrorCode::CoordinatorLoadInProgress,
            ErrorCode::ConcurrentTransactions if mode == Mode::Verify => ErrorCode::CoordinatorLoadInProgress,
            ErrorCode::TransactionAbortable if context.version < ABORTABLE_SINCE => ErrorCode::InvalidTxnState,
            code => code,
        })?;
    }
    let me = broker.config.broker_id;
    let begins = guard.is_some() && mode == Some(Mode::Add);
    match broker.groups.ask(me, &image, &group, Request::Commit(commit), guard).await {
        Answer::Commit(done) => {
            let done = done.map_err(|why| code(why, begins))?;
            Ok(done.into_iter().map(|one| one.map_err(|why| code(why, begins))).collect())
        }
        _ => Err(ErrorCode::UnknownServerError),
    }
}

/// What a client is told whose group's coordinator refused. `begins` if its transaction was to begin there with these offsets.
fn code(why: Refused, begins: bool) -> ErrorCode {
    match why {
        // As of batches: what broke the guard may have been the marker of the transaction before, which bears the epoch of
        // this one. Asked again it finds a guard that is whole.
        Refused::InvalidTransactionState if begins => ErrorCode::ConcurrentTransactions,
        // A producer whose consumer's group is gone has a generation that is none any more.
        Refused::GroupIdNotFound => ErrorCode::IllegalGeneration,
        why => ErrorCode::from_number(why.code()).unwrap_or(ErrorCode::UnknownServerError),
    }
}

/// What is to be committed, and the answer with a place for each partition: those that do not exist have their error there.
fn read(image: &MetadataImage, version: i16, request: &TxnOffsetCommitRequest) -> (TxnOffsetCommitResponse, Commit) {
    let has_members = version >= MEMBERS_SINCE;
    let member = MemberAt {
        group: request.group_id.to_string(),
        member_id: if has_members { request.member_id.to_string() } else { String::new() },
        group_instance_id: request.group_instance_id.as_ref().map(ToString::to_string),
        generation: if has_members { request.generation_id } else { -1 },
    };
    let transaction = Some(Producer { id: request.producer_id.0, epoch: request.producer_epoch });
    let (mut offsets, mut response) = (Vec::new(), TxnOffsetCommitResponse::default());
    for topic in &request.topics {
        let known = image.topic(&topic.name);
        let mut places = Vec::with_capacity(topic.partitions.len());
        for partition in &topic.partitions {
            let index = partition.partition_index;
            let mut place = TxnOffsetCommitResponsePartition::default().with_partition_index(index);
            if known.is_some_and(|known| known.partition(index).is_some()) {
                offsets.push(CommittedOffset {
                    topic: topic.name.to_string(),
                    partition: index,
                    offset: partition.committed_offset,
                    leader_epoch: if version >= 2 { partition.committed_leader_epoch } else { -1 },
                    metadata: partition.committed_metadata.as_ref().map(ToString::to_string).unwrap_or_default(),
                    retention_ms: None,
                });
            } else {
                place.error_code = ErrorCode::UnknownTopicOrPartition.number();
            }
            places.push(place);
        }
        let topic = TxnOffsetCommitResponseTopic::default().with_name(topic_name(&topic.name));
        response.topics.push(topic.with_partitions(places));
    }
    (response, Commit { member, transaction, offsets })
}

/// Puts the results into the places that have no error yet, in their order.
fn write(response: &mut TxnOffsetCommitResponse, done: &Done, version: i16) {
    let mut results = done.as_ref().map(|results| results.iter());
    for place in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        if place.error_code != 0 {
            continue;
        }
        let result = match &mut results {
            Ok(results) => results.next().copied().unwrap_or(Ok(())),
            Err(code) => Err(**code),
        };
        place.error_code = match result {
            Ok(()) => ErrorCode::None,
            // Clients before members were named do not know what these are.
            Err(ErrorCode::IllegalGeneration | ErrorCode::UnknownMemberId) if version < MEMBERS_SINCE => {
                ErrorCode::UnknownServerError
            }
            Err(code) => code,
        }
        .number();
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::txn_offset_commit_request::{
        TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
    };

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::{encodes, image};

    #[test]
    fn every_version_is_read_and_answered() {
        for version in 0..=5 {
            let partition = |index: i32, offset: i64| {
                TxnOffsetCommitRequestPartition::default()
                    .with_partition_index(index)
                    .with_committed_offset(offset)
                    .with_committed_leader_epoch(4)
                    .with_committed_metadata(None)
            };
            let topic = |topic: &str, partitions| {
                TxnOffsetCommitRequestTopic::default().with_name(name(topic).into()).with_partitions(partitions)
            };
            let request = TxnOffsetCommitRequest::default()
                .with_group_id(name("g").into())
                .with_generation_id(7)
                .with_member_id(name("m"))
                .with_topics(vec![
                    topic("books", vec![partition(0, 10), partition(9, 11), partition(2, 12)]),
                    topic("none", vec![partition(0, 13)]),
                ]);
            let (mut response, commit) = read(&image(), version, &request);
            let offsets: Vec<_> = commit.offsets.iter().map(|one| (one.partition, one.offset)).collect();
            assert_eq!(offsets, [(0, 10), (2, 12)]);
            assert_eq!(commit.offsets[0].leader_epoch, if version >= 2 { 4 } else { -1 });
            assert_eq!(commit.member.generation, if version >= 3 { 7 } else { -1 });
            let mut refused = response.clone();
            let codes = |response: &TxnOffsetCommitResponse| -> Vec<i16> {
                response.topics.iter().flat_map(|topic| &topic.partitions).map(|one| one.error_code).collect()
            };
            write(&mut response, &Ok(vec![Ok(()), Err(ErrorCode::OffsetMetadataTooLarge)]), version);
            assert_eq!(codes(&response), [0, 3, 12, 3]);
            encodes(ApiKey::TxnOffsetCommit, &response, version);
            write(&mut refused, &Err(ErrorCode::IllegalGeneration), version);
            let code = if version >= 3 { 22 } else { -1 };
            assert_eq!(codes(&refused), [code, 3, code, 3]);
        }
    }

    #[test]
    fn offsets_that_were_to_begin_a_transaction_are_to_come_again_where_a_marker_went_before_them() {
        let outside = Refused::InvalidTransactionState;
        assert_eq!(code(outside, true), ErrorCode::ConcurrentTransactions);
        assert_eq!(code(outside, false), ErrorCode::InvalidTxnState);
        for begins in [false, true] {
            assert_eq!(code(Refused::InvalidProducerEpoch, begins), ErrorCode::InvalidProducerEpoch);
            assert_eq!(code(Refused::GroupIdNotFound, begins), ErrorCode::IllegalGeneration);
        }
    }
}
