//! What the demo holds at the end: every acknowledged record once and in order, and the same logs everywhere.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use highwater_broker::api::ErrorCode;
use highwater_broker::client::Connection;
use highwater_storage::batches;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{BrokerId, FetchRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::input::{Input, ValueDigest};
use super::producer::Acknowledged;
use super::{CLIENT_ID, REQUEST_TIMEOUT, VERSION_WITH_NAMES, find_leader};

const FETCH_BYTES: i32 = 1 << 20;

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
pub(super) async fn consume(bootstrap: &[String], topic: &str, input: &Input) -> anyhow::Result<String> {
    let address = find_leader(bootstrap, topic).await?;
    let connection = Connection::connect(&address, CLIENT_ID, REQUEST_TIMEOUT).await?;
    let mut digest = ValueDigest::default();
    let mut next = 0;
    while next < input.records {
        let (records, high_watermark) = fetch(&connection, topic, next).await?;
        ensure!(!records.is_empty(), "offset {next}: nothing to read there, the high watermark is {high_watermark}");
        next = compare(&records, next, input, &mut digest)?;
    }
    let (records, high_watermark) = fetch(&connection, topic, next).await?;
    ensure!(
        records.is_empty() && u64::try_from(high_watermark) == Ok(next),
        "offset {next}: the log goes on to {high_watermark} although only {} records were sent",
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

async fn fetch(connection: &Connection, topic: &str, offset: u64) -> anyhow::Result<(Bytes, i64)> {
    let partition = FetchPartition::default()
        .with_partition(0)
        .with_fetch_offset(i64::try_from(offset)?)
        .with_partition_max_bytes(FETCH_BYTES);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_max_wait_ms(100)
        .with_min_bytes(1)
        .with_max_bytes(FETCH_BYTES)
        .with_session_epoch(-1)
        .with_topics(vec![
            FetchTopic::default()
                .with_topic(TopicName(StrBytes::from_string(topic.to_owned())))
                .with_partitions(vec![partition]),
        ]);
    let version = connection.version_up_to::<FetchRequest>(VERSION_WITH_NAMES)?;
    let response = connection.send_version(&request, version).await?;
    let partition = response.responses.into_iter().next().and_then(|topic| topic.partitions.into_iter().next());
    let partition = partition.context("an answer without the partition")?;
    match ErrorCode::from_number(partition.error_code) {
        Some(ErrorCode::None) => Ok((partition.records.unwrap_or_default(), partition.high_watermark)),
        code => bail!("offset {offset}: cannot be read: {}", code.unwrap_or(ErrorCode::UnknownServerError)),
    }
}

/// Compares the partition's files of all replicas, batch for batch, below `high_watermark`. Each batch must be the same
/// bytes, its leader epoch included. Returns how many batches were compared.
pub(super) fn compare_logs(replicas: &[(String, PathBuf)], high_watermark: i64) -> anyhow::Result<usize> {
    let mut logs = Vec::new();
    for (name, dir) in replicas {
        logs.push((name, read_log(dir)?));
    }
    let Some((reference, rest)) = logs.split_first() else { return Ok(0) };
    let all: Vec<_> = batches(&reference.1).collect::<Result<_, _>>().context(reference.0.clone())?;
    let committed: Vec<_> = all.iter().take_while(|batch| batch.last_offset().0 < high_watermark).collect();
    for (name, log) in rest {
        let mut theirs = batches(log);
        for ours in &committed {
            let offset = ours.base_offset();
            let their = theirs.next().with_context(|| format!("offset {offset}: {name} ends there"))?;
            let their = their.with_context(|| format!("offset {offset}: {name}"))?;
            ensure!(ours.bytes() == their.bytes(), "offset {offset}: {name} differs from {}", reference.0);
        }
    }
    let end = committed.last().map_or(0, |batch| batch.last_offset().0 + 1);
    ensure!(end == high_watermark, "offset {end}: {} has no batch there, below the high watermark", reference.0);
    Ok(committed.len())
}

/// All data files of a partition, one after the other.
fn read_log(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let cannot_read = || format!("cannot read {}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(cannot_read)? {
        let path = entry.with_context(cannot_read)?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    let mut log = Vec::new();
    for path in files {
        log.extend(std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(log)
}
