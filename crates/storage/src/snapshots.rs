//! The files that keep idempotent producers' state across restarts, and the replay of what they do not cover.

use std::io;

use crate::Offset;
use crate::error::ReadError;
use crate::fs::OpenMode;
use crate::io::{FileExt, IoContext, IoError};
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::producers::{CompletedTransaction, ProducerTable};
use crate::scan::{Found, Walk};
use crate::segment::Place;
use crate::segments::Segments;

/// 100,000 producers take under 5 MB; a file above this is none of ours or Kafka's, and is not read into memory.
const SNAPSHOT_BYTES_MAX: u64 = 256 << 20;

/// The offsets of the snapshots in the directory, rising.
pub(crate) fn list(place: &Place) -> Result<Vec<Offset>, IoError> {
    let entries = place.fs.read_dir(&place.dir).context("list", &place.dir)?;
    let mut offsets: Vec<Offset> = entries
        .iter()
        .filter_map(|entry| SegmentFileName::parse(&entry.name))
        .filter(|name| name.kind == SegmentFile::ProducerSnapshot && name.state == SegmentFileState::Live)
        .map(|name| name.base_offset)
        .collect();
    offsets.sort_unstable();
    Ok(offsets)
}

fn read(place: &Place, offset: Offset, max_producers: usize) -> Result<Option<ProducerTable>, IoError> {
    let path = place.path(offset, SegmentFile::ProducerSnapshot);
    let file = match place.fs.open(&path, OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("open", &path),
    };
    let len = file.metadata().context("read metadata of", &path)?.len;
    let Some(len) = usize::try_from(len).ok().filter(|_| len <= SNAPSHOT_BYTES_MAX) else { return Ok(None) };
    let mut bytes = vec![0; len];
    let read = file.read_full_at(&mut bytes, 0).context("read", &path)?;
    bytes.truncate(read);
    Ok(ProducerTable::decode_snapshot(&bytes, max_producers).ok())
}

/// Removes the snapshots that are not in `keep`.
pub(crate) fn remove_unless(place: &Place, keep: impl Fn(Offset) -> bool) -> Result<(), IoError> {
    for offset in list(place)?.into_iter().filter(|offset| !keep(*offset)) {
        place.remove(&place.path(offset, SegmentFile::ProducerSnapshot))?;
    }
    Ok(())
}

/// Takes the batches from `from` up to `end` into the table, and returns the transactions that ended in them.
fn replay(
    segments: &Segments,
    from: Offset,
    end: Offset,
    table: &mut ProducerTable,
) -> Result<Vec<CompletedTransaction>, ReadError> {
    let mut ended = Vec::new();
    for segment in segments.holding(from).iter().filter(|segment| segment.base() < end) {
        let first = match segment.locate(from) {
            Ok(Some(first)) => first,
            // As below: the log keeps the segment, and so does the table what the others tell.
            Ok(None) | Err(ReadError::Corrupt { .. }) => continue,
            Err(error) => return Err(error),
        };
        let file = segment.file()?;
        let mut walk = Walk::new(&*file, first.position, segment.len());
        loop {
            match walk.next_batch().context("read", &segment.path())? {
                Found::Batch(_, batch) if batch.base_offset() >= end => break,
                Found::Batch(_, batch) => ended.extend(table.replicated(&batch)),
                // Damage below the recovery point: what lies behind it in this segment cannot be told. The log keeps
                // the batches; a producer whose last batch is among them is judged by an older one.
                Found::End | Found::Bad(..) => break,
            }
        }
    }
    Ok(ended)
}

/// The producers' state at some offset, as it was put together.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub(crate) producers: ProducerTable,
    /// The transactions that ended in the batches behind the snapshot.
    pub(crate) ended: Vec<CompletedTransaction>,
    /// Newer snapshots that could not be used.
    pub(crate) unusable: Vec<Offset>,
    /// There was no snapshot where one should be: all batches from the first on were taken in.
    pub(crate) without_snapshot: bool,
}

/// The producers' state at `end`, from the newest usable snapshot and the batches after it. Changes nothing.
pub(crate) fn reload(
    place: &Place,
    segments: &Segments,
    end: Offset,
    max_producers: usize,
) -> Result<Reloaded, ReadError> {
    let (mut found, mut unusable) = (None, Vec::new());
    for offset in list(place)?.into_iter().rev().filter(|offset| *offset <= end) {
        found = read(place, offset, max_producers)?.map(|producers| (offset, producers));
        if found.is_some() {
            break;
        }
        unusable.push(offset);
    }
    let first = segments.all().first().map_or(end, |segment| segment.base());
    let without_snapshot = found.is_none() && first < end;
    let (from, mut producers) = found.unwrap_or_else(|| (first, ProducerTable::new(max_producers)));
    let ended = replay(segments, from, end, &mut producers)?;
    Ok(Reloaded { producers, ended, unusable, without_snapshot })
}

/// Removes snapshots that could not be used, and returns how many.
pub(crate) fn remove_unusable(place: &Place, unusable: &[Offset]) -> Result<u32, IoError> {
    for offset in unusable {
        place.remove(&place.path(*offset, SegmentFile::ProducerSnapshot))?;
    }
    Ok(u32::try_from(unusable.len()).unwrap_or(u32::MAX))
}
