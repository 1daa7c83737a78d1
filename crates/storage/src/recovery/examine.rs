//! Reading what is in a log's directory, to find out where the log begins and ends and what is wrong with it.

use std::sync::Arc;

use super::plan::{Plan, Repair};
use super::report::{Cut, CutReason, RecoveryReport};
use super::trust::Trust;
use super::unread;
use crate::batch::BatchFault;
use crate::checkpoint::{self, CheckpointError};
use crate::data_dir::OpenHints;
use crate::epochs::EpochHistory;
use crate::error::{DamageKind, OpenError};
use crate::flush::Sealed;
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::IoContext;
use crate::log::{Active, EPOCHS_FILE};
use crate::names::{SegmentFile, SegmentFileName};
use crate::options::LogOptions;
use crate::producers::{CompletedTransaction, ProducerTable};
use crate::scan::{Found, Walk};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::snapshots;
use crate::state_file::{FlushMark, StateFile};
use crate::survey::{Frame, Sound, Step, Stretch, Survey};
use crate::tidy::Tidied;
use crate::transactions;
use crate::truncation::resume;
use crate::{LeaderEpoch, Offset};

/// A log that is being opened, as far as it was examined.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) place: Arc<Place>,
    pub(super) options: Arc<LogOptions>,
    pub(super) report: RecoveryReport,
    pub(super) plan: Plan,
    /// What stays, with the length that stays.
    pub(super) segments: Vec<Arc<Segment>>,
    /// The offsets of the producers' snapshots, rising, while nothing of the plan is done that changes them.
    pub(super) snapshots: Option<Vec<Offset>>,
    /// Segments without index files.
    pub(super) unindexed: Vec<Offset>,
    /// Something in the directory has the name of the last segment's aborted transactions.
    last_has_aborted: bool,
    pub(super) epochs: Option<EpochHistory>,
    pub(super) epochs_on_disk: Option<EpochHistory>,
    pub(super) producers: ProducerTable,
    /// Transactions that ended in the batches that were read.
    pub(super) ended: Vec<CompletedTransaction>,
    pub(super) start: Offset,
    pub(super) end: Offset,
    pub(super) recovery_point: Offset,
    /// Segments whose index files could not be written.
    pub(super) unwritten: Vec<Sealed>,
    pub(super) active: Option<Active>,
    /// The index files of the segment that grows say what its batches do.
    pub(super) is_active_indexed: bool,
}

/// What the tail of a segment tells.
struct Tail {
    active: Active,
    end: Offset,
    /// What is wrong in it, if it is the tail of what was closed.
    rotten: Vec<Stretch>,
    repairs: Vec<Repair>,
}

impl Examined {
    pub(super) fn new(place: Arc<Place>, options: Arc<LogOptions>, tidied: Tidied) -> Result<Self, OpenError> {
        let mut segments = Vec::with_capacity(tidied.segments.len());
        let mut unindexed = Vec::new();
        let last = tidied.segments.last_key_value().map(|(base, _)| *base);
        let last_has_aborted = tidied.segments.last_key_value().is_some_and(|(base, kinds)| {
            let kind = SegmentFile::TransactionIndex;
            // What has its name and is no file is refused by who opens it.
            let ignored = || tidied.ignored.iter().filter_map(|name| SegmentFileName::parse(name));
            kinds.contains(&kind) || ignored().any(|name| (name.base_offset, name.kind) == (*base, kind))
        });
        for (base, kinds) in &tidied.segments {
            let waits_for_swap = place.read_only && tidied.swapped.contains(base);
            let found = if Some(*base) == last { Segment::found_open } else { Segment::found };
            segments.push(Arc::new(found(place.clone(), *base, waits_for_swap)?));
            if [SegmentFile::OffsetIndex, SegmentFile::TimeIndex].iter().any(|kind| !kinds.contains(kind)) {
                unindexed.push(*base);
            }
        }
        let report =
            RecoveryReport { leftovers: tidied.leftovers, ignored: tidied.ignored, ..RecoveryReport::default() };
        Ok(Self {
            producers: ProducerTable::new(options.max_producer_ids),
            ended: Vec::new(),
            place,
            options,
            report,
            plan: Plan::default(),
            segments,
            snapshots: Some(tidied.snapshots),
            unindexed,
            last_has_aborted,
            epochs: None,
            epochs_on_disk: None,
            start: Offset::ZERO,
            end: Offset::ZERO,
            recovery_point: Offset::ZERO,
            unwritten: Vec::new(),
            active: None,
            is_active_indexed: false,
        })
    }

