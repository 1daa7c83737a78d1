use std::path::Path;

use super::*;
use crate::fs::SimFs;
use crate::open_files::OpenFiles;
use crate::segment::Place;

/// A segment at this base; two of them are never the same.
fn segment(base: i64) -> Arc<Segment> {
    let place = Place {
        fs: Arc::new(SimFs::new(1)),
        dir: Path::new("/").into(),
        open_files: OpenFiles::default(),
        index_interval_bytes: 4096,
        read_only: false,
        rebuilt: Default::default(),
    };
    Arc::new(Segment::new(place, Offset(base), 0))
}

fn bases(segments: &Segments) -> Vec<i64> {
    segments.all().map(|segment| segment.base().0).collect()
}

/// Everything that a list answers is what a plain list of the same segments does.
fn assert_is(segments: &Segments, expected: &[Arc<Segment>]) {
    assert!(segments.chunks.iter().all(|chunk| (1..=CHUNK_SEGMENTS).contains(&chunk.len())));
    let same = |found: Option<&Arc<Segment>>, wanted: Option<&Arc<Segment>>| match (found, wanted) {
        (Some(found), Some(wanted)) => Arc::ptr_eq(found, wanted),
        (found, wanted) => found.is_none() && wanted.is_none(),
    };
    assert_eq!(segments.len(), expected.len());
    assert!(same(segments.first(), expected.first()));
    assert!(segments.all().zip(expected).all(|(found, wanted)| Arc::ptr_eq(found, wanted)));
    assert!(segments.all().rev().eq_by_base(expected.iter().rev()));
    let end = Offset(1_000_000);
    let ends: Vec<i64> =
        expected.iter().skip(1).map(|next| next.base().0).chain([end.0]).take(expected.len()).collect();
    assert_eq!(segments.with_ends(end).map(|(_, end)| end.0).collect::<Vec<_>>(), ends);
    let mut backwards: Vec<i64> = segments.with_ends(end).rev().map(|(_, end)| end.0).collect();
    backwards.reverse();
    assert_eq!(backwards, ends);
    for from in expected.iter().flat_map(|segment| [-1, 0, 1].map(|by| segment.base() + by)).chain([Offset(-5), end]) {
        let first = expected.partition_point(|segment| segment.base() <= from).saturating_sub(1);
        assert!(segments.holding(from).eq_by_base(expected[first..].iter()), "{from}");
        let at = expected.iter().find(|segment| segment.base() == from);
        assert!(same(segments.at(from), at), "{from}");
        let mut next: Vec<i64> = expected.iter().skip(first + 1).map(|next| next.base().0).collect();
        next.extend((!expected.is_empty()).then_some(Offset::MAX.0));
        assert_eq!(segments.holding_with_next(from).map(|(_, next)| next.0).collect::<Vec<_>>(), next, "{from}");
    }
    for (segment, next) in expected.iter().zip(&ends) {
        assert_eq!(segments.end_of(segment, end).0, *next);
    }
}

trait EqByBase<'s>: Iterator<Item = &'s Arc<Segment>> + Sized {
    fn eq_by_base(self, other: impl Iterator<Item = &'s Arc<Segment>>) -> bool {
        self.map(|segment| segment.base()).eq(other.map(|segment| segment.base()))
    }
}

impl<'s, I: Iterator<Item = &'s Arc<Segment>>> EqByBase<'s> for I {}

#[test]
fn a_list_in_chunks_is_a_list() {
    let mut segments = Segments::default();
    let mut expected = Vec::new();
    assert_is(&segments, &expected);
    for number in 0..300 {
        let next = segment(number * 10);
        segments = segments.with(next.clone());
        expected.push(next);
        if [0, 1, 62, 63, 64, 127, 128, 200, 299].contains(&number) {
            assert_is(&segments, &expected);
            assert_is(&Segments::new(&expected), &expected);
            let other = segment(number * 10 + 3);
            let with_last = segments.with_last(other.clone());
            let before = &expected[..expected.len() - 1];
            assert_is(&with_last, &[before, &[other]].concat());
        }
    }
    assert_is(&Segments::default().with_last(expected[0].clone()), &expected[..1]);
    for below in [-1, 0, 1, 10, 639, 640, 641, 1280, 2989, 2990, 2991, 5000] {
        let (gone, kept) = segments.split_below(Offset(below));
        let at = expected.partition_point(|segment| segment.base().0 < below);
        assert_is(&Segments::new(&gone), &expected[..at]);
        assert_is(&kept, &expected[at..]);
        // What is not full is filled up before there is another chunk.
        let next = segment(10_000);
        assert_is(&kept.with(next.clone()), &[&expected[at..], &[next]].concat());
    }
    for range in [0..1, 0..300, 60..70, 63..64, 290..300] {
        let old: Vec<_> = expected[range.clone()].iter().map(|old| (old.clone(), Offset::MAX)).collect();
        let new = [segment(expected[range.start].base().0 + 1), segment(expected[range.start].base().0 + 2)];
        let wanted = [&expected[..range.start], &new, &expected[range.end..]].concat();
        assert_is(&segments.replaced(&old, &new), &wanted);
    }
    let stranger = [(segment(100), Offset::MAX)];
    assert_eq!(bases(&segments.replaced(&stranger, &[])), bases(&segments));
}

#[test]
fn a_roll_copies_one_chunk_at_most() {
    let all: Vec<_> = (0..1000).map(|number| segment(number * 10)).collect();
    let before = Segments::new(&all);
    let after = before.with(segment(100_000));
    let shared = after.chunks.iter().zip(&before.chunks).filter(|(after, before)| Arc::ptr_eq(after, before)).count();
    assert!(shared >= before.chunks.len() - 1, "{shared} of {} chunks are shared", before.chunks.len());
    let (_, kept) = after.split_below(Offset(1000));
    let shared = kept.chunks.iter().filter(|kept| after.chunks.iter().any(|after| Arc::ptr_eq(after, kept))).count();
    assert!(shared >= kept.chunks.len() - 1, "{shared} of {} chunks are shared", kept.chunks.len());
}
