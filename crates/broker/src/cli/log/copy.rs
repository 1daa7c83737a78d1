//! `highwater log copy`: a copy of a stopped log, or of all logs of a data directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use highwater_storage::RecoveryReport;
use highwater_storage::inspect::{Severity, Target, Verified, VerifyEvent, verify_partition_in_root, verify_root};
use highwater_storage::repair::{copy_dir, copy_root};
use serde_json::json;

use super::output::Output;
use super::progress::Progress;
use super::text::{counted, size};
use super::verify::{checkpoints, fault_line, fault_object, log_bytes};
use super::{ResultFormat, file_system, partitions, resolved, target, usage};

/// Copy a stopped log, or a data directory with all its logs, durably. The copy is one that was closed well: it is recovered
/// as the next start would do it. Then it is verified; exits with 1 if something is wrong in it.
#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    /// A partition's directory or a data directory. Nobody may have it open; nothing is written to it.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The copy, which must not be there.
    #[arg(value_name = "DESTINATION")]
    destination: PathBuf,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &CopyArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let source = target(&*fs, &arguments.source)?;
    let destination = placed(&arguments.destination)?;
    let mut output = Output::new(arguments.format);
    // It is read once to be copied, and the copy once to be verified.
    let progress = Progress::new(log_bytes(&*fs, &source)?.saturating_mul(2), arguments.format);
    let mut read = |bytes| progress.add(bytes);
    let (path, copied) = match &source {
        Target::Partition(dir) => (dir, copy_dir(&fs, dir, &destination, &mut read)),
        Target::Root { dir, .. } => (dir, copy_root(&fs, dir, &destination, &mut read)),
        Target::File(path, _) => return Err(usage(format!("{} is one file: name its directory", path.display()))),
    };
    let copied = match copied {
        Err(error) if error.is_about_destination() => return Err(usage(error)),
        copied => copied?,
    };
    let copy = target(&*fs, &destination)?;
    let mut verified = Verified::default();
    let mut faults = Vec::new();
    let mut tell = |event| match event {
        VerifyEvent::Read(bytes) => progress.add(bytes),
        VerifyEvent::Found(fault) if fault.severity() > Severity::Note => faults.push(fault),
        _ => {}
    };
    if let Target::Root { dir, .. } = &copy {
        verified.add(verify_root(&*fs, dir, &mut tell)?);
    }
    let checkpoints = checkpoints(&*fs, &copy)?.unwrap_or_default();
    for dir in partitions(&copy) {
        verified.add(verify_partition_in_root(&*fs, &dir, &checkpoints, &mut tell)?);
    }
    progress.finish();
    let (files, bytes) = (copied.files, copied.bytes);
    output.line(&format!("{}: {files} files, {}", arguments.destination.display(), size(bytes)))?;
    let mut recovered = Vec::new();
    let mut is_whole = true;
    for (log, report) in &copied.recovered {
        let cut = cut_bytes(report);
        let what = if cut > 0 { format!("{} cut off", size(cut)) } else { "nothing cut off".to_owned() };
        output.line(&format!("  {}: was not closed well; the copy was recovered, {what}", log.display()))?;
        let mut missing = Vec::new();
        for gone in &report.missing {
            is_whole = false;
            output.line(&format!(
                "  {}: synced records are gone: offsets {} to {}",
                log.display(),
                gone.start,
                gone.end
            ))?;
            missing.push(json!({ "first_offset": gone.start.0, "end_offset": gone.end.0 }));
        }
        recovered.push(json!({ "path": log, "cut_bytes": cut, "missing": missing }));
    }
    for fault in &faults {
        output.line(&format!("  wrong in the copy: {}", fault_line(fault)))?;
        output.object(&fault_object(fault))?;
    }
    if verified.is_good() {
        let records = counted(verified.records, "record", "records");
        output.line(&format!("  verified: {records} in {}", counted(verified.batches, "batch", "batches")))?;
    }
    output.object(&json!({
        "type": "copy", "path": path, "copy": destination, "files": files, "bytes": bytes,
        "recovered": recovered, "faults": verified.faults,
    }))?;
    output.finish()?;
    Ok(if verified.is_good() && is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where a copy goes, links followed: to where it is compared with what is copied.
fn placed(destination: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(there) = resolved(destination) {
        return Ok(there);
    }
    let parent = match destination.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => destination,
    };
    let Some((parent, name)) = resolved(parent).ok().zip(destination.file_name()) else {
        return Err(usage(format!("there is no directory {} for the copy to lie in", parent.display())));
    };
    Ok(parent.join(name))
}

fn cut_bytes(report: &RecoveryReport) -> u64 {
    report.cut.as_ref().map_or(0, |cut| cut.bytes)
}
