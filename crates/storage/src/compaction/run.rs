//! One compaction of a log, piece by piece: the keys of the dirty part are put into a map, then the segments from the
//! start to where the map reaches are written anew, group by group, and each group is swapped in when it is complete.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use super::filter::{Filter, LastBatches, Unfilterable, Verdict, check, each_record};
use super::offset_map::OffsetMap;
use super::options::CompactionOptions;
use super::output::{Output, discard};
use super::plan::{Cleanable, Ended, group};
use super::swap::{Swapped, swap};
use super::transactions::{InTransaction, Transactions};
use crate::batch::BatchView;
use crate::error::ReadError;
use crate::flush::JobControl;
use crate::fs::File;
use crate::index::AbortedTransaction;
use crate::io::{IoContext, IoError};
use crate::options::LogOptions;
use crate::reader::Shared;
use crate::scan::{Found, Walk};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::transactions::collect_between;
use crate::{Offset, TimestampMs};

/// A compaction under way.
#[derive(Debug)]
pub(crate) struct Run {
    place: Arc<Place>,
    shared: Arc<Shared>,
    control: Arc<JobControl>,
    log_options: Arc<LogOptions>,
    options: CompactionOptions,
    now: TimestampMs,
    last_batches: LastBatches,
    aborted: Vec<AbortedTransaction>,
    map: OffsetMap,
    /// How far it should come.
    limit: Offset,
    /// Markers of transactions below this are believed.
    decided: Offset,
    stage: Stage,
    totals: Totals,
    given_up: Vec<PathBuf>,
}

#[derive(Debug)]
enum Stage {
    /// Whether there is anything to do, for which all segments are looked at and timestamps read.
    Look(Look),
    /// The keys of these segments go into the map.
    Map {
        dirty: VecDeque<Ended>,
        cursor: Cursor,
        transactions: Transactions,
    },
    /// These are written anew.
    Copy {
        work: VecDeque<Item>,
        group: Option<Copying>,
        transactions: Transactions,
        keep_deletions: bool,
    },
    Done,
}

#[derive(Debug)]
enum Item {
    Group(Vec<Ended>),
    /// A segment that stays as it is, because of a batch that cannot be compacted.
    LeftOut,
}

/// A group that is being written.
#[derive(Debug)]
struct Copying {
    old: Vec<Ended>,
    /// Which segment, and where in it.
    at: usize,
    cursor: Cursor,
    outputs: Vec<Output>,
    /// Whether the outcome differs from the segments there are.
    is_changed: bool,
    /// As they were before the group.
    transactions: Transactions,
}

/// How far a segment has been gone through. The default is its beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    position: u64,
    /// The offset after the last batch.
    next: Option<Offset>,
}

impl Cursor {
    /// Passes the batch at `position`.
    ///
    /// # Errors
    /// If its offsets are not among those that its segment has left. Neither base offset nor order is covered by a checksum: a
    /// batch that claimed offsets of other segments would have these taken for compacted.
    fn pass(&mut self, position: u64, batch: &BatchView<'_>, (segment, end): &Ended) -> Result<(), Unfilterable> {
        self.position = position + batch.bytes().len() as u64;
        let (first, next) = (batch.base_offset(), batch.next_offset());
        let from = self.next.unwrap_or_else(|| segment.base());
        if from <= first && first < next && next <= *end {
            self.next = Some(next);
            return Ok(());
        }
        Err(Unfilterable::Offsets { first, next, from, end: *end })
    }
}

/// What a compaction came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) bytes_before: u64,
    pub(crate) bytes_after: u64,
    pub(crate) segments_left_out: u32,
}

/// What is to be looked at.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) segments: Arc<Segments>,
    /// The end of the log.
    pub(crate) end: Offset,
    /// Everything below is compacted.
    pub(crate) first_dirty: Offset,
    /// Segments above are not to be touched.
    pub(crate) limit: Offset,
    /// A pass before has left some.
    pub(crate) forced: bool,
}

/// What a piece of it came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// There is more.
    Going,
    /// There was nothing to do, or too little, or others have the memory for it.
    Idle { first_dirty: Offset, limit: Offset, memory_wanted: Option<u64> },
    /// Everything below `upto` is compacted; if that is below `limit`, there were more keys than the map could take.
    Finished { upto: Offset, limit: Offset, totals: Totals },
    /// The log has changed in a way that makes it void.
    Superseded,
}

/// Why a piece stopped before its end.
enum Stop {
    Superseded,
    Unfilterable(Unfilterable),
    Io(IoError),
}

impl From<IoError> for Stop {
    fn from(error: IoError) -> Self {
        Self::Io(error)
    }
}

impl From<Unfilterable> for Stop {
    fn from(what: Unfilterable) -> Self {
        Self::Unfilterable(what)
    }
}

