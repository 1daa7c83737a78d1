//! From batches of an internal topic to what a coordinator loads, and back.

use highwater_groups::{LoadedBatch, Producer, Record};
use highwater_storage::{
    BatchBuilder, BatchView, Codec, LogReader, Offset, ReadError, ReadLimit, TimestampMs, TransactionMarker,
};

/// Read at a time when a coordinator loads.
const CHUNK_BYTES: usize = 1 << 20;

/// The most a compressed batch may hold; only other brokers write such.
const DECOMPRESSED_BYTES_MAX: u64 = 256 << 20;

/// A piece of the log.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Each with the offset at which it begins.
    pub(super) batches: Vec<(Offset, LoadedBatch)>,
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
    Ok(Some(Chunk { next: read.next, ..chunk(&read.bytes, from) }))
}

/// What batches hold from an offset on.
fn chunk(bytes: &[u8], from: Offset) -> Chunk {
    let mut chunk = Chunk::default();
    let (mut left, mut passed) = (bytes, from);
    while !left.is_empty() {
        let (batch, length) = match BatchView::parse(left) {
            Ok(parsed) => parsed,
            Err(error) => {
                let count = left.len();
                chunk.odd.push(format!("{count} bytes from offset {passed} on are no batch, and passed over: {error}"));
                return chunk;
            }
        };
        let base = batch.base_offset();
        let (loaded, odd) = loaded(&batch, from);
        chunk.batches.extend(loaded.map(|loaded| (base, loaded)));
        chunk.odd.extend(odd.map(|odd| format!("in the batch at offset {base}: {odd}")));
        passed = batch.last_offset() + 1;
        left = left.get(length..).unwrap_or_default();
    }
    chunk
}

/// What a batch holds, and what of it could not be read.
fn loaded(batch: &BatchView<'_>, from: Offset) -> (Option<LoadedBatch>, Option<String>) {
    let header = batch.header();
    let attributes = header.attributes();
    if attributes.is_control() {
        let Some(marker) = TransactionMarker::of(batch) else {
            // Compaction leaves the batch where it takes the marker away.
            let odd = (header.record_count() != 0).then(|| "it is no marker, and passed over".to_owned());
            return (None, odd);
        };
        return (Some(LoadedBatch::Marker { producer_id: marker.producer_id, commits: !marker.is_abort }), None);
    }
    let transaction = attributes.is_transactional().then(|| header.producer_id());
    let mut reader = match batch.read_records(DECOMPRESSED_BYTES_MAX) {
        Ok(reader) => reader,
        Err(error) => return (None, Some(format!("all {} records are passed over: {error}", header.record_count()))),
    };
    let mut records = Vec::new();
    let (mut bad, mut first) = (0, None);
    loop {
        match reader.next() {
            // The first batch may begin before what was asked for.
            Ok(Some(record)) if record.offset < from => {}
            Ok(Some(record)) => records.push(Record {
                key: bytes::Bytes::copy_from_slice(record.key.unwrap_or_default()),
                value: record.value.map(bytes::Bytes::copy_from_slice),
            }),
            Ok(None) => break,
            Err(error) => {
                bad += 1;
                first.get_or_insert(error);
            }
        }
    }
    let odd = first.map(|error| {
        let (bad, all) = (bad + reader.left(), header.record_count());
        format!("{bad} of {all} records are passed over, the first for this: {error}")
    });
    (Some(LoadedBatch::Records { transaction, records }), odd)
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

#[cfg(test)]
mod tests {
    use highwater_storage::HEADER_BYTES;

    use super::*;

    /// A batch of three records at an offset, with the keys "a0", "a1" and "a2" for the letter a.
    fn three(at: i64, letter: char) -> Vec<u8> {
        let mut builder = BatchBuilder::new(Codec::None).base_offset(Offset(at));
        for number in 0..3 {
            let key = format!("{letter}{number}");
            builder.push(highwater_storage::Record::keyed(TimestampMs(1_000), key.as_bytes(), b"value"));
        }
        builder.build()
    }

    fn keys(chunk: &Chunk) -> Vec<String> {
        let each = chunk.batches.iter().flat_map(|(_, batch)| match batch {
            LoadedBatch::Records { records, .. } => records.clone(),
            LoadedBatch::Marker { .. } => Vec::new(),
        });
        each.map(|record| String::from_utf8(record.key.to_vec()).unwrap()).collect()
    }

    #[test]
    fn batches_are_loaded_from_an_offset_on() {
        let bytes = [three(0, 'a'), three(3, 'b')].concat();
        let chunk = chunk(&bytes, Offset(1));
        assert_eq!(keys(&chunk), ["a1", "a2", "b0", "b1", "b2"]);
        assert_eq!(chunk.batches.iter().map(|(at, _)| at.0).collect::<Vec<_>>(), [0, 3]);
        assert!(chunk.odd.is_empty(), "{:?}", chunk.odd);
    }

    #[test]
    fn a_bad_record_costs_itself_and_is_said() {
        let mut bad = three(0, 'a');
        let record_bytes = (bad.len() - HEADER_BYTES) / 3;
        // The key of the second record claims more than there is.
        bad[HEADER_BYTES + record_bytes + 4] = 100;
        let chunk = chunk(&[bad, three(3, 'b')].concat(), Offset(0));
        assert_eq!(keys(&chunk), ["a0", "a2", "b0", "b1", "b2"]);
        let [odd] = &chunk.odd[..] else { panic!("{:?}", chunk.odd) };
        assert!(odd.starts_with("in the batch at offset 0: 1 of 3 records are passed over"), "{odd}");
    }

    #[test]
    fn what_is_no_batch_is_said() {
        for bad in [&b"no batch"[..], &[0; 200], &three(3, 'b')[..80]] {
            let chunk = chunk(&[&three(0, 'a')[..], bad].concat(), Offset(0));
            assert_eq!(keys(&chunk), ["a0", "a1", "a2"]);
            let [odd] = &chunk.odd[..] else { panic!("{:?}", chunk.odd) };
            assert!(odd.starts_with(&format!("{} bytes from offset 3 on are no batch", bad.len())), "{odd}");
        }
    }

    #[test]
    fn a_control_batch_that_is_no_marker_is_said() {
        let mut builder = BatchBuilder::new(Codec::None).producer(7, 0, -1).transactional().control();
        builder.push(highwater_storage::Record::keyed(TimestampMs(1_000), b"?", b"?"));
        let bytes = builder.build();
        let chunk = chunk(&bytes, Offset(0));
        assert!(chunk.batches.is_empty());
        assert_eq!(chunk.odd, ["in the batch at offset 0: it is no marker, and passed over"]);
    }
}
