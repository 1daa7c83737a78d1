//! Each broker's agent: watches the store, keeps the image fresh, keeps the broker registered.
//!
//! Watches are one-shot: for each node the agent cares about it first watches, then reads, and a small task hands the
//! name of what changed back to the agent's queue, which holds at most one entry for each watch. A burst of changes is
//! read in one go and published as one image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, Versioned};
use highwater_storage::TopicId;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use super::handle::Shared;
use super::{
    ClusterConfig, ConfigKind, Coordination, CoordinationError, Endpoint, JoinError, LastStop, MetadataImage, Node,
    PartitionImage, Registration, SessionState, StoreFailure, TopicImage, Watch, membership, unix_ms, znodes,
};

/// How long the agent waits after the store did not answer before it asks again: at first, and at most.
const BACKOFF: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Reads that are on their way to the store at a time: enough to be quick, too few to fill its queue.
pub(super) const IN_FLIGHT: usize = 256;

/// Changes read before an image is published: readers are not kept waiting for the end of a long burst.
const BURST: usize = 4096;

/// What the handle asks of the agent.
pub(super) enum Command {
    /// Register now, and again after each expiry.
    Register { endpoint: Endpoint, last_stop: LastStop, answer: oneshot::Sender<Result<BrokerEpoch, JoinError>> },
}

/// What can change in the store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Controller,
    Brokers,
    Broker(BrokerId),
    Topics,
    Topic(Arc<str>),
    Config(Arc<str>),
    State(Arc<str>, i32),
    Offline,
    Ends,
    Leaving,
    BrokerDefaults,
    BrokerConfig(BrokerId),
}

impl Key {
    fn path(&self) -> String {
        match self {
            Self::Controller => znodes::CONTROLLER.to_owned(),
            Self::Brokers => znodes::BROKER_IDS.to_owned(),
            Self::Broker(id) => znodes::broker_path(*id),
            Self::Topics => znodes::TOPICS.to_owned(),
            Self::Topic(name) => znodes::topic_path(name),
            Self::Config(name) => znodes::topic_config_path(name),
            Self::State(name, partition) => znodes::state_path(name, *partition),
            Self::Offline => znodes::OFFLINE_REPLICAS.to_owned(),
            Self::Ends => znodes::PUBLISHED_ENDS.to_owned(),
            Self::Leaving => znodes::LEAVING_BROKERS.to_owned(),
            Self::BrokerDefaults => znodes::config_path(ConfigKind::Broker, None),
            Self::BrokerConfig(id) => znodes::config_path(ConfigKind::Broker, Some(&id.to_string())),
        }
    }

    fn kind(&self) -> Watch {
        match self {
            Self::Brokers | Self::Topics | Self::Offline | Self::Ends | Self::Leaving => Watch::Children,
            _ => Watch::Data,
        }
    }
}

/// The agent of one broker.
pub(super) struct Agent {
    config: ClusterConfig,
    store: Arc<dyn Coordination>,
    /// Weak: the agent ends with the last handle.
    shared: Weak<Shared>,
    commands: mpsc::Receiver<Command>,
    session: watch::Receiver<SessionState>,
    endpoint: Option<Endpoint>,
    /// The session that holds the registration.
    registered_in: Option<i64>,
    /// What the node of a registration holds, by session: it is known again by that after an attempt of which no answer came.
    registration: Option<(i64, Bytes)>,
    view: View,
}

/// Why the agent stopped following one session.
enum Ended {
    /// The session is over; there will be another.
    Session,
    /// The membership is.
    Membership,
}

impl Agent {
    pub(super) fn new(shared: &Arc<Shared>, commands: mpsc::Receiver<Command>) -> Self {
        Self {
            config: shared.config.clone(),
            store: shared.store.clone(),
            shared: Arc::downgrade(shared),
            commands,
            session: shared.store.session(),
            endpoint: None,
            registered_in: None,
            registration: None,
            view: View::new(shared.config.id, shared.store.clone(), MetadataImage::clone(&shared.image.borrow())),
        }
    }

