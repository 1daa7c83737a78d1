//! `highwater log info`: what directories tell at a glance.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use highwater_storage::fs::Fs;
use highwater_storage::inspect::{
    FileFacts, PartitionFiles, PartitionSummary, RootCheckpoints, RootSummary, SegmentSummary, Stop, Target, Writer,
};
use highwater_storage::lock::Holder;
use highwater_storage::names::{SegmentFile, SegmentFileName};
use highwater_storage::{Offset, TimestampMs};
use serde_json::{Value, json};

use super::output::Output;
use super::text::{aligned, counted, size};
use super::{ResultFormat, file_system, target, time};

/// Show segments, sizes, offsets, epochs and how a log was closed.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// Partitions' directories, data directories or files of segments.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show the segments of each partition of a data directory, too.
    #[arg(long)]
    segments: bool,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &InfoArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let mut output = Output::new(arguments.format);
    for path in &arguments.paths {
        match target(&*fs, path)? {
            Target::Root { dir, partitions } => {
                let root = RootSummary::of(&*fs, &dir)?;
                output.object(&root_object(&root))?;
                for line in root_lines(&root) {
                    output.line(&line)?;
                }
                let checkpoints = RootCheckpoints::read(&*fs, &dir)?;
                let mut summaries = Vec::new();
                for partition in &partitions {
                    let summary = PartitionSummary::in_root(&*fs, partition, &checkpoints)?;
                    output.object(&partition_object(&summary))?;
                    summaries.push(summary);
                }
                for line in aligned(&overview(&summaries)) {
                    output.line(&line)?;
                }
                for summary in summaries.iter().filter(|_| arguments.segments) {
                    output.line("")?;
                    details(&mut output, summary)?;
                }
            }
            Target::Partition(dir) => {
                let summary = PartitionSummary::of(&*fs, &dir)?;
                output.object(&partition_object(&summary))?;
                details(&mut output, &summary)?;
            }
            Target::File(path, name) => file(&*fs, &mut output, &path, name)?,
        }
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}

/// One file: of a segment, or a snapshot of its producers.
fn file(fs: &dyn Fs, output: &mut Output, path: &Path, name: SegmentFileName) -> anyhow::Result<()> {
    if name.kind == SegmentFile::ProducerSnapshot {
        let (bytes, producers) = fs.metadata(path).map(|metadata| (metadata.len, producers(metadata.len)))?;
        let covered = name.base_offset;
        output.line(&format!("{}: {producers} producers, below offset {covered}", path.display()))?;
        output.object(&json!({
            "type": "snapshot", "path": path, "offset": covered.0, "bytes": bytes, "producers": producers,
        }))?;
        return Ok(());
    }
    let segment = SegmentSummary::of_file(fs, path, name)?;
    let snapshots = path.parent().map(|dir| PartitionFiles::list(fs, dir)).transpose()?;
    let snapshots = snapshots.map(|files| files.snapshots).unwrap_or_default();
    let mut object = segment_object(&segment);
    if let Some(fields) = object.as_object_mut() {
        fields.insert("type".to_owned(), "segment".into());
        fields.insert("path".to_owned(), json!(segment.files.log.path));
    }
    output.object(&object)?;
    output.line(&segment.files.log.path.display().to_string())?;
    for line in aligned(&[SEGMENT_TITLES.map(str::to_owned).to_vec(), segment_row(&segment, &snapshots)]) {
        output.line(&line)?;
    }
    Ok(())
}

/// How many producers a snapshot of this length holds.
fn producers(bytes: u64) -> u64 {
    bytes.saturating_sub(10) / 46
}

fn root_lines(root: &RootSummary) -> Vec<String> {
    let mut lines = vec![root.dir.display().to_string()];
    let mut fact = |name: &str, value: String| lines.push(format!("  {name:<14} {value}"));
    if let Some(meta) = &root.meta {
        let node = meta.node_id.map_or_else(|| "-".to_owned(), |id| id.to_string());
        fact("broker", format!("{node} of cluster {}", meta.cluster_id.as_deref().unwrap_or("-")));
    }
    let stop = match (root.clean, &root.in_use_by) {
        (_, Some(holder)) => format!("in use by {holder}"),
        (true, None) => "clean".to_owned(),
        (false, None) => "not clean: the next start recovers the logs".to_owned(),
    };
    fact("last stop", stop);
    for dir in &root.set_aside {
        fact("set aside", file_name(dir));
    }
    lines
}

