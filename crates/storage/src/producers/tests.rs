use proptest::prelude::*;

use super::*;
use crate::LeaderEpoch;
use crate::builder::{BatchBuilder, Record};
use crate::compression::Codec;

/// A log end and the producers in it, as an engine joins them.
struct Log {
    table: ProducerTable,
    end: i64,
}

impl Log {
    fn new() -> Self {
        Self { table: ProducerTable::default(), end: 0 }
    }

    /// Sends `records` records and appends them if they are new.
    fn send(&mut self, id: i64, epoch: i16, sequence: i32, records: i32) -> Result<Sequence, SequenceError> {
        let batch = batch(id, epoch, sequence, records);
        let result = self.table.check(&batch)?;
        if result == Sequence::New {
            self.append(&batch, records);
        }
        Ok(result)
    }

    fn append(&mut self, batch: &ProducerBatch, records: i32) {
        let first = Offset(self.end);
        self.end += i64::from(records);
        self.table.record(batch, first..=Offset(self.end - 1));
    }
}

fn batch(producer_id: i64, epoch: i16, first_sequence: i32, records: i32) -> ProducerBatch {
    ProducerBatch {
        producer_id,
        epoch,
        first_sequence,
        last_sequence: sequence_after(first_sequence, records - 1),
        timestamp: TimestampMs(1000 + i64::from(first_sequence)),
        is_transactional: false,
        has_records: true,
    }
}

fn duplicate(first: i64, last: i64, timestamp: i64) -> Result<Sequence, SequenceError> {
    let (first, last, timestamp) = (Offset(first), Offset(last), TimestampMs(timestamp));
    Ok(Sequence::Duplicate { first, last, timestamp })
}

fn is_out_of_order(result: Result<Sequence, SequenceError>) -> bool {
    matches!(result, Err(SequenceError::OutOfOrder { .. }))
}

/// A marker that ends a transaction.
fn marker(id: i64, epoch: i16, is_commit: bool, coordinator_epoch: i32, at: i64) -> Vec<u8> {
    let key = [0, 0, 0, u8::from(is_commit)];
    let value = [&[0, 0], &coordinator_epoch.to_be_bytes()[..]].concat();
    let mut builder = BatchBuilder::new(Codec::None).producer(id, epoch, -1).transactional().control();
    builder = builder.base_offset(Offset(at)).leader_epoch(LeaderEpoch(0));
    builder.push(Record::keyed(TimestampMs(5000), &key, &value)).build()
}

fn replicate(table: &mut ProducerTable, bytes: &[u8]) -> Option<CompletedTransaction> {
    table.replicated(&BatchView::parse(bytes).expect("a batch").0)
}

#[test]
fn the_last_five_batches_are_known_again() {
    // C28: eight batches of two records, then each of them again.
    let mut log = Log::new();
    for sequence in (0..16).step_by(2) {
        assert_eq!(log.send(7, 0, sequence, 2), Ok(Sequence::New));
    }
    for sequence in (6..16).step_by(2) {
        let first = i64::from(sequence);
        assert_eq!(log.send(7, 0, sequence, 2), duplicate(first, first + 1, 1000 + first));
    }
    for sequence in [0, 2, 4] {
        assert!(is_out_of_order(log.send(7, 0, sequence, 2)), "{sequence}");
    }
    assert!(is_out_of_order(log.send(7, 0, 18, 2)), "a gap");
    assert!(is_out_of_order(log.send(7, 0, 14, 3)), "overlaps the last batch");
    assert!(is_out_of_order(log.send(7, 0, 14, 1)), "a part of the last batch");
    assert_eq!(log.send(7, 0, 16, 1), Ok(Sequence::New));
    assert_eq!(log.end, 17, "nothing is stored twice");
}

#[test]
fn a_lost_batch_in_flight_holds_up_those_behind_it() {
    let mut log = Log::new();
    assert_eq!(log.send(1, 0, 0, 1), Ok(Sequence::New));
    for sequence in 2..5 {
        assert!(is_out_of_order(log.send(1, 0, sequence, 1)));
    }
    for sequence in 1..5 {
        assert_eq!(log.send(1, 0, sequence, 1), Ok(Sequence::New));
    }
}

