//! What replication asks of the log after a truncation, a move, or a log that went on without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_storage::fs::Fs;
use highwater_storage::{
    AppendError, EpochEnd, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ReadError, ReadLimit, batches,
};

use crate::support::{NOW, T0, append, batch, contents, disk, file_bytes, filled, numbered, one_segment, open};
use crate::support::{open_hinted, path, small, stored, write_file};
use crate::{everything_is_found, files};

const LOG: &str = "00000000000000000000.log";

/// Emptied by a leader that begins further on: nothing the log says lies outside of it, at once and after a crash or a stop.
#[test]
fn r08_a_log_that_was_emptied_says_nothing_from_outside_of_it() {
    for to in [500, 3] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 20);
        log.checkpoint().unwrap();
        log.advance_start(Offset(5)).unwrap();
        log.reset_to(Offset(to)).unwrap();
        for how in ["at once", "after a crash", "after a stop"] {
            let all = (log.start(), log.end(), log.flushed(), log.recovery_point());
            assert_eq!(all, (Offset(to), Offset(to), Offset(to), Offset(to)), "{to}, {how}");
            assert_eq!(log.last_stable_offset(Offset(1000)), Offset(to), "{to}, {how}");
            assert!(log.epochs().iter().all(|(_, start)| *start <= Offset(to)), "{to}, {how}: {:?}", log.epochs());
            if how == "at once" {
                drop(log);
            } else {
                log.close().unwrap();
            }
            log = open(&fs, &small()).0;
        }
        assert_eq!(append(&mut log, &numbered(0, 10)), to);
    }
}

/// The high watermark at a segment's end, which is the log's end after a roll, while the log goes on.
#[test]
fn r10_a_consumer_at_a_segments_end_sees_nothing_from_the_high_watermark_on() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 20);
    let reader = log.reader();
    let high_watermark = log.segments()[2].base;
    let done = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop = done.clone();
        let appended = reader.clone();
        scope.spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let end = appended.end();
                for from in [high_watermark, high_watermark + 1, end] {
                    let fetched = appended.read(from, ReadLimit::bytes(1 << 20).below(high_watermark)).unwrap();
                    assert!(fetched.bytes.is_empty() && fetched.next == from, "{from}");
                }
                for from in [0, high_watermark.0 - 1] {
                    let limit = ReadLimit::bytes(1 << 20).below(high_watermark);
                    let fetched = appended.read(Offset(from), limit).unwrap();
                    let last = batches(&fetched.bytes).last().unwrap().unwrap().last_offset();
                    assert!(last < high_watermark && fetched.next <= high_watermark, "{last}");
                }
            }
        });
        for number in 20..400 {
            append(&mut log, &numbered(number, 90));
        }
        done.store(true, Ordering::SeqCst);
    });
    // The same where it is the end of the log, and the active segment is empty.
    let mut options = small();
    options.segment_ms = 1;
    log.set_options(options).unwrap();
    crate::support::keep_house(&mut log, highwater_storage::TimestampMs(NOW.0 + 1_000_000), Offset(0));
    let end = log.end();
    assert_eq!(log.segments().last().unwrap().base, end, "it rolled");
    for upper in [end, Offset::MAX] {
        let fetched = reader.read(end, ReadLimit::bytes(1000).below(upper)).unwrap();
        assert!(fetched.bytes.is_empty() && fetched.next == end);
    }
    assert!(matches!(reader.read(end + 1, ReadLimit::bytes(1000)), Err(ReadError::OutOfRange { .. })));
}

