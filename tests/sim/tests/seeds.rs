//! Many seeds, the ones that have failed, and whether planted mistakes are found.
//!
//! A seed that fails is printed with the command that runs it again:
//!
//! ```text
//! HIGHWATER_SEED=17 cargo test -p highwater-sim a_seed_repeats_exactly -- --nocapture
//! HIGHWATER_SEEDS=1000000 cargo test -p highwater-sim --test seeds    # more of the same
//! ```

use highwater_sim::{Mutant, minimise, run, run_many, tell};

const SEEDS: u64 = 4_000;

/// Within so many each mutant is found.
const MUTANT_SEEDS: u64 = 20_000;

/// Seeds that have failed, to be run for ever. A change of the simulator or of a machine's timing makes another run of them;
/// what they found has a test of its own.
///
/// - 5095, 6464, 1122277, 167431551: mistakes of the checks.
/// - 6411: a follower whose log ended right where its leader's began kept what its records said of their producers
///   (`crates/replication/tests/scripted/log_start.rs`).
/// - 18384: a follower that was cut to its leader's log start kept what lost records said of their producer, and refused its
///   next batch when it was elected (`crates/replication/tests/scripted/log_start.rs`).
/// - 45247: a follower with records below its leader's start that never were committed was counted as in sync
///   (`crates/replication/tests/scripted/log_start.rs`).
/// - 51843: a broker marked itself doubtful while its former session lived, was taken out, and in again for what it had
///   fetched before its power cut (`return_doubtful` says when to write).
/// - 103136: of those that all lost power one was elected whose log ended below what another had deleted by age (`most` in
///   the controller).
/// - 1007718: a follower whose disk was full forgot where an epoch begins when the one after it could not be written, and its
///   next start put the epoch of batches "right" (`crates/storage/tests/disk_faults.rs`).
/// - 1016393: the same as 103136, where that one still knew of an epoch of long ago (`crates/replication/src/replica/tests`).
/// - 2110142, 545830302: after a failed sync a log was cut at its flush mark, for want of room to write the rest anew
///   (`crates/storage/tests/rot.rs`).
/// - 27: a change of the ISR took in a replica that was removed since it was proposed (`Completion` in the controller).
/// - 3033929: a log was cut below the high watermark that was recorded for it, and had grown past it with records that nobody
///   had committed when its broker was killed (`crates/broker/src/hosted/tests.rs`).
const ONCE_FAILED: [u64; 13] =
    [27, 5_095, 6_411, 6_464, 8_504, 10_612, 18_384, 45_247, 51_843, 103_136, 1_007_718, 3_033_929, 167_431_551];

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[test]
fn thousands_of_seeds() {
    let seeds = from_environment("HIGHWATER_SEEDS").unwrap_or(SEEDS);
    let first = from_environment("HIGHWATER_FIRST_SEED").unwrap_or(0);
    let many = run_many(first, seeds, None, None, |_| {});
    if let Some((seed, what)) = many.failure {
        panic!("seed {seed} failed: {what}\nagain: cargo xtask sim --seed {seed}");
    }
    println!("{}", many.distribution.table());
    // A driver that does nothing finds nothing.
    for (what, count) in many.counts.named() {
        assert!(count * 1_000 >= seeds, "{what}: only {count} in {seeds} seeds");
    }
}

#[test]
fn seeds_that_have_failed() {
    for seed in ONCE_FAILED {
        assert_eq!(run(seed, None, None).failure, None, "seed {seed}");
    }
}

/// Without this no failure could be looked at.
#[test]
fn a_seed_repeats_exactly() {
    for seed in 0..40 {
        let (first, story) = tell(seed, None, None);
        let (second, same_story) = tell(seed, None, None);
        assert!(first.counts.events >= 1_000, "seed {seed} does nothing");
        assert_eq!(first, second, "seed {seed} does not repeat");
        assert!(story == same_story, "seed {seed} tells another story");
        // Nor does looking at it change it, or giving it the faults that it draws.
        assert_eq!(first, run(seed, None, None));
        assert_eq!(first, run(seed, None, Some(first.faults.clone())));
    }
}

/// Mistakes in the driver's dealings with the machine, each the outside of a mistake the machine could make: the checks
/// must find every one.
#[test]
fn mutants_are_found() {
    for mutant in Mutant::ALL {
        // By what it does to records, and not because the driver came to a halt over it.
        let checks =
            ["acknowledged", "committed", "two records", "two histories", "the logs differ", "clients saw", "not once"];
        let by_records = |what: &str| checks.iter().any(|check| what.contains(check));
        let mut first = 0;
        let (seed, what) = loop {
            let many = run_many(first, MUTANT_SEEDS - first, None, Some(mutant), |_| {});
            let (seed, what) = many.failure.unwrap_or_else(|| panic!("{mutant:?} was not found"));
            if by_records(&what) {
                break (seed, what);
            }
            first = seed + 1;
        };
        println!("{mutant:?}: seed {seed}: {what}");
    }
}

/// Of a schedule that fails what is left fails as well, and without any one of its faults it does not.
#[test]
fn a_failing_schedule_is_made_small() {
    let mutant = Some(Mutant::CutsAtHighWatermark);
    let fails = |what: &str| what.contains("committed");
    let seed = (0..).find(|seed| run(*seed, mutant, None).failure.is_some_and(|what| fails(&what))).expect("one fails");
    let drawn = run(seed, mutant, None).faults.len();
    let least = minimise(seed, mutant);
    println!("seed {seed}: {} of {drawn} faults after {} runs: {}", least.faults.len(), least.runs, least.failure);
    let again = run(seed, mutant, Some(least.faults.clone()));
    assert_eq!(again.failure, Some(least.failure));
    assert!(least.faults.len() < drawn / 2, "{} of {drawn} are left", least.faults.len());
    for left_out in 0..least.faults.len() {
        let mut fewer = least.faults.clone();
        fewer.remove(left_out);
        let without = run(seed, mutant, Some(fewer));
        assert!(!without.failure.is_some_and(|what| fails(&what)), "fault {left_out} is not needed");
    }
}
