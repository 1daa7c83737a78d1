//! What is in the files, in the words of `expected.json`.

use std::fmt::Write as _;

use highwater_storage::{BatchView, ProducerTable, StoredRecord, TimestampType};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Decompressed batches of the data set stay below this.
pub(crate) const RECORDS_BYTES_MAX: u64 = 1 << 20;

pub(crate) fn batch_row(batch: &BatchView<'_>, position: usize) -> Value {
    let timestamp_type = match (batch.magic(), batch.attributes().timestamp_type()) {
        (0, _) => "NoTimestampType",
        (_, TimestampType::CreateTime) => "CreateTime",
        (_, TimestampType::LogAppendTime) => "LogAppendTime",
    };
    let horizon = batch.attributes().has_delete_horizon().then_some(batch.base_timestamp().0);
    // What a wrapper holds is known to who looks inside; of a damaged batch only what its header says.
    let (base, count) = if batch.is_legacy() && batch.crc_matches() {
        (batch.first_offset(RECORDS_BYTES_MAX).expect("messages"), records(batch).len())
    } else {
        (batch.base_offset(), usize::try_from(batch.record_count()).expect("a count"))
    };
    json!([
        base.0,
        batch.last_offset().0,
        count,
        batch.leader_epoch().0,
        batch.producer_id(),
        batch.producer_epoch(),
        batch.base_sequence(),
        u8::from(batch.is_transactional()),
        u8::from(batch.is_control()),
        batch.attributes().codec().expect("a codec").to_string(),
        timestamp_type,
        batch.max_timestamp().0,
        horizon,
        position,
        batch.bytes().len(),
        batch.magic(),
        batch.crc(),
        u8::from(batch.crc_matches()),
    ])
}

/// Bytes as `expected.json` has them.
pub(crate) fn bytes_row(bytes: Option<&[u8]>) -> Value {
    const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let Some(bytes) = bytes else { return Value::Null };
    let mut text = String::new();
    if bytes.len() > 32 {
        write!(text, "s:{}:", bytes.len()).expect("to a string");
        for byte in &Sha256::digest(bytes)[..16] {
            write!(text, "{byte:02x}").expect("to a string");
        }
        return text.into();
    }
    text.push_str("b:");
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for group in 0..4 {
            let character = BASE64[usize::try_from(bits >> (18 - 6 * group) & 63).expect("six bits")];
            text.push(if group > three.len() { '=' } else { char::from(character) });
        }
    }
    text.into()
}

fn record_row(record: &StoredRecord<'_>) -> Value {
    let headers: Vec<_> = record
        .headers()
        .map(|header| json!([std::str::from_utf8(header.key).expect("UTF-8"), bytes_row(header.value)]))
        .collect();
    let mut row =
        vec![record.offset.0.into(), record.timestamp.0.into(), bytes_row(record.key), bytes_row(record.value)];
    if !headers.is_empty() {
        row.push(headers.into());
    }
    row.into()
}

/// The records of a batch.
pub(crate) fn records(batch: &BatchView<'_>) -> Vec<Value> {
    let mut reader = batch.read_records(RECORDS_BYTES_MAX).expect("records");
    let mut rows = Vec::new();
    while let Some(record) = reader.next().expect("a record") {
        rows.push(record_row(&record));
    }
    rows
}

/// The marker in a control batch.
pub(crate) fn control_row(batch: &BatchView<'_>) -> Value {
    let mut reader = batch.read_records(RECORDS_BYTES_MAX).expect("records");
    let record = reader.next().expect("a record").expect("one record");
    let key = record.key.expect("a key");
    let value = record.value.expect("a value");
    let kind = match i16::from_be_bytes([key[2], key[3]]) {
        0 => "ABORT",
        1 => "COMMIT",
        other => panic!("a marker of type {other}"),
    };
    let coordinator_epoch = i32::from_be_bytes(value[2..6].try_into().expect("four bytes"));
    json!([record.offset.0, record.timestamp.0, kind, coordinator_epoch, batch.producer_id(), batch.producer_epoch()])
}

pub(crate) fn snapshot_rows(table: &ProducerTable) -> Value {
    let entries = table.encode_snapshot();
    let row = |entry: &[u8; 46]| {
        let i32_at = |at: usize| i32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
        let i64_at = |at: usize| i64::from_be_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let epoch = i16::from_be_bytes([entry[8], entry[9]]);
        json!([i64_at(0), epoch, i32_at(10), i64_at(14), i32_at(22), i64_at(26), i32_at(34), i64_at(38)])
    };
    entries[10..].as_chunks().0.iter().map(row).collect::<Vec<_>>().into()
}
