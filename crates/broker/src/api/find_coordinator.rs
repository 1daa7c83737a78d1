//! FindCoordinator (10): offered although there are no groups yet, since librdkafka uses LZ4 only where it is.

use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{BrokerId, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};

const MESSAGE: StrBytes = StrBytes::from_static_str("this broker does not coordinate groups or transactions yet");

/// Answers that there is no coordinator now, which clients try again after (quirk: never 0 with an empty host).
pub(crate) fn handle(context: &RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    answer(request, context.version)
}

fn answer(request: FindCoordinatorRequest, version: i16) -> FindCoordinatorResponse {
    let code = ErrorCode::CoordinatorNotAvailable.into();
    let nobody = BrokerId(-1);
    if version >= 4 {
        let coordinators = request.coordinator_keys.into_iter().map(|key| {
            Coordinator::default()
                .with_key(key)
                .with_node_id(nobody)
                .with_port(-1)
                .with_error_code(code)
                .with_error_message(Some(MESSAGE))
        });
        return FindCoordinatorResponse::default().with_coordinators(coordinators.collect());
    }
    let response = FindCoordinatorResponse::default().with_error_code(code).with_node_id(nobody).with_port(-1);
    if version >= 1 { response.with_error_message(Some(MESSAGE)) } else { response }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_says_not_available() {
        for version in 0..4 {
            let response = answer(FindCoordinatorRequest::default(), version);
            assert_eq!((response.error_code, response.node_id.0, response.port), (15, -1, -1));
            encodes(super::super::ApiKey::FindCoordinator, &response, version);
        }
        for version in 4..=6 {
            let keys = ["a", "b"].map(StrBytes::from_static_str);
            let response = answer(FindCoordinatorRequest::default().with_coordinator_keys(keys.to_vec()), version);
            assert_eq!(response.coordinators.len(), 2);
            assert!(response.coordinators.iter().all(|one| one.error_code == 15 && one.node_id.0 == -1));
            assert_eq!(response.coordinators[1].key.as_str(), "b");
            encodes(super::super::ApiKey::FindCoordinator, &response, version);
        }
    }
}
