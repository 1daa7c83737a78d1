//! The Kafka APIs: which versions this broker offers, and one file per API that answers its requests.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{self, ApiKey, FetchResponse};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

use crate::broker::BrokerShared;
use crate::groups::OFFSETS_TOPIC;
use crate::net::{Call, ConnectionInfo, Response, Service};
use crate::wire;

mod alter_configs;
mod api_versions;
mod client_quotas;
mod config_resources;
mod config_values;
mod controller_role;
pub(crate) mod create_partitions;
pub(crate) mod create_topics;
mod delete_records;
pub(crate) mod delete_topics;
mod describe_cluster;
mod describe_configs;
mod describe_log_dirs;
mod describe_topic_partitions;
mod elect_leaders;
pub mod error_code;
mod fetch;
mod find_coordinator;
mod groups;
pub(crate) mod init_producer_id;
mod list_offsets;
mod metadata;
mod offset_for_leader_epoch;
mod operations;
mod partition_reassignments;
mod produce;
mod produce_refused;
mod scram;
mod security;
mod transactions;

#[cfg(test)]
pub(crate) mod admin_tests;

pub use error_code::ErrorCode;

pub(crate) use crate::net::Close;

/// What a handler knows besides the request itself.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    /// The broker that was asked.
    pub(crate) broker: Arc<BrokerShared>,
    /// The version of request and response, one this broker offers.
    pub(crate) version: i16,
    /// What the client calls itself.
    pub(crate) client_id: StrBytes,
    /// Where it is.
    pub(crate) peer: SocketAddr,
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
/// higher minimum that the broker knows no compression (KAFKA-18659).
pub static SUPPORTED: &[Supported] = &[
    Supported { api: ApiKey::Produce, advertised_min: 0, min: 3, max: 13 },
    serve(ApiKey::Fetch, 4, 18),
    serve(ApiKey::ListOffsets, 1, 10),
    serve(ApiKey::Metadata, 0, 13),
    serve(ApiKey::OffsetCommit, 2, 9),
    serve(ApiKey::OffsetFetch, 1, 9),
    serve(ApiKey::FindCoordinator, 0, 6),
    serve(ApiKey::JoinGroup, 0, 9),
    serve(ApiKey::Heartbeat, 0, 4),
    serve(ApiKey::LeaveGroup, 0, 5),
    serve(ApiKey::SyncGroup, 0, 5),
    serve(ApiKey::DescribeGroups, 0, 6),
    serve(ApiKey::ListGroups, 0, 5),
    serve(ApiKey::SaslHandshake, 0, 1),
    serve(ApiKey::ApiVersions, 0, 4),
    serve(ApiKey::CreateTopics, 2, 7),
    serve(ApiKey::DeleteTopics, 1, 6),
    serve(ApiKey::DeleteRecords, 0, 2),
    serve(ApiKey::InitProducerId, 0, 5),
    serve(ApiKey::OffsetForLeaderEpoch, 2, 4),
    serve(ApiKey::AddPartitionsToTxn, 0, 5),
    serve(ApiKey::AddOffsetsToTxn, 0, 4),
    serve(ApiKey::EndTxn, 0, 5),
    serve(ApiKey::WriteTxnMarkers, 1, 1),
    serve(ApiKey::TxnOffsetCommit, 0, 5),
    serve(ApiKey::DescribeAcls, 1, 3),
    serve(ApiKey::CreateAcls, 1, 3),
    serve(ApiKey::DeleteAcls, 1, 3),
    serve(ApiKey::DescribeConfigs, 1, 4),
    serve(ApiKey::AlterConfigs, 0, 2),
    serve(ApiKey::AlterReplicaLogDirs, 1, 2),
    serve(ApiKey::DescribeLogDirs, 1, 4),
    serve(ApiKey::SaslAuthenticate, 0, 2),
    serve(ApiKey::CreatePartitions, 0, 3),
    serve(ApiKey::CreateDelegationToken, 1, 3),
    serve(ApiKey::RenewDelegationToken, 1, 2),
    serve(ApiKey::ExpireDelegationToken, 1, 2),
    serve(ApiKey::DescribeDelegationToken, 1, 3),
    serve(ApiKey::DeleteGroups, 0, 2),
    serve(ApiKey::ElectLeaders, 0, 2),
    serve(ApiKey::IncrementalAlterConfigs, 0, 1),
    serve(ApiKey::AlterPartitionReassignments, 0, 1),
    serve(ApiKey::ListPartitionReassignments, 0, 0),
    serve(ApiKey::OffsetDelete, 0, 0),
    serve(ApiKey::DescribeClientQuotas, 0, 1),
    serve(ApiKey::AlterClientQuotas, 0, 1),
    serve(ApiKey::DescribeUserScramCredentials, 0, 0),
    serve(ApiKey::AlterUserScramCredentials, 0, 0),
    serve(ApiKey::DescribeQuorum, 0, 2),
    serve(ApiKey::UpdateFeatures, 0, 2),
    serve(ApiKey::DescribeCluster, 0, 2),
    serve(ApiKey::DescribeProducers, 0, 0),
    serve(ApiKey::UnregisterBroker, 0, 0),
    serve(ApiKey::DescribeTransactions, 0, 0),
    serve(ApiKey::ListTransactions, 0, 2),
    serve(ApiKey::ListConfigResources, 0, 1),
    serve(ApiKey::DescribeTopicPartitions, 0, 0),
];

