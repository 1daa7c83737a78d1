//! What stays, what goes, and when.

use highwater_storage::fs::{Fs, OpenMode};
use highwater_storage::io::FileExt;
use highwater_storage::{
    BatchBuilder, BatchView, Codec, CompactionMemory, HEADER_BYTES, LeaderEpoch, Offset, OpenFiles, ReadLimit, Step,
    TimestampMs, WorkLimits,
};

use crate::keyed::{
    all_batches, append_as_is, compact, compact_below, compacted, compaction, end_transaction, keyed_batch, keys,
    new_log, put, records, roll,
};
use crate::support::{T0, bases, disk, file_bytes, names, open, path};

const DAY: i64 = 24 * 60 * 60 * 1000;

fn owned(pairs: &[(i64, &str)]) -> Vec<(i64, String)> {
    pairs.iter().map(|(offset, key)| (*offset, (*key).to_owned())).collect()
}

#[test]
fn the_last_record_of_each_key_stays_at_its_offset() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    put(&mut log, &[(Some("a"), Some("1")), (Some("b"), Some("1")), (None, Some("no key")), (Some("c"), Some("1"))]);
    put(&mut log, &[(Some("a"), Some("2"))]);
    roll(&mut log);
    put(&mut log, &[(Some("b"), Some("2")), (Some("d"), Some("1"))]);
    roll(&mut log);
    put(&mut log, &[(Some("c"), Some("of the active segment"))]);
    let before = records(&log.reader());
    let steps = compact(&mut log, T0);
    let [Step::Compacted { cleaner_offset, bytes_before, bytes_after, segments_left_out: 0, .. }] = *steps else {
        panic!("{steps:?}")
    };
    assert_eq!((cleaner_offset, log.cleaner_offset(), log.end()), (Offset(7), Offset(7), Offset(8)));
    assert!(bytes_after < bytes_before);
    assert_eq!(keys(&log.reader()), owned(&[(3, "c"), (4, "a"), (5, "b"), (6, "d"), (7, "c")]));
    for (offset, record) in records(&log.reader()) {
        assert_eq!(record, before[&offset], "a record that stays is the same");
    }
    assert_eq!(bases(&log), [0, 7], "what fits into one segment becomes one");
    assert_eq!(compact(&mut log, T0), [], "there is nothing left to do");
    let unfinished = |name: &String| name.contains("cleaned") || name.contains("swap");
    assert!(!names(&fs).iter().any(unfinished), "{:?}", names(&fs));

    // Opened again after a crash it is the same.
    let expected = records(&log.reader());
    drop(log);
    let (log, _) = open(&fs, &compacted());
    assert_eq!(records(&log.reader()), expected);
    assert_eq!(log.end(), Offset(8));
}

/// Makes the log dirty, so that the next compaction has a reason.
fn dirty(log: &mut highwater_storage::Log) {
    put(log, &[(Some("filler"), Some("x"))]);
    roll(log);
}

#[test]
fn a_tombstone_goes_so_long_after_it_was_first_seen_clean() {
    let mut log = new_log(&disk(1), &compacted());
    put(&mut log, &[(Some("a"), Some("1"))]);
    roll(&mut log);
    put(&mut log, &[(Some("b"), Some("1")), (Some("a"), None)]);
    roll(&mut log);
    put(&mut log, &[(Some("c"), Some("1"))]);
    roll(&mut log);
    let before = records(&log.reader());
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(1, "b"), (2, "a"), (3, "c")]), "no value of a, and that it is gone");
    let horizon = |log: &highwater_storage::Log| {
        let batches = all_batches(&log.reader());
        let batch =
            batches.iter().map(|bytes| BatchView::parse(bytes).unwrap().0).find(|batch| batch.base_offset().0 == 1);
        batch.filter(|batch| batch.attributes().has_delete_horizon()).map(|batch| batch.base_timestamp())
    };
    assert_eq!(horizon(&log), Some(TimestampMs(T0 + DAY)));
    assert_eq!(records(&log.reader())[&1], before[&1], "the records keep their timestamps");
    assert_eq!(records(&log.reader())[&2], before[&2]);

    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + DAY - 1).len(), 1);
    assert_eq!(horizon(&log), Some(TimestampMs(T0 + DAY)), "set once");
    assert!(records(&log.reader()).contains_key(&2));

    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + DAY).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(1, "b"), (3, "c"), (5, "filler")]));
}

