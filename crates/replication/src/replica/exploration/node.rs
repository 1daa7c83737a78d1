//! One broker: the real machine on a small log, and what is on its way from it.

use highwater_storage::{EpochEnd, LeaderEpoch, Offset, TimestampMs};

use super::super::{AppendedBatch, Input, Replica, ReplyHead, ReplyStep, RoleState};
use super::log::{Entry, SmallLog};
use crate::event::{Acknowledged, CutReason, FetchFailure, FetchPlan, Output};
use crate::lineage::LogView;
use crate::{Acks, BrokerEpoch, BrokerId, PartitionState, PublishedEnd, WaitToken};

/// An answer to a fetch: at most one record.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Records { high_watermark: Offset, log_start: Offset, diverging: Option<EpochEnd>, record: Option<Entry> },
    Failure(FetchFailure),
}

#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub(super) number: u64,
    pub(super) session: BrokerEpoch,
    pub(super) expected: i64,
    pub(super) state: PartitionState,
    pub(super) joining: Option<(BrokerId, BrokerEpoch)>,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) replica: Option<Replica>,
    pub(super) log: SmallLog,
    pub(super) session: BrokerEpoch,
    pub(super) knows_session_lost: bool,
    /// Power was cut, and it has not marked itself since.
    pub(super) damaged: bool,
    pub(super) request: Option<FetchPlan>,
    /// A request that was given up here and may arrive all the same.
    pub(super) late: Option<FetchPlan>,
    pub(super) proposals: Vec<Proposal>,
    /// What it wants to tell the controller.
    pub(super) publishes: Option<PublishedEnd>,
}

impl Node {
    pub(super) fn handle(&mut self, now: TimestampMs, input: Input<'_>) -> Result<(), String> {
        self.replica.as_mut().expect("it runs").handle(now, &self.log, input);
        self.settle(now)
    }

    pub(super) fn produce(&mut self, now: TimestampMs, payload: u8) -> Result<(), String> {
        let replica = self.replica.as_mut().expect("it runs");
        let epoch = replica.admit(Acks::All).map_err(|refused| refused.to_string())?;
        let at = self.log.end();
        self.log.append((epoch, payload));
        let answer = Acknowledged {
            base_offset: at,
            last_offset: at,
            append_time: TimestampMs::NONE,
            log_start: self.log.start(),
            duplicate: false,
        };
        // Nobody waits: that the high watermark passes it is what counts here.
        let batch = AppendedBatch { answer, acks: Acks::None, deadline: now, token: WaitToken(0) };
        replica.appended(now, &self.log, batch).map_err(|refused| refused.to_string())?;
        self.settle(now)
    }

    pub(super) fn answered(&mut self, now: TimestampMs, plan: &FetchPlan, answer: &Answer) -> Result<(), String> {
        let head = match *answer {
            Answer::Records { high_watermark, log_start, diverging, .. } => {
                Ok(ReplyHead { high_watermark, log_start, diverging })
            }
            Answer::Failure(failure) => Err(failure),
        };
        let replica = self.replica.as_mut().expect("it runs");
        if let ReplyStep::Append { leader_epoch, log_start } = replica.take_reply(now, &self.log, plan, head) {
            let record = if let Answer::Records { record, .. } = answer { *record } else { None };
            let input = if record.is_some_and(|(epoch, _)| epoch > leader_epoch) {
                Input::ReplicatedRefused
            } else {
                self.log.advance_start(log_start);
                record.into_iter().for_each(|record| self.log.append(record));
                Input::Replicated
            };
            replica.handle(now, &self.log, input);
        }
        self.settle(now)
    }

    /// Carries out what the replica wants, as `Partition` does.
    pub(super) fn settle(&mut self, now: TimestampMs) -> Result<(), String> {
        let replica = self.replica.as_mut().expect("it runs");
        while let Some(output) = replica.poll_output() {
            let input = match output {
                Output::AssignEpoch { epoch, start } => {
                    if start != self.log.end() {
                        return Err(format!("epoch {epoch} begins at {start}, and the log ends at {}", self.log.end()));
                    }
                    self.log.assign(epoch);
                    None
                }
                Output::Truncate { to, why } => {
                    if to < replica.high_watermark {
                        return Err(format!("a cut to {to}, below {}: {why}", replica.high_watermark));
                    }
                    self.log.truncate(to);
                    Some(Input::CutDone)
                }
                Output::Reset { start, why: CutReason::LeaderStartsAbove(_) } => {
                    self.log.reset(start);
                    Some(Input::CutDone)
                }
                Output::Reset { start, why } => return Err(format!("a new start at {start}: {why}")),
                Output::Flush | Output::Checkpoint => {
                    self.log.flush();
                    Some(Input::Flushed)
                }
                Output::Fenced(reason) => return Err(format!("a replica closed itself: {reason}")),
                Output::Fetch(plan) => {
                    self.late = self.request.replace(plan).or_else(|| self.late.take());
                    None
                }
                Output::StopFetching => {
                    self.late = self.request.take().or_else(|| self.late.take());
                    None
                }
                Output::ProposeIsr { proposal: number, expected_version: expected, state, joining, .. } => {
                    self.proposals.push(Proposal { number, session: self.session, expected, state, joining });
                    None
                }
                Output::PublishEnd(end) => {
                    self.publishes = Some(end);
                    None
                }
                Output::ProduceDone { .. }
                | Output::WakeFetch { .. }
                | Output::HighWatermark(_)
                | Output::UncleanElection => None,
            };
            if let Some(input) = input {
                replica.handle(now, &self.log, input);
            }
        }
        replica.check(&self.log);
        if matches!(replica.role, RoleState::Fenced) {
            return Err(format!("a local invariant does not hold: {:?}", replica.poll_output()));
        }
        Ok(())
    }

    /// In which epoch it leads, as far as it knows.
    pub(super) fn leads(&self) -> Option<LeaderEpoch> {
        match &self.replica.as_ref()?.role {
            RoleState::Leader(leader) => Some(leader.epoch),
            _ => None,
        }
    }
}
