//! Where a follower is in its conversation with the leader.

use highwater_storage::{LeaderEpoch, Offset, TimestampMs};

use crate::BrokerId;
use crate::event::FetchPlan;

/// This replica following a leader in one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    pub(crate) leader: BrokerId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) step: FollowerStep,
    /// How often in this epoch the leader had not heard of its election yet.
    pub(crate) unaware: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowerStep {
    /// This fetch is out. Replies to others are late and mean nothing.
    Fetching(FetchPlan),
    /// The leader's start is being taken over and its records appended.
    Appending { leader_high_watermark: Offset },
    /// The log is being cut; it was like this before.
    Cutting { end: Offset, latest_epoch: LeaderEpoch },
    /// The next fetch would acknowledge what is not flushed yet.
    Flushing,
    /// Something went wrong; fetch again then.
    BackingOff(TimestampMs),
    /// The leader says that there is a newer leadership: wait for the store.
    Fenced,
}
