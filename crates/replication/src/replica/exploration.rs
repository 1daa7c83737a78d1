//! Every state that a small cluster can reach: three replicas with the real machines on logs of a few records, and a budget
//! of records, changes of the leader, crashes and the like.
//!
//! The states are visited breadth first, so a violation comes with a shortest sequence of steps to it. What a step is: a
//! fetch arrives (and its answer comes back, or not), a proposal arrives at the store, a broker looks at the store, the
//! controller acts, something fails. Nothing is drawn: all that may happen next is tried. Time has two values, within the
//! lag time and out of it, and each passing of the lag time is a step of its own. States that differ only in which broker
//! is which are one (`canonical.rs`): the controller is tried with every order of the assignment.
//!
//! Steps that commute are one. An answer changes only the follower, which drops it after any change of its own: that it
//! comes late is the same as that its fetch arrives twice. What the store made of a proposal the leader sees by looking
//! at the store, so the look is the late answer. What is due is done at once. Requests that were given up stay on their way,
//! one for each broker.
//!
//! Checked in every state:
//!
//! * what is below the high watermark of any replica is the same on all, and is what it was ever before (I2, I4);
//! * each member of the store's ISR that is whole holds all of it (I3), as far as it was not deleted;
//! * an epoch and an offset name one record in all logs, and one history before it (the other half of I2);
//! * one broker at most leads in an epoch, and it is the store's;
//! * no replica is asked to cut below its own high watermark, and no log begins above what a leader has deleted;
//! * no client is told a high watermark below one that it may have been told before, by this leader or an earlier one;
//! * no replica closes itself.
//!
//! Not here: synced policies, power cuts of several brokers, a store that does not answer, fetches that wait, producers.
//! The seeded cluster (`tests/sim`) has those.

mod canonical;
mod cluster;
mod log;
mod node;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::path::Path;
use std::time::Instant;

use cluster::{Budget, Cluster, Step};

/// What an exploration found.
struct Explored {
    states: usize,
    steps: usize,
    depth: usize,
    /// What is wrong, and the steps that lead there.
    violation: Option<(String, Vec<Step>)>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, {} steps between them, {} from the first", self.states, self.steps, self.depth)
    }
}

/// Visits every state within the budget, or those up to the first violation.
fn explore(budget: Budget) -> Explored {
    let first = Cluster::new(budget);
    let mut known = HashMap::from([(canonical::name(&first), 0usize)]);
    // From which state, by which step.
    let mut origins: Vec<(usize, Step)> = vec![(0, Step::LagTimePasses)];
    let (mut frontier, mut steps, mut depth) = (vec![(0, first)], 0, 0);
    loop {
        let mut next = Vec::new();
        for (here, cluster) in frontier {
            for step in cluster.steps() {
                let mut after = cluster.clone();
                let outcome = after.take(step);
                steps += 1;
                if let Err(what) = outcome {
                    let (mut path, mut at) = (vec![step], here);
                    while at != 0 {
                        let (before, step) = origins[at];
                        path.push(step);
                        at = before;
                    }
                    path.reverse();
                    return Explored { states: known.len(), steps, depth, violation: Some((what, path)) };
                }
                if let Entry::Vacant(entry) = known.entry(canonical::name(&after)) {
                    entry.insert(origins.len());
                    next.push((origins.len(), after));
                    origins.push((here, step));
                }
            }
        }
        if next.is_empty() {
            return Explored { states: known.len(), steps, depth, violation: None };
        }
        depth += 1;
        frontier = next;
    }
}

/// Explores, and tells; a violation with the states on the way to it.
fn explored(budget: Budget) -> usize {
    let begun = Instant::now();
    let explored = explore(budget);
    println!("{budget:?}: {explored}, in {} ms", begun.elapsed().as_millis());
    if let Some((what, path)) = explored.violation {
        let mut cluster = Cluster::new(budget);
        for step in path {
            let outcome = cluster.take(step);
            println!("  {step:?} => {cluster} {outcome:?}");
        }
        panic!("{what}, {budget:?}");
    }
    explored.states
}

const fn budget(records: u8, changes: u8, crashes: u8) -> Budget {
    Budget { records, changes, crashes, cuts: 0, sessions: 0, deletions: 0, lags: 0 }
}

/// The counts are held: a change of the machines that reaches fewer states explores less than it seems to, one that reaches
/// more has a new behaviour to be understood. Then write the new count down, here and in `docs/proof.md`.
const SMALL: [(Budget, usize); 7] = [
    (budget(2, 0, 0), 52),
    (budget(2, 2, 0), 33_669),
    (budget(1, 1, 1), 37_966),
    (Budget { cuts: 1, ..budget(1, 1, 0) }, 49_902),
    (Budget { sessions: 1, ..budget(1, 1, 0) }, 42_260),
    (Budget { deletions: 1, ..budget(2, 1, 0) }, 5_744),
    (Budget { lags: 1, ..budget(1, 1, 0) }, 24_807),
];

/// These take minutes.
const LARGER: [(Budget, usize); 6] = [
    (budget(3, 2, 0), 158_710),
    (budget(2, 1, 1), 223_159),
    (budget(3, 1, 1), 992_240),
    (budget(2, 2, 1), 2_303_590),
    (Budget { deletions: 1, ..budget(2, 1, 1) }, 580_797),
    (Budget { deletions: 1, lags: 1, ..budget(2, 1, 0) }, 523_815),
];

#[test]
fn every_state_within_small_budgets() {
    for (budget, states) in SMALL {
        assert_eq!(explored(budget), states, "{budget:?}");
    }
}

/// ```text
/// cargo test -p highwater-replication --lib every_state_within_larger -- --ignored --nocapture
/// ```
#[test]
#[ignore = "takes minutes"]
fn every_state_within_larger_budgets() {
    for (budget, states) in LARGER {
        assert_eq!(explored(budget), states, "{budget:?}");
    }
}

#[test]
fn the_counts_are_written_down() {
    let proof = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/proof.md");
    let proof = std::fs::read_to_string(proof).unwrap();
    for (budget, states) in SMALL.into_iter().chain(LARGER) {
        let row = format!("| {budget} | {states} |");
        assert!(proof.contains(&row), "{row}");
    }
}

/// As far as one likes; a budget of three records, two changes and one crash is there if none is given.
///
/// ```text
/// HIGHWATER_EXPLORATION=records,changes,crashes,cuts,sessions,deletions,lags \
///     cargo test --release -p highwater-replication --lib a_budget_of_choice -- --ignored --nocapture
/// ```
#[test]
#[ignore = "takes as long as the budget is large"]
fn a_budget_of_choice() {
    let given = std::env::var("HIGHWATER_EXPLORATION").unwrap_or_else(|_| "3,2,1,0,0,0,0".to_owned());
    let numbers: Vec<u8> = given.split(',').map(|number| number.parse().expect("seven numbers")).collect();
    let [records, changes, crashes, cuts, sessions, deletions, lags] = numbers[..] else {
        panic!("{given}: not seven numbers")
    };
    explored(Budget { records, changes, crashes, cuts, sessions, deletions, lags });
}
