use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::fs::{Fs, OpenMode, SimFs};
use crate::io::FileExt;
use crate::{BatchBuilder, Codec, Record, TimestampMs};

/// A batch of `count` records at `base` in `epoch`.
fn batch(base: i64, epoch: i32, count: i64) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(base)).leader_epoch(LeaderEpoch(epoch));
    for number in 0..count {
        builder.push(Record::new(TimestampMs(1000 + base + number), b"some value of a record"));
    }
    builder.build()
}

/// Batches at 10, 12, 15, 16 and 20 in epochs 1, 1, 2, 2 and 4; the segment ends at 23.
fn batches() -> Vec<Vec<u8>> {
    vec![batch(10, 1, 2), batch(12, 1, 3), batch(15, 2, 1), batch(16, 2, 4), batch(20, 4, 3)]
}

fn history() -> EpochHistory {
    let entries = [(1, 10), (2, 15), (4, 20)];
    let entries = entries.map(|(epoch, start)| (LeaderEpoch(epoch), Offset(start)));
    EpochHistory::from_entries(entries.to_vec()).unwrap()
}

fn file_of(bytes: &[u8]) -> Arc<dyn File> {
    let fs = SimFs::new(1);
    let file = fs.open(Path::new("/x"), OpenMode::CreateNew).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

fn survey(bytes: &[u8], epochs: Option<&EpochHistory>, verified: bool) -> Vec<Step> {
    let file = file_of(bytes);
    let epochs = epochs.map(|epochs| (epochs, Offset::MAX));
    let frame = Frame { epochs, ..Frame::whole(Offset(10), bytes.len() as u64, Offset(23)) };
    let mut survey = Survey::new(&*file, if verified { frame.verified() } else { frame });
    let mut steps = Vec::new();
    loop {
        steps.push(survey.step().unwrap());
        if matches!(steps.last(), Some(Step::End | Step::Zeros(_))) {
            return steps;
        }
    }
}

#[test]
fn whole_batches_are_passed_with_nothing_to_say() {
    let bytes = batches().concat();
    for epochs in [None, Some(&history())] {
        for verified in [false, true] {
            let steps = survey(&bytes, epochs, verified);
            let firsts: Vec<_> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Batch(batch) if batch.fixes.is_empty() && !batch.doubtful_epoch => {
                        Some(batch.header.base_offset().0)
                    }
                    _ => None,
                })
                .collect();
            assert_eq!(firsts, [10, 12, 15, 16, 20]);
            assert_eq!(steps.len(), 6);
        }
    }
}

#[test]
fn every_flipped_bit_is_put_right_or_costs_its_batch_and_no_other() {
    let whole = batches();
    let headers: Vec<_> = whole.iter().map(|batch| BatchHeader::decode(batch.first_chunk().unwrap())).collect();
    let bytes = whole.concat();
    let (mut repaired, mut lost) = (0, 0);
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        let mut start = 0;
        let hit = whole.iter().position(|batch| {
            start += batch.len();
            start > at / 8
        });
        let hit = hit.unwrap();
        let mut next = 0;
        for step in survey(&flipped, Some(&history()), true) {
            match step {
                Step::Batch(batch) => {
                    assert_eq!(batch.header, headers[next], "bit {at}");
                    assert!(batch.fixes.is_empty() || next == hit, "bit {at}: {batch:?}");
                    assert!(!batch.doubtful_epoch);
                    repaired += batch.fixes.len();
                    next += 1;
                }
                Step::Damage(stretch) => {
                    let end = headers.get(hit + 1).map_or(Offset(23), |header| header.base_offset());
                    assert_eq!((next, stretch.offsets), (hit, headers[hit].base_offset()..end), "bit {at}");
                    assert_eq!(stretch.bytes, whole[hit].len() as u64);
                    lost += 1;
                    next += 1;
                }
                Step::Zeros(_) => panic!("bit {at}: zeros"),
                Step::End => assert_eq!(next, whole.len(), "bit {at}"),
            }
        }
    }
    // Base offset, length, epoch and version of each batch, bit by bit; everything else is under the checksum.
    assert_eq!(repaired, 17 * 8 * whole.len());
    assert_eq!(lost, (bytes.len() - 17 * whole.len()) * 8);
}

