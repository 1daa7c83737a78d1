//! The files that keep idempotent producers' state across restarts, and the replay of what they do not cover.

use std::io;

use crate::Offset;
use crate::batch::BatchView;
use crate::checkpoint::{read_small_file, replace_file};
use crate::error::ReadError;
use crate::fs::OpenMode;
use crate::io::{FileExt, IoContext, IoError};
use crate::log::is_out_of_room;
use crate::names::{SegmentFile, SegmentFileName, SegmentFileState};
use crate::producers::{CompletedTransaction, ProducerTable};
use crate::segment::{Located, Place};
use crate::segments::Segments;
use crate::survey::{Frame, Sound, Step, Survey};

/// 100,000 producers take under 5 MB; a file above this is none of ours or Kafka's, and is not read into memory.
pub(crate) const SNAPSHOT_BYTES_MAX: u64 = 256 << 20;

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

pub(crate) fn read(place: &Place, offset: Offset, max_producers: usize) -> Result<Option<ProducerTable>, IoError> {
    let path = place.path(offset, SegmentFile::ProducerSnapshot);
    let (file, len) = match place.fs.open_with_metadata(&path, OpenMode::Read) {
        Ok((file, metadata)) => (file, metadata.len),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("open", &path),
    };
    let Some(len) = usize::try_from(len).ok().filter(|_| len <= SNAPSHOT_BYTES_MAX) else { return Ok(None) };
    let mut bytes = vec![0; len];
    let read = file.read_full_at(&mut bytes, 0).context("read", &path)?;
    bytes.truncate(read);
    let table = ProducerTable::decode_snapshot(&bytes, max_producers).ok();
    // One that knows of later batches was taken elsewhere, and got this name.
    Ok(table.filter(|table| table.is_below(offset)))
}

/// Writes a snapshot, durably, if its file does not say the same already. On a full disk there is none: retention makes
/// the room that is missing, and is not to wait for it.
pub(crate) fn write_unless_there(place: &Place, at: Offset, snapshot: &[u8]) -> Result<(), IoError> {
    if says(place, at, snapshot)? {
        return Ok(());
    }
    let path = place.path(at, SegmentFile::ProducerSnapshot);
    match replace_file(&*place.fs, &path, snapshot) {
        Err(error) if is_out_of_room(&error) => Ok(()),
        written => written,
    }
}

/// Whether the snapshot at `at` has these bytes.
pub(crate) fn says(place: &Place, at: Offset, snapshot: &[u8]) -> Result<bool, IoError> {
    let path = place.path(at, SegmentFile::ProducerSnapshot);
    Ok(read_small_file(&*place.fs, &path, SNAPSHOT_BYTES_MAX)?.as_deref() == Some(snapshot))
}

/// Removes the snapshots that are not in `keep`.
pub(crate) fn remove_unless(place: &Place, keep: impl Fn(Offset) -> bool) -> Result<(), IoError> {
    remove_of(place, list(place)?, keep)
}

/// Removes those of the `known` snapshots that are not in `keep`.
pub(crate) fn remove_of(place: &Place, known: Vec<Offset>, keep: impl Fn(Offset) -> bool) -> Result<(), IoError> {
    for offset in known.into_iter().filter(|offset| !keep(*offset)) {
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
    if from >= end {
        return Ok(ended);
    }
    for (segment, next) in segments.holding_with_next(from).take_while(|(segment, _)| segment.base() < end) {
        let first = segment.locate_where(from, next, |header| header.last_offset() >= from)?;
        let Some(Located { position, .. }) = first else { continue };
        let file = segment.file()?;
        let frame = Frame { position, ..Frame::whole(segment.base(), segment.len(), next) };
        let mut survey = Survey::new(&*file, frame).passing_over(segment.known_damage().all());
        loop {
            match survey.step().context("read", &segment.path())? {
                Step::Batch(batch) if batch.header.base_offset() >= end => break,
                Step::Batch(batch) => {
                    ended.extend(take_in(&mut survey, &batch, table).context("read", &segment.path())?);
                }
                // A producer whose last batch is in it is judged by an older one.
                Step::Damage(_) => {}
                Step::Zeros(_) | Step::End => break,
            }
        }
    }
    Ok(ended)
}

/// Takes a batch that a survey came upon into the table. Returns the transaction that it ended.
pub(crate) fn take_in(
    survey: &mut Survey<'_>,
    batch: &Sound,
    table: &mut ProducerTable,
) -> io::Result<Option<CompletedTransaction>> {
    Ok(with_view(survey, batch, |view| table.replicated(view))?.flatten())
}

/// Shows a batch that a survey came upon, if it may concern a producer and its checksum is right: producer ids and
/// sequence numbers that have rotted would refuse a producer that did nothing wrong.
pub(crate) fn with_view<T>(
    survey: &mut Survey<'_>,
    batch: &Sound,
    take: impl FnOnce(&BatchView<'_>) -> T,
) -> io::Result<Option<T>> {
    // Only the batches of idempotent producers leave a trace: the records of the others need not be read.
    if batch.header.producer_id() < 0 {
        return Ok(None);
    }
    let bytes = survey.bytes_of(batch)?;
    let put_right;
    let bytes = if batch.fixes.is_empty() {
        bytes
    } else {
        put_right = batch.put_right(bytes);
        &put_right
    };
    Ok(match BatchView::parse(bytes) {
        Ok((view, _)) if view.crc_matches() => Some(take(&view)),
        _ => None,
    })
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
    reload_from(place, &list(place)?, segments, end, max_producers)
}

/// As [`reload`], where the snapshots in the directory are `known`, by rising offset.
pub(crate) fn reload_from(
    place: &Place,
    known: &[Offset],
    segments: &Segments,
    end: Offset,
    max_producers: usize,
) -> Result<Reloaded, ReadError> {
    let (mut found, mut unusable) = (None, Vec::new());
    for &offset in known.iter().rev().filter(|offset| **offset <= end) {
        found = read(place, offset, max_producers)?.map(|producers| (offset, producers));
        if found.is_some() {
            break;
        }
        unusable.push(offset);
    }
    let first = segments.first().map_or(end, |segment| segment.base());
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
