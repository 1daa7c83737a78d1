//! Who dies and how it comes back, as far as the promise allows it.

use highwater_replication::return_doubtful;

use super::super::node::Node;
use super::{Cluster, Message, Promise};

impl Cluster {
    /// Without syncs only one broker at a time may be down or damaged.
    pub(super) fn may_fail(&self, at: usize) -> bool {
        let whole = |node: &Node| {
            let sound = self.live.contains_key(&node.id) && node.dies.is_none();
            node.running.is_some() && !node.damaged && sound
        };
        self.settings.promise != Promise::PowerCuts
            || self.nodes.iter().enumerate().all(|(other, node)| other == at || whole(node))
    }

    /// Whether what it has not synced may be lost: without syncs another member of the in-sync set has to be whole, also of
    /// the set that it has proposed. What is on its way to the store at its death may be written yet.
    pub(super) fn may_lose_power(&self, at: usize) -> bool {
        let proposed = self.wire.iter().filter_map(|message| match message {
            Message::Proposal { by, proposal, .. } if *by == at => Some(&proposal.state),
            _ => None,
        });
        let sets: Vec<_> = proposed.chain([&self.state.value]).collect();
        let whole = |(other, node): (usize, &Node)| {
            let lives = self.live.contains_key(&node.id) && node.running.is_some();
            other != at && lives && sets.iter().all(|state| state.is_whole(node.id)) && !node.damaged
        };
        match self.settings.promise {
            Promise::Kills => false,
            Promise::SyncedPowerCuts | Promise::Nothing => true,
            Promise::PowerCuts => self.nodes.iter().enumerate().any(whole),
        }
    }

    pub(in super::super) fn kill(&mut self, at: usize) {
        if self.nodes[at].running.is_some() && self.may_fail(at) {
            drop(self.nodes[at].ends(false));
            self.nodes[at].fs = self.nodes[at].fs.kill();
        }
    }

    pub(in super::super) fn stop(&mut self, at: usize) {
        if self.nodes[at].running.is_none() || self.nodes[at].dies.is_some() || !self.may_fail(at) {
            return;
        }
        let Some(running) = self.nodes[at].ends(true) else { return };
        self.nodes[at].checkpointed = Some(running.partition.status().high_watermark);
        running.partition.close().expect("the simulated disk works");
        self.nodes[at].fs = self.nodes[at].fs.kill();
        self.live.remove(&self.nodes[at].id);
        self.ends.remove(&self.nodes[at].id);
    }

    pub(in super::super) fn cut_power(&mut self, at: usize, choice: u8) {
        if self.nodes[at].running.is_some() && self.may_fail(at) && self.may_lose_power(at) {
            self.loses_power(at, choice);
        }
    }

    fn loses_power(&mut self, at: usize, choice: u8) {
        drop(self.nodes[at].ends(false));
        self.nodes[at].fs = self.nodes[at].left_after(choice);
        self.nodes[at].damaged = self.settings.promise != Promise::SyncedPowerCuts;
    }

    /// Has it die within a call, after so many more that change something.
    pub(in super::super) fn die_in_call(&mut self, at: usize, calls: u64, power: Option<u8>) {
        if self.nodes[at].running.is_some() && self.may_fail(at) {
            self.nodes[at].fs.crash_after(calls);
            self.nodes[at].dies = Some(power.filter(|_| self.may_lose_power(at)));
        }
    }

    /// Whether it has died in the call that was just made. Of what it wanted next nothing happens.
    pub(super) fn has_died(&mut self, at: usize) -> bool {
        if !self.nodes[at].fs.crashed() {
            return false;
        }
        match self.nodes[at].dies.flatten() {
            Some(choice) if self.may_lose_power(at) => self.loses_power(at, choice),
            _ => {
                drop(self.nodes[at].ends(false));
                self.nodes[at].fs = self.nodes[at].fs.kill();
            }
        }
        true
    }

    /// A broker that is down starts, with its clock changed; one that stopped uncleanly marks itself first.
    pub(in super::super) fn boot(&mut self, at: usize, clock_ms: i64) {
        if self.nodes[at].running.is_some() {
            return;
        }
        let marked = return_doubtful(self.nodes[at].id, &self.state.value).filter(|_| !self.nodes[at].stopped_clean);
        if let Some(state) = marked {
            self.write(state);
        }
        self.nodes[at].ahead_ms += clock_ms;
        self.register(at);
        self.start(at);
    }

    pub(super) fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let session = self.live[&node.id];
        node.start(self.settings.replica(node.id, session), self.settings.log());
        node.damaged = false;
        let start = node.running.as_ref().map_or(0, |running| running.partition.log().start().0);
        if start <= std::mem::take(&mut node.may_have_deleted_below) {
            self.truth.deleted_below = self.truth.deleted_below.max(start);
        }
        self.look(at);
    }
}
