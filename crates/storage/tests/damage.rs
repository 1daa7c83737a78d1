//! What opening makes of damaged directories. The numbers S.. are those of the faults that other logs had.

mod support;

use highwater_storage::fs::{Call, Fault, Fs, OpenMode, SimFs};
use highwater_storage::*;
use support::*;

const LOG: &str = "00000000000000000000.log";

/// Twenty batches of one record, not closed. Returns what is in the log and where each batch ends.
fn twenty(fs: &SimFs, options: &LogOptions) -> (Vec<(i64, Vec<u8>)>, Vec<usize>) {
    let (mut log, _) = open(fs, options);
    let mut ends = vec![0];
    for number in 0..20 {
        let bytes = numbered(number, 90);
        append(&mut log, &bytes);
        ends.push(ends.last().unwrap() + bytes.len());
    }
    (contents(&log.reader()), ends)
}

fn one_segment() -> LogOptions {
    LogOptions { segment_bytes: 1 << 20, index_interval_bytes: 300, ..LogOptions::default() }
}

#[test]
fn s11_a_damaged_header_is_put_right_or_cuts_the_log_there_and_nowhere_else() {
    for k in 0..20 {
        let damages: [fn(&mut [u8]); 7] = [
            |header| header[60] ^= 1,
            |header| header[8..12].copy_from_slice(&0i32.to_be_bytes()),
            |header| header[8..12].copy_from_slice(&(-1i32).to_be_bytes()),
            |header| header[8..12].copy_from_slice(&i32::MAX.to_be_bytes()),
            |header| header[16] = 9,
            |header| header[..8].copy_from_slice(&(-5i64).to_be_bytes()),
            |header| header[30] ^= 1,
        ];
        for (at, damage) in damages.into_iter().enumerate() {
            let fs = disk(1);
            let (all, ends) = twenty(&fs, &one_segment());
            fs.corrupt(&path(LOG), |bytes| damage(&mut bytes[ends[k]..])).unwrap();
            let (mut log, report) = open(&fs, &one_segment());
            // Length, version and base offset lie outside the checksum. The batch behind tells which base offset fits.
            if (1..=4).contains(&at) || (at == 5 && k < 19) {
                assert_eq!(contents(&log.reader()), all, "batch {k}, damage {at}");
                assert!(report.cut.is_none() && report.repaired.len() == 1, "{report:?}");
                continue;
            }
            assert_eq!(contents(&log.reader()), all[..k], "batch {k}, damage {at}");
            let cut = report.cut.unwrap();
            assert_eq!((cut.at, cut.bytes), (ends[k] as u64, (ends[20] - ends[k]) as u64));
            assert!(matches!(cut.reason, CutReason::Damage(_)), "{cut:?}");
            assert_eq!(append(&mut log, &numbered(99, 10)), i64::try_from(k).unwrap());
        }
    }
}

#[test]
fn s11_random_bytes_behind_log_and_indexes_are_cut() {
    for seed in 0..50u64 {
        let fs = disk(seed);
        let (all, ends) = twenty(&fs, &one_segment());
        let mut random = Random::new(seed);
        let mut noise = || (0..seed * 20 + 1).map(|_| random.next().to_le_bytes()[0]).collect::<Vec<u8>>();
        fs.corrupt(&path(LOG), |bytes| bytes.extend(noise())).unwrap();
        write_file(&fs, "00000000000000000000.index", &noise());
        write_file(&fs, "00000000000000000000.timeindex", &noise());
        let (log, report) = open(&fs, &one_segment());
        assert_eq!(contents(&log.reader()), all, "seed {seed}");
        assert_eq!(report.cut.map(|cut| cut.at), Some(ends[20] as u64));
    }
}

#[test]
fn s12_s15_a_torn_header_of_any_length_goes() {
    let torn = batch(T0, &[b"torn away"]);
    for kept in 0..torn.len() {
        for whole_batches in [0, 2] {
            let fs = disk(1);
            let (mut log, _) = open(&fs, &one_segment());
            for number in 0..whole_batches {
                append(&mut log, &numbered(number, 20));
            }
            let before = contents(&log.reader());
            drop(log);
            fs.corrupt(&path(LOG), |bytes| bytes.extend(&torn[..kept])).unwrap();
            let (mut log, report) = open(&fs, &one_segment());
            assert_eq!(report.cut.map(|cut| cut.bytes), Some(kept as u64).filter(|bytes| *bytes > 0));
            assert_eq!(contents(&log.reader()), before);
            assert_eq!(append(&mut log, &torn), i64::try_from(whole_batches).unwrap());
        }
    }
}

#[test]
fn a_tail_of_zeros_is_room_and_no_loss() {
    let fs = disk(1);
    let (all, _) = twenty(&fs, &one_segment());
    fs.corrupt(&path(LOG), |bytes| bytes.resize(bytes.len() + 5000, 0)).unwrap();
    let (log, report) = open(&fs, &one_segment());
    assert_eq!(report.cut.unwrap().reason, CutReason::Zeros);
    assert_eq!(contents(&log.reader()), all);
}

