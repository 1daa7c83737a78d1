//! What housekeeping does under the writer, while appends wait, takes as much for many segments and producers as for few.

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use highwater_storage::fs::{Call, Fault};
use highwater_storage::*;
use peak_alloc::PeakAlloc;
use support::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The tests measure one process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most memory that beginning any piece of a log's housekeeping took, in bytes. A list that is made there is seen.
fn most_taken(log: &mut Log, now: TimestampMs) -> usize {
    let limits = WorkLimits::new(log.end());
    let mut most = 0;
    loop {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let job = log.begin_work(now, &limits);
        most = most.max(MEMORY.peak_usage().saturating_sub(before));
        let Some(job) = job else { return most };
        log.finish_work(job.run()).unwrap();
    }
}

fn of_segments(segments: u64, options: &LogOptions) -> Log {
    let fs = disk(1);
    let mut log = filled(&fs, options, segments);
    assert_eq!(log.segments().len() as u64, segments);
    log.checkpoint().unwrap();
    log
}

#[test]
fn a_compaction_begins_without_a_list_of_segments() {
    let _alone = alone();
    for ratio in [0.0, 1.0] {
        let compaction = CompactionOptions { min_cleanable_dirty_ratio: ratio, ..CompactionOptions::default() };
        let options = LogOptions {
            segment_bytes: 200,
            retention: false,
            compaction: Some(compaction),
            scrub_interval_ms: -1,
            ..LogOptions::default()
        };
        // The least of three: what measures the tests takes memory now and then too.
        let least = |segments| (0..3).map(|_| most_taken(&mut of_segments(segments, &options), NOW)).min().unwrap();
        let (few, many) = (least(20), least(1000));
        assert!(few > 0 && many < few + 512, "dirty ratio {ratio}: {few} bytes, then {many}");
    }
}

#[test]
fn silent_producers_are_forgotten_a_thousand_at_a_time() {
    let _alone = alone();
    let mut options = LogOptions { scrub_interval_ms: -1, ..LogOptions::default() };
    options.rules.timestamp_after_max_ms = i64::MAX;
    let (mut log, _) = open(&disk(1), &options);
    for producer in 0..5000 {
        let mut builder = BatchBuilder::new(Codec::None).producer(producer, 0, 0);
        // Every tenth is heard of later.
        let heard = if producer % 10 == 0 { T0 + (1 << 40) } else { T0 };
        builder.push(Record::new(TimestampMs(heard), b"one"));
        append(&mut log, &builder.build());
    }
    let expired = |steps: Vec<Step>| -> Vec<usize> {
        let producers = steps.into_iter().filter_map(|step| match step {
            Step::ProducersExpired { producers } => Some(producers),
            _ => None,
        });
        producers.collect()
    };
    assert_eq!(expired(keep_house(&mut log, NOW, Offset(0))), [0usize; 0]);
    let day = TimestampMs(NOW.0 + 25 * 60 * 60 * 1000);
    let steps = expired(keep_house(&mut log, day, Offset(0)));
    assert_eq!(steps.iter().sum::<usize>(), 4500, "{steps:?}");
    assert!(steps.iter().all(|producers| *producers <= 1024), "{steps:?}");
    assert_eq!(log.producers().len(), 500);
    assert_eq!(expired(keep_house(&mut log, TimestampMs(day.0 + 1), Offset(0))), [0usize; 0], "not before its time");
}

/// What readers find wrong is written, whatever else they find, is put off or fails meanwhile.
#[test]
fn each_index_that_was_found_wrong_is_written_in_the_end() {
    let fs = disk(1);
    let options = LogOptions { scrub_interval_ms: -1, ..small() };
    let log = with_transactions(&fs, &options);
    let sealed: Vec<i64> = bases(&log).into_iter().rev().skip(1).collect();
    log.close().unwrap();
    let of_kind = |kind: &str| -> Vec<_> {
        let names = sealed.iter().map(|base| format!("{base:020}.{kind}")).filter(|name| names(&fs).contains(name));
        let right: Vec<_> = names.map(|name| (file_bytes(&fs, &name), name)).collect();
        assert!(right.len() > 2, "{kind}: {right:?}");
        right
    };
    let (indexes, transactions) = (of_kind("index"), of_kind("txnindex"));
    let files = || indexes.iter().chain(&transactions);
    for (bytes, name) in files() {
        write_file(&fs, name, &vec![0xff; bytes.len()]);
    }
    let wrong = || files().filter(|(bytes, name)| file_bytes(&fs, name) != *bytes).count();
    let (mut log, _) = open_hinted(&fs, &options, OpenHints { clean: Some(true), ..OpenHints::default() });
    let (reader, limits) = (log.reader(), WorkLimits::new(Offset(0)));
    // One that has an index of transactions too.
    let first: i64 = transactions[0].1[..20].parse().unwrap();
    reader.read(Offset(first + 1), ReadLimit::bytes(1)).unwrap();
    let all = wrong();
    assert_eq!(all, files().count(), "nobody writes them but housekeeping");
    drop(log.begin_work(NOW, &limits).unwrap());
    assert_eq!(wrong(), all, "it was put off");
    // While it is being written readers find that the others are wrong too.
    let job = log.begin_work(NOW, &limits).unwrap();
    reader.aborted_transactions(Offset(0), reader.end()).unwrap();
    for base in &sealed {
        reader.read(Offset(base + 1), ReadLimit::bytes(1)).unwrap();
    }
    assert_eq!(log.finish_work(job.run()).unwrap(), Some(Step::IndexesWritten { base: Offset(first) }));
    fs.inject(Fault::Eio, Call::Rename, 1);
    log.housekeeping().step(NOW, &limits).unwrap_err();
    assert!(wrong() > 0 && wrong() < all);
    for _ in 0..2 {
        keep_house(&mut log, NOW, Offset(0));
    }
    assert_eq!(wrong(), 0);
    assert!(log.begin_work(NOW, &limits).is_none());
    // What is told of segments that have gone costs nothing and does nothing.
    reader.read(Offset(1), ReadLimit::bytes(1)).unwrap();
    log.reset_to(Offset(3)).unwrap();
    assert!(!keep_house(&mut log, NOW, Offset(0)).iter().any(|step| matches!(step, Step::IndexesWritten { .. })));
}
