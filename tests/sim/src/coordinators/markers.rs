//! Markers: what a coordinator has written into each partition of a transaction that is decided, and the numbers that it
//! gives to producers. In the order of the broker's (`transactions/markers.rs`).

use std::collections::BTreeSet;

use highwater_groups::transactions::TransactionInput;
use highwater_replication::{Acks, ProduceError, ProduceRefused};
use highwater_storage::{AppendError, CheckedBatch, Origin, ProduceRules, SequenceError, TimestampMs};

use super::produce::{Given, NotProduced, Outcome, Then};
use super::*;
use crate::fault::STORE;

/// How long a coordinator waits until it tries again what was not written, and for the answers of a round.
const RETRY_MS: i64 = 20;
const ROUND_MS: i64 = 150;

/// A transaction that is decided, on its way to its partitions.
pub(super) struct Marking {
    id: String,
    producer: Producer,
    marker: TransactionMarker,
    left: BTreeSet<usize>,
    round: u32,
    /// Of this round.
    waits_for: BTreeSet<usize>,
    done: Vec<usize>,
    refused: bool,
}

/// Why a marker was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotMarked {
    NotLeader,
    InvalidProducerEpoch,
    CoordinatorFenced,
    NotEnoughReplicas,
    Storage,
}

impl World {
    pub(super) fn begin_marking(
        &mut self,
        node: usize,
        id: String,
        producer: Producer,
        commits: bool,
        partitions: &[(String, i32)],
    ) {
        let number = self.number();
        let left = partitions.iter().map(|(topic, partition)| number_of(topic, *partition)).collect();
        let Some(driver) = self.nodes[node].running.as_mut().and_then(|running| running.drivers[TRANSACTIONS].as_mut())
        else {
            return;
        };
        let marker = TransactionMarker {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            coordinator_epoch: driver.leader_epoch.0,
            is_abort: !commits,
        };
        let (round, waits_for) = (0, BTreeSet::new());
        driver
            .markings
            .insert(number, Marking { id, producer, marker, left, round, waits_for, done: Vec::new(), refused: false });
        let of = driver.number;
        self.schedule(0, node, Event::RoundBegins(of, number));
    }

    pub(super) fn round_begins(&mut self, node: usize, driver: u64, marking: u64) {
        let life = self.nodes[node].life;
        let Some(of) = self.driver_of(node, TRANSACTIONS, driver).and_then(|driver| driver.markings.get_mut(&marking))
        else {
            return;
        };
        of.round += 1;
        let (round, marker, left) = (of.round, of.marker, of.left.clone());
        of.waits_for.clone_from(&left);
        for at in left {
            // Those without a leader are left for later.
            let Some(leader) = self.nodes[node].leader_of(at) else { continue };
            let sent = MarkerSent { marker, at, node, life, driver, marking, round };
            if leader == node {
                self.schedule(0, node, Event::MarkerArrives(Box::new(sent)));
            } else {
                self.post(node, leader, Event::MarkerArrives(Box::new(sent)));
            }
        }
        self.schedule(ROUND_MS, node, Event::RoundEnds(driver, marking, round));
    }

    /// Whether who sent it still waits for it. One that comes later may end the next transaction of its producer, as in Kafka
    /// (docs/transactions.md): that it does is known, and here it would hide what is not.
    fn is_waited_for(&mut self, sent: &MarkerSent) -> bool {
        let of = self.driver_of(sent.node, TRANSACTIONS, sent.driver);
        let of = of.and_then(|driver| driver.markings.get(&sent.marking));
        of.is_some_and(|of| of.round == sent.round && of.waits_for.contains(&sent.at))
    }

    /// A marker for a partition that this broker leads, as another one says.
    pub(super) fn marker_arrives(&mut self, node: usize, sent: MarkerSent) {
        if !self.is_waited_for(&sent) {
            self.counts.late_markers += 1;
            return;
        }
        if sent.at == OFFSETS {
            // What a group has committed in the transaction counts from the marker on.
            return self.mark_at_driver(node, OFFSETS, sent);
        }
        let now = self.nodes[node].time(self.now);
        let rules = ProduceRules { origin: Origin::Coordinator, ..ProduceRules::default() };
        let batch = CheckedBatch::check(sent.marker.to_batch(now), &rules, now).expect("a valid batch");
        self.produce(
            node,
            Given {
                at: sent.at,
                batch,
                acks: Acks::All,
                deadline: TimestampMs(i64::MAX),
                guard: None,
                counts_anew: false,
                leader_epoch: None,
                then: Then::Marker(sent),
            },
        );
    }

