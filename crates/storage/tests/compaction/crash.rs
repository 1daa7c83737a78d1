//! Crashes and faults at each call of a compaction.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::inspect::{PartitionFiles, SegmentFiles};
use highwater_storage::{BatchBuilder, Codec, Log, LogOptions, Offset, OpenHints, TimestampMs, WorkLimits, batches};

use crate::keyed::{Stored, append_as_is, compact, compacted, end_transaction, keys, new_log, put, records, roll};
use crate::support::{DIR, T0, disk, file_bytes, names, open};

const CAPACITY: u64 = 1 << 30;

type Fill = fn(&mut Log);

/// Three logs that are swapped in each its way.
fn scenarios() -> Vec<(&'static str, LogOptions, Fill)> {
    fn several_into_one(log: &mut Log) {
        for round in 0..3 {
            put(log, &[(Some("a"), Some("1")), (Some("b"), Some(["1", "2", "3"][round]))]);
            let transactional =
                BatchBuilder::new(Codec::Lz4).producer(3, 0, i32::try_from(round).unwrap()).transactional();
            append_as_is(log, transactional, &[(Some("c"), Some("1"))]);
            end_transaction(log, 3, 0, round != 1);
            roll(log);
        }
    }
    fn one_into_several(log: &mut Log) {
        let mut options = log.options().clone();
        let segment_bytes = std::mem::replace(&mut options.segment_bytes, 1 << 20);
        log.set_options(options.clone()).unwrap();
        for round in 0..2 {
            for key in 0..8 {
                put(log, &[(Some(&format!("key {key}")), Some(["1", "2"][round]))]);
            }
        }
        roll(log);
        options.segment_bytes = segment_bytes;
        log.set_options(options).unwrap();
    }
    fn the_first_and_the_last_go(log: &mut Log) {
        put(log, &[(Some("a"), Some("1")), (Some("b"), Some("1"))]);
        roll(log);
        put(log, &[(Some("a"), Some("2")), (Some("b"), None), (Some("c"), Some("1"))]);
        roll(log);
        put(log, &[(None, Some("no key"))]);
        roll(log);
    }
    fn one_that_does_not_begin_the_log(log: &mut Log) {
        let long = "long ".repeat(50);
        append_as_is(log, BatchBuilder::new(Codec::None).producer(9, 0, 0), &[(Some("first"), Some(&*long))]);
        roll(log);
        put(log, &[(Some("a"), Some("1"))]);
        put(log, &[(Some("a"), Some("2"))]);
        roll(log);
    }
    let small = |segment_bytes| LogOptions { segment_bytes, ..compacted() };
    vec![
        ("several into one", small(2000), several_into_one),
        ("one into several", small(300), one_into_several),
        ("the first and the last go", small(1000), the_first_and_the_last_go),
        ("one that does not begin the log", small(350), one_that_does_not_begin_the_log),
    ]
}

fn prepared(options: &LogOptions, fill: fn(&mut Log)) -> (SimFs, Log) {
    let fs = disk(1);
    let mut log = new_log(&fs, options);
    fill(&mut log);
    put(&mut log, &[(Some("z"), Some("of the active segment"))]);
    log.flush().unwrap();
    (fs, log)
}

fn latest(records: &BTreeMap<i64, Stored>) -> BTreeMap<Vec<u8>, (i64, Vec<u8>)> {
    let mut latest = BTreeMap::new();
    for (offset, stored) in records.iter().filter(|(_, stored)| !stored.is_control) {
        let Some(key) = stored.key.clone() else { continue };
        match &stored.value {
            Some(value) => latest.insert(key, (*offset, value.clone())),
            None => latest.remove(&key),
        };
    }
    latest
}

fn list(fs: &SimFs) -> PartitionFiles {
    PartitionFiles::list(fs, Path::new(DIR)).unwrap()
}

