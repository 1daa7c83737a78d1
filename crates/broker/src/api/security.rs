//! What is asked of a broker without authorizer, SASL and delegation tokens: answered as Kafka answers that has them off, so that
//! tools say so and clients go on.

use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_response::DeleteAclsFilterResult;
use kafka_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, CreateDelegationTokenResponse, DeleteAclsRequest, DeleteAclsResponse,
    DescribeAclsResponse, DescribeDelegationTokenResponse, ExpireDelegationTokenResponse, RenewDelegationTokenResponse,
    SaslAuthenticateResponse, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::ErrorCode;

const DISABLED: i16 = ErrorCode::SecurityDisabled as i16;
const NO_TOKENS: i16 = ErrorCode::DelegationTokenRequestNotAllowed as i16;

fn no_authorizer() -> Option<StrBytes> {
    Some(StrBytes::from_static_str("No Authorizer is configured."))
}

/// DescribeAcls (29).
pub(crate) fn describe_acls() -> DescribeAclsResponse {
    let message = StrBytes::from_static_str("No Authorizer is configured on the broker");
    DescribeAclsResponse::default().with_error_code(DISABLED).with_error_message(Some(message))
}

/// CreateAcls (30).
pub(crate) fn create_acls(request: &CreateAclsRequest) -> CreateAclsResponse {
    let refused = AclCreationResult::default().with_error_code(DISABLED).with_error_message(no_authorizer());
    CreateAclsResponse::default().with_results(vec![refused; request.creations.len()])
}

/// DeleteAcls (31).
pub(crate) fn delete_acls(request: &DeleteAclsRequest) -> DeleteAclsResponse {
    let refused = DeleteAclsFilterResult::default().with_error_code(DISABLED).with_error_message(no_authorizer());
    DeleteAclsResponse::default().with_filter_results(vec![refused; request.filters.len()])
}

/// Who is on a plain connection.
const USER: StrBytes = StrBytes::from_static_str("User");
const ANONYMOUS: StrBytes = StrBytes::from_static_str("ANONYMOUS");

/// From this version on who asks for a token is told beside whom it is for.
const REQUESTER_SINCE: i16 = 3;

/// CreateDelegationToken (38): nobody is who they say on a plain connection.
pub(crate) fn create_token(version: i16) -> CreateDelegationTokenResponse {
    let mut response = CreateDelegationTokenResponse::default()
        .with_error_code(NO_TOKENS)
        .with_principal_type(USER)
        .with_principal_name(ANONYMOUS)
        .with_issue_timestamp_ms(-1)
        .with_expiry_timestamp_ms(-1)
        .with_max_timestamp_ms(-1);
    if version >= REQUESTER_SINCE {
        response.token_requester_principal_type = USER;
        response.token_requester_principal_name = ANONYMOUS;
    }
    response
}

/// RenewDelegationToken (39).
pub(crate) fn renew_token() -> RenewDelegationTokenResponse {
    RenewDelegationTokenResponse::default().with_error_code(NO_TOKENS).with_expiry_timestamp_ms(-1)
}

/// ExpireDelegationToken (40).
pub(crate) fn expire_token() -> ExpireDelegationTokenResponse {
    ExpireDelegationTokenResponse::default().with_error_code(NO_TOKENS).with_expiry_timestamp_ms(-1)
}

/// DescribeDelegationToken (41).
pub(crate) fn describe_tokens() -> DescribeDelegationTokenResponse {
    DescribeDelegationTokenResponse::default().with_error_code(NO_TOKENS)
}

/// SaslHandshake (17) on a plain listener.
pub(crate) fn sasl_handshake() -> SaslHandshakeResponse {
    SaslHandshakeResponse::default().with_error_code(ErrorCode::IllegalSaslState.number())
}

/// SaslAuthenticate (36) on a plain listener.
pub(crate) fn sasl_authenticate() -> SaslAuthenticateResponse {
    let message = "SaslAuthenticate request received after successful authentication";
    SaslAuthenticateResponse::default()
        .with_error_code(ErrorCode::IllegalSaslState.number())
        .with_error_message(Some(StrBytes::from_static_str(message)))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_acls_request::AclCreation;
    use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;

    use super::*;
    use crate::api::tests::encodes;
    use crate::api::{ApiKey, supported};

    #[test]
    fn every_version_says_that_it_is_off() {
        let versions = |api| supported(api).map(|served| served.min..=served.max).unwrap();
        let create = CreateAclsRequest::default().with_creations(vec![AclCreation::default(); 2]);
        let delete = DeleteAclsRequest::default().with_filters(vec![DeleteAclsFilter::default(); 3]);
        for version in versions(ApiKey::DescribeAcls) {
            encodes(ApiKey::DescribeAcls, &describe_acls(), version);
            let (created, deleted) = (create_acls(&create), delete_acls(&delete));
            encodes(ApiKey::CreateAcls, &created, version);
            encodes(ApiKey::DeleteAcls, &deleted, version);
            assert_eq!(created.results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [54; 2]);
            assert_eq!(deleted.filter_results.iter().map(|one| one.error_code).collect::<Vec<_>>(), [54; 3]);
        }
        assert_eq!(describe_acls().error_code, 54);
        for version in versions(ApiKey::CreateDelegationToken) {
            encodes(ApiKey::CreateDelegationToken, &create_token(version), version);
            encodes(ApiKey::DescribeDelegationToken, &describe_tokens(), version);
        }
        for version in versions(ApiKey::RenewDelegationToken) {
            encodes(ApiKey::RenewDelegationToken, &renew_token(), version);
            encodes(ApiKey::ExpireDelegationToken, &expire_token(), version);
        }
        assert_eq!((create_token(3).error_code, describe_tokens().error_code), (64, 64));
        assert_eq!((renew_token().error_code, expire_token().error_code), (64, 64));
        let created = create_token(3);
        let times = [created.issue_timestamp_ms, created.expiry_timestamp_ms, created.max_timestamp_ms];
        assert_eq!(times, [-1; 3]);
        assert_eq!((&*created.principal_name, &*created.token_requester_principal_name), ("ANONYMOUS", "ANONYMOUS"));
        assert_eq!((renew_token().expiry_timestamp_ms, expire_token().expiry_timestamp_ms), (-1, -1));
        for version in versions(ApiKey::SaslHandshake) {
            encodes(ApiKey::SaslHandshake, &sasl_handshake(), version);
        }
        for version in versions(ApiKey::SaslAuthenticate) {
            encodes(ApiKey::SaslAuthenticate, &sasl_authenticate(), version);
        }
        assert_eq!((sasl_handshake().error_code, sasl_authenticate().error_code), (34, 34));
    }
}
