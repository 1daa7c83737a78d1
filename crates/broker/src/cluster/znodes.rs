//! Paths and values of the coordination store: Kafka's znodes, each encoder next to its parser.
//!
//! Parsers take what older versions of Kafka wrote and ignore fields they do not know, as Kafka's do. What they refuse
//! is named with its path: a value in the store is untrusted like any other input.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, PublishedEnd, Reassignment};
use highwater_storage::{LeaderEpoch, Offset, TopicId, TopicPartition};
use serde_json::{Map, Value, json};

use super::{BrokerInfo, ConfigKind};

/// Where live brokers register.
pub const BROKER_IDS: &str = "/brokers/ids";
/// The topics.
pub const TOPICS: &str = "/brokers/topics";
/// The configs that were set for topics.
pub const TOPIC_CONFIGS: &str = "/config/topics";
/// Who is controller.
pub const CONTROLLER: &str = "/controller";
/// How many controllers there have been: the fencing token.
pub const CONTROLLER_EPOCH: &str = "/controller_epoch";
/// The cluster's id.
pub const CLUSTER_ID: &str = "/cluster/id";
/// The last block of producer ids that was given out.
pub const PRODUCER_ID_BLOCK: &str = "/latest_producer_id_block";

/// Where Kafka's tools of the ZooKeeper age say which partitions are to be led by their preferred replicas.
pub const PREFERRED_ELECTION: &str = "/admin/preferred_replica_election";
/// Where such tools say on which replicas partitions are to end up.
pub const REASSIGN_PARTITIONS: &str = "/admin/reassign_partitions";

/// The nodes that are there before anything else, parents first.
pub const ROOTS: [&str; 20] = [
    "/admin",
    "/brokers",
    BROKER_IDS,
    TOPICS,
    "/config",
    TOPIC_CONFIGS,
    "/config/brokers",
    "/config/client-metrics",
    "/config/clients",
    "/config/groups",
    "/config/ips",
    "/config/user-clients",
    "/config/users",
    "/cluster",
    OFFLINE_REPLICAS,
    "/highwater",
    PUBLISHED_ENDS,
    "/highwater/lives",
    TOPIC_IDS,
    LEAVING_BROKERS,
];

/// More partitions of one topic are refused: a hostile or mistaken count must not make a node of megabytes.
pub const PARTITIONS_MAX: i32 = 50_000;

/// Where replicas whose log has failed are announced, one ephemeral node each. Ours: Kafka tells its controller by
/// `/log_dir_event_notification`, which names a broker and leaves it to ask.
pub const OFFLINE_REPLICAS: &str = "/offline_replicas";

/// Where replicas that stopped uncleanly say how far their logs go while nobody leads, one ephemeral node each. Ours: Kafka
/// elects one of them without asking.
pub const PUBLISHED_ENDS: &str = "/highwater/ends";

/// A node for each topic that there is, named by its id. Ours: where the versions of each node begin at 0, a topic that was
/// made again under its name has the same ones as before, and this tells them apart.
pub const TOPIC_IDS: &str = "/highwater/topics";

/// Where brokers say that they are about to stop, one ephemeral node each, named by the broker's number. Ours: Kafka's broker
/// asks the controller by a request (ControlledShutdown), a second channel beside the store. Whoever becomes controller
/// meanwhile finds a node here, and it goes with the session that ends.
pub const LEAVING_BROKERS: &str = "/highwater/leaving";

/// A value that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store's node {path} cannot be understood: {what}")]
pub struct BadNode {
    /// Which node.
    pub path: String,
    /// What is wrong with it.
    pub what: String,
}

/// `/brokers/ids/<id>`
pub fn broker_path(id: BrokerId) -> String {
    format!("{BROKER_IDS}/{id}")
}

/// `/highwater/lives/<id>`: outlives sessions and is written with each registration, so that its version tells one life
/// of a broker from the next. The registration's own does not where versions begin at 0 in each node.
pub fn life_path(id: BrokerId) -> String {
    format!("/highwater/lives/{id}")
}

