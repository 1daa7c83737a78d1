//! What is deleted on a leader is gone from every replica.

use highwater_broker::Cluster;
use highwater_broker::client::Connection;
use highwater_replication::{BrokerId, Role};
use kafka_protocol::messages::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
use kafka_protocol::messages::{DeleteRecordsRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::support::{Client, TIMEOUT, TOPIC, batch, create_topic, producer_id, start, until};

/// Asks one broker, and gives what it says of the start of the log, and the code.
async fn delete(cluster: &Cluster, at: BrokerId, before: i64, timeout_ms: i32) -> (i64, i16) {
    let address = cluster.address(at).expect("an address").to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(before);
    let topic = DeleteRecordsTopic::default()
        .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(timeout_ms);
    let answer = connection.send(&request).await.expect("an answer");
    let told = &answer.topics[0].partitions[0];
    (told.low_watermark, told.error_code)
}

fn starts(cluster: &Cluster) -> Vec<i64> {
    cluster.statuses(TOPIC, 0).into_iter().filter_map(|(_, status)| Some(status?.log_start.0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_deleted_on_the_leader_are_gone_from_every_replica() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[]).await;
    let producer = producer_id(&cluster).await;
    let mut client = Client::of(&cluster);
    for number in 0..20 {
        client.produce(&batch(producer, number)).await;
    }
    let (leader, followers) = until("everybody being in sync", async || {
        let all = cluster.statuses(TOPIC, 0);
        let leads = |(id, status): &(BrokerId, _)| {
            let status: &highwater_replication::Status = Option::as_ref(status)?;
            (status.role == Role::Leader && status.isr.len() == 3 && status.high_watermark.0 == 40).then_some(*id)
        };
        let leader = all.iter().find_map(leads)?;
        Some((leader, cluster.ids().into_iter().filter(|id| *id != leader).collect::<Vec<_>>()))
    })
    .await;

    assert_eq!(delete(&cluster, followers[0], 15, 10_000).await, (-1, 6), "only the leader does it");
    assert_eq!(delete(&cluster, leader, 41, 10_000).await, (-1, 1));
    assert_eq!(delete(&cluster, leader, 15, 10_000).await, (15, 0));
    assert_eq!(starts(&cluster), [15; 3], "all have done it when the answer comes");

    // Who does not fetch does not hear of it: the leader has it done, and says that not all have.
    cluster.pause_fetching(followers[0], true);
    assert_eq!(delete(&cluster, leader, 25, 300).await, (15, 7));
    cluster.pause_fetching(followers[0], false);
    assert_eq!(delete(&cluster, leader, 25, 10_000).await, (25, 0));
    assert_eq!(starts(&cluster), [25; 3]);

    // One that is away is not waited for, and begins where the leader does when it is back.
    cluster.stop(followers[1]).await.expect("a clean stop");
    until("the stop being seen", async || {
        let image = cluster.broker(leader)?.image();
        (!image.brokers.contains_key(&followers[1])).then_some(())
    })
    .await;
    assert_eq!(delete(&cluster, leader, -1, 10_000).await, (40, 0));
    cluster.restart(followers[1]).await.expect("it starts");
    until("its log beginning where the others do", async || (starts(&cluster) == [40; 3]).then_some(())).await;
    assert_eq!(client.produce(&batch(producer, 20)).await, 40, "offsets go on");
    cluster.shutdown().await.expect("a clean stop");
}
