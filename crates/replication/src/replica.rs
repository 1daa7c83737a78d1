//! One replica of one partition: leader, follower or offline, as a machine without I/O, clock or randomness.

#[cfg(test)]
mod exploration;
mod following;
mod leading;
mod serving;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use highwater_storage::{EpochEnd, LeaderEpoch, Offset, TimestampMs};

use crate::event::{Acknowledged, CutReason, FenceReason, Output, ProduceRefused, Produced, Role, Status};
use crate::follower::{Follower, FollowerStep};
use crate::leader::{Leader, Pending};
use crate::lineage::LogView;
use crate::quorum::needed_in_sync;
use crate::waiting::{WaitingFetches, WaitingProduce, WaitingProduces};
use crate::{
    Acks, BrokerEpoch, BrokerId, IsrDecision, PartitionState, PublishedEnd, ReplicaConfig, Versioned, WaitToken,
};

/// What happens to a replica, apart from the requests that are answered at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<'a> {
    /// The store's state, from its watch or freshly read. Older versions are ignored.
    State {
        /// Leader, epoch, ISR.
        state: &'a Versioned<PartitionState>,
        /// The brokers that hold a replica, the preferred leader first.
        assignment: &'a [BrokerId],
    },
    /// The brokers that are registered now, each in its present life.
    LiveBrokers(&'a BTreeMap<BrokerId, BrokerEpoch>),
    /// The store reported our session expired.
    SessionLost,
    /// We are registered again, in this life. The next `State` counts even if its version is the known one.
    Registered(BrokerEpoch),
    /// What became of a proposal.
    IsrDecided {
        /// Its name.
        proposal: u64,
        /// What became of it.
        decision: IsrDecision,
    },
    /// Records of a fetch reply were appended; the log's end is the new one.
    Replicated,
    /// Records of a fetch reply were not acceptable (damaged on the way, not continuing the log) and not stored, or the
    /// log's start could not be moved.
    ReplicatedRefused,
    /// The log was cut as asked.
    CutDone,
    /// A flush ended; the log's flushed end is the new one.
    Flushed,
    /// The log failed. It takes nothing more.
    LogFailed(FenceReason),
    /// New settings. `me` and `broker_epoch` stay as they are.
    Configure(&'a ReplicaConfig),
    /// Time passed.
    Tick,
}

/// A batch that the leader appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedBatch {
    /// What to answer.
    pub answer: Acknowledged,
    /// When to be answered.
    pub acks: Acks,
    /// By when, for those that wait.
    pub deadline: TimestampMs,
    /// The name of the wait.
    pub token: WaitToken,
}

/// The machine. Every method takes the present state of the log; outputs are to be carried out in order, those marked
/// *log* before the next call.
#[derive(Clone, Debug)]
pub struct Replica {
    config: ReplicaConfig,
    state: Option<Versioned<PartitionState>>,
    assignment: Vec<BrokerId>,
    live: BTreeMap<BrokerId, BrokerEpoch>,
    session: Session,
    role: RoleState,
    high_watermark: Offset,
    /// Up to where records were committed, as the last leader said, wherever our log ends; and that leader's epoch.
    told: (Offset, LeaderEpoch),
    /// The leadership this process began, and where: it may go on in it, another process may not.
    began: Option<(LeaderEpoch, Offset)>,
    /// A proposal of that leadership that was under way when the session was lost: it may succeed yet.
    unsettled: Option<Pending>,
    /// Produces for the high watermark, and those for the leader's flush.
    for_commit: WaitingProduces,
    for_flush: WaitingProduces,
    consumers: WaitingFetches,
    /// Those that see what is decided only.
    committed_consumers: WaitingFetches,
    followers: WaitingFetches,
    flush_running: bool,
    /// Since when there are records that are not flushed.
    unflushed_since: Option<TimestampMs>,
    /// The life and the epoch in which the controller was told how far the log goes.
    published: Option<(BrokerEpoch, LeaderEpoch)>,
    proposals: u64,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Session {
    Live,
    /// Registered again, but what the store says now is not known yet.
    Returned,
    Lost,
}

#[derive(Clone, Debug)]
enum RoleState {
    Leader(Leader),
    Follower(Follower),
    /// With the proposal of a higher epoch, if this replica is elected in one that its log has seen already.
    Offline(Option<Pending>),
    Fenced,
}

/// Whether the records of a fetch reply are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStep {
    /// Move the log's start up to `log_start`, durably, and only then append them, refusing batches of a later epoch than
    /// `leader_epoch`; then report `Replicated` or `ReplicatedRefused`.
    ///
    /// The order matters at a crash: with a record of the leader's a log is taken for the leader's all along, and what
    /// it holds below the leader's start nobody has compared (see [`vouches`](crate::vouches)).
    Append {
        /// The epoch the fetch was made in.
        leader_epoch: LeaderEpoch,
        /// Where the log is to start at least. At or below its start there is nothing to do.
        log_start: Offset,
    },
    /// There is nothing to append.
    Done,
}

