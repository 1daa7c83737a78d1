//! Carrying out what an examined log needs, in an order that a crash at any point survives.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::aside::SideFiles;
use super::examine::Examined;
use super::plan::Repair;
use super::report::RecoveryReport;
use super::unread;
use crate::error::OpenError;
use crate::flush::Sealed;
use crate::indexes::{IndexWriter, Indexes};
use crate::io::{FileExt, IoContext};
use crate::log::{Active, Log, is_out_of_room, write_epochs};
use crate::on_demand::OnDemand;
use crate::reader::Shared;
use crate::segment::Segment;
use crate::segments::Segments;
use crate::snapshots;
use crate::state_file::{LogState, StateFile};
use crate::transactions::{self, Undecided};
use crate::truncation::{remove_all_index_files, remove_segments};
use crate::{Offset, TopicId};

impl Examined {
    /// Makes the directory what the plan says, and a log of it.
    pub(super) fn apply(mut self, state: StateFile, topic_id: TopicId) -> Result<(Log, RecoveryReport), OpenError> {
        if self.plan.changes_snapshots() {
            self.snapshots = None;
        }
        if let Err(error) = self.change() {
            if let OpenError::Io(error) = &error
                && error.is_failed_sync()
            {
                // The next opening would find what this one lost, and a sync that succeeds.
                state.note_sync_failed(&self.place);
            }
            return Err(error);
        }
        self.into_log(state, topic_id)
    }

    /// Makes the directory what the plan says, but for the small files that tell it to the next opening.
    fn change(&mut self) -> Result<(), OpenError> {
        self.report.snapshots_removed += snapshots::remove_unusable(&self.place, &self.plan.unusable_snapshots)?;
        self.write_missing_indexes()?;
        self.put_aside()?;
        remove_segments(&self.place, self.plan.removed.iter())?;
        if self.plan.creates {
            if let Some(segment) = self.segments.first() {
                segment.create_file()?;
            }
            self.place.sync_dir()?;
        }
        self.cut_files()?;
        self.rewrite()?;
        self.repair()?;
        if let Some(floor) = self.plan.scanned_from {
            self.sync_scanned(floor)?;
            self.write_scanned_indexes(floor)?;
        }
        self.write_producers()
    }

    /// Writes what was found out about the producers.
    fn write_producers(&self) -> Result<(), OpenError> {
        for (base, snapshot) in self.plan.snapshots.iter().filter(|(base, _)| *base <= self.end) {
            snapshots::write_unless_there(&self.place, *base, snapshot)?;
        }
        if self.plan.write_producers {
            // The snapshot last, for its absence is what the rest was noticed by.
            for segment in &self.segments {
                if let Some(aborted) = segment.transactions().rebuilt() {
                    match transactions::write_file(&self.place, segment.base(), &aborted) {
                        Err(error) if is_out_of_room(&error) => return Ok(()), // The next open finds the same.
                        written => written?,
                    }
                    segment.transactions().rebuilt_written();
                }
            }
            snapshots::write_unless_there(&self.place, self.end, &self.producers.encode_snapshot())?;
        }
        Ok(())
    }

    /// Writes the index files that were missing.
    fn write_missing_indexes(&mut self) -> Result<(), OpenError> {
        for segment in &self.plan.unindexed {
            let Indexes::Memory(indexes) = segment.indexes().map_err(unread)? else { continue };
            // The transactions first: where there are indexes, nobody looks for more.
            let aborted = segment.transactions().rebuilt();
            let written =
                aborted.map_or(Ok(()), |aborted| transactions::write_file(&self.place, segment.base(), &aborted));
            match written.and_then(|()| IndexWriter::write_files(&self.place, segment.base(), &indexes)) {
                Err(error) if is_out_of_room(&error) => {} // For housekeeping, then.
                written => {
                    written?;
                    segment.rebuilt_indexes_written();
                    segment.transactions().rebuilt_written();
                }
            }
        }
        if let Some(segment) = self.segments.last().filter(|_| self.plan.write_active_transactions) {
            let entries = segment.transactions().in_memory();
            match transactions::write_file(&self.place, segment.base(), entries.as_deref().unwrap_or_default()) {
                Err(error) if is_out_of_room(&error) => {} // At the next close, or when it is sealed.
                written => written?,
            }
        }
        Ok(())
    }

