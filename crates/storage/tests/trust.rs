//! What is known to be synced, by whom, and what opening makes of files that say something else. The numbers S.. are those
//! of the faults that other logs had.

mod support;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault as DiskFault, Fs, OpenMode, SimFs};
use highwater_storage::inspect::{Fault, FaultKind, Severity, VerifyEvent, verify_partition};
use highwater_storage::io::FileExt;
use highwater_storage::repair::{RepairLock, RepairPlan};
use highwater_storage::*;
use support::*;

const LOG: &str = "00000000000000000000.log";

fn one_segment() -> LogOptions {
    LogOptions { segment_bytes: 1 << 20, index_interval_bytes: 300, ..LogOptions::default() }
}

fn logs(fs: &SimFs) -> Vec<String> {
    names(fs).into_iter().filter(|name| name.ends_with(".log")).collect()
}

fn base(name: &str) -> i64 {
    name[..20].parse().unwrap()
}

/// Bytes of a batch by [`numbered`] with 90.
fn batch_bytes() -> usize {
    numbered(0, 90).len()
}

fn offsets(range: Range<i64>) -> Range<Offset> {
    Offset(range.start)..Offset(range.end)
}

/// What verifying the directory finds in the state file.
fn faults_of_state(fs: &SimFs) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut tell = |event| {
        if let VerifyEvent::Found(fault) = event {
            faults.push(fault);
        }
    };
    verify_partition(fs, Path::new(DIR), &mut tell).unwrap();
    faults.retain(|fault| fault.file == path("highwater-state"));
    faults
}

#[test]
fn synced_records_at_the_end_that_are_gone_are_told() {
    type Damage = fn(&SimFs);
    let last_file_goes: Damage = |fs| fs.remove_file(&path(logs(fs).last().unwrap())).unwrap();
    let last_batch_goes: Damage =
        |fs| fs.corrupt(&path(logs(fs).last().unwrap()), |bytes| bytes.truncate(bytes.len() - batch_bytes())).unwrap();
    let last_batch_is_torn: Damage =
        |fs| fs.corrupt(&path(logs(fs).last().unwrap()), |bytes| bytes.truncate(bytes.len() - 9)).unwrap();
    for closed in [false, true] {
        for (number, damage) in [last_file_goes, last_batch_goes, last_batch_is_torn].into_iter().enumerate() {
            let fs = disk(1);
            let mut log = filled(&fs, &small(), 20);
            log.flush().unwrap();
            if closed {
                log.close().unwrap();
            } else {
                drop(log);
            }
            let end = if number == 0 { base(logs(&fs).last().unwrap()) } else { 19 };
            damage(&fs);
            fs.sync_everything();
            let place = format!("closed {closed}, damage {number}");
            let found = faults_of_state(&fs);
            assert_eq!(found.len(), 1, "{place}: {found:?}");
            let expected = (FaultKind::RecordsMissing, Some(offsets(end..20)), Severity::Loss);
            assert_eq!((found[0].kind, found[0].offsets.clone(), found[0].severity()), expected, "{place}");
            let (mut log, report) = open(&fs, &small());
            assert!(report.foreign_mark && !report.clean, "{place}: {report:?}");
            assert_eq!((&report.missing[..], log.end()), (&[offsets(end..20)][..], Offset(end)), "{place}");
            assert_eq!(append(&mut log, &numbered(20, 90)), end, "{place}");
            drop(log);
            let (_, report) = open(&fs, &small());
            assert!(report.missing.is_empty(), "{place}: it is told once: {report:?}");
        }
    }
}

