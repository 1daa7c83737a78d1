//! Three brokers, a store, a controller, clients, and everything that can go wrong between them.

mod clients;
mod coordination;
mod failures;
mod messages;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Commit, CommitResult, Controller, CutReason, Effect, Election, FetchError,
    FetchFailure, FetchReply, FetchRequest, FetchedRecords, Fetcher, Isolation, IsrDecision, ListedOffset,
    PartitionFacts, PartitionState, Produced, PublishedEnd, Role, Versioned, WaitToken, Which, return_doubtful,
};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, EpochEnd, FlushJob, LeaderEpoch, Offset, Record, TopicPartition, WorkJob,
    batches,
};

use crate::node::{FetchId, Node, Parked, ProduceId};
use crate::plan::{EPOCH_MS, Mutant, Plan, Promise, SETTLE_MS, at};
use crate::random::Random;
use crate::store::Store;
use crate::truth::Truth;
use clients::Consumer;

const NODES: usize = 3;
const LONG_POLL_MS: i64 = 60;
const FETCH_TIMEOUT_MS: i64 = 120;
const PRODUCE_TIMEOUT_MS: i64 = 150;
const SESSION_MS: i64 = 150;
/// The controller looks at least so often.
const CONTROL_MS: i64 = 25;

enum Event {
    Tick,
    FetchArrives(FetchId),
    PollEnds(WaitToken),
    ReplyArrives(FetchId, Box<Reply>),
    FetchTimesOut(u64),
    FlushRuns(Box<FlushJob>),
    WorkRuns(Box<WorkJob>),
    ProposalArrives(Proposal),
    EndArrives(PublishedEnd),
    Decided {
        proposal: u64,
        decision: IsrDecision,
    },
    StateSeen(Versioned<PartitionState>),
    LiveSeen(BTreeMap<BrokerId, BrokerEpoch>),
    /// The node reads the store anew, as after a lost watch.
    Reads,
    SessionLostSeen,
    Registers,
    ProduceArrives(ProduceId, Acks, Vec<u8>),
    Housekeeping,
    // What concerns no running node.
    Boots,
    Starts,
    SessionEnds(BrokerEpoch),
    SessionExpires(BrokerEpoch),
    Controls,
    CommitArrives(i32, Box<Commit>),
    CommitKnown(Box<Commit>, CommitResult),
    ProducerActs,
    Answered(ProduceId, Result<Offset, ()>),
    ConsumerReads,
    Fails,
    Heals,
}

/// A change of the ISR on its way to the store.
struct Proposal {
    number: u64,
    expected: i64,
    state: PartitionState,
    joining: Option<(BrokerId, BrokerEpoch)>,
}

#[derive(Clone, Debug)]
struct Reply {
    records: Vec<u8>,
    high_watermark: Offset,
    log_start: Offset,
    diverging: Option<EpochEnd>,
    failure: Option<FetchFailure>,
}

/// What happened in a run, for the proof that runs are not empty.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Records that were acknowledged to acks=all.
    pub acknowledged: u64,
    /// Records that the consumer read.
    pub consumed: u64,
    /// Processes killed.
    pub kills: u64,
    /// Power cuts of a broker.
    pub power_cuts: u64,
    /// Elections of a whole in-sync replica.
    pub elections: u64,
    /// Elections of a replica outside of the in-sync set.
    pub unclean: u64,
    /// Elections of the doubtful member that kept most.
    pub recovered: u64,
    /// Power cuts of all brokers at once.
    pub power_cuts_of_all: u64,
    /// Records that no in-sync replica's disk held after a power cut of all.
    pub struck: u64,
    /// Growths of the in-sync set.
    pub joins: u64,
    /// Shrinks of the in-sync set.
    pub shrinks: u64,
    /// Truncations where histories parted.
    pub cuts: u64,
    /// Logs that started over at their leader's start.
    pub resets: u64,
    /// Proposals that met another version.
    pub conflicts: u64,
    /// Proposals in a higher epoch.
    pub higher_epochs: u64,
    /// Batches that a leader knew already.
    pub duplicates: u64,
    /// Sessions whose end a broker noticed.
    pub sessions_lost: u64,
    /// Events in all.
    pub events: u64,
}

