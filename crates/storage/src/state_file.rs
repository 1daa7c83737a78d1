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
//! The valid slot with the highest sequence number tells all. *Facts* are synced before the call returns and alternate
//! between two slots, so that a torn write spoils only the older one. *Marks* are written after a flush without a sync of
//! their own, and have slots of their own, or a torn mark could take a fact with it. Each slot is one sector.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use byteorder::{BigEndian, ByteOrder};

use crate::batch::HEADER_BYTES;
use crate::checkpoint::replace_file;
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
}

/// The state file of one log. The writer and the jobs that sync for it share it.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
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
    next_fact: usize,
    next_mark: usize,
    last: Option<LogState>,
    /// What was read may have been written by a process that died before its sync, and a mark is not synced.
    is_durable: bool,
    /// Each slot held something whole or nothing at all.
    is_whole: bool,
    /// One that did not is still in the file.
    is_torn: bool,
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
            is_torn: false,
            sync_failed: false,
        };
        match fs.open(&path, OpenMode::Read) {
            Ok(file) => slots.read(&*file).context("read", &path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("open", &path),
        }
        let says_unclean = AtomicBool::new(slots.last.is_some_and(|last| !last.clean));
        Ok(Self { path, file: LazySlot::default(), slots: Mutex::new(slots), says_unclean })
    }

    /// What was last read or written.
    pub(crate) fn last(&self) -> Option<LogState> {
        self.slots().last
    }

    /// Whether no slot was damaged when it was read: what was last read is then the last that was written and synced.
    pub(crate) fn is_whole(&self) -> bool {
        self.slots().is_whole
    }

    /// Takes what the file says for nothing: it is not about this log.
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
        if slots.last == Some(content) && slots.is_durable && !slots.is_torn {
            return Ok(());
        }
        let slot = encode(slots.sequence + 1, &content);
        // A part that was torn would look, once the log was closed well, like one that has rotted. On a full disk it stays.
        let mut in_place = slots.exists && !slots.is_torn;
        if !in_place {
            let mut bytes = slot.to_vec();
            bytes.resize(SLOT_BYTES * SLOTS, 0);
            let replaced = replace_file(&*place.fs, &self.path, &bytes);
            // Whichever file has the name by now.
            self.file.release();
            match replaced {
                Ok(()) => {
                    (slots.exists, slots.is_torn) = (true, false);
                    (slots.next_fact, slots.next_mark) = (1, 0);
                }
                Err(error) if slots.exists && is_out_of_room(&error) => in_place = true,
                Err(error) => return Err(error),
            }
        }
        if in_place {
            let file = self.file(place).context("open", &self.path)?;
            file.write_all_at(&slot, (slots.next_fact * SLOT_BYTES) as u64).context("write", &self.path)?;
            file.sync_data().context("sync", &self.path)?;
            slots.next_fact = 1 - slots.next_fact;
        }
        slots.sequence += 1;
        slots.last = Some(content);
        slots.is_durable = true;
        self.says_unclean.store(!content.clean, Ordering::Release);
        Ok(())
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
        if let Ok(file) = slots.write_mark(&content, || self.file(place)) {
            slots.is_durable = durably && file.sync_data().is_ok();
        }
    }

    /// Notes that a sync failed, as well as it can be done: the device that refused one may refuse this as well.
    pub(crate) fn note_sync_failed(&self, place: &Place) {
        let mut slots = self.slots();
        slots.sync_failed = true;
        let Some(last) = slots.last.filter(|last| !last.sync_failed) else { return };
        let content = LogState { sync_failed: true, clean: false, ..last };
        if let Ok(file) = slots.write_mark(&content, || self.file(place)) {
            let _ = file.sync_data();
            self.says_unclean.store(true, Ordering::Release);
        }
        slots.is_durable = false;
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
        self.file.get(&place.open_files, || place.fs.open(&self.path, OpenMode::ReadWrite))
    }
}