impl From<ReadError> for Stop {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) if error.kind() != std::io::ErrorKind::NotFound => Self::Io(error),
            ReadError::Corrupt { what, .. } => Self::Unfilterable(Unfilterable::Records(what.to_string())),
            // A segment left the log.
            _ => Self::Superseded,
        }
    }
}

/// The data file of a segment that is compacted. It may have been closed meanwhile, and then have left the log.
fn open(segment: &Segment) -> Result<Arc<dyn File>, Stop> {
    segment.file().map_err(|error| ReadError::Io(error).into())
}

/// What the writer gives a compaction on its way.
pub(crate) struct Begin {
    pub(crate) place: Arc<Place>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) control: Arc<JobControl>,
    pub(crate) log_options: Arc<LogOptions>,
    pub(crate) options: CompactionOptions,
    pub(crate) now: TimestampMs,
    pub(crate) last_batches: LastBatches,
    pub(crate) look: Look,
    /// Below this all has been replicated and flushed, markers of transactions too.
    pub(crate) decided: Offset,
}

impl Run {
    pub(crate) fn new(begin: Begin) -> Self {
        let Begin { place, shared, control, log_options, options, now, last_batches, look, decided } = begin;
        let (totals, given_up, aborted) = (Totals::default(), Vec::new(), Vec::new());
        let (limit, map) = (look.first_dirty, OffsetMap::without_room(look.first_dirty));
        let stage = Stage::Look(look);
        Self {
            place,
            shared,
            control,
            log_options,
            options,
            now,
            last_batches,
            aborted,
            map,
            limit,
            decided,
            stage,
            totals,
            given_up,
        }
    }

    /// Whether a truncation has taken records that it went by, or markers.
    pub(crate) fn is_void(&self) -> bool {
        self.control.lowest_end() < self.relied_on()
    }

    fn relied_on(&self) -> Offset {
        self.decided.max(self.limit).max(self.map.end())
    }

