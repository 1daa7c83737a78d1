//! Transactions in logs of Kafka's: which were aborted, up to where all are decided, and what a reader of committed
//! records gets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use highwater_storage::fs::OsFs;
use highwater_storage::{
    AbortedTransaction, Log, LogOptions, LogReader, Offset, OpenHints, ProducerState, ProducerTable, ReadLimit,
    RecoveryReport, TimestampMs, TransactionMarker, WorkLimits, batches,
};
use serde_json::{Value, json};

use crate::case::{Partition, copy_files, partitions};
use crate::rows::records;

const CASES: [&str; 5] = ["transactional", "transactional-v1", "compacted", "unclean", "clean-damaged-files"];

fn open(dir: &tempfile::TempDir, partition: &Partition, clean: bool) -> (Log, RecoveryReport) {
    let end = Offset(partition.number("log_end_offset"));
    let hints =
        OpenHints { clean: Some(clean), recovery_point: clean.then_some(end), log_start: None, ..OpenHints::default() };
    // Kafka's producers of the set wrote their records in 2023, and are not to be forgotten for it.
    let options = LogOptions { producer_id_expiration_ms: i64::MAX, ..LogOptions::default() };
    Log::open_with(Arc::new(OsFs), dir.path(), options, hints).expect("it opens")
}

fn copy_of(partition: &Partition) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    copy_files(&partition.dir, dir.path());
    dir
}

/// Partitions whose batches and side files are whole: what Kafka says of them is true.
fn sound() -> Vec<Partition> {
    partitions(&CASES).into_iter().filter(Partition::is_sound).collect()
}

fn rows(aborted: &[AbortedTransaction]) -> Value {
    let row = |aborted: &AbortedTransaction| {
        let AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset } = aborted;
        json!([producer_id, first_offset.0, last_offset.0, last_stable_offset.0])
    };
    aborted.iter().map(row).collect()
}

fn all_aborted(reader: &LogReader) -> Vec<AbortedTransaction> {
    reader.aborted_transactions(reader.start(), reader.end()).expect("they are read")
}

/// What a consumer of committed records gets, with Kafka's way of leaving records out: from the first offset of an
/// aborted transaction on, those of its producer go until a marker of an abort.
fn committed(reader: &LogReader, upper: Offset, max_bytes: usize) -> Vec<i64> {
    let (mut offsets, mut from) = (Vec::new(), reader.start());
    while from < upper {
        let fetched = reader.read(from, ReadLimit::bytes(max_bytes).below(upper)).expect("a read");
        if fetched.bytes.is_empty() {
            break;
        }
        let mut ahead = reader.aborted_transactions(from, fetched.next).expect("they are read");
        ahead.sort_by_key(|aborted| aborted.first_offset);
        let (mut ahead, mut aborted) = (ahead.into_iter().peekable(), BTreeMap::new());
        for batch in batches(&fetched.bytes).map(|batch| batch.expect("a batch")) {
            while let Some(begun) = ahead.next_if(|begun| begun.first_offset <= batch.last_offset()) {
                aborted.insert(begun.producer_id, begun.last_offset);
            }
            if batch.is_control() {
                aborted.retain(|producer, last| (*producer, *last) != (batch.producer_id(), batch.last_offset()));
            } else if !(batch.is_transactional() && aborted.contains_key(&batch.producer_id())) {
                offsets.extend(records(&batch).iter().map(|row| row[0].as_i64().expect("an offset")));
            }
        }
        from = fetched.next;
    }
    offsets.retain(|offset| *offset >= reader.start().0);
    offsets
}

fn ranges(offsets: &[i64]) -> Value {
    let mut ranges: Vec<Range<i64>> = Vec::new();
    for &offset in offsets {
        match ranges.last_mut() {
            Some(last) if last.end == offset => last.end += 1,
            _ => ranges.push(offset..offset + 1),
        }
    }
    ranges.iter().map(|range| json!([range.start, range.end - 1])).collect()
}

/// After kill -9: what Kafka made of it, from the batches of both.
#[test]
fn after_a_kill_the_transactions_are_those_that_kafka_recovered() {
    let unclean = partitions(&["unclean"]);
    let of = |folder: &str| unclean.iter().find(|of| of.folder == folder && of.name == "unclean-txn-0").expect("it");
    let (before, after) = (of("before"), of("after"));
    let dir = copy_of(before);
    let hints = OpenHints { clean: Some(false), recovery_point: Some(Offset(46)), ..OpenHints::default() };
    let (log, report) = Log::open_with(Arc::new(OsFs), dir.path(), LogOptions::default(), hints).expect("it opens");
    assert!(!report.clean);
    assert_eq!(rows(&all_aborted(&log.reader())), after.expected["aborted_transactions"]);
    assert_eq!(json!(log.last_stable_offset(log.end()).0), after.expected["broker"]["last_stable_offset"]);
}

