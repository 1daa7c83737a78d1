//! The bound on open files holds whatever is done with logs: on the real file system, counted by the process's
//! descriptors.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::OsFs;
use highwater_storage::*;
use support::*;

const LOGS: usize = 10;
const SEGMENTS: usize = 20;
/// What the logs may keep open together.
const BOUND: usize = 8;
/// What is open for a moment beside: the listing of the descriptors itself, a file that is read and closed.
const BESIDE: usize = 4;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The process's descriptors, which may not have become too many.
struct Descriptors {
    before: usize,
    most: usize,
}

impl Descriptors {
    fn look(&mut self, what: &str) {
        let more = descriptors().saturating_sub(self.before);
        self.most = self.most.max(more);
        assert!(more <= BOUND + BESIDE, "{what}: {more} more files are open than before, at most {BOUND} are to be");
    }
}

fn open_in(directory: &Path, options: &LogOptions) -> Log {
    Log::open_with(Arc::new(OsFs), directory, options.clone(), OpenHints::default()).unwrap().0
}

fn remove_where(directory: &Path, goes: impl Fn(&str) -> bool) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if goes(&entry.file_name().to_string_lossy()) {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

/// What is done about the index files between closing and opening.
fn s51_with(spoil: impl Fn(&Path)) {
    let root = tempfile::tempdir().unwrap();
    let open_files = OpenFiles::bounded(BOUND);
    let options = LogOptions { segment_bytes: 300, open_files, ..LogOptions::default() };
    let mut count = Descriptors { before: descriptors(), most: 0 };
    let directories: Vec<PathBuf> = (0..LOGS).map(|log| root.path().join(format!("books-{log}"))).collect();
    let template = root.path().join("template");
    std::fs::create_dir(&template).unwrap();
    let mut log = open_in(&template, &options);
    for number in 0..SEGMENTS as u64 {
        append(&mut log, &numbered(number, 200));
    }
    assert_eq!(log.segments().len(), SEGMENTS);
    log.close().unwrap();
    spoil(&template);
    for directory in &directories {
        std::fs::create_dir(directory).unwrap();
        for entry in std::fs::read_dir(&template).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let mut logs: Vec<Log> = directories.iter().map(|directory| open_in(directory, &options)).collect();
    count.look("opened");
    for offset in 0..SEGMENTS as i64 {
        for log in &mut logs {
            let fetched = log.read(Offset(offset), ReadLimit::bytes(1)).unwrap();
            assert_eq!(fetched.first, Offset(offset));
            count.look("read");
            let (reader, end) = (log.reader(), log.end());
            let found = reader.offset_for_timestamp(TimestampMs(T0 + offset), end).unwrap().unwrap();
            assert_eq!(found.offset, Offset(offset));
            count.look("searched by time");
            assert_eq!(reader.max_timestamp(end).unwrap().unwrap().offset, Offset(SEGMENTS as i64 - 1));
            count.look("searched for the largest time");
        }
    }
    for log in &mut logs {
        append(log, &numbered(100, 50));
        log.flush().unwrap();
        let limits = WorkLimits::new(log.end());
        while log.housekeeping().step(NOW, &limits).unwrap().is_some() {
            count.look("kept house");
        }
        count.look("kept house");
    }
    for log in logs {
        log.close().unwrap();
        count.look("closed");
    }
    assert!(count.most > 0, "it counts what is open");
}

/// S51: with the index files as closing left them, most of them empty, for a segment of one batch needs no entry; with
/// none, so that all are built anew; and with empty ones in the place of those that say something.
#[test]
fn s51_open_files_stay_within_their_bound() {
    s51_with(|_| {});
    s51_with(|directory| remove_where(directory, |name| name.ends_with(".index") || name.ends_with(".timeindex")));
    s51_with(|directory| {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "timeindex") {
                std::fs::write(path, b"").unwrap();
            }
        }
    });
}
