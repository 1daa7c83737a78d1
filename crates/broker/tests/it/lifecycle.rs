//! Topics and directories that come and go; starting and stopping.

use std::path::{Path, PathBuf};
use std::time::Duration;

use highwater_broker::client::Connection;
use highwater_broker::config::BrokerConfig;
use highwater_broker::{Broker, Cluster, StartError};
use highwater_replication::{BrokerId, Role};
use highwater_storage::{TopicPartition, batches};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{DeleteTopicsRequest, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::support::{Client, TIMEOUT, TOPIC, batch, create_topic, start, until};

fn entries(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

fn topic_id(cluster: &Cluster) -> Option<highwater_storage::TopicId> {
    Some(cluster.running().next()?.image().topic(TOPIC)?.id)
}

async fn delete_topic(cluster: &Cluster) {
    let address = cluster.address(BrokerId(1)).expect("broker 1").to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let name = TopicName(StrBytes::from_static_str(TOPIC));
    let request = DeleteTopicsRequest::default().with_topic_names(vec![name]).with_timeout_ms(10_000);
    let response = connection.send_version(&request, 4).await.expect("an answer");
    assert_eq!(response.responses[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_leaves_nothing_to_the_next_of_its_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(2, dir.path()).await;
    create_topic(&cluster, 1, 2, &[]).await;
    let first = topic_id(&cluster).expect("an id");
    for number in 0..5 {
        Client::of(&cluster).produce(&batch(-1, number)).await;
    }
    delete_topic(&cluster).await;
    for id in cluster.ids() {
        let root = cluster.data_dir(id);
        until("the partition's files going", async || {
            (!entries(&root).iter().any(|name| name.starts_with(TOPIC))).then_some(())
        })
        .await;
    }
    create_topic(&cluster, 1, 2, &[]).await;
    assert_ne!(topic_id(&cluster).expect("an id"), first);
    assert!(Client::of(&cluster).read_all().await.is_empty());
    assert_eq!(Client::of(&cluster).produce(&batch(-1, 0)).await, 0);
    // Nor does a broker that was away bring the old one back.
    assert!(cluster.kill(BrokerId(2)).await);
    delete_topic(&cluster).await;
    until("the killed one's session expiring", async || {
        (cluster.running().next()?.image().brokers.len() == 1).then_some(())
    })
    .await;
    create_topic(&cluster, 1, 1, &[]).await;
    cluster.restart(BrokerId(2)).await.expect("it starts");
    let root = cluster.data_dir(BrokerId(2));
    until("the stray being set aside", async || {
        let names = entries(&root);
        (names.iter().any(|name| name.ends_with("-stray")) && !names.contains(&format!("{TOPIC}-0"))).then_some(())
    })
    .await;
    cluster.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_takes_old_segments_below_the_high_watermark() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = highwater_broker::ClusterOptions::new(1, dir.path()).configure(|config| {
        config.retention_check_interval_ms = 50;
        config.log_start_checkpoint_interval_ms = 50;
        config.recovery_point_checkpoint_interval_ms = 50;
        config.background_flush_ms = 50;
    });
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let config = [("segment.bytes", "1048576"), ("retention.bytes", "1048576"), ("file.delete.delay.ms", "0")];
    create_topic(&cluster, 1, 1, &config).await;
    let value = vec![b'x'; 100_000];
    let mut client = Client::of(&cluster);
    for _ in 0..40 {
        let mut builder = highwater_storage::BatchBuilder::new(highwater_storage::Codec::None);
        builder.push(highwater_storage::Record::new(crate::support::now(), &value));
        client.produce(&builder.build()).await;
    }
    let partition = cluster.data_dir(BrokerId(1)).join(format!("{TOPIC}-0"));
    let log_start = until("the log start moving and the files going", async || {
        let (_, status) = cluster.statuses(TOPIC, 0).remove(0);
        let status = status?;
        let logs = entries(&partition).into_iter().filter(|name| name.ends_with(".log")).count();
        (status.log_start.0 >= 20 && logs <= 3).then_some(status.log_start.0)
    })
    .await;
    let response = client.fetch(0, 0, 0).await.expect("an answer");
    let part = &response.responses[0].partitions[0];
    assert_eq!((part.error_code, part.high_watermark), (1, 40));
    assert!(part.log_start_offset >= log_start);
    let read = client.fetch(log_start, 0, 0).await.expect("an answer");
    assert_eq!(read.responses[0].partitions[0].error_code, 0);
    // Kafka reads these files only.
    for file in ["log-start-offset-checkpoint", "recovery-point-offset-checkpoint"] {
        until(file, async || {
            let text = std::fs::read_to_string(cluster.data_dir(BrokerId(1)).join(file)).ok()?;
            let offset: i64 = text.lines().nth(2)?.rsplit(' ').next()?.parse().ok()?;
            (offset >= log_start).then_some(())
        })
        .await;
    }
}

/// What was changed while a broker ran is there after it was killed, and acts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_a_topic_outlive_a_kill_and_retention_goes_by_them() {
    use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
    use kafka_protocol::messages::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    use kafka_protocol::messages::{DescribeConfigsRequest, IncrementalAlterConfigsRequest};
    const TOPIC_RESOURCE: i8 = 2;
    let dir = tempfile::tempdir().expect("a directory");
    let config = || {
        let mut config = single(dir.path().join("data"));
        config.retention_check_interval_ms = 50;
        config.background_flush_ms = 50;
        config
    };
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let connect = async |broker: &Broker| {
        Connection::connect(&broker.local_addr().to_string(), "test", TIMEOUT).await.expect("connects")
    };
    let set = async |broker: &Broker, key: &str, value: Option<&str>| {
        let entry = AlterableConfig::default()
            .with_name(text(key))
            .with_config_operation(i8::from(value.is_none()))
            .with_value(value.map(text));
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text(TOPIC))
            .with_configs(vec![entry]);
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let answer = connect(broker).await.send(&request).await.expect("an answer");
        assert_eq!(answer.responses[0].error_code, 0, "{:?}", answer.responses[0].error_message);
    };
    let told = async |broker: &Broker, key: &str| {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(TOPIC_RESOURCE)
            .with_resource_name(text(TOPIC))
            .with_configuration_keys(Some(vec![text(key)]));
        let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
        let answer = connect(broker).await.send(&request).await.expect("an answer");
        let one = &answer.results[0].configs[0];
        (one.value.as_ref().map(ToString::to_string), one.config_source)
    };
    let partition = TopicPartition::new(TOPIC, 0);
    let fill = async |broker: &Broker| {
        let connection = connect(broker).await;
        for _ in 0..30 {
            let mut builder = highwater_storage::BatchBuilder::new(highwater_storage::Codec::None);
            builder.push(highwater_storage::Record::new(crate::support::now(), &[b'x'; 100_000]));
            let data = PartitionProduceData::default().with_records(Some(builder.build().into()));
            let topic = TopicProduceData::default().with_name(TopicName(text(TOPIC))).with_partition_data(vec![data]);
            let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic]);
            let answer = connection.send_version(&request, 9).await.expect("an answer");
            assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
        }
    };
    let starts_at = async |broker: &Broker, least: i64| {
        until("the log start moving", async || {
            let status = broker.status(&partition)?;
            (status.log_start.0 >= least).then_some(status.log_start.0)
        })
        .await
    };

    let broker = Broker::start_embedded(config()).await.expect("it starts");
    let topic = kafka_protocol::messages::create_topics_request::CreatableTopic::default()
        .with_name(TopicName(text(TOPIC)))
        .with_num_partitions(1)
        .with_replication_factor(1);
    let request =
        kafka_protocol::messages::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    assert_eq!(connect(&broker).await.send(&request).await.expect("an answer").topics[0].error_code, 0);
    serves(&broker).await;
    // The second one is overwritten, the third taken back: neither may come again.
    for (key, value) in [
        ("segment.bytes", Some("1048576")),
        ("retention.bytes", Some("1000")),
        ("retention.bytes", Some("1048576")),
        ("max.message.bytes", Some("1000")),
        ("max.message.bytes", None),
    ] {
        set(&broker, key, value).await;
    }
    fill(&broker).await;
    let first = starts_at(&broker, 10).await;
    broker.kill().await;

    let broker = Broker::start_embedded(config()).await.expect("it starts again");
    serves(&broker).await;
    const OF_TOPIC: i8 = 1;
    assert_eq!(told(&broker, "segment.bytes").await, (Some("1048576".to_owned()), OF_TOPIC));
    assert_eq!(told(&broker, "retention.bytes").await, (Some("1048576".to_owned()), OF_TOPIC));
    assert_ne!(told(&broker, "max.message.bytes").await.1, OF_TOPIC);
    assert!(starts_at(&broker, first).await <= 30);
    fill(&broker).await;
    let second = starts_at(&broker, first + 30).await;
    // And not the default, nor the value before: about a megabyte is left.
    assert!((40..=55).contains(&second), "{second}");
    broker.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compacted_topic_keeps_the_last_value_of_each_key() {
    use highwater_storage::{BatchBuilder, Codec, Record, batches};
    let dir = tempfile::tempdir().expect("a directory");
    let options = highwater_broker::ClusterOptions::new(1, dir.path()).configure(|config| {
        config.retention_check_interval_ms = 50;
        config.log_start_checkpoint_interval_ms = 50;
        config.background_flush_ms = 50;
        config.cleaner_backoff_ms = 50;
    });
    let cluster = Cluster::start(options).await.expect("the cluster starts");
    let config = [("cleanup.policy", "compact"), ("segment.bytes", "1048576"), ("min.cleanable.dirty.ratio", "0.01")];
    create_topic(&cluster, 1, 1, &config).await;
    let mut client = Client::of(&cluster);
    // Forty records of ten keys, a tenth of a segment each: what is not in the active segment has a later one.
    for round in 0..4u8 {
        for key in 0..10u8 {
            let mut builder = BatchBuilder::new(Codec::None);
            builder.push(Record::keyed(crate::support::now(), &[b'k', key], &vec![round; 100_000]));
            client.produce(&builder.build()).await;
        }
    }
    let root = cluster.data_dir(BrokerId(1));
    until("the log being compacted", async || {
        let text = std::fs::read_to_string(root.join("cleaner-offset-checkpoint")).ok()?;
        let offset: i64 = text.lines().nth(2)?.rsplit(' ').next()?.parse().ok()?;
        (offset >= 30).then_some(())
    })
    .await;
    let mut latest = std::collections::BTreeMap::new();
    let (mut from, mut records) = (0, 0);
    while from < 40 {
        let response = client.fetch(from, 0, 0).await.expect("an answer");
        let part = &response.responses[0].partitions[0];
        assert_eq!((part.error_code, part.high_watermark, part.log_start_offset), (0, 40, 0));
        for batch in batches(part.records.as_deref().expect("records")) {
            let batch = batch.expect("whole");
            from = batch.next_offset().0;
            for record in batch.records().into_iter().flatten() {
                let record = record.expect("whole");
                let value = record.value.expect("no tombstone");
                latest.insert(record.key.expect("a key")[1], value[0]);
                records += 1;
            }
        }
    }
    assert_eq!(latest, (0..10).map(|key| (key, 3)).collect());
    assert!(records <= 20, "{records} of 40 are left: those of the active segment, and ten");
    cluster.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_partitions_are_followed_over_one_connection_each_way() {
    const PARTITIONS: i32 = 12;
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(3, dir.path()).await;
    create_topic(&cluster, PARTITIONS, 3, &[]).await;
    let end = |partition: i32| 10 + i64::from(partition) * 2;
    for partition in 0..PARTITIONS {
        let leader = until("a leader for each partition", async || {
            let leads = cluster
                .statuses(TOPIC, partition)
                .into_iter()
                .find(|(_, status)| status.as_ref().is_some_and(|status| status.role == Role::Leader));
            leads.map(|(id, _)| id)
        })
        .await;
        let address = cluster.address(leader).expect("an address").to_string();
        let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
        for number in 0..(end(partition) / 2) {
            let records = batch(-1, i32::try_from(number).expect("small"));
            let data = PartitionProduceData::default().with_index(partition).with_records(Some(records.into()));
            let topic = TopicProduceData::default()
                .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
                .with_partition_data(vec![data]);
            let request = ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic]);
            let response = connection.send_version(&request, 9).await.expect("an answer");
            assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        }
    }
    for partition in 0..PARTITIONS {
        until("every replica knowing that all is committed", async || {
            let all = cluster.statuses(TOPIC, partition);
            let done = |status: &highwater_replication::Status| status.high_watermark.0 == end(partition);
            all.iter().all(|(_, status)| status.as_ref().is_some_and(done)).then_some(())
        })
        .await;
    }
    cluster.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synced_policy_acknowledges_only_what_is_flushed() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(3, dir.path()).await;
    create_topic(&cluster, 1, 3, &[("flush.messages", "1")]).await;
    let mut client = Client::of(&cluster);
    for number in 0..20 {
        let end = client.produce(&batch(-1, number)).await + 2;
        let flushed = cluster.statuses(TOPIC, 0).into_iter().filter_map(|(_, status)| status);
        let behind: Vec<_> = flushed
            .filter(|status| status.role == Role::Leader || status.in_isr)
            .filter(|status| status.flushed.0 < end)
            .collect();
        assert!(behind.is_empty(), "acknowledged up to {end}: {behind:?}");
    }
}

