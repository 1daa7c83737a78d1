//! Collecting keys from a file and the command line, with where each was written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use java_properties::{LineContent, PropertiesIter};

use super::kafka_names::{FORMER_BROKER_KEYS, OPEN_PREFIXES, UNUSED_BROKER_KEYS};
use super::keys::{BROKER_KEYS, BrokerKey};
use super::topic_keys::TOPIC_KEYS;
use super::{BrokerConfig, parse};

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In a properties file, at a line counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// In an argument, as the user would recognise it.
    Argument(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Argument(argument) => f.write_str(argument),
        }
    }
}

/// A setting that cannot be used, with where it stands.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no properties file.
    #[error("{}, line {line}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, 0 where it is not known.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// An argument that should read `key=value` does not.
    #[error("{0:?} is not key=value")]
    NoPair(String),
    /// Kafka has no such key.
    #[error("{origin}: unknown key {key:?}{}", did_you_mean(nearest.as_deref()))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// Where.
        origin: Origin,
        /// The closest key there is.
        nearest: Option<String>,
    },
    /// The key does not take this value.
    #[error("{origin}: {key}: {problem}")]
    Value {
        /// The key.
        key: String,
        /// Where.
        origin: Origin,
        /// What is wrong.
        problem: String,
    },
}

/// A key of Kafka's that was set and has no effect here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IgnoredKey {
    /// The key.
    pub key: String,
    /// Where it was set last.
    pub origin: Origin,
}

/// Settings in the order they were given: a later one replaces an earlier one of the same key.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<String, (String, Origin)>,
}

impl Settings {
    /// No settings: all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a properties file in Java's syntax and, as Java and Kafka read it, ISO-8859-1.
    pub fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        self.read_text(path, &text)
    }

    fn read_text(&mut self, path: &Path, text: &[u8]) -> Result<(), ConfigError> {
        for line in PropertiesIter::new(text) {
            let line = line.map_err(|error| ConfigError::Syntax {
                path: path.to_owned(),
                line: error.line_number().unwrap_or(0),
                problem: error.to_string(),
            })?;
            let number = line.line_number();
            if let LineContent::KVPair(key, value) = line.consume_content() {
                self.put(&key, &value, Origin::File { path: path.to_owned(), line: number });
            }
        }
        Ok(())
    }

    /// Adds `key=value` as given to `--set`.
    pub fn set(&mut self, pair: &str) -> Result<(), ConfigError> {
        let (key, value) = pair.split_once('=').ok_or_else(|| ConfigError::NoPair(pair.to_owned()))?;
        if key.trim().is_empty() {
            return Err(ConfigError::NoPair(pair.to_owned()));
        }
        self.put(key.trim(), value, Origin::Argument(format!("--set {pair}")));
        Ok(())
    }

    /// Adds a key that an argument of its own stands for, such as `--data-dir` for `log.dirs`.
    pub fn put(&mut self, key: &str, value: &str, origin: Origin) {
        self.values.insert(key.to_owned(), (value.to_owned(), origin));
    }

    /// The configuration, and what of Kafka's was set in vain.
    pub fn build(self) -> Result<(BrokerConfig, Vec<IgnoredKey>), ConfigError> {
        let mut config = BrokerConfig::default();
        let mut ignored = Vec::new();
        for (key, (value, origin)) in &self.values {
            if let Some(known) = BrokerKey::named(key) {
                (known.set)(&mut config, value).map_err(|problem| refused(key, origin, problem))?;
                config.set_keys.insert(key.clone(), value.trim().to_owned());
            } else if TOPIC_KEYS.iter().any(|topic| topic.broker_keys.iter().any(|&(name, _)| name == key)) {
                config.set_keys.insert(key.clone(), value.trim().to_owned());
            } else if is_kafkas(key) {
                ignored.push(IgnoredKey { key: key.clone(), origin: origin.clone() });
            } else {
                let nearest = nearest(key, every_name()).map(str::to_owned);
                return Err(ConfigError::UnknownKey { key: key.clone(), origin: origin.clone(), nearest });
            }
        }
        self.apply_topic_defaults(&mut config)?;
        self.apply_precedence(&mut config)?;
        Ok((config, ignored))
    }

    /// Each topic default has one or more broker keys in different units; the first of them that is set counts, but
    /// all of them must be readable.
    fn apply_topic_defaults(&self, config: &mut BrokerConfig) -> Result<(), ConfigError> {
        for topic in TOPIC_KEYS {
            for &(name, factor) in topic.broker_keys.iter().rev() {
                let Some((value, origin)) = self.values.get(name) else { continue };
                let scaled = if factor == 1 {
                    value.clone()
                } else {
                    let count: i64 =
                        parse::number(value, -1, i64::MAX).map_err(|problem| refused(name, origin, problem))?;
                    // Any negative retention means "for ever", whatever its unit.
                    if count < 0 { "-1".to_owned() } else { count.saturating_mul(factor).to_string() }
                };
                (topic.set)(&mut config.topic, &scaled).map_err(|problem| refused(name, origin, problem))?;
            }
        }
        Ok(())
    }

    /// Keys that say the same thing under two names.
    fn apply_precedence(&self, config: &mut BrokerConfig) -> Result<(), ConfigError> {
        if let (Some((node, _)), Some((broker, origin))) = (self.values.get("node.id"), self.values.get("broker.id"))
            && node.trim() != broker.trim()
        {
            return Err(refused("broker.id", origin, format!("is {broker}, but node.id is {node}: they must agree")));
        }
        if let (Some(_), Some((_, origin))) = (&config.zookeeper_connect, self.values.get("zookeeper.connect"))
            && !["node.id", "broker.id"].iter().any(|key| self.values.contains_key(*key))
        {
            let problem = "a broker of a cluster needs a number of its own: set broker.id".to_owned();
            return Err(refused("zookeeper.connect", origin, problem));
        }
        // The table is walked in the order of names, which puts `log.dir` before `log.dirs`: the latter wins, as in Kafka.
        if config.heartbeat_interval_ms >= config.session_timeout_ms {
            let key = "broker.heartbeat.interval.ms";
            let other = "broker.session.timeout.ms";
            let (key, origin) = match (self.values.get(key), self.values.get(other)) {
                (Some((_, origin)), _) => (key, origin.clone()),
                (None, Some((_, origin))) => (other, origin.clone()),
                (None, None) => unreachable!("the defaults fit each other"),
            };
            return Err(refused(key, &origin, "the heartbeat interval must be below the session timeout".to_owned()));
        }
        Ok(())
    }
}

