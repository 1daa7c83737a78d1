//! What a partition's directory tells at a glance: names, lengths, small files, and the end of the last segment.

use std::path::Path;

use crate::batch::BatchHeader;
use crate::checkpoint;
use crate::epochs::EpochHistory;
use crate::fs::{Fs, OpenMode};
use crate::index::{SealedOffsetIndex, SealedTimeIndex};
use crate::io::{IoContext, IoError};
use crate::lock::Holder;
use crate::log::EPOCHS_FILE;
use crate::metadata_files::read_topic_id;
use crate::names::{PartitionDirName, SegmentFileName};
use crate::root_checkpoints::{RootCheckpoints, RootFacts};
use crate::scan::{Found, Walk};
use crate::state_file::StateFile;
use crate::{LeaderEpoch, Offset, TimestampMs, TopicId, TopicPartition};

use super::files::{PartitionFiles, SegmentFiles};
use super::target::{InspectError, checkpoints_around, in_use_by};

/// How a log was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// It was closed well.
    Clean,
    /// It was not: the next open recovers it. That is also how it looks while it is open.
    Unclean,
    /// Nothing says: a partition's directory on its own that Kafka wrote.
    Unknown,
}

/// Who wrote a directory last, as far as it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Writer {
    /// This crate.
    Highwater,
    /// Another program, most likely Apache Kafka.
    Kafka,
    /// Another program after this crate: the state file of ours does not fit the log any more.
    KafkaAfterHighwater,
}

/// One segment at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentSummary {
    /// Its files.
    pub files: SegmentFiles,
    /// Its first batch, if there is one that can be read.
    pub first: Option<BatchHeader>,
    /// The offset after its last record: the next segment's base, or what the end of the file says.
    pub end: Offset,
    /// The largest timestamp, by the time index or by the batches; [`TimestampMs::NONE`] if it has none.
    pub largest_timestamp: TimestampMs,
}

/// One partition at a glance. No segment but the last is read beyond its first batch; see `verify` for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionSummary {
    /// The files.
    pub files: PartitionFiles,
    /// The topic and partition, by the directory's name.
    pub topic_partition: Option<TopicPartition>,
    /// The topic's id, if the directory has a readable one.
    pub topic_id: Option<TopicId>,
    /// The segments, rising.
    pub segments: Vec<SegmentSummary>,
    /// The first offset that is served.
    pub log_start: Offset,
    /// The offset of the next append.
    pub end: Offset,
    /// The high watermark as last written to the data root, if the directory lies in one that knows it.
    pub high_watermark: Option<Offset>,
    /// From where a recovery would read.
    pub recovery_point: Option<Offset>,
    /// Leader epochs and where they begin. Empty if their file is missing or damaged.
    pub epochs: Vec<(LeaderEpoch, Offset)>,
    /// How it was left.
    pub stop: Stop,
    /// Who wrote it last.
    pub writer: Writer,
    /// Who has it open.
    pub in_use_by: Option<Holder>,
    /// What its data root says of it.
    pub(crate) root: RootFacts,
}

impl PartitionSummary {
    /// Looks at a partition's directory.
    ///
    /// # Errors
    /// What the file system answers. Damage is no error: what is damaged is told as missing.
    pub fn of(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        Self::in_root(fs, dir, &checkpoints_around(fs, dir)?)
    }

    /// As [`PartitionSummary::of`], of one of the partitions of a data root whose checkpoints were read.
    ///
    /// # Errors
    /// As [`PartitionSummary::of`].
    pub fn in_root(fs: &dyn Fs, dir: &Path, checkpoints: &RootCheckpoints) -> Result<Self, IoError> {
        let in_use_by = in_use_by(fs, dir)?;
        let files = PartitionFiles::list(fs, dir)?;
        let mut segments = Vec::with_capacity(files.segments.len());
        let mut bases = files.segments.iter().skip(1).map(|segment| segment.base);
        for segment in &files.segments {
            segments.push(SegmentSummary::of(fs, segment, bases.next())?);
        }
        let topic_partition = name_of(dir);
        let root = checkpoints.facts(dir);
        let state = StateFile::read(fs, dir)?.last();
        let first = files.segments.first().map(|segment| segment.base);
        let log_start = state.map(|state| state.log_start).or(root.log_start).unwrap_or(Offset::ZERO);
        let log_start = log_start.max(first.unwrap_or(log_start));
        let end = segments.last().map_or(log_start, |last| last.end);
        let writer = match state {
            None => Writer::Kafka,
            Some(state) if state.clean && state.end != end => Writer::KafkaAfterHighwater,
            Some(_) => Writer::Highwater,
        };
        let stop = match (state.filter(|_| writer == Writer::Highwater), &root.dir) {
            (Some(state), _) if state.clean => Stop::Clean,
            (Some(_), _) => Stop::Unclean,
            (None, Some(_)) if root.clean => Stop::Clean,
            (None, Some(_)) => Stop::Unclean,
            (None, None) => Stop::Unknown,
        };
        let epochs = checkpoint::read_epochs(fs, &dir.join(EPOCHS_FILE)).ok();
        let epochs = epochs.and_then(|entries| EpochHistory::from_entries(entries).ok()).unwrap_or_default();
        Ok(Self {
            topic_partition,
            topic_id: read_topic_id(fs, dir).ok().flatten(),
            segments,
            log_start,
            end,
            high_watermark: root.high_watermark,
            recovery_point: state.map(|state| state.recovery_point).or(root.recovery_point),
            epochs: epochs.entries().to_vec(),
            stop,
            writer,
            in_use_by,
            files,
            root,
        })
    }
}

