//! The inspection of directories that real Kafka brokers wrote, whole and damaged: each fault is found where it is, and
//! nothing is found where there is none.

use std::path::{Path, PathBuf};

use highwater_storage::fs::OsFs;
use highwater_storage::inspect::{
    Fault, FaultKind, Severity, Target, Verified, VerifyEvent, verify_partition, verify_root,
};
use highwater_storage::{Offset, inspect};

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// Verifies a data root with its partitions.
fn verify(root: &Path) -> (Verified, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut read = 0;
    let mut tell = |event| match event {
        VerifyEvent::Found(fault) => faults.push(fault),
        VerifyEvent::Read(bytes) => read += bytes,
        _ => {}
    };
    let Target::Root { partitions, .. } = Target::of(&OsFs, root).unwrap() else { panic!("{root:?} is no root") };
    let mut verified = verify_root(&OsFs, root, &mut tell).unwrap();
    for partition in partitions {
        verified.add(verify_partition(&OsFs, &partition, &mut tell).unwrap());
    }
    assert_eq!(read, verified.bytes, "progress adds up");
    (verified, faults)
}

/// What is wrong, but for notes: kind, file below the root, position and offsets.
type Found = (FaultKind, String, Option<u64>, Option<(i64, i64)>);

fn faults(root: &Path) -> Vec<Found> {
    let (verified, faults) = verify(root);
    let found: Vec<_> = faults
        .into_iter()
        .filter(|fault| fault.severity() > Severity::Note)
        .map(|fault| {
            let file = fault.file.strip_prefix(root).unwrap().display().to_string();
            (fault.kind, file, fault.position, fault.offsets.map(|offsets| (offsets.start.0, offsets.end.0)))
        })
        .collect();
    assert_eq!(verified.faults, found.len() as u64);
    found
}

#[test]
fn nothing_is_wrong_with_what_kafka_closed_or_recovered() {
    for folder in [
        "codecs/log",
        "compacted/log",
        "deleted-prefix/log",
        "deleted-prefix-pending/log",
        "idempotent/log",
        "idempotent-reopened/log",
        "leader-epochs/log",
        "log-append-time/log",
        "old-formats/log",
        "plain-multi/log",
        "three-replicas/broker-1",
        "three-replicas/broker-2",
        "three-replicas/broker-3",
        "three-replicas/killed-broker-2",
        "transactional/log",
        "transactional-v1/log",
        "unclean/before",
        "unclean/after",
        "unclean-torn/after",
        "unclean-flip-active/after",
        "unclean-flip-unflushed/after",
    ] {
        assert_eq!(faults(&data(folder)), [], "{folder}");
    }
}

#[test]
fn each_flipped_bit_is_found_in_its_batch() {
    let log = |base: u64| format!("unclean-0/{base:020}.log");
    for (folder, base, position, offset) in [
        ("unclean-flip-active/before", 249, 1901, 260),
        ("unclean-flip-sealed/before", 67, 2250, 80),
        ("unclean-flip-sealed/after", 67, 2250, 80),
        ("unclean-flip-unflushed/before", 157, 2150, 170),
        ("clean-flip-active/before", 249, 1901, 260),
        ("clean-flip-active/after", 249, 1901, 260),
    ] {
        let expected = [(FaultKind::Checksum, log(base), Some(position), Some((offset, offset + 1)))];
        assert_eq!(faults(&data(folder)), expected, "{folder}");
    }
    let torn = [(FaultKind::TornTail, log(249), Some(3474), None)];
    assert_eq!(faults(&data("unclean-torn/before")), torn);
    let epoch = (FaultKind::LeaderEpoch, log(249), Some(1901), Some((260, 261)));
    assert_eq!(faults(&data("unclean-flip-epoch/before")), std::slice::from_ref(&epoch));
    // Kafka has forgotten the history for it.
    let forgotten = (FaultKind::Epochs, "unclean-0/leader-epoch-checkpoint".to_owned(), None, Some((0, 270)));
    assert_eq!(faults(&data("unclean-flip-epoch/after")), [epoch, forgotten]);
}

#[test]
fn each_damaged_side_file_is_found() {
    use FaultKind as Kind;
    let expected = |cases: &[(FaultKind, &str, Option<u64>, Option<(i64, i64)>)]| -> Vec<Found> {
        cases.iter().map(|(kind, file, position, offsets)| (*kind, (*file).to_owned(), *position, *offsets)).collect()
    };
    let before = expected(&[
        (Kind::OffsetIndex, "d-badindex-0/00000000000000000014.index", Some(0), None),
        (Kind::Snapshot, "d-badsnapshot-0/00000000000000000030.snapshot", None, None),
        (Kind::OffsetIndex, "d-cutindex-0/00000000000000000014.index", Some(32), None),
        (Kind::TransactionIndex, "d-cuttxnindex-0/00000000000000000000.txnindex", None, Some((10, 14))),
        (Kind::EpochsMissing, "d-noepochs-0/leader-epoch-checkpoint", None, None),
        (Kind::OffsetIndexMissing, "d-noindex-0/00000000000000000015.index", None, None),
        (Kind::SnapshotsMissing, "d-nosnapshots-0", None, None),
        (Kind::TimeIndexMissing, "d-notimeindex-0/00000000000000000013.timeindex", None, None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000015.index", Some(40), None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000029.index", Some(0), None),
    ]);
    assert_eq!(faults(&data("clean-damaged-files/before")), before);
    // What Kafka did not notice, or replaced by something worse, is still there when it has stopped.
    let after = expected(&[
        (Kind::OffsetIndex, "d-badindex-0/00000000000000000014.index", Some(0), None),
        (Kind::TransactionIndex, "d-cuttxnindex-0/00000000000000000000.txnindex", None, Some((10, 14))),
        (Kind::Epochs, "d-noepochs-0/leader-epoch-checkpoint", None, Some((0, 30))),
        (Kind::SnapshotContent, "d-nosnapshots-0/00000000000000000029.snapshot", None, Some((27, 29))),
        (Kind::TimeIndexMissing, "d-notimeindex-0/00000000000000000013.timeindex", None, None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000015.index", Some(40), None),
        (Kind::OffsetIndex, "d-notrim-0/00000000000000000029.index", Some(0), None),
    ]);
    assert_eq!(faults(&data("clean-damaged-files/after")), after);
}

#[test]
fn a_summary_tells_what_kafka_tells() {
    let summary = inspect::PartitionSummary::of(&OsFs, &data("deleted-prefix/log/delrec-0")).unwrap();
    assert_eq!((summary.log_start, summary.end), (Offset(137), Offset(250)));
    assert_eq!(summary.stop, inspect::Stop::Clean);
    assert_eq!(summary.writer, inspect::Writer::Kafka);
    let summary = inspect::PartitionSummary::of(&OsFs, &data("unclean/before/unclean-0")).unwrap();
    assert_eq!(
        (summary.stop, summary.end, summary.recovery_point),
        (inspect::Stop::Unclean, Offset(270), Some(Offset(157)))
    );
}
