//! DeleteRecords (21): the log of a partition is to begin later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use highwater_replication::{BrokerId, DeleteRefused, Role};
use highwater_storage::Offset;
use kafka_protocol::messages::delete_records_response::{DeleteRecordsPartitionResult, DeleteRecordsTopicResult};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext, is_internal};
use crate::hosted::Hosted;
use crate::partitions::TopicName;

/// Stands for everything that is committed.
const HIGH_WATERMARK: i64 = -1;

/// How often it looks whether the followers have moved their starts, which they tell with their next fetches.
const POLL: Duration = Duration::from_millis(10);

/// What becomes of one partition.
enum Progress {
    /// It is begun: followers have yet to move their starts to this offset.
    Waiting(Arc<Hosted>, Offset),
    Done(Result<Offset, ErrorCode>),
}

/// Moves the starts on this broker, and waits for the followers that live until the request's time is over. Which of them are in
/// sync does not matter, as in Kafka: who is behind could lead later, and have again what was deleted.
pub(crate) async fn handle(context: &RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let deadline = super::deadline(request.timeout_ms);
    // Named twice, a partition gets what is said last.
    let mut asked: BTreeMap<StrBytes, BTreeMap<i32, i64>> = BTreeMap::new();
    for topic in request.topics {
        let partitions = topic.partitions.iter().map(|partition| (partition.partition_index, partition.offset));
        asked.entry(topic.name.0).or_default().extend(partitions);
    }
    let mut all = BTreeMap::new();
    for (topic, partitions) in asked {
        for (number, before) in partitions {
            let progress = match begin(context, &topic, number, before).await {
                Ok((hosted, start)) => Progress::Waiting(hosted, start),
                Err(code) => Progress::Done(Err(code)),
            };
            all.insert((topic.clone(), number), progress);
        }
    }
    loop {
        let mut waiting = 0;
        for progress in all.values_mut() {
            let Progress::Waiting(hosted, start) = progress else { continue };
            match low_watermark(context, hosted) {
                Ok(low) if low < *start => waiting += 1,
                done => *progress = Progress::Done(done),
            }
        }
        if waiting == 0 || super::remaining_ms(deadline) == 0 {
            break;
        }
        tokio::time::sleep(POLL).await;
    }
    let mut topics: BTreeMap<StrBytes, Vec<DeleteRecordsPartitionResult>> = BTreeMap::new();
    for ((topic, number), progress) in all {
        let (low, code) = match progress {
            Progress::Done(Ok(low)) => (low.0, ErrorCode::None),
            Progress::Done(Err(code)) => (-1, code),
            Progress::Waiting(hosted, _) => match low_watermark(context, &hosted) {
                Ok(low) => (low.0, ErrorCode::RequestTimedOut),
                Err(code) => (-1, code),
            },
        };
        let result = DeleteRecordsPartitionResult::default().with_partition_index(number);
        topics.entry(topic).or_default().push(result.with_low_watermark(low).with_error_code(code.number()));
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        DeleteRecordsTopicResult::default().with_name(name.into()).with_partitions(partitions)
    });
    DeleteRecordsResponse::default().with_topics(topics.collect())
}

