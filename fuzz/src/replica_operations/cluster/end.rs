//! How a program ends: nothing goes wrong any more, and the replicas must become equal.

use highwater_replication::Role;

use super::{Cluster, IDEMPOTENT, NODES};

impl Cluster {
    /// Nothing goes wrong any more: after some time all are in sync and have the same, and everything that was promised.
    pub(in super::super) fn heal(&mut self) {
        for at in 0..NODES {
            self.nodes[at].fs.crash_after(u64::MAX);
            self.nodes[at].dies = None;
            self.boot(at, 0);
        }
        for _ in 0..60 {
            self.control();
            for _ in 0..200 {
                if self.wire.is_empty() {
                    break;
                }
                let message = self.wire.remove(0);
                self.deliver(message, 1 << 20);
            }
            (0..NODES).for_each(|at| self.look(at));
            self.pass(50);
            if self.is_settled() {
                return self.check_end();
            }
        }
        let statuses: Vec<_> =
            self.nodes.iter().map(|node| node.running.as_ref().map(|running| running.partition.status())).collect();
        panic!("the replicas are not equal long after all is well: {:?} {statuses:#?}", self.state);
    }

    fn is_settled(&self) -> bool {
        let state = &self.state.value;
        let mut ends = Vec::new();
        for node in &self.nodes {
            let Some(running) = &node.running else { return false };
            let status = running.partition.status();
            if status.role == Role::Offline || status.version != self.state.version {
                return false;
            }
            ends.extend([status.log_end, status.high_watermark]);
        }
        ends.dedup();
        ends.len() == 1 && state.isr.len() == NODES && state.doubtful.is_empty() && !state.recovering
    }

    fn check_end(&mut self) {
        let mut mirrors = Vec::new();
        for node in &mut self.nodes {
            let running = node.running.as_mut().expect("it runs");
            // Everything is read again, from the files.
            running.mirror.forget(running.partition.log().start());
            running.mirror.follow(&running.partition, &mut self.truth);
            mirrors.push(running.mirror.clone());
        }
        let start = mirrors.iter().map(|mirror| mirror.start).max().expect("three");
        for offset in start..mirrors[0].end() {
            let here = mirrors[0].at(offset);
            assert!(mirrors.iter().all(|mirror| mirror.at(offset) == here), "the logs differ at {offset}");
        }
        if !self.settings.loses_nothing() {
            return;
        }
        mirrors.iter().for_each(|mirror| self.truth.is_held_by(mirror));
        if self.settings.retention {
            return; // Who knows a producer only by what is deleted takes its repetition for a new record.
        }
        let entries = (0..mirrors[0].end()).filter_map(|offset| mirrors[0].at(offset));
        let numbers: Vec<u64> = entries.map(|entry| entry.number).filter(|number| number & IDEMPOTENT != 0).collect();
        let expected = (0..numbers.len() as u64).map(|number| number | IDEMPOTENT);
        assert!(expected.eq(numbers.iter().copied()), "not once each and in order: {numbers:x?}");
        let sent = self.sequence - self.in_doubt.map_or(0, |produce| produce.count);
        assert!(numbers.len() as u64 >= sent, "{sent} records are acknowledged, {} are there", numbers.len());
    }
}
