//! Transactions over the wire: each API in each version, and coordinators that are killed in the middle of each step.

use std::collections::BTreeSet;
use std::time::Duration;

use highwater_broker::client::{ClientError, Connection};
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::BrokerId;
use highwater_storage::{BatchBuilder, Codec, Record, TransactionMarker, batches};
use kafka_protocol::messages::add_partitions_to_txn_request::{AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeProducersRequest, DescribeTransactionsRequest,
    EndTxnRequest, FetchRequest, FindCoordinatorRequest, InitProducerIdRequest, ListOffsetsRequest,
    ListTransactionsRequest, MetadataRequest, OffsetFetchRequest, ProduceRequest, ProducerId, TopicName,
    TransactionalId, TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};
use kafka_protocol::protocol::{Request, StrBytes};

use crate::support::{TIMEOUT, TOPIC, create_topic, now, until};

const ID: &str = "copier";
const GROUP: &str = "readers";

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn topic() -> TopicName {
    TopicName(text(TOPIC))
}

fn id() -> TransactionalId {
    TransactionalId(text(ID))
}

async fn start(brokers: usize, dir: &std::path::Path, abort_check_ms: u64) -> Cluster {
    let options = ClusterOptions::new(brokers, dir).configure(move |config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.replica_lag_time_max_ms = 2_000;
        config.replica_fetch_wait_max_ms = 100;
        config.replica_fetch_backoff_ms = 100;
        config.offsets_topic_partitions = 2;
        config.transactions_topic_partitions = 2;
        config.transactions.abort_check_interval_ms = abort_check_ms;
    });
    Cluster::start(options).await.expect("the cluster starts")
}

/// Whom a request is for.
#[derive(Clone, Copy)]
enum Whom {
    /// The coordinator of the transactional id.
    Transactions,
    /// The coordinator of the group.
    Group,
    /// The leader of a partition.
    Leader(i32),
}

/// A client of a cluster that looks for whoever is responsible, again if it is told to.
struct Client {
    addresses: Vec<String>,
}

impl Client {
    fn of(cluster: &Cluster) -> Self {
        Self { addresses: cluster.running().map(|broker| broker.local_addr().to_string()).collect() }
    }

    async fn look_for(&self, whom: Whom) -> Option<String> {
        for address in &self.addresses {
            let Ok(connection) = Connection::connect(address, "test", TIMEOUT).await else { continue };
            match whom {
                Whom::Leader(partition) => {
                    let Ok(metadata) = connection.send(&MetadataRequest::default().with_topics(None)).await else {
                        continue;
                    };
                    let topic = metadata.topics.iter().find(|known| known.name == Some(topic()))?;
                    let partition = topic.partitions.iter().find(|known| known.partition_index == partition)?;
                    let leader = metadata.brokers.iter().find(|broker| broker.node_id == partition.leader_id)?;
                    return Some(format!("{}:{}", &*leader.host, leader.port));
                }
                Whom::Transactions | Whom::Group => {
                    let (kind, key) = if matches!(whom, Whom::Group) { (0, GROUP) } else { (1, ID) };
                    let request =
                        FindCoordinatorRequest::default().with_key_type(kind).with_coordinator_keys(vec![text(key)]);
                    let Ok(found) = connection.send(&request).await else { continue };
                    let found = &found.coordinators[0];
                    return (found.error_code == 0).then(|| format!("{}:{}", &*found.host, found.port));
                }
            }
        }
        None
    }

    /// Asks until the answer is none of those that say to ask again.
    async fn ask<R: Request>(
        &self,
        whom: Whom,
        request: &R,
        version: i16,
        code: impl Fn(&R::Response) -> i16,
    ) -> R::Response {
        until("an answer", async || {
            let address = self.look_for(whom).await?;
            let connection = Connection::connect(&address, "test", TIMEOUT).await.ok()?;
            let answer: Result<R::Response, ClientError> = connection.send_version(request, version).await;
            // 13 is no answer at all; 19 is what cannot be verified yet.
            let answer = answer.ok()?;
            let again = matches!(code(&answer), 3 | 5 | 6 | 7 | 14 | 15 | 16 | 19 | 20 | 51 | 88);
            (!again).then_some(answer)
        })
        .await
    }
}

/// A transactional producer.
struct Producer<'a> {
    client: &'a Client,
    id: i64,
    epoch: i16,
    /// Of each partition.
    sequences: [i32; 2],
}

