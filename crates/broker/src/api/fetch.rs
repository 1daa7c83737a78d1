//! Fetch: records for consumers and for followers.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, FetchError, FetchGrant, FetchRequest as Wish, Fetcher, Isolation};
use highwater_storage::{LeaderEpoch, Offset, TopicId, batches};
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint, PartitionData,
};
use kafka_protocol::messages::{self, FetchRequest, FetchResponse};
use kafka_protocol::protocol::StrBytes;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Close, ErrorCode, RequestContext};
use crate::fetch_sessions::{
    Answered, Asked, EPOCH_FINAL, EPOCH_OPENING, Key, NO_SESSION, Owner, Refusal, Session, Taken, Told, Topic,
};
use crate::fetches::{self, Limits, ReadFailure, Served, Wanted};
use crate::hosted::Hosted;
use crate::partitions::TopicName;
use crate::services::Services;

/// Since this version topics are named by id.
const TOPIC_IDS_SINCE: i16 = 13;

/// Since this version a follower says which life of its broker asks.
const REPLICA_STATE_SINCE: i16 = 15;

/// Since this version the answer may say where leaders are.
const ENDPOINTS_SINCE: i16 = 16;

/// Longer than any client waits; keeps the arithmetic of a hostile `max_wait_ms` harmless.
const WAIT_MS_MAX: u64 = 3_600_000;

/// Who asks, as the request's fields say it.
#[derive(Clone, Copy)]
struct Asker {
    /// The follower's broker and its epoch; `None` for clients.
    follower: Option<(BrokerId, Option<BrokerEpoch>)>,
    isolation: Isolation,
}

/// Where a request stands with its session.
enum Talk {
    /// A full request; its partitions are kept if it opens a session.
    Full { opens: bool },
    /// The next one of a session, which is out meanwhile.
    Goes(Taken),
}

/// A partition that is asked for, and its part of the answer.
struct Part {
    key: Key,
    asked: Asked,
    answer: PartitionData,
}

/// Answers a Fetch request.
pub(crate) async fn handle(context: &RequestContext, request: FetchRequest) -> Result<FetchResponse, Close> {
    let services = &context.broker.services;
    let asker = asker(context.version, &request);
    let (talk, mut parts) = match begin(context, &request) {
        Ok(begun) => begun,
        Err(refusal) => return Ok(FetchResponse::default().with_error_code(code(refusal).number())),
    };
    let (mut wanted, mut places, mut failed) = (Vec::new(), Vec::new(), false);
    for (place, Part { key, asked, answer }) in parts.iter_mut().enumerate() {
        let name = match &key.topic {
            Topic::Name(name) => TopicName::Name(name),
            Topic::Id(id) => TopicName::Id(*id),
        };
        match context.broker.find(name, key.partition) {
            Ok(source) => {
                places.push(place);
                let max_bytes = usize::try_from(asked.max_bytes).unwrap_or(0);
                wanted.push(Wanted { source, request: wish(asker, *asked), max_bytes });
            }
            Err(code) => {
                answer.error_code = code.number();
                failed = true;
            }
        }
    }

    let wait_ms = u64::try_from(request.max_wait_ms).unwrap_or(0).min(WAIT_MS_MAX);
    let wait_ms = if failed { 0 } else { wait_ms };
    let max_bytes = usize::try_from(request.max_bytes).unwrap_or(0).min(context.broker.config.fetch_bytes_max);
    let limits = Limits {
        max_bytes,
        min_bytes: usize::try_from(request.min_bytes).unwrap_or(0),
        until: Instant::now() + Duration::from_millis(wait_ms),
    };
    // With its frame, which nobody needs while records are waited for: what is kept of it was copied.
    drop(request);
    let served = fetches::serve::<Hosted>(wanted, limits, &services.readers).await;
    for (place, served) in places.into_iter().zip(served) {
        if let Some(part) = parts.get_mut(place) {
            write(&mut part.answer, served, asker);
        }
    }
    let owner = Owner { is_follower: asker.follower.is_some(), uses_topic_ids: context.version >= TOPIC_IDS_SINCE };
    let session_id = end(services, talk, owner, &mut parts);
    let mut response = FetchResponse::default().with_session_id(session_id).with_responses(by_topic(parts));
    if context.version >= ENDPOINTS_SINCE {
        name_leaders(context, &mut response);
    }
    Ok(response)
}

