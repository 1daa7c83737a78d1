//! The log on the simulated disk: appends, reads, rolls, truncation, retention.
//! The numbers S.. are those of the faults that other logs had.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::*;
use support::*;

fn value_of(batch: &[u8]) -> Vec<u8> {
    let (view, _) = BatchView::parse(batch).unwrap();
    view.records().unwrap().next().unwrap().unwrap().value.unwrap().to_vec()
}

#[test]
fn what_is_appended_is_read_back_over_many_segments_and_after_a_clean_close() {
    let fs = disk(1);
    let (mut log, report) = open(&fs, &small());
    assert!(report.created && report.clean);
    let mut expected = Vec::new();
    for number in 0..50 {
        let bytes = numbered(number, 90);
        assert_eq!(append(&mut log, &bytes), i64::try_from(number).unwrap());
        expected.push((i64::try_from(number).unwrap(), value_of(&bytes)));
        assert_eq!(log.end(), Offset(i64::try_from(number).unwrap() + 1));
    }
    assert!(log.segments().len() > 5);
    assert_eq!(contents(&log.reader()), expected);
    let report = log.close().unwrap();
    assert_eq!((report.start, report.end), (Offset(0), Offset(50)));

    let (log, report) = open(&fs, &small());
    assert!(report.clean && !report.created, "{report:?}");
    assert_eq!((report.segments_scanned, report.indexes_rebuilt), (0, 0));
    assert_eq!(log.flushed(), Offset(50));
    assert_eq!(contents(&log.reader()), expected);
}

#[test]
fn a_crash_of_the_process_loses_nothing() {
    let fs = disk(2);
    let log = filled(&fs, &small(), 30);
    let mut records = contents(&log.reader());
    // Killed: nothing of what it would do at its end is done.
    let fs = fs.process_crash_image();
    let (mut log, report) = open(&fs, &small());
    assert!(!report.clean && report.cut.is_none(), "{report:?}");
    assert_eq!(contents(&log.reader()), records);
    assert_eq!(log.flushed(), Offset(30), "opening synced what it found");
    // What was acknowledged keeps its offsets, whatever comes after.
    for number in 0..10 {
        let value = [u8::try_from(200 + number).unwrap(); 40];
        assert_eq!(append(&mut log, &batch(T0, &[value])), 30 + number);
        records.push((30 + number, value.to_vec()));
    }
    assert_eq!(contents(&log.reader()), records);
    let (mut log, report) = open(&fs.process_crash_image(), &small());
    assert!(report.cut.is_none(), "{report:?}");
    assert_eq!(contents(&log.reader()), records);
    assert_eq!(log.checkpoint().unwrap(), Offset(40));
}

#[test]
fn a_stored_batch_is_the_producers_bytes_but_for_offset_and_epoch() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    append(&mut log, &numbered(0, 90));
    let sent = batch(T0, &[b"a", b"b", b"c"]);
    let appended = log.append(NOW, LeaderEpoch(4), &sent).unwrap();
    assert_eq!((appended.first, appended.last, appended.timestamp), (Offset(1), Offset(3), TimestampMs::NONE));
    let mut expected = sent;
    expected[..8].copy_from_slice(&1i64.to_be_bytes());
    expected[12..16].copy_from_slice(&4i32.to_be_bytes());
    assert_eq!(log.read(Offset(1), ReadLimit::bytes(1)).unwrap().bytes, expected);
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(4), Offset(1))]);
    let stale = log.append(NOW, LeaderEpoch(3), &batch(T0, &[b"late"]));
    assert!(matches!(stale, Err(AppendError::StaleEpoch { given: LeaderEpoch(3), latest: LeaderEpoch(4) })));
    assert_eq!(log.end(), Offset(4));
}

#[test]
fn log_append_time_is_stamped_and_told() {
    let fs = disk(1);
    let mut options = small();
    options.rules.timestamp_type = TimestampType::LogAppendTime;
    let (mut log, _) = open(&fs, &options);
    let appended = log.append(NOW, LeaderEpoch(0), &batch(T0 - 99, &[b"a", b"b"])).unwrap();
    assert_eq!(appended.timestamp, NOW);
    let found = log.reader().max_timestamp(Offset::MAX).unwrap().unwrap();
    assert_eq!((found.offset, found.timestamp), (Offset(0), NOW), "all records have the time of the batch");
    assert_eq!(contents(&log.reader()).len(), 2, "the checksum was made anew");
}

