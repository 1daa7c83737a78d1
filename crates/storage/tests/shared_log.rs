//! Threads that share a log: each append is answered when its policy says, by one sync for many, and never falsely.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::{
    AppendError, BatchBuilder, Codec, Durability, Fence, FlushError, FlushPolicy, LeaderEpoch, Log, LogOptions, Offset,
    OpenHints, ReadLimit, Record, SharedLog, Step, TimestampMs, WorkLimits, batches,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
const EPOCH: LeaderEpoch = LeaderEpoch(1);

fn batch(value: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(NOW, value));
    builder.build()
}

fn disk() -> SimFs {
    let fs = SimFs::new(7);
    fs.create_dir(Path::new("/log")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn open(fs: &SimFs, flush: FlushPolicy) -> Log {
    let options = LogOptions { flush, segment_bytes: 16 << 10, ..LogOptions::default() };
    Log::open_with(Arc::new(fs.clone()), Path::new("/log"), options, OpenHints::default()).unwrap().0
}

/// The values in the log, in order.
fn values(log: &Log) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut next = log.start();
    while next < log.end() {
        let fetched = log.read(next, ReadLimit::bytes(1 << 20)).unwrap();
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            found.extend(batch.records().unwrap().map(|record| record.unwrap().value.unwrap().to_vec()));
        }
        next = fetched.next;
    }
    found
}

#[test]
fn all_that_was_answered_as_synced_survives_a_power_cut_at_any_moment() {
    for seed in 0..6_u64 {
        let fs = disk();
        let log = SharedLog::new(open(&fs, FlushPolicy::EachAppend));
        let answered = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (log, answered) = (log.clone(), &answered);
                scope.spawn(move || {
                    for number in 0..20_u64 {
                        let value = [thread.to_be_bytes(), number.to_be_bytes()].concat();
                        let appended = log.append(NOW, EPOCH, &batch(&value)).unwrap();
                        assert_eq!((appended.durability, appended.duplicate), (Durability::Synced, false));
                        assert!(log.reader().flushed() > appended.last);
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // The images of a crash while the others are at work.
            for round in 0..10 {
                let before = answered.load(Ordering::SeqCst);
                let images = fs.images(2, seed * 100 + round);
                for image in images {
                    let found = values(&open(&image, FlushPolicy::None));
                    assert!(found.len() as u64 >= before, "{} of {before} are there", found.len());
                }
            }
        });
        assert_eq!(log.reader().end(), Offset(80));
        let found = log.with(|log| values(log)).unwrap();
        for thread in 0..4_u64 {
            let of_thread = found.iter().filter(|value| value[..8] == thread.to_be_bytes());
            let numbers: Vec<u64> = of_thread.map(|value| u64::from(value[15])).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "the order of each thread is kept");
        }
        assert_eq!(log.close().unwrap().end, Offset(80));
    }
}

#[test]
fn one_sync_serves_many_and_a_failed_one_is_told_to_all() {
    let fs = disk();
    let log = SharedLog::new(open(&fs, FlushPolicy::EachAppend));
    log.append(NOW, EPOCH, &batch(b"before")).unwrap();
    fs.inject_lasting(Fault::SyncFails, Call::SyncData, ".log", 1);
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let log = log.clone();
                scope.spawn(move || log.append(NOW, EPOCH, &batch(b"after")))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for outcome in outcomes {
        assert!(matches!(outcome, Err(AppendError::Closed(Fence::SyncFailed(_)))), "{outcome:?}");
    }
    assert!(matches!(log.flush(), Err(FlushError::Closed(Fence::SyncFailed(_)))));
    let syncs = fs.faults_hit();
    assert!((1..=8).contains(&syncs));
    drop(log);
    fs.clear_faults();
    assert_eq!(values(&open(&fs, FlushPolicy::None))[0], b"before");
}

#[test]
fn what_was_truncated_away_before_its_sync_is_not_answered_as_synced() {
    let fs = disk();
    let log = SharedLog::new(open(&fs, FlushPolicy::None));
    log.append(NOW, EPOCH, &batch(b"a")).unwrap();
    log.append(NOW, EPOCH, &batch(b"b")).unwrap();
    assert_eq!(log.flush().unwrap(), Offset(2));
    let job = log.with(|log| {
        log.append(NOW, EPOCH, &batch(b"c")).unwrap();
        log.begin_flush().unwrap()
    });
    log.with(|log| log.truncate_to(Offset(1))).unwrap().unwrap();
    log.append(NOW, EPOCH, &batch(b"d")).unwrap();
    let done = job.unwrap().run();
    assert_eq!(log.with(|log| log.finish_flush(done)).unwrap().unwrap(), Offset(1));
    assert_eq!(log.flush().unwrap(), Offset(2));
}

