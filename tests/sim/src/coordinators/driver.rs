//! One coordinator at work: its machine, the log it keeps its state in, and who asks it. In the order of the broker's
//! (`crates/broker/src/coordinators/actor.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use highwater_groups::{AppendId, Appended, Guard, Record};
use highwater_replication::{Acks, ProduceError, ProduceRefused, Role};
use highwater_storage::{AppendError, CheckedBatch, LeaderEpoch, Origin, ProduceRules, SequenceError, TimestampMs};

use super::client::Asking;
use super::machine::{Away, Deed, Happens, Machine, away, batch, load};
use super::markers::NotMarked;
use super::produce::{Given, NotProduced, Outcome, Then};
use super::*;

/// How often it looks whether its partition is led here and committed, until it may serve.
const POLL_MS: i64 = 5;

/// Read at a time when it loads: little, so that it is long at it.
const CHUNK_BYTES: usize = 1_500;

/// How long whoever waits for an append waits until it is told to try again.
const PATIENCE_MS: i64 = 120;

/// About how many bytes of records go into a batch together.
const TOGETHER_BYTES: usize = 600;

/// Appends that are under way at a time.
const APPENDS_MAX: usize = 2;

pub(super) struct Driver {
    /// What belongs to a machine before is dropped.
    pub(super) number: u64,
    pub(super) leader_epoch: LeaderEpoch,
    machine: Machine,
    stage: Stage,
    tickets: u64,
    asked: BTreeMap<Ticket, Asker>,
    together: Together,
    /// In the order of the log, in which they end too.
    appends: VecDeque<Waiting>,
    pub(super) markings: BTreeMap<u64, Marking>,
    /// The deadline a tick is scheduled for, and its number: one that was overtaken by an earlier one is none.
    ticking: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The partition is not led here yet, as far as its replica knows.
    Waits,
    Loads {
        next: Offset,
        end: Offset,
    },
    Serves,
}

/// Whoever waits for an answer, and what that is about.
#[derive(Clone, Debug)]
pub(super) enum Asker {
    Client(Caller, truth::About),
    /// A broker, about a batch that it was given.
    Part(taking_part::Asked),
}

#[derive(Debug, Default)]
struct Together {
    ids: Vec<AppendId>,
    records: Vec<Record>,
    bytes: usize,
}

/// An append that waits to be committed.
struct Waiting {
    number: u64,
    what: What,
    outcome: Option<Outcome>,
    /// When whoever waits for it is told to try again; `None` once that was done.
    late_at: Option<i64>,
}

enum What {
    Records(Vec<AppendId>),
    Marker(Box<MarkerSent>),
}

/// Why a machine ends: it is not known what of the log will stay, or the partition is not led here any more.
struct Unsure;

impl Driver {
    fn new(number: u64, which: usize, leader_epoch: LeaderEpoch) -> Self {
        Self {
            number,
            leader_epoch,
            machine: Machine::new(which),
            stage: Stage::Waits,
            tickets: 0,
            asked: BTreeMap::new(),
            together: Together::default(),
            appends: VecDeque::new(),
            markings: BTreeMap::new(),
            ticking: None,
        }
    }

    pub(super) fn serves(&self) -> bool {
        self.stage == Stage::Serves
    }

    /// The machine as it is, to be looked at.
    pub(super) fn machine(&self) -> Machine {
        self.machine.clone()
    }

    fn log_has_enough(&self) -> bool {
        self.appends.len() >= APPENDS_MAX && self.appends.front().is_some_and(|append| append.late_at.is_some())
    }
}

impl World {
    fn driver(&mut self, node: usize, which: usize) -> Option<&mut Driver> {
        self.nodes[node].running.as_mut()?.drivers[which].as_mut()
    }

    /// The one of that number, if it has not ended.
    pub(super) fn driver_of(&mut self, node: usize, which: usize, number: u64) -> Option<&mut Driver> {
        self.driver(node, which).filter(|driver| driver.number == number)
    }

    /// Starts and ends coordinators as leaderships come and go.
    pub(super) fn follow(&mut self, node: usize, which: usize) {
        let id = self.nodes[node].id;
        let Some(running) = &self.nodes[node].running else { return };
        let told = running.replicas[which].told.as_ref();
        let led = told.filter(|told| told.value.leader == Some(id)).map(|told| told.value.leader_epoch);
        if running.drivers[which].as_ref().map(|driver| driver.leader_epoch) == led {
            return;
        }
        self.dismiss(node, which);
        if let Some(epoch) = led {
            self.begin_driver(node, which, epoch);
        }
    }

