//! Everything that can be done to a log, in any order, beside a list of what it must hold: appends of leaders and
//! followers, flushes and checkpoints that end later, truncations, resets, a start that moves, housekeeping, copies, full
//! disks, failing devices, closes, kills and power cuts.
//!
//! What must hold: the log is the list; what was flushed is there after a power cut; a call that fails changes nothing,
//! or closes the log, and opening it again loses nothing that was flushed; a copy is what the log was.

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::{
    FlushJob, LeaderEpoch, Log, LogOptions, Offset, OpenHints, ReadLimit, TimestampMs, WorkLimits,
};

use crate::directory::{beginning, found};
use crate::input::Input;
use crate::model::{Model, NOW, Stored, batch, disk, open, options};

const COPY: &str = "/copy";

struct Run {
    fs: SimFs,
    options: LogOptions,
    log: Log,
    /// Whole batches; those below the start are there for the batch that the start lies in.
    batches: Vec<Stored>,
    start: Offset,
    end: Offset,
    job: Option<FlushJob>,
    epoch: LeaderEpoch,
    now: TimestampMs,
}

/// The target's body.
pub fn run(data: &[u8]) {
    let (program, fs) = beginning(data);
    let mut input = Input::new(program);
    let options = LogOptions {
        retention_bytes: input.choose(&[-1, 0, 3_000]),
        retention_ms: -1,
        file_delete_delay_ms: 500,
        ..options(&mut input)
    };
    let log = open(&fs, &options).0;
    let Some(batches) = found(&log) else { return };
    let (start, end, epoch) = (log.start(), log.end(), LeaderEpoch(log.latest_epoch().0.max(0)));
    let mut run = Run { fs, options, log, batches, start, end, job: None, epoch, now: NOW };
    for _ in 0..1 + input.below(48) {
        run.step(&mut input);
        run.check();
        if input.is_empty() {
            break;
        }
    }
    run.again(true);
    run.check();
}

