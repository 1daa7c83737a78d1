//! ListOffsets: where a partition begins and ends, and which record was first at a time.

use std::collections::BTreeSet;
use std::sync::Arc;

use highwater_replication::{BrokerId, Fetcher, Isolation, ListedOffset, Which};
use highwater_storage::{LeaderEpoch, Offset, TimestampMs};
use kafka_protocol::messages::list_offsets_request::ListOffsetsPartition;
use kafka_protocol::messages::list_offsets_response::{ListOffsetsPartitionResponse, ListOffsetsTopicResponse};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse};

use super::{Close, ErrorCode, RequestContext};
use crate::hosted::Hosted;
use crate::partitions::TopicName;

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;

/// What can be asked for beside a time, and since which version.
const SINCE: [(i64, i16); 5] =
    [(LATEST, 1), (EARLIEST, 1), (MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)];

/// Before this version code 78 did not exist; clients then got 5, which they retry as well.
const OFFSET_NOT_AVAILABLE_SINCE: i16 = 5;

/// Answers have a field for the leader epoch from this version on.
const LEADER_EPOCH_SINCE: i16 = 4;

/// An answer: the offset, the timestamp of the record there, its epoch.
type Found = (Offset, TimestampMs, LeaderEpoch);

/// "There is no such record", which is no error.
const NOTHING: Found = (Offset(-1), TimestampMs::NONE, LeaderEpoch::NONE);

/// Answers a ListOffsets request.
pub(crate) async fn handle(
    context: &RequestContext,
    request: ListOffsetsRequest,
) -> Result<ListOffsetsResponse, Close> {
    let by = match request.replica_id.0 {
        id @ 0.. => Fetcher::Follower { id: BrokerId(id), broker_epoch: None, log_start: Offset::ZERO },
        // A tool that wants to see what a replica would: the log end instead of the high watermark.
        -2 => Fetcher::Follower { id: BrokerId(-2), broker_epoch: None, log_start: Offset::ZERO },
        _ if request.isolation_level == 1 => Fetcher::Consumer { isolation: Isolation::ReadCommitted },
        _ => Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
    };
    let mut response = ListOffsetsResponse::default();
    for topic in request.topics {
        let (mut seen, mut twice) = (BTreeSet::new(), BTreeSet::new());
        for asked in &topic.partitions {
            if !seen.insert(asked.partition_index) {
                twice.insert(asked.partition_index);
            }
        }
        let mut answers = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let found = if twice.contains(&asked.partition_index) {
                Err(ErrorCode::InvalidRequest)
            } else if !is_known(asked.timestamp, context.version) {
                Err(ErrorCode::UnsupportedVersion)
            } else {
                match context.broker.find(TopicName::Name(&topic.name), asked.partition_index) {
                    Ok(hosted) => find(context, &hosted, by, asked).await,
                    Err(code) => Err(code),
                }
            };
            answers.push(answer(context.version, asked.partition_index, found));
        }
        response.topics.push(ListOffsetsTopicResponse::default().with_name(topic.name).with_partitions(answers));
    }
    Ok(response)
}

/// Whether this is a time, or stands for something that can be asked for in this version.
fn is_known(timestamp: i64, version: i16) -> bool {
    timestamp >= 0 || SINCE.iter().any(|&(name, since)| name == timestamp && version >= since)
}

async fn find(
    context: &RequestContext,
    hosted: &Arc<Hosted>,
    by: Fetcher,
    asked: &ListOffsetsPartition,
) -> Result<Found, ErrorCode> {
    let which = match asked.timestamp {
        LATEST => Which::Latest,
        // Without tiers all of the log is local.
        EARLIEST | EARLIEST_LOCAL => Which::Earliest,
        MAX_TIMESTAMP => Which::MaxTimestamp,
        // Nor is any of it elsewhere, which is told to those who may ask.
        LATEST_TIERED => Which::Latest,
        time => Which::Timestamp(TimestampMs(time)),
    };
    let epoch = Some(LeaderEpoch(asked.current_leader_epoch)).filter(|&epoch| epoch != LeaderEpoch::NONE);
    let listed = hosted.ask(move |partition, _| partition.list_offset(by, epoch, which)).await;
    let listed = listed.ok_or(ErrorCode::NotLeaderOrFollower)?.map_err(|error| ErrorCode::from(&error))?;
    match listed {
        _ if asked.timestamp == LATEST_TIERED => Ok(NOTHING),
        ListedOffset::At { offset, .. } if which == Which::Earliest => {
            Ok((offset, TimestampMs::NONE, hosted.reader().epoch_of(offset)))
        }
        ListedOffset::At { offset, leader_epoch } => Ok((offset, TimestampMs::NONE, leader_epoch)),
        ListedOffset::Search { upper, missing } => {
            let reader = hosted.reader().clone();
            let search = move || match which {
                Which::Timestamp(time) => reader.offset_for_timestamp(time, upper),
                _ => reader.max_timestamp(upper),
            };
            let found = context.broker.services.readers.read(search).await.ok_or(ErrorCode::NotLeaderOrFollower)?;
            match (found, missing) {
                (Ok(Some(found)), _) => Ok((found.offset, found.timestamp, found.leader_epoch)),
                (Ok(None), None) => Ok(NOTHING),
                (Ok(None), Some(_)) => Err(ErrorCode::OffsetNotAvailable),
                (Err(error), _) => {
                    tracing::error!(partition = %hosted.topic_partition(), %error, "cannot look up an offset");
                    Err(ErrorCode::KafkaStorageError)
                }
            }
        }
    }
}

fn answer(version: i16, partition: i32, found: Result<Found, ErrorCode>) -> ListOffsetsPartitionResponse {
    let answer = ListOffsetsPartitionResponse::default().with_partition_index(partition);
    match found {
        Ok((offset, timestamp, epoch)) => {
            let answer = answer.with_offset(offset.0).with_timestamp(timestamp.0);
            if version >= LEADER_EPOCH_SINCE { answer.with_leader_epoch(epoch.0) } else { answer }
        }
        Err(code) => {
            let code = match code {
                ErrorCode::OffsetNotAvailable if version < OFFSET_NOT_AVAILABLE_SINCE => ErrorCode::LeaderNotAvailable,
                code => code,
            };
            answer.with_error_code(code.number()).with_offset(-1).with_timestamp(-1).with_leader_epoch(-1)
        }
    }
}
