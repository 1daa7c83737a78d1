//! What is written: a topic for each thing that a partition's directory may hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use highwater_storage::{
    BatchBuilder, Codec, CompactionOptions, LeaderEpoch, Log, LogOptions, Offset, Record, Step, TimestampMs,
    TransactionMarker, WorkLimits,
};

use crate::records::{Row, read_all};
use crate::root::small_segments;

/// The time of the first record; each one after it is 10 ms later.
const T0: i64 = 1_700_000_000_000;

type Fill = fn(&mut Topic<'_>, &Path) -> anyhow::Result<()>;

/// The topic whose files are damaged and repaired once it is filled.
pub(crate) const REPAIRED: &str = "repaired";

/// The topics, and how each is filled.
pub(crate) const FEATURES: &[(&str, Fill)] = &[
    ("codec-none", |topic, _| shapes(topic, Codec::None)),
    ("codec-gzip", |topic, _| shapes(topic, Codec::Gzip)),
    ("codec-snappy", |topic, _| shapes(topic, Codec::Snappy)),
    ("codec-lz4", |topic, _| shapes(topic, Codec::Lz4)),
    ("codec-zstd", |topic, _| shapes(topic, Codec::Zstd)),
    ("never-written", |_, _| Ok(())),
    ("truncated", |topic, _| truncated(topic)),
    ("start-moved", |topic, _| start_moved(topic)),
    ("idempotent", |topic, _| idempotent(topic)),
    ("transactional", |topic, _| transactional(topic)),
    ("compacted", |topic, _| compacted(topic)),
    (REPAIRED, |topic, _| transactional(topic)),
    ("magic-0", |topic, data| old_messages(topic, &data.join("old-formats/log/magic0-0"))),
    ("magic-1", |topic, data| old_messages(topic, &data.join("old-formats/log/magic1-0"))),
    ("magic-mixed", |topic, data| old_messages(topic, &data.join("old-formats/log/mixed-0"))),
];

/// The options of a topic's log.
pub(crate) fn options(topic: &str) -> LogOptions {
    let compaction = CompactionOptions { min_cleanable_dirty_ratio: 0.0, ..CompactionOptions::default() };
    LogOptions { compaction: (topic == "compacted").then_some(compaction), ..small_segments() }
}

/// A log being written, and what a consumer has to get of that.
pub(crate) struct Topic<'l> {
    log: &'l mut Log,
    epoch: LeaderEpoch,
    rows: BTreeMap<i64, Row>,
    written: i64,
}

/// What is put into a batch.
#[derive(Clone, Debug, Default)]
struct Draft {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl<'l> Topic<'l> {
    pub(crate) fn new(log: &'l mut Log) -> Self {
        let epoch = log.latest_epoch().max(LeaderEpoch(0));
        let written = log.end().0;
        Self { log, epoch, rows: BTreeMap::new(), written }
    }

    pub(crate) fn into_rows(self) -> BTreeMap<i64, Row> {
        self.rows
    }

    fn now(&self) -> TimestampMs {
        TimestampMs(T0 + 10 * self.written)
    }

    fn append(&mut self, builder: BatchBuilder, drafts: Vec<Draft>) -> anyhow::Result<()> {
        self.append_as(builder, drafts, false)
    }

    fn append_as(&mut self, mut builder: BatchBuilder, drafts: Vec<Draft>, is_aborted: bool) -> anyhow::Result<()> {
        let mut rows = Vec::new();
        for Draft { key, value, headers } in drafts {
            let timestamp = self.now();
            let borrowed: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
            builder.push(Record { timestamp, key: key.as_deref(), value: value.as_deref(), headers: &borrowed });
            rows.push(Row { offset: 0, timestamp: timestamp.0, is_aborted, key, value, headers });
            self.written += 1;
        }
        let appended = self.log.append(self.now(), self.epoch, &builder.build())?;
        for (offset, row) in (appended.first.0..).zip(rows) {
            self.rows.insert(offset, Row { offset, ..row });
        }
        Ok(())
    }

