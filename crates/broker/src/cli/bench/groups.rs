//! `highwater bench groups`: how long groups take to rebalance, and how many commits a broker takes.
//!
//! Members as clients have them: a connection each, JoinGroup, SyncGroup, heartbeats, and JoinGroup again when one of these
//! says so. The broker is one in this process, or any that speaks the protocol.

mod member;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use member::{Load, Phase};
use serde_json::json;
use tokio::task::JoinSet;

use super::{Format, configuration, in_directory, processor_seconds_of, said, watch_for_interrupt};
use crate::client::Connection;
use crate::driver::{create_topic, name};
use crate::{Cluster, ClusterOptions};

const TOPIC: &str = "bench-groups";

/// How long a rebalance of all groups may take until the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(120);

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How long groups take to rebalance, and how many commits a broker takes.
#[derive(Debug, Args)]
pub(crate) struct GroupsArguments {
    /// Where the broker of its own writes: a directory is made there and removed at the end.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// A broker to measure, as HOST:PORT, in place of one of its own. The topic `bench-groups` is made there if it is not.
    #[arg(long, value_name = "HOST:PORT")]
    bootstrap: Option<String>,
    /// The process of that broker: what it uses of its processors is told.
    #[arg(long, value_name = "PID", requires = "bootstrap")]
    process: Option<u32>,
    /// Groups.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    groups: u16,
    /// Members of each group.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    members: u16,
    /// Partitions of each group; all groups have their own, of one topic.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    partitions: u16,
    /// Milliseconds between a member's heartbeats, by which it hears of a rebalance. Clients have 3000.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    heartbeat_ms: u32,
    /// Seconds for which all members commit, one commit after another.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Set a configuration key of the broker of its own. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// From nobody being there to each group having all of its members.
    formed: Cost,
    /// From one member of each group joining anew to each group being stable again.
    rebalanced: Cost,
    commits: u64,
    committing: Cost,
    commit_p50_ms: f64,
    commit_p99_ms: f64,
}

/// How long something took, and what was used of the processors meanwhile.
#[derive(Clone, Copy, Debug)]
struct Cost {
    seconds: f64,
    /// By the broker's process, if that is known.
    broker_seconds: Option<f64>,
    /// By this process: by the members, and by the broker if it has one of its own.
    here_seconds: f64,
}

/// Measures and prints. Exit code 130 if it was interrupted, with nothing left behind.
pub(crate) fn run(arguments: &GroupsArguments) -> anyhow::Result<ExitCode> {
    let stopped = watch_for_interrupt()?;
    let measured = in_directory(&arguments.dir, async |dir| measure(arguments, dir).await)?;
    if stopped.load(Ordering::Relaxed) {
        return Ok(ExitCode::from(130));
    }
    said(print(&mut io::stdout().lock(), arguments, measured))
}

async fn measure(arguments: &GroupsArguments, dir: &Path) -> anyhow::Result<Measured> {
    if let Some(address) = &arguments.bootstrap {
        return measure_at(arguments, address).await;
    }
    let mut set = vec!["group.initial.rebalance.delay.ms=0".to_owned()];
    set.extend_from_slice(&arguments.set);
    let config = configuration(&set)?;
    let options = ClusterOptions::new(1, dir).configure(move |broker| *broker = config.clone());
    let cluster = Cluster::start(options).await.context("cannot start a broker")?;
    let address = cluster.bootstrap().into_iter().next().context("no broker")?;
    let measured = measure_at(arguments, &address).await;
    cluster.shutdown().await?;
    measured
}

async fn measure_at(arguments: &GroupsArguments, address: &str) -> anyhow::Result<Measured> {
    let connection = Connection::connect(address, "highwater-bench", REQUEST_TIMEOUT).await?;
    let partitions = i32::from(arguments.groups) * i32::from(arguments.partitions);
    let topic =
        CreatableTopic::default().with_name(name(TOPIC)).with_num_partitions(partitions).with_replication_factor(1);
    if let Err(error) = create_topic(&connection, topic, 60_000).await {
        // It may be there from before.
        ensure!(error.to_string().contains("exists"), "{error}");
    }
    let load = Arc::new(Load::new(arguments, address));
    load.wait_for_coordinator(&connection).await?;

    let clock = Clock::start(arguments)?;
    let mut members = JoinSet::new();
    for group in 0..arguments.groups {
        for member in 0..arguments.members {
            members.spawn(member::run(Arc::clone(&load), group, member));
        }
    }
    settled(&load, &mut members, 1).await?;
    let formed = clock.stop()?;

    let clock = Clock::start(arguments)?;
    load.enter(Phase::Rebalance);
    settled(&load, &mut members, 2).await?;
    let rebalanced = clock.stop()?;

    let clock = Clock::start(arguments)?;
    load.enter(Phase::Commit);
    tokio::time::sleep(Duration::from_secs(arguments.seconds.into())).await;
    load.enter(Phase::End);
    let committing = clock.stop()?;
    let (mut times, mut commits) = (Vec::new(), 0);
    while let Some(ended) = members.join_next().await {
        let of = ended.context("a member panicked")??;
        commits += of.len() as u64;
        times.extend(of);
    }
    load.check(&connection).await?;
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).map_or(0.0, |&us| f64::from(us) / 1000.0);
    Ok(Measured { formed, rebalanced, commits, committing, commit_p50_ms: at(0.5), commit_p99_ms: at(0.99) })
}

