//! Repairing a directory in any state.
//!
//! What must hold: neither looking at it nor repairing it panics or fails; no byte that was cut out is gone; the log opens
//! without a scan and serves all that it served before, and more only where recovery would have put it aside. Of a log that was
//! written by appends and damaged afterwards, nothing is left to repair, and what is still wrong was named before; where
//! files hold any bytes, one fault may hide another, which the next repair finds.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::inspect::{Fault, FaultKind, Severity, VerifyEvent};
use highwater_storage::repair::{RepairAction, RepairError, RepairLock, RepairPlan};
use highwater_storage::{BatchView, LogOptions};

use crate::directory::{Readable, file_bytes, file_names};
use crate::model::{DIR, open};

/// Verifies a copy of the disk, repairs it, verifies it again and opens it. Returns what the log then holds; `None` if a
/// broker has to complete an interrupted compaction first. `is_log`: it was written by appends, and damaged afterwards.
pub(crate) fn repaired(fs: &SimFs, options: &LogOptions, is_log: bool) -> Option<Readable> {
    let served = Readable::verified(&open(&fs.process_crash_image(), options).0);

    let fs = fs.process_crash_image();
    let lock = RepairLock::take(&fs, Path::new(DIR)).expect("nobody has it open");
    let faults = verify(&lock, &fs);
    let plan = match RepairPlan::of(&fs, Path::new(DIR), &mut |_| {}) {
        Ok(plan) => plan,
        Err(RepairError::Unfinished(_)) => return None,
        Err(error) => panic!("damage is no error: {error}"),
    };
    assert!(!plan.is_empty() || faults.iter().all(|fault| plan.left.contains(fault)), "no plan for {faults:#?}");
    let cut: Vec<Vec<u8>> = plan.actions.iter().filter_map(|action| cut_out(&fs, action)).collect();
    apply(&plan, &fs);
    for bytes in &cut {
        let is_kept = |name: &String| name.contains(".log.damaged-") && file_bytes(&fs, name) == *bytes;
        assert!(file_names(&fs).iter().any(is_kept), "{} bytes that were cut out are gone: {plan:#?}", bytes.len());
    }

    let left = verify(&lock, &fs);
    // A damaged end may have hidden that whole segments are missing behind it.
    let was_hidden = |fault: &Fault| fault.kind == FaultKind::SegmentMissing && !cut.is_empty();
    let was_named = |fault: &Fault| was_hidden(fault) || plan.left.iter().any(|named| named.kind == fault.kind);
    if is_log {
        assert!(left.iter().all(was_named), "after a repair: {left:#?}\nplanned: {plan:#?}");
        let again = RepairPlan::of(&fs, Path::new(DIR), &mut |_| {}).expect("it was repaired just now");
        assert!(again.is_empty(), "a second repair finds more to do: {again:#?}\nthe first did: {plan:#?}");
    }
    drop(lock);

    let (log, report) = open(&fs, options);
    let found = Readable::verified(&log);
    assert!(
        served.batches().filter(|batch| has_records(batch)).all(|batch| found.holds(&batch)),
        "not all is served that was served before: {report:?}\nthe repair did: {plan:#?}"
    );
    Some(found)
}

fn verify(lock: &RepairLock, fs: &SimFs) -> Vec<Fault> {
    let mut faults = Vec::new();
    let verified = lock.verify(fs, &mut |event| {
        if let VerifyEvent::Found(fault) = event {
            faults.push(fault);
        }
    });
    let verified = verified.expect("damage is no error");
    faults.retain(|fault| fault.severity() != Severity::Note);
    assert_eq!(usize::try_from(verified.faults), Ok(faults.len()), "every fault is told");
    faults
}

fn apply(plan: &RepairPlan, fs: &SimFs) {
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    plan.apply(&shared, &mut |_| {}).unwrap_or_else(|error| panic!("the simulated disk works: {error}\n{plan:#?}"));
}

/// The bytes that this action takes out of a segment.
fn cut_out(fs: &SimFs, action: &RepairAction) -> Option<Vec<u8>> {
    let name = |file: &PathBuf| file.file_name().and_then(|name| name.to_str()).expect("names are plain").to_owned();
    match action {
        RepairAction::Cut { file, position, bytes } => {
            let position = usize::try_from(*position).expect("files are small");
            let bytes = usize::try_from(*bytes).expect("files are small");
            Some(file_bytes(fs, &name(file))[position..position + bytes].to_vec())
        }
        RepairAction::SetAside(file) => Some(file_bytes(fs, &name(file))),
        _ => None,
    }
}

/// Whether a batch is more than a header with a checksum: a repair cuts out one whose records cannot be read, or have
/// offsets that are not its own.
fn has_records(batch: &BatchView<'_>) -> bool {
    let Ok(mut records) = batch.read_records(1 << 20) else { return false };
    let mut before = None;
    loop {
        match records.next() {
            Ok(Some(record)) if before < Some(record.offset) && record.offset <= batch.last_offset() => {
                before = Some(record.offset);
            }
            Ok(None) => return true,
            Ok(Some(_)) | Err(_) => return false,
        }
    }
}