impl Replica {
    /// A replica that knows nothing of the store yet. The high watermark begins at the checkpointed one, as far as the
    /// log holds it.
    pub fn new(config: ReplicaConfig, log: &dyn LogView, checkpointed_high_watermark: Option<Offset>) -> Self {
        let high_watermark = checkpointed_high_watermark.unwrap_or_else(|| log.start()).min(log.end()).max(log.start());
        Self {
            config,
            state: None,
            assignment: Vec::new(),
            live: BTreeMap::new(),
            session: Session::Live,
            role: RoleState::Offline(None),
            high_watermark,
            told: (high_watermark, LeaderEpoch::NONE),
            began: None,
            unsettled: None,
            for_commit: WaitingProduces::default(),
            for_flush: WaitingProduces::default(),
            consumers: WaitingFetches::default(),
            committed_consumers: WaitingFetches::default(),
            followers: WaitingFetches::default(),
            flush_running: false,
            unflushed_since: None,
            published: None,
            proposals: 0,
            outputs: VecDeque::new(),
        }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, now: TimestampMs, log: &dyn LogView, input: Input<'_>) {
        if matches!(self.role, RoleState::Fenced) {
            return;
        }
        match input {
            Input::State { state, assignment } => self.take_state(now, log, state, assignment),
            Input::LiveBrokers(live) => {
                self.live.clone_from(live);
                self.consider_shrink(now, log);
                self.advance_high_watermark(now, log);
            }
            Input::SessionLost => {
                self.session = Session::Lost;
                self.go_offline(None);
            }
            Input::Registered(broker_epoch) => {
                self.config.broker_epoch = broker_epoch;
                if self.session == Session::Lost {
                    self.session = Session::Returned;
                }
            }
            Input::IsrDecided { proposal, decision } => self.decided(now, log, proposal, decision),
            Input::Replicated => self.replicated(now, log),
            Input::ReplicatedRefused => self.replication_refused(now, log),
            Input::CutDone => self.cut_done(now, log),
            Input::Flushed => self.flushed(now, log),
            Input::LogFailed(reason) => self.fence(reason),
            Input::Configure(config) => {
                let (me, broker_epoch) = (self.config.me, self.config.broker_epoch);
                self.config = ReplicaConfig { me, broker_epoch, ..config.clone() };
                self.advance_high_watermark(now, log);
                self.consider_flush(now, log);
            }
            Input::Tick => self.tick(now, log),
        }
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When `Tick` is due next.
    pub fn next_deadline(&self, log: &dyn LogView) -> Option<TimestampMs> {
        let of_role = match &self.role {
            RoleState::Leader(leader) => match &leader.pending {
                Some(pending) => pending.retry_at,
                // A recovery that was not recorded, because another change was first or the store refused it.
                None if self.state.as_ref().is_some_and(|state| state.value.recovering) => Some(leader.not_before),
                None if self.absent().next().is_some() => Some(leader.not_before),
                None => leader.next_lagging(log.end(), self.config.lag_time_max_ms, self.isr()),
            },
            RoleState::Follower(follower) => match follower.step {
                FollowerStep::BackingOff(until) => Some(until),
                _ => None,
            },
            RoleState::Offline(pending) => pending.as_ref().and_then(|pending| pending.retry_at),
            RoleState::Fenced => None,
        };
        let may_flush = !self.flush_running && self.config.flush_ms < i64::MAX;
        let flush = self.unflushed_since.filter(|_| may_flush).map(|since| since.after(self.config.flush_ms));
        [of_role, flush, self.for_commit.next_deadline(), self.for_flush.next_deadline()].into_iter().flatten().min()
    }

    /// Whether a batch may be appended now, and in which epoch.
    pub fn admit(&self, acks: Acks) -> Result<LeaderEpoch, ProduceRefused> {
        let leader = self.leading()?;
        if acks == Acks::All {
            let (in_sync, needed) = (self.isr().len(), self.needed_in_sync());
            if in_sync < needed {
                return Err(ProduceRefused::NotEnoughReplicas { in_sync, needed });
            }
        }
        let waiting = self.for_commit.len() + self.for_flush.len();
        if acks != Acks::None && waiting >= self.config.waiting_max {
            return Err(ProduceRefused::TooManyWaiting { waiting });
        }
        Ok(leader.epoch)
    }

    /// The admitted batch is in the log (or was already, if it is a duplicate).
    pub fn appended(
        &mut self,
        now: TimestampMs,
        log: &dyn LogView,
        batch: AppendedBatch,
    ) -> Result<Produced, ProduceRefused> {
        let answer = batch.answer;
        if !answer.duplicate && (answer.base_offset < self.high_watermark || answer.last_offset.next() != log.end()) {
            self.fence(FenceReason::Invariant("an append re-assigned an offset that was committed"));
            return Err(ProduceRefused::Storage);
        }
        self.advance_high_watermark(now, log);
        while let Some(token) = self.followers.pop_below(log.end()) {
            self.outputs.push_back(Output::WakeFetch { token });
        }
        self.consider_flush(now, log);
        let reached = answer.last_offset.next();
        let waiting = match batch.acks {
            Acks::None => return Ok(Produced::Done(answer)),
            Acks::Leader if reached <= self.counted_end(log) => return Ok(Produced::Done(answer)),
            Acks::All if reached <= self.high_watermark => {
                return self.committed_answer(answer).map(Produced::Done);
            }
            Acks::Leader => &mut self.for_flush,
            Acks::All => &mut self.for_commit,
        };
        waiting.add(WaitingProduce { token: batch.token, deadline: batch.deadline, answer });
        Ok(Produced::Waiting)
    }

    /// What it does at present.
    pub fn role(&self) -> Role {
        match self.role {
            RoleState::Leader(_) => Role::Leader,
            RoleState::Follower(_) => Role::Follower,
            RoleState::Offline(_) => Role::Offline,
            RoleState::Fenced => Role::Fenced,
        }
    }

    /// Everything below is committed.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Up to where records were committed, as the leader said that was followed last, and its epoch: what lies above our end
    /// is lost when we are elected all the same.
    pub(crate) fn leaders_high_watermark(&self) -> (Offset, LeaderEpoch) {
        self.told
    }

    /// Whose replica this is.
    pub(crate) fn me(&self) -> BrokerId {
        self.config.me
    }

    /// The leadership this replica knows of; `NONE` before any.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.state.as_ref().map_or(LeaderEpoch::NONE, |state| state.value.leader_epoch)
    }

