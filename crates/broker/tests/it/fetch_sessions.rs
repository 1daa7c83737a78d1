//! Fetch sessions over the wire: what is told when, and what a request gets that fits no session.

use highwater_broker::client::Connection;
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId as Broker, Role};
use highwater_storage::TopicId;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{BrokerId, FetchRequest, FetchResponse, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::support::{Client, TIMEOUT, TOPIC, batch, create_topic, start, until};

/// A client that fetches in one version, by hand.
struct Fetcher {
    connection: Connection,
    version: i16,
    topic_id: Uuid,
    max_wait_ms: i32,
}

/// A partition's number, error, high watermark, and whether it came with records.
type Part = (i32, i16, i64, bool);

impl Fetcher {
    async fn of(cluster: &Cluster, version: i16) -> Self {
        let TopicId(id) = cluster.running().next().expect("one runs").image().topic(TOPIC).expect("it is there").id;
        let connection = Client::of(cluster).leader().await.expect("a leader");
        Self { connection, version, topic_id: Uuid::from_bytes(id), max_wait_ms: 0 }
    }

    /// Fetches partitions from offsets with limits.
    async fn fetch(&self, session: (i32, i32), parts: &[(i32, i64, i32)], forget: &[i32]) -> FetchResponse {
        let part = |&(partition, from, max_bytes): &(i32, i64, i32)| {
            FetchPartition::default()
                .with_partition(partition)
                .with_fetch_offset(from)
                .with_partition_max_bytes(max_bytes)
        };
        let mut topic = FetchTopic::default().with_partitions(parts.iter().map(part).collect());
        let mut forgotten = ForgottenTopic::default().with_partitions(forget.to_vec());
        if self.version >= 13 {
            (topic.topic_id, forgotten.topic_id) = (self.topic_id, self.topic_id);
        } else {
            topic.topic = TopicName(StrBytes::from_static_str(TOPIC));
            forgotten.topic = topic.topic.clone();
        }
        let mut request = FetchRequest::default()
            .with_max_wait_ms(self.max_wait_ms)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_session_id(session.0)
            .with_session_epoch(session.1);
        if self.version < 15 {
            request.replica_id = BrokerId(-1);
        }
        request.topics.extend((!parts.is_empty()).then_some(topic));
        request.forgotten_topics_data.extend((!forget.is_empty()).then_some(forgotten));
        self.connection.send_version(&request, self.version).await.expect("an answer")
    }

    async fn produce(&self, partition: i32) {
        let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch(-1, 0).into()));
        let topic = TopicProduceData::default()
            .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
            .with_partition_data(vec![data]);
        let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(5_000).with_topic_data(vec![topic]);
        let response = self.connection.send_version(&request, 9).await.expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    }
}

fn parts(response: &FetchResponse) -> Vec<Part> {
    let parts = response.responses.iter().flat_map(|topic| &topic.partitions);
    parts
        .map(|part| {
            let has_records = !part.records.as_ref().expect("never null").is_empty();
            (part.partition_index, part.error_code, part.high_watermark, has_records)
        })
        .collect()
}

#[tokio::test]
async fn a_session_tells_what_is_new_and_nothing_else() {
    for version in [7, 12, 13, 18] {
        let dir = tempfile::tempdir().expect("a directory");
        let cluster = start(1, dir.path()).await;
        create_topic(&cluster, 4, 1, &[]).await;
        let fetcher = Fetcher::of(&cluster, version).await;
        let all: Vec<(i32, i64, i32)> = (0..3).map(|partition| (partition, 0, 1 << 20)).collect();
        let opened = fetcher.fetch((0, 0), &all, &[]).await;
        let id = opened.session_id;
        assert!(id > 0 && opened.error_code == 0, "version {version}: {opened:?}");
        assert_eq!(parts(&opened), [(0, 0, 0, false), (1, 0, 0, false), (2, 0, 0, false)]);
        let same = fetcher.fetch((id, 1), &[], &[]).await;
        assert_eq!((same.error_code, same.session_id, same.responses.len()), (0, id, 0), "version {version}");

        // What was not listed again is read from where it was.
        fetcher.produce(1).await;
        let came = fetcher.fetch((id, 2), &[], &[]).await;
        assert_eq!(parts(&came), [(1, 0, 2, true)]);
        let repeated = fetcher.fetch((id, 3), &[], &[]).await;
        assert_eq!(parts(&repeated), [(1, 0, 2, true)]);
        let moved = fetcher.fetch((id, 4), &[(1, 2, 1 << 20)], &[]).await;
        assert_eq!((moved.session_id, parts(&moved)), (id, vec![]), "version {version}");

        // Two have records, and one of them no room for its own: its high watermark is news all the same, once.
        let limited = fetcher.fetch((id, 5), &[(2, 0, 0)], &[]).await;
        assert_eq!(parts(&limited), []);
        for partition in [0, 1, 2] {
            fetcher.produce(partition).await;
        }
        let came = fetcher.fetch((id, 6), &[], &[]).await;
        assert_eq!(parts(&came), [(0, 0, 2, true), (2, 0, 2, false), (1, 0, 4, true)]);
        let forgot = fetcher.fetch((id, 7), &[(3, 0, 1 << 20)], &[0, 1]).await;
        let third = parts(&forgot);
        // The only one left with records gives at least one batch, whatever its limit.
        assert_eq!(third.iter().map(|part| part.0).collect::<Vec<_>>(), [2, 3], "version {version}: {third:?}");

        // Errors are told each time, at once.
        let fetcher = Fetcher { max_wait_ms: 60_000, ..fetcher };
        for (epoch, list) in [(8, &[(9, 0, 1), (3, 77, 1)][..]), (9, &[])] {
            let failed = fetcher.fetch((id, epoch), list, &[]).await;
            let codes: Vec<(i32, i16)> =
                parts(&failed).iter().map(|part| (part.0, part.1)).filter(|part| part.0 != 2).collect();
            assert_eq!(codes, [(3, 1), (9, 3)], "version {version}");
        }
        // And what follows an error, though it is what was told before it.
        let fetcher = Fetcher { max_wait_ms: 0, ..fetcher };
        let healed = fetcher.fetch((id, 10), &[(3, 0, 1 << 20)], &[2, 9]).await;
        assert_eq!(parts(&healed), [(3, 0, 0, false)], "version {version}");
        assert_eq!(parts(&fetcher.fetch((id, 11), &[], &[]).await), []);
        let nothing = fetcher.fetch((id, 12), &[], &[3]).await;
        assert_eq!((nothing.error_code, nothing.session_id, nothing.responses.len()), (0, 0, 0));
        assert_eq!(fetcher.fetch((id, 13), &[], &[]).await.error_code, 70, "of nothing there is no session");
        cluster.shutdown().await.expect("a clean stop");
    }
}

