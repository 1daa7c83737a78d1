//! Logs opened on copies of the directories.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, OsFs, SimFs};
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

/// A follower that fetches what Kafka wrote, in small pieces, has the same bytes in the end, the same epoch, and the
/// same open transactions.
#[test]
fn followers_of_kafkas_logs_copy_them() {
    const DIR: &str = "/copy";
    for partition in partitions(&CASES).into_iter().filter(|partition| partition.is_sound()) {
        let leader = tempfile::tempdir().expect("a directory");
        copy_files(&partition.dir, leader.path());
        let hints = OpenHints { clean: Some(true), ..OpenHints::default() };
        let open = |fs, dir: &Path| {
            let options = LogOptions { segment_bytes: 1 << 20, ..LogOptions::default() };
            Log::open_with(fs, dir, options, hints).expect("it opens").0
        };
        let leader = open(Arc::new(OsFs), leader.path());
        let fs = SimFs::new(1);
        fs.create_dir(Path::new(DIR)).expect("a directory");
        let mut follower = open(Arc::new(fs), Path::new(DIR));
        follower.reset_to(leader.start()).expect("it starts where the leader does");
        while follower.end() < leader.end() {
            let fetched = leader.read(follower.end(), ReadLimit::bytes(2500)).expect("a read");
            follower.append_replicated(TimestampMs(1_700_000_000_000), &fetched.bytes).expect("it is appended");
        }
        let id = &partition.id;
        assert!(read_all(&follower.reader()) == read_all(&leader.reader()), "{id}: other bytes than the leader's");
        assert_eq!(follower.latest_epoch(), leader.latest_epoch(), "{id}");
        assert_eq!(follower.producers().first_open_transaction(), leader.producers().first_open_transaction(), "{id}");
    }
}
