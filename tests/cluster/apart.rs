//! Brokers on hosts of their own, whose links are cut, and on disks of their own, which are full.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use highwater_testbed::{Network, Place, run_test_inside};
use highwater_tests::Client;

use crate::clients::{Acks, Partition};
use crate::coordinated::first_since;
use crate::process::{LIMIT, Processes, STORE, broker_place, leader};

/// How long a follower may lag behind.
const LAG: Duration = Duration::from_secs(2);

/// The topic of all of them: each test has a cluster of its own.
const TOPIC: &str = "apart";

/// Kafka's, for a log that could not be written.
const KAFKA_STORAGE_ERROR: i16 = 56;

/// A cluster on hosts of its own, whom producers send to all the time.
struct Apart<'a> {
    network: Network,
    cluster: Processes,
    partition: &'a Partition,
    acked: &'a Mutex<Vec<Instant>>,
}

impl Apart<'_> {
    /// The leader, and the two others, once all are in sync.
    fn roles(&self) -> anyhow::Result<[i32; 3]> {
        let led = self.cluster.leader_of_all(TOPIC)?;
        let mut others = (1..=3).filter(|&id| id != led);
        Ok([led, others.next().context("a follower")?, others.next().context("another")?])
    }

    /// How long after that moment a record was acknowledged by all in-sync replicas.
    fn acked_since(&self, then: Instant) -> anyhow::Result<Duration> {
        first_since(self.acked, then)
    }

    /// Waits until somebody else leads.
    fn wait_for_successor_of(&self, former: i32) -> anyhow::Result<i32> {
        let state = self.cluster.wait_for_state(TOPIC, |state| leader(state).is_some_and(|id| id != former))?;
        leader(&state).context("nobody leads")
    }

    fn connect(&mut self, id: i32) -> anyhow::Result<Client> {
        Client::connect(self.cluster.broker(id)?.address())
    }

    /// Mends all links. Gives how long it took until all were in sync again.
    fn mend(&mut self) -> anyhow::Result<Duration> {
        self.network.mend()?;
        let mended = Instant::now();
        self.cluster.leader_of_all(TOPIC)?;
        Ok(mended.elapsed())
    }
}

