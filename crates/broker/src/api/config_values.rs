//! The settings of topics and brokers with where each comes from, for answers that tell of them.

use std::collections::BTreeMap;

use crate::cluster::MetadataImage;
use crate::config::dynamic::DynamicKey;
use crate::config::kafka_defaults::{KAFKA_BROKER_KEYS, KAFKA_TOPIC_KEYS, kafka_broker_key};
use crate::config::keys::{BROKER_KEYS, BrokerKey, ConfigType};
use crate::config::topic_keys::{TOPIC_KEYS, TopicKey};
use crate::config::{BrokerConfig, TopicConfig};

/// Where a value comes from, as `DescribeConfigsResponse.ConfigSource` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub(super) enum Source {
    Topic = 1,
    Broker = 2,
    AllBrokers = 3,
    BrokerFile = 4,
    Default = 5,
    BrokerLogger = 6,
    ClientMetrics = 7,
    Group = 8,
}

/// A value that counts, or would if nothing stronger were there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// The key that it is a value of: of a topic's setting it may be a broker's key.
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) source: Source,
}

/// A key with its value, and whatever that is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    pub(super) key: String,
    pub(super) value: Option<String>,
    pub(super) source: Source,
    /// From the strongest to the weakest.
    pub(super) layers: Vec<Layer>,
    pub(super) kind: ConfigType,
    pub(super) doc: &'static str,
    pub(super) is_read_only: bool,
    pub(super) is_sensitive: bool,
}

/// What is said of keys that Kafka has and this broker does not act on.
const NO_EFFECT: &str = "A key of Kafka's that has no effect here.";

impl Described {
    pub(super) fn new(
        key: &str,
        kind: ConfigType,
        doc: &'static str,
        default: Option<String>,
        layers: Vec<Layer>,
    ) -> Self {
        let (value, source) = match layers.first() {
            Some(strongest) => (strongest.value.clone(), strongest.source),
            None => (default, Source::Default),
        };
        let is_sensitive = kind == ConfigType::Password;
        let key = key.to_owned();
        let value = value.filter(|_| !is_sensitive);
        Self { key, value, source, layers, kind, doc, is_read_only: false, is_sensitive }
    }
}

fn layer(key: &str, value: impl Into<Option<String>>, source: Source) -> Layer {
    Layer { key: key.to_owned(), value: value.into(), source }
}

/// A value as the key reads it. A list keeps the order in which it was set.
fn read_as(key: &TopicKey, value: &str) -> String {
    let mut config = TopicConfig::default();
    match key.kind {
        ConfigType::List => value.split(',').map(str::trim).collect::<Vec<_>>().join(","),
        _ => match (key.set)(&mut config, value) {
            Ok(()) => (key.show)(&config),
            Err(_) => value.to_owned(),
        },
    }
}

/// What was set of a broker's key while the brokers run.
fn dynamic(image: &MetadataImage, name: &str) -> Vec<Layer> {
    let of = |config: &BTreeMap<String, String>, source| {
        let read = |value: &String| TopicKey::of_dynamic(name).map_or_else(|| value.clone(), |key| read_as(key, value));
        config.get(name).map(|value| layer(name, read(value), source))
    };
    let own = of(&image.broker_config, Source::Broker);
    own.into_iter().chain(of(&image.broker_defaults, Source::AllBrokers)).collect()
}

/// What Kafka goes by where none of these is set, which it tells of once one of them is set while the brokers run.
fn fallback(name: &str) -> Option<Layer> {
    let other = match name {
        "log.flush.interval.ms" => "log.flush.scheduler.interval.ms",
        "log.retention.ms" => "log.retention.hours",
        "log.roll.jitter.ms" => "log.roll.jitter.hours",
        "log.roll.ms" => "log.roll.hours",
        _ => return None,
    };
    kafka_broker_key(other)
        .and_then(|(_, default)| default)
        .map(|default| layer(other, default.to_owned(), Source::Default))
}

/// Whether a key of brokers can be set while they run, as far as is known.
pub(super) fn can_change(name: &str) -> bool {
    TopicKey::of_dynamic(name).is_some() || DynamicKey::named(name).is_some()
}

