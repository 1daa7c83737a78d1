//! Keeps a trouble that comes with every request from filling the log of the program.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a trouble that lasts is told of.
const EVERY: Duration = Duration::from_secs(10);

/// Lets something through every ten seconds, and counts what it holds back.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    last: Mutex<Option<Told>>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    held_back: u64,
}

impl Seldom {
    /// One that has let nothing through yet.
    pub(crate) const fn new() -> Self {
        Self { last: Mutex::new(None) }
    }

    /// How many were held back since the last that was let through; `None` if this one is held back too.
    pub(crate) fn admits(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *last {
            Some(told) if now.saturating_duration_since(told.at) < EVERY => {
                told.held_back += 1;
                None
            }
            told => {
                let held_back = told.as_ref().map_or(0, |told| told.held_back);
                *told = Some(Told { at: now, held_back: 0 });
                Some(held_back)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_let_through_and_one_every_ten_seconds_that_counts_the_others() {
        let (seldom, start) = (Seldom::default(), Instant::now());
        let at = |ms| seldom.admits(start + Duration::from_millis(ms));
        let told: Vec<_> = [0, 1, 9_999, 10_000, 10_001, 30_000, 40_000].map(at).into();
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1), Some(0)]);
    }
}
