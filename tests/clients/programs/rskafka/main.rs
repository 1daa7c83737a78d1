//! rskafka in the scenarios of `tests/clients/programs/common.py`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rskafka::chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::{Record, RecordAndOffset};

const RECORDS: usize = 300;
const LARGE: usize = 3_000_000;
const FIRST_TIME: i64 = 1_700_000_000_000;
const SOUGHT: i64 = FIRST_TIME + 50_500;

/// What the client has no such thing for.
const LACKING: [(&str, &str); 3] = [
    ("keys", "it writes to partitions by number"),
    ("commits", "it has no groups"),
    ("regex", "it has no subscriptions"),
];

const CODECS: [(&str, Compression); 5] = [
    ("none", Compression::NoCompression),
    ("gzip", Compression::Gzip),
    ("snappy", Compression::Snappy),
    ("lz4", Compression::Lz4),
    ("zstd", Compression::Zstd),
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, bootstrap, prefix] = words.as_slice() else { bail!("usage: rskafka scenarios BOOTSTRAP PREFIX") };
    ensure!(kind == "scenarios", "it has no groups to be a member of");
    let client = ClientBuilder::new(vec![bootstrap.clone()]).build().await?;
    let topics = Topics { client, prefix: prefix.clone() };
    for (codec, compression) in CODECS {
        say(&format!("stored as {codec}"), stored(&topics, codec, compression).await);
    }
    say("shapes", shapes(&topics).await);
    say("large", large(&topics).await);
    say("empty", empty(&topics).await);
    say("seek by time", seek_by_time(&topics).await);
    say("admin", admin(&topics).await);
    say("settings", settings(&topics).await);
    for (scenario, why) in LACKING {
        println!("none {scenario}: {why}");
    }
    Ok(())
}

fn say(scenario: &str, outcome: anyhow::Result<()>) {
    match outcome {
        Ok(()) => println!("ok {scenario}"),
        Err(why) => println!("FAILED {scenario}: {}", format!("{why:#}").replace('\n', " ")),
    }
}

#[derive(Debug)]
struct Topics {
    client: Client,
    prefix: String,
}

impl Topics {
    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    async fn partition(&self, name: &str) -> anyhow::Result<PartitionClient> {
        Ok(self.client.partition_client(self.name(name), 0, UnknownTopicHandling::Error).await?)
    }
}

fn record(key: Option<&[u8]>, value: Option<&[u8]>, time_ms: i64) -> anyhow::Result<Record> {
    let timestamp: DateTime<Utc> = DateTime::from_timestamp_millis(time_ms).context("a time out of range")?;
    let [key, value] = [key, value].map(|bytes| bytes.map(<[u8]>::to_vec));
    Ok(Record { key, value, headers: BTreeMap::new(), timestamp })
}

async fn read(partition: &PartitionClient, count: usize) -> anyhow::Result<Vec<RecordAndOffset>> {
    let mut records: Vec<RecordAndOffset> = Vec::new();
    while records.len() < count {
        let from = records.last().map_or(0, |last| last.offset + 1);
        let (more, _) = partition.fetch_records(from, 1..8_000_000, 5_000).await?;
        ensure!(!more.is_empty(), "{} of {count} records", records.len());
        records.extend(more);
    }
    Ok(records)
}

fn equal<T: PartialEq + Debug>(found: &T, expected: &T, what: &str) -> anyhow::Result<()> {
    ensure!(found == expected, "{what}: found {found:.200?}, expected {expected:.200?}");
    Ok(())
}

async fn stored(topics: &Topics, codec: &str, compression: Compression) -> anyhow::Result<()> {
    let partition = topics.partition(&format!("stored-{codec}")).await?;
    let text = |number: usize| format!("record {number} ").repeat(number % 20 + 4);
    let records: Result<Vec<Record>, _> = (0..RECORDS)
        .map(|number| record(Some(format!("k{number}").as_bytes()), Some(text(number).as_bytes()), FIRST_TIME))
        .collect();
    let records = records?;
    partition.produce(records.clone(), compression).await?;
    let found: Vec<Record> = read(&partition, RECORDS).await?.into_iter().map(|read| read.record).collect();
    ensure!(found == records, "what comes back is not what went in");
    Ok(())
}

