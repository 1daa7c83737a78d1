//! Truncations after a restart, and empty segments that roll, or must not.

use highwater_storage::fs::Fs;
use highwater_storage::{LeaderEpoch, LogOptions, Offset, OpenHints, TimestampMs, Truncated};

use crate::support::{
    DIR, NOW, T0, append, bases, batch, contents, disk, filled, keep_house, numbered, open, open_hinted,
};
use crate::support::{small, stored};
use crate::{files, stop};

/// After a restart, whatever it was, the segments before the active one are cut too, and stay cut.
#[test]
fn s31_a_cut_into_the_first_segment_after_a_restart_leaves_one_segment() {
    let five = LogOptions { segment_bytes: 5 * u32::try_from(numbered(0, 90).len()).unwrap(), ..small() };
    for clean in [false, true] {
        let fs = disk(1);
        let log = filled(&fs, &five, 100);
        assert_eq!(log.segments().len(), 20);
        let first = contents(&log.reader())[..3].to_vec();
        stop(log, clean);
        let (mut log, report) = open(&fs, &five);
        assert_eq!(report.clean, clean);
        let Truncated { end, .. } = log.truncate_to(Offset(3)).unwrap();
        assert_eq!((end, log.end(), bases(&log)), (Offset(3), Offset(3), vec![0]));
        assert!(files(&fs, ".snapshot").iter().all(|name| **name <= *"00000000000000000003.snapshot"));
        drop(log);
        let (mut log, report) = open(&fs, &five);
        assert!(report.cut.is_none(), "{report:?}");
        assert_eq!((log.end(), bases(&log), files(&fs, ".log").len()), (Offset(3), vec![0], 1));
        assert_eq!(contents(&log.reader()), first);
        assert_eq!(append(&mut log, &numbered(3, 90)), 3);
    }
}

/// The report's questions: an empty segment that was opened again and truncated is neither full nor old for an offset of
/// 100, half a second or five minutes later; for one that its index entries cannot reach another takes its place.
#[test]
fn s27_an_empty_segment_that_was_reopened_and_cut_rolls_for_reach_only() {
    let options = LogOptions { segment_ms: 300_000, ..small() };
    let reach = i64::from(i32::MAX) + 200;
    for (later_ms, first, base) in [(500, 100, 0), (300_001, 100, 0), (0, reach, reach)] {
        let fs = disk(1);
        open(&fs, &options).0.close().unwrap();
        let (mut log, report) = open(&fs, &options);
        assert!(report.clean && !report.created, "{report:?}");
        log.truncate_to(Offset(57)).unwrap();
        assert_eq!((log.end(), bases(&log)), (Offset(0), vec![0]));
        let now = TimestampMs(NOW.0 + later_ms);
        assert_eq!(keep_house(&mut log, now, Offset(0)), []);
        log.append_replicated(now, &stored(first, 1, &[b"far"])).unwrap();
        assert_eq!((log.end(), bases(&log)), (Offset(first + 1), vec![base]), "{later_ms} ms later");
        assert_eq!(files(&fs, ".log"), [format!("{base:020}.log")], "and no file is left of the one it replaced");
        let before = contents(&log.reader());
        assert_eq!(before, [(first, b"far".to_vec())]);
        drop(log);
        let (mut log, report) = open(&fs, &options);
        assert!(report.cut.is_none(), "{report:?}");
        assert_eq!((log.end(), bases(&log)), (Offset(first + 1), vec![base]));
        assert_eq!(contents(&log.reader()), before);
        assert_eq!(log.epochs(), [(LeaderEpoch(1), Offset(first))]);
        assert_eq!(log.append(now, LeaderEpoch(1), &batch(T0, &[b"next"])).unwrap().first, Offset(first + 1));
    }
}

/// An empty segment is not rolled because the configuration now says smaller or younger segments.
#[test]
fn s28_a_change_of_options_rolls_no_empty_segment() {
    let fs = disk(1);
    let hints = OpenHints { log_start: Some(Offset(15_997)), ..OpenHints::default() };
    let (mut log, _) = open_hinted(&fs, &small(), hints);
    let changes = [
        LogOptions { segment_ms: 1, ..small() },
        LogOptions { segment_bytes: 200, ..small() },
        LogOptions { index_bytes_max: 24, ..small() },
    ];
    for (at, options) in changes.into_iter().enumerate() {
        log.set_options(options).unwrap();
        for round in 0..2 {
            let now = TimestampMs(NOW.0 + 1_000_000 * (i64::try_from(at).unwrap() * 2 + round));
            assert_eq!(keep_house(&mut log, now, Offset(15_997)), [], "change {at}");
        }
        assert_eq!(files(&fs, ".log"), ["00000000000000015997.log"], "change {at}");
    }
    assert_eq!(append(&mut log, &numbered(0, 90)), 15_997);
    assert_eq!(fs.read_dir(std::path::Path::new(DIR)).unwrap().iter().filter(|e| e.name.ends_with(".log")).count(), 1);
    drop(log);
    assert_eq!(open(&fs, &small()).0.end(), Offset(15_998));
}
