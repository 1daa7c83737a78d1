//! Produce: batches to append, at most one per partition.
//!
//! Everything up to handing the batches to their partitions happens before the first `await`: the connection starts
//! these calls in the order of its requests, and an idempotent producer's pipeline must reach the log in that order.

use std::sync::Arc;

use bytes::Bytes;
use highwater_replication::{Acks, ProduceError};
use highwater_storage::{AppendError, BatchRefused, CheckedBatch, Codec, RecordError};
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, NodeEndpoint, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{BrokerId, ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::StrBytes;

use super::{Close, ErrorCode, RequestContext, is_internal};
use crate::gather::Gather;
use crate::hosted::{Hosted, NotProduced, ProduceAnswer};
use crate::partitions::TopicName;
use crate::transactions::{Given, Mode, Verifications};

/// Since this version topics are named by id.
const TOPIC_IDS_SINCE: i16 = 13;

/// Since this version an answer may name the leader.
const LEADER_HINTS_SINCE: i16 = 10;

/// Since this version batches may be compressed with zstd (KIP-110).
const ZSTD_SINCE: i16 = 7;

/// What a client calls itself that may write to Kafka's own topics, as tools of Kafka's do that repair them.
const WRITES_INTERNAL_TOPICS: &str = "__admin_client";

/// From this version on a client knows TRANSACTION_ABORTABLE.
const ABORTABLE_SINCE: i16 = 11;

/// From this version on a batch has its partition take part in its transaction (KIP-890).
const ADDS_SINCE: i16 = 12;

/// A batch on its way to its partition, and where its answer goes.
struct Delivery {
    topic: usize,
    partition: usize,
    hosted: Arc<Hosted>,
    batch: CheckedBatch<Bytes>,
}

/// Answers a Produce request; with `None` if the client wants no answer.
pub(crate) async fn handle(
    context: &RequestContext,
    request: ProduceRequest,
) -> Result<Option<ProduceResponse>, Close> {
    let acks = match request.acks {
        0 => Some(Acks::None),
        1 => Some(Acks::Leader),
        -1 => Some(Acks::All),
        _ => None,
    };
    let mut response = ProduceResponse::default();
    let mut deliveries = Vec::new();
    let id = request.transactional_id.as_ref().map(|id| id.to_string());
    for topic in request.topic_data {
        let name = match context.version {
            TOPIC_IDS_SINCE.. => TopicName::Id(highwater_storage::TopicId(topic.topic_id.into_bytes())),
            _ => TopicName::Name(&topic.name),
        };
        let mut answers = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            let index = data.index;
            let answer = PartitionProduceResponse::default().with_index(index).with_base_offset(-1);
            answers.push(answer.with_log_start_offset(-1).with_log_append_time_ms(-1));
            match admit(context, name, data, acks) {
                Ok((hosted, batch)) => {
                    let (topic, partition) = (response.responses.len(), answers.len() - 1);
                    deliveries.push(Delivery { topic, partition, hosted, batch });
                }
                Err(refusal) => {
                    if let Some(answer) = answers.last_mut() {
                        refusal.write(answer);
                    }
                }
            }
        }
        // The name is copied: while followers are waited for, a slice of the frame would keep the records in memory.
        let name = kafka_protocol::messages::TopicName(StrBytes::from_string(topic.name.to_string()));
        let answer = TopicProduceResponse::default().with_name(name).with_topic_id(topic.topic_id);
        response.responses.push(answer.with_partition_responses(answers));
    }

    let now = context.broker.services.clock.now();
    let deadline = now.after(i64::from(request.timeout_ms.max(0)));
    let (gather, slots) = Gather::new(deliveries.len());
    let mut places = Vec::with_capacity(deliveries.len());
    let acks_wanted = acks.unwrap_or(Acks::All);
    // Of all batches or none: with one of a transaction but no id of one the whole request is refused.
    let refused = id.is_none() && deliveries.iter().any(|delivery| delivery.batch.is_transactional());
    let mut of_transaction = Vec::new();
    for (Delivery { topic, partition, hosted, batch }, slot) in deliveries.into_iter().zip(slots) {
        places.push((topic, partition, Arc::clone(&hosted)));
        if refused {
            slot.fill(Err(NotProduced::Transaction(ErrorCode::TransactionalIdAuthorizationFailed)));
        } else if batch.is_transactional() {
            let counts_anew = context.version >= ADDS_SINCE;
            of_transaction.push(Given { hosted, batch, acks: acks_wanted, deadline, counts_anew, slot });
        } else {
            hosted.produce(batch, acks_wanted, deadline, None, slot);
        }
    }
    if let Some(id) = id.filter(|_| !of_transaction.is_empty()) {
        let verifies = context.broker.partitions.running().verifies_transactions;
        let mode =
            if context.version >= ADDS_SINCE { Some(Mode::Add) } else { Some(Mode::Verify).filter(|_| verifies) };
        Verifications::admit(&context.broker, &id, mode, of_transaction);
    }
    for ((topic, partition, hosted), outcome) in places.into_iter().zip(gather.all().await) {
        let answers = response.responses.get_mut(topic).map(|topic| &mut topic.partition_responses);
        if let Some(answer) = answers.and_then(|answers| answers.get_mut(partition)) {
            report(answer, &hosted, outcome, context.version);
        }
    }

    if acks == Some(Acks::None) {
        return silence(&response);
    }
    if context.version >= LEADER_HINTS_SINCE {
        name_leaders(context, &mut response);
    }
    Ok(Some(response))
}

