//! The APIs of consumer groups: from the wire to the machines of [`highwater_groups`] and back.

pub(super) mod delete_groups;
pub(super) mod describe_groups;
pub(super) mod heartbeat;
pub(super) mod join_group;
pub(super) mod leave_group;
pub(super) mod list_groups;
pub(super) mod offset_commit;
pub(super) mod offset_delete;
pub(super) mod offset_fetch;
pub(super) mod sync_group;
#[cfg(test)]
mod tests;

use highwater_groups::{Answer, MemberAt, Request};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::RequestContext;

/// Asks the coordinator of the request's group, which is this broker's if the client asks the right one.
async fn ask(context: &RequestContext, request: Request) -> Answer {
    let broker = &context.broker;
    let group = request.group().unwrap_or_default().to_owned();
    broker.groups.ask(broker.config.broker_id, &broker.cluster.image(), &group, request, None).await
}

fn text(text: StrBytes) -> String {
    text.to_string()
}

fn optional(text: Option<StrBytes>) -> Option<String> {
    text.map(|text| text.to_string())
}

fn string(text: String) -> StrBytes {
    StrBytes::from_string(text)
}

/// A name in memory of its own: what is kept or waits should not keep the frame.
fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

fn member_at(group: StrBytes, member: StrBytes, instance: Option<StrBytes>, generation: i32) -> MemberAt {
    MemberAt { group: text(group), member_id: text(member), group_instance_id: optional(instance), generation }
}

/// The code of a result that says no more.
fn code(done: Result<(), highwater_groups::Refused>) -> i16 {
    done.map_or_else(highwater_groups::Refused::code, |()| 0)
}
