//! What an append has promised when it returns, by flush policy and behind a buffer, under each kind of failure: the table
//! of the README, one test to a cell. Each is tried after every append of a run, on every image that the simulated disk
//! allows.

mod support;

use std::path::Path;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::*;
use support::*;

const APPENDS: u64 = 14;
/// Milliseconds from one append to the next.
const APART_MS: i64 = 10;
/// Records of this size that a buffer gathers before it appends them.
const BUFFERED_MAX: usize = 4;

fn options(flush: FlushPolicy) -> LogOptions {
    LogOptions { flush, ..small() }
}

fn try_append(log: &mut Log, number: u64) -> Result<Appended, AppendError> {
    log.append(at(number), LeaderEpoch(0), &numbered(number, 90))
}

/// When the record with this number comes.
fn at(number: u64) -> TimestampMs {
    TimestampMs(NOW.0 + APART_MS * i64::try_from(number).unwrap())
}

/// A log with so many records, the first six flushed.
fn written(seed: u64, flush: FlushPolicy, appends: u64) -> (SimFs, Log) {
    let fs = disk(seed);
    let (mut log, _) = open(&fs, &options(flush));
    for number in 0..appends {
        try_append(&mut log, number).unwrap();
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
        // As many as came before the time was over; the next one syncs them and itself.
        FlushPolicy::EveryMs(ms) => usize::try_from(ms.unsigned_abs().div_ceil(APART_MS.unsigned_abs())).unwrap(),
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
        while let Ok(done) = try_append(&mut log, appended) {
            assert_eq!(done.first.0, i64::try_from(appended).unwrap());
            appended += 1;
        }
        // Refused, but readable; and it goes on once there is room.
        let before = contents(&log.reader());
        assert!(before.len() < 40 && before[..8] == expected);
        fs.set_capacity(1 << 40);
        try_append(&mut log, appended).unwrap();
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
        let failed = (8..40).any(|number| {
            let appended = try_append(&mut log, number);
            appended.is_err() || (flush == FlushPolicy::None && log.flush().is_err())
        });
        assert!(failed && matches!(log.fence(), Some(Fence::SyncFailed(_))));
        assert!(try_append(&mut log, 99).is_err(), "nothing is taken any more");
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

/// A buffer in front of a log that syncs each of its appends.
fn buffer(fs: &SimFs) -> RecordBuffer {
    let (log, _) = open(fs, &options(FlushPolicy::EachAppend));
    // Each takes 90 bytes and a few.
    RecordBuffer::new(log, LeaderEpoch(0), BufferPolicy::up_to(100 * BUFFERED_MAX + 60))
}

fn value(number: u64) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(90, 7);
    value
}

/// What a log has that holds so many records.
fn records(count: usize) -> Vec<(i64, Vec<u8>)> {
    (0..count).map(|number| (i64::try_from(number).unwrap(), value(number as u64))).collect()
}

/// Pushes so many records. Returns how many of them the buffer said were appended.
fn pushed(buffer: &mut RecordBuffer, pushes: u64) -> usize {
    let mut appended = 0;
    for number in 0..pushes {
        if let Pushed::Appended(done) = buffer.push(at(number), Record::new(at(number), &value(number))).unwrap() {
            assert_eq!(done.durability, Durability::Synced);
            appended = usize::try_from(done.last.0 + 1).unwrap();
        }
    }
    assert_eq!(appended + buffer.buffered(), usize::try_from(pushes).unwrap(), "in the log or in the buffer");
    assert!(buffer.buffered() <= BUFFERED_MAX);
    appended
}

#[test]
fn none_and_the_process_dies() {
    the_process_dies(FlushPolicy::None);
}

#[test]
fn none_and_the_power_goes() {
    the_power_goes(FlushPolicy::None);
}

#[test]
fn none_and_the_disk_is_full() {
    the_disk_is_full(FlushPolicy::None);
}

#[test]
fn none_and_a_sync_fails() {
    a_sync_fails(FlushPolicy::None);
}

#[test]
fn none_and_a_byte_rots() {
    a_byte_rots(FlushPolicy::None);
}

#[test]
fn every_messages_and_the_process_dies() {
    the_process_dies(FlushPolicy::EveryMessages(3));
}

#[test]
fn every_messages_and_the_power_goes() {
    the_power_goes(FlushPolicy::EveryMessages(3));
}

#[test]
fn every_messages_and_the_disk_is_full() {
    the_disk_is_full(FlushPolicy::EveryMessages(3));
}

#[test]
fn every_messages_and_a_sync_fails() {
    a_sync_fails(FlushPolicy::EveryMessages(3));
}

#[test]
fn every_messages_and_a_byte_rots() {
    a_byte_rots(FlushPolicy::EveryMessages(3));
}

#[test]
fn every_ms_and_the_process_dies() {
    the_process_dies(FlushPolicy::EveryMs(25));
}

#[test]
fn every_ms_and_the_power_goes() {
    the_power_goes(FlushPolicy::EveryMs(25));
}

#[test]
fn every_ms_and_the_disk_is_full() {
    the_disk_is_full(FlushPolicy::EveryMs(25));
}

#[test]
fn every_ms_and_a_sync_fails() {
    a_sync_fails(FlushPolicy::EveryMs(25));
}

#[test]
fn every_ms_and_a_byte_rots() {
    a_byte_rots(FlushPolicy::EveryMs(25));
}

#[test]
fn each_append_and_the_process_dies() {
    the_process_dies(FlushPolicy::EachAppend);
}

#[test]
fn each_append_and_the_power_goes() {
    the_power_goes(FlushPolicy::EachAppend);
}

#[test]
fn each_append_and_the_disk_is_full() {
    the_disk_is_full(FlushPolicy::EachAppend);
}

#[test]
fn each_append_and_a_sync_fails() {
    a_sync_fails(FlushPolicy::EachAppend);
}

#[test]
fn each_append_and_a_byte_rots() {
    a_byte_rots(FlushPolicy::EachAppend);
}

#[test]
fn record_buffer_and_the_process_dies() {
    let mut lost = 0;
    for pushes in 0..=APPENDS {
        let fs = disk(6);
        let mut buffer = buffer(&fs);
        let appended = pushed(&mut buffer, pushes);
        lost += buffer.buffered();
        assert_eq!(found(&fs.process_crash_image(), FlushPolicy::EachAppend), records(appended));
        drop(buffer);
        assert_eq!(found(&fs.kill(), FlushPolicy::EachAppend), records(appended), "dropped, it is lost as well");
    }
    assert!(lost > 10, "what is in the buffer is lost: else this shows nothing");
}

#[test]
fn record_buffer_and_the_power_goes() {
    for pushes in 0..=APPENDS {
        let fs = disk(7);
        let mut buffer = buffer(&fs);
        let appended = pushed(&mut buffer, pushes);
        for image in fs.images(12, pushes) {
            assert_eq!(found(&image, FlushPolicy::EachAppend), records(appended), "as the log's policy has it");
        }
    }
}

#[test]
fn record_buffer_and_the_disk_is_full() {
    for room in 0..20 {
        let fs = disk(8);
        let mut buffer = buffer(&fs);
        pushed(&mut buffer, 9);
        let free = fs.free_space(Path::new(DIR)).unwrap();
        fs.set_capacity((1 << 40) - free + 97 * room);
        let mut taken = 9;
        while buffer.push(at(taken), Record::new(at(taken), &value(taken))).is_ok() {
            taken += 1;
            assert!(taken < 60);
        }
        // The one that was refused is not in it; those before it wait for room, and come once.
        assert_eq!(buffer.buffered(), BUFFERED_MAX);
        fs.set_capacity(1 << 40);
        buffer.append(at(taken)).unwrap();
        let expected = records(usize::try_from(taken).unwrap());
        assert_eq!(contents(&buffer.log().reader()), expected);
        buffer.close(at(taken)).unwrap();
        assert_eq!(found(&fs, FlushPolicy::EachAppend), expected);
    }
}

#[test]
fn record_buffer_and_a_sync_fails() {
    for nth in 0..6 {
        let fs = disk(9);
        let mut buffer = buffer(&fs);
        fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", nth);
        let mut appended = 0;
        let refused =
            (0..60).find(|number| match buffer.push(at(*number), Record::new(at(*number), &value(*number))) {
                Ok(Pushed::Appended(done)) => {
                    appended = usize::try_from(done.last.0 + 1).unwrap();
                    false
                }
                other => other.is_err(),
            });
        let refused = refused.expect("the push that appends fails");
        assert!(matches!(buffer.log().fence(), Some(Fence::SyncFailed(_))));
        // From here on it only gathers, up to what a batch holds, and says so.
        let next = || Record::new(at(refused), b"late");
        let more = (0..1000).find(|_| buffer.push(at(refused), next()).is_err());
        assert!(more.is_some() && buffer.append(at(refused)).is_err(), "nothing is appended any more");
        drop(buffer);
        for image in fs.images(8, nth) {
            let found = found(&image, FlushPolicy::EachAppend);
            assert!(found.len() >= appended, "{} of {appended}", found.len());
            assert_eq!(found, records(found.len()), "all that was appended before");
        }
    }
}

/// Every seventh byte: the batch it is in goes, which is as many records as the buffer gathered.
#[test]
fn record_buffer_and_a_byte_rots() {
    let fs = disk(10);
    let mut buffer = buffer(&fs);
    pushed(&mut buffer, APPENDS);
    buffer.close(at(APPENDS)).unwrap();
    let expected = records(14);
    let mut worst = 0;
    for name in names(&fs).iter().filter(|name| name.ends_with(".log")) {
        for at in (0..file_bytes(&fs, name).len()).step_by(7) {
            let image = fs.process_crash_image();
            image.corrupt(&path(name), |bytes| bytes[at] ^= 0x40).unwrap();
            let (log, _) = open(&image, &options(FlushPolicy::EachAppend));
            let found = around_damage(&log);
            assert!(found.iter().all(|record| expected.contains(record)), "{name}, byte {at}: nothing is made up");
            worst = worst.max(expected.len() - found.len());
        }
    }
    assert_eq!(worst, BUFFERED_MAX, "a batch, no other");
}

/// The README's table names these tests, and no others.
#[test]
fn each_cell_of_the_table_is_a_test() {
    let readme = include_str!("../README.md");
    let table = readme.split("## What is kept").nth(1).unwrap().split("\n## ").next().unwrap();
    let cells: Vec<&str> = table.split('`').filter(|word| word.contains("_and_")).collect();
    let source = include_str!("promises.rs");
    let tests = source.split("#[test]\nfn ").skip(1).filter_map(|test| test.split("()").next());
    let tests: Vec<&str> = tests.filter(|name| name.contains("_and_")).collect();
    assert_eq!(cells, tests, "in the same order");
    assert_eq!(cells.len(), 25);
}
