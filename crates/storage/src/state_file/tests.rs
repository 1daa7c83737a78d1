//! What the state file keeps, whatever fails.

use super::*;
use crate::OpenFiles;
use crate::fs::{Call, Fault, SimFs};

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

/// What the slots held at some moment, and the number of the file.
fn slots_of(fs: &SimFs, place: &Place) -> (u64, Vec<[u8; SLOT_BYTES]>) {
    let path = place.dir.join(STATE_FILE);
    let Ok(file) = fs.open(&path, OpenMode::Read) else { return (0, vec![[0; SLOT_BYTES]; SLOTS]) };
    let mut bytes = [0; SLOT_BYTES * SLOTS];
    file.read_full_at(&mut bytes, 0).unwrap();
    (file.metadata().unwrap().inode, bytes.as_chunks().0.to_vec())
}

/// What is in the file before something fails: a part of it synced, and marks on top that are not.
type History = fn(&StateFile, &Place, &SimFs);

const HISTORIES: [(&str, History); 6] = [
    ("one fact", |file, place, fs| {
        file.record(place, LogState { mark: Some(mark(20)), ..state(false, 3, 15, 20) }).unwrap();
        fs.sync_everything();
    }),
    ("two facts, the second of which lowers the mark", |file, place, fs| {
        file.record(place, LogState { mark: Some(mark(30)), ..state(false, 2, 30, 30) }).unwrap();
        file.record(place, LogState { mark: Some(mark(20)), ..state(false, 3, 15, 20) }).unwrap();
        fs.sync_everything();
    }),
    ("facts, and marks that are synced", |file, place, fs| {
        file.record(place, state(false, 1, 10, 10)).unwrap();
        file.record(place, state(false, 3, 15, 18)).unwrap();
        file.mark(place, mark(19), None, true, || true);
        file.mark(place, mark(20), None, true, || true);
        fs.sync_everything();
    }),
    ("facts, and marks that are not synced", |file, place, fs| {
        file.record(place, LogState { mark: Some(mark(17)), ..state(false, 1, 10, 17) }).unwrap();
        file.record(place, LogState { mark: Some(mark(18)), ..state(false, 3, 15, 18) }).unwrap();
        fs.sync_everything();
        file.mark(place, mark(19), None, false, || true);
        file.mark(place, mark(20), None, false, || true);
    }),
    ("one mark of two synced", |file, place, fs| {
        file.record(place, LogState { mark: Some(mark(17)), ..state(false, 1, 10, 17) }).unwrap();
        file.record(place, LogState { mark: Some(mark(18)), ..state(false, 3, 15, 18) }).unwrap();
        file.mark(place, mark(19), Some(Offset(16)), true, || true);
        fs.sync_everything();
        file.mark(place, mark(20), Some(Offset(17)), false, || true);
    }),
    ("closed well", |file, place, fs| {
        file.record(place, LogState { mark: Some(mark(20)), ..state(false, 2, 15, 20) }).unwrap();
        file.record(place, LogState { mark: Some(mark(20)), ..state(true, 3, 20, 20) }).unwrap();
        fs.sync_everything();
    }),
];

