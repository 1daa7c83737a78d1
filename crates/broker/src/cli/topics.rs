//! `highwater topics`: what a cluster says of its partitions, over the ordinary protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use highwater_broker::api::ErrorCode;
use highwater_broker::client::Connection;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{MetadataResponsePartition, MetadataResponseTopic};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::StrBytes;

/// Show leader, epoch, replicas, ISR, log start, high watermark and log end of each partition.
#[derive(Debug, Args)]
pub(crate) struct TopicsArguments {
    /// Any broker of the cluster.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    bootstrap: String,
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

/// Prints the table.
pub(crate) fn run(arguments: &TopicsArguments) -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    print!("{}", runtime.block_on(describe(arguments))?);
    Ok(())
}

async fn describe(arguments: &TopicsArguments) -> anyhow::Result<String> {
    let connection = Connection::connect(&arguments.bootstrap, CLIENT_ID, TIMEOUT).await?;
    let named =
        |name: &String| MetadataRequestTopic::default().with_name(Some(TopicName(StrBytes::from_string(name.clone()))));
    let asked = (!arguments.topics.is_empty()).then(|| arguments.topics.iter().map(named).collect());
    let request = MetadataRequest::default().with_topics(asked).with_allow_auto_topic_creation(false);
    let metadata = connection.send(&request).await?;
    let offsets = offsets_by_partition(&metadata).await;
    let mut rows =
        vec![["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "LOG START", "HW", "LEO"].map(str::to_owned)];
    let mut topics: Vec<_> = metadata.topics.iter().collect();
    topics.sort_by(|a, b| name_of(a).cmp(name_of(b)));
    for topic in topics {
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
    Ok(aligned(&rows))
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

fn row(topic: &str, partition: &MetadataResponsePartition, offsets: Option<&Offsets>) -> [String; 9] {
    let ids = |brokers: &[BrokerId]| brokers.iter().map(|id| id.0.to_string()).collect::<Vec<_>>().join(",");
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
fn aligned(rows: &[[String; 9]]) -> String {
    let widths: Vec<usize> =
        (0..9).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 9]| {
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
            "long-topic-name  0  none  4  1,2  2  0                     12  15\n\
             t                0  none  4  1,2  2  LEADER_NOT_AVAILABLE  -   -\n"
        );
    }
}
