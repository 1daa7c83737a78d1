//! DescribeTopicPartitions (75): what Metadata tells of topics, in pages.

use std::collections::BTreeSet;

use highwater_storage::names::check_topic_name;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{BrokerId, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{ErrorCode, RequestContext, is_internal, operations};
use crate::cluster::{MetadataImage, PartitionImage};

/// The most partitions in one answer, whatever is asked for (Kafka's `max.request.partition.size.limit`).
const PARTITIONS_MAX: i32 = 2_000;

/// Answers from the image.
pub(crate) fn handle(
    context: &RequestContext,
    request: &DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    answer(&context.broker.cluster.image(), request)
}

fn answer(image: &MetadataImage, request: &DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse {
    let asks_for_all = request.topics.is_empty();
    let mut names: BTreeSet<&str> = match asks_for_all {
        true => image.topics.keys().map(|name| &**name).collect(),
        false => request.topics.iter().map(|topic| topic.name.as_str()).collect(),
    };
    if let Some(cursor) = &request.cursor {
        // Where to go on must be in what was asked for.
        let is_asked = asks_for_all || names.contains(cursor.topic_name.as_str());
        if cursor.partition_index < 0 || !is_asked {
            let refused = request.topics.iter().map(|topic| of(topic.name.as_str(), ErrorCode::InvalidRequest));
            return DescribeTopicPartitionsResponse::default().with_topics(refused.collect());
        }
        names.retain(|name| *name >= cursor.topic_name.as_str());
        // A page goes on where the last one ended, though that topic be gone.
    }
    let mut left = usize::try_from(request.response_partition_limit.clamp(1, PARTITIONS_MAX)).unwrap_or(1);
    let mut response = DescribeTopicPartitionsResponse::default();
    let next = |topic: &str, number: usize| {
        let number = i32::try_from(number).unwrap_or(i32::MAX);
        let name = StrBytes::from_string(topic.to_owned());
        Some(Cursor::default().with_topic_name(name.into()).with_partition_index(number))
    };
    for name in names {
        if left == 0 {
            response.next_cursor = next(name, 0);
            break;
        }
        let Some(topic) = image.topic(name) else {
            let code = match check_topic_name(name) {
                Ok(()) => ErrorCode::UnknownTopicOrPartition,
                Err(_) => ErrorCode::InvalidTopicException,
            };
            response.topics.push(of(name, code).with_topic_authorized_operations(operations::TOPIC));
            continue;
        };
        let cursor = request.cursor.as_ref().filter(|cursor| cursor.topic_name.as_str() == name);
        let first = cursor.map_or(0, |cursor| usize::try_from(cursor.partition_index).unwrap_or(0));
        let page = topic.partitions.iter().enumerate().skip(first).take(left);
        let partitions: Vec<_> = page.map(|(at, part)| partition(image, at, part)).collect();
        let end = first + partitions.len();
        left -= partitions.len();
        let told = of(name, ErrorCode::None)
            .with_topic_id(Uuid::from_bytes(topic.id.0))
            .with_topic_authorized_operations(operations::TOPIC)
            .with_partitions(partitions);
        response.topics.push(told);
        if end < topic.partitions.len() {
            response.next_cursor = next(name, end);
            break;
        }
    }
    response
}

fn of(name: &str, code: ErrorCode) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(code.number())
        .with_name(Some(StrBytes::from_string(name.to_owned()).into()))
        .with_is_internal(is_internal(name))
}

fn partition(image: &MetadataImage, at: usize, part: &PartitionImage) -> DescribeTopicPartitionsResponsePartition {
    let ids = |ids: &mut dyn Iterator<Item = &highwater_replication::BrokerId>| ids.map(|id| BrokerId(id.0)).collect();
    let lives = |id: &&highwater_replication::BrokerId| image.brokers.contains_key(*id);
    let state = &part.state.value;
    let leader = state.leader.as_ref().filter(lives);
    let code = if leader.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable };
    DescribeTopicPartitionsResponsePartition::default()
        .with_error_code(code.number())
        .with_partition_index(i32::try_from(at).unwrap_or(i32::MAX))
        .with_leader_id(BrokerId(leader.map_or(-1, |id| id.0)))
        .with_leader_epoch(state.leader_epoch.0)
        .with_replica_nodes(ids(&mut part.assignment.iter()))
        .with_isr_nodes(ids(&mut state.isr.iter()))
        // Nobody but the in-sync replicas is kept eligible here.
        .with_eligible_leader_replicas(Some(Vec::new()))
        .with_last_known_elr(Some(Vec::new()))
        .with_offline_replicas(ids(&mut part.assignment.iter().filter(|id| !lives(id))))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_topic_partitions_request::{self, TopicRequest};

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::{encodes, image};

    type Page = (Vec<(String, i16, Vec<i32>)>, Option<(String, i32)>);

    fn ask(topics: &[&str], limit: i32, cursor: Option<(&str, i32)>) -> Page {
        let cursor = cursor.map(|(topic, number)| {
            let cursor = describe_topic_partitions_request::Cursor::default();
            cursor.with_topic_name(name(topic).into()).with_partition_index(number)
        });
        let topic = |topic: &&str| TopicRequest::default().with_name(name(topic).into());
        let request = DescribeTopicPartitionsRequest::default()
            .with_topics(topics.iter().map(topic).collect())
            .with_response_partition_limit(limit)
            .with_cursor(cursor);
        let response = answer(&image(), &request);
        encodes(ApiKey::DescribeTopicPartitions, &response, 0);
        let told = response.topics.iter().map(|topic| {
            let numbers = topic.partitions.iter().map(|part| part.partition_index).collect();
            (topic.name.as_ref().unwrap().to_string(), topic.error_code, numbers)
        });
        let next = response.next_cursor.map(|next| (next.topic_name.to_string(), next.partition_index));
        (told.collect(), next)
    }

    fn page(topics: &[(&str, i16, &[i32])], next: Option<(&str, i32)>) -> Page {
        let told = topics.iter().map(|&(topic, code, numbers)| (topic.to_owned(), code, numbers.to_vec()));
        (told.collect(), next.map(|(topic, number)| (topic.to_owned(), number)))
    }

    #[test]
    fn topics_come_in_the_order_of_their_names_and_in_pages() {
        let all = page(&[("books", 0, &[0, 1, 2]), ("empty", 0, &[0])], None);
        assert_eq!(ask(&[], 2000, None), all);
        assert_eq!(ask(&["empty", "books", "empty"], i32::MAX, None), all);
        assert_eq!(ask(&[], 2, None), page(&[("books", 0, &[0, 1])], Some(("books", 2))));
        assert_eq!(ask(&[], 2, Some(("books", 2))), page(&[("books", 0, &[2]), ("empty", 0, &[0])], None));
        assert_eq!(ask(&[], 3, None), page(&[("books", 0, &[0, 1, 2])], Some(("empty", 0))));
        assert_eq!(ask(&[], 0, Some(("empty", 0))), page(&[("empty", 0, &[0])], None));
        // The topic that the last page ended in is gone, or has fewer partitions now.
        assert_eq!(ask(&[], 9, Some(("c", 7))), page(&[("empty", 0, &[0])], None));
        assert_eq!(ask(&[], 9, Some(("empty", 7))), page(&[("empty", 0, &[])], None));
    }

    #[test]
    fn what_is_not_there_has_its_code() {
        let told = ask(&["a b", "nope", "books"], 1, None);
        assert_eq!(told, page(&[("a b", 17, &[]), ("books", 0, &[0])], Some(("books", 1))));
        assert_eq!(ask(&["nope", "x"], 1, None), page(&[("nope", 3, &[]), ("x", 3, &[])], None));
        assert_eq!(ask(&["books"], 1, Some(("books", -1))), page(&[("books", 42, &[])], None));
        for elsewhere in ["a", "empty"] {
            assert_eq!(ask(&["books"], 1, Some((elsewhere, 0))), page(&[("books", 42, &[])], None));
        }
    }

    #[test]
    fn a_partition_without_a_leader_that_lives_says_so() {
        let image = image();
        let books = &image.topic("books").unwrap().partitions;
        let told: Vec<_> = books.iter().map(|part| partition(&image, 0, part)).collect();
        let led: Vec<_> = told.iter().map(|one| (one.leader_id.0, one.error_code)).collect();
        assert_eq!(led, [(1, 0), (-1, 5), (-1, 5)]);
        assert_eq!((told[0].replica_nodes.len(), told[0].isr_nodes.len()), (3, 2));
        assert_eq!(told[0].offline_replicas, [BrokerId(3)]);
    }
}
