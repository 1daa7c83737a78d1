//! The model: brokers with logs, whoever leads, and members that ask.

mod member;

use std::collections::{BTreeMap, VecDeque};

use highwater_groups::*;

use member::Member;

const BROKERS: usize = 3;
const MEMBERS: usize = 3;

/// Partitions that the group reads.
const PARTITIONS: i32 = 4;

/// How late a question may come to a broker: later than members are waited for.
const LATE_MS: usize = 15_000;

/// Batches that are loaded in one step.
const LOADED_AT_A_TIME: usize = 10;

/// How often everything goes on after the last fault until it is over: time passes between.
const HEALTHY_STEPS: usize = 6_000;

/// Draws, from a seed.
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `bound` (xorshift64*).
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(drawn).unwrap() % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// A batch of the log, with the epoch of the leader that appended it. Two of one epoch at one place are the same.
#[derive(Clone, Debug)]
struct Batch {
    epoch: u64,
    records: Vec<Record>,
}

/// A coordinator on a broker that leads, or that has not heard yet that it does not any more.
#[derive(Debug)]
struct Leading {
    epoch: u64,
    machine: Coordinator,
    /// The end of the log when it was elected, and how much of that was read.
    loads_to: usize,
    loaded: usize,
    serving: bool,
    /// Appends that have not been told to be committed, and the end of the log behind each.
    appends: VecDeque<(AppendId, usize)>,
    /// All below is committed, as far as it knows.
    committed: usize,
    asked: BTreeMap<Ticket, Asked>,
}

/// Who waits for an answer: a member, as of so many connections.
#[derive(Clone, Copy, Debug)]
struct Asked {
    member: usize,
    connection: u64,
    /// The acknowledged offset of each partition when the question came.
    known: [i64; PARTITIONS as usize],
}

