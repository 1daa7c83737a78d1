//! Opening a log after a clean stop, a kill or a power cut, with files damaged in between.
//!
//! What must hold: opening never fails for damage; a damaged or missing side file changes no answer; damage to a batch
//! above the recovery point ends the log right before that batch; a power cut leaves a prefix that holds everything
//! flushed. Afterwards the log can be appended to, and opening it once more changes nothing.

use std::path::{Path, PathBuf};

use highwater_storage::fs::{Fs, SimFs};
use highwater_storage::{BatchView, LeaderEpoch, LogOptions, Offset};

use crate::directory::{Readable, any_directory, file_names, unpack};
use crate::input::Input;
use crate::model::{DIR, Model, NOW, batch, disk, open, options};
use crate::repairs::repaired;

/// Bytes at the front that decide on the log's options, how the program ends, and the damage.
const END_BYTES: usize = 12;

/// The target's body.
pub fn run(data: &[u8]) {
    // How it ends is read from the front, so that a program that runs out of bytes ends in many ways too.
    let (end, program) = data.split_at(data.len().min(END_BYTES));
    let (mut end, mut input) = (Input::new(end), Input::new(program));
    let options = options(&mut end);
    let mode = end.below(8);
    match mode {
        0 => return any_bytes(input.rest(), &options, end.flag()),
        1 => return any_partition(&unpack(input.rest()), &options, end.flag()),
        _ => {}
    }
    let mut fs = disk();
    let mut log = open(&fs, &options).0;
    let mut model = Model::default();
    let mut epoch = LeaderEpoch(0);
    // As often as not, so that the fuzzer is not slowed down for the rest.
    let repairs = mode % 2 == 1;
    for _ in 0..1 + input.below(40) {
        match input.below(12) {
            0 => epoch.0 += 1 + i32::from(input.byte() % 3),
            1 => {
                log.flush().expect("the simulated disk works");
            }
            2 => {
                log.close().expect("the simulated disk works");
                log = open(&fs, &options).0;
            }
            _ => model.append(&mut log, epoch, &mut input),
        }
        if input.is_empty() {
            break;
        }
    }

    let appended = model.clone();
    let mut has_one_damage = true;
    match end.below(3) {
        0 => {
            log.close().expect("the simulated disk works");
            damage_side_file(&fs, &mut end);
        }
        1 => {
            let (recovery_point, flushed) = (log.recovery_point(), log.flushed());
            drop(log);
            fs = fs.kill();
            if end.flag() {
                damage_side_file(&fs, &mut end);
            } else if let Some(rotten) = damage_log(&fs, &options, &mut model, [recovery_point, flushed], &mut end) {
                if repairs {
                    repair(&fs, &options, &appended, true);
                }
                return rot(&fs, &options, &model, rotten, &mut input);
            }
        }
        _ => {
            let flushed = log.flushed();
            has_one_damage = false;
            let images = fs.images(12, u64::from(end.byte()));
            drop(log);
            fs = images[end.below(images.len())].clone();
            if repairs {
                repair(&fs, &options, &appended, false);
            }
            let left = open(&fs, &options).0.end();
            assert!(left >= flushed, "the log ends at {left}, and everything below {flushed} was flushed");
            assert!(left == model.boundary(left) && left <= model.end(), "the log ends at {left}, where no batch ends");
            model.cut(left);
            // That opening was stopped by a second power cut; what it decided must stand.
            let images = fs.images(4, 1);
            fs = images[end.below(images.len())].clone();
        }
    }
    if repairs {
        repair(&fs, &options, &appended, has_one_damage);
    }
    reopened(&fs, &options, &mut model, epoch, &mut input);
}

/// Opens, holds the log against the list, appends, kills, opens again.
fn reopened(fs: &SimFs, options: &LogOptions, model: &mut Model, epoch: LeaderEpoch, input: &mut Input<'_>) {
    let (mut log, report) = open(fs, options);
    assert_eq!(report.end, log.end(), "the report's end");
    model.check(&log);
    model.append(&mut log, epoch, input);
    model.check(&log);
    drop(log);
    let fs = fs.kill();
    let (log, report) = open(&fs, options);
    assert_eq!(report.cut, None, "a log that was just recovered is cut");
    model.check(&log);
    log.close().expect("the simulated disk works");
    let (log, report) = open(&fs, options);
    assert!(report.clean && report.bytes_scanned == 0, "a log that was closed is scanned");
    model.check(&log);
}

