//! Drawn logs, compacted, crashed and opened again, against what was appended.

use std::collections::{BTreeMap, BTreeSet};

use highwater_storage::fs::SimFs;
use highwater_storage::{
    BatchBuilder, Codec, CompactionMemory, Log, LogOptions, LogReader, Offset, OpenHints, TimestampMs, WorkLimits,
};

use crate::keyed::{
    Stored, append_as_is, compact, compact_below, compacted, compaction, end_transaction, new_log, put, records, roll,
};
use crate::support::{Random, T0, disk, open_hinted};

/// What was appended.
#[derive(Clone, Debug, Default)]
struct Model {
    records: BTreeMap<i64, Stored>,
    /// Transactions that were ended.
    ended: Vec<Ended>,
    /// Producers with the next sequence number, and the offsets of the open transaction.
    producers: BTreeMap<i64, (i32, Option<Vec<i64>>)>,
    end: i64,
}

#[derive(Clone, Debug)]
struct Ended {
    producer: i64,
    marker: i64,
    is_commit: bool,
    /// Of its records.
    offsets: Vec<i64>,
}

impl Model {
    fn aborted(&self) -> BTreeSet<i64> {
        self.ended.iter().filter(|ended| !ended.is_commit).flat_map(|ended| ended.offsets.clone()).collect()
    }

    /// Takes in what was appended behind what is known.
    fn learn(&mut self, reader: &LogReader) {
        let new: Vec<_> = records(reader).into_iter().filter(|(offset, _)| *offset >= self.end).collect();
        self.records.extend(new);
        self.end = reader.end().0;
    }

    /// What a reader from the start ends up with, who sees no aborted records.
    fn replay(&self, records: &BTreeMap<i64, Stored>, below: i64) -> BTreeMap<Vec<u8>, (i64, Vec<u8>)> {
        let (mut latest, aborted) = (BTreeMap::new(), self.aborted());
        for (offset, stored) in records.range(..below) {
            let key = stored.key.clone().filter(|_| !stored.is_control && !aborted.contains(offset));
            let Some(key) = key else { continue };
            match &stored.value {
                Some(value) => latest.insert(key, (*offset, value.clone())),
                None => latest.remove(&key),
            };
        }
        latest
    }

    /// What has to hold of a log that was compacted, or not, any number of times.
    fn check(&self, log: &Log, what: &str) {
        let found = records(&log.reader());
        for (offset, stored) in &found {
            assert_eq!(Some(stored), self.records.get(offset), "{what}: the record at {offset} is the one appended");
        }
        let end = log.end().0;
        assert_eq!(self.replay(&found, end), self.replay(&self.records, end), "{what}: the last value of each key");
        let mut expected = 0;
        for segment in log.segments() {
            assert_eq!(segment.base.0, expected, "{what}: a segment begins where the one before ends");
            expected = segment.end.0;
        }
    }

    /// And of one that was compacted as far as `below`.
    fn check_compacted(&self, log: &Log, below: i64, what: &str) {
        let found = records(&log.reader());
        let (mut seen, aborted) = (BTreeSet::new(), self.aborted());
        for (offset, stored) in found.range(..below).filter(|(_, stored)| !stored.is_control) {
            assert!(!aborted.contains(offset), "{what}: {offset} was aborted");
            let key = stored.key.clone().unwrap_or_else(|| panic!("{what}: {offset} has no key"));
            assert!(seen.insert(key), "{what}: the key at {offset} is there twice");
        }
    }

    /// Forgets what a crash has taken.
    fn cut(&mut self, log: &Log) {
        self.end = log.end().0;
        self.records = std::mem::take(&mut self.records).into_iter().filter(|(offset, _)| *offset < self.end).collect();
        for (_, open) in self.producers.values_mut() {
            // Of one whose first record is gone as well nothing is left.
            *open = open.take().map(|offsets| cut(offsets, self.end)).filter(|offsets| !offsets.is_empty());
        }
        let (ended, open_again) = self.ended.drain(..).partition(|ended| ended.marker < self.end);
        self.ended = ended;
        let open_again: Vec<Ended> = open_again;
        for ended in open_again {
            let offsets = Some(cut(ended.offsets, self.end)).filter(|offsets| !offsets.is_empty());
            self.producers.entry(ended.producer).or_default().1 = offsets.or(None);
        }
        for (producer, (next, _)) in &mut self.producers {
            *next = log.producers().get(*producer).map_or(0, |known| known.last_sequence() + 1);
        }
    }
}

fn cut(offsets: Vec<i64>, end: i64) -> Vec<i64> {
    offsets.into_iter().filter(|offset| *offset < end).collect()
}

fn draw_append(random: &mut Random, log: &mut Log, model: &mut Model) {
    let key = |random: &mut Random| format!("key {}", random.below(12));
    let count = 1 + random.below(4);
    let drawn: Vec<(Option<String>, Option<String>)> = (0..count)
        .map(|_| {
            let key = Some(key(random)).filter(|_| random.below(12) > 0);
            let value = Some("v".repeat(1 + random.below(60))).filter(|_| random.below(4) > 0);
            (key, value)
        })
        .collect();
    let pairs: Vec<_> = drawn.iter().map(|(key, value)| (key.as_deref(), value.as_deref())).collect();
    let codec = Codec::ALL[random.below(Codec::ALL.len())];
    let first = log.end().0;
    match random.below(4) {
        0 => {
            put(log, &pairs);
        }
        kind => {
            let producer = i64::try_from(random.below(3)).unwrap();
            let (next, open) = model.producers.entry(producer).or_default();
            let builder = BatchBuilder::new(codec).producer(producer, 0, *next);
            let is_transactional = kind > 1 || open.is_some();
            append_as_is(log, if is_transactional { builder.transactional() } else { builder }, &pairs);
            *next += i32::try_from(count).unwrap();
            if is_transactional {
                open.get_or_insert_default().extend(first..log.end().0);
            }
        }
    }
    model.learn(&log.reader());
}