#[derive(Debug, Default)]
struct Broker {
    up: bool,
    log: Vec<Batch>,
    leading: Option<Box<Leading>>,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    seed: u64,
    draws: Draws,
    now: Now,
    brokers: Vec<Broker>,
    /// What the store says: who leads, in which epoch, and who is in sync.
    leader: usize,
    epoch: u64,
    in_sync: Vec<usize>,
    members: Vec<Member>,
    tickets: u64,
    /// Questions on their way to a broker, where they come no earlier than then, and answers on their way back.
    requests: Vec<(u64, usize, Asked, Request)>,
    answers: Vec<(Asked, Answer)>,
    /// The largest offset that somebody was told is committed, of each partition.
    acknowledged: [i64; PARTITIONS as usize],
    /// Which assignment a generation has, by the number that its leader gave it.
    assignments: BTreeMap<i32, u64>,
    faults: bool,
    elects_again: bool,
    commits: u64,
    cut: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let brokers = (0..BROKERS).map(|_| Broker { up: true, ..Broker::default() }).collect();
        let mut world = Self {
            seed,
            draws: Draws::new(seed + 1),
            now: Now { uptime_ms: 1_000, timestamp_ms: 1_700_000_000_000 },
            brokers,
            leader: 0,
            epoch: 0,
            in_sync: (0..BROKERS).collect(),
            members: (0..MEMBERS).map(|place| Member::new(place, place as u64)).collect(),
            tickets: 0,
            requests: Vec::new(),
            answers: Vec::new(),
            acknowledged: [-1; PARTITIONS as usize],
            assignments: BTreeMap::new(),
            faults: true,
            elects_again: false,
            commits: 0,
            cut: 0,
        };
        world.hears(0);
        world
    }

    pub(crate) fn elections(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn generations(&self) -> u64 {
        self.assignments.len() as u64
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.commits
    }

    pub(crate) fn records_cut(&self) -> u64 {
        self.cut
    }

    /// One thing happens.
    pub(crate) fn step(&mut self) {
        let broker = self.draws.below(BROKERS);
        let member = self.draws.below(MEMBERS);
        match self.draws.below(100) {
            0..22 => self.deliver_request(),
            22..44 => self.deliver_answer(),
            44..58 => self.replicate(broker),
            58..70 => self.commits_on(broker),
            70..74 => self.hears(broker),
            74..90 => self.member_acts(member),
            90..96 => self.time_passes(),
            _ if !self.faults => self.comes_back(broker),
            96 if self.draws.one_in(15) => self.crash(broker),
            97 if self.draws.one_in(if self.elects_again { 2 } else { 12 }) => self.elect(),
            98 if self.draws.one_in(12) => self.member_crashes(member),
            _ => self.comes_back(broker),
        }
    }

    /// Nothing fails any more: soon all is well.
    pub(crate) fn heal(&mut self) {
        self.faults = false;
        let (commits, mut left) = (self.commits, HEALTHY_STEPS);
        while left > 0 {
            left -= 1;
            self.step();
            let settled = self.members.iter().all(Member::is_stable);
            if settled && self.commits > commits + 20 && self.covers_all() {
                return;
            }
        }
        panic!("seed {}: no stable group that commits in the end: {:#?}", self.seed, self.members);
    }

    /// Whether each partition is somebody's, and nobody else's.
    fn covers_all(&self) -> bool {
        let mut all: Vec<i32> = self.members.iter().flat_map(Member::partitions).copied().collect();
        all.sort_unstable();
        all == (0..PARTITIONS).collect::<Vec<_>>()
    }

    fn member_acts(&mut self, number: usize) {
        // Who does not know any better asks the broker that the store names.
        let coordinator = self.leader;
        let Some((broker, connection, request)) = self.members[number].acts(coordinator, self.now.uptime_ms) else {
            return;
        };
        // What an earlier connection had on its way is gone with it, unless a broker has it already.
        self.requests.retain(|(_, _, asked, _)| asked.member != number);
        let late = self.faults && self.draws.one_in(25);
        let after_ms = if late { self.draws.below(LATE_MS) as u64 } else { 0 };
        let asked = Asked { member: number, connection, known: self.acknowledged };
        self.requests.push((self.now.uptime_ms + after_ms, broker, asked, request));
    }

    /// A process ends; what it has sent may arrive all the same. Another takes its place.
    fn member_crashes(&mut self, number: usize) {
        self.tickets += 1;
        if self.draws.one_in(2) {
            self.requests.retain(|(_, _, asked, _)| asked.member != number);
        }
        self.members[number] = Member::new(number, 1_000 + self.tickets);
    }

    fn deliver_request(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let at = self.draws.below(self.requests.len());
        if self.requests[at].0 > self.now.uptime_ms {
            return;
        }
        let (_, broker, mut asked, request) = self.requests.swap_remove(at);
        asked.known = self.acknowledged;
        if !self.brokers[broker].up {
            return;
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match &mut self.brokers[broker].leading {
            Some(leading) => {
                leading.asked.insert(ticket, asked);
                self.handle(broker, Input::Request(ticket, request));
            }
            None => self.answers.push((asked, request.refused(Refused::NotCoordinator))),
        }
    }

    fn deliver_answer(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let at = self.draws.below(self.answers.len());
        let (asked, answer) = self.answers.swap_remove(at);
        if self.faults && self.draws.one_in(50) {
            return; // Its connection broke.
        }
        let told = self.members[asked.member].hears(asked.connection, &answer);
        if let Some((generation, assignment)) = told {
            let first = *self.assignments.entry(generation).or_insert(assignment);
            assert_eq!(first, assignment, "seed {}: generation {generation} has two assignments", self.seed);
        }
    }

    /// A machine has answered: what it says is checked where it says it, whether it arrives or not.
    fn answered(&mut self, broker: usize, asked: Asked, answer: Answer, of: Option<(i32, i64)>) {
        match &answer {
            Answer::Commit(Ok(results)) if results.iter().all(Result::is_ok) => {
                if let Some((partition, offset)) = of {
                    let known = &mut self.acknowledged[usize::try_from(partition).unwrap()];
                    // Within one epoch answers come in the order of the log.
                    assert!(
                        offset >= *known || broker != self.leader,
                        "seed {}: {known} of partition {partition} was acknowledged, and then {offset}",
                        self.seed
                    );
                    *known = (*known).max(offset);
                    self.commits += 1;
                }
            }
            // One that was deposed and has not heard of it tells what it knew: whoever goes by that is fenced by its generation.
            Answer::Offsets(Ok(offsets)) if broker == self.leader => {
                for found in offsets {
                    let place = usize::try_from(found.partition).unwrap();
                    let known = asked.known[place];
                    let told = found.offset.clone().unwrap().map_or(-1, |value| value.offset);
                    assert!(
                        told >= known,
                        "seed {}: {known} of partition {} was acknowledged, {told} is told in epoch {}",
                        self.seed,
                        found.partition,
                        self.epoch
                    );
                    // Whoever was told goes on from there.
                    self.acknowledged[place] = self.acknowledged[place].max(told);
                }
            }
            _ => {}
        }
        self.answers.push((asked, answer));
    }

    fn handle(&mut self, broker: usize, input: Input) {
        let Some(leading) = &mut self.brokers[broker].leading else { return };
        let effects = leading.machine.handle(self.now, input);
        for effect in effects {
            let place = &mut self.brokers[broker];
            let Some(leading) = &mut place.leading else { return };
            match effect {
                Effect::Answer(ticket, answer) => {
                    let asked = leading.asked.remove(&ticket).expect("each is answered once");
                    let of = self.members[asked.member].commits(asked.connection);
                    self.answered(broker, asked, answer, of);
                }
                Effect::Append { id, records, .. } => {
                    place.log.push(Batch { epoch: leading.epoch, records });
                    leading.appends.push_back((id, place.log.len()));
                }
                // All of them are there.
                Effect::LookUpTopics(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A follower takes the next batch of the leader, or cuts off what the leader does not have.
    fn replicate(&mut self, follower: usize) {
        if follower == self.leader || !self.brokers[follower].up || self.brokers[follower].leading.is_some() {
            return;
        }
        if !self.leader_is_there() {
            return;
        }
        let leader = &self.brokers[self.leader].log;
        let same =
            leader.iter().zip(&self.brokers[follower].log).take_while(|(one, other)| one.epoch == other.epoch).count();
        let next = leader.get(same).cloned();
        let log = &mut self.brokers[follower].log;
        self.cut += (log.len() - same) as u64;
        log.truncate(same);
        log.extend(next);
        if log.len() == self.brokers[self.leader].log.len() && !self.in_sync.contains(&follower) {
            self.in_sync.push(follower);
        }
    }

    fn leader_is_there(&self) -> bool {
        let leader = &self.brokers[self.leader];
        leader.up && leader.leading.as_ref().is_some_and(|leading| leading.epoch == self.epoch)
    }

    /// The broker sees what is committed, goes on loading, and tells its machine.
    fn commits_on(&mut self, broker: usize) {
        let leads = broker == self.leader && self.leader_is_there();
        if leads && self.draws.one_in(8) {
            // Who is away is no longer waited for.
            let (brokers, leader) = (&self.brokers, self.leader);
            self.in_sync
                .retain(|&replica| replica == leader || brokers[replica].up && brokers[replica].leading.is_none());
        }
        let all_have = self.in_sync.iter().map(|&replica| self.common(replica)).min().unwrap_or(0);
        let place = &mut self.brokers[broker];
        let Some(leading) = &mut place.leading else { return };
        if leads {
            leading.committed = leading.committed.max(all_have);
        }
        if !leading.serving {
            if leading.loaded < leading.loads_to {
                let until = leading.loads_to.min(leading.loaded + LOADED_AT_A_TIME);
                let batches = place.log[leading.loaded..until].to_vec();
                leading.loaded = until;
                for Batch { records, .. } in batches {
                    self.handle(broker, Input::Load(LoadedBatch::Records { transaction: None, records }));
                }
            } else if leading.committed >= leading.loads_to {
                leading.serving = true;
                self.handle(broker, Input::Loaded);
            }
            return;
        }
        if leading.appends.front().is_some_and(|&(_, end)| end <= leading.committed) {
            let (id, _) = leading.appends.pop_front().unwrap();
            self.handle(broker, Input::Appended(id, Appended::Committed));
        } else if let Some(&(id, _)) = leading.appends.front().filter(|_| self.draws.one_in(10)) {
            self.handle(broker, Input::Appended(id, Appended::Late));
        }
    }

    /// How much of the leader's log a replica has.
    fn common(&self, replica: usize) -> usize {
        let (leader, other) = (&self.brokers[self.leader].log, &self.brokers[replica].log);
        leader.iter().zip(other).take_while(|(one, other)| one.epoch == other.epoch).count()
    }

    /// The broker hears what the store says.
    fn hears(&mut self, broker: usize) {
        if !self.brokers[broker].up {
            return;
        }
        let deposed = self.brokers[broker].leading.as_ref().is_some_and(|leading| leading.epoch != self.epoch);
        if deposed {
            self.handle(broker, Input::Resigned);
            self.brokers[broker].leading = None;
        }
        let place = &mut self.brokers[broker];
        if broker == self.leader && place.leading.is_none() {
            let mut config = GroupConfig::default();
            config.initial_rebalance_delay_ms = 0;
            place.leading = Some(Box::new(Leading {
                epoch: self.epoch,
                machine: Coordinator::new(config),
                loads_to: place.log.len(),
                loaded: 0,
                serving: false,
                appends: VecDeque::new(),
                committed: 0,
                asked: BTreeMap::new(),
            }));
        }
    }

    /// Another in-sync replica leads. Nobody has heard of it yet.
    fn elect(&mut self) {
        let able: Vec<usize> = self.in_sync.iter().copied().filter(|&replica| self.brokers[replica].up).collect();
        if able.is_empty() {
            return;
        }
        self.leader = able[self.draws.below(able.len())];
        self.epoch += 1;
        // One election is often followed by others.
        self.elects_again = self.draws.one_in(2);
    }

    /// A process ends. What it had in memory is gone, what it had written is not.
    fn crash(&mut self, broker: usize) {
        self.brokers[broker].up = false;
        self.brokers[broker].leading = None;
        if broker == self.leader {
            self.elect();
        }
    }

    fn comes_back(&mut self, broker: usize) {
        self.brokers[broker].up = true;
        // Nobody who could lead was there.
        if !self.leader_is_there() && broker == self.leader {
            self.epoch += u64::from(self.brokers[broker].leading.is_none());
        }
    }

    fn time_passes(&mut self) {
        let milliseconds = 50 + self.draws.below(500);
        self.now.uptime_ms += milliseconds as u64;
        self.now.timestamp_ms += milliseconds as i64;
        for broker in 0..BROKERS {
            let due = self.brokers[broker].leading.as_ref().and_then(|leading| leading.machine.next_deadline_ms());
            if due.is_some_and(|at| at <= self.now.uptime_ms) {
                self.handle(broker, Input::Tick);
            }
        }
    }
}
