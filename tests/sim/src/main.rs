//! `cargo xtask sim`: runs seeds, tells the story of one, and makes the schedule of a failing one short.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use highwater_sim::{
    CoordinatorCounts, Counts, Fault, Minimised, Mutant, Scenario, minimise, minimise_coordinators, run,
    run_coordinators, run_many, run_many_coordinators, tell, tell_coordinators,
};
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
    /// What is simulated. Seeds mean something else in each.
    #[arg(long, value_enum, default_value_t = World::Replicas)]
    world: World,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum World {
    /// Replicas of one partition.
    Replicas,
    /// Coordinators of groups and of transactions, and their clients.
    Coordinators,
}

/// What became of one seed, in whichever world.
struct Told {
    faults: Vec<Fault>,
    failure: Option<String>,
    fingerprint: u64,
    events: u64,
    counts: Vec<(&'static str, u64)>,
}

impl World {
    fn run(self, seed: u64, mutant: Option<Mutant>) -> Told {
        match self {
            Self::Replicas => Told::of(run(seed, mutant, None)),
            Self::Coordinators => Told::of_coordinators(run_coordinators(seed, Scenario::Drawn, None, None)),
        }
    }

    fn tell(self, seed: u64, mutant: Option<Mutant>, faults: Option<Vec<Fault>>) -> (Told, String) {
        match self {
            Self::Replicas => {
                let (outcome, story) = tell(seed, mutant, faults);
                (Told::of(outcome), story)
            }
            Self::Coordinators => {
                let (outcome, story) = tell_coordinators(seed, Scenario::Drawn, faults, None);
                (Told::of_coordinators(outcome), story)
            }
        }
    }

    fn minimise(self, seed: u64, mutant: Option<Mutant>) -> Minimised {
        match self {
            Self::Replicas => minimise(seed, mutant),
            Self::Coordinators => minimise_coordinators(seed),
        }
    }
}

impl Told {
    fn of(outcome: highwater_sim::Outcome) -> Self {
        let highwater_sim::Outcome { counts, fingerprint, faults, failure, .. } = outcome;
        Self { faults, failure, fingerprint, events: counts.events, counts: counts.named() }
    }

    fn of_coordinators(outcome: highwater_sim::CoordinatorOutcome) -> Self {
        let highwater_sim::CoordinatorOutcome { counts, fingerprint, faults, failure, .. } = outcome;
        Self { faults, failure, fingerprint, events: counts.events, counts: counts.named() }
    }
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = Mutant::ALL.map(|mutant| format!("{mutant:?}"));
    let at = known.iter().position(|known| known == name);
    at.map(|at| Mutant::ALL[at]).ok_or_else(|| format!("there are {}", known.join(", ")))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let passed = match arguments.seed {
        Some(seed) if arguments.explain => explain(seed, &arguments),
        Some(seed) => one(seed, &arguments),
        None => many(&arguments),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn explain(seed: u64, arguments: &Arguments) -> bool {
    let (outcome, story) = arguments.world.tell(seed, arguments.mutant, None);
    say!("seed {seed}\n\n{}\n{story}", list(&outcome.faults));
    for (name, count) in &outcome.counts {
        say!("{name:>32} {count}");
    }
    match &outcome.failure {
        Some(failure) => say!("\nFAILED: {failure}"),
        None => say!("\nall promises kept; fingerprint {:016x}", outcome.fingerprint),
    }
    outcome.failure.is_none()
}

fn one(seed: u64, arguments: &Arguments) -> bool {
    let outcome = arguments.world.run(seed, arguments.mutant);
    match &outcome.failure {
        Some(failure) => report(seed, arguments, failure),
        None => say!("seed {seed}: {} events, fingerprint {:016x}", outcome.events, outcome.fingerprint),
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
    let progress = |of_seed| {
        let events = events.fetch_add(of_seed, Ordering::Relaxed) + of_seed;
        match until {
            Some(_) => bar.set_position(started.elapsed().as_millis().try_into().unwrap_or(u64::MAX)),
            None => bar.inc(1),
        }
        let seconds = started.elapsed().as_secs_f64();
        bar.set_message(format!("{:.0} events/s", events as f64 / seconds));
    };
    let (from, sums, failure) = match arguments.world {
        World::Replicas => {
            let many = run_many(arguments.from, seeds, until, arguments.mutant, progress);
            let Counts { events, .. } = many.counts;
            let table = Some(many.distribution.table());
            (arguments.from, Sums { seeds: many.seeds, events, table, counts: many.counts.named() }, many.failure)
        }
        World::Coordinators => {
            let many = run_many_coordinators(arguments.from, seeds, until, progress);
            let CoordinatorCounts { events, .. } = many.counts;
            (arguments.from, Sums { seeds: many.seeds, events, table: None, counts: many.counts.named() }, many.failure)
        }
    };
    bar.finish_and_clear();
    sums.say(from, started.elapsed());
    if let Some((seed, failure)) = &failure {
        report(*seed, arguments, failure);
    }
    failure.is_none()
}

/// What happened in many seeds.
struct Sums {
    seeds: u64,
    events: u64,
    /// How it is spread over them.
    table: Option<String>,
    counts: Vec<(&'static str, u64)>,
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

impl Sums {
    fn say(&self, first: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        say!(
            "{} seeds from {first} in {seconds:.1} s: {:.0} seeds/s, {:.0} events/s on {} cores\n",
            self.seeds,
            self.seeds as f64 / seconds,
            self.events as f64 / seconds,
            std::thread::available_parallelism().map_or(1, usize::from),
        );
        if let Some(table) = &self.table {
            say!("{table}\n");
        }
        for (name, count) in &self.counts {
            say!("{name:>32} {count:>12}  {:>9.3} a seed", *count as f64 / self.seeds.max(1) as f64);
        }
    }
}

fn report(seed: u64, arguments: &Arguments, failure: &str) {
    say!("\nseed {seed} FAILED: {failure}\n");
    if arguments.brief {
        return;
    }
    let mutant = arguments.mutant;
    let least = arguments.world.minimise(seed, mutant);
    let (_, story) = arguments.world.tell(seed, mutant, Some(least.faults.clone()));
    say!("with {} faults left after {} runs:\n{}", least.faults.len(), least.runs, list(&least.faults));
    say!("{story}\n{}\n", least.failure);
    let mut named = mutant.map(|mutant| format!(" --mutant {mutant:?}")).unwrap_or_default();
    if arguments.world == World::Coordinators {
        named.push_str(" --world coordinators");
    }
    say!("again: cargo xtask sim --seed {seed}{named}; its whole story: --explain");
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("  {fault}\n")).collect()
}
