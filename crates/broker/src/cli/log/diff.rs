//! `highwater log diff`: where two replicas part.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use highwater_storage::BatchHeader;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{Comparison, Parting, PartitionFiles, Side, Target};
use serde_json::{Value, json};

use super::info::file_name;
use super::output::Output;
use super::progress::Progress;
use super::text::counted;
use super::{ResultFormat, file_system, partitions, target, usage};

/// Compare two replicas of a partition, or those of all partitions that two data directories share. Exits with 0 if they are
/// the same as far as both go, with 1 if any part.
#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// One replica's directory, or a data directory.
    #[arg(value_name = "A")]
    first: PathBuf,
    /// The other's.
    #[arg(value_name = "B")]
    second: PathBuf,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &DiffArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut output = Output::new(arguments.format);
    let (first, second) = (target(&*fs, &arguments.first)?, target(&*fs, &arguments.second)?);
    let is_consistent = match (&first, &second) {
        (Target::Partition(first), Target::Partition(second)) => {
            let progress = Progress::new(bytes_of(&*fs, first)? + bytes_of(&*fs, second)?, arguments.format);
            let found = Comparison::of(&*fs, first, second, &mut |bytes| progress.add(bytes))?;
            progress.finish();
            show(&mut output, first, second, &found, "")?;
            found.is_consistent()
        }
        (Target::Root { .. }, Target::Root { .. }) => roots(&*fs, &mut output, &first, &second, arguments.format)?,
        (Target::File(path, _), _) | (_, Target::File(path, _)) => {
            return Err(usage(format!("{} is one file: name its directory", path.display())));
        }
        _ => return Err(usage("one is a data directory and one a partition's directory: name two of a kind")),
    };
    output.finish()?;
    Ok(if is_consistent { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares the partitions of two data directories, by name. One that only one of them has is told and parts nothing: not
/// each broker has a replica of each partition.
fn roots(
    fs: &dyn Fs,
    output: &mut Output,
    first: &Target,
    second: &Target,
    format: ResultFormat,
) -> anyhow::Result<bool> {
    let by_name = |target: &Target| -> BTreeMap<String, PathBuf> {
        partitions(target).into_iter().map(|dir| (file_name(&dir), dir)).collect()
    };
    let (here, there) = (by_name(first), by_name(second));
    let only = |these: &BTreeMap<String, PathBuf>, those: &BTreeMap<String, PathBuf>| -> Vec<String> {
        these.keys().filter(|name| !those.contains_key(*name)).cloned().collect()
    };
    let (only_in_first, only_in_second) = (only(&here, &there), only(&there, &here));
    let mut bytes = 0;
    let shared: Vec<_> = here.iter().filter_map(|(name, dir)| Some((name, dir, there.get(name)?))).collect();
    for (_, here, there) in &shared {
        bytes += bytes_of(fs, here)? + bytes_of(fs, there)?;
    }
    let progress = Progress::new(bytes, format);
    let mut parted = 0;
    for (name, here, there) in &shared {
        let found = Comparison::of(fs, here, there, &mut |bytes| progress.add(bytes))?;
        parted += u64::from(!found.is_consistent());
        progress.beside(|| -> anyhow::Result<()> {
            output.line(&format!("{name}:"))?;
            show(output, here, there, &found, "  ")
        })?;
    }
    progress.finish();
    for (side, names) in [("A", &only_in_first), ("B", &only_in_second)] {
        for name in names {
            output.line(&format!("{name}: only in {side}"))?;
        }
    }
    let same = shared.len() as u64 - parted;
    output.line(&format!("{} the same as far as both go, {parted} part", counted(same, "partition", "partitions")))?;
    output.object(&json!({
        "type": "diff-root", "same": same, "parted": parted,
        "only_in_a": only_in_first, "only_in_b": only_in_second,
    }))?;
    Ok(parted == 0)
}

fn bytes_of(fs: &dyn Fs, dir: &Path) -> anyhow::Result<u64> {
    Ok(PartitionFiles::list(fs, dir)?.log_bytes())
}

fn show(output: &mut Output, first: &Path, second: &Path, found: &Comparison, indent: &str) -> anyhow::Result<()> {
    for line in lines(found) {
        output.line(&format!("{indent}{line}"))?;
    }
    output.object(&json!({
        "type": "diff",
        "a": side_object(first, &found.first),
        "b": side_object(second, &found.second),
        "from": found.from.0,
        "same_until": found.same_until.0,
        "last_epoch": found.last_epoch.0,
        "parting": found.parting.as_ref().map(code),
    }))?;
    Ok(())
}

fn code(parting: &Parting) -> &'static str {
    match parting {
        Parting::Content => "content",
        Parting::Epoch => "epoch",
        Parting::Boundaries => "boundaries",
        Parting::DamageInFirst => "damage-in-a",
        Parting::DamageInSecond => "damage-in-b",
        _ => "other",
    }
}

fn lines(found: &Comparison) -> Vec<String> {
    let Comparison { from, same_until, last_epoch, first, second, .. } = found;
    let mut lines = Vec::new();
    if first.start != second.start {
        lines.push(format!("A begins at offset {}, B at {}", first.start, second.start));
    }
    if from < same_until {
        lines.push(format!("the same from offset {from} to {}, epoch {last_epoch}", same_until.0 - 1));
    }
    for (name, only) in [("A", first.only_here), ("B", second.only_here)] {
        if only > 0 {
            lines.push(format!("{only} batches are only in {name}: the other was compacted"));
        }
    }
    let Some(parting) = &found.parting else {
        lines.push(match first.end.cmp(&second.end) {
            std::cmp::Ordering::Equal => format!("both end at offset {}", first.end),
            std::cmp::Ordering::Less => format!("A ends at offset {}, B goes on to {}", first.end, second.end),
            std::cmp::Ordering::Greater => format!("B ends at offset {}, A goes on to {}", second.end, first.end),
        });
        return lines;
    };
    lines.push(match parting {
        Parting::Content => format!("they part at offset {same_until}: other records"),
        Parting::Epoch => format!("they part at offset {same_until}: the same records, from other leaders"),
        Parting::Boundaries => format!("they part at offset {same_until}: other batches"),
        Parting::DamageInFirst => format!("A is damaged at offset {same_until}"),
        Parting::DamageInSecond => format!("B is damaged at offset {same_until}"),
        other => format!("they part at offset {same_until}: {other:?}"),
    });
    for (name, side) in [("A", first), ("B", second)] {
        if let Some(batch) = &side.batch {
            lines.push(format!(
                "  {name}: offsets {} to {} in epoch {}, {} records, {} bytes, crc {:08x}; ends at {}",
                batch.base_offset(),
                batch.last_offset(),
                batch.leader_epoch(),
                batch.record_count(),
                batch.total_bytes(),
                batch.crc(),
                side.end,
            ));
        }
    }
    lines
}

fn side_object(path: &Path, side: &Side) -> Value {
    let batch = side.batch.map(|batch: BatchHeader| {
        json!({
            "base_offset": batch.base_offset().0,
            "last_offset": batch.last_offset().0,
            "leader_epoch": batch.leader_epoch().0,
            "count": batch.record_count(),
            "bytes": batch.total_bytes(),
            "crc": batch.crc(),
        })
    });
    json!({
        "path": path,
        "log_start_offset": side.start.0,
        "log_end_offset": side.end.0,
        "only_here": side.only_here,
        "batch": batch,
    })
}