fn draw_marker(random: &mut Random, log: &mut Log, model: &mut Model) {
    let producer = i64::try_from(random.below(3)).unwrap();
    let Some(offsets) = model.producers.get_mut(&producer).and_then(|(_, open)| open.take()) else { return };
    let is_commit = random.below(2) == 0;
    let marker = log.end().0;
    end_transaction(log, producer, 0, is_commit);
    model.ended.push(Ended { producer, marker, is_commit, offsets });
    model.learn(&log.reader());
}

fn draw_options(random: &mut Random) -> LogOptions {
    let mut options = compacted();
    options.segment_bytes = [400, 1000, 3000][random.below(3)];
    let keys_max = [1, 3, 8, 100][random.below(4)];
    let compaction = compaction(&mut options);
    compaction.memory = CompactionMemory::bounded(24 * (keys_max + 2));
    compaction.piece_bytes = [1, 300, 1 << 20][random.below(3)];
    compaction.io_buffer_bytes = [1, 200, 1 << 16][random.below(3)];
    compaction.delete_retention_ms = [0, 100][random.below(2)];
    options
}

fn reopen(fs: &SimFs, options: &LogOptions, cleaner_offset: Option<Offset>) -> Log {
    open_hinted(fs, options, OpenHints { cleaner_offset, ..OpenHints::default() }).0
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut fs = disk(seed);
    let options = draw_options(&mut random);
    let mut log = new_log(&fs, &options);
    let mut model = Model::default();
    let mut now = T0;
    // The high watermark: what lies below is never truncated.
    let mut replicated = Offset(0);
    for step in 0..60 {
        let what = format!("seed {seed}, step {step}");
        now += i64::try_from(random.below(60)).unwrap();
        match random.below(21) {
            0..=8 => draw_append(&mut random, &mut log, &mut model),
            9..=11 => draw_marker(&mut random, &mut log, &mut model),
            12 | 13 => roll(&mut log),
            14 | 15 => {
                replicated = replicated.max(Offset(log.end().0 - i64::try_from(random.below(4)).unwrap()));
                compact_below(&mut log, now, replicated);
                model.check(&log, &what);
                model.check_compacted(&log, log.cleaner_offset().0, &what);
            }
            16 => {
                // A few pieces, or none for a while.
                let compacts = random.below(4) > 0;
                if !compacts {
                    replicated = log.end();
                    log.set_options(LogOptions { compaction: None, ..options.clone() }).unwrap();
                }
                let limits = WorkLimits::new(replicated);
                for _ in 0..random.below(5) {
                    log.housekeeping().step(TimestampMs(now), &limits).unwrap();
                }
                log.set_options(options.clone()).unwrap();
                model.check(&log, &what);
            }
            17 => {
                let cleaner_offset = Some(log.cleaner_offset()).filter(|_| random.below(2) == 0);
                if random.below(2) == 0 {
                    log.close().unwrap();
                } else {
                    drop(log);
                }
                log = reopen(&fs, &options, cleaner_offset);
                model.check(&log, &what);
            }
            18 => {
                let cleaner_offset = Some(log.cleaner_offset()).filter(|_| random.below(2) == 0);
                let flushed = log.flushed();
                fs.crash_after(random.next() % 40);
                let limits = WorkLimits::new(replicated);
                while let Ok(Some(_)) = log.housekeeping().step(TimestampMs(now), &limits) {}
                drop(log);
                let mut images = fs.images(4, seed);
                fs = images.swap_remove(random.below(images.len()));
                log = reopen(&fs, &options, cleaner_offset);
                assert!(log.end() >= flushed, "{what}: what was flushed is there");
                replicated = replicated.min(log.end());
                model.cut(&log);
                model.check(&log, &what);
            }
            19 => {
                let above = usize::try_from(log.end() - replicated).unwrap();
                let limits = WorkLimits::new(replicated);
                let job = if random.below(2) == 0 { log.begin_work(TimestampMs(now), &limits) } else { None };
                log.truncate_to(Offset(replicated.0 + i64::try_from(random.below(above + 1)).unwrap())).unwrap();
                if let Some(job) = job {
                    log.finish_work(job.run()).unwrap();
                }
                replicated = replicated.min(log.end());
                model.cut(&log);
                model.check(&log, &what);
            }
            _ => {
                log.flush().unwrap();
            }
        }
    }
    roll(&mut log);
    compact(&mut log, now + 1000);
    let what = format!("seed {seed}, at the end");
    model.check(&log, &what);
    model.check_compacted(&log, log.cleaner_offset().0, &what);
}

/// So many logs; more with `HIGHWATER_COMPACTION_SEEDS`.
#[test]
fn drawn_logs_keep_the_last_value_of_each_key_whatever_happens() {
    let seeds = std::env::var("HIGHWATER_COMPACTION_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(100);
    for seed in 0..seeds {
        run(seed);
    }
}
