//! Three brokers, a store with compare-and-set, and a wire on which messages wait until they are brought on, doubled or lost.

mod end;
mod failures;
mod messages;

use std::collections::BTreeMap;

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Commit, Controller, CutReason, Effect, FetchError, FetchFailure, FetchReply,
    FetchRequest, FetchedRecords, Fetcher, Isolation, IsrDecision, Partition, PartitionFacts, PartitionState, Produced,
    PublishedEnd, ReplicaConfig, Role, Versioned,
};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, FlushJob, LeaderEpoch, LogOptions, Offset, Record, TimestampMs, TopicPartition,
    WorkJob, batches,
};

use super::node::{Answer, Asked, Node, Parked, Produce, Records};
use super::truth::Truth;
use crate::model::NOW;
pub(super) use messages::Message;
use messages::Proposal;

pub(super) const NODES: usize = 3;

const LONG_POLL_MS: i64 = 60;
const FETCH_TIMEOUT_MS: i64 = 120;
const PRODUCE_TIMEOUT_MS: i64 = 150;

/// What may be done to the cluster, and what it promises in return (`docs/replication.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Promise {
    /// Any kills; what was written survives. Nothing acknowledged is lost.
    Kills,
    /// Any power cuts, under a synced policy. Nothing acknowledged is lost.
    SyncedPowerCuts,
    /// Power cuts without syncs, two in-sync replicas for an acknowledgement, and one failure at a time. Nothing
    /// acknowledged is lost.
    PowerCuts,
    /// Any kills and power cuts, and unclean elections. Replicas end up equal.
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) promise: Promise,
    pub(super) retention: bool,
    pub(super) min_insync_replicas: usize,
    pub(super) lag_ms: i64,
    pub(super) flush_ms: i64,
}

pub(super) struct Cluster {
    pub(super) settings: Settings,
    pub(super) nodes: Vec<Node>,
    pub(super) state: Versioned<PartitionState>,
    pub(super) live: BTreeMap<BrokerId, BrokerEpoch>,
    ends: BTreeMap<BrokerId, PublishedEnd>,
    registrations: i64,
    pub(super) wire: Vec<Message>,
    pub(super) now_ms: i64,
    truth: Truth,
    numbers: u64,
    /// The idempotent producer's batch that is not acknowledged yet, and how many records it has sent.
    in_doubt: Option<Produce>,
    sequence: u64,
}

fn assignment() -> [BrokerId; NODES] {
    [1, 2, 3].map(BrokerId)
}

pub(super) fn node_of(id: BrokerId) -> usize {
    usize::try_from(id.0 - 1).expect("a broker")
}

/// Marks the numbers of the idempotent producer.
const IDEMPOTENT: u64 = 1 << 63;

impl Settings {
    pub(super) fn loses_nothing(&self) -> bool {
        self.promise != Promise::Nothing
    }

    fn replica(&self, me: BrokerId, session: BrokerEpoch) -> ReplicaConfig {
        ReplicaConfig {
            lag_time_max_ms: self.lag_ms,
            min_insync_replicas: self.min_insync_replicas,
            count_flushed: self.promise == Promise::SyncedPowerCuts,
            flush_ms: self.flush_ms,
            fetch_backoff_ms: 20,
            propose_backoff_ms: 20,
            waiting_max: 100,
            ..ReplicaConfig::new(me, session)
        }
    }

    fn log(&self) -> LogOptions {
        let mut options = LogOptions::default();
        if self.retention {
            options.segment_bytes = 300;
            options.retention_bytes = 600;
            options.file_delete_delay_ms = 50;
        }
        options
    }
}

impl Cluster {
    /// 1 leads in epoch 0, all are in sync and know it.
    pub(super) fn new(settings: Settings) -> Self {
        let state = PartitionState {
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(0),
            isr: assignment().to_vec(),
            doubtful: Vec::new(),
            controller_epoch: 1,
            recovering: false,
        };
        let mut cluster = Self {
            settings,
            nodes: (1..).take(NODES).map(Node::new).collect(),
            state: Versioned { value: state, version: 0 },
            live: BTreeMap::new(),
            ends: BTreeMap::new(),
            registrations: 0,
            wire: Vec::new(),
            now_ms: 0,
            truth: Truth::default(),
            numbers: 0,
            in_doubt: None,
            sequence: 0,
        };
        for at in 0..NODES {
            cluster.register(at);
        }
        for at in 0..NODES {
            cluster.start(at);
        }
        cluster
    }

