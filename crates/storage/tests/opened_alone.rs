//! `Log::open` on a partition's directory that lies in a data root, of Kafka's or ours: the root's lock and what it knows.

use std::fs;
use std::path::{Path, PathBuf};

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::OsFs;
use highwater_storage::lock::{LockError, lock_directory};
use highwater_storage::*;

const MARKER: &str = ".kafka_cleanshutdown";

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// A copy of a root that may be written to.
fn copy_of(folder: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_into(&data(folder), copy.path());
    copy
}

fn copy_into(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_into(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The offsets of records that can be read, and those that cannot.
fn read_all(reader: &LogReader) -> (Vec<i64>, Vec<i64>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let mut from = reader.start();
    while from < reader.end() {
        match reader.read(from, ReadLimit::bytes(3000).verified()) {
            Ok(fetched) => {
                good.extend(fetched.first.0.max(from.0)..fetched.next.0);
                from = fetched.next;
            }
            Err(ReadError::Corrupt { offsets, .. }) => {
                bad.extend(offsets.start.0..offsets.end.0);
                from = offsets.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (good, bad)
}

fn all_but(end: i64, lost: &[i64]) -> (Vec<i64>, Vec<i64>) {
    ((0..end).filter(|offset| !lost.contains(offset)).collect(), lost.to_vec())
}

fn is_locked<T: std::fmt::Debug>(opened: &Result<T, OpenError>, dir: &Path) -> bool {
    matches!(opened, Err(OpenError::Locked(LockError::Held { directory, .. })) if directory == dir)
}

#[test]
fn a_log_in_a_root_that_is_in_use_is_refused() {
    let root = copy_of("clean-flip-active/before");
    let dir = root.path().join("unclean-0");
    // As Kafka does it: nothing but the root is locked.
    let kafka = lock_directory(&OsFs, root.path()).unwrap();
    let opened = Log::open(&dir, LogOptions::default());
    assert!(is_locked(&opened, root.path()), "{opened:?}");
    assert!(root.path().join(MARKER).exists(), "nothing is changed");
    assert!(!dir.join(".lock").exists(), "nothing is changed");
    let named = opened.unwrap_err().to_string();
    assert!(named.contains("in use by"), "{named}");
    // Reading it changes nothing, and is allowed.
    assert_eq!(Log::open_read_only(&dir).unwrap().0.end(), Offset(270));
    drop(kafka);

    let (log, _) = Log::open(&dir, LogOptions::default()).unwrap();
    assert!(matches!(lock_directory(&OsFs, root.path()), Err(LockError::Held { .. })), "and keeps others out");
    let opened = DataDir::open(OsFs::shared(), root.path(), DataDirOptions::of_node(1));
    assert!(opened.is_err(), "{opened:?}");
    drop(log);
    drop(lock_directory(&OsFs, root.path()).unwrap());
    drop(Log::open(&dir, LogOptions::default()).unwrap());
}

/// By whatever name the log is opened, it is the root's that counts.
#[test]
fn a_link_to_a_log_is_no_way_around_its_root() {
    let root = copy_of("clean-flip-active/before");
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("books-0");
    std::os::unix::fs::symlink(root.path().join("unclean-0"), &link).unwrap();
    let kafka = lock_directory(&OsFs, root.path()).unwrap();
    let opened = Log::open(&link, LogOptions::default());
    assert!(is_locked(&opened, &root.path().canonicalize().unwrap()), "{opened:?}");
    drop(kafka);
    let (log, _) = Log::open(&link, LogOptions::default()).unwrap();
    assert!(!root.path().join(MARKER).exists(), "what was closed well is open");
    assert_eq!(log.end(), Offset(270));
}

/// A broker that is making a root has its lock, and nothing else yet.
#[test]
fn a_root_that_is_being_made_is_one() {
    let root = tempfile::tempdir().unwrap();
    let broker = lock_directory(&OsFs, root.path()).unwrap();
    let dir = root.path().join("books-0");
    let opened = Log::open(&dir, LogOptions::default());
    assert!(is_locked(&opened, root.path()), "{opened:?}");
    assert!(!dir.exists());
    // What is not named like a partition is a log by itself.
    drop(Log::open(root.path().join("journal"), LogOptions::default()).unwrap());
    drop(broker);
    Log::open(&dir, LogOptions::default()).unwrap().0.close().unwrap();
}

/// What Kafka left in a root, and what is lost: as far as the root's checkpoints are gone by, only what is damaged.
#[test]
fn what_the_root_knows_is_gone_by() {
    let cases: [(&str, i64, &[i64]); 5] = [
        ("unclean-flip-sealed", 270, &[80]),
        ("unclean-flip-unflushed", 170, &[]),
        ("unclean-flip-active", 260, &[]),
        ("unclean-flip-epoch", 270, &[]),
        ("clean-flip-active", 270, &[260]),
    ];
    for (case, end, lost) in cases {
        let root = copy_of(&format!("{case}/before"));
        let dir = root.path().join("unclean-0");
        let is_clean = case.starts_with("clean");
        let (reader, report) = Log::open_read_only(&dir).unwrap();
        assert_eq!((read_all(&reader), report.clean), (all_but(end, lost), is_clean), "{case}: {report:?}");
        assert_eq!(root.path().join(MARKER).exists(), is_clean, "{case}: only looked at");
        assert!(!dir.join(".lock").exists());

        let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
        assert_eq!((read_all(&log.reader()), report.clean), (all_but(end, lost), is_clean), "{case}: {report:?}");
        assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0))], "{case}");
        assert!(!root.path().join(MARKER).exists(), "{case}: from here on a crash is one");
        drop(log);
        let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
        assert_eq!((read_all(&log.reader()), report.clean), (all_but(end, lost), false), "{case}, again: {report:?}");
    }
}

/// The same directories by themselves: nobody knows what was synced, and all but the last segment is trusted.
#[test]
fn without_a_root_a_flip_costs_its_batch_in_all_segments_but_the_last() {
    let cases: [(&str, i64, &[i64], u64); 5] = [
        ("unclean-flip-sealed", 270, &[80], 0),
        ("unclean-flip-unflushed", 270, &[170], 0),
        ("unclean-flip-active", 260, &[], 5),
        ("unclean-flip-epoch", 270, &[], 0),
        ("clean-flip-active", 260, &[], 5),
    ];
    for (case, end, lost, put_aside) in cases {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("unclean-0");
        copy_into(&data(&format!("{case}/before/unclean-0")), &dir);
        let (reader, _) = Log::open_read_only(&dir).unwrap();
        assert_eq!(read_all(&reader), all_but(end, lost), "{case}");
        let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
        assert_eq!(read_all(&log.reader()), all_but(end, lost), "{case}: {report:?}");
        assert_eq!(report.put_aside.iter().map(|aside| aside.batches).sum::<u64>(), put_aside, "{case}: {report:?}");
        assert_eq!(report.flushed, Offset(249), "{case}: {report:?}");
    }
}

/// A checkpoint of the root that says nothing any more takes nothing along.
#[test]
fn a_root_whose_recovery_points_are_lost_costs_no_sealed_segment() {
    for content in [None, Some(""), Some("0\n1\n"), Some("no checkpoint")] {
        let root = copy_of("unclean-flip-sealed/before");
        let points = root.path().join("recovery-point-offset-checkpoint");
        match content {
            None => fs::remove_file(&points).unwrap(),
            Some(content) => fs::write(&points, content).unwrap(),
        }
        let (log, report) = Log::open(root.path().join("unclean-0"), LogOptions::default()).unwrap();
        assert_eq!(read_all(&log.reader()), all_but(270, &[80]), "{content:?}: {report:?}");
    }
}

#[test]
fn the_start_that_the_root_knows_is_the_logs() {
    let root = copy_of("deleted-prefix/log");
    let dir = root.path().join("delrec-0");
    assert_eq!(Log::open_read_only(&dir).unwrap().0.start(), Offset(137));
    assert_eq!(Log::open(&dir, LogOptions::default()).unwrap().0.start(), Offset(137));
}

/// Lines that a deleted partition left say nothing of a new one.
#[test]
fn a_log_that_is_made_in_a_root_begins_anew() {
    let root = copy_of("deleted-prefix/log");
    let dir = root.path().join("delrec-0");
    fs::remove_dir_all(&dir).unwrap();
    let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
    assert_eq!((log.start(), log.end(), report.missing), (Offset(0), Offset(0), vec![]));
}
