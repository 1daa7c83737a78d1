//! Three brokers, a store, a controller, clients, and everything that can go wrong between them.

mod clients;
mod coordination;
mod end;
mod failures;
mod ledger;
mod messages;
mod rot;
mod story;
mod topic;

use std::collections::{BTreeMap, BTreeSet};

use highwater_checker::{Client, Event as Seen, Payload};
use highwater_replication::{
    Acks, BrokerEpoch, BrokerId, Commit, CommitResult, Completion, Controller, CutReason, Effect, Election, FetchError,
    FetchFailure, FetchReply, FetchRequest, FetchedRecords, Fetcher, Isolation, IsrDecision, ListedOffset,
    PartitionFacts, PartitionState, Produced, PublishedEnd, ReplicaConfig, Role, Versioned, WaitToken, Which,
    return_doubtful,
};
use highwater_storage::fs::SimFs;
use highwater_storage::sim::{Network, Queue, after_power_cut};
use highwater_storage::{
    BatchBuilder, CheckedBatch, Codec, EpochEnd, FlushJob, LeaderEpoch, Offset, ReadLimit, Record, TimestampMs,
    TopicPartition, WorkJob, batches,
};

use crate::cell::Cell;
use crate::counts::Counts;
use crate::fault::{BROKERS, CLIENTS, Fault, PLACES, Place, STORE, What, Whom, draw, target};
use crate::node::{FetchId, Node, Parked, ProduceId};
use crate::plan::{EPOCH_MS, Mutant, Plan, Promise, SETTLE_MS};
use crate::random::{Purpose, Random};
use crate::store::{Image, Store};
use crate::trace::Trace;
use crate::truth::Truth;
use clients::Consumer;
use coordination::Term;
pub(crate) use coordination::state_text;
use ledger::Ledger;
use rot::Loan;

const LONG_POLL_MS: i64 = 60;
const FETCH_TIMEOUT_MS: i64 = 120;
const PRODUCE_TIMEOUT_MS: i64 = 150;
const SESSION_MS: i64 = 150;
/// The controller looks at least so often.
const CONTROL_MS: i64 = 25;

/// Notes what happens, if anybody wants to know: at a place, or everywhere.
macro_rules! note {
    ($world:expr, $place:expr, $($text:tt)+) => {
        if let Some(trace) = &mut $world.trace {
            trace.at($world.now - EPOCH_MS, $place, format!($($text)+));
        }
    };
}
pub(crate) use note;

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
    ImageSeen(Box<Image>),
    LiveSeen(BTreeMap<BrokerId, BrokerEpoch>),
    /// The node reads the store anew, as after a lost watch.
    Reads,
    SessionLostSeen,
    Registers,
    /// The topic's settings reach it.
    Configured,
    /// It tells the store that its log has failed.
    FailureArrives,
    ProduceArrives(ProduceId, Acks, Vec<u8>),
    Housekeeping,
    /// It is about to stop, and has said so at a time.
    Leaves(i64),
    /// Another replica asks for what has rotted there.
    LoanAsked(Box<Loan>),
    LoanArrives(Box<Loan>, Vec<u8>),
    // What concerns no running node.
    Boots,
    Starts,
    /// Somebody starts a broker again whose log has failed.
    Restarts(u32),
    DiskHeals,
    SessionEnds(BrokerEpoch),
    SessionExpires(BrokerEpoch),
    Controls,
    CommitArrives(Term, Box<Commit>),
    CommitKnown(Term, Box<Commit>, CommitResult),
    CompletionArrives(Term, Box<Completion>),
    CompletionKnown(Term, Box<Completion>, CommitResult),
    ProducerActs,
    Answered(usize, ProduceId, Result<Offset, ()>),
    ConsumerReads,
    Fails(Fault),
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

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) faults: Vec<Fault>,
    /// Streams of chance: of the producers, the consumer, the controller. Brokers and links have their own.
    producers: Random,
    consumers: Random,
    control: Random,
    former_lives: Random,
    now: i64,
    queue: Queue<(usize, u32, Event)>,
    nodes: Vec<Node>,
    store: Store,
    controller: Controller,
    truth: Truth,
    network: Network,
    /// One in so many replies with records is damaged on the way, until then.
    garbling: (u64, i64),
    store_down_until: i64,
    fetches: u64,
    numbers: u64,
    /// The idempotent producer's batch that is not acknowledged yet, and where its next attempt goes.
    in_doubt: Option<(ProduceId, i64)>,
    sequence: u64,
    /// The first one of the present topic.
    first_sequence: u64,
    consumer: Consumer,
    /// What clients did and saw.
    history: Vec<Seen>,
    /// Acknowledged records were lost, as this run may.
    struck: bool,
    /// What may be lost, if this run is one of a cell.
    pub(crate) ledger: Option<Ledger>,
    healed: bool,
    pub(crate) counts: Counts,
    /// Differs where anything that matters went another way.
    pub(crate) fingerprint: u64,
    pub(crate) trace: Option<Trace>,
}