    // The store.

    fn register(&mut self, at: usize) -> BrokerEpoch {
        let id = self.nodes[at].id;
        self.registrations += 1;
        self.ends.remove(&id);
        let session = BrokerEpoch(self.registrations);
        self.live.insert(id, session);
        session
    }

    fn write(&mut self, state: PartitionState) {
        self.state = Versioned { value: state, version: self.state.version + 1 };
        self.check_members();
    }

    fn decide(&mut self, at: usize, session: BrokerEpoch, proposal: Proposal) -> IsrDecision {
        if self.live.get(&self.nodes[at].id) != Some(&session) {
            return IsrDecision::Fenced;
        }
        if proposal.expected != self.state.version {
            return IsrDecision::Conflict(self.state.clone());
        }
        if proposal.joining.is_some_and(|(id, life)| self.live.get(&id) != Some(&life)) {
            return IsrDecision::Refused;
        }
        self.write(proposal.state);
        IsrDecision::Committed(self.state.clone())
    }

    /// A controller looks at the store, and sends what it wants to write.
    pub(super) fn control(&mut self) {
        let mut controller = Controller::new(1);
        controller.set_brokers(&self.live);
        let facts = PartitionFacts {
            assignment: assignment().to_vec(),
            state: Some(self.state.clone()),
            unclean_elections: !self.settings.loses_nothing(),
            ends: self.ends.clone(),
            reassignment: Default::default(),
        };
        controller.set_partition(TopicPartition::new("books", 0), facts);
        while let Some(commit) = controller.poll_commit() {
            self.wire.push(Message::Commit(Box::new(commit)));
        }
    }

    /// Somebody has another member lead, although the leader lives.
    pub(super) fn move_leader(&mut self, to: usize) {
        let to = self.nodes[to].id;
        let state = &self.state.value;
        let may_lead = |id: BrokerId| state.is_whole(id) && self.live.contains_key(&id);
        if state.leader.is_some_and(|leader| leader != to && may_lead(leader)) && may_lead(to) {
            let leader_epoch = LeaderEpoch(state.leader_epoch.0 + 1);
            self.write(PartitionState { leader: Some(to), leader_epoch, ..state.clone() });
        }
    }

    pub(super) fn session_ends(&mut self, at: usize) {
        if self.may_fail(at) {
            self.live.remove(&self.nodes[at].id);
            self.ends.remove(&self.nodes[at].id);
        }
    }

    /// A broker reads the store; one whose session is over first learns that, and then registers.
    pub(super) fn look(&mut self, at: usize) {
        let now = self.nodes[at].time(self.now_ms);
        let stored = self.live.get(&self.nodes[at].id).copied();
        let Some(running) = &mut self.nodes[at].running else { return };
        if stored == Some(running.session) {
            running.partition.apply_live_brokers(now, &self.live);
            running.partition.apply_state(now, &self.state, &assignment());
        } else if !running.knows_session_lost {
            running.knows_session_lost = true;
            running.partition.session_lost(now);
        } else {
            let session = self.register(at);
            let running = self.nodes[at].running.as_mut().expect("it runs");
            (running.session, running.knows_session_lost) = (session, false);
            running.partition.registered(now, session);
            running.partition.apply_live_brokers(now, &self.live);
            running.partition.apply_state(now, &self.state, &assignment());
        }
        self.settle(at);
    }

    // What a broker is given, and what it wants.

    /// Does something at a broker that runs, then what comes of it.
    fn at(&mut self, at: usize, act: impl FnOnce(&mut Partition, TimestampMs)) {
        let now = self.nodes[at].time(self.now_ms);
        let Some(running) = &mut self.nodes[at].running else { return };
        act(&mut running.partition, now);
        self.settle(at);
    }

    pub(super) fn configure(&mut self, at: usize) {
        let Some(session) = self.nodes[at].running.as_ref().map(|running| running.session) else { return };
        let (replica, log) = (self.settings.replica(self.nodes[at].id, session), self.settings.log());
        self.at(at, |partition, now| partition.configure(now, replica, log));
    }

