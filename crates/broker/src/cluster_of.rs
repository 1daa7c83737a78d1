//! Several brokers in one process: for demonstrations and for tests, ours and those of programs that use Highwater.
//!
//! Each has its own directory, its own port on the loopback interface and its own session with one embedded store; they
//! follow each other over real sockets. A broker can be killed without flush or goodbye, and started again.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_replication::{BrokerId, Cut, Status};
use highwater_storage::TopicPartition;
use highwater_storage::fs::{Fs, OsFs};

use crate::broker::{Broker, StartError};
use crate::cluster::EmbeddedStore;
use crate::config::{BrokerConfig, ListenAddress};
use crate::partitions::ShutdownError;

/// Changes a broker's configuration before it starts.
pub type Configure = Box<dyn Fn(&mut BrokerConfig) + Send + Sync>;

/// How to start a [`Cluster`].
pub struct ClusterOptions {
    /// How many brokers; their numbers are 1, 2, 3 ….
    pub brokers: usize,
    /// Where their directories are made, or found from an earlier run.
    pub dir: PathBuf,
    /// What to change in each broker's configuration. Number, directory and listener are the cluster's.
    pub configure: Configure,
}

impl ClusterOptions {
    /// So many brokers below `dir`, with the defaults.
    pub fn new(brokers: usize, dir: impl Into<PathBuf>) -> Self {
        Self { brokers, dir: dir.into(), configure: Box::new(|_| ()) }
    }

    /// With something changed in each broker's configuration.
    #[must_use]
    pub fn configure(mut self, configure: impl Fn(&mut BrokerConfig) + Send + Sync + 'static) -> Self {
        self.configure = Box::new(configure);
        self
    }
}

impl fmt::Debug for ClusterOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterOptions").field("brokers", &self.brokers).field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Running brokers that form a cluster. Dropping it kills them all.
pub struct Cluster {
    options: ClusterOptions,
    store: EmbeddedStore,
    members: BTreeMap<BrokerId, Member>,
}

struct Member {
    running: Option<Broker>,
    address: SocketAddr,
    /// What its logs lost in earlier lives.
    cuts_before: Vec<Cut>,
}

impl Cluster {
    /// Starts the store and the brokers.
    pub async fn start(options: ClusterOptions) -> Result<Self, StartError> {
        let fs: Arc<dyn Fs> = Arc::new(OsFs);
        let dir = options.dir.join("coordination");
        std::fs::create_dir_all(&dir).map_err(|source| StartError::Directory { path: dir.clone(), source })?;
        let (store, _) = EmbeddedStore::open(fs, &dir)?;
        let mut cluster = Self { options, store, members: BTreeMap::new() };
        for number in 1..=cluster.options.brokers {
            let id = BrokerId(i32::try_from(number).unwrap_or(i32::MAX));
            let broker = cluster.start_broker(id, 0).await?;
            let address = broker.local_addr();
            cluster.members.insert(id, Member { running: Some(broker), address, cuts_before: Vec::new() });
        }
        Ok(cluster)
    }

    async fn start_broker(&self, id: BrokerId, port: u16) -> Result<Broker, StartError> {
        let mut config = BrokerConfig::default();
        (self.options.configure)(&mut config);
        config.broker_id = id;
        config.data_dir = self.data_dir(id);
        config.listen = ListenAddress { host: "127.0.0.1".to_owned(), port };
        let session = self.store.session_beating(config.session_timeout_ms, config.heartbeat_interval_ms);
        Broker::start(config, Arc::new(session)).await
    }

    /// The brokers' numbers.
    pub fn ids(&self) -> Vec<BrokerId> {
        self.members.keys().copied().collect()
    }

    /// Where to connect: the addresses of all brokers, also of those that are down.
    pub fn bootstrap(&self) -> Vec<String> {
        self.members.values().map(|member| member.address.to_string()).collect()
    }