#[test]
fn records_of_aborted_transactions_go_at_once_and_their_markers_when_nothing_needs_them() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    let transactional =
        |producer, sequence| BatchBuilder::new(Codec::None).producer(producer, 0, sequence).transactional();
    put(&mut log, &[(Some("a"), Some("1")), (Some("b"), Some("1"))]);
    append_as_is(&mut log, transactional(1, 0), &[(Some("a"), Some("aborted")), (Some("z"), Some("aborted"))]);
    append_as_is(&mut log, transactional(2, 0), &[(Some("b"), Some("2"))]);
    end_transaction(&mut log, 1, 0, false);
    end_transaction(&mut log, 2, 0, true);
    // Both go on, so that what they wrote before is not their last batch.
    append_as_is(&mut log, transactional(1, 2), &[(Some("c"), Some("1"))]);
    append_as_is(&mut log, transactional(2, 1), &[(Some("d"), Some("1"))]);
    end_transaction(&mut log, 1, 0, true);
    end_transaction(&mut log, 2, 0, true);
    roll(&mut log);
    dirty(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(0, "a"), (4, "b"), (7, "c"), (8, "d"), (11, "filler")]));
    let markers = |log: &highwater_storage::Log| -> Vec<i64> {
        records(&log.reader()).into_iter().filter(|(_, stored)| stored.is_control).map(|(offset, _)| offset).collect()
    };
    assert_eq!(markers(&log), [5, 6, 9, 10]);
    let index = file_bytes(&fs, "00000000000000000000.txnindex");
    let entry =
        [&0i16.to_be_bytes()[..], &1i64.to_be_bytes(), &2i64.to_be_bytes(), &5i64.to_be_bytes(), &4i64.to_be_bytes()];
    assert_eq!(index, entry.concat(), "who reads what was read before the compaction needs it");

    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + 5).len(), 1);
    assert_eq!(markers(&log), [5, 6, 9, 10], "the time until which the marker at 5 stays has begun");
    assert!(fs.metadata(&path("00000000000000000000.txnindex")).is_err());
    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + DAY + 4).len(), 1);
    assert_eq!(markers(&log), [5, 6, 9, 10]);
    // The record at 4 is superseded: the commit at 6 is needed once more.
    put(&mut log, &[(Some("b"), Some("3"))]);
    roll(&mut log);
    assert_eq!(compact(&mut log, T0 + DAY + 5).len(), 1);
    assert_eq!(markers(&log), [6, 9, 10]);
    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + 2 * DAY).len(), 1);
    dirty(&mut log);
    assert_eq!(compact(&mut log, T0 + 3 * DAY).len(), 1);
    assert_eq!(markers(&log), [9, 10]);
}

#[test]
fn an_open_transaction_and_all_behind_it_are_not_touched() {
    let mut log = new_log(&disk(1), &compacted());
    put(&mut log, &[(Some("a"), Some("1"))]);
    put(&mut log, &[(Some("a"), Some("2"))]);
    roll(&mut log);
    append_as_is(&mut log, BatchBuilder::new(Codec::None).producer(1, 0, 0).transactional(), &[(Some("a"), Some("3"))]);
    roll(&mut log);
    put(&mut log, &[(Some("a"), Some("4"))]);
    roll(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(1, "a"), (2, "a"), (3, "a")]));
    end_transaction(&mut log, 1, 0, true);
    roll(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(3, "a")]));
}

