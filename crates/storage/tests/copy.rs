//! Copies of a log that goes on: what is in them, what becomes of them when the original changes, crashes at each call.

mod support;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_storage::fs::{Call, DirEntry, DirLock, Fault, File, Fs, Metadata, OpenMode, OsFs, SimFs};
use highwater_storage::io::FileExt;
use highwater_storage::*;
use support::*;

const COPY: &str = "/data/copy";

fn open_copy(fs: &SimFs) -> (Log, RecoveryReport) {
    Log::open_with(Arc::new(fs.clone()), Path::new(COPY), small(), OpenHints::default()).unwrap()
}

/// The files of a directory, by name.
fn files(fs: &dyn Fs, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let read = |name: &str| {
        let file = fs.open(&Path::new(dir).join(name), OpenMode::Read).unwrap();
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    };
    fs.read_dir(Path::new(dir)).unwrap().into_iter().map(|entry| (entry.name.clone(), read(&entry.name))).collect()
}

/// What a log that was opened well holds: start, records, epochs, producers.
type Content = (i64, Vec<(i64, Vec<u8>)>, Vec<(LeaderEpoch, Offset)>, Vec<u8>);

fn content(log: &Log) -> Content {
    (log.start().0, contents(&log.reader()), log.epochs().to_vec(), log.producers().encode_snapshot())
}

fn assert_copy_is(fs: &SimFs, expected: &Content) {
    let (log, report) = open_copy(fs);
    assert!(report.clean && !report.created && report.cut.is_none(), "{report:?}");
    assert_eq!((report.indexes_rebuilt, report.epochs_rebuilt, report.segments_scanned), (0, false, 0));
    assert_eq!(log.flushed(), log.end());
    assert_eq!(&content(&log), expected);
}

/// Several epochs, an idempotent producer, some of it flushed, several segments, one of them not yet full.
fn interesting(fs: &SimFs) -> Log {
    let (mut log, _) = open(fs, &small());
    for number in 0..40 {
        if number == 13 {
            log.flush().unwrap();
        }
        let mut builder = BatchBuilder::new(Codec::None).producer(7, 0, i32::try_from(number).unwrap());
        builder.push(Record::new(TimestampMs(T0 + number), format!("{}{number}", "=".repeat(100)).as_bytes()));
        log.append(NOW, LeaderEpoch(i32::try_from(number / 15).unwrap()), &builder.build()).unwrap();
    }
    assert!(log.flushed() < log.end() && log.segments().len() > 4);
    log
}

type Make = fn(&SimFs) -> Log;
type Change = fn(&mut Log);
type Spoil = fn(Log) -> Option<Log>;

#[test]
fn a_copy_opens_as_a_clean_log_with_all_that_was_appended() {
    let fs = disk(1);
    let mut log = interesting(&fs);
    let expected = content(&log);
    let copied = log.snapshot(COPY).unwrap();
    assert_eq!((copied.start, copied.end), (log.start(), log.end()));
    assert_eq!(copied.segments as usize, log.segments().len());
    assert_eq!(copied.bytes_linked + copied.bytes_copied, log.size_bytes());
    assert_eq!(copied.bytes_copied, log.segments().last().unwrap().size_bytes, "only the segment that grows");
    assert!(!files(&fs, COPY).contains_key(".lock"));
    // The power goes at once: the copy is durable, also what the log has not flushed.
    for image in fs.images(20, 1) {
        assert_copy_is(&image, &expected);
    }
    // The producer goes on in the copy where it was in the log.
    let (mut copy, _) = open_copy(&fs);
    let mut builder = BatchBuilder::new(Codec::None).producer(7, 0, 39);
    builder.push(Record::new(NOW, b"again"));
    assert!(copy.append(NOW, LeaderEpoch(2), &builder.build()).unwrap().duplicate);
}

