//! Taking segments out of the log that may go, beside appends: a job looks which those are, keeps the producers' state below
//! which they lie, and moves the log start durably; the writer then takes them out of the list; and another job gives their
//! files the names under which they wait to be removed.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use crate::error::{FlushError, ReadError};
use crate::flush::{JobControl, JobKind, Syncer};
use crate::housekeeping::{Kind, Step};
use crate::io::{IoContext, IoError};
use crate::log::{Active, Log};
use crate::options::LogOptions;
use crate::producers::ProducerSnapshot;
use crate::retention::{self, Candidate};
use crate::segment::{Place, Segment};
use crate::segments::Segments;
use crate::snapshots;
use crate::state_file::{LogState, StateFile};
use crate::truncation::{SEGMENT_FILES, reactivated, remove_index_files};
use crate::{Offset, TimestampMs};

/// Segments whose age one look reads at most: each may take a read of its index.
const AGES_READ_MAX: u32 = 64;

/// What a log knows about the segments that may go.
#[derive(Debug, Default)]
pub(crate) struct Retiring {
    /// The list that the last look was at, and what it found: all else that counts is in memory.
    seen: Weak<Segments>,
    /// Bytes in all segments of it but the last.
    sealed_bytes: u64,
    /// The time the oldest segment's age counts from, where its largest timestamp does not tell.
    front_age: Option<TimestampMs>,
    /// The last look came to nothing, and its round is not over.
    is_idle: bool,
    /// The segment of which was told last that it has a time later than now.
    told_ahead: Option<Offset>,
    /// Segments that left the list, until their files have other names. Boxed, for most logs have none.
    leaving: Option<Box<Leaving>>,
}

/// Segments that left the list.
#[derive(Clone, Debug)]
struct Leaving {
    segments: VecDeque<Arc<Segment>>,
    /// All of them lie below.
    base: Offset,
    count: u32,
    bytes: u64,
}

/// A look at which segments may go.
#[derive(Debug)]
pub(crate) struct RetireJob {
    place: Arc<Place>,
    state: Arc<StateFile>,
    syncer: Syncer,
    control: Arc<JobControl>,
    segments: Arc<Segments>,
    active: Arc<Segment>,
    active_len: u64,
    /// The log is at rest: before anything goes, it takes up what writing needs.
    is_at_rest: bool,
    start: Offset,
    end: Offset,
    high_watermark: Offset,
    now: TimestampMs,
    options: Arc<LogOptions>,
    may_read_ages: bool,
    /// Producers' states at the ends of segments, that are not in files yet.
    owed: Vec<(Offset, ProducerSnapshot)>,
    /// What the state file is to say before anything changes, where it says that the log was closed well.
    unclean: Option<LogState>,
    /// Counts what the writer wrote to the state file.
    records: u64,
}

/// A look that was run.
#[derive(Debug)]
pub(crate) struct RetireDone {
    control: Arc<JobControl>,
    seen: Weak<Segments>,
    sealed_bytes: u64,
    end: Offset,
    records: u64,
    found: Found,
    plan: Plan,
    was_clean: bool,
    /// What writing needs, of a log that was at rest.
    awake: Option<Active>,
    failed: Option<FlushError>,
}

/// What ages a look came upon.
#[derive(Debug, Default)]
struct Found {
    front_age: Option<TimestampMs>,
    ages_read: u32,
    first_read: Option<Offset>,
    ahead: Option<(Offset, TimestampMs)>,
    failed: Option<IoError>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// All stay.
    Stay,
    /// The active segment may go, once another takes its place.
    Roll,
    /// What lies below may go, and is kept from coming back.
    Below(Offset),
}

