//! One fault at the n-th call of each kind, for every n of everything a log does: it leaves what was there before or what
//! there should be after (or, where a step has several parts, something between), the log goes on or is closed, opening
//! it again works, and what is flushed from then on survives a power cut, also where pages of a failed sync were dropped.

mod support;

use std::path::Path;
use std::sync::Arc;

use highwater_storage::fs::{Call, Fault, Fs, SimFs};
use highwater_storage::*;
use support::*;

const CALLS: [Call; 7] =
    [Call::Create, Call::Write, Call::SetLen, Call::SyncData, Call::SyncDir, Call::Rename, Call::Remove];
const FAULTS: [Fault; 4] = [Fault::Enospc, Fault::Eio, Fault::ShortWrite, Fault::SyncFails];

/// What is done to a log, and how far it may have come when it fails.
struct Act {
    name: &'static str,
    run: fn(Log) -> Outcome,
    /// It happens as a whole or not at all, as far as the log's content goes.
    whole: bool,
}

enum Outcome {
    Done(Log),
    Failed(Log, String),
    /// The log was closed, well or not.
    Closed(bool),
}

impl Outcome {
    fn of<T, E: std::fmt::Display>(log: Log, result: Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Done(log),
            Err(error) => Self::Failed(log, error.to_string()),
        }
    }
}

const ACTS: &[Act] = &[
    Act { name: "append", run: |log| append_to(log, small()), whole: true },
    Act {
        name: "append to a new segment",
        run: |log| append_to(log, LogOptions { segment_bytes: 200, ..small() }),
        whole: true,
    },
    Act {
        name: "append and sync",
        run: |log| append_to(log, LogOptions { flush: FlushPolicy::EachAppend, ..small() }),
        whole: false,
    },
    Act {
        name: "append replicated batches over three segments",
        run: |mut log| {
            let end = log.end().0;
            let bytes: Vec<u8> = (end..end + 15).flat_map(|base| stored(base, 1, &[[9; 90]])).collect();
            let result = log.append_replicated(NOW, &bytes);
            Outcome::of(log, result)
        },
        whole: false,
    },
    Act {
        name: "flush",
        run: |mut log| {
            let result = log.flush();
            Outcome::of(log, result)
        },
        whole: true,
    },
    Act {
        name: "checkpoint",
        run: |mut log| {
            let result = log.checkpoint();
            Outcome::of(log, result)
        },
        whole: true,
    },
    Act { name: "truncate inside of the last segment", run: |log| truncate(log, 31), whole: true },
    Act { name: "truncate over segments", run: |log| truncate(log, 11), whole: false },
    Act {
        name: "reset above the end",
        run: |mut log| {
            let result = log.reset_to(Offset(100));
            Outcome::of(log, result)
        },
        whole: false,
    },
    Act {
        name: "reset below the start",
        run: |mut log| {
            let result = log.reset_to(Offset(1));
            Outcome::of(log, result)
        },
        whole: false,
    },
    Act {
        name: "advance the start",
        run: |mut log| {
            let result = log.advance_start(Offset(17));
            Outcome::of(log, result)
        },
        whole: true,
    },
    Act {
        name: "housekeeping",
        run: |mut log| {
            let options = LogOptions {
                segment_ms: 1000,
                retention_bytes: 2500,
                file_delete_delay_ms: 0,
                retention_ms: -1,
                ..small()
            };
            log.set_options(options).unwrap();
            let limits = WorkLimits::new(log.end());
            let later = TimestampMs(T0 + 10_000_000);
            // What has failed is tried again in a later round.
            let mut failed = None;
            for _ in 0..60 {
                match log.housekeeping().step(later, &limits) {
                    Ok(_) => {}
                    Err(FlushError::Closed(fence)) => return Outcome::Failed(log, fence.to_string()),
                    Err(error) => failed = Some(error),
                }
            }
            let result = failed.map_or(Ok(()), Err);
            Outcome::of(log, result)
        },
        whole: false,
    },
    Act { name: "close", run: |log| Outcome::Closed(log.close().is_ok()), whole: true },
];

