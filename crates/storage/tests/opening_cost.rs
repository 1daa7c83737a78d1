//! What opening a log asks of the file system: one listing, the facts of each data file, and each small file and the end
//! of the last segment once.

mod support;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex};

use highwater_storage::fs::{DirEntry, DirLock, File, Fs, Mapped, Metadata, OpenMode, OsFs, RawDescriptor, SimFs};
use highwater_storage::*;
use support::*;

/// A file system that writes down what it is asked: what, and the name of the file.
#[derive(Clone, Debug)]
struct Asked {
    fs: Arc<dyn Fs>,
    calls: Arc<Mutex<Vec<(&'static str, String)>>>,
}

#[derive(Debug)]
struct AskedFile {
    file: Arc<dyn File>,
    name: String,
    asked: Asked,
}

impl Asked {
    fn new(fs: Arc<dyn Fs>) -> Self {
        Self { fs, calls: Arc::default() }
    }

    fn note(&self, what: &'static str, path: &Path) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        self.calls.lock().unwrap().push((what, name));
    }

    fn file(&self, path: &Path, file: Arc<dyn File>) -> Arc<dyn File> {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Arc::new(AskedFile { file, name, asked: self.clone() })
    }

    /// The calls since this was last asked.
    fn take(&self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Fs for Asked {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.note("open", path);
        Ok(self.file(path, self.fs.open(path, mode)?))
    }
    fn open_with_metadata(&self, path: &Path, mode: OpenMode) -> io::Result<(Arc<dyn File>, Metadata)> {
        self.note("open", path);
        let (file, metadata) = self.fs.open_with_metadata(path, mode)?;
        Ok((self.file(path, file), metadata))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("change", from);
        self.fs.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.note("change", path);
        self.fs.remove_file(path)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("change", from);
        self.fs.hard_link(from, to)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.note("change", path);
        self.fs.create_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.note("change", path);
        self.fs.remove_dir(path)
    }
    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.note("list", path);
        self.fs.read_dir(path)
    }
    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.note("facts", path);
        self.fs.metadata(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.note("sync", path);
        self.fs.sync_dir(path)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.note("free", path);
        self.fs.free_space(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.note("lock", path);
        self.fs.lock(path)
    }
}

impl File for AskedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.asked.note("read", Path::new(&self.name));
        self.file.read_at(buffer, position)
    }
    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.asked.note("change", Path::new(&self.name));
        self.file.write_vectored_at(slices, position)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.asked.note("change", Path::new(&self.name));
        self.file.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.asked.note("sync", Path::new(&self.name));
        self.file.sync_data()
    }
    fn metadata(&self) -> io::Result<Metadata> {
        self.asked.note("facts of open", Path::new(&self.name));
        self.file.metadata()
    }
    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        self.asked.note("map", Path::new(&self.name));
        self.file.map(len)
    }
    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        self.file.raw_descriptor()
    }
}

fn is_log(name: &str) -> bool {
    name.ends_with(".log")
}

/// How many calls of a kind there were on files whose names are wanted.
fn count(calls: &[(&str, String)], what: &str, wanted: impl Fn(&str) -> bool) -> usize {
    calls.iter().filter(|(call, name)| *call == what && wanted(name)).count()
}

/// A log of ten segments on the real file system, each of `batches` batches of about a kilobyte.
fn ten_segments(directory: &Path, batches: u32) -> LogOptions {
    let options = LogOptions { segment_bytes: batches * 1100, ..LogOptions::default() };
    let (mut log, _) = Log::open_with(Arc::new(OsFs), directory, options.clone(), OpenHints::default()).unwrap();
    for number in 0.. {
        if log.segments().len() == 10 && log.segments()[9].size_bytes > u64::from(batches) * 500 {
            break;
        }
        append(&mut log, &numbered(number, 950));
    }
    log.close().unwrap();
    options
}

