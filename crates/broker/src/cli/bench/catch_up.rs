//! `highwater bench catch-up`: how fast a follower that was away catches up, beside a bare copy of the same files.
//!
//! Two brokers in this process, over real sockets and real directories. Broker 1 leads all partitions and broker 2 is away
//! while they are filled. Then, turn by turn: the leader's segment files are copied over a loopback connection by two
//! threads that do nothing else; and broker 2 is started with an empty directory, until it is in sync everywhere.
//! At last broker 2 does so once more while a producer writes on. Nothing is synced on purpose on either side.

mod producer;
mod raw;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use highwater_replication::BrokerId;
use kafka_protocol::messages;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use producer::Producer;
use serde_json::json;

use super::{Format, amount, batch_of, configuration, in_directory, median, said, watch_for_interrupt};
use crate::client::Connection;
use crate::config::BrokerConfig;
use crate::driver::{create_topic, name};
use crate::{Cluster, ClusterOptions};

const TOPIC: &str = "catch-up";

const LEADER: BrokerId = BrokerId(1);

const FOLLOWER: BrokerId = BrokerId(2);

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a follower may take, and each other step.
const PATIENCE: Duration = Duration::from_secs(300);

/// How often it is looked whether the follower is in sync.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The producer sends so many batches to each partition before it waits for an answer.
const BATCHES_IN_FLIGHT: usize = 5;

