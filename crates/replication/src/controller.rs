//! Elections: who leads each partition, decided from who lives and who is in sync.
//!
//! The controller writes nothing itself. It gives out [`Commit`]s, each with the version that the store must still have
//! (and which the caller writes together with a check of `/controller_epoch`), and is told what the store holds. It
//! looks at levels, not at edges: what a partition needs follows from its stored state, the registered brokers and the
//! topic's settings, so a controller that has just taken over needs no history, and a lost event is made up for by the
//! next one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_storage::{LeaderEpoch, Offset, TopicPartition};

use crate::{BrokerEpoch, BrokerId, PartitionState, Versioned};

mod elect;
mod reassignment;

pub use elect::{Brokers, ElectionKind, NotElected, elect_on_request};
pub use reassignment::Reassignment;

use elect::{elect, preferred};

/// What the controller knows of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionFacts {
    /// The brokers that hold a replica, the preferred leader first.
    pub assignment: Vec<BrokerId>,
    /// What the store holds; `None` for a partition that was just created.
    pub state: Option<Versioned<PartitionState>>,
    /// Whether a replica outside of the ISR may lead when no member lives (`unclean.leader.election.enable`): committed
    /// records may be lost then.
    pub unclean_elections: bool,
    /// What doubtful members say that they have left. It counts only from the life that is registered (another unclean
    /// stop may have taken more), and for the epoch in which nobody leads.
    pub ends: BTreeMap<BrokerId, PublishedEnd>,
    /// What is to change of the assignment.
    pub reassignment: Reassignment,
}

/// How far a log goes on disk, while nobody leads the partition and nothing is appended to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedEnd {
    /// In which life of its broker.
    pub life: BrokerEpoch,
    /// Since when nobody leads: the epoch of that state. Under a later leader the log may have changed.
    pub leader_epoch: LeaderEpoch,
    /// The epoch of its last record; [`LeaderEpoch::NONE`] if it has none.
    pub last_epoch: LeaderEpoch,
    /// Its end.
    pub log_end: Offset,
}

/// A write for the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Whose state.
    pub topic_partition: TopicPartition,
    /// The version the store must have; `None`: there must be no state yet.
    pub expected_version: Option<i64>,
    /// The state to write.
    pub state: PartitionState,
    /// Why.
    pub why: Election,
}

/// Why a partition's state changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Election {
    /// A new partition.
    Created,
    /// An in-sync replica leads that did not.
    Elected,
    /// The same, in the place of a leader that led until now: its broker is about to stop, or its replica to go.
    Moved,
    /// The same, because it is the first in the assignment.
    Preferred,
    /// No in-sync replica lives. Nobody leads until one returns.
    LeaderLost,
    /// No in-sync replica lives, and the topic prefers to go on: these members may hold committed records that the new
    /// leader does not have.
    Unclean {
        /// The other members of the ISR before.
        abandoned: Vec<BrokerId>,
    },
    /// All members of the ISR stopped uncleanly, and all are back: the one that has most leads. Records that none of them
    /// has any more are lost, others are not.
    Recovered {
        /// What each of them had, the leader too.
        ends: BTreeMap<BrokerId, PublishedEnd>,
    },
}

/// A reassignment that is done: a write for the store that makes the target the assignment, and begins a new epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose assignment.
    pub topic_partition: TopicPartition,
    /// The version that the partition's state must have, for the replicas that go to be out of the ISR still.
    pub state_version: i64,
    /// The state to write with it: the same leadership, in an epoch of its own. Whoever goes may have fetches on their way and
    /// a proposal to take them in; should their replica come again, it is an empty one, and these must not count for it.
    pub state: PartitionState,
    /// The assignment to write, with nothing to change of it.
    pub assignment: Vec<BrokerId>,
}

/// What became of a [`Commit`] or a [`Completion`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitResult {
    /// It is committed: the store's version is now this one.
    Committed(i64),
    /// The store holds something else. [`Controller::set_partition`] with what it holds makes the controller decide
    /// anew.
    Conflict,
    /// The store did not answer. The same commit is given out again by [`Controller::retry`].
    Unknown,
}

