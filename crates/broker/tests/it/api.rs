//! What producers, consumers and tools are answered, code by code.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use highwater_broker::Cluster;
use highwater_broker::client::Connection;
use highwater_replication::{BrokerId, Role};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::ListOffsetsPartitionResponse;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{OffsetForLeaderPartition, OffsetForLeaderTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    ApiVersionsRequest, DeleteTopicsRequest, FetchRequest, ListOffsetsRequest, MetadataRequest,
    OffsetForLeaderEpochRequest, ProduceRequest, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Encodable, StrBytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::support::{Client, TIMEOUT, TOPIC, batch, crc, create_topic, now, producer_id, start, until};

/// Who asks is no replica.
const NOBODY: kafka_protocol::messages::BrokerId = kafka_protocol::messages::BrokerId(-1);

fn topic_name(name: &str) -> TopicName {
    TopicName(StrBytes::from_string(name.to_owned()))
}

fn produce_request(topic: &str, partition: i32, records: Option<Bytes>, acks: i16) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(records);
    let topic = TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(acks).with_timeout_ms(500).with_topic_data(vec![topic])
}

async fn connect(cluster: &Cluster) -> Connection {
    Client::of(cluster).leader().await.expect("a leader")
}

async fn produce(connection: &Connection, records: Vec<u8>, acks: i16) -> PartitionProduceResponse {
    let request = produce_request(TOPIC, 0, Some(records.into()), acks);
    let mut response = connection.send_version(&request, 9).await.expect("an answer");
    response.responses.remove(0).partition_responses.remove(0)
}

/// Field fault quirk 23: who speaks a version from before zstd has no business with it (KIP-110).
#[tokio::test]
async fn zstd_is_for_versions_that_know_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    for (codec, version, code) in [(Codec::Zstd, 6, 76), (Codec::Zstd, 7, 0), (Codec::Lz4, 3, 0)] {
        let mut builder = BatchBuilder::new(codec);
        builder.push(Record::new(now(), &[7; 1000]));
        let request = produce_request(TOPIC, 0, Some(builder.build().into()), -1);
        let response = connection.send_version(&request, version).await.expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, code, "{codec:?} in {version}");
    }
    assert_eq!(log_end(&cluster).await, 2);
}

async fn one_broker(dir: &tempfile::TempDir) -> Cluster {
    let cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[]).await;
    cluster
}

async fn log_end(cluster: &Cluster) -> i64 {
    let (_, status) = cluster.statuses(TOPIC, 0).remove(0);
    status.expect("it is hosted").log_end.0
}

#[tokio::test]
async fn refused_batches_get_their_code_and_leave_no_trace() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    assert_eq!(produce(&connection, batch(-1, 0), 1).await.error_code, 0);

    let mut flipped = batch(-1, 0);
    *flipped.last_mut().expect("not empty") ^= 1;
    let mut magic = batch(-1, 0);
    magic[16] = 1;
    let mut codec = batch(-1, 0);
    codec[22] = 7;
    let crc = crc(0x82f6_3b78, &codec[21..]);
    codec[17..21].copy_from_slice(&crc.to_be_bytes());
    let mut base = batch(-1, 0);
    base[7] = 77;
    let big = vec![7u8; 2 << 20];
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(now(), &big));
    let mut future = BatchBuilder::new(Codec::None);
    future.push(Record::new(TimestampMs(now().0 + 7_200_000), b"tomorrow"));
    let mut transactional = BatchBuilder::new(Codec::None).producer(5, 0, 0).transactional();
    transactional.push(Record::new(now(), b"in a transaction"));
    let refused = [
        ("a flipped bit", flipped, 2),
        ("an old format", magic, 87),
        ("an unknown codec", codec, 76),
        ("two batches", [batch(-1, 0), batch(-1, 1)].concat(), 87),
        ("a base offset", base, 87),
        ("too large", builder.build(), 10),
        ("from the future", future.build(), 32),
        ("of a transaction without an id", transactional.build(), 53),
        ("empty", Vec::new(), 87),
        ("cut short", batch(-1, 0)[..70].to_vec(), 87),
        ("of no format", [&batch(-1, 0)[..16], &[3], &batch(-1, 0)[17..]].concat(), 2),
    ];
    for (what, records, code) in refused {
        let answer = produce(&connection, records, -1).await;
        assert_eq!((answer.error_code, answer.base_offset), (code, -1), "{what}: {:?}", answer.error_message);
        assert!(answer.error_message.is_some(), "{what}: says why");
        assert_eq!(log_end(&cluster).await, 2, "{what}: nothing is stored");
    }
    let null = connection.send_version(&produce_request(TOPIC, 0, None, -1), 9).await.expect("an answer");
    assert_eq!(null.responses[0].partition_responses[0].error_code, 87);
    let answer = produce(&connection, batch(-1, 0), -1).await;
    assert_eq!((answer.error_code, answer.base_offset, answer.log_start_offset), (0, 2, 0));
}

