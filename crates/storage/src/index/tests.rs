use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;

use super::*;
use crate::fs::{File, FileKind, Mapped, Metadata};

/// A file in memory: gives its bytes in pieces, has maps or not, and may fail.
#[derive(Clone, Debug)]
pub(crate) struct BytesFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) piece: usize,
    pub(crate) has_maps: bool,
    pub(crate) fails: bool,
}

impl BytesFile {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, piece: 3, has_maps: false, fails: false }
    }
}

impl File for BytesFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        if self.fails {
            return Err(io::Error::other("the disk is gone"));
        }
        let start = self.bytes.len().min(usize::try_from(position).expect("small"));
        let count = buffer.len().min(self.bytes.len() - start).min(self.piece);
        buffer[..count].copy_from_slice(&self.bytes[start..start + count]);
        Ok(count)
    }

    fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn metadata(&self) -> io::Result<Metadata> {
        let len = self.bytes.len() as u64;
        Ok(Metadata { kind: FileKind::File, len, modified: TimestampMs(0), inode: 1, links: 1 })
    }

    fn map(&self, len: usize) -> io::Result<Option<Mapped>> {
        Ok(self.has_maps.then(|| Box::new(self.bytes[..len].to_vec()) as Mapped))
    }

    fn raw_descriptor(&self) -> Option<crate::fs::RawDescriptor> {
        None
    }
}

const BASE: Offset = Offset(45);

fn offsets(entries: &[(i64, u32)]) -> ActiveOffsetIndex {
    let index = ActiveOffsetIndex::new(BASE, 8 * 30);
    for &(offset, position) in entries {
        index.append(Offset(offset), position).expect("in order");
    }
    index
}

fn entry(offset: i64, position: u32) -> OffsetEntry {
    OffsetEntry { offset: Offset(offset), position }
}

fn time(timestamp: i64, offset: i64) -> TimeEntry {
    TimeEntry { timestamp: TimestampMs(timestamp), offset: Offset(offset) }
}

fn sealed(bytes: Vec<u8>, has_maps: bool, data_bytes: u64) -> Result<SealedOffsetIndex, IndexError> {
    let len = bytes.len() as u64;
    let file = BytesFile { has_maps, ..BytesFile::new(bytes) };
    SealedOffsetIndex::open(Arc::new(file), len, BASE, data_bytes)
}

#[test]
fn an_empty_index_points_at_the_start() {
    assert_eq!(offsets(&[]).lookup(Offset(92)), entry(45, 0));
    assert_eq!(offsets(&[]).upper_bound(entry(45, 0), 1), None);
    assert_eq!(ActiveTimeIndex::new(BASE, 1200).lookup(TimestampMs(92)), time(-1, 45));
    for has_maps in [true, false] {
        let index = sealed(Vec::new(), has_maps, 0).expect("empty");
        assert_eq!(index.lookup(Offset(92)).expect("readable"), entry(45, 0));
    }
}

#[test]
fn a_full_index_takes_no_more() {
    let index = ActiveOffsetIndex::new(BASE, 8 * 30 + 7);
    for at in 0..30 {
        assert!(!index.is_full());
        index.append(BASE + i64::from(at) + 1, at * 10).expect("fits");
    }
    assert!(index.is_full());
    assert_eq!(index.append(Offset(999), 999), Err(IndexAppendError::Full(30)));
    assert_eq!((index.len(), index.last()), (30, Some(entry(75, 290))));
    assert_eq!(ActiveOffsetIndex::new(BASE, 7).append(Offset(50), 0), Err(IndexAppendError::Full(0)));
}

#[test]
fn offsets_rise() {
    let index = offsets(&[(51, 0)]);
    for offset in [50, 51] {
        let (offset, last) = (Offset(offset), Offset(51));
        assert_eq!(index.append(offset, 1), Err(IndexAppendError::OffsetOutOfOrder { offset, last }));
    }
    assert_eq!(index.len(), 1);
}

