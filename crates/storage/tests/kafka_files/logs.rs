//! Logs opened on copies of the directories.

use std::sync::Arc;

use highwater_storage::fs::OsFs;
use highwater_storage::{
    BatchBuilder, Codec, Log, LogOptions, LogReader, Offset, OpenHints, ReadLimit, Record, TimestampMs,
};

use crate::case::{CASES, copy_files, partitions};

/// All batches there are, by reads of a few each.
fn read_all(reader: &LogReader) -> Vec<u8> {
    let (mut all, mut from) = (Vec::new(), reader.start());
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(600)).expect("a read");
        assert!(fetched.next > from, "reading gets on from {from}");
        all.extend(fetched.bytes);
        from = fetched.next;
    }
    all
}

/// Directories as Kafka left them, opened, appended to, and opened again after a crash and after a close: with its
/// gaps, emptied batches and transactions, nothing is lost, cut or changed.
#[test]
fn logs_of_kafka_are_opened_and_go_on() {
    for clean in [true, false] {
        for partition in partitions(&CASES).into_iter().filter(|partition| partition.is_sound()) {
            let name = format!("{}, clean: {clean}", partition.id);
            let root = tempfile::tempdir().expect("a directory");
            copy_files(&partition.dir, root.path());
            let end = partition.number("log_end_offset");
            let mut expected = partition.log();
            // A record is appended in each round.
            for round in 0..3 {
                let hints = match round {
                    0 => OpenHints {
                        clean: Some(clean),
                        recovery_point: clean.then_some(Offset(end)),
                        log_start: None,
                        ..OpenHints::default()
                    },
                    _ => OpenHints::default(),
                };
                let options = LogOptions { segment_bytes: 1500, ..LogOptions::default() };
                let (mut log, report) = Log::open_with(Arc::new(OsFs), root.path(), options, hints).expect("it opens");
                assert_eq!((report.cut.as_ref(), report.clean), (None, clean && round == 0 || round == 2), "{name}");
                assert_eq!(log.end().0, end + round, "{name}, round {round}");
                assert!(read_all(&log.reader()) == expected, "{name}, round {round}: other bytes than Kafka's");
                let mut builder = BatchBuilder::new(Codec::None);
                builder.push(Record::new(TimestampMs(1_700_000_000_000), &[b'x'; 300]));
                let epoch = log.latest_epoch();
                log.append(TimestampMs(1_700_000_000_000), epoch, &builder.build()).expect("it goes on");
                expected = read_all(&log.reader());
                assert!(expected.starts_with(&partition.log()), "{name}");
                if round == 1 {
                    log.close().expect("it closes");
                }
            }
        }
    }
}