    /// Follows the store from session to session. `loaded` is told once, when the first image is complete.
    pub(super) async fn run(mut self, loaded: oneshot::Sender<()>) {
        let mut loaded = Some(loaded);
        let mut backoff = BACKOFF;
        loop {
            let id = loop {
                match *self.session.borrow_and_update() {
                    SessionState::Live(id) => break id,
                    SessionState::Closed => return,
                    SessionState::Disconnected | SessionState::Expired => {}
                }
                if self.session.changed().await.is_err() {
                    return;
                }
            };
            if self.registered_in != Some(id) {
                self.publish_registration(None);
            }
            let ended = self.follow(id, &mut loaded, &mut backoff).await;
            self.view.forget_watches();
            match ended {
                Ok(Ended::Membership) => return,
                Ok(Ended::Session) | Err(StoreFailure::SessionLost) => {
                    self.registered_in = None;
                    self.publish_registration(None);
                }
                Err(error) => {
                    // The session may live on: whoever leads goes on leading, only the image is not fresh.
                    tracing::warn!(%error, "cannot read the coordination store, trying again");
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(BACKOFF_MAX);
                }
            }
        }
    }

    async fn follow(
        &mut self,
        session: i64,
        loaded: &mut Option<oneshot::Sender<()>>,
        backoff: &mut Duration,
    ) -> Result<Ended, StoreFailure> {
        let (events, mut changed) = mpsc::unbounded_channel();
        self.view.load(events).await?;
        if let Some(endpoint) = self.endpoint.clone()
            && self.registered_in != Some(session)
        {
            // After an expiry the logs are whole, so there is nothing to doubt.
            self.register(session, &endpoint, LastStop::Clean).await.map_err(|error| match error {
                JoinError::Store(failure) => failure,
                error => {
                    tracing::error!(%error, "cannot register again");
                    StoreFailure::Unavailable
                }
            })?;
        }
        self.publish();
        *backoff = BACKOFF;
        if let Some(loaded) = loaded.take() {
            // Whoever joins may have given up.
            _ = loaded.send(());
        }
        loop {
            tokio::select! {
                change = self.session.changed() => {
                    let state = *self.session.borrow_and_update();
                    match state {
                        _ if change.is_err() => return Ok(Ended::Membership),
                        SessionState::Live(id) if id == session => {}
                        SessionState::Disconnected => {}
                        SessionState::Closed => return Ok(Ended::Membership),
                        SessionState::Live(_) | SessionState::Expired => return Ok(Ended::Session),
                    }
                }
                key = changed.recv() => {
                    // The view keeps a sender, so there is always another.
                    let Some(key) = key else { return Ok(Ended::Session) };
                    let more = std::iter::from_fn(|| changed.try_recv().ok()).take(BURST);
                    self.view.refresh_all(std::iter::once(key).chain(more).collect()).await?;
                    self.publish();
                }
                command = self.commands.recv() => {
                    let Some(Command::Register { endpoint, last_stop, answer }) = command else {
                        return Ok(Ended::Membership);
                    };
                    self.endpoint = Some(endpoint.clone());
                    let result = self.register(session, &endpoint, last_stop).await;
                    let lost = matches!(&result, Err(JoinError::Store(_)));
                    if result.is_err() {
                        self.endpoint = None;
                    }
                    _ = answer.send(result);
                    if lost {
                        return Err(StoreFailure::Unavailable);
                    }
                }
            }
        }
    }

