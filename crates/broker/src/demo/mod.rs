//! `highwater demo`: three brokers replicate a real file, lose a follower for a while and their leader for good measure,
//! and at the end everything is compared with everything.

mod input;
mod producer;
mod random;
mod report;
mod story;
mod verify;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use highwater_broker::api::ErrorCode;
use highwater_broker::client::Connection;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

const CLIENT_ID: &str = "highwater-demo";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Produce and Fetch name topics by id from version 13 on; the demo knows its topic by name.
const VERSION_WITH_NAMES: i16 = 12;

/// Watch three brokers replicate a file, lose their leader and lose nothing.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// The file whose lines are sent [default: this repository's Cargo.lock].
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Send the whole file again and again, to at least so many records.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=50_000_000))]
    records: u64,
    /// Brokers to start; the topic has three replicas.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=9))]
    brokers: u8,
    /// What the demo's choices (batch sizes, which follower pauses) are drawn from.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keep the brokers' directories here instead of in a temporary folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the demo; an error names the first difference.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<()> {
    let input = input::Input::open(arguments.input.as_deref(), arguments.records)?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the network threads")?;
    runtime.block_on(story::tell(arguments, input))
}

/// The address of the broker that leads partition 0 of `topic`, asked of whichever broker answers.
async fn find_leader(bootstrap: &[String], topic: &str) -> anyhow::Result<String> {
    let mut last = None;
    for address in bootstrap {
        match leader_according_to(address, topic).await {
            Ok(leader) => return Ok(leader),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no broker to ask")))
}

async fn leader_according_to(address: &str, topic: &str) -> anyhow::Result<String> {
    let connection = Connection::connect(address, CLIENT_ID, REQUEST_TIMEOUT).await?;
    let name = TopicName(StrBytes::from_string(topic.to_owned()));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![MetadataRequestTopic::default().with_name(Some(name))]))
        .with_allow_auto_topic_creation(false);
    let response = connection.send(&request).await?;
    let partition = response.topics.first().and_then(|topic| topic.partitions.first());
    let Some(partition) = partition.filter(|partition| partition.error_code == ErrorCode::None.number()) else {
        bail!("{topic} has no leader at present");
    };
    let leader = response.brokers.iter().find(|broker| broker.node_id == partition.leader_id);
    let leader = leader.with_context(|| format!("{topic} has no live leader at present"))?;
    Ok(format!("{}:{}", leader.host, leader.port))
}
