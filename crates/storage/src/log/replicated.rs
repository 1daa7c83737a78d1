//! Appending as a follower: batches that have their offsets and epochs already.

use std::io::IoSlice;
use std::ops::Range;

use crate::batch::{self, BatchError, BatchHeader, BatchView};
use crate::error::AppendError;
use crate::{LeaderEpoch, Offset, TimestampMs};

use super::Log;
use super::active::LastBatch;
use super::append::{Appended, last_of};

/// Room for so many batches is made before they are looked at, if there can be as many.
const BATCHES_RESERVED: usize = 1 << 10;

/// A replicated batch in the bytes it came in.
#[derive(Debug)]
struct Replicated {
    header: BatchHeader,
    position: usize,
}

/// Replicated batches that go into the same segment with one write: which of them, and where their bytes lie.
#[derive(Debug, Default)]
struct Group {
    batches: Range<usize>,
    start: usize,
    bytes: usize,
}

impl Log {
    /// Appends batches as a follower: they keep the offsets and epochs that the leader gave them. A batch that breaks
    /// off at the end of the bytes is left out.
    ///
    /// Offsets may have gaps (compaction makes them) but not fall, epochs may not go back, and checksums must match;
    /// the leader's limits on size are not the follower's.
    ///
    /// # Errors
    /// Bytes that break a rule are refused as a whole. After [`AppendError::Io`] the batches before the failed write
    /// may have been appended: [`Log::end`] tells.
    pub fn append_replicated(&mut self, now: TimestampMs, bytes: &[u8]) -> Result<Appended, AppendError> {
        self.append_replicated_of(now, LeaderEpoch(i32::MAX), bytes)
    }

    /// As [`Log::append_replicated`], of batches that a leader may have in this epoch: none is of a later one.
    ///
    /// # Errors
    /// As [`Log::append_replicated`]; a batch of a later epoch breaks a rule.
    pub fn append_replicated_of(
        &mut self,
        now: TimestampMs,
        leader_epoch: LeaderEpoch,
        bytes: &[u8],
    ) -> Result<Appended, AppendError> {
        self.shared.usable()?;
        let batches = self.check_replicated(leader_epoch, bytes)?;
        let Some((first, last)) = batches.first().zip(batches.last()) else {
            let end = self.shared.end();
            let (last, durability) = (end + -1, self.durability(end + -1));
            return Ok(Appended { first: end, last, timestamp: TimestampMs::NONE, duplicate: false, durability });
        };
        let (first, last) = (first.header.base_offset(), last.header.last_offset());
        self.mark_dirty()?;
        if first < self.shared.end() {
            // The leader's log starts inside of this batch, and ours is empty: it starts there too.
            self.restart_at(first)?;
        }
        for batch in batches.iter().filter(|batch| !batch.header.is_legacy()) {
            self.assign_epoch_at(batch.header.leader_epoch(), batch.header.base_offset());
        }
        if let Err(error) = self.append_groups(now, bytes, &batches) {
            if self.end() < self.start() && self.shared.usable().is_ok() {
                // Without that batch the log would end before it starts.
                self.restart_at(self.start())?;
            }
            return Err(error);
        }
        self.unsynced_since.get_or_insert(now);
        self.checkpoint_owed_since.get_or_insert(now);
        self.flush_by_policy(now)?;
        let durability = self.durability(last);
        Ok(Appended { first, last, timestamp: TimestampMs::NONE, duplicate: false, durability })
    }