fn append_to(mut log: Log, options: LogOptions) -> Outcome {
    log.set_options(options).unwrap();
    let result = log.append(NOW, LeaderEpoch(1), &numbered(1000, 90));
    Outcome::of(log, result)
}

fn truncate(mut log: Log, to: i64) -> Outcome {
    let result = log.truncate_to(Offset(to));
    Outcome::of(log, result)
}

/// A log with something of everything: sealed segments, synced and not, two epochs, a start that has moved.
fn prepared(fs: &SimFs) -> Log {
    let mut log = filled(fs, &small(), 14);
    log.checkpoint().unwrap();
    log.advance_start(Offset(3)).unwrap();
    for number in 14..26 {
        append(&mut log, &numbered(number, 90));
    }
    log.flush().unwrap();
    for number in 26..33 {
        log.append(NOW, LeaderEpoch(1), &numbered(number, 90)).unwrap();
    }
    log
}

/// The records of a log, with its start and end.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    start: i64,
    end: i64,
    records: Vec<(i64, Vec<u8>)>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers = self.records.iter().map(|(offset, value)| (offset, value[6], value[7]));
        write!(f, "{}..{} {:?}", self.start, self.end, numbers.collect::<Vec<_>>())
    }
}

impl Contents {
    fn of(log: &Log) -> Self {
        Self { start: log.start().0, end: log.end().0, records: contents(&log.reader()) }
    }

    /// Whether this may be what is left on the way from `one` to `other`, with all below `flushed` there.
    fn is_between(&self, one: &Self, other: &Self, flushed: i64) -> bool {
        let longer = if one.end > other.end { one } else { other };
        let low = one.start.min(other.start);
        let is_reset = one.records.is_empty() || other.records.is_empty();
        let least = if is_reset { self.start } else { one.end.min(other.end).min(flushed) };
        let expected: Vec<_> =
            longer.records.iter().filter(|(offset, _)| (self.start..self.end).contains(offset)).collect();
        let expected_of_reset: Vec<_> =
            one.records.iter().filter(|(offset, _)| (self.start..self.end).contains(offset)).collect();
        (low..=one.start.max(other.start)).contains(&self.start)
            && (least..=one.end.max(other.end)).contains(&self.end)
            && (self.records.iter().eq(expected) || (is_reset && self.records.iter().eq(expected_of_reset)))
    }
}

#[test]
fn every_fault_at_every_call_of_everything() {
    let mut strikes = 0;
    for act in ACTS {
        let fs = disk(1);
        let log = prepared(&fs);
        let before = Contents::of(&log);
        let flushed = log.flushed().0;
        let after = match (act.run)(log) {
            Outcome::Done(log) => Contents::of(&log),
            Outcome::Closed(true) => before.clone(),
            _ => panic!("{} fails by itself", act.name),
        };
        for (fault, call) in FAULTS.iter().flat_map(|fault| CALLS.iter().map(move |call| (*fault, *call))) {
            let harms = match fault {
                Fault::ShortWrite => call == Call::Write,
                Fault::SyncFails => matches!(call, Call::SyncData | Call::SyncDir),
                _ => true,
            };
            for in_a_row in 1..=in_a_row_max(fault, call) {
                for nth in 1.. {
                    if !harms || !strike(act, (fault, in_a_row), call, nth, [&before, &after], flushed) {
                        break;
                    }
                    strikes += 1;
                }
            }
        }
    }
    assert!(strikes > 200, "{strikes} faults came up");
    println!("{strikes} faults");
}

/// How many calls may fail one after the other. A device that refuses a sync may refuse the one of the note of it too.
fn in_a_row_max(fault: Fault, call: Call) -> u64 {
    if (fault, call) == (Fault::SyncFails, Call::SyncData) { 3 } else { 1 }
}