#[test]
fn synced_records_in_the_middle_and_at_the_start_that_are_gone_are_told() {
    for at in [0, 2] {
        let fs = disk(1);
        let mut log = filled(&fs, &small(), 20);
        log.flush().unwrap();
        drop(log);
        let files = logs(&fs);
        let missing = base(&files[at])..base(&files[at + 1]);
        fs.remove_file(&path(&files[at])).unwrap();
        let (log, report) = open(&fs, &small());
        assert_eq!((report.missing, report.cut, log.end()), (vec![offsets(missing.clone())], None, Offset(20)));
        let found: Vec<_> = contents(&log.reader()).into_iter().map(|(offset, _)| offset).collect();
        assert_eq!(found, (0..20).filter(|offset| !missing.contains(offset)).collect::<Vec<_>>());
    }
    // After a close nobody looks between the segments, but at the first.
    let fs = disk(1);
    filled(&fs, &small(), 20).close().unwrap();
    let files = logs(&fs);
    fs.remove_file(&path(&files[0])).unwrap();
    let (_, report) = open(&fs, &small());
    assert!(report.clean && report.missing == [offsets(0..base(&files[1]))], "{report:?}");
}

#[test]
fn nothing_is_missing_where_records_were_cut_removed_or_have_rotted() {
    // Cut, and its start moved.
    let fs = disk(1);
    let mut log = filled(&fs, &small(), 20);
    log.flush().unwrap();
    log.truncate_to(Offset(15)).unwrap();
    log.advance_start(Offset(8)).unwrap();
    keep_house(&mut log, NOW, Offset(15));
    drop(log);
    assert_eq!(faults_of_state(&fs), []);
    let (log, report) = open(&fs, &small());
    assert_eq!((report.missing, log.end()), (vec![], Offset(15)));
    drop(log);
    // Emptied.
    let (mut log, _) = open(&fs, &small());
    log.reset_to(Offset(40)).unwrap();
    drop(log);
    let (log, report) = open(&fs, &small());
    assert_eq!((report.missing, log.end()), (vec![], Offset(40)));
    drop(log);
    // Rotten at the end: damage, which is told as that.
    let fs = disk(1);
    let mut log = filled(&fs, &one_segment(), 6);
    log.flush().unwrap();
    drop(log);
    let size = batch_bytes();
    fs.corrupt(&path(LOG), |bytes| bytes[5 * size + 8..5 * size + 70].fill(0)).unwrap();
    assert_eq!(faults_of_state(&fs), []);
    let (log, report) = open(&fs, &one_segment());
    assert_eq!((report.missing, report.rotten.len(), log.end()), (vec![], 1, Offset(6)));
}

/// Another program cut the log, as a follower may have to, and closed the root.
#[test]
fn what_another_program_took_away_is_not_missing() {
    for closed in [false, true] {
        let fs = disk(1);
        let mut log = filled(&fs, &one_segment(), 20);
        log.flush().unwrap();
        if closed {
            log.close().unwrap();
        } else {
            drop(log);
        }
        fs.corrupt(&path(LOG), |bytes| bytes.truncate(15 * batch_bytes())).unwrap();
        let hints = |end| OpenHints { clean: Some(true), recovery_point: Some(Offset(end)), ..OpenHints::default() };
        let (_, report) = open_hinted(&fs.process_crash_image(), &one_segment(), hints(20));
        assert_eq!(report.missing, [offsets(15..20)], "the root says that there were more");
        let (_, report) = open_hinted(&fs.process_crash_image(), &one_segment(), hints(15));
        assert_eq!((report.missing, report.end, report.foreign_mark), (vec![], Offset(15), true));

        let root = Path::new(DIR).parent().unwrap();
        for (name, content) in [
            ("meta.properties", "version=1\nnode.id=1\n"),
            (".kafka_cleanshutdown", "{\"version\":0,\"brokerEpoch\":1}"),
            ("recovery-point-offset-checkpoint", "0\n1\nbooks 0 15\n"),
        ] {
            let file = fs.open(&root.join(name), OpenMode::Truncate).unwrap();
            file.write_all_at(content.as_bytes(), 0).unwrap();
        }
        let kinds: Vec<_> = faults_of_state(&fs).iter().map(|fault| (fault.kind, fault.severity())).collect();
        assert_eq!(kinds, [(FaultKind::StateForeign, Severity::Note)], "closed {closed}");
    }
}

