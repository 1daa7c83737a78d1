//! Housekeeping beside appends: when which step is due, and what it leaves behind.

mod support;

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use highwater_storage::fs::{DirEntry, DirLock, File, Fs, Mapped, Metadata, OpenMode, RawDescriptor, SimFs};
use highwater_storage::{
    BatchBuilder, Codec, CompactionOptions, FlushPolicy, LeaderEpoch, Log, LogOptions, Offset, OpenHints, Record, Step,
    TimestampMs, WorkLimits,
};
use support::{
    DIR, NOW, T0, append, batch, contents, disk, file_bytes, filled, keep_house, names, numbered, open, small,
};

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
    let checkpoint = log.begin_pressing_work(after(5000)).unwrap();
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

/// Counts every call of any kind, and names the last ones.
#[derive(Clone, Debug)]
struct Counting {
    inner: Arc<dyn Fs>,
    calls: Arc<AtomicU64>,
    named: Arc<Mutex<Vec<String>>>,
}

#[derive(Debug)]
struct CountedFile {
    inner: Arc<dyn File>,
    of: Counting,
}

impl Counting {
    fn new(fs: &SimFs) -> Self {
        Self { inner: Arc::new(fs.clone()), calls: Arc::default(), named: Arc::default() }
    }

    fn count(&self, what: &str) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.named.lock().unwrap().push(what.to_owned());
    }

    /// The calls that this makes.
    fn during<T>(&self, act: impl FnOnce() -> T) -> (T, Vec<String>) {
        self.named.lock().unwrap().clear();
        let outcome = act();
        (outcome, self.named.lock().unwrap().clone())
    }
}

