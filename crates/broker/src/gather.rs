//! One answer per partition of a request, collected from whatever threads the partitions answer on.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

/// The answers of one request. [`Gather::all`] waits until each slot was filled or dropped.
pub(crate) struct Gather<T> {
    state: Mutex<State<T>>,
    complete: Notify,
}

struct State<T> {
    answers: Vec<Option<T>>,
    missing: usize,
}

/// The place of one answer. A slot that is dropped unfilled counts as answered with nothing, so that a partition that
/// goes away (closed, panicked, its queue dropped) leaves no client waiting.
pub(crate) struct Slot<T> {
    gather: Option<Arc<Gather<T>>>,
    index: usize,
}

impl<T> Gather<T> {
    /// A collection with room for `count` answers, and their places in order.
    pub(crate) fn new(count: usize) -> (Arc<Self>, impl Iterator<Item = Slot<T>>) {
        let mut answers = Vec::with_capacity(count);
        answers.resize_with(count, || None);
        let state = Mutex::new(State { answers, missing: count });
        let gather = Arc::new(Self { state, complete: Notify::new() });
        let slots = {
            let gather = Arc::clone(&gather);
            (0..count).map(move |index| Slot { gather: Some(Arc::clone(&gather)), index })
        };
        (gather, slots)
    }

    /// All answers, in the order of their slots; `None` where one was dropped. All slots must have been taken.
    pub(crate) async fn all(&self) -> Vec<Option<T>> {
        loop {
            {
                let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.missing == 0 {
                    return std::mem::take(&mut state.answers);
                }
            }
            // `notify_one` stores its permit, so an answer between the look and the wait is not missed.
            self.complete.notified().await;
        }
    }

    fn answer(&self, index: usize, answer: Option<T>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = state.answers.get_mut(index) {
            *place = answer;
        }
        state.missing = state.missing.saturating_sub(1);
        let complete = state.missing == 0;
        drop(state);
        if complete {
            self.complete.notify_one();
        }
    }
}

impl<T> Slot<T> {
    /// Gives the answer.
    pub(crate) fn fill(mut self, answer: T) {
        if let Some(gather) = self.gather.take() {
            gather.answer(self.index, Some(answer));
        }
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        if let Some(gather) = self.gather.take() {
            gather.answer(self.index, None);
        }
    }
}

impl<T> fmt::Debug for Slot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Gather<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Gather").field("answers", &state.answers.len()).field("missing", &state.missing).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[tokio::test]
    async fn answers_come_in_order_and_dropped_slots_count() {
        let (gather, slots) = Gather::new(3);
        let mut slots: Vec<Slot<&str>> = slots.collect();
        slots.pop().expect("three slots").fill("third");
        let (first, second) = (slots.remove(0), slots.remove(0));
        let other = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            drop(second);
            first.fill("first");
        });
        let answers = tokio::time::timeout(Duration::from_secs(5), gather.all()).await.expect("completes");
        assert_eq!(answers, [Some("first"), None, Some("third")]);
        other.join().expect("no panic");
    }

    #[tokio::test]
    async fn nothing_asked_is_answered_at_once() {
        let (gather, slots) = Gather::<u8>::new(0);
        assert_eq!(slots.count(), 0);
        assert!(gather.all().await.is_empty());
    }
}