fn overview(summaries: &[PartitionSummary]) -> Vec<Vec<String>> {
    if summaries.is_empty() {
        return Vec::new();
    }
    let titles =
        ["PARTITION", "SEGMENTS", "BYTES", "START", "END", "HW", "EPOCH", "LARGEST TIMESTAMP", "STOP", "WRITTEN BY"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for summary in summaries {
        rows.push(vec![
            file_name(&summary.files.dir),
            summary.segments.len().to_string(),
            summary.files.log_bytes().to_string(),
            summary.log_start.to_string(),
            summary.end.to_string(),
            or_dash(summary.high_watermark),
            summary.epochs.last().map_or_else(|| "-".to_owned(), |(epoch, _)| epoch.to_string()),
            time::format(largest_timestamp(summary)),
            stop_name(summary).to_owned(),
            writer_name(summary.writer).to_owned(),
        ]);
    }
    rows
}

fn details(output: &mut Output, summary: &PartitionSummary) -> anyhow::Result<()> {
    let files = &summary.files;
    output.line(&format!("{}  ({})", file_name(&files.dir), files.dir.display()))?;
    let mut facts: Vec<(&str, String)> = Vec::new();
    if let Some(topic_id) = summary.topic_id {
        facts.push(("topic id", topic_id.to_string()));
    }
    facts.push(("written by", writer_name(summary.writer).to_owned()));
    facts.push((
        "last stop",
        match &summary.in_use_by {
            Some(holder) => format!("in use by {holder}"),
            None => stop_name(summary).to_owned(),
        },
    ));
    let mut offsets = format!("{} to {}", summary.log_start, summary.end);
    for (name, offset) in [("high watermark", summary.high_watermark), ("recovery point", summary.recovery_point)] {
        if let Some(offset) = offset {
            offsets.push_str(&format!(", {name} {offset}"));
        }
    }
    facts.push(("offsets", offsets));
    facts.push((
        "leader epochs",
        match summary.epochs.as_slice() {
            [] => "none known".to_owned(),
            epochs => {
                epochs.iter().map(|(epoch, start)| format!("{epoch} from {start}")).collect::<Vec<_>>().join(", ")
            }
        },
    ));
    let segments = counted(summary.segments.len() as u64, "segment", "segments");
    facts.push(("size", format!("{} in {segments}", size(files.log_bytes()))));
    let names = |files: &[FileFacts]| files.iter().map(|facts| file_name(&facts.path)).collect::<Vec<_>>().join(", ");
    for (name, listed) in
        [("leftovers", &files.leftovers), ("without segment", &files.orphans), ("set aside", &files.set_aside)]
    {
        if !listed.is_empty() {
            facts.push((name, names(listed)));
        }
    }
    if !files.unknown.is_empty() {
        facts.push(("not a log's", files.unknown.join(", ")));
    }
    for (name, value) in facts {
        output.line(&format!("  {name:<15} {value}"))?;
    }
    let mut rows = vec![SEGMENT_TITLES.map(str::to_owned).to_vec()];
    rows.extend(summary.segments.iter().map(|segment| segment_row(segment, &files.snapshots)));
    for line in aligned(&rows) {
        output.line(&line)?;
    }
    Ok(())
}

const SEGMENT_TITLES: [&str; 9] =
    ["SEGMENT", "END", "BYTES", "FIRST TIMESTAMP", "LARGEST TIMESTAMP", "INDEX", "TIMEINDEX", "TXNINDEX", "SNAPSHOT"];

fn segment_row(segment: &SegmentSummary, snapshots: &[(Offset, FileFacts)]) -> Vec<String> {
    let entries = |facts: &Option<FileFacts>, bytes: u64| facts.as_ref().map(|facts| facts.bytes / bytes);
    let snapshot = snapshots.iter().find(|(offset, _)| *offset == segment.files.base);
    vec![
        segment.files.base.to_string(),
        segment.end.to_string(),
        segment.files.log.bytes.to_string(),
        time::format(first_timestamp(segment)),
        time::format(segment.largest_timestamp),
        or_dash(entries(&segment.files.offset_index, 8)),
        or_dash(entries(&segment.files.time_index, 12)),
        or_dash(entries(&segment.files.transaction_index, 34)),
        or_dash(snapshot.map(|(_, facts)| producers(facts.bytes))),
    ]
}

fn largest_timestamp(summary: &PartitionSummary) -> TimestampMs {
    summary.segments.iter().map(|segment| segment.largest_timestamp).max().unwrap_or(TimestampMs::NONE)
}

fn writer_name(writer: Writer) -> &'static str {
    match writer {
        Writer::Highwater => "Highwater",
        Writer::Kafka => "Apache Kafka",
        Writer::KafkaAfterHighwater => "Apache Kafka after Highwater",
        _ => "another program",
    }
}

