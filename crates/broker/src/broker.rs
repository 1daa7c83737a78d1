//! One running broker: how its parts are started, joined and stopped.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::{Api, ErrorCode};
use crate::cluster::{
    ClusterConfig, ClusterHandle, ConnectError, Coordination, EmbeddedStore, Endpoint, FoundPartition, JOURNAL_FILE,
    JoinError, LastStop, MetadataImage, Registration, StoreError, ZooKeeperStore,
};
use crate::config::BrokerConfig;
use crate::groups::{self, Groups};
use crate::healer;
use crate::history::HistoryCounts;
use crate::hosted::Hosted;
use crate::net::server::{Listener, Server, ServerLimits, serve_alone};
use crate::partitions::{Checkpoint, Opened, Partitions, ShutdownError, TopicName};
use crate::peers::Peers;
use crate::services::Services;
use crate::transactions::{self, Transactions, Verifications};
use highwater_replication::{BrokerId, Cut, Status};
use highwater_storage::TopicPartition;
use highwater_storage::data_dir::{DataDir, DataDirError, DataDirOptions, DataDirWarning};
use highwater_storage::fs::{Fs, Gate, OsFs};
use tokio::io::{AsyncRead, AsyncWrite};

/// How long a failed attempt to create or open a partition is left alone.
const RETRY: Duration = Duration::from_secs(5);

/// Segments are rolled by time and their files removed at least so often, however rarely retention is looked at.
const HOUSEKEEPING_MAX: Duration = Duration::from_secs(30);

/// Partitions are asked for what to compact no oftener: each of them is asked.
const CLEANER_MIN: Duration = Duration::from_secs(1);

/// How long requests in flight may take when the broker stops in order.
const GRACE: Duration = Duration::from_millis(1000);

/// The broker's parts, shared by its connections.
#[derive(Debug)]
pub(crate) struct BrokerShared {
    /// How it was told to run.
    pub(crate) config: Arc<BrokerConfig>,
    /// Its membership of the cluster.
    pub(crate) cluster: ClusterHandle,
    /// The partitions it holds.
    pub(crate) partitions: Arc<Partitions>,
    /// Threads and timers.
    pub(crate) services: Arc<Services>,
    /// The coordinators of consumer groups.
    pub(crate) groups: Groups,
    /// The coordinators of transactions.
    pub(crate) transactions: Transactions,
    /// Batches of transactions that their coordinators are asked about.
    pub(crate) verifications: Verifications,
    /// The other brokers.
    pub(crate) peers: Peers,
}

impl BrokerShared {
    /// The partition a request means, or the code that tells why it cannot be had here.
    pub(crate) fn find(&self, topic: TopicName<'_>, partition: i32) -> Result<Arc<Hosted>, ErrorCode> {
        self.partitions.find(&self.cluster.image(), topic, partition)
    }
}

/// A running broker. Dropping it is [`Broker::kill`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use highwater_broker::Broker;
/// use highwater_broker::config::BrokerConfig;
///
/// let mut config = BrokerConfig::default();
/// config.listen.port = 0;
/// config.data_dir = "/tmp/example".into();
/// let broker = Broker::start_embedded(config).await?;
/// println!("listening on {}", broker.local_addr());
/// broker.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Broker {
    shared: Arc<BrokerShared>,
    local_addr: SocketAddr,
    /// `None` once it has stopped.
    server: Option<Server>,
    gate: Gate,
    ready: Ready,
    /// The store that lives in this broker's data directory, if it has one of its own. Stops with it.
    store: Option<EmbeddedStore>,
}

/// What a broker found when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// Partitions it holds.
    pub partitions: usize,
    /// Records in them that were scanned because the last stop was not clean.
    pub records: u64,
    /// Milliseconds from the call to the first connection that could be accepted.
    pub elapsed_ms: u64,
}

