//! The walk against the protocol crate's own encoder and decoder, in every API and version this broker speaks.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::*;
use kafka_protocol::protocol::{Decodable, Encodable, Message, StrBytes};
use uuid::Uuid;

use super::*;

mod admin;
mod security;
mod transactions;

use transactions::*;

/// A message, as bytes and as what re-reads them.
pub(crate) struct Sample {
    pub(crate) api: ApiKey,
    pub(crate) version: i16,
    pub(crate) is_request: bool,
    pub(crate) bytes: Bytes,
    pub(crate) decode: fn(Bytes, i16) -> Result<(), String>,
}

impl Sample {
    /// The length of the message in the bytes, if there is one.
    fn check(&self, bytes: &[u8]) -> Result<usize, Malformed> {
        if self.is_request {
            check_request(self.api, self.version, bytes)
        } else {
            check_response(self.api, self.version, bytes).map(|()| bytes.len())
        }
    }

    fn name(&self) -> String {
        let what = if self.is_request { "request" } else { "response" };
        format!("{:?} {what} version {}", self.api, self.version)
    }
}

/// Decodes a whole message, and encodes it again: a message that decodes is one the crate stands by.
fn decode<M: Decodable>(mut bytes: Bytes, version: i16) -> Result<(), String> {
    M::decode(&mut bytes, version).map_err(|error| error.to_string())?;
    if bytes.is_empty() { Ok(()) } else { Err(format!("{} bytes left over", bytes.len())) }
}

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn topic(name: &'static str) -> TopicName {
    TopicName(text(name))
}

fn id() -> Uuid {
    Uuid::from_bytes([7; 16])
}

