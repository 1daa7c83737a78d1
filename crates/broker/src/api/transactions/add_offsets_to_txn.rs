//! AddOffsetsToTxn (25): the offsets of a group take part in a transaction.

use highwater_groups::Producer;
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};

use super::{ErrorCode, RequestContext, told_before};
use crate::coordinators::partition_of;
use crate::groups::{self, OFFSETS_TOPIC};
use crate::transactions::{Mode, take_part_here};

const FENCED_SINCE: i16 = 2;

pub(crate) async fn handle(context: &RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse {
    let code = match add(context, &request).await {
        Ok(()) => ErrorCode::None,
        Err(code) => told_before(FENCED_SINCE, context.version, code),
    };
    AddOffsetsToTxnResponse::default().with_error_code(code.number())
}

async fn add(context: &RequestContext, request: &AddOffsetsToTxnRequest) -> Result<(), ErrorCode> {
    let broker = &context.broker;
    // A group may commit for the first time in a transaction.
    groups::make_topic(broker).await.map_err(|_| ErrorCode::CoordinatorNotAvailable)?;
    let image = broker.cluster.image();
    let topic = image.topic(OFFSETS_TOPIC).ok_or(ErrorCode::CoordinatorNotAvailable)?;
    let of = (OFFSETS_TOPIC.to_owned(), partition_of(&request.group_id, topic.partitions.len()));
    let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
    let taken = take_part_here(broker, &request.transactional_id, producer, Mode::Add, vec![of]).await;
    taken.into_values().next().unwrap_or(Err(ErrorCode::UnknownServerError))
}
