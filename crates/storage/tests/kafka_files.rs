//! Files that real Kafka brokers wrote, against what Kafka's own classes read in them (`tests/data/README.md`).

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use highwater_storage::compression::decompress;
use highwater_storage::fs::{File, Fs, OpenMode, OsFs};
use highwater_storage::index::{ActiveOffsetIndex, ActiveTimeIndex, SealedOffsetIndex, SealedTimeIndex};
use highwater_storage::{
    BatchBuilder, BatchView, CheckedBatch, Codec, CompletedTransaction, HeaderScan, LeaderEpoch, Log, LogOptions,
    LogReader, Offset, OpenHints, ProduceRules, ProducerTable, ReadLimit, Record, RecordView, Records, TimestampMs,
    TimestampType, batches, read_header,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

struct Partition {
    name: String,
    dir: PathBuf,
    expected: Value,
}

struct Segment {
    base: i64,
    log: Vec<u8>,
    expected: Value,
}

impl Partition {
    fn path(&self, base: i64, extension: &str) -> PathBuf {
        self.dir.join(format!("{base:020}.{extension}"))
    }

    fn open(&self, base: i64, extension: &str) -> Arc<dyn File> {
        OsFs.open(&self.path(base, extension), OpenMode::Read).expect("the file")
    }

    fn read(&self, base: i64, extension: &str) -> Vec<u8> {
        let path = self.path(base, extension);
        fs::read(&path).unwrap_or_else(|error| panic!("reading {}: {error}", path.display()))
    }

    fn segments(&self) -> Vec<Segment> {
        let rows = self.expected["segments"].as_array().expect("segments");
        let segment = |row: &Value| {
            let base = row["base_offset"].as_i64().expect("a base offset");
            Segment { base, log: self.read(base, "log"), expected: row.clone() }
        };
        rows.iter().map(segment).collect()
    }

    fn log(&self) -> Vec<u8> {
        self.segments().into_iter().flat_map(|segment| segment.log).collect()
    }
}

fn partitions(cases: &[&str]) -> Vec<Partition> {
    let mut found = Vec::new();
    for case in cases {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(case);
        let text = fs::read_to_string(dir.join("expected.json")).expect("expected.json");
        let Value::Object(expected) = serde_json::from_str(&text).expect("JSON") else { panic!("no object") };
        for (name, expected) in expected {
            found.push(Partition { dir: dir.join(&name), name, expected });
        }
    }
    assert!(!found.is_empty());
    found
}

const ALL: [&str; 5] = ["plain-multi", "codecs", "idempotent", "transactional", "compacted"];

fn batch_row(batch: &BatchView<'_>, position: usize) -> Value {
    let timestamp_type = match batch.attributes().timestamp_type() {
        TimestampType::CreateTime => "CreateTime",
        TimestampType::LogAppendTime => "LogAppendTime",
    };
    let horizon = batch.attributes().has_delete_horizon().then_some(batch.base_timestamp().0);
    json!([
        batch.base_offset().0,
        batch.last_offset().0,
        batch.record_count(),
        batch.leader_epoch().0,
        batch.producer_id(),
        batch.producer_epoch(),
        batch.base_sequence(),
        u8::from(batch.is_transactional()),
        u8::from(batch.is_control()),
        batch.attributes().codec().expect("a codec").to_string(),
        timestamp_type,
        batch.max_timestamp().0,
        horizon,
        position,
        batch.bytes().len(),
        batch.magic(),
        batch.crc(),
        u8::from(batch.crc_matches()),
    ])
}

#[test]
fn batches_are_what_kafka_says() {
    for partition in partitions(&ALL) {
        for segment in partition.segments() {
            let mut rows = Vec::new();
            let mut position = 0;
            let mut iterator = batches(&segment.log);
            while let Some(batch) = iterator.next() {
                rows.push(batch_row(&batch.expect("a batch"), position));
                position = iterator.position();
            }
            assert_eq!(Value::from(rows), segment.expected["batches"], "{} at {}", partition.name, segment.base);
            assert_eq!(position, segment.log.len());
        }
    }
}

#[test]
fn headers_can_be_read_without_their_records() {
    for partition in partitions(&ALL) {
        for segment in partition.segments() {
            let limit = segment.log.len() as u64;
            let views: Vec<_> = batches(&segment.log).map(|batch| *batch.expect("a batch").header()).collect();
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

/// Bytes as `expected.json` has them.
fn bytes_row(bytes: Option<&[u8]>) -> Value {
    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let Some(bytes) = bytes else { return Value::Null };
    let mut text = String::new();
    if bytes.len() > 32 {
        write!(text, "s:{}:", bytes.len()).expect("to a string");
        for byte in &Sha256::digest(bytes)[..16] {
            write!(text, "{byte:02x}").expect("to a string");
        }
        return text.into();
    }
    text.push_str("b:");
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for group in 0..4 {
            let character = BASE64[usize::try_from(bits >> (18 - 6 * group) & 63).expect("six bits")];
            text.push(if group > three.len() { '=' } else { char::from(character) });
        }
    }
    text.into()
}

fn record_row(batch: &BatchView<'_>, record: &RecordView<'_>) -> Value {
    let offset = batch.base_offset().0 + i64::from(record.offset_delta);
    let timestamp = batch.base_timestamp().0 + record.timestamp_delta;
    let headers: Vec<_> = record
        .headers()
        .map(|header| json!([std::str::from_utf8(header.key).expect("UTF-8"), bytes_row(header.value)]))
        .collect();
    let mut row = vec![offset.into(), timestamp.into(), bytes_row(record.key), bytes_row(record.value)];
    if !headers.is_empty() {
        row.push(headers.into());
    }
    row.into()
}

fn uncompressed(batch: &BatchView<'_>) -> Vec<u8> {
    let codec = batch.attributes().codec().expect("a codec");
    let mut bytes = Vec::new();
    let mut reader = decompress(codec, batch.records_bytes(), 1 << 20).expect("compressed records");
    reader.read_to_end(&mut bytes).expect("compressed records");
    bytes
}

#[test]
fn records_are_what_kafka_says() {
    for partition in partitions(&ALL) {
        let mut rows = Vec::new();
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")) {
            let bytes = uncompressed(&batch);
            for record in Records::new(&bytes, batch.record_count()) {
                let record = record.expect("a record");
                if !batch.is_control() {
                    rows.push(record_row(&batch, &record));
                }
            }
        }
        assert_eq!(Value::from(rows), partition.expected["records"], "{}", partition.name);
    }
}

#[test]
fn what_kafka_stored_passes_the_check_and_is_stored_the_same() {
    let mut checked = 0;
    for partition in partitions(&["plain-multi", "codecs", "idempotent", "transactional"]) {
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")).filter(|batch| !batch.is_control())
        {
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
    assert!(checked > 300, "{checked}");
}

#[test]
fn building_from_the_records_gives_kafkas_bytes() {
    let mut built = 0;
    for partition in partitions(&ALL) {
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")) {
            // Compaction leaves gaps and another base timestamp; compressors differ in their versions.
            let is_dense = batch.record_count() == batch.last_offset_delta() + 1;
            if batch.attributes().codec() != Ok(Codec::None) || !is_dense || batch.attributes().has_delete_horizon() {
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
            for record in batch.records().expect("not compressed") {
                let record = record.expect("a record");
                let headers: Vec<_> = record
                    .headers()
                    .map(|header| (std::str::from_utf8(header.key).expect("UTF-8"), header.value))
                    .collect();
                let timestamp = TimestampMs(batch.base_timestamp().0 + record.timestamp_delta);
                builder.push(Record { timestamp, key: record.key, value: record.value, headers: &headers });
            }
            assert_eq!(builder.build(), batch.bytes(), "{} at {}", partition.name, batch.base_offset());
            built += 1;
        }
    }
    assert!(built > 400, "{built}");
}

#[test]
fn offset_indexes_are_what_kafka_says() {
    for partition in partitions(&ALL) {
        for segment in partition.segments() {
            let bytes = partition.read(segment.base, "index");
            let (base, data_bytes) = (Offset(segment.base), segment.log.len() as u64);
            let active = ActiveOffsetIndex::load(base, 10 << 20, &bytes, data_bytes).expect("an index");
            let rows: Vec<_> = active.iter().map(|entry| json!([entry.offset.0, entry.position])).collect();
            assert_eq!(Value::from(rows), segment.expected["index"], "{} at {base}", partition.name);
            assert_eq!(active.encode_from(0), bytes);

            let file_bytes = bytes.len() as u64;
            let sealed = SealedOffsetIndex::open(partition.open(base.0, "index"), file_bytes, base, data_bytes);
            let sealed = sealed.expect("an index");
            sealed.verify(data_bytes).expect("a good index");
            for batch in batches(&segment.log).map(|batch| batch.expect("a batch")) {
                for target in [batch.base_offset(), batch.last_offset()] {
                    let entry = sealed.lookup(target).expect("readable");
                    assert_eq!(entry, active.lookup(target));
                    // From where the index points, a scan meets the batch that holds the offset.
                    let from = usize::try_from(entry.position).expect("small");
                    let first = batches(&segment.log[from..]).next().expect("a batch there").expect("a batch");
                    assert!(first.base_offset() <= target, "{} at {base}: {target}", partition.name);
                }
            }
        }
    }
}

#[test]
fn time_indexes_are_what_kafka_says() {
    for partition in partitions(&ALL) {
        for segment in partition.segments() {
            let bytes = partition.read(segment.base, "timeindex");
            let base = Offset(segment.base);
            let active = ActiveTimeIndex::load(base, 10 << 20, &bytes).expect("an index");
            let rows: Vec<_> = active.iter().map(|entry| json!([entry.timestamp.0, entry.offset.0])).collect();
            assert_eq!(Value::from(rows), segment.expected["timeindex"], "{} at {base}", partition.name);
            assert_eq!(active.encode_from(0), bytes);

            let file_bytes = bytes.len() as u64;
            let sealed =
                SealedTimeIndex::open(partition.open(base.0, "timeindex"), file_bytes, base).expect("an index");
            sealed.verify().expect("a good index");
            for batch in batches(&segment.log).map(|batch| batch.expect("a batch")) {
                let entry = sealed.lookup(batch.max_timestamp()).expect("readable");
                assert_eq!(entry, active.lookup(batch.max_timestamp()));
            }
        }
    }
}

fn snapshot_rows(table: &ProducerTable) -> Value {
    let entries = table.encode_snapshot();
    let row = |entry: &[u8; 46]| {
        let i32_at = |at: usize| i32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        let i64_at = |at: usize| i64::from_be_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let epoch = i16::from_be_bytes([entry[8], entry[9]]);
        json!([i64_at(0), epoch, i32_at(10), i64_at(14), i32_at(22), i64_at(26), i32_at(34), i64_at(38)])
    };
    entries[10..].as_chunks().0.iter().map(row).collect::<Vec<_>>().into()
}

fn snapshots(partition: &Partition) -> Vec<(i64, Value)> {
    let Value::Object(snapshots) = &partition.expected["producer_snapshots"] else { panic!("no snapshots") };
    snapshots.iter().map(|(offset, rows)| (offset.parse().expect("an offset"), rows.clone())).collect()
}

#[test]
fn snapshots_are_what_kafka_says() {
    let mut producers = 0;
    for partition in partitions(&ALL) {
        for (offset, mut rows) in snapshots(&partition) {
            let bytes = partition.read(offset, "snapshot");
            let table = ProducerTable::decode_snapshot(&bytes, 1000).expect("a snapshot");
            rows.as_array_mut().expect("rows").sort_by_key(|row| row[0].as_i64());
            assert_eq!(snapshot_rows(&table), rows, "{} at {offset}", partition.name);
            let again = ProducerTable::decode_snapshot(&table.encode_snapshot(), 1000);
            assert_eq!(again, Ok(table.clone()));
            producers += table.len();
        }
    }
    assert!(producers > 40, "{producers}");
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
            assert_eq!(snapshot_rows(&table), rows, "{} at {offset}", partition.name);
        }
    }
}

#[test]
fn replaying_the_log_finds_the_aborted_transactions() {
    for partition in partitions(&["transactional"]) {
        let mut table = ProducerTable::default();
        let mut rows = Vec::new();
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")) {
            if let Some(CompletedTransaction { producer_id, first, last, is_aborted: true }) = table.replicated(&batch)
            {
                let stable = table.first_open_transaction().unwrap_or_else(|| last.next());
                rows.push(json!([producer_id, first.0, last.0, stable.0]));
            }
        }
        assert!(!rows.is_empty());
        assert_eq!(Value::from(rows), partition.expected["aborted_transactions"], "{}", partition.name);
        assert!(table.first_open_transaction().is_some(), "one transaction was left open");
    }
}

#[test]
fn epochs_replayed_from_batches_are_kafkas() {
    for partition in partitions(&["plain-multi", "codecs", "idempotent"]) {
        let mut history = highwater_storage::EpochHistory::new();
        for batch in batches(&partition.log()).map(|batch| batch.expect("a batch")) {
            history.assign(batch.leader_epoch(), batch.base_offset());
        }
        let rows: Vec<_> =
            history.entries().iter().map(|&(LeaderEpoch(epoch), start)| json!([epoch, start.0])).collect();
        assert_eq!(Value::from(rows), partition.expected["leader_epochs"], "{}", partition.name);
    }
}

/// All batches there are, by reads of a few each.
fn read_all(reader: &LogReader) -> Vec<u8> {
    let (mut all, mut from) = (Vec::new(), reader.start());
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(600)).expect("a read");
        assert!(fetched.next > from, "reading gets on from {from}");
        all.extend(fetched.bytes);
        from = fetched.next;
    }
    all
}

