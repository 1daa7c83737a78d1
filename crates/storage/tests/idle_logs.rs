//! What a log costs that nobody uses: two kilobytes, a little more for each segment, and no descriptor.

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

fn open_in(directory: &Path, options: &LogOptions) -> Log {
    Log::open_with(Arc::new(OsFs), directory, options.clone(), OpenHints::default()).unwrap().0
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Bytes that each of a thousand logs takes, opened after a clean close with so many segments.
fn bytes_a_log(segments: usize) -> usize {
    let _alone = ALONE.lock().unwrap();
    let root = tempfile::tempdir().unwrap();
    let options = LogOptions { segment_bytes: 300, ..LogOptions::default() };
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
        let log = open_in(path, &options);
        assert_eq!(log.segments().len(), segments.max(1));
        logs.push(log);
    }
    assert_eq!(descriptors(), open, "a log at rest has no file open");
    let bytes = (MEMORY.current_usage() - memory) / LOGS + size_of::<Log>();
    println!("{segments} segments: {bytes} bytes a log, {} of them the handle", size_of::<Log>());
    // They are logs, all the same.
    let records: usize = logs.iter().take(10).map(|log| contents(&log.reader()).len()).sum();
    assert_eq!(records, 10 * segments);
    bytes
}

#[test]
fn an_idle_log_costs_two_kilobytes() {
    for segments in [0, 1] {
        let bytes = bytes_a_log(segments);
        assert!(bytes < 2200, "{bytes} bytes");
    }
}

#[test]
fn nine_more_segments_cost_little_more() {
    let bytes = bytes_a_log(10);
    assert!(bytes < 2200 + 9 * 200, "{bytes} bytes");
}
