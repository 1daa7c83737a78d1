//! What is done to the cluster: drawn from the seed, then committed.

use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;

use super::Attack;
use super::cluster::{BROKERS, Condition, Member};
use super::network::{Cut, End};
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
    /// Words between brokers, ZooKeeper and clients are lost, also one way only. Needs user namespaces.
    Cut,
    /// The disk of a broker is full, and has room again after a while. Needs user namespaces.
    Disk,
}

impl Kind {
    /// Whether each member must have a host of its own for it.
    pub(super) fn needs_hosts(self) -> bool {
        matches!(self, Self::Cut | Self::Disk)
    }

    /// The word on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Store => "store",
            Self::Directory => "directory",
            Self::Rolling => "rolling",
            Self::Cut => "cut",
            Self::Disk => "disk",
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
    Cut {
        link: Link,
        lasts_ms: u64,
    },
    /// A broker that `dies` opens its logs without room.
    Disk {
        whom: Whom,
        dies: bool,
        lasts_ms: u64,
    },
}

/// Which links are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// All of a broker.
    Around(Whom),
    /// Between a broker and the one so many behind it.
    Peers { whom: Whom, behind: usize, ways: Ways },
    /// Between a broker and ZooKeeper.
    Store { whom: Whom, ways: Ways },
    /// Between a broker and all clients.
    Clients { whom: Whom, ways: Ways },
}

/// Which words of two are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    Both,
    /// Those of the broker.
    There,
    /// Those to the broker.
    Back,
}

impl Ways {
    fn between(self, broker: End, other: End) -> Cut {
        match self {
            Self::Both => Cut::Between(broker, other),
            Self::There => Cut::OneWay(broker, other),
            Self::Back => Cut::OneWay(other, broker),
        }
    }
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
            Kind::Cut => Fault::Cut { link: self.link(), lasts_ms: self.random.between(200, 8_000) },
            Kind::Disk => Fault::Disk {
                whom: self.whom(),
                dies: self.random.below(3) == 0,
                lasts_ms: self.random.between(500, 6_000),
            },
        }
    }

    fn link(&mut self) -> Link {
        let whom = self.whom();
        let ways = [Ways::Both, Ways::There, Ways::Back][self.random.index() % 3];
        match self.random.below(6) {
            0 => Link::Around(whom),
            1 | 2 => Link::Store { whom, ways },
            3 => Link::Clients { whom, ways },
            _ => Link::Peers { whom, behind: 1 + self.random.index() % 2, ways },
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
            Fault::Cut { link, lasts_ms } => {
                let Some(cut) = self.meant(link) else { return Ok(()) };
                self.say(&format!("{cut} for {lasts_ms} ms"));
                self.cluster.network.cut(cut)?;
                self.pass(Duration::from_millis(lasts_ms)).await?;
                self.cluster.network.mend()?;
                self.say("all links are whole");
                Ok(())
            }
            Fault::Disk { whom, dies, lasts_ms } => {
                let Some(broker) = self.standing(whom) else { return Ok(()) };
                self.say(&format!("the disk of broker {broker}{} is full for {lasts_ms} ms", self.leads(broker)));
                self.cluster.disks.fill(broker)?;
                let half = Duration::from_millis(lasts_ms / 2);
                self.pass(half).await?;
                if dies {
                    self.kill(broker, " without room")?;
                    self.start(broker)?;
                }
                self.pass(half).await?;
                self.cluster.disks.free(broker)?;
                self.say(&format!("the disk of broker {broker} has room"));
                Ok(())
            }
        }
    }

    /// What is to be cut, if the broker that is meant runs.
    fn meant(&self, link: Link) -> Option<Cut> {
        let (Link::Around(whom) | Link::Peers { whom, .. } | Link::Store { whom, .. } | Link::Clients { whom, .. }) =
            link;
        let broker = self.standing(whom)?;
        let end = End::Broker(broker);
        Some(match link {
            Link::Around(_) => Cut::Around(end),
            Link::Store { ways, .. } => ways.between(end, End::Store),
            Link::Clients { ways, .. } => ways.between(end, End::Clients),
            Link::Peers { behind, ways, .. } => {
                let other = BROKERS.iter().cycle().skip_while(|&&id| id != broker).nth(behind)?;
                ways.between(end, End::Broker(*other))
            }
        })
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

    /// kill -9; if it led and somebody else can be elected, the time is taken until others acknowledge.
    fn kill(&mut self, broker: i32, more: &str) -> anyhow::Result<()> {
        let led = self.led_by(broker);
        self.say(&format!("broker {broker}{} is killed{more}", self.leads(broker)));
        self.cluster.kill(Member::Broker(broker))?;
        if !led.is_empty() && self.cluster.condition(Member::Store) == Condition::Up {
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

    const ALL: [Kind; 7] =
        [Kind::Kill, Kind::Pause, Kind::Store, Kind::Directory, Kind::Rolling, Kind::Cut, Kind::Disk];

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
        for round in plan(3, 10 * ALL.len()).chunks(ALL.len()) {
            let mut kinds: Vec<Kind> = round.iter().map(|planned| planned.kind).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, ALL);
        }
        assert!(Plan::new(Random::new(1), &[], 4).next().is_none());
    }

    #[test]
    fn links_of_all_kinds_are_cut_and_no_broker_from_itself() {
        let drawn = plan(5, 500 * ALL.len());
        let cuts: Vec<Link> = drawn
            .iter()
            .filter_map(|planned| if let Fault::Cut { link, .. } = planned.fault { Some(link) } else { None })
            .collect();
        assert_eq!(cuts.len(), 500);
        for ways in [Ways::Both, Ways::There, Ways::Back] {
            for found in [
                cuts.iter().any(|link| matches!(link, Link::Store { ways: found, .. } if *found == ways)),
                cuts.iter().any(|link| matches!(link, Link::Clients { ways: found, .. } if *found == ways)),
                cuts.iter().any(|link| matches!(link, Link::Peers { ways: found, behind: 1, .. } if *found == ways)),
                cuts.iter().any(|link| matches!(link, Link::Peers { ways: found, behind: 2, .. } if *found == ways)),
            ] {
                assert!(found, "{ways:?}");
            }
        }
        assert!(cuts.iter().any(|link| matches!(link, Link::Around(_))));
        assert!(cuts.iter().all(|link| !matches!(link, Link::Peers { behind, .. } if behind % BROKERS.len() == 0)));
    }

    #[test]
    fn nothing_happens_before_a_replica_that_lost_its_directory_is_whole() {
        let drawn = plan(4, 100 * ALL.len());
        let lost = drawn.iter().filter(|planned| planned.kind == Kind::Directory);
        assert!(lost.clone().count() == 100 && lost.clone().all(|planned| planned.settle));
        assert!(drawn.iter().any(|planned| !planned.settle));
    }
}
