//! Fetches and their replies between brokers.

use super::*;

impl World {
    pub(super) fn answer_fetch(&mut self, node: usize, id: FetchId, request: &FetchRequest, initial: bool) {
        let now = self.time(node);
        let max_bytes = self.nodes[node].random.pick(&[1usize, 150, 1 << 20]);
        let Some(running) = &mut self.nodes[node].running else { return };
        let is_meant = running.topic == id.topic || self.plan.mutant == Some(Mutant::IgnoresTopicIds);
        let granted = if !is_meant {
            Err(FetchError::Storage)
        } else if initial {
            running.partition.fetch(now, request)
        } else {
            running.partition.regrant(now, request)
        };
        let reply = match granted {
            Ok(grant) => {
                if initial && grant.upper <= request.from && grant.diverging.is_none() {
                    let token = running.token();
                    running.parked.insert(token, Parked { request: request.clone(), from: id });
                    running.partition.watch_fetch(token, request.by, request.from);
                    return self.schedule(LONG_POLL_MS, node, Event::PollEnds(token));
                }
                let silent = grant.diverging.is_some() && self.plan.mutant == Some(Mutant::VouchesForAll);
                match running.read(&grant, request.from, max_bytes) {
                    Ok(records) => Reply {
                        records,
                        high_watermark: grant.high_watermark,
                        log_start: if silent { Offset(-1) } else { grant.log_start },
                        diverging: grant.diverging,
                        failure: None,
                    },
                    Err(error) => {
                        assert!(
                            self.nodes[node].rotten.is_some() || self.nodes[node].has_bad_disk(),
                            "a granted read on a disk that does not fail: {error}"
                        );
                        Reply::failed(FetchFailure::Unreachable)
                    }
                }
            }
            Err(error) => {
                let failure = match error {
                    FetchError::FencedLeaderEpoch { .. } => FetchFailure::FencedLeaderEpoch,
                    FetchError::UnknownLeaderEpoch { .. } => FetchFailure::UnknownLeaderEpoch,
                    FetchError::OutOfRange { log_start, .. } => FetchFailure::OutOfRange { log_start: Some(log_start) },
                    _ => FetchFailure::Unreachable,
                };
                Reply::failed(failure)
            }
        };
        if self.nodes[node].fs.crashed() {
            return; // It died before it could answer.
        }
        for _ in 0..1 + u64::from(self.doubled(node, id.node)) {
            let after = self.latency(node, id.node);
            if self.lost(node, id.node) {
                self.tell_lost(node, id.node, "reply");
            } else {
                let mut reply = Box::new(reply.clone());
                let first = batches(&reply.records).next().and_then(Result::ok).map_or(0, |batch| batch.bytes().len());
                let (one_in, until) = self.garbling;
                let draw = self.network.random(node, id.node).draw();
                if until > self.now && first > 0 && draw.is_multiple_of(one_in) {
                    // Damaged on the way: the checksum must catch it. Offset, length and epoch lie outside of it.
                    let position = 16 + self.network.random(node, id.node).below(first as u64 - 16);
                    reply.records[usize::try_from(position).expect("an index")] ^= 0x20;
                }
                self.schedule_for(after, id.node, id.life, Event::ReplyArrives(id, reply));
            }
        }
    }

    pub(super) fn reply_arrives(&mut self, node: usize, id: &FetchId, reply: &Reply) {
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        running.fetching.take_if(|fetching| fetching.0 == id.number);
        let result = match reply.failure {
            Some(failure) => Err(failure),
            None => Ok(FetchedRecords {
                records: &reply.records,
                high_watermark: reply.high_watermark,
                log_start: reply.log_start,
                diverging: reply.diverging,
            }),
        };
        running.partition.fetched(now, FetchReply { plan: id.plan, result });
    }
}

impl Reply {
    fn failed(failure: FetchFailure) -> Self {
        let nothing = Offset(-1);
        Self {
            records: Vec::new(),
            high_watermark: nothing,
            log_start: nothing,
            diverging: None,
            failure: Some(failure),
        }
    }
}

pub(super) fn request_of(id: &FetchId) -> FetchRequest {
    let plan = id.plan;
    FetchRequest {
        by: Fetcher::Follower {
            id: BrokerId(i32::try_from(id.node + 1).expect("a broker")),
            broker_epoch: Some(plan.broker_epoch),
            log_start: plan.log_start,
        },
        current_leader_epoch: Some(plan.leader_epoch),
        last_fetched_epoch: plan.last_fetched_epoch,
        from: plan.from,
    }
}

/// Has a follower say that it holds nothing that the leader does not know.
pub(super) fn vouch_for(request: &mut FetchRequest) {
    if let Fetcher::Follower { log_start, .. } = &mut request.by {
        *log_start = Offset(i64::MAX);
    }
}