    fn begin_driver(&mut self, node: usize, which: usize, epoch: LeaderEpoch) {
        let number = self.number();
        if let Some(running) = &mut self.nodes[node].running {
            running.drivers[which] = Some(Driver::new(number, which, epoch));
            self.schedule(1, node, Event::DriverLooks(which, number));
        }
    }

    /// It ends. Whoever waits is told so.
    fn dismiss(&mut self, node: usize, which: usize) {
        self.drive(node, which, Happens::Resigned, None);
        let Some(running) = &mut self.nodes[node].running else { return };
        let Some(driver) = running.drivers[which].take() else { return };
        note!(self, node, "coordinates no more of {}", NAMES[which].0);
        for asker in driver.asked.into_values() {
            self.tell_asker(node, which, asker, None);
        }
        for append in driver.appends {
            if let What::Marker(sent) = append.what {
                self.marker_ends(node, *sent, Err(NotMarked::NotLeader));
            }
        }
    }

    /// It does not know what of its log will stay. Another machine reads that, if the partition goes on being led here.
    fn ends_unsure(&mut self, node: usize, which: usize) {
        let Some(epoch) = self.driver(node, which).map(|driver| driver.leader_epoch) else { return };
        self.counts.unsure += 1;
        self.dismiss(node, which);
        self.begin_driver(node, which, epoch);
    }

    /// Goes on loading, until it serves.
    pub(super) fn driver_looks(&mut self, node: usize, which: usize, number: u64) {
        let again_ms = self.nodes[node].random.between(1, POLL_MS);
        let Some(driver) = self.driver_of(node, which, number) else { return };
        let (stage, epoch) = (driver.stage, driver.leader_epoch);
        let Some(replica) = self.nodes[node].replica(which) else { return };
        let status = replica.partition.status();
        let leads = replica.leads_in(epoch);
        let mut next_stage = stage;
        match stage {
            Stage::Waits if leads => {
                // Behind all that a machine before handed in.
                next_stage = Stage::Loads { next: replica.partition.log().start(), end: status.log_end };
            }
            Stage::Waits | Stage::Serves => {}
            Stage::Loads { next, end } => match load(&replica.partition.reader(), next, end, CHUNK_BYTES) {
                Some((batches, next)) => {
                    next_stage = Stage::Loads { next, end };
                    for batch in batches {
                        self.drive(node, which, Happens::Load(batch), None);
                    }
                }
                None if !leads => return self.ends_unsure(node, which),
                None if status.high_watermark >= end => next_stage = Stage::Serves,
                None => {}
            },
        }
        let Some(driver) = self.driver_of(node, which, number) else { return };
        driver.stage = next_stage;
        if next_stage == Stage::Serves && stage != Stage::Serves {
            note!(self, node, "coordinates {} in epoch {epoch}", NAMES[which].0);
            self.counts.loaded += 1;
            self.drive(node, which, Happens::Loaded, None);
        } else {
            self.schedule(again_ms, node, Event::DriverLooks(which, number));
        }
        self.driver_rests(node, which);
    }

    /// Someone asks the coordinator here.
    pub(super) fn ask_driver(
        &mut self,
        node: usize,
        which: usize,
        asker: Asker,
        asking: Asking,
        guard: Option<&Arc<Guard>>,
    ) {
        let is_led = self.nodes[node].leader_of(which) == Some(node);
        let why = match self.driver(node, which) {
            Some(driver) if driver.stage != Stage::Waits => {
                driver.tickets += 1;
                let ticket = Ticket(driver.tickets);
                driver.asked.insert(ticket, asker);
                self.drive(node, which, Happens::Asked(ticket, asking), guard);
                return self.driver_rests(node, which);
            }
            Some(_) => Away::Loading,
            // The image is a step ahead of what follows it.
            None if is_led => Away::Loading,
            None => Away::NotHere,
        };
        self.tell_asker(node, which, asker, Some(away(&asking, why)));
    }

    fn tell_asker(&mut self, node: usize, which: usize, asker: Asker, told: Option<Told>) {
        match asker {
            Asker::Client(caller, about) => {
                let told = told.unwrap_or_else(|| Told::nobody(which));
                self.check_answer(node, which, caller, &about, &told);
                self.answer(node, caller, told);
            }
            Asker::Part(asked) => self.part_told(node, asked, told.map_or(Err(produce::NOT_COORDINATOR), Told::code)),
        }
    }

