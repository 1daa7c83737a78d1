//! The coordinator of the transactional ids of one partition of `__transaction_state`.
//!
//! A transaction is decided by one record: from `PrepareCommit` or `PrepareAbort` on it ends that way, whoever coordinates
//! it. Its producer is answered then; markers are written into all partitions that take part until each has its own, and one
//! more record says that all are done. A coordinator that takes over goes on with what the log says.

mod state;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};

pub use vocabulary::{
    Partition, TransactionAnswer, TransactionDescription, TransactionEffect, TransactionInput, TransactionRefused,
    TransactionRequest,
};

use crate::records::{RecordError, TransactionStatus, TransactionValue, TransactionalKey};
use crate::vocabulary::{AppendId, Appended, Now, Producer, Record, Ticket};
use state::{Outcome, State};

/// What the record of a transaction that ends may have more than the one before it: the producer id that comes next, the
/// version of the client, and longer lengths of what holds them.
const ENDING_BYTES: usize = 64;

/// How a coordinator treats its transactions. Defaults are Kafka's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionConfig {
    /// `transaction.max.timeout.ms`.
    pub timeout_max_ms: i32,
    /// `transactional.id.expiration.ms`: how long an id is remembered that nobody uses.
    pub id_expiration_ms: i64,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`: how often it looks for transactions that take too long.
    pub abort_check_interval_ms: u64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`: how often it looks for ids to forget.
    pub expiry_check_interval_ms: u64,
    /// How long it waits until it writes again what could not be written.
    pub retry_ms: u64,
}

impl Default for TransactionConfig {
    fn default() -> Self {
        Self {
            timeout_max_ms: 900_000,
            id_expiration_ms: 604_800_000,
            abort_check_interval_ms: 10_000,
            expiry_check_interval_ms: 3_600_000,
            retry_ms: 100,
        }
    }
}

/// Transactional ids, in memory. What must outlive it is in the records it asks to be appended.
#[derive(Clone, Debug)]
pub struct TransactionCoordinator {
    config: TransactionConfig,
    ids: BTreeMap<String, Entry>,
    appends: BTreeMap<AppendId, Written>,
    next_append: u64,
    /// Requests that wait for a producer id.
    need_ids: BTreeMap<Ticket, TransactionRequest>,
    phase: Phase,
    abort_check_due_ms: u64,
    expiry_check_due_ms: u64,
    /// Ids whose completion could not be written, and when that is tried again.
    retries: BTreeSet<(u64, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Serving,
    Resigned,
}

/// A transactional id.
#[derive(Clone, Debug)]
struct Entry {
    state: State,
    /// A record of it is on its way: nothing else happens to it until that is in the log.
    pending: bool,
    /// What has no marker yet, while the transaction ends.
    unmarked: BTreeSet<Partition>,
}

/// What a record that is being written is for.
#[derive(Clone, Debug)]
struct Written {
    id: String,
    /// `None` is the end of the id.
    state: Option<State>,
    answer: Option<(Ticket, Told)>,
}

/// What whoever asked is told once the record is in the log.
#[derive(Clone, Copy, Debug)]
enum Told {
    /// The producer it has from then on.
    Producer,
    /// That it is done.
    Done,
    /// To ask again, when the transaction that was in the way has ended.
    AskAgain,
}

impl TransactionCoordinator {
    /// A coordinator that is loading.
    pub fn new(config: TransactionConfig) -> Self {
        Self {
            config,
            ids: BTreeMap::new(),
            appends: BTreeMap::new(),
            next_append: 0,
            need_ids: BTreeMap::new(),
            phase: Phase::Loading,
            abort_check_due_ms: 0,
            expiry_check_due_ms: 0,
            retries: BTreeSet::new(),
        }
    }

