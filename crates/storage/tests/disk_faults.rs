//! The log on disks that are full or fail, and the syncs and jobs that run beside appends.
//! The numbers S.. and R.. are those of the faults that other logs had.

mod support;

use highwater_storage::fs::{Call, Fault};
use highwater_storage::*;
use support::*;

#[test]
fn s25_a_failed_write_leaves_the_log_as_it_was() {
    for nth in 1..=6 {
        for fault in [Fault::Enospc, Fault::Eio, Fault::ShortWrite] {
            let fs = disk(nth);
            let mut log = filled(&fs, &small(), 7);
            let before = contents(&log.reader());
            fs.inject(fault, Call::Write, nth);
            let mut failed = 0;
            for number in 7..15 {
                match log.append(NOW, LeaderEpoch(0), &numbered(number, 90)) {
                    Ok(_) => {}
                    Err(AppendError::Io(_) | AppendError::Closed(_)) => failed += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert_eq!(fs.faults_hit(), 1);
            match fault {
                Fault::ShortWrite => assert_eq!((failed, log.end()), (0, Offset(15))),
                Fault::Enospc => assert_eq!((failed, log.end()), (1, Offset(14)), "there is room again"),
                _ => {
                    assert!(failed > 1, "a device that fails writes is not written to again");
                    assert!(matches!(log.read(Offset(0), ReadLimit::bytes(1)), Err(ReadError::Closed(_))));
                }
            }
            drop(log);
            let (log, report) = open(&fs, &small());
            assert!(report.cut.is_none(), "{report:?}");
            let found = contents(&log.reader());
            assert_eq!(found[..7], before);
            assert!(found.iter().enumerate().all(|(at, (offset, _))| *offset == i64::try_from(at).unwrap()));
        }
    }
}

#[test]
fn a_full_disk_refuses_appends_and_is_read_until_there_is_room() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 10);
    log.checkpoint().unwrap();
    let before = contents(&log.reader());
    fs.set_capacity(0);
    for _ in 0..3 {
        match log.append(NOW, LeaderEpoch(0), &numbered(10, 500)) {
            Err(AppendError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull),
            other => panic!("{other:?}"),
        }
        assert_eq!(log.end(), Offset(10));
        assert_eq!(contents(&log.reader()), before);
    }
    drop(log);
    // Opening works too, after a clean stop and after a crash.
    let (mut log, _) = open(&fs, &small());
    assert_eq!(contents(&log.reader()), before);
    fs.set_capacity(1 << 30);
    assert_eq!(append(&mut log, &numbered(10, 500)), 10);
    assert_eq!(contents(&log.reader()).len(), 11);
}

#[test]
fn a_full_disk_does_not_keep_a_follower_from_cutting() {
    for close in [false, true] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 20);
        for number in 20..30 {
            log.append(NOW, LeaderEpoch(3), &numbered(number, 90)).unwrap();
        }
        log.checkpoint().unwrap();
        fs.set_capacity(0);
        assert_eq!(log.truncate_to(Offset(15)).unwrap().end, Offset(15));
        assert_eq!((log.fence(), log.epochs()), (None, &[(LeaderEpoch(0), Offset(0))][..]));
        assert_eq!(contents(&log.reader()).len(), 15);
        fs.set_capacity(1 << 30);
        log.append_replicated(NOW, &stored(15, 4, &[b"another"])).unwrap();
        if close {
            log.close().unwrap();
        } else {
            drop(log);
        }
        let (log, _) = open(&fs, &small());
        assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(4), Offset(15))]);
        assert_eq!((log.end(), contents(&log.reader()).len()), (Offset(16), 16));
    }
}

