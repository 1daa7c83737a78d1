//! A producer that copies exactly once, and coordinators of its transactions and of its group that end at each step of it:
//! at every single one, and the coordinator of transactions at every two.
//!
//! The log of each coordinator, the partitions and the way between them are modelled: what is in a log stays, what is on its
//! way to or from a coordinator that ends is lost, but for markers, which may arrive late.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_groups::transactions::{
    Partition, TransactionAnswer, TransactionConfig, TransactionCoordinator, TransactionEffect, TransactionInput,
    TransactionRefused, TransactionRequest,
};
use highwater_groups::{
    Answer, AppendId, Appended, Commit, CommittedOffset, Coordinator, Effect, FetchOffsets, GroupConfig, Input,
    LoadedBatch, MemberAt, Now, Producer, Record, Request, Ticket,
};

const ID: &str = "copier";
const GROUP: &str = "readers";
const OFFSETS: &str = "__consumer_offsets";

/// Each transaction writes to two partitions and commits the offset that is its number; whether it commits.
const SCRIPT: [bool; 4] = [true, false, true, true];

/// Longer than anything takes that goes on.
const ACTIONS_MAX: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whom {
    Transactions,
    Group,
}

/// The end of a transaction in one partition, on its way there.
#[derive(Clone, Debug)]
struct Marker {
    producer: Producer,
    commits: bool,
    coordinator_epoch: i32,
    at: Partition,
}

/// Something that happens next.
#[derive(Clone, Debug)]
enum Action {
    Append(AppendId, Record),
    Appended(AppendId),
    ProducerId(Ticket),
    Answer(Ticket, TransactionAnswer),
    Write(Marker),
    Marked(Marker),
    GroupAppend(AppendId, LoadedBatch),
    GroupAppended(AppendId),
    GroupMarked(Marker),
    GroupAnswer(Ticket, Answer),
}

