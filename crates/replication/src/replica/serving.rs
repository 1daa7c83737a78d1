//! What a leader answers: fetches of consumers and followers, offsets, ends of epochs.

use highwater_storage::{EpochEnd, LeaderEpoch, Offset, TimestampMs};

use super::{Replica, RoleState};
use crate::event::{FetchError, FetchGrant, FetchRequest, Fetcher, ListedOffset, OffsetNotAvailable, Output, Which};
use crate::leader::{Leader, Shown};
use crate::lineage::{Fit, LogView, fit, vouches};
use crate::{BrokerEpoch, BrokerId, Isolation, WaitToken};

impl Replica {
    /// Answers a fetch that arrives. A follower's `from` is its acknowledgement of everything below.
    pub fn fetch(
        &mut self,
        now: TimestampMs,
        log: &dyn LogView,
        fetch: &FetchRequest,
    ) -> Result<FetchGrant, FetchError> {
        let grant = self.regrant(log, fetch)?;
        // Without the epoch it follows, a fetch may come from another history: it is served, but proves nothing.
        if let (Fetcher::Follower { id, broker_epoch, log_start }, None, Some(_)) =
            (fetch.by, grant.diverging, fetch.current_leader_epoch)
        {
            let vouched = vouches(log, fetch.last_fetched_epoch, log_start);
            self.progressed(now, log, id, Shown { broker_epoch, end: fetch.from, vouched, log_start });
        }
        Ok(grant)
    }

    /// Answers a fetch that arrived earlier and waited: like [`Replica::fetch`], but it is no new acknowledgement.
    pub fn regrant(&self, log: &dyn LogView, fetch: &FetchRequest) -> Result<FetchGrant, FetchError> {
        if let Some(grant) = self.lent(log, fetch) {
            return Ok(grant);
        }
        let leader = self.serving(fetch.current_leader_epoch)?;
        if let Fetcher::Follower { id, broker_epoch, .. } = fetch.by {
            self.check_follower(leader, id, broker_epoch, fetch.current_leader_epoch)?;
        }
        let high_watermark = self.told_high_watermark(leader, fetch.by);
        let diverging = match fit(log, fetch.last_fetched_epoch, fetch.from) {
            Fit::Fits => None,
            Fit::Diverges(end) => Some(end),
            Fit::OutOfRange => {
                return Err(FetchError::OutOfRange {
                    from: fetch.from,
                    log_start: log.start(),
                    log_end: log.end(),
                    high_watermark,
                });
            }
        };
        Ok(FetchGrant {
            upper: self.readable_end(log, fetch.by),
            high_watermark,
            // Where the one is not known the other is not either.
            last_stable_offset: log.last_stable_offset(self.high_watermark).min(high_watermark),
            log_start: log.start(),
            diverging,
            leader_epoch: leader.epoch,
            generation: log.generation(),
        })
    }

    /// What a follower grants its leader, which has damage of its own to heal: what is committed, and nothing else. To
    /// anybody else it does not lead.
    fn lent(&self, log: &dyn LogView, fetch: &FetchRequest) -> Option<FetchGrant> {
        let (RoleState::Follower(follower), Fetcher::Follower { id, .. }) = (&self.role, fetch.by) else { return None };
        let is_leader = id == follower.leader && fetch.current_leader_epoch == Some(follower.epoch);
        let is_committed = (log.start()..self.high_watermark).contains(&fetch.from);
        let grant = FetchGrant::new(self.high_watermark, self.high_watermark, log.start(), follower.epoch);
        (is_leader && is_committed).then(|| FetchGrant { generation: log.generation(), ..grant })
    }

    /// Wakes the fetch once there is something at `from`, or the leadership changes. At once if it is so already.
    pub fn watch_fetch(&mut self, log: &dyn LogView, token: WaitToken, by: Fetcher, from: Offset) {
        let end = self.readable_end(log, by);
        let waiting = match by {
            Fetcher::Consumer { isolation: Isolation::ReadUncommitted } => &mut self.consumers,
            Fetcher::Consumer { isolation: Isolation::ReadCommitted } => &mut self.committed_consumers,
            Fetcher::Follower { .. } => &mut self.followers,
        };
        if from < end || !matches!(self.role, RoleState::Leader(_)) {
            self.outputs.push_back(Output::WakeFetch { token });
        } else {
            waiting.add(token, from);
        }
    }

    /// Forgets a fetch that waits. Nothing happens if it does not.
    pub fn unwatch_fetch(&mut self, token: WaitToken) {
        self.consumers.remove(token);
        self.committed_consumers.remove(token);
        self.followers.remove(token);
    }

