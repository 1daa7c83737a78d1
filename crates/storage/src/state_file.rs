//! `highwater-state`: the small file of ours beside Kafka's in a partition's directory.
//!
//! It makes the log start durable at once, where Kafka's checkpoint in the data root lags by up to a minute; it tells a
//! log that is opened on its own (without a data root) whether it was closed well and from where to recover; it is
//! lowered before a truncation touches anything, so that a crash half way is seen; and it holds the flush mark, which
//! tells rot from a torn write.
//!
//! ```text
//! byte 0     512      1024     1536     2048
//!      ┌────────┬────────┬────────┬────────┐   slot: magic "HWSTATE\n" | version u16 = 1 | flags u16
//!      │ fact   │ fact   │ mark   │ mark   │         sequence u64 | log start i64 | recovery point i64 | end i64
//!      └────────┴────────┴────────┴────────┘         topic id 16 bytes | crc32 u32 (IEEE, of all before it)
//!                                                    if flag 2: segment base i64 | batch position u64 | position u64
//!      flags 1: clean, 2: has a flush mark,          offset i64 | the batch's first 61 bytes | crc32 u32 (of all before it)
//!            4: a sync failed                        zeros
//! ```
//!
//! A failed sync may have left its fact in the file or not. The note of it has a higher number, and what is careful of
//! both: the higher log start, the lower flush mark, never clean. Where there are no facts yet, as in a directory that
//! Kafka wrote, or none about this log, it is a slot of version 2, which holds the flag and the number and nothing else.
//! A file with such a note is replaced by a new one when the log was opened again: nobody knows what of it is on the disk.
//!
//! The valid slot with the highest sequence number tells all. *Facts* are synced before the call returns and alternate
//! between two slots, so that a torn write spoils only the older one. *Marks* are written after a flush without a sync of
//! their own, and have slots of their own, or a torn mark could take a fact with it. Each slot is one sector.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use byteorder::{BigEndian, ByteOrder};

use crate::batch::HEADER_BYTES;
use crate::checkpoint::{replace_file, temporary_path};
use crate::fs::{File, Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::log::is_out_of_room;
use crate::open_files::LazySlot;
use crate::segment::Place;
use crate::{Offset, TopicId};

/// The file's name.
pub(crate) const STATE_FILE: &str = "highwater-state";

const SLOT_BYTES: usize = 512;
const SLOTS: usize = 4;
const FACT_SLOTS: usize = 2;
const MAGIC: &[u8; 8] = b"HWSTATE\n";
const VERSION: u16 = 1;
/// Of a slot that tells of a failed sync and nothing else. A reader that does not know it passes over it.
const VERSION_NOTE_ONLY: u16 = 2;
const CLEAN: u16 = 1;
const HAS_MARK: u16 = 2;
const SYNC_FAILED: u16 = 4;
const CRC_AT: usize = 60;
const MARK_AT: usize = CRC_AT + 4;
const MARK_HEADER_AT: usize = MARK_AT + 32;
const MARK_CRC_AT: usize = MARK_HEADER_AT + HEADER_BYTES;

/// Up to where a log was synced, and what lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlushMark {
    /// The segment in which the synced batches end.
    pub(crate) segment_base: Offset,
    /// Where in its file the last of them begins; the same as [`FlushMark::position`] if there is none in it.
    pub(crate) batch_position: u64,
    /// Where in its file the synced batches end.
    pub(crate) position: u64,
    /// The offset after the last of them. All below was synced, in all segments.
    pub(crate) offset: Offset,
    /// The first bytes of the last of them as they were written, with zeros behind a batch that is shorter; all zeros if
    /// there is none in that segment.
    pub(crate) header: [u8; HEADER_BYTES],
}

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// Closed well, and not written to since.
    pub(crate) clean: bool,
    /// A sync failed: what lies above the mark may be readable and not on the disk.
    pub(crate) sync_failed: bool,
    /// Nothing below is part of the log any more.
    pub(crate) log_start: Offset,
    /// Everything below is synced, side files too.
    pub(crate) recovery_point: Offset,
    /// The end of the log when this was written; with [`LogState::clean`] it is the end.
    pub(crate) end: Offset,
    /// The topic the log belongs to, if its directory says; the state of another topic's log says nothing about it.
    pub(crate) topic_id: TopicId,
    /// Up to where the batches are synced, if anything was since the last reset.
    pub(crate) mark: Option<FlushMark>,
}

