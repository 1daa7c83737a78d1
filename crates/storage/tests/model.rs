//! Lists of operations on a log beside a plain list of records, with clean closes, kills and power cuts in between.

mod support;

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::SimFs;
use highwater_storage::*;
use proptest::prelude::*;
use support::*;

#[derive(Clone, Debug)]
enum Op {
    /// A leader's batch of so many records of this size, this much later than the last.
    Append {
        records: usize,
        bytes: usize,
        later_ms: i64,
    },
    /// A follower's batches: gap before each, and its records.
    Replicate {
        batches: Vec<(i64, usize)>,
    },
    NextEpoch,
    Truncate(prop::sample::Index),
    AdvanceStart(prop::sample::Index),
    Reset(i64),
    BeginFlush {
        checkpoint: bool,
    },
    FinishFlush,
    Housekeeping {
        later_ms: i64,
        high_watermark: prop::sample::Index,
    },
    Close,
    Kill,
    PowerCut {
        image: prop::sample::Index,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        12 => (1..5usize, 8..300usize, -50..200i64)
            .prop_map(|(records, bytes, later_ms)| Op::Append { records, bytes, later_ms }),
        4 => prop::collection::vec((0..4i64, 1..4usize), 1..5).prop_map(|batches| Op::Replicate { batches }),
        2 => Just(Op::NextEpoch),
        3 => index().prop_map(Op::Truncate),
        2 => index().prop_map(Op::AdvanceStart),
        1 => (0..200i64).prop_map(Op::Reset),
        3 => any::<bool>().prop_map(|checkpoint| Op::BeginFlush { checkpoint }),
        4 => Just(Op::FinishFlush),
        3 => (0..2000i64, index())
            .prop_map(|(later_ms, high_watermark)| Op::Housekeeping { later_ms, high_watermark }),
        1 => Just(Op::Close),
        2 => Just(Op::Kill),
        2 => index().prop_map(|image| Op::PowerCut { image }),
    ]
}

/// What a log should hold. Batches are the unit: cuts take whole ones.
#[derive(Debug, Default)]
struct Model {
    start: i64,
    end: i64,
    flushed: i64,
    batches: Vec<Batch>,
}

#[derive(Clone, Debug)]
struct Batch {
    first: i64,
    last: i64,
    epoch: i32,
    time: i64,
    values: Vec<Vec<u8>>,
}

impl Model {
    fn push(&mut self, batch: Batch) {
        self.end = batch.last + 1;
        self.batches.push(batch);
    }

    /// Cuts whole batches from `to` on; returns the end.
    fn cut(&mut self, to: i64) {
        if to >= self.end {
            return;
        }
        let kept: Vec<Batch> = self.batches.iter().filter(|batch| batch.last < to).cloned().collect();
        // A log that has no batch left ends where its first segment begins, which is the model's business only as far
        // as that it is not past the cut.
        self.end = kept.last().map_or_else(|| to.min(self.end), |batch| batch.last + 1);
        self.batches = kept;
        self.flushed = self.flushed.min(self.end);
    }

    fn records(&self) -> Vec<(i64, Vec<u8>)> {
        let all = self.batches.iter().flat_map(|batch| (batch.first..).zip(batch.values.iter().cloned()));
        all.filter(|(offset, _)| *offset >= self.start).collect()
    }
}

struct Run {
    fs: SimFs,
    log: Option<Log>,
    model: Model,
    options: LogOptions,
    job: Option<FlushJob>,
    epoch: i32,
    clock: i64,
    number: u64,
}

impl Run {
    fn new(options: LogOptions) -> Self {
        let fs = disk(1);
        let (log, _) = open(&fs, &options);
        Self { fs, log: Some(log), model: Model::default(), options, job: None, epoch: 0, clock: T0, number: 0 }
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("it is open between steps")
    }

    fn now(&self) -> TimestampMs {
        TimestampMs(self.clock)
    }