#[test]
fn without_a_history_the_batches_on_both_sides_tell_the_epoch() {
    let bytes = [batch(10, 3, 1), batch(11, 3, 1), batch(12, 3, 1), batch(13, 3, 1)];
    for (at, doubtful) in [(0, false), (1, false), (2, false)] {
        let mut flipped = bytes.clone();
        flipped[at][15] ^= 4;
        let steps = survey(&flipped.concat(), None, false);
        let fix = Fix { field: RepairedField::LeaderEpoch, was: 7, is: 3 };
        match &steps[at] {
            Step::Batch(batch) => assert_eq!((&batch.fixes, batch.doubtful_epoch), (&vec![fix], doubtful)),
            other => panic!("{other:?}"),
        }
    }
    // Between two epochs more than one value fits.
    let mut between = [batch(10, 1, 1), batch(11, 1, 1), batch(12, 3, 1)];
    between[1][15] = 9;
    let steps = survey(&between.concat(), None, false);
    assert!(matches!(&steps[1], Step::Batch(batch) if batch.doubtful_epoch && batch.fixes.is_empty()), "{steps:?}");
}

#[test]
fn a_history_that_the_batches_contradict_is_not_believed() {
    let bytes = [batch(10, 1, 1), batch(11, 1, 1), batch(12, 2, 1), batch(13, 2, 1), batch(14, 2, 1)].concat();
    let wrong = EpochHistory::from_entries(vec![(LeaderEpoch(1), Offset(10)), (LeaderEpoch(2), Offset(14))]).unwrap();
    for step in survey(&bytes, Some(&wrong), false) {
        assert!(matches!(&step, Step::Batch(batch) if batch.fixes.is_empty()) || step == Step::End, "{step:?}");
    }
}

