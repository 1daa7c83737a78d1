//! `highwater-state`: the small file of ours beside Kafka's in a partition's directory.
//!
//! It makes the log start durable at once, where Kafka's checkpoint in the data root lags by up to a minute; it tells a
//! log that is opened on its own (without a data root) whether it was closed well and from where to recover; and it is
//! lowered before a truncation touches anything, so that a crash half way is seen.
//!
//! ```text
//! byte 0     512      1024     1536     2048
//!      ┌────────┬────────┬────────┬────────┐   slot: magic "HWSTATE\n" | version u16 = 1 | flags u16 (1: clean)
//!      │ fact   │ fact   │ mark   │ mark   │         sequence u64 | log start i64 | recovery point i64 | end i64
//!      └────────┴────────┴────────┴────────┘         topic id 16 bytes | crc32 u32 (IEEE, of all before it)
//!                                                    zeros, reserved for the flush mark
//! ```
//!
//! The valid slot with the highest sequence number tells all. *Facts* are synced before the call returns and alternate
//! between two slots, so that a torn write spoils only the older one. *Marks* raise the recovery point after a flush
//! without a sync of their own; they have slots of their own, or a torn mark could take a fact with it. Each slot is one
//! sector.

use std::io;
use std::path::{Path, PathBuf};

use byteorder::{BigEndian, ByteOrder};

use crate::checkpoint::replace_file;
use crate::fs::{Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::{Offset, TopicId};

/// The file's name.
pub(crate) const STATE_FILE: &str = "highwater-state";

const SLOT_BYTES: usize = 512;
const SLOTS: usize = 4;
const FACT_SLOTS: usize = 2;
const MAGIC: &[u8; 8] = b"HWSTATE\n";
const VERSION: u16 = 1;
const CLEAN: u16 = 1;
const CRC_AT: usize = 60;
const ENCODED_BYTES: usize = CRC_AT + 4;

/// What the file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogState {
    /// Closed well, and not written to since.
    pub(crate) clean: bool,
    /// Nothing below is part of the log any more.
    pub(crate) log_start: Offset,
    /// Everything below is synced, side files too.
    pub(crate) recovery_point: Offset,
    /// The end of the log when this was written; with [`LogState::clean`] it is the end.
    pub(crate) end: Offset,
    /// The topic the log belongs to, if its directory says; the state of another topic's log says nothing about it.
    pub(crate) topic_id: TopicId,
}

/// The open state file of one log.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    exists: bool,
    sequence: u64,
    next_fact: usize,
    next_mark: usize,
    last: Option<LogState>,
    /// What was read may have been written by a process that died before its sync.
    is_durable: bool,
}

impl StateFile {
    /// Reads the file of the log in `dir`. A missing or wholly damaged file says nothing, and is no error.
    pub(crate) fn load(fs: &dyn Fs, dir: &Path) -> Result<Self, IoError> {
        let mut state = Self {
            path: dir.join(STATE_FILE),
            exists: false,
            sequence: 0,
            next_fact: 0,
            next_mark: 0,
            last: None,
            is_durable: true,
        };
        let file = match fs.open(&state.path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(state),
            Err(error) => return Err(error).context("open", &state.path),
        };
        let mut bytes = [0; SLOT_BYTES * SLOTS];
        file.read_full_at(&mut bytes, 0).context("read", &state.path)?;
        state.exists = true;
        let mut sequences = [0; SLOTS];
        for (sequence, bytes) in sequences.iter_mut().zip(bytes.chunks_exact(SLOT_BYTES)) {
            let Some((found, content)) = decode(bytes) else { continue };
            *sequence = found;
            if found > state.sequence {
                (state.sequence, state.last) = (found, Some(content));
            }
        }
        // The next write of each kind goes to the slot that holds less.
        let [fact_0, fact_1, mark_0, mark_1] = sequences;
        state.next_fact = usize::from(fact_0 > fact_1);
        state.next_mark = usize::from(mark_0 > mark_1);
        Ok(state)
    }

    /// What was last read or written.
    pub(crate) fn last(&self) -> Option<LogState> {
        self.last
    }

    /// Takes what the file says for nothing: it is not about this log.
    pub(crate) fn disown(&mut self) {
        self.last = None;
    }