    pub(super) fn begin_work(&mut self, at: usize) {
        let now = self.nodes[at].time(self.now_ms);
        let Some(running) = &mut self.nodes[at].running else { return };
        let job = running.partition.begin_work(now);
        self.truth.deleted_below = self.truth.deleted_below.max(running.partition.log().start().0);
        if let Some(job) = job {
            self.wire.push(Message::Work { at, life: self.nodes[at].life, job: Box::new(job) });
        } else if let Some(job) = running.partition.begin_checkpoint() {
            self.wire.push(Message::Flush { at, life: self.nodes[at].life, job: Box::new(job) });
        }
        self.settle(at);
    }

    /// Time passes: fetches that were not answered are given up, those that wait are answered, and what is due is done.
    pub(super) fn pass(&mut self, ms: i64) {
        self.now_ms += ms;
        for at in 0..NODES {
            let Some(running) = &mut self.nodes[at].running else { continue };
            let waited = |since: i64| self.now_ms - since;
            let given_up = running.fetching.take_if(|fetching| waited(fetching.0) >= FETCH_TIMEOUT_MS);
            let over = |(token, parked): (_, &Parked)| (waited(parked.since) >= LONG_POLL_MS).then_some(token);
            let polled: Vec<_> = running.parked.iter().filter_map(over).copied().collect();
            if let Some((_, plan)) = given_up {
                let result = Err(FetchFailure::Unreachable);
                self.at(at, |partition, now| partition.fetched(now, FetchReply { plan, result }));
            }
            for token in polled {
                let Some(running) = &mut self.nodes[at].running else { break };
                running.partition.unwatch_fetch(token);
                if let Some(parked) = running.parked.remove(&token) {
                    self.serve(at, parked.asked, false, 1 << 20);
                }
            }
            self.tick(at);
        }
    }

    pub(super) fn tick(&mut self, at: usize) {
        let now = self.nodes[at].time(self.now_ms);
        let Some(running) = &self.nodes[at].running else { return };
        if running.partition.next_deadline().is_some_and(|due| due <= now) {
            self.at(at, |partition, now| partition.tick(now));
        }
    }

    // Producers.

    /// Somebody sends records to a broker, with one of the levels of acknowledgement.
    pub(super) fn produce(&mut self, at: usize, count: u64, acks: Acks) {
        let produce = Produce { number: self.numbers, count, acknowledges: acks == Acks::All };
        self.numbers += count;
        self.send(at, produce, acks);
    }

    /// The idempotent producer sends its batch again that was not acknowledged, or the next one.
    pub(super) fn produce_in_sequence(&mut self, at: usize, count: u64) {
        let produce = *self.in_doubt.get_or_insert_with(|| {
            let number = IDEMPOTENT | self.sequence;
            self.sequence += count;
            Produce { number, count, acknowledges: true }
        });
        self.send(at, produce, Acks::All);
    }

    fn send(&mut self, at: usize, produce: Produce, acks: Acks) {
        let now = self.nodes[at].time(self.now_ms);
        let Some(running) = &mut self.nodes[at].running else { return };
        let mut builder = BatchBuilder::new(Codec::None);
        if produce.number & IDEMPOTENT != 0 {
            builder = builder.producer(7, 0, i32::try_from(produce.number ^ IDEMPOTENT).expect("few"));
        }
        for record in 0..produce.count {
            builder.push(Record::new(NOW, &(produce.number + record).to_be_bytes()));
        }
        let rules = running.partition.log().options().rules.clone();
        let batch = CheckedBatch::check(builder.build(), &rules, now).expect("a good batch");
        let token = running.token();
        let produced = running.partition.produce(now, &batch, acks, now.after(PRODUCE_TIMEOUT_MS), token);
        if !self.nodes[at].fs.crashed() {
            match produced {
                Ok(Produced::Done(done)) => self.acknowledged(at, produce, done.base_offset),
                Ok(Produced::Waiting) => {
                    let running = self.nodes[at].running.as_mut().expect("it runs");
                    running.produces.insert(token, produce);
                }
                Err(_) => {}
            }
        }
        self.settle(at);
    }