impl RetireJob {
    pub(crate) fn run(self) -> RetireDone {
        let mut found = Found::default();
        let listed: Vec<_> = self.segments.with_ends(self.end).collect();
        let active = self.active.base();
        let len = |segment: &Segment| if segment.base() == active { self.active_len } else { segment.len() };
        let candidates: Vec<_> =
            listed.iter().map(|(segment, end)| Candidate { end: *end, size_bytes: len(segment) }).collect();
        let sealed = candidates.split_last().map_or(&[][..], |(_, sealed)| sealed);
        let sealed_bytes = sealed.iter().map(|candidate| candidate.size_bytes).sum();
        let count = retention::plan(&candidates, self.start, self.high_watermark, self.now, &self.options, |at| {
            let age = self.age_of(listed.get(at)?.0, &mut found)?;
            if at == 0 {
                found.front_age = Some(age);
            }
            Some(age)
        });
        // The active segment goes alone, for it takes a roll.
        let sealed_count = count.min(sealed.len());
        let mut plan = match sealed_count.checked_sub(1).and_then(|last| sealed.get(last)) {
            Some(last) => Plan::Below(last.end),
            None if count > 0 => Plan::Roll,
            None => Plan::Stay,
        };
        let (mut was_clean, mut failed) = (false, found.failed.take().map(FlushError::Io));
        let mut awake = None;
        if self.is_at_rest && plan != Plan::Stay {
            match reactivated(&self.place, &self.active, self.active_len, self.end, &self.options) {
                Ok(active) => awake = Some(active),
                Err(error) => (plan, failed) = (Plan::Stay, Some(FlushError::Io(error.into()))),
            }
        }
        if let Plan::Below(base) = plan
            && !self.is_at_rest
        {
            let kept = self.keep_snapshot_at(base).map_err(FlushError::Io).and_then(|()| self.move_start(base));
            match kept {
                Ok(Some(recorded_over_clean)) => was_clean = recorded_over_clean,
                Ok(None) => plan = Plan::Stay,
                Err(error) => {
                    if let FlushError::Io(error) = &error
                        && error.is_failed_sync()
                    {
                        // Before a sync beside this one takes for synced what the system has told us is lost.
                        self.syncer.failed(error);
                    }
                    (plan, failed) = (Plan::Stay, Some(error));
                }
            }
        }
        let Self { control, end, records, segments, .. } = self;
        let seen = Arc::downgrade(&segments);
        RetireDone { control, seen, sealed_bytes, end, records, found, plan, was_clean, awake, failed }
    }

    /// The time a segment's age counts from: its largest timestamp. Without one, and where it lies in the future and
    /// would keep the segment for ever, the time of the last write. `None` if that cannot be told now.
    fn age_of(&self, segment: &Segment, found: &mut Found) -> Option<TimestampMs> {
        let largest = match segment.known_largest_timestamp() {
            Some(known) => known,
            None if !self.may_read_ages || found.ages_read == AGES_READ_MAX => return None,
            None => {
                found.ages_read += 1;
                found.first_read.get_or_insert_with(|| segment.base());
                match segment.largest_timestamp() {
                    Ok(largest) => largest,
                    Err(ReadError::Io(error)) => {
                        found.failed = Some(error);
                        return None;
                    }
                    Err(_) => {
                        segment.give_up_largest_timestamp();
                        TimestampMs::NONE
                    }
                }
            }
        };
        if largest >= TimestampMs(0) && largest <= self.now {
            return Some(largest);
        }
        let path = segment.path();
        match self.place.fs.metadata(&path).context("read metadata of", &path) {
            Ok(metadata) if largest > self.now => {
                found.ahead.get_or_insert_with(|| (segment.base(), largest));
                Some(metadata.modified)
            }
            Ok(metadata) => Some(metadata.modified),
            Err(error) => {
                found.failed = Some(error);
                None
            }
        }
    }

    /// Sees to it that there is a snapshot at `base`, below which segments are to go: what is known of producers that are
    /// silent since, of open transactions too, is nowhere else then.
    fn keep_snapshot_at(&self, base: Offset) -> Result<(), IoError> {
        let snapshot = match self.owed.iter().find(|(end, _)| *end == base) {
            Some((_, snapshot)) => snapshot.encode(),
            // There should be one, which is read and nothing else, but a disk that lost it has the batches still.
            None => match snapshots::reload(&self.place, &self.segments, base, self.options.max_producer_ids) {
                Ok(reloaded) => reloaded.producers.encode_snapshot(),
                // What cannot be read is not to keep segments from going.
                Err(_) => return Ok(()),
            },
        };
        let _writing = self.control.writing();
        if self.still_stands() { snapshots::write_unless_there(&self.place, base, &snapshot) } else { Ok(()) }
    }

    /// Has the state file say durably that the log starts at `base` or above. `None` if the log was truncated meanwhile,
    /// else whether the file said that the log was closed well.
    fn move_start(&self, base: Offset) -> Result<Option<bool>, FlushError> {
        let Some(unclean) = self.unclean else { return Ok(self.record(base, None)?) };
        let recorded = {
            // Others that write index files wait until those are gone that the active segment had when it was closed.
            let _writing = self.control.writing();
            let recorded = self.record(base, Some(unclean))?;
            if recorded == Some(true) {
                remove_index_files(&self.place, self.active.base())?;
            }
            recorded
        };
        if recorded == Some(true) {
            self.syncer.run(|| self.place.sync_dir())?;
        }
        Ok(recorded)
    }

    fn record(&self, base: Offset, unclean: Option<LogState>) -> Result<Option<bool>, IoError> {
        self.state.raise_start(&self.place, base.max(self.start), unclean, || self.still_stands())
    }

    fn still_stands(&self) -> bool {
        self.control.lowest_end() == Offset::MAX
    }
}

