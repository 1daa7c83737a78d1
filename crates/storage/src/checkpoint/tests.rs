use super::*;
use crate::fs::{Call, Fault, OsFs, SimFs};

const PATH: &str = "/recovery-point-offset-checkpoint";

fn sim(content: &[u8]) -> SimFs {
    let fs = SimFs::new(1);
    fs.open(Path::new(PATH), OpenMode::CreateNew).unwrap().write_all_at(content, 0).unwrap();
    fs.sync_everything();
    fs
}

fn text(fs: &dyn Fs, path: &str) -> Option<String> {
    read_small_file(fs, Path::new(path), 1 << 20).unwrap().map(|bytes| String::from_utf8(bytes).unwrap())
}

fn offsets(entries: &[(&str, i32, i64)]) -> BTreeMap<TopicPartition, Offset> {
    entries.iter().map(|&(topic, partition, offset)| (TopicPartition::new(topic, partition), Offset(offset))).collect()
}

#[test]
fn offsets_are_written_as_kafka_writes_them() {
    let fs = SimFs::new(1);
    let entries = offsets(&[("books", 1, 17), ("books", 0, 441), ("a-b", 0, i64::MAX)]);
    write_offsets(&fs, Path::new(PATH), &entries).unwrap();
    assert_eq!(text(&fs, PATH).unwrap(), "0\n3\na-b 0 9223372036854775807\nbooks 0 441\nbooks 1 17\n");
    assert_eq!(read_offsets(&fs, Path::new(PATH)).unwrap(), entries);
    write_offsets(&fs, Path::new(PATH), &BTreeMap::new()).unwrap();
    assert_eq!(text(&fs, PATH).unwrap(), "0\n0\n");
    assert_eq!(read_offsets(&fs, Path::new(PATH)).unwrap(), BTreeMap::new());
}

#[test]
fn epochs_are_written_as_kafka_writes_them() {
    let fs = SimFs::new(1);
    let entries = [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(2), Offset(45)), (LeaderEpoch(4), Offset(94))];
    write_epochs(&fs, Path::new(PATH), &entries).unwrap();
    assert_eq!(text(&fs, PATH).unwrap(), "0\n3\n0 0\n2 45\n4 94\n");
    assert_eq!(read_epochs(&fs, Path::new(PATH)).unwrap(), entries);
}

#[test]
fn files_of_a_real_broker_are_read_and_written_back_alike() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let path = root.join("unclean/before/recovery-point-offset-checkpoint");
    let points = read_offsets(&OsFs, &path).unwrap();
    let expected =
        [("unclean", 0, 157), ("__transaction_state", 0, 0), ("unclean-txn", 0, 29), ("unclean-prealloc", 0, 21)];
    assert_eq!(points, offsets(&expected));

    let fs = SimFs::new(1);
    let path = "leader-epochs/log/epoch-0/leader-epoch-checkpoint";
    write_epochs(&fs, Path::new(PATH), &read_epochs(&OsFs, &root.join(path)).unwrap()).unwrap();
    assert_eq!(text(&fs, PATH).unwrap(), read(path));
    let empty = root.join("deleted-prefix-pending/log/cleaner-offset-checkpoint");
    assert_eq!(read_offsets(&OsFs, &empty).unwrap(), BTreeMap::new());
}

#[test]
fn no_file_no_content_and_no_entries_are_the_same() {
    assert_eq!(read_offsets(&SimFs::new(1), Path::new(PATH)).unwrap(), BTreeMap::new());
    assert_eq!(read_epochs(&SimFs::new(1), Path::new(PATH)).unwrap(), []);
    for nothing in ["", "0", "0\n", "0\n0", "0\n0\n"] {
        assert_eq!(read_offsets(&sim(nothing.as_bytes()), Path::new(PATH)).unwrap(), BTreeMap::new(), "{nothing:?}");
        assert_eq!(read_epochs(&sim(nothing.as_bytes()), Path::new(PATH)).unwrap(), [], "{nothing:?}");
    }
}

#[test]
fn line_ends_and_spaces_are_read_as_java_reads_them() {
    for good in ["0\r\n2\r\na 0 1\r\nb 3 4\r\n", "0\n2\na \t 0  1\nb 3 4", " 0 \n 2 \n a 0 1 \nb 3 4\n"] {
        let read = read_offsets(&sim(good.as_bytes()), Path::new(PATH)).unwrap();
        assert_eq!(read, offsets(&[("a", 0, 1), ("b", 3, 4)]), "{good:?}");
    }
    let twice = read_offsets(&sim(b"0\n2\na 0 1\na 0 2\n"), Path::new(PATH)).unwrap();
    assert_eq!(twice, offsets(&[("a", 0, 2)]));
}

#[test]
fn damage_is_told_with_its_place_and_never_read() {
    let nuls = "\0".repeat(4096);
    let tail = format!("0\n1\na 0 1\n{nuls}");
    for (bad, complaint) in [
        ("1\n0\n", "line 1: version \"1\", expected 0"),
        (nuls.as_str(), "line 1: version"),
        ("0\nmany\n", "line 2: \"many\" is not a number of entries"),
        ("0\n-1\n", "line 2"),
        ("0\n18446744073709551615\n", "line 2 says 18446744073709551615 entries, 0 follow"),
        ("0\n5\na 0 1\nb 0 1\n", "line 2 says 5 entries, 2 follow"),
        ("0\n1\na 0 1\nb 0 1\n", "line 2 says 1 entries, 2 follow"),
        ("0\n1\na 0\n", "line 3: \"a 0\" is not an entry"),
        ("0\n2\na 0 1\nb x 1\n", "line 4"),
        ("0\n1\na 0 1 2\n", "line 3"),
        ("0\n1\na 0 -1\n", "line 3"),
        ("0\n1\na -1 0\n", "line 3"),
        ("0\n1\na 0 9223372036854775808\n", "line 3"),
        ("0\n1\n\n", "line 3"),
        (tail.as_str(), "line 4"),
    ] {
        let error = read_offsets(&sim(bad.as_bytes()), Path::new(PATH)).unwrap_err();
        let CheckpointError::Malformed { path, what } = &error else { panic!("{error}") };
        assert_eq!(path, Path::new(PATH));
        assert!(what.starts_with(complaint), "{what:?} for {bad:.30?}");
        assert!(error.to_string().len() < 300, "a message, not the file: {error}");
    }
    let not_text = read_offsets(&sim(b"0\n1\n\xff 0 1\n"), Path::new(PATH)).unwrap_err();
    assert!(not_text.to_string().ends_with("is no checkpoint: it is not text"), "{not_text}");
}

