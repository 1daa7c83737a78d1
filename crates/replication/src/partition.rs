//! One log and one replica of it: carries out on the log what the replica decides.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use highwater_storage::{
    AppendError, CheckedBatch, CloseReport, Damaged, EpochEnd, FlushDone, FlushError, FlushJob, HealError, LeaderEpoch,
    Log, LogOptions, LogReader, Offset, Step, TimestampMs, TopicPartition, TruncateError, WorkDone, WorkJob,
    WorkLimits,
};

use crate::event::{
    Acknowledged, Cut, CutReason, DeleteRefused, FenceReason, FetchError, FetchGrant, FetchPlan, FetchReply,
    FetchRequest, Fetcher, ListedOffset, Output, ProduceRefused, ProduceResult, Produced, Role, Status, Which,
};
use crate::heal::{self, HealPlan};
use crate::lineage::LogView;
use crate::replica::{AppendedBatch, Input, Replica, ReplyHead, ReplyStep};
use crate::{
    Acks, BrokerEpoch, BrokerId, IsrDecision, PartitionState, PublishedEnd, ReplicaConfig, Versioned, WaitToken,
};

/// What a partition wants done outside of it. In the order of their causes; to be carried out in that order, after the
/// partition is unlocked.
#[derive(Debug)]
#[non_exhaustive]
pub enum Effect {
    /// Answer the produce that waited under this token.
    ProduceDone {
        /// The token it came with.
        token: WaitToken,
        /// The answer.
        result: ProduceResult,
    },
    /// Try the fetch again that waited under this token: by [`Partition::regrant`].
    WakeFetch {
        /// The token it came with.
        token: WaitToken,
    },
    /// Commit this state to the store if its version is still this one; give the answer to [`Partition::isr_decided`].
    ProposeIsr {
        /// Names the proposal in the answer.
        proposal: u64,
        /// The leadership that proposes: once a later one is known the proposal need not be sent.
        leader_epoch: LeaderEpoch,
        /// The version the store must have.
        expected_version: i64,
        /// The state to write.
        state: PartitionState,
        /// The broker that comes into the ISR by this, in the life whose fetches say that it may: the write must fail
        /// ([`IsrDecision::Refused`](crate::IsrDecision)) unless it is registered in that very life. The version alone
        /// does not see to that: a fetch of its former life may arrive after everything its return has written.
        joining: Option<(BrokerId, BrokerEpoch)>,
    },
    /// Fetch from the leader, and give the reply to [`Partition::fetched`], failures too. It replaces an earlier one.
    Fetch(FetchPlan),
    /// Do not fetch any more.
    StopFetching,
    /// Run this job, away from the partition's owner, and give the result to [`Partition::flushed`]. There is one at a
    /// time.
    FlushWanted(Box<FlushJob>),
    /// Something happened to the log's history: to be recorded.
    Cut(Cut),
    /// The high watermark moved.
    HighWatermark(Offset),
    /// Nobody leads, and this broker stopped uncleanly: tell the controller how far its log goes, as long as this session
    /// lives ([`PartitionFacts::ends`](crate::PartitionFacts)).
    PublishEnd(PublishedEnd),
    /// The partition closed itself until its log is opened again.
    Fenced {
        /// Why.
        reason: FenceReason,
        /// The leadership in which it happened; another replica should lead if this one did.
        leader_epoch: LeaderEpoch,
    },
}

/// Why a produce failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProduceError {
    /// By the replica: its role, its ISR.
    #[error(transparent)]
    Refused(#[from] ProduceRefused),
    /// By the log: nothing of the batch is in it.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// A replica of a partition with its log. Every call is quick except where it says otherwise: what takes long comes out
/// as an [`Effect`] (flushes), or is done through [`Partition::reader`] by somebody else (reads).
#[derive(Debug)]
pub struct Partition {
    topic_partition: TopicPartition,
    log: Log,
    replica: Replica,
    effects: VecDeque<Effect>,
    /// A flush that has to wait for one that runs, or a checkpoint that has to wait for any.
    owed: Option<Sync>,
    /// Jobs that were given out: what the replica asked for, a checkpoint that the caller asked for, and a piece of
    /// housekeeping, which may be a checkpoint too.
    syncing: bool,
    checkpointing: bool,
    working: bool,
}

/// What is to become durable: the records, or everything that lets recovery begin after them too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sync {
    Records,
    Checkpoint,
}

