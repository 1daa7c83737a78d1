//! The small cluster: what may happen next, and what must hold then.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use highwater_storage::{LeaderEpoch, Offset, TimestampMs, TopicPartition};

use super::super::{Input, Replica, RoleState, Session};
use super::log::SmallLog;
use super::node::{Answer, Node, Proposal};
use crate::event::{FetchError, FetchFailure, FetchPlan, FetchRequest, Fetcher};
use crate::fixtures::state as state_of;
use crate::lineage::LogView;
use crate::{
    Acks, BrokerEpoch, BrokerId, Commit, Controller, Isolation, IsrDecision, PartitionFacts, PartitionState,
    PublishedEnd, ReplicaConfig, Versioned, return_doubtful,
};

pub(super) const NODES: usize = 3;
pub(super) const LAG_MS: i64 = 10_000;

/// What may happen in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Budget {
    pub(super) records: u8,
    /// Elections, by need or by choice of whoever runs the cluster.
    pub(super) changes: u8,
    /// Of processes: what they wrote is kept.
    pub(super) crashes: u8,
    /// Power cuts of one broker beside which another in-sync one is whole.
    pub(super) cuts: u8,
    /// Sessions that end although their broker lives.
    pub(super) sessions: u8,
    /// Times that a leader deletes what is committed.
    pub(super) deletions: u8,
    /// How often the lag time passes.
    pub(super) lags: u8,
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, changes, crashes, cuts, sessions, deletions, lags } = *self;
        let named = [
            (records, "record"),
            (changes, "change of the leader"),
            (crashes, "crash"),
            (cuts, "power cut"),
            (sessions, "lost session"),
            (deletions, "deletion"),
            (lags, "passing of the lag time"),
        ];
        let there = named.iter().filter(|(count, _)| *count > 0);
        let text: Vec<String> = there.map(|(count, what)| format!("{count} × {what}")).collect();
        f.write_str(&text.join(", "))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Cluster {
    pub(super) nodes: [Arc<Node>; NODES],
    pub(super) state: Arc<Versioned<PartitionState>>,
    pub(super) live: Arc<BTreeMap<BrokerId, BrokerEpoch>>,
    pub(super) ends: Arc<BTreeMap<BrokerId, PublishedEnd>>,
    pub(super) now: i64,
    pub(super) left: Budget,
    pub(super) min_insync_replicas: usize,
    /// How many records there were.
    pub(super) produced: u8,
    /// What was ever below a high watermark, from offset 0 on.
    pub(super) committed: Arc<Vec<u8>>,
    /// Below this a leader has deleted.
    pub(super) deleted: i64,
    /// The highest high watermark that consumers may have heard of by an epoch, where that is above those of all before.
    pub(super) told: Arc<BTreeMap<LeaderEpoch, Offset>>,
}

/// What happens next, and at which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    LooksAtStore(u8),
    Registers(u8),
    Lags(u8),
    Produces(u8),
    /// And its answer comes back.
    RequestArrives(u8),
    /// And its answer does not come back, or not yet.
    RequestArrivesOnly(u8),
    LateRequestArrives(u8),
    ProposalArrives(u8),
    Crashes(u8),
    /// Its log keeps so many records.
    LosesPower(u8, u8),
    Boots(u8),
    SessionEnds(u8),
    Deletes(u8),
    /// The controller acts, with a preference for this broker.
    Elects(u8),
    /// Somebody has another member lead.
    Moves(u8),
    LagTimePasses,
}

pub(super) fn id(node: usize) -> BrokerId {
    BrokerId(i32::try_from(node + 1).expect("a broker"))
}

pub(super) fn node_of(id: BrokerId) -> usize {
    usize::try_from(id.0 - 1).expect("a broker")
}

fn assignment() -> Vec<BrokerId> {
    (0..NODES).map(id).collect()
}