#[test]
fn the_last_batch_of_each_producer_stays_as_a_header() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    let producer = |sequence| BatchBuilder::new(Codec::Gzip).producer(7, 3, sequence);
    append_as_is(&mut log, producer(0), &[(Some("a"), Some("1"))]);
    append_as_is(&mut log, producer(1), &[(Some("a"), Some("2")), (Some("a"), Some("3"))]);
    put(&mut log, &[(Some("a"), Some("4")), (Some("b"), Some("1"))]);
    roll(&mut log);
    dirty(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1);
    let batches = all_batches(&log.reader());
    let (first, _) = BatchView::parse(&batches[0]).unwrap();
    assert_eq!((first.base_offset(), first.last_offset(), first.record_count()), (Offset(1), Offset(2), 0));
    assert_eq!(
        (first.producer_id(), first.producer_epoch(), first.base_sequence(), first.last_sequence()),
        (7, 3, 1, 2)
    );
    assert_eq!(first.attributes().codec(), Ok(Codec::None));
    drop(log);
    for name in names(&fs).iter().filter(|name| name.ends_with(".snapshot")) {
        fs.remove_file(&path(name)).unwrap();
    }
    fs.remove_file(&path("highwater-state")).unwrap();
    let (log, _) = open(&fs, &compacted());
    let known = log.producers().get(7).unwrap();
    assert_eq!((known.last_sequence(), known.last_offset(), known.epoch()), (2, Offset(2), 3));
}

#[test]
fn a_batch_that_loses_records_keeps_its_header_and_its_codec() {
    for codec in Codec::ALL {
        let mut log = new_log(&disk(1), &compacted());
        let long = "long ".repeat(5000);
        let pairs = [("a", "1"), ("b", "1"), ("c", &*long), ("d", "1"), ("e", "1")]
            .map(|(key, value)| (Some(key), Some(value)));
        append_as_is(&mut log, BatchBuilder::new(codec).producer(4, 1, 10).transactional(), &pairs);
        end_transaction(&mut log, 4, 1, true);
        let whole = keyed_batch(
            BatchBuilder::new(codec).base_offset(Offset(6)).leader_epoch(LeaderEpoch(0)),
            T0,
            &[(Some("f"), Some("1"))],
        );
        log.append_replicated(TimestampMs(T0), &whole).unwrap();
        roll(&mut log);
        put(&mut log, &[(Some("b"), Some("2")), (Some("e"), Some("2"))]);
        roll(&mut log);
        let before = records(&log.reader());
        let old = all_batches(&log.reader());
        assert_eq!(compact(&mut log, T0).len(), 1, "{codec}");
        let new = all_batches(&log.reader());
        let (old, new_one) = (BatchView::parse(&old[0]).unwrap().0, BatchView::parse(&new[0]).unwrap().0);
        let expected = |header: &BatchView<'_>| {
            (
                (header.base_offset(), header.last_offset(), header.leader_epoch(), header.attributes()),
                (header.producer_id(), header.producer_epoch(), header.base_sequence(), header.last_sequence()),
            )
        };
        assert_eq!(expected(&new_one), expected(&old), "{codec}");
        assert_eq!((new_one.record_count(), new_one.max_timestamp()), (3, TimestampMs(T0 + 3)));
        assert_eq!(new[2], whole, "what loses nothing is the same to the byte");
        let after = records(&log.reader());
        assert_eq!(after.keys().copied().collect::<Vec<_>>(), [0, 2, 3, 5, 6, 7, 8], "{codec}");
        assert!(after.iter().all(|(offset, record)| *record == before[offset]), "{codec}");
    }
}

#[test]
fn what_does_not_fit_into_the_map_is_compacted_in_more_passes() {
    let outcome = |keys_max: u64| {
        let mut options = compacted();
        compaction(&mut options).memory = CompactionMemory::bounded(24 * (keys_max + 2));
        let mut log = new_log(&disk(1), &options);
        for round in 0..3 {
            for key in 0..20 {
                let (one, other) = (format!("key {key}"), format!("key {}", (key * 7 + round) % 20));
                put(&mut log, &[(Some(&one), Some("1")), (Some(&other), Some("2"))]);
            }
        }
        roll(&mut log);
        let passes = compact(&mut log, T0).len();
        assert_eq!(log.cleaner_offset(), Offset(120));
        (keys(&log.reader()), passes)
    };
    let (expected, passes) = outcome(200);
    assert_eq!((expected.len(), passes), (20, 1));
    for keys_max in [1, 2, 5, 12, 19] {
        let (found, passes) = outcome(keys_max);
        assert_eq!(found, expected, "{keys_max} keys");
        assert!(passes > 1 && passes <= 120, "{keys_max} keys: {passes}");
    }
}

