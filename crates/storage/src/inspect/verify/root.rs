//! The files of a data root that belong to all of its partitions.

use std::io;
use std::path::Path;

use crate::checkpoint::{CheckpointError, read_offsets};
use crate::data_dir::{CLEANER_OFFSETS_FILE, HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, RECOVERY_POINTS_FILE};
use crate::fs::Fs;
use crate::metadata_files::{META_PROPERTIES_FILE, MetadataFileError, read_meta_properties};

use super::super::fault::{Fault, FaultKind};
use super::super::target::InspectError;
use super::{Verified, VerifyEvent};

/// Checks the files of a data root itself. Its partitions are for [`super::verify_partition`], which also holds what the
/// checkpoints say of each against its log.
///
/// # Errors
/// What the file system answers. What is wrong with the files is told to `tell`.
pub fn verify_root(fs: &dyn Fs, dir: &Path, tell: &mut dyn FnMut(VerifyEvent)) -> Result<Verified, InspectError> {
    let mut verified = Verified::default();
    let mut found = |fault: Fault| {
        verified.faults += 1;
        tell(VerifyEvent::Found(fault));
    };
    for name in [RECOVERY_POINTS_FILE, LOG_STARTS_FILE, HIGH_WATERMARKS_FILE, CLEANER_OFFSETS_FILE] {
        match read_offsets(fs, &dir.join(name)) {
            Ok(_) => {}
            Err(CheckpointError::Malformed { path, what }) => found(Fault::new(FaultKind::Checkpoint, path, what)),
            Err(CheckpointError::Io(error)) if error.kind() == io::ErrorKind::FileTooLarge => {
                found(Fault::new(FaultKind::Checkpoint, error.path.clone(), error.source.to_string()));
            }
            Err(CheckpointError::Io(error)) => return Err(error.into()),
        }
    }
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
