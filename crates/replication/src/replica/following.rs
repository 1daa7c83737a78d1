//! A replica that follows: one fetch at a time, cutting where the leader's history differs.

use highwater_storage::{Offset, TimestampMs};

use super::{Replica, ReplyHead, ReplyStep, RoleState};
use crate::event::{CutReason, FetchFailure, FetchPlan, Output};
use crate::follower::FollowerStep;
use crate::lineage::{LogView, cut_for};

/// How long a follower leaves a leader alone that has not heard of its election yet, at first and at most: a matter of moments,
/// for which clients with acks=all wait (Kafka waits for `replica.fetch.backoff.ms` here too).
const UNAWARE_BACKOFF_MS: i64 = 2;
const UNAWARE_BACKOFF_MAX_MS: i64 = 50;

impl Replica {
    /// Takes the reply to a fetch, without its records. Late ones mean nothing: only that counts which answers the fetch
    /// that is out.
    pub fn take_reply(
        &mut self,
        now: TimestampMs,
        log: &dyn LogView,
        plan: &FetchPlan,
        result: Result<ReplyHead, FetchFailure>,
    ) -> ReplyStep {
        let RoleState::Follower(follower) = &mut self.role else { return ReplyStep::Done };
        if follower.step != FollowerStep::Fetching(*plan) {
            return ReplyStep::Done;
        }
        let (leader_epoch, from) = (plan.leader_epoch, plan.from);
        match result {
            Err(FetchFailure::FencedLeaderEpoch) => follower.step = FollowerStep::Fenced,
            Err(FetchFailure::Unreachable) => self.back_off(now),
            Err(FetchFailure::UnknownLeaderEpoch) => {
                let wait_ms = (UNAWARE_BACKOFF_MS << follower.unaware.min(8)).min(UNAWARE_BACKOFF_MAX_MS);
                follower.unaware = follower.unaware.saturating_add(1);
                self.back_off_for(now, wait_ms.min(self.config.fetch_backoff_ms));
            }
            Err(FetchFailure::OutOfRange { log_start }) => self.out_of_range(now, log, from, log_start),
            Ok(ReplyHead { diverging: Some(end), log_start, .. }) => match cut_for(log, end) {
                // What a cut would leave ends at the leader's start at the latest, and nobody can compare it. As records it
                // would go with the next answer; what it says of producers would stay.
                to if to <= log_start && log_start > Offset(0) => {
                    self.cut(log, None, CutReason::LeaderStartsAbove(log_start))
                }
                to => self.cut(log, Some(to), CutReason::Diverged(end)),
            },
            Ok(_) if from != log.end() => self.fetch_on(now, log),
            Ok(ReplyHead { high_watermark, log_start, diverging: None }) => {
                // We are a prefix of the leader's log, so what is committed there is committed here as far as we reach;
                // no start lies above that.
                let committed = self.high_watermark.max(high_watermark.min(log.end()));
                let log_start = log_start.min(committed);
                if log_start >= log.end() && !log.is_empty() && log.latest_epoch() < leader_epoch {
                    // Everything here lies below, and nobody has compared it, unless it ends with a record of this
                    // leader's: what it says of producers is to go as well.
                    self.cut(log, None, CutReason::LeaderStartsAbove(log_start));
                    return ReplyStep::Done;
                }
                follower.step = FollowerStep::Appending { leader_high_watermark: high_watermark };
                return ReplyStep::Append { leader_epoch, log_start };
            }
        }
        ReplyStep::Done
    }

    /// Asks for the next records, once what the fetch acknowledges may be acknowledged.
    pub(super) fn fetch_on(&mut self, now: TimestampMs, log: &dyn LogView) {
        let must_flush = self.config.counts_flushed() && log.flushed() < log.end();
        let RoleState::Follower(follower) = &mut self.role else { return };
        if must_flush {
            follower.step = FollowerStep::Flushing;
            return self.consider_flush(now, log);
        }
        let plan = FetchPlan {
            leader: follower.leader,
            leader_epoch: follower.epoch,
            from: log.end(),
            last_fetched_epoch: Some(log.latest_epoch()).filter(|epoch| epoch.is_some()),
            log_start: log.start(),
            broker_epoch: self.config.broker_epoch,
        };
        follower.step = FollowerStep::Fetching(plan);
        self.outputs.push_back(Output::Fetch(plan));
    }