impl LogView for Log {
    fn start(&self) -> Offset {
        Self::start(self)
    }

    fn end(&self) -> Offset {
        Self::end(self)
    }

    fn flushed(&self) -> Offset {
        Self::flushed(self)
    }

    fn first_epoch(&self) -> LeaderEpoch {
        self.epochs().first().map_or(LeaderEpoch::NONE, |&(epoch, _)| epoch)
    }

    fn latest_epoch(&self) -> LeaderEpoch {
        Self::latest_epoch(self)
    }

    fn end_of_epoch(&self, epoch: LeaderEpoch) -> EpochEnd {
        Self::end_of_epoch(self, epoch)
    }

    fn generation(&self) -> u64 {
        Self::generation(self)
    }

    fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        Self::last_stable_offset(self, high_watermark)
    }
}

impl Partition {
    /// A replica that does nothing until the store's state is known. The high watermark begins at the checkpointed one,
    /// as far as the log holds it. The log should not sync by itself: the policy is the replica's.
    pub fn new(
        config: ReplicaConfig,
        topic_partition: TopicPartition,
        log: Log,
        checkpointed_high_watermark: Option<Offset>,
    ) -> Self {
        let replica = Replica::new(config, &log, checkpointed_high_watermark);
        Self {
            topic_partition,
            log,
            replica,
            effects: VecDeque::new(),
            owed: None,
            syncing: false,
            checkpointing: false,
            working: false,
        }
    }

    /// Which partition.
    pub fn topic_partition(&self) -> &TopicPartition {
        &self.topic_partition
    }

    /// Its log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// A reader of its log, for any thread.
    pub fn reader(&self) -> LogReader {
        self.log.reader()
    }

    /// Takes the store's state, from its watch or freshly read; older versions change nothing. A change of the leader
    /// may cut the log, which syncs.
    pub fn apply_state(&mut self, now: TimestampMs, state: &Versioned<PartitionState>, assignment: &[BrokerId]) {
        self.handle(now, Input::State { state, assignment });
    }

    /// Takes the brokers that are registered now.
    pub fn apply_live_brokers(&mut self, now: TimestampMs, live: &BTreeMap<BrokerId, BrokerEpoch>) {
        self.handle(now, Input::LiveBrokers(live));
    }

    /// The store reported our session expired: step down. A store that only does not answer is no reason.
    pub fn session_lost(&mut self, now: TimestampMs) {
        self.handle(now, Input::SessionLost);
    }

    /// We are registered again. The next state that is applied counts even if its version is known: it has to be read
    /// after the registration.
    pub fn registered(&mut self, now: TimestampMs, broker_epoch: BrokerEpoch) {
        self.handle(now, Input::Registered(broker_epoch));
    }

    /// Takes new settings. Who the replica is stays; options of the log that are out of range are left as they were.
    pub fn configure(&mut self, now: TimestampMs, config: ReplicaConfig, options: impl Into<Arc<LogOptions>>) {
        // Options come from a topic's configuration, which was checked when it was set: a bad one must not take the
        // partition away.
        let _unchanged_if_invalid = self.log.set_options(options);
        self.handle(now, Input::Configure(&config));
    }

    /// Appends a producer's batch as the leader.
    ///
    /// # Errors
    /// Nothing was written then, unless the error is [`ProduceRefused::NotEnoughReplicasAfterAppend`].
    pub fn produce<B: AsRef<[u8]>>(
        &mut self,
        now: TimestampMs,
        batch: &CheckedBatch<B>,
        acks: Acks,
        deadline: TimestampMs,
        token: WaitToken,
    ) -> Result<Produced, ProduceError> {
        let epoch = self.replica.admit(acks)?;
        let appended = match self.log.append_checked(now, epoch, batch) {
            Ok(appended) => appended,
            Err(error) => {
                self.settle(now);
                return Err(error.into());
            }
        };
        let answer = Acknowledged {
            base_offset: appended.first,
            last_offset: appended.last,
            append_time: appended.timestamp,
            log_start: self.log.start(),
            duplicate: appended.duplicate,
        };
        let produced = self.replica.appended(now, &self.log, AppendedBatch { answer, acks, deadline, token });
        self.settle(now);
        Ok(produced?)
    }