    /// Writes replicated batches with as few writes as the segments allow.
    fn append_groups(&mut self, now: TimestampMs, bytes: &[u8], batches: &[Replicated]) -> Result<(), AppendError> {
        let mut pending = Group::default();
        for (number, batch) in batches.iter().enumerate() {
            let (header, size) = (&batch.header, batch.header.total_bytes());
            let (first, last) = (header.base_offset(), header.last_offset());
            let (timestamp, size_bytes) = (header.max_timestamp(), size as u64);
            if self.is_roll_due(now, last, timestamp, size_bytes, pending.bytes as u64) {
                self.write_group(now, bytes, batches, &pending)?;
                pending = Group { batches: number..number, start: batch.position, bytes: 0 };
                self.roll_if_due(now, first, last, timestamp, size_bytes)?;
            }
            pending.bytes += size;
            pending.batches.end = number + 1;
        }
        self.write_group(now, bytes, batches, &pending)
    }

    /// The rules for replicated batches, over all of them before any is written.
    fn check_replicated(&self, leader_epoch: LeaderEpoch, bytes: &[u8]) -> Result<Vec<Replicated>, AppendError> {
        let end = self.shared.end();
        let mut batches: Vec<Replicated> = Vec::new();
        let mut epoch = self.latest_epoch_in_use();
        let mut found = batch::batches(bytes);
        let mut position = 0;
        let mut expected = end;
        while let Some(batch) = found.next() {
            let batch = batch?;
            batch.verify_crc().map_err(|what| BatchError { position, what })?;
            let header = *batch.header();
            if batches.is_empty() {
                batches.reserve((bytes.len() / header.total_bytes()).min(BATCHES_RESERVED));
            }
            let first = header.base_offset();
            let last = last_of(first, header.last_offset_delta())?;
            if header.last_offset_delta() < 0 || first < Offset::ZERO {
                return Err(AppendError::OutOfOrder { first, last, after: expected + -1 });
            }
            if first < expected {
                if !batches.is_empty() {
                    return Err(AppendError::OutOfOrder { first, last, after: expected + -1 });
                }
                let starts_inside = self.start() == end && last >= end;
                if !starts_inside {
                    return Err(AppendError::BelowEnd { first, end });
                }
            }
            // Messages from before there were epochs say nothing about them.
            if !header.is_legacy() {
                if header.leader_epoch() > leader_epoch {
                    return Err(AppendError::LaterEpoch { given: header.leader_epoch(), of: leader_epoch });
                }
                if header.leader_epoch() < epoch {
                    return Err(AppendError::StaleEpoch { given: header.leader_epoch(), latest: epoch });
                }
                epoch = header.leader_epoch();
            }
            expected = last.next();
            batches.push(Replicated { header, position });
            position = found.position();
        }
        Ok(batches)
    }

    /// Writes a run of replicated batches and takes them in.
    fn write_group(
        &mut self,
        now: TimestampMs,
        bytes: &[u8],
        batches: &[Replicated],
        group: &Group,
    ) -> Result<(), AppendError> {
        let batches = batches.get(group.batches.clone()).unwrap_or_default();
        let (Some(first), Some(last)) = (batches.first(), batches.last()) else { return Ok(()) };
        let slice = bytes.get(group.start..group.start + group.bytes).unwrap_or_default();
        let begins_at = self.active.len;
        self.write(&mut [IoSlice::new(slice)], slice.len() as u64)?;
        let position_of = |batch: &Replicated| begins_at + (batch.position - group.start) as u64;
        let writing = self.active.writing();
        for batch in batches {
            writing.indexes.add(position_of(batch), &batch.header);
        }
        let last_bytes = bytes.get(last.position..).unwrap_or_default();
        writing.last = LastBatch::of(position_of(last), last_bytes, &last.header);
        if begins_at == 0 {
            writing.first_timestamp = Some(first.header.max_timestamp());
        }
        self.active.since.get_or_insert(now);
        self.active.publish();
        let is_of_a_producer = |batch: &&Replicated| batch.header.producer_id() >= 0 || batch.header.is_transactional();
        for batch in batches.iter().filter(is_of_a_producer) {
            if let Some(Ok((view, _))) = bytes.get(batch.position..).map(BatchView::parse) {
                self.take_in_producer(&view);
            }
        }
        self.shared.set_end(last.header.next_offset());
        Ok(())
    }
}
