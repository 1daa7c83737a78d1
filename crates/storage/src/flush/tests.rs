use std::path::Path;

use super::*;
use crate::batch::BatchView;
use crate::data_dir::OpenHints;
use crate::fs::{Call, Fault, Fs, SimFs};
use crate::{BatchBuilder, Codec, LogOptions, OpenFiles, Record, TimestampMs};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn batch() -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(NOW, &[7; 100])).push(Record::new(NOW, b"x"));
    builder.build()
}

fn open(fs: &SimFs) -> Log {
    let options = LogOptions { segment_bytes: batch().len() as u32 * 4, ..LogOptions::default() };
    Log::open_with(Arc::new(fs.clone()), Path::new("/log"), options, OpenHints::default()).unwrap().0
}

fn disk() -> SimFs {
    let fs = SimFs::new(1);
    fs.create_dir(Path::new("/log")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn append(log: &mut Log, batches: usize) {
    for _ in 0..batches {
        log.append(NOW, LeaderEpoch(3), &batch()).unwrap();
    }
}

/// The mark in the file, with the batch it names held against the segment.
fn mark(fs: &SimFs) -> Option<FlushMark> {
    let place = Place {
        fs: Arc::new(fs.clone()),
        dir: Path::new("/log").into(),
        open_files: OpenFiles::default(),
        index_interval_bytes: 4096,
        read_only: false,
        rebuilt: Default::default(),
    };
    let mark = StateFile::load(&place).unwrap().last()?.mark?;
    let segment = Segment::new(place, mark.segment_base, mark.position);
    if mark.batch_position == mark.position {
        assert_eq!(mark.header, [0; crate::HEADER_BYTES]);
        return Some(mark);
    }
    let mut bytes = vec![0; (mark.position - mark.batch_position) as usize];
    segment.read(&mut bytes, mark.batch_position).unwrap();
    let (found, total) = BatchView::parse(&bytes).unwrap();
    assert_eq!((total, found.next_offset()), (bytes.len(), mark.offset));
    assert_eq!(bytes[..crate::HEADER_BYTES], mark.header);
    found.verify_crc().unwrap();
    Some(mark)
}

fn state(fs: &SimFs) -> crate::state_file::LogState {
    let place = Place {
        fs: Arc::new(fs.clone()),
        dir: Path::new("/log").into(),
        open_files: OpenFiles::default(),
        index_interval_bytes: 4096,
        read_only: false,
        rebuilt: Default::default(),
    };
    StateFile::load(&place).unwrap().last().unwrap()
}

fn at(mark: Option<FlushMark>) -> Option<(i64, u64, i64)> {
    mark.map(|mark| (mark.segment_base.0, mark.position / batch().len() as u64, mark.offset.0))
}

#[test]
fn each_flush_leaves_a_mark_at_what_it_synced() {
    let fs = disk();
    let mut log = open(&fs);
    assert_eq!(mark(&fs), None);
    append(&mut log, 2);
    assert_eq!(at(mark(&fs)), Some((0, 0, 0)), "nothing is synced, and an append does not touch the mark");
    log.flush().unwrap();
    assert_eq!(at(mark(&fs)), Some((0, 2, 4)));
    append(&mut log, 1);
    let job = log.begin_flush().unwrap();
    append(&mut log, 3);
    let done = job.run();
    assert_eq!(at(mark(&fs)), Some((0, 3, 6)), "what was appended after it began does not count");
    log.finish_flush(done).unwrap();
    log.flush().unwrap();
    assert_eq!(at(mark(&fs)), Some((8, 2, 12)));
    append(&mut log, 3);
    log.checkpoint().unwrap();
    assert_eq!(at(mark(&fs)), Some((16, 1, 18)));
    append(&mut log, 1);
    log.close().unwrap();
    assert_eq!(at(mark(&fs)), Some((16, 2, 20)));
    drop(open(&fs));
    assert_eq!(at(mark(&fs)), Some((16, 2, 20)));
}

#[test]
fn a_truncation_lowers_the_mark_before_it_touches_a_file() {
    let fs = disk();
    let mut log = open(&fs);
    append(&mut log, 7);
    log.flush().unwrap();
    append(&mut log, 2);
    log.truncate_to(Offset(16)).unwrap();
    assert_eq!(at(mark(&fs)), Some((8, 3, 14)), "above the mark it stays");
    append(&mut log, 3);
    let job = log.begin_flush().unwrap();
    log.truncate_to(Offset(5)).unwrap();
    let done = job.run();
    assert_eq!(at(mark(&fs)), Some((0, 2, 4)), "a sync that ends later does not raise it again");
    assert_eq!(log.finish_flush(done).unwrap(), Offset(4));
    log.advance_start(Offset(3)).unwrap();
    assert_eq!(at(mark(&fs)), Some((0, 2, 4)));
    log.reset_to(Offset(100)).unwrap();
    assert_eq!(at(mark(&fs)), Some((100, 0, 100)));
}

#[test]
fn in_every_image_of_a_crash_all_below_the_mark_is_there() {
    let run = |fs: &SimFs| -> Result<(), FlushError> {
        let options = LogOptions { segment_bytes: batch().len() as u32 * 4, ..LogOptions::default() };
        let opened = Log::open_with(Arc::new(fs.clone()), Path::new("/log"), options, OpenHints::default());
        let Ok((mut log, _)) = opened else { return Ok(()) };
        for round in 0..3 {
            for _ in 0..3 {
                if log.append(NOW, LeaderEpoch(3), &batch()).is_err() {
                    return Ok(());
                }
            }
            log.flush()?;
            if round == 1 && log.truncate_to(Offset(9)).is_err() {
                return Ok(());
            }
            let _ = log.append(NOW, LeaderEpoch(3), &batch());
        }
        Ok(())
    };
    let whole = disk();
    run(&whole).unwrap();
    for calls in 0..whole.calls() {
        let fs = disk();
        fs.crash_after(calls);
        let _ = run(&fs);
        for image in fs.images(8, calls) {
            // Holds the batch at the mark against the file.
            mark(&image);
        }
    }
}

#[test]
fn a_failed_sync_is_noted_in_the_file() {
    let fs = disk();
    let mut log = open(&fs);
    append(&mut log, 1);
    log.flush().unwrap();
    append(&mut log, 1);
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    assert!(matches!(log.flush(), Err(FlushError::Closed(Fence::SyncFailed(_)))));
    drop(log);
    let known = state(&fs);
    assert!(known.sync_failed);
    assert_eq!(known.mark.map(|mark| mark.offset), Some(Offset(2)));
}

#[test]
fn a_sync_beside_one_that_failed_counts_for_nothing() {
    let fs = disk();
    let mut log = open(&fs);
    append(&mut log, 1);
    log.flush().unwrap();
    append(&mut log, 1);
    let (one, other) = (log.flush_job().unwrap(), log.flush_job().unwrap());
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    let one = one.run();
    // The operating system would let this one succeed.
    let other = other.run();
    assert_eq!(fs.faults_hit(), 1);
    assert!(matches!(log.finish_flush(other), Err(FlushError::Closed(Fence::SyncFailed(_)))));
    assert!(matches!(log.finish_flush(one), Err(FlushError::Closed(Fence::SyncFailed(_)))));
    drop(log);
    let known = state(&fs);
    assert!(known.sync_failed);
    assert_eq!(known.mark.map(|mark| mark.offset), Some(Offset(2)));
}

#[test]
fn a_sync_that_fails_in_a_truncation_is_noted_in_the_file() {
    let fs = disk();
    let mut log = open(&fs);
    append(&mut log, 3);
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    assert!(log.truncate_to(Offset(4)).is_err());
    assert!(matches!(log.fence(), Some(Fence::SyncFailed(_))));
    drop(log);
    assert!(state(&fs).sync_failed, "the batches before the cut were not synced either");
}

#[test]
fn a_sync_that_fails_when_the_log_is_opened_is_noted_in_the_file() {
    let fs = disk();
    let mut log = open(&fs);
    append(&mut log, 2);
    drop(log);
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    let open = || Log::open_with(Arc::new(fs.clone()), Path::new("/log"), LogOptions::default(), OpenHints::default());
    assert!(open().is_err());
    assert!(state(&fs).sync_failed);
    let (log, report) = open().unwrap();
    assert!(report.rewritten);
    assert_eq!((log.end(), state(&fs).sync_failed), (Offset(4), false));
}

#[test]
fn syncs_that_are_done_leave_nothing_in_memory() {
    let fs = disk();
    let mut log = open(&fs);
    for _ in 0..50 {
        append(&mut log, 1);
        log.flush().unwrap();
    }
    assert!(log.jobs.len() <= 1, "{}", log.jobs.len());
}
