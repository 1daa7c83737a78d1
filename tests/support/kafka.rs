//! Apache Kafka as a child process, to compare with.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use kafka_protocol::messages::ApiVersionsRequest;

use crate::Client;

/// How long it may take until it answers. It takes seconds; the machine may be busy.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// A broker that is its own controller, on the loopback. Dropped, it is killed.
#[derive(Debug)]
pub struct Kafka {
    child: Child,
    address: SocketAddr,
    work: PathBuf,
}

impl Kafka {
    /// Starts one of the jars in `libs`, with a data directory and a log below `work`, and waits until it answers.
    ///
    /// # Errors
    /// There is no Java, or Kafka does not start; the text quotes what it said.
    pub fn start(libs: &Path, work: &Path, settings: &[(&str, &str)]) -> anyhow::Result<Self> {
        fs::create_dir_all(work).with_context(|| format!("cannot create {}", work.display()))?;
        let [port, controller] = free_ports()?;
        let mut properties = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n\
             listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\nlog.dirs={}\n\
             offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n",
            work.join("data").display()
        );
        for (key, value) in settings {
            properties.push_str(&format!("{key}={value}\n"));
        }
        let file = work.join("server.properties");
        fs::write(&file, properties).with_context(|| format!("cannot write {}", file.display()))?;
        let format = java(libs, "kafka.tools.StorageTool", work)?
            .args(["format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c"])
            .arg(&file)
            .status()
            .context("cannot run java")?;
        ensure!(format.success(), "Apache Kafka cannot format its directory: {}", said(work));
        let child = java(libs, "kafka.Kafka", work)?.arg(&file).spawn().context("cannot run java")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut kafka = Self { child, address, work: work.to_path_buf() };
        let deadline = Instant::now() + READY_LIMIT;
        while !kafka.answers() {
            if let Some(status) = kafka.child.try_wait()? {
                bail!("Apache Kafka ended with {status}: {}", said(work));
            }
            ensure!(Instant::now() < deadline, "Apache Kafka is not ready after {READY_LIMIT:?}: {}", said(work));
            thread::sleep(Duration::from_millis(100));
        }
        Ok(kafka)
    }

    /// The end of what it has logged.
    pub fn log(&self) -> String {
        said(&self.work)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn answers(&self) -> bool {
        let client = Client::connect_within(self.address, Duration::from_secs(2));
        client.is_ok_and(|mut client| client.send(0, &ApiVersionsRequest::default()).is_ok())
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        // Both fail if the process has ended already, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("---- Kafka's log\n{}", said(&self.work));
        }
    }
}

/// A class of Kafka's. It runs for seconds: the quick compiler and one collector thread start it sooner.
fn java(libs: &Path, class: &str, work: &Path) -> anyhow::Result<Command> {
    let log = File::options().create(true).append(true).open(log_file(work)).context("cannot open Kafka's log")?;
    let mut command = Command::new("java");
    command.args(["-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp"]).arg(libs.join("*")).arg(class);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(command)
}

fn log_file(work: &Path) -> PathBuf {
    work.join("kafka.log")
}

/// The end of what it said.
fn said(work: &Path) -> String {
    let text = fs::read_to_string(log_file(work)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// Ports that nobody has now. Both are held until both are known, so they are not one.
fn free_ports() -> anyhow::Result<[u16; 2]> {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port is free");
    let held = [listen()?, listen()?];
    Ok([held[0].local_addr()?.port(), held[1].local_addr()?.port()])
}