    fn open(&mut self) {
        let fs = Arc::new(self.fs.clone());
        let (log, report) =
            Log::open_with(fs, Path::new(DIR), self.options.clone(), OpenHints::default()).expect("it opens");
        assert!(report.start <= report.end);
        self.log = Some(log);
    }

    fn values(&mut self, records: usize, bytes: usize) -> Vec<Vec<u8>> {
        (0..records)
            .map(|_| {
                self.number += 1;
                let mut value = self.number.to_be_bytes().to_vec();
                value.resize(bytes.max(8), u8::try_from(self.number % 251).unwrap());
                value
            })
            .collect()
    }

    fn step(&mut self, op: &Op) {
        let (start, end) = (self.model.start, self.model.end);
        let pick = |index: &prop::sample::Index| {
            start - 2 + i64::try_from(index.index(usize::try_from(end - start).unwrap() + 5)).unwrap()
        };
        match op {
            Op::Append { records, bytes, later_ms } => {
                self.clock += later_ms;
                let (values, time, epoch) = (self.values(*records, *bytes), self.clock, self.epoch);
                let bytes = batch(time, &values);
                let appended = self.log().append(TimestampMs(time), LeaderEpoch(epoch), &bytes).unwrap();
                let (first, last) = (end, end + i64::try_from(*records).unwrap() - 1);
                assert_eq!((appended.first.0, appended.last.0), (first, last));
                self.model.push(Batch { first, last, epoch, time, values });
            }
            Op::Replicate { batches } => {
                let mut bytes = Vec::new();
                for (gap, records) in batches {
                    let (values, epoch) = (self.values(*records, 40), self.epoch);
                    let first = self.model.end + gap;
                    bytes.extend(stored(first, epoch, &values));
                    let last = first + i64::try_from(*records).unwrap() - 1;
                    self.model.push(Batch { first, last, epoch, time: T0 + first, values });
                }
                let now = self.now();
                let appended = self.log().append_replicated(now, &bytes).unwrap();
                assert_eq!(appended.last.0, self.model.end - 1);
            }
            Op::NextEpoch => {
                self.epoch += 1;
                let epoch = LeaderEpoch(self.epoch);
                self.log().assign_epoch(epoch, Offset(end)).unwrap();
                assert_eq!(self.log().latest_epoch(), epoch);
            }
            Op::Truncate(index) => {
                let to = pick(index).max(0);
                let truncated = self.log().truncate_to(Offset(to)).unwrap();
                if to <= start && to < end {
                    self.model = Model { start: to, end: to, flushed: to, batches: Vec::new() };
                } else {
                    self.model.cut(to);
                    if self.model.end < start || self.model.batches.is_empty() {
                        // The start lies inside of what was cut, or only its name tells where the segment begins.
                        let end = truncated.end.0;
                        assert!((start..=to).contains(&end) || end == start, "{truncated:?} to {to}");
                        self.model.end = end;
                    }
                    self.model.flushed = self.model.flushed.min(self.model.end);
                }
                assert_eq!(truncated.end.0, self.model.end, "to {to}");
            }
            Op::AdvanceStart(index) => {
                let to = pick(index);
                let moved = self.log().advance_start(Offset(to));
                if to > end {
                    assert!(matches!(moved, Err(TruncateError::PastEnd { .. })));
                } else {
                    self.model.start = start.max(to);
                    assert_eq!(moved.unwrap().0, self.model.start);
                }
            }
            Op::Reset(to) => {
                self.log().reset_to(Offset(*to)).unwrap();
                self.model = Model { start: *to, end: *to, flushed: *to, batches: Vec::new() };
            }
            Op::BeginFlush { checkpoint } => {
                let job = if *checkpoint { self.log().begin_checkpoint() } else { self.log().begin_flush() };
                self.job = self.job.take().or(job);
            }
            Op::FinishFlush => {
                if let Some(job) = self.job.take() {
                    let done = job.run();
                    self.log().finish_flush(done).unwrap();
                }
            }
            Op::Housekeeping { later_ms, high_watermark } => {
                self.clock += later_ms;
                let (now, high_watermark) = (self.now(), Offset(pick(high_watermark).clamp(start, end)));
                keep_house(self.log(), now, high_watermark);
                let moved = self.log().start().0;
                assert!(start <= moved && moved <= high_watermark.0.max(start), "retention kept to the high watermark");
                self.model.start = moved;
            }
            Op::Close => {
                // A job that is run after the close finds the log gone, and must leave its files alone.
                let job = self.job.take();
                let log = self.log.take().unwrap();
                log.close().unwrap();
                drop(job.map(FlushJob::run));
                self.open();
                self.model.flushed = self.model.end;
            }
            Op::Kill => {
                self.job = None;
                self.log = None;
                self.fs = self.fs.kill();
                self.open();
            }
            Op::PowerCut { image } => {
                self.job = None;
                let log = self.log.take().unwrap();
                let flushed = log.flushed().0;
                let images = self.fs.images(8, self.number);
                drop(log);
                self.fs = image.get(&images).clone();
                self.open();
                let end = self.log().end().0;
                assert!(flushed <= end && end <= self.model.end.max(start), "{flushed} <= {end} <= {}", self.model.end);
                // What is left may all lie below the start; the log then goes on at the start, inside of a batch even.
                let whole = |batch: &Batch| end <= batch.first || batch.last < end;
                assert!(end == start || self.model.batches.iter().all(whole), "batches survive as a whole");
                self.model.batches.retain(|batch| batch.last < end);
                self.model.end = end;
                self.model.flushed = flushed.min(end);
            }
        }
    }

