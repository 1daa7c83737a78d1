//! What a leader knows of its followers, and which of them are in sync.

use std::collections::BTreeMap;

use highwater_storage::{LeaderEpoch, Offset, TimestampMs};

use crate::event::FollowerStatus;
use crate::quorum::smallest_end;
use crate::{BrokerEpoch, BrokerId, PartitionState, ReplicaConfig};

/// A leadership of this replica.
#[derive(Clone, Debug)]
pub(crate) struct Leader {
    pub(crate) epoch: LeaderEpoch,
    /// The log end when it began. A follower joins the ISR only above it: below, it may hold records of another history.
    pub(crate) epoch_start: Offset,
    /// The other replicas. In the order of their numbers, so that equal inputs give equal outputs.
    pub(crate) followers: BTreeMap<BrokerId, Progress>,
    /// The change of the ISR that is under way. One at a time.
    pub(crate) pending: Option<Pending>,
    /// No new shrink is proposed before this: the store refused one just now.
    pub(crate) not_before: TimestampMs,
}

/// A follower's progress, from its fetches in this leadership only: what an earlier one knew may be cut by now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) log_end: Option<Offset>,
    /// Whether we know that what it holds below `log_end` is ours, all of it (see [`vouches`](crate::vouches)).
    pub(crate) vouched: bool,
    /// Our log end at its last fetch, and when that was: if its next fetch begins there, it had everything then.
    pub(crate) leader_end_at_last_fetch: Offset,
    pub(crate) last_fetch: Option<TimestampMs>,
    pub(crate) last_caught_up: Option<TimestampMs>,
    pub(crate) broker_epoch: Option<BrokerEpoch>,
    /// Where its log begins, by its last fetch. Decides nothing here.
    pub(crate) log_start: Option<Offset>,
}

/// What a fetch of a follower shows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) broker_epoch: Option<BrokerEpoch>,
    /// Where it goes on: it has everything below.
    pub(crate) end: Offset,
    pub(crate) vouched: bool,
    /// Where its log begins.
    pub(crate) log_start: Offset,
}

/// A proposal on its way.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) proposal: u64,
    pub(crate) expected_version: i64,
    pub(crate) state: PartitionState,
    /// Who comes in by it, in which life.
    pub(crate) joining: Option<(BrokerId, BrokerEpoch)>,
    /// An attempt may be on its way still, or have succeeded: none that follows settles this one unless it succeeds too.
    pub(crate) uncertain: bool,
    /// Who may have come in by earlier attempts.
    pub(crate) doubtful: Vec<BrokerId>,
    /// When to send it again; `None` while it is out.
    pub(crate) retry_at: Option<TimestampMs>,
}

impl Leader {
    pub(crate) fn new(epoch: LeaderEpoch, epoch_start: Offset) -> Self {
        Self { epoch, epoch_start, followers: BTreeMap::new(), pending: None, not_before: TimestampMs(i64::MIN) }
    }

    /// Takes up new replicas and forgets those no longer assigned. Who comes into the ISR counts as caught up now: a
    /// member of a new leadership has the whole lag time to fetch for the first time, and one that has just joined is
    /// not thrown out again for having been behind before.
    pub(crate) fn assign(
        &mut self,
        now: TimestampMs,
        me: BrokerId,
        assignment: &[BrokerId],
        isr: &[BrokerId],
        previous_isr: &[BrokerId],
    ) {
        let wanted = |id: &BrokerId| *id != me && (assignment.contains(id) || isr.contains(id));
        self.followers.retain(|id, _| wanted(id));
        for id in assignment.iter().chain(isr).filter(|id| wanted(id)) {
            let progress = self.followers.entry(*id).or_default();
            if isr.contains(id) && !previous_isr.contains(id) {
                progress.last_caught_up = progress.last_caught_up.max(Some(now));
            }
        }
    }

    pub(crate) fn knows(&self, id: BrokerId) -> bool {
        self.followers.contains_key(&id)
    }

    pub(crate) fn log_end_of(&self, id: BrokerId) -> Option<Offset> {
        self.followers.get(&id)?.log_end
    }

    /// Whether a fetch comes from an earlier life of that broker than one that has fetched already.
    pub(crate) fn is_earlier_life(&self, id: BrokerId, broker_epoch: Option<BrokerEpoch>) -> bool {
        let known = self.followers.get(&id).and_then(|progress| progress.broker_epoch);
        matches!((known, broker_epoch), (Some(known), Some(asked)) if asked < known)
    }

    /// A follower fetched. (Kafka's `Replica.updateFetchStateOrThrow`.)
    pub(crate) fn fetched(&mut self, now: TimestampMs, id: BrokerId, shown: Shown, leader_end: Offset) {
        let Shown { broker_epoch, end, vouched, log_start } = shown;
        let Some(progress) = self.followers.get_mut(&id) else { return };
        if broker_epoch > progress.broker_epoch {
            // Another life: it may have lost what it acknowledged. Nothing of the old one counts.
            if progress.broker_epoch.is_some() {
                *progress = Progress::default();
            }
            progress.broker_epoch = broker_epoch;
        }
        let caught_up = if end >= leader_end {
            Some(now)
        } else if end >= progress.leader_end_at_last_fetch {
            progress.last_fetch
        } else {
            None
        };
        progress.last_caught_up = progress.last_caught_up.max(caught_up);
        progress.log_end = Some(end);
        progress.vouched = vouched;
        progress.log_start = Some(log_start);
        progress.leader_end_at_last_fetch = progress.leader_end_at_last_fetch.max(leader_end);
        progress.last_fetch = Some(now);
    }