/// Waits until each group is stable with all of its members, for so many times in all.
async fn settled(load: &Load, members: &mut JoinSet<anyhow::Result<Vec<u32>>>, times: usize) -> anyhow::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !load.settled(times) {
        ensure!(Instant::now() < until, "not all groups are stable within {PATIENCE:?}: {}", load.missing(times));
        if let Some(ended) = members.try_join_next() {
            ended.context("a member panicked")??;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// Measures a stretch of time.
struct Clock {
    since: Instant,
    broker: Option<u32>,
    broker_before: Option<f64>,
    here_before: f64,
}

impl Clock {
    fn start(arguments: &GroupsArguments) -> anyhow::Result<Self> {
        let broker = arguments.process;
        let broker_before = broker.map(processor_seconds_of).transpose()?;
        let here_before = processor_seconds_of(std::process::id())?;
        Ok(Self { since: Instant::now(), broker, broker_before, here_before })
    }

    fn stop(self) -> anyhow::Result<Cost> {
        let seconds = self.since.elapsed().as_secs_f64();
        let broker = self.broker.map(processor_seconds_of).transpose()?;
        let broker_seconds = broker.zip(self.broker_before).map(|(now, before)| now - before);
        Ok(Cost { seconds, broker_seconds, here_seconds: processor_seconds_of(std::process::id())? - self.here_before })
    }
}

/// Microseconds of processor for each of so many.
fn each_us(seconds: f64, count: u64) -> f64 {
    seconds * 1e6 / count.max(1) as f64
}

fn print(out: &mut impl Write, arguments: &GroupsArguments, measured: Measured) -> io::Result<()> {
    let Measured { formed, rebalanced, commits, committing, commit_p50_ms, commit_p99_ms } = measured;
    let per_second = commits as f64 / committing.seconds;
    if arguments.format == Format::Json {
        let cost = |cost: Cost| {
            json!({
                "seconds": cost.seconds, "broker_processor_seconds": cost.broker_seconds,
                "own_processor_seconds": cost.here_seconds,
            })
        };
        let result = json!({
            "type": "bench-groups", "groups": arguments.groups, "members": arguments.members,
            "partitions": arguments.partitions, "heartbeat_ms": arguments.heartbeat_ms, "formed": cost(formed),
            "rebalanced": cost(rebalanced), "commits": commits, "committing": cost(committing),
            "commits_per_second": per_second, "commit_p50_ms": commit_p50_ms, "commit_p99_ms": commit_p99_ms,
        });
        return writeln!(out, "{result}");
    }
    let used = |cost: Cost| match cost.broker_seconds {
        Some(broker) => format!("processor: the broker {broker:.2} s, the members {:.2} s", cost.here_seconds),
        None if arguments.bootstrap.is_some() => format!("processor: the members {:.2} s", cost.here_seconds),
        None => format!("processor: broker and members {:.2} s", cost.here_seconds),
    };
    let GroupsArguments { groups, members, partitions, .. } = arguments;
    writeln!(out, "{groups} groups of {members} members and {partitions} partitions each")?;
    writeln!(out, "all have joined and are stable after {:.2} s; {}", formed.seconds, used(formed))?;
    writeln!(out, "a rebalance of all takes {:.2} s; {}", rebalanced.seconds, used(rebalanced))?;
    writeln!(
        out,
        "{per_second:.0} commits/s, p50 {commit_p50_ms:.1} ms, p99 {commit_p99_ms:.1} ms; {}",
        used(committing)
    )?;
    let here_us = each_us(committing.here_seconds, commits);
    match committing.broker_seconds.map(|seconds| each_us(seconds, commits)) {
        Some(broker_us) => {
            writeln!(out, "a commit takes {broker_us:.1} us of processor at the broker, {here_us:.1} us here")
        }
        None => writeln!(out, "a commit takes {here_us:.1} us of processor here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_form_rebalance_and_commit_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let arguments = GroupsArguments {
            dir: dir.path().to_owned(),
            bootstrap: None,
            process: None,
            groups: 2,
            members: 3,
            partitions: 4,
            heartbeat_ms: 20,
            seconds: 1,
            set: vec!["offsets.topic.num.partitions=2".to_owned()],
            format: Format::Json,
        };
        assert_eq!(run(&arguments).unwrap(), ExitCode::SUCCESS);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