    /// The replica at a glance.
    pub fn status(&self, log: &dyn LogView) -> Status {
        Status {
            role: self.role(),
            leader: self.state.as_ref().and_then(|state| state.value.leader),
            leader_epoch: self.leader_epoch(),
            version: self.version(),
            log_start: log.start(),
            log_end: log.end(),
            flushed: log.flushed(),
            high_watermark: self.high_watermark,
            isr: self.isr().to_vec(),
            in_isr: self.isr().contains(&self.config.me),
            followers: match &self.role {
                RoleState::Leader(leader) => leader.statuses(log.end(), self.isr()),
                _ => Vec::new(),
            },
            produces_waiting: self.for_commit.len() + self.for_flush.len(),
            fetches_waiting: self.consumers.len() + self.committed_consumers.len() + self.followers.len(),
        }
    }

    /// The ISR that counts at present: while a change is under way, the larger set.
    pub fn maximal_isr(&self) -> Vec<BrokerId> {
        match &self.role {
            RoleState::Leader(leader) => leader.maximal_isr(self.isr()),
            _ => self.isr().to_vec(),
        }
    }

    /// Checks what must hold after every step, in constant time; closes the replica if it does not.
    pub fn check(&mut self, log: &dyn LogView) {
        let broken = if log.start() > log.end() {
            "the log start is above the log end"
        } else if self.high_watermark < log.start() {
            "the high watermark is below the log start"
        } else if self.high_watermark > log.end() {
            "the high watermark is above the log end"
        } else if log.flushed() > log.end() {
            "the flushed end is above the log end"
        } else {
            return;
        };
        self.fence(FenceReason::Invariant(broken));
    }

