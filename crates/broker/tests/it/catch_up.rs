//! Followers that are far behind: many fetches until they are in sync, while the leader takes more.

use std::path::PathBuf;

use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::{BrokerId, Role, Status};

use crate::support::{Client, TOPIC, batch, create_topic, until};

fn log_file(cluster: &Cluster, id: BrokerId) -> PathBuf {
    cluster.data_dir(id).join(format!("{TOPIC}-0")).join("00000000000000000000.log")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_away_ends_with_the_leaders_bytes_while_the_leader_takes_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = ClusterOptions::new(2, dir.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
        // A few batches an answer.
        config.replica_fetch_bytes_max = 500;
        config.replica_fetch_response_bytes_max = 500;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 2, &[]).await;
    let leads = until("a full in-sync set", async || {
        let is_led = |(id, status): (BrokerId, Option<Status>)| {
            status.filter(|status| status.role == Role::Leader && status.isr.len() == 2).map(|_| id)
        };
        cluster.statuses(TOPIC, 0).into_iter().find_map(is_led)
    })
    .await;
    let away = cluster.ids().into_iter().find(|id| *id != leads).expect("two brokers");
    let mut client = Client::of(&cluster);
    for number in 0..10 {
        client.produce(&batch(-1, number)).await;
    }
    cluster.stop(away).await.expect("it stops");
    for number in 10..300 {
        client.produce(&batch(-1, number)).await;
    }
    cluster.restart(away).await.expect("it starts");
    for number in 300..400 {
        client.produce(&batch(-1, number)).await;
    }
    until("both having all of it", async || {
        let has_all = |(_, status): (BrokerId, Option<Status>)| {
            status.is_some_and(|status| status.high_watermark.0 == 800 && status.isr.len() == 2)
        };
        cluster.statuses(TOPIC, 0).into_iter().all(has_all).then_some(())
    })
    .await;
    assert!(cluster.cuts(away).is_empty(), "{:?}", cluster.cuts(away));
    // Without what is allocated ahead of the records.
    let records = |id| {
        let bytes = std::fs::read(log_file(&cluster, id)).expect("a segment");
        let end = bytes.iter().rposition(|&byte| byte != 0).expect("records");
        bytes[..=end].to_vec()
    };
    assert_eq!(records(away), records(leads));
    cluster.shutdown().await.expect("it stops");
}
