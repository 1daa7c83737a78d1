//! AlterPartitionReassignments (45) and ListPartitionReassignments (46).

use std::collections::{BTreeMap, BTreeSet};

use highwater_replication::BrokerId;
use kafka_protocol::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignableTopic,
};
use kafka_protocol::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;
use kafka_protocol::messages::list_partition_reassignments_response::{
    ListPartitionReassignmentsResponse, OngoingPartitionReassignment, OngoingTopicReassignment,
};
use kafka_protocol::messages::{BrokerId as WireBrokerId, TopicName};
use kafka_protocol::protocol::StrBytes;

use super::RequestContext;
use crate::cluster::{AdminError, ClusterHandle, FactorChange, MetadataImage, Move};

pub(crate) async fn alter(
    context: &RequestContext,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    change(&context.broker.cluster, context.version, request).await
}

async fn change(
    cluster: &ClusterHandle,
    version: i16,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let may_change = version < 1 || request.allow_replication_factor_change;
    let factor = if may_change { FactorChange::Allowed } else { FactorChange::Refused };
    let mut responses = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.name.clone();
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for (number, result) in change_topic(cluster, topic, factor).await {
            let answer = ReassignablePartitionResponse::default().with_partition_index(number);
            partitions.push(match result {
                Ok(()) => answer.with_error_message(None),
                Err(error) => {
                    answer.with_error_code(error.code().number()).with_error_message(Some(super::told(&error)))
                }
            });
        }
        responses.push(ReassignableTopicResponse::default().with_name(name).with_partitions(partitions));
    }
    let response = AlterPartitionReassignmentsResponse::default().with_error_message(None).with_responses(responses);
    if version < 1 { response } else { response.with_allow_replication_factor_change(may_change) }
}

async fn change_topic(
    cluster: &ClusterHandle,
    topic: ReassignableTopic,
    factor: FactorChange,
) -> BTreeMap<i32, Result<(), AdminError>> {
    let brokers = |ids: Vec<WireBrokerId>| ids.into_iter().map(|id| BrokerId(id.0)).collect();
    let (mut moves, mut twice) = (BTreeMap::new(), BTreeSet::new());
    for partition in topic.partitions {
        let wanted = partition.replicas.map_or(Move::Cancel, |ids| Move::To(brokers(ids)));
        if moves.insert(partition.partition_index, wanted).is_some() {
            twice.insert(partition.partition_index);
        }
    }
    moves.retain(|number, _| !twice.contains(number));
    let mut results = match cluster.reassign(&topic.name, &moves, factor).await {
        Ok(results) => results,
        Err(error) => moves.keys().map(|number| (*number, Err(error.clone()))).collect(),
    };
    let refused = || Err(AdminError::InvalidRequest("The partition is named twice.".to_owned()));
    results.extend(twice.into_iter().map(|number| (number, refused())));
    results
}

pub(crate) fn list(
    context: &RequestContext,
    request: ListPartitionReassignmentsRequest,
) -> ListPartitionReassignmentsResponse {
    under_way(&context.broker.cluster.image(), request)
}

