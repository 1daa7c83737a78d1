//! What Kafka's tools of the ZooKeeper age do: they leave a node for the controller, and wait until it is gone.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use crate::clients::Partition;
use crate::process::{LIMIT, Processes, leader};

const REASSIGN: &str = "/admin/reassign_partitions";
const PREFERRED: &str = "/admin/preferred_replica_election";

/// Leaves the node and waits until it is gone.
fn ask(cluster: &Processes, path: &str, text: &str) -> anyhow::Result<()> {
    cluster.make_node(path, text)?;
    let asked = Instant::now();
    while let Some(left) = cluster.text(path)? {
        ensure!(asked.elapsed() < LIMIT, "{path} is there still: {left}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn nodes_of_kafkas_tools_are_taken_up_carried_out_and_deleted() {
    let mut cluster = Processes::start(3, &[]).unwrap();
    let partition = Partition::create("asked", 2, cluster.addresses()).unwrap();
    let topic = cluster.node("/brokers/topics/asked").unwrap().unwrap();
    let before: Vec<i64> = topic["partitions"]["0"].as_array().unwrap().iter().filter_map(|id| id.as_i64()).collect();
    let comes = (1..=3).find(|id| !before.contains(id)).unwrap();
    let target = [comes, before[0]];

    // As `kafka-reassign-partitions.sh --zookeeper … --execute` writes it. What cannot be done keeps nothing else from it.
    let partitions = json!([
        {"topic": "nowhere", "partition": 0, "replicas": target, "log_dirs": ["any", "any"]},
        {"topic": "asked", "partition": 7, "replicas": target},
        {"topic": "asked", "partition": 0, "replicas": target, "log_dirs": ["any", "any"]},
    ]);
    ask(&cluster, REASSIGN, &json!({"version": 1, "partitions": partitions}).to_string()).unwrap();
    let topic = cluster.node("/brokers/topics/asked").unwrap().unwrap();
    assert_eq!(topic["partitions"]["0"], json!(target), "{topic}");
    assert_eq!((&topic["adding_replicas"], &topic["removing_replicas"]), (&json!({}), &json!({})), "{topic}");
    let state = cluster.node("/brokers/topics/asked/partitions/0/state").unwrap().unwrap();
    let isr = state["isr"].as_array().unwrap();
    assert!(isr.len() == 2 && target.iter().all(|id| isr.contains(&(*id).into())), "{state}");

    // Another one than the preferred leads after a stop, and the preferred again when it is asked for.
    let preferred = i32::try_from(comes).unwrap();
    cluster.broker(preferred).unwrap().stop().unwrap();
    cluster.broker(preferred).unwrap().start_again().unwrap();
    let whole = |state: &serde_json::Value| state["isr"].as_array().is_some_and(|isr| isr.len() == 2);
    let state = cluster.wait_for_state("asked", whole).unwrap();
    assert_eq!(leader(&state).map(i64::from), Some(before[0]), "{state}");
    let asked = json!({"version": 1, "partitions": [{"topic": "asked", "partition": 0}]});
    ask(&cluster, PREFERRED, &asked.to_string()).unwrap();
    let state = cluster.node("/brokers/topics/asked/partitions/0/state").unwrap().unwrap();
    assert_eq!(leader(&state), Some(preferred), "{state}");

    // What cannot be understood does not lie there for ever: a tool refuses to ask while a node is there.
    for path in [REASSIGN, PREFERRED] {
        ask(&cluster, path, "{\"partitions\":7}").unwrap();
    }
    partition.read_and_check(1).unwrap();
}