/// Holds what was listed before an opening against what there is after it.
fn as_listed(listed: &PartitionFiles, opened: &PartitionFiles, snapshots: &[Offset], what: &str) {
    assert_eq!(opened.leftovers, [], "{what}");
    let segments = |files: &PartitionFiles| -> Vec<_> {
        files.segments.iter().map(|segment| (segment.base, segment.log.bytes)).collect()
    };
    assert_eq!(segments(listed), segments(opened), "{what}");
    for (listed, opened) in listed.segments.iter().zip(&opened.segments) {
        let bytes = |segment: &SegmentFiles| segment.transaction_index.as_ref().map(|index| index.bytes);
        // A segment that is read anew needs no entry of a transaction of which nothing is left in it.
        assert!(bytes(opened).is_none() || bytes(listed) == bytes(opened), "{what}");
    }
    // A snapshot tells of what lies below its segment, however that was replaced.
    let is_there = |wanted: Offset| opened.snapshots.iter().any(|(offset, _)| *offset == wanted);
    for base in opened.segments.iter().map(|segment| segment.base).filter(|base| snapshots.contains(base)) {
        assert!(is_there(base), "{what}: the snapshot at {base}");
    }
}

#[test]
fn a_crash_at_any_call_leaves_the_old_segments_or_the_new_ones() {
    for (name, options, fill) in scenarios() {
        let (fs, mut log) = prepared(&options, fill);
        let before = records(&log.reader());
        let snapshots: Vec<Offset> = list(&fs).snapshots.into_iter().map(|(offset, _)| offset).collect();
        let end = log.end();
        let calls_before = fs.calls();
        assert_eq!(compact(&mut log, T0).len(), 1, "{name}");
        let after = records(&log.reader());
        let calls = fs.calls() - calls_before;
        assert!(after.len() < before.len() && calls > 8, "{name}: {calls}");
        drop(log);

        let (mut images_seen, mut old, mut new) = (0, 0, 0);
        for crash in 0..=calls {
            let (fs, mut log) = prepared(&options, fill);
            fs.crash_after(crash);
            let limits = WorkLimits::new(end);
            while let Ok(Some(_)) = log.housekeeping().step(TimestampMs(T0), &limits) {}
            drop(log);
            for image in fs.images(60, crash) {
                let what = format!("{name}, call {crash}, {:?}", names(&image));
                images_seen += 1;
                // A second crash, while the swap is completed.
                let calls = {
                    let image = image.process_crash_image();
                    drop(open(&image, &options));
                    image.calls()
                };
                for second in [u64::MAX].into_iter().chain((0..calls.min(12)).step_by(3)) {
                    let image = image.process_crash_image();
                    if second < u64::MAX {
                        image.crash_after(second);
                        let opened = Log::open_with(
                            Arc::new(image.clone()),
                            Path::new(DIR),
                            options.clone(),
                            OpenHints::default(),
                        );
                        drop(opened);
                    }
                    let image = if second < u64::MAX { image.images(3, second).pop().unwrap() } else { image };
                    let listed = list(&image);
                    let (mut log, report) = open(&image, &options);
                    as_listed(&listed, &list(&image), &snapshots, &what);
                    assert_eq!((log.end(), &report.cut), (end, &None), "{what}");
                    let found = records(&log.reader());
                    if found == before {
                        old += 1;
                    } else {
                        assert_eq!(found, after, "{what}");
                        new += 1;
                    }
                    if second == u64::MAX {
                        assert_eq!(
                            log.producers().get(3).map(|known| known.last_sequence()),
                            (name == "several into one").then_some(2),
                            "{what}"
                        );
                        // And it is compacted as if nothing had happened.
                        compact(&mut log, T0);
                        assert_eq!(
                            keys(&log.reader()).len(),
                            latest(&records(&log.reader())).len() + usize::from(name == "the first and the last go"),
                            "{what}"
                        );
                    }
                }
            }
        }
        assert!(old > 0 && new > 0 && images_seen > 50, "{name}: {images_seen} images, {old} old, {new} new");
        println!("{name}: {calls} calls, {images_seen} images, {old} old, {new} new");
    }
}

#[test]
fn a_compaction_that_runs_out_of_room_leaves_everything_as_it_was() {
    for (name, options, fill) in scenarios() {
        for free in (0..1200).step_by(61) {
            let (fs, mut log) = prepared(&options, fill);
            fs.set_capacity(CAPACITY);
            let before = records(&log.reader());
            let room = fs.free_space(Path::new(DIR)).unwrap();
            fs.set_capacity(CAPACITY - room + free);
            let limits = WorkLimits::new(log.end());
            let outcome = loop {
                match log.housekeeping().step(TimestampMs(T0), &limits) {
                    Ok(Some(_)) => {}
                    other => break other,
                }
            };
            if outcome.is_err() {
                assert_eq!(records(&log.reader()), before, "{name}, {free}");
                assert_eq!(log.fence(), None);
            }
            fs.set_capacity(CAPACITY);
            // What failed gets its turn when there was nothing else.
            let again = compact(&mut log, T0 + 20_000).len() + compact(&mut log, T0 + 20_000).len();
            assert_eq!(again + usize::from(outcome.is_ok()), 1, "{name}, {free}");
            assert_eq!(latest(&records(&log.reader())), latest(&before), "{name}, {free}");
        }
    }
}

