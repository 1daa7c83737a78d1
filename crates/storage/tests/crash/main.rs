//! Power cuts and crashes at every call of scripted runs: after each, the images that the simulated disk allows (all
//! where they are few, else drawn by seed) are opened, and must hold what was promised (I6): a prefix of what was
//! appended that holds everything flushed, without a hole, with a log start that never goes back, found by offset and by
//! time whatever indexes there are (I5), with producers known by their last batch. What was recovered keeps to its bounds
//! (I1) and, once it was closed, verifies as good: every index entry, epoch and snapshot fits the batches. Some images are opened with a second
//! crash at each call of the opening.
//!
//! `HIGHWATER_CRASH_IMAGES=N` opens up to N images per crash, `HIGHWATER_CRASH_SCRIPTS=N` draws N scripts;
//! `--nocapture` prints how many images were opened.

mod check;
mod drawn;
mod group_commit;
mod script;
#[path = "../support/mod.rs"]
mod support;
mod transactions;

use check::crash_everywhere;
use script::Op::*;

#[test]
fn appends_rolls_and_flushes() {
    crash_everywhere(
        1,
        &[
            Append(2, 0),
            Flush,
            Append(4, 0),
            Append(1, 1),
            Flush,
            Append(3, 1),
            Checkpoint,
            Append(4, 2),
            Reopen,
            Append(2, 2),
        ],
    );
}

#[test]
fn flushes_under_way_while_the_log_goes_on() {
    crash_everywhere(
        9,
        &[
            Append(2, 0),
            Begin(false),
            Append(5, 0),
            Finish,
            Begin(true),
            Append(3, 1),
            Finish,
            Begin(true),
            Truncate(13),
            Append(2, 2),
            Finish,
            Begin(false),
            Truncate(9),
            Append(4, 3),
            Finish,
            Restart,
            Append(1, 3),
        ],
    );
}

#[test]
fn truncations_and_what_is_appended_after_them() {
    crash_everywhere(
        2,
        &[
            Append(7, 0),
            Flush,
            Append(2, 1),
            Truncate(15),
            Append(2, 2),
            Flush,
            Truncate(5),
            Append(3, 3),
            Checkpoint,
            Truncate(9),
            Append(3, 4),
            Flush,
            Truncate(4),
            Append(2, 5),
        ],
    );
}

#[test]
fn truncations_of_a_log_that_was_closed_well() {
    crash_everywhere(3, &[Append(9, 0), Reopen, Truncate(7), Append(2, 1), Reopen, Truncate(3), Append(1, 2), Flush]);
}

#[test]
fn the_start_moves_and_segments_go() {
    crash_everywhere(
        4,
        &[
            Append(6, 0),
            AdvanceStart(3),
            Flush,
            Append(2, 0),
            AdvanceStart(9),
            Housekeeping(1, 16),
            Append(8, 1),
            Flush,
            Housekeeping(2, 30),
            Housekeeping(9, 32),
            AdvanceStart(32),
            Append(1, 1),
            Housekeeping(20, 34),
        ],
    );
}

#[test]
fn everything_is_deleted_and_offsets_are_not_given_again() {
    crash_everywhere(
        5,
        &[
            Append(5, 0),
            AdvanceStart(10),
            Housekeeping(9, 10),
            Restart,
            Append(2, 1),
            Reopen,
            AdvanceStart(14),
            Restart,
        ],
    );
}

#[test]
fn resets_to_both_sides() {
    crash_everywhere(
        6,
        &[
            Append(5, 0),
            Flush,
            AdvanceStart(3),
            Reset(40),
            Append(3, 1),
            Flush,
            Reset(7),
            Append(4, 2),
            Checkpoint,
            Truncate(7),
            Append(1, 3),
        ],
    );
}

#[test]
fn compactions_and_what_comes_after_them() {
    crash_everywhere(
        10,
        &[
            Append(9, 0),
            Flush,
            Compact,
            Append(6, 1),
            Checkpoint,
            Compact,
            Append(2, 2),
            AdvanceStart(9),
            Restart,
            Compact,
        ],
    );
}

#[test]
fn replicated_batches_over_several_segments() {
    crash_everywhere(
        13,
        &[
            Replicate(8, 0, 0),
            Flush,
            Truncate(13),
            Replicate(7, 2, 0),
            Reset(41),
            Replicate(5, 3, 1),
            Reopen,
            Replicate(5, 3, 0),
        ],
    );
}

#[test]
fn copies_whatever_becomes_of_the_log() {
    crash_everywhere(
        11,
        &[
            Append(5, 0),
            Copy,
            Append(3, 1),
            Flush,
            Copy,
            Truncate(3),
            Append(4, 2),
            Compact,
            Copy,
            Reset(50),
            Append(1, 3),
        ],
    );
}

#[test]
fn appends_that_sync_into_zeros() {
    crash_everywhere(
        12,
        &[
            Append(1, 0),
            Synced,
            Append(2, 0),
            Housekeeping(1, 0),
            Append(3, 0),
            Housekeeping(2, 0),
            Append(4, 1),
            Truncate(15),
            Housekeeping(3, 0),
            Append(2, 2),
            Reopen,
            Append(1, 2),
        ],
    );
}
