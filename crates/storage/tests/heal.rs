//! Damage that is healed with the bytes of another replica: what is believed, what is refused, and what a crash leaves.

mod support;

use highwater_storage::fs::{Call, Fault, SimFs};
use highwater_storage::*;
use support::*;

/// Three epochs over some segments, all synced. Returns the data files as another replica has them.
fn synced(fs: &SimFs) -> (Log, Vec<(String, Vec<u8>)>) {
    let (mut log, _) = open(fs, &small());
    for number in 0..30 {
        let epoch = LeaderEpoch(i32::try_from(number / 10).unwrap());
        log.append(NOW, epoch, &numbered(number, 90)).unwrap();
    }
    log.flush().unwrap();
    let segments = names(fs).into_iter().filter(|name| name.ends_with(".log"));
    let files = segments.map(|name| (name.clone(), file_bytes(fs, &name))).collect();
    (log, files)
}

/// What another replica has in the place of damage.
fn right(files: &[(String, Vec<u8>)], damaged: &Damaged) -> Vec<u8> {
    let name = damaged.segment.file_name().unwrap().to_str().unwrap();
    let (_, bytes) = files.iter().find(|(known, _)| known == name).unwrap();
    let from = usize::try_from(damaged.position).unwrap();
    bytes[from..from + usize::try_from(damaged.bytes).unwrap()].to_vec()
}

/// Where the batches of a file begin.
fn starts(bytes: &[u8]) -> Vec<usize> {
    let mut at = 0;
    let start = |batch: Result<BatchView<'_>, _>| {
        let start = at;
        at += batch.unwrap().header().total_bytes();
        start
    };
    batches(bytes).map(start).collect()
}

#[test]
fn damage_is_healed_in_any_segment_and_everything_is_as_before() {
    let fs = disk(1);
    let (log, files) = synced(&fs);
    let all = contents(&log.reader());
    drop(log);
    for (name, bytes) in &files {
        let starts = starts(bytes);
        // The first, a middle one and the last; two neighbours; a whole header, which hides where the batch ends.
        let middle = starts[starts.len() / 2];
        let flips = [vec![starts[0] + 70], vec![middle + 70], vec![middle + 70, starts[starts.len() / 2 - 1] + 70]];
        for flips in
            flips.into_iter().chain([vec![*starts.last().unwrap() + 70], (middle..middle + HEADER_BYTES).collect()])
        {
            fs.corrupt(&path(name), |bytes| flips.iter().for_each(|&at| bytes[at] ^= 0x40)).unwrap();
            let (mut log, _) = open(&fs, &small());
            let served = readable(&log.reader());
            assert!(served.len() < all.len(), "{name}, {flips:?}");
            let damage = log.damage();
            assert!(!damage.is_empty(), "{name}, {flips:?}");
            for damaged in &damage {
                log.heal(damaged, &right(&files, damaged)).unwrap();
                assert!(matches!(log.heal(damaged, &right(&files, damaged)), Err(HealError::Unknown)));
            }
            assert_eq!(log.damage(), []);
            assert_eq!(readable(&log.reader()), all, "{name}, {flips:?}");
            assert_eq!(contents(&log.reader()), all);
            assert!(file_bytes(&fs, name) == *bytes, "{name}, {flips:?}");
            for (offset, _) in &all {
                let found = log.reader().offset_for_timestamp(TimestampMs(T0 + offset), log.end()).unwrap().unwrap();
                assert_eq!(found.offset, Offset(*offset), "{name}, {flips:?}");
            }
        }
    }
}

