//! CreateTopics (19).

use std::collections::BTreeMap;

use highwater_replication::BrokerId;
use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsResponse,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{Close, ErrorCode, RequestContext, config_values};
use crate::cluster::{AdminError, ClusterHandle, CreatedTopic, Intent, MetadataImage, NewTopic};
use crate::config::BrokerConfig;

/// Kafka's own log of metadata: its brokers skip a directory of this name, so a topic of this name would vanish on the way
/// back to Kafka.
pub(super) const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

pub(crate) async fn handle(
    context: &RequestContext,
    request: CreateTopicsRequest,
) -> Result<CreateTopicsResponse, Close> {
    Ok(answer(&context.broker.cluster, &context.broker.config, request).await)
}

async fn answer(cluster: &ClusterHandle, config: &BrokerConfig, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let intent = if request.validate_only { Intent::Validate } else { Intent::Apply };
    let mut by_name: BTreeMap<StrBytes, Vec<CreatableTopic>> = BTreeMap::new();
    let mut order = Vec::new();
    for topic in request.topics {
        let same = by_name.entry(topic.name.0.clone()).or_default();
        if same.is_empty() {
            order.push(topic.name.0.clone());
        }
        same.push(topic);
    }
    let mut results = Vec::with_capacity(order.len());
    for name in order {
        let mut topics = by_name.remove(&name).unwrap_or_default();
        let result = match (topics.pop(), topics.is_empty()) {
            (Some(topic), true) => create(cluster, &topic, intent).await,
            _ => Err(AdminError::InvalidRequest("Duplicate topic name.".to_owned())),
        };
        results.push((name, result));
    }
    let deadline = super::deadline(request.timeout_ms);
    let mut topics = Vec::with_capacity(results.len());
    for (name, result) in results {
        let result = match result {
            Ok((created, overrides)) if intent == Intent::Apply => {
                let led = cluster.wait_for_leaders(&name, created.partitions, super::remaining_ms(deadline)).await;
                led.map(|()| (created, overrides))
            }
            other => other,
        };
        topics.push(to_result(&cluster.image(), config, name, result));
    }
    CreateTopicsResponse::default().with_topics(topics)
}

async fn create(
    cluster: &ClusterHandle,
    topic: &CreatableTopic,
    intent: Intent,
) -> Result<(CreatedTopic, BTreeMap<String, String>), AdminError> {
    if &*topic.name.0 == CLUSTER_METADATA_TOPIC {
        let what = format!("Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited.");
        return Err(AdminError::InvalidRequest(what));
    }
    let mut config = BTreeMap::new();
    for entry in &topic.configs {
        let Some(value) = &entry.value else {
            return Err(AdminError::InvalidConfig(format!(
                "Null value not supported for topic configs: {}",
                entry.name
            )));
        };
        config.insert(entry.name.to_string(), value.to_string());
    }
    let mut assignment = BTreeMap::new();
    for partition in &topic.assignments {
        let replicas: Vec<BrokerId> = partition.broker_ids.iter().map(|id| BrokerId(id.0)).collect();
        if assignment.insert(partition.partition_index, replicas).is_some() {
            let what = format!("Found multiple manual assignments for partition {}", partition.partition_index);
            return Err(AdminError::InvalidAssignment(what));
        }
    }
    let assignment = Some(assignment).filter(|assignment| !assignment.is_empty());
    // -1 stands for the broker's default: KIP-464 has it from version 4 on, and Kafka takes it in all of them.
    let new = NewTopic {
        name: topic.name.to_string(),
        partitions: Some(topic.num_partitions).filter(|&count| count != -1),
        replication_factor: Some(topic.replication_factor).filter(|&count| count != -1),
        assignment,
        config,
    };
    let created = cluster.create_topic(&new, intent).await?;
    Ok((created, new.config))
}

fn to_result(
    image: &MetadataImage,
    config: &BrokerConfig,
    name: StrBytes,
    result: Result<(CreatedTopic, BTreeMap<String, String>), AdminError>,
) -> CreatableTopicResult {
    let answer = CreatableTopicResult::default().with_name(name.into());
    match result {
        Ok((created, overrides)) => answer
            .with_error_code(ErrorCode::None.number())
            .with_error_message(None)
            .with_topic_id(Uuid::from_bytes(created.id.0))
            .with_num_partitions(created.partitions)
            .with_replication_factor(created.replication_factor)
            .with_configs(Some(configs(image, config, &overrides))),
        Err(error) => answer.with_error_code(error.code().number()).with_error_message(Some(super::told(error))),
    }
}