impl Run {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(22) {
            0..=4 => self.append(input),
            5 | 6 => self.replicate(input),
            7 => {
                let flushed = self.log.flush().expect("the simulated disk works");
                assert_eq!(flushed, self.end, "flushed");
            }
            8 => {
                self.log.checkpoint().expect("the simulated disk works");
            }
            9 => {
                let job = if input.flag() { self.log.begin_checkpoint() } else { self.log.begin_flush() };
                self.job = self.job.take().or(job);
            }
            10 | 11 => {
                if let Some(job) = self.job.take() {
                    self.log.finish_flush(job.run()).expect("the simulated disk works");
                }
            }
            12 | 13 => self.truncate(input),
            14 => {
                let to = self.between(self.start, self.end, input);
                self.start = self.log.advance_start(to).expect("it is in the log");
                assert_eq!(self.start, to, "the start");
            }
            15 => {
                let to = self.between(Offset::ZERO, self.end + 40, input);
                self.log.reset_to(to).expect("the simulated disk works");
                self.emptied(to);
            }
            16 => self.keep_house(input),
            17 => self.copy(input),
            18 => self.fail(input),
            19 => self.again(input.flag()),
            20 => self.power_cut(input),
            _ => self.epoch.0 += 1,
        }
    }

    fn between(&self, low: Offset, high: Offset, input: &mut Input<'_>) -> Offset {
        low + i64::try_from(input.below(256)).expect("small") * (high - low) / 255
    }

    fn append(&mut self, input: &mut Input<'_>) {
        let (bytes, timestamps) = batch(input);
        let appended = self.log.append(self.now, self.epoch, &bytes).expect("a good batch is taken");
        assert_eq!(appended.first, self.end, "the first offset of an append");
        self.push(self.end, &bytes, timestamps);
    }

    fn push(&mut self, base: Offset, bytes: &[u8], timestamps: Vec<TimestampMs>) {
        let mut list = Model { start: self.start, batches: std::mem::take(&mut self.batches) };
        list.push(base, self.epoch, bytes, timestamps);
        self.end = list.end();
        self.batches = list.batches;
    }

    /// A leader's batches, with the gaps that compaction leaves.
    fn replicate(&mut self, input: &mut Input<'_>) {
        let before = self.batches.len();
        for _ in 0..1 + input.below(4) {
            let gap = if input.below(3) == 0 { i64::from(input.byte() % 5) } else { 0 };
            let (bytes, timestamps) = batch(input);
            self.push(self.end + gap, &bytes, timestamps);
        }
        let bytes: Vec<u8> = self.batches[before..].iter().flat_map(|batch| batch.bytes.clone()).collect();
        self.log.append_replicated(self.now, &bytes).expect("a leader's records are taken");
    }

    fn emptied(&mut self, at: Offset) {
        (self.start, self.end) = (at, at);
        self.batches.clear();
    }

    fn truncate(&mut self, input: &mut Input<'_>) {
        let to = self.between(Offset((self.start.0 - 3).max(0)), self.end, input);
        let truncated = self.log.truncate_to(to).expect("the simulated disk works");
        if to < self.end {
            self.batches.retain(|batch| batch.next <= to);
            if to <= self.start || truncated.end < self.start || self.batches.is_empty() {
                // Where the log goes on without a batch is for the log to say, within what the call may do.
                assert!(truncated.end <= to.max(self.start), "cut to {to}: {truncated:?}");
                self.batches.clear();
                self.start = self.start.min(truncated.end);
                self.end = truncated.end;
            } else {
                self.end = self.log.end();
                let last = self.batches.last().expect("there is one").next;
                assert!(last <= self.end && self.end <= to, "cut to {to}: {truncated:?}");
            }
        }
        assert_eq!(truncated.end, self.end, "the end after a cut to {to}");
        self.epoch.0 += 1;
    }

    fn keep_house(&mut self, input: &mut Input<'_>) {
        self.now = self.now.after(i64::from(input.byte()) * 20);
        let high_watermark = self.between(self.start, self.end, input);
        let limits = WorkLimits::new(high_watermark);
        while self.log.housekeeping().step(self.now, &limits).expect("the simulated disk works").is_some() {}
        let start = self.log.start();
        assert!(self.start <= start && start <= high_watermark.max(self.start), "retention kept to the watermark");
        self.start = start;
    }

    /// A copy opens as what the log was, and stays that whatever the log does.
    fn copy(&mut self, input: &mut Input<'_>) {
        if self.fs.metadata(Path::new(COPY)).is_ok() {
            return;
        }
        let copied = self.log.snapshot(COPY);
        if copied.is_err() && self.log.fence().is_some() {
            return;
        }
        copied.expect("the simulated disk works");
        self.append(input);
        let last = self.batches.pop().expect("it was appended just now");
        let shared: Arc<dyn Fs> = Arc::new(self.fs.clone());
        let opened = Log::open_with(shared, Path::new(COPY), self.options.clone(), OpenHints::default());
        let (copy, report) = opened.expect("a copy opens");
        assert!(report.clean, "a copy is a log that was closed well");
        self.end = last.base;
        check(&copy, &self.batches, self.start, self.end);
        self.end = last.next;
        self.batches.push(last);
    }

    /// One fault, somewhere in a few steps. A log that it closes is opened again.
    fn fail(&mut self, input: &mut Input<'_>) {
        self.job = None;
        let fault = input.choose(&[Fault::Enospc, Fault::Eio, Fault::SyncFails]);
        let call = input.choose(&[Call::Write, Call::SyncData, Call::SyncDir, Call::Create, Call::AnyChange]);
        self.fs.inject(fault, call, 1 + u64::try_from(input.below(6)).expect("small"));
        let (flushed, before) = (self.log.flushed(), self.end);
        let (bytes, timestamps) = batch(input);
        let appended = self.log.append(self.now, self.epoch, &bytes);
        if let Ok(appended) = &appended {
            assert_eq!(appended.first, self.end, "the first offset of an append");
            self.push(self.end, &bytes, timestamps.clone());
        }
        let synced = if input.flag() { self.log.flush() } else { self.log.checkpoint() };
        let hit = self.fs.faults_hit() > 0;
        self.fs.clear_faults();
        // After a sync that failed the next one of a directory fails too, and closes the log then at the latest.
        if self.log.fence().is_none() && !(hit && fault == Fault::SyncFails) {
            assert!(hit || (appended.is_ok() && synced.is_ok()), "a call fails without a fault");
            return;
        }
        // The machine starts again: a file system that failed is no ground to stand on.
        let images = self.fs.images(6, u64::from(input.byte()));
        self.fs = images[input.below(images.len())].clone();
        if appended.is_err() {
            // Not acknowledged, and there or not.
            self.push(before, &bytes, timestamps);
        }
        self.reopened(flushed);
    }

    fn again(&mut self, closes: bool) {
        self.job = None;
        let log = std::mem::replace(&mut self.log, open(&disk(), &self.options).0);
        if closes {
            log.close().expect("the simulated disk works");
        } else {
            drop(log);
            self.fs = self.fs.kill();
        }
        self.log = open(&self.fs, &self.options).0;
    }

    fn power_cut(&mut self, input: &mut Input<'_>) {
        self.job = None;
        let flushed = self.log.flushed();
        let images = self.fs.images(10, u64::from(input.byte()));
        self.fs = images[input.below(images.len())].clone();
        self.reopened(flushed);
    }

    /// Opens the log after a crash of the machine: a prefix is left that holds what was flushed.
    fn reopened(&mut self, flushed: Offset) {
        self.log = open(&self.fs, &self.options).0;
        let end = self.log.end();
        assert!(flushed <= end, "{flushed} was flushed, and the log ends at {end}");
        assert!(end <= self.end.max(self.start), "the log ends at {end}, behind all there was");
        let whole = |batch: &Stored| end <= batch.base || batch.next <= end;
        assert!(end == self.start || self.batches.iter().all(whole), "the log ends at {end}, inside of a batch");
        self.batches.retain(|batch| batch.next <= end);
        self.end = end;
    }

    fn check(&self) {
        check(&self.log, &self.batches, self.start, self.end);
    }
}

/// Holds a log against the list.
fn check(log: &Log, batches: &[Stored], start: Offset, end: Offset) {
    assert_eq!((log.start(), log.end()), (start, end), "start and end");
    assert!(log.recovery_point() <= log.flushed() && log.flushed() <= end, "{log:?}");
    let there: Vec<&Stored> = batches.iter().filter(|batch| batch.next > start).collect();
    let mut bytes = Vec::new();
    let mut from = start;
    while from < end {
        let fetched = log.read(from, ReadLimit::bytes(900)).expect("what is there can be read");
        if fetched.bytes.is_empty() {
            break;
        }
        assert!(fetched.next > from, "reading at {from} does not get on");
        bytes.extend_from_slice(&fetched.bytes);
        from = fetched.next;
    }
    let expected: Vec<u8> = there.iter().flat_map(|batch| batch.bytes.iter().copied()).collect();
    assert!(bytes == expected, "what is read is not what was appended");
    let reader = log.reader();
    for batch in there {
        let inside = Offset((batch.base.0 + batch.next.0) / 2).max(start);
        let fetched = log.read(inside, ReadLimit::bytes(1)).expect("what is there can be read");
        assert!(fetched.bytes == batch.bytes, "reading at {inside} does not give the batch that holds it");
        assert_eq!(reader.epoch_of(inside), batch.epoch, "the epoch at {inside}");
    }
}
