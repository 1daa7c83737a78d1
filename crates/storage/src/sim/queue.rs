//! What is going to happen.

use std::collections::BTreeMap;

/// Events in order of virtual time, which passes when one is taken; of those at one time the first scheduled comes first.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    now: i64,
    scheduled: u64,
    events: BTreeMap<(i64, u64), E>,
}

impl<E> Queue<E> {
    /// Nothing is going to happen yet. Time is in milliseconds and begins wherever it suits.
    pub fn new(now: i64) -> Self {
        Self { now, scheduled: 0, events: BTreeMap::new() }
    }

    /// The virtual time.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Has it happen so much later; at once, behind all that happens now, if that is not positive.
    pub fn schedule(&mut self, after_ms: i64, event: E) {
        self.scheduled += 1;
        self.events.insert((self.now + after_ms.max(0), self.scheduled), event);
    }

    /// What happens next. Time goes on to then.
    pub fn pop(&mut self) -> Option<E> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// How much is going to happen.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}