/// Every message in every version, with arrays of two or more elements and every nullable field both ways.
pub(crate) fn samples() -> Vec<Sample> {
    let mut samples = Vec::new();
    macro_rules! add {
        ($api:ident, $is_request:literal, $message:ty, $make:expr) => {
            // The protocol crate has InitProducerId 6 (two-phase commit), which Kafka 4.1 does not offer.
            let last = if ApiKey::$api == ApiKey::InitProducerId { 5 } else { <$message>::VERSIONS.max };
            for version in <$message>::VERSIONS.min..=last {
                let make: fn(i16, bool) -> $message = $make;
                for null in [false, true] {
                    let mut bytes = BytesMut::new();
                    make(version, null).encode(&mut bytes, version).expect(stringify!($message));
                    samples.push(Sample {
                        api: ApiKey::$api,
                        version,
                        is_request: $is_request,
                        bytes: bytes.freeze(),
                        decode: decode::<$message>,
                    });
                }
                let mut empty = BytesMut::new();
                if <$message>::default().encode(&mut empty, version).is_ok() {
                    samples.push(Sample {
                        api: ApiKey::$api,
                        version,
                        is_request: $is_request,
                        bytes: empty.freeze(),
                        decode: decode::<$message>,
                    });
                }
            }
        };
    }
    add!(Produce, true, ProduceRequest, produce);
    add!(Produce, false, ProduceResponse, produce_answer);
    add!(Fetch, true, FetchRequest, fetch);
    add!(Fetch, false, FetchResponse, fetch_answer);
    add!(ListOffsets, true, ListOffsetsRequest, list_offsets);
    add!(ListOffsets, false, ListOffsetsResponse, list_offsets_answer);
    add!(Metadata, true, MetadataRequest, metadata);
    add!(Metadata, false, MetadataResponse, metadata_answer);
    add!(FindCoordinator, true, FindCoordinatorRequest, find_coordinator);
    add!(FindCoordinator, false, FindCoordinatorResponse, find_coordinator_answer);
    add!(ApiVersions, true, ApiVersionsRequest, api_versions);
    add!(ApiVersions, false, ApiVersionsResponse, api_versions_answer);
    add!(CreateTopics, true, CreateTopicsRequest, create_topics);
    add!(CreateTopics, false, CreateTopicsResponse, create_topics_answer);
    add!(DeleteTopics, true, DeleteTopicsRequest, delete_topics);
    add!(DeleteTopics, false, DeleteTopicsResponse, delete_topics_answer);
    add!(InitProducerId, true, InitProducerIdRequest, init_producer_id);
    add!(InitProducerId, false, InitProducerIdResponse, |_, _| InitProducerIdResponse::default());
    add!(OffsetForLeaderEpoch, true, OffsetForLeaderEpochRequest, offset_for_leader_epoch);
    add!(OffsetForLeaderEpoch, false, OffsetForLeaderEpochResponse, offset_for_leader_epoch_answer);
    add!(AddPartitionsToTxn, true, AddPartitionsToTxnRequest, add_partitions_to_txn);
    add!(AddPartitionsToTxn, false, AddPartitionsToTxnResponse, add_partitions_to_txn_answer);
    add!(AddOffsetsToTxn, true, AddOffsetsToTxnRequest, add_offsets_to_txn);
    add!(AddOffsetsToTxn, false, AddOffsetsToTxnResponse, |_, _| AddOffsetsToTxnResponse::default());
    add!(EndTxn, true, EndTxnRequest, end_txn);
    add!(EndTxn, false, EndTxnResponse, end_txn_answer);
    add!(WriteTxnMarkers, true, WriteTxnMarkersRequest, write_txn_markers);
    add!(WriteTxnMarkers, false, WriteTxnMarkersResponse, write_txn_markers_answer);
    add!(TxnOffsetCommit, true, TxnOffsetCommitRequest, txn_offset_commit);
    add!(TxnOffsetCommit, false, TxnOffsetCommitResponse, txn_offset_commit_answer);
    add!(DescribeProducers, true, DescribeProducersRequest, describe_producers);
    add!(DescribeProducers, false, DescribeProducersResponse, describe_producers_answer);
    add!(DescribeTransactions, true, DescribeTransactionsRequest, describe_transactions);
    add!(DescribeTransactions, false, DescribeTransactionsResponse, describe_transactions_answer);
    add!(ListTransactions, true, ListTransactionsRequest, list_transactions);
    add!(ListTransactions, false, ListTransactionsResponse, list_transactions_answer);
    add!(DescribeConfigs, true, DescribeConfigsRequest, describe_configs);
    add!(DescribeConfigs, false, DescribeConfigsResponse, describe_configs_answer);
    add!(AlterConfigs, true, AlterConfigsRequest, admin::alter_configs);
    add!(AlterConfigs, false, AlterConfigsResponse, admin::alter_configs_answer);
    add!(IncrementalAlterConfigs, true, IncrementalAlterConfigsRequest, admin::incremental_alter_configs);
    add!(IncrementalAlterConfigs, false, IncrementalAlterConfigsResponse, admin::incremental_alter_configs_answer);
    add!(ListConfigResources, true, ListConfigResourcesRequest, admin::list_config_resources);
    add!(ListConfigResources, false, ListConfigResourcesResponse, admin::list_config_resources_answer);
    add!(DeleteRecords, true, DeleteRecordsRequest, admin::delete_records);
    add!(DeleteRecords, false, DeleteRecordsResponse, admin::delete_records_answer);
    add!(DescribeLogDirs, true, DescribeLogDirsRequest, admin::describe_log_dirs);
    add!(DescribeLogDirs, false, DescribeLogDirsResponse, admin::describe_log_dirs_answer);
    add!(DescribeTopicPartitions, true, DescribeTopicPartitionsRequest, admin::describe_topic_partitions);
    add!(DescribeTopicPartitions, false, DescribeTopicPartitionsResponse, admin::describe_topic_partitions_answer);
    add!(CreatePartitions, true, CreatePartitionsRequest, create_partitions);
    add!(CreatePartitions, false, CreatePartitionsResponse, create_partitions_answer);
    add!(ElectLeaders, true, ElectLeadersRequest, elect_leaders);
    add!(ElectLeaders, false, ElectLeadersResponse, elect_leaders_answer);
    add!(AlterPartitionReassignments, true, AlterPartitionReassignmentsRequest, alter_reassignments);
    add!(AlterPartitionReassignments, false, AlterPartitionReassignmentsResponse, alter_reassignments_answer);
    add!(ListPartitionReassignments, true, ListPartitionReassignmentsRequest, list_reassignments);
    add!(ListPartitionReassignments, false, ListPartitionReassignmentsResponse, list_reassignments_answer);
    add!(SaslHandshake, true, SaslHandshakeRequest, security::sasl_handshake);
    add!(SaslHandshake, false, SaslHandshakeResponse, security::sasl_handshake_answer);
    add!(DescribeAcls, true, DescribeAclsRequest, security::describe_acls);
    add!(DescribeAcls, false, DescribeAclsResponse, security::describe_acls_answer);
    add!(CreateAcls, true, CreateAclsRequest, security::create_acls);
    add!(CreateAcls, false, CreateAclsResponse, security::create_acls_answer);
    add!(DeleteAcls, true, DeleteAclsRequest, security::delete_acls);
    add!(DeleteAcls, false, DeleteAclsResponse, security::delete_acls_answer);
    add!(AlterReplicaLogDirs, true, AlterReplicaLogDirsRequest, security::alter_replica_log_dirs);
    add!(AlterReplicaLogDirs, false, AlterReplicaLogDirsResponse, security::alter_replica_log_dirs_answer);
    add!(SaslAuthenticate, true, SaslAuthenticateRequest, security::sasl_authenticate);
    add!(SaslAuthenticate, false, SaslAuthenticateResponse, security::sasl_authenticate_answer);
    add!(CreateDelegationToken, true, CreateDelegationTokenRequest, security::create_delegation_token);
    add!(CreateDelegationToken, false, CreateDelegationTokenResponse, security::create_delegation_token_answer);
    add!(RenewDelegationToken, true, RenewDelegationTokenRequest, security::renew_delegation_token);
    add!(RenewDelegationToken, false, RenewDelegationTokenResponse, security::renew_delegation_token_answer);
    add!(ExpireDelegationToken, true, ExpireDelegationTokenRequest, security::expire_delegation_token);
    add!(ExpireDelegationToken, false, ExpireDelegationTokenResponse, security::expire_delegation_token_answer);
    add!(DescribeDelegationToken, true, DescribeDelegationTokenRequest, security::describe_delegation_token);
    add!(DescribeDelegationToken, false, DescribeDelegationTokenResponse, security::describe_delegation_token_answer);
    add!(DescribeClientQuotas, true, DescribeClientQuotasRequest, security::describe_client_quotas);
    add!(DescribeClientQuotas, false, DescribeClientQuotasResponse, security::describe_client_quotas_answer);
    add!(AlterClientQuotas, true, AlterClientQuotasRequest, security::alter_client_quotas);
    add!(AlterClientQuotas, false, AlterClientQuotasResponse, security::alter_client_quotas_answer);
    add!(
        DescribeUserScramCredentials,
        true,
        DescribeUserScramCredentialsRequest,
        security::describe_user_scram_credentials
    );
    add!(
        DescribeUserScramCredentials,
        false,
        DescribeUserScramCredentialsResponse,
        security::describe_user_scram_credentials_answer
    );
    add!(AlterUserScramCredentials, true, AlterUserScramCredentialsRequest, security::alter_user_scram_credentials);
    add!(
        AlterUserScramCredentials,
        false,
        AlterUserScramCredentialsResponse,
        security::alter_user_scram_credentials_answer
    );
    add!(DescribeQuorum, true, DescribeQuorumRequest, security::describe_quorum);
    add!(DescribeQuorum, false, DescribeQuorumResponse, security::describe_quorum_answer);
    add!(UpdateFeatures, true, UpdateFeaturesRequest, security::update_features);
    add!(UpdateFeatures, false, UpdateFeaturesResponse, security::update_features_answer);
    add!(UnregisterBroker, true, UnregisterBrokerRequest, security::unregister_broker);
    add!(UnregisterBroker, false, UnregisterBrokerResponse, security::unregister_broker_answer);
    add!(DescribeCluster, true, DescribeClusterRequest, describe_cluster);
    add!(DescribeCluster, false, DescribeClusterResponse, describe_cluster_answer);
    samples
}

