//! What the unit tests of several modules begin with.

use highwater_storage::LeaderEpoch;

use crate::{BrokerId, PartitionState};

pub(crate) fn ids(numbers: &[i32]) -> Vec<BrokerId> {
    numbers.iter().copied().map(BrokerId).collect()
}

/// A partition's state, in the controller's epoch 1; a negative leader is none.
pub(crate) fn state(leader: i32, epoch: i32, isr: &[i32]) -> PartitionState {
    PartitionState {
        leader: (leader >= 0).then_some(BrokerId(leader)),
        leader_epoch: LeaderEpoch(epoch),
        isr: ids(isr),
        controller_epoch: 1,
        doubtful: Vec::new(),
        recovering: false,
    }
}
