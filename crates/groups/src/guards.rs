//! What keeps a batch of a transaction that is over from beginning another one, which nobody would end.
//!
//! A producer's first batch of a transaction in a partition is taken only if the transaction's coordinator says that the
//! partition takes part (KIP-890). Between that word and the append a marker may end the transaction, if the batch was long on
//! its way. So a guard is drawn before the coordinator is asked, each marker of the producer breaks it, and the append needs it
//! whole. Source: Kafka's `VerificationGuard`, `VerificationStateEntry`.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::vocabulary::Producer;

/// What the log of a partition knows of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownProducer {
    /// Its latest epoch.
    pub epoch: i16,
    /// A transaction of it is open there.
    pub in_transaction: bool,
}

impl KnownProducer {
    /// Whether a batch of the producer goes on with its transaction.
    pub fn goes_on(self, producer: Producer) -> bool {
        self.in_transaction && self.epoch == producer.epoch
    }
}

/// Whether a batch of a transaction goes on with one, or may begin one. One of an epoch that is over has the log's answer.
pub fn may_be_appended(producer: Producer, known: Option<KnownProducer>, guard: Option<&Guard>) -> bool {
    let goes_on = known.is_some_and(|known| known.goes_on(producer));
    let is_over = known.is_some_and(|known| known.epoch > producer.epoch);
    goes_on || is_over || guard.is_some_and(|guard| guard.admits(producer))
}

/// Of so many producers at a time it is kept with which number their first batch came that is not in the log yet. Those of the
/// lowest ids, which were given out first, are let go.
const FIRST_NUMBERS_MAX: usize = 1_000;

/// So many producers are looked over at least before those are let go that nobody has a guard of.
const SWEEP_MIN: usize = 64;

/// No marker of the producer has been written here since it was drawn.
#[derive(Debug)]
pub struct Guard {
    producer: Producer,
    broken: AtomicBool,
}

impl Guard {
    /// Whether it stands for a batch of that producer.
    pub fn admits(&self, producer: Producer) -> bool {
        self.producer == producer && !self.broken.load(Ordering::SeqCst)
    }
}

/// The guards of one partition, by producer id.
#[derive(Debug, Default)]
pub struct Guards {
    drawn: Mutex<Drawn>,
}

#[derive(Debug, Default)]
struct Drawn {
    guards: HashMap<i64, Weak<Guard>>,
    /// The epoch and the lowest sequence number of each producer's batches that have waited for their coordinator's word.
    first_numbers: BTreeMap<i64, (i16, i32)>,
    /// At so many, those are let go that nobody holds.
    sweep_at: usize,
}

impl Guards {
    /// Draws a guard, or gives the one that is drawn already.
    pub fn draw(&self, producer: Producer) -> Arc<Guard> {
        let mut drawn = self.lock();
        let known = drawn.guards.get(&producer.id).and_then(Weak::upgrade);
        if let Some(guard) = known.as_ref().filter(|guard| guard.admits(producer)) {
            return Arc::clone(guard);
        }
        if drawn.guards.len() >= drawn.sweep_at {
            drawn.guards.retain(|_, guard| guard.strong_count() > 0);
            drawn.sweep_at = (2 * drawn.guards.len()).max(SWEEP_MIN);
        }
        if let Some(before) = known {
            if before.producer.epoch > producer.epoch {
                // A producer that has been replaced: what the one after it waits for stays.
                return Arc::new(Guard { producer, broken: AtomicBool::new(true) });
            }
            before.broken.store(true, Ordering::SeqCst);
        }
        let guard = Arc::new(Guard { producer, broken: AtomicBool::new(false) });
        drawn.guards.insert(producer.id, Arc::downgrade(&guard));
        guard
    }

    /// A batch with that number waits for the word of its transaction's coordinator.
    pub fn note(&self, producer: Producer, sequence: i32) {
        let mut drawn = self.lock();
        let first = drawn.first_numbers.entry(producer.id).or_insert((producer.epoch, sequence));
        if first.0 < producer.epoch {
            *first = (producer.epoch, sequence);
        } else if first.0 == producer.epoch {
            first.1 = first.1.min(sequence);
        }
        if drawn.first_numbers.len() > FIRST_NUMBERS_MAX {
            drawn.first_numbers.pop_first();
        }
    }

    /// The lowest number of the batches of that producer that have waited; `None` where none has.
    pub fn first_number(&self, producer: Producer) -> Option<i32> {
        let drawn = self.lock();
        drawn.first_numbers.get(&producer.id).filter(|first| first.0 == producer.epoch).map(|first| first.1)
    }

    /// A batch of that producer is in the log, which counts its numbers from here on.
    pub fn forget_first_number(&self, producer: Producer) {
        self.lock().first_numbers.remove(&producer.id);
    }