/// Why a broker did not start. The text is a sentence for the person who started it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The listener's address cannot be had.
    #[error(
        "cannot listen on {address}: {source}; is another broker running there? set another listeners port, or 0 \
             for a free one"
    )]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A directory cannot be made.
    #[error("cannot create {}: {source}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The coordination store in the data directory cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ensemble that coordinates the cluster cannot be reached.
    #[error(transparent)]
    ZooKeeper(#[from] ConnectError),
    /// The directory belongs to a broker that is a cluster of its own.
    #[error(
        "{} has a coordination store of its own, whose topics ZooKeeper does not know: start this broker without \
             zookeeper.connect, or give it another directory", path.display()
    )]
    OwnStore {
        /// The directory.
        path: PathBuf,
    },
    /// The cluster cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The system did not start a thread.
    #[error("cannot start a thread: the system's limit is reached")]
    Threads,
}

/// Where the store comes from.
enum Store {
    Given(Arc<dyn Coordination>),
    /// In the data directory, which must be locked first.
    Embedded,
    /// An ensemble, by its `zookeeper.connect`.
    ZooKeeper(String),
}

impl Broker {
    /// Starts a broker that coordinates through a store shared with others. On a tokio runtime, which has to outlive
    /// it.
    pub async fn start(config: BrokerConfig, coordination: Arc<dyn Coordination>) -> Result<Self, StartError> {
        Self::start_with(config, Store::Given(coordination)).await
    }

    /// Starts a broker as its configuration says: one of the cluster that the ensemble of `zookeeper.connect` coordinates, or
    /// a single one ([`Self::start_embedded`]).
    ///
    /// # Errors
    /// What it needs is not there; the text says what to do.
    pub async fn start_configured(config: BrokerConfig) -> Result<Self, StartError> {
        let store = config.zookeeper_connect.clone().map_or(Store::Embedded, Store::ZooKeeper);
        Self::start_with(config, store).await
    }

    /// Starts a single broker with a coordination store of its own in its data directory. Partitions that are found
    /// there without a store, as Kafka or a copy leaves them, are taken over.
    pub async fn start_embedded(config: BrokerConfig) -> Result<Self, StartError> {
        Self::start_with(config, Store::Embedded).await
    }

