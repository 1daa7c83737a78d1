//! Members of groups: they join, ask for their assignment and their offsets, read and commit, and say that they live. What is
//! not answered in time they ask again, over another connection.

use bytes::Bytes;
use highwater_groups::transactions::TransactionAnswer;
use highwater_groups::{
    Answer, Commit, CommittedOffset, FetchOffsets, FetchedOffset, Join, Joined, JoinedMember, Leaving, MemberAt, Sync,
};

use super::client::Asking;
use super::copying::Copier;
use super::plan::Scenario;
use super::produce::{CONCURRENT, INVALID_STATE, LOADING, NETWORK, NOT_AVAILABLE, NOT_COORDINATOR};
use super::*;

/// The group whose members copy, and the one whose members only read.
pub(super) const COPIERS: &str = "copiers";
pub(super) const READERS: &str = "readers";

const HEARTBEAT_MS: i64 = 40;
const SESSION_MS: i32 = 400;
const REBALANCE_MS: i32 = 400;

pub(super) const ILLEGAL_GENERATION: Code = 22;
pub(super) const UNKNOWN_MEMBER: Code = 25;
pub(super) const REBALANCING: Code = 27;
pub(super) const NO_GROUP: Code = 69;
pub(super) const MEMBER_ID_REQUIRED: Code = 79;
pub(super) const FENCED_INSTANCE: Code = 82;
pub(super) const UNSTABLE: Code = 88;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Of copiers: see there.
    Copies(copying::Doing),
    Join,
    Sync(Vec<(String, Bytes)>),
    Offsets,
    Read,
    /// Of an input, up to there.
    Commit(usize, i64),
    /// It has left for good.
    Gone,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) place: usize,
    pub(super) group: &'static str,
    instance: Option<String>,
    /// Counts the processes that took this place.
    incarnation: u64,
    pub(super) doing: Doing,
    pub(super) copier: Option<Copier>,
    main: Option<u64>,
    beat: Option<u64>,
    pub(super) rests_until: i64,
    beats_at: i64,
    id: String,
    generation: i32,
    /// It is to join again, or is no member any more, once its transaction has ended.
    pub(super) rejoins: bool,
    pub(super) is_lost: bool,
    pub(super) mine: Vec<usize>,
    /// What it reads next, of each input.
    pub(super) next: [i64; INPUTS.len()],
    turn: usize,
    leaves_at: Option<i64>,
}

pub(super) fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}

impl Member {
    pub(super) fn all(scheme: &Scheme, chance: &mut Random) -> Vec<Self> {
        let copier = |place: usize| Some(Copier::new(place, scheme.of_version_2[place]));
        match scheme.scenario {
            Scenario::Drawn => {
                let mut all: Vec<_> = (0..2).map(|place| Self::new(place, COPIERS, copier(place))).collect();
                all.extend((2..5).map(|place| Self::new(place, READERS, None)));
                for member in &mut all {
                    member.instance = chance.one_in(4).then(|| format!("static-{}", member.place));
                }
                all
            }
            Scenario::OneTransaction => vec![Self::new(0, COPIERS, copier(0))],
            Scenario::OneRebalance => {
                let mut all: Vec<_> = (0..3).map(|place| Self::new(place, READERS, None)).collect();
                all[2].leaves_at = Some(EPOCH_MS + 350);
                all
            }
        }
    }

    fn new(place: usize, group: &'static str, copier: Option<Copier>) -> Self {
        let mut member = Self {
            place,
            group,
            instance: None,
            incarnation: 0,
            doing: Doing::Join,
            copier,
            main: None,
            beat: None,
            rests_until: 0,
            beats_at: 0,
            id: String::new(),
            generation: -1,
            rejoins: false,
            is_lost: false,
            mine: Vec::new(),
            next: [0; INPUTS.len()],
            turn: 0,
            leaves_at: None,
        };
        member.begin();
        member
    }

    fn begin(&mut self) {
        self.doing = match &self.copier {
            Some(_) => Doing::Copies(copying::Doing::Begin(None)),
            None => Doing::Join,
        };
    }

    /// The process ends, and another takes its place.
    pub(super) fn reborn(&mut self) {
        let copier = self.copier.take().map(Copier::reborn);
        let fresh = Self::new(self.place, self.group, copier);
        let (instance, incarnation, leaves_at) = (self.instance.take(), self.incarnation + 1, self.leaves_at);
        *self = Self { instance, incarnation, leaves_at, ..fresh };
    }

    pub(super) fn waits_for(&self, number: u64) -> bool {
        self.main == Some(number) || self.beat == Some(number)
    }