impl BrokerKey {
    /// The key called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        BROKER_KEYS.iter().find(|key| key.name == name)
    }
}

fn refused(key: &str, origin: &Origin, problem: String) -> ConfigError {
    ConfigError::Value { key: key.to_owned(), origin: origin.clone(), problem }
}

/// Whether it is a key that Kafka has, or had, and this broker does not act on.
pub(crate) fn is_kafkas(key: &str) -> bool {
    UNUSED_BROKER_KEYS.contains(&key)
        || FORMER_BROKER_KEYS.contains(&key)
        || OPEN_PREFIXES.iter().any(|prefix| key.starts_with(prefix) && key.len() > prefix.len())
}

fn every_name() -> impl Iterator<Item = &'static str> {
    let topics = TOPIC_KEYS.iter().flat_map(|key| key.broker_keys.iter().map(|&(name, _)| name));
    let own = BROKER_KEYS.iter().map(|key| key.name);
    own.chain(topics).chain(UNUSED_BROKER_KEYS.iter().copied())
}

/// No key there is comes near this, and comparing takes time that grows with the length: names come from clients too.
const NAME_BYTES_COMPARED: usize = 128;

/// The closest of `names`, unless none is close.
pub(super) fn nearest<'a>(key: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if key.len() > NAME_BYTES_COMPARED {
        return None;
    }
    let limit = (key.chars().count() / 3).max(2);
    names.map(|name| (distance(key, name), name)).filter(|&(edits, _)| edits <= limit).min().map(|(_, name)| name)
}

pub(super) fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean {name}?)"))
}

