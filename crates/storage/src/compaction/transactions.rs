//! Which records of transactions compaction drops, and when their markers may follow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::batch::{BatchHeader, BatchView};
use crate::index::AbortedTransaction;
use crate::markers::TransactionMarker;

/// What a batch is, as far as transactions go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InTransaction {
    /// Data that stays, if its keys let it.
    Data,
    /// Data of an aborted transaction.
    AbortedData,
    /// A marker of a transaction that has data left; of an aborted one, with what the index says.
    NeededMarker(Option<AbortedTransaction>),
    /// A marker of a transaction of which nothing is left, or no marker at all; with what the index says.
    IdleMarker(Option<AbortedTransaction>),
}

/// Follows the transactions while batches go by in the order of the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transactions {
    /// All aborted ones by their first offset, shared by the copies of this.
    all: Arc<[AbortedTransaction]>,
    /// How many of them have begun.
    begun: usize,
    /// Those under way, and whether any of their batches were seen.
    aborted: BTreeMap<i64, (AbortedTransaction, bool)>,
    /// Producers of which batches were seen that are not of an aborted transaction, since their last marker.
    committed: BTreeSet<i64>,
}

impl Transactions {
    /// Begins with the aborted transactions that have a record or their marker in what will go by.
    pub(crate) fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_unstable_by_key(|aborted| (aborted.first_offset, aborted.last_offset));
        Self { all: aborted.into(), ..Self::default() }
    }

    /// Takes the next batch.
    pub(crate) fn pass(&mut self, batch: &BatchView<'_>) -> InTransaction {
        let header = batch.header();
        // By their offsets: a segment that is left out may have hidden a marker, or all of a transaction.
        self.aborted.retain(|_, (aborted, _)| aborted.last_offset >= header.base_offset());
        while let Some(begun) = self.all.get(self.begun).filter(|begun| begun.first_offset <= header.last_offset()) {
            self.begun += 1;
            if begun.last_offset >= header.base_offset() {
                self.aborted.insert(begun.producer_id, (*begun, false));
            }
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
        match TransactionMarker::of(batch).map(|marker| marker.is_abort) {
            Some(true) => match self.aborted.remove(&batch.producer_id()) {
                Some((aborted, true)) => InTransaction::NeededMarker(Some(aborted)),
                idle => InTransaction::IdleMarker(idle.map(|(aborted, _)| aborted)),
            },
            Some(false) => {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{BatchBuilder, Record};
    use crate::{Codec, Offset, TimestampMs};

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
        let aborted = |producer_id, first, last: i64| AbortedTransaction {
            producer_id,
            first_offset: Offset(first),
            last_offset: Offset(last),
            last_stable_offset: Offset(last + 1),
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

    #[test]
    fn a_transaction_whose_marker_was_passed_over_has_ended_all_the_same() {
        let aborted = AbortedTransaction {
            producer_id: 1,
            first_offset: Offset(0),
            last_offset: Offset(3),
            last_stable_offset: Offset(4),
        };
        let mut transactions = Transactions::new(vec![aborted]);
        assert_eq!(pass(&mut transactions, &data(1, 0)), InTransaction::AbortedData);
        assert_eq!(pass(&mut transactions, &data(1, 4)), InTransaction::Data);
        let mut transactions = Transactions::new(vec![aborted]);
        assert_eq!(pass(&mut transactions, &data(1, 4)), InTransaction::Data, "it was passed over as a whole");
    }
}
