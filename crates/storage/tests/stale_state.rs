//! Slots of `highwater-state` that are lost: what an older slot says is no evidence against batches that came later.

mod support;

use highwater_storage::fs::SimFs;
use highwater_storage::*;
use support::*;

const STATE_FILE: &str = "highwater-state";
const SLOT_BYTES: usize = 512;

/// In the header that a mark holds: the lowest byte of its epoch.
const SPOILED_AT: usize = 111;

fn append_in(log: &mut Log, epoch: i32, numbers: std::ops::Range<u64>) {
    for number in numbers {
        log.append(NOW, LeaderEpoch(epoch), &numbered(number, 90)).unwrap();
    }
}

/// Closed in one epoch, and gone on in newer ones that only the batches know.
fn gone_on_after_a_close(fs: &SimFs) -> Log {
    let (mut log, _) = open(fs, &small());
    append_in(&mut log, 0, 0..8);
    append_in(&mut log, 1, 8..13);
    log.close().unwrap();
    let (mut log, _) = open(fs, &small());
    append_in(&mut log, 2, 13..16);
    append_in(&mut log, 7, 16..20);
    log
}

/// The same records once more under another leader, from `cut` on: but for its epoch, the last batch is what it was.
fn appended_again(fs: &SimFs, cut: u64) -> Log {
    let (mut log, _) = open(fs, &one_segment());
    append_in(&mut log, 1, 0..9);
    log.flush().unwrap();
    append_in(&mut log, 1, 9..10);
    log.flush().unwrap();
    log.truncate_to(Offset(i64::try_from(cut).unwrap())).unwrap();
    append_in(&mut log, 5, cut..10);
    log
}

#[test]
fn whatever_slots_are_lost_after_a_kill_the_batches_stay_as_they_are() {
    type Make = fn(&SimFs) -> Log;
    let programs: [(&str, Make); 5] = [
        ("gone on after a close", gone_on_after_a_close),
        ("gone on and flushed", |fs| {
            let mut log = gone_on_after_a_close(fs);
            log.flush().unwrap();
            append_in(&mut log, 9, 20..23);
            log
        }),
        ("the last batch again", |fs| appended_again(fs, 9)),
        ("three batches again", |fs| appended_again(fs, 7)),
        ("three batches again, and flushed", |fs| {
            let mut log = appended_again(fs, 7);
            log.flush().unwrap();
            log
        }),
    ];
    for (name, make) in programs {
        for lost in 0..1 << 4 {
            let fs = disk(1);
            let log = make(&fs);
            let (epochs, records) = (log.epochs().to_vec(), contents(&log.reader()));
            let files = || names(&fs).into_iter().filter(|name| name.ends_with(".log"));
            let bytes: Vec<_> = files().map(|name| file_bytes(&fs, &name)).collect();
            drop(log);
            fs.corrupt(&path(STATE_FILE), |bytes| {
                for slot in (0..4).filter(|slot| lost & (1 << slot) != 0) {
                    bytes[slot * SLOT_BYTES + SPOILED_AT] ^= 0xd3;
                    bytes[slot * SLOT_BYTES + 20] ^= 0xd3;
                }
            })
            .unwrap();
            let (log, report) = open(&fs.kill(), &small());
            let place = format!("{name}, slots {lost:04b} lost: {report:?}");
            assert!(report.repaired.is_empty() && report.rotten.is_empty() && report.cut.is_none(), "{place}");
            assert_eq!((log.epochs().to_vec(), contents(&log.reader())), (epochs, records), "{place}");
            let now: Vec<_> = names(&fs.kill()).into_iter().filter(|name| name.ends_with(".log")).collect();
            let now: Vec<_> = now.iter().map(|name| file_bytes(&fs.kill(), name)).collect();
            assert!(now == bytes, "{place}: the files have changed");
        }
    }
}

#[test]
fn a_mark_that_is_whole_tells_the_epoch_of_the_last_batch_that_was_synced() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &one_segment());
    append_in(&mut log, 1, 0..4);
    log.flush().unwrap();
    drop(log);
    let fs = fs.kill();
    fs.corrupt(&path("00000000000000000000.log"), |bytes| {
        let last = bytes.len() / 4 * 3;
        bytes[last + 15] = 6;
    })
    .unwrap();
    let (log, report) = open(&fs, &one_segment());
    assert_eq!(report.repaired.len(), 1, "{report:?}");
    assert_eq!(log.epochs(), [(LeaderEpoch(1), Offset(0))]);
}
