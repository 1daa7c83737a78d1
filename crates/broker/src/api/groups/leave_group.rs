//! LeaveGroup (13).

use highwater_groups::{Answer, Leaving, Refused, Request};
use kafka_protocol::messages::leave_group_response::MemberResponse;
use kafka_protocol::messages::{LeaveGroupRequest, LeaveGroupResponse};

use super::super::RequestContext;
use super::{code, optional, string, text};

/// From this version on several members leave at once, each with an answer of its own.
const SEVERAL_SINCE: i16 = 3;

pub(crate) async fn handle(context: &RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse {
    let members: Vec<Leaving> = if context.version >= SEVERAL_SINCE {
        let all = request.members.into_iter();
        all.map(|member| Leaving {
            member_id: text(member.member_id),
            group_instance_id: optional(member.group_instance_id),
        })
        .collect()
    } else {
        vec![Leaving { member_id: text(request.member_id), group_instance_id: None }]
    };
    let left = super::ask(context, Request::Leave { group: text(request.group_id.0), members: members.clone() }).await;
    match left {
        Answer::Leave(left) => answer(members, left, context.version),
        _ => LeaveGroupResponse::default().with_error_code(-1),
    }
}

fn answer(members: Vec<Leaving>, left: Result<Vec<Result<(), Refused>>, Refused>, version: i16) -> LeaveGroupResponse {
    let left = match left {
        Ok(left) => left,
        Err(why) => return LeaveGroupResponse::default().with_error_code(why.code()),
    };
    if version < SEVERAL_SINCE {
        return LeaveGroupResponse::default().with_error_code(left.into_iter().next().map_or(0, code));
    }
    let told = members.into_iter().zip(left).map(|(member, done)| {
        MemberResponse::default()
            .with_member_id(string(member.member_id))
            .with_group_instance_id(member.group_instance_id.map(string))
            .with_error_code(code(done))
    });
    LeaveGroupResponse::default().with_members(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiKey;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        let leaving = |id: &str| Leaving { member_id: id.into(), group_instance_id: None };
        for version in 0..=5 {
            let left = Ok(vec![Err(Refused::UnknownMemberId), Ok(())]);
            let response = answer(vec![leaving("a"), leaving("b")], left, version);
            assert_eq!(response.error_code, if version < 3 { 25 } else { 0 });
            let codes: Vec<i16> = response.members.iter().map(|member| member.error_code).collect();
            assert_eq!(codes, if version < 3 { vec![] } else { vec![25, 0] });
            encodes(ApiKey::LeaveGroup, &response, version);
            let response = answer(vec![leaving("a")], Err(Refused::NotCoordinator), version);
            assert_eq!(response.error_code, 16);
            encodes(ApiKey::LeaveGroup, &response, version);
        }
    }
}
