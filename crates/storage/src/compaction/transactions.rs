//! Which records of transactions compaction drops, and when their markers may follow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::Offset;
use crate::batch::{BatchHeader, BatchView};
use crate::producers::{CompletedTransaction, ProducerTable};

/// An aborted transaction, as the index of transactions tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub(crate) producer_id: i64,
    /// Offset of its first record.
    pub(crate) first: Offset,
    /// Offset of its marker.
    pub(crate) last: Offset,
    /// The last stable offset when the marker was written.
    pub(crate) last_stable: Offset,
}

/// Finds the aborted transactions in batches that go by in the order of the log.
#[derive(Debug, Default)]
pub(crate) struct AbortedFinder {
    producers: ProducerTable,
    found: Vec<Aborted>,
}

impl AbortedFinder {
    pub(crate) fn pass(&mut self, batch: &BatchView<'_>) {
        let Some(completed) = self.producers.replicated(batch).filter(|completed| completed.is_aborted) else { return };
        let CompletedTransaction { producer_id, first, last, .. } = completed;
        let last_stable = self.producers.first_open_transaction().unwrap_or(last.next());
        self.found.push(Aborted { producer_id, first, last, last_stable });
    }

    pub(crate) fn found(self) -> Vec<Aborted> {
        self.found
    }
}

impl Aborted {
    /// The entries of Kafka's `.txnindex` file: version i16 = 0, producer id i64, first offset i64, last offset i64, last
    /// stable offset i64.
    pub(crate) fn encode_all(all: &[Self]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(all.len() * 34);
        for Self { producer_id, first, last, last_stable } in all {
            bytes.extend_from_slice(&0i16.to_be_bytes());
            for field in [*producer_id, first.0, last.0, last_stable.0] {
                bytes.extend_from_slice(&field.to_be_bytes());
            }
        }
        bytes
    }
}

/// What a batch is, as far as transactions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTransaction {
    /// Data that stays, if its keys let it.
    Data,
    /// Data of an aborted transaction.
    AbortedData,
    /// A marker of a transaction that has data left; of an aborted one, with what the index says.
    NeededMarker(Option<Aborted>),
    /// A marker of a transaction of which nothing is left, or no marker at all; with what the index says.
    IdleMarker(Option<Aborted>),
}

/// Follows the transactions while batches go by in the order of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transactions {
    /// Aborted ones that have not begun yet, by their first offset.
    ahead: VecDeque<Aborted>,
    /// Those under way, and whether any of their batches were seen.
    aborted: BTreeMap<i64, (Aborted, bool)>,
    /// Producers of which batches were seen that are not of an aborted transaction, since their last marker.
    committed: BTreeSet<i64>,
}

impl Transactions {
    /// Begins with the aborted transactions that have a record or their marker in what will go by.
    pub(crate) fn new(mut aborted: Vec<Aborted>) -> Self {
        aborted.sort_unstable_by_key(|aborted| (aborted.first, aborted.last));
        Self { ahead: aborted.into(), ..Self::default() }
    }

    /// Takes the next batch.
    pub(crate) fn pass(&mut self, batch: &BatchView<'_>) -> InTransaction {
        let header = batch.header();
        while self.ahead.front().is_some_and(|aborted| aborted.first <= header.last_offset())
            && let Some(begun) = self.ahead.pop_front()
        {
            self.aborted.entry(begun.producer_id).or_insert((begun, false));
        }
        if header.is_control() { self.pass_control(batch) } else { self.pass_data(header) }
    }

    fn pass_data(&mut self, header: &BatchHeader) -> InTransaction {
        if !header.is_transactional() {
            return InTransaction::Data;
        }
        match self.aborted.get_mut(&header.producer_id()) {
            Some((_, seen)) => {
                *seen = true;
                InTransaction::AbortedData
            }
            None => {
                self.committed.insert(header.producer_id());
                InTransaction::Data
            }
        }
    }

    fn pass_control(&mut self, batch: &BatchView<'_>) -> InTransaction {
        // One without a record was compacted before: it stands for its producer's state, not for a marker.
        if batch.record_count() == 0 {
            return InTransaction::IdleMarker(None);
        }
        match Marker::of(batch) {
            Some(Marker::Abort) => match self.aborted.remove(&batch.producer_id()) {
                Some((aborted, true)) => InTransaction::NeededMarker(Some(aborted)),
                idle => InTransaction::IdleMarker(idle.map(|(aborted, _)| aborted)),
            },
            Some(Marker::Commit) => {
                if self.committed.remove(&batch.producer_id()) {
                    InTransaction::NeededMarker(None)
                } else {
                    InTransaction::IdleMarker(None)
                }
            }
            // Of another kind, which a newer broker may write: kept.
            None => InTransaction::NeededMarker(None),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    Abort,
    Commit,
}

impl Marker {
    /// From the key of a control record: version i16, type i16.
    fn of(batch: &BatchView<'_>) -> Option<Self> {
        let record = batch.records()?.next()?.ok()?;
        let (_version, kind) = record.key?.split_first_chunk::<2>()?;
        match i16::from_be_bytes(*kind.first_chunk()?) {
            0 => Some(Self::Abort),
            1 => Some(Self::Commit),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{BatchBuilder, Record};
    use crate::{Codec, TimestampMs};

    fn data(producer: i64, base: i64) -> Vec<u8> {
        let mut builder =
            BatchBuilder::new(Codec::None).producer(producer, 0, 0).transactional().base_offset(Offset(base));
        builder.push(Record::keyed(TimestampMs(1), b"k", b"v")).build()
    }

    fn marker(producer: i64, base: i64, kind: i16) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Codec::None)
            .producer(producer, 0, -1)
            .transactional()
            .control()
            .base_offset(Offset(base));
        let key = [0i16.to_be_bytes(), kind.to_be_bytes()].concat();
        builder.push(Record::keyed(TimestampMs(1), &key, &[0; 6])).build()
    }

    fn pass(transactions: &mut Transactions, bytes: &[u8]) -> InTransaction {
        transactions.pass(&BatchView::parse(bytes).unwrap().0)
    }

    #[test]
    fn markers_are_needed_as_long_as_batches_of_their_transaction_go_by() {
        let aborted = |producer_id, first, last| Aborted {
            producer_id,
            first: Offset(first),
            last: Offset(last),
            last_stable: Offset(last + 1),
        };
        let (first, second) = (aborted(1, 0, 3), aborted(1, 5, 8));
        let mut transactions = Transactions::new(vec![second, first]);
        let mut next = |bytes: Vec<u8>| pass(&mut transactions, &bytes);
        assert_eq!(next(data(1, 0)), InTransaction::AbortedData);
        assert_eq!(next(data(2, 1)), InTransaction::Data);
        assert_eq!(next(marker(1, 3, 0)), InTransaction::NeededMarker(Some(first)));
        assert_eq!(next(data(1, 4)), InTransaction::Data, "of a transaction that was committed");
        assert_eq!(next(marker(1, 5, 1)), InTransaction::NeededMarker(None));
        let idle = InTransaction::IdleMarker(Some(second));
        assert_eq!(next(marker(1, 8, 0)), idle, "its data were compacted away");
        assert_eq!(next(marker(2, 9, 1)), InTransaction::NeededMarker(None));
        assert_eq!(next(marker(2, 10, 1)), InTransaction::IdleMarker(None));
        assert_eq!(next(marker(2, 11, 7)), InTransaction::NeededMarker(None), "a kind of marker that is not known");
    }
}
