//! The scrubber: what it finds, how fast it reads, what it does while the log changes.

mod support;

use std::path::Path;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::*;
use support::*;

/// Without retention, which looks at segments on its own account.
fn options() -> LogOptions {
    LogOptions { retention: false, ..small() }
}

/// The last segment grows and is not scrubbed.
fn sealed_bytes(log: &Log) -> u64 {
    let segments = log.segments();
    segments[..segments.len() - 1].iter().map(|segment| segment.size_bytes).sum()
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Pass {
    bytes: u64,
    damaged: u32,
    mislabelled: u32,
    indexes_rebuilt: u32,
}

/// Keeps house until nothing is due at this time, and sums up what the scrubber said.
fn pass(log: &mut Log, now: TimestampMs) -> Pass {
    let mut pass = Pass::default();
    let end = log.end();
    for step in keep_house(log, now, end) {
        if let Step::Scrubbed { bytes, damaged, mislabelled, indexes_rebuilt, .. } = step {
            pass.bytes += bytes;
            pass.damaged += damaged;
            pass.mislabelled += mislabelled;
            pass.indexes_rebuilt += u32::from(indexes_rebuilt);
        }
    }
    pass
}

/// A log of some segments that was closed well and opened again.
fn closed_and_opened(fs: &SimFs) -> Log {
    filled(fs, &options(), 25).close().unwrap();
    open(fs, &options()).0
}

#[test]
fn a_pass_reads_every_sealed_segment_once_and_comes_again_after_the_interval() {
    let fs = disk(1);
    let mut log = closed_and_opened(&fs);
    let week = log.options().scrub_interval_ms;
    let whole = Pass { bytes: sealed_bytes(&log), ..Pass::default() };
    assert!(whole.bytes > 2000);
    assert_eq!(pass(&mut log, NOW), whole);
    assert_eq!(pass(&mut log, NOW.after(week - 1)), Pass::default());
    for number in 25..40 {
        append(&mut log, &numbered(number, 90));
    }
    log.flush().unwrap();
    let longer = Pass { bytes: sealed_bytes(&log), ..Pass::default() };
    assert!(longer.bytes > whole.bytes);
    assert_eq!(pass(&mut log, NOW.after(week)), longer);
    assert!(log.damage().is_empty());
    log.set_options(LogOptions { scrub_interval_ms: -1, ..log.options().clone() }).unwrap();
    assert_eq!(pass(&mut log, NOW.after(10 * week)), Pass::default());
}

/// Every byte of the sealed segments in turn, after a clean close, so that nothing else looks at them.
#[test]
fn every_flipped_byte_is_found_before_a_reader_finds_it() {
    let fs = disk(2);
    let log = filled(&fs, &options(), 25);
    let expected = contents(&log.reader());
    let segments = log.segments();
    log.close().unwrap();
    let mut unseen = std::collections::BTreeSet::new();
    for (at, segment) in segments[..3].iter().enumerate() {
        let name = format!("{:020}.log", segment.base.0);
        let batch_bytes = segment.size_bytes / u64::try_from(segments[at + 1].base - segment.base).unwrap();
        for position in 0..segment.size_bytes {
            let image = fs.images(1, 0).remove(0);
            image.corrupt(&path(&name), |bytes| bytes[usize::try_from(position).unwrap()] ^= 1).unwrap();
            let (mut log, report) = open(&image, &options());
            assert!(report.clean, "{report:?}");
            let found = pass(&mut log, NOW);
            assert_eq!(found.bytes, sealed_bytes(&log));
            if found.damaged == 0 && found.mislabelled == 0 {
                unseen.insert(position % batch_bytes);
                continue;
            }
            let damage = log.damage();
            assert_eq!(damage.len(), usize::try_from(found.damaged).unwrap(), "{name}, byte {position}");
            for damaged in damage {
                assert!(damaged.segment.ends_with(&name) && damaged.offsets.end - damaged.offsets.start <= 1);
                assert!(damaged.position <= position && position < damaged.position + damaged.bytes);
                let error = log.read(damaged.offsets.start, ReadLimit::bytes(1)).unwrap_err();
                assert!(matches!(error, ReadError::Corrupt { .. }), "{error}");
            }
            // All but that batch can be read.
            let mut from = Offset(0);
            let mut kept = Vec::new();
            while from < log.end() {
                match log.read(from, ReadLimit::bytes(1)) {
                    Ok(fetched) => {
                        kept.push(fetched.first.0);
                        from = fetched.next;
                    }
                    Err(ReadError::Corrupt { offsets, .. }) => from = offsets.end,
                    Err(error) => panic!("{name}, byte {position}: {error}"),
                }
            }
            assert!(kept.len() + 1 >= expected.len(), "{name}, byte {position}: {kept:?}");
        }
    }
    // One leader epoch, and all batches of it: the neighbours tell a wrong one. Nothing goes unseen.
    assert_eq!(unseen, std::collections::BTreeSet::new(), "bytes within a batch");
}

#[test]
fn what_was_found_is_news_once() {
    let fs = disk(3);
    filled(&fs, &options(), 25).close().unwrap();
    fs.corrupt(&path("00000000000000000000.log"), |bytes| bytes[100] ^= 1).unwrap();
    let (mut log, _) = open(&fs, &options());
    let week = log.options().scrub_interval_ms;
    assert_eq!(pass(&mut log, NOW).damaged, 1);
    assert_eq!(log.damage().len(), 1);
    assert_eq!(pass(&mut log, NOW.after(week)).damaged, 0);
    assert_eq!(log.damage().len(), 1);
}

#[test]
fn wrong_indexes_are_found_and_written_anew() {
    for (name, change) in [
        // An entry that points behind the batch it names, one that points into it, a time that is too late.
        (".index", (|bytes| bytes[7] ^= 0x20) as fn(&mut Vec<u8>)),
        (".index", |bytes| {
            let behind = bytes[12..16].to_vec();
            bytes[4..8].copy_from_slice(&behind);
            bytes.drain(8..16);
        }),
        (".timeindex", |bytes| {
            let last = bytes.len() - 12;
            let offset = bytes[last + 8..].to_vec();
            bytes[8..12].copy_from_slice(&offset);
            bytes.truncate(12);
        }),
    ] {
        let fs = disk(4);
        filled(&fs, &options(), 25).close().unwrap();
        let name = format!("00000000000000000000{name}");
        let right = file_bytes(&fs, &name);
        fs.corrupt(&path(&name), change).unwrap();
        let (mut log, report) = open(&fs, &options());
        assert_eq!(report.indexes_rebuilt, 0, "opening does not look at it");
        let found = pass(&mut log, NOW);
        assert_eq!((found.damaged, found.indexes_rebuilt), (0, 1), "{name}");
        // Writing it is a piece of housekeeping of its own.
        pass(&mut log, NOW);
        assert!(file_bytes(&fs, &name) == right, "{name}");
    }
}

/// In a log of several epochs, with entries that are missing, say something else, or are of no transaction.
#[test]
fn a_wrong_transaction_index_is_found_and_written_anew() {
    let fs = disk(9);
    let log = with_transactions(&fs, &options());
    assert_eq!(log.epochs().len(), 3);
    let aborted = log.reader().aborted_transactions(Offset(0), log.end()).unwrap();
    let sealed = bases(&log);
    log.close().unwrap();
    let indexes: Vec<String> = sealed[..sealed.len() - 1].iter().map(|base| format!("{base:020}.txnindex")).collect();
    let indexes: Vec<&String> = indexes.iter().filter(|name| names(&fs).contains(name)).collect();
    assert!(indexes.len() > 1, "{indexes:?}");
    let changes: [fn(&mut Vec<u8>); 4] = [
        Vec::clear,
        // The first offset, the producer, an entry twice.
        |bytes| bytes[17] ^= 1,
        |bytes| bytes[9] ^= 1,
        |bytes| bytes.extend_from_within(..34),
    ];
    for name in indexes {
        let right = file_bytes(&fs, name);
        for (number, change) in changes.iter().enumerate() {
            let image = fs.images(1, 0).remove(0);
            image.corrupt(&path(name), *change).unwrap();
            let (mut log, report) = open(&image, &options());
            assert!(report.clean, "{report:?}");
            let found = pass(&mut log, NOW);
            assert_eq!((found.damaged, found.mislabelled, found.indexes_rebuilt), (0, 0, 1), "{name}, change {number}");
            assert_eq!(log.reader().aborted_transactions(Offset(0), log.end()).unwrap(), aborted);
            pass(&mut log, NOW);
            assert!(file_bytes(&image, name) == right, "{name}, change {number}");
        }
    }
}

#[test]
fn no_more_is_read_than_the_rate_allows_and_logs_share_it() {
    let options = LogOptions { scrub_rate: ScrubRate::bytes_per_second(100), ..options() };
    let disks = [disk(5), disk(6)];
    let mut logs = disks.each_ref().map(|fs| {
        filled(fs, &options, 60).close().unwrap();
        open(fs, &options).0
    });
    let whole: u64 = logs.iter().map(sealed_bytes).sum();
    let (mut read, mut seconds) = (0, 0);
    while read < whole {
        for log in &mut logs {
            read += pass(log, NOW.after(seconds * 1000)).bytes;
        }
        // What could be saved up before, and one step too many.
        let most = 100 * (u64::try_from(seconds).unwrap() + 30) + 1000;
        assert!(read <= most, "{read} of {most} bytes after {seconds} s");
        seconds += 1;
    }
    let due = i64::try_from(whole / 100).unwrap();
    assert!((due - 40..=due + 1).contains(&seconds), "{seconds} s where {due} are due");
}

/// Runs a step that began before the log changed.
#[test]
fn a_step_under_way_says_nothing_of_what_was_taken_back_meanwhile() {
    let changes: [fn(&mut Log); 3] = [
        |log| {
            log.truncate_to(Offset(2)).unwrap();
            for number in 2..20 {
                append(log, &numbered(number, 300));
            }
        },
        |log| {
            log.reset_to(Offset(500)).unwrap();
        },
        |log| {
            let end = log.end();
            log.advance_start(end).unwrap();
        },
    ];
    for change in changes {
        let fs = disk(7);
        let mut log = closed_and_opened(&fs);
        let limits = WorkLimits::new(log.end());
        let job = log.begin_work(NOW, &limits).expect("a step of scrubbing is due");
        change(&mut log);
        let done = job.run();
        if let Some(step) = log.finish_work(done).unwrap() {
            assert!(matches!(step, Step::Scrubbed { .. }), "{step:?}");
        }
        assert_eq!(log.damage(), []);
        let before = try_contents(&log.reader()).unwrap();
        assert_eq!(pass(&mut log, NOW).damaged, 0);
        assert_eq!(try_contents(&log.reader()).unwrap(), before);
    }
}

#[test]
fn a_segment_that_cannot_be_read_is_passed_over_and_told_once_a_pass() {
    let fs = disk(8);
    let mut log = closed_and_opened(&fs);
    let whole = sealed_bytes(&log);
    fs.inject_on(Fault::Eio, Call::Read, "00000000000000000006.log", 0);
    let limits = WorkLimits::new(log.end());
    let (mut errors, mut bytes) = (0, 0);
    for _ in 0..100 {
        match log.housekeeping().step(NOW, &limits) {
            Ok(Some(Step::Scrubbed { bytes: read, .. })) => bytes += read,
            Ok(_) => {}
            Err(FlushError::Io(error)) => {
                assert!(error.path.ends_with("00000000000000000006.log"), "{error}");
                errors += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(errors, 1);
    assert!(bytes < whole && bytes > whole / 2);
    assert!(log.fence().is_none());
    assert!(fs.metadata(Path::new(DIR)).is_ok());
}
