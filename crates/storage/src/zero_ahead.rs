//! Zeros behind the end of a segment that grows, so that a synced append overwrites a file and does not make it longer.
//!
//! Where bytes are overwritten, a sync is one write of the device; where a file grows, the file system writes its journal
//! as well, which takes about as long again or longer. Room that was only reserved (`fallocate`) does not help: turning it
//! into written room is a change of the journal too. So where the log or its caller syncs one append after the other,
//! housekeeping writes zeros ahead of the writer, a step at a time; when a segment is sealed, cut or closed, what is left
//! of them goes.
//!
//! After a crash they are found behind the last batch, as Kafka's own are behind that of a preallocated file. Old segments
//! are not used again instead: batches with good checksums would follow the end.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::FlushError;
use crate::flush::Syncer;
use crate::fs::File;
use crate::io::{FileExt, IoContext, IoError};
use crate::log::{Active, Log};
use crate::options::{FlushPolicy, ZeroAheadMode};
use crate::segment::Segment;

/// Bytes of zeros written in one step of housekeeping.
const STEP_BYTES: u64 = 1 << 20;

/// Bytes written at a time: so long may an append wait that has caught up with the zeros.
const CHUNK_BYTES: u64 = 64 << 10;

/// Where the zeros go, shared by the writer and the job that writes them.
#[derive(Debug, Default)]
struct Filled {
    /// The file was written up to here, by batches and then zeros; [`RETIRED`] once no zeros are wanted any more.
    upto: AtomicU64,
    /// Held by whoever writes behind that.
    beyond: Mutex<()>,
}

const RETIRED: u64 = u64::MAX;

impl Filled {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.beyond.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's side. When it is dropped, no more zeros are written: a job under way stops.
#[derive(Debug, Default)]
pub(crate) struct ZeroAhead {
    filled: Arc<Filled>,
}

impl ZeroAhead {
    /// Behind a file of this length.
    fn new(len: u64) -> Self {
        Self { filled: Arc::new(Filled { upto: AtomicU64::new(len), beyond: Mutex::new(()) }) }
    }

    /// Writes that end at `end` of the file. Behind the zeros they keep others from writing there.
    pub(crate) fn write<T>(&self, end: u64, write: impl FnOnce() -> T) -> T {
        if end <= self.filled.upto.load(Ordering::Acquire) {
            return write();
        }
        let _beyond = self.filled.lock();
        let written = write();
        self.filled.upto.fetch_max(end, Ordering::AcqRel);
        written
    }

    fn upto(&self) -> u64 {
        self.filled.upto.load(Ordering::Acquire)
    }

    /// Ends the writing of zeros. Returns up to where the file was written by then.
    fn retire(&self) -> u64 {
        let _beyond = self.filled.lock();
        self.filled.upto.swap(RETIRED, Ordering::AcqRel)
    }
}

impl Drop for ZeroAhead {
    fn drop(&mut self) {
        self.retire();
    }
}

/// Some zeros to be written, on whatever thread.
#[derive(Debug)]
pub(crate) struct ZeroJob {
    syncer: Syncer,
    segment: Arc<Segment>,
    file: Arc<dyn File>,
    filled: Arc<Filled>,
    target: u64,
}

impl ZeroJob {
    /// Writes them and syncs them, so that the next append's sync does not have to. Returns how many bytes.
    pub(crate) fn run(self) -> Result<u64, FlushError> {
        let zeros = [0; CHUNK_BYTES as usize];
        let mut written = 0;
        loop {
            let _beyond = self.filled.lock();
            let from = self.filled.upto.load(Ordering::Acquire);
            let count = self.target.saturating_sub(from).min(CHUNK_BYTES);
            if from == RETIRED || count == 0 {
                break;
            }
            let chunk = zeros.get(..usize::try_from(count).unwrap_or(0)).unwrap_or_default();
            if let Err(source) = self.file.write_all_at(chunk, from) {
                // What was written of it is no harm: it is zeros. On a full disk it would take room that appends need.
                self.file.set_len(from).context("cut", &self.segment.path())?;
                return Err(IoError { verb: "write", path: self.segment.path(), source }.into());
            }
            self.filled.upto.store(from + count, Ordering::Release);
            written += count;
        }
        if written > 0 {
            // Batches may be among what it writes.
            self.syncer.run(|| self.file.sync_data().context("sync", &self.segment.path()))?;
        }
        Ok(written)
    }
}

impl Log {
    /// The next zeros to write, if appends are synced one by one and there are few ahead of the end.
    pub(crate) fn zeros_due(&mut self) -> Option<ZeroJob> {
        let ahead = u64::from(self.options.zero_ahead_bytes);
        let is_written_to = self.state.says_unclean();
        let is_wanted = match self.options.zero_ahead {
            ZeroAheadMode::ByPolicy => self.options.flush != FlushPolicy::None,
            ZeroAheadMode::Always => true,
        };
        if !is_wanted || ahead == 0 || !is_written_to {
            return None;
        }
        let len = self.active.len;
        let target = len.saturating_add(ahead).min(u64::from(self.options.segment_bytes));
        let segment = &self.active.segment;
        let writing = self.active.writing.as_deref_mut()?;
        let upto = writing.zeros.as_ref().map_or(len, ZeroAhead::upto).max(len);
        // Not for less than a step, or half of all where that is less: each costs a sync.
        if upto + STEP_BYTES.min(ahead / 2).max(1) > target {
            return None;
        }
        // In-place, and so only in a file that is this log's alone, which an append has seen to that opened it.
        let file = writing.file.clone()?;
        let zeros = writing.zeros.get_or_insert_with(|| ZeroAhead::new(len));
        let (segment, filled) = (segment.clone(), zeros.filled.clone());
        let target = target.min(upto + STEP_BYTES);
        Some(ZeroJob { syncer: self.syncer(), segment, file, filled, target })
    }

    /// Takes the zeros off that lie ahead of the end, and ends the writing of them. `false` if there were none.
    pub(crate) fn trim_zeros(&mut self) -> Result<bool, IoError> {
        let Active { segment, len, writing, .. } = &mut self.active;
        let Some(writing) = writing else { return Ok(false) };
        let Some(zeros) = writing.zeros.take() else { return Ok(false) };
        let upto = zeros.retire();
        if upto <= *len {
            return Ok(false);
        }
        let cut = segment.file().and_then(|file| file.set_len(*len).context("cut", &segment.path()));
        if let Err(error) = cut {
            // They are still there, for the next try.
            writing.zeros = Some(ZeroAhead::new(upto));
            return Err(error);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
