//! The files as they lie there: batches, records, indexes, snapshots.

use highwater_storage::checkpoint::read_epochs;
use highwater_storage::fs::OsFs;
use highwater_storage::index::{ActiveOffsetIndex, ActiveTimeIndex, SealedOffsetIndex, SealedTimeIndex};
use highwater_storage::{
    AbortedTransaction, BatchBuilder, BatchView, CheckedBatch, Codec, EpochHistory, HeaderScan, LeaderEpoch, Offset,
    ProduceRules, ProducerTable, Record, TimestampMs, TimestampType, batches, read_header,
};
use serde_json::{Value, json};

use crate::case::{CASES, Partition, Segment, partitions};
use crate::rows::{batch_row, control_row, records, snapshot_rows};

/// The batches up to a torn tail or to zeros.
fn whole_batches(bytes: &[u8]) -> impl Iterator<Item = BatchView<'_>> {
    batches(bytes).map_while(Result::ok)
}

#[test]
fn batches_are_what_kafka_says() {
    for partition in partitions(&CASES) {
        for segment in partition.segments() {
            let mut rows = Vec::new();
            let mut position = 0;
            let mut iterator = batches(&segment.log);
            while let Some(Ok(batch)) = iterator.next() {
                rows.push(batch_row(&batch, position));
                position = iterator.position();
            }
            assert_eq!(Value::from(rows), segment.expected["batches"], "{} at {}", partition.id, segment.base);
            assert_eq!(json!(segment.log.len() - position), segment.expected["trailing_bytes"], "{}", partition.id);
        }
    }
}

#[test]
fn headers_can_be_read_without_their_records() {
    for partition in partitions(&CASES) {
        for segment in partition.segments() {
            let views: Vec<_> = whole_batches(&segment.log).map(|batch| *batch.header()).collect();
            let limit = segment.log.len() as u64 - segment.expected["trailing_bytes"].as_u64().expect("a number");
            let file = partition.open(segment.base, "log");
            let (mut headers, mut position) = (Vec::new(), 0);
            while let HeaderScan::Batch(header) = read_header(&*file, position, limit).expect("readable") {
                position += header.total_bytes() as u64;
                headers.push(header);
            }
            assert_eq!((headers, position), (views, limit));
        }
    }
}

#[test]
fn records_and_markers_are_what_kafka_says() {
    for partition in partitions(&CASES) {
        let (mut rows, mut markers) = (Vec::new(), Vec::new());
        for segment in partition.segments() {
            // Of damaged batches Kafka lists no records.
            for batch in whole_batches(&segment.log).filter(BatchView::crc_matches) {
                if batch.is_control() {
                    markers.push(control_row(&batch));
                } else {
                    rows.extend(records(&batch));
                }
            }
        }
        assert_eq!(Value::from(rows), partition.expected["records"], "{}", partition.id);
        assert_eq!(Value::from(markers), partition.expected["control_records"], "{}", partition.id);
    }
}

#[test]
fn what_kafka_stored_passes_the_check_and_is_stored_the_same() {
    let mut checked = 0;
    for partition in partitions(&["plain-multi", "codecs", "idempotent", "transactional"]) {
        for batch in whole_batches(&partition.log()).filter(|batch| !batch.is_control()) {
            let mut sent = batch.bytes().to_vec();
            sent[..8].fill(0);
            sent[12..16].fill(0xff);
            let now = TimestampMs(1_700_000_000_000);
            let rules = ProduceRules { timestamp_after_max_ms: i64::MAX, ..ProduceRules::default() };
            let result = CheckedBatch::check(&sent, &rules, now).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(result.to_stamped_vec(batch.base_offset(), batch.leader_epoch()), batch.bytes());
            checked += 1;
        }
    }
    assert!(checked > 400, "{checked}");
}

#[test]
fn building_from_the_records_gives_kafkas_bytes() {
    let mut built = 0;
    for partition in partitions(&CASES).into_iter().filter(Partition::is_sound) {
        for batch in whole_batches(&partition.log()) {
            // Compaction leaves gaps and another base timestamp; compressors differ in their versions.
            let is_dense = batch.record_count() == batch.last_offset_delta() + 1;
            let attributes = batch.attributes();
            let is_as_produced = attributes.timestamp_type() == TimestampType::CreateTime && is_dense;
            if batch.records().is_none() || !is_as_produced || attributes.has_delete_horizon() {
                continue;
            }
            let mut builder = BatchBuilder::new(Codec::None)
                .base_offset(batch.base_offset())
                .leader_epoch(batch.leader_epoch())
                .producer(batch.producer_id(), batch.producer_epoch(), batch.base_sequence());
            if batch.is_transactional() {
                builder = builder.transactional();
            }
            if batch.is_control() {
                builder = builder.control();
            }
            for record in batch.records().expect("checked") {
                let record = record.expect("a record");
                let headers: Vec<_> = record
                    .headers()
                    .map(|header| (std::str::from_utf8(header.key).expect("UTF-8"), header.value))
                    .collect();
                let timestamp = TimestampMs(batch.base_timestamp().0 + record.timestamp_delta);
                builder.push(Record { timestamp, key: record.key, value: record.value, headers: &headers });
            }
            assert_eq!(builder.build(), batch.bytes(), "{} at {}", partition.id, batch.base_offset());
            built += 1;
        }
    }
    assert!(built > 1500, "{built}");
}