    /// Files that were given up since this was last asked, for removal after a while.
    pub(crate) fn take_given_up(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.given_up)
    }

    /// Does the next piece: reads so many bytes at most, or to the end of a group.
    ///
    /// # Errors
    /// If a file operation failed: the compaction is over then, what it has swapped in stays.
    pub(crate) fn advance(&mut self) -> Result<Progress, IoError> {
        let mut left = self.options.piece_bytes;
        loop {
            let outcome = match &self.stage {
                Stage::Look(_) => self.look(),
                Stage::Map { .. } => self.fill_map(&mut left),
                Stage::Copy { .. } => self.copy(&mut left),
                Stage::Done => Ok(Some(Progress::Superseded)),
            };
            let ended = match outcome {
                Ok(None) if left > 0 => continue,
                Ok(None) => return Ok(Progress::Going),
                Ok(Some(Progress::Going)) => return Ok(Progress::Going),
                Ok(Some(progress)) => Ok(progress),
                Err(Stop::Superseded) => Ok(Progress::Superseded),
                Err(Stop::Io(error)) => Err(error),
                Err(Stop::Unfilterable(what)) => unreachable!("a segment is left out where that is found: {what}"),
            };
            self.abandon();
            return ended;
        }
    }

    fn look(&mut self) -> Result<Option<Progress>, Stop> {
        let Stage::Look(Look { segments, end, first_dirty, limit, forced }) = &self.stage else { return Ok(None) };
        let (first_dirty, limit) = (*first_dirty, *limit);
        let idle = |memory_wanted| Ok(Some(Progress::Idle { first_dirty, limit, memory_wanted }));
        let mut cleanable = Cleanable::of(segments.with_ends(*end), first_dirty, limit);
        if !forced && !cleanable.is_worth_it(&self.options) && self.options.max_compaction_lag_ms == i64::MAX {
            return idle(None);
        }
        cleanable.leave_young(self.now, &self.options)?;
        let wanted =
            *forced || cleanable.is_worth_it(&self.options) || cleanable.is_overdue(self.now, &self.options)?;
        let Some(limit) = cleanable.end().filter(|_| wanted) else { return idle(None) };
        let bytes = OffsetMap::bytes_for(u64::try_from(limit - first_dirty).unwrap_or(0));
        let Some(memory) = self.options.memory.take(bytes) else { return idle(Some(bytes)) };
        self.map = OffsetMap::new(memory, first_dirty);
        let dirty = cleanable.dirty.into();
        self.limit = limit;
        let segments = self.shared.segments();
        let start = segments.first().map_or(limit, |segment| segment.base());
        self.aborted = collect_between(&segments, self.shared.end(), start, limit)?;
        let transactions = Transactions::new(self.aborted.clone());
        self.stage = Stage::Map { dirty, cursor: Cursor::default(), transactions };
        Ok(None)
    }

    fn fill_map(&mut self, left: &mut u64) -> Result<Option<Progress>, Stop> {
        let Stage::Map { dirty, cursor, transactions } = &mut self.stage else { return Ok(None) };
        let Some(ended) = dirty.front().cloned() else {
            self.stage = self.begin_copy()?;
            return Ok(None);
        };
        let (segment, end) = &ended;
        let file = open(segment)?;
        let mut walk = Walk::with_window(&*file, cursor.position, segment.len(), self.options.io_buffer_bytes as usize);
        while *left > 0 {
            match walk.next_batch().context("read", &segment.path())? {
                Found::Batch(at, batch) => {
                    *left = left.saturating_sub(batch.bytes().len() as u64);
                    let passed = cursor.pass(at, &batch, &ended);
                    match passed.and_then(|()| note_keys(&mut self.map, transactions, &batch)) {
                        Ok(true) => {}
                        Ok(false) => {
                            dirty.clear();
                            return Ok(None);
                        }
                        // The segment will be left out, and what it says of its keys with it.
                        Err(_) => break,
                    }
                }
                Found::End | Found::Bad(..) => break,
            }
            if *left == 0 {
                return Ok(None);
            }
        }
        self.map.advance(*end);
        dirty.pop_front();
        *cursor = Cursor::default();
        Ok(None)
    }

    fn begin_copy(&self) -> Result<Stage, Stop> {
        let segments = self.shared.segments();
        let wanted = segments.with_ends(self.shared.end()).take_while(|(segment, _)| segment.base() < self.map.end());
        let wanted: Vec<Ended> = wanted.map(|(segment, end)| (segment.clone(), end)).collect();
        let groups = group(wanted, u64::from(self.log_options.segment_bytes));
        let work = groups.into_iter().map(Item::Group).collect();
        let transactions = Transactions::new(self.aborted.clone());
        Ok(Stage::Copy { work, group: None, transactions, keep_deletions: false })
    }

    fn copy(&mut self, left: &mut u64) -> Result<Option<Progress>, Stop> {
        let Stage::Copy { work, group, transactions, keep_deletions } = &mut self.stage else { return Ok(None) };
        if group.is_none() {
            match work.pop_front() {
                Some(Item::Group(old)) => *group = Some(Copying::new(old, transactions.clone())),
                Some(Item::LeftOut) => *keep_deletions = true,
                None => {
                    let (upto, limit, totals) = (self.map.end(), self.limit, self.totals);
                    return Ok(Some(Progress::Finished { upto, limit, totals }));
                }
            }
        }
        let Some(copying) = group else { return Ok(None) };
        let filter = Filter {
            map: &self.map,
            last_batches: &self.last_batches,
            now: self.now,
            delete_retention_ms: self.options.delete_retention_ms,
            keep_deletions: *keep_deletions,
        };
        let context = Context { place: &self.place, log_options: &self.log_options, options: &self.options };
        match copying.advance(&filter, transactions, &context, left) {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(Stop::Unfilterable(_)) => {
                // What comes before and after the segment is compacted without it.
                copying.discard(&self.place);
                *transactions = copying.transactions.clone();
                let after = copying.old.split_off((copying.at + 1).min(copying.old.len()));
                copying.old.truncate(copying.at);
                let before = std::mem::take(&mut copying.old);
                let rest = [Item::Group(before), Item::LeftOut, Item::Group(after)];
                for item in rest.into_iter().rev().filter(|item| !matches!(item, Item::Group(old) if old.is_empty())) {
                    work.push_front(item);
                }
                self.totals.segments_left_out += 1;
                *group = None;
                return Ok(None);
            }
            Err(stop) => return Err(stop),
        }
        let Some(copied) = group.take() else { return Ok(None) };
        self.swap_in(copied)?;
        Ok(Some(Progress::Going))
    }

    /// Puts a complete group in place of what it was made from.
    fn swap_in(&mut self, copied: Copying) -> Result<(), Stop> {
        let before = copied.old.iter().map(|(segment, _)| segment.len()).sum::<u64>();
        let after = copied.outputs.iter().map(Output::len).sum::<u64>();
        self.totals.bytes_before += before;
        if !copied.is_changed {
            copied.discard(&self.place);
            self.totals.bytes_after += before;
            return Ok(());
        }
        self.totals.bytes_after += after;
        let Copying { old, outputs, .. } = copied;
        let bases: Vec<Offset> = outputs.iter().map(Output::base).collect();
        let swapped = outputs
            .into_iter()
            .map(Output::finish)
            .collect::<Result<Vec<_>, IoError>>()
            .and_then(|cleaned| swap(&self.place, &self.shared, &self.control, self.relied_on(), &old, &cleaned));
        match swapped {
            Ok(Swapped::Done(given_up)) => {
                self.given_up.extend(given_up);
                Ok(())
            }
            Ok(Swapped::Superseded) => {
                discard(&self.place, bases);
                Err(Stop::Superseded)
            }
            Err(error) => {
                // Where the log was closed, names of complete segments may be left, or come back in a power cut: it takes
                // the incomplete one before them for the opening to give them up, and not to put them beside the old ones.
                if self.shared.usable().is_ok() {
                    discard(&self.place, bases);
                }
                Err(error.into())
            }
        }
    }

    /// Removes what is not complete.
    fn abandon(&mut self) {
        if let Stage::Copy { group: Some(copying), .. } = std::mem::replace(&mut self.stage, Stage::Done) {
            copying.discard(&self.place);
        }
    }
}

