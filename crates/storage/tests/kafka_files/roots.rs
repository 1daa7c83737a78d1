//! Whole roots, opened on copies: what the checkpoints say, and what the logs answer that the broker was asked as well.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::checkpoint::read_offsets;
use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::OsFs;
use highwater_storage::{
    Log, LogOptions, LogReader, Offset, ReadLimit, RecoveryReport, TimestampMs, TopicPartition, batches,
};
use serde_json::{Map, Value, json};

use crate::case::{CASES, Partition, Root, copy_files, roots};
use crate::rows::{RECORDS_BYTES_MAX, snapshot_rows};

/// A root opened as a broker would, and its logs in the order of the root's partitions.
pub(crate) struct Opened {
    pub(crate) copy: tempfile::TempDir,
    pub(crate) data: DataDir,
    pub(crate) logs: Vec<Log>,
    pub(crate) reports: Vec<RecoveryReport>,
}

pub(crate) fn open(root: &Root) -> Opened {
    let copy = tempfile::tempdir().expect("a directory");
    copy_files(&root.dir, copy.path());
    for partition in &root.partitions {
        copy_files(&partition.dir, &copy.path().join(&partition.name));
    }
    let node_id = node_id(&root.expected);
    let (data, report) = DataDir::open(OsFs::shared(), copy.path(), DataDirOptions::of_node(node_id))
        .unwrap_or_else(|error| panic!("{}: {error}", root.id));
    assert_eq!(report.clean, !root.expected["clean_shutdown"].is_null(), "{}", root.id);
    assert_eq!(report.warnings, [], "{}", root.id);
    let properties = &root.expected["meta_properties"];
    assert_eq!(json!(report.cluster_id), properties["cluster.id"], "{}", root.id);
    let opened = root.partitions.iter().map(|partition| open_log(&data, copy.path(), partition));
    let (logs, reports) = opened.unzip();
    Opened { copy, data, logs, reports }
}

fn node_id(root: &Value) -> i32 {
    let properties = &root["meta_properties"];
    let id = properties["node.id"].as_str().or_else(|| properties["broker.id"].as_str()).expect("a node id");
    id.parse().expect("a number")
}

fn topic_partition(partition: &Partition) -> TopicPartition {
    let topic = partition.expected["topic"].as_str().expect("a topic");
    TopicPartition::new(topic, i32::try_from(partition.number("partition")).expect("small"))
}

fn open_log(data: &DataDir, root: &Path, partition: &Partition) -> (Log, RecoveryReport) {
    let id = &partition.id;
    let topic_partition = topic_partition(partition);
    let found = data.partitions().iter().find(|found| found.topic_partition == topic_partition);
    let found = found.unwrap_or_else(|| panic!("{id}: not found"));
    assert_eq!(json!(found.topic_id.map(|id| id.to_string())), partition.expected["topic_id"], "{id}");
    assert_eq!(found.dir, root.join(&partition.name), "{id}");
    let hints = data.hints(&topic_partition);
    let options = LogOptions { segment_bytes: 4096, index_interval_bytes: 512, ..LogOptions::default() };
    let (log, report) =
        Log::open_with(Arc::new(OsFs), &found.dir, options, hints).unwrap_or_else(|error| panic!("{id}: {error}"));
    (log, report)
}

/// Offsets of records, in the ranges that `expected.json` gives: neighbours are joined.
fn ranges(offsets: &[i64]) -> Value {
    let mut ranges: Vec<[i64; 2]> = Vec::new();
    for &offset in offsets {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == offset => *last = offset,
            _ => ranges.push([offset, offset]),
        }
    }
    json!(ranges)
}

/// The offsets that a consumer gets who reads all.
fn read_uncommitted(reader: &LogReader) -> Vec<i64> {
    let (mut offsets, mut from) = (Vec::new(), reader.start());
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(3000)).expect("a read");
        for batch in batches(&fetched.bytes).map(|batch| batch.expect("a batch")).filter(|batch| !batch.is_control()) {
            let mut records = batch.read_records(RECORDS_BYTES_MAX).expect("records");
            while let Some(record) = records.next().expect("a record") {
                if record.offset >= reader.start() {
                    offsets.push(record.offset.0);
                }
            }
        }
        from = fetched.next;
    }
    offsets
}

/// The first record or marker from an offset on with this time or a later one: offset and time.
fn first_from(partition: &Partition, timestamp: i64, start: i64) -> Option<(i64, i64)> {
    let rows = ["records", "control_records"].map(|field| partition.expected[field].as_array().expect("rows"));
    let places = rows.into_iter().flatten().map(|row| [0, 1].map(|at| row[at].as_i64().expect("a number")));
    places.filter(|[offset, time]| *offset >= start && *time >= timestamp).map(|[offset, time]| (offset, time)).min()
}

#[test]
fn checkpoints_are_what_kafka_says() {
    let mut entries = 0;
    for root in CASES.iter().flat_map(|case| roots(case)) {
        for file in [
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "log-start-offset-checkpoint",
            "cleaner-offset-checkpoint",
        ] {
            let read = read_offsets(&OsFs, &root.dir.join(file)).expect("readable");
            let rows: Map<_, _> = read
                .iter()
                .map(|(partition, offset)| (format!("{}-{}", partition.topic, partition.partition), json!(offset.0)))
                .collect();
            entries += rows.len();
            let expected = &root.expected[file.replace('-', "_")];
            let expected = if expected.is_null() { json!({}) } else { expected.clone() };
            assert_eq!(Value::Object(rows), expected, "{}: {file}", root.id);
        }
    }
    assert!(entries > 200, "{entries}");
}