    /// Registers, reads everything afresh that registering may have changed, and only then says so.
    async fn register(
        &mut self,
        session: i64,
        endpoint: &Endpoint,
        last_stop: LastStop,
    ) -> Result<BrokerEpoch, JoinError> {
        let (id, store) = (self.config.id, self.store.clone());
        let data = match &self.registration {
            Some((of, data)) if *of == session => data.clone(),
            _ => {
                let data = znodes::encode_broker(&endpoint.host, endpoint.port, endpoint.rack.as_deref(), unix_ms());
                self.registration.insert((session, data)).1.clone()
            }
        };
        membership::name_topics(&*store, &self.view.image).await?;
        // An earlier attempt in this session may have come as far, and lost the connection only then.
        let there = store.read(&znodes::broker_path(id)).await.map_err(StoreFailure::from)?;
        let is_new = there.is_none_or(|node| node.data != data);
        if last_stop == LastStop::Unclean && is_new {
            // At once, so that it leads no more; and again when no leader can take it in any more for what it fetched in
            // its former life.
            membership::mark_doubtful(&*store, id, &self.view.image).await?;
            membership::wait_for_former_life(&*store, id, self.config.registration_timeout_ms).await?;
            membership::mark_doubtful(&*store, id, &self.view.image).await?;
        }
        let epoch = membership::register(&*store, id, &data, self.config.registration_timeout_ms).await?;
        if let Some(shared) = self.shared.upgrade() {
            shared.announce_offline().await?;
        }
        self.view.reload().await?;
        self.publish();
        self.registered_in = Some(session);
        self.publish_registration(Some(epoch));
        tracing::info!(broker = %id, %epoch, "registered");
        Ok(epoch)
    }

    fn publish(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.image.send_if_modified(|published| {
                let differs = **published != self.view.image;
                if differs {
                    *published = Arc::new(self.view.image.clone());
                }
                differs
            });
        }
    }

    fn publish_registration(&self, epoch: Option<BrokerEpoch>) {
        if let Some(shared) = self.shared.upgrade() {
            let registration = epoch.map_or(Registration::Unregistered, Registration::Registered);
            shared.registration.send_if_modified(|known| std::mem::replace(known, registration) != registration);
        }
    }
}

/// The image under construction, with the watches that keep it fresh.
struct View {
    /// Whose view it is.
    me: BrokerId,
    store: Arc<dyn Coordination>,
    image: MetadataImage,
    /// Creation numbers of topics' nodes and of their partitions' state nodes: a topic that was deleted and made again
    /// between two reads shows by them.
    created: BTreeMap<Arc<str>, (i64, Vec<i64>)>,
    events: Option<mpsc::UnboundedSender<Key>>,
    watches: BTreeMap<Key, AbortHandle>,
}

impl Drop for View {
    fn drop(&mut self) {
        self.forget_watches();
    }
}

impl View {
    fn new(me: BrokerId, store: Arc<dyn Coordination>, image: MetadataImage) -> Self {
        Self { me, store, image, created: BTreeMap::new(), events: None, watches: BTreeMap::new() }
    }

    fn forget_watches(&mut self) {
        self.events = None;
        for (_, watch) in std::mem::take(&mut self.watches) {
            watch.abort();
        }
    }

    /// Begins anew in a new session.
    async fn load(&mut self, events: mpsc::UnboundedSender<Key>) -> Result<(), StoreFailure> {
        self.forget_watches();
        self.events = Some(events);
        self.reload().await
    }

    async fn reload(&mut self) -> Result<(), StoreFailure> {
        self.created.clear();
        self.image = MetadataImage { cluster_id: self.image.cluster_id.clone(), ..MetadataImage::default() };
        let of_brokers = [Key::BrokerDefaults, Key::BrokerConfig(self.me)];
        let others = [Key::Controller, Key::Brokers, Key::Leaving, Key::Topics, Key::Offline, Key::Ends];
        for key in of_brokers.into_iter().chain(others) {
            self.refresh(key).await?;
        }
        Ok(())
    }

    /// Watches a node unless it is watched already. Comes before each read.
    fn arm(&mut self, key: &Key) {
        let Some(events) = self.events.clone() else { return };
        if self.watches.get(key).is_some_and(|watch| !watch.is_finished()) {
            return;
        }
        let (changed, told) = (self.store.watch(&key.path(), key.kind()), key.clone());
        let watch = tokio::spawn(async move {
            // A watch that could not be put in place may have missed something. Without a store the look that this leads
            // to fails, and then all is read afresh.
            if changed.await != Err(CoordinationError::SessionLost) {
                // The agent may have moved on to another session.
                _ = events.send(told);
            }
        });
        self.watches.insert(key.clone(), watch.abort_handle());
    }

