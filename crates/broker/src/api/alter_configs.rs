//! IncrementalAlterConfigs (44) and AlterConfigs (33): settings of topics, brokers, groups and clients' metrics.

use std::collections::{BTreeMap, BTreeSet};

use kafka_protocol::messages::{
    AlterConfigsRequest, AlterConfigsResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    alter_configs_response, incremental_alter_configs_response,
};
use kafka_protocol::protocol::StrBytes;

use super::config_resources::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, ROOT_LOGGER, TOPIC};
use super::config_values::can_change;
use super::{ErrorCode, RequestContext};
use crate::cluster::{AdminError, ClusterHandle, ConfigKind, Intent, check_name};
use crate::config::dynamic::{DynamicKey, Effect, Reach};
use crate::config::kafka_defaults::{KAFKA_TOPIC_KEYS, kafka_broker_key};
use crate::config::keys::{BrokerKey, ConfigType};
use crate::config::resources::{self, CLIENT_METRICS_KEYS, GROUP_KEYS, InvalidResource, ResourceKey};
use crate::config::topic_keys::TopicKey;
use crate::config::{BrokerConfig, TopicConfig, is_kafkas};

/// A resource that is not changed.
type Refused = (ErrorCode, String);

/// What is to become of the settings of one resource.
#[derive(Clone, Debug)]
enum Wanted {
    /// These are changed, in this order.
    Changes(Vec<(String, Operation)>),
    /// These are all there are.
    All(BTreeMap<String, String>),
}

/// What is to become of one setting.
#[derive(Clone, Debug)]
enum Operation {
    Set(String),
    Delete,
    /// To a list, what it does not have yet.
    Append(String),
    /// From a list.
    Subtract(String),
}

/// What of the keys of a kind of resource has to be known to change them.
trait Keys: Sync {
    /// How the values of a key look, if it is known.
    fn kind(&self, key: &str) -> Option<ConfigType>;

    /// What a list is that is not set.
    fn default(&self, key: &str) -> String;
}

