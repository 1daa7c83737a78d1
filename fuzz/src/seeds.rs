//! The seeds that are made from the fixtures and from the directories that Kafka wrote (`crates/storage/tests`).
//!
//! They are committed, so that fuzzing needs nothing but this directory, and a test holds them to what this module makes.
//! `HIGHWATER_WRITE_SEEDS=1 cargo test … seeds` writes them. Seeds with other names were found by fuzzing or by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use highwater_storage::LogOptions;

use crate::directory::{begin, found, pack};
use crate::input::random_bytes;
use crate::model::open;
use crate::truncate_to_high_watermark::beginning_model;

/// A seed is no larger than this: what is small is mutated well.
const SEED_BYTES_MAX: usize = 9_000;

/// Partition directories with something particular in each.
const DIRECTORIES: [&str; 16] = [
    "compacted/log/compact-0",
    "compacted/log/compact-txn-0",
    "compacted/log/compact-zstd-0",
    "deleted-prefix/log/delrec-0",
    "idempotent/log/idem-wrap-0",
    "leader-epochs/log/epoch-0",
    "old-formats/log/magic0-0",
    "old-formats/log/magic1-0",
    "old-formats/log/mixed-0",
    "transactional/log/txn-0",
    "transactional-v1/log/txn-1",
    "clean-damaged-files/before/d-swap-0",
    "clean-damaged-files/before/d-badindex-0",
    "clean-damaged-files/before/d-cuttxnindex-0",
    "unclean/before/unclean-txn-0",
    "unclean-torn/before/unclean-0",
];

const TARGETS: [&str; 8] = [
    "compaction",
    "index_load",
    "legacy_messages",
    "log_operations",
    "record_batch",
    "replica_operations",
    "segment_recovery",
    "truncate_to_high_watermark",
];

fn storage_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/storage/tests")
}

fn files_in(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut files: Vec<_> = paths.map(|path| (name(&path), fs::read(&path).unwrap())).collect();
    files.sort();
    files
}

/// As many files of a directory as fit, the small ones first, then those with records.
fn packed(directory: &str) -> Vec<u8> {
    let mut files = files_in(&storage_tests().join("data").join(directory));
    files.sort_by_key(|(name, content)| (name.ends_with(".log"), content.len() > 4_000, name.clone()));
    let mut bytes = Vec::new();
    for (name, content) in files {
        // An index may still have the length that was allocated for it: zeros.
        let content = &content[..content.len().min(4_000)];
        let Some(file) = pack(&name, content) else { continue };
        if bytes.len() + file.len() <= SEED_BYTES_MAX {
            bytes.extend(file);
        }
    }
    bytes
}

/// A program that begins with a directory that Kafka wrote; `None` if the target does not begin with that one.
fn beginning(target: &str, program: &[u8], directory: &str) -> Option<Vec<u8>> {
    let mut files = files_in(&storage_tests().join("data").join(directory));
    // The log's first segments as they are, and only with them its side files: an end that is torn is not read through.
    let bases: Vec<String> =
        files.iter().filter_map(|(name, _)| name.strip_suffix(".log")).map(str::to_owned).collect();
    let (mut bytes, mut count) = (0, 0);
    for base in &bases {
        bytes +=
            files.iter().filter(|(name, _)| name.starts_with(base)).map(|(_, content)| content.len()).sum::<usize>();
        count += usize::from(bytes < SEED_BYTES_MAX);
    }
    files.retain(|(name, _)| !name.starts_with('0') || bases[..count].iter().any(|base| name.starts_with(base)));
    let packed: Vec<u8> = files.iter().filter_map(|(name, content)| pack(name, content)).flatten().collect();
    let seed = begin(program, &packed);
    let log = open(&crate::directory::beginning(&seed).1, &LogOptions::default()).0;
    let begins = match target {
        "log_operations" => found(&log).is_some_and(|batches| batches.len() > 1),
        _ => beginning_model(&log).is_some_and(|model| model.batches.len() > 1),
    };
    begins.then_some(seed)
}

