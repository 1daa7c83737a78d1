//! How far the in-sync replicas agree: the high watermark as a minimum.

use highwater_storage::Offset;

/// The smallest end of the leader and the replicas that count, or `None` while one of them has not fetched in this
/// leadership yet: its end is unknown, so nothing may be taken for replicated.
pub fn smallest_end(leader_end: Offset, followers: impl IntoIterator<Item = Option<Offset>>) -> Option<Offset> {
    followers.into_iter().try_fold(leader_end, |smallest, end| Some(smallest.min(end?)))
}

/// `min.insync.replicas` as it counts for a partition of so many replicas: a topic with two replicas cannot have three
/// in sync, and one is always needed.
pub fn needed_in_sync(min_insync_replicas: usize, replicas: usize) -> usize {
    min_insync_replicas.min(replicas).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_end_table() {
        const fn some(offset: i64) -> Option<Offset> {
            Some(Offset(offset))
        }
        type Row<'a> = (i64, &'a [Option<Offset>], Option<Offset>);
        let table: &[Row<'_>] = &[
            (5, &[], some(5)),
            (5, &[some(5), some(4)], some(4)),
            (5, &[some(5), some(5)], some(5)),
            // A follower may be ahead of what the leader counts: only flushed records count under a synced policy.
            (3, &[some(5), some(4)], some(3)),
            (5, &[some(5), None], None),
            (5, &[None, some(0)], None),
            (0, &[some(0)], some(0)),
        ];
        for (leader, followers, expected) in table {
            assert_eq!(smallest_end(Offset(*leader), followers.iter().copied()), *expected, "{leader} {followers:?}");
        }
    }

    #[test]
    fn needed_in_sync_table() {
        for (min, replicas, needed) in [(1, 3, 1), (2, 3, 2), (3, 2, 2), (0, 3, 1), (2, 0, 1)] {
            assert_eq!(needed_in_sync(min, replicas), needed, "min {min} of {replicas}");
        }
    }
}