    // State and roles.

    fn take_state(
        &mut self,
        now: TimestampMs,
        log: &dyn LogView,
        state: &Versioned<PartitionState>,
        assignment: &[BrokerId],
    ) {
        let known = self.version();
        match self.session {
            Session::Lost => return,
            Session::Live if state.version < known => return,
            Session::Live if state.version == known => {
                if self.assignment != assignment {
                    self.assignment = assignment.to_vec();
                    let isr = self.isr().to_vec();
                    self.reassign_followers(now, log, &isr);
                }
                return;
            }
            Session::Returned if state.version < known => return,
            Session::Live | Session::Returned => {}
        }
        if state.value.leader_epoch < self.leader_epoch() {
            let (given, known) = (state.value.leader_epoch, self.leader_epoch());
            return self.fence(FenceReason::StoreWentBack { given, known });
        }
        self.session = Session::Live;
        self.assignment = assignment.to_vec();
        let previous = self.state.replace(state.clone());
        let PartitionState { leader, leader_epoch, .. } = state.value;
        let me = self.config.me;
        match (&mut self.role, leader) {
            (RoleState::Leader(lead), Some(id)) if id == me && lead.epoch == leader_epoch => {
                // Whatever was proposed against an older version can no longer succeed, or just has.
                lead.pending.take_if(|pending| pending.expected_version < state.version);
                let previous_isr = previous.map_or_else(Vec::new, |previous| previous.value.isr);
                self.reassign_followers(now, log, &previous_isr);
                self.consider_shrink(now, log);
            }
            (_, Some(id)) if id == me && state.value.isr.contains(&me) => self.lead(now, log),
            (RoleState::Follower(follow), Some(id)) if follow.leader == id && follow.epoch == leader_epoch => {}
            (_, Some(id)) if id != me && assignment.contains(&me) => self.follow(now, log, id, leader_epoch),
            _ => {
                self.go_offline(None);
                self.consider_publish(log);
            }
        }
    }

    fn lead(&mut self, now: TimestampMs, log: &dyn LogView) {
        let Some(state) = self.state.clone() else { return };
        let epoch = state.value.leader_epoch;
        let resumed = self.began.filter(|began| began.0 == epoch && log.latest_epoch() == epoch);
        if resumed.is_none() && log.latest_epoch() >= epoch {
            return self.ask_for_higher_epoch(log, &state);
        }
        if !matches!(self.role, RoleState::Leader(_)) {
            self.go_offline(None);
        }
        let epoch_start = resumed.map_or_else(|| log.end(), |began| began.1);
        if resumed.is_none() {
            self.outputs.push_back(Output::AssignEpoch { epoch, start: epoch_start });
        }
        if state.value.recovering {
            self.outputs.push_back(Output::UncleanElection);
        }
        self.began = Some((epoch, epoch_start));
        let mut leader = Leader::new(epoch, epoch_start);
        let unsettled = self.unsettled.take().filter(|pending| pending.expected_version == state.version);
        leader.pending = unsettled.filter(|_| resumed.is_some()).map(|pending| Pending {
            uncertain: true,
            retry_at: Some(now),
            ..pending
        });
        self.role = RoleState::Leader(leader);
        self.wake_all_fetches();
        self.reassign_followers(now, log, &[]);
        if state.value.recovering {
            self.propose(now, None, |state| state.recovering = false);
        }
        self.consider_shrink(now, log);
        self.consider_flush(now, log);
    }

    /// Says how far the log goes where that decides who leads: nobody does, so it stays as it is until somebody does, and
    /// this member is doubtful. What is said must hold after a power cut too: whoever is elected for it is the whole ISR.
    fn consider_publish(&mut self, log: &dyn LogView) {
        let Some(state) = self.state.as_ref().map(|state| &state.value) else { return };
        let said = (self.config.broker_epoch, state.leader_epoch);
        let asked = state.leader.is_none() && state.doubtful.contains(&self.config.me);
        let offline = matches!(self.role, RoleState::Offline(None)) && self.session == Session::Live;
        if !asked || !offline || self.published == Some(said) {
            return;
        }
        if log.flushed() < log.end() {
            if !self.flush_running {
                self.flush_running = true;
                self.outputs.push_back(Output::Flush);
            }
            return;
        }
        self.published = Some(said);
        // An epoch that a log without records knows of may be one of long ago, from before what was deleted by age.
        let last_epoch = if log.is_empty() { LeaderEpoch::NONE } else { log.latest_epoch() };
        self.outputs.push_back(Output::PublishEnd(PublishedEnd {
            life: said.0,
            leader_epoch: said.1,
            last_epoch,
            log_end: log.end(),
        }));
    }