#[test]
fn reads_begin_and_end_where_they_should() {
    let fs = disk(1);
    let mut log = filled(&fs, &one_segment(), 10);
    log.append(NOW, LeaderEpoch(0), &batch(T0, &[b"x"; 5])).unwrap();
    let one = numbered(0, 90).len();
    let read = |from: i64, limit| log.read(Offset(from), limit).map(|found| (found.first.0, found.next.0));
    assert_eq!(read(3, ReadLimit::bytes(1)).unwrap(), (3, 4), "at least one");
    assert_eq!(read(3, ReadLimit::bytes(3 * one + 5)).unwrap(), (3, 6), "whole batches");
    assert_eq!(read(3, ReadLimit::bytes(one - 1).or_nothing()).unwrap(), (3, 3));
    assert_eq!(read(3, ReadLimit::bytes(1 << 20).below(Offset(7))).unwrap(), (3, 7));
    assert_eq!(read(3, ReadLimit::bytes(1 << 20).below(Offset(3))).unwrap(), (3, 3));
    assert_eq!(read(3, ReadLimit::bytes(1 << 20).below(Offset(0))).unwrap(), (3, 3));
    assert_eq!(read(12, ReadLimit::bytes(1)).unwrap(), (10, 15), "from inside of a batch");
    assert_eq!(read(10, ReadLimit::bytes(1).below(Offset(14))).unwrap(), (10, 10), "it reaches the upper offset");
    assert_eq!(read(15, ReadLimit::bytes(1)).unwrap(), (15, 15), "at the end");
    for outside in [-1, 16] {
        assert!(matches!(read(outside, ReadLimit::bytes(1)), Err(ReadError::OutOfRange { .. })));
    }
    let mut buffer = vec![7; 10_000];
    let (first, next) = log.reader().read_into(Offset(4), ReadLimit::bytes(one), &mut buffer).unwrap();
    assert_eq!((first, next, buffer.len()), (Offset(4), Offset(5), one));
}

#[test]
fn s49_offsets_in_gaps_give_the_next_batch_across_segments_too() {
    let fs = disk(1);
    let (mut log, _) = open_hinted(&fs, &small(), OpenHints { log_start: Some(Offset(40)), ..OpenHints::default() });
    log.append_replicated(NOW, &[stored(50, 1, &[[1; 400]; 2]), stored(60, 1, &[[2; 300]; 2])].concat()).unwrap();
    log.append_replicated(NOW, &stored(90, 2, &[b"z"])).unwrap();
    assert_eq!(bases(&log), [40, 52], "segments begin where the one before ends");
    for (from, first) in [(40, 50), (49, 50), (51, 50), (52, 60), (55, 60), (60, 60), (61, 60), (62, 90), (89, 90)] {
        assert_eq!(log.read(Offset(from), ReadLimit::bytes(1)).unwrap().first, Offset(first), "from {from}");
    }
    drop(log);
    let (log, report) = open(&fs, &small());
    assert!(report.cut.is_none(), "{report:?}");
    assert_eq!(log.end(), Offset(91));
}

#[test]
fn s44_s46_times_are_those_of_records() {
    for codec in [Codec::None, Codec::Lz4, Codec::Gzip, Codec::Snappy, Codec::Zstd] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &small());
        let reader = log.reader();
        assert_eq!(reader.max_timestamp(Offset::MAX).unwrap(), None);
        assert_eq!(reader.offset_for_timestamp(TimestampMs(0), Offset::MAX).unwrap(), None);
        for round in 0..8 {
            let mut builder = BatchBuilder::new(codec);
            for time in [10, 30, 20] {
                builder.push(Record::new(TimestampMs(T0 + time + 100 * round), &[9; 100]));
            }
            log.append(NOW, LeaderEpoch(0), &builder.build()).unwrap();
        }
        let at = |time: i64, upper: i64| {
            let found = reader.offset_for_timestamp(TimestampMs(T0 + time), Offset(upper)).unwrap();
            found.map(|found| (found.offset.0, found.timestamp.0 - T0))
        };
        assert_eq!(at(0, 24), Some((0, 10)));
        assert_eq!(at(10, 24), Some((0, 10)));
        assert_eq!(at(15, 24), Some((1, 30)));
        assert_eq!(at(31, 24), Some((3, 110)));
        assert_eq!(at(725, 24), Some((22, 730)));
        assert_eq!(at(725, 22), None, "not below the upper offset");
        assert_eq!(at(1 << 40, 24), None);
        let max = |upper: i64| reader.max_timestamp(Offset(upper)).unwrap().map(|found| found.offset.0);
        assert_eq!((max(24), max(21), max(20), max(3), max(0)), (Some(22), Some(19), Some(19), Some(1), None));
        log.advance_start(Offset(2)).unwrap();
        assert_eq!(at(0, 24), Some((2, 20)), "not below the start");
        assert_eq!(at(25, 24), Some((3, 110)));
    }
}