impl<'a> Producer<'a> {
    async fn begin(client: &'a Client, timeout_ms: i32) -> Self {
        let begun = init(client, 5, timeout_ms, None).await.expect("a producer id");
        Self { client, id: begun.0, epoch: begun.1, sequences: [0; 2] }
    }

    fn batch(&mut self, partition: i32, value: &str) -> Vec<u8> {
        let sequence = &mut self.sequences[usize::try_from(partition).expect("a partition")];
        let mut builder = BatchBuilder::new(Codec::None).producer(self.id, self.epoch, *sequence).transactional();
        builder.push(Record { timestamp: now(), key: None, value: Some(value.as_bytes()), headers: &[] });
        *sequence += 1;
        builder.build()
    }

    async fn produce(&mut self, partition: i32, value: &str, version: i16) -> i16 {
        let batch = self.batch(partition, value);
        send(self.client, partition, &batch, version, Some(id())).await
    }

    async fn add_partition(&self, partition: i32, version: i16) -> i16 {
        self.take_part(&[partition], version).await[0]
    }

    async fn take_part(&self, partitions: &[i32], version: i16) -> Vec<i16> {
        let topics = vec![AddPartitionsToTxnTopic::default().with_name(topic()).with_partitions(partitions.to_vec())];
        let request = match version {
            0..=3 => AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(id())
                .with_v3_and_below_producer_id(ProducerId(self.id))
                .with_v3_and_below_producer_epoch(self.epoch)
                .with_v3_and_below_topics(topics),
            _ => AddPartitionsToTxnRequest::default().with_transactions(vec![
                AddPartitionsToTxnTransaction::default()
                    .with_transactional_id(id())
                    .with_producer_id(ProducerId(self.id))
                    .with_producer_epoch(self.epoch)
                    .with_topics(topics),
            ]),
        };
        let codes = |answer: &kafka_protocol::messages::AddPartitionsToTxnResponse| -> Vec<i16> {
            let topics = match version {
                0..=3 => &answer.results_by_topic_v3_and_below,
                _ => &answer.results_by_transaction[0].topic_results,
            };
            let codes = topics[0].results_by_partition.iter().map(|one| one.partition_error_code);
            // 3 is told of what does not exist, which no repetition helps with.
            codes.map(|code| if code == 3 { 1003 } else { code }).collect()
        };
        codes(&self.client.ask(Whom::Transactions, &request, version, |answer| codes(answer)[0]).await)
    }

    async fn add_offsets(&self, version: i16) -> i16 {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(id())
            .with_producer_id(ProducerId(self.id))
            .with_producer_epoch(self.epoch)
            .with_group_id(text(GROUP).into());
        self.client.ask(Whom::Transactions, &request, version, |answer| answer.error_code).await.error_code
    }

    async fn commit_offset(&self, offset: i64, version: i16) -> i16 {
        let partition = TxnOffsetCommitRequestPartition::default().with_committed_offset(offset);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(id())
            .with_group_id(text(GROUP).into())
            .with_producer_id(ProducerId(self.id))
            .with_producer_epoch(self.epoch)
            .with_generation_id(-1)
            .with_topics(vec![
                TxnOffsetCommitRequestTopic::default().with_name(topic()).with_partitions(vec![partition]),
            ]);
        let code =
            |answer: &kafka_protocol::messages::TxnOffsetCommitResponse| answer.topics[0].partitions[0].error_code;
        code(&self.client.ask(Whom::Group, &request, version, code).await)
    }

    fn end_request(&self, commits: bool) -> EndTxnRequest {
        EndTxnRequest::default()
            .with_transactional_id(id())
            .with_producer_id(ProducerId(self.id))
            .with_producer_epoch(self.epoch)
            .with_committed(commits)
    }

    async fn end(&mut self, commits: bool, version: i16) -> i16 {
        let request = self.end_request(commits);
        let answer = self.client.ask(Whom::Transactions, &request, version, |answer| answer.error_code).await;
        if version >= 5 && answer.error_code == 0 {
            (self.id, self.epoch, self.sequences) = (answer.producer_id.0, answer.producer_epoch, [0; 2]);
        }
        answer.error_code
    }
}

