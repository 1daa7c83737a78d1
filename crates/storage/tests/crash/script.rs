//! Scripts: what is done to a log, and what its caller knows of it at each moment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::SimFs;
use highwater_storage::*;

use crate::support::*;

/// The idempotent producers that take turns.
const PRODUCERS: [i64; 3] = [7, 8, 9];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Batches of two records each, in this epoch.
    Append(usize, i32),
    /// As many, replicated in one call. The first begins so many offsets before the end: the start of an empty log lies
    /// in it.
    Replicate(usize, i32, i64),
    Flush,
    Checkpoint,
    /// Begins a flush, or a checkpoint.
    Begin(bool),
    /// Runs what was begun, if anything was, and finishes it.
    Finish,
    Truncate(i64),
    AdvanceStart(i64),
    Reset(i64),
    /// Appends sync by themselves from now on, into room that was filled with zeros ahead.
    Synced,
    /// Compacts what was flushed.
    Compact,
    /// Copies the log to a place of its own.
    Copy,
    /// All housekeeping that is due so many seconds after the start, below this high watermark.
    Housekeeping(i64, i64),
    /// Closes well and opens again.
    Reopen,
    /// Drops the log and opens it again.
    Restart,
}

/// One record as it must be stored.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) offset: i64,
    /// The first offset of its batch.
    pub(crate) base: i64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) epoch: i32,
    pub(crate) producer: i64,
    /// The sequence number of its batch.
    pub(crate) sequence: i32,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, base, key, value, epoch, producer, sequence } = self;
        let (key, text) = (String::from_utf8_lossy(key), String::from_utf8_lossy(value));
        write!(f, "{offset} (of {base}, epoch {epoch}, {producer}/{sequence}) {key}: {}", text.trim_matches(['-', '+']))
    }
}

/// What a log holds, as its caller knows. Records below the start are there for what is known of producers, and those
/// that a compaction took stay in the list.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) flushed: i64,
    pub(crate) records: Vec<Known>,
    /// Below this, records may have gone that a later one of their key supersedes.
    pub(crate) compacted: i64,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, flushed, records, .. } = self;
        write!(f, "start {start}, end {end}, flushed {flushed}, {} records", records.len())
    }
}

impl Contents {
    /// What is in a log.
    pub(crate) fn of(log: &Log) -> Self {
        let records = read_all(&log.reader());
        Self { start: log.start().0, end: log.end().0, flushed: log.flushed().0, records, compacted: 0 }
    }

    /// Holds what was found in a log against the part of this list between its start and its end.
    pub(crate) fn assert_holds(&self, found: &Self) {
        let expected = self.between(found.start, found.end);
        let gone = |record: &&Known| !found.records.contains(record);
        for record in expected.iter().filter(|record| record.offset < self.compacted).filter(gone) {
            let by_later = |later: &&Known| later.key == record.key && later.offset > record.offset;
            assert!(found.records.iter().any(|later| by_later(&later)), "the last of its key is gone: {record:?}");
        }
        let kept = expected.into_iter().filter(|record| record.offset >= self.compacted || !gone(&record));
        assert_eq!(found.records, kept.collect::<Vec<_>>());
    }

    /// The records from `start` on and below `end`.
    pub(crate) fn between(&self, start: i64, end: i64) -> Vec<Known> {
        self.records.iter().filter(|record| (start..end).contains(&record.offset)).cloned().collect()
    }

    /// Where a log ends that is cut at `to`: at the start of the batch that holds it.
    fn boundary(&self, to: i64) -> i64 {
        self.records.iter().find(|record| record.offset == to).map_or(to, |record| record.base)
    }

    pub(crate) fn emptied(at: i64) -> Self {
        Self { start: at, end: at, flushed: at, records: Vec::new(), compacted: 0 }
    }

    fn cut(&mut self, to: i64) {
        if to >= self.end {
            return;
        }
        let end = self.boundary(to);
        if to <= self.start || end < self.start {
            let end = to.min(self.start);
            *self = Self::emptied(end);
            return;
        }
        self.end = end;
        self.flushed = self.flushed.min(end);
        self.records.retain(|record| record.offset < end);
    }

    /// The last batch of each producer, by its first record.
    pub(crate) fn last_batches(&self) -> BTreeMap<i64, &Known> {
        let firsts = self.records.iter().filter(|record| record.offset == record.base);
        firsts.map(|record| (record.producer, record)).collect()
    }
}

/// Reads all there is by batches of any size, with what is known of each record.
fn read_all(reader: &LogReader) -> Vec<Known> {
    let mut records = Vec::new();
    let mut from = reader.start();
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(700)).unwrap();
        assert!(fetched.next > from, "reading gets on");
        for batch in batches(&fetched.bytes) {
            let batch = batch.unwrap();
            assert!(batch.crc_matches());
            let header = batch.header();
            for record in batch.records().unwrap() {
                let record = record.unwrap();
                let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                let known = Known {
                    offset,
                    base: batch.base_offset().0,
                    key: record.key.unwrap_or_default().to_vec(),
                    value: record.value.unwrap().to_vec(),
                    epoch: header.leader_epoch().0,
                    producer: header.producer_id(),
                    sequence: header.base_sequence(),
                };
                if offset >= reader.start().0 {
                    assert_eq!(reader.epoch_of(Offset(offset)), header.leader_epoch(), "the epoch at {offset}");
                    records.push(known);
                }
            }
        }
        from = fetched.next;
    }
    assert_eq!(from, reader.end(), "reading stops at the end only");
    records
}

