//! The log of one partition: its one writer.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use crate::batch::{self, BatchError, BatchHeader, BatchView, HEADER_BYTES, TimestampType};
use crate::check::CheckedBatch;
use crate::checkpoint::{self, CheckpointError};
use crate::compaction::Compactor;
use crate::data_dir::OpenHints;
use crate::epochs::{EpochEnd, EpochHistory};
use crate::error::{AppendError, Damaged, Fence, FlushError, OpenError, ReadError};
use crate::flush::{JobControl, Sealed};
use crate::fs::{DirLock, File, Fs, OsFs};
use crate::housekeeping::{Kind, Unlink};
use crate::indexes::{IndexWriter, Indexes};
use crate::io::{FileExt, IoContext, IoError};
use crate::lock::lock_directory;
use crate::markers::TransactionMarker;
use crate::names::SegmentFile;
use crate::options::{InvalidOption, LogOptions};
use crate::producers::{ProducerTable, Sequence};
use crate::reader::{Fetched, LogReader, ReadLimit, Shared};
use crate::recovery::{self, RecoveryReport};
use crate::scrub::Scrubbing;
use crate::segment::{Place, Segment};
use crate::state_file::{FlushMark, LogState, StateFile};
use crate::transactions;
use crate::truncation::remove_index_files;
use crate::zero_ahead::ZeroAhead;
use crate::{LeaderEpoch, Offset, TimestampMs, TopicId};

/// Batches up to this length are copied together before they are written: that takes less time than a vectored write.
const SMALL_BATCH_BYTES: usize = 2048;

/// The file of a log's leader epochs.
pub(crate) const EPOCHS_FILE: &str = "leader-epoch-checkpoint";

/// The records of one partition, in one directory. There is one `Log` for a directory at a time; it writes. Any number
/// of [`LogReader`]s read.
///
/// Dropping a log is a crash as far as its files go: nothing is flushed, and the next open looks for a torn tail.
/// [`Log::close`] is the other way to end.
pub struct Log {
    pub(crate) place: Place,
    pub(crate) options: LogOptions,
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<StateFile>,
    pub(crate) active: Active,
    /// Segments before the active one that are not synced yet, oldest first.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) epochs: EpochHistory,
    pub(crate) producers: ProducerTable,
    pub(crate) recovery_point: Offset,
    /// Counts creations, renames and removals in the directory, and which of them are durable.
    pub(crate) directory_changes: u64,
    pub(crate) directory_synced: u64,
    pub(crate) side_files: Arc<Mutex<()>>,
    /// Counts changes of the epochs, and which of them are in their file.
    pub(crate) epochs_version: u64,
    pub(crate) epochs_written: u64,
    pub(crate) jobs: Vec<Weak<JobControl>>,
    /// Copies of the log under way, which go on beside flushes.
    pub(crate) copies: Vec<Weak<JobControl>>,
    pub(crate) unlinks: VecDeque<Unlink>,
    pub(crate) compactor: Compactor,
    pub(crate) work: Weak<()>,
    pub(crate) scrubbing: Scrubbing,
    /// Kinds of housekeeping that have failed since there was none left to do.
    pub(crate) failed_work: Vec<Kind>,
    /// The time of the first append since the last flush began.
    pub(crate) unsynced_since: Option<TimestampMs>,
    pub(crate) producers_looked_at: Option<TimestampMs>,
    pub(crate) topic_id: TopicId,
    pub(crate) lock: Option<Box<dyn DirLock>>,
}

/// The last batch of a segment that grows, by which the flush mark is told from a foreign one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBatch {
    /// Where it begins; where the segment ends if there is none.
    pub(crate) position: u64,
    /// Its first bytes, zeros behind a shorter one; zeros if there is none.
    pub(crate) header: [u8; HEADER_BYTES],
}

impl LastBatch {
    /// There is none, at this position.
    pub(crate) fn none(position: u64) -> Self {
        Self { position, header: [0; HEADER_BYTES] }
    }

    /// The batch at this position, whose bytes these are or begin with.
    fn of(position: u64, bytes: &[u8], header: &BatchHeader) -> Self {
        if let Some(header) = bytes.first_chunk().filter(|_| header.total_bytes() >= HEADER_BYTES) {
            return Self { position, header: *header };
        }
        let mut last = Self::none(position);
        for (to, from) in last.header.iter_mut().zip(bytes.iter().take(header.total_bytes())) {
            *to = *from;
        }
        last
    }
}

