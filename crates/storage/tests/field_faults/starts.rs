//! Starts of a data directory that are interrupted.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::{Fs, OpenMode, SimFs};
use highwater_storage::io::FileExt;
use highwater_storage::{Log, LogOptions, Offset, RecoveryReport, TopicId, TopicPartition};

use crate::support::{append, contents, numbered};

fn root(fs: &SimFs) -> (DataDir, bool) {
    let options = DataDirOptions::of_node(1).in_cluster("a");
    let (data, report) = DataDir::open(Arc::new(fs.clone()), Path::new("/data"), options).unwrap();
    (data, report.clean)
}

fn open(fs: &SimFs, data: &DataDir, partition: &TopicPartition) -> (Log, RecoveryReport) {
    let directory = Path::new("/data").join(partition.to_string());
    Log::open_with(Arc::new(fs.clone()), &directory, LogOptions::default(), data.hints(partition)).unwrap()
}

/// Killed after the first of two logs was loaded and written to, with a batch torn at its end: the next start does not take
/// the stop before the last for its own.
#[test]
fn s06_a_kill_while_logs_are_being_loaded_is_not_taken_for_the_clean_stop_before() {
    let fs = SimFs::new(1);
    fs.create_dir(Path::new("/data")).unwrap();
    let partitions = [0, 1].map(|number| TopicPartition::new("books".to_owned(), number));
    let (data, _) = root(&fs);
    for partition in &partitions {
        data.create_partition(partition, TopicId([7; 16])).unwrap();
        let (mut log, _) = open(&fs, &data, partition);
        for number in 0..5 {
            append(&mut log, &numbered(number, 90));
        }
        log.close().unwrap();
    }
    data.close_clean(1).unwrap();

    let (data, clean) = root(&fs);
    assert!(clean);
    let (mut log, report) = open(&fs, &data, &partitions[0]);
    assert!(report.clean, "{report:?}");
    append(&mut log, &numbered(5, 90));
    let before = contents(&log.reader());
    // The kill takes the rest of an append.
    let file = fs.open(Path::new("/data/books-0/00000000000000000000.log"), OpenMode::ReadWrite).unwrap();
    file.write_all_at(&numbered(6, 90)[..70], log.size_bytes()).unwrap();
    let fs = fs.process_crash_image();

    let (data, clean) = root(&fs);
    assert!(!clean);
    let (mut log, report) = open(&fs, &data, &partitions[0]);
    assert!(!report.clean, "{report:?}");
    assert_eq!(report.cut.map(|cut| (cut.end, cut.bytes)), Some((Offset(6), 70)));
    assert_eq!(contents(&log.reader()), before);
    assert_eq!(append(&mut log, &numbered(6, 90)), 6);
    let (log, report) = open(&fs, &data, &partitions[1]);
    assert_eq!((report.cut, contents(&log.reader()).len()), (None, 5));
}
