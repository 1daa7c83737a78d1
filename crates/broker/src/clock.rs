//! The broker's clock: the only place that asks the system for the time on behalf of partitions.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use highwater_storage::TimestampMs;

/// Wall-clock time that never goes back: the time of day at start plus what a monotonic clock says has passed since.
/// Timeouts and lag are measured with it, so a step of the system clock must not make followers look late. The price
/// is that such a step shows in `LogAppendTime` only after a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: TimestampMs,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), started_at: wall_clock() }
    }

    /// The time.
    pub(crate) fn now(&self) -> TimestampMs {
        self.started_at.after(i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX))
    }

    /// The moment `time` as an [`Instant`], for timers; now if it has passed.
    pub(crate) fn instant(&self, time: TimestampMs) -> Instant {
        let ms = time.since(self.started_at).max(0).unsigned_abs();
        self.started.checked_add(std::time::Duration::from_millis(ms)).unwrap_or_else(|| {
            // Further away than the clock can count: a day is as good, the timer then looks again.
            Instant::now() + std::time::Duration::from_secs(86_400)
        })
    }
}

fn wall_clock() -> TimestampMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimestampMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_timestamps_agree() {
        let clock = Clock::start();
        let later = clock.now().after(5_000);
        let wait = clock.instant(later).saturating_duration_since(Instant::now());
        assert!((4_900..=5_000).contains(&wait.as_millis()), "{wait:?}");
        assert!(clock.instant(TimestampMs(0)) <= Instant::now());
        assert!(clock.instant(TimestampMs(i64::MAX)) > Instant::now());
    }
}
