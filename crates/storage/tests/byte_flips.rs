//! Every byte of a flushed log of three small segments, flipped one at a time: what it costs. `docs/proof.md` has the
//! counts, and is held to them.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;

use highwater_storage::fs::SimFs;
use highwater_storage::*;
use support::*;

/// One batch as it was written.
#[derive(Clone, Debug)]
struct Written {
    file: String,
    bytes: Range<usize>,
    offsets: Range<i64>,
    content: Vec<u8>,
}

fn options() -> LogOptions {
    LogOptions { segment_bytes: 900, index_interval_bytes: 200, ..LogOptions::default() }
}

/// A log of three segments in several epochs, with records of an idempotent producer, compressed ones, and markers.
fn fill(log: &mut Log) {
    let value = |number: i64| vec![u8::try_from(number).unwrap(); 40];
    let codecs = [Codec::None, Codec::Lz4, Codec::None, Codec::Zstd, Codec::None, Codec::Gzip];
    let mut idempotent = 0;
    for number in 0..14i64 {
        let epoch = LeaderEpoch(i32::try_from(number / 3).unwrap());
        let at = usize::try_from(number).unwrap();
        let mut builder = BatchBuilder::new(codecs[at % codecs.len()]);
        if number % 5 == 4 {
            builder = builder.producer(9, 0, i32::try_from(number / 5 * 2).unwrap()).transactional();
        } else if number % 3 == 1 {
            builder = builder.producer(7, 0, idempotent);
            idempotent += 2;
        }
        for record in 0..2 {
            builder.push(Record::new(TimestampMs(T0 + number), &value(number + record)));
        }
        log.append(NOW, epoch, &builder.build()).unwrap();
        if number % 5 == 4 {
            let marker =
                TransactionMarker { producer_id: 9, producer_epoch: 0, is_abort: number == 4, coordinator_epoch: 0 };
            log.end_transaction(NOW, epoch, &marker).unwrap();
        }
    }
    log.flush().unwrap();
    assert_eq!(log.segments().len(), 3, "{:?}", log.segments());
}

fn stop(log: Log, clean: bool) {
    if clean {
        log.close().unwrap();
    }
}

fn written(fs: &SimFs, log: &Log) -> Vec<Written> {
    let mut all = Vec::new();
    for segment in log.segments() {
        let file = format!("{:020}.log", segment.base.0);
        let bytes = file_bytes(fs, &file);
        let mut position = 0;
        for batch in batches(&bytes[..usize::try_from(segment.size_bytes).unwrap()]) {
            let batch = batch.unwrap();
            all.push(Written {
                file: file.clone(),
                bytes: position..position + batch.bytes().len(),
                offsets: batch.base_offset().0..batch.next_offset().0,
                content: batch.bytes().to_vec(),
            });
            position += batch.bytes().len();
        }
    }
    all
}

/// The files of a log's directory.
fn files(fs: &SimFs) -> Vec<(String, Vec<u8>)> {
    names(fs).into_iter().map(|name| (name.clone(), file_bytes(fs, &name))).collect()
}

/// A disk with these files.
fn disk_with(files: &[(String, Vec<u8>)]) -> SimFs {
    let fs = disk(1);
    for (name, bytes) in files {
        write_file(&fs, name, bytes);
    }
    fs.sync_everything();
    fs
}

/// What a reader gets: the batches, and the ranges it is told are damaged.
fn read_all(reader: &LogReader, verified: bool) -> (Vec<Vec<u8>>, Vec<Range<i64>>) {
    let limit = ReadLimit::bytes(500);
    let limit = if verified { limit.verified() } else { limit };
    let (mut found, mut damaged) = (Vec::new(), Vec::new());
    let mut from = reader.start();
    while from < reader.end() {
        match reader.read(from, limit) {
            Ok(fetched) => {
                assert!(fetched.next > from, "stuck at {from}");
                found.extend(batches(&fetched.bytes).map(|batch| batch.unwrap().bytes().to_vec()));
                from = fetched.next;
            }
            Err(ReadError::Corrupt { offsets, .. }) => {
                assert!(offsets.end > from, "{offsets:?} at {from}");
                damaged.push(offsets.start.0..offsets.end.0);
                from = offsets.end;
            }
            Err(error) => panic!("{error}"),
        }
    }
    (found, damaged)
}