#[test]
fn rolls_come_by_size_time_index_and_reach() {
    let fs = disk(1);
    let one = u32::try_from(numbered(0, 90).len()).unwrap();
    // By size: exactly full is not over.
    let mut log = filled(&fs, &LogOptions { segment_bytes: 3 * one, ..small() }, 7);
    assert_eq!(bases(&log), [0, 3, 6]);
    // By the records' time, from the segment's first: not by the clock.
    log.set_options(LogOptions { segment_ms: 1000, ..one_segment() }).unwrap();
    let at = |log: &mut Log, time: i64| log.append(NOW, LeaderEpoch(0), &batch(T0 + time, &[b"t"])).unwrap();
    at(&mut log, 6 + 1000);
    assert_eq!(bases(&log), [0, 3, 6]);
    at(&mut log, 6 + 1001);
    assert_eq!(bases(&log), [0, 3, 6, 8]);
    at(&mut log, 0);
    assert_eq!(bases(&log).len(), 4, "older records do not roll");
    // By a full index: three time entries, one kept for sealing.
    log.set_options(LogOptions { index_bytes_max: 36, index_interval_bytes: 0, ..one_segment() }).unwrap();
    for time in 2000..2010 {
        at(&mut log, time);
    }
    assert!(bases(&log).len() > 6, "{:?}", bases(&log));
    log.set_options(LogOptions { segment_ms: i64::MAX, ..one_segment() }).unwrap();
    // By reach: offsets within a segment fit 31 bits.
    let base = bases(&log).pop().unwrap();
    log.append_replicated(NOW, &stored(base + i64::from(i32::MAX), 0, &[b"far"])).unwrap();
    assert_eq!(bases(&log).pop(), Some(base));
    let end = log.end().0;
    log.append_replicated(NOW, &stored(end + (1 << 33), 0, &[b"farther"])).unwrap();
    assert_eq!(bases(&log).pop(), Some(end + (1 << 33)), "too far for a segment that begins at the end");
    let before = contents(&log.reader());
    drop(log);
    let (log, report) = open(&fs, &one_segment());
    assert!(report.cut.is_none(), "the gap is no lost tail: {report:?}");
    assert_eq!(contents(&log.reader()), before);
}

#[test]
fn s26_s27_s28_an_empty_segment_is_never_rolled_onto_itself() {
    let fs = disk(1);
    let hints = OpenHints { log_start: Some(Offset(15_997)), ..OpenHints::default() };
    let options = LogOptions { segment_ms: 1, checkpoint_interval_ms: -1, ..small() };
    let (mut log, _) = open_hinted(&fs, &options, hints);
    let later = |ms: i64| TimestampMs(NOW.0 + ms);
    for ms in [0, 500, 300_001] {
        assert_eq!(keep_house(&mut log, later(ms), Offset(0)), []);
    }
    assert_eq!(log.append(later(400_000), LeaderEpoch(0), &batch(T0, &[b"a"])).unwrap().first, Offset(15_997));
    assert_eq!(bases(&log), [15_997]);
    // Truncated to empty: not full, not old.
    log.truncate_to(Offset(15_997)).unwrap();
    log.append_replicated(later(900_000), &stored(15_997 + 500, 0, &[b"b"])).unwrap();
    assert_eq!(bases(&log), [15_997]);
    // By the clock, once there is a record: an empty one follows, and that one stays.
    assert_eq!(keep_house(&mut log, later(900_001), Offset(0)), []);
    let steps = keep_house(&mut log, later(900_002), Offset(0));
    assert!(matches!(steps[..], [Step::Rolled { base: Offset(16_498) }, Step::Checkpointed { .. }]), "{steps:?}");
    assert_eq!(keep_house(&mut log, later(2_000_000), Offset(0)), []);
    assert_eq!(bases(&log), [15_997, 16_498]);
    assert_eq!(append(&mut log, &numbered(1, 10)), 16_498);
}