/// By clean opens from the index files, by others from the batches: where compaction took records of an aborted
/// transaction away, Kafka keeps its entry while the batches do not tell of it any more, nor need they.
#[test]
fn aborted_transactions_are_kafkas() {
    let mut entries = 0;
    for partition in sound() {
        for clean in [true, false] {
            let dir = copy_of(&partition);
            let (log, report) = open(&dir, &partition, clean);
            let (aborted, expected) = (all_aborted(&log.reader()), &partition.expected["aborted_transactions"]);
            entries += aborted.len();
            if clean || partition.case != "compacted" {
                assert_eq!(rows(&aborted), *expected, "{}, clean: {clean}", partition.id);
            } else {
                let expected = expected.as_array().expect("rows");
                assert!(aborted.iter().all(|entry| expected.contains(&rows(&[*entry])[0])), "{}", partition.id);
            }
            assert!(!report.producers_rebuilt, "{}: there is a snapshot", partition.id);
        }
    }
    assert!(entries > 120, "{entries}");
}

#[test]
fn producers_and_the_last_stable_offset_are_the_brokers() {
    let (mut active, mut open_transactions) = (0, 0);
    for partition in sound() {
        let broker = &partition.expected["broker"];
        if broker.is_null() {
            continue;
        }
        let dir = copy_of(&partition);
        let (log, _) = open(&dir, &partition, true);
        let high_watermark = Offset(broker["latest"].as_i64().expect("an offset"));
        let stable = log.last_stable_offset(high_watermark);
        assert_eq!(json!(stable.0), broker["last_stable_offset"], "{}", partition.id);
        open_transactions += usize::from(stable < high_watermark);
        // A broker forgets producers by the time of their records when it starts.
        let known: Vec<_> = log.producers().iter().collect();
        for row in broker["active_producers"].as_array().expect("rows") {
            let id = row[0].as_i64().expect("an id");
            let (_, state) = known.iter().find(|(known, _)| *known == id).expect("a known producer");
            let start = state.transaction_start().map_or(-1, |start| start.0);
            let (epoch, sequence) = (state.epoch(), state.last_sequence());
            let state = json!([id, epoch, sequence, state.last_timestamp().0, state.coordinator_epoch(), start]);
            assert_eq!(state, *row, "{}", partition.id);
            active += 1;
        }
    }
    assert!(active > 30 && open_transactions == 3, "{active} producers, {open_transactions} open transactions");
}

#[test]
fn readers_of_committed_records_get_what_kafkas_consumer_got() {
    for partition in sound() {
        let broker = &partition.expected["broker"]["read_committed"];
        if broker["ranges"].is_null() {
            continue;
        }
        for (clean, max_bytes) in [(true, 1 << 20), (true, 700), (false, 700)] {
            let dir = copy_of(&partition);
            let (log, _) = open(&dir, &partition, clean);
            let stable = log.last_stable_offset(log.end());
            let got = committed(&log.reader(), stable, max_bytes);
            assert_eq!(ranges(&got), broker["ranges"], "{}, clean: {clean}", partition.id);
        }
    }
}

/// The list in a fetch is Kafka's to the last entry, if it is asked for up to where Kafka's index look-up ends: the first
/// index entry behind the bytes that are sent, or the segment's end.
#[test]
fn fetches_are_told_of_the_aborted_transactions_that_kafka_tells_of() {
    let mut fetches = 0;
    for partition in sound() {
        let dir = copy_of(&partition);
        let (log, _) = open(&dir, &partition, true);
        let segments = partition.expected["segments"].as_array().expect("segments");
        for fetch in partition.expected["broker"]["fetches"].as_array().into_iter().flatten() {
            let number = |at: usize| fetch[at].as_i64().expect("a number");
            let (asked, bytes, first, last) = (number(0), number(2), number(3), number(4));
            if last < 0 || fetch[8].is_null() {
                continue;
            }
            let at = segments.iter().rposition(|segment| segment["base_offset"].as_i64() <= Some(first)).expect("one");
            let in_segment = |row: &&Value| row[0].as_i64() == Some(first);
            let batch = segments[at]["batches"].as_array().expect("rows").iter().find(in_segment).expect("the batch");
            let behind = batch[13].as_i64().expect("a position") + bytes;
            let index = segments[at]["index"].as_array().expect("rows").iter();
            let mut behind = index.filter(|row| row[1].as_i64() >= Some(behind)).map(|row| row[0].as_i64());
            let segment_end =
                segments.get(at + 1).map_or_else(|| Some(log.end().0), |next| next["base_offset"].as_i64());
            let upper = behind.next().unwrap_or(segment_end).expect("an offset");
            let list = |upper| {
                let aborted = log.reader().aborted_transactions(Offset(asked), Offset(upper)).expect("they are read");
                aborted.iter().map(|aborted| json!([aborted.producer_id, aborted.first_offset.0])).collect::<Vec<_>>()
            };
            assert_eq!(json!(list(upper)), fetch[8], "{}: {fetch}", partition.id);
            assert!(list(last + 1).iter().all(|entry| list(upper).contains(entry)), "{}: {fetch}", partition.id);
            fetches += 1;
        }
    }
    assert!(fetches > 150, "{fetches}");
}