/// The segment that appends go to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) segment: Arc<Segment>,
    pub(crate) indexes: IndexWriter,
    pub(crate) len: u64,
    pub(crate) last: LastBatch,
    /// Its file, from the first append after a sync to the sync of the last.
    pub(crate) file: Option<Arc<dyn File>>,
    /// Zeros behind its end, if there are or may be some.
    pub(crate) zeros: Option<ZeroAhead>,
    /// The largest timestamp of its first batch, by which it ages.
    pub(crate) first_timestamp: Option<TimestampMs>,
    /// When it was first seen by a call that tells the time; it ages by this if its first batch has no timestamp.
    pub(crate) since: Option<TimestampMs>,
}

impl Active {
    pub(crate) fn new(segment: Arc<Segment>, options: &LogOptions) -> Self {
        let indexes = IndexWriter::new(segment.base(), options.index_interval_bytes);
        segment.set_indexes(Indexes::Memory(indexes.indexes().clone()));
        segment.transactions().set(Vec::new());
        segment.publish(0, TimestampMs::NONE);
        let last = LastBatch::none(0);
        Self { segment, indexes, len: 0, last, file: None, zeros: None, first_timestamp: None, since: None }
    }

    /// The flush mark once everything up to the end of the log is synced.
    pub(crate) fn mark(&self, end: Offset) -> FlushMark {
        FlushMark {
            segment_base: self.segment.base(),
            batch_position: self.last.position,
            position: self.len,
            // A segment that begins behind a gap begins above the end, until it has a batch.
            offset: end.max(self.segment.base()),
            header: self.last.header,
        }
    }

    fn publish(&self) {
        self.segment.publish(self.len, self.indexes.largest_timestamp());
    }
}

/// How safe an append is when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In the operating system's memory: it survives a crash of the process, not a power cut.
    Buffered,
    /// Synced.
    Synced,
}

/// What an append did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The offset of the first record.
    pub first: Offset,
    /// The offset of the last record; below `first` if nothing was appended.
    pub last: Offset,
    /// The time the log stamped on the records, [`TimestampMs::NONE`] if they keep their producer's.
    pub timestamp: TimestampMs,
    /// The batch was in the log already: the offsets are those of the first time, nothing was appended.
    pub duplicate: bool,
    /// How safe it is.
    pub durability: Durability,
}

/// A segment, as [`Log::segments`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its base offset.
    pub base: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// Bytes of batches in it.
    pub size_bytes: u64,
}

/// What [`Log::close`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseReport {
    /// The end of the log, everything below which is synced.
    pub end: Offset,
    /// The start of the log.
    pub start: Offset,
}

