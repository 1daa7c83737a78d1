//! One run of the coordinators' world.

use super::*;
use crate::minimise::{Minimised, minimise_run};
use crate::runs::{each_seed, failure_of};

use std::time::Instant;

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorOutcome {
    /// What happened, up to the failure if there was one.
    pub counts: CoordinatorCounts,
    /// Differs where anything that matters went another way.
    pub fingerprint: u64,
    /// The faults that were to strike.
    pub faults: Vec<Fault>,
    /// What was wrong.
    pub failure: Option<String>,
    /// In an enumerated run: at how many boundaries the coordinator could have ended until all was done.
    pub boundaries: u64,
}

fn run_world(mut world: World) -> (CoordinatorOutcome, String) {
    let failure = failure_of(|| world.run());
    let World { counts, fingerprint, faults, trace, boundaries, .. } = world;
    let story = trace.map(|trace| trace.chart()).unwrap_or_default();
    (CoordinatorOutcome { counts, fingerprint, faults, failure, boundaries }, story)
}

/// Runs one seed, with the faults that it draws or with these; with a strike at one boundary if one is given.
pub fn run_coordinators(
    seed: u64,
    scenario: Scenario,
    faults: Option<Vec<Fault>>,
    strike: Option<Strike>,
) -> CoordinatorOutcome {
    run_world(World::new(seed, scenario, faults, strike, false)).0
}

/// As [`run_coordinators`], with the story as a message-sequence chart.
pub fn tell_coordinators(
    seed: u64,
    scenario: Scenario,
    faults: Option<Vec<Fault>>,
    strike: Option<Strike>,
) -> (CoordinatorOutcome, String) {
    run_world(World::new(seed, scenario, faults, strike, true))
}

/// What became of many runs.
#[derive(Clone, Debug, Default)]
pub struct ManyCoordinators {
    /// Seeds that were run.
    pub seeds: u64,
    /// Sums over them.
    pub counts: CoordinatorCounts,
    /// The smallest seed that failed, and what was wrong.
    pub failure: Option<(u64, String)>,
}

impl ManyCoordinators {
    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.counts.add(&other.counts);
        if let Some(failure) = &other.failure
            && self.failure.as_ref().is_none_or(|(seed, _)| failure.0 < *seed)
        {
            self.failure = Some(failure.clone());
        }
    }
}

/// Runs `seeds` seeds from `first` on, on all cores, until all are done, one fails, or it is `until`. After each seed
/// `progress` hears how many events it took.
pub fn run_many_coordinators(
    first: u64,
    seeds: u64,
    until: Option<Instant>,
    progress: impl Fn(u64) + Sync,
) -> ManyCoordinators {
    let one = |many: &mut ManyCoordinators, seed| {
        let outcome = run_coordinators(seed, Scenario::Drawn, None, None);
        many.seeds += 1;
        progress(outcome.counts.events);
        many.counts.add(&outcome.counts);
        many.failure = outcome.failure.map(|what| (seed, what));
        many.failure.is_none()
    };
    each_seed(first, seeds, until, one, ManyCoordinators::add)
}

/// Leaves faults out of a failing seed's schedule, as long as it fails in the same way.
///
/// # Panics
/// If the seed does not fail.
pub fn minimise_coordinators(seed: u64) -> Minimised {
    minimise_run(seed, |faults| {
        let outcome = run_coordinators(seed, Scenario::Drawn, faults, None);
        (outcome.faults, outcome.failure)
    })
}