/// Twenty batches over several segments, closed well.
fn closed(fs: &SimFs) -> Vec<(i64, Vec<u8>)> {
    let (all, _) = twenty(fs, &small());
    open(fs, &small()).0.close().unwrap();
    all
}

fn segment_names(fs: &SimFs, suffix: &str) -> Vec<String> {
    names(fs).into_iter().filter(|name| name.ends_with(suffix)).collect()
}

/// Every record is found by its offset and by its timestamp.
fn everything_is_found(log: &Log, all: &[(i64, Vec<u8>)]) {
    let reader = log.reader();
    assert_eq!(contents(&reader), all);
    for (offset, _) in all {
        let fetched = reader.read(Offset(*offset), ReadLimit::bytes(1)).unwrap();
        assert_eq!(fetched.first, Offset(*offset));
        let found = reader.offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap().unwrap();
        assert_eq!((found.offset, found.timestamp), (Offset(*offset), TimestampMs(T0 + offset)));
    }
    assert_eq!(reader.offset_for_timestamp(TimestampMs(T0 + 1000), Offset::MAX).unwrap(), None);
    let last = reader.max_timestamp(Offset::MAX).unwrap().unwrap();
    assert_eq!(last.offset, Offset(all.last().unwrap().0));
}

#[test]
fn s01_s03_s33_s47_indexes_that_cannot_be_right_are_built_from_the_log() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 9] = [
        (".index", |bytes| *bytes = vec![0; 10_485_760]),
        (".timeindex", |bytes| *bytes = vec![0; 10_485_756]),
        (".index", |bytes| bytes[8..24].fill(0)),
        (".index", |bytes| {
            let from = bytes.len() - 8;
            bytes[from..].fill(0);
        }),
        (".timeindex", |bytes| bytes.extend([1, 2, 3, 4, 5])),
        (".timeindex", |bytes| {
            let from = bytes.len() - 12;
            bytes[from..from + 8].copy_from_slice(&5i64.to_be_bytes());
        }),
        (".timeindex", |bytes| {
            let from = bytes.len() - 4;
            bytes[from..].copy_from_slice(&(-1i32).to_be_bytes());
        }),
        (".timeindex", Vec::clear),
        // Plausible, but pointing between batches: the batch it should point to tells.
        (".index", |bytes| bytes[7] ^= 4),
    ];
    for unclean in [false, true] {
        for (at, (suffix, damage)) in damages.iter().enumerate() {
            let fs = disk(1);
            let all = closed(&fs);
            if unclean {
                append(&mut open(&fs, &small()).0, &numbered(20, 90));
                fs.remove_file(&path("highwater-state")).unwrap();
            }
            let name = &segment_names(&fs, suffix)[1];
            let log_bytes = file_bytes(&fs, &segment_names(&fs, ".log")[1]);
            let good = file_bytes(&fs, name);
            fs.corrupt(&path(name), damage).unwrap();
            assert_ne!(file_bytes(&fs, name), good);
            let hints = OpenHints { clean: Some(!unclean), ..OpenHints::default() };
            let (mut log, report) = open_hinted(&fs, &small(), hints);
            assert!(report.cut.is_none(), "{report:?}");
            assert_eq!(report.clean, !unclean);
            everything_is_found(&log, &contents(&log.reader()));
            assert_eq!(contents(&log.reader())[..20], all);
            keep_house(&mut log, NOW, Offset(0));
            assert_eq!(file_bytes(&fs, name), good, "damage {at} to {suffix} is repaired");
            assert_eq!(file_bytes(&fs, &segment_names(&fs, ".log")[1]), log_bytes);
            if unclean {
                assert_eq!(report.indexes_rebuilt, 1, "and nothing else is written");
            }
        }
    }
}

#[test]
fn s33_missing_indexes_are_rebuilt_also_after_a_clean_stop() {
    let fs = disk(1);
    let all = closed(&fs);
    for suffix in [".index", ".timeindex"] {
        for name in segment_names(&fs, suffix) {
            fs.remove_file(&path(&name)).unwrap();
        }
    }
    let (log, report) = open(&fs, &small());
    let sealed = segment_names(&fs, ".log").len() - 1;
    assert!(report.clean && report.indexes_rebuilt as usize == sealed, "{report:?}");
    assert_eq!(segment_names(&fs, ".index").len(), sealed);
    everything_is_found(&log, &all);
}