/// All of the topic's configs, as Kafka lists them from version 5 on (KIP-525).
fn configs(
    image: &MetadataImage,
    config: &BrokerConfig,
    overrides: &BTreeMap<String, String>,
) -> Vec<CreatableTopicConfigs> {
    let described = config_values::of_topic(image, config, overrides);
    let of = |one: config_values::Described| {
        CreatableTopicConfigs::default()
            .with_name(StrBytes::from_string(one.key))
            .with_value(one.value.map(StrBytes::from_string))
            .with_config_source(one.source as i8)
    };
    described.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopicConfig};
    use kafka_protocol::messages::{BrokerId as WireBrokerId, TopicName};

    use super::*;
    use crate::api::admin_tests::{cluster_of, name};

    fn topic(text: &str, partitions: i32, factor: i16) -> CreatableTopic {
        CreatableTopic::default()
            .with_name(TopicName(name(text)))
            .with_num_partitions(partitions)
            .with_replication_factor(factor)
    }

    fn assigned(text: &str, replicas: &[(i32, &[i32])]) -> CreatableTopic {
        let assignments = replicas
            .iter()
            .map(|(partition, ids)| {
                CreatableReplicaAssignment::default()
                    .with_partition_index(*partition)
                    .with_broker_ids(ids.iter().copied().map(WireBrokerId).collect())
            })
            .collect();
        topic(text, -1, -1).with_assignments(assignments)
    }

    async fn ask(
        cluster: &ClusterHandle,
        topics: Vec<CreatableTopic>,
        validate_only: bool,
    ) -> Vec<CreatableTopicResult> {
        let request = CreateTopicsRequest::default()
            .with_topics(topics)
            .with_timeout_ms(10_000)
            .with_validate_only(validate_only);
        answer(cluster, &BrokerConfig::default(), request).await.topics
    }

    #[tokio::test]
    async fn every_mistake_gets_kafkas_code_and_makes_nothing() {
        let members = cluster_of(3).await;
        let cluster = &members[0];
        let long = "x".repeat(250);
        let config = |key: &str, value: Option<&str>| {
            let entry = CreatableTopicConfig::default().with_name(name(key)).with_value(value.map(name));
            topic("c", 1, 1).with_configs(vec![entry])
        };
        let both = assigned("b", &[(0, &[1])]).with_num_partitions(1);
        let cases: Vec<(CreatableTopic, i16)> = vec![
            (topic("", 1, 1), 17),
            (topic(".", 1, 1), 17),
            (topic("..", 1, 1), 17),
            (topic("a/b", 1, 1), 17),
            (topic("ünï", 1, 1), 17),
            (topic("nul\0", 1, 1), 17),
            (topic(&long, 1, 1), 17),
            (topic("p", 0, 1), 37),
            (topic("p", -2, 1), 37),
            (topic("p", i32::MAX, 1), 44),
            (topic("r", 1, 0), 38),
            (topic("r", 1, -2), 38),
            (topic("r", 1, 4), 38),
            (assigned("m", &[(0, &[1]), (2, &[1])]), 39),
            (assigned("m", &[(1, &[1])]), 39),
            (assigned("m", &[(-1, &[1])]), 39),
            (assigned("m", &[(0, &[1]), (0, &[2])]), 39),
            (assigned("m", &[(0, &[1, 1])]), 39),
            (assigned("m", &[(0, &[])]), 39),
            (assigned("m", &[(0, &[9])]), 39),
            (assigned("m", &[(0, &[1, 2]), (1, &[1])]), 39),
            (both, 42),
            (topic(CLUSTER_METADATA_TOPIC, 1, 1), 42),
            (config("no.such.config", Some("1")), 40),
            (config("retention.ms", Some("soon")), 40),
            (config("retention.ms", None), 40),
        ];
        for validate_only in [true, false] {
            for (topic, code) in &cases {
                let result = ask(cluster, vec![topic.clone()], validate_only).await.remove(0);
                assert_eq!(result.error_code, *code, "{topic:?}");
                assert!(result.error_message.is_some_and(|text| !text.is_empty()));
                assert!(result.topic_id.is_nil());
            }
        }
        let twice = ask(cluster, vec![topic("d", 1, 1), topic("e", 1, 1), topic("d", 2, 1)], false).await;
        let codes: Vec<_> = twice.iter().map(|result| (result.name.to_string(), result.error_code)).collect();
        assert_eq!(codes, [("d".to_owned(), 42), ("e".to_owned(), 0)]);
        assert_eq!(cluster.image().topics.keys().map(|name| name.to_string()).collect::<Vec<_>>(), ["e"]);
    }

    /// What a client may send may be quoted, but not so that the answer cannot be written.
    #[tokio::test]
    async fn names_and_values_of_any_length_get_their_code_in_every_version() {
        let members = cluster_of(1).await;
        let long = "é".repeat(0x7fff / 2);
        let config = |key: &str, value: &str| {
            let entry = CreatableTopicConfig::default().with_name(name(key)).with_value(Some(name(value)));
            topic("c", 1, 1).with_configs(vec![entry])
        };
        for version in 2..=7 {
            for (topic, code) in [
                (topic(&long, 1, 1), 17),
                (topic(&"x".repeat(0x7fff), 1, 1), 17),
                (config(&long, "1"), 40),
                (config("retention.ms", &long), 40),
                (config("cleanup.policy", &long), 40),
            ] {
                let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
                let mut response = answer(&members[0], &BrokerConfig::default(), request).await;
                assert_eq!(response.topics[0].error_code, code);
                // What is not in old versions.
                if version < 5 {
                    response.topics[0].configs = Some(Vec::new());
                }
                crate::api::tests::encodes(crate::api::ApiKey::CreateTopics, &response, version);
            }
        }
    }

    #[tokio::test]
    async fn a_topic_is_there_with_its_leaders_when_the_answer_comes() {
        let members = cluster_of(3).await;
        let cluster = &members[0];
        let longest = "x".repeat(249);
        for text in ["-giveaway", "x-3", "__x", "a.b", &longest] {
            let result = ask(cluster, vec![topic(text, 6, 3)], false).await.remove(0);
            assert_eq!((result.error_code, result.num_partitions, result.replication_factor), (0, 6, 3), "{text}");
            let image = cluster.image();
            let made = image.topic(text).unwrap();
            assert_eq!(Uuid::from_bytes(made.id.0), result.topic_id);
            for partition in &made.partitions {
                assert_eq!(partition.state.value.leader, Some(partition.assignment[0]));
                assert_eq!(partition.state.value.isr.len(), 3);
            }
            for broker in 1..=3 {
                let leads = |partition: &&crate::cluster::PartitionImage| partition.assignment[0] == BrokerId(broker);
                assert_eq!(made.partitions.iter().filter(leads).count(), 2, "leaders go round");
            }
        }
        for (text, code) in [("a.b", 36), ("a_b", 17)] {
            let result = ask(cluster, vec![topic(text, 1, 1)], true).await.remove(0);
            assert_eq!(result.error_code, code, "{text}");
        }
    }

    /// Names that the metrics of one topic would take for the other's. Of two in one request the first is made, in either order.
    #[tokio::test]
    async fn of_two_names_in_a_request_that_collide_the_first_is_made() {
        let members = cluster_of(1).await;
        let cluster = &members[0];
        for (first, second, other) in [("a.b", "a_b", "c"), ("d_e.f", "d.e_f", "g"), ("h_", "h.", "i")] {
            let results = ask(cluster, vec![topic(first, 1, 1), topic(second, 1, 1), topic(other, 1, 1)], false).await;
            let codes: Vec<_> = results.iter().map(|result| (&*result.name.0, result.error_code)).collect();
            assert_eq!(codes, [(first, 0), (second, 17), (other, 0)]);
            let image = cluster.image();
            assert!(image.topic(first).is_some() && image.topic(second).is_none() && image.topic(other).is_some());
        }
    }

    #[tokio::test]
    async fn validating_answers_like_making_and_makes_nothing() {
        let members = cluster_of(1).await;
        let cluster = &members[0];
        let entry = CreatableTopicConfig::default().with_name(name("retention.ms")).with_value(Some(name("5000")));
        let wanted = topic("v", -1, -1).with_configs(vec![entry]);
        let result = ask(cluster, vec![wanted], true).await.remove(0);
        assert_eq!((result.error_code, result.num_partitions, result.replication_factor), (0, 1, 1));
        let configs = result.configs.unwrap();
        let of = |key: &str| configs.iter().find(|config| &*config.name == key).unwrap();
        assert_eq!((of("retention.ms").value.as_deref(), of("retention.ms").config_source), (Some("5000"), 1));
        assert_eq!((of("cleanup.policy").value.as_deref(), of("cleanup.policy").config_source), (Some("delete"), 5));
        assert!(cluster.image().topics.is_empty());
        assert_eq!(ask(cluster, vec![topic("v", -1, -1)], true).await[0].error_code, 0);
        assert_eq!(ask(cluster, vec![topic("v", 0, 1)], true).await[0].error_code, 37);
        assert_eq!(ask(cluster, vec![topic("v", 1, -2)], true).await[0].error_code, 38);
        assert_eq!(ask(cluster, vec![assigned("v", &[(0, &[1])])], false).await[0].error_code, 0);
    }
}
