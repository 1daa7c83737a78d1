//! What the rest of a broker sees of its cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, IsrDecision, PartitionState, PublishedEnd, Versioned};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::agent::{Agent, Command, IN_FLIGHT};
use super::producer_ids::ProducerIds;
use super::store::{read, read_topic, read_versioned_state};
use super::{
    CommitCause, Coordination, CoordinationError, FoundPartition, MetadataImage, Op, StoreFailure, controller,
    membership, znodes,
};
use crate::config::TopicConfig;

/// What a broker says of itself and expects when it joins.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// This broker's number.
    pub id: BrokerId,
    /// The cluster its data directory belongs to (`meta.properties`). A new store takes this id over; another id in
    /// the store is an error.
    pub cluster_id: Option<String>,
    /// Partitions in the data directory. If the store has no topics yet they are taken over into it; for a broker that
    /// has the store to itself. Leave empty otherwise.
    pub adopt: Vec<FoundPartition>,
    /// Partitions of a topic whose creator does not say (`num.partitions`).
    pub partitions_default: i32,
    /// Replicas of a topic whose creator does not say (`default.replication.factor`).
    pub replication_factor_default: i16,
    /// What holds for topics that do not say.
    pub topic: TopicConfig,
    /// Whether leaderships are given back to preferred replicas (`auto.leader.rebalance.enable`).
    pub leader_rebalance: bool,
    /// How often the controller looks whether that is due (`leader.imbalance.check.interval.seconds`).
    pub leader_imbalance_check_interval_seconds: u64,
    /// Of how many leaderships in a hundred a broker may lack before it is
    /// (`leader.imbalance.per.broker.percentage`).
    pub leader_imbalance_percentage_max: u32,
    /// How long registration waits for an earlier life of this broker to expire
    /// (`initial.broker.registration.timeout.ms`).
    pub registration_timeout_ms: u64,
}

impl ClusterConfig {
    /// Kafka's defaults.
    pub fn new(id: BrokerId) -> Self {
        Self {
            id,
            cluster_id: None,
            adopt: Vec::new(),
            partitions_default: 1,
            replication_factor_default: 1,
            topic: TopicConfig::default(),
            leader_rebalance: true,
            leader_imbalance_check_interval_seconds: 300,
            leader_imbalance_percentage_max: 10,
            registration_timeout_ms: 60_000,
        }
    }
}

/// Where clients and followers reach a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The host to tell them.
    pub host: String,
    /// The port to tell them.
    pub port: u16,
    /// The broker's rack, if it has one.
    pub rack: Option<String>,
}

/// How the broker's previous life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastStop {
    /// In order, or there was none: its logs hold what they held.
    Clean,
    /// Killed or cut off: its logs may lack what it acknowledged.
    Unclean,
}

/// Whether the cluster counts on this broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Not registered yet, or the session was reported expired: step down until registered again.
    Unregistered,
    /// Registered, and the image was read afresh after that: [`ClusterHandle::image`] is at least that new.
    Registered(BrokerEpoch),
}

/// Why a broker cannot join its cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The data directory belongs to another cluster.
    #[error(
        "the data directory belongs to cluster {ours}, the coordination store to cluster {stored}; \
             give the broker the directory or the store that belongs to the other"
    )]
    ClusterId {
        /// What `meta.properties` says.
        ours: String,
        /// What the store says.
        stored: String,
    },
    /// Another broker with this number is registered and stays so.
    #[error(
        "broker {id} is registered already and did not leave within {waited_ms} ms: another process uses this \
             broker id"
    )]
    DuplicateBroker {
        /// The number.
        id: BrokerId,
        /// How long was waited.
        waited_ms: u64,
    },
    /// Partitions in the data directory do not make topics.
    #[error("cannot take over topic {topic} from the data directory: {what}")]
    Adoption {
        /// The topic.
        topic: String,
        /// What is wrong with it.
        what: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreFailure),
    /// The broker has left the cluster.
    #[error("the broker has left its cluster")]
    Left,
}

impl JoinError {
    /// Whether another attempt may do better.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Store(StoreFailure::Unavailable | StoreFailure::SessionLost))
    }
}

