//! Leaders that change hands in order: a broker that stops, the preferred leader that comes back, replicas that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use highwater_broker::client::Connection;
use highwater_broker::cluster::MetadataImage;
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId, PartitionState};
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::elect_leaders_request::TopicPartitions;
use kafka_protocol::messages::{AlterPartitionReassignmentsRequest, ElectLeadersRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use tokio::task::JoinHandle;

use crate::support::{Client, TIMEOUT, TOPIC, batch, create_topic, producer_id, start, until};

/// A producer that never rests.
struct Producing {
    done: Arc<AtomicBool>,
    task: JoinHandle<Produced>,
}

/// What it met.
#[derive(Debug, Default)]
struct Produced {
    batches: i32,
    refused: u32,
    longest_wait: Duration,
}

impl Producing {
    async fn start(cluster: &Cluster) -> Self {
        let (mut client, producer) = (Client::of(cluster), producer_id(cluster).await);
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let task = tokio::spawn(async move {
            let mut produced = Produced::default();
            let (mut last, mut first) = (Instant::now(), None);
            while !is_done.load(Ordering::Relaxed) {
                match client.produce_once(&batch(producer, produced.batches), -1).await {
                    Ok(offset) => {
                        let first = *first.get_or_insert(offset);
                        assert_eq!(offset, first + i64::from(produced.batches * 2), "each once and in order");
                        produced.batches += 1;
                        produced.longest_wait = produced.longest_wait.max(last.elapsed());
                        last = Instant::now();
                    }
                    Err(_) => {
                        produced.refused += 1;
                        client.connection = None;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
            }
            produced
        });
        Self { done, task }
    }

    async fn stop(self) -> Produced {
        self.done.store(true, Ordering::Relaxed);
        self.task.await.expect("every acknowledgement is of the next batch")
    }
}

fn state(image: &MetadataImage) -> Option<PartitionState> {
    Some(image.topic(TOPIC)?.partition(0)?.state.value.clone())
}

async fn all_in_sync(cluster: &Cluster, replicas: usize) -> PartitionState {
    until("all replicas in sync", async || {
        let state = state(&cluster.running().next()?.image())?;
        (state.leader.is_some() && state.isr.len() == replicas).then_some(state)
    })
    .await
}

/// Field fault R12: by the time its session ends nobody depends on a broker that stops, neither for leading nor for being in
/// sync; so nobody waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_over_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[("min.insync.replicas", "2")]).await;
    for _ in 0..3 {
        let before = all_in_sync(&cluster, 3).await;
        let old = before.leader.expect("a leader");
        // What it saw last is how it left the cluster.
        let leaving = cluster.broker(old).expect("it runs").cluster().clone();
        let producing = Producing::start(&cluster).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        cluster.stop(old).await.expect("a clean stop");
        let last = leaving.image();
        let state = state(&last).expect("the partition");
        assert!(last.brokers.contains_key(&old));
        assert!(state.leader.is_some_and(|leader| leader != old) && !state.isr.contains(&old), "{state:?}");
        assert_eq!(state.leader_epoch.0, before.leader_epoch.0 + 1, "moved once");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let produced = producing.stop().await;
        println!("handed over: {produced:?}");
        cluster.restart(old).await.expect("it starts again");
    }
    all_in_sync(&cluster, 3).await;
    cluster.shutdown().await.expect("a clean stop");
}

/// A partition moves to two other brokers under load, its leader too, and loses nothing; then the preferred of them leads
/// again after a stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_moves_and_its_preferred_replica_leads() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(4, dir.path()).await;
    create_topic(&cluster, 1, 2, &[("min.insync.replicas", "2")]).await;
    all_in_sync(&cluster, 2).await;
    let image = cluster.running().next().expect("one runs").image();
    let from = image.topic(TOPIC).expect("the topic").partitions[0].assignment.clone();
    let to: Vec<BrokerId> = cluster.ids().into_iter().filter(|id| !from.contains(id)).collect();

    let producing = Producing::start(&cluster).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let connection = Connection::connect(&cluster.bootstrap()[0], "test", TIMEOUT).await.expect("connects");
    let name = || TopicName(StrBytes::from_static_str(TOPIC));
    let replicas = to.iter().map(|id| kafka_protocol::messages::BrokerId(id.0)).collect();
    let partition = ReassignablePartition::default().with_replicas(Some(replicas));
    let topic = ReassignableTopic::default().with_name(name()).with_partitions(vec![partition]);
    let request = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
    let answer = connection.send(&request).await.expect("an answer");
    assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    let assignment = async || {
        let image = cluster.running().next()?.image();
        let partition = &image.topic(TOPIC)?.partitions[0];
        (partition.assignment == to && !partition.reassignment.is_under_way()).then(|| partition.clone())
    };
    let moved = until("the move", assignment).await;
    assert!(moved.state.value.leader.is_some_and(|leader| to.contains(&leader)), "{moved:?}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let produced = producing.stop().await;
    println!("moved: {produced:?}");
    let records = Client::of(&cluster).read_all().await;
    assert_eq!(records.len(), usize::try_from(produced.batches * 2).expect("small"));
    until("the old replicas going", async || {
        let holds = |id: &BrokerId| cluster.data_dir(*id).join(format!("{TOPIC}-0")).exists();
        (!from.iter().any(holds) && to.iter().all(holds)).then_some(())
    })
    .await;

    cluster.stop(to[0]).await.expect("a clean stop");
    cluster.restart(to[0]).await.expect("it starts again");
    assert_eq!(all_in_sync(&cluster, 2).await.leader, Some(to[1]));
    let connection = Connection::connect(&cluster.bootstrap()[0], "test", TIMEOUT).await.expect("connects");
    let asked = TopicPartitions::default().with_topic(name()).with_partitions(vec![0]);
    let request = ElectLeadersRequest::default().with_topic_partitions(Some(vec![asked])).with_timeout_ms(10_000);
    let answer = connection.send(&request).await.expect("an answer");
    assert_eq!(answer.replica_election_results[0].partition_result[0].error_code, 0);
    until("the preferred replica leading", async || {
        let state = state(&cluster.running().next()?.image())?;
        (state.leader == Some(to[0])).then_some(())
    })
    .await;
    cluster.shutdown().await.expect("a clean stop");
}

/// Followers have fetches out at each other that idle leaders keep back, here for longer than the test lasts. A leadership that
/// moves to one of these does not wait for their end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_is_followed_though_an_idle_fetch_is_out_at_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(3, dir.path()).configure(|config| {
        config.replica_fetch_wait_max_ms = 600_000;
        config.replica_lag_time_max_ms = 600_000;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 6, 3, &[("min.insync.replicas", "2")]).await;
    let old = all_in_sync(&cluster, 3).await.leader.expect("a leader");
    // Each of the two that stay follows the other, whoever of them is to lead.
    cluster.stop(old).await.expect("a clean stop");
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    client.produce(&batch(producer, 0)).await;
    cluster.shutdown().await.expect("a clean stop");
}
