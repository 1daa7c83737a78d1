//! What replicas want done: fetches between brokers, flushes, housekeeping, changes of the in-sync sets.

use highwater_replication::{
    Effect, FetchError, FetchFailure, FetchReply, FetchRequest, FetchedRecords, Fetcher, IsrDecision, Role,
};
use highwater_storage::{EpochEnd, ReadLimit};

use super::*;
use crate::fault::STORE;

const LONG_POLL_MS: i64 = 60;
const FETCH_TIMEOUT_MS: i64 = 120;
const HOUSEKEEPING_MS: i64 = 70;

/// A change of the in-sync set on its way to the store.
pub(super) struct Proposal {
    pub(super) number: u64,
    pub(super) expected: i64,
    pub(super) state: PartitionState,
    pub(super) joining: Option<(BrokerId, BrokerEpoch)>,
}

#[derive(Clone, Debug)]
pub(super) struct Reply {
    records: Vec<u8>,
    high_watermark: Offset,
    log_start: Offset,
    diverging: Option<EpochEnd>,
    failure: Option<FetchFailure>,
}

impl Reply {
    fn failed(failure: FetchFailure) -> Self {
        let nothing = Offset(-1);
        let (records, failure) = (Vec::new(), Some(failure));
        Self { records, high_watermark: nothing, log_start: nothing, diverging: None, failure }
    }
}

impl World {
    pub(super) fn replica_ticks(&mut self, node: usize, at: usize, tick: u64) {
        let now = self.nodes[node].time(self.now);
        let Some(replica) = self.nodes[node].replica(at) else { return };
        if replica.ticking.take_if(|ticking| ticking.1 == tick).is_some() {
            replica.partition.tick(now);
        }
    }

    pub(super) fn fetch_arrives(&mut self, node: usize, id: FetchId) {
        let plan = id.plan;
        let request = FetchRequest {
            by: Fetcher::Follower {
                id: self.nodes[id.node].id,
                broker_epoch: Some(plan.broker_epoch),
                log_start: plan.log_start,
            },
            current_leader_epoch: Some(plan.leader_epoch),
            last_fetched_epoch: plan.last_fetched_epoch,
            from: plan.from,
        };
        self.answer_fetch(node, id, &request, true);
    }

    pub(super) fn poll_ends(&mut self, node: usize, at: usize, token: WaitToken) {
        let Some(replica) = self.nodes[node].replica(at) else { return };
        if let Some((request, id)) = replica.parked.remove(&token) {
            replica.partition.unwatch_fetch(token);
            self.answer_fetch(node, id, &request, false);
        }
    }

    fn answer_fetch(&mut self, node: usize, id: FetchId, request: &FetchRequest, initial: bool) {
        let now = self.nodes[node].time(self.now);
        let max_bytes = self.nodes[node].random.pick(&[300usize, 1 << 20]);
        let Some(replica) = self.nodes[node].replica(id.at) else { return };
        let granted =
            if initial { replica.partition.fetch(now, request) } else { replica.partition.regrant(now, request) };
        let reply = match granted {
            Ok(grant) => {
                let nothing = grant.upper <= request.from && grant.diverging.is_none();
                if initial && nothing {
                    let token = replica.token();
                    replica.parked.insert(token, (request.clone(), id));
                    replica.partition.watch_fetch(token, request.by, request.from);
                    return self.schedule(LONG_POLL_MS, node, Event::PollEnds(id.at, token));
                }
                let limit = ReadLimit::bytes(max_bytes).below(grant.upper);
                let records = if nothing || grant.diverging.is_some() {
                    Ok(Vec::new())
                } else {
                    replica.partition.reader().read(request.from, limit).map(|read| read.bytes)
                };
                match records {
                    Ok(records) => Reply {
                        records,
                        high_watermark: grant.high_watermark,
                        log_start: grant.log_start,
                        diverging: grant.diverging,
                        failure: None,
                    },
                    Err(_) => Reply::failed(FetchFailure::Unreachable),
                }
            }
            Err(error) => Reply::failed(match error {
                FetchError::FencedLeaderEpoch { .. } => FetchFailure::FencedLeaderEpoch,
                FetchError::UnknownLeaderEpoch { .. } => FetchFailure::UnknownLeaderEpoch,
                FetchError::OutOfRange { log_start, .. } => FetchFailure::OutOfRange { log_start: Some(log_start) },
                _ => FetchFailure::Unreachable,
            }),
        };
        if !self.nodes[node].fs.crashed() {
            self.post_for(node, id.node, id.life, Event::ReplyArrives(id, Box::new(reply)));
        }
    }

