//! Power cuts at every call of scripts with transactions: what is found is held against a plain reading of the batches
//! that are left, from the first ever appended on. Aborted ranges, the last stable offset, what is known of each producer
//! and what a reader of committed records gets must be those.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::SimFs;
use highwater_storage::inspect::verify_partition;
use highwater_storage::*;

use crate::check::{images_per_crash, placed};
use crate::script::compacting;
use crate::support::transactions::Reading;
use crate::support::*;

mod scripts;

/// Not transactional, but idempotent.
const PLAIN: i64 = 9;

/// After one in so many crashes an image is opened with a crash at each call of the opening.
const INTERRUPTED_EVERY: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// A batch of two records of a producer, which begins a transaction if none is open.
    Data(i64),
    /// The marker of a producer; an abort that fences raises the producer's epoch.
    Commit(i64),
    Abort(i64),
    Fence(i64),
    Flush,
    Checkpoint,
    Truncate(i64),
    /// Moves the start, and removes what lies below as a whole.
    Retire(i64),
    Compact,
    /// Closes well and opens again.
    Reopen,
    /// Drops the log and opens it again.
    Restart,
}

use Op::*;

/// One batch that was appended.
#[derive(Clone, Debug)]
struct Entry {
    producer: i64,
    epoch: i16,
    first: i64,
    last: i64,
    leader_epoch: i32,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Data { sequence: i32, records: [(Vec<u8>, Vec<u8>); 2] },
    Marker { is_abort: bool, coordinator_epoch: i32 },
}

/// A record as a reader of committed records gets it: offset, key and value.
type Committed = (i64, Vec<u8>, Vec<u8>);

/// What follows from reading all entries from the first to the last.
#[derive(Debug, Default)]
struct State {
    reading: Reading,
    committed: Vec<Committed>,
}

/// All that a log was given and not cut off.
#[derive(Clone, Default)]
struct Model {
    start: i64,
    end: i64,
    flushed: i64,
    entries: Vec<Entry>,
    /// Below this, records may have gone that a later one of their key supersedes, or that were aborted.
    compacted: i64,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { start, end, flushed, compacted, .. } = self;
        write!(f, "{start}..{end}, flushed {flushed}, compacted {compacted}")
    }
}

impl Model {
    fn state(&self) -> State {
        let mut state = State::default();
        let mut undecided: BTreeMap<i64, Vec<Committed>> = BTreeMap::new();
        for Entry { producer, epoch, first, last, what, .. } in &self.entries {
            let of = (*producer, *epoch);
            match what {
                What::Data { sequence, records } => {
                    state.reading.data(of, (*first, *last), sequence + 1, *producer != PLAIN);
                    let records =
                        records.iter().zip(*first..).map(|((key, value), at)| (at, key.clone(), value.clone()));
                    if *producer == PLAIN {
                        state.committed.extend(records);
                    } else {
                        undecided.entry(*producer).or_default().extend(records);
                    }
                }
                What::Marker { is_abort, coordinator_epoch } => {
                    let decided = undecided.remove(producer).unwrap_or_default();
                    if state.reading.marker(of, *last, *is_abort, *coordinator_epoch) && !is_abort {
                        state.committed.extend(decided);
                    }
                }
            }
        }
        state.committed.retain(|(offset, ..)| *offset >= self.start);
        state.committed.sort();
        state
    }

    fn cut(&mut self, to: i64) {
        self.entries.retain(|entry| entry.last < to);
        self.end = self.entries.last().map_or(0, |entry| entry.last + 1);
        self.flushed = self.flushed.min(self.end);
    }

    /// What is left of this in a log with these bounds.
    fn found_as(&self, start: i64, end: i64) -> Self {
        let mut found = self.clone();
        found.cut(end);
        assert_eq!(found.end, end, "a log ends where a batch does");
        Self { start, ..found }
    }
}