    /// Lets something happen. What is to be done about it comes back, in the order in which it is to be done.
    pub fn handle(&mut self, now: Now, input: TransactionInput) -> Vec<TransactionEffect> {
        let mut effects = Vec::new();
        if self.phase == Phase::Resigned {
            if let TransactionInput::Request(ticket, request) = input {
                let answer = request.refused(TransactionRefused::NotCoordinator);
                effects.push(TransactionEffect::Answer(ticket, answer));
            }
            return effects;
        }
        match input {
            TransactionInput::Load(record) => {
                if let Err(error) = self.load(&record) {
                    effects.push(TransactionEffect::Odd(error.to_string()));
                }
            }
            TransactionInput::Loaded => self.loaded(now, &mut effects),
            TransactionInput::Request(ticket, request) => {
                let answer = if self.phase == Phase::Loading {
                    Some(request.refused(TransactionRefused::CoordinatorLoadInProgress))
                } else {
                    self.request(now, ticket, request, None, &mut effects)
                };
                effects.extend(answer.map(|answer| TransactionEffect::Answer(ticket, answer)));
            }
            TransactionInput::ProducerId(ticket, fresh) => {
                let Some(request) = self.need_ids.remove(&ticket) else { return effects };
                let answer = match fresh {
                    None => Some(request.refused(TransactionRefused::CoordinatorNotAvailable)),
                    fresh => self.request(now, ticket, request, fresh, &mut effects),
                };
                effects.extend(answer.map(|answer| TransactionEffect::Answer(ticket, answer)));
            }
            TransactionInput::Appended(append, how) => self.appended(now, append, how, &mut effects),
            // While it loads, such news is of the coordinator before: this one has all markers written once more.
            TransactionInput::Marked { .. } if self.phase == Phase::Loading => {}
            TransactionInput::Marked { id, producer, partitions } => {
                self.marked(now, &id, producer, &partitions, &mut effects);
            }
            TransactionInput::Tick => {}
            TransactionInput::Resigned => self.resign(&mut effects),
        }
        if self.phase == Phase::Serving {
            self.look_around(now, &mut effects);
        }
        effects
    }

    /// When [`TransactionInput::Tick`] is due.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let checks = [self.abort_check_due_ms, self.expiry_check_due_ms];
        let retry = self.retries.first().map(|(at, _)| *at);
        (self.phase == Phase::Serving).then(|| checks.into_iter().chain(retry).min())?
    }

    /// The answer, if there is one at once.
    fn request(
        &mut self,
        now: Now,
        ticket: Ticket,
        request: TransactionRequest,
        fresh: Option<i64>,
        effects: &mut Vec<TransactionEffect>,
    ) -> Option<TransactionAnswer> {
        let (id, outcome, told) = match &request {
            TransactionRequest::Begin { id, timeout_ms, expected } => {
                (id, self.begin(now, id, *timeout_ms, *expected, fresh), Told::Producer)
            }
            TransactionRequest::Add { id, producer, partitions } => {
                let added = self.settled(id).and_then(|entry| entry.state.add(now, *producer, partitions));
                (id, added, Told::Done)
            }
            TransactionRequest::End { id, producer, commits, bumps } => {
                let ended = self.settled(id);
                (id, ended.and_then(|entry| entry.state.end(now, *producer, *commits, *bumps, fresh)), Told::Producer)
            }
            TransactionRequest::Verify { id, producer, partitions } => {
                // By what is in the log, whatever is on its way there: what takes part goes on doing so while more is added,
                // and a batch that comes too late meets the marker that follows.
                let verified = self.known(id).and_then(|entry| entry.state.verify(*producer, partitions));
                return Some(TransactionAnswer::Done(verified));
            }
            TransactionRequest::Describe(id) => {
                let known = self.ids.get(id).map(|entry| entry.state.describe(id));
                return Some(TransactionAnswer::Described(known.ok_or(TransactionRefused::TransactionalIdNotFound)));
            }
            TransactionRequest::List => {
                let all = self.ids.iter().map(|(id, entry)| entry.state.describe(id));
                return Some(TransactionAnswer::Listed(Ok(all.collect())));
            }
        };
        match outcome {
            Err(why) => Some(request.refused(why)),
            Ok(Outcome::NeedsProducerId) => {
                self.need_ids.insert(ticket, request);
                effects.push(TransactionEffect::NeedProducerId(ticket));
                None
            }
            Ok(Outcome::Becomes(state)) => {
                self.write(id, Some(state), Some((ticket, told)), effects);
                None
            }
            Ok(Outcome::Fences(state)) => {
                self.write(id, Some(state), Some((ticket, Told::AskAgain)), effects);
                None
            }
        }
    }

    fn begin(
        &self,
        now: Now,
        id: &str,
        timeout_ms: i32,
        expected: Option<Producer>,
        fresh: Option<i64>,
    ) -> Result<Outcome, TransactionRefused> {
        if id.is_empty() {
            return Err(TransactionRefused::InvalidRequest);
        }
        if timeout_ms <= 0 || timeout_ms > self.config.timeout_max_ms {
            return Err(TransactionRefused::InvalidTransactionTimeout);
        }
        match self.ids.get(id) {
            Some(entry) if entry.pending => Err(TransactionRefused::ConcurrentTransactions),
            Some(entry) => entry.state.begin(now, timeout_ms, expected, fresh),
            None => match fresh {
                None => Ok(Outcome::NeedsProducerId),
                Some(fresh) => State::new(fresh, timeout_ms).begin(now, timeout_ms, expected, None),
            },
        }
    }

