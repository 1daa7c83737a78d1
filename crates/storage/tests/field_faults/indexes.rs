//! Indexes that are legal and odd, that are older than their segment, and that one large append fills.

use highwater_storage::fs::Fs;
use highwater_storage::{LogOptions, Offset, OpenHints, TimestampMs};

use crate::support::{NOW, T0, append, batch, contents, disk, file_bytes, keep_house, numbered, open, open_hinted};
use crate::support::{path, small, stored, write_file};
use crate::{everything_is_found, files, rebuilds_an_index};

/// An entry of eight zero bytes is one, and stays one whoever looks at it.
#[test]
fn s02_neither_a_look_up_nor_housekeeping_takes_a_zero_entry_for_room() {
    let fs = disk(1);
    let index = "00000000000000000020.index";
    let time_index = [&(T0 + 20).to_be_bytes()[..], &[0; 4]].concat();
    write_file(&fs, "00000000000000000020.log", &stored(20, 0, &[b"a"]));
    write_file(&fs, index, &[0; 8]);
    write_file(&fs, "00000000000000000020.timeindex", &time_index);
    write_file(&fs, "00000000000000000021.log", &stored(21, 0, &[b"b"]));
    let (mut log, report) = open_hinted(&fs, &small(), OpenHints { clean: Some(true), ..OpenHints::default() });
    assert!(report.clean && report.indexes_rebuilt == 0, "{report:?}");
    everything_is_found(&log, &[(20, b"a".to_vec()), (21, b"b".to_vec())]);
    let steps = keep_house(&mut log, NOW, Offset(22));
    assert!(steps.iter().any(|step| matches!(step, highwater_storage::Step::Scrubbed { .. })), "{steps:?}");
    assert!(!rebuilds_an_index(&steps), "{steps:?}");
    log.close().unwrap();
    assert_eq!(file_bytes(&fs, index), [0; 8]);
    assert_eq!(file_bytes(&fs, "00000000000000000020.timeindex"), time_index);
}

/// Pages of a large index that a power cut left zeroed decode as entries that lead to the segment's start.
#[test]
fn s03_zeroed_pages_of_an_index_of_a_thousand_entries_mislead_nobody() {
    let options = LogOptions { segment_bytes: 200_000, index_interval_bytes: 0, ..LogOptions::default() };
    for clean in [true, false] {
        for suffix in [".index", ".timeindex"] {
            for at_the_end in [false, true] {
                let fs = disk(1);
                let (mut log, _) = open(&fs, &options);
                for number in 0..1500 {
                    append(&mut log, &numbered(number, 80));
                }
                assert_eq!(log.segments().len(), 2);
                let all = contents(&log.reader());
                log.close().unwrap();
                let name = format!("{:020}{suffix}", 0);
                let good = file_bytes(&fs, &name);
                assert!(good.len() > 8000, "{}", good.len());
                let mut bad = good.clone();
                let zeroed = if at_the_end { good.len() - 4096..good.len() } else { 2048..6144 };
                bad[zeroed].fill(0);
                write_file(&fs, &name, &bad);
                if !clean {
                    fs.remove_file(&path("highwater-state")).unwrap();
                }
                let hints = OpenHints { clean: Some(clean), ..OpenHints::default() };
                let (mut log, report) = open_hinted(&fs, &options, hints);
                assert!(report.clean == clean && report.cut.is_none(), "{report:?}");
                everything_is_found(&log, &all);
                keep_house(&mut log, NOW, Offset(0));
                assert_eq!(file_bytes(&fs, &name), good, "clean: {clean}, {suffix}, at the end: {at_the_end}");
            }
        }
    }
}

/// A truncation into a segment, other batches in the place of those that went, and the indexes of before the truncation:
/// all their entries are plausible, and some point between batches, or past records of the time they tell.
#[test]
fn s33_indexes_from_before_a_truncation_are_built_from_the_log() {
    // Records behind the seventh that come faster than those that will take their places; once so that the last time
    // entry of the segment tells nothing, once so that it says what will be true again.
    let old_times: [fn(i64) -> i64; 2] = [
        |offset| offset.min(7 + (offset - 7) / 2),
        |offset| if (8..=10).contains(&offset) { 7 + i64::from(offset == 10) } else { offset },
    ];
    for clean in [true, false] {
        for old_time in old_times {
            for put_back in [&[".index", ".timeindex"][..], &[".index"], &[".timeindex"]] {
                old_indexes_are_noticed(clean, old_time, put_back);
            }
        }
    }
}