/// The entries of an index file, raw. Those of zeros are room that was allocated ahead, and what is left over at the end
/// is no entry.
fn entries<const N: usize>(bytes: &[u8]) -> Vec<&[u8; N]> {
    let mut entries: Vec<_> = bytes.as_chunks::<N>().0.iter().collect();
    while entries.last().is_some_and(|entry| **entry == [0; N]) {
        entries.pop();
    }
    entries
}

/// Whether the files of a segment are what our index types take for whole: without room allocated ahead, and not among
/// those that were damaged on purpose.
fn has_whole_index(partition: &Partition, segment: &Segment, file: &str, entry_bytes: usize) -> bool {
    let rows = segment.expected[file].as_array().map_or(0, Vec::len);
    let size = segment.expected[format!("{file}_size")].as_u64();
    size == Some((rows * entry_bytes) as u64) && partition.name != "d-badindex-0"
}

#[test]
fn offset_indexes_are_what_kafka_says() {
    let mut whole = 0;
    for partition in partitions(&CASES) {
        for segment in partition.segments() {
            let base = Offset(segment.base);
            if segment.expected["index_size"].is_null() {
                assert!(!partition.path(segment.base, "index").exists(), "{} at {base}", partition.id);
                continue;
            }
            let bytes = partition.read(segment.base, "index");
            let rows: Vec<_> = entries::<8>(&bytes)
                .iter()
                .map(|[a, b, c, d, position @ ..]| {
                    let delta = i32::from_be_bytes([*a, *b, *c, *d]);
                    json!([segment.base + i64::from(delta), i32::from_be_bytes(*position)])
                })
                .collect();
            assert_eq!(Value::from(rows), segment.expected["index"], "{} at {base}", partition.id);
            if !has_whole_index(&partition, &segment, "index", 8) {
                continue;
            }
            whole += 1;
            let data_bytes = segment.log.len() as u64;
            let active = ActiveOffsetIndex::load(base, 10 << 20, &bytes, data_bytes).expect("an index");
            let rows: Vec<_> = active.iter().map(|entry| json!([entry.offset.0, entry.position])).collect();
            assert_eq!(Value::from(rows), segment.expected["index"], "{} at {base}", partition.id);
            assert_eq!(active.encode_from(0), bytes);

            let file_bytes = bytes.len() as u64;
            let sealed = SealedOffsetIndex::open(partition.open(base.0, "index"), file_bytes, base, data_bytes);
            let sealed = sealed.expect("an index");
            sealed.verify(data_bytes).expect("a good index");
            for batch in whole_batches(&segment.log) {
                for target in [batch.base_offset(), batch.last_offset()] {
                    let entry = sealed.lookup(target).expect("readable");
                    assert_eq!(entry, active.lookup(target));
                    // From where the index points, a scan meets the batch that holds the offset.
                    let from = usize::try_from(entry.position).expect("small");
                    let first = batches(&segment.log[from..]).next().expect("a batch there").expect("a batch");
                    assert!(first.base_offset() <= target, "{} at {base}: {target}", partition.id);
                }
            }
        }
    }
    assert!(whole > 380, "{whole}");
}

#[test]
fn time_indexes_are_what_kafka_says() {
    let mut whole = 0;
    for partition in partitions(&CASES) {
        for segment in partition.segments() {
            let base = Offset(segment.base);
            if segment.expected["timeindex_size"].is_null() {
                assert!(!partition.path(segment.base, "timeindex").exists(), "{} at {base}", partition.id);
                continue;
            }
            let bytes = partition.read(segment.base, "timeindex");
            let rows: Vec<_> = entries::<12>(&bytes)
                .iter()
                .map(|[time @ .., a, b, c, d]| {
                    let delta = i32::from_be_bytes([*a, *b, *c, *d]);
                    json!([i64::from_be_bytes(*time), segment.base + i64::from(delta)])
                })
                .collect();
            assert_eq!(Value::from(rows), segment.expected["timeindex"], "{} at {base}", partition.id);
            if !has_whole_index(&partition, &segment, "timeindex", 12) {
                continue;
            }
            whole += 1;
            let active = ActiveTimeIndex::load(base, 10 << 20, &bytes).expect("an index");
            let rows: Vec<_> = active.iter().map(|entry| json!([entry.timestamp.0, entry.offset.0])).collect();
            assert_eq!(Value::from(rows), segment.expected["timeindex"], "{} at {base}", partition.id);
            assert_eq!(active.encode_from(0), bytes);

            let file_bytes = bytes.len() as u64;
            let sealed =
                SealedTimeIndex::open(partition.open(base.0, "timeindex"), file_bytes, base).expect("an index");
            sealed.verify().expect("a good index");
            for batch in whole_batches(&segment.log) {
                let entry = sealed.lookup(batch.max_timestamp()).expect("readable");
                assert_eq!(entry, active.lookup(batch.max_timestamp()));
            }
        }
    }
    assert!(whole > 380, "{whole}");
}