    fn known(&self, id: &str) -> Result<&Entry, TransactionRefused> {
        if id.is_empty() {
            return Err(TransactionRefused::InvalidRequest);
        }
        self.ids.get(id).ok_or(TransactionRefused::InvalidProducerIdMapping)
    }

    /// An id to which nothing is happening right now.
    fn settled(&self, id: &str) -> Result<&Entry, TransactionRefused> {
        let entry = self.known(id)?;
        if entry.pending { Err(TransactionRefused::ConcurrentTransactions) } else { Ok(entry) }
    }

    fn write(
        &mut self,
        id: &str,
        state: Option<State>,
        answer: Option<(Ticket, Told)>,
        effects: &mut Vec<TransactionEffect>,
    ) {
        let key = TransactionalKey(id.to_owned()).encode();
        let value = state.as_ref().map(|state| state.value().encode());
        match (self.ids.get_mut(id), &state) {
            (Some(entry), _) => entry.pending = true,
            (None, Some(state)) => {
                // Until its record is in the log it is an id without a producer, which nobody is told of.
                let unborn = State::new(state.producer.id, 0);
                self.ids.insert(id.to_owned(), Entry { state: unborn, pending: true, unmarked: BTreeSet::new() });
            }
            (None, None) => return,
        }
        let append = AppendId(self.next_append);
        self.next_append += 1;
        let goes_on = state.as_ref().is_some_and(|state| state.status == TransactionStatus::Ongoing);
        let spare_bytes = if goes_on { ENDING_BYTES } else { 0 };
        self.appends.insert(append, Written { id: id.to_owned(), state, answer });
        effects.push(TransactionEffect::Append { id: append, record: Record { key, value }, spare_bytes });
    }

    fn appended(&mut self, now: Now, append: AppendId, how: Appended, effects: &mut Vec<TransactionEffect>) {
        let Some(mut written) = self.appends.remove(&append) else { return };
        if how != Appended::Committed {
            let why = match how {
                // Told to try again, clients would do so for ever.
                Appended::TooLarge | Appended::Refused => TransactionRefused::UnknownServerError,
                _ => TransactionRefused::CoordinatorNotAvailable,
            };
            if let Some((ticket, told)) = written.answer.take() {
                effects.push(TransactionEffect::Answer(ticket, told.refused(why)));
            }
            if how == Appended::Late {
                self.appends.insert(append, written);
            } else {
                self.not_written(now, &written);
            }
            return;
        }
        let Some(state) = written.state else {
            self.ids.remove(&written.id);
            return;
        };
        if let Some((ticket, told)) = written.answer {
            effects.push(TransactionEffect::Answer(ticket, told.of(&state)));
        }
        let Some(entry) = self.ids.get_mut(&written.id) else { return };
        entry.pending = false;
        entry.state = state;
        self.end_if_decided(now, &written.id, effects);
    }

    /// Nothing has happened. What must happen is tried again.
    fn not_written(&mut self, now: Now, written: &Written) {
        let Some(entry) = self.ids.get_mut(&written.id) else { return };
        entry.pending = false;
        if entry.state.is_ending() && entry.unmarked.is_empty() {
            self.retries.insert((now.uptime_ms.saturating_add(self.config.retry_ms), written.id.clone()));
        }
        // It never was.
        let unborn = written.state.is_some() && entry.state.producer.epoch == -1;
        if unborn {
            self.ids.remove(&written.id);
        }
    }

    /// Markers for a transaction that has been decided.
    fn end_if_decided(&mut self, now: Now, id: &str, effects: &mut Vec<TransactionEffect>) {
        let Some(entry) = self.ids.get_mut(id) else { return };
        if !entry.state.is_ending() {
            return;
        }
        entry.unmarked.clone_from(&entry.state.partitions);
        if entry.unmarked.is_empty() {
            return self.complete(now, id, effects);
        }
        effects.push(TransactionEffect::Mark {
            id: id.to_owned(),
            producer: entry.state.producer,
            commits: entry.state.status == TransactionStatus::PrepareCommit,
            partitions: entry.unmarked.iter().cloned().collect(),
        });
    }

    fn marked(
        &mut self,
        now: Now,
        id: &str,
        producer: Producer,
        partitions: &[Partition],
        effects: &mut Vec<TransactionEffect>,
    ) {
        let Some(entry) = self.ids.get_mut(id) else { return };
        if entry.pending || !entry.state.is_ending() || entry.state.producer != producer {
            return;
        }
        for partition in partitions {
            entry.unmarked.remove(partition);
        }
        if entry.unmarked.is_empty() {
            self.complete(now, id, effects);
        }
    }

