//! The history of leader epochs of one log: which epoch began at which offset.
//!
//! Each leadership of a partition has a number. A log remembers at which offset each number first stood in its batches,
//! so that a follower and a leader can find where their histories part (KIP-101). Pure values; the engine keeps them in
//! the file `leader-epoch-checkpoint`. Source: Kafka's `LeaderEpochFileCache`.

use std::sync::Arc;

use crate::{LeaderEpoch, Offset};

/// Where an epoch ends in a log, as a leader answers a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch the log knows that is not above the one asked for; [`LeaderEpoch::NONE`] if the answer is
    /// "unknown".
    pub epoch: LeaderEpoch,
    /// The offset after that epoch's last record, -1 if unknown.
    pub end: Offset,
}

impl EpochEnd {
    /// "Unknown", as Kafka says it.
    pub const NONE: Self = Self { epoch: LeaderEpoch::NONE, end: Offset(-1) };

    /// Whether this is an answer and not [`EpochEnd::NONE`].
    pub fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// Epochs and their start offsets, both strictly increasing. Clones share them until one changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochHistory {
    entries: Arc<Vec<(LeaderEpoch, Offset)>>,
}

/// Entries that are no history: negative, or not strictly increasing in both columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("epoch {epoch} at offset {start} does not follow the entry before it")]
pub struct InvalidHistory {
    /// The first epoch that does not fit.
    pub epoch: LeaderEpoch,
    /// Its start offset.
    pub start: Offset,
}

impl EpochHistory {
    /// A history without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// A history as read from a checkpoint.
    ///
    /// # Errors
    /// If the entries are not strictly increasing in both columns: a damaged checkpoint, to be rebuilt from the batches.
    pub fn from_entries(mut entries: Vec<(LeaderEpoch, Offset)>) -> Result<Self, InvalidHistory> {
        let mut previous = (LeaderEpoch::NONE, Offset(-1));
        for &(epoch, start) in &entries {
            if epoch <= previous.0 || start <= previous.1 {
                return Err(InvalidHistory { epoch, start });
            }
            previous = (epoch, start);
        }
        entries.shrink_to_fit();
        Ok(Self { entries: Arc::new(entries) })
    }

    /// The entries in order.
    pub fn entries(&self) -> &[(LeaderEpoch, Offset)] {
        &self.entries
    }

    /// Whether no epoch is known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The latest epoch, or [`LeaderEpoch::NONE`].
    pub fn latest(&self) -> LeaderEpoch {
        self.entries.last().map_or(LeaderEpoch::NONE, |&(epoch, _)| epoch)
    }

    /// Notes that `epoch` has its first record at `start`, and returns whether that changed the history (which then has
    /// to be written).
    ///
    /// What is already known changes nothing. Otherwise the new entry wins: entries with a higher epoch, or at the same or a
    /// later offset, are dropped. An entry of the same epoch that is left begins before `start` and stays: it is higher ones
    /// that gave way, of records that were to follow and could not be written. (Kafka drops it too, and takes the records in
    /// between for those of an earlier epoch.) A negative epoch ("none") is ignored.
    pub fn assign(&mut self, epoch: LeaderEpoch, start: Offset) -> bool {
        if !epoch.is_some() {
            return false;
        }
        if let Some(&(latest, latest_start)) = self.entries.last()
            && latest == epoch
            && latest_start <= start
        {
            return false;
        }
        let entries = Arc::make_mut(&mut self.entries);
        while entries.pop_if(|(known, known_start)| *known > epoch || *known_start >= start).is_some() {}
        if entries.last().is_none_or(|(latest, _)| *latest != epoch) {
            entries.push((epoch, start));
        }
        true
    }

    /// Drops the epochs that start at `end` or after, and returns whether there were any.
    pub fn truncate_from_end(&mut self, end: Offset) -> bool {
        let kept = self.entries.partition_point(|&(_, start)| start < end);
        let is_changed = kept < self.entries.len();
        if is_changed {
            Arc::make_mut(&mut self.entries).truncate(kept);
        }
        is_changed
    }

    /// Forgets what lies before `start`, and returns whether that changed anything. The epoch that holds `start` stays
    /// and now begins there.
    pub fn truncate_from_start(&mut self, start: Offset) -> bool {
        let below = self.entries.partition_point(|&(_, known_start)| known_start < start);
        let Some(kept) = below.checked_sub(1) else { return false };
        // An epoch that begins at `start` itself makes the one before it empty.
        let starts_there = self.entries.get(below).is_some_and(|&(_, known_start)| known_start == start);
        let entries = Arc::make_mut(&mut self.entries);
        entries.drain(..if starts_there { below } else { kept });
        if !starts_there && let Some((_, known_start)) = entries.first_mut() {
            *known_start = start;
        }
        true
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Where `epoch` ends in a log that ends at `log_end`.
    ///
    /// For the latest epoch that is the log's end. For an earlier one, known or not, it is the start of the next higher
    /// one, told together with the largest epoch not above it. [`EpochEnd::NONE`] for an epoch above all known ones.
    pub fn end_offset_for(&self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd {
        if !epoch.is_some() {
            return EpochEnd::NONE;
        }
        if epoch == self.latest() {
            return EpochEnd { epoch, end: log_end };
        }
        let higher = self.entries.partition_point(|&(known, _)| known <= epoch);
        let Some(&(_, end)) = self.entries.get(higher) else { return EpochEnd::NONE };
        let floor = higher.checked_sub(1).and_then(|index| self.entries.get(index));
        EpochEnd { epoch: floor.map_or(epoch, |&(known, _)| known), end }
    }

    /// The epoch of the record at `offset`, or [`LeaderEpoch::NONE`] before the first entry.
    pub fn epoch_of(&self, offset: Offset) -> LeaderEpoch {
        let after = self.entries.partition_point(|&(_, start)| start <= offset);
        after.checked_sub(1).and_then(|index| self.entries.get(index)).map_or(LeaderEpoch::NONE, |&(epoch, _)| epoch)
    }
}

#[cfg(test)]
mod tests;
