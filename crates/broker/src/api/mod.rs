//! The Kafka APIs: which versions this broker offers, and one file per API that answers its requests.

use std::sync::Arc;

use kafka_protocol::messages::ApiKey;
use kafka_protocol::protocol::StrBytes;

use crate::broker::BrokerShared;
use crate::net::ConnectionInfo;

pub mod error_code;

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
