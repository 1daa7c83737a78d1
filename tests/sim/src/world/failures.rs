//! What goes wrong, within what the run's promise allows, and how brokers come back.

use super::*;
use crate::node::Running;

/// How often a fetch of a former life comes while its broker catches up.
const LATE_COPIES: u64 = 4;

impl World {
    pub(super) fn fail(&mut self, fault: Fault) {
        if self.healed {
            return;
        }
        if self.trace.is_some() {
            let text = format!("FAULT {}", fault.to_string().trim_start());
            self.everywhere(&text);
        }
        let until = |ms: i64| self.now + ms;
        match fault.what {
            What::Stop { whom, clean } => self.with(whom, |world, node| world.stop(node, clean)),
            What::PowerCut { whom, image } => self.with(whom, |world, node| world.power_cut(node, image)),
            What::PowerCutOfAll { image } => self.power_cut_of_all(image),
            What::DiskLost { whom } => self.with(whom, Self::loses_disk),
            What::CrashInCall { whom, calls, power } => {
                self.with(whom, |world, node| world.may_die_in_call(node, calls, power));
            }
            What::Pause { whom, ms } => self.with(whom, |world, node| world.pause(node, ms)),
            What::Cut { from, to, ms } => self.network.cut(from, to, until(ms)),
            What::Split { one, other, ms } => {
                self.network.cut(one, other, until(ms));
                self.network.cut(other, one, until(ms));
            }
            What::Isolate { whom, ms } => self.with(whom, |world, node| {
                for other in (0..=CLIENTS).filter(|other| *other != node) {
                    world.network.cut(node, other, world.now + ms);
                    world.network.cut(other, node, world.now + ms);
                }
            }),
            What::CutOff { whom, ms } => self.with(whom, |world, node| world.cut_off(node, world.now + ms)),
            What::StoreDown { ms } => {
                self.counts.store_down += 1;
                self.store_down_until = until(ms);
            }
            What::SessionEnds { whom } => self.with(whom, |world, node| {
                if let Some(session) = world.session_of(node).filter(|_| world.may_fail(node) && world.in_touch(node)) {
                    world.session_ends(node, session);
                }
            }),
            What::LateWatches { whom, ms } => {
                self.with(whom, |world, node| world.nodes[node].late_until = world.now + ms);
            }
            What::Loss { one_in, ms } => self.network.lose(one_in, until(ms)),
            What::Doubling { one_in, ms } => self.network.double(one_in, until(ms)),
            What::Garbling { one_in, ms } => self.garbling = (one_in, until(ms)),
            What::Slowness { ms } => self.network.slow(until(ms)),
            What::ClockJump { whom, by_ms } => self.with(whom, |world, node| {
                world.nodes[node].clock.step(by_ms);
                world.arm(node);
            }),
            What::ClockStep { broker, by_ms } => self.nodes[broker].clock_step += by_ms,
            What::ClockDrift { broker, per_mille, .. } => self.nodes[broker].clock.drift(self.now, per_mille),
            What::DiskFails { whom, call, nth, fault } => self.with(whom, |world, node| {
                if world.may_fail(node) && !world.nodes[node].disk_fails {
                    world.nodes[node].fs.inject(fault, call, nth);
                    world.disk_fails(node, 400);
                }
            }),
            What::DiskFull { whom, room, ms } => self.with(whom, |world, node| {
                if world.may_fail(node) {
                    world.nodes[node].fill_disk(room);
                    world.disk_fails(node, ms);
                }
            }),
            What::SlowDisk { whom, ms } => {
                self.with(whom, |world, node| world.nodes[node].slow_until = world.now + ms);
            }
            What::NewController => self.new_controller(),
            What::MoveLeader { to } => self.move_leader(to),
            What::Elect { unclean } => self.elect(unclean),
            What::Reassign { target: number } => self.reassign(&target(number)),
            What::CancelReassignment => self.cancel_reassignment(),
            What::Leave { whom } => self.with(whom, Self::leave),
            What::MakeAgain => self.make_again(),
            // These clients have nothing to lose.
            What::ClientDies { .. } => {}
            What::Rot { whom, draw } => self.with(whom, |world, node| world.rot(node, draw)),
            What::Configure { draw } => {
                self.counts.configured += 1;
                self.plan.change(&mut Random::new(draw));
                for node in 0..BROKERS {
                    let after = self.hears_after(node);
                    self.schedule(after, node, Event::Configured);
                }
            }
        }
    }

