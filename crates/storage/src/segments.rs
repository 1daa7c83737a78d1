//! The ordered set of a log's segments, as readers see it.

use std::sync::Arc;

use crate::Offset;
use crate::segment::Segment;

/// Segments in a full chunk: what a roll copies at most, beside one pointer for each chunk.
const CHUNK_SEGMENTS: usize = 64;

/// Segments by rising base offset; never none, and at most [`CHUNK_SEGMENTS`].
type Chunk = Arc<[Arc<Segment>]>;

/// An immutable list of segments by rising base offset. The writer replaces the whole list; a reader that holds an old
/// one sees a log that was. Two lists share the chunks in which they are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    chunks: Vec<Chunk>,
}

impl Segments {
    /// The list of these segments, which must be in order.
    pub(crate) fn new(by_base: &[Arc<Segment>]) -> Self {
        debug_assert!(by_base.is_sorted_by(|one, other| one.base() < other.base()), "segments in order");
        Self { chunks: by_base.chunks(CHUNK_SEGMENTS).map(Chunk::from).collect() }
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> impl DoubleEndedIterator<Item = &Arc<Segment>> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.len()).sum()
    }

    /// The oldest.
    pub(crate) fn first(&self) -> Option<&Arc<Segment>> {
        self.chunks.first().and_then(|chunk| chunk.first())
    }

    /// The one with this base offset.
    pub(crate) fn at(&self, base: Offset) -> Option<&Arc<Segment>> {
        self.holding(base).next().filter(|segment| segment.base() == base)
    }

    /// Those that may hold `from` or a later offset.
    pub(crate) fn holding(&self, from: Offset) -> impl Iterator<Item = &Arc<Segment>> + Clone {
        let begins_by = |chunk: &Chunk| chunk.first().is_some_and(|first| first.base() <= from);
        let chunks = self.chunks.get(self.chunks.partition_point(begins_by).saturating_sub(1)..).unwrap_or_default();
        let within = chunks.first().map_or(0, |chunk| chunk.partition_point(|segment| segment.base() <= from));
        chunks.iter().flat_map(|chunk| chunk.iter()).skip(within.saturating_sub(1))
    }

    /// Those that may hold `from` or a later offset, each with the base of the next one, below which all its offsets lie;
    /// [`Offset::MAX`] for the last.
    pub(crate) fn holding_with_next(&self, from: Offset) -> impl Iterator<Item = (&Arc<Segment>, Offset)> {
        let holding = self.holding(from);
        let next = holding.clone().skip(1).map(|next| next.base()).chain([Offset::MAX]);
        holding.zip(next)
    }

    /// Each segment with the base of the next one, `end` for the last.
    pub(crate) fn with_ends(&self, end: Offset) -> impl DoubleEndedIterator<Item = (&Arc<Segment>, Offset)> {
        self.chunks.iter().enumerate().flat_map(move |(number, chunk)| {
            let behind = move || self.chunks.get(number + 1).and_then(|next| next.first());
            chunk.iter().enumerate().map(move |(at, segment)| {
                let next = chunk.get(at + 1).or_else(behind);
                (segment, next.map_or(end, |next| next.base()))
            })
        })
    }

    /// The base of the segment after this one, `end` for the last.
    pub(crate) fn end_of(&self, segment: &Segment, end: Offset) -> Offset {
        let behind = self.holding(segment.base()).find(|other| other.base() > segment.base());
        behind.map_or(end, |next| next.base())
    }

    /// The list with one more at the end.
    pub(crate) fn with(&self, segment: Arc<Segment>) -> Self {
        let mut chunks = self.chunks.clone();
        let last = chunks.pop_if(|last| last.len() < CHUNK_SEGMENTS);
        chunks.push(last.iter().flat_map(|last| last.iter()).cloned().chain([segment]).collect());
        Self { chunks }
    }

    /// The list with this one in place of the last.
    pub(crate) fn with_last(&self, segment: Arc<Segment>) -> Self {
        let mut chunks = self.chunks.clone();
        let last = chunks.pop();
        let before = last.as_deref().and_then(|last| last.split_last()).map_or(&[][..], |(_, before)| before);
        chunks.push(before.iter().cloned().chain([segment]).collect());
        Self { chunks }
    }

    /// The list with `new` segments in the place of `old` ones, which are in order; those that are not in the list are
    /// passed over.
    pub(crate) fn replaced(&self, old: &[(Arc<Segment>, Offset)], new: &[Arc<Segment>]) -> Self {
        let is_old = |segment: &Arc<Segment>| {
            let at = old.partition_point(|(old, _)| old.base() < segment.base());
            old.get(at).is_some_and(|(old, _)| Arc::ptr_eq(old, segment))
        };
        let at = self.all().position(is_old).unwrap_or_else(|| self.len());
        let mut by_base: Vec<_> = self.all().filter(|segment| !is_old(segment)).cloned().collect();
        by_base.splice(at..at, new.iter().cloned());
        Self::new(&by_base)
    }

    /// The list without what lies below `base`, and what was taken out.
    pub(crate) fn split_below(&self, base: Offset) -> (Vec<Arc<Segment>>, Self) {
        let below = self.all().take_while(|segment| segment.base() < base).cloned().collect();
        let mut chunks = Vec::with_capacity(self.chunks.len());
        for chunk in &self.chunks {
            match chunk.partition_point(|segment| segment.base() < base) {
                0 => chunks.push(chunk.clone()),
                gone => chunks.extend(chunk.get(gone..).filter(|kept| !kept.is_empty()).map(Chunk::from)),
            }
        }
        (below, Self { chunks })
    }
}

#[cfg(test)]
mod tests;