/// Levenshtein's edit distance.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, character) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for column in 0..to.len() {
            let substituted = diagonal + usize::from(character != to[column]);
            diagonal = row[column + 1];
            row[column + 1] = substituted.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ListenAddress, TimestampSource};

    fn build(text: &str) -> Result<(BrokerConfig, Vec<IgnoredKey>), ConfigError> {
        let mut settings = Settings::new();
        settings.read_text(Path::new("server.properties"), text.as_bytes())?;
        settings.build()
    }

    fn problem(text: &str) -> String {
        build(text).unwrap_err().to_string()
    }

    #[test]
    fn nothing_set_is_the_default() {
        assert_eq!(build("# a comment\n\n").unwrap(), (BrokerConfig::default(), Vec::new()));
    }

    #[test]
    fn a_kafka_file_is_understood() {
        let text = "broker.id=3\nlisteners = PLAINTEXT://0.0.0.0:9093\nadvertised.listeners=PLAINTEXT://h\\u00e9:1\n\
                    log.dirs=/data\nnum.partitions: 4\nlog.message.timestamp.type=LogAppendTime\nmessage.max.bytes=2097164\n\
                    log.retention.hours=2\nnum.io.threads=3\nzookeeper.connect=a:2181,[::1]:2181/b\nssl.keystore.type=JKS\n\
                    listener.name.internal.ssl.key=x\n";
        let (config, ignored) = build(text).unwrap();
        assert_eq!(config.broker_id, highwater_replication::BrokerId(3));
        assert_eq!(config.listen, ListenAddress { host: "0.0.0.0".to_owned(), port: 9093 });
        assert_eq!(config.advertised.as_ref().unwrap().host, "hé");
        assert_eq!(config.data_dir, Path::new("/data"));
        assert_eq!(config.num_partitions, 4);
        assert_eq!(config.topic.timestamp_source, TimestampSource::LogAppendTime);
        assert_eq!(config.topic.max_message_bytes, 2_097_164);
        assert_eq!(config.topic.retention_ms, 7_200_000);
        assert!(config.is_set("num.io.threads") && config.is_set("log.retention.hours"));
        assert!(!config.is_set("num.network.threads"));
        let names: Vec<&str> = ignored.iter().map(|ignored| ignored.key.as_str()).collect();
        assert_eq!(names, ["listener.name.internal.ssl.key", "ssl.keystore.type"]);
        assert_eq!(ignored[1].origin.to_string(), "server.properties, line 11");
        assert_eq!(config.zookeeper_connect.as_deref(), Some("a:2181,[::1]:2181/b"));
        assert_eq!((config.zookeeper_session_timeout_ms, config.zookeeper_connection_timeout_ms), (18_000, None));
    }

    #[test]
    fn mistakes_name_key_file_and_line() {
        let error = problem("node.id=1\nlog.retention.hour=3\n");
        assert_eq!(
            error,
            "server.properties, line 2: unknown key \"log.retention.hour\" (did you mean log.retention.hours?)"
        );
        let error = problem("\nnum.partitions=many\n");
        assert_eq!(error, "server.properties, line 2: num.partitions: \"many\" is no whole number");
        assert!(problem("xyzzy=1").ends_with("unknown key \"xyzzy\""));
        assert!(problem("node.id=1\nbroker.id=2").contains("line 2: broker.id: is 2, but node.id is 1"));
        assert!(problem("log.retention.hours=x").contains("line 1: log.retention.hours"));
        assert!(problem("broker.heartbeat.interval.ms=9000").contains("below the session timeout"));
        assert!(problem("broker.session.timeout.ms=2000").contains("line 1: broker.session.timeout.ms"));
        assert!(problem("a=\\u12").starts_with("server.properties, line 1"));
        assert!(
            problem("broker.id=1\nzookeeper.connect=a:b").contains("line 2: zookeeper.connect: \"a:b\" is no list")
        );
        assert!(problem("zookeeper.connect=a:1").ends_with("needs a number of its own: set broker.id"));
        assert_eq!(build("zookeeper.connect=").unwrap().0.zookeeper_connect, None);
        assert!(problem("advertised.listeners=PLAINTEXT://0.0.0.0:1").contains("every interface"));
    }

    #[test]
    fn finer_units_win_whatever_the_order() {
        let retention = |text: &str| build(text).unwrap().0.topic.retention_ms;
        assert_eq!(retention("log.retention.ms=5\nlog.retention.hours=1\nlog.retention.minutes=1"), 5);
        assert_eq!(retention("log.retention.minutes=2\nlog.retention.hours=1"), 120_000);
        assert_eq!(retention("log.retention.hours=-1"), -1);
        assert_eq!(retention("log.retention.minutes=2147483647"), 2_147_483_647 * 60_000);
        assert_eq!(build("log.dirs=/b\nlog.dir=/a").unwrap().0.data_dir, Path::new("/b"));
    }

    #[test]
    fn arguments_replace_the_file() {
        let mut settings = Settings::new();
        settings.read_text(Path::new("f"), b"num.partitions=2\nnum.partitions=3").unwrap();
        settings.set("num.partitions=5").unwrap();
        settings.put("log.dirs", "/x", Origin::Argument("--data-dir /x".to_owned()));
        let (config, _) = settings.clone().build().unwrap();
        assert_eq!((config.num_partitions, config.data_dir.as_path()), (5, Path::new("/x")));
        settings.set("num.partitions=0").unwrap();
        let error = settings.clone().build().unwrap_err().to_string();
        assert_eq!(error, "--set num.partitions=0: num.partitions: 0 is outside 1..=2147483647");
        assert!(matches!(settings.set("novalue"), Err(ConfigError::NoPair(_))));
        assert!(matches!(settings.set("=1"), Err(ConfigError::NoPair(_))));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Settings::new().read_file(Path::new("/nowhere/server.properties")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nowhere/server.properties: "), "{error}");
    }

    #[test]
    fn every_value_shown_reads_back_to_the_same_config() {
        let config = BrokerConfig::default();
        let mut again = BrokerConfig { num_partitions: 7, ..BrokerConfig::default() };
        for key in BROKER_KEYS {
            if let Some(shown) = (key.show)(&config) {
                (key.set)(&mut again, &shown).unwrap();
            }
        }
        assert_eq!(again, config);
    }

    #[test]
    fn no_name_stands_in_two_lists() {
        let mut seen = std::collections::BTreeSet::new();
        for name in every_name().chain(FORMER_BROKER_KEYS.iter().copied()) {
            assert!(seen.insert(name), "{name}");
        }
    }
}
