use std::process::Command;

use super::*;
use crate::fs::{Call, Fault, OpenMode, OsFs, SimFs};
use crate::io::FileExt;

const ROOT: &str = "/srv/data";
const ID: TopicId = TopicId([7; 16]);

fn root() -> &'static Path {
    Path::new(ROOT)
}

fn options() -> DataDirOptions {
    DataDirOptions { cluster_id: Some("cluster-a".into()), node_id: 1 }
}

fn open(fs: &SimFs) -> (DataDir, DataDirReport) {
    DataDir::open(Arc::new(fs.clone()), root(), options()).unwrap()
}

fn tp(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

fn offsets(entries: &[(&str, i32, i64)]) -> BTreeMap<TopicPartition, Offset> {
    entries.iter().map(|&(topic, partition, offset)| (tp(topic, partition), Offset(offset))).collect()
}

fn put(fs: &dyn Fs, path: &Path, content: &[u8]) {
    fs.open(path, OpenMode::Truncate).unwrap().write_all_at(content, 0).unwrap();
}

fn text(fs: &dyn Fs, name: &str) -> Option<String> {
    read_small_file(fs, &root().join(name), 1 << 20).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
}

/// A root with `books-0` and `books-1`, closed cleanly and durable.
fn prepared() -> SimFs {
    let fs = SimFs::new(1);
    let (data, _) = open(&fs);
    for partition in [0, 1] {
        data.create_partition(&tp("books", partition), ID).unwrap();
    }
    data.write_recovery_points(&offsets(&[("books", 0, 100), ("books", 1, 200)])).unwrap();
    data.write_log_starts(&offsets(&[("books", 0, 10)])).unwrap();
    data.write_high_watermarks(&offsets(&[("books", 0, 90), ("books", 1, 190)])).unwrap();
    data.write_cleaner_offsets(&offsets(&[("books", 0, 70)])).unwrap();
    data.close_clean(42).unwrap();
    fs
}

#[test]
fn a_new_root_is_made_with_its_parents_and_belongs_to_us() {
    let fs = SimFs::new(1);
    let (data, report) = open(&fs);
    assert!(report.created && !report.clean && !data.was_clean());
    assert_eq!(report.warnings, []);
    assert_eq!(text(&fs, "meta.properties").unwrap(), "version=1\nnode.id=1\ncluster.id=cluster-a\n");
    for image in fs.images(50, 1) {
        assert!(text(&image, "meta.properties").is_some(), "the root and all above it are durable");
    }
    drop(data);
    let (_, report) = open(&fs);
    assert!(!report.created && !report.clean, "dropped without a close is a crash");
}

#[test]
fn everything_comes_back_after_a_clean_stop() {
    let fs = prepared();
    assert_eq!(text(&fs, ".kafka_cleanshutdown").unwrap(), "{\"version\":0,\"brokerEpoch\":42}");
    let fs = fs.images(1, 1).remove(0);
    let (data, report) = open(&fs);
    assert!(report.clean && data.was_clean());
    assert_eq!(report.broker_epoch, Some(42));
    let found = |partition: i32| FoundPartition {
        topic_partition: tp("books", partition),
        dir: root().join(format!("books-{partition}")),
        topic_id: Some(ID),
    };
    assert_eq!(data.partitions(), [found(0), found(1)]);
    let hints = data.hints(&tp("books", 0));
    let expected = OpenHints {
        clean: Some(true),
        recovery_point: Some(Offset(100)),
        log_start: Some(Offset(10)),
        cleaner_offset: Some(Offset(70)),
    };
    assert_eq!(hints, expected);
    assert_eq!(data.hints(&tp("books", 1)).log_start, None);
    assert_eq!(data.high_watermark(&tp("books", 1)), Some(Offset(190)));
    assert_eq!(data.high_watermark(&tp("books", 2)), None);
    assert_eq!(text(&fs, ".kafka_cleanshutdown"), None);
}

#[test]
fn the_marker_is_durably_gone_when_the_root_is_open() {
    // KAFKA-10471: a crash while logs are being loaded must not look like a clean stop to the next start.
    let fs = prepared();
    let (data, _) = open(&fs);
    for image in fs.images(100, 1) {
        assert!(!open(&image).1.clean);
    }
    drop(data);
    // And a crash at any call of the opening either leaves it, with nothing changed, or has taken it.
    let calls = {
        let fs = prepared().process_crash_image();
        drop(open(&fs));
        fs.calls()
    };
    let mut outcomes = [0, 0];
    for crash_at in 0..calls {
        let fs = prepared().process_crash_image();
        fs.crash_after(crash_at);
        assert!(DataDir::open(Arc::new(fs.clone()), root(), options()).is_err());
        for image in fs.images(50, crash_at) {
            let (data, report) = open(&image);
            outcomes[usize::from(report.clean)] += 1;
            assert_eq!(data.hints(&tp("books", 0)).recovery_point, Some(Offset(100)));
        }
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
}

#[test]
fn a_clean_stop_makes_up_for_checkpoints_that_lacked_room_once_there_is_room() {
    let lacking_room = || {
        let fs = prepared();
        let (data, _) = open(&fs);
        fs.inject(Fault::Enospc, Call::Write, 1);
        assert!(data.write_high_watermarks(&offsets(&[("books", 0, 95)])).is_err());
        (fs, data)
    };
    // By a later write of the same, and by the stop itself.
    for written_again in [true, false] {
        let (fs, data) = lacking_room();
        if written_again {
            data.write_high_watermarks(&offsets(&[("books", 0, 95)])).unwrap();
        }
        data.close_clean(1).unwrap();
        for image in fs.images(20, 1) {
            let (data, report) = open(&image);
            assert!(report.clean && data.high_watermark(&tp("books", 0)) == Some(Offset(95)));
        }
    }
    let (fs, data) = lacking_room();
    fs.inject(Fault::Enospc, Call::Write, 1);
    assert!(matches!(data.close_clean(1), Err(CloseError::WriteFailed { .. })));
    assert!(!open(&fs).1.clean);
}

#[test]
fn no_clean_stop_after_a_failed_write_or_a_failed_marker() {
    let fs = prepared();
    let (data, _) = open(&fs);
    fs.inject(Fault::Eio, Call::SyncData, 1);
    assert!(data.write_high_watermarks(&offsets(&[("books", 0, 95)])).is_err());
    data.write_high_watermarks(&offsets(&[("books", 0, 96)])).unwrap();
    assert!(matches!(data.close_clean(1), Err(CloseError::WriteFailed { .. })));
    let (data, report) = open(&fs);
    assert!(!report.clean);
    assert_eq!(data.high_watermark(&tp("books", 0)), Some(Offset(96)));

    fs.inject(Fault::Eio, Call::SyncData, 1);
    assert!(matches!(data.close_clean(1), Err(CloseError::Io(_))));
    assert!(!open(&fs).1.clean);
}

#[test]
fn only_one_may_open_a_root() {
    let fs = prepared();
    let (data, _) = open(&fs);
    let error = DataDir::open(Arc::new(fs.clone()), root(), options()).unwrap_err();
    assert!(matches!(error, DataDirError::Lock(LockError::Held { .. })), "{error}");
    assert!(error.to_string().starts_with("/srv/data is in use by this process"), "{error}");
    drop(data);
    drop(open(&fs));
}

#[test]
fn another_brokers_root_is_refused_untouched() {
    let fs = prepared();
    let wrong_node = DataDirOptions { node_id: 2, ..options() };
    let error = DataDir::open(Arc::new(fs.clone()), root(), wrong_node).unwrap_err();
    assert!(matches!(error, DataDirError::WrongNode { found: 1, expected: 2, .. }), "{error}");
    let wrong_cluster = DataDirOptions { cluster_id: Some("cluster-b".into()), node_id: 1 };
    let error = DataDir::open(Arc::new(fs.clone()), root(), wrong_cluster).unwrap_err();
    assert!(matches!(error, DataDirError::WrongCluster { .. }), "{error}");
    assert!(error.to_string().contains("belongs to cluster cluster-a and this broker to cluster cluster-b"), "{error}");
    assert!(open(&fs).1.clean, "the marker of its clean stop is still there");
}

#[test]
fn a_root_without_a_cluster_takes_one_once() {
    let fs = SimFs::new(1);
    let unknown = || DataDirOptions { cluster_id: None, node_id: 1 };
    let (mut data, report) = DataDir::open(Arc::new(fs.clone()), root(), unknown()).unwrap();
    assert_eq!((report.cluster_id, text(&fs, "meta.properties")), (None, None));
    data.adopt_cluster_id("cluster-a").unwrap();
    data.adopt_cluster_id("cluster-a").unwrap();
    assert!(matches!(data.adopt_cluster_id("cluster-b"), Err(DataDirError::WrongCluster { .. })));
    drop(data);
    let (_, report) = DataDir::open(Arc::new(fs.clone()), root(), unknown()).unwrap();
    assert_eq!(report.cluster_id.as_deref(), Some("cluster-a"));
}

#[test]
fn unreadable_meta_properties_stop_the_start() {
    let fs = prepared();
    put(&fs, &root().join("meta.properties"), b"version=7\n");
    let error = DataDir::open(Arc::new(fs.clone()), root(), options()).unwrap_err();
    assert!(matches!(error, DataDirError::Metadata(_)), "{error}");
}

#[test]
fn a_partition_not_given_keeps_its_line() {
    // KAFKA-1647: a checkpoint during the start wrote only what was loaded, and the rest was truncated away later.
    let fs = prepared();
    let (data, _) = open(&fs);
    data.write_high_watermarks(&offsets(&[("books", 1, 195)])).unwrap();
    assert_eq!(text(&fs, HIGH_WATERMARKS_FILE).unwrap(), "0\n2\nbooks 0 90\nbooks 1 195\n");
    drop(data);
    assert_eq!(open(&fs).0.high_watermark(&tp("books", 0)), Some(Offset(90)));
}

#[test]
fn an_unchanged_checkpoint_costs_no_write() {
    let fs = prepared();
    let (data, _) = open(&fs);
    let before = fs.calls();
    data.write_high_watermarks(&offsets(&[("books", 0, 90)])).unwrap();
    assert_eq!(fs.calls(), before);
    data.write_high_watermarks(&offsets(&[("books", 0, 91)])).unwrap();
    assert!(fs.calls() > before);
}

#[test]
fn damaged_checkpoints_count_as_missing_and_are_told() {
    // The cases of field fault S18: each stopped some broker's start.
    let seen = |data: &DataDir| {
        let hints = data.hints(&tp("books", 0));
        [hints.recovery_point, hints.log_start, data.high_watermark(&tp("books", 0)), hints.cleaner_offset]
    };
    for name in [RECOVERY_POINTS_FILE, LOG_STARTS_FILE, HIGH_WATERMARKS_FILE, CLEANER_OFFSETS_FILE] {
        for damage in [&b""[..], b"0\n", b"0\n5\nbooks 0 1\nbooks 1 1\n", &[0; 4096], b"0\n1\nbooks 0 1\n\0\0\0"] {
            let fs = prepared();
            put(&fs, &root().join(name), damage);
            let (data, report) = open(&fs);
            let warned: Vec<_> = report.warnings.iter().map(|warning| warning.path.clone()).collect();
            // Kafka leaves this one empty where nothing was compacted.
            let is_told = name != CLEANER_OFFSETS_FILE || !damage.is_empty();
            assert_eq!(warned, vec![root().join(name); usize::from(is_told)], "{name} {damage:?}");
            assert_eq!(seen(&data).iter().filter(|offset| offset.is_none()).count(), 1, "the others are read");
            // The next write puts a good file in its place.
            let all = offsets(&[("books", 0, 50)]);
            data.write_recovery_points(&all).unwrap();
            data.write_log_starts(&all).unwrap();
            data.write_high_watermarks(&all).unwrap();
            data.write_cleaner_offsets(&all).unwrap();
            drop(data);
            assert_eq!(open(&fs).1.warnings, []);
        }
        let fs = prepared();
        put(&fs, &root().join(name), b"0\r\n1\r\nbooks 0 77\r\n");
        let (data, report) = open(&fs);
        assert_eq!(report.warnings, [], "Java reads such line ends, and so do we");
        assert!(seen(&data).contains(&Some(Offset(77))));
    }
}

#[test]
fn a_checkpoint_that_cannot_be_read_is_no_missing_one() {
    let fs = prepared();
    fs.inject_on(Fault::Eio, Call::Read, RECOVERY_POINTS_FILE, 1);
    assert!(matches!(DataDir::open(Arc::new(fs.clone()), root(), options()), Err(DataDirError::Io(_))));
}

#[test]
fn leftovers_are_skipped_with_one_warning_each_and_nothing_is_deleted() {
    // On the real file system: links and pipes are among them. Field fault S20.
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("data");
    let open = || DataDir::open(OsFs::shared(), &root, options()).unwrap();
    let (data, _) = open();
    data.create_partition(&tp("-giveaway", 0), ID).unwrap();
    data.create_partition(&tp("x-3", 0), ID).unwrap();
    data.close_clean(1).unwrap();
    let deletion = "gone-0.0123456789abcdef0123456789abcdef-delete";
    let stray = "gone-1.0123456789abcdef0123456789abcdef-stray";
    let future = "gone-2.0123456789abcdef0123456789abcdef-future";
    let skipped_dirs = ["lost+found", "foo", "foo-", "-0", "foo-abc", "foo-01", "odd-0.abc-delete"];
    for name in skipped_dirs.iter().chain(&[deletion, stray, future, "__cluster_metadata-0", "remote-log-index-cache"])
    {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let skipped_files = [".DS_Store", ".nfs000001", "foo-1.tmp", "file-0"];
    for name in skipped_files.iter().chain(&["bootstrap.checkpoint", "highwater-coordination.journal"]) {
        std::fs::write(root.join(name), b"x").unwrap();
    }
    let skipped_others = ["loop-0", "pipe-0"];
    std::os::unix::fs::symlink(root.join("loop-0"), root.join("loop-0")).unwrap();
    assert!(Command::new("mkfifo").arg(root.join("pipe-0")).status().unwrap().success());
    let listing = || -> Vec<String> {
        let mut names: Vec<String> = OsFs.read_dir(&root).unwrap().into_iter().map(|entry| entry.name).collect();
        names.retain(|name| name != CLEAN_SHUTDOWN_FILE);
        names.sort();
        names
    };
    let before = listing();

    let (data, report) = open();
    let mut expected: Vec<&str> = [&skipped_dirs[..], &skipped_files, &skipped_others].concat();
    expected.sort_unstable();
    let warned: Vec<&str> =
        report.warnings.iter().map(|warning| warning.path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(warned, expected);
    let partitions: Vec<String> = data.partitions().iter().map(|found| found.topic_partition.to_string()).collect();
    assert_eq!(partitions, ["-giveaway-0", "x-3-0"]);
    assert_eq!(report.to_delete, [root.join(deletion)]);
    assert_eq!(report.strays, [root.join(stray)]);
    assert_eq!(report.futures, [root.join(future)]);
    assert_eq!(listing(), before, "nothing is deleted");

    std::fs::write(root.join(deletion).join("00000000000000000000.log"), b"x").unwrap();
    std::os::unix::fs::symlink(root.join("x-3-0"), root.join(deletion).join("link")).unwrap();
    data.remove_dir_tree(&root.join(deletion)).unwrap();
    assert!(!root.join(deletion).exists() && root.join("x-3-0/partition.metadata").exists());
}

#[test]
fn roots_of_real_brokers_are_opened() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    // The files of the root, and of the partitions their names and topic ids.
    let copied = |name: &str| {
        let temporary = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(recorded.join(name)).unwrap() {
            let entry = entry.unwrap();
            let to = temporary.path().join(entry.file_name());
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to).unwrap();
                continue;
            }
            std::fs::create_dir(&to).unwrap();
            let metadata = entry.path().join("partition.metadata");
            if metadata.exists() {
                std::fs::copy(metadata, to.join("partition.metadata")).unwrap();
            }
        }
        temporary
    };
    let options = || DataDirOptions { cluster_id: None, node_id: 1 };

    let clean = copied("deleted-prefix-pending/log");
    let (data, report) = DataDir::open(OsFs::shared(), clean.path(), options()).unwrap();
    assert_eq!((report.clean, report.broker_epoch, report.warnings), (true, Some(10), vec![]));
    assert_eq!(report.cluster_id.as_deref(), Some("AAAAAAAAAAAAAAAAAAAAAQ"));
    let id: TopicId = "i5Pgc-vvT76fN57cRWnDqw".parse().unwrap();
    assert_eq!(data.partitions()[0].topic_id, Some(id));
    let expected = OpenHints {
        clean: Some(true),
        recovery_point: Some(Offset(250)),
        log_start: Some(Offset(137)),
        ..OpenHints::default()
    };
    assert_eq!(data.hints(&tp("delrec-pending", 0)), expected);
    assert_eq!(data.high_watermark(&tp("delrec-pending", 0)), Some(Offset(250)));

    let unclean = copied("unclean/before");
    let (data, report) = DataDir::open(OsFs::shared(), unclean.path(), options()).unwrap();
    assert_eq!((report.clean, report.warnings), (false, vec![]));
    assert_eq!(data.hints(&tp("unclean", 0)).recovery_point, Some(Offset(157)));
    assert_eq!(data.high_watermark(&tp("unclean-prealloc", 0)), Some(Offset(30)));

    let old = copied("old-formats/log");
    let (data, report) = DataDir::open(OsFs::shared(), old.path(), options()).unwrap();
    assert_eq!((report.clean, report.broker_epoch), (true, None), "Kafka 2.4 wrote an empty marker");
    assert_eq!(data.hints(&tp("mixed", 0)).recovery_point, Some(Offset(432)));
    assert_eq!(data.partitions()[0].topic_id, None, "2.4 had no partition.metadata");
    let meta = std::fs::read(old.path().join("meta.properties")).unwrap();
    assert_eq!(meta, std::fs::read(recorded.join("old-formats/log/meta.properties")).unwrap(), "not rewritten");
}

#[test]
fn partitions_are_made_durably_or_not_at_all() {
    let fs = prepared();
    let (data, _) = open(&fs);
    let before = fs.calls();
    let dir = data.create_partition(&tp("new", 0), ID).unwrap();
    let calls = fs.calls() - before;
    assert_eq!(dir, root().join("new-0"));
    for image in fs.images(100, 1) {
        assert_eq!(read_topic_id(&image, &dir).unwrap(), Some(ID));
    }
    for crash_at in 0..calls {
        let fs = prepared();
        let (data, _) = open(&fs);
        fs.crash_after(crash_at);
        data.create_partition(&tp("new", 0), ID).unwrap_err();
        for image in fs.images(50, crash_at) {
            let (data, report) = open(&image);
            assert_eq!(report.warnings, []);
            let found = data.partitions().iter().find(|found| found.topic_partition == tp("new", 0));
            assert!(found.is_none_or(|found| found.topic_id.is_none() || found.topic_id == Some(ID)));
            if let Some(FoundPartition { topic_partition, .. }) = found {
                data.adopt_topic_id(topic_partition, ID).unwrap();
                assert_eq!(read_topic_id(&image, &dir).unwrap(), Some(ID));
            }
        }
    }
    for (call, nth) in [(Call::CreateDir, 1), (Call::Write, 1), (Call::Rename, 1)] {
        fs.inject(Fault::Enospc, call, nth);
        data.create_partition(&tp("full", 0), ID).unwrap_err();
        assert_eq!(fs.metadata(&root().join("full-0")).unwrap_err().kind(), io::ErrorKind::NotFound, "{call:?}");
    }
    data.create_partition(&tp("full", 0), ID).unwrap();
}

#[test]
fn names_that_cannot_be_are_refused() {
    let (data, _) = open(&SimFs::new(1));
    for bad in ["", ".", "..", "a/b", "ünï", "a\0b", &"t".repeat(250)] {
        let refused = data.create_partition(&tp(bad, 0), ID);
        assert!(matches!(refused, Err(PartitionDirError::TopicName(_))), "{bad:?}");
    }
    assert!(matches!(data.create_partition(&tp("a", -1), ID), Err(PartitionDirError::NegativePartition(-1))));
    for good in ["-giveaway", "x-3", "a.b", "a_b", "__x", &"t".repeat(249)] {
        data.create_partition(&tp(good, 0), ID).unwrap();
    }
    assert!(matches!(data.create_partition(&tp("a.b", 0), ID), Err(PartitionDirError::Exists(_))));
    assert!(data.create_partition(&tp(&"t".repeat(249), i32::MAX), ID).is_err(), "longer than a name may be");
}

#[test]
fn a_deleted_partition_leaves_no_line_that_a_new_one_could_inherit() {
    let fs = prepared();
    let (data, _) = open(&fs);
    let dir = root().join("books-0");
    put(&fs, &dir.join("00000000000000000000.log"), b"x");
    let marked = data.mark_for_deletion(&dir).unwrap();
    assert_eq!(marked, root().join("books-0.00000000000000000000000000000000-delete"));
    assert_eq!(data.hints(&tp("books", 0)), OpenHints { clean: Some(true), ..OpenHints::default() });
    assert_eq!(data.hints(&tp("books", 1)).recovery_point, Some(Offset(200)));
    for image in fs.images(100, 1) {
        let (data, report) = open(&image);
        assert_eq!(report.to_delete, [&*marked], "durable");
        assert_eq!(data.high_watermark(&tp("books", 0)), None);
    }

    // Again under the same name, and away again: the names do not meet.
    data.create_partition(&tp("books", 0), TopicId([8; 16])).unwrap();
    let second = data.mark_for_deletion(&dir).unwrap();
    assert_ne!(second, marked);
    let stray = data.set_aside_stray(&root().join("books-1")).unwrap();
    assert_eq!(stray, root().join("books-1.00000000000000000000000000000000-stray"));
    data.remove_dir_tree(&marked).unwrap();
    data.remove_dir_tree(&marked).unwrap();
    drop(data);
    let (data, report) = open(&fs);
    assert_eq!((report.to_delete, report.strays), (vec![second], vec![stray]));
    assert_eq!(data.partitions(), []);
}

#[test]
fn a_recreated_partition_never_starts_with_the_old_ones_lines_after_any_crash() {
    // Recovery points of a deleted log above the end of the new one would switch off its recovery; a log start would
    // hide its records (field fault R27 on the level of the root's files).
    let replace = |data: &DataDir| -> Result<(), PartitionDirError> {
        let marked = data.mark_for_deletion(&root().join("books-0"))?;
        data.create_partition(&tp("books", 0), TopicId([8; 16]))?;
        data.remove_dir_tree(&marked)
    };
    let calls = {
        let fs = prepared();
        let (data, _) = open(&fs);
        let before = fs.calls();
        replace(&data).unwrap();
        fs.calls() - before
    };
    let mut replaced = 0;
    for crash_at in 0..calls {
        let fs = prepared();
        let (data, _) = open(&fs);
        fs.crash_after(crash_at);
        replace(&data).unwrap_err();
        for image in fs.images(40, crash_at) {
            let (data, _) = open(&image);
            let found = data.partitions().iter().find(|found| found.topic_partition == tp("books", 0));
            if found.is_some_and(|found| found.topic_id != Some(ID)) {
                replaced += 1;
                let hints = data.hints(&tp("books", 0));
                assert_eq!((hints.recovery_point, hints.log_start), (None, None), "crash at {crash_at}");
                assert_eq!(data.high_watermark(&tp("books", 0)), None, "crash at {crash_at}");
            }
        }
    }
    assert!(replaced > 0);
}

#[test]
fn lines_without_a_directory_do_not_wait_for_a_new_one() {
    let fs = prepared();
    put(&fs, &root().join(LOG_STARTS_FILE), b"0\n2\nbooks 0 10\nnew 0 500\n");
    let (data, _) = open(&fs);
    data.create_partition(&tp("new", 0), ID).unwrap();
    assert_eq!(data.hints(&tp("new", 0)).log_start, None);
    drop(data);
    assert_eq!(open(&fs).0.hints(&tp("new", 0)).log_start, None);
    assert_eq!(text(&fs, LOG_STARTS_FILE).unwrap(), "0\n1\nbooks 0 10\n");
}

#[test]
fn only_marked_directories_of_this_root_are_removed() {
    let fs = prepared();
    let (data, _) = open(&fs);
    fs.create_dir(Path::new("/srv/other")).unwrap();
    let outside = Path::new("/srv/other/books-0.00000000000000000000000000000000-delete");
    fs.create_dir(outside).unwrap();
    let stray = data.set_aside_stray(&root().join("books-1")).unwrap();
    for (dir, not_marked) in [
        (root().join("books-0"), true),
        (stray.clone(), true),
        (outside.to_owned(), false),
        (root().to_owned(), false),
        (root().join("lost+found"), false),
        (root().join("books-0/.."), false),
    ] {
        let error = data.remove_dir_tree(&dir).unwrap_err();
        assert_eq!(matches!(error, PartitionDirError::NotMarked(_)), not_marked, "{error}");
    }
    assert!(matches!(data.mark_for_deletion(&stray), Err(PartitionDirError::NotAPartition(_))));
    let missing = data.mark_for_deletion(&root().join("books-9")).unwrap_err();
    assert!(matches!(&missing, PartitionDirError::Io(error) if error.kind() == io::ErrorKind::NotFound), "{missing}");
    assert!(exists(&fs, outside).unwrap() && exists(&fs, &root().join("books-0")).unwrap());
}

#[test]
fn a_damaged_topic_id_is_told_and_a_failing_disk_stops_the_root() {
    let fs = prepared();
    put(&fs, &root().join("books-1/partition.metadata"), &[0; 48]);
    let (data, report) = open(&fs);
    assert_eq!(report.warnings.len(), 1);
    assert!(report.warnings[0].what.starts_with("loaded without a topic id"), "{:?}", report.warnings);
    assert_eq!(data.partitions()[1].topic_id, None);
    drop(data);
    fs.inject_on(Fault::Eio, Call::Read, "books-0", 1);
    assert!(matches!(DataDir::open(Arc::new(fs.clone()), root(), options()), Err(DataDirError::Io(_))));
}

#[test]
fn a_root_that_is_a_file_is_said_to_be_one() {
    let fs = SimFs::new(1);
    put(&fs, Path::new("/srv"), b"");
    let error = DataDir::open(Arc::new(fs.clone()), Path::new("/srv"), options()).unwrap_err();
    assert!(matches!(error, DataDirError::NotADirectory(_)), "{error}");
    assert!(DataDir::open(Arc::new(fs), root(), options()).is_err(), "nor can one lie below it");
}

#[test]
fn a_full_disk_does_not_stop_the_start() {
    let fs = prepared();
    fs.set_capacity(0);
    let (data, report) = open(&fs);
    assert!(report.clean);
    assert!(data.write_high_watermarks(&offsets(&[("books", 0, 99)])).is_err());
    assert_eq!(text(&fs, HIGH_WATERMARKS_FILE).unwrap(), "0\n2\nbooks 0 90\nbooks 1 190\n");
    fs.set_capacity(1 << 20);
    data.write_high_watermarks(&offsets(&[("books", 0, 99)])).unwrap();
}

#[test]
fn the_broker_epoch_is_found_in_the_marker() {
    for (marker, expected) in [
        ("{\"version\":0,\"brokerEpoch\":10}", Some(10)),
        ("{ \"brokerEpoch\" : -1 , \"version\" : 0 }", Some(-1)),
        ("{\"version\":0}", None),
        ("{\"brokerEpoch\":}", None),
        ("{\"brokerEpoch\":99999999999999999999}", None),
        ("", None),
    ] {
        assert_eq!(broker_epoch_in(marker), expected, "{marker}");
    }
}
