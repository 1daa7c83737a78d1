//! What an image of the disk must hold after a crash.

use std::cell::Cell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::inspect::verify_partition;
use highwater_storage::*;

use crate::script::{Contents, Known, Op, Run, batch_of, options, reopen, run};
use crate::support::*;

/// Images opened per crash. `HIGHWATER_CRASH_IMAGES` says otherwise.
const IMAGES: usize = 30;

/// Images opened per image, after it was recovered and appended to.
const SECOND_IMAGES: usize = 4;

/// After one in so many crashes an image is opened with a crash at each call of the opening.
const INTERRUPTED_EVERY: u64 = 3;

thread_local! {
    /// Images that were opened and held against what was promised, by the test of this thread.
    static TRIED: Cell<u64> = const { Cell::new(0) };
}

/// How many images to open per crash.
pub(crate) fn images_per_crash() -> usize {
    from_environment("HIGHWATER_CRASH_IMAGES").unwrap_or(IMAGES)
}

pub(crate) fn from_environment(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Crashes the script at each of its calls, and the recovery of some images at each of its own.
pub(crate) fn crash_everywhere(seed: u64, script: &[Op]) {
    let whole = disk(seed);
    run(&whole, script);
    assert!(!whole.crashed());
    let before = TRIED.get();
    let mut losses = 0;
    for calls in 0..=whole.calls() {
        let fs = disk(seed);
        fs.crash_after(calls);
        let run = run(&fs, script);
        let image_seed = seed ^ (calls << 20);
        for (number, image) in fs.images(images_per_crash(), image_seed).into_iter().enumerate() {
            let place = || format!("seed {seed}, call {calls}, image {number}, {run:?}\n{script:?}");
            let found = placed(place, || check_image(&run, &image, calls));
            losses += u64::from(found.end < run.before.end);
        }
        if (calls + seed).is_multiple_of(INTERRUPTED_EVERY) || images_per_crash() > IMAGES {
            let number = usize::try_from(calls / INTERRUPTED_EVERY).unwrap() % 12;
            interrupt(&run, &|| fs.images(12, image_seed).into_iter().nth(number), seed, calls);
        }
        let image = fs.process_crash_image();
        let place = || format!("seed {seed}, call {calls}, killed, {run:?}\n{script:?}");
        let found = placed(place, || check_image(&run, &image, calls));
        let cuts = matches!(run.op, Some(Op::Truncate(_) | Op::Reset(_)));
        placed(place, || assert!(cuts || found.end >= run.before.end, "a killed process loses nothing: {found:?}"));
    }
    assert!(losses > 0, "images that lose nothing test nothing");
    println!("{} images of {} crashes", TRIED.get() - before, whole.calls() + 1);
}

/// Crashes at each call of the opening of an image. The image is made anew each time: what a power cut leaves does not
/// change by looking at it.
fn interrupt(run: &Run, image: &dyn Fn() -> Option<SimFs>, seed: u64, calls: u64) {
    for recovery_calls in 0.. {
        let Some(image) = image() else { return };
        image.crash_after(recovery_calls);
        if reopen(&image).is_ok() && !image.crashed() {
            return;
        }
        for (number, image) in image.images(4, recovery_calls).into_iter().enumerate() {
            let place =
                || format!("seed {seed}, call {calls}, call {recovery_calls} of recovery, image {number}, {run:?}");
            placed(place, || check_image(run, &image, calls));
        }
    }
}

/// Opens an image, checks it, and sees whether the log goes on.
pub(crate) fn check_image(run: &Run, image: &SimFs, seed: u64) -> Contents {
    TRIED.set(TRIED.get() + 1);
    let mut log = reopen(image).expect("an image opens");
    let found = Contents::of(&log);
    assert_bounds(&log);
    check_prefix(run, &found);
    check_look_ups(&log, &found);
    check_producers(run, &mut log, &found);
    check_copies(run, image);

    let (first, bytes) = (log.end(), batch(T0, &[b"goes on"]));
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    assert_eq!(log.append(NOW, epoch, &bytes).unwrap().first, first);
    let ongoing = Contents::of(&log);
    drop(log);
    // The power goes again: what recovery cut off does not come back behind what was appended after it.
    for image in image.images(SECOND_IMAGES, seed) {
        let cut = Contents::of(&reopen(&image).expect("a second image opens"));
        assert_eq!(cut.start, ongoing.start);
        assert_eq!(cut.records, ongoing.between(cut.start, cut.end), "after a second power cut");
    }
    // Once more, without the files that only say where things are: recovery finds what recovery left.
    if seed.is_multiple_of(3) {
        remove_indexes(image);
    }
    let log = reopen(image).expect("a recovered image opens");
    let again = Contents::of(&log);
    assert_eq!((again.start, again.end, &again.records), (ongoing.start, ongoing.end, &ongoing.records));
    check_look_ups(&log, &again);
    let left =
        names(image).into_iter().find(|name| [".tmp", ".swap", ".cleaned"].iter().any(|end| name.ends_with(end)));
    assert_eq!(left, None, "a file of interrupted work");
    assert_bounds(&log);
    // Closed well, nothing in it is wrong: every index entry (I5), epoch, snapshot and checkpoint is held to the batches.
    log.close().expect("the simulated disk works");
    let mut faults = Vec::new();
    let verified = verify_partition(image, Path::new(DIR), &mut |event| faults.push(event)).expect("it can be read");
    assert!(verified.is_good(), "{faults:#?}");
    found
}

/// I1, as far as a log without a high watermark knows it.
fn assert_bounds(log: &Log) {
    let (start, recovery_point, flushed, end) = (log.start(), log.recovery_point(), log.flushed(), log.end());
    assert!(start <= end && recovery_point <= flushed && flushed <= end, "{start} {recovery_point} {flushed} {end}");
}

/// Holds what an image gave against what may be left.
fn check_prefix(run: &Run, found: &Contents) {
    let Run { before, after, op, .. } = run;
    if let Some(Op::Replicate(_, _, 1)) = *op {
        // The log is made anew one offset further down, and empty until the first batch is there.
        if found.records.is_empty() {
            assert!((before.start - 1..=before.start).contains(&found.start) && found.start == found.end, "{found:?}");
            return;
        }
    }
    if let Some(Op::Reset(to)) = *op {
        // Emptied, at the old or the new start, or not (wholly) emptied yet.
        if found.records.is_empty() {
            assert!([before.start, to].contains(&found.start) && found.start == found.end, "{found:?}");
            return;
        }
    }
    // Truncations that leave nothing are resets too.
    let is_reset = matches!(op, Some(Op::Reset(_) | Op::Truncate(_))) && after.records.is_empty();
    let longer = if is_reset || before.end > after.end { before } else { after };
    let promised = if is_reset { found.start } else { before.flushed.min(after.flushed).min(after.end) };
    let (low, high) = (before.start.min(after.start), before.start.max(after.start));
    assert!((low..=high).contains(&found.start), "the start {} is not in {low}..={high}", found.start);
    let most = before.end.max(after.end).max(high);
    assert!((promised..=most).contains(&found.end), "the end {} is not in {promised}..={most}", found.end);
    // A compaction under way may have taken records already.
    let longer = Contents { compacted: before.compacted.max(after.compacted), ..longer.clone() };
    longer.assert_holds(found);
    if let Some(last) = longer.between(found.start, found.end).last() {
        assert_eq!(last.offset, found.end - 1, "no hole at the end");
    }
}

/// Each offset and each time is found, whatever indexes there are.
fn check_look_ups(log: &Log, contents: &Contents) {
    for record in &contents.records {
        let fetched = log.read(Offset(record.offset), ReadLimit::bytes(1)).unwrap();
        let expected = record.base..=record.offset;
        assert!(expected.contains(&fetched.first.0) && record.offset < fetched.next.0, "found by offset: {record:?}");
    }
    let reader = log.reader();
    let time_of = |record: &Known| T0 + i64::from(record.sequence.max(0));
    for asked in contents.records.iter().step_by(3).map(time_of).chain([T0 - 1, T0 + 1000]) {
        let expected = contents.records.iter().find(|record| time_of(record) >= asked).map(|record| record.offset);
        let found = reader.offset_for_timestamp(TimestampMs(asked), Offset::MAX).unwrap();
        assert_eq!(found.map(|found| found.offset.0), expected, "found by time {asked}");
    }
}

/// The last batch of each producer is known when it comes again.
fn check_producers(run: &Run, log: &mut Log, found: &Contents) {
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    let longer = if run.before.end > run.after.end { &run.before } else { &run.after };
    let appended = Contents { records: longer.between(found.start, found.end), ..found.clone() };
    for (producer, last) in appended.last_batches() {
        let records = appended.between(last.base, last.base + 2);
        let Ok(records) = <[Known; 2]>::try_from(records) else { panic!("half of a batch: {last:?}") };
        let again = batch_of(producer, last.sequence, &records.map(|record| (record.key, record.value)));
        let appended = log.append(NOW, epoch, &again).expect("a producer may repeat itself");
        assert_eq!((appended.first.0, appended.duplicate), (last.base, true), "{last:?}");
    }
}

/// A copy that was finished is there, one that was under way is there as a whole or not at all.
fn check_copies(run: &Run, image: &SimFs) {
    for (at, (place, expected)) in run.copies.iter().enumerate() {
        let may_be_missing = run.op == Some(Op::Copy) && at + 1 == run.copies.len();
        if image.metadata(Path::new(place)).is_err() {
            assert!(may_be_missing, "the copy {place} is gone");
            continue;
        }
        let fs = Arc::new(image.clone());
        let opened = Log::open_with(fs, Path::new(place), options(), OpenHints::default());
        let (copy, report) = opened.expect("a copy opens");
        assert!(report.clean, "the copy {place} was not closed well: {report:?}");
        let found = Contents::of(&copy);
        assert_eq!((found.start, found.end), (expected.start, expected.end), "the copy {place}");
        expected.assert_holds(&found);
        copy.close().expect("the simulated disk works");
    }
}

fn remove_indexes(fs: &SimFs) {
    for name in names(fs).iter().filter(|name| name.ends_with("index")) {
        fs.remove_file(&path(name)).unwrap();
    }
    fs.sync_dir(Path::new(DIR)).unwrap();
}

/// Runs a check and says where it was if it fails.
pub(crate) fn placed<T, D: fmt::Display>(place: impl Fn() -> D, check: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
        Ok(value) => value,
        Err(panic) => {
            eprintln!("{}", place());
            std::panic::resume_unwind(panic)
        }
    }
}

