//! The machines of both kinds behind one face, as the broker has them, and the batches that they load from and append.

use highwater_groups::transactions::{
    TransactionConfig, TransactionCoordinator, TransactionEffect, TransactionInput, TransactionRefused,
};
use highwater_groups::{
    AppendId, Appended, Coordinator, Effect, GroupConfig, Input, LoadedBatch, Now, Producer, Record, Refused, Ticket,
};
use highwater_storage::{
    BatchBuilder, BatchView, Codec, LogReader, Offset, ReadLimit, TimestampMs, TransactionMarker, batches,
};

use super::client::{Asking, Told};
use super::{OFFSETS, member};

#[derive(Clone, Debug)]
pub(super) enum Machine {
    Groups(Coordinator),
    Transactions(TransactionCoordinator),
}

/// What happens to a machine.
#[derive(Clone, Debug)]
pub(super) enum Happens {
    Load(LoadedBatch),
    Loaded,
    Asked(Ticket, Asking),
    Appended(AppendId, Appended),
    Marker { producer_id: i64, commits: bool },
    News(TransactionInput),
    Tick,
    Resigned,
}

/// What it wants done.
#[derive(Debug)]
pub(super) enum Deed {
    Answer(Ticket, Told),
    Append { id: AppendId, transaction: Option<Producer>, records: Vec<Record> },
    NeedProducerId(Ticket),
    Mark { id: String, producer: Producer, commits: bool, partitions: Vec<(String, i32)> },
}

impl Machine {
    /// One that is loading.
    pub(super) fn new(which: usize) -> Self {
        if which == OFFSETS {
            let mut config = GroupConfig::default();
            config.session_timeout_min_ms = 1;
            config.initial_rebalance_delay_ms = 20;
            config.new_member_timeout_ms = 1_000;
            Self::Groups(Coordinator::new(config))
        } else {
            let mut config = TransactionConfig::default();
            config.abort_check_interval_ms = 50;
            config.retry_ms = 20;
            Self::Transactions(TransactionCoordinator::new(config))
        }
    }

    pub(super) fn handle(&mut self, now: TimestampMs, happens: Happens) -> Vec<Deed> {
        let uptime_ms = u64::try_from(now.0).unwrap_or(0);
        let now = Now { uptime_ms, timestamp_ms: now.0 };
        match self {
            Self::Groups(machine) => {
                let input = match happens {
                    Happens::Load(batch) => Input::Load(batch),
                    Happens::Loaded => Input::Loaded,
                    Happens::Asked(ticket, Asking::Group(request)) => Input::Request(ticket, request),
                    Happens::Appended(id, how) => Input::Appended(id, how),
                    Happens::Marker { producer_id, commits } => Input::Marker { producer_id, commits },
                    Happens::Tick => Input::Tick,
                    Happens::Resigned => Input::Resigned,
                    other => panic!("not for groups: {other:?}"),
                };
                machine.handle(now, input).into_iter().filter_map(of_group).collect()
            }
            Self::Transactions(machine) => {
                let input = match happens {
                    Happens::Load(LoadedBatch::Records { records, .. }) => {
                        let load = |record| machine.handle(now, TransactionInput::Load(record));
                        return records.into_iter().flat_map(load).map(of_transaction).collect();
                    }
                    Happens::Loaded => TransactionInput::Loaded,
                    Happens::Asked(ticket, Asking::Transaction(request)) => TransactionInput::Request(ticket, request),
                    Happens::Appended(id, how) => TransactionInput::Appended(id, how),
                    Happens::News(news) => news,
                    Happens::Tick => TransactionInput::Tick,
                    Happens::Resigned => TransactionInput::Resigned,
                    other => panic!("not for transactions: {other:?}"),
                };
                machine.handle(now, input).into_iter().map(of_transaction).collect()
            }
        }
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        match self {
            Self::Groups(machine) => machine.next_deadline_ms(),
            Self::Transactions(machine) => machine.next_deadline_ms(),
        }
    }
}

fn of_group(effect: Effect) -> Option<Deed> {
    Some(match effect {
        Effect::Answer(ticket, answer) => Deed::Answer(ticket, Told::Group(answer)),
        Effect::Append { id, transaction, records } => Deed::Append { id, transaction, records },
        // No topic is deleted here.
        Effect::LookUpTopics(_) => return None,
        other => panic!("the log has what a coordinator does not know: {other:?}"),
    })
}

fn of_transaction(effect: TransactionEffect) -> Deed {
    match effect {
        TransactionEffect::Answer(ticket, answer) => Deed::Answer(ticket, Told::Transaction(answer)),
        TransactionEffect::Append { id, record, .. } => Deed::Append { id, transaction: None, records: vec![record] },
        TransactionEffect::NeedProducerId(ticket) => Deed::NeedProducerId(ticket),
        TransactionEffect::Mark { id, producer, commits, partitions } => {
            Deed::Mark { id, producer, commits, partitions }
        }
        other => panic!("the log has what a coordinator does not know: {other:?}"),
    }
}

/// Why a request finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Away {
    NotHere,
    Loading,
}

/// The answer to a request that nobody is here for.
pub(super) fn away(asking: &Asking, why: Away) -> Told {
    match asking {
        Asking::Group(request) => Told::Group(request.refused(match why {
            Away::NotHere => Refused::NotCoordinator,
            Away::Loading => Refused::CoordinatorLoadInProgress,
        })),
        Asking::Transaction(request) => Told::Transaction(request.refused(match why {
            Away::NotHere => TransactionRefused::NotCoordinator,
            Away::Loading => TransactionRefused::CoordinatorLoadInProgress,
        })),
    }
}

/// Reads a piece of the log from `from` on, below `end`: what a coordinator loads, and where the next one begins.
pub(super) fn load(log: &LogReader, from: Offset, end: Offset, max_bytes: usize) -> Option<(Vec<LoadedBatch>, Offset)> {
    // Compaction may have moved the start.
    let from = from.max(log.start());
    if from >= end {
        return None;
    }
    let read = log.read(from, ReadLimit::bytes(max_bytes).below(end)).ok().filter(|read| !read.bytes.is_empty())?;
    let loaded = batches(&read.bytes).map(|batch| loaded(&batch.expect("whole batches"), from)).collect();
    Some((loaded, read.next))
}

fn loaded(batch: &BatchView<'_>, from: Offset) -> LoadedBatch {
    let header = batch.header();
    if header.is_control() {
        let marker = TransactionMarker::of(batch);
        // One that compaction emptied.
        let Some(marker) = marker else { return LoadedBatch::Records { transaction: None, records: Vec::new() } };
        return LoadedBatch::Marker { producer_id: marker.producer_id, commits: !marker.is_abort };
    }
    let transaction = header.is_transactional().then(|| header.producer_id());
    let mut records = Vec::new();
    for record in batch.records().expect("uncompressed") {
        let record = record.expect("a whole record");
        if header.base_offset() + i64::from(record.offset_delta) >= from {
            records.push(Record {
                key: member::bytes(record.key.unwrap_or_default()),
                value: record.value.map(member::bytes),
            });
        }
    }
    LoadedBatch::Records { transaction, records }
}

/// One batch of these records, of a producer's transaction if one is given.
pub(super) fn batch(records: &[Record], transaction: Option<Producer>, now: TimestampMs) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(Producer { id, epoch }) = transaction {
        builder = builder.producer(id, epoch, -1).transactional();
    }
    for record in records {
        builder.push(highwater_storage::Record {
            timestamp: now,
            key: Some(&record.key),
            value: record.value.as_deref(),
            headers: &[],
        });
    }
    builder.build()
}
