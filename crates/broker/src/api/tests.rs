use std::collections::BTreeMap;

use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, Versioned};
use highwater_storage::{LeaderEpoch, TopicId};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, RequestHeader};

use super::*;
use crate::cluster::{BrokerInfo, MetadataImage, PartitionImage, TopicImage};

/// A cluster of brokers 1 and 2, of which 2 controls; broker 3 is dead. Topic `books` (id 7…) has partitions led by 1,
/// by nobody and by 3; topic `empty` (id 8…) has one, led by 2.
pub(crate) fn image() -> MetadataImage {
    let broker = |id: i32, host: &str, rack: Option<&str>| BrokerInfo {
        id: BrokerId(id),
        epoch: BrokerEpoch(i64::from(id) * 10),
        host: host.to_owned(),
        port: 9090 + u16::try_from(id).unwrap(),
        rack: rack.map(str::to_owned),
    };
    let partition = |leader: Option<i32>, epoch: i32| PartitionImage {
        reassignment: Default::default(),
        assignment: [1, 2, 3].map(BrokerId).to_vec(),
        state: Versioned {
            value: PartitionState {
                leader: leader.map(BrokerId),
                leader_epoch: LeaderEpoch(epoch),
                isr: [1, 2].map(BrokerId).to_vec(),
                controller_epoch: 1,
                doubtful: Vec::new(),
                recovering: false,
            },
            version: 3,
        },
    };
    let topic = |name: &str, id: u8, config: &[(&str, &str)], partitions| TopicImage {
        name: name.into(),
        id: TopicId([id; 16]),
        version: 1,
        config: config.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>(),
        partitions,
    };
    let mut image = MetadataImage {
        cluster_id: "cluster".to_owned(),
        controller: Some(BrokerId(2)),
        brokers: [broker(1, "one", None), broker(2, "two", Some("r2"))].map(|broker| (broker.id, broker)).into(),
        ..MetadataImage::default()
    };
    let configs = [("cleanup.policy", "compact"), ("leader.replication.throttled.replicas", "*")];
    let books = vec![partition(Some(1), 4), partition(None, 5), partition(Some(3), 6)];
    image.insert(Arc::new(topic("books", 7, &configs, books)));
    image.insert(Arc::new(topic("empty", 8, &[], vec![partition(Some(2), 0)])));
    image
}

/// Asserts that a response can be encoded in this version and reads back as a whole message.
pub(super) fn encodes<T: Encodable + Decodable>(api: ApiKey, response: &T, version: i16) {
    let mut bytes = BytesMut::new();
    response.encode(&mut bytes, version).unwrap_or_else(|error| panic!("{api:?} version {version}: {error}"));
    wire::check_response(api, version, &bytes).unwrap();
    let mut bytes = bytes.freeze();
    T::decode(&mut bytes, version).unwrap();
    assert!(bytes.is_empty());
}

/// A frame with a header of the version that the API takes.
fn frame(key: i16, version: i16, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    let header = RequestHeader::default()
        .with_request_api_key(key)
        .with_request_api_version(version)
        .with_correlation_id(77)
        .with_client_id(Some(StrBytes::from_static_str("test")));
    let header_version = ApiKey::try_from(key).map_or(1, |api| api.request_header_version(version));
    header.encode(&mut bytes, header_version).unwrap();
    bytes.put_slice(body);
    bytes.freeze()
}

