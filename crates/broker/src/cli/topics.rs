//! `highwater topics`: what a cluster says of its partitions and the settings of its topics, over the ordinary protocol.

mod configs;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use clap::Args;
use highwater_storage::TimestampMs;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::api::{ErrorCode, HISTORY_TAG};
use crate::client::Connection;

/// Show leader, epoch, replicas, who of them is in sync (ISR) and who is not (OSR), log start, high watermark and log end of
/// each partition, and below them the settings that topics have of their own.
#[derive(Debug, Args)]
pub(crate) struct TopicsArguments {
    /// Any broker of the cluster.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    bootstrap: String,
    /// Show instead what happened to each replica: each cut of its log, and each election by which records may be lost.
    #[arg(long, conflicts_with = "alter")]
    history: bool,
    #[command(flatten)]
    changes: configs::Changes,
    /// Only these topics.
    #[arg(value_name = "TOPIC")]
    topics: Vec<String>,
}

const CLIENT_ID: &str = "highwater-topics";
const TIMEOUT: Duration = Duration::from_secs(10);

/// `timestamp` values of ListOffsets that ask for the ends (Kafka's `ListOffsetsRequest`).
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;

/// Replica ids that no broker has: an ordinary consumer, which sees what is below the high watermark, and the
/// "debugging consumer", which sees the log end.
const CONSUMER: BrokerId = BrokerId(-1);
const DEBUGGING_CONSUMER: BrokerId = BrokerId(-2);

/// Prints the table, after a change of the settings in it if one is asked for.
pub(crate) fn run(arguments: &TopicsArguments) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    let text = if arguments.history {
        runtime.block_on(histories(arguments))?
    } else {
        runtime.block_on(describe(arguments))?
    };
    print!("{text}");
    Ok(())
}

async fn describe(arguments: &TopicsArguments) -> anyhow::Result<String> {
    let connection = Connection::connect(&arguments.bootstrap, CLIENT_ID, TIMEOUT).await?;
    if arguments.changes.alter {
        configs::alter(&connection, &arguments.topics, &arguments.changes).await?;
    }
    let metadata = connection.send(&metadata_request(arguments)).await?;
    let offsets = offsets_by_partition(&metadata).await;
    let mut rows = vec![
        ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OSR", "LOG START", "HW", "LEO"]
            .map(str::to_owned),
    ];
    let mut topics: Vec<_> = metadata.topics.iter().collect();
    topics.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    for topic in &topics {
        if topic.error_code != ErrorCode::None.number() {
            bail!("topic {}: {}", name_of(topic), describe_code(topic.error_code));
        }
        let mut partitions: Vec<_> = topic.partitions.iter().collect();
        partitions.sort_by_key(|partition| partition.partition_index);
        for partition in partitions {
            let known = offsets.get(&(name_of(topic).to_owned(), partition.partition_index));
            rows.push(row(name_of(topic), partition, known));
        }
    }
    let names: Vec<_> = topics.iter().map(|topic| name_of(topic)).collect();
    Ok(aligned(&rows) + &configs::table(&connection, &names).await?)
}

fn metadata_request(arguments: &TopicsArguments) -> MetadataRequest {
    let named =
        |name: &String| MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.clone()))));
    let asked = (!arguments.topics.is_empty()).then(|| arguments.topics.iter().map(named).collect());
    MetadataRequest::default().with_topics(asked).with_allow_auto_topic_creation(false)
}

/// Asks each broker for the histories of the replicas it holds.
async fn histories(arguments: &TopicsArguments) -> anyhow::Result<String> {
    let connection = Connection::connect(&arguments.bootstrap, CLIENT_ID, TIMEOUT).await?;
    let mut request = metadata_request(arguments);
    let metadata = connection.send(&request).await?;
    if let Some(topic) = metadata.topics.iter().find(|topic| topic.error_code != ErrorCode::None.number()) {
        bail!("topic {}: {}", name_of(topic), describe_code(topic.error_code));
    }
    request.unknown_tagged_fields.insert(HISTORY_TAG, Bytes::new());
    let mut happened = Vec::new();
    for broker in &metadata.brokers {
        let address = format!("{}:{}", broker.host, broker.port);
        let connection = Connection::connect(&address, CLIENT_ID, TIMEOUT).await;
        let connection = connection.with_context(|| format!("broker {}", broker.node_id.0))?;
        for topic in connection.send(&request).await?.topics {
            for partition in &topic.partitions {
                let Some(lines) = partition.unknown_tagged_fields.get(&HISTORY_TAG) else { continue };
                let of = (name_of(&topic).to_owned(), partition.partition_index);
                happened.extend(String::from_utf8_lossy(lines).lines().filter_map(|line| happening(&of, line)));
            }
        }
    }
    Ok(table_of(happened))
}

