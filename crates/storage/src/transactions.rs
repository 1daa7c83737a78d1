//! Transactions as the log knows them: which were aborted, and below which offset all are decided.
//!
//! A marker ends a transaction. What of it is needed later is kept in two places: the aborted ones in the index of the
//! segment that holds the marker, for readers of committed records; and in memory what holds the last stable offset back,
//! which is every transaction that is open, or whose marker may still be cut off. Source: Kafka's `TransactionIndex`,
//! `ProducerStateManager`.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Offset;
use crate::batch::{BatchHeader, BatchView};
use crate::error::ReadError;
use crate::fs::OpenMode;
use crate::index::{AbortedTransaction, IndexError, SealedTransactionIndex, collect_from, encode_transactions};
use crate::io::{IoContext, IoError};
use crate::markers::TransactionMarker;
use crate::names::SegmentFile;
use crate::producers::{CompletedTransaction, MAX_PRODUCERS, ProducerTable};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::snapshots::{self, with_view};
use crate::survey::{Frame, Step, Survey};

/// First offset and marker of transactions that ended, both rising: of two where one begins no later and ends no earlier
/// than the other, the other makes no difference.
type Ended = VecDeque<(Offset, Offset)>;

/// What holds the last stable offset back.
#[derive(Debug)]
pub(crate) struct Undecided {
    first_open: Option<Offset>,
    ended: Option<Box<Ended>>,
    /// Of transactions whose markers lie below this is no longer known where they began.
    known_from: Offset,
}

impl Undecided {
    /// What is known where a log is opened that ends at `end`: of the transactions below where the open ones began, and those
    /// that ended in the batches that were read.
    pub(crate) fn new(first_open: Option<Offset>, ended: &[CompletedTransaction], end: Offset) -> Self {
        let mut undecided = Self { first_open, ended: None, known_from: end };
        ended.iter().for_each(|ended| undecided.end(ended));
        undecided
    }

    /// Takes note of the first offset of the oldest open transaction.
    pub(crate) fn set_first_open(&mut self, first_open: Option<Offset>) {
        self.first_open = first_open;
    }

    /// Takes note of a transaction that ended.
    pub(crate) fn end(&mut self, completed: &CompletedTransaction) {
        let ended = self.ended.get_or_insert_default();
        while ended.back().is_some_and(|(first, _)| *first >= completed.first) {
            ended.pop_back();
        }
        ended.push_back((completed.first, completed.last));
    }

    /// Forgets transactions whose markers are replicated: nothing will cut them off.
    pub(crate) fn release(&mut self, high_watermark: Offset) {
        if let Some(ended) = &mut self.ended {
            while ended.front().is_some_and(|(_, marker)| *marker < high_watermark) {
                ended.pop_front();
            }
        }
        self.known_from = self.known_from.max(high_watermark);
    }

    /// The log was cut: transactions whose markers went are open again, or gone as well.
    pub(crate) fn truncate(&mut self, end: Offset, first_open: Option<Offset>) {
        if let Some(ended) = &mut self.ended {
            while ended.back().is_some_and(|(_, marker)| *marker >= end) {
                ended.pop_back();
            }
        }
        self.first_open = first_open;
        self.known_from = self.known_from.min(end);
    }

    /// Below this it is no longer known where transactions began that have ended.
    pub(crate) fn known_from(&self) -> Offset {
        self.known_from
    }

    /// The first offset of a transaction that is open or whose marker does not lie below the high watermark.
    pub(crate) fn first_unstable(&self, high_watermark: Offset) -> Option<Offset> {
        let ended = self.ended.as_deref().and_then(|ended| {
            let decided = ended.partition_point(|(_, marker)| *marker < high_watermark);
            ended.get(decided).map(|(first, _)| *first)
        });
        [self.first_open, ended].into_iter().flatten().min()
    }
}

/// The aborted transactions whose markers lie in one segment: in memory while it grows, from its file once it is sealed.
#[derive(Debug, Default)]
pub(crate) struct SegmentTransactions {
    aborted: Mutex<Option<Aborted>>,
    /// Its file does not say what is in memory.
    unwritten: AtomicBool,
}

#[derive(Debug)]
enum Aborted {
    Memory(Vec<AbortedTransaction>),
    /// Boxed, for few segments have any.
    File(Box<SealedTransactionIndex>),
}

impl SegmentTransactions {
    fn lock(&self) -> MutexGuard<'_, Option<Aborted>> {
        self.aborted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts entries in place, as of a segment that grows.
    pub(crate) fn set(&self, entries: Vec<AbortedTransaction>) {
        *self.lock() = Some(Aborted::Memory(entries));
    }

    /// Puts those of another segment in place, as far as they are in memory.
    pub(crate) fn set_from(&self, other: &Self) {
        if let Some(Aborted::Memory(entries)) = &*other.lock() {
            self.set(entries.clone());
        }
    }

