//! What coordinators of groups and of transactions have in common: one machine for each partition of an internal topic that
//! this broker leads, which keeps in that partition what must outlive it.

mod actor;
mod records;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use highwater_groups::{AppendId, Appended, LoadedBatch, Now, Producer, Record, Ticket};
use highwater_replication::BrokerId;
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition, TransactionMarker};
use tokio::sync::{mpsc, oneshot};

use crate::broker::BrokerShared;
use crate::cluster::{AdminError, Intent, MetadataImage, NewTopic};
use crate::config::BrokerConfig;
use crate::hosted::Guard;
use crate::seldom::Seldom;

pub(crate) use actor::marked;

/// What may wait at one coordinator. Who comes later waits on its own connection.
const MESSAGES_MAX: usize = 1024;

/// Replicas of internal topics, and the most of them that are made unasked.
const REPLICAS: i16 = 3;

/// What keeps internal topics from being made.
static NOT_MADE: Seldom = Seldom::new();

/// How long a request that made an internal topic waits for its leaders.
const LEADERS_WAIT_MS: u64 = 1_000;

/// A machine that keeps its state in one partition of an internal topic.
pub(crate) trait Machine: Sized + Send + 'static {
    /// What clients ask.
    type Request: fmt::Debug + Send + 'static;
    /// What they are answered.
    type Answer: fmt::Debug + Send + 'static;
    /// What else it is told.
    type News: fmt::Debug + Send + 'static;
    /// What else it wants done.
    type Wish: fmt::Debug + Send + 'static;

    /// The topic.
    const TOPIC: &'static str;
    /// What it keeps there, for the log file.
    const KEEPS: &'static str;

    /// A machine that is loading.
    fn new(config: &BrokerConfig) -> Self;

    /// Lets something happen.
    fn handle(&mut self, now: Now, event: Event<Self>) -> Vec<Deed<Self>>;

    /// When [`Event::Tick`] is due.
    fn next_deadline_ms(&self) -> Option<u64>;

    /// The answer to a request that nobody is here for.
    fn away(request: &Self::Request, why: Away) -> Self::Answer;

    /// How long whoever waits for an append waits until it is told to try again.
    fn patience(config: &BrokerConfig) -> Duration;

    /// Does what it wants done besides, beside it. Dropped when the machine ends.
    fn carry_out(at: Place<Self>, wish: Self::Wish) -> impl Future<Output = ()> + Send + 'static;
}

/// What happens to a machine.
#[derive(Debug)]
pub(crate) enum Event<M: Machine> {
    /// A batch of its partition, while it loads.
    Load(LoadedBatch),
    /// The whole partition has been read.
    Loaded,
    /// A client asks.
    Request(Ticket, M::Request),
    /// An append goes on.
    Appended(AppendId, Appended),
    /// A marker is committed in its partition.
    Marker { producer_id: i64, commits: bool },
    /// Something else.
    News(M::News),
    /// Time has passed.
    Tick,
    /// The partition is led here no more.
    Resigned,
}

/// What a machine wants done.
#[derive(Debug)]
pub(crate) enum Deed<M: Machine> {
    /// Someone is answered.
    Answer(Ticket, M::Answer),
    /// Records go into the log with acks=all, if that takes `spare_bytes` more of them.
    Append { id: AppendId, transaction: Option<Producer>, records: Vec<Record>, spare_bytes: usize },
    /// A line for the log file.
    Odd(String),
    /// Something else.
    Wish(M::Wish),
}

/// Why a request finds nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Away {
    /// The coordinator is elsewhere.
    NotHere,
    /// There is none now.
    Nowhere,
    /// It is loading, or is to begin.
    Loading,
}

/// What became of a marker in the partition of a coordinator.
pub(crate) type Marked = Result<(), NotMarked>;

/// Why a marker was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMarked {
    /// The partition is not led here, or its coordinator is loading.
    NotLeader,
    /// The producer goes on in a later epoch.
    InvalidProducerEpoch,
    /// A later coordinator has written there.
    CoordinatorFenced,
    /// Too few replicas are in sync.
    NotEnoughReplicas,
    /// The log cannot be written.
    Storage,
}

/// What a coordinator is told.
pub(crate) enum Message<M: Machine> {
    /// A client asks. What it has appended may begin a transaction in the partition if the guard says so.
    Request { request: M::Request, guard: Option<Arc<Guard>>, answer: oneshot::Sender<M::Answer> },
    /// A transaction that has records in the partition ends.
    Marker(TransactionMarker, oneshot::Sender<Marked>),
    /// Something has happened.
    News(M::News),
}

