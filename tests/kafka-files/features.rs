//! What is written: a topic for each thing that a partition's directory may hold.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};
use highwater_storage::{
    BatchBuilder, Codec, CompactionOptions, FlushPolicy, LeaderEpoch, Log, LogOptions, Offset, Record, Step,
    TimestampMs, WorkLimits,
};

use crate::records::{Row, read_all};
use crate::root::small_segments;
use crate::transactions::{compacted_transactional, transactional, truncated_transactional};

/// The time of the first record; each one after it is 10 ms later.
const T0: i64 = 1_700_000_000_000;
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

type Fill = fn(&mut Topic<'_>, &Places<'_>) -> anyhow::Result<()>;

/// The topic whose files are damaged and repaired once it is filled.
pub(crate) const REPAIRED: &str = "repaired";
/// The topic whose directory is replaced by a copy that [`Log::snapshot`] made of it while it was filled.
pub(crate) const COPIED: &str = "copied";
/// The topic whose log writes zeros ahead of its end.
pub(crate) const ZEROS_AHEAD: &str = "zeros-ahead";

/// What a topic may need beside its log.
#[derive(Debug)]
pub(crate) struct Places<'p> {
    /// The storage crate's directories of Kafka's.
    pub(crate) data: &'p Path,
    /// Where the copy of [`COPIED`] is made: beside the root, and so on the same file system.
    pub(crate) copy: &'p Path,
}

/// The topics, and how each is filled.
pub(crate) const FEATURES: &[(&str, Fill)] = &[
    ("codec-none", |topic, _| shapes(topic, Codec::None)),
    ("codec-gzip", |topic, _| shapes(topic, Codec::Gzip)),
    ("codec-snappy", |topic, _| shapes(topic, Codec::Snappy)),
    ("codec-lz4", |topic, _| shapes(topic, Codec::Lz4)),
    ("codec-zstd", |topic, _| shapes(topic, Codec::Zstd)),
    ("never-written", |_, _| Ok(())),
    ("truncated", |topic, _| truncated(topic)),
    ("truncated-transactional", |topic, _| truncated_transactional(topic)),
    ("start-moved", |topic, _| start_moved(topic)),
    ("idempotent", |topic, _| idempotent(topic)),
    ("transactional", |topic, _| transactional(topic)),
    ("compacted", |topic, _| compacted(topic)),
    ("compacted-transactional", |topic, _| compacted_transactional(topic)),
    (COPIED, |topic, places| copied(topic, places.copy)),
    (ZEROS_AHEAD, |topic, _| zeros_ahead(topic)),
    (REPAIRED, |topic, _| transactional(topic)),
    ("magic-0", |topic, places| old_messages(topic, &places.data.join("old-formats/log/magic0-0"))),
    ("magic-1", |topic, places| old_messages(topic, &places.data.join("old-formats/log/magic1-0"))),
    ("magic-mixed", |topic, places| old_messages(topic, &places.data.join("old-formats/log/mixed-0"))),
];

/// The options of a topic's log.
pub(crate) fn options(topic: &str) -> LogOptions {
    let compaction = || CompactionOptions {
        min_cleanable_dirty_ratio: 0.0,
        // So that tombstones and markers go while the topic is filled.
        delete_retention_ms: if topic == "compacted" { DAY_MS } else { 100 },
        ..CompactionOptions::default()
    };
    LogOptions {
        compaction: topic.starts_with("compacted").then(compaction),
        flush: if topic == ZEROS_AHEAD { FlushPolicy::EachAppend } else { FlushPolicy::None },
        zero_ahead_bytes: 2048,
        ..small_segments()
    }
}

/// A log being written, and what a consumer has to get of that.
pub(crate) struct Topic<'l> {
    pub(crate) log: &'l mut Log,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) rows: BTreeMap<i64, Row>,
    written: i64,
}

