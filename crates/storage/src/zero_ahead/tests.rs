use std::path::Path;

use super::*;
use crate::data_dir::OpenHints;
use crate::error::Fence;
use crate::fs::{Call, Fault, Fs, OpenMode, SimFs};
use crate::housekeeping::{Step, WorkLimits};
use crate::{
    BatchBuilder, Codec, CutReason, LeaderEpoch, LogOptions, Offset, ReadLimit, Record, RecoveryReport, TimestampMs,
    batches,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);
const AHEAD: u32 = 3 << 20;

fn disk() -> SimFs {
    let fs = SimFs::new(3);
    fs.create_dir(Path::new("/log")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn open(fs: &SimFs) -> (Log, RecoveryReport) {
    let options = LogOptions { flush: FlushPolicy::EachAppend, zero_ahead_bytes: AHEAD, ..LogOptions::default() };
    Log::open_with(Arc::new(fs.clone()), Path::new("/log"), options, OpenHints::default()).unwrap()
}

#[test]
fn a_caller_that_syncs_by_itself_gets_zeros_when_it_says_so() {
    for (mode, expected) in [(ZeroAheadMode::ByPolicy, 0), (ZeroAheadMode::Always, u64::from(AHEAD))] {
        let fs = disk();
        let options =
            LogOptions { zero_ahead: mode, zero_ahead_bytes: AHEAD, flush: FlushPolicy::None, ..LogOptions::default() };
        let opened = Log::open_with(Arc::new(fs), Path::new("/log"), options, OpenHints::default());
        let (mut log, _) = opened.unwrap();
        append(&mut log, 1000);
        assert_eq!(fill(&mut log), expected, "{mode:?}");
    }
}

fn append(log: &mut Log, bytes: usize) {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(NOW, &vec![7; bytes]));
    log.append(NOW, LeaderEpoch(0), &builder.build()).unwrap();
}

fn fill(log: &mut Log) -> u64 {
    let limits = WorkLimits::new(log.end());
    let mut written = 0;
    while let Some(step) = log.housekeeping().step(NOW, &limits).unwrap() {
        let Step::ZerosWritten { bytes } = step else { panic!("{step:?}") };
        assert!(bytes <= STEP_BYTES);
        written += bytes;
    }
    written
}

/// The length of the active segment's file, all of which behind the batches must be zeros.
fn file_len(fs: &SimFs, log: &Log) -> u64 {
    let path = log.active.segment.path();
    let file = fs.open(&path, OpenMode::Read).unwrap();
    let len = file.metadata().unwrap().len;
    let mut rest = vec![1; (len - log.active.len) as usize];
    file.read_exact_at(&mut rest, log.active.len).unwrap();
    assert!(rest.iter().all(|byte| *byte == 0));
    len
}

fn check_records(log: &Log, count: i64) {
    let mut next = Offset(0);
    while next < log.end() {
        let fetched = log.read(next, ReadLimit::bytes(1 << 20)).unwrap();
        for batch in batches(&fetched.bytes) {
            batch.unwrap().verify_crc().unwrap();
        }
        next = fetched.next;
    }
    assert_eq!(next, Offset(count));
}

#[test]
fn zeros_are_kept_ahead_of_appends_and_a_clean_stop_takes_them_off() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    assert_eq!(fill(&mut log), 0, "a log that is not written to is left alone");
    append(&mut log, 1000);
    let first = log.active.len;
    assert_eq!(fill(&mut log), u64::from(AHEAD));
    assert_eq!(file_len(&fs, &log), first + u64::from(AHEAD));
    append(&mut log, 100_000);
    assert_eq!(fill(&mut log), 0, "too little for a step was used up");
    for _ in 0..20 {
        append(&mut log, 100_000);
    }
    assert_eq!(file_len(&fs, &log), first + u64::from(AHEAD), "no append made the file longer");
    let used = log.active.len - first;
    assert_eq!(fill(&mut log), used / STEP_BYTES * STEP_BYTES);
    check_records(&log, 22);
    let len = log.active.len;
    log.close().unwrap();
    for image in fs.images(8, 1) {
        let (log, report) = open(&image);
        assert!(report.clean && report.cut.is_none());
        assert_eq!((log.end(), file_len(&image, &log)), (Offset(22), len));
    }
}

#[test]
fn after_a_crash_the_zeros_are_the_end_and_nothing_is_lost() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fill(&mut log);
    for _ in 0..5 {
        append(&mut log, 50_000);
    }
    let job = log.zeros_due();
    assert!(job.is_none());
    let images = fs.images(8, 2).into_iter().chain([fs.kill()]);
    for image in images {
        let (mut log, report) = open(&image);
        assert!(!report.clean);
        assert!(matches!(report.cut.map(|cut| cut.reason), Some(CutReason::Zeros)));
        check_records(&log, 6);
        append(&mut log, 10);
        fill(&mut log);
        check_records(&log, 7);
    }
}