impl RetireDone {
    /// Which kind of work it was that failed, if any did.
    pub(crate) fn kind(&self) -> Kind {
        if self.plan == Plan::Stay && self.found.first_read.is_some() { Kind::ReadAge } else { Kind::Retire }
    }
}

/// Gives the files of segments that left the log other names.
#[derive(Debug)]
pub(crate) struct LeaveJob {
    place: Arc<Place>,
    control: Arc<JobControl>,
    leaving: Leaving,
    now: TimestampMs,
}

/// Files that got other names.
#[derive(Debug)]
pub(crate) struct LeaveDone {
    /// Those that have not.
    rest: Leaving,
    renamed: Vec<Vec<PathBuf>>,
    now: TimestampMs,
    done: Result<(), IoError>,
}

impl LeaveJob {
    pub(crate) fn run(self) -> LeaveDone {
        let Self { place, control, leaving: mut rest, now } = self;
        let mut renamed = Vec::new();
        let base = rest.base;
        // A log that was emptied may have files of these names again, and has removed the old ones.
        let is_void = || control.lowest_end() < base;
        let done = (|| {
            while let Some(segment) = rest.segments.front() {
                let _writing = control.writing();
                if is_void() {
                    return Ok(());
                }
                let mut paths = Vec::new();
                let done = set_aside(&place, segment, &mut paths);
                renamed.push(paths);
                done?;
                rest.segments.pop_front();
            }
            let _writing = control.writing();
            if is_void() { Ok(()) } else { snapshots::remove_unless(&place, |offset| offset >= base) }
        })();
        LeaveDone { rest, renamed, now, done }
    }
}

/// Their files get names under which a file that is made later does not stand in their way.
fn set_aside(place: &Place, segment: &Segment, paths: &mut Vec<PathBuf>) -> Result<(), IoError> {
    for kind in SEGMENT_FILES {
        let (from, to) = (place.path(segment.base(), kind), place.deleted_path(segment.base(), kind));
        match place.fs.rename(&from, &to) {
            Ok(()) => paths.push(to),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("rename", &from),
        }
    }
    Ok(())
}

impl Log {
    /// The look that is due at which segments may go. No file is touched here, and no list is gone through.
    pub(crate) fn retire_job(
        &mut self,
        now: TimestampMs,
        high_watermark: Offset,
        may_read_ages: bool,
    ) -> Option<RetireJob> {
        let segments = self.shared.segments();
        if !self.may_retire(&segments, now, high_watermark, may_read_ages) {
            return None;
        }
        let unclean = (!self.state.says_unclean()).then(|| LogState {
            clean: false,
            sync_failed: false,
            log_start: self.start(),
            recovery_point: self.recovery_point,
            end: self.end(),
            topic_id: self.topic_id,
            mark: self.flush_mark(),
        });
        let owed = self.sealed.iter().filter_map(|sealed| Some((sealed.end, sealed.snapshot.clone()?))).collect();
        Some(RetireJob {
            place: self.place.clone(),
            state: self.state.clone(),
            syncer: self.syncer(),
            control: self.job_control(JobKind::Long),
            segments,
            active: self.active.segment.clone(),
            active_len: self.active.len,
            is_at_rest: self.active.writing.is_none(),
            start: self.start(),
            end: self.end(),
            high_watermark,
            now,
            options: self.options.clone(),
            may_read_ages,
            owed,
            unclean,
            records: self.state_records,
        })
    }

    /// Whether the oldest segment may go, as far as that can be told from memory. Retention takes it first, or none.
    fn may_retire(&self, segments: &Arc<Segments>, now: TimestampMs, high_watermark: Offset, may_read: bool) -> bool {
        let (retiring, options, len) = (&self.upkeep.retiring, &self.options, self.active.len);
        let mut listed = segments.with_ends(self.end());
        let Some((front, end)) = listed.next() else { return false };
        let is_last = listed.next().is_none();
        if end > high_watermark || (is_last && len == 0) {
            return false;
        }
        if Weak::as_ptr(&retiring.seen) != Arc::as_ptr(segments) {
            return true;
        }
        if !is_last && end <= self.start() {
            return true;
        }
        if retiring.is_idle {
            return false;
        }
        let front_len = if is_last { len } else { front.len() };
        let size = retiring.sealed_bytes + len;
        let excess = u64::try_from(options.retention_bytes).map_or(0, |limit| size.saturating_sub(limit));
        if options.retention && excess > 0 && front_len <= excess {
            return true;
        }
        let largest = front.known_largest_timestamp();
        let age = largest.filter(|largest| (TimestampMs(0)..=now).contains(largest)).or(retiring.front_age);
        let is_old = age.map_or_else(|| may_read || largest.is_some(), |age| now.since(age) > options.retention_ms);
        options.retention && options.retention_ms >= 0 && is_old
    }