#[test]
fn epochs_and_their_starts_must_rise() {
    for bad in ["0\n2\n5 10\n4 20\n", "0\n2\n4 20\n5 10\n", "0\n2\n5 10\n5 20\n", "0\n2\n4 20\n5 20\n"] {
        let error = read_epochs(&sim(bad.as_bytes()), Path::new(PATH)).unwrap_err();
        assert!(error.to_string().contains("line 4: epochs and their starts must rise"), "{error}");
    }
    for bad in ["0\n1\n-1 0\n", "0\n1\n5\n", "0\n1\n0 1 2\n", "0\n1\n5 -3\n", "0\n1\n2147483648 0\n"] {
        assert!(read_epochs(&sim(bad.as_bytes()), Path::new(PATH)).is_err(), "{bad:?}");
    }
}

#[test]
fn a_read_error_is_not_an_empty_checkpoint() {
    for call in [Call::Open, Call::Read, Call::Metadata] {
        let fs = sim(b"0\n1\na 0 1\n");
        fs.inject(Fault::Eio, call, 1);
        assert!(matches!(read_offsets(&fs, Path::new(PATH)), Err(CheckpointError::Io(_))), "{call:?}");
    }
    let fs = SimFs::new(1);
    fs.create_dir(Path::new(PATH)).unwrap();
    assert!(matches!(read_offsets(&fs, Path::new(PATH)), Err(CheckpointError::Io(_))));
}

#[test]
fn a_huge_file_is_refused_unread() {
    let fs = sim(b"");
    fs.open(Path::new(PATH), OpenMode::ReadWrite).unwrap().set_len(CHECKPOINT_BYTES_MAX + 1).unwrap();
    fs.inject(Fault::Eio, Call::Read, 1);
    let error = read_offsets(&fs, Path::new(PATH)).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io(error) if error.kind() == io::ErrorKind::FileTooLarge), "{error}");
    assert_eq!(fs.faults_hit(), 0);
}

#[test]
fn replacing_is_all_or_nothing_after_a_crash_at_any_call() {
    for old in [Some("old"), None] {
        let prepare = || {
            let fs = SimFs::new(1);
            if let Some(old) = old {
                replace_file(&fs, Path::new(PATH), old.as_bytes()).unwrap();
            }
            fs
        };
        let counted = prepare();
        let before = counted.calls();
        replace_file(&counted, Path::new(PATH), &[b'n'; 2000]).unwrap();
        let new = "n".repeat(2000);
        let calls = counted.calls() - before;
        assert!(calls >= 5, "create, write, sync, rename, sync of the directory");
        for image in counted.images(100, 1) {
            assert_eq!(text(&image, PATH).as_ref(), Some(&new), "a success is durable");
        }
        let mut outcomes = [0, 0];
        for crash_at in 0..calls {
            let fs = prepare();
            fs.crash_after(crash_at);
            replace_file(&fs, Path::new(PATH), new.as_bytes()).unwrap_err();
            for image in fs.images(100, crash_at) {
                let found = text(&image, PATH);
                assert!(found.as_deref() == old || found.as_ref() == Some(&new), "after {crash_at}: {found:?}");
                outcomes[usize::from(found.as_deref() != old)] += 1;
                // A leftover of the crash is no hindrance.
                replace_file(&image, Path::new(PATH), b"again").unwrap();
                assert_eq!(text(&image, PATH).as_deref(), Some("again"));
            }
        }
        assert!(outcomes.iter().all(|&count| count > 0), "both outcomes are seen: {outcomes:?}");
    }
}

#[test]
fn a_failed_replacement_leaves_the_old_file_and_no_other() {
    for (call, fault) in [
        (Call::Create, Fault::Enospc),
        (Call::Write, Fault::Enospc),
        (Call::SyncData, Fault::SyncFails),
        (Call::Rename, Fault::Eio),
    ] {
        let fs = sim(b"old");
        fs.inject(fault, call, 1);
        let error = replace_file(&fs, Path::new(PATH), b"new").unwrap_err();
        assert!(error.to_string().starts_with("cannot "), "{error}");
        assert_eq!(text(&fs, PATH).as_deref(), Some("old"), "{call:?}");
        assert_eq!(fs.read_dir(Path::new("/")).unwrap().len(), 1, "{call:?}");
    }
    let fs = sim(b"old");
    fs.inject(Fault::SyncFails, Call::SyncDir, 1);
    assert!(replace_file(&fs, Path::new(PATH), b"new").is_err(), "not durable is not done");
}

#[test]
fn short_writes_do_not_shorten_the_file() {
    let fs = SimFs::new(1);
    fs.shorten(1);
    replace_file(&fs, Path::new(PATH), &[b'x'; 777]).unwrap();
    assert_eq!(text(&fs, PATH).unwrap().len(), 777);
}