#[derive(Debug, Default)]
struct Tally {
    flips: u32,
    repaired: u32,
    batch_lost: u32,
    /// Reported, with more than one value that would fit; the batch is served.
    doubtful: u32,
    unnoticed: BTreeMap<&'static str, u32>,
    /// Of these, by segment and batch in it: what a pass of the scrubber does not notice either.
    unscrubbed: BTreeMap<(String, i64), u32>,
}

impl Tally {
    fn row(&self, stop: &str) -> String {
        let Self { flips, repaired, batch_lost, doubtful, .. } = self;
        let unscrubbed: u32 = self.unscrubbed.values().sum();
        let scrubbed = self.unnoticed.values().sum::<u32>() - unscrubbed;
        format!("| {stop} | {flips} | {repaired} | {batch_lost} | {doubtful} | {scrubbed} | {unscrubbed} |")
    }
}

/// Holds the document to a row of its tables.
fn hold_to(row: &str) {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/proof.md");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.lines().any(|line| line == row), "docs/proof.md has to say\n{row}");
}

fn field_of(at: usize) -> &'static str {
    match at {
        0..8 => "base offset",
        8..12 => "length",
        12..16 => "leader epoch",
        16 => "format version",
        _ => "under the checksum",
    }
}

/// Flips byte `at` of a file and opens the log. Returns what became of it.
fn flip(
    before: &[(String, Vec<u8>)],
    all: &[Written],
    hit: &Written,
    at: usize,
    mask: u8,
    end: Offset,
    tally: &mut Tally,
) {
    let fs = disk_with(before);
    fs.corrupt(&path(&hit.file), |bytes| bytes[at] ^= mask).unwrap();
    let case = format!("byte {} of the batch at {:?} of {}, {mask:02x}", at - hit.bytes.start, hit.offsets, hit.file);
    let (log, report) = open(&fs, &options());
    assert!(report.cut.is_none(), "{case}: {report:?}");
    assert_eq!(log.end(), end, "{case}");
    let (found, damaged) = read_all(&log.reader(), true);
    tally.flips += 1;
    let others = all.iter().filter(|batch| batch.offsets != hit.offsets).map(|batch| &batch.content);
    assert!(others.clone().all(|batch| found.contains(batch)), "{case}: another batch is lost, {damaged:?} {report:?}");
    if found.contains(&hit.content) {
        tally.repaired += 1;
        assert_eq!((found.len(), damaged.len()), (all.len(), 0), "{case}");
    } else if damaged.is_empty() {
        assert_eq!(found.len(), all.len(), "{case}");
        if !report.rotten.is_empty() {
            tally.doubtful += 1;
            return;
        }
        *tally.unnoticed.entry(field_of(at - hit.bytes.start)).or_default() += 1;
        let mut log = log;
        let scrubbed = keep_house(&mut log, NOW, Offset(0));
        let is_found = |step: &Step| matches!(step, Step::Scrubbed { mislabelled: 1, .. });
        if !scrubbed.iter().any(is_found) {
            *tally.unscrubbed.entry((hit.file.clone(), hit.offsets.start)).or_default() += 1;
        }
        return;
    } else {
        assert_eq!(damaged, std::slice::from_ref(&hit.offsets), "{case}");
        assert_eq!(found.len(), all.len() - 1, "{case}");
        tally.batch_lost += 1;
        let known: Vec<_> =
            log.damage().into_iter().map(|damage| damage.offsets.start.0..damage.offsets.end.0).collect();
        assert_eq!(known, damaged, "{case}: what a reader met is remembered");
    }
    // Who does not ask for checksums gets the batch as it is, or an error for it, and all the others.
    let (found, _) = read_all(&log.reader(), false);
    assert!(others.clone().all(|batch| found.contains(batch)), "{case}: another batch is lost to the unverified");
}