#[test]
fn offsets_lie_within_reach_of_the_base() {
    let times = ActiveTimeIndex::new(BASE, 1200);
    for offset in [Offset(44), BASE + (1 << 31), Offset::MAX, Offset(i64::MIN)] {
        let expected = IndexAppendError::OffsetOutOfRange { offset, base: BASE };
        assert_eq!(offsets(&[]).append(offset, 0), Err(expected));
        assert_eq!(times.append(TimestampMs(1), offset), Err(expected));
    }
    let last = BASE + ((1 << 31) - 1);
    let index = offsets(&[]);
    index.append(last, u32::MAX).expect("the last in reach");
    times.append(TimestampMs(1), last).expect("the last in reach");
    assert_eq!(index.lookup(Offset::MAX), OffsetEntry { offset: last, position: u32::MAX });
    let copy = ActiveTimeIndex::load(BASE, 1200, &times.encode_from(0)).expect("an index");
    assert_eq!(copy.last(), Some(TimeEntry { timestamp: TimestampMs(1), offset: last }));
}

#[test]
fn truncation_drops_the_exact_match_too() {
    let index = ActiveOffsetIndex::new(Offset(0), 80);
    for offset in 1..10u32 {
        index.append(Offset(i64::from(offset)), offset).expect("in order");
    }
    let last = || index.last().map(|entry| entry.offset.0);
    index.truncate_to(Offset(12));
    assert_eq!((index.len(), last()), (9, Some(9)));
    index.append(Offset(10), 10).expect("in order");
    index.truncate_to(Offset(10));
    assert_eq!((index.len(), last()), (9, Some(9)));
    index.truncate_to(Offset(9));
    assert_eq!(last(), Some(8));
    index.append(Offset(9), 9).expect("in order");
    index.truncate_to(Offset(5));
    assert_eq!((index.len(), last()), (4, Some(4)));
    index.clear();
    assert!(index.is_empty());
    assert_eq!(index.lookup(Offset(9)), entry(0, 0));
}

#[test]
fn the_upper_bound_is_by_position() {
    let index = offsets(&[(45, 0), (46, 10), (47, 23), (48, 37)]);
    let first = entry(45, 0);
    for (bytes, expected) in [
        (5, Some(entry(46, 10))),
        (10, Some(entry(46, 10))),
        (23, Some(entry(47, 23))),
        (22, Some(entry(47, 23))),
        (200, None),
        (u64::MAX, None),
    ] {
        assert_eq!(index.upper_bound(first, bytes), expected, "{bytes}");
        let sealed = sealed(index.encode_from(0), false, 100).expect("an index");
        assert_eq!(sealed.upper_bound(first, bytes).expect("readable"), expected);
    }
}

#[test]
fn the_last_slot_of_a_time_index_is_kept_for_the_last_entry() {
    let index = ActiveTimeIndex::new(BASE, 12 * 30);
    for at in 1..=29 {
        assert!(!index.is_full());
        assert_eq!(index.append(TimestampMs(10 * at), BASE + 10 * at), Ok(true));
    }
    assert!(index.is_full());
    assert_eq!(index.lookup(TimestampMs(9)), time(-1, 45));
    assert_eq!(index.lookup(TimestampMs(25)), time(20, 65));
    assert_eq!(index.lookup(TimestampMs(30)), time(30, 75));
    assert_eq!(index.append(TimestampMs(300), Offset(345)), Err(IndexAppendError::Full(29)));
    assert_eq!(index.append_final(TimestampMs(300), Offset(345)), Ok(true));
    assert_eq!(index.append_final(TimestampMs(310), Offset(355)), Err(IndexAppendError::Full(30)));
    index.truncate_to(Offset(75));
    assert_eq!((index.len(), index.last()), (2, Some(time(20, 65))));
    index.clear();
    assert!(index.is_empty());
}

