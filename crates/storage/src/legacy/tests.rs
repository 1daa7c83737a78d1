use proptest::prelude::*;

use super::*;
use crate::batch::{BatchView, batches};

const MAX: u64 = 1 << 20;

/// A message as a client of that time sent it.
fn message(
    magic: u8,
    attributes: u8,
    offset: i64,
    timestamp: i64,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
) -> Vec<u8> {
    let mut covered = vec![magic, attributes];
    if magic == 1 {
        covered.extend(timestamp.to_be_bytes());
    }
    for field in [key, value] {
        match field {
            None => covered.extend((-1i32).to_be_bytes()),
            Some(bytes) => {
                covered.extend(i32::try_from(bytes.len()).unwrap().to_be_bytes());
                covered.extend(bytes);
            }
        }
    }
    let mut bytes = offset.to_be_bytes().to_vec();
    bytes.extend(i32::try_from(covered.len() + 4).unwrap().to_be_bytes());
    bytes.extend(crc32fast::hash(&covered).to_be_bytes());
    bytes.extend(covered);
    bytes
}

fn wrapper(magic: u8, codec: Codec, attributes: u8, offset: i64, timestamp: i64, inner: &[Vec<u8>]) -> Vec<u8> {
    let set = compression::compress(codec, &inner.concat()).unwrap();
    message(magic, codec.id() | attributes, offset, timestamp, None, Some(&set))
}

type Row = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>);

fn records(bytes: &[u8]) -> Result<Vec<Row>, RecordsError> {
    let (batch, total) = BatchView::parse(bytes).expect("a message");
    assert_eq!(total, bytes.len());
    assert!(batch.crc_matches());
    let mut reader = batch.read_records(MAX)?;
    let mut rows = Vec::new();
    while let Some(record) = reader.next()? {
        assert_eq!(record.headers().count(), 0);
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        rows.push((record.offset.0, record.timestamp.0, owned(record.key), owned(record.value)));
    }
    // Looking for a time passes over the same records.
    let mut places = MessageReader::new(&batch, MAX)?;
    for row in &rows {
        assert_eq!(places.next_place()?, Some((Offset(row.0), TimestampMs(row.1))));
    }
    assert_eq!(places.next_place()?, None);
    Ok(rows)
}

fn row(offset: i64, timestamp: i64, value: &[u8]) -> Row {
    (offset, timestamp, None, Some(value.to_vec()))
}

#[test]
fn a_message_is_a_batch_of_one_record() {
    for (magic, timestamp) in [(0, -1), (1, 77)] {
        for key in [None, Some(b"".as_slice()), Some(b"key")] {
            for value in [None, Some(b"".as_slice()), Some(b"value")] {
                let bytes = message(magic, 0, 5, 77, key, value);
                let (batch, _) = BatchView::parse(&bytes).unwrap();
                assert_eq!((batch.base_offset(), batch.last_offset(), batch.record_count()), (Offset(5), Offset(5), 1));
                assert_eq!((batch.leader_epoch(), batch.producer_id()), (LeaderEpoch::NONE, -1));
                assert_eq!((batch.max_timestamp().0, batch.is_legacy()), (timestamp, true));
                assert!(batch.records().is_none() && batch.records_bytes().is_empty(), "not in the new format");
                let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                assert_eq!(records(&bytes).unwrap(), [(5, timestamp, owned(key), owned(value))]);
            }
        }
    }
}

#[test]
fn every_codec_of_the_time_is_read() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4] {
        let inner = [message(0, 0, 7, 0, None, Some(b"a")), message(0, 0, 9, 0, None, Some(&[b'b'; 100_000]))];
        let bytes = wrapper(0, codec, 0, 9, 0, &inner);
        assert_eq!(records(&bytes).unwrap(), [row(7, -1, b"a"), row(9, -1, &[b'b'; 100_000])], "{codec}");
        let (batch, _) = BatchView::parse(&bytes).unwrap();
        assert_eq!((batch.base_offset(), batch.record_count()), (Offset(9), -1), "not known without looking inside");
        assert_eq!(batch.first_offset(MAX).unwrap(), Offset(7), "{codec}");
    }
}

#[test]
fn inner_offsets_of_magic_1_count_up_to_the_wrapper_s() {
    // From 0, as producers send them; with gaps, as compaction leaves them; and counted from elsewhere.
    for (inner, absolute) in
        [([0, 1, 2], [103, 104, 105]), ([0, 2, 5], [100, 102, 105]), ([40, 41, 45], [100, 101, 105])]
    {
        let inner = inner.map(|offset| message(1, 0, offset, 50 + offset, None, Some(b"v")));
        let found = records(&wrapper(1, Codec::Gzip, 0, 105, 60, &inner)).unwrap();
        assert_eq!(found.iter().map(|row| row.0).collect::<Vec<_>>(), absolute);
    }
}

