//! What was synced and is bad has rotted: it costs itself, and nothing that lies before or behind it.

mod support;

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, SimFs};
use highwater_storage::*;
use support::*;

const LOG: &str = "00000000000000000000.log";

fn one_segment() -> LogOptions {
    LogOptions { segment_bytes: 1 << 20, index_interval_bytes: 300, ..LogOptions::default() }
}

/// Bytes of a batch by [`numbered`] with 90.
fn batch_bytes() -> usize {
    numbered(0, 90).len()
}

/// `flushed` batches that were synced and `unflushed` behind them, left without a close.
fn left(fs: &SimFs, options: &LogOptions, flushed: u64, unflushed: u64) {
    let (mut log, _) = open(fs, options);
    for number in 0..flushed + unflushed {
        append(&mut log, &numbered(number, 90));
        if number + 1 == flushed {
            log.flush().unwrap();
        }
    }
}

/// The offsets that can be read, and those that cannot.
fn readable(log: &Log) -> (Vec<i64>, Vec<i64>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    let mut from = log.start();
    while from < log.end() {
        match log.read(from, ReadLimit::bytes(400).verified()) {
            Ok(fetched) => {
                assert!(fetched.next > from, "stuck at {from}");
                good.extend(fetched.first.0.max(from.0)..fetched.next.0);
                from = fetched.next;
            }
            Err(ReadError::Corrupt { offsets, .. }) => {
                assert!(offsets.contains(&from), "{offsets:?} at {from}");
                bad.extend(from.0..offsets.end.0);
                from = offsets.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (good, bad)
}

fn all_but(end: i64, lost: &[i64]) -> (Vec<i64>, Vec<i64>) {
    ((0..end).filter(|offset| !lost.contains(offset)).collect(), lost.to_vec())
}

#[test]
fn rot_below_the_mark_stays_and_a_torn_write_above_it_is_cut() {
    for rotten in 0..6 {
        let fs = disk(1);
        left(&fs, &one_segment(), 6, 3);
        let size = batch_bytes();
        fs.corrupt(&path(LOG), |bytes| {
            bytes[rotten * size + 80] ^= 1;
            bytes.truncate(8 * size + 20);
        })
        .unwrap();
        let (mut log, report) = open(&fs, &one_segment());
        assert!(!report.foreign_mark && report.flushed == Offset(6), "{report:?}");
        let cut = report.cut.as_ref().unwrap();
        assert_eq!((cut.at, cut.bytes, cut.end), (8 * size as u64, 20, Offset(8)));
        let rotten = i64::try_from(rotten).unwrap();
        assert_eq!(readable(&log), all_but(8, &[rotten]));
        assert_eq!(append(&mut log, &numbered(9, 90)), 8);
        log.close().unwrap();
        let (log, report) = open(&fs, &one_segment());
        assert!(report.clean, "{report:?}");
        assert_eq!(readable(&log), all_but(9, &[rotten]));
    }
}

#[test]
fn a_whole_segment_of_rot_is_an_error_for_its_offsets() {
    let fs = disk(1);
    left(&fs, &small(), 20, 0);
    let segments: Vec<_> = names(&fs).into_iter().filter(|name| name.ends_with(".log")).collect();
    fs.corrupt(&path(&segments[1]), |bytes| bytes.fill(0x5a)).unwrap();
    let base = |name: &str| name[..20].parse::<i64>().unwrap();
    let lost: Vec<i64> = (base(&segments[1])..base(&segments[2])).collect();
    let (log, report) = open(&fs, &small());
    assert!(report.cut.is_none() && report.rotten.len() == 1, "{report:?}");
    assert_eq!(readable(&log), all_but(20, &lost));
    assert_eq!(log.damage(), report.rotten);
}

#[test]
fn the_end_of_the_log_is_where_the_mark_says_even_if_the_last_batch_has_rotted_away() {
    let fs = disk(1);
    left(&fs, &one_segment(), 6, 0);
    let size = batch_bytes();
    fs.corrupt(&path(LOG), |bytes| bytes[5 * size + 8..5 * size + 70].fill(0)).unwrap();
    let (mut log, report) = open(&fs, &one_segment());
    assert!(report.cut.is_none() && !report.foreign_mark, "{report:?}");
    assert_eq!(readable(&log), all_but(6, &[5]));
    assert_eq!(append(&mut log, &numbered(9, 90)), 6);
}

#[test]
fn a_mark_that_does_not_fit_is_ignored() {
    // Another batch where the last one was synced: another program cut the log and went on.
    let fs = disk(1);
    left(&fs, &one_segment(), 6, 0);
    let size = batch_bytes();
    let other = stored(5, 3, &[&[7; 90]]);
    fs.corrupt(&path(LOG), |bytes| {
        bytes.truncate(5 * size);
        bytes.extend(&other);
        bytes.extend(&other[..30]);
    })
    .unwrap();
    let (log, report) = open(&fs, &one_segment());
    assert!(report.foreign_mark && report.rotten.is_empty(), "{report:?}");
    assert_eq!(log.end(), Offset(6));
    assert_eq!(report.cut.unwrap().bytes, 30);
    drop(log);

    // A file that is shorter than what was synced.
    let fs = disk(2);
    left(&fs, &one_segment(), 6, 0);
    fs.corrupt(&path(LOG), |bytes| bytes.truncate(4 * size + 9)).unwrap();
    let (log, report) = open(&fs, &one_segment());
    assert!(report.foreign_mark, "{report:?}");
    assert_eq!(log.end(), Offset(4));
}

/// The log start moves durably, and a segment below it goes, the one with the mark too. That says nothing of those behind.
#[test]
fn a_mark_in_a_segment_that_retention_took_is_the_logs_own() {
    let fs = disk(1);
    let size = batch_bytes();
    let options = LogOptions { segment_bytes: u32::try_from(3 * size).unwrap(), ..one_segment() };
    let (mut log, _) = open(&fs, &options);
    for number in 0..3 {
        append(&mut log, &numbered(number, 90));
    }
    log.flush().unwrap();
    log.advance_start(Offset(3)).unwrap();
    append(&mut log, &numbered(3, 90));
    let steps = keep_house(&mut log, NOW, Offset(3));
    assert!(steps.iter().any(|step| matches!(step, Step::SegmentsRetired { .. })), "{steps:?}");
    for number in 4..8 {
        append(&mut log, &numbered(number, 90));
    }
    assert_eq!(bases(&log), [3, 6]);
    assert_eq!(log.flushed(), Offset(3));
    drop(log);
    // A power cut: the entries of both files are durable, of the first one nothing else is.
    fs.corrupt(&path("00000000000000000003.log"), Vec::clear).unwrap();
    let (mut log, report) = open(&fs, &options);
    assert!(!report.foreign_mark, "{report:?}");
    let lost = CutReason::LostTail { expected: Offset(3), found: Offset(6) };
    assert_eq!(report.cut.map(|cut| cut.reason), Some(lost));
    assert_eq!((log.start(), log.end()), (Offset(3), Offset(3)), "no hole");
    assert_eq!(append(&mut log, &numbered(3, 90)), 3);
}

/// A power cut loses whole sectors. Where one ends within the first bytes of a batch, all that its checksum covers may be there
/// without its offset, length and epoch.
#[test]
fn a_batch_whose_first_bytes_a_power_cut_took_is_cut_and_not_guessed_at() {
    let mut tried = Vec::new();
    for bytes in 90..700 {
        let size = numbered(0, bytes).len();
        let at = 3 * size;
        let lost = at.next_multiple_of(512) - at;
        if !(8..=17).contains(&lost) || tried.contains(&lost) {
            continue;
        }
        tried.push(lost);
        for (flushed, is_torn) in [(2, true), (6, false)] {
            let fs = disk(1);
            let (mut log, _) = open(&fs, &one_segment());
            for number in 0..6 {
                append(&mut log, &numbered(number, bytes));
                if number + 1 == flushed {
                    log.flush().unwrap();
                }
            }
            drop(log);
            fs.corrupt(&path(LOG), |file| file[at..at + lost].fill(0)).unwrap();
            let (log, report) = open(&fs, &one_segment());
            if is_torn {
                assert_eq!((log.end(), report.cut.unwrap().at), (Offset(3), at as u64), "{lost} bytes lost");
                assert!(report.repaired.is_empty() && report.rotten.is_empty(), "{lost} bytes lost");
                assert_eq!(report.put_aside.len(), 1, "the two behind it");
            } else {
                // Below the mark it was there, and can only have rotted.
                assert_eq!(contents(&log.reader()).len(), 6, "{lost} bytes rotten");
            }
        }
    }
    assert!(tried.len() > 5, "{tried:?}");
}

#[test]
fn a_torn_batch_with_intact_ones_behind_it_is_cut_and_the_rest_kept() {
    let fs = disk(1);
    left(&fs, &one_segment(), 2, 6);
    let size = batch_bytes();
    let before = file_bytes(&fs, LOG);
    fs.corrupt(&path(LOG), |bytes| bytes[3 * size + 70] ^= 1).unwrap();
    let flipped = file_bytes(&fs, LOG);
    let (log, report) = open(&fs, &one_segment());
    assert_eq!(log.end(), Offset(3));
    assert_eq!(file_bytes(&fs, LOG), before[..3 * size]);
    let [aside] = &*report.put_aside else { panic!("{report:?}") };
    assert_eq!((aside.batches, aside.offsets), (4, (Offset(4), Offset(7))));
    let name = format!("{LOG}.damaged-{}", 3 * size);
    assert_eq!(aside.file.as_ref(), Some(&path(&name)));
    assert_eq!(file_bytes(&fs, &name), flipped[3 * size..]);
    drop(log);
    // A file that is there is not written over.
    left_again(&fs, size);
    let (_, report) = open(&fs, &one_segment());
    assert_eq!(report.put_aside[0].file.as_ref(), Some(&path(&format!("{name}.1"))));
    assert_eq!(file_bytes(&fs, &name), flipped[3 * size..]);
}

/// Appends some to a log of three batches without a flush, and damages the first of them.
fn left_again(fs: &SimFs, size: usize) {
    let (mut log, _) = open(fs, &one_segment());
    for number in 3..6 {
        append(&mut log, &numbered(number, 90));
    }
    drop(log);
    fs.corrupt(&path(LOG), |bytes| bytes[3 * size + 75] ^= 1).unwrap();
}

#[test]
fn on_a_full_disk_nothing_is_put_aside() {
    let fs = disk(1);
    left(&fs, &one_segment(), 2, 6);
    let size = batch_bytes();
    fs.corrupt(&path(LOG), |bytes| bytes[3 * size + 70] ^= 1).unwrap();
    let used: u64 = names(&fs).iter().map(|name| file_bytes(&fs, name).len() as u64).sum();
    fs.set_capacity(used);
    let (log, report) = open(&fs, &one_segment());
    assert_eq!(log.end(), Offset(3));
    assert_eq!((report.put_aside.len(), &report.put_aside[0].file), (1, &None));
    assert!(names(&fs).iter().all(|name| !name.contains("damaged") && !name.ends_with(".tmp")), "{:?}", names(&fs));
}

#[test]
fn after_a_failed_sync_what_was_not_synced_is_written_anew() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    append(&mut log, &numbered(0, 90));
    log.flush().unwrap();
    append(&mut log, &numbered(1, 90));
    append(&mut log, &numbered(2, 90));
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    log.flush().unwrap_err();
    drop(log);
    fs.clear_faults();
    let (log, report) = open(&fs, &one_segment());
    assert!(report.rewritten && report.cut.is_none(), "{report:?}");
    let all = contents(&log.reader());
    assert_eq!(all.len(), 3);
    drop(log);
    // Now it is on the disk, whatever a power cut takes.
    for image in fs.images(16, 3) {
        let (log, report) = open(&image, &one_segment());
        assert_eq!(contents(&log.reader()), all);
        assert!(!report.rewritten);
    }
}

#[test]
fn after_a_failed_sync_a_log_is_not_opened_before_there_is_room_to_write_it_anew() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    append(&mut log, &numbered(0, 90));
    log.flush().unwrap();
    append(&mut log, &numbered(1, 90));
    fs.inject_on(Fault::SyncFails, Call::SyncData, ".log", 1);
    log.flush().unwrap_err();
    drop(log);
    fs.clear_faults();
    let used: u64 = names(&fs).iter().map(|name| file_bytes(&fs, name).len() as u64).sum();
    fs.set_capacity(used);
    for _ in 0..2 {
        match Log::open_with(Arc::new(fs.clone()), Path::new(DIR), one_segment(), OpenHints::default()) {
            Err(OpenError::Io(error)) => assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}"),
            other => panic!("{other:?}"),
        }
    }
    fs.set_capacity(1 << 30);
    let (log, report) = open(&fs, &one_segment());
    assert_eq!((log.end(), report.cut, report.rewritten), (Offset(2), None, true));
}

