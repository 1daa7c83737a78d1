//! Choices that a seed repeats.

/// SplitMix64: small, and good enough to choose brokers and batch sizes.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts a sequence.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number from `least` to `most`.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1).max(1))
    }

    /// A number to begin a list with, of whatever length.
    pub(crate) fn index(&mut self) -> usize {
        usize::try_from(self.below(1 << 16)).unwrap_or(0)
    }

    /// Another sequence, which draws of this one do not change.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
