//! What takes too long for every test run: `cargo xtask soak NAME [ARGUMENT…]`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::command::{Counts, Run};
use crate::tally::Tally;
use crate::{Workspace, clients, differential, suites};

/// One long run.
#[derive(Debug)]
pub(crate) struct Soak {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// When a command of the run is taken for stuck.
    pub(crate) limit: Duration,
    /// Gets what stands behind the name on the command line.
    pub(crate) run: fn(&Workspace, &[String], &mut Tally, Instant) -> anyhow::Result<()>,
}

const fn soak(
    name: &'static str,
    limit_minutes: u64,
    about: &'static str,
    run: fn(&Workspace, &[String], &mut Tally, Instant) -> anyhow::Result<()>,
) -> Soak {
    Soak { name, about, limit: Duration::from_secs(limit_minutes * 60), run }
}

/// All of them, sorted by name.
pub(crate) const SOAKS: &[Soak] = &[
    soak("clients", 30, "every client, older ones too, in every scenario; `--help` says more", clients::soak),
    soak(
        "differential",
        30,
        "the same requests to us and to Kafka, answers compared; `--help` says more",
        differential::soak,
    ),
    soak("streams", 10, "Kafka Streams counts words exactly once, over a stop and a kill", clients::streams),
    soak("suites", 60, "other people's test suites, held to what Kafka passes; `--help` says more", suites::soak),
];

/// Runs one. True if nothing failed.
pub(crate) fn run(workspace: &Workspace, soak: &Soak, arguments: &[String]) -> bool {
    println!("\n==== {}: {} ====", soak.name, soak.about);
    let mut tally = Tally::default();
    if let Err(error) = (soak.run)(workspace, arguments, &mut tally, Instant::now() + soak.limit) {
        tally.fail(format!("{error:#}"));
    }
    for failure in tally.failures() {
        println!("failed: {failure}");
    }
    println!("{} passed, {} failed", tally.passed(), tally.failed());
    tally.failed() == 0
}

/// Builds the broker as users do, or in debug; nothing if that fails, which is counted.
pub(crate) fn binary(workspace: &Workspace, debug: bool, tally: &mut Tally, deadline: Instant) -> Option<PathBuf> {
    let (profile, built) = if debug { ("", "debug/highwater") } else { ("--release", "release/highwater") };
    let build = Run::cargo(workspace).words("build --locked --package highwater-broker").words(profile);
    build.run(tally, deadline, Counts::Nothing).then(|| workspace.target.join(built))
}
