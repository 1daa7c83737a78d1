//! Broker keys that can be set while the broker runs: the defaults of topics' settings, and what else Kafka takes then. All
//! others are read at the start.

use std::collections::BTreeMap;

use super::kafka_defaults::kafka_broker_key;
use super::keys::{BrokerKey, ConfigType, I32, I64};
use super::parse::{boolean, fraction, number};
use super::topic_keys::{TOPIC_KEYS, TopicKey};
use super::{BrokerConfig, TopicConfig};

/// Whose setting a key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// That of all brokers, or of one.
    AllBrokers,
    /// Of one broker only.
    OneBroker,
}

/// What follows from setting a key while the broker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The broker goes by it as soon as it sees it.
    AtOnce,
    /// It is kept and told, so that tools which set it go on. Kafka has nothing to do with it here, or would need a restart.
    None,
}

/// A key of Kafka's, beside the defaults of topics, that is taken while the broker runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DynamicKey {
    pub(crate) name: &'static str,
    pub(crate) reach: Reach,
    pub(crate) effect: Effect,
}

/// What Kafka 4.1 takes. Left out are stores of keys and certificates, which it takes for a named listener only, and listeners:
/// one that was asked for and is not there must not look as if it were.
static DYNAMIC_KEYS: &[(&str, Reach, Effect)] = &[
    ("background.threads", Reach::AllBrokers, Effect::None),
    ("compression.gzip.level", Reach::AllBrokers, Effect::None),
    ("compression.lz4.level", Reach::AllBrokers, Effect::None),
    ("compression.zstd.level", Reach::AllBrokers, Effect::None),
    ("log.cleaner.backoff.ms", Reach::AllBrokers, Effect::AtOnce),
    ("log.cleaner.dedupe.buffer.size", Reach::AllBrokers, Effect::None),
    ("log.cleaner.io.buffer.load.factor", Reach::AllBrokers, Effect::None),
    ("log.cleaner.io.buffer.size", Reach::AllBrokers, Effect::AtOnce),
    ("log.cleaner.io.max.bytes.per.second", Reach::AllBrokers, Effect::None),
    ("log.cleaner.threads", Reach::AllBrokers, Effect::None),
    ("log.local.retention.bytes", Reach::AllBrokers, Effect::None),
    ("log.local.retention.ms", Reach::AllBrokers, Effect::None),
    ("max.connection.creation.rate", Reach::AllBrokers, Effect::None),
    ("max.connections", Reach::AllBrokers, Effect::None),
    ("max.connections.per.ip", Reach::AllBrokers, Effect::None),
    ("max.connections.per.ip.overrides", Reach::AllBrokers, Effect::None),
    ("metric.reporters", Reach::AllBrokers, Effect::None),
    ("num.io.threads", Reach::AllBrokers, Effect::None),
    ("num.network.threads", Reach::AllBrokers, Effect::None),
    ("num.recovery.threads.per.data.dir", Reach::AllBrokers, Effect::None),
    ("num.replica.fetchers", Reach::AllBrokers, Effect::None),
    ("principal.builder.class", Reach::OneBroker, Effect::None),
    ("producer.id.expiration.ms", Reach::AllBrokers, Effect::AtOnce),
    ("remote.fetch.max.wait.ms", Reach::AllBrokers, Effect::None),
    ("remote.list.offsets.request.timeout.ms", Reach::AllBrokers, Effect::None),
    ("remote.log.index.file.cache.total.size.bytes", Reach::AllBrokers, Effect::None),
    ("remote.log.manager.copier.thread.pool.size", Reach::AllBrokers, Effect::None),
    ("remote.log.manager.copy.max.bytes.per.second", Reach::AllBrokers, Effect::None),
    ("remote.log.manager.expiration.thread.pool.size", Reach::AllBrokers, Effect::None),
    ("remote.log.manager.fetch.max.bytes.per.second", Reach::AllBrokers, Effect::None),
    ("remote.log.reader.threads", Reach::AllBrokers, Effect::None),
    ("sasl.enabled.mechanisms", Reach::OneBroker, Effect::None),
    ("sasl.jaas.config", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.kinit.cmd", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.min.time.before.relogin", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.principal.to.local.rules", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.service.name", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.ticket.renew.jitter", Reach::OneBroker, Effect::None),
    ("sasl.kerberos.ticket.renew.window.factor", Reach::OneBroker, Effect::None),
    ("sasl.login.refresh.buffer.seconds", Reach::OneBroker, Effect::None),
    ("sasl.login.refresh.min.period.seconds", Reach::OneBroker, Effect::None),
    ("sasl.login.refresh.window.factor", Reach::OneBroker, Effect::None),
    ("sasl.login.refresh.window.jitter", Reach::OneBroker, Effect::None),
    ("sasl.mechanism.inter.broker.protocol", Reach::OneBroker, Effect::None),
    ("ssl.cipher.suites", Reach::OneBroker, Effect::None),
    ("ssl.client.auth", Reach::OneBroker, Effect::None),
    ("ssl.enabled.protocols", Reach::OneBroker, Effect::None),
    ("ssl.endpoint.identification.algorithm", Reach::OneBroker, Effect::None),
    ("ssl.engine.factory.class", Reach::OneBroker, Effect::None),
    ("ssl.keymanager.algorithm", Reach::OneBroker, Effect::None),
    ("ssl.protocol", Reach::OneBroker, Effect::None),
    ("ssl.provider", Reach::OneBroker, Effect::None),
    ("ssl.secure.random.implementation", Reach::OneBroker, Effect::None),
    ("ssl.trustmanager.algorithm", Reach::OneBroker, Effect::None),
    ("transaction.partition.verification.enable", Reach::AllBrokers, Effect::AtOnce),
];

impl DynamicKey {
    /// The key of this name, if it is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let at = DYNAMIC_KEYS.binary_search_by_key(&name, |&(key, ..)| key).ok()?;
        DYNAMIC_KEYS.get(at).map(|&(name, reach, effect)| Self { name, reach, effect })
    }

    /// How its values look.
    pub(crate) fn kind(self) -> ConfigType {
        kafka_broker_key(self.name).map_or(ConfigType::String, |(kind, _)| kind)
    }

    /// Whether a value can be read.
    pub(crate) fn check(self, value: &str) -> Result<(), String> {
        if let Some(key) = BrokerKey::named(self.name) {
            return (key.set)(&mut BrokerConfig::default(), value);
        }
        match self.kind() {
            ConfigType::Boolean => boolean(value).map(drop),
            ConfigType::Int => number::<i64>(value, i64::from(i32::MIN), I32).map(drop),
            ConfigType::Short => number::<i64>(value, i64::from(i16::MIN), i64::from(i16::MAX)).map(drop),
            ConfigType::Long => number::<i64>(value, i64::MIN, I64).map(drop),
            ConfigType::Double => fraction(value, f64::MIN, f64::MAX).map(drop),
            ConfigType::Unknown | ConfigType::String | ConfigType::List | ConfigType::Class | ConfigType::Password => {
                Ok(())
            }
        }
    }
}

