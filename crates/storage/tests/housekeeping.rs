//! Housekeeping beside appends: when which step is due, and what it leaves behind.

mod support;

use std::path::Path;

use highwater_storage::{FlushPolicy, LeaderEpoch, Log, LogOptions, Offset, Step, TimestampMs, WorkLimits};
use support::{NOW, append, disk, keep_house, numbered, open};

/// How many descriptors of this process lead into a directory.
fn descriptors_into(dir: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).filter(|to| to.starts_with(dir)).count()
}

fn after(ms: i64) -> TimestampMs {
    TimestampMs(NOW.0 + ms)
}

fn checkpoints(steps: &[Step]) -> Vec<i64> {
    let points = steps.iter().filter_map(|step| match step {
        Step::Checkpointed { recovery_point } => Some(recovery_point.0),
        _ => None,
    });
    points.collect()
}

#[test]
fn a_log_that_syncs_each_append_gets_its_checkpoint_and_then_holds_no_descriptor() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().canonicalize().unwrap().join("log");
    let options = LogOptions { flush: FlushPolicy::EachAppend, segment_bytes: 1000, ..LogOptions::default() };
    let (mut log, _) = Log::open(&dir, LogOptions { zero_ahead_bytes: 0, ..options.clone() }).unwrap();
    let locked = descriptors_into(&dir);
    for number in 0..20 {
        append(&mut log, &numbered(number, 90));
    }
    assert!(log.segments().len() > 1);
    assert!(descriptors_into(&dir) > locked, "it is being written to");
    let (end, active) = (log.end(), log.segments().last().unwrap().base);
    // The full segments at once, and the rest of it when the time has come.
    assert_eq!(checkpoints(&keep_house(&mut log, NOW, end)), [20]);
    append(&mut log, &numbered(20, 90));
    let end = log.end();
    assert_eq!(log.segments().last().unwrap().base, active);
    assert_eq!(checkpoints(&keep_house(&mut log, after(options.checkpoint_interval_ms - 1), end)), [0i64; 0]);
    assert_eq!((log.flushed(), log.recovery_point()), (Offset(21), Offset(20)));
    assert_eq!(checkpoints(&keep_house(&mut log, after(options.checkpoint_interval_ms), end)), [21]);
    assert_eq!(log.recovery_point(), Offset(21));
    assert_eq!(descriptors_into(&dir), locked, "it is idle");
    assert_eq!(checkpoints(&keep_house(&mut log, after(1 << 30), end)), [0i64; 0], "there is nothing new");
    drop(log);
    let (_, report) = Log::open(&dir, options).unwrap();
    assert_eq!(report.bytes_scanned, 0, "{report:?}");
}

#[test]
fn a_checkpoint_is_made_beside_flushes_that_never_cease() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &LogOptions::default());
    append(&mut log, &numbered(0, 90));
    let flush = log.begin_flush().unwrap();
    append(&mut log, &numbered(1, 90));
    let limits = WorkLimits::new(log.end());
    assert_eq!(log.housekeeping().step(after(4999), &limits).unwrap(), None);
    let step = log.housekeeping().step(after(5000), &limits).unwrap();
    assert_eq!(step, Some(Step::Checkpointed { recovery_point: Offset(2) }));
    assert_eq!(log.finish_flush(flush.run()).unwrap(), Offset(2), "the mark does not go back");
    // Two that write the same files do not run at the same time.
    append(&mut log, &numbered(2, 90));
    let checkpoint = log.begin_checkpoint().unwrap();
    append(&mut log, &numbered(3, 90));
    assert_eq!(log.housekeeping().step(after(1 << 20), &limits).unwrap(), None);
    log.finish_flush(checkpoint.run()).unwrap();
    let step = log.housekeeping().step(after(1 << 20), &limits).unwrap();
    assert_eq!(step, Some(Step::Checkpointed { recovery_point: Offset(4) }));
}

#[test]
fn a_flush_that_somebody_waits_for_does_not_wait_for_a_checkpoint() {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &LogOptions { scrub_interval_ms: -1, ..LogOptions::default() });
    append(&mut log, &numbered(0, 90));
    let checkpoint = log.begin_work(after(5000), &WorkLimits::new(log.end())).unwrap();
    append(&mut log, &numbered(1, 90));
    let flush = log.begin_flush().unwrap();
    append(&mut log, &numbered(2, 90));
    assert!(log.begin_flush().is_none() && log.begin_checkpoint().is_none(), "one of each at a time");
    assert_eq!(log.finish_flush(flush.run()).unwrap(), Offset(2));
    assert_eq!(log.finish_work(checkpoint.run()).unwrap(), Some(Step::Checkpointed { recovery_point: Offset(1) }));
    assert_eq!((log.flushed(), log.recovery_point()), (Offset(2), Offset(1)));
    for image in fs.images(32, 1) {
        let (log, report) = open(&image, &LogOptions::default());
        assert!(log.end() >= Offset(2) && report.recovery_point >= Offset(1), "{report:?}");
    }
}

#[test]
fn the_interval_of_checkpoints_is_what_the_options_say() {
    let interval = |checkpoint_interval_ms| LogOptions { checkpoint_interval_ms, ..LogOptions::default() };
    let made = |options: &LogOptions, ms: i64| {
        let fs = disk(1);
        let (mut log, _) = open(&fs, options);
        append(&mut log, &numbered(0, 90));
        checkpoints(&keep_house(&mut log, after(ms), Offset(1)))
    };
    assert_eq!((made(&interval(0), 0), made(&interval(7), 6), made(&interval(7), 7)), (vec![1], vec![], vec![1]));
    assert_eq!(made(&interval(-1), 1 << 40), [0i64; 0]);
    // What no append owes: an epoch without a record. And a clock that was set back puts nothing off.
    let (mut log, _) = open(&disk(1), &interval(7));
    log.assign_epoch(LeaderEpoch(3), Offset(0)).unwrap();
    assert_eq!(checkpoints(&keep_house(&mut log, after(100), Offset(0))), [0i64; 0]);
    assert_eq!(checkpoints(&keep_house(&mut log, after(50), Offset(0))), [0i64; 0]);
    assert_eq!(checkpoints(&keep_house(&mut log, after(57), Offset(0))), [0]);
}