/// Lets one fault strike, or several in a row; false if there was no such call.
fn strike(
    act: &Act,
    (fault, in_a_row): (Fault, u64),
    call: Call,
    nth: u64,
    [before, after]: [&Contents; 2],
    flushed: i64,
) -> bool {
    let place = format!("{}: {fault:?} at {call:?} {nth}, {in_a_row} in a row", act.name);
    let fs = disk(1);
    let log = prepared(&fs);
    (nth..nth + in_a_row).for_each(|nth| fs.inject(fault, call, nth));
    let outcome = (act.run)(log);
    if fs.faults_hit() == 0 {
        return false;
    }
    fs.clear_faults();
    // All offsets below were given to records, and told.
    let mut given = before.end;
    let is_dead = (fault, call) == (Fault::SyncFails, Call::SyncDir);
    let promised = match outcome {
        // The directory's next sync fails too: there is nothing to go on with.
        _ if is_dead => None,
        Outcome::Done(log) if log.fence().is_none() => {
            let found = Contents::of(&log);
            assert_eq!(&found, after, "{place}: it said that it was done");
            goes_on(log, found, &place, &mut given)
        }
        Outcome::Failed(log, error) if log.fence().is_none() => {
            let found = Contents::of(&log);
            let as_before = &found == before
                || (!act.whole && found.is_between(before, after, flushed.max(found.end.min(before.end))));
            assert!(as_before, "{place}: {error}: {before:?} became {found:?}");
            goes_on(log, found, &place, &mut given)
        }
        Outcome::Done(log) | Outcome::Failed(log, _) => {
            let fence = log.fence().map(|fence| fence.to_string()).unwrap_or_default();
            // The state file is overwritten in place, which takes no room: half way through a reset there is no other way.
            let takes_room =
                matches!(call, Call::Create | Call::Write | Call::Rename) && !fence.contains("highwater-state");
            assert!(fault != Fault::Enospc || !takes_room, "{place}: a full disk closes the log: {fence}");
            let read = log.read(log.start(), ReadLimit::bytes(1));
            assert!(matches!(read, Err(ReadError::Closed(_))), "{place}: a closed log is read");
            assert!(log.reader().end() >= log.start(), "{place}");
            None
        }
        Outcome::Closed(true) => Some(before.clone()),
        Outcome::Closed(false) => None,
    };
    if is_dead {
        // The file system writes nothing any more until the machine starts again.
        for (number, image) in fs.images(8, 1).into_iter().enumerate() {
            // What was not flushed may be lost with the power, and is given again.
            reopens(&image, &format!("{place}, image {number}"), None, [before, after], flushed, flushed);
        }
    } else {
        reopens(&fs.kill(), &place, promised.as_ref(), [before, after], flushed, given);
    }
    true
}

/// Appends to a log that outlived a fault, and flushes it. Returns what it must hold from now on.
fn goes_on(mut log: Log, mut known: Contents, place: &str, given: &mut i64) -> Option<Contents> {
    let first = log.end();
    let appended = log.append(NOW, LeaderEpoch(2), &numbered(2000, 90));
    let appended = appended.unwrap_or_else(|error| panic!("{place}: there is room again: {error}"));
    assert_eq!(appended.first, first, "{place}");
    known.records.push((first.0, contents(&log.reader()).pop().unwrap().1));
    known.end += 1;
    *given = known.end;
    assert_eq!(Contents::of(&log), known, "{place}: after one more append");
    // A side file that could not be written is tried again.
    log.checkpoint().unwrap_or_else(|error| panic!("{place}: a second checkpoint: {error}"));
    Some(known)
}

/// Opens the log again, appends, flushes, and cuts the power. No offset below `given` is given again, unless the log was to
/// be cut below it.
fn reopens(
    fs: &SimFs,
    place: &str,
    promised: Option<&Contents>,
    [before, after]: [&Contents; 2],
    flushed: i64,
    given: i64,
) {
    let (mut log, _) = open(fs, &small());
    let found = Contents::of(&log);
    match promised {
        Some(promised) => assert_eq!(&found, promised, "{place}: after it was opened again"),
        None => assert!(found.is_between(before, after, flushed), "{place}: {before:?} was opened as {found:?}"),
    }
    let first = append_epoch(&mut log, 3);
    assert!(first >= given.min(after.end), "{place}: {first} is given again, all below {given} were");
    log.flush().unwrap_or_else(|error| panic!("{place}: {error}"));
    let known = Contents::of(&log);
    assert_eq!((first, known.end), (found.end, found.end + 1), "{place}");
    drop(log);
    for (number, image) in fs.images(8, 1).into_iter().enumerate() {
        let opened = Log::open_with(Arc::new(image), Path::new(DIR), small(), OpenHints::default());
        let (log, _) = opened.unwrap_or_else(|error| panic!("{place}, image {number}: {error}"));
        assert_eq!(Contents::of(&log), known, "{place}, image {number}: what was flushed after it was opened again");
    }
}

