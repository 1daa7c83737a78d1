//! Damage to a stopped partition, and its repair, before Kafka gets to see it.

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use highwater_storage::batches;
use highwater_storage::fs::OsFs;
use highwater_storage::inspect::VerifyEvent;
use highwater_storage::repair::{RepairAction, RepairLock, RepairPlan};

/// Where in a batch a byte lies that the checksum covers, in the timestamps.
const COVERED: usize = 30;

/// Damages a partition of several segments in all the ways that a repair puts right, and repairs it as `highwater log
/// repair --write` does. Returns the offsets that were in what had to be cut out.
pub(crate) fn damaged_and_repaired(dir: &Path) -> anyhow::Result<BTreeSet<i64>> {
    let mut segments: Vec<PathBuf> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    segments.sort();
    let [_, flipped, overwritten, headers, .., last] = segments.as_slice() else { anyhow::bail!("too few segments") };
    let mut lost = BTreeSet::new();
    lost.extend(changed(flipped, 1, |batch| batch[COVERED] ^= 4)?);
    lost.extend(changed(overwritten, 2, |batch| batch[..70].fill(0xAA))?);
    // Outside of the checksum: an offset and an epoch, which their neighbours tell.
    changed(headers, 1, |batch| batch[7] ^= 0x40)?;
    changed(headers, 3, |batch| batch[15] ^= 2)?;
    let torn = fs::read(last)?.get(..75).context("a batch")?.to_vec();
    fs::write(last, [fs::read(last)?, torn].concat())?;
    fs::write(flipped.with_extension("snapshot"), b"nothing")?;
    fs::write(overwritten.with_extension("timeindex"), [0xFF; 24])?;
    fs::remove_file(headers.with_extension("index"))?;
    fs::remove_file(dir.join("leader-epoch-checkpoint"))?;

    let fs = OsFs::shared();
    let lock = RepairLock::take(&*fs, dir)?;
    let plan = RepairPlan::of(&*fs, dir, &mut |_| {})?;
    let count = |of: fn(&RepairAction) -> bool| plan.actions.iter().filter(|action| of(action)).count();
    let counts = (
        count(|action| matches!(action, RepairAction::Cut { .. })),
        count(|action| matches!(action, RepairAction::Correct { .. })),
    );
    ensure!(counts == (3, 2) && plan.left.is_empty(), "{plan:?}");
    plan.apply(&fs, &mut |_| {})?;
    let mut faults = Vec::new();
    let verified = lock.verify(&*fs, &mut |event| {
        if let VerifyEvent::Found(fault) = event {
            faults.push(fault);
        }
    })?;
    ensure!(verified.is_good(), "{faults:?}");
    Ok(lost)
}

/// Changes the batch of records with this number in a segment's file, and returns its offsets.
fn changed(path: &Path, number: usize, change: fn(&mut [u8])) -> anyhow::Result<Range<i64>> {
    let mut bytes = fs::read(path)?;
    let (mut places, mut at) = (Vec::new(), 0);
    for batch in batches(&bytes) {
        let batch = batch?;
        // Without its marker a transaction would stay open.
        if !batch.is_control() {
            places.push((at, batch.total_bytes(), batch.base_offset().0..batch.next_offset().0));
        }
        at += batch.total_bytes();
    }
    ensure!(number + 1 < places.len(), "{} has {} batches of records", path.display(), places.len());
    let (at, len, offsets) = places.swap_remove(number);
    change(bytes.get_mut(at..at + len).context("a batch")?);
    fs::write(path, bytes)?;
    Ok(offsets)
}