impl LogState {
    /// All records below were synced.
    pub(crate) fn synced(&self) -> Offset {
        let marked = self.mark.map_or(self.recovery_point, |mark| mark.offset.max(self.recovery_point));
        if self.clean { self.end } else { marked }
    }

    /// What holds of a log of which nobody knows whether it is this or, after a write whose sync failed, the `other`.
    fn or(self, other: Self) -> Self {
        let marks = self.mark.zip(other.mark);
        Self {
            clean: false,
            sync_failed: true,
            log_start: self.log_start.max(other.log_start),
            recovery_point: self.recovery_point.min(other.recovery_point),
            end: self.end.max(other.end),
            topic_id: other.topic_id,
            mark: marks.map(|(one, other)| if one.offset < other.offset { one } else { other }),
        }
    }
}

/// The state file of one log. The writer and the jobs that sync for it share it.
#[derive(Debug)]
pub(crate) struct StateFile {
    /// Open while it is written to, within the bound on open files: a mark is to cost one write.
    file: LazySlot,
    slots: Mutex<Slots>,
    /// Whether it says that the log is not as its last clean close left it; asked before each append.
    says_unclean: AtomicBool,
}

/// What is in the slots, and which are next.
#[derive(Debug)]
struct Slots {
    exists: bool,
    sequence: u64,
    next_fact: u8,
    next_mark: u8,
    last: Option<LogState>,
    /// What was read may have been written by a process that died before its sync, and a mark is not synced.
    is_durable: bool,
    /// Each slot held something whole or nothing at all.
    is_whole: bool,
    /// One that did not is still in the file, or what a failed sync left.
    is_spoiled: bool,
    /// What was read tells of a failed sync, with facts or without.
    had_sync_failed: bool,
    /// A sync failed since the file was read: whatever is written from then on says so.
    sync_failed: bool,
}

impl StateFile {
    /// Reads the file of the log in this place. A missing or wholly damaged file says nothing, and is no error.
    pub(crate) fn load(place: &Place) -> Result<Self, IoError> {
        Self::read(&*place.fs, &place.dir)
    }

