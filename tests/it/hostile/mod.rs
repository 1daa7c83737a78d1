//! Bytes that nobody should send, at the real binary: they get an error or a closed connection, memory stays where it
//! is, and a client that behaves notices nothing.

mod attack;
mod connections;
mod valid;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use highwater_tests::requests::{Api, Width, apis};
use highwater_tests::{Allocator, Client, Random, ServeOptions, Server};

use crate::wire;
use attack::{Attacker, Outcome, mutate};
use valid::{TOPIC, Valid};

/// How many spoilt frames the two runs send each, beside one for every count of every version.
const MUTATED_FRAMES: usize = 20_000;

/// What the process's peak memory may grow by under attack.
const GROWTH_KIB_MAX: u64 = 10 * 1024;

/// One seed, so that a failure can be had again; change it to look elsewhere.
const SEED: u64 = 0x5eed_0003;

#[test]
fn hostile_frames_are_harmless_with_jemalloc() {
    attack_and_watch(Allocator::Jemalloc).unwrap();
}

#[test]
fn hostile_frames_are_harmless_with_the_system_allocator() {
    attack_and_watch(Allocator::System).unwrap();
}

fn attack_and_watch(allocator: Allocator) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let options = ServeOptions::default().allocator(allocator).set("auto.create.topics.enable", false);
    let mut server = Server::start_with(&directory.path().join("data"), options)?;
    let address = server.address();
    let mut client = Client::connect(address)?;
    let topic_id = wire::create_topic(&mut client, TOPIC, 1)?;
    wire::create_topic(&mut client, GOOD_TOPIC, 1)?;
    let apis = supported(address)?;
    let batch = wire::batch(&[b"hostile"]);

    // What is right is answered: else the frames below would be refused for another reason than their damage. All the
    // versions several times over, so that what the broker allocates once is there before memory is watched.
    for round in 0..20 {
        let mut client = Attacker::waiting(address, Duration::from_secs(5));
        let mut random = Random::new(round);
        for (api, version) in &apis {
            let frame = api.frame(*version, 77, "hostile", &mut Valid::new(topic_id, &batch, &mut random));
            let outcome = client.send(&frame.bytes)?;
            ensure!(outcome == Outcome::Answered(77), "{} v{version} as it should be: {outcome:?}", api.name);
        }
    }
    let stop = AtomicBool::new(false);
    let rounds = round_trips(address, &stop, Some(50))?;
    ensure!(rounds == 50, "{rounds} round trips");

    server.reset_peak_memory()?;
    let before = server.peak_memory_kib()?;
    let outcomes = thread::scope(|scope| -> anyhow::Result<BTreeMap<&str, usize>> {
        let good = scope.spawn(|| round_trips(address, &stop, None));
        let attackers: Vec<_> = (0..8_usize)
            .map(|worker| {
                scope.spawn({
                    let (apis, batch) = (&apis, &batch);
                    move || attacker(worker, address, apis, topic_id, batch)
                })
            })
            .collect();
        let mut outcomes = BTreeMap::new();
        for attacker in attackers {
            for (outcome, count) in attacker.join().expect("an attacker does not panic")? {
                *outcomes.entry(outcome).or_default() += count;
            }
        }
        stop.store(true, Ordering::Relaxed);
        let rounds =
            good.join().expect("the good client does not panic").context("the client that behaved was harmed")?;
        ensure!(rounds >= 100, "the client that behaved got only {rounds} round trips");
        outcomes.insert("good round trips", rounds);
        Ok(outcomes)
    })?;
    ensure!(server.is_running(), "the broker is gone");
    let peak = server.peak_memory_kib()?;
    let growth = peak.saturating_sub(before);
    println!("{allocator:?}: peak memory {before} KiB before, {peak} KiB after, grown by {growth} KiB; {outcomes:?}");
    ensure!(growth < GROWTH_KIB_MAX, "peak memory grew by {growth} KiB, from {before} to {peak}");
    let sent: usize = outcomes.iter().filter(|(name, _)| **name != "good round trips").map(|(_, count)| count).sum();
    ensure!(sent >= MUTATED_FRAMES, "only {sent} frames were sent");
    // Were they all refused at the first byte, or all accepted, the frames would be poor.
    for outcome in ["answered", "closed"] {
        let count = outcomes.get(outcome).copied().unwrap_or_default();
        ensure!(count * 50 > sent, "only {count} of {sent} frames were {outcome}");
    }
    ensure!(!server.log().contains("panicked"), "something panicked");
    let (status, took) = server.stop()?;
    ensure!(status.success() && took < Duration::from_secs(5), "stopped with {status} after {took:?}");
    Ok(())
}