/// A fault at the n-th call of each kind: the old segments or the new ones are there, at once and after it was opened again
/// (also where the pages of a failed sync were dropped), and a log that goes on is compacted in the end.
#[test]
fn a_fault_at_any_call_leaves_the_old_segments_or_the_new_ones() {
    let (mut strikes, mut closed) = (0, 0);
    for (name, options, fill) in scenarios() {
        let (fs, mut log) = prepared(&options, fill);
        let before = records(&log.reader());
        compact(&mut log, T0);
        let after = records(&log.reader());
        drop((fs, log));
        for (fault, call) in faults() {
            for nth in 1.. {
                let what = format!("{name}: {fault:?} at {call:?} {nth}");
                let (fs, mut log) = prepared(&options, fill);
                let end = log.end();
                fs.inject(fault, call, nth);
                let limits = WorkLimits::new(end);
                let mut failed = false;
                // What failed gets its turn again when there was nothing else.
                for round in 0..3 {
                    loop {
                        match log.housekeeping().step(TimestampMs(T0 + round * 20_000), &limits) {
                            Ok(Some(_)) => {}
                            Ok(None) => break,
                            Err(_) => failed = true,
                        }
                        if log.fence().is_some() {
                            break;
                        }
                    }
                }
                if fs.faults_hit() == 0 {
                    break;
                }
                strikes += 1;
                fs.clear_faults();
                if log.fence().is_some() {
                    closed += 1;
                    // A swap whose renames have begun is completed by the next opening only.
                    let is_half_done = call == Call::Rename;
                    let may_close = fault != Fault::Enospc || is_half_done;
                    assert!(failed && may_close, "{what}: {:?}", log.fence());
                } else {
                    assert_eq!(records(&log.reader()), after, "{what}: it goes on and is compacted");
                }
                drop(log);
                let is_dead = (fault, call) == (Fault::SyncFails, Call::SyncDir);
                let killed = if is_dead { None } else { Some(fs.kill()) };
                for (number, image) in killed.into_iter().chain(fs.images(6, nth)).enumerate() {
                    let what = format!("{what}, image {number}, {:?}", names(&image));
                    let (mut log, report) = open(&image, &options);
                    assert_eq!((log.end(), &report.cut), (end, &None), "{what}");
                    let found = records(&log.reader());
                    assert!(found == before || found == after, "{what}");
                    // What reads by offset does not see a segment beside the one that it was made from.
                    for pair in log.segments().windows(2) {
                        let bytes = file_bytes(&image, &format!("{:020}.log", pair[0].base.0));
                        let last = batches(&bytes).last().map(|batch| batch.unwrap().last_offset());
                        assert!(last.is_none_or(|last| last < pair[1].base), "{what}: {last:?} in {pair:?}");
                    }
                    compact(&mut log, T0);
                    assert_eq!(latest(&records(&log.reader())), latest(&before), "{what}");
                }
            }
        }
    }
    assert!(strikes > 200 && closed > 0, "{strikes} faults came up, and {closed} closed the log");
}

/// Each fault with the calls that it harms.
fn faults() -> impl Iterator<Item = (Fault, Call)> {
    const CALLS: [Call; 10] = [
        Call::Open,
        Call::Read,
        Call::Create,
        Call::Write,
        Call::SetLen,
        Call::SyncData,
        Call::SyncDir,
        Call::Rename,
        Call::Remove,
        Call::Metadata,
    ];
    let with = |fault, calls: &'static [Call]| calls.iter().map(move |call| (fault, *call));
    with(Fault::Eio, &CALLS)
        .chain(with(Fault::Enospc, &[Call::Create, Call::Write, Call::SetLen, Call::Rename]))
        .chain(with(Fault::ShortWrite, &[Call::Write]))
        .chain(with(Fault::ShortRead, &[Call::Read]))
        .chain(with(Fault::SyncFails, &[Call::SyncData, Call::SyncDir]))
}
