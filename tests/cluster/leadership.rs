//! Who leads after a stop in order and after a session's end, with many partitions too, and what the store says of it.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use highwater_broker::{Cluster, ClusterOptions};
use highwater_replication::BrokerId;
use tokio::runtime::Runtime;

use crate::clients::{Partition, create_topic, leaders};
use crate::lost_leaders::{End, over_zookeeper};
use crate::process::{LIMIT, Processes, SESSION, leader};

/// Many enough for a commit each to take its time.
const PARTITIONS: i32 = 1_000;

/// Waits until `done`, and says what did not happen.
fn until(what: &str, mut done: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let asked = Instant::now();
    while !done()? {
        ensure!(asked.elapsed() < LIMIT * 2, "{what}: not within {:?}", LIMIT * 2);
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// By the time a broker has stopped in order nobody depends on it any more. How long nobody led is printed.
#[test]
fn a_leader_that_stops_has_handed_over() {
    let mut cluster = Processes::start(3, &[("min.insync.replicas", "2")]).unwrap();
    Partition::create("handed-over", 3, cluster.addresses()).unwrap();
    let led = cluster.leader_of_all("handed-over").unwrap();
    cluster.broker(led).unwrap().stop().unwrap();
    // Read at once: its session is over, and nobody waited for that.
    let state = cluster.node("/brokers/topics/handed-over/partitions/0/state").unwrap().unwrap();
    assert!(leader(&state).is_some_and(|now| now != led), "{state}");
    assert!(!state["isr"].as_array().unwrap().contains(&led.into()), "{state}");
    drop(cluster);
    over_zookeeper(&[End::Stopped], 3).unwrap();
}

/// Whether all partitions have a leader other than this broker, as another one says.
fn is_led_without(at: SocketAddr, topic: &'static str, gone: i32) -> anyhow::Result<bool> {
    let known = leaders(at, topic)?;
    let led = known.values().filter(|(leader, _)| *leader >= 0 && *leader != gone).count();
    Ok(known.len() == usize::try_from(PARTITIONS)? && led == known.len())
}

/// Whether all replicas are in sync, as a broker says.
fn is_whole(at: SocketAddr, topic: &'static str) -> anyhow::Result<bool> {
    let known = leaders(at, topic)?;
    Ok(known.len() == usize::try_from(PARTITIONS)? && known.values().all(|(_, in_sync)| *in_sync == 3))
}

/// The controller's broker dies, so that another one has to be elected first. How long it took is printed.
#[test]
fn a_thousand_partitions_are_led_again_after_a_session_has_ended() {
    let mut cluster = Processes::start(3, &[]).unwrap();
    create_topic(cluster.addresses()[0], "many", PARTITIONS, 3).unwrap();
    let addresses = cluster.addresses();
    until("all replicas in sync", || is_whole(addresses[0], "many")).unwrap();
    let controller = cluster.node("/controller").unwrap().unwrap()["brokerid"].as_i64().unwrap();
    let gone = i32::try_from(controller).unwrap();
    let address = cluster.broker(gone).unwrap().address();
    cluster.broker(gone).unwrap().kill().unwrap();
    let killed = Instant::now();
    let registered = format!("/brokers/ids/{gone}");
    until("the end of the session", || Ok(cluster.node(&registered)?.is_none())).unwrap();
    let expired = killed.elapsed();
    for at in addresses.into_iter().filter(|at| *at != address) {
        until("a leader for each", || is_led_without(at, "many", gone)).unwrap();
    }
    println!(
        "over ZooKeeper: {PARTITIONS} partitions are led {:.2?} after the end of a session, which came {expired:.2?} after \
         kill -9 (session {SESSION:?})",
        killed.elapsed() - expired
    );
}

/// The same within one process.
#[test]
fn a_thousand_partitions_of_one_process_are_led_again() {
    let (runtime, directory) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let options = ClusterOptions::new(3, directory.path()).configure(|config| {
        config.session_timeout_ms = 1_000;
        config.heartbeat_interval_ms = 200;
    });
    let mut cluster = runtime.block_on(Cluster::start(options)).unwrap();
    let addresses: Vec<SocketAddr> = cluster.ids().into_iter().filter_map(|id| cluster.address(id)).collect();
    create_topic(addresses[0], "many", PARTITIONS, 3).unwrap();
    until("all replicas in sync", || is_whole(addresses[0], "many")).unwrap();
    let gone = cluster.running().next().unwrap().image().controller.unwrap();
    let address = cluster.address(gone);
    assert!(runtime.block_on(cluster.kill(gone)));
    let killed = Instant::now();
    let lives =
        |cluster: &Cluster, id: &BrokerId| cluster.running().any(|broker| broker.image().brokers.contains_key(id));
    until("the end of the session", || Ok(!lives(&cluster, &gone))).unwrap();
    let expired = killed.elapsed();
    for at in addresses.into_iter().filter(|at| Some(*at) != address) {
        until("a leader for each", || is_led_without(at, "many", gone.0)).unwrap();
    }
    println!(
        "embedded: {PARTITIONS} partitions are led {:.2?} after the end of a session, {:.2?} after the kill",
        killed.elapsed() - expired,
        killed.elapsed()
    );
    runtime.block_on(cluster.shutdown()).unwrap();
}

/// Leader, epoch and in-sync replicas of the state node and of the table that the program prints.
#[test]
fn the_store_and_the_table_of_topics_say_the_same() {
    let mut cluster = Processes::start(3, &[]).unwrap();
    Partition::create("shown", 3, cluster.addresses()).unwrap();
    let led = cluster.leader_of_all("shown").unwrap();
    cluster.broker(led).unwrap().kill().unwrap();
    let moved = |state: &serde_json::Value| {
        leader(state).is_some_and(|now| now != led) && state["isr"].as_array().is_some_and(|isr| isr.len() == 2)
    };
    let state = cluster.wait_for_state("shown", moved).unwrap();
    let text = cluster.text("/brokers/topics/shown/partitions/0/state").unwrap().unwrap();
    let isr = state["isr"].as_array().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let expected = [state["leader"].to_string(), state["leader_epoch"].to_string(), isr];
    let at = cluster.addresses().into_iter().zip(1..).find(|(_, id)| *id != led).unwrap().0.to_string();
    let mut shown = String::new();
    // The broker hears of it a moment later.
    let same = until("the same in both", || {
        let (code, table, errors) = highwater_tests::run(&["topics", "--bootstrap", &at, "shown"])?;
        ensure!(code == 0, "{errors}");
        shown = table;
        let line: Vec<&str> = shown.lines().nth(1).context("no line")?.split_whitespace().collect();
        Ok([2, 3, 5].map(|column| line.get(column).map_or("", |text| text).to_owned()) == expected)
    });
    println!("get {}/brokers/topics/shown/partitions/0/state\n{text}\n{shown}", crate::process::CHROOT);
    same.unwrap();
}