/// On a full disk above all: what fails for want of room must not keep back what makes some.
#[test]
fn work_that_always_fails_keeps_no_other_work_back() {
    let later = TimestampMs(T0 + 10_000_000);
    let table = [
        ("roll", Fault::Enospc, Call::Create, ".log"),
        ("unlink", Fault::Eio, Call::Remove, ".deleted"),
        ("checkpoint", Fault::Enospc, Call::Create, ".index"),
        ("read of an age", Fault::Eio, Call::Open, ".timeindex"),
    ];
    for (what, fault, call, part) in table {
        let fs = disk(1);
        filled(&fs, &small(), 30).close().unwrap();
        // Segments from before the close stay, whose ages are not known.
        let retention_bytes = if what == "read of an age" { 4500 } else { 2500 };
        let options =
            LogOptions { segment_ms: 1000, retention_bytes, file_delete_delay_ms: 0, retention_ms: -1, ..small() };
        let mut log = open(&fs, &options).0;
        for number in 30..40 {
            log.append(NOW, LeaderEpoch(0), &numbered(number, 90)).unwrap();
        }
        if what == "read of an age" {
            log.set_options(LogOptions { retention_ms: 1 << 40, ..options }).unwrap();
        }
        fs.inject_lasting(fault, call, part, 1);
        let limits = WorkLimits::new(Offset(40));
        let (mut done, mut failed) = (Vec::new(), 0);
        for _ in 0..60 {
            match log.housekeeping().step(later, &limits) {
                Ok(step) => done.extend(step),
                Err(FlushError::Io(_)) => failed += 1,
                Err(error) => panic!("{what}: {error}"),
            }
        }
        assert!(failed > 1, "{what}: it is tried again and again");
        assert!(
            log.size_bytes() <= u64::try_from(retention_bytes).unwrap() + 1000,
            "{what}: {} bytes",
            log.size_bytes()
        );
        let did = |wanted: fn(&Step) -> bool| done.iter().any(wanted);
        assert!(did(|step| matches!(step, Step::SegmentsRetired { .. })), "{what}: {done:?}");
        assert!(what == "unlink" || did(|step| matches!(step, Step::FilesRemoved)), "{what}: {done:?}");
        assert!(what == "roll" || did(|step| matches!(step, Step::Rolled { .. })), "{what}: {done:?}");
        assert!(what == "checkpoint" || log.recovery_point() > Offset(30), "{what}: {}", log.recovery_point());
    }
}

/// R15: the leader's log starts inside of the first batch.
#[test]
fn a_batch_around_the_start_that_cannot_be_written_leaves_an_empty_log() {
    let fs = disk(1);
    let hints = OpenHints { log_start: Some(Offset(5)), ..OpenHints::default() };
    let (mut log, _) = open_hinted(&fs, &small(), hints);
    let bytes = stored(0, 1, &[[7; 20]; 10]);
    for _ in 0..2 {
        fs.inject_on(Fault::Enospc, Call::Write, ".log", 1);
        assert!(matches!(log.append_replicated(NOW, &bytes), Err(AppendError::Io(_))));
        assert_eq!((log.start(), log.end()), (Offset(5), Offset(5)));
    }
    assert_eq!(fs.faults_hit(), 2);
    log.append_replicated(NOW, &bytes).unwrap();
    assert_eq!((log.start(), log.end(), contents(&log.reader()).len()), (Offset(5), Offset(10), 5));
    drop(log);
    let (log, _) = open(&fs, &small());
    assert_eq!((log.start(), log.end(), contents(&log.reader()).len()), (Offset(5), Offset(10), 5));
}

/// The epochs of batches that could not be written are known already when they come again one by one.
#[test]
fn an_epoch_keeps_its_start_when_a_later_one_could_not_be_written() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 5);
    log.append_replicated(NOW, &stored(5, 4, &[b"of epoch 4"])).unwrap();
    fs.inject_on(Fault::Enospc, Call::Write, ".log", 1);
    let both = [stored(6, 4, &[b"of epoch 4"]), stored(7, 6, &[b"of epoch 6"])];
    assert!(matches!(log.append_replicated(NOW, &both.concat()), Err(AppendError::Io(_))));
    assert_eq!((fs.faults_hit(), log.end()), (1, Offset(6)));
    let epochs = [(0, 0), (4, 5), (6, 7)].map(|(epoch, start)| (LeaderEpoch(epoch), Offset(start)));
    for (batch, known) in both.iter().zip([2, 3]) {
        log.append_replicated(NOW, batch).unwrap();
        assert_eq!(log.epochs(), &epochs[..known]);
    }
    log.checkpoint().unwrap();
    drop(log);
    let (log, report) = open(&fs, &small());
    assert_eq!((log.epochs(), &report.repaired[..]), (&epochs[..], &[][..]), "the batches were held against them");
}

