//! What was damaged, or never stopped cleanly: what is left of it here, beside what Kafka 4.1 left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use highwater_storage::{
    CutReason, Log, LogOptions, LogReader, Offset, OpenHints, ReadError, ReadLimit, RecoveryReport, RepairedField,
    TimestampMs, WorkLimits, batches,
};
use serde_json::{Value, json};

use crate::case::{CASES, Partition, partitions, roots};
use crate::roots::open;
use crate::rows::records;

/// What a reader gets who verifies checksums and goes on behind what is damaged.
#[derive(Debug, PartialEq)]
struct Served {
    /// The records, by offset.
    rows: BTreeMap<i64, Value>,
    /// The ranges that are told to be damaged: first offset, and the one to go on at.
    damaged: Vec<[i64; 2]>,
}

fn read_past_damage(reader: &LogReader) -> Served {
    let (mut rows, mut damaged, mut from) = (BTreeMap::new(), Vec::new(), reader.start());
    while from < reader.end() {
        let fetched = match reader.read(from, ReadLimit::bytes(3000).verified()) {
            Ok(fetched) => fetched,
            Err(ReadError::Corrupt { offsets, .. }) => {
                damaged.push([offsets.start.0, offsets.end.0]);
                from = offsets.end;
                continue;
            }
            Err(error) => panic!("at {from}: {error}"),
        };
        assert!(fetched.next > from, "reading gets on from {from}");
        for batch in batches(&fetched.bytes).map(|batch| batch.expect("a batch")).filter(|batch| !batch.is_control()) {
            assert!(batch.crc_matches());
            // The log may start inside of a batch.
            let inside = records(&batch).into_iter().map(|row| (row[0].as_i64().expect("an offset"), row));
            rows.extend(inside.filter(|(offset, _)| *offset >= reader.start().0));
        }
        from = fetched.next;
    }
    Served { rows, damaged }
}

/// The records that were in a partition before it was damaged.
fn undamaged(partition: &Partition) -> BTreeMap<i64, Value> {
    let (case, folder) = match (partition.case, partition.folder.as_str()) {
        ("clean-damaged-files", _) => ("clean-damaged-files", "after"),
        // All of these were made from one directory. What Kafka made of them, in the folders named "after", is what it is.
        (_, "before") => ("unclean", "after"),
        (case, folder) => (case, folder),
    };
    let found = partitions(&[case]).into_iter().find(|it| it.name == partition.name && it.folder == folder);
    let found = found.unwrap_or_else(|| panic!("{}: nothing intact", partition.id));
    let rows = found.expected["records"].as_array().expect("records");
    rows.iter().map(|row| (row[0].as_i64().expect("an offset"), row.clone())).collect()
}

/// What opening did, in words for the table.
fn deeds(report: &RecoveryReport, served: &Served) -> Vec<String> {
    let mut deeds = Vec::new();
    for [from, to] in &served.damaged {
        assert_eq!(from + 1, *to, "no batch of several records was damaged");
        deeds.push(format!("offset {from} is an error of its own"));
    }
    if let Some(cut) = &report.cut {
        match cut.reason {
            CutReason::Zeros => deeds.push("room allocated ahead is cut off".to_owned()),
            _ => deeds.push(format!("cut at {}", cut.end)),
        }
    }
    let aside: Vec<_> = report.put_aside.iter().filter(|aside| aside.file.is_some()).map(|it| it.offsets).collect();
    if let (Some((first, _)), Some((_, last))) = (aside.first(), aside.last()) {
        deeds.push(format!("{first} to {last} put aside"));
    }
    if report.repaired.iter().any(|repaired| repaired.field == RepairedField::LeaderEpoch) {
        deeds.push("leader epoch put right".to_owned());
    }
    for (is_so, deed) in [
        (report.indexes_rebuilt > 0, "indexes rebuilt"),
        (report.epochs_rebuilt, "epochs rebuilt"),
        (report.producers_rebuilt, "producers rebuilt"),
        (report.snapshots_removed > 0, "snapshot removed"),
        (report.leftovers.iter().any(|name| name.ends_with(".log.swap")), "segment put in place"),
        (report.leftovers.iter().any(|name| name.ends_with(".cleaned")), "leftovers removed"),
        (report.leftovers.iter().any(|name| name.ends_with(".log.deleted")), "leftovers removed"),
    ] {
        if is_so {
            deeds.push(deed.to_owned());
        }
    }
    deeds
}

