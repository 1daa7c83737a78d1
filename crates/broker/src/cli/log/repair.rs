//! `highwater log repair` and `rebuild-index`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{Correction, PartitionFiles, Target, VerifyEvent, in_use_by};
use highwater_storage::lock::LockError;
use highwater_storage::repair::{RepairAction, RepairLock, RepairPlan};
use serde_json::{Value, json};

use super::output::Output;
use super::progress::Progress;
use super::text::counted;
use super::verify::{fault_line, fault_object};
use super::{ResultFormat, file_system, partitions, target};

/// Put damaged bytes aside and make indexes, epochs and snapshots anew. Says what it would do; does it with --write.
#[derive(Debug, Args)]
pub(crate) struct RepairArguments {
    /// Partitions' directories or data directories. Nobody may have them open.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Do it.
    #[arg(long)]
    write: bool,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

/// Make the index files of all segments anew from the batches.
#[derive(Debug, Args)]
pub(crate) struct RebuildArguments {
    /// Partitions' directories or data directories. Nobody may have them open.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn repair(arguments: &RepairArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let dirs = directories(&*fs, &arguments.paths)?;
    let mut output = Output::new(arguments.format);
    let mut left = 0;
    for dir in &dirs {
        let lock = locked(&*fs, dir, arguments.write)?;
        let progress = Progress::new(PartitionFiles::list(&*fs, dir)?.log_bytes(), arguments.format);
        let plan = RepairPlan::of(&*fs, dir, &mut |bytes| progress.add(bytes))?;
        progress.finish();
        show(&mut output, dir, &plan, arguments.write)?;
        for fault in &plan.left {
            output.line(&format!("  stays: {}", fault_line(fault)))?;
            output.object(&fault_object(fault))?;
        }
        left += plan.left.len();
        if let Some(lock) = lock.filter(|_| !plan.is_empty()) {
            let progress = Progress::new(PartitionFiles::list(&*fs, dir)?.log_bytes(), arguments.format);
            plan.apply(&fs, &mut |bytes| progress.add(bytes))?;
            progress.finish();
            left += check(&*fs, &lock, &mut output)?;
        } else {
            left += plan.actions.len();
        }
    }
    output.finish()?;
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub(crate) fn rebuild_index(arguments: &RebuildArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let dirs = directories(&*fs, &arguments.paths)?;
    let mut output = Output::new(arguments.format);
    for dir in &dirs {
        let _lock = RepairLock::take(&*fs, dir)?;
        let plan = RepairPlan::rebuild_indexes(&*fs, dir)?;
        let progress = Progress::new(PartitionFiles::list(&*fs, dir)?.log_bytes(), arguments.format);
        plan.apply(&fs, &mut |bytes| progress.add(bytes))?;
        progress.finish();
        show(&mut output, dir, &plan, true)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn directories(fs: &dyn Fs, paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for path in paths {
        let target = target(fs, path)?;
        if let Target::File(path, _) = &target {
            anyhow::bail!("{} is one file: name its directory", path.display());
        }
        dirs.extend(partitions(&target));
    }
    Ok(dirs)
}

fn show(output: &mut Output, dir: &Path, plan: &RepairPlan, done: bool) -> anyhow::Result<()> {
    if plan.is_empty() {
        let what = if plan.left.is_empty() { "nothing to do" } else { "nothing that can be repaired" };
        output.line(&format!("{}: {what}", dir.display()))?;
        return Ok(());
    }
    output.line(&format!("{}: {}", dir.display(), if done { "repaired" } else { "to repair (--write does it)" }))?;
    for action in &plan.actions {
        let (line, object) = described(action, done);
        output.line(&format!("  {line}"))?;
        output.object(&object)?;
    }
    Ok(())
}

fn described(action: &RepairAction, done: bool) -> (String, Value) {
    match action {
        RepairAction::Cut { file, position, bytes } => (
            format!("{}: {bytes} bytes from byte {position} on go to a file beside it", file.display()),
            json!({ "type": "repair", "action": "cut", "file": file, "position": position, "bytes": bytes, "done": done }),
        ),
        RepairAction::Correct { file, position, correction } => (
            format!("{}, byte {position}: {}", file.display(), corrected(correction)),
            json!({
                "type": "repair", "action": "correct", "file": file, "position": position,
                "field": correction.field.to_string(), "was": correction.was, "is": correction.is, "done": done,
            }),
        ),
        RepairAction::SetAside(file) => (
            format!("{}: gets another name", file.display()),
            json!({ "type": "repair", "action": "set-aside", "file": file, "done": done }),
        ),
        RepairAction::Rebuild(file) => (
            format!("{}: made anew", file.display()),
            json!({ "type": "repair", "action": "rebuild", "file": file, "done": done }),
        ),
        other => (format!("{other:?}"), Value::Null),
    }
}

fn corrected(correction: &Correction) -> String {
    let Correction { field, was, is, .. } = correction;
    format!("{field} {is} instead of {was}")
}

/// Whether it is good now; how many faults are left.
fn check(fs: &dyn Fs, lock: &RepairLock, output: &mut Output) -> anyhow::Result<usize> {
    let mut faults = Vec::new();
    let verified = lock.verify(fs, &mut |event| {
        if let VerifyEvent::Found(fault) = event {
            faults.push(fault);
        }
    })?;
    faults.retain(|fault| fault.severity() > highwater_storage::inspect::Severity::Note);
    for fault in &faults {
        output.line(&format!("  still wrong: {}", fault_line(fault)))?;
        output.object(&fault_object(fault))?;
    }
    if faults.is_empty() {
        let records = counted(verified.records, "record", "records");
        output.line(&format!("  verified: {records} in {}", counted(verified.batches, "batch", "batches")))?;
    }
    Ok(faults.len())
}

/// Keeps brokers out of a directory that is to be written to. If it is only looked at, nobody may have it open either:
/// what a running broker is writing is not damage.
pub(crate) fn locked(fs: &dyn Fs, dir: &Path, write: bool) -> anyhow::Result<Option<RepairLock>> {
    if write {
        return Ok(Some(RepairLock::take(fs, dir)?));
    }
    match in_use_by(fs, dir)? {
        Some(holder) => Err(LockError::Held { directory: dir.to_owned(), holder }.into()),
        None => Ok(None),
    }
}