#[test]
fn memory_that_others_hold_is_waited_for() {
    let mut options = compacted();
    compaction(&mut options).memory = CompactionMemory::bounded(1000);
    compaction(&mut options).piece_bytes = 1;
    let fill = |log: &mut highwater_storage::Log| {
        for _ in 0..40 {
            put(log, &[(Some("a"), Some("1"))]);
        }
        roll(log);
    };
    let (mut one, mut other) = (new_log(&disk(1), &options), new_log(&disk(2), &options));
    fill(&mut one);
    fill(&mut other);
    let limits = WorkLimits::new(Offset(40));
    assert_eq!(one.housekeeping().step(TimestampMs(T0), &limits).unwrap(), Some(Step::Compacting));
    assert_eq!(other.housekeeping().step(TimestampMs(T0), &limits).unwrap(), None, "nothing is left for it");
    assert_eq!(compact(&mut one, T0).len(), 1);
    assert_eq!(compact(&mut other, T0).len(), 1);
    assert_eq!(keys(&one.reader()), keys(&other.reader()));
}

#[test]
fn nothing_is_done_before_so_much_is_dirty() {
    let mut options = compacted();
    compaction(&mut options).min_cleanable_dirty_ratio = 0.5;
    let mut log = new_log(&disk(1), &options);
    for key in ["a", "b", "c", "d"] {
        put(&mut log, &[(Some(key), Some("1"))]);
    }
    roll(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1, "all is dirty");
    for key in ["a", "b", "c", "d"] {
        assert_eq!(compact(&mut log, T0), [], "at {key}");
        put(&mut log, &[(Some(key), Some("2"))]);
        roll(&mut log);
    }
    assert_eq!(compact(&mut log, T0), [], "half of it is dirty, not more");
    put(&mut log, &[(Some("e"), Some("1"))]);
    roll(&mut log);
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(4, "a"), (5, "b"), (6, "c"), (7, "d"), (8, "e")]));
}

#[test]
fn young_records_wait_and_old_ones_do_not() {
    let mut options = compacted();
    compaction(&mut options).min_compaction_lag_ms = 1000;
    let mut log = new_log(&disk(1), &options);
    for _ in 0..3 {
        put(&mut log, &[(Some("a"), Some("1"))]);
        roll(&mut log);
    }
    // The records are of T0, T0 + 1 and T0 + 2.
    assert_eq!(compact(&mut log, T0 + 999), []);
    assert_eq!(compact(&mut log, T0 + 1001).len(), 1);
    assert_eq!((log.cleaner_offset(), keys(&log.reader())), (Offset(2), owned(&[(1, "a"), (2, "a")])));

    let mut options = compacted();
    compaction(&mut options).min_cleanable_dirty_ratio = 1.0;
    compaction(&mut options).max_compaction_lag_ms = 1000;
    let mut log = new_log(&disk(1), &options);
    put(&mut log, &[(Some("a"), Some("1"))]);
    put(&mut log, &[(Some("a"), Some("2"))]);
    assert_eq!(compact(&mut log, T0 + 1000), []);
    assert_eq!(bases(&log), [0]);
    assert_eq!(compact(&mut log, T0 + 1001).len(), 1, "the active segment rolled in time");
    assert_eq!((bases(&log), keys(&log.reader())), (vec![0, 2], owned(&[(1, "a")])));
}

#[test]
fn what_is_not_replicated_or_not_flushed_stays() {
    let mut log = new_log(&disk(1), &compacted());
    for _ in 0..4 {
        put(&mut log, &[(Some("a"), Some("1"))]);
        roll(&mut log);
    }
    assert_eq!(compact_below(&mut log, T0, Offset(0)), []);
    assert_eq!(compact_below(&mut log, T0, Offset(1)).len(), 1);
    assert_eq!(keys(&log.reader()).len(), 4);
    assert_eq!(compact_below(&mut log, T0, Offset(3)).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(2, "a"), (3, "a")]));
}

