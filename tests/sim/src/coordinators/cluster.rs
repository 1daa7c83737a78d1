//! The store, the controller, and how brokers hear of them.

use std::collections::BTreeMap;

use highwater_replication::{
    BrokerEpoch, BrokerId, Commit, CommitResult, Controller, Election, IsrDecision, PartitionFacts, PartitionState,
    Reassignment, Versioned,
};
use highwater_storage::LeaderEpoch;

use super::replicas::Proposal;
use super::*;
use crate::fault::STORE;

pub(super) const SESSION_MS: i64 = 150;
/// The controller looks at least so often.
const CONTROL_MS: i64 = 25;

/// The coordination store: a state of each partition with compare-and-set, who is registered, and a number for producers.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) states: [Option<Versioned<PartitionState>>; PARTITIONS],
    pub(super) live: BTreeMap<BrokerId, BrokerEpoch>,
    /// The epoch of the controller in office; commits of others fail.
    pub(super) controller_epoch: i32,
    pub(super) registrations: i64,
    pub(super) next_producer_id: i64,
}

impl Store {
    pub(super) fn new() -> Self {
        Self {
            states: Default::default(),
            live: BTreeMap::new(),
            controller_epoch: 1,
            registrations: 0,
            next_producer_id: 1_000,
        }
    }

    pub(super) fn leader(&self, at: usize) -> Option<usize> {
        let leader = self.states[at].as_ref()?.value.leader?;
        usize::try_from(leader.0 - 1).ok()
    }

    pub(super) fn leader_epoch(&self, at: usize) -> LeaderEpoch {
        self.states[at].as_ref().map_or(LeaderEpoch::NONE, |state| state.value.leader_epoch)
    }

    /// Writes if the version is the expected one.
    fn commit(&mut self, at: usize, expected: Option<i64>, value: PartitionState) -> bool {
        if self.states[at].as_ref().map(|state| state.version) != expected {
            return false;
        }
        self.states[at] = Some(Versioned { value, version: expected.map_or(0, |version| version + 1) });
        true
    }

    /// A leader's proposal, in a session that must be its present one.
    fn propose(&mut self, at: usize, by: BrokerId, session: BrokerEpoch, proposal: Proposal) -> IsrDecision {
        if self.live.get(&by) != Some(&session) {
            return IsrDecision::Fenced;
        }
        let Some(stored) = self.states[at].clone() else { return IsrDecision::Fenced };
        if stored.version != proposal.expected {
            return IsrDecision::Conflict(stored);
        }
        if proposal.joining.is_some_and(|(id, life)| self.live.get(&id) != Some(&life)) {
            return IsrDecision::Refused;
        }
        assert!(self.commit(at, Some(proposal.expected), proposal.state), "the version was checked");
        IsrDecision::Committed(self.states[at].clone().expect("just written"))
    }
}

fn assignment(at: usize) -> Vec<BrokerId> {
    // Another preferred leader for each.
    (0..BROKERS).map(|number| BrokerId(i32::try_from((at + number) % BROKERS + 1).expect("few"))).collect()
}

impl World {
    pub(super) fn proposal_arrives(&mut self, node: usize, at: usize, proposal: Proposal) {
        let number = proposal.number;
        if self.store_down_until > self.now {
            return self.schedule(30, node, Event::Decided(at, number, IsrDecision::Retry));
        }
        let Some(running) = &self.nodes[node].running else { return };
        let mut decision = self.store.propose(at, self.nodes[node].id, running.session, proposal);
        if matches!(decision, IsrDecision::Committed(_)) {
            self.state_changed(at);
        }
        if self.network.loses(self.now, STORE, node) {
            decision = IsrDecision::Retry;
        }
        let after_ms = self.network.latency(self.now, STORE, node);
        self.schedule(after_ms, node, Event::Decided(at, number, decision));
    }

    pub(super) fn decided(&mut self, node: usize, at: usize, proposal: u64, decision: IsrDecision) {
        let now = self.nodes[node].time(self.now);
        if let Some(replica) = self.nodes[node].replica(at) {
            replica.partition.isr_decided(now, proposal, decision);
        }
    }