    pub(super) fn reply_arrives(&mut self, node: usize, id: &FetchId, reply: &Reply) {
        let now = self.nodes[node].time(self.now);
        let Some(replica) = self.nodes[node].replica(id.at) else { return };
        replica.fetching.take_if(|fetching| fetching.0 == id.number);
        let result = match reply.failure {
            Some(failure) => Err(failure),
            None => Ok(FetchedRecords {
                records: &reply.records,
                high_watermark: reply.high_watermark,
                log_start: reply.log_start,
                diverging: reply.diverging,
            }),
        };
        replica.partition.fetched(now, FetchReply { plan: id.plan, result });
    }

    pub(super) fn fetch_times_out(&mut self, node: usize, at: usize, number: u64) {
        let now = self.nodes[node].time(self.now);
        let Some(replica) = self.nodes[node].replica(at) else { return };
        if let Some((_, plan)) = replica.fetching.take_if(|fetching| fetching.0 == number) {
            replica.partition.fetched(now, FetchReply { plan, result: Err(FetchFailure::Unreachable) });
        }
    }

    pub(super) fn flush_runs(&mut self, node: usize, at: usize, job: FlushJob) {
        let now = self.nodes[node].time(self.now);
        if let Some(replica) = self.nodes[node].replica(at) {
            replica.partition.flushed(now, job.run());
        }
    }

    pub(super) fn work_runs(&mut self, node: usize, at: usize, job: WorkJob) {
        let now = self.nodes[node].time(self.now);
        let Some(replica) = self.nodes[node].replica(at) else { return };
        let finished = replica.partition.finish_work(now, job.run());
        assert!(finished.is_ok() || self.nodes[node].fs.crashed(), "on a disk that does not fail: {finished:?}");
        self.begin_work(node, at);
    }

    pub(super) fn keep_house(&mut self, node: usize) {
        for at in 0..PARTITIONS {
            self.begin_work(node, at);
        }
        self.schedule(HOUSEKEEPING_MS, node, Event::Housekeeping);
    }

    fn begin_work(&mut self, node: usize, at: usize) {
        let (after_ms, now) = (self.disk_time(node), self.nodes[node].time(self.now));
        let checkpoints = self.nodes[node].random.one_in(8);
        let Some(replica) = self.nodes[node].replica(at) else { return };
        if let Some(job) = replica.partition.begin_work(now) {
            self.schedule(after_ms, node, Event::WorkRuns(at, Box::new(job)));
        } else if checkpoints && let Some(job) = replica.partition.begin_checkpoint() {
            self.schedule(after_ms, node, Event::FlushRuns(at, Box::new(job)));
        }
    }

    /// How long a broker's disk takes for a job.
    fn disk_time(&mut self, node: usize) -> i64 {
        let broker = &mut self.nodes[node];
        let time = broker.random.between(1, 6);
        if broker.slow_until > self.now { time * 30 } else { time }
    }

    /// Carries out what a broker's partitions want.
    pub(super) fn settle(&mut self, node: usize) {
        for at in 0..PARTITIONS {
            loop {
                let Some(replica) = self.nodes[node].replica(at) else { return };
                let Some(effect) = replica.partition.poll_effect() else { break };
                self.carry_out(node, at, effect);
            }
            self.arm(node, at);
            self.look(node, at);
        }
    }

