//! Bytes that change on a disk, and how they are healed from another replica.

use highwater_replication::HealPlan;
use highwater_storage::{Damaged, HealError};

use super::*;
use crate::truth::{Entry, Rotten};

/// What one replica asks of another for what has rotted in its log.
pub(super) struct Loan {
    by: usize,
    life: u32,
    topic: u32,
    request: FetchRequest,
    damaged: Damaged,
}

impl Loan {
    pub(super) fn by(&self) -> usize {
        self.by
    }

    pub(super) fn from(&self) -> Offset {
        self.request.from
    }
}

impl World {
    /// A byte changes of a batch that is committed and synced, in a segment that is full. Another in-sync replica has it too.
    pub(super) fn rot(&mut self, node: usize, draw: u64) {
        let mut random = Random::new(draw);
        let is_first = self.nodes.iter().all(|node| node.rotten.is_none());
        if !self.plan.rots || !is_first || !self.is_current(node) || !self.another_has_it(node) {
            return;
        }
        let Some(running) = &self.nodes[node].running else { return };
        let (log, mirror) = (running.partition.log(), &running.mirror);
        let end = running.partition.status().high_watermark.min(log.recovery_point());
        let full = log.segments().into_iter().rev().skip(1).filter(|segment| segment.end <= end).collect::<Vec<_>>();
        if full.is_empty() || log.fence().is_some() {
            return;
        }
        let segment = random.pick(&full);
        let mut stretch = None;
        let rots = |bytes: &mut Vec<u8>| {
            let mut at = 0;
            let mut found = Vec::new();
            for batch in batches(bytes).map_while(Result::ok) {
                found.push((at, batch.bytes().len(), batch.header().base_offset().0, batch.header().next_offset().0));
                at += batch.bytes().len();
            }
            if found.is_empty() {
                return;
            }
            let (at, length, from, to) = random.pick(&found);
            // After the checksum: offsets, length and epoch are what they were, and tell what is missing.
            let position = at + 21 + random.index(length - 21);
            bytes[position] ^= 1 << random.below(8);
            stretch = Some((from, to));
        };
        let path = Node::segment(running.topic, segment.base);
        self.nodes[node].fs.corrupt(&path, rots).expect("a segment has a file");
        let Some((from, to)) = stretch else { return };
        let entries: Option<Vec<Entry>> = (from..to).map(|offset| mirror.at(offset)).collect();
        let entries = entries.expect("what is in a log is in its mirror");
        let text = format!("{from}..{to} rots");
        self.nodes[node].rotten = Some(Rotten { from, entries });
        self.counts.rotted += 1;
        note!(self, node, "{text}");
    }

    /// Whether an in-sync replica beside this one has everything.
    fn another_has_it(&self, node: usize) -> bool {
        let Some(state) = &self.store.state else { return false };
        let has = |(other, broker): (usize, &Node)| {
            other != node && self.is_current(other) && state.value.is_whole(broker.id) && !broker.damaged
        };
        self.nodes.iter().enumerate().any(has)
    }

    /// Asks another replica for what is known to have rotted here.
    pub(super) fn consider_healing(&mut self, node: usize) {
        let Node { running: Some(running), rotten: Some(_), id, life, .. } = &mut self.nodes[node] else { return };
        if running.heals_at > self.now {
            return;
        }
        let Some(HealPlan { damaged, ask, leader_epoch, leads, .. }) = running.partition.heal_plan() else { return };
        let Some(damaged) = damaged.into_iter().next() else { return };
        let lender = ask[running.heals_from % ask.len()];
        running.heals_from += 1;
        running.heals_at = self.now + FETCH_TIMEOUT_MS;
        // A follower that asked its leader as one would say that it holds no more than this.
        let by = if leads {
            Fetcher::Follower { id: *id, broker_epoch: None, log_start: Offset(0) }
        } else {
            Fetcher::Consumer { isolation: Isolation::ReadUncommitted }
        };
        let from = damaged.offsets.start;
        let request = FetchRequest { by, current_leader_epoch: Some(leader_epoch), last_fetched_epoch: None, from };
        let loan = Loan { by: node, life: *life, topic: running.topic, request, damaged };
        let to = usize::try_from(lender.0 - 1).expect("a broker");
        let after = self.latency(node, to);
        if self.lost(node, to) {
            self.tell_lost(node, to, "asks for a loan");
        } else {
            self.schedule(after, to, Event::LoanAsked(Box::new(loan)));
        }
    }

    /// Forgets what is not rotten any more: written anew just before its broker died, or its disk failed.
    pub(super) fn look_at_rot(&mut self, node: usize) {
        let Node { running: Some(running), rotten, .. } = &mut self.nodes[node] else { return };
        let is_whole = |rotten: &mut Rotten| {
            let limit = ReadLimit::bytes(1 << 20).below(Offset(rotten.end()));
            let read = running.partition.reader().read(Offset(rotten.from), limit);
            read.is_ok_and(|read| {
                read.next == Offset(rotten.end())
                    && batches(&read.bytes).all(|batch| batch.is_ok_and(|batch| batch.crc_matches()))
            })
        };
        rotten.take_if(is_whole);
    }

    /// Gives another replica what it has lost, if this one has it.
    pub(super) fn lend(&mut self, node: usize, loan: Loan) {
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        if running.topic != loan.topic {
            return;
        }
        let Ok(grant) = running.partition.fetch(now, &loan.request) else { return };
        let Ok(read) = running.read(&grant, loan.request.from, 1 << 20) else { return };
        let wanted = |batch: &highwater_storage::BatchView<'_>| batch.base_offset() < loan.damaged.offsets.end;
        let asked = batches(&read).map_while(Result::ok).take_while(wanted);
        let bytes: Vec<u8> = asked.flat_map(|batch| batch.bytes().to_vec()).collect();
        let after = self.latency(node, loan.by);
        if self.lost(node, loan.by) {
            self.tell_lost(node, loan.by, "a loan");
        } else {
            self.schedule_for(after, loan.by, loan.life, Event::LoanArrives(Box::new(loan), bytes));
        }
    }

    pub(super) fn loan_arrives(&mut self, node: usize, loan: &Loan, bytes: &[u8]) {
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        match running.partition.heal(now, &loan.damaged, bytes) {
            Ok(()) => {
                let healed = loan.damaged.offsets.start.0..loan.damaged.offsets.end.0;
                let is_healed = |rotten: &mut Rotten| healed.start <= rotten.from && rotten.end() <= healed.end;
                self.counts.healed += u64::from(self.nodes[node].rotten.take_if(is_healed).is_some());
                note!(self, node, "heals {}..{}", healed.start, healed.end);
            }
            Err(HealError::Unknown) => {}
            Err(error) => {
                let is_bad = self.nodes[node].has_bad_disk();
                let lacks = bytes.is_empty();
                assert!(is_bad || lacks, "what another replica has does not heal {:?}: {error}", loan.damaged);
            }
        }
    }
}