    /// As [`StateFile::load`], for a directory that need not become a log's.
    pub(crate) fn read(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        let path = dir.join(STATE_FILE);
        let mut slots = Slots {
            exists: false,
            sequence: 0,
            next_fact: 0,
            next_mark: 0,
            last: None,
            is_durable: true,
            is_whole: true,
            is_spoiled: false,
            had_sync_failed: false,
            sync_failed: false,
        };
        match fs.open(&path, OpenMode::Read) {
            Ok(file) => slots.read(&*file).context("read", &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("open", &path),
        }
        let says_unclean = AtomicBool::new(slots.last.is_some_and(|last| !last.clean));
        Ok(Self { file: LazySlot::default(), slots: Mutex::new(slots), says_unclean })
    }

    /// What was last read or written.
    pub(crate) fn last(&self) -> Option<LogState> {
        self.slots().last
    }

    /// Whether no slot was damaged when it was read: what was last read is then the last that was written and synced.
    pub(crate) fn is_whole(&self) -> bool {
        self.slots().is_whole
    }

    /// Whether a sync had failed when the file was read, and nobody has seen to it since.
    pub(crate) fn had_sync_failed(&self) -> bool {
        self.slots().had_sync_failed
    }

    /// Takes what the file says for nothing: it is not about this log. That a sync failed in its directory may be.
    pub(crate) fn disown(&self) {
        self.slots().last = None;
        self.says_unclean.store(false, Ordering::Release);
    }

    /// Whether the log is marked as not closed well.
    pub(crate) fn says_unclean(&self) -> bool {
        self.says_unclean.load(Ordering::Acquire)
    }

    /// What was read is to be written again by the next [`StateFile::record`], even if it stays the same.
    pub(crate) fn forget_durability(&self) {
        self.slots().is_durable = false;
    }

    /// Writes `content` durably, unless the file says so already.
    pub(crate) fn record(&self, place: &Place, content: LogState) -> Result<(), IoError> {
        self.record_in(&mut self.slots(), place, content)
    }

    /// Raises the log start in the file, durably, if that is `still` so: asked when no other write to the file can come in
    /// between. Where it does not say that the log is written to, it says what `unclean` has. `None` if it is not so any
    /// more, else whether it said before that the log was closed well.
    pub(crate) fn raise_start(
        &self,
        place: &Place,
        to: Offset,
        unclean: Option<LogState>,
        still: impl FnOnce() -> bool,
    ) -> Result<Option<bool>, IoError> {
        let mut slots = self.slots();
        let written_to = slots.last.filter(|last| !last.clean);
        let Some(known) = written_to.or(unclean).filter(|_| still()) else { return Ok(None) };
        self.record_in(&mut slots, place, LogState { log_start: known.log_start.max(to), ..known })?;
        Ok(Some(written_to.is_none()))
    }

    fn record_in(&self, slots: &mut Slots, place: &Place, content: LogState) -> Result<(), IoError> {
        let content = LogState {
            clean: content.clean && !slots.sync_failed,
            sync_failed: content.sync_failed || slots.sync_failed,
            ..content
        };
        if slots.last == Some(content) && slots.is_durable && !slots.is_spoiled {
            return Ok(());
        }
        // The number is used up even if this fails: it may be in the file, and what comes later is to win over it.
        slots.sequence += 1;
        let slot = encode(slots.sequence, Some(&content));
        if let Err(error) = self.write_fact(slots, place, &slot) {
            if error.is_failed_sync() {
                self.note(slots, place, Some(content));
            }
            return Err(error);
        }
        slots.last = Some(content);
        slots.is_durable = true;
        slots.had_sync_failed = content.sync_failed;
        self.says_unclean.store(!content.clean, Ordering::Release);
        Ok(())
    }

    fn write_fact(&self, slots: &mut Slots, place: &Place, slot: &[u8; SLOT_BYTES]) -> Result<(), IoError> {
        // A part that was torn would look, once the log was closed well, like one that has rotted, and after a failed sync
        // nobody knows which slot to spare. On a full disk it stays.
        if !slots.exists || slots.is_spoiled {
            match self.replace(slots, place, slot) {
                Err(error) if slots.exists && is_out_of_room(&error) => {}
                replaced => return replaced,
            }
        }
        let path = path_in(place);
        let file = self.file(place).context("open", &path)?;
        let position = usize::from(slots.next_fact) * SLOT_BYTES;
        file.write_all_at(slot, position as u64).context("write", &path)?;
        file.sync_data().context("sync", &path)?;
        slots.next_fact = 1 - slots.next_fact;
        Ok(())
    }

    /// Puts a new file with this slot in the place of the one that may be there.
    fn replace(&self, slots: &mut Slots, place: &Place, slot: &[u8; SLOT_BYTES]) -> Result<(), IoError> {
        let mut bytes = slot.to_vec();
        bytes.resize(SLOT_BYTES * SLOTS, 0);
        let path = path_in(place);
        let replaced = replace_file(&*place.fs, &path, &bytes);
        // Whichever file has the name by now.
        self.file.release();
        // Where it is the directory's sync that failed, this is the file that is written to from now on.
        let has_name = |error: &IoError| error.is_failed_sync() && error.path != temporary_path(&path);
        if replaced.as_ref().err().is_none_or(has_name) {
            (slots.exists, slots.is_spoiled) = (true, false);
            (slots.next_fact, slots.next_mark) = (1, 0);
        }
        replaced
    }

    /// Raises the flush mark in the file, and the recovery point if one is given, if that is `still` so: asked when no
    /// other write to the file can come in between. The log must be marked unclean already. The write is synced if
    /// `durably`.
    ///
    /// A failure is not reported: recovery then starts further back, which costs time, and takes rot above the old mark
    /// for a torn write.
    pub(crate) fn mark(
        &self,
        place: &Place,
        mark: FlushMark,
        recovery_point: Option<Offset>,
        durably: bool,
        still: impl FnOnce() -> bool,
    ) {
        let mut slots = self.slots();
        let Some(last) = slots.last.filter(|last| !last.clean && still()) else { return };
        let mut content = last;
        if content.mark.is_none_or(|known| known.offset <= mark.offset) {
            content.mark = Some(mark);
        }
        content.recovery_point = recovery_point.map_or(content.recovery_point, |to| to.max(content.recovery_point));
        content.end = content.end.max(mark.offset);
        if content == last && (slots.is_durable || !durably) {
            return;
        }
        // The number is used up even if this fails: a part of the slot may have been written.
        slots.sequence += 1;
        let slot = encode(slots.sequence, Some(&content));
        if let Ok(file) = slots.write_mark(&slot, || self.file(place)) {
            slots.last = Some(content);
            slots.is_durable = durably && file.sync_data().is_ok();
        }
    }

    /// Notes that a sync failed, as well as it can be done: the device that refused one may refuse this as well.
    pub(crate) fn note_sync_failed(&self, place: &Place) {
        self.note(&mut self.slots(), place, None);
    }

    /// As [`StateFile::note_sync_failed`]. If it is the sync of a fact that failed, that is `doubtful`.
    fn note(&self, slots: &mut Slots, place: &Place, doubtful: Option<LogState>) {
        if std::mem::replace(&mut slots.sync_failed, true) && doubtful.is_none() {
            return;
        }
        let known = match (slots.last, doubtful) {
            (Some(last), Some(doubtful)) => Some(last.or(doubtful)),
            (last, doubtful) => last.or(doubtful),
        };
        let content = known.map(|known| LogState { sync_failed: true, clean: false, ..known });
        if content.is_some() {
            self.says_unclean.store(true, Ordering::Release);
        }
        (slots.last, slots.is_durable, slots.had_sync_failed) = (content, false, true);
        slots.sequence += 1;
        let slot = encode(slots.sequence, content.as_ref());
        // Where a mark goes, so that no fact is lost with it. Who opens the log next finds it, also where it is not on the
        // disk; if it is not, that may be for the pages that the sync before has failed on, and a new file has none of them.
        let in_place = slots.exists.then(|| slots.write_mark(&slot, || self.file(place)));
        let is_noted = in_place.is_some_and(|written| written.is_ok_and(|file| file.sync_data().is_ok()));
        if !is_noted && self.replace(slots, place, &slot).is_err() && !slots.exists {
            self.create_unsynced(slots, place, &slot);
        }
    }

    /// Makes the file with this slot, for who opens the log next while the machine runs. Where a power cut takes it back,
    /// all that can be read is on the disk, and the file is empty or not there.
    fn create_unsynced(&self, slots: &mut Slots, place: &Place, slot: &[u8; SLOT_BYTES]) {
        let created = place.fs.open(&path_in(place), OpenMode::CreateNew);
        if created.and_then(|file| file.write_all_at(slot, 0)).is_ok() {
            slots.exists = true;
            (slots.next_fact, slots.next_mark) = (1, 0);
        }
    }

    /// Waits until a mark that is being written is: after it, jobs see what was set before.
    pub(crate) fn wait_for_marks(&self) {
        drop(self.slots());
    }

    /// Closes the file until the next write.
    pub(crate) fn release(&self) {
        self.file.release();
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, place: &Place) -> io::Result<Arc<dyn File>> {
        self.file.get(&place.open_files, || place.fs.open(&path_in(place), OpenMode::ReadWrite))
    }
}

fn path_in(place: &Place) -> PathBuf {
    place.dir.join(STATE_FILE)
}

impl Slots {
    fn read(&mut self, file: &dyn File) -> io::Result<()> {
        let mut bytes = [0; SLOT_BYTES * SLOTS];
        file.read_full_at(&mut bytes, 0)?;
        self.exists = true;
        let mut sequences = [0; SLOTS];
        let (mut told, mut noted) = (0, 0);
        for (sequence, bytes) in sequences.iter_mut().zip(bytes.chunks_exact(SLOT_BYTES)) {
            let Some((found, content)) = decode(bytes) else {
                self.is_whole &= bytes.iter().all(|byte| *byte == 0);
                continue;
            };
            *sequence = found;
            self.sequence = self.sequence.max(found);
            if content.is_none() {
                noted = noted.max(found);
            } else if found > told {
                (told, self.last) = (found, content);
            }
        }
        self.had_sync_failed = noted > told || self.last.is_some_and(|last| last.sync_failed);
        self.is_spoiled = !self.is_whole || self.had_sync_failed;
        // The next write of each kind goes to the slot that holds less.
        let [fact_0, fact_1, mark_0, mark_1] = sequences;
        self.next_fact = u8::from(fact_0 > fact_1);
        self.next_mark = u8::from(mark_0 > mark_1);
        Ok(())
    }

