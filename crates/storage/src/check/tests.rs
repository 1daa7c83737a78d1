use std::fmt::Write as _;

use super::*;
use crate::batch::batches;
use crate::builder::{BatchBuilder, Record};

const NOW: TimestampMs = TimestampMs(1_700_000_000_000);

fn fixture(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("reading {path}: {error}"))
}

fn check(bytes: &[u8]) -> Result<CheckedBatch<&[u8]>, BatchRefused> {
    CheckedBatch::check(bytes, &ProduceRules::default(), NOW)
}

fn check_with(bytes: &[u8], rules: impl FnOnce(&mut ProduceRules)) -> Result<CheckedBatch<&[u8]>, BatchRefused> {
    let mut changed = ProduceRules::default();
    rules(&mut changed);
    CheckedBatch::check(bytes, &changed, NOW)
}

fn reason(result: Result<CheckedBatch<&[u8]>, BatchRefused>) -> InvalidBatch {
    match result {
        Err(BatchRefused::InvalidRecord { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn indexes(errors: &[RecordError]) -> Vec<i32> {
    errors.iter().map(|error| error.index).collect()
}

/// A batch with a field of its header changed and the checksum made right again.
fn with_header(bytes: &[u8], change: impl FnOnce(&mut BatchHeader)) -> Vec<u8> {
    let (batch, _) = BatchView::parse(bytes).expect("a batch to start from");
    let mut header = *batch.header();
    change(&mut header);
    header.crc = crc32c::crc32c_append(crc32c::crc32c(&header.encode()[CRC_START..]), batch.records_bytes());
    [&header.encode(), batch.records_bytes()].concat()
}

/// A batch with other record bytes, length and checksum right.
fn with_records(bytes: &[u8], records: &[u8]) -> Vec<u8> {
    let header = bytes[..HEADER_BYTES].to_vec();
    let mut batch = [&header, records].concat();
    let length = i32::try_from(batch.len() - 12).expect("small");
    batch[8..12].copy_from_slice(&length.to_be_bytes());
    with_header(&batch, |_| {})
}

fn three(codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new(codec);
    for (value, ms) in [("one", 10), ("two", 30), ("three", 20)] {
        builder.push(Record::new(NOW.after(ms), value.as_bytes()));
    }
    builder.build()
}

#[test]
fn every_bad_fixture_is_refused_for_its_own_fault() {
    let mut seen = String::new();
    for name in [
        "F4_record_count_2147483647",
        "F4b_record_count_minus1",
        "F5_empty_compacted_batch_base40_lod2",
        "F6_lod_mismatch_3recs_lod9",
        "F7_lod_negative",
        "F9_control_batch_from_client",
        "F10_attrs_codec_7",
        "F11_length_field_short_40",
        "F12_far_future_ts_ns",
        "F13_negative_ts",
    ] {
        let refused = check(&fixture(name)).expect_err(name);
        writeln!(seen, "{name}: {refused}").expect("to a string");
    }
    let expected = "\
F4_record_count_2147483647: the bytes end before the record does
F4b_record_count_minus1: -1 records with a last offset delta of 0
F5_empty_compacted_batch_base40_lod2: a base offset of 40 where producers send 0
F6_lod_mismatch_3recs_lod9: 3 records with a last offset delta of 9
F7_lod_negative: 1 records with a last offset delta of -1
F9_control_batch_from_client: a control batch from a producer
F10_attrs_codec_7: unknown compression 7
F11_length_field_short_40: the batch is corrupt at byte 0: a length field of 40
F12_far_future_ts_ns: records with timestamps out of range
F13_negative_ts: records with timestamps out of range
";
    assert_eq!(seen, expected);
}

#[test]
fn a_good_batch_is_stored_as_it_came_but_for_offset_and_epoch() {
    let bytes = fixture("F1_valid_one_record");
    let checked = check(&bytes).expect("valid");
    assert_eq!((checked.record_count(), checked.last_offset_delta(), checked.size_bytes()), (1, 0, 70));
    assert_eq!((checked.producer_id(), checked.producer(), checked.codec()), (-1, None, Codec::None));
    assert_eq!(checked.append_time(), TimestampMs::NONE);

    let stored = checked.to_stamped_vec(Offset(77), LeaderEpoch(5));
    let mut expected = bytes.clone();
    expected[..8].copy_from_slice(&77i64.to_be_bytes());
    expected[12..16].copy_from_slice(&5i32.to_be_bytes());
    assert_eq!(stored, expected);
    let (header, rest) = checked.stamped(Offset(77), LeaderEpoch(5));
    assert_eq!(rest.as_ptr(), bytes[HEADER_BYTES..].as_ptr(), "the records are not copied");
    assert_eq!(header, expected[..HEADER_BYTES]);
}

#[test]
fn a_missing_max_timestamp_is_computed_and_the_checksum_made_right() {
    let bytes = fixture("F8_max_ts_minus1");
    let checked = check(&bytes).expect("F8 is accepted");
    assert_eq!(checked.max_timestamp(), TimestampMs(0x018b_cfe5_6800));
    let stored = checked.to_stamped_vec(Offset(3), LeaderEpoch(1));
    let (view, _) = BatchView::parse(&stored).expect("a batch");
    assert!(view.crc_matches());
    assert_eq!(stored[21..], fixture("F1_valid_one_record")[21..], "but for its max timestamp F8 is F1");
}

#[test]
fn log_append_time_is_stamped_without_reading_the_records_again() {
    for codec in Codec::ALL {
        let bytes = three(codec);
        let checked = check_with(&bytes, |rules| rules.timestamp_type = TimestampType::LogAppendTime).expect("valid");
        assert_eq!((checked.max_timestamp(), checked.append_time()), (NOW, NOW));
        let stored = checked.to_stamped_vec(Offset(9), LeaderEpoch(2));
        let (view, _) = BatchView::parse(&stored).expect("a batch");
        assert!(view.crc_matches(), "{codec}");
        assert_eq!(view.attributes().timestamp_type(), TimestampType::LogAppendTime);
        assert_eq!(view.records_bytes(), &bytes[HEADER_BYTES..]);
    }
}

#[test]
fn log_append_time_is_stamped_also_where_it_is_the_time_sent() {
    let bytes = BatchBuilder::new(Codec::None).push(Record::new(NOW, b"v")).build();
    let checked = check_with(&bytes, |rules| rules.timestamp_type = TimestampType::LogAppendTime).expect("valid");
    let stored = checked.to_stamped_vec(Offset(0), LeaderEpoch(0));
    assert!(BatchView::parse(&stored).expect("a batch").0.crc_matches());
    assert_eq!(checked.append_time(), NOW);
}

#[test]
fn old_times_do_not_matter_where_the_broker_stamps() {
    let bytes = fixture("F12_far_future_ts_ns");
    assert!(check_with(&bytes, |rules| rules.timestamp_type = TimestampType::LogAppendTime).is_ok());
}

#[test]
fn exactly_one_batch_at_offset_zero() {
    let one = fixture("F1_valid_one_record");
    assert_eq!(reason(check(&[])), InvalidBatch::Missing);
    assert_eq!(reason(check(&[one.clone(), one.clone()].concat())), InvalidBatch::NotOne(70));
    assert_eq!(reason(check(&[one.as_slice(), &[0]].concat())), InvalidBatch::NotOne(1));
    let mut at_77 = one.clone();
    at_77[7] = 77;
    assert_eq!(reason(check(&at_77)), InvalidBatch::BaseOffset(Offset(77)));
    for cut in 1..one.len() {
        let refused = check(&one[..cut]).expect_err("cut");
        assert!(matches!(refused, BatchRefused::Corrupt { position: 0, .. }), "{cut}: {refused:?}");
    }
}

#[test]
fn formats_before_and_after_batches_are_told_apart() {
    let mut bytes = fixture("F1_valid_one_record");
    for magic in [0, 1] {
        bytes[16] = magic;
        let refused = check(&bytes).expect_err("old");
        assert_eq!(refused, BatchRefused::UnsupportedMagic { magic: i8::try_from(magic).expect("small") });
    }
    for magic in [3, 9, 0xff] {
        bytes[16] = magic;
        assert!(matches!(check(&bytes), Err(BatchRefused::Corrupt { .. })));
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = three(Codec::None);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // The leader epoch is the one field that is neither checked nor kept.
        let in_epoch = (12..16).contains(&(bit / 8));
        assert_eq!(check(&flipped).is_ok(), in_epoch, "bit {bit}");
    }
}

#[test]
fn size_is_judged_before_anything_is_read() {
    let mut bytes = three(Codec::None);
    let (bytes_len, max) = (bytes.len(), bytes.len() - 1);
    bytes[70] ^= 1;
    let refused = check_with(&bytes, |rules| rules.max_message_bytes = max).expect_err("too large");
    assert_eq!(refused, BatchRefused::TooLarge { bytes: bytes_len, max });
    bytes[70] ^= 1;
    assert!(check_with(&bytes, |rules| rules.max_message_bytes = bytes_len).is_ok());
}

#[test]
fn the_header_may_claim_nothing_that_the_records_do_not_hold() {
    for codec in Codec::ALL {
        let bytes = three(codec);
        let more = with_header(&bytes, |header| (header.record_count, header.last_offset_delta) = (4, 3));
        assert_eq!(reason(check(&more)), InvalidBatch::Record(RecordFault::Short), "{codec}");
        let fewer = with_header(&bytes, |header| (header.record_count, header.last_offset_delta) = (2, 1));
        assert_eq!(reason(check(&fewer)), InvalidBatch::Record(RecordFault::Trailing), "{codec}");
        let most =
            with_header(&bytes, |header| (header.record_count, header.last_offset_delta) = (i32::MAX, i32::MAX - 1));
        assert_eq!(reason(check(&most)), InvalidBatch::Record(RecordFault::Short), "{codec}");
        let overflow =
            with_header(&bytes, |header| (header.record_count, header.last_offset_delta) = (i32::MIN, i32::MAX));
        assert!(matches!(reason(check(&overflow)), InvalidBatch::Count { .. }), "{codec}");
    }
}

#[test]
fn attributes_that_only_brokers_set_are_refused() {
    let bytes = three(Codec::None);
    for bits in [1 << 6, 1 << 7, i16::MIN] {
        let bad = with_header(&bytes, |header| header.attributes = Attributes(bits));
        assert_eq!(reason(check(&bad)), InvalidBatch::Attributes(bits));
    }
    let stamped = with_header(&bytes, |header| {
        header.attributes = header.attributes.with_timestamp_type(TimestampType::LogAppendTime);
    });
    for timestamp_type in [TimestampType::CreateTime, TimestampType::LogAppendTime] {
        let refused = check_with(&stamped, |rules| rules.timestamp_type = timestamp_type).expect_err("stamped");
        assert!(matches!(refused, BatchRefused::InvalidTimestamp { .. }));
    }
    for id in [5, 6, 7] {
        let bad = with_header(&bytes, |header| header.attributes = Attributes(id));
        let id = u8::try_from(id).expect("small");
        assert_eq!(check(&bad).expect_err("no such codec"), BatchRefused::UnsupportedCodec { id });
    }
}

#[test]
fn a_producer_id_needs_sequence_and_epoch() {
    let bytes = BatchBuilder::new(Codec::None).producer(7, 3, 40).push(Record::new(NOW, b"v")).build();
    let producer = check(&bytes).expect("valid").producer().expect("idempotent");
    assert_eq!((producer.producer_id, producer.epoch, producer.first_sequence), (7, 3, 40));
    for (epoch, sequence) in [(3, -1), (-1, 0)] {
        let bad = with_header(&bytes, |header| (header.producer_epoch, header.base_sequence) = (epoch, sequence));
        assert!(matches!(reason(check(&bad)), InvalidBatch::Producer { producer_id: 7, .. }));
    }
}

#[test]
fn bad_timestamps_are_named_record_by_record() {
    // S43: -1 is "none"; two days after now and -2 are not taken; good ones among them are not named.
    let day = 24 * 3600 * 1000;
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new(codec);
        for ms in [NOW.0, -1, NOW.0 + 2 * day, NOW.0 - 2 * day, -2, NOW.0 + 3_600_000, NOW.0 + 3_600_001] {
            builder.push(Record::new(TimestampMs(ms), b"v"));
        }
        let bytes = builder.build();
        match check(&bytes).expect_err("bad times") {
            BatchRefused::InvalidTimestamp { errors } => assert_eq!(indexes(&errors), [2, 4, 6], "{codec}"),
            other => panic!("{other:?}"),
        }
        for (before, expected) in [(2 * day, &[2, 4, 6][..]), (2 * day - 1, &[2, 3, 4, 6])] {
            match check_with(&bytes, |rules| rules.timestamp_before_max_ms = before).expect_err("bad times") {
                BatchRefused::InvalidTimestamp { errors } => assert_eq!(indexes(&errors), expected, "{codec}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn odd_timestamps_never_overflow() {
    for ms in [i64::MIN, i64::MAX, 0, -1, 1_700_000_000, 1_700_000_000_000_000, 18_429_000_000_000] {
        for base in [i64::MIN, i64::MAX, 0, ms] {
            let bytes = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs(ms), b"v")).build();
            let bytes = with_header(&bytes, |header| header.base_timestamp = TimestampMs(base));
            let accepted = check(&bytes).is_ok();
            assert_eq!(accepted, (-1..=NOW.0 + 3_600_000).contains(&base), "{ms} at {base}");
            for limit in [0, i64::MAX] {
                let result = check_with(&bytes, |rules| {
                    (rules.timestamp_before_max_ms, rules.timestamp_after_max_ms) = (limit, limit);
                });
                assert!(limit > 0 || result.is_err() || base == -1, "{base}");
            }
        }
    }
}

#[test]
fn a_batch_without_times_has_none() {
    let bytes = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs::NONE, b"v")).build();
    assert_eq!(check(&bytes).expect("valid").max_timestamp(), TimestampMs::NONE);
}

#[test]
fn keys_are_asked_for_in_compacted_topics() {
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new(codec);
        builder.push(Record::keyed(NOW, b"k", b"v")).push(Record::new(NOW, b"v")).push(Record::keyed(NOW, b"", b"v"));
        let bytes = builder.build();
        assert!(check(&bytes).is_ok());
        match check_with(&bytes, |rules| rules.requires_keys = true).expect_err("no key") {
            BatchRefused::InvalidRecord { reason: InvalidBatch::Records, errors } => {
                assert_eq!(indexes(&errors), [1], "{codec}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_missing_key_outweighs_a_bad_time() {
    let bytes = BatchBuilder::new(Codec::None).push(Record::new(TimestampMs(-2), b"v")).build();
    let refused = check_with(&bytes, |rules| rules.requires_keys = true).expect_err("bad");
    assert!(matches!(refused, BatchRefused::InvalidRecord { errors, .. } if indexes(&errors) == [0, 0]));
}

#[test]
fn offset_deltas_are_dense() {
    let valid = BatchBuilder::new(Codec::None).push(Record::new(NOW, b"a")).push(Record::new(NOW, b"b")).build();
    // Two records of eight bytes: length, attributes, time, offset delta, key, value length, value, headers.
    let mut records = valid[HEADER_BYTES..].to_vec();
    assert_eq!(records.len(), 16);
    records[11] = 4; // The second record's delta: 2.
    match check(&with_records(&valid, &records)).expect_err("a gap") {
        BatchRefused::InvalidRecord { reason: InvalidBatch::Records, errors } => {
            assert_eq!(errors, [RecordError { index: 1, message: "an offset delta of 2 where 1 is due".to_owned() }]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_that_does_not_parse_is_named() {
    let valid = BatchBuilder::new(Codec::None).push(Record::new(NOW, b"a")).push(Record::new(NOW, b"b")).build();
    let mut records = valid[HEADER_BYTES..].to_vec();
    records[13] = 6; // The second record's value length: 3 of 2 bytes left.
    match check(&with_records(&valid, &records)).expect_err("a bad length") {
        BatchRefused::InvalidRecord { reason: InvalidBatch::Record(RecordFault::Length), errors } => {
            assert_eq!(indexes(&errors), [1]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_number_of_named_records_is_bounded() {
    let mut builder = BatchBuilder::new(Codec::Zstd);
    for _ in 0..5000 {
        builder.push(Record::new(TimestampMs(-2), b""));
    }
    match check(&builder.build()).expect_err("bad times") {
        BatchRefused::InvalidTimestamp { errors } => assert_eq!(errors.len(), RECORD_ERRORS_MAX),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_decompression_bomb_is_cut_off() {
    let zeros = vec![0; 8 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let bytes = BatchBuilder::new(codec).push(Record::new(NOW, &zeros)).build();
        assert!(bytes.len() < 2 << 20, "{codec}");
        let limits = |bytes_max: u64| {
            move |rules: &mut ProduceRules| {
                (rules.decompressed_bytes_max, rules.max_message_bytes) = (bytes_max, 2 << 20);
            }
        };
        let refused = check_with(&bytes, limits(1 << 20)).expect_err("a bomb");
        assert_eq!(refused, BatchRefused::TooLargeDecompressed { max: 1 << 20 }, "{codec}");
        assert!(check_with(&bytes, limits(16 << 20)).is_ok(), "{codec}");
    }
}

#[test]
fn compressed_records_that_break_off_are_corrupt() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let bytes = three(codec);
        let body = &bytes[HEADER_BYTES..];
        for cut in 0..body.len() {
            let refused = check(&with_records(&bytes, &body[..cut])).expect_err("cut");
            let is_right = match &refused {
                BatchRefused::Corrupt { position: HEADER_BYTES, .. } => true,
                // A snappy stream has no end mark: cut between blocks it is a shorter one.
                BatchRefused::InvalidRecord { reason: InvalidBatch::Record(RecordFault::Short), .. } => {
                    codec == Codec::Snappy || cut == 0
                }
                _ => false,
            };
            assert!(is_right, "{codec} cut at {cut}: {refused:?}");
        }
    }
}

#[test]
fn linked_lz4_blocks_are_refused_since_java_cannot_read_them() {
    use lz4_flex::frame::{BlockMode, FrameEncoder, FrameInfo};
    use std::io::Write as _;
    let plain = three(Codec::None);
    for (mode, accepted) in [(BlockMode::Linked, false), (BlockMode::Independent, true)] {
        let info = FrameInfo::new().block_mode(mode).content_checksum(true);
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(&plain[HEADER_BYTES..]).expect("to memory");
        let body = encoder.finish().expect("to memory");
        let bytes = with_header(&with_records(&plain, &body), |header| {
            header.attributes = header.attributes.with_codec(Codec::Lz4);
        });
        match check(&bytes) {
            Ok(_) => assert!(accepted),
            other => {
                assert_eq!(reason(other), InvalidBatch::LinkedLz4);
                assert!(!accepted);
            }
        }
    }
}

#[test]
fn what_is_accepted_can_be_read_back() {
    for codec in Codec::ALL {
        let bytes = three(codec);
        let checked = check(&bytes).expect("valid");
        assert_eq!((checked.codec(), checked.record_count()), (codec, 3));
        assert_eq!(checked.max_timestamp(), NOW.after(30));
        let log =
            [checked.to_stamped_vec(Offset(0), LeaderEpoch(0)), checked.to_stamped_vec(Offset(3), LeaderEpoch(0))];
        let log = log.concat();
        let offsets: Vec<_> = batches(&log).map(|batch| batch.map(|batch| batch.last_offset())).collect();
        assert_eq!(offsets, [Ok(Offset(2)), Ok(Offset(5))]);
    }
}

#[test]
fn markers_come_from_coordinators_only() {
    let bytes = fixture("F9_control_batch_from_client");
    assert_eq!(reason(check(&bytes)), InvalidBatch::Control);
    let checked = check_with(&bytes, |rules| rules.origin = Origin::Coordinator).expect("a marker");
    assert!(checked.header().is_control());
}
