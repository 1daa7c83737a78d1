//! The inspection of directories that real Kafka brokers wrote, whole and damaged: each fault is found where it is, and
//! nothing is found where there is none; what is repaired or copied is good.

mod copied;
mod found;
mod repaired;
mod segment;

use std::path::{Path, PathBuf};

use highwater_storage::fs::OsFs;
use highwater_storage::inspect::{
    Fault, FaultKind, Severity, Target, Verified, VerifyEvent, verify_partition, verify_root,
};

pub(crate) fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder)
}

/// Verifies a data root with its partitions.
pub(crate) fn verify(root: &Path) -> (Verified, Vec<Fault>) {
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
pub(crate) type Found = (FaultKind, String, Option<u64>, Option<(i64, i64)>);

pub(crate) fn faults(root: &Path) -> Vec<Found> {
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

pub(crate) fn copied(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copied(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// All files below a directory, with what is in them.
pub(crate) fn contents(dir: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut found = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), std::fs::read(path).unwrap());
        }
    }
    found
}
