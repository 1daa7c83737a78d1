//! SyncGroup.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Group, Phase};
use crate::step::{Purpose, Step};
use crate::timers::Timer;
use crate::vocabulary::{Answer, Appended, Refused, Sync, Synced, Ticket};

impl Group {
    pub(crate) fn sync(&mut self, step: &mut Step<'_>, ticket: Ticket, sync: Sync) {
        if let Err(why) = self.may_sync(&sync) {
            return step.answer(ticket, Answer::Sync(Err(why)));
        }
        let id = sync.member.member_id.as_str();
        self.unsynced.remove(id);
        if self.unsynced.is_empty() {
            self.timers.cancel(&Timer::Sync);
        }
        self.touch(step, id);
        if self.phase == Phase::Stable {
            let synced = self.synced(id);
            return step.answer(ticket, Answer::Sync(Ok(synced)));
        }
        if let Some(member) = self.members.get_mut(id)
            && let Some(before) = member.syncing.replace(ticket)
        {
            step.answer(before, Answer::Sync(Err(Refused::RebalanceInProgress)));
        }
        if self.is_leader(id) && self.phase == (Phase::Completing { storing: false }) {
            self.store(step, sync.assignments);
        }
    }

    fn may_sync(&self, sync: &Sync) -> Result<(), Refused> {
        let member = &sync.member;
        self.validate(&member.member_id, member.group_instance_id.as_deref())?;
        if member.generation != self.generation {
            return Err(Refused::IllegalGeneration);
        }
        let differs = |said: &Option<String>, known: &Option<String>| said.is_some() && said != known;
        if differs(&sync.protocol_type, &self.protocol_type) || differs(&sync.protocol, &self.protocol) {
            return Err(Refused::InconsistentGroupProtocol);
        }
        match self.phase {
            Phase::Empty => Err(Refused::UnknownMemberId),
            Phase::Preparing(_) => Err(Refused::RebalanceInProgress),
            Phase::Completing { .. } | Phase::Stable => Ok(()),
        }
    }

    /// Keeps what the leader gave out: members that it does not name get nothing, names that are no members are passed over.
    /// Nobody is told before it is committed.
    fn store(&mut self, step: &mut Step<'_>, assignments: Vec<(String, Bytes)>) {
        let mut assignments: BTreeMap<String, Bytes> = assignments.into_iter().collect();
        for member in self.members.values_mut() {
            member.assignment = assignments.remove(&member.id).unwrap_or_default();
        }
        self.phase = Phase::Completing { storing: true };
        let record = self.record(|member| member.assignment.clone());
        let purpose = Purpose::Assignment { group: self.id.clone(), generation: self.generation };
        step.append(None, vec![record], purpose);
    }

    /// The assignment of that generation is written, or not.
    pub(crate) fn stored(&mut self, step: &mut Step<'_>, generation: i32, how: Appended) {
        if generation != self.generation || self.phase != (Phase::Completing { storing: true }) {
            return;
        }
        match how {
            Appended::Committed => {}
            // They go on waiting; their own time-outs end that.
            Appended::Late => return,
            how => {
                let why = how.refused().unwrap_or(Refused::CoordinatorNotAvailable);
                self.answer_syncs(step, why);
                return self.rebalance(step);
            }
        }
        self.enter(step, Phase::Stable);
        for member in self.members.keys().cloned().collect::<Vec<_>>() {
            let synced = self.synced(&member);
            let Some(known) = self.members.get_mut(&member) else { continue };
            if let Some(ticket) = known.syncing.take() {
                step.answer(ticket, Answer::Sync(Ok(synced)));
                self.touch(step, &member);
            }
        }
    }

    fn synced(&self, member: &str) -> Synced {
        Synced {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            assignment: self.members.get(member).map(|member| member.assignment.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn sync_time_is_up(&mut self, step: &mut Step<'_>) {
        if !matches!(self.phase, Phase::Completing { .. } | Phase::Stable) {
            return;
        }
        let late = std::mem::take(&mut self.unsynced);
        for member in &late {
            self.remove(step, member, Refused::UnknownMemberId);
        }
        if !late.is_empty() {
            self.rebalance(step);
        }
    }
}