/// One attacker's share: each count of each version at its worst, then spoilt frames.
fn attacker(
    worker: usize,
    address: SocketAddr,
    apis: &[(&Api, i16)],
    topic_id: [u8; 16],
    batch: &[u8],
) -> anyhow::Result<BTreeMap<&'static str, usize>> {
    let workers = 8;
    let mut attacker = Attacker::new(address);
    let mut random = Random::new(SEED ^ u64::try_from(worker)?);
    let mut outcomes = BTreeMap::new();
    let mut note = |outcome| {
        let name = match outcome {
            Outcome::Answered(_) => "answered",
            Outcome::Closed => "closed",
            Outcome::Silent => "silent",
        };
        *outcomes.entry(name).or_default() += 1;
    };
    for (api, version) in apis.iter().skip(worker).step_by(workers) {
        let frame = api.frame(*version, 5, "hostile", &mut Valid::new(topic_id, batch, &mut random));
        for count in &frame.counts {
            let worst: &[&[u8]] = match count.width {
                Width::Int16 => &[&[0x7f, 0xff]],
                Width::Int32 => &[&[0x7f, 0xff, 0xff, 0xff]],
                // 2^31 - 1 as a compact form writes it, and as a number of tags.
                Width::Varint => &[&[0x80, 0x80, 0x80, 0x80, 0x08], &[0xff, 0xff, 0xff, 0xff, 0x07]],
            };
            for value in worst {
                let outcome = attacker.send(&frame.with_count(*count, value))?;
                note(outcome);
                // Nothing with two thousand million elements can have been right.
                if count.of_array && !matches!(outcome, Outcome::Closed) {
                    ensure!(
                        matches!(outcome, Outcome::Answered(5)),
                        "{} v{version} with a count of 2^31-1 at byte {}: {outcome:?}",
                        api.name,
                        count.at
                    );
                }
            }
        }
    }
    for number in 0..MUTATED_FRAMES.div_ceil(workers) {
        let (api, version) = apis[(worker + number * workers) % apis.len()];
        let frame = api.frame(version, 6, "hostile", &mut Valid::new(topic_id, batch, &mut random));
        note(attacker.send(&mutate(&frame, &mut random))?);
    }
    Ok(outcomes)
}

/// Produces and fetches back, until told to stop or for a number of rounds. Every answer must be right and quick.
fn round_trips(address: SocketAddr, stop: &AtomicBool, limit: Option<usize>) -> anyhow::Result<usize> {
    let mut client = Client::connect(address)?;
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) && limit.is_none_or(|limit| rounds < limit) {
        let started = Instant::now();
        let value = format!("round trip {rounds}");
        let offset = wire::produce(&mut client, GOOD_TOPIC, &[value.as_bytes()])?;
        let records = wire::fetch(&mut client, GOOD_TOPIC, offset)?;
        let found = records.windows(value.len()).any(|window| window == value.as_bytes());
        ensure!(found, "what was fetched at {offset} is not what was produced");
        let took = started.elapsed();
        ensure!(took < Duration::from_secs(2), "a round trip took {took:?}");
        rounds += 1;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(rounds)
}

/// The topic of the client that behaves.
const GOOD_TOPIC: &str = "behaved";

/// Every request and version that the broker says it knows. One that `requests.txt` does not know is not tested, and
/// that must not go unnoticed.
fn supported(address: SocketAddr) -> anyhow::Result<Vec<(&'static Api, i16)>> {
    let apis: &'static [Api] = Vec::leak(apis());
    let response = wire::api_versions(&mut Client::connect(address)?)?;
    let mut supported = Vec::new();
    for range in &response.api_keys {
        let api = apis.iter().find(|api| api.key == range.api_key);
        let api = api.with_context(|| format!("requests.txt has no request {}", range.api_key))?;
        ensure!(
            api.versions.0 <= range.min_version && range.max_version <= api.versions.1,
            "requests.txt knows {} up to {:?}, the broker offers {} to {}",
            api.name,
            api.versions,
            range.min_version,
            range.max_version
        );
        supported.extend((range.min_version..=range.max_version).map(|version| (api, version)));
    }
    ensure!(response.api_keys.len() == apis.len(), "the broker offers {} APIs", response.api_keys.len());
    Ok(supported)
}
