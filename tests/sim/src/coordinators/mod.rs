//! Coordinators of groups and of transactions over logs that are really replicated, and the clients that they serve.
//!
//! Three brokers hold `__consumer_offsets`, `__transaction_state`, two partitions that are read and two that are written.
//! Writers fill the first two. Copiers, the members of one group, read them and write what they read to both others and
//! their offsets in one transaction each; the members of a second group read and commit only. The machines are the real
//! ones: `Coordinator`, `TransactionCoordinator`, `Guards`, `Partition`, `Log`, `Controller`; what the broker does around
//! them is done here in the same order (`driver.rs`, `produce.rs`, `markers.rs`). What must hold is in `truth.rs`.

mod client;
mod cluster;
mod copying;
mod driver;
mod failures;
mod machine;
mod markers;
mod member;
mod node;
mod plan;
mod produce;
mod reader;
mod replicas;
mod run;
mod settled;
mod taking_part;
mod truth;
mod writer;

use std::collections::BTreeMap;

use highwater_groups::transactions::TransactionRequest;
use highwater_groups::{Producer, Request, Ticket};
use highwater_replication::{
    BrokerEpoch, BrokerId, Commit, CommitResult, Controller, FetchPlan, IsrDecision, PartitionState, Versioned,
    WaitToken,
};
use highwater_storage::sim::{Network, Queue};
use highwater_storage::{FlushJob, Offset, TopicPartition, TransactionMarker, WorkJob};

use crate::counts::CoordinatorCounts;
use crate::fault::{BROKERS, Fault, PLACES, Place};
use crate::plan::EPOCH_MS;
use crate::random::{Purpose, Random};
use crate::trace::Trace;
use client::{Ask, Caller, Client, Told};
use cluster::Store;
use markers::Marking;
use member::Member;
use node::Node;
use plan::Scheme;
pub use plan::{Scenario, Strike, Struck};
use produce::Code;
use reader::Reader;
pub use run::{
    CoordinatorOutcome, ManyCoordinators, minimise_coordinators, run_coordinators, run_many_coordinators,
    tell_coordinators,
};
use truth::Truth;
use writer::Writer;

/// The partitions, by their numbers here. The first two are those of the coordinators.
const OFFSETS: usize = 0;
const TRANSACTIONS: usize = 1;
const INPUTS: [usize; 2] = [2, 3];
const OUTPUTS: [usize; 2] = [4, 5];
const PARTITIONS: usize = 6;
const NAMES: [(&str, i32); PARTITIONS] =
    [("__consumer_offsets", 0), ("__transaction_state", 0), ("in", 0), ("in", 1), ("out", 0), ("out", 1)];

/// After healing everything must come to rest within this time.
const SETTLE_MS: i64 = 60_000;
const EVENTS_MAX: u64 = 600_000;
/// What is due later than this is not due in any run.
const FAR_MS: i64 = 1 << 40;

/// For events of the whole world.
const NOBODY: usize = usize::MAX;

/// Notes what happens, if anybody wants to know: at a place.
macro_rules! note {
    ($world:expr, $place:expr, $($text:tt)+) => {
        if let Some(trace) = &mut $world.trace {
            trace.at($world.now - EPOCH_MS, $place, format!($($text)+));
        }
    };
}
use note;

