//! A log that was opened after a clean close keeps nothing in memory that its files tell, until it is first changed.

mod support;

use highwater_storage::fs::{Call, Fault, SimFs};
use highwater_storage::*;
use support::*;

const BATCHES: u64 = 40;

/// An entry for each batch.
fn options() -> LogOptions {
    LogOptions { index_interval_bytes: 0, ..one_segment() }
}

/// A log that was closed well, opened again.
fn at_rest(fs: &SimFs) -> Log {
    filled(fs, &options(), BATCHES).close().unwrap();
    let (log, report) = open(fs, &options());
    assert!(report.clean);
    log
}

fn index_files() -> [String; 2] {
    ["index", "timeindex"].map(|suffix| format!("{:020}.{suffix}", 0))
}

#[test]
fn indexes_that_rot_under_a_log_at_rest_mislead_nobody() {
    for reads_first in [false, true] {
        for name in index_files() {
            let fs = disk(1);
            let mut log = at_rest(&fs);
            let len = file_bytes(&fs, &name).len();
            assert!(len > 100, "{name} has entries");
            write_file(&fs, &name, &vec![0xA5; len]);
            if reads_first {
                assert_eq!(contents(&log.reader()).len() as u64, BATCHES, "{name}");
            }
            append(&mut log, &numbered(BATCHES, 90));
            assert!(!names(&fs).contains(&name), "what grows has no index files");
            assert_eq!(contents(&log.reader()).len() as u64, BATCHES + 1, "{name}");
            let read = log.read(Offset(30), ReadLimit::bytes(1)).unwrap();
            assert_eq!((read.first, read.next), (Offset(30), Offset(31)), "{name}");
            log.close().unwrap();
            let (log, report) = open(&fs, &options());
            assert!(report.clean && report.indexes_rebuilt == 0, "{name}: {report:?}");
            assert_eq!(contents(&log.reader()).len() as u64, BATCHES + 1, "{name}");
        }
    }
}

#[test]
fn the_indexes_go_on_where_they_ended() {
    let once = disk(1);
    let mut log = filled(&once, &options(), BATCHES);
    append(&mut log, &numbered(BATCHES, 90));
    log.close().unwrap();
    let twice = disk(1);
    let mut log = at_rest(&twice);
    append(&mut log, &numbered(BATCHES, 90));
    log.close().unwrap();
    for name in index_files() {
        assert_eq!(file_bytes(&once, &name), file_bytes(&twice, &name), "{name}");
    }
}

#[test]
fn a_first_append_that_cannot_read_what_it_needs_changes_nothing() {
    for part in [".index", ".timeindex", ".log"] {
        let fs = disk(1);
        let mut log = at_rest(&fs);
        let before = names(&fs);
        fs.inject_on(Fault::Eio, Call::Open, part, 1);
        let refused = log.append(NOW, LeaderEpoch(0), &numbered(BATCHES, 90));
        assert!(matches!(refused, Err(AppendError::Io(_))), "{part}: {refused:?}");
        assert_eq!((log.fence(), names(&fs)), (None, before), "{part}");
        // It is as it was, for the next try and for who opens it after a crash.
        append(&mut log, &numbered(BATCHES, 90));
        assert_eq!(contents(&log.reader()).len() as u64, BATCHES + 1, "{part}");
        let fs = disk(1);
        let mut log = at_rest(&fs);
        fs.inject_on(Fault::Eio, Call::Open, part, 1);
        log.append(NOW, LeaderEpoch(0), &numbered(BATCHES, 90)).unwrap_err();
        let (again, report) = open(&fs.kill(), &options());
        assert!(report.clean && again.end() == log.end(), "{part}: {report:?}");
    }
}

/// Before anything goes, the log takes up what writing needs, and is marked as written to.
#[test]
fn a_log_at_rest_lets_segments_go_and_keeps_its_start() {
    let fs = disk(1);
    filled(&fs, &small(), BATCHES).close().unwrap();
    let options = LogOptions { retention_bytes: 2000, ..small() };
    let (mut log, _) = open(&fs, &options);
    let end = log.end();
    let steps = keep_house(&mut log, NOW, end);
    assert!(steps.iter().any(|step| matches!(step, Step::SegmentsRetired { .. })), "{steps:?}");
    let start = log.start();
    assert!(start > Offset::ZERO);
    append(&mut log, &numbered(BATCHES, 90));
    let expected = contents(&log.reader());
    let (killed, report) = open(&fs.kill(), &options);
    assert!(!report.clean && killed.start() == start, "{report:?}");
    assert_eq!(contents(&killed.reader()), expected);
}
