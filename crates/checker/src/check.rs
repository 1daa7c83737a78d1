//! The checks: each sorts the events once by what it compares, and goes through them once.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::{Client, Event, Payload};

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A record was acknowledged at an offset, and nobody ever read it there.
    Lost,
    /// A record of an idempotent producer is at two offsets.
    Duplicate,
    /// Two records of an idempotent producer are in another order than it sent them.
    Reordered,
    /// A consumer went from one offset to a later one, over a record that others saw between them.
    Gap,
    /// An offset held two records.
    Changed,
    /// A record was read that nobody had sent by then, or that was refused.
    Unexpected,
    /// A consumer read an offset again, or an earlier one.
    NonMonotonic,
    /// A client was told a high watermark at or below what it had read, or below one that it had been told.
    HighWatermarkBack,
}

/// A broken promise and the events that show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Anomaly {
    /// What is wrong.
    pub kind: Kind,
    /// The events, as positions in the history: the one that was violated first, the one that shows it last.
    pub events: Vec<usize>,
}

impl Anomaly {
    fn new(kind: Kind, events: &[usize]) -> Self {
        Self { kind, events: events.to_vec() }
    }

    /// The anomaly in the words of its events.
    pub fn explain<'a>(&'a self, history: &'a [Event]) -> impl fmt::Display + 'a {
        Explained { anomaly: self, history }
    }
}

struct Explained<'a> {
    anomaly: &'a Anomaly,
    history: &'a [Event],
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.anomaly.kind)?;
        for (number, index) in self.anomaly.events.iter().enumerate() {
            let before = if number == 0 { ": " } else { "; then " };
            match self.history.get(*index) {
                Some(event) => write!(f, "{before}{event} (event {index})")?,
                None => write!(f, "{before}event {index}, which is not in this history")?,
            }
        }
        Ok(())
    }
}

/// A record was at an offset, by what a producer was told or a consumer read.
#[derive(Clone, Copy)]
struct Claim {
    event: usize,
    offset: i64,
    payload: Payload,
}

struct Read {
    claim: Claim,
    client: Client,
}

struct Sent {
    event: usize,
    client: Client,
    idempotent: bool,
}

/// Finds all that is wrong with a history, in the order of the kinds and then of the events. Takes n log n steps and memory
/// in proportion to the events.
pub fn check(events: &[Event]) -> Vec<Anomaly> {
    let history = History::new(events);
    let mut anomalies = Vec::new();
    history.check_lost(&mut anomalies);
    history.check_payloads(&mut anomalies);
    history.check_offsets(&mut anomalies);
    history.check_unexpected(&mut anomalies);
    history.check_consumers(&mut anomalies);
    history.check_watermarks(events, &mut anomalies);
    anomalies.sort();
    anomalies
}

struct History {
    sent: HashMap<Payload, Sent>,
    failed: HashMap<Payload, usize>,
    acked: Vec<Claim>,
    reads: Vec<Read>,
    start: i64,
}

impl History {
    fn new(events: &[Event]) -> Self {
        let (mut sent, mut failed) = (HashMap::new(), HashMap::new());
        let (mut acked, mut reads, mut start) = (Vec::new(), Vec::new(), i64::MIN);
        for (event, seen) in events.iter().enumerate() {
            match *seen {
                Event::Sent { client, payload, idempotent } => {
                    sent.entry(payload).or_insert(Sent { event, client, idempotent });
                }
                Event::Acked { payload, offset } => acked.push(Claim { event, offset, payload }),
                Event::Failed { payload } => {
                    failed.insert(payload, event);
                }
                Event::Read { client, offset, payload } => {
                    reads.push(Read { claim: Claim { event, offset, payload }, client });
                }
                Event::Start { offset } => start = start.max(offset),
                Event::Unknown { .. } | Event::Watermark { .. } => {}
            }
        }
        Self { sent, failed, acked, reads, start }
    }

    /// What was said of each offset, each said at least once, in the order of the key and then of the events.
    fn claims<K: Ord>(&self, key: impl Fn(&Claim) -> K) -> Vec<Claim> {
        let mut claims: Vec<Claim> =
            self.acked.iter().copied().chain(self.reads.iter().map(|read| read.claim)).collect();
        claims.sort_by_key(|claim| (key(claim), claim.event));
        claims
    }

    fn check_lost(&self, anomalies: &mut Vec<Anomaly>) {
        let mut read: Vec<(i64, Payload)> =
            self.reads.iter().map(|read| (read.claim.offset, read.claim.payload)).collect();
        read.sort_unstable();
        let mut by_offset: Vec<Claim> = self.reads.iter().map(|read| read.claim).collect();
        by_offset.sort_by_key(|claim| (claim.offset, claim.event));
        for acked in self.acked.iter().filter(|acked| acked.offset >= self.start) {
            if read.binary_search(&(acked.offset, acked.payload)).is_err() {
                // Who went over it, if anybody got so far.
                let at = by_offset.partition_point(|claim| claim.offset < acked.offset);
                let over = by_offset.get(at).map(|claim| claim.event);
                let events: Vec<usize> = [acked.event].into_iter().chain(over).collect();
                anomalies.push(Anomaly::new(Kind::Lost, &events));
            }
        }
    }

