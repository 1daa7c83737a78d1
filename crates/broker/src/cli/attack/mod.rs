//! `highwater attack`: a cluster of its own, real clients, faults, and a verdict.

mod cluster;
mod disk;
mod faults;
mod load;
mod network;
mod pipeline;
mod status;
mod verdict;
mod view;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::driver::random::Random;
use crate::driver::replicas::compare_logs;
use crate::driver::{Contact, Topic};
use cluster::{BROKERS, Cluster, Member};
use disk::Disks;
use faults::{Kind, Plan};
use load::Load;
use network::Network;
use pipeline::{COPY, Copier};
use status::Status;
use verdict::Verdict;
use view::View;

/// Attack a cluster of three brokers and a ZooKeeper server, started for it, and check what its clients saw.
///
/// It needs Debian's package `zookeeper`. The exit code is 0 if every promise was kept.
#[derive(Debug, Args)]
pub(crate) struct AttackArguments {
    /// How long faults go on.
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = minutes)]
    minutes: f64,
    /// Which kinds of faults.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "kill,pause,store,directory,rolling")]
    faults: Vec<Kind>,
    /// What faults and load are drawn from [default: a new one, which is printed].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Records a second, of all producers. What clients saw is kept in memory: some 200 bytes a record.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Partitions of the topic.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(i32).range(1..=100))]
    partitions: i32,
    /// Keep all files here; without it they are kept only if promises were broken.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Write the figures to a file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The longest attack: a day.
const MINUTES_MAX: f64 = 1_440.0;

const CLIENT_ID: &str = "highwater-attack";

/// How long clients wait for an answer before they look for another leader.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the view is refreshed and the processes are looked at.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long it may take until all replicas are in sync, once nothing is in their way.
const SETTLE_LIMIT: Duration = Duration::from_secs(90);

/// A running attack.
struct Attack {
    cluster: Cluster,
    topic: Topic,
    status: watch::Receiver<Status>,
    asking: JoinHandle<()>,
    load: Load,
    copier: Copier,
    view: View,
    started: Instant,
    /// For each kill of a leader: what it led, and the number of the board's clock.
    kills: Vec<Vec<(usize, usize)>>,
    problems: Vec<String>,
}

/// Attacks; the exit code is the verdict.
pub(crate) fn run(arguments: &AttackArguments) -> anyhow::Result<ExitCode> {
    if arguments.faults.iter().any(|kind| kind.needs_hosts()) {
        // Before anything else: this program is started anew there.
        highwater_testbed::enter().context("the faults `cut` and `disk` are not to be had here")?;
    }
    let temporary = tempfile::Builder::new().prefix("highwater-attack-").tempdir();
    let temporary = temporary.context("cannot make a temporary folder")?;
    let directory = arguments.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    if let Some(kept) = &arguments.dir {
        std::fs::create_dir_all(kept).with_context(|| format!("cannot make --dir {}", kept.display()))?;
        let used = std::fs::read_dir(kept).with_context(|| format!("cannot read --dir {}", kept.display()))?.next();
        ensure!(used.is_none(), "--dir {}: not empty, name a new folder", kept.display());
    }
    let seed = arguments.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ micros_now());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the network threads")?;
    // The attack runs on this very thread, and its processes are started by it: the system ends them together with the thread
    // that started them.
    let attacked = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        tokio::select! {
            verdict = attack(arguments, &directory, seed) => verdict,
            _ = terminate.recv() => bail!("stopped by SIGTERM, without a verdict"),
            _ = interrupt.recv() => bail!("stopped by SIGINT, without a verdict"),
        }
    });
    let good = attacked.as_ref().is_ok_and(Verdict::is_good);
    let is_temporary = arguments.dir.is_none();
    if is_temporary && !good {
        let kept = temporary.keep();
        eprintln!("the files are kept in {}", kept.display());
    }
    let verdict = attacked.with_context(|| format!("the attack with seed {seed} ended early"))?;
    print!("\n{}", verdict.table());
    if let Some(file) = &arguments.json {
        let text = serde_json::to_string_pretty(&verdict.json()).context("cannot write the figures")?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write --json {}", file.display()))?;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn attack(arguments: &AttackArguments, directory: &Path, seed: u64) -> anyhow::Result<Verdict> {
    let mut random = Random::new(seed);
    let lasts = Duration::from_secs_f64(arguments.minutes * 60.0);
    let topic = Topic { name: "attacked", partitions: arguments.partitions, replicas: 3, min_insync_replicas: 2 };
    let mut attack = Attack::begin(arguments, directory, topic, seed, &mut random).await?;
    let mut plan = Plan::new(random.fork(), &arguments.faults, attack.load.boards.len());
    let mut faults: BTreeMap<Kind, u64> = BTreeMap::new();
    attack.started = Instant::now();
    while attack.started.elapsed() < lasts {
        let Some(planned) = plan.next() else { break };
        *faults.entry(planned.kind).or_default() += 1;
        attack.commit(planned.fault).await?;
        if planned.settle {
            attack.settle().await?;
        }
        attack.pass(Duration::from_millis(planned.rest_ms)).await?;
    }
    let lasted = attack.started.elapsed();
    attack.say("no more faults");
    attack.settle().await?;
    attack.end(directory, Verdict { seed, lasted, faults, ..Verdict::default() }).await
}

