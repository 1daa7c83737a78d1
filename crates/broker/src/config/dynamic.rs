//! Broker keys that can be set while the broker runs: the defaults of topics' settings. All others are read at the start.

use std::collections::BTreeMap;

use super::topic_keys::{TOPIC_KEYS, TopicKey};
use super::{BrokerConfig, TopicConfig};

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
}