    /// Answers a list-offsets request as far as that needs no reading.
    pub fn list_offset(
        &self,
        log: &dyn LogView,
        by: Fetcher,
        current_leader_epoch: Option<LeaderEpoch>,
        which: Which,
    ) -> Result<ListedOffset, FetchError> {
        let leader = self.serving(current_leader_epoch)?;
        let upper = self.readable_end(log, by);
        // As in `told_high_watermark`: the end would go backwards for consumers (KIP-207).
        let is_consumer = matches!(by, Fetcher::Consumer { .. });
        let unknown = (is_consumer && self.high_watermark < leader.epoch_start)
            .then_some(OffsetNotAvailable { high_watermark: self.high_watermark, epoch_start: leader.epoch_start });
        match (which, unknown) {
            (Which::Earliest, _) => Ok(ListedOffset::At { offset: log.start(), leader_epoch: LeaderEpoch::NONE }),
            (Which::Latest, Some(OffsetNotAvailable { high_watermark, epoch_start })) => {
                Err(FetchError::OffsetNotAvailable { high_watermark, epoch_start })
            }
            (Which::Latest, None) => Ok(ListedOffset::At { offset: upper, leader_epoch: leader.epoch }),
            (Which::MaxTimestamp | Which::Timestamp(_), missing) => Ok(ListedOffset::Search { upper, missing }),
        }
    }

    /// Answers where an epoch ends in this leader's log.
    pub fn end_of_epoch(
        &self,
        log: &dyn LogView,
        current_leader_epoch: Option<LeaderEpoch>,
        epoch: LeaderEpoch,
    ) -> Result<EpochEnd, FetchError> {
        self.serving(current_leader_epoch)?;
        Ok(log.end_of_epoch(epoch))
    }

    /// Where records end that the asker may see.
    fn readable_end(&self, log: &dyn LogView, by: Fetcher) -> Offset {
        match by {
            Fetcher::Consumer { isolation: Isolation::ReadUncommitted } => self.high_watermark,
            Fetcher::Consumer { isolation: Isolation::ReadCommitted } => log.last_stable_offset(self.high_watermark),
            Fetcher::Follower { .. } => log.end(),
        }
    }

    /// The leadership, if the asker means the same one. The epoch is checked first: an asker that is behind must learn
    /// so even from a replica that no longer leads.
    fn serving(&self, asked: Option<LeaderEpoch>) -> Result<&Leader, FetchError> {
        let current = self.leader_epoch();
        if matches!(self.role, RoleState::Fenced) {
            return Err(FetchError::Storage);
        }
        if let Some(asked) = asked {
            if asked < current {
                return Err(FetchError::FencedLeaderEpoch { asked, current });
            }
            if asked > current {
                return Err(FetchError::UnknownLeaderEpoch { asked, current });
            }
        }
        match &self.role {
            RoleState::Leader(leader) => Ok(leader),
            _ => Err(self.fetch_not_leader()),
        }
    }

    /// A new leader's high watermark may lie below its predecessor's until it has reached the start of this leadership;
    /// for consumers it would go back. Kafka tells it all the same in fetches, and only refuses ListOffsets.
    fn told_high_watermark(&self, leader: &Leader, by: Fetcher) -> Offset {
        match by {
            Fetcher::Consumer { .. } if self.high_watermark < leader.epoch_start => Offset(-1),
            Fetcher::Consumer { .. } | Fetcher::Follower { .. } => self.high_watermark,
        }
    }

    fn fetch_not_leader(&self) -> FetchError {
        let leader = self.state.as_ref().and_then(|state| state.value.leader).filter(|id| *id != self.config.me);
        FetchError::NotLeader { leader, leader_epoch: self.leader_epoch() }
    }

    fn check_follower(
        &self,
        leader: &Leader,
        id: BrokerId,
        broker_epoch: Option<BrokerEpoch>,
        asked: Option<LeaderEpoch>,
    ) -> Result<(), FetchError> {
        if !leader.knows(id) {
            // It may have been assigned in a state we have not seen yet: it should ask again (KAFKA-13837).
            return Err(match asked {
                Some(asked) => FetchError::UnknownLeaderEpoch { asked, current: leader.epoch },
                None => self.fetch_not_leader(),
            });
        }
        let registered_later = matches!((self.live.get(&id), broker_epoch), (Some(live), Some(asked)) if asked < *live);
        if registered_later || leader.is_earlier_life(id, broker_epoch) {
            return Err(self.fetch_not_leader());
        }
        Ok(())
    }
}
