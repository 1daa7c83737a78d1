//! Who leads: pure functions of what is stored, who lives and what is asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use highwater_storage::LeaderEpoch;

use super::{Election, PartitionFacts, PublishedEnd};
use crate::{BrokerEpoch, BrokerId, PartitionState, Versioned};

/// The brokers as one partition sees them.
#[derive(Clone, Copy, Debug)]
pub struct Brokers<'a> {
    /// The registered ones.
    pub live: &'a BTreeMap<BrokerId, BrokerEpoch>,
    /// Those that are about to stop.
    pub leaving: &'a BTreeSet<BrokerId>,
    /// Those whose log of this partition is closed.
    pub failed: Option<&'a BTreeSet<BrokerId>>,
}

/// What somebody may ask for (Kafka's `ElectionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionKind {
    /// The first replica of the assignment is to lead.
    Preferred,
    /// Somebody is to lead, though records may be lost by it.
    Unclean,
}

/// Why nobody was elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotElected {
    /// The preferred replica leads already, or, of an unclean election, anybody.
    NotNeeded,
    /// The preferred replica is not in sync, or it does not live.
    PreferredNotAvailable,
    /// No replica can lead now.
    NoneEligible,
}

impl Brokers<'_> {
    /// Whether it can go on leading.
    pub(super) fn serves(&self, id: BrokerId) -> bool {
        self.live.contains_key(&id) && self.failed.is_none_or(|failed| !failed.contains(&id))
    }

    /// Whether it can be elected.
    pub(super) fn stays(&self, id: BrokerId) -> bool {
        self.serves(id) && !self.leaving.contains(&id)
    }
}

/// The state a partition should have, if not the one it has.
///
/// The leader is the first live in-sync replica in assignment order that is not doubtful. A leader that lives stays, unless
/// its broker is about to stop or its replica to go, and another one can lead.
/// Where all members are doubtful and each has said how far its log goes, the one with [`most`] leads.
///
/// The ISR stays what it is, dead members and doubtful ones included, for the leader to shrink: who is registered may be
/// dead, of the same power cut as those whose sessions are over already, and a write of its own is the first sign that the
/// elected leader lives. Until then each member's log may be the one that has most.
pub(super) fn elect(
    facts: &PartitionFacts,
    brokers: Brokers<'_>,
    controller_epoch: i32,
) -> Option<(PartitionState, Election)> {
    let dismissed = match &facts.state {
        Some(state) => facts.reassignment.dismissed(&state.value, |id| brokers.stays(id)),
        None => &[],
    };
    let stays = |id: BrokerId| brokers.stays(id) && !dismissed.contains(&id);
    let live_replicas: Vec<BrokerId> = facts.assignment.iter().copied().filter(|id| stays(*id)).collect();
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
    let may_lead = |id: BrokerId| stays(id) && state.is_whole(id);
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

/// The state in which the first replica of the assignment leads.
pub(super) fn preferred(
    facts: &PartitionFacts,
    brokers: Brokers<'_>,
    controller_epoch: i32,
) -> Result<(PartitionState, Election), NotElected> {
    let (Some(first), Some(Versioned { value: state, .. })) = (facts.assignment.first().copied(), &facts.state) else {
        return Err(NotElected::PreferredNotAvailable);
    };
    if state.leader == Some(first) {
        return Err(NotElected::NotNeeded);
    }
    if !brokers.stays(first) || !state.is_whole(first) {
        return Err(NotElected::PreferredNotAvailable);
    }
    let leader_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    let next = PartitionState { leader: Some(first), leader_epoch, controller_epoch, ..state.clone() };
    Ok((next, Election::Preferred))
}

/// The election that somebody asked for: the state to write, in place of the one in `facts`.
///
/// An unclean one goes by the same rules as where the topic allows it: a whole member leads if there is one, of doubtful ones
/// that have said what they have the one with most, and one that is back and has not said yet is waited for.
///
/// # Errors
///
/// Why there is no such election.
pub fn elect_on_request(
    facts: &PartitionFacts,
    brokers: Brokers<'_>,
    kind: ElectionKind,
    controller_epoch: i32,
) -> Result<(PartitionState, Election), NotElected> {
    if kind == ElectionKind::Preferred {
        return preferred(facts, brokers, controller_epoch);
    }
    if facts.state.as_ref().is_some_and(|state| state.value.leader.is_some_and(|leader| brokers.serves(leader))) {
        return Err(NotElected::NotNeeded);
    }
    let facts = PartitionFacts { unclean_elections: true, ..facts.clone() };
    elect(&facts, brokers, controller_epoch).filter(|(state, _)| state.leader.is_some()).ok_or(NotElected::NoneEligible)
}