/// Why a batch does not reach its partition.
struct Refusal {
    code: ErrorCode,
    message: Option<String>,
    records: Vec<RecordError>,
}

impl Refusal {
    fn of(code: ErrorCode) -> Self {
        Self { code, message: None, records: Vec::new() }
    }

    fn because(code: ErrorCode, reason: impl ToString) -> Self {
        Self { code, message: Some(reason.to_string()), records: Vec::new() }
    }

    fn write(self, answer: &mut PartitionProduceResponse) {
        answer.error_code = self.code.number();
        answer.error_message = self.message.map(super::told);
        let error = |record: RecordError| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(record.index)
                .with_batch_index_error_message(Some(StrBytes::from_string(record.message)))
        };
        answer.record_errors = self.records.into_iter().map(error).collect();
    }
}

/// Checks a batch and finds its partition.
fn admit(
    context: &RequestContext,
    topic: TopicName<'_>,
    data: PartitionProduceData,
    acks: Option<Acks>,
) -> Result<(Arc<Hosted>, CheckedBatch<Bytes>), Refusal> {
    // Of several mistakes the one is told that Kafka comes across first.
    let records = data.records.unwrap_or_default();
    let first = FirstBatch::read(&records);
    if matches!(first, FirstBatch::Unreadable) {
        return Err(Refusal::because(ErrorCode::CorruptMessage, "what is no batch of any format"));
    }
    let hosted = context.broker.find(topic, data.index).map_err(Refusal::of)?;
    if is_internal(&hosted.topic_partition().topic) && context.client_id.as_str() != WRITES_INTERNAL_TOPICS {
        return Err(Refusal::of(ErrorCode::InvalidTopicException));
    }
    match first {
        FirstBatch::Unreadable | FirstBatch::None => {
            return Err(Refusal::because(ErrorCode::InvalidRecord, "no whole batch, of which there must be one"));
        }
        FirstBatch::OldFormat => {
            return Err(Refusal::because(ErrorCode::InvalidRecord, "a batch in a format before magic 2"));
        }
        FirstBatch::Of(codec) if codec == Codec::Zstd as u8 && context.version < ZSTD_SINCE => {
            return Err(Refusal::because(
                ErrorCode::UnsupportedCompressionType,
                format_args!("zstd is for Produce {ZSTD_SINCE} and up, and this is {}", context.version),
            ));
        }
        FirstBatch::Of(_) => {}
    }
    if acks.is_none() {
        return Err(Refusal::of(ErrorCode::InvalidRequiredAcks));
    }
    let now = context.broker.services.clock.now();
    let batch = CheckedBatch::check(records, &hosted.rules(), now).map_err(refusal)?;
    Ok((hosted, batch))
}