/// One side file of each partition is damaged. Its neighbours in the case say what is right, for all hold the same.
#[test]
fn damaged_side_files_hide_no_transaction_and_no_producer() {
    let (after, before): (Vec<_>, Vec<_>) =
        partitions(&["clean-damaged-files"]).into_iter().partition(|of| of.folder == "after");
    for (partition, after) in before.iter().zip(&after) {
        let name = &*partition.name;
        assert_eq!(name, after.name);
        let dir = copy_of(partition);
        let (log, report) = open(&dir, partition, true);
        // Kafka kept the batches of all of them.
        let (control, data) = naive(after);
        let aborted = all_aborted(&log.reader());
        let markers: Vec<_> = aborted.iter().map(|aborted| (aborted.producer_id, aborted.last_offset.0)).collect();
        assert_eq!(markers, control, "{name}");
        assert_eq!(ranges(&committed(&log.reader(), log.end(), 700)), ranges(&data), "{name}");
        assert_eq!(report.producers_rebuilt, name == "d-nosnapshots-0", "{name}");
        assert_eq!(report.snapshots_removed, u32::from(name == "d-badsnapshot-0"), "{name}");

        // As from the batches alone.
        let mut replayed = ProducerTable::default();
        for batch in batches(&after.log()) {
            replayed.replicated(&batch.expect("a batch"));
        }
        assert!(!replayed.is_empty(), "{name}");
        for (id, state) in replayed.iter() {
            let known = log.producers().get(id).unwrap_or_else(|| panic!("{name}: producer {id} is not known"));
            let of = |state: &ProducerState| {
                (state.epoch(), state.last_sequence(), state.transaction_start(), state.coordinator_epoch())
            };
            assert_eq!(of(known), of(state), "{name}");
        }
        assert_eq!(log.producers().len(), replayed.len(), "{name}");

        // What was found wrong is right in the files after a close, also for who opens them next.
        let mut log = log;
        keep_house(&mut log);
        log.close().expect("it closes");
        let (log, again) = open(&dir, partition, true);
        assert_eq!(all_aborted(&log.reader()), aborted, "{name}");
        assert_eq!((again.indexes_rebuilt, again.producers_rebuilt), (0, false), "{name}");
    }
}

/// All housekeeping that is due.
fn keep_house(log: &mut Log) {
    let limits = WorkLimits::new(log.end());
    while log.housekeeping().step(TimestampMs(1_700_000_000_000), &limits).expect("it works").is_some() {}
}

/// The abort markers (producer and offset), and the offsets of records that were not aborted, from the batches alone.
fn naive(partition: &Partition) -> (Vec<(i64, i64)>, Vec<i64>) {
    let log = partition.log();
    let (mut aborts, mut committed): (Vec<(i64, i64)>, Vec<i64>) = Default::default();
    let mut pending: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for batch in batches(&log).map(|batch| batch.expect("a batch")) {
        if let Some(marker) = TransactionMarker::of(&batch) {
            let offsets = pending.remove(&marker.producer_id).unwrap_or_default();
            if marker.is_abort {
                aborts.push((marker.producer_id, batch.last_offset().0));
            } else {
                committed.extend(offsets);
            }
        } else {
            let offsets = records(&batch).into_iter().map(|row| row[0].as_i64().expect("an offset"));
            if batch.is_transactional() {
                pending.entry(batch.producer_id()).or_default().extend(offsets);
            } else {
                committed.extend(offsets);
            }
        }
    }
    committed.sort_unstable();
    (aborts, committed)
}
