//! Producers and a consumer.

use super::*;

impl World {
    pub(super) fn producer_acts(&mut self) {
        let again = self.random.between(3, 15);
        self.schedule(again, NOBODY, Event::ProducerActs);
        if !self.healed && self.random.one_in(3) {
            let id = self.new_produce(false);
            let acks = if id.acknowledges { Acks::All } else { self.random.pick(&[Acks::Leader, Acks::None]) };
            self.send(id, acks);
        }
        match self.in_doubt {
            None if !self.healed => {
                let id = self.new_produce(true);
                self.in_doubt = Some((id, self.now));
                self.send(id, Acks::All);
            }
            Some((id, since)) if self.now - since > PRODUCE_TIMEOUT_MS => {
                self.in_doubt = Some((id, self.now));
                self.send(id, Acks::All);
            }
            _ => {}
        }
    }

    pub(super) fn new_produce(&mut self, idempotent: bool) -> ProduceId {
        let count = 1 + self.random.below(3);
        let acknowledges = idempotent || self.random.one_in(2);
        let number = if idempotent { self.sequence } else { self.numbers };
        *(if idempotent { &mut self.sequence } else { &mut self.numbers }) += count;
        ProduceId { idempotent, number, count, acknowledges }
    }

    pub(super) fn send(&mut self, id: ProduceId, acks: Acks) {
        let leader = self.store.state.as_ref().and_then(|state| state.value.leader);
        let to = match leader {
            Some(leader) if self.healed || !self.random.one_in(6) => usize::try_from(leader.0 - 1).expect("a broker"),
            _ => usize::try_from(self.random.below(3)).expect("a broker"),
        };
        let batch = batch(id, self.now);
        for _ in 0..1 + u64::from(id.idempotent && self.doubled()) {
            let after = self.latency();
            if !self.lost(NODES, to) {
                self.schedule(after, to, Event::ProduceArrives(id, acks, batch.clone()));
            }
        }
    }