#[test]
fn s26_extreme_sizes_work_or_are_refused() {
    let fs = disk(1);
    let options = LogOptions { segment_bytes: 200, index_interval_bytes: 0, segment_ms: 1, ..LogOptions::default() };
    let (mut log, _) = open(&fs, &options);
    let too_large = log.append(NOW, LeaderEpoch(0), &numbered(0, 300));
    assert!(matches!(too_large, Err(AppendError::LargerThanSegment { segment_bytes: 200, .. })));
    assert_eq!(log.end(), Offset(0));
    // A follower takes what its leader took, each in a segment of its own (S36).
    log.append_replicated(NOW, &[stored(0, 0, &[[1; 300]]), stored(1, 0, &[[2; 300]])].concat()).unwrap();
    assert_eq!(bases(&log), [0, 1]);
    assert_eq!(contents(&log.reader()).len(), 2);
    let largest = LogOptions { segment_bytes: i32::MAX as u32, retention_ms: i64::MAX, retention_bytes: 0, ..options };
    log.set_options(largest).unwrap();
    append(&mut log, &numbered(0, 300));
    assert!(log.set_options(LogOptions { segment_bytes: 0, ..LogOptions::default() }).is_err());
    assert_eq!(log.options().segment_bytes, i32::MAX as u32, "a refused option changes nothing");
}

#[test]
fn the_last_offset_there_is_is_the_last_that_is_given() {
    let fs = disk(1);
    let hints = OpenHints { log_start: Some(Offset(i64::MAX - 2)), ..OpenHints::default() };
    let (mut log, _) = open_hinted(&fs, &small(), hints);
    assert_eq!(append(&mut log, &numbered(0, 10)), i64::MAX - 2);
    assert!(matches!(log.append(NOW, LeaderEpoch(0), &batch(T0, &[b"a", b"b"])), Err(AppendError::OffsetsExhausted)));
    assert_eq!(append(&mut log, &numbered(0, 10)), i64::MAX - 1);
    assert!(matches!(log.append(NOW, LeaderEpoch(0), &numbered(0, 10)), Err(AppendError::OffsetsExhausted)));
    drop(log);
    let (log, report) = open(&fs, &small());
    assert!(report.cut.is_none(), "{report:?}");
    assert_eq!((log.end(), contents(&log.reader()).len()), (Offset::MAX, 2));
}

#[test]
fn replicated_batches_must_continue_the_log_and_be_whole() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 5);
    log.append_replicated(NOW, &stored(5, 3, &[b"a"; 2])).unwrap();
    let mut flipped = stored(7, 3, &[b"b"]);
    *flipped.last_mut().unwrap() ^= 1;
    let refused = [
        stored(6, 3, &[b"below the end"]),
        stored(7, 2, &[b"an old epoch"]),
        flipped,
        [stored(7, 3, &[b"c"; 3]), stored(9, 3, &[b"inside the one before"])].concat(),
        [stored(7, 4, &[b"d"]), stored(8, 3, &[b"epochs fall"])].concat(),
        b"no batch at all, but long enough for a header and then some more of it.".to_vec(),
    ];
    for (at, bytes) in refused.iter().enumerate() {
        assert!(log.append_replicated(NOW, bytes).is_err(), "case {at}");
        assert_eq!(log.end(), Offset(7), "case {at}: nothing of it is in the log");
    }
    // A batch that breaks off is left out, and so is nothing at all.
    let torn = [stored(7, 3, &[b"e"]), stored(8, 3, &[b"f"])[..40].to_vec()].concat();
    assert_eq!(log.append_replicated(NOW, &torn).unwrap().last, Offset(7));
    let nothing = log.append_replicated(NOW, b"").unwrap();
    assert!(nothing.last < nothing.first && log.end() == Offset(8));
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(3), Offset(5))]);
}

#[test]
fn a_follower_whose_leader_starts_inside_of_a_batch_takes_it_whole() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    log.reset_to(Offset(5)).unwrap();
    log.append_replicated(NOW, &stored(0, 2, &[b"a"; 10])).unwrap();
    for _ in 0..2 {
        assert_eq!((log.start(), log.end()), (Offset(5), Offset(10)));
        assert_eq!(contents(&log.reader()).len(), 5);
        drop(log);
        log = open(&fs, &small()).0;
    }
    let below = log.append_replicated(NOW, &stored(8, 2, &[b"b"; 9]));
    assert!(matches!(below, Err(AppendError::BelowEnd { .. })), "only into an empty log");
}

