//! Producers and a consumer.

use super::*;

impl World {
    pub(super) fn producer_acts(&mut self) {
        let again = self.producers.between(3, 15);
        self.schedule(again, NOBODY, Event::ProducerActs);
        // Until there is enough to look at.
        let goes_on = !self.healed || self.counts.events < EVENTS_MIN * 4 / 5;
        if self.producers.one_in(3) && goes_on {
            let id = self.new_produce(false);
            let acks = match &mut self.ledger {
                Some(ledger) => {
                    ledger.sent(id);
                    ledger.acks()
                }
                None if id.acknowledges => Acks::All,
                None => self.producers.pick(&[Acks::Leader, Acks::None]),
            };
            self.send(id, acks);
        }
        match self.in_doubt {
            None if goes_on => {
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
        let count = 1 + self.producers.below(3);
        let acknowledges = idempotent
            || match &self.ledger {
                Some(ledger) => ledger.acks() == Acks::All,
                None => self.producers.one_in(2),
            };
        let number = if idempotent { self.sequence } else { self.numbers };
        *(if idempotent { &mut self.sequence } else { &mut self.numbers }) += count;
        let id = ProduceId { topic: self.store.topic, idempotent, number, count, acknowledges };
        let client = Client(u32::from(idempotent));
        let sent = (0..count).map(|record| Seen::Sent { client, payload: Payload(payload(id, record)), idempotent });
        self.history.extend(sent);
        id
    }

    pub(super) fn send(&mut self, id: ProduceId, acks: Acks) {
        let leader = self.store.state.as_ref().and_then(|state| state.value.leader);
        let to = match leader {
            Some(leader) if self.healed || !self.producers.one_in(6) => {
                usize::try_from(leader.0 - 1).expect("a broker")
            }
            _ => self.producers.index(BROKERS),
        };
        let batch = batch(id, self.now);
        for _ in 0..1 + u64::from(self.doubled(CLIENTS, to) && id.idempotent) {
            let after = self.latency(CLIENTS, to);
            if self.lost(CLIENTS, to) {
                self.tell_lost(CLIENTS, to, "produce");
            } else {
                self.schedule(after, to, Event::ProduceArrives(id, acks, batch.clone()));
            }
        }
    }

    pub(super) fn produce_arrives(&mut self, node: usize, id: ProduceId, acks: Acks, batch: Vec<u8>) {
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        if running.topic != id.topic {
            return self.answer_produce(node, id, Err(()));
        }
        let rules = running.partition.log().options().rules.clone();
        let checked = CheckedBatch::check(batch, &rules, now).expect("a valid batch");
        let token = running.token();
        let produced = running.partition.produce(now, &checked, acks, now.after(PRODUCE_TIMEOUT_MS), token);
        if self.nodes[node].fs.crashed() {
            return; // It died before it could answer.
        }
        match produced {
            Ok(Produced::Done(done)) => {
                self.counts.duplicates += u64::from(done.duplicate);
                self.answer_produce(node, id, Ok(done.base_offset));
            }
            Ok(Produced::Waiting) => {
                if let Some(running) = &mut self.nodes[node].running {
                    running.produces.insert(token, id);
                }
            }
            Err(error) => {
                note!(self, node, "refuses {}: {error}", id);
                self.answer_produce(node, id, Err(()));
            }
        }
    }

    pub(super) fn answer_produce(&mut self, node: usize, id: ProduceId, answer: Result<Offset, ()>) {
        if let (Ok(base), true) = (answer, id.acknowledges) {
            // The promise is made when the answer is given, whether it arrives or not.
            self.promise(node, id, base);
        }
        if answer.is_ok() && self.ledger.is_some() {
            let leads = self.leads_in_its_session(node);
            self.ledger.as_mut().into_iter().for_each(|ledger| ledger.answered(id, leads));
        }
        let after = self.latency(node, CLIENTS);
        if self.lost(node, CLIENTS) {
            self.tell_lost(node, CLIENTS, "answer");
        } else {
            self.schedule(after, NOBODY, Event::Answered(node, id, answer));
        }
    }

    pub(super) fn promise(&mut self, node: usize, id: ProduceId, base: Offset) {
        self.look(node);
        self.counts.acknowledged += id.count;
        if !self.plan.loses_nothing() || !self.is_current(node) {
            return;
        }
        for record in 0..id.count {
            let (offset, payload) = (base.0 + i64::try_from(record).expect("few"), payload(id, record));
            self.truth.acknowledge(offset, payload);
            self.history.push(Seen::Acked { payload: Payload(payload), offset });
        }
        let state = self.store.state.as_ref().expect("a leader has one").value.clone();
        self.check_members(&state);
    }

    pub(super) fn answered(&mut self, by: usize, id: ProduceId, answer: Result<Offset, ()>) {
        if let Some(trace) = &mut self.trace {
            let what = answer.map_or_else(|()| format!("{id} refused"), |at| format!("{id} at {at}"));
            trace.message(self.now - EPOCH_MS, by, CLIENTS, what, true);
        }
        let Some((pending, _)) = self.in_doubt.filter(|in_doubt| in_doubt.0 == id) else { return };
        match answer {
            Ok(_) => self.in_doubt = None,
            Err(()) => self.in_doubt = Some((pending, self.now - PRODUCE_TIMEOUT_MS)),
        }
    }

    pub(super) fn consumer_reads(&mut self) {
        let again = self.consumers.between(10, 40);
        self.schedule(again, NOBODY, Event::ConsumerReads);
        let node = self.consumers.index(BROKERS);
        // One that names no epoch may be answered by a leader that is none any more: what it reads is true, and old.
        let knows_epoch = !self.consumers.one_in(3);
        let is_cut = |from, to| self.network.is_cut(self.now, from, to);
        let reached = !is_cut(CLIENTS, node) && !is_cut(node, CLIENTS);
        let answers = reached && self.nodes[node].paused_until <= self.now && self.is_current(node);
        if !answers || !self.plan.loses_nothing() {
            return;
        }
        let now = self.time(node);
        let Some(running) = &mut self.nodes[node].running else { return };
        let (consumer, history) = (&mut self.consumer, &mut self.history);
        let was_at = consumer.at;
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
                    consumer.told(grant.high_watermark, "high watermark", history);
                    let (by, epoch) = (request.by, request.current_leader_epoch);
                    if let Ok(ListedOffset::At { offset, .. }) = running.partition.list_offset(by, epoch, Which::Latest)
                    {
                        consumer.told(offset, "end", history);
                    }
                }
                let Ok(bytes) = running.read(&grant, request.from, 1 << 20) else {
                    let is_rotten = self.nodes[node].rotten.is_some();
                    assert!(
                        is_rotten || self.nodes[node].has_bad_disk(),
                        "a granted read on a disk that does not fail"
                    );
                    return;
                };
                for batch in batches(&bytes) {
                    let batch = batch.expect("whole batches");
                    if !batch.crc_matches() {
                        assert!(self.nodes[node].rotten.is_some(), "a damaged batch");
                        break;
                    }
                    for record in batch.records().expect("uncompressed") {
                        let record = record.expect("a whole record");
                        let offset = batch.header().base_offset().0 + i64::from(record.offset_delta);
                        if offset >= consumer.at {
                            assert!(offset < grant.upper.0, "offset {offset} above the high watermark");
                            assert_eq!(offset, consumer.at, "committed records are missing for a consumer");
                            let value = record.value.expect("a value").try_into().expect("eight bytes");
                            let payload = u64::from_be_bytes(value);
                            self.truth.consumed(offset, payload);
                            let client = consumer.client();
                            history.push(Seen::Read { client, offset, payload: Payload(payload) });
                            consumer.at = offset + 1;
                            self.counts.consumed += 1;
                        }
                    }
                }
            }
            Err(FetchError::OutOfRange { log_start, .. }) if log_start.0 > consumer.at => {
                // Where it goes on it was told in this leadership: an earlier one may end below.
                let epoch = running.partition.status().leader_epoch;
                consumer.leader_epoch = consumer.leader_epoch.max(Some(epoch));
                consumer.seeks(log_start.0);
            }
            Err(FetchError::OutOfRange { log_end, .. }) if request.current_leader_epoch.is_some() => {
                panic!("a consumer is at {}, the committed log ends at {log_end}", consumer.at);
            }
            Err(FetchError::FencedLeaderEpoch { current, .. }) => consumer.leader_epoch = Some(current),
            Err(_) => {}
        }
        if self.consumer.at != was_at {
            note!(self, node, "a consumer reads {was_at}..{}", self.consumer.at);
        }
        if !self.has_crashed(node) {
            self.settle(node);
        }
    }
}