/// An unknown tag, where the version has room for one.
fn unknown(flexible: bool) -> std::collections::BTreeMap<i32, Bytes> {
    if flexible { [(77, Bytes::from_static(b"tag")), (9000, Bytes::new())].into() } else { Default::default() }
}

fn produce(version: i16, null: bool) -> ProduceRequest {
    use produce_request::*;
    let partition = |index, records: Option<&'static [u8]>| {
        PartitionProduceData::default().with_index(index).with_records(records.map(Bytes::from_static))
    };
    let mut data = TopicProduceData::default()
        .with_partition_data(vec![partition(0, Some(b"records")), partition(1, None), partition(2, Some(b""))])
        .with_unknown_tagged_fields(unknown(version >= 9));
    if version >= 13 {
        data.topic_id = id();
    } else {
        data.name = topic("books");
    }
    let transaction = (!null).then(|| TransactionalId(text("t")));
    ProduceRequest::default().with_transactional_id(transaction).with_acks(-1).with_topic_data(vec![data.clone(), data])
}

fn produce_answer(version: i16, null: bool) -> ProduceResponse {
    use produce_response::*;
    let mut partition = PartitionProduceResponse::default().with_index(1).with_base_offset(5);
    if version >= 8 && !null {
        partition.error_message = Some(text("wrong"));
        let error = BatchIndexAndErrorMessage::default().with_batch_index(3);
        partition.record_errors = vec![error.clone().with_batch_index_error_message(Some(text("bad"))), error];
    }
    if version >= 10 {
        partition.current_leader = LeaderIdAndEpoch::default().with_leader_id(BrokerId(2)).with_leader_epoch(4);
    }
    let mut data = TopicProduceResponse::default().with_partition_responses(vec![partition.clone(), partition]);
    if version >= 13 {
        data.topic_id = id();
    } else {
        data.name = topic("books");
    }
    let mut response = ProduceResponse::default().with_responses(vec![data.clone(), data]);
    if version >= 10 {
        let rack = (!null).then(|| text("r"));
        response.node_endpoints = vec![NodeEndpoint::default().with_host(text("h")).with_rack(rack); 2];
    }
    response
}