#[test]
fn idempotent_producers_get_their_first_answer_again() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    let send = |log: &mut Log, sequence: i32| {
        let mut builder = BatchBuilder::new(Codec::None).producer(1, 0, sequence);
        builder.push(Record::new(TimestampMs(T0), b"one")).push(Record::new(TimestampMs(T0), b"two"));
        log.append(NOW, LeaderEpoch(0), &builder.build())
    };
    for sequence in 0..6 {
        assert!(!send(&mut log, sequence * 2).unwrap().duplicate);
    }
    let again = send(&mut log, 6).unwrap();
    assert_eq!((again.first, again.last, again.duplicate), (Offset(6), Offset(7), true));
    assert!(matches!(send(&mut log, 0), Err(AppendError::Sequence(_))), "the sixth last is forgotten");
    // A truncation takes what it cut out of the table, and leaves the rest.
    log.truncate_to(Offset(8)).unwrap();
    assert!(send(&mut log, 6).unwrap().duplicate);
    assert!(!send(&mut log, 8).unwrap().duplicate, "this one was cut off, and comes again");
    drop(log);
    let (mut log, _) = open(&fs, &small());
    assert!(send(&mut log, 8).unwrap().duplicate, "recovery replays the batches");
    assert_eq!(log.end(), Offset(10));
    let day = 24 * 60 * 60 * 1000;
    let mut steps = keep_house(&mut log, NOW, Offset(0));
    steps.extend(keep_house(&mut log, TimestampMs(T0 + day), Offset(0)));
    assert!(steps.contains(&Step::ProducersExpired { producers: 1 }), "{steps:?}");
    assert!(log.producers().is_empty());
}

#[test]
fn s31_truncation_cuts_at_batches_wherever_they_are() {
    for reopen in [false, true] {
        for to in [0, 1, 3, 49, 50, 99, 100, 101] {
            let fs = disk(1);
            let mut log = filled(&fs, &LogOptions { segment_bytes: 800, ..small() }, 100);
            if reopen {
                drop(log);
                log = open(&fs, &small()).0;
            }
            let truncated = log.truncate_to(Offset(to)).unwrap();
            let end = to.min(100);
            assert_eq!((truncated.from, truncated.end), (Offset(100), Offset(end)), "to {to}");
            assert_eq!(log.end(), Offset(end));
            assert_eq!(contents(&log.reader()).len(), usize::try_from(end).unwrap());
            assert!(log.flushed() <= log.end() && log.recovery_point() <= log.end());
            assert_eq!(append(&mut log, &numbered(7, 90)), end);
            assert_eq!(contents(&log.reader()).len(), usize::try_from(end + 1).unwrap());
            let total: u64 = 160 * u64::try_from(100 - end).unwrap();
            assert!(truncated.bytes.abs_diff(total) <= total / 2 || total == 0, "{truncated:?}");
        }
    }
    // A batch goes as a whole, and the end is the end of what stays.
    let fs = disk(2);
    let (mut log, _) = open(&fs, &small());
    for _ in 0..3 {
        log.append(NOW, LeaderEpoch(0), &batch(T0, &[b"x"; 10])).unwrap();
    }
    assert_eq!(log.truncate_to(Offset(15)).unwrap().end, Offset(10));
    assert_eq!(log.end(), Offset(10));
    log.advance_start(Offset(5)).unwrap();
    assert_eq!(log.truncate_to(Offset(7)).unwrap().end, Offset(5), "the start lies in the batch that goes");
    assert_eq!((log.start(), log.end()), (Offset(5), Offset(5)));
    assert_eq!(log.truncate_to(Offset(2)).unwrap().end, Offset(2), "below the start");
    assert_eq!((log.start(), log.end()), (Offset(2), Offset(2)));
    assert!(matches!(log.truncate_to(Offset(-1)), Err(TruncateError::Negative(_))));
}

