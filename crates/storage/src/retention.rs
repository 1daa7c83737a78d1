//! Which segments may go. A pure plan; [`crate::Housekeeping`] carries it out.

use crate::options::LogOptions;
use crate::{Offset, TimestampMs};

/// What the plan looks at of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// The next segment's base; the end of the log for the last.
    pub(crate) end: Offset,
    pub(crate) size_bytes: u64,
}

/// How many of the segments, oldest first, may go now: by Kafka's three rules, one after the other (below the log start,
/// above the size limit, past the age limit), each up to the first segment it does not allow.
///
/// A segment that reaches `deletable_below`, the high watermark, stays: its records may not be replicated yet. An empty
/// last segment stays. `age_from` tells the time from which the age of one counts, which may take a while, and is asked
/// for no more than it takes; `None` keeps the segment.
pub(crate) fn plan(
    segments: &[Candidate],
    log_start: Offset,
    deletable_below: Offset,
    now: TimestampMs,
    options: &LogOptions,
    mut age_from: impl FnMut(usize) -> Option<TimestampMs>,
) -> usize {
    let may_go = |at: usize| -> Option<&Candidate> {
        let segment = segments.get(at)?;
        let is_empty_last = at + 1 == segments.len() && segment.size_bytes == 0;
        (segment.end <= deletable_below && !is_empty_last).then_some(segment)
    };
    let mut count = 0;
    // The last segment never lies below the log start as a whole: it is where the next record goes.
    while count + 1 < segments.len() && may_go(count).is_some_and(|segment| segment.end <= log_start) {
        count += 1;
    }
    if !options.retention {
        return count;
    }
    if let Ok(limit) = u64::try_from(options.retention_bytes) {
        let total: u64 = segments.iter().skip(count).map(|segment| segment.size_bytes).sum();
        let mut excess = total.saturating_sub(limit);
        while let Some(segment) = may_go(count).filter(|segment| excess > 0 && segment.size_bytes <= excess) {
            excess -= segment.size_bytes;
            count += 1;
        }
    }
    if options.retention_ms >= 0 {
        while may_go(count).is_some()
            && age_from(count).is_some_and(|timestamp| now.since(timestamp) > options.retention_ms)
        {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * 60 * 60 * 1000;

    /// Five segments of ten records and 100 bytes, a day apart, the last from day 4.
    fn segments() -> Vec<Candidate> {
        (0..5).map(|day| Candidate { end: Offset(10 * (day + 1)), size_bytes: 100 }).collect()
    }

    fn day(at: usize) -> Option<TimestampMs> {
        i64::try_from(at).ok().map(|day| TimestampMs(day * DAY))
    }

    fn planned(log_start: i64, high_watermark: i64, options: &LogOptions) -> usize {
        plan(&segments(), Offset(log_start), Offset(high_watermark), TimestampMs(5 * DAY), options, day)
    }

    fn keep_all() -> LogOptions {
        LogOptions { retention_ms: -1, retention_bytes: -1, ..LogOptions::default() }
    }

    #[test]
    fn nothing_goes_without_a_reason() {
        assert_eq!(planned(0, 50, &keep_all()), 0);
        assert_eq!(planned(0, 50, &LogOptions::default()), 0, "seven days, four days old");
    }

    #[test]
    fn what_lies_below_the_log_start_goes_even_without_retention() {
        let options = LogOptions { retention: false, retention_ms: 0, retention_bytes: 0, ..LogOptions::default() };
        for (log_start, expected) in [(9, 0), (10, 1), (35, 3), (50, 4)] {
            assert_eq!(planned(log_start, 50, &options), expected, "log start {log_start}");
        }
    }

    #[test]
    fn size_takes_whole_segments_out_of_the_excess_only() {
        for (limit, expected) in [(500, 0), (499, 0), (401, 0), (400, 1), (150, 3), (100, 4), (0, 5)] {
            let options = LogOptions { retention_bytes: limit, ..keep_all() };
            assert_eq!(planned(0, 50, &options), expected, "limit {limit}");
        }
    }

    #[test]
    fn age_stops_at_the_first_young_segment() {
        for (days, expected) in [(5, 0), (4, 1), (1, 4), (0, 5)] {
            let options = LogOptions { retention_ms: days * DAY, ..keep_all() };
            assert_eq!(planned(0, 50, &options), expected, "{days} days");
        }
        let options = LogOptions { retention_ms: DAY, ..keep_all() };
        for second in [Some(TimestampMs(i64::MAX)), None] {
            let mut asked = Vec::new();
            let count = plan(&segments(), Offset(0), Offset(50), TimestampMs(5 * DAY), &options, |at| {
                asked.push(at);
                if at == 1 { second } else { day(at) }
            });
            assert_eq!((count, asked), (1, vec![0, 1]), "no age is read behind it");
        }
    }

    #[test]
    fn nothing_at_or_above_the_high_watermark_goes() {
        let options = LogOptions { retention_ms: 0, retention_bytes: 0, ..LogOptions::default() };
        for (high_watermark, expected) in [(0, 0), (5, 0), (10, 1), (19, 1), (49, 4), (50, 5)] {
            assert_eq!(planned(0, high_watermark, &options), expected, "high watermark {high_watermark}");
        }
    }

    #[test]
    fn an_empty_last_segment_stays() {
        let mut segments = segments();
        segments[4].size_bytes = 0;
        let options = LogOptions { retention_ms: 0, retention_bytes: 0, ..LogOptions::default() };
        assert_eq!(plan(&segments, Offset(0), Offset(50), TimestampMs(9 * DAY), &options, day), 4);
        assert_eq!(plan(&[], Offset(0), Offset(50), TimestampMs(9 * DAY), &options, day), 0);
    }

    #[test]
    fn the_ends_of_the_ranges_do_not_overflow() {
        let options = LogOptions { retention_ms: i64::MAX, retention_bytes: i64::MAX, ..LogOptions::default() };
        let oldest = |_| Some(TimestampMs(i64::MIN));
        assert_eq!(plan(&segments(), Offset(0), Offset::MAX, TimestampMs(i64::MAX), &options, oldest), 0);
    }
}
