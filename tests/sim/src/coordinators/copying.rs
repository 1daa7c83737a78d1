//! Copiers: what they read goes to both outputs, and the offset behind it to their group, in one transaction.

use highwater_groups::transactions::TransactionAnswer;
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};

use super::client::Asking;
use super::member::{self, is_passing};
use super::produce::{
    FENCED, INVALID_PRODUCER_EPOCH, INVALID_STATE, NOT_ENOUGH_REPLICAS, NOT_LEADER, STORAGE, TIMED_OUT,
};
use super::taking_part::Mode;
use super::*;

const TIMEOUT_MS: i32 = 600;
/// So often a batch is sent until its transaction is given up.
const TRIES_MAX: u32 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// InitProducerId, in the place of that producer if it goes on.
    Begin(Option<Producer>),
    /// AddPartitionsToTxn and AddOffsetsToTxn, where leaders do not add by themselves.
    Add,
    /// Into that output.
    Write(usize),
    Offsets,
    End {
        commits: bool,
    },
}

#[derive(Debug)]
pub(super) struct Copier {
    pub(super) id: String,
    of_version_2: bool,
    producer: Producer,
    /// Of each output.
    sequences: [i32; OUTPUTS.len()],
    pub(super) transaction: Option<Transaction>,
    pub(super) tries: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) serial: u64,
    pub(super) input: usize,
    numbers: Vec<i64>,
    /// The coordinator has heard of it, or may have.
    has_begun: bool,
    /// It is to be aborted in the end.
    aborts: bool,
}

impl Transaction {
    /// The offset that it commits.
    pub(super) fn offset(&self) -> i64 {
        self.numbers.last().map_or(0, |last| last + 1)
    }
}

impl Copier {
    pub(super) fn new(place: usize, of_version_2: bool) -> Self {
        Self {
            id: format!("copier-{place}"),
            of_version_2,
            producer: Producer { id: -1, epoch: -1 },
            sequences: [0; OUTPUTS.len()],
            transaction: None,
            tries: 0,
        }
    }

    pub(super) fn reborn(self) -> Self {
        let Self { id, of_version_2, .. } = self;
        Self { id, ..Self::new(0, of_version_2) }
    }

    fn mode(&self) -> Mode {
        if self.of_version_2 { Mode::Add } else { Mode::Verify }
    }

    fn has(&mut self, producer: Producer) {
        if producer != self.producer {
            self.producer = producer;
            self.sequences = [0; OUTPUTS.len()];
        }
    }

    fn batch(&self, output: usize, now: i64) -> Vec<u8> {
        let transaction = self.transaction.as_ref().expect("it is in one");
        let Producer { id, epoch } = self.producer;
        let mut builder = BatchBuilder::new(Codec::None).producer(id, epoch, self.sequences[output]).transactional();
        for number in &transaction.numbers {
            let value = reader::copied(transaction.input, *number, transaction.serial);
            builder.push(Record::new(TimestampMs(now), &value));
        }
        builder.build()
    }
}

impl World {
    fn copier(&mut self, number: usize) -> &mut Copier {
        self.members[number].copier.as_mut().expect("it is a copier")
    }

    fn goes_on(&mut self, number: usize, doing: Doing) {
        self.copier(number).tries = 0;
        self.members[number].doing = member::Doing::Copies(doing);
    }

    pub(super) fn begin_copy(&mut self, number: usize, input: usize, numbers: &[i64]) {
        let serial = self.number();
        let aborts = self.scheme.scenario == Scenario::Drawn && self.chance.one_in(8);
        let copier = self.copier(number);
        copier.transaction = Some(Transaction { serial, input, numbers: numbers.to_vec(), has_begun: false, aborts });
        let doing = if copier.of_version_2 { Doing::Write(0) } else { Doing::Add };
        self.goes_on(number, doing);
    }

    pub(super) fn copier_acts(&mut self, number: usize, doing: Doing) {
        let now = self.now;
        let copier = self.copier(number);
        if copier.tries > TRIES_MAX && matches!(doing, Doing::Write(_) | Doing::Offsets | Doing::Add) {
            return self.aborts(number);
        }
        let (id, producer, mode) = (copier.id.clone(), copier.producer, copier.mode());
        if !matches!(doing, Doing::Begin(_))
            && let Some(transaction) = &mut copier.transaction
        {
            transaction.has_begun = true;
        }
        let (at, ask) = match doing {
            Doing::Begin(expected) => {
                let request = TransactionRequest::Begin { id, timeout_ms: TIMEOUT_MS, expected };
                (TRANSACTIONS, Ask::Coordinator(Asking::Transaction(request)))
            }
            Doing::Add => {
                let partitions = [OUTPUTS[0], OUTPUTS[1], OFFSETS].map(named).to_vec();
                let request = TransactionRequest::Add { id, producer, partitions };
                (TRANSACTIONS, Ask::Coordinator(Asking::Transaction(request)))
            }
            Doing::Write(output) => {
                let batch = copier.batch(output, now);
                (OUTPUTS[output], Ask::Produce { at: OUTPUTS[output], batch, of: Some((id, mode)) })
            }
            Doing::Offsets => {
                let transaction = copier.transaction.as_ref().expect("it is in one");
                let (input, offset) = (transaction.input, transaction.offset());
                let commit = self.members[number].commit(input, offset, Some(producer));
                (OFFSETS, Ask::Offsets { id, mode, commit })
            }
            Doing::End { commits } => {
                let request = TransactionRequest::End { id, producer, commits, bumps: copier.of_version_2 };
                (TRANSACTIONS, Ask::Coordinator(Asking::Transaction(request)))
            }
        };
        self.ask_as_member(number, at, ask);
    }