/// Changes settings one by one.
pub(crate) async fn incremental(
    context: &RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> IncrementalAlterConfigsResponse {
    let resources = request.resources.into_iter().map(|resource| {
        let mut changes = Vec::with_capacity(resource.configs.len());
        let (mut refused, mut seen, mut null) = (None, BTreeSet::new(), Vec::new());
        for config in resource.configs {
            let name = config.name.to_string();
            if !seen.insert(name.clone()) {
                refused = Some((ErrorCode::InvalidRequest, "Error due to duplicate config keys".to_owned()));
            }
            let operation = match (config.config_operation, config.value) {
                (1, _) => Operation::Delete,
                (0, Some(value)) => Operation::Set(value.to_string()),
                (2, Some(value)) => Operation::Append(value.to_string()),
                (3, Some(value)) => Operation::Subtract(value.to_string()),
                (0 | 2 | 3, None) => {
                    null.push(name);
                    continue;
                }
                (other, _) => {
                    let message = format!("Unknown config operation {other} for {name}");
                    refused.get_or_insert((ErrorCode::InvalidRequest, message));
                    continue;
                }
            };
            changes.push((name, operation));
        }
        if !null.is_empty() {
            refused.get_or_insert_with(|| (ErrorCode::InvalidRequest, null_values(&null)));
        }
        let wanted = refused.map_or(Ok(Wanted::Changes(changes)), Err);
        (resource.resource_type, resource.resource_name, wanted)
    });
    let results = alter(context, resources.collect(), request.validate_only).await;
    let response = |(resource_type, name, result): Altered| {
        let (code, message) = told(result);
        incremental_alter_configs_response::AlterConfigsResourceResponse::default()
            .with_resource_type(resource_type)
            .with_resource_name(name)
            .with_error_code(code.number())
            .with_error_message(message)
    };
    IncrementalAlterConfigsResponse::default().with_responses(results.into_iter().map(response).collect())
}

/// Replaces all settings of each resource.
pub(crate) async fn replace(context: &RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse {
    let resources = request.resources.into_iter().map(|resource| {
        let (mut all, mut null, mut twice) = (BTreeMap::new(), Vec::new(), false);
        for config in resource.configs {
            match config.value {
                Some(value) => twice |= all.insert(config.name.to_string(), value.to_string()).is_some(),
                None => null.push(config.name.to_string()),
            }
        }
        let wanted = match (twice, null.is_empty()) {
            (true, _) => Err((ErrorCode::InvalidRequest, "Error due to duplicate config keys".to_owned())),
            (false, false) => Err((ErrorCode::InvalidRequest, null_values(&null))),
            (false, true) if resource.resource_type == BROKER_LOGGER => {
                Err((ErrorCode::InvalidRequest, "Unexpected resource type BROKER_LOGGER.".to_owned()))
            }
            (false, true) => Ok(Wanted::All(all)),
        };
        (resource.resource_type, resource.resource_name, wanted)
    });
    let results = alter(context, resources.collect(), request.validate_only).await;
    let response = |(resource_type, name, result): Altered| {
        let (code, message) = told(result);
        alter_configs_response::AlterConfigsResourceResponse::default()
            .with_resource_type(resource_type)
            .with_resource_name(name)
            .with_error_code(code.number())
            .with_error_message(message)
    };
    AlterConfigsResponse::default().with_responses(results.into_iter().map(response).collect())
}

fn null_values(keys: &[String]) -> String {
    format!("Null value not supported for : {}", keys.join(","))
}

fn told(result: Result<(), Refused>) -> (ErrorCode, Option<StrBytes>) {
    match result {
        Ok(()) => (ErrorCode::None, None),
        Err((code, message)) => (code, Some(super::told(message))),
    }
}

/// A resource with what became of it.
type Altered = (i8, StrBytes, Result<(), Refused>);

/// Answers for each resource on its own: those that cannot be changed keep no other from it.
async fn alter(
    context: &RequestContext,
    resources: Vec<(i8, StrBytes, Result<Wanted, Refused>)>,
    validate_only: bool,
) -> Vec<Altered> {
    let intent = if validate_only { Intent::Validate } else { Intent::Apply };
    let mut named: BTreeMap<(i8, StrBytes), usize> = BTreeMap::new();
    for (resource_type, name, _) in &resources {
        *named.entry((*resource_type, name.clone())).or_default() += 1;
    }
    let mut results = Vec::with_capacity(resources.len());
    for (resource_type, name, wanted) in resources {
        let result = match named.remove(&(resource_type, name.clone())) {
            // It was answered for where it stood first.
            None => continue,
            Some(1) => match wanted {
                Ok(wanted) => alter_one(context, resource_type, &name, &wanted, intent).await,
                Err(refused) => Err(refused),
            },
            Some(_) => Err((ErrorCode::InvalidRequest, "Each resource must appear at most once.".to_owned())),
        };
        results.push((resource_type, name, result));
    }
    results
}

async fn alter_one(
    context: &RequestContext,
    resource_type: i8,
    name: &str,
    wanted: &Wanted,
    intent: Intent,
) -> Result<(), Refused> {
    let (cluster, config) = (&context.broker.cluster, &*context.broker.config);
    match resource_type {
        TOPIC => topic(cluster, config, name, wanted, intent).await,
        BROKER => broker(cluster, config, name, wanted, intent).await,
        BROKER_LOGGER => logger(config, name, wanted),
        GROUP if name.is_empty() => {
            Err((ErrorCode::InvalidRequest, "Default group resources are not allowed.".to_owned()))
        }
        GROUP => {
            let unknown = |key: &str| AdminError::InvalidConfig(format!("Unknown group config name: {key}"));
            let keys = OfResource { keys: GROUP_KEYS, unknown: &unknown, refused: &AdminError::InvalidConfig };
            keys.alter(cluster, ConfigKind::Group, name, wanted, intent).await
        }
        CLIENT_METRICS if name.is_empty() => {
            Err((ErrorCode::InvalidRequest, "Subscription name can't be empty".to_owned()))
        }
        CLIENT_METRICS => {
            let unknown =
                |key: &str| AdminError::InvalidRequest(format!("Unknown client metrics configuration: {key}"));
            // As Kafka has it, each mistake by its code.
            let refused = |message: String| match message.starts_with("Illegal") {
                true => AdminError::InvalidConfig(message),
                false => AdminError::InvalidRequest(message),
            };
            let keys = OfResource { keys: CLIENT_METRICS_KEYS, unknown: &unknown, refused: &refused };
            keys.alter(cluster, ConfigKind::ClientMetrics, name, wanted, intent).await
        }
        other => Err((ErrorCode::InvalidRequest, format!("Unexpected resource type {other}."))),
    }
}

/// What the settings are after a change, and which of them it has set.
fn after(
    wanted: &Wanted,
    before: &BTreeMap<String, String>,
    keys: &dyn Keys,
) -> Result<(BTreeMap<String, String>, BTreeSet<String>), AdminError> {
    let changes = match wanted {
        Wanted::All(all) => return Ok((all.clone(), all.keys().cloned().collect())),
        Wanted::Changes(changes) => changes,
    };
    let (mut after, mut set) = (before.clone(), BTreeSet::new());
    for (key, operation) in changes {
        let value = match operation {
            Operation::Delete => {
                after.remove(key);
                continue;
            }
            Operation::Set(value) => value.clone(),
            Operation::Append(value) | Operation::Subtract(value) => {
                let adds = matches!(operation, Operation::Append(_));
                if keys.kind(key) != Some(ConfigType::List) {
                    let what = if adds { "APPEND" } else { "SUBTRACT" };
                    let message = format!("Can't {what} to key {key} because its type is not LIST.");
                    return Err(AdminError::InvalidConfig(message));
                }
                let there = after.get(key).cloned().unwrap_or_else(|| keys.default(key));
                let mut words: Vec<&str> = words_of(&there).collect();
                for word in words_of(value) {
                    words.retain(|other| adds || *other != word);
                    if adds && !words.contains(&word) {
                        words.push(word);
                    }
                }
                words.join(",")
            }
        };
        after.insert(key.clone(), value);
        set.insert(key.clone());
    }
    Ok((after, set))
}

fn words_of(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

/// The keys of topics, with what holds for those that do not say.
struct OfTopic {
    defaults: TopicConfig,
}

impl Keys for OfTopic {
    fn kind(&self, key: &str) -> Option<ConfigType> {
        let unused = KAFKA_TOPIC_KEYS.iter().find(|(name, ..)| *name == key).map(|&(_, kind, ..)| kind);
        TopicKey::named(key).map(|key| key.kind).or(unused)
    }

    fn default(&self, key: &str) -> String {
        TopicKey::named(key).map_or_else(String::new, |key| (key.show)(&self.defaults))
    }
}

async fn topic(
    cluster: &ClusterHandle,
    config: &BrokerConfig,
    name: &str,
    wanted: &Wanted,
    intent: Intent,
) -> Result<(), Refused> {
    if name.is_empty() {
        return Err((ErrorCode::InvalidRequest, "Default topic resources are not allowed.".to_owned()));
    }
    check_name(name).map_err(refused)?;
    let image = cluster.image();
    let keys = OfTopic { defaults: config.topic_defaults([&image.broker_defaults, &image.broker_config]) };
    let change = |before: &BTreeMap<String, String>| {
        let (after, set) = after(wanted, before, &keys)?;
        let mut new = set.iter().filter_map(|key| after.get_key_value(key));
        let checked = new.try_for_each(|(key, value)| TopicConfig::check_new(key, value));
        let resolved = checked.and_then(|()| TopicConfig::resolve(&keys.defaults, &after));
        resolved.map_err(|error| AdminError::InvalidConfig(error.to_string()))?;
        Ok(after)
    };
    cluster.change_topic_config(name, intent, &change).await.map_err(|error| match error {
        // What no topic could have is told first.
        AdminError::UnknownTopic => match change(&BTreeMap::new()) {
            Ok(_) => (error.code(), format!("The topic '{name}' does not exist.")),
            Err(error) => refused(error),
        },
        error => refused(error),
    })
}

fn refused(error: AdminError) -> Refused {
    (error.code(), error.to_string())
}

/// The keys of brokers that can be set while they run.
struct OfBroker<'a> {
    config: &'a BrokerConfig,
}

impl Keys for OfBroker<'_> {
    fn kind(&self, key: &str) -> Option<ConfigType> {
        let other = || DynamicKey::named(key).map(DynamicKey::kind);
        TopicKey::of_dynamic(key).map(|key| key.kind).or_else(other)
    }

    fn default(&self, key: &str) -> String {
        let other = || kafka_broker_key(key).and_then(|(_, default)| default).unwrap_or_default().to_owned();
        TopicKey::of_dynamic(key).map_or_else(other, |key| (key.show)(&self.config.topic))
    }
}

async fn broker(
    cluster: &ClusterHandle,
    config: &BrokerConfig,
    name: &str,
    wanted: &Wanted,
    intent: Intent,
) -> Result<(), Refused> {
    let own = own_broker(config, name)?;
    let keys = OfBroker { config };
    let change = |before: &BTreeMap<String, String>| {
        let (after, set) = after(wanted, before, &keys)?;
        check_broker_keys(config, own.is_none(), &after, &set)?;
        Ok(after)
    };
    cluster.change_config(ConfigKind::Broker, own.as_deref(), intent, &change).await.map_err(refused)
}

fn check_broker_keys(
    config: &BrokerConfig,
    of_all: bool,
    after: &BTreeMap<String, String>,
    set: &BTreeSet<String>,
) -> Result<(), AdminError> {
    let refused = |what: &str, keys: Vec<&str>| match keys.is_empty() {
        true => Ok(()),
        false => Err(AdminError::InvalidRequest(format!("{what}: Set({})", keys.join(", ")))),
    };
    let those = |chosen: &dyn Fn(&str) -> bool| set.iter().map(String::as_str).filter(|key| chosen(key)).collect();
    let is_fixed = |key: &str| {
        let is_known = is_kafkas(key) || kafka_broker_key(key).is_some() || BrokerKey::named(key).is_some();
        is_known && !can_change(key)
    };
    refused("Cannot update these configs dynamically", those(&is_fixed))?;
    let is_of_one = |key: &str| DynamicKey::named(key).is_some_and(|key| key.reach == Reach::OneBroker);
    if of_all {
        let what = "Cannot update these configs at default cluster level, broker id must be specified";
        refused(what, those(&is_of_one))?;
    }
    for (key, value) in set.iter().filter_map(|key| after.get_key_value(key)) {
        let checked = match (TopicKey::of_dynamic(key), DynamicKey::named(key)) {
            (Some(known), _) => (known.set)(&mut config.topic.clone(), value),
            (None, Some(known)) => {
                if known.effect == Effect::None {
                    tracing::warn!(key, "set of the brokers: it is kept and told, and nothing acts on it");
                }
                known.check(value)
            }
            (None, None) => {
                // As in Kafka, where it may be a plug-in's.
                tracing::warn!(key, "set of the brokers, and not known here");
                Ok(())
            }
        };
        checked.map_err(|problem| {
            AdminError::InvalidRequest(format!("Invalid value {value} for configuration {key}: {problem}"))
        })?;
    }
    let defaults = config.topic_defaults([after]);
    match TopicConfig::resolve(&defaults, &BTreeMap::new()) {
        Ok(_) => Ok(()),
        Err(error) => Err(AdminError::InvalidRequest(error.to_string())),
    }
}

/// The broker that a resource names, which must be this one; `None` for all.
pub(super) fn own_broker(config: &BrokerConfig, name: &str) -> Result<Option<String>, Refused> {
    if name.is_empty() {
        return Ok(None);
    }
    let invalid = |message: String| Err((ErrorCode::InvalidRequest, message));
    match name.parse::<i32>() {
        Ok(id) if id == config.broker_id.0 => Ok(Some(id.to_string())),
        Ok(id) => {
            invalid(format!("Unexpected broker id, expected {} or empty string, but received {id}", config.broker_id))
        }
        Err(_) => invalid(format!("Broker id must be an integer, but it is: {name}")),
    }
}

/// There is one logger, whose level is set at the start.
fn logger(config: &BrokerConfig, name: &str, wanted: &Wanted) -> Result<(), Refused> {
    if own_broker(config, name)?.is_none() {
        let message = "Broker id must be an integer, but it is: ".to_owned();
        return Err((ErrorCode::InvalidRequest, message));
    }
    let Wanted::Changes(changes) = wanted else { return Ok(()) };
    // Whatever is first is wrong.
    if let Some((logger, operation)) = changes.first() {
        let (code, message) = match operation {
            Operation::Append(_) => {
                (ErrorCode::InvalidRequest, "APPEND operation is not allowed for the BROKER_LOGGER resource".to_owned())
            }
            Operation::Subtract(_) => {
                let message = "SUBTRACT operation is not allowed for the BROKER_LOGGER resource";
                (ErrorCode::InvalidRequest, message.to_owned())
            }
            Operation::Delete if logger == ROOT_LOGGER => {
                let message = "Removing the log level of the root logger is not allowed";
                (ErrorCode::InvalidRequest, message.to_owned())
            }
            Operation::Set(_) if logger == ROOT_LOGGER => {
                let message = "The level of the root logger is set when the broker starts";
                (ErrorCode::InvalidConfig, message.to_owned())
            }
            _ => (ErrorCode::InvalidConfig, format!("Logger {logger} does not exist!")),
        };
        return Err((code, message));
    }
    Ok(())
}

/// The keys of another kind of resource, with how Kafka says what is wrong.
struct OfResource<'a> {
    keys: &'static [ResourceKey],
    unknown: &'a (dyn Fn(&str) -> AdminError + Sync),
    refused: &'a (dyn Fn(String) -> AdminError + Sync),
}

