//! Opening a log: what is in its directory, what of it can be trusted, and what is done about the rest.
//!
//! After a clean close the tail of the last segment is read and nothing else. Otherwise every batch from the recovery
//! point on is read and its checksum verified; at the first that is not whole, or does not follow the one before, the
//! log is cut. Nothing below the recovery point is touched or doubted, save where no batch can be made out at all in the
//! segment it lies in.

mod report;

use std::collections::BTreeSet;
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use crate::batch::BatchFault;
use crate::checkpoint::{self, CheckpointError};
use crate::compaction::Compactor;
use crate::data_dir::OpenHints;
use crate::epochs::EpochHistory;
use crate::error::{DamageKind, OpenError, ReadError};
use crate::flush::Sealed;
use crate::indexes::{IndexWriter, Indexes, MemoryIndexes};
use crate::io::{IoContext, IoError};
use crate::log::{Active, EPOCHS_FILE, Log, is_out_of_room, write_epochs};
use crate::metadata_files::{MetadataFileError, read_topic_id};
use crate::names::SegmentFile;
use crate::options::LogOptions;
use crate::producers::{CompletedTransaction, ProducerTable};
use crate::reader::Shared;
use crate::scan::{Found, Walk};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::snapshots;
use crate::state_file::{LogState, StateFile};
use crate::tidy::{Tidied, tidy};
use crate::transactions::{self, Undecided};
use crate::truncation::{remove_index_files, remove_segments, resume};
use crate::{LeaderEpoch, Offset, TopicId};

pub use report::{Cut, CutReason, PutAside, RecoveryReport, Repaired, RepairedField};

