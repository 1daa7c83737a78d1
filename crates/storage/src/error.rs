//! What can go wrong, by operation.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::batch::{BatchError, BatchFault};
use crate::check::BatchRefused;
use crate::io::IoError;
use crate::lock::LockError;
use crate::options::InvalidOption;
use crate::producers::SequenceError;
use crate::recovery::RepairedField;
use crate::{LeaderEpoch, Offset};

/// Why a log takes no more calls until it is opened again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fence {
    /// A sync failed. What it should have written may be lost although it still reads well, and a second sync would
    /// report success: only opening the log again tells what is there.
    #[error("a sync failed: {0}")]
    SyncFailed(String),
    /// A write or truncation failed half way, and what it left could not be taken back.
    #[error("a change failed half way: {0}")]
    HalfDone(String),
    /// The log was closed or dropped.
    #[error("it was closed")]
    Closed,
}

/// A stretch of a segment's file that is not what it should be: what lies in it cannot be read, what lies before and
/// behind it can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}, {bytes} bytes from byte {position}: {what} (offsets {} to {})", segment.display(), offsets.start, offsets.end)]
#[non_exhaustive]
pub struct Damaged {
    /// The segment's file.
    pub segment: PathBuf,
    /// Where in it the stretch begins, in bytes from the start.
    pub position: u64,
    /// How long it is.
    pub bytes: u64,
    /// The offsets that may have been in it. At their end reading goes on.
    pub offsets: Range<Offset>,
    /// What is wrong with it.
    pub what: DamageKind,
}

/// What is wrong with the bytes of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamageKind {
    /// No batch begins here.
    #[error(transparent)]
    Batch(#[from] BatchFault),
    /// A batch whose offsets do not follow the batch before.
    #[error("a batch of offsets {first} to {last} where offset {expected} or a later one was due")]
    Offsets {
        /// Its first offset.
        first: Offset,
        /// Its last offset.
        last: Offset,
        /// The lowest offset it could have had.
        expected: Offset,
    },
    /// A header field outside the checksum that holds what cannot be, in a batch that is intact otherwise.
    #[error("a {field} of {was} where only {is} fits")]
    Field {
        /// The field.
        field: RepairedField,
        /// What it holds.
        was: i64,
        /// What it has to be.
        is: i64,
    },
    /// A leader epoch that cannot be right, in a batch that is intact otherwise and stays readable.
    #[error("a leader epoch of {0}, which does not lie between those of the batches around it")]
    LeaderEpoch(LeaderEpoch),
    /// The file is shorter than what was appended to it.
    #[error("the file ends here and should not")]
    Short,
    /// Records that cannot be decoded.
    #[error("undecodable records: {0}")]
    Records(String),
}

