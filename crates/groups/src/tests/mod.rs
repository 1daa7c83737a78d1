//! Coordinators, asked and answered.

mod joining;
mod offsets;
mod random;
mod restarts;
mod static_members;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::*;

/// A coordinator with a clock of its own and a log in which each append is committed at once, unless held back.
#[derive(Debug)]
struct Rig {
    coordinator: Coordinator,
    now: Now,
    tickets: u64,
    answers: BTreeMap<Ticket, Answer>,
    /// What was appended, with its transaction.
    log: Vec<(Option<Producer>, Vec<Record>)>,
    /// How appends end from now on; `None` holds them back.
    appends_end: Option<Appended>,
    held: Vec<AppendId>,
    /// The topics that were asked after.
    looked_up: Vec<BTreeSet<String>>,
}

impl Rig {
    fn new() -> Self {
        Self::with(GroupConfig { initial_rebalance_delay_ms: 0, ..GroupConfig::default() })
    }

    fn with(config: GroupConfig) -> Self {
        let mut rig = Self::loading(config);
        rig.input(Input::Loaded);
        rig
    }

    fn loading(config: GroupConfig) -> Self {
        Self {
            coordinator: Coordinator::new(config),
            now: Now { uptime_ms: 10, timestamp_ms: 1_000_000 },
            tickets: 0,
            answers: BTreeMap::new(),
            log: Vec::new(),
            appends_end: Some(Appended::Committed),
            held: Vec::new(),
            looked_up: Vec::new(),
        }
    }

    fn input(&mut self, input: Input) {
        let mut effects = self.coordinator.handle(self.now, input);
        while !effects.is_empty() {
            let mut ended = Vec::new();
            for effect in effects {
                match effect {
                    Effect::Answer(ticket, answer) => {
                        let before = self.answers.insert(ticket, answer);
                        assert_eq!(before, None, "{ticket:?} is answered twice");
                    }
                    Effect::Append { id, transaction, records } => {
                        assert!(!records.is_empty());
                        match self.appends_end {
                            Some(how) => {
                                if matches!(how, Appended::Committed | Appended::Late) {
                                    self.log.push((transaction, records));
                                }
                                ended.push((id, how));
                            }
                            None => {
                                self.log.push((transaction, records));
                                self.held.push(id);
                            }
                        }
                    }
                    Effect::LookUpTopics(topics) => self.looked_up.push(topics),
                    Effect::Odd(what) => panic!("{what}"),
                }
            }
            effects = Vec::new();
            for (id, how) in ended {
                effects.extend(self.coordinator.handle(self.now, Input::Appended(id, how)));
            }
        }
    }

