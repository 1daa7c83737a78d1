//! DescribeConfigs (32): what topics and this broker are configured to do, and where each value comes from.

use std::collections::BTreeSet;

use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResult, DescribeConfigsSynonym,
};
use kafka_protocol::messages::{DescribeConfigsRequest, DescribeConfigsResponse};
use kafka_protocol::protocol::StrBytes;

use highwater_storage::names::check_topic_name;

use super::{ErrorCode, RequestContext};
use crate::cluster::{MetadataImage, TopicImage};
use crate::config::keys::{BROKER_KEYS, BrokerKey, ConfigType, TOPIC_KEYS, TopicKey};
use crate::config::{BrokerConfig, TopicConfig};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// `DescribeConfigsResponse.ConfigSource`.
const TOPIC_SOURCE: i8 = 1;
const STATIC_BROKER_SOURCE: i8 = 4;
const DEFAULT_SOURCE: i8 = 5;

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
pub(crate) fn handle(context: &RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    answer(&context.broker.cluster.image(), &context.broker.config, request, context.version)
}

fn answer(
    image: &MetadataImage,
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
    let mut resources = request.resources;
    resources.retain(|resource| seen.insert((resource.resource_type, resource.resource_name.clone())));
    let results = resources.into_iter().map(|resource| {
        let described = match resource.resource_type {
            TOPIC => topic(image, config, &resource, detail),
            BROKER => broker(config, &resource, detail),
            other => Err((ErrorCode::InvalidRequest, format!("resources of type {other} are not described"))),
        };
        let result = DescribeConfigsResult::default()
            .with_resource_type(resource.resource_type)
            .with_resource_name(resource.resource_name);
        match described {
            Ok(configs) => result.with_configs(configs).with_error_message(None),
            Err((code, message)) => result.with_error_code(code.into()).with_error_message(Some(super::told(message))),
        }
    });
    DescribeConfigsResponse::default().with_results(results.collect())
}

/// Whether the key was asked for: no list stands for every key.
fn wanted(resource: &DescribeConfigsResource, name: &str) -> bool {
    resource.configuration_keys.as_ref().is_none_or(|keys| keys.iter().any(|key| &**key == name))
}

fn topic(
    image: &MetadataImage,
    config: &BrokerConfig,
    resource: &DescribeConfigsResource,
    detail: Detail,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    let name = &*resource.resource_name;
    check_topic_name(name).map_err(|error| (ErrorCode::InvalidTopicException, error.to_string()))?;
    let topic =
        image.topic(name).ok_or_else(|| (ErrorCode::UnknownTopicOrPartition, format!("there is no topic {name:?}")))?;
    let resolved = TopicConfig::resolve(&config.topic, &topic.config)
        .map_err(|error| (ErrorCode::InvalidConfig, error.to_string()))?;
    let known = TOPIC_KEYS.iter().filter(|key| wanted(resource, key.name));
    let mut values: Vec<_> = known.map(|key| topic_value(key, &resolved, topic, config, detail)).collect();
    // What was set although this broker does not act on it is still the topic's.
    let unused = topic.config.iter().filter(|(name, _)| TopicKey::named(name).is_none() && wanted(resource, name));
    values.extend(unused.map(|(name, value)| {
        let shown = show(name, Some(value.clone()), TOPIC_SOURCE, ConfigType::String, "Has no effect here.", detail);
        shown.with_synonyms(if detail.synonyms {
            vec![synonym(name, Some(value.clone()), TOPIC_SOURCE)]
        } else {
            vec![]
        })
    }));
    Ok(values)
}

