//! What can be set of consumer groups and of the metrics of clients. It is kept and told; the groups that there are so far do
//! not act on it, and no metrics are asked of clients.

use super::keys::ConfigType;
use super::parse;

/// A key of a group or of a subscription of metrics.
pub(crate) struct ResourceKey {
    pub(crate) name: &'static str,
    pub(crate) kind: ConfigType,
    pub(crate) default: &'static str,
    /// What a value must keep to; the error is the whole message.
    check: fn(&str, &str) -> Result<(), String>,
}

impl std::fmt::Debug for ResourceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// Why a value was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InvalidResource {
    /// There is no such key.
    Unknown,
    /// It does not take the value; the message.
    Value(String),
}

/// Checks one key of a kind of resource.
pub(crate) fn check(keys: &[ResourceKey], name: &str, value: &str) -> Result<(), InvalidResource> {
    let key = keys.iter().find(|key| key.name == name).ok_or(InvalidResource::Unknown)?;
    (key.check)(name, value).map_err(InvalidResource::Value)
}

fn number(name: &str, value: &str) -> Result<i64, String> {
    let number: Result<i32, _> = parse::number(value, i64::from(i32::MIN), i64::from(i32::MAX));
    number.map(i64::from).map_err(|problem| format!("Invalid value {value} for configuration {name}: {problem}"))
}

/// Within what the broker's keys `group.<min>` and `group.<max>` allow by default; they cannot be set here yet.
fn within(name: &str, value: &str, least: i64, most: i64) -> Result<(), String> {
    let (number, bound) = (number(name, value)?, |which: &str| match name.split_once('.') {
        Some((protocol, rest)) => format!("group.{protocol}.{which}.{rest}"),
        None => which.to_owned(),
    });
    if number < least {
        return Err(format!("{name} must be greater than or equal to {}", bound("min")));
    }
    if number > most {
        return Err(format!("{name} must be less than or equal to {}", bound("max")));
    }
    Ok(())
}

fn one_of(name: &str, value: &str, words: &[&str]) -> Result<(), String> {
    let found = parse::one_of(value, words);
    found.map(drop).map_err(|problem| format!("Invalid value {value} for configuration {name}: {problem}"))
}

macro_rules! within {
    ($name:literal, $default:literal, $least:literal, $most:literal) => {
        ResourceKey {
            name: $name,
            kind: ConfigType::Int,
            default: $default,
            check: |name, value| within(name, value, $least, $most),
        }
    };
}

/// The keys of groups.
pub(crate) static GROUP_KEYS: &[ResourceKey] = &[
    within!("consumer.heartbeat.interval.ms", "5000", 5_000, 15_000),
    within!("consumer.session.timeout.ms", "45000", 45_000, 60_000),
    ResourceKey {
        name: "share.auto.offset.reset",
        kind: ConfigType::String,
        default: "latest",
        check: |name, value| match value.strip_prefix("by_duration:") {
            Some(duration) if duration.starts_with('P') => Ok(()),
            _ => one_of(name, value, &["latest", "earliest"]),
        },
    },
    within!("share.heartbeat.interval.ms", "5000", 5_000, 15_000),
    ResourceKey {
        name: "share.isolation.level",
        kind: ConfigType::String,
        default: "read_uncommitted",
        check: |name, value| one_of(name, value, &["read_committed", "read_uncommitted"]),
    },
    within!("share.record.lock.duration.ms", "30000", 15_000, 60_000),
    within!("share.session.timeout.ms", "45000", 45_000, 60_000),
    within!("streams.heartbeat.interval.ms", "5000", 5_000, 15_000),
    within!("streams.num.standby.replicas", "0", 0, 2),
    within!("streams.session.timeout.ms", "45000", 45_000, 60_000),
];

/// What a client can be chosen by.
const SELECTORS: [&str; 6] = [
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
];

/// The keys of subscriptions of clients' metrics.
pub(crate) static CLIENT_METRICS_KEYS: &[ResourceKey] = &[
    ResourceKey {
        name: "interval.ms",
        kind: ConfigType::Int,
        default: "300000",
        check: |name, value| match number(name, value)? {
            100..=3_600_000 => Ok(()),
            _ => Err(format!("Invalid value {value} for {name}, interval must be between 100 and 3600000 (1 hour)")),
        },
    },
    ResourceKey {
        name: "match",
        kind: ConfigType::List,
        default: "",
        check: |_, value| {
            let is_pattern = |pattern: &str| {
                pattern.split_once('=').is_some_and(|(by, what)| SELECTORS.contains(&by.trim()) && !what.is_empty())
            };
            match value.split(',').find(|pattern| !value.trim().is_empty() && !is_pattern(pattern)) {
                Some(pattern) => Err(format!("Illegal client matching pattern: {pattern}")),
                None => Ok(()),
            }
        },
    },
    ResourceKey { name: "metrics", kind: ConfigType::List, default: "", check: |_, _| Ok(()) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_kept_within_what_kafka_allows() {
        for keys in [GROUP_KEYS, CLIENT_METRICS_KEYS] {
            assert!(keys.is_sorted_by_key(|key| key.name));
            for key in keys {
                assert_eq!(check(keys, key.name, key.default), Ok(()), "{key:?}");
            }
        }
        let refused = |keys, name, value| match check(keys, name, value) {
            Err(InvalidResource::Value(message)) => message,
            other => panic!("{name}={value}: {other:?}"),
        };
        let session = "consumer.session.timeout.ms";
        assert!(refused(GROUP_KEYS, session, "x").starts_with("Invalid value x for configuration"));
        assert_eq!(
            refused(GROUP_KEYS, session, "5"),
            format!("{session} must be greater than or equal to group.consumer.min.session.timeout.ms")
        );
        assert_eq!(
            refused(GROUP_KEYS, session, "500000"),
            format!("{session} must be less than or equal to group.consumer.max.session.timeout.ms")
        );
        assert_eq!(refused(CLIENT_METRICS_KEYS, "match", "foo"), "Illegal client matching pattern: foo");
        assert!(refused(CLIENT_METRICS_KEYS, "interval.ms", "1").ends_with("between 100 and 3600000 (1 hour)"));
        assert_eq!(check(GROUP_KEYS, "no.such", "1"), Err(InvalidResource::Unknown));
    }
}
