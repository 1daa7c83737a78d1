//! What the tests of the log share.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod transactions;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::{Fs, OpenMode, SimFs};
use highwater_storage::io::FileExt;
use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, OpenHints, ReadError, ReadLimit, Record,
    RecoveryReport, Step, TimestampMs, TransactionMarker, WorkLimits, batches,
};

pub(crate) const T0: i64 = 1_700_000_000_000;
pub(crate) const NOW: TimestampMs = TimestampMs(T0 + 1000);
pub(crate) const DIR: &str = "/data/books-0";

/// A batch of `values` as a producer sends it.
pub(crate) fn batch(timestamp: i64, values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for value in values {
        builder.push(Record::new(TimestampMs(timestamp), value.as_ref()));
    }
    builder.build()
}

/// A batch of one record of about `bytes` bytes, recognisable by its number.
pub(crate) fn numbered(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(bytes.max(8), u8::try_from(number % 251).unwrap());
    batch(T0 + i64::try_from(number).unwrap(), &[&value])
}

/// A batch as a leader stores it.
pub(crate) fn stored(base: i64, epoch: i32, values: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(base)).leader_epoch(LeaderEpoch(epoch));
    for value in values {
        builder.push(Record::new(TimestampMs(T0 + base), value.as_ref()));
    }
    builder.build()
}

/// A disk with an empty directory for one log.
pub(crate) fn disk(seed: u64) -> SimFs {
    let fs = SimFs::new(seed);
    fs.create_dir(Path::new("/data")).unwrap();
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_everything();
    fs
}

pub(crate) fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// Small segments and an index entry for each batch.
pub(crate) fn small() -> LogOptions {
    LogOptions { segment_bytes: 1000, index_interval_bytes: 0, ..LogOptions::default() }
}

pub(crate) fn open(fs: &SimFs, options: &LogOptions) -> (Log, RecoveryReport) {
    open_hinted(fs, options, OpenHints::default())
}

pub(crate) fn open_hinted(fs: &SimFs, options: &LogOptions, hints: OpenHints) -> (Log, RecoveryReport) {
    Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options.clone(), hints).unwrap()
}

/// Appends a batch and returns its first offset.
pub(crate) fn append(log: &mut Log, bytes: &[u8]) -> i64 {
    log.append(NOW, LeaderEpoch(0), bytes).unwrap().first.0
}

/// Everything that can be read: offset and value of each record.
pub(crate) fn contents(reader: &LogReader) -> Vec<(i64, Vec<u8>)> {
    try_contents(reader).unwrap()
}

pub(crate) fn try_contents(reader: &LogReader) -> Result<Vec<(i64, Vec<u8>)>, ReadError> {
    let mut records = Vec::new();
    let mut from = reader.start();
    loop {
        let fetched = reader.read(from, ReadLimit::bytes(700))?;
        if fetched.bytes.is_empty() {
            assert_eq!(from, reader.end(), "reading stops at the end only");
            return Ok(records);
        }
        assert!(fetched.next > from, "reading gets on");
        let mut next = fetched.first;
        for found in batches(&fetched.bytes) {
            let found = found.unwrap();
            assert!(found.crc_matches());
            assert!(found.base_offset() >= next, "offsets rise");
            next = found.next_offset();
            for record in found.records().unwrap() {
                let record = record.unwrap();
                let offset = found.base_offset().0 + i64::from(record.offset_delta);
                if offset >= reader.start().0 {
                    records.push((offset, record.value.unwrap().to_vec()));
                }
            }
        }
        assert_eq!(next, fetched.next);
        from = fetched.next;
    }
}

/// All that can be read, checksums verified, going on behind what is corrupt; the log knows of that afterwards.
pub(crate) fn readable(reader: &LogReader) -> Vec<(i64, Vec<u8>)> {
    let (mut records, mut from) = (Vec::new(), reader.start());
    while from < reader.end() {
        let fetched = match reader.read(from, ReadLimit::bytes(700).verified()) {
            Ok(fetched) => fetched,
            Err(ReadError::Corrupt { offsets, .. }) => {
                assert!(offsets.end > from, "reading gets on from {from}");
                from = offsets.end;
                continue;
            }
            Err(error) => panic!("at {from}: {error}"),
        };
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            for record in batch.records().unwrap() {
                let record = record.unwrap();
                let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                records.push((offset, record.value.unwrap().to_vec()));
            }
        }
        assert!(fetched.next > from, "reading gets on from {from}");
        from = fetched.next;
    }
    records
}

/// Does all housekeeping that is due, below this high watermark.
pub(crate) fn keep_house(log: &mut Log, now: TimestampMs, high_watermark: Offset) -> Vec<Step> {
    let limits = WorkLimits::new(high_watermark);
    std::iter::from_fn(|| log.housekeeping().step(now, &limits).unwrap()).collect()
}

pub(crate) fn file_bytes(fs: &SimFs, name: &str) -> Vec<u8> {
    let file = fs.open(&path(name), OpenMode::Read).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub(crate) fn write_file(fs: &SimFs, name: &str, bytes: &[u8]) {
    let file = fs.open(&path(name), OpenMode::Truncate).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    fs.sync_everything();
}

pub(crate) fn names(fs: &SimFs) -> Vec<String> {
    let mut names: Vec<String> = fs.read_dir(Path::new(DIR)).unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

/// A log of so many batches of one record.
pub(crate) fn filled(fs: &SimFs, options: &LogOptions, batches: u64) -> Log {
    let (mut log, _) = open(fs, options);
    for number in 0..batches {
        append(&mut log, &numbered(number, 90));
    }
    log
}

/// A log of some segments in three epochs, with transactions of two producers of which every other one is aborted,
/// and the last two are open.
pub(crate) fn with_transactions(fs: &SimFs, options: &LogOptions) -> Log {
    let (mut log, _) = open(fs, options);
    for number in 0..46i32 {
        let epoch = LeaderEpoch(number / 16);
        let producer_id = i64::from(number % 2);
        let mut builder = BatchBuilder::new(Codec::None).producer(producer_id, 0, number / 2).transactional();
        builder.push(Record::new(TimestampMs(T0 + i64::from(number)), &[u8::try_from(number).unwrap(); 120]));
        log.append(NOW, epoch, &builder.build()).unwrap();
        if number % 6 > 3 {
            let marker =
                TransactionMarker { producer_id, producer_epoch: 0, is_abort: number % 4 > 1, coordinator_epoch: 0 };
            log.end_transaction(NOW, epoch, &marker).unwrap();
        }
    }
    assert!(log.segments().len() > 4);
    log
}

/// The base offsets of the segments.
pub(crate) fn bases(log: &Log) -> Vec<i64> {
    log.segments().iter().map(|segment| segment.base.0).collect()
}

pub(crate) fn one_segment() -> LogOptions {
    LogOptions { segment_bytes: 1 << 20, index_interval_bytes: 300, ..LogOptions::default() }
}

/// A small seeded generator (SplitMix64): equal seeds give equal runs.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end.max(1)).unwrap()).unwrap()
    }
}