    /// The log has records (or a leadership) of this epoch or a later one that this process did not write. Records of
    /// two histories under one epoch could never be told apart, so this replica leads only above what its log has.
    fn ask_for_higher_epoch(&mut self, log: &dyn LogView, state: &Versioned<PartitionState>) {
        let Some(above) = log.latest_epoch().max(state.value.leader_epoch).0.checked_add(1) else {
            return self.fence(FenceReason::Invariant("leader epochs are used up"));
        };
        let proposed = PartitionState { leader_epoch: LeaderEpoch(above), ..state.value.clone() };
        let pending = self.new_pending(state.version, proposed, None);
        self.go_offline(Some(pending));
    }

    fn follow(&mut self, now: TimestampMs, log: &dyn LogView, leader: BrokerId, epoch: LeaderEpoch) {
        self.go_offline(None);
        self.told = (self.high_watermark, epoch);
        let step = FollowerStep::BackingOff(now);
        self.role = RoleState::Follower(Follower { leader, epoch, step, unaware: 0 });
        if !log.is_empty() && !log.latest_epoch().is_some() && self.high_watermark < log.end() {
            // The classic rule: without epochs nothing above the high watermark is known to be the leader's.
            self.cut(log, Some(self.high_watermark), CutReason::NoEpochs);
        } else {
            self.fetch_on(now, log);
        }
    }

    /// Stops leading or following. What waits here is told so.
    fn go_offline(&mut self, pending: Option<Pending>) {
        if matches!(self.role, RoleState::Follower(_)) {
            self.outputs.push_back(Output::StopFetching);
        }
        if let RoleState::Leader(leader) = std::mem::replace(&mut self.role, RoleState::Offline(pending)) {
            self.unsettled = leader.pending;
        }
        let refused = self.not_leader();
        self.fail_produces(refused);
        self.wake_all_fetches();
    }

    fn fence(&mut self, reason: FenceReason) {
        if matches!(self.role, RoleState::Fenced) {
            return;
        }
        self.go_offline(None);
        self.role = RoleState::Fenced;
        self.outputs.push_back(Output::Fenced(reason));
    }

    fn fail_produces(&mut self, refused: ProduceRefused) {
        for waiting in [&mut self.for_commit, &mut self.for_flush] {
            while let Some(produce) = waiting.pop_any() {
                self.outputs.push_back(Output::ProduceDone { token: produce.token, result: Err(refused) });
            }
        }
    }

    fn wake_all_fetches(&mut self) {
        for waiting in [&mut self.consumers, &mut self.committed_consumers, &mut self.followers] {
            while let Some(token) = waiting.pop_any() {
                self.outputs.push_back(Output::WakeFetch { token });
            }
        }
    }

    // Flushes, time.

    fn flushed(&mut self, now: TimestampMs, log: &dyn LogView) {
        self.flush_running = false;
        self.unflushed_since = None;
        self.note_unflushed(now, log);
        self.advance_high_watermark(now, log);
        while let Some(produce) = self.for_flush.pop_reached(log.flushed()) {
            self.outputs.push_back(Output::ProduceDone { token: produce.token, result: Ok(produce.answer) });
        }
        if matches!(&self.role, RoleState::Follower(follower) if follower.step == FollowerStep::Flushing) {
            self.fetch_on(now, log);
        }
        self.consider_publish(log);
        self.consider_flush(now, log);
    }

    fn note_unflushed(&mut self, now: TimestampMs, log: &dyn LogView) {
        if log.flushed() >= log.end() {
            self.unflushed_since = None;
        } else {
            self.unflushed_since.get_or_insert(now);
        }
    }

