//! When a log syncs by itself.

use crate::error::{AppendError, FlushError};
use crate::log::{Durability, Log};
use crate::options::FlushPolicy;
use crate::{Offset, TimestampMs};

impl Log {
    /// The durability of a record, by where the flush mark is.
    pub(crate) fn durability(&self, last: Offset) -> Durability {
        if last < self.flushed() { Durability::Synced } else { Durability::Buffered }
    }

    /// Whether the policy wants a sync now.
    pub(crate) fn is_flush_due(&mut self, now: TimestampMs) -> bool {
        let unsynced = u64::try_from(self.end() - self.flushed()).unwrap_or(0);
        match self.options.flush {
            FlushPolicy::None => false,
            FlushPolicy::EachAppend => unsynced > 0,
            FlushPolicy::EveryMessages(messages) => unsynced >= messages,
            // Without a time, a sync was begun behind which nothing came, and it may not have been run.
            FlushPolicy::EveryMs(_) if unsynced == 0 => false,
            FlushPolicy::EveryMs(ms) => {
                let since = self.unsynced_since.get_or_insert(now);
                // A clock that was set back does not keep the records waiting for what it was set back by.
                *since = (*since).min(now);
                now.since(*since) >= ms
            }
        }
    }

    /// Whether housekeeping is to make a checkpoint now. Behind full segments at once: until it, their indexes and
    /// snapshots are in memory.
    pub(crate) fn is_checkpoint_due(&mut self, now: TimestampMs) -> bool {
        if !self.owes_checkpoint() {
            return false;
        }
        let interval = self.options.checkpoint_interval_ms;
        if !self.sealed.is_empty() || interval < 0 {
            return !self.sealed.is_empty();
        }
        let since = self.checkpoint_owed_since.get_or_insert(now);
        *since = (*since).min(now);
        now.since(*since) >= interval
    }

    /// Syncs if the policy wants it now.
    pub(crate) fn flush_by_policy(&mut self, now: TimestampMs) -> Result<(), AppendError> {
        if self.is_flush_due(now) {
            self.flush()?;
        }
        Ok(())
    }
}

impl From<FlushError> for AppendError {
    fn from(error: FlushError) -> Self {
        match error {
            FlushError::Io(error) => Self::Io(error),
            FlushError::Closed(fence) => Self::Closed(fence),
        }
    }
}
