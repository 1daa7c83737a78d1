//! What goes wrong, and how brokers come back.

use highwater_replication::BrokerEpoch;
use highwater_storage::sim::after_power_cut;

use super::plan::{Struck, struck};
use super::*;
use crate::fault::{CLIENTS, What, Whom};

impl World {
    pub(super) fn fail(&mut self, fault: Fault) {
        if self.healed {
            return;
        }
        if self.trace.is_some() {
            let text = format!("FAULT {}", fault.to_string().trim_start());
            self.everywhere(&text);
        }
        let at = struck(fault);
        let whose = |world: &Self, whom| match whom {
            Whom::Broker(node) => Some(node),
            Whom::Leader => world.store.leader(at),
        };
        let until = |ms: i64| self.now + ms;
        match fault.what {
            What::Cut { from, to, ms } => self.network.cut(from, to, until(ms)),
            What::Split { one, other, ms } => {
                self.network.cut(one, other, until(ms));
                self.network.cut(other, one, until(ms));
            }
            What::StoreDown { ms } => {
                self.counts.store_down += 1;
                self.store_down_until = until(ms);
            }
            What::Loss { one_in, ms } => self.network.lose(one_in, until(ms)),
            What::Slowness { ms } => self.network.slow(until(ms)),
            What::ClockStep { broker, by_ms } => self.nodes[broker].clock_step += by_ms,
            What::ClockDrift { broker, per_mille, .. } => self.nodes[broker].clock.drift(self.now, per_mille),
            What::NewController => self.new_controller(),
            What::MoveLeader { to } => self.move_leader(at, to),
            What::ClientDies { which } => self.client_dies(which),
            What::Stop { whom, .. }
            | What::PowerCut { whom, .. }
            | What::CrashInCall { whom, .. }
            | What::Pause { whom, .. }
            | What::Isolate { whom, .. }
            | What::CutOff { whom, .. }
            | What::SessionEnds { whom }
            | What::LateWatches { whom, .. }
            | What::ClockJump { whom, .. }
            | What::SlowDisk { whom, .. } => {
                if let Some(node) = whose(self, whom) {
                    self.fail_at(node, fault.what);
                }
            }
            other => panic!("not in this world: {other:?}"),
        }
    }

    fn fail_at(&mut self, node: usize, what: What) {
        let until = |ms: i64| self.now + ms;
        match what {
            What::Stop { clean, .. } => self.stop(node, clean),
            What::PowerCut { image, .. } => self.loses_power(node, image),
            What::CrashInCall { calls, power, .. } => {
                self.nodes[node].fs.crash_after(calls);
                self.nodes[node].dies_with_power = power;
                self.schedule(400, node, Event::DiskHeals);
            }
            What::Pause { ms, .. } => {
                self.nodes[node].paused_until = until(ms);
                // The store does not hear from it either.
                self.cut_off(node, until(ms));
            }
            What::Isolate { ms, .. } => {
                for other in (0..=CLIENTS).filter(|other| *other != node) {
                    self.network.cut(node, other, until(ms));
                    self.network.cut(other, node, until(ms));
                }
            }
            What::CutOff { ms, .. } => self.cut_off(node, until(ms)),
            What::SessionEnds { .. } => {
                if let Some(session) = self.session_of(node).filter(|_| self.in_touch(node)) {
                    self.session_ends(node, session);
                }
            }
            What::LateWatches { ms, .. } => self.nodes[node].late_until = until(ms),
            What::ClockJump { by_ms, .. } => self.nodes[node].clock.step(by_ms),
            What::SlowDisk { ms, .. } => self.nodes[node].slow_until = until(ms),
            other => panic!("not of a broker: {other:?}"),
        }
    }

    fn client_dies(&mut self, which: usize) {
        if which >= self.members.len() {
            return;
        }
        if self.chance.one_in(3) && self.members[which].is_in_group() {
            self.leaves(which);
        }
        self.counts.clients_died += 1;
        note!(self, CLIENTS, "member {which} dies");
        self.members[which].reborn();
        self.members[which].rests_until = self.now + self.chance.between(1, 200);
    }

    fn stop(&mut self, node: usize, clean: bool) {
        let Some(running) = self.nodes[node].running.take() else { return };
        let session = running.session;
        self.counts.kills += u64::from(!clean);
        note!(self, node, "stops{}", if clean { " cleanly" } else { "" });
        for (at, replica) in running.replicas.into_iter().enumerate() {
            let high_watermark = replica.partition.status().high_watermark;
            if clean && replica.partition.close().is_ok() {
                self.nodes[node].checkpointed[at] = Some(high_watermark);
            }
        }
        let power = self.nodes[node].dies_with_power.filter(|_| self.nodes[node].fs.crashed());
        self.nodes[node].fs = match power {
            Some(image) => after_power_cut(&self.nodes[node].fs, image),
            None => self.nodes[node].fs.kill(),
        };
        self.goes_down(node, session, clean);
    }