    /// Where a broker listens, or did when it was killed: it comes back there.
    pub fn address(&self, id: BrokerId) -> Option<SocketAddr> {
        self.members.get(&id).map(|member| member.address)
    }

    /// A broker's data directory.
    pub fn data_dir(&self, id: BrokerId) -> PathBuf {
        self.options.dir.join(format!("broker-{id}"))
    }

    /// Where everything lies.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// A broker, if it runs.
    pub fn broker(&self, id: BrokerId) -> Option<&Broker> {
        self.members.get(&id)?.running.as_ref()
    }

    /// The running brokers.
    pub fn running(&self) -> impl Iterator<Item = &Broker> {
        self.members.values().filter_map(|member| member.running.as_ref())
    }

    /// Kills a broker: no flush, no goodbye; its session expires in its own time. False if it was not running.
    pub async fn kill(&mut self, id: BrokerId) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let Some(broker) = member.running.take() else { return false };
        for of in broker.partitions() {
            member.cuts_before.extend(broker.cuts(&of));
        }
        broker.kill().await;
        true
    }

    /// Stops a broker in order: others lead before it does. Nothing is done if it was not running.
    ///
    /// # Errors
    ///
    /// What kept the stop from being clean.
    pub async fn stop(&mut self, id: BrokerId) -> Result<(), ShutdownError> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let Some(broker) = member.running.take() else { return Ok(()) };
        for of in broker.partitions() {
            member.cuts_before.extend(broker.cuts(&of));
        }
        broker.shutdown().await
    }

    /// Starts a broker that is down on its directory and, if it is still free, its port.
    pub async fn restart(&mut self, id: BrokerId) -> Result<(), StartError> {
        let Some(port) = self.members.get(&id).filter(|member| member.running.is_none()).map(|m| m.address.port())
        else {
            return Ok(());
        };
        let broker = match self.start_broker(id, port).await {
            Err(StartError::Listen { .. }) => self.start_broker(id, 0).await?,
            started => started?,
        };
        if let Some(member) = self.members.get_mut(&id) {
            member.address = broker.local_addr();
            member.running = Some(broker);
        }
        Ok(())
    }

    /// Keeps a broker's replicas from fetching, or lets them again; its session lives on.
    pub fn pause_fetching(&self, id: BrokerId, pause: bool) {
        if let Some(broker) = self.broker(id) {
            broker.pause_fetching(pause);
        }
    }

    /// One partition on every broker; `None` where the broker is down or does not hold it. Cheap.
    pub fn statuses(&self, topic: &str, partition: i32) -> Vec<(BrokerId, Option<Status>)> {
        let of = TopicPartition::new(topic, partition);
        let status = |member: &Member| member.running.as_ref().and_then(|broker| broker.status(&of));
        self.members.iter().map(|(&id, member)| (id, status(member))).collect()
    }

    /// What was cut from a broker's logs and why, since the cluster started, also before its restarts; each log's cuts
    /// in the order of time.
    pub fn cuts(&self, id: BrokerId) -> Vec<Cut> {
        let Some(member) = self.members.get(&id) else { return Vec::new() };
        let mut cuts = member.cuts_before.clone();
        if let Some(broker) = &member.running {
            for of in broker.partitions() {
                cuts.extend(broker.cuts(&of));
            }
        }
        cuts
    }

    /// Stops all brokers in order, then the store. The first thing that went wrong is returned, after all have stopped.
    pub async fn shutdown(mut self) -> Result<(), ShutdownError> {
        let mut first = Ok(());
        for member in self.members.values_mut() {
            if let Some(broker) = member.running.take() {
                let stopped = broker.shutdown().await;
                first = first.and(stopped);
            }
        }
        first
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running: BTreeMap<_, _> = self.members.iter().map(|(id, member)| (id, member.running.is_some())).collect();
        f.debug_struct("Cluster").field("dir", &self.options.dir).field("running", &running).finish_non_exhaustive()
    }
}
