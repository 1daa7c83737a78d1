//! Where two logs of one partition agree: by the leader epochs of their records, never by their high watermarks.
//!
//! Each log keeps the offset at which each epoch began in it. A follower names the epoch of its last record with every
//! fetch; the leader answers with the last epoch at or below it in its own history and where that ended. Two logs that
//! hold the same epoch at an offset are equal up to there, so both sides can find the last point at which they agree
//! without comparing records (KIP-101, KIP-279, KIP-595). Cutting at the high watermark instead, as Kafka did before,
//! loses committed records: a follower's high watermark lags by one round trip.

use highwater_storage::{EpochEnd, LeaderEpoch, Offset};

/// What a [`Replica`](crate::Replica) knows of its log: numbers, no records.
pub trait LogView {
    /// First offset.
    fn start(&self) -> Offset;
    /// Next offset.
    fn end(&self) -> Offset;
    /// Everything below is on disk.
    fn flushed(&self) -> Offset;
    /// The first epoch in the log's history, or [`LeaderEpoch::NONE`]: which were before, the log does not know.
    fn first_epoch(&self) -> LeaderEpoch;
    /// The latest epoch in the log's history, or [`LeaderEpoch::NONE`].
    fn latest_epoch(&self) -> LeaderEpoch;
    /// The last epoch at or below `epoch`, and where it ends here.
    fn end_of_epoch(&self, epoch: LeaderEpoch) -> EpochEnd;
    /// Grows with each truncation.
    fn generation(&self) -> u64;

    /// Below this every transaction is decided, by a marker below the high watermark; at or below that. A log without
    /// transactions need not say.
    fn last_stable_offset(&self, high_watermark: Offset) -> Offset {
        high_watermark
    }

    /// Whether the log holds no record.
    fn is_empty(&self) -> bool {
        self.start() >= self.end()
    }
}

/// How a fetch fits the leader's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The asker's log is a prefix of ours: it may read from here on.
    Fits,
    /// It is not: the asker must cut.
    Diverges(EpochEnd),
    /// Our log does not reach to that offset, or knows nothing of that epoch.
    OutOfRange,
}

/// Compares the end of an asker's log, `from` after a record of `last_fetched_epoch`, with ours.
///
/// The order of the checks is Kafka's (`Partition.readRecords`).
pub fn fit(log: &dyn LogView, last_fetched_epoch: Option<LeaderEpoch>, from: Offset) -> Fit {
    if let Some(last) = last_fetched_epoch {
        let ours = log.end_of_epoch(last);
        if !ours.is_some() || from < log.start() {
            return Fit::OutOfRange;
        }
        if ours.epoch < last || ours.end < from {
            return Fit::Diverges(ours);
        }
    }
    if from < log.start() || from > log.end() { Fit::OutOfRange } else { Fit::Fits }
}

/// Whether all that the log of an asker holds is ours, given that its end [fits](Fit::Fits).
///
/// Below our start we know nothing: neither records nor epochs are left there. An asker whose last epoch is older than our
/// first one fits at our very start whatever its history was, so what it holds below may be records that never were
/// committed, at offsets where ours were. Kafka answers such an asker the same and counts it as in sync (its
/// `isFollowerInSync` looks at the end only); elected, it shows those records to consumers. Two cases are certain:
///
/// * it holds nothing below our start;
/// * its last epoch is in our history. Then it has records that were written after the ones below our start, and it took
///   over the start of whom it had them from before it stored them.
pub fn vouches(log: &dyn LogView, last_fetched_epoch: Option<LeaderEpoch>, log_start: Offset) -> bool {
    let first = log.first_epoch();
    log_start >= log.start() || last_fetched_epoch.is_some_and(|last| first.is_some() && last >= first)
}

