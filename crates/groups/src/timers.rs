//! Deadlines of one group.

use std::collections::{BTreeMap, BTreeSet};

/// What a deadline is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A member, or one that was told its id and has not joined yet, has been silent for too long.
    Session(String),
    /// The members that have not joined again are left behind.
    Join,
    /// The members that have not asked for their assignment are left behind.
    Sync,
}

/// At most one deadline for each timer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(u64, Timer)>,
    times: BTreeMap<Timer, u64>,
}

impl Timers {
    /// Sets the deadline of `timer`, in place of the one it had.
    pub(crate) fn set(&mut self, timer: Timer, at_ms: u64) {
        if let Some(before) = self.times.insert(timer.clone(), at_ms) {
            self.by_time.remove(&(before, timer.clone()));
        }
        self.by_time.insert((at_ms, timer));
    }

    pub(crate) fn cancel(&mut self, timer: &Timer) {
        if let Some(at) = self.times.remove(timer) {
            self.by_time.remove(&(at, timer.clone()));
        }
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// The earliest of those that are due, which has no deadline any more.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<Timer> {
        if self.next_ms()? > now_ms {
            return None;
        }
        let (_, timer) = self.by_time.pop_first()?;
        self.times.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_has_one_deadline() {
        let mut timers = Timers::default();
        timers.set(Timer::Join, 5);
        timers.set(Timer::Sync, 7);
        timers.set(Timer::Join, 9);
        assert_eq!(timers.next_ms(), Some(7));
        assert_eq!(timers.pop_due(6), None);
        assert_eq!(timers.pop_due(9), Some(Timer::Sync));
        timers.cancel(&Timer::Join);
        timers.cancel(&Timer::Join);
        assert_eq!((timers.pop_due(u64::MAX), timers.next_ms()), (None, None));
    }
}