#[test]
fn a_write_that_cannot_be_taken_back_closes_the_log() {
    let fs = disk(1);
    let mut log = filled(&fs, &one_segment(), 3);
    fs.inject(Fault::Enospc, Call::Write, 1);
    fs.inject(Fault::Eio, Call::SetLen, 1);
    assert!(matches!(log.append(NOW, LeaderEpoch(0), &numbered(3, 90)), Err(AppendError::Closed(Fence::HalfDone(_)))));
    assert!(matches!(log.append(NOW, LeaderEpoch(0), &numbered(3, 90)), Err(AppendError::Closed(_))));
    assert!(matches!(log.flush(), Err(FlushError::Closed(_))));
    assert!(matches!(log.truncate_to(Offset(1)), Err(TruncateError::Closed(_))));
    assert!(log.begin_flush().is_none() && log.begin_work(NOW, &WorkLimits::new(Offset(0))).is_none());
    drop(log);
    assert_eq!(open(&fs, &one_segment()).0.end(), Offset(3));
}

#[test]
fn a_failed_sync_closes_the_log_whoever_sees_it() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 3);
    let reader = log.reader();
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    let job = log.begin_flush().unwrap();
    drop(job.run());
    assert!(matches!(
        log.append(NOW, LeaderEpoch(0), &numbered(3, 90)),
        Err(AppendError::Closed(Fence::SyncFailed(_)))
    ));
    assert!(matches!(reader.read(Offset(0), ReadLimit::bytes(1)), Err(ReadError::Closed(_))));
    assert!(matches!(log.close(), Err(FlushError::Closed(_))));
    assert!(!open(&fs, &small()).1.clean);
}

#[test]
fn a_failed_sync_of_the_state_or_the_directory_closes_the_log_too() {
    for (call, part) in [(Call::SyncData, "highwater-state"), (Call::SyncDir, "books-0")] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 10);
        fs.inject_on(Fault::SyncFails, call, part, 1);
        assert!(log.truncate_to(Offset(4)).is_err(), "{part}");
        assert_eq!(fs.faults_hit(), 1, "{part}");
        assert!(matches!(log.truncate_to(Offset(4)), Err(TruncateError::Closed(_))), "{part}");
    }
}

#[test]
fn a_side_file_that_cannot_be_written_holds_the_recovery_point_and_nothing_else() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 30);
    fs.inject_on(Fault::Enospc, Call::Write, ".index", 1);
    assert!(matches!(log.checkpoint(), Err(FlushError::Io(_))));
    assert_eq!((log.flushed(), log.recovery_point()), (Offset(30), Offset(0)));
    append(&mut log, &numbered(30, 90));
    assert_eq!(log.checkpoint().unwrap(), Offset(31));
    assert_eq!(log.recovery_point(), Offset(31));
}

#[test]
fn policies_sync_when_they_say() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &LogOptions { flush: FlushPolicy::EachAppend, ..small() });
    for number in 0..10 {
        let appended = log.append(NOW, LeaderEpoch(0), &numbered(number, 90)).unwrap();
        assert_eq!((appended.durability, log.flushed()), (Durability::Synced, log.end()));
    }
    log.set_options(LogOptions { flush: FlushPolicy::EveryMessages(3), ..small() }).unwrap();
    let marks: Vec<i64> = (10..16)
        .map(|number| {
            let appended = log.append(NOW, LeaderEpoch(0), &numbered(number, 90)).unwrap();
            assert_eq!(appended.durability == Durability::Synced, log.flushed() == log.end());
            log.flushed().0
        })
        .collect();
    assert_eq!(marks, [10, 10, 13, 13, 13, 16]);
}