    /// One record with a value of about so many bytes that do not compress to nothing.
    fn plain(&mut self, bytes: usize) -> anyhow::Result<()> {
        let draft = Draft { value: Some(noise(self.written, bytes)), ..Draft::default() };
        self.append(BatchBuilder::new(Codec::None), vec![draft])
    }

    fn keep_house(&mut self) -> anyhow::Result<Vec<Step>> {
        let (now, limits) = (self.now(), WorkLimits::new(self.log.end()));
        let mut steps = Vec::new();
        while let Some(step) = self.log.housekeeping().step(now, &limits)? {
            steps.push(step);
        }
        Ok(steps)
    }
}

/// Bytes that look like anything, the same in each run.
fn noise(seed: i64, bytes: usize) -> Vec<u8> {
    let mut state = seed.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Half of the values, so that compressors have something to do.
        (state >> 60) as u8 * 16
    };
    (0..bytes).map(|_| next()).collect()
}

/// Null, empty and non-ASCII keys; null, empty and binary values; headers of all kinds. Enough for several segments.
fn shapes(topic: &mut Topic<'_>, codec: Codec) -> anyhow::Result<()> {
    for batch in 0..40 {
        let drafts = (0..6i64).map(|number| {
            let number = batch * 6 + number;
            let key = match number % 4 {
                0 => None,
                1 => Some(Vec::new()),
                2 => Some("größe-✓".as_bytes().to_vec()),
                _ => Some(format!("key-{number}").into_bytes()),
            };
            let value = match number % 5 {
                0 => None,
                1 => Some(Vec::new()),
                2 => Some((0..=255).collect()),
                _ => Some(noise(number, 150)),
            };
            let headers = match number % 3 {
                0 => vec![],
                1 => vec![("name".to_owned(), Some(b"value".to_vec())), ("name".to_owned(), None)],
                _ => vec![(String::new(), Some(vec![0, 255])), ("größe".to_owned(), Some(Vec::new()))],
            };
            Draft { key, value, headers }
        });
        topic.append(BatchBuilder::new(codec), drafts.collect())?;
    }
    ensure!(topic.log.segments().len() > 2, "it rolled");
    Ok(())
}

/// Cut twice: inside of a batch, back into an earlier segment, and gone on with in a later epoch.
fn truncated(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    for to in [43, 61] {
        for batch in 0..20 {
            let drafts = (0..5).map(|n| Draft { value: Some(noise(batch * 5 + n, 120)), ..Draft::default() });
            topic.append(BatchBuilder::new(Codec::None), drafts.collect())?;
        }
        let segments = topic.log.segments().len();
        let cut = topic.log.truncate_to(Offset(to))?;
        ensure!(topic.log.segments().len() < segments && cut.end <= Offset(to), "{cut:?}");
        let _ = topic.rows.split_off(&cut.end.0);
        topic.epoch = LeaderEpoch(topic.epoch.0 + 1);
    }
    // Kafka's own epoch on this topic is the second one it gives: it elects a leader again after each stop.
    topic.epoch = LeaderEpoch(1);
    (0..30).try_for_each(|_| topic.plain(200))
}

/// The start lies inside of a batch, and the segments below are gone.
fn start_moved(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    for batch in 0..20 {
        let drafts = (0..7).map(|n| Draft { value: Some(noise(batch * 7 + n, 120)), ..Draft::default() });
        topic.append(BatchBuilder::new(Codec::None), drafts.collect())?;
    }
    topic.log.advance_start(Offset(88))?;
    topic.rows = topic.rows.split_off(&88);
    topic.log.flush()?;
    let steps = topic.keep_house()?;
    ensure!(steps.iter().any(|step| matches!(step, Step::SegmentsRetired { .. })), "{steps:?}");
    ensure!((1..=88).contains(&topic.log.segments()[0].base.0), "the first segments went");
    Ok(())
}

