use std::io::BufReader;

use proptest::prelude::*;

use super::*;

/// Reads `bytes` as a varint, which must be all of them.
fn int(bytes: &[u8]) -> Result<i32, RecordFault> {
    let mut rest = bytes;
    let value = read_varint(&mut rest)?;
    assert!(rest.is_empty(), "{bytes:x?} left {rest:x?}");
    Ok(value)
}

#[test]
fn varints_are_kafkas() {
    for (value, bytes) in [
        (0, &[0x00][..]),
        (-1, &[0x01]),
        (1, &[0x02]),
        (63, &[0x7e]),
        (-64, &[0x7f]),
        (64, &[0x80, 0x01]),
        (-65, &[0x81, 0x01]),
        (8191, &[0xfe, 0x7f]),
        (-8192, &[0xff, 0x7f]),
        (8192, &[0x80, 0x80, 0x01]),
        (-8193, &[0x81, 0x80, 0x01]),
        (1_048_575, &[0xfe, 0xff, 0x7f]),
        (134_217_727, &[0xfe, 0xff, 0xff, 0x7f]),
        (i32::MAX, &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
        (i32::MIN, &[0xff, 0xff, 0xff, 0xff, 0x0f]),
    ] {
        let mut written = Vec::new();
        write_varint(&mut written, value);
        assert_eq!(written, bytes, "{value}");
        assert_eq!(int(bytes), Ok(value));
    }
}

#[test]
fn integers_that_are_too_long_are_refused() {
    assert_eq!(int(&[0xff, 0xff, 0xff, 0xff, 0x10]), Err(RecordFault::Varint));
    assert_eq!(int(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00]), Err(RecordFault::Varint));
    assert_eq!(int(&[0x80, 0x80]), Err(RecordFault::Short));
    assert_eq!(int(&[]), Err(RecordFault::Short));
    assert_eq!(int(&[0x80, 0x00]), Ok(0), "padded, but read by all");
    let mut longest = &[0xff; 10][..];
    assert_eq!(read_varlong(&mut longest), Err(RecordFault::Varint));
    let mut longest = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..];
    assert_eq!(read_varlong(&mut longest), Ok(i64::MIN));
}

const RECORD: [u8; 18] =
    [0x22, 0, 0x04, 0x06, 0x02, b'k', 0x01, 0x04, 0x04, b'h', b'1', 0x01, 0x02, b'h', 0x04, b'v', b'2', 0x7f];

/// [`RECORD`] without its last byte, which stands for what follows it.
fn record() -> Vec<u8> {
    let mut bytes = RECORD[..17].to_vec();
    bytes[0] = 0x20;
    bytes
}

#[test]
fn a_record_has_its_fields() {
    let bytes = record();
    let mut rest = bytes.as_slice();
    let record = RecordView::parse(&mut rest).expect("a record");
    assert_eq!((record.timestamp_delta, record.offset_delta), (2, 3));
    assert_eq!((record.key, record.value), (Some(&b"k"[..]), None));
    let headers: Vec<_> = record.headers().collect();
    let expected = [RecordHeader { key: b"h1", value: None }, RecordHeader { key: b"h", value: Some(b"v2") }];
    assert_eq!(headers, expected);
    assert!(rest.is_empty());
}

#[test]
fn the_length_must_be_used_exactly() {
    // One byte more than the fields take, within the record.
    assert_eq!(RecordView::parse(&mut &RECORD[..]), Err(RecordFault::Length));
    // The same in a record without headers.
    assert_eq!(RecordView::parse(&mut &[0x0c, 0, 0, 0, 1, 1, 0][..]).map(|record| record.headers().count()), Ok(0));
    assert_eq!(RecordView::parse(&mut &[0x0e, 0, 0, 0, 1, 1, 0, 9][..]), Err(RecordFault::Length));
    // One byte less: the last header runs out of the record into what follows.
    let mut short = record();
    short[0] = 0x1e;
    assert_eq!(RecordView::parse(&mut short.as_slice()), Err(RecordFault::Length));
    let mut negative = record();
    negative[0] = 0x01;
    assert_eq!(RecordView::parse(&mut negative.as_slice()), Err(RecordFault::NegativeLength));
    assert_eq!(RecordView::parse(&mut &[0x00][..]), Err(RecordFault::Length));
    for cut in 0..record().len() {
        assert_eq!(RecordView::parse(&mut &record()[..cut]), Err(RecordFault::Short), "{cut}");
    }
}

#[test]
fn counts_and_lengths_are_not_negative() {
    let mut header_count = record();
    header_count[7] = 0x01;
    assert_eq!(RecordView::parse(&mut header_count.as_slice()), Err(RecordFault::NegativeLength));
    let mut header_key = record();
    header_key[8] = 0x01;
    assert_eq!(RecordView::parse(&mut header_key.as_slice()), Err(RecordFault::NegativeLength));
    let mut key = record();
    key[4] = 0x03;
    assert_eq!(RecordView::parse(&mut key.as_slice()), Err(RecordFault::NegativeLength));
}

#[test]
fn records_end_where_the_count_says() {
    let two = [record(), record()].concat();
    assert_eq!(Records::new(&two, 2).filter(Result::is_ok).count(), 2);
    assert_eq!(Records::new(&two, 1).last(), Some(Err(RecordFault::Trailing)));
    assert_eq!(Records::new(&two, 3).last(), Some(Err(RecordFault::Short)));
    assert_eq!(Records::new(&two, i32::MAX).count(), 3);
    assert_eq!(Records::new(&[], i32::MIN).count(), 0);
}

/// The shapes of the records that a walk passes, and whether it came to an end.
fn walk(source: &mut impl RecordSource, count: usize) -> (Vec<RecordShape>, bool) {
    let mut shapes = Vec::new();
    for _ in 0..count {
        match source.next_record() {
            Ok(shape) => shapes.push(shape),
            Err(_) => return (shapes, false),
        }
    }
    (shapes, source.at_end().expect("memory"))
}

proptest! {
    #[test]
    fn integers_round_trip(value in any::<i64>(), small in any::<i32>()) {
        let mut bytes = Vec::new();
        write_varlong(&mut bytes, value);
        write_varint(&mut bytes, small);
        let mut rest = bytes.as_slice();
        prop_assert_eq!(read_varlong(&mut rest), Ok(value));
        prop_assert_eq!(read_varint(&mut rest), Ok(small));
        prop_assert!(rest.is_empty());
    }

    /// The walk that checks and the views that read must never disagree, whatever the bytes: what the check lets in,
    /// readers can read.
    #[test]
    fn walking_and_viewing_agree(
        count in 1..4usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        buffer in 1..20usize,
    ) {
        let mut bytes = record().repeat(count);
        for (at, byte) in changes {
            *at.get_mut(&mut bytes) = byte;
        }
        let mut viewed = Vec::new();
        let mut is_whole = true;
        for result in Records::new(&bytes, i32::try_from(count).expect("small")) {
            match result {
                Ok(record) => {
                    prop_assert!(record.headers().count() <= bytes.len());
                    viewed.push(RecordShape::from(record));
                }
                Err(_) => is_whole = false,
            }
        }
        let slice = walk(&mut bytes.as_slice(), count);
        prop_assert_eq!(&slice, &(viewed, is_whole));
        let stream = walk(&mut RecordStream::new(BufReader::with_capacity(buffer, bytes.as_slice())), count);
        prop_assert_eq!(slice, stream);
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), count in any::<i32>()) {
        prop_assert!(Records::new(&bytes, count).count() <= bytes.len() + 1);
    }
}
