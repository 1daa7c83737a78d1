//! Appending as the leader, and what every append has to do with the active segment.

use std::io::IoSlice;
use std::sync::Arc;

use crate::batch::{BatchHeader, BatchView, HEADER_BYTES, TimestampType};
use crate::check::CheckedBatch;
use crate::error::{AppendError, Fence};
use crate::fs::File;
use crate::io::{FileExt, IoError};
use crate::markers::TransactionMarker;
use crate::producers::Sequence;
use crate::{LeaderEpoch, Offset, TimestampMs};

use super::active::LastBatch;
use super::{Log, is_out_of_room};

/// Batches up to this length are copied together before they are written: that takes less time than a vectored write.
const SMALL_BATCH_BYTES: usize = 2048;

/// How safe an append is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// In the operating system's memory: it survives a crash of the process, not a power cut.
    Buffered,
    /// Synced.
    Synced,
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The offset of the first record.
    pub first: Offset,
    /// The offset of the last record; below `first` if nothing was appended.
    pub last: Offset,
    /// The time the log stamped on the records, [`TimestampMs::NONE`] if they keep their producer's.
    pub timestamp: TimestampMs,
    /// The batch was in the log already: the offsets are those of the first time, nothing was appended.
    pub duplicate: bool,
    /// How safe it is.
    pub durability: Durability,
}

impl Log {
    /// Checks a producer's batch by the log's rules and appends it. See [`Log::append_checked`].
    ///
    /// # Errors
    /// [`AppendError::Refused`] if it breaks a rule, else as [`Log::append_checked`].
    pub fn append(&mut self, now: TimestampMs, epoch: LeaderEpoch, batch: &[u8]) -> Result<Appended, AppendError> {
        let batch = CheckedBatch::check(batch, &self.options.rules, now)?;
        self.append_checked(now, epoch, &batch)
    }

    /// Appends a producer's batch as the leader in `epoch`: gives it the next offsets. The batch's bytes are written as
    /// they are, but for the header.
    ///
    /// A batch of an idempotent producer that is in the log already is answered as it was the first time.
    ///
    /// # Errors
    /// Nothing was appended then, except that a sync by policy may have failed afterwards
    /// ([`AppendError::Closed`]).
    pub fn append_checked<B: AsRef<[u8]>>(
        &mut self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        batch: &CheckedBatch<B>,
    ) -> Result<Appended, AppendError> {
        let appended = self.append_unsynced(now, epoch, batch)?;
        self.flush_by_policy(now)?;
        Ok(Appended { durability: self.durability(appended.last), ..appended })
    }

    /// As [`Log::append_checked`], whatever the policy on syncs.
    pub(crate) fn append_unsynced<B: AsRef<[u8]>>(
        &mut self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        batch: &CheckedBatch<B>,
    ) -> Result<Appended, AppendError> {
        self.shared.usable()?;
        let first = self.shared.end();
        let last = last_of(first, batch.last_offset_delta())?;
        let bytes = batch.size_bytes() as u64;
        if bytes > u64::from(self.options.segment_bytes) {
            return Err(AppendError::LargerThanSegment { bytes, segment_bytes: self.options.segment_bytes });
        }
        self.refuse_stale(epoch)?;
        let timestamp = batch.append_time();
        let producer = batch.producer();
        let whole = batch.header().is_control().then(|| batch.to_stamped_vec(first, epoch));
        let control = whole.as_deref().and_then(|whole| Some(BatchView::parse(whole).ok()?.0));
        if let Some(control) = &control {
            TransactionMarker::of(control).map_or(Ok(()), |marker| self.producers.check_marker(&marker))?;
        } else if let Some(producer) = &producer
            && let Sequence::Duplicate { first, last, timestamp: stored } = self.producers.check(producer)?
        {
            let timestamp = match self.options.rules.timestamp_type {
                TimestampType::CreateTime => TimestampMs::NONE,
                TimestampType::LogAppendTime => stored,
            };
            return Ok(Appended { first, last, timestamp, duplicate: true, durability: self.durability(last) });
        }
        self.mark_dirty()?;
        self.assign_epoch_at(epoch, first);
        self.roll_if_due(now, first, last, batch.max_timestamp(), bytes)?;
        let (stamped, rest) = batch.stamped(first, epoch);
        let position = self.active.len;
        if rest.len() > SMALL_BATCH_BYTES - HEADER_BYTES {
            self.write(&mut [IoSlice::new(&stamped), IoSlice::new(rest)], bytes)?;
        } else {
            let mut together = [0; SMALL_BATCH_BYTES];
            let (head, tail) = together.split_at_mut(HEADER_BYTES);
            head.copy_from_slice(&stamped);
            let (tail, _) = tail.split_at_mut(rest.len());
            tail.copy_from_slice(rest);
            let (whole, _) = together.split_at(HEADER_BYTES + rest.len());
            self.write(&mut [IoSlice::new(whole)], bytes)?;
        }
        self.admit(position, &stamped, &BatchHeader::decode(&stamped), now);
        self.active.publish();
        if let Some(control) = &control {
            self.take_in_producer(control);
        } else if let Some(producer) = &producer {
            self.producers.record(producer, first..=last);
            if producer.is_transactional {
                self.shared.undecided().set_first_open(self.producers.first_open_transaction());
            }
        }
        // Last: who sees the end sees all of the above.
        self.shared.set_end(last.next());
        self.unsynced_since.get_or_insert(now);
        self.checkpoint_owed_since.get_or_insert(now);
        Ok(Appended { first, last, timestamp, duplicate: false, durability: Durability::Buffered })
    }

