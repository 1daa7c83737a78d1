//! Groups on real brokers, asked through their handlers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_storage::{BatchBuilder, BatchView, Codec, Offset, ReadLimit, Record, TimestampMs, TopicPartition};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseGroup;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest,
    JoinGroupResponse, LeaveGroupRequest, ListGroupsRequest, MetadataRequest, OffsetCommitRequest, OffsetFetchRequest,
    ProduceRequest, SyncGroupRequest,
};
use tokio::task::JoinSet;

use super::*;
use crate::Broker;
use crate::api::admin_tests::{make, name};
use crate::api::{find_coordinator, metadata, produce};
use crate::config::BrokerConfig;
use crate::groups::OFFSETS_TOPIC;

fn config(dir: &std::path::Path) -> BrokerConfig {
    let mut config = BrokerConfig::default();
    config.listen.port = 0;
    config.data_dir = dir.to_owned();
    config.groups.initial_rebalance_delay_ms = 0;
    config.offsets_topic_partitions = 2;
    config
}

fn context(broker: &Broker, version: i16) -> RequestContext {
    let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    RequestContext { broker: Arc::clone(broker.shared()), version, client_id: name("app"), peer }
}

/// Looks for the coordinator until there is one.
async fn find(broker: &Broker) {
    for _ in 0..500 {
        let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![name("g")]);
        let response = find_coordinator::handle(&context(broker, 6), request).await;
        let found = &response.coordinators[0];
        if found.error_code == 0 {
            assert_eq!(found.node_id.0, broker.id().0);
            return;
        }
        assert_eq!(found.error_code, 15);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no coordinator");
}