    /// Keeps what is intact of that which goes: the last segments first, as they go.
    fn put_aside(&mut self) -> Result<(), OpenError> {
        if self.plan.aside.is_empty() {
            return Ok(());
        }
        let mut files = SideFiles::new(&self.place, self.options.side_files_bytes_max)?;
        for aside in self.plan.aside.iter_mut().rev() {
            let is_removed = self.plan.removed.iter().any(|removed| Arc::ptr_eq(removed, &aside.segment));
            let goes = is_removed && aside.found.position == 0;
            aside.found.file = files.keep(aside, goes)?;
        }
        self.report.put_aside = self.plan.aside.drain(..).map(|aside| aside.found).collect();
        Ok(())
    }

    /// Cuts files to what stays of them.
    fn cut_files(&mut self) -> Result<(), OpenError> {
        for segment in std::mem::take(&mut self.plan.cuts) {
            match segment.with_own_file(segment.len())? {
                Some(own) => self.take_place(&segment, own)?,
                None => segment.file()?.set_len(segment.len()).context("cut", &segment.path())?,
            }
        }
        Ok(())
    }

    /// Writes what may not be on the disk although it can be read into new files: the pages of a failed sync count as
    /// written, and a second sync would not write them.
    fn rewrite(&mut self) -> Result<(), OpenError> {
        let Some(from) = self.plan.rewrite_from else { return Ok(()) };
        for segment in self.segments.clone().into_iter().filter(|segment| segment.base() >= from) {
            let own = segment.in_new_file(segment.len())?;
            self.take_place(&segment, own)?;
        }
        self.place.sync_dir()?;
        self.report.rewritten = true;
        Ok(())
    }

    /// Puts a segment with a file of its own in the place of one, under its name.
    fn take_place(&mut self, old: &Arc<Segment>, own: Arc<Segment>) -> Result<(), OpenError> {
        own.take_name()?;
        own.set_indexes(old.indexes().map_err(unread)?);
        own.publish(own.len(), old.largest_timestamp().map_err(unread)?);
        if let Some(aborted) = old.transactions().in_memory() {
            own.transactions().set(aborted.to_vec());
        }
        if let Some(active) = self.active.as_mut().filter(|active| Arc::ptr_eq(&active.segment, old)) {
            active.segment = own.clone();
        }
        if let Some(place) = self.segments.iter_mut().find(|segment| Arc::ptr_eq(segment, old)) {
            *place = own;
        }
        Ok(())
    }

    /// Puts headers right where the file has no other name: a copy shares it.
    fn repair(&mut self) -> Result<(), OpenError> {
        for repair in std::mem::take(&mut self.plan.repairs) {
            let segment = self.segments.iter().find(|segment| segment.base() == repair.base).cloned();
            let Some(segment) = segment.filter(|segment| repair.batch.position < segment.len()) else { continue };
            if write_header(&segment, &repair)? {
                repair.made(&segment, &mut self.report);
            } else {
                repair.leave(&self.segments, &mut self.report);
            }
        }
        Ok(())
    }