async fn init(client: &Client, version: i16, timeout_ms: i32, expected: Option<(i64, i16)>) -> Result<(i64, i16), i16> {
    let (producer, epoch) = expected.unwrap_or((-1, -1));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id()))
        .with_transaction_timeout_ms(timeout_ms)
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch);
    let answer = client.ask(Whom::Transactions, &request, version, |answer| answer.error_code).await;
    if answer.error_code == 0 { Ok((answer.producer_id.0, answer.producer_epoch)) } else { Err(answer.error_code) }
}

fn to_partition(partition: i32, batch: &[u8], id: Option<TransactionalId>) -> ProduceRequest {
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch.to_vec().into()));
    let topic = TopicProduceData::default().with_name(topic()).with_partition_data(vec![data]);
    ProduceRequest::default()
        .with_transactional_id(id)
        .with_acks(-1)
        .with_timeout_ms(2_000)
        .with_topic_data(vec![topic])
}

async fn send(client: &Client, partition: i32, batch: &[u8], version: i16, id: Option<TransactionalId>) -> i16 {
    let request = to_partition(partition, batch, id);
    let code =
        |answer: &kafka_protocol::messages::ProduceResponse| answer.responses[0].partition_responses[0].error_code;
    code(&client.ask(Whom::Leader(partition), &request, version, code).await)
}