    /// A marker of that producer is about to be written. In its epoch or the one before was the transaction that it ends; a
    /// later one may have begun since if the marker was long on its way.
    pub fn break_of(&self, producer: Producer) {
        let mut drawn = self.lock();
        let Some(guard) = drawn.guards.get(&producer.id).and_then(Weak::upgrade) else { return };
        if guard.producer.epoch <= producer.epoch {
            guard.broken.store(true, Ordering::SeqCst);
            drawn.guards.remove(&producer.id);
        }
    }

    /// Another leader may write markers from now on.
    pub fn break_all(&self) {
        let mut drawn = self.lock();
        // What came here may come to the next leader.
        drawn.first_numbers.clear();
        for guard in std::mem::take(&mut drawn.guards).into_values() {
            if let Some(guard) = guard.upgrade() {
                guard.broken.store(true, Ordering::SeqCst);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Drawn> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn producer(id: i64, epoch: i16) -> Producer {
        Producer { id, epoch }
    }

    #[test]
    fn a_marker_breaks_what_was_drawn_before_it_and_nothing_else() {
        let guards = Guards::default();
        let (before, other) = (guards.draw(producer(1, 0)), guards.draw(producer(2, 0)));
        assert!(Arc::ptr_eq(&before, &guards.draw(producer(1, 0))), "all batches of a transaction share one");
        assert!(before.admits(producer(1, 0)) && !before.admits(producer(1, 1)) && !before.admits(producer(2, 0)));
        guards.break_of(producer(1, 0));
        assert!(!before.admits(producer(1, 0)) && other.admits(producer(2, 0)));
        let after = guards.draw(producer(1, 0));
        assert!(after.admits(producer(1, 0)));
        let next = guards.draw(producer(1, 1));
        assert!(next.admits(producer(1, 1)) && !after.admits(producer(1, 0)));
        guards.break_all();
        assert!(!next.admits(producer(1, 1)) && !other.admits(producer(2, 0)));
    }

    #[test]
    fn a_batch_goes_on_with_a_transaction_or_needs_a_whole_guard() {
        let guards = Guards::default();
        let guard = guards.draw(producer(1, 3));
        let known = |epoch, in_transaction| Some(KnownProducer { epoch, in_transaction });
        let table = [
            (None, false),
            (known(3, true), true),
            (known(3, false), false),
            (known(2, true), false),
            (known(2, false), false),
            (known(4, false), true),
        ];
        for (known, without_guard) in table {
            assert_eq!(may_be_appended(producer(1, 3), known, None), without_guard, "{known:?}");
            assert!(may_be_appended(producer(1, 3), known, Some(&guard)), "{known:?}");
        }
        guards.break_of(producer(1, 3));
        assert!(!may_be_appended(producer(1, 3), None, Some(&guard)));
    }

    #[test]
    fn what_is_left_of_an_older_epoch_does_not_break_the_guard_of_a_newer_one() {
        let guards = Guards::default();
        let new = guards.draw(producer(1, 6));
        let old = guards.draw(producer(1, 5));
        assert!(!old.admits(producer(1, 5)) && new.admits(producer(1, 6)));
        guards.break_of(producer(1, 5));
        assert!(new.admits(producer(1, 6)));
        assert!(Arc::ptr_eq(&new, &guards.draw(producer(1, 6))));
        // Transaction version 2 ends a transaction in the epoch above its own.
        guards.break_of(producer(1, 7));
        assert!(!new.admits(producer(1, 6)));
    }

    #[test]
    fn the_lowest_number_of_the_latest_epoch_is_kept_of_so_many_producers() {
        let guards = Guards::default();
        assert_eq!(guards.first_number(producer(1, 3)), None);
        for (epoch, sequence, first) in [(3, 7, 7), (3, 5, 5), (3, 9, 5), (4, 8, 8), (3, 0, 8), (4, 9, 8)] {
            guards.note(producer(1, epoch), sequence);
            assert_eq!(guards.first_number(producer(1, epoch.max(if first == 8 { 4 } else { 3 }))), Some(first));
        }
        assert_eq!((guards.first_number(producer(1, 3)), guards.first_number(producer(2, 4))), (None, None));
        guards.forget_first_number(producer(1, 4));
        assert_eq!(guards.first_number(producer(1, 4)), None);
        for id in 0..10_000 {
            guards.note(producer(id, 0), 0);
            assert!(guards.lock().first_numbers.len() <= FIRST_NUMBERS_MAX);
        }
        assert_eq!(guards.first_number(producer(9_999, 0)), Some(0));
        guards.break_all();
        assert_eq!(guards.first_number(producer(9_999, 0)), None);
    }

    #[test]
    fn guards_that_nobody_holds_take_no_memory_for_long() {
        let guards = Guards::default();
        let held = guards.draw(producer(-1, 0));
        for id in 0..10_000 {
            drop(guards.draw(producer(id, 0)));
            assert!(guards.lock().guards.len() <= SWEEP_MIN + 1);
        }
        assert!(Arc::ptr_eq(&held, &guards.draw(producer(-1, 0))));
    }
}