fn snapshots(partition: &Partition) -> Vec<(i64, Value)> {
    let Value::Object(snapshots) = &partition.expected["producer_snapshots"] else { panic!("no snapshots") };
    snapshots.iter().map(|(offset, rows)| (offset.parse().expect("an offset"), rows.clone())).collect()
}

#[test]
fn snapshots_are_what_kafka_says() {
    let mut producers = 0;
    for partition in partitions(&CASES) {
        for (offset, mut rows) in snapshots(&partition) {
            let bytes = partition.read(offset, "snapshot");
            if rows == "error: CorruptSnapshotException" {
                ProducerTable::decode_snapshot(&bytes, 1000).expect_err("a damaged snapshot");
                continue;
            }
            let table = ProducerTable::decode_snapshot(&bytes, 1000).expect("a snapshot");
            rows.as_array_mut().expect("rows").sort_by_key(|row| row[0].as_i64());
            assert_eq!(snapshot_rows(&table), rows, "{} at {offset}", partition.id);
            let again = ProducerTable::decode_snapshot(&table.encode_snapshot(), 1000);
            assert_eq!(again, Ok(table.clone()));
            producers += table.len();
        }
    }
    assert!(producers > 500, "{producers}");
}

#[test]
fn replaying_the_log_gives_the_producers_kafka_had() {
    for partition in partitions(&["idempotent", "transactional"]) {
        let log = partition.log();
        for (offset, mut rows) in snapshots(&partition) {
            let mut table = ProducerTable::default();
            for batch in batches(&log).map(|batch| batch.expect("a batch")) {
                if batch.last_offset() < Offset(offset) {
                    table.replicated(&batch);
                }
            }
            rows.as_array_mut().expect("rows").sort_by_key(|row| row[0].as_i64());
            assert_eq!(snapshot_rows(&table), rows, "{} at {offset}", partition.id);
        }
    }
}

#[test]
fn replaying_the_log_finds_the_aborted_transactions() {
    let mut left_open = 0;
    for partition in partitions(&["transactional", "transactional-v1"]) {
        let mut table = ProducerTable::default();
        let mut rows = Vec::new();
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")) {
            let aborted = table.replicated(&batch).and_then(|completed| completed.aborted());
            rows.extend(aborted.map(|aborted| {
                let AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset } = aborted;
                json!([producer_id, first_offset.0, last_offset.0, last_stable_offset.0])
            }));
        }
        assert!(!rows.is_empty() || partition.name == "__transaction_state-0", "{}", partition.id);
        assert_eq!(Value::from(rows), partition.expected["aborted_transactions"], "{}", partition.id);
        left_open += usize::from(table.first_open_transaction().is_some());
    }
    assert_eq!(left_open, 2, "one transaction in each way of counting epochs");
}

#[test]
fn epochs_are_what_kafka_says_and_what_the_batches_say() {
    let mut known = 0;
    for partition in partitions(&CASES) {
        let path = partition.dir.join("leader-epoch-checkpoint");
        let entries = read_epochs(&OsFs, &path).expect("readable");
        let row = |&(LeaderEpoch(epoch), start): &(LeaderEpoch, Offset)| json!([epoch, start.0]);
        let rows: Vec<_> = entries.iter().map(row).collect();
        assert_eq!(Value::from(rows.clone()), partition.expected["leader_epochs"], "{}", partition.id);
        known += rows.len();
        if !partition.is_sound() {
            continue;
        }
        // Kafka notes a leadership where it begins, batches or none; those that have some begin where their first one is.
        let mut history = EpochHistory::new();
        for batch in whole_batches(&partition.log()).filter(|batch| batch.leader_epoch() > LeaderEpoch::NONE) {
            history.assign(batch.leader_epoch(), batch.base_offset());
        }
        for &(epoch, start) in history.entries() {
            // The first batches of one may have been compacted away, or lie below the log start.
            let is_exact = partition.case != "compacted" && start > Offset(partition.number("log_start_offset"));
            let is_there = |known: &(LeaderEpoch, Offset)| known.0 == epoch && (known.1 == start || !is_exact);
            assert!(entries.iter().any(is_there), "{}: epoch {} from {start} on", partition.id, epoch.0);
        }
    }
    assert!(known > 80, "{known}");
}
