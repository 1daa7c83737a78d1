//! Elections: who leads each partition, decided from who lives and who is in sync.
//!
//! The controller writes nothing itself. It gives out [`Commit`]s, each with the version that the store must still have
//! (and which the caller writes together with a check of `/controller_epoch`), and is told what the store holds. It
//! looks at levels, not at edges: what a partition needs follows from its stored state, the registered brokers and the
//! topic's settings, so a controller that has just taken over needs no history, and a lost event is made up for by the
//! next one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_storage::{LeaderEpoch, TopicPartition};

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
    /// Members of the ISR died; the leader stays.
    MembersDied(Vec<BrokerId>),
    /// Another in-sync replica leads, or the same one in a new life.
    Elected,
    /// No in-sync replica lives. Nobody leads until one returns.
    LeaderLost,
    /// No in-sync replica lives, and the topic prefers to go on: these members may hold committed records that the new
    /// leader does not have.
    Unclean {
        /// The ISR before.
        abandoned: Vec<BrokerId>,
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
    /// Brokers that came back in a new life and whose old one is still in this partition's state.
    bounced: BTreeSet<BrokerId>,
    /// The commit that is under way; nothing else is decided meanwhile.
    in_flight: Option<Commit>,
}

impl Controller {
    /// A controller that was elected in this controller epoch. Every state it writes carries it.
    pub fn new(epoch: i32) -> Self {
        Self {
            epoch,
            live: BTreeMap::new(),
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

    /// The brokers that are registered now. One with a new epoch died and came back, seen or not.
    pub fn set_brokers(&mut self, live: &BTreeMap<BrokerId, BrokerEpoch>) {
        let bounced = |id: &BrokerId| matches!((self.live.get(id), live.get(id)), (Some(old), Some(new)) if old != new);
        let bounced: Vec<BrokerId> = live.keys().copied().filter(bounced).collect();
        for tracked in self.partitions.values_mut() {
            let members = tracked.facts.state.iter().flat_map(|state| &state.value.isr);
            tracked.bounced.extend(members.filter(|id| bounced.contains(id)));
        }
        self.live.clone_from(live);
        self.due.extend(self.partitions.keys().cloned());
        self.decide();
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
                    // Whatever is under way fails on its version, or is what we see: then the new lives are dealt with.
                    let ours = tracked.in_flight.take().map(|commit| commit.state);
                    let state = facts.state.as_ref().map(|state| &state.value);
                    let settled = ours.is_some() && ours.as_ref() == state;
                    let member = |id: &BrokerId| state.is_some_and(|state| state.isr.contains(id));
                    tracked.bounced.retain(|id| !settled && member(id));
                }
                tracked.facts = facts;
            }
            None => {
                let tracked = Tracked { facts, bounced: BTreeSet::new(), in_flight: None };
                self.partitions.insert(topic_partition.clone(), tracked);
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
        let (live, epoch) = (&self.live, self.epoch);
        for topic_partition in std::mem::take(&mut self.due) {
            let Some(tracked) = self.partitions.get_mut(&topic_partition) else { continue };
            if tracked.in_flight.is_some() {
                continue;
            }
            let failed = self.failed.get(&topic_partition);
            let alive = |id: BrokerId| live.contains_key(&id) && failed.is_none_or(|failed| !failed.contains(&id));
            let Some((state, why)) = elect(&tracked.facts, alive, &tracked.bounced, epoch) else { continue };
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

/// The state a partition should have, if not the one it has.
///
/// The leader is the first live in-sync replica in assignment order. A leader that lives stays. A dead member leaves the
/// ISR, unless no member would live: then all stay, since each of them holds all that was committed, and any of them may
/// lead again. A broker in a new life counts as dead and come back: it may have lost what it had not flushed, so it
/// leaves the ISR if others are there, and leads again only with a new epoch.
fn elect(
    facts: &PartitionFacts,
    alive: impl Fn(BrokerId) -> bool,
    bounced: &BTreeSet<BrokerId>,
    controller_epoch: i32,
) -> Option<(PartitionState, Election)> {
    let live_replicas: Vec<BrokerId> = facts.assignment.iter().copied().filter(|id| alive(*id)).collect();
    let Some(Versioned { value: state, .. }) = &facts.state else {
        let leader = *live_replicas.first()?;
        let created = PartitionState {
            leader: Some(leader),
            leader_epoch: LeaderEpoch(0),
            isr: live_replicas,
            controller_epoch,
            recovering: false,
        };
        return Some((created, Election::Created));
    };
    let members = |keep: &dyn Fn(&BrokerId) -> bool| state.isr.iter().copied().filter(keep).collect::<Vec<_>>();
    let mut isr = members(&|id| alive(*id) && !bounced.contains(id));
    if isr.is_empty() {
        isr = members(&|id| alive(*id));
    }
    let next_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    let next = PartitionState { controller_epoch, ..state.clone() };
    if let Some(leader) = state.leader.filter(|id| isr.contains(id) && !bounced.contains(id)) {
        let died: Vec<BrokerId> = members(&|id| !isr.contains(id));
        if died.is_empty() {
            return None;
        }
        // The leader goes on with its followers: a new epoch would only make them ask again (KAFKA-15021).
        return Some((PartitionState { leader: Some(leader), isr, ..next }, Election::MembersDied(died)));
    }
    if let Some(leader) = live_replicas.iter().copied().find(|id| isr.contains(id)) {
        let elected = PartitionState { leader: Some(leader), leader_epoch: next_epoch, isr, ..next };
        return Some((elected, Election::Elected));
    }
    if let Some(leader) = live_replicas.first().copied().filter(|_| facts.unclean_elections) {
        let elected = PartitionState {
            leader: Some(leader),
            leader_epoch: next_epoch,
            isr: vec![leader],
            recovering: true,
            ..next
        };
        return Some((elected, Election::Unclean { abandoned: state.isr.clone() }));
    }
    state.leader?;
    Some((PartitionState { leader: None, leader_epoch: next_epoch, ..next }, Election::LeaderLost))
}

/// What a broker that stopped uncleanly writes for a partition assigned to it, before it registers and once more after,
/// before it fetches (decision 20). `None`: nothing.
///
/// It may have lost what it had acknowledged but not flushed, so it leaves the ISR if another member lives. Where it is
/// no member it still writes the state back unchanged: the version moves, and a proposal to take in its former life
/// fails. Where it is the only member left that lives and leads, it goes on in a new epoch: what its log may have lost
/// of the old one must not be written again under the same number.
pub fn return_unclean(me: BrokerId, state: &PartitionState, live: impl Fn(BrokerId) -> bool) -> Option<PartitionState> {
    let next_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    if !state.isr.contains(&me) {
        return Some(state.clone());
    }
    let leads = state.leader == Some(me);
    if !state.isr.iter().any(|id| *id != me && live(*id)) {
        return leads.then(|| PartitionState { leader_epoch: next_epoch, ..state.clone() });
    }
    let isr = state.isr.iter().copied().filter(|id| *id != me).collect();
    Some(if leads {
        PartitionState { leader: None, leader_epoch: next_epoch, isr, ..state.clone() }
    } else {
        PartitionState { isr, ..state.clone() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[i32]) -> Vec<BrokerId> {
        numbers.iter().copied().map(BrokerId).collect()
    }

    fn live(numbers: &[i32]) -> BTreeMap<BrokerId, BrokerEpoch> {
        numbers.iter().map(|id| (BrokerId(*id), BrokerEpoch(i64::from(*id) * 10))).collect()
    }

    fn state(leader: i32, epoch: i32, isr: &[i32]) -> PartitionState {
        PartitionState {
            leader: (leader >= 0).then_some(BrokerId(leader)),
            leader_epoch: LeaderEpoch(epoch),
            isr: ids(isr),
            controller_epoch: 1,
            recovering: false,
        }
    }

    fn facts(version: i64, state: PartitionState) -> PartitionFacts {
        PartitionFacts {
            assignment: ids(&[1, 2, 3]),
            state: Some(Versioned { value: state, version }),
            unclean_elections: false,
        }
    }

    fn partition() -> TopicPartition {
        TopicPartition::new("t", 0)
    }

    /// A controller in epoch 7 that has seen these brokers and this partition, and its only commit.
    fn controller(brokers: &[i32], facts: PartitionFacts) -> (Controller, Option<Commit>) {
        let mut controller = Controller::new(7);
        controller.set_brokers(&live(brokers));
        controller.set_partition(partition(), facts);
        let commit = controller.poll_commit();
        assert_eq!(controller.poll_commit(), None);
        (controller, commit)
    }

    /// Facts 13.7 (90, 91, 96), 8.13: state and live brokers before; leader, epoch, ISR after.
    #[test]
    fn elections_table() {
        use Election::{Elected, LeaderLost, MembersDied};
        type Row<'a> = (&'a str, PartitionState, &'a [i32], Option<(PartitionState, Election)>);
        let table: &[Row<'_>] = &[
            ("all live", state(1, 4, &[1, 2, 3]), &[1, 2, 3], None),
            ("the leader dies (90)", state(1, 4, &[2, 3, 1]), &[2, 3], Some((state(2, 5, &[2, 3]), Elected))),
            ("in assignment order", state(1, 4, &[1, 3, 2]), &[2, 3], Some((state(2, 5, &[3, 2]), Elected))),
            ("the first live one is not in sync", state(1, 4, &[1, 3]), &[2, 3], Some((state(3, 5, &[3]), Elected))),
            (
                "a member dies (96): no new epoch",
                state(1, 4, &[1, 2, 3]),
                &[1, 3],
                Some((state(1, 4, &[1, 3]), MembersDied(ids(&[2])))),
            ),
            ("a replica outside of the ISR dies", state(1, 4, &[1, 2]), &[1, 2], None),
            ("the last member dies (91)", state(1, 4, &[1]), &[2, 3], Some((state(-1, 5, &[1]), LeaderLost))),
            ("all die at once", state(1, 4, &[1, 2]), &[3], Some((state(-1, 5, &[1, 2]), LeaderLost))),
            ("still nobody", state(-1, 5, &[1]), &[2, 3], None),
            ("the last member returns (91)", state(-1, 5, &[1]), &[1, 2], Some((state(1, 6, &[1]), Elected))),
            ("one of the last returns", state(-1, 5, &[1, 2]), &[2], Some((state(2, 6, &[2]), Elected))),
            ("the preferred leader is not in sync (92)", state(2, 4, &[2]), &[1, 2], None),
        ];
        for (name, before, brokers, expected) in table {
            let (_, commit) = controller(brokers, facts(8, before.clone()));
            let expected = expected.clone().map(|(state, why)| Commit {
                topic_partition: partition(),
                expected_version: Some(8),
                state: PartitionState { controller_epoch: 7, ..state },
                why,
            });
            assert_eq!(commit, expected, "{name}");
        }
    }

    #[test]
    fn a_new_partition_starts_with_whoever_lives() {
        let new = PartitionFacts { state: None, ..facts(0, state(1, 0, &[])) };
        let (_, commit) = controller(&[3, 2], new.clone());
        let commit = commit.unwrap();
        assert_eq!((commit.expected_version, commit.why), (None, Election::Created));
        assert_eq!(commit.state, PartitionState { controller_epoch: 7, ..state(2, 0, &[2, 3]) });
        let (mut controller, commit) = controller(&[9], new);
        assert_eq!(commit, None, "nobody to hold it yet");
        controller.set_brokers(&live(&[3]));
        assert_eq!(controller.poll_commit().unwrap().state.isr, ids(&[3]));
    }

    #[test]
    fn an_unclean_election_only_where_allowed_and_recorded() {
        let allowed = PartitionFacts { unclean_elections: true, ..facts(8, state(-1, 5, &[1])) };
        let (_, commit) = controller(&[3, 2], allowed.clone());
        let commit = commit.unwrap();
        assert_eq!(commit.why, Election::Unclean { abandoned: ids(&[1]) });
        assert_eq!(commit.state, PartitionState { controller_epoch: 7, recovering: true, ..state(2, 6, &[2]) });
        let clean = PartitionFacts { state: Some(Versioned { value: state(1, 5, &[1, 3]), version: 8 }), ..allowed };
        let (_, commit) = controller(&[2, 3], clean);
        assert_eq!(commit.unwrap().why, Election::Elected, "a member lives: nothing unclean about it");
    }

    /// A broker with a new epoch died and came back between two looks.
    #[test]
    fn bounced_brokers_table() {
        let bounce = |numbers: &[i32], bounced: &[i32]| {
            let mut brokers = live(numbers);
            for id in bounced {
                brokers.insert(BrokerId(*id), BrokerEpoch(99));
            }
            brokers
        };
        type Row<'a> = (&'a str, PartitionState, &'a [i32], Option<(PartitionState, bool)>);
        let table: &[Row<'_>] = &[
            ("a follower", state(1, 4, &[1, 2, 3]), &[2], Some((state(1, 4, &[1, 3]), false))),
            ("the leader", state(1, 4, &[1, 2, 3]), &[1], Some((state(2, 5, &[2, 3]), true))),
            ("the last member", state(1, 4, &[1]), &[1], Some((state(1, 5, &[1]), true))),
            ("all members", state(1, 4, &[1, 2]), &[1, 2], Some((state(1, 5, &[1, 2]), true))),
            ("no member", state(1, 4, &[1, 2]), &[3], None),
        ];
        for (name, before, bounced, expected) in table {
            let (mut controller, commit) = controller(&[1, 2, 3], facts(8, before.clone()));
            assert_eq!(commit, None);
            controller.set_brokers(&bounce(&[1, 2, 3], bounced));
            let commit = controller.poll_commit();
            let got = commit.clone().map(|commit| (commit.state, commit.why == Election::Elected));
            let expected =
                expected.clone().map(|(state, elected)| (PartitionState { controller_epoch: 7, ..state }, elected));
            assert_eq!(got, expected, "{name}");
            // Once committed it is settled.
            if let Some(commit) = commit {
                controller.committed(&commit, &CommitResult::Committed(9));
                assert_eq!(controller.poll_commit(), None, "{name}");
            }
        }
    }

    /// The leader changes its ISR while the controller reacts to a new life: that one is still to be dealt with.
    #[test]
    fn a_bounced_broker_is_not_forgotten_in_a_conflict() {
        let (mut controller, _) = controller(&[1, 2, 3], facts(8, state(1, 4, &[1, 2, 3])));
        let mut brokers = live(&[1, 2, 3]);
        brokers.insert(BrokerId(1), BrokerEpoch(99));
        controller.set_brokers(&brokers);
        let commit = controller.poll_commit().unwrap();
        controller.committed(&commit, &CommitResult::Conflict);
        controller.set_partition(partition(), facts(9, state(1, 4, &[1, 2])));
        let commit = controller.poll_commit().unwrap();
        assert_eq!(commit.state, PartitionState { controller_epoch: 7, ..state(2, 5, &[2]) });
    }

    #[test]
    fn one_commit_at_a_time_and_conflicts_decide_anew() {
        let (mut controller, commit) = controller(&[2, 3], facts(8, state(1, 4, &[1, 2, 3])));
        let commit = commit.unwrap();
        controller.set_brokers(&live(&[3]));
        assert_eq!(controller.poll_commit(), None, "the first is under way");
        controller.committed(&commit, &CommitResult::Unknown);
        controller.retry();
        assert_eq!(controller.poll_commit().as_ref(), Some(&commit));
        // The leader's own change was first.
        controller.committed(&commit, &CommitResult::Conflict);
        controller.set_partition(partition(), facts(9, state(1, 4, &[1, 3])));
        let commit = controller.poll_commit().unwrap();
        assert_eq!((commit.expected_version, &commit.state.isr), (Some(9), &ids(&[3])));
        assert_eq!((commit.state.leader, commit.state.leader_epoch), (Some(BrokerId(3)), LeaderEpoch(5)));
        // What is older than we know is no news.
        controller.set_partition(partition(), facts(8, state(1, 4, &[1, 2, 3])));
        controller.committed(&commit, &CommitResult::Committed(10));
        assert_eq!(controller.poll_commit(), None);
        controller.remove_partition(&partition());
        controller.set_brokers(&live(&[1]));
        assert_eq!(controller.poll_commit(), None);
    }

    #[test]
    fn a_leader_that_closed_its_log_is_replaced() {
        let (mut controller, _) = controller(&[1, 2, 3], facts(8, state(1, 4, &[1, 2, 3])));
        let failed =
            |ids: &[i32]| BTreeMap::from([(partition(), ids.iter().copied().map(BrokerId).collect::<BTreeSet<_>>())]);
        controller.set_failed(failed(&[1]));
        let commit = controller.poll_commit().unwrap();
        assert_eq!(commit.state, PartitionState { controller_epoch: 7, ..state(2, 5, &[2, 3]) });
        controller.committed(&commit, &CommitResult::Committed(9));
        // Nor does it lead in a later epoch, as long as its log is closed.
        controller.set_failed(failed(&[1, 2, 3]));
        let commit = controller.poll_commit().unwrap();
        assert_eq!((commit.state.leader, commit.why.clone()), (None, Election::LeaderLost));
        controller.committed(&commit, &CommitResult::Committed(10));
        assert_eq!(controller.poll_commit(), None);
        controller.set_failed(failed(&[1, 3]));
        assert_eq!(controller.poll_commit().unwrap().state.leader, Some(BrokerId(2)));
    }

    /// Decision 20: what a broker writes that stopped uncleanly.
    #[test]
    fn unclean_returns_table() {
        type Row<'a> = (&'a str, PartitionState, &'a [i32], Option<PartitionState>);
        let table: &[Row<'_>] = &[
            ("another member lives", state(2, 4, &[1, 2]), &[2], Some(state(2, 4, &[2]))),
            ("as leader", state(1, 4, &[1, 2]), &[2], Some(state(-1, 5, &[2]))),
            ("the other member is dead", state(2, 4, &[1, 2]), &[3], None),
            ("the only one, as leader", state(1, 4, &[1]), &[2, 3], Some(state(1, 5, &[1]))),
            ("the only one, leaderless", state(-1, 4, &[1]), &[], None),
            ("no member: the version moves", state(2, 4, &[2]), &[2], Some(state(2, 4, &[2]))),
            ("registered already itself", state(2, 4, &[1, 2]), &[1], None),
        ];
        for (name, before, brokers, expected) in table {
            assert_eq!(return_unclean(BrokerId(1), before, |id| live(brokers).contains_key(&id)), *expected, "{name}");
        }
    }
}
