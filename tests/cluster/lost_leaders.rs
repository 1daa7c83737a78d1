//! How long nobody leads: leaders killed and stopped in order, twenty times each, between processes and within one. What is
//! measured is the time between two acknowledgements that a producer of single records sees, who tries again at once.
//!
//! ```sh
//! cargo test -p highwater-tests --test cluster -- --ignored --nocapture --test-threads 1 twenty
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::BrokerId;
use tokio::runtime::Runtime;

use crate::clients::{Acks, Partition, create_topic};
use crate::coordinated::{attempt, first_since};
use crate::process::{LIMIT, Processes, SESSION};

const ROUNDS: usize = 20;

/// Partitions beside the one that is measured, so that brokers have idle fetches out at each other, as they do in any cluster.
const IDLE_PARTITIONS: i32 = 12;

/// How long the embedded store waits for a sign of life.
const EMBEDDED_SESSION: Duration = Duration::from_millis(700);

/// How a leader ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Killed,
    Stopped,
}

/// What is to be done to the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    EndLeader(End),
    Restore,
}

/// The longest time between two acknowledgements, from the last one before `then` on.
fn longest_since(acked: &Mutex<Vec<Instant>>, then: Instant) -> Duration {
    let acked = acked.lock().unwrap_or_else(PoisonError::into_inner);
    let since = acked.partition_point(|at| *at < then).saturating_sub(1);
    acked[since..].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

/// Ends leaders under load, and prints for how long records were not acknowledged. Whatever was acknowledged must be there.
pub(crate) fn measure(
    what: &str,
    partition: &Partition,
    (end, rounds): (End, usize),
    mut turn: impl FnMut(Turn) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (stop, acked) = (AtomicBool::new(false), Mutex::default());
    let waits = thread::scope(|scope| {
        scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
        let waits = attempt(|| {
            let mut waits = Vec::new();
            for _ in 0..rounds {
                turn(Turn::Restore)?;
                first_since(&acked, Instant::now())?;
                let then = Instant::now();
                turn(Turn::EndLeader(end))?;
                first_since(&acked, Instant::now())?;
                waits.push(longest_since(&acked, then));
            }
            turn(Turn::Restore)?;
            Ok(waits)
        });
        stop.store(true, Ordering::Relaxed);
        waits
    });
    let mut waits = waits?;
    waits.sort();
    println!("{what}, {end:?} leaders, ms: {:?}", waits.iter().map(Duration::as_millis).collect::<Vec<_>>());
    let median = waits.get(waits.len() / 2).copied().unwrap_or_default();
    let worst = waits.last().copied().unwrap_or_default();
    println!(
        "{what}, {end:?} {rounds} times: without a leader for {} ms in the median, {} ms at worst",
        median.as_millis(),
        worst.as_millis()
    );
    let read = partition.read_and_check(if end == End::Killed { 2 } else { 3 })?;
    println!("{} records acknowledged, {read} read, none lost, doubled or reordered", partition.acknowledged());
    Ok(())
}

/// Between processes.
pub(crate) fn over_zookeeper(ends: &[End], rounds: usize) -> anyhow::Result<()> {
    let settings = &[("min.insync.replicas", "2"), ("replica.lag.time.max.ms", "3000")];
    let mut cluster = Processes::start(3, settings)?;
    create_topic(cluster.addresses()[0], "idle", IDLE_PARTITIONS, 3)?;
    let partition = Partition::create("measured", 3, cluster.addresses())?;
    let what = format!("over ZooKeeper (session {SESSION:?})");
    let mut down = None;
    for end in ends {
        measure(&what, &partition, (*end, rounds), |turn| match turn {
            Turn::EndLeader(end) => {
                let led = cluster.leader_of_all("measured")?;
                down = Some(led);
                let broker = cluster.broker(led)?;
                match end {
                    End::Killed => broker.kill(),
                    End::Stopped => broker.stop().map(|_| ()),
                }
            }
            Turn::Restore => {
                if let Some(down) = down.take() {
                    cluster.broker(down)?.start_again()?;
                }
                cluster.leader_of_all("measured").map(|_| ())
            }
        })?;
    }
    Ok(())
}

/// Who leads the partition, once all three are in sync.
fn leader_of_all(cluster: &Cluster) -> anyhow::Result<BrokerId> {
    let asked = Instant::now();
    loop {
        let image = cluster.running().next().context("none runs")?.image();
        let state =
            image.topic("measured").and_then(|topic| topic.partition(0)).map(|partition| &partition.state.value);
        match state.and_then(|state| state.leader.filter(|_| state.isr.len() == 3)) {
            Some(leader) => return Ok(leader),
            None if asked.elapsed() > LIMIT => bail!("after {LIMIT:?} the state is {state:?}"),
            None => thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Within one process.
pub(crate) fn embedded(ends: &[End], rounds: usize) -> anyhow::Result<()> {
    let (runtime, directory) = (Runtime::new()?, tempfile::tempdir()?);
    let options = ClusterOptions::new(3, directory.path()).configure(|config| {
        config.session_timeout_ms = u64::try_from(EMBEDDED_SESSION.as_millis()).unwrap_or(u64::MAX);
        config.heartbeat_interval_ms = config.session_timeout_ms / 4;
        config.topic.min_insync_replicas = 2;
    });
    let mut cluster = runtime.block_on(Cluster::start(options))?;
    let addresses = cluster.ids().into_iter().filter_map(|id| cluster.address(id)).collect::<Vec<_>>();
    create_topic(addresses[0], "idle", IDLE_PARTITIONS, 3)?;
    let partition = Partition::create("measured", 3, addresses)?;
    let what = format!("embedded (session {EMBEDDED_SESSION:?})");
    let mut down = None;
    for end in ends {
        measure(&what, &partition, (*end, rounds), |turn| match turn {
            Turn::EndLeader(end) => {
                let led = leader_of_all(&cluster)?;
                down = Some(led);
                match end {
                    End::Killed => _ = runtime.block_on(cluster.kill(led)),
                    End::Stopped => runtime.block_on(cluster.stop(led))?,
                }
                Ok(())
            }
            Turn::Restore => {
                if let Some(down) = down.take() {
                    runtime.block_on(cluster.restart(down))?;
                }
                leader_of_all(&cluster).map(|_| ())
            }
        })?;
    }
    runtime.block_on(cluster.shutdown())?;
    Ok(())
}

#[test]
#[ignore = "measures for minutes: benches/README.md"]
fn twenty_leaders_over_zookeeper() {
    over_zookeeper(&[End::Stopped, End::Killed], ROUNDS).unwrap();
}

#[test]
#[ignore = "measures for a minute: benches/README.md"]
fn twenty_leaders_in_one_process() {
    embedded(&[End::Stopped, End::Killed], ROUNDS).unwrap();
}
