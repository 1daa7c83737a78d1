//! What a log costs that nobody uses: a kilobyte and its path, a little more for each segment, and no descriptor.

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use highwater_storage::fs::OsFs;
use highwater_storage::*;
use peak_alloc::PeakAlloc;
use support::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The tests measure one process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

const LOGS: usize = 1000;

/// What a log at rest with one segment may take.
const LOG_BYTES: usize = 1120;

fn open_in(directory: &Path, options: &Arc<LogOptions>) -> Log {
    Log::open_with(Arc::new(OsFs), directory, options.clone(), OpenHints::default()).unwrap().0
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes that each of a thousand logs takes, opened after a clean close with so many segments, once it
/// was `used`; its path is not counted.
fn bytes_a_log(segments: usize, used: impl Fn(&mut Log)) -> usize {
    let _alone = ALONE.lock().unwrap();
    let root = tempfile::tempdir().unwrap();
    let options = Arc::new(LogOptions { segment_bytes: 300, ..LogOptions::default() });
    let template = root.path().join("template");
    std::fs::create_dir(&template).unwrap();
    let mut log = open_in(&template, &options);
    for number in 0..segments as u64 {
        append(&mut log, &numbered(number, 200));
    }
    log.close().unwrap();
    let paths: Vec<PathBuf> = (0..LOGS).map(|number| root.path().join(format!("books-{number}"))).collect();
    for path in &paths {
        std::fs::create_dir(path).unwrap();
        for entry in std::fs::read_dir(&template).unwrap() {
            let entry = entry.unwrap();
            std::fs::hard_link(entry.path(), path.join(entry.file_name())).unwrap();
        }
    }
    let mut logs = Vec::with_capacity(LOGS);
    let (memory, open) = (MEMORY.current_usage(), descriptors());
    for path in &paths {
        let mut log = open_in(path, &options);
        assert_eq!(log.segments().len(), segments.max(1));
        used(&mut log);
        logs.push(log);
    }
    assert_eq!(descriptors(), open, "a log at rest has no file open");
    let path_bytes = paths[0].as_os_str().len();
    let bytes = (MEMORY.current_usage() - memory) / LOGS + size_of::<Log>() - path_bytes;
    println!("{segments} segments: {bytes} bytes a log, {} of them the handle", size_of::<Log>());
    // They are logs, all the same.
    let records: usize = logs.iter().take(10).map(|log| contents(&log.reader()).len()).sum();
    assert_eq!(records, 10 * segments);
    bytes
}

#[test]
fn an_idle_log_costs_a_kilobyte() {
    for segments in [0, 1] {
        let bytes = bytes_a_log(segments, |_| ());
        assert!(bytes < LOG_BYTES, "{bytes} bytes");
    }
}

#[test]
fn what_housekeeping_remembers_costs_a_quarter_more() {
    let bytes = bytes_a_log(1, |log| {
        let limits = WorkLimits::new(log.end());
        while log.housekeeping().step(TimestampMs(1), &limits).unwrap().is_some() {}
    });
    assert!(bytes < LOG_BYTES + 240, "{bytes} bytes");
}

#[test]
fn nine_more_segments_cost_little_more() {
    let bytes = bytes_a_log(10, |_| ());
    assert!(bytes < LOG_BYTES + 9 * 180, "{bytes} bytes");
}
