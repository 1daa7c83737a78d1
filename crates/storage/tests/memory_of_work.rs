//! Compaction, verification and the planning of a repair take memory for what they are told to keep and for the largest
//! batch, and not for the log: four times the log takes no more.
//!
//! The log lies on the real file system: the simulated one keeps its files in the memory that is measured.

mod support;

use std::iter;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use highwater_storage::fs::OsFs;
use highwater_storage::*;
use peak_alloc::PeakAlloc;
use support::*;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The tests measure one process: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most memory in use on the way, beyond what was in use before.
fn peak_of<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let value = run();
    (value, MEMORY.peak_usage().saturating_sub(before))
}

const BATCH_BYTES: usize = 400_000;
const BUFFER_BYTES: usize = 64 << 10;
const MAP_BYTES: usize = 256 << 10;

fn options() -> LogOptions {
    let compaction = CompactionOptions {
        min_cleanable_dirty_ratio: 0.0,
        io_buffer_bytes: BUFFER_BYTES as u32,
        piece_bytes: 300_000,
        memory: CompactionMemory::bounded(MAP_BYTES as u64),
        ..CompactionOptions::default()
    };
    LogOptions {
        segment_bytes: 1 << 20,
        retention: false,
        scrub_interval_ms: -1,
        compaction: Some(compaction),
        ..LogOptions::default()
    }
}

fn keyed(keys: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    for key in keys {
        builder.push(Record::keyed(NOW, &key.to_be_bytes(), &[7; 100]));
    }
    let batch = builder.build();
    assert!(batch.len() < BATCH_BYTES);
    batch
}

/// A log of so many MiB, two batches to a segment. Of the first batch one record is superseded, which takes the most memory;
/// the others have each of 20,000 keys again and again.
fn filled_log(dir: &Path, mebibytes: usize) -> Log {
    let (mut log, _) = Log::open(dir, options()).unwrap();
    let a_batch = (BATCH_BYTES / 120) as u64;
    append(&mut log, &keyed(1 << 40..(1 << 40) + a_batch));
    append(&mut log, &keyed(iter::once(1 << 40)));
    let mut number = 0;
    while log.size_bytes() < (mebibytes as u64) << 20 {
        append(&mut log, &keyed((number..number + a_batch).map(|number| number * 7919 % 20_011)));
        number += a_batch;
    }
    log.checkpoint().unwrap();
    log
}

/// What the larger of two logs took. The smaller must have taken as much, give or take a list of files.
fn of_both(what: &str, measure: impl Fn(&Path, usize) -> usize) -> usize {
    let [small, large] = [8, 32].map(|mebibytes| {
        let directory = tempfile::tempdir().unwrap();
        measure(&directory.path().join("log"), mebibytes)
    });
    println!("{what}: {small} bytes for 8 MiB, {large} for 32 MiB");
    assert!(large < small + (64 << 10), "{what}: {small} bytes for 8 MiB, {large} for 32 MiB");
    large
}

#[test]
fn a_compaction_takes_its_map_its_buffers_and_a_few_batches() {
    let _alone = alone();
    let peak = of_both("compaction", |dir, mebibytes| {
        let mut log = filled_log(dir, mebibytes);
        let (before, end) = (log.size_bytes(), log.end());
        let (steps, peak) = peak_of(|| keep_house(&mut log, NOW, end));
        assert!(steps.iter().any(|step| matches!(step, Step::Compacted { .. })), "{steps:?}");
        assert!(steps.iter().filter(|step| matches!(step, Step::Compacting)).count() > 5, "{steps:?}");
        assert!(log.size_bytes() < before);
        peak
    });
    assert!(peak > MAP_BYTES, "the map is seen");
    let bound = MAP_BYTES + 4 * BUFFER_BYTES + 4 * BATCH_BYTES;
    assert!(peak < bound, "{peak} bytes where {bound} are promised");
}

#[test]
fn verifying_and_planning_a_repair_take_a_few_batches() {
    let _alone = alone();
    let closed = |dir: &Path, mebibytes| filled_log(dir, mebibytes).close().unwrap();
    let verify = of_both("verify", |dir, mebibytes| {
        closed(dir, mebibytes);
        let (verified, peak) = peak_of(|| inspect::verify_partition(&OsFs, dir, &mut |_| {}));
        assert_eq!(verified.unwrap().faults, 0);
        peak
    });
    let plan = of_both("repair plan", |dir, mebibytes| {
        closed(dir, mebibytes);
        let name = dir.join(format!("{:020}.log", 0));
        let mut bytes = std::fs::read(&name).unwrap();
        bytes[BATCH_BYTES / 2] ^= 1;
        std::fs::write(&name, bytes).unwrap();
        let (plan, peak) = peak_of(|| repair::RepairPlan::of(&OsFs, dir, &mut |_| {}));
        assert!(!plan.unwrap().is_empty());
        peak
    });
    let bound = 3 * BATCH_BYTES + (1 << 20);
    assert!(verify.max(plan) < bound, "{verify} and {plan} bytes where {bound} are promised");
}
