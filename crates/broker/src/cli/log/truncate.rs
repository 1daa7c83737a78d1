//! `highwater log truncate`: cuts a stopped log off at an offset.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use highwater_storage::Offset;
use highwater_storage::inspect::Target;
use highwater_storage::repair::{TruncatePlan, truncate};
use serde_json::json;

use super::output::Output;
use super::repair::locked;
use super::text::{counted, size};
use super::{ResultFormat, file_system, target, usage};

/// Cut a log off at an offset, as a replica does that follows another leader. Says what would go; does it with --write.
#[derive(Debug, Args)]
pub(crate) struct TruncateArguments {
    /// A partition's directory. Nobody may have it open.
    #[arg(value_name = "PATH")]
    path: PathBuf,
    /// The end of the log afterwards: the first offset that goes.
    #[arg(long, value_name = "OFFSET", value_parser = clap::value_parser!(i64).range(0..))]
    to: i64,
    /// Do it.
    #[arg(long)]
    write: bool,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &TruncateArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let path = arguments.path.display();
    let dir = match target(&*fs, &arguments.path)? {
        Target::Partition(dir) => dir,
        Target::Root { .. } => {
            let why = "an offset is one partition's, so name the partition's directory";
            return Err(usage(format!("{path} is a data directory: {why}")));
        }
        Target::File(..) => {
            let why = "a log is cut with all of its files: name the partition's directory";
            return Err(usage(format!("{path} is one file, and {why}")));
        }
    };
    let asked = Offset(arguments.to);
    let _lock = locked(&*fs, &dir, arguments.write)?;
    let plan = TruncatePlan::of(&*fs, &dir, asked)?;
    if asked > plan.from {
        bail!("{} ends at offset {}, before {asked}", dir.display(), plan.from);
    }
    let mut output = Output::new(arguments.format);
    let TruncatePlan { from, to, batches, bytes, segments } = &plan;
    let (records, size) = (format!("offsets {to} to {}", from.0 - 1), size(*bytes));
    let mut what = format!("{} ({size}), {records}", counted(*batches, "batch", "batches"));
    if !segments.is_empty() {
        what.push_str(&format!(", with them {}", counted(segments.len() as u64, "whole segment", "whole segments")));
    }
    if *to < asked {
        what.push_str(&format!("; the batch that {asked} lies in goes as a whole"));
    }
    if to == from {
        output.line(&format!("{}: ends at offset {to} already", dir.display()))?;
    } else if arguments.write {
        truncate(&fs, &dir, asked)?;
        output.line(&format!("{}: removed {what}", dir.display()))?;
    } else {
        output.line(&format!("{}: to remove (--write does it): {what}", dir.display()))?;
    }
    output.object(&json!({
        "type": "truncate",
        "path": dir,
        "from": from.0,
        "to": to.0,
        "batches": batches,
        "bytes": bytes,
        "segments": plan.segments,
        "done": arguments.write,
    }))?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