/// A run as far as it came: what was known before the call that failed, and what would have been after.
#[derive(Debug, Default)]
struct Run {
    before: Model,
    after: Model,
    op: Option<Op>,
    number: usize,
    leader_epoch: i32,
    coordinator_epoch: i32,
}

fn options() -> LogOptions {
    // Three or four batches to a segment.
    LogOptions {
        segment_bytes: 700,
        index_interval_bytes: 200,
        retention: false,
        file_delete_delay_ms: 0,
        ..LogOptions::default()
    }
}

fn reopen(fs: &SimFs) -> Result<Log, OpenError> {
    Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options(), OpenHints::default()).map(|(log, report)| {
        assert!(report.missing.is_empty(), "what was synced is there: {report:?}");
        assert!(!report.producers_rebuilt || report.end < Offset(8), "snapshots are written in time: {report:?}");
        log
    })
}

impl Run {
    /// The next batch or marker of a producer, for the model and as bytes.
    fn next(&mut self, op: Op) -> (Entry, Vec<u8>) {
        let (Data(producer) | Commit(producer) | Abort(producer) | Fence(producer)) = op else {
            unreachable!("{op:?} appends nothing")
        };
        let first = self.after.end;
        let known = self.after.state().reading.producers.get(&producer).copied();
        let (epoch, last_sequence, ..) = known.unwrap_or((0, -1, -1, -1, None));
        let time = TimestampMs(T0 + first);
        if op != Data(producer) {
            self.coordinator_epoch += i32::from(op == Fence(producer));
            let (is_abort, coordinator_epoch) = (op != Commit(producer), self.coordinator_epoch);
            let producer_epoch = epoch + i16::from(op == Fence(producer));
            let marker = TransactionMarker { producer_id: producer, producer_epoch, coordinator_epoch, is_abort };
            let what = What::Marker { is_abort, coordinator_epoch };
            let leader_epoch = self.leader_epoch;
            return (
                Entry { producer, epoch: producer_epoch, first, last: first, leader_epoch, what },
                marker.to_batch(time),
            );
        }
        let number = self.number;
        self.number += 1;
        let records = [
            (format!("a{}", number % 3).into_bytes(), format!("{} {number}", "-".repeat(40)).into_bytes()),
            (format!("b{}", number % 4).into_bytes(), format!("{} {number}", "+".repeat(30)).into_bytes()),
        ];
        let sequence = last_sequence + 1;
        let mut builder = BatchBuilder::new(Codec::None).producer(producer, epoch, sequence);
        if producer != PLAIN {
            builder = builder.transactional();
        }
        for (key, value) in &records {
            builder.push(Record::keyed(time, key, value));
        }
        let what = What::Data { sequence, records };
        (Entry { producer, epoch, first, last: first + 1, leader_epoch: self.leader_epoch, what }, builder.build())
    }

    fn append(&mut self, log: &mut Log, op: Op) -> Result<(), ()> {
        let (entry, bytes) = self.next(op);
        let (first, epoch) = (entry.first, LeaderEpoch(entry.leader_epoch));
        self.after.end = entry.last + 1;
        self.after.entries.push(entry);
        let marker = batches(&bytes).next().and_then(|batch| TransactionMarker::of(&batch.unwrap()));
        let appended = match marker {
            Some(marker) => log.end_transaction(NOW, epoch, &marker),
            None => log.append(NOW, epoch, &bytes),
        };
        let appended = appended.map_err(drop)?;
        assert_eq!((appended.first.0, appended.duplicate), (first, false));
        Ok(())
    }

