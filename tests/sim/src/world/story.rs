//! What a run says of itself, for those who want to know.

use std::fmt;

use super::coordination::state_text;
use super::*;

impl World {
    /// A message that did not arrive.
    pub(super) fn tell_lost(&mut self, from: Place, to: Place, what: &str) {
        if let Some(trace) = &mut self.trace {
            trace.message(self.now - EPOCH_MS, from, to, what.to_owned(), false);
        }
    }

    /// What happens at a running broker, before it does.
    pub(super) fn tell(&mut self, node: usize, event: &Event) {
        let Some(trace) = &mut self.trace else { return };
        let ms = self.now - EPOCH_MS;
        let text = match event {
            Event::FetchArrives(id) => {
                let FetchId { node: from, plan, .. } = *id;
                return trace.message(ms, from, node, format!("fetch {} e{}", plan.from, plan.leader_epoch), true);
            }
            Event::ReplyArrives(id, reply) => {
                let from = usize::try_from(id.plan.leader.0 - 1).unwrap_or(node);
                return trace.message(ms, from, node, reply.to_string(), true);
            }
            Event::ProduceArrives(id, acks, _) => {
                let acks = match acks {
                    Acks::None => 0.to_string(),
                    Acks::Leader => 1.to_string(),
                    Acks::All => "all".to_owned(),
                };
                return trace.message(ms, CLIENTS, node, format!("{id} acks {acks}"), true);
            }
            Event::ProposalArrives(proposal) => {
                let state = Versioned { value: proposal.state.clone(), version: proposal.expected };
                return trace.message(ms, node, STORE, format!("proposes after {}", state_text(&state)), true);
            }
            Event::EndArrives(end) => {
                let text = format!("has e{} up to {}", end.last_epoch, end.log_end);
                return trace.message(ms, node, STORE, text, true);
            }
            Event::Decided { decision, .. } => {
                let what = match decision {
                    IsrDecision::Committed(_) => "committed",
                    IsrDecision::Conflict(_) => "conflict",
                    IsrDecision::Fenced => "not yours",
                    IsrDecision::Refused => "refused",
                    IsrDecision::Retry => "no answer",
                };
                return trace.message(ms, STORE, node, what.to_owned(), true);
            }
            Event::ImageSeen(image) => {
                let text = image.state.as_ref().map_or_else(|| "no state yet".to_owned(), state_text);
                return trace.message(ms, STORE, node, text, true);
            }
            Event::LoanAsked(loan) => return trace.message(ms, loan.by(), node, loan.to_string(), true),
            Event::LiveSeen(live) => {
                let live = live.iter().map(|(id, life)| format!("{id}({life})")).collect::<Vec<_>>().join(" ");
                return trace.message(ms, STORE, node, format!("live {live}"), true);
            }
            Event::Tick => "a deadline",
            Event::PollEnds(_) | Event::Leaves(_) | Event::LoanArrives(..) => return,
            Event::FetchTimesOut(_) => return,
            Event::FlushRuns(_) => "flushes",
            Event::WorkRuns(_) => "does housekeeping",
            Event::Reads => "reads the store",
            Event::SessionLostSeen => "hears that its session is over",
            Event::Registers => "registers again",
            Event::Configured => "hears of new settings",
            Event::FailureArrives => "says that its log has failed",
            _ => return,
        };
        trace.at(ms, node, text.to_owned());
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(failure) = &self.failure {
            return write!(f, "{failure:?}");
        }
        if let Some(EpochEnd { epoch, end }) = self.diverging {
            return write!(f, "cut: e{epoch} to {end}");
        }
        let count: i64 = batches(&self.records)
            .filter_map(Result::ok)
            .map(|batch| i64::from(batch.header().last_offset_delta()) + 1)
            .sum();
        write!(f, "{count} rec, HW {}", self.high_watermark)
    }
}

impl fmt::Display for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lend me {}", self.from())
    }
}

impl fmt::Display for ProduceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.idempotent { "seq" } else { "no" };
        write!(f, "{whose} {}+{}", self.number, self.count)
    }
}