/// Removes, cuts, empties or spoils one file that holds no records.
fn damage_side_file(fs: &SimFs, input: &mut Input<'_>) {
    // The kind first, so that an input means the same whatever other files the log keeps.
    let kind = input.choose(&[".index", ".index", ".timeindex", ".snapshot", "checkpoint", "state"]);
    let files = files(fs, |name| name.ends_with(kind));
    if files.is_empty() {
        return;
    }
    let path = &files[input.below(files.len())];
    // Kafka guards these two with no checksum, so that other numbers in them may look well. They are only damaged so that
    // it shows.
    let is_time_index = path.extension().is_some_and(|extension| extension == "timeindex");
    let is_epochs = path.ends_with("leader-epoch-checkpoint");
    match input.below(7) {
        0 => fs.remove_file(path).expect("it is there"),
        1 => spoil(fs, path, |bytes| bytes.clear()),
        2 => {
            let keep = input.byte();
            spoil(fs, path, |bytes| {
                let mut keep = bytes.len() * usize::from(keep) / 256;
                keep -= usize::from(is_time_index && keep > 0 && keep % 12 == 0);
                keep = if is_epochs { 0 } else { keep };
                bytes.truncate(keep);
            });
        }
        3 => {
            let more = input.byte();
            spoil(fs, path, |bytes| bytes.extend(vec![more; usize::from(more) + 1]));
        }
        _ if is_time_index || is_epochs => spoil(fs, path, |bytes| bytes.fill(0xff)),
        _ => {
            let (at, with) = (input.below(4_096), input.byte() | 1);
            spoil(fs, path, |bytes| {
                if !bytes.is_empty() {
                    let at = at % bytes.len();
                    bytes[at] ^= with;
                }
            });
        }
    }
}

/// Spoils one batch at or above the recovery point, or what follows the last one. If the batch was flushed this is rot, and
/// its number is returned; else the log must end before it.
fn damage_log(
    fs: &SimFs,
    options: &LogOptions,
    model: &mut Model,
    [recovery_point, flushed]: [Offset; 2],
    input: &mut Input<'_>,
) -> Option<usize> {
    let doubted = model.batches.iter().position(|batch| batch.base >= recovery_point)?;
    let logs = files(fs, |name| name.ends_with(".log"));
    if input.below(6) == 0 {
        // What follows the last batch is no batch.
        let with = input.byte();
        let last = logs.last().expect("a log has a segment");
        spoil(fs, last, |bytes| bytes.extend(vec![with; 1 + usize::from(with)]));
        return None;
    }
    let victim = doubted + input.below(model.batches.len() - doubted);
    let batch = model.batches[victim].clone();
    let segment = logs.iter().rev().find(|path| base_of(path) <= batch.base).expect("a batch lies in a segment");
    let first = base_of(segment);
    let before: usize = model.batches[..victim].iter().filter(|other| other.base >= first).map(|b| b.bytes.len()).sum();
    // Not the base offset, nor the epoch, which no checksum covers: those have neighbours to tell them by, and gaps in
    // offsets are legal.
    let inside = match input.below(3) {
        0 => 8 + input.below(4),
        1 => 16 + input.below(45),
        _ => 21 + input.below(batch.bytes.len() - 21),
    };
    let with = input.byte() | 1;
    let was_flushed = batch.next <= flushed;
    match input.below(4) {
        0 if !was_flushed => spoil(fs, segment, |bytes| bytes.truncate(before + inside)),
        1 if !was_flushed => spoil(fs, segment, |bytes| bytes[before + inside..].fill(0)),
        _ => spoil(fs, segment, |bytes| bytes[before + inside] ^= with),
    }
    let spoilt = read(fs, segment);
    let now = spoilt.get(before..before + batch.bytes.len());
    // Zeros may have been zeros before. Then it is the next batch of the segment, if there is one, that is spoilt.
    if now == Some(&batch.bytes[..]) {
        if spoilt.len() > before + batch.bytes.len() {
            model.cut(batch.next);
        }
        return None;
    }
    if was_flushed {
        return Some(victim);
    }
    // A length or a format version can be put right where only one value fits; the bytes are held against the list later.
    let is_covered = !(8..12).contains(&inside) && inside != 16;
    if is_covered || open(&fs.process_crash_image(), options).0.end() != model.end() {
        model.cut(batch.base);
    }
    None
}

