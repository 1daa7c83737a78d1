//! Debian's ZooKeeper as a child process.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

/// Where Debian's package `zookeeper` puts the program; its manifest names the jars that it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";

/// How long the server may take until it answers. It takes a second; the machine may be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// One server on a free port of the loopback, with its data in a temporary directory. Dropped, it is killed.
#[derive(Debug)]
pub struct ZooKeeper {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl ZooKeeper {
    /// Starts a server that ends sessions of 300 ms to 10 s, and waits until it answers.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start() -> anyhow::Result<Self> {
        ensure!(
            Path::new(JAR).exists(),
            "ZooKeeper is missing ({JAR}): `cargo xtask install zookeeper` installs Debian's package"
        );
        let directory = tempfile::tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let data = directory.path().join("data");
        let config = format!(
            "tickTime=100\nminSessionTimeout=300\nmaxSessionTimeout=10000\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr\nclientPortAddress=127.0.0.1\nclientPort={}\ndataDir={}\n",
            address.port(),
            data.display()
        );
        fs::write(directory.path().join("zoo.cfg"), config)?;
        let child = spawn(directory.path())?;
        let mut server = Self { child, address, directory };
        server.wait_until_ready()?;
        Ok(server)
    }

    /// What `zookeeper.connect` takes.
    pub fn connect(&self) -> String {
        self.address.to_string()
    }

    /// kill -9.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().context("cannot kill ZooKeeper")?;
        self.child.wait().context("cannot wait for ZooKeeper")?;
        Ok(())
    }

    /// Starts it again on its data and port, after it was killed.
    ///
    /// # Errors
    /// It does not answer.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = spawn(self.directory.path())?;
        self.wait_until_ready()
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < READY_LIMIT {
            if let Some(status) = self.child.try_wait()? {
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
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for ZooKeeper {
    fn drop(&mut self) {
        // Both fail if the process has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(directory: &Path) -> anyhow::Result<Child> {
    let log = File::options().create(true).append(true).open(directory.join("log"))?;
    Command::new("java")
        .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", JAR])
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(directory.join("zoo.cfg"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start java, which ZooKeeper needs")
}
