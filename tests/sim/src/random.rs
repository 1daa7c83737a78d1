//! The only source of chance in a run: streams forked from the seed by purpose.
//!
//! Each purpose has a stream of its own, so that what is left out of one (a fault, while a schedule is minimised) moves
//! nothing in the others. The links of the network have theirs beside these.

pub(crate) use highwater_storage::sim::Random;

/// What a stream is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// The row of the table, sizes, latencies.
    Plan,
    /// The schedule of faults.
    Faults,
    /// What a broker does in its own time: restarts, flushes, housekeeping, re-reading the store.
    Broker(usize),
    /// The order of directory listings and the like.
    Disk(usize),
    Producers,
    Consumer,
    Controller,
    /// When what brokers sent before they died comes once more.
    FormerLives,
}

impl Purpose {
    /// Its stream in the run of a seed.
    pub(crate) fn of(self, seed: u64) -> Random {
        Random::stream(seed, self.number())
    }

    fn number(self) -> u64 {
        let small = |number: usize| number as u64;
        match self {
            Self::Plan => 1,
            Self::Faults => 2,
            Self::Producers => 3,
            Self::Consumer => 4,
            Self::Controller => 5,
            Self::FormerLives => 6,
            Self::Broker(broker) => 0x100 + small(broker),
            Self::Disk(broker) => 0x200 + small(broker),
        }
    }
}
