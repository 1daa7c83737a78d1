//! Faults that other logs had, each as its report tells it (the numbers are those of `docs/storage-faults.md`), where the
//! tests of damage, crashes and plain use do not come by anyway.

#[path = "../support/mod.rs"]
mod support;

mod indexes;
mod leftovers;
mod producers;
mod readers;
mod replicas;
mod sizes;
mod starts;
mod times;
mod truncation;

use highwater_storage::fs::SimFs;
use highwater_storage::{Log, Offset, ReadLimit, Step, TimestampMs};
use support::{T0, contents, names};

/// The files of the log with this ending, by rising base offset.
fn files(fs: &SimFs, suffix: &str) -> Vec<String> {
    names(fs).into_iter().filter(|name| name.ends_with(suffix)).collect()
}

/// Every record is found by its offset, and by its timestamp, which counts up from [`T0`] with the offset.
fn everything_is_found(log: &Log, all: &[(i64, Vec<u8>)]) {
    let reader = log.reader();
    assert_eq!(contents(&reader), all);
    for (offset, _) in all {
        assert_eq!(reader.read(Offset(*offset), ReadLimit::bytes(1)).unwrap().first, Offset(*offset));
        let found = reader.offset_for_timestamp(TimestampMs(T0 + offset), Offset::MAX).unwrap().unwrap();
        assert_eq!((found.offset, found.timestamp), (Offset(*offset), TimestampMs(T0 + offset)));
    }
    let last = reader.max_timestamp(Offset::MAX).unwrap().unwrap();
    assert_eq!(last.offset, Offset(all.last().unwrap().0));
}

/// Whether housekeeping wrote an index anew.
fn rebuilds_an_index(steps: &[Step]) -> bool {
    steps.iter().any(|step| matches!(step, Step::IndexesWritten { .. } | Step::Scrubbed { indexes_rebuilt: true, .. }))
}

/// Closes a log well, or not.
fn stop(log: Log, well: bool) {
    if well {
        log.close().unwrap();
    }
}
