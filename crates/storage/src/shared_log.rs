//! One log for many writing threads, and one sync for all of them that wait.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, Thread};

use crate::check::{CheckedBatch, ProduceRules};
use crate::error::{AppendError, Fence, FlushError};
use crate::housekeeping::{Step, WorkLimits};
use crate::log::{Appended, CloseReport, Durability, Log};
use crate::reader::LogReader;
use crate::{LeaderEpoch, Offset, TimestampMs};

/// A log that threads share. Clones are the same log.
///
/// Batches are checked and syncs run outside of the lock on the writer. An append that the log's
/// [policy](crate::FlushPolicy) wants synced waits for the sync: of all that wait, one thread syncs for all others, and
/// what comes in meanwhile waits for the next. There are no threads in here but the callers'.
#[derive(Clone, Debug)]
pub struct SharedLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None` once it was closed.
    log: Mutex<Option<Log>>,
    reader: LogReader,
    /// The log's rules for batches, to check them without its lock.
    rules: RwLock<ProduceRules>,
    commit: Mutex<Commit>,
    /// Nobody syncs, and the thread that was woken to do so has not begun. If its wait has ended otherwise meanwhile, it
    /// wakes another: asked without the lock by each whose wait ends.
    lacks_leader: AtomicBool,
}

/// Whether a sync is under way, and who waits for one.
#[derive(Debug, Default)]
struct Commit {
    /// A thread is syncing, or about to.
    has_leader: bool,
    /// Those that parked, but for the thread that syncs.
    parked: Vec<Parked>,
    /// As many waited for the last sync, or came too late for it. Those whose records it synced are likely to be back in a
    /// moment.
    expected: usize,
}

/// A thread that waits. It is woken by itself, and takes no lock to see that its records are synced: on a condition
/// variable all that wait would wake up to queue for its lock.
#[derive(Debug)]
struct Parked {
    thread: Thread,
    upto: Offset,
    generation: u64,
}

/// How often a thread that is about to sync lets others go first, while fewer wait than when the last sync ended: those
/// that it let go would miss this one, and half of all threads would take turns with the other half.
const YIELDS_MAX: usize = 32;

impl SharedLog {
    /// Shares a log.
    pub fn new(log: Log) -> Self {
        let (reader, rules) = (log.reader(), RwLock::new(log.options().rules.clone()));
        let log = Mutex::new(Some(log));
        Self {
            inner: Arc::new(Inner {
                log,
                reader,
                rules,
                commit: Mutex::default(),
                lacks_leader: AtomicBool::default(),
            }),
        }
    }

    /// Checks a producer's batch and appends it, as [`Log::append`]; waits for a sync if the log's policy wants one.
    ///
    /// # Errors
    /// As [`Log::append`], and [`AppendError::Truncated`] if another thread truncated the log before the sync. A sync that
    /// fails is reported to each append that waited for it, and closes the log.
    pub fn append(&self, now: TimestampMs, epoch: LeaderEpoch, batch: &[u8]) -> Result<Appended, AppendError> {
        let batch = {
            let rules = self.inner.rules.read().unwrap_or_else(PoisonError::into_inner);
            CheckedBatch::check(batch, &rules, now)?
        };
        self.append_checked(now, epoch, &batch)
    }

    /// As [`SharedLog::append`], of a batch that was checked.
    ///
    /// # Errors
    /// As [`SharedLog::append`].
    pub fn append_checked<B: AsRef<[u8]>>(
        &self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        batch: &CheckedBatch<B>,
    ) -> Result<Appended, AppendError> {
        let (appended, generation) = {
            let mut log = self.lock();
            let log = log.as_mut().ok_or(Fence::Closed)?;
            let appended = log.append_unsynced(now, epoch, batch)?;
            if !log.is_flush_due(now) {
                return Ok(Appended { durability: log.durability(appended.last), ..appended });
            }
            (appended, log.generation())
        };
        self.wait_for_sync(appended.last.next(), generation)?;
        Ok(Appended { durability: Durability::Synced, ..appended })
    }

    /// Waits until all is synced that was appended before the call, and returns the flush mark.
    ///
    /// # Errors
    /// [`FlushError::Closed`] if the log is closed, perhaps because the sync failed.
    pub fn flush(&self) -> Result<Offset, FlushError> {
        self.flush_as_of(self.as_of_now()?)
    }

    /// The end of the log, and the generation it belongs to.
    fn as_of_now(&self) -> Result<(Offset, u64), Fence> {
        let log = self.lock();
        let log = log.as_ref().ok_or(Fence::Closed)?;
        Ok((log.end(), log.generation()))
    }

    /// Waits until all is synced that was there as of then.
    fn flush_as_of(&self, (mut end, mut generation): (Offset, u64)) -> Result<Offset, FlushError> {
        loop {
            match self.wait_for_sync(end, generation) {
                Ok(()) => return Ok(self.inner.reader.flushed()),
                // What was cut off does not have to be synced, but what is left of it does.
                Err(AppendError::Truncated) => {
                    let now = self.as_of_now()?;
                    (end, generation) = (end.min(now.0), now.1);
                }
                Err(AppendError::Closed(fence)) => return Err(fence.into()),
                Err(AppendError::Io(error)) => return Err(error.into()),
                Err(other) => unreachable!("a sync checks no batch: {other}"),
            }
        }
    }

    /// Does something else with the log, while all other threads that want to append wait.
    ///
    /// # Errors
    /// [`Fence::Closed`] after [`SharedLog::close`].
    pub fn with<T>(&self, use_log: impl FnOnce(&mut Log) -> T) -> Result<T, Fence> {
        let mut log = self.lock();
        let log = log.as_mut().ok_or(Fence::Closed)?;
        let result = use_log(log);
        let mut rules = self.inner.rules.write().unwrap_or_else(PoisonError::into_inner);
        if *rules != log.options().rules {
            *rules = log.options().rules.clone();
        }
        Ok(result)
    }

    /// Does the next piece of housekeeping that is due, outside of the lock on the writer as far as it takes long; `None`
    /// if none is, or if another thread is at it.
    ///
    /// # Errors
    /// As [`Log::finish_work`].
    pub fn housekeeping_step(&self, now: TimestampMs, limits: &WorkLimits) -> Result<Option<Step>, FlushError> {
        while let Some(job) = self.with(|log| log.begin_work(now, limits))? {
            let done = job.run();
            if let Some(step) = self.with(|log| log.finish_work(done))?? {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// A reader of the log.
    pub fn reader(&self) -> LogReader {
        self.inner.reader.clone()
    }

    /// Closes the log for all that share it; see [`Log::close`].
    ///
    /// # Errors
    /// As [`Log::close`].
    pub fn close(&self) -> Result<CloseReport, FlushError> {
        // Its lock is held to the end: who finds the log gone finds its readers told why.
        let mut log = self.lock();
        log.take().ok_or(Fence::Closed)?.close()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Log>> {
        self.inner.log.lock().unwrap_or_else(|poisoned| {
            // Where it was when it was left, nobody can tell.
            self.inner.reader.close(Fence::HalfDone("a thread panicked while it used the log".to_owned()));
            poisoned.into_inner()
        })
    }

    fn commit(&self) -> MutexGuard<'_, Commit> {
        self.inner.commit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all below `upto` is synced, and syncs if nobody else does.
    fn wait_for_sync(&self, upto: Offset, generation: u64) -> Result<(), AppendError> {
        loop {
            if let Some(ended) = self.ended(upto, generation) {
                if self.inner.lacks_leader.load(Ordering::SeqCst) {
                    self.hand_on(self.commit());
                }
                return ended;
            }
            let mut commit = self.commit();
            let own = commit.parked.iter().position(|parked| parked.thread.id() == thread::current().id());
            // Under the lock once more: what a sync did that ended meanwhile is known now, and that nobody will wake us.
            if let Some(ended) = self.ended(upto, generation) {
                own.map(|own| commit.parked.swap_remove(own));
                self.hand_on(commit);
                return ended;
            }
            if commit.has_leader {
                if own.is_none() {
                    commit.parked.push(Parked { thread: thread::current(), upto, generation });
                }
                drop(commit);
                thread::park();
                continue;
            }
            own.map(|own| commit.parked.swap_remove(own));
            commit.has_leader = true;
            self.inner.lacks_leader.store(false, Ordering::SeqCst);
            let leader = Leader { log: self };
            for _ in 0..YIELDS_MAX {
                if commit.parked.len() + 1 >= commit.expected {
                    break;
                }
                drop(commit);
                thread::yield_now();
                commit = self.commit();
            }
            drop(commit);
            let synced = self.sync();
            drop(leader);
            if let Err(AppendError::Io(error)) = synced {
                return Err(error.into());
            }
            // Otherwise the marks and the fence tell: what this sync did not do, closing the log may have done.
        }
    }

    /// How the wait for a sync ended, if it did.
    fn ended(&self, upto: Offset, generation: u64) -> Option<Result<(), AppendError>> {
        let reader = &self.inner.reader;
        if reader.generation() != generation {
            return Some(Err(AppendError::Truncated));
        }
        if reader.flushed() >= upto {
            return Some(Ok(()));
        }
        reader.usable().err().map(|fence| Err(fence.into()))
    }

    /// Wakes those whose wait has ended, and unless a thread syncs, one of the others to do so for all that are left; it
    /// finds itself in the list.
    fn hand_on(&self, mut commit: MutexGuard<'_, Commit>) {
        if commit.has_leader {
            return;
        }
        let (done, left) = std::mem::take(&mut commit.parked)
            .into_iter()
            .partition::<Vec<_>, _>(|parked| self.ended(parked.upto, parked.generation).is_some());
        commit.parked = left;
        let next = commit.parked.first().map(|parked| parked.thread.clone());
        self.inner.lacks_leader.store(next.is_some(), Ordering::SeqCst);
        drop(commit);
        next.iter().for_each(Thread::unpark);
        done.iter().for_each(|parked| parked.thread.unpark());
    }

    /// One sync, without the lock on the writer.
    fn sync(&self) -> Result<(), AppendError> {
        let Some(job) = self.with(Log::flush_job)? else { return Ok(()) };
        let done = job.run();
        self.with(|log| log.finish_flush(done))??;
        Ok(())
    }
}

/// The thread that syncs. However it ends, another one may.
struct Leader<'a> {
    log: &'a SharedLog,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut commit = self.log.commit();
        commit.has_leader = false;
        commit.expected = commit.parked.len() + 1;
        self.log.hand_on(commit);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data_dir::OpenHints;
    use crate::fs::{Fs, SimFs};
    use crate::{BatchBuilder, Codec, FlushPolicy, LogOptions, Record};

    #[test]
    fn a_truncation_does_not_end_the_wait_for_what_it_left() {
        let fs = SimFs::new(1);
        fs.create_dir(Path::new("/log")).unwrap();
        let (options, hints) = (LogOptions::default(), OpenHints::default());
        let (log, _) = Log::open_with(Arc::new(fs), Path::new("/log"), options, hints).unwrap();
        let log = SharedLog::new(log);
        let batch = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs(1), b"x")).build();
        for _ in 0..3 {
            log.append(TimestampMs(1), LeaderEpoch(0), &batch).unwrap();
        }
        let then = log.as_of_now().unwrap();
        log.with(|log| log.truncate_to(Offset(2))).unwrap().unwrap();
        assert_eq!(log.reader().flushed(), Offset(0));
        assert_eq!(log.flush_as_of(then).unwrap(), Offset(2));
    }

    /// The one that is woken to sync for the others may find its own wait ended by something else than a sync.
    #[test]
    fn a_thread_that_was_to_sync_and_need_not_wakes_another() {
        let fs = SimFs::new(1);
        fs.create_dir(Path::new("/log")).unwrap();
        let options = LogOptions { flush: FlushPolicy::EachAppend, ..LogOptions::default() };
        let (log, _) = Log::open_with(Arc::new(fs), Path::new("/log"), options, OpenHints::default()).unwrap();
        let log = SharedLog::new(log);
        let batch = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs(1), b"x")).build();
        // A sync is under way, for whoever asks.
        log.commit().has_leader = true;
        thread::scope(|scope| {
            let append = || log.append(TimestampMs(1), LeaderEpoch(0), &batch);
            let threads = [scope.spawn(append), scope.spawn(append)];
            while log.commit().parked.len() < 2 {
                thread::yield_now();
            }
            // It ends without theirs, and wakes one of them. Before that one looks, the log is truncated.
            log.with(|log| log.truncate_to(Offset(0))).unwrap().unwrap();
            log.commit().has_leader = false;
            log.inner.lacks_leader.store(true, Ordering::SeqCst);
            let woken = log.commit().parked[0].thread.clone();
            woken.unpark();
            let [one, other] = threads;
            let (first, second) = if one.thread().id() == woken.id() { (one, other) } else { (other, one) };
            assert!(matches!(first.join().unwrap(), Err(AppendError::Truncated)));
            let left = std::mem::take(&mut log.commit().parked);
            left.iter().for_each(|parked| parked.thread.unpark());
            assert!(matches!(second.join().unwrap(), Err(AppendError::Truncated)));
            assert!(left.is_empty(), "nobody was there who would have woken the other");
        });
        log.append(TimestampMs(1), LeaderEpoch(0), &batch).unwrap();
    }
}