/// The controller's machine. No clock, no I/O; partitions are looked at in the order of their names.
#[derive(Debug)]
pub struct Controller {
    epoch: i32,
    live: BTreeMap<BrokerId, BrokerEpoch>,
    /// Brokers that are about to stop.
    leaving: BTreeSet<BrokerId>,
    /// Replicas that closed their logs, on brokers that live.
    failed: BTreeMap<TopicPartition, BTreeSet<BrokerId>>,
    partitions: BTreeMap<TopicPartition, Tracked>,
    /// Partitions with something new about them.
    due: BTreeSet<TopicPartition>,
    commits: VecDeque<Commit>,
    completions: VecDeque<Completion>,
}

#[derive(Debug)]
struct Tracked {
    facts: PartitionFacts,
    /// The commit that is under way; nothing else is decided meanwhile.
    in_flight: Option<Commit>,
    /// The same for the end of a reassignment.
    completing: Option<Completion>,
}

impl Controller {
    /// A controller that was elected in this controller epoch. Every state it writes carries it.
    pub fn new(epoch: i32) -> Self {
        Self {
            epoch,
            live: BTreeMap::new(),
            leaving: BTreeSet::new(),
            failed: BTreeMap::new(),
            partitions: BTreeMap::new(),
            due: BTreeSet::new(),
            commits: VecDeque::new(),
            completions: VecDeque::new(),
        }
    }

    /// The controller epoch.
    pub fn epoch(&self) -> i32 {
        self.epoch
    }

    /// The brokers that are registered now. One that came back in a new life between two looks is of no interest here: if
    /// it may have lost something it has marked itself ([`return_doubtful`]) before it registered.
    pub fn set_brokers(&mut self, live: &BTreeMap<BrokerId, BrokerEpoch>) {
        self.live.clone_from(live);
        self.due.extend(self.partitions.keys().cloned());
        self.decide();
    }

    /// The brokers that are about to stop (controlled shutdown). None of them is elected, and where one leads it does so only
    /// until another in-sync replica can. That they leave the in-sync sets is their leaders' to write: these are told that
    /// such a broker does not live.
    pub fn set_leaving(&mut self, leaving: BTreeSet<BrokerId>) {
        if leaving != self.leaving {
            self.leaving = leaving;
            self.due.extend(self.partitions.keys().cloned());
            self.decide();
        }
    }

    /// What the store holds for a partition, on take-over, creation, and after every change or conflict.
    pub fn set_partition(&mut self, topic_partition: TopicPartition, facts: PartitionFacts) {
        let version = |facts: &PartitionFacts| facts.state.as_ref().map(|state| state.version);
        match self.partitions.get_mut(&topic_partition) {
            Some(tracked) => {
                if version(&facts) < version(&tracked.facts) {
                    return;
                }
                if version(&facts) > version(&tracked.facts) {
                    // Whatever is under way fails on its version, or is what we see.
                    tracked.in_flight = None;
                }
                if facts != tracked.facts {
                    // Likewise; and the topic's node, which an end writes, has another version if the assignment is another.
                    tracked.completing = None;
                    // One that was not given out yet would go with the version of a later assignment than it was decided on.
                    self.completions.retain(|done| done.topic_partition != topic_partition);
                }
                tracked.facts = facts;
            }
            None => {
                self.partitions.insert(topic_partition.clone(), Tracked { facts, in_flight: None, completing: None });
            }
        }
        self.due.insert(topic_partition);
        self.decide();
    }

    /// The partition is deleted.
    pub fn remove_partition(&mut self, topic_partition: &TopicPartition) {
        self.partitions.remove(topic_partition);
        self.due.remove(topic_partition);
        self.commits.retain(|commit| commit.topic_partition != *topic_partition);
        self.completions.retain(|completion| completion.topic_partition != *topic_partition);
    }

