//! Three brokers in one process, over real sockets and real directories.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use highwater_broker::api::HISTORY_TAG;
use highwater_broker::client::Connection;
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId, Role, Status};
use highwater_storage::{BatchBuilder, Codec, Record};
use kafka_protocol::messages::MetadataRequest;

use crate::support::{Client, TIMEOUT, TOPIC, batch, create_topic, now, producer_id, start, until};

fn statuses(cluster: &Cluster) -> Vec<(BrokerId, Option<Status>)> {
    cluster.statuses(TOPIC, 0)
}

fn leader(cluster: &Cluster) -> Option<(BrokerId, Status)> {
    let leads = |(id, status): (BrokerId, Option<Status>)| Some((id, status?)).filter(|(_, s)| s.role == Role::Leader);
    statuses(cluster).into_iter().find_map(leads)
}

/// Waits until every replica is in sync, has all records and knows that they are committed.
async fn in_step(cluster: &Cluster, replicas: usize) -> i64 {
    until("every replica catching up", async || {
        let (_, leader) = leader(cluster)?;
        let all = statuses(cluster);
        let same = |status: &Option<Status>| {
            status.as_ref().is_some_and(|s| {
                s.log_end == leader.log_end
                    && s.high_watermark == leader.log_end
                    && s.leader_epoch == leader.leader_epoch
            })
        };
        let in_step = leader.isr.len() == replicas && all.iter().filter(|(_, status)| same(status)).count() == replicas;
        in_step.then_some(leader.log_end.0)
    })
    .await
}

/// The bytes of a partition's segments, one after the other.
fn log_bytes(cluster: &Cluster, id: BrokerId) -> Vec<u8> {
    let dir = cluster.data_dir(id).join(format!("{TOPIC}-0"));
    let entries = std::fs::read_dir(&dir).expect("the partition's directory");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    files.iter().flat_map(|file| std::fs::read(file).expect("a segment")).collect()
}

/// All logs hold the same bytes below the high watermark; here it is the end of them all.
fn assert_same_bytes(cluster: &Cluster) {
    let logs: Vec<Vec<u8>> = cluster.ids().into_iter().map(|id| log_bytes(cluster, id)).collect();
    for (log, id) in logs.iter().zip(cluster.ids()) {
        let at = log.iter().zip(&logs[0]).position(|(one, other)| one != other);
        assert_eq!(at, None, "broker {id} differs from the first at this byte");
        assert_eq!(log.len(), logs[0].len(), "broker {id} has another length");
    }
    assert!(!logs[0].is_empty());
}