    fn complete(&mut self, now: Now, id: &str, effects: &mut Vec<TransactionEffect>) {
        let Some(complete) = self.ids.get(id).map(|entry| entry.state.completed(now)) else { return };
        self.write(id, Some(complete), None, effects);
    }

    /// Aborts what takes too long, forgets who has been silent for long, and writes again what could not be written.
    fn look_around(&mut self, now: Now, effects: &mut Vec<TransactionEffect>) {
        while let Some((at, id)) = self.retries.first().cloned() {
            if at > now.uptime_ms {
                break;
            }
            self.retries.remove(&(at, id.clone()));
            let waits = self
                .ids
                .get(&id)
                .is_some_and(|entry| !entry.pending && entry.state.is_ending() && entry.unmarked.is_empty());
            if waits {
                self.complete(now, &id, effects);
            }
        }
        if now.uptime_ms >= self.abort_check_due_ms {
            self.abort_check_due_ms = now.uptime_ms.saturating_add(self.config.abort_check_interval_ms);
            let overdue = self.ids.iter().filter(|(_, entry)| !entry.pending && entry.state.is_overdue(now));
            let fenced: Vec<_> = overdue.map(|(id, entry)| (id.clone(), entry.state.fenced(now))).collect();
            for (id, state) in fenced {
                self.write(&id, Some(state), None, effects);
            }
        }
        if now.uptime_ms >= self.expiry_check_due_ms {
            self.expiry_check_due_ms = now.uptime_ms.saturating_add(self.config.expiry_check_interval_ms);
            let oldest = now.timestamp_ms.saturating_sub(self.config.id_expiration_ms);
            let silent = |entry: &Entry| {
                let idle = !entry.pending && !entry.state.is_ending();
                idle && entry.state.status != TransactionStatus::Ongoing && entry.state.last_update_ms <= oldest
            };
            let gone: Vec<_> = self.ids.iter().filter(|(_, entry)| silent(entry)).map(|(id, _)| id.clone()).collect();
            for id in gone {
                self.write(&id, None, None, effects);
            }
        }
    }

    fn load(&mut self, record: &Record) -> Result<(), RecordError> {
        let TransactionalKey(id) = TransactionalKey::decode(&record.key)?;
        match record.value.as_deref().map(TransactionValue::decode).transpose()? {
            None => {
                self.ids.remove(&id);
            }
            Some(value) => {
                let entry = Entry { state: State::of(value), pending: false, unmarked: BTreeSet::new() };
                self.ids.insert(id, entry);
            }
        }
        Ok(())
    }

    /// What was decided is brought to its end.
    fn loaded(&mut self, now: Now, effects: &mut Vec<TransactionEffect>) {
        self.phase = Phase::Serving;
        self.abort_check_due_ms = now.uptime_ms.saturating_add(self.config.abort_check_interval_ms);
        self.expiry_check_due_ms = now.uptime_ms.saturating_add(self.config.expiry_check_interval_ms);
        for id in self.ids.keys().cloned().collect::<Vec<_>>() {
            self.end_if_decided(now, &id, effects);
        }
    }

    fn resign(&mut self, effects: &mut Vec<TransactionEffect>) {
        self.phase = Phase::Resigned;
        let why = TransactionRefused::NotCoordinator;
        for written in std::mem::take(&mut self.appends).into_values() {
            let answered = written.answer.map(|(ticket, told)| TransactionEffect::Answer(ticket, told.refused(why)));
            effects.extend(answered);
        }
        for (ticket, request) in std::mem::take(&mut self.need_ids) {
            effects.push(TransactionEffect::Answer(ticket, request.refused(why)));
        }
        self.ids.clear();
        self.retries.clear();
    }
}

impl Told {
    fn of(self, state: &State) -> TransactionAnswer {
        match self {
            Self::Producer => TransactionAnswer::Producer(Ok(state.producer_after())),
            Self::Done => TransactionAnswer::Done(Ok(())),
            Self::AskAgain => TransactionAnswer::Producer(Err(TransactionRefused::ConcurrentTransactions)),
        }
    }

    fn refused(self, why: TransactionRefused) -> TransactionAnswer {
        match self {
            Self::Producer | Self::AskAgain => TransactionAnswer::Producer(Err(why)),
            Self::Done => TransactionAnswer::Done(Err(why)),
        }
    }
}
