//! Everything in a partition's directory that can be checked, checked in one pass over its batches.

mod beside;
mod entries;
mod epochs;
mod indexes;
mod root;
mod segment;
mod snapshots;
mod transactions;
mod trust;
mod verifier;

use std::path::Path;

use crate::fs::Fs;
use crate::io::IoContext;
use crate::names::{SegmentFile, SegmentFileName};
use crate::producers::MAX_PRODUCERS;
use crate::root_checkpoints::RootCheckpoints;

use super::fault::Fault;
use super::files::FileFacts;
use super::summary::{PartitionSummary, Stop};
use super::target::{InspectError, checkpoints_around};

pub(crate) use root::verify_locked_root;
pub use root::verify_root;
pub(crate) use transactions::{AbortedEntries, OpenTransactions, contradiction};
use verifier::Verifier;

/// What a verification tells while it goes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum VerifyEvent {
    /// So many more bytes of batches were read.
    Read(u64),
    /// Something is wrong, or worth knowing.
    Found(Fault),
}

/// What was verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Segments.
    pub segments: u64,
    /// Batches that are whole; of magic 0 and 1, messages and wrappers.
    pub batches: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of data files.
    pub bytes: u64,
    /// Faults: what was found, but for notes.
    pub faults: u64,
    /// Notes.
    pub notes: u64,
}

impl Verified {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.batches += other.batches;
        self.records += other.records;
        self.bytes += other.bytes;
        self.faults += other.faults;
        self.notes += other.notes;
    }

    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.faults == 0
    }
}

/// By which rules a directory is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terms {
    /// As it is found. What somebody is writing is not judged.
    AsFound,
    /// The caller holds its lock: nothing in it is being written.
    Locked,
    /// As [`Terms::Locked`], by the rules for a log that was closed well, however it was left.
    Closed,
}

impl Terms {
    fn summary(self, fs: &dyn Fs, dir: &Path, checkpoints: &RootCheckpoints) -> Result<PartitionSummary, InspectError> {
        let mut summary = PartitionSummary::in_root(fs, dir, checkpoints)?;
        if self != Self::AsFound {
            summary.in_use_by = None;
        }
        if self == Self::Closed {
            summary.stop = Stop::Clean;
        }
        Ok(summary)
    }
}

/// Checks a partition's directory: every batch with its checksum and its neighbours, every record, every index entry,
/// epoch, snapshot and checkpoint.
///
/// # Errors
/// What the file system answers. What is wrong with the files is told to `tell`.
pub fn verify_partition(fs: &dyn Fs, dir: &Path, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
    verify_partition_in_root(fs, dir, &checkpoints_around(fs, dir)?, tell)
}

/// As [`verify_partition`], for one of the partitions of a data root whose checkpoints were read.
///
/// # Errors
/// As [`verify_partition`].
pub fn verify_partition_in_root(
    fs: &dyn Fs,
    dir: &Path,
    checkpoints: &RootCheckpoints,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    verify_partition_on(Terms::AsFound, fs, dir, checkpoints, tell)
}

pub(crate) fn verify_partition_on(
    terms: Terms,
    fs: &dyn Fs,
    dir: &Path,
    checkpoints: &RootCheckpoints,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let summary = terms.summary(fs, dir, checkpoints)?;
    let mut verifier = Verifier::new(fs, &summary, tell)?;
    verifier.names();
    verifier.metadata(dir)?;
    for (at, segment) in summary.files.segments.iter().enumerate() {
        let next = summary.files.segments.get(at + 1).map(|next| next.base);
        verifier.segment(segment, next)?;
    }
    verifier.finish(dir)?;
    Ok(verifier.verified)
}

/// Checks one file of a segment, with its segment if the file is not a snapshot. What depends on other segments is not
/// checked: whether producers' states and transactions that began earlier are right.
///
/// # Errors
/// As [`verify_partition`].
pub fn verify_file(
    fs: &dyn Fs,
    path: &Path,
    name: SegmentFileName,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    verify_file_on(Terms::AsFound, fs, path, name, tell)
}

pub(crate) fn verify_file_on(
    terms: Terms,
    fs: &dyn Fs,
    path: &Path,
    name: SegmentFileName,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    if name.kind == SegmentFile::ProducerSnapshot {
        let metadata = fs.metadata(path).context("look at", path)?;
        let facts = FileFacts { path: path.to_owned(), bytes: metadata.len, modified: metadata.modified };
        let mut verified = Verified::default();
        if let Some(Err(fault)) = snapshots::read(fs, &facts, MAX_PRODUCERS)? {
            verified.faults = 1;
            tell(VerifyEvent::Found(fault));
        }
        return Ok(verified);
    }
    let dir = crate::checkpoint::parent_of(path);
    let mut summary = terms.summary(fs, dir, &checkpoints_around(fs, dir)?)?;
    let (segment, next) = summary.files.segment_of(fs, path, name)?;
    summary.files.snapshots.clear();
    let mut verifier = Verifier::new(fs, &summary, tell)?;
    verifier.look_at_one_segment();
    verifier.segment(&segment, next)?;
    Ok(verifier.verified)
}