type Seeds = BTreeMap<String, Vec<u8>>;

fn joined(parts: [&[u8]; 2]) -> Vec<u8> {
    parts.concat()
}

fn short_name(directory: &str) -> String {
    directory.replace("/log", "").replace("/before", "").replace('/', "-")
}

/// The seeds of one target.
fn seeds_of(target: &str) -> Seeds {
    let mut seeds = Seeds::new();
    let mut programs = |count: u64| {
        for number in 0..count {
            seeds.insert(format!("program-{number:02}"), random_bytes(number));
        }
    };
    match target {
        "segment_recovery" => {
            for directory in DIRECTORIES {
                // Options, "a directory", and what is left of the twelve bytes that say how a program ends.
                let mode = [2, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];
                seeds.insert(format!("kafka-{}", short_name(directory)), joined([&mode, &packed(directory)]));
            }
        }
        "record_batch" => {
            for (name, content) in files_in(&storage_tests().join("fixtures")) {
                if content.len() <= SEED_BYTES_MAX {
                    seeds.insert(format!("fixture-{name}"), joined([&[3, 0, 2, 0], &content]));
                }
            }
            for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
                let directory = storage_tests().join(format!("data/codecs/log/codec-{codec}-0"));
                let first = files_in(&directory).into_iter().find(|(name, _)| name.ends_with(".log")).unwrap().1;
                let (_, length) = highwater_storage::BatchView::parse(&first).unwrap();
                for seals in [0, 1] {
                    let seed = joined([&[3, 0, 2, seals], &first[..length]]);
                    seeds.insert(format!("kafka-{codec}-{seals}"), seed);
                }
            }
        }
        "legacy_messages" => {
            for directory in DIRECTORIES.iter().filter(|directory| directory.starts_with("old-formats")) {
                for (name, content) in files_in(&storage_tests().join("data").join(directory)) {
                    if name.ends_with(".log") && (1..=SEED_BYTES_MAX).contains(&content.len()) {
                        let name = format!("kafka-{}-{}", short_name(directory), &name[16..20]);
                        seeds.insert(name, joined([&[2, 0], &content]));
                    }
                }
            }
        }
        "replica_operations" => programs(12),
        "index_load" => {
            programs(6);
            for (number, directory) in (0..).zip(DIRECTORIES) {
                let files = files_in(&storage_tests().join("data").join(directory));
                let index =
                    files.iter().find(|(name, bytes)| name.ends_with("index") && (8..400).contains(&bytes.len()));
                if let Some((_, content)) = index {
                    let name = format!("kafka-{}", short_name(directory));
                    seeds.insert(name, joined([&random_bytes(100 + number), content]));
                }
            }
        }
        "compaction" => {
            programs(10);
            for directory in DIRECTORIES {
                // Options, and "a directory".
                let mode = [1, 0, 2, 2, 3, 2, 1, 2, 0];
                seeds.insert(format!("kafka-{}", short_name(directory)), joined([&mode, &packed(directory)]));
            }
        }
        "log_operations" | "truncate_to_high_watermark" => {
            if target == "log_operations" {
                programs(12);
            }
            for (number, directory) in (200..).zip(DIRECTORIES) {
                if let Some(seed) = beginning(target, &random_bytes(number), directory) {
                    seeds.insert(format!("kafka-{}", short_name(directory)), seed);
                }
            }
        }
        _ => unreachable!("{target} is no target"),
    }
    seeds
}

#[test]
fn seeds_are_what_the_fixtures_and_kafkas_directories_make() {
    let writes = std::env::var_os("HIGHWATER_WRITE_SEEDS").is_some();
    for target in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
        for (name, content) in seeds_of(target) {
            assert!(content.len() < SEED_BYTES_MAX + 1_000, "{target}/{name} has {} bytes", content.len());
            let path = directory.join(name);
            if writes {
                fs::create_dir_all(&directory).unwrap();
                fs::write(&path, &content).unwrap();
            }
            let committed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(committed == content, "{} is not what is made of the test data now", path.display());
        }
    }
}