    /// A state file of ours beats the root's hints, which may be older; without one they serve.
    pub(super) fn run(&mut self, state: &StateFile, hints: OpenHints) -> Result<(), OpenError> {
        // A segment holds 2^31 offsets. A recovery point that none of them can be is not this log's.
        let reach = self.last_base().map(|base| base + i64::from(i32::MAX) + 1);
        let recovery_point = hints.recovery_point.filter(|point| reach.is_none_or(|reach| *point <= reach));
        let hints = OpenHints { recovery_point, ..hints };
        let known = state.last();
        self.examine(state, hints)?;
        self.note_missing(known, hints);
        Ok(())
    }

    fn examine(&mut self, state: &StateFile, hints: OpenHints) -> Result<(), OpenError> {
        let was_clean = hints.clean == Some(true);
        let mark = state.last().and_then(|known| known.mark);
        let mark = mark.filter(|_| !self.segments.is_empty());
        if let Some(mark) = &mark {
            let log_start = state.last().map_or(Offset::ZERO, |known| known.log_start);
            self.report.foreign_mark = !self.mark_fits(mark, log_start)?;
        }
        let mark = mark.filter(|_| !self.report.foreign_mark);
        // We mark the root after the logs. A root that was closed well around a log that was not is another program's:
        // it recovered the log, and may have removed segments and left gaps since. So may one have done that left
        // something else where our batches were.
        let recovered = was_clean && state.last().is_some_and(|known| !known.clean);
        let passed_on = recovered || self.report.foreign_mark;
        let log_start = |state: &StateFile| {
            let hinted = hints.log_start.unwrap_or(Offset::ZERO).max(Offset::ZERO);
            let known = state.last().map(|known| known.log_start);
            known.map_or(hinted, |known| if passed_on { known.max(hinted) } else { known })
        };
        self.read_epochs()?;
        let Some(first) = self.segments.first().map(|segment| segment.base()) else {
            self.report.clean = true;
            self.start_empty(log_start(state))?;
            return Ok(());
        };
        if let Some(known) = state.last()
            && !known.clean
            && !passed_on
            && first > known.log_start.max(known.recovery_point)
            && mark.is_none_or(|mark| mark.offset <= first)
        {
            // The start is recorded before segments go, and the mark lowered, so this one never was the first: those before
            // it were being removed as well, and a power cut has brought this one back.
            self.start_over(known.log_start, CutReason::LostTail { expected: known.log_start, found: first }, false)?;
            return Ok(());
        }
        let closed = state.last();
        let mut tail = None;
        if state.last().map_or(was_clean, |known| known.clean && (was_clean || !self.report.foreign_mark)) {
            let known_end = state.last().map(|known| known.end).or(hints.recovery_point);
            tail = self.read_tail(known_end, mark.as_ref())?;
        }
        if let (Some(tail), Some(known)) = (&tail, state.last())
            && known.clean
            && known.end != tail.end
        {
            // It says "closed at N" about a log that ends elsewhere: another program was the last to write here.
            state.disown();
        }
        let is_clean = match (state.last(), &tail) {
            // What is read may not be on the disk.
            _ if state.had_sync_failed() => false,
            (Some(known), _) => known.clean,
            (None, None) => was_clean,
            // The root's marker is about the log that ends where its recovery point says; without one, not about what is
            // left of ours.
            (None, Some(tail)) => {
                let went_on = closed.is_none_or(|closed| closed.end < tail.end);
                was_clean && hints.recovery_point.map_or(went_on, |point| point <= tail.end)
            }
        };
        match tail.filter(|_| is_clean) {
            Some(Tail { active, end, rotten, repairs }) => {
                for stretch in rotten {
                    self.note_rot(&active.segment, stretch);
                }
                self.plan.repairs.extend(repairs);
                self.report.clean = true;
                (self.end, self.recovery_point, self.report.flushed) = (end, end, end);
                self.rebuild_missing_indexes(self.segments.len().saturating_sub(1))?;
                self.rebuild_missing_epochs(self.segments.len())?;
                if !self.last_has_aborted {
                    // As reading the file that is not there would say.
                    active.segment.transactions().set(Vec::new());
                }
                self.load_producers()?;
                self.load_active_transactions()?;
                self.active = Some(active);
            }
            None => {
                // What is known may be of the time before another program wrote here.
                let own = state.last().filter(|_| !self.report.foreign_mark);
                // Of the segments below the log start some may be left of those that were being removed: the gaps between
                // them are no lost tails.
                let known = own.map(|known| known.recovery_point.max(known.log_start));
                self.recovery_point = known.or(hints.recovery_point).unwrap_or(first).max(first);
                // The log start may have moved past what was synced. Who closed the root well has synced what is in it.
                let synced = match own {
                    Some(own) if was_clean => own.recovery_point.max(hints.recovery_point.unwrap_or(Offset::ZERO)),
                    Some(own) => own.recovery_point,
                    // Where nobody knows, it is the segments that tell: one is synced when the next is begun, by Kafka
                    // soon after. Were that wrong for a batch, it would cost that batch, which nobody promised to keep.
                    None => hints.recovery_point.unwrap_or_else(|| self.last_base().unwrap_or(first)),
                };
                let is_guess = own.is_none() && hints.recovery_point.is_none();
                let sync_failed = state.had_sync_failed();
                // A log that we wrote has no gaps between segments; one of Kafka's may.
                let contiguous = known.is_some() && !passed_on;
                // The epochs are written before the recovery point moves, not before the log start does.
                let epochs_upto = synced.min(self.recovery_point);
                let trust = Trust::new(mark, state.is_whole(), synced, is_guess);
                self.scan(trust, epochs_upto, contiguous, sync_failed)?;
            }
        }
        let log_start = log_start(state);
        if self.end < log_start {
            // Whose records they are that lie below is known only if the start was recorded here.
            let is_recorded = !self.report.foreign_mark && state.last().is_some_and(|own| own.log_start == log_start);
            self.start_over(log_start, CutReason::BelowLogStart { log_start }, !is_recorded)?;
            return Ok(());
        }
        self.start = log_start.max(first);
        Ok(())
    }