/// Opens the log in a directory that is there.
pub(crate) fn open(place: Place, options: LogOptions, hints: OpenHints) -> Result<(Log, RecoveryReport), OpenError> {
    let state = StateFile::load(&place)?;
    let topic_id = match read_topic_id(&*place.fs, &place.dir) {
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
    let tidied = tidy(&place)?;
    let mut opening = Opening::new(place, options, tidied)?;
    opening.run(&state, hints)?;
    let (mut log, report) = opening.into_log(state, topic_id)?;
    // Past the end it is of a history that was lost: nothing is known to be compacted.
    log.compactor = Compactor::new(hints.cleaner_offset.filter(|offset| *offset <= log.end()).unwrap_or(Offset::ZERO));
    Ok((log, report))
}

/// A log being opened.
struct Opening {
    place: Place,
    options: LogOptions,
    report: RecoveryReport,
    segments: Vec<Arc<Segment>>,
    /// Segments without index files.
    unindexed: Vec<Offset>,
    epochs: Option<EpochHistory>,
    epochs_on_disk: Option<EpochHistory>,
    producers: ProducerTable,
    /// Transactions that ended in the batches that were read.
    ended: Vec<CompletedTransaction>,
    start: Offset,
    end: Offset,
    recovery_point: Offset,
    /// Segments whose index files could not be written.
    unwritten: Vec<Sealed>,
    active: Option<Active>,
}

/// What a scan of the tail of a segment found.
struct Tail {
    active: Active,
    end: Offset,
}

impl Opening {
    fn new(place: Place, options: LogOptions, tidied: Tidied) -> Result<Self, OpenError> {
        let mut segments = Vec::with_capacity(tidied.segments.len());
        let mut unindexed = Vec::new();
        for (base, kinds) in &tidied.segments {
            let path = place.path(*base, SegmentFile::Log);
            let len = place.fs.metadata(&path).context("read metadata of", &path)?.len;
            segments.push(Arc::new(Segment::new(place.clone(), *base, len)));
            if [SegmentFile::OffsetIndex, SegmentFile::TimeIndex].iter().any(|kind| !kinds.contains(kind)) {
                unindexed.push(*base);
            }
        }
        let report =
            RecoveryReport { leftovers: tidied.leftovers, ignored: tidied.ignored, ..RecoveryReport::default() };
        Ok(Self {
            producers: ProducerTable::new(options.max_producer_ids),
            place,
            options,
            report,
            segments,
            unindexed,
            epochs: None,
            epochs_on_disk: None,
            ended: Vec::new(),
            start: Offset::ZERO,
            end: Offset::ZERO,
            recovery_point: Offset::ZERO,
            unwritten: Vec::new(),
            active: None,
        })
    }

    /// A state file of ours beats the root's hints, which may be older; without one they serve.
    fn run(&mut self, state: &StateFile, hints: OpenHints) -> Result<(), OpenError> {
        let was_clean = hints.clean == Some(true);
        // We mark the root after the logs. A root that was closed well around a log that was not is another program's:
        // it recovered the log, and may have removed segments and left gaps since.
        let passed_on = was_clean && state.last().is_some_and(|known| !known.clean);
        let log_start = |state: &StateFile| {
            let hinted = hints.log_start.unwrap_or(Offset::ZERO).max(Offset::ZERO);
            let known = state.last().map(|known| known.log_start);
            known.map_or(hinted, |known| if passed_on { known.max(hinted) } else { known })
        };
        self.read_epochs()?;
        let Some(first) = self.segments.first().map(|segment| segment.base()) else {
            self.report.clean = true;
            return self.start_empty(log_start(state));
        };
        if let Some(known) = state.last()
            && !known.clean
            && !passed_on
            && first > known.log_start.max(known.recovery_point)
        {
            // The start is recorded before segments go, so this one never was the first: those before it were being
            // removed as well, and a power cut has brought this one back.
            return self.start_over(known.log_start, CutReason::LostTail { expected: known.log_start, found: first });
        }
        let mut tail = None;
        if state.last().map_or(was_clean, |known| known.clean) {
            tail = self.read_tail()?;
        }
        if let (Some(tail), Some(known)) = (&tail, state.last())
            && known.clean
            && known.end != tail.end
        {
            // It says "closed at N" about a log that ends elsewhere: another program was the last to write here.
            state.disown();
        }
        let is_clean = state.last().map_or(was_clean, |known| known.clean);
        match tail.filter(|_| is_clean) {
            Some(Tail { active, end }) => {
                self.report.clean = true;
                (self.end, self.recovery_point) = (end, end);
                self.rebuild_missing_indexes(self.segments.len().saturating_sub(1))?;
                self.rebuild_missing_epochs(self.segments.len())?;
                self.load_producers()?;
                self.load_active_transactions()?;
                self.active = Some(active);
            }
            None => {
                // Of the segments below the log start some may be left of those that were being removed: the gaps between
                // them are no lost tails.
                let known = state.last().map(|known| known.recovery_point.max(known.log_start));
                self.recovery_point = known.or(hints.recovery_point).unwrap_or(first).max(first);
                // A log that we wrote has no gaps between segments; one of Kafka's may.
                self.scan(known.is_some() && !passed_on)?;
            }
        }
        let log_start = log_start(state);
        if self.end < log_start {
            return self.start_over(log_start, CutReason::BelowLogStart { log_start });
        }
        self.start = log_start.max(first);
        Ok(())
    }

    /// Makes the first segment of a log that has none.
    fn start_empty(&mut self, base: Offset) -> Result<(), OpenError> {
        let segment = Arc::new(Segment::new(self.place.clone(), base, 0));
        segment.create_file()?;
        self.place.sync_dir()?;
        self.active = Some(Active::new(segment.clone(), &self.options));
        self.segments = vec![segment];
        (self.start, self.end, self.recovery_point) = (base, base, base);
        self.producers.clear();
        self.report.created = true;
        Ok(())
    }

    /// Nothing of what is there belongs to the log any more: it goes on at its start, so that no offset is given twice.
    fn start_over(&mut self, log_start: Offset, reason: CutReason) -> Result<(), OpenError> {
        let removed = std::mem::take(&mut self.segments);
        let bytes = removed.iter().map(|segment| segment.len()).sum();
        remove_segments(&self.place, &removed)?;
        self.start_empty(log_start)?;
        if let Some(segment) = self.segments.first() {
            self.report.cut = Some(Cut {
                file: segment.path(),
                at: 0,
                bytes,
                segments: u32::try_from(removed.len()).unwrap_or(u32::MAX),
                end: log_start,
                reason,
            });
        }
        Ok(())
    }

    fn read_epochs(&mut self) -> Result<(), OpenError> {
        let path = self.place.dir.join(EPOCHS_FILE);
        let is_there = match self.place.fs.metadata(&path) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).context("read metadata of", &path)?,
        };
        let entries = match checkpoint::read_epochs(&*self.place.fs, &path) {
            Ok(entries) => EpochHistory::from_entries(entries).ok(),
            Err(CheckpointError::Malformed { .. }) => None,
            Err(CheckpointError::Io(error)) => return Err(error.into()),
        };
        self.epochs_on_disk = entries.filter(|_| is_there);
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

    /// Reads the end of the last segment. `None` unless whole batches fill it to its last byte.
    fn read_tail(&mut self) -> Result<Option<Tail>, OpenError> {
        let Some(segment) = self.segments.last().cloned() else { return Ok(None) };
        let (base, len) = (segment.base(), segment.len());
        let file = segment.file()?;
        let mut indexes = Arc::new(MemoryIndexes::new(base));
        if let Some(loaded) = MemoryIndexes::load(&self.place, base, len)? {
            let loaded = Arc::new(loaded);
            if segment.confirms_last_time(&Indexes::Memory(loaded.clone())).map_err(unread)? {
                indexes = loaded;
            }
        }
        let mut from = 0;
        if let Some(last) = indexes.offsets.last() {
            from = u64::from(last.position);
            let pointed_at = Walk::small(&*file, from, len).next_header().context("read", &segment.path())?;
            if !matches!(pointed_at, Found::Batch(_, header) if (base..=last.offset).contains(&header.base_offset())) {
                from = 0;
            }
        }
        let mut writer = IndexWriter::resume(indexes, base, len, self.options.index_interval_bytes);
        if from == 0 {
            // Without an entry to begin at, the entries are made on the way.
            writer = IndexWriter::new(base, self.options.index_interval_bytes);
        }
        let mut end = base;
        let mut walk = Walk::new(&*file, from, len);
        loop {
            match walk.next_header().context("read", &segment.path())? {
                Found::Batch(position, header) => {
                    if header.base_offset() < end || header.last_offset() < header.base_offset() {
                        return Ok(None);
                    }
                    if from == 0 {
                        writer.add(position, &header)
                    } else {
                        writer.note(&header)
                    }
                    end = header.next_offset();
                }
                Found::End => break,
                Found::Bad(..) => return Ok(None),
            }
        }
        let active = resume(&segment, writer.indexes().clone(), len, &self.options).map_err(unread)?;
        publish(&active);
        Ok(Some(Tail { active, end }))
    }

    /// Reads every batch from the recovery point's segment on, and cuts at the first that does not belong.
    fn scan(&mut self, contiguous: bool) -> Result<(), OpenError> {
        let floor = self.segments.partition_point(|segment| segment.base() <= self.recovery_point).saturating_sub(1);
        let Some(base) = self.segments.get(floor).map(|segment| segment.base()) else { return Ok(()) };
        self.report.recovery_point = self.recovery_point;
        self.rebuild_missing_indexes(floor)?;
        self.load_producers_at(base, floor)?;
        // What the file says from here on may be another history's: the batches tell.
        if let Some(epochs) = &mut self.epochs {
            epochs.truncate_from_end(self.recovery_point);
        }
        self.rebuild_missing_epochs(floor)?;
        let mut expected = base;
        let mut behind_gap = self.recovery_point;
        let mut at = floor;
        while let Some(segment) = self.segments.get(at).cloned() {
            if segment.base() < expected || (contiguous && segment.base() != expected) {
                let reason = CutReason::LostTail { expected, found: segment.base() };
                let last = self.segments.get(at.saturating_sub(1)).cloned();
                if let Some(last) = last {
                    self.cut(at, &last, last.len(), expected, reason)?;
                }
                break;
            }
            if segment.base() > expected {
                (expected, behind_gap) = (segment.base(), segment.base());
            }
            let scanned = self.scan_segment(&segment, &mut expected)?;
            if let Some((position, reason)) = scanned {
                self.cut(at + 1, &segment, position, expected, reason)?;
                break;
            }
            at += 1;
        }
        self.end = expected;
        self.sync_scanned(floor)?;
        self.write_scanned_indexes(floor)?;
        if let Some(last) = self.segments.last() {
            let Indexes::Memory(indexes) = last.indexes().map_err(unread)? else { unreachable!("set by the scan") };
            self.active = Some(resume(last, indexes, last.len(), &self.options).map_err(unread)?);
        }
        // All of it is synced by now. Were the point to stay before a gap, the next recovery would take that, in a log of
        // ours, for a lost tail.
        self.recovery_point = self.recovery_point.max(behind_gap).min(self.end);
        Ok(())
    }

    /// Reads one segment. Returns where and why it has to be cut, if it has to.
    fn scan_segment(
        &mut self,
        segment: &Arc<Segment>,
        expected: &mut Offset,
    ) -> Result<Option<(u64, CutReason)>, OpenError> {
        let (base, len, path) = (segment.base(), segment.len(), segment.path());
        let file = segment.file()?;
        let mut writer = IndexWriter::new(base, self.options.index_interval_bytes);
        let mut aborted = Vec::new();
        let mut walk = Walk::new(&*file, 0, len);
        self.report.segments_scanned += 1;
        let stopped = loop {
            match walk.next_batch().context("read", &path)? {
                Found::Batch(position, batch) => {
                    let header = *batch.header();
                    let (first, last) = (header.base_offset(), header.last_offset());
                    if first < *expected || last < first || last - base > i64::from(i32::MAX) || last == Offset::MAX {
                        let what = DamageKind::Offsets { first, last, expected: *expected };
                        break Some((position, CutReason::Damage(what)));
                    }
                    if last >= self.recovery_point
                        && let Err(fault) = batch.verify_crc()
                    {
                        break Some((position, CutReason::Damage(fault.into())));
                    }
                    let completed = self.producers.replicated(&batch);
                    aborted.extend(completed.and_then(|completed| completed.aborted()));
                    self.ended.extend(completed);
                    if let Some(epochs) = &mut self.epochs
                        && header.leader_epoch() > epochs.latest()
                    {
                        epochs.assign(header.leader_epoch(), first);
                    }
                    writer.add(position, &header);
                    *expected = header.next_offset();
                }
                Found::End => break None,
                Found::Bad(position, fault) => {
                    let zeros = matches!(fault, BatchFault::Length(0) | BatchFault::Partial { .. })
                        && walk.only_zeros_left().context("read", &path)?;
                    let reason = if zeros { CutReason::Zeros } else { CutReason::Damage(fault.into()) };
                    break Some((position, reason));
                }
            }
        };
        writer.finish();
        self.report.bytes_scanned += stopped.as_ref().map_or(len, |(position, _)| *position);
        segment.publish(segment.len(), writer.largest_timestamp());
        segment.set_indexes(Indexes::Memory(writer.indexes().clone()));
        segment.transactions().set(aborted);
        Ok(stopped)
    }

    /// Ends the log at `position` of `last`, and removes the segments from the one with index `from` on.
    fn cut(
        &mut self,
        from: usize,
        last: &Arc<Segment>,
        position: u64,
        end: Offset,
        reason: CutReason,
    ) -> Result<(), OpenError> {
        let removed = self.segments.split_off(from.min(self.segments.len()));
        let bytes = last.len() - position + removed.iter().map(|segment| segment.len()).sum::<u64>();
        remove_segments(&self.place, &removed)?;
        let mut last = last.clone();
        if position < last.len() {
            let (indexes, largest) = (last.indexes().map_err(unread)?, last.largest_timestamp().map_err(unread)?);
            if let Some(own) = last.with_own_file(position)? {
                own.take_name()?;
                own.set_indexes(indexes);
                last = own;
                if let Some(kept) = self.segments.last_mut() {
                    *kept = last.clone();
                }
            } else {
                last.file()?.set_len(position).context("cut", &last.path())?;
            }
            last.publish(position, largest);
        }
        let segments = u32::try_from(removed.len()).unwrap_or(u32::MAX);
        self.report.cut = Some(Cut { file: last.path(), at: position, bytes, segments, end, reason });
        Ok(())
    }

    /// Makes durable what the scan found, and what it and the process before it cut off or removed. What is read now may
    /// be in memory only: a power cut after the next append could bring an old tail back behind it.
    fn sync_scanned(&self, floor: usize) -> Result<(), OpenError> {
        // The last one grows again, and when it is sealed these would be believed, or even missed by the rebuild.
        if let Some(last) = self.segments.last() {
            remove_index_files(&self.place, last.base())?;
        }
        for segment in self.segments.iter().skip(floor) {
            segment.file()?.sync_data().context("sync", &segment.path())?;
        }
        self.place.sync_dir()?;
        Ok(())
    }

    /// Writes the index files of the sealed segments that were scanned, where they are not what the batches say.
    fn write_scanned_indexes(&mut self, floor: usize) -> Result<(), OpenError> {
        let last = self.segments.len().saturating_sub(1);
        for (at, segment) in self.segments.iter().enumerate().take(last).skip(floor) {
            let Indexes::Memory(indexes) = segment.indexes().map_err(unread)? else { continue };
            let (base, aborted) = (segment.base(), segment.transactions().in_memory());
            let entries = aborted.as_deref().unwrap_or_default();
            if !IndexWriter::files_match(&self.place, base, &indexes)?
                || !transactions::file_matches(&self.place, base, entries)?
            {
                self.report.indexes_rebuilt += 1;
                let written = IndexWriter::write_files(&self.place, base, &indexes);
                match written.and_then(|()| transactions::write_file(&self.place, base, entries)) {
                    // A log on a full disk can be read. The files are for the next checkpoint to write.
                    Err(error) if is_out_of_room(&error) => {
                        let end = self.segments.get(at + 1).map_or(self.end, |next| next.base());
                        let (segment, indexes, aborted) = (segment.clone(), Some(indexes), Some(entries.into()));
                        self.unwritten.push(Sealed { segment, file: None, end, indexes, aborted, snapshot: None });
                        continue;
                    }
                    written => written?,
                }
            }
            segment.transactions().unload();
            segment.unload_indexes();
        }
        Ok(())
    }

    /// Builds the indexes of those of the first `upto` segments that have none.
    fn rebuild_missing_indexes(&mut self, upto: usize) -> Result<(), OpenError> {
        for segment in self.segments.iter().take(upto) {
            if segment.len() == 0 || !self.unindexed.contains(&segment.base()) {
                continue;
            }
            let Indexes::Memory(indexes) = segment.indexes().map_err(unread)? else { continue };
            self.report.indexes_rebuilt += 1;
            match IndexWriter::write_files(&self.place, segment.base(), &indexes) {
                Err(error) if is_out_of_room(&error) => {} // For housekeeping, then.
                written => {
                    written?;
                    segment.rebuilt_indexes_written();
                }
            }
        }
        Ok(())
    }

    /// The producers' state at the end of a log that was closed well.
    fn load_producers(&mut self) -> Result<(), OpenError> {
        let segments = Segments::new(self.segments.clone());
        if self.load_producers_from(&segments, self.end)? {
            // All batches were read, for every close leaves a snapshot: what else went with it shows in them.
            let wrong = transactions::reconcile_all(&segments, self.end).map_err(unread)?;
            self.report.indexes_rebuilt += wrong;
        }
        Ok(())
    }

    /// The producers' state where the scan begins; the scan takes in the rest.
    fn load_producers_at(&mut self, base: Offset, floor: usize) -> Result<(), OpenError> {
        let below = Segments::new(self.segments.iter().take(floor).cloned().collect());
        self.load_producers_from(&below, base)?;
        Ok(())
    }

    /// Returns whether there was no snapshot where one should be.
    fn load_producers_from(&mut self, segments: &Segments, at: Offset) -> Result<bool, OpenError> {
        let reloaded = snapshots::reload(&self.place, segments, at, self.options.max_producer_ids).map_err(unread)?;
        self.report.snapshots_removed += snapshots::remove_unusable(&self.place, &reloaded.unusable)?;
        self.report.producers_rebuilt |= reloaded.without_snapshot;
        (self.producers, self.ended) = (reloaded.producers, reloaded.ended);
        Ok(reloaded.without_snapshot)
    }

    /// Has the aborted transactions of the segment that grows on in memory.
    fn load_active_transactions(&mut self) -> Result<(), OpenError> {
        let segments = Segments::new(self.segments.clone());
        let Some(segment) = self.segments.last() else { return Ok(()) };
        let entries = segment.aborted(&segments, self.end).map_err(unread)?;
        if segment.transactions().rebuilt().is_some() {
            self.report.indexes_rebuilt += 1;
            match transactions::write_file(&self.place, segment.base(), &entries) {
                Err(error) if is_out_of_room(&error) => {} // At the next close, or when it is sealed.
                written => written?,
            }
        }
        segment.transactions().set(entries);
        Ok(())
    }

    /// Takes the leader epochs of the segments before `upto` from their batches, if their file does not tell.
    fn rebuild_missing_epochs(&mut self, upto: usize) -> Result<(), OpenError> {
        if self.epochs.is_some() {
            return Ok(());
        }
        let mut epochs = EpochHistory::new();
        for segment in self.segments.iter().take(upto) {
            let file = segment.file()?;
            let mut walk = Walk::new(&*file, 0, segment.len());
            while let Found::Batch(_, header) = walk.next_header().context("read", &segment.path())? {
                if header.leader_epoch() > epochs.latest() {
                    epochs.assign(header.leader_epoch(), header.base_offset());
                }
            }
        }
        self.report.epochs_rebuilt = self.segments.iter().any(|segment| segment.len() > 0);
        self.epochs = Some(epochs);
        Ok(())
    }

    fn into_log(mut self, state: StateFile, topic_id: TopicId) -> Result<(Log, RecoveryReport), OpenError> {
        let Some(active) = self.active.take() else { unreachable!("every way to open a log ends with a segment") };
        let mut epochs = self.epochs.take().unwrap_or_default();
        epochs.truncate_from_end(self.end);
        epochs.truncate_from_start(self.start);
        // A new log has no epochs and needs no file that says so.
        let none_needed = self.report.created && epochs.is_empty() && self.epochs_on_disk.is_none();
        let mut epochs_written = none_needed || self.epochs_on_disk.as_ref() == Some(&epochs);
        if self.report.epochs_rebuilt {
            epochs_written = match write_epochs(&self.place, epochs.entries()) {
                Err(error) if is_out_of_room(&error) => false,
                written => written.map(|()| true)?,
            };
        }
        let known = snapshots::list(&self.place)?;
        let past_end = known.iter().filter(|offset| **offset > self.end).count();
        // A snapshot serves where a truncation or a scan may begin: at a segment's base, and at the end. Each clean close
        // leaves one at its end, which the next makes superfluous.
        let latest = known.iter().copied().filter(|offset| *offset <= self.end).max();
        let bases: BTreeSet<Offset> = self.segments.iter().map(|segment| segment.base()).collect();
        snapshots::remove_unless(&self.place, |offset| Some(offset) == latest || bases.contains(&offset))?;
        self.report.snapshots_removed += u32::try_from(past_end).unwrap_or(u32::MAX);

        // Before the first append: a recovery point, or a clean flag, above what is left of the log would make the next
        // recovery trust what is appended from now on unread. And before anybody is told the start: what the state file
        // says may itself be in memory only.
        if !self.report.clean && state.last().is_some() {
            state.forget_durability();
            let (log_start, recovery_point, end) = (self.start, self.recovery_point, self.end);
            // Either the last stop was clean, or the scan synced it.
            let mark = Some(active.mark(end));
            let found = LogState { clean: false, sync_failed: false, log_start, recovery_point, end, topic_id, mark };
            state.record(&self.place, found)?;
        }
        // A log that nobody uses holds no file open.
        state.release();
        for segment in &self.segments {
            segment.release_file();
        }

        self.report.start = self.start;
        self.report.end = self.end;
        self.report.segments = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let segments = Segments::new(self.segments);
        let undecided = Undecided::new(self.producers.first_open_transaction(), &self.ended);
        let shared = Shared::new(segments, epochs.entries(), undecided, (self.start, self.end));
        // Either the last stop was clean, or the scan synced it.
        shared.set_flushed(self.end);
        let log = Log {
            place: self.place,
            options: self.options,
            shared: Arc::new(shared),
            state: Arc::new(state),
            active,
            directory_changes: 0,
            sealed: self.unwritten,
            epochs,
            producers: self.producers,
            recovery_point: self.recovery_point,
            directory_synced: 0,
            side_files: Arc::new(Mutex::new(())),
            epochs_version: 1,
            epochs_written: u64::from(epochs_written),
            topic_id,
            jobs: Vec::new(),
            copies: Vec::new(),
            compactor: Compactor::default(),
            unlinks: VecDeque::new(),
            work: Weak::new(),
            failed_work: Vec::new(),
            unsynced_since: None,
            producers_looked_at: None,
            lock: None,
        };
        Ok((log, self.report))
    }
}

/// Publishes what a tail scan found.
fn publish(active: &Active) {
    active.segment.set_indexes(Indexes::Memory(active.indexes.indexes().clone()));
    active.segment.publish(active.len, active.indexes.largest_timestamp());
}

/// A read error while a log is opened.
fn unread(error: ReadError) -> OpenError {
    match error {
        ReadError::Io(error) => OpenError::Io(error),
        ReadError::Corrupt { segment, position, what, .. } => OpenError::Io(IoError {
            verb: "make out batches in",
            path: segment,
            source: io::Error::new(io::ErrorKind::InvalidData, format!("byte {position}: {what}")),
        }),
        other => OpenError::Io(IoError {
            verb: "read",
            path: PathBuf::new(),
            source: io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        }),
    }
}
