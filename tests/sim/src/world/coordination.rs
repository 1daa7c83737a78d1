//! The store's side: proposals, watches, the controller.

use super::*;

impl World {
    pub(super) fn proposal_arrives(&mut self, node: usize, proposal: Proposal) {
        let Some(running) = &self.nodes[node].running else { return };
        let members =
            |state: &Option<Versioned<PartitionState>>| state.as_ref().map_or(0, |state| state.value.isr.len());
        let before = members(&self.store.state);
        let Proposal { number, expected, state, joining } = proposal;
        let mut decision = self.store.propose(self.nodes[node].id, running.session, expected, state, joining);
        match &decision {
            IsrDecision::Committed(_) => {
                let after = members(&self.store.state);
                self.counts.joins += u64::from(after > before);
                self.counts.shrinks += u64::from(after < before);
                self.store_changed();
            }
            IsrDecision::Conflict(_) => self.counts.conflicts += 1,
            _ => {}
        }
        let after = self.latency();
        if !self.healed && self.random.one_in(self.plan.lost_one_in) {
            decision = IsrDecision::Retry;
        }
        self.schedule(after, node, Event::Decided { proposal: number, decision });
    }

    /// A doubtful member says what it has. It goes with the session that says it, like its registration.
    pub(super) fn end_arrives(&mut self, node: usize, end: PublishedEnd) {
        let id = self.nodes[node].id;
        if self.nodes[node].cut_off_until > self.now {
            return self.schedule(20, node, Event::EndArrives(end));
        }
        // A broker writes one after the other, and of those that wait the last.
        let is_overtaken = self.store.ends.get(&id).is_some_and(|known| known.leader_epoch > end.leader_epoch);
        if self.store.live.get(&id) == Some(&end.life) && !is_overtaken {
            self.store.ends.insert(id, end);
            self.store.former_ends.insert(id, end);
        }
    }

    /// The store's watches fire, each broker's in its own time.
    pub(super) fn store_changed(&mut self) {
        if let Some(state) = self.store.state.clone() {
            self.note_state(&state);
            self.check_members(&state.value);
            for node in 0..NODES {
                let after = self.latency();
                if self.hears(node) {
                    self.schedule(after, node, Event::StateSeen(state.clone()));
                }
            }
        }
        for node in 0..NODES {
            let after = self.latency();
            if self.hears(node) {
                self.schedule(after, node, Event::LiveSeen(self.store.live.clone()));
            }
        }
    }

    /// A broker that is down has no watches: the next one of its id reads the store before it hears of changes.
    fn hears(&self, node: usize) -> bool {
        self.nodes[node].running.is_some() && self.nodes[node].cut_off_until <= self.now
    }

    pub(super) fn note_state(&mut self, state: &Versioned<PartitionState>) {
        if self.trace.is_some() {
            let line = format!("store v{} {:?}", state.version, state.value);
            self.note(&line);
        }
    }

    pub(super) fn read_store(&mut self, node: usize) {
        let again = self.random.between(150, 400);
        self.schedule(again, node, Event::Reads);
        if self.nodes[node].cut_off_until > self.now {
            return;
        }
        let live = self.store.live.clone();
        if self.store.live.get(&self.nodes[node].id).copied() != self.session_of(node) {
            return; // It will hear that its session is over.
        }
        let running = self.nodes[node].running.as_mut().expect("it runs");
        running.partition.apply_live_brokers(at(self.now), &live);
        if let Some(state) = self.store.state.clone() {
            self.state_seen(node, &state);
        }
    }

    pub(super) fn state_seen(&mut self, node: usize, state: &Versioned<PartitionState>) {
        let mut state = state.clone();
        let id = self.nodes[node].id;
        if self.plan.mutant == Some(Mutant::MinimumOverTheLeader) && state.value.leader == Some(id) {
            state.value.isr = vec![id];
        }
        let Some(running) = &mut self.nodes[node].running else { return };
        running.partition.apply_state(at(self.now), &state, &assignment());
    }

    /// Invariant I3 at each new ISR: all members that are whole hold the same committed records.
    pub(super) fn check_members(&self, state: &PartitionState) {
        if !self.loses_nothing() {
            return;
        }
        for node in self.nodes.iter().filter(|node| state.is_whole(node.id) && !node.damaged) {
            if let Some(running) = &node.running {
                self.truth.holds_everything(&format!("member {}", node.id), &running.mirror);
            }
        }
    }

    pub(super) fn control(&mut self) {
        let again = self.random.between(5, CONTROL_MS);
        self.schedule(again, NOBODY, Event::Controls);
        if !self.healed && self.random.one_in(60) {
            // Another broker takes over; the old one does not know yet, its commits fail.
            self.store.controller_epoch += 1;
            self.controller = Controller::new(self.store.controller_epoch);
        }
        self.controller.set_brokers(&self.store.live);
        let mut ends = self.store.ends.clone();
        match self.plan.mutant {
            Some(Mutant::ElectsTheFirst) => ends.values_mut().for_each(|end| end.log_end = Offset(0)),
            Some(Mutant::TrustsFormerLives) => {
                ends = self.store.former_ends.clone();
                let (live, state) = (&self.store.live, self.store.state.as_ref());
                for (id, end) in &mut ends {
                    end.life = live.get(id).copied().unwrap_or(end.life);
                    end.leader_epoch = state.map_or(end.leader_epoch, |state| state.value.leader_epoch);
                }
            }
            _ => {}
        }
        let facts = PartitionFacts {
            assignment: assignment(),
            state: self.store.state.clone(),
            unclean_elections: self.plan.promise == Promise::Nothing,
            ends,
        };
        self.controller.set_partition(topic_partition(), facts);
        if self.random.one_in(4) {
            self.controller.retry();
        }
        while let Some(commit) = self.controller.poll_commit() {
            let after = self.latency();
            self.schedule(after, NOBODY, Event::CommitArrives(self.controller.epoch(), Box::new(commit)));
        }
    }

    pub(super) fn commit_arrives(&mut self, controller_epoch: i32, mut commit: Commit) {
        if controller_epoch != self.store.controller_epoch {
            return;
        }
        if self.plan.mutant == Some(Mutant::DropsTheDead) && commit.state.leader.is_some() {
            commit.state.isr.retain(|id| self.store.live.contains_key(id));
            commit.state.doubtful.retain(|id| self.store.live.contains_key(id));
        }
        let result = if self.store.commit(commit.expected_version, commit.state.clone()) {
            self.counts.elections += u64::from(commit.why == Election::Elected);
            self.counts.unclean += u64::from(matches!(commit.why, Election::Unclean { .. }));
            self.counts.recovered += u64::from(matches!(commit.why, Election::Recovered { .. }));
            self.store_changed();
            CommitResult::Committed(self.store.state.as_ref().expect("just written").version)
        } else {
            CommitResult::Conflict
        };
        let after = self.latency();
        let lost = !self.healed && self.random.one_in(self.plan.lost_one_in);
        let result = if lost { CommitResult::Unknown } else { result };
        self.schedule(after, NOBODY, Event::CommitKnown(Box::new(commit), result));
    }

    pub(super) fn commit_known(&mut self, commit: &Commit, result: &CommitResult) {
        self.controller.committed(commit, result);
    }
}

fn assignment() -> Vec<BrokerId> {
    [1, 2, 3].map(BrokerId).to_vec()
}

fn topic_partition() -> TopicPartition {
    TopicPartition::new("books", 0)
}