impl Slots {
    fn read(&mut self, file: &dyn File) -> io::Result<()> {
        let mut bytes = [0; SLOT_BYTES * SLOTS];
        file.read_full_at(&mut bytes, 0)?;
        self.exists = true;
        let mut sequences = [0; SLOTS];
        for (sequence, bytes) in sequences.iter_mut().zip(bytes.chunks_exact(SLOT_BYTES)) {
            let Some((found, content)) = decode(bytes) else {
                self.is_whole &= bytes.iter().all(|byte| *byte == 0);
                continue;
            };
            *sequence = found;
            if found > self.sequence {
                (self.sequence, self.last) = (found, Some(content));
            }
        }
        self.is_torn = !self.is_whole;
        // The next write of each kind goes to the slot that holds less.
        let [fact_0, fact_1, mark_0, mark_1] = sequences;
        self.next_fact = usize::from(fact_0 > fact_1);
        self.next_mark = usize::from(mark_0 > mark_1);
        Ok(())
    }

    /// Writes a mark slot without a sync.
    fn write_mark(
        &mut self,
        content: &LogState,
        file: impl FnOnce() -> io::Result<Arc<dyn File>>,
    ) -> io::Result<Arc<dyn File>> {
        let position = ((FACT_SLOTS + self.next_mark) * SLOT_BYTES) as u64;
        let slot = encode(self.sequence + 1, content);
        self.sequence += 1;
        let file = file()?;
        file.write_all_at(&slot, position)?;
        self.next_mark = 1 - self.next_mark;
        self.last = Some(*content);
        Ok(file)
    }
}

fn encode(sequence: u64, state: &LogState) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
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