#[test]
fn times_rise_and_offsets_do_not_fall() {
    let index = ActiveTimeIndex::new(BASE, 1200);
    assert_eq!(index.append(TimestampMs::NONE, Offset(46)), Ok(false), "no time is no entry");
    assert_eq!(index.append(TimestampMs(100), Offset(50)), Ok(true));
    let order = IndexAppendError::OffsetOutOfOrder { offset: Offset(49), last: Offset(50) };
    assert_eq!(index.append(TimestampMs(200), Offset(49)), Err(order));
    assert_eq!(index.append(TimestampMs(99), Offset(49)), Err(order), "the offset is judged first");
    let (timestamp, last) = (TimestampMs(99), TimestampMs(100));
    let order = IndexAppendError::TimestampOutOfOrder { timestamp, last };
    assert_eq!(index.append(timestamp, Offset(60)), Err(order));
    assert_eq!(index.append(TimestampMs(100), Offset(60)), Ok(false));
    assert_eq!(index.append(TimestampMs(101), Offset(50)), Ok(true));
    assert_eq!(index.len(), 2);
}

#[test]
fn files_hold_kafkas_bytes() {
    let index = offsets(&[(46, 0x0102_0304), (0x0506 + 45, 0xf000_0000)]);
    let bytes = [0, 0, 0, 1, 1, 2, 3, 4, 0, 0, 5, 6, 0xf0, 0, 0, 0];
    assert_eq!(index.encode_from(0), bytes);
    assert_eq!(index.encode_from(1), bytes[8..]);
    assert_eq!((index.encode_from(2), index.size_bytes()), (Vec::new(), 16));
    let index = ActiveTimeIndex::new(BASE, 1200);
    index.append(TimestampMs(0x0102_0304_0506), Offset(47)).expect("in order");
    assert_eq!(index.encode_from(0), [0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 2]);
    assert_eq!(index.size_bytes(), 12);
}

#[track_caller]
fn check_bad_offsets(bytes: &[u8], position: u64) {
    let loaded = ActiveOffsetIndex::load(BASE, 1 << 20, bytes, 1000).expect_err("bad");
    assert_eq!(loaded.position, position, "{loaded}");
    // A sealed index may be opened, but not pass a full check.
    let opened = sealed(bytes.to_vec(), true, 1000).map(|index| index.verify(1000));
    assert!(matches!(opened, Err(IndexError::Fault(_)) | Ok(Err(IndexError::Fault(_)))), "{opened:?}");
}

fn raw_offsets(entries: &[(i32, u32)]) -> Vec<u8> {
    entries.iter().flat_map(|(offset, position)| [offset.to_be_bytes(), position.to_be_bytes()].concat()).collect()
}

fn raw_times(entries: &[(i64, i32)]) -> Vec<u8> {
    entries.iter().flat_map(|(time, offset)| [&time.to_be_bytes()[..], &offset.to_be_bytes()].concat()).collect()
}

#[test]
fn an_offset_index_that_cannot_be_right_is_refused() {
    let good = raw_offsets(&[(0, 0), (5, 100), (9, 999)]);
    assert!(ActiveOffsetIndex::load(BASE, 1 << 20, &good, 1000).is_ok());
    for cut in [1, 4, 7] {
        check_bad_offsets(&good[..16 + cut], 16);
    }
    check_bad_offsets(&raw_offsets(&[(-1, 0)]), 0);
    check_bad_offsets(&raw_offsets(&[(3, 10), (3, 20)]), 8);
    check_bad_offsets(&raw_offsets(&[(3, 10), (4, 10)]), 8);
    check_bad_offsets(&raw_offsets(&[(3, 10), (2, 20)]), 8);
    check_bad_offsets(&raw_offsets(&[(3, 10), (4, 1000)]), 8);
    // What Kafka leaves behind when it is killed: the rest of a preallocated file.
    check_bad_offsets(&raw_offsets(&[(3, 10), (4, 20), (0, 0), (0, 0)]), 16);
    check_bad_offsets(&[0xff; 64], 0);
}

#[track_caller]
fn check_bad_times(bytes: &[u8], position: u64) {
    let loaded = ActiveTimeIndex::load(BASE, 1 << 20, bytes).expect_err("bad");
    assert_eq!(loaded.position, position, "{loaded}");
    let file = Arc::new(BytesFile::new(bytes.to_vec()));
    let opened = SealedTimeIndex::open(file, bytes.len() as u64, BASE).map(|index| index.verify());
    assert!(matches!(opened, Err(IndexError::Fault(_)) | Ok(Err(IndexError::Fault(_)))), "{opened:?}");
}