    /// Asks for a flush if one is due. One runs at a time; what comes meanwhile shares the next.
    fn consider_flush(&mut self, now: TimestampMs, log: &dyn LogView) {
        self.note_unflushed(now, log);
        let Some(since) = self.unflushed_since.filter(|_| !self.flush_running) else { return };
        let wanted = if self.config.counts_flushed() || log.end() - log.flushed() >= self.config.flush_messages {
            Output::Flush
        } else if now.since(since) >= self.config.flush_ms {
            Output::Checkpoint
        } else {
            return;
        };
        self.flush_running = true;
        self.outputs.push_back(wanted);
    }

    fn tick(&mut self, now: TimestampMs, log: &dyn LogView) {
        for waiting in [&mut self.for_commit, &mut self.for_flush] {
            while let Some(produce) = waiting.pop_expired(now) {
                let result = Err(ProduceRefused::TimedOut);
                self.outputs.push_back(Output::ProduceDone { token: produce.token, result });
            }
        }
        let leader_epoch = self.leader_epoch();
        match &mut self.role {
            RoleState::Leader(Leader { pending: Some(pending), .. }) | RoleState::Offline(Some(pending))
                if pending.retry_at.is_some_and(|at| at <= now) =>
            {
                pending.retry_at = None;
                self.outputs.push_back(pending.output(leader_epoch));
            }
            RoleState::Follower(Follower { step: FollowerStep::BackingOff(until), .. }) if *until <= now => {
                self.fetch_on(now, log);
            }
            _ => {}
        }
        self.consider_recovered(now);
        self.consider_shrink(now, log);
        // A follower that no longer counts as about to join stops holding the high watermark by time alone.
        self.advance_high_watermark(now, log);
        self.consider_flush(now, log);
    }

    fn consider_recovered(&mut self, now: TimestampMs) {
        if self.state.as_ref().is_some_and(|state| state.value.recovering) {
            self.propose(now, None, |state| state.recovering = false);
        }
    }

    // Small questions.

    fn version(&self) -> i64 {
        self.state.as_ref().map_or(-1, |state| state.version)
    }

    fn isr(&self) -> &[BrokerId] {
        self.state.as_ref().map_or(&[], |state| &state.value.isr)
    }

    /// The other members that need not be waited for: those that stopped uncleanly since they came in, and those that are
    /// not registered. As long as we are not ourselves, as far as we know, nothing is known of who is.
    fn absent(&self) -> impl Iterator<Item = BrokerId> {
        let (me, known) = (self.config.me, self.live.contains_key(&self.config.me));
        let state = self.state.as_ref().map(|state| &state.value);
        let members = state.into_iter().flat_map(|state| state.isr.iter().map(|id| (*id, state.is_whole(*id))));
        let absent = move |(id, whole): &(BrokerId, bool)| !whole || (known && !self.live.contains_key(id));
        members.filter(move |(id, _)| *id != me).filter(absent).map(|(id, _)| id)
    }

    fn needed_in_sync(&self) -> usize {
        needed_in_sync(self.config.min_insync_replicas, self.assignment.len())
    }

    /// The end that counts as this replica's own for the high watermark.
    fn counted_end(&self, log: &dyn LogView) -> Offset {
        if self.config.counts_flushed() { log.flushed() } else { log.end() }
    }

    fn not_leader(&self) -> ProduceRefused {
        let leader = self.state.as_ref().and_then(|state| state.value.leader).filter(|id| *id != self.config.me);
        ProduceRefused::NotLeader { leader, leader_epoch: self.leader_epoch() }
    }

    fn leading(&self) -> Result<&Leader, ProduceRefused> {
        match &self.role {
            RoleState::Leader(leader) => Ok(leader),
            RoleState::Fenced => Err(ProduceRefused::Storage),
            RoleState::Follower(_) | RoleState::Offline(_) => Err(self.not_leader()),
        }
    }
}

/// A fetch reply without its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// The leader's high watermark.
    pub high_watermark: Offset,
    /// The leader's log start.
    pub log_start: Offset,
    /// Our log differs from the leader's.
    pub diverging: Option<EpochEnd>,
}

impl Pending {
    fn output(&self, leader_epoch: LeaderEpoch) -> Output {
        Output::ProposeIsr {
            proposal: self.proposal,
            leader_epoch,
            expected_version: self.expected_version,
            state: self.state.clone(),
            joining: self.joining,
        }
    }
}