    async fn start_with(config: BrokerConfig, store: Store) -> Result<Self, StartError> {
        let started = Instant::now();
        let listener = Listener::bind(&config.listen, config.listen_backlog).await.map_err(|source| {
            let address = format!("{}:{}", config.listen.host, config.listen.port);
            StartError::Listen { address, source }
        })?;
        let gate = Gate::new(Arc::new(OsFs));
        let fs: Arc<dyn Fs> = Arc::new(gate.clone());
        let services = Services::new(config);
        let config = Arc::clone(&services.config);

        let opening = {
            let (fs, services) = (Arc::clone(&fs), Arc::clone(&services));
            move || open_directory(fs, services)
        };
        let (partitions, opened, found) = services.readers.read(opening).await.ok_or(StartError::Threads)??;
        let partitions = Arc::new(partitions);

        let (coordination, own_store): (Arc<dyn Coordination>, _) = match store {
            Store::Given(coordination) => (coordination, None),
            Store::Embedded => {
                let (store, report) = EmbeddedStore::open(fs, &config.data_dir)?;
                tracing::debug!(?report, "opened the coordination store");
                let session = store.session_beating(config.session_timeout_ms, config.heartbeat_interval_ms);
                (Arc::new(session), Some(store))
            }
            Store::ZooKeeper(setting) => {
                // Its partitions would be strays there, and led under epochs that the cluster gives out as well.
                if fs.metadata(&config.data_dir.join(JOURNAL_FILE)).is_ok() {
                    return Err(StartError::OwnStore { path: config.data_dir.clone() });
                }
                let timeout_ms = config.zookeeper_session_timeout_ms;
                let wait_ms = config.zookeeper_connection_timeout_ms.unwrap_or(timeout_ms);
                (Arc::new(ZooKeeperStore::connect_within(&setting, timeout_ms, wait_ms).await?), None)
            }
        };
        let adopt = if own_store.is_some() { adoptable(&opened) } else { Vec::new() };
        let cluster = ClusterHandle::join(cluster_config(&config, found.cluster_id, adopt), coordination).await?;
        services.joined(cluster.clone());

        let records = opened.iter().map(Opened::records_scanned).sum();
        let held = opened.len();
        let image = cluster.image();
        let present = opened.iter().map(|opened| &opened.topic_partition).collect();
        let last_stop = last_stop(found.last_stop, &image, config.broker_id, &present);
        let attaching = {
            let (partitions, image) = (Arc::clone(&partitions), Arc::clone(&image));
            move || {
                partitions.adopt_cluster_id(&image.cluster_id)?;
                partitions.attach(&image, opened);
                partitions.remove_files(found.to_delete);
                Ok::<_, DataDirError>(())
            }
        };
        services.readers.read(attaching).await.ok_or(StartError::Threads)??;

        let shared = Arc::new(BrokerShared {
            config,
            cluster,
            partitions,
            services,
            groups: Groups::default(),
            transactions: Transactions::default(),
            verifications: Verifications::default(),
            peers: Peers::default(),
        });
        // Accepting before registering: whoever learns of this broker from the store finds it there.
        let local_addr = listener.local_addr();
        let api = Arc::new(Api { broker: Arc::clone(&shared) });
        let server = listener.serve(api, ServerLimits::from(&*shared.config));
        let endpoint = endpoint(&shared.config, local_addr);
        let ready = Ready { partitions: held, records, elapsed_ms: 0 };
        // A broker from here on: should it fail to register, it is stopped like one.
        let mut broker = Self { shared, local_addr, server: Some(server), gate, ready, store: own_store };
        broker.shared.cluster.register(endpoint, last_stop).await?;
        broker.shared.reconcile_now().await;
        broker.shared.spawn_tasks();
        broker.ready.elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(broker)
    }