/// What is asked for: all that the request lists, or what its session has kept with the changes it lists.
fn begin(context: &RequestContext, request: &FetchRequest) -> Result<(Talk, Vec<Part>), Refusal> {
    let services = &context.broker.services;
    let uses_topic_ids = context.version >= TOPIC_IDS_SINCE;
    let topic = |name: &StrBytes, id: Uuid| match uses_topic_ids {
        true => Topic::Id(TopicId(id.into_bytes())),
        // Copied: a session would keep the whole request in memory.
        false => Topic::Name(name.as_str().into()),
    };
    let listed = request.topics.iter().flat_map(|listed| {
        let topic = topic(&listed.topic, listed.topic_id);
        let part = move |part: &FetchPartition| (Key { topic: topic.clone(), partition: part.partition }, asked(part));
        listed.partitions.iter().map(part)
    });
    let part = |(key, asked): (Key, Asked)| Part { answer: nothing(key.partition), key, asked };
    if matches!(request.session_epoch, EPOCH_OPENING | EPOCH_FINAL) {
        if request.session_id != NO_SESSION {
            services.fetch_sessions().close(request.session_id);
        }
        return Ok((Talk::Full { opens: request.session_epoch == EPOCH_OPENING }, listed.map(part).collect()));
    }
    let now = services.clock.now();
    let (id, epoch) = (request.session_id, request.session_epoch);
    let mut taken = services.fetch_sessions().take(now, id, epoch, uses_topic_ids)?;
    for (key, asked) in listed {
        taken.session.ask(key, asked);
    }
    for forgotten in &request.forgotten_topics_data {
        let topic = topic(&forgotten.topic, forgotten.topic_id);
        for &partition in &forgotten.partitions {
            taken.session.forget(&Key { topic: topic.clone(), partition });
        }
    }
    let parts = taken.session.parts().map(|(key, asked)| part((key.clone(), asked))).collect();
    Ok((Talk::Goes(taken), parts))
}

/// Leaves of an answer what is new to its client, keeps the session for the next request, and returns its id.
fn end(services: &Services, talk: Talk, owner: Owner, parts: &mut Vec<Part>) -> i32 {
    match talk {
        Talk::Full { opens: false } => NO_SESSION,
        Talk::Full { opens: true } => {
            let mut session = Session::default();
            for Part { key, asked, .. } in &*parts {
                session.ask(key.clone(), *asked);
            }
            for Part { key, answer, .. } in &*parts {
                session.has_news(key, answered(answer));
            }
            let random = RandomState::new().build_hasher().finish() as u32;
            let now = services.clock.now();
            services.fetch_sessions().keep(now, owner, session, random).unwrap_or(NO_SESSION)
        }
        Talk::Goes(mut taken) => {
            parts.retain(|part| taken.session.has_news(&part.key, answered(&part.answer)));
            let id = taken.id();
            if taken.session.is_empty() {
                services.fetch_sessions().close(id);
                return NO_SESSION;
            }
            services.fetch_sessions().put_back(taken);
            id
        }
    }
}

/// What the session notes of an answer.
fn answered(part: &PartitionData) -> Answered {
    let diverges = part.diverging_epoch != EpochEndOffset::default();
    let told = Told {
        high_watermark: part.high_watermark,
        last_stable_offset: part.last_stable_offset,
        log_start: part.log_start_offset,
    };
    Answered {
        has_records: part.records.as_ref().is_some_and(|records| !records.is_empty()),
        told: (part.error_code == ErrorCode::None.number() && !diverges).then_some(told),
    }
}

/// The parts in their order, those of one topic that lie together under its name.
fn by_topic(parts: Vec<Part>) -> Vec<FetchableTopicResponse> {
    let mut topics: Vec<FetchableTopicResponse> = Vec::new();
    let mut last = None;
    for Part { key: Key { topic, .. }, answer, .. } in parts {
        let goes_on = last.as_ref() == Some(&topic);
        match topics.last_mut().filter(|_| goes_on) {
            Some(topic) => topic.partitions.push(answer),
            None => {
                let response = match &topic {
                    Topic::Name(name) => FetchableTopicResponse::default()
                        .with_topic(messages::TopicName(StrBytes::from_string(name.as_ref().to_owned()))),
                    Topic::Id(id) => FetchableTopicResponse::default().with_topic_id(Uuid::from_bytes(id.0)),
                };
                topics.push(response.with_partitions(vec![answer]));
                last = Some(topic);
            }
        }
    }
    topics
}