#[test]
fn r04_truncation_at_the_end_forgets_epochs_without_records() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 10);
    log.assign_epoch(LeaderEpoch(3), Offset(10)).unwrap();
    assert_eq!(log.latest_epoch(), LeaderEpoch(3));
    assert_eq!(log.end_of_epoch(LeaderEpoch(0)).end, Offset(10));
    assert_eq!(log.truncate_to(Offset(10)).unwrap().bytes, 0);
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0))]);
    // An epoch that has no record yields to a lower one that gets some; one that has does not.
    log.assign_epoch(LeaderEpoch(9), Offset(10)).unwrap();
    log.append_replicated(NOW, &stored(10, 4, &[b"a"])).unwrap();
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(4), Offset(10))]);
}

#[test]
fn the_start_moves_up_only_and_not_past_the_end() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 20);
    assert_eq!(log.advance_start(Offset(7)).unwrap(), Offset(7));
    assert_eq!(log.advance_start(Offset(3)).unwrap(), Offset(7));
    assert!(matches!(log.advance_start(Offset(21)), Err(TruncateError::PastEnd { .. })));
    assert!(matches!(log.read(Offset(6), ReadLimit::bytes(1)), Err(ReadError::OutOfRange { .. })));
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(7))]);
    drop(log);
    assert_eq!(open(&fs, &small()).0.start(), Offset(7), "it is durable at once");
}

#[test]
fn s39_s40_s53_retention_takes_whole_replicated_segments() {
    let fs = disk(1);
    let mut options = LogOptions { retention_bytes: 0, file_delete_delay_ms: 60_000, ..small() };
    let mut log = filled(&fs, &options, 50);
    let before = bases(&log);
    assert!(keep_house(&mut log, NOW, Offset(before[2] - 1)).contains(&Step::SegmentsRetired {
        segments: 1,
        bytes: log_bytes(&fs, before[0]),
        log_start: Offset(before[1])
    }));
    assert_eq!(bases(&log), before[1..]);
    assert_eq!(log.start(), Offset(before[1]));
    // Readers that hold the segment may go on for the delay; then its files go, and only its.
    let deleted = || names(&fs).into_iter().filter(|name| name.ends_with(".deleted")).count();
    assert!(deleted() >= 1);
    keep_house(&mut log, TimestampMs(NOW.0 + 59_999), Offset(0));
    assert!(deleted() >= 1);
    assert_eq!(keep_house(&mut log, TimestampMs(NOW.0 + 60_000), Offset(0)), [Step::FilesRemoved]);
    assert_eq!(deleted(), 0);
    // All of it, when all is replicated: an empty segment follows, and offsets go on.
    keep_house(&mut log, NOW, Offset(50));
    assert_eq!((log.start(), log.end(), bases(&log)), (Offset(50), Offset(50), vec![50]));
    assert_eq!(append(&mut log, &numbered(1, 90)), 50);

    // Without retention, only what lies below the start.
    options.retention = false;
    let fs = disk(2);
    let mut log = filled(&fs, &options, 50);
    let mut steps = keep_house(&mut log, NOW, Offset(50));
    steps.retain(|step| !matches!(step, Step::Scrubbed { .. }));
    assert_eq!(steps.len(), 1, "the sealed segments are synced, nothing else");
    log.advance_start(Offset(before[3] + 1)).unwrap();
    keep_house(&mut log, NOW, Offset(50));
    assert_eq!(bases(&log), before[3..]);
    log.advance_start(Offset(50)).unwrap();
    keep_house(&mut log, NOW, Offset(50));
    assert_eq!(bases(&log), before[before.len() - 1..], "the last one stays, and nothing loops");
}

fn log_bytes(fs: &SimFs, base: i64) -> u64 {
    file_bytes(fs, &format!("{base:020}.log.deleted")).len() as u64
}

#[test]
fn s41_a_time_from_the_future_keeps_no_segment() {
    let fs = disk(1);
    fs.set_now(TimestampMs(T0));
    let hour = 60 * 60 * 1000;
    let mut options = LogOptions { retention_ms: hour, segment_bytes: 300, ..small() };
    options.rules.timestamp_after_max_ms = i64::MAX;
    let (mut log, _) = open(&fs, &options);
    append(&mut log, &batch(1_700_000_000_000_000_000, &[[0; 200]]));
    for number in 1..5 {
        append(&mut log, &numbered(number, 200));
    }
    keep_house(&mut log, TimestampMs(T0 + hour / 2), Offset(5));
    assert_eq!(log.start(), Offset(0));
    keep_house(&mut log, TimestampMs(T0 + 2 * hour), Offset(5));
    assert_eq!(log.start(), Offset(5));
}