/// What a reader sees of a partition, and where it ends: what is decided only, if `committed`.
async fn read(client: &Client, partition: i32, committed: bool) -> (Vec<String>, i64) {
    let (mut values, mut from) = (Vec::new(), 0);
    let isolation = i8::from(committed);
    loop {
        let part = FetchPartition::default()
            .with_partition(partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(from)
            .with_partition_max_bytes(1 << 20);
        let request = FetchRequest::default()
            .with_replica_id(kafka_protocol::messages::BrokerId(-1))
            .with_max_bytes(10 << 20)
            .with_isolation_level(isolation)
            .with_topics(vec![FetchTopic::default().with_topic(topic()).with_partitions(vec![part])]);
        let answer = client
            .ask(Whom::Leader(partition), &request, 12, |answer| {
                let part = &answer.responses[0].partitions[0];
                // A leader that was elected just now does not know yet how far it may go.
                if part.high_watermark == -1 { 5 } else { part.error_code }
            })
            .await;
        let part = &answer.responses[0].partitions[0];
        assert_eq!(part.error_code, 0);
        assert_eq!(part.aborted_transactions.is_some(), committed);
        let aborted = part.aborted_transactions.clone().unwrap_or_default();
        assert!(aborted.is_sorted_by_key(|one| one.first_offset));
        let bytes = part.records.clone().expect("never null");
        if bytes.is_empty() {
            let end = if committed { part.last_stable_offset } else { part.high_watermark };
            assert_eq!(from, end);
            return (values, end);
        }
        let mut ended = BTreeSet::new();
        for batch in batches(&bytes) {
            let batch = batch.expect("whole batches");
            from = batch.last_offset().0 + 1;
            let producer = batch.producer_id();
            if let Some(marker) = TransactionMarker::of(&batch) {
                ended.insert((producer, marker.is_abort, batch.base_offset()));
                continue;
            }
            // Aborted from the first offset on, up to the producer's next marker.
            let aborts = aborted.iter().filter(|one| one.producer_id.0 == producer);
            let mut reaches = aborts.filter(|one| one.first_offset <= batch.base_offset().0);
            let is_over =
                |first: i64| ended.iter().any(|(of, is_abort, at)| *of == producer && *is_abort && at.0 > first);
            if reaches.any(|one| !is_over(one.first_offset)) {
                continue;
            }
            for record in batch.records().expect("not compressed") {
                values
                    .push(String::from_utf8(record.expect("a record").value.expect("a value").to_vec()).expect("text"));
            }
        }
    }
}

async fn latest(client: &Client, committed: bool, version: i16) -> i64 {
    let asked =
        ListOffsetsPartition::default().with_partition_index(0).with_timestamp(-1).with_current_leader_epoch(-1);
    let request = ListOffsetsRequest::default()
        .with_replica_id(kafka_protocol::messages::BrokerId(-1))
        .with_isolation_level(i8::from(committed))
        .with_topics(vec![ListOffsetsTopic::default().with_name(topic()).with_partitions(vec![asked])]);
    let answer =
        client.ask(Whom::Leader(0), &request, version, |answer| answer.topics[0].partitions[0].error_code).await;
    answer.topics[0].partitions[0].offset
}

/// The group's offset, or 88 at once if it is not decided.
async fn committed(client: &Client, waits: bool) -> Result<i64, i16> {
    let topics = OffsetFetchRequestTopics::default().with_name(topic()).with_partition_indexes(vec![0]);
    let group = OffsetFetchRequestGroup::default().with_group_id(text(GROUP).into()).with_topics(Some(vec![topics]));
    let request = OffsetFetchRequest::default().with_groups(vec![group]).with_require_stable(true);
    let code = |answer: &kafka_protocol::messages::OffsetFetchResponse| match &answer.groups[0] {
        group if group.error_code != 0 => group.error_code,
        group => match group.topics[0].partitions[0].error_code {
            88 if !waits => 1088,
            code => code,
        },
    };
    let answer = client.ask(Whom::Group, &request, 9, code).await;
    let partition = &answer.groups[0].topics[0].partitions[0];
    if partition.error_code == 0 { Ok(partition.committed_offset) } else { Err(partition.error_code) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_is_seen_as_a_whole_or_not_at_all_in_every_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path(), 10_000).await;
    create_topic(&cluster, 2, 1, &[]).await;
    let client = Client::of(&cluster);
    let (mut expected, mut offset) = (Vec::new(), -1);
    for version in 0..=5 {
        for commits in [true, false] {
            let mut producer = Producer::begin(&client, 60_000).await;
            // From 12 on Produce has the partition take part by itself.
            let produce = if version == 5 { 12 } else { 3 + version * 2 };
            if version < 5 {
                let refused = if produce >= 11 { 120 } else { 48 };
                assert_eq!(producer.produce(0, "alone", produce).await, refused, "it takes no part yet");
                producer.sequences = [0; 2];
                assert_eq!(producer.add_partition(0, version).await, 0);
                assert_eq!(producer.add_partition(9, version).await, 1003);
                assert_eq!(producer.take_part(&[0, 9, 0], version).await, [55, 1003, 55], "none, or all");
                assert_eq!(producer.take_part(&[1, 0, 1], version).await, [0; 3], "named twice");
                assert_eq!(producer.add_offsets(version.min(4)).await, 0);
            }
            let value = format!("{version} {commits}");
            assert_eq!(producer.produce(0, &value, produce).await, 0, "version {produce}");
            assert_eq!(producer.produce(0, &value, produce).await, 0, "version {produce}");
            assert_eq!(producer.commit_offset(i64::from(version) * 10, version).await, 0);
            let (seen, stable) = read(&client, 0, true).await;
            assert_eq!(seen, expected, "nothing is seen before its end");
            assert!(read(&client, 0, false).await.1 > stable);
            assert_eq!((latest(&client, true, 6).await, latest(&client, false, 6).await), (stable, stable + 2));
            assert_eq!(committed(&client, false).await, Err(88));
            assert_eq!(producer.end(commits, version).await, 0);
            if commits {
                expected.extend([value.clone(), value]);
                offset = i64::from(version) * 10;
            }
            assert_eq!(committed(&client, true).await, Ok(offset));
            until("the marker", async || {
                let ends = (latest(&client, true, 6).await, latest(&client, false, 6).await);
                (ends == (stable + 3, stable + 3)).then_some(())
            })
            .await;
            assert_eq!(read(&client, 0, true).await.0, expected);
        }
    }
    cluster.shutdown().await.expect("it stops");
}

/// The markers of the last transaction are still on their way when the first batch of the next one comes, in the same epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_right_behind_another_is_none_of_its_batches_outside_of_it() {
    const ROUNDS: usize = 200;
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path(), 10_000).await;
    create_topic(&cluster, 2, 1, &[]).await;
    let client = Client::of(&cluster);
    let mut producer = Producer::begin(&client, 60_000).await;
    let connection = Connection::connect(&client.addresses[0], "test", TIMEOUT).await.expect("a connection");
    let mut again = 0;
    for round in 0..ROUNDS {
        for partition in [0, 1] {
            let batch = producer.batch(partition, &round.to_string());
            let request = to_partition(partition, &batch, Some(id()));
            loop {
                let answer = connection.send_version(&request, 12).await.expect("an answer");
                match answer.responses[0].partition_responses[0].error_code {
                    0 => break,
                    // The last transaction is ending.
                    51 => again += 1,
                    code => panic!("{code} in round {round}, after {again} answers to ask again"),
                }
            }
        }
        // Answered once it is decided; the markers are written after that.
        let request = producer.end_request(true);
        let ended = connection.send_version(&request, 5).await.expect("an answer");
        assert_eq!(ended.error_code, 0, "round {round}");
        (producer.id, producer.epoch, producer.sequences) = (ended.producer_id.0, ended.producer_epoch, [0; 2]);
    }
    let expected: Vec<_> = (0..ROUNDS).map(|round| round.to_string()).collect();
    until("the last markers", async || (read(&client, 1, true).await.0 == expected).then_some(())).await;
    cluster.shutdown().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_replaced_is_fenced_and_what_is_asked_for_amiss_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path(), 10_000).await;
    create_topic(&cluster, 2, 1, &[]).await;
    let client = Client::of(&cluster);
    assert_eq!(init(&client, 5, 0, None).await, Err(50));
    assert_eq!(init(&client, 5, 900_001, None).await, Err(50));
    let mut before = None;
    for version in 0..=5 {
        let (producer, epoch) = init(&client, version, 60_000, None).await.expect("a producer id");
        if let Some((known, last)) = before {
            assert_eq!((producer, epoch), (known, last + 1), "the same id in the next epoch");
        }
        if version >= 3 {
            let next = init(&client, version, 60_000, Some((producer, epoch))).await;
            assert_eq!(next, Ok((producer, epoch + 1)));
            let again = init(&client, version, 60_000, Some((producer, epoch))).await;
            assert_eq!(again, Ok((producer, epoch + 1)), "it did not hear of it");
            let fenced = init(&client, version, 60_000, Some((producer, epoch - 1))).await;
            assert_eq!(fenced, Err(if version >= 4 { 90 } else { 47 }));
            before = Some((producer, epoch + 1));
        } else {
            before = Some((producer, epoch));
        }
    }
    let (known, epoch) = before.expect("it has begun");
    let mut old = Producer { client: &client, id: known, epoch, sequences: [0; 2] };
    assert_eq!(old.produce(0, "kept from nobody", 12).await, 0);
    // Another one of the same id takes over: what the first has begun is aborted.
    let mut new = Producer::begin(&client, 60_000).await;
    assert_eq!(old.produce(0, "late", 12).await, 47);
    for version in 0..=5 {
        let code = if version >= 2 { 90 } else { 47 };
        assert_eq!(old.add_partition(0, version).await, code);
        assert_eq!(old.add_offsets(version.min(4)).await, code);
        assert_eq!(old.end(true, version).await, code);
    }
    let mut nobody = Producer { client: &client, id: known + 1000, epoch: 0, sequences: [0; 2] };
    assert_eq!((nobody.add_partition(0, 4).await, nobody.end(true, 4).await), (49, 49));
    assert_eq!(nobody.produce(0, "x", 12).await, 49);
    // A batch of a transaction without an id of one.
    assert_eq!(send(&client, 0, &new.batch(0, "x"), 9, None).await, 53);
    new.sequences = [0; 2];
    assert_eq!(new.end(true, 4).await, 48, "there is nothing to commit");
    // The batch before it may have been refused for now, and come again.
    let mut other = Producer { client: &client, id: new.id, epoch: new.epoch, sequences: [0, 3] };
    assert_eq!(other.produce(1, "the second first", 12).await, 45);
    assert_eq!(new.produce(0, "whole", 12).await, 0);
    assert_eq!(new.end(true, 5).await, 0);
    until("the end", async || (read(&client, 0, true).await.0 == ["whole"]).then_some(())).await;
    cluster.shutdown().await.expect("it stops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_takes_too_long_is_aborted_and_what_nobody_ends_is_found_and_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path(), 50).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let client = Client::of(&cluster);
    let mut slow = Producer::begin(&client, 300).await;
    assert_eq!(slow.produce(0, "slow", 12).await, 0);
    let listed = async |filter: &str, pattern: Option<&str>| {
        let request = ListTransactionsRequest::default()
            .with_state_filters(vec![text(filter)])
            .with_duration_filter(-1)
            .with_transactional_id_pattern(pattern.map(text));
        let answer = client.ask(Whom::Transactions, &request, 2, |answer| answer.error_code).await;
        answer.transaction_states.iter().map(|one| one.transactional_id.to_string()).collect::<Vec<_>>()
    };
    until("the end of its time", async || (listed("CompleteAbort", Some("cop.*")).await == [ID]).then_some(())).await;
    assert_eq!(listed("Ongoing", None).await, [""; 0]);
    assert_eq!((slow.end(true, 4).await, slow.end(true, 5).await), (90, 48));
    assert_eq!(read(&client, 0, true).await.0, [""; 0]);

    let mut hanging = Producer::begin(&client, 60_000).await;
    assert_eq!(hanging.produce(0, "hanging", 12).await, 0);
    let describe = DescribeTransactionsRequest::default().with_transactional_ids(vec![
        id(),
        TransactionalId(text("nobody")),
        id(),
    ]);
    let described =
        client.ask(Whom::Transactions, &describe, 0, |answer| answer.transaction_states[0].error_code).await;
    assert_eq!(described.transaction_states.len(), 2, "each once, however often it is named");
    let state = &described.transaction_states[0];
    assert_eq!((state.transaction_state.as_str(), state.producer_id.0), ("Ongoing", hanging.id));
    assert_eq!((state.topics[0].topic.as_str(), &state.topics[0].partitions[..]), (TOPIC, &[0][..]));
    assert_ne!(described.transaction_states[1].error_code, 0);
    let producers = async || {
        let named = TopicRequest::default().with_name(topic());
        let topics = vec![named.clone().with_partition_indexes(vec![0, 7, 0]), named.with_partition_indexes(vec![0])];
        let request = DescribeProducersRequest::default().with_topics(topics);
        let answer = client.ask(Whom::Leader(0), &request, 0, |answer| answer.topics[0].partitions[0].error_code).await;
        assert_eq!(answer.topics[0].partitions[1].error_code, 3);
        let told: Vec<_> = answer.topics.iter().map(|topic| topic.partitions.len()).collect();
        assert_eq!(told, [2, 0], "each once, however often it is named");
        let active = &answer.topics[0].partitions[0].active_producers;
        active.iter().find(|one| one.producer_id.0 == hanging.id).expect("it has written").clone()
    };
    let found = producers().await;
    assert!(found.current_txn_start_offset >= 0);
    // As Kafka's tool aborts it.
    let marker = |epoch: i32| {
        let topics = vec![WritableTxnMarkerTopic::default().with_name(topic()).with_partition_indexes(vec![0, 7, 0])];
        let marker = WritableTxnMarker::default()
            .with_producer_id(found.producer_id)
            .with_producer_epoch(i16::try_from(found.producer_epoch).expect("an epoch"))
            .with_coordinator_epoch(epoch)
            .with_topics(topics);
        WriteTxnMarkersRequest::default().with_markers(vec![marker])
    };
    let codes = |answer: &kafka_protocol::messages::WriteTxnMarkersResponse| -> Vec<i16> {
        answer.markers[0].topics[0].partitions.iter().map(|one| one.error_code).collect()
    };
    let write =
        async |epoch: i32| codes(&client.ask(Whom::Leader(0), &marker(epoch), 1, |answer| codes(answer)[0]).await);
    assert_eq!(write(found.coordinator_epoch - 1).await, [52, 3, 52], "an earlier coordinator is not heard");
    let end = latest(&client, false, 6).await;
    assert_eq!(write(found.coordinator_epoch).await, [0, 3, 0]);
    assert_eq!(latest(&client, false, 6).await, end + 1, "one marker, however often the partition is named");
    assert_eq!(producers().await.current_txn_start_offset, -1);
    assert_eq!(latest(&client, true, 6).await, latest(&client, false, 6).await);
    cluster.shutdown().await.expect("it stops");
}

