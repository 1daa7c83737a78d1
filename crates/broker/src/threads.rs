//! A few named threads for work that may block: draining partitions, syncing files, reading cold data.
//!
//! tokio carries sockets and timers only; whatever touches a disk for long runs here. Threads start when there is work
//! for them and have small stacks, so an idle broker has none. The queue has no bound of its own because each kind of
//! job is bounded where it is made: one drain and one sync per partition, one read per Fetch request in flight.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::{fmt, mem};

/// Deep enough for the storage code, which keeps its buffers on the heap; a thread that waits costs one page of it.
const STACK_BYTES: usize = 512 * 1024;

/// A piece of blocking work.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A pool of at most `threads_max` threads that run jobs first come, first served.
pub(crate) struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    handles: Vec<JoinHandle<()>>,
    closed: bool,
}

impl Threads {
    /// A pool without threads: they start with the first jobs.
    pub(crate) fn new(name: &'static str, threads_max: usize) -> Self {
        let shared =
            Shared { name, threads_max: threads_max.max(1), queue: Mutex::new(Queue::default()), wake: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs the job on a thread of the pool. Gives it back once the pool is closed: the caller then runs or drops it.
    pub(crate) fn run(&self, job: Job) -> Result<(), Job> {
        let mut queue = self.shared.lock();
        if queue.closed {
            return Err(job);
        }
        queue.jobs.push_back(job);
        if queue.jobs.len() > queue.idle && queue.handles.len() < self.shared.threads_max {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new()
                .name(self.shared.name.to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || shared.work());
            match started {
                Ok(handle) => queue.handles.push(handle),
                // The system is out of threads: those that exist go on. With none at all the caller must do it.
                Err(error) if queue.handles.is_empty() => {
                    tracing::error!(pool = self.shared.name, %error, "cannot start a thread");
                    return match queue.jobs.pop_back() {
                        Some(job) => Err(job),
                        None => Ok(()),
                    };
                }
                Err(error) => tracing::warn!(pool = self.shared.name, %error, "cannot start another thread"),
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Takes no more jobs, finishes those queued and waits for the threads. Not to be called from one of them.
    pub(crate) fn finish(&self) {
        let handles = self.shared.close(false);
        for handle in handles {
            // A job's panic was caught and reported in `work`; there is nothing left to learn from the join.
            let _ = handle.join();
        }
    }

    /// Takes no more jobs, drops those queued and waits for those that run: a crash in miniature. Called from one of
    /// its own threads it does not wait for that one.
    pub(crate) fn abandon(&self) {
        for handle in self.shared.close(true) {
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Threads {
    /// Does not wait: this may be anybody's thread.
    fn drop(&mut self) {
        drop(self.shared.close(true));
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.lock();
        f.debug_struct("Threads")
            .field("name", &self.shared.name)
            .field("threads", &queue.handles.len())
            .field("queued", &queue.jobs.len())
            .finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No job runs under this lock, so a poisoned one still holds a whole queue.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, drop_queued: bool) -> Vec<JoinHandle<()>> {
        let mut queue = self.lock();
        queue.closed = true;
        let dropped = if drop_queued { mem::take(&mut queue.jobs) } else { VecDeque::new() };
        let handles = mem::take(&mut queue.handles);
        drop(queue);
        self.wake.notify_all();
        // Outside the lock: a job's drop may answer a client or ask this pool for something.
        drop(dropped);
        handles
    }

    fn work(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!(pool = self.name, "a job panicked; the thread goes on");
                }
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.idle -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn starts_threads_only_as_needed_and_finishes_what_is_queued() {
        let threads = Threads::new("test", 3);
        assert_eq!(threads.shared.lock().handles.len(), 0);
        let done = Arc::new(AtomicUsize::new(0));
        for _ in 0..100 {
            let done = Arc::clone(&done);
            let job: Job = Box::new(move || {
                thread::sleep(Duration::from_micros(200));
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert!(threads.run(job).is_ok());
        }
        assert!(threads.shared.lock().handles.len() <= 3);
        threads.finish();
        assert_eq!(done.load(Ordering::SeqCst), 100);
        assert!(threads.run(Box::new(|| ())).is_err(), "a closed pool gives the job back");
    }

    #[test]
    fn a_panicking_job_does_not_take_its_thread_along() {
        let threads = Threads::new("test", 1);
        assert!(threads.run(Box::new(|| panic!("on purpose"))).is_ok());
        let (sender, receiver) = mpsc::channel();
        assert!(threads.run(Box::new(move || sender.send(7).expect("the test waits"))).is_ok());
        assert_eq!(receiver.recv_timeout(Duration::from_secs(5)), Ok(7));
    }

    #[test]
    fn abandoning_drops_what_waits() {
        let threads = Threads::new("test", 1);
        let (hold, held) = mpsc::channel::<()>();
        assert!(threads.run(Box::new(move || assert!(held.recv().is_err()))).is_ok());
        let ran = Arc::new(AtomicUsize::new(0));
        let token = Arc::clone(&ran);
        assert!(
            threads
                .run(Box::new(move || {
                    token.fetch_add(1, Ordering::SeqCst);
                }))
                .is_ok()
        );
        let release = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(hold);
        });
        threads.abandon();
        assert!(release.is_finished() || release.join().is_ok(), "the running job was waited for");
        assert_eq!(Arc::strong_count(&ran), 1, "the queued job is gone, and what it held with it");
        assert_eq!(ran.load(Ordering::SeqCst), 0);
    }
}