    /// Makes the first segment of a log that has none.
    fn start_empty(&mut self, base: Offset) -> Result<(), OpenError> {
        let segment = Arc::new(Segment::new(self.place.clone(), base, 0));
        self.active = Some(Active::empty(segment.clone(), &self.options));
        segment.transactions().set(Vec::new());
        self.segments = vec![segment];
        (self.start, self.end, self.recovery_point) = (base, base, base);
        // What is known of the producers right there still holds; what was known further below may be outdated.
        let known = snapshots::read(&self.place, base, self.options.max_producer_ids)?;
        self.producers = known.unwrap_or_else(|| ProducerTable::new(self.options.max_producer_ids));
        self.ended.clear();
        self.report.created = true;
        self.plan.creates = true;
        Ok(())
    }

    /// Nothing of what is there belongs to the log any more: it goes on at its start, so that no offset is given twice.
    /// `keeps`: the intact batches that go are put aside.
    fn start_over(&mut self, log_start: Offset, reason: CutReason, keeps: bool) -> Result<(), OpenError> {
        let removed = std::mem::take(&mut self.segments);
        if keeps {
            for segment in &removed {
                self.put_all_aside(segment)?;
            }
        }
        let bytes = removed.iter().map(|segment| segment.len()).sum();
        let segments = u32::try_from(removed.len()).unwrap_or(u32::MAX);
        self.plan = Plan {
            unusable_snapshots: std::mem::take(&mut self.plan.unusable_snapshots),
            aside: std::mem::take(&mut self.plan.aside),
            removed: [removed, std::mem::take(&mut self.plan.removed)].concat(),
            ..Plan::default()
        };
        self.start_empty(log_start)?;
        if let Some(segment) = self.segments.first() {
            self.report.cut = Some(Cut { file: segment.path(), at: 0, bytes, segments, end: log_start, reason });
        }
        Ok(())
    }