/// `transactional.id.expiration.ms`: an id that nobody uses is forgotten, also by the log, and not while its transaction goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transactional_id_that_was_silent_for_long_is_forgotten_for_good() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(1, dir.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.transactions_topic_partitions = 1;
        config.transactions.id_expiration_ms = 300;
        config.transactions.expiry_check_interval_ms = 20;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 1, &[]).await;
    let client = Client::of(&cluster);
    let state = async |client: &Client| {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id()]);
        let answer =
            client.ask(Whom::Transactions, &request, 0, |answer| answer.transaction_states[0].error_code).await;
        let state = &answer.transaction_states[0];
        if state.error_code == 0 { Ok(state.transaction_state.to_string()) } else { Err(state.error_code) }
    };
    let mut producer = Producer::begin(&client, 60_000).await;
    assert_eq!(producer.produce(0, "slow", 12).await, 0);
    // It is not silent while its transaction goes on, however long that takes.
    for _ in 0..30 {
        assert_eq!(state(&client).await.as_deref(), Ok("Ongoing"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let old = (producer.id, producer.epoch);
    assert_eq!(producer.end(true, 5).await, 0);
    until("the id being forgotten", async || (state(&client).await == Err(105)).then_some(())).await;
    assert_eq!(producer.produce(0, "late", 12).await, 49);
    // Nor does a coordinator that loads know of it.
    assert!(cluster.kill(BrokerId(1)).await);
    cluster.restart(BrokerId(1)).await.expect("it starts");
    let client = Client::of(&cluster);
    assert_eq!(state(&client).await, Err(105));
    let new = init(&client, 5, 60_000, None).await.expect("a producer id");
    assert!(new.0 > old.0 && new.1 == 0, "{new:?} after {old:?}");
    assert_eq!(read(&client, 0, true).await.0, ["slow"]);
    cluster.shutdown().await.expect("it stops");
}

/// The log takes a record of so many bytes only. One that the record of the end would not fit behind is refused as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_more_partitions_than_its_record_has_room_for_says_so_and_is_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(1, dir.path()).configure(|config| {
        config.transactions_topic_partitions = 1;
        config.transactions_topic_segment_bytes = 400;
    });
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 100, 1, &[]).await;
    let client = Client::of(&cluster);
    let mut producer = Producer::begin(&client, 60_000).await;
    let all: Vec<i32> = (0..100).collect();
    assert_eq!(producer.take_part(&all, 3).await, [-1; 100], "all or none");
    let mut added = 0;
    let code = loop {
        match producer.add_partition(added, 3).await {
            0 => added += 1,
            code => break code,
        }
    };
    assert_eq!(code, -1, "after {added}");
    assert!((20..90).contains(&added), "{added}");
    assert_eq!(producer.produce(0, "what fits", 9).await, 0);
    assert_eq!(producer.end(true, 4).await, 0);
    until("the end", async || (read(&client, 0, true).await.0 == ["what fits"]).then_some(())).await;
    assert_eq!((producer.add_partition(1, 3).await, producer.end(false, 4).await), (0, 0), "and another one");
    cluster.shutdown().await.expect("it stops");
}