#[test]
fn a_wrapper_stamped_by_the_broker_gives_its_time_to_all() {
    const LOG_APPEND_TIME: u8 = 1 << 3;
    let inner = [message(1, 0, 0, 50, None, Some(b"a")), message(1, 0, 1, 60, None, Some(b"b"))];
    let stamped = wrapper(1, Codec::Snappy, LOG_APPEND_TIME, 1, 999, &inner);
    assert_eq!(records(&stamped).unwrap(), [row(0, 999, b"a"), row(1, 999, b"b")]);
    let created = wrapper(1, Codec::Snappy, 0, 1, 60, &inner);
    assert_eq!(records(&created).unwrap(), [row(0, 50, b"a"), row(1, 60, b"b")]);
}

#[test]
fn the_header_checksum_of_lz4_is_not_held_against_magic_0() {
    let inner = [message(0, 0, 0, 0, None, Some(b"value"))];
    let mut set = compression::compress(Codec::Lz4, &inner.concat()).unwrap();
    // Magic number, flags, block size, checksum.
    set[6] = twox_hash::XxHash32::oneshot(0, &set[..6]).to_be_bytes()[2];
    let with_magic = |magic| message(magic, Codec::Lz4.id(), 0, 0, None, Some(&set));
    assert_eq!(records(&with_magic(0)).unwrap(), [row(0, -1, b"value")]);
    let (bytes, mut first) = (with_magic(1), None);
    let (batch, _) = BatchView::parse(&bytes).unwrap();
    if let Err(error) = batch.read_records(MAX) {
        first = Some(error);
    }
    assert!(matches!(first, Some(RecordsError::Compression { codec: Codec::Lz4, .. })), "{first:?}");
}

#[test]
fn wrappers_that_hold_no_set_of_messages_are_told() {
    let good = message(1, 0, 0, 5, None, Some(b"value"));
    let bad = |inner: &[Vec<u8>]| records(&wrapper(1, Codec::Gzip, 0, 9, 5, inner)).unwrap_err();
    assert!(matches!(bad(&[message(0, 0, 0, 0, None, None)]), RecordsError::Message), "another version inside");
    assert!(
        matches!(bad(&[wrapper(1, Codec::Gzip, 0, 0, 5, std::slice::from_ref(&good))]), RecordsError::Message),
        "twice wrapped"
    );
    for cut in 1..good.len() {
        assert!(matches!(bad(&[good.clone(), good[..cut].to_vec()]), RecordsError::Message), "cut at {cut}");
    }
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(matches!(bad(&[flipped]), RecordsError::Crc(_)));
    let null = message(1, Codec::Gzip.id(), 0, 5, None, None);
    assert!(matches!(records(&null), Err(RecordsError::Message)), "no set at all");
    let unknown = message(1, 7, 0, 5, None, Some(b"?"));
    assert!(matches!(records(&unknown), Err(RecordsError::Codec(7))));
    // The last message inside counts from further on than the wrapper's offset reaches.
    let beyond = wrapper(1, Codec::Gzip, 0, 3, 5, &[message(1, 0, 0, 5, None, None), message(1, 0, 9, 5, None, None)]);
    assert!(matches!(records(&beyond), Err(RecordsError::Message)));
}

#[test]
fn what_a_wrapper_grows_to_is_limited() {
    let large = message(1, 0, 0, 5, None, Some(&vec![0; 2 << 20]));
    let bytes = wrapper(1, Codec::Gzip, 0, 0, 5, &[large]);
    assert!(bytes.len() < 10_000);
    let Err(RecordsError::Compression { source, .. }) = records(&bytes) else { panic!("it was read") };
    assert_eq!(source.kind(), io::ErrorKind::FileTooLarge);
}

/// No header checksum covers the format version of a record batch. One that turned into an older one is seen as soon as
/// there are a few bytes to look at, without a pass over the whole batch.
#[test]
fn a_record_batch_does_not_pass_for_a_message() {
    let batch = |timestamp: i64| {
        let mut builder = crate::BatchBuilder::new(Codec::None).base_offset(Offset(10));
        builder.push(crate::Record::new(TimestampMs(timestamp), b"value"));
        builder.push(crate::Record::new(TimestampMs(timestamp), b"value"));
        builder.build()
    };
    for timestamp in (0..500).map(|day| 1_700_000_000_000 + day * 86_400_000) {
        for magic in [0, 1] {
            let mut bytes = batch(timestamp);
            bytes[16] = magic;
            assert!(BatchView::parse(&bytes).is_err(), "{timestamp}, as format {magic}");
        }
    }
}

proptest! {
    #[test]
    fn damaged_messages_are_errors_or_other_records(
        at in 0usize..300, flip in 1u8..=255, magic in 0u8..2, codec in prop::sample::select(vec![Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4]),
    ) {
        let inner: Vec<_> = (0..4).map(|n| message(magic, 0, n, 5, Some(b"key"), Some(&[n as u8; 20]))).collect();
        let mut bytes = match codec {
            Codec::None => inner[3].clone(),
            _ => wrapper(magic, codec, 0, 3, 5, &inner),
        };
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let mut found = batches(&bytes);
        while let Some(Ok(batch)) = found.next() {
            // The checksum covers all but the offset and the size.
            prop_assert!(at < 12 || !batch.crc_matches() || at == 16);
            if let Ok(mut records) = batch.read_records(MAX) {
                while let Ok(Some(_)) = records.next() {}
            }
        }
    }
}
