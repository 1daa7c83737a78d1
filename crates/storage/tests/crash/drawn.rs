//! Scripts drawn at random, by seed.

use crate::check::{crash_everywhere, from_environment};
use crate::script::{Op, run};
use crate::support::{Random, disk};

/// Scripts drawn. `HIGHWATER_CRASH_SCRIPTS` says otherwise.
const SCRIPTS: usize = 10;

/// Draws each step by what the steps before it have left.
fn script(seed: u64) -> Vec<Op> {
    let mut random = Random::new(seed);
    let mut script = vec![Op::Append(1 + random.below(4), 0)];
    let mut epoch = 0;
    let mut seconds = 0;
    let steps = 6 + random.below(7);
    while script.len() < steps {
        let known = run(&disk(seed), &script).after;
        let (start, end) = (known.start, known.end);
        let mut between =
            |low: i64, high: i64| low + i64::try_from(random.below(usize::try_from(high - low + 1).unwrap())).unwrap();
        let op = match between(0, 22) {
            choice @ 0..=5 => {
                epoch += i32::try_from(between(0, 1)).unwrap();
                let batches = usize::try_from(between(1, 5)).unwrap();
                if choice < 2 { Op::Replicate(batches, epoch, 0) } else { Op::Append(batches, epoch) }
            }
            6 | 7 => Op::Flush,
            8 => Op::Checkpoint,
            9 => Op::Begin(between(0, 1) == 1),
            10 | 11 => Op::Finish,
            // Where a compacted part ends after a cut is for the log to say.
            12..=14 if known.compacted == 0 => Op::Truncate(between((start - 1).max(0), end)),
            12..=14 => Op::Truncate(between(known.compacted.max(start), end)),
            15 => Op::AdvanceStart(between(start, end)),
            16 => {
                seconds += between(0, 3);
                Op::Housekeeping(seconds, between(start, end))
            }
            17 if between(0, 3) == 0 => Op::Reset(between(0, end + 20)),
            17 | 18 => Op::Reopen,
            19 => Op::Compact,
            20 => Op::Copy,
            21 => Op::Synced,
            _ => Op::Restart,
        };
        // A leader's epoch only ever goes up, and what comes after a cut is another leader's.
        epoch += i32::from(matches!(op, Op::Truncate(_) | Op::Reset(_)));
        script.push(op);
    }
    script
}

#[test]
fn scripts_drawn_at_random() {
    let scripts = from_environment("HIGHWATER_CRASH_SCRIPTS").unwrap_or(SCRIPTS);
    for seed in 1000..1000 + u64::try_from(scripts).unwrap() {
        crash_everywhere(seed, &script(seed));
    }
}