fn fetch(version: i16, null: bool) -> FetchRequest {
    use fetch_request::*;
    let mut partition = FetchPartition::default()
        .with_partition(1)
        .with_fetch_offset(10)
        .with_unknown_tagged_fields(unknown(version >= 12));
    if version >= 9 {
        partition.current_leader_epoch = 3;
    }
    if version >= 12 {
        partition.last_fetched_epoch = 2;
    }
    if version >= 17 {
        partition.replica_directory_id = id();
    }
    if version >= 18 {
        partition.high_watermark = 7;
    }
    let mut data = FetchTopic::default().with_partitions(vec![partition.clone(), partition]);
    let mut forgotten = ForgottenTopic::default().with_partitions(vec![1, 2, 3]);
    if version >= 13 {
        (data.topic_id, forgotten.topic_id) = (id(), id());
    } else {
        (data.topic, forgotten.topic) = (topic("books"), topic("gone"));
    }
    let mut request = FetchRequest::default().with_topics(vec![data.clone(), data]);
    if version >= 7 {
        request.forgotten_topics_data = vec![forgotten.clone(), forgotten];
    }
    if version >= 11 {
        request.rack_id = text("rack");
    }
    if version >= 12 && !null {
        request.cluster_id = Some(text("cluster"));
    }
    if version >= 15 {
        request.replica_state = ReplicaState::default().with_replica_id(BrokerId(2)).with_replica_epoch(9);
    } else {
        request.replica_id = BrokerId(2);
    }
    request
}

fn fetch_answer(version: i16, null: bool) -> FetchResponse {
    use kafka_protocol::messages::fetch_response::*;
    let mut partition = PartitionData::default()
        .with_records((!null).then(|| Bytes::from_static(b"records")))
        .with_aborted_transactions(
            (!null).then(|| vec![AbortedTransaction::default().with_producer_id(ProducerId(1)); 2]),
        );
    if version >= 12 {
        partition.diverging_epoch = EpochEndOffset::default().with_epoch(1).with_end_offset(2);
        partition.current_leader = LeaderIdAndEpoch::default().with_leader_epoch(5);
        partition.snapshot_id = SnapshotId::default().with_epoch(5);
    }
    let mut data = FetchableTopicResponse::default().with_partitions(vec![partition.clone(), partition]);
    if version >= 13 {
        data.topic_id = id();
    } else {
        data.topic = topic("books");
    }
    let mut response = FetchResponse::default().with_responses(vec![data.clone(), data]);
    if version >= 16 {
        response.node_endpoints = vec![NodeEndpoint::default().with_host(text("h")); 2];
    }
    response
}

fn list_offsets(version: i16, _: bool) -> ListOffsetsRequest {
    use list_offsets_request::*;
    let mut partition = ListOffsetsPartition::default().with_timestamp(-2);
    if version >= 4 {
        partition.current_leader_epoch = 2;
    }
    let data = ListOffsetsTopic::default()
        .with_name(topic("books"))
        .with_partitions(vec![partition.clone(), partition])
        .with_unknown_tagged_fields(unknown(version >= 6));
    ListOffsetsRequest::default().with_replica_id(BrokerId(-1)).with_topics(vec![data.clone(), data])
}

fn list_offsets_answer(_: i16, _: bool) -> ListOffsetsResponse {
    use list_offsets_response::*;
    let data = ListOffsetsTopicResponse::default()
        .with_name(topic("books"))
        .with_partitions(vec![ListOffsetsPartitionResponse::default(); 3]);
    ListOffsetsResponse::default().with_topics(vec![data.clone(), data])
}