impl TopicKey {
    /// The topic key whose default is set by this broker key while the broker runs; only the finest unit is, as in Kafka.
    pub(crate) fn of_dynamic(broker_key: &str) -> Option<&'static Self> {
        TOPIC_KEYS.iter().find(|key| key.broker_keys.first().is_some_and(|&(name, _)| name == broker_key))
    }
}

impl BrokerConfig {
    /// What holds for topics that do not say, given what was set of the brokers while they run, the weakest first. Values
    /// that cannot be read, which were accepted by another program, are left out.
    pub(crate) fn topic_defaults<'a>(
        &self,
        layers: impl IntoIterator<Item = &'a BTreeMap<String, String>>,
    ) -> TopicConfig {
        let mut defaults = self.topic.clone();
        for (name, value) in layers.into_iter().flatten() {
            if let Some(key) = TopicKey::of_dynamic(name)
                && let Err(problem) = (key.set)(&mut defaults, value)
            {
                tracing::warn!(name, problem, "ignoring a setting of the brokers");
            }
        }
        defaults
    }

    /// What holds while the broker runs, likewise: with the defaults of topics, and the other keys that act at once.
    pub(crate) fn running<'a>(
        &self,
        layers: impl IntoIterator<Item = &'a BTreeMap<String, String>, IntoIter: Clone>,
    ) -> Self {
        let layers = layers.into_iter();
        let mut running = Self { topic: self.topic_defaults(layers.clone()), ..self.clone() };
        for (name, value) in layers.flatten() {
            if DynamicKey::named(name).is_some_and(|key| key.effect == Effect::AtOnce)
                && let Some(key) = BrokerKey::named(name)
                && let Err(problem) = (key.set)(&mut running, value)
            {
                tracing::warn!(name, problem, "ignoring a setting of the brokers");
            }
        }
        running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_of_one_broker_goes_before_what_is_set_of_all() {
        let layer = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        let of_all =
            layer(&[("log.retention.ms", "7"), ("log.segment.bytes", "2000000"), ("log.retention.bytes", "x")]);
        let own = layer(&[("log.retention.ms", "9"), ("log.retention.hours", "1"), ("something.else", "1")]);
        let config = BrokerConfig::default();
        assert_eq!(config.topic_defaults([]), config.topic);
        let defaults = config.topic_defaults([&of_all, &own]);
        assert_eq!((defaults.retention_ms, defaults.segment_bytes, defaults.retention_bytes), (9, 2_000_000, -1));
    }

    #[test]
    fn other_keys_act_where_they_can() {
        let layer = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let config = BrokerConfig::default();
        assert_eq!(config.running([]), config);
        let of_all = layer("log.cleaner.backoff.ms", "7");
        let own = layer("log.cleaner.backoff.ms", "8");
        assert_eq!(config.running([&of_all]).cleaner_backoff_ms, 7);
        assert_eq!(config.running([&of_all, &own]).cleaner_backoff_ms, 8);
        let unread = layer("log.cleaner.backoff.ms", "soon");
        assert_eq!(config.running([&of_all, &unread]).cleaner_backoff_ms, 7);
        // Of threads there are as many as there were.
        assert_eq!(config.running([&layer("num.io.threads", "77")]), config);
        assert_eq!(config.running([&layer("log.retention.ms", "7")]).topic.retention_ms, 7);
        assert!(!config.running([&layer("transaction.partition.verification.enable", "false")]).verifies_transactions);
    }

    #[test]
    fn every_key_that_can_be_set_is_kafkas_and_says_what_it_does() {
        assert!(DYNAMIC_KEYS.is_sorted_by_key(|&(name, ..)| name));
        for &(name, reach, effect) in DYNAMIC_KEYS {
            let key = DynamicKey::named(name).unwrap();
            assert_eq!((key.reach, key.effect), (reach, effect));
            let (kind, default) = kafka_broker_key(name).unwrap();
            assert_eq!(key.kind(), kind, "{name}");
            assert!(TopicKey::of_dynamic(name).is_none(), "{name} is a default of topics");
            if let Some(default) = default {
                assert_eq!(key.check(default), Ok(()), "{name}");
            }
            let is_number =
                !matches!(kind, ConfigType::String | ConfigType::List | ConfigType::Class | ConfigType::Password);
            assert_eq!(key.check("x").is_err(), is_number, "{name}");
            // What acts is read by the table of the broker's own keys.
            assert!(effect == Effect::None || BrokerKey::named(name).is_some(), "{name}");
        }
        assert!(DynamicKey::named("num.partitions").is_none());
    }
}
