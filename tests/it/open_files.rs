//! A broker that may have few descriptors, with many more segments than that.

use std::path::Path;
use std::time::Duration;

use highwater_storage::batches;
use highwater_tests::{Client, ServeOptions, Server};

use crate::wire;

const TOPICS: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
const BATCHES: usize = 20;

/// Descriptors of a small container.
const DESCRIPTORS: u32 = 64;

fn number_of_files(data: &Path, topic: &str, extension: &str) -> usize {
    let entries = std::fs::read_dir(data.join(format!("{topic}-0"))).unwrap();
    entries.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|found| found == extension)).count()
}

/// The values of all records from the first on, or what the broker says instead.
fn contents(client: &mut Client, topic: &'static str) -> anyhow::Result<Vec<Vec<u8>>> {
    let mut values = Vec::new();
    loop {
        let bytes = wire::fetch(client, topic, i64::try_from(values.len())?)?;
        if bytes.is_empty() {
            return Ok(values);
        }
        for batch in batches(&bytes).map_while(Result::ok) {
            let records = batch.records().expect("they were sent uncompressed");
            values.extend(records.map(|record| record.unwrap().value.unwrap_or_default().to_vec()));
        }
    }
}

fn value(topic: &str, number: usize) -> Vec<u8> {
    let mut value = format!("{topic}/{number}/").into_bytes();
    value.resize(500, b'.');
    value
}

#[test]
fn s51_a_broker_with_few_descriptors_serves_many_segments() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let options = || ServeOptions::default().set("log.segment.bytes", 700);
    let mut server = Server::start_with(&data, options()).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    for topic in TOPICS {
        wire::create_topic(&mut client, topic, 1).unwrap();
        for number in 0..BATCHES {
            wire::produce(&mut client, topic, &[&value(topic, number)]).unwrap();
        }
    }
    drop(client);
    let (status, _) = server.stop().unwrap();
    assert_eq!(status.code(), Some(0), "{}", server.log());
    let mut removed = 0;
    for topic in TOPICS {
        assert!(number_of_files(&data, topic, "log") >= BATCHES, "{topic} has few segments");
        for entry in std::fs::read_dir(data.join(format!("{topic}-0"))).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "index" || extension == "timeindex") {
                std::fs::remove_file(path).unwrap();
                removed += 1;
            }
        }
    }
    assert!(removed >= 2 * TOPICS.len() * BATCHES, "{removed} index files");

    let mut server = Server::start_with(&data, options().descriptors_max(DESCRIPTORS)).unwrap();
    assert_eq!(server.ready().partitions, u64::try_from(TOPICS.len()).unwrap());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert!(open_files.split_whitespace().nth(4) == Some("64"), "{open_files}");
    let mut client = Client::connect(server.address()).unwrap();
    for topic in TOPICS {
        // It is ready before it is elected once more.
        let elected = (0..100).any(|_| match wire::fetch(&mut client, topic, 0) {
            Err(error) if error.to_string().ends_with("gives 6") => {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
            _ => true,
        });
        assert!(elected, "{topic} has no leader");
    }
    drop(client);
    for round in 0..2 {
        let mut client = Client::connect(server.address()).unwrap();
        for topic in TOPICS {
            let mut expected: Vec<Vec<u8>> = (0..BATCHES).map(|number| value(topic, number)).collect();
            expected.extend((0..round).map(|_| value(topic, BATCHES)));
            let found = contents(&mut client, topic).unwrap_or_else(|error| panic!("{topic}: {error:#}"));
            assert!(found == expected, "{topic}: {} records of {}", found.len(), expected.len());
            wire::produce(&mut client, topic, &[&value(topic, BATCHES)]).unwrap();
        }
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
        assert!(open < DESCRIPTORS as usize, "{open} descriptors");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(server.is_running(), "{}", server.log());
    let (status, _) = server.stop().unwrap();
    assert_eq!(status.code(), Some(0), "{}", server.log());
}
