//! ElectLeaders (43).

use std::collections::BTreeMap;

use highwater_replication::ElectionKind;
use highwater_storage::TopicPartition;
use kafka_protocol::messages::elect_leaders_request::ElectLeadersRequest;
use kafka_protocol::messages::elect_leaders_response::{ElectLeadersResponse, PartitionResult, ReplicaElectionResult};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};
use crate::cluster::{AdminError, ClusterHandle};

pub(crate) async fn handle(context: &RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse {
    answer(&context.broker.cluster, context.version, request).await
}

async fn answer(cluster: &ClusterHandle, version: i16, request: ElectLeadersRequest) -> ElectLeadersResponse {
    let deadline = super::deadline(request.timeout_ms);
    let kind = match (version, request.election_type) {
        (0, _) | (_, 0) => ElectionKind::Preferred,
        (_, 1) => ElectionKind::Unclean,
        _ => return ElectLeadersResponse::default().with_error_code(ErrorCode::InvalidRequest.number()),
    };
    let asks_for_all = request.topic_partitions.is_none();
    let mut asked: BTreeMap<StrBytes, Vec<i32>> = BTreeMap::new();
    match request.topic_partitions {
        Some(topics) => {
            for topic in topics {
                asked.entry(topic.topic.0).or_default().extend(topic.partitions);
            }
        }
        None => {
            for topic in cluster.image().topics.values() {
                let numbers = (0..).take(topic.partitions.len()).collect();
                asked.insert(StrBytes::from_string(topic.name.to_string()), numbers);
            }
        }
    }
    let mut results = Vec::new();
    for (topic, mut numbers) in asked {
        numbers.sort_unstable();
        numbers.dedup();
        let mut partitions = Vec::new();
        for number in numbers {
            let elected = cluster.elect_leader(&TopicPartition::new(topic.as_str(), number), kind, deadline).await;
            let result = PartitionResult::default().with_partition_id(number);
            partitions.extend(match elected {
                Ok(()) => Some(result.with_error_message(None)),
                // Who asks for all wants to hear of those that could do with an election.
                Err(AdminError::ElectionNotNeeded) if asks_for_all => None,
                Err(error) => {
                    let message = Some(super::told(&error));
                    Some(result.with_error_code(error.code().number()).with_error_message(message))
                }
            });
        }
        if !partitions.is_empty() {
            let result = ReplicaElectionResult::default().with_topic(topic.into()).with_partition_result(partitions);
            results.push(result);
        }
    }
    ElectLeadersResponse::default().with_replica_election_results(results)
}

#[cfg(test)]
mod tests {
    use highwater_replication::BrokerId;
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::messages::elect_leaders_request::TopicPartitions;

    use super::*;
    use crate::api::admin_tests::{cluster_of, make, name};

    async fn ask(cluster: &ClusterHandle, kind: i8, of: Option<&[(&str, i32)]>) -> Vec<(String, i32, i16)> {
        let topic = |(topic, number): &(&str, i32)| {
            TopicPartitions::default().with_topic(TopicName(name(topic))).with_partitions(vec![*number])
        };
        let request = ElectLeadersRequest::default()
            .with_election_type(kind)
            .with_topic_partitions(of.map(|of| of.iter().map(topic).collect()))
            .with_timeout_ms(10_000);
        let results = answer(cluster, 2, request).await.replica_election_results;
        let of_topic = |result: &ReplicaElectionResult| {
            let name = result.topic.to_string();
            let partitions = result.partition_result.iter();
            partitions.map(|one| (name.clone(), one.partition_id, one.error_code)).collect::<Vec<_>>()
        };
        results.iter().flat_map(of_topic).collect()
    }

    #[tokio::test]
    async fn the_preferred_replica_leads_again_when_asked_for() {
        let members = cluster_of(3).await;
        make(&members[0], "t", 3, 3).await;
        let all: Vec<(&str, i32)> = vec![("t", 0), ("t", 9), ("u", 0)];
        let refused = ask(&members[0], 0, Some(&all)).await;
        assert_eq!(refused, [("t".to_owned(), 0, 84), ("t".to_owned(), 9, 3), ("u".to_owned(), 0, 3)]);
        assert_eq!(ask(&members[0], 0, None).await, [], "each is led by its preferred replica");

        let image = members[0].image();
        let of = image.topic("t").unwrap().partitions.iter().position(|one| one.assignment[0] == BrokerId(2)).unwrap();
        let of = i32::try_from(of).unwrap();
        let leader =
            |image: &crate::cluster::MetadataImage| image.topic("t").unwrap().partition(of).unwrap().state.value.leader;
        // It leaves, nobody takes it out of the ISR as nobody serves anything, and it is back.
        members[1].hand_over(1, std::time::Duration::from_millis(200)).await;
        members[0].changes().wait_for(|image| leader(image) != Some(BrokerId(2))).await.unwrap();
        assert_eq!(ask(&members[0], 0, Some(&[("t", of)])).await, [("t".to_owned(), of, 80)], "it is leaving");
        assert_eq!(ask(&members[0], 1, Some(&[("t", of)])).await, [("t".to_owned(), of, 84)], "somebody leads");
        members[1].stay().await;
        members[0].changes().wait_for(|image| image.leaving.is_empty()).await.unwrap();
        assert_eq!(ask(&members[0], 0, None).await, [("t".to_owned(), of, 0)]);
        assert_eq!(leader(&members[0].image()), Some(BrokerId(2)));
    }

    #[tokio::test]
    async fn an_unclean_election_is_held_where_nobody_leads() {
        let members = cluster_of(2).await;
        make(&members[0], "t", 2, 1).await;
        let lost = members[0].image().topic("t").unwrap().partitions.iter().position(|p| p.assignment == [BrokerId(2)]);
        let lost = i32::try_from(lost.unwrap()).unwrap();
        members[1].leave().await;
        let nobody = |image: &std::sync::Arc<crate::cluster::MetadataImage>| {
            image.topic("t").unwrap().partition(lost).unwrap().state.value.leader.is_none()
        };
        members[0].changes().wait_for(nobody).await.unwrap();
        assert_eq!(ask(&members[0], 1, Some(&[("t", lost)])).await, [("t".to_owned(), lost, 83)], "no replica lives");
        let odd = ElectLeadersRequest::default().with_election_type(7);
        assert_eq!(answer(&members[0], 2, odd).await.error_code, 42);
    }
}