    /// Its parts, for tests that call a handler.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<BrokerShared> {
        &self.shared
    }

    /// Serves a client that does not come through the listener: over a pipe within this process, for example, which costs no
    /// socket. Returns once the client has left or was closed, with the reason if that was for what it sent. Dropped earlier, it
    /// closes the connection.
    pub async fn serve<R, W>(&self, reader: R, writer: W) -> Option<String>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let api = Arc::new(Api { broker: Arc::clone(&self.shared) });
        let limits = ServerLimits::from(&*self.shared.config);
        serve_alone((reader, writer), api, &limits).await.map(|close| close.reason)
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What it found when it started.
    pub fn ready(&self) -> Ready {
        self.ready
    }

    /// Its number.
    pub fn id(&self) -> BrokerId {
        self.shared.config.broker_id
    }

    /// The cluster as this broker sees it.
    pub fn image(&self) -> Arc<MetadataImage> {
        self.shared.cluster.image()
    }

    /// Its membership of the cluster: to create topics, for example.
    pub fn cluster(&self) -> &ClusterHandle {
        &self.shared.cluster
    }

    /// One of its partitions at a glance, if it holds it. Waits for a command in progress there, no longer.
    pub fn status(&self, of: &TopicPartition) -> Option<Status> {
        self.shared.partitions.get(of)?.status()
    }

    /// What was cut from one of its logs since it started, the latest at the end.
    pub fn cuts(&self, of: &TopicPartition) -> Vec<Cut> {
        self.shared.partitions.get(of).map_or_else(Vec::new, |hosted| hosted.cuts())
    }

    /// How many of its logs were cut and how many elections may have lost records, since it started.
    pub fn history_counts(&self) -> HistoryCounts {
        self.shared.services.histories.counts()
    }

    /// All partitions it holds.
    pub fn partitions(&self) -> Vec<TopicPartition> {
        self.shared.partitions.all().iter().map(|hosted| hosted.topic_partition().clone()).collect()
    }

    /// Keeps its followers from fetching, or lets them again. Its session lives on meanwhile.
    pub fn pause_fetching(&self, pause: bool) {
        self.shared.services.fetchers.pause_all(pause);
    }

    /// The same for one partition.
    pub fn pause_fetching_of(&self, of: &TopicPartition, pause: bool) {
        self.shared.services.fetchers.pause(of, pause);
    }

    /// Stops in order: leaderships handed over to other in-sync replicas, no new requests, everything flushed, checkpoints and the clean-shutdown
    /// marker written.
    pub async fn shutdown(mut self) -> Result<(), ShutdownError> {
        let services = Arc::clone(&self.shared.services);
        let epoch = match *self.shared.cluster.registration().borrow() {
            Registration::Registered(epoch) => Some(epoch),
            Registration::Unregistered => None,
        };
        // First of all others lead, while this broker still answers and fetches: so nobody waits for what it does not do.
        let config = &self.shared.config;
        if config.controlled_shutdown {
            let patience = Duration::from_millis(config.controlled_shutdown_retry_backoff_ms);
            let left = self.shared.cluster.hand_over(config.controlled_shutdown_retries_max, patience).await;
            if left > 0 {
                tracing::warn!(partitions = left, "stopping though other replicas have not taken over yet");
            }
        }
        // Now the followers' and clients' next requests go elsewhere; those under way are answered.
        services.end_tasks().await;
        self.shared.cluster.leave().await;
        if let Some(server) = self.server.take() {
            server.stop(GRACE).await;
        }
        services.deadlines.clear();
        let (partitions, store) = (Arc::clone(&self.shared.partitions), self.store.take());
        let closing = {
            let services = Arc::clone(&services);
            move || {
                services.syncs.finish();
                // The store writes into the directory too: at rest before the marker says that all is.
                drop(store);
                partitions.close(epoch)
            }
        };
        // `None` if the thread could not be had or panicked: then nothing was marked as clean either.
        services.readers.read(closing).await.unwrap_or(Err(ShutdownError::Interrupted))
    }

    /// Stops as a crash would: nothing is flushed or said, what is in memory is lost. When this returns the directory's
    /// locks are free and nothing of this broker touches it any more, so it may be started again at once.
    pub async fn kill(mut self) {
        // Silent first: a partition whose log fails would tell the controller so.
        self.shared.cluster.abandon();
        // From here on every file operation of this broker fails, also one that a thread is about to make.
        self.gate.trip();
        if let Some(server) = self.server.take() {
            server.abort().await;
        }
        self.shared.services.end_tasks().await;
    }
}

impl Drop for Broker {
    /// The rest of a crash, and all of it for a broker that is simply dropped. After an orderly stop there is nothing
    /// left to do.
    fn drop(&mut self) {
        self.shared.cluster.abandon();
        self.gate.trip();
        drop(self.server.take());
        let services = &self.shared.services;
        services.abort_tasks();
        services.deadlines.clear();
        self.shared.partitions.abandon();
        drop(self.store.take());
        services.syncs.abandon();
        services.readers.abandon();
        services.owners.abandon();
    }
}

/// What the directory says, beside its partitions.
struct Found {
    cluster_id: Option<String>,
    last_stop: LastStop,
    to_delete: Vec<PathBuf>,
}