fn under_way(image: &MetadataImage, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse {
    let asked: Option<BTreeMap<String, Vec<i32>>> = request
        .topics
        .map(|topics| topics.into_iter().map(|topic| (topic.name.to_string(), topic.partition_indexes)).collect());
    let ids = |ids: &[BrokerId]| ids.iter().map(|id| WireBrokerId(id.0)).collect::<Vec<_>>();
    let mut topics = Vec::new();
    for topic in image.topics.values() {
        let numbers = asked.as_ref().map(|asked| asked.get(&*topic.name).map_or(&[][..], Vec::as_slice));
        let mut partitions = Vec::new();
        for (number, partition) in (0..).zip(&topic.partitions) {
            let change = &partition.reassignment;
            if change.is_under_way() && numbers.is_none_or(|numbers| numbers.contains(&number)) {
                let one = OngoingPartitionReassignment::default()
                    .with_partition_index(number)
                    .with_replicas(ids(&partition.assignment))
                    .with_adding_replicas(ids(&change.adding))
                    .with_removing_replicas(ids(&change.removing));
                partitions.push(one);
            }
        }
        if !partitions.is_empty() {
            let name = TopicName(StrBytes::from_string(topic.name.to_string()));
            topics.push(OngoingTopicReassignment::default().with_name(name).with_partitions(partitions));
        }
    }
    ListPartitionReassignmentsResponse::default().with_error_message(None).with_topics(topics)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
    use kafka_protocol::messages::list_partition_reassignments_request::ListPartitionReassignmentsTopics;

    use super::*;
    use crate::api::admin_tests::{cluster_of, make, name};

    fn to(number: i32, replicas: Option<&[i32]>) -> ReassignablePartition {
        let replicas = replicas.map(|ids| ids.iter().copied().map(WireBrokerId).collect());
        ReassignablePartition::default().with_partition_index(number).with_replicas(replicas)
    }

    async fn ask(cluster: &ClusterHandle, topic: &str, partitions: Vec<ReassignablePartition>) -> Vec<(i32, i16)> {
        let topic = ReassignableTopic::default().with_name(TopicName(name(topic))).with_partitions(partitions);
        let request = AlterPartitionReassignmentsRequest::default()
            .with_allow_replication_factor_change(false)
            .with_topics(vec![topic]);
        let responses = change(cluster, 1, request).await.responses;
        responses[0].partitions.iter().map(|one| (one.partition_index, one.error_code)).collect()
    }

    fn listed(cluster: &ClusterHandle, of: Option<(&str, i32)>) -> Vec<[Vec<i32>; 3]> {
        let topic = |(topic, number)| {
            let topic = ListPartitionReassignmentsTopics::default().with_name(TopicName(name(topic)));
            vec![topic.with_partition_indexes(vec![number])]
        };
        let request = ListPartitionReassignmentsRequest::default().with_topics(of.map(topic));
        let topics = under_way(&cluster.image(), request).topics;
        let ids = |ids: &[WireBrokerId]| ids.iter().map(|id| id.0).collect::<Vec<_>>();
        let lists = |one: &OngoingPartitionReassignment| {
            [ids(&one.replicas), ids(&one.adding_replicas), ids(&one.removing_replicas)]
        };
        topics.iter().flat_map(|topic| topic.partitions.iter().map(lists)).collect()
    }

    /// Nobody serves anything here, so who comes never gets in sync: the move stays under way until it is cancelled.
    #[tokio::test]
    async fn moves_are_begun_listed_and_cancelled_or_refused_with_kafkas_code() {
        let members = cluster_of(4).await;
        let cluster = &members[0];
        make(cluster, "t", 1, 2).await;
        let [leader, follower] = cluster.image().topic("t").unwrap().partitions[0].assignment[..] else { panic!() };
        let (leader, follower) = (leader.0, follower.0);
        let others: Vec<i32> = (1..=4).filter(|id| ![leader, follower].contains(id)).collect();
        let refused: Vec<(&str, ReassignablePartition, i16)> = vec![
            ("u", to(0, Some(&[1, 2])), 3),
            ("t", to(1, Some(&[1, 2])), 3),
            ("t", to(-1, Some(&[1, 2])), 3),
            ("t", to(0, None), 85),
            ("t", to(0, Some(&[])), 39),
            ("t", to(0, Some(&[1, 1])), 39),
            ("t", to(0, Some(&[1, 9])), 39),
            ("t", to(0, Some(&[1, -1])), 39),
            ("t", to(0, Some(&[1, 2, 3])), 38),
        ];
        for (topic, partition, code) in refused {
            let number = partition.partition_index;
            assert_eq!(ask(cluster, topic, vec![partition.clone()]).await, [(number, code)], "{partition:?}");
        }
        let twice = vec![to(0, Some(&others)), to(0, None)];
        assert_eq!(ask(cluster, "t", twice).await, [(0, 42)]);
        assert_eq!(listed(cluster, None), Vec::<[Vec<i32>; 3]>::new());

        // One is exchanged.
        let target = [others[0], leader];
        assert_eq!(ask(cluster, "t", vec![to(0, Some(&target)), to(7, None)]).await, [(0, 0), (7, 3)]);
        let under_way =
            |image: &std::sync::Arc<MetadataImage>| image.topic("t").unwrap().partitions[0].reassignment.is_under_way();
        cluster.changes().wait_for(under_way).await.unwrap();
        let expected = [vec![others[0], leader, follower], vec![others[0]], vec![follower]];
        assert_eq!(listed(cluster, None), std::slice::from_ref(&expected));
        assert_eq!(listed(cluster, Some(("t", 0))), [expected]);
        assert_eq!(listed(cluster, Some(("t", 1))), Vec::<[Vec<i32>; 3]>::new());
        assert_eq!(listed(cluster, Some(("u", 0))), Vec::<[Vec<i32>; 3]>::new());

        // Who was to come goes: it was never in sync, so that is done at once.
        assert_eq!(ask(cluster, "t", vec![to(0, None)]).await, [(0, 0)]);
        cluster.changes().wait_for(|image| !under_way(image)).await.unwrap();
        let mut left = cluster.image().topic("t").unwrap().partitions[0].assignment.clone();
        left.sort();
        let mut before = vec![BrokerId(leader), BrokerId(follower)];
        before.sort();
        assert_eq!(left, before);
        // Another order is no move.
        assert_eq!(ask(cluster, "t", vec![to(0, Some(&[follower, leader]))]).await, [(0, 0)]);
        let reversed = [BrokerId(follower), BrokerId(leader)];
        let is_reversed =
            |image: &std::sync::Arc<MetadataImage>| image.topic("t").unwrap().partitions[0].assignment == reversed;
        cluster.changes().wait_for(is_reversed).await.unwrap();
    }
}