/// A log one batch of which has rotted: all others are there, the end stays, and it goes on like that.
fn rot(fs: &SimFs, options: &LogOptions, model: &Model, rotten: usize, input: &mut Input<'_>) {
    let (mut log, report) = open(fs, options);
    assert_eq!((&report.cut, log.end()), (&None, model.end()), "rot cuts nothing");
    let found = Readable::verified(&log);
    let without = |left_out: Option<usize>| -> Vec<u8> {
        let batches = model.batches.iter().enumerate().filter(|(at, _)| Some(*at) != left_out);
        batches.flat_map(|(_, batch)| batch.bytes.iter().copied()).collect()
    };
    // Its length and its format version can be put right where only one value fits.
    assert!(
        found.bytes == without(Some(rotten)) || found.bytes == without(None),
        "more than the batch that has rotted cannot be read: {} bytes of {} are, without {:?}, {report:?}",
        found.bytes.len(),
        without(None).len(),
        model.batches[rotten].base..model.batches[rotten].next,
    );
    let (bytes, _) = batch(input);
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    assert_eq!(log.append(NOW, epoch, &bytes).expect("a good batch is taken").first, model.end());
    let (end, found) = (log.end(), Readable::verified(&log));
    drop(log);
    let fs = fs.kill();
    let (log, report) = open(&fs, options);
    assert_eq!((report.cut, log.end()), (None, end), "rot cuts nothing when the log is opened again");
    assert!(Readable::verified(&log) == found, "opened again it is another log");
    log.close().expect("the simulated disk works");
    let (log, report) = open(&fs, options);
    assert!(report.clean && log.end() == end, "a log that was closed is another");
    assert!(Readable::verified(&log) == found, "after a close it is another log");
}

/// Repairs a copy of a log: nothing is there that was not appended, and every batch that is whole, unless there is damage
/// right behind it too: what is found between damage and damage may be part of a record.
fn repair(fs: &SimFs, options: &LogOptions, appended: &Model, has_one_damage: bool) {
    let found = repaired(fs, options, true);
    // Where one write tears at several places, a batch may be left with another base offset, which no checksum covers.
    let covered = if has_one_damage { 0 } else { 16 };
    let is_appended = |batch: BatchView<'_>| {
        appended.batches.iter().any(|stored| stored.bytes[covered..] == batch.bytes()[covered..])
    };
    assert!(found.batches().all(is_appended), "a repair makes up a batch");
    if !has_one_damage {
        return;
    }
    let logs: Vec<Vec<u8>> = files(fs, |name| name.ends_with(".log")).iter().map(|path| read(fs, path)).collect();
    for stored in &appended.batches {
        let is_there = logs.iter().any(|log| log.windows(stored.bytes.len()).any(|bytes| bytes == stored.bytes));
        let (batch, _) = BatchView::parse(&stored.bytes).expect("it was appended");
        assert!(!is_there || found.holds(&batch), "a repair loses the batch at {}, which is whole", stored.base);
    }
}

fn any_partition(fs: &SimFs, options: &LogOptions, repairs: bool) {
    if repairs {
        repaired(fs, options, false);
    }
    any_directory(fs, options);
}

/// A segment of any bytes.
fn any_bytes(bytes: &[u8], options: &LogOptions, repairs: bool) {
    let fs = disk();
    let path = Path::new(DIR).join("00000000000000000000.log");
    fs.open(&path, highwater_storage::fs::OpenMode::CreateNew).expect("the directory is empty");
    spoil(&fs, &path, |file| file.extend_from_slice(bytes));
    any_partition(&fs, options, repairs);
}

fn files(fs: &SimFs, choose: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    file_names(fs).into_iter().filter(|name| choose(name)).map(|name| Path::new(DIR).join(name)).collect()
}

fn base_of(path: &Path) -> Offset {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("names are plain");
    Offset(stem.parse().expect("segments are named by their base offset"))
}

fn spoil(fs: &SimFs, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    fs.corrupt(path, change).expect("it is there");
}

fn read(fs: &SimFs, path: &Path) -> Vec<u8> {
    let mut found = Vec::new();
    fs.corrupt(path, |bytes| found.clone_from(bytes)).expect("it is there");
    found
}