/// Locks and reads the data directory and opens the logs in it. Blocks.
fn open_directory(fs: Arc<dyn Fs>, services: Arc<Services>) -> Result<(Partitions, Vec<Opened>, Found), StartError> {
    let config = &services.config;
    let options = DataDirOptions::of_node(config.broker_id.0);
    let (data, report) = DataDir::open(Arc::clone(&fs), &config.data_dir, options)?;
    for DataDirWarning { path, what, .. } in &report.warnings {
        tracing::warn!(path = %path.display(), what, "in the data directory");
    }
    // The marker says nothing of a directory without partitions: whether it should have any, the store knows.
    let whole = report.clean || data.partitions().is_empty();
    let last_stop = if whole { LastStop::Clean } else { LastStop::Unclean };
    let found = Found { cluster_id: report.cluster_id, last_stop, to_delete: report.to_delete };
    let partitions = Partitions::new(Arc::clone(&services), fs, data);
    let opened = partitions.open_found();
    Ok((partitions, opened, found))
}

/// What the cluster is told of the last stop. A log that is not there although the store counts on it (a new disk, a
/// directory that was removed) lacks what was acknowledged, however orderly the stop was.
fn last_stop(found: LastStop, image: &MetadataImage, me: BrokerId, present: &BTreeSet<&TopicPartition>) -> LastStop {
    let partitions = image.topics.values().flat_map(|topic| {
        let of = |number| TopicPartition::new(topic.name.clone(), number);
        (0..).map(of).zip(&topic.partitions)
    });
    for (of, partition) in partitions {
        if partition.state.value.isr.contains(&me) && !present.contains(&of) {
            tracing::warn!(partition = %of, "the cluster counts on a log that is not here");
            return LastStop::Unclean;
        }
    }
    found
}

/// What a new store may be told of partitions that were there before it.
fn adoptable(opened: &[Opened]) -> Vec<FoundPartition> {
    let of = |opened: &Opened| FoundPartition {
        topic_partition: opened.topic_partition.clone(),
        topic_id: opened.topic_id,
        last_epoch: opened.log.latest_epoch(),
    };
    opened.iter().map(of).collect()
}

fn cluster_config(config: &BrokerConfig, cluster_id: Option<String>, adopt: Vec<FoundPartition>) -> ClusterConfig {
    let mut cluster = ClusterConfig::new(config.broker_id);
    cluster.cluster_id = cluster_id;
    cluster.adopt = adopt;
    cluster.partitions_default = config.num_partitions;
    cluster.replication_factor_default = config.default_replication_factor;
    cluster.topic = config.topic.clone();
    if config.zookeeper_connect.is_some() {
        // A former life of this broker is there for a session, whose end takes the servers as long again at worst.
        cluster.registration_timeout_ms = cluster.registration_timeout_ms.max(2 * config.zookeeper_session_timeout_ms);
    }
    cluster.leader_rebalance = config.leader_rebalance;
    cluster.leader_imbalance_check_interval_seconds = config.leader_imbalance_check_interval_seconds;
    cluster.leader_imbalance_percentage_max = config.leader_imbalance_percentage_max;
    cluster
}

/// What to tell others: as configured, else where it listens, as an address that can be connected to.
fn endpoint(config: &BrokerConfig, local: SocketAddr) -> Endpoint {
    let advertised = config.advertised.as_ref();
    let host =
        advertised.map(|address| address.host.clone()).filter(|host| !host.is_empty()).unwrap_or_else(|| match config
            .listen
            .host
            .as_str()
        {
            "" | "0.0.0.0" | "::" => host_name(),
            host => host.to_owned(),
        });
    let port = advertised.map(|address| address.port).filter(|&port| port != 0).unwrap_or_else(|| local.port());
    Endpoint { host, port, rack: config.rack.clone() }
}

/// This machine's name for others, for a broker that listens on every interface and was not told what to advertise.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

impl BrokerShared {
    /// Brings the partitions in step with the cluster. Returns whether something failed that is to be tried again.
    async fn reconcile_now(&self) -> bool {
        // In this order: the image is at least as new as the registration, never the other way round.
        let registration = *self.cluster.registration().borrow();
        let image = self.cluster.image();
        let partitions = Arc::clone(&self.partitions);
        self.services.syncs.control(move || partitions.reconcile(&image, registration)).await.unwrap_or(false)
    }

