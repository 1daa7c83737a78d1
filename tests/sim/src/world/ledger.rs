//! What a cell's producers were answered, and what of it the cell allows to be lost.

use super::*;
use crate::cell::{Asked, Cell, Failure, Kind};
use crate::truth::Mirror;

/// Records by their payload.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) cell: Cell,
    /// Answered as the row asks for it; with acks=0, sent.
    taken: BTreeSet<u64>,
    /// Stored by a leader.
    stored: BTreeSet<u64>,
    excused: BTreeMap<u64, Kind>,
    /// What was lost, by why it may be.
    pub(crate) lost: BTreeMap<Kind, u64>,
}

impl Ledger {
    pub(crate) fn new(cell: Cell) -> Self {
        let (taken, stored) = Default::default();
        Self { cell, taken, stored, excused: BTreeMap::new(), lost: BTreeMap::new() }
    }

    fn allows(&self, kind: Kind) -> bool {
        self.cell.kinds().contains(&kind)
    }

    /// The acks of a batch of a producer that is not idempotent.
    pub(super) fn acks(&self) -> Acks {
        match self.cell.row.asked {
            Asked::All => Acks::All,
            Asked::Leader => Acks::Leader,
            Asked::Nothing => Acks::None,
        }
    }

    /// These leave for a leader; nobody hears what becomes of them with acks=0.
    pub(super) fn sent(&mut self, id: ProduceId) {
        if self.cell.row.asked == Asked::Nothing && !id.idempotent {
            self.taken.extend(id.payloads());
        }
    }

    /// A leader has answered for them as asked, or only stored them where nobody asks for an answer.
    pub(super) fn answered(&mut self, id: ProduceId, leads: bool) {
        // The idempotent producer asks for acks=all in all rows.
        if id.idempotent && self.cell.row.asked != Asked::All {
            return;
        }
        self.taken.extend(id.payloads());
        self.stored.extend(id.payloads());
        if !leads && self.allows(Kind::Late) {
            self.excused.extend(id.payloads().map(|payload| (payload, Kind::Late)));
        }
    }

    /// A leader fails: what one of these logs lacks may be lost.
    fn leader_fails(&mut self, others: &[BTreeSet<u64>]) {
        if self.allows(Kind::Unfetched) {
            let lacks = |payload: &&u64| others.iter().any(|log| !log.contains(payload));
            let lacking: Vec<u64> = self.stored.iter().filter(lacks).copied().collect();
            for payload in lacking {
                self.excused.entry(payload).or_insert(Kind::Unfetched);
            }
        }
    }

    /// All in-sync replicas are hit, and this is left: what none of these logs holds may be lost.
    pub(super) fn is_left(&mut self, logs: &[Mirror]) {
        if self.allows(Kind::OnNoDisk) {
            let held: BTreeSet<u64> = logs.iter().flat_map(|log| &log.entries).map(|entry| entry.payload).collect();
            let gone = self.stored.difference(&held);
            self.excused.extend(gone.map(|payload| (*payload, Kind::OnNoDisk)));
        }
    }

    /// The log at the end.
    fn close(&mut self, log: &BTreeSet<u64>) {
        for payload in self.taken.difference(log) {
            let kind =
                if self.stored.contains(payload) { self.excused.get(payload).copied() } else { Some(Kind::InFlight) };
            let kind = kind.filter(|kind| self.allows(*kind));
            let Some(kind) = kind else {
                panic!("record {payload} was taken and is lost, which {} excludes", self.cell)
            };
            *self.lost.entry(kind).or_default() += 1;
        }
    }
}

impl World {
    /// Notes what may be lost by the failure of a broker that is about to happen.
    pub(super) fn note_failure(&mut self, node: usize) {
        let Some(state) = self.store.state.as_ref().map(|state| state.value.clone()) else { return };
        if self.ledger.is_none() || state.leader != Some(self.nodes[node].id) {
            return;
        }
        let in_sync = |other: &usize| *other != node && state.isr.contains(&self.nodes[*other].id);
        let others: Vec<usize> = (0..BROKERS).filter(in_sync).collect();
        let logs: Vec<_> = others.into_iter().map(|other| self.payloads_of(other)).collect();
        if let Some(ledger) = &mut self.ledger {
            ledger.leader_fails(&logs);
        }
    }

    /// What a broker's log holds, whether its process runs or not.
    fn payloads_of(&mut self, node: usize) -> BTreeSet<u64> {
        self.look(node);
        let topic = self.store.topic;
        let on_disk;
        let mirror = match &self.nodes[node].running {
            Some(running) => &running.mirror,
            None => {
                on_disk = self.nodes[node].on_disk(&self.plan, topic, &mut Truth::default());
                &on_disk
            }
        };
        mirror.entries.iter().map(|entry| entry.payload).collect()
    }

    /// Whether a broker is all of the ISR.
    fn is_alone(&self, node: usize) -> bool {
        self.store.state.as_ref().is_some_and(|state| state.value.isr == [self.nodes[node].id])
    }

    /// Whether the only in-sync replica may lose what it has.
    pub(super) fn may_hit_alone(&self, node: usize) -> bool {
        self.ledger.as_ref().is_some_and(|ledger| ledger.cell.hits_who_is_alone()) && self.is_alone(node)
    }

    /// What is left after the only in-sync replica was hit is on its disk.
    pub(super) fn strike_if_alone(&mut self, node: usize) {
        if self.may_hit_alone(node) {
            self.strike();
        }
    }

    /// Whether the column of this run's cell has this process stop.
    pub(super) fn cell_lets_stop(&self, node: usize) -> bool {
        let spares_leaders = self.ledger.as_ref().is_some_and(|ledger| ledger.cell.failure == Failure::Killed);
        !spares_leaders || !self.leads(node) || self.is_alone(node)
    }

    /// Whether the store would still have this broker lead.
    pub(super) fn leads_in_its_session(&self, node: usize) -> bool {
        self.leads(node) && self.session_of(node).as_ref() == self.store.live.get(&self.nodes[node].id)
    }

    /// What is lost at the end, if this run is one of a cell.
    pub(super) fn close_ledger(&mut self) {
        if let (Some(ledger), Some(running)) = (&mut self.ledger, &self.nodes[0].running) {
            ledger.close(&running.mirror.entries.iter().map(|entry| entry.payload).collect());
        }
    }
}
