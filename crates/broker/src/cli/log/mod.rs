//! `highwater log`: looks into the files of logs, checks and repairs them. No broker is needed, and none is asked.

mod copy;
mod diff;
mod dump;
mod info;
mod output;
mod progress;
mod repair;
mod selection;
mod text;
mod time;

pub(super) use time::format as format_time;
mod truncate;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use highwater_storage::fs::{Fs, OsFs};
use highwater_storage::inspect::{InspectError, Target};
use highwater_storage::repair::RepairError;

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
    /// Put damaged bytes aside and make indexes, epochs, snapshots and checkpoints anew.
    Repair(repair::RepairArguments),
    /// Make the index files of segments anew from the batches.
    RebuildIndex(repair::RebuildArguments),
    /// Tell where two replicas part, or those of two data directories.
    Diff(diff::DiffArguments),
    /// Cut a log off at an offset.
    Truncate(truncate::TruncateArguments),
    /// Copy a stopped log, or a data directory with all its logs.
    Copy(copy::CopyArguments),
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
        LogCommand::Repair(arguments) => repair::repair(arguments),
        LogCommand::RebuildIndex(arguments) => repair::rebuild_index(arguments),
        LogCommand::Diff(arguments) => diff::run(arguments),
        LogCommand::Truncate(arguments) => truncate::run(arguments),
        LogCommand::Copy(arguments) => copy::run(arguments),
    };
    match done {
        // Whoever read the results has seen enough of them.
        Err(error) if output::is_closed(&error) => Ok(ExitCode::SUCCESS),
        // Where 1 says that something is wrong with the files, it cannot say that they could not be looked at.
        Err(error) if is_usage(&error) || matches!(arguments.command, LogCommand::Verify(_) | LogCommand::Diff(_)) => {
            eprintln!("highwater: {}", super::in_one_line(&error));
            Ok(ExitCode::from(2))
        }
        done => done,
    }
}

/// What was asked for cannot be done to what was named, whatever is in it.
#[derive(Debug)]
struct Usage(String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Whether an error is about what was named, and not about what happened to it.
fn is_usage(error: &anyhow::Error) -> bool {
    let unknown = match error.downcast_ref() {
        Some(RepairError::Inspect(error)) => Some(error),
        _ => error.downcast_ref(),
    };
    error.is::<Usage>() || matches!(unknown, Some(InspectError::Unknown(_)))
}

fn usage(what: impl std::fmt::Display) -> anyhow::Error {
    Usage(what.to_string()).into()
}

fn file_system() -> Arc<dyn Fs> {
    OsFs::shared()
}

/// What a path on the command line is. Links are followed here: the storage crate opens none.
fn target(fs: &dyn Fs, path: &Path) -> anyhow::Result<Target> {
    let path = resolved(path).map_err(|error| usage(super::in_one_line(&error)))?;
    Target::of(fs, &path).map_err(usage)
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