#[tokio::test]
async fn requests_that_fit_no_session_get_their_code_and_full_ones_close_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let by_name = Fetcher::of(&cluster, 12).await;
    let by_id = Fetcher::of(&cluster, 17).await;
    let all = [(0, 0, 1 << 20)];
    let refused = async |fetcher: &Fetcher, session: (i32, i32)| {
        let answer = fetcher.fetch(session, &[], &[]).await;
        assert_eq!((answer.session_id, answer.responses.len()), (0, 0), "{session:?}");
        answer.error_code
    };
    let id = by_id.fetch((0, 0), &all, &[]).await.session_id;
    let unknown = if id == 5 { 6 } else { 5 };
    assert_eq!(refused(&by_id, (unknown, 1)).await, 70);
    assert_eq!(refused(&by_id, (0, 1)).await, 70);
    assert_eq!(refused(&by_id, (id, 2)).await, 71);
    assert_eq!(refused(&by_name, (id, 1)).await, 106);
    // None of these has spoilt it.
    assert_eq!(by_id.fetch((id, 1), &[], &[]).await.error_code, 0);
    assert_eq!(refused(&by_id, (id, 1)).await, 71, "a repeated request");

    let without = by_id.fetch((id, -1), &all, &[]).await;
    assert_eq!((without.session_id, parts(&without).len()), (0, 1));
    assert_eq!(refused(&by_id, (id, 2)).await, 70, "closed");
    let first = by_name.fetch((0, 0), &all, &[]).await.session_id;
    let second = by_name.fetch((first, 0), &all, &[]).await.session_id;
    assert!(second > 0 && second != first);
    assert_eq!(refused(&by_name, (first, 1)).await, 70, "another one was opened in its place");
    assert_eq!(refused(&by_id, (second, 1)).await, 106);
    assert_eq!(by_name.fetch((second, 1), &[], &[]).await.session_id, second);
    cluster.shutdown().await.expect("a clean stop");
}

#[tokio::test]
async fn clients_for_whom_there_is_no_room_are_answered_in_full() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(1, dir.path()).configure(|config| config.fetch_sessions_max = 1);
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 1, &[]).await;
    let fetcher = Fetcher::of(&cluster, 12).await;
    let all = [(0, 0, 1 << 20)];
    let first = fetcher.fetch((0, 0), &all, &[]).await.session_id;
    assert!(first > 0);
    for _ in 0..2 {
        let answer = fetcher.fetch((0, 0), &all, &[]).await;
        assert_eq!((answer.error_code, answer.session_id, parts(&answer).len()), (0, 0, 1));
    }
    assert_eq!(fetcher.fetch((first, 1), &[], &[]).await.session_id, first);
    cluster.shutdown().await.expect("a clean stop");
}

/// Followers find room for all, one or none of their sessions: each record reaches both of them, wherever it goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_go_on_with_sessions_and_without() {
    for slots in [0, 1, 1000] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = ClusterOptions::new(3, dir.path()).configure(move |config| {
            config.fetch_sessions_max = slots;
            config.replica_fetch_wait_max_ms = 100;
        });
        let cluster = Cluster::start(options).await.expect("the cluster starts");
        create_topic(&cluster, 6, 3, &[]).await;
        let mut fetcher = Fetcher::of(&cluster, 12).await;
        for round in 1..4 {
            for partition in 0..6 {
                let leader: Broker = until("a leader with all in sync", async || {
                    let leads = |(id, status): (Broker, Option<highwater_replication::Status>)| {
                        status.filter(|status| status.role == Role::Leader && status.isr.len() == 3).map(|_| id)
                    };
                    cluster.statuses(TOPIC, partition).into_iter().find_map(leads)
                })
                .await;
                let address = cluster.address(leader).expect("an address").to_string();
                fetcher.connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
                fetcher.produce(partition).await;
                // The others are idle meanwhile.
                until("the high watermark reaching all", async || {
                    let knows = |(_, status): (Broker, Option<highwater_replication::Status>)| {
                        status.is_some_and(|status| status.high_watermark.0 == round * 2)
                    };
                    cluster.statuses(TOPIC, partition).into_iter().all(knows).then_some(())
                })
                .await;
            }
        }
        cluster.shutdown().await.expect("a clean stop");
    }
}
