//! What opening a log found, and what it did about it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use crate::Offset;
use crate::error::{DamageKind, Damaged};

/// What opening a log found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The last stop was clean: nothing was scanned.
    pub clean: bool,
    /// There was no segment, and the first one was made.
    pub created: bool,
    /// The log start.
    pub start: Offset,
    /// The end of the log.
    pub end: Offset,
    /// Where the scan began, unless the stop was clean; nothing below was doubted.
    pub recovery_point: Offset,
    /// Everything below was synced before the last stop, as far as is known: damage there is rot, and cuts nothing.
    pub flushed: Offset,
    /// The flush mark does not fit the files (another program wrote here), and was ignored.
    pub foreign_mark: bool,
    /// Offsets of records that were synced, as far as is known, and are not there any more, rising: segments that are gone,
    /// and what was cut off the end, from [`RecoveryReport::end`] on. These are given again. Records that are there and
    /// damaged are no such, nor what another program took away that closed the data root since.
    pub missing: Vec<Range<Offset>>,
    /// Segments there are.
    pub segments: u32,
    /// Segments that were read batch by batch.
    pub segments_scanned: u32,
    /// Bytes of batches that were read.
    pub bytes_scanned: u64,
    /// What was cut off the end.
    pub cut: Option<Cut>,
    /// Segments before the last that ended in zeros, as where room was allocated ahead, and were cut to their batches.
    pub zero_tails: u32,
    /// What was found damaged below the flush mark, where no torn write can be: it stays, cannot be read, and what lies
    /// before and behind it can.
    pub rotten: Vec<Damaged>,
    /// Header fields outside the checksum that could have one value only and had another.
    pub repaired: Vec<Repaired>,
    /// Intact batches that lay behind damage in what was cut off.
    pub put_aside: Vec<PutAside>,
    /// A sync had failed before the last stop: what may never have reached the disk was written anew and synced.
    pub rewritten: bool,
    /// Segments whose index files were missing or wrong and were written anew.
    pub indexes_rebuilt: u32,
    /// The leader epochs were missing or damaged and were taken from the batches.
    pub epochs_rebuilt: bool,
    /// There was no usable snapshot of the producers: their state was taken from all batches there are. After a clean
    /// close there should have been one. Of a producer whose batches have all left the log nothing is known.
    pub producers_rebuilt: bool,
    /// Producer snapshots that were damaged, or past the end, and were removed.
    pub snapshots_removed: u32,
    /// Files of interrupted work that were removed or put in place.
    pub leftovers: Vec<String>,
    /// Files that are no log's. They were left alone.
    pub ignored: Vec<String>,
}

/// What was cut off the end of a log when it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// The segment's file in which the cut is.
    pub file: PathBuf,
    /// Its length now.
    pub at: u64,
    /// Bytes cut off, in this file and those after it.
    pub bytes: u64,
    /// Segments removed as a whole.
    pub segments: u32,
    /// The end of the log now.
    pub end: Offset,
    /// Why.
    pub reason: CutReason,
}

/// Why the end of a log was cut off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutReason {
    /// What follows is not, or not only, what was appended: most often a write that a power cut tore.
    #[error("{0}")]
    Damage(DamageKind),
    /// Only zeros follow, as where room was allocated ahead. No record is lost.
    #[error("only zeros follow")]
    Zeros,
    /// The next segment begins elsewhere than this one ends: the batches in between were lost.
    #[error("the next segment begins at {found}, not at {expected}")]
    LostTail {
        /// Where the log ends.
        expected: Offset,
        /// Where the next segment begins.
        found: Offset,
    },
    /// All that there is lies below the log start.
    #[error("everything lies below the log start, {log_start}")]
    BelowLogStart {
        /// The log start.
        log_start: Offset,
    },
}

/// A header field outside the checksum whose value was wrong, with the one value that fits the batches around it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repaired {
    /// The segment's file.
    pub segment: PathBuf,
    /// Where its batch begins.
    pub position: u64,
    /// The field.
    pub field: RepairedField,
    /// What the file said.
    pub was: i64,
    /// What it has to be.
    pub is: i64,
    /// The file was corrected. Else (it has another name, in a copy, or the log was opened for reading only) it was left
    /// as it is.
    pub in_place: bool,
}

/// A field of a batch's header that its checksum does not cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RepairedField {
    /// The base offset.
    BaseOffset,
    /// The length.
    Length,
    /// The leader epoch.
    LeaderEpoch,
    /// The format version.
    Magic,
}

/// Intact batches that lay behind damage in what was cut off, and where they are now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutAside {
    /// The file that holds them, `None` if there was no room for one.
    pub file: Option<PathBuf>,
    /// The segment's file they were in.
    pub segment: PathBuf,
    /// Where in it the bytes began.
    pub position: u64,
    /// How many bytes those are, damage between the batches included.
    pub bytes: u64,
    /// Whole batches with a valid checksum in them.
    pub batches: u64,
    /// The first and the last offset of these batches.
    pub offsets: (Offset, Offset),
}

impl fmt::Display for RepairedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BaseOffset => "base offset",
            Self::Length => "length",
            Self::LeaderEpoch => "leader epoch",
            Self::Magic => "format version",
        })
    }
}
