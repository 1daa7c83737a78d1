//! `cargo xtask sim`: runs seeds, tells the story of one, and makes the schedule of a failing one short.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use highwater_sim::{Fault, Many, Mutant, minimise, run, run_many, tell};
use indicatif::{ProgressBar, ProgressStyle};

/// Prints a line. Who stops reading, as `head` does, has seen enough: the exit code still says what became of the run.
macro_rules! say {
    ($($text:tt)+) => {
        drop(writeln!(std::io::stdout(), $($text)+))
    };
}

/// Runs the simulated cluster.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim", bin_name = "cargo xtask sim")]
struct Arguments {
    /// Run so many seeds.
    #[arg(long, value_name = "N", default_value_t = 10_000, conflicts_with = "seed")]
    seeds: u64,
    /// The first of them.
    #[arg(long, value_name = "SEED", default_value_t = 0, conflicts_with = "seed")]
    from: u64,
    /// Run for so long instead, or until `--seeds` are done if that is given as well.
    #[arg(long, value_name = "M", conflicts_with = "seed")]
    minutes: Option<f64>,
    /// Run this seed alone.
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// Tell the story of `--seed`, as a message-sequence chart.
    #[arg(long, requires = "seed")]
    explain: bool,
    /// Say of a seed that fails what was wrong and no more: its schedule is not made short.
    #[arg(long, conflicts_with = "explain")]
    brief: bool,
    /// With a mistake planted in the driver, by its name: `CutsAtHighWatermark`, …
    #[arg(long, value_name = "NAME", value_parser = mutant)]
    mutant: Option<Mutant>,
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = Mutant::ALL.map(|mutant| format!("{mutant:?}"));
    let at = known.iter().position(|known| known == name);
    at.map(|at| Mutant::ALL[at]).ok_or_else(|| format!("there are {}", known.join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let passed = match arguments.seed {
        Some(seed) if arguments.explain => explain(seed, arguments.mutant),
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn explain(seed: u64, mutant: Option<Mutant>) -> bool {
    let (outcome, story) = tell(seed, mutant, None);
    say!("seed {seed}\n\n{}\n{story}", list(&outcome.faults));
    for (name, count) in outcome.counts.named() {
        say!("{name:>32} {count}");
    }
    match &outcome.failure {
        Some(failure) => say!("\nFAILED: {failure}"),
        None => say!("\nall promises kept; fingerprint {:016x}", outcome.fingerprint),
    }
    outcome.failure.is_none()
}

fn one(seed: u64, arguments: &Arguments) -> bool {
    let outcome = run(seed, arguments.mutant, None);
    match &outcome.failure {
        Some(failure) => report(seed, arguments, failure),
        None => say!("seed {seed}: {} events, fingerprint {:016x}", outcome.counts.events, outcome.fingerprint),
    }
    outcome.failure.is_none()
}

fn many(arguments: &Arguments) -> bool {
    let started = Instant::now();
    let until = arguments.minutes.map(|minutes| started + Duration::from_secs_f64(minutes * 60.0));
    let seeds_given = std::env::args().any(|argument| argument.starts_with("--seeds"));
    let seeds = if until.is_some() && !seeds_given { u64::MAX - arguments.from } else { arguments.seeds };
    let bar = bar(seeds, until.map(|until| until - started));
    let events = AtomicU64::new(0);
    let many = run_many(arguments.from, seeds, until, arguments.mutant, |of_seed| {
        let events = events.fetch_add(of_seed, Ordering::Relaxed) + of_seed;
        match until {
            Some(_) => bar.set_position(started.elapsed().as_millis().try_into().unwrap_or(u64::MAX)),
            None => bar.inc(1),
        }
        let seconds = started.elapsed().as_secs_f64();
        bar.set_message(format!("{:.0} events/s", events as f64 / seconds));
    });
    bar.finish_and_clear();
    summary(&many, arguments.from, started.elapsed());
    if let Some((seed, failure)) = &many.failure {
        report(*seed, arguments, failure);
    }
    many.failure.is_none()
}

/// A bar over seeds or over time; nothing where nobody looks.
fn bar(seeds: u64, time: Option<Duration>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (length, template) = match time {
        Some(time) => (time.as_millis().try_into().unwrap_or(u64::MAX), "{wide_bar} {elapsed}  {msg}"),
        None => (seeds, "{wide_bar} {pos}/{len} seeds  {per_sec}  {msg}  {eta}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

fn summary(many: &Many, first: u64, took: Duration) {
    let seconds = took.as_secs_f64();
    let events = many.counts.events;
    say!(
        "{} seeds from {first} in {seconds:.1} s: {:.0} seeds/s, {:.0} events/s on {} cores\n",
        many.seeds,
        many.seeds as f64 / seconds,
        events as f64 / seconds,
        std::thread::available_parallelism().map_or(1, usize::from),
    );
    say!("{}\n", many.distribution.table());
    for (name, count) in many.counts.named() {
        say!("{name:>32} {count:>12}  {:>9.3} a seed", count as f64 / many.seeds.max(1) as f64);
    }
}

fn report(seed: u64, arguments: &Arguments, failure: &str) {
    say!("\nseed {seed} FAILED: {failure}\n");
    if arguments.brief {
        return;
    }
    let mutant = arguments.mutant;
    let least = minimise(seed, mutant);
    let (_, story) = tell(seed, mutant, Some(least.faults.clone()));
    say!("with {} faults left after {} runs:\n{}", least.faults.len(), least.runs, list(&least.faults));
    say!("{story}\n{}\n", least.failure);
    let named = mutant.map(|mutant| format!(" --mutant {mutant:?}")).unwrap_or_default();
    say!("again: cargo xtask sim --seed {seed}{named}; its whole story: --explain");
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("  {fault}\n")).collect()
}
