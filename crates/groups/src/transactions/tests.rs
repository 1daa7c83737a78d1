//! Coordinators of transactions, asked and answered.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::records::TransactionStatus as Status;

const ID: &str = "app";

/// A coordinator with a clock, a log in which each append ends as `appends_end` says, and partitions that take markers.
#[derive(Debug)]
struct Rig {
    coordinator: TransactionCoordinator,
    now: Now,
    tickets: u64,
    answers: BTreeMap<Ticket, TransactionAnswer>,
    log: Vec<Record>,
    appends_end: Option<Appended>,
    held: Vec<AppendId>,
    /// The largest record that the log takes.
    record_bytes_max: usize,
    /// Markers that are to be written, oldest first.
    marks: Vec<(String, Producer, bool, Vec<Partition>)>,
    next_producer_id: i64,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self::loading();
        rig.input(TransactionInput::Loaded);
        rig
    }

    fn loading() -> Self {
        Self {
            coordinator: TransactionCoordinator::new(TransactionConfig::default()),
            now: Now { uptime_ms: 10, timestamp_ms: 1_000_000 },
            tickets: 0,
            answers: BTreeMap::new(),
            log: Vec::new(),
            appends_end: Some(Appended::Committed),
            held: Vec::new(),
            record_bytes_max: usize::MAX,
            marks: Vec::new(),
            next_producer_id: 1000,
        }
    }

    fn input(&mut self, input: TransactionInput) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for effect in self.coordinator.handle(self.now, input) {
                match effect {
                    TransactionEffect::Answer(ticket, answer) => {
                        let before = self.answers.insert(ticket, answer);
                        assert_eq!(before, None, "{ticket:?} is answered twice");
                    }
                    TransactionEffect::NeedProducerId(ticket) => {
                        inputs.push(TransactionInput::ProducerId(ticket, Some(self.next_producer_id)));
                        self.next_producer_id += 1;
                    }
                    TransactionEffect::Append { id, record, spare_bytes } => {
                        let bytes = record.key.len() + record.value.as_ref().map_or(0, |value| value.len());
                        if bytes.saturating_add(spare_bytes) > self.record_bytes_max {
                            inputs.push(TransactionInput::Appended(id, Appended::TooLarge));
                            continue;
                        }
                        if self.appends_end.is_none_or(|how| how == Appended::Committed) {
                            self.log.push(record);
                        }
                        match self.appends_end {
                            Some(how) => inputs.push(TransactionInput::Appended(id, how)),
                            None => self.held.push(id),
                        }
                    }
                    TransactionEffect::Mark { id, producer, commits, partitions } => {
                        self.marks.push((id, producer, commits, partitions));
                    }
                    TransactionEffect::Odd(what) => panic!("{what}"),
                }
            }
        }
    }

    fn ask(&mut self, request: TransactionRequest) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.input(TransactionInput::Request(ticket, request));
        ticket
    }

    fn answered(&mut self, request: TransactionRequest) -> TransactionAnswer {
        let ticket = self.ask(request);
        self.answers.remove(&ticket).unwrap_or_else(|| panic!("{ticket:?} is not answered"))
    }

    fn begin(&mut self, expected: Option<Producer>) -> Result<Producer, TransactionRefused> {
        match self.answered(TransactionRequest::Begin { id: ID.into(), timeout_ms: 60_000, expected }) {
            TransactionAnswer::Producer(producer) => producer,
            other => panic!("{other:?}"),
        }
    }

    fn add(&mut self, producer: Producer, partition: i32) -> Result<(), TransactionRefused> {
        let partitions = vec![("books".to_owned(), partition)];
        match self.answered(TransactionRequest::Add { id: ID.into(), producer, partitions }) {
            TransactionAnswer::Done(done) => done,
            other => panic!("{other:?}"),
        }
    }

    fn verify(&mut self, producer: Producer, partition: i32) -> Result<(), TransactionRefused> {
        let partitions = vec![("books".to_owned(), partition)];
        match self.answered(TransactionRequest::Verify { id: ID.into(), producer, partitions }) {
            TransactionAnswer::Done(done) => done,
            other => panic!("{other:?}"),
        }
    }

    fn end(&mut self, producer: Producer, commits: bool, bumps: bool) -> Result<Producer, TransactionRefused> {
        match self.answered(TransactionRequest::End { id: ID.into(), producer, commits, bumps }) {
            TransactionAnswer::Producer(producer) => producer,
            other => panic!("{other:?}"),
        }
    }

    /// The partitions of the oldest transaction that waits for markers have them; its producer and decision.
    fn mark(&mut self) -> (Producer, bool, Vec<i32>) {
        let (id, producer, commits, partitions) = self.marks.remove(0);
        let numbers = partitions.iter().map(|(_, number)| *number).collect();
        self.input(TransactionInput::Marked { id, producer, partitions });
        (producer, commits, numbers)
    }

    /// The appends that were held back are committed, and those that follow from them.
    fn commit_held(&mut self) {
        while !self.held.is_empty() {
            for id in std::mem::take(&mut self.held) {
                self.input(TransactionInput::Appended(id, Appended::Committed));
            }
        }
    }

    fn status(&mut self) -> Option<Status> {
        match self.answered(TransactionRequest::Describe(ID.into())) {
            TransactionAnswer::Described(described) => described.ok().map(|described| described.status),
            other => panic!("{other:?}"),
        }
    }

    fn passes_ms(&mut self, milliseconds: u64) {
        let until = self.now.uptime_ms + milliseconds;
        while let Some(at) = self.coordinator.next_deadline_ms().filter(|&at| at <= until) {
            self.advance_to(at.max(self.now.uptime_ms));
            self.input(TransactionInput::Tick);
        }
        self.advance_to(until);
    }

    fn advance_to(&mut self, uptime_ms: u64) {
        self.now.timestamp_ms += i64::try_from(uptime_ms - self.now.uptime_ms).unwrap();
        self.now.uptime_ms = uptime_ms;
    }

    /// A coordinator that has read the log.
    fn successor(&self) -> Self {
        let mut next = Self::loading();
        (next.now, next.next_producer_id, next.tickets) = (self.now, self.next_producer_id, self.tickets);
        for record in &self.log {
            next.input(TransactionInput::Load(record.clone()));
        }
        next.log = self.log.clone();
        next.input(TransactionInput::Loaded);
        next
    }
}

