//! Syncs, and the broker's own work on its directory, away from the threads that own partitions.
//!
//! A partition hands out at most one sync at a time; produces that come meanwhile share the next. The result goes back
//! into the partition's inbox on the lane that never refuses.

use std::sync::Weak;

use highwater_storage::{FlushJob, WorkJob};
use tokio::sync::oneshot;

use crate::hosted::{Command, Hosted};
use crate::threads::Threads;

/// Two, so that one partition's slow sync does not hold up all the others; the device serves more no faster.
const SYNC_THREADS: usize = 2;

/// The threads that wait for the disk.
#[derive(Debug)]
pub(crate) struct Syncs {
    syncs: Threads,
    /// Apart from the syncs: nobody waits for it, and it may take long.
    work: Threads,
    /// Apart from both: a change of leaders must not wait for the removal of a large log.
    control: Threads,
}

impl Syncs {
    /// No threads yet.
    pub(crate) fn new() -> Self {
        Self {
            syncs: Threads::new("hw-sync", SYNC_THREADS),
            work: Threads::new("hw-work", 1),
            control: Threads::new("hw-control", 1),
        }
    }

    /// Syncs, and tells the partition.
    pub(crate) fn sync(&self, hosted: Weak<Hosted>, job: FlushJob) {
        let run = move || {
            let done = job.run();
            if let Some(hosted) = hosted.upgrade() {
                hosted.submit(Command::Flushed(Box::new(done)));
            }
        };
        // Refused only when the broker stops, which closes each log itself.
        drop(self.syncs.run(Box::new(run)));
    }

    /// Does a piece of housekeeping, and tells the partition.
    pub(crate) fn work(&self, hosted: Weak<Hosted>, job: WorkJob) {
        let run = move || {
            let done = job.run();
            if let Some(hosted) = hosted.upgrade() {
                hosted.submit(Command::Worked(Box::new(done)));
            }
        };
        drop(self.work.run(Box::new(run)));
    }

    /// Runs something of the broker's own that may wait for the disk. `None` if the broker stops before it was done.
    pub(crate) async fn background<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        run_on(&self.work, run).await
    }

    /// The same for what others wait for: it comes before all housekeeping.
    pub(crate) async fn control<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        run_on(&self.control, run).await
    }

    /// The same for something nobody waits for.
    pub(crate) fn detached(&self, run: impl FnOnce() + Send + 'static) {
        drop(self.work.run(Box::new(run)));
    }

    /// Finishes what is queued and ends the threads.
    pub(crate) fn finish(&self) {
        self.control.finish();
        self.syncs.finish();
        self.work.finish();
    }

    /// Drops what is queued and ends the threads as soon as their present job is done.
    pub(crate) fn abandon(&self) {
        self.control.abandon();
        self.syncs.abandon();
        self.work.abandon();
    }
}

async fn run_on<R: Send + 'static>(threads: &Threads, run: impl FnOnce() -> R + Send + 'static) -> Option<R> {
    let (sender, receiver) = oneshot::channel();
    // Nobody may wait any more when it is done.
    let job = Box::new(move || drop(sender.send(run())));
    threads.run(job).ok()?;
    receiver.await.ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_change_of_leaders_waits_for_no_housekeeping() {
        let syncs = Syncs::new();
        let (release, released) = mpsc::channel::<()>();
        syncs.detached(move || assert!(released.recv().is_err()));
        let control = tokio::time::timeout(Duration::from_secs(20), syncs.control(|| 7));
        assert_eq!(control.await, Ok(Some(7)));
        drop(release);
        assert_eq!(syncs.background(|| 8).await, Some(8));
        syncs.finish();
        assert_eq!((syncs.control(|| 7).await, syncs.background(|| 8).await), (None, None));
    }
}