#[test]
fn logs_in_all_states_can_be_copied() {
    let states: [(&str, Make); 8] = [
        ("new", |fs| open(fs, &small()).0),
        ("one batch", |fs| filled(fs, &small(), 1)),
        ("checkpointed", |fs| {
            let mut log = interesting(fs);
            log.checkpoint().unwrap();
            log
        }),
        ("opened again", |fs| {
            interesting(fs).close().unwrap();
            open(fs, &small()).0
        }),
        ("recovered", |fs| {
            drop(interesting(fs));
            open(fs, &small()).0
        }),
        ("truncated", |fs| {
            let mut log = interesting(fs);
            log.truncate_to(Offset(17)).unwrap();
            log
        }),
        ("trimmed", |fs| {
            let mut log = interesting(fs);
            log.advance_start(Offset(23)).unwrap();
            log
        }),
        ("reset", |fs| {
            let mut log = interesting(fs);
            log.reset_to(Offset(1000)).unwrap();
            log
        }),
    ];
    for (name, make) in states {
        let fs = disk(2);
        let mut log = make(&fs);
        let expected = content(&log);
        let copied = log.snapshot(COPY).unwrap();
        assert_eq!((copied.start, copied.end), (log.start(), log.end()), "{name}");
        drop(log);
        let (mut copy, report) = open_copy(&fs);
        assert!(report.clean && !report.created, "{name}: {report:?}");
        assert_eq!(content(&copy), expected, "{name}");
        let end = copy.end();
        append_in_latest(&mut copy, 1);
        assert_eq!(copy.end(), end.next(), "{name}");
    }
}

/// Whatever a log may do to itself.
const CHANGES: [(&str, Change); 7] = [
    ("truncated to the middle of a segment that is shared", |log| {
        assert_eq!(log.truncate_to(Offset(17)).unwrap().end, Offset(17))
    }),
    ("truncated to the start of one", |log| {
        let base = log.segments()[2].base;
        log.truncate_to(base).unwrap();
    }),
    ("truncated to the end of one", |log| {
        let base = log.segments().last().unwrap().base;
        log.truncate_to(base).unwrap();
    }),
    ("truncated twice", |log| {
        log.truncate_to(Offset(30)).unwrap();
        log.truncate_to(Offset(11)).unwrap();
    }),
    ("emptied", |log| assert_eq!(log.reset_to(Offset(0)).unwrap().end, Offset(0))),
    ("deleted from the start on", |log| {
        log.advance_start(Offset(33)).unwrap();
        let end = log.end();
        keep_house(log, NOW, end);
        keep_house(log, NOW.after(100_000), end);
    }),
    ("flushed", |log| assert_eq!(log.checkpoint().unwrap(), Offset(40))),
];

#[test]
fn a_copy_stays_as_it_is_whatever_becomes_of_the_original() {
    for (name, change) in CHANGES {
        let fs = disk(3);
        let mut log = interesting(&fs);
        let expected = content(&log);
        log.snapshot(COPY).unwrap();
        let bytes = files(&fs, COPY);
        change(&mut log);
        // And it goes on, in a segment that may be shared, through a crash and a clean close.
        for _ in 0..2 {
            for number in 0..12 {
                append_in_latest(&mut log, number);
            }
            log.flush().unwrap();
            let before = content(&log);
            drop(log);
            (log, _) = open(&fs, &small());
            assert_eq!(content(&log), before, "{name}");
            append_in_latest(&mut log, 1);
            log.close().unwrap();
            (log, _) = open(&fs, &small());
        }
        assert!(files(&fs, COPY) == bytes, "{name}");
        assert_copy_is(&fs, &expected);
        // The other way about: the original does not notice what happens to the copy.
        let before = content(&log);
        let (mut copy, _) = open_copy(&fs);
        copy.truncate_to(Offset(9)).unwrap();
        append_in_latest(&mut copy, 5);
        copy.flush().unwrap();
        assert_eq!(content(&log), before, "{name}");
    }
}

fn append_in_latest(log: &mut Log, number: u64) {
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    log.append(NOW, epoch, &numbered(number, 90)).unwrap();
}

