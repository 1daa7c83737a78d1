//! Appends records to a log in a directory and reads them back, also by time and after the log was closed.
//!
//! `cargo run -p highwater-storage --example append_and_read -- [DIRECTORY]`

use std::error::Error;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, ReadLimit, Record, TimestampMs, batches,
};

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::tempdir()?;
    let directory = std::env::args_os().nth(1).map_or_else(|| temporary.path().join("log"), PathBuf::from);

    // Opening tells what it found: nothing, a log that was closed, or one that has to be recovered.
    let (mut log, report) = Log::open(&directory, LogOptions::default())?;
    println!("{}: offsets {} to {}, clean: {}", directory.display(), report.start, report.end, report.clean);

    // The storage has no clock. A log that is not replicated stays in one leader epoch.
    let now = TimestampMs(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?);
    let mut builder = BatchBuilder::new(Codec::None);
    for line in ["to be", "or not to be", "that is the question"] {
        builder.push(Record::keyed(now, b"hamlet", line.as_bytes()));
    }
    let appended = log.append(now, LeaderEpoch(0), &builder.build())?;
    println!("appended {} to {}, {:?}", appended.first, appended.last, appended.durability);

    // What was appended survives a crash of this process. After a flush it survives a power cut too.
    let flushed = log.flush()?;
    println!("all below {flushed} is on disk");

    let reader = log.reader();
    print_records(&reader, appended.first)?;
    let found = reader.offset_for_timestamp(now, Offset::MAX)?.expect("it was just appended");
    println!("the first record of this moment or later has offset {}", found.offset);

    // After a clean close the next open reads the end of one file, however large the log is.
    log.close()?;
    let (log, report) = Log::open(&directory, LogOptions::default())?;
    assert!(report.clean);
    println!("opened again: {} bytes in {} segment(s)", log.size_bytes(), report.segments);
    Ok(())
}

fn print_records(reader: &LogReader, mut from: Offset) -> Result<(), Box<dyn Error>> {
    loop {
        let fetched = reader.read(from, ReadLimit::bytes(64 * 1024))?;
        if fetched.bytes.is_empty() {
            return Ok(());
        }
        for batch in batches(&fetched.bytes) {
            let batch = batch?;
            // `records` is for batches that are not compressed; see `compression::decompress` for the others.
            for record in batch.records().ok_or("a compressed batch")? {
                let record = record?;
                let offset = batch.base_offset() + i64::from(record.offset_delta);
                println!("{offset}: {}", String::from_utf8_lossy(record.value.unwrap_or_default()));
            }
        }
        from = fetched.next;
    }
}
