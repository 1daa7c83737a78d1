//! Reading logs off the socket threads: a page that is not in memory must not stop a connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tokio::sync::oneshot;

use crate::threads::Threads;

/// A small pool of threads for reads. Each request in flight has at most one job here, so the queue is bounded by the
/// connections and their requests in flight.
pub(crate) struct Readers {
    threads: Threads,
    memory: Arc<AnswerMemory>,
}

/// The records that were read and are not sent yet, of all answers together. Clients that ask for much and take it
/// slowly would else have the broker hold all of it.
#[derive(Debug)]
pub(crate) struct AnswerMemory {
    /// Below zero by what could not be refused: the first batch of an answer, and followers.
    free: AtomicI64,
}

/// An answer's part of it, given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<AnswerMemory>,
    bytes: i64,
}

impl AnswerMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { free: AtomicI64::new(i64::try_from(bytes).unwrap_or(i64::MAX)) }
    }

    /// As much of `most` as there is.
    pub(crate) fn take(self: &Arc<Self>, most: usize) -> Share {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let some = |free: i64| most.min(free.max(0));
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| Some(free - some(free)));
        let (Ok(free) | Err(free)) = taken;
        Share { memory: Arc::clone(self), bytes: some(free) }
    }
}

impl Share {
    /// How much it is.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(0)
    }

    /// Makes it what is really used, be it less or more.
    pub(crate) fn settle(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.memory.free.fetch_add(self.bytes - bytes, Ordering::Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.settle(0);
    }
}

impl Readers {
    /// Up to `threads_max` threads; what they read for answers may take `answer_bytes_max` together.
    pub(crate) fn new(threads_max: usize, answer_bytes_max: usize) -> Self {
        Self { threads: Threads::new("hw-read", threads_max), memory: Arc::new(AnswerMemory::new(answer_bytes_max)) }
    }

    /// The memory of answers.
    pub(crate) fn memory(&self) -> &Arc<AnswerMemory> {
        &self.memory
    }

    /// Runs `read` on a thread of the pool. `None` if the broker stops before it was done.
    pub(crate) async fn read<R: Send + 'static>(&self, read: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        let (sender, receiver) = oneshot::channel();
        // Nobody may wait any more when it is done: the connection closed.
        let job = Box::new(move || drop(sender.send(read())));
        self.threads.run(job).ok()?;
        receiver.await.ok()
    }

    /// Drops what is queued and ends the threads once their present read is done.
    pub(crate) fn abandon(&self) {
        self.threads.abandon();
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readers").field(&self.threads).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_elsewhere_and_survives_a_panic_and_the_end() {
        let readers = Readers::new(2, usize::MAX);
        let here = std::thread::current().id();
        let there = readers.read(|| std::thread::current().id()).await;
        assert!(there.is_some_and(|there| there != here));
        assert_eq!(readers.read(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(readers.read(|| 7).await, Some(7));
        readers.abandon();
        assert_eq!(readers.read(|| 7).await, None);
    }
}
