//! A consumer group in a cluster of three, whose coordinator is killed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use highwater_broker::client::Connection;
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::BrokerId;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest,
    SyncGroupRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use tokio::task::JoinSet;

use crate::support::{TIMEOUT, TOPIC, create_topic, until};

async fn start(dir: &Path) -> Cluster {
    let options = ClusterOptions::new(3, dir).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.replica_fetch_wait_max_ms = 100;
        config.offsets_topic_partitions = 1;
        config.groups.initial_rebalance_delay_ms = 0;
    });
    Cluster::start(options).await.expect("the cluster starts")
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn group() -> GroupId {
    GroupId(text("readers"))
}

/// A member, and where it takes its coordinator to be.
#[derive(Debug)]
struct Member {
    brokers: Vec<String>,
    coordinator: Option<(BrokerId, Connection)>,
    id: StrBytes,
}

impl Member {
    /// Whom every broker that answers names, once it can be connected to.
    async fn coordinator(&mut self) -> Option<Connection> {
        if let Some((_, connection)) = &self.coordinator {
            return Some(connection.clone());
        }
        for address in &self.brokers {
            let Ok(connection) = Connection::connect(address, "test", TIMEOUT).await else { continue };
            let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![group().0]);
            let Ok(found) = connection.send(&request).await else { continue };
            let found = found.coordinators.first().filter(|found| found.error_code == 0)?;
            let address = format!("{}:{}", found.host, found.port);
            let connection = Connection::connect(&address, "test", TIMEOUT).await.ok()?;
            self.coordinator = Some((BrokerId(found.node_id.0), connection.clone()));
            return Some(connection);
        }
        None
    }

    /// `None` if it is to be tried again, after another look for the coordinator.
    fn settled(&mut self, code: Option<i16>) -> Option<i16> {
        match code {
            None | Some(15 | 16) => {
                self.coordinator = None;
                None
            }
            Some(14) => None,
            code => code,
        }
    }

    async fn join(&mut self) -> i32 {
        until("the member being let in", async || {
            let protocol = JoinGroupRequestProtocol::default()
                .with_name(text("range"))
                .with_metadata(Bytes::from_static(b"\0\0\0\0\0\0"));
            let request = JoinGroupRequest::default()
                .with_group_id(group())
                .with_session_timeout_ms(30_000)
                .with_rebalance_timeout_ms(30_000)
                .with_member_id(self.id.clone())
                .with_protocol_type(text("consumer"))
                .with_protocols(vec![protocol]);
            let joined = self.coordinator().await?.send(&request).await.ok();
            let code = self.settled(joined.as_ref().map(|joined| joined.error_code))?;
            let joined = joined?;
            self.id = joined.member_id;
            (code == 0).then_some(joined.generation_id)
        })
        .await
    }

    async fn sync(&mut self, generation: i32) {
        let given = SyncGroupRequestAssignment::default()
            .with_member_id(self.id.clone())
            .with_assignment(Bytes::from_static(b"everything"));
        let request = SyncGroupRequest::default()
            .with_group_id(group())
            .with_member_id(self.id.clone())
            .with_generation_id(generation)
            .with_protocol_type(Some(text("consumer")))
            .with_protocol_name(Some(text("range")))
            .with_assignments(vec![given]);
        let connection = self.coordinator().await.expect("there is one");
        let synced = connection.send(&request).await.expect("an answer");
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, &b"everything"[..]));
    }

    /// Once it is acknowledged.
    async fn commit(&mut self, generation: i32, offset: i64) {
        until("a commit", async || {
            let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
            let topic =
                OffsetCommitRequestTopic::default().with_name(TopicName(text(TOPIC))).with_partitions(vec![partition]);
            let request = OffsetCommitRequest::default()
                .with_group_id(group())
                .with_member_id(self.id.clone())
                .with_generation_id_or_member_epoch(generation)
                .with_topics(vec![topic]);
            let done = self.coordinator().await?.send(&request).await.ok();
            let code = self.settled(done.map(|done| done.topics[0].partitions[0].error_code))?;
            assert_eq!(code, 0, "commit of {offset}");
            Some(())
        })
        .await;
    }

    async fn heartbeat(&mut self, generation: i32) -> i16 {
        until("a heartbeat", async || {
            let request = HeartbeatRequest::default()
                .with_group_id(group())
                .with_member_id(self.id.clone())
                .with_generation_id(generation);
            let done = self.coordinator().await?.send(&request).await.ok();
            self.settled(done.map(|done| done.error_code))
        })
        .await
    }

    async fn committed(&mut self) -> i64 {
        until("the offset", async || {
            let asked = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
            let request = OffsetFetchRequest::default().with_groups(vec![asked]);
            let found = self.coordinator().await?.send(&request).await.ok();
            let code = self.settled(found.as_ref().map(|found| found.groups[0].error_code))?;
            assert_eq!(code, 0);
            Some(found?.groups[0].topics[0].partitions[0].committed_offset)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_go_on_in_their_generation_when_their_coordinator_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(dir.path()).await;
    create_topic(&cluster, 1, 3, &[]).await;
    let mut member = Member { brokers: cluster.bootstrap(), coordinator: None, id: StrBytes::default() };
    let generation = member.join().await;
    member.sync(generation).await;
    let mut offset = 0;
    for _ in 0..2 {
        for _ in 0..10 {
            offset += 1;
            member.commit(generation, offset).await;
        }
        let (killed, _) = member.coordinator.take().expect("it has committed there");
        assert!(cluster.kill(killed).await);
        assert_eq!(member.committed().await, offset, "what was acknowledged is there");
        assert_eq!(member.heartbeat(generation).await, 0, "nobody has to join again");
        let (now, _) = member.coordinator.as_ref().expect("it has answered");
        assert_ne!(*now, killed);
        cluster.restart(killed).await.expect("it comes back");
    }
    member.commit(generation, offset + 1).await;
    assert_eq!(member.committed().await, offset + 1);
}

/// The code that a commit of whoever is no member is answered with.
async fn commit_of(connection: Connection, group: GroupId, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(text(&"m".repeat(300))));
    let topic = OffsetCommitRequestTopic::default().with_name(TopicName(text(TOPIC))).with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group)
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let done = connection.send(&request).await.expect("an answer");
    done.topics[0].partitions[0].error_code
}

