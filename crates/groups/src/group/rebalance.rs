//! How a group comes to its next generation.

use bytes::Bytes;

use super::{Group, Phase};
use crate::step::{Purpose, Step};
use crate::timers::Timer;
use crate::vocabulary::{Answer, Joined, Refused};

/// The least that is waited for static members which are all away. They may have said that they take no time to join.
const ABSENT_WAIT_MIN_MS: u64 = 1_000;

/// The members are joining.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rebalance {
    /// Of a group that was empty: how much longer it may wait for more members, if there is a delay at all.
    pub(super) delay_left_ms: Option<u64>,
    /// Somebody joined since the delay began.
    pub(super) has_grown: bool,
}

impl Group {
    /// All members are to join again, if they are not already; whoever was the last may be there now.
    pub(super) fn rebalance(&mut self, step: &mut Step<'_>) {
        if matches!(self.phase, Phase::Preparing(_)) {
            return self.complete_join_if_all_are_there(step);
        }
        if matches!(self.phase, Phase::Completing { .. }) {
            self.answer_syncs(step, Refused::RebalanceInProgress);
        }
        self.unsynced.clear();
        self.timers.cancel(&Timer::Sync);
        let timeout_ms = self.rebalance_timeout_ms();
        let (rebalance, wait_ms) = if self.phase == Phase::Empty {
            let delay_ms = step.config.initial_rebalance_delay_ms;
            let left = Some(timeout_ms.saturating_sub(delay_ms));
            (Rebalance { delay_left_ms: left, has_grown: false }, delay_ms)
        } else {
            (Rebalance::default(), timeout_ms)
        };
        self.enter(step, Phase::Preparing(rebalance));
        self.timers.set(Timer::Join, step.after_ms(wait_ms));
        self.complete_join_if_all_are_there(step);
    }

    pub(super) fn complete_join_if_all_are_there(&mut self, step: &mut Step<'_>) {
        let Phase::Preparing(rebalance) = &self.phase else { return };
        let all = self.pending.is_empty() && self.members.values().all(|member| member.joining.is_some());
        // The first members of a group wait for the others, whoever is there.
        if all && (rebalance.delay_left_ms.is_none() || self.members.is_empty()) {
            self.complete_join(step);
        }
    }

    pub(super) fn join_time_is_up(&mut self, step: &mut Step<'_>) {
        let Phase::Preparing(rebalance) = &mut self.phase else { return };
        let left = rebalance.delay_left_ms.unwrap_or(0);
        if left > 0 && std::mem::take(&mut rebalance.has_grown) {
            let delay_ms = step.config.initial_rebalance_delay_ms.min(left);
            rebalance.delay_left_ms = Some(left - delay_ms);
            return self.timers.set(Timer::Join, step.after_ms(delay_ms));
        }
        self.complete_join(step);
    }

    /// The next generation, of those that are there. Static members keep their place until their session ends.
    fn complete_join(&mut self, step: &mut Step<'_>) {
        let absent = self.members.values().filter(|member| member.joining.is_none() && member.instance.is_none());
        for member in absent.map(|member| member.id.clone()).collect::<Vec<_>>() {
            self.remove(step, &member, Refused::UnknownMemberId);
        }
        let leads = |member: &String| self.members.get(member).is_some_and(|member| member.joining.is_some());
        if !self.leader.as_ref().is_some_and(leads) {
            match self.eldest(|member| member.joining.is_some()) {
                Some(leader) => self.leader = Some(leader),
                // All that are left are static and away: nobody could give out partitions.
                None if !self.members.is_empty() => {
                    let timeout_ms = self.rebalance_timeout_ms().max(ABSENT_WAIT_MIN_MS);
                    return self.timers.set(Timer::Join, step.after_ms(timeout_ms));
                }
                None => self.leader = None,
            }
        }
        self.timers.cancel(&Timer::Join);
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.elected_protocol();
        if self.members.is_empty() {
            self.enter(step, Phase::Empty);
            let record = self.record(|_| Bytes::new());
            step.append(None, vec![record], Purpose::Note);
            return;
        }
        self.enter(step, Phase::Completing { storing: false });
        let timeout_ms = self.rebalance_timeout_ms();
        self.timers.set(Timer::Sync, step.after_ms(timeout_ms));
        self.unsynced = self.members.keys().cloned().collect();
        for member in self.members.keys().cloned().collect::<Vec<_>>() {
            self.tell_generation(step, &member);
        }
    }

    fn tell_generation(&mut self, step: &mut Step<'_>, member: &str) {
        let members = if self.is_leader(member) { self.joined_members() } else { Vec::new() };
        let joined = Joined { members, ..self.joined(member) };
        let Some(known) = self.members.get_mut(member) else { return };
        known.is_new = false;
        if let Some(ticket) = known.joining.take() {
            step.answer(ticket, Answer::Join(Ok(joined)));
        }
        self.touch(step, member);
    }

    /// Takes the assignments back, and answers whoever waits for one. Their sessions go on from here: they may have ended
    /// while they waited, when they could not say that they live.
    pub(super) fn answer_syncs(&mut self, step: &mut Step<'_>, why: Refused) {
        let mut answered = Vec::new();
        for member in self.members.values_mut() {
            member.assignment = Bytes::new();
            if let Some(ticket) = member.syncing.take() {
                step.answer(ticket, Answer::Sync(Err(why)));
                answered.push(member.id.clone());
            }
        }
        for member in answered {
            self.touch(step, &member);
        }
    }
}