#[tokio::test]
async fn acks_and_names_are_checked_per_partition() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    for acks in [2, -2] {
        assert_eq!(produce(&connection, batch(-1, 0), acks).await.error_code, 21);
    }
    let records = || Some(Bytes::from(batch(-1, 0)));
    for (topic, partition) in [("unknown", 0), (TOPIC, 1), (TOPIC, -1)] {
        // That it is not there is told before what else is wrong.
        for (records, acks) in [(records(), 1), (records(), 2), (Some(Bytes::new()), 1)] {
            let request = produce_request(topic, partition, records, acks);
            let response = connection.send_version(&request, 9).await.expect("an answer");
            assert_eq!(response.responses[0].partition_responses[0].error_code, 3);
        }
    }
    let nothing = ProduceRequest::default().with_acks(1).with_timeout_ms(500);
    assert!(connection.send_version(&nothing, 9).await.expect("an answer").responses.is_empty());
    // By id: an unknown one is another error than an unknown name.
    let id = cluster.broker(BrokerId(1)).expect("it runs").image().topic(TOPIC).expect("the topic").id;
    for (id, code) in [(Uuid::from_bytes(id.0), 0), (Uuid::from_bytes([9; 16]), 100), (Uuid::nil(), 100)] {
        let mut request = produce_request("", 0, records(), 1);
        request.topic_data[0].topic_id = id;
        let response = connection.send_version(&request, 13).await.expect("an answer");
        assert_eq!(response.responses[0].topic_id, id);
        assert_eq!(response.responses[0].partition_responses[0].error_code, code);
    }
}

/// Writes a request as a client would and leaves reading to the caller.
async fn write_raw<R: Encodable>(stream: &mut TcpStream, key: i16, version: i16, header: i16, id: i32, request: &R) {
    let mut frame = BytesMut::new();
    let head = RequestHeader::default().with_request_api_key(key).with_request_api_version(version);
    head.with_correlation_id(id).encode(&mut frame, header).expect("encodes");
    request.encode(&mut frame, version).expect("encodes");
    let mut bytes = BytesMut::new();
    bytes.put_u32(u32::try_from(frame.len()).expect("small"));
    bytes.extend_from_slice(&frame);
    stream.write_all(&bytes).await.expect("sent");
}

