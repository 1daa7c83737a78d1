//! Producer snapshots, beside the state that the batches below them make.

use std::io;

use crate::Offset;
use crate::fs::{Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::producers::{ProducerState, ProducerTable};
use crate::snapshots::SNAPSHOT_BYTES_MAX;

use super::super::fault::{Fault, FaultKind};
use super::super::files::FileFacts;

/// Reads a snapshot. `None` if it has gone meanwhile.
pub(super) fn read(
    fs: &dyn Fs,
    facts: &FileFacts,
    max_producers: usize,
) -> Result<Option<Result<ProducerTable, Fault>>, IoError> {
    let file = match fs.open(&facts.path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.context("open", &facts.path)?,
    };
    let Some(len) = usize::try_from(facts.bytes).ok().filter(|_| facts.bytes <= SNAPSHOT_BYTES_MAX) else {
        let what = format!("{} bytes are no snapshot", facts.bytes);
        return Ok(Some(Err(Fault::new(FaultKind::Snapshot, &facts.path, what))));
    };
    let mut bytes = vec![0; len];
    let read = file.read_full_at(&mut bytes, 0).context("read", &facts.path)?;
    bytes.truncate(read);
    let decoded = ProducerTable::decode_snapshot(&bytes, max_producers);
    Ok(Some(decoded.map_err(|error| Fault::new(FaultKind::Snapshot, &facts.path, error.to_string()))))
}

/// What the batches below a snapshot's offset say.
#[derive(Clone, Copy)]
pub(super) struct Known<'k> {
    pub(super) table: &'k ProducerTable,
    /// Where they begin.
    pub(super) from: Offset,
    /// Whether none is missing from there on.
    pub(super) all: bool,
}

/// Compares a snapshot with the state that the batches up to its offset make.
///
/// Producers that the batches do not show are all right: their batches may have been deleted or compacted away. So are
/// producers that only the batches show: they expire with time. What is left is what contradicts a batch.
pub(super) fn compare(facts: &FileFacts, offset: Offset, snapshot: &ProducerTable, known: Known<'_>) -> Option<Fault> {
    let batches = known.table;
    let wrong = snapshot.iter().find_map(|(id, state)| contradiction(id, state, batches.get(id), offset, known.all));
    if let Some(what) = wrong {
        return Some(Fault::new(FaultKind::SnapshotContent, &facts.path, what));
    }
    let unknown = || batches.iter().filter(|(id, _)| snapshot.get(*id).is_none());
    // Kafka keeps a producer in a transaction however long ago that was.
    let in_transaction = unknown().find(|(_, state)| known.all && state.transaction_start().is_some());
    if let Some((id, state)) = in_transaction {
        let first = state.transaction_start().unwrap_or(known.from);
        let what = format!("producer {id} is missing, whose transaction began at {first} and is open");
        return Some(Fault::new(FaultKind::SnapshotContent, &facts.path, what).offsets(first..offset));
    }
    let (first, _) = unknown().next()?;
    let more = unknown().count() - 1;
    let what = match more {
        0 => format!("producer {first} has expired, or was forgotten"),
        more => format!("producer {first} and {more} more have expired, or were forgotten"),
    };
    Some(Fault::new(FaultKind::SnapshotProducers, &facts.path, what))
}

fn contradiction(
    id: i64,
    state: &ProducerState,
    batches: Option<&ProducerState>,
    offset: Offset,
    knows_all: bool,
) -> Option<String> {
    if state.last_offset() >= offset {
        return Some(format!("producer {id} wrote offset {}, which is not below", state.last_offset()));
    }
    let batches = batches?;
    let (said, found) = (state.last_offset(), batches.last_offset());
    if state.epoch() < batches.epoch() {
        return Some(format!("producer {id} in epoch {}, the batches say {}", state.epoch(), batches.epoch()));
    }
    if state.epoch() > batches.epoch() {
        return None;
    }
    if said < found {
        return Some(format!("producer {id} wrote last at {said}, the batches say {found}"));
    }
    if said == found && state.last_sequence() != batches.last_sequence() {
        let (said, found) = (state.last_sequence(), batches.last_sequence());
        return Some(format!("sequence {said} of producer {id}, the batches say {found}"));
    }
    if !knows_all {
        return None;
    }
    let (said, found) = (state.transaction_start(), batches.transaction_start());
    // Of an open transaction whose first batches were compacted away, the batches show a later beginning.
    let differs = match (said, found) {
        (Some(said), Some(found)) => said > found,
        (said, found) => said.is_some() != found.is_some() && found.is_some(),
    };
    let show = |start: Option<Offset>| start.map_or_else(|| "none".to_owned(), |start| format!("one from {start}"));
    differs.then(|| format!("producer {id} has {} open transaction, the batches say {}", show(said), show(found)))
}
