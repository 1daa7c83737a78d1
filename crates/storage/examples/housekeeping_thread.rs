//! A helper thread that keeps house for a log: rolls, retention, checkpoints. The writer only begins and finishes pieces of
//! work, which touches no disk for long; what takes time runs over there.
//!
//! `cargo run -p highwater-storage --example housekeeping_thread`

use std::error::Error;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use highwater_storage::{
    BatchBuilder, Codec, LeaderEpoch, Log, LogOptions, Offset, Record, TimestampMs, WorkDone, WorkJob, WorkLimits,
};

/// A thread that runs one piece of work after the other.
struct Housekeeper {
    jobs: Sender<WorkJob>,
    done: Receiver<WorkDone>,
    thread: JoinHandle<()>,
}

impl Housekeeper {
    fn start() -> Self {
        let (jobs, to_run) = channel::<WorkJob>();
        let (finished, done) = channel();
        // Ends when the other side of `jobs` is dropped.
        let thread = thread::spawn(move || {
            for job in to_run {
                if finished.send(job.run()).is_err() {
                    break;
                }
            }
        });
        Self { jobs, done, thread }
    }

    /// To be called by the writer every now and then; it never waits.
    fn turn(&self, log: &mut Log, now: TimestampMs) -> Result<(), Box<dyn Error>> {
        match self.done.try_recv() {
            Ok(done) => {
                if let Some(step) = log.finish_work(done)? {
                    println!("{step:?}");
                }
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err("the helper thread ended".into()),
        }
        // Nothing is replicated here, so everything may be worked on. One piece at a time: none begins while one runs.
        if let Some(job) = log.begin_work(now, &WorkLimits::new(log.end())) {
            self.jobs.send(job)?;
        }
        Ok(())
    }

    /// Waits for the piece under way and ends the thread.
    fn stop(self, log: &mut Log) -> Result<(), Box<dyn Error>> {
        drop(self.jobs);
        for done in self.done {
            log.finish_work(done)?;
        }
        self.thread.join().map_err(|_| "the helper thread panicked".into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    // Small segments and little to keep, so that there is something to do.
    let options = LogOptions { segment_bytes: 16 * 1024, retention_bytes: 64 * 1024, ..LogOptions::default() };
    let (mut log, _) = Log::open(directory.path().join("log"), options)?;
    let housekeeper = Housekeeper::start();
    let mut now = TimestampMs(1_700_000_000_000);
    for number in 0..2_000 {
        now = now.after(10);
        let mut batch = BatchBuilder::new(Codec::None);
        batch.push(Record::new(now, format!("record {number} {}", "-".repeat(100)).as_bytes()));
        log.append(now, LeaderEpoch(0), &batch.build())?;
        housekeeper.turn(&mut log, now)?;
    }
    housekeeper.stop(&mut log)?;
    // What the thread had no time for.
    let limits = WorkLimits::new(log.end());
    while log.housekeeping().step(now, &limits)?.is_some() {}
    assert!(log.start() > Offset::ZERO, "retention has taken the oldest segments");
    assert!(log.size_bytes() < 100 * 1024);
    println!("{} bytes from offset {} on are left", log.size_bytes(), log.start());
    Ok(())
}
