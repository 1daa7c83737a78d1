//! A record batch of any bytes, as it may come from a producer, from a leader, or from a file.
//!
//! What must hold: taking it apart never panics and takes bounded memory; what passes a broker's checks can be appended,
//! is read back byte for byte but for offset and epoch, and has as many records as it says; what a follower takes is
//! there after the log is opened again.

use highwater_storage::{
    BatchBuilder, BatchView, CRC_START, CheckedBatch, Codec, HEADER_BYTES, LENGTH_PREFIX_BYTES, LeaderEpoch, Offset,
    ProduceRules, ReadLimit, Record, StoredRecord, batches,
};

use crate::input::Input;
use crate::model::{NOW, disk, open, options};

/// A batch may decompress to so much here.
const RECORDS_BYTES_MAX: u64 = 1 << 20;

/// The target's body.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let options = options(&mut input);
    let seals = input.flag();
    let mut bytes = input.rest().to_vec();
    if seals {
        seal(&mut bytes);
    }
    take_apart(&bytes);

    let fs = disk();
    let (mut log, _) = open(&fs, &options);
    if let Ok(batch) = CheckedBatch::check(&bytes[..], &ProduceRules::default(), NOW)
        && batch.size_bytes() <= options.segment_bytes as usize
    {
        let appended = log.append_checked(NOW, LeaderEpoch(7), &batch).expect("a batch that was checked is taken");
        let fetched = log.read(Offset::ZERO, ReadLimit::bytes(1)).expect("what was appended can be read");
        assert_eq!(fetched.bytes, batch.to_stamped_vec(Offset::ZERO, LeaderEpoch(7)), "what is read back");
        assert_eq!(fetched.next, appended.last.next());
        let (view, _) = BatchView::parse(&fetched.bytes).expect("what was appended is a batch");
        assert!(view.crc_matches(), "the stamp broke the checksum");
        check_records(&view);
    }
    if log.append_replicated(NOW, &bytes).is_ok() {
        let end = log.end();
        drop(log);
        let (log, report) = open(&fs.kill(), &options);
        assert_eq!((log.end(), report.cut), (end, None), "what a follower took is gone");
    }
}

/// Writes the length and the checksum that a batch of these bytes should have, for what lies behind those checks.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let length = u32::try_from(bytes.len() - LENGTH_PREFIX_BYTES).expect("inputs are small");
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[16] = 2;
    let Ok((batch, _)) = BatchView::parse(bytes) else { return };
    let crc = batch.computed_crc();
    bytes[CRC_START - 4..CRC_START].copy_from_slice(&crc.to_be_bytes());
}

/// Reads all batches and records that there may be.
pub(crate) fn take_apart(bytes: &[u8]) {
    for batch in batches(bytes) {
        let Ok(batch) = batch else { return };
        let _ = (batch.crc_matches(), batch.next_offset(), batch.attributes().codec());
        let _ = batch.first_offset(RECORDS_BYTES_MAX);
        let Ok(mut records) = batch.read_records(RECORDS_BYTES_MAX) else { continue };
        while let Ok(Some(record)) = records.next() {
            record.headers().for_each(drop);
        }
    }
}

/// The records of a batch that was taken in: as many as it says, and written again they are the same.
fn check_records(batch: &BatchView<'_>) {
    let mut builder = BatchBuilder::new(Codec::None);
    let mut reader = batch.read_records(u64::MAX).expect("checked records can be read");
    let mut seen = Vec::new();
    while let Some(record) = reader.next().expect("checked records can be read") {
        let StoredRecord { offset, timestamp, key, value, .. } = &record;
        builder.push(Record { key: *key, value: *value, ..Record::new(*timestamp, &[]) });
        seen.push((*offset, *timestamp, key.map(<[u8]>::to_vec), value.map(<[u8]>::to_vec)));
    }
    assert_eq!(seen.len(), usize::try_from(batch.header().record_count()).expect("checked"), "the record count");
    assert_eq!(seen.last().map(|(offset, ..)| *offset), Some(batch.last_offset()), "the last offset");
    let bytes = builder.build();
    let (again, _) = BatchView::parse(&bytes).expect("built just now");
    let mut reader = again.read_records(u64::MAX).expect("built just now");
    for (_, timestamp, key, value) in seen {
        let record = reader.next().expect("built just now").expect("as many as before");
        assert_eq!((record.timestamp, record.key, record.value), (timestamp, key.as_deref(), value.as_deref()));
    }
}
