//! The members that `highwater bench groups` lets join, and what is known of their groups.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{
    FindCoordinatorRequest, GroupId, HeartbeatRequest, JoinGroupRequest, JoinGroupResponse, OffsetCommitRequest,
    OffsetFetchRequest, SyncGroupRequest,
};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::watch;

use super::{GroupsArguments, REQUEST_TIMEOUT, TOPIC};
use crate::client::{Connection, SerialConnection};
use crate::driver::name;

const SESSION_MS: i32 = 60_000;

/// How long somebody waits who is told to try again.
const RETRY: Duration = Duration::from_millis(20);

/// Codes that say what is to be done next.
const LOADING: i16 = 14;
const NOT_AVAILABLE: i16 = 15;
const ILLEGAL_GENERATION: i16 = 22;
const UNKNOWN_MEMBER: i16 = 25;
const REBALANCING: i16 = 27;
const MEMBER_ID_REQUIRED: i16 = 79;

/// What the members are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Join, and say that they live.
    Form,
    /// The leader of each group joins again.
    Rebalance,
    /// They commit.
    Commit,
    /// They end.
    End,
}

/// All groups.
#[derive(Debug)]
pub(super) struct Load {
    address: String,
    members: usize,
    partitions: u16,
    heartbeat: Duration,
    phase: watch::Sender<Phase>,
    groups: Vec<Mutex<Known>>,
    /// What was acknowledged last, of each partition.
    acknowledged: Vec<AtomicI64>,
    /// So that a run at a broker of old finds no groups of the run before.
    run: u32,
}

/// What is known of one group.
#[derive(Debug, Default)]
struct Known {
    /// How many members have an assignment of each generation.
    assigned: BTreeMap<i32, usize>,
    /// How often all of them had one of the same.
    settled: usize,
}

