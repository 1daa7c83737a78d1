//! The name of a state: states that differ in who is who only, or in what makes no difference to anything that may follow,
//! have the same. The latter are the numbers that count writes, and what a broker remembers of the store's states but does
//! not look at any more: a follower everything but whom it follows and in which epoch.
//!
//! The structures are taken apart field by field, so that a new field does not stay out of the name unseen.

use highwater_storage::{EpochEnd, LeaderEpoch, Offset, TimestampMs};

use super::super::{Replica, RoleState, Session};
use super::cluster::{Budget, Cluster, LAG_MS, NODES, id};
use super::log::SmallLog;
use super::node::{Node, Proposal};
use crate::event::FetchPlan;
use crate::follower::{Follower, FollowerStep};
use crate::leader::{Leader, Pending, Progress};
use crate::lineage::LogView;
use crate::{BrokerEpoch, BrokerId, PartitionState, PublishedEnd, Versioned};

/// Two sums of all words: none of some millions of states is taken for another.
struct Words<'a> {
    sums: [u64; 2],
    /// What each broker is called.
    names: [u8; NODES],
    version: i64,
    now: i64,
    /// Whether power may be cut yet, and whether the lag time may pass: else what is flushed makes no difference, nor does
    /// since when somebody who is caught up is so.
    may_cut: bool,
    may_lag: bool,
    /// Proposals of the node that is described.
    proposals: &'a [Proposal],
}

/// The smallest of the names that the state has with the brokers called in different ways.
pub(super) fn name(cluster: &Cluster) -> u128 {
    // Brokers are told apart by what does not depend on who the others are; those that are alike are tried both ways.
    let marks: Vec<u64> = (0..NODES).map(|node| mark(cluster, node)).collect();
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    let sorted = |order: &&[usize; NODES]| order.windows(2).all(|pair| marks[pair[0]] <= marks[pair[1]]);
    let names = orders.iter().filter(sorted).map(|order| {
        let mut names = [0; NODES];
        for (name, node) in (0..).zip(order) {
            names[*node] = name;
        }
        described(cluster, order, names)
    });
    names.min().expect("some order is sorted")
}

fn mark(cluster: &Cluster, at: usize) -> u64 {
    let mut words = Words::new(cluster, [0; NODES]);
    let (node, state) = (&cluster.nodes[at], &cluster.state.value);
    words.log(&node.log);
    words.flags(&[
        state.leader == Some(id(at)),
        state.isr.contains(&id(at)),
        state.doubtful.contains(&id(at)),
        cluster.live.contains_key(&id(at)),
        node.request.is_some(),
        node.late.is_some(),
        node.leads().is_some(),
    ]);
    words.life(node.session);
    if let Some(replica) = &node.replica {
        words.offset(replica.high_watermark);
        words.epoch(replica.leader_epoch());
        words.word(replica.role() as i64);
    }
    words.sums[0]
}

fn described(cluster: &Cluster, order: &[usize; NODES], names: [u8; NODES]) -> u128 {
    let Cluster { nodes, state, live, ends, now: _, left, min_insync_replicas: _, produced, .. } = cluster;
    let Cluster { committed, deleted, told, .. } = cluster;
    let mut words = Words::new(cluster, names);
    for node in order {
        words.node(&nodes[*node]);
        words.option(live.get(&id(*node)), |words, life| words.life(*life));
        words.option(ends.get(&id(*node)), |words, end| words.published(end));
    }
    words.versioned(state);
    let Budget { records, changes, crashes, cuts, sessions, deletions, lags } = *left;
    for number in [records, changes, crashes, cuts, sessions, deletions, lags, *produced] {
        words.word(i64::from(number));
    }
    words.word(i64::try_from(committed.len()).expect("few"));
    for payload in &**committed {
        words.word(i64::from(*payload));
    }
    words.word(*deleted);
    for (epoch, offset) in &**told {
        words.epoch(*epoch);
        words.offset(*offset);
    }
    u128::from(words.sums[0]) << 64 | u128::from(words.sums[1])
}

impl<'a> Words<'a> {
    fn new(cluster: &Cluster, names: [u8; NODES]) -> Self {
        let sums = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
        let (may_cut, may_lag) = (cluster.left.cuts > 0, cluster.left.lags > 0);
        Self { sums, names, version: cluster.state.version, now: cluster.now, may_cut, may_lag, proposals: &[] }
    }

