//! Heartbeat (12).

use highwater_groups::{Answer, Request};
use kafka_protocol::messages::{HeartbeatRequest, HeartbeatResponse};

use super::super::RequestContext;
use super::{code, member_at};

pub(crate) async fn handle(context: &RequestContext, request: HeartbeatRequest) -> HeartbeatResponse {
    let member = member_at(request.group_id.0, request.member_id, request.group_instance_id, request.generation_id);
    match super::ask(context, Request::Heartbeat(member)).await {
        Answer::Heartbeat(done) => HeartbeatResponse::default().with_error_code(code(done)),
        _ => HeartbeatResponse::default().with_error_code(-1),
    }
}