fn append_epoch(log: &mut Log, epoch: i32) -> i64 {
    log.append(NOW, LeaderEpoch(epoch), &numbered(3000, 90)).unwrap().first.0
}

/// States of a directory that make opening write something.
fn states() -> Vec<(&'static str, SimFs, Contents)> {
    let make = |name, spoil: fn(&SimFs), closes: bool| {
        let fs = disk(1);
        let log = prepared(&fs);
        let contents = Contents::of(&log);
        if closes {
            log.close().unwrap();
        } else {
            drop(log);
        }
        fs.sync_everything();
        spoil(&fs);
        fs.sync_everything();
        (name, fs, contents)
    };
    fn remove(fs: &SimFs, ending: &str) {
        for name in names(fs).iter().filter(|name| name.ends_with(ending)) {
            fs.remove_file(&path(name)).unwrap();
        }
    }
    vec![
        make("closed well", |_| {}, true),
        make("killed", |_| {}, false),
        make("without indexes", |fs| remove(fs, "index"), true),
        make("killed, without indexes", |fs| remove(fs, "index"), false),
        make("without epochs", |fs| remove(fs, "checkpoint"), true),
        make("without snapshots", |fs| remove(fs, ".snapshot"), true),
        make("with a torn tail", torn, false),
        make(
            "with what interrupted work left",
            |fs| write_file(fs, "00000000000000000000.log.cleaned", &[1; 50]),
            false,
        ),
    ]
}

/// Killed, with batches that no sync has made durable; and as another program leaves it, whose checkpoints are gone.
fn unsynced_states() -> Vec<(&'static str, SimFs, Contents)> {
    let make = |name, is_ours: bool| {
        let fs = disk(1);
        let log = filled(&fs, &small(), 20);
        let contents = Contents::of(&log);
        drop(log);
        if !is_ours {
            fs.remove_file(&path("highwater-state")).unwrap();
        }
        fs.sync_dir(Path::new(DIR)).unwrap();
        (name, fs, contents)
    };
    vec![make("killed before a sync", true), make("not synced and without a state file", false)]
}

fn torn(fs: &SimFs) {
    let last = names(fs).into_iter().filter(|name| name.ends_with(".log")).max().unwrap();
    fs.corrupt(&path(&last), |bytes| bytes.extend_from_slice(&numbered(7000, 90)[..70])).unwrap();
}

#[test]
fn a_log_opens_on_a_full_disk_whatever_there_is_to_do() {
    for (name, fs, expected) in states() {
        fs.set_capacity(0);
        let (mut log, _) = open(&fs, &small());
        assert_eq!(Contents::of(&log), expected, "{name}");
        let refused = log.append(NOW, LeaderEpoch(4), &numbered(33, 500));
        assert!(matches!(refused, Err(AppendError::Io(_))), "{name}: {refused:?}");
        assert_eq!(Contents::of(&log), expected, "{name}");
        fs.set_capacity(1 << 30);
        assert_eq!(append_epoch(&mut log, 4), expected.end, "{name}");
        let expected = Contents::of(&log);
        log.close().unwrap();
        let (log, report) = open(&fs, &small());
        assert!(report.clean, "{name}");
        assert_eq!(Contents::of(&log), expected, "{name}");
    }
}

/// Whether this error comes of a file system that takes no change.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| error.source())
        .filter_map(|error| error.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
}