/// Directories as Kafka left them, opened, appended to, and opened again after a crash and after a close: with its
/// gaps, emptied batches and transactions, nothing is lost, cut or changed.
#[test]
fn logs_of_kafka_are_opened_and_go_on() {
    for clean in [true, false] {
        for partition in partitions(&ALL) {
            let name = format!("{}, clean: {clean}", partition.name);
            let root = tempfile::tempdir().expect("a directory");
            for entry in fs::read_dir(&partition.dir).expect("the directory") {
                let entry = entry.expect("an entry");
                fs::copy(entry.path(), root.path().join(entry.file_name())).expect("a copy");
            }
            let end = partition.expected["log_end_offset"].as_i64().expect("an end");
            let mut expected = partition.log();
            // A record is appended in each round.
            for round in 0..3 {
                let hints = match round {
                    0 => OpenHints {
                        clean: Some(clean),
                        recovery_point: clean.then_some(Offset(end)),
                        log_start: None,
                        ..OpenHints::default()
                    },
                    _ => OpenHints::default(),
                };
                let options = LogOptions { segment_bytes: 1500, ..LogOptions::default() };
                let (mut log, report) = Log::open_with(Arc::new(OsFs), root.path(), options, hints).expect("it opens");
                assert_eq!((report.cut.as_ref(), report.clean), (None, clean && round == 0 || round == 2), "{name}");
                assert_eq!(log.end().0, end + round, "{name}, round {round}");
                assert!(read_all(&log.reader()) == expected, "{name}, round {round}: other bytes than Kafka's");
                let mut builder = BatchBuilder::new(Codec::None);
                builder.push(Record::new(TimestampMs(1_700_000_000_000), &[b'x'; 300]));
                let epoch = log.latest_epoch();
                log.append(TimestampMs(1_700_000_000_000), epoch, &builder.build()).expect("it goes on");
                expected = read_all(&log.reader());
                assert!(expected.starts_with(&partition.log()), "{name}");
                if round == 1 {
                    log.close().expect("it closes");
                }
            }
        }
    }
}
