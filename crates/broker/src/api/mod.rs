//! The Kafka APIs: which versions this broker offers, and one file per API that answers its requests.

use std::sync::Arc;

use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;

use crate::broker::BrokerShared;
use crate::net::ConnectionInfo;

pub(crate) mod create_partitions;
pub(crate) mod create_topics;
pub(crate) mod delete_topics;
pub mod error_code;
pub(crate) mod init_producer_id;

#[cfg(test)]
pub(crate) mod admin_tests;

pub use error_code::ErrorCode;

pub(crate) use crate::net::Close;

/// What a handler knows besides the request itself.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    /// The broker that was asked.
    pub(crate) broker: Arc<BrokerShared>,
    /// Who asks.
    pub(crate) connection: Arc<ConnectionInfo>,
    /// The API.
    pub(crate) api: ApiKey,
    /// The version of request and response, one this broker offers.
    pub(crate) version: i16,
    /// The client's name for itself.
    pub(crate) client_id: Option<StrBytes>,
}

/// The versions of one API that this broker speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// The API.
    pub api: ApiKey,
    /// The lowest version that is advertised. It may be below [`Self::min`]; versions between are answered with 35.
    pub advertised_min: i16,
    /// The lowest version that is served.
    pub min: i16,
    /// The highest version.
    pub max: i16,
}

const fn serve(api: ApiKey, min: i16, max: i16) -> Supported {
    Supported { api, advertised_min: min, min, max }
}

/// Every API of this broker, in the order of their keys: what ApiVersions tells and what is dispatched.
///
/// Produce is advertised from 0 on though 0 to 2 are refused, as Kafka 4 does: librdkafka up to 2.8 concludes from a
/// higher minimum that the broker knows no compression (KAFKA-18659). FindCoordinator is offered before there are groups
/// because librdkafka uses LZ4 only where it is.
pub static SUPPORTED: &[Supported] = &[
    Supported { api: ApiKey::Produce, advertised_min: 0, min: 3, max: 13 },
    serve(ApiKey::Fetch, 4, 18),
    serve(ApiKey::ListOffsets, 1, 10),
    serve(ApiKey::Metadata, 0, 13),
    serve(ApiKey::FindCoordinator, 0, 6),
    serve(ApiKey::ApiVersions, 0, 4),
    serve(ApiKey::CreateTopics, 2, 7),
    serve(ApiKey::DeleteTopics, 1, 6),
    serve(ApiKey::InitProducerId, 0, 5),
    serve(ApiKey::OffsetForLeaderEpoch, 2, 4),
    serve(ApiKey::DescribeConfigs, 1, 4),
    serve(ApiKey::CreatePartitions, 0, 3),
    serve(ApiKey::DescribeCluster, 0, 2),
];

/// The versions of `api` that are served, if it is.
pub fn supported(api: ApiKey) -> Option<Supported> {
    SUPPORTED.iter().find(|supported| supported.api == api).copied()
}

/// When a request that may take `timeout_ms` is to be answered; a negative time is none.
fn deadline(timeout_ms: i32) -> tokio::time::Instant {
    let timeout = u64::try_from(timeout_ms).unwrap_or(0);
    tokio::time::Instant::now() + std::time::Duration::from_millis(timeout)
}

/// Milliseconds until then.
fn remaining_ms(deadline: tokio::time::Instant) -> u64 {
    let left = deadline.saturating_duration_since(tokio::time::Instant::now());
    u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
}