    /// Ends a round of housekeeping: the next looks again.
    pub(crate) fn end_retire_round(&mut self) {
        self.upkeep.retiring.is_idle = false;
    }

    /// Takes the segments out of the list that a look has found, unless the log has changed since.
    pub(crate) fn finish_retire(&mut self, done: RetireDone) -> Result<Option<Step>, FlushError> {
        let RetireDone { control, seen, sealed_bytes, end, records, found, plan, was_clean, awake, failed } = done;
        let is_void = control.lowest_end() < Offset::MAX || self.state_records != records;
        let retiring = &mut self.upkeep.retiring;
        retiring.is_idle = plan == Plan::Stay;
        (retiring.seen, retiring.sealed_bytes, retiring.front_age) = (seen, sealed_bytes, found.front_age);
        let was_at_rest = awake.is_some();
        if let Some(awake) = awake {
            self.active.take_up(awake);
        }
        self.directory_changes += u64::from(was_clean);
        // What was found to go before something failed goes.
        if let Some(error) = failed.filter(|_| plan == Plan::Stay) {
            if let FlushError::Io(error) = &error {
                self.close_if_sync_failed(error);
            }
            return if control.lowest_end() < Offset::MAX { Ok(None) } else { Err(error) };
        }
        let mut step = found.first_read.filter(|_| plan == Plan::Stay).map(|base| Step::AgeRead { base });
        if !is_void {
            match plan {
                Plan::Stay => {}
                // The next look, which finds the same, keeps it from coming back.
                Plan::Below(_) if was_at_rest => {}
                Plan::Below(base) => self.leave_below(base),
                Plan::Roll if self.end() == end && self.active.len > 0 => {
                    self.mark_dirty()?;
                    self.roll(end)?;
                    step = Some(Step::Rolled { base: end });
                }
                // Other work comes first where appends leave no gap.
                Plan::Roll => self.upkeep.retiring.is_idle = true,
            }
        }
        let told_ahead = &mut self.upkeep.retiring.told_ahead;
        if let Some((base, timestamp)) = found.ahead.filter(|(base, _)| *told_ahead != Some(*base)) {
            *told_ahead = Some(base);
            step = Some(Step::TimestampAhead { base, timestamp });
        }
        Ok(step)
    }

    /// The log start is durable at `base`, and what lies below leaves the list.
    fn leave_below(&mut self, base: Offset) {
        if base > self.start() {
            self.shared.set_start(base);
            if self.epochs.truncate_from_start(base) {
                self.epochs_changed();
            }
        }
        let (retired, kept) = self.shared.segments().split_below(base);
        self.shared.set_segments(kept);
        self.sealed.retain(|sealed| sealed.segment.base() >= base);
        retired.iter().for_each(|segment| segment.retire());
        self.upkeep.retiring.leaving = Some(Box::new(Leaving {
            base,
            count: u32::try_from(retired.len()).unwrap_or(u32::MAX),
            bytes: retired.iter().map(|segment| segment.len()).sum(),
            segments: retired.into(),
        }));
    }

    /// Gives the files of segments that left the list other names, if that is not done.
    pub(crate) fn leave_job(&mut self, now: TimestampMs) -> Option<LeaveJob> {
        let leaving = self.upkeep.retiring.leaving.as_deref()?.clone();
        Some(LeaveJob { place: self.place.clone(), control: self.job_control(JobKind::Long), leaving, now })
    }

    /// Has the files removed after the delay that have other names now.
    pub(crate) fn finish_leave(&mut self, done: LeaveDone) -> Result<Option<Step>, FlushError> {
        let LeaveDone { rest, renamed, now, done } = done;
        for paths in renamed.into_iter().filter(|paths| !paths.is_empty()) {
            self.unlink_later(paths, now);
        }
        self.directory_changes += 1;
        // Without any, the log was emptied meanwhile.
        let Some(leaving) = self.upkeep.retiring.leaving.take() else { return Ok(None) };
        if done.is_err() || !rest.segments.is_empty() {
            self.upkeep.retiring.leaving = Some(Box::new(rest));
            return Ok(done.map(|()| None)?);
        }
        let Leaving { count: segments, bytes, .. } = *leaving;
        Ok(Some(Step::SegmentsRetired { segments, bytes, log_start: self.start() }))
    }

    /// The segments that left the list and whose files may have their names still, oldest first.
    pub(crate) fn leaving(&self) -> Vec<Arc<Segment>> {
        self.upkeep.retiring.leaving.iter().flat_map(|leaving| leaving.segments.iter().cloned()).collect()
    }

    /// Their files are gone.
    pub(crate) fn forget_leaving(&mut self) {
        self.upkeep.retiring.leaving = None;
    }
}