fn single(dir: PathBuf) -> BrokerConfig {
    let mut config = BrokerConfig::default();
    config.listen.port = 0;
    config.data_dir = dir;
    config
}

async fn serves(broker: &Broker) -> Vec<TopicPartition> {
    until("it leads its partitions", async || {
        let partitions = broker.partitions();
        let leads = |of: &TopicPartition| broker.status(of).is_some_and(|status| status.role == Role::Leader);
        partitions.iter().all(leads).then_some(partitions)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_or_a_port_in_use_is_told_in_a_sentence() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("data");
    let broker = Broker::start_embedded(single(root.clone())).await.expect("it starts");
    let journal = std::fs::read(root.join("highwater-coordination.journal")).expect("a journal");
    let second = Broker::start_embedded(single(root.clone())).await.expect_err("the directory is locked");
    assert!(matches!(second, StartError::DataDir(_)), "{second:?}");
    assert!(second.to_string().contains("data"), "{second}");
    let unchanged = std::fs::read(root.join("highwater-coordination.journal")).expect("a journal");
    assert!(unchanged.starts_with(&journal), "the second one did not open the journal");

    let mut same_port = single(dir.path().join("other"));
    same_port.listen.port = broker.local_addr().port();
    let second = Broker::start_embedded(same_port).await.expect_err("the port is taken");
    assert!(matches!(second, StartError::Listen { .. }), "{second:?}");
    assert!(second.to_string().contains(&broker.local_addr().port().to_string()), "{second}");

    // Dropped without a word it leaves the directory free.
    drop(broker);
    let again = Broker::start_embedded(single(root.clone())).await.expect("it starts again");
    again.kill().await;
    let again = Broker::start_embedded(single(root)).await.expect("and again");
    again.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_without_a_store_are_taken_over_with_their_ids() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(1, dir.path()).await;
    create_topic(&cluster, 3, 1, &[]).await;
    for number in 0..5 {
        Client::of(&cluster).produce(&batch(-1, number)).await;
    }
    let (id, root) = (topic_id(&cluster), cluster.data_dir(BrokerId(1)));
    // Killed, so that what it takes over is also recovered.
    assert!(cluster.kill(BrokerId(1)).await);
    drop(cluster);
    let broker = Broker::start_embedded(single(root)).await.expect("it starts");
    assert_eq!(broker.ready().partitions, 3);
    assert_eq!(broker.image().topic(TOPIC).map(|topic| topic.id), id);
    let partitions = serves(&broker).await;
    assert_eq!(partitions.len(), 3);
    let status = broker.status(&TopicPartition::new(TOPIC, 0)).expect("hosted");
    assert_eq!((status.log_end.0, status.high_watermark.0), (10, 10));
    broker.shutdown().await.expect("a clean stop");
}

/// Killed again and again in the middle of producing: what was acknowledged is there, each once and in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_the_middle_of_producing_lose_nothing_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[]).await;
    let producer = crate::support::producer_id(&cluster).await;
    let mut sent = 0;
    for round in 0..6u64 {
        let address = cluster.address(BrokerId(1)).expect("an address").to_string();
        let producing = tokio::spawn(async move {
            let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
            let mut acknowledged = sent;
            loop {
                let data = PartitionProduceData::default().with_records(Some(batch(producer, acknowledged).into()));
                let topic = TopicProduceData::default()
                    .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
                    .with_partition_data(vec![data]);
                let request =
                    ProduceRequest::default().with_acks(-1).with_timeout_ms(1_000).with_topic_data(vec![topic]);
                match connection.send_version(&request, 9).await {
                    Ok(response) if response.responses[0].partition_responses[0].error_code == 0 => acknowledged += 1,
                    Ok(response) if response.responses[0].partition_responses[0].error_code == 6 => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    _ => return acknowledged,
                }
            }
        });
        tokio::time::sleep(Duration::from_millis(100 + 30 * round)).await;
        assert!(cluster.kill(BrokerId(1)).await);
        sent = producing.await.expect("no panic");
        cluster.restart(BrokerId(1)).await.expect("it starts");
    }
    assert!(sent > 50, "only {sent} were acknowledged");
    // The one that was in flight when the last kill came may be there too.
    let records = until("the log being led again", async || {
        let (_, status) = cluster.statuses(TOPIC, 0).remove(0);
        if status?.role != Role::Leader {
            return None;
        }
        Some(Client::of(&cluster).read_all().await)
    })
    .await;
    assert!(records.len() >= usize::try_from(sent * 2).expect("small"), "{} of {}", records.len(), sent * 2);
    for (at, (offset, value)) in records.iter().enumerate() {
        assert_eq!(*offset, i64::try_from(at).expect("small"));
        assert_eq!(value, format!("record {at}").as_bytes(), "each once and in order");
    }
}

/// One log that cannot be opened does not keep a broker from serving the others, and the controller hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_opened_is_offline_and_led_elsewhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cluster = start(2, dir.path()).await;
    create_topic(&cluster, 2, 2, &[]).await;
    for number in 0..3 {
        Client::of(&cluster).produce(&batch(-1, number)).await;
    }
    let broken = BrokerId(1);
    assert!(cluster.kill(broken).await);
    // A file that cannot be read: there is a directory in its place.
    let partition = cluster.data_dir(broken).join(format!("{TOPIC}-0"));
    let segment = partition.join("00000000000000000000.log");
    let stored = std::fs::read(&segment).expect("a segment");
    let epochs = partition.join("leader-epoch-checkpoint");
    let _ = std::fs::remove_file(&epochs);
    std::fs::create_dir(&epochs).expect("a directory");
    cluster.restart(broken).await.expect("it starts all the same");
    until("the other broker leading both, the broken one following one", async || {
        let role = |partition: i32, id: BrokerId| {
            let all = cluster.statuses(TOPIC, partition);
            all.into_iter().find(|(broker, _)| *broker == id).and_then(|(_, status)| status).map(|status| status.role)
        };
        let whole = BrokerId(2);
        let offline = role(0, broken).is_none() && role(0, whole) == Some(Role::Leader);
        let one_leads = role(1, broken) == Some(Role::Leader) || role(1, whole) == Some(Role::Leader);
        (offline && one_leads && role(1, broken).is_some()).then_some(())
    })
    .await;
    assert_eq!(std::fs::read(&segment).expect("a segment"), stored, "left as it was");
    let address = cluster.address(broken).expect("an address").to_string();
    let connection = Connection::connect(&address, "test", TIMEOUT).await.expect("connects");
    let data = PartitionProduceData::default().with_records(Some(batch(-1, 0).into()));
    let topic = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_static_str(TOPIC)))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default().with_acks(1).with_timeout_ms(1_000).with_topic_data(vec![topic]);
    let response = connection.send_version(&request, 9).await.expect("an answer");
    assert_eq!(response.responses[0].partition_responses[0].error_code, 56);
    assert_eq!(Client::of(&cluster).read_all().await.len(), 6);
}

