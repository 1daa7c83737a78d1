//! Compaction of a log with few keys, in pieces, with little memory, beside appends, kills and power cuts.
//!
//! What must hold at any time: every record that is there was appended, at this offset; of each key the last record that
//! is left is the last that was appended (or there is none, and that was a tombstone: an older value never comes back);
//! the end stays; what was flushed survives a power cut, at any call of a compaction too.

use std::collections::{BTreeMap, BTreeSet};

use highwater_storage::fs::SimFs;
use highwater_storage::{
    BatchBuilder, BatchView, Codec, CompactionMemory, CompactionOptions, LeaderEpoch, Log, LogOptions, Offset, Record,
    TimestampMs, WorkLimits, batches,
};

use crate::directory::{Readable, is_good, unpack};
use crate::input::Input;
use crate::model::{NOW, disk, open, options};

/// A key, and its value if it is no tombstone.
type Keyed = (u8, Option<Vec<u8>>);

struct Run {
    fs: SimFs,
    options: LogOptions,
    log: Log,
    /// All that was appended, by offset.
    appended: BTreeMap<i64, Keyed>,
    end: Offset,
    now: TimestampMs,
    epoch: LeaderEpoch,
}

/// The target's body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let options = compacted(&mut input);
    if input.below(8) == 0 {
        return any_directory(input.rest(), &options);
    }
    let fs = disk();
    let log = open(&fs, &options).0;
    let (end, now, epoch) = (Offset::ZERO, NOW, LeaderEpoch(0));
    let mut run = Run { fs, options, log, appended: BTreeMap::new(), end, now, epoch };
    for _ in 0..1 + input.below(40) {
        match input.below(12) {
            0..=4 => run.append(&mut input),
            5 => {
                run.log.flush().expect("the simulated disk works");
            }
            6 => run.now = run.now.after(1_000 * i64::from(input.byte())),
            7..=8 => run.compact(1 + input.below(8)),
            9 => run.restart(&mut input),
            10 => run.power_cut(&mut input),
            _ => run.epoch.0 += 1,
        }
        run.check();
        if input.is_empty() {
            break;
        }
    }
    run.log.checkpoint().expect("the simulated disk works");
    run.compact(200);
    run.check();
    run.restart(&mut input);
    run.check();
}

fn compacted(input: &mut Input<'_>) -> LogOptions {
    let compaction = CompactionOptions {
        delete_retention_ms: input.choose(&[0, 1_000, 100_000]),
        min_cleanable_dirty_ratio: input.choose(&[0.0, 0.3]),
        io_buffer_bytes: input.choose(&[1, 300, 4_096]),
        piece_bytes: input.choose(&[1, 500, 1 << 20]),
        backoff_ms: 0,
        // Room for one key, for a few, for all.
        memory: CompactionMemory::bounded(input.choose(&[1, 100, 300, 1 << 16])),
        ..CompactionOptions::default()
    };
    LogOptions { retention: false, compaction: Some(compaction), file_delete_delay_ms: 500, ..options(input) }
}

/// Compacts whatever a directory holds: what is left was there, at its offset, as far as all could be read, and the end stays.
fn any_directory(packed: &[u8], options: &LogOptions) {
    let fs = unpack(packed);
    let was_good = is_good(&fs);
    let mut log = open(&fs, options).0;
    let (end, before) = (log.end(), records_of_any(&Readable::of(&log).bytes));
    log.flush().expect("the simulated disk works");
    let limits = WorkLimits::new(end);
    for _ in 0..2_000 {
        match log.housekeeping().step(NOW, &limits) {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => panic!("housekeeping: {error}"),
        }
    }
    assert_eq!(log.end(), end, "the end");
    let after = records_of_any(&Readable::of(&log).bytes);
    for (offset, records) in after.iter().filter(|(offset, records)| before.get(offset) != Some(records)) {
        // Where batches begin in what is damaged depends on the index too, and on what is in front of it: one may be made
        // out that was not, for an offset that another one claimed.
        let were_somewhere = !was_good && records.is_subset(&records_anywhere(packed));
        assert!(were_somewhere, "the record at {offset} was not there: {records:?}, but {:?}", before.get(offset));
    }
    drop(log);
    let log = open(&fs.kill(), options).0;
    assert_eq!(log.end(), end, "the end after a kill");
    // What becomes of damage when a log is opened again is what `segment_recovery` looks at.
    assert!(!was_good || records_of_any(&Readable::of(&log).bytes) == after, "after a kill it is another log");
}

/// A record's key and value.
type Any = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The records of those batches that can be read, by offset. In a damaged directory several may claim one.
fn records_of_any(bytes: &[u8]) -> BTreeMap<i64, BTreeSet<Any>> {
    let mut records: BTreeMap<i64, BTreeSet<Any>> = BTreeMap::new();
    for batch in batches(bytes).flatten().filter(BatchView::crc_matches) {
        let Ok(mut reader) = batch.read_records(1 << 20) else { continue };
        while let Ok(Some(record)) = reader.next() {
            let record_of_any = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
            records.entry(record.offset.0).or_default().insert(record_of_any);
        }
    }
    records
}

