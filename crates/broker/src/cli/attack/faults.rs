//! What is done to the cluster: drawn from the seed, then committed.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;

use super::Attack;
use super::cluster::{BROKERS, Condition, Member};
use crate::driver::random::Random;

/// How long a leader is dead that fails beside a lost directory: long enough for an election.
const DEAD_FOR: Duration = Duration::from_secs(4);

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Kind {
    /// kill -9 of a broker, started again after a while.
    Kill,
    /// A broker sleeps (SIGSTOP), also for longer than its session lasts, and wakes up.
    Pause,
    /// ZooKeeper is killed, and started again on its data.
    Store,
    /// The directory of a partition is deleted while its broker is down.
    Directory,
    /// Each broker in turn is stopped in order and started again.
    Rolling,
}

impl Kind {
    /// The word on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Store => "store",
            Self::Directory => "directory",
            Self::Rolling => "rolling",
        }
    }
}

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// The one that leads this partition then.
    LeaderOf(usize),
    Broker(i32),
}

/// One fault, with all that was drawn for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Kill {
        whom: Whom,
        down_ms: u64,
    },
    Pause {
        whom: Whom,
        asleep_ms: u64,
    },
    /// With `kill` a broker dies meanwhile, whom nobody can replace.
    Store {
        away_ms: u64,
        kill: Option<Whom>,
    },
    /// After a `clean` stop or a kill. With `kill_after_ms` the partition's leader dies so long after the return: what is in
    /// sync then must not be the empty directory.
    Directory {
        broker: i32,
        partition: usize,
        clean: bool,
        down_ms: u64,
        kill_after_ms: Option<u64>,
    },
    Rolling,
}

/// A fault, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    pub(super) fault: Fault,
    /// Whether all replicas are to be in sync again before the next one.
    pub(super) settle: bool,
    pub(super) rest_ms: u64,
}

/// Draws fault after fault: each kind once, in any order, and then again.
pub(super) struct Plan {
    random: Random,
    kinds: Vec<Kind>,
    partitions: usize,
    left: Vec<Kind>,
}

impl Plan {
    pub(super) fn new(random: Random, kinds: &[Kind], partitions: usize) -> Self {
        let mut kinds = kinds.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        Self { random, kinds, partitions, left: Vec::new() }
    }

    /// The next one, unless there are no kinds.
    pub(super) fn next(&mut self) -> Option<Planned> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let at = usize::try_from(self.random.below(self.left.len().max(1) as u64)).unwrap_or(0);
        let kind = (at < self.left.len()).then(|| self.left.remove(at))?;
        let fault = self.draw(kind);
        // A broker with an empty directory is no replica to rely on: only what the fault itself says may fail before it is whole.
        let settle = matches!(kind, Kind::Directory | Kind::Rolling) || self.random.below(2) == 0;
        Some(Planned { kind, fault, settle, rest_ms: self.random.between(300, 3_000) })
    }

    fn draw(&mut self, kind: Kind) -> Fault {
        match kind {
            // Some come back before anybody has missed them.
            Kind::Kill => Fault::Kill { whom: self.whom(), down_ms: self.random.between(50, 6_000) },
            Kind::Pause => Fault::Pause { whom: self.whom(), asleep_ms: self.random.between(200, 8_000) },
            Kind::Store => {
                let kill = (self.random.below(3) == 0).then(|| self.whom());
                Fault::Store { away_ms: self.random.between(200, 8_000), kill }
            }
            Kind::Directory => Fault::Directory {
                broker: self.broker(),
                partition: self.partition(),
                clean: self.random.below(2) == 0,
                down_ms: self.random.between(50, 6_000),
                kill_after_ms: (self.random.below(2) == 0).then(|| self.random.between(0, 4_000)),
            },
            Kind::Rolling => Fault::Rolling,
        }
    }

    /// A leader three times out of four.
    fn whom(&mut self) -> Whom {
        if self.random.below(4) > 0 { Whom::LeaderOf(self.partition()) } else { Whom::Broker(self.broker()) }
    }

    fn broker(&mut self) -> i32 {
        BROKERS[self.random.index() % BROKERS.len()]
    }

    fn partition(&mut self) -> usize {
        self.random.index() % self.partitions.max(1)
    }
}