fn metadata(version: i16, null: bool) -> MetadataRequest {
    use metadata_request::*;
    let mut one = MetadataRequestTopic::default().with_name(Some(topic("books")));
    if version >= 10 {
        one.topic_id = id();
        one.name = (!null).then(|| topic("books"));
    }
    let topics = if null && (1..10).contains(&version) { None } else { Some(vec![one.clone(), one]) };
    MetadataRequest::default().with_topics(topics)
}

fn metadata_answer(version: i16, null: bool) -> MetadataResponse {
    use metadata_response::*;
    let mut partition = MetadataResponsePartition::default()
        .with_replica_nodes(vec![BrokerId(1), BrokerId(2), BrokerId(3)])
        .with_isr_nodes(vec![BrokerId(1)]);
    let mut one = MetadataResponseTopic::default().with_name(Some(topic("books")));
    if version >= 5 {
        partition.offline_replicas = vec![BrokerId(2), BrokerId(3)];
    }
    if version >= 7 {
        partition.leader_epoch = 4;
    }
    if version >= 10 {
        one.topic_id = id();
    }
    if version >= 12 && null {
        one.name = None;
    }
    one.partitions = vec![partition.clone(), partition];
    let mut broker = MetadataResponseBroker::default().with_host(text("h")).with_port(1);
    if version >= 1 && !null {
        broker.rack = Some(text("r"));
    }
    let mut response = MetadataResponse::default().with_topics(vec![one.clone(), one]).with_brokers(vec![broker; 2]);
    if version >= 2 && !null {
        response.cluster_id = Some(text("cluster"));
    }
    response
}

fn find_coordinator(version: i16, _: bool) -> FindCoordinatorRequest {
    let mut request = FindCoordinatorRequest::default();
    if version >= 4 {
        request.coordinator_keys = vec![text("a"), text(""), text("c")];
    } else {
        request.key = text("group");
    }
    request
}

fn find_coordinator_answer(version: i16, null: bool) -> FindCoordinatorResponse {
    let mut response = FindCoordinatorResponse::default();
    if version >= 4 {
        let one = find_coordinator_response::Coordinator::default().with_key(text("k"));
        response.coordinators = vec![one.clone().with_error_message((!null).then(|| text("m"))), one];
    } else {
        response.host = text("h");
        response.error_message = (version >= 1 && !null).then(|| text("m"));
    }
    response
}

fn api_versions(version: i16, _: bool) -> ApiVersionsRequest {
    let mut request = ApiVersionsRequest::default();
    if version >= 3 {
        request.client_software_name = text("highwater");
        request.client_software_version = text("1");
        request.unknown_tagged_fields = unknown(true);
    }
    request
}

fn api_versions_answer(version: i16, _: bool) -> ApiVersionsResponse {
    use api_versions_response::*;
    let mut response = ApiVersionsResponse::default().with_api_keys(vec![ApiVersion::default(); 5]);
    if version >= 3 {
        response.supported_features = vec![SupportedFeatureKey::default().with_name(text("f")); 2];
        response.finalized_features = vec![FinalizedFeatureKey::default().with_name(text("f")); 2];
        response.finalized_features_epoch = 4;
        response.zk_migration_ready = true;
    }
    response
}

fn create_topics(version: i16, null: bool) -> CreateTopicsRequest {
    use create_topics_request::*;
    let assignment = CreatableReplicaAssignment::default().with_broker_ids(vec![BrokerId(1), BrokerId(2)]);
    let config = CreatableTopicConfig::default().with_name(text("retention.ms")).with_value((!null).then(|| text("1")));
    let one = CreatableTopic::default()
        .with_name(topic("books"))
        .with_assignments(vec![assignment.clone(), assignment])
        .with_configs(vec![config.clone(), config])
        .with_unknown_tagged_fields(unknown(version >= 5));
    CreateTopicsRequest::default().with_topics(vec![one.clone(), one])
}

fn create_topics_answer(version: i16, null: bool) -> CreateTopicsResponse {
    use create_topics_response::*;
    let mut one =
        CreatableTopicResult::default().with_name(topic("books")).with_error_message((!null).then(|| text("m")));
    if version >= 5 {
        let config = CreatableTopicConfigs::default().with_name(text("n")).with_value((!null).then(|| text("v")));
        one.configs = (!null).then(|| vec![config.clone(), config]);
        one.topic_config_error_code = 29;
    }
    if version >= 7 {
        one.topic_id = id();
    }
    CreateTopicsResponse::default().with_topics(vec![one.clone(), one])
}

