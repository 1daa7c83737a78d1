//! Damage in directories that Kafka wrote, where Kafka loses records, history or answers, and what is made of it here.
//! One test for each kind; `tests/data/README.md` says what Kafka did.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::OsFs;
use highwater_storage::*;

fn data(case: &str, partition: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(case).join("before").join(partition)
}

/// A copy of a partition's directory that may be written to.
fn copy_of(case: &str, partition: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(data(case, partition)).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

fn open(dir: &Path, clean: bool, recovery_point: i64) -> (Log, RecoveryReport) {
    let hints = OpenHints { clean: Some(clean), recovery_point: Some(Offset(recovery_point)), ..OpenHints::default() };
    Log::open_with(Arc::new(OsFs), dir, LogOptions::default(), hints).unwrap()
}

/// The offsets of all records that a reader gets, and the ranges that it is told are damaged.
fn read_all(reader: &LogReader) -> (Vec<i64>, Vec<Range<i64>>) {
    let (mut records, mut damaged) = (Vec::new(), Vec::new());
    let mut from = reader.start();
    while from < reader.end() {
        match reader.read(from, ReadLimit::bytes(3000).verified()) {
            Ok(fetched) => {
                assert!(fetched.next > from, "stuck at {from}");
                for batch in batches(&fetched.bytes) {
                    let batch = batch.unwrap();
                    records.extend(batch.base_offset().0..batch.next_offset().0);
                }
                from = fetched.next;
            }
            Err(ReadError::Corrupt { offsets, .. }) => {
                damaged.push(offsets.start.0..offsets.end.0);
                from = offsets.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (records, damaged)
}

fn all_but(end: i64, lost: Range<i64>) -> Vec<i64> {
    (0..end).filter(|offset| !lost.contains(offset)).collect()
}

/// Kafka drops all later segments: 100 of 270 records.
#[test]
fn a_flip_above_the_recovery_point_cuts_there_and_the_intact_rest_is_put_aside() {
    let dir = copy_of("unclean-flip-unflushed", "unclean-0");
    let (log, report) = open(dir.path(), false, 157);
    assert_eq!(log.end(), Offset(170));
    let (records, damaged) = read_all(&log.reader());
    assert_eq!((records, damaged), (all_but(170, 0..0), vec![]));
    let cut = report.cut.as_ref().unwrap();
    assert_eq!((cut.at, cut.segments, cut.end), (2150, 4, Offset(170)));
    assert!(matches!(cut.reason, CutReason::Damage(_)));
    // 171 batches: 110 stay, one is damaged.
    assert_eq!(report.put_aside.iter().map(|aside| aside.batches).sum::<u64>(), 60);
    let mut aside: Vec<_> = report.put_aside.iter().map(|aside| (aside.offsets.0.0, aside.offsets.1.0)).collect();
    aside.sort_unstable();
    assert_eq!(aside, [(171, 180), (181, 203), (204, 224), (225, 248), (249, 269)]);
    for put_aside in &report.put_aside {
        let name = put_aside.segment.file_name().unwrap();
        let original = fs::read(data("unclean-flip-unflushed", "unclean-0").join(name)).unwrap();
        let kept = fs::read(put_aside.file.as_ref().unwrap()).unwrap();
        let position = usize::try_from(put_aside.position).unwrap();
        assert_eq!(kept, original[position..], "{put_aside:?}");
    }
    drop(log);
    // They stay, and mean nothing to the log.
    let (log, again) = open(dir.path(), false, 157);
    assert_eq!((log.end(), again.put_aside.len(), again.ignored.len()), (Offset(170), 0, 0), "{again:?}");
    assert!(report.put_aside.iter().all(|aside| aside.file.as_ref().unwrap().exists()));
}

#[test]
fn what_is_put_aside_keeps_to_its_limit() {
    let dir = copy_of("unclean-flip-unflushed", "unclean-0");
    let options = LogOptions { side_files_bytes_max: 8000, ..LogOptions::default() };
    let hints = OpenHints { clean: Some(false), recovery_point: Some(Offset(157)), ..OpenHints::default() };
    let (log, report) = Log::open_with(Arc::new(OsFs), dir.path(), options, hints).unwrap();
    assert_eq!((log.end(), report.put_aside.len()), (Offset(170), 5));
    let kept: u64 = report.put_aside.iter().filter(|aside| aside.file.is_some()).map(|aside| aside.bytes).sum();
    assert!(kept > 0 && kept <= 8000, "{report:?}");
    assert!(report.put_aside.iter().any(|aside| aside.file.is_none()));
}

/// One offset, as a list of ranges.
fn only(offset: i64) -> Vec<Range<i64>> {
    std::iter::once(offset..offset + 1).collect()
}

/// The same where everything was synced: it can only be rot, and costs its batch.
#[test]
fn a_flip_in_what_was_synced_costs_its_batch() {
    let dir = copy_of("unclean-flip-unflushed", "unclean-0");
    let (log, report) = open(dir.path(), false, 270);
    assert!(report.cut.is_none() && report.put_aside.is_empty(), "{report:?}");
    assert_eq!(read_all(&log.reader()), (all_but(270, 170..171), only(170)));
}

/// Kafka does not notice it; a consumer stops there for good.
#[test]
fn a_flip_below_the_recovery_point_or_under_a_clean_marker_is_an_error_for_its_range() {
    let cases = [("unclean-flip-sealed", false, 157, 80), ("clean-flip-active", true, 270, 260)];
    for (case, clean, recovery_point, lost) in cases {
        let dir = copy_of(case, "unclean-0");
        let (log, report) = open(dir.path(), clean, recovery_point);
        assert!(report.cut.is_none() && report.clean == clean, "{case}: {report:?}");
        let expected = (all_but(270, lost..lost + 1), only(lost));
        assert_eq!(read_all(&log.reader()), expected, "{case}");
        // Once met, it is known to all.
        assert_eq!(log.damage().len(), 1, "{case}");
        let unverified = log.read(Offset(lost), ReadLimit::bytes(3000));
        assert!(matches!(unverified, Err(ReadError::Corrupt { .. })), "{case}: {unverified:?}");
    }
}

/// Kafka takes the wrong epoch in, and then forgets the whole history.
#[test]
fn a_flip_of_a_leader_epoch_is_put_right_and_the_history_kept() {
    let dir = copy_of("unclean-flip-epoch", "unclean-0");
    let (log, report) = open(dir.path(), false, 157);
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0))]);
    let [repaired] = &*report.repaired else { panic!("{report:?}") };
    assert_eq!((repaired.field, repaired.was, repaired.is), (RepairedField::LeaderEpoch, 1, 0));
    assert!(repaired.in_place && repaired.position == 1901, "{repaired:?}");
    assert_eq!(read_all(&log.reader()), (all_but(270, 0..0), vec![]));
    let bytes = fs::read(dir.path().join("00000000000000000249.log")).unwrap();
    assert!(batches(&bytes).all(|batch| batch.unwrap().leader_epoch() == LeaderEpoch(0)));
}