#[test]
fn a_clean_opening_lists_once_and_reads_nothing_twice() {
    // Segments that are read whole in one piece, and segments of which only the start and the end are read.
    for batches in [3, 200] {
        let directory = tempfile::tempdir().unwrap();
        let options = ten_segments(directory.path(), batches);
        let asked = Asked::new(Arc::new(OsFs));
        let open = || Log::open_with(Arc::new(asked.clone()), directory.path(), options.clone(), OpenHints::default());
        let (log, report) = open().unwrap();
        assert!(report.clean && log.segments().len() == 10, "{report:?}");
        let calls = asked.take();
        let of_any = |what: &str| count(&calls, what, |_| true);
        assert_eq!(of_any("list"), 1, "{calls:#?}");
        assert_eq!((of_any("change"), of_any("sync")), (0, 0), "{calls:#?}");
        // The last segment's come with its opening.
        assert_eq!((of_any("facts"), count(&calls, "facts", is_log)), (9, 9), "{calls:#?}");
        assert_eq!(of_any("facts of open"), 0, "{calls:#?}");
        assert_eq!(count(&calls, "open", is_log), 1, "{calls:#?}");
        assert_eq!(count(&calls, "read", is_log), if batches == 3 { 1 } else { 2 }, "{calls:#?}");
        let mut opened: Vec<&String> =
            calls.iter().filter(|(what, _)| ["open", "read"].contains(what)).map(|(_, name)| name).collect();
        assert!(opened.len() <= 16, "{calls:#?}");
        opened = calls.iter().filter(|(what, _)| *what == "open").map(|(_, name)| name).collect();
        opened.sort_unstable();
        assert!(opened.windows(2).all(|pair| pair[0] != pair[1]), "a file was opened twice: {calls:#?}");
        let missing = |name: &&&String| !directory.path().join(name).exists();
        assert_eq!(opened.iter().find(missing), None, "the listing told that it is not there: {calls:#?}");
        // Nor does a reader without the right to change anything ask for more.
        drop(log);
        Log::open_read_only_with(Arc::new(asked.clone()), directory.path(), options.clone(), OpenHints::default())
            .unwrap();
        assert_eq!(asked.take(), calls);
    }
}

/// What was kept of the end of the log for the opening is not what is read later: another batch is there by then.
#[test]
fn what_the_opening_kept_in_memory_is_forgotten_with_it() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &LogOptions::default());
    append(&mut log, &numbered(1, 100));
    append(&mut log, &numbered(2, 100));
    log.close().unwrap();
    let (mut log, _) = open(&fs, &LogOptions::default());
    let (reader, _) = read_only(&fs);
    log.truncate_to(Offset(1)).unwrap();
    append(&mut log, &numbered(3, 100));
    let expected = contents(&log.reader());
    assert_eq!(expected[1].1[7], 3);
    assert_eq!(contents(&reader), expected, "it reads the file, which changed under it");
}

fn read_only(fs: &SimFs) -> (LogReader, RecoveryReport) {
    Log::open_read_only_with(Arc::new(fs.clone()), Path::new(DIR), LogOptions::default(), OpenHints::default()).unwrap()
}

#[test]
fn after_a_crash_the_directory_is_listed_no_more_than_twice() {
    let directory = tempfile::tempdir().unwrap();
    let options = ten_segments(directory.path(), 3);
    let open = |fs: Arc<dyn Fs>| Log::open_with(fs, directory.path(), options.clone(), OpenHints::default()).unwrap();
    let (mut log, _) = open(Arc::new(OsFs));
    append(&mut log, &numbered(1, 100));
    log.flush().unwrap();
    drop(log);
    let asked = Asked::new(Arc::new(OsFs));
    let (_, report) = open(Arc::new(asked.clone()));
    assert!(!report.clean);
    let calls = asked.take();
    assert!(count(&calls, "list", |_| true) <= 2, "{calls:#?}");
}

/// What is verified, repaired and copied of a data root: its checkpoints are read as often for many partitions as for a few.
#[test]
fn the_checkpoints_of_a_root_are_not_read_for_each_partition() {
    const CHECKPOINT: &str = "recovery-point-offset-checkpoint";
    let opened = |partitions: usize| {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let mut lines = format!("0\n{partitions}\n");
        let dirs: Vec<_> = (0..partitions).map(|number| root.join(format!("books-{number}"))).collect();
        for (number, dir) in dirs.iter().enumerate() {
            let (mut log, _) = Log::open(dir, LogOptions::default()).unwrap();
            append(&mut log, &numbered(1, 90));
            log.close().unwrap();
            // Past the end: a repair has a line to lower for each.
            lines.push_str(&format!("books {number} 7\n"));
        }
        std::fs::write(root.join(CHECKPOINT), lines).unwrap();
        let asked = Asked::new(Arc::new(OsFs));
        let fs: Arc<dyn Fs> = Arc::new(asked.clone());
        let opens = || count(&asked.take(), "open", |name| name.starts_with(CHECKPOINT));

        let checkpoints = inspect::RootCheckpoints::read(&*fs, &root).unwrap();
        let faults: u64 = dirs
            .iter()
            .map(|dir| inspect::verify_partition_in_root(&*fs, dir, &checkpoints, &mut |_| {}).unwrap().faults)
            .sum();
        assert_eq!(faults, partitions as u64);
        let verifying = opens();
        repair::copy_root(&fs, &root, &directory.path().join("copy"), &mut |_| {}).unwrap();
        let copying = opens();
        let mut repair = repair::RootRepair::begin(&*fs, repair::RepairLock::take(&*fs, &root).unwrap()).unwrap();
        for dir in &dirs {
            assert_eq!(repair.partition(&fs, dir, &mut |_| {}).unwrap(), []);
        }
        repair.finish(&*fs).unwrap();
        let repairing = opens();
        assert!(verifying > 0 && copying > 0 && repairing > 0);
        [verifying, copying, repairing]
    };
    assert_eq!(opened(2), opened(6));
}
