//! Which files a partition consists of, as a broker that opened it now would see them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::fs::{FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::log::EPOCHS_FILE;
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::state_file::STATE_FILE;
use crate::tidy::{self, Fate, Fates};
use crate::{Offset, TimestampMs};

use super::target::InspectError;

/// What is known of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileFacts {
    /// The file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was last changed.
    pub modified: TimestampMs,
}

/// The files of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentFiles {
    /// The offset its name tells.
    pub base: Offset,
    /// The data file.
    pub log: FileFacts,
    /// The offset index.
    pub offset_index: Option<FileFacts>,
    /// The time index.
    pub time_index: Option<FileFacts>,
    /// The index of aborted transactions.
    pub transaction_index: Option<FileFacts>,
}

impl SegmentFiles {
    /// A data file on its own, whatever lies beside it.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn alone(fs: &dyn Fs, path: &Path, base: Offset) -> Result<Self, IoError> {
        let metadata = fs.metadata(path).context("look at", path)?;
        let log = FileFacts { path: path.to_owned(), bytes: metadata.len, modified: metadata.modified };
        Ok(Self { base, log, offset_index: None, time_index: None, transaction_index: None })
    }

    /// Whether the data file is on its own: of an index that is not beside it nothing can be said.
    pub(crate) fn is_bare(&self) -> bool {
        self.log.path.file_name().and_then(|name| name.to_str()).and_then(SegmentFileName::parse).is_none_or(|name| {
            name.state != SegmentFileState::Live && self.offset_index.is_none() && self.time_index.is_none()
        })
    }
}

/// The files in a partition's directory, sorted by what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionFiles {
    /// The directory.
    pub dir: PathBuf,
    /// Segments, rising. One whose replacement was complete but not put in place (`.swap`) is given as its replacement,
    /// as the next open would have it.
    pub segments: Vec<SegmentFiles>,
    /// Producer snapshots by the offset they cover, rising.
    pub snapshots: Vec<(Offset, FileFacts)>,
    /// `leader-epoch-checkpoint`, if it is there.
    pub epochs: Option<FileFacts>,
    /// The state file of this crate, if it is there.
    pub state: Option<FileFacts>,
    /// Files of interrupted or postponed work, which the next open removes or puts in place.
    pub leftovers: Vec<FileFacts>,
    /// Index files without a segment.
    pub orphans: Vec<FileFacts>,
    /// What a recovery or a repair put aside.
    pub set_aside: Vec<FileFacts>,
    /// Names that no log has.
    pub unknown: Vec<String>,
}

impl PartitionFiles {
    /// Lists a directory. Files that vanish meanwhile, as they do under a running broker, are left out.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn list(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        let mut found = Self {
            dir: dir.to_owned(),
            segments: Vec::new(),
            snapshots: Vec::new(),
            epochs: None,
            state: None,
            leftovers: Vec::new(),
            orphans: Vec::new(),
            set_aside: Vec::new(),
            unknown: Vec::new(),
        };
        let mut names = Vec::new();
        let mut entries = fs.read_dir(dir).context("list", dir)?;
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        for entry in entries {
            let name = SegmentFileName::parse(&entry.name).filter(|_| entry.kind == FileKind::File);
            let Some(facts) = facts(fs, dir.join(&entry.name))? else { continue };
            match name {
                Some(name) => names.push((name, facts)),
                None if entry.name == EPOCHS_FILE => found.epochs = Some(facts),
                None if entry.name == STATE_FILE => found.state = Some(facts),
                None if tidy::is_known_small_file(&entry.name) => {}
                None if tidy::is_temporary(&entry.name) => found.leftovers.push(facts),
                None if tidy::is_set_aside(&entry.name) => found.set_aside.push(facts),
                None => found.unknown.push(entry.name),
            }
        }
        found.sort(fs, names)?;
        Ok(found)
    }

    /// Bytes of batches in all segments.
    pub fn log_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.log.bytes).sum()
    }

    /// The segment that a file of this directory belongs to, with the base of the next one: the segment in use, or the data
    /// file by itself if it is of another state than that one, or of none.
    pub(super) fn segment_of(
        &self,
        fs: &dyn Fs,
        path: &Path,
        name: SegmentFileName,
    ) -> Result<(SegmentFiles, Option<Offset>), InspectError> {
        let next = self.segments.iter().map(|segment| segment.base).find(|base| *base > name.base_offset);
        let beside = self.segments.iter().find(|segment| segment.base == name.base_offset);
        let segment = match (name.kind, beside) {
            (SegmentFile::Log, beside) if beside.is_none_or(|beside| beside.log.path != path) => SegmentFiles {
                base: name.base_offset,
                log: facts(fs, path.to_owned())?.ok_or_else(|| InspectError::Unknown(path.to_owned()))?,
                offset_index: None,
                time_index: None,
                transaction_index: None,
            },
            (_, Some(beside)) => beside.clone(),
            (_, None) => return Err(InspectError::Unknown(path.to_owned())),
        };
        Ok((segment, next))
    }

    /// Sorts the names of segment files by the rules that the next open will follow.
    fn sort(&mut self, fs: &dyn Fs, names: Vec<(SegmentFileName, FileFacts)>) -> Result<(), IoError> {
        let fates = Fates::of(fs, &self.dir, &names.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
        let mut live: BTreeMap<Offset, BTreeMap<SegmentFile, FileFacts>> = BTreeMap::new();
        for (name, facts) in names {
            match fates.of_file(&name) {
                Fate::Removed => self.leftovers.push(facts),
                Fate::Stays if name.kind == SegmentFile::ProducerSnapshot => {
                    self.snapshots.push((name.base_offset, facts));
                }
                Fate::Stays => {
                    live.entry(name.base_offset).or_default().insert(name.kind, facts);
                }
                Fate::PutInPlace => {
                    self.leftovers.push(facts.clone());
                    // Names come in order: the one that is about to be taken came before.
                    self.leftovers.extend(live.entry(name.base_offset).or_default().insert(name.kind, facts));
                }
            }
        }
        for (base, mut kinds) in live {
            let Some(log) = kinds.remove(&SegmentFile::Log) else {
                self.orphans.extend(kinds.into_values());
                continue;
            };
            self.segments.push(SegmentFiles {
                base,
                log,
                offset_index: kinds.remove(&SegmentFile::OffsetIndex),
                time_index: kinds.remove(&SegmentFile::TimeIndex),
                transaction_index: kinds.remove(&SegmentFile::TransactionIndex),
            });
        }
        self.snapshots.sort_by_key(|(offset, _)| *offset);
        Ok(())
    }
}

fn facts(fs: &dyn Fs, path: PathBuf) -> Result<Option<FileFacts>, IoError> {
    match fs.metadata(&path) {
        Ok(metadata) => Ok(Some(FileFacts { path, bytes: metadata.len, modified: metadata.modified })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context("look at", &path),
    }
}
