//! The inspection of directories that real Kafka brokers wrote, whole and damaged: each fault is found where it is, and
//! nothing is found where there is none.

use std::path::{Path, PathBuf};

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::fs::OsFs;
use highwater_storage::inspect::{
    Fault, FaultKind, Severity, Target, Verified, VerifyEvent, verify_partition, verify_root,
};
use highwater_storage::repair::{RepairAction, RepairLock, RepairPlan, RootRepairPlan, TruncatePlan};
use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, OpenError, ReadLimit, Record, TimestampMs, batches,
    inspect, repair,
};

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// Verifies a data root with its partitions.
fn verify(root: &Path) -> (Verified, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut read = 0;
    let mut tell = |event| match event {
        VerifyEvent::Found(fault) => faults.push(fault),
        VerifyEvent::Read(bytes) => read += bytes,
        _ => {}
    };
    let Target::Root { partitions, .. } = Target::of(&OsFs, root).unwrap() else { panic!("{root:?} is no root") };
    let mut verified = verify_root(&OsFs, root, &mut tell).unwrap();
    for partition in partitions {
        verified.add(verify_partition(&OsFs, &partition, &mut tell).unwrap());
    }
    assert_eq!(read, verified.bytes, "progress adds up");
    (verified, faults)
}

/// What is wrong, but for notes: kind, file below the root, position and offsets.
type Found = (FaultKind, String, Option<u64>, Option<(i64, i64)>);

fn faults(root: &Path) -> Vec<Found> {
    let (verified, faults) = verify(root);
    let found: Vec<_> = faults
        .into_iter()
        .filter(|fault| fault.severity() > Severity::Note)
        .map(|fault| {
            let file = fault.file.strip_prefix(root).unwrap().display().to_string();
            (fault.kind, file, fault.position, fault.offsets.map(|offsets| (offsets.start.0, offsets.end.0)))
        })
        .collect();
    assert_eq!(verified.faults, found.len() as u64);
    found
}

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

/// A header that tells another largest timestamp than the records is told of, and nothing readable is cut out for it.
#[test]
fn a_batch_with_a_wrong_largest_timestamp_stays() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let log = root.join("plain-0/00000000000000000000.log");
    let mut bytes = std::fs::read(&log).unwrap();
    let first = batches(&bytes).next().unwrap().unwrap().total_bytes();
    // The second batch's, by a millisecond, under a checksum that fits.
    bytes[first + 42] ^= 1;
    let second = batches(&bytes[first..]).next().unwrap().unwrap().total_bytes();
    let checksum = crc32c::crc32c(&bytes[first + 21..first + second]);
    bytes[first + 17..first + 21].copy_from_slice(&checksum.to_be_bytes());
    std::fs::write(&log, &bytes).unwrap();
    let wanted = (FaultKind::MaxTimestamp, "plain-0/00000000000000000000.log".to_owned(), Some(first as u64));
    let found = faults(&root);
    assert!(found.iter().any(|(kind, file, position, _)| (*kind, file.clone(), *position) == wanted), "{found:?}");
    let fs = OsFs::shared();
    let dir = root.join("plain-0");
    let _lock = RepairLock::take(&*fs, &dir).unwrap();
    let plan = RepairPlan::of(&*fs, &dir, &mut |_| {}).unwrap();
    assert!(!plan.actions.iter().any(|action| matches!(action, RepairAction::Cut { .. })), "{plan:?}");
    assert_eq!(plan.left.iter().map(|fault| fault.kind).collect::<Vec<_>>(), [FaultKind::MaxTimestamp]);
    plan.apply(&fs, &mut |_| {}).unwrap();
    assert_eq!(std::fs::read(&log).unwrap(), bytes);
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