fn stop_name(summary: &PartitionSummary) -> &'static str {
    match summary.stop {
        _ if summary.in_use_by.is_some() => "in use",
        Stop::Clean => "clean",
        Stop::Unclean => "not clean",
        _ => "unknown",
    }
}

fn or_dash(value: Option<impl std::fmt::Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn holder_object(holder: Option<&Holder>) -> Value {
    holder.map_or(Value::Null, |holder| json!({ "pid": holder.pid, "program": holder.program }))
}

fn root_object(root: &RootSummary) -> Value {
    let meta = root.meta.as_ref();
    json!({
        "type": "root",
        "path": root.dir,
        "node_id": meta.and_then(|meta| meta.node_id),
        "cluster_id": meta.and_then(|meta| meta.cluster_id.clone()),
        "clean": root.clean,
        "broker_epoch": root.broker_epoch,
        "set_aside": root.set_aside,
        "in_use_by": holder_object(root.in_use_by.as_ref()),
    })
}

fn partition_object(summary: &PartitionSummary) -> Value {
    let offset = |offset: Option<Offset>| offset.map(|offset| offset.0);
    let files = &summary.files;
    let names = |files: &[FileFacts]| files.iter().map(|facts| file_name(&facts.path)).collect::<Vec<_>>();
    let segments = summary.segments.iter().map(segment_object);
    json!({
        "type": "partition",
        "path": files.dir,
        "topic": summary.topic_partition.as_ref().map(|name| name.topic.to_string()),
        "partition": summary.topic_partition.as_ref().map(|name| name.partition),
        "topic_id": summary.topic_id.map(|id| id.to_string()),
        "written_by": match summary.writer {
            Writer::Highwater => "highwater",
            Writer::Kafka => "kafka",
            Writer::KafkaAfterHighwater => "kafka-after-highwater",
            _ => "other",
        },
        "stop": match summary.stop {
            Stop::Clean => "clean",
            Stop::Unclean => "unclean",
            _ => "unknown",
        },
        "in_use_by": holder_object(summary.in_use_by.as_ref()),
        "log_start_offset": summary.log_start.0,
        "log_end_offset": summary.end.0,
        "high_watermark": offset(summary.high_watermark),
        "recovery_point": offset(summary.recovery_point),
        "leader_epochs": summary.epochs.iter().map(|(epoch, start)| json!([epoch.0, start.0])).collect::<Vec<_>>(),
        "bytes": files.log_bytes(),
        "segments": segments.collect::<Vec<_>>(),
        "snapshots": files.snapshots.iter().map(|(offset, _)| offset.0).collect::<Vec<_>>(),
        "leftovers": names(&files.leftovers),
        "orphans": names(&files.orphans),
        "set_aside": names(&files.set_aside),
        "unknown": files.unknown,
    })
}

fn segment_object(segment: &SegmentSummary) -> Value {
    let bytes = |facts: &Option<FileFacts>| facts.as_ref().map(|facts| facts.bytes);
    json!({
        "base_offset": segment.files.base.0,
        "end_offset": segment.end.0,
        "bytes": segment.files.log.bytes,
        "first_timestamp": first_timestamp(segment).0,
        "largest_timestamp": segment.largest_timestamp.0,
        "index_bytes": bytes(&segment.files.offset_index),
        "timeindex_bytes": bytes(&segment.files.time_index),
        "txnindex_bytes": bytes(&segment.files.transaction_index),
    })
}

/// The first batch's base timestamp, unless that field holds a delete horizon.
fn first_timestamp(segment: &SegmentSummary) -> TimestampMs {
    let first = segment.first.filter(|first| !first.attributes().has_delete_horizon());
    first.map_or(TimestampMs::NONE, |first| first.base_timestamp())
}