impl Counts {
    /// What every run of many seeds must have seen.
    pub fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("acknowledged", self.acknowledged),
            ("consumed", self.consumed),
            ("kills", self.kills),
            ("power cuts", self.power_cuts),
            ("elections", self.elections),
            ("unclean elections", self.unclean),
            ("elections by what is left", self.recovered),
            ("power cuts of all", self.power_cuts_of_all),
            ("records that no disk held", self.struck),
            ("joins", self.joins),
            ("shrinks", self.shrinks),
            ("cuts", self.cuts),
            ("resets", self.resets),
            ("conflicts", self.conflicts),
            ("higher epochs", self.higher_epochs),
            ("duplicates", self.duplicates),
            ("sessions lost", self.sessions_lost),
        ]
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.consumed += other.consumed;
        self.kills += other.kills;
        self.power_cuts += other.power_cuts;
        self.elections += other.elections;
        self.unclean += other.unclean;
        self.recovered += other.recovered;
        self.power_cuts_of_all += other.power_cuts_of_all;
        self.struck += other.struck;
        self.joins += other.joins;
        self.shrinks += other.shrinks;
        self.cuts += other.cuts;
        self.resets += other.resets;
        self.conflicts += other.conflicts;
        self.higher_epochs += other.higher_epochs;
        self.duplicates += other.duplicates;
        self.sessions_lost += other.sessions_lost;
        self.events += other.events;
    }
}

pub(crate) struct World {
    random: Random,
    plan: Plan,
    now: i64,
    queue: BTreeMap<(i64, u64), (usize, u32, Event)>,
    scheduled: u64,
    nodes: Vec<Node>,
    store: Store,
    controller: Controller,
    truth: Truth,
    /// Pairs that do not hear each other, and until when.
    separated: BTreeMap<(usize, usize), i64>,
    fetches: u64,
    numbers: u64,
    /// The idempotent producer's batch that is not acknowledged yet, and where its next attempt goes.
    in_doubt: Option<(ProduceId, i64)>,
    sequence: u64,
    consumer: Consumer,
    /// Acknowledged records were lost, as this run may.
    struck: bool,
    healed: bool,
    pub(crate) counts: Counts,
    pub(crate) trace: Option<String>,
}

/// A run takes about a thousand.
const EVENTS_MAX: u64 = 50_000;

/// For events of the whole world.
const NOBODY: usize = usize::MAX;

