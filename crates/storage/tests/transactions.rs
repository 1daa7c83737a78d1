//! Transactions of several producers, interleaved, beside a list of what was appended: the aborted ones, the last stable
//! offset and the producers' state are those that a plain reading of the list gives, through truncations, retention,
//! closes, kills, power cuts and damaged side files.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use support::transactions::Reading;
use support::*;

/// Producers 0 to 3 write in transactions, the others outside of any.
const PRODUCERS: i64 = 6;

#[derive(Clone, Debug)]
enum Op {
    Data {
        producer: i64,
        records: usize,
    },
    /// Ends the producer's transaction, or says so where there is none.
    Marker {
        producer: i64,
        is_abort: bool,
        raises_epoch: bool,
    },
    /// The same as a follower gets them, in one piece and with gaps.
    Replicate(Vec<(i64, Piece)>),
    Truncate(prop::sample::Index),
    AdvanceStart(prop::sample::Index),
    Reset(i64),
    Housekeeping(prop::sample::Index),
    Checkpoint,
    Close(Damage),
    Kill,
    PowerCut(prop::sample::Index),
}

#[derive(Clone, Debug)]
enum Piece {
    Data(usize),
    Marker { is_abort: bool, raises_epoch: bool },
}

/// What happens to the side files of a closed log.
#[derive(Clone, Debug)]
enum Damage {
    None,
    /// So many bytes are missing at the end of each transaction index.
    CutIndexes(usize),
    /// A byte of each transaction index is another.
    ChangeIndexes(usize),
    /// All producer snapshots are gone, and the transaction indexes too.
    DropAll,
    /// The newest snapshot is damaged.
    SpoilSnapshot,
}

