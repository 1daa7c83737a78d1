//! The repair of one segment.

use std::collections::BTreeMap;

use highwater_storage::repair::{RepairError, RepairLock, RepairPlan};
use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, ReadLimit, Record, TimestampMs, batches,
};

use crate::*;

/// Flips a bit in the record of the second batch of a segment.
fn flip_in(dir: &Path, base: i64) {
    let path = dir.join(format!("{base:020}.log"));
    let mut bytes = std::fs::read(&path).unwrap();
    let first = batches(&bytes).next().unwrap().unwrap().total_bytes();
    let second = batches(&bytes[first..]).next().unwrap().unwrap().total_bytes();
    bytes[first + second - 20] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// The files that are others in the second list, or not in one of them, by their names.
fn changed(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<String> {
    let names = before.keys().chain(after.keys()).collect::<std::collections::BTreeSet<_>>();
    let differ = names.into_iter().filter(|path| before.get(*path) != after.get(*path));
    differ.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

fn codes(dir: &Path) -> Vec<&'static str> {
    let mut found = Vec::new();
    verify_partition(&OsFs, dir, &mut |event| match event {
        VerifyEvent::Found(fault) if fault.severity() > Severity::Note => found.push(fault.kind.code()),
        _ => {}
    })
    .unwrap();
    found
}

/// Its intact batches and its own indexes; its neighbours, damaged as they are, and all other files stay.
#[test]
fn a_segment_is_repaired_and_nothing_else() {
    let fs = OsFs::shared();
    let temporary = tempfile::tempdir().unwrap();
    let root = temporary.path().join("root");
    copied(&data("plain-multi/log"), &root);
    let dir = root.join("plain-0");
    flip_in(&dir, 83);
    flip_in(&dir, 168);
    std::fs::write(dir.join("00000000000000000000.index"), [7; 16]).unwrap();
    std::fs::remove_file(dir.join("leader-epoch-checkpoint")).unwrap();
    let before = contents(&root);
    let plan = RepairPlan::of_segment(&*fs, &dir, Offset(83), &mut |_| {}).unwrap();
    assert!(!plan.is_empty() && contents(&root) == before, "a plan changes nothing");
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    assert_eq!(lock.repair_segment(&fs, Offset(83), &mut |_| {}).unwrap(), []);
    assert!(lock.verify_segment(&*fs, Offset(83), &mut |_| {}).unwrap().is_good());
    drop(lock);
    let own = |name: &&String| name.starts_with("00000000000000000083.") && !name.ends_with(".snapshot");
    let changed = changed(&before, &contents(&root));
    let others: Vec<_> = changed.iter().filter(|name| !own(name) && *name != ".lock").collect();
    assert_eq!(others, [""; 0], "of {changed:?}");
    assert!(changed.iter().any(|name| name.starts_with("00000000000000000083.log.damaged-")), "{changed:?}");
    assert_eq!(codes(&dir), ["index", "checksum", "epochs-missing"], "what else is wrong stays");
    let lock = RepairLock::take(&*fs, &dir).unwrap();
    assert!(matches!(lock.repair_segment(&fs, Offset(84), &mut |_| {}), Err(RepairError::Inspect(_))));
    // A compaction that was interrupted is of the whole directory.
    std::fs::copy(dir.join("00000000000000000414.log"), dir.join("00000000000000000414.log.swap")).unwrap();
    let refused = lock.repair_segment(&fs, Offset(168), &mut |_| {});
    assert!(matches!(refused, Err(RepairError::Unfinished(_))), "{refused:?}");
}

/// A log of ours of three segments or more, as a kill leaves it or closed well, and the bases of its segments.
fn written(dir: &Path, closes: bool) -> Vec<i64> {
    let copy = dir.with_extension("open");
    let (mut log, _) = Log::open(&copy, LogOptions { segment_bytes: 1500, ..LogOptions::default() }).unwrap();
    for at in 0..20 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(1), &[7; 200]));
        // The last batch is the first of its epoch.
        log.append(TimestampMs(1), LeaderEpoch(i32::from(at == 19)), &builder.build()).unwrap();
        if at == 9 {
            log.flush().unwrap();
        }
    }
    let bases = log.segments().iter().map(|segment| segment.base.0).collect();
    let still_open = if closes { log.close().map(|_| None).unwrap() } else { Some(log) };
    copied(&copy, dir);
    drop(still_open);
    bases
}

/// The gap that the damaged batch leaves is no lost tail at the next opening, wherever it was and however the log was left; and
/// all else is served that was served.
#[test]
fn a_log_with_one_segment_repaired_opens_with_all_others() {
    let fs = OsFs::shared();
    for closes in [true, false] {
        let temporary = tempfile::tempdir().unwrap();
        let original = temporary.path().join("log-0");
        let bases = written(&original, closes);
        assert!(bases.len() >= 3, "{bases:?}");
        for &base in &bases {
            let dir = temporary.path().join(format!("damaged-{base}"));
            copied(&original, &dir);
            // Its last batch, if another segment follows: a gap between the two.
            let path = dir.join(format!("{base:020}.log"));
            let mut bytes = std::fs::read(&path).unwrap();
            let zeros = bytes.iter().rev().take_while(|byte| **byte == 0).count();
            let end = bytes.len() - zeros;
            bytes[end - 20] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let lock = RepairLock::take(&*fs, &dir).unwrap();
            assert_eq!(lock.repair_segment(&fs, Offset(base), &mut |_| {}).unwrap(), []);
            drop(lock);
            let what = format!("closed: {closes}, base {base} of {bases:?}");
            assert_eq!(codes(&dir), [""; 0], "{what}");
            let (log, report) = Log::open(&dir, LogOptions::default()).unwrap();
            assert!(report.rotten.is_empty() && report.missing.is_empty(), "{what}: {report:?}");
            assert!(report.cut.is_none_or(|cut| cut.bytes == 0 || zeros > 0), "{what}");
            let (mut records, mut from) = (0, log.start());
            while from < log.end() {
                let fetched = log.read(from, ReadLimit::bytes(1 << 20).verified()).unwrap();
                records += batches(&fetched.bytes).count();
                from = fetched.next;
            }
            assert_eq!(records, 19, "{what}");
        }
    }
}