#[test]
fn a_segment_that_cannot_be_compacted_stays_and_with_it_what_is_said_of_it() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    put(&mut log, &[(Some("a"), Some("1"))]);
    put(&mut log, &[(Some("a"), Some("2"))]);
    roll(&mut log);
    put(&mut log, &[(Some("b"), Some("1"))]);
    put(&mut log, &[(Some("b"), Some("2"))]);
    roll(&mut log);
    put(&mut log, &[(Some("b"), None)]);
    put(&mut log, &[(Some("c"), Some("1"))]);
    put(&mut log, &[(Some("c"), Some("2"))]);
    roll(&mut log);
    let file = fs.open(&path("00000000000000000002.log"), OpenMode::ReadWrite).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 70).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 70).unwrap();
    let rotten = file_bytes(&fs, "00000000000000000002.log");
    for (at, expected) in [(0, 1), (DAY, 1), (2 * DAY, 1)] {
        let steps = compact(&mut log, T0 + at);
        let [Step::Compacted { segments_left_out, .. }] = *steps else { panic!("{steps:?}") };
        assert_eq!(segments_left_out, expected);
        dirty(&mut log);
    }
    assert_eq!(file_bytes(&fs, "00000000000000000002.log"), rotten);
    let text = |log: &[u8], word: &[u8]| log.windows(word.len()).filter(|at| at == &word).count();
    let first = file_bytes(&fs, "00000000000000000000.log");
    assert_eq!(text(&first, b"header"), 1, "of a one record stays");
    let third = file_bytes(&fs, "00000000000000000004.log");
    assert!(text(&third, b"header") >= 2, "the tombstone of b stays: a record of b may be in the damaged segment");
}

#[test]
fn a_batch_that_claims_offsets_of_others_costs_none_of_theirs() {
    // No checksum covers a batch's first offset. In the first segment and in the second, first and second batch.
    for (base, offset) in [(0, 0), (0, 1), (2, 2), (2, 3)] {
        let length = batch_bytes();
        let at = if offset == base { 0 } else { length };
        for claimed in
            [-1, 0, 1, 2, 3, 4, 5, 6, 7, 1 << 33, i64::MAX - 1].into_iter().filter(|claimed| *claimed != offset)
        {
            let fs = disk(1);
            let mut log = new_log(&fs, &compacted());
            for _ in 0..3 {
                put(&mut log, &[(Some("a"), Some("1"))]);
                put(&mut log, &[(Some("b"), Some("1"))]);
                roll(&mut log);
            }
            put(&mut log, &[(Some("c"), Some("1"))]);
            let end = log.end();
            let file = fs.open(&path(&format!("{base:020}.log")), OpenMode::ReadWrite).unwrap();
            file.write_all_at(&i64::to_be_bytes(claimed), at).unwrap();
            file.sync_data().unwrap();
            let steps = compact(&mut log, T0);
            let [Step::Compacted { cleaner_offset, .. }] = *steps else { panic!("{steps:?}") };
            assert_eq!(cleaner_offset, Offset(6), "{offset} claims {claimed}");
            assert_eq!(
                log.segments().last().map(|segment| (segment.base, segment.size_bytes)),
                Some((Offset(6), length))
            );
            drop(log);
            let (log, _) = open(&fs.kill(), &compacted());
            assert_eq!(log.end(), end, "{offset} claims {claimed}");
            for latest in 4..7 {
                let fetched = log.reader().read(Offset(latest), ReadLimit::bytes(1)).unwrap();
                let (batch, _) = BatchView::parse(&fetched.bytes).unwrap();
                assert_eq!(
                    (batch.base_offset(), batch.record_count()),
                    (Offset(latest), 1),
                    "{offset} claims {claimed}"
                );
            }
        }
    }
}