fn code(refusal: Refusal) -> ErrorCode {
    match refusal {
        Refusal::NotFound => ErrorCode::FetchSessionIdNotFound,
        Refusal::WrongEpoch => ErrorCode::InvalidFetchSessionEpoch,
        Refusal::TopicIds => ErrorCode::FetchSessionTopicIdError,
    }
}

fn asker(version: i16, request: &FetchRequest) -> Asker {
    let (id, epoch) = match version {
        REPLICA_STATE_SINCE.. => (request.replica_state.replica_id.0, request.replica_state.replica_epoch),
        _ => (request.replica_id.0, -1),
    };
    let isolation = if request.isolation_level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted };
    // -1 is a consumer and -2 a debugging one, which may read what consumers may.
    let follower = (id >= 0).then(|| (BrokerId(id), (epoch >= 0).then_some(BrokerEpoch(epoch))));
    Asker { follower, isolation }
}

fn asked(part: &FetchPartition) -> Asked {
    Asked {
        current_leader_epoch: part.current_leader_epoch,
        from: part.fetch_offset,
        last_fetched_epoch: part.last_fetched_epoch,
        log_start: part.log_start_offset,
        max_bytes: part.partition_max_bytes,
    }
}

fn wish(asker: Asker, asked: Asked) -> Wish {
    let by = match asker.follower {
        Some((id, broker_epoch)) => Fetcher::Follower { id, broker_epoch, log_start: Offset(asked.log_start.max(0)) },
        None => Fetcher::Consumer { isolation: asker.isolation },
    };
    let epoch = |number: i32| (number >= 0).then_some(LeaderEpoch(number));
    Wish {
        by,
        current_leader_epoch: epoch(asked.current_leader_epoch),
        last_fetched_epoch: epoch(asked.last_fetched_epoch),
        from: Offset(asked.from),
    }
}

/// A partition's answer that says nothing yet. Empty records have length 0: null makes librdkafka complain.
fn nothing(partition: i32) -> PartitionData {
    PartitionData::default()
        .with_partition_index(partition)
        .with_high_watermark(-1)
        .with_last_stable_offset(-1)
        .with_log_start_offset(-1)
        .with_aborted_transactions(None)
        .with_records(Some(Bytes::new()))
}

fn write(part: &mut PartitionData, served: Served, asker: Asker) {
    match served {
        Served::Granted(grant, records) => {
            describe(part, &grant);
            if let Some(end) = grant.diverging {
                part.diverging_epoch = EpochEndOffset::default().with_epoch(end.epoch.0).with_end_offset(end.end.0);
            }
            part.high_watermark = told_high_watermark(&grant, records.as_ref()).0;
            if asker.follower.is_none() && asker.isolation == Isolation::ReadCommitted {
                let aborted = records.aborted().map(|(first, producer)| {
                    AbortedTransaction::default()
                        .with_producer_id(messages::ProducerId(producer))
                        .with_first_offset(first.0)
                });
                part.aborted_transactions = Some(aborted.collect());
            }
            part.records = Some(Bytes::from_owner(records));
        }
        Served::Unreadable(grant, failure) => {
            describe(part, &grant);
            let code = match failure {
                // The log is being cut: nothing to read this time.
                ReadFailure::Superseded => ErrorCode::None,
                ReadFailure::OutOfRange => ErrorCode::OffsetOutOfRange,
                ReadFailure::Corrupt => ErrorCode::CorruptMessage,
                ReadFailure::Storage => ErrorCode::KafkaStorageError,
            };
            part.error_code = code.number();
        }
        Served::Refused(error) => {
            part.error_code = ErrorCode::from(&error).number();
            match error {
                FetchError::OutOfRange { log_start, high_watermark, .. } => {
                    part.log_start_offset = log_start.0;
                    part.high_watermark = high_watermark.0;
                    part.last_stable_offset = high_watermark.0;
                }
                FetchError::NotLeader { leader: Some(leader), leader_epoch } => name_leader(part, leader, leader_epoch),
                _ => {}
            }
        }
        Served::Gone => part.error_code = ErrorCode::NotLeaderOrFollower.number(),
    }
}