    /// What was read is to be written again by the next [`StateFile::record`], even if it stays the same.
    pub(crate) fn forget_durability(&mut self) {
        self.is_durable = false;
    }

    /// Writes `content` durably, unless the file says so already.
    pub(crate) fn record(&mut self, fs: &dyn Fs, content: LogState) -> Result<(), IoError> {
        if self.last == Some(content) && self.is_durable {
            return Ok(());
        }
        let slot = encode(self.sequence + 1, &content);
        if self.exists {
            let file = fs.open(&self.path, OpenMode::ReadWrite).context("open", &self.path)?;
            file.write_all_at(&slot, (self.next_fact * SLOT_BYTES) as u64).context("write", &self.path)?;
            file.sync_data().context("sync", &self.path)?;
            self.next_fact = 1 - self.next_fact;
        } else {
            let mut bytes = slot.to_vec();
            bytes.resize(SLOT_BYTES * SLOTS, 0);
            replace_file(fs, &self.path, &bytes)?;
            (self.exists, self.next_fact) = (true, 1);
        }
        self.sequence += 1;
        self.last = Some(content);
        self.is_durable = true;
        Ok(())
    }

    /// Raises the recovery point in the file, without a sync. The log must be marked unclean already.
    ///
    /// A failure is not reported: recovery then starts further back, which costs time and nothing else.
    pub(crate) fn mark(&mut self, fs: &dyn Fs, recovery_point: Offset) {
        let Some(mut content) = self.last.filter(|last| !last.clean && last.recovery_point != recovery_point) else {
            return;
        };
        content.recovery_point = recovery_point;
        content.end = content.end.max(recovery_point);
        let position = ((FACT_SLOTS + self.next_mark) * SLOT_BYTES) as u64;
        let slot = encode(self.sequence + 1, &content);
        let written = fs.open(&self.path, OpenMode::ReadWrite).and_then(|file| file.write_all_at(&slot, position));
        // The number is used up even so: a part of the slot may have been written.
        self.sequence += 1;
        if written.is_ok() {
            self.next_mark = 1 - self.next_mark;
            self.last = Some(content);
        }
    }
}

fn encode(sequence: u64, state: &LogState) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let mut out: &mut [u8] = &mut bytes;
    let flags = if state.clean { CLEAN } else { 0 };
    let mut put = |field: &[u8]| {
        let (head, rest) = std::mem::take(&mut out).split_at_mut(field.len());
        head.copy_from_slice(field);
        out = rest;
    };
    put(MAGIC);
    put(&VERSION.to_be_bytes());
    put(&flags.to_be_bytes());
    put(&sequence.to_be_bytes());
    put(&state.log_start.0.to_be_bytes());
    put(&state.recovery_point.0.to_be_bytes());
    put(&state.end.0.to_be_bytes());
    put(&state.topic_id.0);
    let crc = crc32fast::hash(bytes.get(..CRC_AT).unwrap_or_default());
    if let Some(field) = bytes.get_mut(CRC_AT..ENCODED_BYTES) {
        BigEndian::write_u32(field, crc);
    }
    bytes
}