    /// The replicas that closed their logs, on brokers that live: as good as dead for their partition, whatever its epoch,
    /// until they are no longer named here.
    pub fn set_failed(&mut self, failed: BTreeMap<TopicPartition, BTreeSet<BrokerId>>) {
        let concerned = self.failed.keys().chain(failed.keys()).filter(|of| self.failed.get(of) != failed.get(of));
        self.due.extend(concerned.filter(|of| self.partitions.contains_key(of)).cloned());
        self.failed = failed;
        self.decide();
    }

    /// The next write.
    pub fn poll_commit(&mut self) -> Option<Commit> {
        self.commits.pop_front()
    }

    /// What became of a write.
    pub fn committed(&mut self, commit: &Commit, result: &CommitResult) {
        let Some(tracked) = self.partitions.get_mut(&commit.topic_partition) else { return };
        if tracked.in_flight.as_ref() != Some(commit) {
            return;
        }
        match *result {
            CommitResult::Committed(version) => {
                let facts = PartitionFacts {
                    state: Some(Versioned { value: commit.state.clone(), version }),
                    ..tracked.facts.clone()
                };
                self.set_partition(commit.topic_partition.clone(), facts);
            }
            CommitResult::Conflict => tracked.in_flight = None,
            CommitResult::Unknown => {}
        }
    }

    /// The next reassignment to write down as done. Those of one topic are one node in the store.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// What became of such a write.
    pub fn completed(&mut self, completion: &Completion, result: &CommitResult) {
        let Some(tracked) = self.partitions.get_mut(&completion.topic_partition) else { return };
        if tracked.completing.as_ref() != Some(completion) {
            return;
        }
        match result {
            CommitResult::Committed(_) => {
                let assignment = completion.assignment.clone();
                let facts =
                    PartitionFacts { assignment, reassignment: Reassignment::default(), ..tracked.facts.clone() };
                self.set_partition(completion.topic_partition.clone(), facts);
            }
            CommitResult::Conflict => tracked.completing = None,
            CommitResult::Unknown => {}
        }
    }

    /// Gives leaderships back to preferred replicas, those of brokers that lack more than so many percent of what they should
    /// lead (`leader.imbalance.per.broker.percentage`). To be called now and then.
    pub fn balance(&mut self, imbalance_percentage_max: u32) {
        let mut of_broker: BTreeMap<BrokerId, (usize, Vec<TopicPartition>)> = BTreeMap::new();
        for (topic_partition, tracked) in &self.partitions {
            let PartitionFacts { assignment, state: Some(state), reassignment, .. } = &tracked.facts else { continue };
            let Some(first) = assignment.first() else { continue };
            let (all, led_by_others) = of_broker.entry(*first).or_default();
            *all += 1;
            if state.value.leader != Some(*first) && !reassignment.is_under_way() {
                led_by_others.push(topic_partition.clone());
            }
        }
        let lacks = |all: usize, led_by_others: usize| {
            (led_by_others as u128) * 100 > (all as u128) * u128::from(imbalance_percentage_max)
        };
        let unbalanced = of_broker.into_values().filter(|(all, led_by_others)| lacks(*all, led_by_others.len()));
        for topic_partition in unbalanced.flat_map(|(_, led_by_others)| led_by_others) {
            let failed = self.failed.get(&topic_partition);
            let brokers = Brokers { live: &self.live, leaving: &self.leaving, failed };
            let Some(tracked) = self.partitions.get_mut(&topic_partition) else { continue };
            if tracked.in_flight.is_none()
                && let Ok((state, why)) = preferred(&tracked.facts, brokers, self.epoch)
            {
                self.commits.push_back(tracked.commit(topic_partition, state, why));
            }
        }
    }

    /// Has the preferred replicas of these partitions elected where they can be. Gives of how many it is not settled yet: their
    /// writes are given out now, or on their way.
    pub fn prefer(&mut self, wanted: &[TopicPartition]) -> usize {
        let mut open = 0;
        for topic_partition in wanted {
            let failed = self.failed.get(topic_partition);
            let brokers = Brokers { live: &self.live, leaving: &self.leaving, failed };
            let Some(tracked) = self.partitions.get_mut(topic_partition) else { continue };
            if tracked.in_flight.is_some() {
                open += 1;
            } else if let Ok((state, why)) = preferred(&tracked.facts, brokers, self.epoch) {
                open += 1;
                self.commits.push_back(tracked.commit(topic_partition.clone(), state, why));
            }
        }
        open
    }