/// What is put into a batch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draft {
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
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

    pub(crate) fn now(&self) -> TimestampMs {
        TimestampMs(T0 + 10 * self.written)
    }

    /// Appends one batch, and returns its offsets.
    pub(crate) fn append(&mut self, mut builder: BatchBuilder, drafts: Vec<Draft>) -> anyhow::Result<Range<i64>> {
        let mut rows = Vec::new();
        for Draft { key, value, headers } in drafts {
            let timestamp = self.now();
            let borrowed: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_deref())).collect();
            builder.push(Record { timestamp, key: key.as_deref(), value: value.as_deref(), headers: &borrowed });
            rows.push(Row { offset: 0, timestamp: timestamp.0, is_aborted: false, key, value, headers });
            self.written += 1;
        }
        let appended = self.log.append(self.now(), self.epoch, &builder.build())?;
        for (offset, row) in (appended.first.0..).zip(rows) {
            self.rows.insert(offset, Row { offset, ..row });
        }
        Ok(appended.first.0..appended.last.0 + 1)
    }

    /// Cuts the log, and forgets what is gone. Returns the end, which is that of a batch.
    pub(crate) fn truncate_to(&mut self, to: i64) -> anyhow::Result<i64> {
        let end = self.log.truncate_to(Offset(to))?.end.0;
        ensure!(end <= to, "{end} is above {to}");
        let _ = self.rows.split_off(&end);
        Ok(end)
    }

    /// One record with a value of about so many bytes that do not compress to nothing.
    pub(crate) fn plain(&mut self, bytes: usize) -> anyhow::Result<()> {
        let draft = Draft { value: Some(noise(self.written, bytes)), ..Draft::default() };
        self.append(BatchBuilder::new(Codec::None), vec![draft])?;
        Ok(())
    }

    pub(crate) fn keep_house(&mut self) -> anyhow::Result<Vec<Step>> {
        let (now, limits) = (self.now(), WorkLimits::new(self.log.end()));
        let mut steps = Vec::new();
        while let Some(step) = self.log.housekeeping().step(now, &limits)? {
            steps.push(step);
        }
        Ok(steps)
    }
}

/// Bytes that look like anything, the same in each run.
pub(crate) fn noise(seed: i64, bytes: usize) -> Vec<u8> {
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
        let end = topic.truncate_to(to)?;
        ensure!(topic.log.segments().len() < segments, "segments went");
        ensure!(end < to, "{to} lies inside of a batch");
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

/// A copy made while the log goes on, with its segments shared by hard links and the last one copied. The log then goes
/// another way up to the same end, so that the root's checkpoints, which are the log's, fit the copy too.
fn copied(topic: &mut Topic<'_>, to: &Path) -> anyhow::Result<()> {
    transactional(topic)?;
    (0..3).try_for_each(|_| topic.plain(200))?;
    let copied = topic.log.snapshot(to)?;
    ensure!(copied.segments > 3 && copied.bytes_linked > 0 && copied.bytes_copied > 0, "{copied:?}");
    let (rows, end) = (topic.rows.clone(), topic.log.end());
    topic.truncate_to(30)?;
    while topic.log.end() < end {
        topic.plain(500)?;
    }
    topic.rows = rows;
    Ok(())
}

/// Each append is synced, into zeros that housekeeping wrote before.
fn zeros_ahead(topic: &mut Topic<'_>) -> anyhow::Result<()> {
    let mut zeros = 0;
    for _ in 0..40 {
        topic.plain(250)?;
        let steps = topic.keep_house()?;
        zeros += steps.iter().filter(|step| matches!(step, Step::ZerosWritten { .. })).count();
    }
    ensure!(zeros >= topic.log.segments().len(), "zeros were written {zeros} times");
    Ok(())
}

/// Appends until zeros lie ahead of the end, as they do when a process is killed. Returns how many.
pub(crate) fn leave_zeros(topic: &mut Topic<'_>, dir: &Path) -> anyhow::Result<u64> {
    for _ in 0..20 {
        topic.plain(250)?;
        topic.keep_house()?;
        let active = *topic.log.segments().last().context("a segment")?;
        let file = fs::metadata(dir.join(format!("{:020}.log", active.base.0)))?;
        if file.len() > active.size_bytes + 500 {
            return Ok(file.len() - active.size_bytes);
        }
    }
    anyhow::bail!("no zeros were written ahead of the end")
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
