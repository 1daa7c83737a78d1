//! Many seeds, the ones that have failed, and whether planted mistakes are found.
//!
//! A seed that fails is printed with the command that runs it again:
//!
//! ```text
//! HIGHWATER_SEED=17 cargo test -p highwater-sim a_seed_repeats_exactly -- --nocapture
//! HIGHWATER_SEEDS=1000000 cargo test -p highwater-sim --test seeds    # more of the same
//! ```

use highwater_sim::{Mutant, run_many, trace};

const SEEDS: u64 = 10_000;

/// Within so many each mutant is found.
const MUTANT_SEEDS: u64 = 20_000;

/// Seeds that have failed, to be run for ever. A change of the driver or of a machine's timing makes another run of them;
/// what they found has a test of its own.
///
/// - 18384: a follower that was cut to its leader's log start kept what lost records said of their producer, and refused its
///   next batch when it was elected (`crates/replication/tests/scripted/log_start.rs`).
/// - 45247: a follower with records below its leader's start that never were committed was counted as in sync
///   (`crates/replication/tests/scripted/log_start.rs`).
/// - 51843: a broker marked itself doubtful while its former session lived, was taken out, and in again for what it had
///   fetched before its power cut (`return_doubtful` says when to write).
const ONCE_FAILED: [u64; 5] = [8_504, 10_612, 18_384, 45_247, 51_843];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[test]
fn ten_thousand_seeds() {
    let seeds = from_environment("HIGHWATER_SEEDS").unwrap_or(SEEDS);
    let first = from_environment("HIGHWATER_FIRST_SEED").unwrap_or(0);
    let (counts, failure) = run_many(first, seeds, None);
    if let Some((seed, what)) = failure {
        panic!(
            "seed {seed} failed: {what}\nagain: HIGHWATER_SEED={seed} cargo test -p highwater-sim \
             a_seed_repeats_exactly -- --nocapture"
        );
    }
    println!("{seeds} seeds: {counts:?}");
    // A driver that does nothing finds nothing.
    for (what, count) in counts.named() {
        assert!(count * 1_000 >= seeds, "{what}: only {count} in {seeds} seeds");
    }
}

#[test]
fn seeds_that_have_failed() {
    for seed in ONCE_FAILED {
        let (_, failure) = run_many(seed, 1, None);
        assert_eq!(failure, None);
    }
}

/// Without this no failure could be looked at. With `HIGHWATER_SEED` it is the way to do so.
#[test]
fn a_seed_repeats_exactly() {
    let chosen = from_environment("HIGHWATER_SEED");
    for seed in chosen.map_or(0..40, |seed| seed..seed + 1) {
        let (first, second) = (trace(seed, None), trace(seed, None));
        if chosen.is_some() {
            println!("{}", first.0);
        }
        assert!(first.0.lines().count() > 50, "seed {seed} does nothing");
        assert_eq!(first, second, "seed {seed} does not repeat");
        assert_eq!(first.1, None, "seed {seed} failed");
    }
}

/// Mistakes in the driver's dealings with the machine, each the outside of a mistake the machine could make: the checks
/// must find every one.
#[test]
fn mutants_are_found() {
    for mutant in [
        Mutant::CutsAtHighWatermark,
        Mutant::MinimumOverTheLeader,
        Mutant::ReturnsAsIfClean,
        Mutant::ElectsTheFirst,
        Mutant::TrustsFormerLives,
        Mutant::DropsTheDead,
        Mutant::CountsUnflushed,
        Mutant::AcknowledgesAhead,
        Mutant::TrustsAnyEpoch,
        Mutant::VouchesForAll,
    ] {
        // By what it does to records, and not because the driver came to a halt over it.
        let checks = ["acknowledged", "committed", "two records", "two histories", "the logs differ"];
        let by_records = |what: &str| checks.iter().any(|check| what.contains(check));
        let mut first = 0;
        let (seed, what) = loop {
            let (_, failure) = run_many(first, MUTANT_SEEDS - first, Some(mutant));
            let (seed, what) = failure.unwrap_or_else(|| panic!("{mutant:?} was not found"));
            if by_records(&what) {
                break (seed, what);
            }
            first = seed + 1;
        };
        println!("{mutant:?}: seed {seed}: {what}");
    }
}
