//! Files, records and names as large as they can be.

use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::{Fs, OsFs};
use highwater_storage::{
    AppendError, BatchBuilder, BatchView, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, OpenHints, ReadLimit,
    Record, TimestampMs, TopicId, TopicPartition,
};

use crate::support::{NOW, T0, batch, contents, disk, open, path, stored};

/// A segment file one byte short of what an index entry can point into: a batch with a body of nearly 2 GiB, which is a
/// hole in the file and never read, and one behind it that ends at 2^31-2.
#[test]
fn s26_a_segment_of_nearly_two_gibibytes_is_read_rolled_and_reopened() {
    const FILE_BYTES: u64 = i32::MAX as u64 - 1;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("00000000000000000000.log");
    let (first, last) = (stored(0, 0, &[b"first"]), stored(2, 0, &[b"last"]));
    let mut giant = stored(1, 0, &[b"giant"]);
    let giant_bytes = FILE_BYTES - (first.len() + last.len()) as u64;
    giant[8..12].copy_from_slice(&i32::try_from(giant_bytes - 12).unwrap().to_be_bytes());
    let last_at = FILE_BYTES - last.len() as u64;
    let written = std::fs::File::create(&file).unwrap();
    written.set_len(FILE_BYTES).unwrap();
    for (bytes, at) in [(&first, 0), (&giant, first.len() as u64), (&last, last_at)] {
        written.write_all_at(bytes, at).unwrap();
    }
    let positions = [(1i32, first.len() as u64), (2, last_at)];
    let index: Vec<u8> = positions
        .iter()
        .flat_map(|(offset, at)| [offset.to_be_bytes(), i32::try_from(*at).unwrap().to_be_bytes()].concat())
        .collect();
    let times: Vec<u8> =
        (0..3).flat_map(|at: i32| [&(T0 + i64::from(at)).to_be_bytes()[..], &at.to_be_bytes()].concat()).collect();
    std::fs::write(file.with_extension("index"), index).unwrap();
    std::fs::write(file.with_extension("timeindex"), times).unwrap();

    let options = LogOptions { segment_bytes: i32::MAX as u32, index_interval_bytes: 0, ..LogOptions::default() };
    let options = LogOptions { scrub_interval_ms: -1, ..options };
    let hints = OpenHints { clean: Some(true), recovery_point: Some(Offset(3)), ..OpenHints::default() };
    let reopen = || Log::open_with(Arc::new(OsFs), directory.path(), options.clone(), hints).unwrap();
    let found = |reader: &LogReader, offset: i64| {
        let fetched = reader.read(Offset(offset), ReadLimit::bytes(1)).unwrap();
        assert_eq!((fetched.first, fetched.next), (Offset(offset), Offset(offset + 1)));
        let by_time = reader.offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap().unwrap();
        assert_eq!(by_time.offset, Offset(offset));
        fetched.bytes
    };
    let (mut log, report) = reopen();
    assert!(report.clean && report.cut.is_none() && log.end() == Offset(3), "{report:?}");
    assert_eq!(log.size_bytes(), FILE_BYTES);
    assert_eq!((found(&log.reader(), 0), found(&log.reader(), 2)), (first.clone(), last.clone()));
    // There is room for one byte: the next batch goes into a segment of its own.
    assert_eq!(log.append(NOW, LeaderEpoch(0), &batch(T0 + 3, &[b"next"])).unwrap().first, Offset(3));
    let bases: Vec<i64> = log.segments().iter().map(|segment| segment.base.0).collect();
    assert_eq!(bases, [0, 3]);
    log.close().unwrap();
    let (mut log, report) = reopen();
    assert!(report.clean && report.segments == 2, "{report:?}");
    assert_eq!((found(&log.reader(), 0), found(&log.reader(), 2)), (first.clone(), last));
    assert_eq!(found(&log.reader(), 3).len(), batch(T0, &[b"next"]).len());
    // A cut behind the giant batch, and one into it.
    assert_eq!(log.truncate_to(Offset(2)).unwrap().end, Offset(2));
    assert_eq!(log.size_bytes(), last_at);
    assert_eq!(log.truncate_to(Offset(1)).unwrap().end, Offset(1));
    assert_eq!(log.size_bytes(), first.len() as u64);
    assert_eq!(found(&log.reader(), 0), first);
}

const LARGE_BYTES: usize = 40 << 20;

