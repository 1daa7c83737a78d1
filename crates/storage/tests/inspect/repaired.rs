//! What a repair makes of it.

use highwater_storage::data_dir::{DataDir, DataDirOptions};
use highwater_storage::inspect;
use highwater_storage::repair::{RepairAction, RepairLock, RepairPlan, RootRepair, RootRepairPlan};
use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, OpenError, ReadLimit, Record, TimestampMs, batches,
};

use crate::*;

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

/// A line that is left of a damaged checkpoint is no proof that something was synced: above it a torn write would count as rot.
#[test]
fn no_line_of_a_damaged_checkpoint_says_what_was_synced() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("unclean-torn/before"), &root);
    let checkpoint = root.join("recovery-point-offset-checkpoint");
    let lines = std::fs::read_to_string(&checkpoint).unwrap();
    assert!(lines.contains("unclean 0 157\n"), "{lines}");
    std::fs::write(&checkpoint, "0\n2\nunclean 0 257\nuncl").unwrap();
    let _lock = RepairLock::take(&OsFs, &root).unwrap();
    RootRepairPlan::of(&OsFs, &root).unwrap().apply(&OsFs).unwrap();
    let now = std::fs::read_to_string(&checkpoint).unwrap();
    assert!(!now.contains("unclean 0 "), "{now}");
}

/// However many logs of a root end earlier than its checkpoints say, what was in these is kept once.
#[test]
fn a_repair_of_a_root_keeps_what_was_in_its_checkpoints_once() {
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let names = ["recovery-point-offset-checkpoint", "replication-offset-checkpoint"];
    let past = "0\n3\nother 3 9000\nplain 0 9000\nplain 1 9000\n";
    for name in names {
        std::fs::write(root.join(name), past).unwrap();
    }
    let fs = OsFs::shared();
    let mut repair = RootRepair::begin(&*fs, RepairLock::take(&*fs, &root).unwrap()).unwrap();
    for partition in ["plain-0", "plain-1"] {
        assert_eq!(repair.partition(&fs, &root.join(partition), &mut |_| {}).unwrap(), [], "{partition}");
        assert!(repair.verify(&*fs, &root.join(partition), &mut |_| {}).unwrap().is_good(), "{partition}");
    }
    repair.finish(&*fs).unwrap();
    for name in names {
        let now = std::fs::read_to_string(root.join(name)).unwrap();
        assert_eq!(now, "0\n3\nother 3 9000\nplain 0 441\nplain 1 0\n", "{name}");
        assert_eq!(std::fs::read_to_string(root.join(format!("{name}.damaged-0"))).unwrap(), past);
        assert!(!root.join(format!("{name}.damaged-1")).exists());
    }
    assert_eq!(faults(&root), []);
}
