//! The store's side: proposals, watches, the controller.

use super::*;

/// On what a controller has decided: its own epoch, the topic, and the version of the topic's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    epoch: i32,
    topic: u32,
    topic_version: i64,
}

impl World {
    pub(super) fn proposal_arrives(&mut self, node: usize, proposal: Proposal) {
        let after = self.latency(STORE, node);
        if self.store_down_until > self.now {
            let decision = IsrDecision::Retry;
            return self.schedule(after + 30, node, Event::Decided { proposal: proposal.number, decision });
        }
        let is_current = self.is_current(node);
        let Some(running) = &self.nodes[node].running else { return };
        let members =
            |state: &Option<Versioned<PartitionState>>| state.as_ref().map_or(0, |state| state.value.isr.len());
        let before = members(&self.store.state);
        let Proposal { number, expected, state, joining } = proposal;
        let mut decision = match is_current || self.plan.mutant == Some(Mutant::IgnoresTopicIds) {
            true => self.store.propose(self.nodes[node].id, running.session, expected, state, joining),
            false => IsrDecision::Fenced,
        };
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
        if self.lost(STORE, node) {
            decision = IsrDecision::Retry;
        }
        self.schedule(after, node, Event::Decided { proposal: number, decision });
    }

    /// A doubtful member says what it has. It goes with the session that says it, like its registration.
    pub(super) fn end_arrives(&mut self, node: usize, end: PublishedEnd) {
        let id = self.nodes[node].id;
        if !self.in_touch(node) {
            return self.schedule(20, node, Event::EndArrives(end));
        }
        // A broker writes one after the other, and of those that wait the last.
        let is_overtaken = self.store.ends.get(&id).is_some_and(|known| known.leader_epoch > end.leader_epoch);
        if self.store.live.get(&id) == Some(&end.life) && !is_overtaken && self.is_current(node) {
            self.store.ends.insert(id, end);
            self.store.former_ends.insert(id, end);
        }
    }

    /// The store's watches fire, each broker's in its own time.
    pub(super) fn store_changed(&mut self) {
        let image = self.store.image();
        if let Some(state) = &image.state {
            self.note_state(state);
            self.check_members(&state.value);
        }
        for node in 0..BROKERS {
            let after = self.hears_after(node);
            if self.hears(node) {
                self.schedule(after, node, Event::ImageSeen(Box::new(image.clone())));
            }
        }
        for node in 0..BROKERS {
            let after = self.hears_after(node);
            if self.hears(node) {
                self.schedule(after, node, Event::LiveSeen(self.store.staying()));
            }
        }
    }

    pub(super) fn hears_after(&mut self, node: usize) -> i64 {
        let late = if self.nodes[node].late_until > self.now { self.nodes[node].random.between(0, 300) } else { 0 };
        self.latency(STORE, node) + late
    }

    /// Whether a broker and the store reach each other.
    pub(super) fn in_touch(&self, node: usize) -> bool {
        self.nodes[node].cut_off_until <= self.now && self.store_down_until <= self.now
    }

    /// A broker that is down has no watches: the next one of its id reads the store before it hears of changes.
    fn hears(&self, node: usize) -> bool {
        self.nodes[node].running.is_some() && self.in_touch(node)
    }

    pub(super) fn note_state(&mut self, state: &Versioned<PartitionState>) {
        note!(self, STORE, "holds {}", state_text(state));
    }

    pub(super) fn read_store(&mut self, node: usize) {
        let again = self.nodes[node].random.between(150, 400);
        self.schedule(again, node, Event::Reads);
        if !self.in_touch(node) {
            return;
        }
        let live = self.store.staying();
        if self.store.live.get(&self.nodes[node].id).copied() != self.session_of(node) {
            return; // It will hear that its session is over.
        }
        let now = self.time(node);
        let running = self.nodes[node].running.as_mut().expect("it runs");
        running.partition.apply_live_brokers(now, &live);
        // One after the other, as a broker's commands: what comes of the one is judged by how things were before the other.
        self.settle(node);
        self.image_seen(node, &self.store.image());
    }

    pub(super) fn image_seen(&mut self, node: usize, image: &Image) {
        if !self.takes_in(node, image) {
            return;
        }
        let Some(mut state) = image.state.clone() else { return };
        let id = self.nodes[node].id;
        if self.plan.mutant == Some(Mutant::MinimumOverTheLeader) && state.value.leader == Some(id) {
            state.value.isr = vec![id];
        }
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        running.partition.apply_state(now, &state, &image.assignment);
    }

    /// Invariant I3 at each new ISR: all members that are whole hold the same committed records.
    pub(super) fn check_members(&self, state: &PartitionState) {
        if !self.plan.loses_nothing() {
            return;
        }
        for node in self.nodes.iter().filter(|node| state.is_whole(node.id) && !node.damaged) {
            if let Some(running) = node.running.as_ref().filter(|running| running.topic == self.store.topic) {
                self.truth.holds_everything(&format!("member {}", node.id), &running.mirror);
            }
        }
    }

    pub(super) fn control(&mut self) {
        let again = self.control.between(5, CONTROL_MS);
        self.schedule(again, NOBODY, Event::Controls);
        if self.store_down_until > self.now {
            return;
        }
        self.controller.set_brokers(&self.store.live);
        self.controller.set_leaving(self.store.leaving.clone());
        self.controller.set_failed(BTreeMap::from([(topic_partition(), self.store.failed.clone())]));
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
        let facts = PartitionFacts { ends, ..self.facts() };
        self.controller.set_partition(topic_partition(), facts);
        if self.control.one_in(4) {
            self.controller.retry();
        }
        // A leader that lives is left for another: what followers lack of acks=1 goes with it.
        if self.plan.operators && self.control.one_in(30) {
            self.controller.balance(10);
        }
        let (topic, topic_version) = (self.store.topic, self.store.topic_version);
        let term = Term { epoch: self.controller.epoch(), topic, topic_version };
        while let Some(commit) = self.controller.poll_commit() {
            // The controller is a broker as well: which one does not matter here.
            let after = self.latency(STORE, STORE);
            self.schedule(after, NOBODY, Event::CommitArrives(term, Box::new(commit)));
        }
        while let Some(done) = self.controller.poll_completion() {
            let after = self.latency(STORE, STORE);
            self.schedule(after, NOBODY, Event::CompletionArrives(term, Box::new(done)));
        }
    }

