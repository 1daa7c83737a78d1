use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use highwater_replication::{BrokerEpoch, Partition, PartitionState, Role, Versioned};
use highwater_storage::lock::lock_directory;
use highwater_storage::{LeaderEpoch, Log, LogOptions, OpenHints, TopicId};

use super::*;
use crate::cluster::{FactorChange, Intent, Move, NewTopic, PartitionImage, TopicImage};

const MARKER: &str = ".kafka_cleanshutdown";

fn config(id: i32, dir: &Path) -> BrokerConfig {
    let mut config =
        BrokerConfig { broker_id: BrokerId(id), data_dir: dir.join(id.to_string()), ..BrokerConfig::default() };
    config.listen.port = 0;
    config
}

/// An image of topic `t` whose partitions have these in-sync replicas.
fn image(id: TopicId, in_sync: &[&[i32]]) -> MetadataImage {
    let partition = |isr: &&[i32]| {
        let value = PartitionState {
            leader: None,
            leader_epoch: LeaderEpoch(0),
            isr: isr.iter().copied().map(BrokerId).collect(),
            controller_epoch: 1,
            doubtful: Vec::new(),
            recovering: false,
        };
        PartitionImage {
            assignment: vec![BrokerId(1), BrokerId(2)],
            reassignment: Default::default(),
            state: Versioned { value, version: 0 },
        }
    };
    let partitions = in_sync.iter().map(partition).collect();
    let mut image = MetadataImage::default();
    image.insert(Arc::new(TopicImage { name: "t".into(), id, version: 0, config: BTreeMap::new(), partitions }));
    image
}

async fn make_topic(broker: &Broker, replicas: &[i32]) -> TopicPartition {
    let assignment = BTreeMap::from([(0, replicas.iter().copied().map(BrokerId).collect())]);
    let new = NewTopic { name: "t".to_owned(), assignment: Some(assignment), ..NewTopic::default() };
    broker.cluster().create_topic(&new, Intent::Apply).await.expect("made");
    TopicPartition::new("t", 0)
}

async fn leads(broker: &Broker, of: &TopicPartition) {
    let waiting = async {
        while broker.status(of).is_none_or(|status| status.role != Role::Leader) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it leads");
}

async fn in_sync(broker: &Broker, of: &TopicPartition, replicas: &[i32]) {
    let wanted: BTreeSet<BrokerId> = replicas.iter().copied().map(BrokerId).collect();
    let is_so = |image: &Arc<MetadataImage>| {
        let known = image.partition(of).map(|known| known.state.value.isr.iter().copied().collect::<BTreeSet<_>>());
        known.as_ref() == Some(&wanted)
    };
    let mut changes = broker.cluster().changes();
    let seen = tokio::time::timeout(Duration::from_secs(30), changes.wait_for(is_so)).await;
    assert!(seen.is_ok_and(|seen| seen.is_ok()), "never in sync: {replicas:?}");
}

/// Brokers 1 and 2, with a topic that both have and the first leads.
async fn two_brokers(dir: &Path) -> (Broker, Broker, TopicPartition) {
    let store = EmbeddedStore::in_memory();
    let mut brokers = Vec::new();
    for id in [1, 2] {
        let session = Arc::new(store.session(30_000));
        brokers.push(Broker::start(config(id, dir), session).await.expect("it starts"));
    }
    let (second, first) = (brokers.pop().expect("two"), brokers.pop().expect("two"));
    let both = |image: &Arc<MetadataImage>| image.brokers.len() == 2;
    first.cluster().changes().wait_for(both).await.expect("an image");
    let of = make_topic(&first, &[1, 2]).await;
    leads(&first, &of).await;
    (first, second, of)
}

/// Whoever leads a partition and cannot go on with it gives it up, and says so in its directory too: the log was not
/// closed in order, so the next start must not take it for whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_panics_is_led_elsewhere_and_the_stop_is_not_clean() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second, of) = two_brokers(dir.path()).await;
    let hosted = first.shared.partitions.get(&of).expect("hosted");
    assert_eq!(hosted.ask(|_, _| panic!("on purpose")).await, None::<()>);
    leads(&second, &of).await;
    assert!(matches!(first.shutdown().await, Err(ShutdownError::Log { partition, .. }) if partition == of));
    assert!(!dir.path().join("1").join(MARKER).exists());
    second.shutdown().await.expect("a clean stop");
    assert!(dir.path().join("2").join(MARKER).exists());
}