/// Why a log could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// An option outside its range.
    #[error(transparent)]
    Options(#[from] InvalidOption),
    /// The directory is in use.
    #[error(transparent)]
    Locked(#[from] LockError),
    /// A file operation failed. Nothing is known about the log, and nothing was given up.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// Why an append was refused or failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The batch breaks a rule.
    #[error(transparent)]
    Refused(#[from] BatchRefused),
    /// An idempotent producer's batch that does not follow its last one.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// The batch is larger than a segment (Kafka's `RECORD_LIST_TOO_LARGE`).
    #[error("a batch of {bytes} bytes does not fit into a segment of {segment_bytes}")]
    LargerThanSegment {
        /// Bytes of the batch.
        bytes: u64,
        /// What a segment may hold.
        segment_bytes: u32,
    },
    /// The batch's epoch is below that of a batch in the log: an old leader's.
    #[error("leader epoch {given} is below {latest}, which the log already has")]
    StaleEpoch {
        /// The batch's epoch.
        given: LeaderEpoch,
        /// The highest epoch in the log.
        latest: LeaderEpoch,
    },
    /// A replicated batch of a later epoch than that of the leader it came from.
    #[error("a batch of leader epoch {given} from a leader in {of}")]
    LaterEpoch {
        /// The batch's epoch.
        given: LeaderEpoch,
        /// The leader's.
        of: LeaderEpoch,
    },
    /// A replicated batch that begins below the end of the log (Kafka's `UnexpectedAppendOffsetException`).
    #[error("a batch at {first} does not continue a log that ends at {end}")]
    BelowEnd {
        /// The batch's first offset.
        first: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// A replicated batch that does not lie after the one before it, or whose offsets fall or overflow.
    #[error("a batch of offsets {first} to {last} after offset {after}")]
    OutOfOrder {
        /// The batch's first offset.
        first: Offset,
        /// Its last offset.
        last: Offset,
        /// The last offset before it.
        after: Offset,
    },
    /// Replicated bytes that are not batches.
    #[error(transparent)]
    Corrupt(#[from] BatchError),
    /// The batch was appended, and the log truncated below it before it was synced.
    #[error("the log was truncated before the batch was synced")]
    Truncated,
    /// There is no offset left for the batch: 2^63-1 is the last.
    #[error("no offsets are left")]
    OffsetsExhausted,
    /// A file operation failed; the log is as before. With `StorageFull` it takes appends again once there is room.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log takes no more calls.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The offset is below the start or past the end of the log.
    #[error("offset {from} is outside the log, which goes from {start} to {end}")]
    OutOfRange {
        /// The offset asked for.
        from: Offset,
        /// The first offset that can be read.
        start: Offset,
        /// The offset of the next append.
        end: Offset,
    },
    /// The log was truncated since the generation the read was asked for.
    #[error("the log was truncated meanwhile")]
    Superseded,
    /// The bytes there are damaged. What lies before them was or can be read, and reading goes on at the end of the
    /// offsets.
    #[error("{}, {bytes} bytes from byte {position}: {what} (offsets {} to {})", segment.display(), offsets.start, offsets.end)]
    Corrupt {
        /// The segment's file.
        segment: PathBuf,
        /// Where in it the damage begins, in bytes from the start.
        position: u64,
        /// How many bytes cannot be made out.
        bytes: u64,
        /// The offsets that may have been in them. At their end reading goes on.
        offsets: Range<Offset>,
        /// What is wrong with them.
        what: DamageKind,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log was closed, dropped or fenced.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

/// For who has no error for damage: it says that the file could not be read.
impl From<ReadError> for IoError {
    fn from(error: ReadError) -> Self {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        match error {
            ReadError::Io(error) => error,
            ReadError::Corrupt { segment, position, what, .. } => {
                let source = invalid(format!("byte {position}: {what}"));
                Self { verb: "make out batches in", path: segment, source }
            }
            other => Self { verb: "read", path: PathBuf::new(), source: invalid(other.to_string()) },
        }
    }
}

/// Why the log could not be cut, reset or trimmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TruncateError {
    /// The start cannot move past the end.
    #[error("offset {to} is past the end of the log, {end}")]
    PastEnd {
        /// The offset asked for.
        to: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// Offsets begin at 0.
    #[error("offset {0} is negative")]
    Negative(Offset),
    /// What has to stay is damaged where the cut would be.
    #[error(transparent)]
    Damaged(#[from] Damaged),
    /// A file operation failed before anything was changed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log takes no more calls, perhaps because this very call failed half way.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

/// Why damage was not healed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HealError {
    /// No such damage is known, or it is not below what is flushed.
    #[error("there is no such damage")]
    Unknown,
    /// The bytes are not those that belong there.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log takes no more calls, perhaps because a sync just failed.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

/// Why bytes do not belong in the place of damaged ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// They are more or fewer.
    #[error("{healed} bytes do not take the place of {damaged}")]
    Length {
        /// Bytes that are damaged.
        damaged: u64,
        /// Bytes that were given.
        healed: u64,
    },
    /// They are no whole batches with right checksums.
    #[error("no whole batches, or a wrong checksum")]
    Batch,
    /// A batch that does not lie between those around the damage.
    #[error("a batch of offsets {first} to {last} has no place there")]
    Offsets {
        /// Its first offset.
        first: Offset,
        /// Its last offset.
        last: Offset,
    },
    /// A batch of another history.
    #[error("the batch at {first} has leader epoch {epoch}, where this log's history has {known}")]
    Epoch {
        /// Its first offset.
        first: Offset,
        /// What it has.
        epoch: LeaderEpoch,
        /// What the history has.
        known: LeaderEpoch,
    },
    /// They are what is there: the other replica has the same damage.
    #[error("they are what is there already")]
    Same,
}

/// Why a flush, a close or a step of housekeeping failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// A file operation failed; the log goes on.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The log takes no more calls, perhaps because a sync just failed.
    #[error("the log is closed: {0}")]
    Closed(#[from] Fence),
}

impl From<Damaged> for ReadError {
    fn from(Damaged { segment, position, bytes, offsets, what }: Damaged) -> Self {
        Self::Corrupt { segment, position, bytes, offsets, what }
    }
}