#[test]
fn a_flush_under_way_counts_for_what_it_synced_and_no_more() {
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 10);
    let job = log.begin_flush().unwrap();
    assert_eq!(job.upto(), Offset(10));
    assert!(log.begin_flush().is_none(), "one at a time");
    append(&mut log, &numbered(10, 90));
    let done = job.run();
    append(&mut log, &numbered(11, 90));
    assert_eq!(log.finish_flush(done).unwrap(), Offset(10));
    assert_eq!((log.flushed(), log.end()), (Offset(10), Offset(12)));

    // Cut below, and other batches in its place: what was synced is not what is there.
    let job = log.begin_checkpoint().unwrap();
    log.truncate_to(Offset(4)).unwrap();
    for number in 0..8 {
        log.append(NOW, LeaderEpoch(1), &numbered(100 + number, 90)).unwrap();
    }
    assert_eq!(log.finish_flush(job.run()).unwrap(), Offset(4));
    assert_eq!((log.flushed(), log.recovery_point(), log.end()), (Offset(4), Offset(0), Offset(12)));
    // A job that is dropped changes nothing and stands in nobody's way.
    drop(log.begin_flush().unwrap());
    assert_eq!(log.flush().unwrap(), Offset(12));
    assert!(log.begin_flush().is_none(), "all is flushed");
    assert!(log.begin_checkpoint().is_some());
    assert_eq!(contents(&log.reader()).len(), 12);
    let before = contents(&log.reader());
    log.close().unwrap();
    let (log, report) = open(&fs, &small());
    assert!(report.clean && report.indexes_rebuilt == 0);
    assert_eq!(contents(&log.reader()), before);
}

#[test]
fn a_checkpoint_under_way_writes_nothing_for_segments_that_were_cut_or_went() {
    let fs = disk(1);
    let mut log = filled(&fs, &LogOptions { retention_bytes: 0, ..small() }, 30);
    let base = bases(&log)[1];
    let job = log.begin_checkpoint().unwrap();
    log.truncate_to(Offset(base + 1)).unwrap();
    log.finish_flush(job.run()).unwrap();
    let index = format!("{base:020}.index");
    assert!(!names(&fs).contains(&index), "an index of batches that are gone");
    assert!(
        names(&fs).iter().all(|name| !name.ends_with(".snapshot") || *name <= format!("{:020}.snapshot", base + 1))
    );

    for number in 0..20 {
        append(&mut log, &numbered(number, 90));
    }
    let job = log.begin_checkpoint().unwrap();
    keep_house(&mut log, NOW, Offset::MAX);
    let _ = log.finish_flush(job.run()).unwrap();
    for name in names(&fs).iter().filter(|name| name.ends_with("index")) {
        assert!(names(&fs).contains(&format!("{}.log", &name[..20])), "{name} belongs to no segment");
    }
}

#[test]
fn leader_epochs_reach_their_file_although_a_checkpoint_met_a_cut() {
    let expected = [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(1), Offset(10))];
    for close in [true, false] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 10);
        log.checkpoint().unwrap();
        for number in 10..20 {
            log.append(NOW, LeaderEpoch(1), &numbered(number, 90)).unwrap();
        }
        // The cut leaves all epochs, so that it has none to write.
        let job = log.begin_checkpoint().unwrap();
        assert_eq!(log.truncate_to(Offset(18)).unwrap().end, Offset(18));
        log.finish_flush(job.run()).unwrap();
        if close {
            log.close().unwrap();
        } else {
            drop(log);
        }
        let (log, report) = open(&fs, &small());
        assert_eq!(report.clean, close);
        assert_eq!(log.epochs(), expected, "closed: {close}");
    }
}

#[test]
fn a_job_that_outlives_its_log_writes_no_side_files() {
    for close in [true, false] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 10);
        log.assign_epoch(LeaderEpoch(1), Offset(10)).unwrap();
        let job = log.begin_checkpoint().unwrap();
        log.append(NOW, LeaderEpoch(2), &numbered(10, 90)).unwrap();
        if close {
            log.close().unwrap();
        } else {
            drop(log);
        }
        let before: Vec<_> = names(&fs).into_iter().map(|name| (file_bytes(&fs, &name), name)).collect();
        let _ = job.run();
        let after: Vec<_> = names(&fs).into_iter().map(|name| (file_bytes(&fs, &name), name)).collect();
        assert!(before == after, "closed: {close}");
    }
}
