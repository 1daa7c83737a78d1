//! Samples of messages about who may do what and how much, and about controllers.

use bytes::Bytes;
use kafka_protocol::messages::*;
use kafka_protocol::protocol::StrBytes;

use super::{id, text, topic, unknown};

fn maybe(null: bool) -> Option<StrBytes> {
    (!null).then(|| text("words"))
}

fn bytes() -> Bytes {
    Bytes::from_static(b"bytes")
}

pub(super) fn sasl_handshake(_: i16, _: bool) -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(text("PLAIN"))
}

pub(super) fn sasl_handshake_answer(_: i16, _: bool) -> SaslHandshakeResponse {
    SaslHandshakeResponse::default().with_mechanisms(vec![text("PLAIN"), text("SCRAM-SHA-256")])
}

pub(super) fn sasl_authenticate(_: i16, _: bool) -> SaslAuthenticateRequest {
    SaslAuthenticateRequest::default().with_auth_bytes(bytes())
}

pub(super) fn sasl_authenticate_answer(version: i16, null: bool) -> SaslAuthenticateResponse {
    let mut response = SaslAuthenticateResponse::default().with_error_message(maybe(null)).with_auth_bytes(bytes());
    if version >= 1 {
        response.session_lifetime_ms = 9;
    }
    response
}

pub(super) fn describe_acls(version: i16, null: bool) -> DescribeAclsRequest {
    DescribeAclsRequest::default()
        .with_resource_name_filter(maybe(null))
        .with_principal_filter(maybe(null))
        .with_host_filter(maybe(null))
        .with_unknown_tagged_fields(unknown(version >= 2))
}

pub(super) fn describe_acls_answer(_: i16, null: bool) -> DescribeAclsResponse {
    use describe_acls_response::*;
    let acl = AclDescription::default().with_principal(text("User:a")).with_host(text("*"));
    let one = DescribeAclsResource::default().with_resource_name(text("books")).with_acls(vec![acl.clone(), acl]);
    DescribeAclsResponse::default().with_error_message(maybe(null)).with_resources(vec![one.clone(), one])
}

pub(super) fn create_acls(_: i16, _: bool) -> CreateAclsRequest {
    let one = create_acls_request::AclCreation::default().with_resource_name(text("books")).with_host(text("*"));
    CreateAclsRequest::default().with_creations(vec![one.clone(), one])
}

pub(super) fn create_acls_answer(_: i16, null: bool) -> CreateAclsResponse {
    let one = create_acls_response::AclCreationResult::default().with_error_message(maybe(null));
    CreateAclsResponse::default().with_results(vec![one.clone(), one])
}

pub(super) fn delete_acls(_: i16, null: bool) -> DeleteAclsRequest {
    let one = delete_acls_request::DeleteAclsFilter::default()
        .with_resource_name_filter(maybe(null))
        .with_principal_filter(maybe(null))
        .with_host_filter(maybe(null));
    DeleteAclsRequest::default().with_filters(vec![one.clone(), one])
}

pub(super) fn delete_acls_answer(_: i16, null: bool) -> DeleteAclsResponse {
    use delete_acls_response::*;
    let acl = DeleteAclsMatchingAcl::default().with_error_message(maybe(null)).with_resource_name(text("books"));
    let one =
        DeleteAclsFilterResult::default().with_error_message(maybe(null)).with_matching_acls(vec![acl.clone(), acl]);
    DeleteAclsResponse::default().with_filter_results(vec![one.clone(), one])
}

pub(super) fn alter_replica_log_dirs(_: i16, _: bool) -> AlterReplicaLogDirsRequest {
    use alter_replica_log_dirs_request::*;
    let of = AlterReplicaLogDirTopic::default().with_name(topic("books")).with_partitions(vec![1, 2]);
    let one = AlterReplicaLogDir::default().with_path(text("/data")).with_topics(vec![of.clone(), of]);
    AlterReplicaLogDirsRequest::default().with_dirs(vec![one.clone(), one])
}

pub(super) fn alter_replica_log_dirs_answer(_: i16, _: bool) -> AlterReplicaLogDirsResponse {
    use alter_replica_log_dirs_response::*;
    let one = AlterReplicaLogDirTopicResult::default()
        .with_topic_name(topic("books"))
        .with_partitions(vec![AlterReplicaLogDirPartitionResult::default(); 2]);
    AlterReplicaLogDirsResponse::default().with_results(vec![one.clone(), one])
}