/// What a partition's records begin with, by its header alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstBatch {
    /// Nothing, or less of a batch than it says.
    None,
    /// A length or a magic byte that no format has.
    Unreadable,
    /// A message set.
    OldFormat,
    /// A record batch with the codec of this number.
    Of(u8),
}

impl FirstBatch {
    fn read(records: &[u8]) -> Self {
        /// What stands before the part that a length counts, and where its magic byte and the low byte of its attributes are.
        const OVERHEAD_BYTES: usize = 12;
        const MAGIC_AT: usize = 16;
        const ATTRIBUTES_AT: usize = 22;
        /// The least that the oldest format needs.
        const LENGTH_MIN: i32 = 14;
        const CODEC_BITS: u8 = 7;
        let Some(length) = records.get(8..OVERHEAD_BYTES).and_then(|bytes| bytes.try_into().ok()) else {
            return Self::None;
        };
        let length = i32::from_be_bytes(length);
        if length < LENGTH_MIN {
            return Self::Unreadable;
        }
        let Some(&magic) = records.get(MAGIC_AT) else { return Self::None };
        if magic > 2 {
            return Self::Unreadable;
        }
        let is_whole = usize::try_from(length).is_ok_and(|length| length <= records.len() - OVERHEAD_BYTES);
        match (is_whole, magic, records.get(ATTRIBUTES_AT)) {
            (false, ..) => Self::None,
            (true, 2, Some(attributes)) => Self::Of(attributes & CODEC_BITS),
            (true, 2, None) => Self::Unreadable,
            (true, ..) => Self::OldFormat,
        }
    }
}

fn refusal(refused: BatchRefused) -> Refusal {
    let (code, message) = (ErrorCode::from(&refused), Some(refused.to_string()));
    let records = match refused {
        BatchRefused::InvalidTimestamp { errors } | BatchRefused::InvalidRecord { errors, .. } => errors,
        _ => Vec::new(),
    };
    Refusal { code, message, records }
}

/// Writes a partition's answer.
fn report(answer: &mut PartitionProduceResponse, hosted: &Hosted, outcome: Option<ProduceAnswer>, version: i16) {
    let refusal = match outcome {
        Some(Ok(done)) => {
            answer.base_offset = done.base_offset.0;
            answer.log_append_time_ms = done.append_time.0;
            answer.log_start_offset = done.log_start.0;
            return;
        }
        // Dropped unhandled: the partition was taken away from here.
        None => Refusal::of(ErrorCode::NotLeaderOrFollower),
        Some(Err(NotProduced::Transaction(code))) => refused_by_coordinator(code, version),
        Some(Err(NotProduced::Partition(ProduceError::Refused(refused)))) => {
            Refusal::because(ErrorCode::from(&refused), refused)
        }
        Some(Err(NotProduced::Partition(ProduceError::Append(error)))) => refused_by_log(hosted, error),
        Some(Err(NotProduced::Partition(error))) => Refusal::because(ErrorCode::UnknownServerError, error),
    };
    refusal.write(answer);
}

/// What cannot be verified now is to be tried again: by a code on which all clients do, and which does not send them after
/// another leader. Clients of transaction version 2 know that their last transaction may still be ending.
fn refused_by_coordinator(code: ErrorCode, version: i16) -> Refusal {
    let told = match code {
        ErrorCode::NetworkException
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::NotCoordinator => ErrorCode::NotEnoughReplicas,
        ErrorCode::ConcurrentTransactions if version < ADDS_SINCE => ErrorCode::NotEnoughReplicas,
        ErrorCode::TransactionAbortable if version < ABORTABLE_SINCE => ErrorCode::InvalidTxnState,
        ErrorCode::TransactionalIdAuthorizationFailed => {
            return Refusal::because(code, "a batch of a transaction in a request without a transactional id");
        }
        code => code,
    };
    Refusal::because(told, format!("the partition could not be verified to take part in the transaction: {code}"))
}