#[test]
fn a_batch_whose_records_claim_offsets_of_others_is_left_as_it_is() {
    // The record's offset in the batch, zig-zag coded, of the second of two: past the batch, the first's again, before it.
    for claimed in [4, 6, 0, 1] {
        let mut log = new_log(&disk(1), &compacted());
        let mut batch = keyed_batch(
            BatchBuilder::new(Codec::None).base_offset(Offset(0)).leader_epoch(LeaderEpoch(0)),
            T0,
            &[(Some("a"), Some("1")), (Some("b"), Some("1"))],
        );
        let second = HEADER_BYTES + 1 + usize::from(batch[HEADER_BYTES] / 2);
        assert_eq!(batch[second + 3], 2, "the second record is one behind the first offset");
        batch[second + 3] = claimed;
        let crc = crc32c::crc32c(&batch[21..]);
        batch[17..21].copy_from_slice(&crc.to_be_bytes());
        log.append_replicated(TimestampMs(T0), &batch).unwrap();
        roll(&mut log);
        put(&mut log, &[(Some("b"), Some("2"))]);
        roll(&mut log);
        let steps = compact(&mut log, T0);
        let [Step::Compacted { cleaner_offset: Offset(3), segments_left_out: 1, .. }] = *steps else {
            panic!("{steps:?}")
        };
        assert!(all_batches(&log.reader())[0] == batch);
    }
}

/// Bytes of each batch of one record with key and value of one byte.
fn batch_bytes() -> u64 {
    keyed_batch(BatchBuilder::new(Codec::None), T0, &[(Some("a"), Some("1"))]).len() as u64
}

#[test]
fn a_large_segment_becomes_several_when_segments_are_to_be_smaller() {
    let fs = disk(1);
    let mut options = compacted();
    options.segment_bytes = 1 << 20;
    let mut log = new_log(&fs, &options);
    for round in 0..2 {
        for key in 0..30 {
            put(&mut log, &[(Some(&format!("key {key}")), Some(&format!("value {round}")))]);
        }
    }
    roll(&mut log);
    options.segment_bytes = 1000;
    log.set_options(options.clone()).unwrap();
    assert_eq!(bases(&log), [0, 60]);
    assert_eq!(compact(&mut log, T0).len(), 1);
    let expected = keys(&log.reader());
    assert_eq!(expected.len(), 30);
    assert!(log.segments().len() > 3, "{:?}", log.segments());
    assert!(log.segments().iter().all(|segment| segment.size_bytes <= 1000));
    drop(log);
    let (log, report) = open(&fs, &options);
    assert_eq!((keys(&log.reader()), report.cut), (expected, None));
}

#[test]
fn a_truncation_makes_a_compaction_under_way_void() {
    let mut options = compacted();
    compaction(&mut options).piece_bytes = 1;
    // After how many pieces the truncation comes in, and whether while one of them runs.
    for (pieces, within) in (0..12).flat_map(|pieces| [(pieces, false), (pieces, true)]) {
        let fs = disk(1);
        let mut log = new_log(&fs, &options);
        for _ in 0..3 {
            put(&mut log, &[(Some("a"), Some("1")), (Some("b"), Some("1"))]);
            roll(&mut log);
        }
        let limits = WorkLimits::new(log.end());
        for _ in 0..pieces {
            log.housekeeping().step(TimestampMs(T0), &limits).unwrap();
        }
        let replaced = bases(&log) != [0, 2, 4, 6];
        let job = if within { log.begin_work(TimestampMs(T0), &limits) } else { None };
        log.truncate_to(Offset(4)).unwrap();
        if let Some(job) = job {
            log.finish_work(job.run()).unwrap();
        }
        put(&mut log, &[(Some("c"), Some("1"))]);
        assert!(log.cleaner_offset() <= Offset(4));
        compact(&mut log, T0 + 1);
        // Were the lost records at 4 and 5 to count, a and b would be gone. Unless what they superseded was gone already.
        let found = keys(&log.reader());
        if !replaced {
            assert_eq!(found, owned(&[(2, "a"), (3, "b"), (4, "c")]), "{pieces} {within}");
        }
        let unfinished = |name: &String| name.contains("cleaned") || name.contains("swap");
        assert!(!names(&fs).iter().any(unfinished), "{:?}", names(&fs));
        drop(log);
        assert_eq!(keys(&open(&fs, &options).0.reader()), found);
    }
}

