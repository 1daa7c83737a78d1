use highwater_storage::{LeaderEpoch, Offset};
/// The last epoch at or below the one asked for, and where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The epoch; [`LeaderEpoch::NONE`] if there is no answer.
    pub epoch: LeaderEpoch,
    /// The offset after its last record; -1 if there is no answer.
    pub end: Offset,
}