    /// Holds the log against the list.
    fn check(&mut self) {
        let log = self.log.as_ref().unwrap();
        let reader = log.reader();
        let model = &self.model;
        assert_eq!((log.start().0, log.end().0), (model.start, model.end));
        assert!(log.recovery_point() <= log.flushed() && log.flushed() <= log.end(), "{log:?}");
        assert_eq!(contents(&reader), model.records());
        let in_log: Vec<&Batch> = model.batches.iter().filter(|batch| batch.last >= model.start).collect();
        for batch in &in_log {
            let inside = Offset((batch.first + batch.last) / 2).max(log.start());
            let fetched = log.read(inside, ReadLimit::bytes(1)).unwrap();
            assert_eq!((fetched.first.0, fetched.next.0), (batch.first, batch.last + 1));
            assert_eq!(reader.epoch_of(inside).0, batch.epoch);
            let expected =
                in_log.iter().find(|other| other.time >= batch.time).map(|other| other.first.max(model.start));
            let found = reader.offset_for_timestamp(TimestampMs(batch.time), Offset::MAX).unwrap();
            assert_eq!(found.map(|found| found.offset.0), expected, "the first record at {} or later", batch.time);
        }
        let latest = in_log.iter().map(|batch| batch.time).max();
        let found = reader.max_timestamp(Offset::MAX).unwrap().map(|found| found.timestamp.0);
        assert_eq!(found, latest, "the largest timestamp");
        let bytes: u64 = log.segments().iter().map(|segment| segment.size_bytes).sum();
        assert_eq!(bytes, log.size_bytes());
        // Epochs: each offset's, and a clean lineage.
        assert!(log.epochs().is_sorted_by(|one, other| one.0 < other.0 && one.1 < other.1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_is_a_list_of_records(
        ops in prop::collection::vec(op(), 1..60),
        segment_bytes in 1300..4000u32,
        index_interval_bytes in prop_oneof![Just(0u32), 100..2000u32],
        retention_bytes in prop_oneof![Just(-1i64), 0..8000i64],
        open_files in 0..4usize,
    ) {
        let options = LogOptions {
            segment_bytes,
            index_interval_bytes,
            retention_bytes,
            retention_ms: -1,
            file_delete_delay_ms: 500,
            open_files: OpenFiles::bounded(open_files),
            ..LogOptions::default()
        };
        let mut run = Run::new(options);
        for op in &ops {
            run.step(op);
            run.check();
        }
    }
}