/// `/highwater/leaving/<id>`
pub fn leaving_path(id: BrokerId) -> String {
    format!("{LEAVING_BROKERS}/{id}")
}

/// `/brokers/topics/<topic>`
pub fn topic_path(topic: &str) -> String {
    format!("{TOPICS}/{topic}")
}

/// `/highwater/topics/<topic id>`; `None` for a topic that a Kafka too old for ids has made.
pub fn topic_id_path(id: TopicId) -> Option<String> {
    (id != TopicId::ZERO).then(|| format!("{TOPIC_IDS}/{id}"))
}

/// `/brokers/topics/<topic>/partitions`
pub fn partitions_path(topic: &str) -> String {
    format!("{TOPICS}/{topic}/partitions")
}

/// `/brokers/topics/<topic>/partitions/<partition>`
pub fn partition_path(topic: &str, partition: i32) -> String {
    format!("{TOPICS}/{topic}/partitions/{partition}")
}

/// `/brokers/topics/<topic>/partitions/<partition>/state`
pub fn state_path(topic: &str, partition: i32) -> String {
    format!("{TOPICS}/{topic}/partitions/{partition}/state")
}

/// `/config/topics/<topic>`
pub fn topic_config_path(topic: &str) -> String {
    format!("{TOPIC_CONFIGS}/{topic}")
}

/// `/config/<kind>/<name>`, the name with `%` and two digits in the place of whatever a path may not have; without a name that
/// of all that have none of their own.
pub fn config_path(kind: ConfigKind, name: Option<&str>) -> String {
    format!("/config/{}/{}", kind.directory(), name.map_or_else(|| DEFAULT_CONFIG.to_owned(), encode_name))
}

/// The name of the node for all.
const DEFAULT_CONFIG: &str = "<default>";

fn encode_name(name: &str) -> String {
    let is_dots = name.bytes().all(|byte| byte == b'.');
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'.' if is_dots => encoded.push_str("%2E"),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// What a node is named for; `None` for all, and an error for what no name encodes to.
pub fn parse_config_name(node: &str) -> Result<Option<String>, BadNode> {
    if node == DEFAULT_CONFIG {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(node.len());
    let mut rest = node.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'%').then(|| after.get(..2).and_then(|two| std::str::from_utf8(two).ok())).flatten();
        let (byte, after) = match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(encoded) => (encoded, after.get(2..).unwrap_or_default()),
            None => (byte, after),
        };
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).map(Some).map_err(|_| bad(node, "its name is no text"))
}

/// A registration (version 5).
pub fn encode_broker(host: &str, port: u16, rack: Option<&str>, timestamp_ms: i64) -> Bytes {
    let listener = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut value = json!({
        "version": 5,
        "host": host,
        "port": port,
        "endpoints": [format!("PLAINTEXT://{listener}")],
        "jmx_port": -1,
        "timestamp": timestamp_ms.to_string(),
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "features": {},
    });
    if let (Some(rack), Some(fields)) = (rack, value.as_object_mut()) {
        fields.insert("rack".to_owned(), json!(rack));
    }
    to_bytes(&value)
}

/// A registration of any version. From version 2 on, `host` and `port` may be null and only `endpoints` counts
/// (a broker without a PLAINTEXT listener); the first endpoint is taken then.
pub fn parse_broker(id: BrokerId, data: &[u8], created: i64) -> Result<BrokerInfo, BadNode> {
    let path = broker_path(id);
    let fields = object(&path, data)?;
    let direct = (|| Some((fields.get("host")?.as_str()?.to_owned(), port(fields.get("port")?.as_u64()?)?)))();
    let endpoint = || {
        let endpoint = fields.get("endpoints")?.as_array()?.first()?.as_str()?;
        let (host, number) = endpoint.split_once("://")?.1.rsplit_once(':')?;
        Some((host.trim_start_matches('[').trim_end_matches(']').to_owned(), port(number.parse().ok()?)?))
    };
    let (host, port) = direct
        .filter(|(host, _)| !host.is_empty())
        .or_else(endpoint)
        .ok_or_else(|| bad(&path, "it names no host and port"))?;
    let rack = fields.get("rack").and_then(Value::as_str).map(str::to_owned);
    Ok(BrokerInfo { id, epoch: BrokerEpoch(created), host, port, rack })
}