impl Log {
    /// Opens the log in a directory of its own, which is created if it is not there and locked until the log is dropped.
    ///
    /// # Errors
    /// If the directory is in use, an option is out of range or a file operation fails. Damage is no error: what was
    /// done about it is in the report.
    pub fn open(dir: impl AsRef<Path>, options: LogOptions) -> Result<(Self, RecoveryReport), OpenError> {
        let (fs, dir): (Arc<dyn Fs>, _) = (Arc::new(OsFs), dir.as_ref());
        match fs.create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => {
                created.context("create directory", dir)?;
                checkpoint::sync_parent(&*fs, dir)?;
            }
        }
        let lock = lock_directory(&*fs, dir)?;
        let (mut log, report) = Self::open_with(fs, dir, options, OpenHints::default())?;
        log.lock = Some(lock);
        Ok((log, report))
    }

    /// Opens the log in a directory for reading: what [`Log::open`] would make of it, without a change to any file. The
    /// directory may be read-only, on a full disk, or in use: then a log that goes on being written is read as it was.
    ///
    /// # Errors
    /// If a file operation fails. Damage is no error.
    pub fn open_read_only(dir: impl AsRef<Path>) -> Result<(LogReader, RecoveryReport), OpenError> {
        Self::open_read_only_with(Arc::new(OsFs), dir.as_ref(), LogOptions::default(), OpenHints::default())
    }

    /// As [`Log::open_read_only`], for a directory of a data root, with what the root knows about it.
    ///
    /// # Errors
    /// As [`Log::open_read_only`].
    pub fn open_read_only_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        options: LogOptions,
        hints: OpenHints,
    ) -> Result<(LogReader, RecoveryReport), OpenError> {
        options.validate()?;
        let LogOptions { open_files, index_interval_bytes, .. } = &options;
        let (open_files, index_interval_bytes) = (open_files.clone(), *index_interval_bytes);
        let place = Place { fs, dir: dir.into(), open_files, index_interval_bytes, read_only: true };
        recovery::open_read_only(place, options, hints)
    }

    /// Opens the log in an existing directory of a data root that is locked, with what the root knows about it.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(
        fs: Arc<dyn Fs>,
        dir: &Path,
        options: LogOptions,
        hints: OpenHints,
    ) -> Result<(Self, RecoveryReport), OpenError> {
        options.validate()?;
        let LogOptions { open_files, index_interval_bytes, .. } = &options;
        let (open_files, index_interval_bytes) = (open_files.clone(), *index_interval_bytes);
        let place = Place { fs, dir: dir.into(), open_files, index_interval_bytes, read_only: false };
        recovery::open(place, options, hints)
    }

    /// Checks a producer's batch by the log's rules and appends it. See [`Log::append_checked`].
    ///
    /// # Errors
    /// [`AppendError::Refused`] if it breaks a rule, else as [`Log::append_checked`].
    pub fn append(&mut self, now: TimestampMs, epoch: LeaderEpoch, batch: &[u8]) -> Result<Appended, AppendError> {
        let batch = CheckedBatch::check(batch, &self.options.rules, now)?;
        self.append_checked(now, epoch, &batch)
    }

    /// Appends a producer's batch as the leader in `epoch`: gives it the next offsets. The batch's bytes are written as
    /// they are, but for the header.
    ///
    /// A batch of an idempotent producer that is in the log already is answered as it was the first time.
    ///
    /// # Errors
    /// Nothing was appended then, except that a sync by policy may have failed afterwards
    /// ([`AppendError::Closed`]).
    pub fn append_checked<B: AsRef<[u8]>>(
        &mut self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        batch: &CheckedBatch<B>,
    ) -> Result<Appended, AppendError> {
        let appended = self.append_unsynced(now, epoch, batch)?;
        self.flush_by_policy(now)?;
        Ok(Appended { durability: self.durability(appended.last), ..appended })
    }

    /// As [`Log::append_checked`], whatever the policy on syncs.
    pub(crate) fn append_unsynced<B: AsRef<[u8]>>(
        &mut self,
        now: TimestampMs,
        epoch: LeaderEpoch,
        batch: &CheckedBatch<B>,
    ) -> Result<Appended, AppendError> {
        self.shared.usable()?;
        let first = self.shared.end();
        let last = last_of(first, batch.last_offset_delta())?;
        let bytes = batch.size_bytes() as u64;
        if bytes > u64::from(self.options.segment_bytes) {
            return Err(AppendError::LargerThanSegment { bytes, segment_bytes: self.options.segment_bytes });
        }
        self.refuse_stale(epoch)?;
        let timestamp = batch.append_time();
        let producer = batch.producer();
        let whole = batch.header().is_control().then(|| batch.to_stamped_vec(first, epoch));
        let control = whole.as_deref().and_then(|whole| Some(BatchView::parse(whole).ok()?.0));
        if let Some(control) = &control {
            TransactionMarker::of(control).map_or(Ok(()), |marker| self.producers.check_marker(&marker))?;
        } else if let Some(producer) = &producer
            && let Sequence::Duplicate { first, last, timestamp: stored } = self.producers.check(producer)?
        {
            let timestamp = match self.options.rules.timestamp_type {
                TimestampType::CreateTime => TimestampMs::NONE,
                TimestampType::LogAppendTime => stored,
            };
            return Ok(Appended { first, last, timestamp, duplicate: true, durability: self.durability(last) });
        }
        self.mark_dirty()?;
        self.assign_epoch_at(epoch, first);
        self.roll_if_due(now, first, last, batch.max_timestamp(), bytes)?;
        let (stamped, rest) = batch.stamped(first, epoch);
        let position = self.active.len;
        let mut together = [0; SMALL_BATCH_BYTES];
        match together.get_mut(..HEADER_BYTES + rest.len()) {
            Some(small) => {
                let (head, tail) = small.split_at_mut(HEADER_BYTES);
                head.copy_from_slice(&stamped);
                tail.copy_from_slice(rest);
                self.write(&mut [IoSlice::new(small)], bytes)?;
            }
            None => self.write(&mut [IoSlice::new(&stamped), IoSlice::new(rest)], bytes)?,
        }
        self.admit(position, &stamped, &BatchHeader::decode(&stamped), now);
        self.active.publish();
        if let Some(control) = &control {
            self.take_in_producer(control);
        } else if let Some(producer) = &producer {
            self.producers.record(producer, first..=last);
            if producer.is_transactional {
                self.shared.undecided().set_first_open(self.producers.first_open_transaction());
            }
        }
        // Last: who sees the end sees all of the above.
        self.shared.set_end(last.next());
        self.unsynced_since.get_or_insert(now);
        Ok(Appended { first, last, timestamp, duplicate: false, durability: Durability::Buffered })
    }

    /// Appends batches as a follower: they keep the offsets and epochs that the leader gave them. A batch that breaks
    /// off at the end of the bytes is left out.
    ///
    /// Offsets may have gaps (compaction makes them) but not fall, epochs may not go back, and checksums must match;
    /// the leader's limits on size are not the follower's.
    ///
    /// # Errors
    /// Bytes that break a rule are refused as a whole. After [`AppendError::Io`] the batches before the failed write
    /// may have been appended: [`Log::end`] tells.
    pub fn append_replicated(&mut self, now: TimestampMs, bytes: &[u8]) -> Result<Appended, AppendError> {
        self.shared.usable()?;
        let batches = self.check_replicated(bytes)?;
        let Some((first, last)) = batches.first().zip(batches.last()) else {
            let end = self.shared.end();
            let (last, durability) = (end + -1, self.durability(end + -1));
            return Ok(Appended { first: end, last, timestamp: TimestampMs::NONE, duplicate: false, durability });
        };
        let (first, last) = (first.header.base_offset(), last.header.last_offset());
        self.mark_dirty()?;
        if first < self.shared.end() {
            // The leader's log starts inside of this batch, and ours is empty: it starts there too.
            self.restart_at(first)?;
        }
        for batch in batches.iter().filter(|batch| !batch.header.is_legacy()) {
            self.assign_epoch_at(batch.header.leader_epoch(), batch.header.base_offset());
        }
        if let Err(error) = self.append_groups(now, bytes, batches) {
            if self.end() < self.start() && self.shared.usable().is_ok() {
                // Without that batch the log would end before it starts.
                self.restart_at(self.start())?;
            }
            return Err(error);
        }
        self.unsynced_since.get_or_insert(now);
        self.flush_by_policy(now)?;
        let durability = self.durability(last);
        Ok(Appended { first, last, timestamp: TimestampMs::NONE, duplicate: false, durability })
    }

    /// Writes replicated batches with as few writes as the segments allow.
    fn append_groups(&mut self, now: TimestampMs, bytes: &[u8], batches: Vec<Replicated>) -> Result<(), AppendError> {
        let mut pending = Group::default();
        for batch in batches {
            let (header, size) = (&batch.header, batch.header.total_bytes());
            let (first, last) = (header.base_offset(), header.last_offset());
            let (timestamp, size_bytes) = (header.max_timestamp(), size as u64);
            if self.is_roll_due(now, last, timestamp, size_bytes, pending.bytes as u64) {
                self.write_group(bytes, &pending, now)?;
                pending = Group { start: batch.position, ..Group::default() };
                self.roll_if_due(now, first, last, timestamp, size_bytes)?;
            }
            pending.bytes += size;
            pending.batches.push(batch);
        }
        self.write_group(bytes, &pending, now)
    }

    /// Reads; see [`LogReader::read`].
    ///
    /// # Errors
    /// As [`LogReader::read`].
    pub fn read(&self, from: Offset, limit: ReadLimit) -> Result<Fetched, ReadError> {
        self.reader().read(from, limit)
    }

    /// A reader of this log, for any thread.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.shared.clone())
    }

    /// The first offset that can be read.
    pub fn start(&self) -> Offset {
        self.shared.start()
    }

    /// The offset of the next append.
    pub fn end(&self) -> Offset {
        self.shared.end()
    }

    /// The flush mark: every record below was synced.
    pub fn flushed(&self) -> Offset {
        self.shared.flushed()
    }

    /// Kafka's recovery point: below it, indexes and snapshots are synced as well. Recovery starts here.
    pub fn recovery_point(&self) -> Offset {
        self.recovery_point
    }

    /// Bytes of batches in all segments.
    pub fn size_bytes(&self) -> u64 {
        self.shared.segments().all().iter().map(|segment| segment.len()).sum()
    }

    /// The segments, oldest first; appends go to the last.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = self.shared.segments();
        let info = |(segment, end): (&Arc<Segment>, Offset)| SegmentInfo {
            base: segment.base(),
            end,
            size_bytes: segment.len(),
        };
        segments.with_ends(self.end()).map(info).collect()
    }

    /// The damage that is known: found when the log was opened, by a read that met it, or by the scrubber.
    pub fn damage(&self) -> Vec<Damaged> {
        self.shared.segments().all().iter().flat_map(|segment| segment.known_damage().all()).collect()
    }

    /// Goes up with each truncation; see [`LogReader::generation`].
    pub fn generation(&self) -> u64 {
        self.shared.generation()
    }

    /// Why the log takes no more calls, if it does not. The call in which that came about may have failed with another
    /// error, or not at all.
    pub fn fence(&self) -> Option<Fence> {
        self.shared.usable().err()
    }

    /// The options.
    pub fn options(&self) -> &LogOptions {
        &self.options
    }

    /// Changes the options, for what comes from now on. The bound on open files stays as it was.
    ///
    /// # Errors
    /// If one is out of range; none is changed then.
    pub fn set_options(&mut self, options: LogOptions) -> Result<(), InvalidOption> {
        options.validate()?;
        self.active.indexes.set_interval(options.index_interval_bytes);
        self.producers.set_max_producers(options.max_producer_ids);
        self.options = options;
        Ok(())
    }

    /// The last stable offset; see [`LogReader::last_stable_offset`].
    ///
    /// Transactions whose markers lie below the high watermark are forgotten by [housekeeping](Log::begin_work): it does
    /// not fall then, should a lower high watermark be given later.
    pub fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        self.shared.last_stable_offset(high_watermark)
    }

    /// The idempotent producers.
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// Notes that a leadership with this epoch begins at `start`, which is the end of the log for a new leader.
    ///
    /// It is written with the next [checkpoint](Log::begin_checkpoint). Until then the batches tell: an epoch that has
    /// none is forgotten in a crash, and needed by nobody.
    ///
    /// # Errors
    /// If the log is closed.
    pub fn assign_epoch(&mut self, epoch: LeaderEpoch, start: Offset) -> Result<(), FlushError> {
        self.shared.usable()?;
        self.assign_epoch_at(epoch, start);
        Ok(())
    }

    /// Where `epoch` ends in this log, as a leader tells a follower.
    pub fn end_of_epoch(&self, epoch: LeaderEpoch) -> EpochEnd {
        self.epochs.end_offset_for(epoch, self.end())
    }

    /// The latest epoch, [`LeaderEpoch::NONE`] if none is known.
    pub fn latest_epoch(&self) -> LeaderEpoch {
        self.epochs.latest()
    }

    /// The epochs and the offsets they start at.
    pub fn epochs(&self) -> &[(LeaderEpoch, Offset)] {
        self.epochs.entries()
    }

    /// Flushes everything, writes the side files and marks the log as closed well, so that the next open reads its tail
    /// only. Its readers end.
    ///
    /// # Errors
    /// If anything could not be written: the log is not marked then, and the next open recovers it.
    pub fn close(mut self) -> Result<CloseReport, FlushError> {
        self.shared.usable()?;
        let report = CloseReport { end: self.end(), start: self.start() };
        let clean = LogState {
            clean: true,
            sync_failed: false,
            log_start: report.start,
            recovery_point: report.end,
            end: report.end,
            topic_id: self.topic_id,
            mark: Some(self.active.mark(report.end)),
        };
        if self.state.last() == Some(clean) && self.epochs_version == self.epochs_written {
            return Ok(report);
        }
        if self.trim_zeros()? {
            let segment = &self.active.segment;
            let synced = segment.file()?.sync_data().context("sync", &segment.path());
            synced.inspect_err(|error| self.close_if_sync_failed(error))?;
        }
        self.checkpoint()?;
        self.active.indexes.finish();
        let base = self.active.segment.base();
        IndexWriter::write_files(&self.place, base, self.active.indexes.indexes())?;
        let aborted = self.active.segment.transactions().in_memory();
        transactions::write_file(&self.place, base, &aborted.unwrap_or_default())?;
        let snapshot = self.place.path(report.end, SegmentFile::ProducerSnapshot);
        checkpoint::replace_file(&*self.place.fs, &snapshot, &self.producers.encode_snapshot())?;
        self.state.record(&self.place, clean)?;
        Ok(report)
    }

    /// Makes it durable that the log is not as its last clean close left it. Before the first change of any kind.
    pub(crate) fn mark_dirty(&mut self) -> Result<(), IoError> {
        if self.state.says_unclean() {
            return Ok(());
        }
        self.record_state(self.start(), self.recovery_point, self.flush_mark())
    }

    /// The flush mark as it stands in the state file; where everything is synced, at the end.
    pub(crate) fn flush_mark(&self) -> Option<FlushMark> {
        let known = self.state.last().and_then(|state| state.mark);
        if self.flushed() >= self.end() { Some(self.active.mark(self.end())) } else { known }
    }

    /// Writes the state file durably. A failed sync closes the log.
    pub(crate) fn record_state(
        &mut self,
        log_start: Offset,
        recovery_point: Offset,
        mark: Option<FlushMark>,
    ) -> Result<(), IoError> {
        let (end, topic_id) = (self.end(), self.topic_id);
        let state = LogState { clean: false, sync_failed: false, log_start, recovery_point, end, topic_id, mark };
        let was_clean = !self.state.says_unclean();
        let recorded = self.state.record(&self.place, state);
        recorded.inspect_err(|error| self.close_if_sync_failed(error))?;
        if was_clean {
            // Durable with the next sync of the directory, and so before the recovery point moves past this segment.
            remove_index_files(&self.place, self.active.segment.base())?;
            self.directory_changes += 1;
        }
        Ok(())
    }

    /// What a failed sync should have written may be lost although the next one succeeds: nothing here is to be relied
    /// on any more.
    pub(crate) fn close_if_sync_failed(&self, error: &IoError) {
        if error.verb.starts_with("sync") {
            self.state.note_sync_failed(&self.place);
            self.shared.close(Fence::SyncFailed(error.to_string()));
        }
    }

    /// Refuses an epoch below that of a record in the log. An epoch without records may give way.
    fn refuse_stale(&self, epoch: LeaderEpoch) -> Result<(), AppendError> {
        let latest = self.latest_epoch_in_use();
        if epoch < latest { Err(AppendError::StaleEpoch { given: epoch, latest }) } else { Ok(()) }
    }

    fn latest_epoch_in_use(&self) -> LeaderEpoch {
        let end = self.end();
        let in_use = self.epochs.entries().iter().rev().find(|(_, start)| *start < end);
        in_use.map_or(LeaderEpoch::NONE, |(epoch, _)| *epoch)
    }

    fn assign_epoch_at(&mut self, epoch: LeaderEpoch, start: Offset) {
        if epoch != self.epochs.latest() && self.epochs.assign(epoch, start) {
            self.epochs_changed();
        }
    }

    /// The epochs in memory are not those in their file any more.
    pub(crate) fn epochs_changed(&mut self) {
        self.epochs_version += 1;
        self.shared.set_epochs(self.epochs.entries());
    }

    /// The rules for replicated batches, over all of them before any is written.
    fn check_replicated(&self, bytes: &[u8]) -> Result<Vec<Replicated>, AppendError> {
        let end = self.shared.end();
        let mut batches = Vec::new();
        let mut epoch = self.latest_epoch_in_use();
        let mut found = batch::batches(bytes);
        let mut position = 0;
        let mut expected = end;
        while let Some(batch) = found.next() {
            let batch = batch?;
            batch.verify_crc().map_err(|what| BatchError { position, what })?;
            let header = *batch.header();
            let first = header.base_offset();
            let last = last_of(first, header.last_offset_delta())?;
            if header.last_offset_delta() < 0 || first < Offset::ZERO {
                return Err(AppendError::OutOfOrder { first, last, after: expected + -1 });
            }
            if first < expected {
                if !batches.is_empty() {
                    return Err(AppendError::OutOfOrder { first, last, after: expected + -1 });
                }
                let starts_inside = self.start() == end && last >= end;
                if !starts_inside {
                    return Err(AppendError::BelowEnd { first, end });
                }
            }
            // Messages from before there were epochs say nothing about them.
            if !header.is_legacy() {
                if header.leader_epoch() < epoch {
                    return Err(AppendError::StaleEpoch { given: header.leader_epoch(), latest: epoch });
                }
                epoch = header.leader_epoch();
            }
            expected = last.next();
            batches.push(Replicated { header, position });
            position = found.position();
        }
        Ok(batches)
    }

    /// Writes a run of replicated batches and takes them in.
    fn write_group(&mut self, bytes: &[u8], group: &Group, now: TimestampMs) -> Result<(), AppendError> {
        let Some(last) = group.batches.last() else { return Ok(()) };
        let slice = bytes.get(group.start..group.start + group.bytes).unwrap_or_default();
        let mut position = self.active.len;
        self.write(&mut [IoSlice::new(slice)], slice.len() as u64)?;
        for batch in &group.batches {
            let header = slice.get(batch.position.saturating_sub(group.start)..).unwrap_or_default();
            self.admit(position, header, &batch.header, now);
            position += batch.header.total_bytes() as u64;
        }
        self.active.publish();
        for batch in batch::batches(slice).flatten() {
            self.take_in_producer(&batch);
        }
        self.shared.set_end(last.header.next_offset());
        Ok(())
    }

    /// Writes at the end of the active segment. After an error nothing of it is left, or the log is closed.
    fn write(&mut self, slices: &mut [IoSlice<'_>], bytes: u64) -> Result<(), AppendError> {
        let file = match &self.active.file {
            Some(file) => file.clone(),
            None => self.open_active()?,
        };
        let position = self.active.len;
        let mut write = || file.write_all_vectored_at(slices, position);
        let written = match &self.active.zeros {
            Some(zeros) => zeros.write(position + bytes, write),
            None => write(),
        };
        let Err(source) = written else {
            self.active.len += bytes;
            return Ok(());
        };
        let error = IoError { verb: "write", path: self.active.segment.path(), source };
        self.active.zeros = None;
        if let Err(left) = file.set_len(position) {
            let fence = Fence::HalfDone(format!("{error}, and the file could not be cut back: {left}"));
            self.shared.close(fence.clone());
            return Err(fence.into());
        }
        if !is_out_of_room(&error) {
            // A device that fails writes may have failed earlier ones without a word.
            self.shared.close(Fence::HalfDone(error.to_string()));
        }
        Err(error.into())
    }

    /// Opens the active segment's file for a write. It is this log's alone: a segment that became active because the ones
    /// behind it are gone may be part of a copy of the log.
    fn open_active(&mut self) -> Result<Arc<dyn File>, IoError> {
        if let Some(own) = self.active.segment.with_own_file(self.active.len)? {
            own.set_indexes(Indexes::Memory(self.active.indexes.indexes().clone()));
            own.publish(self.active.len, self.active.indexes.largest_timestamp());
            self.shared.update_segments(|segments| segments.with_last(own.clone()));
            self.active.segment = own.clone();
            self.active.zeros = None;
            self.directory_changes += 1;
            own.take_name().inspect_err(|error| self.shared.close(Fence::HalfDone(error.to_string())))?;
        }
        Ok(self.active.file.insert(self.active.segment.file()?).clone())
    }

    /// Takes a batch that was written into indexes and ages.
    fn admit(&mut self, position: u64, bytes: &[u8], header: &BatchHeader, now: TimestampMs) {
        self.active.last = LastBatch::of(position, bytes, header);
        self.active.indexes.add(position, header);
        if position == 0 {
            self.active.first_timestamp = Some(header.max_timestamp());
        }
        self.active.since.get_or_insert(now);
    }

    /// Takes a batch that was written, as it stands in the log, into the producers' state and what follows from it.
    fn take_in_producer(&mut self, batch: &BatchView<'_>) {
        let completed = self.producers.replicated(batch);
        if let Some(aborted) = completed.and_then(|completed| completed.aborted()) {
            self.active.segment.transactions().append(aborted);
        }
        if batch.is_transactional() {
            let mut undecided = self.shared.undecided();
            undecided.set_first_open(self.producers.first_open_transaction());
            completed.iter().for_each(|completed| undecided.end(completed));
        }
    }

    /// Kafka's conditions (`LogSegment.shouldRoll`), for a batch that would follow `pending` bytes behind the segment.
    fn is_roll_due(&self, now: TimestampMs, last: Offset, timestamp: TimestampMs, bytes: u64, pending: u64) -> bool {
        let active = &self.active;
        if last - active.segment.base() > i64::from(i32::MAX) {
            return true;
        }
        let occupied = active.len.saturating_add(pending);
        let fits = occupied.saturating_add(bytes) <= u64::from(self.options.segment_bytes);
        occupied > 0 && (!fits || self.is_old(now, timestamp) || active.indexes.indexes().is_full(&self.options))
    }

    /// Whether the active segment is too old for a record of this time: by its first record's time, or by the clock.
    fn is_old(&self, now: TimestampMs, timestamp: TimestampMs) -> bool {
        let limit = self.segment_ms();
        let age = match self.active.first_timestamp.filter(|first| first.0 >= 0) {
            Some(first) => timestamp.since(first),
            None => self.active.since.map_or(0, |since| now.since(since)),
        };
        age > limit
    }

    /// The age at which the active segment rolls.
    pub(crate) fn segment_ms(&self) -> i64 {
        let base = self.active.segment.base();
        // The active segment is not compacted.
        let lag_ms = self.options.compaction.as_ref().map_or(i64::MAX, |compaction| compaction.max_compaction_lag_ms);
        let segment_ms = self.options.segment_ms.min(lag_ms);
        segment_ms.saturating_sub(jitter(&self.place.dir, base, self.options.segment_jitter_ms.min(segment_ms)))
    }

    fn roll_if_due(
        &mut self,
        now: TimestampMs,
        first: Offset,
        last: Offset,
        timestamp: TimestampMs,
        bytes: u64,
    ) -> Result<(), AppendError> {
        if !self.is_roll_due(now, last, timestamp, bytes, 0) {
            return Ok(());
        }
        let end = self.end();
        if last - end <= i64::from(i32::MAX) {
            // The base is the end and not the batch's first offset (Kafka's choice): where every segment begins where
            // the one before ends, recovery sees a lost tail.
            self.roll(end)?;
            return Ok(());
        }
        // Too far off for that. The recovery point goes behind the gap, or recovery would take it for a lost tail.
        self.roll(first)?;
        self.checkpoint()?;
        self.recovery_point = first;
        self.record_state(self.start(), first, self.flush_mark())?;
        Ok(())
    }

    /// Makes a new active segment at `base`. Nothing is synced here; the next flush sees to it.
    pub(crate) fn roll(&mut self, base: Offset) -> Result<(), IoError> {
        if self.active.segment.base() == base {
            return Ok(());
        }
        // Synced with the segment's last batches, before those of the next one are.
        self.trim_zeros()?;
        let segment = Arc::new(Segment::new(self.place.clone(), base, 0));
        segment.create_file()?;
        self.directory_changes += 1;
        let next = Active::new(segment.clone(), &self.options);
        if self.active.len == 0 {
            // An empty segment is replaced, not kept: two segments would begin at offsets with nothing between them.
            let old = std::mem::replace(&mut self.active, next);
            self.shared.update_segments(|segments| segments.with_last(segment));
            return self.place.remove(&old.segment.path());
        }
        let file = match &self.active.file {
            Some(file) => file.clone(),
            None => self.active.segment.file()?,
        };
        self.active.indexes.finish();
        let old = std::mem::replace(&mut self.active, next);
        let old_aborted = old.segment.transactions().in_memory();
        self.sealed.push(Sealed {
            segment: old.segment,
            file: Some(file),
            end: base,
            indexes: Some(old.indexes.indexes().clone()),
            aborted: old_aborted,
            snapshot: Some(self.producers.encode_snapshot().into()),
        });
        self.shared.update_segments(|segments| segments.with(segment));
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.close(Fence::Closed);
        // The directory may be opened again at once, by a log that knows nothing of them.
        self.jobs.append(&mut self.copies);
        self.disown_jobs();
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("dir", &self.place.dir)
            .field("start", &self.start())
            .field("end", &self.end())
            .field("flushed", &self.flushed())
            .finish_non_exhaustive()
    }
}

