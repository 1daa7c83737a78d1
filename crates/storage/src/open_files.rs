//! A bound on the files that logs keep open.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::fs::File;

/// A bound on the segment files kept open for reading, shared by all logs that have a clone of it.
///
/// Files are opened when they are first read or written and closed again when too many are open and they were not used
/// lately (a second-chance queue: as good as least recently used here, and a hit takes no shared lock). What a read is
/// using, or what has unsynced writes, stays open beyond the bound: closing a file with unsynced writes could lose the
/// news that writing them back failed.
#[derive(Clone)]
pub struct OpenFiles {
    inner: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    max: usize,
    slots: Mutex<VecDeque<Weak<FileSlot>>>,
}

impl OpenFiles {
    /// Keeps up to `max` files open.
    pub fn bounded(max: usize) -> Self {
        Self { inner: Arc::new(Queue { max, slots: Mutex::default() }) }
    }

    /// Makes room for a slot that was just filled.
    pub(crate) fn admit(&self, slot: &Arc<FileSlot>) {
        let mut slots = relock(&self.inner.slots);
        // It may be there still, from before it was released.
        if !slot.queued.swap(true, Ordering::Relaxed) {
            slots.push_back(Arc::downgrade(slot));
        }
        // Twice around is enough: the first round takes every second chance away.
        let mut tries = slots.len() * 2;
        while slots.len() > self.inner.max && tries > 0 {
            tries -= 1;
            let Some(front) = slots.pop_front() else { break };
            let Some(oldest) = front.upgrade() else { continue };
            if oldest.used.swap(false, Ordering::Relaxed) {
                slots.push_back(front);
            } else {
                oldest.queued.store(false, Ordering::Relaxed);
                *relock(&oldest.file) = None;
            }
        }
    }
}

impl Default for OpenFiles {
    /// Keeps up to 1,000 files open, which stays under the usual limit of 1,024 per process with room for little else;
    /// raise both for many partitions.
    fn default() -> Self {
        Self::bounded(1000)
    }
}

impl fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenFiles").field("max", &self.inner.max).finish_non_exhaustive()
    }
}

/// The place of one file that may be open or not.
#[derive(Debug, Default)]
pub(crate) struct FileSlot {
    file: Mutex<Option<Arc<dyn File>>>,
    used: AtomicBool,
    /// Whether it is among the slots of its bound; changed under their lock.
    queued: AtomicBool,
}

impl FileSlot {
    /// The file, opened by `open` if it is not open.
    pub(crate) fn get(
        self: &Arc<Self>,
        bound: &OpenFiles,
        open: impl FnOnce() -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        let file = {
            let mut slot = relock(&self.file);
            if let Some(file) = &*slot {
                self.used.store(true, Ordering::Relaxed);
                return Ok(file.clone());
            }
            slot.insert(open()?).clone()
        };
        // After the slot's lock is let go: making room takes the locks of other slots.
        bound.admit(self);
        Ok(file)
    }

    /// Closes the file, for whoever needs it next to open it again.
    pub(crate) fn release(&self) {
        *relock(&self.file) = None;
    }

    /// Puts a file in. It stays open until it is released, or [admitted](OpenFiles::admit) and not used.
    pub(crate) fn preset(&self, file: Arc<dyn File>) {
        *relock(&self.file) = Some(file);
    }

    /// Whether the file is open.
    pub(crate) fn is_open(&self) -> bool {
        relock(&self.file).is_some()
    }
}

/// The place of one file that most of the time is not open: it takes no memory before it first is.
#[derive(Debug, Default)]
pub(crate) struct LazySlot {
    slot: OnceLock<Arc<FileSlot>>,
}

impl LazySlot {
    fn slot(&self) -> &Arc<FileSlot> {
        self.slot.get_or_init(Arc::default)
    }

    /// As [`FileSlot::get`].
    pub(crate) fn get(
        &self,
        bound: &OpenFiles,
        open: impl FnOnce() -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        self.slot().get(bound, open)
    }

    /// As [`FileSlot::release`].
    pub(crate) fn release(&self) {
        if let Some(slot) = self.slot.get() {
            slot.release();
        }
    }

    /// As [`FileSlot::preset`].
    pub(crate) fn preset(&self, file: Arc<dyn File>) {
        self.slot().preset(file);
    }

    /// Lets the file that was put in count, see [`OpenFiles::admit`].
    pub(crate) fn admit(&self, bound: &OpenFiles) {
        bound.admit(self.slot());
    }

    /// As [`FileSlot::is_open`].
    pub(crate) fn is_open(&self) -> bool {
        self.slot.get().is_some_and(|slot| slot.is_open())
    }
}

/// A panic elsewhere leaves these locks' content whole: each change is a single assignment.
fn relock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::fs::{Fs, OpenMode, SimFs};

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let fs = SimFs::new(1);
        let open = || fs.open(Path::new("/file"), OpenMode::Truncate);
        let bound = OpenFiles::bounded(2);
        let slots: Vec<Arc<FileSlot>> = (0..4).map(|_| Arc::default()).collect();
        for slot in &slots {
            slot.get(&bound, open).unwrap();
            slots[0].get(&bound, open).unwrap();
            assert!(slots.iter().filter(|slot| slot.is_open()).count() <= 2);
        }
        assert!(slots[0].is_open(), "it was used between all the others");
        assert!(slots[3].is_open(), "it is the newest");
        slots[1].get(&bound, open).unwrap();
        assert!(slots[1].is_open());
    }

    #[test]
    fn a_released_file_is_opened_again_and_counts_once() {
        let fs = SimFs::new(1);
        let open = || fs.open(Path::new("/file"), OpenMode::Truncate);
        let bound = OpenFiles::bounded(2);
        let slots: Vec<Arc<FileSlot>> = (0..2).map(|_| Arc::default()).collect();
        slots[0].get(&bound, open).unwrap();
        for _ in 0..5 {
            slots[1].get(&bound, open).unwrap();
            slots[1].release();
            assert!(!slots[1].is_open());
        }
        slots[1].get(&bound, open).unwrap();
        assert!(slots[0].is_open() && slots[1].is_open());
    }

    #[test]
    fn a_failed_open_leaves_the_slot_empty() {
        let slot: Arc<FileSlot> = Arc::default();
        let failed = slot.get(&OpenFiles::bounded(1), || Err(io::ErrorKind::NotFound.into()));
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!slot.is_open());
    }

    #[test]
    fn a_bound_of_none_still_serves() {
        let fs = SimFs::new(1);
        let slot: Arc<FileSlot> = Arc::default();
        slot.get(&OpenFiles::bounded(0), || fs.open(Path::new("/file"), OpenMode::Truncate)).unwrap();
        assert!(!slot.is_open());
    }
}