    fn step(&mut self, log: &mut Log, op: Op) -> Result<(), ()> {
        match op {
            Data(_) | Commit(_) | Abort(_) | Fence(_) => self.append(log, op),
            Flush => {
                self.after.flushed = self.after.end;
                log.flush().map(drop).map_err(drop)
            }
            Checkpoint => {
                self.after.flushed = self.after.end;
                log.checkpoint().map(drop).map_err(drop)
            }
            Truncate(to) => {
                self.after.cut(to);
                // What comes after it is another leader's.
                self.leader_epoch += 1;
                log.truncate_to(Offset(to)).map(drop).map_err(drop)
            }
            Retire(to) => {
                self.after.start = to;
                log.advance_start(Offset(to)).map_err(drop)?;
                self.keep_house(log)
            }
            Compact => {
                self.after.compacted = self.after.end;
                log.set_options(compacting(options())).unwrap();
                let done = self.keep_house(log);
                log.set_options(options()).unwrap();
                done
            }
            Reopen | Restart => unreachable!("these take the log"),
        }
    }

    fn keep_house(&self, log: &mut Log) -> Result<(), ()> {
        let limits = WorkLimits::new(log.end());
        for _ in 0..300 {
            if log.housekeeping().step(NOW, &limits).map_err(drop)?.is_none() {
                return Ok(());
            }
        }
        panic!("housekeeping does not end")
    }

    /// What a log must hold that was found with this start and end.
    fn left(&self, start: i64, end: i64) -> Model {
        let Self { before, after, op, .. } = self;
        let (low, high) = (before.start.min(after.start), before.start.max(after.start));
        assert!((low..=high).contains(&start), "the start {start} is not in {low}..={high}");
        let promised = before.flushed.min(after.end);
        let most = before.end.max(after.end);
        assert!((promised..=most).contains(&end), "{op:?}: the end {end} is not in {promised}..={most}");
        let longer = if before.end > after.end { before } else { after };
        let compacted = before.compacted.max(after.compacted);
        Model { compacted, ..longer.found_as(start, end) }
    }
}

/// Runs a script until it ends or the machine crashes.
fn run(fs: &SimFs, script: &[Op]) -> Run {
    let mut run = Run::default();
    let Ok(mut log) = reopen(fs) else { return run };
    for op in script {
        (run.op, run.before) = (Some(*op), run.after.clone());
        if matches!(op, Reopen | Restart) {
            if *op == Reopen {
                run.after.flushed = run.after.end;
                if log.close().is_err() {
                    return run;
                }
            } else {
                drop(log);
            }
            let Ok(opened) = reopen(fs) else { return run };
            log = opened;
        } else if run.step(&mut log, *op).is_err() {
            assert!(fs.crashed(), "{op:?} failed without a crash: {log:?}");
            return run;
        }
        if fs.crashed() {
            // In a call whose failure is of no account, such as the mark after a flush: the step is done.
            run.before = run.after.clone();
            return run;
        }
        check(&log, &run.after);
        run.after.flushed = log.flushed().0;
    }
    run.before = run.after.clone();
    run
}

/// What can be read: offset, producer, key and value of each record that is not a marker's.
fn data_in(reader: &LogReader) -> Vec<(i64, i64, Vec<u8>, Vec<u8>)> {
    let mut data = Vec::new();
    let mut from = reader.start();
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(500).verified()).unwrap();
        for batch in batches(&fetched.bytes).map(Result::unwrap).filter(|batch| !batch.header().is_control()) {
            for record in batch.records().unwrap().map(Result::unwrap) {
                let offset = batch.base_offset().0 + i64::from(record.offset_delta);
                let (key, value) = (record.key.unwrap().to_vec(), record.value.unwrap().to_vec());
                data.push((offset, batch.header().producer_id(), key, value));
            }
        }
        from = fetched.next;
    }
    data.retain(|(offset, ..)| *offset >= reader.start().0);
    data
}