/// What a line of a history says: when, and the row to show.
type Happening = ((String, i32, i64), [String; 11]);

fn happening(of: &(String, i32), line: &str) -> Option<Happening> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let number = |name: &str| line.get(name).and_then(serde_json::Value::as_i64);
    let text = |name: &str| number(name).map_or_else(|| "?".to_owned(), |number| number.to_string());
    let when = number("when")?;
    let row = [
        super::log::format_time(TimestampMs(when)),
        of.0.clone(),
        of.1.to_string(),
        text("broker"),
        number("leader").filter(|id| *id >= 0).map_or_else(|| "?".to_owned(), |id| id.to_string()),
        text("leader_epoch"),
        format!("{}@{}", text("from_offset"), text("from_epoch")),
        format!("{}@{}", text("to_offset"), text("to_epoch")),
        text("high_watermark"),
        text("records"),
        line.get("why").and_then(serde_json::Value::as_str).unwrap_or("?").to_owned(),
    ];
    Some(((of.0.clone(), of.1, when), row))
}

fn table_of(mut happened: Vec<Happening>) -> String {
    happened.sort();
    let head = ["WHEN", "TOPIC", "PARTITION", "BROKER", "LEADER", "EPOCH", "FROM", "TO", "HW", "RECORDS", "WHY"]
        .map(str::to_owned);
    aligned(&std::iter::once(head).chain(happened.into_iter().map(|(_, row)| row)).collect::<Vec<_>>())
}

/// The three offsets of a partition, or why there are none.
type Offsets = Result<[i64; 3], String>;

/// Asks every leader for log start, high watermark and log end of what it leads.
async fn offsets_by_partition(metadata: &MetadataResponse) -> BTreeMap<(String, i32), Offsets> {
    let mut by_leader: BTreeMap<i32, Vec<(String, i32)>> = BTreeMap::new();
    for topic in &metadata.topics {
        for partition in &topic.partitions {
            let of = (name_of(topic).to_owned(), partition.partition_index);
            by_leader.entry(partition.leader_id.0).or_default().push(of);
        }
    }
    let mut all = BTreeMap::new();
    for (leader, partitions) in by_leader {
        let broker = metadata.brokers.iter().find(|broker| broker.node_id.0 == leader);
        let answers = match broker {
            Some(broker) => ask_leader(&format!("{}:{}", broker.host, broker.port), &partitions).await,
            None => Err(anyhow::anyhow!("no leader")),
        };
        match answers {
            Ok(answers) => all.extend(answers),
            Err(error) => all.extend(partitions.into_iter().map(|of| (of, Err(format!("{error:#}"))))),
        }
    }
    all
}

async fn ask_leader(address: &str, partitions: &[(String, i32)]) -> anyhow::Result<Vec<((String, i32), Offsets)>> {
    let connection = Connection::connect(address, CLIENT_ID, TIMEOUT).await?;
    let start = list_offsets(&connection, partitions, CONSUMER, EARLIEST).await?;
    let high_watermark = list_offsets(&connection, partitions, CONSUMER, LATEST).await?;
    let end = list_offsets(&connection, partitions, DEBUGGING_CONSUMER, LATEST).await?;
    Ok(partitions
        .iter()
        .map(|of| {
            let answer = |from: &BTreeMap<(String, i32), Result<i64, String>>| {
                from.get(of).cloned().unwrap_or_else(|| Err("not answered".to_owned()))
            };
            let offsets = answer(&start).and_then(|start| Ok([start, answer(&high_watermark)?, answer(&end)?]));
            (of.clone(), offsets)
        })
        .collect())
}