fn refused_by_log(hosted: &Hosted, error: AppendError) -> Refusal {
    match error {
        AppendError::Refused(refused) => refusal(refused),
        AppendError::Sequence(error) => Refusal::because(ErrorCode::from(&error), error),
        AppendError::LargerThanSegment { .. } => Refusal::because(ErrorCode::RecordListTooLarge, error),
        AppendError::Io(_) | AppendError::Closed(_) => {
            hosted.tell_trouble("a produce could not be written", &error);
            Refusal::because(ErrorCode::KafkaStorageError, error)
        }
        _ => Refusal::because(ErrorCode::UnknownServerError, error),
    }
}

/// The end of a request that wants no answer. Its errors can only be told by closing the connection, on which clients
/// refresh their metadata.
fn silence(response: &ProduceResponse) -> Result<Option<ProduceResponse>, Close> {
    let answers = response.responses.iter().flat_map(|topic| &topic.partition_responses);
    for answer in answers {
        if answer.error_code != 0 {
            let code = ErrorCode::from_number(answer.error_code).unwrap_or(ErrorCode::UnknownServerError);
            return Err(Close::because(format!("a produce with acks=0 failed with {code}")));
        }
    }
    Ok(None)
}

/// Tells clients that asked the wrong broker whom to ask.
fn name_leaders(context: &RequestContext, response: &mut ProduceResponse) {
    let not_leader = ErrorCode::NotLeaderOrFollower.number();
    let image = context.broker.cluster.image();
    for topic in &mut response.responses {
        let known = match context.version {
            TOPIC_IDS_SINCE.. => image.topic_by_id(highwater_storage::TopicId(topic.topic_id.into_bytes())),
            _ => image.topic(&topic.name),
        };
        let Some(known) = known else { continue };
        for answer in topic.partition_responses.iter_mut().filter(|answer| answer.error_code == not_leader) {
            let Some(state) = known.partition(answer.index).map(|partition| &partition.state.value) else { continue };
            let Some(leader) = state.leader.and_then(|leader| image.brokers.get(&leader)) else { continue };
            answer.current_leader = LeaderIdAndEpoch::default()
                .with_leader_id(BrokerId(leader.id.0))
                .with_leader_epoch(state.leader_epoch.0);
            if !response.node_endpoints.iter().any(|known| known.node_id.0 == leader.id.0) {
                let endpoint = NodeEndpoint::default()
                    .with_node_id(BrokerId(leader.id.0))
                    .with_host(StrBytes::from_string(leader.host.clone()))
                    .with_port(i32::from(leader.port))
                    .with_rack(leader.rack.clone().map(StrBytes::from_string));
                response.node_endpoints.push(endpoint);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_storage::{BatchBuilder, Record, TimestampMs};

    use super::*;

    fn batch(codec: Codec) -> Vec<u8> {
        let mut builder = BatchBuilder::new(codec);
        builder.push(Record::new(TimestampMs(1), b"one"));
        builder.build()
    }

    #[test]
    fn what_a_partitions_records_begin_with_is_told_by_the_header() {
        for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let whole = batch(codec);
            assert_eq!(FirstBatch::read(&whole), FirstBatch::Of(codec as u8), "{codec:?}");
            for end in 0..whole.len() {
                assert_eq!(FirstBatch::read(&whole[..end]), FirstBatch::None, "{codec:?} {end}");
            }
            let with = |at: usize, bytes: &[u8]| {
                let mut changed = whole.clone();
                changed[at..at + bytes.len()].copy_from_slice(bytes);
                FirstBatch::read(&changed)
            };
            assert_eq!((with(16, &[0]), with(16, &[1])), (FirstBatch::OldFormat, FirstBatch::OldFormat));
            assert_eq!((with(16, &[3]), with(16, &[0x7f])), (FirstBatch::Unreadable, FirstBatch::Unreadable));
            for length in [13, 0, -1, i32::MIN] {
                assert_eq!(with(8, &length.to_be_bytes()), FirstBatch::Unreadable, "{length}");
            }
            assert_eq!(with(8, &i32::MAX.to_be_bytes()), FirstBatch::None);
        }
        // A batch of this format that ends before its attributes.
        let mut short = batch(Codec::None)[..26].to_vec();
        short[8..12].copy_from_slice(&14_i32.to_be_bytes());
        assert_eq!(FirstBatch::read(&short), FirstBatch::Of(0));
    }
}