/// `transaction.partition.verification.enable`: what clients of old have not told of the coordinator is taken without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_verified_is_taken_at_a_clients_word() {
    for verifies in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = ClusterOptions::new(1, dir.path()).configure(move |config| {
            config.verifies_transactions = verifies;
            config.offsets_topic_partitions = 1;
            config.transactions_topic_partitions = 1;
        });
        let cluster = Cluster::start(options).await.expect("the cluster starts");
        create_topic(&cluster, 2, 1, &[]).await;
        let client = Client::of(&cluster);
        until("a coordinator of the group", async || client.look_for(Whom::Group).await).await;
        let mut producer = Producer::begin(&client, 60_000).await;
        for version in [9, 11] {
            producer.sequences = [if verifies { 0 } else { producer.sequences[0] }, 0];
            let refused = if version < 11 { 48 } else { 120 };
            let code = producer.produce(0, "a word", version).await;
            assert_eq!(code, if verifies { refused } else { 0 }, "Produce {version}, verifies: {verifies}");
        }
        for version in [3, 4] {
            let refused = if version < 4 { 48 } else { 120 };
            let code = producer.commit_offset(7, version).await;
            assert_eq!(code, if verifies { refused } else { 0 }, "TxnOffsetCommit {version}, verifies: {verifies}");
        }
        // What adds itself is added whether others are verified or not, and ends with the transaction.
        assert_eq!(producer.produce(1, "added", 12).await, 0);
        assert_eq!(producer.end(true, 5).await, 0);
        until("the end", async || (read(&client, 1, true).await.0 == ["added"]).then_some(())).await;
        // Of the others the coordinator does not know, so that nobody ends what they have begun.
        let (stable, end) = (latest(&client, true, 6).await, latest(&client, false, 6).await);
        assert_eq!((stable, end), if verifies { (0, 0) } else { (0, 2) });
        cluster.shutdown().await.expect("it stops");
    }
}

