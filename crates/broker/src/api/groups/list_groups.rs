//! ListGroups (16): the groups that this broker coordinates.

use std::collections::BTreeSet;

use highwater_groups::{GroupListing, Refused};
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::{ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::StrBytes;

use super::super::RequestContext;
use super::string;
use crate::groups;

/// All groups here are of the protocol that was there first.
const CLASSIC: &str = "classic";

pub(crate) async fn handle(context: &RequestContext, request: &ListGroupsRequest) -> ListGroupsResponse {
    answer(request, groups::list(&context.broker.groups).await, context.version)
}

fn answer(request: &ListGroupsRequest, listed: Result<Vec<GroupListing>, Refused>, version: i16) -> ListGroupsResponse {
    let listed = match listed {
        Ok(listed) => listed,
        Err(why) => return ListGroupsResponse::default().with_error_code(why.code()),
    };
    // Looked up, not searched: a request may name a hundred thousand, and there may be as many groups.
    let states: BTreeSet<String> = request.states_filter.iter().map(|state| state.to_lowercase()).collect();
    let is_wanted = |listing: &GroupListing| states.is_empty() || states.contains(&listing.state.name().to_lowercase());
    let types = &request.types_filter;
    if !types.is_empty() && !types.iter().any(|kind| kind.eq_ignore_ascii_case(CLASSIC)) {
        return ListGroupsResponse::default();
    }
    let groups = listed.into_iter().filter(is_wanted).map(|listing| {
        let told = ListedGroup::default()
            .with_group_id(string(listing.group).into())
            .with_protocol_type(string(listing.protocol_type));
        let told =
            if version >= 4 { told.with_group_state(StrBytes::from_static_str(listing.state.name())) } else { told };
        if version >= 5 { told.with_group_type(StrBytes::from_static_str(CLASSIC)) } else { told }
    });
    ListGroupsResponse::default().with_groups(groups.collect())
}

#[cfg(test)]
mod tests {
    use highwater_groups::GroupState;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::name;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered_and_filters_are_kept_to() {
        let one = |group: &str, state| GroupListing { group: group.into(), protocol_type: "consumer".into(), state };
        let listed = vec![one("a", GroupState::Empty), one("b", GroupState::Stable)];
        for version in 0..=5 {
            let response = answer(&ListGroupsRequest::default(), Ok(listed.clone()), version);
            assert_eq!(response.groups.len(), 2);
            encodes(ApiKey::ListGroups, &response, version);
            let response = answer(&ListGroupsRequest::default(), Err(Refused::CoordinatorLoadInProgress), version);
            assert_eq!(response.error_code, 14);
            encodes(ApiKey::ListGroups, &response, version);
        }
        let table = [
            (&["stable"][..], &[][..], &["b"][..]),
            (&["Stable", "Empty"], &["Classic"], &["a", "b"]),
            (&["Dead"], &[], &[]),
            (&["stable", "STABLE", "no state"], &[], &["b"]),
            (&[], &["consumer"], &[]),
        ];
        for (states, types, groups) in table {
            let names = |names: &[&str]| names.iter().map(|text| name(text)).collect::<Vec<_>>();
            let request =
                ListGroupsRequest::default().with_states_filter(names(states)).with_types_filter(names(types));
            let response = answer(&request, Ok(listed.clone()), 5);
            let found: Vec<_> = response.groups.iter().map(|group| group.group_id.to_string()).collect();
            assert_eq!(found, groups, "{states:?} {types:?}");
        }
    }
}
