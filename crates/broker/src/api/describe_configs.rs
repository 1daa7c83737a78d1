//! DescribeConfigs (32): what topics, brokers, groups and others are configured to do, and where each value comes from.

use std::collections::{BTreeMap, BTreeSet};

use highwater_storage::names::check_topic_name;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use super::alter_configs::own_broker;
use super::config_resources::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, ROOT_LOGGER, TOPIC};
use super::config_values::{self, Described, Layer, Source};
use super::{ErrorCode, RequestContext};
use crate::cluster::{ClusterHandle, ConfigKind};
use crate::config::BrokerConfig;
use crate::config::keys::ConfigType;
use crate::config::resources::{CLIENT_METRICS_KEYS, GROUP_KEYS, ResourceKey};

/// The kinds of resources that have settings.
const KINDS: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];

/// A resource that cannot be described.
type Refused = (ErrorCode, String);

/// What the request wants to know of each value, beside the value.
#[derive(Clone, Copy)]
struct Detail {
    version: i16,
    synonyms: bool,
    documentation: bool,
}

/// Answers each resource on its own.
pub(crate) async fn handle(context: &RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    answer(&context.broker.cluster, &context.broker.config, request, context.version).await
}

async fn answer(
    cluster: &ClusterHandle,
    config: &BrokerConfig,
    request: DescribeConfigsRequest,
    version: i16,
) -> DescribeConfigsResponse {
    let detail = Detail {
        version,
        synonyms: request.include_synonyms,
        documentation: version >= 3 && request.include_documentation,
    };
    // Each is answered once, however often it is named: an answer is a thousand times as long as its question.
    let mut seen = BTreeSet::new();
    let mut results = Vec::new();
    // As in Kafka a request that asks for a kind there is not is answered as a whole.
    let is_unsupported = |resource: &DescribeConfigsResource| !KINDS.contains(&resource.resource_type);
    let unsupported = request.resources.iter().find(|resource| is_unsupported(resource)).map(|one| one.resource_type);
    for resource in request.resources {
        if !seen.insert((resource.resource_type, resource.resource_name.clone())) {
            continue;
        }
        let described = match unsupported {
            None => describe(cluster, config, &resource).await,
            Some(kind) => Err((ErrorCode::InvalidRequest, format!("Unsupported resource type: {kind}"))),
        };
        let wanted = |described: &Described| is_wanted(&resource, &described.key);
        let described = described.map(|all| {
            let wanted = all.into_iter().filter(wanted);
            wanted.map(|described| show(described, detail)).collect::<Vec<_>>()
        });
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name);
        results.push(match described {
            Ok(configs) => result.with_configs(configs).with_error_message(None),
            Err((code, message)) => result.with_error_code(code.into()).with_error_message(Some(super::told(message))),
        });
    }
    DescribeConfigsResponse::default().with_results(results)
}

/// Whether the key was asked for: no list stands for every key, and so does an empty one.
fn is_wanted(resource: &DescribeConfigsResource, name: &str) -> bool {
    let keys = resource.configuration_keys.as_deref().unwrap_or_default();
    keys.is_empty() || keys.iter().any(|key| &**key == name)
}

async fn describe(
    cluster: &ClusterHandle,
    config: &BrokerConfig,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Described>, Refused> {
    let (image, name) = (cluster.image(), &*resource.resource_name);
    let invalid = |message: &str| Err((ErrorCode::InvalidRequest, message.to_owned()));
    match resource.resource_type {
        TOPIC => {
            check_topic_name(name)
                .map_err(|error| (ErrorCode::InvalidTopicException, format!("Topic name is invalid: {error}")))?;
            let unknown = || (ErrorCode::UnknownTopicOrPartition, format!("The topic '{name}' does not exist."));
            let topic = image.topic(name).ok_or_else(unknown)?;
            Ok(config_values::of_topic(&image, config, &topic.config))
        }
        BROKER => match own_broker(config, name)? {
            Some(_) => Ok(config_values::of_broker(&image, config)),
            None => Ok(config_values::of_all_brokers(&image)),
        },
        BROKER_LOGGER => match own_broker(config, name)? {
            Some(_) => Ok(vec![logger()]),
            None => invalid("Broker id must be an integer, but it is: "),
        },
        CLIENT_METRICS if name.is_empty() => invalid("Client metrics subscription name must not be empty"),
        CLIENT_METRICS => {
            stored(cluster, ConfigKind::ClientMetrics, name, CLIENT_METRICS_KEYS, Source::ClientMetrics).await
        }
        GROUP if name.is_empty() => invalid("Group name must not be empty"),
        GROUP => stored(cluster, ConfigKind::Group, name, GROUP_KEYS, Source::Group).await,
        other => invalid(&format!("Unsupported resource type: {other}")),
    }
}

/// What is kept of a resource beside what it is without.
async fn stored(
    cluster: &ClusterHandle,
    kind: ConfigKind,
    name: &str,
    keys: &'static [ResourceKey],
    source: Source,
) -> Result<Vec<Described>, Refused> {
    let unavailable = |error: crate::cluster::StoreFailure| (ErrorCode::UnknownServerError, error.to_string());
    let set: BTreeMap<String, String> = cluster.config(kind, Some(name)).await.map_err(unavailable)?;
    let described = keys.iter().map(|key| {
        let layer = |value: String, source| Layer { key: key.name.to_owned(), value: Some(value), source };
        let mut layers: Vec<Layer> = set.get(key.name).map(|value| layer(value.clone(), source)).into_iter().collect();
        // Subscriptions have no defaults to tell of.
        if kind == ConfigKind::Group {
            layers.push(layer(key.default.to_owned(), Source::Default));
        }
        Described::new(
            key.name,
            key.kind,
            "Kept for later: nothing acts on it yet.",
            Some(key.default.to_owned()),
            layers,
        )
    });
    Ok(described.collect())
}

/// The one logger that there is, at the level that counts.
fn logger() -> Described {
    let level = tracing::level_filters::LevelFilter::current().to_string().to_uppercase();
    let layers = vec![Layer { key: ROOT_LOGGER.to_owned(), value: Some(level), source: Source::BrokerLogger }];
    Described {
        layers: Vec::new(),
        is_read_only: true,
        ..Described::new(ROOT_LOGGER, ConfigType::String, "What is written to the log. Set at the start.", None, layers)
    }
}

fn show(described: Described, detail: Detail) -> DescribeConfigsResourceResult {
    let mut shown = DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_string(described.key))
        .with_value(described.value.map(StrBytes::from_string))
        .with_read_only(described.is_read_only)
        .with_is_sensitive(described.is_sensitive)
        .with_config_source(described.source as i8);
    if detail.version >= 3 {
        shown.config_type = described.kind as i8;
        shown.documentation = detail.documentation.then_some(StrBytes::from_static_str(described.doc));
    }
    if detail.synonyms {
        let is_sensitive = described.is_sensitive;
        let synonym = |layer: Layer| {
            DescribeConfigsSynonym::default()
                .with_name(StrBytes::from_string(layer.key))
                .with_value(layer.value.filter(|_| !is_sensitive).map(StrBytes::from_string))
                .with_source(layer.source as i8)
        };
        shown.synonyms = described.layers.into_iter().map(synonym).collect();
    }
    shown
}

#[cfg(test)]
mod tests;
