//! Messages of any API, by its number: what a test does not know the type of.

use std::fmt::Debug;

use anyhow::{Context, ensure};
use bytes::{Buf, Bytes};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::Decodable;

macro_rules! messages {
    ($($api:ident $request:ident $response:ident)*) => {
        /// The body of a request as Rust's debug output, which names every field.
        ///
        /// # Errors
        /// It does not decode, or not to its end.
        pub fn request_text(api: i16, version: i16, body: Bytes) -> anyhow::Result<String> {
            match known(api)? {
                $(ApiKey::$api => whole::<$request>(version, body),)*
                other => anyhow::bail!("there is no text of {other:?}"),
            }
        }

        /// The body of an answer likewise.
        ///
        /// # Errors
        /// It does not decode, or not to its end.
        pub fn answer_text(api: i16, version: i16, body: Bytes) -> anyhow::Result<String> {
            match known(api)? {
                $(ApiKey::$api => whole::<$response>(version, body),)*
                other => anyhow::bail!("there is no text of {other:?}"),
            }
        }
    };
}

messages! {
    Produce ProduceRequest ProduceResponse
    Fetch FetchRequest FetchResponse
    ListOffsets ListOffsetsRequest ListOffsetsResponse
    Metadata MetadataRequest MetadataResponse
    OffsetCommit OffsetCommitRequest OffsetCommitResponse
    OffsetFetch OffsetFetchRequest OffsetFetchResponse
    FindCoordinator FindCoordinatorRequest FindCoordinatorResponse
    JoinGroup JoinGroupRequest JoinGroupResponse
    Heartbeat HeartbeatRequest HeartbeatResponse
    LeaveGroup LeaveGroupRequest LeaveGroupResponse
    SyncGroup SyncGroupRequest SyncGroupResponse
    DescribeGroups DescribeGroupsRequest DescribeGroupsResponse
    ListGroups ListGroupsRequest ListGroupsResponse
    SaslHandshake SaslHandshakeRequest SaslHandshakeResponse
    ApiVersions ApiVersionsRequest ApiVersionsResponse
    CreateTopics CreateTopicsRequest CreateTopicsResponse
    DeleteTopics DeleteTopicsRequest DeleteTopicsResponse
    DeleteRecords DeleteRecordsRequest DeleteRecordsResponse
    InitProducerId InitProducerIdRequest InitProducerIdResponse
    OffsetForLeaderEpoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse
    AddPartitionsToTxn AddPartitionsToTxnRequest AddPartitionsToTxnResponse
    AddOffsetsToTxn AddOffsetsToTxnRequest AddOffsetsToTxnResponse
    EndTxn EndTxnRequest EndTxnResponse
    WriteTxnMarkers WriteTxnMarkersRequest WriteTxnMarkersResponse
    TxnOffsetCommit TxnOffsetCommitRequest TxnOffsetCommitResponse
    DescribeAcls DescribeAclsRequest DescribeAclsResponse
    CreateAcls CreateAclsRequest CreateAclsResponse
    DeleteAcls DeleteAclsRequest DeleteAclsResponse
    DescribeConfigs DescribeConfigsRequest DescribeConfigsResponse
    AlterConfigs AlterConfigsRequest AlterConfigsResponse
    AlterReplicaLogDirs AlterReplicaLogDirsRequest AlterReplicaLogDirsResponse
    DescribeLogDirs DescribeLogDirsRequest DescribeLogDirsResponse
    SaslAuthenticate SaslAuthenticateRequest SaslAuthenticateResponse
    CreatePartitions CreatePartitionsRequest CreatePartitionsResponse
    CreateDelegationToken CreateDelegationTokenRequest CreateDelegationTokenResponse
    RenewDelegationToken RenewDelegationTokenRequest RenewDelegationTokenResponse
    ExpireDelegationToken ExpireDelegationTokenRequest ExpireDelegationTokenResponse
    DescribeDelegationToken DescribeDelegationTokenRequest DescribeDelegationTokenResponse
    DeleteGroups DeleteGroupsRequest DeleteGroupsResponse
    ElectLeaders ElectLeadersRequest ElectLeadersResponse
    IncrementalAlterConfigs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse
    AlterPartitionReassignments AlterPartitionReassignmentsRequest AlterPartitionReassignmentsResponse
    ListPartitionReassignments ListPartitionReassignmentsRequest ListPartitionReassignmentsResponse
    OffsetDelete OffsetDeleteRequest OffsetDeleteResponse
    DescribeClientQuotas DescribeClientQuotasRequest DescribeClientQuotasResponse
    AlterClientQuotas AlterClientQuotasRequest AlterClientQuotasResponse
    DescribeUserScramCredentials DescribeUserScramCredentialsRequest DescribeUserScramCredentialsResponse
    AlterUserScramCredentials AlterUserScramCredentialsRequest AlterUserScramCredentialsResponse
    DescribeQuorum DescribeQuorumRequest DescribeQuorumResponse
    UpdateFeatures UpdateFeaturesRequest UpdateFeaturesResponse
    DescribeCluster DescribeClusterRequest DescribeClusterResponse
    DescribeProducers DescribeProducersRequest DescribeProducersResponse
    UnregisterBroker UnregisterBrokerRequest UnregisterBrokerResponse
    DescribeTransactions DescribeTransactionsRequest DescribeTransactionsResponse
    ListTransactions ListTransactionsRequest ListTransactionsResponse
    GetTelemetrySubscriptions GetTelemetrySubscriptionsRequest GetTelemetrySubscriptionsResponse
    PushTelemetry PushTelemetryRequest PushTelemetryResponse
    ListConfigResources ListConfigResourcesRequest ListConfigResourcesResponse
    DescribeTopicPartitions DescribeTopicPartitionsRequest DescribeTopicPartitionsResponse
}

/// Takes the header off an answer and returns what is behind it, if it answers this request.
///
/// # Errors
/// The header is cut off, or of another request.
pub fn answer_body(api: i16, version: i16, correlation_id: i32, mut frame: Bytes) -> anyhow::Result<Bytes> {
    let found = frame.try_get_i32().context("an answer without a header")?;
    ensure!(found == correlation_id, "an answer to request {found}, not to {correlation_id}");
    if known(api)?.response_header_version(version) >= 1 {
        // Nobody sends tags here.
        ensure!(frame.try_get_u8() == Ok(0), "tags in the header of an answer");
    }
    Ok(frame)
}

fn known(api: i16) -> anyhow::Result<ApiKey> {
    ApiKey::try_from(api).map_err(|()| anyhow::anyhow!("there is no API {api}"))
}

fn whole<M: Decodable + Debug>(version: i16, mut body: Bytes) -> anyhow::Result<String> {
    let message = M::decode(&mut body, version)?;
    ensure!(body.is_empty(), "{} bytes behind the message", body.len());
    Ok(format!("{message:?}"))
}