async fn list_offsets(
    connection: &Connection,
    partitions: &[(String, i32)],
    replica: BrokerId,
    timestamp: i64,
) -> anyhow::Result<BTreeMap<(String, i32), Result<i64, String>>> {
    let mut topics: BTreeMap<&str, Vec<ListOffsetsPartition>> = BTreeMap::new();
    for (topic, partition) in partitions {
        let asked = ListOffsetsPartition::default().with_partition_index(*partition).with_timestamp(timestamp);
        topics.entry(topic).or_default().push(asked);
    }
    let topics = topics.into_iter().map(|(topic, partitions)| {
        let name = TopicName(StrBytes::from_string(topic.to_owned()));
        ListOffsetsTopic::default().with_name(name).with_partitions(partitions)
    });
    let request = ListOffsetsRequest::default().with_replica_id(replica).with_topics(topics.collect());
    let response = connection.send(&request).await?;
    let mut offsets = BTreeMap::new();
    for topic in response.topics {
        for partition in topic.partitions {
            let answer = match ErrorCode::from_number(partition.error_code) {
                Some(ErrorCode::None) => Ok(partition.offset),
                _ => Err(describe_code(partition.error_code)),
            };
            offsets.insert((topic.name.to_string(), partition.partition_index), answer);
        }
    }
    Ok(offsets)
}

fn row(topic: &str, partition: &MetadataResponsePartition, offsets: Option<&Offsets>) -> [String; 10] {
    let ids = |brokers: &[BrokerId]| brokers.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",");
    let mut out_of_sync = partition.replica_nodes.clone();
    out_of_sync.retain(|id| !partition.isr_nodes.contains(id));
    let out_of_sync = if out_of_sync.is_empty() { "-".to_owned() } else { ids(&out_of_sync) };
    let leader = match partition.leader_id.0 {
        -1 => "none".to_owned(),
        id => id.to_string(),
    };
    let [start, high_watermark, end] = match offsets {
        Some(Ok(offsets)) => offsets.map(|offset| offset.to_string()),
        Some(Err(why)) => [why.clone(), "-".to_owned(), "-".to_owned()],
        None => ["-", "-", "-"].map(str::to_owned),
    };
    [
        topic.to_owned(),
        partition.partition_index.to_string(),
        leader,
        partition.leader_epoch.to_string(),
        ids(&partition.replica_nodes),
        ids(&partition.isr_nodes),
        out_of_sync,
        start,
        high_watermark,
        end,
    ]
}

fn name_of(topic: &MetadataResponseTopic) -> &str {
    topic.name.as_ref().map_or("", |name| name.0.as_str())
}

fn describe_code(code: i16) -> String {
    ErrorCode::from_number(code).map_or_else(|| format!("error {code}"), |code| code.to_string())
}

/// Columns padded to their widest cell.
fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let widths: Vec<usize> =
        (0..COLUMNS).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; COLUMNS]| {
        let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_reasons_are_shown() {
        let partition = MetadataResponsePartition::default()
            .with_leader_id(BrokerId(-1))
            .with_leader_epoch(4)
            .with_replica_nodes(vec![BrokerId(1), BrokerId(2)])
            .with_isr_nodes(vec![BrokerId(2)]);
        let rows = [
            row("long-topic-name", &partition, Some(&Ok([0, 12, 15]))),
            row("t", &partition, Some(&Err("LEADER_NOT_AVAILABLE".to_owned()))),
        ];
        assert_eq!(
            aligned(&rows),
            "long-topic-name  0  none  4  1,2  2  1  0                     12  15\n\
             t                0  none  4  1,2  2  1  LEADER_NOT_AVAILABLE  -   -\n"
        );
    }

    #[test]
    fn histories_are_told_in_the_order_of_time_and_what_is_no_line_is_passed_over() {
        let of = ("t".to_owned(), 0);
        let line = r#"{"when":1700000000000,"broker":1,"leader":2,"leader_epoch":5,"why":"w","from_offset":30,
            "from_epoch":4,"to_offset":20,"to_epoch":3,"high_watermark":20,"records":10}"#;
        let election = r#"{"when":1600000000000,"broker":1,"leader":-1,"records":null,"why":"v"}"#;
        let happened = [line, "{\"when\"", election, "[]"].iter().filter_map(|line| happening(&of, line)).collect();
        assert_eq!(
            table_of(happened),
            "WHEN                      TOPIC  PARTITION  BROKER  LEADER  EPOCH  FROM  TO    HW  RECORDS  WHY\n\
             2020-09-13T12:26:40.000Z  t      0          1       ?       ?      ?@?   ?@?   ?   ?        v\n\
             2023-11-14T22:13:20.000Z  t      0          1       2       5      30@4  20@3  20  10       w\n"
        );
    }
}