#[tokio::test]
async fn acks_0_is_never_answered_and_its_errors_close_the_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let address = cluster.address(BrokerId(1)).expect("broker 1");
    let mut stream = TcpStream::connect(address).await.expect("connects");
    let silent = produce_request(TOPIC, 0, Some(batch(-1, 0).into()), 0);
    write_raw(&mut stream, 0, 7, 1, 11, &silent).await;
    write_raw(&mut stream, 18, 0, 1, 12, &ApiVersionsRequest::default()).await;
    let mut head = [0; 8];
    stream.read_exact(&mut head).await.expect("an answer");
    assert_eq!((&head[4..]).get_i32(), 12, "only ApiVersions is answered");
    assert_eq!(log_end(&cluster).await, 2);

    let mut stream = TcpStream::connect(address).await.expect("connects");
    write_raw(&mut stream, 0, 7, 1, 13, &produce_request("unknown", 0, Some(batch(-1, 0).into()), 0)).await;
    let closed = tokio::time::timeout(TIMEOUT, stream.read(&mut head)).await.expect("closed in time");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn an_idempotent_producers_repeats_are_answered_and_its_gaps_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    let producer = producer_id(&cluster).await;
    for number in 0..8 {
        let answer = produce(&connection, batch(producer, number), -1).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, i64::from(number * 2)));
    }
    for number in 3..8 {
        let answer = produce(&connection, batch(producer, number), -1).await;
        assert_eq!((answer.error_code, answer.base_offset), (0, i64::from(number * 2)), "a repeat of the newest five");
    }
    assert!(matches!(produce(&connection, batch(producer, 0), -1).await.error_code, 45 | 46), "too old to be known");
    assert_eq!(produce(&connection, batch(producer, 9), -1).await.error_code, 45, "a gap");
    assert_eq!(log_end(&cluster).await, 16, "nothing is stored twice");
}

/// Five in flight on one connection reach the log in the order they were sent, or the producer's numbers would not fit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_keeps_its_order() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    let producer = producer_id(&cluster).await;
    for round in 0..40 {
        let calls: Vec<_> = (0..5)
            .map(|at| {
                let records = batch(producer, round * 5 + at).into();
                connection.call(&produce_request(TOPIC, 0, Some(records), -1), 9)
            })
            .collect();
        for (at, call) in (0..).zip(calls) {
            let response = call.await.expect("an answer");
            let answer = &response.responses[0].partition_responses[0];
            assert_eq!((answer.error_code, answer.base_offset), (0, i64::from((round * 5 + at) * 2)));
        }
    }
}

#[tokio::test]
async fn fetches_outside_of_the_log_and_of_sessions() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let mut client = Client::of(&cluster);
    for number in 0..3 {
        client.produce(&batch(-1, number)).await;
    }
    for (from, code) in [(-1, 1), (7, 1), (6, 0), (0, 0), (5, 0)] {
        let response = client.fetch(from, 30, 1).await.expect("an answer");
        let part = &response.responses[0].partitions[0];
        assert_eq!((part.error_code, part.high_watermark, part.log_start_offset), (code, 6, 0), "from {from}");
        let records = part.records.as_ref().expect("never null");
        assert_eq!(records.is_empty(), code != 0 || from == 6, "from {from}");
        assert_eq!(part.preferred_read_replica.0, -1);
    }
    let connection = connect(&cluster).await;
    let session = FetchRequest::default().with_session_id(5).with_session_epoch(1).with_max_bytes(1 << 20);
    assert_eq!(connection.send_version(&session, 12).await.expect("an answer").error_code, 70);
    // Asked for twice and for what is not there: each place gets its answer.
    let part = |partition| FetchPartition::default().with_partition(partition).with_partition_max_bytes(1 << 20);
    let topics = vec![
        FetchTopic::default().with_topic(topic_name(TOPIC)).with_partitions(vec![part(0), part(0), part(4)]),
        FetchTopic::default().with_topic(topic_name("unknown")).with_partitions(vec![part(0)]),
    ];
    let request = FetchRequest::default().with_max_wait_ms(10_000).with_min_bytes(1 << 20).with_max_bytes(1 << 20);
    let response = connection.send_version(&request.with_topics(topics), 12).await.expect("at once");
    let codes: Vec<Vec<i16>> =
        response.responses.iter().map(|topic| topic.partitions.iter().map(|part| part.error_code).collect()).collect();
    assert_eq!(codes, [vec![0, 0, 3], vec![3]]);
    let topic = FetchTopic::default().with_topic_id(Uuid::from_bytes([9; 16])).with_partitions(vec![part(0)]);
    let request = FetchRequest::default().with_max_bytes(1 << 20).with_topics(vec![topic]);
    let response = connection.send_version(&request, 17).await.expect("an answer");
    assert_eq!(response.responses[0].partitions[0].error_code, 100);
}

