//! `highwater bench idle`: what partitions cost in which nothing happens.
//!
//! Some brokers in this process, each of which follows the others. What the process has used of its processors is what the
//! kernel says of it: between them the brokers do all that goes on here.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use highwater_broker::client::Connection;
use highwater_broker::{Cluster, ClusterOptions};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use serde_json::json;

use super::{Format, configuration, in_directory, processor_seconds_of, said, watch_for_interrupt};
use crate::driver::{create_topic, name};

const TOPIC: &str = "idle";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long all replicas may take until they are in sync, and how long they settle then.
const PATIENCE: Duration = Duration::from_secs(120);
const SETTLES: Duration = Duration::from_secs(3);

/// What partitions cost in which nothing happens.
#[derive(Debug, Args)]
pub(crate) struct IdleArguments {
    /// Where to write: a directory is made there and removed at the end.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
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
    let busy = in_directory(&arguments.dir, async |dir| measure(arguments, dir).await)?;
    if stopped.load(std::sync::atomic::Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    said(print(&mut io::stdout().lock(), arguments, busy))
}

/// Which part of a core the brokers use, together.
async fn measure(arguments: &IdleArguments, dir: &std::path::Path) -> anyhow::Result<f64> {
    let config = configuration(&arguments.set)?;
    let brokers = usize::from(arguments.brokers);
    let options = ClusterOptions::new(brokers, dir).configure(move |broker| *broker = config.clone());
    let cluster = Cluster::start(options).await.context("cannot start the brokers")?;
    make_topic(&cluster, arguments).await?;
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
    tokio::time::sleep(SETTLES).await;
    let (before, since) = (processor_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(arguments.seconds.into())).await;
    let busy = (processor_seconds()? - before) / since.elapsed().as_secs_f64();
    cluster.shutdown().await?;
    Ok(busy)
}

async fn make_topic(cluster: &Cluster, arguments: &IdleArguments) -> anyhow::Result<()> {
    let address = cluster.bootstrap().into_iter().next().context("no broker")?;
    let connection = Connection::connect(&address, "highwater-bench", REQUEST_TIMEOUT).await?;
    let topic = CreatableTopic::default()
        .with_name(name(TOPIC))
        .with_num_partitions(arguments.partitions)
        .with_replication_factor(arguments.brokers.into());
    create_topic(&connection, topic, 60_000).await
}

/// What this process has used of its processors so far.
fn processor_seconds() -> anyhow::Result<f64> {
    processor_seconds_of(std::process::id())
}

fn print(out: &mut impl Write, arguments: &IdleArguments, busy: f64) -> io::Result<()> {
    let IdleArguments { partitions, brokers, seconds, .. } = arguments;
    let each = busy / f64::from(*brokers);
    if arguments.format == Format::Json {
        let result = json!({
            "type": "bench-idle", "partitions": partitions, "brokers": brokers, "seconds": seconds, "cores": busy,
            "cores_per_broker": each,
        });
        return writeln!(out, "{result}");
    }
    writeln!(out, "{partitions} partitions on each of {brokers} brokers, nothing happening, for {seconds} s")?;
    writeln!(out, "a broker uses {:.2} % of a core", each * 100.0)
}

#[cfg(test)]
mod tests {
    use super::super::used;
    use super::*;

    #[test]
    fn the_kernel_s_line_is_read_behind_the_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 2000 0 0 0 150 25 0 0 20 0 9 0 1000 1 1";
        assert_eq!(used(line), Some(1.75));
        assert_eq!(used("7 (short) S 1"), None);
        let before = processor_seconds().unwrap();
        assert!(processor_seconds().unwrap() >= before);
    }

    #[test]
    fn it_is_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = IdleArguments {
            dir: dir.path().to_owned(),
            partitions: 3,
            brokers: 2,
            seconds: 1,
            set: Vec::new(),
            format: Format::Json,
        };
        assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
