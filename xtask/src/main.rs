//! The project's checks as one command: `cargo xtask test [PART…] [--skip PART]…`.
//!
//! Every check the project has runs from here, on a developer's machine as in CI, and so does the installation of what
//! the checks need: Debian packages, and everything else below the target directory. The last line is always
//! `N passed, N failed`, and the exit code is 1 if anything failed.

mod clients;
mod command;
mod differential;
mod install;
mod mutants;
mod parts;
mod programs;
mod soak;
mod suites;
mod tally;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::parts::{Binaries, PARTS, Part};
use crate::programs::Program;
use crate::soak::SOAKS;
use crate::tally::Tally;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's checks as one command")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the checks need and run them, all or the parts named.
    #[command(after_help = parts_help())]
    Test {
        /// The parts to run, in the order of the list below; none means all.
        #[arg(value_name = "PART", value_parser = part_names())]
        parts: Vec<String>,
        /// Leave this part out. A part that cannot run on this machine is a failure unless it is skipped.
        #[arg(long, value_name = "PART", value_parser = part_names())]
        skip: Vec<String>,
        /// Run the `clients` part against Apache Kafka instead of Highwater, to show that the checks ask of us what
        /// Kafka does.
        #[arg(long)]
        against_kafka: bool,
    },
    /// Plant mistakes in a copy of the tree and expect tests to find them, all of `tests/mutants` or those named.
    Mutants {
        /// Names of files in `tests/mutants`, without their ending; none means all.
        #[arg(value_name = "MUTANT")]
        names: Vec<String>,
    },
    /// Run seeds of the simulated cluster, or tell the story of one: `--seeds N`, `--from S`, `--minutes M`, `--seed S`,
    /// `--explain`; `--help` says more.
    #[command(disable_help_flag = true)]
    Sim {
        /// What the simulator is told.
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run what takes too long for every test run.
    #[command(after_help = soaks_help())]
    Soak {
        /// Which.
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(SOAKS.iter().map(|soak| soak.name)))]
        name: String,
        /// What it is told.
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Install one thing that a check needs, and print where it is.
    Install {
        /// What to install.
        #[arg(value_enum)]
        what: Installable,
    },
}

/// When planting all mutants is taken for stuck.
const MUTANTS_LIMIT: Duration = Duration::from_secs(60 * 60);

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Installable {
    /// Debian's kcat.
    Kcat,
    /// The Python clients, in a virtual environment below the target directory.
    Python,
    /// Apache Kafka's jars (and a JDK and Maven if there are none), below the target directory.
    Kafka,
    /// cargo-fuzz, below the target directory.
    Fuzz,
    /// Debian's ZooKeeper (and a Java if there is none).
    Zookeeper,
    /// Go, of a release that the Go clients can be built with.
    Go,
    /// Debian's iproute2, for hosts whose links are cut.
    Namespaces,
}

/// Where things are.
#[derive(Debug)]
struct Workspace {
    /// The directory of the root `Cargo.toml`.
    root: PathBuf,
    /// Cargo's target directory.
    target: PathBuf,
    /// Whether the clients' programs run against Apache Kafka this time.
    against_kafka: bool,
    /// The packages whose debug programs the chosen parts need.
    packages: Vec<&'static str>,
    /// Those programs, once one part has built them, or why they cannot be.
    programs: OnceLock<Result<Vec<Program>, String>>,
    /// The `highwater` programs, once one part has built them, or why they cannot be.
    binaries: OnceLock<Result<Option<Binaries>, String>>,
}

impl Workspace {
    fn find(against_kafka: bool) -> anyhow::Result<Self> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest).parent().ok_or_else(|| anyhow::anyhow!("xtask has no parent directory"))?;
        // This program is TARGET/debug/xtask: that holds for CARGO_TARGET_DIR and for cargo's own configuration alike.
        let program = std::env::current_exe()?;
        let target =
            program.ancestors().nth(2).ok_or_else(|| anyhow::anyhow!("xtask runs outside a target directory"))?;
        Ok(Self {
            root: root.to_path_buf(),
            target: target.to_path_buf(),
            against_kafka,
            packages: Vec::new(),
            programs: OnceLock::new(),
            binaries: OnceLock::new(),
        })
    }
}

fn part_names() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(PARTS.iter().map(|part| part.name))
}

fn parts_help() -> String {
    let mut help = String::from("Parts and their budgets in seconds:\n");
    for part in PARTS {
        help.push_str(&format!("  {:<12} {:>4}  {}\n", part.name, part.budget.as_secs(), part.about));
    }
    help
}

