//! What an append has promised when it returns, by flush policy, under each kind of failure: the table of the README, one
//! test to a cell. Each is tried after every append of a run, on every image that the simulated disk allows.

mod support;

use std::path::Path;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::*;
use support::*;

const APPENDS: u64 = 14;

fn options(flush: FlushPolicy) -> LogOptions {
    LogOptions { flush, ..small() }
}

/// A log with so many records, the first six flushed.
fn written(seed: u64, flush: FlushPolicy, appends: u64) -> (SimFs, Log) {
    let fs = disk(seed);
    let (mut log, _) = open(&fs, &options(flush));
    for number in 0..appends {
        append(&mut log, &numbered(number, 90));
        if number == 5 {
            log.flush().unwrap();
        }
    }
    (fs, log)
}

fn found(fs: &SimFs, flush: FlushPolicy) -> Vec<(i64, Vec<u8>)> {
    let (log, _) = open(fs, &options(flush));
    let records = contents(&log.reader());
    let offsets: Vec<i64> = records.iter().map(|(offset, _)| *offset).collect();
    assert!(offsets.iter().copied().eq(0..log.end().0), "no hole: {offsets:?}");
    records
}

/// Records that a policy may lose in a power cut, of those after the last explicit flush.
fn unsynced_max(flush: FlushPolicy) -> usize {
    match flush {
        FlushPolicy::EachAppend => 0,
        FlushPolicy::EveryMessages(messages) => usize::try_from(messages).unwrap() - 1,
        _ => usize::MAX,
    }
}

fn the_process_dies(flush: FlushPolicy) {
    for appends in 0..=APPENDS {
        let (fs, log) = written(1, flush, appends);
        let expected = contents(&log.reader());
        // Killed: the log's destructor does not run.
        let image = fs.process_crash_image();
        assert_eq!(found(&image, flush), expected);
        drop(log);
        assert_eq!(found(&fs.kill(), flush), expected);
    }
}

fn the_power_goes(flush: FlushPolicy) {
    let mut lost = false;
    for appends in 0..=APPENDS {
        let (fs, log) = written(2, flush, appends);
        let expected = contents(&log.reader());
        let flushed = if appends > 5 { 6 } else { 0 };
        let kept = expected.len().saturating_sub(unsynced_max(flush)).max(flushed.min(expected.len()));
        for image in fs.images(12, appends) {
            let found = found(&image, flush);
            assert!(found.len() >= kept, "{} of {}, {kept} were promised", found.len(), expected.len());
            assert_eq!(found, expected[..found.len()]);
            lost |= found.len() < expected.len();
        }
    }
    assert_eq!(lost, unsynced_max(flush) > 0, "what may be lost is lost at times: else this shows nothing");
}

fn the_disk_is_full(flush: FlushPolicy) {
    for room in 0..20 {
        let (fs, mut log) = written(3, flush, 8);
        let expected = contents(&log.reader());
        let free = fs.free_space(Path::new(DIR)).unwrap();
        fs.set_capacity((1 << 40) - free + 97 * room);
        let mut appended = 8;
        while let Ok(done) = log.append(NOW, LeaderEpoch(0), &numbered(appended, 90)) {
            assert_eq!(done.first.0, i64::try_from(appended).unwrap());
            appended += 1;
        }
        // Refused, but readable; and it goes on once there is room.
        let before = contents(&log.reader());
        assert!(before.len() < 40 && before[..8] == expected);
        fs.set_capacity(1 << 40);
        append(&mut log, &numbered(appended, 90));
        assert_eq!(contents(&log.reader())[..before.len()], before);
        drop(log);
        assert_eq!(found(&fs, flush)[..before.len()], before);
    }
}

fn a_sync_fails(flush: FlushPolicy) {
    for nth in 0..6 {
        let (fs, mut log) = written(4, flush, 8);
        log.flush().unwrap();
        let expected = contents(&log.reader());
        fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", nth);
        // Under no policy it is the caller's flush that fails.
        let failed = (8..30).any(|number| {
            let appended = log.append(NOW, LeaderEpoch(0), &numbered(number, 90));
            appended.is_err() || (flush == FlushPolicy::None && log.flush().is_err())
        });
        assert!(failed && matches!(log.fence(), Some(Fence::SyncFailed(_))));
        assert!(log.append(NOW, LeaderEpoch(0), &numbered(99, 90)).is_err(), "nothing is taken any more");
        assert!(log.read(Offset(0), ReadLimit::bytes(1)).is_err(), "what is read may not be on the disk");
        drop(log);
        for image in fs.images(8, nth) {
            let found = found(&image, flush);
            assert!(found.len() >= expected.len());
            assert_eq!(found[..expected.len()], expected, "all that was synced before");
        }
    }
}

