//! All is well again: whether everything has come to rest, and what must hold then.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use highwater_groups::transactions::{TransactionAnswer, TransactionDescription};
use highwater_groups::{Answer, FetchOffsets, FetchedOffset};
use highwater_replication::Role;
use highwater_storage::TimestampMs;

use super::client::Asking;
use super::machine::{Deed, Happens, Machine, load};
use super::*;

const LOOK_MS: i64 = 40;

impl World {
    pub(super) fn look_around(&mut self) {
        match self.unsettled() {
            None => self.settled = true,
            Some(_) => self.schedule(LOOK_MS, NOBODY, Event::Looks),
        }
    }

    /// What is not at rest yet, if anything is not.
    fn unsettled(&self) -> Option<String> {
        let unsettled = (0..PARTITIONS).find(|at| !self.is_replicated(*at));
        if let Some(at) = unsettled {
            return Some(format!(
                "{}-{} is not the same everywhere, or has an open transaction",
                NAMES[at].0, NAMES[at].1
            ));
        }
        if let Some(writer) = self.writers.iter().position(|writer| !writer.is_done(self.scheme.scenario)) {
            return Some(format!("writer {writer} is not done"));
        }
        let inputs = [0, 1].map(|input: usize| self.writers[input].written);
        for group in [member::COPIERS, member::READERS] {
            let members =
                || self.members.iter().filter(|member| member.group == group && member.doing != member::Doing::Gone);
            let mut owned: Vec<usize> = members().flat_map(|member| member.mine.clone()).collect();
            owned.sort_unstable();
            if members().next().is_some() && owned != [0, 1] {
                return Some(format!("{group} have {owned:?}"));
            }
            for member in members() {
                let is_through = member.mine.iter().all(|input| member.next[*input] == inputs[*input]);
                if member.doing != member::Doing::Read || member.rejoins || !is_through {
                    return Some(format!("member {} is at {:?}", member.place, member.doing));
                }
            }
        }
        let copies = self.members.iter().any(|member| member.copier.is_some());
        if let Some(reader) = self.readers.iter().position(|reader| copies && reader.next != inputs) {
            return Some(format!("reader {reader} is behind"));
        }
        let now = TimestampMs(self.now);
        let [of_transactions] = &questions(TRANSACTIONS)[..] else { panic!("one question") };
        let told = self.machine(TRANSACTIONS).map(|mut machine| ask(&mut machine, now, of_transactions));
        match told {
            Some(Told::Transaction(TransactionAnswer::Listed(Ok(all)))) => {
                let under_way = all.into_iter().find(|one| !is_over(one));
                under_way.map(|one| format!("a transaction has not ended: {one:?}"))
            }
            other => Some(format!("transactions are not coordinated: {other:?}")),
        }
    }

    /// The machine that coordinates a partition, as it is.
    fn machine(&self, which: usize) -> Option<Machine> {
        let running = self.nodes[self.store.leader(which)?].running.as_ref()?;
        running.drivers[which].as_ref().map(|driver| driver.machine())
    }

    /// All replicas of a partition have the same, and no transaction is open in it.
    fn is_replicated(&self, at: usize) -> bool {
        let Some(state) = &self.store.states[at] else { return false };
        if state.value.isr.len() != BROKERS || state.value.leader.is_none() {
            return false;
        }
        let mut ends = BTreeSet::new();
        for node in &self.nodes {
            let Some(running) = &node.running else { return false };
            let partition = &running.replicas[at].partition;
            let status = partition.status();
            if status.role == Role::Offline || status.version != state.version {
                return false;
            }
            ends.extend([
                status.log_end,
                status.high_watermark,
                partition.log().last_stable_offset(status.high_watermark),
            ]);
            let is_led = state.value.leader == Some(node.id);
            if at < 2 && running.drivers[at].as_ref().is_some_and(|driver| driver.serves()) != is_led {
                return false;
            }
        }
        ends.len() == 1
    }

