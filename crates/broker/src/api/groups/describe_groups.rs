//! DescribeGroups (15).

use std::collections::BTreeSet;

use highwater_groups::{Answer, GroupDescription, Refused, Request};
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};
use kafka_protocol::protocol::StrBytes;

use super::super::{RequestContext, operations};
use super::string;

/// From this version on a group that is not there is an error; before, it is told as dead.
const GROUP_NOT_FOUND_SINCE: i16 = 6;

pub(crate) async fn handle(context: &RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse {
    let mut response = DescribeGroupsResponse::default();
    // Each is told of once, however often it is named: what is told may be very much longer than a name.
    let mut seen = BTreeSet::new();
    for group in request.groups.into_iter().filter(|group| seen.insert(group.clone())) {
        let described = match super::ask(context, Request::Describe(group.to_string())).await {
            Answer::Described(described) => described,
            _ => Err(Refused::CoordinatorNotAvailable),
        };
        let mut told = answer(group, described, context.version);
        if request.include_authorized_operations && told.error_code == 0 {
            told.authorized_operations = operations::GROUP;
        }
        response.groups.push(told);
    }
    response
}

fn answer(group: GroupId, described: Result<GroupDescription, Refused>, version: i16) -> DescribedGroup {
    let response = DescribedGroup::default().with_group_id(group);
    let described = match described {
        Ok(described) => described,
        Err(Refused::GroupIdNotFound) => {
            let dead = response.with_group_state(StrBytes::from_static_str("Dead"));
            if version < GROUP_NOT_FOUND_SINCE {
                return dead;
            }
            // Kafka's words, which its tools print.
            let message = super::super::told(format_args!("Group {} not found.", dead.group_id.as_str()));
            return dead.with_error_code(Refused::GroupIdNotFound.code()).with_error_message(Some(message));
        }
        Err(why) => return response.with_error_code(why.code()),
    };
    let members = described.members.into_iter().map(|member| {
        let told = DescribedGroupMember::default()
            .with_member_id(string(member.member_id))
            .with_client_id(string(member.client_id))
            .with_client_host(string(member.client_host))
            .with_member_metadata(member.metadata)
            .with_member_assignment(member.assignment);
        if version >= 4 { told.with_group_instance_id(member.group_instance_id.map(string)) } else { told }
    });
    response
        .with_group_state(StrBytes::from_static_str(described.listing.state.name()))
        .with_protocol_type(string(described.listing.protocol_type))
        .with_protocol_data(string(described.protocol))
        .with_members(members.collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use highwater_groups::{GroupListing, GroupState, MemberDescription};

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        let member = MemberDescription {
            member_id: "m".into(),
            group_instance_id: Some("i".into()),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            metadata: Bytes::from_static(b"meta"),
            assignment: Bytes::from_static(b"part"),
        };
        let described = GroupDescription {
            listing: GroupListing { group: "g".into(), protocol_type: "consumer".into(), state: GroupState::Stable },
            protocol: "range".into(),
            members: vec![member],
        };
        for version in 0..=6 {
            let told = answer(name("g").into(), Ok(described.clone()), version);
            assert_eq!((told.group_state.as_str(), told.protocol_data.as_str()), ("Stable", "range"));
            let none = answer(name("n").into(), Err(Refused::GroupIdNotFound), version);
            assert_eq!((none.group_state.as_str(), none.error_code), ("Dead", if version >= 6 { 69 } else { 0 }));
            assert_eq!(none.error_message.as_deref(), (version >= 6).then_some("Group n not found."));
            let elsewhere = answer(name("e").into(), Err(Refused::NotCoordinator), version);
            assert_eq!(elsewhere.error_code, 16);
            let response = DescribeGroupsResponse::default().with_groups(vec![told, none, elsewhere]);
            encodes(ApiKey::DescribeGroups, &response, version);
        }
    }
}