/// A file system that is mounted for reading only, or was remounted so after an error: a log in it is read, whatever there is
/// to do about it, and opening it for reading does not even try to change something. Opened for writing it says so.
#[test]
fn a_log_on_a_read_only_file_system_is_read_and_not_changed() {
    let (mut opened, mut refused) = (0, 0);
    for (name, fs, expected) in states() {
        let files = || names(&fs).into_iter().map(|name| (file_bytes(&fs, &name), name)).collect::<Vec<_>>();
        let files_before = files();
        fs.inject_lasting(Fault::ReadOnly, Call::AnyChange, "", 1);
        let hints = OpenHints::default();
        let (reader, _) = Log::open_read_only_with(Arc::new(fs.clone()), Path::new(DIR), small(), hints).unwrap();
        assert_eq!((reader.start(), reader.end()), (Offset(expected.start), Offset(expected.end)), "{name}");
        assert_eq!(contents(&reader), expected.records, "{name}");
        assert_eq!(fs.faults_hit(), 0, "{name}: it tried to change something");
        match Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), hints) {
            Ok((mut log, _)) => {
                opened += 1;
                assert_eq!(Contents::of(&log), expected, "{name}");
                let error = log.append(NOW, LeaderEpoch(4), &numbered(33, 90)).unwrap_err();
                assert!(is_refused(&error), "{name}: {error:?}");
            }
            Err(error) => {
                refused += 1;
                assert!(is_refused(&error), "{name}: {error:?}");
            }
        }
        assert!(fs.faults_hit() > 0 && files() == files_before, "{name}");
        fs.clear_faults();
        let (mut log, _) = open(&fs, &small());
        assert_eq!(Contents::of(&log), expected, "{name}: where it may be written again");
        assert_eq!(append_epoch(&mut log, 4), expected.end, "{name}");
    }
    assert!(opened > 0 && refused > 0, "{opened} opened for writing, {refused} did not");
}

#[test]
fn opening_may_fail_at_each_call_and_is_tried_again() {
    let mut failures = 0;
    let (synced, unsynced) = (states(), unsynced_states());
    for (fault, call) in [
        (Fault::Enospc, Call::AnyChange),
        (Fault::Eio, Call::AnyChange),
        (Fault::Eio, Call::Read),
        (Fault::Eio, Call::Open),
        (Fault::ShortRead, Call::Read),
        (Fault::ShortWrite, Call::Write),
        (Fault::SyncFails, Call::SyncData),
        (Fault::SyncFails, Call::SyncDir),
    ] {
        let rows = 1..=in_a_row_max(fault, call);
        // Where a directory is not synced any more, there may be nothing of what was not.
        let may_lose = (fault, call) == (Fault::SyncFails, Call::SyncDir);
        let states = synced.iter().chain(unsynced.iter().filter(|_| !may_lose));
        for ((name, disk, expected), in_a_row) in states.flat_map(|state| rows.clone().map(move |row| (state, row))) {
            for nth in 1.. {
                let fs = disk.process_crash_image();
                (nth..nth + in_a_row).for_each(|nth| fs.inject(fault, call, nth));
                let opened = Log::open_with(Arc::new(fs.clone()), Path::new(DIR), small(), OpenHints::default());
                let place = format!("{name}: {fault:?} at {call:?} {nth}, {in_a_row} in a row");
                let hit = fs.faults_hit();
                fs.clear_faults();
                if let Ok((log, _)) = &opened {
                    assert_eq!(&Contents::of(log), expected, "{place}");
                }
                failures += u64::from(opened.is_err());
                drop(opened);
                if hit == 0 {
                    break;
                }
                if may_lose {
                    for (number, image) in fs.images(4, 1).into_iter().enumerate() {
                        let place = format!("{place}, image {number}");
                        reopens(&image, &place, Some(expected), [expected; 2], expected.end, expected.end);
                    }
                } else {
                    reopens(&fs.kill(), &place, Some(expected), [expected; 2], expected.end, expected.end);
                }
            }
        }
    }
    assert!(failures > 20, "{failures} openings failed");
}