/// The sequence number and content of a slot, if it holds a whole one.
fn decode(slot: &[u8]) -> Option<(u64, LogState)> {
    let crc = BigEndian::read_u32(slot.get(CRC_AT..ENCODED_BYTES)?);
    if slot.get(..8)? != MAGIC || crc32fast::hash(slot.get(..CRC_AT)?) != crc {
        return None;
    }
    if BigEndian::read_u16(slot.get(8..10)?) != VERSION {
        return None;
    }
    let offset = |at: usize| Some(Offset(BigEndian::read_i64(slot.get(at..at + 8)?)));
    let state = LogState {
        clean: BigEndian::read_u16(slot.get(10..12)?) & CLEAN != 0,
        log_start: offset(20)?,
        recovery_point: offset(28)?,
        end: offset(36)?,
        topic_id: TopicId(*slot.get(44..)?.first_chunk()?),
    };
    // A checksum says that we wrote it, not that we meant it: later code relies on the order.
    let ordered = Offset::ZERO <= state.log_start && Offset::ZERO <= state.recovery_point && Offset::ZERO <= state.end;
    ordered.then_some((BigEndian::read_u64(slot.get(12..20)?), state))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fs::SimFs;

    fn state(clean: bool, log_start: i64, recovery_point: i64, end: i64) -> LogState {
        let (log_start, recovery_point, end) = (Offset(log_start), Offset(recovery_point), Offset(end));
        LogState { clean, log_start, recovery_point, end, topic_id: TopicId([7; 16]) }
    }

    fn disk() -> (SimFs, &'static Path) {
        let fs = SimFs::new(1);
        fs.create_dir(Path::new("/log")).unwrap();
        fs.sync_dir(Path::new("/")).unwrap();
        (fs, Path::new("/log"))
    }

    #[test]
    fn what_was_recorded_is_read_back_and_the_newest_wins() {
        let (fs, dir) = disk();
        let mut file = StateFile::load(&fs, dir).unwrap();
        assert_eq!(file.last(), None);
        for at in 0..7 {
            file.record(&fs, state(false, at, at, 100)).unwrap();
            assert_eq!(StateFile::load(&fs, dir).unwrap().last(), Some(state(false, at, at, 100)));
            file.mark(&fs, Offset(at + 50));
            assert_eq!(StateFile::load(&fs, dir).unwrap().last(), Some(state(false, at, at + 50, 100)));
        }
        assert_eq!(fs.metadata(&dir.join(STATE_FILE)).unwrap().len, 2048);
    }

    #[test]
    fn a_clean_log_is_not_marked() {
        let (fs, dir) = disk();
        let mut file = StateFile::load(&fs, dir).unwrap();
        file.mark(&fs, Offset(7));
        file.record(&fs, state(true, 0, 5, 5)).unwrap();
        file.mark(&fs, Offset(7));
        assert_eq!(StateFile::load(&fs, dir).unwrap().last(), Some(state(true, 0, 5, 5)));
    }

    #[test]
    fn any_damaged_slot_is_passed_over_for_the_one_before() {
        let (fs, dir) = disk();
        let mut file = StateFile::load(&fs, dir).unwrap();
        file.record(&fs, state(false, 1, 1, 1)).unwrap();
        file.record(&fs, state(false, 2, 2, 2)).unwrap();
        let raw = fs.open(&dir.join(STATE_FILE), OpenMode::ReadWrite).unwrap();
        for at in 0..ENCODED_BYTES as u64 {
            let mut byte = [0];
            raw.read_exact_at(&mut byte, 512 + at).unwrap();
            raw.write_all_at(&[byte[0] ^ 1], 512 + at).unwrap();
            assert_eq!(StateFile::load(&fs, dir).unwrap().last(), Some(state(false, 1, 1, 1)), "byte {at}");
            raw.write_all_at(&byte, 512 + at).unwrap();
        }
        raw.set_len(700).unwrap();
        assert_eq!(StateFile::load(&fs, dir).unwrap().last(), Some(state(false, 2, 2, 2)), "a short file");
        raw.set_len(0).unwrap();
        assert_eq!(StateFile::load(&fs, dir).unwrap().last(), None, "an empty one");
    }

    #[test]
    fn a_fact_survives_every_crash_after_it_was_recorded() {
        let run = |fs: &SimFs, log: &mut Vec<LogState>| -> Result<(), IoError> {
            let dir = Path::new("/log");
            let mut file = StateFile::load(fs, dir)?;
            for at in 0..6 {
                let content = state(false, at, 2 * at, 100);
                file.record(fs, content)?;
                log.push(content);
                file.mark(fs, Offset(2 * at + 1));
                file.mark(fs, Offset(2 * at + 2));
            }
            Ok(())
        };
        let (whole, _) = disk();
        run(&whole, &mut Vec::new()).unwrap();
        for calls in 0..whole.calls() {
            let (fs, dir) = disk();
            let mut recorded = Vec::new();
            fs.crash_after(calls);
            let _ = run(&fs, &mut recorded);
            for image in fs.images(24, calls) {
                let image: Arc<dyn Fs> = Arc::new(image);
                let found = StateFile::load(&*image, dir).unwrap().last();
                let least = recorded.last().map(|last| last.log_start);
                assert!(found.map(|found| found.log_start) >= least, "call {calls}: {found:?} < {least:?}");
                let Some(found) = found else { continue };
                assert!(found.recovery_point <= Offset(2 * found.log_start.0 + 2), "call {calls}: {found:?}");
            }
        }
    }
}