/// Every setting of a topic that has these of its own.
pub(super) fn of_topic(image: &MetadataImage, config: &BrokerConfig, own: &BTreeMap<String, String>) -> Vec<Described> {
    let defaults = config.topic_defaults([&image.broker_defaults, &image.broker_config]);
    let known = TOPIC_KEYS.iter().map(|key| {
        let mut layers = Vec::new();
        layers.extend(own.get(key.name).map(|value| layer(key.name, read_as(key, value), Source::Topic)));
        let mut other = None;
        for (at, &(name, _)) in key.broker_keys.iter().enumerate() {
            if at == 0 {
                let set = dynamic(image, name);
                other = fallback(name).filter(|_| !set.is_empty());
                layers.extend(set);
            }
            if config.is_set(name) {
                layers.push(layer(name, (key.show)(&config.topic), Source::BrokerFile));
            }
        }
        // A default in several units is that of none of them.
        if let [(name, _)] = key.broker_keys
            && kafka_broker_key(name).is_some_and(|(_, default)| default.is_some())
        {
            layers.push(layer(name, (key.show)(&TopicConfig::default()), Source::Default));
        }
        layers.extend(other);
        Described::new(key.name, key.kind, key.doc, Some((key.show)(&defaults)), layers)
    });
    let unused = KAFKA_TOPIC_KEYS.iter().map(|&(name, kind, default, broker_key)| {
        let mut layers = Vec::new();
        layers.extend(own.get(name).map(|value| layer(name, value.clone(), Source::Topic)));
        layers.extend(broker_key.into_iter().flat_map(|of| dynamic(image, of)));
        layers.extend(broker_key.map(|of| layer(of, default.to_owned(), Source::Default)));
        Described::new(name, kind, NO_EFFECT, Some(default.to_owned()), layers)
    });
    // What a Kafka of the past has left.
    let is_left =
        |name: &str| TopicKey::named(name).is_none() && !KAFKA_TOPIC_KEYS.iter().any(|(key, ..)| *key == name);
    let left = own.iter().filter(|(name, _)| is_left(name)).map(|(name, value)| {
        let layers = vec![layer(name, value.clone(), Source::Topic)];
        Described::new(name, ConfigType::String, NO_EFFECT, None, layers)
    });
    known.chain(unused).chain(left).collect()
}

/// Every setting of this broker.
pub(super) fn of_broker(image: &MetadataImage, config: &BrokerConfig) -> Vec<Described> {
    let mut all: BTreeMap<&str, Described> = BTreeMap::new();
    let own_defaults = BrokerConfig::default();
    for key in BROKER_KEYS {
        let BrokerKey { name, kind, doc, show, .. } = key;
        let mut layers = if can_change(name) { dynamic(image, name) } else { Vec::new() };
        if config.is_set(name) {
            layers.push(layer(name, show(config), Source::BrokerFile));
        }
        let default = show(&own_defaults);
        layers.extend(default.is_some().then(|| layer(name, default.clone(), Source::Default)));
        // What holds although it was not set: one key for another, or what the machine gives.
        let value = if config.is_set(name) { default } else { show(config) };
        let mut described = Described::new(name, *kind, doc, value.clone(), layers);
        if described.source == Source::Default {
            described.value = value;
        }
        all.insert(name, described);
    }
    for key in TOPIC_KEYS {
        for &(name, _) in key.broker_keys {
            let mut layers = dynamic(image, name);
            let other = fallback(name).filter(|_| !layers.is_empty());
            let file = config.set_keys.get(name).cloned();
            layers.extend(file.map(|value| layer(name, value, Source::BrokerFile)));
            let (kind, kafkas) = kafka_broker_key(name).unwrap_or((key.kind, None));
            // Of one that is the only one, the default is the topic's; of several each has its own, in its unit.
            let default = match key.broker_keys {
                [_] if kafkas.is_some() => Some((key.show)(&TopicConfig::default())),
                _ => kafkas.map(str::to_owned),
            };
            layers.extend(default.clone().map(|value| layer(name, value, Source::Default)));
            layers.extend(other);
            all.insert(name, Described::new(name, kind, key.doc, default, layers));
        }
    }
    for &(name, kind, default) in KAFKA_BROKER_KEYS {
        let default = || default.map(str::to_owned);
        let mut layers = if can_change(name) { dynamic(image, name) } else { Vec::new() };
        layers.extend(default().map(|value| layer(name, value, Source::Default)));
        all.entry(name).or_insert_with(|| Described::new(name, kind, NO_EFFECT, default(), layers));
    }
    for (name, described) in &mut all {
        described.is_read_only = !can_change(name);
    }
    let mut all: Vec<Described> = all.into_values().collect();
    all.extend(unknown(&image.broker_config, Source::Broker));
    all
}

/// What was set of all brokers while they run.
pub(super) fn of_all_brokers(image: &MetadataImage) -> Vec<Described> {
    let set = image.broker_defaults.iter().filter_map(|(name, value)| {
        let (kind, doc) = match (TopicKey::of_dynamic(name), DynamicKey::named(name)) {
            (Some(key), _) => (key.kind, key.doc),
            (None, Some(key)) => (key.kind(), BrokerKey::named(name).map_or(NO_EFFECT, |key| key.doc)),
            (None, None) => return None,
        };
        let read = TopicKey::of_dynamic(name).map_or_else(|| value.clone(), |key| read_as(key, value));
        Some(Described::new(name, kind, doc, None, vec![layer(name, read, Source::AllBrokers)]))
    });
    set.chain(unknown(&image.broker_defaults, Source::AllBrokers)).collect()
}

/// Settings of keys that nobody knows: for all one can say, they are secret, and nothing goes by them.
fn unknown(set: &BTreeMap<String, String>, source: Source) -> Vec<Described> {
    let some = set.keys().filter(|name| !can_change(name));
    some.map(|name| {
        let described = Described::new(name, ConfigType::Unknown, NO_EFFECT, None, vec![layer(name, None, source)]);
        Described { is_sensitive: true, is_read_only: true, ..described }
    })
    .collect()
}