fn assert_records(records: &BTreeMap<i64, Vec<u8>>, count: i64) {
    assert_eq!(records.len(), usize::try_from(count).expect("small"));
    for (at, (offset, value)) in records.iter().enumerate() {
        assert_eq!(*offset, i64::try_from(at).expect("small"), "offsets without a gap");
        assert_eq!(value, format!("record {at}").as_bytes(), "each once and in order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_comes_back_with_the_same_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[("min.insync.replicas", "2")]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    for number in 0..50 {
        assert_eq!(client.produce(&batch(producer, number)).await, i64::from(number * 2));
    }
    let end = in_step(&cluster, 3).await;
    assert_eq!(end, 100);

    let (old, before) = leader(&cluster).expect("a leader");
    assert!(cluster.kill(old).await);
    let mut client = Client::of(&cluster);
    for number in 50..100 {
        assert_eq!(client.produce(&batch(producer, number)).await, i64::from(number * 2));
    }
    let (new, after) = leader(&cluster).expect("a leader");
    assert_ne!(new, old);
    assert!(after.leader_epoch > before.leader_epoch);
    assert!(!after.isr.contains(&old));

    cluster.restart(old).await.expect("it starts on its own directory");
    assert_eq!(in_step(&cluster, 3).await, 200);
    assert_same_bytes(&cluster);
    assert_records(&Client::of(&cluster).read_all().await, 200);
    cluster.shutdown().await.expect("a clean stop");
}

/// The old leader has records that nobody else has and nobody was told are safe; it finds by epoch where it differs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_comes_back_cuts_what_nobody_else_had() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    for number in 0..10 {
        client.produce(&batch(producer, number)).await;
    }
    in_step(&cluster, 3).await;
    let (old, _) = leader(&cluster).expect("a leader");
    for id in cluster.ids() {
        cluster.pause_fetching(id, true);
    }
    // A fetch that is under way when pausing still carries something: what comes after it does not.
    tokio::time::sleep(Duration::from_millis(200)).await;
    for number in 10..15 {
        assert_eq!(client.produce_once(&batch(producer, number), 1).await, Ok(i64::from(number * 2)));
    }
    assert!(cluster.kill(old).await);
    for id in cluster.ids() {
        cluster.pause_fetching(id, false);
    }
    let mut client = Client::of(&cluster);
    // The same producer goes on at the same number: the lost batches were never acknowledged by all.
    for number in 10..20 {
        assert_eq!(client.produce(&batch(producer, number)).await, i64::from(number * 2));
    }
    cluster.restart(old).await.expect("it starts");
    assert_eq!(in_step(&cluster, 3).await, 40);
    assert_same_bytes(&cluster);
    assert_records(&Client::of(&cluster).read_all().await, 40);
    let cuts = cluster.cuts(old);
    assert!(cuts.iter().any(|cut| cut.records == 10 && cut.from.0.0 == 30 && cut.to.0.0 == 20), "{cuts:?}");
    assert_eq!(cluster.broker(old).expect("it runs").history_counts().records_cut, 10);
    // It is written down beside the log, and told to who asks for it; to others not.
    let address = cluster.address(old).expect("an address").to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let lines = async |tag: Option<i32>| {
        let mut request = MetadataRequest::default().with_topics(None);
        request.unknown_tagged_fields.extend(tag.map(|tag| (tag, Default::default())));
        let metadata = connection.send(&request).await.expect("an answer");
        metadata.topics[0].partitions[0].unknown_tagged_fields.get(&HISTORY_TAG).cloned()
    };
    let line = until("the history", async || {
        let lines = lines(Some(HISTORY_TAG)).await?;
        Some(String::from_utf8(lines.to_vec()).expect("text")).filter(|text| text.contains("\"records\":10"))
    })
    .await;
    let (new, _) = leader(&cluster).expect("a leader");
    for part in [format!("\"broker\":{old},"), format!("\"leader\":{new},"), "\"from_offset\":30,".to_owned()] {
        assert!(line.contains(&part), "{part} in {line}");
    }
    assert_eq!(lines(None).await, None);
    assert_eq!(lines(Some(77)).await, None);
    let file = std::fs::read_to_string(cluster.data_dir(old).join(format!("{TOPIC}-0/highwater-history")));
    assert_eq!(file.expect("the history"), line);
}

/// Field fault S36, R17: a batch that was taken under larger limits, and larger than any response a client takes by default,
/// reaches a follower whose limits are smaller than it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_larger_than_the_limits_of_today_reaches_the_follower() {
    const RECORD_BYTES: usize = 130 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let start = async |request_bytes_max: usize| {
        let options = ClusterOptions::new(2, dir.path()).configure(move |config| {
            config.request_bytes_max = request_bytes_max;
            config.replica_lag_time_max_ms = 1_000;
            config.replica_fetch_wait_max_ms = 100;
            config.replica_fetch_backoff_ms = 100;
        });
        Cluster::start(options).await.expect("the cluster starts")
    };
    let cluster = start(140 << 20).await;
    create_topic(&cluster, 1, 2, &[("max.message.bytes", "146800640")]).await;
    for id in cluster.ids() {
        cluster.pause_fetching(id, true);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut builder = BatchBuilder::new(Codec::None);
    builder.push(Record::new(now(), &vec![7; RECORD_BYTES]));
    let produced = Client::of(&cluster).produce_once(&builder.build(), 1).await;
    assert_eq!(produced, Ok(0));
    // Or the follower, which has nothing, could be the next leader.
    until("the follower leaving the ISR", async || (leader(&cluster)?.1.isr.len() == 1).then_some(())).await;
    cluster.shutdown().await.expect("a clean stop");

    let cluster = start(1 << 20).await;
    assert_eq!(in_step(&cluster, 2).await, 1);
    let [one, other] = [1, 2].map(|id| log_bytes(&cluster, BrokerId(id)));
    assert!(one.len() > RECORD_BYTES && one == other, "{} and {} bytes", one.len(), other.len());
    cluster.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_follower_leaves_the_isr_and_rejoins() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    client.produce(&batch(producer, 0)).await;
    in_step(&cluster, 3).await;
    let (lead, _) = leader(&cluster).expect("a leader");
    let slow = cluster.ids().into_iter().find(|&id| id != lead).expect("a follower");
    cluster.pause_fetching(slow, true);
    for number in 1..20 {
        client.produce(&batch(producer, number)).await;
    }
    let (_, status) = leader(&cluster).expect("a leader");
    assert!(!status.isr.contains(&slow) && status.high_watermark == status.log_end, "{status:?}");
    cluster.pause_fetching(slow, false);
    assert_eq!(in_step(&cluster, 3).await, 40);
    assert_same_bytes(&cluster);
    cluster.shutdown().await.expect("a clean stop");
}

