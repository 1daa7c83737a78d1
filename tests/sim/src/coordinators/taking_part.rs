//! Asking a coordinator whether a partition takes part in a transaction, or having it take part. In the order of the
//! broker's (`transactions/taking_part.rs`).

use std::sync::Arc;

use highwater_groups::{Commit, Guard};

use super::client::Asking;
use super::driver::Asker;
use super::produce::{CONCURRENT, FENCED, INVALID_PRODUCER_EPOCH, LOADING, NETWORK, NOT_AVAILABLE, NOT_COORDINATOR};
use super::*;

/// A transaction that ends is waited for this long, and looked at so often.
const WAIT_MS: i64 = 100;
const PAUSE_MS: i64 = 20;
/// How long the other broker is waited for.
const PATIENCE_MS: i64 = 100;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// That it takes part from now on.
    Add,
    /// Whether it does.
    Verify,
}

/// A partition and a producer.
pub(super) type Key = (usize, Producer);

pub(super) struct Question {
    id: String,
    producer: Producer,
    mode: Mode,
    at: usize,
    about: About,
    until: i64,
    /// What was drawn before the last question; nothing where the transaction goes on by now.
    guard: Option<Arc<Guard>>,
    round: u32,
}

/// What goes on when it is answered.
#[derive(Clone, Debug)]
pub(super) enum About {
    Batches(Key),
    Offsets(Caller, truth::About, Box<Commit>),
}

/// A question on its way to a coordinator.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    node: usize,
    life: u32,
    question: u64,
    round: u32,
    request: TransactionRequest,
}

impl World {
    #[expect(clippy::too_many_arguments, reason = "what a question is about")]
    pub(super) fn open_question(
        &mut self,
        node: usize,
        id: String,
        producer: Producer,
        mode: Mode,
        at: usize,
        about: About,
        guard: Option<Arc<Guard>>,
    ) {
        let number = self.number();
        let until = self.now + WAIT_MS;
        let Some(running) = &mut self.nodes[node].running else { return };
        running.questions.insert(number, Question { id, producer, mode, at, about, until, guard, round: 0 });
        self.ask_for_part(node, number);
    }

    pub(super) fn ask_for_part(&mut self, node: usize, number: u64) {
        let Some(running) = &mut self.nodes[node].running else { return };
        let Some(question) = running.questions.get_mut(&number) else { return };
        question.round += 1;
        let (round, at, producer) = (question.round, question.at, question.producer);
        let partitions = vec![named(at)];
        let id = question.id.clone();
        let request = match question.mode {
            Mode::Add => TransactionRequest::Add { id, producer, partitions },
            Mode::Verify => TransactionRequest::Verify { id, producer, partitions },
        };
        // Before the question: a marker that comes meanwhile breaks it.
        let guard = self.guard(node, at, producer);
        let life = self.nodes[node].life;
        if let Some(question) = self.nodes[node].running.as_mut().and_then(|running| running.questions.get_mut(&number))
        {
            question.guard = guard;
        }
        let Some(leader) = self.nodes[node].leader_of(TRANSACTIONS) else {
            return self.schedule(0, node, Event::PartAnswered(number, round, Err(NOT_AVAILABLE)));
        };
        let asked = Asked { node, life, question: number, round, request };
        if leader == node {
            return self.part_asked(node, asked);
        }
        self.post(node, leader, Event::PartAsked(asked));
        self.schedule(PATIENCE_MS, node, Event::PartAnswered(number, round, Err(NETWORK)));
    }

    /// The coordinator is asked, where this broker takes itself for its leader.
    pub(super) fn part_asked(&mut self, node: usize, asked: Asked) {
        let asking = Asking::Transaction(asked.request.clone());
        self.ask_driver(node, TRANSACTIONS, Asker::Part(asked), asking, None);
    }

    pub(super) fn part_told(&mut self, node: usize, asked: Asked, result: Result<(), Code>) {
        let event = Event::PartAnswered(asked.question, asked.round, result);
        if asked.node == node {
            self.schedule_for(0, node, asked.life, event);
        } else {
            self.post_for(node, asked.node, asked.life, event);
        }
    }

    pub(super) fn part_answered(&mut self, node: usize, number: u64, round: u32, result: Result<(), Code>) {
        let now = self.now;
        let Some(running) = &mut self.nodes[node].running else { return };
        let Some(question) = running.questions.get_mut(&number).filter(|question| question.round == round) else {
            return;
        };
        if result == Err(CONCURRENT) && question.mode == Mode::Add && now < question.until {
            // What else comes for this round is too late.
            question.round += 1;
            return self.schedule(PAUSE_MS, node, Event::PartAskedAgain(number));
        }
        let question = running.questions.remove(&number).expect("looked at");
        let result = match result {
            Err(FENCED) => Err(INVALID_PRODUCER_EPOCH),
            result => result,
        };
        match question.about {
            About::Batches(key) => self.verified(node, key, result.map(|()| question.guard)),
            About::Offsets(caller, about, commit) => match result {
                Ok(()) => self.commit_offsets(node, caller, about, *commit, question.guard),
                Err(code) => {
                    let code = match code {
                        NETWORK | NOT_COORDINATOR => LOADING,
                        CONCURRENT if question.mode == Mode::Verify => LOADING,
                        code => code,
                    };
                    self.answer(node, caller, Told::Refused(code));
                }
            },
        }
    }

    /// Offsets of a transaction come to the coordinator of the group.
    pub(super) fn offsets_arrive(
        &mut self,
        node: usize,
        caller: Caller,
        about: truth::About,
        id: String,
        mode: Mode,
        commit: Commit,
    ) {
        let producer = commit.transaction.expect("of a transaction");
        let guard = self.guard(node, OFFSETS, producer);
        if guard.is_none() {
            return self.commit_offsets(node, caller, about, commit, None);
        }
        let about = About::Offsets(caller, about, Box::new(commit));
        self.open_question(node, id, producer, mode, OFFSETS, about, guard);
    }

    fn commit_offsets(
        &mut self,
        node: usize,
        caller: Caller,
        about: truth::About,
        commit: Commit,
        guard: Option<Arc<Guard>>,
    ) {
        let asking = Asking::Group(Request::Commit(commit));
        self.ask_driver(node, OFFSETS, Asker::Client(caller, about), asking, guard.as_ref());
    }
}