#[test]
fn ages_are_read_from_the_indexes_after_a_restart() {
    let fs = disk(1);
    fs.set_now(TimestampMs(T0 + 1_000_000));
    let options = LogOptions { retention_ms: 500, ..small() };
    filled(&fs, &options, 20).close().unwrap();
    let (mut log, _) = open(&fs, &options);
    let second = bases(&log)[2];
    // The first two segments end before this time.
    let now = TimestampMs(T0 + second + 500);
    let steps = keep_house(&mut log, TimestampMs(T0 + 400), Offset(20));
    assert!(steps.contains(&Step::AgeRead { base: Offset(0) }), "{steps:?}");
    assert_eq!(log.start(), Offset(0));
    keep_house(&mut log, now, Offset(20));
    assert_eq!(log.start(), Offset(second));
}

#[test]
fn a_read_in_an_old_generation_is_superseded() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 10);
    let reader = log.reader();
    let generation = log.generation();
    let limit = ReadLimit::bytes(100).in_generation(generation);
    append(&mut log, &numbered(10, 90));
    assert_eq!(reader.read(Offset(3), limit).unwrap().first, Offset(3), "an append is none");
    log.truncate_to(Offset(6)).unwrap();
    assert!(matches!(reader.read(Offset(3), limit), Err(ReadError::Superseded)));
    assert_eq!(reader.read(Offset(3), ReadLimit::bytes(1)).unwrap().first, Offset(3));
    assert!(reader.generation() > generation);
}

#[test]
fn readers_end_with_their_log() {
    let fs = disk(1);
    let log = filled(&fs, &small(), 3);
    let reader = log.reader();
    drop(log);
    assert!(matches!(reader.read(Offset(0), ReadLimit::bytes(1)), Err(ReadError::Closed(Fence::Closed))));
}

#[test]
fn s51_few_files_are_open_however_many_segments_there_are() {
    let fs = disk(1);
    let options = LogOptions { open_files: OpenFiles::bounded(2), ..small() };
    let mut log = filled(&fs, &options, 100);
    log.checkpoint().unwrap();
    assert!(log.segments().len() > 15);
    for from in (0..100).chain((0..100).rev()) {
        assert_eq!(log.read(Offset(from), ReadLimit::bytes(1)).unwrap().first, Offset(from));
    }
}

