//! The same requests to Highwater and to Apache Kafka: `cargo xtask soak differential`, and a short run in the test run.

use std::path::Path;
use std::time::Instant;

use clap::Parser;

use crate::Workspace;
use crate::command::{Counts, Run};
use crate::tally::Tally;
use crate::{install, mutants, programs};

/// How many requests the test run sends. One seed, so that it asks the same each time; the soak looks elsewhere.
const QUICK: [&str; 4] = ["--requests", "500", "--seed", "1"];

/// What `cargo xtask soak differential` is told.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak differential", no_binary_name = true)]
struct Arguments {
    /// How many requests are sent.
    #[arg(long, default_value_t = 5_000)]
    requests: u32,
    /// From which number they are drawn; without it from the hash of the committed tree.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this API, by its name in Kafka's documentation; may be given several times.
    #[arg(long, value_name = "API")]
    api: Vec<String>,
    /// Print every request with both answers.
    #[arg(long)]
    explain: bool,
}

/// Sends many.
pub(crate) fn soak(
    workspace: &Workspace,
    arguments: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let arguments = Arguments::parse_from(arguments);
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => mutants::tree_seed(workspace)?.into(),
    };
    let mut words =
        vec!["--requests".to_owned(), arguments.requests.to_string(), "--seed".to_owned(), seed.to_string()];
    for api in arguments.api {
        words.extend(["--api".to_owned(), api]);
    }
    words.extend(arguments.explain.then(|| "--explain".to_owned()));
    let kafka = install::kafka(workspace)?;
    run(workspace, &kafka, &words, tally, deadline)
}

/// Sends some.
pub(crate) fn quick(workspace: &Workspace, kafka: &Path, tally: &mut Tally, deadline: Instant) -> anyhow::Result<()> {
    run(workspace, kafka, &QUICK.map(str::to_owned), tally, deadline)
}

/// On a debug build: nothing here is a question of speed, and debug assertions see more.
fn run(
    workspace: &Workspace,
    kafka: &Path,
    words: &[String],
    tally: &mut Tally,
    deadline: Instant,
) -> anyhow::Result<()> {
    let highwater = programs::executable(workspace, tally, "highwater-broker", "highwater")?;
    let run = Run::new(workspace, programs::executable(workspace, tally, "highwater-tests", "differential")?)
        .word("--kafka-libs")
        .word(kafka)
        .word("--work")
        .word(workspace.target.join("differential-work"));
    let run = words.iter().fold(run, |run, word| run.word(word));
    run.env("HIGHWATER_BINARY", highwater).run(tally, deadline, Counts::Lines);
    Ok(())
}
