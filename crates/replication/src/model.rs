//! A log of numbers for the tests of the machine: the epoch of each record, nothing else.

use highwater_storage::{EpochEnd, EpochHistory, LeaderEpoch, Offset};

use crate::lineage::LogView;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelLog {
    start: i64,
    flushed: i64,
    generation: u64,
    /// The epochs of the records from `start` on.
    records: Vec<i32>,
    epochs: EpochHistory,
}

impl ModelLog {
    /// A log of `end` records whose epochs begin at the given offsets; an entry may lie at the end.
    pub(crate) fn with_epochs(epochs: &[(i32, i64)], end: i64) -> Self {
        let epoch_at = |offset| epochs.iter().rev().find(|entry| entry.1 <= offset).map_or(-1, |entry| entry.0);
        let entries = epochs.iter().map(|entry| (LeaderEpoch(entry.0), Offset(entry.1))).collect();
        Self {
            records: (0..end).map(epoch_at).collect(),
            epochs: EpochHistory::from_entries(entries).unwrap(),
            flushed: end,
            ..Self::default()
        }
    }

    pub(crate) fn records(&self) -> &[i32] {
        &self.records
    }

    pub(crate) fn append(&mut self, epoch: LeaderEpoch, count: usize) {
        if epoch > self.latest_epoch() {
            self.assign(epoch);
        }
        self.records.extend(std::iter::repeat_n(epoch.0, count));
    }

    pub(crate) fn assign(&mut self, epoch: LeaderEpoch) {
        self.epochs.assign(epoch, self.end());
    }

    pub(crate) fn flush(&mut self) {
        self.flushed = self.end().0;
    }

    pub(crate) fn truncate(&mut self, to: Offset) {
        self.generation += 1;
        self.records.truncate(usize::try_from(to.0 - self.start).unwrap_or(0));
        self.epochs.truncate_from_end(to);
        self.flushed = self.flushed.min(self.end().0);
    }

    pub(crate) fn reset(&mut self, start: Offset) {
        *self = Self { start: start.0, flushed: start.0, generation: self.generation + 1, ..Self::default() };
    }

    pub(crate) fn advance_start(&mut self, to: Offset) {
        if to.0 > self.start {
            self.records.drain(..usize::try_from(to.0 - self.start).unwrap());
            self.start = to.0;
            self.epochs.truncate_from_start(to);
        }
    }

    pub(crate) fn forget_epochs(&mut self) {
        self.epochs.clear();
    }
}

impl LogView for ModelLog {
    fn start(&self) -> Offset {
        Offset(self.start)
    }

    fn end(&self) -> Offset {
        Offset(self.start + i64::try_from(self.records.len()).unwrap())
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
        self.generation
    }
}