enum Event {
    // At a running broker: its replicas.
    Tick(usize, u64),
    FetchArrives(FetchId),
    PollEnds(usize, WaitToken),
    ReplyArrives(FetchId, Box<replicas::Reply>),
    FetchTimesOut(usize, u64),
    FlushRuns(usize, Box<FlushJob>),
    WorkRuns(usize, Box<WorkJob>),
    Housekeeping,
    // At a running broker: the store.
    ProposalArrives(usize, replicas::Proposal),
    Decided(usize, u64, IsrDecision),
    StateSeen(usize, Box<Versioned<PartitionState>>),
    LiveSeen(BTreeMap<BrokerId, BrokerEpoch>),
    Reads,
    SessionLostSeen,
    Registers,
    // At a running broker: its coordinators, by partition, and by the number of the machine where it is for one alone.
    Follows(usize),
    DriverLooks(usize, u64),
    DriverTicks(usize, u64, u64),
    AppendsEnd(usize, u64),
    LateIsDue(usize, u64),
    ProducerIdComes(u64, Ticket, Option<i64>),
    RoundBegins(u64, u64),
    RoundEnds(u64, u64, u32),
    MarkerArrives(Box<MarkerSent>),
    MarkerWritten(Box<MarkerSent>, Result<(), markers::NotMarked>),
    // At a running broker: requests.
    Asked(Caller, Box<Ask>),
    PartAsked(taking_part::Asked),
    PartAnswered(u64, u32, Result<(), Code>),
    PartAskedAgain(u64),
    // What concerns no running broker.
    Boots,
    Starts,
    SessionEnds(BrokerEpoch),
    SessionExpires(BrokerEpoch),
    DiskHeals,
    Controls,
    CommitArrives(i32, Box<Commit>),
    CommitKnown(i32, Box<Commit>, CommitResult),
    ClientActs(Client),
    Answered(Caller, Box<Told>),
    TimesOut(Caller),
    Fails(Fault),
    Heals,
    Looks,
}

/// Whose fetch: partition, node, life, number, and what was asked.
#[derive(Clone, Copy, Debug)]
struct FetchId {
    at: usize,
    node: usize,
    life: u32,
    number: u64,
    plan: FetchPlan,
}

/// A marker on its way to the leader of one partition, and whoever waits for it.
#[derive(Clone, Copy, Debug)]
struct MarkerSent {
    marker: TransactionMarker,
    at: usize,
    node: usize,
    life: u32,
    driver: u64,
    marking: u64,
    round: u32,
}

pub(crate) struct World {
    scheme: Scheme,
    faults: Vec<Fault>,
    /// Streams of chance: of the clients, the controller. Brokers and links have their own.
    chance: Random,
    control: Random,
    now: i64,
    queue: Queue<(usize, u32, Event)>,
    nodes: Vec<Node>,
    store: Store,
    controller: Controller,
    network: Network,
    store_down_until: i64,
    /// The last one given out, to whatever needs one of its own.
    numbers: u64,
    writers: [Writer; INPUTS.len()],
    members: Vec<Member>,
    readers: [Reader; OUTPUTS.len()],
    truth: Truth,
    strike: Option<Strike>,
    /// How many boundaries there were at which a coordinator could have ended.
    boundaries: u64,
    healed: bool,
    settled: bool,
    counts: CoordinatorCounts,
    fingerprint: u64,
    trace: Option<Trace>,
}