    pub(super) fn produce_arrives(&mut self, node: usize, id: ProduceId, acks: Acks, batch: Vec<u8>) {
        let now = at(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        let rules = running.partition.log().options().rules.clone();
        let checked = CheckedBatch::check(batch, &rules, now).expect("a valid batch");
        let token = running.token();
        match running.partition.produce(now, &checked, acks, now.after(PRODUCE_TIMEOUT_MS), token) {
            Ok(Produced::Done(done)) => {
                self.counts.duplicates += u64::from(done.duplicate);
                self.answer_produce(node, id, Ok(done.base_offset));
            }
            Ok(Produced::Waiting) => {
                running.produces.insert(token, id);
            }
            Err(error) => {
                if self.trace.is_some() {
                    self.note(&format!("{} refuses {id:?}: {error}", node + 1));
                }
                self.answer_produce(node, id, Err(()));
            }
        }
    }

    pub(super) fn answer_produce(&mut self, node: usize, id: ProduceId, answer: Result<Offset, ()>) {
        if let (Ok(base), true) = (answer, id.acknowledges) {
            // The promise is made when the answer is given, whether it arrives or not.
            self.promise(node, id, base);
        }
        let after = self.latency();
        if !self.lost(node, NODES) {
            self.schedule(after, NOBODY, Event::Answered(id, answer));
        }
    }

    pub(super) fn promise(&mut self, node: usize, id: ProduceId, base: Offset) {
        self.look(node);
        self.counts.acknowledged += id.count;
        if !self.loses_nothing() {
            return;
        }
        for record in 0..id.count {
            self.truth.acknowledge(base.0 + i64::try_from(record).expect("few"), payload(id, record));
        }
        let state = self.store.state.as_ref().expect("a leader has one").value.clone();
        self.check_members(&state);
    }

    pub(super) fn answered(&mut self, id: ProduceId, answer: Result<Offset, ()>) {
        let Some((pending, _)) = self.in_doubt.filter(|in_doubt| in_doubt.0 == id) else { return };
        match answer {
            Ok(_) => self.in_doubt = None,
            Err(()) => self.in_doubt = Some((pending, self.now - PRODUCE_TIMEOUT_MS)),
        }
    }

    pub(super) fn consumer_reads(&mut self) {
        let again = self.random.between(10, 40);
        self.schedule(again, NOBODY, Event::ConsumerReads);
        let node = usize::try_from(self.random.below(3)).expect("a broker");
        // One that names no epoch may be answered by a leader that is none any more: what it reads is true, and old.
        let knows_epoch = !self.random.one_in(3);
        if self.nodes[node].paused_until > self.now || !self.loses_nothing() {
            return;
        }
        let now = at(self.now);
        let Some(running) = &mut self.nodes[node].running else { return };
        let consumer = &mut self.consumer;
        let request = FetchRequest {
            by: Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
            current_leader_epoch: consumer.leader_epoch.filter(|_| knows_epoch),
            last_fetched_epoch: None,
            from: Offset(consumer.at),
        };
        match running.partition.fetch(now, &request) {
            Ok(grant) => {
                if consumer.leader_epoch.is_none_or(|known| grant.leader_epoch >= known) {
                    consumer.leader_epoch = Some(grant.leader_epoch);
                    consumer.told(grant.high_watermark, "high watermark");
                    let (by, epoch) = (request.by, request.current_leader_epoch);
                    if let Ok(ListedOffset::At { offset, .. }) = running.partition.list_offset(by, epoch, Which::Latest)
                    {
                        consumer.told(offset, "end");
                    }
                }
                let bytes = running.read(&grant, request.from, 1 << 20);
                for batch in batches(&bytes) {
                    let batch = batch.expect("whole batches");
                    for record in batch.records().expect("uncompressed") {
                        let record = record.expect("a whole record");
                        let offset = batch.header().base_offset().0 + i64::from(record.offset_delta);
                        if offset >= consumer.at {
                            assert!(offset < grant.upper.0, "offset {offset} above the high watermark");
                            assert_eq!(offset, consumer.at, "committed records are missing for a consumer");
                            let value = record.value.expect("a value").try_into().expect("eight bytes");
                            self.truth.consumed(offset, u64::from_be_bytes(value));
                            consumer.at = offset + 1;
                            self.counts.consumed += 1;
                        }
                    }
                }
            }
            Err(FetchError::OutOfRange { log_start, .. }) if log_start.0 > consumer.at => {
                consumer.at = log_start.0;
            }
            Err(FetchError::OutOfRange { log_end, .. }) if request.current_leader_epoch.is_some() => {
                panic!("a consumer is at {}, the committed log ends at {log_end}", consumer.at);
            }
            Err(FetchError::FencedLeaderEpoch { current, .. }) => consumer.leader_epoch = Some(current),
            Err(_) => {}
        }
        self.settle(node);
    }
}

/// What a consumer knows.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    /// The offset it reads next.
    at: i64,
    /// The latest leadership that it has heard of. With it, it does not take an older leader's word.
    leader_epoch: Option<LeaderEpoch>,
    /// The highest end of what is committed that it was told.
    told: i64,
}

impl Consumer {
    /// What lay above is lost, and the one who runs all this knows.
    pub(super) fn forget_above(&mut self, committed_below: i64) {
        (self.at, self.told) = (self.at.min(committed_below), 0);
    }

    /// What is committed ends here, the leader says; -1 if it does not know yet.
    fn told(&mut self, offset: Offset, what: &str) {
        if offset.0 >= 0 {
            assert!(
                offset.0 >= self.told,
                "the {what} of {offset} is committed, and for a client it was {}",
                self.told
            );
            self.told = offset.0;
        }
    }
}

/// Unique: the top bit says which producer.
fn payload(id: ProduceId, record: u64) -> u64 {
    (u64::from(id.idempotent) << 63) | (id.number + record)
}

fn batch(id: ProduceId, now: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    if id.idempotent {
        builder = builder.producer(7, 0, i32::try_from(id.number).expect("few"));
    }
    for record in 0..id.count {
        builder.push(Record::new(at(now), &payload(id, record).to_be_bytes()));
    }
    builder.build()
}