/// A run as far as it came: what was known before the call that failed, and what would have been after.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) before: Contents,
    pub(crate) after: Contents,
    pub(crate) op: Option<Op>,
    /// The copies that were made, or may have been, each with what it must hold.
    pub(crate) copies: Vec<(String, Contents)>,
    sequences: BTreeMap<i64, i32>,
    number: usize,
    job: Option<FlushJob>,
}

pub(crate) fn options() -> LogOptions {
    LogOptions {
        // Batches of about 350 bytes: three to a segment, and most lie across the boundary of two sectors.
        segment_bytes: 1200,
        index_interval_bytes: 0,
        retention_bytes: 3000,
        retention_ms: -1,
        file_delete_delay_ms: 1000,
        ..LogOptions::default()
    }
}

/// Compacts in small pieces whatever may be compacted, markers too.
pub(crate) fn compacting(options: LogOptions) -> LogOptions {
    let compaction = CompactionOptions {
        delete_retention_ms: 0,
        min_cleanable_dirty_ratio: 0.0,
        io_buffer_bytes: 300,
        piece_bytes: 500,
        backoff_ms: 0,
        memory: CompactionMemory::bounded(1 << 12),
        ..CompactionOptions::default()
    };
    LogOptions { retention: false, compaction: Some(compaction), ..options }
}

fn keep_all_house(log: &mut Log, now: TimestampMs) -> Result<(), ()> {
    let limits = WorkLimits::new(log.end());
    for _ in 0..200 {
        if log.housekeeping().step(now, &limits).map_err(drop)?.is_none() {
            return Ok(());
        }
    }
    panic!("housekeeping does not end")
}

pub(crate) fn reopen(fs: &SimFs) -> Result<Log, OpenError> {
    Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options(), OpenHints::default()).map(|(log, report)| {
        assert!(report.missing.is_empty(), "what was synced is there: {report:?}");
        log
    })
}

/// A batch of two keys and values of a producer.
pub(crate) fn batch_of(producer: i64, sequence: i32, records: &[(Vec<u8>, Vec<u8>); 2]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).producer(producer, 0, sequence);
    for (key, value) in records {
        builder.push(Record::keyed(TimestampMs(T0 + i64::from(sequence)), key, value));
    }
    builder.build()
}

/// Runs the script until it ends or the machine crashes.
pub(crate) fn run(fs: &SimFs, script: &[Op]) -> Run {
    let empty = Contents::default();
    let (before, after) = (empty.clone(), empty);
    let mut run = Run { before, after, op: None, copies: Vec::new(), sequences: BTreeMap::new(), number: 0, job: None };
    let Ok(mut log) = reopen(fs) else { return run };
    for op in script {
        run.op = Some(*op);
        run.before = run.after.clone();
        let done = match *op {
            Op::Reopen | Op::Restart => match run.again(fs, log, *op == Op::Reopen) {
                Some(opened) => {
                    log = opened;
                    Ok(())
                }
                None => return run,
            },
            op => run.step(&mut log, op),
        };
        if done.is_err() {
            assert!(fs.crashed(), "{op:?} failed without a crash: {log:?}");
            return run;
        }
        if fs.crashed() {
            // In a call whose failure is of no account, such as the mark after a flush: the step is done.
            run.after.flushed = log.flushed().0;
            run.before.flushed = run.before.flushed.max(run.after.flushed.min(run.before.end));
            return run;
        }
        run.compare(&log, *op);
    }
    run.before = run.after.clone();
    run.op = None;
    run
}

impl Run {
    fn again(&mut self, fs: &SimFs, log: Log, closes: bool) -> Option<Log> {
        self.job = None;
        if closes {
            self.after.flushed = self.after.end;
            if log.close().is_err() {
                assert!(fs.crashed(), "closing failed without a crash");
                return None;
            }
        } else {
            drop(log);
        }
        let opened = reopen(fs).ok();
        assert!(opened.is_some() || fs.crashed(), "opening failed without a crash");
        opened
    }

