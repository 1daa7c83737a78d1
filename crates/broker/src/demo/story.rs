//! What happens in the demo, in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_replication::{BrokerId, Role, Status};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::delivery::{Delivered, Progress, produce};
use super::input::Input;
use super::report::Report;
use super::verify::{check_acknowledgements, consume};
use super::view::View;
use super::{CLIENT_ID, DemoArguments, REQUEST_TIMEOUT};
use crate::driver::random::Random;
use crate::driver::replicas::compare_logs;
use crate::driver::{Contact, Topic};
use crate::{Cluster, ClusterOptions};

const REPLICAS: i16 = 3;
const TOPIC: Topic = Topic { name: "demo", partitions: 1, replicas: REPLICAS, min_insync_replicas: 2 };

/// Kafka's default here is 10 s; the demo does not want to wait so long.
const LAG_TIME_MAX_MS: i64 = 2_000;

/// How long a killed broker counts as alive.
const SESSION_TIMEOUT_MS: u64 = 1_000;

const VIEW_INTERVAL: Duration = Duration::from_millis(50);

/// Longer than a follower's fetch waits at the leader (`replica.fetch.wait.max.ms`, 500), shorter than the lag time.
const FETCHES_COME_HOME: Duration = Duration::from_millis(600);

/// How long each turn of the story may take.
const TURN_LIMIT: Duration = Duration::from_secs(20);

/// The running demo.
struct Stage {
    cluster: Cluster,
    view: View,
    progress: Arc<Progress>,
    records: u64,
    /// Who holds a replica of the topic's partition.
    replicas: Vec<BrokerId>,
}

pub(super) async fn tell(arguments: &DemoArguments, input: Input) -> anyhow::Result<()> {
    let temporary = tempfile::tempdir().context("cannot make a temporary folder")?;
    let dir = arguments.keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    let input = Arc::new(input);
    let mut random = Random::new(arguments.seed);
    let mut stage = set_up(arguments, &dir, &input).await?;
    let contact = contact(&stage.cluster);
    let started = Instant::now();
    let producing = tokio::spawn(produce(
        contact.clone(),
        TOPIC.name,
        Arc::clone(&input),
        Arc::clone(&stage.progress),
        random.clone(),
    ));
    let shrink = pause_a_follower(&mut stage, &producing, &mut random).await?;
    let without_leader = kill_the_leader(&mut stage, &producing).await?;
    stage.let_producer_reach(stage.records);
    stage
        .until("the last record is acknowledged", &producing, |stage, _| stage.acknowledged() == stage.records)
        .await?;
    let elapsed = started.elapsed();
    let delivered: Delivered = producing.await.context("the producer broke")??;
    let everyone_has_all = |stage: &Stage, replicas: &[(BrokerId, Option<Status>)]| {
        let end = i64::try_from(stage.records).unwrap_or(i64::MAX);
        let done = |status: &Status| status.high_watermark.0 == end && status.log_end.0 == end;
        let hosted: Vec<_> = replicas.iter().filter_map(|(_, status)| status.as_ref()).collect();
        hosted.len() == usize::from(REPLICAS.unsigned_abs()) && hosted.into_iter().all(done)
    };
    stage.wait("all replicas hold everything", TURN_LIMIT, everyone_has_all).await?;
    stage.view.event("all records sent; reading everything back from the beginning");
    check_acknowledgements(&delivered.batches, input.records)?;
    let digest = consume(&contact, TOPIC.name, &input).await?;
    let sent = input.digest();
    ensure!(digest == sent, "SHA-256 of what was read is {digest}, of what was sent {sent}");

    let replicas = stage.replicas.clone();
    let cuts = replicas.iter().map(|&broker| (broker, stage.cluster.cuts(broker))).collect();
    let logs: Vec<_> =
        replicas.iter().map(|&broker| (format!("broker {broker}"), partition_dir(&stage, broker))).collect();
    stage.cluster.shutdown().await.context("the brokers did not stop cleanly")?;
    let batches_equal = compare_logs(&logs, i64::try_from(input.records)?)?;
    stage.view.finish();
    let report = Report {
        input: input.name.clone(),
        records: input.records,
        value_bytes: input.value_bytes(),
        elapsed,
        flowing: delivered.flowing,
        resent: delivered.resent,
        shrink,
        without_leader,
        cuts,
        digest,
        batches_equal,
    };
    print!("\n{}", report.table());
    if let Some(dir) = &arguments.keep {
        println!("  kept in           {}", dir.display());
    }
    Ok(())
}

fn contact(cluster: &Cluster) -> Contact {
    Contact { brokers: cluster.bootstrap(), client_id: CLIENT_ID, patience: REQUEST_TIMEOUT }
}

fn partition_dir(stage: &Stage, broker: BrokerId) -> PathBuf {
    stage.cluster.data_dir(broker).join(format!("{}-0", TOPIC.name))
}