fn port(number: u64) -> Option<u16> {
    u16::try_from(number).ok().filter(|&port| port != 0)
}

/// A topic's partitions, as its node has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicNode {
    /// Its identity; [`TopicId::ZERO`] if a Kafka before 2.8 made it.
    pub id: TopicId,
    /// The replicas of each partition, the preferred leader first.
    pub assignment: Vec<Vec<BrokerId>>,
    /// What is to change of that, by partition; of those of which nothing is to change there is none.
    pub reassignments: BTreeMap<i32, Reassignment>,
}

impl TopicNode {
    /// A topic of which nothing is to change.
    pub fn new(id: TopicId, assignment: Vec<Vec<BrokerId>>) -> Self {
        Self { id, assignment, reassignments: BTreeMap::new() }
    }
}

/// A topic (version 3).
pub fn encode_topic(topic: &TopicNode) -> Bytes {
    let partitions: Map<String, Value> = topic
        .assignment
        .iter()
        .enumerate()
        .map(|(partition, replicas)| (partition.to_string(), replicas.iter().map(|id| json!(id.0)).collect()))
        .collect();
    let changes = |of: fn(&Reassignment) -> &Vec<BrokerId>| -> Map<String, Value> {
        let some = topic.reassignments.iter().filter(|(_, change)| !of(change).is_empty());
        some.map(|(number, change)| (number.to_string(), of(change).iter().map(|id| json!(id.0)).collect())).collect()
    };
    let mut value = json!({
        "version": 3,
        "partitions": partitions,
        "adding_replicas": changes(|change| &change.adding),
        "removing_replicas": changes(|change| &change.removing),
    });
    if let (true, Some(fields)) = (topic.id != TopicId::ZERO, value.as_object_mut()) {
        fields.insert("topic_id".to_owned(), json!(topic.id.to_string()));
    }
    to_bytes(&value)
}

/// A topic of any version.
pub fn parse_topic(name: &str, data: &[u8]) -> Result<TopicNode, BadNode> {
    let path = topic_path(name);
    let fields = object(&path, data)?;
    let id = match fields.get("topic_id") {
        None | Some(Value::Null) => TopicId::ZERO,
        Some(id) => id.as_str().and_then(|id| id.parse().ok()).ok_or_else(|| bad(&path, "topic_id is no topic id"))?,
    };
    let partitions =
        fields.get("partitions").and_then(Value::as_object).ok_or_else(|| bad(&path, "it has no partitions"))?;
    let mut assignment = BTreeMap::new();
    for (number, replicas) in partitions {
        let number: i32 = number.parse().map_err(|_| bad(&path, &format!("{number:?} is no partition")))?;
        let replicas = brokers(replicas)
            .filter(|replicas| !replicas.is_empty())
            .ok_or_else(|| bad(&path, &format!("partition {number} has no list of replicas")))?;
        assignment.insert(number, replicas);
    }
    let contiguous = assignment.keys().copied().eq(0..i32::try_from(assignment.len()).unwrap_or(i32::MAX));
    if !contiguous || assignment.is_empty() {
        return Err(bad(&path, "its partitions are not numbered from 0 on"));
    }
    let change = |name: &str, number: i32, replicas: &[BrokerId]| {
        let listed = fields.get(name).and_then(|of| of.get(number.to_string())).and_then(brokers).unwrap_or_default();
        listed.into_iter().filter(|id| replicas.contains(id)).collect::<Vec<_>>()
    };
    let reassignments = assignment.iter().map(|(&number, replicas)| {
        let adding = change("adding_replicas", number, replicas);
        (number, Reassignment { adding, removing: change("removing_replicas", number, replicas) })
    });
    let reassignments = reassignments.filter(|(_, change)| change.is_under_way()).collect();
    Ok(TopicNode { id, assignment: assignment.into_values().collect(), reassignments })
}