    /// The store's watches fire, each broker's in its own time.
    fn state_changed(&mut self, at: usize) {
        let Some(state) = self.store.states[at].clone() else { return };
        let text = crate::world::state_text(&state);
        note!(self, STORE, "{}-{}: {text}", NAMES[at].0, NAMES[at].1);
        for node in 0..BROKERS {
            let after_ms = self.hears_after(node);
            if self.hears(node) {
                self.schedule(after_ms, node, Event::StateSeen(at, Box::new(state.clone())));
            }
        }
    }

    fn live_changed(&mut self) {
        for node in 0..BROKERS {
            let after_ms = self.hears_after(node);
            if self.hears(node) {
                self.schedule(after_ms, node, Event::LiveSeen(self.store.live.clone()));
            }
        }
    }

    fn hears_after(&mut self, node: usize) -> i64 {
        let late = if self.nodes[node].late_until > self.now { self.nodes[node].random.between(0, 300) } else { 0 };
        self.network.latency(self.now, STORE, node) + late
    }

    /// Whether a broker and the store reach each other.
    pub(super) fn in_touch(&self, node: usize) -> bool {
        self.nodes[node].cut_off_until <= self.now && self.store_down_until <= self.now
    }

    /// A broker that is down has no watches: the next one of its id reads the store before it hears of changes.
    fn hears(&self, node: usize) -> bool {
        self.nodes[node].running.is_some() && self.in_touch(node)
    }

