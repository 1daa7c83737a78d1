//! One timer for all partitions: each has at most one moment at which it wants to be woken.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use highwater_storage::TimestampMs;
use tokio::sync::Notify;

use crate::clock::Clock;

/// What to do when a moment has come. Called on the timer's task: only hands on.
pub(crate) trait Wake: Send + Sync {
    /// The moment has come.
    fn wake(self: Arc<Self>);
}

/// The moments, earliest first.
pub(crate) struct Deadlines {
    clock: Clock,
    entries: Mutex<Entries>,
    earlier: Notify,
}

#[derive(Default)]
struct Entries {
    by_time: BTreeMap<(TimestampMs, u64), Arc<dyn Wake>>,
    next: u64,
}

/// Names an entry, to replace it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(TimestampMs, u64);

impl Deadlines {
    /// No moments yet.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, entries: Mutex::default(), earlier: Notify::new() }
    }

    /// Wakes `whom` at `time`, instead of at the entry given, if that is still to come.
    pub(crate) fn arm(&self, time: TimestampMs, whom: Arc<dyn Wake>, instead_of: Option<Entry>) -> Entry {
        let mut entries = self.lock();
        let replaced = instead_of.and_then(|Entry(time, number)| entries.by_time.remove(&(time, number)));
        let number = entries.next;
        entries.next += 1;
        entries.by_time.insert((time, number), whom);
        let first = entries.by_time.first_key_value().is_some_and(|(&key, _)| key == (time, number));
        drop(entries);
        drop(replaced);
        if first {
            self.earlier.notify_one();
        }
        Entry(time, number)
    }

    /// Takes an entry out, if it is still to come.
    pub(crate) fn disarm(&self, Entry(time, number): Entry) {
        let removed = self.lock().by_time.remove(&(time, number));
        drop(removed);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut self.lock().by_time);
        drop(dropped);
    }

    /// Wakes whoever is due, for ever.
    pub(crate) async fn run(&self) {
        loop {
            let now = self.clock.now();
            let (due, next) = {
                let mut entries = self.lock();
                let later = entries.by_time.split_off(&(now.after(1), 0));
                let due = std::mem::replace(&mut entries.by_time, later);
                (due, entries.by_time.first_key_value().map(|(&(time, _), _)| time))
            };
            let nothing_due = due.is_empty();
            for whom in due.into_values() {
                whom.wake();
            }
            if !nothing_due {
                continue;
            }
            match next {
                None => self.earlier.notified().await,
                Some(time) => {
                    let until = self.clock.instant(time).into();
                    let _: Result<(), _> = tokio::time::timeout_at(until, self.earlier.notified()).await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines").field("entries", &self.lock().by_time.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    struct Bell(Mutex<Vec<Instant>>);
    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.0.lock().expect("no panic under the lock").push(Instant::now());
        }
    }

    fn bell() -> Arc<Bell> {
        Arc::new(Bell(Mutex::default()))
    }

    fn rings(bell: &Bell) -> usize {
        bell.0.lock().expect("no panic under the lock").len()
    }

    #[tokio::test]
    async fn wakes_in_order_once_each_and_forgets_what_was_replaced() {
        let clock = Clock::start();
        let deadlines = Arc::new(Deadlines::new(clock));
        let task = tokio::spawn({
            let deadlines = Arc::clone(&deadlines);
            async move { deadlines.run().await }
        });
        let (early, late, replaced, past) = (bell(), bell(), bell(), bell());
        let now = clock.now();
        deadlines.arm(now.after(60), late.clone(), None);
        tokio::time::sleep(Duration::from_millis(5)).await;
        deadlines.arm(now.after(30), early.clone(), None);
        let entry = deadlines.arm(now.after(20), replaced.clone(), None);
        deadlines.arm(now.after(60_000), replaced.clone(), Some(entry));
        deadlines.arm(TimestampMs(0), past.clone(), None);
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!((rings(&early), rings(&late), rings(&replaced), rings(&past)), (1, 1, 0, 1));
        let at = |bell: &Bell| bell.0.lock().expect("no panic under the lock")[0];
        assert!(at(&past) < at(&early) && at(&early) < at(&late));
        task.abort();
    }
}
