use proptest::prelude::*;

use super::*;
use crate::batch::BatchView;
use crate::check::{CheckedBatch, ProduceRules};
use crate::record::Records;

#[test]
fn the_smallest_batch_is_the_fixture() {
    let path = format!("{}/tests/fixtures/F1_valid_one_record.bin", env!("CARGO_MANIFEST_DIR"));
    let mut builder = BatchBuilder::new(Codec::None).leader_epoch(LeaderEpoch(0));
    builder.push(Record::keyed(TimestampMs(1_700_000_000_000), b"k", b"v"));
    let fixture = std::fs::read(path).expect("the fixture");
    assert_eq!(builder.build(), fixture);
}

#[test]
fn a_batch_without_records_is_a_header() {
    for codec in Codec::ALL {
        let bytes = BatchBuilder::new(codec).base_offset(Offset(40)).producer(7, 0, 10).build();
        let (batch, total) = BatchView::parse(&bytes).expect("a batch");
        assert_eq!((total, batch.record_count(), batch.last_offset()), (HEADER_BYTES, 0, Offset(40)));
        assert!(batch.crc_matches());
    }
}

#[derive(Clone, Debug)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..200))
}

fn owned() -> impl Strategy<Value = Owned> {
    let headers = prop::collection::vec((".{0,8}", bytes()), 0..4);
    (0..i64::MAX / 2, bytes(), bytes(), headers).prop_map(|(timestamp, key, value, headers)| Owned {
        timestamp,
        key,
        value,
        headers,
    })
}

proptest! {
    #[test]
    fn what_is_built_is_accepted_and_read_back(records in prop::collection::vec(owned(), 1..20)) {
        for codec in Codec::ALL {
            let mut builder = BatchBuilder::new(codec).producer(1, 2, 3);
            for record in &records {
                let headers: Vec<_> = record.headers.iter().map(|(k, v)| (k.as_str(), v.as_deref())).collect();
                builder.push(Record {
                    timestamp: TimestampMs(record.timestamp),
                    key: record.key.as_deref(),
                    value: record.value.as_deref(),
                    headers: &headers,
                });
            }
            let bytes = builder.build();
            let rules = ProduceRules { timestamp_after_max_ms: i64::MAX, ..ProduceRules::default() };
            let checked = CheckedBatch::check(&bytes, &rules, TimestampMs(0)).expect("valid");
            prop_assert_eq!(checked.size_bytes(), bytes.len());
            let max = records.iter().map(|record| record.timestamp).max();
            prop_assert_eq!(Some(checked.max_timestamp().0), max);

            let (batch, _) = BatchView::parse(&bytes).expect("a batch");
            let mut plain = Vec::new();
            let mut reader = compression::decompress(codec, batch.records_bytes(), 1 << 24).expect("valid");
            io::Read::read_to_end(&mut reader, &mut plain).expect("valid");
            let mut count = 0;
            for (index, (read, written)) in Records::new(&plain, batch.record_count()).zip(&records).enumerate() {
                let read = read.expect("a record");
                prop_assert_eq!(usize::try_from(read.offset_delta), Ok(index));
                prop_assert_eq!(batch.base_timestamp().0 + read.timestamp_delta, written.timestamp);
                prop_assert_eq!((read.key, read.value), (written.key.as_deref(), written.value.as_deref()));
                let headers: Vec<_> = read
                    .headers()
                    .map(|header| (String::from_utf8_lossy(header.key).into_owned(), header.value.map(<[u8]>::to_vec)))
                    .collect();
                prop_assert_eq!(&headers, &written.headers);
                count += 1;
            }
            prop_assert_eq!(count, records.len());
        }
    }

    /// A good batch with a few bytes changed and the checksum made right again is refused or accepted, never a crash;
    /// and what is accepted can be read.
    #[test]
    fn changed_batches_are_survived(
        codec in prop::sample::select(Codec::ALL.to_vec()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut builder = BatchBuilder::new(codec);
        for value in [&b"one"[..], b"", b"three"] {
            let headers: [(&str, Option<&[u8]>); 2] = [("name", Some(b"value")), ("", None)];
            builder.push(Record { timestamp: TimestampMs(1000), key: Some(value), value: Some(value), headers: &headers });
        }
        let mut bytes = builder.build();
        for (at, byte) in changes {
            let after_crc = at.index(bytes.len() - CRC_START) + CRC_START;
            bytes[after_crc] = byte;
        }
        let crc = crc32c::crc32c(&bytes[CRC_START..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        if let Ok(checked) = CheckedBatch::check(&bytes, &ProduceRules::default(), TimestampMs(1000)) {
            let mut plain = Vec::new();
            let mut reader = compression::decompress(checked.codec(), &bytes[HEADER_BYTES..], 1 << 24).expect("valid");
            io::Read::read_to_end(&mut reader, &mut plain).expect("valid");
            let records: Result<Vec<_>, _> = Records::new(&plain, checked.record_count()).collect();
            prop_assert_eq!(records.map(|records| records.len()), Ok(usize::try_from(checked.record_count()).expect("positive")));
            let stored = checked.to_stamped_vec(Offset(9), LeaderEpoch(9));
            prop_assert!(BatchView::parse(&stored).expect("a batch").0.crc_matches());
        }
    }
}