/// A follower that was ahead of its leader appended without a truncation: batches begin again below the end. A log takes no
/// such batch; where another program's has one, opening it neither fails nor serves an offset twice.
#[test]
fn r19_offsets_that_begin_again_are_refused_and_in_files_cut_or_passed_over() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    log.append_replicated(NOW, &[stored(0, 1, &[b"a"; 10]), stored(10, 1, &[b"a"; 10])].concat()).unwrap();
    for below in [0, 10, 15, 19] {
        let refused = log.append_replicated(NOW, &stored(below, 2, &[b"b"; 10]));
        assert!(matches!(refused, Err(AppendError::BelowEnd { .. })), "{below}: {refused:?}");
    }
    assert_eq!((log.end(), log.latest_epoch()), (Offset(20), LeaderEpoch(1)), "nothing of them was taken");

    let sound = [stored(0, 1, &[b"a"; 10]), stored(10, 1, &[b"a"; 10])].concat();
    let again = [stored(15, 2, &[b"b"; 10]), stored(25, 2, &[b"b"; 5])].concat();
    for clean in [false, true] {
        let fs = disk(1);
        write_file(&fs, LOG, &[sound.clone(), again.clone()].concat());
        let hints = OpenHints { clean: Some(clean), recovery_point: Some(Offset(0)), ..OpenHints::default() };
        let (mut log, report) = open_hinted(&fs, &one_segment(), hints);
        // Each offset once, whatever is served.
        let (mut from, mut seen) = (log.start(), Vec::new());
        while from < log.end() {
            match log.read(from, ReadLimit::bytes(1).verified()) {
                Ok(fetched) => {
                    for batch in batches(&fetched.bytes).map(Result::unwrap) {
                        seen.extend(batch.base_offset().0..batch.next_offset().0);
                    }
                    assert!(fetched.next > from, "clean: {clean}");
                    from = fetched.next;
                }
                Err(ReadError::Corrupt { offsets, .. }) => from = offsets.end,
                Err(error) => panic!("clean: {clean}: {error}"),
            }
        }
        assert!(seen.is_sorted_by(|one, next| one < next), "clean: {clean}: {seen:?}");
        assert_eq!(seen[..20], (0..20).collect::<Vec<_>>(), "clean: {clean}");
        if !clean {
            let cut = report.cut.as_ref().unwrap();
            assert_eq!((cut.at, log.end()), (sound.len() as u64, Offset(20)));
        }
        let next = log.append(NOW, LeaderEpoch(3), &batch(T0, &[b"goes on"])).unwrap().first;
        assert!(next >= Offset(20), "clean: {clean}: {next}");
        drop(log);
        let (log, again) = open(&fs, &one_segment());
        assert!(again.cut.is_none() && log.end() == next + 1, "clean: {clean}: {again:?}");
    }
}

/// A partition moved to another directory without its file of epochs: they are taken from the batches, so that the new
/// leader can tell its followers where they part.
#[test]
fn r21_a_log_copied_without_its_epochs_knows_them() {
    let from = disk(1);
    let (mut log, _) = open(&from, &small());
    for (epoch, numbers) in [(0, 0..7), (2, 7..15), (5, 15..20)] {
        for number in numbers {
            log.append(NOW, LeaderEpoch(epoch), &numbered(number, 90)).unwrap();
        }
    }
    let (all, epochs) = (contents(&log.reader()), log.epochs().to_vec());
    for clean in [true, false] {
        if clean {
            log.checkpoint().unwrap();
            log = close_and_open(log, &from);
        }
        let to = disk(2);
        for name in crate::support::names(&from).iter().filter(|name| !name.contains("epoch")) {
            write_file(&to, name, &file_bytes(&from, name));
        }
        let (copy, report) = open(&to, &small());
        assert!(report.epochs_rebuilt && report.cut.is_none(), "{report:?}");
        assert_eq!(copy.epochs(), epochs);
        let ends = [(0, 0, 7), (1, 0, 7), (2, 2, 15), (5, 5, 20)];
        for (asked, epoch, end) in ends {
            let expected = EpochEnd { epoch: LeaderEpoch(epoch), end: Offset(end) };
            assert_eq!(copy.end_of_epoch(LeaderEpoch(asked)), expected, "{asked}");
        }
        everything_is_found(&copy, &all);
        assert!(to.metadata(&path("leader-epoch-checkpoint")).is_ok(), "it is written: {:?}", files(&to, "checkpoint"));
    }
}

fn close_and_open(log: Log, fs: &highwater_storage::fs::SimFs) -> Log {
    log.close().unwrap();
    open(fs, &LogOptions::default()).0
}