    /// Makes durable what the scan found, and what it and the process before it cut off or removed. What is read now may
    /// be in memory only: a power cut after the next append could bring an old tail back behind it.
    fn sync_scanned(&self, floor: usize) -> Result<(), OpenError> {
        // The last one grows again, and when it is sealed these would be believed, or even missed by the rebuild.
        if let Some(last) = self.segments.last() {
            remove_all_index_files(&self.place, last.base())?;
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
                // Where the others are, the transaction index is.
                let written = transactions::write_file(&self.place, base, entries);
                match written.and_then(|()| IndexWriter::write_files(&self.place, base, &indexes)) {
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

    /// The log, with its small files as they have to be.
    fn into_log(mut self, state: StateFile, topic_id: TopicId) -> Result<(Log, RecoveryReport), OpenError> {
        let Some(active) = self.active.take() else { unreachable!("every way to open a log ends with a segment") };
        let mut epochs = self.epochs.take().unwrap_or_default();
        epochs.truncate_from_end(self.end);
        epochs.truncate_from_start(self.start);
        // A new log has no epochs and needs no file that says so; nor does one with messages from before there were any.
        let none_needed = epochs.is_empty() && self.epochs_on_disk.is_none();
        self.report.epochs_rebuilt &= !none_needed;
        let mut epochs_written = none_needed || self.epochs_on_disk.as_ref() == Some(&epochs);
        // What the scan has cut off, the file must not tell any more: soon the recovery point is above it, and there the next
        // recovery would believe it.
        if self.report.epochs_rebuilt || !(epochs_written || self.report.clean) {
            epochs_written = match write_epochs(&self.place, epochs.entries()) {
                Err(error) if is_out_of_room(&error) => false,
                written => written.map(|()| true)?,
            };
        }
        let known = self.snapshots.take().map_or_else(|| snapshots::list(&self.place), Ok)?;
        let past_end = known.iter().filter(|offset| **offset > self.end).count();
        // A snapshot serves where a truncation or a scan may begin: at a segment's base, and at the end. Each clean close
        // leaves one at its end, which the next makes superfluous.
        let latest = known.iter().copied().filter(|offset| *offset <= self.end).max();
        // Where the log begins anew, what was known further below may be outdated.
        let latest = latest.filter(|latest| !self.plan.creates || *latest == self.end);
        let bases: BTreeSet<Offset> = self.segments.iter().map(|segment| segment.base()).collect();
        snapshots::remove_of(&self.place, known, |offset| Some(offset) == latest || bases.contains(&offset))?;
        self.report.snapshots_removed += u32::try_from(past_end).unwrap_or(u32::MAX);

        // Before the first append: a recovery point, or a clean flag, above what is left of the log would make the next
        // recovery trust what is appended from now on unread. And before anybody is told the start: what the state file
        // says may itself be in memory only.
        if (!self.report.clean && state.last().is_some()) || state.had_sync_failed() {
            state.forget_durability();
            let (log_start, recovery_point, end) = (self.start, self.recovery_point, self.end);
            // Either the last stop was clean, or the scan synced it.
            let mark = active.mark(end);
            let found = LogState { clean: false, sync_failed: false, log_start, recovery_point, end, topic_id, mark };
            state.record(&self.place, found)?;
        }
        // A log that nobody uses holds no file open.
        state.release();
        for segment in &self.segments {
            segment.release_file();
        }
        let active = self.at_rest(active, &state);

        self.report.start = self.start;
        self.report.end = self.end;
        self.report.segments = u32::try_from(self.segments.len()).unwrap_or(u32::MAX);
        let segments = Segments::new(&self.segments);
        let undecided = Undecided::new(self.producers.first_open_transaction(), &self.ended, self.end);
        let shared = Shared::new(segments, epochs.clone(), undecided, (self.start, self.end));
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
            epochs_version: 1,
            epochs_written: u64::from(epochs_written),
            topic_id,
            jobs: Vec::new(),
            upkeep: OnDemand::default(),
            cleaner_offset: Offset::ZERO,
            state_records: 0,
            unsynced_since: None,
            checkpoint_owed_since: None,
            locks: Box::default(),
        };
        Ok((log, self.report))
    }

    /// The segment that grows as a log at rest keeps it, if all that writing needs is in files: it was closed well, its
    /// index files are right, and the state file tells its last batch.
    fn at_rest(&mut self, active: Active, state: &StateFile) -> Active {
        let segment = &active.segment;
        let mark = state.last().filter(|last| last.clean).and_then(|last| last.mark);
        if !self.is_active_indexed
            || mark.is_none()
            || mark != active.mark(self.end)
            || segment.known_damage().is_some()
            || segment.transactions().rebuilt().is_some()
        {
            return active;
        }
        let active = active.at_rest();
        self.segments.pop();
        self.segments.push(active.segment.clone());
        active
    }
}

/// Writes a header as it has to be. Returns false if the file has another name, or the device has no room for a change.
fn write_header(segment: &Segment, repair: &Repair) -> Result<bool, OpenError> {
    let (file, path) = (segment.file()?, segment.path());
    if file.metadata().context("read metadata of", &path)?.links > 1 {
        return Ok(false);
    }
    let bytes: Vec<u8> = repair.batch.first_bytes().collect();
    match file.write_all_at(&bytes, repair.batch.position).context("write", &path) {
        Err(error) if is_out_of_room(&error) => Ok(false),
        written => {
            written?;
            file.sync_data().context("sync", &path)?;
            Ok(true)
        }
    }
}
