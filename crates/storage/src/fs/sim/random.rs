//! Chance that repeats.

/// A small seeded generator (SplitMix64): equal seeds give equal runs on every machine. The feature `sim` adds ways to draw.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins with this.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self::mix(self.0)
    }

    /// Spreads every bit of a number over the result.
    pub fn mix(number: u64) -> u64 {
        let mut mixed = number;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0. The tiny bias does not matter here.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.draw() % bound }
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A generator that goes its own way from here.
    pub fn fork(&mut self) -> Self {
        Self(self.draw())
    }

    /// Puts these in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = usize::try_from(self.below(end as u64 + 1)).unwrap_or(end);
            items.swap(end, other);
        }
    }
}
