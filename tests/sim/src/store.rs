//! The coordination store as the replicas need it: one state with compare-and-set, and who is registered.

use std::collections::{BTreeMap, BTreeSet};

use highwater_replication::{
    BrokerEpoch, BrokerId, IsrDecision, PartitionState, PublishedEnd, Reassignment, Versioned,
};

#[derive(Debug, Default)]
pub(crate) struct Store {
    /// Which topic of its name it is: counts how often it was made again.
    pub(crate) topic: u32,
    /// Its replicas, the preferred leader first, and what is to change of them; with the version of the topic's node.
    pub(crate) assignment: Vec<BrokerId>,
    pub(crate) reassignment: Reassignment,
    pub(crate) topic_version: i64,
    pub(crate) state: Option<Versioned<PartitionState>>,
    pub(crate) live: BTreeMap<BrokerId, BrokerEpoch>,
    /// How far the logs of doubtful members go; each entry goes with the session that wrote it.
    pub(crate) ends: BTreeMap<BrokerId, PublishedEnd>,
    /// What each broker said last, in whichever life: for a controller that makes mistakes.
    pub(crate) former_ends: BTreeMap<BrokerId, PublishedEnd>,
    /// Who has said that its log failed; each entry goes with the session that wrote it.
    pub(crate) failed: BTreeSet<BrokerId>,
    /// Who is about to stop; likewise.
    pub(crate) leaving: BTreeSet<BrokerId>,
    /// The epoch of the controller in office; commits of others fail.
    pub(crate) controller_epoch: i32,
    pub(crate) registrations: i64,
    changes: u64,
}

/// The topic as a broker hears of it.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Goes up with each change.
    pub(crate) number: u64,
    pub(crate) topic: u32,
    pub(crate) assignment: Vec<BrokerId>,
    pub(crate) state: Option<Versioned<PartitionState>>,
}

impl Store {
    pub(crate) fn new(assignment: Vec<BrokerId>) -> Self {
        Self { controller_epoch: 1, assignment, ..Self::default() }
    }

    pub(crate) fn image(&self) -> Image {
        let (assignment, state) = (self.assignment.clone(), self.state.clone());
        Image { number: self.changes, topic: self.topic, assignment, state }
    }

    /// Writes the topic's replicas, and what is to change of them.
    pub(crate) fn assign(&mut self, assignment: Vec<BrokerId>, reassignment: Reassignment) {
        (self.assignment, self.reassignment) = (assignment, reassignment);
        self.topic_version += 1;
        self.changes += 1;
    }

    /// Deletes the topic and makes one of its name.
    pub(crate) fn make_again(&mut self) {
        self.topic += 1;
        self.state = None;
        self.ends.clear();
        self.former_ends.clear();
        self.failed.clear();
        let target = self.reassignment.target(&self.assignment);
        self.assign(target, Reassignment::default());
    }

    /// Writes if the version is the expected one.
    pub(crate) fn commit(&mut self, expected: Option<i64>, value: PartitionState) -> bool {
        if self.state.as_ref().map(|state| state.version) != expected {
            return false;
        }
        self.state = Some(Versioned { value, version: expected.map_or(0, |version| version + 1) });
        self.changes += 1;
        true
    }

    /// A leader's proposal, in a session that must be its present one.
    pub(crate) fn propose(
        &mut self,
        by: BrokerId,
        session: BrokerEpoch,
        expected: i64,
        proposed: PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) -> IsrDecision {
        if self.live.get(&by) != Some(&session) {
            return IsrDecision::Fenced;
        }
        let Some(stored) = self.state.clone() else { return IsrDecision::Fenced };
        if stored.version != expected {
            return IsrDecision::Conflict(stored);
        }
        if joining.is_some_and(|(id, life)| self.live.get(&id) != Some(&life)) {
            return IsrDecision::Refused;
        }
        assert!(self.commit(Some(expected), proposed), "the version was checked");
        IsrDecision::Committed(self.state.clone().expect("just written"))
    }

    /// On whom a leader counts: who is registered, not about to stop and has not said that its log failed, and whose replica
    /// is not to go by now.
    pub(crate) fn staying(&self) -> BTreeMap<BrokerId, BrokerEpoch> {
        let mut staying = self.live.clone();
        staying.retain(|id, _| !self.failed.contains(id) && !self.leaving.contains(id));
        if let Some(state) = &self.state {
            let dismissed = self.reassignment.dismissed(&state.value, |id| staying.contains_key(&id)).to_vec();
            staying.retain(|id, _| !dismissed.contains(id));
        }
        staying
    }

    /// A session is over.
    pub(crate) fn forget(&mut self, id: BrokerId) {
        self.live.remove(&id);
        self.ends.remove(&id);
        self.failed.remove(&id);
        self.leaving.remove(&id);
    }

    pub(crate) fn register(&mut self, id: BrokerId) -> BrokerEpoch {
        self.registrations += 1;
        let epoch = BrokerEpoch(self.registrations);
        self.forget(id);
        self.live.insert(id, epoch);
        epoch
    }
}
