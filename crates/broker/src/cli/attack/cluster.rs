//! The attacked cluster: a ZooKeeper server and three brokers, each a process of its own.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::disk::Disks;
use super::network::Network;

/// The numbers of the brokers.
pub(super) const BROKERS: [i32; 3] = [1, 2, 3];

/// How long ZooKeeper waits for a sign of life of a broker.
pub(super) const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a leader waits for a replica that does not keep up.
const LAG_TIME_MAX_MS: u64 = 3_000;

/// Small, so that there are many segments.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Where Debian's package `zookeeper` puts the program; its manifest names the jars that it needs.
const ZOOKEEPER_JAR: &str = "/usr/share/java/zookeeper.jar";

/// How long the server may take until it answers. It takes a second; the machine may be busy.
const STORE_LIMIT: Duration = Duration::from_secs(60);

/// How long a clean stop may take, the handing over of leaderships included.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How much of its log is shown of a process that ended by itself.
const LAST_LINES: usize = 5;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    /// The ZooKeeper server.
    Store,
    /// A broker, by its number.
    Broker(i32),
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store => write!(f, "ZooKeeper"),
            Self::Broker(id) => write!(f, "broker {id}"),
        }
    }
}

/// How a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Up,
    Paused,
    Down,
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Up => "up",
            Self::Paused => "paused",
            Self::Down => "down",
        })
    }
}

/// The processes. Dropped, all are killed.
pub(super) struct Cluster {
    pub(super) network: Network,
    directory: PathBuf,
    executable: PathBuf,
    members: Vec<Process>,
    /// After the processes, which are gone when the disks go.
    pub(super) disks: Disks,
}

struct Process {
    member: Member,
    /// `None` while it is meant to be down.
    child: Option<Child>,
    paused: bool,
}

impl Cluster {
    /// Starts ZooKeeper and the brokers, with their files below `directory`.
    pub(super) async fn start(directory: &Path, network: Network, disks: Disks) -> anyhow::Result<Self> {
        ensure!(
            Path::new(ZOOKEEPER_JAR).exists(),
            "ZooKeeper is missing ({ZOOKEEPER_JAR}): install Debian's package `zookeeper`"
        );
        let executable = std::env::current_exe().context("cannot find the running program")?;
        let members = BROKERS.map(Member::Broker).into_iter().chain([Member::Store]);
        let members = members.map(|member| Process { member, child: None, paused: false }).collect();
        let mut cluster = Self { network, directory: directory.to_path_buf(), executable, members, disks };
        cluster.start_store().await?;
        for id in BROKERS {
            cluster.start_broker(id)?;
        }
        Ok(cluster)
    }

    /// Where the brokers listen, also those that are down.
    pub(super) fn addresses(&self) -> anyhow::Result<Vec<String>> {
        BROKERS.iter().map(|&id| Ok(self.network.address(Member::Broker(id))?.to_string())).collect()
    }

    /// The data directory of a broker.
    pub(super) fn data_dir(&self, id: i32) -> PathBuf {
        self.disks.data_dir(id)
    }

    /// What a member writes to standard output and error.
    pub(super) fn log(&self, member: Member) -> PathBuf {
        self.directory.join(match member {
            Member::Store => "zookeeper.log".to_owned(),
            Member::Broker(id) => format!("broker-{id}.log"),
        })
    }

    /// How a member is, as far as the attack had a hand in it.
    pub(super) fn condition(&self, member: Member) -> Condition {
        match self.members.iter().find(|process| process.member == member) {
            Some(Process { child: Some(_), paused: true, .. }) => Condition::Paused,
            Some(Process { child: Some(_), .. }) => Condition::Up,
            _ => Condition::Down,
        }
    }

    /// Starts a broker that is down; it need not be ready when this returns.
    pub(super) fn start_broker(&mut self, id: i32) -> anyhow::Result<()> {
        let member = Member::Broker(id);
        let store = self.network.address(Member::Store)?;
        let mut command = self.network.command(member, &self.executable);
        command
            .arg("serve")
            .args(["--broker-id", &id.to_string()])
            .args(["--listen", &self.network.address(member)?.to_string()])
            .arg("--data-dir")
            .arg(self.data_dir(id));
        for setting in [
            format!("zookeeper.connect={store}/attacked"),
            format!("zookeeper.session.timeout.ms={}", SESSION_TIMEOUT.as_millis()),
            // A broker may start while ZooKeeper does.
            format!("zookeeper.connection.timeout.ms={}", STORE_LIMIT.as_millis()),
            format!("replica.lag.time.max.ms={LAG_TIME_MAX_MS}"),
            format!("log.segment.bytes={SEGMENT_BYTES}"),
            "log.retention.ms=-1".to_owned(),
            "auto.create.topics.enable=false".to_owned(),
            // Few, and on all brokers: each kill is one of a coordinator.
            "offsets.topic.num.partitions=3".to_owned(),
            "transaction.state.log.num.partitions=3".to_owned(),
            "min.insync.replicas=2".to_owned(),
            // So often that leaderships move while there is load.
            "leader.imbalance.check.interval.seconds=10".to_owned(),
        ] {
            command.args(["--set", &setting]);
        }
        self.spawn(member, command)
    }