/// Commits of as many groups at the same time, on a connection each; their codes.
async fn commits(at: &str, groups: usize, offset: i64) -> JoinSet<i16> {
    let mut all = JoinSet::new();
    for number in 0..groups {
        let connection = Connection::connect(at, "test", TIMEOUT).await.expect("connects");
        all.spawn(commit_of(connection, GroupId(text(&format!("g{number}"))), offset));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_for_others_fit_into_a_segment_and_hear_in_time_that_it_takes_long() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(3, dir.path()).configure(|config| {
        config.session_timeout_ms = 2_000;
        config.heartbeat_interval_ms = 200;
        config.replica_fetch_wait_max_ms = 100;
        config.replica_lag_time_max_ms = 30_000;
        config.offsets_topic_partitions = 1;
        config.offsets_topic_segment_bytes = 8_000;
        config.offsets_commit_timeout_ms = 1_500;
    });
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 3, &[]).await;
    let mut member = Member { brokers: cluster.bootstrap(), coordinator: None, id: StrBytes::default() };
    member.coordinator().await.expect("somebody answers");
    let leader = until("the coordinator serving", async || {
        let connection = member.coordinator().await?;
        if commit_of(connection, group(), 0).await != 0 {
            member.coordinator = None;
        }
        member.coordinator.as_ref().map(|(leader, _)| *leader)
    })
    .await;
    let address = cluster.address(leader).expect("an address").to_string();
    let pause = |pause| {
        for id in cluster.ids().into_iter().filter(|id| *id != leader) {
            cluster.pause_fetching(id, pause);
        }
    };

    pause(true);
    let waiting = commits(&address, 40, 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    pause(false);
    assert_eq!(waiting.join_all().await, [0; 40]);

    pause(true);
    assert_eq!(commits(&address, 6, 2).await.join_all().await, [15; 6], "also those that are not in the log yet");
    pause(false);
    assert_eq!(commits(&address, 6, 3).await.join_all().await, [0; 6], "it goes on");
    cluster.shutdown().await.expect("a clean stop");
}

/// A topic may have been deleted while nobody coordinated its offsets, or somebody who has gone. Here the log has offsets of one
/// that never was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_topic_that_is_not_there_go_when_a_coordinator_loads() {
    use highwater_groups::records::{OffsetValue, OffsetsKey};
    use kafka_protocol::messages::ProduceRequest;
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(1, dir.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.offsets_topic_partitions = 1;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 1, &[]).await;
    let mut member = Member { brokers: cluster.bootstrap(), coordinator: None, id: StrBytes::default() };
    until("a coordinator", async || member.coordinator().await).await;
    let mut builder = highwater_storage::BatchBuilder::new(highwater_storage::Codec::None);
    for (topic, offset) in [(TOPIC, 7), ("gone", 8)] {
        let key = OffsetsKey::Offset { group: "readers".into(), topic: topic.into(), partition: 0 };
        let value = OffsetValue {
            offset,
            leader_epoch: -1,
            metadata: String::new(),
            commit_timestamp_ms: crate::support::now().0,
            expire_timestamp_ms: -1,
        };
        let (key, value) = (key.encode(), value.encode());
        builder.push(highwater_storage::Record::keyed(crate::support::now(), &key, &value));
    }
    let data = PartitionProduceData::default().with_records(Some(builder.build().into()));
    let topic =
        TopicProduceData::default().with_name(TopicName(text("__consumer_offsets"))).with_partition_data(vec![data]);
    let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic]);
    let address = cluster.address(BrokerId(1)).expect("broker 1").to_string();
    let repairs = Connection::connect(&address, "__admin_client", TIMEOUT).await.expect("connects");
    // A busy machine may have lost its sessions meanwhile, and leads again a moment later.
    until("the records being written", async || {
        let written = repairs.send_version(&request, 9).await.expect("an answer");
        let code = written.responses[0].partition_responses[0].error_code;
        assert!([0, 6].contains(&code), "{code}");
        (code == 0).then_some(())
    })
    .await;
    for restart in 0..2 {
        assert!(cluster.kill(BrokerId(1)).await);
        cluster.restart(BrokerId(1)).await.expect("it starts");
        member.brokers = cluster.bootstrap();
        member.coordinator = None;
        until("its offsets going", async || {
            let asked = OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(None);
            let request = OffsetFetchRequest::default().with_groups(vec![asked]);
            let found = member.coordinator().await?.send(&request).await.ok();
            member.settled(found.as_ref().map(|found| found.groups[0].error_code))?;
            let topics: Vec<_> = found?.groups[0].topics.iter().map(|topic| topic.name.to_string()).collect();
            assert!(topics.contains(&TOPIC.to_owned()), "{topics:?} after {restart} more starts");
            (topics.len() == 1).then_some(())
        })
        .await;
    }
    assert_eq!(member.committed().await, 7);
    cluster.shutdown().await.expect("it stops");
}
