//! Makes the schedule of a failing run as short as it gets.

use crate::fault::Fault;
use crate::plan::Mutant;
use crate::runs::run;

/// A failing run with few faults.
#[derive(Clone, Debug)]
pub struct Minimised {
    /// The faults that are left: without any one of them the run does not fail like this.
    pub faults: Vec<Fault>,
    /// What is wrong then.
    pub failure: String,
    /// How many runs it took to find out.
    pub runs: u64,
}

/// Leaves faults out of a failing seed's schedule, half of them first and at last one by one, as long as it fails in the
/// same way.
///
/// # Panics
/// If the seed does not fail.
pub fn minimise(seed: u64, mutant: Option<Mutant>) -> Minimised {
    minimise_run(seed, |faults| {
        let outcome = run(seed, mutant, faults);
        (outcome.faults, outcome.failure)
    })
}

/// The same of runs of any kind: `run` says which faults were to strike and what was wrong.
pub(crate) fn minimise_run(seed: u64, run: impl Fn(Option<Vec<Fault>>) -> (Vec<Fault>, Option<String>)) -> Minimised {
    let (all, failure) = run(None);
    let failure = failure.unwrap_or_else(|| panic!("seed {seed} does not fail"));
    let (kind, mut runs, mut last) = (kind(&failure), 0, failure);
    let faults = shrink(all, |faults| {
        runs += 1;
        let failure = run(Some(faults.to_vec())).1.filter(|failure| self::kind(failure) == kind);
        failure.is_some_and(|failure| {
            last = failure;
            true
        })
    });
    Minimised { faults, failure: last, runs }
}

/// A failure without what differs between two of the same kind.
fn kind(failure: &str) -> String {
    let first = failure.split([':', '\n']).find(|part| !part.starts_with("assertion")).unwrap_or_default();
    first.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Delta debugging: a part of `all` that still `fails`, and does not without any one of its elements.
fn shrink<T: Clone>(all: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut left = all;
    let mut pieces = 2;
    while !left.is_empty() {
        let size = left.len().div_ceil(pieces);
        let without = (0..left.len()).step_by(size).map(|from| {
            let to = (from + size).min(left.len());
            [&left[..from], &left[to..]].concat()
        });
        match without.into_iter().find(|fewer| fails(fewer)) {
            Some(fewer) => {
                left = fewer;
                pieces = pieces.saturating_sub(1).max(2);
            }
            None if size == 1 => break,
            None => pieces = (pieces * 2).min(left.len()),
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_what_it_takes() {
        // Nothing is needed: 40 are halved six times.
        let tables: [(&[u32], usize); 4] = [(&[7], 40), (&[0, 39], 120), (&[3, 4, 20, 31], 300), (&[], 6)];
        for (needed, most_calls) in tables {
            let mut calls = 0;
            let left = shrink((0..40).collect(), |some| {
                calls += 1;
                needed.iter().all(|one| some.contains(one))
            });
            assert_eq!(left, needed);
            assert!(calls <= most_calls, "{calls} calls for {needed:?}");
        }
    }

    #[test]
    fn failures_of_one_kind_differ_in_numbers_only() {
        let one = "assertion `left == right` failed: member 2 lacks offset 11, which is committed\n  left: None";
        let other = "assertion `left == right` failed: member 3 lacks offset 104, which is committed\n  left: Some";
        assert_eq!(kind(one), kind(other));
        assert_ne!(kind(one), kind("member 2 lacks offset 11, which was acknowledged"));
        assert!(!kind(one).is_empty());
    }
}