    fn step(&mut self, log: &mut Log, op: Op) -> Result<(), ()> {
        match op {
            Op::Replicate(batches, epoch, before) => self.replicate(log, batches, epoch, before),
            Op::Append(batches, epoch) => (0..batches).try_for_each(|_| self.append(log, epoch)),
            Op::Flush => {
                self.after.flushed = self.after.end;
                log.flush().map(drop).map_err(drop)
            }
            Op::Checkpoint => {
                self.after.flushed = self.after.end;
                log.checkpoint().map(drop).map_err(drop)
            }
            Op::Begin(checkpoint) => {
                let job = if checkpoint { log.begin_checkpoint() } else { log.begin_flush() };
                self.job = self.job.take().or(job);
                Ok(())
            }
            Op::Finish => self.job.take().map_or(Ok(()), |job| log.finish_flush(job.run()).map(drop).map_err(drop)),
            Op::Truncate(to) => {
                self.after.cut(to);
                // A producer goes on behind what is left of its batches.
                for (producer, last) in self.after.last_batches() {
                    self.sequences.insert(producer, last.sequence + 2);
                }
                log.truncate_to(Offset(to)).map(drop).map_err(drop)
            }
            Op::AdvanceStart(to) => {
                self.after.start = self.after.start.max(to);
                log.advance_start(Offset(to)).map(drop).map_err(drop)
            }
            Op::Reset(to) => {
                self.after = Contents::emptied(to);
                log.reset_to(Offset(to)).map(drop).map_err(drop)
            }
            Op::Housekeeping(seconds, high_watermark) => {
                let limits = WorkLimits::new(Offset(high_watermark));
                let now = TimestampMs(NOW.0 + seconds * 1000);
                // How far the start moves is the log's choice; it tells afterwards.
                self.after.start = high_watermark.max(self.after.start);
                let mut work = || -> Result<(), FlushError> {
                    while log.housekeeping().step(now, &limits)?.is_some() {}
                    Ok(())
                };
                work().map_err(drop)
            }
            Op::Synced => {
                log.set_options(LogOptions { flush: FlushPolicy::EachAppend, ..options() }).unwrap();
                Ok(())
            }
            Op::Compact => {
                self.after.compacted = self.after.end;
                let usual = log.options().clone();
                log.set_options(compacting(options())).unwrap();
                let done = keep_all_house(log, NOW);
                log.set_options(usual).unwrap();
                done
            }
            Op::Copy => {
                let place = format!("/data/copy-{}", self.copies.len());
                self.copies.push((place.clone(), self.after.clone()));
                log.snapshot(place).map(drop).map_err(drop)
            }
            Op::Reopen | Op::Restart => unreachable!("these take the log"),
        }
    }

    /// The next batch in turn, noted as appended at the end.
    fn next_batch(&mut self, epoch: i32) -> Vec<u8> {
        let number = self.number;
        self.number += 1;
        let producer = PRODUCERS[number % PRODUCERS.len()];
        let sequence = *self.sequences.entry(producer).or_default();
        let records = [
            (format!("a{}", number % 3).into_bytes(), format!("{}value {number}", "-".repeat(90)).into_bytes()),
            (format!("b{}", number % 4).into_bytes(), format!("{}, {number}", "+".repeat(120)).into_bytes()),
        ];
        let batch = batch_of(producer, sequence, &records);
        let base = self.after.end;
        for ((key, value), offset) in records.into_iter().zip(base..) {
            self.after.records.push(Known { offset, base, key, value, epoch, producer, sequence });
        }
        self.after.end += 2;
        self.sequences.insert(producer, sequence + 2);
        batch
    }

    fn append(&mut self, log: &mut Log, epoch: i32) -> Result<(), ()> {
        self.before = self.after.clone();
        let base = self.after.end;
        let batch = self.next_batch(epoch);
        let appended = log.append(NOW, LeaderEpoch(epoch), &batch).map_err(drop)?;
        assert_eq!((appended.first.0, appended.duplicate), (base, false));
        self.appended(&appended);
        Ok(())
    }

    /// A leader's batches in one call, which may go over several segments.
    fn replicate(&mut self, log: &mut Log, batches: usize, epoch: i32, before: i64) -> Result<(), ()> {
        assert!(before == 0 || self.after.start == self.after.end, "only an empty log begins anew");
        self.after.end -= before;
        let first = self.after.end;
        let mut bytes = Vec::new();
        for _ in 0..batches {
            let base = self.after.end;
            let mut batch = self.next_batch(epoch);
            batch[..8].copy_from_slice(&base.to_be_bytes());
            batch[12..16].copy_from_slice(&epoch.to_be_bytes());
            bytes.extend(batch);
        }
        let appended = log.append_replicated(NOW, &bytes).map_err(drop)?;
        assert_eq!((appended.first.0, appended.last.0 + 1), (first, self.after.end));
        self.appended(&appended);
        Ok(())
    }

    fn appended(&mut self, appended: &Appended) {
        if appended.durability == Durability::Synced {
            self.after.flushed = self.after.end;
        }
    }

    /// Holds the log after a step against what its caller knows.
    fn compare(&mut self, log: &Log, op: Op) {
        let found = Contents::of(log);
        if matches!(op, Op::Housekeeping(..)) {
            assert!(self.before.start <= found.start && found.start <= self.after.start, "{op:?}");
            self.after.start = found.start;
        }
        assert_eq!((found.start, found.end), (self.after.start, self.after.end), "{op:?}");
        self.after.assert_holds(&found);
        self.after.flushed = found.flushed;
    }
}