fn reason(frame: Bytes) -> String {
    match Asked::read(frame) {
        Err(close) => close.reason,
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn the_table_is_sorted_and_within_what_can_be_decoded() {
    assert!(SUPPORTED.is_sorted_by_key(|supported| supported.api as i16));
    for supported in SUPPORTED {
        let known = supported.api.valid_versions();
        assert!(supported.min >= known.min && supported.max <= known.max, "{supported:?}");
        assert!(supported.advertised_min <= supported.min, "{supported:?}");
        for version in supported.advertised_min..=supported.max {
            // A schema there is, be the body empty or not what it says.
            let checked = wire::check_request(supported.api, version, &[]);
            assert!(checked.map_or_else(|error| error.what != "no schema for this API", |_| true));
        }
    }
}

#[test]
fn headers_of_both_versions_are_read() {
    for version in 0..=4 {
        let body = if version >= 3 { &b"\x05kcat\x021\x00"[..] } else { b"" };
        let Ok(Incoming::Served(asked)) = Asked::read(frame(18, version, body)) else { panic!("version {version}") };
        assert_eq!((asked.api, asked.version, asked.correlation), (ApiKey::ApiVersions, version, 77));
        assert_eq!(asked.client_id.unwrap().as_str(), "test");
        let request: ApiVersionsRequest = decode(asked.api, version, asked.body).unwrap();
        assert_eq!(request.client_software_name.as_str(), if version >= 3 { "kcat" } else { "" });
    }
}

#[test]
fn unknown_apis_versions_and_odd_headers_close() {
    assert_eq!(reason(frame(-1, 0, b"")), "unknown API -1");
    assert_eq!(reason(frame(999, 0, b"")), "unknown API 999");
    // Vote: known to the protocol crate, not to this broker.
    assert_eq!(reason(frame(52, 0, b"")), "unknown API 52");
    for version in [-1, 14, 32767] {
        assert_eq!(reason(frame(3, version, b"")), format!("Metadata version {version} is not supported"));
        assert_eq!(reason(frame(0, version, b"")), format!("Produce version {version} is not supported"));
    }
    assert_eq!(reason(frame(1, 3, b"")), "Fetch version 3 is not supported");
    let whole = frame(3, 1, &[0, 0, 0, 0]);
    for end in 0..whole.len() {
        reason(whole.slice(..end));
    }
    let mut negative = whole.to_vec();
    negative[8..10].copy_from_slice(&(-7530i16).to_be_bytes());
    assert_eq!(reason(Bytes::from(negative)), "a client id of -7530 bytes");
    assert!(reason(frame(3, 1, &[0x7f, 0xff, 0xff, 0xff])).contains("an array longer than the message"));
}

/// librdkafka asks for all topics by Metadata 13 like this: the message ends after four bytes.
#[test]
fn what_follows_a_request_is_ignored() {
    let Ok(Incoming::Served(asked)) = Asked::read(frame(3, 13, &[0, 0, 0, 0, 1, 0, 0])) else { panic!("not served") };
    let request: MetadataRequest = decode(asked.api, asked.version, asked.body).unwrap();
    assert_eq!(request.topics, None);
}

#[test]
fn too_new_api_versions_are_answered_in_version_0() {
    for version in [-1, 5, 127, 32767] {
        // Whatever the header of that version looks like.
        let Ok(Incoming::Answered(response)) = Asked::read(frame(18, version, &[0xff; 3])) else { panic!("{version}") };
        let mut bytes = Bytes::from(response.pieces.concat());
        assert_eq!(usize::try_from(bytes.get_i32()).unwrap(), bytes.len());
        assert_eq!(bytes.get_i32(), 77);
        let answer = ApiVersionsResponse::decode(&mut bytes, 0).unwrap();
        assert_eq!((answer.error_code, answer.api_keys[0].api_key, bytes.len()), (35, 18, 0));
    }
}

#[test]
fn old_produce_requests_are_answered_per_partition() {
    let body = [0, 1, 0, 0, 0, 9, 0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 2, 1, 2];
    let Ok(Incoming::Answered(response)) = Asked::read(frame(0, 2, &body)) else { panic!("not answered") };
    let bytes = response.pieces.concat();
    let expected = [
        [0, 0, 0, 41].as_slice(),
        &[0, 0, 0, 77],
        &[0, 0, 0, 1, 0, 1, b'a', 0, 0, 0, 1, 0, 0, 0, 7, 0, 35],
        &[0xff; 16],
        &[0, 0, 0, 0],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn responses_have_the_header_of_their_version() {
    let length_and_head = |api, version| {
        let reply = Reply { api, version, correlation: 5 };
        reply.write_pieces(vec![reply.head(b"body")]).pieces.concat()
    };
    assert_eq!(length_and_head(ApiKey::Metadata, 8), b"\0\0\0\x08\0\0\0\x05body");
    assert_eq!(length_and_head(ApiKey::Metadata, 9), b"\0\0\0\x09\0\0\0\x05\0body");
    // ApiVersions never has tags in its response header (KIP-511).
    assert_eq!(length_and_head(ApiKey::ApiVersions, 4), b"\0\0\0\x08\0\0\0\x05body");
}

#[test]
fn records_of_a_produce_are_slices_of_its_frame() {
    use kafka_protocol::messages::ProduceRequest;
    use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
    for version in 3..=13 {
        let data = PartitionProduceData::default().with_records(Some(Bytes::from(vec![7; 100 << 10])));
        let request = ProduceRequest::default()
            .with_topic_data(vec![TopicProduceData::default().with_partition_data(vec![data])]);
        let mut body = BytesMut::new();
        request.encode(&mut body, version).unwrap();
        let frame = frame(0, version, &body);
        let within = frame.as_ptr_range();
        let Ok(Incoming::Served(asked)) = Asked::read(frame) else { panic!("version {version}") };
        let request: ProduceRequest = decode(asked.api, version, asked.body).unwrap();
        let records = request.topic_data[0].partition_data[0].records.as_ref().unwrap();
        assert_eq!(records.len(), 100 << 10);
        assert!(within.contains(&records.as_ptr()), "version {version} copies");
    }
}
