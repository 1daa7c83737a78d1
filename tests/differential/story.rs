//! What both brokers hold before the first request is drawn, and waiting until both hold the same again.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use highwater_tests::{Client, Random, requests::Api};
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiVersionsRequest, CreateTopicsRequest, DeleteGroupsRequest, DeleteTopicsRequest, DescribeGroupsRequest,
    DescribeTransactionsRequest, FindCoordinatorRequest, GroupId, InitProducerIdRequest, MetadataRequest,
    OffsetFetchRequest, ProduceRequest, TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;

use crate::Run;
use crate::exchange::Peer;
use crate::generator::{GROUPS, TOPICS, TRANSACTIONAL_IDS};
use crate::tree::Tree;

/// How long their coordinators may take to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long both may take to hold the same topics.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Kafka's codes for a coordinator that has not read its partition yet, or that nobody is so far.
const STARTING: [i16; 3] = [14, 15, 16];

/// What a broker says it serves: API → versions.
pub(crate) fn ranges(peer: &mut Peer) -> anyhow::Result<BTreeMap<i16, (i16, i16)>> {
    let response = Client::connect(peer.address)?.send(0, &ApiVersionsRequest::default())?;
    Ok(response.api_keys.iter().map(|range| (range.api_key, (range.min_version, range.max_version))).collect())
}

/// Makes the topics, writes records of several kinds into some, and has both hand out producer ids.
pub(crate) fn begin(run: &mut Run, apis: &[Api]) -> anyhow::Result<()> {
    for peer in [&mut run.ours, &mut run.theirs] {
        let mut client = Client::connect(peer.address)?;
        let config = |name: &'static str, value: &'static str| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(Some(StrBytes::from_static_str(value)))
        };
        let topics = TOPICS.iter().map(|&name| {
            let configs = match name {
                "compacted" => vec![config("cleanup.policy", "compact"), config("segment.bytes", "1048576")],
                "stamped" => vec![config("message.timestamp.type", "LogAppendTime")],
                _ => vec![],
            };
            CreatableTopic::default()
                .with_name(TopicName(StrBytes::from_static_str(name)))
                .with_num_partitions(if name == "beta" { 3 } else { 1 })
                .with_replication_factor(1)
                .with_configs(configs)
        });
        let request = CreateTopicsRequest::default().with_topics(topics.collect()).with_timeout_ms(20_000);
        let response = client.send(7, &request)?;
        for topic in &response.topics {
            ensure!(topic.error_code == 0, "{:?}: error {}", topic.name, topic.error_code);
        }
        wait_for_coordinators(&mut client)?;
    }
    settle(run)?;
    for (topic, partition, records) in records(run.first_time_ms) {
        let partition = PartitionProduceData::default().with_index(partition).with_records(Some(records.into()));
        let topic = TopicProduceData::default()
            .with_name(TopicName(StrBytes::from_static_str(topic)))
            .with_partition_data(vec![partition]);
        let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(20_000).with_topic_data(vec![topic]);
        for peer in [&run.ours, &run.theirs] {
            let response = Client::connect(peer.address)?.send(9, &request)?;
            let partition = &response.responses[0].partition_responses[0];
            ensure!(partition.error_code == 0, "producing gives {}", partition.error_code);
        }
    }
    let transactional = TRANSACTIONAL_IDS.iter().map(|id| Some(TransactionalId(StrBytes::from_static_str(id))));
    for (number, id) in (0..).zip([None, None].into_iter().chain(transactional)) {
        for peer in [&mut run.ours, &mut run.theirs] {
            let request =
                InitProducerIdRequest::default().with_transactional_id(id.clone()).with_transaction_timeout_ms(600_000);
            let mut client = Client::connect(peer.address)?;
            if let Some(id) = &id {
                // Whoever asks first has the topic of transactions made.
                let find = FindCoordinatorRequest::default().with_key(id.0.clone()).with_key_type(1);
                client.send(1, &find)?;
            }
            let mut response = client.send(4, &request)?;
            let deadline = Instant::now() + START_LIMIT;
            while STARTING.contains(&response.error_code) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(50));
                response = client.send(4, &request)?;
            }
            ensure!(response.error_code == 0, "InitProducerId gives {}", response.error_code);
            let read = |text: String| Tree::read(&text);
            peer.world.learn(
                -number,
                "InitProducerId",
                &read(format!("{request:?}"))?,
                &read(format!("{response:?}"))?,
            );
        }
    }
    // One member in each group, so that its later requests have something to be about.
    let join = apis.iter().find(|api| api.name == "JoinGroup").context("requests.txt has no JoinGroup")?;
    let mut random = Random::new(1);
    for _ in 0..12 {
        run.both(join, 5, random.number())?;
    }
    Ok(())
}