/// Consumers pass over batches without records, as compaction leaves them; some (Sarama) only over those below the high
/// watermark that came with them. Where that is not known they would ask for the same batches again at once, as long as it
/// is not: they are told how far they may read, though a predecessor may have told more.
fn told_high_watermark(grant: &FetchGrant, records: &[u8]) -> Offset {
    let has_records = || batches(records).any(|batch| batch.map_or(true, |batch| batch.header().record_count() != 0));
    let is_known = grant.high_watermark >= Offset::ZERO;
    if is_known || records.is_empty() || has_records() { grant.high_watermark } else { grant.upper }
}

fn describe(part: &mut PartitionData, grant: &FetchGrant) {
    part.high_watermark = grant.high_watermark.0;
    part.last_stable_offset = grant.last_stable_offset.0;
    part.log_start_offset = grant.log_start.0;
}

fn name_leader(part: &mut PartitionData, leader: BrokerId, epoch: LeaderEpoch) {
    let leader = messages::BrokerId(leader.0);
    part.current_leader = LeaderIdAndEpoch::default().with_leader_id(leader).with_leader_epoch(epoch.0);
}

/// Names the leader to those that believe in a former leadership, and says where the leaders are that the answer names.
fn name_leaders(context: &RequestContext, response: &mut FetchResponse) {
    let needs = |part: &PartitionData| {
        part.current_leader.leader_id.0 >= 0 || part.error_code == ErrorCode::FencedLeaderEpoch.number()
    };
    if !response.responses.iter().flat_map(|topic| &topic.partitions).any(needs) {
        return;
    }
    let image = context.broker.cluster.image();
    let mut named = BTreeSet::new();
    for topic in &mut response.responses {
        let known = image.topic_by_id(TopicId(topic.topic_id.into_bytes()));
        for part in topic.partitions.iter_mut().filter(|part| needs(part)) {
            let state = known.and_then(|topic| topic.partition(part.partition_index)).map(|known| &known.state.value);
            if part.current_leader.leader_id.0 < 0
                && let Some((leader, state)) = state.and_then(|state| Some((state.leader?, state)))
            {
                name_leader(part, leader, state.leader_epoch);
            }
            named.insert(part.current_leader.leader_id.0);
        }
    }
    for broker in named.into_iter().filter_map(|id| image.brokers.get(&BrokerId(id))) {
        let endpoint = NodeEndpoint::default()
            .with_node_id(messages::BrokerId(broker.id.0))
            .with_host(StrBytes::from_string(broker.host.clone()))
            .with_port(i32::from(broker.port))
            .with_rack(broker.rack.clone().map(StrBytes::from_string));
        response.node_endpoints.push(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use highwater_storage::{BatchBuilder, Codec, HEADER_BYTES, Record, TimestampMs};

    use super::*;

    /// Field fault S48: what is below the high watermark is passed over, even where that is not known.
    #[test]
    fn s48_batches_without_records_come_with_an_end_that_lies_behind_them() {
        let mut full = BatchBuilder::new(Codec::None);
        full.push(Record::new(TimestampMs(1), b"x"));
        let full = full.build();
        // As compaction leaves it: the header, with no records to count and nothing after it.
        let mut empty = full[..HEADER_BYTES].to_vec();
        empty[8..12].copy_from_slice(&49_i32.to_be_bytes());
        empty[57..61].copy_from_slice(&0_i32.to_be_bytes());
        let (both, twice) = ([&empty[..], &full].concat(), [&empty[..], &empty].concat());
        let unknown = FetchGrant::new(Offset(7), Offset(-1), Offset(0), LeaderEpoch(3));
        let known = FetchGrant::new(Offset(7), Offset(7), Offset(0), LeaderEpoch(3));
        for (records, expected) in [(&[][..], -1), (&full, -1), (&both, -1), (&empty, 7), (&twice, 7)] {
            assert_eq!(told_high_watermark(&unknown, records), Offset(expected), "{} bytes", records.len());
            assert_eq!(told_high_watermark(&known, records), Offset(7));
        }
    }
}
