//! What must hold of all logs together, whatever has happened.
//!
//! - An offset and an epoch name one record in all logs for ever, and one epoch before it.
//! - What a high watermark has passed is the same record wherever one has passed it, and stays it.
//! - What was acknowledged to acks=all, and what is committed, is in the log of every whole member of every later in-sync
//!   set, as far as that log goes back; and no log begins above what was deleted by age.
//! - What a leader tells consumers as the high watermark is not below what was told in its epoch or an earlier one.
//!
//! The first holds of every program, the others where no leader was elected uncleanly.

use std::collections::{BTreeMap, VecDeque};

use highwater_replication::Partition;
use highwater_storage::{LeaderEpoch, Offset, ReadLimit, batches};

/// A record: its epoch, and the number in its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    epoch: LeaderEpoch,
    pub(super) number: u64,
}

/// A log's records as they were read from it.
#[derive(Clone, Debug, Default)]
pub(super) struct Mirror {
    pub(super) start: i64,
    entries: VecDeque<Entry>,
    /// Up to where it was compared with what is committed.
    compared: i64,
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    identity: BTreeMap<(i64, LeaderEpoch), (u64, LeaderEpoch)>,
    committed: BTreeMap<i64, Entry>,
    acknowledged: BTreeMap<i64, u64>,
    /// The highest high watermark that was told in an epoch.
    told: BTreeMap<LeaderEpoch, Offset>,
    /// Retention has deleted up to here in some log.
    pub(super) deleted_below: i64,
}

impl Mirror {
    pub(super) fn end(&self) -> i64 {
        self.start + i64::try_from(self.entries.len()).expect("a short log")
    }

    pub(super) fn at(&self, offset: i64) -> Option<Entry> {
        self.entries.get(usize::try_from(offset - self.start).ok()?).copied()
    }

    /// The log was cut or opened again: nothing is known of it.
    pub(super) fn forget(&mut self, start: Offset) {
        *self = Self { start: start.0, ..Self::default() };
    }

    /// Reads what the log has that is not known here yet.
    pub(super) fn follow(&mut self, partition: &Partition, truth: &mut Truth) {
        let (log, reader) = (partition.log(), partition.reader());
        let (start, end) = (log.start(), log.end());
        if end.0 < self.end() || start.0 > self.end() || start.0 < self.start {
            self.forget(start);
        }
        while self.start < start.0 {
            self.entries.pop_front();
            self.start += 1;
        }
        while self.end() < end.0 {
            let from = self.end();
            let fetched = reader.read(Offset(from), ReadLimit::bytes(1 << 20)).expect("what is there can be read");
            for batch in batches(&fetched.bytes) {
                let batch = batch.expect("only whole batches are read");
                for record in batch.records().expect("an uncompressed batch") {
                    let record = record.expect("a whole record");
                    let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                    if offset < from {
                        continue;
                    }
                    assert_eq!(offset, self.end(), "a hole in a log");
                    let value = record.value.and_then(|value| value.try_into().ok()).expect("eight bytes");
                    let entry = Entry { epoch: batch.header().leader_epoch(), number: u64::from_be_bytes(value) };
                    let before = self.entries.back().map_or(LeaderEpoch::NONE, |entry| entry.epoch);
                    assert!(before <= entry.epoch, "the epochs of a log go back at {offset}");
                    self.entries.push_back(entry);
                    truth.identify(offset, entry, before);
                }
            }
            assert!(self.end() > from, "reading at {from} does not get on");
        }
    }
}

impl Truth {
    fn identify(&mut self, offset: i64, entry: Entry, before: LeaderEpoch) {
        let known = self.identity.entry((offset, entry.epoch)).or_insert((entry.number, before));
        assert_eq!(known.0, entry.number, "two records at offset {offset} of epoch {}", entry.epoch);
        if before.is_some() && known.1.is_some() {
            assert_eq!(known.1, before, "two histories before offset {offset} of epoch {}", entry.epoch);
        }
        known.1 = known.1.max(before);
    }

    /// What lies below a high watermark is committed.
    pub(super) fn commit(&mut self, mirror: &mut Mirror, high_watermark: Offset) {
        mirror.compared = mirror.compared.min(high_watermark.0).max(mirror.start);
        while mirror.compared < high_watermark.0 {
            let offset = mirror.compared;
            let entry = mirror.at(offset).expect("the high watermark is within the log");
            let known = *self.committed.entry(offset).or_insert(entry);
            assert_eq!(known, entry, "offset {offset} is committed twice");
            mirror.compared += 1;
        }
    }

    /// A record was acknowledged to acks=all.
    pub(super) fn acknowledge(&mut self, offset: i64, number: u64) {
        let known = *self.acknowledged.entry(offset).or_insert(number);
        assert_eq!(known, number, "two records are acknowledged at offset {offset}");
    }

    /// The leader of an epoch tells consumers its high watermark; -1 if it does not know.
    pub(super) fn told(&mut self, epoch: LeaderEpoch, high_watermark: Offset) {
        let before = self.told.range(..=epoch).map(|(_, told)| *told).max().unwrap_or(Offset(0));
        assert!(
            high_watermark.0 < 0 || high_watermark >= before,
            "the leader of epoch {epoch} tells the high watermark {high_watermark}, after {before}"
        );
        if high_watermark > before {
            self.told.insert(epoch, high_watermark);
        }
    }

    /// A log that begins here lacks nothing but what was deleted by age.
    pub(super) fn begins(&self, start: Offset) {
        let deleted = self.deleted_below;
        assert!(start.0 <= deleted, "a log begins at {start}, and only what lies below {deleted} is deleted");
    }

    /// A whole member of the in-sync set has all that is committed and each acknowledged record.
    pub(super) fn is_held_by(&self, mirror: &Mirror) {
        for (offset, number) in self.acknowledged.range(mirror.start..) {
            let found = mirror.at(*offset).map(|entry| entry.number);
            assert_eq!(found, Some(*number), "a member lacks offset {offset}, which was acknowledged");
        }
        for (offset, entry) in self.committed.range(mirror.start..) {
            assert_eq!(mirror.at(*offset), Some(*entry), "a member lacks offset {offset}, which is committed");
        }
    }
}