fn delete_topics(version: i16, null: bool) -> DeleteTopicsRequest {
    use delete_topics_request::*;
    let mut request = DeleteTopicsRequest::default();
    if version >= 6 {
        let one = DeleteTopicState::default().with_name((!null).then(|| topic("books"))).with_topic_id(id());
        request.topics = vec![one.clone(), one];
    } else {
        request.topic_names = vec![topic("books"), topic("")];
    }
    request
}

fn delete_topics_answer(version: i16, null: bool) -> DeleteTopicsResponse {
    use delete_topics_response::*;
    let mut one = DeletableTopicResult::default().with_name(Some(topic("books")));
    if version >= 5 && !null {
        one.error_message = Some(text("m"));
    }
    if version >= 6 {
        one.topic_id = id();
        one.name = (!null).then(|| topic("books"));
    }
    DeleteTopicsResponse::default().with_responses(vec![one.clone(), one])
}

fn init_producer_id(version: i16, null: bool) -> InitProducerIdRequest {
    let mut request = InitProducerIdRequest::default();
    request.transactional_id = (!null).then(|| TransactionalId(text("t")));
    if version >= 3 {
        request.producer_id = ProducerId(4);
        request.producer_epoch = 1;
    }
    request
}

fn offset_for_leader_epoch(version: i16, _: bool) -> OffsetForLeaderEpochRequest {
    use offset_for_leader_epoch_request::*;
    let data = OffsetForLeaderTopic::default()
        .with_topic(topic("books"))
        .with_partitions(vec![OffsetForLeaderPartition::default(); 2])
        .with_unknown_tagged_fields(unknown(version >= 4));
    OffsetForLeaderEpochRequest::default().with_topics(vec![data.clone(), data])
}

fn offset_for_leader_epoch_answer(_: i16, _: bool) -> OffsetForLeaderEpochResponse {
    use offset_for_leader_epoch_response::*;
    let data = OffsetForLeaderTopicResult::default()
        .with_topic(topic("books"))
        .with_partitions(vec![EpochEndOffset::default(); 2]);
    OffsetForLeaderEpochResponse::default().with_topics(vec![data.clone(), data])
}

fn describe_configs(_: i16, null: bool) -> DescribeConfigsRequest {
    use describe_configs_request::*;
    let one = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text("books"))
        .with_configuration_keys((!null).then(|| vec![text("a"), text("b")]));
    DescribeConfigsRequest::default().with_resources(vec![one.clone(), one])
}

fn describe_configs_answer(version: i16, null: bool) -> DescribeConfigsResponse {
    use describe_configs_response::*;
    let value = || (!null).then(|| text("v"));
    let synonym = DescribeConfigsSynonym::default().with_name(text("s")).with_value(value());
    let mut config = DescribeConfigsResourceResult::default()
        .with_name(text("n"))
        .with_value(value())
        .with_synonyms(vec![synonym.clone(), synonym]);
    if version >= 3 {
        config.config_type = 5;
        config.documentation = value();
    }
    let one = DescribeConfigsResult::default()
        .with_error_message(value())
        .with_resource_name(text("books"))
        .with_configs(vec![config.clone(), config]);
    DescribeConfigsResponse::default().with_results(vec![one.clone(), one])
}

fn create_partitions(_: i16, null: bool) -> CreatePartitionsRequest {
    use create_partitions_request::*;
    let assignment = CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(1), BrokerId(2)]);
    let one = CreatePartitionsTopic::default()
        .with_name(topic("books"))
        .with_assignments((!null).then(|| vec![assignment.clone(), assignment.clone()]));
    CreatePartitionsRequest::default().with_topics(vec![one.clone(), one])
}

fn create_partitions_answer(_: i16, null: bool) -> CreatePartitionsResponse {
    use create_partitions_response::*;
    let one =
        CreatePartitionsTopicResult::default().with_name(topic("books")).with_error_message((!null).then(|| text("m")));
    CreatePartitionsResponse::default().with_results(vec![one.clone(), one])
}

fn elect_leaders(version: i16, null: bool) -> ElectLeadersRequest {
    use elect_leaders_request::*;
    let one = TopicPartitions::default().with_topic(topic("books")).with_partitions(vec![1, 2]);
    let mut request = ElectLeadersRequest::default().with_topic_partitions((!null).then(|| vec![one.clone(), one]));
    if version >= 1 {
        request.election_type = 1;
    }
    request
}