fn copied(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copied(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Repairs all partitions of a root and returns what was done.
fn repaired(root: &Path) -> Vec<RepairAction> {
    let fs = OsFs::shared();
    let Target::Root { partitions, .. } = Target::of(&*fs, root).unwrap() else { panic!("{root:?} is no root") };
    let mut actions = Vec::new();
    for dir in partitions {
        let lock = RepairLock::take(&*fs, &dir).unwrap();
        let plan = RepairPlan::of(&*fs, &dir, &mut |_| {}).unwrap();
        assert_eq!(plan.left, [], "{dir:?}");
        plan.apply(&fs, &mut |_| {}).unwrap();
        assert!(lock.verify(&*fs, &mut |_| {}).unwrap().is_good(), "{dir:?}");
        actions.extend(plan.actions);
    }
    actions
}

#[test]
fn what_was_repaired_verifies_and_loses_only_what_was_damaged() {
    for (folder, cut) in [
        ("clean-damaged-files/before", 0),
        ("clean-damaged-files/after", 0),
        ("clean-flip-active/after", 216),
        ("unclean-flip-active/before", 216),
        ("unclean-flip-sealed/after", 166),
        ("unclean-flip-unflushed/before", 246),
        ("unclean-flip-epoch/before", 0),
        ("unclean-flip-epoch/after", 0),
        ("unclean-torn/before", 179),
    ] {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("root");
        copied(&data(folder), &root);
        let (before, _) = verify(&root);
        let actions = repaired(&root);
        let bytes: u64 = actions
            .iter()
            .map(|action| match action {
                RepairAction::Cut { file, position, bytes } => {
                    let name = file.file_name().unwrap().to_str().unwrap();
                    let original = data(folder).join("unclean-0").join(name);
                    let (from, to) = (*position as usize, (*position + *bytes) as usize);
                    let side = file.with_file_name(format!("{name}.damaged-{position}"));
                    assert_eq!(std::fs::read(side).unwrap(), std::fs::read(original).unwrap()[from..to], "{folder}");
                    *bytes
                }
                RepairAction::Rebuild(file) => {
                    let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
                    let kept = std::fs::read(root.join(format!("{name}.damaged-0"))).ok();
                    let original = std::fs::read(data(folder).join(name)).ok();
                    assert_eq!(kept, original, "{folder}/{name}: what was there is kept");
                    0
                }
                _ => 0,
            })
            .sum();
        assert_eq!(bytes, cut, "{folder}");
        assert_eq!(faults(&root), [], "{folder}");
        let (after, _) = verify(&root);
        assert_eq!((after.records, after.bytes), (before.records, before.bytes - cut), "{folder}");
        assert_eq!(repaired(&root), [], "{folder}: nothing is left to do");
    }
}

/// Checkpoints of a root are made anew from what is left of them and from the partitions; what they were is kept.
#[test]
fn the_files_of_a_root_are_repaired() {
    let temporary = tempfile::tempdir().unwrap();
    let (recovery_points, log_starts) = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint");
    let (high_watermarks, marker) = ("replication-offset-checkpoint", ".kafka_cleanshutdown");
    let cleaned = "cleaner-offset-checkpoint";
    // The file, what is in it, and what is to be in it.
    let cases = [
        (recovery_points, "", "0\n2\nplain 0 441\nplain 1 0\n"),
        (recovery_points, "0\n3\nplain 0 30\ngone 1 3\n", "0\n2\nplain 0 441\nplain 1 0\n"),
        (log_starts, "0\n2\nplain 0 30\ngo", "0\n1\nplain 0 30\n"),
        (log_starts, "0\n1\nplain 0 442\nx\n", "0\n0\n"),
        (high_watermarks, "0\n2\nplain 0 440\n\u{0}\u{0}\u{0}\n", "0\n1\nplain 0 440\n"),
        (high_watermarks, "0\n1\nplain 0 44", "0\n0\n"),
        (cleaned, "\u{0}\u{0}\u{0}\u{0}", "0\n0\n"),
        (marker, "{\"version\":0,\"brokerEpoch\":1", "{\"version\":0,\"brokerEpoch\":-1}"),
    ];
    for (at, (name, damaged, repaired)) in cases.into_iter().enumerate() {
        let root = temporary.path().join(format!("root-{at}"));
        copied(&data("plain-multi/log"), &root);
        let file = root.join(name);
        std::fs::write(&file, damaged).unwrap();
        assert!(!verify(&root).0.is_good(), "{name} {damaged:?}");
        let plan = RootRepairPlan::of(&OsFs, &root).unwrap();
        assert_eq!((plan.actions.as_slice(), plan.left.len()), (&[RepairAction::Rebuild(file.clone())][..], 0));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), damaged, "a plan changes nothing");
        let lock = RepairLock::take(&OsFs, &root).unwrap();
        plan.apply(&OsFs).unwrap();
        assert!(lock.verify_root(&OsFs, &mut |_| {}).unwrap().is_good());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), repaired, "{name} {damaged:?}");
        assert_eq!(std::fs::read_to_string(root.join(format!("{name}.damaged-0"))).unwrap(), damaged);
        drop(lock);
        assert_eq!(faults(&root), []);
        assert!(RootRepairPlan::of(&OsFs, &root).unwrap().is_empty());
        let options = DataDirOptions::of_node(1);
        let (_root, report) = DataDir::open(OsFs::shared(), &root, options).unwrap();
        assert_eq!(report.warnings, [], "{name}");
    }
}

