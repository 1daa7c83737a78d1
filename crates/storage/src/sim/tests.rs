use std::path::Path;

use super::*;
use crate::fs::{Fs, OpenMode};
use crate::io::FileExt;

#[test]
fn streams_of_one_seed_have_nothing_to_do_with_each_other() {
    let numbers = |mut random: Random| [random.draw(), random.draw(), random.draw()];
    assert_eq!(numbers(Random::stream(1, 2)), numbers(Random::stream(1, 2)));
    let mut seen = Vec::new();
    for (seed, purpose) in [(1, 1), (1, 2), (2, 1), (2, 2), (0, 0)] {
        seen.extend(numbers(Random::stream(seed, purpose)));
    }
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
}

#[test]
fn draws_keep_to_their_ranges_and_reach_their_ends() {
    let mut random = Random::stream(3, 0);
    let drawn: Vec<i64> = (0..500).map(|_| random.between(-2, 2)).collect();
    for expected in -2..=2 {
        assert!(drawn.contains(&expected), "{expected} is never drawn");
    }
    assert!(drawn.iter().all(|drawn| (-2..=2).contains(drawn)));
    assert_eq!(random.between(7, 7), 7);
    assert_eq!(random.index(0), 0);
    assert!((0..100).all(|_| random.one_in(1)));
    let picked: Vec<char> = (0..100).map(|_| random.pick(&['a', 'b'])).collect();
    assert!(picked.contains(&'a') && picked.contains(&'b'));
}

#[test]
fn a_clock_keeps_what_it_gained() {
    let mut clock = Clock::default();
    assert_eq!(clock.read(500), 500);
    clock.drift(1_000, 100);
    assert_eq!(clock.read(2_000), 2_100);
    clock.drift(2_000, -500);
    assert_eq!(clock.read(3_000), 2_600);
    clock.step(-1_000);
    clock.drift(3_000, 0);
    assert_eq!((clock.read(3_000), clock.read(4_000)), (1_600, 2_600));
}

#[test]
fn events_come_in_order_of_time_and_then_as_they_were_scheduled() {
    let mut queue = Queue::new(100);
    for (after, name) in [(5, 'c'), (0, 'a'), (5, 'd'), (-3, 'b')] {
        queue.schedule(after, name);
    }
    assert_eq!(queue.len(), 4);
    let mut order = Vec::new();
    while let Some(name) = queue.pop() {
        order.push((queue.now(), name));
    }
    assert_eq!(order, [(100, 'a'), (100, 'b'), (105, 'c'), (105, 'd')]);
    assert!(queue.is_empty() && queue.now() == 105);
}

#[test]
fn a_network_in_order_brings_each_message_once() {
    let mut network = Network::new(1, 3, 10);
    for now in 0..200 {
        let fates: Vec<Fate> = network.send(now, 0, 2).collect();
        assert!(matches!(fates[..], [Fate::Arrives { after_ms: 1..=10 }]), "{fates:?}");
    }
}

#[test]
fn messages_are_lost_doubled_and_late_until_then() {
    let mut network = Network::new(1, 2, 10);
    let sent = |network: &mut Network, now| -> Vec<Fate> {
        (0..400).flat_map(|_| network.send(now, 0, 1).collect::<Vec<_>>()).collect()
    };
    let lost = |fates: &[Fate]| fates.iter().filter(|fate| **fate == Fate::Lost).count();
    let late = |fates: &[Fate]| fates.iter().any(|fate| matches!(fate, Fate::Arrives { after_ms: 11.. }));
    network.lose(4, 100);
    let fates = sent(&mut network, 99);
    assert!((50..150).contains(&lost(&fates)) && fates.len() == 400);
    assert_eq!(lost(&sent(&mut network, 100)), 0);
    network.double(4, 200);
    assert!((450..550).contains(&sent(&mut network, 199).len()));
    assert_eq!(sent(&mut network, 200).len(), 400);
    network.slow(300);
    assert!(late(&sent(&mut network, 299)) && !late(&sent(&mut network, 300)));
}

#[test]
fn to_hear_is_not_to_be_heard() {
    let mut network = Network::new(1, 2, 10);
    network.cut(0, 1, 50);
    assert!(network.is_cut(49, 0, 1) && !network.is_cut(50, 0, 1) && !network.is_cut(49, 1, 0));
    assert!(network.send(49, 0, 1).all(|fate| fate == Fate::Lost));
    assert!(network.send(49, 1, 0).all(|fate| fate != Fate::Lost));
    network.heal();
    assert!(network.send(0, 0, 1).all(|fate| fate != Fate::Lost));
}

/// A spell that is asked for moves nothing on the links it does not strike.
#[test]
fn links_have_chance_of_their_own() {
    let fates = |before: usize| -> Vec<Fate> {
        let mut network = Network::new(9, 2, 1_000);
        (0..before).for_each(|_| assert!(network.send(0, 0, 1).count() > 0));
        (0..20).flat_map(|_| network.send(0, 1, 0).collect::<Vec<_>>()).collect()
    };
    assert_eq!(fates(0), fates(7));
}

#[test]
fn a_power_cut_leaves_what_was_synced_and_maybe_more() {
    let disk = SimFs::new(1);
    let file = disk.open(Path::new("/notes"), OpenMode::CreateNew).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    file.write_all_at(b" and not", 6).unwrap();
    let mut left = Vec::new();
    for choice in 0..40 {
        let mut bytes = [0; 20];
        let image = after_power_cut(&disk, choice);
        let file = image.open(Path::new("/notes"), OpenMode::Read).unwrap();
        let read = file.read_full_at(&mut bytes, 0).unwrap();
        assert!(bytes[..read].starts_with(b"synced"));
        left.push(read);
    }
    assert!(left.contains(&6) && left.contains(&14), "{left:?}");
}