    /// Adds the entry of a marker that was appended.
    pub(crate) fn append(&self, entry: AbortedTransaction) {
        let mut aborted = self.lock();
        if let Some(Aborted::Memory(entries)) = &mut *aborted {
            entries.push(entry);
        }
    }

    /// The entries, if they are in memory and there are any.
    pub(crate) fn in_memory(&self) -> Option<Arc<[AbortedTransaction]>> {
        match &*self.lock() {
            Some(Aborted::Memory(entries)) if !entries.is_empty() => Some(entries.as_slice().into()),
            _ => None,
        }
    }

    /// Has the entries read from the file when they are next needed.
    pub(crate) fn unload(&self) {
        *self.lock() = None;
    }

    /// Entries that were found to be missing or wrong in the file, until they are written.
    pub(crate) fn rebuilt(&self) -> Option<Arc<[AbortedTransaction]>> {
        if !self.unwritten.load(Ordering::SeqCst) {
            return None;
        }
        match &*self.lock() {
            Some(Aborted::Memory(entries)) => Some(entries.as_slice().into()),
            _ => None,
        }
    }

    /// The entries in memory are in the file now.
    pub(crate) fn rebuilt_written(&self) {
        self.unwritten.store(false, Ordering::SeqCst);
    }

    /// Runs `with` on the entries, after reading them from the file, or from the batches if the file cannot be right.
    fn with<T>(
        &self,
        place: &Place,
        segment: &Segment,
        segments: &Segments,
        end: Offset,
        with: impl FnOnce(&Aborted) -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let mut aborted = self.lock();
        if let Some(aborted) = &*aborted {
            return with(aborted);
        }
        let loaded = match load(place, segment.base(), end)? {
            Some(loaded) if loaded.is_confirmed(segment, segments, end)? => loaded,
            _ => {
                let rebuilt = AbortedBuilder::of_segment(place, segment, segments, end)?.finish();
                self.unwritten.store(true, Ordering::SeqCst);
                place.rebuilt.add(segment.base());
                Aborted::Memory(rebuilt)
            }
        };
        with(aborted.insert(loaded))
    }
}