impl<M: Machine> fmt::Debug for Message<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { request, .. } => f.debug_tuple("Request").field(request).finish(),
            Self::Marker(marker, _) => f.debug_tuple("Marker").field(marker).finish(),
            Self::News(news) => f.debug_tuple("News").field(news).finish(),
        }
    }
}

/// Where a machine is at work, for what it wants done beside it.
#[derive(Debug)]
pub(crate) struct Place<M: Machine> {
    pub(crate) broker: Arc<BrokerShared>,
    /// The epoch of its partition's leadership, which is the coordinator's.
    pub(crate) leader_epoch: LeaderEpoch,
    messages: mpsc::WeakSender<Message<M>>,
}

impl<M: Machine> Clone for Place<M> {
    fn clone(&self) -> Self {
        Self { broker: Arc::clone(&self.broker), leader_epoch: self.leader_epoch, messages: self.messages.clone() }
    }
}

impl<M: Machine> Place<M> {
    /// Tells the machine something. False once it has been dismissed.
    pub(crate) async fn tell(&self, news: M::News) -> bool {
        match self.messages.upgrade() {
            Some(messages) => messages.send(Message::News(news)).await.is_ok(),
            None => false,
        }
    }
}

/// The coordinators of one kind that run here.
#[derive(Debug)]
pub(crate) struct Coordinators<M: Machine> {
    running: RwLock<BTreeMap<i32, Running<M>>>,
}

impl<M: Machine> Default for Coordinators<M> {
    fn default() -> Self {
        Self { running: RwLock::default() }
    }
}

/// One of them. Dropping it tells it that this broker leads its partition no more.
#[derive(Debug)]
struct Running<M: Machine> {
    topic_id: TopicId,
    leader_epoch: LeaderEpoch,
    messages: mpsc::Sender<Message<M>>,
}

impl<M: Machine> Coordinators<M> {
    /// Asks the coordinator of a key, if that runs here.
    pub(crate) async fn ask(
        &self,
        me: BrokerId,
        image: &MetadataImage,
        key: &str,
        request: M::Request,
        guard: Option<Arc<Guard>>,
    ) -> M::Answer {
        let not_here = M::away(&request, Away::NotHere);
        let Some(topic) = image.topic(M::TOPIC) else { return M::away(&request, Away::Nowhere) };
        let partition = partition_of(key, topic.partitions.len());
        let Some(messages) = self.messages(partition) else {
            let leader = topic.partition(partition).and_then(|partition| partition.state.value.leader);
            // The image is a step ahead of what follows it.
            return if leader == Some(me) { M::away(&request, Away::Loading) } else { not_here };
        };
        let (answer, answered) = oneshot::channel();
        if messages.send(Message::Request { request, guard, answer }).await.is_err() {
            return not_here;
        }
        answered.await.unwrap_or(not_here)
    }

    /// Asks all coordinators here; `None` of those that end meanwhile.
    pub(crate) async fn ask_all(&self, request: impl Fn() -> M::Request) -> Vec<Option<M::Answer>> {
        let mut answers = Vec::new();
        for messages in self.all_messages() {
            let (answer, answered) = oneshot::channel();
            let asked = messages.send(Message::Request { request: request(), guard: None, answer }).await;
            answers.push(if asked.is_ok() { answered.await.ok() } else { None });
        }
        answers
    }

    /// Has a marker written into the partition of a coordinator here, which goes by it from then on.
    pub(crate) async fn mark(&self, partition: i32, marker: TransactionMarker) -> Marked {
        let Some(messages) = self.messages(partition) else { return Err(NotMarked::NotLeader) };
        let (marked, answered) = oneshot::channel();
        if messages.send(Message::Marker(marker, marked)).await.is_err() {
            return Err(NotMarked::NotLeader);
        }
        answered.await.unwrap_or(Err(NotMarked::NotLeader))
    }

    /// Tells all coordinators here something.
    pub(crate) async fn tell_all(&self, news: impl Fn() -> M::News) {
        for messages in self.all_messages() {
            // It may have ended meanwhile.
            let _ = messages.send(Message::News(news())).await;
        }
    }