    pub(super) fn gives_up(&mut self, number: u64) {
        if self.main == Some(number) {
            self.main = None;
            if let Some(copier) = &mut self.copier {
                copier.tries += 1;
            }
        } else {
            self.beat = None;
        }
    }

    pub(super) fn is_in_group(&self) -> bool {
        !self.id.is_empty() && self.generation >= 0
    }

    fn at(&self) -> MemberAt {
        MemberAt {
            group: self.group.into(),
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            generation: self.generation,
        }
    }

    fn join(&self, number: u64) -> Request {
        Request::Join(Join {
            group: self.group.into(),
            member_id: self.id.clone(),
            group_instance_id: self.instance.clone(),
            client_id: format!("c{}", self.place),
            client_host: "/127.0.0.1".into(),
            fresh_id: format!("{}-{number}", self.incarnation),
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: REBALANCE_MS,
            protocol_type: "consumer".into(),
            protocols: vec![("range".into(), Bytes::new())],
            requires_known_member_id: true,
            supports_skipping_assignment: false,
        })
    }

    /// A commit of an offset, in a transaction or not.
    pub(super) fn commit(&self, input: usize, offset: i64, transaction: Option<Producer>) -> Commit {
        let (topic, partition) = named(INPUTS[input]);
        let one = CommittedOffset { topic, partition, offset, ..CommittedOffset::default() };
        Commit { member: self.at(), transaction, offsets: vec![one] }
    }

    fn offsets(&self) -> Request {
        let partitions = self.mine.iter().map(|input| {
            let (topic, partition) = NAMES[INPUTS[*input]];
            (topic.into(), partition)
        });
        Request::FetchOffsets(FetchOffsets {
            group: self.group.into(),
            partitions: Some(partitions.collect()),
            require_stable: true,
        })
    }

    fn hears_joined(&mut self, joined: Joined) {
        self.id = joined.member_id;
        self.generation = joined.generation;
        (self.rejoins, self.is_lost) = (false, false);
        self.doing = Doing::Sync(assign(&joined.members));
    }

    /// Whatever else it was about to do: it has to join again first, as a new member maybe.
    pub(super) fn joins_again(&mut self) {
        if self.is_lost {
            self.id.clear();
            self.generation = -1;
        }
        self.mine.clear();
        self.doing = Doing::Join;
    }

    /// What a refusal says about its membership.
    pub(super) fn heeds(&mut self, code: Code) {
        match code {
            REBALANCING => self.rejoins = true,
            UNKNOWN_MEMBER | ILLEGAL_GENERATION | NO_GROUP | FENCED_INSTANCE => {
                (self.rejoins, self.is_lost) = (true, true);
            }
            _ => {}
        }
    }
}

/// Gives out all inputs: to each member those whose numbers are its own.
fn assign(members: &[JoinedMember]) -> Vec<(String, Bytes)> {
    let of = |(at, member): (usize, &JoinedMember)| {
        let mine = (0..INPUTS.len()).skip(at).step_by(members.len()).map(|input| u8::try_from(input).expect("few"));
        (member.member_id.clone(), mine.collect::<Vec<u8>>().into())
    };
    members.iter().enumerate().map(of).collect()
}

/// Whether what was refused is simply to be asked again, maybe of another broker.
pub(super) fn is_passing(code: Code) -> bool {
    matches!(code, LOADING | NOT_AVAILABLE | NOT_COORDINATOR | NETWORK | CONCURRENT)
}

impl World {
    pub(super) fn member_acts(&mut self, number: usize) {
        self.beats(number);
        let now = self.now;
        let member = &mut self.members[number];
        if member.main.is_some() || member.rests_until > now {
            return;
        }
        if member.leaves_at.is_some_and(|at| at <= now) && member.doing == Doing::Read {
            member.leaves_at = None;
            member.doing = Doing::Gone;
            return self.leaves(number);
        }
        match member.doing.clone() {
            Doing::Copies(doing) => self.copier_acts(number, doing),
            Doing::Join => {
                let fresh = self.number();
                let request = self.members[number].join(fresh);
                self.ask_group(number, request);
            }
            Doing::Sync(assignments) => {
                let sync = Sync { member: member.at(), protocol_type: None, protocol: None, assignments };
                self.ask_group(number, Request::Sync(sync));
            }
            Doing::Offsets | Doing::Read if member.rejoins => member.joins_again(),
            Doing::Offsets if member.mine.is_empty() => member.doing = Doing::Read,
            Doing::Offsets => {
                let request = member.offsets();
                self.ask_group(number, request);
            }
            Doing::Read => self.member_reads(number),
            Doing::Commit(input, offset) => {
                let request = Request::Commit(member.commit(input, offset, None));
                self.ask_group(number, request);
            }
            Doing::Gone => {}
        }
    }

