//! A reader that follows a writer: each record once, in order, while the writer appends, rolls and flushes.
//!
//! `cargo run -p highwater-storage --example tail`

use std::error::Error;
use std::sync::mpsc;
use std::thread;

use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, LogReader, Offset, ReadLimit, Record, TimestampMs, batches,
};

const RECORDS: i64 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    // Small segments, so that the reader crosses many.
    let options = LogOptions { segment_bytes: 64 * 1024, ..LogOptions::default() };
    let (mut log, _) = Log::open(directory.path().join("log"), options)?;
    let reader = log.reader();

    // The log calls nobody back. Whoever appends tells those who wait, here by a channel.
    let (appended, news) = mpsc::channel::<Offset>();
    let follower = thread::spawn(move || follow(&reader, &news));

    let now = TimestampMs(1_700_000_000_000);
    while log.end() < Offset(RECORDS) {
        let mut builder = BatchBuilder::new(Codec::None);
        for number in log.end().0..(log.end().0 + 25).min(RECORDS) {
            builder.push(Record::new(now, number.to_string().as_bytes()));
        }
        let done = log.append(now, LeaderEpoch(0), &builder.build())?;
        appended.send(done.last.next())?;
        // A sync is begun here, may run on any thread while appends go on, and is finished here.
        if done.last.0 % 2_000 == 1_999
            && let Some(job) = log.begin_flush()
        {
            log.finish_flush(job.run())?;
        }
    }
    drop(appended);

    let seen = follower.join().expect("the follower does not panic").map_err(|error| error.to_string())?;
    println!("{seen} records in {} segments, {} of them flushed", log.segments().len(), log.flushed());
    assert_eq!(seen, RECORDS);
    Ok(())
}

/// Reads whatever there is, waits for news, and ends when there will be none.
fn follow(reader: &LogReader, news: &mpsc::Receiver<Offset>) -> Result<i64, Box<dyn Error + Send + Sync>> {
    let mut from = reader.start();
    // The buffer is used again, so that a read costs one copy and no allocation.
    let mut bytes = Vec::new();
    loop {
        while from < reader.end() {
            let (_, next) = reader.read_into(from, ReadLimit::bytes(16 * 1024), &mut bytes)?;
            for batch in batches(&bytes) {
                let batch = batch?;
                for record in batch.records().ok_or("a compressed batch")? {
                    let record = record?;
                    let offset = batch.base_offset() + i64::from(record.offset_delta);
                    assert_eq!(record.value, Some(offset.to_string().as_bytes()), "each record once and in order");
                }
            }
            from = next;
        }
        if news.recv().is_err() && from == reader.end() {
            return Ok(from.0);
        }
    }
}
