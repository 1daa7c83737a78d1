//! Elections: who leads each partition, decided from who lives and who is in sync.
//!
//! The controller writes nothing itself. It gives out [`Commit`]s, each with the version that the store must still have
//! (and which the caller writes together with a check of `/controller_epoch`), and is told what the store holds. It
//! looks at levels, not at edges: what a partition needs follows from its stored state, the registered brokers and the
//! topic's settings, so a controller that has just taken over needs no history, and a lost event is made up for by the
//! next one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_storage::{LeaderEpoch, Offset, TopicPartition};

use crate::{BrokerEpoch, BrokerId, PartitionState, Versioned};

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
    /// The same, in the place of a leader that is about to leave and led until now.
    Moved,
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

/// What became of a [`Commit`].
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
}

#[derive(Debug)]
struct Tracked {
    facts: PartitionFacts,
    /// The commit that is under way; nothing else is decided meanwhile.
    in_flight: Option<Commit>,
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
                tracked.facts = facts;
            }
            None => {
                self.partitions.insert(topic_partition.clone(), Tracked { facts, in_flight: None });
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

    /// Gives out the writes again whose fate is unknown. If one succeeded after all, its repetition conflicts.
    pub fn retry(&mut self) {
        let unknown = self.partitions.values().filter_map(|tracked| tracked.in_flight.clone());
        let again: Vec<Commit> = unknown.filter(|commit| !self.commits.contains(commit)).collect();
        self.commits.extend(again);
    }

    fn decide(&mut self) {
        for topic_partition in std::mem::take(&mut self.due) {
            let Some(tracked) = self.partitions.get_mut(&topic_partition) else { continue };
            if tracked.in_flight.is_some() {
                continue;
            }
            let failed = self.failed.get(&topic_partition);
            let brokers = Brokers { live: &self.live, leaving: &self.leaving, failed };
            let Some((state, why)) = elect(&tracked.facts, brokers, self.epoch) else { continue };
            let commit = Commit {
                topic_partition,
                expected_version: tracked.facts.state.as_ref().map(|state| state.version),
                state,
                why,
            };
            tracked.in_flight = Some(commit.clone());
            self.commits.push_back(commit);
        }
    }
}

/// The brokers as one partition sees them.
#[derive(Clone, Copy)]
struct Brokers<'a> {
    live: &'a BTreeMap<BrokerId, BrokerEpoch>,
    leaving: &'a BTreeSet<BrokerId>,
    /// Whose log of it is closed.
    failed: Option<&'a BTreeSet<BrokerId>>,
}

impl Brokers<'_> {
    /// Whether it can go on leading.
    fn serves(&self, id: BrokerId) -> bool {
        self.live.contains_key(&id) && self.failed.is_none_or(|failed| !failed.contains(&id))
    }

    /// Whether it can be elected.
    fn stays(&self, id: BrokerId) -> bool {
        self.serves(id) && !self.leaving.contains(&id)
    }
}

/// The state a partition should have, if not the one it has.
///
/// The leader is the first live in-sync replica in assignment order that is not doubtful. A leader that lives stays, unless
/// it is about to leave and another one can lead.
/// Where all members are doubtful and each has said how far its log goes, the one with [`most`] leads.
///
/// The ISR stays what it is, dead members and doubtful ones included, for the leader to shrink: who is registered may be
/// dead, of the same power cut as those whose sessions are over already, and a write of its own is the first sign that the
/// elected leader lives. Until then each member's log may be the one that has most.
fn elect(facts: &PartitionFacts, brokers: Brokers<'_>, controller_epoch: i32) -> Option<(PartitionState, Election)> {
    let live_replicas: Vec<BrokerId> = facts.assignment.iter().copied().filter(|id| brokers.stays(*id)).collect();
    let Some(Versioned { value: state, .. }) = &facts.state else {
        let leader = *live_replicas.first()?;
        let created = PartitionState {
            leader: Some(leader),
            leader_epoch: LeaderEpoch(0),
            isr: live_replicas,
            doubtful: Vec::new(),
            controller_epoch,
            recovering: false,
        };
        return Some((created, Election::Created));
    };
    let may_lead = |id: BrokerId| brokers.stays(id) && state.is_whole(id);
    if state.leader.is_some_and(may_lead) {
        return None;
    }
    let leads_on = state.leader.is_some_and(|id| brokers.serves(id) && state.is_whole(id));
    let next_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    let next = PartitionState { controller_epoch, leader_epoch: next_epoch, ..state.clone() };
    if let Some(leader) = live_replicas.iter().copied().find(|id| may_lead(*id)) {
        let why = if leads_on { Election::Moved } else { Election::Elected };
        return Some((PartitionState { leader: Some(leader), ..next }, why));
    }
    if leads_on {
        // Nobody else can: better for as long as it stays than nobody.
        return None;
    }
    let alone = |leader: BrokerId, recovering: bool| PartitionState {
        leader: Some(leader),
        isr: vec![leader],
        doubtful: Vec::new(),
        recovering,
        ..next.clone()
    };
    let of_members = |id: &BrokerId| state.isr.contains(id) && state.doubtful.contains(id);
    let counts = |id: &BrokerId, end: &PublishedEnd| brokers.stays(*id) && brokers.live.get(id) == Some(&end.life);
    let ends: BTreeMap<_, _> =
        facts.ends.iter().map(|(id, end)| (*id, *end)).filter(|(id, end)| counts(id, end) && of_members(id)).collect();
    let most = most(&facts.assignment, &ends);
    let has_said = |id: &BrokerId| ends.get(id).is_some_and(|end| end.leader_epoch == state.leader_epoch);
    if let Some(leader) = most.filter(|_| state.leader.is_none() && state.isr.iter().all(has_said)) {
        return Some((alone(leader, false), Election::Recovered { ends }));
    }
    // Whoever is back, or about to be, and was a member is asked first: it is likely to have more than a replica that was none.
    let will_say = |id: &BrokerId| live_replicas.contains(id) && of_members(id) && !ends.contains_key(id);
    let goes_on = facts.unclean_elections && !state.isr.iter().any(will_say);
    if let Some(leader) = most.or_else(|| live_replicas.first().copied()).filter(|_| goes_on) {
        let abandoned = state.isr.iter().copied().filter(|id| *id != leader).collect();
        return Some((alone(leader, true), Election::Unclean { abandoned }));
    }
    state.leader?;
    Some((PartitionState { leader: None, ..next }, Election::LeaderLost))
}

/// Whose log has most: the highest last epoch, and of those the highest end; of equal ones the first in the assignment.
///
/// Whatever is committed above its end has an epoch at or above its last one: a leader of that epoch had all that was
/// committed before, and so has every log with a record of it, as far as it goes. So no log with less has it either.
///
/// A log without records has no epoch, but what lay below its end was committed, and is deleted by age. Where that one's log
/// ends further down it would give those offsets to other records, and what is committed above is in no log.
fn most(assignment: &[BrokerId], ends: &BTreeMap<BrokerId, PublishedEnd>) -> Option<BrokerId> {
    let order = |id: &BrokerId| assignment.iter().position(|assigned| assigned == id).unwrap_or(usize::MAX);
    let rank = |(id, end): &(&BrokerId, &PublishedEnd)| (end.last_epoch, end.log_end, Reverse(order(id)));
    let furthest = ends.iter().max_by_key(rank)?;
    let without_records = ends.iter().filter(|(_, end)| !end.last_epoch.is_some()).max_by_key(rank);
    let most = without_records.filter(|(_, end)| end.log_end > furthest.1.log_end).unwrap_or(furthest);
    Some(*most.0)
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