fn flip_all(clean: bool) -> Tally {
    let fs = disk(1);
    let (mut log, _) = open(&fs, &options());
    fill(&mut log);
    let all = written(&fs, &log);
    let (end, epochs) = (log.end(), log.epochs().to_vec());
    stop(log, clean);
    let before = files(&fs);
    // It is as it was if nothing is flipped.
    let (mut log, report) = open(&disk_with(&before), &options());
    assert_eq!((report.clean, report.rotten.len(), report.repaired.len()), (clean, 0, 0), "{report:?}");
    assert_eq!((log.end(), log.epochs()), (end, &*epochs));
    let found = |step: &Step| match step {
        Step::Scrubbed { damaged, mislabelled, .. } => damaged + mislabelled,
        _ => 0,
    };
    assert_eq!(
        keep_house(&mut log, NOW, Offset(0)).iter().map(found).sum::<u32>(),
        0,
        "the scrubber finds what is not there"
    );
    drop(log);
    let mut tally = Tally::default();
    for hit in &all {
        for at in hit.bytes.clone() {
            flip(&before, &all, hit, at, 1 << (at % 8), end, &mut tally);
            flip(&before, &all, hit, at, 0xff, end, &mut tally);
        }
    }
    tally
}

#[test]
fn after_a_crash_a_flipped_byte_costs_its_batch_at_most() {
    let tally = flip_all(false);
    hold_to(&tally.row("killed"));
    // No checkpoint has written the epochs down: an epoch between those of both neighbours may be right.
    assert!(tally.unnoticed.keys().all(|field| *field == "leader epoch"), "{tally:?}");
    assert!(tally.unnoticed.values().sum::<u32>() <= 20, "{tally:?}");
    assert!(tally.repaired > 0 && tally.batch_lost > 0);
}

#[test]
fn after_a_clean_stop_a_flipped_byte_costs_its_batch_at_most() {
    let tally = flip_all(true);
    hold_to(&tally.row("closed"));
    // Sealed segments are not read when a log is opened, and a reader does not look at epochs. The scrubber does.
    assert!(tally.unnoticed.keys().all(|field| *field == "leader epoch"), "{tally:?}");
    assert!(tally.unnoticed.values().sum::<u32>() > 50 && tally.unscrubbed.is_empty(), "{tally:?}");
    assert!(tally.batch_lost > 0);
}

#[test]
fn a_flipped_byte_in_any_other_file_costs_no_record() {
    for clean in [false, true] {
        let mut flips = 0;
        let fs = disk(1);
        let (mut log, _) = open(&fs, &options());
        fill(&mut log);
        let all = written(&fs, &log);
        let end = log.end();
        stop(log, clean);
        let before = files(&fs);
        let others: Vec<_> = names(&fs).into_iter().filter(|name| !name.ends_with(".log")).collect();
        assert!(others.contains(&"highwater-state".to_owned()), "{others:?}");
        for name in others {
            for at in 0..file_bytes(&fs, &name).len() {
                let image = disk_with(&before);
                image.corrupt(&path(&name), |bytes| bytes[at] ^= 1 << (at % 8)).unwrap();
                let (log, report) = open(&image, &options());
                assert_eq!(log.end(), end, "{name} {at}: {report:?}");
                let (found, damaged) = read_all(&log.reader(), true);
                assert_eq!(damaged, [], "{name} {at}");
                assert!(found.iter().eq(all.iter().map(|batch| &batch.content)), "{name} {at}");
                flips += 1;
            }
        }
        hold_to(&format!("| {} | {flips} | 0 |", if clean { "closed" } else { "killed" }));
    }
}

/// Opened for reading, the same log tells the same, and nothing is written.
#[test]
fn opening_for_reading_finds_the_same_and_changes_nothing() {
    for clean in [false, true] {
        let fs = disk(1);
        let (mut log, _) = open(&fs, &options());
        fill(&mut log);
        let all = written(&fs, &log);
        stop(log, clean);
        let before = files(&fs);
        for (number, hit) in all.iter().enumerate() {
            let at = hit.bytes.start + [2, 9, 14, 16, 40][number % 5];
            let image = disk_with(&before);
            image.corrupt(&path(&hit.file), |bytes| bytes[at] ^= 4).unwrap();
            let flipped = files(&image);
            let shared = std::sync::Arc::new(image.clone());
            let (reader, report) =
                Log::open_read_only_with(shared, std::path::Path::new(DIR), options(), OpenHints::default()).unwrap();
            assert!(report.repaired.iter().all(|repaired| !repaired.in_place), "{report:?}");
            let (found, damaged) = read_all(&reader, true);
            assert!(damaged.is_empty() || damaged == [hit.offsets.clone()], "{damaged:?}");
            let others = all.iter().filter(|batch| batch.offsets != hit.offsets).map(|batch| &batch.content);
            assert!(others.clone().all(|batch| found.contains(batch)));
            assert_eq!(files(&image), flipped);
        }
    }
}