#[test]
fn s02_an_entry_of_eight_zero_bytes_is_an_entry() {
    let fs = disk(1);
    let one = stored(20, 0, &[b"a"]);
    write_file(&fs, "00000000000000000020.log", &one);
    write_file(&fs, "00000000000000000020.index", &[0; 8]);
    write_file(&fs, "00000000000000000020.timeindex", &[&(T0 + 20).to_be_bytes()[..], &[0; 4]].concat());
    write_file(&fs, "00000000000000000021.log", &stored(21, 0, &[b"b"]));
    let (log, report) = open_hinted(&fs, &small(), OpenHints { clean: Some(true), ..OpenHints::default() });
    assert!(report.clean && report.indexes_rebuilt == 0, "{report:?}");
    assert_eq!(contents(&log.reader()), [(20, b"a".to_vec()), (21, b"b".to_vec())]);
    assert_eq!(file_bytes(&fs, "00000000000000000020.index"), [0; 8]);
}

#[test]
fn s05_an_empty_active_segment_needs_no_index() {
    let fs = disk(1);
    write_file(&fs, LOG, &stored(0, 0, &[b"a"; 10]));
    write_file(&fs, "00000000000000000000.index", b"");
    write_file(&fs, "00000000000000000000.timeindex", &[&T0.to_be_bytes()[..], &9i32.to_be_bytes()].concat());
    write_file(&fs, "00000000000000000010.log", b"");
    let (log, report) = open_hinted(&fs, &small(), OpenHints { clean: Some(true), ..OpenHints::default() });
    assert_eq!(log.end(), Offset(10));
    assert!(report.clean && report.cut.is_none() && report.segments_scanned == 0, "{report:?}");
}

#[test]
fn s08_s17_a_start_without_segments_is_where_the_log_goes_on() {
    let fs = disk(1);
    let hints = OpenHints { log_start: Some(Offset(100)), ..OpenHints::default() };
    let (mut log, _) = open_hinted(&fs, &small(), hints);
    assert_eq!((log.start(), log.end()), (Offset(100), Offset(100)));
    assert_eq!(append(&mut log, &numbered(0, 10)), 100);

    let fs = disk(2);
    let (mut log, _) = open(&fs, &small());
    for number in 0..20 {
        append(&mut log, &numbered(number, 90));
    }
    log.advance_start(Offset(20)).unwrap();
    for _ in 0..3 {
        drop(log);
        log = open(&fs, &small()).0;
        assert_eq!((log.start(), log.end()), (Offset(20), Offset(20)));
        let end = log.end();
        keep_house(&mut log, NOW, end);
    }
    assert_eq!(append(&mut log, &numbered(0, 10)), 20);
}

#[test]
fn a_last_batch_that_says_a_later_offset_after_a_clean_stop_does_not_move_the_end() {
    for clean in [None, Some(true)] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &one_segment());
        for number in 0..20 {
            append(&mut log, &numbered(number, 90));
        }
        let all = contents(&log.reader());
        log.close().unwrap();
        let at = 19 * numbered(19, 90).len();
        fs.corrupt(&path(LOG), |bytes| bytes[at + 6] ^= 4).unwrap();
        let hints = OpenHints { clean, ..OpenHints::default() };
        let (log, report) = open_hinted(&fs, &one_segment(), hints);
        assert_eq!((log.end(), contents(&log.reader())), (Offset(20), all), "{report:?}");
        assert_eq!(report.repaired.len(), 1, "{report:?}");
    }
}

#[test]
fn a_lost_first_segment_takes_nothing_along_that_was_flushed() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    for number in 0..20 {
        append(&mut log, &numbered(number, 90));
    }
    log.flush().unwrap();
    let (all, second) = (contents(&log.reader()), log.segments()[1].base);
    drop(log);
    fs.remove_file(&path(LOG)).unwrap();
    let (mut log, report) = open(&fs, &small());
    assert_eq!((report.cut, log.start(), log.end()), (None, second, Offset(20)));
    assert_eq!(contents(&log.reader()), all[usize::try_from(second.0).unwrap()..]);
    assert_eq!(append(&mut log, &numbered(20, 90)), 20);
}

#[test]
fn batches_behind_damage_are_kept_where_the_log_goes_on_at_its_start() {
    // Another program's log, whose start its data root tells.
    for damaged in [3, 0, 7, 13] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &small());
        let mut appended = Vec::new();
        for number in 0..20 {
            append(&mut log, &numbered(number, 90));
        }
        for segment in log.segments() {
            let file = format!("{:020}.log", segment.base.0);
            appended.push((segment.base.0, file_bytes(&fs, &file)));
        }
        drop(log);
        let size = i64::try_from(batch(T0, &[[0u8; 90]]).len()).unwrap();
        let (base, _) = *appended.iter().rfind(|(base, _)| *base <= damaged).unwrap();
        let at = usize::try_from((damaged - base) * size).unwrap();
        fs.corrupt(&path(&format!("{base:020}.log")), |bytes| bytes[at + 70] ^= 1).unwrap();
        fs.remove_file(&path("highwater-state")).unwrap();
        let (recovery_point, log_start) = (Some(Offset(0)), Some(Offset(15)));
        let hints = OpenHints { recovery_point, log_start, ..OpenHints::default() };
        let (log, report) = open_hinted(&fs, &small(), hints);
        assert_eq!((log.start(), log.end(), log.segments().len()), (Offset(15), Offset(15), 1), "{report:?}");
        assert!(matches!(report.cut.unwrap().reason, CutReason::BelowLogStart { .. }));
        let kept: u64 = report.put_aside.iter().map(|aside| aside.batches).sum();
        assert_eq!(
            (i64::try_from(kept).unwrap(), report.put_aside.len()),
            (19, appended.len()),
            "{:?}",
            report.put_aside
        );
        for aside in &report.put_aside {
            let name = aside.file.as_ref().unwrap().file_name().unwrap().to_str().unwrap();
            assert_eq!(file_bytes(&fs, name).len() as u64, aside.bytes, "{name}");
        }
    }
}