    /// Asks, and gives what stands for the answer.
    fn ask(&mut self, request: Request) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.input(Input::Request(ticket, request));
        ticket
    }

    fn answer(&mut self, ticket: Ticket) -> Answer {
        self.answers.remove(&ticket).unwrap_or_else(|| panic!("{ticket:?} is not answered"))
    }

    /// Those that are held back end, in the order of the log.
    fn held_end(&mut self, how: Appended) {
        for append in std::mem::take(&mut self.held) {
            self.input(Input::Appended(append, how));
        }
    }

    fn waits(&self, ticket: Ticket) -> bool {
        !self.answers.contains_key(&ticket)
    }

    fn passes_ms(&mut self, milliseconds: u64) {
        let until = self.now.uptime_ms + milliseconds;
        while let Some(at) = self.coordinator.next_deadline_ms().filter(|&at| at <= until) {
            self.advance_to(at.max(self.now.uptime_ms));
            self.input(Input::Tick);
        }
        self.advance_to(until);
    }

    fn advance_to(&mut self, uptime_ms: u64) {
        self.now.timestamp_ms += i64::try_from(uptime_ms - self.now.uptime_ms).unwrap();
        self.now.uptime_ms = uptime_ms;
    }

    /// A new member that is let in at once, and its id.
    fn member(&mut self, client: &str) -> (Ticket, String) {
        let ticket = self.ask(Request::Join(join(client)));
        let Answer::Join(Err((Refused::MemberIdRequired, id))) = self.answer(ticket) else { panic!("79 is due") };
        (self.ask(Request::Join(Join { member_id: id.clone(), ..join(client) })), id)
    }

    fn joined(&mut self, ticket: Ticket) -> Joined {
        match self.answer(ticket) {
            Answer::Join(Ok(joined)) => joined,
            other => panic!("{other:?}"),
        }
    }

    fn join_refused(&mut self, ticket: Ticket) -> Refused {
        match self.answer(ticket) {
            Answer::Join(Err((why, _))) => why,
            other => panic!("{other:?}"),
        }
    }

    fn sync(&mut self, member: &str, generation: i32, assignments: &[(&str, &'static str)]) -> Ticket {
        let given = assignments.iter().map(|&(id, what)| (id.to_owned(), Bytes::from_static(what.as_bytes())));
        let sync = Sync { member: at(member, generation), assignments: given.collect(), ..Sync::default() };
        self.ask(Request::Sync(sync))
    }

    fn assigned(&mut self, ticket: Ticket) -> Result<Bytes, Refused> {
        match self.answer(ticket) {
            Answer::Sync(synced) => synced.map(|synced| synced.assignment),
            other => panic!("{other:?}"),
        }
    }

    fn heartbeat(&mut self, member: &str, generation: i32) -> Result<(), Refused> {
        let ticket = self.ask(Request::Heartbeat(at(member, generation)));
        match self.answer(ticket) {
            Answer::Heartbeat(done) => done,
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Result<(), Refused>> {
        let members = members
            .iter()
            .map(|&(id, instance)| Leaving { member_id: id.into(), group_instance_id: instance.map(Into::into) });
        let ticket = self.ask(Request::Leave { group: "g".into(), members: members.collect() });
        match self.answer(ticket) {
            Answer::Leave(left) => left.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn describe(&mut self) -> GroupDescription {
        let ticket = self.ask(Request::Describe("g".into()));
        match self.answer(ticket) {
            Answer::Described(described) => described.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A stable group of so many members; their ids, the leader's first, and the generation.
    fn stable(&mut self, members: usize) -> (Vec<String>, i32) {
        let mut ids = Vec::<String>::new();
        for number in 0..members {
            let (ticket, id) = self.member(&format!("c{number}"));
            let mut waiting = vec![ticket];
            // Those that are in it hear of it and join again.
            for (place, id) in ids.clone().into_iter().enumerate() {
                waiting.push(self.ask(Request::Join(Join { member_id: id, ..join(&format!("c{place}")) })));
            }
            for ticket in waiting {
                self.joined(ticket);
            }
            ids.push(id);
        }
        let generation = i32::try_from(members).unwrap();
        let all: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "part")).collect();
        let synced = self.sync(&ids[0], generation, &all);
        assert_eq!(self.assigned(synced).unwrap(), "part");
        for id in &ids[1..] {
            let synced = self.sync(id, generation, &[]);
            assert_eq!(self.assigned(synced).unwrap(), "part");
        }
        assert_eq!(self.describe().listing.state, GroupState::Stable);
        (ids, generation)
    }

    fn commit(&mut self, commit: Commit) -> Result<Vec<Result<(), Refused>>, Refused> {
        let ticket = self.ask(Request::Commit(commit));
        match self.answer(ticket) {
            Answer::Commit(done) => done,
            other => panic!("{other:?}"),
        }
    }

    fn fetch(&mut self, partitions: Option<Vec<(String, i32)>>, require_stable: bool) -> Vec<FetchedOffset> {
        self.fetch_of("g", partitions, require_stable)
    }

    fn fetch_of(&mut self, group: &str, of: Option<Vec<(String, i32)>>, require_stable: bool) -> Vec<FetchedOffset> {
        let partitions = of.map(|of| of.into_iter().map(|(topic, partition)| (topic.into(), partition)).collect());
        let fetch = FetchOffsets { group: group.into(), partitions, require_stable };
        let ticket = self.ask(Request::FetchOffsets(fetch));
        match self.answer(ticket) {
            Answer::Offsets(Ok(offsets)) => offsets,
            other => panic!("{other:?}"),
        }
    }

    fn offset(&mut self, group: &str, require_stable: bool) -> Result<Option<i64>, Refused> {
        let found = self.fetch_of(group, Some(vec![("books".to_owned(), 0)]), require_stable);
        found[0].offset.clone().map(|value| value.map(|value| value.offset))
    }

    fn groups(&mut self) -> Vec<String> {
        let ticket = self.ask(Request::List);
        match self.answer(ticket) {
            Answer::Listed(Ok(groups)) => groups.into_iter().map(|listing| listing.group).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn join(client: &str) -> Join {
    Join {
        group: "g".into(),
        client_id: client.into(),
        client_host: "/127.0.0.1".into(),
        fresh_id: "fresh".into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 60_000,
        protocol_type: "consumer".into(),
        protocols: vec![("range".into(), subscription("books")), ("sticky".into(), Bytes::from_static(b"?"))],
        requires_known_member_id: true,
        ..Join::default()
    }
}

fn subscription(topic: &str) -> Bytes {
    let length = u16::try_from(topic.len()).unwrap().to_be_bytes();
    [&b"\0\0\0\0\0\x01"[..], &length, topic.as_bytes()].concat().into()
}

fn at(member: &str, generation: i32) -> MemberAt {
    MemberAt { group: "g".into(), member_id: member.into(), group_instance_id: None, generation }
}

fn anonymous(group: &str) -> MemberAt {
    MemberAt { group: group.into(), generation: -1, ..MemberAt::default() }
}

fn books(offset: i64) -> Vec<CommittedOffset> {
    vec![CommittedOffset { topic: "books".into(), offset, leader_epoch: -1, ..CommittedOffset::default() }]
}