    /// Answers a fetch that arrives: what may be read. The caller reads through [`Partition::reader`], up to the
    /// grant's `upper` and in its generation, on a thread that may wait for the disk. A follower's fetch counts as its
    /// acknowledgement of everything below `from`.
    ///
    /// # Errors
    /// If this replica does not serve that fetch; see [`FetchError`].
    pub fn fetch(&mut self, now: TimestampMs, fetch: &FetchRequest) -> Result<FetchGrant, FetchError> {
        let grant = self.replica.fetch(now, &self.log, fetch);
        self.settle(now);
        grant
    }

    /// Answers a fetch again that has waited, or whose read was superseded by a cut. It acknowledges nothing.
    ///
    /// # Errors
    /// As [`Partition::fetch`].
    pub fn regrant(&mut self, _now: TimestampMs, fetch: &FetchRequest) -> Result<FetchGrant, FetchError> {
        self.replica.regrant(&self.log, fetch)
    }

    /// Has [`Effect::WakeFetch`] come once there is something for this fetch at `from`, or the leadership changes, or
    /// the log is cut; at once if there is something already. It comes once.
    pub fn watch_fetch(&mut self, token: WaitToken, by: Fetcher, from: Offset) {
        self.replica.watch_fetch(&self.log, token, by, from);
        self.collect();
    }

    /// Forgets a fetch that waits.
    pub fn unwatch_fetch(&mut self, token: WaitToken) {
        self.replica.unwatch_fetch(token);
    }

    /// Answers a list-offsets request, or says what to look for with [`Partition::reader`].
    ///
    /// # Errors
    /// As [`Partition::fetch`].
    pub fn list_offset(
        &self,
        by: Fetcher,
        current_leader_epoch: Option<LeaderEpoch>,
        which: Which,
    ) -> Result<ListedOffset, FetchError> {
        self.replica.list_offset(&self.log, by, current_leader_epoch, which)
    }

    /// Answers where an epoch ends in this log; [`EpochEnd::NONE`] if the log cannot say.
    ///
    /// # Errors
    /// As [`Partition::fetch`].
    pub fn end_of_epoch(
        &self,
        _by: Fetcher,
        current_leader_epoch: Option<LeaderEpoch>,
        epoch: LeaderEpoch,
    ) -> Result<EpochEnd, FetchError> {
        self.replica.end_of_epoch(&self.log, current_leader_epoch, epoch)
    }

    /// Takes the reply to a [`FetchPlan`]: appends its records, or cuts where the leader says (which syncs). A reply
    /// that is not awaited changes nothing.
    pub fn fetched(&mut self, now: TimestampMs, reply: FetchReply<'_>) {
        let head = reply.result.as_ref().map_err(|failure| *failure).map(|came| ReplyHead {
            high_watermark: came.high_watermark,
            log_start: came.log_start,
            diverging: came.diverging,
        });
        let step = self.replica.take_reply(now, &self.log, &reply.plan, head);
        if let (ReplyStep::Append { leader_epoch, log_start }, Ok(came)) = (step, reply.result) {
            let input = self.replicate(now, leader_epoch, log_start, came.records);
            self.replica.handle(now, &self.log, input);
        }
        self.settle(now);
    }

    /// Has the log of this leader begin at an offset, or at the high watermark; an earlier one changes nothing. Its followers do
    /// the same when they hear of it. What was not synced below is synced. Returns where the log begins.
    ///
    /// # Errors
    /// Nothing was deleted; see [`DeleteRefused`]. If that closed the log, this replica closes itself.
    pub fn delete_records(&mut self, now: TimestampMs, before: Option<Offset>) -> Result<Offset, DeleteRefused> {
        let Status { role, high_watermark, .. } = self.status();
        if role != Role::Leader {
            return Err(DeleteRefused::NotLeader);
        }
        let before = before.unwrap_or(high_watermark);
        if before > high_watermark {
            return Err(DeleteRefused::OutOfRange { before, high_watermark });
        }
        let moved = self.log.advance_start(before).map_err(|error| DeleteRefused::Storage(error.to_string()));
        self.settle(now);
        moved
    }