    fn ask_group(&mut self, number: usize, request: Request) {
        self.ask_as_member(number, OFFSETS, Ask::Coordinator(Asking::Group(request)));
    }

    pub(super) fn ask_as_member(&mut self, number: usize, at: usize, ask: Ask) {
        let to = self.whom_to_ask(at);
        let asked = self.send(Client::Member(number), to, ask);
        self.members[number].main = Some(asked);
    }

    fn beats(&mut self, number: usize) {
        let now = self.now;
        let member = &mut self.members[number];
        let joins = matches!(member.doing, Doing::Join | Doing::Sync(_) | Doing::Gone);
        if member.beat.is_some() || !member.is_in_group() || joins || member.is_lost || member.beats_at > now {
            return;
        }
        member.beats_at = now + HEARTBEAT_MS;
        let request = Request::Heartbeat(member.at());
        let to = self.whom_to_ask(OFFSETS);
        let asked = self.send(Client::Member(number), to, Ask::Coordinator(Asking::Group(request)));
        self.members[number].beat = Some(asked);
    }

    /// Says goodbye and does not wait.
    pub(super) fn leaves(&mut self, number: usize) {
        let member = &self.members[number];
        let leaving = Leaving { member_id: member.id.clone(), group_instance_id: member.instance.clone() };
        let request = Request::Leave { group: member.group.into(), members: vec![leaving] };
        let to = self.whom_to_ask(OFFSETS);
        let asked = self.send(Client::Member(number), to, Ask::Coordinator(Asking::Group(request)));
        // The connection stays open for that long.
        self.members[number].beat = Some(asked);
    }

    fn member_reads(&mut self, number: usize) {
        let member = &mut self.members[number];
        member.turn += 1;
        let Some(input) = member.mine.get(member.turn % member.mine.len().max(1)).copied() else { return };
        let from = member.next[input];
        let numbers = self.read_input(input, from);
        let member = &mut self.members[number];
        let Some(last) = numbers.last() else {
            member.rests_until = self.now + 10;
            return;
        };
        let to = last + 1;
        if member.copier.is_some() {
            return self.begin_copy(number, input, &numbers);
        }
        member.doing = Doing::Commit(input, to);
    }

    pub(super) fn member_hears(&mut self, number: usize, request: u64, told: Told) {
        let member = &mut self.members[number];
        let refusal = told.refusal();
        if member.beat == Some(request) {
            member.beat = None;
            refusal.into_iter().for_each(|code| member.heeds(code));
            return;
        }
        member.main = None;
        if let Doing::Copies(doing) = member.doing.clone() {
            return self.copier_hears(number, doing, &told);
        }
        if let Some(code) = refusal {
            return self.member_refused(number, code, told);
        }
        match told {
            Told::Group(Answer::Join(Ok(joined))) => member.hears_joined(joined),
            Told::Group(Answer::Sync(Ok(synced))) => {
                member.mine = synced.assignment.iter().map(|input| usize::from(*input)).collect();
                member.doing = Doing::Offsets;
                self.counts.assigned += 1;
            }
            Told::Group(Answer::Offsets(Ok(offsets))) => {
                let at = |found: &FetchedOffset| found.offset.as_ref().ok()?.as_ref().map(|value| value.offset);
                let mine = member.mine.clone();
                for (input, found) in mine.into_iter().zip(&offsets) {
                    member.next[input] = at(found).unwrap_or(0);
                }
                member.doing = Doing::Read;
            }
            Told::Group(Answer::Commit(Ok(_))) => {
                if let Doing::Commit(input, offset) = member.doing {
                    member.next[input] = offset;
                    member.doing = Doing::Read;
                }
            }
            Told::Transaction(TransactionAnswer::Producer(_)) => panic!("it is no copier"),
            other => panic!("not for a member that is at {:?}: {other:?}", member.doing),
        }
    }

    fn member_refused(&mut self, number: usize, code: Code, told: Told) {
        let rest_ms = self.chance.between(5, 25);
        let member = &mut self.members[number];
        member.rests_until = self.now + rest_ms;
        member.heeds(code);
        match code {
            MEMBER_ID_REQUIRED => {
                let Told::Group(Answer::Join(Err((_, id)))) = told else { panic!("only a join is: {told:?}") };
                member.id = id;
            }
            REBALANCING | UNKNOWN_MEMBER | ILLEGAL_GENERATION | NO_GROUP | FENCED_INSTANCE => member.joins_again(),
            UNSTABLE => self.counts.unstable += 1,
            code => assert!(is_passing(code) && code != INVALID_STATE, "a member at {:?} is told {code}", member.doing),
        }
    }
}
