//! DeleteGroups (42).

use std::collections::BTreeSet;

use highwater_groups::{Answer, Refused, Request};
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse};

use super::super::RequestContext;
use super::code;

pub(crate) async fn handle(context: &RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse {
    let mut response = DeleteGroupsResponse::default();
    let mut seen = BTreeSet::new();
    for group in request.groups_names.into_iter().filter(|group| seen.insert(group.clone())) {
        let deleted = match super::ask(context, Request::DeleteGroup(group.to_string())).await {
            Answer::DeletedGroup(deleted) => deleted,
            _ => Err(Refused::CoordinatorNotAvailable),
        };
        let result = DeletableGroupResult::default().with_group_id(group).with_error_code(code(deleted));
        response.results.push(result);
    }
    response
}