    /// What a controller knows of the partition.
    pub(super) fn facts(&self) -> PartitionFacts {
        PartitionFacts {
            assignment: self.store.assignment.clone(),
            state: self.store.state.clone(),
            unclean_elections: self.plan.unclean_elections,
            ends: self.store.ends.clone(),
            reassignment: self.store.reassignment.clone(),
        }
    }

    /// Whether the store takes what was decided in this term; `None` if nothing is to be heard of it.
    fn takes(&self, term: Term) -> Option<bool> {
        let answers = term.epoch == self.store.controller_epoch && self.store_down_until <= self.now;
        let is_this = term.topic == self.store.topic && term.topic_version == self.store.topic_version;
        answers.then_some(is_this || self.plan.mutant == Some(Mutant::IgnoresTopicIds))
    }

    pub(super) fn commit_arrives(&mut self, term: Term, mut commit: Commit) {
        let Some(takes) = self.takes(term) else { return };
        if self.plan.mutant == Some(Mutant::DropsTheDead) && commit.state.leader.is_some() {
            commit.state.isr.retain(|id| self.store.live.contains_key(id));
            commit.state.doubtful.retain(|id| self.store.live.contains_key(id));
        }
        let result = if takes && self.store.commit(commit.expected_version, commit.state.clone()) {
            self.count_election(&commit.why);
            self.store_changed();
            CommitResult::Committed(self.store.state.as_ref().expect("just written").version)
        } else {
            CommitResult::Conflict
        };
        note!(self, STORE, "the controller writes for {:?}: {result:?}", commit.why);
        let after = self.latency(STORE, STORE);
        let result = if self.lost(STORE, STORE) { CommitResult::Unknown } else { result };
        self.schedule(after, NOBODY, Event::CommitKnown(term, Box::new(commit), result));
    }

    pub(super) fn commit_known(&mut self, term: Term, commit: &Commit, result: &CommitResult) {
        if term.topic == self.store.topic {
            self.controller.committed(commit, result);
        }
    }

    pub(super) fn completion_arrives(&mut self, term: Term, done: Completion) {
        let Some(takes) = self.takes(term) else { return };
        let expected = Some(done.state_version);
        let written = takes
            && match self.plan.mutant {
                Some(Mutant::KeepsEpochOfMoves) => self.store.state.as_ref().map(|state| state.version) == expected,
                _ => self.store.commit(expected, done.state.clone()),
            };
        let result = if written {
            self.counts.moves_done += 1;
            self.store.assign(done.assignment.clone(), Default::default());
            self.store_changed();
            CommitResult::Committed(self.store.topic_version)
        } else {
            CommitResult::Conflict
        };
        note!(self, STORE, "the replicas are on {}: {result:?}", ids(&done.assignment));
        let after = self.latency(STORE, STORE);
        let result = if self.lost(STORE, STORE) { CommitResult::Unknown } else { result };
        self.schedule(after, NOBODY, Event::CompletionKnown(term, Box::new(done), result));
    }

    pub(super) fn completion_known(&mut self, term: Term, done: &Completion, result: &CommitResult) {
        if term.topic == self.store.topic {
            self.controller.completed(done, result);
        }
    }
}

impl World {
    /// Another broker takes over; the old one does not know yet, its commits fail.
    pub(super) fn new_controller(&mut self) {
        self.store.controller_epoch += 1;
        self.controller = Controller::new(self.store.controller_epoch);
    }

    /// The controller moves the leadership from a leader that lives to an in-sync replica that does.
    pub(super) fn move_leader(&mut self, to: usize) {
        let Some(Versioned { value, version }) = self.store.state.clone() else { return };
        let to = self.nodes[to].id;
        let staying = self.store.staying();
        let whole = |id: BrokerId| value.is_whole(id) && staying.contains_key(&id);
        let moves = value.leader.is_some_and(|leader| leader != to && whole(leader)) && whole(to);
        if !moves || self.store_down_until > self.now {
            return;
        }
        let leader_epoch = LeaderEpoch(value.leader_epoch.0 + 1);
        let controller_epoch = self.store.controller_epoch;
        let moved = PartitionState { leader: Some(to), leader_epoch, controller_epoch, ..value };
        assert!(self.store.commit(Some(version), moved), "nobody else writes meanwhile");
        self.counts.moved += 1;
        self.store_changed();
    }
}

/// A state in a few words.
pub(crate) fn state_text(state: &Versioned<PartitionState>) -> String {
    let Versioned { value, version } = state;
    let leader = value.leader.map_or_else(|| "nobody".to_owned(), |id| id.to_string());
    let doubtful = match value.doubtful.as_slice() {
        [] => String::new(),
        doubtful => format!(", doubtful {}", ids(doubtful)),
    };
    format!("v{version}: {leader} leads e{}, ISR {}{doubtful}", value.leader_epoch, ids(&value.isr))
}

pub(super) fn ids(ids: &[BrokerId]) -> String {
    ids.iter().map(|id| id.to_string()).collect::<Vec<_>>().join(" ")
}

pub(super) fn topic_partition() -> TopicPartition {
    TopicPartition::new("books", 0)
}
