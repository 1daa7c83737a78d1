//! What must hold whatever happens, checked from outside against what the logs really hold.
//!
//! - *Identity*: an offset and an epoch name one record in all logs for ever, and the record before it. Then two logs with
//!   the same epoch at an offset are equal up to there (the second half of invariant I2). It holds unconditionally.
//! - *Committed*: what any replica's high watermark has passed is the same record in every log whose high watermark has
//!   passed it (I2), and is never another one later (I4). Consumers see nothing else.
//! - *Members*: what is committed, and what was acknowledged to acks=all, is in the log of every live member of every
//!   later ISR (I3), and it is the same record there.
//! - *Deleted*: no log starts above what retention has deleted somewhere, below a high watermark. What is missing below a
//!   log's start is missing by age, and not lost.
//! - *Clients*: a high watermark or an end that was told to a client never goes back for it, nor does the log end below
//!   where it is; what it reads has no gaps.
//!
//! The first and the fourth hold unconditionally, the others within the promise of the run: not after an unclean election.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use highwater_replication::Partition;
use highwater_storage::{LogReader, Offset, ReadLimit, batches};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) epoch: i32,
    pub(crate) payload: u64,
}

/// A log's records as they were read from it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    pub(crate) start: i64,
    pub(crate) entries: VecDeque<Entry>,
    /// Up to where it was compared with what is committed.
    compared: i64,
}

/// Records that have rotted in a log: they were there, and are to be there again.
#[derive(Clone, Debug)]
pub(crate) struct Rotten {
    pub(crate) from: i64,
    pub(crate) entries: Vec<Entry>,
}

impl Rotten {
    pub(crate) fn end(&self) -> i64 {
        self.from + i64::try_from(self.entries.len()).expect("a short log")
    }