    /// What must hold at rest.
    pub(super) fn check_end(&self) {
        let now = TimestampMs(self.now);
        // What the coordinators say is what the next ones will read.
        for which in [OFFSETS, TRANSACTIONS] {
            let leader = self.store.leader(which).expect("it is led");
            let running = self.nodes[leader].running.as_ref().expect("it runs");
            let mut machine = self.machine(which).expect("it is coordinated");
            let mut again = Machine::new(which);
            let log = running.replicas[which].partition.reader();
            let mut next = log.start();
            while let Some((batches, after)) = load(&log, next, log.end(), 1 << 20) {
                for batch in batches {
                    again.handle(now, Happens::Load(batch));
                }
                next = after;
            }
            again.handle(now, Happens::Loaded);
            for asking in questions(which) {
                let (told, told_again) = (ask(&mut machine, now, &asking), ask(&mut again, now, &asking));
                assert_eq!(
                    format!("{told:?}"),
                    format!("{told_again:?}"),
                    "a coordinator that takes over would say something else"
                );
                self.check_told(&asking, &told);
            }
        }
        for (serial, (input, offset)) in &self.truth.committed {
            for (output, reader) in self.readers.iter().enumerate() {
                assert!(
                    reader.seen.contains(serial),
                    "transaction {serial} was committed up to {offset} of input {input}, and output {output} does not show it"
                );
            }
        }
        assert_eq!(self.readers[0].seen, self.readers[1].seen, "transactions are in one output and not in the other");
    }

    /// A group has committed all that there is to be read of each input of which it ever committed anything.
    fn check_told(&self, asking: &Asking, told: &Told) {
        let (Asking::Group(Request::FetchOffsets(fetch)), Told::Group(Answer::Offsets(Ok(offsets)))) = (asking, told)
        else {
            return;
        };
        let offset = |found: &FetchedOffset| {
            let value = found.offset.as_ref().expect("all is decided").as_ref();
            (truth::input(&found.topic, found.partition), value.map(|value| value.offset))
        };
        let told: BTreeMap<usize, Option<i64>> = offsets.iter().map(offset).collect();
        for (_, input) in self.truth.acknowledged().keys().filter(|(group, _)| *group == fetch.group) {
            let (committed, written) = (told.get(input).copied().flatten(), self.writers[*input].written);
            assert_eq!(committed, Some(written), "{} have not committed all of input {input}", fetch.group);
        }
    }

    pub(super) fn situation(&self) -> String {
        let mut text = self.unsettled().unwrap_or_else(|| "all is at rest".to_owned());
        for (at, state) in self.store.states.iter().enumerate() {
            write!(text, "\n  {}-{}: {:?}", NAMES[at].0, NAMES[at].1, state.as_ref().map(crate::world::state_text))
                .expect("a string");
        }
        for member in &self.members {
            write!(text, "\n  {member:?}").expect("a string");
        }
        write!(text, "\n  {:?}\n  {:?}", self.writers, self.readers).expect("a string");
        text
    }
}

fn is_over(transaction: &TransactionDescription) -> bool {
    matches!(transaction.status.name(), "Empty" | "CompleteCommit" | "CompleteAbort")
}

fn questions(which: usize) -> Vec<Asking> {
    if which == TRANSACTIONS {
        return vec![Asking::Transaction(TransactionRequest::List)];
    }
    let of = |group: &str| {
        let fetch = FetchOffsets { group: group.to_owned(), partitions: None, require_stable: true };
        Asking::Group(Request::FetchOffsets(fetch))
    };
    vec![of(member::COPIERS), of(member::READERS)]
}

fn ask(machine: &mut Machine, now: TimestampMs, asking: &Asking) -> Told {
    let ticket = Ticket(u64::MAX);
    let deeds = machine.handle(now, Happens::Asked(ticket, asking.clone()));
    let told = deeds.into_iter().find_map(|deed| match deed {
        Deed::Answer(of, told) if of == ticket => Some(told),
        _ => None,
    });
    told.expect("it is answered at once")
}