async fn join(broker: &Broker, member: &str) -> JoinGroupResponse {
    loop {
        let protocol =
            JoinGroupRequestProtocol::default().with_name(name("range")).with_metadata(Bytes::from_static(b"meta"));
        let request = JoinGroupRequest::default()
            .with_group_id(name("g").into())
            .with_member_id(name(member))
            .with_session_timeout_ms(30_000)
            .with_rebalance_timeout_ms(30_000)
            .with_protocol_type(name("consumer"))
            .with_protocols(vec![protocol]);
        let response = join_group::handle(&context(broker, 9), request).await;
        // It may be loading yet.
        if response.error_code != 14 {
            return response;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn heartbeat(broker: &Broker, member: &str, generation: i32) -> i16 {
    let request = HeartbeatRequest::default()
        .with_group_id(name("g").into())
        .with_member_id(name(member))
        .with_generation_id(generation);
    heartbeat::handle(&context(broker, 4), request).await.error_code
}

async fn commit(broker: &Broker, member: &str, generation: i32, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(name("note")));
    let topic = OffsetCommitRequestTopic::default().with_name(name("books").into()).with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(name("g").into())
        .with_member_id(name(member))
        .with_generation_id_or_member_epoch(generation)
        .with_topics(vec![topic]);
    offset_commit::handle(&context(broker, 9), request).await.topics[0].partitions[0].error_code
}

/// The offset that the group has, once its coordinator is there.
async fn committed(broker: &Broker) -> Option<i64> {
    loop {
        let group = OffsetFetchRequestGroup::default().with_group_id(name("g").into()).with_topics(None);
        let request = OffsetFetchRequest::default().with_groups(vec![group]);
        let response = offset_fetch::handle(&context(broker, 9), request).await;
        let group = &response.groups[0];
        if group.error_code == 0 {
            return group.topics.first().map(|topic| topic.partitions[0].committed_offset);
        }
        assert!([14, 15, 16].contains(&group.error_code), "{group:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A group of one member that has its assignment; its id.
async fn stable(broker: &Broker) -> String {
    let first = join(broker, "").await;
    assert_eq!(first.error_code, 79);
    let id = first.member_id.to_string();
    assert!(id.starts_with("app-"), "{id}");
    let joined = join(broker, &id).await;
    assert_eq!((joined.error_code, joined.generation_id, &*joined.leader), (0, 1, &*id));
    let given = SyncGroupRequestAssignment::default()
        .with_member_id(name(&id))
        .with_assignment(Bytes::from_static(b"everything"));
    let request = SyncGroupRequest::default()
        .with_group_id(name("g").into())
        .with_member_id(name(&id))
        .with_generation_id(1)
        .with_protocol_type(Some(name("consumer")))
        .with_protocol_name(Some(name("range")))
        .with_assignments(vec![given]);
    let synced = sync_group::handle(&context(broker, 5), request).await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"everything"[..]));
    id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_outlives_its_coordinators_process() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    make(broker.cluster(), "books", 1, 1).await;
    find(&broker).await;
    let id = stable(&broker).await;
    assert_eq!(committed(&broker).await, None);
    assert_eq!(commit(&broker, &id, 1, 17).await, 0);
    assert_eq!(commit(&broker, &id, 2, 18).await, 22);
    assert_eq!(committed(&broker).await, Some(17));
    broker.kill().await;

    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    assert_eq!(committed(&broker).await, Some(17));
    assert_eq!(heartbeat(&broker, &id, 1).await, 0, "it was told its assignment, so it has it");
    let named = ["g", "none", "g", "none", "g"].map(|group| name(group).into()).to_vec();
    let request = DescribeGroupsRequest::default().with_groups(named);
    let described = describe_groups::handle(&context(&broker, 6), request).await;
    assert_eq!(described.groups.len(), 2, "each once");
    let group = &described.groups[0];
    assert_eq!((group.group_state.as_str(), group.protocol_data.as_str()), ("Stable", "range"));
    assert_eq!(&group.members[0].member_assignment[..], b"everything");
    assert_eq!(group.members[0].client_host.as_str(), "/127.0.0.1");
    assert_eq!(described.groups[1].error_code, 69);
    let listed = list_groups::handle(&context(&broker, 5), &ListGroupsRequest::default()).await;
    assert_eq!(listed.groups.iter().map(|group| group.group_id.to_string()).collect::<Vec<_>>(), ["g"]);

    let delete = || DeleteGroupsRequest::default().with_groups_names(vec![name("g").into()]);
    let refused = delete_groups::handle(&context(&broker, 2), delete()).await;
    assert_eq!(refused.results[0].error_code, 68);
    let leave = LeaveGroupRequest::default().with_group_id(name("g").into()).with_member_id(name(&id));
    assert_eq!(leave_group::handle(&context(&broker, 0), leave).await.error_code, 0);
    let deleted = delete_groups::handle(&context(&broker, 2), delete()).await;
    assert_eq!(deleted.results[0].error_code, 0);
    assert_eq!(committed(&broker).await, None);
    broker.shutdown().await.unwrap();
    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    assert_eq!(committed(&broker).await, None, "it stays deleted");
}

/// What is told of one is a thousand times as long as what names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_that_are_named_many_times_are_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    make(broker.cluster(), "books", 1, 1).await;
    find(&broker).await;
    assert_eq!(committed(&broker).await, None, "it has loaded");
    assert_eq!(commit(&broker, "", -1, 17).await, 0);
    let topics = |partitions: &[i32]| {
        let topic = OffsetFetchRequestTopics::default().with_name(topic_name("books"));
        vec![topic.clone().with_partition_indexes(partitions.to_vec()), topic.with_partition_indexes(vec![0])]
    };
    let group =
        |group: &str, topics| OffsetFetchRequestGroup::default().with_group_id(name(group).into()).with_topics(topics);
    let groups = vec![
        group("g", Some(topics(&[0, 1, 0]))),
        group("g", None),
        group("nobody's", Some(Vec::new())),
        group("g", None),
        group("g", Some(topics(&[1, 2]))),
        group("g", Some(topics(&[0]))),
    ];
    let request = OffsetFetchRequest::default().with_groups(groups);
    let told = offset_fetch::handle(&context(&broker, 9), request).await.groups;
    let offsets = |group: &OffsetFetchResponseGroup| -> Vec<(i32, i64)> {
        let partitions = group.topics.iter().flat_map(|topic| &topic.partitions);
        partitions.map(|one| (one.partition_index, one.committed_offset)).collect()
    };
    let told: Vec<_> = told.iter().map(|group| (group.group_id.as_str(), offsets(group))).collect();
    let expected =
        [("g", vec![(0, 17), (1, -1)]), ("g", vec![(0, 17)]), ("nobody's", Vec::new()), ("g", vec![(2, -1)])];
    assert_eq!(told, expected);
    for version in [1, 7] {
        let topic = OffsetFetchRequestTopic::default().with_name(topic_name("books"));
        let topics = vec![topic.clone().with_partition_indexes(vec![0, 1, 0]), topic.with_partition_indexes(vec![0])];
        let request = OffsetFetchRequest::default().with_group_id(name("g").into()).with_topics(Some(topics));
        let told = offset_fetch::handle(&context(&broker, version), request).await.topics;
        let told: Vec<_> = told[0].partitions.iter().map(|one| (one.partition_index, one.committed_offset)).collect();
        assert_eq!(told, [(0, 17), (1, -1)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_write_where_groups_are_kept_but_may_have_it_made() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(OFFSETS_TOPIC)));
    let request = MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(true);
    let found = metadata::handle(&context(&broker, 12), &request).await.topics.remove(0);
    assert_eq!((found.is_internal, found.partitions.len()), (true, 2));
    let made = broker.image().topic(OFFSETS_TOPIC).unwrap().clone();
    assert_eq!(made.config.get("cleanup.policy").map(String::as_str), Some("compact"));
    find(&broker).await;

    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(Record::keyed(TimestampMs(1_700_000_000_000), b"\0\x02\0\x01k", b"value"));
    let records = Bytes::from(batch.build());
    let produce = |client: &str, partition: i32| {
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(records.clone()));
        let topic = TopicProduceData::default().with_name(topic_name(OFFSETS_TOPIC)).with_partition_data(vec![data]);
        let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(5_000).with_topic_data(vec![topic]);
        let context = RequestContext { client_id: name(client), ..context(&broker, 9) };
        async move {
            let response = produce::handle(&context, request).await.unwrap().unwrap();
            response.responses[0].partition_responses[0].error_code
        }
    };
    assert_eq!(produce("app", 0).await, 17);
    assert_eq!(produce("app", 9).await, 3);
    assert_eq!(produce("__admin_client", 0).await, 0);
}

/// So many commits of a group each, asked by tasks that one worker has ready, and the batches of the log that they are in.
async fn batches_of_commits(commits: usize) -> usize {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.offsets_topic_partitions = 1;
    let broker = Broker::start_embedded(config).await.unwrap();
    make(broker.cluster(), "books", 1, 1).await;
    find(&broker).await;
    assert_eq!(committed(&broker).await, None, "it has loaded");
    let contexts: Vec<_> = (0..commits).map(|_| context(&broker, 9)).collect();
    let asking = tokio::spawn(async move {
        let mut asking = JoinSet::new();
        for (number, context) in contexts.into_iter().enumerate() {
            let partition = OffsetCommitRequestPartition::default().with_committed_offset(7);
            let topic =
                OffsetCommitRequestTopic::default().with_name(topic_name("books")).with_partitions(vec![partition]);
            let request = OffsetCommitRequest::default()
                .with_group_id(name(&format!("g{number}")).into())
                .with_generation_id_or_member_epoch(-1)
                .with_topics(vec![topic]);
            asking.spawn(async move { offset_commit::handle(&context, request).await });
        }
        asking
    });
    let mut asking = asking.await.unwrap();
    while let Some(answer) = asking.join_next().await {
        assert_eq!(answer.unwrap().topics[0].partitions[0].error_code, 0);
    }
    let hosted = broker.shared().partitions.get(&TopicPartition::new(OFFSETS_TOPIC, 0)).unwrap();
    let read = hosted.reader().read(Offset(0), ReadLimit::bytes(1 << 20)).unwrap();
    assert_eq!(read.next, Offset(commits as i64), "a record each");
    let (mut left, mut batches) = (&read.bytes[..], 0);
    while let Ok((_, length)) = BatchView::parse(left) {
        batches += 1;
        left = &left[length..];
    }
    batches
}

/// On one thread all of them wait before the coordinator takes the first.
#[tokio::test]
async fn commits_that_come_together_share_batches_of_the_log() {
    let batches = batches_of_commits(300).await;
    assert!(batches < 30, "{batches} batches");
}

/// A worker runs whom a task wakes before all others that are ready: the coordinator took the first commit alone, then the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn commits_of_tasks_that_are_ready_share_batches_of_the_log() {
    let batches = batches_of_commits(300).await;
    assert!(batches < 30, "{batches} batches");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_held_to_kafkas_rules_before_a_group_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.offsets_topic_partitions = 1;
    let broker = Broker::start_embedded(config).await.unwrap();
    find(&broker).await;
    assert_eq!(committed(&broker).await, None, "it has loaded");
    // Neither says what the group does: the member need not even be known.
    for (version, code) in [(4, 25), (5, 23)] {
        let request = SyncGroupRequest::default().with_group_id(name("g").into()).with_member_id(name("m"));
        let synced = sync_group::handle(&context(&broker, version), request).await;
        assert_eq!(synced.error_code, code);
    }
    let names = ["g", "", "g", "other"].map(|group| name(group).into()).to_vec();
    let request = DeleteGroupsRequest::default().with_groups_names(names);
    let deleted = delete_groups::handle(&context(&broker, 2), request).await;
    let told: Vec<_> = deleted.results.iter().map(|one| (one.group_id.to_string(), one.error_code)).collect();
    assert_eq!(told, [("g".to_owned(), 69), (String::new(), 69), ("other".to_owned(), 69)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_a_broker_that_has_no_topic_of_groups_is_told_to_look_again() {
    let dir = tempfile::tempdir().unwrap();
    let broker = Broker::start_embedded(config(dir.path())).await.unwrap();
    assert_eq!(heartbeat(&broker, "m", 1).await, 15);
    find(&broker).await;
    let topic = broker.image().topic(OFFSETS_TOPIC).unwrap().clone();
    assert_eq!(topic.partitions.len(), 2);
    assert_eq!(topic.config.get("cleanup.policy").map(String::as_str), Some("compact"));
}
