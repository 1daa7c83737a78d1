//! What is found.

use highwater_storage::inspect;
use highwater_storage::{BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, Record, TimestampMs, batches};

use crate::*;

#[test]
fn nothing_is_wrong_with_what_kafka_closed_or_recovered() {
    for folder in [
        "codecs/log",
        "compacted/log",
        "deleted-prefix/log",
        "deleted-prefix-pending/log",
        "idempotent/log",
        "idempotent-reopened/log",
        "leader-epochs/log",
        "log-append-time/log",
        "old-formats/log",
        "plain-multi/log",
        "three-replicas/broker-1",
        "three-replicas/broker-2",
        "three-replicas/broker-3",
        "three-replicas/killed-broker-2",
        "transactional/log",
        "transactional-v1/log",
        "unclean/before",
        "unclean/after",
        "unclean-torn/after",
        "unclean-flip-active/after",
        "unclean-flip-unflushed/after",
    ] {
        assert_eq!(faults(&data(folder)), [], "{folder}");
    }
}

#[test]
fn each_flipped_bit_is_found_in_its_batch() {
    let log = |base: u64| format!("unclean-0/{base:020}.log");
    for (folder, base, position, offset) in [
        ("unclean-flip-active/before", 249, 1901, 260),
        ("unclean-flip-sealed/before", 67, 2250, 80),
        ("unclean-flip-sealed/after", 67, 2250, 80),
        ("unclean-flip-unflushed/before", 157, 2150, 170),
        ("clean-flip-active/before", 249, 1901, 260),
        ("clean-flip-active/after", 249, 1901, 260),
    ] {
        let expected = [(FaultKind::Checksum, log(base), Some(position), Some((offset, offset + 1)))];
        assert_eq!(faults(&data(folder)), expected, "{folder}");
    }
    let torn = [(FaultKind::TornTail, log(249), Some(3474), None)];
    assert_eq!(faults(&data("unclean-torn/before")), torn);
    let epoch = (FaultKind::LeaderEpoch, log(249), Some(1901), Some((260, 261)));
    assert_eq!(faults(&data("unclean-flip-epoch/before")), std::slice::from_ref(&epoch));
    // Kafka has forgotten the history for it.
    let forgotten = (FaultKind::Epochs, "unclean-0/leader-epoch-checkpoint".to_owned(), None, Some((0, 270)));
    assert_eq!(faults(&data("unclean-flip-epoch/after")), [epoch, forgotten]);
}

/// What is said to become of damage is what becomes of it: by the flush mark of ours, by Kafka's recovery point, and after a
/// clean stop.
#[test]
fn what_an_opening_makes_of_damage_is_foretold() {
    let temporary = tempfile::tempdir().unwrap();
    let original = temporary.path().join("original-0");
    let options = LogOptions { segment_bytes: 1500, ..LogOptions::default() };
    let (mut log, _) = Log::open(&original, options.clone()).unwrap();
    for at in 0..20 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(1), &[7; 200]));
        log.append(TimestampMs(1), LeaderEpoch(0), &builder.build()).unwrap();
        if at == 12 {
            log.flush().unwrap();
        }
    }
    // As a process that dies leaves it, and as one that ends.
    let (unclean, clean) = (temporary.path().join("unclean-0"), original.clone());
    copied(&original, &unclean);
    log.close().unwrap();
    let mut told = std::collections::BTreeSet::new();
    for (dir, is_clean) in [(&unclean, false), (&clean, true)] {
        for offset in 0..20 {
            let copy = temporary.path().join("copy-0");
            copied(dir, &copy);
            flip(&copy, offset);
            let mut faults = Vec::new();
            verify_partition(&OsFs, &copy, &mut |event| match event {
                VerifyEvent::Found(fault) if fault.severity() > Severity::Note => faults.push(fault),
                _ => {}
            })
            .unwrap();
            let fault = faults.iter().find(|fault| fault.kind == FaultKind::Checksum).unwrap();
            let (log, report) = Log::open(&copy, options.clone()).unwrap();
            let is_cut = report.cut.is_some();
            assert_eq!(fault.is_synced, Some(!is_cut), "{offset}, clean: {is_clean}: {report:?}");
            assert_eq!(is_cut, !is_clean && offset > 12, "{offset}");
            assert_eq!(fault.highwater().contains("takes it for a torn write"), is_cut, "{}", fault.highwater());
            assert_eq!(fault.kafka_recovers, None, "there is no root");
            told.insert(fault.highwater());
            drop(log);
            std::fs::remove_dir_all(&copy).unwrap();
        }
    }
    assert_eq!(told.len(), 2);
    // Kafka's root, with the recovery point 157 at the beginning of a segment. What Kafka made of it was measured.
    for (folder, is_synced, kafka) in [
        ("unclean-flip-sealed/before", true, "does not notice"),
        ("unclean-flip-unflushed/before", false, "drops everything"),
        ("unclean-flip-active/before", false, "drops everything"),
        ("clean-flip-active/before", true, "does not notice"),
    ] {
        let (_, faults) = verify(&data(folder));
        let fault = faults.iter().find(|fault| fault.kind == FaultKind::Checksum).unwrap();
        assert_eq!(fault.is_synced, Some(is_synced), "{folder}");
        assert!(fault.kafka().starts_with(kafka), "{folder}: {}", fault.kafka());
        assert_eq!(fault.highwater().contains("torn write"), !is_synced, "{folder}");
    }
}

