//! What the log of a partition knows of producers, for their transactions.

use bytes::Bytes;
use highwater_groups::KnownProducer;
use highwater_replication::Partition;
use highwater_storage::{CheckedBatch, SequenceError};

/// What the log knows of a producer.
pub(super) fn known_producer(partition: &Partition, producer_id: i64) -> Option<KnownProducer> {
    let known = partition.log().producers().get(producer_id)?;
    Some(KnownProducer { epoch: known.epoch(), in_transaction: known.transaction_start().is_some() })
}

/// Whether a batch of a producer of which nothing is known has no higher number than that.
pub(super) fn begins_with(first_number: Option<i32>, batch: &CheckedBatch<Bytes>) -> Result<(), SequenceError> {
    let (producer_id, epoch, sequence) = (batch.producer_id(), batch.producer_epoch(), batch.header().base_sequence());
    if first_number.is_none_or(|first| sequence <= first) {
        return Ok(());
    }
    Err(SequenceError::OutOfOrder { producer_id, epoch, sequence, last_epoch: epoch, last: -1 })
}
