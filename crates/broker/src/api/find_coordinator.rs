//! FindCoordinator (10): which broker coordinates a group, or the transactions of an id.

use highwater_replication::BrokerId;
use kafka_protocol::messages::find_coordinator_response::Coordinator;
use kafka_protocol::messages::{self, FindCoordinatorRequest, FindCoordinatorResponse};
use kafka_protocol::protocol::StrBytes;

use super::{ErrorCode, RequestContext};
use crate::cluster::{AdminError, MetadataImage};
use crate::coordinators::partition_of;
use crate::groups::{self, OFFSETS_TOPIC};
use crate::transactions::{self, TRANSACTIONS_TOPIC};

/// Keys that name groups; those of transactions are 1, of share groups 2.
const GROUPS: i8 = 0;
const TRANSACTIONS: i8 = 1;

/// Where a coordinator is, or why that cannot be told.
type Found = Result<Place, (ErrorCode, String)>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    broker: BrokerId,
    host: StrBytes,
    port: i32,
}

pub(crate) async fn handle(context: &RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let keys = if context.version >= 4 { request.coordinator_keys.clone() } else { vec![request.key.clone()] };
    let topic = match request.key_type {
        GROUPS => made(groups::make_topic(&context.broker).await, OFFSETS_TOPIC),
        TRANSACTIONS => made(transactions::make_topic(&context.broker).await, TRANSACTIONS_TOPIC),
        other => Err((ErrorCode::InvalidRequest, format!("unknown type of coordinator {other}"))),
    };
    let image = context.broker.cluster.image();
    let found = keys.into_iter().map(|key| {
        let found = topic.clone().and_then(|topic| find(&image, topic, &key));
        (key, found)
    });
    answer(found, context.version)
}

fn made(made: Result<(), AdminError>, topic: &'static str) -> Result<&'static str, (ErrorCode, String)> {
    made.map(|()| topic).map_err(|error| (ErrorCode::CoordinatorNotAvailable, error.to_string()))
}

fn find(image: &MetadataImage, topic: &str, key: &str) -> Found {
    let not_yet = |why: &str| (ErrorCode::CoordinatorNotAvailable, why.to_owned());
    let topic = image.topic(topic).ok_or_else(|| not_yet("there is no topic for coordinators yet"))?;
    let partition = topic.partition(partition_of(key, topic.partitions.len()));
    let leader = partition.and_then(|partition| partition.state.value.leader);
    let leader = leader.and_then(|leader| image.brokers.get(&leader)).ok_or_else(|| not_yet("it has no leader now"))?;
    Ok(Place { broker: leader.id, host: StrBytes::from_string(leader.host.clone()), port: leader.port.into() })
}

fn answer(found: impl Iterator<Item = (StrBytes, Found)>, version: i16) -> FindCoordinatorResponse {
    let coordinator = |(key, found): (StrBytes, Found)| {
        let one = Coordinator::default().with_key(key);
        match found {
            Ok(Place { broker, host, port }) => one
                .with_node_id(messages::BrokerId(broker.0))
                .with_host(host)
                .with_port(port)
                // What Kafka says where there is no error.
                .with_error_message(Some(StrBytes::from_static_str(if version < 4 { "NONE" } else { "" }))),
            Err((code, message)) => one
                .with_node_id(messages::BrokerId(-1))
                .with_port(-1)
                .with_error_code(code.number())
                .with_error_message(Some(super::told(message))),
        }
    };
    let mut coordinators = found.map(coordinator);
    if version >= 4 {
        return FindCoordinatorResponse::default().with_coordinators(coordinators.collect());
    }
    let one = coordinators.next().unwrap_or_default();
    let response = FindCoordinatorResponse::default()
        .with_error_code(one.error_code)
        .with_node_id(one.node_id)
        .with_host(one.host)
        .with_port(one.port);
    if version >= 1 { response.with_error_message(one.error_message) } else { response }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::{encodes, image};

    #[test]
    fn every_version_names_the_leader_of_the_groups_partition_or_says_why_not() {
        let mut there = image();
        let books = there.topic("books").unwrap().clone();
        let mut offsets = (*books).clone();
        offsets.name = OFFSETS_TOPIC.into();
        offsets.id = highwater_storage::TopicId([9; 16]);
        there.insert(std::sync::Arc::new(offsets));
        // Of three partitions the first is led by broker 1, the second by nobody.
        let (led, leaderless) = ("a", "b");
        assert_eq!((partition_of("c", 3), partition_of("b", 3)), (0, 2));
        let at = |group: &str| find(&there, OFFSETS_TOPIC, group);
        assert_eq!(at("c").unwrap().broker, BrokerId(1));
        assert_eq!(at(led).unwrap_err().0, ErrorCode::CoordinatorNotAvailable, "97 % 3 is 1, which nobody leads");
        assert_eq!(at(leaderless).unwrap_err().0, ErrorCode::CoordinatorNotAvailable, "its leader is dead");
        // Consumers of old may commit without a group's name.
        assert_eq!(at("").unwrap().broker, BrokerId(1));
        assert_eq!(find(&image(), OFFSETS_TOPIC, "c").unwrap_err().0, ErrorCode::CoordinatorNotAvailable);
        let keys = ["c", "a"].map(StrBytes::from_static_str);
        for version in 0..4 {
            for (key, code, node) in [("c", 0, 1), ("a", 15, -1)] {
                let found = [(StrBytes::from_static_str(key), at(key))];
                let response = answer(found.into_iter(), version);
                assert_eq!((response.error_code, response.node_id.0), (code, node));
                assert_eq!(response.port == -1, code != 0);
                encodes(super::super::ApiKey::FindCoordinator, &response, version);
            }
        }
        for version in 4..=6 {
            let response = answer(keys.iter().map(|key| (key.clone(), at(key))), version);
            let codes: Vec<_> = response.coordinators.iter().map(|one| (one.key.to_string(), one.error_code)).collect();
            assert_eq!(codes, [("c".to_owned(), 0), ("a".to_owned(), 15)]);
            assert_eq!((response.coordinators[0].host.as_str(), response.coordinators[0].port), ("one", 9091));
            encodes(super::super::ApiKey::FindCoordinator, &response, version);
        }
    }
}