fn soaks_help() -> String {
    let lines = SOAKS.iter().map(|soak| format!("  {:<12} {}\n", soak.name, soak.about));
    ["Names:\n".to_owned()].into_iter().chain(lines).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> anyhow::Result<bool> {
    match command {
        Command::Test { parts, skip, against_kafka } => {
            let mut workspace = Workspace::find(*against_kafka)?;
            let chosen = PARTS.iter().filter(|part| parts.is_empty() || parts.iter().any(|name| name == part.name));
            let chosen: Vec<&Part> = chosen.filter(|part| !skip.iter().any(|name| name == part.name)).collect();
            workspace.packages = chosen.iter().flat_map(|part| part.packages.iter().copied()).collect();
            workspace.packages.sort_unstable();
            workspace.packages.dedup();
            Ok(test(&workspace, &chosen))
        }
        Command::Mutants { names } => {
            let mut tally = Tally::default();
            let deadline = Instant::now() + MUTANTS_LIMIT;
            mutants::run_named(&Workspace::find(false)?, names, &mut tally, deadline)?;
            for failure in tally.failures() {
                println!("failed: {failure}");
            }
            println!("{} passed, {} failed", tally.passed(), tally.failed());
            Ok(tally.failed() == 0)
        }
        Command::Sim { arguments } => {
            let cargo = std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
            let mut simulator = std::process::Command::new(cargo);
            simulator.args("run --quiet --locked --release --package highwater-sim --".split(' ')).args(arguments);
            Ok(simulator.current_dir(Workspace::find(false)?.root).status()?.success())
        }
        Command::Soak { name, arguments } => {
            let soak = SOAKS.iter().find(|soak| soak.name == name).context("there is no such soak")?;
            let packages = vec!["highwater-broker", "highwater-tests"];
            Ok(soak::run(&Workspace { packages, ..Workspace::find(false)? }, soak, arguments))
        }
        Command::Install { what } => {
            let workspace = Workspace::find(false)?;
            let place = match what {
                Installable::Kcat => install::kcat()?,
                Installable::Python => install::python(&workspace, install::CLIENTS)?,
                Installable::Kafka => install::kafka(&workspace)?,
                Installable::Fuzz => install::cargo_fuzz(&workspace)?,
                Installable::Zookeeper => install::zookeeper(&workspace)?,
                Installable::Go => install::go(&workspace)?,
                Installable::Namespaces => install::namespaces()?,
            };
            println!("{}", place.display());
            Ok(true)
        }
    }
}

/// What came of a part.
struct Ran<'a> {
    part: &'a Part,
    took: Duration,
    tally: Tally,
}

/// Runs the parts and prints the table and the closing line. True if nothing failed.
fn test(workspace: &Workspace, parts: &[&Part]) -> bool {
    let started = Instant::now();
    let mut total = Tally::default();
    let mut table = Vec::new();
    let mut budget = Duration::ZERO;
    for group in parts::groups(parts.iter().copied()) {
        budget += parts::budget(&group);
        for ran in run_group(workspace, group) {
            total.add(ran.part.name, ran.tally.clone());
            table.push(ran);
        }
    }

    println!("\n==== parts ====");
    for Ran { part, took, tally } in &table {
        println!("{}", table_line(part, *took, tally));
    }
    println!("{:<12} {:>5.0} s of {:>4} s", "together", started.elapsed().as_secs_f64(), budget.as_secs());
    for line in total.last_lines() {
        println!("{line}");
    }
    for failure in total.failures() {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed", total.passed(), total.failed());
    total.failed() == 0
}

/// Runs one part, or several beside each other; of several, each is shown once it has ended.
fn run_group<'a>(workspace: &Workspace, group: Vec<&'a Part>) -> Vec<Ran<'a>> {
    if let [part] = group[..] {
        println!("\n==== {}: {} ====", part.name, part.about);
        let ran = run_part(workspace, part, Tally::default());
        show_end(&ran);
        return vec![ran];
    }
    let names: Vec<&str> = group.iter().map(|part| part.name).collect();
    println!("\n==== {} beside each other ====", names.join(", "));
    let waiting = Mutex::new(group.into_iter());
    let (ended, done) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..parts::BESIDE {
            let (ended, waiting) = (ended.clone(), &waiting);
            scope.spawn(move || {
                let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some(part) = next() {
                    // The receiver is there until all have ended.
                    let _ = ended.send(run_part(workspace, part, Tally::keeping()));
                }
            });
        }
        drop(ended);
        let shown = done.into_iter().inspect(|ran| {
            println!("\n==== {}: {} ====", ran.part.name, ran.part.about);
            print!("{}", ran.tally.kept());
            show_end(ran);
        });
        shown.collect()
    })
}

fn run_part<'a>(workspace: &Workspace, part: &'a Part, mut tally: Tally) -> Ran<'a> {
    let started = Instant::now();
    let ran = part
        .prepare(workspace, &mut tally)
        .and_then(|()| (part.run)(workspace, &mut tally, Instant::now() + part.limit()));
    if let Err(error) = ran {
        tally.fail(format!("{error:#}"));
    }
    Ran { part, took: started.elapsed(), tally }
}

fn show_end(ran: &Ran<'_>) {
    println!("{}", table_line(ran.part, ran.took, &ran.tally));
    for failure in ran.tally.failures() {
        println!("  failed: {failure}");
    }
}

fn table_line(part: &Part, took: Duration, tally: &Tally) -> String {
    let over = if took > part.budget { "  OVER BUDGET" } else { "" };
    format!(
        "{:<12} {:>5.0} s of {:>4} s  {:>5} passed {:>3} failed{over}",
        part.name,
        took.as_secs_f64(),
        part.budget.as_secs(),
        tally.passed(),
        tally.failed(),
    )
}