#[test]
fn a_time_index_that_cannot_be_right_is_refused() {
    // S47: a wrong length, a time that goes back, an offset below the base.
    let good = raw_times(&[(5, 0), (9, 0), (10, 7)]);
    assert!(ActiveTimeIndex::load(BASE, 1 << 20, &good).is_ok());
    check_bad_times(&good[..29], 24);
    check_bad_times(&raw_times(&[(9, 1), (5, 2)]), 12);
    check_bad_times(&raw_times(&[(9, 1), (9, 2)]), 12);
    check_bad_times(&raw_times(&[(9, 2), (10, 1)]), 12);
    check_bad_times(&raw_times(&[(9, -1)]), 0);
    check_bad_times(&raw_times(&[(-1, 3)]), 0);
    check_bad_times(&raw_times(&[(9, 1), (0, 0), (0, 0)]), 12);
}

#[test]
fn a_sealed_index_notices_bad_ends_when_opened() {
    let last_offset = raw_offsets(&[(3, 10), (-4, 20)]);
    let last_position = raw_offsets(&[(3, 10), (4, 1000)]);
    for bytes in [last_offset, last_position] {
        assert!(matches!(sealed(bytes, true, 1000), Err(IndexError::Fault(IndexFault { position: 8, .. }))));
    }
    let bytes = raw_times(&[(9, 1), (11, 2), (5, 3)]);
    let opened = SealedTimeIndex::open(Arc::new(BytesFile::new(bytes)), 36, BASE);
    assert!(matches!(opened, Err(IndexError::Fault(IndexFault { position: 24, .. }))));
}

#[test]
fn a_file_that_cannot_be_read_is_not_damaged() {
    let bytes = raw_offsets(&[(3, 10)]);
    let broken = BytesFile { fails: true, ..BytesFile::new(bytes.clone()) };
    assert!(matches!(SealedOffsetIndex::open(Arc::new(broken), 8, BASE, 1000), Err(IndexError::Io(_))));
    // Shorter than its directory said.
    for has_maps in [true, false] {
        let short = BytesFile { has_maps, ..BytesFile::new(bytes.clone()) };
        let opened = SealedOffsetIndex::open(Arc::new(short), 16, BASE, 1000);
        assert!(matches!(opened, Err(IndexError::Io(_))), "{opened:?}");
    }
}

#[test]
fn words_find_their_blocks() {
    let mut expected = (0, 0);
    for index in 0..5000 {
        assert_eq!(Words::place(index), expected, "{index}");
        expected.1 += 1;
        if expected.1 == FIRST_BLOCK_WORDS << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert_eq!(Words::place((FIRST_BLOCK_WORDS << BLOCKS) - FIRST_BLOCK_WORDS - 1).0, BLOCKS - 1);
    assert_eq!(Words::new().get(usize::MAX), 0);
}

#[test]
fn readers_see_whole_entries_while_the_writer_appends() {
    let index = ActiveOffsetIndex::new(Offset(0), 1 << 20);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !is_done.load(Ordering::Acquire) {
                        let Some(last) = index.last() else { continue };
                        assert!(last.offset.0 >= seen, "the end never goes back");
                        seen = last.offset.0;
                        for target in [seen / 3, seen / 2, seen] {
                            let found = index.lookup(Offset(target));
                            assert_eq!(found.offset.0, target);
                            assert_eq!(i64::from(found.position), target * 2);
                        }
                    }
                    seen
                })
            })
            .collect();
        for offset in 0..100_000u32 {
            index.append(Offset(i64::from(offset)), offset * 2).expect("in order");
        }
        is_done.store(true, Ordering::Release);
        for reader in readers {
            assert!(reader.join().expect("no panic") < 100_000);
        }
    });
    assert!(index.iter().map(|entry| entry.offset.0).eq(0..100_000));
}