/// Flips a bit in the record of the batch with this offset.
fn flip(dir: &Path, offset: i64) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("log".as_ref()) {
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let mut at = 0;
        while let Some(batch) = batches(&bytes[at..]).next().map(Result::unwrap) {
            let (base, len) = (batch.base_offset(), batch.total_bytes());
            if base == Offset(offset) {
                bytes[at + len - 20] ^= 1;
                return std::fs::write(&path, bytes).unwrap();
            }
            at += len;
        }
    }
    panic!("no batch at {offset}");
}

#[test]
fn each_damaged_side_file_is_found() {
    use FaultKind as Kind;
    type Expected<'a> = (FaultKind, &'a str, Option<u64>, Option<(i64, i64)>);
    let expected = |cases: &[Expected<'_>]| -> Vec<Found> {
        cases.iter().map(|(kind, file, position, offsets)| (*kind, (*file).to_owned(), *position, *offsets)).collect()
    };
    let before = expected(&[
        (Kind::OffsetIndex, "d-badindex-0/00000000000000000014.index", Some(0), None),
        (Kind::Snapshot, "d-badsnapshot-0/00000000000000000030.snapshot", None, None),
        (Kind::OffsetIndex, "d-cutindex-0/00000000000000000014.index", Some(32), None),
        (Kind::TransactionIndex, "d-cuttxnindex-0/00000000000000000000.txnindex", None, Some((10, 14))),
        (Kind::EpochsMissing, "d-noepochs-0/leader-epoch-checkpoint", None, None),
        (Kind::OffsetIndexMissing, "d-noindex-0/00000000000000000015.index", None, None),
        (Kind::SnapshotsMissing, "d-nosnapshots-0", None, None),
        (Kind::TimeIndexMissing, "d-notimeindex-0/00000000000000000013.timeindex", None, None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000015.index", Some(40), None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000029.index", Some(0), None),
    ]);
    assert_eq!(faults(&data("clean-damaged-files/before")), before);
    // What Kafka did not notice, or replaced by something worse, is still there when it has stopped.
    let after = expected(&[
        (Kind::OffsetIndex, "d-badindex-0/00000000000000000014.index", Some(0), None),
        (Kind::TransactionIndex, "d-cuttxnindex-0/00000000000000000000.txnindex", None, Some((10, 14))),
        (Kind::Epochs, "d-noepochs-0/leader-epoch-checkpoint", None, Some((0, 30))),
        (Kind::SnapshotContent, "d-nosnapshots-0/00000000000000000029.snapshot", None, Some((27, 29))),
        (Kind::TimeIndexMissing, "d-notimeindex-0/00000000000000000013.timeindex", None, None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000015.index", Some(40), None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000029.index", Some(0), None),
    ]);
    assert_eq!(faults(&data("clean-damaged-files/after")), after);
}

/// What each of the root's own files says is looked at, in all four checkpoints.
#[test]
fn each_damaged_file_of_a_root_is_found() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let checkpoints = [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ];
    let changed = |name: &str, content: &str| {
        let path = root.join(name);
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, content).unwrap();
        let (_, found) = verify(&root);
        std::fs::write(&path, before).unwrap();
        assert!(found.iter().all(|fault| fault.file == path), "{name}: {found:?}");
        found.into_iter().map(|fault| (fault.kind, fault.what)).collect::<Vec<_>>()
    };
    for name in checkpoints {
        for content in ["0\n", "0\n2\nplain 0 1\n", "0\n1\nplain 0 -1\n", "0\n1\nplain 0 4", "\u{0}\u{0}\u{0}\u{0}"] {
            let found = changed(name, content);
            assert!(matches!(found.as_slice(), [(FaultKind::Checkpoint, _)]), "{name} {content:?}: {found:?}");
        }
        // Kafka makes the cleaner's empty, and the others with two lines at least.
        let empty = changed(name, "");
        assert_eq!(empty.len(), usize::from(name != checkpoints[3]), "{name}: {empty:?}");
        let beyond = changed(name, "0\n1\nplain 0 442\n");
        assert_eq!(beyond, [(FaultKind::CheckpointOffset, "it says 442, the log ends at 441".to_owned())], "{name}");
        let lines: String = (0..5).map(|at| format!("gone-{at} 0 7\n")).collect();
        let absent = changed(name, &format!("0\n6\nplain 0 0\n{lines}"));
        let what = "it has lines of partitions that are not here: gone-0-0, gone-1-0, gone-2-0 and 2 more";
        assert_eq!(absent, [(FaultKind::CheckpointAbsent, what.to_owned())], "{name}");
        assert_eq!(changed(name, "0\n1\nplain 0 441\n"), [], "{name}");
    }
    let marker = ".kafka_cleanshutdown";
    for content in ["{\"version\":0,\"brokerEp", "\u{0}\u{0}", "{\"version\":0}", &"x".repeat(5000)] {
        let found = changed(marker, content);
        assert!(matches!(found.as_slice(), [(FaultKind::CleanMarker, _)]), "{content:?}: {found:?}");
    }
    // Empty: of a Kafka before 3.
    for content in ["", "{\"version\":0,\"brokerEpoch\":-1}", "{ \"brokerEpoch\" : 12 }\n"] {
        assert_eq!(changed(marker, content), [], "{content:?}");
    }
}