    /// What was there from this offset on, if that is rotten.
    fn since(&self, offset: i64) -> Option<&[Entry]> {
        self.entries.get(usize::try_from(offset - self.from).ok()?..).filter(|left| !left.is_empty())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Truth {
    identity: BTreeMap<(i64, i32), (u64, i32)>,
    committed: BTreeMap<i64, Entry>,
    acknowledged: BTreeMap<i64, u64>,
    /// What was committed and is lost. A replica outside of the ISR may have it still, below the high watermark that it
    /// has heard of.
    struck: BTreeSet<(i64, i32)>,
    /// Retention has deleted up to here in some log.
    deleted_below: i64,
}

impl Mirror {
    pub(crate) fn end(&self) -> i64 {
        self.start + i64::try_from(self.entries.len()).expect("a short log")
    }

    pub(crate) fn at(&self, offset: i64) -> Option<Entry> {
        self.entries.get(usize::try_from(offset - self.start).ok()?).copied()
    }

    /// Reads what the log has that is not known here yet.
    pub(crate) fn follow(&mut self, partition: &Partition, rotten: Option<&Rotten>, truth: &mut Truth) {
        let log = partition.log();
        self.read_on(log.start().0, log.end().0, &partition.reader(), rotten, truth);
    }

    pub(crate) fn read_on(
        &mut self,
        start: i64,
        end: i64,
        reader: &LogReader,
        rotten: Option<&Rotten>,
        truth: &mut Truth,
    ) {
        if end < self.end() || start > self.end() || start < self.start {
            self.forget(start);
        }
        while self.start < start {
            self.entries.pop_front();
            self.start += 1;
        }
        while self.end() < end {
            let from = self.end();
            if let Some(entries) = rotten.and_then(|rotten| rotten.since(from)) {
                for entry in entries {
                    self.take(*entry, truth);
                }
                continue;
            }
            // Up to what is rotten: whether a read meets it depends on where it begins.
            let limit = ReadLimit::bytes(1 << 20);
            let limit = match rotten.filter(|rotten| rotten.from > from) {
                Some(rotten) => limit.below(Offset(rotten.from)),
                None => limit,
            };
            let fetched = match reader.read(Offset(from), limit) {
                Ok(fetched) => fetched,
                Err(error) => panic!("a log that cannot be read at {from}: {error}"),
            };
            assert!(fetched.next.0 > from, "the log ends at {end} and gives nothing at {from}");
            let known = self.entries.len();
            for batch in batches(&fetched.bytes) {
                let batch = batch.expect("whole batches");
                let header = batch.header();
                for record in batch.records().expect("an uncompressed batch") {
                    let record = record.expect("a whole record");
                    let offset = header.base_offset().0 + i64::from(record.offset_delta);
                    if offset < from {
                        continue;
                    }
                    let value = record.value.expect("a value");
                    let payload = u64::from_be_bytes(value.try_into().expect("eight bytes"));
                    self.take(Entry { epoch: header.leader_epoch().0, payload }, truth);
                }
            }
            assert!(self.entries.len() > known, "the log goes {start}..{end} and gives {fetched:?} at {from}");
        }
    }

    fn take(&mut self, entry: Entry, truth: &mut Truth) {
        let before = self.entries.back().map_or(-1, |entry| entry.epoch);
        let offset = self.end();
        self.entries.push_back(entry);
        truth.identify(offset, entry, before);
    }

    /// The log was cut or opened again: nothing is known of it.
    pub(crate) fn forget(&mut self, start: i64) {
        *self = Self { start, ..Self::default() };
    }
}

impl Truth {
    fn identify(&mut self, offset: i64, entry: Entry, before: i32) {
        let known = self.identity.entry((offset, entry.epoch)).or_insert((entry.payload, before));
        assert_eq!(known.0, entry.payload, "two records at offset {offset} of epoch {}", entry.epoch);
        if before >= 0 && known.1 >= 0 {
            assert_eq!(known.1, before, "two histories before offset {offset} of epoch {}", entry.epoch);
        }
        if known.1 < 0 {
            known.1 = before;
        }
    }

    /// What lies below a high watermark is committed.
    pub(crate) fn commit(&mut self, mirror: &mut Mirror, high_watermark: i64) {
        mirror.compared = mirror.compared.min(high_watermark).max(mirror.start);
        while mirror.compared < high_watermark {
            let offset = mirror.compared;
            let entry = mirror.at(offset).expect("the high watermark is within the log");
            if !self.struck.contains(&(offset, entry.epoch)) {
                let known = *self.committed.entry(offset).or_insert(entry);
                assert_eq!(known, entry, "offset {offset} is committed twice");
            }
            mirror.compared += 1;
        }
    }

    /// A consumer was given this record.
    pub(crate) fn consumed(&self, offset: i64, payload: u64) {
        let known = self.committed.get(&offset).unwrap_or_else(|| panic!("offset {offset} was shown uncommitted"));
        assert_eq!(known.payload, payload, "offset {offset} shows two records");
    }

    /// A record was acknowledged to acks=all.
    pub(crate) fn acknowledge(&mut self, offset: i64, payload: u64) {
        let known = *self.acknowledged.entry(offset).or_insert(payload);
        assert_eq!(known, payload, "two records were acknowledged at offset {offset}");
    }

    /// Retention was at work in a log that begins at `start` now.
    pub(crate) fn deleted(&mut self, start: i64) {
        self.deleted_below = self.deleted_below.max(start);
    }

    /// A log that begins at `start` lacks nothing but what was deleted by age.
    pub(crate) fn begins(&self, node: usize, start: i64) {
        let deleted = self.deleted_below;
        let broker = node + 1;
        assert!(
            start <= deleted,
            "broker {broker} begins at {start}, committed records from {deleted} on are not deleted"
        );
    }

    /// A member of the ISR has all that is committed and each acknowledged record, as far as its log goes back.
    pub(crate) fn holds_everything(&self, whose: &str, mirror: &Mirror) {
        for (offset, payload) in self.acknowledged.range(mirror.start..) {
            let found = mirror.at(*offset).map(|entry| entry.payload);
            assert_eq!(found, Some(*payload), "{whose} lacks offset {offset}, which was acknowledged");
        }
        for (offset, entry) in self.committed.range(mirror.start..) {
            assert_eq!(mirror.at(*offset), Some(*entry), "{whose} lacks offset {offset}, which is committed");
        }
    }

    /// Of the in-sync replicas' logs this is what is left. Whatever none of them holds is lost, and was not promised: the
    /// number of those records.
    pub(crate) fn strike_what_none_holds(&mut self, left: &[Mirror]) -> u64 {
        let before = self.acknowledged.len() + self.committed.len();
        // What a log has deleted by age it had.
        let held = |offset: i64, is: &dyn Fn(Entry) -> bool| {
            left.iter().any(|log| offset < log.start || log.at(offset).is_some_and(is))
        };
        self.acknowledged.retain(|offset, payload| held(*offset, &|entry| entry.payload == *payload));
        let struck = &mut self.struck;
        self.committed.retain(|offset, known| {
            let held = held(*offset, &|entry| entry == *known);
            held || !struck.insert((*offset, known.epoch))
        });
        (before - self.acknowledged.len() - self.committed.len()) as u64
    }

    pub(crate) fn committed_below(&self) -> i64 {
        self.committed.last_key_value().map_or(0, |last| last.0 + 1)
    }
}