fn topic_value(
    key: &TopicKey,
    resolved: &TopicConfig,
    topic: &TopicImage,
    config: &BrokerConfig,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let set_by_broker = key.broker_keys.iter().map(|&(name, _)| name).find(|name| config.is_set(name));
    // From the strongest to the weakest, each with the value it would give.
    let mut layers = Vec::new();
    if topic.config.contains_key(key.name) {
        layers.push((key.name, (key.show)(resolved), TOPIC_SOURCE));
    }
    if let Some(name) = set_by_broker {
        layers.push((name, (key.show)(&config.topic), STATIC_BROKER_SOURCE));
    }
    let default_name = key.broker_keys.last().map_or(key.name, |&(name, _)| name);
    layers.push((default_name, (key.show)(&TopicConfig::default()), DEFAULT_SOURCE));
    let (_, value, source) = layers[0].clone();
    let shown = show(key.name, Some(value), source, key.kind, key.doc, detail);
    if detail.synonyms {
        shown
            .with_synonyms(layers.into_iter().map(|(name, value, source)| synonym(name, Some(value), source)).collect())
    } else {
        shown
    }
}

fn broker(
    config: &BrokerConfig,
    resource: &DescribeConfigsResource,
    detail: Detail,
) -> Result<Vec<DescribeConfigsResourceResult>, Refused> {
    let name = &*resource.resource_name;
    if name.is_empty() {
        // The cluster-wide dynamic defaults, of which there are none.
        return Ok(Vec::new());
    }
    match name.parse::<i32>() {
        Ok(id) if id == config.broker_id.0 => {}
        Ok(id) => {
            let message = format!("this is broker {}; ask broker {id} for its configs", config.broker_id);
            return Err((ErrorCode::InvalidRequest, message));
        }
        Err(_) => return Err((ErrorCode::InvalidRequest, format!("{name:?} is no broker id"))),
    }
    let own = BROKER_KEYS.iter().map(|key: &BrokerKey| (key.name, (key.show)(config), key.kind, key.doc));
    let topics = TOPIC_KEYS.iter().filter_map(|key| {
        let &(name, _) = key.broker_keys.first()?;
        Some((name, Some((key.show)(&config.topic)), key.kind, key.doc))
    });
    let values = own.chain(topics).filter(|(name, ..)| wanted(resource, name)).map(|(name, value, kind, doc)| {
        let source = if config.is_set(name) { STATIC_BROKER_SOURCE } else { DEFAULT_SOURCE };
        let shown = show(name, value.clone(), source, kind, doc, detail).with_read_only(true);
        if detail.synonyms { shown.with_synonyms(vec![synonym(name, value, source)]) } else { shown }
    });
    Ok(values.collect())
}

fn show(
    name: &str,
    value: Option<String>,
    source: i8,
    kind: ConfigType,
    doc: &'static str,
    detail: Detail,
) -> DescribeConfigsResourceResult {
    let mut shown = DescribeConfigsResourceResult::default()
        .with_name(StrBytes::from_string(name.to_owned()))
        .with_value(value.map(StrBytes::from_string))
        .with_config_source(source);
    if detail.version >= 3 {
        shown.config_type = kind as i8;
        shown.documentation = detail.documentation.then_some(StrBytes::from_static_str(doc));
    }
    shown
}

