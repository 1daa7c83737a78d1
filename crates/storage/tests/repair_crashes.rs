//! A power cut at every call of a repair: whatever the disk keeps, nothing that was good is lost, what was cut out is
//! still there, as are the side files that were made anew, the log opens and serves what it served before the repair, and trying it again ends as
//! one that was not interrupted. `REPAIR_CRASH_IMAGES` asks for more images of each crash.

mod support;

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::repair::{RepairAction, RepairError, RepairLock, RepairPlan};
use highwater_storage::*;
use support::*;

/// Where in a batch a byte lies that the checksum covers.
const COVERED: usize = 70;

/// A damaged log.
struct Case {
    fs: SimFs,
    /// All records that are not in a batch that is damaged.
    good: Vec<(i64, Vec<u8>)>,
    /// The bytes that a repair has to cut out.
    cut: Vec<Vec<u8>>,
    /// What is in the side files that a repair has to make anew.
    side_files: Vec<Vec<u8>>,
    /// Whether there is a state file of ours.
    keeps_state: bool,
}

/// Closed well, then damaged: two batches, one in the last segment; a base offset and a leader epoch; side files. Where it
/// `is_compacted`, the first of the batches is in a segment that waits for the place of one that is whole, as is its index.
fn damaged(keeps_state: bool, is_compacted: bool) -> Case {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    for number in 0..40 {
        let epoch = LeaderEpoch(i32::from(number >= 15));
        log.append(NOW, epoch, &numbered(number, 90)).unwrap();
    }
    let mut good = contents(&log.reader());
    log.close().unwrap();
    let segments: Vec<String> = names(&fs).into_iter().filter(|name| name.ends_with(".log")).collect();
    let [_, second, third, .., last] = segments.as_slice() else { panic!("{segments:?}") };
    let mut cut = Vec::new();
    let replaced = file_bytes(&fs, second);
    for (segment, number) in [(second, 2), (last, 1)] {
        let (base, bytes) = change(&fs, segment, number, |batch| batch[COVERED] ^= 8);
        good.retain(|(offset, _)| *offset != base);
        cut.push(bytes);
    }
    change(&fs, third, 1, |batch| batch[7] ^= 0x20);
    change(&fs, third, 2, |batch| batch[15] ^= 4);
    fs.remove_file(&path(&second.replace(".log", ".index"))).unwrap();
    fs.corrupt(&path(&third.replace(".log", ".timeindex")), |bytes| bytes.fill(0xFF)).unwrap();
    fs.corrupt(&path("leader-epoch-checkpoint"), |bytes| bytes.truncate(3)).unwrap();
    let side_files = [&third.replace(".log", ".timeindex"), "leader-epoch-checkpoint", &last.replace(".log", ".index")];
    let side_files = side_files.into_iter().map(|name| file_bytes(&fs, name)).collect();
    if is_compacted {
        for (name, content) in
            [(second.clone(), file_bytes(&fs, second)), (second.replace(".log", ".index"), vec![1; 9])]
        {
            write_file(&fs, &format!("{name}.swap"), &content);
        }
        fs.corrupt(&path(second), |bytes| bytes.clone_from(&replaced)).unwrap();
        cut.push(replaced);
    }
    if !keeps_state {
        fs.remove_file(&path("highwater-state")).unwrap();
    }
    fs.sync_everything();
    Case { fs, good, cut, side_files, keeps_state }
}

/// Changes the batch with this number in a segment, and returns its base offset and what it became.
fn change(fs: &SimFs, segment: &str, number: usize, change: impl FnOnce(&mut [u8])) -> (i64, Vec<u8>) {
    let before = file_bytes(fs, segment);
    let (mut at, mut found) = (0, Vec::new());
    for batch in batches(&before) {
        let batch = batch.unwrap();
        found.push((at, batch.total_bytes(), batch.base_offset().0));
        at += batch.total_bytes();
    }
    let (at, len, base) = found[number];
    fs.corrupt(&path(segment), |bytes| change(&mut bytes[at..at + len])).unwrap();
    (base, file_bytes(fs, segment)[at..at + len].to_vec())
}

