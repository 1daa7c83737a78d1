//! OffsetFetch (9).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use highwater_groups::{Answer, FetchOffsets, FetchedOffset, Refused, Request};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions, OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{GroupId, OffsetFetchRequest, OffsetFetchResponse};
use kafka_protocol::protocol::StrBytes;

use super::super::RequestContext;
use super::{string, text, topic_name};

/// From this version on a request may be about several groups.
const SEVERAL_SINCE: i16 = 8;

/// From this version on an error of the whole group has a place of its own.
const GROUP_ERROR_SINCE: i16 = 2;

/// By topic, in the order of the request.
type ByTopic = Vec<(Arc<str>, Vec<FetchedOffset>)>;

/// What was asked of a group. Each of its offsets is told once, however often it is named, and all of them at once: what is
/// told of one may be a thousand times as long as what names it.
#[derive(Default)]
struct Asked {
    all: bool,
    partitions: HashMap<Arc<str>, BTreeSet<i32>>,
}

impl Asked {
    /// What of that was not asked yet; `None` for all there is.
    fn news(&mut self, topics: Option<Vec<(StrBytes, Vec<i32>)>>) -> Option<Vec<(Arc<str>, i32)>> {
        let Some(topics) = topics else {
            return if std::mem::replace(&mut self.all, true) { Some(Vec::new()) } else { None };
        };
        let mut news = Vec::new();
        for (name, partitions) in topics {
            let topic: Arc<str> = match self.partitions.get_key_value(name.as_str()) {
                Some((topic, _)) => Arc::clone(topic),
                None => name.as_str().into(),
            };
            let asked = self.partitions.entry(Arc::clone(&topic)).or_default();
            let new = partitions.into_iter().filter(|partition| asked.insert(*partition));
            news.extend(new.map(|partition| (Arc::clone(&topic), partition)));
        }
        Some(news)
    }
}

pub(crate) async fn handle(context: &RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse {
    let require_stable = request.require_stable;
    if context.version >= SEVERAL_SINCE {
        let mut response = OffsetFetchResponse::default();
        let mut groups: HashMap<GroupId, Asked> = HashMap::new();
        for group in request.groups {
            let topics = group
                .topics
                .map(|topics| topics.into_iter().map(|topic| (topic.name.0, topic.partition_indexes)).collect());
            let is_first = !groups.contains_key(&group.group_id);
            let partitions = groups.entry(group.group_id.clone()).or_default().news(topics);
            if !is_first && partitions.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let asked = FetchOffsets { group: text(group.group_id.0.clone()), partitions, require_stable };
            response.groups.push(answer_group(group.group_id, fetched(context, asked).await));
        }
        return response;
    }
    let topics =
        request.topics.map(|topics| topics.into_iter().map(|topic| (topic.name.0, topic.partition_indexes)).collect());
    // In the versions before that null was not known, an empty list is one.
    let partitions = Asked::default().news(topics);
    let asked = FetchOffsets { group: text(request.group_id.0), partitions, require_stable };
    let partitions = asked.partitions.clone().unwrap_or_default();
    answer(partitions, fetched(context, asked).await, context.version)
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
            Some((topic, partitions)) if Arc::ptr_eq(topic, &offset.topic) || *topic == offset.topic => {
                partitions.push(offset);
            }
            _ => topics.push((Arc::clone(&offset.topic), vec![offset])),
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

fn answer_group(group: GroupId, fetched: Result<ByTopic, Refused>) -> OffsetFetchResponseGroup {
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

fn answer(asked: Vec<(Arc<str>, i32)>, fetched: Result<ByTopic, Refused>, version: i16) -> OffsetFetchResponse {
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
        assert_eq!(in_turn.iter().map(|(topic, _)| &**topic).collect::<Vec<_>>(), ["zoo", "books", "zoo"]);
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

    #[test]
    fn what_is_named_many_times_is_asked_once() {
        let topics = |of: &[(&str, &[i32])]| {
            Some(of.iter().map(|&(topic, partitions)| (name(topic), partitions.to_vec())).collect::<Vec<_>>())
        };
        let told = |news: Option<Vec<(Arc<str>, i32)>>| {
            news.map(|news| {
                news.into_iter().map(|(topic, partition)| (topic.to_string(), partition)).collect::<Vec<_>>()
            })
        };
        let one = |topic: &str, partition| (topic.to_owned(), partition);
        let mut asked = Asked::default();
        let in_turn = topics(&[("zoo", &[1, 0, 1]), ("books", &[0]), ("zoo", &[0, 2])]);
        let expected = vec![one("zoo", 1), one("zoo", 0), one("books", 0), one("zoo", 2)];
        assert_eq!(told(asked.news(in_turn.clone())), Some(expected));
        assert_eq!(told(asked.news(in_turn)), Some(Vec::new()));
        assert_eq!(told(asked.news(topics(&[("books", &[0, 7])]))), Some(vec![one("books", 7)]));
        assert_eq!((told(asked.news(None)), told(asked.news(None))), (None, Some(Vec::new())));
        // However many partitions there are of it, a name is there once.
        let long = "x".repeat(30_000);
        let many: Vec<i32> = (0..1_000).collect();
        let news = asked.news(topics(&[(&long, &many), (&long, &[-1])])).unwrap();
        assert_eq!(news.len(), 1_001);
        assert!(news.iter().all(|(topic, _)| Arc::ptr_eq(topic, &news[0].0)));
    }
}