    fn word(&mut self, word: i64) {
        let [one, other] = &mut self.sums;
        let word = word.cast_unsigned();
        *one = (*one ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *one ^= *one >> 29;
        *other = (other.rotate_left(23) ^ word).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        *other ^= *other >> 32;
    }

    fn flags(&mut self, flags: &[bool]) {
        self.word(flags.iter().fold(1, |all, flag| all << 1 | i64::from(*flag)));
    }

    fn option<T>(&mut self, value: Option<T>, describe: impl FnOnce(&mut Self, T)) {
        self.word(i64::from(value.is_some()));
        if let Some(value) = value {
            describe(self, value);
        }
    }

    fn id(&mut self, BrokerId(id): BrokerId) {
        self.word(i64::from(self.names[usize::try_from(id - 1).expect("a broker")]));
    }

    fn ids(&mut self, ids: &[BrokerId]) {
        let bit = |id: &BrokerId| 1 << self.names[usize::try_from(id.0 - 1).expect("a broker")];
        self.word(ids.iter().map(bit).sum());
    }

    fn life(&mut self, BrokerEpoch(life): BrokerEpoch) {
        self.word(life);
    }

    fn epoch(&mut self, LeaderEpoch(epoch): LeaderEpoch) {
        self.word(i64::from(epoch));
    }

    fn offset(&mut self, Offset(offset): Offset) {
        self.word(offset);
    }

    /// Whether it is the store's: a write that expects another one fails, whichever it is.
    fn version(&mut self, version: i64) {
        self.flags(&[version == self.version]);
    }

    /// Whether it is within the lag time.
    fn time(&mut self, TimestampMs(time): TimestampMs) {
        self.word(i64::from(time >= self.now - LAG_MS));
    }

    fn log(&mut self, log: &SmallLog) {
        self.offset(log.start());
        self.word(if self.may_cut { log.flushed } else { -1 });
        self.offset(log.end());
        for (epoch, payload) in log.entries() {
            self.epoch(*epoch);
            self.word(i64::from(*payload));
        }
        for (epoch, start) in log.history() {
            self.epoch(*epoch);
            self.offset(*start);
        }
    }

    fn node(&mut self, node: &'a Node) {
        let Node { replica, log, session, knows_session_lost, damaged, request, late, proposals, publishes: _ } = node;
        self.log(log);
        self.life(*session);
        self.flags(&[*knows_session_lost, *damaged]);
        self.option(*request, |words, plan| words.plan(&plan));
        self.option(*late, |words, plan| words.plan(&plan));
        self.proposals = proposals;
        self.word(i64::try_from(proposals.len()).expect("few"));
        for Proposal { number: _, session, expected, state, joining } in proposals {
            self.life(*session);
            self.version(*expected);
            self.state(state);
            self.option(*joining, Self::joining);
        }
        self.option(replica.as_ref(), Self::replica);
    }

    fn replica(&mut self, replica: &Replica) {
        let Replica { config, state, assignment: _, live, session, role, high_watermark, began, unsettled, .. } =
            replica;
        // Settings do not change, between steps nothing waits and nothing is wanted, and a proposal is called by its place.
        let Replica {
            for_commit: _, for_flush: _, consumers: _, committed_consumers: _, followers: _, outputs: _, ..
        } = replica;
        let Replica { flush_running, unflushed_since: _, published, proposals: _, told: _, .. } = replica;
        self.life(config.broker_epoch);
        let known = replica.leader_epoch();
        match (role, state) {
            (RoleState::Leader(_), Some(state)) => {
                self.versioned(state);
                for name in 0..NODES {
                    self.option(self.named(name).and_then(|id| live.get(&id)), |words, life| words.life(*life));
                }
            }
            (RoleState::Offline(_), Some(Versioned { value, version })) => {
                self.epoch(known);
                self.option(value.leader, Self::id);
                let is_doubtful = value.doubtful.contains(&config.me);
                self.flags(&[is_doubtful, *version == self.version]);
            }
            _ => self.epoch(known),
        }
        self.word(match session {
            Session::Live => 0,
            Session::Returned => 1,
            Session::Lost => 2,
        });
        self.offset(*high_watermark);
        // Of an epoch that is over a broker cannot go on with anything.
        self.option(began.filter(|(epoch, _)| *epoch >= known), |words, (epoch, start)| {
            words.epoch(epoch);
            words.offset(start);
        });
        self.option(unsettled.as_ref().filter(|pending| pending.expected_version >= self.version), Self::pending);
        self.flags(&[*flush_running]);
        self.option(published.filter(|(_, epoch)| *epoch >= known), |words, (life, epoch)| {
            words.life(life);
            words.epoch(epoch);
        });
        match role {
            RoleState::Leader(leader) => {
                self.word(0);
                self.leader(leader);
            }
            // How often it has asked in vain decides only when it asks again.
            RoleState::Follower(Follower { leader, epoch, step, unaware: _ }) => {
                self.word(1);
                self.id(*leader);
                self.epoch(*epoch);
                self.step(step);
            }
            RoleState::Offline(pending) => {
                self.word(2);
                self.option(pending.as_ref(), Self::pending);
            }
            RoleState::Fenced => self.word(3),
        }
    }

    fn named(&self, name: usize) -> Option<BrokerId> {
        (0..NODES).find(|node| usize::from(self.names[*node]) == name).map(id)
    }

    fn leader(&mut self, leader: &Leader) {
        let Leader { epoch, epoch_start, followers, pending, not_before: _ } = leader;
        self.epoch(*epoch);
        self.offset(*epoch_start);
        for name in 0..NODES {
            self.option(self.named(name).and_then(|id| followers.get(&id)), Self::progress);
        }
        self.option(pending.as_ref(), Self::pending);
    }

    fn progress(&mut self, progress: &Progress) {
        let Progress {
            log_end,
            vouched,
            leader_end_at_last_fetch,
            last_fetch,
            last_caught_up,
            broker_epoch,
            log_start: _,
        } = progress;
        self.option(*log_end, Self::offset);
        self.flags(&[*vouched]);
        let stays_caught_up = !self.may_lag && last_caught_up.is_some_and(|then| then.0 >= self.now - LAG_MS);
        self.flags(&[stays_caught_up]);
        if !stays_caught_up {
            self.offset(*leader_end_at_last_fetch);
            self.option(*last_fetch, Self::time);
            self.option(*last_caught_up, Self::time);
        }
        self.option(*broker_epoch, Self::life);
    }

    fn pending(&mut self, pending: &Pending) {
        let Pending { proposal, expected_version, state, joining, uncertain, doubtful, retry_at } = pending;
        let place = self.proposals.iter().position(|sent| sent.number == *proposal);
        self.option(place, |words, place| words.word(i64::try_from(place).expect("few")));
        self.version(*expected_version);
        self.state(state);
        self.option(*joining, Self::joining);
        self.flags(&[*uncertain, retry_at.is_some()]);
        self.ids(doubtful);
    }

    fn joining(&mut self, (id, life): (BrokerId, BrokerEpoch)) {
        self.id(id);
        self.life(life);
    }

    fn step(&mut self, step: &FollowerStep) {
        match step {
            FollowerStep::Fetching(plan) => {
                self.word(0);
                self.plan(plan);
            }
            FollowerStep::Appending { leader_high_watermark } => {
                self.word(1);
                self.offset(*leader_high_watermark);
            }
            FollowerStep::Cutting { end, latest_epoch } => {
                self.word(2);
                self.offset(*end);
                self.epoch(*latest_epoch);
            }
            FollowerStep::Flushing => self.word(3),
            FollowerStep::BackingOff(_) => self.word(4),
            FollowerStep::Fenced => self.word(5),
        }
    }

    fn plan(&mut self, plan: &FetchPlan) {
        let FetchPlan { leader, leader_epoch, from, last_fetched_epoch, log_start, broker_epoch } = plan;
        self.id(*leader);
        self.epoch(*leader_epoch);
        self.offset(*from);
        self.option(*last_fetched_epoch, Self::epoch);
        self.offset(*log_start);
        self.life(*broker_epoch);
    }

    fn published(&mut self, end: &PublishedEnd) {
        let PublishedEnd { life, leader_epoch, last_epoch, log_end } = end;
        self.life(*life);
        let EpochEnd { epoch, end } = EpochEnd { epoch: *last_epoch, end: *log_end };
        self.epoch(*leader_epoch);
        self.epoch(epoch);
        self.offset(end);
    }

    fn versioned(&mut self, state: &Versioned<PartitionState>) {
        self.version(state.version);
        self.state(&state.value);
    }

    fn state(&mut self, state: &PartitionState) {
        let PartitionState { leader, leader_epoch, isr, doubtful, controller_epoch: _, recovering } = state;
        self.option(*leader, Self::id);
        self.epoch(*leader_epoch);
        self.ids(isr);
        self.ids(doubtful);
        self.flags(&[*recovering]);
    }
}