async fn list(connection: &Connection, replica: i32, asked: &[(i32, i64, i32)]) -> Vec<ListOffsetsPartitionResponse> {
    let part = |&(partition, timestamp, epoch): &(i32, i64, i32)| {
        let part = ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(timestamp);
        part.with_current_leader_epoch(epoch)
    };
    let topic =
        ListOffsetsTopic::default().with_name(topic_name(TOPIC)).with_partitions(asked.iter().map(part).collect());
    let request = ListOffsetsRequest::default()
        .with_replica_id(kafka_protocol::messages::BrokerId(replica))
        .with_topics(vec![topic]);
    connection.send_version(&request, 8).await.expect("an answer").topics.remove(0).partitions
}

/// Field fault S46: where no record is of the time asked for, or none at all, there is no offset, and no error.
#[tokio::test]
async fn a_time_without_a_record_is_no_offset_and_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    let listed = async |timestamp: i64, isolation: i8| {
        let part = ListOffsetsPartition::default().with_timestamp(timestamp).with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default().with_name(topic_name(TOPIC)).with_partitions(vec![part]);
        let request = ListOffsetsRequest::default()
            .with_replica_id(NOBODY)
            .with_isolation_level(isolation)
            .with_topics(vec![topic]);
        let answer =
            connection.send_version(&request, 8).await.expect("an answer").topics.remove(0).partitions.remove(0);
        (answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch)
    };
    for isolation in [0, 1] {
        for timestamp in [0, 1, now().0, 1 << 62, i64::MAX, -3] {
            assert_eq!(listed(timestamp, isolation).await, (0, -1, -1, -1), "{timestamp} of an empty log");
        }
    }
    assert_eq!(produce(&connection, batch(-1, 0), 1).await.error_code, 0);
    for isolation in [0, 1] {
        for timestamp in [now().0 + 3_600_000, 1 << 62, i64::MAX] {
            assert_eq!(listed(timestamp, isolation).await, (0, -1, -1, -1), "{timestamp} of a full one");
        }
        let (code, offset, timestamp, _) = listed(0, isolation).await;
        assert!((code, offset) == (0, 0) && timestamp > 0, "{code}, {offset}, {timestamp}");
    }
}

/// Field fault S43: times that are none, impossible or outside of the window, good and bad ones mixed.
#[tokio::test]
async fn records_of_impossible_times_are_named_and_nothing_is_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path()).await;
    let hour = "3600000";
    let window = [("message.timestamp.after.max.ms", hour), ("message.timestamp.before.max.ms", hour)];
    create_topic(&cluster, 1, 1, &window).await;
    let connection = connect(&cluster).await;
    let of_times = |times: &[i64]| {
        let mut builder = BatchBuilder::new(Codec::None);
        for time in times {
            builder.push(Record::new(TimestampMs(*time), b"at some time"));
        }
        builder.build()
    };
    let (now, days) = (now().0, 2 * 24 * 3_600_000);
    let refused: [(&[i64], &[i32]); 5] = [
        (&[now + days], &[0]),
        (&[now - days], &[0]),
        (&[now, now + days, now, now - days], &[1, 3]),
        (&[i64::MAX, now, i64::MIN], &[0, 2]),
        (&[-2], &[0]),
    ];
    for (times, bad) in refused {
        let answer = produce(&connection, of_times(times), -1).await;
        assert_eq!((answer.error_code, answer.base_offset), (32, -1), "{times:?}: {:?}", answer.error_message);
        let named: Vec<i32> = answer.record_errors.iter().map(|error| error.batch_index).collect();
        assert_eq!(named, bad, "{times:?}");
        assert!(answer.record_errors.iter().all(|error| error.batch_index_error_message.is_some()), "{times:?}");
        assert_eq!(log_end(&cluster).await, 0, "{times:?}: nothing is stored");
    }
    let answer = produce(&connection, of_times(&[-1, -1]), -1).await;
    assert_eq!((answer.error_code, answer.base_offset), (0, 0), "no time at all: {:?}", answer.error_message);
}

