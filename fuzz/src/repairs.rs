//! Repairing a directory in any state.
//!
//! What must hold: neither looking at it nor repairing it panics or fails; no byte that was cut out is gone; the log opens
//! without a scan and serves all that it served before, and more only where recovery would have put it aside. Nothing is left
//! to repair. Of a log that was written by appends and damaged afterwards, the first look shows all there is to do, and
//! what is still wrong was named before; where files hold any bytes, one fault may hide another.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::inspect::{Fault, FaultKind, Severity, VerifyEvent};
use highwater_storage::repair::{RepairAction, RepairEvent, RepairLock, RepairPlan};
use highwater_storage::{BatchView, CutReason, LogOptions};

use crate::directory::{Readable, file_bytes, file_names};
use crate::model::{DIR, open};

/// Verifies a copy of the disk, repairs it, verifies it again and opens it. Returns what the log then holds. `is_log`: it was
/// written by appends, and damaged afterwards.
pub(crate) fn repaired(fs: &SimFs, options: &LogOptions, is_log: bool) -> Readable {
    let served = Readable::verified(&open(&fs.process_crash_image(), options).0);

    let fs = fs.process_crash_image();
    let lock = RepairLock::take(&fs, Path::new(DIR)).expect("nobody has it open");
    let faults = verify(&lock, &fs);
    let plan = RepairPlan::of(&fs, Path::new(DIR), &mut |_| {}).expect("damage is no error");
    assert!(!plan.is_empty() || faults.iter().all(|fault| plan.left.contains(fault)), "no plan for {faults:#?}");
    let cut: Vec<Vec<u8>> = plan.actions.iter().filter_map(|action| cut_out(&fs, &plan, action)).collect();
    let mut rounds = 0;
    let shared: Arc<dyn Fs> = Arc::new(fs.clone());
    let left = lock.repair(&shared, &mut |event| rounds += usize::from(matches!(event, RepairEvent::Done(_))));
    let left = left.unwrap_or_else(|error| panic!("the simulated disk works: {error}\n{plan:#?}"));
    for bytes in &cut {
        let is_kept = |name: &String| name.contains(".log.damaged-") && file_bytes(&fs, name) == *bytes;
        assert!(file_names(&fs).iter().any(is_kept), "{} bytes that were cut out are gone: {plan:#?}", bytes.len());
    }

    assert_eq!(verify(&lock, &fs), left, "what is wrong after a repair, and what it says that stays");
    let stays = |kind| matches!(kind, FaultKind::Metadata | FaultKind::SegmentMissing | FaultKind::MaxTimestamp);
    assert!(left.iter().all(|fault| stays(fault.kind)), "after a repair: {left:#?}\nplanned: {plan:#?}");
    // A damaged end may have hidden that whole segments are missing behind it.
    let was_hidden = |fault: &Fault| fault.kind == FaultKind::SegmentMissing && !cut.is_empty();
    let was_named = |fault: &Fault| was_hidden(fault) || plan.left.iter().any(|named| named.kind == fault.kind);
    if is_log {
        assert!(left.iter().all(was_named), "after a repair: {left:#?}\nplanned: {plan:#?}");
        assert!(rounds <= 1, "a second round finds more to do; the first did: {plan:#?}");
    }
    drop(lock);

    let (log, report) = open(&fs, options);
    let found = Readable::verified(&log);
    let is_cut = rounds > 0 && report.cut.as_ref().is_some_and(|cut| cut.reason != CutReason::Zeros);
    assert!(!is_cut && found.is_whole(), "a repaired log cannot be read through: {report:?}\n{plan:#?}");
    assert!(
        served.batches().filter(|batch| has_records(batch)).all(|batch| found.holds(&batch)),
        "not all is served that was served before: {report:?}\nthe repair did: {plan:#?}"
    );
    found
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

/// The bytes that this action takes out of a segment.
fn cut_out(fs: &SimFs, plan: &RepairPlan, action: &RepairAction) -> Option<Vec<u8>> {
    let name = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).expect("names are plain");
        // The file that waits for its place is the one that is cut.
        let waiting = format!("{name}.swap");
        let takes_its_place = RepairAction::PutInPlace(Path::new(DIR).join(&waiting));
        let is_waiting = plan.actions.contains(&takes_its_place) && !matches!(action, RepairAction::SetAside(_));
        if is_waiting { waiting } else { name.to_owned() }
    };
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
