//! The example of the test kit finds nothing in a program that is right, and both mistakes that can be planted in it.

#[allow(dead_code, reason = "its main is for the command line")]
#[path = "../examples/simulate_your_program.rs"]
mod program;

use program::{Bug, run};

const SEEDS: u64 = 100;

#[test]
fn the_program_keeps_its_promises() {
    let mut accepted = 0;
    for seed in 0..SEEDS {
        let outcome = run(seed, None);
        assert_eq!(outcome.failure, None, "seed {seed}:\n{}", outcome.story.join("\n"));
        accepted += outcome.accepted;
    }
    assert!(accepted > 2_000, "{accepted} jobs are accepted in {SEEDS} runs");
}

#[test]
fn a_seed_repeats() {
    assert_eq!(run(7, None), run(7, None));
    assert_ne!(run(7, None).story, run(8, None).story);
}

#[test]
fn planted_mistakes_are_found() {
    for (bug, expected) in [(Bug::EarlyAnswer, "was accepted"), (Bug::TrustsTheClock, "long after all is well")] {
        let found = (0..SEEDS).find_map(|seed| run(seed, Some(bug)).failure);
        assert!(found.as_ref().is_some_and(|found| found.contains(expected)), "{bug:?}: {found:?}");
    }
}