#[test]
fn a_log_can_be_cut_before_in_and_behind_damage() {
    // To an offset, and where the log ends then.
    for (to, end) in [(3, 3), (4, 4), (5, 5), (6, 6), (9, 9)] {
        let fs = disk(1);
        left(&fs, &one_segment(), 10, 0);
        let size = batch_bytes();
        fs.corrupt(&path(LOG), |bytes| bytes[4 * size + 8..4 * size + 12].fill(0xff)).unwrap();
        // The batch behind it as well, so that nothing can be put right.
        fs.corrupt(&path(LOG), |bytes| bytes[4 * size + 70] ^= 1).unwrap();
        let (mut log, report) = open(&fs, &one_segment());
        assert_eq!(report.rotten.len(), 1, "{report:?}");
        let truncated = log.truncate_to(Offset(to)).unwrap();
        assert_eq!((truncated.end, log.end()), (Offset(end), Offset(end)), "to {to}");
        let lost: &[i64] = if end > 4 { &[4] } else { &[] };
        assert_eq!(readable(&log), all_but(end, lost), "to {to}");
        assert_eq!(log.damage().len(), lost.len());
        assert_eq!(append(&mut log, &numbered(77, 90)), end);
        assert_eq!(readable(&log), all_but(end + 1, lost), "to {to}, and on");
        drop(log);
        let (log, _) = open(&fs, &one_segment());
        assert_eq!(readable(&log), all_but(end + 1, lost), "to {to}, and again");
    }
}