    /// The ISR that acknowledgements and the high watermark count with: while a change is under way, the larger of both.
    pub(crate) fn maximal_isr(&self, committed: &[BrokerId]) -> Vec<BrokerId> {
        let mut maximal = committed.to_vec();
        for id in self.pending.iter().flat_map(|pending| pending.state.isr.iter().chain(&pending.doubtful)) {
            if !maximal.contains(id) {
                maximal.push(*id);
            }
        }
        maximal
    }

    /// Up to where every replica that counts has the log. These are the maximal ISR, and whoever is about to join it:
    /// were they left out, the high watermark would have to wait for them later, from further behind.
    pub(crate) fn replicated_end(
        &self,
        now: TimestampMs,
        config: &ReplicaConfig,
        counted_end: Offset,
        leader_end: Offset,
        committed: &[BrokerId],
        live: &BTreeMap<BrokerId, BrokerEpoch>,
    ) -> Option<Offset> {
        let mut in_sync = self.maximal_isr(committed);
        in_sync.retain(|id| *id != config.me);
        // A member we keep no progress for would be unknown; it counts as such.
        let members = in_sync.iter().map(|id| self.log_end_of(*id));
        let joining = self.followers.iter().filter(|(id, progress)| {
            !in_sync.contains(id)
                && progress.log_end.is_some()
                && progress.is_eligible(**id, live)
                && progress.is_caught_up(now, leader_end, config.lag_time_max_ms)
        });
        smallest_end(counted_end, members.chain(joining.map(|(_, progress)| progress.log_end)))
    }

    /// The life in which a follower outside of the ISR may come in, if it may.
    pub(crate) fn may_join(
        &self,
        id: BrokerId,
        high_watermark: Offset,
        live: &BTreeMap<BrokerId, BrokerEpoch>,
    ) -> Option<BrokerEpoch> {
        let progress = self.followers.get(&id)?;
        let reached = progress.log_end.is_some_and(|end| end >= high_watermark && end >= self.epoch_start);
        let holds_ours = reached && progress.vouched;
        live.get(&id).copied().filter(|_| holds_ours && progress.is_eligible(id, live))
    }

    /// The members that have been behind for longer than the lag time.
    pub(crate) fn lagging(
        &self,
        now: TimestampMs,
        leader_end: Offset,
        lag_time_max_ms: i64,
        isr: &[BrokerId],
    ) -> Vec<BrokerId> {
        let lags = |id: &&BrokerId| {
            self.followers.get(id).is_some_and(|progress| !progress.is_caught_up(now, leader_end, lag_time_max_ms))
        };
        isr.iter().filter(lags).copied().collect()
    }

    /// When the next follower stops counting as caught up if nothing more comes from it: a member is then proposed out,
    /// another one no longer holds the high watermark.
    pub(crate) fn next_lagging(
        &self,
        leader_end: Offset,
        lag_time_max_ms: i64,
        isr: &[BrokerId],
    ) -> Option<TimestampMs> {
        let behind = self.followers.iter().filter(|(_, progress)| progress.log_end != Some(leader_end));
        let until = |(id, progress): (&BrokerId, &Progress)| match progress.last_caught_up {
            Some(then) => Some(then.after(lag_time_max_ms).after(1).max(self.not_before)),
            None => isr.contains(id).then_some(self.not_before),
        };
        behind.filter_map(until).min()
    }

    /// Forgets when followers outside of the ISR were caught up last, once that is too long ago to count.
    pub(crate) fn forget_lagging(&mut self, now: TimestampMs, lag_time_max_ms: i64, isr: &[BrokerId]) {
        for (_, progress) in self.followers.iter_mut().filter(|(id, _)| !isr.contains(id)) {
            progress.last_caught_up.take_if(|then| now.since(*then) > lag_time_max_ms);
        }
    }

    pub(crate) fn statuses(&self, leader_end: Offset, isr: &[BrokerId]) -> Vec<FollowerStatus> {
        let status = |(id, progress): (&BrokerId, &Progress)| FollowerStatus {
            id: *id,
            log_end: progress.log_end,
            log_start: progress.log_start,
            lag: progress.log_end.map(|end| leader_end - end),
            last_caught_up: progress.last_caught_up,
            in_sync: isr.contains(id),
        };
        self.followers.iter().map(status).collect()
    }
}

impl Progress {
    /// Registered, and in the life that fetches (a fetch without one, from before KIP-903, is taken on trust).
    fn is_eligible(&self, id: BrokerId, live: &BTreeMap<BrokerId, BrokerEpoch>) -> bool {
        live.get(&id).is_some_and(|registered| self.broker_epoch.is_none_or(|fetching| fetching == *registered))
    }

    /// A follower with our end is in sync however long it has been silent: there was nothing to fetch.
    fn is_caught_up(&self, now: TimestampMs, leader_end: Offset, lag_time_max_ms: i64) -> bool {
        self.log_end == Some(leader_end) || self.last_caught_up.is_some_and(|then| now.since(then) <= lag_time_max_ms)
    }
}