/// A part of the state file that cannot be read is a fault where the log was closed: torn parts are written anew before.
#[test]
fn a_damaged_part_of_a_state_file_is_found() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("log-0");
    let (mut log, _) = Log::open(&dir, LogOptions { segment_bytes: 4096, ..LogOptions::default() }).unwrap();
    for _ in 0..3 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(1), b"value"));
        log.append(TimestampMs(1), LeaderEpoch(0), &builder.build()).unwrap();
        log.flush().unwrap();
    }
    let state = dir.join("highwater-state");
    let unclean = std::fs::read(&state).unwrap();
    log.close().unwrap();
    let clean = std::fs::read(&state).unwrap();
    let used = |bytes: &[u8]| (0..4).filter(|slot| bytes[slot * 512] != 0).collect::<Vec<_>>();
    assert!(used(&clean).len() > 2, "facts and marks");
    let found = |bytes: &[u8], slot: usize| {
        let mut bytes = bytes.to_vec();
        bytes[slot * 512 + 40] ^= 1;
        std::fs::write(&state, bytes).unwrap();
        let mut found = Vec::new();
        let mut tell = |event| {
            if let VerifyEvent::Found(fault) = event {
                found.push(fault.kind);
            }
        };
        verify_partition(&OsFs, &dir, &mut tell).unwrap();
        found
    };
    let newest = used(&clean).into_iter().max_by_key(|slot| clean[slot * 512 + 12..slot * 512 + 20].to_vec()).unwrap();
    for slot in used(&clean) {
        // Without the newest the log is one that was not closed well, and what is read above the mark may be anything.
        let expected = if slot == newest { FaultKind::StateTorn } else { FaultKind::State };
        assert_eq!(found(&clean, slot), [expected], "slot {slot}");
    }
    for slot in used(&unclean) {
        assert_eq!(found(&unclean, slot), [FaultKind::StateTorn], "slot {slot}");
    }
}

/// Between two segments a gap is legal. One that index files are left of is none, nor is one at a clean end.
#[test]
fn a_segment_that_is_gone_is_missed_where_its_indexes_are_left() {
    for (gone, offsets) in [(83_i64, (83, 168)), (414, (414, 414))] {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("root");
        copied(&data("plain-multi/log"), &root);
        let file = |kind: &str| format!("plain-0/{gone:020}.{kind}");
        std::fs::remove_file(root.join(file("log"))).unwrap();
        let found = faults(&root);
        let wanted = (FaultKind::SegmentMissing, file("log"), None, Some(offsets));
        assert!(found.contains(&wanted), "{found:?}");
        // What replaced it, or postponed its removal, is another matter.
        std::fs::write(root.join(file("log.deleted")), b"").unwrap();
        assert!(!faults(&root).contains(&wanted));
        std::fs::remove_file(root.join(file("log.deleted"))).unwrap();
        for kind in ["index", "timeindex"] {
            std::fs::remove_file(root.join(file(kind))).unwrap();
        }
        assert!(!faults(&root).contains(&wanted));
    }
}

/// An index as long as Kafka makes them, with something behind its zeros: each of a hundred thousand entries of zeros is
/// not looked through to the end of the file.
#[test]
fn an_index_of_zeros_with_something_behind_them_takes_no_time() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    for kind in ["index", "timeindex"] {
        let mut zeros = vec![0; 10 << 20];
        zeros[(10 << 20) - 1] = 1;
        std::fs::write(root.join(format!("plain-0/{:020}.{kind}", 0)), zeros).unwrap();
    }
    let found = faults(&root);
    let kinds: Vec<_> = found.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [FaultKind::OffsetIndex, FaultKind::TimeIndex], "{found:?}");
}

