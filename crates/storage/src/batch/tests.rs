use proptest::prelude::*;

use super::*;
use crate::builder::{BatchBuilder, Record};
use crate::index::tests::BytesFile;

fn batch(base_offset: i64, records: usize) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(base_offset));
    for _ in 0..records {
        builder.push(Record::new(TimestampMs(5), b"value"));
    }
    builder.build()
}

fn with_length_and_magic(length: i32, magic: i8) -> Vec<u8> {
    let mut bytes = batch(0, 1);
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = magic.to_be_bytes()[0];
    bytes
}

#[test]
fn frames_that_cannot_be_are_told_apart() {
    let have = batch(0, 1).len();
    let check = |length, magic, expected| {
        let bytes = with_length_and_magic(length, magic);
        let fault = BatchView::parse(&bytes).err().map(|error| error.what);
        assert_eq!(fault, expected, "length {length}, magic {magic}");
    };
    check(i32::try_from(have).expect("small") - 12, 2, None);
    check(49, 2, None);
    for length in [i32::MIN, -1, 0, 13, 14, 48] {
        check(length, 2, Some(BatchFault::Length(length)));
    }
    // What stands where the lengths of a message's key and value would be is not that: the format version is wrong.
    for length in [14, 49, 60] {
        check(length, 0, Some(BatchFault::Message(0)));
    }
    check(21, 1, Some(BatchFault::Length(21)));
    check(60, 1, Some(BatchFault::Message(1)));
    check(13, 1, Some(BatchFault::Length(13)));
    check(60, 3, Some(BatchFault::Magic(3)));
    check(60, -1, Some(BatchFault::Magic(-1)));
    let need = usize::try_from(i32::MAX).expect("fits") + 12;
    check(i32::MAX, 2, Some(BatchFault::Partial { have, need }));
}

#[test]
fn a_partial_tail_ends_the_batches_without_an_error() {
    let first = batch(0, 2);
    let second = batch(2, 1);
    for cut in 0..second.len() {
        let bytes = [first.as_slice(), &second[..cut]].concat();
        let mut iterator = batches(&bytes);
        assert_eq!(iterator.next().expect("a batch").expect("whole").next_offset(), Offset(2));
        assert!(iterator.next().is_none(), "cut at {cut}");
        assert_eq!(iterator.position(), first.len());
    }
}

#[test]
fn the_last_batch_is_the_one_that_going_through_all_of_them_ends_with() {
    let whole = [batch(0, 2), batch(2, 1), batch(3, 4), with_length_and_magic(60, 9), batch(7, 1)].concat();
    let mut found = std::collections::BTreeSet::new();
    for end in 0..=whole.len() {
        let bytes = &whole[..end];
        let last = batches(bytes).map_while(Result::ok).last();
        let (header, bytes_of) = (last.map(|batch| *batch.header()), last.map(|batch| batch.bytes()));
        let told = last_batch(bytes);
        assert_eq!((told.map(|batch| *batch.header()), told.map(|batch| batch.bytes())), (header, bytes_of), "{end}");
        found.insert(header.map(|header| header.base_offset()));
    }
    assert_eq!(found.len(), 4, "none, and each of those before the error");
}

#[test]
fn after_an_error_there_is_nothing_more() {
    let good = batch(0, 1);
    let bytes = [good.as_slice(), &with_length_and_magic(60, 9), &good].concat();
    let mut iterator = batches(&bytes);
    assert!(iterator.next().expect("a batch").is_ok());
    let error = iterator.next().expect("an error").expect_err("no such format");
    assert_eq!(error, BatchError { position: good.len(), what: BatchFault::Magic(9) });
    assert!(iterator.next().is_none());
    assert_eq!(iterator.position(), good.len());
}

#[test]
fn headers_are_read_from_files() {
    let (first, second) = (batch(0, 2), batch(2, 1));
    let bytes = [first.as_slice(), &second].concat();
    let (first_len, end) = (first.len() as u64, bytes.len() as u64);
    for piece in [1, 7, 1000] {
        let file = BytesFile { piece, ..BytesFile::new(bytes.clone()) };
        let scan = |position, limit| read_header(&file, position, limit).expect("readable");
        let HeaderScan::Batch(header) = scan(0, end) else { panic!("no batch") };
        assert_eq!((header.total_bytes() as u64, header.record_count()), (first_len, 2));
        assert!(matches!(scan(first_len, end), HeaderScan::Batch(header) if header.base_offset() == Offset(2)));
        assert_eq!(scan(end, end), HeaderScan::End);
        assert_eq!(scan(end + 1, end), HeaderScan::End);
        for limit in 1..first_len {
            let fault = scan(0, limit);
            assert!(matches!(fault, HeaderScan::Fault(BatchFault::Partial { .. })), "{limit}: {fault:?}");
        }
        // The limit may be past what the file has, as after a lost tail.
        assert!(matches!(scan(end - 5, end + 100), HeaderScan::Fault(BatchFault::Partial { .. })));
        assert!(matches!(scan(3, end), HeaderScan::Fault(_)));
    }
}

#[test]
fn a_file_that_fails_is_not_taken_for_its_end() {
    let file = BytesFile { fails: true, ..BytesFile::new(batch(0, 1)) };
    assert!(read_header(&file, 0, 70).is_err());
}

#[test]
fn sequences_wrap_to_zero() {
    for (sequence, records, expected) in [
        (0, 0, 0),
        (5, 4, 9),
        (i32::MAX, 0, i32::MAX),
        (i32::MAX, 1, 0),
        (i32::MAX - 2, 5, 2),
        (2, -5, i32::MAX - 2),
        (0, i32::MAX, i32::MAX),
        (i32::MAX, i32::MAX, i32::MAX - 1),
        (0, i32::MIN, 0),
        (-1, 7, -1),
    ] {
        assert_eq!(sequence_after(sequence, records), expected, "{sequence} + {records}");
    }
}

#[test]
fn a_nonsense_length_still_has_a_size() {
    let mut header = BatchHeader::decode(batch(0, 1).first_chunk().expect("a header"));
    header.batch_length = -5;
    assert_eq!(header.total_bytes(), HEADER_BYTES);
}

proptest! {
    #[test]
    fn any_header_round_trips(bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform29(any::<u8>())) {
        let mut header = [0; HEADER_BYTES];
        header[..32].copy_from_slice(&bytes);
        header[32..].copy_from_slice(&more);
        header[16] |= 2; // Messages of the formats 0 and 1 have other headers.
        prop_assert_eq!(BatchHeader::decode(&header).encode(), header);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300), length in -20..400i32, magic in 0..4u8) {
        let mut framed = bytes.clone();
        if let Some(prefix) = framed.get_mut(..17) {
            // Past the frame: most random bytes would end at their length field.
            prefix[8..12].copy_from_slice(&length.to_be_bytes());
            prefix[16] = magic;
        }
        for bytes in [bytes, framed] {
            let mut iterator = batches(&bytes);
            while let Some(Ok(batch)) = iterator.next() {
                prop_assert_eq!(batch.bytes().len(), batch.total_bytes());
                if let Ok(mut records) = batch.read_records(1 << 16) {
                    while let Ok(Some(_)) = records.next() {}
                }
                let _ = (batch.crc_matches(), batch.last_offset(), batch.last_sequence(), batch.attributes().codec());
                prop_assert!(batch.records().into_iter().flatten().count() <= bytes.len());
            }
            prop_assert!(iterator.position() <= bytes.len());
        }
    }
}