/// An internal topic is made with as many replicas as its setting says, or not yet: it would keep as few for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinators_wait_for_as_many_brokers_as_their_topics_are_to_have_replicas() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(3, dir.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.offsets_topic_partitions = 1;
        config.offsets_topic_replication_factor = Some(3);
        config.transactions_topic_partitions = 1;
        config.transactions_topic_replication_factor = Some(3);
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    for id in [2, 3] {
        cluster.stop(BrokerId(id)).await.expect("it stops");
    }
    let known = |cluster: &Cluster| cluster.broker(BrokerId(1)).expect("it runs").image().brokers.len();
    until("the others being gone", async || (known(&cluster) == 1).then_some(())).await;
    let address = cluster.address(BrokerId(1)).expect("broker 1").to_string();
    let codes = async || {
        let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("a connection");
        let mut codes = Vec::new();
        for (kind, key) in [(0, GROUP), (1, ID)] {
            let request = FindCoordinatorRequest::default().with_key_type(kind).with_coordinator_keys(vec![text(key)]);
            codes.push(connection.send(&request).await.expect("an answer").coordinators[0].error_code);
        }
        codes
    };
    assert_eq!(codes().await, [15, 15]);
    assert!(cluster.broker(BrokerId(1)).expect("it runs").image().topics.is_empty());
    for id in [2, 3] {
        cluster.restart(BrokerId(id)).await.expect("it starts");
    }
    until("both coordinators", async || (codes().await == [0, 0]).then_some(())).await;
    let image = cluster.broker(BrokerId(1)).expect("it runs").image();
    for topic in ["__consumer_offsets", "__transaction_state"] {
        let partition = image.topic(topic).expect("it is made").partition(0).expect("it has one");
        assert_eq!(partition.assignment.len(), 3, "{topic}");
    }
    cluster.shutdown().await.expect("it stops");
}

