//! DescribeLogDirs (35): what lies in the data directory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsResult, DescribeLogDirsTopic,
};
use kafka_protocol::messages::{DescribeLogDirsRequest, DescribeLogDirsResponse};
use kafka_protocol::protocol::StrBytes;

use super::RequestContext;

/// The disk below is told of from this version on (KIP-827).
const DISK_SINCE: i16 = 4;

/// Answers for the one directory there is.
pub(crate) async fn handle(context: &RequestContext, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    let asked: Option<BTreeSet<(StrBytes, i32)>> = request.topics.map(|topics| {
        let of = |topic: kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic| {
            let name = topic.topic.0;
            topic.partitions.into_iter().map(move |number| (name.clone(), number))
        };
        topics.into_iter().flat_map(of).collect()
    });
    let mut topics: BTreeMap<Arc<str>, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
    for hosted in context.broker.partitions.all() {
        let of = hosted.topic_partition();
        let name = || StrBytes::from_string(of.topic.to_string());
        if asked.as_ref().is_some_and(|asked| !asked.contains(&(name(), of.partition))) {
            continue;
        }
        let Some((bytes, lag)) = hosted.extent() else { continue };
        let partition = DescribeLogDirsPartition::default()
            .with_partition_index(of.partition)
            .with_partition_size(i64::try_from(bytes).unwrap_or(i64::MAX))
            .with_offset_lag(lag);
        topics.entry(of.topic.clone()).or_default().push(partition);
    }
    let topics = topics.into_iter().map(|(name, partitions)| {
        let name = StrBytes::from_string(name.to_string());
        DescribeLogDirsTopic::default().with_name(name.into()).with_partitions(partitions)
    });
    let dir = absolute(&context.broker.config.data_dir);
    let mut result =
        DescribeLogDirsResult::default().with_log_dir(StrBytes::from_string(dir.clone())).with_topics(topics.collect());
    if context.version >= DISK_SINCE
        && let Some(Some((total, usable))) = context.broker.services.readers.read(move || disk(Path::new(&dir))).await
    {
        (result.total_bytes, result.usable_bytes) = (total, usable);
    }
    DescribeLogDirsResponse::default().with_results(vec![result])
}

/// A directory as Kafka writes it.
pub(super) fn absolute(dir: &Path) -> String {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned()).display().to_string()
}

/// Bytes of the file system below a directory, and how many of them this process may still take.
fn disk(dir: &Path) -> Option<(i64, i64)> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    Some((bytes(stat.f_blocks), bytes(stat.f_bavail)))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_log_dirs_request::DescribableLogDirTopic;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::{broker, context, fill, make, name};
    use crate::api::tests::encodes;

    #[tokio::test]
    async fn partitions_are_told_with_their_size() {
        let (broker, dir) = broker().await;
        make(broker.cluster(), "t", 2, 1).await;
        make(broker.cluster(), "u", 1, 1).await;
        fill(&broker, "t", 100).await;
        fill(&broker, "u", 1).await;
        let ask = async |version, topics: Option<&[(&str, i32)]>| {
            let of = |&(topic, number): &(&str, i32)| {
                DescribableLogDirTopic::default().with_topic(name(topic).into()).with_partitions(vec![number])
            };
            let topics = topics.map(|topics| topics.iter().map(of).collect());
            let response =
                handle(&context(&broker, version), DescribeLogDirsRequest::default().with_topics(topics)).await;
            encodes(ApiKey::DescribeLogDirs, &response, version);
            assert_eq!(response.results.len(), 1);
            response.results[0].clone()
        };
        for version in 1..=4 {
            let all = ask(version, None).await;
            assert_eq!((all.error_code, Path::new(&*all.log_dir)), (0, dir.path()));
            assert_eq!(version >= 4, all.total_bytes > 0 && (0..=all.total_bytes).contains(&all.usable_bytes));
            let told: Vec<_> = all.topics.iter().map(|topic| (&**topic.name, topic.partitions.len())).collect();
            assert_eq!(told, [("t", 2), ("u", 1)]);
            let first = &all.topics[0].partitions[0];
            assert!(first.partition_size > 100 && first.offset_lag == 0 && !first.is_future_key, "{first:?}");
            let some = ask(version, Some(&[("t", 1), ("t", 7), ("v", 0)])).await;
            let told: Vec<_> =
                some.topics.iter().map(|topic| (&**topic.name, topic.partitions[0].partition_index)).collect();
            assert_eq!(told, [("t", 1)]);
            assert!(ask(version, Some(&[])).await.topics.is_empty());
        }
        broker.shutdown().await.unwrap();
    }
}
