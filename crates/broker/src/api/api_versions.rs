//! ApiVersions (18): what this broker speaks. The first request of nearly every client.

use kafka_protocol::messages::api_versions_response::{ApiVersion, FinalizedFeatureKey, SupportedFeatureKey};
use kafka_protocol::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext, SUPPORTED, Supported};

/// From this version on there are features in the answer.
const FEATURES_SINCE: i16 = 3;
/// From this version on a feature's lowest level may be 0.
const ZERO_LEVELS_SINCE: i16 = 4;

/// The one feature by which clients go here: at 2, a producer's epoch goes up with each transaction, and partitions take part
/// by the first batch they get (KIP-890).
pub(super) const TRANSACTION_VERSION: &str = "transaction.version";
pub(super) const TRANSACTION_VERSION_LEVEL: i16 = 2;

/// Counts the changes of features; there are none.
const FEATURES_EPOCH: i64 = 0;

/// Answers a request of a version this broker speaks.
pub(crate) fn handle(context: &RequestContext, request: &ApiVersionsRequest) -> ApiVersionsResponse {
    answer(request, context.version)
}

fn answer(request: &ApiVersionsRequest, version: i16) -> ApiVersionsResponse {
    let names = [&request.client_software_name, &request.client_software_version];
    if version >= 3 && !names.iter().all(|name| is_software_name(name)) {
        return ApiVersionsResponse::default().with_error_code(ErrorCode::InvalidRequest.into());
    }
    let response = ApiVersionsResponse::default().with_api_keys(SUPPORTED.iter().map(advertise).collect());
    if version < FEATURES_SINCE {
        return response;
    }
    let supported = SupportedFeatureKey::default()
        .with_name(StrBytes::from_static_str(TRANSACTION_VERSION))
        .with_min_version(0)
        .with_max_version(TRANSACTION_VERSION_LEVEL);
    // Clients of version 3 do not take a lowest level of 0 (KAFKA-17011); what is in force they are told all the same.
    let supported = if version >= ZERO_LEVELS_SINCE { vec![supported] } else { Vec::new() };
    let finalized = FinalizedFeatureKey::default()
        .with_name(StrBytes::from_static_str(TRANSACTION_VERSION))
        .with_min_version_level(TRANSACTION_VERSION_LEVEL)
        .with_max_version_level(TRANSACTION_VERSION_LEVEL);
    response
        .with_supported_features(supported)
        .with_finalized_features_epoch(FEATURES_EPOCH)
        .with_finalized_features(vec![finalized])
}

/// The answer, in version 0, to a version this broker does not speak (KIP-511): the client asks again with what it finds.
pub(crate) fn unsupported_version() -> ApiVersionsResponse {
    let own = SUPPORTED.iter().filter(|supported| supported.api == ApiKey::ApiVersions).map(advertise).collect();
    ApiVersionsResponse::default().with_error_code(ErrorCode::UnsupportedVersion.into()).with_api_keys(own)
}

fn advertise(supported: &Supported) -> ApiVersion {
    ApiVersion::default()
        .with_api_key(supported.api as i16)
        .with_min_version(supported.advertised_min)
        .with_max_version(supported.max)
}

/// `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`, as `ApiVersionsRequest.isValid` has it.
fn is_software_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    edge(name.as_bytes().first()) && edge(name.as_bytes().last()) && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &'static str, version: &'static str) -> ApiVersionsRequest {
        ApiVersionsRequest::default()
            .with_client_software_name(StrBytes::from_static_str(name))
            .with_client_software_version(StrBytes::from_static_str(version))
    }

    #[test]
    fn every_version_gets_the_same_list() {
        let list = answer(&request("kcat", "1.7.0"), 4);
        assert_eq!(list.error_code, 0);
        assert_eq!(list.api_keys.len(), SUPPORTED.len());
        for version in 0..3 {
            let without = answer(&ApiVersionsRequest::default(), version);
            assert_eq!((without.api_keys, without.finalized_features.len()), (list.api_keys.clone(), 0));
        }
        // As Kafka 4.1 answers.
        for (version, told) in [(3, &[][..]), (4, &[("transaction.version", 0, 2)])] {
            let list = answer(&request("kcat", "1.7.0"), version);
            let supported: Vec<_> = list
                .supported_features
                .iter()
                .map(|one| (one.name.as_str(), one.min_version, one.max_version))
                .collect();
            assert_eq!(supported, told, "version {version}");
            let finalized = &list.finalized_features[0];
            assert_eq!((finalized.name.as_str(), finalized.max_version_level), ("transaction.version", 2));
            assert_eq!(list.finalized_features_epoch, 0);
            crate::api::tests::encodes(ApiKey::ApiVersions, &list, version);
        }
        let produce = list.api_keys.iter().find(|api| api.api_key == 0).unwrap();
        assert_eq!((produce.min_version, produce.max_version), (0, 13));
    }

    #[test]
    fn odd_software_names_are_refused_from_version_3_on() {
        for (name, version) in
            [("", "1"), ("kcat", ""), ("-a", "1"), ("a.", "1"), ("a b", "1"), ("k", "1_0"), ("é", "1")]
        {
            assert_eq!(answer(&request(name, version), 3).error_code, 42, "{name:?} {version:?}");
        }
        for (name, version) in [("a", "1"), ("apache-kafka-java", "4.1.0"), ("lib.x-y", "v1-rc.2")] {
            assert_eq!(answer(&request(name, version), 3).error_code, 0, "{name:?} {version:?}");
        }
    }

    #[test]
    fn an_unknown_version_learns_the_range() {
        let response = unsupported_version();
        assert_eq!(response.error_code, 35);
        assert_eq!(response.api_keys.len(), 1);
        assert_eq!((response.api_keys[0].api_key, response.api_keys[0].max_version), (18, 4));
    }
}