    fn disarm(&mut self, key: &Key) {
        if let Some(watch) = self.watches.remove(key) {
            watch.abort();
        }
    }

    async fn fetch(&mut self, key: &Key) -> Result<Option<Node>, StoreFailure> {
        self.arm(key);
        Ok(self.store.read(&key.path()).await?)
    }

    async fn children(&mut self, key: &Key) -> Result<Vec<String>, StoreFailure> {
        self.arm(key);
        Ok(self.store.children(&key.path()).await?)
    }

    /// Reads again all that changed; the partitions of one topic together.
    async fn refresh_all(&mut self, keys: BTreeSet<Key>) -> Result<(), StoreFailure> {
        let mut states: BTreeMap<Arc<str>, Vec<i32>> = BTreeMap::new();
        for key in keys {
            match key {
                Key::State(name, number) => states.entry(name).or_default().push(number),
                key => self.refresh(key).await?,
            }
        }
        for (name, numbers) in states {
            self.refresh_states(&name, &numbers).await?;
        }
        Ok(())
    }

    /// Reads again what changed.
    async fn refresh(&mut self, key: Key) -> Result<(), StoreFailure> {
        // A watch that told is used up, even if its task has not quite ended.
        self.disarm(&key);
        match &key {
            Key::Controller => {
                let node = self.fetch(&key).await?;
                self.image.controller = node.and_then(|node| understood(znodes::parse_controller(&node.data)));
            }
            Key::Brokers => {
                let ids = self.children(&key).await?;
                let ids: Vec<BrokerId> = ids.iter().filter_map(|id| id.parse().ok().map(BrokerId)).collect();
                for gone in self.image.brokers.keys().filter(|id| !ids.contains(id)).copied().collect::<Vec<_>>() {
                    self.image.brokers.remove(&gone);
                    self.disarm(&Key::Broker(gone));
                }
                for new in ids.into_iter().filter(|id| !self.image.brokers.contains_key(id)).collect::<Vec<_>>() {
                    self.refresh_broker(new).await?;
                }
            }
            Key::Broker(id) => self.refresh_broker(*id).await?,
            Key::Topics => {
                let names = self.children(&key).await?;
                for gone in self.image.topics.keys().filter(|name| !has(&names, name)).cloned().collect::<Vec<_>>() {
                    self.remove_topic(&gone);
                }
                for name in names {
                    if !self.image.topics.contains_key(name.as_str()) {
                        self.refresh_topic(Arc::from(name)).await?;
                    }
                }
            }
            Key::Topic(name) => self.refresh_topic(name.clone()).await?,
            Key::Config(name) => {
                let node = self.fetch(&key).await?;
                let config = node.and_then(|node| understood(znodes::parse_config(name, &node.data)));
                self.change_topic(name, |topic| topic.config = config.unwrap_or_default());
            }
            Key::State(name, number) => self.refresh_states(name, &[*number]).await?,
            Key::Offline => {
                let said = self.said_of_replicas(&key, znodes::parse_offline).await?;
                self.image.offline = said.into_keys().collect();
            }
            Key::Leaving => {
                let ids = self.children(&key).await?;
                self.image.leaving = ids.iter().filter_map(|id| id.parse().ok().map(BrokerId)).collect();
            }
            Key::BrokerDefaults => self.image.broker_defaults = self.config_of_brokers(&key).await?,
            Key::BrokerConfig(_) => self.image.broker_config = self.config_of_brokers(&key).await?,
            Key::Ends => self.image.ends = self.said_of_replicas(&key, znodes::parse_end).await?,
        }
        Ok(())
    }