#[tokio::test]
async fn offsets_are_listed_by_end_and_by_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    let begin = now().0 - 10_000;
    for at in 0..5 {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(TimestampMs(begin + at * 100), b"one"));
        builder.push(Record::new(TimestampMs(begin + at * 100 + 50), b"two"));
        assert_eq!(produce(&connection, builder.build(), 1).await.error_code, 0);
    }
    let found = async |timestamp: i64| {
        let answer = list(&connection, -1, &[(0, timestamp, -1)]).await.remove(0);
        assert_eq!(answer.error_code, 0);
        (answer.offset, answer.timestamp)
    };
    for (version, timestamp, code) in [
        (5, -3, 35),
        (7, -3, 0),
        (7, -4, 35),
        (8, -4, 0),
        (8, -5, 35),
        (9, -5, 0),
        (10, -6, 35),
        (10, i64::MIN, 35),
        (1, -2, 0),
    ] {
        let part = ListOffsetsPartition::default().with_timestamp(timestamp).with_current_leader_epoch(-1);
        let topic = ListOffsetsTopic::default().with_name(topic_name(TOPIC)).with_partitions(vec![part]);
        let request = ListOffsetsRequest::default().with_replica_id(NOBODY).with_topics(vec![topic]);
        let answer = connection.send_version(&request, version).await.expect("an answer");
        assert_eq!(answer.topics[0].partitions[0].error_code, code, "{timestamp} in {version}");
    }
    assert_eq!(found(-1).await, (10, -1));
    assert_eq!(found(-2).await, (0, -1));
    assert_eq!(found(-4).await, (0, -1));
    assert_eq!(found(-3).await, (9, begin + 450));
    assert_eq!(found(0).await, (0, begin));
    assert_eq!(found(begin + 101).await, (3, begin + 150));
    assert_eq!(found(begin + 451).await, (-1, -1), "no such record is no error");
    let codes: Vec<i16> = list(&connection, -1, &[(0, -1, -1), (1, -1, -1), (0, -2, -1)])
        .await
        .iter()
        .map(|answer| answer.error_code)
        .collect();
    assert_eq!(codes, [42, 3, 42], "a partition asked for twice");
    let (_, status) = cluster.statuses(TOPIC, 0).remove(0);
    let epoch = status.expect("hosted").leader_epoch.0;
    // The ends come with the epoch of the record there, so that a client can tell later whether its log was cut.
    for timestamp in [-1, -2, -4, begin] {
        assert_eq!(list(&connection, -1, &[(0, timestamp, -1)]).await[0].leader_epoch, epoch, "{timestamp}");
    }
    for (asked, code) in [(epoch, 0), (epoch - 1, 74), (epoch + 1, 75), (-2, 74)] {
        // An epoch of -1 is not checked.
        let code = if asked == -1 { 0 } else { code };
        assert_eq!(list(&connection, -1, &[(0, -1, asked)]).await[0].error_code, code, "epoch {asked}");
    }
    // A tool that asks as no replica in particular sees the log end.
    assert_eq!(list(&connection, -2, &[(0, -1, -1)]).await[0].offset, 10);

    let epoch_end = async |current: i32, asked: i32| {
        let part = OffsetForLeaderPartition::default().with_current_leader_epoch(current).with_leader_epoch(asked);
        let topic = OffsetForLeaderTopic::default().with_topic(topic_name(TOPIC)).with_partitions(vec![part]);
        let request = OffsetForLeaderEpochRequest::default().with_replica_id(NOBODY).with_topics(vec![topic]);
        let response = connection.send_version(&request, 4).await.expect("an answer");
        let answer = &response.topics[0].partitions[0];
        (answer.error_code, answer.leader_epoch, answer.end_offset)
    };
    assert_eq!(epoch_end(-1, epoch).await, (0, epoch, 10));
    assert_eq!(epoch_end(epoch, epoch + 5).await, (0, -1, -1), "nobody knows such an epoch");
    assert_eq!(epoch_end(epoch + 1, epoch).await, (75, -1, -1));
    assert_eq!(epoch_end(-2, epoch).await, (74, -1, -1));
}