#[test]
fn sequences_wrap() {
    let mut log = Log::new();
    assert_eq!(log.send(1, 0, i32::MAX - 1, 2), Ok(Sequence::New));
    assert!(is_out_of_order(log.send(1, 0, 1, 1)));
    assert_eq!(log.send(1, 0, 0, 1), Ok(Sequence::New));
    // A batch in which the numbers wrap, and the same again.
    assert_eq!(log.send(2, 0, i32::MAX, 3), Ok(Sequence::New));
    assert_eq!(log.send(2, 0, i32::MAX, 3), duplicate(3, 5, 1000 + i64::from(i32::MAX)));
    assert_eq!(log.send(2, 0, 2, 1), Ok(Sequence::New));
}

#[test]
fn epochs_only_rise_and_begin_at_zero() {
    let mut log = Log::new();
    assert_eq!(log.send(1, 3, 0, 5), Ok(Sequence::New));
    assert!(is_out_of_order(log.send(1, 4, 1, 1)));
    assert!(is_out_of_order(log.send(1, 4, 5, 1)), "the old epoch's next number");
    assert_eq!(log.send(1, 4, 0, 1), Ok(Sequence::New));
    let expected = Err(SequenceError::InvalidEpoch { producer_id: 1, epoch: 3, current: 4 });
    assert_eq!(log.send(1, 3, 5, 1), expected);
    assert_eq!(log.send(1, 3, 0, 5), expected, "also what was stored in the old epoch");
}

#[test]
fn an_unknown_producer_may_begin_anywhere() {
    let mut log = Log::new();
    assert_eq!(log.send(1, 5, 100, 1), Ok(Sequence::New));
    assert_eq!(log.send(1, 5, 101, 1), Ok(Sequence::New));
    // C30, R24: so may one that was forgotten.
    assert_eq!(log.table.expire(TimestampMs(1101 + 60_000), 60_000), 1);
    assert_eq!(log.send(1, 5, 500, 1), Ok(Sequence::New));
}

#[test]
fn idle_producers_expire_but_not_in_a_transaction() {
    let mut log = Log::new();
    log.send(1, 0, 0, 1).expect("new");
    log.append(&ProducerBatch { is_transactional: true, ..batch(2, 0, 0, 1) }, 1);
    assert_eq!(log.table.expire(TimestampMs(1999), 1000), 0);
    assert_eq!(log.table.expire(TimestampMs(2000), 1000), 1);
    assert!(log.table.get(1).is_none() && log.table.get(2).is_some());
    assert_eq!(log.table.expire(TimestampMs(i64::MIN), 1000), 0);
    assert_eq!(log.table.expire(TimestampMs(i64::MAX), 0), 0);
}

#[test]
fn what_is_replicated_is_not_judged() {
    let mut table = ProducerTable::default();
    for (epoch, sequence) in [(5, 100), (5, 300), (4, 7)] {
        let mut builder = BatchBuilder::new(Codec::None).producer(1, epoch, sequence);
        assert_eq!(replicate(&mut table, &builder.push(Record::new(TimestampMs(1), b"")).build()), None);
    }
    let state = table.get(1).expect("known");
    assert_eq!((state.epoch(), state.last_sequence()), (4, 7));
    let anonymous = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs(1), b"")).build();
    assert_eq!(replicate(&mut table, &anonymous), None);
    assert_eq!(table.len(), 1);
}

#[test]
fn transactions_are_followed() {
    let mut log = Log::new();
    let transactional = |sequence| ProducerBatch { is_transactional: true, ..batch(1, 0, sequence, 2) };
    log.append(&transactional(0), 2);
    log.append(&transactional(2), 2);
    log.append(&ProducerBatch { is_transactional: true, ..batch(9, 0, 0, 1) }, 1);
    assert_eq!(log.table.first_open_transaction(), Some(Offset(0)));
    let refused = log.table.check(&batch(1, 0, 4, 1));
    assert_eq!(refused, Err(SequenceError::InvalidTransactionState { producer_id: 1 }));

    // The marker of an abort raises the epoch: the next number is 0.
    let completed = replicate(&mut log.table, &marker(1, 1, false, 17, 5)).expect("ended");
    let (first, last, last_stable_offset) = (Offset(0), Offset(5), Offset(4));
    assert_eq!(completed, CompletedTransaction { producer_id: 1, first, last, is_aborted: true, last_stable_offset });
    let state = log.table.get(1).expect("known");
    assert_eq!((state.epoch(), state.last_sequence(), state.coordinator_epoch()), (1, -1, 17));
    assert!(is_out_of_order(log.table.check(&batch(1, 1, 4, 1))));
    assert_eq!(log.table.check(&batch(1, 1, 0, 1)), Ok(Sequence::New));
    assert_eq!(log.table.first_open_transaction(), Some(Offset(4)));

    // A commit in the same epoch: the numbers go on.
    let completed = replicate(&mut log.table, &marker(9, 0, true, 17, 6)).expect("ended");
    assert!(!completed.is_aborted);
    assert_eq!(log.table.check(&batch(9, 0, 1, 1)), Ok(Sequence::New));
    assert_eq!(replicate(&mut log.table, &marker(9, 0, true, 17, 7)), None, "no transaction is open");
    assert_eq!(log.table.first_open_transaction(), None);
}

