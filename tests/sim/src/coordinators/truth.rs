//! What must hold, beside what readers check of what they read.
//!
//! - An offset that a coordinator has acknowledged, or that a transaction committed, is told by every later one, or a later one.
//! - Of one generation of a group each partition is one member's; generations that members are told never go back.
//! - Once a producer has been told its epoch, nothing of an older one is appended as new.
//! - A transaction is visible in all its partitions or in none, each record once and in order.

use std::collections::{BTreeMap, BTreeSet};

use highwater_groups::Answer;
use highwater_groups::transactions::TransactionAnswer;

use super::client::Asking;
use super::*;

#[derive(Debug, Default)]
pub(super) struct Truth {
    /// By group and input.
    acknowledged: BTreeMap<(String, usize), i64>,
    /// Who has which input, by group and generation.
    owners: BTreeMap<(String, i32, usize), String>,
    /// The latest generation that somebody was told an assignment of.
    generations: BTreeMap<String, i32>,
    /// The epoch that each producer id was told.
    epochs: BTreeMap<i64, i16>,
    /// Transactions whose producer was told that they are committed, or aborted.
    pub(super) committed: BTreeMap<u64, (usize, i64)>,
    pub(super) aborted: BTreeSet<u64>,
}

/// What of a request matters when it is answered.
#[derive(Clone, Debug)]
pub(super) enum About {
    Nothing,
    Sync {
        group: String,
        generation: i32,
        owner: String,
    },
    Commit {
        group: String,
        offsets: Vec<(usize, i64)>,
    },
    /// With what was acknowledged when it came.
    Offsets {
        group: String,
        known: BTreeMap<usize, i64>,
    },
    Begin,
    End {
        serial: Option<u64>,
        commits: bool,
    },
}

impl World {
    pub(super) fn about(&self, caller: Caller, ask: &Ask) -> About {
        match ask {
            Ask::Coordinator(Asking::Group(request)) => match request {
                Request::Sync(sync) => {
                    let member = &sync.member;
                    let owner = member.group_instance_id.clone().unwrap_or_else(|| member.member_id.clone());
                    About::Sync { group: member.group.clone(), generation: member.generation, owner }
                }
                Request::Commit(commit) => {
                    let offset =
                        |one: &highwater_groups::CommittedOffset| (input(&one.topic, one.partition), one.offset);
                    About::Commit {
                        group: commit.member.group.clone(),
                        offsets: commit.offsets.iter().map(offset).collect(),
                    }
                }
                Request::FetchOffsets(fetch) => {
                    let group = fetch.group.clone();
                    let of = |input| self.truth.acknowledged.get(&(group.clone(), input)).map(|known| (input, *known));
                    About::Offsets { known: (0..INPUTS.len()).filter_map(of).collect(), group }
                }
                _ => About::Nothing,
            },
            Ask::Coordinator(Asking::Transaction(TransactionRequest::Begin { .. })) => About::Begin,
            Ask::Coordinator(Asking::Transaction(TransactionRequest::End { commits, .. })) => {
                let member = match caller.client {
                    Client::Member(member) => &self.members[member],
                    other => panic!("no copier: {other:?}"),
                };
                let transaction = member.copier.as_ref().and_then(|copier| copier.transaction.as_ref());
                let serial = transaction.filter(|_| member.waits_for(caller.number)).map(|of| of.serial);
                About::End { serial, commits: *commits }
            }
            // Until its transaction is committed it is no offset of the group.
            Ask::Coordinator(_) | Ask::Offsets { .. } | Ask::Produce { .. } => About::Nothing,
        }
    }