/// An acknowledgement that cannot come is a code that idempotent producers retry, never -1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncertain_produce_times_out_and_its_repeat_is_recognised() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[("min.insync.replicas", "2")]).await;
    let producer = producer_id(&cluster).await;
    Client::of(&cluster).produce(&batch(producer, 0)).await;
    let leads = |cluster: &Cluster| {
        let role = |(id, status): (BrokerId, Option<highwater_replication::Status>)| {
            status.filter(|status| status.role == Role::Leader).map(|_| id)
        };
        cluster.statuses(TOPIC, 0).into_iter().find_map(role)
    };
    let leader = leads(&cluster).expect("a leader");
    // Whom one asks that does not lead says so; only a name that does not exist is unknown.
    let other = cluster.ids().into_iter().find(|&id| id != leader).expect("three brokers");
    let address = cluster.address(other).expect("an address").to_string();
    let wrong = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let answer = produce(&wrong, batch(producer, 1), -1).await;
    assert_eq!(answer.error_code, 6);
    let mut hinted = produce_request(TOPIC, 0, Some(batch(producer, 1).into()), -1);
    hinted.topic_data[0].name = topic_name(TOPIC);
    let hinted = wrong.send_version(&hinted, 12).await.expect("an answer");
    assert_eq!(hinted.responses[0].partition_responses[0].current_leader.leader_id.0, leader.0);
    assert_eq!(hinted.node_endpoints[0].port, i32::from(cluster.address(leader).expect("an address").port()));

    let connection = connect(&cluster).await;
    let followers: Vec<BrokerId> = cluster.ids().into_iter().filter(|&id| id != leader).collect();
    for id in &followers {
        assert!(cluster.kill(*id).await);
    }
    let answer = produce(&connection, batch(producer, 1), -1).await;
    assert!(matches!(answer.error_code, 7 | 19 | 20), "{}", answer.error_code);
    for id in followers {
        cluster.restart(id).await.expect("it starts");
    }
    let answer = until("the acknowledgement", async || {
        let answer = produce(&connection, batch(producer, 1), -1).await;
        assert!(matches!(answer.error_code, 0 | 7 | 19 | 20), "{}", answer.error_code);
        (answer.error_code == 0).then_some(answer)
    })
    .await;
    assert_eq!(answer.base_offset, 2);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(Client::of(&cluster).read_all().await.len(), 4, "stored once");
}

/// Field fault C13: who uses a topic first makes it, once, however many do so at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_first_use_a_topic_at_once_make_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path()).await;
    let address = cluster.address(BrokerId(1)).expect("broker 1").to_string();
    let asked = |allowed: bool| {
        let topic = MetadataRequestTopic::default().with_name(Some(topic_name(TOPIC)));
        MetadataRequest::default().with_topics(Some(vec![topic])).with_allow_auto_topic_creation(allowed)
    };
    let first = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let response = first.send_version(&asked(false), 12).await.expect("an answer");
    assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (3, 0), "not made for this one");
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Connection::connect(&address, "test", TIMEOUT).await.expect("connects"));
    }
    let calls: Vec<_> = clients.iter().map(|client| client.call(&asked(true), 12)).collect();
    for call in calls {
        let code = call.await.expect("an answer").topics[0].error_code;
        assert!(matches!(code, 0 | 3 | 5), "{code}");
    }
    let mut ids = std::collections::BTreeSet::new();
    for client in &clients {
        let records = Some(Bytes::from(batch(-1, 0)));
        let id = until("a leader", async || {
            let response = client.send_version(&asked(true), 12).await.expect("an answer");
            let topic = &response.topics[0];
            let led = topic.error_code == 0 && topic.partitions.iter().all(|partition| partition.error_code == 0);
            led.then_some(topic.topic_id)
        })
        .await;
        ids.insert(id);
        let response = client.send_version(&produce_request(TOPIC, 0, records, 1), 9).await.expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(log_end(&cluster).await, 40);
}

