//! Records as lines of text, for this program and the Python beside it.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use highwater_storage::{LogReader, Offset, ReadLimit, batches};

/// A record that a consumer gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) offset: i64,
    /// -1 in messages of magic 0.
    pub(crate) timestamp: i64,
    /// Whether only a consumer of uncommitted records gets it.
    pub(crate) is_aborted: bool,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Option<Vec<u8>>)>,
}

/// `offset timestamp aborted|committed key value name=value,...`: bytes in hexadecimal digits after a colon, `null`
/// without one, tabs between the fields.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_aborted { "aborted" } else { "committed" };
        write!(f, "{}\t{}\t{kind}\t{}\t{}\t", self.offset, self.timestamp, hex(&self.key), hex(&self.value))?;
        for (name, value) in &self.headers {
            write!(f, "{}={},", hex(&Some(name.clone().into_bytes())), hex(value))?;
        }
        Ok(())
    }
}

fn hex(bytes: &Option<Vec<u8>>) -> String {
    let Some(bytes) = bytes else { return "null".to_owned() };
    bytes.iter().fold(":".to_owned(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The records of a log, each with its offset.
pub(crate) fn read_all(reader: &LogReader) -> anyhow::Result<BTreeMap<i64, Row>> {
    let aborted = reader.aborted_transactions(reader.start(), reader.end())?;
    let (mut rows, mut from) = (BTreeMap::new(), reader.start());
    while from < reader.end() {
        let fetched = reader.read(from, ReadLimit::bytes(5000))?;
        ensure!(fetched.next > from, "reading does not get on from {from}");
        for batch in batches(&fetched.bytes) {
            let batch = batch?;
            ensure!(batch.crc_matches(), "the checksum of the batch at {} does not match", batch.base_offset());
            if batch.is_control() {
                continue;
            }
            let is_aborted = batch.is_transactional()
                && aborted.iter().any(|transaction| {
                    transaction.producer_id == batch.producer_id()
                        && (transaction.first_offset..=transaction.last_offset).contains(&batch.base_offset())
                });
            let mut records = batch.read_records(1 << 20)?;
            while let Some(record) = records.next()? {
                if record.offset < reader.start() {
                    continue;
                }
                let headers = record
                    .headers()
                    .map(|header| (String::from_utf8_lossy(header.key).into_owned(), header.value.map(<[u8]>::to_vec)));
                let row = Row {
                    offset: record.offset.0,
                    timestamp: record.timestamp.0,
                    is_aborted,
                    key: record.key.map(<[u8]>::to_vec),
                    value: record.value.map(<[u8]>::to_vec),
                    headers: headers.collect(),
                };
                rows.insert(row.offset, row);
            }
        }
        from = fetched.next;
    }
    Ok(rows)
}

/// Holds a log against the file of its records.
pub(crate) fn verify(reader: &LogReader, file: &Path) -> anyhow::Result<usize> {
    let expected = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let found = read_all(reader)?;
    let mut found_lines = found.values().map(Row::to_string);
    for (at, expected) in expected.lines().enumerate() {
        let found = found_lines.next().unwrap_or_else(|| "nothing".to_owned());
        ensure!(found == expected, "record {at} is\n  {found}\nand should be\n  {expected}");
    }
    if let Some(more) = found_lines.next() {
        ensure!(false, "there is more than there should be, from {more} on");
    }
    for row in found.values().filter(|row| row.timestamp >= 0).step_by(17) {
        let place = reader.offset_for_timestamp(highwater_storage::TimestampMs(row.timestamp), Offset::MAX)?;
        let place = place.context("no record from a time on that one has")?;
        let first = found.values().find(|other| other.timestamp >= row.timestamp).map(|other| other.offset);
        ensure!(place.offset.0 <= first.unwrap_or(i64::MAX), "found {place:?} for {}", row.timestamp);
    }
    Ok(found.len())
}
