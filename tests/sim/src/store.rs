//! The coordination store as the replicas need it: one state with compare-and-set, and who is registered.

use std::collections::{BTreeMap, BTreeSet};

use highwater_replication::{BrokerEpoch, BrokerId, IsrDecision, PartitionState, PublishedEnd, Versioned};

#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) state: Option<Versioned<PartitionState>>,
    pub(crate) live: BTreeMap<BrokerId, BrokerEpoch>,
    /// How far the logs of doubtful members go; each entry goes with the session that wrote it.
    pub(crate) ends: BTreeMap<BrokerId, PublishedEnd>,
    /// What each broker said last, in whichever life: for a controller that makes mistakes.
    pub(crate) former_ends: BTreeMap<BrokerId, PublishedEnd>,
    /// Who has said that its log failed; each entry goes with the session that wrote it.
    pub(crate) failed: BTreeSet<BrokerId>,
    /// The epoch of the controller in office; commits of others fail.
    pub(crate) controller_epoch: i32,
    pub(crate) registrations: i64,
}

impl Store {
    /// Writes if the version is the expected one.
    pub(crate) fn commit(&mut self, expected: Option<i64>, value: PartitionState) -> bool {
        if self.state.as_ref().map(|state| state.version) != expected {
            return false;
        }
        self.state = Some(Versioned { value, version: expected.map_or(0, |version| version + 1) });
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

    /// Who is registered and has not said that its log failed.
    pub(crate) fn with_logs(&self) -> BTreeMap<BrokerId, BrokerEpoch> {
        self.live.iter().filter(|(id, _)| !self.failed.contains(id)).map(|(id, life)| (*id, *life)).collect()
    }

    /// A session is over.
    pub(crate) fn forget(&mut self, id: BrokerId) {
        self.live.remove(&id);
        self.ends.remove(&id);
        self.failed.remove(&id);
    }

    pub(crate) fn register(&mut self, id: BrokerId) -> BrokerEpoch {
        self.registrations += 1;
        let epoch = BrokerEpoch(self.registrations);
        self.forget(id);
        self.live.insert(id, epoch);
        epoch
    }
}