/// A broker's membership of its cluster. Cheap to clone; all clones are the same membership.
#[derive(Clone)]
pub struct ClusterHandle {
    pub(super) shared: Arc<Shared>,
}

/// What the handle and the tasks behind it share.
pub(super) struct Shared {
    pub(super) config: ClusterConfig,
    pub(super) store: Arc<dyn Coordination>,
    pub(super) image: watch::Sender<Arc<MetadataImage>>,
    pub(super) registration: watch::Sender<Registration>,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) producer_ids: ProducerIds,
    /// Announcements of failed replicas, by path: made again in each new session. `None` is one that is to be withdrawn.
    offline: Mutex<BTreeMap<String, Option<Bytes>>>,
    announcing: tokio::sync::Mutex<()>,
    /// What is still to be told of the ends of this broker's logs, by path.
    ends: Mutex<BTreeMap<String, Bytes>>,
    publishing: tokio::sync::Mutex<()>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Shared {
    fn offline(&self) -> MutexGuard<'_, BTreeMap<String, Option<Bytes>>> {
        self.offline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the announcements that this session has not made yet, and withdraws those that do not hold any more.
    pub(super) async fn announce_offline(&self) -> Result<(), StoreFailure> {
        // One at a time, or an old announcement could replace a newer one.
        let _turn = self.announcing.lock().await;
        let announcements = self.offline().clone();
        for (path, data) in announcements {
            let Some(data) = data else {
                self.withdraw(&path).await?;
                continue;
            };
            let announce = Op::CreateEphemeral { path: path.clone(), data: data.clone() };
            match self.store.commit(vec![announce.clone()]).await {
                Ok(_) => {}
                // Made already, or it speaks of an earlier leadership or of a topic that had this name before.
                Err(error) if error.cause == CommitCause::Exists => {
                    let Some(stale) = read(&*self.store, &path).await?.filter(|stored| stored.data != data) else {
                        continue;
                    };
                    // Watched is the set of announcements, so a new one takes the old one's place.
                    let withdraw = Op::Delete { path, version: Some(stale.version) };
                    self.store.commit(vec![withdraw, announce]).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    async fn withdraw(&self, path: &str) -> Result<(), StoreFailure> {
        match self.store.commit(vec![Op::Delete { path: path.to_owned(), version: None }]).await {
            Ok(_) => {}
            // It went with the session that it was made in, or never came to be.
            Err(error) if error.cause == CommitCause::Missing => {}
            Err(error) => return Err(error.into()),
        }
        let mut announcements = self.offline();
        // Unless the replica has failed again meanwhile.
        if announcements.get(path) == Some(&None) {
            announcements.remove(path);
        }
        Ok(())
    }
}

impl Shared {
    fn ends(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the ends that are to be told, many in one commit. What was not written is to be told still.
    async fn publish_some_ends(&self) -> Result<(), StoreFailure> {
        let some: Vec<(String, Bytes)> = {
            let mut ends = self.ends();
            std::iter::from_fn(|| ends.pop_first()).take(IN_FLIGHT).collect()
        };
        let written = self.write_ends(&some).await;
        if written.is_err() {
            let mut ends = self.ends();
            for (path, data) in some {
                // Unless there is something newer to say.
                ends.entry(path).or_insert(data);
            }
        }
        written
    }

    async fn write_ends(&self, ends: &[(String, Bytes)]) -> Result<(), StoreFailure> {
        let readings: Vec<_> = ends.iter().map(|(path, _)| self.store.read(path)).collect();
        let mut ops = Vec::with_capacity(ends.len());
        for ((path, data), reading) in ends.iter().zip(readings) {
            // Watched is the set of nodes, so a new one takes the old one's place.
            let said = reading.await?.map(|node| Op::Delete { path: path.clone(), version: Some(node.version) });
            ops.extend(said);
            ops.push(Op::CreateEphemeral { path: path.clone(), data: data.clone() });
        }
        self.store.commit(ops).await?;
        Ok(())
    }
}

impl fmt::Debug for ClusterHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterHandle")
            .field("id", &self.shared.config.id)
            .field("registration", &*self.shared.registration.borrow())
            .finish_non_exhaustive()
    }
}

impl ClusterHandle {
    /// Prepares the store if it is new, reads the cluster's image and keeps it fresh from then on; takes part in controller
    /// elections once registered. The broker is not visible to others until [`Self::register`].
    pub async fn join(mut config: ClusterConfig, store: Arc<dyn Coordination>) -> Result<Self, JoinError> {
        let adopt = std::mem::take(&mut config.adopt);
        let deadline = Instant::now() + Duration::from_millis(config.registration_timeout_ms);
        let cluster_id = loop {
            match membership::prepare(&*store, &config, adopt.clone()).await {
                Err(error) if error.may_pass() && Instant::now() < deadline => {
                    tokio::time::sleep(membership::BACKOFF).await;
                }
                prepared => break prepared?,
            }
        };
        let (commands, inbox) = mpsc::channel(16);
        let first = MetadataImage { cluster_id, ..MetadataImage::default() };
        let shared = Arc::new(Shared {
            producer_ids: ProducerIds::new(config.id),
            config,
            store,
            image: watch::Sender::new(Arc::new(first)),
            registration: watch::Sender::new(Registration::Unregistered),
            commands,
            offline: Mutex::new(BTreeMap::new()),
            announcing: tokio::sync::Mutex::default(),
            ends: Mutex::new(BTreeMap::new()),
            publishing: tokio::sync::Mutex::default(),
            tasks: Mutex::new(Vec::new()),
        });
        let (loaded, is_loaded) = oneshot::channel();
        let agent = tokio::spawn(Agent::new(&shared, inbox).run(loaded)).abort_handle();
        let controller = tokio::spawn(controller::run(controller::Controlling::new(&shared))).abort_handle();
        *shared.tasks.lock().unwrap_or_else(PoisonError::into_inner) = vec![agent, controller];
        is_loaded.await.map_err(|_| JoinError::Left)?;
        Ok(Self { shared })
    }

    /// Announces this broker, and again by itself whenever its session expired. After an unclean stop it first marks itself
    /// doubtful in each partition whose in-sync replicas it belongs to. A store that does not answer is asked again for as long
    /// as an earlier life would be waited for.
    pub async fn register(&self, endpoint: Endpoint, last_stop: LastStop) -> Result<BrokerEpoch, JoinError> {
        let deadline = Instant::now() + Duration::from_millis(self.shared.config.registration_timeout_ms);
        loop {
            let (answer, answered) = oneshot::channel();
            let command = Command::Register { endpoint: endpoint.clone(), last_stop, answer };
            self.shared.commands.send(command).await.map_err(|_| JoinError::Left)?;
            match answered.await.unwrap_or(Err(JoinError::Left)) {
                // A connection that breaks for a moment is no reason not to start.
                Err(error) if error.may_pass() && Instant::now() < deadline => {
                    tokio::time::sleep(membership::BACKOFF).await;
                }
                registered => return registered,
            }
        }
    }

    /// This broker's number.
    pub fn id(&self) -> BrokerId {
        self.shared.config.id
    }

    /// The cluster as last seen.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.shared.image.borrow().clone()
    }

    /// Tells of each new image. A slow receiver sees only the latest.
    pub fn changes(&self) -> watch::Receiver<Arc<MetadataImage>> {
        self.shared.image.subscribe()
    }

    /// Tells whether the cluster counts on this broker. Losing touch with the store changes nothing; only a session that
    /// was reported expired does.
    pub fn registration(&self) -> watch::Receiver<Registration> {
        self.shared.registration.subscribe()
    }

    /// Commits a leader's change of its in-sync replicas, if the partition is still at `expected_version` and the member
    /// that comes in by it, if one does, is registered in the life it was seen in.
    pub async fn propose_state(
        &self,
        partition: &TopicPartition,
        topic_id: TopicId,
        expected_version: i64,
        state: &PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) -> IsrDecision {
        match self.try_propose(partition, topic_id, expected_version, state, joining).await {
            Ok(decision) => decision,
            Err(StoreFailure::SessionLost) => IsrDecision::Fenced,
            Err(_) => IsrDecision::Retry,
        }
    }

    async fn try_propose(
        &self,
        partition: &TopicPartition,
        topic_id: TopicId,
        expected_version: i64,
        state: &PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) -> Result<IsrDecision, StoreFailure> {
        if *self.shared.registration.borrow() == Registration::Unregistered {
            return Ok(IsrDecision::Fenced);
        }
        // What the image says is as good as a read, which costs the time of two: the commit bears it out, or nothing happens.
        if let Some((topic_version, stored)) = self.seen(partition, topic_id, expected_version) {
            let decision = self.commit_state(partition, topic_id, topic_version, &stored, state, joining).await?;
            if !matches!(decision, IsrDecision::Fenced | IsrDecision::Conflict(_)) {
                return Ok(decision);
            }
        }
        let store = &*self.shared.store;
        // A topic that was deleted and made again has another id, which is checked within the commit as well.
        let Some((topic, topic_version)) = read_topic(store, &partition.topic).await? else {
            return Ok(IsrDecision::Fenced);
        };
        if topic.id != topic_id {
            return Ok(IsrDecision::Fenced);
        }
        let Some(stored) = read_versioned_state(store, partition).await? else { return Ok(IsrDecision::Fenced) };
        if stored.version != expected_version {
            return Ok(IsrDecision::Conflict(stored));
        }
        self.commit_state(partition, topic_id, topic_version, &stored, state, joining).await
    }

    /// The version of a topic and a state of this version, if the image has them. Of a topic without an id it cannot be told
    /// within a commit whether it is the same.
    fn seen(
        &self,
        partition: &TopicPartition,
        topic_id: TopicId,
        version: i64,
    ) -> Option<(i64, Versioned<PartitionState>)> {
        let image = self.image();
        let topic = image.topic(&partition.topic).filter(|topic| topic.id == topic_id && topic_id != TopicId::ZERO)?;
        let stored = topic.partition(partition.partition)?.state.clone();
        (stored.version == version).then_some((topic.version, stored))
    }

    /// Writes a state in the place of the one that is stored, if the topic and that state are still of these versions.
    async fn commit_state(
        &self,
        partition: &TopicPartition,
        topic_id: TopicId,
        topic_version: i64,
        stored: &Versioned<PartitionState>,
        state: &PartitionState,
        joining: Option<(BrokerId, BrokerEpoch)>,
    ) -> Result<IsrDecision, StoreFailure> {
        let (store, expected_version) = (&*self.shared.store, stored.version);
        let mut ops = vec![Op::Check { path: znodes::topic_path(&partition.topic), version: topic_version }];
        ops.extend(znodes::topic_id_path(topic_id).map(|path| Op::Exists { path }));
        let of_topic = ops.len();
        let offline = &self.image().offline;
        for &member in state.isr.iter().filter(|member| !stored.value.isr.contains(member)) {
            // A new member must be there when the change is committed, and in the life it was seen in: its registration
            // stands, and none was made since. The second is read first, or a life that begins in between would pass.
            let life = znodes::life_path(member);
            let Some(lives) = read(store, &life).await? else { return Ok(IsrDecision::Refused) };
            ops.push(Op::Check { path: life, version: lives.version });
            let path = znodes::broker_path(member);
            let Some(registered) = read(store, &path).await? else { return Ok(IsrDecision::Refused) };
            let in_another_life = joining.is_some_and(|(id, life)| id == member && life.0 != registered.created);
            if in_another_life || offline.contains(&(topic_id, partition.partition, member)) {
                return Ok(IsrDecision::Refused);
            }
            ops.push(Op::Check { path, version: registered.version });
        }
        let path = znodes::state_path(&partition.topic, partition.partition);
        ops.push(Op::Set { path, data: znodes::encode_state(state), version: Some(expected_version) });
        let last = ops.len() - 1;
        match store.commit(ops).await {
            Ok(done) => {
                let version = done.last().map_or(expected_version, |done| done.version);
                Ok(IsrDecision::Committed(Versioned { value: state.clone(), version }))
            }
            Err(error) => match error.cause {
                CommitCause::Version if error.at == last => Ok(match read_versioned_state(store, partition).await? {
                    Some(stored) => IsrDecision::Conflict(stored),
                    None => IsrDecision::Fenced,
                }),
                CommitCause::Version | CommitCause::Missing if error.at < of_topic || error.at == last => {
                    Ok(IsrDecision::Fenced)
                }
                CommitCause::Version | CommitCause::Missing => Ok(IsrDecision::Refused),
                CommitCause::SessionLost => Ok(IsrDecision::Fenced),
                _ => Ok(IsrDecision::Retry),
            },
        }
    }

    /// Notes that this broker's replica of a partition has failed (its log is closed), for [`Self::announce_replicas`] to tell:
    /// another one is elected if it led, and it stays out of elections and of the in-sync set until [`Self::note_online`], or for
    /// as long as this process lives. A later note about a topic of the same name takes the place of an earlier one. False if
    /// that was noted before.
    pub fn note_offline(&self, partition: &TopicPartition, topic_id: TopicId, leader_epoch: LeaderEpoch) -> bool {
        let path = znodes::offline_path(self.id(), &partition.topic, partition.partition);
        let data = Some(znodes::encode_offline(topic_id, leader_epoch));
        self.shared.offline().insert(path, data.clone()) != Some(data)
    }

    /// Notes that this broker has opened a log for its replica of a partition: what was said of a former one there, which has
    /// failed, does not hold any more. False if nothing was said.
    pub fn note_online(&self, partition: &TopicPartition) -> bool {
        let mut offline = self.shared.offline();
        // Most have not failed; a thousand logs are opened at a time.
        if offline.is_empty() {
            return false;
        }
        let path = znodes::offline_path(self.id(), &partition.topic, partition.partition);
        offline.get_mut(&path).is_some_and(|said| said.take().is_some())
    }

    /// Tells the controller what was noted of failed replicas.
    pub async fn announce_replicas(&self) {
        while let Err(StoreFailure::Unavailable) = self.shared.announce_offline().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // A lost session: whoever registers again announces them.
    }

    /// Notes how far the log of this broker's replica goes, for [`Self::publish_ends`] to tell the controller.
    pub fn note_end(&self, partition: &TopicPartition, topic_id: TopicId, end: PublishedEnd) {
        let path = znodes::end_path(self.id(), &partition.topic, partition.partition);
        self.shared.ends().insert(path, znodes::encode_end(topic_id, &end));
    }

    /// Tells the controller what was noted, as long as this session lives: the replicas say it again in the next.
    pub async fn publish_ends(&self) {
        let _turn = self.shared.publishing.lock().await;
        while !self.shared.ends().is_empty() {
            match self.shared.publish_some_ends().await {
                Ok(()) => {}
                Err(StoreFailure::SessionLost) => return,
                Err(error) => {
                    tracing::debug!(%error, "cannot tell how far the logs go, trying again");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }

    /// How many controllers there have been.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn controller_epoch(&self) -> Result<i32, StoreFailure> {
        match read(&*self.shared.store, znodes::CONTROLLER_EPOCH).await? {
            Some(node) => Ok(znodes::parse_controller_epoch(&node.data)?),
            None => Ok(0),
        }
    }

    /// A producer id that was never given out before, by any broker of this cluster.
    pub async fn producer_id(&self) -> Result<i64, StoreFailure> {
        self.shared.producer_ids.next(&*self.shared.store).await
    }

    /// Leaves in order: the session ends at once, so that others take over without waiting for its timeout.
    pub async fn leave(&self) {
        self.stop_tasks();
        self.shared.store.close().await;
        self.shared.registration.send_replace(Registration::Unregistered);
    }

    /// Falls silent, as a killed process does: the session expires after its timeout.
    pub fn abandon(&self) {
        self.stop_tasks();
        self.shared.store.abandon();
    }

    fn stop_tasks(&self) {
        for task in self.shared.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner) {
            task.abort();
        }
    }
}

impl From<CoordinationError> for StoreFailure {
    fn from(error: CoordinationError) -> Self {
        match error {
            CoordinationError::SessionLost => Self::SessionLost,
            CoordinationError::Unavailable => Self::Unavailable,
        }
    }
}
