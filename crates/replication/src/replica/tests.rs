//! The machine against a log of numbers: Kafka's PartitionTest and fetcher scenarios as tables (facts 13.5, 13.6).

mod following;
mod leading;
mod waits;

use std::collections::BTreeMap;

use highwater_storage::EpochEnd;

use super::*;
use crate::event::{FetchError, FetchFailure, FetchGrant, FetchPlan, FollowerStatus, ProduceResult};
use crate::fixtures::{ids, state};
use crate::model::ModelLog;
use crate::{FetchRequest, Fetcher, Isolation};

const ME: BrokerId = BrokerId(1);
const CONSUMER: Fetcher = Fetcher::Consumer { isolation: Isolation::ReadUncommitted };

/// A replica, its log and its clock.
struct Rig {
    replica: Replica,
    log: ModelLog,
    now: i64,
    version: i64,
    assignment: Vec<BrokerId>,
    deferred_flush: bool,
    /// Outputs that are not for the log, since the last look.
    seen: Vec<Output>,
}

impl Rig {
    fn with(config: ReplicaConfig, log: ModelLog, checkpointed: i64) -> Self {
        let replica = Replica::new(config, &log, Some(Offset(checkpointed)));
        let assignment = ids(&[1, 2, 3]);
        let mut rig = Self { replica, log, now: 0, version: 0, assignment, deferred_flush: false, seen: Vec::new() };
        rig.live(&[(1, 10), (2, 20), (3, 30)]);
        rig
    }

    fn new(log: ModelLog) -> Self {
        Self::with(config(), log, 0)
    }

    /// Leader in `epoch` with this ISR, over a log of `end` records of the epoch before.
    fn leading(end: i64, epoch: i32, isr: &[i32]) -> Self {
        let log = if end == 0 { ModelLog::default() } else { ModelLog::with_epochs(&[(epoch - 1, 0)], end) };
        let mut rig = Self::new(log);
        rig.state(state(1, epoch, isr));
        assert_eq!(rig.replica.role(), Role::Leader);
        rig.seen.clear();
        rig
    }

    fn handle(&mut self, input: Input<'_>) {
        self.replica.handle(TimestampMs(self.now), &self.log, input);
        self.settle();
    }

    /// Carries out what is for the log, as `Partition` does.
    fn settle(&mut self) {
        while let Some(output) = self.replica.poll_output() {
            let done = match output {
                Output::AssignEpoch { epoch, start } => {
                    assert_eq!(start, self.log.end());
                    self.log.assign(epoch);
                    None
                }
                Output::Truncate { to, why } => {
                    self.log.truncate(to);
                    self.seen.push(Output::Truncate { to, why });
                    Some(Input::CutDone)
                }
                Output::Reset { start, why } => {
                    self.log.reset(start);
                    self.seen.push(Output::Reset { start, why });
                    Some(Input::CutDone)
                }
                sync @ (Output::Flush | Output::Checkpoint) if self.deferred_flush => {
                    self.seen.push(sync);
                    None
                }
                Output::Flush | Output::Checkpoint => {
                    self.log.flush();
                    Some(Input::Flushed)
                }
                other => {
                    self.seen.push(other);
                    None
                }
            };
            if let Some(input) = done {
                self.replica.handle(TimestampMs(self.now), &self.log, input);
            }
        }
        self.replica.check(&self.log);
        assert!(self.replica.poll_output().is_none(), "an invariant is broken");
    }

    fn state(&mut self, state: PartitionState) {
        self.version += 1;
        self.state_at(self.version, state);
    }

    fn state_at(&mut self, version: i64, state: PartitionState) {
        let assignment = self.assignment.clone();
        self.handle(Input::State { state: &Versioned { value: state, version }, assignment: &assignment });
    }

    fn live(&mut self, brokers: &[(i32, i64)]) {
        let live: BTreeMap<_, _> = brokers.iter().map(|&(id, epoch)| (BrokerId(id), BrokerEpoch(epoch))).collect();
        self.handle(Input::LiveBrokers(&live));
    }

    fn tick(&mut self, later: i64) {
        self.now += later;
        self.handle(Input::Tick);
    }

    fn produce(&mut self, count: usize, acks: Acks, token: u64) -> Result<Produced, ProduceRefused> {
        let epoch = self.replica.admit(acks)?;
        let base_offset = self.log.end();
        self.log.append(epoch, count);
        let answer = Acknowledged {
            base_offset,
            last_offset: self.log.end() + -1,
            append_time: TimestampMs::NONE,
            log_start: self.log.start(),
            duplicate: false,
        };
        self.appended(answer, acks, token)
    }

    fn appended(&mut self, answer: Acknowledged, acks: Acks, token: u64) -> Result<Produced, ProduceRefused> {
        let batch = AppendedBatch { answer, acks, deadline: TimestampMs(self.now + 30_000), token: WaitToken(token) };
        let produced = self.replica.appended(TimestampMs(self.now), &self.log, batch);
        self.settle();
        produced
    }

    fn append(&mut self, count: usize) {
        self.produce(count, Acks::Leader, 0).unwrap();
    }

    fn request(&self, id: i32, from: i64) -> FetchRequest {
        let broker_epoch = Some(BrokerEpoch(i64::from(id) * 10));
        FetchRequest {
            by: Fetcher::Follower { id: BrokerId(id), broker_epoch, log_start: Offset(0) },
            current_leader_epoch: Some(self.replica.leader_epoch()),
            last_fetched_epoch: None,
            from: Offset(from),
        }
    }

