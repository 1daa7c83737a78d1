//! All is well again: whether everything has settled, and what must hold then.

use std::fmt::Write as _;

use highwater_checker::Kind;

use super::*;

impl World {
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.everywhere("all is well from now on");
        self.network.heal();
        self.garbling = (1, 0);
        self.store_down_until = self.store_down_until.min(self.now);
        for node in &mut self.nodes {
            node.paused_until = node.paused_until.min(self.now);
            node.cut_off_until = node.cut_off_until.min(self.now);
            node.late_until = node.late_until.min(self.now);
            node.slow_until = node.slow_until.min(self.now);
            node.clock.drift(self.now, 0);
            node.heal_disk();
        }
        self.assign_all();
    }

    pub(super) fn is_settled(&self) -> bool {
        let Some(state) = &self.store.state else { return false };
        // Where records get lost, the producer's next one is refused for ever: it misses its predecessor.
        let in_doubt = self.in_doubt.is_some() && self.plan.loses_nothing() && !self.struck;
        let moves = self.store.reassignment.is_under_way() || !self.store.leaving.is_empty();
        let settled = state.value.isr.len() == BROKERS
            && state.value.doubtful.is_empty()
            && !state.value.recovering
            && self.store.assignment.len() == BROKERS
            && !moves;
        if !settled || in_doubt {
            return false;
        }
        let mut ends = BTreeSet::new();
        for node in &self.nodes {
            let Some(running) = &node.running else { return false };
            if running.topic != self.store.topic || node.rotten.is_some() {
                return false;
            }
            let status = running.partition.status();
            let is_open = running.partition.log().fence().is_none();
            if status.role == Role::Offline || !is_open || status.version != state.version {
                return false;
            }
            ends.extend([status.log_end, status.high_watermark]);
        }
        ends.len() == 1
    }

    pub(super) fn check_end(&mut self) {
        let mut stored = Vec::new();
        let start = self.nodes.iter().map(|node| node.running.as_ref().expect("it runs").mirror.start).max();
        let start = start.expect("three nodes");
        for node in &mut self.nodes {
            let running = node.running.as_mut().expect("it runs");
            // Everything is read again, from the files.
            running.mirror.forget(running.partition.log().start().0);
            running.mirror.follow(&running.partition, None, &mut self.truth);
            stored.push((start..running.mirror.end()).map(|offset| running.mirror.at(offset)).collect::<Vec<_>>());
        }
        assert!(stored.windows(2).all(|pair| pair[0] == pair[1]), "the logs differ at the end");
        if !self.plan.loses_nothing() {
            return;
        }
        for node in &self.nodes {
            let running = node.running.as_ref().expect("it runs");
            self.truth.holds_everything(&format!("broker {}", node.id), &running.mirror);
        }
        assert!(self.truth.committed_below() <= stored[0].len() as i64 + start, "committed records are gone");
        self.close_ledger();
        if self.struck {
            return;
        }
        self.check_history(start);
        // The idempotent producer's records are there once each and in order.
        let numbers = stored[0].iter().flatten().filter(|entry| entry.payload >> 63 == 1);
        let numbers: Vec<u64> = numbers.map(|entry| entry.payload & !(1 << 63)).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "not once each and in order: {numbers:?}");
        // With retention the last ones may be gone by age, behind others.
        if start == 0 || !numbers.is_empty() {
            let last = numbers.last().map_or(self.first_sequence, |last| last + 1);
            assert_eq!(last, self.sequence, "the last ones are missing");
        }
    }

    /// What the clients saw, with somebody who reads all that is left at the end.
    fn check_history(&mut self, start: i64) {
        let mut history = std::mem::take(&mut self.history);
        let mirror = &self.nodes[0].running.as_ref().expect("it runs").mirror;
        for offset in start..mirror.end() {
            let payload = Payload(mirror.at(offset).expect("a record at each offset").payload);
            history.push(Seen::Read { client: Client(u32::MAX), offset, payload });
        }
        history.push(Seen::Start { offset: start });
        let mut anomalies = highwater_checker::check(&history);
        // A replica that came to know the log when a record was gone by age does not know its producer's number: a repetition
        // is a new record to it. That needs retention to be quicker than the retry.
        anomalies.retain(|anomaly| {
            let by_age = anomaly.events.iter().any(|event| match history[*event] {
                Seen::Acked { offset, .. } | Seen::Read { offset, .. } => offset < start,
                _ => false,
            });
            !matches!(anomaly.kind, Kind::Duplicate | Kind::Reordered) || !by_age
        });
        if let Some(first) = anomalies.first() {
            panic!("clients saw {} anomalies, first {}", anomalies.len(), first.explain(&history));
        }
    }

    pub(super) fn situation(&self) -> String {
        let mut text = format!("store {:?} live {:?} in doubt {:?}", self.store.state, self.store.live, self.in_doubt);
        for node in &self.nodes {
            let status = node.running.as_ref().map(|running| running.partition.status());
            write!(text, "\n  {}: {status:?}", node.id).expect("a string");
        }
        text
    }
}