impl SegmentSummary {
    /// Looks at the segment that a file belongs to: the one in use, or a data file in another state by itself.
    ///
    /// # Errors
    /// What the file system answers; [`InspectError::Unknown`] if the segment has no data file.
    pub fn of_file(fs: &dyn Fs, path: &Path, name: SegmentFileName) -> Result<Self, InspectError> {
        let files = PartitionFiles::list(fs, checkpoint::parent_of(path))?;
        let (segment, next) = files.segment_of(fs, path, name)?;
        Ok(Self::of(fs, &segment, next)?)
    }

    fn of(fs: &dyn Fs, files: &SegmentFiles, next_base: Option<Offset>) -> Result<Self, IoError> {
        let (path, bytes) = (&files.log.path, files.log.bytes);
        let file = fs.open(path, OpenMode::Read).context("open", path)?;
        let first = match Walk::small(&*file, 0, bytes).next_header().context("read", path)? {
            Found::Batch(_, header) => Some(header),
            Found::End | Found::Bad(..) => None,
        };
        let indexed = largest_indexed_timestamp(fs, files);
        let mut largest = indexed.unwrap_or(TimestampMs::NONE);
        let mut end = files.base;
        if next_base.is_none() || indexed.is_none() {
            let from = if indexed.is_some() { position_before(fs, files, Offset::MAX).0 } else { 0 };
            let mut walk = Walk::new(&*file, from, bytes);
            while let Found::Batch(_, header) = walk.next_header().context("read", path)? {
                if header.last_offset() < end {
                    break;
                }
                end = header.next_offset();
                largest = largest.max(header.max_timestamp());
            }
        }
        Ok(Self { files: files.clone(), first, end: next_base.unwrap_or(end), largest_timestamp: largest })
    }
}

/// The topic and partition of a directory, by its name.
fn name_of(dir: &Path) -> Option<TopicPartition> {
    let name = dir.file_name()?.to_str().and_then(PartitionDirName::parse)?;
    Some(name.topic_partition)
}

/// The timestamp of the last entry of a usable time index.
fn largest_indexed_timestamp(fs: &dyn Fs, files: &SegmentFiles) -> Option<TimestampMs> {
    let facts = files.time_index.as_ref()?;
    let file = fs.open(&facts.path, OpenMode::Read).ok()?;
    let index = SealedTimeIndex::open(file, facts.bytes, files.base).ok()?;
    index.last().ok()?.map(|entry| entry.timestamp)
}

/// Where in a segment to begin to look for `offset`: the beginning of a batch, by the index if that can be used, with the
/// lowest offset that the batch may have.
pub fn position_before(fs: &dyn Fs, files: &SegmentFiles, offset: Offset) -> (u64, Offset) {
    let by_index = || {
        let facts = files.offset_index.as_ref()?;
        let file = fs.open(&facts.path, OpenMode::Read).ok()?;
        let index = SealedOffsetIndex::open(file, facts.bytes, files.base, files.log.bytes).ok()?;
        let entry = index.lookup(offset).ok()?;
        let log = fs.open(&files.log.path, OpenMode::Read).ok()?;
        let position = u64::from(entry.position);
        match Walk::small(&*log, position, files.log.bytes).next_header().ok()? {
            Found::Batch(_, header) if (files.base..=entry.offset).contains(&header.base_offset()) => {
                Some((position, header.base_offset()))
            }
            _ => None,
        }
    };
    by_index().unwrap_or((0, files.base))
}