/// A partition's state (version 1).
pub fn encode_state(state: &PartitionState) -> Bytes {
    let mut value = json!({
        "version": 1,
        "leader": state.leader.map_or(-1, |leader| leader.0),
        "leader_epoch": state.leader_epoch.0,
        "controller_epoch": state.controller_epoch,
        "isr": state.isr.iter().map(|id| id.0).collect::<Vec<_>>(),
    });
    if let (true, Some(fields)) = (state.recovering, value.as_object_mut()) {
        fields.insert("leader_recovery_state".to_owned(), json!(1));
    }
    if let (false, Some(fields)) = (state.doubtful.is_empty(), value.as_object_mut()) {
        fields.insert("doubtful".to_owned(), json!(state.doubtful.iter().map(|id| id.0).collect::<Vec<_>>()));
    }
    to_bytes(&value)
}

/// A partition's state.
pub fn parse_state(topic: &str, partition: i32, data: &[u8]) -> Result<PartitionState, BadNode> {
    let path = state_path(topic, partition);
    let fields = object(&path, data)?;
    let number = |name: &str| {
        let number = fields.get(name).and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok());
        number.ok_or_else(|| bad(&path, &format!("{name} is no number")))
    };
    let leader = number("leader")?;
    Ok(PartitionState {
        leader: (leader >= 0).then_some(BrokerId(leader)),
        leader_epoch: LeaderEpoch(number("leader_epoch")?),
        controller_epoch: number("controller_epoch")?,
        isr: fields.get("isr").and_then(brokers).ok_or_else(|| bad(&path, "isr is no list of brokers"))?,
        // Ours; a program that does not know it writes states without.
        doubtful: fields.get("doubtful").and_then(brokers).unwrap_or_default(),
        recovering: fields.get("leader_recovery_state").and_then(Value::as_i64) == Some(1),
    })
}

/// A topic's configs.
pub fn encode_config(config: &BTreeMap<String, String>) -> Bytes {
    to_bytes(&json!({"version": 1, "config": config}))
}

/// A topic's configs.
pub fn parse_config(topic: &str, data: &[u8]) -> Result<BTreeMap<String, String>, BadNode> {
    parse_config_at(&topic_config_path(topic), data)
}

/// The configs that a node holds. Values are strings; a number or a boolean that some tool wrote is taken as its text.
pub fn parse_config_at(path: &str, data: &[u8]) -> Result<BTreeMap<String, String>, BadNode> {
    if data.is_empty() {
        return Ok(BTreeMap::new());
    }
    let fields = object(path, data)?;
    let config = fields.get("config").and_then(Value::as_object).ok_or_else(|| bad(path, "it has no config"))?;
    config
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            Value::Number(_) | Value::Bool(_) => Ok((key.clone(), value.to_string())),
            _ => Err(bad(path, &format!("the value of {key} is no text"))),
        })
        .collect()
}

/// Who is controller (version 2).
pub fn encode_controller(id: BrokerId, timestamp_ms: i64) -> Bytes {
    to_bytes(&json!({
        "version": 2,
        "brokerid": id.0,
        "timestamp": timestamp_ms.to_string(),
        "kraftControllerEpoch": -1,
    }))
}

/// Who is controller.
pub fn parse_controller(data: &[u8]) -> Result<BrokerId, BadNode> {
    let id = object(CONTROLLER, data)?.get("brokerid").and_then(broker);
    id.ok_or_else(|| bad(CONTROLLER, "brokerid is no broker"))
}

/// The number of controllers so far: decimal text, no JSON.
pub fn encode_controller_epoch(epoch: i32) -> Bytes {
    epoch.to_string().into_bytes().into()
}

/// The number of controllers so far.
pub fn parse_controller_epoch(data: &[u8]) -> Result<i32, BadNode> {
    let epoch = std::str::from_utf8(data).ok().and_then(|text| text.trim().parse().ok());
    epoch.ok_or_else(|| bad(CONTROLLER_EPOCH, "it is no number"))
}

/// The cluster's id.
pub fn encode_cluster_id(id: &str) -> Bytes {
    to_bytes(&json!({"version": "1", "id": id}))
}