impl World {
    fn new(seed: u64, scenario: Scenario, given: Option<Vec<Fault>>, strike: Option<Strike>, traced: bool) -> Self {
        let scheme = Scheme::draw(scenario, &mut Purpose::Plan.of(seed));
        let faults = given.unwrap_or_else(|| scheme.faults(&mut Purpose::Faults.of(seed)));
        let mut chance = Purpose::Producers.of(seed);
        let members = Member::all(&scheme, &mut chance);
        let mut world = Self {
            chance,
            control: Purpose::Controller.of(seed),
            now: EPOCH_MS,
            queue: Queue::new(EPOCH_MS),
            nodes: (0..BROKERS).map(|node| Node::new(seed, node)).collect(),
            store: Store::new(),
            controller: Controller::new(1),
            network: Network::new(seed, PLACES, scheme.latency_ms()),
            store_down_until: 0,
            numbers: 0,
            writers: [Writer::new(0), Writer::new(1)],
            members,
            readers: [Reader::new(0), Reader::new(1)],
            truth: Truth::default(),
            strike,
            boundaries: 0,
            healed: false,
            settled: false,
            counts: CoordinatorCounts::default(),
            fingerprint: seed,
            trace: traced.then(Trace::default),
            scheme,
            faults,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for node in 0..BROKERS {
            self.schedule(0, node, Event::Boots);
        }
        self.schedule(30, NOBODY, Event::Controls);
        for client in self.clients() {
            self.schedule(40, NOBODY, Event::ClientActs(client));
        }
        for fault in self.faults.clone() {
            self.schedule(fault.at_ms, NOBODY, Event::Fails(fault));
        }
        self.schedule(self.scheme.heals_ms(), NOBODY, Event::Heals);
    }

    /// Runs until all is done after healing.
    fn run(&mut self) {
        let scheme = format!("{:?}", self.scheme);
        self.everywhere(&scheme);
        let latest = EPOCH_MS + self.scheme.heals_ms() + SETTLE_MS;
        while let Some((node, life, event)) = self.queue.pop() {
            self.now = self.queue.now();
            assert!(self.now < latest, "not at rest long after all is well: {}", self.situation());
            self.counts.events += 1;
            assert!(self.counts.events < EVENTS_MAX, "something goes round in circles: {}", self.situation());
            self.handle(node, life, event);
            if self.settled {
                return self.check_end();
            }
        }
        panic!("nothing is left to happen: {}", self.situation());
    }

    fn schedule(&mut self, after_ms: i64, node: usize, event: Event) {
        let life = self.nodes.get(node).map_or(0, |node| node.life);
        self.schedule_for(after_ms, node, life, event);
    }

    fn schedule_for(&mut self, after_ms: i64, node: usize, life: u32, event: Event) {
        self.queue.schedule(after_ms, (node, life, event));
    }

    /// A message to a broker as it is now: its next life does not get it.
    fn post(&mut self, from: Place, to: usize, event: Event) {
        let life = self.nodes[to].life;
        self.post_for(from, to, life, event);
    }

    fn post_for(&mut self, from: Place, to: usize, life: u32, event: Event) {
        let after_ms = self.network.latency(self.now, from, to);
        if self.network.loses(self.now, from, to) {
            let what = event.name();
            if let Some(trace) = &mut self.trace {
                trace.message(self.now - EPOCH_MS, from, to, what.to_owned(), false);
            }
        } else {
            self.schedule_for(after_ms, to, life, event);
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn everywhere(&mut self, what: &str) {
        if let Some(trace) = &mut self.trace {
            trace.everywhere(self.now - EPOCH_MS, what.to_owned());
        }
    }

    fn mix(&mut self, value: i64) {
        self.fingerprint = Random::mix(self.fingerprint ^ value.cast_unsigned());
    }

    fn handle(&mut self, node: usize, life: u32, event: Event) {
        match event {
            Event::Boots => return self.boot(node),
            Event::Starts => return self.start(node, life),
            // Who is registered is looked at by the store, once it is up again and has waited for a sign of life.
            Event::SessionEnds(_) | Event::SessionExpires(_) if self.store_down_until > self.now => {
                return self.schedule_for(self.store_down_until - self.now + cluster::SESSION_MS, node, life, event);
            }
            Event::SessionEnds(session) => return self.session_ends(node, session),
            // Not if it has reached the store again meanwhile.
            Event::SessionExpires(session) if self.nodes[node].cut_off_until > self.now => {
                return self.session_ends(node, session);
            }
            Event::SessionExpires(_) => return,
            Event::DiskHeals => return self.nodes[node].fs.crash_after(u64::MAX),
            Event::Controls => return self.control(),
            Event::CommitArrives(epoch, commit) => return self.commit_arrives(epoch, *commit),
            Event::CommitKnown(epoch, commit, result) => return self.commit_known(epoch, &commit, &result),
            Event::ClientActs(client) => return self.client_acts(client),
            Event::Answered(caller, told) => return self.client_hears(caller, *told),
            Event::TimesOut(caller) => return self.client_waited(caller),
            Event::Fails(fault) => return self.fail(fault),
            Event::Heals => return self.heal(),
            Event::Looks => return self.look_around(),
            _ => {}
        }
        if self.nodes[node].life != life || self.nodes[node].running.is_none() {
            return;
        }
        let paused_until = self.nodes[node].paused_until;
        if paused_until > self.now {
            return self.schedule_for(paused_until - self.now + 1, node, life, event);
        }
        if self.boundary(node) {
            return;
        }
        self.mix(i64::from(life) << 8 | node as i64);
        self.nodes[node].fs.set_now(self.nodes[node].time(self.now));
        self.happen(node, event);
        if !self.has_crashed(node) {
            self.settle(node);
            self.has_crashed(node);
        }
    }

    /// Something happens at a running broker.
    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Tick(at, tick) => self.replica_ticks(node, at, tick),
            Event::FetchArrives(id) => self.fetch_arrives(node, id),
            Event::PollEnds(at, token) => self.poll_ends(node, at, token),
            Event::ReplyArrives(id, reply) => self.reply_arrives(node, &id, &reply),
            Event::FetchTimesOut(at, number) => self.fetch_times_out(node, at, number),
            Event::FlushRuns(at, job) => self.flush_runs(node, at, *job),
            Event::WorkRuns(at, job) => self.work_runs(node, at, *job),
            Event::Housekeeping => self.keep_house(node),
            Event::ProposalArrives(at, proposal) => self.proposal_arrives(node, at, proposal),
            Event::Decided(at, proposal, decision) => self.decided(node, at, proposal, decision),
            Event::StateSeen(at, state) => self.state_seen(node, at, *state),
            Event::LiveSeen(live) => self.live_seen(node, live),
            Event::Reads => self.read_store(node),
            Event::SessionLostSeen => self.session_lost_seen(node),
            Event::Registers => self.register(node),
            Event::Follows(which) => self.follow(node, which),
            Event::DriverLooks(which, number) => self.driver_looks(node, which, number),
            Event::DriverTicks(which, number, tick) => self.driver_ticks(node, which, number, tick),
            Event::AppendsEnd(which, number) => self.appends_end(node, which, number),
            Event::LateIsDue(which, number) => self.tell_late(node, which, number),
            Event::ProducerIdComes(number, ticket, id) => self.producer_id_comes(node, number, ticket, id),
            Event::RoundBegins(number, marking) => self.round_begins(node, number, marking),
            Event::RoundEnds(number, marking, round) => self.round_ends(node, number, marking, round),
            Event::MarkerArrives(sent) => self.marker_arrives(node, *sent),
            Event::MarkerWritten(sent, how) => self.marker_written(node, *sent, how),
            Event::Asked(caller, ask) => self.asked(node, caller, *ask),
            Event::PartAsked(asked) => self.part_asked(node, asked),
            Event::PartAnswered(question, round, result) => self.part_answered(node, question, round, result),
            Event::PartAskedAgain(question) => self.ask_for_part(node, question),
            _ => unreachable!("handled before"),
        }
    }
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::FetchArrives(_) => "fetch",
            Self::ReplyArrives(..) => "reply",
            Self::MarkerArrives(_) => "marker",
            Self::MarkerWritten(..) => "marker written",
            Self::Asked(..) => "request",
            Self::Answered(..) => "answer",
            Self::PartAsked(_) => "takes part?",
            Self::PartAnswered(..) => "takes part",
            _ => "message",
        }
    }
}

fn topic_partition(at: usize) -> TopicPartition {
    let (topic, partition) = NAMES[at];
    TopicPartition::new(topic, partition)
}

/// As the machines name it.
fn named(at: usize) -> (String, i32) {
    let (topic, partition) = NAMES[at];
    (topic.to_owned(), partition)
}

fn number_of(topic: &str, partition: i32) -> usize {
    let at = NAMES.iter().position(|name| *name == (topic, partition));
    at.unwrap_or_else(|| panic!("there is no {topic}-{partition}"))
}