    fn read_epochs(&mut self) -> Result<(), OpenError> {
        let path = self.place.dir.join(EPOCHS_FILE);
        self.epochs_on_disk = match checkpoint::read_epochs_if_there(&*self.place.fs, &path) {
            Ok(entries) => entries.and_then(|entries| EpochHistory::from_entries(entries).ok()),
            Err(CheckpointError::Malformed { .. }) => None,
            Err(CheckpointError::Io(error)) => return Err(error.into()),
        };
        self.epochs = self.epochs_on_disk.clone();
        // A file that was emptied reads as an empty history, which no log with batches of a leader has.
        if self.epochs.as_ref().is_some_and(EpochHistory::is_empty) && self.first_epoch()?.is_some() {
            self.epochs = None;
        }
        Ok(())
    }

    /// The epoch of the first batch there is.
    fn first_epoch(&self) -> Result<LeaderEpoch, OpenError> {
        let Some(segment) = self.segments.iter().find(|segment| segment.len() > 0) else {
            return Ok(LeaderEpoch::NONE);
        };
        let file = segment.file()?;
        match Walk::small(&*file, 0, segment.len()).next_header().context("read", &segment.path())? {
            Found::Batch(_, header) => Ok(header.leader_epoch()),
            Found::End | Found::Bad(..) => Ok(LeaderEpoch::NONE),
        }
    }

