//! What goes wrong, within what the run's promise allows, and how brokers come back.

use super::*;

impl World {
    pub(super) fn fail(&mut self) {
        if self.healed {
            return;
        }
        let again = self.random.between(30, 250);
        self.schedule(again, NOBODY, Event::Fails);
        let node = usize::try_from(self.random.below(3)).expect("a broker");
        let until = self.now + self.random.between(20, 500);
        match self.random.below(8) {
            0 | 1 => self.stop(node),
            2 if self.plan.promise == Promise::PowerCutsOfAll => self.power_cut_of_all(),
            2 => self.power_cut(node),
            3 => {
                self.note(&format!("{} pauses until {}", node + 1, until - EPOCH_MS));
                self.nodes[node].paused_until = until;
            }
            4 => {
                let other = (node + 1) % NODES;
                self.separated.insert((node.min(other), node.max(other)), until);
            }
            5 => {
                self.separated.insert((node, NODES), until);
            }
            6 => self.cut_off(node, until),
            _ => {
                if let Some(session) = self.session_of(node).filter(|_| self.may_fail(node)) {
                    self.session_ends(node, session);
                }
            }
        }
    }

    pub(super) fn session_of(&self, node: usize) -> Option<BrokerEpoch> {
        self.nodes[node].running.as_ref().map(|running| running.session)
    }

    /// Without syncs only one broker at a time may be down or damaged; see [`Promise::PowerCuts`].
    pub(super) fn may_fail(&self, node: usize) -> bool {
        let whole = |other: &Node| {
            // Who is cut off from the store may lose its session at any moment.
            let in_touch = self.store.live.contains_key(&other.id) && other.cut_off_until <= self.now;
            other.running.is_some() && !other.damaged && in_touch
        };
        self.plan.promise != Promise::PowerCuts
            || self.nodes.iter().enumerate().all(|(other, broker)| other == node || whole(broker))
    }

    pub(super) fn stop(&mut self, node: usize) {
        if self.nodes[node].running.is_none() || !self.may_fail(node) {
            return;
        }
        let clean = self.random.one_in(3);
        self.note(&format!("{} stops, clean: {clean}", node + 1));
        self.counts.kills += u64::from(!clean);
        let session = self.session_of(node).expect("it runs");
        let running = self.nodes[node].running.take().expect("it runs");
        if clean {
            self.nodes[node].checkpointed = Some(running.partition.status().high_watermark);
            running.partition.close().expect("a clean close");
        } else {
            drop(running);
        }
        self.goes_down(node, session, clean);
        if !clean {
            self.nodes[node].fs = self.nodes[node].fs.kill();
        }
    }

    pub(super) fn power_cut(&mut self, node: usize) {
        let allowed = self.plan.promise != Promise::Kills;
        if !allowed || self.nodes[node].running.is_none() || !self.may_fail(node) {
            return;
        }
        if self.plan.promise == Promise::PowerCuts && !self.another_is_whole(node) {
            return;
        }
        self.loses_power(node);
        self.nodes[node].damaged = self.plan.promise == Promise::PowerCuts || self.plan.promise == Promise::Nothing;
    }

    fn loses_power(&mut self, node: usize) {
        self.note(&format!("{} loses power", node + 1));
        self.counts.power_cuts += 1;
        let session = self.session_of(node);
        drop(self.nodes[node].running.take());
        let images = self.nodes[node].fs.images(5, self.random.next());
        let image = usize::try_from(self.random.below(images.len() as u64)).expect("an index");
        self.nodes[node].fs = images.into_iter().nth(image).expect("there is one");
        if let Some(session) = session {
            self.goes_down(node, session, false);
        }
    }

