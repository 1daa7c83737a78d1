//! A log of a few records, and what they are.

use highwater_storage::{EpochEnd, EpochHistory, LeaderEpoch, Offset};

use crate::lineage::LogView;

/// A record: its epoch, and which of all records it is.
pub(super) type Entry = (LeaderEpoch, u8);

#[derive(Clone, Debug, Default)]
pub(super) struct SmallLog {
    start: i64,
    pub(super) flushed: i64,
    entries: Vec<Entry>,
    epochs: EpochHistory,
}

impl SmallLog {
    pub(super) fn at(&self, offset: i64) -> Option<Entry> {
        self.entries.get(usize::try_from(offset - self.start).ok()?).copied()
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn history(&self) -> &[(LeaderEpoch, Offset)] {
        self.epochs.entries()
    }

    pub(super) fn append(&mut self, (epoch, payload): Entry) {
        if epoch > self.latest_epoch() {
            self.assign(epoch);
        }
        self.entries.push((epoch, payload));
    }

    pub(super) fn assign(&mut self, epoch: LeaderEpoch) {
        self.epochs.assign(epoch, self.end());
    }

    pub(super) fn flush(&mut self) {
        self.flushed = self.end().0;
    }

    pub(super) fn truncate(&mut self, to: Offset) {
        self.entries.truncate(usize::try_from(to.0 - self.start).unwrap_or(0));
        self.epochs.truncate_from_end(to);
        self.flushed = self.flushed.min(self.end().0);
    }

    pub(super) fn reset(&mut self, start: Offset) {
        *self = Self { start: start.0, flushed: start.0, ..Self::default() };
    }

    pub(super) fn advance_start(&mut self, to: Offset) {
        if let Ok(gone @ 1..) = usize::try_from(to.0 - self.start) {
            self.entries.drain(..gone);
            self.start = to.0;
            self.flushed = self.flushed.max(to.0);
            self.epochs.truncate_from_start(to);
        }
    }
}

impl LogView for SmallLog {
    fn start(&self) -> Offset {
        Offset(self.start)
    }

    fn end(&self) -> Offset {
        Offset(self.start + i64::try_from(self.entries.len()).expect("few"))
    }

    fn flushed(&self) -> Offset {
        Offset(self.flushed)
    }

    fn first_epoch(&self) -> LeaderEpoch {
        self.epochs.entries().first().map_or(LeaderEpoch::NONE, |&(epoch, _)| epoch)
    }

    fn latest_epoch(&self) -> LeaderEpoch {
        self.epochs.latest()
    }

    fn end_of_epoch(&self, epoch: LeaderEpoch) -> EpochEnd {
        self.epochs.end_offset_for(epoch, self.end())
    }

    fn generation(&self) -> u64 {
        0
    }
}