    /// Lets something happen to a machine, and carries out what it wants.
    fn drive(&mut self, node: usize, which: usize, happens: Happens, guard: Option<&Arc<Guard>>) {
        let now = self.nodes[node].time(self.now);
        let Some(driver) = self.driver(node, which) else { return };
        let number = driver.number;
        for deed in driver.machine.handle(now, happens) {
            if self.boundary(node) {
                return;
            }
            let Some(driver) = self.driver_of(node, which, number) else { return };
            match deed {
                Deed::Answer(ticket, told) => {
                    if let Some(asker) = driver.asked.remove(&ticket) {
                        self.tell_asker(node, which, asker, Some(told));
                    }
                }
                Deed::Append { id, transaction, records } => {
                    self.append(node, which, id, transaction, records, guard, now)
                }
                Deed::NeedProducerId(ticket) => self.fetch_producer_id(node, number, ticket),
                Deed::Mark { id, producer, commits, partitions } => {
                    self.begin_marking(node, id, producer, commits, &partitions);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what an append is")]
    fn append(
        &mut self,
        node: usize,
        which: usize,
        id: AppendId,
        transaction: Option<Producer>,
        records: Vec<Record>,
        guard: Option<&Arc<Guard>>,
        now: TimestampMs,
    ) {
        if transaction.is_some() {
            self.append_together(node, which);
            let batch = batch(&records, transaction, now);
            return self.produce_for(node, which, batch, What::Records(vec![id]), guard);
        }
        let bytes: usize = records
            .iter()
            .map(|record| 32 + record.key.len() + record.value.as_ref().map_or(0, |value| value.len()))
            .sum();
        let Some(driver) = self.driver(node, which) else { return };
        if !driver.together.ids.is_empty() && driver.together.bytes + bytes > TOGETHER_BYTES {
            self.append_together(node, which);
        }
        let Some(driver) = self.driver(node, which) else { return };
        driver.together.ids.push(id);
        driver.together.records.extend(records);
        driver.together.bytes += bytes;
    }

    /// Appends what has come together, if anything has.
    fn append_together(&mut self, node: usize, which: usize) {
        let now = self.nodes[node].time(self.now);
        let Some(driver) = self.driver(node, which) else { return };
        if driver.together.ids.is_empty() {
            return;
        }
        let Together { ids, records, .. } = std::mem::take(&mut driver.together);
        self.counts.gathered += u64::from(ids.len() > 1);
        self.produce_for(node, which, batch(&records, None, now), What::Records(ids), None);
    }

    fn produce_for(&mut self, node: usize, which: usize, batch: Vec<u8>, what: What, guard: Option<&Arc<Guard>>) {
        let number = self.number();
        let now = self.nodes[node].time(self.now);
        let late_at = self.now + PATIENCE_MS;
        let Some(driver) = self.driver(node, which) else { return };
        let (driver_number, leader_epoch) = (driver.number, driver.leader_epoch);
        driver.appends.push_back(Waiting { number, what, outcome: None, late_at: Some(late_at) });
        self.schedule(PATIENCE_MS, node, Event::LateIsDue(which, driver_number));
        // Markers have no sequence numbers, nor have offsets of a transaction.
        let rules = ProduceRules { origin: Origin::Coordinator, ..ProduceRules::default() };
        let batch = CheckedBatch::check(batch, &rules, now).expect("a valid batch");
        self.produce(
            node,
            Given {
                at: which,
                batch,
                acks: Acks::All,
                deadline: TimestampMs(i64::MAX),
                guard: guard.cloned(),
                counts_anew: false,
                leader_epoch: Some(leader_epoch),
                then: Then::Driver { which, driver: driver_number, number },
            },
        );
    }

    /// An append has ended; those before it may have not.
    pub(super) fn append_ended(&mut self, node: usize, which: usize, driver: u64, number: u64, outcome: Outcome) {
        let Some(of) = self.driver_of(node, which, driver) else { return };
        if let Some(append) = of.appends.iter_mut().find(|append| append.number == number) {
            append.outcome = Some(outcome);
            // The coordinator's task hears of it in its own time.
            let after_ms = self.nodes[node].random.between(0, 2);
            self.schedule(after_ms, node, Event::AppendsEnd(which, driver));
        }
    }

    pub(super) fn appends_end(&mut self, node: usize, which: usize, number: u64) {
        loop {
            let Some(driver) = self.driver_of(node, which, number) else { return };
            if driver.appends.front().is_none_or(|append| append.outcome.is_none()) {
                break;
            }
            let append = driver.appends.pop_front().expect("looked at");
            let outcome = append.outcome.expect("looked at");
            let ended = match append.what {
                What::Records(ids) => self.records_appended(node, which, &ids, outcome),
                What::Marker(sent) => self.marker_appended(node, which, *sent, outcome),
            };
            if let Err(Unsure) = ended {
                return self.ends_unsure(node, which);
            }
        }
        self.driver_rests(node, which);
    }

    fn records_appended(
        &mut self,
        node: usize,
        which: usize,
        ids: &[AppendId],
        outcome: Outcome,
    ) -> Result<(), Unsure> {
        let how = end_of(outcome).ok_or(Unsure)?;
        for &id in ids {
            self.drive(node, which, Happens::Appended(id, how), None);
        }
        Ok(())
    }

    fn marker_appended(&mut self, node: usize, which: usize, sent: MarkerSent, outcome: Outcome) -> Result<(), Unsure> {
        let marked = markers::marked(outcome);
        if marked.is_ok() {
            let (producer_id, commits) = (sent.marker.producer_id, !sent.marker.is_abort);
            self.drive(node, which, Happens::Marker { producer_id, commits }, None);
        }
        self.marker_ends(node, sent, marked);
        if marked == Err(NotMarked::NotLeader) { Err(Unsure) } else { Ok(()) }
    }

    /// A marker for the partition of a coordinator, which goes by it once it is committed.
    pub(super) fn mark_at_driver(&mut self, node: usize, which: usize, sent: MarkerSent) {
        if !self.driver(node, which).is_some_and(|driver| driver.serves()) {
            // What is written below the end that it loads up to, it may have read already.
            return self.marker_ends(node, sent, Err(NotMarked::NotLeader));
        }
        let now = self.nodes[node].time(self.now);
        self.append_together(node, which);
        self.produce_for(node, which, sent.marker.to_batch(now), What::Marker(Box::new(sent)), None);
        self.driver_rests(node, which);
    }

    pub(super) fn tell_late(&mut self, node: usize, which: usize, number: u64) {
        let now = self.now;
        let Some(driver) = self.driver_of(node, which, number) else { return };
        let mut late = Vec::new();
        for append in &mut driver.appends {
            if append.late_at.is_some_and(|at| at <= now) {
                append.late_at = None;
                if let What::Records(ids) = &append.what {
                    late.extend(ids.iter().copied());
                }
            }
        }
        for id in late {
            self.counts.late += 1;
            self.drive(node, which, Happens::Appended(id, Appended::Late), None);
        }
        self.driver_rests(node, which);
    }

    pub(super) fn driver_ticks(&mut self, node: usize, which: usize, number: u64, tick: u64) {
        let Some(driver) = self.driver_of(node, which, number) else { return };
        if driver.ticking.take_if(|ticking| ticking.1 == tick).is_some() {
            self.drive(node, which, Happens::Tick, None);
            self.driver_rests(node, which);
        }
    }

    pub(super) fn tell_news(
        &mut self,
        node: usize,
        number: u64,
        news: highwater_groups::transactions::TransactionInput,
    ) {
        if self.driver_of(node, TRANSACTIONS, number).is_some() {
            self.drive(node, TRANSACTIONS, Happens::News(news), None);
            self.driver_rests(node, TRANSACTIONS);
        }
    }

    /// Nothing more is to be taken: what has come together is appended, and its next deadline noted.
    fn driver_rests(&mut self, node: usize, which: usize) {
        if self.driver(node, which).is_some_and(|driver| !driver.log_has_enough()) {
            self.append_together(node, which);
        }
        let time = self.nodes[node].time(self.now).0;
        let Some(driver) = self.driver(node, which) else { return };
        let Some(due) = driver.machine.next_deadline_ms() else { return };
        if driver.ticking.is_none_or(|ticking| due < ticking.0) {
            let tick = self.number();
            let Some(driver) = self.driver(node, which) else { return };
            driver.ticking = Some((due, tick));
            let number = driver.number;
            let after_ms = i64::try_from(due).unwrap_or(i64::MAX).saturating_sub(time).clamp(1, FAR_MS);
            self.schedule(after_ms, node, Event::DriverTicks(which, number, tick));
        }
    }

    /// A broker leads the partition in the epoch that the store has: what it says is not of the past.
    pub(super) fn is_of_the_present(&self, node: usize, at: usize) -> bool {
        let Some(running) = &self.nodes[node].running else { return false };
        let status = running.replicas[at].partition.status();
        status.role == Role::Leader && status.leader_epoch == self.store.leader_epoch(at)
    }
}

/// How an append ended; `None` if that is not known, or this broker does not lead any more.
fn end_of(outcome: Outcome) -> Option<Appended> {
    let error = match outcome {
        Ok(_) => return Some(Appended::Committed),
        Err(NotProduced::Partition(error)) => error,
        Err(NotProduced::Transaction(_)) => return None,
    };
    match error {
        ProduceError::Append(AppendError::Sequence(SequenceError::InvalidEpoch { .. })) => Some(Appended::Fenced),
        ProduceError::Append(AppendError::Sequence(_)) => Some(Appended::OutsideTransaction),
        ProduceError::Refused(ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::TooManyWaiting { .. }) => {
            Some(Appended::NotNow)
        }
        // It may be in the log: what is told from here on must come from there.
        _ => None,
    }
}
