//! Leaders that die or sleep, and a store that is away.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use highwater_tests::{Client, ZooKeeper};
use rustix::process::Signal;

use crate::clients::{Acks, Partition};
use crate::process::{LIMIT, Processes, SESSION, leader};

const SETTINGS: &[(&str, &str)] = &[("min.insync.replicas", "2"), ("replica.lag.time.max.ms", "3000")];

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

/// The first acknowledgement since then, once there is one.
pub(crate) fn first_since(acked: &Mutex<Vec<Instant>>, then: Instant) -> anyhow::Result<Duration> {
    while then.elapsed() < LIMIT {
        let first = acked.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|&&at| at > then).copied();
        if let Some(first) = first {
            return Ok(first - then);
        }
        thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("no acknowledgement within {LIMIT:?}")
}

/// As the classic producer did it: the state names the leader, the registration says where that is.
fn leader_by_znodes(cluster: &Processes, topic: &str) -> anyhow::Result<SocketAddr> {
    let state = cluster.wait_for_state(topic, |state| leader(state).is_some())?;
    let id = leader(&state).context("nobody leads")?;
    let broker = cluster.node(&format!("/brokers/ids/{id}"))?.context("the leader is not registered")?;
    let endpoint = broker["endpoints"][0].as_str().context("no endpoint")?;
    endpoint.strip_prefix("PLAINTEXT://").context("another protocol")?.parse().context("no address")
}

/// Produces a record there. All replicas have heard of their leader then.
fn produce_by_znodes(cluster: &Processes, topic: &str, partition: &Partition) -> anyhow::Result<i64> {
    let asked = Instant::now();
    loop {
        let mut found = Client::connect(leader_by_znodes(cluster, topic)?)?;
        match partition.send(0, &mut found, Acks::All)? {
            Ok(offset) => return Ok(offset),
            // What ZooKeeper says has not come to the broker yet.
            Err(UNKNOWN_TOPIC_OR_PARTITION | NOT_LEADER_OR_FOLLOWER) if asked.elapsed() < LIMIT => {
                thread::sleep(Duration::from_millis(5))
            }
            Err(code) => anyhow::bail!("produce gives {code}"),
        }
    }
}

