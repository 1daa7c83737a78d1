use super::*;

fn history(entries: &[(i32, i64)]) -> EpochHistory {
    let entries = entries.iter().map(|&(epoch, start)| (LeaderEpoch(epoch), Offset(start))).collect();
    EpochHistory::from_entries(entries).expect("increasing")
}

fn assigned(entries: &[(i32, i64)]) -> EpochHistory {
    let mut history = EpochHistory::new();
    for &(epoch, start) in entries {
        history.assign(LeaderEpoch(epoch), Offset(start));
    }
    history
}

#[track_caller]
fn check_end(history: &EpochHistory, epoch: i32, log_end: i64, expected: (i32, i64)) {
    let end = history.end_offset_for(LeaderEpoch(epoch), Offset(log_end));
    assert_eq!((end.epoch.0, end.end.0), expected, "epoch {epoch} in {history:?}");
}

#[test]
fn a_later_assignment_evicts_what_contradicts_it() {
    assert_eq!(assigned(&[(2, 11), (2, 12)]), history(&[(2, 11)]));
    assert_eq!(assigned(&[(2, 9), (3, 9)]), history(&[(3, 9)]));
    assert_eq!(assigned(&[(2, 6), (3, 5)]), history(&[(3, 5)]));
    assert_eq!(
        assigned(&[(1, 5), (2, 6), (1, 7)]),
        history(&[(1, 5)]),
        "it goes on where the higher one was not written"
    );
    assert_eq!(assigned(&[(1, 5), (3, 6), (2, 7)]), history(&[(1, 5), (2, 7)]));
    assert_eq!(assigned(&[(2, 11), (2, 10)]), history(&[(2, 10)]));
    assert_eq!(assigned(&[(0, 0), (1, 4), (2, 8)]), history(&[(0, 0), (1, 4), (2, 8)]));
}

#[test]
fn only_a_change_asks_for_a_write() {
    let mut history = EpochHistory::new();
    assert!(!history.assign(LeaderEpoch::NONE, Offset(0)));
    assert!(history.assign(LeaderEpoch(0), Offset(0)));
    assert!(!history.assign(LeaderEpoch(0), Offset(7)));
    assert!(history.assign(LeaderEpoch(3), Offset(7)));
    assert!(!history.truncate_from_end(Offset(8)));
    assert!(history.truncate_from_end(Offset(7)));
    assert!(!history.truncate_from_start(Offset(0)));
    assert!(history.truncate_from_start(Offset(4)));
    assert!(!history.truncate_from_start(Offset(4)));
}

#[test]
fn truncation_from_the_end() {
    for (end, expected) in [
        (8, &[(2, 6)][..]),
        (9, &[(2, 6), (3, 8)]),
        (12, &[(2, 6), (3, 8), (4, 11)]),
        (11, &[(2, 6), (3, 8)]),
        (0, &[]),
    ] {
        let mut entries = history(&[(2, 6), (3, 8), (4, 11)]);
        entries.truncate_from_end(Offset(end));
        assert_eq!(entries, history(expected), "{end}");
    }
}

#[test]
fn truncation_from_the_start_keeps_the_epoch_of_the_start() {
    for (start, expected) in [
        (8, &[(3, 8), (4, 11)][..]),
        (9, &[(3, 9), (4, 11)]),
        (5, &[(2, 6), (3, 8), (4, 11)]),
        (6, &[(2, 6), (3, 8), (4, 11)]),
        (7, &[(2, 7), (3, 8), (4, 11)]),
        (15, &[(4, 15)]),
    ] {
        let mut entries = history(&[(2, 6), (3, 8), (4, 11)]);
        entries.truncate_from_start(Offset(start));
        assert_eq!(entries, history(expected), "{start}");
    }
}

#[test]
fn ends_of_epochs() {
    let gaps = history(&[(0, 10), (2, 13), (4, 17)]);
    check_end(&gaps, 0, 20, (0, 13));
    check_end(&gaps, 1, 20, (0, 13));
    check_end(&gaps, 2, 20, (2, 17));
    check_end(&gaps, 3, 20, (2, 17));
    check_end(&gaps, 4, 20, (4, 20));
    check_end(&gaps, 5, 20, (-1, -1));
    check_end(&gaps, -1, 20, (-1, -1));
    // Below all known epochs: the answer repeats the epoch asked for.
    check_end(&history(&[(5, 11), (6, 12)]), 4, 20, (4, 11));
    check_end(&EpochHistory::new(), 0, 20, (-1, -1));
    // An epoch that began and ended without a record.
    let mut history = history(&[(5, 11), (6, 12), (7, 13)]);
    history.assign(LeaderEpoch(7), Offset(12));
    check_end(&history, 5, 20, (5, 12));
    check_end(&history, 6, 20, (5, 12));
}

#[test]
fn epochs_of_offsets() {
    let gaps = history(&[(0, 10), (2, 13)]);
    for (offset, epoch) in [(9, -1), (10, 0), (12, 0), (13, 2), (1000, 2)] {
        assert_eq!(gaps.epoch_of(Offset(offset)), LeaderEpoch(epoch), "{offset}");
    }
}

#[test]
fn a_damaged_checkpoint_is_no_history() {
    for entries in
        [&[(5, 10), (4, 20)][..], &[(4, 20), (5, 10)], &[(1, 1), (1, 2)], &[(1, 1), (2, 1)], &[(-1, 0)], &[(0, -1)]]
    {
        let entries = entries.iter().map(|&(epoch, start)| (LeaderEpoch(epoch), Offset(start))).collect();
        assert!(EpochHistory::from_entries(entries).is_err());
    }
}

#[test]
fn epoch_zero_is_an_epoch() {
    // KAFKA-10432: taken for "none", the first epoch of a log was lost in a rebuild.
    let rebuilt = assigned(&[(0, 100), (1, 105), (1, 108), (2, 109)]);
    assert_eq!(rebuilt, history(&[(0, 100), (1, 105), (2, 109)]));
}

mod random {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_assignments_leave_a_history(steps in prop::collection::vec((0..4, -2..20i32, -2..40i64), 0..60)) {
            let mut history = EpochHistory::new();
            for (kind, epoch, offset) in steps {
                let before = history.clone();
                let changed = match kind {
                    0 => history.truncate_from_end(Offset(offset)),
                    1 => history.truncate_from_start(Offset(offset)),
                    _ => history.assign(LeaderEpoch(epoch), Offset(offset.max(0))),
                };
                prop_assert_eq!(changed, before != history);
                prop_assert!(EpochHistory::from_entries(history.entries().to_vec()).is_ok());
                for asked in -1..21 {
                    let end = history.end_offset_for(LeaderEpoch(asked), Offset(100));
                    prop_assert!(end.epoch <= LeaderEpoch(asked));
                    prop_assert!(!end.is_some() || end.end >= Offset(0));
                }
            }
        }
    }
}