#[test]
fn zeros_never_fall_on_what_was_appended_meanwhile() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    let (job, before) = (log.zeros_due().unwrap(), log.active.len);
    append(&mut log, 500_000);
    assert_eq!(job.run().unwrap(), before + STEP_BYTES - log.active.len, "what the append left of it");
    check_records(&log, 2);
    let job = log.zeros_due().unwrap();
    for _ in 0..4 {
        append(&mut log, 900_000);
    }
    assert_eq!(job.run().unwrap(), 0, "the appends went past it");
    check_records(&log, 6);

    let job = log.zeros_due().unwrap();
    log.truncate_to(Offset(3)).unwrap();
    append(&mut log, 100);
    assert_eq!(job.run().unwrap(), 0, "of another time");
    assert_eq!(file_len(&fs, &log), log.active.len);

    let job = log.zeros_due().unwrap();
    let base = log.end();
    log.roll(base).unwrap();
    append(&mut log, 100);
    assert_eq!(job.run().unwrap(), 0, "that segment is full");
    check_records(&log, 5);

    let job = log.zeros_due().unwrap();
    drop(log);
    let (mut log, _) = open(&fs);
    append(&mut log, 200);
    assert_eq!(job.run().unwrap(), 0, "another log is in the directory");
    check_records(&log, 6);
}

#[test]
fn a_full_segment_keeps_no_zeros() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fill(&mut log);
    let (old, len, end) = (log.active.segment.path(), log.active.len, log.end());
    log.roll(end).unwrap();
    append(&mut log, 1000);
    assert_eq!(fs.metadata(&old).unwrap().len, len);
    for image in fs.images(8, 3) {
        assert_eq!(image.metadata(&old).unwrap().len, len, "durable once the records behind it are");
        check_records(&open(&image).0, 2);
    }
}

#[test]
fn zeros_that_could_not_be_taken_off_are_not_forgotten() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fill(&mut log);
    let (old, len, end) = (log.active.segment.path(), log.active.len, log.end());
    fs.inject_on(Fault::Eio, Call::SetLen, ".log", 1);
    assert!(log.roll(end).is_err());
    append(&mut log, 0);
    let (len_behind, end) = (log.active.len, log.end());
    assert!(len_behind > len);
    log.roll(end).unwrap();
    assert_eq!(fs.metadata(&old).unwrap().len, len_behind);
    let job = log.zeros_due();
    assert!(job.is_some_and(|job| job.run().unwrap() > 0), "and there are new ones");
}

#[test]
fn zeros_that_a_power_cut_brings_back_behind_a_full_segment_cost_no_record_of_the_next() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fill(&mut log);
    append(&mut log, 1000);
    let (old, len, end) = (log.active.segment.path(), log.active.len, log.end());
    log.roll(end).unwrap();
    let mut builder = BatchBuilder::new(Codec::None);
    let batch = builder.push(Record::new(NOW, b"in the next segment")).build();
    let rules = log.options.rules.clone();
    let batch = crate::CheckedBatch::check(&batch, &rules, NOW).unwrap();
    log.append_unsynced(NOW, LeaderEpoch(0), &batch).unwrap();
    let next = log.active.segment.path();
    let mut brought_back = 0;
    for image in fs.images(64, 5) {
        let has_next = image.metadata(&next).is_ok_and(|metadata| metadata.len == batch.size_bytes() as u64);
        let is_last = image.metadata(&next).is_err();
        let has_zeros = image.metadata(&old).unwrap().len > len;
        let (reader, read_only) = Log::open_read_only_with(
            Arc::new(image.clone()),
            Path::new("/log"),
            LogOptions::default(),
            OpenHints::default(),
        )
        .unwrap();
        let read_end = reader.end();
        let (mut log, report) = open(&image);
        assert_eq!((read_end, read_only.zero_tails), (log.end(), report.zero_tails));
        check_records(&log, log.end().0);
        assert!(log.end() >= Offset(2), "two were synced");
        let cuts_old = report.cut.as_ref().is_some_and(|cut| cut.file == old);
        assert!(!cuts_old || is_last, "nothing is missing there: {report:?}");
        if !has_next || !has_zeros || report.cut.is_some() {
            continue;
        }
        brought_back += 1;
        assert_eq!((log.end(), report.zero_tails), (Offset(3), 1));
        assert_eq!(image.metadata(&old).unwrap().len, len, "they go");
        append(&mut log, 10);
        // Also once the power fails right after that.
        for again in image.images(4, 6) {
            let (log, report) = open(&again);
            assert_eq!(report.zero_tails, 0);
            check_records(&log, 4);
        }
    }
    assert!(brought_back > 0, "no image had zeros in the middle");
}

#[test]
fn a_full_disk_takes_no_zeros_and_still_takes_appends() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fs.inject(Fault::Enospc, Call::Write, 3);
    let limits = WorkLimits::new(log.end());
    assert!(matches!(log.housekeeping().step(NOW, &limits), Err(FlushError::Io(_))));
    append(&mut log, 1000);
    check_records(&log, 2);
    fill(&mut log);
    check_records(&log, 2);
}

#[test]
fn a_sync_of_zeros_that_fails_closes_the_log() {
    let fs = disk();
    let (mut log, _) = open(&fs);
    append(&mut log, 1000);
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    let limits = WorkLimits::new(log.end());
    assert!(matches!(log.housekeeping().step(NOW, &limits), Err(FlushError::Closed(Fence::SyncFailed(_)))));
    assert!(log.fence().is_some());
    drop(log);
    assert!(open(&fs).1.rewritten, "batches may have been lost with them");
}
