//! `highwater bench`: measures on the machine it runs on.

mod histogram;
mod limits;
mod log;

use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Write to a log in one directory, beside the bare limits of its disk.
    Log(log::LogArguments),
}

/// Runs what was asked for, and tells how the process is to exit.
pub(crate) fn run(arguments: &BenchArguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        BenchCommand::Log(arguments) => log::run(arguments),
    }
}
