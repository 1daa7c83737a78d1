//! Requests that wait do so without their frames: those come out of a memory that all connections share.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::messages::{
    ApiKey, FetchRequest, JoinGroupRequest, JoinGroupResponse, RequestHeader, SyncGroupRequest,
};
use kafka_protocol::protocol::Encodable;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use super::admin_tests::{broker, context, make, name, ready};
use super::groups::join_group;
use super::{answer, find_coordinator};
use crate::Broker;
use crate::net::{Close, ConnectionInfo, Response};

const PATIENCE: Duration = Duration::from_secs(20);
const LONG_MS: i32 = 1_800_000;

/// A frame that tells by the count of `referred` whether anything of it is still referred to.
struct Watched {
    bytes: Bytes,
    _referred: Arc<()>,
}

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

type Answering = JoinHandle<Result<Option<Response>, Close>>;

/// Asks something that is not answered soon, and waits until its frame is let go of.
async fn waits_without_its_frame<R: Encodable>(broker: &Broker, api: ApiKey, version: i16, request: &R) -> Answering {
    let mut bytes = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(api as i16)
        .with_request_api_version(version)
        .with_client_id(Some(name("test")));
    header.encode(&mut bytes, api.request_header_version(version)).unwrap();
    let mut body = BytesMut::new();
    request.encode(&mut body, version).unwrap();
    bytes.put_slice(&body);
    let referred = Arc::new(());
    let frame = Bytes::from_owner(Watched { bytes: bytes.freeze(), _referred: Arc::clone(&referred) });
    let peer = ([127, 0, 0, 1], 1).into();
    let connection = Arc::new(ConnectionInfo { id: 1, peer });
    let answering = tokio::spawn(answer(Arc::clone(broker.shared()), connection, frame));
    let gone = async {
        while Arc::strong_count(&referred) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap_or_else(|_| panic!("{api:?} {version} keeps its frame"));
    assert!(!answering.is_finished(), "{api:?} {version} was to wait");
    answering
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetches_that_wait_for_records_let_go_of_their_frames() {
    let (broker, _dir) = broker().await;
    let id = make(broker.cluster(), "t", 1, 1).await;
    ready(&broker, "t").await;
    for (version, epoch) in [(4, 0), (7, 0), (11, -1), (12, 0), (13, 0), (17, -1)] {
        let partition = FetchPartition::default().with_partition_max_bytes(1000);
        let topic = match version {
            ..13 => FetchTopic::default().with_topic(name("t").into()),
            _ => FetchTopic::default().with_topic_id(Uuid::from_bytes(id.0)),
        };
        let mut request = FetchRequest::default()
            .with_max_wait_ms(LONG_MS)
            .with_min_bytes(1)
            .with_max_bytes(1000)
            .with_topics(vec![topic.with_partitions(vec![partition])]);
        if version >= 7 {
            request.session_epoch = epoch;
        }
        if version >= 11 {
            request.rack_id = name("a rack");
        }
        waits_without_its_frame(&broker, ApiKey::Fetch, version, &request).await.abort();
    }
}

fn joins(instance: &str, member: &str, version: i16) -> JoinGroupRequest {
    let protocol =
        JoinGroupRequestProtocol::default().with_name(name("range")).with_metadata(Bytes::from_static(b"metadata"));
    let request = JoinGroupRequest::default()
        .with_group_id(name("g").into())
        .with_member_id(name(member))
        .with_group_instance_id(Some(name(instance)))
        .with_session_timeout_ms(LONG_MS)
        .with_rebalance_timeout_ms(LONG_MS)
        .with_protocol_type(name("consumer"))
        .with_protocols(vec![protocol]);
    if version >= 8 { request.with_reason(Some(name("the reason why"))) } else { request }
}

/// Joins once the coordinator is there.
async fn joined(broker: &Broker, instance: &str, member: &str) -> JoinGroupResponse {
    loop {
        let joined = join_group::handle(&context(broker, 9), joins(instance, member, 9)).await;
        match joined.error_code {
            0 => return joined,
            code => assert!([14, 15].contains(&code), "{code}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_wait_for_each_other_let_go_of_their_frames() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = super::admin_tests::config(&dir);
    config.groups.initial_rebalance_delay_ms = 0;
    config.offsets_topic_partitions = 1;
    let broker = Broker::start_embedded(config).await.unwrap();
    let request = kafka_protocol::messages::FindCoordinatorRequest::default().with_coordinator_keys(vec![name("g")]);
    find_coordinator::handle(&context(&broker, 6), request).await;
    let mut leader = joined(&broker, "leader", "").await.member_id.to_string();
    for version in [5, 7, 8, 9] {
        // It waits until the leader joins again.
        let request = joins(&format!("other {version}"), "", version);
        let waits = waits_without_its_frame(&broker, ApiKey::JoinGroup, version, &request).await;
        let again = joined(&broker, "leader", &leader).await;
        assert_eq!(again.members.len(), 2);
        waits.await.unwrap().unwrap();
        let other = again.members.iter().find(|member| *member.member_id != *leader).unwrap();
        // And for what the leader gives out.
        let mut request = SyncGroupRequest::default()
            .with_group_id(name("g").into())
            .with_member_id(other.member_id.clone())
            .with_group_instance_id(other.group_instance_id.clone())
            .with_generation_id(again.generation_id);
        let version = version.min(5);
        if version >= 5 {
            request = request.with_protocol_type(Some(name("consumer"))).with_protocol_name(Some(name("range")));
        }
        waits_without_its_frame(&broker, ApiKey::SyncGroup, version, &request).await.abort();
        let leaves = kafka_protocol::messages::leave_group_request::MemberIdentity::default()
            .with_group_instance_id(other.group_instance_id.clone());
        let request = kafka_protocol::messages::LeaveGroupRequest::default()
            .with_group_id(name("g").into())
            .with_members(vec![leaves]);
        super::groups::leave_group::handle(&context(&broker, 5), request).await;
        leader = joined(&broker, "leader", &leader).await.member_id.to_string();
    }
}
