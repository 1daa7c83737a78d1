//! Records gathered in front of a log: nothing is in it before it is appended, and nothing comes twice or out of order.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::{
    AppendError, BatchRefused, BufferPolicy, Codec, Durability, FlushPolicy, LeaderEpoch, Log, LogOptions, Offset,
    OpenHints, ProduceRules, Pushed, ReadLimit, Record, RecordBuffer, TimestampMs, batches,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn disk() -> SimFs {
    let fs = SimFs::new(7);
    fs.create_dir(Path::new("/log")).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn open(fs: &SimFs, options: LogOptions) -> Log {
    Log::open_with(Arc::new(fs.clone()), Path::new("/log"), options, OpenHints::default()).unwrap().0
}

/// The values of each batch.
fn values(log: &Log) -> Vec<Vec<Vec<u8>>> {
    let (mut found, mut next) = (Vec::new(), log.start());
    while next < log.end() {
        let fetched = log.read(next, ReadLimit::bytes(1 << 20)).unwrap();
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            let mut records = Vec::new();
            let mut reader = batch.read_records(1 << 20).unwrap();
            while let Some(record) = reader.next().unwrap() {
                records.push(record.value.unwrap().to_vec());
            }
            found.push(records);
        }
        next = fetched.next;
    }
    found
}

#[test]
fn records_come_in_batches_of_the_size_asked_for_and_in_order() {
    for codec in [Codec::None, Codec::Lz4] {
        let fs = disk();
        let mut buffer =
            RecordBuffer::new(open(&fs, LogOptions::default()), LeaderEpoch(2), BufferPolicy::up_to(1000).codec(codec));
        let pushed: Vec<Pushed> =
            (0..25_u8).map(|number| buffer.push(NOW, Record::new(NOW, &[number; 100])).unwrap()).collect();
        assert_eq!(buffer.log().end(), Offset(24), "what is in the buffer is not in the log");
        assert_eq!(buffer.buffered(), 1);
        for (number, pushed) in pushed.iter().enumerate() {
            match pushed {
                Pushed::Buffered => assert!(number == 0 || number % 8 != 0),
                Pushed::Appended(appended) => {
                    assert_eq!((appended.first.0, appended.last.0), (number as i64 - 8, number as i64 - 1));
                    assert_eq!(appended.durability, Durability::Buffered);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(buffer.close(NOW).unwrap().end, Offset(25));
        let found = values(&open(&fs, LogOptions::default()));
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [8, 8, 8, 1]);
        let all: Vec<u8> = found.concat().iter().map(|value| value[99]).collect();
        assert_eq!(all, (0..25).collect::<Vec<u8>>());
    }
}

#[test]
fn a_record_waits_no_longer_than_asked_for_when_another_comes() {
    let fs = disk();
    let policy = BufferPolicy::up_to(1 << 16).linger_ms(5);
    let options = LogOptions { flush: FlushPolicy::EachAppend, ..LogOptions::default() };
    let mut buffer = RecordBuffer::new(open(&fs, options), LeaderEpoch(0), policy);
    let mut push = |ms| {
        let now = TimestampMs(NOW.0 + ms);
        buffer.push(now, Record::new(now, b"x")).unwrap()
    };
    assert_eq!([push(0), push(5)], [Pushed::Buffered; 2]);
    let Pushed::Appended(appended) = push(6) else { panic!("it was old") };
    assert_eq!((appended.last, appended.durability), (Offset(1), Durability::Synced));
    assert_eq!(push(11), Pushed::Buffered);
    // A clock that was set back does not put it off.
    assert_eq!([push(-1000), push(-995)], [Pushed::Buffered; 2]);
    assert!(matches!(push(-994), Pushed::Appended(_)));
    drop(buffer);
    let expected = [vec![b"x"; 2], vec![b"x"; 4]];
    assert_eq!(values(&open(&fs, LogOptions::default())), expected, "what was in the buffer is gone");
}

#[test]
fn a_record_that_breaks_a_rule_is_refused_and_the_others_stay() {
    let fs = disk();
    let rules = ProduceRules { requires_keys: true, max_message_bytes: 500, ..ProduceRules::default() };
    let options = LogOptions { rules, ..LogOptions::default() };
    let mut buffer = RecordBuffer::new(open(&fs, options), LeaderEpoch(0), BufferPolicy::up_to(1 << 16));
    buffer.push(NOW, Record::keyed(NOW, b"k", b"a")).unwrap();
    let refused = [
        Record::new(NOW, b"no key"),
        Record::keyed(TimestampMs(NOW.0 + 3_600_001), b"k", b"from the future"),
        Record::keyed(NOW, b"k", &[0; 500]),
    ];
    for record in refused {
        assert!(matches!(buffer.push(NOW, record), Err(AppendError::Refused(_))), "{record:?}");
    }
    assert!(matches!(
        buffer.push(NOW, Record::keyed(NOW, b"k", &[0; 500])),
        Err(AppendError::Refused(BatchRefused::TooLarge { .. }))
    ));
    buffer.push(NOW, Record::keyed(NOW, b"k", &[1; 420])).unwrap();
    assert_eq!(buffer.log().end(), Offset(1), "no batch is larger than the rules allow");
    assert_eq!(buffer.append(NOW).unwrap().unwrap().last, Offset(1));
    assert_eq!(buffer.append(NOW).unwrap(), None);
}

#[test]
fn on_a_full_disk_the_records_stay_in_the_buffer() {
    let fs = disk();
    let mut buffer = RecordBuffer::new(open(&fs, LogOptions::default()), LeaderEpoch(0), BufferPolicy::up_to(300));
    for value in [b"a", b"b"] {
        buffer.push(NOW, Record::new(NOW, value)).unwrap();
    }
    fs.inject_on(Fault::Enospc, Call::Write, ".log", 1);
    assert!(matches!(buffer.append(NOW), Err(AppendError::Io(_))));
    assert_eq!(buffer.buffered(), 2);
    buffer.push(NOW, Record::new(NOW, b"c")).unwrap();
    buffer.append(NOW).unwrap().unwrap();
    assert_eq!(values(buffer.log()), [[b"a", b"b", b"c"]]);
}