#[test]
fn readers_survive_truncations() {
    let index = ActiveTimeIndex::new(Offset(0), 1 << 20);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let found = index.lookup(TimestampMs(500));
                // Of whichever time they are: an entry may mix two of them, but is never out of what was written.
                assert!((-1..=3000).contains(&found.timestamp.0) && (0..=3000).contains(&found.offset.0));
                assert!(index.iter().count() <= 1000);
            }
        });
        for round in 0..100 {
            for at in 1..=1000 {
                index.append(TimestampMs(at * (1 + round % 3)), Offset(at * (1 + round % 3))).expect("in order");
            }
            index.truncate_to(Offset(round * 7));
            index.clear();
        }
        is_done.store(true, Ordering::Release);
        reader.join().expect("no panic");
    });
}

#[derive(Clone, Debug)]
enum Step {
    Append { gap: i64, bytes: u32 },
    Truncate(prop::sample::Index),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        100 => (1..50i64, 1..5000u32).prop_map(|(gap, bytes)| Step::Append { gap, bytes }),
        1 => any::<prop::sample::Index>().prop_map(Step::Truncate),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    /// An index is a sorted map from offsets to positions, in memory, in a map and in a file alike.
    #[test]
    fn an_offset_index_is_a_sorted_map(steps in prop::collection::vec(step(), 1..600)) {
        let mut model = BTreeMap::new();
        let mut index = ActiveOffsetIndex::new(BASE, 1 << 20);
        let (mut next, mut position) = (BASE.0, 0);
        for step in steps {
            match step {
                Step::Append { gap, bytes } => {
                    next += gap;
                    index.append(Offset(next), position).expect("in order");
                    model.insert(next, position);
                    position += bytes;
                }
                Step::Truncate(at) => {
                    let target = BASE.0 + i64::try_from(at.index(1 + usize::try_from(next - BASE.0).expect("small"))).expect("small");
                    index.truncate_to(Offset(target));
                    model.split_off(&target);
                    next = model.last_key_value().map_or(BASE.0, |(&offset, _)| offset);
                    position = model.last_key_value().map_or(0, |(_, &position)| position + 1);
                }
                Step::Reopen => {
                    index = ActiveOffsetIndex::load(BASE, 1 << 20, &index.encode_from(0), u64::from(position)).expect("good");
                }
            }
        }
        let bytes = index.encode_from(0);
        let mapped = sealed(bytes.clone(), true, u64::from(position)).expect("good");
        let read = sealed(bytes, false, u64::from(position)).expect("good");
        prop_assert!(mapped.verify(u64::from(position)).is_ok());
        prop_assert_eq!(index.len(), model.len());
        for target in (BASE.0 - 2..next + 3).step_by(1 + usize::try_from(next - BASE.0).expect("small") / 200) {
            let expected = model.range(..=target).next_back().map_or_else(|| entry(45, 0), |(&offset, &at)| entry(offset, at));
            prop_assert_eq!(index.lookup(Offset(target)), expected);
            prop_assert_eq!(mapped.lookup(Offset(target)).expect("readable"), expected);
            prop_assert_eq!(read.lookup(Offset(target)).expect("readable"), expected);
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), base in any::<i64>(), target in any::<i64>()) {
        let base = Offset(base);
        let len = bytes.len() as u64;
        let file = || Arc::new(BytesFile::new(bytes.clone()));
        if let Ok(index) = ActiveOffsetIndex::load(base, 1 << 20, &bytes, u64::MAX) {
            let _ = index.lookup(Offset(target));
            prop_assert_eq!(index.encode_from(0), &bytes[..]);
        }
        if let Ok(index) = SealedOffsetIndex::open(file(), len, base, u64::MAX) {
            let found = index.lookup(Offset(target)).expect("readable");
            let _ = (index.upper_bound(found, u64::MAX), index.verify(1 << 40), index.last());
        }
        if let Ok(index) = ActiveTimeIndex::load(base, 1 << 20, &bytes) {
            let _ = index.lookup(TimestampMs(target));
        }
        if let Ok(index) = SealedTimeIndex::open(file(), len, base) {
            let _ = (index.lookup(TimestampMs(target)).expect("readable"), index.verify(), index.last());
        }
    }
}
