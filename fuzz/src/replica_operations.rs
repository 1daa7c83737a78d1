//! Three replicas with their logs, a controller and a store, and a wire that the input drives: it says which message
//! arrives next, twice, damaged or not at all, who dies within which call and what is left on its disk, how time passes
//! and clocks are changed, who is elected, and when records come and go.
//!
//! What must hold after each step is in `truth.rs`, as far as the program keeps to what its first byte promises
//! (`cluster::Promise`). At the end nothing goes wrong any more, and the three must become equal and in sync.

mod cluster;
mod node;
mod truth;

use highwater_replication::Acks;

use crate::input::Input;
use cluster::{Cluster, NODES, Promise, Settings, node_of};

/// No program has more steps; each is a byte or more of the input.
const STEPS_MAX: usize = 400;

/// The target's body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let promise = input.choose(&[Promise::Kills, Promise::SyncedPowerCuts, Promise::PowerCuts, Promise::Nothing]);
    let shape = input.byte();
    let settings = Settings {
        promise,
        retention: shape & 0b11 == 0b11,
        min_insync_replicas: if promise == Promise::PowerCuts || shape & 0b100 != 0 { 2 } else { 1 },
        lag_ms: 200,
        flush_ms: 300,
    };
    let mut cluster = Cluster::new(settings);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        step(&mut cluster, &mut input);
    }
    cluster.heal();
}

fn step(cluster: &mut Cluster, input: &mut Input<'_>) {
    match input.below(64) {
        0..=9 => arrive(cluster, input),
        10..=17 => in_order(cluster, 1 + input.below(16)),
        18..=19 => {
            if let Some(twin) = choose(cluster, input).and_then(|at| Cluster::twin(&cluster.wire[at])) {
                cluster.wire.push(twin);
            }
        }
        20..=21 => {
            if let Some(at) = choose(cluster, input) {
                let message = cluster.wire.remove(at);
                cluster.lose(message);
            }
        }
        22 => {
            let choice = input.below(256);
            if let Some(at) = choose(cluster, input) {
                Cluster::garble(&mut cluster.wire[at], choice);
            }
        }
        23..=32 => produce(cluster, input),
        33..=36 => cluster.pass(input.choose(&[1, 20, 60, 130, 250])),
        37 => {
            let at = input.below(NODES);
            cluster.nodes[at].ahead_ms += input.choose(&[5, 100, 1_000, 10_000]);
            cluster.tick(at);
        }
        38 => cluster.kill(input.below(NODES)),
        39..=40 => cluster.cut_power(input.below(NODES), input.byte()),
        41..=42 => {
            let (at, calls, choice) = (input.below(NODES), input.below(24) as u64, input.byte());
            cluster.die_in_call(at, calls, Some(choice).filter(|choice| choice & 1 == 1));
        }
        43 => cluster.stop(input.below(NODES)),
        44..=47 => cluster.boot(input.below(NODES), input.choose(&[0, 0, 100, -100, -5_000])),
        48 => cluster.session_ends(input.below(NODES)),
        49..=50 => cluster.control(),
        51 => cluster.move_leader(input.below(NODES)),
        52..=53 => cluster.look(input.below(NODES)),
        54..=57 => (0..NODES).for_each(|at| cluster.look(at)),
        58..=59 => fail_over(cluster, input),
        60..=61 => cluster.begin_work(input.below(NODES)),
        62 => {
            let at = input.below(NODES);
            cluster.settings.lag_ms = input.choose(&[100, 200, 400]);
            if cluster.settings.promise != Promise::PowerCuts {
                cluster.settings.min_insync_replicas = 1 + input.below(2);
            }
            cluster.configure(at);
        }
        _ => calm(cluster),
    }
}

/// Messages arrive in the order in which they were sent, so many.
fn in_order(cluster: &mut Cluster, count: usize) {
    for _ in 0..count {
        if !cluster.wire.is_empty() {
            let message = cluster.wire.remove(0);
            cluster.deliver(message, 1 << 20);
        }
    }
}

/// For a while all that is down starts, and everybody hears of everything.
fn calm(cluster: &mut Cluster) {
    for _ in 0..4 {
        cluster.control();
        in_order(cluster, 20);
        for at in 0..NODES {
            cluster.boot(at, 0);
            cluster.look(at);
        }
        cluster.pass(60);
    }
}

fn choose(cluster: &Cluster, input: &mut Input<'_>) -> Option<usize> {
    (!cluster.wire.is_empty()).then(|| input.below(cluster.wire.len()))
}

/// A message arrives, whichever; of an answer as much as asked for.
fn arrive(cluster: &mut Cluster, input: &mut Input<'_>) {
    if let Some(at) = choose(cluster, input) {
        let message = cluster.wire.remove(at);
        cluster.deliver(message, input.choose(&[1 << 20, 150, 1]));
    }
}

/// Most records are sent to who leads.
fn produce(cluster: &mut Cluster, input: &mut Input<'_>) {
    let how = input.below(256);
    let leader = cluster.state.value.leader.map(node_of).filter(|_| how & 0b11 != 0);
    let (at, count) = (leader.unwrap_or(how >> 2 & 0b11).min(NODES - 1), 1 + (how >> 4 & 0b1) as u64);
    match how >> 5 {
        0..=2 => cluster.produce_in_sequence(at, count),
        3..=5 => cluster.produce(at, count, Acks::All),
        6 => cluster.produce(at, count, Acks::Leader),
        _ => cluster.produce(at, count, Acks::None),
    }
}

/// The leader's session ends, and another is elected before anything else happens; some hear of it.
fn fail_over(cluster: &mut Cluster, input: &mut Input<'_>) {
    let choice = input.below(256);
    if let Some(leader) = cluster.state.value.leader.map(node_of) {
        if choice & 1 == 1 {
            cluster.kill(leader);
        }
        cluster.session_ends(leader);
    }
    cluster.control();
    while let Some(at) = cluster.wire.iter().position(|message| matches!(message, cluster::Message::Commit(_))) {
        let message = cluster.wire.remove(at);
        cluster.deliver(message, 1);
    }
    (0..NODES).filter(|at| choice >> (1 + at) & 1 == 1).for_each(|at| cluster.look(at));
}