/// A truncation that dies half way leaves a segment as the last that the copy has too: the recovered log appends to it.
#[test]
fn a_copy_survives_a_crash_of_the_original_at_every_call_of_a_truncation() {
    let script = |fs: &SimFs| -> Result<(), TruncateError> {
        let opened = Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), OpenHints::default());
        let Ok((mut log, _)) = opened else { return Ok(()) };
        log.truncate_to(Offset(17))?;
        let _ = log.append(NOW, LeaderEpoch(5), &numbered(3, 90)).map(|_| log.flush());
        Ok(())
    };
    let prepared = || {
        let fs = disk(4);
        let mut log = interesting(&fs);
        let expected = content(&log);
        log.snapshot(COPY).unwrap();
        fs.sync_everything();
        (fs, expected)
    };
    let (whole, _) = prepared();
    let before = whole.calls();
    script(&whole).unwrap();
    let calls = whole.calls() - before;
    assert!(calls > 10);
    for after in 0..=calls {
        let (fs, expected) = prepared();
        let bytes = files(&fs, COPY);
        fs.crash_after(after);
        let _ = script(&fs);
        let mut images = fs.images(6, after);
        images.push(fs.process_crash_image());
        for image in images {
            let (mut log, _) = open(&image, &small());
            assert!((17..=41).contains(&log.end().0), "{}", log.end());
            for number in 0..10 {
                append_in_latest(&mut log, number);
            }
            log.flush().unwrap();
            drop(log);
            assert!(files(&image, COPY) == bytes, "after call {after}");
            assert_copy_is(&image, &expected);
        }
    }
}

#[test]
fn a_crash_while_a_copy_is_made_leaves_all_of_it_or_none() {
    let whole = disk(5);
    let mut log = interesting(&whole);
    let before = whole.calls();
    log.snapshot(COPY).unwrap();
    let calls = whole.calls() - before;
    let mut kinds = (0, 0);
    for after in 0..=calls {
        let fs = disk(5);
        let mut log = interesting(&fs);
        let expected = content(&log);
        fs.crash_after(after);
        let done = log.snapshot(COPY);
        assert_eq!(done.is_ok(), after == calls);
        drop(log);
        for image in fs.images(8, after) {
            let is_there = image.metadata(Path::new(COPY)).is_ok();
            if is_there {
                kinds.0 += 1;
                assert_copy_is(&image, &expected);
            } else {
                kinds.1 += 1;
            }
            assert!(is_there || done.is_err(), "it was said to be there");
            // The log itself is none the worse, and can be copied: leftovers are in nobody's way.
            let (mut log, _) = open(&image, &small());
            if !is_there {
                let expected = content(&log);
                log.snapshot(COPY).unwrap();
                drop(log);
                assert!(image.metadata(Path::new("/data/copy.tmp")).is_err());
                assert_copy_is(&image, &expected);
            }
        }
    }
    assert!(kinds.0 > 8 && kinds.1 > 100, "{kinds:?}");
}

#[test]
fn the_log_goes_on_while_it_is_copied() {
    let fs = disk(6);
    let mut log = interesting(&fs);
    let mut expected = content(&log);
    let job = log.begin_snapshot(COPY).unwrap();
    assert_eq!(job.end(), Offset(40));
    for number in 0..30 {
        append_in_latest(&mut log, number);
    }
    assert!(log.begin_checkpoint().is_some(), "a copy keeps no flush back");
    log.checkpoint().unwrap();
    log.advance_start(Offset(20)).unwrap();
    let end = log.end();
    keep_house(&mut log, NOW, end);
    let first = log.segments()[0].base;
    let copied = job.run().unwrap();
    assert_eq!((copied.start, copied.end), (first, Offset(40)), "retention went on meanwhile");
    expected.0 = first.0;
    expected.1.retain(|(offset, _)| *offset >= first.0);
    expected.2.retain(|(epoch, _)| epoch.0 >= 1);
    expected.2[0].1 = expected.2[0].1.max(first);
    assert_copy_is(&fs, &expected);
}