/// The sequence number and content of a slot, if it holds a whole one.
fn decode(slot: &[u8]) -> Option<(u64, LogState)> {
    if slot.get(..8)? != MAGIC || !crc_matches(slot, CRC_AT)? {
        return None;
    }
    if BigEndian::read_u16(slot.get(8..10)?) != VERSION {
        return None;
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
    (ordered && mark_ordered).then_some((BigEndian::read_u64(slot.get(12..20)?), state))
}

/// Whether the checksum at `at` is that of all before it.
fn crc_matches(slot: &[u8], at: usize) -> Option<bool> {
    Some(crc32fast::hash(slot.get(..at)?) == BigEndian::read_u32(slot.get(at..at + 4)?))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::OpenFiles;
    use crate::fs::SimFs;

    fn state(clean: bool, log_start: i64, recovery_point: i64, end: i64) -> LogState {
        let (log_start, recovery_point, end) = (Offset(log_start), Offset(recovery_point), Offset(end));
        let (topic_id, mark) = (TopicId([7; 16]), None);
        LogState { clean, sync_failed: false, log_start, recovery_point, end, topic_id, mark }
    }

    fn mark(offset: i64) -> FlushMark {
        let position = offset as u64 * 100;
        let (segment_base, batch_position) = (Offset(offset / 10 * 10), position.saturating_sub(99));
        FlushMark { segment_base, batch_position, position, offset: Offset(offset), header: [offset as u8; 61] }
    }

    fn disk() -> (SimFs, Place) {
        let fs = SimFs::new(1);
        fs.create_dir(Path::new("/log")).unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        let place = place(Arc::new(fs.clone()));
        (fs, place)
    }

    fn place(fs: Arc<dyn Fs>) -> Place {
        Place {
            fs,
            dir: Path::new("/log").into(),
            open_files: OpenFiles::default(),
            index_interval_bytes: 4096,
            read_only: false,
            rebuilt: Default::default(),
        }
    }

    #[test]
    fn what_was_recorded_is_read_back_and_the_newest_wins() {
        let (fs, place) = disk();
        let file = StateFile::load(&place).unwrap();
        assert_eq!(file.last(), None);
        for at in 1..8 {
            file.record(&place, state(false, at, at, 100)).unwrap();
            assert_eq!(StateFile::load(&place).unwrap().last(), Some(state(false, at, at, 100)));
            file.mark(&place, mark(at + 50), Some(Offset(at + 40)), at % 2 == 0, || true);
            let marked = LogState { mark: Some(mark(at + 50)), ..state(false, at, at + 40, 100) };
            assert_eq!(StateFile::load(&place).unwrap().last(), Some(marked));
        }
        assert_eq!(fs.metadata(&place.dir.join(STATE_FILE)).unwrap().len, 2048);
    }

    #[test]
    fn a_mark_only_rises_unless_a_fact_lowers_it() {
        let (_, place) = disk();
        let file = StateFile::load(&place).unwrap();
        file.record(&place, state(false, 0, 0, 0)).unwrap();
        file.mark(&place, mark(50), None, false, || true);
        file.mark(&place, mark(40), None, false, || true);
        assert_eq!(file.last().unwrap().mark, Some(mark(50)), "of two syncs the one that began earlier may end later");
        assert_eq!(file.last().unwrap().end, Offset(50));
        file.mark(&place, mark(60), None, false, || false);
        assert_eq!(file.last().unwrap().mark, Some(mark(50)), "what was synced was cut off meanwhile");
        file.record(&place, LogState { mark: Some(mark(30)), ..state(false, 0, 0, 30) }).unwrap();
        assert_eq!(StateFile::load(&place).unwrap().last().unwrap().mark, Some(mark(30)));
    }

    #[test]
    fn a_clean_log_is_not_marked() {
        let (_, place) = disk();
        let file = StateFile::load(&place).unwrap();
        file.mark(&place, mark(7), None, true, || true);
        file.record(&place, state(true, 0, 5, 5)).unwrap();
        file.mark(&place, mark(7), Some(Offset(7)), true, || true);
        assert_eq!(StateFile::load(&place).unwrap().last(), Some(state(true, 0, 5, 5)));
    }

    #[test]
    fn any_damaged_slot_is_passed_over_for_the_one_before() {
        let (fs, place) = disk();
        let first = LogState { mark: Some(mark(11)), ..state(false, 1, 1, 11) };
        let second = LogState { mark: Some(mark(12)), ..state(false, 2, 2, 12) };
        let file = StateFile::load(&place).unwrap();
        file.record(&place, first).unwrap();
        file.record(&place, second).unwrap();
        let raw = fs.open(&place.dir.join(STATE_FILE), OpenMode::ReadWrite).unwrap();
        for at in 0..(MARK_CRC_AT + 4) as u64 {
            let mut byte = [0];
            raw.read_exact_at(&mut byte, 512 + at).unwrap();
            raw.write_all_at(&[byte[0] ^ 1], 512 + at).unwrap();
            assert_eq!(StateFile::load(&place).unwrap().last(), Some(first), "byte {at}");
            raw.write_all_at(&byte, 512 + at).unwrap();
        }
        raw.set_len(700).unwrap();
        assert_eq!(StateFile::load(&place).unwrap().last(), Some(second), "a short file");
        raw.set_len(0).unwrap();
        assert_eq!(StateFile::load(&place).unwrap().last(), None, "an empty one");
    }

    #[test]
    fn what_is_recorded_after_a_torn_slot_leaves_none() {
        let (fs, place) = disk();
        let file = StateFile::load(&place).unwrap();
        file.record(&place, state(false, 1, 1, 11)).unwrap();
        file.mark(&place, mark(5), None, true, || true);
        file.mark(&place, mark(6), None, true, || true);
        for slot in 0..SLOTS as u64 {
            let raw = fs.open(&place.dir.join(STATE_FILE), OpenMode::ReadWrite).unwrap();
            raw.write_all_at(b"torn", slot * SLOT_BYTES as u64 + 30).unwrap();
            let file = StateFile::load(&place).unwrap();
            assert!(!file.is_whole(), "slot {slot}");
            let known = file.last().unwrap();
            // Also where it says the same, and where a mark was written in between.
            file.mark(&place, mark(7), None, true, || slot % 2 == 0);
            file.record(&place, LogState { mark: Some(mark(8)), ..known }).unwrap();
            let file = StateFile::load(&place).unwrap();
            assert_eq!((file.is_whole(), file.last().unwrap().mark), (true, Some(mark(8))), "slot {slot}");
            file.mark(&place, mark(9), None, true, || true);
            file.record(&place, state(false, 1, 1, 11)).unwrap();
            file.mark(&place, mark(5), None, true, || true);
            file.mark(&place, mark(6), None, true, || true);
            assert!(StateFile::load(&place).unwrap().is_whole(), "slot {slot}");
        }
    }

    #[test]
    fn a_slot_from_before_there_were_marks_is_one_without() {
        let (fs, place) = disk();
        StateFile::load(&place).unwrap().record(&place, state(false, 3, 4, 5)).unwrap();
        let raw = fs.open(&place.dir.join(STATE_FILE), OpenMode::ReadWrite).unwrap();
        let mut slot = [0; SLOT_BYTES];
        raw.read_exact_at(&mut slot, 0).unwrap();
        assert_eq!((&slot[8..12], &slot[MARK_AT..]), (&[0, 1, 0, 0][..], &[0; SLOT_BYTES - MARK_AT][..]));
        assert_eq!(StateFile::load(&place).unwrap().last(), Some(state(false, 3, 4, 5)));
    }

    #[test]
    fn a_failed_sync_is_remembered_beside_the_mark_that_stood() {
        let (_, place) = disk();
        let file = StateFile::load(&place).unwrap();
        file.record(&place, state(false, 0, 0, 0)).unwrap();
        file.mark(&place, mark(50), None, true, || true);
        file.note_sync_failed(&place);
        let known = StateFile::load(&place).unwrap().last().unwrap();
        assert_eq!((known.sync_failed, known.mark), (true, Some(mark(50))));
        // Whoever was writing just then does not make it forgotten, nor closed well.
        file.record(&place, LogState { sync_failed: false, clean: true, ..known }).unwrap();
        file.mark(&place, mark(60), None, true, || true);
        let reloaded = StateFile::load(&place).unwrap();
        let known = reloaded.last().unwrap();
        assert_eq!((known.sync_failed, known.clean, known.mark), (true, false, Some(mark(60))));
        // The next opening sees to it.
        reloaded.record(&place, LogState { sync_failed: false, ..known }).unwrap();
        assert!(!StateFile::load(&place).unwrap().last().unwrap().sync_failed);
    }

    #[test]
    fn a_fact_survives_every_crash_after_it_was_recorded() {
        let run = |place: &Place, log: &mut Vec<LogState>| -> Result<(), IoError> {
            let file = StateFile::load(place)?;
            for at in 0..6 {
                let content = LogState { mark: Some(mark(2 * at)), ..state(false, at, 2 * at, 100) };
                file.record(place, content)?;
                log.push(content);
                file.mark(place, mark(2 * at + 1), Some(Offset(2 * at + 1)), false, || true);
                file.mark(place, mark(2 * at + 2), Some(Offset(2 * at + 2)), true, || true);
            }
            Ok(())
        };
        let (whole, whole_place) = disk();
        run(&whole_place, &mut Vec::new()).unwrap();
        for calls in 0..whole.calls() {
            let (fs, crashing) = disk();
            let mut recorded = Vec::new();
            fs.crash_after(calls);
            let _ = run(&crashing, &mut recorded);
            for image in fs.images(24, calls) {
                let found = StateFile::load(&place(Arc::new(image))).unwrap().last();
                let least = recorded.last().map(|last| last.log_start);
                assert!(found.map(|found| found.log_start) >= least, "call {calls}: {found:?} < {least:?}");
                let Some(found) = found else { continue };
                assert!(found.recovery_point <= Offset(2 * found.log_start.0 + 2), "call {calls}: {found:?}");
                assert_eq!(found.mark.map(|mark| mark.offset), Some(found.recovery_point), "call {calls}");
            }
        }
    }
}