#[test]
fn readers_go_on_over_each_step_with_no_file_kept_open() {
    let mut options = compacted();
    options.open_files = OpenFiles::bounded(0);
    compaction(&mut options).piece_bytes = 100;
    let fs = disk(1);
    let mut log = new_log(&fs, &options);
    for round in 0..6 {
        for key in 0..10 {
            put(&mut log, &[(Some(&format!("key {}", key % (round + 1))), Some("value"))]);
        }
        roll(&mut log);
    }
    let latest = |log: &highwater_storage::Log| -> std::collections::BTreeMap<String, i64> {
        keys(&log.reader()).into_iter().map(|(offset, key)| (key, offset)).collect()
    };
    let expected = latest(&log);
    let limits = WorkLimits::new(log.end());
    let mut steps = 0;
    while log.housekeeping().step(TimestampMs(T0), &limits).unwrap().is_some() {
        assert_eq!(latest(&log), expected);
        for from in 0..60 {
            let fetched = log.read(Offset(from), ReadLimit::bytes(1 << 16)).unwrap();
            assert!(fetched.next > Offset(from), "{from}");
        }
        steps += 1;
    }
    assert!(steps > 20, "{steps}");
    assert_eq!(keys(&log.reader()).len(), 6);
    // What was replaced goes after the delay.
    let deleted = || names(&fs).iter().filter(|name| name.ends_with(".deleted")).count();
    assert!(deleted() > 0);
    while log.housekeeping().step(TimestampMs(T0 + 10), &limits).unwrap().is_some() {}
    assert_eq!(deleted(), 0);
}

#[test]
fn retention_takes_segments_from_under_a_compaction() {
    let mut options = compacted();
    compaction(&mut options).piece_bytes = 1;
    // A file that is closed between two pieces cannot be opened again once it has left the log.
    options.open_files = OpenFiles::bounded(0);
    for pieces in 0..14 {
        let fs = disk(1);
        let mut log = new_log(&fs, &options);
        for _ in 0..3 {
            put(&mut log, &[(Some("a"), Some("1")), (Some("b"), Some("1"))]);
            roll(&mut log);
        }
        let limits = WorkLimits::new(log.end());
        for _ in 0..pieces {
            log.housekeeping().step(TimestampMs(T0), &limits).unwrap();
        }
        log.advance_start(Offset(4)).unwrap();
        compact(&mut log, T0);
        compact(&mut log, T0 + 1);
        assert_eq!(keys(&log.reader()).iter().filter(|(offset, _)| *offset >= 4).count(), 2, "{pieces}");
        assert_eq!(log.start(), Offset(4));
        let below = log.segments().iter().filter(|segment| segment.end <= Offset(4)).count();
        assert_eq!(below, 0, "{pieces}: what lies below the start goes, though it is compacted");
        drop(log);
        let (log, _) = open(&fs, &options);
        assert_eq!(log.start(), Offset(4));
        assert_eq!(keys(&log.reader()).iter().filter(|(offset, _)| *offset >= 4).count(), 2, "{pieces}");
    }
}

#[test]
fn the_largest_timestamp_is_that_of_a_record_which_is_still_there() {
    let mut log = new_log(&disk(1), &compacted());
    let builder = BatchBuilder::new(Codec::None).producer(7, 0, 0).base_offset(Offset(0)).leader_epoch(LeaderEpoch(0));
    log.append_replicated(TimestampMs(T0), &keyed_batch(builder, T0 + DAY, &[(Some("a"), Some("1"))])).unwrap();
    put(&mut log, &[(Some("a"), Some("2")), (Some("b"), Some("1"))]);
    put(&mut log, &[(Some("c"), Some("1"))]);
    roll(&mut log);
    dirty(&mut log);
    let found = |log: &highwater_storage::Log, upper| {
        log.reader().max_timestamp(Offset(upper)).unwrap().map(|found| (found.offset.0, found.timestamp.0))
    };
    assert_eq!(found(&log, 5), Some((0, T0 + DAY)));
    assert_eq!(compact(&mut log, T0).len(), 1);
    let first = all_batches(&log.reader()).remove(0);
    let (first, _) = BatchView::parse(&first).unwrap();
    assert_eq!((first.record_count(), first.max_timestamp()), (0, TimestampMs(T0 + DAY)), "it is in the way");
    assert_eq!(found(&log, 5), Some((4, T0 + 4)));
    assert_eq!(found(&log, 4), Some((3, T0 + 3)));
    assert_eq!(found(&log, 2), Some((1, T0 + 1)));
    assert_eq!(found(&log, 1), None);
}