impl Attack {
    /// Starts the cluster and the load, and waits until all replicas are in sync.
    async fn begin(
        arguments: &AttackArguments,
        directory: &Path,
        topic: Topic,
        seed: u64,
        random: &mut Random,
    ) -> anyhow::Result<Self> {
        let log = directory.join("attack.log");
        let log = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to a day")]
        let view = View::new((arguments.minutes * 60.0) as u64, log);
        view.event(&format!("seed {seed}, files in {}", directory.display()));
        let kinds = &arguments.faults;
        let apart = kinds.iter().any(|kind| kind.needs_hosts());
        let network = if apart { Network::hosts()? } else { Network::loopback()? };
        // The load begins before the faults and ends after them.
        let records = f64::from(arguments.rate) * (arguments.minutes + 2.0) * 60.0;
        let disks =
            if kinds.contains(&Kind::Disk) { Disks::start(directory, records)? } else { Disks::none(directory) };
        let cluster = Cluster::start(directory, network, disks).await?;
        let brokers = cluster.addresses()?;
        view.event(&format!("ZooKeeper and brokers on {}", brokers.join(", ")));
        let contact = Contact { brokers, client_id: CLIENT_ID, patience: PATIENCE };
        create(&contact, topic).await?;
        create(&contact, Topic { name: COPY, ..topic }).await?;
        view.event(&format!(
            "topic {}: {} partitions, {} replicas, min.insync.replicas {}; {} records a second, acks=all",
            topic.name, topic.partitions, topic.replicas, topic.min_insync_replicas, arguments.rate
        ));
        let (status, asking) = status::watch(contact.clone(), topic);
        let load = Load::start(&contact, topic, arguments.rate, random);
        let copier = Copier::start(&contact, topic, random.fork());
        let started = Instant::now();
        let (kills, problems) = (Vec::new(), Vec::new());
        let mut attack = Self { cluster, topic, status, asking, load, copier, view, started, kills, problems };
        attack.settle().await?;
        Ok(attack)
    }

    fn say(&self, text: &str) {
        self.view.event(text);
    }

    fn problem(&mut self, text: String) {
        self.say(&text);
        self.problems.push(text);
    }

