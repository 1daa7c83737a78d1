//! Durations, counted by size, to within one part in 32.

use std::time::Duration;

/// Steps between a power of two and the next.
const STEPS: u32 = 32;

/// Counts of durations in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub(super) fn new() -> Self {
        Self { counts: vec![0; (64 * STEPS) as usize], total: 0, max: 0 }
    }

    pub(super) fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[slot(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The duration that so large a share of all does not exceed.
    pub(super) fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.total as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return Duration::from_nanos(upper(slot).min(self.max));
            }
        }
        Duration::ZERO
    }

    pub(super) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }
}

fn slot(nanos: u64) -> usize {
    if nanos < u64::from(STEPS) {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - STEPS.ilog2();
    (shift * STEPS) as usize + (nanos >> shift) as usize
}

/// The largest number in a slot.
fn upper(slot: usize) -> u64 {
    let steps = u64::from(STEPS);
    let slot = slot as u64;
    if slot < 2 * steps {
        return slot;
    }
    let shift = slot / steps - 1;
    (((slot - shift * steps + 1) as u128) << shift).min(u128::from(u64::MAX)) as u64 - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_thirtieth() {
        let mut histogram = Histogram::new();
        for micros in 1..=10_000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, expected) in [(0.5, 5000.0), (0.99, 9900.0), (0.999, 9990.0), (1.0, 10_000.0)] {
            let found = histogram.quantile(share).as_secs_f64() * 1e6;
            assert!((found / expected - 1.0).abs() < 0.035, "{share}: {found} for {expected}");
        }
        let mut sum = Histogram::new();
        sum.add(&histogram);
        sum.add(&histogram);
        assert_eq!((sum.max(), sum.quantile(0.5)), (histogram.max(), histogram.quantile(0.5)));
        assert_eq!(Histogram::new().quantile(0.5), Duration::ZERO);
    }

    #[test]
    fn each_number_lies_in_its_slot() {
        for nanos in (0..5000).chain((0..63).flat_map(|bit| [1u64 << bit, (1 << bit) + 1])) {
            let slot = slot(nanos);
            assert!(nanos <= upper(slot) && (slot == 0 || nanos > upper(slot - 1)), "{nanos} in slot {slot}");
        }
    }
}