/// Where a follower whose log is `log` cuts after the leader's answer.
///
/// When the follower lacks the epoch of the answer, this is only the next step: its next fetch names its new last
/// epoch, and the leader answers again (KIP-279). Never above the log's end.
pub fn cut_for(log: &dyn LogView, leader: EpochEnd) -> Offset {
    let ours = log.end_of_epoch(leader.epoch);
    let cut = if !ours.is_some() {
        leader.end
    } else if ours.epoch != leader.epoch {
        ours.end
    } else {
        ours.end.min(leader.end)
    };
    cut.min(log.end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelLog;

    /// Kafka facts 8.10: the leader's side, all rows.
    #[test]
    fn divergence_table() {
        let mut leader = ModelLog::with_epochs(&[(0, 0), (3, 2), (4, 8), (7, 13), (9, 14)], 17);
        leader.assign(LeaderEpoch(10));
        let div = |epoch, end| Fit::Diverges(EpochEnd { epoch: LeaderEpoch(epoch), end: Offset(end) });
        let table = [
            (2, 5, div(0, 2)),
            (0, 4, div(0, 2)),
            (6, 6, div(4, 13)),
            (5, 9, div(4, 13)),
            (10, 18, div(10, 17)),
            (0, 2, Fit::Fits),
            (7, 14, Fit::Fits),
            (9, 17, Fit::Fits),
            (10, 17, Fit::Fits),
            (11, 5, Fit::OutOfRange),
        ];
        for (epoch, from, expected) in table {
            assert_eq!(fit(&leader, Some(LeaderEpoch(epoch)), Offset(from)), expected, "({epoch}, {from})");
        }
        leader.advance_start(Offset(5));
        let table =
            [(2, 8, div(2, 5)), (0, 5, Fit::Fits), (3, 5, Fit::Fits), (0, 0, Fit::OutOfRange), (3, 4, Fit::OutOfRange)];
        for (epoch, from, expected) in table {
            assert_eq!(fit(&leader, Some(LeaderEpoch(epoch)), Offset(from)), expected, "({epoch}, {from}) from 5");
        }
        // Without an epoch only the range counts; the end itself is in range.
        for (from, expected) in [(4, Fit::OutOfRange), (5, Fit::Fits), (17, Fit::Fits), (18, Fit::OutOfRange)] {
            assert_eq!(fit(&leader, None, Offset(from)), expected, "{from}");
        }
    }

    /// The dialogue of two logs until the follower fits; each round is (leader's answer, follower's end after it).
    fn reconcile(leader: &ModelLog, follower: &mut ModelLog) -> Vec<(i32, i64, i64)> {
        let mut rounds = Vec::new();
        for _ in 0..50 {
            let last = Some(follower.latest_epoch()).filter(|epoch| epoch.is_some());
            match fit(leader, last, follower.end()) {
                Fit::Fits => return rounds,
                Fit::Diverges(answer) => {
                    follower.truncate(cut_for(follower, answer));
                    rounds.push((answer.epoch.0, answer.end.0, follower.end().0));
                }
                Fit::OutOfRange => panic!("out of range after {rounds:?}"),
            }
        }
        panic!("the dialogue does not end: {rounds:?}")
    }

    #[test]
    fn dialogues_end_where_the_logs_agree() {
        type Row = (&'static str, ModelLog, ModelLog, &'static [(i32, i64, i64)]);
        let table: &[Row] = &[
            (
                "KIP-279, quick failovers (R02)",
                ModelLog::with_epochs(&[(1, 0), (3, 10)], 15),
                ModelLog::with_epochs(&[(1, 0), (2, 10)], 20),
                &[(1, 10, 10)],
            ),
            (
                "nothing in common (facts 79)",
                ModelLog::with_epochs(&[(1, 0), (3, 1), (5, 2)], 3),
                ModelLog::with_epochs(&[(0, 0), (2, 1), (4, 2)], 3),
                &[(3, 2, 2), (1, 1, 1), (0, 0, 0)],
            ),
            (
                "last epoch differs (facts 80)",
                ModelLog::with_epochs(&[(0, 0), (2, 1), (5, 2)], 3),
                ModelLog::with_epochs(&[(0, 0), (2, 1), (4, 2)], 3),
                &[(2, 2, 2)],
            ),
            (
                "an election without a write (R04): no byte goes, the entry does",
                ModelLog::with_epochs(&[(1, 0), (4, 10)], 10),
                ModelLog::with_epochs(&[(1, 0), (3, 10)], 10),
                &[(1, 10, 10)],
            ),
            (
                "the follower lacks the epoch of the answer, which ends above what both have",
                ModelLog::with_epochs(&[(1, 0), (2, 6), (4, 8)], 9),
                ModelLog::with_epochs(&[(1, 0), (3, 5)], 10),
                &[(2, 8, 5)],
            ),
            (
                "the follower is ahead in the leader's own epoch",
                ModelLog::with_epochs(&[(1, 0)], 10),
                ModelLog::with_epochs(&[(1, 0)], 12),
                &[(1, 10, 10)],
            ),
            (
                "the follower is a prefix",
                ModelLog::with_epochs(&[(1, 0), (2, 4)], 10),
                ModelLog::with_epochs(&[(1, 0)], 3),
                &[],
            ),
            ("the follower is empty", ModelLog::with_epochs(&[(1, 0)], 10), ModelLog::default(), &[]),
        ];
        for (name, leader, follower, rounds) in table {
            let mut follower = follower.clone();
            assert_eq!(&reconcile(leader, &mut follower), rounds, "{name}");
            assert_eq!(follower.records(), &leader.records()[..follower.records().len()], "{name}");
        }
    }

    #[test]
    fn a_cut_without_own_epochs_goes_to_the_answer() {
        let mut log = ModelLog::with_epochs(&[(0, 0)], 9);
        log.forget_epochs();
        let answer = EpochEnd { epoch: LeaderEpoch(3), end: Offset(4) };
        assert_eq!(cut_for(&log, answer), Offset(4));
        assert_eq!(cut_for(&log, EpochEnd { epoch: LeaderEpoch(3), end: Offset(40) }), Offset(9));
    }
}
