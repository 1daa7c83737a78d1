//! Producer snapshots that are damaged or past the end, where the stop was not clean.

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{
    AppendError, Appended, BatchBuilder, Codec, LeaderEpoch, Log, Offset, OpenHints, Record, TimestampMs,
};

use crate::files;
use crate::support::{NOW, T0, disk, file_bytes, open, open_hinted, path, small};

fn send(log: &mut Log, sequence: i32) -> Result<Appended, AppendError> {
    let mut builder = BatchBuilder::new(Codec::None).producer(9, 0, sequence);
    builder.push(Record::new(TimestampMs(T0), &[7; 200]));
    log.append(NOW, LeaderEpoch(0), &builder.build())
}

/// A log whose batches up to some segment's base are below the recovery point. The scan begins at that base, and what it
/// knows of the producer comes from the snapshot there, or from an older one and the batches behind it.
fn unclean() -> (SimFs, Offset) {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &small());
    for sequence in 0..16 {
        send(&mut log, sequence).unwrap();
    }
    log.checkpoint().unwrap();
    let base = log.segments().last().unwrap().base;
    for sequence in 16..18 {
        send(&mut log, sequence).unwrap();
    }
    (fs, base)
}

fn snapshot(offset: Offset) -> String {
    format!("{:020}.snapshot", offset.0)
}

/// Each way of being spoilt, of the snapshot that the scan after a crash begins with, and of all there are.
#[test]
fn s24_after_a_crash_a_spoilt_snapshot_is_replaced_by_an_older_one_and_the_batches() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 4] =
        [|bytes| bytes.truncate(bytes.len() / 2), Vec::clear, |bytes| bytes[12] ^= 1, |bytes| bytes.fill(0)];
    for all in [false, true] {
        for (at, damage) in damages.into_iter().enumerate() {
            let (fs, base) = unclean();
            let good = file_bytes(&fs, &snapshot(base));
            let spoilt: Vec<String> =
                files(&fs, ".snapshot").into_iter().filter(|name| all || *name == snapshot(base)).collect();
            assert!(!spoilt.is_empty() && (!all || spoilt.len() > 2), "{spoilt:?}");
            for name in &spoilt {
                fs.corrupt(&path(name), damage).unwrap();
            }
            let (mut log, report) = open(&fs, &small());
            assert!(!report.clean && report.cut.is_none(), "{report:?}");
            assert_eq!((report.recovery_point, log.end()), (Offset(16), Offset(18)), "damage {at}");
            assert!(report.segments_scanned <= 2, "not everything was read: {report:?}");
            assert_eq!(report.snapshots_removed as usize, spoilt.len(), "damage {at}: {report:?}");
            assert_eq!(report.producers_rebuilt, all, "damage {at}: {report:?}");
            assert_eq!(file_bytes(&fs, &snapshot(base)), good, "damage {at}: it was written anew");
            // One from below the segment that was scanned, which only a snapshot or the batches before it tell of.
            let below = i32::try_from(base.0).unwrap() - 1;
            assert!(below >= 13, "one of the last five: {below}");
            for sequence in [below, 17] {
                let again = send(&mut log, sequence).unwrap();
                assert_eq!((again.duplicate, again.first), (true, Offset(sequence.into())), "damage {at}");
            }
            assert!(matches!(send(&mut log, 19), Err(AppendError::Sequence(_))), "damage {at}: a gap");
            let next = send(&mut log, 18).unwrap();
            assert_eq!((next.duplicate, next.first), (false, Offset(18)), "damage {at}");
        }
    }
}

/// The case as it was reported: snapshots at several offsets, the log cut (by a crash) below the newest, the one below the
/// cut damaged.
#[test]
fn s24_a_log_that_lost_its_end_forgets_snapshots_past_it() {
    let (fs, base) = unclean();
    let kept = files(&fs, ".snapshot").iter().rev().nth(1).unwrap().clone();
    // The state file tells of more than there is, as if another program had cut the log: it goes too.
    let below: i64 = kept[..20].parse().unwrap();
    fs.remove_file(&path("highwater-state")).unwrap();
    fs.remove_file(&path(&format!("{:020}.log", base.0))).unwrap();
    let segment = format!("{below:020}.log");
    let one = file_bytes(&fs, &segment).len();
    let batches = base.0 - below;
    let size = one / usize::try_from(batches).unwrap();
    fs.corrupt(&path(&segment), |bytes| bytes.truncate(2 * size)).unwrap();
    fs.corrupt(&path(&kept), |bytes| bytes.truncate(bytes.len() / 2)).unwrap();
    let hints = OpenHints { clean: Some(false), recovery_point: Some(Offset(below)), ..OpenHints::default() };
    let (mut log, report) = open_hinted(&fs, &small(), hints);
    assert_eq!((log.end(), report.cut.as_ref()), (Offset(below + 2), None), "{report:?}");
    assert_eq!(report.snapshots_removed, 2, "the damaged one and the one past the end: {report:?}");
    assert!(!files(&fs, ".snapshot").contains(&snapshot(base)));
    let last = i32::try_from(below).unwrap() + 1;
    for sequence in [last - 2, last] {
        assert!(send(&mut log, sequence).unwrap().duplicate, "{sequence}");
    }
    assert!(matches!(send(&mut log, last + 2), Err(AppendError::Sequence(_))));
    assert_eq!(send(&mut log, last + 1).unwrap().first, Offset(below + 2));
}