    /// Refuses an epoch below that of a record in the log. An epoch without records may give way.
    pub(super) fn refuse_stale(&self, epoch: LeaderEpoch) -> Result<(), AppendError> {
        let latest = self.latest_epoch_in_use();
        if epoch < latest { Err(AppendError::StaleEpoch { given: epoch, latest }) } else { Ok(()) }
    }

    /// Writes at the end of the active segment. After an error nothing of it is left, or the log is closed.
    pub(super) fn write(&mut self, slices: &mut [IoSlice<'_>], bytes: u64) -> Result<(), AppendError> {
        let file = match &self.active.writing().file {
            Some(file) => file.clone(),
            None => self.open_active()?,
        };
        let position = self.active.len;
        let writing = self.active.writing();
        let mut write = || file.write_all_vectored_at(slices, position);
        let written = match &writing.zeros {
            Some(zeros) => zeros.write(position + bytes, write),
            None => write(),
        };
        let Err(source) = written else {
            self.active.len += bytes;
            return Ok(());
        };
        writing.zeros = None;
        let error = IoError { verb: "write", path: self.active.segment.path(), source };
        if let Err(left) = file.set_len(position) {
            let fence = Fence::HalfDone(format!("{error}, and the file could not be cut back: {left}"));
            self.shared.close(fence.clone());
            return Err(fence.into());
        }
        if !is_out_of_room(&error) {
            // A device that fails writes may have failed earlier ones without a word.
            self.shared.close(Fence::HalfDone(error.to_string()));
        }
        Err(error.into())
    }

    /// Opens the active segment's file for a write. It is this log's alone: a segment that became active because the ones
    /// behind it are gone may be part of a copy of the log.
    fn open_active(&mut self) -> Result<Arc<dyn File>, IoError> {
        if let Some(own) = self.active.segment.with_own_file(self.active.len)? {
            self.active.segment = own.clone();
            self.active.share_indexes();
            self.active.publish();
            self.shared.update_segments(|segments| segments.with_last(own.clone()));
            self.active.writing().zeros = None;
            self.directory_changes += 1;
            own.take_name().inspect_err(|error| self.shared.close(Fence::HalfDone(error.to_string())))?;
        }
        let file = self.active.segment.file()?;
        Ok(self.active.writing().file.insert(file).clone())
    }

    /// Takes a batch that was written into indexes and ages.
    pub(super) fn admit(&mut self, position: u64, bytes: &[u8], header: &BatchHeader, now: TimestampMs) {
        let writing = self.active.writing();
        writing.last = LastBatch::of(position, bytes, header);
        writing.indexes.add(position, header);
        if position == 0 {
            writing.first_timestamp = Some(header.max_timestamp());
        }
        self.active.since.get_or_insert(now);
    }

    /// Takes a batch that was written, as it stands in the log, into the producers' state and what follows from it.
    pub(super) fn take_in_producer(&mut self, batch: &BatchView<'_>) {
        let completed = self.producers.replicated(batch);
        if let Some(aborted) = completed.and_then(|completed| completed.aborted()) {
            self.active.segment.transactions().append(aborted);
        }
        if batch.is_transactional() {
            let mut undecided = self.shared.undecided();
            undecided.set_first_open(self.producers.first_open_transaction());
            completed.iter().for_each(|completed| undecided.end(completed));
        }
    }
}

/// The last offset of a batch, if offsets reach that far: the end of the log is one more.
pub(super) fn last_of(first: Offset, last_offset_delta: i32) -> Result<Offset, AppendError> {
    let last = first.checked_add(i64::from(last_offset_delta)).filter(|last| *last < Offset::MAX);
    last.ok_or(AppendError::OffsetsExhausted)
}
