//! Who waits at a partition: produces for an offset to be passed, fetches for one to be there.

use std::collections::{BTreeMap, BTreeSet};

use highwater_storage::{Offset, TimestampMs};

use crate::WaitToken;
use crate::event::Acknowledged;

/// Produces that wait until everything up to their last record is committed (or flushed), in offset order.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingProduces {
    /// By the offset that must be reached, then in order of arrival: two waits for the same offset are possible (a
    /// batch and its duplicate).
    by_offset: BTreeMap<(Offset, u64), WaitingProduce>,
    deadlines: BTreeSet<(TimestampMs, Offset, u64)>,
    arrivals: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct WaitingProduce {
    pub(crate) token: WaitToken,
    pub(crate) deadline: TimestampMs,
    pub(crate) answer: Acknowledged,
}

impl WaitingProduces {
    pub(crate) fn len(&self) -> usize {
        self.by_offset.len()
    }

    pub(crate) fn add(&mut self, produce: WaitingProduce) {
        let reached = produce.answer.last_offset.next();
        self.deadlines.insert((produce.deadline, reached, self.arrivals));
        self.by_offset.insert((reached, self.arrivals), produce);
        self.arrivals += 1;
    }

    /// Takes out the first produce that waits for `end` or less.
    pub(crate) fn pop_reached(&mut self, end: Offset) -> Option<WaitingProduce> {
        let entry = self.by_offset.first_entry().filter(|entry| entry.key().0 <= end)?;
        let ((reached, arrival), produce) = entry.remove_entry();
        self.deadlines.remove(&(produce.deadline, reached, arrival));
        Some(produce)
    }

    /// Takes out one produce whose deadline has come.
    pub(crate) fn pop_expired(&mut self, now: TimestampMs) -> Option<WaitingProduce> {
        let first = *self.deadlines.first().filter(|first| first.0 <= now)?;
        self.deadlines.remove(&first);
        self.by_offset.remove(&(first.1, first.2))
    }

    pub(crate) fn pop_any(&mut self) -> Option<WaitingProduce> {
        self.pop_reached(Offset::MAX)
    }

    pub(crate) fn next_deadline(&self) -> Option<TimestampMs> {
        self.deadlines.first().map(|first| first.0)
    }
}

/// Fetches that wait until there is something at their offset.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingFetches {
    by_offset: BTreeSet<(Offset, WaitToken)>,
    by_token: BTreeMap<WaitToken, Offset>,
}

impl WaitingFetches {
    pub(crate) fn len(&self) -> usize {
        self.by_token.len()
    }

    /// A token that waits already waits for the new offset instead.
    pub(crate) fn add(&mut self, token: WaitToken, from: Offset) {
        self.remove(token);
        self.by_token.insert(token, from);
        self.by_offset.insert((from, token));
    }

    pub(crate) fn remove(&mut self, token: WaitToken) {
        if let Some(from) = self.by_token.remove(&token) {
            self.by_offset.remove(&(from, token));
        }
    }

    /// Takes out one fetch that waits below `end`.
    pub(crate) fn pop_below(&mut self, end: Offset) -> Option<WaitToken> {
        let (from, token) = *self.by_offset.first().filter(|first| first.0 < end)?;
        self.by_offset.remove(&(from, token));
        self.by_token.remove(&token);
        Some(token)
    }

    pub(crate) fn pop_any(&mut self) -> Option<WaitToken> {
        let (_, token) = self.by_offset.pop_first()?;
        self.by_token.remove(&token);
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn produce(token: u64, last: i64, deadline: i64) -> WaitingProduce {
        let answer = Acknowledged {
            base_offset: Offset(last),
            last_offset: Offset(last),
            append_time: TimestampMs::NONE,
            log_start: Offset(0),
            duplicate: false,
        };
        WaitingProduce { token: WaitToken(token), deadline: TimestampMs(deadline), answer }
    }

    #[test]
    fn produces_leave_in_offset_order_or_by_deadline() {
        let mut waiting = WaitingProduces::default();
        for (token, last, deadline) in [(1, 4, 90), (2, 2, 50), (3, 4, 10), (4, 9, 50)] {
            waiting.add(produce(token, last, deadline));
        }
        assert_eq!(waiting.next_deadline(), Some(TimestampMs(10)));
        assert!(waiting.pop_expired(TimestampMs(9)).is_none());
        assert!(waiting.pop_reached(Offset(2)).is_none(), "the record at 2 is passed by 3 only");
        let mut reached = Vec::new();
        while let Some(done) = waiting.pop_reached(Offset(5)) {
            reached.push(done.token.0);
        }
        assert_eq!(reached, [2, 1, 3]);
        assert_eq!(waiting.next_deadline(), Some(TimestampMs(50)));
        assert_eq!(waiting.pop_expired(TimestampMs(50)).map(|done| done.token), Some(WaitToken(4)));
        assert_eq!((waiting.len(), waiting.next_deadline()), (0, None));
    }

    #[test]
    fn fetches_wake_once_and_can_be_taken_back() {
        let mut waiting = WaitingFetches::default();
        waiting.add(WaitToken(1), Offset(5));
        waiting.add(WaitToken(2), Offset(3));
        waiting.add(WaitToken(3), Offset(3));
        waiting.add(WaitToken(1), Offset(4));
        waiting.remove(WaitToken(3));
        waiting.remove(WaitToken(9));
        assert_eq!(waiting.pop_below(Offset(3)), None);
        assert_eq!(waiting.pop_below(Offset(4)), Some(WaitToken(2)));
        assert_eq!(waiting.pop_below(Offset(4)), None);
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting.pop_any(), Some(WaitToken(1)));
        assert_eq!((waiting.pop_any(), waiting.len()), (None, 0));
    }
}