#[test]
fn what_was_taken_back_meanwhile_is_in_no_copy() {
    let spoilers: [(&str, Spoil); 4] = [
        ("truncated and appended to", |mut log| {
            log.truncate_to(Offset(17)).unwrap();
            (0..30).for_each(|number| append_in_latest(&mut log, number));
            Some(log)
        }),
        ("emptied", |mut log| {
            log.reset_to(Offset(40)).unwrap();
            Some(log)
        }),
        ("closed", |log| {
            log.close().unwrap();
            None
        }),
        ("dropped", |log| {
            drop(log);
            None
        }),
    ];
    for (name, spoil) in spoilers {
        let fs = disk(7);
        let mut log = interesting(&fs);
        let job = log.begin_snapshot(COPY).unwrap();
        let log = spoil(log);
        let error = job.run().unwrap_err();
        assert!(matches!(error, CopyError::Superseded | CopyError::Closed(Fence::Closed)), "{name}: {error}");
        assert_eq!(fs.read_dir(Path::new("/data")).unwrap().len(), 1, "{name}: nothing is left");
        if let Some(mut log) = log {
            let expected = content(&log);
            log.snapshot(COPY).unwrap();
            assert_copy_is(&fs, &expected);
        }
    }
}

#[test]
fn a_copy_takes_nobodys_place() {
    let fs = disk(8);
    let mut log = interesting(&fs);
    log.snapshot(COPY).unwrap();
    assert!(matches!(log.snapshot(COPY).unwrap_err(), CopyError::Exists(path) if path == Path::new(COPY)));
    // Another copy to the same place, under way.
    fs.create_dir(Path::new("/data/other.tmp")).unwrap();
    let lock = lock::lock_directory(&fs, Path::new("/data/other.tmp")).unwrap();
    assert!(matches!(log.snapshot("/data/other").unwrap_err(), CopyError::Locked(_)));
    drop(lock);
    // A directory that only looks like a leftover.
    fs.open(Path::new("/data/other.tmp/letters.txt"), OpenMode::CreateNew).unwrap();
    let error = log.snapshot("/data/other").unwrap_err();
    assert!(matches!(&error, CopyError::Io(error) if error.kind() == io::ErrorKind::AlreadyExists), "{error}");
    assert!(fs.metadata(Path::new("/data/other.tmp/letters.txt")).is_ok());
    // No parent.
    assert!(matches!(log.snapshot("/nowhere/copy").unwrap_err(), CopyError::Io(_)));
    append_in_latest(&mut log, 1);
}

#[test]
fn a_full_disk_spoils_the_copy_and_not_the_log() {
    for nth in 0..40 {
        let fs = disk(9);
        let mut log = interesting(&fs);
        let expected = content(&log);
        fs.inject_on(Fault::Enospc, Call::AnyChange, "copy", nth);
        let Err(error) = log.snapshot(COPY) else {
            assert!(nth > 20 || fs.faults_hit() == 0);
            continue;
        };
        assert!(matches!(error, CopyError::Io(_) | CopyError::Locked(_)), "{error}");
        fs.clear_faults();
        assert_eq!(content(&log), expected);
        append_in_latest(&mut log, 1);
        log.flush().unwrap();
        if fs.metadata(Path::new(COPY)).is_err() {
            let expected = content(&log);
            log.snapshot(COPY).unwrap();
            assert_copy_is(&fs, &expected);
        }
    }
}

#[test]
fn a_failed_sync_of_the_logs_own_segments_closes_it() {
    let fs = disk(10);
    let mut log = interesting(&fs);
    fs.inject_on(Fault::SyncFails, Call::SyncData, "books-0", 0);
    assert!(matches!(log.snapshot(COPY).unwrap_err(), CopyError::Closed(Fence::SyncFailed(_))));
    assert!(matches!(log.fence(), Some(Fence::SyncFailed(_))));
    assert!(fs.metadata(Path::new(COPY)).is_err());
}

/// A file system between whose directories there are no links.
#[derive(Clone, Debug)]
struct WithoutLinks(SimFs);

impl Fs for WithoutLinks {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.0.open(path, mode)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.0.remove_file(path)
    }
    fn hard_link(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::CrossesDevices.into())
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.0.create_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.0.remove_dir(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.0.read_dir(path)
    }
    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.0.metadata(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.0.sync_dir(path)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.0.free_space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.0.lock(path)
    }
}