fn old_indexes_are_noticed(clean: bool, old_time: fn(i64) -> i64, put_back: &[&str]) {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    for offset in 0..20 {
        append(&mut log, &batch(T0 + old_time(offset), &[[7; 90]]));
    }
    log.checkpoint().unwrap();
    let base = log.segments()[1].base;
    assert_eq!(base, Offset(6));
    let names: Vec<String> = put_back.iter().map(|suffix| format!("{:020}{suffix}", base.0)).collect();
    let bytes_of = |names: &[String]| names.iter().map(|name| file_bytes(&fs, name)).collect::<Vec<_>>();
    let old = bytes_of(&names);
    log.truncate_to(base + 1).unwrap();
    for number in log.end().0..20 {
        let number = u64::try_from(number).unwrap();
        append(&mut log, &numbered(number, 40 + 17 * usize::try_from(number % 5).unwrap()));
    }
    let all = contents(&log.reader());
    assert_eq!((all.len(), log.segments()[1].base), (20, base));
    assert!(log.segments().len() > 2, "the segment that was cut is sealed again");
    log.close().unwrap();
    let new = bytes_of(&names);
    for (name, (old, new)) in names.iter().zip(old.iter().zip(&new)) {
        assert_ne!(old, new, "{name}");
        write_file(&fs, name, old);
    }
    if !clean {
        fs.remove_file(&path("highwater-state")).unwrap();
    }
    let hints = OpenHints { clean: Some(clean), ..OpenHints::default() };
    let (mut log, report) = open_hinted(&fs, &small(), hints);
    assert!(report.clean == clean && report.cut.is_none(), "{report:?}");
    // By time first: what a look-up by offset notices would help it.
    for offset in 0..20 {
        let found = log.reader().offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap().unwrap();
        assert_eq!(found.offset, Offset(offset), "clean: {clean}, {put_back:?}");
    }
    everything_is_found(&log, &all);
    assert!(log.damage().is_empty(), "{:?}", log.damage());
    keep_house(&mut log, NOW, Offset(0));
    assert_eq!(bytes_of(&names), new, "clean: {clean}, {put_back:?}");
    everything_is_found(&log, &all);
}

/// One append of many batches makes an entry for each interval, not one for all of it.
#[test]
fn s47_a_large_append_is_indexed_throughout() {
    let fs = disk(1);
    let options = LogOptions { segment_bytes: 2 << 20, index_interval_bytes: 4096, ..LogOptions::default() };
    let (mut log, _) = open(&fs, &options);
    let bytes: Vec<u8> = (0..256).flat_map(|base| stored(base, 0, &[vec![7; 4096]])).collect();
    assert!(bytes.len() > 1 << 20);
    log.append_replicated(NOW, &bytes).unwrap();
    log.set_options(LogOptions { segment_bytes: 1 << 20, ..options.clone() }).unwrap();
    append(&mut log, &numbered(256, 10));
    assert_eq!(log.segments().len(), 2);
    log.checkpoint().unwrap();
    let names = ["00000000000000000000.index", "00000000000000000000.timeindex"];
    let written = names.map(|name| file_bytes(&fs, name));
    // The first batch begins at the start of the file, where a look-up begins without an entry.
    assert_eq!(written.each_ref().map(Vec::len), [255 * 8, 255 * 12]);
    log.close().unwrap();
    for name in names {
        fs.remove_file(&path(name)).unwrap();
    }
    let (log, report) = open(&fs, &options);
    assert_eq!((report.clean, report.indexes_rebuilt), (true, 1), "{report:?}");
    assert_eq!(names.map(|name| file_bytes(&fs, name)), written, "what a rebuild makes of the log");
    let found = log.reader().offset_for_timestamp(TimestampMs(T0 + 200), Offset::MAX).unwrap().unwrap();
    assert_eq!(found.offset, Offset(200));
    assert_eq!(files(&fs, ".index").len(), 2);
}