/// How fast a follower that was away catches up, beside a bare copy of the same files.
#[derive(Debug, Args)]
pub(crate) struct CatchUpArguments {
    /// Where to write: a directory is made there and removed at the end. It takes up to six times `--mib`.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Mebibytes that the follower lacks, in all partitions together.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    mib: u32,
    /// Partitions that they lie in.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    partitions: u16,
    /// Bytes of each record's value.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 19))]
    record_bytes: u32,
    /// Records in each batch.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    batch: u32,
    /// How often the copy and the follower take their turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Mebibytes a second that the producer at the end sends at most; without it as much as it can, and with 0 there is none.
    /// It ends after twice `--mib`, whether the follower is in sync by then or not.
    #[arg(long)]
    producer_mib: Option<u32>,
    /// Set a configuration key of both brokers. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// One turn of each.
#[derive(Clone, Copy, Debug)]
struct Round {
    copy_bytes_per_second: f64,
    follower_bytes_per_second: f64,
}

/// The follower beside a producer.
#[derive(Clone, Copy, Debug)]
struct Beside {
    alone_bytes_per_second: f64,
    meanwhile_bytes_per_second: f64,
    follower_bytes_per_second: f64,
    seconds: f64,
    /// The producer wrote on all the time until the follower was in sync.
    while_writing: bool,
}

/// Measures and prints. Exit code 130 if it was interrupted, with nothing left behind.
pub(crate) fn run(arguments: &CatchUpArguments) -> anyhow::Result<ExitCode> {
    let stopped = watch_for_interrupt()?;
    let config = configuration(&arguments.set)?;
    let measured = in_directory(&arguments.dir, async |dir| measure(arguments, config, dir, &stopped).await)?;
    let Some((rounds, beside)) = measured else { return Ok(ExitCode::from(130)) };
    said(print(&mut io::stdout().lock(), arguments, &rounds, beside))
}

async fn measure(
    arguments: &CatchUpArguments,
    config: BrokerConfig,
    dir: &Path,
    stopped: &AtomicBool,
) -> anyhow::Result<Option<(Vec<Round>, Option<Beside>)>> {
    let mut stage = Stage::set_up(arguments, config, dir).await?;
    stage.send_away().await?;
    let batch = batch_of(arguments.batch, arguments.record_bytes);
    let address = stage.cluster.address(LEADER).context("the leader has no address")?.to_string();
    let producer = |bytes_per_second| Producer {
        address: address.clone(),
        topic: TOPIC,
        partitions: arguments.partitions,
        batch: batch.clone(),
        in_flight: BATCHES_IN_FLIGHT * usize::from(arguments.partitions),
        bytes_per_second,
    };
    producer(None).send_all(u64::from(arguments.mib) << 20).await?;
    let files = stage.leaders_files()?;
    for (file, _) in &files {
        // So that writing them back does not go on during the measurement.
        std::fs::File::open(file)?.sync_all()?;
    }
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let mut rounds = Vec::new();
    // The first one warms up.
    for number in 0..=arguments.rounds {
        if stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        // Each finds as much memory free as the one before has left.
        stage.empty_the_follower()?;
        let copies = dir.join("copies");
        let copied = raw::copy(&files, &copies)?;
        std::fs::remove_dir_all(&copies)?;
        let caught_up = stage.bring_back().await?;
        stage.send_away().await?;
        if number > 0 {
            rounds.push(Round {
                copy_bytes_per_second: bytes as f64 / copied.as_secs_f64(),
                follower_bytes_per_second: bytes as f64 / caught_up.as_secs_f64(),
            });
        }
    }
    let limit = arguments.producer_mib.map(|mib| f64::from(mib) * f64::from(1 << 20));
    if limit == Some(0.0) {
        stage.cluster.shutdown().await?;
        return Ok(Some((rounds, None)));
    }
    stage.empty_the_follower()?;
    // Bounded, or a producer that is faster than the follower would fill the disk. The first quarter warms up, in the second
    // it is alone.
    let budget = 2 * bytes;
    let sending = producer(limit).start(budget)?;
    sending.reached(budget / 4).await;
    let (before, since) = (sending.bytes(), Instant::now());
    sending.reached(budget / 2).await;
    let alone_bytes_per_second = (sending.bytes() - before) as f64 / since.elapsed().as_secs_f64();
    let (before, since) = (sending.bytes(), Instant::now());
    let wrote = async {
        sending.reached(budget).await;
        (sending.bytes() - before) as f64 / since.elapsed().as_secs_f64()
    };
    let mut meanwhile = None;
    let took = {
        let bring_back = stage.bring_back();
        tokio::pin!(bring_back);
        tokio::select! {
            rate = wrote => {
                meanwhile = Some(rate);
                bring_back.await?
            }
            took = &mut bring_back => took?,
        }
    };
    let during = sending.bytes() - before;
    let beside = Beside {
        alone_bytes_per_second,
        meanwhile_bytes_per_second: meanwhile.unwrap_or(during as f64 / took.as_secs_f64()),
        follower_bytes_per_second: (bytes + before + during) as f64 / took.as_secs_f64(),
        seconds: took.as_secs_f64(),
        while_writing: meanwhile.is_none(),
    };
    sending.stop()?;
    stage.cluster.shutdown().await?;
    Ok((!stopped.load(Ordering::Relaxed)).then_some((rounds, Some(beside))))
}

/// The two brokers.
struct Stage {
    cluster: Cluster,
    partitions: u16,
}

impl Stage {
    async fn set_up(arguments: &CatchUpArguments, config: BrokerConfig, dir: &Path) -> anyhow::Result<Self> {
        let options = ClusterOptions::new(2, dir).configure(move |broker| *broker = config.clone());
        let cluster = Cluster::start(options).await.context("cannot start the brokers")?;
        make_topic(&cluster, arguments.partitions).await?;
        let stage = Self { cluster, partitions: arguments.partitions };
        stage.until("in sync", |isr| isr.contains(&FOLLOWER)).await?;
        Ok(stage)
    }

