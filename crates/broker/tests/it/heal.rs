//! Rot in one replica is healed from another, while the rest is served.

use std::path::PathBuf;

use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId, Role, Status};

use crate::support::{Client, TOPIC, batch, create_topic, until};

fn log_file(cluster: &Cluster, id: BrokerId) -> PathBuf {
    cluster.data_dir(id).join(format!("{TOPIC}-0")).join("00000000000000000000.log")
}

async fn leader(cluster: &Cluster) -> BrokerId {
    let leads = |(id, status): (BrokerId, Option<Status>)| {
        status.filter(|status| status.role == Role::Leader && status.isr.len() == 3).map(|_| id)
    };
    until("a leader with all in sync", async || cluster.statuses(TOPIC, 0).into_iter().find_map(leads)).await
}

/// Spoils bytes of a file in place.
fn spoil(file: &PathBuf, at: std::ops::Range<usize>) {
    use std::io::{Seek, SeekFrom, Write};
    let bytes = std::fs::read(file).expect("a segment");
    let spoilt: Vec<u8> = bytes[at.clone()].iter().map(|byte| byte ^ 0x55).collect();
    let mut open = std::fs::OpenOptions::new().write(true).open(file).expect("a segment");
    open.seek(SeekFrom::Start(at.start as u64)).expect("a place in it");
    open.write_all(&spoilt).expect("written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_and_a_follower_are_healed_from_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(3, dir.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        config.replica_fetch_wait_max_ms = 100;
        config.background_flush_ms = 100;
        config.retention_check_interval_ms = 100;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 3, &[("min.insync.replicas", "2"), ("segment.bytes", "1000")]).await;
    let mut client = Client::of(&cluster);
    for number in 0..20 {
        client.produce(&batch(-1, number)).await;
    }
    until("all of it being synced and committed everywhere", async || {
        let is_synced = |(_, status): (BrokerId, Option<Status>)| {
            status.is_some_and(|status| (status.flushed.0, status.high_watermark.0) == (40, 40))
        };
        cluster.statuses(TOPIC, 0).into_iter().all(is_synced).then_some(())
    })
    .await;
    let leads = leader(&cluster).await;
    let right = std::fs::read(log_file(&cluster, leads)).expect("a segment");
    let right_end = right.iter().rposition(|&byte| byte != 0).expect("records");
    let batch_bytes = batch(-1, 0).len();
    let healed = async |cluster: &Cluster, id: BrokerId| {
        until("the replica being healed", async || {
            let bytes = std::fs::read(log_file(cluster, id)).expect("a segment");
            (bytes[..right_end] == right[..right_end]).then_some(())
        })
        .await;
    };

    // Two batches lose their headers and all; whoever reads there finds it, and what lies before and behind is served.
    spoil(&log_file(&cluster, leads), 3 * batch_bytes..5 * batch_bytes);
    let response = client.fetch(6, 0, 0).await.expect("an answer");
    assert_eq!(response.responses[0].partitions[0].error_code, 2);
    for from in [0, 10, 30] {
        let response = client.fetch(from, 0, 0).await.expect("an answer");
        assert_eq!(response.responses[0].partitions[0].error_code, 0, "from {from}");
    }
    healed(&cluster, leads).await;
    assert_eq!(client.read_all().await.len(), 40);
    client.produce(&batch(-1, 20)).await;
    assert_eq!(leader(&cluster).await, leads, "nobody fell out of step");

    // Found by the scrubber, which begins after a start, at one that follows.
    let follows = cluster.ids().into_iter().find(|&id| id != leads).expect("three brokers");
    until("the follower's sync", async || {
        let status = cluster.statuses(TOPIC, 0).into_iter().find(|(id, _)| *id == follows)?.1?;
        (status.flushed.0 == 42).then_some(())
    })
    .await;
    assert!(cluster.kill(follows).await);
    spoil(&log_file(&cluster, follows), 3 * batch_bytes + 70..3 * batch_bytes + 72);
    cluster.restart(follows).await.expect("it starts");
    healed(&cluster, follows).await;
    assert_eq!(leader(&cluster).await, leads);
    cluster.shutdown().await.expect("a clean stop");
}