/// Tags a Metadata request that asks for histories as well, and in the answer each partition's: lines of JSON, of the replica
/// that the asked broker holds. A tag of a message that everybody knows, since a key of our own may be Kafka's tomorrow; who
/// does not know the tag passes over it.
pub const HISTORY_TAG: i32 = 71_000;

/// Whether Kafka keeps that topic for itself.
fn is_internal(topic: &str) -> bool {
    [OFFSETS_TOPIC, "__transaction_state"].contains(&topic)
}

/// The most a client is told in words.
const MESSAGE_BYTES_MAX: usize = 1000;

/// The versions of `api` that are served, if it is.
pub fn supported(api: ApiKey) -> Option<Supported> {
    SUPPORTED.iter().find(|supported| supported.api == api).copied()
}

/// A message for a client, cut to a length that every version's encoding takes: it may quote what the client sent.
fn told(message: impl std::fmt::Display) -> StrBytes {
    let mut text = message.to_string();
    if text.len() > MESSAGE_BYTES_MAX {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
        text.push('…');
    }
    StrBytes::from_string(text)
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

/// Serves the Kafka APIs of one broker.
#[derive(Debug)]
pub(crate) struct Api {
    /// The broker.
    pub(crate) broker: Arc<BrokerShared>,
}

impl Service for Api {
    fn call(self: &Arc<Self>, connection: &Arc<ConnectionInfo>, frame: Bytes) -> Call {
        // A producer's batches keep their order through the owner of the partition, so several may be on their way.
        let eager = frame.first_chunk() == Some(&(ApiKey::Produce as i16).to_be_bytes());
        let (broker, connection) = (self.broker.clone(), connection.clone());
        Call { answer: Box::pin(answer(broker, connection, frame)), eager }
    }
}

async fn answer(
    broker: Arc<BrokerShared>,
    connection: Arc<ConnectionInfo>,
    frame: Bytes,
) -> Result<Option<Response>, Close> {
    let asked = match Asked::read(frame)? {
        Incoming::Served(asked) => asked,
        Incoming::Answered(response) => return Ok(Some(response)),
    };
    let Asked { api, version, correlation, client_id, body } = asked;
    let client = client_id.as_deref().unwrap_or_default();
    tracing::trace!(connection = connection.id, peer = %connection.peer, client, ?api, version, correlation, "request");
    let context =
        RequestContext { broker, version, client_id: client_id.clone().unwrap_or_default(), peer: connection.peer };
    let reply = Reply { api, version, correlation };
    // Decodes by the type that the handler takes.
    macro_rules! decoded {
        () => {
            decode(api, version, body)?
        };
    }
    let response = match api {
        ApiKey::Produce => match produce::handle(&context, decoded!()).await? {
            Some(response) => reply.write(&response),
            None => return Ok(None),
        },
        ApiKey::Fetch => reply.write_fetch(&fetch::handle(&context, decoded!()).await?),
        ApiKey::ListOffsets => reply.write(&list_offsets::handle(&context, decoded!()).await?),
        ApiKey::OffsetForLeaderEpoch => reply.write(&offset_for_leader_epoch::handle(&context, decoded!()).await?),
        ApiKey::ApiVersions => reply.write(&api_versions::handle(&context, &decoded!())),
        ApiKey::Metadata => reply.write(&metadata::handle(&context, &decoded!()).await),
        ApiKey::DescribeCluster => reply.write(&describe_cluster::handle(&context, &decoded!())),
        ApiKey::DescribeConfigs => reply.write(&describe_configs::handle(&context, decoded!()).await),
        ApiKey::AlterConfigs => reply.write(&alter_configs::replace(&context, decoded!()).await),
        ApiKey::IncrementalAlterConfigs => reply.write(&alter_configs::incremental(&context, decoded!()).await),
        ApiKey::DeleteRecords => reply.write(&delete_records::handle(&context, decoded!()).await),
        ApiKey::DescribeLogDirs => reply.write(&describe_log_dirs::handle(&context, decoded!()).await),
        ApiKey::DescribeTopicPartitions => reply.write(&describe_topic_partitions::handle(&context, &decoded!())),
        ApiKey::ListConfigResources => reply.write(&config_resources::handle(&context, decoded!()).await),
        ApiKey::FindCoordinator => reply.write(&find_coordinator::handle(&context, decoded!()).await),
        ApiKey::JoinGroup => reply.write(&groups::join_group::handle(&context, decoded!()).await),
        ApiKey::SyncGroup => reply.write(&groups::sync_group::handle(&context, decoded!()).await),
        ApiKey::Heartbeat => reply.write(&groups::heartbeat::handle(&context, decoded!()).await),
        ApiKey::LeaveGroup => reply.write(&groups::leave_group::handle(&context, decoded!()).await),
        ApiKey::OffsetCommit => reply.write(&groups::offset_commit::handle(&context, decoded!()).await),
        ApiKey::OffsetFetch => reply.write(&groups::offset_fetch::handle(&context, decoded!()).await),
        ApiKey::OffsetDelete => reply.write(&groups::offset_delete::handle(&context, decoded!()).await),
        ApiKey::DescribeGroups => reply.write(&groups::describe_groups::handle(&context, decoded!()).await),
        ApiKey::ListGroups => reply.write(&groups::list_groups::handle(&context, &decoded!()).await),
        ApiKey::DeleteGroups => reply.write(&groups::delete_groups::handle(&context, decoded!()).await),
        ApiKey::CreateTopics => reply.write(&create_topics::handle(&context, decoded!()).await?),
        ApiKey::CreatePartitions => reply.write(&create_partitions::handle(&context, decoded!()).await?),
        ApiKey::ElectLeaders => reply.write(&elect_leaders::handle(&context, decoded!()).await),
        ApiKey::AlterPartitionReassignments => reply.write(&partition_reassignments::alter(&context, decoded!()).await),
        ApiKey::ListPartitionReassignments => reply.write(&partition_reassignments::list(&context, decoded!())),
        ApiKey::DeleteTopics => reply.write(&delete_topics::handle(&context, decoded!()).await?),
        ApiKey::InitProducerId => reply.write(&init_producer_id::handle(&context, decoded!()).await),
        ApiKey::SaslHandshake => {
            let _: messages::SaslHandshakeRequest = decoded!();
            reply.write(&security::sasl_handshake())
        }
        ApiKey::DescribeAcls => {
            let _: messages::DescribeAclsRequest = decoded!();
            reply.write(&security::describe_acls())
        }
        ApiKey::CreateAcls => reply.write(&security::create_acls(&decoded!())),
        ApiKey::DeleteAcls => reply.write(&security::delete_acls(&decoded!())),
        ApiKey::AlterReplicaLogDirs => reply.write(&controller_role::alter_log_dirs(&context, decoded!())),
        ApiKey::SaslAuthenticate => {
            let _: messages::SaslAuthenticateRequest = decoded!();
            reply.write(&security::sasl_authenticate())
        }
        ApiKey::CreateDelegationToken => {
            let _: messages::CreateDelegationTokenRequest = decoded!();
            reply.write(&security::create_token(context.version))
        }
        ApiKey::RenewDelegationToken => {
            let _: messages::RenewDelegationTokenRequest = decoded!();
            reply.write(&security::renew_token())
        }
        ApiKey::ExpireDelegationToken => {
            let _: messages::ExpireDelegationTokenRequest = decoded!();
            reply.write(&security::expire_token())
        }
        ApiKey::DescribeDelegationToken => {
            let _: messages::DescribeDelegationTokenRequest = decoded!();
            reply.write(&security::describe_tokens())
        }
        ApiKey::DescribeClientQuotas => reply.write(&client_quotas::describe(&context, decoded!()).await),
        ApiKey::AlterClientQuotas => reply.write(&client_quotas::alter(&context, decoded!()).await),
        ApiKey::DescribeUserScramCredentials => reply.write(&scram::describe(&context, decoded!()).await),
        ApiKey::AlterUserScramCredentials => reply.write(&scram::alter(&context, decoded!()).await),
        ApiKey::DescribeQuorum => reply.write(&controller_role::describe_quorum(&context, decoded!()).await),
        ApiKey::UpdateFeatures => reply.write(&controller_role::update_features(context.version, &decoded!())),
        ApiKey::UnregisterBroker => reply.write(&controller_role::unregister_broker(&context, &decoded!())),
        ApiKey::AddPartitionsToTxn => {
            reply.write(&transactions::add_partitions_to_txn::handle(&context, decoded!()).await)
        }
        ApiKey::AddOffsetsToTxn => reply.write(&transactions::add_offsets_to_txn::handle(&context, decoded!()).await),
        ApiKey::EndTxn => reply.write(&transactions::end_txn::handle(&context, decoded!()).await),
        ApiKey::WriteTxnMarkers => reply.write(&transactions::write_txn_markers::handle(&context, decoded!()).await),
        ApiKey::TxnOffsetCommit => reply.write(&transactions::txn_offset_commit::handle(&context, decoded!()).await),
        ApiKey::DescribeProducers => reply.write(&transactions::describe_producers::handle(&context, decoded!()).await),
        ApiKey::DescribeTransactions => {
            reply.write(&transactions::describe_transactions::handle(&context, decoded!()).await)
        }
        ApiKey::ListTransactions => reply.write(&transactions::list_transactions::handle(&context, &decoded!()).await),
        _ => Err(Close::because(format!("{api:?} is not served"))),
    };
    response.map(Some)
}

/// A request whose header was read and whose body was checked.
struct Asked {
    api: ApiKey,
    version: i16,
    correlation: i32,
    client_id: Option<StrBytes>,
    body: Bytes,
}

/// What became of a frame.
enum Incoming {
    Served(Asked),
    /// Requests of versions that are not served and that have an answer all the same.
    Answered(Response),
}

impl Asked {
    fn read(mut frame: Bytes) -> Result<Incoming, Close> {
        let cut_off = |_| Close::because("a request shorter than its header");
        let key = frame.try_get_i16().map_err(cut_off)?;
        let version = frame.try_get_i16().map_err(cut_off)?;
        let correlation = frame.try_get_i32().map_err(cut_off)?;
        let served = ApiKey::try_from(key).ok().and_then(supported);
        let Some(served) = served else { return Err(Close::because(format!("unknown API {key}"))) };
        let api = served.api;
        let reply = Reply { api, version, correlation };
        let in_range = (served.min..=served.max).contains(&version);
        if !in_range && api == ApiKey::ApiVersions {
            // Nothing can be said of what follows a header of an unknown version, and nothing needs to be.
            let reply = Reply { version: 0, ..reply };
            return Ok(Incoming::Answered(reply.write(&api_versions::unsupported_version())?));
        }
        if !in_range && version < served.advertised_min || version > served.max {
            return Err(Close::because(format!("{api:?} version {version} is not supported")));
        }
        let client_id = read_client_id(&mut frame)?;
        if api.request_header_version(version) >= 2 {
            let tags = wire::tag_section_bytes(&frame).map_err(|error| malformed(api, version, error))?;
            frame.advance(tags);
        }
        let length = wire::check_request(api, version, &frame).map_err(|error| malformed(api, version, error))?;
        frame.truncate(length);
        if !in_range {
            let body = produce_refused::answer(frame, version)?;
            return Ok(Incoming::Answered(reply.write_pieces(vec![reply.head(&body)])));
        }
        Ok(Incoming::Served(Self { api, version, correlation, client_id, body: frame }))
    }
}

/// The client id is a string with a length of two bytes in every header version. It is copied: it outlives the frame
/// while an answer is waited for, and should not keep the frame's records in memory.
fn read_client_id(frame: &mut Bytes) -> Result<Option<StrBytes>, Close> {
    let length = frame.try_get_i16().map_err(|_| Close::because("a request without a client id"))?;
    if length == -1 {
        return Ok(None);
    }
    let bytes = usize::try_from(length).ok().filter(|&bytes| bytes <= frame.len());
    let bytes = bytes.ok_or_else(|| Close::because(format!("a client id of {length} bytes")))?;
    let id = Bytes::copy_from_slice(&frame.split_to(bytes));
    StrBytes::from_utf8(id).map(Some).map_err(|_| Close::because("a client id that is no text"))
}

/// Decodes a body that was checked; it shares the frame's bytes.
fn decode<R: Decodable>(api: ApiKey, version: i16, mut body: Bytes) -> Result<R, Close> {
    R::decode(&mut body, version).map_err(|error| malformed(api, version, error))
}

fn malformed(api: ApiKey, version: i16, problem: impl std::fmt::Display) -> Close {
    Close::because(format!("a malformed {api:?} request of version {version}: {problem}"))
}

/// Where an answer goes.
#[derive(Clone, Copy)]
struct Reply {
    api: ApiKey,
    version: i16,
    correlation: i32,
}

impl Reply {
    /// A response that is encoded into one piece.
    fn write<T: Encodable + HeaderVersion>(self, response: &T) -> Result<Response, Close> {
        let mut bytes = self.head(&[]);
        response.encode(&mut bytes, self.version).map_err(|error| {
            // A handler that sets a field the version does not have: our mistake, not the client's.
            tracing::error!(api = ?self.api, version = self.version, %error, "a response cannot be encoded");
            Close::because(format!("the response cannot be encoded: {error}"))
        })?;
        Ok(self.write_pieces(vec![bytes]))
    }

    /// A Fetch response, whose records go out as they were read.
    fn write_fetch(self, response: &FetchResponse) -> Result<Response, Close> {
        Ok(self.write_pieces(wire::encode_fetch_response(self.head(&[]), response, self.version)))
    }

    /// The response header and the beginning of a body.
    fn head(self, body: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::with_capacity(body.len() + 256);
        bytes.put_i32(self.correlation);
        if self.api.response_header_version(self.version) >= 1 {
            bytes.put_u8(0);
        }
        bytes.put_slice(body);
        bytes
    }

    /// Puts the length before the pieces, as a piece of its own: the others may share their memory with records.
    fn write_pieces(self, pieces: Vec<impl Into<Bytes>>) -> Response {
        let mut all = vec![Bytes::new()];
        all.extend(pieces.into_iter().map(Into::into));
        let length: usize = all.iter().map(Bytes::len).sum();
        // Responses are bounded by `fetch.max.bytes` and by what requests ask for, all of them far below 2 GiB.
        all[0] = Bytes::copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        Response { pieces: all }
    }
}

#[cfg(test)]
mod frame_tests;
#[cfg(test)]
mod socket_tests;
#[cfg(test)]
pub(crate) mod tests;
