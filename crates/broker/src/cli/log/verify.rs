//! `highwater log verify`: is everything as it should be?

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{
    Fault, InspectError, PartitionFiles, RootCheckpoints, Severity, Target, Verified, VerifyEvent, in_use_by,
    verify_file, verify_partition, verify_partition_in_root, verify_root,
};
use highwater_storage::io::IoError;
use highwater_storage::names::{SegmentFile, SegmentFileName};
use serde_json::{Value, json};

use super::output::Output;
use super::progress::Progress;
use super::text::{counted, size};
use super::{ResultFormat, file_system, partitions, target};

/// Check every batch, record, index entry, epoch, snapshot and checkpoint. Exits with 0 if all is good, with 1 if not.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Data directories, partitions' directories, or files of segments.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show what is no fault but worth knowing, too.
    #[arg(long)]
    notes: bool,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &VerifyArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut output = Output::new(arguments.format);
    let mut targets = Vec::new();
    let mut bytes = 0;
    for path in &arguments.paths {
        let target = target(&*fs, path)?;
        bytes += log_bytes(&*fs, &target)?;
        targets.push(target);
    }
    let progress = Progress::new(bytes, arguments.format);
    let mut all = Verified::default();
    let mut failed = None;
    let mut tell = |event| match event {
        VerifyEvent::Read(bytes) => progress.add(bytes),
        VerifyEvent::Found(fault) if failed.is_none() => {
            failed = progress.beside(|| show(&mut output, &fault, arguments.notes)).err();
        }
        _ => {}
    };
    let mut held = Vec::new();
    for target in &targets {
        if let Target::Root { dir, .. } | Target::Partition(dir) = target
            && let Some(holder) = in_use_by(&*fs, dir)?
        {
            held.push(format!("{} is in use by {holder}: what is being written is not judged", dir.display()));
        }
        match target {
            Target::Root { dir, .. } => all.add(verify_root(&*fs, dir, &mut tell)?),
            Target::File(path, name) => all.add(verify_file(&*fs, path, *name, &mut tell)?),
            Target::Partition(_) => {}
        }
        let checkpoints = checkpoints(&*fs, target)?;
        for dir in partitions(target) {
            let verified = match &checkpoints {
                Some(checkpoints) => verify_partition_in_root(&*fs, &dir, checkpoints, &mut tell),
                None => verify_partition(&*fs, &dir, &mut tell),
            };
            match verified {
                Ok(verified) => all.add(verified),
                // A broker that has the root open may have deleted the partition meanwhile.
                Err(InspectError::Io(error)) if error.kind() == std::io::ErrorKind::NotFound && !held.is_empty() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    if let Some(error) = failed {
        return Err(error.into());
    }
    let speed = progress.finish();
    for line in &held {
        output.line(line)?;
    }
    let Verified { segments, batches, records, bytes, faults, notes, .. } = all;
    let verdict = match (faults, notes) {
        (0, 0) => "all good".to_owned(),
        (0, notes) => format!("all good ({})", counted(notes, "note", "notes")),
        (faults, _) => counted(faults, "fault", "faults"),
    };
    let speed = speed.map(|speed| format!(", {speed}")).unwrap_or_default();
    let read = format!(
        "{} in {}, {}, {}{speed}",
        counted(records, "record", "records"),
        counted(batches, "batch", "batches"),
        counted(segments, "segment", "segments"),
        size(bytes)
    );
    output.line(&format!("{verdict}: {read}"))?;
    output.object(&json!({
        "type": "verified",
        "good": all.is_good(),
        "faults": faults,
        "notes": notes,
        "segments": segments,
        "batches": batches,
        "records": records,
        "bytes": bytes,
        "in_use": !held.is_empty(),
    }))?;
    output.finish()?;
    Ok(if all.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a data directory says of its partitions, read once for all of them.
pub(crate) fn checkpoints(fs: &dyn Fs, target: &Target) -> Result<Option<RootCheckpoints>, IoError> {
    match target {
        Target::Root { dir, .. } => Ok(Some(RootCheckpoints::read(fs, dir)?)),
        Target::Partition(_) | Target::File(..) => Ok(None),
    }
}

/// How many bytes of data files will be read.
pub(crate) fn log_bytes(fs: &dyn Fs, target: &Target) -> anyhow::Result<u64> {
    if let Target::File(path, name) = target {
        let log = SegmentFileName { kind: SegmentFile::Log, ..*name };
        return Ok(match name.kind {
            SegmentFile::ProducerSnapshot => 0,
            SegmentFile::Log => fs.metadata(path)?.len,
            // It is read beside its segment.
            _ => fs.metadata(&path.with_file_name(log.to_string())).map_or(0, |metadata| metadata.len),
        });
    }
    let mut bytes = 0;
    for dir in partitions(target) {
        bytes += PartitionFiles::list(fs, &dir)?.log_bytes();
    }
    Ok(bytes)
}

fn show(output: &mut Output, fault: &Fault, notes: bool) -> std::io::Result<()> {
    output.object(&fault_object(fault))?;
    if fault.severity() == Severity::Note {
        return if notes { output.line(&fault_line(fault)) } else { Ok(()) };
    }
    output.line(&fault_line(fault))?;
    output.line(&format!("    Highwater {}", fault.highwater()))?;
    output.line(&format!("    Kafka {}", fault.kafka()))
}

pub(crate) fn fault_line(fault: &Fault) -> String {
    let mut line = format!("{} {}: {}", fault.severity(), fault.kind.code(), fault.file.display());
    if let Some(position) = fault.position {
        line.push_str(&format!(", byte {position}"));
    }
    line.push_str(&format!(": {}", fault.what));
    if let Some(offsets) = &fault.offsets {
        line.push_str(&format!(" (offsets {} to {})", offsets.start, offsets.end.0.saturating_sub(1)));
    }
    line
}

pub(crate) fn fault_object(fault: &Fault) -> Value {
    json!({
        "type": "fault",
        "severity": fault.severity().to_string(),
        "code": fault.kind.code(),
        "file": fault.file,
        "position": fault.position,
        "bytes": fault.bytes,
        "first_offset": fault.offsets.as_ref().map(|offsets| offsets.start.0),
        "end_offset": fault.offsets.as_ref().map(|offsets| offsets.end.0),
        "what": fault.what,
        "synced": fault.is_synced,
        "correction": fault.correction.map(|correction| {
            json!({ "field": correction.field.to_string(), "was": correction.was, "is": correction.is })
        }),
        "highwater": fault.highwater(),
        "kafka": fault.kafka(),
    })
}