    fn spawn_tasks(self: &Arc<Self>) {
        let services = &self.services;
        services.spawn({
            let services = Arc::clone(services);
            async move { services.deadlines.run().await }
        });
        services.spawn(Arc::clone(self).follow_the_image());
        let config = &self.config;
        let checkpoints = [
            (Checkpoint::RecoveryPoints, config.recovery_point_checkpoint_interval_ms),
            (Checkpoint::LogStarts, config.log_start_checkpoint_interval_ms),
            (Checkpoint::HighWatermarks, config.high_watermark_checkpoint_interval_ms),
            // Of a lost one no more comes than compacting again.
            (Checkpoint::CleanerOffsets, config.log_start_checkpoint_interval_ms),
        ];
        for (which, interval_ms) in checkpoints {
            services.spawn(Arc::clone(self).checkpoint_every(which, Duration::from_millis(interval_ms.max(1))));
        }
        services.spawn(Arc::clone(self).checkpoint_when_wanted());
        services.spawn(Arc::clone(self).keep_house());
        services.spawn(groups::run(Arc::clone(self)));
        services.spawn(transactions::run(Arc::clone(self)));
        services.spawn(healer::run(Arc::clone(services), Arc::clone(&self.partitions)));
    }

    async fn follow_the_image(self: Arc<Self>) {
        let (mut images, mut registrations) = (self.cluster.changes(), self.cluster.registration());
        let mut again = self.reconcile_now().await;
        loop {
            tokio::select! {
                changed = images.changed() => if changed.is_err() { return },
                changed = registrations.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(RETRY), if again => {}
            }
            images.mark_unchanged();
            registrations.mark_unchanged();
            again = self.reconcile_now().await;
        }
    }

    async fn checkpoint_every(self: Arc<Self>, which: Checkpoint, interval: Duration) {
        loop {
            tokio::time::sleep(interval).await;
            self.checkpoint(which).await;
        }
    }

    /// A cut lowered offsets that Kafka would trust: it reads only the root's files.
    async fn checkpoint_when_wanted(self: Arc<Self>) {
        loop {
            self.services.checkpoints_wanted.notified().await;
            // One write serves all partitions that are cut in the same change of leaders.
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.checkpoint(Checkpoint::RecoveryPoints).await;
            self.checkpoint(Checkpoint::LogStarts).await;
            self.checkpoint(Checkpoint::CleanerOffsets).await;
        }
    }

    async fn checkpoint(&self, which: Checkpoint) {
        let partitions = Arc::clone(&self.partitions);
        // `None` when the broker stops, which writes them itself.
        self.services.syncs.background(move || partitions.checkpoint(which)).await;
    }

    async fn keep_house(self: Arc<Self>) {
        let Intervals { house, retention } = Intervals::of(&self.config);
        // As in Kafka, a broker that is often started again looks at retention all the same.
        let mut look = tokio::time::Instant::now() + retention.min(HOUSEKEEPING_MAX);
        loop {
            tokio::time::sleep(house).await;
            let now = tokio::time::Instant::now();
            let is_time = look <= now;
            if is_time {
                look = now + retention;
            }
            self.partitions.housekeeping(is_time);
        }
    }
}

/// How often partitions are asked for work.
#[derive(Debug, PartialEq, Eq)]
struct Intervals {
    /// For all but retention.
    house: Duration,
    retention: Duration,
}

impl Intervals {
    fn of(config: &BrokerConfig) -> Self {
        let retention = Duration::from_millis(config.retention_check_interval_ms.max(1));
        let cleaner = Duration::from_millis(config.cleaner_backoff_ms.max(0).unsigned_abs()).max(CLEANER_MIN);
        Self { house: retention.min(cleaner).min(HOUSEKEEPING_MAX), retention }
    }
}

#[cfg(test)]
mod tests;
