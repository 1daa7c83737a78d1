//! The figures that matter, as ratios: the log beside its baseline, turn by turn in one run, so that a slow moment of
//! the machine hits both.
//!
//! `cargo bench --package highwater-benches --bench ratio`; with `-- --test` one short turn each.

use std::time::Duration;

use highwater_benches::{LogAppend, LogOpen, LogScan, RawAppend, RawOpen, RawScan, SHAPES, Subject, measure, readers};

/// Turns of each side; odd, so that the median is one of them.
const TURNS: usize = 21;

/// About how long one turn takes.
const TURN: Duration = Duration::from_millis(100);

fn main() {
    // As criterion's: cargo says `--bench` where it is a bench that is wanted.
    let said = |word: &str| std::env::args().any(|argument| argument == word);
    let test = said("--test") || !said("--bench");
    println!(
        "{:<16} {:>14} {:>14} {:>7}  (median of {TURNS} turns; quartiles of the ratio)",
        "", "baseline", "log", "ratio"
    );
    for shape in SHAPES {
        compare(&format!("append {}", shape.name), &mut RawAppend::new(shape), &mut LogAppend::new(shape), test);
    }
    let (mut raw, mut log) = readers();
    compare("read 1MiB", &mut raw, &mut log, test);
    compare("open crashed", &mut RawScan::new(), &mut LogScan::new(), test);
    compare("open clean", &mut RawOpen::new(), &mut LogOpen::new(), test);
    if test {
        println!("check ok: the ratios can be taken");
    }
}

fn compare(name: &str, raw: &mut dyn Subject, log: &mut dyn Subject, test: bool) {
    let rounds = |subject: &mut dyn Subject| {
        // The first round may do what none of the others has to.
        measure(subject, 1);
        let (took, _) = measure(subject, 3);
        let rounds = TURN.as_nanos() * 3 / took.as_nanos().max(1);
        u64::try_from(rounds).unwrap_or(u64::MAX).max(1)
    };
    let turns = if test { 1 } else { TURNS };
    let (raw_rounds, log_rounds) = if test { (1, 1) } else { (rounds(raw), rounds(log)) };
    let (mut raws, mut logs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..turns {
        let one = per_round(raw, raw_rounds);
        let other = per_round(log, log_rounds);
        ratios.push(one.0 / other.0);
        raws.push(one);
        logs.push(other);
    }
    ratios.sort_by(f64::total_cmp);
    let (raw, log) = (median(raws), median(logs));
    println!(
        "{name:<16} {:>14} {:>14} {:>7.3}  ({:.3} to {:.3})",
        figure(raw),
        figure(log),
        ratios[turns / 2],
        ratios[turns / 4],
        ratios[turns * 3 / 4],
    );
}

/// Seconds and bytes of one round.
fn per_round(subject: &mut dyn Subject, rounds: u64) -> (f64, f64) {
    let (took, bytes) = measure(subject, rounds);
    (took.as_secs_f64() / rounds as f64, bytes as f64 / rounds as f64)
}

fn median(mut rounds: Vec<(f64, f64)>) -> (f64, f64) {
    rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
    rounds[rounds.len() / 2]
}

fn figure((seconds, bytes): (f64, f64)) -> String {
    format!("{:.0} MB/s {:.1} us", bytes / seconds / 1e6, seconds * 1e6)
}
