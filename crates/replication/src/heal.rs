//! What of a damaged log is fetched anew, and from whom. Pure.

use std::ops::Range;

use highwater_storage::{Damaged, LeaderEpoch, Offset};

use crate::BrokerId;
use crate::event::{Role, Status};

/// The longest stretch that is healed: all of it is in memory at once. Most are one batch.
const HEALED_BYTES_MAX: u64 = 64 << 20;

/// Damage of one log, and who may have what belongs there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealPlan {
    /// Below the high watermark, all of it: there every replica that has an offset has the same record.
    pub damaged: Vec<Damaged>,
    /// Whom to ask, one after the other.
    pub ask: Vec<BrokerId>,
    /// The leadership to name.
    pub leader_epoch: LeaderEpoch,
    /// This replica leads, and asks followers: they lend to their leader only, and to nobody what is not committed.
    pub leads: bool,
}

/// What can be healed now.
pub(crate) fn plan(me: BrokerId, status: &Status, damage: Vec<Damaged>) -> Option<HealPlan> {
    let is_healable = |damaged: &Damaged| is_healable(status, &damaged.offsets, damaged.bytes);
    let damaged: Vec<Damaged> = damage.into_iter().filter(is_healable).collect();
    let (ask, leads) = lenders(me, status);
    let plan = HealPlan { damaged, ask, leader_epoch: status.leader_epoch, leads };
    (!plan.damaged.is_empty() && !plan.ask.is_empty()).then_some(plan)
}

/// Who has what is committed, and whether we lead. A follower asks its leader, as a consumer would: it acknowledges
/// nothing. A leader asks the other in-sync replicas.
fn lenders(me: BrokerId, status: &Status) -> (Vec<BrokerId>, bool) {
    match status.role {
        Role::Leader => (status.isr.iter().copied().filter(|id| *id != me).collect(), true),
        Role::Follower => (Vec::from_iter(status.leader), false),
        Role::Offline | Role::Fenced => (Vec::new(), false),
    }
}

fn is_healable(status: &Status, offsets: &Range<Offset>, bytes: u64) -> bool {
    status.log_start <= offsets.start && offsets.end <= status.high_watermark && bytes <= HEALED_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ids;

    fn status(role: Role) -> Status {
        Status {
            role,
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(3),
            version: 1,
            log_start: Offset(10),
            log_end: Offset(30),
            flushed: Offset(30),
            high_watermark: Offset(20),
            isr: ids(&[3, 2, 1]),
            in_isr: true,
            followers: Vec::new(),
            produces_waiting: 0,
            fetches_waiting: 0,
        }
    }

    #[test]
    fn a_follower_asks_its_leader_and_a_leader_who_is_in_sync() {
        assert_eq!(lenders(BrokerId(1), &status(Role::Follower)), (ids(&[2]), false));
        assert_eq!(lenders(BrokerId(2), &status(Role::Leader)), (ids(&[3, 1]), true));
        for role in [Role::Offline, Role::Fenced] {
            assert_eq!(lenders(BrokerId(1), &status(role)), (ids(&[]), false));
        }
        let alone = Status { isr: ids(&[2]), ..status(Role::Leader) };
        assert_eq!(lenders(BrokerId(2), &alone), (ids(&[]), true));
    }

    #[test]
    fn what_is_committed_and_not_below_the_start_can_be_healed() {
        let status = status(Role::Follower);
        let rows = [(9, 12, false), (10, 12, true), (19, 20, true), (19, 21, false), (20, 22, false)];
        for (from, to, expected) in rows {
            assert_eq!(is_healable(&status, &(Offset(from)..Offset(to)), 100), expected, "{from} to {to}");
        }
        assert!(!is_healable(&status, &(Offset(10)..Offset(12)), HEALED_BYTES_MAX + 1));
    }
}
