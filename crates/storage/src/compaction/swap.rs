//! Puts compacted segments in the place of those they were made from. A crash at any point leaves, after the passes of
//! the next opening, either the old ones or the new ones.
//!
//! The steps, each durable before the next begins:
//!
//! 1. The new files become `.swap`, one segment after the other from the last down. Before the first segment is through
//!    the opening finds a `.cleaned` and gives up this segment and all above it.
//! 2. The old files become `.deleted`. The opening finds a `.swap`, which stands for all that it covers.
//! 3. The new files get their names. The opening finds nothing to do, or does what is left.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::output::{Cleaned, path, remove_files};
use crate::Offset;
use crate::error::Fence;
use crate::flush::JobControl;
use crate::fs::Fs;
use crate::io::{IoContext, IoError};
use crate::names::{SegmentFile, SegmentFileState};
use crate::reader::Shared;
use crate::segment::{Place, Segment};
use crate::truncation::SEGMENT_FILES;

/// What a swap came to.
#[derive(Debug)]
pub(crate) enum Swapped {
    /// The files that were given up, for removal after a while.
    Done(Vec<PathBuf>),
    /// The log has changed meanwhile: nothing was touched.
    Superseded,
}

/// Replaces `old` segments, each with its end, by `new` ones. What was written into these depends on the records below
/// `upto`.
///
/// # Errors
/// If nothing was changed. A failure after which a part of it may be done closes the log, and the next opening does the
/// rest.
pub(crate) fn swap(
    place: &Arc<Place>,
    shared: &Shared,
    control: &JobControl,
    upto: Offset,
    old: &[(Arc<Segment>, Offset)],
    new: &[Cleaned],
) -> Result<Swapped, IoError> {
    let _writing = control.writing();
    let unchanged = control.lowest_end() >= upto && old.iter().all(|(segment, end)| control.still_has(segment, *end));
    if !unchanged || shared.usable().is_err() {
        return Ok(Swapped::Superseded);
    }
    let segments =
        new.iter().map(|cleaned| Ok(Arc::new(cleaned.segment(place)?))).collect::<Result<Vec<_>, IoError>>()?;
    if let Err(error) = mark_complete(place, new) {
        take_back(place, new).inspect_err(|left| shared.close(Fence::HalfDone(format!("{error}, and then {left}"))))?;
        return Err(error);
    }
    shared.update_segments(|all| all.replaced(old, &segments));
    let done = give_up_old(place, old, new).and_then(|given_up| name_new(place, new).map(|()| given_up));
    match done {
        Ok(given_up) => {
            segments.iter().for_each(|segment| segment.in_place());
            Ok(Swapped::Done(given_up))
        }
        Err(error) => {
            shared.close(Fence::HalfDone(error.to_string()));
            Err(error)
        }
    }
}

/// Step 1. The names that it changes are durable before: else a power cut could take the `.cleaned` file that gives up the
/// segment, and leave one of its indexes as `.swap`, for the opening to put beside the old batches.
fn mark_complete(place: &Place, new: &[Cleaned]) -> Result<(), IoError> {
    place.sync_dir()?;
    for cleaned in new.iter().rev() {
        for kind in &cleaned.kinds {
            let from = path(place, cleaned.base, *kind, SegmentFileState::Cleaned);
            let to = path(place, cleaned.base, *kind, SegmentFileState::Swap);
            place.fs.rename(&from, &to).context("rename", &from)?;
        }
        place.sync_dir()?;
    }
    Ok(())
}

/// Undoes step 1, durably, as far as it went: what is marked complete would be put in place by the next opening. First the
/// lowest segment is incomplete again, which gives up all: of names that are removed a power cut may bring any back alone.
fn take_back(place: &Place, new: &[Cleaned]) -> Result<(), IoError> {
    if let Some(lowest) = new.first() {
        for kind in &lowest.kinds {
            let from = path(place, lowest.base, *kind, SegmentFileState::Swap);
            let to = path(place, lowest.base, *kind, SegmentFileState::Cleaned);
            rename_if_there(&*place.fs, &from, &to)?;
        }
    }
    place.sync_dir()?;
    for cleaned in new {
        remove_files(place, cleaned.base, SegmentFileState::Swap)?;
    }
    place.sync_dir()
}

/// Step 2. Returns the files' new paths.
fn give_up_old(place: &Place, old: &[(Arc<Segment>, Offset)], new: &[Cleaned]) -> Result<Vec<PathBuf>, IoError> {
    let mut given_up = Vec::new();
    for (segment, _) in old {
        segment.retire();
        let base = segment.base();
        for kind in SEGMENT_FILES {
            let (from, to) = (place.path(base, kind), place.deleted_path(base, kind));
            if rename_if_there(&*place.fs, &from, &to)? {
                given_up.push(to);
            }
        }
        if !new.iter().any(|cleaned| cleaned.base == base) {
            // No segment begins there any more: nobody would begin to replay at it.
            place.remove(&place.path(base, SegmentFile::ProducerSnapshot))?;
        }
    }
    place.sync_dir()?;
    Ok(given_up)
}

/// Step 3.
fn name_new(place: &Place, new: &[Cleaned]) -> Result<(), IoError> {
    for cleaned in new {
        for kind in &cleaned.kinds {
            let from = path(place, cleaned.base, *kind, SegmentFileState::Swap);
            place.fs.rename(&from, &place.path(cleaned.base, *kind)).context("rename", &from)?;
        }
    }
    place.sync_dir()
}

fn rename_if_there(fs: &dyn Fs, from: &std::path::Path, to: &std::path::Path) -> Result<bool, IoError> {
    match fs.rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("rename", from),
    }
}