/// A file with a second name is somebody else's as well, a copy's: it is left alone.
#[test]
fn a_flip_of_a_leader_epoch_in_a_linked_file_is_put_right_in_memory() {
    let dir = copy_of("unclean-flip-epoch", "unclean-0");
    let file = dir.path().join("00000000000000000249.log");
    let other = tempfile::tempdir_in(dir.path().parent().unwrap()).unwrap();
    fs::hard_link(&file, other.path().join("copy")).unwrap();
    let before = fs::read(&file).unwrap();
    let (log, report) = open(dir.path(), false, 157);
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0))]);
    assert!(matches!(&*report.repaired, [Repaired { in_place: false, .. }]), "{report:?}");
    assert_eq!(fs::read(other.path().join("copy")).unwrap(), before);
    assert_eq!(read_all(&log.reader()).0.len(), 270);
}

/// Kafka hands out aborted records to consumers of committed ones.
#[test]
fn a_cut_transaction_index_is_built_anew() {
    let dir = copy_of("clean-damaged-files", "d-cuttxnindex-0");
    let (log, _) = open(dir.path(), true, 30);
    let aborted = log.reader().aborted_transactions(Offset(0), Offset(30)).unwrap();
    let aborted: Vec<_> = aborted.iter().map(|aborted| (aborted.first_offset.0, aborted.last_offset.0)).collect();
    assert_eq!(aborted, [(0, 3), (10, 13), (20, 23)]);
}

/// Kafka starts with no producer at all.
#[test]
fn producers_whose_snapshots_are_gone_are_taken_from_the_batches() {
    let dir = copy_of("clean-damaged-files", "d-nosnapshots-0");
    let (log, report) = open(dir.path(), true, 30);
    assert_eq!(log.producers().iter().count(), 2);
    assert!(report.producers_rebuilt, "{report:?}");
}

/// Kafka rebuilds neither.
#[test]
fn missing_epochs_and_time_indexes_are_built_from_the_batches() {
    let dir = copy_of("clean-damaged-files", "d-noepochs-0");
    let (log, report) = open(dir.path(), true, 30);
    assert!(report.epochs_rebuilt);
    assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0))]);

    let dir = copy_of("clean-damaged-files", "d-notimeindex-0");
    let (_log, report) = open(dir.path(), true, 30);
    assert_eq!(report.indexes_rebuilt, 1, "{report:?}");
    let count = |dir: &Path, suffix: &str| {
        let entries = fs::read_dir(dir).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().to_str().unwrap().ends_with(suffix)).count()
    };
    let sealed = count(dir.path(), ".log") - 1;
    assert!(count(dir.path(), ".timeindex") >= sealed);
}

/// Kafka does not notice it.
#[test]
fn nonsense_in_an_index_is_noticed_at_a_look_up() {
    let dir = copy_of("clean-damaged-files", "d-badindex-0");
    let (log, _) = open(dir.path(), true, 30);
    assert_eq!(read_all(&log.reader()), (all_but(30, 0..0), vec![]));
    for offset in 0..30 {
        let fetched = log.read(Offset(offset), ReadLimit::bytes(1)).unwrap();
        assert!(fetched.first <= Offset(offset) && fetched.next > Offset(offset));
    }
}