#[test]
fn s10_a_lost_tail_between_segments_is_a_cut() {
    let fs = disk(1);
    let (all, _) = twenty(&fs, &small());
    let segments = segment_names(&fs, ".log");
    fs.corrupt(&path(&segments[1]), Vec::clear).unwrap();
    let (log, report) = open(&fs, &small());
    let base: i64 = segments[1][..20].parse().unwrap();
    assert_eq!(log.end(), Offset(base));
    assert_eq!(contents(&log.reader()), all[..usize::try_from(base).unwrap()]);
    let cut = report.cut.unwrap();
    assert!(matches!(cut.reason, CutReason::LostTail { .. }), "{cut:?}");
    assert_eq!(segment_names(&fs, ".log"), segments[..2]);
}

#[test]
fn s14_a_flipped_bit_below_the_recovery_point_takes_nothing_else_along() {
    for clean in [true, false] {
        let fs = disk(1);
        let all = closed(&fs);
        if !clean {
            let (mut log, _) = open(&fs, &small());
            append(&mut log, &numbered(20, 90));
        }
        let name = &segment_names(&fs, ".log")[1];
        fs.corrupt(&path(name), |bytes| bytes[100] ^= 1).unwrap();
        let (log, report) = open(&fs, &small());
        assert!(report.cut.is_none() && report.clean == clean, "{report:?}");
        let base: i64 = name[..20].parse().unwrap();
        for (offset, value) in &all {
            let fetched = log.read(Offset(*offset), ReadLimit::bytes(1)).unwrap();
            let batch = batches(&fetched.bytes).next().unwrap().unwrap();
            assert_eq!(batch.crc_matches(), *offset != base, "offset {offset}");
            if *offset != base {
                assert_eq!(batch.records().unwrap().next().unwrap().unwrap().value.unwrap(), value);
            }
        }
    }
}

#[test]
fn a_length_that_lies_below_the_recovery_point_is_an_error_for_its_range_only() {
    let fs = disk(1);
    closed(&fs);
    let name = segment_names(&fs, ".log")[1].clone();
    fs.corrupt(&path(&name), |bytes| bytes[8..12].copy_from_slice(&(-1i32).to_be_bytes())).unwrap();
    let (log, report) = open(&fs, &small());
    assert!(report.cut.is_none());
    let base = Offset(name[..20].parse().unwrap());
    match log.read(base, ReadLimit::bytes(100)) {
        Err(ReadError::Corrupt { segment, position, .. }) => assert_eq!((segment, position), (path(&name), 0)),
        other => panic!("{other:?}"),
    }
    let before = log.read(base + -1, ReadLimit::bytes(1000)).unwrap();
    assert_eq!(before.next, base);
    let next_segment = log.segments()[2].base;
    assert_eq!(log.read(next_segment, ReadLimit::bytes(1)).unwrap().first, next_segment);
}

#[test]
fn s07_a_close_that_fails_leaves_no_clean_mark() {
    for part in [".log", ".index", ".snapshot", "leader-epoch"] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &small());
        append(&mut log, &numbered(0, 90));
        fs.inject_on(Fault::SyncFails, Call::SyncData, part, 1);
        assert!(log.close().is_err(), "{part}");
        assert_eq!(fs.faults_hit(), 1, "{part}");
        fs.clear_faults();
        let (log, report) = open(&fs, &small());
        assert!(!report.clean, "{part}");
        assert_eq!(log.end(), Offset(1));
    }
}

#[test]
fn s16_s20_names_that_are_no_segments_are_ignored_and_left() {
    let fs = disk(1);
    let all = closed(&fs);
    let strange = ["1.blk.tmp", "00000000000000000000.log.bak", "notanumber.log", "0.log", "lost+found"];
    for name in strange {
        write_file(&fs, name, b"?");
    }
    fs.create_dir(&path("00000000000000000500.log")).unwrap();
    let (log, report) = open(&fs, &small());
    assert_eq!(contents(&log.reader()), all);
    let mut expected: Vec<String> = strange.iter().map(|name| (*name).to_owned()).collect();
    expected.push("00000000000000000500.log".to_owned());
    expected.sort();
    assert_eq!(report.ignored, expected);
    assert!(strange.iter().all(|name| names(&fs).contains(&(*name).to_owned())));
}