    /// What of the damage of its log could be healed now, and who may help; `None` if nothing.
    pub fn heal_plan(&self) -> Option<HealPlan> {
        let damage = self.log.damage();
        if damage.is_empty() { None } else { heal::plan(self.replica.me(), &self.status(), damage) }
    }

    /// Puts what another replica has in the place of damage, which syncs. The log takes only what proves that it belongs there.
    ///
    /// # Errors
    /// As [`Log::heal`]; if that closed the log, this replica closes itself.
    pub fn heal(&mut self, now: TimestampMs, damaged: &Damaged, healed: &[u8]) -> Result<(), HealError> {
        let done = self.log.heal(damaged, healed);
        self.settle(now);
        done
    }

    /// Takes the result of a flush or checkpoint.
    pub fn flushed(&mut self, now: TimestampMs, done: FlushDone) {
        if self.checkpointing && done.is_checkpoint() {
            self.checkpointing = false;
        } else {
            self.syncing = false;
        }
        match self.log.finish_flush(done) {
            // A side file that could not be written holds the recovery point back, nothing else.
            Ok(_) | Err(FlushError::Io(_)) => self.sync_ended(now),
            Err(error) => self.log_failed(now, "flush", error.to_string()),
        }
    }

    /// Begins to move the recovery point up, which bounds what the next recovery has to read: for the caller's timer.
    /// Run the job away from the partition's owner and give the result to [`Partition::flushed`]. `None` if nothing is
    /// to be done, or another job runs.
    pub fn begin_checkpoint(&mut self) -> Option<FlushJob> {
        let job = self.log.begin_checkpoint();
        self.checkpointing |= job.is_some();
        job
    }

    /// Begins the next piece of housekeeping that is due: retention below the high watermark, rolls by age, files to
    /// remove. Run it away from the partition's owner and give the result to [`Partition::finish_work`]. `None` if none
    /// is due, or one runs.
    pub fn begin_work(&mut self, now: TimestampMs) -> Option<WorkJob> {
        self.begin_work_within(now, WorkLimits::new(self.replica.high_watermark()))
    }

    /// As [`Partition::begin_work`], without a look at retention.
    pub fn begin_work_without_retention(&mut self, now: TimestampMs) -> Option<WorkJob> {
        self.begin_work_within(now, WorkLimits::new(self.replica.high_watermark()).without_retention())
    }

    /// Whether a piece of housekeeping was begun and is not finished.
    pub fn is_working(&self) -> bool {
        self.working
    }

    fn begin_work_within(&mut self, now: TimestampMs, limits: WorkLimits) -> Option<WorkJob> {
        let work = self.log.begin_work(now, &limits);
        self.working |= work.is_some();
        self.settle(now);
        work
    }

    /// As [`Partition::begin_work`], only what a log needs that is being written to and synced: zeros ahead of its end and
    /// checkpoints. Cheap enough to be asked after each flush.
    pub fn begin_pressing_work(&mut self, now: TimestampMs) -> Option<WorkJob> {
        let work = self.log.begin_pressing_work(now);
        self.working |= work.is_some();
        work
    }

    /// Takes the result of a piece of housekeeping, failed or not. Begin the next: what failed is not begun again before
    /// all other kinds of work are done. Returns what was done, if it came to something: [`Step::Scrubbed`] tells of
    /// damage.
    ///
    /// # Errors
    /// As [`Log::finish_work`]; if the log closed, so did the partition.
    pub fn finish_work(&mut self, now: TimestampMs, done: WorkDone) -> Result<Option<Step>, FlushError> {
        self.working = false;
        let finished = self.log.finish_work(done);
        match &finished {
            Err(FlushError::Closed(fence)) => self.log_failed(now, "do housekeeping", fence.to_string()),
            _ => self.sync_ended(now),
        }
        finished
    }

    /// Takes what became of a proposal.
    pub fn isr_decided(&mut self, now: TimestampMs, proposal: u64, decision: IsrDecision) {
        self.handle(now, Input::IsrDecided { proposal, decision });
    }