fn synonym(name: &str, value: Option<String>, source: i8) -> DescribeConfigsSynonym {
    DescribeConfigsSynonym::default()
        .with_name(StrBytes::from_string(name.to_owned()))
        .with_value(value.map(StrBytes::from_string))
        .with_source(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tests::{encodes, image};
    use crate::config::Settings;
    use kafka_protocol::messages::ApiKey;

    fn config() -> BrokerConfig {
        let mut settings = Settings::new();
        settings.set("log.retention.hours=1").unwrap();
        settings.set("num.partitions=4").unwrap();
        settings.build().unwrap().0
    }

    fn ask(kind: i8, name: &'static str, keys: Option<&[&'static str]>, version: i16) -> DescribeConfigsResult {
        let keys = keys.map(|keys| keys.iter().map(|key| StrBytes::from_static_str(key)).collect());
        let resource = DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(StrBytes::from_static_str(name))
            .with_configuration_keys(keys);
        let request = DescribeConfigsRequest::default()
            .with_resources(vec![resource])
            .with_include_synonyms(true)
            .with_include_documentation(version >= 3);
        let mut response = answer(&image(), &config(), request, version);
        encodes(ApiKey::DescribeConfigs, &response, version);
        response.results.remove(0)
    }

    fn value<'a>(result: &'a DescribeConfigsResult, name: &str) -> (&'a str, i8) {
        let one = result.configs.iter().find(|one| &*one.name == name).unwrap();
        (one.value.as_ref().unwrap().as_str(), one.config_source)
    }

    #[test]
    fn a_topics_values_come_with_their_source() {
        for version in 1..=4 {
            let books = ask(TOPIC, "books", None, version);
            assert_eq!((books.error_code, &books.error_message), (0, &None));
            // Schema Registry refuses to start unless this is exactly "compact".
            assert_eq!(value(&books, "cleanup.policy"), ("compact", TOPIC_SOURCE));
            assert_eq!(value(&books, "retention.ms"), ("3600000", STATIC_BROKER_SOURCE));
            assert_eq!(value(&books, "segment.bytes"), ("1073741824", DEFAULT_SOURCE));
            assert_eq!(value(&books, "leader.replication.throttled.replicas"), ("*", TOPIC_SOURCE));
            assert_eq!(books.configs.len(), TOPIC_KEYS.len() + 1);
            let retention = books.configs.iter().find(|one| &*one.name == "retention.ms").unwrap();
            let sources: Vec<_> = retention.synonyms.iter().map(|one| (&*one.name, one.source)).collect();
            let expected = [("log.retention.hours", STATIC_BROKER_SOURCE), ("log.retention.hours", DEFAULT_SOURCE)];
            assert_eq!(sources, expected);
            assert!(version < 3 || retention.documentation.is_some());
        }
    }

    #[test]
    fn keys_pick_what_is_told() {
        let some = ask(TOPIC, "books", Some(&["min.insync.replicas", "xyzzy"]), 4);
        assert_eq!(some.configs.len(), 1);
        assert_eq!(value(&some, "min.insync.replicas"), ("1", DEFAULT_SOURCE));
        assert!(ask(TOPIC, "books", Some(&[]), 4).configs.is_empty());
    }

    #[test]
    fn a_resource_named_many_times_is_told_once() {
        let resource = |name| {
            DescribeConfigsResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(StrBytes::from_static_str(name))
                .with_configuration_keys(None)
        };
        let names = ["books", "nope", "books", "books", "nope"];
        let request = DescribeConfigsRequest::default().with_resources(names.map(resource).to_vec());
        let results = answer(&image(), &config(), request, 4).results;
        let told: Vec<_> = results.iter().map(|result| (&*result.resource_name, result.error_code)).collect();
        assert_eq!(told, [("books", 0), ("nope", 3)]);
    }

    #[test]
    fn the_broker_describes_itself() {
        let result = ask(BROKER, "1", None, 4);
        assert_eq!(value(&result, "num.partitions"), ("4", STATIC_BROKER_SOURCE));
        assert_eq!(value(&result, "replica.lag.time.max.ms"), ("10000", DEFAULT_SOURCE));
        assert_eq!(value(&result, "message.max.bytes"), ("1048588", DEFAULT_SOURCE));
        assert!(result.configs.iter().all(|one| one.read_only));
        assert!(ask(BROKER, "", None, 4).configs.is_empty());
    }

    #[test]
    fn what_is_not_there_has_its_code() {
        for (kind, name, code) in
            [(TOPIC, "nope", 3), (TOPIC, "a/b", 17), (BROKER, "2", 42), (BROKER, "x", 42), (8, "1", 42)]
        {
            let result = ask(kind, name, None, 4);
            assert_eq!(result.error_code, code, "{kind} {name}");
            assert!(result.error_message.is_some() && result.configs.is_empty());
        }
    }
}