/// Holds a log against what it was given.
fn check(log: &Log, model: &Model) {
    assert_eq!((log.start().0, log.end().0), (model.start, model.end));
    let (state, reader) = (model.state(), log.reader());
    let known = log.producers().iter().map(|(id, known)| {
        let open = known.transaction_start().map(|first| first.0);
        (id, (known.epoch(), known.last_sequence(), known.last_offset().0, known.coordinator_epoch(), open))
    });
    assert_eq!(known.collect::<BTreeMap<_, _>>(), state.reading.producers);

    // Record by record, but for those that a compaction was free to take.
    let data = data_in(&reader);
    let given = model.entries.iter().flat_map(|entry| {
        let records = match &entry.what {
            What::Data { records, .. } => records.to_vec(),
            What::Marker { .. } => Vec::new(),
        };
        records.into_iter().zip(entry.first..).map(|((key, value), at)| (at, entry.producer, key, value))
    });
    let given = given.filter(|(offset, ..)| *offset >= model.start);
    let kept: Vec<_> = given.filter(|record| record.0 >= model.compacted || data.contains(record)).collect();
    assert_eq!(data, kept);

    // Whatever part is asked for: the aborted ranges that reach into it, at least those of which something is left.
    let (start, end) = (model.start, model.end);
    let step = usize::try_from((end - start) / 6 + 1).unwrap();
    for from in (start..=end).step_by(step) {
        for upper in (from..=end).step_by(step).chain([end]) {
            let found = reader.aborted_transactions(Offset(from), Offset(upper)).unwrap();
            let reaches = |aborted: &&AbortedTransaction| {
                aborted.last_offset.0 >= from && aborted.first_offset.0 < upper && from < upper
            };
            let has_data = |aborted: &AbortedTransaction| {
                let range = aborted.first_offset.0..aborted.last_offset.0;
                data.iter().any(|(offset, producer, ..)| *producer == aborted.producer_id && range.contains(offset))
            };
            let may_be_gone = |aborted: &AbortedTransaction| {
                aborted.last_offset.0 < model.compacted && !found.contains(aborted) && !has_data(aborted)
            };
            let expected = state.reading.aborted.iter().filter(reaches).filter(|aborted| !may_be_gone(aborted));
            assert_eq!(found, expected.copied().collect::<Vec<_>>(), "{from}..{upper}");
        }
    }
    for high_watermark in (start..=end).step_by(step).chain([end]) {
        let told = log.last_stable_offset(Offset(high_watermark));
        assert_eq!(told, reader.last_stable_offset(Offset(high_watermark)));
        // Of what ended before the log was opened it may know less, or nothing; not so up to the end.
        let stable = |known_from| state.reading.stable(model.start, high_watermark, known_from);
        let expected = stable(0)..=stable(end);
        assert!(expected.contains(&told.0), "{told} is not in {expected:?}, high watermark {high_watermark}");
    }

    // What a reader of committed records makes of it all.
    let (stable, aborted) =
        (log.last_stable_offset(Offset(end)), reader.aborted_transactions(Offset(start), Offset(end)).unwrap());
    let is_aborted = |offset: i64, producer: i64| {
        aborted.iter().any(|aborted| {
            aborted.producer_id == producer && (aborted.first_offset.0..aborted.last_offset.0).contains(&offset)
        })
    };
    let read = data.into_iter().filter(|(offset, producer, ..)| *offset < stable.0 && !is_aborted(*offset, *producer));
    let read: Vec<Committed> = read.map(|(offset, _, key, value)| (offset, key, value)).collect();
    let mut expected = state.committed;
    expected.retain(|(offset, ..)| *offset < stable.0);
    let last_of_key: BTreeSet<_> =
        expected.iter().map(|record| (&record.1, record)).collect::<BTreeMap<_, _>>().into_values().collect();
    let kept: Vec<_> = expected
        .iter()
        .filter(|record| record.0 >= model.compacted || last_of_key.contains(record) || read.contains(record))
        .cloned()
        .collect();
    assert_eq!(read, kept, "committed records, below {stable}");
}