#[test]
fn several_damaged_batches_in_a_row_are_one_stretch() {
    let mut whole = batches();
    whole[1][8..12].fill(0xff);
    whole[2][30] ^= 1;
    let steps = survey(&whole.concat(), None, true);
    let (position, bytes) = (whole[0].len() as u64, (whole[1].len() + whole[2].len()) as u64);
    match &steps[1] {
        Step::Damage(stretch) => {
            assert_eq!((stretch.position, stretch.bytes), (position, bytes));
            assert_eq!(stretch.offsets, Offset(12)..Offset(16));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(steps.len(), 5);
}

#[test]
fn a_batch_within_a_record_is_not_taken_for_the_next_one() {
    let nested = batch(13, 1, 1);
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(12)).leader_epoch(LeaderEpoch(1));
    builder.push(Record::new(TimestampMs(5), &nested)).push(Record::new(TimestampMs(6), b"and something behind it"));
    let mut holder = builder.build();
    holder[9] ^= 1;
    let crc = holder.len() - 1;
    holder[crc] ^= 1;
    let whole = [batch(10, 1, 2), holder, batch(14, 1, 9)];
    let steps = survey(&whole.concat(), None, false);
    assert!(matches!(&steps[1], Step::Damage(stretch) if stretch.offsets == (Offset(12)..Offset(14))), "{steps:?}");
}

#[test]
fn zeros_to_the_end_are_told_from_damage() {
    let whole = batches().concat();
    let mut bytes = whole.clone();
    bytes.resize(whole.len() + 300_000, 0);
    assert_eq!(survey(&bytes, None, true).last(), Some(&Step::Zeros(whole.len() as u64)));
    *bytes.last_mut().unwrap() = 1;
    let steps = survey(&bytes, None, true);
    assert!(matches!(&steps[5], Step::Damage(stretch) if stretch.bytes == 300_000), "{:?}", steps[5]);
}

#[test]
fn a_gap_is_no_damage() {
    let bytes = [batch(10, 1, 2), batch(14, 1, 1), batch(20, 1, 1)].concat();
    let steps = survey(&bytes, None, false);
    assert!(steps[..3].iter().all(|step| matches!(step, Step::Batch(batch) if batch.fixes.is_empty())), "{steps:?}");
    // A base offset that has room to be several is not guessed.
    let mut wrong = bytes;
    wrong[batch(10, 1, 2).len() + 4] = 0xff;
    let steps = survey(&wrong, None, false);
    assert!(matches!(&steps[1], Step::Damage(stretch) if stretch.offsets == (Offset(12)..Offset(20))), "{steps:?}");
}

#[test]
fn a_whole_batch_between_two_damaged_ones_is_not_lost() {
    let damages: [fn(&mut [u8]); 3] =
        [|header| header[8..12].fill(0xff), |header| header[16] = 9, |header| header[30] ^= 1];
    for damage in damages {
        let mut whole = batches();
        // Neither can be put right: the checksum is wrong as well.
        for (at, damage) in [(1, damages[0]), (3, damage)] {
            damage(&mut whole[at]);
            *whole[at].last_mut().unwrap() ^= 1;
        }
        let steps = survey(&whole.concat(), None, true);
        let found: Vec<_> = steps
            .iter()
            .map(|step| match step {
                Step::Batch(batch) => batch.header.base_offset().0,
                Step::Damage(stretch) => -stretch.offsets.start.0,
                _ => 0,
            })
            .collect();
        assert_eq!(found, [10, -12, 15, -16, 20, 0], "{steps:?}");
    }
}

#[test]
fn batches_in_the_records_of_a_damaged_one_are_not_taken_for_the_next() {
    let nested = [batch(13, 1, 1), batch(14, 1, 2)].concat();
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(12)).leader_epoch(LeaderEpoch(1));
    builder.push(Record::new(TimestampMs(5), &nested)).push(Record::new(TimestampMs(6), b"and something behind it"));
    let mut holder = builder.build();
    *holder.last_mut().unwrap() ^= 1;
    let bytes = holder.len() as u64;
    let others = [batch(10, 1, 2), holder, batch(14, 1, 9)];
    // Whether a batch follows it or the end.
    for (count, end) in [(3, 14), (2, 23)] {
        let steps = survey(&others[..count].concat(), None, true);
        match &steps[1] {
            Step::Damage(stretch) => {
                assert_eq!((stretch.bytes, &stretch.offsets), (bytes, &(Offset(12)..Offset(end))), "{steps:?}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(steps.len(), count + 1, "{steps:?}");
    }
}

#[test]
fn known_damage_is_passed_over_to_its_end_and_no_further() {
    let bytes = batches().concat();
    let sizes: Vec<_> = batches().iter().map(|batch| batch.len() as u64).collect();
    // Noted before the first of these batches took its place: the damage begins within that one.
    let known = Damaged {
        segment: "/x".into(),
        position: 10,
        bytes: sizes[0] + sizes[1] - 10,
        offsets: Offset(10)..Offset(15),
        what: DamageKind::Short,
    };
    let file = file_of(&bytes);
    let frame = Frame::whole(Offset(10), bytes.len() as u64, Offset(23));
    let mut survey = Survey::new(&*file, frame).passing_over(vec![known]);
    let mut steps = Vec::new();
    while !matches!(steps.last(), Some(Step::End)) {
        steps.push(survey.step().unwrap());
    }
    assert!(matches!(&steps[0], Step::Batch(batch) if batch.header.base_offset() == Offset(10)), "{steps:?}");
    assert!(matches!(&steps[1], Step::Damage(stretch) if stretch.bytes == sizes[1]), "{steps:?}");
    assert!(matches!(&steps[2], Step::Batch(batch) if batch.header.base_offset() == Offset(15)), "{steps:?}");
    assert_eq!(steps.len(), 6);
}

#[test]
fn a_file_of_headers_that_claim_all_of_it_is_surveyed_in_time_that_grows_with_it() {
    const LEN: usize = 16 << 20;
    let mut bytes = Vec::with_capacity(LEN);
    let mut base = 0;
    while bytes.len() + 200 < LEN {
        bytes.extend(batch(base, 1, 1));
        base += 1;
        // Out of order, so that its checksum has to tell.
        let mut claims = batch(0, 1, 1);
        let rest = i32::try_from(LEN - bytes.len() - 100).unwrap();
        claims[8..12].copy_from_slice(&rest.to_be_bytes());
        bytes.extend(&claims[..HEADER_BYTES]);
    }
    bytes.resize(LEN, 1);
    let file = file_of(&bytes);
    // A checksum of all that is left, for each of the headers, were 1 TB.
    let mut survey = Survey::new(&*file, Frame::whole(Offset(0), LEN as u64, Offset::MAX));
    let mut steps = 0;
    while survey.step().unwrap() != Step::End {
        steps += 1;
    }
    assert!(steps > 2, "{steps}");
}
