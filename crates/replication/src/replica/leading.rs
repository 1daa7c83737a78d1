//! A replica that leads: fetches of followers become progress, progress moves the ISR and the high watermark.

use highwater_storage::{Offset, TimestampMs};

use super::{Replica, RoleState};
use crate::event::{Acknowledged, Output, ProduceRefused, ProduceResult};
use crate::leader::{Pending, Shown};
use crate::lineage::LogView;
use crate::{BrokerEpoch, BrokerId, IsrDecision, PartitionState};

impl Replica {
    pub(super) fn progressed(&mut self, now: TimestampMs, log: &dyn LogView, id: BrokerId, shown: Shown) {
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.fetched(now, id, shown, log.end());
        let isr = self.state.as_ref().map_or(&[][..], |state| &state.value.isr);
        let joining = leader.may_join(id, self.high_watermark, &self.live).filter(|_| !isr.contains(&id));
        if let Some(life) = joining {
            let assignment = self.assignment.clone();
            self.propose(now, Some((id, life)), |state| {
                state.isr.push(id);
                state.isr.sort_by_key(|id| assignment.iter().position(|assigned| assigned == id));
            });
        }
        self.advance_high_watermark(now, log);
    }

    pub(super) fn reassign_followers(&mut self, now: TimestampMs, log: &dyn LogView, previous_isr: &[BrokerId]) {
        if let (RoleState::Leader(leader), Some(state)) = (&mut self.role, &self.state) {
            leader.assign(now, self.config.me, &self.assignment, &state.value.isr, previous_isr);
            self.advance_high_watermark(now, log);
        }
    }

    /// Proposes a change of the committed state, unless one is under way.
    pub(super) fn propose(
        &mut self,
        now: TimestampMs,
        joining: Option<(BrokerId, BrokerEpoch)>,
        change: impl FnOnce(&mut PartitionState),
    ) {
        let RoleState::Leader(leader) = &self.role else { return };
        let Some(state) = self.state.clone() else { return };
        if leader.pending.is_some() || now < leader.not_before {
            return;
        }
        let mut proposed = state.value;
        change(&mut proposed);
        let pending = self.new_pending(state.version, proposed, joining);
        if let RoleState::Leader(leader) = &mut self.role {
            leader.pending = Some(pending);
        }
    }

    pub(super) fn new_pending(
        &mut self,
        expected_version: i64,
        state: PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) -> Pending {
        self.proposals += 1;
        let pending = Pending {
            proposal: self.proposals,
            expected_version,
            state,
            joining,
            uncertain: false,
            doubtful: Vec::new(),
            retry_at: None,
        };
        self.outputs.push_back(pending.output(self.leader_epoch()));
        pending
    }

    pub(super) fn decided(&mut self, now: TimestampMs, log: &dyn LogView, proposal: u64, decision: IsrDecision) {
        let known = self.version();
        let backoff = now.after(self.config.propose_backoff_ms);
        let slot = match &mut self.role {
            RoleState::Leader(leader) => &mut leader.pending,
            RoleState::Offline(pending) => pending,
            RoleState::Follower(_) | RoleState::Fenced => &mut None,
        };
        // A state that the store holds counts whoever asked for it.
        if let IsrDecision::Committed(stored) | IsrDecision::Conflict(stored) = &decision
            && stored.version > known
        {
            let assignment = self.assignment.clone();
            return self.take_state(now, log, stored, &assignment);
        }
        let Some(pending) = slot.as_mut().filter(|pending| pending.proposal == proposal) else { return };
        if decision != IsrDecision::Refused {
            // No answer, or none that settles it: by a store that is behind what we know, or in a session that is over.
            pending.uncertain = true;
            pending.retry_at = Some(backoff);
            return;
        }
        let refused = slot.take().filter(|pending| pending.uncertain);
        if let RoleState::Leader(leader) = &mut self.role {
            leader.not_before = backoff;
        }
        // This attempt did not happen, but an earlier one may yet. Any write settles that: the state as it is.
        if let (Some(refused), Some(state)) = (refused, self.state.clone()) {
            let mut settles = self.new_pending(state.version, state.value, None);
            settles.uncertain = true;
            settles.doubtful = refused.state.isr.into_iter().chain(refused.doubtful).collect();
            if let RoleState::Leader(leader) = &mut self.role {
                leader.pending = Some(settles);
            }
        }
        self.advance_high_watermark(now, log);
    }

    pub(super) fn advance_high_watermark(&mut self, now: TimestampMs, log: &dyn LogView) {
        let RoleState::Leader(leader) = &self.role else { return };
        // KIP-966: with too small an ISR nothing more is committed, whoever asked for it.
        if self.isr().len() < self.needed_in_sync() {
            return;
        }
        let counted = self.counted_end(log);
        let replicated = leader.replicated_end(now, &self.config, counted, log.end(), self.isr(), &self.live);
        if let Some(end) = replicated.filter(|end| *end > self.high_watermark) {
            self.raise_high_watermark(log, end);
        }
    }

    pub(super) fn raise_high_watermark(&mut self, log: &dyn LogView, to: Offset) {
        self.high_watermark = to;
        self.outputs.push_back(Output::HighWatermark(to));
        while let Some(produce) = self.for_commit.pop_reached(to) {
            let result = self.committed_answer(produce.answer);
            self.outputs.push_back(Output::ProduceDone { token: produce.token, result });
        }
        while let Some(token) = self.consumers.pop_below(to) {
            self.outputs.push_back(Output::WakeFetch { token });
        }
        // It rises with the high watermark only, which a marker must have below it to count.
        let stable = log.last_stable_offset(to);
        while let Some(token) = self.committed_consumers.pop_below(stable) {
            self.outputs.push_back(Output::WakeFetch { token });
        }
    }

    pub(super) fn committed_answer(&self, answer: Acknowledged) -> ProduceResult {
        let RoleState::Leader(leader) = &self.role else { return Err(self.not_leader()) };
        let (in_sync, needed) = (leader.maximal_isr(self.isr()).len(), self.needed_in_sync());
        if in_sync < needed {
            return Err(ProduceRefused::NotEnoughReplicasAfterAppend { in_sync, needed });
        }
        Ok(answer)
    }

    pub(super) fn consider_shrink(&mut self, now: TimestampMs, log: &dyn LogView) {
        let isr = self.state.as_ref().map_or(&[][..], |state| &state.value.isr);
        let RoleState::Leader(leader) = &mut self.role else { return };
        leader.forget_lagging(now, self.config.lag_time_max_ms, isr);
        let RoleState::Leader(leader) = &self.role else { return };
        let mut leaving = leader.lagging(now, log.end(), self.config.lag_time_max_ms, self.isr());
        // That we live and lead is what neither the controller knows nor a broker that stopped uncleanly: only by our own
        // write is it sure that somebody is there who has everything.
        leaving.extend(self.absent());
        if !leaving.is_empty() {
            self.propose(now, None, |state| {
                state.isr.retain(|id| !leaving.contains(id));
                state.doubtful.retain(|id| !leaving.contains(id));
            });
        }
    }
}
