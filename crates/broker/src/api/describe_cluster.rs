//! DescribeCluster (60): the brokers, the controller and the cluster's id.

use highwater_replication::BrokerId;
use kafka_protocol::messages::describe_cluster_response::DescribeClusterBroker;
use kafka_protocol::messages::{self, DescribeClusterRequest, DescribeClusterResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext, metadata, operations};
use crate::cluster::MetadataImage;

/// `endpointType` of a request for brokers; 2 stands for controllers, which are no endpoints of their own here.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Answers from this broker's image of the cluster.
pub(crate) fn handle(context: &RequestContext, request: &DescribeClusterRequest) -> DescribeClusterResponse {
    answer(&context.broker.cluster.image(), request, context.version, context.broker.config.broker_id)
}

fn answer(
    image: &MetadataImage,
    request: &DescribeClusterRequest,
    version: i16,
    me: BrokerId,
) -> DescribeClusterResponse {
    if version >= 1 && request.endpoint_type != BROKERS {
        let (code, message) = if request.endpoint_type == CONTROLLERS {
            (ErrorCode::MismatchedEndpointType, "this is a broker; there are no controllers to ask")
        } else {
            (ErrorCode::UnsupportedEndpointType, "the endpoint type is unknown")
        };
        return DescribeClusterResponse::default()
            .with_error_code(code.into())
            .with_error_message(Some(StrBytes::from_static_str(message)));
    }
    let brokers = image.brokers.values().map(|broker| {
        DescribeClusterBroker::default()
            .with_broker_id(messages::BrokerId(broker.id.0))
            .with_host(StrBytes::from_string(broker.host.clone()))
            .with_port(i32::from(broker.port))
            .with_rack(broker.rack.clone().map(StrBytes::from_string))
    });
    let operations =
        if request.include_cluster_authorized_operations { operations::CLUSTER } else { operations::NOT_ASKED };
    DescribeClusterResponse::default()
        .with_cluster_id(StrBytes::from_string(image.cluster_id.clone()))
        .with_controller_id(messages::BrokerId(metadata::controller(image, me).0))
        .with_brokers(brokers.collect())
        .with_cluster_authorized_operations(operations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::{encodes, image};
    use kafka_protocol::messages::ApiKey;

    #[test]
    fn brokers_are_told_in_every_version() {
        for version in 0..=2 {
            let response = answer(&image(), &DescribeClusterRequest::default(), version, BrokerId(1));
            encodes(ApiKey::DescribeCluster, &response, version);
            assert_eq!((response.error_code, response.brokers.len(), response.controller_id.0), (0, 2, 2));
            assert_eq!(response.cluster_id.as_str(), "cluster");
        }
    }

    #[test]
    fn controllers_are_no_endpoints() {
        for (endpoint_type, code) in [(2, 114), (3, 115)] {
            let request = DescribeClusterRequest::default().with_endpoint_type(endpoint_type);
            let response = answer(&image(), &request, 1, BrokerId(1));
            encodes(ApiKey::DescribeCluster, &response, 1);
            assert_eq!(response.error_code, code);
        }
    }
}
