//! A program that copies the attacked topic exactly once: what it reads, and how far it has read, goes into one transaction.
//!
//! Whenever it does not know what became of a transaction it begins anew, as after a crash of its own: with the next epoch, which
//! aborts what is under way, and from the offsets that its group has committed. At the end the copy is read from outside and
//! counted: each record up to those offsets once, in order.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs, TransactionMarker, batches};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    BrokerId, EndTxnRequest, FetchRequest, FindCoordinatorRequest, GroupId, InitProducerIdRequest, OffsetFetchRequest,
    ProduceRequest, ProducerId, TransactionalId, TxnOffsetCommitRequest,
};
use kafka_protocol::protocol::StrBytes;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::ErrorCode;
use crate::client::Connection;
use crate::driver::random::Random;
use crate::driver::{Contact, Topic, fetch, name};

/// The copy.
pub(super) const COPY: &str = "copied";

const ID: &str = "attack-copier";
const GROUP: &str = "attack-copiers";

/// The versions of transaction version 2.
const PRODUCE_VERSION: i16 = 12;
const OFFSETS_VERSION: i16 = 5;
const END_VERSION: i16 = 5;

/// One transaction out of so many is aborted.
const ABORTED_OF: u64 = 5;

/// What a transaction copies of a partition at most.
const RECORDS_MAX: usize = 200;

const PAUSE: Duration = Duration::from_millis(50);

/// How often it asks again while its last transaction is being ended, until it begins anew.
const TRIES: u32 = 100;

/// How long the copy may take to be read when the attack is over.
const READ_BACK_LIMIT: Duration = Duration::from_secs(60);

/// What a copier did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    pub(super) committed: u64,
    pub(super) aborted: u64,
    /// How often it began anew.
    pub(super) lives: u64,
    /// Records in the copy.
    pub(super) records: u64,
}

/// The copier at work.
pub(super) struct Copier {
    contact: Contact,
    topic: Topic,
    stop: watch::Sender<bool>,
    working: JoinHandle<Copied>,
}

impl Copier {
    /// Starts it. Both topics are there.
    pub(super) fn start(contact: &Contact, topic: Topic, random: Random) -> Self {
        let (stop, stopped) = watch::channel(false);
        let working = tokio::spawn(work(contact.clone(), topic, random, stopped));
        Self { contact: contact.clone(), topic, stop, working }
    }