/// Consumers that wait are answered as soon as there is something below the high watermark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_fetch_is_answered_by_the_next_produce() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    client.produce(&batch(producer, 0)).await;
    let empty = client.fetch(2, 50, 1).await.expect("an answer");
    let part = &empty.responses[0].partitions[0];
    assert_eq!((part.error_code, part.high_watermark), (0, 2));
    assert!(part.records.as_ref().is_some_and(|records| records.is_empty()), "empty and not null");
    let mut consumer = Client::of(&cluster);
    consumer.leader().await.expect("a leader");
    let started = Instant::now();
    let (fetched, _) = tokio::join!(consumer.fetch(2, 20_000, 1), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.produce(&batch(producer, 1)).await
    });
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!fetched.expect("an answer").responses[0].partitions[0].records.clone().expect("records").is_empty());
}

/// What a restart has to hold: after a clean stop and after a kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_records_survive_a_stop_and_a_kill() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let producer = producer_id(&cluster).await;
    for number in 0..20 {
        Client::of(&cluster).produce(&batch(producer, number)).await;
    }
    assert!(cluster.kill(BrokerId(1)).await);
    cluster.restart(BrokerId(1)).await.expect("it starts");
    for number in 20..30 {
        Client::of(&cluster).produce(&batch(producer, number)).await;
    }
    cluster.shutdown().await.expect("a clean stop");
    assert!(dir.path().join("broker-1/.kafka_cleanshutdown").exists());
    let cluster = start(1, dir.path()).await;
    assert!(!dir.path().join("broker-1/.kafka_cleanshutdown").exists(), "the marker is gone while it runs");
    let records = until("the leader coming back", async || {
        leader(&cluster)?;
        Some(Client::of(&cluster).read_all().await)
    })
    .await;
    assert_records(&records, 60);
    // The log remembers the producer: its last batch sent again is not stored again.
    assert_eq!(Client::of(&cluster).produce(&batch(producer, 29)).await, 58);
    assert_eq!(Client::of(&cluster).read_all().await.len(), 60);
}

/// All in-sync replicas stop uncleanly: the one that kept most leads, and what is known of that is written down beside its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_election_of_the_one_that_kept_most_is_written_down() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(2, dir.path()).await;
    create_topic(&cluster, 1, 2, &[]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    for number in 0..5 {
        client.produce(&batch(producer, number)).await;
    }
    assert_eq!(in_step(&cluster, 2).await, 10);
    let (old, before) = leader(&cluster).expect("a leader");
    let other = if old == BrokerId(1) { BrokerId(2) } else { BrokerId(1) };
    // The fetch that is out is answered still: so it is behind by the second batch, if not by both.
    cluster.pause_fetching(other, true);
    for number in 5..7 {
        client.produce_once(&batch(producer, number), 1).await.expect("the leader has it");
    }
    assert!(cluster.kill(old).await && cluster.kill(other).await);
    for id in [old, other] {
        cluster.restart(id).await.expect("it starts on its own directory");
    }
    let counts = until("the election", async || {
        let counts = cluster.broker(old)?.history_counts();
        (counts.recovered_elections > 0).then_some(counts)
    })
    .await;
    assert_eq!((counts.recovered_elections, counts.unclean_elections, counts.cuts), (1, 0, 0));
    let file = cluster.data_dir(old).join(format!("{TOPIC}-0/highwater-history"));
    let written = until("the line", async || std::fs::read_to_string(&file).ok().filter(|text| !text.is_empty())).await;
    let line: serde_json::Value = serde_json::from_str(written.lines().next().expect("a line")).expect("JSON");
    let led = before.leader_epoch.0;
    assert_eq!((&line["from_offset"], &line["to_offset"]), (&14.into(), &14.into()), "{line}");
    assert_eq!((&line["from_epoch"], &line["to_epoch"]), (&led.into(), &led.into()), "{line}");
    assert_eq!((&line["leader"], &line["broker"]), (&old.0.into(), &old.0.into()), "{line}");
    assert!(line["leader_epoch"].as_i64().is_some_and(|epoch| epoch > i64::from(led)), "{line}");
    assert!(line["records"].is_null(), "nobody has what was lost, if anything was: {line}");
    assert!(line["why"].as_str().is_some_and(|why| why.contains(&format!(", {other} up to 1"))), "{line}");
    cluster.shutdown().await.expect("a clean stop");
}