    /// Of idempotent producers: each record at one offset, and all in the order of sending.
    fn check_payloads(&self, anomalies: &mut Vec<Anomaly>) {
        let by_payload = self.claims(|claim| claim.payload);
        let mut placed: Vec<(Client, usize, Claim)> = Vec::new();
        for claims in by_payload.chunk_by(|one, other| one.payload == other.payload) {
            let first = claims[0];
            let Some(sent) = self.sent.get(&first.payload).filter(|sent| sent.idempotent) else { continue };
            placed.push((sent.client, sent.event, first));
            let mut elsewhere: Vec<&Claim> = claims.iter().filter(|claim| claim.offset != first.offset).collect();
            elsewhere.sort_by_key(|claim| (claim.offset, claim.event));
            elsewhere.dedup_by_key(|claim| claim.offset);
            anomalies.extend(elsewhere.iter().map(|claim| Anomaly::new(Kind::Duplicate, &[first.event, claim.event])));
        }
        placed.sort_by_key(|(client, sent, _)| (*client, *sent));
        for of_client in placed.chunk_by(|one, other| one.0 == other.0) {
            let mut furthest = &of_client[0];
            for later in &of_client[1..] {
                // At the same offset it is another kind of mistake.
                if later.2.offset < furthest.2.offset {
                    let events = [furthest.1, later.1, furthest.2.event, later.2.event];
                    anomalies.push(Anomaly::new(Kind::Reordered, &events));
                } else {
                    furthest = later;
                }
            }
        }
    }

    fn check_offsets(&self, anomalies: &mut Vec<Anomaly>) {
        let by_offset = self.claims(|claim| claim.offset);
        for claims in by_offset.chunk_by(|one, other| one.offset == other.offset) {
            let first = claims[0];
            let mut others: Vec<&Claim> = claims.iter().filter(|claim| claim.payload != first.payload).collect();
            others.sort_by_key(|claim| (claim.payload, claim.event));
            others.dedup_by_key(|claim| claim.payload);
            anomalies.extend(others.iter().map(|claim| Anomaly::new(Kind::Changed, &[first.event, claim.event])));
        }
    }

    fn check_unexpected(&self, anomalies: &mut Vec<Anomaly>) {
        for Read { claim, .. } in &self.reads {
            if let Some(failed) = self.failed.get(&claim.payload) {
                anomalies.push(Anomaly::new(Kind::Unexpected, &[*failed, claim.event]));
            } else if self.sent.get(&claim.payload).is_none_or(|sent| sent.event > claim.event) {
                anomalies.push(Anomaly::new(Kind::Unexpected, &[claim.event]));
            }
        }
    }

    /// What each consumer saw: offsets that grow, and all between them of which anybody knows.
    fn check_consumers(&self, anomalies: &mut Vec<Anomaly>) {
        let known = self.claims(|claim| claim.offset);
        let mut last: BTreeMap<Client, Claim> = BTreeMap::new();
        for Read { claim, client } in &self.reads {
            let Some(before) = last.insert(*client, *claim) else { continue };
            if claim.offset <= before.offset {
                anomalies.push(Anomaly::new(Kind::NonMonotonic, &[before.event, claim.event]));
                continue;
            }
            let from = before.offset.saturating_add(1).max(self.start);
            let at = known.partition_point(|known| known.offset < from);
            if let Some(missed) = known.get(at).filter(|known| known.offset < claim.offset) {
                anomalies.push(Anomaly::new(Kind::Gap, &[missed.event, before.event, claim.event]));
            }
        }
    }

    fn check_watermarks(&self, events: &[Event], anomalies: &mut Vec<Anomaly>) {
        let mut highest: BTreeMap<Client, (i64, usize)> = BTreeMap::new();
        for (event, seen) in events.iter().enumerate() {
            let (client, told) = match *seen {
                // Whoever reads a record knows that the high watermark is above it.
                Event::Read { client, offset, .. } => (client, offset.saturating_add(1)),
                Event::Watermark { client, high_watermark } => (client, high_watermark),
                _ => continue,
            };
            let known = highest.entry(client).or_insert((told, event));
            if told >= known.0 {
                *known = (told, event);
            } else if matches!(seen, Event::Watermark { .. }) {
                anomalies.push(Anomaly::new(Kind::HighWatermarkBack, &[known.1, event]));
            }
        }
    }
}