/// What was told of a replica that failed ends with it: one that is made in its place, by the same process, joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_failed_and_is_made_anew_is_in_sync_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (first, second, of) = two_brokers(dir.path()).await;
    // A first log fails, and so does the one that took its place.
    for _ in 0..2 {
        in_sync(&first, &of, &[1, 2]).await;
        let hosted = second.shared.partitions.get(&of).expect("hosted");
        assert_eq!(hosted.ask(|_, _| panic!("on purpose")).await, None::<()>);
        in_sync(&first, &of, &[1]).await;
        for replicas in [&[1][..], &[1, 2]] {
            let to = Move::To(replicas.iter().copied().map(BrokerId).collect());
            let moved = first.cluster().reassign("t", &BTreeMap::from([(0, to)]), FactorChange::Allowed).await;
            assert!(moved.is_ok_and(|each| each[&0].is_ok()));
            let done = |image: &Arc<MetadataImage>| {
                image
                    .partition(&of)
                    .is_some_and(|known| !known.reassignment.is_under_way() && known.assignment.len() == replicas.len())
            };
            let mut changes = first.cluster().changes();
            let seen = tokio::time::timeout(Duration::from_secs(30), changes.wait_for(done)).await;
            assert!(seen.is_ok_and(|seen| seen.is_ok()), "the replicas are not {replicas:?}");
        }
    }
    in_sync(&first, &of, &[1, 2]).await;
    first.shutdown().await.expect("a clean stop");
    second.shutdown().await.expect("a clean stop");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_with_a_log_that_could_not_be_opened_is_not_clean() {
    let dir = tempfile::tempdir().expect("a directory");
    let root = dir.path().join("1");
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts");
    let of = make_topic(&broker, &[1]).await;
    leads(&broker, &of).await;
    broker.kill().await;
    let segment = root.join("t-0/00000000000000000000.log");
    let kept = segment.with_extension("kept");
    std::fs::rename(&segment, &kept).expect("renamed");
    std::fs::create_dir(&segment).expect("a directory in its place");
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts all the same");
    assert_eq!(broker.status(&of), None);
    assert!(matches!(broker.shutdown().await, Err(ShutdownError::Log { partition, .. }) if partition == of));
    assert!(!root.join(MARKER).exists());
    std::fs::remove_dir(&segment).expect("removed");
    std::fs::rename(&kept, &segment).expect("renamed");
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts");
    leads(&broker, &of).await;
    broker.shutdown().await.expect("a clean stop");
    assert!(root.join(MARKER).exists());
}

/// Field fault S53: a log goes by its topic's own settings before the broker's, new segments too, and after a restart with
/// other defaults as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s53_a_topics_own_settings_are_kept_over_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let of = TopicPartition::new("t", 0);
    for (start, default_ms) in [(0, 1_000), (1, 2_000)] {
        let mut config = config(1, dir.path());
        config.topic.retention_ms = default_ms;
        config.topic.segment_ms = default_ms;
        let broker = Broker::start_embedded(config).await.expect("it starts");
        if start == 0 {
            let own = BTreeMap::from([("retention.ms".to_owned(), "77".to_owned())]);
            let new = NewTopic { name: "t".to_owned(), config: own, ..NewTopic::default() };
            broker.cluster().create_topic(&new, Intent::Apply).await.expect("made");
        }
        leads(&broker, &of).await;
        let hosted = broker.shared.partitions.get(&of).expect("hosted");
        let told = |partition: &mut Partition, _| {
            let options = partition.log().options();
            (options.retention_ms, options.segment_ms)
        };
        assert_eq!(hosted.ask(told).await, Some((77, default_ms)), "start {start}");
        broker.shutdown().await.expect("a clean stop");
    }
}