impl Action {
    /// What is lost when that coordinator ends.
    fn is_lost_with(&self, whom: Whom) -> bool {
        match self {
            Self::Append(..) | Self::Appended(_) | Self::ProducerId(_) | Self::Answer(..) | Self::Marked(_) => {
                whom == Whom::Transactions
            }
            Self::Write(_) | Self::GroupMarked(_) => false,
            Self::GroupAppend(..) | Self::GroupAppended(_) | Self::GroupAnswer(..) => whom == Whom::Group,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Data { producer: Producer, transaction: usize },
    Marker { producer: Producer, commits: bool },
}

/// A partition with what its leader knows of producers.
#[derive(Clone, Debug, Default)]
struct Log {
    entries: Vec<Entry>,
    epochs: BTreeMap<i64, (i16, i32)>,
}

impl Log {
    fn may_mark(&self, marker: &Marker) -> bool {
        let known = self.epochs.get(&marker.producer.id);
        known.is_none_or(|(epoch, by)| marker.producer.epoch >= *epoch && marker.coordinator_epoch >= *by)
    }

    fn mark(&mut self, marker: &Marker) {
        self.epochs.insert(marker.producer.id, (marker.producer.epoch, marker.coordinator_epoch));
        self.entries.push(Entry::Marker { producer: marker.producer, commits: marker.commits });
    }

    fn write(&mut self, producer: Producer, transaction: usize) {
        let known = self.epochs.entry(producer.id).or_insert((producer.epoch, -1));
        assert!(producer.epoch >= known.0, "a producer that is the newest is fenced");
        known.0 = producer.epoch;
        self.entries.push(Entry::Data { producer, transaction });
    }

    /// The transactions that a reader of committed records sees, and whether anything is undecided.
    fn committed(&self) -> (Vec<usize>, bool) {
        let (mut open, mut seen): (BTreeMap<i64, Vec<usize>>, _) = (BTreeMap::new(), Vec::new());
        for entry in &self.entries {
            match entry {
                Entry::Data { producer, transaction } => open.entry(producer.id).or_default().push(*transaction),
                Entry::Marker { producer, commits } => {
                    let of = open.remove(&producer.id).unwrap_or_default();
                    seen.extend(of.into_iter().filter(|_| *commits));
                }
            }
        }
        (seen, !open.is_empty())
    }
}

struct World {
    now: Now,
    transactions: TransactionCoordinator,
    transactions_log: Vec<Record>,
    coordinator_epoch: i32,
    group: Coordinator,
    group_log: Vec<LoadedBatch>,
    offsets: Log,
    partitions: [Log; 2],
    actions: VecDeque<Action>,
    done: usize,
    crashes: BTreeMap<usize, Whom>,
    tickets: u64,
    answers: BTreeMap<Ticket, TransactionAnswer>,
    group_answers: BTreeMap<Ticket, Answer>,
    next_producer_id: i64,
}

impl World {
    fn new(crashes: BTreeMap<usize, Whom>) -> Self {
        let mut world = Self {
            now: Now { uptime_ms: 10, timestamp_ms: 1_000_000 },
            transactions: TransactionCoordinator::new(TransactionConfig::default()),
            transactions_log: Vec::new(),
            coordinator_epoch: 0,
            group: Coordinator::new(GroupConfig::default()),
            group_log: Vec::new(),
            offsets: Log::default(),
            partitions: [Log::default(), Log::default()],
            actions: VecDeque::new(),
            done: 0,
            crashes,
            tickets: 0,
            answers: BTreeMap::new(),
            group_answers: BTreeMap::new(),
            next_producer_id: 1000,
        };
        world.tell(TransactionInput::Loaded);
        world.tell_group(Input::Loaded);
        world
    }

    fn tell(&mut self, input: TransactionInput) {
        for effect in self.transactions.handle(self.now, input) {
            match effect {
                TransactionEffect::Answer(ticket, answer) => self.actions.push_back(Action::Answer(ticket, answer)),
                TransactionEffect::NeedProducerId(ticket) => self.actions.push_back(Action::ProducerId(ticket)),
                TransactionEffect::Append { id, record, .. } => self.actions.push_back(Action::Append(id, record)),
                TransactionEffect::Mark { producer, commits, partitions, .. } => {
                    let coordinator_epoch = self.coordinator_epoch;
                    let marker = |at| Action::Write(Marker { producer, commits, coordinator_epoch, at });
                    self.actions.extend(partitions.into_iter().map(marker));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn tell_group(&mut self, input: Input) {
        for effect in self.group.handle(self.now, input) {
            match effect {
                Effect::Answer(ticket, answer) => self.actions.push_back(Action::GroupAnswer(ticket, answer)),
                Effect::Append { id, transaction, records } => {
                    let transaction = transaction.map(|producer| producer.id);
                    self.actions.push_back(Action::GroupAppend(id, LoadedBatch::Records { transaction, records }));
                }
                // All of them are there.
                Effect::LookUpTopics(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// A coordinator ends, and another one takes over with what is in the log.
    fn crash(&mut self, whom: Whom) {
        let actions = std::mem::take(&mut self.actions);
        let left = actions.into_iter().filter(|action| !action.is_lost_with(whom));
        self.actions = match whom {
            Whom::Transactions => left.collect(),
            // Whoever waits for the marker is told to send it again.
            Whom::Group => left
                .map(|action| match action {
                    Action::GroupMarked(marker) => Action::Write(marker),
                    action => action,
                })
                .collect(),
        };
        match whom {
            Whom::Transactions => {
                self.coordinator_epoch += 1;
                self.transactions = TransactionCoordinator::new(TransactionConfig::default());
                for record in self.transactions_log.clone() {
                    self.tell(TransactionInput::Load(record));
                }
                self.tell(TransactionInput::Loaded);
            }
            Whom::Group => {
                self.group = Coordinator::new(GroupConfig::default());
                for batch in self.group_log.clone() {
                    self.tell_group(Input::Load(batch));
                }
                self.tell_group(Input::Loaded);
            }
        }
    }

    /// Carries out what is next. False if there is nothing.
    fn step(&mut self) -> bool {
        if let Some(whom) = self.crashes.remove(&self.done) {
            self.crash(whom);
        }
        let Some(action) = self.actions.pop_front() else { return false };
        self.done += 1;
        assert!(self.done < ACTIONS_MAX, "it does not come to an end");
        match action {
            Action::Append(id, record) => {
                self.transactions_log.push(record);
                self.actions.push_back(Action::Appended(id));
            }
            Action::Appended(id) => self.tell(TransactionInput::Appended(id, Appended::Committed)),
            Action::ProducerId(ticket) => {
                let id = self.next_producer_id;
                self.next_producer_id += 1;
                self.tell(TransactionInput::ProducerId(ticket, Some(id)));
            }
            Action::Answer(ticket, answer) => assert_eq!(self.answers.insert(ticket, answer), None),
            Action::Write(marker) => self.write_marker(marker),
            Action::Marked(marker) => self.tell(TransactionInput::Marked {
                id: ID.into(),
                producer: marker.producer,
                partitions: vec![marker.at],
            }),
            Action::GroupAppend(id, batch) => {
                self.group_log.push(batch);
                self.actions.push_back(Action::GroupAppended(id));
            }
            Action::GroupAppended(id) => self.tell_group(Input::Appended(id, Appended::Committed)),
            Action::GroupMarked(marker) => {
                let (producer_id, commits) = (marker.producer.id, marker.commits);
                self.tell_group(Input::Marker { producer_id, commits });
                self.report(marker);
            }
            Action::GroupAnswer(ticket, answer) => assert_eq!(self.group_answers.insert(ticket, answer), None),
        }
        true
    }

    fn write_marker(&mut self, marker: Marker) {
        let of_group = marker.at.0 == OFFSETS;
        let log = match marker.at.1 {
            _ if of_group => &mut self.offsets,
            0 => &mut self.partitions[0],
            _ => &mut self.partitions[1],
        };
        if !log.may_mark(&marker) {
            // From a coordinator that is none any more.
            assert!(marker.coordinator_epoch < self.coordinator_epoch, "the coordinator is fenced: {marker:?}");
            return;
        }
        log.mark(&marker);
        if of_group {
            let (producer_id, commits) = (marker.producer.id, marker.commits);
            self.group_log.push(LoadedBatch::Marker { producer_id, commits });
            self.actions.push_back(Action::GroupMarked(marker));
        } else {
            self.report(marker);
        }
    }

    /// Only the coordinator that has sent it hears of it.
    fn report(&mut self, marker: Marker) {
        if marker.coordinator_epoch == self.coordinator_epoch {
            self.actions.push_back(Action::Marked(marker));
        }
    }

    fn rest(&mut self) {
        while self.step() {}
        self.now.uptime_ms += 200;
        self.now.timestamp_ms += 200;
        self.tell(TransactionInput::Tick);
        while self.step() {}
    }

    /// Asks until the answer is none of those that say to ask again.
    fn ask(&mut self, request: &TransactionRequest) -> TransactionAnswer {
        loop {
            self.tickets += 1;
            let ticket = Ticket(self.tickets);
            self.tell(TransactionInput::Request(ticket, request.clone()));
            while !self.answers.contains_key(&ticket) && self.step() {}
            let Some(answer) = self.answers.remove(&ticket) else { continue };
            let again = |why: TransactionRefused| {
                let retriable =
                    [TransactionRefused::ConcurrentTransactions, TransactionRefused::CoordinatorNotAvailable];
                retriable.contains(&why)
            };
            match &answer {
                TransactionAnswer::Producer(Err(why)) | TransactionAnswer::Done(Err(why)) if again(*why) => self.rest(),
                _ => return answer,
            }
        }
    }

    fn producer(&mut self, request: &TransactionRequest) -> Producer {
        match self.ask(request) {
            TransactionAnswer::Producer(Ok(producer)) => producer,
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn add(&mut self, producer: Producer, partitions: &[(&str, i32)]) {
        let partitions = partitions.iter().map(|(topic, partition)| ((*topic).to_owned(), *partition)).collect();
        let answer = self.ask(&TransactionRequest::Add { id: ID.into(), producer, partitions });
        assert_eq!(answer, TransactionAnswer::Done(Ok(())));
    }

    fn ask_group(&mut self, request: &Request) -> Answer {
        loop {
            self.tickets += 1;
            let ticket = Ticket(self.tickets);
            self.tell_group(Input::Request(ticket, request.clone()));
            while !self.group_answers.contains_key(&ticket) && self.step() {}
            if let Some(answer) = self.group_answers.remove(&ticket) {
                return answer;
            }
        }
    }

    fn run(&mut self, bumps: bool) {
        let begin = TransactionRequest::Begin { id: ID.into(), timeout_ms: 60_000, expected: None };
        let mut producer = self.producer(&begin);
        for (number, &commits) in SCRIPT.iter().enumerate() {
            self.add(producer, &[("books", 0), ("books", 1)]);
            self.partitions[0].write(producer, number);
            self.partitions[1].write(producer, number);
            self.add(producer, &[(OFFSETS, 0)]);
            let offset = i64::try_from(number).unwrap();
            let offset = CommittedOffset { topic: "input".into(), offset, leader_epoch: -1, ..Default::default() };
            let member = MemberAt { group: GROUP.into(), generation: -1, ..MemberAt::default() };
            let commit = Request::Commit(Commit { member, transaction: Some(producer), offsets: vec![offset] });
            assert_eq!(self.ask_group(&commit), Answer::Commit(Ok(vec![Ok(())])));
            let known = self.offsets.epochs.entry(producer.id).or_insert((producer.epoch, -1));
            known.0 = known.0.max(producer.epoch);
            let next = self.producer(&TransactionRequest::End { id: ID.into(), producer, commits, bumps });
            assert_eq!(next != producer, bumps, "a new epoch after each transaction, or none");
            producer = next;
        }
        self.rest();
        self.rest();
    }

    /// Each committed transaction once, in order, wherever it wrote; nothing of the others; nothing undecided.
    fn check(&mut self) {
        let expected: Vec<usize> = (0..SCRIPT.len()).filter(|number| SCRIPT[*number]).collect();
        for log in &self.partitions {
            assert_eq!(log.committed(), (expected.clone(), false), "{:?}", log.entries);
        }
        let partitions = Some(vec![("input".into(), 0)]);
        let fetch = FetchOffsets { group: GROUP.into(), partitions, require_stable: true };
        let Answer::Offsets(Ok(offsets)) = self.ask_group(&Request::FetchOffsets(fetch)) else { panic!("no offsets") };
        let offset = offsets[0].offset.clone().expect("decided").expect("committed").offset;
        assert_eq!(offset, i64::try_from(*expected.last().unwrap()).unwrap());
    }
}

fn run(bumps: bool, crashes: &[(usize, Whom)]) -> usize {
    let mut world = World::new(crashes.iter().copied().collect());
    world.run(bumps);
    world.check();
    world.done
}

/// How many steps there are without a crash, and that these come to what they should.
fn steps(bumps: bool) -> usize {
    let steps = run(bumps, &[]);
    assert!(steps > 50, "{steps} steps");
    steps
}

#[test]
fn a_coordinator_that_ends_at_any_step_loses_and_doubles_nothing() {
    for bumps in [false, true] {
        for step in 0..=steps(bumps) {
            for whom in [Whom::Transactions, Whom::Group] {
                run(bumps, &[(step, whom)]);
            }
        }
    }
}

#[test]
fn nor_do_two_that_end_at_any_two_steps() {
    for bumps in [false, true] {
        let steps = steps(bumps);
        for first in 0..=steps {
            // What a take-over takes is looked at closely, the rest of the way in strides.
            let seconds: BTreeSet<usize> = (first + 1..=first + 8).chain((first + 8..steps + 20).step_by(7)).collect();
            for second in seconds {
                run(bumps, &[(first, Whom::Transactions), (second, Whom::Transactions)]);
                run(bumps, &[(first, Whom::Transactions), (second, Whom::Group)]);
            }
        }
    }
}
