//! A plain reading of batches and markers, from the first ever appended on: what a log has to know of them.

use std::collections::BTreeMap;

use highwater_storage::{AbortedTransaction, Offset};

/// Epoch, last sequence, last offset, coordinator epoch and first offset of the open transaction.
pub(crate) type Producer = (i16, i32, i64, i32, Option<i64>);

#[derive(Debug, Default)]
pub(crate) struct Reading {
    pub(crate) producers: BTreeMap<i64, Producer>,
    pub(crate) aborted: Vec<AbortedTransaction>,
    /// First offset and marker of each transaction that ended.
    pub(crate) ended: Vec<(i64, i64)>,
}

impl Reading {
    /// A batch from its first offset to its last.
    pub(crate) fn data(
        &mut self,
        (producer, epoch): (i64, i16),
        (first, last): (i64, i64),
        last_sequence: i32,
        is_transactional: bool,
    ) {
        let known = self.known(producer, epoch);
        (known.1, known.2) = (last_sequence, last);
        if is_transactional {
            known.4 = known.4.or(Some(first));
        }
    }

    /// A marker at this offset. Returns whether it ended a transaction.
    pub(crate) fn marker(
        &mut self,
        (producer, epoch): (i64, i16),
        at: i64,
        is_abort: bool,
        coordinator_epoch: i32,
    ) -> bool {
        let known = self.known(producer, epoch);
        known.3 = coordinator_epoch;
        let Some(first) = known.4.take() else { return false };
        self.ended.push((first, at));
        if is_abort {
            self.aborted.push(AbortedTransaction {
                producer_id: producer,
                first_offset: Offset(first),
                last_offset: Offset(at),
                last_stable_offset: Offset(self.first_open().unwrap_or(at + 1)),
            });
        }
        true
    }

    /// The offset below which all transactions are decided in a log that starts at `start`, where the markers from
    /// `known_from` on hold it back.
    pub(crate) fn stable(&self, start: i64, high_watermark: i64, known_from: i64) -> i64 {
        let held = self.ended.iter().filter(|(_, marker)| *marker >= high_watermark.max(known_from));
        let first = held.map(|(first, _)| *first).chain(self.first_open()).min();
        first.map_or(high_watermark, |first| first.max(start).min(high_watermark))
    }

    /// The first offset of the oldest open transaction.
    fn first_open(&self) -> Option<i64> {
        self.producers.values().filter_map(|known| known.4).min()
    }

    fn known(&mut self, producer: i64, epoch: i16) -> &mut Producer {
        let known = self.producers.entry(producer).or_insert((epoch, -1, -1, -1, None));
        if known.0 != epoch {
            (known.0, known.1, known.2) = (epoch, -1, -1);
        }
        known
    }
}