/// All that was stopped cleanly and not damaged: ends, epochs, producers, and the answers to what a consumer asks.
#[test]
fn logs_answer_as_the_broker_did() {
    let mut answers = 0;
    for root in CASES.iter().flat_map(|case| roots(case)) {
        if !root.partitions.iter().all(Partition::is_sound) || root.expected["clean_shutdown"].is_null() {
            continue;
        }
        let opened = open(&root);
        for (partition, log) in root.partitions.iter().zip(&opened.logs) {
            let (id, reader) = (&partition.id, log.reader());
            assert_eq!(log.start().0, partition.number("log_start_offset"), "{id}");
            assert_eq!(log.end().0, partition.number("log_end_offset"), "{id}");
            let epochs: Vec<_> = log.epochs().iter().map(|(epoch, start)| json!([epoch.0, start.0])).collect();
            // An epoch without a record is forgotten when the log is loaded, in Kafka too.
            let mut expected = partition.expected["leader_epochs"].as_array().expect("epochs").clone();
            expected.retain(|row| row[1].as_i64() < Some(log.end().0));
            assert_eq!(epochs, expected, "{id}");
            let high_watermark = opened.data.high_watermark(&topic_partition(partition)).expect("a high watermark");
            assert_eq!(high_watermark.0, partition.number("high_watermark_checkpoint"), "{id}");
            let hints = opened.data.hints(&topic_partition(partition));
            let recovery_point = hints.recovery_point.map(|offset| offset.0);
            assert_eq!(json!(recovery_point), partition.expected["recovery_point"], "{id}");

            let broker = &partition.expected["broker"];
            if broker.is_null() {
                continue;
            }
            let rows = |field: &str| broker[field].as_array().cloned().unwrap_or_default();
            assert_eq!(json!(read_uncommitted(&reader).len()), broker["read_uncommitted"]["count"], "{id}");
            assert_eq!(ranges(&read_uncommitted(&reader)), broker["read_uncommitted"]["ranges"], "{id}");
            for row in rows("offset_for_timestamp") {
                let asked = TimestampMs(row[0].as_i64().expect("a time"));
                let found = reader.offset_for_timestamp(asked, high_watermark).expect("an answer");
                let found = found.map(|found| (found.offset.0, found.timestamp.0));
                assert_eq!(found, first_from(partition, asked.0, log.start().0), "{id}: first from {asked}");
                // Kafka looks into the first segment that claims such a time and no further. The record with that time
                // may have been compacted away, or lie below the log start; and Kafka 2.4 took a file's age for the time
                // of messages of magic 0.
                let misleading = ["compacted", "deleted-prefix-pending"].contains(&partition.case);
                if row[2] != -1 || !(misleading || partition.name == "mixed-0") {
                    let (offset, timestamp) = found.unwrap_or((-1, -1));
                    assert_eq!(json!([asked.0, timestamp, offset]), row, "{id}");
                }
                answers += 1;
            }
            if let Some([timestamp, offset]) = broker["max_timestamp"].as_array().map(Vec::as_slice) {
                let found = reader.max_timestamp(high_watermark).expect("an answer");
                let found = found.map_or((-1, -1), |found| (found.timestamp.0, found.offset.0));
                assert_eq!(json!(found), json!([timestamp, offset]), "{id}");
                answers += 1;
            }
            let stable = Offset(broker["last_stable_offset"].as_i64().expect("an offset"));
            for row in rows("fetches") {
                let number = |at: usize| row[at].as_i64().expect("a number");
                let limit = ReadLimit::bytes(usize::try_from(number(1)).expect("small")).below(stable);
                let fetched = reader.read(Offset(number(0)), limit).expect("a read");
                let mut inside = batches(&fetched.bytes).map(|batch| batch.expect("a batch"));
                let first = inside.next().map(|batch| batch.first_offset(RECORDS_BYTES_MAX).expect("messages").0);
                let last = first.map(|_| (fetched.next + -1).0);
                assert_eq!((first.unwrap_or(-1), last.unwrap_or(-1)), (number(3), number(4)), "{id}: {row}");
                answers += 1;
            }
        }
    }
    assert!(answers > 500, "{answers}");
}

/// The producers a running broker knew are those in the snapshot that the log is opened with.
#[test]
fn producers_are_those_the_broker_knew() {
    let mut known = 0;
    for root in CASES.iter().flat_map(|case| roots(case)) {
        // In the reopened one Kafka had forgotten them all, by the age of their records; here that is housekeeping's.
        let is_told = |partition: &Partition| partition.is_sound() && partition.case != "idempotent-reopened";
        if !root.partitions.iter().all(is_told) || root.expected["clean_shutdown"].is_null() {
            continue;
        }
        let opened = open(&root);
        for (partition, log) in root.partitions.iter().zip(&opened.logs) {
            let Some(active) = partition.expected["broker"]["active_producers"].as_array() else { continue };
            let mut active = active.clone();
            active.sort_by_key(|row| row[0].as_i64());
            let Value::Array(rows) = snapshot_rows(log.producers()) else { panic!("rows") };
            let rows: Vec<_> = rows.iter().map(|row| json!([row[0], row[1], row[2], row[5], row[6], row[7]])).collect();
            assert_eq!(json!(rows), json!(active), "{}", partition.id);
            known += rows.len();
        }
    }
    assert!(known > 20, "{known}");
}
