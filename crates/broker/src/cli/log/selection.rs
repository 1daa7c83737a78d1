//! `--from` and `--to`: an offset or a time.

use std::str::FromStr;

use highwater_storage::{BatchHeader, Offset, TimestampMs};

use super::time;

/// One end of what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Offset(Offset),
    Time(TimestampMs),
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(offset) = text.parse::<i64>() {
            return if offset >= 0 { Ok(Self::Offset(Offset(offset))) } else { Err("offsets begin at 0".to_owned()) };
        }
        let time = time::parse(text).map(Self::Time);
        time.ok_or_else(|| "neither an offset nor a time like 2023-11-14T22:13:20Z or @1700000000000".to_owned())
    }
}

/// What is asked for: from one bound, inclusive, to another, exclusive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Selection {
    pub(crate) from: Option<Bound>,
    pub(crate) to: Option<Bound>,
}

impl Selection {
    /// The lowest offset asked for.
    pub(crate) fn first_offset(&self) -> Offset {
        match self.from {
            Some(Bound::Offset(offset)) => offset,
            _ => Offset::ZERO,
        }
    }

    /// Whether everything from this offset on is beyond what is asked for.
    pub(crate) fn ends_before(&self, offset: Offset) -> bool {
        matches!(self.to, Some(Bound::Offset(to)) if offset >= to)
    }

    /// Whether a batch may hold a record that is asked for.
    pub(crate) fn takes_batch(&self, header: &BatchHeader) -> bool {
        let from = match self.from {
            Some(Bound::Offset(from)) => header.last_offset() >= from,
            Some(Bound::Time(from)) => header.max_timestamp() >= from,
            None => true,
        };
        let to = match self.to {
            Some(Bound::Offset(to)) => header.base_offset() < to,
            // Timestamps need not rise within a batch, so that its first says nothing of its others unless it is the
            // largest.
            Some(Bound::Time(to)) => header.base_timestamp().min(header.max_timestamp()) < to,
            None => true,
        };
        from && to
    }

    /// Whether a record is asked for.
    pub(crate) fn takes_record(&self, offset: Offset, timestamp: TimestampMs) -> bool {
        let is_reached = |bound| match bound {
            Bound::Offset(bound) => offset >= bound,
            Bound::Time(bound) => timestamp >= bound,
        };
        self.from.is_none_or(is_reached) && !self.to.is_some_and(is_reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_offsets_or_times() {
        assert_eq!("17".parse(), Ok(Bound::Offset(Offset(17))));
        assert_eq!("@17".parse(), Ok(Bound::Time(TimestampMs(17))));
        assert_eq!("1970-01-02".parse(), Ok(Bound::Time(TimestampMs(86_400_000))));
        for bad in ["-1", "x", "", "1970-13-02"] {
            assert!(bad.parse::<Bound>().is_err(), "{bad}");
        }
    }

    #[test]
    fn records_are_taken_from_one_bound_up_to_the_other() {
        let selection = Selection { from: Some(Bound::Offset(Offset(2))), to: Some(Bound::Time(TimestampMs(10))) };
        let taken: Vec<i64> = (0..6).filter(|at| selection.takes_record(Offset(*at), TimestampMs(at * 3))).collect();
        assert_eq!(taken, [2, 3]);
    }
}