impl Keys for OfResource<'_> {
    fn kind(&self, key: &str) -> Option<ConfigType> {
        // As in Kafka, lists of these are set as a whole.
        let known = self.keys.iter().find(|known| known.name == key).map(|known| known.kind);
        known.filter(|kind| *kind != ConfigType::List)
    }

    fn default(&self, key: &str) -> String {
        self.keys.iter().find(|known| known.name == key).map_or_else(String::new, |known| known.default.to_owned())
    }
}

impl OfResource<'_> {
    async fn alter(
        &self,
        cluster: &ClusterHandle,
        kind: ConfigKind,
        name: &str,
        wanted: &Wanted,
        intent: Intent,
    ) -> Result<(), Refused> {
        let change = |before: &BTreeMap<String, String>| {
            let (after, set) = after(wanted, before, self)?;
            for (key, value) in set.iter().filter_map(|key| after.get_key_value(key)) {
                match resources::check(self.keys, key, value) {
                    Ok(()) => {}
                    Err(InvalidResource::Unknown) => return Err((self.unknown)(key)),
                    Err(InvalidResource::Value(message)) => return Err((self.refused)(message)),
                }
            }
            Ok(after)
        };
        cluster.change_config(kind, Some(name), intent, &change).await.map_err(refused)
    }
}

#[cfg(test)]
mod tests;