impl Aborted {
    /// Whether the batches that the entries point to are there: the marker, and the batch that the transaction began with,
    /// unless compaction took that away.
    fn is_confirmed(&self, segment: &Segment, segments: &Segments, end: Offset) -> Result<bool, ReadError> {
        let Self::File(index) = self else { return Ok(true) };
        let path = segment.place().path(segment.base(), SegmentFile::TransactionIndex);
        for entry in index.entries().context("read", &path)? {
            let marker = unless_damaged(segment.locate(entry.last_offset, end))?;
            let is_marker = |header: &BatchHeader| {
                header.is_control()
                    && header.producer_id() == entry.producer_id
                    && header.base_offset() <= entry.last_offset
            };
            if !marker.is_none_or(|marker| marker.is_some_and(|marker| is_marker(&marker.header))) {
                return Ok(false);
            }
            for (offset, of_producer) in
                [(entry.first_offset, Some(entry.producer_id)), (entry.last_stable_offset, None)]
            {
                if offset > entry.last_offset {
                    continue;
                }
                let Some((holding, next)) = segments.holding_with_next(offset).next() else { continue };
                let Some(Some(found)) = unless_damaged(holding.locate(offset, next))? else { continue };
                let header = &found.header;
                let is_gone = header.base_offset() > offset;
                let begins = header.base_offset() == offset
                    && header.is_transactional()
                    && !header.is_control()
                    && of_producer.is_none_or(|producer| producer == header.producer_id());
                if !is_gone && !begins {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// `None` where damage hides what is asked for.
fn unless_damaged<T>(found: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match found {
        Err(ReadError::Corrupt { .. }) => Ok(None),
        found => found.map(Some),
    }
}

/// Reads the index file of a segment. `None` if it cannot be right. A missing one is that of a segment without aborted
/// transactions: Kafka creates it with the first.
fn load(place: &Place, base: Offset, end: Offset) -> Result<Option<Aborted>, IoError> {
    let path = place.path(base, SegmentFile::TransactionIndex);
    let (file, len) = match place.fs.open_with_metadata(&path, OpenMode::Read) {
        Ok((file, metadata)) => (file, metadata.len),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Some(Aborted::Memory(Vec::new()))),
        Err(error) => return Err(error).context("open", &path),
    };
    match SealedTransactionIndex::open(file, len, base, end) {
        Ok(index) => Ok(Some(Aborted::File(Box::new(index)))),
        Err(IndexError::Fault(_)) => Ok(None),
        Err(IndexError::Io(error)) => Err(error).context("read", &path),
    }
}

/// Writes the index file of a segment, durably; without entries there is to be none.
pub(crate) fn write_file(place: &Place, base: Offset, entries: &[AbortedTransaction]) -> Result<(), IoError> {
    let path = place.path(base, SegmentFile::TransactionIndex);
    if !entries.is_empty() {
        return crate::checkpoint::replace_file(&*place.fs, &path, &encode_transactions(entries));
    }
    match place.fs.metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        found => found.context("read metadata of", &path)?,
    };
    place.remove(&path)?;
    place.sync_dir()
}

/// Whether the file holds exactly these entries; without entries, whether there is none.
pub(crate) fn file_matches(place: &Place, base: Offset, entries: &[AbortedTransaction]) -> Result<bool, IoError> {
    let wanted = Some(encode_transactions(entries)).filter(|bytes| !bytes.is_empty());
    Ok(crate::indexes::read_whole(place, base, SegmentFile::TransactionIndex)? == wanted)
}

/// Holds the index of each segment against its batches, from the first segment on. Returns how many were wrong.
pub(crate) fn reconcile_all(segments: &Segments, log_end: Offset) -> Result<u32, ReadError> {
    let mut producers = ProducerTable::new(MAX_PRODUCERS);
    let mut wrong = 0;
    for (segment, end) in segments.with_ends(log_end) {
        let mut builder = AbortedBuilder::new(segment.base(), producers);
        builder.take_all(segment, end)?;
        producers = std::mem::take(&mut builder.producers);
        wrong += u32::from(segment.reconcile_aborted(segments, end, builder)?);
    }
    Ok(wrong)
}

impl Segment {
    /// All aborted transactions whose markers lie in this segment of `segments`, which ends at `end`.
    pub(crate) fn aborted(&self, segments: &Segments, end: Offset) -> Result<Vec<AbortedTransaction>, ReadError> {
        let path = self.place().path(self.base(), SegmentFile::TransactionIndex);
        self.transactions().with(self.place(), self, segments, end, |aborted| match aborted {
            Aborted::Memory(entries) => Ok(entries.clone()),
            Aborted::File(index) => Ok(index.entries().context("read", &path)?),
        })
    }

    /// As [`SealedTransactionIndex::collect`].
    fn collect_aborted(
        &self,
        segments: &Segments,
        end: Offset,
        (from, upper): (Offset, Offset),
        found: &mut Vec<AbortedTransaction>,
    ) -> Result<bool, ReadError> {
        let path = self.place().path(self.base(), SegmentFile::TransactionIndex);
        self.transactions().with(self.place(), self, segments, end, |aborted| match aborted {
            Aborted::Memory(entries) => Ok(collect_from(entries, from, upper, found)),
            Aborted::File(index) => Ok(index.collect(from, upper, found).context("read", &path)?),
        })
    }

    /// As [`Segment::reconcile_aborted`], after reading the batches for it.
    pub(crate) fn reconcile_aborted_by_reading(&self, segments: &Segments, end: Offset) -> Result<bool, ReadError> {
        let read = AbortedBuilder::of_segment(self.place(), self, segments, end)?;
        self.reconcile_aborted(segments, end, read)
    }

    /// Holds the index against the segment's batches, which `read` has taken in from the first to the last. Returns
    /// whether it was wrong; housekeeping writes the right one then.
    pub(crate) fn reconcile_aborted(
        &self,
        segments: &Segments,
        end: Offset,
        read: AbortedBuilder,
    ) -> Result<bool, ReadError> {
        let is_unwritten = || self.transactions().unwritten.load(Ordering::SeqCst);
        let was_unwritten = is_unwritten();
        let known = self.aborted(segments, end)?;
        // Loading it may have found it wrong.
        let Some(right) = read.correction(&known) else { return Ok(is_unwritten() && !was_unwritten) };
        self.transactions().set(right);
        self.transactions().unwritten.store(true, Ordering::SeqCst);
        self.place().rebuilt.add(self.base());
        Ok(true)
    }
}

/// The aborted transactions that reach into the offsets from `from` to below `upper`, by rising marker.
pub(crate) fn collect_between(
    segments: &Segments,
    log_end: Offset,
    from: Offset,
    upper: Offset,
) -> Result<Vec<AbortedTransaction>, ReadError> {
    let mut found = Vec::new();
    if from >= upper {
        return Ok(found);
    }
    let Some(first) = segments.holding(from).next().map(|segment| segment.base()) else { return Ok(found) };
    for (segment, end) in segments.with_ends(log_end).filter(|(segment, _)| segment.base() >= first) {
        if segment.collect_aborted(segments, end, (from, upper), &mut found)? {
            break;
        }
    }
    Ok(found)
}

/// Takes the aborted transactions of a segment from its batches.
#[derive(Debug)]
pub(crate) struct AbortedBuilder {
    producers: ProducerTable,
    entries: Vec<AbortedTransaction>,
    /// Each abort marker, with the offset before which the transaction cannot have begun.
    aborts: Vec<AbortMarker>,
    /// The last marker of each producer.
    last_markers: BTreeMap<i64, Offset>,
    base: Offset,
    /// Damaged stretches, of whose markers the index alone knows.
    unread: Vec<Range<Offset>>,
}

#[derive(Debug)]
struct AbortMarker {
    producer_id: i64,
    at: Offset,
    /// The offset after the producer's marker before it, or the segment's base: as far back as entries are believed that
    /// tell more than the batches.
    after: Offset,
}

impl AbortedBuilder {
    /// To take in the batches from `base` on, where the producers are in this state.
    pub(crate) fn new(base: Offset, producers: ProducerTable) -> Self {
        let (entries, aborts, last_markers) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { producers, entries, aborts, last_markers, base, unread: Vec::new() }
    }

    /// To take in the batches of the segment at `base`: with the producers' state from the newest snapshot at or below
    /// and the batches behind that.
    pub(crate) fn at(place: &Place, segments: &Segments, base: Offset) -> Result<Self, ReadError> {
        // The limit does not matter here: producers in a transaction are not forgotten.
        Ok(Self::new(base, snapshots::reload(place, segments, base, MAX_PRODUCERS)?.producers))
    }

    /// With all batches of the segment taken in, but for damaged ones.
    fn of_segment(place: &Place, segment: &Segment, segments: &Segments, end: Offset) -> Result<Self, ReadError> {
        let mut builder = Self::at(place, segments, segment.base())?;
        builder.take_all(segment, end)?;
        Ok(builder)
    }

    fn take_all(&mut self, segment: &Segment, end: Offset) -> Result<(), ReadError> {
        let file = segment.file()?;
        let frame = Frame::whole(segment.base(), segment.len(), end);
        let mut survey = Survey::new(&*file, frame).passing_over(segment.known_damage().all());
        loop {
            match survey.step().context("read", &segment.path())? {
                Step::Batch(batch) => {
                    with_view(&mut survey, &batch, |batch| self.take(batch)).context("read", &segment.path())?;
                }
                Step::Damage(stretch) => self.unread.push(stretch.offsets),
                Step::Zeros(_) | Step::End => return Ok(()),
            }
        }
    }

    /// Takes in the next batch.
    pub(crate) fn take(&mut self, batch: &BatchView<'_>) {
        let completed = self.producers.replicated(batch);
        self.entries.extend(completed.and_then(|completed| completed.aborted()));
        if let Some(TransactionMarker { producer_id, is_abort, .. }) = TransactionMarker::of(batch) {
            let at = batch.last_offset();
            let before = self.last_markers.insert(producer_id, at);
            if is_abort {
                self.aborts.push(AbortMarker { producer_id, at, after: before.map_or(self.base, Offset::next) });
            }
        }
    }

    /// The entries of the batches taken in.
    pub(crate) fn finish(self) -> Vec<AbortedTransaction> {
        self.entries
    }

    /// What the index should say where it says `known`; `None` if it is right.
    ///
    /// Compaction takes away records of aborted transactions while markers and entries stay, so that an entry may tell
    /// more than the batches: it is believed where its marker is there and nothing in the batches speaks against it.
    fn correction(self, known: &[AbortedTransaction]) -> Option<Vec<AbortedTransaction>> {
        let mut entries = known.iter().copied().peekable();
        let mut built = self.entries.iter().copied().peekable();
        let mut right = Vec::with_capacity(self.entries.len());
        for AbortMarker { producer_id, at, after } in self.aborts {
            while entries.next_if(|entry| entry.last_offset < at).is_some() {}
            let entry = entries.next_if(|entry| entry.last_offset == at && entry.producer_id == producer_id);
            let from_batches = built.next_if(|entry| entry.last_offset == at);
            right.extend(match (entry, from_batches) {
                (Some(entry), None) => Some(entry).filter(|entry| entry.first_offset >= after),
                (Some(entry), Some(from_batches)) => {
                    let first_may_be = entry.first_offset == from_batches.first_offset
                        || (after..from_batches.first_offset).contains(&entry.first_offset);
                    let may_be = first_may_be && entry.last_stable_offset <= from_batches.last_stable_offset;
                    Some(if may_be { entry } else { from_batches })
                }
                (None, from_batches) => from_batches,
            });
        }
        let is_unread =
            |entry: &&AbortedTransaction| self.unread.iter().any(|range| range.contains(&entry.last_offset));
        right.extend(known.iter().filter(is_unread));
        right.sort_unstable_by_key(|entry| entry.last_offset);
        (right != known).then_some(right)
    }
}

#[cfg(test)]
mod tests;
