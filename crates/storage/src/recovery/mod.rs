//! Opening a log: what is in its directory, what of it can be trusted, and what is done about the rest.
//!
//! First everything is [examined](examine), which reads and changes nothing on the disk; it ends with a [`plan`]. A log
//! that is opened for reading only stops there. Else the plan is [applied](apply).
//!
//! After a clean close the tail of the last segment is read and nothing else. Otherwise every batch from the recovery
//! point on is read. What lies below the flush mark (or, without one, below the recovery point) was synced: damage there
//! is rot, which is reported, stays, and takes nothing else along. Above it a batch that is not whole, or does not follow
//! the one before, is a torn write: the log is cut there. Intact batches behind a cut are put aside.

mod apply;
mod aside;
mod examine;
mod plan;
mod report;
mod scan;
mod trust;

use std::sync::Arc;

use crate::data_dir::OpenHints;
use crate::error::{OpenError, ReadError};
use crate::log::Log;
use crate::metadata_files::{MetadataFileError, read_topic_id};
use crate::options::LogOptions;
use crate::reader::{LogReader, Shared};
use crate::segment::Place;
use crate::segments::Segments;
use crate::state_file::{LogState, StateFile};
use crate::tidy::{self, Tidied};
use crate::transactions::Undecided;
use crate::{Offset, TopicId};

use examine::Examined;
pub use report::{Cut, CutReason, PutAside, RecoveryReport, Repaired, RepairedField};

/// Opens the log in a directory that is there.
pub(crate) fn open(
    place: Place,
    options: Arc<LogOptions>,
    hints: OpenHints,
) -> Result<(Log, RecoveryReport), OpenError> {
    let (state, topic_id, tidied) = load_state(&place)?;
    tidy::apply(&place, &tidied)?;
    let mut examined = Examined::new(Arc::new(place), options, tidied)?;
    examined.run(&state, hints)?;
    let (mut log, report) = examined.apply(state, topic_id)?;
    // Past the end it is of a history that was lost: nothing is known to be compacted.
    log.cleaner_offset = hints.cleaner_offset.filter(|offset| *offset <= log.end()).unwrap_or(Offset::ZERO);
    Ok((log, report))
}

/// Opens the log in a directory for reading, as it would be opened for writing, and changes nothing in it.
pub(crate) fn open_read_only(
    place: Place,
    options: Arc<LogOptions>,
    hints: OpenHints,
) -> Result<(LogReader, RecoveryReport), OpenError> {
    let (state, _, tidied) = load_state(&place)?;
    let mut examined = Examined::new(Arc::new(Place { read_only: true, ..place }), options, tidied)?;
    examined.run(&state, hints)?;
    let Examined { mut report, segments, plan, epochs, producers, ended, start, end, .. } = examined;
    for repair in &plan.repairs {
        repair.leave(&segments, &mut report);
    }
    // What was kept of their files may change from now on.
    for segment in &segments {
        segment.release_file();
    }
    (report.start, report.end) = (start, end);
    report.segments = u32::try_from(segments.len()).unwrap_or(u32::MAX);
    let mut epochs = epochs.unwrap_or_default();
    epochs.truncate_from_end(end);
    epochs.truncate_from_start(start);
    let undecided = Undecided::new(producers.first_open_transaction(), &ended, end);
    let shared = Shared::new(Segments::new(&segments), epochs, undecided, (start, end));
    Ok((LogReader::new(Arc::new(shared)), report))
}

/// The state file, unless it is of another topic's log, the topic's id, and what is in the directory. In that order: of a log
/// that is in use the listing is never older than the state file.
fn load_state(place: &Place) -> Result<(StateFile, TopicId, Tidied), OpenError> {
    let state = StateFile::load(place)?;
    let tidied = tidy::plan(place)?;
    let topic_id = if tidied.names_topic { read_topic_id(&*place.fs, &place.dir) } else { Ok(None) };
    let topic_id = match topic_id {
        Ok(topic_id) => topic_id.unwrap_or(TopicId::ZERO),
        // The data root judges that file. Here it only guards against a state file that was copied along.
        Err(MetadataFileError::Io(error)) => return Err(error.into()),
        Err(_) => TopicId::ZERO,
    };
    let is_foreign =
        |state: LogState| ![TopicId::ZERO, topic_id].contains(&state.topic_id) && topic_id != TopicId::ZERO;
    if state.last().is_some_and(is_foreign) {
        state.disown();
    }
    Ok((state, topic_id, tidied))
}

/// A read error while a log is opened.
fn unread(error: ReadError) -> OpenError {
    OpenError::Io(error.into())
}
