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
        for record in 0..id.count {
            let acknowledged = (base.0 + i64::try_from(record).expect("few"), payload(id, record));
            if !self.truth.acknowledged.contains(&acknowledged) {
                self.truth.acknowledged.push(acknowledged);
            }
        }
        self.counts.acknowledged += id.count;
        if self.loses_nothing() {
            let state = self.store.state.as_ref().expect("a leader has one").value.clone();
            self.check_members(&state);
        }
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
        let now = at(self.now);
        if self.nodes[node].paused_until > self.now || !self.loses_nothing() {
            return;
        }
        let Some(running) = &mut self.nodes[node].running else { return };
        let request = FetchRequest {
            by: Fetcher::Consumer { isolation: Isolation::ReadUncommitted },
            current_leader_epoch: None,
            last_fetched_epoch: None,
            from: Offset(self.consumer_at),
        };
        match running.partition.fetch(now, &request) {
            Ok(grant) => {
                let bytes = running.read(&grant, request.from, 1 << 20);
                for batch in batches(&bytes) {
                    let batch = batch.expect("whole batches");
                    for record in batch.records().expect("uncompressed") {
                        let record = record.expect("a whole record");
                        let offset = batch.header().base_offset().0 + i64::from(record.offset_delta);
                        if offset >= self.consumer_at {
                            assert!(offset < grant.high_watermark.0, "offset {offset} above the high watermark");
                            let value = record.value.expect("a value").try_into().expect("eight bytes");
                            self.truth.consumed(offset, u64::from_be_bytes(value));
                            self.consumer_at = offset + 1;
                            self.counts.consumed += 1;
                        }
                    }
                }
            }
            Err(FetchError::OutOfRange { log_start, .. }) if log_start.0 > self.consumer_at => {
                self.consumer_at = log_start.0;
            }
            Err(_) => {}
        }
        self.settle(node);
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