fn piece() -> impl Strategy<Value = Piece> {
    prop_oneof![
        3 => (1..4usize).prop_map(Piece::Data),
        2 => any::<(bool, bool)>().prop_map(|(is_abort, raises_epoch)| Piece::Marker { is_abort, raises_epoch }),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    let damage = prop_oneof![
        3 => Just(Damage::None),
        1 => (1..34usize).prop_map(Damage::CutIndexes),
        1 => (0..34usize).prop_map(Damage::ChangeIndexes),
        1 => Just(Damage::DropAll),
        1 => Just(Damage::SpoilSnapshot),
    ];
    prop_oneof![
        12 => (0..PRODUCERS, 1..4usize).prop_map(|(producer, records)| Op::Data { producer, records }),
        8 => (0..4i64, any::<(bool, bool)>())
            .prop_map(|(producer, (is_abort, raises_epoch))| Op::Marker { producer, is_abort, raises_epoch }),
        4 => prop::collection::vec((0..4i64, piece()), 1..6).prop_map(Op::Replicate),
        2 => index().prop_map(Op::Truncate),
        1 => index().prop_map(Op::AdvanceStart),
        1 => (0..50i64).prop_map(Op::Reset),
        2 => index().prop_map(Op::Housekeeping),
        2 => Just(Op::Checkpoint),
        2 => damage.prop_map(Op::Close),
        1 => Just(Op::Kill),
        1 => index().prop_map(Op::PowerCut),
    ]
}

#[derive(Clone, Debug)]
struct Entry {
    producer: i64,
    epoch: i16,
    first: i64,
    last: i64,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Data { last_sequence: i32 },
    Marker { is_abort: bool, coordinator_epoch: i32 },
}

#[derive(Debug, Default)]
struct Model {
    start: i64,
    end: i64,
    entries: Vec<Entry>,
    high_watermark: i64,
    /// Markers below were there when the log was opened, which may not know any more when their transactions began.
    opened_at: i64,
}

impl Model {
    fn state(&self) -> Reading {
        let mut state = Reading::default();
        for Entry { producer, epoch, first, last, what } in &self.entries {
            let of = (*producer, *epoch);
            match what {
                What::Data { last_sequence } => state.data(of, (*first, *last), *last_sequence, *producer < 4),
                What::Marker { is_abort, coordinator_epoch } => {
                    state.marker(of, *last, *is_abort, *coordinator_epoch);
                }
            }
        }
        state
    }

    /// Cuts from `to` on, where the log ends now at `end`.
    fn cut(&mut self, end: i64) {
        self.entries.retain(|entry| entry.last < end);
        self.end = end;
        self.high_watermark = self.high_watermark.min(end);
    }

    fn empty_at(&mut self, start: i64) {
        *self = Self { start, end: start, high_watermark: start, opened_at: start, entries: Vec::new() };
    }
}

struct Run {
    fs: SimFs,
    log: Option<Log>,
    model: Model,
    options: LogOptions,
    coordinator_epoch: i32,
    seed: u64,
    at: usize,
}

impl Run {
    fn new(options: LogOptions) -> Self {
        let fs = disk(1);
        let (log, _) = open(&fs, &options);
        Self { fs, log: Some(log), model: Model::default(), options, coordinator_epoch: 0, seed: 0, at: 0 }
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("it is open between steps")
    }

    fn reopen(&mut self) -> RecoveryReport {
        let (log, report) =
            Log::open_with(Arc::new(self.fs.clone()), Path::new(DIR), self.options.clone(), OpenHints::default())
                .expect("it opens");
        let end = log.end().0;
        self.log = Some(log);
        self.model.cut(end);
        self.model.opened_at = end;
        report
    }

    /// The next batch or marker of a producer, for the list and as bytes of a batch at `first`.
    fn next(&mut self, producer: i64, piece: &Piece, first: i64) -> (Entry, Vec<u8>) {
        let state = self.model.state();
        let (epoch, sequence, ..) = state.producers.get(&producer).copied().unwrap_or((0, -1, -1, -1, None));
        match piece {
            Piece::Data(records) => {
                let mut builder = BatchBuilder::new(Codec::None).producer(producer, epoch, sequence + 1);
                if producer < 4 {
                    builder = builder.transactional();
                }
                for _ in 0..*records {
                    builder.push(Record::new(TimestampMs(T0 + first), &[b'x'; 20]));
                }
                let records = i32::try_from(*records).unwrap();
                let (last, last_sequence) = (first + i64::from(records) - 1, sequence + records);
                (Entry { producer, epoch, first, last, what: What::Data { last_sequence } }, builder.build())
            }
            Piece::Marker { is_abort, raises_epoch } => {
                self.coordinator_epoch += i32::from(*raises_epoch);
                let (epoch, coordinator_epoch) = (epoch + i16::from(*raises_epoch), self.coordinator_epoch);
                let is_abort = *is_abort;
                let marker =
                    TransactionMarker { producer_id: producer, producer_epoch: epoch, coordinator_epoch, is_abort };
                let what = What::Marker { is_abort, coordinator_epoch };
                (Entry { producer, epoch, first, last: first, what }, marker.to_batch(TimestampMs(T0 + first)))
            }
        }
    }

    fn push(&mut self, entry: Entry) {
        self.model.end = entry.last + 1;
        self.model.entries.push(entry);
    }

    fn step(&mut self, op: &Op) {
        let (start, end) = (self.model.start, self.model.end);
        let pick = |index: &prop::sample::Index| {
            start + i64::try_from(index.index(usize::try_from(end - start).unwrap() + 1)).unwrap()
        };
        match op {
            Op::Data { producer, records } => {
                let (entry, bytes) = self.next(*producer, &Piece::Data(*records), end);
                let appended = self.log().append(NOW, LeaderEpoch(0), &bytes).unwrap();
                assert_eq!((appended.first.0, appended.last.0, appended.duplicate), (entry.first, entry.last, false));
                let again = self.log().append(NOW, LeaderEpoch(0), &bytes).unwrap();
                assert_eq!((again.first, again.last, again.duplicate), (appended.first, appended.last, true));
                self.push(entry);
            }
            Op::Marker { producer, is_abort, raises_epoch } => {
                let piece = Piece::Marker { is_abort: *is_abort, raises_epoch: *raises_epoch };
                let (entry, bytes) = self.next(*producer, &piece, end);
                let marker = TransactionMarker::of(&batches(&bytes).next().unwrap().unwrap()).unwrap();
                let appended = self.log().end_transaction(NOW, LeaderEpoch(0), &marker).unwrap();
                assert_eq!(appended.first.0, end);
                self.push(entry);
            }
            Op::Replicate(pieces) => {
                let mut all = Vec::new();
                for (producer, piece) in pieces {
                    let first = self.model.end + producer % 2;
                    let (entry, mut bytes) = self.next(*producer, piece, first);
                    bytes[..8].copy_from_slice(&first.to_be_bytes());
                    bytes[12..16].copy_from_slice(&0i32.to_be_bytes());
                    all.extend(bytes);
                    self.push(entry);
                }
                self.log().append_replicated(NOW, &all).unwrap();
            }
            Op::Truncate(index) => {
                let to = pick(index);
                let truncated = self.log().truncate_to(Offset(to)).unwrap();
                let kept = self.model.entries.iter().rev().find(|entry| entry.last < to);
                if to <= start && to < end {
                    self.model.empty_at(to);
                } else if to < end && kept.is_none_or(|kept| kept.last + 1 < start) && start > 0 {
                    // The start lay inside of the batch that went.
                    self.model.empty_at(start);
                } else {
                    self.model.cut(truncated.end.0);
                }
            }
            Op::AdvanceStart(index) => {
                let to = pick(index);
                self.log().advance_start(Offset(to)).unwrap();
                self.model.start = to;
                self.model.high_watermark = self.model.high_watermark.max(to);
            }
            Op::Reset(to) => {
                self.log().reset_to(Offset(*to)).unwrap();
                self.model.empty_at(*to);
            }
            Op::Housekeeping(index) => {
                let high_watermark = pick(index).max(self.model.high_watermark);
                self.model.high_watermark = high_watermark;
                keep_house(self.log(), NOW, Offset(high_watermark));
                self.model.start = self.log().start().0;
            }
            Op::Checkpoint => {
                self.log().checkpoint().unwrap();
            }
            Op::Close(damage) => {
                self.log.take().unwrap().close().unwrap();
                let lost_snapshots = self.damage(damage);
                let report = self.reopen();
                assert!(report.clean, "{report:?}");
                assert_eq!(report.producers_rebuilt, lost_snapshots, "{report:?}");
            }
            Op::Kill => {
                self.log = None;
                self.fs = self.fs.kill();
                self.reopen();
                assert_eq!(self.model.end, end, "nothing is lost in a kill");
            }
            Op::PowerCut(index) => {
                self.seed += 1;
                let images = self.fs.images(8, self.seed);
                self.log = None;
                self.fs = index.get(&images).clone();
                let report = self.reopen();
                if report.created && self.log().producers().is_empty() {
                    // Nothing is left behind the log start, nor a snapshot there.
                    self.model.empty_at(start);
                }
            }
        }
    }

    /// Damages side files. Returns whether snapshots are gone that a log with batches has.
    fn damage(&self, damage: &Damage) -> bool {
        let of_kind = |suffix: &str| -> Vec<String> {
            names(&self.fs).into_iter().filter(|name| name.ends_with(suffix)).collect()
        };
        let first = names(&self.fs).into_iter().find(|name| name.ends_with(".log")).unwrap();
        match damage {
            Damage::None => {}
            Damage::CutIndexes(bytes) => {
                for name in of_kind(".txnindex") {
                    let whole = file_bytes(&self.fs, &name);
                    let kept = whole.len().saturating_sub(*bytes);
                    // An index that ends with a whole entry looks as if it had never had more.
                    if kept % AbortedTransaction::BYTES != 0 {
                        write_file(&self.fs, &name, &whole[..kept]);
                    }
                }
            }
            Damage::ChangeIndexes(at) => {
                // The high byte of a field, or the version: values that no entry has.
                for name in of_kind(".txnindex") {
                    let mut whole = file_bytes(&self.fs, &name);
                    let fields = [0, 2, 10, 18, 26];
                    whole.get_mut(fields[at % fields.len()]).into_iter().for_each(|byte| *byte ^= 0x40);
                    write_file(&self.fs, &name, &whole);
                }
            }
            // Where retention was at work, producers are known from the snapshots alone.
            Damage::DropAll | Damage::SpoilSnapshot if first != "00000000000000000000.log" => {}
            Damage::DropAll => {
                for name in [of_kind(".snapshot"), of_kind(".txnindex")].concat() {
                    self.fs.remove_file(&path(&name)).unwrap();
                }
                self.fs.sync_everything();
                return self.model.end > 0;
            }
            Damage::SpoilSnapshot => {
                let snapshots = of_kind(".snapshot");
                let Some(name) = snapshots.last() else { return false };
                let mut bytes = file_bytes(&self.fs, name);
                *bytes.last_mut().unwrap() ^= 1;
                write_file(&self.fs, name, &bytes);
                return snapshots.len() == 1 && self.model.end > 0;
            }
        }
        false
    }

    fn check(&mut self) {
        let (log, model) = (self.log.as_ref().unwrap(), &self.model);
        let (start, end, state) = (model.start, model.end, model.state());
        assert_eq!((log.start().0, log.end().0), (start, end));
        let known: BTreeMap<_, _> = log
            .producers()
            .iter()
            .map(|(id, state)| {
                let open = state.transaction_start().map(|first| first.0);
                let last = state.last_offset().0;
                (id, (state.epoch(), state.last_sequence(), last, state.coordinator_epoch(), open))
            })
            .collect();
        assert_eq!(known, state.producers, "after step {}", self.at);

        let reader = log.reader();
        let step = usize::try_from((end - start) / 6 + 1).unwrap();
        for from in (start..=end).step_by(step) {
            for upper in (from..=end).step_by(step).chain([end]) {
                let found = reader.aborted_transactions(Offset(from), Offset(upper)).unwrap();
                let reaches = |aborted: &&AbortedTransaction| {
                    aborted.last_offset.0 >= from && aborted.first_offset.0 < upper && from < upper
                };
                assert_eq!(found, state.aborted.iter().filter(reaches).copied().collect::<Vec<_>>(), "{from}..{upper}");
            }
        }

        for high_watermark in (model.high_watermark..=end).step_by(step).chain([end]) {
            let stable = |known_from| state.stable(start, high_watermark, known_from);
            let (told, from_reader) =
                (log.last_stable_offset(Offset(high_watermark)), reader.last_stable_offset(Offset(high_watermark)));
            assert_eq!(told, from_reader);
            // Of what ended before the log was opened it may know less, or nothing.
            let expected = stable(0)..=stable(model.opened_at);
            assert!(expected.contains(&told.0), "{told} is not in {expected:?}, high watermark {high_watermark}");
        }
    }
}

/// Equal in each run, unless more are asked for.
fn cases() -> u32 {
    std::env::var("HIGHWATER_TRANSACTIONS_CASES").map_or(200, |text| text.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), rng_seed: RngSeed::Fixed(4), max_shrink_iters: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn transactions_are_what_a_plain_reading_of_the_log_gives(
        ops in prop::collection::vec(op(), 1..60),
        segment_bytes in 400..1500u32,
        retention_bytes in prop_oneof![Just(-1i64), 0..4000i64],
    ) {
        let options =
            LogOptions { segment_bytes, index_interval_bytes: 200, retention_bytes, retention_ms: -1, ..small() };
        let mut run = Run::new(options);
        for (at, op) in ops.iter().enumerate() {
            run.at = at;
            run.step(op);
            run.check();
        }
    }
}
