//! Debian's ZooKeeper as a child process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_testbed::{Network, Place};

/// Where Debian's package `zookeeper` puts the program; its manifest names the jars that it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// How long the server may take until it answers. It takes a second; the machine may be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// One server, or an ensemble of several, on free ports of the loopback, with its data in a temporary directory. Dropped, all
/// are killed.
#[derive(Debug)]
pub struct ZooKeeper {
    servers: Vec<Member>,
    /// Last, so that it goes when nobody writes into it any more.
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    /// `None` while it is down.
    child: Option<Child>,
    place: Place,
    address: SocketAddr,
    directory: PathBuf,
}

impl ZooKeeper {
    /// Starts one server that ends sessions of 300 ms to 10 s, and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start() -> anyhow::Result<Self> {
        Self::start_ensemble(1)
    }

    /// The same with so many servers, most of which must be up for any to answer.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start_ensemble(count: usize) -> anyhow::Result<Self> {
        Self::start_members(count, Place::HERE, IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Starts one server on a host of a network.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start_at(place: Place) -> anyhow::Result<Self> {
        Self::start_members(1, place, place.address())
    }

    fn start_members(count: usize, place: Place, host: IpAddr) -> anyhow::Result<Self> {
        ensure!(
            Path::new(JAR).exists(),
            "ZooKeeper is missing ({JAR}): `cargo xtask install zookeeper` installs Debian's package"
        );
        let directory = tempfile::tempdir()?;
        let ports = free_ports(count * 3)?;
        let peers: String = ports
            .chunks(3)
            .zip(1..)
            .filter(|_| count > 1)
            .map(|(ports, id)| format!("server.{id}=127.0.0.1:{}:{}\n", ports[1].port(), ports[2].port()))
            .collect();
        let mut servers = Vec::new();
        for (ports, id) in ports.chunks(3).zip(1..) {
            let directory = directory.path().join(format!("server-{id}"));
            let data = directory.join("data");
            fs::create_dir_all(&data)?;
            fs::write(data.join("myid"), format!("{id}\n"))?;
            let config = format!(
                "tickTime=100\ninitLimit=100\nsyncLimit=20\nminSessionTimeout=300\nmaxSessionTimeout=60000\n\
                 admin.enableServer=false\n4lw.commands.whitelist=srvr\nclientPortAddress={host}\nclientPort={}\n\
                 dataDir={}\n{peers}",
                ports[0].port(),
                data.display()
            );
            fs::write(directory.join("zoo.cfg"), config)?;
            let address = SocketAddr::new(host, ports[0].port());
            servers.push(Member { child: None, place, address, directory });
        }
        let mut ensemble = Self { servers, _directory: directory };
        ensemble.start_again()?;
        Ok(ensemble)
    }

    /// What `zookeeper.connect` takes.
    pub fn connect(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(|server| server.address.to_string()).collect();
        addresses.join(",")
    }

    /// kill -9 of all servers.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.servers.iter_mut().try_for_each(Member::kill)
    }

    /// kill -9 of the server that leads the ensemble.
    ///
    /// # Errors
    /// None leads, or the system refuses.
    pub fn kill_leader(&mut self) -> anyhow::Result<()> {
        let leads = |server: &&mut Member| server.asked().is_ok_and(|answer| answer.contains("Mode: leader"));
        self.servers.iter_mut().find(leads).context("no server leads")?.kill()
    }

    /// Starts the servers again that are down, on their data and ports.
    ///
    /// # Errors
    /// One does not answer.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        for server in self.servers.iter_mut().filter(|server| server.child.is_none()) {
            server.child = Some(spawn(server.place, &server.directory)?);
        }
        self.servers.iter_mut().try_for_each(Member::wait_until_ready)
    }
}

impl Member {
    fn kill(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().context("cannot kill ZooKeeper")?;
        child.wait().context("cannot wait for ZooKeeper")?;
        Ok(())
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < READY_LIMIT {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().transpose()).transpose()? {
                bail!("ZooKeeper ended ({status}); it said:\n{}", self.log());
            }
            if self.asked().is_ok_and(|answer| answer.contains("Mode: ")) {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!("ZooKeeper does not answer; it said:\n{}", self.log());
    }

    fn asked(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"srvr")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It fails if the process has ended already, which is what is wanted.
        let _ = self.kill();
    }
}

/// Ports that nobody listens on, all different.
fn free_ports(count: usize) -> std::io::Result<Vec<SocketAddr>> {
    let held: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<_, _>>()?;
    held.iter().map(TcpListener::local_addr).collect()
}

fn spawn(place: Place, directory: &Path) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(directory.join("log"))?;
    Network::command(place, "java")
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", JAR])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(directory.join("zoo.cfg"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start java, which ZooKeeper needs")
}