impl ProduceId {
    pub(super) fn payloads(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |record| payload(self, record))
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
    /// How often it lost its place; a client that begins anew is another one.
    seeks: u32,
}

impl Consumer {
    /// What lay above is lost, and the one who runs all this knows.
    pub(super) fn forget_above(&mut self, committed_below: i64) {
        self.told = 0;
        self.seeks(self.at.min(committed_below));
    }

    /// The topic is another one.
    pub(super) fn begins_anew(&mut self) {
        *self = Self { seeks: self.seeks + 1, ..Self::default() };
    }

    /// Goes on somewhere else.
    fn seeks(&mut self, to: i64) {
        self.at = to;
        self.seeks += 1;
    }

    fn client(&self) -> Client {
        Client(2 + self.seeks)
    }

    /// What is committed ends here, the leader says; -1 if it does not know yet.
    fn told(&mut self, offset: Offset, what: &str, history: &mut Vec<Seen>) {
        if offset.0 >= 0 {
            assert!(
                offset.0 >= self.told,
                "the {what} of {offset} is committed, and for a client it was {}",
                self.told
            );
            self.told = offset.0;
            history.push(Seen::Watermark { client: self.client(), high_watermark: offset.0 });
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
        builder.push(Record::new(TimestampMs(now), &payload(id, record).to_be_bytes()));
    }
    builder.build()
}
