//! Markers: the control batches that end a transaction.
//!
//! ```text
//! key    version i16 = 0 │ type i16: 0 abort, 1 commit (others end no transaction)
//! value  version i16 = 0 │ epoch of the transaction coordinator i32
//! ```

use crate::batch::BatchView;
use crate::builder::{BatchBuilder, Record};
use crate::check::{CheckedBatch, Origin, ProduceRules};
use crate::compression::Codec;
use crate::error::AppendError;
use crate::log::{Appended, Log};
use crate::{LeaderEpoch, TimestampMs};

/// The end of a producer's transaction, as a transaction coordinator has it written to each partition that took part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionMarker {
    /// The producer.
    pub producer_id: i64,
    /// The producer's epoch from here on; where it is a new one, sequence numbers begin again.
    pub producer_epoch: i16,
    /// The epoch of the coordinator, by which those that were replaced are found out.
    pub coordinator_epoch: i32,
    /// Whether the transaction is aborted; else it is committed.
    pub is_abort: bool,
}

const ABORT: i16 = 0;
const COMMIT: i16 = 1;

impl TransactionMarker {
    /// The marker in a batch; none in data, in control batches of other types, and in those that compaction emptied.
    pub fn of(batch: &BatchView<'_>) -> Option<Self> {
        if !batch.is_control() {
            return None;
        }
        let record = batch.records()?.next()?.ok()?;
        let (_version, key) = record.key?.split_first_chunk::<2>()?;
        let kind = i16::from_be_bytes(*key.first_chunk()?);
        let (_version, value) = record.value?.split_first_chunk::<2>()?;
        (kind == ABORT || kind == COMMIT).then_some(Self {
            producer_id: batch.producer_id(),
            producer_epoch: batch.producer_epoch(),
            coordinator_epoch: i32::from_be_bytes(*value.first_chunk()?),
            is_abort: kind == ABORT,
        })
    }

    /// The batch, as it is given to a leader.
    pub fn to_batch(&self, now: TimestampMs) -> Vec<u8> {
        let kind = if self.is_abort { ABORT } else { COMMIT };
        let key = [[0; 2], kind.to_be_bytes()].concat();
        let value = [&[0; 2], self.coordinator_epoch.to_be_bytes().as_slice()].concat();
        let batch = BatchBuilder::new(Codec::None).producer(self.producer_id, self.producer_epoch, -1);
        batch.transactional().control().push(Record::keyed(now, &key, &value)).build()
    }
}

impl Log {
    /// Appends a marker as the leader in `epoch`. It ends the producer's transaction, if one is open, and stands in the
    /// log in any case.
    ///
    /// # Errors
    /// [`AppendError::Sequence`] if the producer or the coordinator was replaced, else as [`Log::append_checked`].
    pub fn end_transaction(
        &mut self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        marker: &TransactionMarker,
    ) -> Result<Appended, AppendError> {
        let timestamp_type = self.options().rules.timestamp_type;
        // The topic's limits are for producers.
        let rules = ProduceRules { origin: Origin::Coordinator, timestamp_type, ..ProduceRules::default() };
        let batch = CheckedBatch::check(marker.to_batch(now), &rules, now)?;
        self.append_checked(now, epoch, &batch)
    }
}