/// Offsets and values that a reader gets who asks for checksums and passes over what is damaged.
fn around_damage(log: &Log) -> Vec<(i64, Vec<u8>)> {
    let (reader, mut records) = (log.reader(), Vec::new());
    let mut from = reader.start();
    while from < reader.end() {
        match reader.read(from, ReadLimit::bytes(700).verified()) {
            Ok(fetched) => {
                for batch in batches(&fetched.bytes).map(Result::unwrap) {
                    let values = batch.records().unwrap().map(|record| record.unwrap().value.unwrap().to_vec());
                    records.extend((batch.base_offset().0..).zip(values));
                }
                from = fetched.next;
            }
            Err(ReadError::Corrupt { offsets, .. }) => {
                assert!(offsets.end > from);
                from = offsets.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    records
}

/// Every seventh byte of what was synced.
fn a_byte_rots(flush: FlushPolicy) {
    let mut lost = 0;
    for close in [false, true] {
        let (fs, mut log) = written(5, flush, APPENDS);
        log.flush().unwrap();
        let expected = contents(&log.reader());
        let segments = log.segments();
        if close {
            log.close().unwrap();
        } else {
            drop(log);
        }
        for segment in segments {
            let name = format!("{:020}.log", segment.base.0);
            for at in (0..usize::try_from(segment.size_bytes).unwrap()).step_by(7) {
                let image = fs.process_crash_image();
                image.corrupt(&path(&name), |bytes| bytes[at] ^= 0x40).unwrap();
                let (log, report) = open(&image, &options(flush));
                assert!(report.cut.is_none() && log.end().0 == 14, "{name}, byte {at}: {report:?}");
                let found = around_damage(&log);
                assert!(found.iter().all(|record| expected.contains(record)), "{name}, byte {at}: nothing is made up");
                assert!(found.len() + 1 >= expected.len(), "{name}, byte {at}: one batch is lost, no other");
                lost += expected.len() - found.len();
            }
        }
    }
    assert!(lost > 100, "most bytes cost their batch: else this shows nothing");
}

macro_rules! row {
    ($policy:expr, $dies:ident, $power:ident, $full:ident, $sync:ident, $rots:ident) => {
        #[test]
        fn $dies() {
            the_process_dies($policy);
        }
        #[test]
        fn $power() {
            the_power_goes($policy);
        }
        #[test]
        fn $full() {
            the_disk_is_full($policy);
        }
        #[test]
        fn $sync() {
            a_sync_fails($policy);
        }
        #[test]
        fn $rots() {
            a_byte_rots($policy);
        }
    };
}

row!(
    FlushPolicy::None,
    none_and_the_process_dies,
    none_and_the_power_goes,
    none_and_the_disk_is_full,
    none_and_a_sync_fails,
    none_and_a_byte_rots
);
row!(
    FlushPolicy::EveryMessages(3),
    every_messages_and_the_process_dies,
    every_messages_and_the_power_goes,
    every_messages_and_the_disk_is_full,
    every_messages_and_a_sync_fails,
    every_messages_and_a_byte_rots
);
row!(
    FlushPolicy::EachAppend,
    each_append_and_the_process_dies,
    each_append_and_the_power_goes,
    each_append_and_the_disk_is_full,
    each_append_and_a_sync_fails,
    each_append_and_a_byte_rots
);

/// The README's table names these tests, and no others.
#[test]
fn each_cell_of_the_table_is_a_test() {
    let readme = include_str!("../README.md");
    let table = readme.split("## What is kept").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells: Vec<&str> = table.split('`').filter(|word| word.contains("_and_")).collect();
    assert_eq!(cells.len(), 15);
    let source = include_str!("promises.rs");
    for cell in cells {
        assert!(source.lines().any(|line| line.trim().trim_end_matches(',') == cell), "no test is called {cell}");
    }
}