    /// Gives out the writes again whose fate is unknown. If one succeeded after all, its repetition conflicts.
    pub fn retry(&mut self) {
        let unknown = self.partitions.values().filter_map(|tracked| tracked.in_flight.clone());
        let again: Vec<Commit> = unknown.filter(|commit| !self.commits.contains(commit)).collect();
        self.commits.extend(again);
        let unknown = self.partitions.values().filter_map(|tracked| tracked.completing.clone());
        let again: Vec<Completion> = unknown.filter(|done| !self.completions.contains(done)).collect();
        self.completions.extend(again);
    }

    fn decide(&mut self) {
        for topic_partition in std::mem::take(&mut self.due) {
            let Some(tracked) = self.partitions.get_mut(&topic_partition) else { continue };
            if tracked.in_flight.is_some() {
                continue;
            }
            let failed = self.failed.get(&topic_partition);
            let brokers = Brokers { live: &self.live, leaving: &self.leaving, failed };
            if let Some((state, why)) = elect(&tracked.facts, brokers, self.epoch) {
                self.commits.push_back(tracked.commit(topic_partition, state, why));
            } else if tracked.completing.is_none()
                && let PartitionFacts { assignment, state: Some(state), reassignment, .. } = &tracked.facts
                && reassignment.is_under_way()
                && reassignment.is_done(&state.value, |id| brokers.stays(id))
            {
                let (state_version, assignment) = (state.version, reassignment.target(assignment));
                let leader_epoch = LeaderEpoch(state.value.leader_epoch.0.saturating_add(1));
                let state = PartitionState { leader_epoch, controller_epoch: self.epoch, ..state.value.clone() };
                let completion = Completion { topic_partition, state_version, state, assignment };
                tracked.completing = Some(completion.clone());
                self.completions.push_back(completion);
            }
        }
    }
}

impl Tracked {
    /// The write of a new state, which is under way from here on.
    fn commit(&mut self, topic_partition: TopicPartition, state: PartitionState, why: Election) -> Commit {
        let expected_version = self.facts.state.as_ref().map(|state| state.version);
        let commit = Commit { topic_partition, expected_version, state, why };
        self.in_flight = Some(commit.clone());
        commit
    }
}

/// What a broker that stopped uncleanly writes for a partition assigned to it (decision 20). `None`: nothing.
///
/// It may have lost what it had acknowledged but not flushed. It writes this before it registers, and once its former
/// registration is gone: as long as that is there, a leader may take it in again for what it fetched in its former life.
/// Where it is no member it still writes the state back unchanged: the version moves, and a proposal to take in its former
/// life fails.
///
/// It does not leave the ISR by itself, since it cannot know that another member is there to lead: who is registered may
/// have died within this session time-out, of the same power cut. Only a leader that lives can take it out. Where it led it
/// leads no more, unless it is the only member; what its log may have lost of its epoch is not written again under the same
/// number.
pub fn return_doubtful(me: BrokerId, state: &PartitionState) -> Option<PartitionState> {
    if !state.isr.contains(&me) {
        return Some(state.clone());
    }
    if state.isr == [me] && state.leader == Some(me) {
        // Nobody can have more: it goes on leading, in an epoch of its own.
        let leader_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
        return Some(PartitionState { leader_epoch, doubtful: Vec::new(), ..state.clone() });
    }
    let mut doubtful = state.clone();
    if !state.doubtful.contains(&me) {
        doubtful.doubtful.push(me);
    }
    if state.leader == Some(me) {
        doubtful.leader = None;
        doubtful.leader_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    }
    (doubtful != *state).then_some(doubtful)
}

#[cfg(test)]
mod tests;
