//! JoinGroup (11).

use bytes::Bytes;
use highwater_groups::{Answer, Join, Joined, Refused, Request};
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::messages::{JoinGroupRequest, JoinGroupResponse};

use super::super::RequestContext;
use super::{optional, string, text};
use crate::cluster::random_id;

/// From this version on a member without an id is given one first, and joins with it (KIP-394).
const KNOWN_MEMBER_IDS_SINCE: i16 = 4;

/// From this version on a protocol that is none is null; before, empty.
const NULL_PROTOCOL_SINCE: i16 = 7;

/// From this version on a leader may be told that the assignment stands (KIP-814).
const SKIPPED_ASSIGNMENTS_SINCE: i16 = 9;

pub(crate) async fn handle(context: &RequestContext, request: JoinGroupRequest) -> JoinGroupResponse {
    let join = read(context, request);
    match super::ask(context, Request::Join(join)).await {
        Answer::Join(joined) => answer(joined, context.version),
        _ => JoinGroupResponse::default().with_error_code(-1),
    }
}

/// What is asked, in memory of its own: the frame goes with the request, before the member waits for the others, which may
/// take minutes.
fn read(context: &RequestContext, request: JoinGroupRequest) -> Join {
    let version = context.version;
    Join {
        group: text(request.group_id.0),
        member_id: text(request.member_id),
        group_instance_id: optional(request.group_instance_id),
        client_id: context.client_id.to_string(),
        // As Kafka writes a host: Java's text of an address that was not looked up.
        client_host: format!("/{}", context.peer.ip()),
        fresh_id: uuid::Uuid::from_bytes(random_id().0).to_string(),
        session_timeout_ms: request.session_timeout_ms,
        rebalance_timeout_ms: if version >= 1 { request.rebalance_timeout_ms } else { request.session_timeout_ms },
        protocol_type: text(request.protocol_type),
        protocols: request
            .protocols
            .into_iter()
            .map(|protocol| (text(protocol.name), Bytes::copy_from_slice(&protocol.metadata)))
            .collect(),
        requires_known_member_id: version >= KNOWN_MEMBER_IDS_SINCE,
        supports_skipping_assignment: version >= SKIPPED_ASSIGNMENTS_SINCE,
    }
}

fn answer(joined: Result<Joined, (Refused, String)>, version: i16) -> JoinGroupResponse {
    match joined {
        Ok(joined) => {
            let members = joined.members.into_iter().map(|member| {
                let told = JoinGroupResponseMember::default()
                    .with_member_id(string(member.member_id))
                    .with_metadata(member.metadata);
                let instance = member.group_instance_id.map(string);
                if version >= 5 { told.with_group_instance_id(instance) } else { told }
            });
            let response = JoinGroupResponse::default()
                .with_generation_id(joined.generation)
                .with_protocol_name(
                    Some(string(joined.protocol)).filter(|name| version < NULL_PROTOCOL_SINCE || !name.is_empty()),
                )
                .with_leader(string(joined.leader))
                .with_member_id(string(joined.member_id))
                .with_members(members.collect());
            let response = if version >= SKIPPED_ASSIGNMENTS_SINCE {
                response.with_skip_assignment(joined.skip_assignment)
            } else {
                response
            };
            if version >= 7 { response.with_protocol_type(Some(string(joined.protocol_type))) } else { response }
        }
        Err((why, member)) => {
            let none = if version >= NULL_PROTOCOL_SINCE { None } else { Some(string(String::new())) };
            JoinGroupResponse::default()
                .with_error_code(why.code())
                .with_generation_id(-1)
                .with_protocol_name(none)
                .with_member_id(string(member))
        }
    }
}

#[cfg(test)]
mod tests {
    use highwater_groups::JoinedMember;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::tests::encodes;

    #[test]
    fn every_version_is_answered() {
        let member = JoinedMember {
            member_id: "m".into(),
            group_instance_id: Some("i".into()),
            metadata: Bytes::from_static(b"opaque"),
        };
        let joined = Joined {
            generation: 3,
            protocol_type: "consumer".into(),
            protocol: "range".into(),
            leader: "m".into(),
            member_id: "m".into(),
            skip_assignment: true,
            members: vec![member],
        };
        for version in 0..=9 {
            let response = answer(Ok(joined.clone()), version);
            assert_eq!((response.generation_id, response.members.len()), (3, 1));
            encodes(ApiKey::JoinGroup, &response, version);
            let nameless = answer(Ok(Joined { protocol: String::new(), ..joined.clone() }), version);
            assert_eq!((response.protocol_name.is_none(), nameless.protocol_name.is_none()), (false, version >= 7));
            encodes(ApiKey::JoinGroup, &nameless, version);
            let response = answer(Err((Refused::MemberIdRequired, "m-1".into())), version);
            assert_eq!((response.error_code, response.generation_id, &*response.member_id), (79, -1, "m-1"));
            assert_eq!(response.protocol_name.is_none(), version >= 7);
            encodes(ApiKey::JoinGroup, &response, version);
        }
    }
}
