//! Appending as a follower: batches that have their offsets and epochs already.

use std::io::IoSlice;

use crate::batch::{self, BatchError, BatchHeader};
use crate::error::AppendError;
use crate::{Offset, TimestampMs};

use super::Log;
use super::append::{Appended, last_of};

/// A replicated batch in the bytes it came in.
#[derive(Debug)]
struct Replicated {
    header: BatchHeader,
    position: usize,
}

/// Replicated batches that go into the same segment with one write.
#[derive(Debug, Default)]
struct Group {
    start: usize,
    bytes: usize,
    batches: Vec<Replicated>,
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
        self.shared.usable()?;
        let batches = self.check_replicated(bytes)?;
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
        if let Err(error) = self.append_groups(now, bytes, batches) {
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
    fn append_groups(&mut self, now: TimestampMs, bytes: &[u8], batches: Vec<Replicated>) -> Result<(), AppendError> {
        let mut pending = Group::default();
        for batch in batches {
            let (header, size) = (&batch.header, batch.header.total_bytes());
            let (first, last) = (header.base_offset(), header.last_offset());
            let (timestamp, size_bytes) = (header.max_timestamp(), size as u64);
            if self.is_roll_due(now, last, timestamp, size_bytes, pending.bytes as u64) {
                self.write_group(bytes, &pending, now)?;
                pending = Group { start: batch.position, ..Group::default() };
                self.roll_if_due(now, first, last, timestamp, size_bytes)?;
            }
            pending.bytes += size;
            pending.batches.push(batch);
        }
        self.write_group(bytes, &pending, now)
    }

    /// The rules for replicated batches, over all of them before any is written.
    fn check_replicated(&self, bytes: &[u8]) -> Result<Vec<Replicated>, AppendError> {
        let end = self.shared.end();
        let mut batches = Vec::new();
        let mut epoch = self.latest_epoch_in_use();
        let mut found = batch::batches(bytes);
        let mut position = 0;
        let mut expected = end;
        while let Some(batch) = found.next() {
            let batch = batch?;
            batch.verify_crc().map_err(|what| BatchError { position, what })?;
            let header = *batch.header();
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
    fn write_group(&mut self, bytes: &[u8], group: &Group, now: TimestampMs) -> Result<(), AppendError> {
        let Some(last) = group.batches.last() else { return Ok(()) };
        let slice = bytes.get(group.start..group.start + group.bytes).unwrap_or_default();
        let mut position = self.active.len;
        self.write(&mut [IoSlice::new(slice)], slice.len() as u64)?;
        for batch in &group.batches {
            let header = slice.get(batch.position.saturating_sub(group.start)..).unwrap_or_default();
            self.admit(position, header, &batch.header, now);
            position += batch.header.total_bytes() as u64;
        }
        self.active.publish();
        for batch in batch::batches(slice).flatten() {
            self.take_in_producer(&batch);
        }
        self.shared.set_end(last.header.next_offset());
        Ok(())
    }
}