struct Context<'r> {
    place: &'r Arc<Place>,
    log_options: &'r LogOptions,
    options: &'r CompactionOptions,
}

impl Copying {
    fn new(old: Vec<Ended>, transactions: Transactions) -> Self {
        let is_changed = old.len() > 1;
        Self { old, at: 0, cursor: Cursor::default(), outputs: Vec::new(), is_changed, transactions }
    }

    fn discard(&self, place: &Place) {
        discard(place, self.outputs.iter().map(Output::base));
    }

    /// Copies on. True if the group is complete.
    fn advance(
        &mut self,
        filter: &Filter<'_>,
        transactions: &mut Transactions,
        context: &Context<'_>,
        left: &mut u64,
    ) -> Result<bool, Stop> {
        let last_with_batches = self.old.iter().rposition(|(segment, _)| segment.len() > 0);
        while let Some(ended) = self.old.get(self.at).cloned() {
            let segment = &ended.0;
            let (file, len) = (open(segment)?, segment.len());
            let mut walk =
                Walk::with_window(&*file, self.cursor.position, len, context.options.io_buffer_bytes as usize);
            loop {
                if *left == 0 {
                    return Ok(false);
                }
                match walk.next_batch().context("read", &segment.path())? {
                    Found::Batch(position, batch) => {
                        *left = left.saturating_sub(batch.bytes().len() as u64);
                        self.cursor.pass(position, &batch, &ended)?;
                        // So that the offsets it covers are known: the next segment begins where this one ends.
                        let is_last = last_with_batches == Some(self.at) && self.cursor.position == len;
                        let judged = filter.judge(&batch, transactions, is_last)?;
                        self.is_changed |= judged.verdict != Verdict::Keep;
                        match judged.verdict {
                            Verdict::Drop => {}
                            Verdict::Keep => self.add(&batch, judged.aborted, context)?,
                            Verdict::Replace(bytes) => {
                                let (batch, _) =
                                    BatchView::parse(&bytes).map_err(|error| Unfilterable::Batch(error.what))?;
                                self.add(&batch, judged.aborted, context)?;
                            }
                        }
                    }
                    Found::End => break,
                    Found::Bad(_, fault) => return Err(Unfilterable::Batch(fault).into()),
                }
            }
            (self.at, self.cursor) = (self.at + 1, Cursor::default());
        }
        Ok(true)
    }

    fn add(
        &mut self,
        batch: &BatchView<'_>,
        aborted: Option<AbortedTransaction>,
        context: &Context<'_>,
    ) -> Result<(), Stop> {
        let base = match (self.outputs.last(), self.old.first()) {
            (Some(output), _) if !output.is_full_for(batch, context.log_options) => None,
            (Some(output), _) => Some(output.end()),
            (None, first) => first.map(|(segment, _)| segment.base()),
        };
        if let Some(base) = base {
            let pending_max = context.options.io_buffer_bytes as usize;
            self.outputs.push(Output::create(context.place, base, pending_max)?);
        }
        if let Some(output) = self.outputs.last_mut() {
            output.add(batch)?;
            if let Some(aborted) = aborted {
                output.add_aborted(aborted);
            }
        }
        Ok(())
    }
}

/// Puts the keys of a batch into the map. False if they did not all fit.
fn note_keys(
    map: &mut OffsetMap,
    transactions: &mut Transactions,
    batch: &BatchView<'_>,
) -> Result<bool, Unfilterable> {
    check(batch)?;
    let start = map.end();
    if transactions.pass(batch) == InTransaction::Data && batch.last_offset() >= start {
        let mut full_at = None;
        each_record(batch, |seen| {
            let offset = batch.base_offset() + i64::from(seen.offset_delta);
            let fits = offset < start || seen.key.is_none_or(|key| map.put(key, offset));
            full_at = if fits { None } else { Some(offset) };
            fits
        })?;
        if let Some(offset) = full_at {
            map.advance(offset);
            return Ok(false);
        }
    }
    map.advance(batch.next_offset());
    Ok(true)
}
