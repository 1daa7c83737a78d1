//! OffsetFetch (9).

use highwater_groups::{Answer, FetchOffsets, FetchedOffset, Refused, Request};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};

use super::super::RequestContext;
use super::{string, text, topic_name};

/// From this version on a request may be about several groups.
const SEVERAL_SINCE: i16 = 8;

/// From this version on an error of the whole group has a place of its own.
const GROUP_ERROR_SINCE: i16 = 2;

/// By topic, in the order of the request.
type ByTopic = Vec<(String, Vec<FetchedOffset>)>;

pub(crate) async fn handle(context: &RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse {
    let require_stable = request.require_stable;
    if context.version >= SEVERAL_SINCE {
        let mut response = OffsetFetchResponse::default();
        for group in request.groups {
            let topics = group.topics.map(|topics| {
                topics.into_iter().map(|topic| (topic.name.to_string(), topic.partition_indexes)).collect()
            });
            let asked = fetch(text(group.group_id.0.clone()), topics, require_stable);
            response.groups.push(answer_group(group.group_id, fetched(context, asked).await));
        }
        return response;
    }
    let topics = request
        .topics
        .map(|topics| topics.into_iter().map(|topic| (topic.name.to_string(), topic.partition_indexes)).collect());
    // In the versions before that null was not known, an empty list is one.
    let asked = fetch(text(request.group_id.0), topics, require_stable);
    let partitions = asked.partitions.clone().unwrap_or_default();
    answer(partitions, fetched(context, asked).await, context.version)
}

fn fetch(group: String, topics: Option<Vec<(String, Vec<i32>)>>, require_stable: bool) -> FetchOffsets {
    let partitions = topics.map(|topics| {
        let each = topics
            .into_iter()
            .flat_map(|(topic, partitions)| partitions.into_iter().map(move |partition| (topic.clone(), partition)));
        each.collect()
    });
    FetchOffsets { group, partitions, require_stable }
}

async fn fetched(context: &RequestContext, asked: FetchOffsets) -> Result<ByTopic, Refused> {
    match super::ask(context, Request::FetchOffsets(asked)).await {
        Answer::Offsets(offsets) => offsets.map(by_topic),
        _ => Err(Refused::CoordinatorNotAvailable),
    }
}

fn by_topic(offsets: Vec<FetchedOffset>) -> ByTopic {
    let mut topics = ByTopic::new();
    for offset in offsets {
        match topics.last_mut() {
            Some((topic, partitions)) if *topic == offset.topic => partitions.push(offset),
            _ => topics.push((offset.topic.clone(), vec![offset])),
        }
    }
    topics
}

/// Offset, leader epoch, metadata and code, as all versions tell them.
fn told(offset: Result<Option<highwater_groups::records::OffsetValue>, Refused>) -> (i64, i32, String, i16) {
    match offset {
        Ok(Some(value)) => (value.offset, value.leader_epoch, value.metadata, 0),
        Ok(None) => (-1, -1, String::new(), 0),
        Err(why) => (-1, -1, String::new(), why.code()),
    }
}

fn answer_group(
    group: kafka_protocol::messages::GroupId,
    fetched: Result<ByTopic, Refused>,
) -> OffsetFetchResponseGroup {
    let response = OffsetFetchResponseGroup::default().with_group_id(group);
    let topics = match fetched {
        Ok(topics) => topics,
        Err(why) => return response.with_error_code(why.code()),
    };
    let topics = topics.into_iter().map(|(name, offsets)| {
        let partitions = offsets.into_iter().map(|one| {
            let (offset, epoch, metadata, code) = told(one.offset);
            OffsetFetchResponsePartitions::default()
                .with_partition_index(one.partition)
                .with_committed_offset(offset)
                .with_committed_leader_epoch(epoch)
                .with_metadata(Some(string(metadata)))
                .with_error_code(code)
        });
        OffsetFetchResponseTopics::default().with_name(topic_name(&name)).with_partitions(partitions.collect())
    });
    response.with_topics(topics.collect())
}

fn answer(asked: Vec<(String, i32)>, fetched: Result<ByTopic, Refused>, version: i16) -> OffsetFetchResponse {
    let (code_of_group, topics) = match fetched {
        Ok(topics) => (0, topics),
        Err(why) if version >= GROUP_ERROR_SINCE => (why.code(), ByTopic::new()),
        // Each partition has the error of the group.
        Err(why) => {
            let all = asked.into_iter().map(|(topic, partition)| FetchedOffset { topic, partition, offset: Err(why) });
            (0, by_topic(all.collect()))
        }
    };
    let topics = topics.into_iter().map(|(name, offsets)| {
        let partitions = offsets.into_iter().map(|one| {
            let (offset, epoch, metadata, code) = told(one.offset);
            let partition = OffsetFetchResponsePartition::default()
                .with_partition_index(one.partition)
                .with_committed_offset(offset)
                .with_metadata(Some(string(metadata)))
                .with_error_code(code);
            if version >= 5 { partition.with_committed_leader_epoch(epoch) } else { partition }
        });
        OffsetFetchResponseTopic::default().with_name(topic_name(&name)).with_partitions(partitions.collect())
    });
    let response = OffsetFetchResponse::default().with_topics(topics.collect());
    if version >= GROUP_ERROR_SINCE { response.with_error_code(code_of_group) } else { response }
}

#[cfg(test)]
mod tests {
    use highwater_groups::records::OffsetValue;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        let value = OffsetValue {
            offset: 17,
            leader_epoch: 3,
            metadata: "m".into(),
            commit_timestamp_ms: 0,
            expire_timestamp_ms: -1,
        };
        let one = |partition, offset| FetchedOffset { topic: "books".into(), partition, offset };
        let elsewhere = |topic: &str| FetchedOffset { topic: topic.into(), partition: 0, offset: Ok(None) };
        let in_turn = by_topic(vec![elsewhere("zoo"), elsewhere("books"), elsewhere("zoo")]);
        assert_eq!(in_turn.iter().map(|(topic, _)| topic.as_str()).collect::<Vec<_>>(), ["zoo", "books", "zoo"]);
        let offsets = vec![one(0, Ok(Some(value))), one(1, Ok(None)), one(2, Err(Refused::UnstableOffsetCommit))];
        for version in 1..8 {
            let response = answer(Vec::new(), Ok(by_topic(offsets.clone())), version);
            let told: Vec<_> =
                response.topics[0].partitions.iter().map(|one| (one.committed_offset, one.error_code)).collect();
            assert_eq!(told, [(17, 0), (-1, 0), (-1, 88)]);
            assert_eq!(response.topics[0].partitions[0].committed_leader_epoch, if version >= 5 { 3 } else { -1 });
            encodes(ApiKey::OffsetFetch, &response, version);
            let response = answer(vec![("books".into(), 4)], Err(Refused::NotCoordinator), version);
            if version >= 2 {
                assert_eq!((response.error_code, response.topics.len()), (16, 0));
            } else {
                assert_eq!(response.topics[0].partitions[0].error_code, 16);
            }
            encodes(ApiKey::OffsetFetch, &response, version);
        }
        for version in 8..=9 {
            let groups = vec![
                answer_group(name("g").into(), Ok(by_topic(offsets.clone()))),
                answer_group(name("other").into(), Err(Refused::NotCoordinator)),
            ];
            assert_eq!((groups[0].topics[0].partitions.len(), groups[1].error_code), (3, 16));
            encodes(ApiKey::OffsetFetch, &OffsetFetchResponse::default().with_groups(groups), version);
        }
    }
}