async fn shapes(topics: &Topics) -> anyhow::Result<()> {
    let all: Vec<u8> = (0..=255).collect();
    let with = |record: Record, key: &str, value: &str| Record {
        headers: BTreeMap::from([(key.to_owned(), value.as_bytes().to_vec())]),
        ..record
    };
    let plain = |key: Option<&str>, value: Option<&[u8]>| record(key.map(str::as_bytes), value, FIRST_TIME);
    let records = vec![
        // Its headers are a map: a name cannot come twice.
        with(plain(Some("key"), Some(b"value"))?, "name", "2"),
        plain(Some(""), Some(b""))?,
        plain(None, Some(b"no key"))?,
        plain(Some("gone"), None)?,
        with(plain(Some("schlüssel"), Some(&all))?, "größe", "高"),
        with(plain(Some("last"), Some(b"with an empty header"))?, "empty", ""),
    ];
    let partition = topics.partition("shapes").await?;
    partition.produce(records.clone(), Compression::NoCompression).await?;
    let found: Vec<Record> = read(&partition, records.len()).await?.into_iter().map(|read| read.record).collect();
    equal(&found, &records, "records")
}

async fn large(topics: &Topics) -> anyhow::Result<()> {
    let partition = topics.partition("large").await?;
    let one = record(None, Some(&vec![b'x'; LARGE]), FIRST_TIME)?;
    partition.produce(vec![one.clone()], Compression::NoCompression).await?;
    ensure!(
        read(&partition, 1).await?.first().is_some_and(|read| read.record == one),
        "what comes back is not what went in"
    );
    Ok(())
}

async fn empty(topics: &Topics) -> anyhow::Result<()> {
    let partition = topics.partition("empty").await?;
    let (records, high_watermark) = partition.fetch_records(0, 1..1_000, 700).await?;
    equal(&(records.len(), high_watermark), &(0, 0), "records and the high watermark")?;
    let ends = (partition.get_offset(OffsetAt::Earliest).await?, partition.get_offset(OffsetAt::Latest).await?);
    equal(&ends, &(0, 0), "the ends")
}

async fn seek_by_time(topics: &Topics) -> anyhow::Result<()> {
    let partition = topics.partition("times").await?;
    let records: Result<Vec<Record>, _> = (0..100_i64)
        .map(|number| record(None, Some(number.to_string().as_bytes()), FIRST_TIME + number * 1_000))
        .collect();
    partition.produce(records?, Compression::NoCompression).await?;
    let sought = DateTime::from_timestamp_millis(SOUGHT).context("a time out of range")?;
    let offset = partition.get_offset(OffsetAt::Timestamp(sought)).await?;
    equal(&offset, &51, "offset by time")?;
    let (records, _) = partition.fetch_records(offset, 1..1_000_000, 5_000).await?;
    // A batch comes whole, also what is before the offset.
    let first = records.iter().find(|read| read.offset >= offset).context("no record there")?;
    equal(&first.record.value.as_deref(), &Some(b"51".as_slice()), "the record there")
}

async fn admin(topics: &Topics) -> anyhow::Result<()> {
    let controller = topics.client.controller_client()?;
    let made = topics.name("made");
    controller.create_topic(made.as_str(), 3, 1, 10_000).await?;
    let partitions = async || -> anyhow::Result<Option<usize>> {
        let listed = topics.client.list_topics().await?;
        Ok(listed.iter().find(|topic| topic.name == made).map(|topic| topic.partitions.len()))
    };
    equal(&partitions().await?, &Some(3), "partitions")?;
    controller.delete_topic(made.as_str(), 10_000).await?;
    for _ in 0..100 {
        if partitions().await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("the topic does not go")
}

/// It knows no settings, but deletes records.
async fn settings(topics: &Topics) -> anyhow::Result<()> {
    let partition = topics.partition("times").await?;
    partition.delete_records(20, 10_000).await?;
    equal(&partition.get_offset(OffsetAt::Earliest).await?, &20, "the beginning")
}
