//! The wire: requests that the tests share, and the table in `docs/wire.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use highwater_storage::{BatchBuilder, BatchView, Codec, Record, TimestampMs};
use highwater_tests::{Client, Server};
use kafka_protocol::messages::api_versions_response::ApiVersionsResponse;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiVersionsRequest, BrokerId, CreateTopicsRequest, FetchRequest, MetadataRequest, ProduceRequest, TopicName,
};
use kafka_protocol::protocol::StrBytes;

/// Creates a topic with one replica, waits until its leaders serve it, and returns its id.
pub(crate) fn create_topic(client: &mut Client, name: &'static str, partitions: i32) -> anyhow::Result<[u8; 16]> {
    let topic = CreatableTopic::default()
        .with_name(TopicName(StrBytes::from_static_str(name)))
        .with_num_partitions(partitions)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let response = client.send(7, &request)?;
    let topic = response.topics.first().context("no topic in the answer")?;
    ensure!(topic.error_code == 0, "creating {name} gives {}: {:?}", topic.error_code, topic.error_message);
    let id = *topic.topic_id.as_bytes();
    let asked = MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_static_str(name))));
    let request = MetadataRequest::default().with_topics(Some(vec![asked]));
    for _ in 0..100 {
        let response = client.send(9, &request)?;
        let topic = response.topics.first().context("no topic in the answer")?;
        if topic.error_code == 0 && topic.partitions.iter().all(|partition| partition.error_code == 0) {
            return Ok(id);
        }
        thread::sleep(Duration::from_millis(20));
    }
    bail!("{name} has no leader two seconds after it was created")
}

/// A batch of these values, as of now.
pub(crate) fn batch(values: &[&[u8]]) -> Vec<u8> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the clock is past 1970");
    let now = TimestampMs(i64::try_from(now.as_millis()).expect("it fits for long"));
    let mut builder = BatchBuilder::new(Codec::None);
    for value in values {
        builder.push(Record::new(now, value));
    }
    builder.build()
}

/// Produces one batch to partition 0 with acks=all and returns its base offset.
pub(crate) fn produce(client: &mut Client, topic: &'static str, values: &[&[u8]]) -> anyhow::Result<i64> {
    produce_bytes(client, topic, batch(values).into())?.map_err(|code| anyhow::anyhow!("produce gives {code}"))
}

/// Produces these bytes to partition 0 with acks=all and returns the base offset, or Kafka's error code.
pub(crate) fn produce_bytes(
    client: &mut Client,
    topic: &'static str,
    records: Bytes,
) -> anyhow::Result<Result<i64, i16>> {
    let partition = PartitionProduceData::default().with_index(0).with_records(Some(records));
    let topic = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str(topic)))
        .with_partition_data(vec![partition]);
    let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(5_000).with_topic_data(vec![topic]);
    let response = client.send(9, &request)?;
    let topic = response.responses.first().context("no topic in the answer")?;
    let partition = topic.partition_responses.first().context("no partition in the answer")?;
    Ok(if partition.error_code == 0 { Ok(partition.base_offset) } else { Err(partition.error_code) })
}

/// Fetches from an offset of partition 0, without waiting, and returns the batches.
pub(crate) fn fetch(client: &mut Client, topic: &'static str, offset: i64) -> anyhow::Result<Bytes> {
    let partition =
        FetchPartition::default().with_partition(0).with_fetch_offset(offset).with_partition_max_bytes(1 << 20);
    let topic =
        FetchTopic::default().with_topic(TopicName(StrBytes::from_static_str(topic))).with_partitions(vec![partition]);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(0)
        .with_min_bytes(0)
        .with_max_bytes(8 << 20)
        .with_topics(vec![topic]);
    let response = client.send(12, &request)?;
    let topic = response.responses.first().context("no topic in the answer")?;
    let partition = topic.partitions.first().context("no partition in the answer")?;
    ensure!(partition.error_code == 0, "fetch at {offset} gives {}", partition.error_code);
    Ok(partition.records.clone().unwrap_or_default())
}

/// What the broker says it supports.
pub(crate) fn api_versions(client: &mut Client) -> anyhow::Result<ApiVersionsResponse> {
    let request = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("highwater-tests"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let response = client.send(4, &request)?;
    ensure!(response.error_code == 0, "ApiVersions gives {}", response.error_code);
    Ok(response)
}

/// A row of the table in `docs/wire.md`: versions here, and in Kafka 4.1.
struct Row {
    name: String,
    here: (i16, i16),
    kafka: String,
}

/// The rows `| KEY | NAME | MIN | MAX | KAFKA | … |` of the table.
fn documented() -> BTreeMap<i16, Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/wire.md");
    let text = fs::read_to_string(&path).expect("docs/wire.md can be read");
    let row = |line: &str| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let mut next = || cells.next();
        let (key, name, min, max, kafka) = (next()?, next()?, next()?, next()?, next()?);
        let here = (min.parse().ok()?, max.parse().ok()?);
        Some((key.parse().ok()?, Row { name: name.to_owned(), here, kafka: kafka.to_owned() }))
    };
    text.lines().filter_map(row).collect()
}