/// Starts the brokers and creates the topic.
async fn set_up(arguments: &DemoArguments, dir: &Path, input: &Input) -> anyhow::Result<Stage> {
    if let Some(kept) = &arguments.keep {
        std::fs::create_dir_all(kept).with_context(|| format!("cannot make --keep {}", kept.display()))?;
        let used = std::fs::read_dir(kept).with_context(|| format!("cannot read --keep {}", kept.display()))?.next();
        ensure!(used.is_none(), "--keep {}: not empty, name a new folder", kept.display());
    }
    let options = ClusterOptions::new(usize::from(arguments.brokers), dir).configure(|config| {
        config.replica_lag_time_max_ms = LAG_TIME_MAX_MS;
        config.session_timeout_ms = SESSION_TIMEOUT_MS;
        config.heartbeat_interval_ms = SESSION_TIMEOUT_MS / 4;
        config.auto_create_topics = false;
    });
    let cluster = Cluster::start(options).await.context("cannot start the brokers")?;
    let view = View::new(usize::from(REPLICAS.unsigned_abs()), input.records);
    view.event(&format!(
        "{} brokers listen on {}; replica.lag.time.max.ms is {LAG_TIME_MAX_MS} here (Kafka: 30000)",
        arguments.brokers,
        cluster.bootstrap().join(", ")
    ));
    contact(&cluster).create_topic(TOPIC).await?;
    view.event(&format!(
        "topic {}: 1 partition, {REPLICAS} replicas, min.insync.replicas 2; sending {} records, acks=all",
        TOPIC.name, input.records
    ));
    let progress = Arc::new(Progress { acknowledged: AtomicU64::new(0), limit: watch::Sender::new(input.records / 3) });
    let mut stage = Stage { cluster, view, progress, records: input.records, replicas: Vec::new() };
    let led = |stage: &Stage, _: &[_]| leader(&stage.cluster.statuses(TOPIC.name, 0)).is_some();
    stage.wait("the topic has a leader", TURN_LIMIT, led).await?;
    let held = stage.cluster.statuses(TOPIC.name, 0).into_iter().filter(|(_, status)| status.is_some());
    stage.replicas = held.map(|(broker, _)| broker).collect();
    Ok(stage)
}

/// Keeps one follower from fetching until the ISR has shrunk and the high watermark has gone on; then lets it catch up.
async fn pause_a_follower(
    stage: &mut Stage,
    producing: &JoinHandle<anyhow::Result<Delivered>>,
    random: &mut Random,
) -> anyhow::Result<Duration> {
    let third = stage.records / 3;
    stage.until("a third is acknowledged", producing, move |stage, _| stage.acknowledged() >= third).await?;
    let leading = stage.leader()?;
    let followers: Vec<_> = stage.replicas.iter().copied().filter(|&broker| broker != leading).collect();
    let paused = followers[usize::try_from(random.below(followers.len() as u64))?];
    stage.cluster.pause_fetching(paused, true);
    stage.view.event(&format!("broker {paused} stops fetching, its session lives on: the HW waits for it"));
    let since = Instant::now();
    let half = (third + stage.records * 2 / 3) / 2;
    stage.let_producer_reach(half);
    let gone = move |stage: &Stage, replicas: &[(BrokerId, Option<Status>)]| {
        leader(replicas).is_some_and(|(_, status)| !status.isr.contains(&paused)) && stage.acknowledged() > third
    };
    stage.until("the ISR shrinks and the HW goes on", producing, gone).await?;
    let shrink = since.elapsed();
    stage.view.event(&format!(
        "broker {paused} is out of the ISR after {} ms; the HW goes on without it",
        shrink.as_millis()
    ));
    stage.until("more is acknowledged without it", producing, move |stage, _| stage.acknowledged() >= half).await?;
    stage.cluster.pause_fetching(paused, false);
    stage.view.event(&format!("broker {paused} fetches again"));
    let back = move |_: &Stage, replicas: &[(BrokerId, Option<Status>)]| {
        leader(replicas).is_some_and(|(_, status)| status.isr.contains(&paused))
    };
    stage.until("the follower is back in the ISR", producing, back).await?;
    stage.view.event(&format!("broker {paused} has caught up and is back in the ISR"));
    Ok(shrink)
}

