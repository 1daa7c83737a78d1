//! The internal topics that a broker of Kafka 4.1 wrote, read record by record and written again byte by byte, and what
//! coordinators make of them.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use highwater_groups::records::{OffsetValue, OffsetsKey, TransactionStatus, TransactionValue, TransactionalKey};
use highwater_groups::transactions::*;
use highwater_groups::*;
use highwater_storage::{BatchView, Log, ReadLimit, TransactionMarker};

/// A partition of the root that Kafka left.
fn partition(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../storage/tests/data/transactional/log").join(name)
}

/// Everything in a partition, as a coordinator loads it.
fn load(directory: &Path) -> Vec<LoadedBatch> {
    let (reader, _) = Log::open_read_only(directory).unwrap();
    let (mut from, mut batches) = (reader.start(), Vec::new());
    while from < reader.end() {
        let read = reader.read(from, ReadLimit::bytes(1 << 20)).unwrap();
        let mut left = &read.bytes[..];
        while !left.is_empty() {
            let (batch, length) = BatchView::parse(left).unwrap();
            left = &left[length..];
            if let Some(marker) = TransactionMarker::of(&batch) {
                batches.push(LoadedBatch::Marker { producer_id: marker.producer_id, commits: !marker.is_abort });
                continue;
            }
            let transaction = batch.header().attributes().is_transactional().then(|| batch.header().producer_id());
            let (mut records, mut reader) = (Vec::new(), batch.read_records(1 << 20).unwrap());
            while let Some(record) = reader.next().unwrap() {
                let key = Bytes::copy_from_slice(record.key.unwrap());
                records.push(Record { key, value: record.value.map(Bytes::copy_from_slice) });
            }
            batches.push(LoadedBatch::Records { transaction, records });
        }
        from = read.next;
    }
    batches
}

fn records(batches: &[LoadedBatch]) -> Vec<Record> {
    let of = |batch: &LoadedBatch| match batch {
        LoadedBatch::Records { records, .. } => records.clone(),
        LoadedBatch::Marker { .. } => Vec::new(),
    };
    batches.iter().flat_map(of).collect()
}

#[test]
fn every_record_of_kafkas_is_read_and_written_again_byte_by_byte() {
    let (mut offsets, mut transactions) = (0, 0);
    for record in records(&load(&partition("__consumer_offsets-0"))) {
        let key = OffsetsKey::decode(&record.key).unwrap();
        assert_eq!(key.encode(), record.key);
        let OffsetsKey::Offset { .. } = key else { panic!("{key:?}") };
        let value = OffsetValue::decode(record.value.as_ref().unwrap()).unwrap();
        assert_eq!(value.encode(), record.value.unwrap(), "{value:?}");
        offsets += 1;
    }
    for record in records(&load(&partition("__transaction_state-0"))) {
        let key = TransactionalKey::decode(&record.key).unwrap();
        assert_eq!(key.encode(), record.key);
        let value = TransactionValue::decode(record.value.as_ref().unwrap()).unwrap();
        assert_eq!(value.encode(), record.value.unwrap(), "{value:?}");
        transactions += 1;
    }
    assert!(offsets >= 6 && transactions >= 208, "{offsets} offsets, {transactions} transactions");
}

#[test]
fn a_coordinator_of_groups_finds_what_kafka_had_committed() {
    let batches = load(&partition("__consumer_offsets-0"));
    // By hand: of each transaction the offset that it brought, if it committed.
    let (mut pending, mut committed) = (None, None);
    for batch in &batches {
        match batch {
            LoadedBatch::Records { transaction, records } => {
                let value = OffsetValue::decode(records.last().unwrap().value.as_ref().unwrap()).unwrap();
                assert!(transaction.is_some());
                pending = Some(value);
            }
            LoadedBatch::Marker { commits: true, .. } => committed = pending.take(),
            LoadedBatch::Marker { commits: false, .. } => pending = None,
        }
    }
    let mut coordinator = Coordinator::new(GroupConfig::default());
    let now = Now { uptime_ms: 0, timestamp_ms: 1_796_000_000_000 };
    for batch in batches {
        assert_eq!(coordinator.handle(now, Input::Load(batch)), []);
    }
    coordinator.handle(now, Input::Loaded);
    let fetch = FetchOffsets { group: "golden-group".into(), partitions: None, require_stable: true };
    let effects = coordinator.handle(now, Input::Request(Ticket(1), Request::FetchOffsets(fetch)));
    let [Effect::Answer(_, Answer::Offsets(Ok(found)))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(found.len(), 1);
    assert_eq!((&*found[0].topic, found[0].partition), ("txn", 0));
    assert_eq!(found[0].offset, Ok(committed));
}

#[test]
fn a_coordinator_of_transactions_finds_the_one_that_kafka_left_open() {
    let mut coordinator = TransactionCoordinator::new(TransactionConfig::default());
    let now = Now { uptime_ms: 0, timestamp_ms: 1_795_970_400_000 };
    for record in records(&load(&partition("__transaction_state-0"))) {
        assert_eq!(coordinator.handle(now, TransactionInput::Load(record)), []);
    }
    assert_eq!(coordinator.handle(now, TransactionInput::Loaded), [], "nothing was left half done");
    let effects = coordinator.handle(now, TransactionInput::Request(Ticket(1), TransactionRequest::List));
    let [TransactionEffect::Answer(_, TransactionAnswer::Listed(Ok(listed)))] = &effects[..] else { panic!() };
    let open: Vec<_> = listed.iter().filter(|one| one.status == TransactionStatus::Ongoing).collect();
    assert_eq!(open.len(), 1, "{listed:?}");
    assert_eq!(open[0].partitions, [("txn".to_owned(), 0)]);
    assert!(listed.len() >= 4, "{listed:?}");
}
