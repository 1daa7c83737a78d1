//! `highwater log`: looks into the files of logs, checks and repairs them. No broker is needed, and none is asked.

mod dump;
mod info;
mod output;
mod progress;
mod selection;
mod text;
mod time;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use highwater_storage::fs::{Fs, OsFs};
use highwater_storage::inspect::Target;

/// Look into the files of logs, Highwater's or Kafka's.
#[derive(Debug, Args)]
pub(crate) struct LogArguments {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Show segments, sizes, offsets, epochs and how a log was closed.
    Info(info::InfoArguments),
    /// Show batches, and records.
    Dump(dump::DumpArguments),
    /// Check every batch, record, index entry, epoch, snapshot and checkpoint.
    Verify(verify::VerifyArguments),
}

/// How results look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ResultFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Runs what was asked for.
pub(crate) fn run(arguments: &LogArguments) -> anyhow::Result<ExitCode> {
    let done = match &arguments.command {
        LogCommand::Info(arguments) => info::run(arguments),
        LogCommand::Dump(arguments) => dump::run(arguments),
        LogCommand::Verify(arguments) => verify::run(arguments),
    };
    match done {
        // Whoever read the results has seen enough of them.
        Err(error) if output::is_closed(&error) => Ok(ExitCode::SUCCESS),
        done => done,
    }
}

fn file_system() -> Arc<dyn Fs> {
    OsFs::shared()
}

/// What a path on the command line is. Links are followed here: the storage crate opens none.
fn target(fs: &dyn Fs, path: &Path) -> anyhow::Result<Target> {
    let path = resolved(path)?;
    Ok(Target::of(fs, &path)?)
}

fn resolved(path: &Path) -> anyhow::Result<PathBuf> {
    std::fs::canonicalize(path).with_context(|| format!("cannot look at {}", path.display()))
}

/// The partitions that a target consists of.
fn partitions(target: &Target) -> Vec<PathBuf> {
    match target {
        Target::Root { partitions, .. } => partitions.clone(),
        Target::Partition(dir) => vec![dir.clone()],
        Target::File(..) => Vec::new(),
    }
}
