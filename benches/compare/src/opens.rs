//! How long it takes to open logs, and what each more of them costs.

use std::fs::{self, File};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use highwater_benches::{EPOCH, NOW, SHAPES};
use highwater_storage::fs::OsFs;
use highwater_storage::{Log, LogOptions, OpenHints, WorkLimits};

use crate::contest::median;
use crate::scratch;

/// Times of one log of 1 GiB in about a thousand segments, and of a thousand logs of ten segments.
pub(crate) fn opens(quick: bool) {
    let directory = scratch();
    let path = directory.path().join("log");
    let (segments, logs) = if quick { (20, 5) } else { (1000, 1000) };
    let batch = SHAPES[0].encode();
    let options = LogOptions { segment_bytes: 10 * batch.len() as u32, ..LogOptions::default() };
    let mut log = Log::open(&path, options.clone()).expect("an empty directory can be opened").0;
    for _ in 0..segments * 10 {
        log.append(NOW, EPOCH, &batch).expect("the disk has room");
        housekeeping(&mut log);
    }
    let bytes = log.size_bytes();
    log.flush().expect("the disk has room");
    drop(log);
    let what = format!("{} MiB in {segments} segments", bytes >> 20);
    let listed = times(|| {
        let started = Instant::now();
        let lengths: u64 = fs::read_dir(&path)
            .expect("it is there")
            .map(|entry| entry.expect("it is there").metadata().expect("it is there").len())
            .sum();
        black_box(lengths);
        started.elapsed()
    });
    println!("open {what:<28} {:<24} {:>9.2} ms", "files listed and asked", listed);
    let open = |close: bool| {
        let started = Instant::now();
        let (log, report) = Log::open(&path, options.clone()).expect("it is whole");
        let took = started.elapsed();
        assert_eq!((report.cut, log.size_bytes()), (None, bytes));
        if close {
            log.close().expect("the disk has room");
        }
        took
    };
    println!("open {what:<28} {:<24} {:>9.2} ms", "after a crash, flushed", times(|| open(false)));
    open(true);
    println!("open {what:<28} {:<24} {:>9.2} ms", "after a clean close", times(|| open(true)));

    let options = LogOptions { segment_bytes: 3000, ..LogOptions::default() };
    let batch = SHAPES[1].encode();
    let root = directory.path().join("root");
    fs::create_dir(&root).expect("the directory is there");
    let path_of = |number: usize| root.join(format!("topic-{number}"));
    for number in 0..logs {
        fs::create_dir(path_of(number)).expect("the directory is there");
        let mut log = open_in_root(&path_of(number), &options);
        for _ in 0..20 {
            log.append(NOW, EPOCH, &batch).expect("the disk has room");
        }
        assert_eq!(log.segments().len(), 10);
        log.close().expect("the disk has room");
    }
    let before = descriptors();
    let took = times(|| {
        let started = Instant::now();
        let opened: Vec<Log> = (0..logs).map(|number| open_in_root(&path_of(number), &options)).collect();
        let took = started.elapsed();
        assert_eq!(descriptors(), before, "a log at rest has no file open");
        black_box(opened);
        took
    });
    println!("open {:<28} {:<24} {took:>9.2} ms", format!("{logs} logs of 10 segments"), "after a clean close");
}

