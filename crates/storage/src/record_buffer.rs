//! Single records, gathered into batches before they are appended.

use crate::builder::{BatchBuilder, Record};
use crate::check::{BatchRefused, CheckedBatch};
use crate::compression::Codec;
use crate::error::{AppendError, FlushError};
use crate::io::IoContext;
use crate::log::{Appended, CloseReport, Log};
use crate::{HEADER_BYTES, LeaderEpoch, TimestampMs};

/// When a [`RecordBuffer`] appends what it gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferPolicy {
    /// Bytes of records after which they are appended as one batch; less where the log's rules or its segments hold less.
    pub bytes: usize,
    /// Milliseconds after which the first of them has waited for long enough: the next [`RecordBuffer::push`] appends them.
    pub linger_ms: i64,
    /// How the batch is compressed.
    pub codec: Codec,
}

impl BufferPolicy {
    /// Batches of up to so many bytes of records, not compressed, however long that takes.
    pub fn up_to(bytes: usize) -> Self {
        Self { bytes, linger_ms: i64::MAX, codec: Codec::None }
    }

    /// The same, but no record is to wait for longer than this when another one comes.
    pub fn linger_ms(self, linger_ms: i64) -> Self {
        Self { linger_ms, ..self }
    }

    /// The same with compressed batches.
    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }
}

/// What became of a record that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pushed {
    /// It is in the buffer, and **not in the log**: no reader sees it, it has no offset, and it is gone if the process
    /// ends.
    Buffered,
    /// It is in the buffer, as above, and the records before it were appended.
    Appended(Appended),
}

/// A log for those who append records one by one: it gathers them and appends them as one batch, which costs a fraction
/// of a write for each.
///
/// What is in the buffer is not in the log until it is appended: by a [push](RecordBuffer::push) that finds the buffer
/// full or its records old, by [`RecordBuffer::append`], or by [`RecordBuffer::close`]. Dropping the buffer, like the end
/// of the process, loses it. From then on the log's [`FlushPolicy`](crate::FlushPolicy) says how safe it is.
#[derive(Debug)]
pub struct RecordBuffer {
    log: Log,
    policy: BufferPolicy,
    epoch: LeaderEpoch,
    builder: BatchBuilder,
    /// When the first of the records came.
    since: TimestampMs,
}

impl RecordBuffer {
    /// Gathers records for `log`, as the leader in `epoch`.
    pub fn new(log: Log, epoch: LeaderEpoch, policy: BufferPolicy) -> Self {
        let builder = BatchBuilder::new(policy.codec);
        Self { log, policy, epoch, builder, since: TimestampMs::NONE }
    }

    /// Takes a record in. If it does not fit behind those that are there, or they have waited for long enough, they are
    /// appended first.
    ///
    /// # Errors
    /// The record was not taken in: it breaks a rule of the log, or those before it could not be appended. They stay in
    /// the buffer.
    pub fn push(&mut self, now: TimestampMs, record: Record<'_>) -> Result<Pushed, AppendError> {
        let rules = &self.log.options().rules;
        let bytes = BatchBuilder::record_bytes_max(&record);
        let max = rules.max_message_bytes.min(self.log.options().segment_bytes as usize);
        if HEADER_BYTES + bytes > max || rules.may_refuse(&record, now) {
            let mut alone = BatchBuilder::new(Codec::None);
            let batch = alone.push(record).build();
            CheckedBatch::check(&batch, rules, now)?;
            if batch.len() > max {
                return Err(BatchRefused::TooLarge { bytes: batch.len(), max }.into());
            }
        }
        let full = self.policy.bytes.min(max.saturating_sub(HEADER_BYTES));
        // A clock that was set back does not keep them waiting for what it was set back by.
        self.since = self.since.min(now);
        let is_full = self.builder.records_bytes() + bytes > full;
        let pushed = if is_full || now.since(self.since) > self.policy.linger_ms {
            self.append(now)?.map_or(Pushed::Buffered, Pushed::Appended)
        } else {
            Pushed::Buffered
        };
        if self.builder.record_count() == 0 {
            self.since = now;
        }
        self.builder.push(record);
        Ok(pushed)
    }

    /// Appends what is in the buffer; `None` if it is empty.
    ///
    /// # Errors
    /// As [`Log::append`]; the records stay in the buffer.
    pub fn append(&mut self, now: TimestampMs) -> Result<Option<Appended>, AppendError> {
        if self.builder.record_count() == 0 {
            return Ok(None);
        }
        let batch = self.builder.build_in_place().context("compress a batch for", &self.log.place.dir)?;
        let batch = CheckedBatch::built(batch, &self.log.options().rules, now)?;
        let appended = self.log.append_unsynced(now, self.epoch, &batch)?;
        // It is in the log, whatever becomes of the sync.
        self.builder.clear();
        self.log.flush_by_policy(now)?;
        Ok(Some(Appended { durability: self.log.durability(appended.last), ..appended }))
    }

    /// Records in the buffer, which are not in the log.
    pub fn buffered(&self) -> usize {
        usize::try_from(self.builder.record_count()).unwrap_or(0)
    }

    /// The log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The log, for what is to be done with it besides. What is in the buffer is not in it.
    pub fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Appends what is in the buffer and closes the log.
    ///
    /// # Errors
    /// As [`RecordBuffer::append`] and [`Log::close`]; what could not be appended is lost.
    pub fn close(mut self, now: TimestampMs) -> Result<CloseReport, AppendError> {
        self.append(now)?;
        self.log.close().map_err(|error: FlushError| error.into())
    }
}
