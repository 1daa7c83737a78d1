//! `highwater log diff`: where two replicas part.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use highwater_storage::BatchHeader;
use highwater_storage::inspect::{Comparison, Parting, PartitionFiles, Side, Target};
use serde_json::{Value, json};

use super::output::Output;
use super::progress::Progress;
use super::{ResultFormat, file_system, target};

/// Compare two replicas of a partition. Exits with 0 if they are the same as far as both go, with 1 if they part.
#[derive(Debug, Args)]
pub(crate) struct DiffArguments {
    /// One replica's directory.
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
    let partition = |path: &Path| match target(&*fs, path)? {
        Target::Partition(dir) => Ok(dir),
        _ => bail!("{} is not a partition's directory", path.display()),
    };
    let (first, second) = (partition(&arguments.first)?, partition(&arguments.second)?);
    let bytes = PartitionFiles::list(&*fs, &first)?.log_bytes() + PartitionFiles::list(&*fs, &second)?.log_bytes();
    let progress = Progress::new(bytes, arguments.format);
    let found = Comparison::of(&*fs, &first, &second, &mut |bytes| progress.add(bytes))?;
    progress.finish();
    let mut output = Output::new(arguments.format);
    for line in lines(&found) {
        output.line(&line)?;
    }
    output.object(&json!({
        "type": "diff",
        "a": side_object(&first, &found.first),
        "b": side_object(&second, &found.second),
        "from": found.from.0,
        "same_until": found.same_until.0,
        "last_epoch": found.last_epoch.0,
        "parting": found.parting.as_ref().map(code),
    }))?;
    output.finish()?;
    Ok(if found.is_consistent() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