    fn with(&mut self, whom: Whom, act: impl FnOnce(&mut Self, usize)) {
        let leader = self.store.state.as_ref().and_then(|state| state.value.leader);
        match (whom, leader) {
            (Whom::Broker(node), _) => act(self, node),
            (Whom::Leader, Some(leader)) => act(self, usize::try_from(leader.0 - 1).expect("a broker")),
            (Whom::Leader, None) => {}
        }
    }

    pub(super) fn leads(&self, node: usize) -> bool {
        self.store.state.as_ref().is_some_and(|state| state.value.leader == Some(self.nodes[node].id))
    }

    pub(super) fn session_of(&self, node: usize) -> Option<BrokerEpoch> {
        self.nodes[node].running.as_ref().map(|running| running.session)
    }

    /// Without syncs only one broker at a time may be down or damaged; see [`Promise::PowerCuts`].
    pub(super) fn may_fail(&self, node: usize) -> bool {
        let whole = |other: &Node| {
            // Who is cut off from the store may lose its session at any moment, and who has a bad disk its log.
            let sound = self.store.live.contains_key(&other.id) && other.cut_off_until <= self.now && !other.disk_fails;
            let sound = sound && !self.store.leaving.contains(&other.id);
            other.running.is_some() && !other.damaged && sound
        };
        self.plan.promise != Promise::PowerCuts
            || self.nodes.iter().enumerate().all(|(other, broker)| other == node || whole(broker))
    }

    pub(super) fn stop(&mut self, node: usize, clean: bool) {
        if self.nodes[node].running.is_none() || !self.may_fail(node) || !self.cell_lets_stop(node) {
            return;
        }
        self.note_failure(node);
        let session = self.session_of(node).expect("it runs");
        let running = self.ends_at_work(node).expect("it runs");
        let mut clean = clean;
        if clean {
            let high_watermark = running.partition.status().high_watermark;
            clean = running.partition.close().is_ok();
            assert!(clean || self.nodes[node].has_bad_disk(), "a log does not close on a disk that does not fail");
            if clean {
                self.nodes[node].checkpointed = Some(high_watermark);
            }
        }
        self.counts.kills += u64::from(!clean);
        note!(self, node, "stops{}", if clean { " cleanly" } else { "" });
        self.nodes[node].fs = self.nodes[node].fs.kill();
        self.goes_down(node, Some(session), clean);
    }

    fn power_cut(&mut self, node: usize, image: u64) {
        if self.nodes[node].running.is_some() && self.may_fail(node) && self.may_lose_power(node) {
            self.note_failure(node);
            self.loses_power(node, image);
            self.strike_if_alone(node);
        }
    }

    fn loses_disk(&mut self, node: usize) {
        if self.nodes[node].running.is_none() || !self.may_fail(node) || !self.may_lose_power(node) {
            return;
        }
        note!(self, node, "loses its disk");
        self.counts.disks_lost += 1;
        self.note_failure(node);
        let session = self.session_of(node);
        drop(self.ends_at_work(node));
        let broker = &mut self.nodes[node];
        broker.fs = SimFs::new(broker.random.draw());
        (broker.checkpointed, broker.rotten) = (None, None);
        broker.damaged = true;
        self.goes_down(node, session, false);
        self.strike_if_alone(node);
    }

    /// Whether what it has not synced may be lost.
    fn may_lose_power(&self, node: usize) -> bool {
        match self.plan.promise {
            Promise::Kills | Promise::PowerCutsOfAll => false,
            Promise::SyncedPowerCuts | Promise::Nothing => true,
            Promise::PowerCuts => self.another_is_whole(node) || self.may_hit_alone(node),
        }
    }