/// Whichever of the files of segments that were going a power cut brings back, they are below the log start.
#[test]
fn several_segments_go_at_once_before_any_was_checkpointed() {
    for flushed in [false, true] {
        let fs = disk(8);
        let mut log = reopen(&fs).unwrap();
        log.set_options(LogOptions { retention: false, ..options() }).unwrap();
        for sequence in 0..48 {
            let values = [(vec![b'a'], vec![b'a'; 130]), (vec![b'b'], vec![b'b'; 130])];
            log.append(NOW, LeaderEpoch(sequence / 24), &batch_of(7, sequence * 2, &values)).unwrap();
        }
        log.set_options(options()).unwrap();
        let end = if flushed { log.flush().unwrap() } else { log.flushed() };
        let limits = WorkLimits::new(log.end());
        let step = log.housekeeping().step(NOW, &limits).unwrap();
        assert!(matches!(step, Some(Step::SegmentsRetired { segments: 8.., .. })), "{step:?}");
        let start = log.start();
        let expected = Contents::of(&log);
        drop(log);
        for (number, image) in fs.images(150, 1).into_iter().enumerate() {
            let place = || format!("image {number}, flushed: {flushed}");
            let log = placed(place, || reopen(&image).unwrap());
            let found = Contents::of(&log);
            assert_eq!(found.start, start.0, "image {number}");
            assert!(found.end >= end.0.max(start.0), "image {number}: {found:?} of {expected:?}, flushed: {flushed}");
            assert_eq!(found.records, expected.between(start.0, found.end), "image {number}");
        }
    }
}