/// A run has at least so many, and takes about 1,500.
pub(crate) const EVENTS_MIN: u64 = 1_000;
const EVENTS_MAX: u64 = 50_000;

/// For events of the whole world.
const NOBODY: usize = usize::MAX;

impl World {
    /// A cluster before its first event, with the faults that its seed draws or with these.
    pub(crate) fn new(seed: u64, mutant: Option<Mutant>, given: Option<Vec<Fault>>, traced: bool) -> Self {
        let plan = Plan::draw(&mut Purpose::Plan.of(seed), mutant);
        let faults = given.unwrap_or_else(|| draw(&plan, &mut Purpose::Faults.of(seed)));
        Self::planned(seed, plan, faults, traced)
    }

    /// A cluster for a cell of the table "what may be lost when".
    pub(crate) fn of_cell(seed: u64, cell: Cell, traced: bool) -> Self {
        let plan = cell.plan(&mut Purpose::Plan.of(seed));
        let faults = cell.faults(&plan, &mut Purpose::Faults.of(seed));
        Self { ledger: Some(Ledger::new(cell)), ..Self::planned(seed, plan, faults, traced) }
    }

    fn planned(seed: u64, plan: Plan, faults: Vec<Fault>, traced: bool) -> Self {
        let mut world = Self {
            producers: Purpose::Producers.of(seed),
            consumers: Purpose::Consumer.of(seed),
            control: Purpose::Controller.of(seed),
            former_lives: Purpose::FormerLives.of(seed),
            now: EPOCH_MS,
            queue: Queue::new(EPOCH_MS),
            nodes: (0..BROKERS).map(|node| Node::new(seed, node)).collect(),
            store: Store::new(target(0)),
            controller: Controller::new(1),
            truth: Truth::default(),
            network: Network::new(seed, PLACES, plan.latency_ms),
            garbling: (1, 0),
            store_down_until: 0,
            fetches: 0,
            numbers: 0,
            in_doubt: None,
            sequence: 0,
            first_sequence: 0,
            consumer: Consumer::default(),
            history: Vec::new(),
            struck: false,
            ledger: None,
            healed: false,
            counts: Counts::default(),
            fingerprint: seed,
            trace: traced.then(Trace::default),
            plan,
            faults,
        };
        for node in 0..BROKERS {
            world.schedule(0, node, Event::Boots);
        }
        world.schedule(30, NOBODY, Event::Controls);
        world.schedule(40, NOBODY, Event::ProducerActs);
        world.schedule(45, NOBODY, Event::ConsumerReads);
        for fault in world.faults.clone() {
            world.schedule(fault.at_ms, NOBODY, Event::Fails(fault));
        }
        world.schedule(world.plan.heals_ms, NOBODY, Event::Heals);
        world
    }