#[test]
fn s16_old_checkpoints_of_the_root_do_not_bring_anything_back() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    for number in 0..20 {
        append(&mut log, &numbered(number, 90));
    }
    log.advance_start(Offset(12)).unwrap();
    keep_house(&mut log, NOW, Offset(20));
    let start = log.start();
    drop(log);
    for (recovery_point, log_start) in [(0, 0), (3, 2), (1 << 40, 0), (5, 1 << 40)] {
        let (recovery_point, log_start) = (Some(Offset(recovery_point)), Some(Offset(log_start)));
        let (log, _) =
            open_hinted(&fs, &small(), OpenHints { clean: None, recovery_point, log_start, ..OpenHints::default() });
        assert_eq!((log.start(), log.end()), (start, Offset(20)), "a state file of ours beats the root's");
    }
}

/// Kafka deletes the log then.
#[test]
fn s16_a_start_past_the_end_that_was_not_recorded_here_destroys_nothing() {
    enum Case {
        NoStateFile,
        ForeignMark,
    }
    for case in [Case::NoStateFile, Case::ForeignMark] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &small());
        for number in 0..20 {
            append(&mut log, &numbered(number, 90));
        }
        log.close().unwrap();
        let before: Vec<(String, Vec<u8>)> = names(&fs)
            .into_iter()
            .filter(|name| name.ends_with(".log"))
            .map(|name| (name.clone(), file_bytes(&fs, &name)))
            .collect();
        match case {
            Case::NoStateFile => fs.remove_file(&path("highwater-state")).unwrap(),
            Case::ForeignMark => {
                // Of a log that began elsewhere and ended with other records.
                let other = disk(2);
                let (mut log, _) = open(&other, &small());
                log.reset_to(Offset(1 << 40)).unwrap();
                for number in 0..3 {
                    append(&mut log, &numbered(number, 50));
                }
                log.flush().unwrap();
                let state = file_bytes(&other, "highwater-state");
                fs.corrupt(&path("highwater-state"), |bytes| *bytes = state).unwrap();
            }
        }
        let hints = OpenHints { log_start: Some(Offset(1 << 40)), ..OpenHints::default() };
        let (log, report) = open_hinted(&fs, &small(), hints);
        assert_eq!((log.start(), log.end()), (Offset(1 << 40), Offset(1 << 40)), "{report:?}");
        assert_eq!(report.put_aside.len(), before.len(), "{report:?}");
        for (aside, (name, bytes)) in report.put_aside.iter().zip(&before) {
            assert!(aside.segment.ends_with(name), "{aside:?}");
            let kept = aside.file.as_ref().and_then(|file| file.file_name()?.to_str()).unwrap();
            assert!(file_bytes(&fs, kept) == *bytes, "{aside:?}");
        }
    }
}

#[test]
fn s19_s32_epochs_are_taken_from_the_batches_if_their_file_does_not_tell() {
    let contents: [Option<&[u8]>; 7] = [
        None,
        Some(&[0; 4096]),
        Some(b"0\n3\n0 100\n1 1"),
        Some(b"0\n2\n5 10\n4 20\n"),
        Some(b"0\n1\n0 100\n"),
        Some(b"0\n4\n0 100\n1 105\n2 109\n7 400\n"),
        Some(b"0\n1\n0 400\n"),
    ];
    for (at, content) in contents.into_iter().enumerate() {
        let fs = disk(1);
        let bytes = [stored(100, 0, &[b"a"; 5]), stored(105, 1, &[b"b"; 4]), stored(109, 2, &[b"c"; 2])].concat();
        write_file(&fs, "00000000000000000100.log", &bytes);
        if let Some(content) = content {
            write_file(&fs, "leader-epoch-checkpoint", content);
        }
        let (log, report) = open(&fs, &small());
        let expected = [(0, 100), (1, 105), (2, 109)].map(|(epoch, start)| (LeaderEpoch(epoch), Offset(start)));
        assert_eq!(log.epochs(), expected, "content {at}");
        assert_eq!(report.epochs_rebuilt, at < 4, "content {at}");
        assert_eq!(log.end_of_epoch(LeaderEpoch(0)), EpochEnd { epoch: LeaderEpoch(0), end: Offset(105) });
        assert_eq!(log.reader().epoch_of(Offset(108)), LeaderEpoch(1));
        assert_eq!(log.reader().epoch_of(Offset(99)), LeaderEpoch::NONE);
        log.close().unwrap();
        assert_eq!(file_bytes(&fs, "leader-epoch-checkpoint"), b"0\n3\n0 100\n1 105\n2 109\n");
    }
}