pub(super) fn create_delegation_token(version: i16, null: bool) -> CreateDelegationTokenRequest {
    let renewer = create_delegation_token_request::CreatableRenewers::default().with_principal_type(text("User"));
    let mut request = CreateDelegationTokenRequest::default().with_renewers(vec![renewer.clone(), renewer]);
    if version >= 3 {
        (request.owner_principal_type, request.owner_principal_name) = (maybe(null), maybe(null));
    }
    request
}

pub(super) fn create_delegation_token_answer(version: i16, _: bool) -> CreateDelegationTokenResponse {
    let mut response = CreateDelegationTokenResponse::default().with_token_id(text("id")).with_hmac(bytes());
    if version >= 3 {
        response.token_requester_principal_type = text("User");
    }
    response
}

pub(super) fn renew_delegation_token(_: i16, _: bool) -> RenewDelegationTokenRequest {
    RenewDelegationTokenRequest::default().with_hmac(bytes())
}

pub(super) fn renew_delegation_token_answer(_: i16, _: bool) -> RenewDelegationTokenResponse {
    RenewDelegationTokenResponse::default().with_expiry_timestamp_ms(9)
}

pub(super) fn expire_delegation_token(_: i16, _: bool) -> ExpireDelegationTokenRequest {
    ExpireDelegationTokenRequest::default().with_hmac(bytes())
}

pub(super) fn expire_delegation_token_answer(_: i16, _: bool) -> ExpireDelegationTokenResponse {
    ExpireDelegationTokenResponse::default().with_expiry_timestamp_ms(9)
}

pub(super) fn describe_delegation_token(_: i16, null: bool) -> DescribeDelegationTokenRequest {
    let one = describe_delegation_token_request::DescribeDelegationTokenOwner::default();
    DescribeDelegationTokenRequest::default().with_owners((!null).then(|| vec![one.clone(), one]))
}

pub(super) fn describe_delegation_token_answer(version: i16, _: bool) -> DescribeDelegationTokenResponse {
    use describe_delegation_token_response::*;
    let renewer = DescribedDelegationTokenRenewer::default().with_principal_type(text("User"));
    let mut one = DescribedDelegationToken::default()
        .with_token_id(text("id"))
        .with_hmac(bytes())
        .with_renewers(vec![renewer.clone(), renewer]);
    if version >= 3 {
        one.token_requester_principal_name = text("a");
    }
    DescribeDelegationTokenResponse::default().with_tokens(vec![one.clone(), one])
}

pub(super) fn describe_client_quotas(version: i16, null: bool) -> DescribeClientQuotasRequest {
    let one = describe_client_quotas_request::ComponentData::default()
        .with_entity_type(text("user"))
        .with_match(maybe(null))
        .with_unknown_tagged_fields(unknown(version >= 1));
    DescribeClientQuotasRequest::default().with_components(vec![one.clone(), one])
}

pub(super) fn describe_client_quotas_answer(_: i16, null: bool) -> DescribeClientQuotasResponse {
    use describe_client_quotas_response::*;
    let part = EntityData::default().with_entity_type(text("user")).with_entity_name(maybe(null));
    let rate = ValueData::default().with_key(text("producer_byte_rate")).with_value(1.5);
    let one = EntryData::default().with_entity(vec![part.clone(), part]).with_values(vec![rate.clone(), rate]);
    DescribeClientQuotasResponse::default()
        .with_error_message(maybe(null))
        .with_entries((!null).then(|| vec![one.clone(), one]))
}

pub(super) fn alter_client_quotas(_: i16, null: bool) -> AlterClientQuotasRequest {
    use alter_client_quotas_request::*;
    let part = EntityData::default().with_entity_type(text("user")).with_entity_name(maybe(null));
    let op = OpData::default().with_key(text("producer_byte_rate")).with_value(1.5);
    let one = EntryData::default().with_entity(vec![part.clone(), part]).with_ops(vec![op.clone(), op]);
    AlterClientQuotasRequest::default().with_entries(vec![one.clone(), one])
}

pub(super) fn alter_client_quotas_answer(_: i16, null: bool) -> AlterClientQuotasResponse {
    use alter_client_quotas_response::*;
    let part = EntityData::default().with_entity_type(text("user")).with_entity_name(maybe(null));
    let one = EntryData::default().with_error_message(maybe(null)).with_entity(vec![part.clone(), part]);
    AlterClientQuotasResponse::default().with_entries(vec![one.clone(), one])
}