    fn fetch_as(&mut self, request: &FetchRequest) -> Result<FetchGrant, FetchError> {
        let grant = self.replica.fetch(TimestampMs(self.now), &self.log, request);
        self.settle();
        grant
    }

    /// A fetch of a follower whose log has this start and this last epoch.
    fn fetch_with(&mut self, id: i32, log_start: i64, from: i64, last: Option<i32>) {
        let broker_epoch = Some(BrokerEpoch(i64::from(id) * 10));
        let by = Fetcher::Follower { id: BrokerId(id), broker_epoch, log_start: Offset(log_start) };
        let request = FetchRequest { by, last_fetched_epoch: last.map(LeaderEpoch), ..self.request(id, from) };
        self.fetch_as(&request).unwrap();
    }

    fn fetch(&mut self, id: i32, from: i64) {
        let request = self.request(id, from);
        self.fetch_as(&request).unwrap();
    }

    /// What a consumer gets that reads from `from`.
    fn consume(&mut self, from: i64) -> Vec<i64> {
        let request =
            FetchRequest { by: CONSUMER, current_leader_epoch: None, last_fetched_epoch: None, from: Offset(from) };
        let grant = self.fetch_as(&request).unwrap();
        (from..grant.upper.0).collect()
    }

    fn hw(&self) -> i64 {
        self.replica.high_watermark().0
    }

    fn isr(&self) -> Vec<BrokerId> {
        self.replica.status(&self.log).isr
    }

    fn follower(&self, id: i32) -> FollowerStatus {
        self.replica.status(&self.log).followers.into_iter().find(|follower| follower.id == BrokerId(id)).unwrap()
    }

    fn take_seen(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.seen)
    }

    /// The ISR proposed since the last look, with its name and expected version.
    fn proposed(&mut self) -> Option<(u64, i64, PartitionState)> {
        let mut proposals: Vec<_> = self
            .take_seen()
            .into_iter()
            .filter_map(|output| match output {
                Output::ProposeIsr { proposal, expected_version, state, .. } => {
                    Some((proposal, expected_version, state))
                }
                _ => None,
            })
            .collect();
        assert!(proposals.len() <= 1, "{proposals:?}");
        proposals.pop()
    }

    fn decide(&mut self, proposal: u64, decision: IsrDecision) {
        self.handle(Input::IsrDecided { proposal, decision });
    }

    fn commit(&mut self, (proposal, expected, value): (u64, i64, PartitionState)) {
        self.version = expected + 1;
        self.decide(proposal, IsrDecision::Committed(Versioned { value, version: expected + 1 }));
    }

    fn produce_results(&mut self) -> Vec<(u64, ProduceResult)> {
        let done = |output| match output {
            Output::ProduceDone { token, result } => Some((token.0, result)),
            _ => None,
        };
        self.take_seen().into_iter().filter_map(done).collect()
    }

    fn woken(&mut self) -> Vec<u64> {
        let woken = |output| match output {
            Output::WakeFetch { token } => Some(token.0),
            _ => None,
        };
        self.take_seen().into_iter().filter_map(woken).collect()
    }

    fn plan(&mut self) -> Option<FetchPlan> {
        let plan = |output| match output {
            Output::Fetch(plan) => Some(plan),
            _ => None,
        };
        self.take_seen().into_iter().filter_map(plan).next_back()
    }

    /// A reply to a fetch from `from` in `epoch`, made with the log as it is now. If records are to be appended, the log's
    /// start has been moved and the appending is left to the caller, as is the report.
    fn reply(&mut self, epoch: i32, from: i64, result: Result<ReplyHead, FetchFailure>) -> ReplyStep {
        let plan = FetchPlan { leader_epoch: LeaderEpoch(epoch), from: Offset(from), ..self.asked() };
        self.reply_to(&plan, result)
    }

    /// The fetch that a follower with this log makes.
    fn asked(&self) -> FetchPlan {
        FetchPlan {
            leader: self.replica.status(&self.log).leader.unwrap_or(ME),
            leader_epoch: self.replica.leader_epoch(),
            from: self.log.end(),
            last_fetched_epoch: Some(self.log.latest_epoch()).filter(|epoch| epoch.is_some()),
            log_start: self.log.start(),
            broker_epoch: BrokerEpoch(10),
        }
    }

    fn reply_to(&mut self, plan: &FetchPlan, result: Result<ReplyHead, FetchFailure>) -> ReplyStep {
        let step = self.replica.take_reply(TimestampMs(self.now), &self.log, plan, result);
        if let ReplyStep::Append { log_start, .. } = step {
            self.log.advance_start(log_start);
        } else {
            self.settle();
        }
        step
    }

    /// A reply with `count` records of `record_epoch`, appended as `Partition` does.
    fn reply_records(&mut self, epoch: i32, from: i64, record_epoch: i32, count: usize, high_watermark: i64) {
        if let ReplyStep::Append { .. } = self.reply(epoch, from, Ok(head(high_watermark, 0))) {
            self.log.append(LeaderEpoch(record_epoch), count);
            self.handle(Input::Replicated);
        }
    }
}

fn config() -> ReplicaConfig {
    ReplicaConfig { lag_time_max_ms: 10_000, flush_ms: i64::MAX, ..ReplicaConfig::new(ME, BrokerEpoch(10)) }
}

fn head(high_watermark: i64, log_start: i64) -> ReplyHead {
    ReplyHead { high_watermark: Offset(high_watermark), log_start: Offset(log_start), diverging: None }
}

fn diverging(epoch: i32, end: i64) -> ReplyHead {
    let end = EpochEnd { epoch: LeaderEpoch(epoch), end: Offset(end) };
    ReplyHead { diverging: Some(end), ..head(99, 0) }
}