/// A replicated batch in the bytes it came in.
#[derive(Debug)]
struct Replicated {
    header: BatchHeader,
    position: usize,
}

/// Replicated batches that go into the same segment with one write.
#[derive(Debug, Default)]
struct Group {
    start: usize,
    bytes: usize,
    batches: Vec<Replicated>,
}

/// The last offset of a batch, if offsets reach that far: the end of the log is one more.
fn last_of(first: Offset, last_offset_delta: i32) -> Result<Offset, AppendError> {
    let last = first.checked_add(i64::from(last_offset_delta)).filter(|last| *last < Offset::MAX);
    last.ok_or(AppendError::OffsetsExhausted)
}

/// Whether a write failed for want of room, which may be there again later.
pub(crate) fn is_out_of_room(error: &IoError) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::WriteZero
    )
}

/// Writes the file of leader epochs, durably.
pub(crate) fn write_epochs(place: &Place, entries: &[(LeaderEpoch, Offset)]) -> Result<(), IoError> {
    let path = place.dir.join(EPOCHS_FILE);
    checkpoint::write_epochs(&*place.fs, &path, entries).map_err(|error| match error {
        CheckpointError::Io(error) => error,
        malformed => IoError { verb: "write", path, source: io::Error::other(malformed) },
    })
}

/// The milliseconds by which this segment rolls earlier than others. Drawn from its name, not from a generator: the
/// storage has no randomness, and what matters is that logs differ.
fn jitter(dir: &Path, base: Offset, max: i64) -> i64 {
    if max <= 0 {
        return 0;
    }
    let mut hash = crc32fast::Hasher::new();
    hash.update(dir.as_os_str().as_encoded_bytes());
    hash.update(&base.0.to_be_bytes());
    i64::from(hash.finalize()) % max
}