/// A line past the end of its log is lowered with the log's repair; where that is the log's start, one of the two is wrong,
/// and nobody can tell which.
#[test]
fn lines_past_the_end_of_a_log_are_lowered() {
    for (name, is_lowered) in [
        ("recovery-point-offset-checkpoint", true),
        ("replication-offset-checkpoint", true),
        ("cleaner-offset-checkpoint", true),
        ("log-start-offset-checkpoint", false),
    ] {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("root");
        copied(&data("plain-multi/log"), &root);
        let past = "0\n2\nother 3 9000\nplain 0 9000\n";
        std::fs::write(root.join(name), past).unwrap();
        let fs = OsFs::shared();
        let dir = root.join("plain-0");
        let lock = RepairLock::take(&*fs, &dir).unwrap();
        let plan = RepairPlan::of(&*fs, &dir, &mut |_| {}).unwrap();
        assert_eq!(plan.left.is_empty(), is_lowered, "{name}: {plan:?}");
        plan.apply(&fs, &mut |_| {}).unwrap();
        assert_eq!(lock.verify(&*fs, &mut |_| {}).unwrap().is_good(), is_lowered, "{name}");
        let now = std::fs::read_to_string(root.join(name)).unwrap();
        let lowered = "0\n2\nother 3 9000\nplain 0 441\n";
        assert_eq!(now, if is_lowered { lowered } else { past }, "{name}");
        let kept = std::fs::read_to_string(root.join(format!("{name}.damaged-0"))).ok();
        assert_eq!(kept.as_deref(), is_lowered.then_some(past), "{name}");
    }
}

/// A bit that flips in the 17 bytes that no checksum covers has one value that fits, but for those few batches that have
/// no neighbour on one side.
#[test]
fn a_bit_that_flips_outside_of_the_checksum_is_found_and_put_right() {
    let original = data("plain-multi/log");
    let log = "plain-0/00000000000000000000.log";
    let bytes = std::fs::read(original.join(log)).unwrap();
    let mut positions = vec![0];
    for batch in batches(&bytes) {
        positions.push(positions[positions.len() - 1] + batch.unwrap().total_bytes());
    }
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&original, &root);
    for (byte, bit) in (0..17).map(|byte| (byte, 1 << (byte % 8))) {
        let position = positions[positions.len() / 2];
        let mut damaged = bytes.clone();
        damaged[position + byte] ^= bit;
        std::fs::write(root.join(log), &damaged).unwrap();
        let found = faults(&root);
        assert_eq!(found.len(), 1, "byte {byte}: {found:?}");
        assert_eq!((found[0].1.as_str(), found[0].2), (log, Some(position as u64)), "byte {byte}");
        repaired(&root);
        assert!(std::fs::read(root.join(log)).unwrap() == bytes, "byte {byte} was not put right");
        assert_eq!(faults(&root), [], "byte {byte}");
    }
}

