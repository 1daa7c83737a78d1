//! Timestamps that are equal, missing, negative, or at the ends of what a number holds.

use highwater_storage::{BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, Record, TimestampMs};

use crate::support::{NOW, T0, disk, open, small};

const CODECS: [Codec; 5] = [Codec::None, Codec::Lz4, Codec::Gzip, Codec::Snappy, Codec::Zstd];

/// Batches with records of these times, as a leader stores them.
fn with_times(base: i64, codec: Codec, times: &[i64]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec).base_offset(Offset(base)).leader_epoch(LeaderEpoch(0));
    for time in times {
        builder.push(Record::new(TimestampMs(*time), &[9; 100]));
    }
    builder.build()
}

/// Of several records with the largest time, in one batch, in two, in two segments, the first is the answer.
#[test]
fn s44_of_equal_largest_times_the_first_offset_is_told() {
    for codec in CODECS {
        // One batch; two with the same largest time, of which one comes after a smaller one; two segments.
        for (segment_bytes, batches, expected) in [
            (1 << 20, vec![vec![30, 30, 20]], 0),
            (1 << 20, vec![vec![10, 30, 30], vec![20, 30, 10]], 1),
            (1 << 20, vec![vec![5, 6, 7], vec![20, 10, 30], vec![30, 30, 30]], 5),
            (1, vec![vec![10, 20, 30], vec![30, 20, 30], vec![1, 2, 3]], 2),
        ] {
            let fs = disk(1);
            let options = LogOptions { segment_bytes, ..small() };
            let (mut log, _) = open(&fs, &options);
            for times in &batches {
                let times: Vec<i64> = times.iter().map(|time| T0 + time).collect();
                log.append_replicated(NOW, &with_times(log.end().0, codec, &times)).unwrap();
            }
            let expected = Some((Offset(expected), TimestampMs(T0 + 30)));
            let found = |reader: &LogReader| {
                let max = reader.max_timestamp(Offset::MAX).unwrap().map(|found| (found.offset, found.timestamp));
                let by_time = reader.offset_for_timestamp(TimestampMs(T0 + 30), Offset::MAX).unwrap();
                assert_eq!(by_time.map(|found| (found.offset, found.timestamp)), max, "{codec:?}, {batches:?}");
                max
            };
            assert_eq!(found(&log.reader()), expected, "{codec:?}, {batches:?}");
            drop(log);
            let (log, _) = open(&fs, &options);
            assert_eq!(found(&log.reader()), expected, "{codec:?}, {batches:?}, after a crash");
            log.close().unwrap();
            let (log, report) = open(&fs, &options);
            assert!(report.clean, "{report:?}");
            assert_eq!(found(&log.reader()), expected, "{codec:?}, {batches:?}, after a clean stop");
        }
    }
}

/// What a plain reading of the times gives: of the first record at or after `time`.
fn first_at_or_after(times: &[i64], time: i64) -> Option<(i64, i64)> {
    times.iter().zip(0..).find(|(at, _)| **at >= time).map(|(at, offset)| (offset, *at))
}

fn check(log: &Log, times: &[i64], what: &str) {
    let reader = log.reader();
    for time in [0, 1, T0, T0 + 3, T0 + 1000, i64::MAX - 1, i64::MAX] {
        let found = reader.offset_for_timestamp(TimestampMs(time), Offset::MAX).unwrap();
        let found = found.map(|found| (found.offset.0, found.timestamp.0));
        assert_eq!(found, first_at_or_after(times, time), "{what}: at {time} of {times:?}");
    }
    // Times below zero mean "none": any answer that is a record's will do, and no look-up fails.
    for time in [i64::MIN, i64::MIN + 1, -2, -1] {
        reader.offset_for_timestamp(TimestampMs(time), Offset::MAX).unwrap();
    }
    let largest = *times.iter().max().unwrap();
    let expected = (largest >= 0).then(|| first_at_or_after(times, largest).unwrap());
    let found = reader.max_timestamp(Offset::MAX).unwrap().map(|found| (found.offset.0, found.timestamp.0));
    assert_eq!(found, expected, "{what}: {times:?}");
    assert_eq!(reader.end().0, i64::try_from(times.len()).unwrap());
}

/// What a leader stored, a follower takes: timestamps that no producer may send today, and times that fall. An entry of a
/// time index is due with every batch.
#[test]
fn s43_no_timestamp_breaks_the_indexes() {
    let cases: [&[i64]; 7] = [
        &[-1, -1, -1],
        &[-1, -2, i64::MIN, -1],
        &[i64::MAX, T0, i64::MAX],
        &[T0, i64::MAX - 1, i64::MAX],
        &[T0 + 5, T0 + 4, T0 + 3, T0 + 2],
        &[i64::MIN, T0, -2, T0 + 1, -1, 0],
        &[0, 0, 1, 0, T0, i64::MIN],
    ];
    for times in cases {
        for segment_bytes in [1 << 20, 300] {
            let fs = disk(1);
            let options = LogOptions { segment_bytes, index_interval_bytes: 0, ..small() };
            let (mut log, _) = open(&fs, &options);
            for (time, base) in times.iter().zip(0..) {
                log.append_replicated(NOW, &with_times(base, Codec::None, &[*time])).unwrap();
            }
            let what = format!("segments of {segment_bytes} bytes");
            check(&log, times, &what);
            drop(log);
            let (log, report) = open(&fs, &options);
            assert!(report.cut.is_none(), "{report:?}");
            check(&log, times, &format!("{what}, after a crash"));
            log.close().unwrap();
            let (log, report) = open(&fs, &options);
            assert!(report.clean && report.indexes_rebuilt == 0, "{report:?}");
            check(&log, times, &format!("{what}, after a clean stop"));
        }
    }
}
