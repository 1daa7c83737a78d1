//! InitProducerId (22).

use kafka_protocol::messages::ProducerId;
use kafka_protocol::messages::init_producer_id_request::InitProducerIdRequest;
use kafka_protocol::messages::init_producer_id_response::InitProducerIdResponse;

use super::{Close, ErrorCode, RequestContext};
use crate::cluster::{ClusterHandle, StoreFailure};

/// "No id" and "no epoch" on the wire.
const NONE: i64 = -1;

pub(crate) async fn handle(
    context: &RequestContext,
    request: InitProducerIdRequest,
) -> Result<InitProducerIdResponse, Close> {
    Ok(answer(&context.broker.cluster, &request).await)
}

/// An idempotent producer gets a new id with epoch 0 each time it asks, also when it names the id and epoch it has
/// (KIP-360): it bumps its epoch by itself and asks when the epochs are used up or its id is not known any more, and then
/// a new id is the one answer that is always right. So does Kafka.
async fn answer(cluster: &ClusterHandle, request: &InitProducerIdRequest) -> InitProducerIdResponse {
    match decide(cluster, request).await {
        Ok(id) => InitProducerIdResponse::default().with_producer_id(ProducerId(id)).with_producer_epoch(0),
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code.number())
            .with_producer_id(ProducerId(NONE))
            .with_producer_epoch(-1),
    }
}

async fn decide(cluster: &ClusterHandle, request: &InitProducerIdRequest) -> Result<i64, ErrorCode> {
    match request.transactional_id.as_ref().map(|id| id.0.is_empty()) {
        Some(true) => return Err(ErrorCode::InvalidRequest),
        // There are no transactions yet. Retriable codes would keep such a producer trying for ever; this one ends its
        // `initTransactions` with an error that says the broker does not have it.
        Some(false) => return Err(ErrorCode::UnsupportedVersion),
        None => {}
    }
    if (request.producer_id.0 == NONE) != (i64::from(request.producer_epoch) == NONE) {
        return Err(ErrorCode::InvalidRequest);
    }
    cluster.producer_id().await.map_err(|error| match error {
        StoreFailure::SessionLost | StoreFailure::Unavailable => ErrorCode::CoordinatorNotAvailable,
        _ => ErrorCode::UnknownServerError,
    })
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
        let first = answer(&members[0], &plain).await;
        assert_eq!((first.error_code, first.producer_epoch), (0, 0));
        let bump = plain.clone().with_producer_id(first.producer_id).with_producer_epoch(5);
        let second = answer(&members[0], &bump).await;
        let third = answer(&members[1], &plain).await;
        assert_eq!((second.error_code, second.producer_epoch), (0, 0));
        assert!(first.producer_id != second.producer_id && third.producer_id.0 >= 1000);

        let half = plain.clone().with_producer_id(first.producer_id);
        assert_eq!(answer(&members[0], &half).await.error_code, 42);
        for (id, code) in [("", 42), ("tx", 35)] {
            let request = plain.clone().with_transactional_id(Some(TransactionalId(name(id))));
            let response = answer(&members[0], &request).await;
            assert_eq!((response.error_code, response.producer_id.0, response.producer_epoch), (code, -1, -1));
        }
        members[0].leave().await;
        // The rest of the block is this broker's, whatever becomes of its session.
        assert_eq!(answer(&members[0], &plain).await.error_code, 0);
    }
}