fn repair(fs: &SimFs) -> Result<Vec<RepairAction>, RepairError> {
    let _lock = RepairLock::take(fs, Path::new(DIR))?;
    let plan = RepairPlan::of(fs, Path::new(DIR), &mut |_| {})?;
    assert_eq!(plan.left, []);
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    plan.apply(&shared, &mut |_| {})?;
    Ok(plan.actions)
}

fn assert_is_good(case: &Case, records: &[(i64, Vec<u8>)], what: &str) {
    let offsets = |records: &[(i64, Vec<u8>)]| records.iter().map(|(offset, _)| *offset).collect::<Vec<_>>();
    assert_eq!(offsets(records), offsets(&case.good), "{what}");
    assert!(records == case.good, "{what}: other values");
}

fn nothing_is_cut_out_and_lost(fs: &SimFs, case: &Case, what: &str) {
    let files: Vec<_> = names(fs).iter().map(|name| file_bytes(fs, name)).collect();
    for cut in &case.cut {
        let is_there = files.iter().any(|file| file.windows(cut.len()).any(|window| window == &cut[..]));
        assert!(is_there, "{what}: the bytes of a damaged batch are gone: {:?}", names(fs));
    }
    for side_file in &case.side_files {
        assert!(files.contains(side_file), "{what}: what was in a side file is gone: {:?}", names(fs));
    }
}

fn crash_everywhere(case: &Case) {
    let images = std::env::var("REPAIR_CRASH_IMAGES").ok().and_then(|images| images.parse().ok()).unwrap_or(6);
    // A wrong base offset hides its batch until it is repaired.
    let served = readable(&open(&case.fs.process_crash_image(), &small()).0.reader());
    assert!(!case.keeps_state || served.len() + 1 >= case.good.len(), "{} records", served.len());
    for calls in 0.. {
        let fs = case.fs.process_crash_image();
        fs.crash_after(calls);
        let done = repair(&fs);
        let is_whole = !fs.crashed();
        assert_eq!(done.is_ok(), is_whole, "call {calls}: {done:?}");
        for (image, disk) in fs.images(images, calls).into_iter().enumerate() {
            let what = format!("call {calls}, image {image}");
            nothing_is_cut_out_and_lost(&disk, case, &what);
            // Somebody starts a broker on it as it is. Without a state file nobody knows that it was flushed.
            if case.keeps_state {
                let started = disk.process_crash_image();
                let (log, report) = open(&started, &small());
                let records = readable(&log.reader());
                assert!(served.iter().all(|record| records.contains(record)), "{what}: not all is served: {report:?}");
                assert!(records.iter().all(|record| case.good.contains(record)), "{what}: {report:?}");
                assert_eq!(log.end(), Offset(40), "{what}");
            }
            // Or has it repaired again.
            let actions = repair(&disk).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(!is_whole || actions.is_empty(), "{what}: {actions:?}");
            nothing_is_cut_out_and_lost(&disk, case, &what);
            let lock = RepairLock::take(&disk, Path::new(DIR)).unwrap();
            let mut events = Vec::new();
            let verified = lock.verify(&disk, &mut |event| events.push(event)).unwrap();
            assert!(verified.is_good(), "{what}: {events:?}");
            drop(lock);
            let (log, report) = open(&disk, &small());
            assert_is_good(case, &contents(&log.reader()), &format!("{what}, repaired: {report:?}"));
            assert_eq!(log.end(), Offset(40), "{what}");
            assert_eq!(log.epochs().len(), 2, "{what}");
        }
        if is_whole {
            assert!(calls > 20, "{calls} calls are no such repair");
            return;
        }
    }
}

#[test]
fn a_crash_at_any_call_of_a_repair_loses_nothing_and_it_can_be_repeated() {
    crash_everywhere(&damaged(true, false));
}

#[test]
fn a_crash_at_any_call_of_a_repair_without_a_state_file_loses_nothing_and_it_can_be_repeated() {
    crash_everywhere(&damaged(false, false));
}

/// What the compaction has made is damaged, and what it replaces, and an opening would remove, is not: it is kept.
#[test]
fn a_crash_at_any_call_of_a_repair_of_an_interrupted_compaction_loses_nothing_and_it_can_be_repeated() {
    crash_everywhere(&damaged(true, true));
}