    fn loses_power(&mut self, node: usize, image: u64) {
        let Some(running) = self.nodes[node].running.take() else { return };
        note!(self, node, "loses power");
        self.counts.power_cuts += 1;
        let session = running.session;
        drop(running);
        self.nodes[node].fs = after_power_cut(&self.nodes[node].fs, image);
        self.goes_down(node, session, false);
    }

    /// Looks whether a broker died within a call that was just made. Of what it wanted next nothing happens.
    pub(super) fn has_crashed(&mut self, node: usize) -> bool {
        if !self.nodes[node].fs.crashed() {
            return false;
        }
        if self.nodes[node].running.is_some() {
            self.counts.crashes_in_calls += 1;
            self.stop(node, false);
            // It was no kill.
            self.counts.kills -= 1;
        }
        true
    }

    /// Between two steps of a broker. Whether it ends here, as an enumerated run has it.
    pub(super) fn boundary(&mut self, node: usize) -> bool {
        let Some(running) = &self.nodes[node].running else { return true };
        let Some(strike) = self.strike else { return false };
        let which = match strike.whom {
            Struck::Groups => OFFSETS,
            Struck::Transactions => TRANSACTIONS,
        };
        if !running.drivers[which].as_ref().is_some_and(driver::Driver::serves) {
            return false;
        }
        self.boundaries += 1;
        if self.boundaries != strike.boundary + 1 {
            return false;
        }
        self.stop(node, false);
        true
    }

    fn goes_down(&mut self, node: usize, session: BrokerEpoch, clean: bool) {
        let now = self.now;
        let broker = &mut self.nodes[node];
        broker.life += 1;
        broker.dies_with_power = None;
        broker.clock.drift(now, 0);
        let (ends_ms, boots_ms) = (broker.random.between(20, cluster::SESSION_MS), broker.random.between(5, 400));
        // A goodbye that the store does not hear is none.
        if clean && self.in_touch(node) {
            self.session_ends(node, session);
        } else {
            self.schedule(ends_ms, node, Event::SessionEnds(session));
        }
        if let Some(trace) = &mut self.trace {
            trace.runs(node, false);
        }
        self.schedule(boots_ms, node, Event::Boots);
    }

    fn cut_off(&mut self, node: usize, until: i64) {
        let until = until.max(self.nodes[node].cut_off_until);
        self.nodes[node].cut_off_until = until;
        if let Some(session) = self.session_of(node).filter(|_| until - self.now > cluster::SESSION_MS) {
            self.schedule(cluster::SESSION_MS, node, Event::SessionExpires(session));
        }
    }

    pub(super) fn boot(&mut self, node: usize) {
        if self.nodes[node].running.is_none() {
            let after_ms = if self.in_touch(node) { self.nodes[node].random.between(1, 40) } else { 30 };
            let event = if self.in_touch(node) { Event::Starts } else { Event::Boots };
            self.schedule(after_ms, node, event);
        }
    }

    pub(super) fn start(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life || self.nodes[node].running.is_some() {
            return;
        }
        if !self.in_touch(node) {
            return self.schedule(30, node, Event::Starts);
        }
        let step = std::mem::take(&mut self.nodes[node].clock_step);
        self.nodes[node].clock.step(step);
        self.nodes[node].fs.set_now(self.nodes[node].time(self.now));
        let session = self.new_session(node);
        if let Err(error) = self.nodes[node].start(&self.scheme, session) {
            assert!(self.nodes[node].fs.crashed(), "a log does not open on a good disk: {error}");
            self.nodes[node].fs = self.nodes[node].fs.kill();
            return self.goes_down(node, session, false);
        }
        if let Some(trace) = &mut self.trace {
            trace.runs(node, true);
            trace.at(self.now - EPOCH_MS, node, format!("starts, session {session}"));
        }
        self.settle(node);
        self.has_registered(node);
        self.schedule(70, node, Event::Housekeeping);
        self.settle(node);
        self.has_crashed(node);
    }

    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.everywhere("all is well from now on");
        self.network.heal();
        self.store_down_until = self.store_down_until.min(self.now);
        for node in &mut self.nodes {
            node.paused_until = node.paused_until.min(self.now);
            node.cut_off_until = node.cut_off_until.min(self.now);
            node.late_until = node.late_until.min(self.now);
            node.slow_until = node.slow_until.min(self.now);
            node.clock.drift(self.now, 0);
            node.fs.crash_after(u64::MAX);
        }
        self.schedule(1, NOBODY, Event::Looks);
    }
}
