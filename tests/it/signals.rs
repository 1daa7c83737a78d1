//! Stopping the real binary: cleanly, at once, and not at all.

use std::path::Path;
use std::time::{Duration, Instant};

use highwater_tests::{Client, Server};
use rustix::process::Signal;

use crate::wire;

/// Kafka's name for the file that says a log root was closed in order.
const CLEAN_MARKER: &str = ".kafka_cleanshutdown";

/// How long a clean stop may take.
const STOP_LIMIT: Duration = Duration::from_secs(5);

fn with_records(data: &Path, batches: usize) -> Server {
    let server = Server::start(data).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    wire::create_topic(&mut client, "signals", 1).unwrap();
    for _ in 0..batches {
        wire::produce(&mut client, "signals", &[b"a", b"b", b"c"]).unwrap();
    }
    server
}

#[test]
fn sigterm_and_sigint_stop_cleanly_and_the_next_start_scans_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let mut server = with_records(&data, 100);
        assert!(!data.join(CLEAN_MARKER).exists(), "a running broker has a clean-shutdown marker");
        // An open connection, idle or not, must not hold up the stop.
        let idle = Client::connect(server.address()).unwrap();
        server.signal(signal).unwrap();
        let (status, took) = server.wait(Duration::from_secs(20)).unwrap();
        drop(idle);
        assert_eq!(status.code(), Some(0), "{signal:?}: {}", server.log());
        assert!(took < STOP_LIMIT, "{signal:?}: stopping took {took:?}");
        assert!(data.join(CLEAN_MARKER).exists(), "{signal:?}: there is no clean-shutdown marker");

        server.start_again().unwrap();
        assert_eq!((server.ready().partitions, server.ready().records_recovered), (1, 0));
        assert!(!data.join(CLEAN_MARKER).exists(), "the marker is still there while the broker runs");
    }
}

#[test]
fn a_killed_broker_leaves_no_marker_and_scans() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut server = with_records(&data, 100);
    server.kill().unwrap();
    assert!(!data.join(CLEAN_MARKER).exists());
    server.start_again().unwrap();
    assert_eq!(server.ready().partitions, 1);
    let recovered = server.ready().records_recovered;
    assert!((1..=300).contains(&recovered), "{recovered} of 300 records were scanned");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut server = with_records(&directory.path().join("data"), 10);
    server.signal(Signal::TERM).unwrap();
    server.signal(Signal::TERM).unwrap();
    let (_, took) = server.wait(Duration::from_secs(20)).unwrap();
    assert!(took < Duration::from_secs(1), "it took {took:?}");
}

#[test]
fn it_is_ready_in_a_moment_and_small() {
    let directory = tempfile::tempdir().unwrap();
    // The first start reads the program from the disk.
    drop(Server::start(&directory.path().join("first")).unwrap());
    let started = Instant::now();
    let server = Server::start(&directory.path().join("data")).unwrap();
    let took = started.elapsed();
    // 100 ms on a machine that does nothing else; this one may be running a whole test suite.
    assert!(took < Duration::from_millis(500), "ready after {took:?}");
    let memory = server.memory_kib().unwrap();
    assert!(memory < 25 * 1024, "an idle broker has {memory} KiB resident");
}
