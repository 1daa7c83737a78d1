//! `highwater demo`: three brokers replicate a real file, lose a follower for a while and their leader for good measure,
//! and at the end everything is compared with everything.

mod delivery;
mod input;
mod report;
mod story;
mod verify;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

const CLIENT_ID: &str = "highwater-demo";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Watch three brokers replicate a file, lose their leader and lose nothing.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The file whose lines are sent [default: this repository's Cargo.lock].
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Send the whole file again and again, to at least so many records.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    records: u64,
    /// Brokers to start; the topic has three replicas.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    brokers: u8,
    /// What the demo's choices (batch sizes, which follower pauses) are drawn from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep the brokers' directories here instead of in a temporary folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the demo; an error names the first difference.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let input = input::Input::open(arguments.input.as_deref(), arguments.records)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the network threads")?;
    runtime.block_on(story::tell(arguments, input))
}