    fn acknowledged(&mut self, at: usize, produce: Produce, base: Offset) {
        self.in_doubt.take_if(|in_doubt| *in_doubt == produce);
        if produce.acknowledges && self.settings.loses_nothing() {
            self.check(at);
            for (offset, number) in (base.0..).zip(produce.number..produce.number + produce.count) {
                self.truth.acknowledge(offset, number);
            }
            self.check_members();
        }
    }

    /// Carries out what a broker's partition wants, and checks what it has.
    fn settle(&mut self, at: usize) {
        loop {
            if self.has_died(at) {
                return;
            }
            let life = self.nodes[at].life;
            let Some(running) = &mut self.nodes[at].running else { return };
            let Some(effect) = running.partition.poll_effect() else { break };
            match effect {
                Effect::ProduceDone { token, result } => {
                    if let (Some(produce), Ok(done)) = (running.produces.remove(&token), result) {
                        self.acknowledged(at, produce, done.base_offset);
                    }
                }
                Effect::WakeFetch { token } => {
                    if let Some(parked) = running.parked.remove(&token) {
                        self.serve(at, parked.asked, false, 1 << 20);
                    }
                }
                Effect::ProposeIsr { proposal: number, expected_version: expected, state, joining, .. } => {
                    let (session, proposal) = (running.session, Proposal { number, expected, state, joining });
                    self.wire.push(Message::Proposal { by: at, life, session, proposal });
                }
                Effect::PublishEnd(end) => self.wire.push(Message::End { by: at, end }),
                Effect::Fetch(plan) => {
                    running.fetching = Some((self.now_ms, plan));
                    let (to, asked) = (node_of(plan.leader), Asked { by: at, life, plan });
                    self.wire.push(Message::Fetch { to, life: self.nodes[to].life, asked });
                }
                Effect::StopFetching => running.fetching = None,
                Effect::FlushWanted(job) => self.wire.push(Message::Flush { at, life, job }),
                Effect::Cut(cut) => {
                    running.mirror.forget(running.partition.log().start());
                    let is_loss = cut.records > 0
                        && cut.to.0 < cut.high_watermark
                        && !matches!(cut.why, CutReason::LeaderStartsAbove(_) | CutReason::UncleanElection);
                    assert!(!is_loss || !self.settings.loses_nothing(), "committed records are cut: {cut:?}");
                }
                // The checkpoint is written now and then, so it lags.
                Effect::HighWatermark(high_watermark) if high_watermark.0 % 3 == 0 => {
                    self.nodes[at].checkpointed = Some(high_watermark);
                }
                Effect::HighWatermark(_) => {}
                Effect::Fenced { reason, .. } => panic!("broker {} closes its log: {reason}", at + 1),
                other => panic!("an effect that the driver does not know: {other:?}"),
            }
        }
        self.check(at);
    }

    // What must hold.

    fn check(&mut self, at: usize) {
        let Some(running) = &mut self.nodes[at].running else { return };
        running.mirror.follow(&running.partition, &mut self.truth);
        let status = running.partition.status();
        self.truth.begins(status.log_start);
        if !self.settings.loses_nothing() {
            return;
        }
        self.truth.commit(&mut running.mirror, status.high_watermark);
        if status.role != Role::Leader {
            return;
        }
        let request = FetchRequest {
            by: Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
            current_leader_epoch: None,
            last_fetched_epoch: None,
            from: status.log_start,
        };
        let grant = running.partition.regrant(NOW, &request).expect("a leader serves consumers");
        self.truth.told(grant.leader_epoch, grant.high_watermark);
        let leads = |node: &Node| {
            let status = node.running.as_ref().map(|running| running.partition.status());
            status.is_some_and(|other| other.role == Role::Leader && other.leader_epoch == grant.leader_epoch)
        };
        assert_eq!(self.nodes.iter().filter(|node| leads(node)).count(), 1, "two lead in epoch {}", grant.leader_epoch);
    }

    fn check_members(&self) {
        if self.settings.loses_nothing() {
            for node in self.nodes.iter().filter(|node| self.state.value.is_whole(node.id) && !node.damaged) {
                if let Some(running) = node.running.as_ref().filter(|_| !node.fs.crashed()) {
                    self.truth.is_held_by(&running.mirror);
                }
            }
        }
    }
}