/// The column of Kafka's versions is what a Kafka 4.1 answered, and nothing is offered here that it does not offer: clients
/// draw conclusions from the highest versions.
#[test]
fn the_documented_table_has_the_versions_of_kafka() {
    let lines = include_str!("kafka-4.1-apis.tsv").lines().filter(|line| !line.starts_with('#'));
    let kafka: BTreeMap<i16, (&str, i16, i16)> = lines
        .map(|line| {
            let [key, name, min, max] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            (key.parse().unwrap(), (name, min.parse().unwrap(), max.parse().unwrap()))
        })
        .collect();
    assert_eq!(kafka.len(), 73);
    for (key, row) in documented() {
        let (name, min, max) = kafka[&key];
        assert_eq!(row.name, name, "the name of {key}");
        assert_eq!(row.kafka, format!("{min}-{max}"), "Kafka 4.1's versions of {name}, in the fifth column");
        assert!(min <= row.here.0 && row.here.1 <= max, "{name} is offered from {} to {}", row.here.0, row.here.1);
    }
}

#[test]
fn the_documented_table_is_what_the_broker_offers() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data")).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    let offered = api_versions(&mut client).unwrap().api_keys;
    let offered: BTreeMap<i16, (i16, i16)> =
        offered.iter().map(|range| (range.api_key, (range.min_version, range.max_version))).collect();
    let documented: BTreeMap<_, _> = documented().into_iter().map(|(key, row)| (key, row.here)).collect();
    assert_eq!(documented, offered);
}

/// What a produced batch is answered with, each case tried against Apache Kafka 4.1: an offset, or one of these codes.
/// Kafka answers some of them with a code that says less (-1 for an unknown codec, 53 for a control batch, 87 for a
/// batch that is cut off): those of ours are the ones its own documentation gives.
#[test]
fn spoilt_batches_get_their_codes_and_nothing_of_them_is_stored() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&directory.path().join("data")).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    create_topic(&mut client, "spoilt", 1).unwrap();
    let fixture = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/storage/tests/fixtures").join(name);
        fs::read(path.with_extension("bin")).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let good = batch(&[b"one", b"two"]);
    let spoil = |at: usize, with: u8| {
        let mut bytes = good.clone();
        bytes[at] ^= with;
        bytes
    };
    let large = batch(&[&vec![b'x'; 2_000_000]]);
    let cases: Vec<(&str, Vec<u8>, &[i16])> = vec![
        ("a flipped bit in a value", spoil(good.len() - 3, 1), &[2]),
        ("a flipped bit in the checksum", spoil(17, 1), &[2]),
        ("magic 0", spoil(16, 2), &[87, 43]),
        ("magic 3", spoil(16, 1), &[2, 87, 43]),
        ("a length that is too long", spoil(11, 0x40), &[2, 87]),
        ("a batch without its end", good[..good.len() - 4].to_vec(), &[2, 87]),
        ("half a header", good[..30].to_vec(), &[2, 87]),
        ("no byte", Vec::new(), &[2, 87]),
        ("two batches", [good.clone(), good.clone()].concat(), &[87]),
        ("base offset 77", [&77_i64.to_be_bytes(), &good[8..]].concat(), &[87]),
        ("a batch over message.max.bytes", large, &[10]),
        ("F4", fixture("F4_record_count_2147483647"), &[2, 87]),
        ("F4b", fixture("F4b_record_count_minus1"), &[2, 87]),
        ("F5", fixture("F5_empty_compacted_batch_base40_lod2"), &[2, 87]),
        ("F6", fixture("F6_lod_mismatch_3recs_lod9"), &[87]),
        ("F7", fixture("F7_lod_negative"), &[87]),
        ("F9", fixture("F9_control_batch_from_client"), &[87, 53]),
        ("F10", fixture("F10_attrs_codec_7"), &[76, 87]),
        ("F11", fixture("F11_length_field_short_40"), &[2]),
        ("F12", fixture("F12_far_future_ts_ns"), &[32]),
    ];
    for (name, bytes, codes) in cases {
        let answer = produce_bytes(&mut client, "spoilt", bytes.into()).unwrap();
        assert!(answer.is_err_and(|code| codes.contains(&code)), "{name} gives {answer:?}, not one of {codes:?}");
        assert!(fetch(&mut client, "spoilt", 0).unwrap().is_empty(), "{name}: some of it was stored");
    }

    // A timestamp of -2 may be refused or stored (Kafka stores it); -1 is none.
    let answer = produce_bytes(&mut client, "spoilt", fixture("F13_negative_ts").into()).unwrap();
    let next = match answer {
        Ok(offset) => offset + 1,
        Err(code) => {
            assert_eq!(code, 32);
            0
        }
    };
    // A maximum timestamp that was left out is computed, and the stored batch carries it and a checksum over it.
    let answer = produce_bytes(&mut client, "spoilt", fixture("F8_max_ts_minus1").into()).unwrap();
    assert_eq!(answer, Ok(next));
    let stored = fetch(&mut client, "spoilt", next).unwrap();
    let (stored, _) = BatchView::parse(&stored).unwrap();
    assert!(stored.crc_matches());
    assert_eq!(stored.header().max_timestamp(), stored.header().base_timestamp());
    assert_eq!(produce(&mut client, "spoilt", &[b"good"]).unwrap(), next + 1);
}