    /// What brokers say of their replicas, a node each below this key, by topic, partition and broker.
    async fn said_of_replicas<T>(
        &mut self,
        key: &Key,
        parse: impl Fn(&str, &[u8]) -> Result<(TopicId, T), znodes::BadNode>,
    ) -> Result<BTreeMap<(TopicId, i32, BrokerId), T>, StoreFailure> {
        let names = self.children(key).await?;
        let mut said = BTreeMap::new();
        for some in names.chunks(IN_FLIGHT) {
            let readings: Vec<_> = some.iter().map(|name| self.store.read(&format!("{}/{name}", key.path()))).collect();
            for (name, reading) in some.iter().zip(readings) {
                let node = reading.await?;
                let Some((id, _, partition)) = znodes::parse_replica_name(name) else { continue };
                let parsed = node.and_then(|node| understood(parse(name, &node.data)));
                said.extend(parsed.map(|(topic, what)| ((topic, partition, id), what)));
            }
        }
        Ok(said)
    }

    async fn config_of_brokers(&mut self, key: &Key) -> Result<BTreeMap<String, String>, StoreFailure> {
        let node = self.fetch(key).await?;
        let config = node.and_then(|node| understood(znodes::parse_config_at(&key.path(), &node.data)));
        Ok(config.unwrap_or_default())
    }

    async fn refresh_broker(&mut self, id: BrokerId) -> Result<(), StoreFailure> {
        let key = Key::Broker(id);
        self.disarm(&key);
        let node = self.fetch(&key).await?;
        match node.and_then(|node| understood(znodes::parse_broker(id, &node.data, node.created))) {
            Some(broker) => _ = self.image.brokers.insert(id, broker),
            None => _ = self.image.brokers.remove(&id),
        }
        Ok(())
    }

    async fn refresh_topic(&mut self, name: Arc<str>) -> Result<(), StoreFailure> {
        let key = Key::Topic(name.clone());
        self.disarm(&key);
        let node = self.fetch(&key).await?;
        let Some(node) = node else {
            self.remove_topic(&name);
            return Ok(());
        };
        // A node that cannot be understood keeps its last meaning: a topic does not vanish by a slip of some tool.
        let Some(topic) = understood(znodes::parse_topic(&name, &node.data)) else { return Ok(()) };
        let same = self.created.get(&name).is_some_and(|(created, _)| *created == node.created);
        let kept = if same { self.image.topics.get(&name).cloned() } else { None };
        if !same {
            self.drop_topic(&name);
            self.created.insert(name.clone(), (node.created, Vec::new()));
        }

        let config_key = Key::Config(name.clone());
        let config = match &kept {
            Some(kept) => kept.config.clone(),
            None => {
                let node = self.fetch(&config_key).await?;
                node.and_then(|node| understood(znodes::parse_config(&name, &node.data))).unwrap_or_default()
            }
        };
        let mut partitions: Vec<PartitionImage> = topic.assignment.into_iter().map(PartitionImage::new).collect();
        for (number, change) in topic.reassignments {
            if let Some(partition) = usize::try_from(number).ok().and_then(|at| partitions.get_mut(at)) {
                partition.reassignment = change;
            }
        }
        let mut created = self.created.get(&name).map(|(_, states)| states.clone()).unwrap_or_default();
        created.resize(partitions.len(), -1);
        let mut missing = Vec::new();
        for (number, partition) in (0..).zip(&mut partitions) {
            match kept.as_ref().and_then(|kept| kept.partition(number)) {
                Some(kept) => partition.state = kept.state.clone(),
                None => missing.push(number),
            }
        }
        for (&number, state) in missing.iter().zip(self.read_states(&name, &missing).await?) {
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            if let (Some(state), Some(partition), Some(created)) = (state, partitions.get_mut(at), created.get_mut(at))
                && let Some(value) = understood(znodes::parse_state(&name, number, &state.data))
            {
                partition.state = Versioned { value, version: state.version };
                *created = state.created;
            }
        }
        self.created.insert(name.clone(), (node.created, created));
        let version = node.version;
        self.image.insert(Arc::new(TopicImage { name, id: topic.id, version, config, partitions }));
        Ok(())
    }