#[test]
fn epochs_of_a_history_that_was_lost_are_not_believed() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    log.append(NOW, LeaderEpoch(1), &batch(T0, &[b"a"; 10])).unwrap();
    log.checkpoint().unwrap();
    log.append(NOW, LeaderEpoch(7), &batch(T0, &[b"b"; 10])).unwrap();
    log.checkpoint().unwrap();
    drop(log);
    // The batches of epoch 7 are lost (with them the state file's word), the file of epochs is not.
    fs.remove_file(&path("highwater-state")).unwrap();
    let first = batch(T0, &[b"a"; 10]).len();
    fs.corrupt(&path(LOG), |bytes| bytes.truncate(first)).unwrap();
    let (mut log, _) = open(&fs, &one_segment());
    log.append_replicated(NOW, &stored(10, 5, &[b"c"; 20])).unwrap();
    drop(log);
    let (log, _) = open(&fs, &one_segment());
    assert_eq!(log.epochs(), [(LeaderEpoch(1), Offset(0)), (LeaderEpoch(5), Offset(10))]);
}

#[test]
fn s22_an_interrupted_compaction_is_undone_or_completed() {
    let fs = disk(1);
    let all = closed(&fs);
    let segments = segment_names(&fs, ".log");
    // (i) being written, with a complete one behind it: both go.
    write_file(&fs, &format!("{}.cleaned", segments[0]), b"half");
    write_file(&fs, &format!("{}.swap", segments[1]), b"behind it");
    // (iv) given up, (v) an index without a log, and a small file that was being written.
    write_file(&fs, "00000000000000000900.log.deleted", b"old");
    write_file(&fs, "00000000000000000900.index", &[0; 8]);
    write_file(&fs, "leader-epoch-checkpoint.tmp", b"0\n");
    let (log, report) = open(&fs, &small());
    assert_eq!(contents(&log.reader()), all);
    assert_eq!(report.leftovers.len(), 5, "{report:?}");
    log.close().unwrap();

    // (ii) complete: it takes the place of all that it covers, here the first two segments.
    let end: i64 = segments[2][..20].parse().unwrap();
    let merged = stored(0, 0, &vec![b"merged".as_slice(); usize::try_from(end).unwrap()]);
    write_file(&fs, &format!("{}.swap", segments[0]), &merged);
    // (iii) an index that was put aside with a segment that is in place.
    let index = format!("{}.index", &segments[3][..20]);
    fs.rename(&path(&index), &path(&format!("{index}.swap"))).unwrap();
    let (log, _) = open(&fs, &small());
    let found = contents(&log.reader());
    assert!(found[..usize::try_from(end).unwrap()].iter().all(|(_, value)| value == b"merged"));
    assert_eq!(found[usize::try_from(end).unwrap()..], all[usize::try_from(end).unwrap()..]);
    assert!(names(&fs).contains(&index));
    assert!(!names(&fs).contains(&segments[1]));
}

#[test]
fn s24_snapshots_past_the_end_and_bad_ones_go_and_a_resent_batch_is_known() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    let send = |log: &mut Log, sequence: i32| {
        let mut builder = BatchBuilder::new(Codec::None).producer(9, 0, sequence);
        builder.push(Record::new(TimestampMs(T0), &[7; 200]));
        log.append(NOW, LeaderEpoch(0), &builder.build())
    };
    for sequence in 0..16 {
        send(&mut log, sequence).unwrap();
    }
    log.checkpoint().unwrap();
    drop(log);
    let snapshots = segment_names(&fs, ".snapshot");
    assert!(snapshots.len() >= 3, "{snapshots:?}");
    fs.remove_file(&path("highwater-state")).unwrap();
    let newest = snapshots.last().unwrap();
    fs.corrupt(&path(newest), |bytes| bytes.truncate(bytes.len() / 2)).unwrap();
    write_file(&fs, "00000000000000000900.snapshot", b"from another life");
    let (mut log, report) = open(&fs, &small());
    assert_eq!(report.snapshots_removed, 1, "the one past the end; those in the scan are not needed");
    assert!(!names(&fs).contains(&"00000000000000000900.snapshot".to_owned()));
    let again = send(&mut log, 15).unwrap();
    assert!(again.duplicate);
    assert_eq!((again.first, again.last), (Offset(15), Offset(15)));
    assert!(!send(&mut log, 16).unwrap().duplicate);
    assert!(matches!(send(&mut log, 30), Err(AppendError::Sequence(_))));

    // After a clean stop the snapshot at the end is loaded; if it is bad, an older one and the batches after it.
    log.close().unwrap();
    let newest = segment_names(&fs, ".snapshot").pop().unwrap();
    fs.corrupt(&path(&newest), |bytes| bytes[12] ^= 1).unwrap();
    let (mut log, report) = open(&fs, &small());
    assert!(report.clean && report.snapshots_removed >= 1);
    assert!(send(&mut log, 16).unwrap().duplicate);
}