    /// Does what is due: deadlines, lagging followers, back-offs, flushes.
    pub fn tick(&mut self, now: TimestampMs) {
        self.handle(now, Input::Tick);
    }

    /// When [`Partition::tick`] is due next.
    pub fn next_deadline(&self) -> Option<TimestampMs> {
        self.replica.next_deadline(&self.log)
    }

    /// The next thing to do.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The partition at a glance.
    pub fn status(&self) -> Status {
        self.replica.status(&self.log)
    }

    /// The ISR that counts at present: while a change is under way, the larger set.
    pub fn maximal_isr(&self) -> Vec<BrokerId> {
        self.replica.maximal_isr()
    }

    /// Closes the log cleanly: flushes it (which takes long) and marks it so. Dropping a partition is a crash.
    ///
    /// # Errors
    /// If the flush or a write fails: the log is then not marked clean.
    pub fn close(self) -> Result<CloseReport, FlushError> {
        self.log.close()
    }

    fn handle(&mut self, now: TimestampMs, input: Input<'_>) {
        self.replica.handle(now, &self.log, input);
        self.settle(now);
    }

    fn log_failed(&mut self, now: TimestampMs, verb: &'static str, cause: String) {
        self.handle(now, Input::LogFailed(FenceReason::Log { verb, cause }));
    }