/// The records of all batches that begin at any byte.
fn records_anywhere(bytes: &[u8]) -> BTreeSet<Any> {
    let starts = (0..bytes.len()).filter_map(|start| Some(BatchView::parse(&bytes[start..]).ok()?.0));
    starts.flat_map(|batch| records_of_any(batch.bytes()).into_values().flatten()).collect()
}

impl Run {
    fn append(&mut self, input: &mut Input<'_>) {
        let mut builder = BatchBuilder::new(input.choose(&[Codec::None, Codec::None, Codec::Lz4, Codec::Gzip]));
        let base = self.end;
        for _ in 0..1 + input.below(4) {
            let key = input.byte() % 6;
            let is_tombstone = input.below(4) == 0;
            let value = (!is_tombstone).then(|| vec![input.byte(); 1 + input.below(120)]);
            let record = Record { value: value.as_deref(), ..Record::keyed(self.now, &[], &[]) };
            let name = [b'k', key];
            builder.push(Record { key: Some(&name), ..record });
            self.appended.insert(self.end.0, (key, value));
            self.end = self.end.next();
        }
        let appended = self.log.append(self.now, self.epoch, &builder.build()).expect("a good batch is taken");
        assert_eq!((appended.first, self.log.end()), (base, self.end));
    }

    fn compact(&mut self, steps: usize) {
        let limits = WorkLimits::new(self.log.end());
        for _ in 0..steps {
            match self.log.housekeeping().step(self.now, &limits) {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => panic!("housekeeping: {error}"),
            }
        }
    }

    fn restart(&mut self, input: &mut Input<'_>) {
        let log = std::mem::replace(&mut self.log, open(&disk(), &self.options).0);
        if input.flag() {
            log.close().expect("the simulated disk works");
        } else {
            drop(log);
            self.fs = self.fs.kill();
        }
        self.log = open(&self.fs, &self.options).0;
        assert_eq!(self.log.end(), self.end, "a process that ends loses nothing");
    }

    /// A power cut at some call of a compaction.
    fn power_cut(&mut self, input: &mut Input<'_>) {
        let flushed = self.log.flushed();
        self.fs.crash_after(u64::try_from(input.below(60)).expect("small"));
        let limits = WorkLimits::new(self.log.end());
        while let Ok(Some(_)) = self.log.housekeeping().step(self.now, &limits) {}
        let images = self.fs.images(10, u64::from(input.byte()));
        let chosen = input.below(images.len());
        for image in &images {
            let log = open(image, &self.options).0;
            let end = log.end();
            assert!(flushed <= end && end <= self.end, "{flushed} was flushed, and the log ends at {end}");
            check(&log, &self.appended, end);
        }
        self.fs = images[chosen].clone();
        self.log = open(&self.fs, &self.options).0;
        self.end = self.log.end();
        self.appended.retain(|offset, _| *offset < self.end.0);
    }

    fn check(&self) {
        assert_eq!(self.log.end(), self.end, "the end");
        check(&self.log, &self.appended, self.end);
    }
}

fn check(log: &Log, appended: &BTreeMap<i64, Keyed>, end: Offset) {
    let left = records(&Readable::of(log).bytes);
    for (offset, record) in &left {
        assert_eq!(appended.get(offset), Some(record), "the record at {offset} is not what was appended there");
    }
    let last = |of: &BTreeMap<i64, Keyed>, key: u8| {
        of.range(..end.0)
            .rev()
            .find(|(_, (other, _))| *other == key)
            .map(|(offset, (_, value))| (*offset, value.clone()))
    };
    for key in 0..6 {
        let (was, is) = (last(appended, key), last(&left, key));
        let is_gone = is.is_none() && was.as_ref().is_none_or(|(_, value)| value.is_none());
        assert!(is == was || is_gone, "of key {key} the last record was {was:?} and is {is:?}");
    }
}

/// The records in these batches by offset.
fn records(mut bytes: &[u8]) -> BTreeMap<i64, Keyed> {
    let mut records = BTreeMap::new();
    while !bytes.is_empty() {
        let (batch, length) = BatchView::parse(bytes).expect("only whole batches are read");
        assert!(batch.crc_matches(), "a batch without its checksum is read");
        let mut reader = batch.read_records(1 << 20).expect("what was appended can be read");
        while let Some(record) = reader.next().expect("what was appended can be read") {
            let key = record.key.and_then(|key| key.get(1)).copied().expect("every record has a key");
            records.insert(record.offset.0, (key, record.value.map(<[u8]>::to_vec)));
        }
        bytes = &bytes[length..];
    }
    records
}
