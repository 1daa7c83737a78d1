use highwater_storage::fs::{Call, Fault, SimFs};

use super::super::Op;
use super::*;

const DIR: &str = "/data";

fn disk() -> SimFs {
    let fs = SimFs::new(1);
    fs.create_dir(Path::new(DIR)).unwrap();
    fs.sync_dir(Path::new("/")).unwrap();
    fs
}

fn open(fs: &SimFs) -> Result<(Journal, Tree, StoreReport), StoreError> {
    Journal::open(Arc::new(fs.clone()), Path::new(DIR))
}

/// The commits of a run: nodes made, written and removed, some commits leave nothing to keep.
fn script() -> Vec<Vec<Op>> {
    let data = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let mut script = vec![vec![Op::Create { path: "/t".into(), data: data("topics") }]];
    for turn in 0..6 {
        let path = format!("/t/{turn}");
        script.push(vec![
            Op::Create { path: path.clone(), data: data("new") },
            Op::Set { path: path.clone(), data: data(&"x".repeat(turn * 7)), version: None },
        ]);
        script.push(vec![Op::CreateEphemeral { path: format!("/e{turn}"), data: data("") }]);
        if turn % 2 == 1 {
            script.push(vec![Op::Delete { path, version: None }]);
        }
    }
    script
}

/// Carries the commit out and writes it down.
fn commit(journal: &mut Journal, tree: &mut Tree, ops: &[Op]) -> Result<(), WriteFailed> {
    let mut changes = tree.commit(1, ops).unwrap();
    let undo = changes.take_undo();
    journal.write(&[(changes.number, changes.effects)]).inspect_err(|_| tree.undo(undo))
}

fn without_ephemerals(tree: &Tree) -> Tree {
    Tree::restore(tree.last_commit(), tree.kept().collect::<Vec<_>>()).unwrap()
}

/// The tree after each number of commits of the script.
fn states() -> Vec<Tree> {
    let mut tree = Tree::new();
    let mut states = vec![Tree::new()];
    for ops in script() {
        tree.commit(1, &ops).unwrap();
        states.push(without_ephemerals(&tree));
    }
    states
}

fn written() -> (SimFs, u64) {
    let fs = disk();
    let (mut journal, mut tree, _) = open(&fs).unwrap();
    for ops in script() {
        commit(&mut journal, &mut tree, &ops).unwrap();
    }
    (fs, journal.len)
}

fn journal_path() -> PathBuf {
    Path::new(DIR).join(JOURNAL_FILE)
}

#[test]
fn what_was_committed_is_there_after_opening_again_and_numbers_go_on() {
    let (fs, _) = written();
    let states = states();
    let (mut journal, mut tree, report) = open(&fs).unwrap();
    assert_eq!(tree, states[states.len() - 1]);
    assert_eq!(report.commits_replayed, script().len() as u64);
    assert_eq!(report.bytes_cut, 0);
    // The script ended with an ephemeral node's commit or a deletion; a later node is a later one all the same.
    let last = tree.last_commit();
    commit(&mut journal, &mut tree, &[Op::Create { path: "/later".into(), data: Bytes::new() }]).unwrap();
    assert_eq!(tree.read("/later").unwrap().created, last + 1);
    assert_eq!(open(&fs).unwrap().1, tree);
}

/// A write that was torn at any byte leaves a prefix of the commits, and writing goes on behind it.
#[test]
fn a_journal_cut_at_any_byte_opens_with_a_prefix() {
    let (full, len) = written();
    let states = states();
    let mut seen = 0;
    for cut in JOURNAL_HEADER_BYTES as u64..=len {
        let fs = full.process_crash_image();
        fs.corrupt(&journal_path(), |bytes| bytes.truncate(usize::try_from(cut).unwrap())).unwrap();
        let (mut journal, mut tree, report) = open(&fs).unwrap();
        let commits = usize::try_from(tree.last_commit()).unwrap();
        assert_eq!(tree, states[commits], "cut at {cut}");
        assert!(commits == seen || commits == seen + 1, "cut at {cut}: from {seen} to {commits} commits");
        assert_eq!(journal.len + report.bytes_cut, cut);
        seen = commits;
        commit(&mut journal, &mut tree, &[Op::Create { path: "/after".into(), data: Bytes::new() }]).unwrap();
        assert_eq!(open(&fs).unwrap().1, tree, "cut at {cut}");
    }
    assert_eq!(seen, script().len());
}