#[test]
fn strange_control_records_are_passed_over() {
    let mut table = ProducerTable::default();
    for (key, value) in [(&[0, 0, 0, 2][..], &[0; 6][..]), (&[0, 0, 0], &[0; 6]), (&[0, 0, 0, 1], &[0; 5]), (&[], &[])]
    {
        let mut builder = BatchBuilder::new(Codec::None).producer(1, 0, -1).transactional().control();
        builder.push(Record::keyed(TimestampMs(1), key, value));
        assert_eq!(replicate(&mut table, &builder.build()), None);
    }
    assert_eq!(replicate(&mut table, &BatchBuilder::new(Codec::None).producer(1, 0, -1).control().build()), None);
    assert!(table.is_empty());
}

#[test]
fn the_table_is_bounded_and_forgets_the_oldest() {
    let mut log = Log { table: ProducerTable::new(80), end: 0 };
    log.append(&ProducerBatch { is_transactional: true, ..batch(-1, 0, 0, 1) }, 1);
    for id in 0..1000 {
        log.send(id, 0, 0, 1).expect("new");
        assert!(log.table.len() <= 80);
        let recent = id.saturating_sub(60)..=id;
        assert!(recent.clone().filter(|id| *id >= 0).all(|id| log.table.get(id).is_some()), "{recent:?}");
    }
    assert!(log.table.get(-1).is_some(), "an open transaction is not forgotten");
    // A marker counts as hearing of the producer.
    let mut log = Log { table: ProducerTable::new(8), end: 0 };
    for id in 0..8 {
        log.send(id, 0, 0, 1).expect("new");
    }
    replicate(&mut log.table, &marker(0, 1, true, 0, 8));
    log.send(8, 0, 0, 1).expect("new");
    let known: Vec<_> = log.table.iter().map(|(id, _)| id).collect();
    assert_eq!(known, [0, 3, 4, 5, 6, 7, 8], "one over the limit, and an eighth");
    for id in 0..10 {
        let mut small = Log { table: ProducerTable::new(1), end: 0 };
        small.send(id, 0, 0, 1).expect("new");
        small.send(id + 1, 0, 0, 1).expect("new");
        assert_eq!((small.table.len(), small.table.get(id + 1).is_some()), (1, true));
    }
}

fn table() -> ProducerTable {
    let mut log = Log::new();
    for sequence in 0..7 {
        log.send(3, 1, sequence, 1).expect("new");
    }
    log.send(900, 0, i32::MAX, 3).expect("new");
    log.append(&ProducerBatch { is_transactional: true, ..batch(5, 2, 0, 4) }, 4);
    let end = log.end;
    replicate(&mut log.table, &marker(3, 2, false, 4, end));
    log.table
}

#[test]
fn a_snapshot_keeps_the_last_batch_of_each_producer() {
    let table = table();
    let decoded = ProducerTable::decode_snapshot(&table.encode_snapshot(), 10).expect("a snapshot");
    for (id, state) in table.iter() {
        let known = decoded.get(id).expect("known");
        assert_eq!(
            (known.epoch(), known.last_sequence(), known.last_offset()),
            (state.epoch(), state.last_sequence(), state.last_offset())
        );
        assert_eq!(
            (known.last_timestamp(), known.coordinator_epoch()),
            (state.last_timestamp(), state.coordinator_epoch())
        );
        assert_eq!(known.transaction_start(), state.transaction_start());
    }
    assert_eq!(decoded.check(&batch(900, 0, i32::MAX, 3)), table.check(&batch(900, 0, i32::MAX, 3)));
    assert_eq!(decoded.encode_snapshot(), table.encode_snapshot());
    assert_eq!(
        ProducerTable::decode_snapshot(&ProducerTable::default().encode_snapshot(), 10),
        Ok(ProducerTable::new(10))
    );
    assert_eq!(ProducerTable::decode_snapshot(&table.encode_snapshot(), 2).expect("a snapshot").len(), 2);
}