#[test]
fn what_is_not_flushed_holds_readers_of_committed_records_back_no_longer_than_the_high_watermark() {
    let mut options = compacted();
    options.segment_bytes = 1 << 20;
    let with = options.compaction.clone();
    // Compacted from the beginning, or from when it is full.
    for first in [with.clone(), None] {
        options.compaction = first;
        let mut log = new_log(&disk(1), &options);
        put(&mut log, &[(Some("a"), Some("committed"))]);
        let transactional = BatchBuilder::new(Codec::None).producer(1, 0, 0).transactional();
        append_as_is(&mut log, transactional, &[(Some("a"), Some("aborted"))]);
        roll(&mut log);
        log.flush().unwrap();
        end_transaction(&mut log, 1, 0, false);
        put(&mut log, &[(Some("b"), Some("1"))]);
        assert_eq!((log.flushed(), log.end()), (Offset(2), Offset(4)));
        let limits = WorkLimits::new(log.end());
        while log.housekeeping().step(TimestampMs(T0), &limits).unwrap().is_some() {}
        assert_eq!(log.last_stable_offset(Offset(2)), if options.compaction.is_some() { Offset(1) } else { Offset(2) });
        assert_eq!(log.last_stable_offset(Offset(4)), Offset(4));
        options.compaction = with.clone();
        log.set_options(options.clone()).unwrap();
        assert_eq!(compact(&mut log, T0), [], "the marker may be lost yet");
        log.flush().unwrap();
        assert_eq!(compact(&mut log, T0).len(), 1);
        assert_eq!(keys(&log.reader()), owned(&[(0, "a"), (3, "b")]));
    }
}

#[test]
fn a_compaction_under_way_is_void_once_a_marker_it_went_by_is_cut() {
    let mut options = compacted();
    compaction(&mut options).piece_bytes = 1;
    for is_commit in [true, false] {
        let fs = disk(1);
        let mut log = new_log(&fs, &options);
        put(&mut log, &[(Some("a"), Some("1"))]);
        let transactional = BatchBuilder::new(Codec::None).producer(1, 0, 0).transactional();
        append_as_is(&mut log, transactional, &[(Some("a"), Some("2"))]);
        roll(&mut log);
        end_transaction(&mut log, 1, 0, is_commit);
        log.flush().unwrap();
        let limits = WorkLimits::new(log.end());
        assert_eq!(log.housekeeping().step(TimestampMs(T0), &limits).unwrap(), Some(Step::Compacting));
        // A leader that was not in step: the transaction is open again, and ends the other way.
        let job = log.begin_work(TimestampMs(T0), &limits).unwrap();
        log.truncate_to(Offset(2)).unwrap();
        log.finish_work(job.run()).unwrap();
        compact(&mut log, T0 + 1);
        assert_eq!(keys(&log.reader()), owned(&[(0, "a"), (1, "a")]), "commit {is_commit}");
        end_transaction(&mut log, 1, 0, !is_commit);
        log.flush().unwrap();
        assert_eq!(compact(&mut log, T0 + 2).len(), 1);
        assert_eq!(keys(&log.reader()), owned(&[(if is_commit { 0 } else { 1 }, "a")]));
    }
}

#[test]
fn a_log_that_was_opened_is_compacted_once_all_its_markers_are_replicated() {
    let fs = disk(1);
    let mut log = new_log(&fs, &compacted());
    put(&mut log, &[(Some("a"), Some("1"))]);
    let transactional = BatchBuilder::new(Codec::None).producer(1, 0, 0).transactional();
    append_as_is(&mut log, transactional, &[(Some("a"), Some("2"))]);
    roll(&mut log);
    end_transaction(&mut log, 1, 0, false);
    log.close().unwrap();
    let mut log = open(&fs, &compacted()).0;
    assert_eq!(compact_below(&mut log, T0, Offset(2)), [], "another leader may not have the marker");
    assert_eq!(compact(&mut log, T0).len(), 1);
    assert_eq!(keys(&log.reader()), owned(&[(0, "a")]));
}