#[test]
fn a_summary_tells_what_kafka_tells() {
    let summary = inspect::PartitionSummary::of(&OsFs, &data("deleted-prefix/log/delrec-0")).unwrap();
    assert_eq!((summary.log_start, summary.end), (Offset(137), Offset(250)));
    assert_eq!(summary.stop, inspect::Stop::Clean);
    assert_eq!(summary.writer, inspect::Writer::Kafka);
    let summary = inspect::PartitionSummary::of(&OsFs, &data("unclean/before/unclean-0")).unwrap();
    assert_eq!(
        (summary.stop, summary.end, summary.recovery_point),
        (inspect::Stop::Unclean, Offset(270), Some(Offset(157)))
    );
}

#[test]
fn replicas_part_where_the_killed_leader_had_more() {
    let replica = |name: &str| data("three-replicas").join(name).join("rep-0");
    let compare =
        |one: &str, other: &str| inspect::Comparison::of(&OsFs, &replica(one), &replica(other), &mut |_| {}).unwrap();
    for (one, other) in [("broker-1", "broker-2"), ("broker-2", "broker-3")] {
        let same = compare(one, other);
        assert_eq!((same.parting.clone(), same.first.end, same.same_until), (None, same.second.end, same.second.end));
    }
    let parted = compare("killed-broker-2", "broker-1");
    assert_eq!(parted.same_until, Offset(90));
    assert!(parted.parting.is_some(), "{parted:?}");
    assert_eq!(parted.first.end, Offset(123));
    let (ours, theirs) = (parted.first.batch.unwrap(), parted.second.batch.unwrap());
    assert!(ours.leader_epoch() < theirs.leader_epoch(), "{parted:?}");
    let damaged = data("unclean-flip-sealed/before/unclean-0");
    let original = data("unclean/before/unclean-0");
    let found = inspect::Comparison::of(&OsFs, &damaged, &original, &mut |_| {}).unwrap();
    assert_eq!((found.parting, found.same_until), (Some(inspect::Parting::DamageInFirst), Offset(80)));
}

/// What Kafka does not notice, or makes worse, by the codes that the documentation gives for it.
#[test]
fn each_row_of_the_damage_table_has_its_code() {
    for (row, partition, codes) in [
        ("a flip in the first segment", "unclean-flip-sealed/before/unclean-0", &["checksum"][..]),
        ("a flip under a clean marker", "clean-flip-active/before/unclean-0", &["checksum"]),
        ("a flip of a leader epoch", "unclean-flip-epoch/before/unclean-0", &["leader-epoch"]),
        (".txnindex cut", "clean-damaged-files/before/d-cuttxnindex-0", &["txnindex"]),
        ("snapshots gone", "clean-damaged-files/before/d-nosnapshots-0", &["snapshots-missing"]),
        ("epoch checkpoint gone", "clean-damaged-files/before/d-noepochs-0", &["epochs-missing"]),
        (".timeindex gone", "clean-damaged-files/before/d-notimeindex-0", &["timeindex-missing"]),
        ("nonsense in a sealed .index", "clean-damaged-files/before/d-badindex-0", &["index"]),
    ] {
        let mut found = Vec::new();
        verify_partition(&OsFs, &data(partition), &mut |event| match event {
            VerifyEvent::Found(fault) if fault.severity() > Severity::Note => found.push(fault.kind.code()),
            _ => {}
        })
        .unwrap();
        assert_eq!(found, codes, "{row}");
    }
}

/// What a root says of its partitions is read once for all of them, and not again from the files.
#[test]
fn the_partitions_of_a_root_are_verified_by_what_was_read_of_it() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let lines = root.join("replication-offset-checkpoint");
    std::fs::write(&lines, "0\n1\nplain 0 9000\n").unwrap();
    let checkpoints = inspect::RootCheckpoints::read(&OsFs, &root).unwrap();
    std::fs::write(&lines, "0\n0\n").unwrap();
    let codes = |checkpoints: &inspect::RootCheckpoints| {
        let mut found = Vec::new();
        inspect::verify_partition_in_root(&OsFs, &root.join("plain-0"), checkpoints, &mut |event| match event {
            VerifyEvent::Found(fault) if fault.severity() > Severity::Note => found.push(fault.kind.code()),
            _ => {}
        })
        .unwrap();
        found
    };
    assert_eq!(codes(&checkpoints), ["checkpoint-offset"]);
    assert_eq!(codes(&inspect::RootCheckpoints::read(&OsFs, &root).unwrap()), [""; 0]);
    let summary = inspect::PartitionSummary::in_root(&OsFs, &root.join("plain-0"), &checkpoints).unwrap();
    assert_eq!(summary.high_watermark, Some(Offset(9000)));
}
