//! Power cuts and crashes at every call of scripted runs: after each, every image that the simulated disk allows is
//! opened, and must hold what was promised (I6): a prefix of what was appended that holds everything flushed, without a
//! hole, with a log start that never goes back.

mod support;

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::SimFs;
use highwater_storage::*;
use support::*;

/// Images opened per crash.
const IMAGES: usize = 14;

/// Images opened per image, after it was recovered and appended to.
const SECOND_IMAGES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// Batches of two records each, in this epoch.
    Append(usize, i32),
    Flush,
    Checkpoint,
    Truncate(i64),
    AdvanceStart(i64),
    Reset(i64),
    /// All housekeeping that is due so many seconds after the start, below this high watermark.
    Housekeeping(i64, i64),
    /// Closes well and opens again.
    Reopen,
    /// Drops the log and opens it again.
    Restart,
}

/// What a log holds, as its caller knows.
#[derive(Clone, Default, PartialEq, Eq)]
struct Known {
    start: i64,
    end: i64,
    flushed: i64,
    /// The value and epoch of each record, by offset.
    records: Vec<(i64, Vec<u8>, i32)>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { start, end, flushed, records } = self;
        let last = records.last().map(|(offset, ..)| offset);
        write!(f, "start {start}, end {end}, flushed {flushed}, {} records up to {last:?}", records.len())
    }
}

impl Known {
    /// What is known of a log that is there.
    fn of(log: &Log) -> Self {
        let reader = log.reader();
        let records = contents(&reader)
            .into_iter()
            .map(|(offset, value)| (offset, value, reader.epoch_of(Offset(offset)).0))
            .collect();
        Self { start: log.start().0, end: log.end().0, flushed: log.flushed().0, records }
    }

    fn from(&self, start: i64) -> impl Iterator<Item = &(i64, Vec<u8>, i32)> {
        self.records.iter().filter(move |(offset, ..)| *offset >= start)
    }
}

/// A run as far as it came: what was known before the call that failed, and what would have been after.
#[derive(Debug)]
struct Run {
    before: Known,
    after: Known,
    op: Option<Op>,
}

fn options() -> LogOptions {
    LogOptions {
        // Batches of about 350 bytes: three to a segment, and most lie across the boundary of two sectors.
        segment_bytes: 1200,
        index_interval_bytes: 0,
        retention_bytes: 3000,
        retention_ms: -1,
        file_delete_delay_ms: 1000,
        ..LogOptions::default()
    }
}

fn values(number: i64) -> [Vec<u8>; 2] {
    [format!("{}value {number}", "-".repeat(100)).into_bytes(), format!("{}, {number}", "+".repeat(120)).into_bytes()]
}

fn reopen(fs: &SimFs) -> Result<Log, OpenError> {
    Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options(), OpenHints::default()).map(|(log, _)| log)
}

