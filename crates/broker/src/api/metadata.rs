//! Metadata (3): who leads what, and where the brokers are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use highwater_replication::BrokerId;
use highwater_storage::names::check_topic_name;
use highwater_storage::{TopicId, TopicPartition};
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{self, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{ErrorCode, HISTORY_TAG, RequestContext, is_internal, operations};
use crate::cluster::{ClusterHandle, MetadataImage, PartitionImage, TopicImage};
use crate::groups::{self, OFFSETS_TOPIC};
use crate::history;

/// Which topics a request is about.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Every,
    These(Vec<One>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum One {
    Name(String),
    Id(TopicId),
}

/// How long a request that made a topic waits for its leaders: clients that find none back off for longer.
const LEADERS_WAIT_MS: i32 = 1_000;

/// Bytes of histories in one answer. Who wants those of more partitions names topics.
const HISTORY_BYTES_MAX: usize = 8 << 20;

/// How often it looks whether a partition it leads is ready: that takes a few milliseconds after an election.
const READY_POLL: Duration = Duration::from_millis(2);

/// Answers after making the topics that are to be made by being asked for.
pub(crate) async fn handle(context: &RequestContext, request: &MetadataRequest) -> MetadataResponse {
    let (cluster, config) = (&context.broker.cluster, &context.broker.config);
    let missing = match config.auto_create_topics {
        true => to_create(&cluster.image(), request, context.version),
        false => Vec::new(),
    };
    let (internal, missing): (Vec<_>, Vec<_>) = missing.into_iter().partition(|name| is_internal(name));
    let mut codes = create(cluster, missing).await;
    if let Some(name) = internal.into_iter().next() {
        // Not as topics are by default, but with the settings that its coordinators need.
        let made = groups::make_topic(&context.broker).await;
        codes.insert(name, made.map_or_else(|error| error.code(), |()| ErrorCode::LeaderNotAvailable));
    }
    let absent = |name: &str| codes.get(name).copied().unwrap_or(ErrorCode::UnknownTopicOrPartition);
    let latest = super::deadline(LEADERS_WAIT_MS);
    loop {
        let image = cluster.image();
        let mut response = answer(&image, request, context.version, config.broker_id, absent);
        let unready = withhold_unready(&mut response, config.broker_id, |topic, partition| {
            let Some(topic) = image.topic(topic) else { return false };
            context.broker.partitions.is_behind(topic, partition)
        });
        if unready == 0 || super::remaining_ms(latest) == 0 {
            if request.unknown_tagged_fields.contains_key(&HISTORY_TAG) {
                return with_histories(context, response).await;
            }
            return response;
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

/// The answer with what happened to each partition that this broker holds, as much as fits.
async fn with_histories(context: &RequestContext, response: MetadataResponse) -> MetadataResponse {
    let broker = Arc::clone(&context.broker);
    let mut told = response.clone();
    let read = move || {
        let mut left = HISTORY_BYTES_MAX;
        for topic in &mut told.topics {
            let Some(name) = topic.name.as_ref() else { continue };
            for partition in &mut topic.partitions {
                let of = TopicPartition::new(name.as_str(), partition.partition_index);
                if broker.partitions.get(&of).is_none() {
                    continue;
                }
                let lines = broker.services.histories.read(&history::directory(&broker.config.data_dir, &of));
                if lines.is_empty() || lines.len() > left {
                    continue;
                }
                left -= lines.len();
                partition.unknown_tagged_fields.insert(HISTORY_TAG, lines.into());
            }
        }
        told
    };
    // `None` when the broker stops.
    context.broker.services.readers.read(read).await.unwrap_or(response)
}

/// Names no leader for partitions that this broker leads by the image but does not serve yet, and says how many those
/// are. A client that were told would have its first produce refused, and one with several in flight then has the rest
/// stored before it.
fn withhold_unready(response: &mut MetadataResponse, me: BrokerId, is_behind: impl Fn(&str, i32) -> bool) -> usize {
    let mut unready = 0;
    for topic in &mut response.topics {
        let Some(name) = topic.name.as_ref() else { continue };
        for partition in topic.partitions.iter_mut().filter(|partition| partition.leader_id.0 == me.0) {
            if is_behind(name, partition.partition_index) {
                partition.leader_id = messages::BrokerId(-1);
                partition.error_code = ErrorCode::LeaderNotAvailable.into();
                unready += 1;
            }
        }
    }
    unready
}

/// Makes topics, and says what to tell of each as long as it is not in the image.
async fn create(cluster: &ClusterHandle, names: Vec<String>) -> BTreeMap<String, ErrorCode> {
    let mut codes = BTreeMap::new();
    for name in names {
        let code = match cluster.auto_create_topic(&name).await {
            Ok(()) => ErrorCode::LeaderNotAvailable,
            Err(error) => error.code(),
        };
        codes.insert(name, code);
    }
    // One wait for all of them, or a client of many topics would get its answer too late.
    let deadline = super::deadline(LEADERS_WAIT_MS);
    for (name, _) in codes.iter().filter(|(_, code)| **code == ErrorCode::LeaderNotAvailable) {
        // Whether it is led by then or not, the image tells.
        let _ = cluster.wait_for_leaders(name, 1, super::remaining_ms(deadline)).await;
    }
    codes
}

/// The names that the request would create: asked for by name, legal, and not there. Of Kafka's own topics only those that
/// are made as they have to be.
fn to_create(image: &MetadataImage, request: &MetadataRequest, version: i16) -> Vec<String> {
    if version >= 4 && !request.allow_auto_topic_creation {
        return Vec::new();
    }
    match asked(request, version) {
        Ok(Asked::These(topics)) => topics
            .into_iter()
            .filter_map(|one| match one {
                One::Name(name) => Some(name),
                One::Id(_) => None,
            })
            .filter(|name| {
                image.topic(name).is_none()
                    && check_topic_name(name).is_ok()
                    && (!is_internal(name) || name == OFFSETS_TOPIC)
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// The answer of broker `me`. `absent` says what to tell about a legal name that is not there.
fn answer(
    image: &MetadataImage,
    request: &MetadataRequest,
    version: i16,
    me: BrokerId,
    absent: impl Fn(&str) -> ErrorCode,
) -> MetadataResponse {
    let mut response = MetadataResponse::default();
    response.brokers = image
        .brokers
        .values()
        .map(|broker| {
            let shown = MetadataResponseBroker::default()
                .with_node_id(messages::BrokerId(broker.id.0))
                .with_host(StrBytes::from_string(broker.host.clone()))
                .with_port(i32::from(broker.port));
            if version >= 1 { shown.with_rack(broker.rack.clone().map(StrBytes::from_string)) } else { shown }
        })
        .collect();
    if version >= 1 {
        response.controller_id = messages::BrokerId(controller(image, me).0);
    }
    if version >= 2 {
        response.cluster_id = Some(StrBytes::from_string(image.cluster_id.clone()));
    }
    if (8..=10).contains(&version) && request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = operations::CLUSTER;
    }
    let operations =
        if request.include_topic_authorized_operations { operations::TOPIC } else { operations::NOT_ASKED };
    response.topics = match asked(request, version) {
        Err(refused) => refused,
        Ok(Asked::Every) => image.topics.values().map(|topic| show(image, topic, version, operations)).collect(),
        Ok(Asked::These(topics)) => topics
            .into_iter()
            .map(|one| match one {
                One::Name(name) => match image.topic(&name) {
                    Some(topic) => show(image, topic, version, operations),
                    None => {
                        let code = match check_topic_name(&name) {
                            Ok(()) => absent(&name),
                            Err(_) => ErrorCode::InvalidTopicException,
                        };
                        let mut told = nameless(&name, code).with_is_internal(version >= 1 && is_internal(&name));
                        if version >= 8 {
                            told.topic_authorized_operations = operations;
                        }
                        told
                    }
                },
                One::Id(id) => match image.topic_by_id(id) {
                    Some(topic) => show(image, topic, version, operations),
                    None => MetadataResponseTopic::default()
                        .with_error_code(ErrorCode::UnknownTopicId.into())
                        .with_name(None)
                        .with_topic_id(Uuid::from_bytes(id.0)),
                },
            })
            .collect(),
    };
    response
}

/// Whom admin clients should turn to. Every broker here takes their requests, so while no controller is known it is the
/// one that was asked: -1 would stop them.
pub(super) fn controller(image: &MetadataImage, me: BrokerId) -> BrokerId {
    image.controller.filter(|id| image.brokers.contains_key(id)).unwrap_or(me)
}

/// Reads which topics are meant; each is answered once. Fails with the topics as they are to be answered.
fn asked(request: &MetadataRequest, version: i16) -> Result<Asked, Vec<MetadataResponseTopic>> {
    let Some(topics) = &request.topics else { return Ok(Asked::Every) };
    if version == 0 && topics.is_empty() {
        return Ok(Asked::Every);
    }
    // The field is there from version 10 on, but only version 12 may use it (KAFKA-12701).
    if version < 12 && topics.iter().any(|topic| topic.name.is_none() || !topic.topic_id.is_nil()) {
        let refuse = |name: &TopicName| nameless(name, ErrorCode::InvalidRequest);
        let empty = TopicName::default();
        return Err(topics.iter().map(|topic| refuse(topic.name.as_ref().unwrap_or(&empty))).collect());
    }
    let mut seen = BTreeSet::new();
    let each = topics.iter().map(|topic| match &topic.name {
        Some(name) if topic.topic_id.is_nil() => One::Name(name.to_string()),
        _ => One::Id(TopicId(topic.topic_id.into_bytes())),
    });
    Ok(Asked::These(each.filter(|one| seen.insert(one.clone())).collect()))
}

fn nameless(name: &str, code: ErrorCode) -> MetadataResponseTopic {
    MetadataResponseTopic::default()
        .with_error_code(code.into())
        .with_name(Some(TopicName(StrBytes::from_string(name.to_owned()))))
}

fn show(image: &MetadataImage, topic: &Arc<TopicImage>, version: i16, operations: i32) -> MetadataResponseTopic {
    let mut shown = MetadataResponseTopic::default()
        .with_name(Some(TopicName(StrBytes::from_string(topic.name.to_string()))))
        .with_partitions((0..).zip(&topic.partitions).map(|(at, part)| partition(image, at, part, version)).collect());
    if version >= 1 {
        shown.is_internal = is_internal(&topic.name);
    }
    if version >= 8 {
        shown.topic_authorized_operations = operations;
    }
    if version >= 10 {
        shown.topic_id = Uuid::from_bytes(topic.id.0);
    }
    shown
}

fn partition(image: &MetadataImage, number: i32, part: &PartitionImage, version: i16) -> MetadataResponsePartition {
    let lives = |id: &&BrokerId| image.brokers.contains_key(*id);
    let on_wire = |id: &BrokerId| messages::BrokerId(id.0);
    let state = &part.state.value;
    let leader = state.leader.as_ref().filter(lives);
    let mut shown = MetadataResponsePartition::default()
        .with_partition_index(number)
        .with_leader_id(messages::BrokerId(leader.map_or(-1, |id| id.0)));
    if version >= 7 {
        shown.leader_epoch = state.leader_epoch.0;
    }
    if version == 0 {
        // Clients of version 0 cannot be told of brokers that are not in the list.
        shown.replica_nodes = part.assignment.iter().filter(lives).map(on_wire).collect();
        shown.isr_nodes = state.isr.iter().filter(lives).map(on_wire).collect();
    } else {
        shown.replica_nodes = part.assignment.iter().map(on_wire).collect();
        shown.isr_nodes = state.isr.iter().map(on_wire).collect();
    }
    if version >= 5 {
        shown.offline_replicas = part.assignment.iter().filter(|id| !lives(id)).map(on_wire).collect();
    }
    let code = if leader.is_none() {
        ErrorCode::LeaderNotAvailable
    } else if version == 0 && shown.replica_nodes.len() < part.assignment.len() {
        ErrorCode::ReplicaNotAvailable
    } else {
        ErrorCode::None
    };
    shown.with_error_code(code.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::{encodes, image};
    use kafka_protocol::messages::ApiKey;
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;

    const ME: BrokerId = BrokerId(1);

    fn by_name(names: &[&'static str]) -> MetadataRequest {
        let one = |name: &&'static str| {
            MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(name))))
        };
        MetadataRequest::default().with_topics(Some(names.iter().map(one).collect()))
    }

    fn by_id(ids: &[u8]) -> MetadataRequest {
        let one = |id: &u8| MetadataRequestTopic::default().with_name(None).with_topic_id(Uuid::from_bytes([*id; 16]));
        MetadataRequest::default().with_topics(Some(ids.iter().map(one).collect()))
    }

    fn ask(request: &MetadataRequest, version: i16) -> MetadataResponse {
        let response = answer(&image(), request, version, ME, |_| ErrorCode::UnknownTopicOrPartition);
        encodes(ApiKey::Metadata, &response, version);
        response
    }

    fn summary(response: &MetadataResponse) -> Vec<(Option<&str>, i16, usize)> {
        let of = |topic| -> (Option<&str>, i16, usize) {
            let topic: &MetadataResponseTopic = topic;
            (topic.name.as_ref().map(|name| name.as_str()), topic.error_code, topic.partitions.len())
        };
        response.topics.iter().map(of).collect()
    }

    #[test]
    fn all_topics_or_none_depends_on_the_version() {
        let every = [(Some("books"), 0, 3), (Some("empty"), 0, 1)];
        assert_eq!(summary(&ask(&by_name(&[]), 0)), every);
        for version in 1..=13 {
            assert_eq!(summary(&ask(&MetadataRequest::default().with_topics(None), version)), every);
            let none = ask(&by_name(&[]), version);
            assert_eq!((none.topics.len(), none.brokers.len()), (0, 2));
        }
    }

    #[test]
    fn each_name_is_answered_once_with_its_code() {
        for version in 0..=13 {
            let response = ask(&by_name(&["books", "nope", "books", "a/b", ""]), version);
            let expected = [(Some("books"), 0, 3), (Some("nope"), 3, 0), (Some("a/b"), 17, 0), (Some(""), 17, 0)];
            assert_eq!(summary(&response), expected);
        }
    }

    #[test]
    fn a_topic_that_kafka_keeps_for_itself_is_told_as_such_whether_it_is_there_or_not() {
        for version in 0..=13 {
            let response = ask(&by_name(&["__transaction_state", "nope"]), version);
            let internal: Vec<bool> = response.topics.iter().map(|topic| topic.is_internal).collect();
            assert_eq!(internal, [version >= 1, false]);
            encodes(ApiKey::Metadata, &response, version);
        }
    }

    #[test]
    fn ids_are_for_version_12_and_up() {
        for version in 12..=13 {
            let response = ask(&by_id(&[7, 9, 0]), version);
            assert_eq!(summary(&response), [(Some("books"), 0, 3), (None, 100, 0), (None, 100, 0)]);
            assert_eq!(response.topics[1].topic_id, Uuid::from_bytes([9; 16]));
        }
        for version in 10..=11 {
            assert_eq!(summary(&ask(&by_id(&[7]), version)), [(Some(""), 42, 0)]);
        }
        assert_eq!(ask(&by_name(&["books"]), 10).topics[0].topic_id, Uuid::from_bytes([7; 16]));
    }

    #[test]
    fn a_leader_that_does_not_serve_yet_is_not_named() {
        let mut response = ask(&by_name(&["books", "empty"]), 7);
        assert_eq!(withhold_unready(&mut response, ME, |topic, partition| (topic, partition) == ("books", 0)), 1);
        let first = |topic: &MetadataResponseTopic| (topic.partitions[0].error_code, topic.partitions[0].leader_id.0);
        assert_eq!(first(&response.topics[0]), (5, -1));
        let before = ask(&by_name(&["empty"]), 7);
        assert_eq!(first(&response.topics[1]), first(&before.topics[0]));
        // Another broker's partitions are that one's business.
        assert_eq!(withhold_unready(&mut response, BrokerId(9), |_, _| true), 0);
    }

    #[test]
    fn partitions_tell_who_leads_and_who_is_away() {
        // Partition 0 is led by broker 1; 1 has no leader; 2 is led by broker 3, which is dead.
        let partitions = &ask(&by_name(&["books"]), 7).topics[0].partitions;
        let leaders: Vec<_> =
            partitions.iter().map(|part| (part.error_code, part.leader_id.0, part.leader_epoch)).collect();
        assert_eq!(leaders, [(0, 1, 4), (5, -1, 5), (5, -1, 6)]);
        let ids = |ids: &[messages::BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(ids(&partitions[0].replica_nodes), [1, 2, 3]);
        assert_eq!(ids(&partitions[0].isr_nodes), [1, 2]);
        assert_eq!(ids(&partitions[0].offline_replicas), [3]);
        // Version 0 hides the dead and says that somebody is missing.
        let partitions = &ask(&by_name(&["books"]), 0).topics[0].partitions;
        assert_eq!((partitions[0].error_code, ids(&partitions[0].replica_nodes)), (9, vec![1, 2]));
    }

    #[test]
    fn brokers_controller_and_operations() {
        let response = ask(&by_name(&[]), 8);
        assert_eq!(response.cluster_id.as_ref().unwrap().as_str(), "cluster");
        assert_eq!(response.controller_id.0, 2);
        assert_eq!(response.brokers[1].host.as_str(), "two");
        assert_eq!(response.brokers[1].rack.as_ref().unwrap().as_str(), "r2");
        assert_eq!(response.cluster_authorized_operations, i32::MIN);
        let mut curious = by_name(&["books", "missing", "a/b"]);
        curious.include_cluster_authorized_operations = true;
        curious.include_topic_authorized_operations = true;
        let response = ask(&curious, 8);
        assert_eq!(response.cluster_authorized_operations, 8096);
        // Of what is not there as well.
        let told: Vec<_> =
            response.topics.iter().map(|topic| (topic.error_code, topic.topic_authorized_operations)).collect();
        assert_eq!(told, [(0, 3576), (3, 3576), (17, 3576)]);
        let mut lost = image();
        lost.controller = Some(BrokerId(3));
        assert_eq!(controller(&lost, ME), ME);
    }

    #[tokio::test]
    async fn topics_that_find_no_leader_are_waited_for_together() {
        let members = crate::api::admin_tests::cluster_of(2).await;
        let names: Vec<String> = (0..20).map(|at| format!("t{at}")).collect();
        assert!(create(&members[1], names[..2].to_vec()).await.values().all(|&code| code.number() == 5));
        assert!(members[1].image().topic("t1").is_some_and(|topic| topic.partitions[0].state.value.leader.is_some()));
        // Nobody elects for the length of a session.
        let controller = members[1].image().controller;
        let (controls, other) = match controller == Some(members[0].id()) {
            true => (&members[0], &members[1]),
            false => (&members[1], &members[0]),
        };
        controls.abandon();
        let started = std::time::Instant::now();
        let codes = create(other, names).await;
        assert_eq!((codes.len(), codes.values().all(|&code| code.number() == 5)), (20, true));
        let took = started.elapsed();
        assert!(took >= Duration::from_millis(900), "{took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn what_would_be_created() {
        let request = by_name(&["books", "new", "a/b", "__consumer_offsets", "__transaction_state", "new"]);
        assert_eq!(to_create(&image(), &request, 3), ["new", "__consumer_offsets"]);
        assert_eq!(to_create(&image(), &request, 4), ["new", "__consumer_offsets"]);
        let mut modest = request.clone();
        modest.allow_auto_topic_creation = false;
        assert_eq!(to_create(&image(), &modest, 3), ["new", "__consumer_offsets"]);
        assert!(to_create(&image(), &modest, 4).is_empty());
        assert!(to_create(&image(), &MetadataRequest::default().with_topics(None), 4).is_empty());
        assert!(to_create(&image(), &by_id(&[9]), 12).is_empty());
    }
}