/// What is killed before which step.
const STEPS: usize = 5;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_coordinator_that_is_killed_before_any_step_loses_and_doubles_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path(), 10_000).await;
    create_topic(&cluster, 2, 3, &[("min.insync.replicas", "2")]).await;
    // Both internal topics get as many replicas as brokers are there when they are made.
    let client = Client::of(&cluster);
    for whom in [Whom::Transactions, Whom::Group] {
        until("a coordinator", async || client.look_for(whom).await).await;
    }
    let mut expected = Vec::new();
    for victim in [Whom::Transactions, Whom::Group] {
        for killed_before in 0..STEPS {
            let client = Client::of(&cluster);
            let address = until("a coordinator", async || client.look_for(victim).await).await;
            let at =
                cluster.ids().into_iter().find(|id| cluster.address(*id).is_some_and(|of| of.to_string() == address));
            let at = at.expect("one of the brokers");
            let commits = killed_before != 2;
            let mut producer = Producer { client: &client, id: -1, epoch: -1, sequences: [0; 2] };
            let value = format!("{} {killed_before}", expected.len());
            let offset = i64::try_from(expected.len()).expect("few");
            for step in 0..STEPS {
                if step == killed_before {
                    assert!(cluster.kill(at).await);
                }
                match step {
                    0 => producer = Producer::begin(&client, 60_000).await,
                    1 => assert_eq!(producer.produce(0, &value, 12).await, 0),
                    2 => assert_eq!(producer.produce(1, &value, 12).await, 0),
                    3 => assert_eq!(producer.commit_offset(offset, 5).await, 0),
                    _ => assert_eq!(producer.end(commits, 5).await, 0),
                }
            }
            if commits {
                expected.push((value, offset));
            }
            let last = expected.last().map_or(-1, |(_, offset)| *offset);
            assert_eq!(committed(&client, true).await, Ok(last), "before step {killed_before}");
            for partition in 0..2 {
                until("the markers", async || {
                    let stable = read(&client, partition, true).await.1;
                    (read(&client, partition, false).await.1 == stable).then_some(())
                })
                .await;
                let values: Vec<_> = expected.iter().map(|(value, _)| value.clone()).collect();
                assert_eq!(read(&client, partition, true).await.0, values, "before step {killed_before}");
            }
            cluster.restart(at).await.expect("it comes back");
            until("all replicas", async || {
                let topics = [TOPIC, "__transaction_state", "__consumer_offsets"];
                let whole = topics.into_iter().all(|topic| {
                    (0..2).all(|partition| {
                        let statuses = cluster.statuses(topic, partition);
                        statuses.iter().any(|(_, status)| status.as_ref().is_some_and(|status| status.isr.len() == 3))
                    })
                });
                whole.then_some(())
            })
            .await;
        }
    }
    tokio::time::timeout(Duration::from_secs(60), cluster.shutdown()).await.expect("in time").expect("it stops");
}