/// Does it while a producer sends to whoever takes it, acknowledged by all in-sync replicas. Then all are in sync again, and
/// what was acknowledged is there, once and in order.
fn under_load(name: &str, what: impl FnOnce(&mut Apart<'_>) -> anyhow::Result<()>) {
    let tried = run_test_inside(&format!("apart::{name}"), || {
        let lag = LAG.as_millis().to_string();
        let settings = [("min.insync.replicas", "2"), ("replica.lag.time.max.ms", lag.as_str())];
        let (network, cluster) = Processes::start_apart(&settings)?;
        let partition = Partition::create(TOPIC, 3, cluster.addresses())?;
        cluster.leader_of_all(TOPIC)?;
        let (stop, acked) = (AtomicBool::new(false), Mutex::default());
        let mut apart = Apart { network, cluster, partition: &partition, acked: &acked };
        thread::scope(|scope| {
            scope.spawn(|| partition.produce(1, Acks::All, &stop, &acked));
            let done = first_since(&acked, Instant::now()).and_then(|_| what(&mut apart)).and_then(|()| {
                apart.cluster.leader_of_all(TOPIC)?;
                apart.acked_since(Instant::now())
            });
            // Before any error is told: else nobody would end the producer.
            stop.store(true, Ordering::Relaxed);
            done
        })?;
        let read = partition.read_and_check(2)?;
        println!("{} acknowledged, {read} read, none lost, duplicated or reordered", partition.acknowledged());
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn a_leader_cut_from_the_store_only_acknowledges_nothing_that_its_successor_lacks() {
    under_load("a_leader_cut_from_the_store_only_acknowledges_nothing_that_its_successor_lacks", |apart| {
        let [old, ..] = apart.roles()?;
        let [mut patient, mut hasty] = [apart.connect(old)?, apart.connect(old)?];
        apart.network.cut_between(broker_place(old), STORE)?;
        let cut = Instant::now();
        // It leads on in its last epoch, and does not hear that its session ends.
        let leads_on = apart.acked_since(cut)?;
        let new = apart.wait_for_successor_of(old)?;
        println!("{old} cut from the store acknowledges after {leads_on:?}; {new} leads after {:?}", cut.elapsed());
        println!("the first acknowledgement of {new} comes {:?} later", apart.acked_since(Instant::now())?);
        // Both followers have gone over: what all must have is acknowledged no more, what only it must have still is.
        let all = apart.partition.send(100, &mut patient, Acks::All);
        ensure!(!matches!(all, Ok(Ok(_))), "acknowledged by a leader that was replaced: {all:?}");
        let alone = apart.partition.send(101, &mut hasty, Acks::Leader)?;
        ensure!(alone.is_ok(), "it gave up by its own clock: {alone:?}");
        println!("mended: {old} is in sync again after {:?}", apart.mend()?);
        let refused = apart.partition.send(102, &mut hasty, Acks::Leader)?;
        ensure!(refused.is_err(), "it does not know that it was replaced");
        Ok(())
    });
}

#[test]
fn two_brokers_that_do_not_see_each_other_while_both_see_the_third() {
    under_load("two_brokers_that_do_not_see_each_other_while_both_see_the_third", |apart| {
        let [led, cut_off, third] = apart.roles()?;
        apart.network.cut_between(broker_place(led), broker_place(cut_off))?;
        let cut = Instant::now();
        apart.cluster.leader_of(TOPIC, &[led, third])?;
        println!("{cut_off} does not see {led} and is out of sync after {:?}", cut.elapsed());
        apart.acked_since(Instant::now())?;
        // The third sees both: with it as leader the two are in sync, which still do not see each other.
        apart.cluster.broker(led)?.kill()?;
        let killed = Instant::now();
        ensure!(apart.wait_for_successor_of(led)? == third, "elected although out of sync");
        println!("{led} is killed: {third} leads after {:?}", killed.elapsed());
        let first = apart.acked_since(killed)?;
        println!("first acknowledgement with {cut_off} in sync again after {first:?}");
        apart.cluster.broker(led)?.start_again()?;
        apart.roles()?;
        println!("all in sync with the link still cut; mended: {:?}", apart.mend()?);
        Ok(())
    });
}

/// Cuts one way of a link between leader and follower, until the follower is out of sync and everybody else goes on.
fn cut_one_way(apart: &mut Apart<'_>, way: impl Fn(i32, i32) -> (Place, Place)) -> anyhow::Result<()> {
    let [led, cut_off, third] = apart.roles()?;
    let (from, to) = way(led, cut_off);
    apart.network.cut_one_way(from, to)?;
    let cut = Instant::now();
    apart.cluster.leader_of(TOPIC, &[led, third])?;
    let out = cut.elapsed();
    let first = apart.acked_since(cut + LAG)?;
    println!("{from:?} to {to:?} cut: {cut_off} out of sync after {out:?}, acknowledged again {first:?} after {LAG:?}");
    println!("mended: in sync again after {:?}", apart.mend()?);
    ensure!(apart.cluster.leader_of_all(TOPIC)? == led, "the leader has changed for a follower's link");
    Ok(())
}

#[test]
fn a_followers_fetches_are_lost_on_their_way() {
    under_load("a_followers_fetches_are_lost_on_their_way", |apart| {
        cut_one_way(apart, |led, follower| (broker_place(follower), broker_place(led)))
    });
}

#[test]
fn answers_to_a_followers_fetches_are_lost_on_their_way() {
    under_load("answers_to_a_followers_fetches_are_lost_on_their_way", |apart| {
        cut_one_way(apart, |led, follower| (broker_place(led), broker_place(follower)))
    });
}

#[test]
fn a_leader_cut_off_from_everybody_is_replaced_and_comes_back() {
    under_load("a_leader_cut_off_from_everybody_is_replaced_and_comes_back", |apart| {
        for round in 1..=2 {
            let [old, ..] = apart.roles()?;
            apart.network.cut_off(broker_place(old))?;
            let cut = Instant::now();
            let new = apart.wait_for_successor_of(old)?;
            let first = apart.acked_since(Instant::now())?;
            println!("round {round}: {old} cut off, {new} leads, acknowledged {:?} after the cut", cut.elapsed());
            ensure!(first < LIMIT, "later than the test waits");
            println!("mended: in sync again after {:?}", apart.mend()?);
        }
        Ok(())
    });
}

#[test]
fn a_follower_without_room_is_out_of_sync_until_it_has_some() {
    under_load("a_follower_without_room_is_out_of_sync_until_it_has_some", |apart| {
        let [led, full, third] = apart.roles()?;
        let taken = apart.cluster.disk(full)?.fill()?;
        let filled = Instant::now();
        apart.cluster.leader_of(TOPIC, &[led, third])?;
        println!("{taken} bytes fill the disk of {full}: out of sync after {:?}", filled.elapsed());
        apart.acked_since(Instant::now())?;
        apart.cluster.disk(full)?.free()?;
        let freed = Instant::now();
        apart.cluster.leader_of_all(TOPIC)?;
        println!("with room again in sync after {:?}, by itself", freed.elapsed());
        Ok(())
    });
}

#[test]
fn a_leader_without_room_refuses_and_what_it_has_acknowledged_survives_it() {
    under_load("a_leader_without_room_refuses_and_what_it_has_acknowledged_survives_it", |apart| {
        let [led, ..] = apart.roles()?;
        let mut client = apart.connect(led)?;
        // It goes on by itself when there is room.
        apart.cluster.disk(led)?.fill()?;
        let filled = Instant::now();
        // The last block of its log has room for some.
        let mut answer = Ok(0);
        while answer.is_ok() && filled.elapsed() < LIMIT {
            answer = apart.partition.send(100, &mut client, Acks::All)?;
        }
        ensure!(answer == Err(KAFKA_STORAGE_ERROR), "a leader without room answers {answer:?}");
        apart.cluster.disk(led)?.free()?;
        println!("with room again {led} acknowledges after {:?}", apart.acked_since(Instant::now())?);
        // It dies without room, and opens its log without.
        apart.cluster.disk(led)?.fill()?;
        apart.cluster.broker(led)?.kill()?;
        let killed = Instant::now();
        let new = apart.wait_for_successor_of(led)?;
        println!(
            "{led} killed without room: {new} leads, first acknowledgement after {:?}",
            apart.acked_since(killed)?
        );
        apart.cluster.broker(led)?.start_again()?;
        let others: Vec<i32> = (1..=3).filter(|&id| id != led).collect();
        ensure!(apart.cluster.leader_of(TOPIC, &others)? == new, "another leads");
        apart.cluster.disk(led)?.free()?;
        let freed = Instant::now();
        apart.cluster.leader_of_all(TOPIC)?;
        println!("started without room, and given some: in sync after {:?}", freed.elapsed());
        Ok(())
    });
}