impl World {
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random, mutant);
        let nodes = (1..=3).map(|id| Node::new(id, &mut random)).collect();
        let mut world = Self {
            random,
            plan,
            now: EPOCH_MS,
            queue: BTreeMap::new(),
            scheduled: 0,
            nodes,
            store: Store { controller_epoch: 1, ..Store::default() },
            controller: Controller::new(1),
            truth: Truth::default(),
            separated: BTreeMap::new(),
            fetches: 0,
            numbers: 0,
            in_doubt: None,
            sequence: 0,
            consumer: Consumer::default(),
            struck: false,
            healed: false,
            counts: Counts::default(),
            trace: traced.then(String::new),
        };
        for node in 0..NODES {
            world.schedule(0, node, Event::Boots);
        }
        world.schedule(30, NOBODY, Event::Controls);
        world.schedule(40, NOBODY, Event::ProducerActs);
        world.schedule(45, NOBODY, Event::ConsumerReads);
        world.schedule(100, NOBODY, Event::Fails);
        let heal = world.plan.heal_at - EPOCH_MS;
        world.schedule(heal, NOBODY, Event::Heals);
        world
    }

    /// Runs until the replicas are equal after healing.
    pub(crate) fn run(&mut self) {
        if self.trace.is_some() {
            let plan = format!("{:?}", self.plan);
            self.note(&plan);
        }
        while let Some(((time, _), (node, life, event))) = self.queue.pop_first() {
            assert!(time < self.plan.heal_at + SETTLE_MS, "the replicas are not equal long after all is well: {}", {
                self.situation()
            });
            self.now = self.now.max(time);
            self.counts.events += 1;
            assert!(self.counts.events < EVENTS_MAX, "something goes round in circles: {}", self.situation());
            self.handle(node, life, event);
            if self.healed && self.is_settled() {
                self.check_end();
                return;
            }
        }
        panic!("nothing is left to happen: {}", self.situation());
    }

    // Scheduling.

    fn schedule(&mut self, after: i64, node: usize, event: Event) {
        let life = self.nodes.get(node).map_or(0, |node| node.life);
        self.schedule_for(after, node, life, event);
    }

    fn schedule_for(&mut self, after: i64, node: usize, life: u32, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + after, self.scheduled), (node, life, event));
    }

    fn latency(&mut self) -> i64 {
        let slow = !self.healed && self.random.one_in(30);
        let most = if slow { self.plan.latency_ms * 10 } else { self.plan.latency_ms };
        self.random.between(1, most)
    }

    /// Whether a message gets lost; once all is well none does.
    fn lost(&mut self, from: usize, to: usize) -> bool {
        let separated = self.separated.get(&(from.min(to), from.max(to))).is_some_and(|until| *until > self.now);
        separated || (!self.healed && self.random.one_in(self.plan.lost_one_in))
    }

    fn doubled(&mut self) -> bool {
        !self.healed && self.random.one_in(self.plan.doubled_one_in)
    }

    fn note(&mut self, what: &str) {
        if let Some(trace) = &mut self.trace {
            writeln!(trace, "{:>6} {what}", self.now - EPOCH_MS).expect("a string");
        }
    }

    // Events.

    fn handle(&mut self, node: usize, life: u32, event: Event) {
        match event {
            Event::Boots => return self.boot(node),
            Event::Starts => return self.start(node, life),
            Event::SessionEnds(session) => return self.session_ends(node, session),
            // Not if it has reached the store again meanwhile.
            Event::SessionExpires(session) if self.nodes[node].cut_off_until > self.now => {
                return self.session_ends(node, session);
            }
            Event::SessionExpires(_) => return,
            Event::Controls => return self.control(),
            Event::CommitArrives(epoch, commit) => return self.commit_arrives(epoch, *commit),
            Event::CommitKnown(commit, result) => return self.commit_known(&commit, &result),
            Event::ProducerActs => return self.producer_acts(),
            Event::Answered(id, answer) => return self.answered(id, answer),
            Event::ConsumerReads => return self.consumer_reads(),
            Event::Fails => return self.fail(),
            Event::Heals => return self.heal(),
            _ => {}
        }
        if self.nodes[node].life != life || self.nodes[node].running.is_none() {
            return;
        }
        let paused_until = self.nodes[node].paused_until;
        if paused_until > self.now {
            return self.schedule_for(paused_until - self.now + 1, node, life, event);
        }
        self.happen(node, event);
        self.settle(node);
    }

    /// Something happens at a running node.
    fn happen(&mut self, node: usize, event: Event) {
        let now = at(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        match event {
            Event::Tick => {
                running.ticking = None;
                running.partition.tick(now);
            }
            Event::FetchArrives(id) => {
                let mut request = messages::request_of(&id);
                match self.plan.mutant {
                    Some(Mutant::AcknowledgesAhead) => {
                        let ahead = FetchRequest { from: request.from + 1, ..request.clone() };
                        // Past the end it is refused, as it is from a follower that made this mistake.
                        drop(running.partition.fetch(now, &ahead));
                    }
                    Some(Mutant::TrustsAnyEpoch) => {
                        request.current_leader_epoch = Some(running.partition.status().leader_epoch);
                        request.last_fetched_epoch = None;
                        messages::vouch_for(&mut request);
                    }
                    Some(Mutant::VouchesForAll) => messages::vouch_for(&mut request),
                    _ => {}
                }
                self.answer_fetch(node, id, &request, true);
            }
            Event::PollEnds(token) => {
                if let Some(parked) = running.parked.remove(&token) {
                    running.partition.unwatch_fetch(token);
                    self.answer_fetch(node, parked.from, &parked.request, false);
                }
            }
            Event::ReplyArrives(id, reply) => self.reply_arrives(node, &id, &reply),
            Event::FetchTimesOut(number) => {
                if let Some((_, plan)) = running.fetching.take_if(|fetching| fetching.0 == number) {
                    let result = Err(FetchFailure::Unreachable);
                    running.partition.fetched(now, FetchReply { plan, result });
                }
            }
            Event::FlushRuns(job) => running.partition.flushed(now, job.run()),
            Event::ProposalArrives(proposal) => self.proposal_arrives(node, proposal),
            Event::EndArrives(end) => self.end_arrives(node, end),
            Event::Decided { proposal, decision } => running.partition.isr_decided(now, proposal, decision),
            Event::StateSeen(state) => self.state_seen(node, &state),
            Event::LiveSeen(live) => running.partition.apply_live_brokers(now, &live),
            Event::Reads => self.read_store(node),
            Event::SessionLostSeen => {
                running.partition.session_lost(now);
                self.counts.sessions_lost += 1;
                let after = self.random.between(1, 30);
                self.schedule(after, node, Event::Registers);
            }
            Event::Registers => {
                if self.nodes[node].cut_off_until > self.now {
                    return self.schedule(20, node, Event::Registers);
                }
                let session = self.store.register(self.nodes[node].id);
                let running = self.nodes[node].running.as_mut().expect("it runs");
                running.session = session;
                running.partition.registered(now, session);
                self.store_changed();
                self.read_store(node);
            }
            Event::ProduceArrives(id, acks, batch) => self.produce_arrives(node, id, acks, batch),
            Event::WorkRuns(job) => {
                running.partition.finish_work(now, job.run()).expect("a disk without errors");
                self.truth.deleted(running.partition.log().start().0);
                self.begin_work(node);
            }
            Event::Housekeeping => {
                self.begin_work(node);
                self.schedule(70, node, Event::Housekeeping);
            }
            _ => unreachable!("handled before"),
        }
    }

    fn begin_work(&mut self, node: usize) {
        let after = self.random.between(1, 15);
        let Some(running) = &mut self.nodes[node].running else { return };
        let job = running.partition.begin_work(at(self.now));
        self.truth.deleted(running.partition.log().start().0);
        if let Some(job) = job {
            self.schedule(after, node, Event::WorkRuns(Box::new(job)));
        } else if self.random.one_in(4)
            && let Some(job) = running.partition.begin_checkpoint()
        {
            self.schedule(after, node, Event::FlushRuns(Box::new(job)));
        }
    }

    /// Carries out what a node's partition wants, and checks it.
    fn settle(&mut self, node: usize) {
        let now = self.now;
        loop {
            let Some(running) = &mut self.nodes[node].running else { return };
            let Some(effect) = running.partition.poll_effect() else { break };
            match effect {
                Effect::ProduceDone { token, result } => {
                    if let Some(id) = running.produces.remove(&token) {
                        self.answer_produce(node, id, result.map(|done| done.base_offset).map_err(drop));
                    }
                }
                Effect::WakeFetch { token } => {
                    if let Some(parked) = running.parked.remove(&token) {
                        self.answer_fetch(node, parked.from, &parked.request, false);
                    }
                }
                Effect::ProposeIsr { proposal, leader_epoch, expected_version, state, joining } => {
                    if state.leader_epoch > leader_epoch {
                        self.counts.higher_epochs += 1;
                    }
                    let after = self.latency();
                    let cut_off = self.nodes[node].cut_off_until > now;
                    if cut_off || (!self.healed && self.random.one_in(self.plan.lost_one_in)) {
                        let decision = IsrDecision::Retry;
                        self.schedule(after + 30, node, Event::Decided { proposal, decision });
                    } else {
                        let (number, expected) = (proposal, expected_version);
                        let proposal = Proposal { number, expected, state, joining };
                        self.schedule(after, node, Event::ProposalArrives(proposal));
                    }
                }
                Effect::PublishEnd(end) => {
                    // One that does not reach the store is sent again.
                    let lost = !self.healed && self.random.one_in(self.plan.lost_one_in);
                    let after = self.latency() + if lost { 100 } else { 0 };
                    self.schedule(after, node, Event::EndArrives(end));
                }
                Effect::Fetch(plan) => {
                    self.fetches += 1;
                    let number = self.fetches;
                    running.fetching = Some((number, plan));
                    let id = FetchId { node, life: self.nodes[node].life, number, plan };
                    self.schedule(FETCH_TIMEOUT_MS, node, Event::FetchTimesOut(number));
                    let leader = usize::try_from(plan.leader.0 - 1).expect("a broker");
                    for _ in 0..1 + u64::from(self.doubled()) {
                        let after = self.latency();
                        if !self.lost(node, leader) {
                            self.schedule(after, leader, Event::FetchArrives(id));
                        }
                    }
                }
                Effect::StopFetching => running.fetching = None,
                Effect::FlushWanted(job) => {
                    let after = self.random.between(1, 15);
                    self.schedule(after, node, Event::FlushRuns(job));
                }
                Effect::Cut(cut) => {
                    running.mirror.forget(running.partition.log().start().0);
                    match cut.why {
                        CutReason::UncleanElection => {}
                        CutReason::LeaderStartsAbove(_) | CutReason::OutsideLeader(_) => self.counts.resets += 1,
                        _ => self.counts.cuts += 1,
                    }
                    // Committed records are cut only with a reason that this run allows.
                    let lost = cut.to.0 < cut.high_watermark
                        && !matches!(cut.why, CutReason::LeaderStartsAbove(_) | CutReason::UncleanElection);
                    assert!(
                        !lost || !self.loses_nothing() || self.nodes[node].damaged || self.struck,
                        "node {} cut committed records: {cut:?}",
                        node + 1
                    );
                }
                Effect::HighWatermark(high_watermark) => {
                    // The checkpoint is written now and then, so it lags.
                    if self.random.one_in(4) {
                        self.nodes[node].checkpointed = Some(high_watermark);
                    }
                }
                Effect::Fenced { reason, .. } => panic!("node {} closed its log: {reason}", node + 1),
                other => panic!("an effect the driver does not know: {other:?}"),
            }
        }
        self.look(node);
        self.arm(node);
    }

    /// Compares what the node's log holds with the truth.
    fn look(&mut self, node: usize) {
        let loses_nothing = self.loses_nothing();
        let Some(running) = &mut self.nodes[node].running else { return };
        running.mirror.follow(&running.partition, &mut self.truth);
        let status = running.partition.status();
        self.truth.begins(&format!("node {}", node + 1), status.log_start.0);
        if loses_nothing {
            self.truth.commit(&mut running.mirror, status.high_watermark.0);
        }
        if self.trace.is_some() {
            let line = format!(
                "{} {:?} e{} {}..{} hw {} isr {:?}",
                node + 1,
                status.role,
                status.leader_epoch,
                status.log_start,
                status.log_end,
                status.high_watermark,
                status.isr.iter().map(|id| id.0).collect::<Vec<_>>()
            );
            self.note(&line);
        }
    }

    fn arm(&mut self, node: usize) {
        let Some(running) = &mut self.nodes[node].running else { return };
        let Some(deadline) = running.partition.next_deadline() else { return };
        let deadline = deadline.0.max(self.now + 1);
        if running.ticking.is_none_or(|ticking| deadline < ticking) {
            running.ticking = Some(deadline);
            self.schedule(deadline - self.now, node, Event::Tick);
        }
    }

    /// Whether this run promises that nothing acknowledged is lost.
    fn loses_nothing(&self) -> bool {
        self.plan.promise != Promise::Nothing
    }

    // The end.

    fn heal(&mut self) {
        self.healed = true;
        self.note("all is well from now on");
        self.separated.clear();
        for node in &mut self.nodes {
            node.paused_until = node.paused_until.min(self.now);
            node.cut_off_until = node.cut_off_until.min(self.now);
        }
    }

    fn is_settled(&self) -> bool {
        let Some(state) = &self.store.state else { return false };
        // Where records get lost, the producer's next one is refused for ever: it misses its predecessor.
        let in_doubt = self.in_doubt.is_some() && self.loses_nothing() && !self.struck;
        let settled = state.value.isr.len() == NODES && state.value.doubtful.is_empty() && !state.value.recovering;
        if !settled || in_doubt {
            return false;
        }
        let mut ends = BTreeSet::new();
        for node in &self.nodes {
            let Some(running) = &node.running else { return false };
            let status = running.partition.status();
            if status.role == Role::Offline || status.version != state.version {
                return false;
            }
            ends.extend([status.log_end, status.high_watermark]);
        }
        ends.len() == 1
    }

    fn check_end(&mut self) {
        let mut stored = Vec::new();
        let start = self.nodes.iter().map(|node| node.running.as_ref().expect("it runs").mirror.start).max();
        let start = start.expect("three nodes");
        for node in &mut self.nodes {
            let running = node.running.as_mut().expect("it runs");
            // Everything is read again, from the files.
            running.mirror.forget(running.partition.log().start().0);
            running.mirror.follow(&running.partition, &mut self.truth);
            stored.push((start..running.mirror.end()).map(|offset| running.mirror.at(offset)).collect::<Vec<_>>());
        }
        assert!(stored.windows(2).all(|pair| pair[0] == pair[1]), "the logs differ at the end");
        if !self.loses_nothing() {
            return;
        }
        for node in &self.nodes {
            let running = node.running.as_ref().expect("it runs");
            self.truth.holds_everything(&format!("node {}", node.id), &running.mirror);
        }
        assert!(self.truth.committed_below() <= stored[0].len() as i64 + start, "committed records are gone");
        if self.struck {
            return;
        }
        // The idempotent producer's records are there once each and in order.
        let numbers = stored[0].iter().flatten().filter(|entry| entry.payload >> 63 == 1);
        let numbers: Vec<u64> = numbers.map(|entry| entry.payload & !(1 << 63)).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "not once each and in order: {numbers:?}");
        // With retention the last ones may be gone by age, behind others.
        if start == 0 || !numbers.is_empty() {
            assert_eq!(numbers.last().map_or(0, |last| last + 1), self.sequence, "the last ones are missing");
        }
    }

    fn situation(&self) -> String {
        let mut text = format!("store {:?} live {:?} in doubt {:?}", self.store.state, self.store.live, self.in_doubt);
        for node in &self.nodes {
            let status = node.running.as_ref().map(|running| running.partition.status());
            write!(text, "\n  {}: {status:?}", node.id).expect("a string");
        }
        text
    }
}