/// The cluster's id.
pub fn parse_cluster_id(data: &[u8]) -> Result<String, BadNode> {
    let id = object(CLUSTER_ID, data)?.get("id").and_then(Value::as_str).map(str::to_owned);
    id.ok_or_else(|| bad(CLUSTER_ID, "it has no id"))
}

/// A block of producer ids, both ends in it.
pub fn encode_producer_id_block(broker: BrokerId, first: i64, last: i64) -> Bytes {
    to_bytes(&json!({
        "version": 1,
        "broker": broker.0,
        "block_start": first.to_string(),
        "block_end": last.to_string(),
    }))
}

/// The last id of the block that was given out.
pub fn parse_producer_id_block(data: &[u8]) -> Result<i64, BadNode> {
    let fields = object(PRODUCER_ID_BLOCK, data)?;
    let last = fields.get("block_end").and_then(|end| match end {
        Value::String(text) => text.parse().ok(),
        other => other.as_i64(),
    });
    last.filter(|&last| last >= 0).ok_or_else(|| bad(PRODUCER_ID_BLOCK, "block_end is no number"))
}

/// `/offline_replicas/<broker>.<partition>.<topic>`: the topic comes last, as it may hold dots.
pub fn offline_path(broker: BrokerId, topic: &str, partition: i32) -> String {
    format!("{OFFLINE_REPLICAS}/{broker}.{partition}.{topic}")
}

/// `/highwater/ends/<broker>.<partition>.<topic>`
pub fn end_path(broker: BrokerId, topic: &str, partition: i32) -> String {
    format!("{PUBLISHED_ENDS}/{broker}.{partition}.{topic}")
}

/// Broker, topic and partition of the name of an announcement or a published end.
pub fn parse_replica_name(name: &str) -> Option<(BrokerId, &str, i32)> {
    let (broker, rest) = name.split_once('.')?;
    let (partition, topic) = rest.split_once('.')?;
    Some((BrokerId(broker.parse().ok()?), topic, partition.parse().ok()?))
}

/// What failed: the topic's id and the leadership in which it did, so that the announcement dies with both.
pub fn encode_offline(id: TopicId, leader_epoch: LeaderEpoch) -> Bytes {
    to_bytes(&json!({"version": 1, "topic_id": id.to_string(), "leader_epoch": leader_epoch.0}))
}