pub(super) fn describe_user_scram_credentials(_: i16, null: bool) -> DescribeUserScramCredentialsRequest {
    let one = describe_user_scram_credentials_request::UserName::default()
        .with_name(text("u"))
        .with_unknown_tagged_fields(unknown(true));
    DescribeUserScramCredentialsRequest::default().with_users((!null).then(|| vec![one.clone(), one]))
}

pub(super) fn describe_user_scram_credentials_answer(_: i16, null: bool) -> DescribeUserScramCredentialsResponse {
    use describe_user_scram_credentials_response::*;
    let one = DescribeUserScramCredentialsResult::default()
        .with_user(text("u"))
        .with_error_message(maybe(null))
        .with_credential_infos(vec![CredentialInfo::default().with_iterations(4096); 2]);
    DescribeUserScramCredentialsResponse::default().with_error_message(maybe(null)).with_results(vec![one.clone(), one])
}

pub(super) fn alter_user_scram_credentials(_: i16, _: bool) -> AlterUserScramCredentialsRequest {
    use alter_user_scram_credentials_request::*;
    let gone = ScramCredentialDeletion::default().with_name(text("u")).with_mechanism(1);
    let new = ScramCredentialUpsertion::default().with_name(text("u")).with_salt(bytes()).with_salted_password(bytes());
    AlterUserScramCredentialsRequest::default()
        .with_deletions(vec![gone.clone(), gone])
        .with_upsertions(vec![new.clone(), new])
}

pub(super) fn alter_user_scram_credentials_answer(_: i16, null: bool) -> AlterUserScramCredentialsResponse {
    let one = alter_user_scram_credentials_response::AlterUserScramCredentialsResult::default()
        .with_user(text("u"))
        .with_error_message(maybe(null));
    AlterUserScramCredentialsResponse::default().with_results(vec![one.clone(), one])
}

pub(super) fn describe_quorum(_: i16, _: bool) -> DescribeQuorumRequest {
    use describe_quorum_request::*;
    let one = TopicData::default()
        .with_topic_name(topic("books"))
        .with_partitions(vec![PartitionData::default().with_partition_index(1); 2])
        .with_unknown_tagged_fields(unknown(true));
    DescribeQuorumRequest::default().with_topics(vec![one.clone(), one])
}

pub(super) fn describe_quorum_answer(version: i16, null: bool) -> DescribeQuorumResponse {
    use describe_quorum_response::*;
    let mut state = ReplicaState::default().with_replica_id(BrokerId(1)).with_log_end_offset(9);
    if version >= 1 {
        state.last_fetch_timestamp = 8;
    }
    if version >= 2 {
        state.replica_directory_id = id();
    }
    let mut partition = PartitionData::default()
        .with_current_voters(vec![state.clone(), state.clone()])
        .with_observers(vec![state.clone(), state]);
    let mut response = DescribeQuorumResponse::default();
    if version >= 2 {
        partition.error_message = maybe(null);
        response.error_message = maybe(null);
        let listener = Listener::default().with_name(text("PLAINTEXT")).with_host(text("h")).with_port(9092);
        response.nodes = vec![Node::default().with_listeners(vec![listener.clone(), listener]); 2];
    }
    let one = TopicData::default().with_topic_name(topic("books")).with_partitions(vec![partition.clone(), partition]);
    response.with_topics(vec![one.clone(), one])
}

pub(super) fn update_features(version: i16, _: bool) -> UpdateFeaturesRequest {
    let mut one = update_features_request::FeatureUpdateKey::default()
        .with_feature(text("f"))
        .with_unknown_tagged_fields(unknown(true));
    if version == 0 {
        one.allow_downgrade = true;
    }
    UpdateFeaturesRequest::default().with_feature_updates(vec![one.clone(), one])
}

pub(super) fn update_features_answer(version: i16, null: bool) -> UpdateFeaturesResponse {
    let one = update_features_response::UpdatableFeatureResult::default()
        .with_feature(text("f"))
        .with_error_message(maybe(null));
    let results = if version <= 1 { vec![one.clone(), one] } else { Vec::new() };
    UpdateFeaturesResponse::default().with_error_message(maybe(null)).with_results(results)
}

pub(super) fn unregister_broker(_: i16, _: bool) -> UnregisterBrokerRequest {
    UnregisterBrokerRequest::default().with_broker_id(BrokerId(3)).with_unknown_tagged_fields(unknown(true))
}

pub(super) fn unregister_broker_answer(_: i16, null: bool) -> UnregisterBrokerResponse {
    UnregisterBrokerResponse::default().with_error_message(maybe(null))
}
