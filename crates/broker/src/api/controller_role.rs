//! What tools ask of a cluster that elects its controller among its own: answered for one that does it by its coordination
//! store. DescribeQuorum (55), UpdateFeatures (57), UnregisterBroker (64), AlterReplicaLogDirs (34).

use std::sync::Arc;

use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::describe_quorum_response::{Listener, Node, PartitionData, ReplicaState, TopicData};
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::update_features_response::UpdatableFeatureResult;
use kafka_protocol::messages::{
    AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse, BrokerId, DescribeQuorumRequest, DescribeQuorumResponse,
    UnregisterBrokerRequest, UnregisterBrokerResponse, UpdateFeaturesRequest, UpdateFeaturesResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::api_versions::{TRANSACTION_VERSION, TRANSACTION_VERSION_LEVEL};
use super::create_topics::CLUSTER_METADATA_TOPIC;
use super::describe_log_dirs::absolute;
use super::{ErrorCode, RequestContext, metadata};
use crate::cluster::MetadataImage;
use crate::partitions::TopicName;

/// Nodes are told of, and messages, from this version on.
const NODES_SINCE: i16 = 2;

/// Says who is controller as Kafka says who leads its quorum: a voter alone, whom the others observe. There is no log between
/// them whose ends could be told.
pub(crate) async fn describe_quorum(
    context: &RequestContext,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let image = context.broker.cluster.image();
    let epoch = context.broker.cluster.controller_epoch().await.unwrap_or(0);
    quorum(&image, context.broker.config.broker_id, epoch, context.version, request)
}

fn quorum(
    image: &Arc<MetadataImage>,
    me: highwater_replication::BrokerId,
    epoch: i32,
    version: i16,
    request: DescribeQuorumRequest,
) -> DescribeQuorumResponse {
    let controller = metadata::controller(image, me);
    let state = |id: &highwater_replication::BrokerId| ReplicaState::default().with_replica_id(BrokerId(id.0));
    let topics = request.topics.into_iter().map(|topic| {
        let is_metadata = topic.topic_name.as_str() == CLUSTER_METADATA_TOPIC;
        let partitions = topic.partitions.iter().map(|partition| {
            let mut told = PartitionData::default().with_partition_index(partition.partition_index);
            if version >= NODES_SINCE {
                told.error_message = None;
            }
            if !is_metadata || partition.partition_index != 0 {
                return told.with_error_code(ErrorCode::UnknownTopicOrPartition.number());
            }
            told.with_leader_id(BrokerId(controller.0))
                .with_leader_epoch(epoch)
                .with_current_voters(vec![state(&controller)])
                .with_observers(image.brokers.keys().filter(|id| **id != controller).map(state).collect())
        });
        TopicData::default().with_partitions(partitions.collect()).with_topic_name(topic.topic_name)
    });
    let mut response = DescribeQuorumResponse::default().with_topics(topics.collect());
    if version >= NODES_SINCE {
        response.error_message = None;
        response.nodes = image
            .brokers
            .values()
            .map(|broker| {
                let listener = Listener::default()
                    .with_name(StrBytes::from_static_str("PLAINTEXT"))
                    .with_host(StrBytes::from_string(broker.host.clone()))
                    .with_port(broker.port);
                Node::default().with_node_id(BrokerId(broker.id.0)).with_listeners(vec![listener])
            })
            .collect();
    }
    response
}

/// What Kafka knows as ways of updating: up, down, and down though something be lost by it.
const UPGRADE_TYPES: std::ops::RangeInclusive<i8> = 1..=3;

/// There is one feature, at the level it has; nothing else can be had. As in Kafka all updates fail by one.
pub(crate) fn update_features(version: i16, request: &UpdateFeaturesRequest) -> UpdateFeaturesResponse {
    let response = UpdateFeaturesResponse::default().with_error_message(None);
    let is_so = |update: &FeatureUpdateKey| {
        (&*update.feature, update.max_version_level) == (TRANSACTION_VERSION, TRANSACTION_VERSION_LEVEL)
            && UPGRADE_TYPES.contains(&update.upgrade_type)
    };
    let Some(first) = request.feature_updates.iter().find(|update| !is_so(update)) else {
        // Of each feature by itself up to version 1.
        let each = request.feature_updates.iter().filter(|_| version <= 1).map(|update| {
            UpdatableFeatureResult::default().with_feature(update.feature.clone()).with_error_message(None)
        });
        return response.with_results(each.collect());
    };
    let code = ErrorCode::InvalidUpdateVersion.number();
    let told = |feature: &StrBytes, level: i16| {
        super::told(format!("Invalid update version {level} for feature {feature}. This broker does not support it."))
    };
    let message = told(&first.feature, first.max_version_level);
    let words = format!("The update failed for all features since the following feature had an error: {message}");
    response.with_error_code(code).with_error_message(Some(super::told(words)))
}

/// A registration lasts as long as its broker runs, so there is none to be taken away from a broker that is gone.
pub(crate) fn unregister_broker(
    context: &RequestContext,
    request: &UnregisterBrokerRequest,
) -> UnregisterBrokerResponse {
    unregister(&context.broker.cluster.image(), request.broker_id.0)
}

fn unregister(image: &MetadataImage, id: i32) -> UnregisterBrokerResponse {
    let (code, message) = match image.brokers.contains_key(&highwater_replication::BrokerId(id)) {
        true => (ErrorCode::InvalidRequest, format!("Broker ID {id} is registered for as long as it runs: stop it")),
        false => (ErrorCode::BrokerIdNotRegistered, format!("Broker ID {id} is not currently registered")),
    };
    UnregisterBrokerResponse::default().with_error_code(code.number()).with_error_message(Some(super::told(message)))
}

/// Replicas are where they are to be, if that is the one directory there is.
pub(crate) fn alter_log_dirs(
    context: &RequestContext,
    request: AlterReplicaLogDirsRequest,
) -> AlterReplicaLogDirsResponse {
    let broker = &context.broker;
    let own = absolute(&broker.config.data_dir);
    let mut results = Vec::new();
    for dir in request.dirs {
        let is_own = dir.path.as_str() == own;
        for topic in dir.topics {
            let partition = |&number: &i32| {
                let code = match is_own {
                    false => ErrorCode::LogDirNotFound,
                    true => broker.find(TopicName::Name(&topic.name), number).err().unwrap_or(ErrorCode::None),
                };
                AlterReplicaLogDirPartitionResult::default().with_partition_index(number).with_error_code(code.number())
            };
            let partitions = topic.partitions.iter().map(partition).collect();
            results
                .push(AlterReplicaLogDirTopicResult::default().with_topic_name(topic.name).with_partitions(partitions));
        }
    }
    AlterReplicaLogDirsResponse::default().with_results(results)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_replica_log_dirs_request::{AlterReplicaLogDir, AlterReplicaLogDirTopic};
    use kafka_protocol::messages::describe_quorum_request;

    use super::*;
    use crate::api::ApiKey;
    use crate::api::admin_tests::{broker, context, make, name};
    use crate::api::tests::{encodes, image};

    #[test]
    fn the_controller_is_told_as_a_quorums_leader() {
        let ask = |topic: &str, number, version| {
            let partition = describe_quorum_request::PartitionData::default().with_partition_index(number);
            let topic = describe_quorum_request::TopicData::default()
                .with_topic_name(name(topic).into())
                .with_partitions(vec![partition]);
            let request = DescribeQuorumRequest::default().with_topics(vec![topic]);
            let response = quorum(&Arc::new(image()), highwater_replication::BrokerId(1), 7, version, request);
            encodes(ApiKey::DescribeQuorum, &response, version);
            response
        };
        for version in 0..=2 {
            let response = ask("__cluster_metadata", 0, version);
            let told = &response.topics[0].partitions[0];
            assert_eq!((told.error_code, told.leader_id.0, told.leader_epoch), (0, 2, 7));
            let ids = |of: &[ReplicaState]| of.iter().map(|one| one.replica_id.0).collect::<Vec<_>>();
            assert_eq!((ids(&told.current_voters), ids(&told.observers)), (vec![2], vec![1]));
            assert_eq!(response.nodes.len(), if version >= 2 { 2 } else { 0 });
            for (topic, number) in [("__cluster_metadata", 1), ("books", 0)] {
                assert_eq!(ask(topic, number, version).topics[0].partitions[0].error_code, 3);
            }
        }
    }

    #[test]
    fn no_feature_can_be_updated() {
        let update = |feature: &str| FeatureUpdateKey::default().with_feature(name(feature)).with_max_version_level(1);
        let request = UpdateFeaturesRequest::default().with_feature_updates(vec![update("a"), update("b")]);
        for version in 0..=2 {
            let response = update_features(version, &request);
            encodes(ApiKey::UpdateFeatures, &response, version);
            assert_eq!((response.error_code, response.results.len()), (95, 0));
            let as_it_is = update("transaction.version").with_max_version_level(2);
            let same = UpdateFeaturesRequest::default().with_feature_updates(vec![as_it_is.clone()]);
            let response = update_features(version, &same);
            encodes(ApiKey::UpdateFeatures, &response, version);
            assert_eq!((response.error_code, response.results.len()), (0, if version <= 1 { 1 } else { 0 }));
            for upgrade_type in [0, 4, -1] {
                let odd = vec![as_it_is.clone().with_upgrade_type(upgrade_type)];
                let odd = UpdateFeaturesRequest::default().with_feature_updates(odd);
                assert_eq!(update_features(version, &odd).error_code, 95, "{upgrade_type}");
            }
            let with_another = UpdateFeaturesRequest::default().with_feature_updates(vec![as_it_is, update("a")]);
            assert_eq!(update_features(version, &with_another).error_code, 95);
            let nothing = update_features(version, &UpdateFeaturesRequest::default());
            encodes(ApiKey::UpdateFeatures, &nothing, version);
            assert_eq!(nothing.error_code, 0);
        }
    }

    #[test]
    fn a_registration_is_not_taken_away() {
        for (id, code) in [(1, 42), (3, 102), (-1, 102)] {
            let response = unregister(&image(), id);
            encodes(ApiKey::UnregisterBroker, &response, 0);
            assert_eq!(response.error_code, code, "{id}");
        }
    }

    #[tokio::test]
    async fn replicas_stay_in_the_directory_there_is() {
        let (broker, dir) = broker().await;
        make(broker.cluster(), "t", 1, 1).await;
        crate::api::admin_tests::ready(&broker, "t").await;
        let own = dir.path().display().to_string();
        for version in 1..=2 {
            for (path, topic, code) in [(&*own, "t", 0), (&*own, "u", 3), ("/nope", "t", 57), ("", "t", 57)] {
                let topics = AlterReplicaLogDirTopic::default().with_name(name(topic).into()).with_partitions(vec![0]);
                let dir = AlterReplicaLogDir::default().with_path(name(path)).with_topics(vec![topics]);
                let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]);
                let response = alter_log_dirs(&context(&broker, version), request);
                encodes(ApiKey::AlterReplicaLogDirs, &response, version);
                assert_eq!(response.results[0].partitions[0].error_code, code, "{path} {topic}");
            }
        }
        broker.shutdown().await.unwrap();
    }
}
