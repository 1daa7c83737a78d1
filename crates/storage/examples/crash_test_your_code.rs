//! The crash test of a program that embeds the log, on the simulated disk.
//!
//! The program keeps a ledger: entries go into a log, and a file `balance` holds their sum, to be shown without reading
//! the log. It promises that a booked entry survives a power cut, and that the balance is that of the entries. The test
//! cuts the power at every call the program makes, opens every image that may be left, and holds the promise.
//!
//! `cargo run -p highwater-storage --example crash_test_your_code`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use highwater_storage::checkpoint::replace_file;
use highwater_storage::data_dir::OpenHints;
use highwater_storage::fs::{Fs, OpenMode, SimFs};
use highwater_storage::io::FileExt;
use highwater_storage::{
    BatchBuilder, Codec, FlushPolicy, LeaderEpoch, Log, LogOptions, ReadLimit, Record, TimestampMs, batches,
};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

/// The program under test. It does all its file access through the trait.
struct Ledger {
    fs: Arc<dyn Fs>,
    log: Log,
    balance: i64,
}

impl Ledger {
    fn open(fs: Arc<dyn Fs>) -> Result<Self, Box<dyn Error>> {
        let directory = Path::new("/ledger");
        if fs.metadata(directory).is_err() {
            fs.create_dir(directory)?;
        }
        // Also if it was there: who created it may have died before this.
        fs.sync_dir(Path::new("/"))?;
        let options = LogOptions { flush: FlushPolicy::EachAppend, segment_bytes: 600, ..LogOptions::default() };
        let (log, _) = Log::open_with(fs.clone(), directory, options, OpenHints::default())?;
        // The file is a hint. What it does not know yet, the log tells.
        let (upto, mut balance) = read_balance(&*fs).filter(|(upto, _)| *upto <= log.end().0).unwrap_or((0, 0));
        let mut from = log.start().max(highwater_storage::Offset(upto));
        while from < log.end() {
            let fetched = log.read(from, ReadLimit::bytes(4096))?;
            for batch in batches(&fetched.bytes) {
                for record in batch?.records().ok_or("a compressed batch")? {
                    balance += amount(record?.value)?;
                }
            }
            from = fetched.next;
        }
        Ok(Self { fs, log, balance })
    }

    /// Books an entry. When this returns it is safe.
    fn book(&mut self, amount: i64) -> Result<(), Box<dyn Error>> {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(Record::new(NOW, &amount.to_be_bytes()));
        self.log.append(NOW, LeaderEpoch(0), &builder.build())?;
        self.balance += amount;
        let line = format!("{} {}", self.log.end(), self.balance);
        replace_file(&*self.fs, Path::new("/ledger/balance"), line.as_bytes())?;
        Ok(())
    }
}

fn amount(value: Option<&[u8]>) -> Result<i64, Box<dyn Error>> {
    Ok(i64::from_be_bytes(value.unwrap_or_default().try_into()?))
}

fn read_balance(fs: &dyn Fs) -> Option<(i64, i64)> {
    let file = fs.open(Path::new("/ledger/balance"), OpenMode::Read).ok()?;
    let mut bytes = [0; 64];
    let read = file.read_full_at(&mut bytes, 0).ok()?;
    let (upto, balance) = std::str::from_utf8(bytes.get(..read)?).ok()?.split_once(' ')?;
    Some((upto.parse().ok()?, balance.parse().ok()?))
}

const ENTRIES: [i64; 12] = [100, -30, 7, 250, -99, 1, 1, 1, -40, 12, 5_000, -1];

/// Runs the program until it is done or the power goes; returns how many entries were booked.
fn run(fs: &SimFs) -> usize {
    let Ok(mut ledger) = Ledger::open(Arc::new(fs.clone())) else { return 0 };
    ENTRIES.iter().take_while(|entry| ledger.book(**entry).is_ok()).count()
}

fn main() -> Result<(), Box<dyn Error>> {
    let whole = SimFs::new(7);
    assert_eq!(run(&whole), ENTRIES.len());

    let mut opened = 0;
    for calls in 0..whole.calls() {
        let fs = SimFs::new(7);
        fs.crash_after(calls);
        let booked = run(&fs);
        for image in fs.images(20, calls) {
            let ledger = Ledger::open(Arc::new(image))?;
            let entries = usize::try_from(ledger.log.end().0)?;
            assert!((booked..=booked + 1).contains(&entries), "call {calls}: {booked} booked, {entries} there");
            assert_eq!(ledger.balance, ENTRIES.iter().take(entries).sum::<i64>(), "call {calls}");
            opened += 1;
        }
    }
    println!("{} crashes, {opened} images, and every promise kept", whole.calls());
    Ok(())
}
