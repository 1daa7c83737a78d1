//! InitProducerId (22).

use highwater_groups::Producer;
use highwater_groups::transactions::{TransactionAnswer, TransactionRequest};
use kafka_protocol::messages::ProducerId;
use kafka_protocol::messages::init_producer_id_request::InitProducerIdRequest;
use kafka_protocol::messages::init_producer_id_response::InitProducerIdResponse;

use super::{ErrorCode, RequestContext};
use crate::cluster::{ClusterHandle, StoreFailure};
use crate::transactions;

/// "No id" and "no epoch" on the wire.
const NONE: i64 = -1;

/// From this version on a producer that has been replaced is told so by PRODUCER_FENCED (90), before by
/// INVALID_PRODUCER_EPOCH (47).
const FENCED_SINCE: i16 = 4;

pub(crate) async fn handle(context: &RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse {
    if request.transactional_id.as_ref().is_some_and(|id| !id.0.is_empty()) {
        return begin(context, &request).await;
    }
    answer(decide(&context.broker.cluster, &request).await)
}

fn answer(given: Result<Producer, ErrorCode>) -> InitProducerIdResponse {
    match given {
        Ok(Producer { id, epoch }) => {
            InitProducerIdResponse::default().with_producer_id(ProducerId(id)).with_producer_epoch(epoch)
        }
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code.number())
            .with_producer_id(ProducerId(NONE))
            .with_producer_epoch(-1),
    }
}

/// An idempotent producer gets a new id with epoch 0 each time it asks, also when it names the id and epoch it has
/// (KIP-360): it bumps its epoch by itself and asks when the epochs are used up or its id is not known any more, and then
/// a new id is the one answer that is always right. So does Kafka.
async fn decide(cluster: &ClusterHandle, request: &InitProducerIdRequest) -> Result<Producer, ErrorCode> {
    if request.transactional_id.is_some() {
        return Err(ErrorCode::InvalidRequest);
    }
    expected(request)?;
    let id = cluster.producer_id().await.map_err(|error| match error {
        StoreFailure::SessionLost | StoreFailure::Unavailable => ErrorCode::CoordinatorNotAvailable,
        _ => ErrorCode::UnknownServerError,
    })?;
    Ok(Producer { id, epoch: 0 })
}

/// What the producer has by its own word: an id and an epoch, or neither.
fn expected(request: &InitProducerIdRequest) -> Result<Option<Producer>, ErrorCode> {
    let producer = Producer { id: request.producer_id.0, epoch: request.producer_epoch };
    match (producer.id == NONE, i64::from(producer.epoch) == NONE) {
        (true, true) => Ok(None),
        (false, false) => Ok(Some(producer)),
        _ => Err(ErrorCode::InvalidRequest),
    }
}

/// A transactional producer gets the next epoch, and nobody before it writes any more.
async fn begin(context: &RequestContext, request: &InitProducerIdRequest) -> InitProducerIdResponse {
    let id = request.transactional_id.as_ref().map(|id| id.to_string()).unwrap_or_default();
    let expected = match expected(request) {
        Ok(expected) => expected,
        Err(code) => return answer(Err(code)),
    };
    let asked = TransactionRequest::Begin { id: id.clone(), timeout_ms: request.transaction_timeout_ms, expected };
    let begun = match transactions::ask(&context.broker, &id, asked).await {
        TransactionAnswer::Producer(begun) => {
            begun.map_err(|why| ErrorCode::from_number(why.code()).unwrap_or(ErrorCode::UnknownServerError))
        }
        _ => Err(ErrorCode::UnknownServerError),
    };
    answer(begun.map_err(|code| match code {
        ErrorCode::ProducerFenced if context.version < FENCED_SINCE => ErrorCode::InvalidProducerEpoch,
        code => code,
    }))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::TransactionalId;

    use super::*;
    use crate::api::admin_tests::{cluster_of, name};

    #[tokio::test]
    async fn idempotent_producers_get_ids_of_their_own() {
        let members = cluster_of(2).await;
        let plain = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let first = answer(decide(&members[0], &plain).await);
        assert_eq!((first.error_code, first.producer_epoch), (0, 0));
        let bump = plain.clone().with_producer_id(first.producer_id).with_producer_epoch(5);
        let second = answer(decide(&members[0], &bump).await);
        let third = answer(decide(&members[1], &plain).await);
        assert_eq!((second.error_code, second.producer_epoch), (0, 0));
        assert!(first.producer_id != second.producer_id && third.producer_id.0 >= 1000);

        let half = plain.clone().with_producer_id(first.producer_id);
        assert_eq!(answer(decide(&members[0], &half).await).error_code, 42);
        let request = plain.clone().with_transactional_id(Some(TransactionalId(name(""))));
        let response = answer(decide(&members[0], &request).await);
        assert_eq!((response.error_code, response.producer_id.0, response.producer_epoch), (42, -1, -1));
        members[0].leave().await;
        // The rest of the block is this broker's, whatever becomes of its session.
        assert_eq!(answer(decide(&members[0], &plain).await).error_code, 0);
    }
}