impl Load {
    pub(super) fn new(arguments: &GroupsArguments, address: &str) -> Self {
        let groups = usize::from(arguments.groups);
        Self {
            address: address.to_owned(),
            members: arguments.members.into(),
            partitions: arguments.partitions,
            heartbeat: Duration::from_millis(arguments.heartbeat_ms.into()),
            phase: watch::Sender::new(Phase::Form),
            groups: (0..groups).map(|_| Mutex::default()).collect(),
            acknowledged: (0..groups * usize::from(arguments.partitions)).map(|_| AtomicI64::new(-1)).collect(),
            run: std::process::id(),
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(super) fn settled(&self, times: usize) -> bool {
        self.groups.iter().all(|group| known(group).settled >= times)
    }

    pub(super) fn missing(&self, times: usize) -> String {
        let missing = self.groups.iter().filter(|group| known(group).settled < times).count();
        format!("{missing} groups are not")
    }

    /// Waits until all groups have a coordinator that has loaded.
    pub(super) async fn wait_for_coordinator(&self, connection: &Connection) -> anyhow::Result<()> {
        let until = Instant::now() + REQUEST_TIMEOUT;
        for group in 0..self.groups.len() {
            loop {
                let key = self.group_id(group);
                let find = FindCoordinatorRequest::default().with_coordinator_keys(vec![key.clone()]);
                let found = connection.send(&find).await?.coordinators.first().map_or(-1, |found| found.error_code);
                let asked = OffsetFetchRequestGroup::default().with_group_id(GroupId(key)).with_topics(None);
                let fetch = OffsetFetchRequest::default().with_groups(vec![asked]);
                let loaded = connection.send(&fetch).await?.groups.first().map_or(-1, |group| group.error_code);
                if (found, loaded) == (0, 0) {
                    break;
                }
                ensure!(Instant::now() < until, "no coordinator: {found}, {loaded}");
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Whether each partition has the offset that was acknowledged last.
    pub(super) async fn check(&self, connection: &Connection) -> anyhow::Result<()> {
        for group in 0..self.groups.len() {
            let id = GroupId(self.group_id(group));
            let asked = OffsetFetchRequestGroup::default().with_group_id(id).with_topics(None);
            let fetch = OffsetFetchRequest::default().with_groups(vec![asked]);
            let answer = connection.send(&fetch).await?.groups.pop().context("no group in the answer")?;
            ensure!(answer.error_code == 0, "offsets of group {group} give {}", answer.error_code);
            for offset in answer.topics.iter().flat_map(|topic| &topic.partitions) {
                let partition = usize::try_from(offset.partition_index)?;
                let told = self.acknowledged.get(partition).map_or(-1, |told| told.load(Ordering::Relaxed));
                let found = offset.committed_offset;
                ensure!(found == told, "partition {partition}: {told} was acknowledged, {found} is there");
            }
        }
        Ok(())
    }

    fn group_id(&self, group: usize) -> StrBytes {
        StrBytes::from_string(format!("bench-{}-{group}", self.run))
    }

    fn note_assigned(&self, group: u16, generation: i32) {
        let Some(group) = self.groups.get(usize::from(group)) else { return };
        let mut known = known(group);
        let assigned = known.assigned.entry(generation).or_default();
        *assigned += 1;
        if *assigned == self.members {
            known.settled += 1;
        }
    }
}

fn known(group: &Mutex<Known>) -> std::sync::MutexGuard<'_, Known> {
    group.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One member, as long as there is something to do; how many microseconds each of its commits took.
pub(super) async fn run(load: std::sync::Arc<Load>, group: u16, number: u16) -> anyhow::Result<Vec<u32>> {
    let connection = SerialConnection::connect(&load.address, "highwater-bench", REQUEST_TIMEOUT).await?;
    let mut phase = load.phase.subscribe();
    let mut member = Member { load: &load, group, connection, id: StrBytes::default(), generation: -1, leads: false };
    let mut heard = Phase::Form;
    let mut took = Vec::new();
    let mut commits = None;
    // Each member has partitions of its own to commit, so that what was acknowledged last is known.
    let partition =
        (number < load.partitions).then(|| i32::from(group) * i32::from(load.partitions) + i32::from(number));
    member.join().await?;
    loop {
        let now = *phase.borrow_and_update();
        match now {
            Phase::End => return Ok(took),
            Phase::Commit => {
                let Some(partition) = partition else {
                    phase.changed().await?;
                    continue;
                };
                let commit = commits.get_or_insert_with(|| member.commit_of(partition));
                let since = Instant::now();
                member.commit(commit, i64::try_from(took.len())?).await?;
                took.push(u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
            Phase::Rebalance if heard < now && member.leads => {
                heard = now;
                member.join().await?;
            }
            Phase::Form | Phase::Rebalance => {
                heard = now;
                tokio::select! {
                    changed = phase.changed() => changed?,
                    () = tokio::time::sleep(load.heartbeat) => member.say_alive().await?,
                }
            }
        }
    }
}

struct Member<'a> {
    load: &'a Load,
    group: u16,
    connection: SerialConnection,
    id: StrBytes,
    generation: i32,
    leads: bool,
}

impl Member<'_> {
    fn group_id(&self) -> GroupId {
        GroupId(self.load.group_id(self.group.into()))
    }

    /// Until it has an assignment.
    async fn join(&mut self) -> anyhow::Result<()> {
        loop {
            let protocol = JoinGroupRequestProtocol::default()
                .with_name(StrBytes::from_static_str("range"))
                .with_metadata(subscription());
            let request = JoinGroupRequest::default()
                .with_group_id(self.group_id())
                .with_session_timeout_ms(SESSION_MS)
                .with_rebalance_timeout_ms(SESSION_MS)
                .with_member_id(self.id.clone())
                .with_protocol_type(StrBytes::from_static_str("consumer"))
                .with_protocols(vec![protocol]);
            let joined = self.connection.send(&request).await?;
            match joined.error_code {
                0 => {}
                MEMBER_ID_REQUIRED => {
                    self.id = joined.member_id;
                    continue;
                }
                code => {
                    self.refused("JoinGroup", code).await?;
                    continue;
                }
            }
            self.id = joined.member_id.clone();
            self.generation = joined.generation_id;
            self.leads = joined.leader == joined.member_id;
            match self.sync(&joined).await? {
                0 => {
                    self.load.note_assigned(self.group, self.generation);
                    return Ok(());
                }
                code => self.refused("SyncGroup", code).await?,
            }
        }
    }

    async fn sync(&mut self, joined: &JoinGroupResponse) -> anyhow::Result<i16> {
        let given = (0..).zip(&joined.members).map(|(at, member)| {
            SyncGroupRequestAssignment::default()
                .with_member_id(member.member_id.clone())
                .with_assignment(self.assignment(at, joined.members.len()))
        });
        let request = SyncGroupRequest::default()
            .with_group_id(self.group_id())
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation)
            .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
            .with_protocol_name(Some(StrBytes::from_static_str("range")))
            .with_assignments(given.collect());
        Ok(self.connection.send(&request).await?.error_code)
    }

    /// Every so-manieth partition of the group, as consumers write it.
    fn assignment(&self, at: usize, members: usize) -> Bytes {
        let first = i32::from(self.group) * i32::from(self.load.partitions);
        let mine = (0..i32::from(self.load.partitions)).skip(at).step_by(members).map(|partition| first + partition);
        let mine: Vec<u8> = mine.flat_map(i32::to_be_bytes).collect();
        let count = u32::try_from(mine.len() / 4).unwrap_or_default().to_be_bytes();
        [&[0, 0, 0, 0, 0, 1][..], &topic_name(), &count, &mine, &[0xff; 4]].concat().into()
    }

    async fn say_alive(&mut self) -> anyhow::Result<()> {
        let request = HeartbeatRequest::default()
            .with_group_id(self.group_id())
            .with_member_id(self.id.clone())
            .with_generation_id(self.generation);
        match self.connection.send(&request).await?.error_code {
            0 => Ok(()),
            code => {
                self.refused("Heartbeat", code).await?;
                self.join().await
            }
        }
    }

    /// The commit of one partition, for all offsets.
    fn commit_of(&self, partition: i32) -> OffsetCommitRequest {
        let one = OffsetCommitRequestPartition::default().with_partition_index(partition);
        let topic = OffsetCommitRequestTopic::default().with_name(name(TOPIC)).with_partitions(vec![one]);
        OffsetCommitRequest::default()
            .with_group_id(self.group_id())
            .with_member_id(self.id.clone())
            .with_generation_id_or_member_epoch(self.generation)
            .with_topics(vec![topic])
    }

    async fn commit(&mut self, request: &mut OffsetCommitRequest, offset: i64) -> anyhow::Result<()> {
        let of = request.topics.first_mut().and_then(|topic| topic.partitions.first_mut());
        let of = of.context("a commit of nothing")?;
        of.committed_offset = offset;
        let partition = of.partition_index;
        let version = self.connection.version_up_to::<OffsetCommitRequest>(9)?;
        let answer = self.connection.send_version(request, version).await?;
        let code = answer.topics.first().and_then(|topic| topic.partitions.first()).map_or(-1, |one| one.error_code);
        ensure!(code == 0, "a commit gives {code}");
        let acknowledged = usize::try_from(partition).ok().and_then(|at| self.load.acknowledged.get(at));
        acknowledged.context("no such partition")?.store(offset, Ordering::Relaxed);
        Ok(())
    }

    /// What is to be done before it tries again.
    async fn refused(&mut self, what: &str, code: i16) -> anyhow::Result<()> {
        match code {
            REBALANCING => {}
            UNKNOWN_MEMBER | ILLEGAL_GENERATION => self.id = StrBytes::default(),
            LOADING | NOT_AVAILABLE => tokio::time::sleep(RETRY).await,
            code => bail!("{what} gives {code}"),
        }
        Ok(())
    }
}

fn topic_name() -> Vec<u8> {
    let length = u16::try_from(TOPIC.len()).unwrap_or_default().to_be_bytes();
    [&length[..], TOPIC.as_bytes()].concat()
}

/// What a consumer of the topic says of itself.
fn subscription() -> Bytes {
    [&[0, 0, 0, 0, 0, 1][..], &topic_name(), &[0xff; 4]].concat().into()
}