#[test]
fn the_policies_sync_when_they_say() {
    let appends = |flush, times: &[i64]| {
        let fs = disk();
        let mut log = open(&fs, flush);
        let synced: Vec<bool> = times
            .iter()
            .map(|ms| {
                let now = TimestampMs(NOW.0 + ms);
                log.append(now, EPOCH, &batch(b"x")).unwrap().durability == Durability::Synced
            })
            .collect();
        (log, synced)
    };
    assert_eq!(appends(FlushPolicy::None, &[0, 1000]).1, [false, false]);
    assert_eq!(appends(FlushPolicy::EachAppend, &[0, 1]).1, [true, true]);
    assert_eq!(appends(FlushPolicy::EveryMessages(3), &[0, 1, 2, 3, 4]).1, [false, false, true, false, false]);
    let (mut log, synced) = appends(FlushPolicy::EveryMs(10), &[0, 9, 10, 11, 20, 21, 30]);
    assert_eq!(synced, [false, false, true, false, false, true, false]);

    // No append comes any more: housekeeping sees to the last one.
    let limits = WorkLimits::new(log.end());
    let step = |log: &mut Log, ms| log.housekeeping().step(TimestampMs(NOW.0 + ms), &limits).unwrap();
    assert_eq!(step(&mut log, 39), None);
    assert_eq!(step(&mut log, 40), Some(Step::Flushed { flushed: Offset(7) }));
    assert_eq!(step(&mut log, 99), None);

    // A sync that was begun and given up does not leave the records to themselves.
    log.append(TimestampMs(NOW.0 + 100), EPOCH, &batch(b"x")).unwrap();
    drop(log.begin_flush().unwrap());
    assert_eq!(step(&mut log, 101), None);
    assert_eq!(step(&mut log, 111), Some(Step::Flushed { flushed: Offset(8) }));
}

#[test]
fn a_clock_that_is_set_back_puts_no_sync_off() {
    const HOUR: i64 = 60 * 60 * 1000;
    let mut log = open(&disk(), FlushPolicy::EveryMs(10));
    let mut append = |ms| log.append(TimestampMs(NOW.0 + ms), EPOCH, &batch(b"x")).unwrap().durability;
    assert_eq!([append(0), append(-HOUR), append(9 - HOUR)], [Durability::Buffered; 3]);
    assert_eq!(append(10 - HOUR), Durability::Synced);
    assert_eq!([append(11 - HOUR), append(20 - HOUR)], [Durability::Buffered; 2]);
    assert_eq!(append(21 - HOUR), Durability::Synced);
}

#[test]
fn a_closed_log_is_closed_to_all_and_keeps_what_was_appended() {
    let fs = disk();
    let log = SharedLog::new(open(&fs, FlushPolicy::None));
    let other = log.clone();
    other.append(NOW, EPOCH, &batch(b"a")).unwrap();
    assert_eq!(log.close().unwrap().end, Offset(1));
    assert!(matches!(other.append(NOW, EPOCH, &batch(b"b")), Err(AppendError::Closed(Fence::Closed))));
    assert!(matches!(other.flush(), Err(FlushError::Closed(Fence::Closed))));
    assert!(matches!(other.close(), Err(FlushError::Closed(Fence::Closed))));
    assert!(matches!(
        other.housekeeping_step(NOW, &WorkLimits::new(Offset(1))),
        Err(FlushError::Closed(Fence::Closed))
    ));
    assert_eq!(values(&open(&fs, FlushPolicy::None)), [b"a"]);
}

#[test]
fn rules_that_change_hold_for_the_next_append() {
    let fs = disk();
    let log = SharedLog::new(open(&fs, FlushPolicy::None));
    let mut options = log.with(|log| log.options().clone()).unwrap();
    options.rules.max_message_bytes = 10;
    log.with(|log| log.set_options(options)).unwrap().unwrap();
    assert!(matches!(log.append(NOW, EPOCH, &batch(b"a")), Err(AppendError::Refused(_))));
}