    /// All lose power at the same moment, those too whose process does not run: what they have not synced is gone.
    pub(super) fn power_cut_of_all(&mut self) {
        self.counts.power_cuts_of_all += 1;
        for node in 0..NODES {
            self.loses_power(node);
            self.nodes[node].damaged = true;
        }
        let members = self.store.state.as_ref().map_or_else(Vec::new, |state| state.value.isr.clone());
        let disks: Vec<_> = self.nodes.iter().filter(|node| members.contains(&node.id)).collect();
        let left: Vec<_> = disks.iter().map(|node| node.on_disk(&self.plan, &mut Truth::default())).collect();
        let struck = self.truth.strike_what_none_holds(&left);
        if struck > 0 {
            self.note(&format!("{struck} records are on no disk any more"));
            self.counts.struck += struck;
            self.struck = true;
            self.consumer.forget_above(self.truth.committed_below());
        }
    }

    /// Whether a committed in-sync replica other than this one lives with all its data, and will still count as in sync
    /// when this one is gone: without one, what is acknowledged may be on this broker alone.
    pub(super) fn another_is_whole(&self, node: usize) -> bool {
        let Some(state) = &self.store.state else { return true };
        let whole = |(other, broker): (usize, &Node)| {
            other != node
                && state.value.is_whole(broker.id)
                && self.store.live.contains_key(&broker.id)
                && broker.running.is_some()
                && !broker.damaged
        };
        self.nodes.iter().enumerate().any(whole)
    }

    pub(super) fn goes_down(&mut self, node: usize, session: BrokerEpoch, clean: bool) {
        self.nodes[node].life += 1;
        self.nodes[node].stopped_clean = clean;
        if clean {
            self.session_ends(node, session);
        } else {
            let after = self.random.between(20, SESSION_MS);
            self.schedule(after, node, Event::SessionEnds(session));
        }
        let after = self.random.between(5, 400);
        self.schedule(after, node, Event::Boots);
    }

    pub(super) fn cut_off(&mut self, node: usize, until: i64) {
        let until = until.max(self.nodes[node].cut_off_until);
        self.nodes[node].cut_off_until = until;
        self.note(&format!("{} is cut off from the store until {}", node + 1, until - EPOCH_MS));
        if until - self.now > SESSION_MS
            && let Some(session) = self.session_of(node).filter(|_| self.may_fail(node))
        {
            self.schedule(SESSION_MS, node, Event::SessionExpires(session));
        }
    }

    pub(super) fn session_ends(&mut self, node: usize, session: BrokerEpoch) {
        if self.store.live.get(&self.nodes[node].id) != Some(&session) {
            return;
        }
        self.store.forget(self.nodes[node].id);
        self.note(&format!("the session of {} ends", node + 1));
        self.store_changed();
        if self.session_of(node) == Some(session) {
            let after = self.random.between(1, 100).max(self.nodes[node].cut_off_until - self.now);
            self.schedule(after, node, Event::SessionLostSeen);
        }
    }

    /// What a broker does before it registers.
    pub(super) fn boot(&mut self, node: usize) {
        if self.nodes[node].running.is_some() {
            return;
        }
        self.mark_if_unclean(node);
        let after = self.random.between(1, 40);
        self.schedule(after, node, Event::Starts);
    }

    pub(super) fn start(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life || self.nodes[node].running.is_some() {
            return;
        }
        // While its former session lived it may have been taken in again for what it fetched then.
        self.mark_if_unclean(node);
        let session = self.store.register(self.nodes[node].id);
        self.nodes[node].start(&self.plan, session);
        self.nodes[node].damaged = false;
        self.note(&format!("{} starts", node + 1));
        self.settle(node);
        self.store_changed();
        self.read_store(node);
        self.schedule(70, node, Event::Housekeeping);
        self.settle(node);
    }

    pub(super) fn mark_if_unclean(&mut self, node: usize) {
        if self.nodes[node].stopped_clean || self.plan.mutant == Some(Mutant::ReturnsAsIfClean) {
            return;
        }
        let Some(stored) = self.store.state.clone() else { return };
        if let Some(state) = return_doubtful(self.nodes[node].id, &stored.value) {
            assert!(self.store.commit(Some(stored.version), state), "nobody else writes meanwhile");
            self.store_changed();
        }
    }
}
