//! SyncGroup (14).

use bytes::Bytes;
use highwater_groups::{Answer, Refused, Request, Sync, Synced};
use kafka_protocol::messages::{SyncGroupRequest, SyncGroupResponse};

use super::super::RequestContext;
use super::{member_at, optional, string, text};

/// From this version on a member has to say what it takes the group to do, and how.
const PROTOCOL_SINCE: i16 = 5;

pub(crate) async fn handle(context: &RequestContext, request: SyncGroupRequest) -> SyncGroupResponse {
    if context.version >= PROTOCOL_SINCE && (request.protocol_type.is_none() || request.protocol_name.is_none()) {
        return answer(Err(Refused::InconsistentGroupProtocol), context.version);
    }
    match super::ask(context, Request::Sync(read(request))).await {
        Answer::Sync(synced) => answer(synced, context.version),
        _ => SyncGroupResponse::default().with_error_code(-1),
    }
}

/// What is asked, in memory of its own: assignments are kept for as long as the generation lives, and who waits for one does
/// so without its frame.
fn read(request: SyncGroupRequest) -> Sync {
    let given = request.assignments.into_iter();
    Sync {
        member: member_at(request.group_id.0, request.member_id, request.group_instance_id, request.generation_id),
        protocol_type: optional(request.protocol_type),
        protocol: optional(request.protocol_name),
        assignments: given.map(|one| (text(one.member_id), Bytes::copy_from_slice(&one.assignment))).collect(),
    }
}

fn answer(synced: Result<Synced, Refused>, version: i16) -> SyncGroupResponse {
    match synced {
        Ok(synced) => {
            let response = SyncGroupResponse::default().with_assignment(synced.assignment);
            if version < PROTOCOL_SINCE {
                return response;
            }
            let (kind, protocol) = (string(synced.protocol_type), string(synced.protocol));
            response.with_protocol_type(Some(kind)).with_protocol_name(Some(protocol))
        }
        Err(why) => SyncGroupResponse::default().with_error_code(why.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiKey;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        let synced =
            Synced { protocol_type: "consumer".into(), protocol: "range".into(), assignment: Bytes::from_static(b"x") };
        for version in 0..=5 {
            let response = answer(Ok(synced.clone()), version);
            assert_eq!((response.error_code, &response.assignment[..]), (0, &b"x"[..]));
            assert_eq!(response.protocol_name.is_some(), version >= 5);
            encodes(ApiKey::SyncGroup, &response, version);
            let response = answer(Err(Refused::RebalanceInProgress), version);
            assert_eq!((response.error_code, response.assignment.len()), (27, 0));
            encodes(ApiKey::SyncGroup, &response, version);
        }
    }
}
