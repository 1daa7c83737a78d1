//! The scripts with transactions, written and drawn.

use super::Op::{self, *};
use super::{PLAIN, crash_everywhere, run};
use crate::check::from_environment;
use crate::support::{Random, disk};

/// Scripts drawn. `HIGHWATER_CRASH_SCRIPTS` says otherwise.
const SCRIPTS: usize = 4;

#[test]
fn transactions_over_rolls() {
    crash_everywhere(
        21,
        &[
            Data(1),
            Data(2),
            Data(PLAIN),
            Flush,
            Commit(1),
            Data(1),
            Data(2),
            Abort(2),
            Data(3),
            Checkpoint,
            Data(1),
            Abort(1),
            Data(2),
            Reopen,
            Data(3),
            Fence(3),
            Data(3),
            Flush,
            Data(PLAIN),
            Restart,
            Abort(2),
            Data(2),
        ],
    );
}

#[test]
fn truncations_into_transactions() {
    crash_everywhere(
        22,
        &[
            Data(1),
            Data(2),
            Data(1),
            // The marker of an aborted one goes, and a part of it.
            Abort(1),
            Flush,
            Data(2),
            Truncate(6),
            Data(3),
            Commit(1),
            Abort(2),
            Checkpoint,
            Data(1),
            Data(3),
            // An open one is cut in two, and another goes as a whole.
            Truncate(9),
            Fence(3),
            Data(2),
            Data(PLAIN),
            Reopen,
            Truncate(4),
            Abort(2),
            Data(1),
        ],
    );
}

#[test]
fn segments_go_while_transactions_are_open() {
    crash_everywhere(
        23,
        &[
            Data(1),
            Data(2),
            Abort(2),
            Data(2),
            Data(PLAIN),
            Data(3),
            Checkpoint,
            Commit(3),
            Retire(9),
            Data(3),
            Abort(1),
            Flush,
            Restart,
            Data(2),
            Retire(13),
            Abort(2),
        ],
    );
}

#[test]
fn compactions_of_aborted_transactions() {
    crash_everywhere(
        24,
        &[
            Data(1),
            Data(2),
            Data(PLAIN),
            Abort(1),
            Data(3),
            Commit(2),
            Data(1),
            Flush,
            Compact,
            Data(PLAIN),
            Abort(3),
            Abort(1),
            Data(2),
            Checkpoint,
            Compact,
            Restart,
            Data(PLAIN),
            Fence(2),
            Data(PLAIN),
            Flush,
            Compact,
        ],
    );
}

/// Draws each step by what the steps before it have left.
fn script(seed: u64) -> Vec<Op> {
    let mut random = Random::new(seed);
    let mut script = vec![Data(1), Data(2)];
    let steps = 12 + random.below(10);
    while script.len() < steps {
        let known = run(&disk(seed), &script).after;
        let producers = known.state().reading.producers;
        let open: Vec<i64> = producers.iter().filter_map(|(id, known)| known.4.map(|_| *id)).collect();
        let within = |random: &mut Random, low: i64| {
            low + i64::try_from(random.below(usize::try_from(known.end - low + 1).unwrap())).unwrap()
        };
        script.push(match random.below(20) {
            0..=7 => Data([1, 2, 3, PLAIN][random.below(4)]),
            8..=12 if !open.is_empty() => {
                let producer = open[random.below(open.len())];
                [Commit(producer), Abort(producer), Abort(producer), Fence(producer)][random.below(4)]
            }
            13 => Flush,
            14 => Checkpoint,
            // Not to the start: what is left of an empty log is another story.
            15 | 16 => match known.compacted.max(known.start) + 2 {
                low if low <= known.end => Truncate(within(&mut random, low)),
                _ => Data(PLAIN),
            },
            17 => Compact,
            18 => Reopen,
            _ => Restart,
        });
    }
    script
}

#[test]
fn transactions_drawn_at_random() {
    let scripts = from_environment("HIGHWATER_CRASH_SCRIPTS").unwrap_or(SCRIPTS);
    for seed in 2000..2000 + u64::try_from(scripts).unwrap() {
        crash_everywhere(seed, &script(seed));
    }
}