/// The facts whose sync fails: a start that moves, the mark lowered before a truncation, a close, the first write after
/// one; and none, where it is the sync of batches.
fn facts() -> [(&'static str, Option<LogState>); 5] {
    [
        ("the start moves", Some(LogState { mark: Some(mark(20)), ..state(false, 9, 15, 20) })),
        ("the mark falls", Some(LogState { mark: Some(mark(12)), ..state(false, 3, 12, 20) })),
        ("it is closed", Some(LogState { mark: Some(mark(20)), ..state(true, 4, 20, 20) })),
        ("all goes", Some(LogState { mark: None, ..state(false, 20, 0, 20) })),
        ("batches", None),
    ]
}

/// All that a slot may hold after a power cut: what it held at any of these moments, or half of a write over another.
fn may_hold(moments: &[[u8; SLOT_BYTES]]) -> Vec<[u8; SLOT_BYTES]> {
    let mut all = moments.to_vec();
    for pair in moments.windows(2).filter(|pair| pair[0] != pair[1]) {
        let mut torn = pair[0];
        torn[..20].copy_from_slice(&pair[1][..20]);
        all.push(torn);
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// The state file that these slots are.
fn read(slots: &[&[u8; SLOT_BYTES]]) -> StateFile {
    let (fs, place) = disk();
    let file = fs.open(&place.dir.join(STATE_FILE), OpenMode::CreateNew).unwrap();
    file.write_all_at(&slots.iter().copied().flatten().copied().collect::<Vec<_>>(), 0).unwrap();
    StateFile::load(&place).unwrap()
}

/// Whatever of the writes around a failed sync a power cut leaves, whole, torn or not: the start does not go back, the
/// mark says no more than was true, and where the note is, it is believed.
#[test]
fn what_a_failed_sync_leaves_is_read_with_care_in_every_image() {
    let mut images = 0;
    for (before, history) in HISTORIES {
        for (what, fact) in facts() {
            // The sync of the fact, if there is one, then that of the note, then that of a new file.
            for failing in 1..=3 {
                let (fs, place) = disk();
                let file = StateFile::load(&place).unwrap();
                history(&file, &place, &fs);
                // With no more than is synced, and with all.
                let synced = slots_of(&fs.images(1, 1)[0], &place).1;
                let full = slots_of(&fs, &place);
                let known = file.last().unwrap();
                for nth in 1..=failing - u64::from(fact.is_none()) {
                    fs.inject_on(Fault::SyncFails, Call::SyncData, STATE_FILE, nth);
                }
                match fact {
                    Some(fact) => assert!(file.record(&place, fact).is_err()),
                    None => file.note_sync_failed(&place),
                }
                fs.clear_faults();
                let case = format!("{before}, {what}, {failing} syncs failed");
                // In the memory of the machine it is all there.
                let live = slots_of(&fs, &place);
                let careful = fact.map_or(known, |fact| known.or(fact));
                let careful = LogState { clean: false, sync_failed: true, ..careful };
                let killed = self::place(Arc::new(fs.kill()));
                let found = StateFile::load(&killed).unwrap();
                assert_eq!((found.last(), found.had_sync_failed()), (Some(careful), true), "{case}");
                let note = live.1.iter().find(|slot| decode(*slot).is_some_and(|(_, found)| found == Some(careful)));
                let note = *note.unwrap();

                let replaced = live.0 != full.0;
                assert_eq!(replaced, failing == 2, "{case}: a new file is there whole, so it is written once");
                let parts: Vec<Vec<_>> = (0..SLOTS)
                    .map(|at| match live.1[at] {
                        _ if replaced => vec![live.1[at]],
                        is if is == note && failing == 1 => vec![note],
                        is => may_hold(&[synced[at], full.1[at], is]),
                    })
                    .collect();
                let durable = read(&synced.iter().collect::<Vec<_>>()).last().unwrap();
                for number in 0..parts.iter().map(Vec::len).product() {
                    let mut rest = number;
                    let slots: Vec<_> = parts
                        .iter()
                        .map(|part| {
                            let chosen = &part[rest % part.len()];
                            rest /= part.len();
                            chosen
                        })
                        .collect();
                    let file = read(&slots);
                    let found = file.last().unwrap();
                    let has_note = slots.contains(&&note);
                    assert!(failing == 3 || has_note, "{case}: the note is synced");
                    assert_eq!(file.had_sync_failed(), has_note, "{case}, image {number}: {found:?}");
                    assert!(!has_note || found == careful, "{case}, image {number}: {found:?}");
                    assert!(found.log_start >= durable.log_start, "{case}, image {number}: {found:?}");
                    assert!(found.synced() <= Offset(20), "{case}, image {number}: {found:?}");
                    images += 1;
                }
                // What the disk itself says is allowed.
                for image in fs.images(100, failing) {
                    let file = StateFile::load(&self::place(Arc::new(image))).unwrap();
                    assert!(failing == 3 || file.had_sync_failed(), "{case}");
                    assert!(file.last().unwrap().log_start >= durable.log_start, "{case}");
                }
                // The next opening sees to it, in a file of which all is known, whatever comes then.
                let seen_to = LogState { sync_failed: false, ..careful };
                found.record(&killed, seen_to).unwrap();
                assert!(!found.had_sync_failed());
                assert_ne!(slots_of(&fs, &place).0, live.0, "{case}: the file is a new one");
                let again = killed.fs.clone();
                assert_eq!(StateFile::load(&killed).unwrap().last(), Some(seen_to), "{case}");
                drop(again);
            }
        }
    }
    assert!(images > 500, "{images} images");
    println!("{images} images");
}

/// In a directory that has no facts yet, or another log's, the note says nothing else; what it stands beside is judged as
/// if it was not there.
#[test]
fn a_failed_sync_is_noted_where_there_are_no_facts() {
    for foreign in [false, true] {
        let (fs, place) = disk();
        let file = StateFile::load(&place).unwrap();
        let facts = foreign.then(|| LogState { mark: Some(mark(5)), ..state(true, 1, 5, 5) });
        if let Some(facts) = facts {
            file.record(&place, facts).unwrap();
            file.disown();
        }
        file.note_sync_failed(&place);
        assert_eq!((file.last(), file.says_unclean()), (None, false), "foreign: {foreign}");
        for image in fs.images(20, 1).into_iter().chain([fs.clone()]) {
            let place = self::place(Arc::new(image));
            let file = StateFile::load(&place).unwrap();
            assert_eq!(
                (file.last(), file.had_sync_failed(), file.is_whole()),
                (facts, true, true),
                "foreign: {foreign}"
            );
            // Once more, as by an opening that fails again.
            file.note_sync_failed(&place);
            let file = StateFile::load(&place).unwrap();
            assert!(file.had_sync_failed());
            file.record(&place, state(false, 2, 2, 2)).unwrap();
            let file = StateFile::load(&place).unwrap();
            assert_eq!((file.last(), file.had_sync_failed()), (Some(state(false, 2, 2, 2)), false));
        }
    }
}