    fn loses_power(&mut self, node: usize, image: u64) {
        note!(self, node, "loses power");
        self.counts.power_cuts += 1;
        let session = self.session_of(node);
        drop(self.ends_at_work(node));
        self.nodes[node].fs = self.left_after(node, image);
        self.nodes[node].damaged = self.plan.promise != Promise::SyncedPowerCuts;
        if session.is_some() {
            self.goes_down(node, session, false);
        }
    }

    /// What a power cut leaves on a disk.
    fn left_after(&self, node: usize, image: u64) -> SimFs {
        after_power_cut(&self.nodes[node].fs, image)
    }

    /// All lose power at the same moment, those too whose process does not run: what they have not synced is gone.
    fn power_cut_of_all(&mut self, image: u64) {
        self.counts.power_cuts_of_all += 1;
        for node in 0..BROKERS {
            self.loses_power(node, Random::mix(image ^ node as u64));
        }
        self.strike();
    }

    /// All in-sync replicas were hit. What none of their disks holds is lost.
    pub(super) fn strike(&mut self) {
        let members = self.store.state.as_ref().map_or_else(Vec::new, |state| state.value.isr.clone());
        let disks: Vec<_> = self.nodes.iter().filter(|node| members.contains(&node.id)).collect();
        let topic = self.store.topic;
        let left: Vec<_> = disks.iter().map(|node| node.on_disk(&self.plan, topic, &mut Truth::default())).collect();
        let struck = self.truth.strike_what_none_holds(&left);
        if let Some(ledger) = &mut self.ledger {
            ledger.is_left(&left);
        }
        if struck > 0 {
            let text = format!("{struck} records are on no disk any more");
            self.everywhere(&text);
            self.counts.struck += struck;
            self.struck = true;
            self.consumer.forget_above(self.truth.committed_below());
        }
    }

