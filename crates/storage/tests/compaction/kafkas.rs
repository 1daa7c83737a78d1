//! Logs that Kafka's cleaner went over, compacted again.

use std::path::{Path, PathBuf};

use highwater_storage::{LogOptions, Offset, OpenHints};

use crate::keyed::{compact, compacted, compaction, records};

fn copied(partition: &str) -> (tempfile::TempDir, PathBuf) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/compacted/log").join(partition);
    let root = tempfile::tempdir().unwrap();
    let to = root.path().join(partition);
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    (root, to)
}

#[test]
fn what_kafka_compacted_loses_nothing_but_what_is_superseded_and_then_nothing_more() {
    for partition in ["compact-0", "compact-fast-0", "compact-txn-0", "compact-zstd-0"] {
        let (_root, dir) = copied(partition);
        let mut options = LogOptions { segment_bytes: 4096, index_interval_bytes: 512, ..compacted() };
        // Before any of the times until which Kafka keeps tombstones and markers here.
        let now = 1_700_000_000_000;
        let open = |options: &LogOptions| {
            let fs = std::sync::Arc::new(highwater_storage::fs::OsFs);
            let hints = OpenHints { clean: Some(true), ..OpenHints::default() };
            highwater_storage::Log::open_with(fs, &dir, options.clone(), hints).unwrap().0
        };
        let mut log = open(&options);
        let (before, end) = (records(&log.reader()), log.end());
        let epochs = log.epochs().to_vec();
        let latest = |records: &std::collections::BTreeMap<i64, crate::keyed::Stored>| {
            let mut latest = std::collections::BTreeMap::new();
            for (offset, stored) in records.iter().filter(|(_, stored)| !stored.is_control) {
                latest.insert(stored.key.clone(), (*offset, stored.value.clone()));
            }
            latest
        };
        assert_eq!(compact(&mut log, now).len(), 1, "{partition}");
        let after = records(&log.reader());
        for (offset, stored) in &after {
            assert_eq!(before.get(offset), Some(stored), "{partition}, {offset}");
        }
        let cleaner_offset = log.cleaner_offset();
        assert!(cleaner_offset > Offset(300), "{partition}: {cleaner_offset}");
        assert_eq!((log.end(), log.epochs()), (end, &*epochs), "{partition}");
        let aborted = log.reader().aborted_transactions(Offset(0), end).unwrap();
        if aborted.is_empty() {
            assert_eq!(latest(&after), latest(&before), "{partition}");
        }
        // From the start once more: nothing is left to do, and nothing changes.
        drop(log);
        let sizes = || {
            let mut sizes: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap()).collect();
            sizes.retain(|entry| entry.file_name().to_string_lossy().ends_with(".log"));
            let mut sizes: Vec<_> =
                sizes.iter().map(|one| (one.file_name(), std::fs::read(one.path()).unwrap())).collect();
            sizes.sort();
            sizes
        };
        compaction(&mut options).min_cleanable_dirty_ratio = 0.0;
        let mut log = open(&options);
        compact(&mut log, now);
        let first = sizes();
        drop(log);
        let mut log = open(&options);
        compact(&mut log, now);
        assert!(sizes() == first, "{partition}: compacted again it is the same to the byte");
        assert_eq!(records(&log.reader()), after, "{partition}");
    }
}