/// A log of ours that says it was closed well, with damage in the middle of each of its segments.
#[test]
fn a_repaired_log_opens_and_serves_what_is_behind_the_damage() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("log-0");
    let options = LogOptions { segment_bytes: 4096, ..LogOptions::default() };
    let (mut log, _) = Log::open(&dir, options.clone()).unwrap();
    for at in 0..60 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(1_000 + at), format!("value {at} {}", "x".repeat(200)).as_bytes()));
        log.append(TimestampMs(5_000), LeaderEpoch(0), &builder.build()).unwrap();
    }
    let end = log.end();
    let segments = log.segments();
    assert!(segments.len() > 2);
    log.close().unwrap();
    let verify_dir = || {
        let mut faults = Vec::new();
        let verified = verify_partition(&OsFs, &dir, &mut |event| match event {
            VerifyEvent::Found(fault) if fault.severity() > Severity::Note => faults.push(fault),
            _ => {}
        });
        (verified.unwrap().records, faults)
    };
    assert_eq!(verify_dir(), (60, vec![]));
    for segment in &segments {
        let path = dir.join(format!("{:020}.log", segment.base.0));
        let mut bytes = std::fs::read(&path).unwrap();
        let second = batches(&bytes).next().unwrap().unwrap().total_bytes();
        bytes[second + 100] ^= 1; // In the record's value.
        std::fs::write(path, bytes).unwrap();
    }
    let (_, found) = verify_dir();
    assert_eq!(found.len(), segments.len());

    let fs = OsFs::shared();
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    assert!(matches!(Log::open(&dir, options.clone()), Err(OpenError::Locked(_))), "the repair keeps others out");
    RepairPlan::of(&*fs, &dir, &mut |_| {}).unwrap().apply(&fs, &mut |_| {}).unwrap();
    drop(lock);
    let left = 60 - segments.len() as u64;
    assert_eq!(verify_dir(), (left, vec![]));

    let (log, report) = Log::open(&dir, options).unwrap();
    assert!(report.clean && report.cut.is_none(), "{report:?}");
    assert_eq!(log.end(), end);
    let mut records = 0;
    let mut from = Offset::ZERO;
    while from < end {
        let fetched = log.read(from, ReadLimit::bytes(1 << 20)).unwrap();
        for batch in batches(&fetched.bytes).map(Result::unwrap) {
            records += 1;
            from = batch.next_offset();
        }
    }
    assert_eq!(records, left);
    let mut found = None;
    let verified = verify_partition(&OsFs, &dir, &mut |event| found = Some(event)).unwrap();
    assert!(verified.is_good(), "{found:?}");
    assert!(inspect::in_use_by(&OsFs, &dir).unwrap().is_some());
    assert!(RepairLock::take(&*fs, &dir).is_err(), "nobody repairs what is open");
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