impl Attack {
    /// Does it, and undoes what can be undone.
    pub(super) async fn commit(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::Kill { whom, down_ms } => {
                let Some(broker) = self.standing(whom) else { return Ok(()) };
                self.kill(broker, &format!(", back in {down_ms} ms"))?;
                self.pass(Duration::from_millis(down_ms)).await?;
                self.start(broker)
            }
            Fault::Pause { whom, asleep_ms } => {
                let Some(broker) = self.standing(whom) else { return Ok(()) };
                self.say(&format!("broker {broker}{} sleeps for {asleep_ms} ms", self.leads(broker)));
                self.cluster.pause(Member::Broker(broker))?;
                self.pass(Duration::from_millis(asleep_ms)).await?;
                self.cluster.resume(Member::Broker(broker))?;
                self.say(&format!("broker {broker} wakes up"));
                Ok(())
            }
            Fault::Store { away_ms, kill } => {
                self.say(&format!("ZooKeeper is killed, back in {away_ms} ms"));
                self.cluster.kill(Member::Store)?;
                let killed = kill.and_then(|whom| self.standing(whom));
                let half = Duration::from_millis(away_ms / 2);
                self.pass(half).await?;
                if let Some(broker) = killed {
                    self.kill(broker, " meanwhile")?;
                }
                self.pass(half).await?;
                self.cluster.start_store().await?;
                self.say("ZooKeeper is back");
                killed.map_or(Ok(()), |broker| self.start(broker))
            }
            Fault::Directory { broker, partition, clean, down_ms, kill_after_ms } => {
                self.settle().await?;
                if clean {
                    self.stop(broker).await?;
                } else {
                    self.kill(broker, "")?;
                }
                let directory = self.cluster.data_dir(broker).join(format!("{}-{partition}", self.topic.name));
                std::fs::remove_dir_all(&directory)
                    .with_context(|| format!("cannot delete {}", directory.display()))?;
                self.say(&format!(
                    "broker {broker} loses the directory of partition {partition}, back in {down_ms} ms"
                ));
                self.pass(Duration::from_millis(down_ms)).await?;
                self.start(broker)?;
                let Some(kill_after_ms) = kill_after_ms else { return Ok(()) };
                self.pass(Duration::from_millis(kill_after_ms)).await?;
                let leader = self.standing(Whom::LeaderOf(partition)).filter(|leader| *leader != broker);
                let Some(leader) = leader else { return Ok(()) };
                self.kill(leader, " before the other is whole")?;
                self.pass(DEAD_FOR).await?;
                self.start(leader)
            }
            Fault::Rolling => {
                for broker in BROKERS {
                    self.settle().await?;
                    self.stop(broker).await?;
                    self.start(broker)?;
                }
                Ok(())
            }
        }
    }

    /// The broker that is meant, if it runs.
    fn standing(&self, whom: Whom) -> Option<i32> {
        let broker = match whom {
            Whom::Broker(broker) => broker,
            Whom::LeaderOf(partition) => self.status.borrow().partitions.get(partition)?.leader,
        };
        (self.cluster.condition(Member::Broker(broker)) == Condition::Up).then_some(broker)
    }

    /// ", leader of 0 and 2", as far as it is known.
    fn leads(&self, broker: i32) -> String {
        let led: Vec<String> = self.led_by(broker).iter().map(ToString::to_string).collect();
        if led.is_empty() { String::new() } else { format!(", leader of {},", led.join(" and ")) }
    }

    /// kill -9; if it led, the time is taken until others acknowledge.
    fn kill(&mut self, broker: i32, more: &str) -> anyhow::Result<()> {
        let led = self.led_by(broker);
        self.say(&format!("broker {broker}{} is killed{more}", self.leads(broker)));
        self.cluster.kill(Member::Broker(broker))?;
        if !led.is_empty() {
            let waits =
                led.iter().map(|&partition| (partition, self.load.boards[partition].wait_for_acknowledgement()));
            self.kills.push(waits.collect());
        }
        Ok(())
    }

    /// SIGTERM.
    async fn stop(&mut self, broker: i32) -> anyhow::Result<()> {
        let asked = Instant::now();
        self.say(&format!("broker {broker}{} is told to stop", self.leads(broker)));
        let status = self.cluster.stop(Member::Broker(broker)).await?;
        let took = asked.elapsed().as_millis();
        if !status.success() {
            self.problem(format!("broker {broker} did not stop in order: {status} after {took} ms"));
        }
        self.say(&format!("broker {broker} stopped within {took} ms"));
        Ok(())
    }

    fn start(&mut self, broker: i32) -> anyhow::Result<()> {
        self.cluster.start_broker(broker)?;
        self.say(&format!("broker {broker} is started again"));
        Ok(())
    }

    /// Which partitions it leads, as far as it is known.
    fn led_by(&self, broker: i32) -> Vec<usize> {
        let status = self.status.borrow();
        let led = status.partitions.iter().enumerate().filter(|(_, standing)| standing.leader == broker);
        led.map(|(partition, _)| partition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 5] = [Kind::Kill, Kind::Pause, Kind::Store, Kind::Directory, Kind::Rolling];

    fn plan(seed: u64, faults: usize) -> Vec<Planned> {
        let mut plan = Plan::new(Random::new(seed), &ALL, 4);
        (0..faults).map(|_| plan.next().expect("there are kinds")).collect()
    }

    #[test]
    fn a_seed_gives_the_same_faults_again_and_another_one_others() {
        assert_eq!(plan(1, 50), plan(1, 50));
        assert_ne!(plan(1, 50), plan(2, 50));
    }

    #[test]
    fn each_kind_comes_before_any_comes_again() {
        for round in plan(3, 50).chunks(ALL.len()) {
            let mut kinds: Vec<Kind> = round.iter().map(|planned| planned.kind).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, ALL);
        }
        assert!(Plan::new(Random::new(1), &[], 4).next().is_none());
    }

    #[test]
    fn nothing_happens_before_a_replica_that_lost_its_directory_is_whole() {
        let drawn = plan(4, 500);
        let lost = drawn.iter().filter(|planned| planned.kind == Kind::Directory);
        assert!(lost.clone().count() == 100 && lost.clone().all(|planned| planned.settle));
        assert!(drawn.iter().any(|planned| !planned.settle));
    }
}
