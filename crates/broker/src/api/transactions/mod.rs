//! The APIs of transactions: from the wire to the coordinators and back.

pub(super) mod add_offsets_to_txn;
pub(super) mod add_partitions_to_txn;
pub(super) mod describe_producers;
pub(super) mod describe_transactions;
pub(super) mod end_txn;
pub(super) mod list_transactions;
pub(super) mod txn_offset_commit;
pub(super) mod write_txn_markers;

use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};

/// A name in memory of its own: what waits should not keep the frame.
fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

/// A code as an API tells it that knows PRODUCER_FENCED (90) from a version on. Before, a producer that has been replaced is
/// told INVALID_PRODUCER_EPOCH (47).
fn told_before(fenced_since: i16, version: i16, code: ErrorCode) -> ErrorCode {
    if code == ErrorCode::ProducerFenced && version < fenced_since { ErrorCode::InvalidProducerEpoch } else { code }
}
