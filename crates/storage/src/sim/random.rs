//! Streams, and ways to draw.

use crate::fs::Random;

impl Random {
    /// The stream of a seed for one purpose. What one purpose draws moves nothing in the others: a fault that is left out
    /// while a failing run is made smaller changes nothing else.
    pub fn stream(seed: u64, purpose: u64) -> Self {
        // Two steps apart from the plain seed: neighbouring seeds and purposes have nothing to do with each other.
        let mut mixed = Self::new(seed ^ 0x6a09_e667_f3bc_c908);
        let mut forked = Self::new(mixed.draw() ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self::new(forked.draw())
    }

    /// From `low` to `high`, inclusive.
    ///
    /// # Panics
    /// If `high` is below `low` or as far from it as the type goes.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        assert!(low <= high, "{low} to {high} is no range");
        low + i64::try_from(self.below(high.abs_diff(low) + 1)).expect("a small range")
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A position in something of `count` elements; 0 if it has none.
    pub fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("below a usize")
    }

    /// One of these.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.get(self.index(from.len())).expect("something to pick from")
    }
}