#[test]
fn a_stopped_log_is_cut_and_copied() {
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
    copied(&data("transactional/log"), &root);
    let dir = root.join("txn-0");
    let fs = OsFs::shared();
    let copied = repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!(copied.files, std::fs::read_dir(&dir).unwrap().count() as u64);
    assert!(matches!(repair::copy_dir(&fs, &dir, &copy, &mut |_| {}), Err(repair::CopyDirError::Exists(_))));

    let plan = TruncatePlan::of(&*fs, &dir, Offset(200)).unwrap();
    assert_eq!((plan.from, plan.to), (Offset(327), Offset(200)));
    // A batch goes as a whole.
    let inside = TruncatePlan::of(&*fs, &data("plain-multi/log/plain-0"), Offset(30)).unwrap();
    assert_eq!((inside.from, inside.to), (Offset(441), Offset(26)));
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    let (truncated, _) = repair::truncate(&fs, &dir, Offset(200)).unwrap();
    assert_eq!((truncated.from, truncated.end, truncated.bytes), (Offset(327), Offset(200), plan.bytes));
    drop(lock);
    assert_eq!(faults(&root), []);
    let summary = inspect::PartitionSummary::of(&*fs, &dir).unwrap();
    assert_eq!((summary.end, summary.high_watermark), (Offset(200), Some(Offset(200))));
    let between = inspect::Comparison::of(&*fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!((between.parting, between.same_until), (None, Offset(200)));
}

/// A copy stands on its own as a log that was closed well, with what only the original's root knew, whatever the original
/// is like; the original stays as it is.
#[test]
fn a_copy_of_a_log_opens_as_one_that_was_closed_well() {
    let fs = OsFs::shared();
    for (original, start, end, cut) in [
        // Where it begins only the root's checkpoint says.
        ("deleted-prefix/log/delrec-0", 137, 250, None),
        ("unclean/before/unclean-0", 0, 270, Some(0)),
        ("unclean-torn/before/unclean-0", 0, 269, Some(179)),
        ("transactional/log/txn-0", 0, 327, None),
    ] {
        let temporary = tempfile::tempdir().unwrap();
        let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
        let (folder, partition) = original.rsplit_once('/').unwrap();
        copied(&data(folder), &root);
        let dir = root.join(partition);
        let before = contents(&root);
        let made = repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
        assert!(contents(&root) == before, "{original}: the original was written to");
        let recovered: Vec<_> =
            made.recovered.iter().map(|(_, report)| report.cut.as_ref().map_or(0, |cut| cut.bytes)).collect();
        assert_eq!(recovered, cut.into_iter().collect::<Vec<u64>>(), "{original}");
        assert!(verify_partition(&OsFs, &copy, &mut |_| {}).unwrap().is_good(), "{original}");
        let summary = inspect::PartitionSummary::of(&OsFs, &copy).unwrap();
        assert_eq!(summary.stop, inspect::Stop::Clean, "{original}");
        let (log, report) = Log::open(&copy, LogOptions::default()).unwrap();
        assert!(report.clean && report.cut.is_none(), "{original}: {report:?}");
        assert_eq!((log.start(), log.end()), (Offset(start), Offset(end)), "{original}");
        let between = inspect::Comparison::of(&OsFs, &copy, &dir, &mut |_| {}).unwrap();
        assert_eq!((&between.parting, between.same_until), (&None, Offset(end)), "{original}: {between:?}");
    }
}

/// A start behind the end leaves a log nothing once a broker believes it: a copy and a cut do not.
#[test]
fn a_log_start_behind_the_end_costs_nothing_in_copies_and_cuts() {
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy-0"));
    copied(&data("deleted-prefix/log"), &root);
    std::fs::write(root.join("log-start-offset-checkpoint"), "0\n1\ndelrec 0 500\n").unwrap();
    let dir = root.join("delrec-0");
    repair::copy_dir(&fs, &dir, &copy, &mut |_| {}).unwrap();
    assert_eq!(Log::open(&copy, LogOptions::default()).unwrap().0.end(), Offset(250));
    let segment = |dir: &Path| std::fs::read(dir.join("00000000000000000147.log")).unwrap();
    assert!(segment(&copy) == segment(&dir));
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    let (truncated, _) = repair::truncate(&fs, &dir, Offset(179)).unwrap();
    drop(lock);
    assert_eq!((truncated.from, truncated.end), (Offset(250), Offset(179)));
    assert!(!segment(&dir).is_empty() && segment(&copy).starts_with(&segment(&dir)));
}

/// A repair of a state file that cannot be read lets no deleted records come back.
#[test]
fn a_repaired_state_file_keeps_the_log_start_that_the_root_knows() {
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("deleted-prefix/log"), &root);
    let dir = root.join("delrec-0");
    Log::open(&dir, LogOptions::default()).unwrap().0.close().unwrap();
    std::fs::write(dir.join("highwater-state"), [0x5a; 2048]).unwrap();
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    RepairPlan::of(&*fs, &dir, &mut |_| {}).unwrap().apply(&fs, &mut |_| {}).unwrap();
    drop(lock);
    assert_eq!(Log::open(&dir, LogOptions::default()).unwrap().0.start(), Offset(137));
}

/// Of a data root all is copied that a broker needs, of either kind, and it was stopped well.
#[test]
fn a_copy_of_a_root_is_one_that_was_stopped_well() {
    let fs = OsFs::shared();
    for folder in ["deleted-prefix-pending/log", "unclean-torn/before", "plain-multi/log", "clean-flip-active/after"] {
        let temporary = tempfile::tempdir().unwrap();
        let (root, copy) = (temporary.path().join("root"), temporary.path().join("copy"));
        copied(&data(folder), &root);
        let doomed = format!("gone-0.{:032x}-delete", 7);
        std::fs::create_dir(root.join(&doomed)).unwrap();
        std::fs::write(root.join("not a log's"), b"x").unwrap();
        let (before, (verified, _)) = (contents(&root), verify(&root));
        repair::copy_root(&fs, &root, &copy, &mut |_| {}).unwrap();
        assert!(contents(&root) == before, "{folder}: the original was written to");
        assert!(!copy.join(doomed).exists() && !copy.join("not a log's").exists(), "{folder}");
        let name = |path: &Path| path.file_name().unwrap().to_owned();
        let partitions = |root: &Path| match Target::of(&OsFs, root).unwrap() {
            Target::Root { partitions, .. } => partitions,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            partitions(&copy).iter().map(|dir| name(dir)).collect::<Vec<_>>(),
            partitions(&root).iter().map(|dir| name(dir)).collect::<Vec<_>>(),
        );
        let (after, found) = verify(&copy);
        assert_eq!(after.records, verified.records, "{folder}");
        // Rot is copied as it is: what is below the end of a stop that was clean is no torn write.
        let rotten = found.iter().filter(|fault| fault.severity() > Severity::Note).count();
        assert_eq!(rotten, usize::from(folder == "clean-flip-active/after"), "{folder}: {found:?}");
        let (data_dir, report) = DataDir::open(fs.clone(), &copy, DataDirOptions::of_node(1)).unwrap();
        assert!(report.clean && report.warnings.is_empty(), "{folder}: {report:?}");
        for found in data_dir.partitions() {
            let hints = data_dir.hints(&found.topic_partition);
            let (log, report) = Log::open_with(fs.clone(), &found.dir, LogOptions::default(), hints).unwrap();
            assert!(report.clean && report.cut.is_none(), "{folder}: {report:?}");
            assert_eq!(hints.recovery_point, Some(log.end()), "{folder}");
            let original = inspect::PartitionSummary::of(&OsFs, &root.join(name(&found.dir))).unwrap();
            assert_eq!(log.start(), original.log_start, "{folder}");
        }
    }
}