fn elect_leaders_answer(_: i16, null: bool) -> ElectLeadersResponse {
    use elect_leaders_response::*;
    let one = PartitionResult::default().with_error_message((!null).then(|| text("m")));
    let of_topic = ReplicaElectionResult::default().with_topic(topic("books"));
    let of_topic = of_topic.with_partition_result(vec![one.clone(), one]);
    ElectLeadersResponse::default().with_replica_election_results(vec![of_topic.clone(), of_topic])
}

fn alter_reassignments(version: i16, null: bool) -> AlterPartitionReassignmentsRequest {
    use alter_partition_reassignments_request::*;
    let one = ReassignablePartition::default().with_replicas((!null).then(|| vec![BrokerId(1), BrokerId(2)]));
    let of_topic = ReassignableTopic::default().with_name(topic("books")).with_partitions(vec![one.clone(), one]);
    let mut request = AlterPartitionReassignmentsRequest::default()
        .with_topics(vec![of_topic.clone(), of_topic])
        .with_unknown_tagged_fields(unknown(true));
    if version >= 1 {
        request.allow_replication_factor_change = false;
    }
    request
}

fn alter_reassignments_answer(version: i16, null: bool) -> AlterPartitionReassignmentsResponse {
    use alter_partition_reassignments_response::*;
    let one = ReassignablePartitionResponse::default().with_error_message((!null).then(|| text("m")));
    let of_topic = ReassignableTopicResponse::default().with_name(topic("books"));
    let of_topic = of_topic.with_partitions(vec![one.clone(), one]);
    let mut response = AlterPartitionReassignmentsResponse::default()
        .with_error_message((!null).then(|| text("m")))
        .with_responses(vec![of_topic.clone(), of_topic]);
    if version >= 1 {
        response.allow_replication_factor_change = false;
    }
    response
}

fn list_reassignments(_: i16, null: bool) -> ListPartitionReassignmentsRequest {
    use list_partition_reassignments_request::*;
    let one = ListPartitionReassignmentsTopics::default().with_name(topic("books")).with_partition_indexes(vec![1, 2]);
    ListPartitionReassignmentsRequest::default().with_topics((!null).then(|| vec![one.clone(), one]))
}

fn list_reassignments_answer(_: i16, null: bool) -> ListPartitionReassignmentsResponse {
    use list_partition_reassignments_response::*;
    let one = OngoingPartitionReassignment::default()
        .with_replicas(vec![BrokerId(1), BrokerId(2)])
        .with_adding_replicas(vec![BrokerId(1)])
        .with_removing_replicas(vec![BrokerId(2)]);
    let of_topic = OngoingTopicReassignment::default().with_name(topic("books"));
    let of_topic = of_topic.with_partitions(vec![one.clone(), one]);
    ListPartitionReassignmentsResponse::default()
        .with_error_message((!null).then(|| text("m")))
        .with_topics(vec![of_topic.clone(), of_topic])
}

fn describe_cluster(version: i16, _: bool) -> DescribeClusterRequest {
    let mut request = DescribeClusterRequest::default().with_unknown_tagged_fields(unknown(true));
    if version >= 2 {
        request.include_fenced_brokers = true;
    }
    request
}

fn describe_cluster_answer(_: i16, null: bool) -> DescribeClusterResponse {
    use describe_cluster_response::*;
    let broker = DescribeClusterBroker::default().with_host(text("h")).with_rack((!null).then(|| text("r")));
    DescribeClusterResponse::default()
        .with_cluster_id(text("c"))
        .with_error_message((!null).then(|| text("m")))
        .with_brokers(vec![broker.clone(), broker])
}

#[test]
fn every_valid_message_passes() {
    let samples = samples();
    assert!(samples.len() > 300, "{}", samples.len());
    for sample in samples {
        assert_eq!(sample.check(&sample.bytes), Ok(sample.bytes.len()), "{}", sample.name());
        (sample.decode)(sample.bytes.clone(), sample.version)
            .unwrap_or_else(|error| panic!("{}: {error}", sample.name()));
    }
}

#[test]
fn every_cut_is_refused_and_every_surplus_of_a_response() {
    for sample in samples() {
        for end in 0..sample.bytes.len() {
            assert!(sample.check(&sample.bytes[..end]).is_err(), "{} cut at {end}", sample.name());
        }
        let mut longer = sample.bytes.to_vec();
        longer.push(0);
        let surplus = sample.check(&longer).map_err(|error| error.what);
        let expected = if sample.is_request { Ok(sample.bytes.len()) } else { Err("bytes left over") };
        assert_eq!(surplus, expected, "{}", sample.name());
    }
}