    pub(super) fn back_off(&mut self, now: TimestampMs) {
        self.back_off_for(now, self.config.fetch_backoff_ms);
    }

    fn back_off_for(&mut self, now: TimestampMs, wait_ms: i64) {
        let RoleState::Follower(follower) = &mut self.role else { return };
        follower.step = FollowerStep::BackingOff(now.after(wait_ms));
    }

    /// Cuts to `to`, or starts over for the reasons that say where.
    pub(super) fn cut(&mut self, log: &dyn LogView, to: Option<Offset>, why: CutReason) {
        let RoleState::Follower(follower) = &mut self.role else { return };
        follower.step = FollowerStep::Cutting { end: log.end(), latest_epoch: log.latest_epoch() };
        self.outputs.push_back(match (to, why) {
            (Some(to), why) => Output::Truncate { to, why },
            (None, CutReason::LeaderStartsAbove(start) | CutReason::OutsideLeader(start)) => {
                Output::Reset { start, why }
            }
            (None, why) => Output::Truncate { to: log.end(), why },
        });
    }

    pub(super) fn cut_done(&mut self, now: TimestampMs, log: &dyn LogView) {
        self.high_watermark = self.high_watermark.min(log.end()).max(log.start());
        self.note_unflushed(now, log);
        self.wake_all_fetches();
        let RoleState::Follower(follower) = &self.role else { return };
        let FollowerStep::Cutting { end, latest_epoch } = follower.step else { return };
        if (end, latest_epoch) == (log.end(), log.latest_epoch()) {
            // The leader asks for a cut that changes nothing. Asking again at once would go on for ever.
            self.back_off(now);
        } else {
            self.fetch_on(now, log);
        }
    }

    /// The leader's log does not hold our end, and our last epoch tells it nothing.
    pub(super) fn out_of_range(
        &mut self,
        now: TimestampMs,
        log: &dyn LogView,
        from: Offset,
        leader_start: Option<Offset>,
    ) {
        let RoleState::Follower(follower) = &self.role else { return };
        let epoch = follower.epoch;
        match leader_start {
            Some(start) if from < start => self.cut(log, None, CutReason::LeaderStartsAbove(start)),
            _ if log.latest_epoch() > epoch => {
                let known = log.end_of_epoch(epoch);
                let to = if known.is_some() { known.end } else { log.start() };
                self.cut(log, Some(to), CutReason::EpochAboveLeader);
            }
            Some(start) if log.is_empty() => self.cut(log, None, CutReason::OutsideLeader(start)),
            _ => self.back_off(now),
        }
    }

    pub(super) fn replicated(&mut self, now: TimestampMs, log: &dyn LogView) {
        let RoleState::Follower(follower) = &self.role else { return };
        let FollowerStep::Appending { leader_high_watermark } = follower.step else { return };
        if leader_high_watermark > self.told.0 {
            self.told = (leader_high_watermark, follower.epoch);
        }
        // Committed stays committed: a leader that was just elected may not know yet what we know.
        let high_watermark = leader_high_watermark.min(log.end());
        if high_watermark > self.high_watermark {
            self.raise_high_watermark(log, high_watermark);
        }
        self.consider_flush(now, log);
        self.fetch_on(now, log);
    }

    pub(super) fn replication_refused(&mut self, now: TimestampMs, log: &dyn LogView) {
        // The start may have moved before the records were refused.
        if log.start() > self.high_watermark {
            self.raise_high_watermark(log, log.start());
        }
        self.back_off(now);
    }
}
