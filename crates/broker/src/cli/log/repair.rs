//! `highwater log repair` and `rebuild-index`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use highwater_storage::Offset;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{
    Correction, Fault, InspectError, PartitionFiles, RootCheckpoints, Target, Verified, VerifyEvent, in_use_by,
};
use highwater_storage::lock::LockError;
use highwater_storage::names::{SegmentFile, SegmentFileName, SegmentFileState};
use highwater_storage::repair::{
    RepairAction, RepairError, RepairEvent, RepairLock, RepairPlan, RootRepair, RootRepairPlan,
};
use serde_json::{Value, json};

use super::output::Output;
use super::progress::Progress;
use super::text::counted;
use super::verify::{fault_line, fault_object};
use super::{ResultFormat, file_system, partitions, target, usage};

/// Put damaged bytes aside and make indexes, epochs, snapshots and checkpoints anew. Says what it would do; does it with
/// --write. Of a file, the segment that it belongs to is repaired with its indexes, and nothing else.
#[derive(Debug, Args)]
pub(crate) struct RepairArguments {
    /// Partitions' directories, data directories or files of segments. Nobody may have them open.
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
    let mut targets = Vec::new();
    for path in &arguments.paths {
        let target = target(&*fs, path)?;
        targets.push(match target {
            Target::File(path, name) => Asked::Segment(of_segment(&*fs, &path, name)?, name.base_offset),
            Target::Partition(dir) => Asked::Partition(dir),
            Target::Root { dir, partitions } => Asked::Root(dir, partitions),
        });
    }
    let mut output = Output::new(arguments.format);
    let mut left = 0;
    for asked in &targets {
        let (Asked::Segment(dir, _) | Asked::Partition(dir) | Asked::Root(dir, _)) = asked;
        left += match (asked, locked(&*fs, dir, arguments.write)?) {
            (Asked::Root(dir, partitions), Some(lock)) => repair_root(&fs, dir, partitions, lock, &mut output)?,
            (Asked::Root(dir, partitions), None) => plan_root(&*fs, dir, partitions, &mut output)?,
            (Asked::Partition(dir), Some(lock)) => repair_partition(&fs, dir, &lock, &mut output)?,
            (Asked::Partition(dir), None) => {
                plan(&*fs, dir, None, &mut output, |read| RepairPlan::of(&*fs, dir, read))?
            }
            (Asked::Segment(dir, base), Some(lock)) => repair_segment(&fs, dir, *base, &lock, &mut output)?,
            (Asked::Segment(dir, base), None) => {
                plan(&*fs, dir, Some(*base), &mut output, |read| RepairPlan::of_segment(&*fs, dir, *base, read))?
            }
        };
    }
    output.finish()?;
    Ok(if left == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is to be repaired.
enum Asked {
    Root(PathBuf, Vec<PathBuf>),
    Partition(PathBuf),
    Segment(PathBuf, Offset),
}

/// The directory of the segment that a file belongs to.
fn of_segment(fs: &dyn Fs, path: &Path, name: SegmentFileName) -> anyhow::Result<PathBuf> {
    let is_of_segment = name.state == SegmentFileState::Live && name.kind != SegmentFile::ProducerSnapshot;
    let dir = path.parent().filter(|_| is_of_segment).map(Path::to_owned);
    let dir = dir.filter(|dir| fs.metadata(&shown(dir, Some(name.base_offset))).is_ok());
    dir.ok_or_else(|| usage(format!("{} is no file of a segment in use", path.display())))
}

/// What a segment's file is called, or all of a partition.
fn shown(dir: &Path, segment: Option<Offset>) -> PathBuf {
    segment.map_or_else(|| dir.to_owned(), |base| dir.join(SegmentFileName::live(base, SegmentFile::Log).to_string()))
}

/// Bytes of batches that are read to look at a partition, or one segment.
fn bytes_to_read(fs: &dyn Fs, dir: &Path, segment: Option<Offset>) -> anyhow::Result<u64> {
    let files = PartitionFiles::list(fs, dir)?;
    let found = files.segments.iter().filter(|found| segment.is_none_or(|base| base == found.base));
    Ok(found.map(|found| found.log.bytes).sum())
}

/// Says what a repair would do first. Returns how much there is to do.
fn plan(
    fs: &dyn Fs,
    dir: &Path,
    segment: Option<Offset>,
    output: &mut Output,
    look: impl FnOnce(&mut dyn FnMut(u64)) -> Result<RepairPlan, RepairError>,
) -> anyhow::Result<usize> {
    let progress = Progress::new(bytes_to_read(fs, dir, segment)?, output.format());
    let plan = look(&mut |bytes| progress.add(bytes))?;
    progress.finish();
    show(output, &shown(dir, segment), &plan.actions, plan.left.is_empty(), false)?;
    Ok(show_left(output, &plan.left)? + plan.actions.len())
}

fn plan_root(fs: &dyn Fs, dir: &Path, partitions: &[PathBuf], output: &mut Output) -> anyhow::Result<usize> {
    let own = RootRepairPlan::of(fs, dir)?;
    show(output, dir, &own.actions, own.left.is_empty(), false)?;
    let mut left = show_left(output, &own.left)? + own.actions.len();
    let checkpoints = RootCheckpoints::read(fs, dir)?;
    for partition in partitions {
        locked(fs, partition, false)?;
        left += plan(fs, partition, None, output, |read| RepairPlan::in_root(fs, partition, &checkpoints, read))?;
    }
    Ok(left)
}

/// Repairs and says what was done. Returns what stays as it is, if anything was done.
fn told(
    fs: &dyn Fs,
    dir: &Path,
    segment: Option<Offset>,
    output: &mut Output,
    repair: impl FnOnce(&mut dyn FnMut(RepairEvent<'_>)) -> Result<Vec<Fault>, RepairError>,
) -> anyhow::Result<(bool, Vec<Fault>)> {
    let progress = Progress::new(bytes_to_read(fs, dir, segment)?, output.format());
    let (mut has_repaired, mut failed) = (false, None);
    let name = shown(dir, segment);
    let left = repair(&mut |event| match event {
        RepairEvent::Read(bytes) => progress.add(bytes),
        RepairEvent::Done(plan) if failed.is_none() => {
            has_repaired = true;
            failed = progress.beside(|| show(output, &name, &plan.actions, true, true)).err();
        }
        _ => {}
    })?;
    progress.finish();
    failed.map_or(Ok(()), Err)?;
    if !has_repaired {
        show(output, &name, &[], left.is_empty(), true)?;
        show_left(output, &left)?;
    }
    Ok((has_repaired, left))
}

/// Repairs a partition and verifies it. Returns what is left to do.
fn repair_partition(fs: &Arc<dyn Fs>, dir: &Path, lock: &RepairLock, output: &mut Output) -> anyhow::Result<usize> {
    let (has_repaired, left) = told(&**fs, dir, None, output, |tell| lock.repair(fs, tell))?;
    // What stays is among what is still wrong.
    if has_repaired { check(output, |tell| lock.verify(&**fs, tell)) } else { Ok(left.len()) }
}

fn repair_segment(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    base: Offset,
    lock: &RepairLock,
    output: &mut Output,
) -> anyhow::Result<usize> {
    let (has_repaired, left) = told(&**fs, dir, Some(base), output, |tell| lock.repair_segment(fs, base, tell))?;
    if has_repaired { check(output, |tell| lock.verify_segment(&**fs, base, tell)) } else { Ok(left.len()) }
}

/// Repairs the files of a data root itself, then its partitions, whose repairs go by them. Returns what is left to do.
fn repair_root(
    fs: &Arc<dyn Fs>,
    dir: &Path,
    partitions: &[PathBuf],
    lock: RepairLock,
    output: &mut Output,
) -> anyhow::Result<usize> {
    let own = RootRepairPlan::of(&**fs, dir)?;
    show(output, dir, &own.actions, own.left.is_empty(), true)?;
    let mut left = show_left(output, &own.left)?;
    if !own.is_empty() {
        own.apply(&**fs)?;
        left += check(output, |tell| lock.verify_root(&**fs, tell))?;
    }
    let mut root = RootRepair::begin(&**fs, lock)?;
    let mut repaired = || -> anyhow::Result<usize> {
        let mut left = 0;
        for partition in partitions {
            let repair = |tell: &mut dyn FnMut(RepairEvent<'_>)| root.partition(fs, partition, tell);
            let (has_repaired, stays) = told(&**fs, partition, None, output, repair)?;
            left += if has_repaired { check(output, |tell| root.verify(&**fs, partition, tell))? } else { stays.len() };
        }
        Ok(left)
    };
    let repaired = repaired();
    let written = root.finish(&**fs);
    left += repaired?;
    written?;
    Ok(left)
}

pub(crate) fn rebuild_index(arguments: &RebuildArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut asked = Vec::new();
    for path in &arguments.paths {
        match target(&*fs, path)? {
            Target::File(path, name) => asked.push((of_segment(&*fs, &path, name)?, Some(name.base_offset))),
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