/// The large record, by its offset, by its time, and by what comes before and after it.
fn the_large_one_is_served(log: &Log, what: &str) {
    let reader = log.reader();
    let mut from = Offset(0);
    for offset in 0..5 {
        let fetched = reader.read(from, ReadLimit::bytes(1).verified()).unwrap();
        assert_eq!((fetched.first, fetched.next), (Offset(offset), Offset(offset + 1)), "{what}");
        let (view, _) = BatchView::parse(&fetched.bytes).unwrap();
        let record = view.records().unwrap().next().unwrap().unwrap();
        let expected = if offset == 2 { LARGE_BYTES } else { 100 };
        assert_eq!(record.value.unwrap().len(), expected, "{what}");
        let found = reader.offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap();
        assert_eq!(found.map(|found| found.offset), Some(Offset(offset)), "{what}");
        from = fetched.next;
    }
    assert_eq!(reader.end(), from, "{what}");
}

/// What was accepted under one limit stays readable under a lower one, and a follower takes it.
#[test]
fn s36_a_record_larger_than_the_limits_of_today_is_read_recovered_and_replicated() {
    let fs = disk(1);
    let mut generous = LogOptions::default();
    generous.rules.max_message_bytes = 64 << 20;
    let mut strict = LogOptions { segment_bytes: 4 << 20, ..LogOptions::default() };
    strict.rules.max_message_bytes = 1 << 20;
    let with = |offset: i64, bytes: usize| {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(T0 + offset), &vec![7; bytes]));
        builder.build()
    };
    let (mut log, _) = open(&fs, &generous);
    for offset in 0..5 {
        let bytes = if offset == 2 { LARGE_BYTES } else { 100 };
        log.append(NOW, LeaderEpoch(0), &with(offset, bytes)).unwrap();
    }
    log.close().unwrap();

    let (log, report) = open(&fs, &strict);
    assert!(report.clean && report.rotten.is_empty(), "{report:?}");
    the_large_one_is_served(&log, "after a clean stop");
    drop(log);
    // Everything is doubted.
    fs.remove_file(&path("highwater-state")).unwrap();
    let (mut log, report) = open(&fs, &strict);
    assert!(!report.clean && report.cut.is_none() && report.bytes_scanned > LARGE_BYTES as u64, "{report:?}");
    the_large_one_is_served(&log, "after a scan");
    let refused = log.append(NOW, LeaderEpoch(0), &with(5, 2 << 20));
    assert!(matches!(refused, Err(AppendError::Refused(_))), "the limit is that of today: {refused:?}");

    let follower_disk = disk(2);
    let (mut follower, _) = open(&follower_disk, &strict);
    while follower.end() < log.end() {
        let fetched = log.read(follower.end(), ReadLimit::bytes(1 << 20)).unwrap();
        follower.append_replicated(NOW, &fetched.bytes).unwrap();
    }
    the_large_one_is_served(&follower, "at a follower");
    assert!(follower.segments().len() > 1, "in a segment of its own: {:?}", follower.segments());
    drop(follower);
    the_large_one_is_served(&open(&follower_disk, &strict).0, "at a follower, after a crash");
}

/// The longest name there is, with the highest number of a partition that a broker makes (it refuses more than 50,000 for a
/// topic): as long as a file name can be, on a real file system, in use and set aside.
#[test]
fn s21_the_longest_topic_name_makes_a_directory_that_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let options = || DataDirOptions::of_node(1).in_cluster("a");
    let open = || DataDir::open(Arc::new(OsFs), directory.path(), options()).unwrap();
    let (data, _) = open();
    let partition = TopicPartition::new("t".repeat(249), 49_999);
    let path = data.create_partition(&partition, TopicId([7; 16])).unwrap();
    assert_eq!(path.file_name().unwrap().len(), 255);
    let (mut log, _) = Log::open_with(Arc::new(OsFs), &path, LogOptions::default(), data.hints(&partition)).unwrap();
    log.append(NOW, LeaderEpoch(0), &batch(T0, &[b"kept"])).unwrap();
    log.close().unwrap();
    data.close_clean(1).unwrap();
    let (data, report) = open();
    assert_eq!(report.warnings, []);
    let found: Vec<_> = data.partitions().iter().map(|found| found.topic_partition.clone()).collect();
    assert_eq!(found, std::slice::from_ref(&partition));
    let (log, _) = Log::open_with(Arc::new(OsFs), &path, LogOptions::default(), data.hints(&partition)).unwrap();
    assert_eq!(contents(&log.reader()), [(0, b"kept".to_vec())]);
    drop(log);
    let aside = data.mark_for_deletion(&path).unwrap();
    assert_eq!(aside.file_name().unwrap().len(), 255);
    data.remove_dir_tree(&aside).unwrap();
}