#[test]
fn records_behind_damage_are_found_by_offset_and_by_time() {
    for clean in [false, true] {
        let fs = disk(1);
        left(&fs, &small(), 20, 0);
        if clean {
            open(&fs, &small()).0.close().unwrap();
        }
        let segments: Vec<_> = names(&fs).into_iter().filter(|name| name.ends_with(".log")).collect();
        let size = batch_bytes();
        fs.corrupt(&path(&segments[1]), |bytes| bytes[size..size + 70].fill(0x33)).unwrap();
        let lost = segments[1][..20].parse::<i64>().unwrap() + 1;
        // Built from the batches, the indexes reach past it as well.
        for suffix in ["index", "timeindex"] {
            let name = segments[1].replace("log", suffix);
            if names(&fs).contains(&name) {
                fs.corrupt(&path(&name), Vec::clear).unwrap();
            }
        }
        let (log, _) = open(&fs, &small());
        assert_eq!(readable(&log), all_but(20, &[lost]), "clean {clean}");
        for offset in (0..20).filter(|offset| *offset != lost) {
            let found = log.reader().offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap();
            assert_eq!(found.map(|found| found.offset), Some(Offset(offset)), "clean {clean}");
        }
        let found = log.reader().offset_for_timestamp(TimestampMs(T0 + lost), Offset::MAX).unwrap();
        assert_eq!(found.map(|found| found.offset), Some(Offset(lost + 1)));
        assert_eq!(log.reader().max_timestamp(Offset::MAX).unwrap().unwrap().offset, Offset(19));
    }
}

#[test]
fn producers_are_known_by_their_batches_behind_damage() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    let mut positions = Vec::new();
    for number in 0..6 {
        let mut builder = BatchBuilder::new(Codec::None).producer(5, 0, number);
        builder.push(Record::new(TimestampMs(T0), b"a record of a producer that counts"));
        positions.push(usize::try_from(log.size_bytes()).unwrap());
        append(&mut log, &builder.build());
    }
    log.flush().unwrap();
    drop(log);
    fs.corrupt(&path(LOG), |bytes| bytes[positions[2] + 65] ^= 1).unwrap();
    let (log, _) = open(&fs, &one_segment());
    let state = log.producers().iter().next().unwrap().1;
    assert_eq!(state.last_offset(), Offset(5));
}