    /// Reads the end of the last segment of a log that was closed well, at `known_end` if that is known. What is damaged
    /// in it has rotted since. `None` if it cannot be what was closed: if its end is torn, or only zeros.
    fn read_tail(&mut self, known_end: Option<Offset>, mark: Option<&FlushMark>) -> Result<Option<Tail>, OpenError> {
        let Some(segment) = self.segments.last().cloned() else { return Ok(None) };
        let (base, len) = (segment.base(), segment.len());
        // Where the file ends at the mark, nobody has appended since: what is behind the last batch tells where it belongs.
        let limit = mark.filter(|mark| (mark.segment_base, mark.position) == (base, len) && len > 0);
        let limit = limit.map_or(Offset::MAX, |mark| mark.offset);
        let file = segment.file()?;
        let mut indexes = Arc::new(MemoryIndexes::new(base));
        if let Some(loaded) = MemoryIndexes::load(&self.place, base, len)? {
            let loaded = Arc::new(loaded);
            if segment.confirms_last_time(&Indexes::Memory(loaded.clone())).map_err(unread)? {
                indexes = loaded;
                self.is_active_indexed = true;
            }
        }
        let mut from = 0;
        if let Some(last) = indexes.offsets.last() {
            from = u64::from(last.position);
            let pointed_at = Walk::small(&*file, from, len).next_header().context("read", &segment.path())?;
            if !matches!(pointed_at, Found::Batch(_, header) if (base..=last.offset).contains(&header.base_offset())) {
                (from, self.is_active_indexed) = (0, false);
            }
        }
        let mut writer = IndexWriter::resume(indexes, base, len, self.options.index_interval_bytes);
        if from == 0 {
            // Without an entry to begin at, the entries are made on the way.
            writer = IndexWriter::new(base, self.options.index_interval_bytes);
        }
        let epochs = self.epochs.clone();
        // What was appended after the close that is known may be of epochs that were not written yet.
        let epochs_upto = known_end.unwrap_or(Offset::MAX);
        let frame = Frame {
            position: from,
            epochs: epochs.as_ref().map(|epochs| (epochs, epochs_upto)),
            ..Frame::whole(base, len, limit)
        };
        // Behind an entry there is little left.
        let frame = if from > 0 { frame.small() } else { frame };
        let mut survey = Survey::new(&*file, frame);
        let mut end = base;
        let mut rotten = Vec::new();
        let mut repairs = Vec::new();
        loop {
            match survey.step().context("read", &segment.path())? {
                Step::Batch(batch) => {
                    if from == 0 {
                        writer.add(batch.position, &batch.header)
                    } else {
                        writer.note(&batch.header)
                    }
                    end = batch.header.next_offset();
                    if !batch.fixes.is_empty() {
                        repairs.push(Repair { base, batch });
                    }
                }
                Step::Damage(mut stretch) => {
                    if stretch.position + stretch.bytes == len {
                        // Nothing behind it tells how many records it held.
                        let Some(known) = known_end.filter(|known| *known > end) else { return Ok(None) };
                        if matches!(stretch.what, DamageKind::Batch(BatchFault::Partial { .. })) {
                            return Ok(None);
                        }
                        stretch.offsets.end = known;
                    }
                    end = stretch.offsets.end;
                    rotten.push(stretch);
                }
                Step::Zeros(_) => return Ok(None),
                Step::End => break,
            }
        }
        let active = resume(&segment, writer.indexes().clone(), len, &self.options).map_err(unread)?;
        active.share_indexes();
        active.publish();
        Ok(Some(Tail { active, end, rotten, repairs }))
    }

    /// Damage where no torn write can be.
    pub(super) fn note_rot(&mut self, segment: &Segment, stretch: Stretch) {
        let damaged = segment.damage(stretch);
        self.report.rotten.push(damaged.clone());
        segment.note_damage(damaged);
    }

    /// What is wrong with a batch that stays.
    pub(super) fn note_batch(&mut self, segment: &Segment, batch: &Sound) {
        if batch.doubtful_epoch {
            let header = &batch.header;
            self.report.rotten.push(segment.damage(Stretch {
                position: batch.position,
                bytes: header.total_bytes() as u64,
                offsets: header.base_offset()..header.next_offset(),
                what: DamageKind::LeaderEpoch(header.leader_epoch()),
            }));
        }
        if !batch.fixes.is_empty() {
            self.plan.repairs.push(Repair { base: segment.base(), batch: batch.clone() });
        }
    }

    /// Builds the indexes of those of the first `upto` segments that have none.
    pub(super) fn rebuild_missing_indexes(&mut self, upto: usize) -> Result<(), OpenError> {
        let segments = Segments::new(&self.segments);
        for (segment, end) in segments.with_ends(Offset::MAX).take(upto) {
            if segment.len() == 0 || !self.unindexed.contains(&segment.base()) {
                continue;
            }
            // A crash may have come before its side files were written.
            segment.reconcile_aborted_by_reading(&segments, end).map_err(unread)?;
            if let Indexes::Memory(_) = segment.indexes().map_err(unread)? {
                self.report.indexes_rebuilt += 1;
                self.plan.unindexed.push(segment.clone());
            }
        }
        Ok(())
    }