/// Every directory, opened for writing on a copy. What is served is exactly what was written, except for what a damaged
/// byte or a torn write takes with it; `docs/kafka-files.md` holds the table this prints.
#[test]
fn every_case_gives_what_the_table_says() {
    let mut table = Vec::new();
    for root in CASES.iter().flat_map(|case| roots(case)) {
        let opened = open(&root);
        for ((partition, log), report) in root.partitions.iter().zip(&opened.logs).zip(&opened.reports) {
            let id = &partition.id;
            let served = read_past_damage(&log.reader());
            let mut written = undamaged(partition);
            written.retain(|offset, _| *offset >= log.start().0);
            // What is missing lies in a range that is told to be damaged, or behind the end with the reason in the report.
            for (offset, row) in &written {
                let is_damaged = served.damaged.iter().any(|[from, to]| (from..to).contains(&offset));
                match served.rows.get(offset) {
                    Some(found) => assert_eq!(found, row, "{id}"),
                    None => assert!(is_damaged || *offset >= log.end().0, "{id}: {offset} is gone without a word"),
                }
            }
            assert!(served.rows.keys().all(|offset| written.contains_key(offset)), "{id}: more than was written");
            let (records, here) = (written.len(), served.rows.len());
            let kafkas = if partition.folder == "before" { "after" } else { partition.folder.as_str() };
            let kafka = roots(partition.case).into_iter().flat_map(|root| root.partitions);
            let kafka = kafka.into_iter().find(|it| it.name == partition.name && it.folder == kafkas);
            let kafka = kafka.map(|it| it.expected["broker"]["read_uncommitted"]["count"].clone());
            let kafka =
                kafka.filter(|count| !count.is_null()).map_or_else(|| "not asked".to_owned(), |it| it.to_string());
            let mut deeds = deeds(report, &served);
            if deeds.is_empty() {
                deeds.push("as written".to_owned());
            }
            table.push(format!("| {id} | {records} | {kafka} | {here} | {} |", deeds.join(", ")));
        }
    }
    println!("{}", table.join("\n"));
    let documented = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kafka-files.md");
    let documented = fs::read_to_string(documented).expect("docs/kafka-files.md");
    let documented: BTreeSet<&str> = documented.lines().collect();
    for row in &table {
        assert!(documented.contains(row.as_str()), "docs/kafka-files.md does not say {row}");
    }
    assert_eq!(table.len(), 75, "partitions");
}

/// Names, lengths and times of the files in a directory.
fn listing(dir: &Path) -> Vec<(String, u64, SystemTime)> {
    let entry = |entry: fs::DirEntry| {
        let metadata = entry.metadata().expect("metadata");
        (entry.file_name().into_string().expect("UTF-8"), metadata.len(), metadata.modified().expect("a time"))
    };
    let mut entries: Vec<_> = fs::read_dir(dir).expect("a directory").map(|it| entry(it.expect("an entry"))).collect();
    entries.sort();
    entries
}

/// Every directory as it lies there, opened for reading only: the same is served as after opening it for writing, and no
/// file is touched.
#[test]
fn reading_only_serves_the_same_and_touches_nothing() {
    for root in CASES.iter().flat_map(|case| roots(case)) {
        let opened = open(&root);
        for (partition, log) in root.partitions.iter().zip(&opened.logs) {
            let before = listing(&partition.dir);
            let hints = OpenHints {
                clean: Some(!root.expected["clean_shutdown"].is_null()),
                recovery_point: partition.expected["recovery_point"].as_i64().map(Offset),
                log_start: Some(log.start()),
                ..OpenHints::default()
            };
            let (reader, _) = Log::open_read_only_with(
                highwater_storage::fs::OsFs::shared(),
                &partition.dir,
                LogOptions::default(),
                hints,
            )
            .unwrap_or_else(|error| panic!("{}: {error}", partition.id));
            assert_eq!((reader.start(), reader.end()), (log.start(), log.end()), "{}", partition.id);
            assert!(read_past_damage(&reader) == read_past_damage(&log.reader()), "{}", partition.id);
            assert_eq!(listing(&partition.dir), before, "{}", partition.id);
        }
    }
}