    /// Runs until the replicas are equal after healing.
    pub(crate) fn run(&mut self) {
        let plan = format!("{:?}", self.plan);
        self.everywhere(&plan);
        let latest = EPOCH_MS + self.plan.heals_ms + SETTLE_MS;
        while let Some((node, life, event)) = self.queue.pop() {
            self.now = self.queue.now();
            assert!(self.now < latest, "the replicas are not equal long after all is well: {}", self.situation());
            self.counts.events += 1;
            assert!(self.counts.events < EVENTS_MAX, "something goes round in circles: {}", self.situation());
            self.handle(node, life, event);
            if self.healed && self.counts.events >= EVENTS_MIN && self.is_settled() {
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
        self.queue.schedule(after, (node, life, event));
    }

    fn latency(&mut self, from: Place, to: Place) -> i64 {
        self.network.latency(self.now, from, to)
    }

    /// Whether a message gets lost; once all is well none does.
    fn lost(&mut self, from: Place, to: Place) -> bool {
        self.network.loses(self.now, from, to)
    }

    fn doubled(&mut self, from: Place, to: Place) -> bool {
        self.network.doubles(self.now, from, to)
    }

    /// How long a broker's disk takes for a job.
    fn disk_time(&mut self, node: usize) -> i64 {
        let broker = &mut self.nodes[node];
        let time = broker.random.between(1, 15);
        if broker.slow_until > self.now { time * 50 } else { time }
    }

    fn everywhere(&mut self, what: &str) {
        if let Some(trace) = &mut self.trace {
            trace.everywhere(self.now - EPOCH_MS, what.to_owned());
        }
    }

    // Events.

    fn handle(&mut self, node: usize, life: u32, event: Event) {
        match event {
            Event::Boots => return self.boot(node),
            Event::Starts => return self.start(node, life),
            // Who is registered is looked at by the store, once it is up again and has waited for a sign of life.
            Event::SessionEnds(_) | Event::SessionExpires(_) if self.store_down_until > self.now => {
                return self.schedule_for(self.store_down_until - self.now + SESSION_MS, node, life, event);
            }
            Event::SessionEnds(session) => return self.session_ends(node, session),
            // Not if it has reached the store again meanwhile.
            Event::SessionExpires(session) if self.nodes[node].cut_off_until > self.now => {
                return self.session_ends(node, session);
            }
            Event::SessionExpires(_) => return,
            Event::Controls => return self.control(),
            Event::CommitArrives(term, commit) => return self.commit_arrives(term, *commit),
            Event::CommitKnown(term, commit, result) => return self.commit_known(term, &commit, &result),
            Event::CompletionArrives(term, done) => return self.completion_arrives(term, *done),
            Event::CompletionKnown(term, done, result) => return self.completion_known(term, &done, &result),
            Event::ProducerActs => return self.producer_acts(),
            Event::Answered(by, id, answer) => return self.answered(by, id, answer),
            Event::ConsumerReads => return self.consumer_reads(),
            Event::Fails(fault) => return self.fail(fault),
            Event::Restarts(life) => return self.restart(node, life),
            Event::DiskHeals => return self.nodes[node].heal_disk(),
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
        self.tell(node, &event);
        self.nodes[node].fs.set_now(self.time(node));
        self.happen(node, event);
        if self.has_crashed(node) {
            return;
        }
        self.settle(node);
        self.has_crashed(node);
    }

    fn time(&self, node: usize) -> TimestampMs {
        self.nodes[node].time(self.now)
    }

    /// Something happens at a running node.
    fn happen(&mut self, node: usize, event: Event) {
        let (now, id) = (self.time(node), self.nodes[node].id);
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
            Event::ImageSeen(image) => self.image_seen(node, &image),
            Event::LiveSeen(live) => running.partition.apply_live_brokers(now, &live),
            Event::Reads => self.read_store(node),
            Event::SessionLostSeen => {
                running.partition.session_lost(now);
                self.counts.sessions_lost += 1;
                let after = self.nodes[node].random.between(1, 30);
                self.schedule(after, node, Event::Registers);
            }
            Event::Registers => {
                if !self.in_touch(node) {
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
                let finished = running.partition.finish_work(now, job.run());
                assert!(
                    finished.is_ok() || self.nodes[node].has_bad_disk(),
                    "on a disk that does not fail: {finished:?}"
                );
                self.note_deleted(node);
                self.begin_work(node);
            }
            Event::Configured => {
                let config = self.plan.replica(ReplicaConfig::new(id, running.session));
                running.min_insync_replicas = config.min_insync_replicas;
                running.partition.configure(now, config, self.plan.log());
            }
            Event::FailureArrives => {
                if self.is_current(node) {
                    self.store.failed.insert(self.nodes[node].id);
                    self.store_changed();
                }
            }
            Event::Leaves(since) => self.leaves(node, since),
            Event::LoanAsked(loan) => self.lend(node, *loan),
            Event::LoanArrives(loan, bytes) => self.loan_arrives(node, &loan, &bytes),
            Event::Housekeeping => {
                if self.healed {
                    self.look_at_rot(node);
                }
                self.begin_work(node);
                self.schedule(70, node, Event::Housekeeping);
            }
            _ => unreachable!("handled before"),
        }
    }

    fn begin_work(&mut self, node: usize) {
        let (after, now) = (self.disk_time(node), self.time(node));
        let checkpoints = self.nodes[node].random.one_in(4);
        let Some(running) = &mut self.nodes[node].running else { return };
        let job = running.partition.begin_work(now);
        self.note_deleted(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        if let Some(job) = job {
            self.schedule(after, node, Event::WorkRuns(Box::new(job)));
        } else if checkpoints && let Some(job) = running.partition.begin_checkpoint() {
            self.schedule(after, node, Event::FlushRuns(Box::new(job)));
        }
    }

    /// Carries out what a node's partition wants, and checks it.
    fn settle(&mut self, node: usize) {
        // What was lost of a topic that is gone is not asked any more.
        let is_current = self.is_current(node);
        loop {
            let life = self.nodes[node].life;
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
                    let after = self.latency(node, STORE);
                    if !self.in_touch(node) || self.lost(node, STORE) {
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
                    let after = self.latency(node, STORE) + if self.lost(node, STORE) { 100 } else { 0 };
                    self.schedule(after, node, Event::EndArrives(end));
                }
                Effect::Fetch(plan) => {
                    self.fetches += 1;
                    let number = self.fetches;
                    running.fetching = Some((number, plan));
                    let id = FetchId { topic: running.topic, node, life, number, plan };
                    running.last_fetch = Some(id);
                    self.schedule(FETCH_TIMEOUT_MS, node, Event::FetchTimesOut(number));
                    let leader = usize::try_from(plan.leader.0 - 1).expect("a broker");
                    for _ in 0..1 + u64::from(self.doubled(node, leader)) {
                        let after = self.latency(node, leader);
                        if self.lost(node, leader) {
                            self.tell_lost(node, leader, "fetch");
                        } else {
                            self.schedule(after, leader, Event::FetchArrives(id));
                        }
                    }
                }
                Effect::StopFetching => running.fetching = None,
                Effect::FlushWanted(job) => {
                    let after = self.disk_time(node);
                    self.schedule(after, node, Event::FlushRuns(job));
                }
                Effect::Cut(cut) => {
                    note!(self, node, "cuts {} e{} → {} e{}: {}", cut.from.0, cut.from.1, cut.to.0, cut.to.1, cut.why);
                    running.mirror.forget(running.partition.log().start().0);
                    match cut.why {
                        CutReason::UncleanElection => {}
                        CutReason::LeaderStartsAbove(_) | CutReason::OutsideLeader(_) => self.counts.resets += 1,
                        _ => self.counts.cuts += 1,
                    }
                    // What would come to lie between the two would count as committed after the next start.
                    let recorded = &mut self.nodes[node].checkpointed;
                    *recorded = recorded.map(|recorded| recorded.min(cut.to.0));
                    // Committed records are cut only with a reason that this run allows.
                    let lost = cut.records > 0
                        && cut.to.0 < cut.high_watermark
                        && !matches!(cut.why, CutReason::LeaderStartsAbove(_) | CutReason::UncleanElection);
                    assert!(
                        !lost || !self.plan.loses_nothing() || self.nodes[node].damaged || self.struck || !is_current,
                        "node {} cut committed records: {cut:?}",
                        node + 1
                    );
                }
                Effect::HighWatermark(high_watermark) => {
                    let status = running.partition.status();
                    let (needed, in_sync) = (running.min_insync_replicas, status.isr.len());
                    assert!(
                        status.role != Role::Leader || in_sync >= needed,
                        "the high watermark moves to {high_watermark} with {in_sync} in sync, and {needed} are needed"
                    );
                    // The checkpoint is written now and then, so it lags.
                    if self.nodes[node].random.one_in(4) {
                        self.nodes[node].checkpointed = Some(high_watermark);
                    }
                }
                Effect::Fenced { reason, .. } => self.log_failed(node, &reason.to_string()),
                other => panic!("an effect the driver does not know: {other:?}"),
            }
        }
        self.look(node);
        self.arm(node);
        self.consider_healing(node);
    }

    /// Whether a broker's log is of the topic that there is now.
    fn is_current(&self, node: usize) -> bool {
        self.nodes[node].running.as_ref().is_some_and(|running| running.topic == self.store.topic)
    }

    /// Retention may have been at work.
    fn note_deleted(&mut self, node: usize) {
        if let Some(running) = self.nodes[node].running.as_ref().filter(|running| running.topic == self.store.topic) {
            self.truth.deleted(running.partition.log().start().0);
        }
    }

    /// Compares what the node's log holds with the truth.
    fn look(&mut self, node: usize) {
        let (loses_nothing, is_current) = (self.plan.loses_nothing(), self.is_current(node));
        let Node { running: Some(running), rotten, .. } = &mut self.nodes[node] else { return };
        let status = running.partition.status();
        // Its log is closed, by a job at its disk maybe that nobody has heard of yet: what it holds shows when it is opened
        // again.
        if status.role == Role::Fenced || running.partition.log().fence().is_some() {
            return;
        }
        if is_current {
            running.mirror.follow(&running.partition, rotten.as_ref(), &mut self.truth);
            self.truth.begins(node, status.log_start.0);
            if loses_nothing {
                self.truth.commit(&mut running.mirror, status.high_watermark.0);
            }
        }
        for value in [node as i64, status.log_end.0, status.high_watermark.0, status.version, self.now] {
            self.fingerprint = Random::mix(self.fingerprint ^ value.cast_unsigned());
        }
        if let Some(trace) = &mut self.trace {
            let role = match status.role {
                Role::Leader => "leads",
                Role::Follower => "follows",
                Role::Offline => "offline",
                Role::Fenced => "closed",
            };
            let isr = status.isr.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" ");
            let (start, end, epoch) = (status.log_start, status.log_end, status.leader_epoch);
            let glance =
                format!("{}: {role} e{epoch}, {start}..LEO {end}, HW {}, ISR {isr}", node + 1, status.high_watermark);
            trace.state(node, glance);
        }
    }

    fn arm(&mut self, node: usize) {
        let time = self.time(node).0;
        let Some(running) = &mut self.nodes[node].running else { return };
        let Some(deadline) = running.partition.next_deadline() else { return };
        if running.ticking.is_none_or(|ticking| deadline.0 < ticking) {
            running.ticking = Some(deadline.0);
            let after = deadline.0.saturating_sub(time).max(1);
            self.schedule(after, node, Event::Tick);
        }
    }
}
