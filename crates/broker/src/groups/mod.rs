//! Consumer groups on this broker: a coordinator for each partition of `__consumer_offsets` that it leads.

mod coordinator;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use highwater_groups::{Answer, GroupListing, Input, Refused, Request};
use highwater_replication::BrokerId;
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::sync::{mpsc, oneshot};

use crate::broker::BrokerShared;
use crate::cluster::{AdminError, Intent, MetadataImage, NewTopic};

/// The topic in which groups and their offsets are kept.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// What may wait at one coordinator. Who comes later waits on its own connection.
const MESSAGES_MAX: usize = 1024;

/// What a coordinator is told.
#[derive(Debug)]
enum Message {
    /// A client asks.
    Request(Request, oneshot::Sender<Answer>),
    /// Something has happened.
    Input(Input),
}

/// The coordinators that run here.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    running: RwLock<BTreeMap<i32, Running>>,
}

/// One of them. Dropping it tells it that this broker leads its partition no more.
#[derive(Debug)]
struct Running {
    topic_id: TopicId,
    leader_epoch: LeaderEpoch,
    messages: mpsc::Sender<Message>,
}

impl Groups {
    /// Asks the coordinator of the request's group, if that runs here.
    pub(crate) async fn ask(&self, me: BrokerId, image: &MetadataImage, request: Request) -> Answer {
        let not_here = request.refused(Refused::NotCoordinator);
        let Some(topic) = image.topic(OFFSETS_TOPIC) else {
            return request.refused(Refused::CoordinatorNotAvailable);
        };
        let partition = partition_of(request.group().unwrap_or_default(), topic.partitions.len());
        let Some(messages) = self.messages(partition) else {
            let leader = topic.partition(partition).and_then(|partition| partition.state.value.leader);
            // The image is a step ahead of what follows it.
            return if leader == Some(me) { request.refused(Refused::CoordinatorLoadInProgress) } else { not_here };
        };
        let (sender, answer) = oneshot::channel();
        if messages.send(Message::Request(request, sender)).await.is_err() {
            return not_here;
        }
        answer.await.unwrap_or(not_here)
    }

    /// The groups of all coordinators here; refused if one of them is loading.
    pub(crate) async fn list(&self) -> Result<Vec<GroupListing>, Refused> {
        let all: Vec<_> = self.read().values().map(|running| running.messages.clone()).collect();
        let mut groups = Vec::new();
        for messages in all {
            let (sender, answer) = oneshot::channel();
            if messages.send(Message::Request(Request::List, sender)).await.is_err() {
                continue;
            }
            match answer.await {
                Ok(Answer::Listed(Ok(listed))) => groups.extend(listed),
                Ok(Answer::Listed(Err(Refused::NotCoordinator))) | Err(_) => {}
                Ok(Answer::Listed(Err(why))) => return Err(why),
                Ok(_) => {}
            }
        }
        Ok(groups)
    }

    fn messages(&self, partition: i32) -> Option<mpsc::Sender<Message>> {
        self.read().get(&partition).map(|running| running.messages.clone())
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<i32, Running>> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<i32, Running>> {
        self.running.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The partition of the offsets topic that keeps a group: by Java's hash of its id, as every broker and tool of Kafka's
/// counts.
pub(crate) fn partition_of(group: &str, partitions: usize) -> i32 {
    let hash = group.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The hash that has no absolute value counts as zero.
    let positive = hash.checked_abs().unwrap_or(0);
    let partitions = i32::try_from(partitions).unwrap_or(i32::MAX).max(1);
    positive % partitions
}

/// Makes the topic of groups if it is not there.
///
/// # Errors
/// If it cannot be made: too few brokers are there, or the store is away.
pub(crate) async fn make_topic(broker: &BrokerShared) -> Result<(), AdminError> {
    if broker.cluster.image().topic(OFFSETS_TOPIC).is_some() {
        return Ok(());
    }
    let config = &broker.config;
    let brokers = i16::try_from(broker.cluster.image().brokers.len()).unwrap_or(i16::MAX);
    let topic = NewTopic {
        name: OFFSETS_TOPIC.to_owned(),
        partitions: Some(config.offsets_topic_partitions),
        replication_factor: Some(config.offsets_topic_replication_factor.unwrap_or_else(|| brokers.clamp(1, 3))),
        assignment: None,
        config: [
            ("cleanup.policy", "compact".to_owned()),
            ("compression.type", "producer".to_owned()),
            ("segment.bytes", config.offsets_topic_segment_bytes.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into(),
    };
    match broker.cluster.create_topic(&topic, Intent::Apply).await {
        Ok(_) | Err(AdminError::Exists(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Starts and ends coordinators as leaderships come and go. Ends with the broker.
pub(crate) async fn run(broker: Arc<BrokerShared>) {
    let mut images = broker.cluster.changes();
    let mut topics = BTreeSet::new();
    loop {
        let image = Arc::clone(&images.borrow_and_update());
        follow(&broker, &image);
        let now: BTreeSet<Arc<str>> = image.topics.keys().cloned().collect();
        for gone in topics.difference(&now) {
            forget_topic(&broker, gone).await;
        }
        topics = now;
        if images.changed().await.is_err() {
            return;
        }
    }
}

fn follow(broker: &Arc<BrokerShared>, image: &MetadataImage) {
    let me = broker.config.broker_id;
    let topic = image.topic(OFFSETS_TOPIC);
    let partitions = topic.map_or(&[][..], |topic| &topic.partitions);
    let led = (0..).zip(partitions).filter(|(_, partition)| partition.state.value.leader == Some(me));
    let led: BTreeMap<i32, LeaderEpoch> =
        led.map(|(number, partition)| (number, partition.state.value.leader_epoch)).collect();
    let mut running = broker.groups.write();
    let stays = |number: &i32, running: &mut Running| {
        led.get(number) == Some(&running.leader_epoch) && topic.is_some_and(|topic| topic.id == running.topic_id)
    };
    running.retain(stays);
    let Some(topic) = topic else { return };
    for (number, leader_epoch) in led {
        running.entry(number).or_insert_with(|| {
            let (messages, received) = mpsc::channel(MESSAGES_MAX);
            let of = TopicPartition::new(topic.name.clone(), number);
            broker.services.spawn(coordinator::run(Arc::clone(broker), of, topic.id, leader_epoch, received));
            Running { topic_id: topic.id, leader_epoch, messages }
        });
    }
}

async fn forget_topic(broker: &BrokerShared, topic: &str) {
    let all: Vec<_> = broker.groups.read().values().map(|running| running.messages.clone()).collect();
    for messages in all {
        // It may have ended meanwhile.
        let _ = messages.send(Message::Input(Input::TopicDeleted(topic.to_owned()))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_those_that_kafka_counts() {
        // Java: "".hashCode() = 0, "a" = 97, "polygenelubricants" = Integer.MIN_VALUE.
        for (group, partition) in [("", 0), ("a", 47), ("polygenelubricants", 0)] {
            assert_eq!(partition_of(group, 50), partition, "{group}");
        }
        assert_eq!(partition_of("ä\u{10000}", 50), {
            // In units of UTF-16: a character beyond them counts as two.
            let hash = (0xe4 * 31 + 0xd800) * 31 + 0xdc00;
            hash % 50
        });
    }
}
