//! `highwater bench idle`: what partitions cost in which nothing happens.
//!
//! Some brokers in this process, each of which follows the others; or those of a cluster that runs already, each a process of
//! its own. What a process has used of its processors is what the kernel says of it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::{DeleteTopicsRequest, MetadataResponse};
use serde_json::json;

use super::{Format, configuration, in_directory, processor_seconds_of, said, watch_for_interrupt};
use crate::client::Connection;
use crate::driver::{Contact, create_topic, name};
use crate::{Cluster, ClusterOptions};

const TOPIC: &str = "idle";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long all replicas may take until they are in sync, and how long they settle then.
const PATIENCE: Duration = Duration::from_secs(120);
const SETTLES: Duration = Duration::from_secs(3);

/// From version 6 on DeleteTopics takes ids as well, in another list.
const VERSION_WITH_NAMES: i16 = 5;

/// How often a cluster of other processes is asked meanwhile.
const ASKS_EVERY: Duration = Duration::from_millis(200);

/// What partitions cost in which nothing happens.
#[derive(Debug, Args)]
pub(crate) struct IdleArguments {
    /// Where to write: a directory is made there and removed at the end.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// A broker of a cluster to measure, as HOST:PORT, in place of brokers in this process. The topic `idle` is made there, and
    /// deleted at the end.
    #[arg(long, value_name = "HOST:PORT", requires = "process")]
    bootstrap: Option<String>,
    /// The processes of that cluster's brokers, all that are to have a replica of each partition.
    #[arg(long, value_name = "PID,…", value_delimiter = ',', requires = "bootstrap", conflicts_with_all = ["brokers", "set"])]
    process: Vec<u32>,
    /// Partitions, each with a replica on every broker.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i32).range(1..=100_000))]
    partitions: i32,
    /// Brokers.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    brokers: u8,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Set a configuration key of all brokers. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Measures and prints. Exit code 130 if it was interrupted, with nothing left behind.
pub(crate) fn run(arguments: &IdleArguments) -> anyhow::Result<ExitCode> {
    let stopped = watch_for_interrupt()?;
    let measured = in_directory(&arguments.dir, async |dir| match &arguments.bootstrap {
        Some(address) => measure_at(arguments, address).await,
        None => measure(arguments, dir).await,
    })?;
    if stopped.load(std::sync::atomic::Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    said(print(&mut io::stdout().lock(), arguments, &measured))
}

/// Which part of a core each process uses, and how many brokers are in it.
struct Measured {
    busy: Vec<f64>,
    brokers: u8,
}

/// Measures brokers in this process: between them they do all that goes on here.
async fn measure(arguments: &IdleArguments, dir: &std::path::Path) -> anyhow::Result<Measured> {
    let config = configuration(&arguments.set)?;
    let brokers = usize::from(arguments.brokers);
    let options = ClusterOptions::new(brokers, dir).configure(move |broker| *broker = config.clone());
    let cluster = Cluster::start(options).await.context("cannot start the brokers")?;
    let address = cluster.bootstrap().into_iter().next().context("no broker")?;
    make_topic(&address, arguments, arguments.brokers.into()).await?;
    let since = Instant::now();
    for partition in 0..arguments.partitions {
        let in_sync = || {
            let statuses = cluster.statuses(TOPIC, partition);
            statuses.iter().all(|(_, status)| status.as_ref().is_some_and(|status| status.isr.len() == brokers))
        };
        while !in_sync() {
            ensure!(since.elapsed() < PATIENCE, "partition {partition} has no full in-sync set within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let busy = watch(arguments, &[std::process::id()]).await?;
    cluster.shutdown().await?;
    Ok(Measured { busy, brokers: arguments.brokers })
}

/// Measures the brokers of a cluster that runs already.
async fn measure_at(arguments: &IdleArguments, address: &str) -> anyhow::Result<Measured> {
    let replicas = i16::try_from(arguments.process.len()).context("too many processes")?;
    let contact =
        Contact { brokers: vec![address.to_owned()], client_id: "highwater-bench", patience: REQUEST_TIMEOUT };
    make_topic(address, arguments, replicas).await?;
    let measured = async {
        let since = Instant::now();
        while !in_sync(&contact.metadata(address, TOPIC).await?, arguments) {
            ensure!(since.elapsed() < PATIENCE, "not all replicas are in sync within {PATIENCE:?}");
            tokio::time::sleep(ASKS_EVERY).await;
        }
        watch(arguments, &arguments.process).await
    };
    let measured = measured.await;
    let connection = contact.connect(address).await?;
    let deletion = DeleteTopicsRequest::default().with_topic_names(vec![name(TOPIC)]).with_timeout_ms(60_000);
    connection.send_version(&deletion, connection.version_up_to::<DeleteTopicsRequest>(VERSION_WITH_NAMES)?).await?;
    Ok(Measured { busy: measured?, brokers: 1 })
}

/// Whether each partition has as many replicas in sync as there are processes.
fn in_sync(told: &MetadataResponse, arguments: &IdleArguments) -> bool {
    let partitions = told.topics.first().map_or(&[][..], |topic| &topic.partitions);
    let wanted = usize::try_from(arguments.partitions).unwrap_or(usize::MAX);
    partitions.len() == wanted && partitions.iter().all(|one| one.isr_nodes.len() == arguments.process.len())
}

async fn make_topic(address: &str, arguments: &IdleArguments, replicas: i16) -> anyhow::Result<()> {
    let connection = Connection::connect(address, "highwater-bench", REQUEST_TIMEOUT).await?;
    let topic = CreatableTopic::default()
        .with_name(name(TOPIC))
        .with_num_partitions(arguments.partitions)
        .with_replication_factor(replicas);
    create_topic(&connection, topic, 60_000).await
}

/// Which part of a core each of these processes uses, once all is quiet.
async fn watch(arguments: &IdleArguments, processes: &[u32]) -> anyhow::Result<Vec<f64>> {
    let used = || processes.iter().map(|&process| processor_seconds_of(process)).collect::<anyhow::Result<Vec<f64>>>();
    tokio::time::sleep(SETTLES).await;
    let (before, since) = (used()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(arguments.seconds.into())).await;
    let seconds = since.elapsed().as_secs_f64();
    Ok(used()?.into_iter().zip(before).map(|(now, before)| (now - before) / seconds).collect())
}

fn print(out: &mut impl Write, arguments: &IdleArguments, measured: &Measured) -> io::Result<()> {
    let IdleArguments { partitions, seconds, .. } = arguments;
    let Measured { busy, brokers } = measured;
    let (in_each, all) = (f64::from(*brokers), busy.iter().sum::<f64>());
    let brokers = usize::from(*brokers) * busy.len();
    if arguments.format == Format::Json {
        let result = json!({
            "type": "bench-idle", "partitions": partitions, "brokers": brokers, "seconds": seconds, "cores": all,
            "cores_per_broker": all / brokers.max(1) as f64, "cores_of_processes": busy,
        });
        return writeln!(out, "{result}");
    }
    writeln!(out, "{partitions} partitions on each of {brokers} brokers, nothing happening, for {seconds} s")?;
    for process in busy {
        writeln!(out, "a broker uses {:.2} % of a core", process / in_each * 100.0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use highwater_replication::BrokerId;

    use super::super::used;
    use super::*;

    #[test]
    fn the_kernel_s_line_is_read_behind_the_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 2000 0 0 0 150 25 0 0 20 0 9 0 1000 1 1";
        assert_eq!(used(line), Some(1.75));
        assert_eq!(used("7 (short) S 1"), None);
        let before = processor_seconds_of(std::process::id()).unwrap();
        assert!(processor_seconds_of(std::process::id()).unwrap() >= before);
    }

    #[test]
    fn it_is_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = arguments(dir.path());
        assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    /// A cluster that was started by somebody else is left as it was.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_cluster_that_runs_is_measured_and_keeps_nothing_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(ClusterOptions::new(2, dir.path())).await.unwrap();
        let address = cluster.bootstrap().into_iter().next().unwrap();
        // Both brokers are in this process.
        let arguments = IdleArguments { process: vec![std::process::id(); 2], ..arguments(dir.path()) };
        let measured = measure_at(&arguments, &address).await.unwrap();
        assert_eq!((measured.busy.len(), measured.brokers), (2, 1));
        let mut changes = cluster.broker(BrokerId(1)).unwrap().cluster().changes();
        changes.wait_for(|image| image.topics.is_empty()).await.unwrap();
        cluster.shutdown().await.unwrap();
    }

    fn arguments(dir: &std::path::Path) -> IdleArguments {
        IdleArguments {
            dir: dir.to_owned(),
            bootstrap: None,
            process: Vec::new(),
            partitions: 3,
            brokers: 2,
            seconds: 1,
            set: Vec::new(),
            format: Format::Json,
        }
    }
}