    /// Starts the ZooKeeper server on its data and waits until it answers.
    pub(super) async fn start_store(&mut self) -> anyhow::Result<()> {
        let address = self.network.address(Member::Store)?;
        let directory = self.directory.join("zookeeper");
        fs::create_dir_all(directory.join("data")).context("cannot make ZooKeeper's directory")?;
        // Two ticks are the least time-out of a session.
        let config = format!(
            "tickTime=100\nminSessionTimeout=300\nmaxSessionTimeout=10000\nadmin.enableServer=false\n\
             4lw.commands.whitelist=srvr\nclientPortAddress={}\nclientPort={}\ndataDir={}\n",
            address.ip(),
            address.port(),
            directory.join("data").display()
        );
        let file = directory.join("zoo.cfg");
        fs::write(&file, config).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = self.network.command(Member::Store, Path::new("java"));
        command
            .args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", ZOOKEEPER_JAR])
            .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
            .arg(file);
        self.spawn(Member::Store, command)?;
        let started = Instant::now();
        while started.elapsed() < STORE_LIMIT {
            if let Some(status) = self.ended(Member::Store)? {
                bail!("ZooKeeper ended ({status}); it said:\n{}", self.last_words(Member::Store));
            }
            if answers(&address.to_string()).await.unwrap_or(false) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("ZooKeeper does not answer within {} s; see {}", STORE_LIMIT.as_secs(), self.log(Member::Store).display())
    }

    /// kill -9.
    pub(super) fn kill(&mut self, member: Member) -> anyhow::Result<()> {
        self.process(member)?.kill()
    }

    /// SIGSTOP: it sleeps, and knows nothing of it.
    pub(super) fn pause(&mut self, member: Member) -> anyhow::Result<()> {
        let process = self.process(member)?;
        process.signal(Signal::STOP)?;
        process.paused = true;
        Ok(())
    }

    /// SIGCONT.
    pub(super) fn resume(&mut self, member: Member) -> anyhow::Result<()> {
        let process = self.process(member)?;
        process.signal(Signal::CONT)?;
        process.paused = false;
        Ok(())
    }

    /// SIGTERM; waits until it has ended.
    pub(super) async fn stop(&mut self, member: Member) -> anyhow::Result<ExitStatus> {
        self.process(member)?.signal(Signal::TERM)?;
        let asked = Instant::now();
        while asked.elapsed() < STOP_LIMIT {
            if let Some(status) = self.ended(member)? {
                self.process(member)?.child = None;
                return Ok(status);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("{member} does not stop within {} s; see {}", STOP_LIMIT.as_secs(), self.log(member).display())
    }

    /// Members that ended by themselves, and what they said last. They count as down from now on.
    pub(super) fn fallen(&mut self) -> anyhow::Result<Vec<(Member, String)>> {
        let mut fallen = Vec::new();
        for at in 0..self.members.len() {
            let member = self.members[at].member;
            if let Some(status) = self.ended(member)? {
                self.members[at].child = None;
                fallen.push((member, format!("{status}; it said:\n{}", self.last_words(member))));
            }
        }
        Ok(fallen)
    }

    fn ended(&mut self, member: Member) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.process(member)?.child else { return Ok(None) };
        child.try_wait().with_context(|| format!("cannot ask for {member}"))
    }

    fn process(&mut self, member: Member) -> anyhow::Result<&mut Process> {
        let found = self.members.iter_mut().find(|process| process.member == member);
        found.with_context(|| format!("there is no {member}"))
    }

    fn spawn(&mut self, member: Member, mut command: Command) -> anyhow::Result<()> {
        let path = self.log(member);
        let log = File::options().create(true).append(true).open(&path);
        let log = log.with_context(|| format!("cannot open {}", path.display()))?;
        command.env("RUST_BACKTRACE", "1").stdin(Stdio::null());
        command.stdout(log.try_clone().context("cannot share a file")?).stderr(log);
        // A Ctrl-C is for the attack alone: it ends its processes itself.
        command.process_group(0);
        let process = self.process(member)?;
        ensure!(process.child.is_none(), "{member} runs already");
        let child = command.spawn().with_context(|| {
            format!("cannot start {member} with {} (util-linux)", command.get_program().to_string_lossy())
        })?;
        process.child = Some(child);
        process.paused = false;
        Ok(())
    }

    fn last_words(&self, member: Member) -> String {
        let said = fs::read(self.log(member)).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

impl Process {
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("{} is down", self.member))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("it has no process id")?;
        kill_process(pid, signal).with_context(|| format!("cannot send a signal to {}", self.member))
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill().with_context(|| format!("cannot kill {}", self.member))?;
        child.wait().with_context(|| format!("cannot wait for {}", self.member))?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails if the process has ended already, which is what is wanted.
        let _ = self.kill();
    }
}

/// Whether ZooKeeper serves there.
async fn answers(address: &str) -> std::io::Result<bool> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"srvr").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.contains("Mode: "))
    };
    tokio::time::timeout(Duration::from_secs(5), ask).await.unwrap_or(Ok(false))
}