/// Opens an image, checks it, ends what was open in it, and sees what another power cut leaves of that.
fn check_image(run: &Run, image: &SimFs, seed: u64) -> i64 {
    let mut log = reopen(image).expect("an image opens");
    let found = run.left(log.start().0, log.end().0);
    check(&log, &found);

    let end = found.end;
    let mut ongoing = Run {
        before: found.clone(),
        after: Model { flushed: end, ..found },
        number: run.number,
        leader_epoch: log.latest_epoch().0.max(0) + 1,
        coordinator_epoch: run.coordinator_epoch,
        op: None,
    };
    let open: Vec<i64> =
        ongoing.after.state().reading.producers.iter().filter_map(|(id, known)| known.4.map(|_| *id)).collect();
    for (at, producer) in open.into_iter().enumerate() {
        let ends = if at == 0 { Fence(producer) } else { Commit(producer) };
        ongoing.append(&mut log, ends).expect("an open transaction is ended");
    }
    for producer in [1, 2, PLAIN] {
        ongoing.append(&mut log, Data(producer)).expect("a producer goes on");
    }
    check(&log, &ongoing.after);
    drop(log);
    ongoing.before = ongoing.after.clone();
    // What was recovered is synced.
    ongoing.before.flushed = end;
    for image in image.images(2, seed) {
        let log = reopen(&image).expect("a second image opens");
        check(&log, &ongoing.left(log.start().0, log.end().0));
    }
    let mut log = reopen(image).expect("a recovered image opens");
    check(&log, &ongoing.after);
    // Of segments below the start, some of whose files a power cut has brought back, nobody asks more than that they go.
    ongoing.keep_house(&mut log).expect("the simulated disk works");
    check(&log, &ongoing.after);
    log.close().expect("the simulated disk works");
    let mut faults = Vec::new();
    let verified = verify_partition(image, Path::new(DIR), &mut |event| faults.push(event)).expect("it can be read");
    assert!(verified.is_good(), "{faults:#?}");
    end
}

fn crash_everywhere(seed: u64, script: &[Op]) {
    let whole = disk(seed);
    let complete = run(&whole, script);
    assert!(!whole.crashed());
    let (mut images, mut losses) = (0, 0);
    for calls in 0..=whole.calls() {
        let fs = disk(seed);
        fs.crash_after(calls);
        let run = run(&fs, script);
        let image_seed = seed ^ (calls << 20);
        for (number, image) in fs.images(images_per_crash() / 3, image_seed).into_iter().enumerate() {
            let place = || format!("seed {seed}, call {calls}, image {number}, {run:?}\n{script:?}");
            let end = placed(place, || check_image(&run, &image, calls));
            (images, losses) = (images + 1, losses + u64::from(end < run.before.end));
        }
        let place = || format!("seed {seed}, call {calls}, killed, {run:?}\n{script:?}");
        let end = placed(place, || check_image(&run, &fs.process_crash_image(), calls));
        let cuts = matches!(run.op, Some(Truncate(_)));
        placed(place, || assert!(cuts || end >= run.before.end, "a killed process loses nothing"));
        images += 1;
        if (calls + seed).is_multiple_of(INTERRUPTED_EVERY) {
            let number = usize::try_from(calls / INTERRUPTED_EVERY).unwrap() % 8;
            images += interrupt(&run, &|| fs.images(8, image_seed).into_iter().nth(number), seed, calls);
        }
    }
    assert!(losses > 0, "images that lose nothing test nothing");
    let ended = complete.after.state().reading;
    println!(
        "{images} images of {} crashes, with {} aborted transactions of {}",
        whole.calls() + 1,
        ended.aborted.len(),
        ended.ended.len()
    );
}

/// Crashes at each call of the opening of an image, which is made anew each time.
fn interrupt(run: &Run, image: &dyn Fn() -> Option<SimFs>, seed: u64, calls: u64) -> u64 {
    let mut images = 0;
    for recovery_calls in 0.. {
        let Some(image) = image() else { break };
        image.crash_after(recovery_calls);
        if reopen(&image).is_ok() && !image.crashed() {
            break;
        }
        for (number, image) in image.images(3, recovery_calls).into_iter().enumerate() {
            let place =
                || format!("seed {seed}, call {calls}, call {recovery_calls} of recovery, image {number}, {run:?}");
            placed(place, || check_image(run, &image, calls));
            images += 1;
        }
    }
    images
}