/// One flipped bit is never taken for something else: behind a good frame it is rot and refuses to open, in the last frame
/// it cannot be told from a torn write.
#[test]
fn a_flipped_bit_is_found() {
    let (full, len) = written();
    let states = states();
    let last_frame = {
        let fs = full.process_crash_image();
        let (mut at, mut starts) = (JOURNAL_HEADER_BYTES, Vec::new());
        fs.corrupt(&journal_path(), |bytes| {
            while let Some(payload) = bytes.get(at..).and_then(frame_at) {
                starts.push(at);
                at += FRAME_HEADER_BYTES + payload.len();
            }
        })
        .unwrap();
        *starts.last().unwrap()
    };
    for at in 0..usize::try_from(len).unwrap() {
        let fs = full.process_crash_image();
        fs.corrupt(&journal_path(), |bytes| bytes[at] ^= 1 << (at % 8)).unwrap();
        match open(&fs) {
            Ok((_, tree, report)) => {
                assert!(at >= last_frame, "the bit at {at} was not noticed");
                assert_eq!(tree, states[states.len() - 2]);
                assert!(report.bytes_cut > 0);
            }
            Err(StoreError::Corrupt { path, .. }) => {
                assert!(at < last_frame, "the bit at {at}");
                assert_eq!(path, journal_path());
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A run that is stopped after each call, on every disk that a power cut may leave: what was answered is there.
#[test]
fn no_answered_commit_is_lost_in_a_power_cut() {
    let states = states();
    let run = |fs: &SimFs| -> usize {
        let Ok((mut journal, mut tree, _)) = open(fs) else { return 0 };
        let mut answered = 0;
        for ops in script() {
            if commit(&mut journal, &mut tree, &ops).is_err() {
                break;
            }
            answered += 1;
            // Pretend that the journal has grown long, twice in the run.
            if answered % 7 == 0 {
                journal.len += JOURNAL_BYTES_MIN;
                if journal.compact(&tree).is_err() {
                    break;
                }
            }
        }
        answered
    };
    let counted = disk();
    let before = counted.calls();
    assert_eq!(run(&counted), script().len());
    for calls in 0..counted.calls() - before {
        let fs = disk();
        fs.crash_after(fs.calls() + calls - before);
        let answered = run(&fs);
        assert!(fs.crashed());
        for image in fs.images(12, calls) {
            let (_, tree, _) = open(&image).unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
            let commits = usize::try_from(tree.last_commit()).unwrap();
            assert!(commits >= answered, "{answered} were answered and {commits} are there, after {calls} calls");
            assert_eq!(tree, states[commits], "after {calls} calls");
        }
    }
}

#[test]
fn a_snapshot_takes_the_journals_place_and_a_crash_in_between_does_no_harm() {
    let (fs, _) = written();
    let (mut journal, tree, _) = open(&fs).unwrap();
    journal.len += JOURNAL_BYTES_MIN;
    // The snapshot is in place, the new journal is not: the old one repeats commits that the snapshot holds.
    fs.inject_on(Fault::Eio, Call::Rename, JOURNAL_FILE, 1);
    assert!(journal.compact(&tree).is_err());
    let (mut journal, again, report) = open(&fs).unwrap();
    assert_eq!((again, report.commits_replayed), (tree.clone(), 0));

    journal.len += JOURNAL_BYTES_MIN;
    journal.compact(&tree).unwrap();
    assert_eq!(journal.len, JOURNAL_HEADER_BYTES as u64);
    let (_, again, report) = open(&fs).unwrap();
    assert_eq!((again, report.commits_replayed, report.last_commit), (tree.clone(), 0, tree.last_commit()));

    // Without its snapshot such a journal means nothing, and a damaged snapshot is none.
    let snapshot = Path::new(DIR).join(SNAPSHOT_FILE);
    let damaged = fs.process_crash_image();
    damaged.corrupt(&snapshot, |bytes| bytes[20] ^= 1).unwrap();
    assert!(matches!(open(&damaged), Err(StoreError::Corrupt { path, .. }) if path == snapshot));
    fs.remove_file(&snapshot).unwrap();
    assert!(matches!(open(&fs), Err(StoreError::Corrupt { path, .. }) if path == journal_path()));
}

#[test]
fn a_full_disk_refuses_and_a_failed_sync_fences() {
    let (fs, _) = written();
    let (mut journal, mut tree, _) = open(&fs).unwrap();
    let before = tree.clone();
    let op = [Op::Create { path: "/more".into(), data: Bytes::new() }];
    fs.inject(Fault::Enospc, Call::Write, 1);
    assert!(matches!(commit(&mut journal, &mut tree, &op), Err(WriteFailed::Refused(_))));
    assert_eq!(tree, before);
    // There is room again: the next commit follows the last one without a gap.
    commit(&mut journal, &mut tree, &op).unwrap();
    assert_eq!(open(&fs).unwrap().1, tree);

    fs.inject(Fault::SyncFails, Call::SyncData, 1);
    let op = [Op::Create { path: "/even-more".into(), data: Bytes::new() }];
    assert!(matches!(commit(&mut journal, &mut tree, &op), Err(WriteFailed::Fenced(_))));
}

#[test]
fn hostile_files_are_refused_without_allocating_by_them() {
    let frame = |payload: &[u8]| {
        let mut frame = FRAME_MARKER.to_le_bytes().to_vec();
        frame.extend_from_slice(&count(payload.len()));
        frame.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
        frame.extend_from_slice(payload);
        frame
    };
    let huge_counts = frame(&[0xff; 4]);
    let mut unknown_kind = Vec::from(1u32.to_le_bytes());
    unknown_kind.extend_from_slice(&100i64.to_le_bytes());
    unknown_kind.extend_from_slice(&1u32.to_le_bytes());
    unknown_kind.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 0]);
    let gap = encode_frame(&[(1000, Vec::new())]);
    let orphan = encode_frame(&[(
        i64::try_from(script().len()).unwrap() + 1,
        vec![Effect::Create { path: "/no/parent".into(), data: Bytes::new() }],
    )]);
    for tail in [huge_counts, frame(&unknown_kind), gap, orphan] {
        let (fs, _) = written();
        fs.corrupt(&journal_path(), |bytes| bytes.extend_from_slice(&tail)).unwrap();
        assert!(matches!(open(&fs), Err(StoreError::Corrupt { .. })), "{tail:?}");
    }
    // A length beyond the end of the file is a torn write.
    let (fs, _) = written();
    fs.corrupt(&journal_path(), |bytes| {
        bytes.extend_from_slice(&FRAME_MARKER.to_le_bytes());
        bytes.extend_from_slice(&[0xff; 8]);
    })
    .unwrap();
    assert_eq!(open(&fs).unwrap().2.bytes_cut, 12);
}