#[test]
fn where_there_are_no_links_all_is_copied() {
    for checkpoint in [false, true] {
        let fs = disk(11);
        let mut log = interesting(&fs);
        if checkpoint {
            log.checkpoint().unwrap();
        }
        drop(log);
        let linkless = Arc::new(WithoutLinks(fs.clone()));
        let (mut log, _) = Log::open_with(linkless, Path::new(DIR), small(), OpenHints::default()).unwrap();
        for number in 0..20 {
            append_in_latest(&mut log, number);
        }
        let expected = content(&log);
        let copied = log.snapshot(COPY).unwrap();
        assert_eq!((copied.bytes_linked, copied.bytes_copied), (0, log.size_bytes()));
        log.truncate_to(Offset(3)).unwrap();
        for image in fs.images(5, 1) {
            assert_copy_is(&image, &expected);
        }
    }
}

#[test]
fn a_copy_knows_the_aborted_transactions_and_the_open_ones() {
    let fs = disk(14);
    let mut log = with_transactions(&fs, &small());
    let known = |log: &Log| {
        let aborted = log.reader().aborted_transactions(log.start(), log.end()).unwrap();
        (aborted, log.reader().last_stable_offset(log.end()))
    };
    let expected = (known(&log), content(&log));
    let (aborted, stable) = &expected.0;
    assert!(aborted.len() > 2 && *stable < log.end(), "{aborted:?}, {stable}");
    log.snapshot(COPY).unwrap();
    // What becomes of the log does not show in the copy.
    log.truncate_to(Offset(3)).unwrap();
    log.close().unwrap();
    assert_copy_is(&fs, &expected.1);
    let (copy, _) = open_copy(&fs);
    assert_eq!(known(&copy), expected.0);
}

/// On the real file system, with copies on another thread while the log appends, truncates and forgets.
#[test]
fn copies_made_beside_a_busy_writer_are_whole() {
    let root = tempfile::tempdir().unwrap();
    let options = LogOptions { segment_bytes: 4000, index_interval_bytes: 200, ..LogOptions::default() };
    let (log, _) = Log::open(root.path().join("log"), options.clone()).unwrap();
    let log = std::sync::Mutex::new(log);
    let stop = AtomicBool::new(false);
    let mut made = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                let mut log = log.lock().unwrap();
                number += 1;
                let epoch = LeaderEpoch(i32::try_from(number / 400).unwrap());
                log.append(NOW, epoch, &numbered(number, 90)).unwrap();
                if number % 400 == 399 {
                    let back = (log.end() + -60).max(log.start());
                    log.truncate_to(back).unwrap();
                }
                if number % 150 == 0 {
                    let start = (log.end() + -200).max(log.start());
                    log.advance_start(start).unwrap();
                    keep_house(&mut log, NOW, start);
                }
            }
        });
        for round in 0..60 {
            let job = log.lock().unwrap().begin_snapshot(root.path().join(format!("copy-{round}"))).unwrap();
            match job.run() {
                Ok(_) => made.0 += 1,
                Err(CopyError::Superseded) => made.1 += 1,
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(made.0 > 5, "{made:?}");
    drop(log);
    let whole: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(whole.len(), made.0 + 1, "those that failed left nothing");
    for copy in whole.into_iter().filter(|path| path.file_name().unwrap() != "log") {
        let (log, report) = Log::open_with(OsFs::shared(), &copy, options.clone(), OpenHints::default()).unwrap();
        assert!(report.clean && report.cut.is_none(), "{report:?}");
        let records = contents(&log.reader());
        let first = records.first().map(|(offset, _)| *offset);
        assert_eq!(first.unwrap_or_else(|| log.end().0), log.start().0);
        // Each record carries a number that rises by one, but for what a truncation took.
        let numbers: Vec<u64> =
            records.iter().map(|(_, value)| u64::from_be_bytes(value[..8].try_into().unwrap())).collect();
        assert!(numbers.is_sorted_by(|one, other| one < other), "no record of a history that was taken back");
        let gaps = numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        assert!(gaps <= 1 + numbers.len() / 300, "{gaps} gaps in {}", numbers.len());
    }
}
