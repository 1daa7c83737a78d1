//! Processes: brokers, and the ZooKeeper server between them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use highwater_testbed::{Disk, Network, Place};
use highwater_tests::{ServeOptions, Server, ZooKeeper};
use serde_json::Value;
use zookeeper_client::{Acls, CreateMode};

/// The directory of ZooKeeper that is the cluster's root.
pub(crate) const CHROOT: &str = "/test/highwater";
/// How long ZooKeeper waits for a sign of life of a broker.
pub(crate) const SESSION: Duration = Duration::from_secs(2);
/// Far more than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The size of a broker's disk where each has its own.
const DISK_BYTES: u64 = 64 << 20;

/// The host of ZooKeeper where each has its own.
pub(crate) const STORE: Place = Place(4);

/// The host of a broker where each has its own.
pub(crate) fn broker_place(id: i32) -> Place {
    Place(u8::try_from(id).unwrap_or_default())
}

/// A cluster: numbers 1, 2, 3 …, each broker with a directory and a port of its own. Dropped, everything is killed.
#[derive(Debug)]
pub(crate) struct Processes {
    brokers: BTreeMap<i32, Server>,
    pub(crate) zookeeper: ZooKeeper,
    znodes: Znodes,
    /// Of those that have a disk of their own.
    disks: BTreeMap<i32, Disk>,
    /// Last, so that it goes when nobody writes into it any more.
    _directory: tempfile::TempDir,
}

impl Processes {
    /// Starts ZooKeeper, and so many brokers with these of Kafka's keys set.
    pub(crate) fn start(count: i32, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_with(ZooKeeper::start()?, count, settings)
    }

    /// Starts three brokers with these of Kafka's keys set, each on the host of its number and with a disk of its own, and ZooKeeper on [`STORE`]. Who
    /// asks is on a host of its own too. This process must be inside.
    pub(crate) fn start_apart(settings: &[(&str, &str)]) -> anyhow::Result<(Network, Self)> {
        let network = Network::start(4)?;
        Ok((network, Self::start_brokers(ZooKeeper::start_at(STORE)?, 3, settings, true)?))
    }

    /// Starts so many brokers with these of Kafka's keys set.
    pub(crate) fn start_with(zookeeper: ZooKeeper, count: i32, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        Self::start_brokers(zookeeper, count, settings, false)
    }

    fn start_brokers(zookeeper: ZooKeeper, count: i32, settings: &[(&str, &str)], apart: bool) -> anyhow::Result<Self> {
        let znodes = Znodes::connect(&zookeeper.connect())?;
        let directory = tempfile::tempdir()?;
        let (mut brokers, mut disks) = (BTreeMap::new(), BTreeMap::new());
        for id in 1..=count {
            let mut options = ServeOptions::default()
                .set("broker.id", id)
                .set("zookeeper.connect", format!("{}{CHROOT}", zookeeper.connect()))
                .set("zookeeper.session.timeout.ms", SESSION.as_millis());
            let data = directory.path().join(format!("broker-{id}"));
            if apart {
                options = options.place(broker_place(id));
                let disk = Disk::start(&directory.path().join(format!("disk-{id}")), DISK_BYTES)?;
                symlink(disk.data(), &data)?;
                disks.insert(id, disk);
            }
            for (key, value) in settings {
                options = options.set(key, value);
            }
            brokers.insert(id, Server::start_with(&data, options)?);
        }
        Ok(Self { brokers, zookeeper, znodes, disks, _directory: directory })
    }

    /// One of the brokers, whether it runs or not.
    pub(crate) fn broker(&mut self, id: i32) -> anyhow::Result<&mut Server> {
        self.brokers.get_mut(&id).with_context(|| format!("there is no broker {id}"))
    }

    /// A broker's own disk.
    pub(crate) fn disk(&self, id: i32) -> anyhow::Result<&Disk> {
        self.disks.get(&id).with_context(|| format!("broker {id} has no disk of its own"))
    }

    /// Where the brokers listen, also those that are down.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.brokers.values().map(Server::address).collect()
    }

    /// A JSON node below the cluster's root, as any ZooKeeper client sees it.
    pub(crate) fn node(&self, path: &str) -> anyhow::Result<Option<Value>> {
        self.znodes.json(path)
    }

    /// What a node holds, as `zkCli.sh get` prints it.
    pub(crate) fn text(&self, path: &str) -> anyhow::Result<Option<String>> {
        self.znodes.text(path)
    }

    /// Makes a node, as any ZooKeeper client can.
    pub(crate) fn make_node(&self, path: &str, text: &str) -> anyhow::Result<()> {
        self.znodes.create(path, text)
    }

    /// The state node of partition 0, once it is as wanted.
    pub(crate) fn wait_for_state(&self, topic: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let started = Instant::now();
        loop {
            let state = self.node(&format!("/brokers/topics/{topic}/partitions/0/state"))?;
            match state {
                Some(state) if wanted(&state) => return Ok(state),
                state if started.elapsed() > LIMIT => bail!("after {LIMIT:?} the state is {state:?}"),
                _ => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Who leads partition 0, once these and no others are in sync.
    pub(crate) fn leader_of(&self, topic: &str, in_sync: &[i32]) -> anyhow::Result<i32> {
        let wanted: BTreeSet<i64> = in_sync.iter().map(|&id| i64::from(id)).collect();
        let these = |state: &Value| {
            let isr = state["isr"].as_array().into_iter().flatten().filter_map(Value::as_i64);
            leader(state).is_some() && isr.collect::<BTreeSet<i64>>() == wanted
        };
        leader(&self.wait_for_state(topic, these)?).context("nobody leads")
    }

    /// Who leads partition 0, once all brokers are in sync.
    pub(crate) fn leader_of_all(&self, topic: &str) -> anyhow::Result<i32> {
        self.leader_of(topic, &self.brokers.keys().copied().collect::<Vec<_>>())
    }
}

/// The leader that a state node names.
pub(crate) fn leader(state: &Value) -> Option<i32> {
    i32::try_from(state["leader"].as_i64()?).ok().filter(|&leader| leader >= 0)
}

/// A bare ZooKeeper client: it knows nothing of Highwater.
struct Znodes {
    runtime: tokio::runtime::Runtime,
    client: zookeeper_client::Client,
}

impl std::fmt::Debug for Znodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Znodes").finish_non_exhaustive()
    }
}

impl Znodes {
    fn connect(servers: &str) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        // Longer than any test keeps the server down, and than that takes to start on a busy machine.
        let connector = zookeeper_client::Client::connector().with_session_timeout(Duration::from_secs(40));
        let client = runtime.block_on(connector.connect(servers))?;
        Ok(Self { runtime, client })
    }

    fn json(&self, path: &str) -> anyhow::Result<Option<Value>> {
        Ok(self.text(path)?.map(|text| serde_json::from_str(&text)).transpose()?)
    }

    fn create(&self, path: &str, text: &str) -> anyhow::Result<()> {
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let path = format!("{CHROOT}{path}");
        self.runtime.block_on(self.client.create(&path, text.as_bytes(), &persistent))?;
        Ok(())
    }

    fn text(&self, path: &str) -> anyhow::Result<Option<String>> {
        match self.runtime.block_on(self.client.get_data(&format!("{CHROOT}{path}"))) {
            Ok((data, _)) => Ok(Some(String::from_utf8(data)?)),
            Err(zookeeper_client::Error::NoNode) => Ok(None),
            // The server it asked has just died: the caller asks again.
            Err(zookeeper_client::Error::ConnectionLoss) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {path}")),
        }
    }
}
