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
    Flush,
    Checkpoint,
    /// Begins a flush, or a checkpoint.
    Begin(bool),
    /// Runs what was begun, if anything was, and finishes it.
    Finish,
    Truncate(i64),
    AdvanceStart(i64),
    Reset(i64),
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
    pub(crate) value: Vec<u8>,
    pub(crate) epoch: i32,
    pub(crate) producer: i64,
    /// The sequence number of its batch.
    pub(crate) sequence: i32,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, base, value, epoch, producer, sequence } = self;
        let text = String::from_utf8_lossy(value);
        write!(f, "{offset} (of {base}, epoch {epoch}, {producer}/{sequence}) {}", text.trim_matches(['-', '+']))
    }
}

/// What a log holds, as its caller knows. Records below the start are there for what is known of producers.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) flushed: i64,
    pub(crate) records: Vec<Known>,
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { start, end, flushed, records } = self;
        write!(f, "start {start}, end {end}, flushed {flushed}, {} records", records.len())
    }
}

impl Contents {
    /// What is in a log.
    pub(crate) fn of(log: &Log) -> Self {
        let records = read_all(&log.reader());
        Self { start: log.start().0, end: log.end().0, flushed: log.flushed().0, records }
    }

    /// The records from `start` on and below `end`.
    pub(crate) fn between(&self, start: i64, end: i64) -> Vec<Known> {
        self.records.iter().filter(|record| (start..end).contains(&record.offset)).cloned().collect()
    }

    /// Where a log ends that is cut at `to`: at the start of the batch that holds it.
    fn boundary(&self, to: i64) -> i64 {
        self.records.iter().find(|record| record.offset == to).map_or(to, |record| record.base)
    }

    fn cut(&mut self, to: i64) {
        if to >= self.end {
            return;
        }
        let end = self.boundary(to);
        if to <= self.start || end < self.start {
            let end = to.min(self.start);
            *self = Self { start: end, end, flushed: end, records: Vec::new() };
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

pub(crate) fn reopen(fs: &SimFs) -> Result<Log, OpenError> {
    Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options(), OpenHints::default()).map(|(log, _)| log)
}

/// A batch of two records of a producer.
pub(crate) fn batch_of(producer: i64, sequence: i32, values: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).producer(producer, 0, sequence);
    for value in values {
        builder.push(Record::new(TimestampMs(T0 + i64::from(sequence)), value));
    }
    builder.build()
}

/// Runs the script until it ends or the machine crashes.
pub(crate) fn run(fs: &SimFs, script: &[Op]) -> Run {
    let empty = Contents::default();
    let (before, after) = (empty.clone(), empty);
    let mut run = Run { before, after, op: None, sequences: BTreeMap::new(), number: 0, job: None };
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
                self.after = Contents { start: to, end: to, flushed: to, records: Vec::new() };
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
            Op::Reopen | Op::Restart => unreachable!("these take the log"),
        }
    }

    fn append(&mut self, log: &mut Log, epoch: i32) -> Result<(), ()> {
        let number = self.number;
        self.number += 1;
        let producer = PRODUCERS[number % PRODUCERS.len()];
        let sequence = *self.sequences.entry(producer).or_default();
        let values = [
            format!("{}value {number}", "-".repeat(100)).into_bytes(),
            format!("{}, {number}", "+".repeat(120)).into_bytes(),
        ];
        let batch = batch_of(producer, sequence, &values);
        self.before = self.after.clone();
        let base = self.after.end;
        for (value, offset) in values.into_iter().zip(base..) {
            self.after.records.push(Known { offset, base, value, epoch, producer, sequence });
        }
        self.after.end += 2;
        self.sequences.insert(producer, sequence + 2);
        let appended = log.append(NOW, LeaderEpoch(epoch), &batch).map_err(drop)?;
        assert_eq!((appended.first.0, appended.duplicate), (base, false));
        Ok(())
    }

    /// Holds the log after a step against what its caller knows.
    fn compare(&mut self, log: &Log, op: Op) {
        let found = Contents::of(log);
        if matches!(op, Op::Housekeeping(..)) {
            assert!(self.before.start <= found.start && found.start <= self.after.start, "{op:?}");
            self.after.start = found.start;
        }
        assert_eq!((found.start, found.end), (self.after.start, self.after.end), "{op:?}");
        assert_eq!(found.records, self.after.between(self.after.start, i64::MAX), "{op:?}");
        self.after.flushed = found.flushed;
    }
}