#[test]
fn what_does_not_belong_there_is_refused_and_changes_nothing() {
    let fs = disk(2);
    let (log, files) = synced(&fs);
    drop(log);
    let (name, bytes) = &files[1];
    let starts = starts(bytes);
    fs.corrupt(&path(name), |bytes| bytes[starts[1] + 70] ^= 1).unwrap();
    let spoilt = file_bytes(&fs, name);
    let (mut log, _) = open(&fs, &small());
    readable(&log.reader());
    let [damaged] = &log.damage()[..] else { panic!("{:?}", log.damage()) };
    let good = right(&files, damaged);
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let neighbour = bytes[starts[2]..starts[3]].to_vec();
    assert_eq!(neighbour.len(), good.len());
    let cases = [
        ("too short", good[..good.len() - 1].to_vec(), "Length"),
        ("two of them", [&good[..], &good].concat(), "Length"),
        ("nothing", Vec::new(), "Length"),
        ("the damage itself", spoilt[starts[1]..starts[2]].to_vec(), "Batch"),
        ("zeros", vec![0; good.len()], "Batch"),
        ("a longer batch", with(&|bytes| bytes[11] += 1), "Batch"),
        ("a shorter batch", with(&|bytes| bytes[11] -= 1), "Batch"),
        ("the next batch", neighbour, "Offsets"),
        ("an offset below", with(&|bytes| bytes[7] -= 1), "Offsets"),
        ("another epoch", with(&|bytes| bytes[15] += 1), "Epoch"),
    ];
    for (what, bytes, expected) in cases {
        let refused = log.heal(damaged, &bytes);
        let Err(HealError::Misfit(misfit)) = refused else { panic!("{what}: {refused:?}") };
        assert!(format!("{misfit:?}").starts_with(expected), "{what}: {misfit:?}");
        assert!(file_bytes(&fs, name) == spoilt, "{what}");
        assert_eq!(log.damage(), std::slice::from_ref(damaged), "{what}");
    }
    let mut elsewhere = damaged.clone();
    elsewhere.position += 1;
    assert!(matches!(log.heal(&elsewhere, &good), Err(HealError::Unknown)));
    assert!(file_bytes(&fs, name) == spoilt);
    // Somebody else has put the file right.
    fs.corrupt(&path(name), |bytes| bytes[starts[1] + 70] ^= 1).unwrap();
    assert!(matches!(log.heal(damaged, &good), Err(HealError::Misfit(Misfit::Same))));
}

#[test]
fn a_failed_write_leaves_the_damage_and_a_failed_sync_closes_the_log() {
    for (call, fault, closes) in [(Call::Write, Fault::Eio, false), (Call::SyncData, Fault::SyncFails, true)] {
        let fs = disk(3);
        let (log, files) = synced(&fs);
        drop(log);
        let (name, bytes) = &files[1];
        let at = starts(bytes)[1] + 70;
        fs.corrupt(&path(name), |bytes| bytes[at] ^= 1).unwrap();
        let (mut log, _) = open(&fs, &small());
        readable(&log.reader());
        let damaged = log.damage().remove(0);
        fs.inject_on(fault, call, name, 0);
        let failed = log.heal(&damaged, &right(&files, &damaged)).unwrap_err();
        assert_eq!(matches!(failed, HealError::Closed(_)), closes, "{failed:?}");
        assert_eq!(log.fence().is_some(), closes);
        if !closes {
            assert_eq!(log.damage(), std::slice::from_ref(&damaged));
            log.heal(&damaged, &right(&files, &damaged)).unwrap();
            assert_eq!(log.damage(), []);
        }
    }
}

#[test]
fn a_crash_at_any_call_leaves_it_damaged_or_healed_and_all_else_as_it_was() {
    let original = disk(4);
    let (log, files) = synced(&original);
    let all = contents(&log.reader());
    log.close().unwrap();
    let (name, bytes) = &files[1];
    let starts = starts(bytes);
    original.corrupt(&path(name), |bytes| bytes[starts[1] + 70] ^= 1).unwrap();
    let (mut damaged_seen, mut healed_seen) = (false, false);
    for calls in 0.. {
        let fs = original.process_crash_image();
        let (mut log, _) = open(&fs, &small());
        let served = readable(&log.reader());
        let damaged = log.damage().remove(0);
        fs.crash_after(calls);
        let healed = log.heal(&damaged, &right(&files, &damaged));
        let is_whole = !fs.crashed();
        assert_eq!(healed.is_ok(), is_whole, "call {calls}: {healed:?}");
        for (image, disk) in fs.images(6, calls).into_iter().enumerate() {
            let what = format!("call {calls}, image {image}");
            let (mut log, report) = open(&disk, &small());
            let records = readable(&log.reader());
            let is_healed = records == all;
            assert!(is_healed || records == served, "{what}: {} records, {report:?}", records.len());
            assert!(!is_whole || is_healed, "{what}: it was synced");
            (damaged_seen, healed_seen) = (damaged_seen | !is_healed, healed_seen | is_healed);
            for damaged in log.damage() {
                log.heal(&damaged, &right(&files, &damaged)).unwrap();
            }
            assert_eq!(readable(&log.reader()), all, "{what}");
            assert!(file_bytes(&disk, name) == *bytes, "{what}");
        }
        if is_whole {
            break;
        }
    }
    assert!(damaged_seen && healed_seen);
}
