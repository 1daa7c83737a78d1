//! From batches of an internal topic to what a coordinator loads, and back.

use highwater_groups::{LoadedBatch, Producer, Record};
use highwater_storage::{
    BatchBuilder, BatchView, Codec, LogReader, Offset, ReadError, ReadLimit, RecordsError, TimestampMs,
    TransactionMarker,
};

/// Read at a time when a coordinator loads.
const CHUNK_BYTES: usize = 1 << 20;

/// The most a compressed batch may hold; only other brokers write such.
const DECOMPRESSED_BYTES_MAX: u64 = 256 << 20;

/// A piece of the log.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) batches: Vec<LoadedBatch>,
    /// Where the next one begins.
    pub(super) next: Offset,
    /// What could not be read, for the log file.
    pub(super) odd: Vec<String>,
}

/// Reads from `from` on, below `end`; `None` if nothing is left there. Damage is passed over and said: without those records
/// some are as they were before, without a coordinator none of them would be there. Blocks.
pub(super) fn read(log: &LogReader, from: Offset, end: Offset) -> Result<Option<Chunk>, ReadError> {
    // Retention and compaction may have moved the start.
    let from = from.max(log.start());
    if from >= end {
        return Ok(None);
    }
    let read = match log.read(from, ReadLimit::bytes(CHUNK_BYTES).below(end).verified()) {
        Ok(read) => read,
        Err(ReadError::Corrupt { offsets, segment, position, what, .. }) => {
            let odd = format!("{}, byte {position}: {what}; offsets {offsets:?} are passed over", segment.display());
            return Ok(Some(Chunk { batches: Vec::new(), next: offsets.end.max(from + 1), odd: vec![odd] }));
        }
        Err(error) => return Err(error),
    };
    if read.bytes.is_empty() {
        return Ok(None);
    }
    let mut chunk = Chunk { batches: Vec::new(), next: read.next, odd: Vec::new() };
    let mut left = &read.bytes[..];
    while !left.is_empty() {
        let Ok((batch, length)) = BatchView::parse(left) else { break };
        match loaded(&batch, from) {
            Ok(batch) => chunk.batches.extend(batch),
            Err(error) => chunk.odd.push(format!("the batch at offset {}: {error}", batch.header().base_offset())),
        }
        left = left.get(length..).unwrap_or_default();
    }
    Ok(Some(chunk))
}

fn loaded(batch: &BatchView<'_>, from: Offset) -> Result<Option<LoadedBatch>, RecordsError> {
    let header = batch.header();
    let attributes = header.attributes();
    if attributes.is_control() {
        let marker = TransactionMarker::of(batch);
        return Ok(
            marker.map(|marker| LoadedBatch::Marker { producer_id: marker.producer_id, commits: !marker.is_abort })
        );
    }
    let transaction = attributes.is_transactional().then(|| header.producer_id());
    let mut records = Vec::new();
    let mut reader = batch.read_records(DECOMPRESSED_BYTES_MAX)?;
    while let Some(record) = reader.next()? {
        // The first batch may begin before what was asked for.
        if record.offset < from {
            continue;
        }
        records.push(Record {
            key: bytes::Bytes::copy_from_slice(record.key.unwrap_or_default()),
            value: record.value.map(bytes::Bytes::copy_from_slice),
        });
    }
    Ok(Some(LoadedBatch::Records { transaction, records }))
}

/// One batch of these records, of a producer's transaction if one is given.
pub(super) fn batch(records: &[Record], transaction: Option<Producer>, now: TimestampMs) -> Vec<u8> {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(Producer { id, epoch }) = transaction {
        builder = builder.producer(id, epoch, -1).transactional();
    }
    for record in records {
        builder.push(highwater_storage::Record {
            timestamp: now,
            key: Some(&record.key),
            value: record.value.as_deref(),
            headers: &[],
        });
    }
    builder.build()
}