    /// Waits until the in-sync sets of all partitions are so.
    async fn until(&self, what: &str, is_so: impl Fn(&[BrokerId]) -> bool) -> anyhow::Result<()> {
        let since = Instant::now();
        let broker = self.cluster.broker(LEADER).context("the leader is gone")?;
        for partition in 0..i32::from(self.partitions) {
            let of = highwater_storage::TopicPartition::new(TOPIC, partition);
            while !broker.status(&of).is_some_and(|status| is_so(&status.isr)) {
                ensure!(since.elapsed() < PATIENCE, "the follower is not {what} within {PATIENCE:?}");
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    async fn send_away(&mut self) -> anyhow::Result<()> {
        self.cluster.stop(FOLLOWER).await?;
        self.until("away", |isr| isr == [LEADER]).await
    }

    fn empty_the_follower(&self) -> anyhow::Result<()> {
        std::fs::remove_dir_all(self.cluster.data_dir(FOLLOWER)).context("cannot empty the follower's directory")
    }

    /// Starts the follower. How long it takes from there until it is in sync.
    async fn bring_back(&mut self) -> anyhow::Result<Duration> {
        let since = Instant::now();
        self.cluster.restart(FOLLOWER).await?;
        self.until("in sync", |isr| isr.contains(&FOLLOWER)).await?;
        Ok(since.elapsed())
    }

    /// The files that a copy of the leader's logs has to consist of, with their lengths.
    fn leaders_files(&self) -> anyhow::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        for partition in 0..self.partitions {
            let dir = self.cluster.data_dir(LEADER).join(format!("{TOPIC}-{partition}"));
            for entry in std::fs::read_dir(&dir)? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "log") {
                    let bytes = path.metadata()?.len();
                    files.push((path, bytes));
                }
            }
        }
        ensure!(!files.is_empty(), "the leader has no segments");
        files.sort();
        Ok(files)
    }
}

async fn make_topic(cluster: &Cluster, partitions: u16) -> anyhow::Result<()> {
    let address = cluster.address(LEADER).context("no broker")?.to_string();
    let connection = Connection::connect(&address, "highwater-bench", REQUEST_TIMEOUT).await?;
    let replicas = vec![messages::BrokerId(LEADER.0), messages::BrokerId(FOLLOWER.0)];
    let assigned = |partition| {
        CreatableReplicaAssignment::default().with_partition_index(partition).with_broker_ids(replicas.clone())
    };
    let topic = CreatableTopic::default()
        .with_name(name(TOPIC))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments((0..i32::from(partitions)).map(assigned).collect());
    create_topic(&connection, topic, 10_000).await
}

fn print(
    out: &mut impl Write,
    arguments: &CatchUpArguments,
    rounds: &[Round],
    beside: Option<Beside>,
) -> io::Result<()> {
    let copy = median(rounds.iter().map(|round| round.copy_bytes_per_second));
    let follower = median(rounds.iter().map(|round| round.follower_bytes_per_second));
    let ratios = rounds.iter().map(|round| round.follower_bytes_per_second / round.copy_bytes_per_second);
    let ratio = median(ratios.clone());
    let CatchUpArguments { mib, partitions, batch, record_bytes, .. } = arguments;
    if arguments.format == Format::Json {
        let beside = beside.map(|beside| {
            json!({
                "producer_alone_bytes_per_second": beside.alone_bytes_per_second,
                "producer_meanwhile_bytes_per_second": beside.meanwhile_bytes_per_second,
                "producer_ratio": beside.meanwhile_bytes_per_second / beside.alone_bytes_per_second,
                "follower_bytes_per_second": beside.follower_bytes_per_second, "seconds": beside.seconds,
                "in_sync_while_writing": beside.while_writing,
            })
        });
        let result = json!({
            "type": "bench-catch-up", "mib": mib, "partitions": partitions, "record_bytes": record_bytes,
            "batch_records": batch, "copy_bytes_per_second": copy, "follower_bytes_per_second": follower,
            "ratio": ratio, "ratios": ratios.collect::<Vec<_>>(), "beside_a_producer": beside,
        });
        return writeln!(out, "{result}");
    }
    let rounds = rounds.len();
    writeln!(
        out,
        "{mib} MiB in {partitions} partitions, {batch} records of {record_bytes} bytes a batch; medians of {rounds}"
    )?;
    writeln!(out, "bare copy over loopback    {:>12}", amount(copy))?;
    writeln!(out, "follower, until in sync    {:>12}   {ratio:.2} of it", amount(follower))?;
    let Some(beside) = beside else { return Ok(()) };
    let Beside { alone_bytes_per_second: alone, meanwhile_bytes_per_second: meanwhile, .. } = beside;
    writeln!(out, "producer alone             {:>12}", amount(alone))?;
    writeln!(out, "producer meanwhile         {:>12}   {:.2} of it", amount(meanwhile), meanwhile / alone)?;
    let (rate, seconds) = (amount(beside.follower_bytes_per_second), beside.seconds);
    let after = if beside.while_writing { "" } else { ", when the producer had ended" };
    writeln!(out, "follower beside it         {rate:>12}   in sync after {seconds:.2} s{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = CatchUpArguments {
            dir: dir.path().to_owned(),
            mib: 2,
            partitions: 2,
            record_bytes: 100,
            batch: 10,
            rounds: 1,
            producer_mib: Some(1),
            set: vec!["replica.fetch.wait.max.ms=100".to_owned()],
            format: Format::Json,
        };
        assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        let error = configuration(&["no.such.key=1".to_owned()]).unwrap_err();
        assert!(error.to_string().contains("no.such.key"), "{error}");
    }
}