    /// Starts and ends coordinators as leaderships come and go.
    pub(crate) fn follow(&self, broker: &Arc<BrokerShared>, image: &MetadataImage) {
        let me = broker.config.broker_id;
        let topic = image.topic(M::TOPIC);
        let partitions = topic.map_or(&[][..], |topic| &topic.partitions);
        let led = (0..).zip(partitions).filter(|(_, partition)| partition.state.value.leader == Some(me));
        let led: BTreeMap<i32, LeaderEpoch> =
            led.map(|(number, partition)| (number, partition.state.value.leader_epoch)).collect();
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        let stays = |number: &i32, running: &mut Running<M>| {
            led.get(number) == Some(&running.leader_epoch) && topic.is_some_and(|topic| topic.id == running.topic_id)
        };
        running.retain(stays);
        let Some(topic) = topic else { return };
        for (number, leader_epoch) in led {
            running.entry(number).or_insert_with(|| {
                let (messages, received) = mpsc::channel(MESSAGES_MAX);
                let of = TopicPartition::new(topic.name.clone(), number);
                let place = Place { broker: Arc::clone(broker), leader_epoch, messages: messages.downgrade() };
                broker.services.spawn(actor::run(place, of, topic.id, received));
                Running { topic_id: topic.id, leader_epoch, messages }
            });
        }
    }

    fn messages(&self, partition: i32) -> Option<mpsc::Sender<Message<M>>> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running.get(&partition).map(|running| running.messages.clone())
    }

    fn all_messages(&self) -> Vec<mpsc::Sender<Message<M>>> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running.values().map(|running| running.messages.clone()).collect()
    }
}

/// The partition of an internal topic that keeps what a key names: by Java's hash of it, as every broker and tool of Kafka's
/// counts.
pub(crate) fn partition_of(key: &str, partitions: usize) -> i32 {
    let hash = key.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    // The hash that has no absolute value counts as zero.
    let positive = hash.checked_abs().unwrap_or(0);
    let partitions = i32::try_from(partitions).unwrap_or(i32::MAX).max(1);
    positive % partitions
}

/// An internal topic as it is to be made.
#[derive(Clone, Debug)]
pub(crate) struct InternalTopic {
    pub(crate) name: &'static str,
    pub(crate) partitions: i32,
    /// How many replicas each partition gets: all of them from the start, or it is not made. With fewer it would keep as few for
    /// ever, and be gone with one broker.
    pub(crate) replication_factor: i16,
    pub(crate) config: BTreeMap<String, String>,
}

impl InternalTopic {
    /// How many replicas it is to have: as the setting says. Without one as Kafka has it in a cluster, however few of its brokers
    /// have come up yet; where brokers share a store in one process, which knows them all, as many as there are, up to three.
    pub(crate) fn replicas(setting: Option<i16>, config: &BrokerConfig, image: &MetadataImage) -> i16 {
        let brokers = i16::try_from(image.brokers.len()).unwrap_or(i16::MAX);
        let of_itself = if config.zookeeper_connect.is_some() { REPLICAS } else { brokers.clamp(1, REPLICAS) };
        setting.unwrap_or(of_itself)
    }

    /// Makes the topic if it is not there, and waits a moment for its leaders. Whether it is led by then, the image tells.
    ///
    /// # Errors
    /// If it cannot be made: too few brokers are there, or the store is away.
    pub(crate) async fn make(self, broker: &BrokerShared) -> Result<(), AdminError> {
        let (name, partitions) = (self.name, self.partitions);
        if broker.cluster.image().topic(name).is_some() {
            return Ok(());
        }
        let topic = NewTopic {
            name: name.to_owned(),
            partitions: Some(partitions),
            replication_factor: Some(self.replication_factor),
            assignment: None,
            config: self.config,
        };
        match broker.cluster.create_topic(&topic, Intent::Apply).await {
            Ok(_) | Err(AdminError::Exists(_)) => {}
            Err(error) => {
                // Clients are told to try again, and do not say why.
                if let Some(held_back) = NOT_MADE.admits(std::time::Instant::now()) {
                    tracing::warn!(topic = name, %error, held_back, "an internal topic cannot be made yet");
                }
                return Err(error);
            }
        }
        let _ = broker.cluster.wait_for_leaders(name, partitions, LEADERS_WAIT_MS).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_does_not_take_the_brokers_that_came_first_for_all_there_are() {
        let image = crate::api::tests::image();
        let brokers = i16::try_from(image.brokers.len()).unwrap();
        let alone = BrokerConfig::default();
        let clustered = BrokerConfig { zookeeper_connect: Some("store:2181".to_owned()), ..BrokerConfig::default() };
        assert!((1..3).contains(&brokers), "{brokers}");
        assert_eq!(InternalTopic::replicas(None, &alone, &image), brokers);
        assert_eq!(InternalTopic::replicas(None, &clustered, &image), 3);
        for config in [&alone, &clustered] {
            assert_eq!(InternalTopic::replicas(Some(1), config, &image), 1);
            assert_eq!(InternalTopic::replicas(Some(5), config, &image), 5);
        }
    }

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