/// Puts hostile numbers at every position of every message. What the walk lets through must be safe to decode: had one
/// count slipped through, the decoder would ask for gigabytes here and abort, or fail to consume the whole message.
#[test]
fn what_passes_with_hostile_numbers_decodes() {
    let hostile: [&[u8]; 8] = [
        &i32::MAX.to_be_bytes(),
        &i32::MIN.to_be_bytes(),
        &[0xff, 0xff, 0xff, 0xfe],
        &[0x7f, 0xff],
        &[0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0xff, 0xff, 0xff, 0xff, 0x7f],
        &[0x00],
        &[0x81, 0x01],
    ];
    let (mut passed, mut refused) = (0, 0);
    for sample in samples() {
        for at in 0..sample.bytes.len() {
            for number in hostile {
                let mut bytes = sample.bytes.to_vec();
                for (to, from) in bytes[at..].iter_mut().zip(number) {
                    *to = *from;
                }
                let Ok(length) = sample.check(&bytes) else {
                    refused += 1;
                    continue;
                };
                passed += 1;
                bytes.truncate(length);
                if let Err(error) = (sample.decode)(Bytes::from(bytes), sample.version) {
                    // What the walk leaves to the decoder: whether text is UTF-8, and tags of later versions.
                    let left = error.contains("utf-8") || error.contains("is not valid for version");
                    assert!(left, "{} at {at}, {number:x?}: {error}", sample.name());
                }
            }
        }
    }
    assert!(passed > 10_000 && refused > 10_000, "{passed} passed, {refused} refused");
}

#[test]
fn a_message_that_would_swell_is_refused() {
    // Version 4 of Metadata: a million empty names, two bytes each on the wire and 80 in memory.
    let mut body = 1_000_000i32.to_be_bytes().to_vec();
    body.resize(4 + 2_000_000 + 1, 0);
    let refused = check_request(ApiKey::Metadata, 4, &body).unwrap_err();
    assert_eq!(refused.what, "more elements than one message may have");
    // Unknown tags: three bytes on the wire, an entry of a map in memory.
    let mut body = vec![1, 1];
    body.extend([0xc0, 0x84, 0x3d]);
    for tag in 0..1_000_000u32 {
        let mut rest = tag;
        while rest >= 0x80 {
            body.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        body.extend([rest as u8, 0]);
    }
    let refused = check_request(ApiKey::ApiVersions, 3, &body).unwrap_err();
    assert_eq!(refused.what, "more elements than one message may have");
}

#[test]
fn no_form_of_a_text_says_more_than_two_bytes_can() {
    // FindCoordinator 3, a key in the compact form: the length is one more.
    let request = |length: usize| {
        let more = u32::try_from(length + 1).unwrap();
        let mut body = vec![more as u8 | 0x80, (more >> 7) as u8 | 0x80, (more >> 14) as u8];
        body.resize(3 + length, b'x');
        body.extend([0, 0]);
        check_request(ApiKey::FindCoordinator, 3, &body)
    };
    assert_eq!(request(0x7fff), Ok(3 + 0x7fff + 2));
    assert_eq!(request(0x8000).unwrap_err().what, "a text longer than any may be");
}

#[test]
fn tags_must_rise_and_be_of_their_size() {
    let request = |tags: &[u8]| {
        let mut body = vec![1, 1];
        body.extend(tags);
        check_request(ApiKey::ApiVersions, 3, &body).map_err(|error| error.what)
    };
    assert_eq!(request(&[2, 5, 0, 6, 1, 9]), Ok(8));
    assert_eq!(request(&[2, 5, 0, 5, 0]), Err("tags out of order"));
    assert_eq!(request(&[1, 5, 2, 0]), Err("a field longer than the message"));
    // Version 3 of the ApiVersions response knows tag 3, a boolean.
    let response = |tag: &[u8]| {
        let mut body = vec![0, 0, 1, 0, 0, 0, 0, 1];
        body.extend(tag);
        check_response(ApiKey::ApiVersions, 3, &body).map_err(|error| error.what)
    };
    assert_eq!(response(&[3, 1, 1]), Ok(()));
    assert_eq!(response(&[3, 2, 1, 1]), Err("a tagged field of another size than it says"));
}

#[test]
fn old_produce_requests_can_be_read() {
    // Versions 0 to 2, which the protocol crate does not know: acks, timeout, one topic "a" with partition 7.
    let body = [0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 2, 1, 2];
    for version in 0..3 {
        assert_eq!(check_request(ApiKey::Produce, version, &body), Ok(body.len()));
    }
    assert!(check_request(ApiKey::Produce, 3, &body).is_err());
}