#[test]
fn s48_a_batch_without_records_is_no_end_and_no_damage() {
    let empty = include_bytes!("fixtures/F5_empty_compacted_batch_base40_lod2.bin");
    let fs = disk(1);
    let bytes = [stored(0, 0, &[b"a"; 10]), empty.to_vec(), stored(50, 0, &[b"z"])].concat();
    write_file(&fs, LOG, &bytes);
    for _ in 0..2 {
        let (log, report) = open(&fs, &one_segment());
        assert!(report.cut.is_none(), "{report:?}");
        assert_eq!(log.end(), Offset(51));
        for (from, first, next) in [(0, 0, 10), (10, 40, 43), (41, 40, 43), (43, 50, 51), (49, 50, 51)] {
            let fetched = log.read(Offset(from), ReadLimit::bytes(1)).unwrap();
            assert_eq!((fetched.first, fetched.next), (Offset(first), Offset(next)), "from {from}");
        }
        log.close().unwrap();
    }
    let (mut log, _) = open(&fs, &one_segment());
    assert_eq!(log.truncate_to(Offset(41)).unwrap().end, Offset(10), "the end of the last batch that stays");
    drop(log);
    assert_eq!(open(&fs, &one_segment()).0.end(), Offset(10));
}

/// A message as producers before 0.11 sent it, with magic 1.
fn old_message(offset: i64, value: &[u8]) -> Vec<u8> {
    let mut message = vec![1u8, 0]; // Magic 1, no attributes.
    message.extend((T0 + offset).to_be_bytes());
    message.extend((-1i32).to_be_bytes());
    message.extend(i32::try_from(value.len()).unwrap().to_be_bytes());
    message.extend(value);
    let mut bytes = offset.to_be_bytes().to_vec();
    bytes.extend(i32::try_from(message.len() + 4).unwrap().to_be_bytes());
    bytes.extend(crc32fast::hash(&message).to_be_bytes());
    bytes.extend(message);
    bytes
}

#[test]
fn messages_of_old_formats_are_kept_and_a_damaged_one_is_cut() {
    let first = old_message(0, b"");
    assert_eq!(first.len(), 34, "shorter than a batch header");
    let mut bytes = [first.clone(), old_message(1, b"old"), old_message(4, b"after a gap")].concat();
    let fs = disk(1);
    write_file(&fs, LOG, &bytes);
    let (mut log, report) = open(&fs, &small());
    assert_eq!((report.cut, log.end(), log.latest_epoch()), (None, Offset(5), LeaderEpoch::NONE));
    assert_eq!(log.read(Offset(0), ReadLimit::bytes(1)).unwrap().bytes, first);
    assert_eq!(log.read(Offset(2), ReadLimit::bytes(1000)).unwrap().bytes, old_message(4, b"after a gap"));
    assert_eq!(append(&mut log, &batch(T0, &[b"new"])), 5);
    drop(log);
    assert!(file_bytes(&fs, LOG).starts_with(&bytes), "the old ones are as they were");

    // The last of them, with a value that does not match its checksum.
    *bytes.last_mut().unwrap() ^= 1;
    let fs = disk(1);
    write_file(&fs, LOG, &bytes);
    let (log, report) = open(&fs, &small());
    assert_eq!((report.cut.unwrap().bytes, log.end()), (old_message(4, b"after a gap").len() as u64, Offset(2)));
}

#[test]
fn the_offset_of_a_message_of_the_old_formats_is_put_right_and_nothing_else() {
    for at in 0..3 {
        let messages: Vec<_> = (0..3).map(|offset| old_message(offset, b"an old one")).collect();
        let mut damaged = messages.clone();
        damaged[at][0] = 0x80;
        let fs = disk(1);
        write_file(&fs, LOG, &damaged.concat());
        let (log, report) = open(&fs, &small());
        if at == 2 {
            // Nothing behind it tells which one it had.
            assert_eq!((report.cut.map(|cut| cut.end), log.end()), (Some(Offset(2)), Offset(2)));
            continue;
        }
        assert!(report.cut.is_none() && report.repaired.len() == 1 && report.repaired[0].in_place, "{report:?}");
        assert_eq!(file_bytes(&fs, LOG), messages.concat());
        let read = log.read(Offset(0), ReadLimit::bytes(1000).verified()).unwrap();
        assert_eq!((read.bytes, log.end()), (messages.concat(), Offset(3)));
    }
}

#[test]
fn a_state_file_of_another_topic_says_nothing() {
    let fs = disk(1);
    let write_id = |id: u8| {
        write_file(&fs, "partition.metadata", format!("version: 0\ntopic_id: {}", TopicId([id; 16])).as_bytes());
    };
    write_id(1);
    let (mut log, _) = open(&fs, &small());
    append(&mut log, &batch(T0, &[b"a"; 10]));
    log.advance_start(Offset(10)).unwrap();
    drop(log);
    assert_eq!(open(&fs, &small()).0.start(), Offset(10));
    write_id(2);
    assert_eq!(open(&fs, &small()).0.start(), Offset(0));
}

