//! Reading logs off the socket threads: a page that is not in memory must not stop a connection.

use std::fmt;

use tokio::sync::oneshot;

use crate::threads::Threads;

/// A small pool of threads for reads. Each request in flight has at most one job here, so the queue is bounded by the
/// connections and their requests in flight.
pub(crate) struct Readers {
    threads: Threads,
}

impl Readers {
    /// Up to `threads_max` threads.
    pub(crate) fn new(threads_max: usize) -> Self {
        Self { threads: Threads::new("hw-read", threads_max) }
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
        let readers = Readers::new(2);
        let here = std::thread::current().id();
        let there = readers.read(|| std::thread::current().id()).await;
        assert!(there.is_some_and(|there| there != here));
        assert_eq!(readers.read(|| panic!("on purpose")).await, None::<()>);
        assert_eq!(readers.read(|| 7).await, Some(7));
        readers.abandon();
        assert_eq!(readers.read(|| 7).await, None);
    }
}
