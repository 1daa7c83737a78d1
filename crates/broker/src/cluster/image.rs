//! The cluster at one moment, as every broker holds it in memory: an immutable value, replaced as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, PublishedEnd, Reassignment, Versioned};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};

/// Brokers, topics and who leads what. Topics that did not change are shared between successive images
/// ([`Arc::ptr_eq`] tells cheaply that nothing is new).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataImage {
    /// The cluster's id, as in `meta.properties`; empty until it is known.
    pub cluster_id: String,
    /// Who decides elections at the moment.
    pub controller: Option<BrokerId>,
    /// The live brokers.
    pub brokers: BTreeMap<BrokerId, BrokerInfo>,
    /// Those of them that are about to stop: leaderships go elsewhere, and they leave the in-sync sets.
    pub leaving: BTreeSet<BrokerId>,
    /// All topics by name.
    pub topics: BTreeMap<Arc<str>, Arc<TopicImage>>,
    /// The same topics by id.
    pub by_id: BTreeMap<TopicId, Arc<TopicImage>>,
    /// Replicas on live brokers whose log has failed: they can neither lead nor be in sync.
    pub offline: BTreeSet<(TopicId, i32, BrokerId)>,
    /// How far the logs of replicas go that stopped uncleanly, by topic, partition and broker.
    pub ends: BTreeMap<(TopicId, i32, BrokerId), PublishedEnd>,
    /// What was set of all brokers while they run.
    pub broker_defaults: BTreeMap<String, String>,
    /// What was set of this one, which goes before it.
    pub broker_config: BTreeMap<String, String>,
}

/// A live broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerInfo {
    /// Its number.
    pub id: BrokerId,
    /// Its life.
    pub epoch: BrokerEpoch,
    /// Where clients and followers reach it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Its rack, if it has one.
    pub rack: Option<String>,
}

impl PartitionImage {
    /// A partition that the controller has yet to set up.
    pub fn new(assignment: Vec<BrokerId>) -> Self {
        let value = PartitionState {
            leader: None,
            leader_epoch: LeaderEpoch::NONE,
            isr: Vec::new(),
            controller_epoch: 0,
            doubtful: Vec::new(),
            recovering: false,
        };
        Self { assignment, reassignment: Reassignment::default(), state: Versioned { value, version: -1 } }
    }

    /// Whether its state is in the store.
    pub fn is_set_up(&self) -> bool {
        self.state.version >= 0
    }
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicImage {
    /// Its name.
    pub name: Arc<str>,
    /// Its identity; [`TopicId::ZERO`] for a topic made by a Kafka too old to have ids.
    pub id: TopicId,
    /// The version of its node in the store; another one after partitions were added or the topic was made again.
    pub version: i64,
    /// The configs that were set for it; all else is the broker's default.
    pub config: BTreeMap<String, String>,
    /// Its partitions; the index is the partition's number.
    pub partitions: Vec<PartitionImage>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionImage {
    /// Its replicas, the preferred leader first.
    pub assignment: Vec<BrokerId>,
    /// What is to change of them.
    pub reassignment: Reassignment,
    /// Leader and in-sync replicas. Without a leader, epoch -1 and version -1 while the controller has yet to set it up.
    pub state: Versioned<PartitionState>,
}

impl MetadataImage {
    /// The topic of this name.
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    /// The topic of this id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.by_id.get(&id)
    }

    /// One partition.
    pub fn partition(&self, of: &TopicPartition) -> Option<&PartitionImage> {
        self.topics.get(&of.topic)?.partition(of.partition)
    }

    /// How far the logs of one partition's replicas go, of those that have stopped uncleanly and said so.
    pub fn ends_of(&self, topic: TopicId, partition: i32) -> BTreeMap<BrokerId, PublishedEnd> {
        let all = (topic, partition, BrokerId(i32::MIN))..=(topic, partition, BrokerId(i32::MAX));
        self.ends.range(all).map(|((_, _, id), end)| (*id, *end)).collect()
    }

    /// The live brokers with their epochs, as the replication layer wants them.
    pub fn live_brokers(&self) -> BTreeMap<BrokerId, BrokerEpoch> {
        self.brokers.values().map(|broker| (broker.id, broker.epoch)).collect()
    }

    /// The live brokers that are not about to stop: on whom leaders count.
    pub fn staying_brokers(&self) -> BTreeMap<BrokerId, BrokerEpoch> {
        let mut staying = self.live_brokers();
        staying.retain(|id, _| !self.leaving.contains(id));
        staying
    }

    /// Those of them on whom the leader of one partition counts: their logs of it have not failed, and their replicas are not
    /// to go by now.
    pub fn staying_with_logs(&self, topic: TopicId, partition: i32) -> BTreeMap<BrokerId, BrokerEpoch> {
        let mut live = self.staying_brokers();
        live.retain(|id, _| !self.offline.contains(&(topic, partition, *id)));
        if let Some(of) = self.topic_by_id(topic).and_then(|topic| topic.partition(partition)) {
            let dismissed = of.reassignment.dismissed(&of.state.value, |id| live.contains_key(&id)).to_vec();
            live.retain(|id, _| !dismissed.contains(id));
        }
        live
    }

    /// Puts a topic in, replacing one of the same name.
    pub fn insert(&mut self, topic: Arc<TopicImage>) {
        self.remove(&topic.name);
        if topic.id != TopicId::ZERO {
            self.by_id.insert(topic.id, topic.clone());
        }
        self.topics.insert(topic.name.clone(), topic);
    }

    /// Takes a topic out.
    pub fn remove(&mut self, name: &str) -> Option<Arc<TopicImage>> {
        let topic = self.topics.remove(name)?;
        self.by_id.remove(&topic.id);
        Some(topic)
    }
}

impl TopicImage {
    /// The partition of this number.
    pub fn partition(&self, number: i32) -> Option<&PartitionImage> {
        self.partitions.get(usize::try_from(number).ok()?)
    }
}