#[test]
fn a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut cluster = Processes::start(3, SETTINGS).unwrap();
    let partition = Partition::create("killed", 3, cluster.addresses()).unwrap();
    let offset = produce_by_znodes(&cluster, "killed", &partition).unwrap();
    assert_eq!(offset, 0, "nobody wrote before");

    let (stop, acked) = (AtomicBool::new(false), Mutex::default());
    thread::scope(|scope| {
        scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
        let kills = || {
            for round in 1..=3 {
                let led = cluster.leader_of_all("killed")?;
                let begun = Instant::now();
                first_since(&acked, begun)?;
                cluster.broker(led)?.kill()?;
                let first = first_since(&acked, Instant::now())?;
                println!("kill {round} of leader {led}: first acknowledgement after {first:?}, session {SESSION:?}");
                cluster.broker(led)?.start_again()?;
            }
            cluster.leader_of_all("killed").map(|_| ())
        };
        let done = attempt(kills);
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    let read = partition.read_and_check(2).unwrap();
    println!("{} acknowledged, {read} read, none lost, duplicated or reordered", partition.acknowledged());
}

/// Errors are told after the producers have been stopped: else nobody would end them.
pub(crate) fn attempt<T>(mut what: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    what()
}

#[test]
fn while_the_store_is_away_the_present_in_sync_replicas_go_on() {
    let mut cluster = Processes::start(3, SETTINGS).unwrap();
    let partition = Partition::create("away", 3, cluster.addresses()).unwrap();
    let led = cluster.leader_of_all("away").unwrap();
    produce_by_znodes(&cluster, "away", &partition).unwrap();
    let address = cluster.broker(led).unwrap().address();
    let mut client = Client::connect(address).unwrap();
    cluster.zookeeper.kill().unwrap();
    let gone = Instant::now();
    let (mut sent, mut next) = (0, 0);
    // By its clock each broker's session would have ended long ago.
    while gone.elapsed() < SESSION * 3 {
        for acks in [Acks::Leader, Acks::All] {
            next = partition.send(0, &mut client, acks).unwrap().unwrap() + 1;
            sent += 1;
        }
        let part = partition.fetch_from(&mut client, next - 1).unwrap();
        assert_eq!(part.error_code, 0);
        assert!(!part.records.unwrap_or_default().is_empty(), "what all have can be read");
    }
    println!("{sent} records were taken in {:?} without ZooKeeper", gone.elapsed());

    // Nobody can be elected meanwhile.
    cluster.broker(led).unwrap().kill().unwrap();
    let (stop, acked) = (AtomicBool::new(false), Mutex::default());
    thread::scope(|scope| {
        scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
        thread::sleep(SESSION);
        let none = acked.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let back = attempt(|| {
            ensure!(none, "somebody leads whom nobody elected");
            cluster.zookeeper.start_again()?;
            let first = first_since(&acked, Instant::now())?;
            println!("ZooKeeper is back: first acknowledgement of another leader after {first:?}");
            cluster.broker(led)?.start_again()?;
            cluster.leader_of_all("away")
        });
        stop.store(true, Ordering::Relaxed);
        back.unwrap();
    });
    partition.read_and_check(2).unwrap();
}

/// The brokers' sessions move to the servers that are left.
#[test]
fn an_ensemble_that_loses_its_leader_goes_on_and_elects() {
    let zookeeper = ZooKeeper::start_ensemble(3).unwrap();
    let mut cluster = Processes::start_with(zookeeper, 3, SETTINGS).unwrap();
    let partition = Partition::create("ensemble", 3, cluster.addresses()).unwrap();
    let led = cluster.leader_of_all("ensemble").unwrap();
    produce_by_znodes(&cluster, "ensemble", &partition).unwrap();
    let mut client = Client::connect(cluster.broker(led).unwrap().address()).unwrap();
    cluster.zookeeper.kill_leader().unwrap();
    let gone = Instant::now();
    while gone.elapsed() < SESSION * 2 {
        partition.send(0, &mut client, Acks::All).unwrap().unwrap();
    }
    let state = cluster.wait_for_state("ensemble", |_| true).unwrap();
    assert_eq!((leader(&state), state["isr"].as_array().map(Vec::len)), (Some(led), Some(3)), "no session ended");

    let (stop, acked) = (AtomicBool::new(false), Mutex::default());
    thread::scope(|scope| {
        scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
        let killed = attempt(|| {
            cluster.broker(led)?.kill()?;
            let first = first_since(&acked, Instant::now())?;
            println!(
                "two servers of three: first acknowledgement of another leader after {first:?}, session {SESSION:?}"
            );
            cluster.broker(led)?.start_again()?;
            cluster.zookeeper.start_again()?;
            cluster.leader_of_all("ensemble")
        });
        stop.store(true, Ordering::Relaxed);
        killed.unwrap();
    });
    partition.read_and_check(2).unwrap();
}

#[test]
fn a_leader_that_slept_past_its_session_acknowledges_nothing_that_is_lost() {
    let mut cluster = Processes::start(3, SETTINGS).unwrap();
    let partition = Partition::create("asleep", 3, cluster.addresses()).unwrap();
    let (stop, acked) = (AtomicBool::new(false), Mutex::default());
    thread::scope(|scope| {
        scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
        let sleeps = attempt(|| {
            for round in 1..=2 {
                let led = cluster.leader_of_all("asleep")?;
                first_since(&acked, Instant::now())?;
                let address = cluster.broker(led)?.address();
                // Their requests lie in the sleeper's sockets until it wakes up.
                let mut waiting: Vec<Client> = (0..8).map(|_| Client::connect(address)).collect::<Result<_, _>>()?;
                cluster.broker(led)?.signal(Signal::STOP)?;
                let slept = Instant::now();
                let answers = thread::scope(|inner| -> anyhow::Result<Vec<bool>> {
                    let senders: Vec<_> = (100..)
                        .zip(&mut waiting)
                        .map(|(who, client)| {
                            let partition = &partition;
                            inner.spawn(move || {
                                let one = |client: &mut Client| partition.send(who, client, Acks::All);
                                // The second goes out while the sleeper finds out what it missed.
                                (0..2).map(|_| one(client).is_ok_and(|answer| answer.is_ok())).collect::<Vec<_>>()
                            })
                        })
                        .collect();
                    let elected = cluster.wait_for_state("asleep", |state| leader(state).is_some_and(|id| id != led));
                    let first = first_since(&acked, slept);
                    thread::sleep(Duration::from_millis(300));
                    cluster.broker(led)?.signal(Signal::CONT)?;
                    let answers = senders.into_iter().flat_map(|sender| sender.join().unwrap_or_default()).collect();
                    elected?;
                    println!("sleep {round} of leader {led}: first acknowledgement of another after {:?}", first?);
                    Ok(answers)
                })?;
                let taken = answers.iter().filter(|taken| **taken).count();
                println!("woken up, it acknowledged {taken} of {}", answers.len());
            }
            cluster.leader_of_all("asleep").map(|_| ())
        });
        stop.store(true, Ordering::Relaxed);
        sleeps.unwrap();
    });
    let read = partition.read_and_check(2).unwrap();
    println!("{} acknowledged, {read} read, none lost, duplicated or reordered", partition.acknowledged());
}
