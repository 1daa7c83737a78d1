//! kill -9 while producers write: what was acknowledged is there afterwards, byte for byte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use highwater_storage::batches;
use highwater_tests::{Client, Server};

use crate::wire;

/// A producer's value: which producer, which of its values, and a length that varies.
fn value(producer: usize, number: usize) -> Vec<u8> {
    let mut value = format!("{producer}/{number}/").into_bytes();
    value.resize(value.len() + number * 37 % 3000, b'.');
    value
}

#[test]
fn acknowledged_records_survive_kill_nine() {
    const TOPICS: [&str; 3] = ["first", "second", "third"];
    let directory = tempfile::tempdir().unwrap();
    let mut server = Server::start(&directory.path().join("data")).unwrap();
    let mut client = Client::connect(server.address()).unwrap();
    for topic in TOPICS {
        wire::create_topic(&mut client, topic, 1).unwrap();
    }
    for round in 0..4 {
        let address = server.address();
        let dead = AtomicBool::new(false);
        // Offsets that were acknowledged, with their values, one list for each producer.
        let acknowledged: Vec<Vec<(i64, Vec<u8>)>> = thread::scope(|scope| {
            let producers: Vec<_> = TOPICS
                .into_iter()
                .enumerate()
                .map(|(producer, topic)| {
                    let dead = &dead;
                    scope.spawn(move || {
                        let mut client = Client::connect(address).unwrap();
                        let mut acknowledged = Vec::new();
                        for number in 0.. {
                            let value = value(producer, number);
                            match wire::produce(&mut client, topic, &[&value]) {
                                Ok(offset) => acknowledged.push((offset, value)),
                                Err(error) => {
                                    assert!(dead.load(Ordering::SeqCst), "refused while the broker lived: {error:#}");
                                    break;
                                }
                            }
                        }
                        acknowledged
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(150 + 70 * round));
            dead.store(true, Ordering::SeqCst);
            server.kill().unwrap();
            producers.into_iter().map(|producer| producer.join().unwrap()).collect()
        });

        server.start_again().unwrap();
        let mut client = Client::connect(server.address()).unwrap();
        for (topic, acknowledged) in TOPICS.into_iter().zip(acknowledged) {
            assert!(acknowledged.len() > 10, "round {round}: only {} records were acknowledged", acknowledged.len());
            let (from, _) = acknowledged[0];
            let mut stored = Vec::new();
            let mut next = from;
            loop {
                let bytes = wire::fetch(&mut client, topic, next).unwrap();
                if bytes.is_empty() {
                    break;
                }
                for batch in batches(&bytes).map_while(Result::ok) {
                    assert!(batch.crc_matches());
                    next = batch.header().next_offset().0;
                    let records = batch.records().expect("they were sent uncompressed");
                    stored.extend(records.map(|record| record.unwrap().value.unwrap_or_default().to_vec()));
                }
            }
            for (offset, value) in &acknowledged {
                let at = usize::try_from(offset - from).unwrap();
                assert!(stored.get(at) == Some(value), "round {round}: {topic}: the record at {offset} is lost");
            }
            // One record was on its way when the broker died, and may be there or not; nothing else is.
            assert!(stored.len() <= acknowledged.len() + 1, "round {round}: {topic} holds records that nobody sent");
        }
    }
}