    /// Writes a mark slot without a sync.
    fn write_mark(
        &mut self,
        slot: &[u8; SLOT_BYTES],
        file: impl FnOnce() -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        let position = ((FACT_SLOTS + usize::from(self.next_mark)) * SLOT_BYTES) as u64;
        let file = file()?;
        file.write_all_at(slot, position)?;
        self.next_mark = 1 - self.next_mark;
        Ok(file)
    }
}

/// A slot; without a state one that tells of a failed sync only.
fn encode(sequence: u64, state: Option<&LogState>) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let Some(state) = state else {
        let mut at = put(&mut bytes, 0, MAGIC);
        at = put(&mut bytes, at, &VERSION_NOTE_ONLY.to_be_bytes());
        at = put(&mut bytes, at, &SYNC_FAILED.to_be_bytes());
        put(&mut bytes, at, &sequence.to_be_bytes());
        put_crc(&mut bytes, CRC_AT);
        return bytes;
    };
    let mut flags = 0;
    for (set, flag) in [(state.clean, CLEAN), (state.mark.is_some(), HAS_MARK), (state.sync_failed, SYNC_FAILED)] {
        flags |= if set { flag } else { 0 };
    }
    let mut at = put(&mut bytes, 0, MAGIC);
    at = put(&mut bytes, at, &VERSION.to_be_bytes());
    at = put(&mut bytes, at, &flags.to_be_bytes());
    at = put(&mut bytes, at, &sequence.to_be_bytes());
    at = put(&mut bytes, at, &state.log_start.0.to_be_bytes());
    at = put(&mut bytes, at, &state.recovery_point.0.to_be_bytes());
    at = put(&mut bytes, at, &state.end.0.to_be_bytes());
    at = put(&mut bytes, at, &state.topic_id.0);
    at = put_crc(&mut bytes, at);
    if let Some(mark) = &state.mark {
        at = put(&mut bytes, at, &mark.segment_base.0.to_be_bytes());
        at = put(&mut bytes, at, &mark.batch_position.to_be_bytes());
        at = put(&mut bytes, at, &mark.position.to_be_bytes());
        at = put(&mut bytes, at, &mark.offset.0.to_be_bytes());
        at = put(&mut bytes, at, &mark.header);
        put_crc(&mut bytes, at);
    }
    bytes
}