impl Fs for Counting {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.count("open");
        Ok(Arc::new(CountedFile { inner: self.inner.open(path, mode)?, of: self.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count("rename");
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.count("remove_file");
        self.inner.remove_file(path)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count("hard_link");
        self.inner.hard_link(from, to)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.count("create_dir");
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.count("remove_dir");
        self.inner.remove_dir(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.count("read_dir");
        self.inner.read_dir(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        self.count("metadata");
        self.inner.metadata(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.count("sync_dir");
        self.inner.sync_dir(path)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.count("free_space");
        self.inner.free_space(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.count("lock");
        self.inner.lock(path)
    }
}

impl File for CountedFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.of.count("read_at");
        self.inner.read_at(buffer, position)
    }

    fn write_vectored_at(&self, slices: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.of.count("write_vectored_at");
        self.inner.write_vectored_at(slices, position)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.of.count("set_len");
        self.inner.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.of.count("sync_data");
        self.inner.sync_data()
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.of.count("file metadata");
        self.inner.metadata()
    }

    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        self.of.count("map");
        self.inner.map(len)
    }

    fn raw_descriptor(&self) -> Option<RawDescriptor> {
        self.inner.raw_descriptor()
    }
}

/// Design decision 4: appends wait for no housekeeping. What begins and ends on the writer's thread touches no file.
#[test]
fn no_file_is_touched_on_the_writers_thread_but_for_a_roll() {
    let fs = disk(1);
    let hour = 60 * 60 * 1000;
    let options = LogOptions {
        flush: FlushPolicy::EveryMs(1),
        zero_ahead_bytes: 400,
        retention_ms: hour,
        file_delete_delay_ms: 10,
        compaction: Some(CompactionOptions { min_cleanable_dirty_ratio: 0.0, ..CompactionOptions::default() }),
        ..small()
    };
    // Closed well and opened again: ages are not known, and the state file has to say that it is written to.
    filled(&fs, &options, 60).close().unwrap();
    let counting = Counting::new(&fs);
    let (mut log, _) =
        Log::open_with(Arc::new(counting.clone()), Path::new(DIR), options.clone(), OpenHints::default()).unwrap();
    let mut steps = Vec::new();
    for round in 0..6 {
        // Old ones go in the first rounds, all of them in the last.
        let now = TimestampMs(T0 + if round < 4 { hour + 20 + round } else { 3 * hour + round });
        let limits = WorkLimits::new(log.end());
        loop {
            let (job, calls) = counting.during(|| log.begin_work(now, &limits));
            assert_eq!(calls, [""; 0], "{job:?}");
            let Some(job) = job else { break };
            let done = job.run();
            let (step, calls) = counting.during(|| log.finish_work(done).unwrap());
            match step {
                Some(Step::Rolled { .. }) => assert!(calls.len() <= 3, "{calls:?}"),
                _ => assert_eq!(calls, [""; 0], "{step:?}"),
            }
            steps.extend(step);
        }
        if round < 4 {
            for number in 0..9 {
                let mut builder = BatchBuilder::new(Codec::None);
                builder.push(Record::keyed(TimestampMs(T0 + hour), &[number], &[7; 90]));
                log.append(now, LeaderEpoch(0), &builder.build()).unwrap();
            }
        }
    }
    let done = |wanted: fn(&Step) -> bool| steps.iter().any(wanted);
    assert!(done(|step| matches!(step, Step::AgeRead { .. } | Step::SegmentsRetired { .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::SegmentsRetired { segments: 2.., .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::Rolled { .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::FilesRemoved)), "{steps:?}");
    assert!(done(|step| matches!(step, Step::Flushed { .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::Checkpointed { .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::ZerosWritten { .. })), "{steps:?}");
    assert!(done(|step| matches!(step, Step::Scrubbed { .. })), "{steps:?}");
    assert_eq!((log.start(), log.segments().len()), (log.end(), 1));
}

#[test]
fn s41_a_time_from_the_future_is_told_once() {
    let fs = disk(1);
    fs.set_now(TimestampMs(T0));
    let mut options = LogOptions { retention_ms: 1 << 30, segment_bytes: 300, ..small() };
    options.rules.timestamp_after_max_ms = i64::MAX;
    let (mut log, _) = open(&fs, &options);
    let ahead = TimestampMs(T0 + (1 << 40));
    append(&mut log, &batch(ahead.0, &[[0; 200]]));
    append(&mut log, &numbered(1, 200));
    let told = |steps: Vec<Step>| steps.iter().filter(|step| matches!(step, Step::TimestampAhead { .. })).count();
    let end = log.end();
    let steps = keep_house(&mut log, NOW, end);
    assert!(steps.contains(&Step::TimestampAhead { base: Offset(0), timestamp: ahead }), "{steps:?}");
    assert_eq!(told(steps), 1);
    append(&mut log, &numbered(2, 200));
    assert_eq!(told(keep_house(&mut log, after(10), end)), 0, "once");
    assert_eq!(log.start(), Offset(0));
}

/// S23: names that were given again while files of the same names wait to be removed.
#[test]
fn s23_what_waits_to_be_removed_takes_no_file_that_was_made_since() {
    let fs = disk(1);
    let options = LogOptions { retention_bytes: 0, file_delete_delay_ms: 60_000, ..small() };
    let mut log = filled(&fs, &options, 30);
    for round in 0..2u64 {
        let reader = log.reader();
        let before = log.segments().len();
        keep_house(&mut log, after(i64::try_from(round).unwrap()), Offset(if round == 0 { 30 } else { 1000 }));
        assert!(log.segments().len() < before && log.start() > Offset(0));
        assert!(names(&fs).contains(&format!("{:020}.log.deleted", 0)));
        log.reset_to(Offset(0)).unwrap();
        for number in 0..30 {
            append(&mut log, &numbered(100 * (round + 1) + number, 90));
        }
        assert_eq!(contents(&reader).len(), 30, "a reader goes on in what there is now");
    }
    log.checkpoint().unwrap();
    let (expected, first) = (contents(&log.reader()), file_bytes(&fs, &format!("{:020}.log", 0)));
    assert!(names(&fs).iter().any(|name| name.ends_with(".snapshot")));
    let snapshots =
        |names: Vec<String>| names.into_iter().filter(|name| name.ends_with(".snapshot")).collect::<Vec<_>>();
    let kept = snapshots(names(&fs));
    // All records stay, whatever the clock says, for none is replicated.
    keep_house(&mut log, after(120_001), Offset(0));
    assert!(!names(&fs).iter().any(|name| name.ends_with(".deleted")), "{:?}", names(&fs));
    assert_eq!((contents(&log.reader()), file_bytes(&fs, &format!("{:020}.log", 0))), (expected.clone(), first));
    assert_eq!(snapshots(names(&fs)), kept);
    drop(log);
    let (log, report) = open(&fs, &options);
    assert_eq!((contents(&log.reader()), report.cut), (expected, None));
}

/// A log that is emptied while segments leave it: the files it makes then have names that the job was about to change.
#[test]
fn s23_a_reset_between_a_look_and_the_new_names_of_files_loses_nothing() {
    for stop in 0..4 {
        let fs = disk(1);
        let options = LogOptions { retention_bytes: 0, scrub_interval_ms: -1, ..small() };
        let mut log = filled(&fs, &options, 30);
        let limits = WorkLimits::new(log.end());
        // Stops before or after the run of the look, and of the job that renames.
        let mut begun = log.begin_work(NOW, &limits).unwrap();
        if stop >= 2 {
            assert_eq!(log.finish_work(begun.run()).unwrap(), None, "the look");
            assert!(log.start() > Offset(0));
            begun = log.begin_work(NOW, &limits).unwrap();
        }
        let done;
        if stop % 2 == 1 {
            done = begun.run();
            log.reset_to(Offset(0)).unwrap();
        } else {
            log.reset_to(Offset(0)).unwrap();
            for number in 0..3 {
                append(&mut log, &numbered(number, 90));
            }
            done = begun.run();
        }
        while log.end() < Offset(30) {
            let number = u64::try_from(log.end().0).unwrap();
            append(&mut log, &numbered(number, 90));
        }
        let expected = contents(&log.reader());
        log.finish_work(done).unwrap();
        keep_house(&mut log, after(1), Offset(0));
        keep_house(&mut log, after(100_000), Offset(0));
        assert_eq!((contents(&log.reader()), log.start(), expected.len()), (expected.clone(), Offset(0), 30), "{stop}");
        assert!(!names(&fs).iter().any(|name| name.ends_with(".deleted")), "{stop}: {:?}", names(&fs));
        drop(log);
        let (log, report) = open(&fs, &options);
        assert_eq!((contents(&log.reader()), report.cut), (expected, None), "{stop}");
    }
}

/// S40: a start in the active segment, or at the end, and a compaction that was told of an older one.
#[test]
fn s40_a_start_in_the_active_segment_leaves_that_alone_and_housekeeping_ends() {
    for to_end in [false, true] {
        let fs = disk(1);
        let options = LogOptions {
            retention: false,
            compaction: Some(CompactionOptions { min_cleanable_dirty_ratio: 0.0, ..CompactionOptions::default() }),
            ..small()
        };
        let (mut log, _) = open(&fs, &options);
        for number in 0..30u8 {
            let mut builder = BatchBuilder::new(Codec::None);
            builder.push(Record::keyed(NOW, &[number % 7], &[number; 90]));
            append(&mut log, &builder.build());
        }
        let active = log.segments().last().unwrap().base;
        let to = if to_end { log.end() } else { active.next() };
        assert!(to <= log.end() && active > Offset(0));
        log.advance_start(to).unwrap();
        log.close().unwrap();
        let hints = OpenHints { cleaner_offset: Some(Offset(3)), ..OpenHints::default() };
        let (mut log, _) = Log::open_with(Arc::new(fs.clone()), Path::new(DIR), options.clone(), hints).unwrap();
        for ms in [0, 1, 100_000] {
            let end = log.end();
            assert!(keep_house(&mut log, after(ms), end).len() < 50);
        }
        assert_eq!(log.segments().iter().map(|segment| segment.base).collect::<Vec<_>>(), [active]);
        assert_eq!((log.start(), log.end()), (to, Offset(30)));
        assert!(log.cleaner_offset() >= log.start());
        assert_eq!(contents(&log.reader()).len() as i64, 30 - to.0);
    }
}

/// S53: the rules change between the beginning and the end of a piece of work.
#[test]
fn s53_a_change_of_the_rules_meets_every_piece_of_work_under_way() {
    let compaction = || Some(CompactionOptions { min_cleanable_dirty_ratio: 0.0, ..CompactionOptions::default() });
    let rules = [
        LogOptions { retention: false, compaction: None, ..small() },
        LogOptions { retention: true, retention_bytes: 1500, retention_ms: -1, compaction: None, ..small() },
        LogOptions { retention: false, compaction: compaction(), ..small() },
        LogOptions { retention: true, retention_ms: 1, compaction: compaction(), ..small() },
    ];
    let mut met = Vec::new();
    for (from, to) in (0..16).map(|pair| (&rules[pair / 4], &rules[pair % 4])) {
        for pieces in 0..12 {
            let fs = disk(1);
            let (mut log, _) = open(&fs, from);
            for number in 0..40u8 {
                let mut builder = BatchBuilder::new(Codec::None);
                builder.push(Record::keyed(TimestampMs(T0), &[number % 7], &[number; 90]));
                append(&mut log, &builder.build());
            }
            log.close().unwrap();
            let (mut log, _) = open(&fs, from);
            let limits = WorkLimits::new(log.end());
            for _ in 0..pieces {
                let Some(job) = log.begin_work(NOW, &limits) else { break };
                log.finish_work(job.run()).unwrap();
            }
            let Some(job) = log.begin_work(NOW, &limits) else { continue };
            log.set_options(to.clone()).unwrap();
            let done = job.run();
            met.push(format!("{done:?}").split('(').next().unwrap_or_default().to_owned());
            log.finish_work(done).unwrap();
            let start = log.start();
            keep_house(&mut log, NOW, Offset(40));
            // What a compaction or retention gave up in one round goes in the next.
            for ms in [100_000, 200_000, 300_000] {
                keep_house(&mut log, after(ms), Offset(40));
            }
            assert!(log.start() == start || to.retention, "nothing more goes than the new rules say");
            let expected = contents(&log.reader());
            let newest = expected.iter().filter(|(offset, _)| *offset >= 33).count();
            // Each key's last record, from where the log began when the rules changed.
            let last = usize::try_from(40 - start.0.max(33)).unwrap();
            assert!(newest == last || (to.retention && to.retention_ms == 1), "{newest} of {last} from {start:?}");
            assert!(!names(&fs).iter().any(|name| name.ends_with(".deleted")), "{:?}", names(&fs));
            drop(log);
            let (log, report) = open(&fs, to);
            assert_eq!((contents(&log.reader()), report.cut, report.rotten.len()), (expected, None, 0));
        }
    }
    assert!(met.len() > 60);
    for kind in ["Retired", "Left", "Compacted", "Scrubbed"] {
        assert!(met.iter().any(|met| met.contains(kind)), "{kind}: {met:?}");
    }
}

#[test]
fn work_without_retention_does_all_else() {
    let fs = disk(1);
    let options = LogOptions { segment_bytes: 600, retention_bytes: 0, scrub_interval_ms: -1, ..LogOptions::default() };
    let (mut log, _) = open(&fs, &options);
    for number in 0..4 {
        append(&mut log, &numbered(number, 500));
    }
    let limits = WorkLimits::new(log.end());
    let mut steps = Vec::new();
    while let Some(step) = log.housekeeping().step(after(5000), &limits.without_retention()).unwrap() {
        steps.push(step);
    }
    assert!(steps.iter().any(|step| matches!(step, Step::Checkpointed { .. })), "{steps:?}");
    assert_eq!(log.start(), Offset(0), "{steps:?}");
    while log.housekeeping().step(after(5000), &limits).unwrap().is_some() {}
    assert_eq!(log.start(), log.end());
}