/// What the topics hold: topic, partition, batch.
fn records(first_time_ms: i64) -> Vec<(&'static str, i32, Vec<u8>)> {
    let batch = |codec: Codec, from_ms: i64, values: &[&str]| {
        let mut builder = BatchBuilder::new(codec);
        for (number, value) in (0..).zip(values) {
            let time = TimestampMs(first_time_ms + from_ms + 100 * number);
            builder.push(match value.split_once('=') {
                Some((key, "")) => Record { value: None, ..Record::keyed(time, key.as_bytes(), b"") },
                Some((key, value)) => Record::keyed(time, key.as_bytes(), value.as_bytes()),
                None => Record {
                    headers: &[("name", Some(b"text")), ("none", None)],
                    ..Record::new(time, value.as_bytes())
                },
            });
        }
        builder.build()
    };
    vec![
        ("alpha", 0, batch(Codec::None, 0, &["one", "two", "a=three"])),
        ("alpha", 0, batch(Codec::Gzip, 500, &["four", "a="])),
        ("alpha", 0, batch(Codec::Lz4, 200, &["six"])),
        ("beta", 0, batch(Codec::Snappy, 0, &["one", "two"])),
        ("beta", 1, batch(Codec::Zstd, 700, &["k=one", "k=two", "k=three"])),
        ("compacted", 0, batch(Codec::None, 0, &["a=1", "b=1", "a=2", "b="])),
        ("stamped", 0, batch(Codec::None, 0, &["one", "two"])),
    ]
}

/// The first question for a coordinator makes the topic of the groups.
fn wait_for_coordinators(client: &mut Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    for group in GROUPS {
        let request = FindCoordinatorRequest::default().with_key(StrBytes::from_static_str(group));
        let offsets =
            OffsetFetchRequest::default().with_group_id(GroupId(StrBytes::from_static_str(group))).with_topics(None);
        while client.send(1, &request)?.error_code != 0 || client.send(5, &offsets)?.error_code != 0 {
            ensure!(Instant::now() < deadline, "there is no coordinator for {group}");
            thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Waits until no transaction is being ended: what follows must not meet one on one side only.
pub(crate) fn settle_transactions(run: &mut Run) -> anyhow::Result<()> {
    let ids = TRANSACTIONAL_IDS.iter().map(|id| TransactionalId(StrBytes::from_static_str(id)));
    let request = DescribeTransactionsRequest::default().with_transactional_ids(ids.collect());
    let deadline = Instant::now() + SETTLE_LIMIT;
    for peer in [&run.ours, &run.theirs] {
        let mut client = Client::connect(peer.address)?;
        loop {
            let response = client.send(0, &request)?;
            let is_ending = |state: &str| state.starts_with("Prepare");
            if !response.transaction_states.iter().any(|state| is_ending(&state.transaction_state)) {
                break;
            }
            ensure!(Instant::now() < deadline, "transactions do not end: {:?}", response.transaction_states);
            thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// A group that nobody was let into, or that only somebody has left who was given an id, stays with Kafka until offsets are looked
/// over, and is none here: to ask to be let in costs no memory that way. Both have none then.
pub(crate) fn settle_group(run: &mut Run, group: &str) -> anyhow::Result<()> {
    let id = GroupId(StrBytes::from_string(group.to_owned()));
    let describe = DescribeGroupsRequest::default().with_groups(vec![id.clone()]);
    let response = Client::connect(run.ours.address)?.send(4, &describe)?;
    if response.groups.iter().all(|group| group.group_state.as_str() == "Dead") {
        // Whether Kafka has it cannot be asked: to those who read it tells of it only after something else was written. Of one
        // with members it says that it is not empty, and the difference stays.
        let delete = DeleteGroupsRequest::default().with_groups_names(vec![id]);
        Client::connect(run.theirs.address)?.send(2, &delete)?;
    }
    Ok(())
}

/// Waits until both hold the same topics and somebody leads each of their partitions.
pub(crate) fn settle(run: &mut Run) -> anyhow::Result<()> {
    let (mut deleted, mut deadline) = (false, Instant::now() + SETTLE_LIMIT);
    loop {
        let mut held = Vec::new();
        for peer in [&mut run.ours, &mut run.theirs] {
            let response = Client::connect(peer.address)?.send(12, &MetadataRequest::default().with_topics(None))?;
            let mut topics = BTreeMap::new();
            let mut led = true;
            for topic in &response.topics {
                let name = topic.name.as_ref().map_or("", |name| name.as_str());
                peer.world.learn_topic(name, &topic.topic_id.to_string());
                topics.insert(name.to_owned(), topic.partitions.len());
                led &= topic.partitions.iter().all(|partition| partition.error_code == 0);
            }
            held.push((topics, led));
        }
        if held[0].0 == held[1].0 && held.iter().all(|(_, led)| *led) {
            // A leader takes over a moment after it is told to everybody.
            thread::sleep(Duration::from_millis(30));
            return Ok(());
        }
        if Instant::now() > deadline {
            if deleted {
                bail!("the brokers hold different topics: {held:?}");
            }
            // Told once, and then both go on with what both have.
            run.tell_topics(&held[0].0, &held[1].0);
            for (peer, (topics, _)) in [(&run.ours, &held[0]), (&run.theirs, &held[1])] {
                let odd =
                    topics.iter().filter(|topic| held.iter().any(|(other, _)| other.get(topic.0) != Some(topic.1)));
                let names = odd.map(|(name, _)| TopicName(StrBytes::from_string(name.clone()))).collect();
                let request = DeleteTopicsRequest::default().with_topic_names(names).with_timeout_ms(20_000);
                Client::connect(peer.address)?.send(5, &request)?;
            }
            (deleted, deadline) = (true, Instant::now() + SETTLE_LIMIT);
        }
        thread::sleep(Duration::from_millis(20));
    }
}