fn producer(id: i64, epoch: i16) -> Producer {
    Producer { id, epoch }
}

#[test]
fn a_transaction_goes_from_its_first_partition_to_its_last_marker() {
    for (commits, complete) in [(true, Status::CompleteCommit), (false, Status::CompleteAbort)] {
        let mut rig = Rig::new();
        let me = rig.begin(None).unwrap();
        assert_eq!(me, producer(1000, 0));
        assert_eq!(rig.status(), Some(Status::Empty));
        assert_eq!(rig.verify(me, 0), Err(TransactionRefused::TransactionAbortable));
        assert_eq!((rig.add(me, 0), rig.add(me, 1), rig.add(me, 0)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((rig.verify(me, 1), rig.verify(me, 2)), (Ok(()), Err(TransactionRefused::TransactionAbortable)));
        assert_eq!(rig.end(me, commits, false), Ok(me));
        // Decided, and asked again while the markers are on their way.
        assert_eq!(rig.end(me, commits, false), Err(TransactionRefused::ConcurrentTransactions));
        assert_eq!(rig.end(me, !commits, false), Err(TransactionRefused::InvalidTransactionState));
        assert_eq!(rig.add(me, 2), Err(TransactionRefused::ConcurrentTransactions));
        assert_eq!(rig.begin(None), Err(TransactionRefused::ConcurrentTransactions));
        assert_eq!(rig.mark(), (me, commits, vec![0, 1]));
        assert_eq!(rig.status(), Some(complete));
        // It did not hear the answer.
        assert_eq!(rig.end(me, commits, false), Ok(me));
        assert_eq!(rig.end(me, !commits, false), Err(TransactionRefused::InvalidTransactionState));
        assert_eq!(rig.add(me, 0), Ok(()));
    }
}

/// A producer sends batches into partitions that take part while it adds others, or has the transaction ended by another of
/// its requests. To be told to come again it would lose a tenth of a second each time.
#[test]
fn what_takes_part_is_verified_while_a_record_is_on_its_way() {
    let mut rig = Rig::new();
    let me = rig.begin(None).unwrap();
    rig.add(me, 0).unwrap();
    let on_its_way: [fn(Producer) -> TransactionRequest; 3] = [
        |me| TransactionRequest::Add { id: ID.into(), producer: me, partitions: vec![("books".to_owned(), 1)] },
        |me| TransactionRequest::End { id: ID.into(), producer: me, commits: true, bumps: false },
        |_| TransactionRequest::Begin { id: ID.into(), timeout_ms: 60_000, expected: None },
    ];
    for request in on_its_way {
        rig.appends_end = None;
        rig.ask(request(me));
        assert_eq!(rig.held.len(), 1);
        assert_eq!(rig.verify(me, 0), Ok(()));
        assert_eq!(rig.verify(me, 1), Err(TransactionRefused::TransactionAbortable), "not before it is in the log");
        let before = producer(me.id, me.epoch - 1);
        assert_eq!(rig.verify(before, 0), Err(TransactionRefused::ProducerFenced));
        for id in std::mem::take(&mut rig.held) {
            rig.input(TransactionInput::Appended(id, Appended::NotNow));
        }
        rig.appends_end = Some(Appended::Committed);
    }
    // An id whose first record is on its way is nobody's yet.
    rig.appends_end = None;
    let begin = TransactionRequest::Begin { id: "other".into(), timeout_ms: 60_000, expected: None };
    rig.ask(begin);
    let verify = |producer| TransactionRequest::Verify {
        id: "other".into(),
        producer,
        partitions: vec![("books".to_owned(), 0)],
    };
    let refused = |why| TransactionAnswer::Done(Err(why));
    assert_eq!(rig.answered(verify(producer(1001, 0))), refused(TransactionRefused::ProducerFenced));
    assert_eq!(rig.answered(verify(producer(1001, -1))), refused(TransactionRefused::TransactionAbortable));
}

#[test]
fn what_cannot_begin_is_told_why() {
    let mut rig = Rig::new();
    let begin = |id: &str, timeout_ms| TransactionRequest::Begin { id: id.into(), timeout_ms, expected: None };
    for (request, why) in [
        (begin("", 1), TransactionRefused::InvalidRequest),
        (begin(ID, 0), TransactionRefused::InvalidTransactionTimeout),
        (begin(ID, 900_001), TransactionRefused::InvalidTransactionTimeout),
    ] {
        assert_eq!(rig.answered(request), TransactionAnswer::Producer(Err(why)));
    }
    let nobody = producer(1, 0);
    assert_eq!(rig.add(nobody, 0), Err(TransactionRefused::InvalidProducerIdMapping));
    assert_eq!(rig.end(nobody, true, false), Err(TransactionRefused::InvalidProducerIdMapping));
    assert_eq!(rig.status(), None);
}

#[test]
fn a_newer_producer_fences_the_one_before_and_aborts_what_it_left() {
    let mut rig = Rig::new();
    let old = rig.begin(None).unwrap();
    assert_eq!(rig.add(old, 0), Ok(()));
    assert_eq!(rig.begin(None), Err(TransactionRefused::ConcurrentTransactions), "first that transaction is aborted");
    assert_eq!(rig.end(old, true, false), Err(TransactionRefused::ProducerFenced));
    assert_eq!(rig.mark(), (producer(1000, 1), false, vec![0]), "with an epoch that fences its batches too");
    let new = rig.begin(None).unwrap();
    assert_eq!(new, producer(1000, 2));
    assert_eq!(rig.add(old, 0), Err(TransactionRefused::ProducerFenced));
    assert_eq!(rig.add(producer(7, 2), 0), Err(TransactionRefused::InvalidProducerIdMapping));
}

/// Its next epoch is the one that its transaction was aborted in, which nobody else was told of.
#[test]
fn who_was_fenced_by_nobody_goes_on_in_the_next_epoch() {
    for begun_again in [false, true] {
        let mut rig = Rig::new();
        let first = rig.begin(None).unwrap();
        rig.add(first, 0).unwrap();
        assert_eq!(rig.begin(None), Err(TransactionRefused::ConcurrentTransactions));
        rig.mark();
        assert_eq!(rig.status(), Some(Status::CompleteAbort));
        if begun_again {
            let second = rig.begin(None).unwrap();
            assert_eq!(second.epoch, first.epoch + 2);
            assert_eq!(rig.begin(Some(first)), Err(TransactionRefused::ProducerFenced));
            continue;
        }
        let next = Producer { epoch: first.epoch + 1, ..first };
        assert_eq!(rig.begin(Some(first)), Ok(next));
        assert_eq!(rig.status(), Some(Status::Empty));
        assert_eq!(rig.begin(Some(first)), Ok(next), "it did not hear of it");
        assert_eq!(rig.add(first, 0), Err(TransactionRefused::ProducerFenced));
        assert_eq!(rig.add(next, 0), Ok(()));
        let second = rig.begin(None);
        assert_eq!(second, Err(TransactionRefused::ConcurrentTransactions));
    }
}

/// Who was deposed and has not heard of it may know the producer's transaction before, which had the same epoch.
#[test]
fn who_cannot_write_says_of_nothing_that_it_is_so_already() {
    let cannot = Err(TransactionRefused::CoordinatorNotAvailable);
    let mut rig = Rig::new();
    let first = rig.begin(None).unwrap();
    rig.add(first, 0).unwrap();
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(rig.add(first, 0), cannot);
    rig.appends_end = Some(Appended::Committed);
    assert_eq!(rig.add(first, 0), Ok(()));
    rig.end(first, true, false).unwrap();
    rig.mark();
    assert_eq!(rig.status(), Some(Status::CompleteCommit));
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(rig.end(first, true, false), cannot.map(|()| first));
    rig.appends_end = Some(Appended::Committed);
    assert_eq!(rig.end(first, true, false), Ok(first));
    assert_eq!(rig.status(), Some(Status::CompleteCommit));
}

#[test]
fn a_producer_asks_for_its_next_epoch_as_often_as_it_likes() {
    let mut rig = Rig::new();
    let first = rig.begin(None).unwrap();
    let second = rig.begin(Some(first)).unwrap();
    assert_eq!(second, producer(1000, 1));
    assert_eq!(rig.begin(Some(first)), Ok(second), "it did not hear the answer");
    assert_eq!(rig.begin(Some(producer(1000, 7))), Err(TransactionRefused::ProducerFenced));
    assert_eq!(rig.begin(Some(producer(1, 0))), Err(TransactionRefused::ProducerFenced));
    assert_eq!(rig.begin(None), Ok(producer(1000, 2)));
    assert_eq!(rig.begin(Some(first)), Err(TransactionRefused::ProducerFenced));
}

#[test]
fn epochs_that_are_used_up_bring_a_new_id() {
    let mut rig = Rig::new();
    let mut me = rig.begin(None).unwrap();
    while me.epoch < i16::MAX - 1 {
        me = rig.begin(Some(me)).unwrap();
    }
    let next = rig.begin(Some(me)).unwrap();
    assert_eq!(next, producer(1001, 0));
    assert_eq!(rig.begin(Some(me)), Ok(next), "it did not hear the answer");
    assert_eq!(rig.begin(Some(producer(1000, 5))), Err(TransactionRefused::ProducerFenced));
    let later = rig.begin(Some(next)).unwrap();
    assert_eq!(later, producer(1001, 1));
    assert_eq!(rig.begin(Some(me)), Err(TransactionRefused::ProducerFenced), "it is another that has gone on");
}

#[test]
fn with_transaction_version_2_each_transaction_has_an_epoch_of_its_own() {
    let mut rig = Rig::new();
    let first = rig.begin(None).unwrap();
    assert_eq!(rig.add(first, 0), Ok(()));
    let second = rig.end(first, true, true).unwrap();
    assert_eq!(second, producer(1000, 1));
    assert_eq!(rig.end(first, true, true), Err(TransactionRefused::ConcurrentTransactions));
    assert_eq!(rig.end(second, true, true), Err(TransactionRefused::ProducerFenced), "before the first has ended");
    assert_eq!(rig.mark(), (second, true, vec![0]));
    assert_eq!(rig.end(first, true, true), Ok(second), "it did not hear the answer");
    assert_eq!(rig.end(first, false, true), Err(TransactionRefused::InvalidTransactionState));
    // Nothing took part: it may abort all the same, not commit.
    assert_eq!(rig.end(second, true, true), Err(TransactionRefused::InvalidTransactionState));
    let third = rig.end(second, false, true).unwrap();
    assert_eq!((third, rig.status()), (producer(1000, 2), Some(Status::CompleteAbort)));
    assert!(rig.marks.is_empty());
    assert_eq!(rig.add(second, 0), Err(TransactionRefused::ProducerFenced));
}

#[test]
fn with_transaction_version_2_a_producer_that_was_replaced_is_told_so_when_it_ends_its_transaction() {
    let mut rig = Rig::new();
    let old = rig.begin(None).unwrap();
    let new = rig.begin(None).unwrap();
    for commits in [true, false] {
        assert_eq!(rig.end(old, commits, true), Err(TransactionRefused::ProducerFenced), "nothing is under way");
    }
    assert_eq!(rig.add(new, 0), Ok(()));
    for commits in [true, false] {
        assert_eq!(rig.end(old, commits, true), Err(TransactionRefused::ProducerFenced), "the other's goes on");
    }
    assert_eq!(rig.status(), Some(Status::Ongoing));
}

#[test]
fn with_transaction_version_2_the_last_epoch_ends_in_a_new_id() {
    let mut rig = Rig::new();
    let mut me = rig.begin(None).unwrap();
    while me.epoch < i16::MAX - 1 {
        me = rig.begin(Some(me)).unwrap();
    }
    assert_eq!(rig.add(me, 0), Ok(()));
    let next = rig.end(me, true, true).unwrap();
    assert_eq!(next, producer(1001, 0));
    assert_eq!(rig.mark(), (producer(1000, i16::MAX), true, vec![0]));
    assert_eq!(rig.end(me, true, true), Ok(next), "it did not hear the answer");
    assert_eq!(rig.add(next, 0), Ok(()));
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted() {
    let mut rig = Rig::new();
    let me = rig.begin(None).unwrap();
    assert_eq!(rig.add(me, 0), Ok(()));
    rig.passes_ms(59_000);
    assert_eq!(rig.status(), Some(Status::Ongoing));
    rig.passes_ms(11_000);
    assert_eq!(rig.mark(), (producer(1000, 1), false, vec![0]));
    assert_eq!(rig.status(), Some(Status::CompleteAbort));
    assert_eq!(rig.add(me, 0), Err(TransactionRefused::ProducerFenced));
}

#[test]
fn an_id_that_nobody_uses_is_forgotten_after_a_week() {
    let mut rig = Rig::new();
    let me = rig.begin(None).unwrap();
    rig.passes_ms(604_000_000);
    assert_eq!(rig.status(), Some(Status::Empty));
    rig.passes_ms(7_200_000);
    assert_eq!(rig.status(), None);
    assert_eq!(rig.log.last().unwrap().value, None);
    assert_eq!(rig.begin(Some(me)), Ok(producer(1001, 0)), "whoever it was, it is new here");
}

#[test]
fn what_could_not_be_written_has_not_happened() {
    let mut rig = Rig::new();
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(rig.begin(None), Err(TransactionRefused::CoordinatorNotAvailable));
    assert_eq!(rig.status(), None);
    rig.appends_end = Some(Appended::Committed);
    let me = rig.begin(None).unwrap();
    rig.appends_end = Some(Appended::NotNow);
    assert_eq!(rig.add(me, 0), Err(TransactionRefused::CoordinatorNotAvailable));
    assert_eq!(rig.status(), Some(Status::Empty));
    rig.appends_end = Some(Appended::Committed);
    assert_eq!(rig.add(me, 0), Ok(()));
    assert_eq!(rig.end(me, true, false), Ok(me));
    // The last record is written again until it is in the log: nobody else would ask for it.
    rig.appends_end = Some(Appended::NotNow);
    rig.mark();
    assert_eq!(rig.status(), Some(Status::PrepareCommit));
    rig.passes_ms(1_000);
    rig.appends_end = Some(Appended::Committed);
    rig.passes_ms(1_000);
    assert_eq!(rig.status(), Some(Status::CompleteCommit));
}

/// Told to try again, a client would do so for ever; and a record that fits whose successor does not would leave a transaction
/// that nobody can end.
#[test]
fn a_transaction_that_takes_no_more_partitions_says_so_and_can_be_ended() {
    let exhausted = i16::MAX - 1;
    for (epochs_are_left, ends_by) in
        [(true, "commit"), (true, "time"), (true, "fence"), (false, "commit"), (false, "time")]
    {
        let mut rig = Rig::new();
        let mut me = rig.begin(None).unwrap();
        if !epochs_are_left {
            let entry = rig.coordinator.ids.get_mut(ID).unwrap();
            entry.state.producer.epoch = exhausted;
            me.epoch = exhausted;
        }
        rig.record_bytes_max = 1_000;
        let mut added = 0;
        let why = loop {
            match rig.add(me, added) {
                Ok(()) => added += 1,
                Err(why) => break why,
            }
            assert!(added < 1_000, "no log takes that");
        };
        assert_eq!(why, TransactionRefused::UnknownServerError);
        assert!(added > 100, "{added}");
        assert_eq!(rig.status(), Some(Status::Ongoing));
        assert_eq!(rig.add(me, 0), Ok(()), "it goes on with what it has");
        assert_eq!(rig.verify(me, added), Err(TransactionRefused::TransactionAbortable));
        match ends_by {
            "commit" => assert!(rig.end(me, true, true).is_ok()),
            "fence" => assert_eq!(rig.begin(None), Err(TransactionRefused::ConcurrentTransactions)),
            _ => rig.passes_ms(80_000),
        }
        let (_, commits, marked) = rig.mark();
        assert_eq!((commits, marked.len()), (ends_by == "commit", usize::try_from(added).unwrap()));
        let ended = if commits { Status::CompleteCommit } else { Status::CompleteAbort };
        assert_eq!(rig.status(), Some(ended), "{ends_by}");
    }
}

#[test]
fn what_the_log_refuses_for_ever_is_told_as_final_and_has_not_happened() {
    for how in [Appended::TooLarge, Appended::Refused] {
        let mut rig = Rig::new();
        rig.appends_end = Some(how);
        assert_eq!(rig.begin(None), Err(TransactionRefused::UnknownServerError));
        assert_eq!(rig.status(), None);
        rig.appends_end = Some(Appended::Committed);
        let me = rig.begin(None).unwrap();
        assert_eq!(rig.add(me, 0), Ok(()));
        rig.appends_end = Some(how);
        assert_eq!(rig.end(me, true, false), Err(TransactionRefused::UnknownServerError));
        assert_eq!((rig.status(), rig.marks.len()), (Some(Status::Ongoing), 0));
        rig.appends_end = Some(Appended::Committed);
        assert_eq!(rig.end(me, true, false), Ok(me));
        assert_eq!(rig.mark(), (me, true, vec![0]));
    }
}

#[test]
fn while_a_record_is_on_its_way_nothing_else_happens_to_the_id() {
    let mut rig = Rig::new();
    let me = rig.begin(None).unwrap();
    rig.appends_end = None;
    let adding =
        rig.ask(TransactionRequest::Add { id: ID.into(), producer: me, partitions: vec![("books".into(), 0)] });
    assert!(!rig.answers.contains_key(&adding));
    assert_eq!(rig.add(me, 1), Err(TransactionRefused::ConcurrentTransactions));
    assert_eq!(rig.end(me, true, false), Err(TransactionRefused::ConcurrentTransactions));
    let append = rig.held.pop().unwrap();
    rig.input(TransactionInput::Appended(append, Appended::Late));
    let late = TransactionAnswer::Done(Err(TransactionRefused::CoordinatorNotAvailable));
    assert_eq!(rig.answers.remove(&adding), Some(late));
    assert_eq!(rig.add(me, 1), Err(TransactionRefused::ConcurrentTransactions), "it may be committed yet");
    rig.input(TransactionInput::Appended(append, Appended::Committed));
    assert_eq!(rig.status(), Some(Status::Ongoing));
}

#[test]
fn another_coordinator_ends_what_was_decided() {
    for commits in [true, false] {
        let mut rig = Rig::new();
        let me = rig.begin(None).unwrap();
        assert_eq!(rig.add(me, 0), Ok(()));
        let mut open = rig.successor();
        assert_eq!((open.status(), open.marks.len()), (Some(Status::Ongoing), 0));
        assert_eq!(open.end(me, commits, false), Ok(me));
        assert_eq!(rig.end(me, commits, false), Ok(me));
        let mut decided = rig.successor();
        assert_eq!(decided.mark(), (me, commits, vec![0]));
        assert_eq!(decided.end(me, commits, false), Ok(me));
    }
}

/// A coordinator that loads again while it leads may hear what became of markers that it had written before. Were that taken
/// for all of them, the others would never come.
#[test]
fn what_a_coordinator_hears_of_markers_while_it_loads_does_not_end_a_transaction() {
    let mut rig = Rig::new();
    let me = rig.begin(None).unwrap();
    assert_eq!((rig.add(me, 0), rig.add(me, 1)), (Ok(()), Ok(())));
    assert_eq!(rig.end(me, true, false), Ok(me));
    let mut next = Rig::loading();
    for record in &rig.log {
        next.input(TransactionInput::Load(record.clone()));
    }
    let partitions = vec![("books".to_owned(), 0)];
    next.input(TransactionInput::Marked { id: ID.into(), producer: me, partitions });
    assert!(next.log.is_empty(), "{:?}", next.log);
    next.input(TransactionInput::Loaded);
    assert_eq!((next.mark(), next.status()), ((me, true, vec![0, 1]), Some(Status::CompleteCommit)));
}

#[derive(Clone, Debug)]
enum Doing {
    Begin { known: bool },
    Add { stale: bool, partition: i32 },
    End { stale: bool, commits: bool, bumps: bool },
    Mark,
    Pass(u64),
    AppendsEnd(Option<Appended>),
    Restart,
}

fn doing() -> impl Strategy<Value = Doing> {
    let ends = [None, Some(Appended::NotNow), Some(Appended::Committed), Some(Appended::Committed)];
    prop_oneof![
        3 => any::<bool>().prop_map(|known| Doing::Begin { known }),
        6 => (prop::bool::weighted(0.2), 0..3).prop_map(|(stale, partition)| Doing::Add { stale, partition }),
        4 => (prop::bool::weighted(0.2), any::<bool>(), any::<bool>())
            .prop_map(|(stale, commits, bumps)| Doing::End { stale, commits, bumps }),
        4 => Just(Doing::Mark),
        1 => (0_u64..80_000).prop_map(Doing::Pass),
        1 => prop::sample::select(ends.to_vec()).prop_map(Doing::AppendsEnd),
        1 => Just(Doing::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// Whatever happens: a transaction that its producer was told is committed is never aborted anywhere, nor the other way
    /// about; epochs only grow; every transaction comes to its end.
    #[test]
    fn what_was_decided_stays_decided(steps in prop::collection::vec(doing(), 1..100)) {
        let mut rig = Rig::new();
        let mut known: Vec<Producer> = Vec::new();
        // What producers were told, by the producer whose markers say it.
        let mut decided: BTreeMap<Producer, bool> = BTreeMap::new();
        for step in steps {
            let now = known.last().copied();
            let before = known.len().checked_sub(2).map(|at| known[at]);
            let whose = |stale: bool| if stale { before } else { now };
            match step {
                Doing::Begin { known: says } => {
                    let request = TransactionRequest::Begin {
                        id: ID.into(), timeout_ms: 60_000, expected: now.filter(|_| says),
                    };
                    let ticket = rig.ask(request);
                    if let Some(TransactionAnswer::Producer(Ok(told))) = rig.answers.remove(&ticket) {
                        if let Some(now) = now {
                            prop_assert!((told.id, told.epoch) >= (now.id, now.epoch), "{told:?} after {now:?}");
                        }
                        if now != Some(told) {
                            known.push(told);
                        }
                    }
                }
                Doing::Add { stale, partition } => if let Some(producer) = whose(stale) {
                    let partitions = vec![("books".to_owned(), partition)];
                    rig.ask(TransactionRequest::Add { id: ID.into(), producer, partitions });
                },
                Doing::End { stale, commits, bumps } => if let Some(producer) = whose(stale) {
                    let ticket = rig.ask(TransactionRequest::End { id: ID.into(), producer, commits, bumps });
                    if let Some(TransactionAnswer::Producer(Ok(told))) = rig.answers.remove(&ticket) {
                        if bumps && Some(told) != now {
                            known.push(told);
                        }
                        if let Some((_, marks, markers_commit, _)) = rig.marks.last()
                            && *marks == told
                        {
                            prop_assert_eq!(*markers_commit, commits);
                            decided.insert(told, commits);
                        }
                    }
                },
                Doing::Mark => if !rig.marks.is_empty() {
                    let (producer, commits, _) = rig.mark();
                    prop_assert!(decided.remove(&producer).is_none_or(|told| told == commits), "{producer:?}");
                },
                Doing::Pass(milliseconds) => rig.passes_ms(milliseconds),
                Doing::AppendsEnd(how) => {
                    rig.commit_held();
                    rig.appends_end = how;
                }
                Doing::Restart => {
                    rig.commit_held();
                    let told = rig.status();
                    let mut next = rig.successor();
                    prop_assert_eq!(next.status(), told);
                    rig = next;
                }
            }
        }
        rig.commit_held();
        rig.appends_end = Some(Appended::Committed);
        rig.passes_ms(100_000);
        while !rig.marks.is_empty() {
            let (producer, commits, _) = rig.mark();
            prop_assert!(decided.remove(&producer).is_none_or(|told| told == commits), "{producer:?}");
        }
        rig.passes_ms(1_000);
        let ended = [None, Some(Status::Empty), Some(Status::CompleteCommit), Some(Status::CompleteAbort)];
        let status = rig.status();
        prop_assert!(ended.contains(&status), "{status:?}");
    }
}