    pub(super) fn marker_ends(&mut self, node: usize, sent: MarkerSent, how: Result<(), NotMarked>) {
        let event = Event::MarkerWritten(Box::new(sent), how);
        if sent.node == node {
            self.schedule_for(0, node, sent.life, event);
        } else {
            self.post_for(node, sent.node, sent.life, event);
        }
    }

    pub(super) fn marker_written(&mut self, node: usize, sent: MarkerSent, how: Result<(), NotMarked>) {
        let MarkerSent { at, driver, marking, round, .. } = sent;
        let Some(of) = self.driver_of(node, TRANSACTIONS, driver).and_then(|driver| driver.markings.get_mut(&marking))
        else {
            return;
        };
        if of.round != round || !of.waits_for.remove(&at) {
            return;
        }
        match how {
            Ok(()) => of.done.push(at),
            Err(NotMarked::InvalidProducerEpoch | NotMarked::CoordinatorFenced) => of.refused = true,
            Err(_) => {}
        }
        if of.waits_for.is_empty() {
            self.round_ends(node, driver, marking, round);
        }
    }

    pub(super) fn round_ends(&mut self, node: usize, driver: u64, marking: u64, round: u32) {
        let Some(of) = self.driver_of(node, TRANSACTIONS, driver) else { return };
        let Some(of) = of.markings.get_mut(&marking).filter(|of| of.round == round) else { return };
        // What else comes for this round is too late.
        of.round += 1;
        let done = std::mem::take(&mut of.done);
        for at in &done {
            of.left.remove(at);
        }
        let (id, producer, refused, ends) = (of.id.clone(), of.producer, of.refused, of.left.is_empty());
        if refused || ends {
            if let Some(of) = self.driver_of(node, TRANSACTIONS, driver) {
                of.markings.remove(&marking);
            }
        } else {
            self.schedule(RETRY_MS, node, Event::RoundBegins(driver, marking));
        }
        if !done.is_empty() {
            let partitions = done.into_iter().map(named).collect();
            self.tell_news(node, driver, TransactionInput::Marked { id, producer, partitions });
        }
    }

    /// Asks the store for a producer id that nobody has.
    pub(super) fn fetch_producer_id(&mut self, node: usize, driver: u64, ticket: Ticket) {
        let there_ms = self.network.latency(self.now, node, STORE);
        let back_ms = self.network.latency(self.now, STORE, node);
        let id = self.in_touch(node).then_some(self.store.next_producer_id);
        self.store.next_producer_id += i64::from(id.is_some());
        self.schedule(there_ms + back_ms, node, Event::ProducerIdComes(driver, ticket, id));
    }

    pub(super) fn producer_id_comes(&mut self, node: usize, driver: u64, ticket: Ticket, id: Option<i64>) {
        self.tell_news(node, driver, TransactionInput::ProducerId(ticket, id));
    }
}

/// What becomes of a marker; that it is not led here any more where it is not known.
pub(super) fn marked(outcome: Outcome) -> Result<(), NotMarked> {
    let error = match outcome {
        Ok(_) => return Ok(()),
        Err(NotProduced::Partition(error)) => error,
        Err(NotProduced::Transaction(_)) => return Err(NotMarked::NotLeader),
    };
    Err(match error {
        ProduceError::Append(AppendError::Sequence(SequenceError::CoordinatorFenced { .. })) => {
            NotMarked::CoordinatorFenced
        }
        ProduceError::Append(AppendError::Sequence(_)) => NotMarked::InvalidProducerEpoch,
        ProduceError::Append(_) => NotMarked::Storage,
        ProduceError::Refused(ProduceRefused::NotEnoughReplicas { .. } | ProduceRefused::TooManyWaiting { .. }) => {
            NotMarked::NotEnoughReplicas
        }
        _ => NotMarked::NotLeader,
    })
}
