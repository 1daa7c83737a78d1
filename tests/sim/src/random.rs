//! The only source of chance in a run: streams forked from the seed by purpose.
//!
//! Each purpose has a stream of its own, so that what is left out of one (a fault, while a schedule is minimised) moves
//! nothing in the others.

/// What a stream is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The row of the table, sizes, latencies.
    Plan,
    /// The schedule of faults.
    Faults,
    /// Messages from one place to another.
    Link {
        from: usize,
        to: usize,
    },
    /// What a broker does in its own time: restarts, flushes, housekeeping, re-reading the store.
    Broker(usize),
    /// The order of directory listings and the like.
    Disk(usize),
    Producers,
    Consumer,
    Controller,
}

impl Purpose {
    fn number(self) -> u64 {
        let small = |number: usize| number as u64;
        match self {
            Self::Plan => 1,
            Self::Faults => 2,
            Self::Producers => 3,
            Self::Consumer => 4,
            Self::Controller => 5,
            Self::Broker(broker) => 0x100 + small(broker),
            Self::Disk(broker) => 0x200 + small(broker),
            Self::Link { from, to } => 0x1_0000 + small(from) * 0x100 + small(to),
        }
    }
}

/// SplitMix64: small, quick, and the same on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn of(seed: u64, purpose: Purpose) -> Self {
        // Two steps apart from the plain seed: neighbouring seeds and purposes have nothing to do with each other.
        let mut mixed = Self(seed ^ 0x6a09_e667_f3bc_c908);
        let mut forked = Self(mixed.next() ^ purpose.number().wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(forked.next())
    }

    /// A stream whose start was drawn before.
    pub(crate) fn drawn(start: u64) -> Self {
        Self(start)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to `bound`, exclusive.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From `low` to `high`, inclusive.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + i64::try_from(self.below(high.abs_diff(low) + 1)).expect("a small range")
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("an index")
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

/// Spreads every bit of `value` over the result.
pub(crate) fn mix(value: u64) -> u64 {
    let mut mixed = value;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