    /// Whether a committed in-sync replica other than this one lives with all its data, and will still count as in sync
    /// when this one is gone: without one, what is acknowledged may be on this broker alone.
    fn another_is_whole(&self, node: usize) -> bool {
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

    fn goes_down(&mut self, node: usize, session: Option<BrokerEpoch>, clean: bool) {
        let now = self.now;
        let broker = &mut self.nodes[node];
        broker.life += 1;
        broker.stopped_clean = clean;
        broker.dies_with_power = None;
        broker.clock.drift(now, 0);
        let (ends, boots) = (broker.random.between(20, SESSION_MS), broker.random.between(5, 400));
        if let Some(trace) = &mut self.trace {
            trace.runs(node, false);
        }
        match session {
            // A goodbye that the store does not hear is none.
            Some(session) if clean && self.in_touch(node) => self.session_ends(node, session),
            Some(session) => self.schedule(ends, node, Event::SessionEnds(session)),
            None => {}
        }
        self.schedule(boots, node, Event::Boots);
    }

    fn pause(&mut self, node: usize, ms: i64) {
        let until = self.now + ms;
        self.nodes[node].paused_until = until;
        // The store does not hear from it either.
        self.cut_off(node, until);
    }

    fn cut_off(&mut self, node: usize, until: i64) {
        let long = until - self.now > SESSION_MS;
        if long && !self.may_fail(node) {
            // Its session would end, which may not be now.
            return self.cut_off(node, self.now + SESSION_MS / 2);
        }
        let until = until.max(self.nodes[node].cut_off_until);
        self.nodes[node].cut_off_until = until;
        if let Some(session) = self.session_of(node).filter(|_| long) {
            self.counts.leaders_asleep += u64::from(self.leads(node));
            self.schedule(SESSION_MS, node, Event::SessionExpires(session));
        }
    }

    pub(super) fn session_ends(&mut self, node: usize, session: BrokerEpoch) {
        if self.store.live.get(&self.nodes[node].id) != Some(&session) {
            return;
        }
        self.note_failure(node);
        self.store.forget(self.nodes[node].id);
        note!(self, STORE, "the session of broker {} ends", node + 1);
        self.store_changed();
        if self.session_of(node) == Some(session) {
            let hears = self.nodes[node].random.between(1, 100);
            let after = hears.max(self.nodes[node].cut_off_until - self.now);
            self.schedule(after, node, Event::SessionLostSeen);
        }
    }

    /// What a broker does before it registers.
    pub(super) fn boot(&mut self, node: usize) {
        if self.nodes[node].running.is_some() {
            return;
        }
        if !self.in_touch(node) {
            return self.schedule(30, node, Event::Boots);
        }
        self.mark_if_unclean(node);
        let after = self.nodes[node].random.between(1, 40);
        self.schedule(after, node, Event::Starts);
    }

    pub(super) fn start(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life || self.nodes[node].running.is_some() {
            return;
        }
        if !self.in_touch(node) {
            return self.schedule(30, node, Event::Starts);
        }
        // While its former session lived it may have been taken in again for what it fetched then.
        self.mark_if_unclean(node);
        let step = std::mem::take(&mut self.nodes[node].clock_step);
        self.nodes[node].clock.step(step);
        self.nodes[node].fs.set_now(self.time(node));
        let session = self.store.register(self.nodes[node].id);
        if let Err(error) = self.nodes[node].start(&self.plan, session, &self.store.image()) {
            return self.fails_to_start(node, session, &error);
        }
        self.look_at_rot(node);
        let broker = &mut self.nodes[node];
        broker.damaged = false;
        let (start, end) = broker.running.as_ref().map_or((0, 0), |running| {
            let log = running.partition.log();
            (log.start().0, log.end().0)
        });
        let former = broker.former_fetch.take().filter(|fetch| fetch.plan.from.0 > end);
        let may_have_deleted_below = std::mem::take(&mut broker.may_have_deleted_below);
        if start <= may_have_deleted_below {
            self.truth.deleted(start);
        }
        if let Some(fetch) = former {
            self.comes_late(fetch);
        }
        if let Some(trace) = &mut self.trace {
            trace.runs(node, true);
            trace.at(self.now - EPOCH_MS, node, format!("starts, session {session}"));
        }
        self.settle(node);
        self.store_changed();
        self.read_store(node);
        self.schedule(70, node, Event::Housekeeping);
        if !self.has_crashed(node) {
            self.settle(node);
        }
    }

    /// What a broker sent before it died comes again, and speaks of records that it lost with its power: a leader stood still with
    /// that in its sockets, or the network kept it. By chance alone a message is hardly ever so late, and no run would meet it.
    fn comes_late(&mut self, fetch: FetchId) {
        if self.healed {
            return;
        }
        let leader = usize::try_from(fetch.plan.leader.0 - 1).expect("a broker");
        self.counts.former_fetches += 1;
        let mut after = 0;
        for _ in 0..LATE_COPIES {
            after += self.former_lives.between(1, 20);
            self.schedule(after, leader, Event::FetchArrives(fetch));
        }
    }

    pub(super) fn fails_to_start(&mut self, node: usize, session: BrokerEpoch, error: &str) {
        assert!(self.nodes[node].has_bad_disk(), "a log does not open on a good disk: {error}");
        self.counts.starts_failed += 1;
        note!(self, node, "its log does not open: {error}");
        let mount = !self.nodes[node].fs.crashed();
        self.dies(node, Some(session));
        if mount {
            self.mounts_again(node);
        }
    }

    fn mark_if_unclean(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let counts = self.nodes[node].stopped_clean || self.plan.mutant == Some(Mutant::ReturnsAsIfClean);
        if counts || !self.store.assignment.contains(&id) {
            return;
        }
        let Some(stored) = self.store.state.clone() else { return };
        if let Some(state) = return_doubtful(self.nodes[node].id, &stored.value) {
            assert!(self.store.commit(Some(stored.version), state), "nobody else writes meanwhile");
            self.store_changed();
        }
    }

    // Disks.

    /// A broker's disk fails in some way, until somebody has seen to it.
    fn disk_fails(&mut self, node: usize, for_ms: i64) {
        self.nodes[node].disk_fails = true;
        self.nodes[node].disk_failed = true;
        self.schedule(for_ms, node, Event::DiskHeals);
    }

    fn may_die_in_call(&mut self, node: usize, calls: u64, power: Option<u64>) {
        // Between a sync that fails and the note of it nobody else would know of it.
        if !self.may_fail(node) || self.nodes[node].disk_fails {
            return;
        }
        let power = power.filter(|_| self.may_lose_power(node));
        self.nodes[node].fs.crash_after(calls);
        self.nodes[node].dies_with_power = power;
        self.disk_fails(node, 400);
    }

    /// Looks whether a broker died within a call that was just made. Of what it wanted next nothing happens.
    pub(super) fn has_crashed(&mut self, node: usize) -> bool {
        if !self.nodes[node].fs.crashed() {
            return false;
        }
        let session = self.session_of(node);
        self.dies(node, session);
        true
    }

    fn dies(&mut self, node: usize, session: Option<BrokerEpoch>) {
        let crashed = self.nodes[node].fs.crashed();
        drop(self.ends_at_work(node));
        self.counts.crashes_in_calls += u64::from(crashed);
        let power = self.nodes[node].dies_with_power.filter(|_| crashed && self.may_lose_power(node));
        note!(self, node, "dies{}", if power.is_some() { " with the power, within a call" } else { "" });
        match power {
            Some(image) => {
                self.nodes[node].fs = self.left_after(node, image);
                self.nodes[node].damaged = self.plan.promise != Promise::SyncedPowerCuts;
            }
            None => self.nodes[node].fs = self.nodes[node].fs.kill(),
        }
        self.goes_down(node, session, false);
    }

    /// A log has closed itself: another replica is to lead, until somebody starts this broker again.
    pub(super) fn log_failed(&mut self, node: usize, reason: &str) {
        if self.nodes[node].fs.crashed() {
            return; // It is not there to tell anybody.
        }
        assert!(self.nodes[node].has_bad_disk(), "broker {} closed its log: {reason}", node + 1);
        note!(self, node, "closes its log: {reason}");
        self.counts.logs_failed += 1;
        let (tells, restarts) = {
            let random = &mut self.nodes[node].random;
            (random.between(1, 40), random.between(50, 300))
        };
        self.schedule(tells, node, Event::FailureArrives);
        let life = self.nodes[node].life;
        self.schedule(restarts, node, Event::Restarts(life));
    }

    /// Somebody repairs the machine of a broker whose log has failed, and starts it again.
    pub(super) fn restart(&mut self, node: usize, life: u32) {
        if self.nodes[node].life != life || self.nodes[node].running.is_none() {
            return;
        }
        let session = self.session_of(node);
        drop(self.ends_at_work(node));
        note!(self, node, "is killed, its machine starts anew");
        self.mounts_again(node);
        self.goes_down(node, session, false);
    }

    /// A process is gone that may have been at work on its disk: retention records a new start before the log knows of it.
    fn ends_at_work(&mut self, node: usize) -> Option<Running> {
        let broker = &mut self.nodes[node];
        let running = broker.running.take()?;
        broker.may_have_deleted_below = running.partition.status().high_watermark.0;
        broker.former_fetch = running.last_fetch;
        Some(running)
    }

    /// A file system whose journal has failed takes no more until it is mounted again.
    fn mounts_again(&mut self, node: usize) {
        self.nodes[node].disk_failed = false;
        self.nodes[node].fs = if self.plan.promise == Promise::SyncedPowerCuts {
            let image = self.nodes[node].random.draw();
            self.left_after(node, image)
        } else {
            // Before that it is taken down in good order, and writes all it has.
            self.nodes[node].fs.sync_everything();
            self.nodes[node].fs.kill()
        };
    }
}