    /// A coordinator answers: what it says is checked where it says it, whether it arrives or not.
    pub(super) fn check_answer(&mut self, node: usize, which: usize, caller: Caller, about: &About, told: &Told) {
        let is_present = self.is_of_the_present(node, which);
        match (about, told) {
            (About::Sync { group, generation, owner }, Told::Group(Answer::Sync(Ok(synced)))) => {
                let latest = self.truth.generations.entry(group.clone()).or_insert(*generation);
                assert!(
                    *generation >= *latest || !is_present,
                    "group {group} was in generation {latest}, and {owner} is told of {generation}"
                );
                *latest = (*latest).max(*generation);
                for input in synced.assignment.iter().map(|input| usize::from(*input)) {
                    let key = (group.clone(), *generation, input);
                    let first = self.truth.owners.entry(key).or_insert_with(|| owner.clone());
                    assert_eq!(first, owner, "two have input {input} in generation {generation} of {group}");
                }
            }
            (About::Commit { group, offsets }, Told::Group(Answer::Commit(Ok(results)))) => {
                for ((input, offset), _) in offsets.iter().zip(results).filter(|(_, result)| result.is_ok()) {
                    let known = self.acknowledge(group, *input, *offset);
                    assert!(
                        *offset >= known || !is_present,
                        "{known} of input {input} was acknowledged to {group}, and then {offset}"
                    );
                    self.counts.commits += 1;
                }
            }
            // One that was deposed and has not heard of it tells what it knew: whoever goes by that is fenced by its generation.
            (About::Offsets { group, known }, Told::Group(Answer::Offsets(Ok(offsets)))) if is_present => {
                for found in offsets {
                    let input = input(&found.topic, found.partition);
                    let Ok(value) = &found.offset else { continue };
                    let (known, told) =
                        (known.get(&input).copied().unwrap_or(-1), value.as_ref().map_or(-1, |value| value.offset));
                    assert!(told >= known, "{known} of input {input} was acknowledged to {group}, and {told} is told");
                }
            }
            (About::Begin, Told::Transaction(TransactionAnswer::Producer(Ok(producer)))) => {
                let epoch = self.truth.epochs.entry(producer.id).or_insert(producer.epoch);
                *epoch = (*epoch).max(producer.epoch);
            }
            (About::End { serial: Some(serial), commits }, Told::Transaction(TransactionAnswer::Producer(Ok(_)))) => {
                self.transaction_ended(caller, *serial, *commits);
            }
            _ => {}
        }
    }

    fn transaction_ended(&mut self, caller: Caller, serial: u64, commits: bool) {
        let Client::Member(member) = caller.client else { return };
        let Some(copier) = &self.members[member].copier else { return };
        let Some(transaction) = copier.transaction.as_ref().filter(|of| of.serial == serial) else { return };
        let (input, offset) = (transaction.input, transaction.offset());
        if commits {
            assert!(!self.truth.aborted.contains(&serial), "transaction {serial} is told to be committed and aborted");
            self.truth.committed.insert(serial, (input, offset));
            // When it was decided is not when it is told: who was not answered, or not by the coordinator that decided, asks
            // again, and others may have gone on from there meanwhile.
            self.acknowledge(member::COPIERS, input, offset);
        } else {
            assert!(
                !self.truth.committed.contains_key(&serial),
                "transaction {serial} is told to be aborted and committed"
            );
            self.truth.aborted.insert(serial);
        }
    }

    /// Notes an offset, and returns the highest that was noted before.
    fn acknowledge(&mut self, group: &str, input: usize, offset: i64) -> i64 {
        let known = self.truth.acknowledged.entry((group.to_owned(), input)).or_insert(offset);
        let before = *known;
        *known = before.max(offset);
        before
    }

    /// A batch was appended that had not been there before.
    pub(super) fn check_fencing(&mut self, node: usize, at: usize, producer: Producer) {
        let told = self.truth.epochs.get(&producer.id).copied();
        assert!(
            told.is_none_or(|told| producer.epoch >= told) || !self.is_of_the_present(node, at),
            "producer {} was told epoch {told:?}, and writes in {} to {}-{}",
            producer.id,
            producer.epoch,
            NAMES[at].0,
            NAMES[at].1
        );
    }
}

impl Truth {
    /// The highest offsets that were acknowledged, by group and input.
    pub(super) fn acknowledged(&self) -> &BTreeMap<(String, usize), i64> {
        &self.acknowledged
    }
}

pub(super) fn input(topic: &str, partition: i32) -> usize {
    let at = number_of(topic, partition);
    INPUTS.iter().position(|input| *input == at).expect("an input")
}
