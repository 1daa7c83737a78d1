//! Moving a partition to other brokers: who comes, who goes, and when.
//!
//! A reassignment is nothing but three lists in the store: all replicas, those of them that are on their way in, and those
//! that go once the others are there (KIP-455). What is to be done next follows from them and from the in-sync set, so a
//! controller that has just taken over goes on where the last one stopped.

use crate::{BrokerId, PartitionState};

/// What of a partition's assignment is to change. Both lists are parts of the assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reassignment {
    /// The replicas that are to come (Kafka's `adding_replicas`).
    pub adding: Vec<BrokerId>,
    /// The replicas that are to go, once those that come are in sync (`removing_replicas`).
    pub removing: Vec<BrokerId>,
}

impl Reassignment {
    /// The assignment and what is to change of it, for a partition that is to end up on `target`, in that order. What was
    /// under way before is given up: who was to come and is not wanted any more goes like all others.
    pub fn begin(&self, assignment: &[BrokerId], target: &[BrokerId]) -> (Vec<BrokerId>, Self) {
        let origin = self.origin(assignment);
        let mut all = target.to_vec();
        all.extend(assignment.iter().filter(|id| !target.contains(id)));
        let adding = target.iter().copied().filter(|id| !origin.contains(id)).collect();
        let removing = all.iter().copied().filter(|id| !target.contains(id)).collect();
        (all, Self { adding, removing })
    }

    /// Whether anything is to change.
    pub fn is_under_way(&self) -> bool {
        !self.adding.is_empty() || !self.removing.is_empty()
    }

    /// The replicas before it began; a cancellation goes back to them.
    pub fn origin(&self, assignment: &[BrokerId]) -> Vec<BrokerId> {
        assignment.iter().copied().filter(|id| !self.adding.contains(id)).collect()
    }

    /// The replicas in the end.
    pub fn target(&self, assignment: &[BrokerId]) -> Vec<BrokerId> {
        assignment.iter().copied().filter(|id| !self.removing.contains(id)).collect()
    }

    /// Who may go by now: nobody, before all that come are in sync and one of those that remain could lead. `stays` tells of
    /// whom it is known that it lives.
    ///
    /// They lead only as long as nobody else can, and leaders are told that they do not live: as with a broker that is about
    /// to stop, it is the leader that takes them out of the ISR.
    pub fn dismissed(&self, state: &PartitionState, stays: impl Fn(BrokerId) -> bool) -> &[BrokerId] {
        let have_come = self.adding.iter().all(|id| state.is_whole(*id));
        let remains = |id: &BrokerId| !self.removing.contains(id) && state.is_whole(*id) && stays(*id);
        if have_come && state.isr.iter().any(remains) { &self.removing } else { &[] }
    }

    /// Whether it is done, but for writing the target down as the assignment: who comes is in sync, who goes is out of it,
    /// and a replica that remains leads.
    pub fn is_done(&self, state: &PartitionState, stays: impl Fn(BrokerId) -> bool) -> bool {
        let is_out = |id: &BrokerId| !state.isr.contains(id) && state.leader != Some(*id);
        let led = state.leader.is_some_and(|id| stays(id) && state.is_whole(id));
        led && self.adding.iter().all(|id| state.is_whole(*id)) && self.removing.iter().all(is_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ids, state};

    /// Assignment, adding, removing, target; assignment, adding, removing after.
    #[test]
    fn begin_table() {
        type Lists<'a> = [&'a [i32]; 3];
        let table: &[(&str, Lists<'_>, &[i32], Lists<'_>)] = &[
            ("to others", [&[1, 2, 3], &[], &[]], &[4, 5], [&[4, 5, 1, 2, 3], &[4, 5], &[1, 2, 3]]),
            ("one is exchanged", [&[1, 2, 3], &[], &[]], &[1, 4, 3], [&[1, 4, 3, 2], &[4], &[2]]),
            ("one more", [&[1, 2], &[], &[]], &[1, 2, 3], [&[1, 2, 3], &[3], &[]]),
            ("one less", [&[1, 2, 3], &[], &[]], &[3, 1], [&[3, 1, 2], &[], &[2]]),
            ("another order", [&[1, 2, 3], &[], &[]], &[3, 1, 2], [&[3, 1, 2], &[], &[]]),
            ("cancelled", [&[4, 5, 1, 2], &[4, 5], &[1, 2]], &[1, 2], [&[1, 2, 4, 5], &[], &[4, 5]]),
            ("instead of another", [&[4, 1, 2], &[4], &[1]], &[5, 2], [&[5, 2, 4, 1], &[5], &[4, 1]]),
            ("the same again", [&[4, 1, 2], &[4], &[1]], &[4, 2], [&[4, 2, 1], &[4], &[1]]),
        ];
        for (name, [assignment, adding, removing], target, after) in table {
            let before = Reassignment { adding: ids(adding), removing: ids(removing) };
            let (all, change) = before.begin(&ids(assignment), &ids(target));
            let [expected, adding, removing] = after.map(ids);
            assert_eq!((all.clone(), change.clone()), (expected, Reassignment { adding, removing }), "{name}");
            assert_eq!(change.target(&all), ids(target), "{name}");
        }
    }

    /// ISR and leader of a partition that moves from 1, 2 to 3, 2; who lives; whether 1 may go, and whether it is done.
    #[test]
    fn progress_table() {
        let change = Reassignment { adding: ids(&[3]), removing: ids(&[1]) };
        let doubtful = PartitionState { doubtful: ids(&[3]), ..state(1, 4, &[1, 2, 3]) };
        let table: &[(&str, PartitionState, &[i32], bool, bool)] = &[
            ("who comes is not there yet", state(1, 4, &[1, 2]), &[1, 2, 3], false, false),
            ("it is", state(1, 4, &[1, 2, 3]), &[1, 2, 3], true, false),
            ("it is, but may lack something", doubtful, &[1, 2, 3], false, false),
            ("another leads", state(3, 5, &[1, 2, 3]), &[1, 2, 3], true, false),
            ("and who goes is out", state(3, 5, &[2, 3]), &[1, 2, 3], true, true),
            ("without one that remains, which is not waited for", state(3, 5, &[3]), &[1, 2, 3], true, true),
            ("nobody leads", state(-1, 5, &[2, 3]), &[1, 2, 3], true, false),
            ("all that remain are dead: who goes leads on", state(1, 4, &[1, 2, 3]), &[1], false, false),
            ("the leader is dead", state(3, 5, &[2, 3]), &[1, 2], true, false),
        ];
        for (name, state, live, dismissed, done) in table {
            let stays = |id: BrokerId| live.contains(&id.0);
            assert_eq!(!change.dismissed(state, stays).is_empty(), *dismissed, "{name}");
            assert_eq!(change.is_done(state, stays), *done, "{name}");
        }
    }
}