    /// Takes over the leader's start, durably, and then appends what it sent. What it would not have sent in this epoch is
    /// refused, whole.
    fn replicate(
        &mut self,
        now: TimestampMs,
        leader_epoch: LeaderEpoch,
        log_start: Offset,
        records: &[u8],
    ) -> Input<'static> {
        match self.log.advance_start(log_start) {
            Ok(_) => {}
            Err(TruncateError::Closed(fence)) => {
                let (verb, cause) = ("advance its start", fence.to_string());
                return Input::LogFailed(FenceReason::Log { verb, cause });
            }
            // Nothing was changed, and nothing may be appended before it is.
            Err(_) => return Input::ReplicatedRefused,
        }
        match self.log.append_replicated_of(now, leader_epoch, records) {
            Ok(_) => Input::Replicated,
            // Damaged on the way, of a later epoch than was asked, or no room: nothing is lost by asking again.
            Err(_) => Input::ReplicatedRefused,
        }
    }

    /// Carries out what the replica wants until it wants nothing more, then checks the invariants, and whether the log
    /// has closed: it may in a call that failed for another reason, or in a job that nobody has given back yet.
    fn settle(&mut self, now: TimestampMs) {
        loop {
            while let Some(output) = self.replica.poll_output() {
                if let Some(input) = self.carry_out(now, output) {
                    self.replica.handle(now, &self.log, input);
                }
            }
            self.replica.check(&self.log);
            if let Some(fence) = self.log.fence() {
                let reason = FenceReason::Log { verb: "go on", cause: fence.to_string() };
                self.replica.handle(now, &self.log, Input::LogFailed(reason));
            }
            match self.replica.poll_output() {
                Some(output) => self.pass_on(output),
                None => return,
            }
        }
    }

    /// Takes over outputs where none can be for the log.
    fn collect(&mut self) {
        while let Some(output) = self.replica.poll_output() {
            self.pass_on(output);
        }
    }

    /// Does what is for the log and returns what the replica has to hear of it; passes the rest on.
    fn carry_out(&mut self, now: TimestampMs, output: Output) -> Option<Input<'static>> {
        let failed = |verb, cause: String| Some(Input::LogFailed(FenceReason::Log { verb, cause }));
        match output {
            Output::AssignEpoch { epoch, start } => match self.log.assign_epoch(epoch, start) {
                Ok(()) => None,
                Err(error) => failed("record a leadership", error.to_string()),
            },
            Output::Truncate { to, why } => self.cut(now, why, |log| log.truncate_to(to).map(drop)),
            Output::Reset { start, why } => self.cut(now, why, |log| log.reset_to(start).map(drop)),
            Output::Flush => self.sync(Sync::Records),
            Output::Checkpoint => self.sync(Sync::Checkpoint),
            Output::UncleanElection => {
                // What is known to be lost: a follower that was behind had been told of more than it has.
                let (told, here) = (self.replica.leaders_high_watermark(), (self.log.end(), self.log.latest_epoch()));
                let from = if told.0 > here.0 { told } else { here };
                self.record(now, CutReason::UncleanElection, from, self.log.start());
                None
            }
            other => {
                self.pass_on(other);
                None
            }
        }
    }

    /// Begins a sync, or owes it until the job that runs has ended.
    fn sync(&mut self, what: Sync) -> Option<Input<'static>> {
        let job = match what {
            Sync::Records => self.log.begin_flush(),
            Sync::Checkpoint => self.log.begin_checkpoint(),
        };
        match job {
            Some(job) => {
                self.syncing = true;
                // The log has one checkpoint under way: another that was given out has been dropped, and never ends.
                self.checkpointing &= what != Sync::Checkpoint;
                self.effects.push_back(Effect::FlushWanted(Box::new(job)));
                None
            }
            None if self.log.flushed() >= self.log.end() => Some(Input::Flushed),
            None if self.syncing || self.checkpointing || self.working => {
                self.owed = Some(what);
                None
            }
            None => Some(Input::LogFailed(FenceReason::Log { verb: "flush", cause: "it is closed".to_owned() })),
        }
    }

    /// A job has ended that may have made records durable: begins what waited for it, or tells the replica.
    fn sync_ended(&mut self, now: TimestampMs) {
        let input = match self.owed.take() {
            Some(what) => self.sync(what),
            // Neither a piece of housekeeping nor a checkpoint says anything about a flush that runs beside it.
            None if self.syncing => None,
            None => Some(Input::Flushed),
        };
        if let Some(input) = input {
            self.replica.handle(now, &self.log, input);
        }
        self.settle(now);
    }

    fn cut(
        &mut self,
        now: TimestampMs,
        why: CutReason,
        cut: impl FnOnce(&mut Log) -> Result<(), TruncateError>,
    ) -> Option<Input<'static>> {
        let (before, start) = ((self.log.end(), self.log.latest_epoch()), self.log.start());
        match cut(&mut self.log) {
            Ok(()) => {
                if before != (self.log.end(), self.log.latest_epoch()) || start != self.log.start() {
                    self.record(now, why, before, start);
                }
                Some(Input::CutDone)
            }
            // Nothing was changed, which the replica sees; it tries again later.
            Err(TruncateError::Io(_)) => Some(Input::CutDone),
            Err(error) => Some(Input::LogFailed(FenceReason::Log { verb: "cut", cause: error.to_string() })),
        }
    }

    fn record(&mut self, when: TimestampMs, why: CutReason, from: (Offset, LeaderEpoch), start: Offset) {
        let to = (self.log.end(), self.log.latest_epoch());
        // After a new start nothing of the old records is left; else what lies between the ends is gone.
        let kept_to = if self.log.start() == start { to.0 } else { start };
        self.effects.push_back(Effect::Cut(Cut {
            when,
            why,
            leader_epoch: self.replica.leader_epoch(),
            from,
            to,
            high_watermark: self.replica.high_watermark(),
            records: (from.0 - kept_to).max(0),
        }));
    }

    fn pass_on(&mut self, output: Output) {
        self.effects.push_back(match output {
            Output::ProduceDone { token, result } => Effect::ProduceDone { token, result },
            Output::WakeFetch { token } => Effect::WakeFetch { token },
            Output::ProposeIsr { proposal, leader_epoch, expected_version, state, joining } => {
                Effect::ProposeIsr { proposal, leader_epoch, expected_version, state, joining }
            }
            Output::Fetch(plan) => Effect::Fetch(plan),
            Output::StopFetching => Effect::StopFetching,
            Output::HighWatermark(offset) => Effect::HighWatermark(offset),
            Output::PublishEnd(end) => Effect::PublishEnd(end),
            Output::Fenced(reason) => Effect::Fenced { reason, leader_epoch: self.replica.leader_epoch() },
            // A closed replica wants nothing of its log, and a watch never does.
            Output::AssignEpoch { .. }
            | Output::Truncate { .. }
            | Output::Reset { .. }
            | Output::Flush
            | Output::Checkpoint
            | Output::UncleanElection => return,
        });
    }
}

#[cfg(test)]
mod tests;