/// Kills the leader while it holds records that nobody else has, and brings it back once another one leads.
async fn kill_the_leader(
    stage: &mut Stage,
    producing: &JoinHandle<anyhow::Result<Delivered>>,
) -> anyhow::Result<Duration> {
    let two_thirds = stage.records * 2 / 3;
    stage.let_producer_reach(two_thirds);
    stage.until("two thirds are acknowledged", producing, move |stage, _| stage.acknowledged() >= two_thirds).await?;
    let killed = stage.leader()?;
    let followers: Vec<_> = stage.replicas.iter().copied().filter(|&broker| broker != killed).collect();
    for &follower in &followers {
        stage.cluster.pause_fetching(follower, true);
    }
    // The fetches that are already waiting at the leader come home first: what comes now shall be the leader's alone.
    tokio::time::sleep(FETCHES_COME_HOME).await;
    stage.let_producer_reach(stage.records);
    let alone = move |_: &Stage, replicas: &[(BrokerId, Option<Status>)]| {
        leader(replicas).is_some_and(|(broker, status)| {
            let others =
                replicas.iter().filter(|(other, _)| *other != broker).filter_map(|(_, status)| status.as_ref());
            others.map(|other| other.log_end).max().is_some_and(|most| status.log_end > most)
        })
    };
    stage.until("the leader holds records that nobody else has", producing, alone).await?;
    let at_kill = stage.statuses();
    stage.cluster.kill(killed).await;
    let since = Instant::now();
    let acknowledged = stage.acknowledged();
    for &follower in &followers {
        stage.cluster.pause_fetching(follower, false);
    }
    let end = at_kill.iter().find(|(broker, _)| *broker == killed).and_then(|(_, status)| status.as_ref());
    stage.view.event(&format!(
        "broker {killed}, the leader, is killed with its LEO at {}: no flush, no goodbye",
        end.map_or_else(|| "?".to_owned(), |status| status.log_end.to_string())
    ));
    stage.until("another leader acknowledges", producing, move |stage, _| stage.acknowledged() > acknowledged).await?;
    let without_leader = since.elapsed();
    let next = stage.leader()?;
    ensure!(next != killed, "broker {killed} still leads although it was killed");
    stage
        .view
        .event(&format!("broker {next} leads; the producer went on by itself after {} ms", without_leader.as_millis()));
    stage.cluster.restart(killed).await.with_context(|| format!("broker {killed} does not come back"))?;
    stage.view.event(&format!("broker {killed} is back: it asks where its history differs, cuts, and catches up"));
    let rejoined = move |_: &Stage, replicas: &[(BrokerId, Option<Status>)]| {
        leader(replicas).is_some_and(|(_, status)| status.isr.contains(&killed))
    };
    stage.until("the old leader is back in the ISR", producing, rejoined).await?;
    stage.view.event(&format!("broker {killed} is in the ISR again, as a follower"));
    Ok(without_leader)
}

impl Stage {
    fn acknowledged(&self) -> u64 {
        self.progress.acknowledged.load(Ordering::Acquire)
    }

    fn let_producer_reach(&self, records: u64) {
        self.progress.limit.send_replace(records);
    }

    /// How the topic's replicas stand, in the order of their numbers.
    fn statuses(&self) -> Vec<(BrokerId, Option<Status>)> {
        let mut all = self.cluster.statuses(TOPIC.name, 0);
        all.retain(|(broker, _)| self.replicas.contains(broker));
        all
    }

    fn leader(&self) -> anyhow::Result<BrokerId> {
        leader(&self.statuses()).map(|(broker, _)| broker).context("the topic has no leader")
    }

    /// Waits for a turn while the producer goes on; fails at once if the producer does.
    async fn until(
        &mut self,
        what: &str,
        producing: &JoinHandle<anyhow::Result<Delivered>>,
        turned: impl Fn(&Self, &[(BrokerId, Option<Status>)]) -> bool,
    ) -> anyhow::Result<()> {
        self.wait(what, TURN_LIMIT, |stage, replicas| {
            turned(stage, replicas) || (producing.is_finished() && stage.acknowledged() < stage.records)
        })
        .await?;
        if producing.is_finished() && self.acknowledged() < self.records {
            bail!("the producer gave up before {what}");
        }
        Ok(())
    }

    async fn wait(
        &mut self,
        what: &str,
        limit: Duration,
        turned: impl Fn(&Self, &[(BrokerId, Option<Status>)]) -> bool,
    ) -> anyhow::Result<()> {
        let since = Instant::now();
        loop {
            let replicas = self.statuses();
            let acknowledged = self.acknowledged();
            self.view.update(&replicas, acknowledged);
            if turned(self, &replicas) {
                return Ok(());
            }
            ensure!(since.elapsed() < limit, "waited {} s, but not yet: {what}", limit.as_secs());
            tokio::time::sleep(VIEW_INTERVAL).await;
        }
    }
}

/// The replica that leads in the highest epoch.
fn leader(replicas: &[(BrokerId, Option<Status>)]) -> Option<(BrokerId, &Status)> {
    let known = replicas.iter().filter_map(|(broker, status)| status.as_ref().map(|status| (*broker, status)));
    known.filter(|(_, status)| status.role == Role::Leader).max_by_key(|(_, status)| status.leader_epoch)
}