/// S38, R10: each offset once, in order, while the writer rolls, cuts and flushes.
#[test]
fn readers_and_the_writer_do_not_disturb_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let options = LogOptions { segment_bytes: 4000, index_interval_bytes: 200, ..LogOptions::default() };
    let options = LogOptions { open_files: OpenFiles::bounded(3), ..options };
    let (mut log, _) = Log::open(directory.path().join("log"), options).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (reader, done) = (log.reader(), done.clone());
            scope.spawn(move || {
                let mut from = Offset(0);
                let mut bytes = Vec::new();
                // A record's value is its offset and how often the log was cut before it was written.
                let mut cuts_seen = 0;
                let mut steady_reads = 0;
                loop {
                    let finished = done.load(Ordering::SeqCst);
                    let generation = reader.generation();
                    let end_before = reader.end();
                    let (first, next) = match reader.read_into(from, ReadLimit::bytes(900), &mut bytes) {
                        Ok(found) => found,
                        Err(ReadError::OutOfRange { end, .. }) => {
                            assert!(reader.generation() > 0);
                            from = end;
                            continue;
                        }
                        Err(error) => panic!("{error}"),
                    };
                    let (mut values, mut expected) = (Vec::new(), first);
                    for batch in batches(&bytes) {
                        let batch = batch.unwrap();
                        assert!(batch.crc_matches());
                        assert_eq!(batch.base_offset(), expected, "a read is of one history");
                        expected = batch.next_offset();
                        for record in batch.records().unwrap() {
                            let record = record.unwrap();
                            let value = std::str::from_utf8(record.value.unwrap()).unwrap().to_owned();
                            let (offset, cut) = value.split_once(' ').unwrap();
                            let at = batch.base_offset().0 + i64::from(record.offset_delta);
                            assert_eq!(offset.parse::<i64>().unwrap(), at);
                            values.push((at, cut.parse::<u64>().unwrap()));
                        }
                    }
                    assert_eq!(expected, next);
                    if generation == reader.generation() {
                        // Nothing was cut meanwhile: each offset once, and none is left out.
                        steady_reads += 1;
                        assert!(first <= from && (next > from || from >= end_before), "{first}..{next} from {from}");
                        for (at, cut) in &values {
                            assert!(*cut >= cuts_seen || *at < from.0, "an old history behind a new one");
                        }
                    }
                    cuts_seen = values.iter().map(|(_, cut)| *cut).fold(cuts_seen, u64::max);
                    if finished && next == from {
                        assert!(steady_reads > 100, "{steady_reads} reads between two cuts");
                        return;
                    }
                    from = next;
                    if from > reader.end() {
                        from = reader.end();
                    }
                }
            });
        }
        let mut cuts = 0;
        for round in 0..1500 {
            let offset = log.end().0;
            let values: Vec<String> =
                (offset..offset + 1 + round % 3).map(|offset| format!("{offset} {cuts}")).collect();
            log.append(NOW, LeaderEpoch(0), &batch(T0 + round, &values)).unwrap();
            if round % 97 == 96 {
                let to = log.truncate_to(Offset((log.end().0 - 40).max(0))).unwrap().end;
                assert_eq!(to, log.end());
                cuts += 1;
            }
            if round % 50 == 49 {
                let job = log.begin_checkpoint();
                if let Some(job) = job {
                    log.finish_flush(job.run()).unwrap();
                }
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    let end = log.end();
    log.close().unwrap();
    let (log, report) = Log::open(directory.path().join("log"), LogOptions::default()).unwrap();
    assert!(report.clean && log.end() == end);
    let locked = Log::open(directory.path().join("log"), LogOptions::default());
    assert!(matches!(locked, Err(OpenError::Locked(_))), "{locked:?}");
}

#[test]
fn snapshots_of_earlier_stops_go_when_a_later_one_serves() {
    let fs = disk(61);
    let options = one_segment();
    for round in 0..5 {
        let (mut log, _) = open(&fs, &options);
        append(&mut log, &numbered(round, 90));
        log.close().unwrap();
    }
    drop(open(&fs, &options));
    let names = fs.read_dir(Path::new(DIR)).unwrap().into_iter().map(|entry| entry.name);
    let snapshots: Vec<_> = names.filter(|name| name.ends_with(".snapshot")).collect();
    assert_eq!(snapshots, ["00000000000000000005.snapshot"]);
}

#[test]
fn a_verified_read_returns_what_any_read_does_up_to_the_first_bad_batch() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &LogOptions { segment_bytes: 100 << 20, ..one_segment() });
    for bytes in [100, 200_000, 62_000, 61, 700_000, 1, 90_000, 300_000, 7] {
        append(&mut log, &numbered(0, bytes));
    }
    // Batches that end at each of the bytes around a limit of the reads, with others behind them.
    for more in 0..140 {
        append(&mut log, &numbered(more, 262_000 + usize::try_from(more).unwrap()));
        append(&mut log, &numbered(more, 100));
    }
    let reader = log.reader();
    let at_first = (0..9).flat_map(|from| [1, 262_144, 1 << 20].map(|bytes| (from, ReadLimit::bytes(bytes))));
    let below = (0..9).map(|from| (from, ReadLimit::bytes(1 << 20).below(Offset(from + 2))));
    let around_the_end = (9..log.end().0).step_by(2).map(|from| (from, ReadLimit::bytes(264_000)));
    for (from, limit) in at_first.chain(below).chain(around_the_end) {
        let expected = reader.read(Offset(from), limit).unwrap();
        assert!(!expected.bytes.is_empty());
        assert!(reader.read(Offset(from), limit.verified()).unwrap() == expected, "{from} {limit:?}");
    }
    // A bad batch is where it stops.
    let name = "00000000000000000000.log";
    let all = file_bytes(&fs, name);
    for bad in [3, 8, 11, 14] {
        let at: usize = batches(&all).take(bad).map(|batch| batch.unwrap().bytes().len()).sum();
        let mut rotten = all.clone();
        rotten[at + 65] ^= 1;
        write_file(&fs, name, &rotten);
        let read = reader.read(Offset(0), ReadLimit::bytes(4 << 20).verified()).unwrap();
        assert!((read.next.0, &read.bytes[..]) == (i64::try_from(bad).unwrap(), &all[..at]), "{bad}: {}", read.next);
    }
}
