//! The fuzz target `wire_request` without the fuzzer: its seeds, and connections drawn at random.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use highwater_fuzz::wire_request;
use highwater_tests::Random;

/// Random inputs, beside the seeds.
const INPUTS: usize = 4_000;

#[test]
fn the_seeds_and_random_bytes_as_connections_harm_no_broker() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds/wire_request");
    let mut seeds: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    seeds.sort();
    assert!(seeds.len() >= 100, "only {} seeds in {}", seeds.len(), directory.display());
    for seed in seeds {
        let data = fs::read(&seed).unwrap();
        assert!(catch_unwind(|| wire_request::run(&data)).is_ok(), "the seed {} fails", seed.display());
    }
    let mut random = Random::new(super::SEED);
    for number in 0..INPUTS {
        let data: Vec<u8> = (0..8 + random.below(200)).map(|_| random.byte()).collect();
        if catch_unwind(|| wire_request::run(&data)).is_err() {
            let file = std::env::temp_dir().join(format!("wire_request-{number}"));
            fs::write(&file, &data).unwrap();
            panic!("input {number} fails; it is kept in {}", file.display());
        }
    }
}
