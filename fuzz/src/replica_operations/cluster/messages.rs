//! What is on its way, and what becomes of it.

use super::*;

/// Something on its way.
pub(in super::super) enum Message {
    Fetch { to: usize, life: u32, asked: Asked },
    Reply { asked: Asked, answer: Box<Answer> },
    Proposal { by: usize, life: u32, session: BrokerEpoch, proposal: Proposal },
    Decision { to: usize, life: u32, proposal: u64, decision: IsrDecision },
    End { by: usize, end: PublishedEnd },
    Commit(Box<Commit>),
    Flush { at: usize, life: u32, job: Box<FlushJob> },
    Work { at: usize, life: u32, job: Box<WorkJob> },
}

pub(in super::super) struct Proposal {
    pub(super) number: u64,
    pub(super) expected: i64,
    pub(super) state: PartitionState,
    pub(super) joining: Option<(BrokerId, BrokerEpoch)>,
}

impl Cluster {
    /// Brings a message to where it goes.
    pub(in super::super) fn deliver(&mut self, message: Message, bytes: usize) {
        match message {
            Message::Fetch { to, life, asked } if self.nodes[to].life == life => self.serve(to, asked, true, bytes),
            Message::Reply { asked, answer } if self.nodes[asked.by].life == asked.life => {
                self.answer(asked, &answer);
            }
            Message::Proposal { by, life, session, proposal } => {
                let number = proposal.number;
                let decision = self.decide(by, session, proposal);
                self.wire.push(Message::Decision { to: by, life, proposal: number, decision });
            }
            Message::Decision { to, life, proposal, decision } if self.nodes[to].life == life => {
                self.at(to, |partition, now| partition.isr_decided(now, proposal, decision));
            }
            Message::End { by, end } => {
                let id = self.nodes[by].id;
                let is_overtaken = self.ends.get(&id).is_some_and(|known| known.leader_epoch > end.leader_epoch);
                if self.live.get(&id) == Some(&end.life) && !is_overtaken {
                    self.ends.insert(id, end);
                }
            }
            Message::Commit(commit) if commit.expected_version == Some(self.state.version) => {
                self.write(commit.state);
            }
            Message::Flush { at, life, job } if self.nodes[at].life == life => {
                let done = job.run();
                self.at(at, |partition, now| partition.flushed(now, done));
            }
            Message::Work { at, life, job } if self.nodes[at].life == life => {
                let (now, fs) = (self.nodes[at].time(self.now_ms), self.nodes[at].fs.clone());
                let Some(running) = &mut self.nodes[at].running else { return };
                let finished = running.partition.finish_work(now, job.run());
                assert!(finished.is_ok() || fs.crashed(), "on a disk that works: {finished:?}");
                self.truth.deleted_below = self.truth.deleted_below.max(running.partition.log().start().0);
                self.settle(at);
            }
            _ => {}
        }
    }

    /// A message gets lost. Who waits for an answer of the store learns that there is none; jobs and what brokers publish
    /// are no messages between machines.
    pub(in super::super) fn lose(&mut self, message: Message) {
        match message {
            Message::Fetch { .. } | Message::Reply { .. } | Message::Commit(_) => {}
            Message::Proposal { by: to, life, proposal: Proposal { number: proposal, .. }, .. }
            | Message::Decision { to, life, proposal, .. } => {
                self.wire.push(Message::Decision { to, life, proposal, decision: IsrDecision::Retry });
            }
            other => self.wire.push(other),
        }
    }

    /// What arrives once more later.
    pub(in super::super) fn twin(message: &Message) -> Option<Message> {
        match message {
            Message::Fetch { to, life, asked } => Some(Message::Fetch { to: *to, life: *life, asked: *asked }),
            Message::Reply { asked, answer } => Some(Message::Reply { asked: *asked, answer: answer.clone() }),
            Message::Decision { to, life, proposal, decision } => {
                Some(Message::Decision { to: *to, life: *life, proposal: *proposal, decision: decision.clone() })
            }
            _ => None,
        }
    }

    /// A bit of the first batch of a reply is changed on its way. Offset, length and epoch lie outside of the checksum.
    pub(in super::super) fn garble(message: &mut Message, choice: usize) {
        let Message::Reply { answer, .. } = message else { return };
        let Ok(Records { bytes, .. }) = &mut **answer else { return };
        let first = batches(bytes).next().and_then(Result::ok).map_or(0, |batch| batch.bytes().len());
        if first > 16 {
            bytes[16 + choice % (first - 16)] ^= 0x20;
        }
    }

    pub(super) fn serve(&mut self, at: usize, asked: Asked, initial: bool, bytes: usize) {
        let now = self.nodes[at].time(self.now_ms);
        let request = asked.request(self.nodes[asked.by].id);
        let Some(running) = &mut self.nodes[at].running else { return };
        let granted =
            if initial { running.partition.fetch(now, &request) } else { running.partition.regrant(now, &request) };
        let answer = match granted {
            Ok(grant) if initial && grant.upper <= request.from && grant.diverging.is_none() => {
                let token = running.token();
                running.parked.insert(token, Parked { asked, since: self.now_ms });
                running.partition.watch_fetch(token, request.by, request.from);
                None
            }
            Ok(grant) => match running.read(&grant, request.from, bytes) {
                Ok(bytes) => Some(Ok(Records {
                    bytes,
                    high_watermark: grant.high_watermark,
                    log_start: grant.log_start,
                    diverging: grant.diverging,
                })),
                Err(error) => {
                    assert!(self.nodes[at].fs.crashed(), "what was granted can be read: {error}");
                    None
                }
            },
            Err(FetchError::FencedLeaderEpoch { .. }) => Some(Err(FetchFailure::FencedLeaderEpoch)),
            Err(FetchError::UnknownLeaderEpoch { .. }) => Some(Err(FetchFailure::UnknownLeaderEpoch)),
            Err(FetchError::OutOfRange { log_start, .. }) => {
                Some(Err(FetchFailure::OutOfRange { log_start: Some(log_start) }))
            }
            Err(_) => Some(Err(FetchFailure::Unreachable)),
        };
        if let Some(answer) = answer.filter(|_| !self.nodes[at].fs.crashed()) {
            self.wire.push(Message::Reply { asked, answer: Box::new(answer) });
        }
        self.settle(at);
    }

    fn answer(&mut self, asked: Asked, answer: &Answer) {
        let Some(running) = &mut self.nodes[asked.by].running else { return };
        running.fetching.take_if(|fetching| fetching.1 == asked.plan);
        let result = answer.as_ref().map_err(|failure| *failure).map(|records| FetchedRecords {
            records: &records.bytes,
            high_watermark: records.high_watermark,
            log_start: records.log_start,
            diverging: records.diverging,
        });
        self.at(asked.by, |partition, now| partition.fetched(now, FetchReply { plan: asked.plan, result }));
    }
}