/// Runs the script until it ends or the machine crashes.
fn run(fs: &SimFs, script: &[Op]) -> Run {
    let mut run = Run { before: Known::default(), after: Known::default(), op: None };
    let Ok(opened) = reopen(fs) else { return run };
    let mut open = Some(opened);
    let mut number = 0;
    for op in script {
        let mut log = open.take().expect("it is put back after each step");
        run.op = Some(*op);
        run.before = run.after.clone();
        let done = match *op {
            Op::Append(batches, epoch) => (0..batches).try_for_each(|_| {
                let [one, other] = values(number);
                let mut builder = BatchBuilder::new(Codec::None).producer(7, 0, i32::try_from(number * 2).unwrap());
                builder.push(Record::new(TimestampMs(T0 + number), &one));
                builder.push(Record::new(TimestampMs(T0 + number), &other));
                run.before = run.after.clone();
                let first = run.after.end;
                run.after.records.extend([(first, one, epoch), (first + 1, other, epoch)]);
                run.after.end += 2;
                number += 1;
                let appended = log.append(NOW, LeaderEpoch(epoch), &builder.build()).map_err(|_| ())?;
                assert_eq!((appended.first.0, appended.duplicate), (first, false));
                Ok(())
            }),
            Op::Flush => {
                run.after.flushed = run.after.end;
                log.flush().map(|_| ()).map_err(|_| ())
            }
            Op::Checkpoint => {
                run.after.flushed = run.after.end;
                log.checkpoint().map(|_| ()).map_err(|_| ())
            }
            Op::Truncate(to) => {
                // Batches have two records and start at even offsets.
                run.after.end = if to <= run.after.start { to } else { to - to % 2 }.min(run.after.end);
                run.after.start = run.after.start.min(run.after.end);
                run.after.records.retain(|(offset, ..)| *offset < run.after.end);
                run.after.flushed = run.after.flushed.min(run.after.end);
                // The producer's next number is the one after what is left of its batches.
                number = run.after.records.last().map_or(number, |(_, value, _)| number_of(value) + 1);
                log.truncate_to(Offset(to)).map(|_| ()).map_err(|_| ())
            }
            Op::AdvanceStart(to) => {
                run.after.start = to;
                log.advance_start(Offset(to)).map(|_| ()).map_err(|_| ())
            }
            Op::Reset(to) => {
                run.after = Known { start: to, end: to, flushed: to, records: Vec::new() };
                log.reset_to(Offset(to)).map(|_| ()).map_err(|_| ())
            }
            Op::Housekeeping(seconds, high_watermark) => {
                let limits = WorkLimits::new(Offset(high_watermark));
                let now = TimestampMs(NOW.0 + seconds * 1000);
                // How far the start moves is the log's choice; it tells afterwards.
                run.after.start = high_watermark.max(run.after.start);
                let mut work = || -> Result<(), FlushError> {
                    while log.housekeeping().step(now, &limits)?.is_some() {}
                    Ok(())
                };
                work().map_err(|_| ())
            }
            Op::Reopen | Op::Restart => {
                let closed = if *op == Op::Reopen {
                    run.after.flushed = run.after.end;
                    log.close().map_err(|_| ()).map(|_| ())
                } else {
                    drop(log);
                    Ok(())
                };
                match closed.and_then(|()| reopen(fs).map_err(|_| ())) {
                    Ok(opened) => log = opened,
                    Err(()) => {
                        assert!(fs.crashed(), "{op:?} failed without a crash");
                        return run;
                    }
                }
                Ok(())
            }
        };
        if done.is_err() {
            assert!(fs.crashed(), "{op:?} failed without a crash: {log:?}");
            return run;
        }
        if fs.crashed() {
            // In a call whose failure is of no account, such as the mark after a flush: the step is done.
            run.after.flushed = log.flushed().0;
            run.before.flushed = run.before.flushed.max(run.after.flushed.min(run.before.end));
            return run;
        }
        let found = Known::of(&log);
        if matches!(op, Op::Housekeeping(..)) {
            assert!(run.before.start <= found.start && found.start <= run.after.start, "{op:?}");
            run.after.start = found.start;
        }
        let kept: Vec<_> = run.after.from(run.after.start).cloned().collect();
        assert_eq!((found.start, found.end, &found.records), (run.after.start, run.after.end, &kept), "{op:?}");
        run.after.flushed = found.flushed;
        open = Some(log);
    }
    run.before = run.after.clone();
    run.op = None;
    run
}