    fn carry_out(&mut self, node: usize, at: usize, effect: Effect) {
        let Some(replica) = self.nodes[node].replica(at) else { return };
        match effect {
            Effect::ProduceDone { token, result } => {
                if let Some(then) = replica.produces.remove(&token) {
                    self.produced(
                        node,
                        at,
                        then,
                        result.map_err(|refused| produce::NotProduced::Partition(refused.into())),
                    );
                }
            }
            Effect::WakeFetch { token } => {
                if let Some((request, id)) = replica.parked.remove(&token) {
                    self.answer_fetch(node, id, &request, false);
                }
            }
            Effect::ProposeIsr { proposal: number, expected_version: expected, state, joining, .. } => {
                let after_ms = self.network.latency(self.now, node, STORE);
                if !self.in_touch(node) || self.network.loses(self.now, node, STORE) {
                    self.schedule(after_ms + 30, node, Event::Decided(at, number, IsrDecision::Retry));
                } else {
                    let proposal = Proposal { number, expected, state, joining };
                    self.schedule(after_ms, node, Event::ProposalArrives(at, proposal));
                }
            }
            Effect::Fetch(plan) => {
                let number = self.number();
                let life = self.nodes[node].life;
                let Some(replica) = self.nodes[node].replica(at) else { return };
                replica.fetching = Some((number, plan));
                self.schedule(FETCH_TIMEOUT_MS, node, Event::FetchTimesOut(at, number));
                let leader = usize::try_from(plan.leader.0 - 1).expect("a broker");
                self.post(node, leader, Event::FetchArrives(FetchId { at, node, life, number, plan }));
            }
            Effect::StopFetching => replica.fetching = None,
            Effect::FlushWanted(job) => {
                let after_ms = self.disk_time(node);
                self.schedule(after_ms, node, Event::FlushRuns(at, job));
            }
            Effect::Cut(cut) => {
                note!(
                    self,
                    node,
                    "cuts {}-{} from {} to {}: {}",
                    NAMES[at].0,
                    NAMES[at].1,
                    cut.from.0,
                    cut.to.0,
                    cut.why
                );
                self.counts.cuts += 1;
                assert!(
                    cut.records == 0 || cut.to.0 >= cut.high_watermark,
                    "broker {} cut what is committed: {cut:?}",
                    node + 1
                );
                let recorded = &mut self.nodes[node].checkpointed[at];
                *recorded = recorded.map(|recorded| recorded.min(cut.to.0));
            }
            Effect::HighWatermark(high_watermark) => {
                // The checkpoint is written now and then, so it lags.
                if self.nodes[node].random.one_in(4) {
                    self.nodes[node].checkpointed[at] = Some(high_watermark);
                }
            }
            Effect::Fenced { reason, .. } => {
                assert!(self.nodes[node].fs.crashed(), "broker {} closed its log: {reason}", node + 1);
            }
            Effect::PublishEnd(_) => {}
            other => panic!("an effect the driver does not know: {other:?}"),
        }
    }

    fn arm(&mut self, node: usize, at: usize) {
        let time = self.nodes[node].time(self.now).0;
        let Some(replica) = self.nodes[node].replica(at) else { return };
        let Some(deadline) = replica.partition.next_deadline() else { return };
        if replica.ticking.is_none_or(|ticking| deadline.0 < ticking.0) {
            let tick = self.number();
            let Some(replica) = self.nodes[node].replica(at) else { return };
            replica.ticking = Some((deadline.0, tick));
            // Coordinators wait for ever for their appends.
            let after_ms = deadline.0.saturating_sub(time).clamp(1, FAR_MS);
            self.schedule(after_ms, node, Event::Tick(at, tick));
        }
    }

    /// What replicas have goes into the fingerprint, and into the story.
    fn look(&mut self, node: usize, at: usize) {
        let Some(replica) = self.nodes[node].replica(at) else { return };
        let status = replica.partition.status();
        if status.role == Role::Leader {
            self.mix(status.log_end.0 << 16 | status.high_watermark.0);
        }
    }
}