    pub(super) fn copier_hears(&mut self, number: usize, doing: Doing, told: &Told) {
        if let Some(code) = told.refusal() {
            return self.copier_refused(number, &doing, code);
        }
        let copier = self.copier(number);
        match (doing, told) {
            (Doing::Begin(_), Told::Transaction(TransactionAnswer::Producer(Ok(producer)))) => {
                copier.has(*producer);
                self.rests_between(number);
            }
            (Doing::Add, Told::Transaction(_)) => self.goes_on(number, Doing::Write(0)),
            (Doing::Write(output), Told::Produced(Ok(_))) => {
                let count = copier.transaction.as_ref().map_or(0, |transaction| transaction.numbers.len());
                copier.sequences[output] += i32::try_from(count).expect("few");
                let next = if output + 1 < OUTPUTS.len() { Doing::Write(output + 1) } else { Doing::Offsets };
                self.goes_on(number, next);
            }
            (Doing::Offsets, Told::Group(_)) => {
                let commits = !copier.transaction.as_ref().is_some_and(|transaction| transaction.aborts);
                self.goes_on(number, Doing::End { commits });
            }
            (Doing::End { commits }, Told::Transaction(TransactionAnswer::Producer(Ok(producer)))) => {
                let before = copier.producer;
                if copier.of_version_2 {
                    copier.has(*producer);
                }
                let transaction = copier.transaction.take().expect("it is in one");
                if commits {
                    self.counts.copied += 1;
                    self.members[number].next[transaction.input] = transaction.offset();
                    self.members[number].doing = member::Doing::Read;
                    return;
                }
                self.counts.copies_aborted += 1;
                if self.copier(number).of_version_2 {
                    self.rests_between(number);
                } else {
                    // What is still on its way of the epoch before must not come into the next transaction.
                    self.goes_on(number, Doing::Begin(Some(before)));
                }
            }
            (doing, told) => panic!("not for a copier that is at {doing:?}: {told:?}"),
        }
    }

    /// Between transactions: where it goes on is with its group.
    fn rests_between(&mut self, number: usize) {
        let member = &mut self.members[number];
        if member.is_in_group() && !member.rejoins {
            member.doing = member::Doing::Offsets;
        } else {
            member.joins_again();
        }
    }

    fn aborts(&mut self, number: usize) {
        let copier = self.copier(number);
        if copier.transaction.as_ref().is_some_and(|transaction| transaction.has_begun) {
            self.goes_on(number, Doing::End { commits: false });
        } else {
            copier.transaction = None;
            self.rests_between(number);
        }
    }

    fn copier_refused(&mut self, number: usize, doing: &Doing, code: Code) {
        let rest_ms = self.chance.between(5, 25);
        let member = &mut self.members[number];
        member.rests_until = self.now + rest_ms;
        if let Some(copier) = &mut member.copier {
            copier.tries += 1;
        }
        let waits = matches!(code, NOT_LEADER | TIMED_OUT | NOT_ENOUGH_REPLICAS | STORAGE);
        if is_passing(code) || (waits && matches!(doing, Doing::Write(_))) {
            return;
        }
        note!(self, crate::fault::CLIENTS, "copier {number} at {doing:?} is told {code}");
        match doing {
            // Another took its place, or its transaction took too long: it begins as a new process.
            Doing::Begin(_) | Doing::Add | Doing::End { .. } => {
                self.counts.fenced += 1;
                self.members[number].reborn();
            }
            Doing::Write(_) if code == INVALID_STATE => self.members[number].reborn(),
            Doing::Offsets if matches!(code, FENCED | INVALID_PRODUCER_EPOCH) => {
                self.counts.fenced += 1;
                self.members[number].reborn();
            }
            Doing::Write(_) | Doing::Offsets => {
                self.members[number].heeds(code);
                self.aborts(number);
            }
        }
    }
}
