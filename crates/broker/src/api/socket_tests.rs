//! A real broker behind a real socket, asked in every API and version.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{
    ApiKey, CreateTopicsRequest, DescribeClusterRequest, DescribeConfigsRequest, MetadataRequest, RequestHeader,
};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::SUPPORTED;
use crate::Broker;
use crate::client::Connection;
use crate::config::BrokerConfig;
use crate::draws::draws;
use crate::wire;
use crate::wire::tests::samples;

const PATIENCE: Duration = Duration::from_secs(20);

async fn broker() -> (Broker, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = BrokerConfig::default();
    config.listen.port = 0;
    config.data_dir = dir.path().join("data");
    (Broker::start_embedded(config).await.unwrap(), dir)
}

fn framed(api: ApiKey, version: i16, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_i32(0);
    RequestHeader::default()
        .with_request_api_key(api as i16)
        .with_request_api_version(version)
        .with_correlation_id(i32::from(version) + 1000)
        .with_client_id(Some(StrBytes::from_static_str("test")))
        .encode(&mut bytes, api.request_header_version(version))
        .unwrap();
    bytes.put_slice(body);
    let length = u32::try_from(bytes.len() - 4).unwrap();
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes.freeze()
}

/// The next response without its length, or nothing if the connection was closed.
async fn response(stream: &mut TcpStream) -> Option<Bytes> {
    let mut prefix = [0; 4];
    timeout(PATIENCE, stream.read_exact(&mut prefix)).await.expect("an answer or the end").ok()?;
    let mut bytes = vec![0; usize::try_from(u32::from_be_bytes(prefix)).unwrap()];
    stream.read_exact(&mut bytes).await.unwrap();
    Some(bytes.into())
}

/// Requests with filled arrays (most of them for topics that are not there) and empty ones: whatever is asked, the answer
/// is one whole message of the version asked. Nothing here may close the connection.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_is_answered_in_its_version() {
    let (broker, _dir) = broker().await;
    let all = samples();
    let decoders: BTreeMap<_, _> = all
        .iter()
        .filter(|sample| !sample.is_request)
        .map(|sample| ((sample.api as i16, sample.version), sample.decode))
        .collect();
    let mut stream = TcpStream::connect(broker.local_addr()).await.unwrap();
    let mut asked = 0;
    for sample in all.iter().filter(|sample| sample.is_request) {
        let (api, version) = (sample.api, sample.version);
        // The empty Produce has acks=0 and so no answer.
        let served = SUPPORTED.iter().any(|one| one.api == api && (one.min..=one.max).contains(&version));
        if !served || api == ApiKey::Produce && sample.bytes.len() < 20 {
            continue;
        }
        stream.write_all(&framed(api, version, &sample.bytes)).await.unwrap();
        let mut body = response(&mut stream).await.unwrap_or_else(|| panic!("{api:?} version {version} closed"));
        assert_eq!(body.get_i32(), i32::from(version) + 1000);
        if api.response_header_version(version) >= 1 {
            assert_eq!(body.get_u8(), 0);
        }
        wire::check_response(api, version, &body).unwrap_or_else(|error| panic!("{api:?} version {version}: {error}"));
        decoders[&(api as i16, version)](body, version).unwrap();
        asked += 1;
    }
    assert!(asked > 150, "{asked}");
    broker.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_its_way() {
    let (broker, _dir) = broker().await;
    let address = broker.local_addr().to_string();
    let client = Connection::connect(&address, "test", PATIENCE).await.unwrap();
    for supported in SUPPORTED {
        let offered = client.offered(supported.api).unwrap();
        assert_eq!((offered.min, offered.max), (supported.advertised_min, supported.max));
    }
    let cluster = client.send(&DescribeClusterRequest::default()).await.unwrap();
    assert_eq!(cluster.brokers.len(), 1);
    assert_eq!(
        (&*cluster.brokers[0].host, cluster.brokers[0].port),
        ("127.0.0.1", i32::from(broker.local_addr().port()))
    );

    // Asked for by name, a topic is made and led by the time it is answered.
    let named = |name: &'static str| {
        let topic = MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(name))));
        MetadataRequest::default().with_topics(Some(vec![topic]))
    };
    let metadata = client.send(&named("made")).await.unwrap();
    let topic = &metadata.topics[0];
    assert_eq!((topic.error_code, topic.partitions.len(), topic.partitions[0].leader_id.0), (0, 1, 1));
    assert!(!topic.topic_id.is_nil());
    let mut modest = named("absent");
    modest.allow_auto_topic_creation = false;
    assert_eq!(client.send(&modest).await.unwrap().topics[0].error_code, 3);

    let topic = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str("asked")))
        .with_num_partitions(3)
        .with_replication_factor(1);
    let created = client.send(&CreateTopicsRequest::default().with_topics(vec![topic])).await.unwrap();
    assert_eq!(created.topics[0].error_code, 0);
    let resource = kafka_protocol::messages::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(StrBytes::from_static_str("asked"))
        .with_configuration_keys(None);
    let described = client.send(&DescribeConfigsRequest::default().with_resources(vec![resource])).await.unwrap();
    assert_eq!(described.results[0].error_code, 0);
    assert!(described.results[0].configs.iter().any(|config| &*config.name == "cleanup.policy"));
    broker.shutdown().await.unwrap();
}

/// Reads up to the answer to an ApiVersions request of version 0. False if there is none: the connection was closed, or a
/// fetch before it was told to wait for long.
async fn answers_api_versions(stream: &mut TcpStream) -> bool {
    loop {
        match timeout(Duration::from_millis(500), response(stream)).await {
            Ok(Some(body)) if body[..4] == 1000i32.to_be_bytes() && body.len() > 60 => return true,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// Each mutation on a connection of its own kind: what is malformed closes it, nobody else notices.
#[tokio::test(flavor = "multi_thread")]
async fn mutated_frames_close_their_connection_at_most() {
    let (broker, _dir) = broker().await;
    let steady = Connection::connect(&broker.local_addr().to_string(), "steady", PATIENCE).await.unwrap();
    let mut stream = TcpStream::connect(broker.local_addr()).await.unwrap();
    let mut draw = draws(1);
    let mut next = |bound: usize| usize::try_from(draw(bound as u64)).unwrap();
    let requests: Vec<_> = samples().into_iter().filter(|sample| sample.is_request).collect();
    let mut closed = 0;
    for _ in 0..600 {
        let sample = &requests[next(requests.len())];
        let mut frame = framed(sample.api, sample.version, &sample.bytes).to_vec();
        for _ in 0..=next(4) {
            // Not in the length, which other tests lie about; nor in acks and waiting times, which would only be slow.
            let at = 4 + next(frame.len() - 4);
            frame[at] = [0x00, 0x7f, 0xff, 0x80][next(4)];
        }
        // An ApiVersions request behind it: an answer to it proves that the connection lives and is in step.
        let mut sent = stream.write_all(&frame).await.is_ok();
        sent &= stream.write_all(&framed(ApiKey::ApiVersions, 0, b"")).await.is_ok();
        if !(sent && answers_api_versions(&mut stream).await) {
            closed += 1;
            stream = TcpStream::connect(broker.local_addr()).await.unwrap();
        }
    }
    assert!(closed > 50, "{closed}");
    steady.send(&MetadataRequest::default()).await.unwrap();
    broker.shutdown().await.unwrap();
}
