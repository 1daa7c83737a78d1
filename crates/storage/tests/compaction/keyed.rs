//! Logs of keyed records, and what there is in them.

use std::collections::BTreeMap;
use std::io::Read;

use highwater_storage::compression::decompress;
use highwater_storage::fs::SimFs;
use highwater_storage::{
    BatchBuilder, BatchView, Codec, CompactionOptions, LeaderEpoch, Log, LogOptions, LogReader, Offset, ReadLimit,
    Record, Records, Step, TimestampMs, WorkLimits, batches,
};

use crate::support::{T0, open};

/// A record as it lies in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) timestamp: i64,
    pub(crate) is_control: bool,
}

/// Small segments, everything dirty is worth compacting, and no waiting.
pub(crate) fn compacted() -> LogOptions {
    LogOptions {
        segment_bytes: 1000,
        index_interval_bytes: 100,
        retention: false,
        compaction: Some(CompactionOptions {
            min_cleanable_dirty_ratio: 0.0,
            backoff_ms: 0,
            ..CompactionOptions::default()
        }),
        file_delete_delay_ms: 10,
        producer_id_expiration_ms: i64::MAX,
        ..LogOptions::default()
    }
}

pub(crate) fn compaction(options: &mut LogOptions) -> &mut CompactionOptions {
    options.compaction.as_mut().unwrap()
}

pub(crate) type Pair<'a> = (Option<&'a str>, Option<&'a str>);

/// A batch of keys and values.
pub(crate) fn keyed_batch(builder: BatchBuilder, timestamp: i64, pairs: &[Pair<'_>]) -> Vec<u8> {
    let mut builder = builder;
    for (at, (key, value)) in pairs.iter().enumerate() {
        let timestamp = TimestampMs(timestamp + i64::try_from(at).unwrap());
        let (key, value) = (key.map(str::as_bytes), value.map(str::as_bytes));
        builder.push(Record { timestamp, key, value, headers: &[("header", Some(b"of it"))] });
    }
    builder.build()
}

/// Appends a batch of keys and values, whatever the rules for producers are.
pub(crate) fn put(log: &mut Log, pairs: &[Pair<'_>]) -> Offset {
    let end = log.end();
    let builder = BatchBuilder::new(Codec::None);
    append_as_is(log, builder, pairs);
    end
}

/// Appends a batch as a follower does, at the end.
pub(crate) fn append_as_is(log: &mut Log, builder: BatchBuilder, pairs: &[Pair<'_>]) {
    let end = log.end();
    let builder = builder.base_offset(end).leader_epoch(LeaderEpoch(0));
    let batch = keyed_batch(builder, T0 + end.0, pairs);
    log.append_replicated(TimestampMs(T0), &batch).unwrap();
}

/// Appends the marker that ends a producer's transaction.
pub(crate) fn end_transaction(log: &mut Log, producer: i64, epoch: i16, is_commit: bool) {
    let builder = BatchBuilder::new(Codec::None).producer(producer, epoch, -1).transactional().control();
    let mut builder = builder.base_offset(log.end()).leader_epoch(LeaderEpoch(0));
    let key = [0i16.to_be_bytes(), i16::from(is_commit).to_be_bytes()].concat();
    builder.push(Record::keyed(TimestampMs(T0 + log.end().0), &key, &[0, 0, 0, 0, 0, 7]));
    log.append_replicated(TimestampMs(T0), &builder.build()).unwrap();
}

/// Begins another segment, whatever is in the active one.
pub(crate) fn roll(log: &mut Log) {
    let mut options = log.options().clone();
    let segment_ms = std::mem::replace(&mut options.segment_ms, 1);
    log.set_options(options.clone()).unwrap();
    // Later than any look before: each roll is behind another record.
    let limits = WorkLimits::new(Offset(0));
    let now = TimestampMs(T0 + (log.end().0 << 20));
    while log.housekeeping().step(now, &limits).unwrap().is_some() {}
    options.segment_ms = segment_ms;
    log.set_options(options).unwrap();
}

/// Compacts as long as there is something to do.
pub(crate) fn compact(log: &mut Log, now: i64) -> Vec<Step> {
    compact_below(log, now, log.end())
}

pub(crate) fn compact_below(log: &mut Log, now: i64, high_watermark: Offset) -> Vec<Step> {
    let limits = WorkLimits::new(high_watermark);
    std::iter::from_fn(|| log.housekeeping().step(TimestampMs(now), &limits).unwrap())
        .filter(|step| matches!(step, Step::Compacted { .. }))
        .collect()
}

pub(crate) fn new_log(fs: &SimFs, options: &LogOptions) -> Log {
    open(fs, options).0
}

/// All batches, whole, each checked.
pub(crate) fn all_batches(reader: &LogReader) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut from = reader.start();
    loop {
        let fetched = reader.read(from, ReadLimit::bytes(700)).unwrap();
        if fetched.bytes.is_empty() {
            assert_eq!(from, reader.end(), "reading stops at the end only");
            return all;
        }
        assert!(fetched.next > from, "reading gets on");
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            assert!(batch.crc_matches(), "the checksum at {}", batch.base_offset());
            all.push(batch.bytes().to_vec());
        }
        from = fetched.next;
    }
}

pub(crate) fn records_of(batch: &BatchView<'_>) -> Vec<(i64, Stored)> {
    let mut bytes = Vec::new();
    if batch.record_count() > 0 {
        let codec = batch.attributes().codec().unwrap();
        decompress(codec, batch.records_bytes(), 1 << 30).unwrap().read_to_end(&mut bytes).unwrap();
    }
    let stored = |record: Result<highwater_storage::RecordView<'_>, _>| {
        let record = record.unwrap();
        let offset = batch.base_offset().0 + i64::from(record.offset_delta);
        assert!((batch.base_offset()..=batch.last_offset()).contains(&Offset(offset)));
        let stored = Stored {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            timestamp: batch.base_timestamp().0 + record.timestamp_delta,
            is_control: batch.is_control(),
        };
        (offset, stored)
    };
    Records::new(&bytes, batch.record_count()).map(stored).collect()
}

/// All records by offset.
pub(crate) fn records(reader: &LogReader) -> BTreeMap<i64, Stored> {
    let mut all = BTreeMap::new();
    for bytes in all_batches(reader) {
        let (batch, _) = BatchView::parse(&bytes).unwrap();
        for (offset, stored) in records_of(&batch) {
            assert_eq!(all.insert(offset, stored), None, "offset {offset} is there once");
        }
    }
    all
}

/// Keys with their offsets, in the order of the log, markers left out.
pub(crate) fn keys(reader: &LogReader) -> Vec<(i64, String)> {
    let text = |key: Option<Vec<u8>>| key.map_or_else(|| "-".to_owned(), |key| String::from_utf8(key).unwrap());
    let data = records(reader).into_iter().filter(|(_, stored)| !stored.is_control);
    data.map(|(offset, stored)| (offset, text(stored.key))).collect()
}