/// What one more segment or log costs.
pub(crate) fn scale(quick: bool) {
    let sizes: &[usize] = if quick { &[1, 10] } else { &[1, 10, 100, 1000, 10_000] };
    println!(
        "{:<12} {:>14} {:>16} {:>14} {:>16}",
        "", "append, with", "bytes a segment", "append, with", "bytes a log"
    );
    println!("{:<12} {:>14} {:>16} {:>14} {:>16}", "", "n segments", "", "n logs", "");
    let batch = SHAPES[1].encode();
    for &size in sizes {
        let directory = scratch();
        let small = LogOptions { segment_bytes: 1200, ..LogOptions::default() };
        let mut log = Log::open(directory.path().join("log"), small).expect("an empty directory can be opened").0;
        for _ in 0..size - 1 {
            log.append(NOW, EPOCH, &batch).expect("the disk has room");
            housekeeping(&mut log);
        }
        log.append(NOW, EPOCH, &batch).expect("the disk has room");
        log.close().expect("the disk has room");
        let before = resident_bytes();
        let mut log = Log::open(directory.path().join("log"), LogOptions::default()).expect("it is whole").0;
        let segment_bytes = resident_bytes().saturating_sub(before) / size;
        assert_eq!(log.segments().len(), size);
        let in_segments = append_time(&mut [&mut log], &batch);
        drop(log);

        let root = directory.path().join("root");
        fs::create_dir(&root).expect("the directory is there");
        let mut logs = Vec::with_capacity(size);
        let before = resident_bytes();
        for number in 0..size {
            let path = root.join(number.to_string());
            fs::create_dir(&path).expect("the directory is there");
            logs.push(open_in_root(&path, &LogOptions::default()));
        }
        let log_bytes = resident_bytes().saturating_sub(before) / size;
        let mut all: Vec<&mut Log> = logs.iter_mut().take(100).collect();
        let in_logs = append_time(&mut all, &batch);
        println!("{size:<12} {in_segments:>11.0} ns {segment_bytes:>16} {in_logs:>11.0} ns {log_bytes:>16}");
    }
}

/// The slowest appends, across rolls, beside as many bare writes into files of the same size.
pub(crate) fn latencies(quick: bool) {
    let directory = scratch();
    let batch = SHAPES[1].encode();
    let appends = if quick { 5000 } else { 200_000 };
    let segment_bytes: u32 = 8 << 20;
    let mut shares = Vec::new();
    let (mut logs, mut bares) = (Vec::new(), Vec::new());
    for turn in 0..if quick { 1 } else { 5 } {
        let options = LogOptions { segment_bytes, ..LogOptions::default() };
        let mut log = Log::open(directory.path().join(format!("log-{turn}")), options).expect("it is empty").0;
        let mut of_log = Vec::with_capacity(appends);
        for _ in 0..appends {
            let started = Instant::now();
            log.append(NOW, EPOCH, &batch).expect("the disk has room");
            of_log.push(started.elapsed());
        }
        drop(log);
        let mut of_bare = Vec::with_capacity(appends);
        let (mut file, mut position, mut files) = (None, u64::from(segment_bytes), 0);
        for _ in 0..appends {
            let started = Instant::now();
            if position + batch.len() as u64 > u64::from(segment_bytes) {
                let path = directory.path().join(format!("bare-{turn}-{files}"));
                (file, position, files) = (Some(File::create(path).expect("there is room")), 0, files + 1);
            }
            black_box(crc32c::crc32c(&batch));
            file.as_ref().expect("just made").write_all_at(&batch, position).expect("the disk has room");
            position += batch.len() as u64;
            of_bare.push(started.elapsed());
        }
        let (log, bare) = (p999(of_log), p999(of_bare));
        shares.push(log / bare);
        logs.push(log);
        bares.push(bare);
    }
    println!(
        "p99.9 of appends 1x1KiB across rolls of 8 MiB: bare {:.1} us, log {:.1} us, {:.2} times",
        median(&mut bares),
        median(&mut logs),
        median(&mut shares),
    );
}

fn p999(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() * 999 / 1000].as_secs_f64() * 1e6
}

fn append_time(logs: &mut [&mut Log], batch: &[u8]) -> f64 {
    let mut turns: Vec<f64> = (0..5)
        .map(|_| {
            let started = Instant::now();
            for number in 0..2000 {
                let at = number % logs.len();
                logs[at].append(NOW, EPOCH, batch).expect("the disk has room");
            }
            started.elapsed().as_secs_f64() * 1e9 / 2000.0
        })
        .collect();
    median(&mut turns)
}

fn times(mut once: impl FnMut() -> Duration) -> f64 {
    let mut turns: Vec<f64> = (0..5).map(|_| once().as_secs_f64() * 1e3).collect();
    median(&mut turns)
}

fn housekeeping(log: &mut Log) {
    let limits = WorkLimits::new(log.end());
    while log.housekeeping().step(NOW, &limits).expect("the disk has room").is_some() {}
}

fn open_in_root(path: &Path, options: &LogOptions) -> Log {
    Log::open_with(OsFs::shared(), path, options.clone(), OpenHints::default()).expect("it is whole").0
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn resident_bytes() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
