//! Readers that follow a log which is appended to, rolled and flushed at full speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_storage::{FlushPolicy, LeaderEpoch, Log, LogOptions, LogReader, Offset, OpenFiles, ReadLimit, batches};

use crate::support::{NOW, T0, batch};

/// Reads up to the end that there is once `done` says so, and asserts that each batch begins where the one before ended.
fn follow(reader: &LogReader, done: &AtomicBool) -> Vec<i64> {
    let (mut offsets, mut from, mut bytes) = (Vec::new(), Offset(0), Vec::new());
    loop {
        // In this order: what was appended before `done` was set is seen by the read after it.
        let finished = done.load(Ordering::SeqCst);
        let end = reader.end();
        let (first, next) = reader.read_into(from, ReadLimit::bytes(900), &mut bytes).unwrap();
        assert_eq!(first, from);
        assert!(next > from || from == end, "nothing at {from}, where the log ends at {end}");
        for batch in batches(&bytes) {
            let batch = batch.unwrap();
            assert!(batch.crc_matches());
            assert_eq!(batch.base_offset(), from, "a gap, or a batch again");
            for record in batch.records().unwrap() {
                let record = record.unwrap();
                let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                assert_eq!(record.value, Some(offset.to_string().as_bytes()));
                offsets.push(offset);
            }
            from = batch.next_offset();
        }
        assert_eq!(from, next);
        if finished && next == end {
            return offsets;
        }
    }
}

/// Each record arrives once and in order at every reader, at the seam of what is flushed, across rolls too.
#[test]
fn s38_readers_at_the_end_get_each_record_once() {
    for flush in [FlushPolicy::None, FlushPolicy::EveryMessages(7)] {
        let directory = tempfile::tempdir().unwrap();
        let options = LogOptions {
            segment_bytes: 3000,
            index_interval_bytes: 200,
            zero_ahead_bytes: 1 << 16,
            open_files: OpenFiles::bounded(3),
            flush,
            ..LogOptions::default()
        };
        let (mut log, _) = Log::open(directory.path().join("log"), options).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let read = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let (reader, done) = (log.reader(), done.clone());
                    scope.spawn(move || follow(&reader, &done))
                })
                .collect();
            for round in 0..1000 {
                let end = log.end().0;
                let values: Vec<String> = (end..end + 1 + round % 3).map(|offset| offset.to_string()).collect();
                log.append(NOW, LeaderEpoch(0), &batch(T0 + round, &values)).unwrap();
                if round % 50 == 49
                    && let Some(job) = log.begin_checkpoint()
                {
                    log.finish_flush(job.run()).unwrap();
                }
            }
            done.store(true, Ordering::SeqCst);
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(log.segments().len() > 20, "it rolled while it was read");
        let all: Vec<i64> = (0..log.end().0).collect();
        assert!(read.iter().all(|offsets| *offsets == all));
    }
}
