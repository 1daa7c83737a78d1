//! What the demo holds at the end: every acknowledged record once and in order.

use anyhow::{Context, ensure};
use bytes::Bytes;
use highwater_storage::batches;

use super::delivery::Acknowledged;
use super::input::{Input, ValueDigest};
use crate::driver::{Contact, fetch};

/// The offsets that were acknowledged are those the records stand at: nobody else writes to the topic.
pub(super) fn check_acknowledgements(batches: &[Acknowledged], records: u64) -> anyhow::Result<()> {
    let mut next = 0;
    for batch in batches {
        ensure!(
            batch.first == next && u64::try_from(batch.base_offset) == Ok(next),
            "offset {}: acknowledged for record {}, but record {next} was due",
            batch.base_offset,
            batch.first
        );
        next += u64::from(batch.records);
    }
    ensure!(next == records, "only {next} of {records} records were acknowledged");
    Ok(())
}

/// Reads the topic from the beginning as a consumer and compares each record with what was sent.
/// Returns the digest of what was read.
pub(super) async fn consume(contact: &Contact, topic: &str, input: &Input) -> anyhow::Result<String> {
    let leader = contact.leader(topic, 0, 0).await?;
    let connection = contact.connect(&leader.address).await?;
    let mut digest = ValueDigest::default();
    let mut next = 0;
    while next < input.records {
        let fetched = fetch(&connection, topic, 0, i64::try_from(next)?, leader.epoch).await?;
        ensure!(
            !fetched.records.is_empty(),
            "offset {next}: nothing to read there, the high watermark is {}",
            fetched.high_watermark
        );
        next = compare(&fetched.records, next, input, &mut digest)?;
    }
    let fetched = fetch(&connection, topic, 0, i64::try_from(next)?, leader.epoch).await?;
    ensure!(
        fetched.records.is_empty() && u64::try_from(fetched.high_watermark) == Ok(next),
        "offset {next}: the log goes on to {} although only {} records were sent",
        fetched.high_watermark,
        input.records
    );
    Ok(digest.finish())
}

/// Takes the records of one answer in and returns the offset to go on from.
fn compare(records: &Bytes, from: u64, input: &Input, digest: &mut ValueDigest) -> anyhow::Result<u64> {
    let mut next = from;
    for batch in batches(records) {
        let batch = batch.with_context(|| format!("offset {next}"))?;
        ensure!(batch.crc_matches(), "offset {}: the batch fails its CRC", batch.base_offset());
        let records = batch.records().with_context(|| format!("offset {}: compressed", batch.base_offset()))?;
        for record in records {
            let record = record.with_context(|| format!("offset {next}"))?;
            let offset = batch.base_offset() + i64::from(record.offset_delta);
            let number = u64::try_from(offset.0).with_context(|| format!("offset {offset}"))?;
            // A fetch may begin inside a batch.
            if number < from {
                continue;
            }
            ensure!(number == next, "offset {next}: missing, {offset} follows");
            ensure!(number < input.records, "offset {offset}: never sent");
            let sent = input.value(number);
            ensure!(record.value == Some(sent.as_ref()), "offset {offset}: differs from what was sent");
            digest.add(sent);
            next += 1;
        }
    }
    Ok(next)
}