/// An embedder may have opened a log alone before there was a root around it, of which its own lock tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_somebody_else_has_open_is_offline() {
    let dir = tempfile::tempdir().expect("a directory");
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts");
    let of = make_topic(&broker, &[1]).await;
    leads(&broker, &of).await;
    broker.shutdown().await.expect("a clean stop");
    let log = dir.path().join("1/t-0");
    let held = lock_directory(&OsFs, &log).expect("free");
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts all the same");
    assert_eq!(broker.status(&of), None);
    assert!(matches!(broker.shutdown().await, Err(ShutdownError::Log { partition, .. }) if partition == of));
    drop(held);
    // The file of a lock that was let go says nothing.
    assert!(log.join(".lock").exists());
    let broker = Broker::start_embedded(config(1, dir.path())).await.expect("it starts");
    leads(&broker, &of).await;
    broker.shutdown().await.expect("a clean stop");
}

/// A topic that is deleted between the image a broker joins with and the one it registers with.
#[tokio::test]
async fn what_went_away_while_the_broker_joined_is_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let services = Services::new(config(1, dir.path()));
    let (fs, of): (Arc<dyn Fs>, _) = (Arc::new(OsFs), TopicPartition::new("t", 0));
    let id = TopicId([7; 16]);
    {
        let options = DataDirOptions::of_node(1);
        let (data, _) = DataDir::open(Arc::clone(&fs), &services.config.data_dir, options).expect("opened");
        let made = data.create_partition(&of, id).expect("made");
        Log::open_with(Arc::clone(&fs), &made, LogOptions::default(), OpenHints::default()).expect("a log");
    }
    let (partitions, opened, _) = open_directory(fs, Arc::clone(&services)).expect("opened");
    let partitions = Arc::new(partitions);
    partitions.attach(&Arc::new(image(id, &[&[1]])), opened);
    assert!(partitions.get(&of).is_some());
    partitions.reconcile(&Arc::new(MetadataImage::default()), Registration::Registered(BrokerEpoch(1)));
    assert!(partitions.get(&of).is_none());
    assert!(!services.config.data_dir.join("t-0").exists());
}

#[test]
fn a_log_that_is_counted_on_and_not_there_makes_the_stop_unclean() {
    let image = image(TopicId([7; 16]), &[&[1, 2], &[2], &[1]]);
    let logs = [0, 1, 2].map(|number| TopicPartition::new("t", number));
    let told = |found, present: &[usize]| {
        last_stop(found, &image, BrokerId(1), &present.iter().map(|&at| &logs[at]).collect())
    };
    // What others hold alone may be missing, as it is while this broker is new to the partition.
    for present in [&[0, 2][..], &[0, 1, 2]] {
        assert_eq!(told(LastStop::Clean, present), LastStop::Clean);
        assert_eq!(told(LastStop::Unclean, present), LastStop::Unclean);
    }
    for present in [&[][..], &[0], &[1, 2]] {
        assert_eq!(told(LastStop::Clean, present), LastStop::Unclean);
    }
}

/// Whoever has the cleaner sleep for a short time sees topics compacted then, and retention is looked at as seldom as it
/// is set: what is asked of partitions for the one is not asked for the other.
#[test]
fn partitions_are_asked_for_work_as_often_as_is_set() {
    let intervals = |retention_ms, cleaner_ms| {
        let config = BrokerConfig {
            retention_check_interval_ms: retention_ms,
            cleaner_backoff_ms: cleaner_ms,
            ..BrokerConfig::default()
        };
        let Intervals { house, retention } = Intervals::of(&config);
        (house.as_millis(), retention.as_millis())
    };
    assert_eq!(intervals(300_000, 15_000), (15_000, 300_000), "Kafka's defaults");
    assert_eq!(intervals(300_000, 1_000), (1_000, 300_000));
    assert_eq!(intervals(300_000, 0), (1_000, 300_000));
    assert_eq!(intervals(300_000, i64::MAX), (30_000, 300_000));
    assert_eq!(intervals(50, 15_000), (50, 50));
}