/// Messages from before there were batches (magic 0, 1, then 2, as Kafka 2.4 left them) go to consumers as they are, and
/// what is produced goes behind them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_old_formats_are_served_as_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = start(1, dir.path()).await;
    create_topic(&cluster, 1, 1, &[("retention.ms", "-1")]).await;
    let partition = cluster.data_dir(BrokerId(1)).join(format!("{TOPIC}-0"));
    cluster.shutdown().await.expect("a clean stop");

    let kafkas = Path::new(env!("CARGO_MANIFEST_DIR")).join("../storage/tests/data/old-formats/log/mixed-0");
    for name in entries(&partition).iter().filter(|name| *name != "partition.metadata") {
        std::fs::remove_file(partition.join(name)).expect("removed");
    }
    let mut stored = Vec::new();
    for name in entries(&kafkas) {
        std::fs::copy(kafkas.join(&name), partition.join(&name)).expect("copied");
        if name.ends_with(".log") {
            stored.extend(std::fs::read(kafkas.join(&name)).expect("a segment"));
        }
    }
    let cluster = start(1, dir.path()).await;
    let mut client = Client::of(&cluster);
    assert_eq!(client.produce(&batch(-1, 0)).await, 432, "behind the last of Kafka's");
    let (mut fetched, mut from) = (Vec::<u8>::new(), 0);
    while from < 432 {
        let response = client.fetch(from, 0, 0).await.expect("an answer");
        let part = &response.responses[0].partitions[0];
        assert_eq!(part.error_code, 0, "at {from}");
        let bytes = part.records.clone().expect("never null");
        assert!(!bytes.is_empty(), "at {from}");
        for batch in batches(&bytes).map(|batch| batch.expect("whole batches")) {
            from = batch.last_offset().0 + 1;
            if from <= 432 {
                fetched.extend(batch.bytes());
            }
        }
    }
    assert!(fetched == stored, "other bytes than Kafka stored");
    cluster.shutdown().await.expect("a clean stop");
}

/// Records that nobody committed must not come to lie below a mark of a tail that is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_high_watermark_above_the_end_is_lowered_before_the_log_grows() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = highwater_broker::ClusterOptions::new(1, dir.path()).configure(|config| {
        config.high_watermark_checkpoint_interval_ms = 3_600_000;
    });
    let mut cluster = Cluster::start(options).await.expect("the cluster starts");
    create_topic(&cluster, 1, 1, &[]).await;
    for number in 0..3 {
        Client::of(&cluster).produce(&batch(-1, number)).await;
    }
    assert!(cluster.kill(BrokerId(1)).await);
    let file = cluster.data_dir(BrokerId(1)).join("replication-offset-checkpoint");
    std::fs::write(&file, format!("0\n1\n{TOPIC} 0 1000\n")).expect("it can be written");
    cluster.restart(BrokerId(1)).await.expect("it starts");
    until("the mark being lowered", async || {
        let text = std::fs::read_to_string(&file).ok()?;
        (text == format!("0\n1\n{TOPIC} 0 6\n")).then_some(())
    })
    .await;
}