    async fn refresh_states(&mut self, name: &Arc<str>, numbers: &[i32]) -> Result<(), StoreFailure> {
        let Some(partitions) = self.image.topics.get(name).map(|topic| topic.partitions.len()) else { return Ok(()) };
        let numbers = numbers.iter().filter(|number| usize::try_from(**number).is_ok_and(|at| at < partitions));
        let numbers: Vec<i32> = numbers.copied().collect();
        let mut read = Vec::with_capacity(numbers.len());
        for (number, node) in numbers.iter().zip(self.read_states(name, &numbers).await?) {
            read.extend(node.map(|node| (usize::try_from(*number).unwrap_or(usize::MAX), *number, node)));
        }
        let (of_topic, known) = self.created.get(name).cloned().unwrap_or((-1, Vec::new()));
        if read.iter().any(|(at, _, node)| known.get(*at) != Some(&node.created)) {
            // States that were just set up, or those of another topic of this name. Only the topic's node, read after
            // them, can tell; if it is the same topic, the states are its own.
            let topic = self.store.read(&znodes::topic_path(name)).await?;
            if topic.is_none_or(|topic| topic.created != of_topic) {
                return self.refresh_topic(name.clone()).await;
            }
        }
        if let Some((_, known)) = self.created.get_mut(name) {
            for (at, _, node) in &read {
                if let Some(known) = known.get_mut(*at) {
                    *known = node.created;
                }
            }
        }
        self.change_topic(name, |topic| {
            for (at, number, node) in read {
                if let Some(partition) = topic.partitions.get_mut(at)
                    && let Some(value) = understood(znodes::parse_state(name, number, &node.data))
                {
                    partition.state = Versioned { value, version: node.version };
                }
            }
        });
        Ok(())
    }

    /// Watches and reads the states of some partitions, [`IN_FLIGHT`] at a time.
    async fn read_states(&mut self, name: &Arc<str>, numbers: &[i32]) -> Result<Vec<Option<Node>>, StoreFailure> {
        let mut nodes = Vec::with_capacity(numbers.len());
        for some in numbers.chunks(IN_FLIGHT) {
            for &number in some {
                let key = Key::State(name.clone(), number);
                self.disarm(&key);
                self.arm(&key);
            }
            let readings: Vec<_> =
                some.iter().map(|&number| self.store.read(&znodes::state_path(name, number))).collect();
            for reading in readings {
                nodes.push(reading.await?);
            }
        }
        Ok(nodes)
    }

    /// Changes a topic in the image, copying it only if somebody else holds it or it differs.
    fn change_topic(&mut self, name: &Arc<str>, change: impl FnOnce(&mut TopicImage)) {
        let Some(topic) = self.image.topics.get(name) else { return };
        let mut changed = TopicImage::clone(topic);
        change(&mut changed);
        if changed != **topic {
            self.image.insert(Arc::new(changed));
        }
    }

    fn remove_topic(&mut self, name: &Arc<str>) {
        self.disarm(&Key::Topic(name.clone()));
        self.drop_topic(name);
    }

    /// Takes a topic out of the image but goes on watching its node.
    fn drop_topic(&mut self, name: &Arc<str>) {
        self.created.remove(name);
        let Some(topic) = self.image.remove(name) else { return };
        self.disarm(&Key::Config(name.clone()));
        for number in (0..).take(topic.partitions.len()) {
            self.disarm(&Key::State(name.clone(), number));
        }
        debug_assert!(topic.id == TopicId::ZERO || self.image.topic_by_id(topic.id).is_none());
    }
}

fn has(names: &[String], name: &str) -> bool {
    names.binary_search_by(|other| other.as_str().cmp(name)).is_ok()
}

/// Takes a value that can be understood and says so about one that cannot.
fn understood<T>(parsed: Result<T, znodes::BadNode>) -> Option<T> {
    parsed.inspect_err(|error| tracing::error!(%error, "ignoring a node of the coordination store")).ok()
}

#[cfg(test)]
mod tests;