/// The topic's id and the leadership of an announcement.
pub fn parse_offline(name: &str, data: &[u8]) -> Result<(TopicId, LeaderEpoch), BadNode> {
    let path = format!("{OFFLINE_REPLICAS}/{name}");
    let fields = object(&path, data)?;
    let id = fields.get("topic_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
    let epoch = fields.get("leader_epoch").and_then(Value::as_i64).and_then(|epoch| i32::try_from(epoch).ok());
    id.zip(epoch).map(|(id, epoch)| (id, LeaderEpoch(epoch))).ok_or_else(|| bad(&path, "topic_id or leader_epoch"))
}

/// How far a log goes, of which topic by its id.
pub fn encode_end(id: TopicId, end: &PublishedEnd) -> Bytes {
    to_bytes(&json!({
        "version": 1,
        "topic_id": id.to_string(),
        "broker_epoch": end.life.0,
        "leader_epoch": end.leader_epoch.0,
        "last_epoch": end.last_epoch.0,
        "log_end": end.log_end.0,
    }))
}

/// How far a log goes, of which topic by its id.
pub fn parse_end(name: &str, data: &[u8]) -> Result<(TopicId, PublishedEnd), BadNode> {
    let path = format!("{PUBLISHED_ENDS}/{name}");
    let fields = object(&path, data)?;
    let number = |name: &str| {
        fields.get(name).and_then(Value::as_i64).ok_or_else(|| bad(&path, &format!("{name} is no number")))
    };
    let epoch = |name: &str| {
        let epoch = i32::try_from(number(name)?).map_err(|_| bad(&path, &format!("{name} is no epoch")))?;
        Ok(LeaderEpoch(epoch))
    };
    let id = fields.get("topic_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
    let end = PublishedEnd {
        life: BrokerEpoch(number("broker_epoch")?),
        leader_epoch: epoch("leader_epoch")?,
        last_epoch: epoch("last_epoch")?,
        log_end: Offset(number("log_end")?),
    };
    Ok((id.ok_or_else(|| bad(&path, "topic_id is no topic id"))?, end))
}

/// The partitions whose preferred replicas are to lead.
pub fn parse_preferred_election(data: &[u8]) -> Result<Vec<TopicPartition>, BadNode> {
    named_partitions(PREFERRED_ELECTION, data)?.into_iter().map(|(of, _)| Ok(of)).collect()
}

/// The replicas that partitions are to end up on. Of two for one partition the last counts.
pub fn parse_reassign_partitions(data: &[u8]) -> Result<BTreeMap<TopicPartition, Vec<BrokerId>>, BadNode> {
    let path = REASSIGN_PARTITIONS;
    let target = |(of, fields): (TopicPartition, Value)| {
        let replicas = fields.get("replicas").and_then(brokers);
        let replicas = replicas.ok_or_else(|| bad(path, &format!("{of} has no list of distinct replicas")))?;
        Ok((of, replicas))
    };
    named_partitions(path, data)?.into_iter().map(target).collect()
}

/// The same (version 1).
pub fn encode_reassign_partitions(moves: &BTreeMap<TopicPartition, Vec<BrokerId>>) -> Bytes {
    let partitions: Vec<Value> = moves
        .iter()
        .map(|(of, replicas)| {
            let replicas: Vec<i32> = replicas.iter().map(|id| id.0).collect();
            json!({"topic": &*of.topic, "partition": of.partition, "replicas": replicas})
        })
        .collect();
    to_bytes(&json!({"version": 1, "partitions": partitions}))
}

/// The entries of a list of partitions, with what else each says.
fn named_partitions(path: &str, data: &[u8]) -> Result<Vec<(TopicPartition, Value)>, BadNode> {
    let mut fields = object(path, data)?;
    let Some(Value::Array(partitions)) = fields.remove("partitions") else {
        return Err(bad(path, "it has no list of partitions"));
    };
    let named = |entry: Value| {
        let topic = entry.get("topic").and_then(Value::as_str);
        let number = entry.get("partition").and_then(Value::as_i64).and_then(|number| i32::try_from(number).ok());
        let of = topic.zip(number).map(|(topic, number)| TopicPartition::new(topic, number));
        of.map(|of| (of, entry)).ok_or_else(|| bad(path, "an entry names no partition"))
    };
    partitions.into_iter().map(named).collect()
}

fn to_bytes(value: &Value) -> Bytes {
    value.to_string().into_bytes().into()
}

fn bad(path: &str, what: &str) -> BadNode {
    BadNode { path: path.to_owned(), what: what.to_owned() }
}

fn object(path: &str, data: &[u8]) -> Result<Map<String, Value>, BadNode> {
    match serde_json::from_slice(data) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(bad(path, "it is no JSON object")),
        Err(error) => Err(bad(path, &error.to_string())),
    }
}

fn broker(value: &Value) -> Option<BrokerId> {
    value.as_i64().and_then(|id| i32::try_from(id).ok()).filter(|&id| id >= 0).map(BrokerId)
}

/// Distinct brokers in the order given.
fn brokers(value: &Value) -> Option<Vec<BrokerId>> {
    let ids: Vec<BrokerId> = value.as_array()?.iter().map(broker).collect::<Option<_>>()?;
    (ids.iter().collect::<BTreeSet<_>>().len() == ids.len()).then_some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> PartitionState {
        PartitionState {
            leader: Some(BrokerId(2)),
            leader_epoch: LeaderEpoch(7),
            isr: vec![BrokerId(2), BrokerId(1)],
            controller_epoch: 3,
            doubtful: Vec::new(),
            recovering: false,
        }
    }

    #[test]
    fn what_we_write_is_what_kafka_writes() {
        // Key order does not matter to JSON, and serde_json sorts; Kafka's own texts are below.
        assert_eq!(
            encode_state(&state()),
            r#"{"controller_epoch":3,"isr":[2,1],"leader":2,"leader_epoch":7,"version":1}"#
        );
        let topic = TopicNode::new(TopicId::ZERO, vec![vec![BrokerId(1), BrokerId(2)]]);
        assert_eq!(
            encode_topic(&topic),
            r#"{"adding_replicas":{},"partitions":{"0":[1,2]},"removing_replicas":{},"version":3}"#
        );
        assert_eq!(encode_controller_epoch(12), "12");
        assert_eq!(
            encode_producer_id_block(BrokerId(4), 1000, 1999),
            r#"{"block_end":"1999","block_start":"1000","broker":4,"version":1}"#
        );
        assert_eq!(encode_cluster_id("abc"), r#"{"id":"abc","version":"1"}"#);
    }

    #[test]
    fn every_encoder_agrees_with_its_parser() {
        let end = PublishedEnd {
            life: BrokerEpoch(1 << 40),
            leader_epoch: LeaderEpoch(7),
            last_epoch: LeaderEpoch::NONE,
            log_end: Offset(1 << 41),
        };
        let id = TopicId([3; 16]);
        assert_eq!(parse_end("1.0.t", &encode_end(id, &end)), Ok((id, end)));
        assert!(parse_end("1.0.t", br#"{"topic_id": "AAAAAAAAAAAAAAAAAAAAAA", "broker_epoch": 1}"#).is_err());

        let mut recovering = state();
        (recovering.leader, recovering.recovering) = (None, true);
        let doubtful = PartitionState { doubtful: vec![BrokerId(1)], ..state() };
        for state in [state(), recovering, doubtful] {
            assert_eq!(parse_state("t", 0, &encode_state(&state)), Ok(state));
        }
        let assignment = (0..12).map(|partition| vec![BrokerId(partition), BrokerId(50)]).collect();
        let mut topic = TopicNode::new(TopicId([9; 16]), assignment);
        let (adding, removing) = (vec![BrokerId(50)], vec![BrokerId(11)]);
        topic.reassignments.insert(11, Reassignment { adding: adding.clone(), removing });
        topic.reassignments.insert(3, Reassignment { adding, removing: Vec::new() });
        assert_eq!(parse_topic("t", &encode_topic(&topic)), Ok(topic));
        // Who is no replica cannot come or go.
        let foreign = br#"{"partitions":{"0":[1,2]},"adding_replicas":{"0":[2,7]},"removing_replicas":{"5":[1]}}"#;
        let change = Reassignment { adding: vec![BrokerId(2)], removing: Vec::new() };
        assert_eq!(parse_topic("t", foreign).unwrap().reassignments, BTreeMap::from([(0, change)]));
        for (host, rack) in [("h", None), ("::1", Some("r1"))] {
            let broker = parse_broker(BrokerId(3), &encode_broker(host, 9092, rack, 5), 77).unwrap();
            let expected = BrokerInfo {
                id: BrokerId(3),
                epoch: BrokerEpoch(77),
                host: host.into(),
                port: 9092,
                rack: rack.map(str::to_owned),
            };
            assert_eq!(broker, expected);
        }
        let config = BTreeMap::from([("retention.ms".to_owned(), "1".to_owned())]);
        assert_eq!(parse_config("t", &encode_config(&config)), Ok(config));
        assert_eq!(parse_controller(&encode_controller(BrokerId(5), 1)), Ok(BrokerId(5)));
        assert_eq!(parse_controller_epoch(&encode_controller_epoch(8)), Ok(8));
        assert_eq!(parse_cluster_id(&encode_cluster_id("x")), Ok("x".to_owned()));
        assert_eq!(parse_producer_id_block(&encode_producer_id_block(BrokerId(1), 0, 999)), Ok(999));

        let moves = BTreeMap::from([
            (TopicPartition::new("t", 0), vec![BrokerId(2), BrokerId(1)]),
            (TopicPartition::new("t", 7), vec![BrokerId(3)]),
        ]);
        assert_eq!(parse_reassign_partitions(&encode_reassign_partitions(&moves)), Ok(moves.clone()));
        let named = parse_preferred_election(&encode_reassign_partitions(&moves));
        assert_eq!(named, Ok(moves.into_keys().collect()));

        let path = offline_path(BrokerId(1), "a.b-1", 4);
        let name = path.rsplit('/').next().unwrap();
        assert_eq!(parse_replica_name(name), Some((BrokerId(1), "a.b-1", 4)));
        let offline = encode_offline(TopicId([3; 16]), LeaderEpoch(2));
        assert_eq!(parse_offline(name, &offline), Ok((TopicId([3; 16]), LeaderEpoch(2))));
    }

    #[test]
    fn older_and_newer_kafkas_are_understood() {
        let v1 = br#"{"jmx_port":-1,"timestamp":"1","host":"old","version":1,"port":9092}"#;
        assert_eq!(parse_broker(BrokerId(1), v1, 1).unwrap().host, "old");
        let tls_only = br#"{"listener_security_protocol_map":{"SSL":"SSL"},"endpoints":["SSL://[::1]:9093"],
            "rack":"a","jmx_port":-1,"host":null,"timestamp":"1","port":-1,"version":4}"#;
        let broker = parse_broker(BrokerId(1), tls_only, 1).unwrap();
        assert_eq!((broker.host.as_str(), broker.port, broker.rack.as_deref()), ("::1", 9093, Some("a")));

        assert_eq!(parse_topic("t", br#"{"version":1,"partitions":{"1":[2],"0":[1]}}"#).unwrap().assignment.len(), 2);
        let v1 = br#"{"version":1,"brokerid":0,"timestamp":"1"}"#;
        assert_eq!(parse_controller(v1), Ok(BrokerId(0)));
        assert_eq!(parse_config("t", br#"{"version":1,"config":{"a":5,"b":true}}"#).unwrap()["b"], "true");
        assert_eq!(parse_config("t", b""), Ok(BTreeMap::new()));
        let future = br#"{"version":9,"leader":-1,"leader_epoch":0,"controller_epoch":1,"isr":[1],"new":{}}"#;
        assert_eq!(parse_state("t", 0, future).unwrap().leader, None);
    }

    #[test]
    fn nonsense_is_refused_with_its_path() {
        for topic in [
            "",
            "[]",
            "{}",
            r#"{"partitions":{}}"#,
            r#"{"partitions":{"1":[1]}}"#,
            r#"{"partitions":{"0":[]}}"#,
            r#"{"partitions":{"0":[1,1]}}"#,
            r#"{"partitions":{"0":[-1]}}"#,
            r#"{"partitions":{"x":[1]}}"#,
            r#"{"partitions":{"0":[1]},"topic_id":"short"}"#,
        ] {
            assert_eq!(parse_topic("t", topic.as_bytes()).unwrap_err().path, "/brokers/topics/t", "{topic}");
        }
        for state in ["{}", r#"{"leader":1,"leader_epoch":99999999999,"controller_epoch":1,"isr":[]}"#] {
            assert!(parse_state("t", 3, state.as_bytes()).is_err(), "{state}");
        }
        for broker in ["{}", r#"{"host":"h","port":0}"#, r#"{"host":"h","port":70000}"#, r#"{"endpoints":["x"]}"#] {
            assert!(parse_broker(BrokerId(1), broker.as_bytes(), 1).is_err(), "{broker}");
        }
        for moves in [
            "{}",
            r#"{"partitions":7}"#,
            r#"{"partitions":[{"topic":"t"}]}"#,
            r#"{"partitions":[{"partition":0,"replicas":[1]}]}"#,
            r#"{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}"#,
        ] {
            assert_eq!(parse_reassign_partitions(moves.as_bytes()).unwrap_err().path, REASSIGN_PARTITIONS, "{moves}");
        }
        assert!(parse_preferred_election(br#"{"partitions":[7]}"#).is_err());
        assert!(parse_controller_epoch(b"one").is_err());
        assert!(parse_producer_id_block(br#"{"block_end":"-1"}"#).is_err());
        assert_eq!(parse_replica_name("1.x"), None);
    }
}