/// Whether each entry of a segment's indexes names a batch that is there: the offset index where it begins, the time
/// index one with that time.
fn indexes_are_true(dir: &Path, base: i64) -> bool {
    let read = |ending: &str| fs::read(dir.join(format!("{base:020}.{ending}"))).expect("a file");
    let log = read("log");
    let (mut starts, mut times) = (BTreeMap::new(), BTreeSet::new());
    let mut found = batches(&log);
    let mut position = 0;
    while let Some(Ok(batch)) = found.next() {
        starts.insert(u32::try_from(position).expect("small"), batch.last_offset().0);
        times.insert((batch.max_timestamp().0, batch.last_offset().0));
        position = found.position();
    }
    let (index, time_index) = (read("index"), read("timeindex"));
    let (entries, rest) = index.as_chunks::<8>();
    let (time_entries, time_rest) = time_index.as_chunks::<12>();
    let of_offset = |bytes: &[u8]| base + i64::from(i32::from_be_bytes(bytes.try_into().expect("four bytes")));
    rest.is_empty()
        && time_rest.is_empty()
        && entries.iter().all(|entry| {
            let start = u32::from_be_bytes(entry[4..].try_into().expect("four bytes"));
            starts.get(&start).is_some_and(|last| *last <= of_offset(&entry[..4]))
        })
        && time_entries.iter().all(|entry| {
            let time = i64::from_be_bytes(entry[..8].try_into().expect("eight bytes"));
            times.contains(&(time, of_offset(&entry[8..])))
        })
}

/// One side file of each topic damaged under a clean marker, which Kafka mostly does not notice. Here every answer is
/// right at once, and once they were asked for and housekeeping went by, so are the files.
#[test]
fn damaged_side_files_change_no_answer_and_are_put_right() {
    let root = roots("clean-damaged-files").into_iter().find(|root| root.id.ends_with("before")).expect("before");
    let opened = open(&root);
    for (partition, mut log) in root.partitions.iter().zip(opened.logs) {
        let id = &partition.id;
        let reader = log.reader();
        let served = read_past_damage(&reader);
        assert_eq!(served.rows, undamaged(partition), "{id}");
        for (&offset, row) in &served.rows {
            let fetched = reader.read(Offset(offset), ReadLimit::bytes(1)).expect("a read");
            assert!(fetched.first <= Offset(offset) && Offset(offset) < fetched.next, "{id}: {offset}");
            let timestamp = row[1].as_i64().expect("a time");
            let found = reader.offset_for_timestamp(TimestampMs(timestamp), Offset::MAX).expect("an answer");
            assert!(found.expect("a record").offset <= Offset(offset), "{id}: {offset} by its time");
        }
        let epochs: Vec<_> = log.epochs().iter().map(|(epoch, start)| json!([epoch.0, start.0])).collect();
        assert_eq!(epochs.first(), Some(&json!([0, 0])), "{id}");
        assert!(!log.producers().is_empty(), "{id}: it has producers");
        let limits = WorkLimits::new(log.end());
        while log.housekeeping().step(TimestampMs(1_700_000_000_000), &limits).expect("housekeeping").is_some() {}
        let bases: Vec<i64> = log.segments().iter().map(|segment| segment.base.0).collect();
        log.close().expect("it closes");
        let dir = opened.copy.path().join(&partition.name);
        for base in bases {
            assert!(indexes_are_true(&dir, base), "{id}: the indexes of {base}");
        }
    }
}
