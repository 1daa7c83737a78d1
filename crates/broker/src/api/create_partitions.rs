//! CreatePartitions (37).

use std::collections::BTreeMap;

use highwater_replication::BrokerId;
use kafka_protocol::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use kafka_protocol::messages::create_partitions_response::{CreatePartitionsResponse, CreatePartitionsTopicResult};
use kafka_protocol::protocol::StrBytes;

use super::{Close, RequestContext};
use crate::cluster::{AdminError, ClusterHandle, Intent};

pub(crate) async fn handle(
    context: &RequestContext,
    request: CreatePartitionsRequest,
) -> Result<CreatePartitionsResponse, Close> {
    Ok(answer(&context.broker.cluster, request).await)
}

/// Every topic of the request is named once in the answer: clients wait for them by name.
async fn answer(cluster: &ClusterHandle, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let intent = if request.validate_only { Intent::Validate } else { Intent::Apply };
    let deadline = super::deadline(request.timeout_ms);
    let mut asked: BTreeMap<StrBytes, usize> = BTreeMap::new();
    for topic in &request.topics {
        *asked.entry(topic.name.0.clone()).or_default() += 1;
    }
    let mut results = Vec::with_capacity(asked.len());
    for topic in request.topics {
        let name = topic.name.0.clone();
        let result = match asked.remove(&name) {
            None => continue,
            Some(1) => grow(cluster, topic, intent, deadline).await,
            Some(_) => Err(AdminError::InvalidRequest("Duplicate topic name.".to_owned())),
        };
        let answer = CreatePartitionsTopicResult::default().with_name(name.into());
        results.push(match result {
            Ok(()) => answer.with_error_message(None),
            Err(error) => answer.with_error_code(error.code().number()).with_error_message(Some(super::told(error))),
        });
    }
    CreatePartitionsResponse::default().with_results(results)
}

async fn grow(
    cluster: &ClusterHandle,
    topic: CreatePartitionsTopic,
    intent: Intent,
    deadline: tokio::time::Instant,
) -> Result<(), AdminError> {
    let assignment = topic.assignments.map(|assignments| {
        assignments.iter().map(|replicas| replicas.broker_ids.iter().map(|id| BrokerId(id.0)).collect()).collect()
    });
    let first = cluster.create_partitions(&topic.name, topic.count, assignment, intent).await?;
    match intent {
        Intent::Validate => Ok(()),
        Intent::Apply => {
            let left_ms = super::remaining_ms(deadline);
            cluster.wait_for_leaders_from(&topic.name, first, topic.count, left_ms).await
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;
    use kafka_protocol::messages::{BrokerId as WireBrokerId, TopicName};

    use super::*;
    use crate::api::admin_tests::{cluster_of, make, name};

    async fn ask(
        cluster: &ClusterHandle,
        topics: Vec<CreatePartitionsTopic>,
        validate_only: bool,
    ) -> Vec<(String, i16)> {
        let request = CreatePartitionsRequest::default()
            .with_topics(topics)
            .with_timeout_ms(10_000)
            .with_validate_only(validate_only);
        let results = answer(cluster, request).await.results;
        results.into_iter().map(|result| (result.name.to_string(), result.error_code)).collect()
    }

    fn grow_to(text: &str, count: i32) -> CreatePartitionsTopic {
        CreatePartitionsTopic::default().with_name(TopicName(name(text))).with_count(count).with_assignments(None)
    }

    fn assigned(count: i32, replicas: &[&[i32]]) -> CreatePartitionsTopic {
        let assignments = replicas
            .iter()
            .map(|ids| {
                CreatePartitionsAssignment::default().with_broker_ids(ids.iter().copied().map(WireBrokerId).collect())
            })
            .collect();
        grow_to("t", count).with_assignments(Some(assignments))
    }

    #[tokio::test]
    async fn partitions_are_added_with_leaders_or_refused_with_kafkas_code() {
        let members = cluster_of(3).await;
        let cluster = &members[0];
        make(cluster, "t", 2, 2).await;
        let refused: Vec<(CreatePartitionsTopic, i16)> = vec![
            (grow_to("nobody", 3), 3),
            (grow_to("t", 2), 37),
            (grow_to("t", 1), 37),
            (grow_to("t", -1), 37),
            (grow_to("t", i32::MAX), 44),
            (assigned(4, &[&[1, 2]]), 39),
            (assigned(3, &[&[1]]), 39),
            (assigned(3, &[&[1, 1]]), 39),
            (assigned(3, &[&[1, 9]]), 39),
        ];
        for (topic, code) in refused {
            assert_eq!(ask(cluster, vec![topic.clone()], false).await[0].1, code, "{topic:?}");
        }
        assert_eq!(ask(cluster, vec![grow_to("t", 5)], true).await, [("t".to_owned(), 0)]);
        assert_eq!(cluster.image().topic("t").unwrap().partitions.len(), 2);
        let both = ask(cluster, vec![grow_to("t", 3), grow_to("u", 3), grow_to("t", 4)], false).await;
        assert_eq!(both, [("t".to_owned(), 42), ("u".to_owned(), 3)]);

        assert_eq!(ask(cluster, vec![assigned(3, &[&[3, 1]])], false).await, [("t".to_owned(), 0)]);
        assert_eq!(ask(cluster, vec![grow_to("t", 6)], false).await, [("t".to_owned(), 0)]);
        let image = cluster.image();
        let partitions = &image.topic("t").unwrap().partitions;
        assert_eq!(partitions.len(), 6);
        assert_eq!(partitions[2].assignment, [BrokerId(3), BrokerId(1)]);
        for partition in partitions {
            assert_eq!(partition.state.value.leader, Some(partition.assignment[0]));
            assert_eq!(partition.assignment.len(), 2);
        }
    }

    /// The answer was that the time was over, to whoever added partitions while a broker was away.
    #[tokio::test]
    async fn partitions_are_added_beside_one_that_has_lost_its_leader() {
        let members = cluster_of(2).await;
        make(&members[0], "t", 2, 1).await;
        members[1].leave().await;
        let led = |image: &std::sync::Arc<crate::cluster::MetadataImage>| {
            let partitions = &image.topic("t").unwrap().partitions;
            partitions.iter().filter(|one| one.state.value.leader.is_some()).count()
        };
        members[0].changes().wait_for(|image| led(image) == 1).await.unwrap();
        assert_eq!(ask(&members[0], vec![assigned(3, &[&[1]])], false).await, [("t".to_owned(), 0)]);
        assert_eq!(led(&members[0].image()), 2);
    }
}