    pub(super) fn live_seen(&mut self, node: usize, live: BTreeMap<BrokerId, BrokerEpoch>) {
        let now = self.nodes[node].time(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        for replica in &mut running.replicas {
            replica.partition.apply_live_brokers(now, &live);
        }
        running.live = live;
    }

    pub(super) fn state_seen(&mut self, node: usize, at: usize, state: Versioned<PartitionState>) {
        let now = self.nodes[node].time(self.now);
        let Some(replica) = self.nodes[node].replica(at) else { return };
        let known = replica.told.as_ref();
        // An image holds the latest of what was seen. The same again may be what a replica waits for after a registration.
        if known.is_some_and(|known| known.version > state.version) {
            return;
        }
        if known.is_none_or(|known| known.value.leader_epoch != state.value.leader_epoch) {
            replica.guards.break_all();
        }
        replica.partition.apply_state(now, &state, &assignment(at));
        replica.told = Some(state);
        if at < 2 {
            // Coordinators follow the image in their own time.
            let after_ms = self.nodes[node].random.between(0, 5);
            self.schedule(after_ms, node, Event::Follows(at));
        }
    }

    pub(super) fn read_store(&mut self, node: usize) {
        let again_ms = self.nodes[node].random.between(150, 400);
        self.schedule(again_ms, node, Event::Reads);
        let Some(session) = self.session_of(node) else { return };
        if !self.in_touch(node) || self.store.live.get(&self.nodes[node].id) != Some(&session) {
            return; // It will hear that its session is over.
        }
        self.live_seen(node, self.store.live.clone());
        for at in 0..PARTITIONS {
            // What comes of the one is judged by how things were before the other.
            self.settle(node);
            if let Some(state) = self.store.states[at].clone() {
                self.state_seen(node, at, state);
            }
        }
    }

    pub(super) fn session_of(&self, node: usize) -> Option<BrokerEpoch> {
        self.nodes[node].running.as_ref().map(|running| running.session)
    }

    pub(super) fn session_ends(&mut self, node: usize, session: BrokerEpoch) {
        if self.store.live.get(&self.nodes[node].id) != Some(&session) {
            return;
        }
        self.store.live.remove(&self.nodes[node].id);
        note!(self, STORE, "the session of broker {} ends", node + 1);
        self.live_changed();
        if self.session_of(node) == Some(session) {
            let hears = self.nodes[node].random.between(1, 100);
            let after_ms = hears.max(self.nodes[node].cut_off_until - self.now);
            self.schedule(after_ms, node, Event::SessionLostSeen);
        }
    }

    pub(super) fn session_lost_seen(&mut self, node: usize) {
        let now = self.nodes[node].time(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        for replica in &mut running.replicas {
            replica.partition.session_lost(now);
        }
        self.counts.sessions_lost += 1;
        let after_ms = self.nodes[node].random.between(1, 30);
        self.schedule(after_ms, node, Event::Registers);
    }

    /// A number for this life in the store.
    pub(super) fn new_session(&mut self, node: usize) -> BrokerEpoch {
        self.store.registrations += 1;
        let session = BrokerEpoch(self.store.registrations);
        self.store.live.insert(self.nodes[node].id, session);
        session
    }

    pub(super) fn register(&mut self, node: usize) {
        if !self.in_touch(node) {
            return self.schedule(20, node, Event::Registers);
        }
        let now = self.nodes[node].time(self.now);
        let session = self.new_session(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        running.session = session;
        for replica in &mut running.replicas {
            replica.partition.registered(now, session);
        }
        self.live_changed();
        self.read_store(node);
    }

    /// A broker that has started is known.
    pub(super) fn has_registered(&mut self, node: usize) {
        self.live_changed();
        self.read_store(node);
    }

    pub(super) fn control(&mut self) {
        let again_ms = self.control.between(5, CONTROL_MS);
        self.schedule(again_ms, NOBODY, Event::Controls);
        if self.store_down_until > self.now {
            return;
        }
        self.controller.set_brokers(&self.store.live);
        for at in 0..PARTITIONS {
            let facts = PartitionFacts {
                assignment: assignment(at),
                state: self.store.states[at].clone(),
                unclean_elections: false,
                ends: BTreeMap::new(),
                reassignment: Reassignment::default(),
            };
            self.controller.set_partition(topic_partition(at), facts);
        }
        if self.control.one_in(4) {
            self.controller.retry();
        }
        if self.control.one_in(60) {
            self.controller.balance(10);
        }
        let epoch = self.controller.epoch();
        while let Some(commit) = self.controller.poll_commit() {
            // The controller is a broker as well: which one does not matter here.
            let after_ms = self.network.latency(self.now, STORE, STORE);
            self.schedule(after_ms, NOBODY, Event::CommitArrives(epoch, Box::new(commit)));
        }
    }

    pub(super) fn commit_arrives(&mut self, epoch: i32, commit: Commit) {
        if epoch != self.store.controller_epoch || self.store_down_until > self.now {
            return;
        }
        let at = number_of(&commit.topic_partition.topic, commit.topic_partition.partition);
        let written = self.store.commit(at, commit.expected_version, commit.state.clone());
        let result = if written {
            match commit.why {
                Election::Moved => self.counts.moved += 1,
                Election::Preferred => self.counts.preferred += 1,
                Election::Elected => self.counts.elections += 1,
                _ => {}
            }
            self.state_changed(at);
            CommitResult::Committed(self.store.states[at].as_ref().expect("just written").version)
        } else {
            CommitResult::Conflict
        };
        let after_ms = self.network.latency(self.now, STORE, STORE);
        let result = if self.network.loses(self.now, STORE, STORE) { CommitResult::Unknown } else { result };
        self.schedule(after_ms, NOBODY, Event::CommitKnown(epoch, Box::new(commit), result));
    }

    pub(super) fn commit_known(&mut self, epoch: i32, commit: &Commit, result: &CommitResult) {
        if epoch == self.controller.epoch() {
            self.controller.committed(commit, result);
        }
    }

    /// Another broker takes over; the old one does not know yet, its commits fail.
    pub(super) fn new_controller(&mut self) {
        self.store.controller_epoch += 1;
        self.controller = Controller::new(self.store.controller_epoch);
    }

    /// The controller moves a leadership from a leader that lives to an in-sync replica that does.
    pub(super) fn move_leader(&mut self, at: usize, to: usize) {
        let Some(Versioned { value, version }) = self.store.states[at].clone() else { return };
        let to = self.nodes[to].id;
        let is_able = |id: BrokerId| value.is_whole(id) && self.store.live.contains_key(&id);
        let moves = value.leader.is_some_and(|leader| leader != to && is_able(leader)) && is_able(to);
        if !moves || self.store_down_until > self.now {
            return;
        }
        let leader_epoch = LeaderEpoch(value.leader_epoch.0 + 1);
        let controller_epoch = self.store.controller_epoch;
        let moved = PartitionState { leader: Some(to), leader_epoch, controller_epoch, ..value };
        assert!(self.store.commit(at, Some(version), moved), "nobody else writes meanwhile");
        self.counts.moved += 1;
        self.state_changed(at);
    }
}