fn fetch_by_id(id: Uuid, leader_epoch: i32) -> FetchRequest {
    let part = FetchPartition::default().with_current_leader_epoch(leader_epoch).with_partition_max_bytes(1 << 20);
    let topic = FetchTopic::default().with_topic_id(id).with_partitions(vec![part]);
    FetchRequest::default().with_max_bytes(1 << 20).with_topics(vec![topic])
}

/// Field fault C11: the id of a topic that is gone does not reach the next one of its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_id_of_a_topic_that_was_made_again_is_unknown() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = one_broker(&dir).await;
    let connection = connect(&cluster).await;
    let id = || {
        let image = cluster.broker(BrokerId(1)).expect("it runs").image();
        image.topic(TOPIC).map(|topic| Uuid::from_bytes(topic.id.0))
    };
    let old = id().expect("an id");
    let request = DeleteTopicsRequest::default().with_topic_names(vec![topic_name(TOPIC)]).with_timeout_ms(10_000);
    assert_eq!(connection.send_version(&request, 4).await.expect("an answer").responses[0].error_code, 0);
    until("the topic going", async || id().is_none().then_some(())).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let new = id().expect("an id");
    for (id, code) in [(old, 100), (new, 0)] {
        let mut produced = produce_request("", 0, Some(batch(-1, 0).into()), 1);
        produced.topic_data[0].topic_id = id;
        let produced = connection.send_version(&produced, 13).await.expect("an answer");
        assert_eq!(produced.responses[0].partition_responses[0].error_code, code);
        let fetched = connection.send_version(&fetch_by_id(id, -1), 17).await.expect("an answer");
        let part = &fetched.responses[0].partitions[0];
        assert_eq!(
            (part.error_code, part.records.as_ref().is_some_and(|records| records.is_empty())),
            (code, code != 0)
        );
    }
}

/// Who believes in a former leadership is told who leads, and where, so that it need not ask for metadata (KIP-951).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_of_a_former_leadership_names_the_leader() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = one_broker(&dir).await;
    assert!(cluster.kill(BrokerId(1)).await);
    cluster.restart(BrokerId(1)).await.expect("it starts");
    let epoch = until("a later leadership", async || {
        let (_, status) = cluster.statuses(TOPIC, 0).pop()?;
        status.filter(|status| status.role == Role::Leader && status.leader_epoch.0 > 0)
    })
    .await
    .leader_epoch
    .0;
    let connection = connect(&cluster).await;
    let id = cluster.broker(BrokerId(1)).expect("it runs").image().topic(TOPIC).expect("the topic").id;
    let fetched = async |epoch: i32, version: i16| {
        let request = fetch_by_id(Uuid::from_bytes(id.0), epoch);
        connection.send_version(&request, version).await.expect("an answer")
    };
    for version in 16..=18 {
        let answer = fetched(epoch - 1, version).await;
        let part = &answer.responses[0].partitions[0];
        assert_eq!(
            (part.error_code, part.current_leader.leader_id.0, part.current_leader.leader_epoch),
            (74, 1, epoch)
        );
        let port = cluster.address(BrokerId(1)).expect("an address").port();
        assert_eq!(answer.node_endpoints.iter().map(|node| node.port).collect::<Vec<_>>(), [i32::from(port)]);
    }
    for (epoch, code) in [(epoch, 0), (epoch + 1, 75)] {
        let answer = fetched(epoch, 18).await;
        assert_eq!((answer.responses[0].partitions[0].error_code, answer.node_endpoints.len()), (code, 0));
    }
}