    /// Ends it and counts the copy.
    pub(super) async fn end(&mut self) -> anyhow::Result<Copied> {
        self.stop.send_replace(true);
        let mut copied = (&mut self.working).await.context("the copier has panicked")?;
        let since = Instant::now();
        loop {
            match count(&self.contact, self.topic).await {
                Ok(records) => {
                    copied.records = records;
                    return Ok(copied);
                }
                Err(Count::Wrong(what)) => bail!("the copy: {what}"),
                Err(Count::NotYet(error)) if since.elapsed() > READ_BACK_LIMIT => {
                    return Err(error.context("the copy cannot be read"));
                }
                Err(Count::NotYet(_)) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

async fn work(contact: Contact, topic: Topic, mut random: Random, stopped: watch::Receiver<bool>) -> Copied {
    let mut copied = Copied::default();
    while !*stopped.borrow() {
        copied.lives += 1;
        // Whatever went wrong: the next life finds out what became of it.
        let _ = live(&contact, topic, &mut random, &stopped, &mut copied).await;
        tokio::time::sleep(PAUSE).await;
    }
    copied
}

/// Goes on until something is not as expected, or it is to stop.
async fn live(
    contact: &Contact,
    topic: Topic,
    random: &mut Random,
    stopped: &watch::Receiver<bool>,
    copied: &mut Copied,
) -> anyhow::Result<()> {
    let of_transactions = coordinator(contact, 1, ID, random.index()).await?;
    let of_group = coordinator(contact, 0, GROUP, random.index()).await?;
    let (mut producer, mut epoch) = begin(&of_transactions).await?;
    let mut positions = positions(&of_group, topic).await?;
    let mut leaders = Vec::new();
    for partition in 0..topic.partitions {
        let reads = contact.leader(topic.name, partition, random.index()).await?;
        let writes = contact.leader(COPY, partition, random.index()).await?;
        leaders.push((contact.connect(&reads.address).await?, contact.connect(&writes.address).await?));
    }
    let mut sequences: BTreeMap<i32, i32> = BTreeMap::new();
    while !*stopped.borrow() {
        let mut next = positions.clone();
        for (partition, (reads, writes)) in (0..).zip(&leaders) {
            let from = positions.get(&partition).copied().unwrap_or(0);
            let offsets = read(reads, topic.name, partition, from).await?;
            let Some(last) = offsets.last().copied() else { continue };
            let sequence = sequences.entry(partition).or_insert(0);
            write(writes, partition, (producer, epoch, *sequence), &offsets).await?;
            *sequence += i32::try_from(offsets.len()).unwrap_or(i32::MAX);
            next.insert(partition, last + 1);
        }
        if next == positions {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        commit_offsets(&of_group, topic, (producer, epoch), &next).await?;
        let commits = random.below(ABORTED_OF) > 0;
        (producer, epoch) = end(&of_transactions, (producer, epoch), commits).await?;
        sequences.clear();
        if commits {
            positions = next;
            copied.committed += 1;
        } else {
            copied.aborted += 1;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

async fn coordinator(contact: &Contact, kind: i8, key: &str, first: usize) -> anyhow::Result<Connection> {
    let address = contact.brokers.get(first % contact.brokers.len().max(1)).context("no broker")?;
    let request = FindCoordinatorRequest::default().with_key_type(kind).with_coordinator_keys(vec![text(key)]);
    let found = contact.connect(address).await?.send(&request).await?;
    let found = found.coordinators.first().context("no coordinator in the answer")?;
    none(found.error_code)?;
    Ok(contact.connect(&format!("{}:{}", found.host, found.port)).await?)
}

async fn begin(coordinator: &Connection) -> anyhow::Result<(i64, i16)> {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(TransactionalId(text(ID))))
        .with_transaction_timeout_ms(60_000);
    for _ in 0..TRIES {
        let begun = coordinator.send(&request).await?;
        match ErrorCode::from_number(begun.error_code) {
            Some(ErrorCode::ConcurrentTransactions) => tokio::time::sleep(PAUSE).await,
            _ => {
                none(begun.error_code)?;
                return Ok((begun.producer_id.0, begun.producer_epoch));
            }
        }
    }
    bail!("the transaction before is not brought to its end")
}

/// How far the group has come in each partition.
async fn positions(coordinator: &Connection, topic: Topic) -> anyhow::Result<BTreeMap<i32, i64>> {
    let topics = OffsetFetchRequestTopics::default()
        .with_name(name(topic.name))
        .with_partition_indexes((0..topic.partitions).collect());
    let group = OffsetFetchRequestGroup::default().with_group_id(GroupId(text(GROUP))).with_topics(Some(vec![topics]));
    let request = OffsetFetchRequest::default().with_groups(vec![group]).with_require_stable(true);
    let fetched = coordinator.send(&request).await?;
    let group = fetched.groups.first().context("no group in the answer")?;
    none(group.error_code)?;
    let mut positions = BTreeMap::new();
    for partition in group.topics.iter().flat_map(|topic| &topic.partitions) {
        none(partition.error_code)?;
        positions.insert(partition.partition_index, partition.committed_offset.max(0));
    }
    Ok(positions)
}

/// The offsets of the next records.
async fn read(leader: &Connection, topic: &str, partition: i32, from: i64) -> anyhow::Result<Vec<i64>> {
    let fetched = fetch(leader, topic, partition, from, -1).await?;
    let mut offsets = Vec::new();
    for batch in batches(&fetched.records) {
        let batch = batch?;
        offsets.extend((batch.base_offset().0..=batch.last_offset().0).filter(|offset| *offset >= from));
    }
    offsets.truncate(RECORDS_MAX);
    Ok(offsets)
}

async fn write(
    leader: &Connection,
    partition: i32,
    (producer, epoch, sequence): (i64, i16, i32),
    offsets: &[i64],
) -> anyhow::Result<()> {
    let mut builder = BatchBuilder::new(Codec::None).producer(producer, epoch, sequence).transactional();
    let now = TimestampMs(i64::try_from(super::micros_now() / 1000).unwrap_or(0));
    for offset in offsets {
        builder.push(Record::new(now, offset.to_string().as_bytes()));
    }
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(builder.build().into()));
    let topic = TopicProduceData::default().with_name(name(COPY)).with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_transactional_id(Some(TransactionalId(text(ID))))
        .with_acks(-1)
        .with_timeout_ms(2_000)
        .with_topic_data(vec![topic]);
    for _ in 0..TRIES {
        let written = leader.send_version(&request, PRODUCE_VERSION).await?;
        let partitions = written.responses.first().map_or(&[][..], |topic| &topic.partition_responses);
        let code = partitions.first().context("no partition in the answer")?.error_code;
        match ErrorCode::from_number(code) {
            // Its last transaction is being ended.
            Some(ErrorCode::ConcurrentTransactions) => tokio::time::sleep(PAUSE).await,
            _ => return none(code),
        }
    }
    bail!("the transaction before is not brought to its end")
}

async fn commit_offsets(
    coordinator: &Connection,
    topic: Topic,
    (producer, epoch): (i64, i16),
    positions: &BTreeMap<i32, i64>,
) -> anyhow::Result<()> {
    let partitions = positions.iter().map(|(&partition, &offset)| {
        TxnOffsetCommitRequestPartition::default().with_partition_index(partition).with_committed_offset(offset)
    });
    let topic =
        TxnOffsetCommitRequestTopic::default().with_name(name(topic.name)).with_partitions(partitions.collect());
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(TransactionalId(text(ID)))
        .with_group_id(GroupId(text(GROUP)))
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_generation_id(-1)
        .with_topics(vec![topic]);
    let committed = coordinator.send_version(&request, OFFSETS_VERSION).await?;
    committed.topics.iter().flat_map(|topic| &topic.partitions).try_for_each(|partition| none(partition.error_code))
}

async fn end(coordinator: &Connection, (producer, epoch): (i64, i16), commits: bool) -> anyhow::Result<(i64, i16)> {
    let request = EndTxnRequest::default()
        .with_transactional_id(TransactionalId(text(ID)))
        .with_producer_id(ProducerId(producer))
        .with_producer_epoch(epoch)
        .with_committed(commits);
    let ended = coordinator.send_version(&request, END_VERSION).await?;
    none(ended.error_code)?;
    Ok((ended.producer_id.0, ended.producer_epoch))
}

/// Why a copy was not counted.
enum Count {
    /// Somebody is not there yet.
    NotYet(anyhow::Error),
    /// It is not what it should be.
    Wrong(String),
}

impl<E: Into<anyhow::Error>> From<E> for Count {
    fn from(error: E) -> Self {
        Self::NotYet(error.into())
    }
}

/// Reads the copy and holds it against how far the group has come; how many records there are.
async fn count(contact: &Contact, topic: Topic) -> Result<u64, Count> {
    // What was left undecided is aborted by this.
    begin(&coordinator(contact, 1, ID, 0).await?).await?;
    let positions = positions(&coordinator(contact, 0, GROUP, 0).await?, topic).await?;
    let mut records = 0;
    for partition in 0..topic.partitions {
        let leader = contact.leader(COPY, partition, 0).await?;
        let values = read_committed(&contact.connect(&leader.address).await?, partition).await?;
        let end = positions.get(&partition).copied().unwrap_or(0);
        if let Some(what) = compare(&values, end) {
            return Err(Count::Wrong(format!("partition {partition}: {what}")));
        }
        records += values.len() as u64;
    }
    Ok(records)
}

/// What is wrong with a copy of the records below `end`, if anything is.
fn compare(values: &[i64], end: i64) -> Option<String> {
    let mut seen: BTreeMap<i64, u64> = BTreeMap::new();
    for value in values {
        *seen.entry(*value).or_default() += 1;
    }
    let lost = (0..end).filter(|offset| !seen.contains_key(offset)).count();
    let doubled = seen.values().filter(|times| **times > 1).count();
    let beyond = seen.range(end..).count();
    if lost + doubled + beyond > 0 {
        return Some(format!("of {end} records {lost} are lost and {doubled} doubled, and {beyond} are too many"));
    }
    (!values.is_sorted()).then(|| "records are in another order".to_owned())
}

/// What a reader of committed records sees of a partition of the copy.
async fn read_committed(leader: &Connection, partition: i32) -> anyhow::Result<Vec<i64>> {
    let (mut values, mut from) = (Vec::new(), 0);
    loop {
        let wanted = FetchPartition::default()
            .with_partition(partition)
            .with_current_leader_epoch(-1)
            .with_fetch_offset(from)
            .with_partition_max_bytes(1 << 20);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_bytes(1 << 20)
            .with_isolation_level(1)
            .with_session_epoch(-1)
            .with_topics(vec![FetchTopic::default().with_topic(name(COPY)).with_partitions(vec![wanted])]);
        let fetched = leader.send_version(&request, 12).await?;
        let found = fetched.responses.first().and_then(|topic| topic.partitions.first()).context("no partition")?;
        none(found.error_code)?;
        ensure!(found.high_watermark >= 0, "the leader does not know yet how far it may go");
        let records = found.records.clone().unwrap_or_default();
        if records.is_empty() {
            ensure!(from >= found.high_watermark, "a transaction is not decided");
            return Ok(values);
        }
        let aborted = found.aborted_transactions.clone().unwrap_or_default();
        // First offsets of transactions of which the marker has come.
        let mut over: BTreeMap<i64, i64> = BTreeMap::new();
        for batch in batches(&records) {
            let batch = batch?;
            let (producer, base) = (batch.producer_id(), batch.base_offset().0);
            from = batch.last_offset().0 + 1;
            if TransactionMarker::of(&batch).is_some() {
                over.insert(producer, base);
                continue;
            }
            let since = over.get(&producer).copied().unwrap_or(-1);
            let is_aborted = aborted
                .iter()
                .any(|one| one.producer_id.0 == producer && one.first_offset <= base && one.first_offset > since);
            if is_aborted {
                continue;
            }
            for record in batch.records().context("a compressed batch, which nobody wrote")? {
                let record = record?;
                let value = std::str::from_utf8(record.value.unwrap_or_default())?;
                values.push(value.parse().context("a value that nobody wrote")?);
            }
        }
    }
}

fn none(code: i16) -> anyhow::Result<()> {
    match ErrorCode::from_number(code).unwrap_or(ErrorCode::UnknownServerError) {
        ErrorCode::None => Ok(()),
        code => bail!("{code}"),
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_if_each_record_is_there_once_and_in_order() {
        assert_eq!(compare(&[0, 1, 2], 3), None);
        assert_eq!(compare(&[], 0), None);
        for (values, end) in [(&[0, 2][..], 3), (&[0, 1, 1, 2], 3), (&[0, 1, 2, 3], 3), (&[1, 0], 2)] {
            assert!(compare(values, end).is_some(), "{values:?}");
        }
    }
}
