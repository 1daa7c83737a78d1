//! The log on the simulated disk: appends, reads, rolls, truncation, retention and what opening makes of a directory.

mod support;

use highwater_storage::*;
use support::*;

#[test]
fn what_is_appended_is_read_back_over_many_segments_and_after_a_clean_close() {
    let fs = disk(1);
    let (mut log, report) = open(&fs, &small());
    assert!(report.created && report.clean);
    let mut expected = Vec::new();
    for number in 0..50 {
        let bytes = numbered(number, 90);
        assert_eq!(append(&mut log, &bytes), i64::try_from(number).unwrap());
        expected.push((i64::try_from(number).unwrap(), contents_of(&bytes)));
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

fn contents_of(batch: &[u8]) -> Vec<u8> {
    let (view, _) = BatchView::parse(batch).unwrap();
    view.records().unwrap().next().unwrap().unwrap().value.unwrap().to_vec()
}

#[test]
fn a_crash_of_the_process_loses_nothing() {
    let fs = disk(2);
    let (mut log, _) = open(&fs, &small());
    for number in 0..30 {
        append(&mut log, &numbered(number, 90));
    }
    let before = contents(&log.reader());
    drop(log);
    let (mut log, report) = open(&fs, &small());
    assert!(!report.clean && report.cut.is_none(), "{report:?}");
    assert_eq!(contents(&log.reader()), before);
    assert_eq!(log.flushed(), Offset(30), "opening synced what it found");
    assert_eq!(log.checkpoint().unwrap(), Offset(30));
}