/// Producers with sequence numbers, one of them with a second epoch.
fn idempotent(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut sequences = [0; 3];
    for round in 0..30 {
        for (producer, sequence) in (7000i64..).zip(&mut sequences) {
            let epoch = i16::from(round >= 20 && producer == 7001);
            if round == 20 && epoch == 1 {
                *sequence = 0;
            }
            let drafts = (0..3).map(|n| Draft { value: Some(noise(round * 3 + n, 40)), ..Draft::default() });
            topic.append(BatchBuilder::new(Codec::None).producer(producer, epoch, *sequence), drafts.collect())?;
            *sequence += 3;
        }
    }
    ensure!(topic.log.producers().len() == 3, "three producers are known");
    Ok(())
}

/// Two producers whose transactions interleave; each third one is aborted.
fn transactional(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut sequences = [0; 2];
    for round in 0..24 {
        let is_abort = |producer: i64| (round + producer) % 3 == 0;
        for _ in 0..2 {
            for (producer, sequence) in (8000i64..).zip(&mut sequences) {
                let drafts = (0..2).map(|n| Draft { value: Some(noise(round * 2 + n, 90)), ..Draft::default() });
                let builder = BatchBuilder::new(Codec::None).producer(producer, 0, *sequence).transactional();
                topic.append_as(builder, drafts.collect(), is_abort(producer))?;
                *sequence += 2;
            }
        }
        for producer_id in [8000, 8001] {
            let (producer_epoch, coordinator_epoch, is_abort) = (0, 0, is_abort(producer_id));
            let marker = TransactionMarker { producer_id, producer_epoch, coordinator_epoch, is_abort };
            topic.log.end_transaction(topic.now(), topic.epoch, &marker)?;
        }
    }
    let all = topic.log.reader().aborted_transactions(Offset::ZERO, topic.log.end())?;
    ensure!(all.len() == 16, "{} were aborted", all.len());
    ensure!(topic.log.last_stable_offset(topic.log.end()) == topic.log.end(), "none is open");
    Ok(())
}

/// Compacted by the log itself: what a later record of its key superseded is gone.
fn compacted(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    for round in 0..30i64 {
        let drafts = (0..5).map(|n| {
            let key = Some(format!("key-{}", (round * 3 + n) % 23).into_bytes());
            Draft { key, value: (n != 4).then(|| noise(round * 5 + n, 100)), ..Draft::default() }
        });
        let codec = if round % 2 == 0 { Codec::None } else { Codec::Zstd };
        topic.append(BatchBuilder::new(codec), drafts.collect())?;
    }
    topic.log.flush()?;
    let steps = topic.keep_house()?;
    let cleaned = topic.log.cleaner_offset().0;
    ensure!(cleaned > 50, "compacted below {cleaned}: {steps:?}");
    let mut last = BTreeMap::new();
    for (offset, row) in topic.rows.range(..cleaned) {
        last.insert(row.key.clone(), *offset);
    }
    topic.rows.retain(|offset, row| *offset >= cleaned || last.get(&row.key) == Some(offset));
    Ok(())
}

/// What Kafka wrote before there were batches, taken in as a follower does, and gone on with.
fn old_messages(topic: &mut Topic<'_>, from: &Path) -> anyhow::Result<()> {
    let mut segments: Vec<_> = fs::read_dir(from)?.flatten().map(|entry| entry.path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    for segment in &segments {
        topic
            .log
            .append_replicated(TimestampMs(T0), &fs::read(segment)?)
            .with_context(|| segment.display().to_string())?;
    }
    topic.rows = read_all(&topic.log.reader())?;
    ensure!(topic.rows.len() > 140, "there are {} records", topic.rows.len());
    topic.written = topic.log.end().0;
    (0..20).try_for_each(|_| topic.plain(200))
}

/// A few records more, for any topic.
pub(crate) fn append_some(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    for number in 0..12 {
        let key = Some(format!("more-{}-{number}", topic.written).into_bytes());
        let draft = Draft { key, value: Some(noise(number, 300)), ..Draft::default() };
        topic.append(BatchBuilder::new(Codec::None), vec![draft])?;
    }
    Ok(())
}