async fn begin(
    context: &RequestContext,
    topic: &str,
    number: i32,
    before: i64,
) -> Result<(Arc<Hosted>, Offset), ErrorCode> {
    if is_internal(topic) {
        return Err(ErrorCode::InvalidTopicException);
    }
    let (broker, image) = (&context.broker, context.broker.cluster.image());
    let hosted = broker.find(TopicName::Name(topic), number)?;
    if !hosted.status().is_some_and(|status| status.role == Role::Leader) {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    let config = image.topic(topic).map(|topic| broker.partitions.config_of(topic));
    if !config.is_some_and(|config| config.cleanup_policy.delete) {
        return Err(ErrorCode::PolicyViolation);
    }
    let before = match before {
        HIGH_WATERMARK => None,
        0.. => Some(Offset(before)),
        _ => return Err(ErrorCode::OffsetOutOfRange),
    };
    let moved = hosted.ask_slowly(move |partition, now| partition.delete_records(now, before)).await;
    let start = moved.ok_or(ErrorCode::NotLeaderOrFollower)?.map_err(|refused| match refused {
        DeleteRefused::NotLeader => ErrorCode::NotLeaderOrFollower,
        DeleteRefused::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        error => {
            tracing::error!(partition = %hosted.topic_partition(), %error, "cannot delete records");
            ErrorCode::KafkaStorageError
        }
    })?;
    // Kafka reads the root's files alone, if it is to take the directory over after a crash.
    broker.services.checkpoints_wanted.notify_one();
    Ok((hosted, start))
}

/// The latest start of this leader's log and of its followers' that live.
fn low_watermark(context: &RequestContext, hosted: &Hosted) -> Result<Offset, ErrorCode> {
    let status = hosted.status().ok_or(ErrorCode::NotLeaderOrFollower)?;
    if status.role != Role::Leader {
        return Err(ErrorCode::NotLeaderOrFollower);
    }
    let image = context.broker.cluster.image();
    let lives = |id: &BrokerId| image.brokers.contains_key(id);
    let followers = status.followers.iter().filter(|follower| lives(&follower.id));
    let starts = followers.map(|follower| follower.log_start.unwrap_or(Offset(-1)));
    Ok(starts.fold(status.log_start, Offset::min))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::{broker, config, context, fill, make, name};
    use crate::api::tests::encodes;
    use crate::broker::Broker;

    async fn ask(broker: &Broker, version: i16, of: &[(&str, i32, i64)]) -> Vec<(i64, i16)> {
        let topic = |&(topic, number, offset): &(&str, i32, i64)| {
            let partition = DeleteRecordsPartition::default().with_partition_index(number).with_offset(offset);
            DeleteRecordsTopic::default().with_name(name(topic).into()).with_partitions(vec![partition])
        };
        let request =
            DeleteRecordsRequest::default().with_topics(of.iter().map(topic).collect()).with_timeout_ms(10_000);
        let response = handle(&context(broker, version), request).await;
        encodes(ApiKey::DeleteRecords, &response, version);
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|one| (one.low_watermark, one.error_code)).collect()
    }

    #[tokio::test]
    async fn a_log_begins_where_it_is_told_to_and_does_so_after_a_kill() {
        let (broker, dir) = broker().await;
        make(broker.cluster(), "t", 2, 1).await;
        fill(&broker, "t", 10).await;
        for version in 0..=2 {
            let to = 2 + i64::from(version);
            assert_eq!(ask(&broker, version, &[("t", 0, to)]).await, [(to, 0)]);
            assert_eq!(ask(&broker, version, &[("t", 0, 0)]).await, [(to, 0)], "what is gone is gone");
            assert_eq!(ask(&broker, version, &[("t", 0, 11)]).await, [(-1, 1)]);
            assert_eq!(ask(&broker, version, &[("t", 0, -2)]).await, [(-1, 1)]);
            assert_eq!(ask(&broker, version, &[("t", 9, 0), ("u", 0, 0)]).await, [(-1, 3), (-1, 3)]);
            assert_eq!(ask(&broker, version, &[("__consumer_offsets", 0, 0)]).await, [(-1, 17)]);
        }
        let start = |broker: &Broker| {
            broker.status(&highwater_storage::TopicPartition::new("t", 0)).map(|status| status.log_start)
        };
        assert_eq!(start(&broker), Some(Offset(4)));
        broker.kill().await;
        let broker = Broker::start_embedded(config(&dir)).await.unwrap();
        broker.cluster().wait_for_leaders("t", 2, 10_000).await.unwrap();
        assert_eq!(start(&broker), Some(Offset(4)));
        let all = loop {
            // It leads when it has seen itself elected.
            match ask(&broker, 2, &[("t", 0, -1)]).await[0] {
                (_, 6) => tokio::time::sleep(POLL).await,
                all => break all,
            }
        };
        assert_eq!(all, (10, 0), "all that is committed");
        broker.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_only_compacted_is_not_deleted() {
        use crate::cluster::{Intent, NewTopic};
        let (broker, _dir) = broker().await;
        let config = [("cleanup.policy".to_owned(), "compact".to_owned())].into();
        let new = NewTopic { name: "c".to_owned(), config, ..NewTopic::default() };
        broker.cluster().create_topic(&new, Intent::Apply).await.unwrap();
        broker.cluster().wait_for_leaders("c", 1, 10_000).await.unwrap();
        crate::api::admin_tests::ready(&broker, "c").await;
        assert_eq!(ask(&broker, 2, &[("c", 0, 0)]).await, [(-1, 44)]);
        broker.shutdown().await.unwrap();
    }
}
