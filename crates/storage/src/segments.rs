//! The ordered set of a log's segments, as readers see it.

use std::sync::Arc;

use crate::Offset;
use crate::segment::Segment;

/// An immutable list of segments by rising base offset. The writer replaces the whole list; a reader that holds an old
/// one sees a log that was.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    by_base: Vec<Arc<Segment>>,
}

impl Segments {
    /// The list of these segments, which must be in order.
    pub(crate) fn new(by_base: Vec<Arc<Segment>>) -> Self {
        debug_assert!(by_base.is_sorted_by(|one, other| one.base() < other.base()), "segments in order");
        Self { by_base }
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> &[Arc<Segment>] {
        &self.by_base
    }

    /// Those that may hold `from` or a later offset.
    pub(crate) fn holding(&self, from: Offset) -> &[Arc<Segment>] {
        let after = self.by_base.partition_point(|segment| segment.base() <= from);
        self.by_base.get(after.saturating_sub(1)..).unwrap_or_default()
    }

    /// Those that may hold `from` or a later offset, each with the base of the next one, below which all its offsets lie;
    /// [`Offset::MAX`] for the last.
    pub(crate) fn holding_with_next(&self, from: Offset) -> impl Iterator<Item = (&Arc<Segment>, Offset)> {
        let holding = self.holding(from);
        let next = holding.iter().skip(1).map(|next| next.base()).chain([Offset::MAX]);
        holding.iter().zip(next)
    }

    /// Each segment with the base of the next one, `end` for the last.
    pub(crate) fn with_ends(&self, end: Offset) -> impl DoubleEndedIterator<Item = (&Arc<Segment>, Offset)> {
        let last = self.by_base.len().saturating_sub(1);
        self.by_base.iter().enumerate().map(move |(at, segment)| {
            let next = if at == last { None } else { self.by_base.get(at + 1) };
            (segment, next.map_or(end, |next| next.base()))
        })
    }

    /// The base of the segment after this one, `end` for the last.
    pub(crate) fn end_of(&self, segment: &Segment, end: Offset) -> Offset {
        let after = self.by_base.partition_point(|other| other.base() <= segment.base());
        self.by_base.get(after).map_or(end, |next| next.base())
    }

    /// The list with one more at the end.
    pub(crate) fn with(&self, segment: Arc<Segment>) -> Self {
        let mut by_base = self.by_base.clone();
        by_base.push(segment);
        Self::new(by_base)
    }

    /// The list with this one in place of the last.
    pub(crate) fn with_last(&self, segment: Arc<Segment>) -> Self {
        let mut by_base = self.by_base.clone();
        by_base.pop();
        by_base.push(segment);
        Self::new(by_base)
    }

    /// The list with `new` segments in the place of `old` ones, which are in order; those that are not in the list are
    /// passed over.
    pub(crate) fn replaced(&self, old: &[(Arc<Segment>, Offset)], new: &[Arc<Segment>]) -> Self {
        let is_old = |segment: &Arc<Segment>| {
            let at = old.partition_point(|(old, _)| old.base() < segment.base());
            old.get(at).is_some_and(|(old, _)| Arc::ptr_eq(old, segment))
        };
        let at = self.by_base.iter().position(is_old).unwrap_or(self.by_base.len());
        let mut by_base: Vec<_> = self.by_base.iter().filter(|segment| !is_old(segment)).cloned().collect();
        by_base.splice(at..at, new.iter().cloned());
        Self::new(by_base)
    }

    /// The list without what lies below `base`, and what was taken out.
    pub(crate) fn split_below(&self, base: Offset) -> (Vec<Arc<Segment>>, Self) {
        let keep = self.by_base.partition_point(|segment| segment.base() < base);
        let (below, rest) = self.by_base.split_at(keep);
        (below.to_vec(), Self { by_base: rest.to_vec() })
    }
}