#[test]
fn a_damaged_snapshot_is_none() {
    let good = table().encode_snapshot();
    for cut in 0..good.len() {
        assert!(ProducerTable::decode_snapshot(&good[..cut], 10).is_err(), "cut at {cut}");
    }
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(ProducerTable::decode_snapshot(&bad, 10).is_err(), "bit {bit}");
    }
    let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let crc = crc32c::crc32c(&bytes[6..]);
        bytes[2..6].copy_from_slice(&crc.to_be_bytes());
        ProducerTable::decode_snapshot(&bytes, 10).expect_err("bad")
    };
    let bytes = good.len();
    for count in [i32::MAX, i32::MIN, -1, 0, 2, 4] {
        let error = resealed(&|bytes| bytes[6..10].copy_from_slice(&count.to_be_bytes()));
        assert_eq!(error, SnapshotError::Length { bytes, count });
    }
    assert_eq!(resealed(&|bytes| bytes.push(0)), SnapshotError::Length { bytes: bytes + 1, count: 3 });
    assert_eq!(resealed(&|bytes| bytes[10] = 0x80), SnapshotError::Entry(i64::MIN + 3));
    assert_eq!(resealed(&|bytes| bytes.copy_within(10..18, 56)), SnapshotError::Entry(3));
    assert_eq!(ProducerTable::decode_snapshot(&[0; 4096], 10), Err(SnapshotError::Version(0)));
}

/// The rule in its plainest form: a producer's numbers are consecutive, and each batch is stored once.
#[derive(Default)]
struct Model {
    stored: Vec<(i32, i32)>,
}

proptest! {
    #[test]
    fn one_producer_stores_each_number_once_and_in_order(
        sends in prop::collection::vec((0..12i32, 1..4i32), 1..80),
        start in prop::sample::select(vec![0, 5, i32::MAX - 4]),
    ) {
        let mut log = Log::new();
        let mut model = Model::default();
        let mut next = start;
        for (back, records) in sends {
            // Mostly the next number or a little before it.
            let sequence = sequence_after(next, -(back / 2));
            let stored_at = model.stored.iter().rev().take(5).position(|&stored| stored == (sequence, records));
            match log.send(1, 0, sequence, records) {
                Ok(Sequence::New) => {
                    prop_assert!(model.stored.is_empty() || sequence == next);
                    prop_assert!(stored_at.is_none());
                    model.stored.push((sequence, records));
                    next = sequence_after(sequence, records);
                }
                Ok(Sequence::Duplicate { first, last, .. }) => {
                    let back = stored_at.expect("stored before");
                    let before: i64 = model.stored.iter().rev().skip(back + 1).map(|stored| i64::from(stored.1)).sum();
                    prop_assert_eq!((first.0, last.0), (before, before + i64::from(records) - 1));
                }
                Err(error) => {
                    prop_assert!(matches!(error, SequenceError::OutOfOrder { .. }), "{error}");
                    prop_assert!(sequence != next && stored_at.is_none());
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), seal in any::<bool>()) {
        let mut bytes = bytes;
        if seal && bytes.len() >= 10 {
            bytes[..2].copy_from_slice(&[0, 1]);
            let count = i32::try_from((bytes.len() - 10) / 46).expect("small");
            bytes.truncate(10 + 46 * usize::try_from(count).expect("small"));
            bytes[6..10].copy_from_slice(&count.to_be_bytes());
            let crc = crc32c::crc32c(&bytes[6..]);
            bytes[2..6].copy_from_slice(&crc.to_be_bytes());
        }
        if let Ok(table) = ProducerTable::decode_snapshot(&bytes, 100) {
            for (id, _) in table.iter() {
                let _ = (table.check(&batch(id, 0, 0, 1)), table.check(&batch(id, i16::MAX, i32::MAX, 9)));
            }
            prop_assert!(ProducerTable::decode_snapshot(&table.encode_snapshot(), 100).is_ok());
        }
    }
}