/// All files below a directory, with what is in them.
fn contents(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}

/// Bytes flipped, overwritten, cut off and appended anywhere, files renamed and copied as compactions name theirs: whatever
/// comes of it, it is looked at without a panic, and what one repair leaves verifies and can be read. `INSPECT_SEEDS` asks
/// for more of it.
#[test]
fn whatever_was_damaged_verifies_when_it_was_repaired_once() {
    let seeds = std::env::var("INSPECT_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(20);
    let originals = ["transactional/log", "plain-multi/log", "compacted/log", "old-formats/log", "leader-epochs/log"];
    for seed in 0..seeds {
        let mut state = (seed + 1_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % below.max(1)
        };
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("root");
        copied(&data(originals[random(originals.len())]), &root);
        let mut files: Vec<PathBuf> = std::fs::read_dir(&root)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_dir())
            .flat_map(|dir| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>())
            .filter(|path| path.file_name() != Some("partition.metadata".as_ref()))
            .collect();
        files.sort();
        for _ in 0..=random(4) {
            let path = &files[random(files.len())];
            let mut bytes = std::fs::read(path).unwrap_or_default();
            let at = random(bytes.len());
            let swapped = path.with_file_name(format!("{}.swap", path.file_name().unwrap().display()));
            match random(7) {
                5 => drop(std::fs::rename(path, swapped)),
                6 => drop(std::fs::copy(path, swapped)),
                0 if !bytes.is_empty() => bytes[at] ^= 1 << random(8),
                1 => bytes.truncate(at),
                2 => bytes.extend((0..random(100)).map(|_| random(256) as u8)),
                3 => bytes[at..].iter_mut().take(random(80)).for_each(|byte| *byte = random(256) as u8),
                _ => drop(std::fs::remove_file(path)),
            }
            if path.exists() {
                std::fs::write(path, bytes).unwrap();
            }
        }
        let fs = OsFs::shared();
        let Target::Root { partitions, .. } = Target::of(&*fs, &root).unwrap() else { panic!("{root:?}") };
        for dir in partitions {
            let lock = RepairLock::take(&*fs, &dir).unwrap();
            let left = lock.repair(&fs, &mut |_| {}).unwrap();
            let mut found = Vec::new();
            lock.verify(&*fs, &mut |event| match event {
                VerifyEvent::Found(fault) if fault.severity() > Severity::Note => found.push(fault),
                _ => {}
            })
            .unwrap();
            assert_eq!(found, left, "seed {seed}, {dir:?}");
            let stays = |kind| matches!(kind, FaultKind::CheckpointOffset | FaultKind::SegmentMissing);
            assert!(left.iter().all(|fault| stays(fault.kind)), "seed {seed}: {left:?}");
            drop(lock);
            let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
            assert!(report.rotten.is_empty(), "seed {seed}: {report:?}");
            let mut from = log.start();
            while from < log.end() {
                let fetched = log.read(from, ReadLimit::bytes(1 << 20).verified()).unwrap();
                if fetched.next == from {
                    break;
                }
                from = fetched.next;
            }
        }
    }
}