fn number_of(value: &[u8]) -> i64 {
    let text = std::str::from_utf8(value).unwrap();
    text.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Holds what an image gave against what may be left.
fn check_prefix(run: &Run, found: &Known) {
    let Run { before, after, op } = run;
    if let Some(Op::Reset(to)) = *op {
        // Emptied, at the old or the new start, or not (wholly) emptied yet.
        if found.records.is_empty() {
            assert!([before.start, to].contains(&found.start) && found.start == found.end, "{found:?}");
            return;
        }
    }
    let is_reset = matches!(op, Some(Op::Reset(_))) || matches!(op, Some(Op::Truncate(to)) if *to <= before.start);
    let longer = if is_reset || before.end > after.end { before } else { after };
    let promised = if is_reset { found.start } else { before.flushed.min(after.flushed).min(after.end) };
    let (low, high) = (before.start.min(after.start), before.start.max(after.start));
    assert!((low..=high).contains(&found.start), "the start {} is not in {low}..={high}", found.start);
    let most = before.end.max(after.end).max(high);
    assert!((promised..=most).contains(&found.end), "the end {} is not in {promised}..={most}", found.end);
    let expected: Vec<_> = longer.from(found.start).filter(|(offset, ..)| *offset < found.end).cloned().collect();
    assert_same(&found.records, &expected);
    if found.end > found.start && !expected.is_empty() {
        assert_eq!(expected.last().unwrap().0, found.end - 1, "no hole at the end");
        assert_eq!(expected.len(), usize::try_from(found.end - found.start).unwrap(), "no hole");
    }
}

fn assert_same(found: &[(i64, Vec<u8>, i32)], expected: &[(i64, Vec<u8>, i32)]) {
    let differ = found.iter().zip(expected).find(|(found, expected)| found != expected);
    let readable = differ.map(|((offset, value, epoch), (other, other_value, other_epoch))| {
        let text = |value: &[u8]| String::from_utf8_lossy(value).trim_matches(['-', '+']).to_owned();
        (*offset, text(value), *epoch, *other, text(other_value), *other_epoch)
    });
    assert_eq!((readable, found.len()), (None, expected.len()), "found and expected");
}

/// Opens an image, checks it, and sees whether the log goes on.
fn check_image(run: &Run, image: &SimFs, seed: u64) -> Known {
    let mut log = reopen(image).expect("an image opens");
    let found = Known::of(&log);
    check_prefix(run, &found);
    for (offset, ..) in &found.records {
        let fetched = log.read(Offset(*offset), ReadLimit::bytes(1)).unwrap();
        assert!(fetched.first.0 <= *offset && *offset < fetched.next.0, "each offset is found by the index");
    }
    let (first, bytes) = (log.end(), batch(T0, &[b"goes on"]));
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    assert_eq!(log.append(NOW, epoch, &bytes).unwrap().first, first);
    let ongoing = Known::of(&log);
    drop(log);
    // The power goes again: what recovery cut off does not come back behind what was appended after it.
    for image in image.images(SECOND_IMAGES, seed) {
        let cut = Known::of(&reopen(&image).expect("a second image opens"));
        assert_eq!(cut.start, ongoing.start);
        let prefix: Vec<_> = ongoing.from(cut.start).filter(|(offset, ..)| *offset < cut.end).cloned().collect();
        assert_same(&cut.records, &prefix);
    }
    // Once more: recovery finds what recovery left.
    let log = reopen(image).expect("a recovered image opens");
    let mut again = Known::of(&log);
    assert_eq!(again.records.pop().map(|(offset, value, _)| (offset, value)), Some((first.0, b"goes on".to_vec())));
    assert_eq!((again.start, &again.records), (found.start, &found.records));
    found
}

/// Crashes the script at each of its calls.
fn crash_everywhere(seed: u64, script: &[Op]) {
    let whole = disk(seed);
    run(&whole, script);
    assert!(!whole.crashed());
    let mut losses = 0;
    for calls in 0..=whole.calls() {
        let fs = disk(seed);
        fs.crash_after(calls);
        let run = run(&fs, script);
        for (number, image) in fs.images(IMAGES, seed ^ calls).into_iter().enumerate() {
            let context = || format!("seed {seed}, call {calls}, image {number}, {run:?}");
            let found = unwind(|| check_image(&run, &image, calls), context);
            losses += u64::from(found.end < run.before.end);
        }
        let image = fs.process_crash_image();
        let found =
            unwind(|| check_image(&run, &image, calls), || format!("seed {seed}, call {calls}, killed, {run:?}"));
        let cuts = matches!(run.op, Some(Op::Truncate(_) | Op::Reset(_)));
        assert!(cuts || found.end >= run.before.end, "seed {seed}, call {calls}: a killed process loses nothing");
    }
    assert!(losses > 0, "images that lose nothing test nothing");
}

/// Runs a check and says where it was if it fails.
fn unwind<T>(check: impl FnOnce() -> T, context: impl Fn() -> String) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)) {
        Ok(value) => value,
        Err(panic) => {
            eprintln!("{}", context());
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn appends_rolls_and_flushes() {
    use Op::*;
    crash_everywhere(
        1,
        &[
            Append(2, 0),
            Flush,
            Append(4, 0),
            Append(1, 1),
            Flush,
            Append(3, 1),
            Checkpoint,
            Append(4, 2),
            Reopen,
            Append(2, 2),
        ],
    );
}

#[test]
fn truncations_and_what_is_appended_after_them() {
    use Op::*;
    crash_everywhere(
        2,
        &[
            Append(7, 0),
            Flush,
            Append(2, 1),
            Truncate(15),
            Append(2, 2),
            Flush,
            Truncate(5),
            Append(3, 3),
            Checkpoint,
            Truncate(9),
            Append(3, 4),
            Flush,
            Truncate(4),
            Append(2, 5),
        ],
    );
}

#[test]
fn truncations_of_a_log_that_was_closed_well() {
    use Op::*;
    crash_everywhere(3, &[Append(9, 0), Reopen, Truncate(7), Append(2, 1), Reopen, Truncate(3), Append(1, 2), Flush]);
}

#[test]
fn the_start_moves_and_segments_go() {
    use Op::*;
    crash_everywhere(
        4,
        &[
            Append(6, 0),
            AdvanceStart(3),
            Flush,
            Append(2, 0),
            AdvanceStart(9),
            Housekeeping(1, 16),
            Append(8, 1),
            Flush,
            Housekeeping(2, 30),
            Housekeeping(9, 32),
            AdvanceStart(32),
            Append(1, 1),
            Housekeeping(20, 34),
        ],
    );
}

/// Whichever of the files of segments that were going a power cut brings back, they are below the log start.
#[test]
fn several_segments_go_at_once_before_any_was_checkpointed() {
    for flushed in [false, true] {
        let fs = disk(8);
        let before = run(&fs, &[Op::Append(24, 0)]).after;
        let mut log = reopen(&fs).unwrap();
        for number in 24..48 {
            log.append(NOW, LeaderEpoch(1), &batch(T0, &values(number))).unwrap();
        }
        let end = if flushed { log.flush().unwrap() } else { Offset(before.end) };
        let limits = WorkLimits::new(log.end());
        let step = log.housekeeping().step(NOW, &limits).unwrap();
        assert!(matches!(step, Some(Step::SegmentsRetired { segments: 8.., .. })), "{step:?}");
        let start = log.start();
        let expected = Known::of(&log);
        drop(log);
        for (number, image) in fs.images(150, 1).into_iter().enumerate() {
            let log = unwind(|| reopen(&image).unwrap(), || format!("image {number}, flushed: {flushed}"));
            let found = Known::of(&log);
            assert_eq!(found.start, start.0, "image {number}");
            assert!(found.end >= end.0.max(start.0), "image {number}: {found:?} of {expected:?}, flushed: {flushed}");
            let kept: Vec<_> = expected.from(start.0).filter(|(offset, ..)| *offset < found.end).cloned().collect();
            assert_same(&found.records, &kept);
        }
    }
}

#[test]
fn everything_is_deleted_and_offsets_are_not_given_again() {
    use Op::*;
    crash_everywhere(
        5,
        &[
            Append(5, 0),
            AdvanceStart(10),
            Housekeeping(9, 10),
            Restart,
            Append(2, 1),
            Reopen,
            AdvanceStart(14),
            Restart,
        ],
    );
}

#[test]
fn resets_to_both_sides() {
    use Op::*;
    crash_everywhere(
        6,
        &[
            Append(5, 0),
            Flush,
            AdvanceStart(3),
            Reset(40),
            Append(3, 1),
            Flush,
            Reset(7),
            Append(4, 2),
            Checkpoint,
            Truncate(7),
            Append(1, 3),
        ],
    );
}

#[test]
fn a_crash_in_the_middle_of_recovery() {
    use Op::*;
    let script = [Append(5, 0), Flush, Append(6, 1), Truncate(13), Append(4, 2)];
    let whole = disk(7);
    run(&whole, &script);
    for calls in (0..=whole.calls()).rev().step_by(3) {
        let fs = disk(7);
        fs.crash_after(calls);
        let run = run(&fs, &script);
        for (number, image) in fs.images(4, calls).into_iter().enumerate() {
            for recovery_calls in 0.. {
                // The same image each time: what a power cut leaves does not change by looking at it.
                let image = fs.images(4, calls).swap_remove(number);
                image.crash_after(recovery_calls);
                let opened = reopen(&image);
                if opened.is_ok() {
                    break;
                }
                for (again, image) in image.images(3, recovery_calls).into_iter().enumerate() {
                    let context =
                        || format!("call {calls}, image {number}, call {recovery_calls}, image {again}, {run:?}");
                    unwind(|| check_image(&run, &image, calls), context);
                }
            }
            drop(image);
        }
    }
}