/// A log of one producer and two epochs, closed: a batch for each offset, the second epoch from 10 on.
fn closed_by_a_producer(fs: &SimFs) -> Vec<(i64, Vec<u8>)> {
    let (mut log, _) = open(fs, &small());
    for sequence in 0..20 {
        let mut builder = BatchBuilder::new(Codec::None).producer(9, 0, sequence);
        builder.push(Record::new(TimestampMs(T0 + i64::from(sequence)), &[7; 90]));
        log.append(NOW, LeaderEpoch(sequence / 10), &builder.build()).unwrap();
    }
    let all = contents(&log.reader());
    log.close().unwrap();
    all
}

#[test]
fn s07_a_clean_mark_about_another_end_is_not_believed() {
    type Damage = fn(&SimFs);
    const SIZE: usize = 160;
    let last = {
        let fs = disk(1);
        closed_by_a_producer(&fs);
        assert_eq!(file_bytes(&fs, LOG).len(), SIZE * usize::try_from(base(&logs(&fs)[1])).unwrap());
        base(logs(&fs).last().unwrap())
    };
    // A whole batch gone; one gone, and half a header in its place; the last segment gone.
    let damages: [Damage; 3] = [
        |fs| fs.corrupt(&path(logs(fs).last().unwrap()), |bytes| bytes.truncate(bytes.len() - SIZE)).unwrap(),
        |fs| fs.corrupt(&path(logs(fs).last().unwrap()), |bytes| bytes.truncate(bytes.len() - SIZE + 30)).unwrap(),
        |fs| fs.remove_file(&path(logs(fs).last().unwrap())).unwrap(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let end = if number == 2 { last } else { 19 };
        for (clean, recovery_point) in [
            (None, None),
            (None, Some(20)),
            (Some(false), None),
            (Some(false), Some(20)),
            (Some(true), None),
            (Some(true), Some(20)),
            (Some(true), Some(end)),
        ] {
            let fs = disk(1);
            let all = closed_by_a_producer(&fs);
            damage(&fs);
            let recovery_point = recovery_point.map(Offset);
            let hints = OpenHints { clean, recovery_point, ..OpenHints::default() };
            let (log, report) = open_hinted(&fs, &small(), hints);
            let place = format!("damage {number}, {hints:?}: {report:?}");
            assert_eq!(log.end(), Offset(end), "{place}");
            assert_eq!(contents(&log.reader()), all[..usize::try_from(end).unwrap()], "{place}");
            assert_eq!(log.epochs(), [(LeaderEpoch(0), Offset(0)), (LeaderEpoch(1), Offset(10))], "{place}");
            let producers: Vec<_> = log.producers().iter().map(|(id, state)| (id, state.last_offset())).collect();
            assert_eq!(producers, [(9, Offset(end - 1))], "{place}");
            // Another program closed it there: nothing is doubted, where nothing is torn.
            let closed_there = clean == Some(true) && recovery_point == Some(Offset(end));
            assert_eq!(report.clean, closed_there && number != 1, "{place}");
            let missing = if closed_there { vec![] } else { vec![offsets(end..20)] };
            assert_eq!(report.missing, missing, "{place}");
        }
    }
}

/// Of the file of a closed log thirty bytes are left: the log is empty at its base, whatever is said of it, and goes on there.
#[test]
fn s15_a_file_of_a_closed_log_that_was_cut_to_half_a_header_is_empty_at_its_base() {
    for is_ours in [true, false] {
        for clean in [None, Some(false), Some(true)] {
            for recovery_point in [None, Some(Offset(3))] {
                let fs = disk(1);
                filled(&fs, &one_segment(), 3).close().unwrap();
                fs.corrupt(&path(LOG), |bytes| bytes.truncate(30)).unwrap();
                if !is_ours {
                    fs.remove_file(&path("highwater-state")).unwrap();
                }
                let hints = OpenHints { clean, recovery_point, ..OpenHints::default() };
                let (mut log, report) = open_hinted(&fs, &one_segment(), hints);
                let place = format!("ours {is_ours}, {hints:?}: {report:?}");
                assert_eq!((log.start(), log.end(), report.clean), (Offset(0), Offset(0), false), "{place}");
                assert_eq!(report.cut.as_ref().map(|cut| (cut.at, cut.bytes)), Some((0, 30)), "{place}");
                assert!(report.rotten.is_empty(), "{place}");
                let is_known = is_ours || recovery_point.is_some();
                assert_eq!(report.missing, if is_known { vec![offsets(0..3)] } else { vec![] }, "{place}");
                assert_eq!(append(&mut log, &numbered(0, 90)), 0, "{place}");
            }
        }
    }
}

#[test]
fn s16_a_recovery_point_past_the_end_makes_no_torn_write_rot() {
    for recovery_point in [1 << 40, 25, i64::MAX] {
        for zeros in [false, true] {
            let fs = disk(1);
            let all = contents(&filled(&fs, &one_segment(), 20).reader());
            fs.remove_file(&path("highwater-state")).unwrap();
            let tail = if zeros { vec![0; 5000] } else { numbered(20, 90)[..30].to_vec() };
            fs.corrupt(&path(LOG), |bytes| bytes.extend(&tail)).unwrap();
            let hints =
                OpenHints { clean: Some(false), recovery_point: Some(Offset(recovery_point)), ..OpenHints::default() };
            let (mut log, report) = open_hinted(&fs, &one_segment(), hints);
            let place = format!("{recovery_point}, zeros {zeros}: {report:?}");
            assert_eq!((log.end(), contents(&log.reader())), (Offset(20), all), "{place}");
            assert!(report.rotten.is_empty(), "{place}");
            let cut = report.cut.as_ref().unwrap();
            assert_eq!((cut.bytes, cut.reason == CutReason::Zeros), (tail.len() as u64, zeros), "{place}");
            // One that no batch of the segment can have reached is another log's.
            let missing = if recovery_point == 25 { vec![offsets(20..25)] } else { vec![] };
            assert_eq!(report.missing, missing, "{place}");
            assert_eq!(append(&mut log, &numbered(20, 90)), 20, "{place}");
        }
    }
}

/// The line of another log: no batch below it was synced for its sake.
#[test]
fn s16_a_recovery_point_that_no_batch_can_reach_says_nothing() {
    let fs = disk(1);
    drop(filled(&fs, &one_segment(), 20));
    fs.remove_file(&path("highwater-state")).unwrap();
    fs.corrupt(&path(LOG), |bytes| bytes[12 * batch_bytes() + 70] ^= 1).unwrap();
    let open_at = |recovery_point| {
        let recovery_point = Some(Offset(recovery_point));
        let hints = OpenHints { clean: Some(false), recovery_point, ..OpenHints::default() };
        open_hinted(&fs.process_crash_image(), &one_segment(), hints).1
    };
    assert_eq!(open_at(1 << 40).end, Offset(12), "above what was synced it is a torn write");
    assert_eq!(open_at(1 << 31).end, Offset(20), "below it has rotted");
}

/// Kafka does the same: what lies below the start is deleted, and the log goes on there.
#[test]
fn s16_a_log_start_past_the_end_empties_a_log_that_is_not_ours() {
    for (log_start, is_ours) in [(0, false), (1 << 40, false), (1 << 40, true)] {
        let fs = disk(1);
        let all = contents(&filled(&fs, &small(), 20).reader());
        if !is_ours {
            fs.remove_file(&path("highwater-state")).unwrap();
        }
        let hints = OpenHints {
            clean: Some(false),
            recovery_point: Some(Offset(0)),
            log_start: Some(Offset(log_start)),
            ..OpenHints::default()
        };
        let (log, report) = open_hinted(&fs, &small(), hints);
        if log_start == 0 || is_ours {
            assert_eq!((contents(&log.reader()), log.start()), (all, Offset(0)), "ours {is_ours}");
            continue;
        }
        assert_eq!((log.start(), log.end(), logs(&fs).len()), (Offset(log_start), Offset(log_start), 1));
        let reason = CutReason::BelowLogStart { log_start: Offset(log_start) };
        assert_eq!(report.cut.map(|cut| cut.reason), Some(reason));
    }
}

/// Neither a state file nor a line in a checkpoint: of all segments but the last the next one tells that they were synced.
#[test]
fn where_nobody_knows_what_was_synced_all_segments_but_the_last_are_trusted() {
    for clean in [None, Some(false), Some(true)] {
        for at in [0, 2, 4] {
            let fs = disk(1);
            let all = contents(&filled(&fs, &small(), 28).reader());
            fs.remove_file(&path("highwater-state")).unwrap();
            let files = logs(&fs);
            assert_eq!(files.len(), 5);
            let lost = base(&files[at]) + 1;
            fs.corrupt(&path(&files[at]), |bytes| bytes[batch_bytes() + 70] ^= 1).unwrap();
            // As after a torn write: what can be told from a clean stop.
            fs.corrupt(&path(&files[4]), |bytes| bytes.extend([1; 30])).unwrap();
            let (log, report) = open_hinted(&fs, &small(), OpenHints { clean, ..OpenHints::default() });
            let place = format!("segment {at}, clean {clean:?}: {report:?}");
            assert_eq!(report.flushed, Offset(base(&files[4])), "{place}");
            if at == 4 {
                assert_eq!((log.end(), report.put_aside.len()), (Offset(lost), 1), "{place}");
                continue;
            }
            assert_eq!(log.end(), Offset(28), "{place}");
            assert_eq!(report.cut.as_ref().map(|cut| cut.bytes), Some(30), "{place}");
            let [rotten] = &report.rotten[..] else { panic!("{place}") };
            assert_eq!(rotten.offsets, offsets(lost..lost + 1), "{place}");
            for (offset, _) in &all {
                let read = log.read(Offset(*offset), ReadLimit::bytes(1).verified());
                assert_eq!(read.is_ok(), *offset != lost, "{place}: offset {offset}: {read:?}");
            }
        }
    }
}

/// Kafka goes by the marker for every log of the root, also for one that its recovery points leave out. So do we, unless a
/// state file of ours says that the log was written to.
#[test]
fn the_marker_of_a_clean_stop_counts_for_a_log_without_a_recovery_point() {
    let hints = OpenHints { clean: Some(true), ..OpenHints::default() };
    for closed in [true, false] {
        for has_state in [true, false] {
            let fs = disk(1);
            let log = filled(&fs, &small(), 20);
            let expected = contents(&log.reader());
            if closed {
                log.close().map(drop).unwrap()
            } else {
                drop(log)
            }
            if !has_state {
                fs.remove_file(&path("highwater-state")).unwrap();
            }
            let (log, report) = open_hinted(&fs, &small(), hints);
            assert_eq!(report.clean, closed || !has_state, "closed: {closed}, state: {has_state}");
            assert_eq!((report.rotten, report.cut, report.missing), (vec![], None, vec![]));
            assert_eq!(contents(&log.reader()), expected);
        }
    }
    // So nothing in it is taken for a torn write, but what is only half there at the end.
    for is_half in [false, true] {
        let fs = disk(1);
        filled(&fs, &one_segment(), 20).close().unwrap();
        fs.remove_file(&path("highwater-state")).unwrap();
        let bytes = batch_bytes();
        fs.corrupt(&path(LOG), |log| if is_half { log.truncate(20 * bytes - 9) } else { log[18 * bytes + 70] ^= 1 })
            .unwrap();
        let (log, report) = open_hinted(&fs, &one_segment(), hints);
        assert_eq!((report.clean, report.cut.is_some()), (!is_half, is_half));
        assert_eq!((log.end(), report.missing), (Offset(if is_half { 19 } else { 20 }), vec![]));
    }
}

/// A log that Kafka wrote, as far as its directory tells: with a segment gone from its middle, as compaction may leave it.
fn kafkas(fs: &SimFs) {
    filled(fs, &small(), 40).close().unwrap();
    fs.remove_file(&path("highwater-state")).unwrap();
    let second = logs(fs).swap_remove(1);
    for name in names(fs).iter().filter(|name| name.starts_with(&second[..20])) {
        fs.remove_file(&path(name)).unwrap();
    }
    fs.sync_everything();
}

/// The pages of a failed sync can be read, and the next one succeeds without them: also where no state file of ours has
/// been before, the next opening writes them once more, and takes the log for no other than it was.
#[test]
fn a_failed_sync_in_a_directory_without_a_state_file_is_seen_by_the_next_opening() {
    for clean in [None, Some(true)] {
        let hints = OpenHints { clean, ..OpenHints::default() };
        let fs = disk(1);
        kafkas(&fs);
        let (expected, usual) = {
            let (log, report) = open(&fs.process_crash_image(), &small());
            assert_eq!((&report.cut, &report.missing, report.rewritten), (&None, &vec![], false));
            (contents(&log.reader()), report)
        };
        let open_hinted_by = |hints| Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), hints);
        fs.inject_on(DiskFault::SyncFails, Call::SyncData, ".log", 1);
        assert!(open_hinted_by(OpenHints::default()).is_err());
        assert_eq!(faults_of_state(&fs), []);
        // On a full disk it cannot be written, and how much of it was synced nobody knows.
        fs.set_capacity(0);
        let refused = open_hinted_by(hints);
        assert!(
            matches!(&refused, Err(OpenError::Io(error)) if error.kind() == std::io::ErrorKind::StorageFull),
            "{refused:?}"
        );
        assert_eq!(
            contents(&Log::open_read_only_with(Arc::new(fs.clone()), Path::new(DIR), small(), hints).unwrap().0),
            expected
        );
        fs.set_capacity(1 << 30);
        let (log, report) = open_hinted_by(hints).unwrap();
        assert!(report.rewritten && !report.clean);
        assert_eq!((&report.cut, &report.missing, &report.rotten), (&usual.cut, &usual.missing, &usual.rotten));
        assert_eq!(contents(&log.reader()), expected);
        drop(log);
        for image in fs.images(20, 1) {
            let (log, report) = open(&image, &small());
            assert_eq!((report.rewritten, report.cut), (false, None));
            assert_eq!(contents(&log.reader()), expected, "once opened it is on the disk");
        }
    }
}