#[test]
fn reads_that_come_short_are_read_on() {
    let fs = disk(1);
    let all = closed(&fs);
    fs.shorten(2);
    let (log, report) = open(&fs, &small());
    assert!(report.clean, "{report:?}");
    everything_is_found(&log, &all);
    drop(log);
    fs.remove_file(&path("highwater-state")).unwrap();
    let (mut log, report) = open(&fs, &small());
    assert!(report.cut.is_none() && !report.clean);
    append(&mut log, &numbered(20, 400));
    assert_eq!(contents(&log.reader()).len(), 21);
}

#[test]
fn a_read_error_is_an_error_and_not_the_end() {
    let fs = disk(1);
    closed(&fs);
    fs.inject_lasting(Fault::Eio, Call::Read, ".log", 1);
    let opened = Log::open_with(
        std::sync::Arc::new(fs.clone()),
        std::path::Path::new(DIR),
        small(),
        OpenHints { clean: Some(false), ..OpenHints::default() },
    );
    assert!(matches!(opened, Err(OpenError::Io(_))), "{opened:?}");
    fs.clear_faults();
    let (log, _) = open(&fs, &small());
    assert_eq!(log.end(), Offset(20), "nothing was cut");
    fs.inject_on(Fault::Eio, Call::Read, ".log", 1);
    assert!(matches!(log.read(Offset(3), ReadLimit::bytes(1)), Err(ReadError::Io(_))));
    assert_eq!(log.read(Offset(3), ReadLimit::bytes(1)).unwrap().first, Offset(3));
    let _ = fs.open(&path(LOG), OpenMode::Read).unwrap();
}

/// Another program removed segments and records. It has been here since the log crashed, and stopped well; or we never
/// were, and it did not.
#[test]
fn what_another_program_left_is_kept_with_its_gaps() {
    for was_ours in [true, false] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &small());
        for number in 0..30 {
            append(&mut log, &numbered(number, 90));
        }
        let before = contents(&log.reader());
        let bases: Vec<i64> = log.segments().iter().map(|segment| segment.base.0).collect();
        drop(log);
        // Retention took the first two, compaction emptied another.
        for base in [bases[0], bases[1], bases[3]] {
            fs.remove_file(&path(&format!("{base:020}.log"))).unwrap();
        }
        if !was_ours {
            fs.remove_file(&path("highwater-state")).unwrap();
        }
        fs.sync_everything();
        let kept = |offset: i64| (bases[2]..bases[3]).contains(&offset) || offset >= bases[4];
        let mut expected: Vec<_> = before.into_iter().filter(|(offset, _)| kept(*offset)).collect();
        let log_start = Some(Offset(bases[2]));
        let mut hints =
            OpenHints { clean: Some(was_ours), recovery_point: log_start, log_start, ..OpenHints::default() };
        for round in 0..3 {
            let (mut log, report) = open_hinted(&fs, &small(), hints);
            assert!(!report.clean && report.cut.is_none(), "round {round}: {report:?}");
            assert_eq!((log.start().0, log.end().0), (bases[2], 30 + round));
            assert_eq!(contents(&log.reader()), expected);
            append(&mut log, &batch(T0, &[b"goes on"]));
            expected.push((30 + round, b"goes on".to_vec()));
            // A crash: from now on our own file tells.
            hints = OpenHints::default();
        }
    }
}

/// A batch survived a power cut, but below the log start: the log starts over, and its file of epochs, which is older than
/// that batch, is not what it goes by.
#[test]
fn epochs_of_a_log_that_starts_over_are_written() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    log.append(NOW, LeaderEpoch(0), &batch(T0, &[b"a"; 2])).unwrap();
    log.checkpoint().unwrap();
    log.append(NOW, LeaderEpoch(1), &batch(T0, &[b"b"; 2])).unwrap();
    log.append(NOW, LeaderEpoch(1), &batch(T0, &[b"c"; 6])).unwrap();
    log.advance_start(Offset(6)).unwrap();
    drop(log);
    let kept = 2 * batch(T0, &[b"a"; 2]).len();
    fs.corrupt(&path(LOG), |bytes| bytes.truncate(kept)).unwrap();
    let (mut log, _) = open(&fs, &one_segment());
    assert_eq!((log.start(), log.end()), (Offset(6), Offset(6)));
    log.append(NOW, LeaderEpoch(1), &batch(T0, &[b"d"])).unwrap();
    log.close().unwrap();
    assert_eq!(open(&fs, &one_segment()).0.epochs(), [(LeaderEpoch(1), Offset(6))]);
}
