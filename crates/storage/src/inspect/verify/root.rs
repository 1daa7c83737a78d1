//! The files of a data root that belong to all of its partitions.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use crate::TopicPartition;
use crate::checkpoint::{CHECKPOINT_BYTES_MAX, CheckpointError, read_offsets, read_small_file};
use crate::data_dir::{
    CHECKPOINT_FILES, CLEAN_SHUTDOWN_BYTES_MAX, CLEAN_SHUTDOWN_FILE, broker_epoch_in, is_cut_short, is_live_partition,
};
use crate::fs::{FileKind, Fs};
use crate::io::{IoContext, IoError};
use crate::metadata_files::{META_PROPERTIES_FILE, MetadataFileError, read_meta_properties};
use crate::names::PartitionDirName;

use super::super::fault::{Fault, FaultKind, Severity};
use super::super::target::{InspectError, in_use_by};
use super::{Verified, VerifyEvent};

/// How many partitions that are not there are named, of one checkpoint.
const NAMED: usize = 3;

/// Checks the files of a data root itself. Its partitions are for [`super::verify_partition`], which also holds what the
/// checkpoints say of each against its log.
///
/// # Errors
/// What the file system answers. What is wrong with the files is told to `tell`.
pub fn verify_root(fs: &dyn Fs, dir: &Path, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
    let is_in_use = in_use_by(fs, dir)?.is_some();
    verify(fs, dir, is_in_use, tell)
}

/// As [`verify_root`], for a caller that holds the root's lock itself: nothing in it is being written.
pub(crate) fn verify_locked_root(
    fs: &dyn Fs,
    dir: &Path,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    verify(fs, dir, false, tell)
}

fn verify(
    fs: &dyn Fs,
    dir: &Path,
    is_in_use: bool,
    tell: &mut dyn FnMut(VerifyEvent),
) -> Result<Verified, InspectError> {
    let mut verified = Verified::default();
    let mut found = |fault: Fault| {
        match fault.severity() {
            Severity::Note => verified.notes += 1,
            Severity::Error | Severity::Loss => verified.faults += 1,
        }
        tell(VerifyEvent::Found(fault));
    };
    let partitions = partitions(fs, dir)?;
    for name in CHECKPOINT_FILES {
        // A broker replaces these files as a whole. Only where Kafka has just made one, there is nothing in it yet.
        let fault = checkpoint(fs, dir, name)?.filter(|fault| !is_in_use || fault.bytes != Some(0));
        match fault {
            Some(fault) => found(fault),
            None => absent(fs, dir, name, &partitions)?.into_iter().for_each(&mut found),
        }
    }
    clean_marker(fs, dir)?.into_iter().for_each(&mut found);
    match read_meta_properties(fs, dir) {
        Ok(_) => {}
        Err(MetadataFileError::Malformed { path, what }) => found(Fault::new(FaultKind::Metadata, path, what)),
        Err(MetadataFileError::Io(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
            let path = dir.join(META_PROPERTIES_FILE);
            found(Fault::new(FaultKind::Metadata, path, error.source.to_string()));
        }
        Err(MetadataFileError::Io(error)) => return Err(error.into()),
    }
    Ok(verified)
}

fn partitions(fs: &dyn Fs, dir: &Path) -> Result<BTreeSet<TopicPartition>, IoError> {
    let entries = fs.read_dir(dir).context("list", dir)?;
    let names = entries
        .iter()
        .filter(|entry| entry.kind == FileKind::Directory && is_live_partition(&entry.name))
        .filter_map(|entry| PartitionDirName::parse(&entry.name));
    Ok(names.map(|name| name.topic_partition).collect())
}

/// Whether a checkpoint can be read, to its end.
fn checkpoint(fs: &dyn Fs, dir: &Path, name: &str) -> Result<Option<Fault>, InspectError> {
    let path = dir.join(name);
    let fault = |what: String| Fault::new(FaultKind::Checkpoint, &path, what);
    let bytes = match read_small_file(fs, &path, CHECKPOINT_BYTES_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return Ok(Some(fault(error.source.to_string()))),
        Err(error) => return Err(error.into()),
    };
    let len = bytes.len() as u64;
    if is_cut_short(name, len) {
        let what = if len == 0 { "there is nothing in it" } else { "it is cut short" };
        return Ok(Some(fault(what.to_owned()).bytes(len)));
    }
    match read_offsets(fs, &path) {
        Err(CheckpointError::Malformed { what, .. }) => Ok(Some(fault(what))),
        Err(CheckpointError::Io(error)) => Err(error.into()),
        // Of a number that was cut, the digits that are left are a number too.
        Ok(_) if bytes.last().is_some_and(|byte| *byte != b'\n') => {
            Ok(Some(fault("its last line has no end: it may have been cut".to_owned()).at(len)))
        }
        Ok(_) => Ok(None),
    }
}

/// Lines of a checkpoint that are about partitions that are not there.
fn absent(
    fs: &dyn Fs,
    dir: &Path,
    name: &str,
    partitions: &BTreeSet<TopicPartition>,
) -> Result<Option<Fault>, InspectError> {
    let path = dir.join(name);
    let absent: Vec<_> =
        read_offsets(fs, &path)?.into_keys().filter(|partition| !partitions.contains(partition)).collect();
    if absent.is_empty() {
        return Ok(None);
    }
    let mut names = absent.iter().take(NAMED).map(TopicPartition::to_string).collect::<Vec<_>>().join(", ");
    if absent.len() > NAMED {
        names.push_str(&format!(" and {} more", absent.len() - NAMED));
    }
    let what = format!("it has lines of partitions that are not here: {names}");
    Ok(Some(Fault::new(FaultKind::CheckpointAbsent, path, what)))
}

/// Whether the marker of a clean stop says what Kafka or this crate writes. An empty one is of a Kafka before 3.
fn clean_marker(fs: &dyn Fs, dir: &Path) -> Result<Option<Fault>, InspectError> {
    let path = dir.join(CLEAN_SHUTDOWN_FILE);
    let what = match read_small_file(fs, &path, CLEAN_SHUTDOWN_BYTES_MAX) {
        Ok(content) => {
            let content = content.unwrap_or_default();
            let is_good = std::str::from_utf8(&content).is_ok_and(|text| {
                let text = text.trim();
                text.is_empty() || (text.starts_with('{') && text.ends_with('}') && broker_epoch_in(text).is_some())
            });
            if is_good {
                return Ok(None);
            }
            "it does not tell the broker's epoch".to_owned()
        }
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => error.source.to_string(),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(Fault::new(FaultKind::CleanMarker, path, what)))
}