/// What a repair syncs may be what the system has given up on: the next opening writes it anew all the same.
#[test]
fn a_repair_does_not_make_a_failed_sync_forgotten() {
    for is_ours in [true, false] {
        let fs = disk(1);
        if is_ours {
            let mut log = filled(&fs, &small(), 20);
            log.flush().unwrap();
            for number in 20..40 {
                append(&mut log, &numbered(number, 90));
            }
            fs.inject_on(DiskFault::SyncFails, Call::SyncData, ".log", 1);
            assert!(log.flush().is_err());
        } else {
            kafkas(&fs);
            fs.inject_on(DiskFault::SyncFails, Call::SyncData, ".log", 1);
            let opened = Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), OpenHints::default());
            assert!(opened.is_err());
        }
        fs.corrupt(&path(&logs(&fs)[0]), |bytes| bytes[70] ^= 1).unwrap();
        let lock = RepairLock::take(&fs, Path::new(DIR)).unwrap();
        let plan = RepairPlan::of(&fs, Path::new(DIR), &mut |_| {}).unwrap();
        assert!(!plan.is_empty(), "ours: {is_ours}");
        plan.apply(&(Arc::new(fs.clone()) as Arc<dyn Fs>), &mut |_| {}).unwrap();
        drop(lock);
        let (log, report) = open(&fs, &small());
        assert!(report.rewritten && !report.clean, "ours: {is_ours}, {report:?}");
        assert_eq!((log.end(), report.cut), (Offset(40), None), "ours: {is_ours}");
    }
}