    /// Lets time pass, watching.
    async fn pass(&mut self, time: Duration) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            self.look()?;
            let left = time.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(INTERVAL)).await;
        }
    }

    /// Waits until all replicas are in sync, by answers to questions that were asked after this began.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            let full = {
                let status = self.status.borrow();
                status.full && status.asked > since
            };
            if full {
                return Ok(());
            }
            let standing = self.status.borrow().partitions.clone();
            ensure!(
                since.elapsed() < SETTLE_LIMIT,
                "after {} s without a fault not all replicas are in sync: {standing:?}",
                SETTLE_LIMIT.as_secs()
            );
            self.look()?;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Refreshes the view; who ended without being told to is a problem, and started again.
    fn look(&mut self) -> anyhow::Result<()> {
        let status = self.status.borrow().clone();
        self.view.update(&self.cluster, &status, self.load.acknowledged(), self.started.elapsed().as_secs());
        for (member, why) in self.cluster.fallen()? {
            self.problem(format!("{member} ended by itself: {why}"));
            match member {
                Member::Broker(broker) => self.cluster.start_broker(broker)?,
                Member::Store => bail!("ZooKeeper ended by itself"),
            }
        }
        Ok(())
    }

    /// Ends the load, reads everything back, stops the brokers and compares their files.
    async fn end(mut self, directory: &Path, mut verdict: Verdict) -> anyhow::Result<Verdict> {
        self.say("all replicas are in sync; reading everything back");
        let ends = match self.load.end().await {
            Ok(ends) => Some(ends),
            Err(error) => {
                self.problem(format!("{error:#}"));
                None
            }
        };
        match self.copier.end().await {
            Ok(copied) => verdict.copied = copied,
            Err(error) => verdict.problems.push(format!("{error:#}")),
        }
        self.asking.abort();
        for broker in BROKERS {
            let stopped = self.cluster.stop(Member::Broker(broker)).await?;
            if !stopped.success() {
                self.problem(format!("broker {broker} did not stop in order: {stopped}"));
            }
        }
        for (partition, board) in self.load.boards.iter().enumerate() {
            let end = ends.as_ref().and_then(|ends| ends.get(partition)).copied();
            verdict.take(board, end);
            let Some(end) = end else { continue };
            let directory_of = |broker| self.cluster.data_dir(broker).join(format!("{}-{partition}", self.topic.name));
            let logs = BROKERS.map(|broker| (format!("broker {broker}"), directory_of(broker)));
            if let Err(error) = compare_logs(&logs, end) {
                verdict.problems.push(format!("partition {partition}: {error:#}"));
            }
        }
        verdict.problems.append(&mut self.problems);
        for kill in &self.kills {
            let waited: Option<Vec<Duration>> =
                kill.iter().map(|&(partition, wait)| self.load.boards[partition].waited(wait)).collect();
            verdict.kills.extend(waited.unwrap_or_default().into_iter().max());
        }
        if !verdict.is_good() {
            for board in &self.load.boards {
                let file = directory.join(format!("history-{}.txt", board.partition));
                verdict::write_history(&board.seen().history, &file)?;
            }
        }
        self.view.finish();
        Ok(verdict)
    }
}

/// Makes the topic, as soon as the brokers can.
async fn create(contact: &Contact, topic: Topic) -> anyhow::Result<()> {
    let asked = Instant::now();
    loop {
        let brokers = contact.metadata(&contact.brokers[0], topic.name).await.map_or(0, |found| found.brokers.len());
        let made = if brokers == BROKERS.len() { contact.create_topic(topic).await } else { Err(anyhow::anyhow!("")) };
        match made {
            Ok(()) => return Ok(()),
            Err(error) if asked.elapsed() > SETTLE_LIMIT => {
                return Err(error.context(format!("{brokers} brokers are there after {} s", SETTLE_LIMIT.as_secs())));
            }
            Err(_) => tokio::time::sleep(INTERVAL).await,
        }
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if minutes > 0.0 && minutes <= MINUTES_MAX { Ok(minutes) } else { Err(format!("from 0 to {MINUTES_MAX}")) }
}

fn micros_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(0)
}