    /// The producers' state at the end of a log that was closed well.
    fn load_producers(&mut self) -> Result<(), OpenError> {
        let segments = Segments::new(&self.segments);
        if self.load_producers_from(&segments, self.end)? {
            // Every close leaves a snapshot, so all batches were read: what else went with it shows in them.
            self.report.indexes_rebuilt += transactions::reconcile_all(&segments, self.end).map_err(unread)?;
            self.plan.write_producers = true;
        }
        Ok(())
    }

    /// The producers' state where the scan begins; the scan takes in the rest.
    pub(super) fn load_producers_at(&mut self, base: Offset, floor: usize) -> Result<(), OpenError> {
        let below = Segments::new(self.segments.get(..floor).unwrap_or_default());
        self.load_producers_from(&below, base)?;
        if floor > 0 {
            self.plan_snapshot(base)?;
        }
        Ok(())
    }

    /// Has a snapshot written at the base of a segment, if there is none that says the same: the batches before may be
    /// retired before there is another.
    pub(super) fn plan_snapshot(&mut self, base: Offset) -> Result<(), OpenError> {
        let snapshot = self.producers.encode_snapshot();
        if !snapshots::says(&self.place, base, &snapshot)? {
            self.plan.snapshots.push((base, snapshot));
        }
        Ok(())
    }

    /// Returns whether there was no snapshot where one should be.
    fn load_producers_from(&mut self, segments: &Segments, at: Offset) -> Result<bool, OpenError> {
        let max_producers = self.options.max_producer_ids;
        let reloaded = match &self.snapshots {
            Some(known) => snapshots::reload_from(&self.place, known, segments, at, max_producers),
            None => snapshots::reload(&self.place, segments, at, max_producers),
        };
        let reloaded = reloaded.map_err(unread)?;
        self.plan.unusable_snapshots.extend(&reloaded.unusable);
        self.report.producers_rebuilt |= reloaded.without_snapshot;
        (self.producers, self.ended) = (reloaded.producers, reloaded.ended);
        Ok(reloaded.without_snapshot)
    }

    /// Has the aborted transactions of the segment that grows on in memory.
    fn load_active_transactions(&mut self) -> Result<(), OpenError> {
        let segments = Segments::new(&self.segments);
        let Some(segment) = self.segments.last() else { return Ok(()) };
        let entries = segment.aborted(&segments, self.end).map_err(unread)?;
        if segment.transactions().rebuilt().is_some() {
            self.report.indexes_rebuilt += 1;
            self.plan.write_active_transactions = true;
        }
        segment.transactions().set(entries);
        Ok(())
    }

    /// Takes the leader epochs of the segments before `upto` from their batches, if their file does not tell.
    pub(super) fn rebuild_missing_epochs(&mut self, upto: usize) -> Result<(), OpenError> {
        if self.epochs.is_some() {
            return Ok(());
        }
        let mut epochs = EpochHistory::new();
        let segments = Segments::new(&self.segments);
        for (segment, next) in segments.holding_with_next(Offset::ZERO).take(upto) {
            let file = segment.file()?;
            let frame = Frame { epoch: epochs.latest(), ..Frame::whole(segment.base(), segment.len(), next) };
            let mut survey = Survey::new(&*file, frame).passing_over(segment.known_damage().all());
            loop {
                match survey.step().context("read", &segment.path())? {
                    Step::Batch(batch) => take_epoch(&mut epochs, &batch),
                    Step::Damage(_) => {}
                    Step::Zeros(_) | Step::End => break,
                }
            }
        }
        self.report.epochs_rebuilt = self.segments.iter().any(|segment| segment.len() > 0);
        self.epochs = Some(epochs);
        Ok(())
    }
}

/// Takes a batch's epoch into a history, if it can be right.
pub(super) fn take_epoch(epochs: &mut EpochHistory, batch: &Sound) {
    let epoch = batch.header.leader_epoch();
    if epoch > epochs.latest() && !batch.doubtful_epoch {
        epochs.assign(epoch, batch.header.base_offset());
    }
}
