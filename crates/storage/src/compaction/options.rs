//! What compaction is told, and the memory it may use.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::offset_map::SLOT_BYTES;
use crate::options::InvalidOption;

/// How a log is compacted (`cleanup.policy=compact`). `Default` is Kafka 4.1's; names follow Kafka's. There will be more:
/// write `CompactionOptions { delete_retention_ms, ..CompactionOptions::default() }`.
///
/// Clones share [`CompactionOptions::memory`].
#[derive(Clone, Debug)]
pub struct CompactionOptions {
    /// Milliseconds between the moment a tombstone (or the marker of a transaction that has no records left) is seen in
    /// the compacted part of the log and its removal: who reads from the start within this time sees every deletion. One
    /// day.
    pub delete_retention_ms: i64,
    /// The part of the bytes that may be compacted which must not have been yet, from 0 to 1, for work to begin. 0.5.
    pub min_cleanable_dirty_ratio: f64,
    /// Milliseconds during which a record stays whatever follows it. 0.
    pub min_compaction_lag_ms: i64,
    /// Milliseconds after which a record is compacted whatever the ratio; the active segment rolls in time. No limit.
    pub max_compaction_lag_ms: i64,
    /// Bytes read at a time; batches that are larger are read whole. 512 KiB.
    pub io_buffer_bytes: u32,
    /// Bytes read in one piece of work, before other work of the log gets its turn. 64 MiB.
    pub piece_bytes: u64,
    /// Milliseconds, and at least one, before another look at a log in which nothing was old enough to compact, or where a
    /// compaction failed. 15 seconds.
    pub backoff_ms: i64,
    /// Where the memory for the keys comes from. 128 MiB.
    pub memory: CompactionMemory,
}

impl Default for CompactionOptions {
    fn default() -> Self {
        Self {
            delete_retention_ms: 24 * 60 * 60 * 1000,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            io_buffer_bytes: 512 << 10,
            piece_bytes: 64 << 20,
            backoff_ms: 15_000,
            memory: CompactionMemory::default(),
        }
    }
}

impl CompactionOptions {
    pub(crate) fn validate(&self) -> Result<(), InvalidOption> {
        let invalid = |option, requirement| Err(InvalidOption { option, requirement });
        if self.delete_retention_ms < 0 {
            return invalid("delete_retention_ms", "at least 0");
        }
        if !(0.0..=1.0).contains(&self.min_cleanable_dirty_ratio) {
            return invalid("min_cleanable_dirty_ratio", "between 0 and 1");
        }
        if self.min_compaction_lag_ms < 0 {
            return invalid("min_compaction_lag_ms", "at least 0");
        }
        if self.max_compaction_lag_ms < 1 {
            return invalid("max_compaction_lag_ms", "at least 1");
        }
        if self.io_buffer_bytes == 0 {
            return invalid("io_buffer_bytes", "at least 1");
        }
        if self.piece_bytes == 0 {
            return invalid("piece_bytes", "at least 1");
        }
        if self.backoff_ms < 0 {
            return invalid("backoff_ms", "at least 0");
        }
        Ok(())
    }
}

/// A bound on the memory that compactions hold their keys in, shared by all logs that have a clone of it (Kafka's
/// `log.cleaner.dedupe.buffer.size`).
///
/// A compaction takes 24 bytes for each offset of the part of the log it is about to look at, plus a ninth, or what is
/// left if that is no less than an eighth of the whole; else it waits for others to finish. One that gets less than it
/// wants compacts as far as its keys fit, and the rest in another pass.
#[derive(Clone)]
pub struct CompactionMemory {
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Budget {
    bytes: u64,
    free: Mutex<u64>,
}

/// Memory that one compaction holds. Dropping it gives it back.
pub(crate) struct MemoryShare {
    budget: Arc<Budget>,
    bytes: u64,
}

impl CompactionMemory {
    /// At most `bytes`, and at least room for one key.
    pub fn bounded(bytes: u64) -> Self {
        let bytes = bytes.max(SLOT_BYTES * 2);
        Self { budget: Arc::new(Budget { bytes, free: Mutex::new(bytes) }) }
    }

    /// The bound.
    pub fn bytes(&self) -> u64 {
        self.budget.bytes
    }

    /// Takes what is wanted, or as much as the rule allows; `None` if too little is left.
    pub(crate) fn take(&self, wanted: u64) -> Option<MemoryShare> {
        let mut free = self.budget.free.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.share(wanted, *free)?;
        *free -= bytes;
        Some(MemoryShare { budget: self.budget.clone(), bytes })
    }

    /// Whether [`CompactionMemory::take`] would find as much as it takes.
    pub(crate) fn has(&self, wanted: u64) -> bool {
        self.share(wanted, *self.budget.free.lock().unwrap_or_else(PoisonError::into_inner)).is_some()
    }

    fn share(&self, wanted: u64, free: u64) -> Option<u64> {
        let bytes = wanted.min(free);
        (bytes >= wanted.min(self.budget.bytes.div_ceil(8)) && bytes > 0).then_some(bytes)
    }
}

impl Default for CompactionMemory {
    fn default() -> Self {
        Self::bounded(128 << 20)
    }
}

impl fmt::Debug for CompactionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompactionMemory").field("bytes", &self.budget.bytes).finish_non_exhaustive()
    }
}

impl MemoryShare {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        *self.budget.free.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
    }
}

impl fmt::Debug for MemoryShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryShare").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_and_given_back() {
        let memory = CompactionMemory::bounded(8000);
        let first = memory.take(5000).unwrap();
        assert_eq!(first.bytes(), 5000);
        let second = memory.take(5000).unwrap();
        assert_eq!(second.bytes(), 3000, "less than wanted, and more than an eighth");
        assert!(memory.take(10).is_none() && !memory.has(10));
        drop(second);
        let third = memory.clone().take(2500).unwrap();
        assert_eq!(third.bytes(), 2500);
        assert!(memory.take(1000).is_none(), "500 are left, and an eighth is 1000");
        assert!(memory.has(400) && !memory.has(1000));
        assert_eq!(memory.take(400).unwrap().bytes(), 400, "all that is wanted");
        drop((first, third));
        assert_eq!(memory.take(u64::MAX).unwrap().bytes(), 8000);
    }

    #[test]
    fn nonsense_is_named() {
        assert_eq!(CompactionOptions::default().validate(), Ok(()));
        let with = |change: fn(&mut CompactionOptions)| {
            let mut options = CompactionOptions::default();
            change(&mut options);
            options.validate().map_err(|invalid| invalid.option)
        };
        assert_eq!(with(|options| options.delete_retention_ms = -1), Err("delete_retention_ms"));
        assert_eq!(with(|options| options.min_cleanable_dirty_ratio = 1.1), Err("min_cleanable_dirty_ratio"));
        assert_eq!(with(|options| options.min_cleanable_dirty_ratio = f64::NAN), Err("min_cleanable_dirty_ratio"));
        assert_eq!(with(|options| options.min_compaction_lag_ms = -1), Err("min_compaction_lag_ms"));
        assert_eq!(with(|options| options.max_compaction_lag_ms = 0), Err("max_compaction_lag_ms"));
        assert_eq!(with(|options| options.io_buffer_bytes = 0), Err("io_buffer_bytes"));
        assert_eq!(with(|options| options.piece_bytes = 0), Err("piece_bytes"));
        assert_eq!(with(|options| options.backoff_ms = -1), Err("backoff_ms"));
    }
}
