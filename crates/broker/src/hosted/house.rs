//! What a partition's housekeeping is asked for: retention more seldom than all else.

use highwater_replication::Partition;
use highwater_storage::TimestampMs;

use super::Deed;

/// Which work is due.
#[derive(Debug, Default)]
pub(super) struct House {
    /// Retention is to be looked at, and is until nothing is left for it.
    retention_due: bool,
}

impl House {
    /// The first piece of work, where it is time for a look at retention or not.
    pub(super) fn begin(&mut self, partition: &mut Partition, now: TimestampMs, retention: bool) -> Option<Deed> {
        self.retention_due |= retention;
        self.next(partition, now)
    }

    /// The next piece of work.
    pub(super) fn next(&mut self, partition: &mut Partition, now: TimestampMs) -> Option<Deed> {
        let job = match self.retention_due {
            true => partition.begin_work(now),
            false => partition.begin_work_without_retention(now),
        };
        // Where work of before still runs, the look is yet to come.
        self.retention_due &= job.is_some() || partition.is_working();
        job.map(|job| Deed::Work(Box::new(job)))
    }
}
