//! `highwater log repair` and `rebuild-index`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{
    Correction, Fault, InspectError, PartitionFiles, Target, Verified, VerifyEvent, in_use_by,
};
use highwater_storage::lock::LockError;
use highwater_storage::names::{SegmentFile, SegmentFileState};
use highwater_storage::repair::{RepairAction, RepairEvent, RepairLock, RepairPlan, RootRepairPlan};
use serde_json::{Value, json};

use super::output::Output;
use super::progress::Progress;
use super::text::counted;
use super::verify::{fault_line, fault_object};
use super::{ResultFormat, file_system, partitions, target};

/// Put damaged bytes aside and make indexes, epochs, snapshots and checkpoints anew. Says what it would do; does it with
/// --write.
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

/// Make the index files of all segments, or of one, anew from the batches.
#[derive(Debug, Args)]
pub(crate) struct RebuildArguments {
    /// Partitions' directories, data directories or files of segments. Nobody may have them open.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn repair(arguments: &RepairArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut output = Output::new(arguments.format);
    let mut left = 0;
    let mut dirs = Vec::new();
    for path in &arguments.paths {
        let target = target(&*fs, path)?;
        match &target {
            Target::File(path, _) => bail!("{} is one file: name its directory", path.display()),
            // Before the partitions, whose repairs go by it.
            Target::Root { dir, .. } => left += repair_root(&*fs, dir, arguments.write, &mut output)?,
            Target::Partition(_) => {}
        }
        dirs.extend(partitions(&target));
    }
    for dir in &dirs {
        left += match locked(&*fs, dir, arguments.write)? {
            Some(lock) => repair_partition(&fs, dir, &lock, &mut output)?,
            None => plan_partition(&*fs, dir, &mut output)?,
        };
    }
    output.finish()?;
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says what a repair of a partition would do first. Returns what there is to do.
fn plan_partition(fs: &dyn Fs, dir: &Path, output: &mut Output) -> anyhow::Result<usize> {
    let progress = Progress::new(PartitionFiles::list(fs, dir)?.log_bytes(), output.format());
    let plan = RepairPlan::of(fs, dir, &mut |bytes| progress.add(bytes))?;
    progress.finish();
    show(output, dir, &plan.actions, plan.left.is_empty(), false)?;
    Ok(show_left(output, &plan.left)? + plan.actions.len())
}

/// Repairs a partition and verifies it. Returns what is left to do.
fn repair_partition(fs: &Arc<dyn Fs>, dir: &Path, lock: &RepairLock, output: &mut Output) -> anyhow::Result<usize> {
    let progress = Progress::new(PartitionFiles::list(&**fs, dir)?.log_bytes(), output.format());
    let (mut has_repaired, mut failed) = (false, None);
    let left = lock.repair(fs, &mut |event| match event {
        RepairEvent::Read(bytes) => progress.add(bytes),
        RepairEvent::Done(plan) if failed.is_none() => {
            has_repaired = true;
            failed = progress.beside(|| show(output, dir, &plan.actions, true, true)).err();
        }
        _ => {}
    })?;
    progress.finish();
    failed.map_or(Ok(()), Err)?;
    if !has_repaired {
        show(output, dir, &[], left.is_empty(), true)?;
        return show_left(output, &left);
    }
    // What stays is among what is still wrong.
    check(output, |tell| lock.verify(&**fs, tell))
}

/// Repairs the files of a data root itself. Returns what is left to do.
fn repair_root(fs: &dyn Fs, dir: &Path, write: bool, output: &mut Output) -> anyhow::Result<usize> {
    let lock = locked(fs, dir, write)?;
    let plan = RootRepairPlan::of(fs, dir)?;
    show(output, dir, &plan.actions, plan.left.is_empty(), write)?;
    let left = show_left(output, &plan.left)?;
    let Some(lock) = lock.filter(|_| !plan.is_empty()) else { return Ok(left + plan.actions.len()) };
    plan.apply(fs)?;
    Ok(left + check(output, |tell| lock.verify_root(fs, tell))?)
}

pub(crate) fn rebuild_index(arguments: &RebuildArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut asked = Vec::new();
    for path in &arguments.paths {
        match target(&*fs, path)? {
            Target::File(path, name) => {
                let is_of_segment = name.state == SegmentFileState::Live && name.kind != SegmentFile::ProducerSnapshot;
                let dir = path.parent().filter(|_| is_of_segment).map(Path::to_owned);
                let Some(dir) = dir else { bail!("{} is no file of a segment in use", path.display()) };
                asked.push((dir, Some(name.base_offset)));
            }
            other => asked.extend(partitions(&other).into_iter().map(|dir| (dir, None))),
        }
    }
    let mut output = Output::new(arguments.format);
    for (dir, segment) in &asked {
        let _lock = RepairLock::take(&*fs, dir)?;
        let plan = match segment {
            None => RepairPlan::rebuild_indexes(&*fs, dir)?,
            Some(base) => RepairPlan::rebuild_indexes_of(&*fs, dir, *base)?,
        };
        if let Some(base) = segment.filter(|_| plan.is_empty()) {
            bail!("{} has no segment that begins at offset {base}", dir.display());
        }
        let progress = Progress::new(PartitionFiles::list(&*fs, dir)?.log_bytes(), arguments.format);
        plan.apply(&fs, &mut |bytes| progress.add(bytes))?;
        progress.finish();
        show(&mut output, dir, &plan.actions, true, true)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn show(output: &mut Output, dir: &Path, actions: &[RepairAction], is_good: bool, done: bool) -> anyhow::Result<()> {
    if actions.is_empty() {
        let what = if is_good { "nothing to do" } else { "nothing that can be repaired" };
        output.line(&format!("{}: {what}", dir.display()))?;
        return Ok(());
    }
    output.line(&format!("{}: {}", dir.display(), if done { "repaired" } else { "to repair (--write does it)" }))?;
    for action in actions {
        let (line, object) = described(action, done);
        output.line(&format!("  {line}"))?;
        output.object(&object)?;
    }
    Ok(())
}

/// Says what a repair does not touch, and how much that is.
fn show_left(output: &mut Output, left: &[Fault]) -> anyhow::Result<usize> {
    for fault in left {
        output.line(&format!("  stays: {}", fault_line(fault)))?;
        output.object(&fault_object(fault))?;
    }
    Ok(left.len())
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
        RepairAction::PutInPlace(file) => (
            format!("{}: gets its final name, which an interrupted compaction left to be done", file.display()),
            json!({ "type": "repair", "action": "put-in-place", "file": file, "done": done }),
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
fn check(
    output: &mut Output,
    verify: impl FnOnce(&mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError>,
) -> anyhow::Result<usize> {
    let mut faults = Vec::new();
    let verified = verify(&mut |event| {
        if let VerifyEvent::Found(fault) = event {
            faults.push(fault);
        }
    })?;
    faults.retain(|fault| fault.severity() > highwater_storage::inspect::Severity::Note);
    for fault in &faults {
        output.line(&format!("  still wrong: {}", fault_line(fault)))?;
        output.object(&fault_object(fault))?;
    }
    if faults.is_empty() && verified.segments > 0 {
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