fn new_replica(node: usize, session: BrokerEpoch, log: &SmallLog, min_insync_replicas: usize) -> Replica {
    let config = ReplicaConfig {
        lag_time_max_ms: LAG_MS,
        min_insync_replicas,
        flush_ms: i64::MAX,
        fetch_backoff_ms: 0,
        propose_backoff_ms: 0,
        ..ReplicaConfig::new(id(node), session)
    };
    Replica::new(config, log, None)
}

impl Cluster {
    /// 1 leads in epoch 0, all are in sync and know it; nobody has fetched.
    pub(super) fn new(left: Budget) -> Self {
        let session = BrokerEpoch(1);
        // A power cut may take what nobody else has yet.
        let min_insync_replicas = if left.cuts > 0 { 2 } else { 1 };
        let node = |node| {
            let log = SmallLog::default();
            Arc::new(Node {
                replica: Some(new_replica(node, session, &log, min_insync_replicas)),
                log,
                session,
                knows_session_lost: false,
                damaged: false,
                request: None,
                late: None,
                proposals: Vec::new(),
                publishes: None,
            })
        };
        let mut cluster = Self {
            nodes: [node(0), node(1), node(2)],
            state: Arc::new(Versioned { value: state_of(1, 0, &[1, 2, 3]), version: 0 }),
            live: Arc::new((0..NODES).map(|node| (id(node), session)).collect()),
            ends: Arc::default(),
            now: 0,
            left,
            min_insync_replicas,
            produced: 0,
            committed: Arc::default(),
            deleted: 0,
            told: Arc::default(),
        };
        for at in 0..NODES as u8 {
            cluster.take(Step::LooksAtStore(at)).expect("nothing has happened");
        }
        cluster
    }

    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let name = u8::try_from(at).expect("a broker");
            let is_live = self.live.get(&id(at)) == Some(&node.session);
            if let Some(replica) = &node.replica {
                if node.knows_session_lost {
                    steps.push(Step::Registers(name));
                } else if !self.is_up_to_date(node, replica) {
                    steps.push(Step::LooksAtStore(name));
                }
                if self.is_due(node, replica) {
                    steps.push(Step::Lags(name));
                }
                if self.left.records > 0 && replica.admit(Acks::All).is_ok() {
                    steps.push(Step::Produces(name));
                }
                if self.left.crashes > 0 {
                    steps.push(Step::Crashes(name));
                }
                if self.left.cuts > 0 && self.may_lose_power(at) {
                    let kept = usize::try_from(node.log.flushed - node.log.start().0).expect("few");
                    let kept = kept..=node.log.entries().len();
                    steps.extend(kept.map(|kept| Step::LosesPower(name, u8::try_from(kept).expect("few"))));
                }
                if self.left.deletions > 0 && node.leads().is_some() && replica.high_watermark > node.log.start() {
                    steps.push(Step::Deletes(name));
                }
            } else if !is_live {
                steps.push(Step::Boots(name));
            }
            if is_live && (node.replica.is_none() || self.left.sessions > 0) {
                steps.push(Step::SessionEnds(name));
            }
            if node.request.is_some_and(|plan| self.nodes[node_of(plan.leader)].replica.is_some()) {
                steps.push(Step::RequestArrives(name));
                steps.push(Step::RequestArrivesOnly(name));
            }
            if node.late.is_some_and(|plan| self.nodes[node_of(plan.leader)].replica.is_some()) {
                steps.push(Step::LateRequestArrives(name));
            }
            if !node.proposals.is_empty() {
                steps.push(Step::ProposalArrives(name));
            }
            let state = &self.state.value;
            if self.left.changes > 0
                && state.leader.is_some_and(|leader| leader != id(at) && self.live.contains_key(&leader))
                && is_live
                && state.is_whole(id(at))
            {
                steps.push(Step::Moves(name));
            }
            if self.elects(at).is_some() {
                steps.push(Step::Elects(name));
            }
        }
        if self.left.lags > 0 {
            steps.push(Step::LagTimePasses);
        }
        steps
    }

    fn is_up_to_date(&self, node: &Node, replica: &Replica) -> bool {
        let state = &self.state.value;
        let knows = match &replica.role {
            // It takes no notice of anything else.
            RoleState::Follower(follower) => {
                let same = state.leader == Some(follower.leader) && state.leader_epoch == follower.epoch;
                same && self.live.get(&replica.config.me) == Some(&node.session)
            }
            _ => replica.live == *self.live && replica.version() == self.state.version,
        };
        knows && replica.session == Session::Live
    }

    /// Whether a leader may find that somebody lags. All else that is due happens at once: it sends what it would send
    /// later as well.
    fn is_due(&self, node: &Node, replica: &Replica) -> bool {
        let only_lags = matches!(&replica.role, RoleState::Leader(leader) if leader.pending.is_none());
        only_lags
            && replica.absent().next().is_none()
            && replica.next_deadline(&node.log).is_some_and(|due| due.0 <= self.now)
    }

    /// One power cut at a time, of a broker beside which another member of the ISR lives and has everything.
    fn may_lose_power(&self, at: usize) -> bool {
        let whole = |(other, node): (usize, &Arc<Node>)| {
            let is_live = self.live.get(&id(other)) == Some(&node.session);
            other != at && node.replica.is_some() && is_live && !node.damaged && self.state.value.is_whole(id(other))
        };
        self.nodes.iter().enumerate().any(whole) && !self.nodes.iter().any(|node| node.damaged)
    }

    pub(super) fn take(&mut self, step: Step) -> Result<(), String> {
        let now = TimestampMs(self.now);
        match step {
            Step::LooksAtStore(at) => {
                let at = usize::from(at);
                let node = Arc::make_mut(&mut self.nodes[at]);
                if self.live.get(&id(at)) == Some(&node.session) {
                    node.handle(now, Input::LiveBrokers(&self.live))?;
                    node.handle(now, Input::State { state: &self.state, assignment: &assignment() })?;
                } else {
                    node.knows_session_lost = true;
                    node.handle(now, Input::SessionLost)?;
                }
            }
            Step::Registers(at) => {
                let node = Arc::make_mut(&mut self.nodes[usize::from(at)]);
                (node.session, node.knows_session_lost) = (BrokerEpoch(node.session.0 + 1), false);
                Arc::make_mut(&mut self.live).insert(id(usize::from(at)), node.session);
                node.handle(now, Input::Registered(node.session))?;
            }
            Step::Lags(at) => Arc::make_mut(&mut self.nodes[usize::from(at)]).handle(now, Input::Tick)?,
            Step::Produces(at) => {
                self.left.records -= 1;
                Arc::make_mut(&mut self.nodes[usize::from(at)]).produce(now, self.produced)?;
                self.produced += 1;
            }
            Step::RequestArrives(at) => {
                let plan = Arc::make_mut(&mut self.nodes[usize::from(at)]).request.take().ok_or("no request")?;
                let answer = self.serve(now, usize::from(at), &plan)?;
                Arc::make_mut(&mut self.nodes[usize::from(at)]).answered(now, &plan, &answer)?;
            }
            Step::RequestArrivesOnly(at) => {
                let plan = self.nodes[usize::from(at)].request.ok_or("no request")?;
                self.serve(now, usize::from(at), &plan)?;
            }
            Step::LateRequestArrives(at) => {
                let plan = Arc::make_mut(&mut self.nodes[usize::from(at)]).late.take().ok_or("no request")?;
                self.serve(now, usize::from(at), &plan)?;
            }
            Step::ProposalArrives(at) => {
                let node = Arc::make_mut(&mut self.nodes[usize::from(at)]);
                let proposal = node.proposals.remove(0);
                let number = proposal.number;
                if let Some(decision) = self.decide(usize::from(at), proposal)
                    && self.nodes[usize::from(at)].replica.is_some()
                {
                    let input = Input::IsrDecided { proposal: number, decision };
                    Arc::make_mut(&mut self.nodes[usize::from(at)]).handle(now, input)?;
                }
            }
            Step::Crashes(at) => {
                self.left.crashes -= 1;
                Arc::make_mut(&mut self.nodes[usize::from(at)]).stop();
            }
            Step::LosesPower(at, kept) => {
                self.left.cuts -= 1;
                let node = Arc::make_mut(&mut self.nodes[usize::from(at)]);
                node.stop();
                node.log.truncate(node.log.start() + i64::from(kept));
                node.damaged = true;
            }
            Step::Boots(at) => self.boot(usize::from(at)),
            Step::SessionEnds(at) => {
                Arc::make_mut(&mut self.live).remove(&id(usize::from(at)));
                Arc::make_mut(&mut self.ends).remove(&id(usize::from(at)));
                self.left.sessions -= u8::from(self.nodes[usize::from(at)].replica.is_some());
            }
            Step::Deletes(at) => {
                self.left.deletions -= 1;
                let node = Arc::make_mut(&mut self.nodes[usize::from(at)]);
                let committed = node.replica.as_ref().expect("it runs").high_watermark;
                node.log.advance_start(committed);
                self.deleted = self.deleted.max(committed.0);
            }
            Step::Elects(at) => {
                let state = self.elects(usize::from(at)).ok_or("no election")?;
                self.left.changes -= u8::from(state.leader.is_some());
                self.write(state);
            }
            Step::Moves(at) => {
                self.left.changes -= 1;
                let mut state = self.state.value.clone();
                state.leader = Some(id(usize::from(at)));
                state.leader_epoch.0 += 1;
                self.write(state);
            }
            Step::LagTimePasses => {
                self.left.lags -= 1;
                self.now += LAG_MS + 1;
            }
        }
        self.tidy()?;
        self.check()
    }

    /// A broker that stopped uncleanly marks itself, once its former registration is gone, and registers.
    fn boot(&mut self, at: usize) {
        if let Some(state) = return_doubtful(id(at), &self.state.value) {
            self.write(state);
        }
        let node = Arc::make_mut(&mut self.nodes[at]);
        node.session.0 += 1;
        node.damaged = false;
        node.log.flush();
        node.replica = Some(new_replica(at, node.session, &node.log, self.min_insync_replicas));
        Arc::make_mut(&mut self.live).insert(id(at), node.session);
    }

    fn write(&mut self, value: PartitionState) {
        self.state = Arc::new(Versioned { value, version: self.state.version + 1 });
    }

    /// What a controller would write that has just looked at the store, if this broker came first in the assignment.
    fn elects(&self, preferred: usize) -> Option<PartitionState> {
        let state = &self.state.value;
        if state.leader.is_some_and(|leader| self.live.contains_key(&leader) && state.is_whole(leader)) {
            return None;
        }
        let mut assignment = assignment();
        assignment.rotate_left(preferred);
        let mut controller = Controller::new(1);
        controller.set_brokers(&self.live);
        let facts = PartitionFacts {
            assignment,
            state: Some(Versioned::clone(&self.state)),
            unclean_elections: false,
            ends: BTreeMap::clone(&self.ends),
            reassignment: Default::default(),
        };
        controller.set_partition(TopicPartition::new("books", 0), facts);
        let Commit { state, .. } = controller.poll_commit()?;
        // Who is elected has had its turn; nobody is anybody's turn.
        let turn = state.leader.map_or(preferred == 0, |leader| leader == id(preferred));
        (turn && (state.leader.is_none() || self.left.changes > 0)).then_some(state)
    }

    /// What the store does with a proposal, and says, unless the leader learns it by looking at the store as well: that is
    /// the same as an answer that comes late.
    fn decide(&mut self, at: usize, proposal: Proposal) -> Option<IsrDecision> {
        let Proposal { session, expected, state, joining, .. } = proposal;
        if self.live.get(&id(at)) != Some(&session) {
            return Some(IsrDecision::Fenced);
        }
        if expected != self.state.version {
            return None;
        }
        if joining.is_some_and(|(id, life)| self.live.get(&id) != Some(&life)) {
            return Some(IsrDecision::Refused);
        }
        self.write(state);
        None
    }

    /// What the leader of a plan does with a fetch.
    fn serve(&mut self, now: TimestampMs, by: usize, plan: &FetchPlan) -> Result<Answer, String> {
        let node = Arc::make_mut(&mut self.nodes[node_of(plan.leader)]);
        let Some(replica) = &mut node.replica else { return Ok(Answer::Failure(FetchFailure::Unreachable)) };
        let request = FetchRequest {
            by: Fetcher::Follower { id: id(by), broker_epoch: Some(plan.broker_epoch), log_start: plan.log_start },
            current_leader_epoch: Some(plan.leader_epoch),
            last_fetched_epoch: plan.last_fetched_epoch,
            from: plan.from,
        };
        let answer = match replica.fetch(now, &node.log, &request) {
            Ok(grant) => Answer::Records {
                high_watermark: grant.high_watermark,
                log_start: grant.log_start,
                diverging: grant.diverging,
                record: node.log.at(plan.from.0).filter(|_| grant.diverging.is_none() && plan.from < grant.upper),
            },
            Err(error) => Answer::Failure(match error {
                FetchError::FencedLeaderEpoch { .. } => FetchFailure::FencedLeaderEpoch,
                FetchError::UnknownLeaderEpoch { .. } => FetchFailure::UnknownLeaderEpoch,
                FetchError::OutOfRange { log_start, .. } => FetchFailure::OutOfRange { log_start: Some(log_start) },
                _ => FetchFailure::Unreachable,
            }),
        };
        node.settle(now)?;
        Ok(answer)
    }

    /// Does what is due but for lags, and forgets what can have no effect any more.
    fn tidy(&mut self) -> Result<(), String> {
        let now = TimestampMs(self.now);
        for at in 0..NODES {
            for _ in 0..3 {
                let node = &self.nodes[at];
                let Some(replica) = &node.replica else { break };
                if self.is_due(node, replica) || replica.next_deadline(&node.log).is_none_or(|due| due > now) {
                    break;
                }
                Arc::make_mut(&mut self.nodes[at]).handle(now, Input::Tick)?;
            }
            let node = &self.nodes[at];
            if let Some(end) = node.publishes {
                Arc::make_mut(&mut self.nodes[at]).publishes = None;
                if self.live.get(&id(at)) == Some(&end.life) {
                    Arc::make_mut(&mut self.ends).insert(id(at), end);
                }
            }
            let node = &self.nodes[at];
            // Of an epoch that is over only who still leads in it takes a request.
            let is_void = |plan: &FetchPlan| {
                let is_over = plan.leader_epoch < self.state.value.leader_epoch;
                is_over && self.nodes[node_of(plan.leader)].leads() != Some(plan.leader_epoch)
            };
            if node.late.is_some_and(|plan| is_void(&plan) || node.request == Some(plan)) {
                Arc::make_mut(&mut self.nodes[at]).late = None;
            }
            let version = self.state.version;
            if self.nodes[at].proposals.iter().any(|proposal| proposal.expected < version) {
                Arc::make_mut(&mut self.nodes[at]).proposals.retain(|proposal| proposal.expected >= version);
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        for (at, node) in self.nodes.clone().iter().enumerate() {
            let name = id(at);
            if node.log.start().0 > self.deleted {
                return Err(format!("{name} begins at {}, and {} is deleted", node.log.start(), self.deleted));
            }
            let Some(replica) = &node.replica else { continue };
            for offset in node.log.start().0..replica.high_watermark.0 {
                let (_, shown) = node.log.at(offset).ok_or("a high watermark above the end")?;
                match self.committed.get(usize::try_from(offset).expect("an offset")) {
                    Some(committed) if *committed == shown => {}
                    Some(committed) => return Err(format!("{name} shows {shown} at {offset}: it was {committed}")),
                    None => Arc::make_mut(&mut self.committed).push(shown),
                }
            }
            let Some(epoch) = node.leads() else { continue };
            let others = self.nodes.iter().filter(|other| other.leads() == Some(epoch)).count();
            let (stored, leader) = (self.state.value.leader_epoch, self.state.value.leader);
            if others > 1 || epoch > stored || (epoch == stored && leader.is_some_and(|leader| leader != name)) {
                return Err(format!("{name} leads in epoch {epoch}, which is another's"));
            }
            let consumes = FetchRequest {
                by: Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
                current_leader_epoch: None,
                last_fetched_epoch: None,
                from: node.log.start(),
            };
            let told = replica.regrant(&node.log, &consumes).map_err(|error| error.to_string())?.high_watermark;
            let before = self.told.range(..=epoch).map(|(_, told)| *told).max().unwrap_or(Offset(0));
            if told.0 >= 0 && told < before {
                return Err(format!("{name} tells the high watermark {told}, after {before}"));
            }
            if told > before {
                Arc::make_mut(&mut self.told).insert(epoch, told);
            }
        }
        self.forget_what_was_told();
        for member in self.state.value.isr.iter().filter(|member| self.state.value.is_whole(**member)) {
            let Node { log, damaged: false, .. } = &*self.nodes[node_of(*member)] else { continue };
            for (offset, committed) in (0i64..).zip(&*self.committed).filter(|(offset, _)| *offset >= log.start().0) {
                if log.at(offset).is_none_or(|(_, payload)| payload != *committed) {
                    return Err(format!(
                        "member {member} has {:?} at {offset}, committed is {committed}",
                        log.at(offset)
                    ));
                }
            }
        }
        self.check_histories()
    }

    /// Keeps of what was told what somebody may contradict who leads now, or is elected yet.
    fn forget_what_was_told(&mut self) {
        let leading = self.nodes.iter().filter_map(|node| node.leads());
        let first = leading.chain([self.state.value.leader_epoch]).min().unwrap_or(LeaderEpoch(0));
        let (mut kept, mut highest) = (BTreeMap::new(), Offset(0));
        for (epoch, told) in self.told.iter().filter(|(_, told)| **told > Offset(0)) {
            if *told > highest {
                highest = *told;
                kept.insert((*epoch).max(first), highest);
            }
        }
        if kept != *self.told {
            self.told = Arc::new(kept);
        }
    }

    /// An epoch and an offset name one record in all logs, and one history before it.
    fn check_histories(&self) -> Result<(), String> {
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            let (one, other) = (&self.nodes[one].log, &self.nodes[other].log);
            let both = one.start().0.max(other.start().0)..one.end().0.min(other.end().0);
            let mut is_shared = false;
            for offset in both.rev() {
                let (Some(here), Some(there)) = (one.at(offset), other.at(offset)) else { continue };
                is_shared |= here.0 == there.0;
                if is_shared && here != there {
                    return Err(format!("two histories at {offset}: {here:?} and {there:?}"));
                }
            }
        }
        Ok(())
    }
}

impl Node {
    fn stop(&mut self) {
        (self.replica, self.knows_session_lost, self.publishes) = (None, false, None);
        self.late = self.request.take().or_else(|| self.late.take());
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = &self.state.value;
        let numbers = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        let (isr, doubtful) = (numbers(&state.isr), numbers(&state.doubtful));
        write!(f, "leader {:?} epoch {} isr {isr:?} doubtful {doubtful:?}", state.leader, state.leader_epoch)?;
        write!(
            f,
            " live {:?} committed {:?}",
            numbers(&self.live.keys().copied().collect::<Vec<_>>()),
            self.committed
        )?;
        for (at, node) in self.nodes.iter().enumerate() {
            let log: Vec<_> = node.log.entries().iter().map(|(epoch, payload)| (epoch.0, *payload)).collect();
            write!(f, "; {}: from {} {log:?}", id(at), node.log.start())?;
            if let Some(replica) = &node.replica {
                write!(f, " {:?} e{} hw {}", replica.role(), replica.leader_epoch(), replica.high_watermark)?;
            }
        }
        Ok(())
    }
}