/// Puts a field in, and returns where the next one goes.
fn put(bytes: &mut [u8; SLOT_BYTES], at: usize, field: &[u8]) -> usize {
    let end = at + field.len();
    if let Some(place) = bytes.get_mut(at..end) {
        place.copy_from_slice(field);
    }
    end
}

/// Puts the checksum of all before it in.
fn put_crc(bytes: &mut [u8; SLOT_BYTES], at: usize) -> usize {
    let crc = crc32fast::hash(bytes.get(..at).unwrap_or_default());
    put(bytes, at, &crc.to_be_bytes())
}

/// The sequence number and content of a slot, if it holds a whole one; no content if that is a failed sync only.
fn decode(slot: &[u8]) -> Option<(u64, Option<LogState>)> {
    if slot.get(..8)? != MAGIC || !crc_matches(slot, CRC_AT)? {
        return None;
    }
    let sequence = BigEndian::read_u64(slot.get(12..20)?);
    match BigEndian::read_u16(slot.get(8..10)?) {
        VERSION => {}
        VERSION_NOTE_ONLY => return Some((sequence, None)),
        _ => return None,
    }
    let flags = BigEndian::read_u16(slot.get(10..12)?);
    let offset = |at: usize| Some(Offset(BigEndian::read_i64(slot.get(at..at + 8)?)));
    let position = |at: usize| Some(BigEndian::read_u64(slot.get(at..at + 8)?));
    let mark = if flags & HAS_MARK == 0 {
        None
    } else if crc_matches(slot, MARK_CRC_AT)? {
        Some(FlushMark {
            segment_base: offset(MARK_AT)?,
            batch_position: position(MARK_AT + 8)?,
            position: position(MARK_AT + 16)?,
            offset: offset(MARK_AT + 24)?,
            header: *slot.get(MARK_HEADER_AT..)?.first_chunk()?,
        })
    } else {
        return None;
    };
    let state = LogState {
        clean: flags & CLEAN != 0,
        sync_failed: flags & SYNC_FAILED != 0,
        log_start: offset(20)?,
        recovery_point: offset(28)?,
        end: offset(36)?,
        topic_id: TopicId(*slot.get(44..)?.first_chunk()?),
        mark,
    };
    // A checksum says that we wrote it, not that we meant it: later code relies on the order.
    let ordered = Offset::ZERO <= state.log_start && Offset::ZERO <= state.recovery_point && Offset::ZERO <= state.end;
    let mark_ordered = mark.is_none_or(|mark| {
        Offset::ZERO <= mark.segment_base && mark.segment_base <= mark.offset && mark.batch_position <= mark.position
    });
    (ordered && mark_ordered).then_some((sequence, Some(state)))
}

/// Whether the checksum at `at` is that of all before it.
fn crc_matches(slot: &[u8], at: usize) -> Option<bool> {
    Some(crc32fast::hash(slot.get(..at)?) == BigEndian::read_u32(slot.get(at..at + 4)?))
}

#[cfg(test)]
mod tests;
