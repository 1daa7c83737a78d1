//! What administrators and their tools ask: settings, quotas, credentials, directories, and what a cluster says of itself.

use highwater_tests::requests::Field;

use super::{Generator, unlisted_of};

/// Kafka's numbers for kinds of resources that have settings.
const TOPIC: i64 = 2;
const BROKER: i64 = 4;
const BROKER_LOGGER: i64 = 8;
const CLIENT_METRICS: i64 = 16;
const GROUP: i64 = 32;

/// A key with values that are taken, and some that are not. What would have one of the brokers change or drop records that the
/// other keeps is not here: a recompression, a short retention, a small segment.
type Setting = (&'static str, &'static [&'static str], &'static [&'static str]);

const OF_TOPICS: &[Setting] = &[
    ("retention.ms", &["-1", "7200000000"], &["-2", "abc", ""]),
    ("retention.bytes", &["-1", "1000000000"], &["x", "1.5"]),
    ("max.message.bytes", &["1048588", "2000000"], &["-1", "9999999999"]),
    ("min.insync.replicas", &["1"], &["0", "many"]),
    ("cleanup.policy", &["delete", "compact", "compact,delete"], &["nonsense", "delete,nonsense"]),
    ("compression.type", &["producer"], &["zip"]),
    ("delete.retention.ms", &["86400000", "1000"], &["-1"]),
    ("flush.messages", &["9223372036854775807", "100"], &["0"]),
    ("index.interval.bytes", &["4096", "8192"], &["-1"]),
    ("message.timestamp.type", &["CreateTime"], &["Never"]),
    ("message.timestamp.after.max.ms", &["3600000", "9223372036854775807"], &["-1"]),
    ("min.cleanable.dirty.ratio", &["0.5", "0.9"], &["2", "half"]),
    ("segment.bytes", &["1073741824", "500000000"], &["abc", "-1"]),
    ("segment.ms", &["604800000"], &["0"]),
    ("unclean.leader.election.enable", &["true", "false"], &["maybe"]),
    ("leader.replication.throttled.replicas", &["*", "0:1,1:1"], &["a:b"]),
    ("no.such.key", &["1"], &[""]),
];

const OF_BROKERS: &[Setting] = &[
    ("log.retention.ms", &["604800000", "-1"], &["abc"]),
    ("log.retention.bytes", &["-1", "1000000000"], &["x"]),
    ("log.segment.bytes", &["1073741824"], &["0"]),
    ("log.cleaner.backoff.ms", &["15000", "20000"], &["-1", "soon"]),
    ("log.cleaner.threads", &["1", "2"], &["none"]),
    ("message.max.bytes", &["1048588", "2000000"], &["-1"]),
    ("background.threads", &["8", "10"], &["0"]),
    ("num.io.threads", &["6", "8"], &["0", "x"]),
    ("num.replica.fetchers", &["1", "2"], &["x"]),
    ("num.recovery.threads.per.data.dir", &["2", "3"], &["0"]),
    ("max.connections", &["100000", "200000"], &["x"]),
    ("max.connections.per.ip", &["100000"], &["x"]),
    ("unclean.leader.election.enable", &["false"], &["maybe"]),
    ("log.message.timestamp.type", &["CreateTime"], &["Never"]),
    ("log.flush.interval.ms", &["60000"], &["x"]),
    // What is read at the start only.
    ("num.partitions", &["1"], &["x"]),
    ("log.retention.hours", &["168"], &["x"]),
    ("broker.rack", &["here"], &[]),
    ("node.id", &["1"], &[]),
    ("auto.create.topics.enable", &["false"], &["maybe"]),
    // A plug-in's.
    ("somebody.elses.key", &["1"], &[""]),
];

const OF_GROUPS: &[Setting] = &[
    ("consumer.session.timeout.ms", &["45000", "50000"], &["5", "x"]),
    ("consumer.heartbeat.interval.ms", &["5000", "6000"], &["500000"]),
    ("share.isolation.level", &["read_committed"], &["maybe"]),
    ("streams.num.standby.replicas", &["0", "1"], &["99"]),
    ("no.such.key", &["1"], &[]),
];

const OF_CLIENT_METRICS: &[Setting] = &[
    ("interval.ms", &["1000", "300000"], &["1", "x"]),
    ("metrics", &["org.apache.kafka.producer.", ""], &[]),
    ("match", &["client_id=a.*", "client_software_name=b"], &["nonsense"]),
    ("no.such.key", &["1"], &[]),
];

const USERS: &[&str] = &["alice", "bob", "carol"];

impl Generator<'_> {
    fn settings(&self) -> &'static [Setting] {
        match self.resource {
            BROKER | BROKER_LOGGER => OF_BROKERS,
            CLIENT_METRICS => OF_CLIENT_METRICS,
            GROUP => OF_GROUPS,
            _ => OF_TOPICS,
        }
    }

    /// A number of these requests.
    pub(super) fn administration_number(&mut self, field: &Field) -> Option<i64> {
        let number = match (self.api, &*field.name) {
            ("DescribeConfigs", "ResourceType") => {
                self.resource = self.pick(&[TOPIC, TOPIC, BROKER, CLIENT_METRICS, GROUP], &[0, 1, 100]);
                self.resource
            }
            ("AlterConfigs" | "IncrementalAlterConfigs", "ResourceType") => {
                self.resource = self.pick(&[TOPIC, TOPIC, BROKER, BROKER, CLIENT_METRICS, GROUP], &[0, 100]);
                self.resource
            }
            // To a number that there is not Kafka 4.1 answers -1: its own code fails.
            (_, "ConfigOperation") => self.pick(&[0, 0, 0, 1], &[2, 3]),
            ("ListConfigResources", "ResourceTypes") => self.pick(&[2, 4, 8, 16, 32], &[]),
            ("DeleteRecords", "Offset") => self.pick(&[0, 0, 1, 2], &[-1, -2, 1_000_000]),
            ("DescribeTopicPartitions", "ResponsePartitionLimit") => self.pick(&[10, 2000, 1, 2], &[0, -1]),
            ("DescribeAcls" | "DeleteAcls" | "CreateAcls", name) => match name {
                "ResourceTypeFilter" | "ResourceType" => self.pick(&[2, 3, 4], &[]),
                "PatternTypeFilter" | "ResourcePatternType" => self.pick(&[3, 4], &[]),
                "Operation" => self.pick(&[3, 4, 8], &[]),
                "PermissionType" => self.pick(&[2, 3], &[]),
                _ => return None,
            },
            (_, "MatchType") => {
                self.match_type = self.pick(&[0, 1, 2], &[3]);
                self.match_type
            }
            ("AlterClientQuotas", "Value") => {
                // Nobody is to be slowed down here.
                let value: f64 = *self.random.choose(&[1e9, 1e12]);
                // Not what is no number, which Kafka keeps for a quota.
                let odd = [0.0, -1.0, 1e9 + 0.5];
                let value = if self.odd() { *self.random.choose(&odd) } else { value };
                i64::from_be_bytes(value.to_be_bytes())
            }
            ("AlterClientQuotas", "Remove") => self.pick(&[0, 0, 1], &[]),
            (_, "Mechanism") => self.pick(&[1, 2], &[0, 3]),
            (_, "Iterations") => self.pick(&[4096, 8192], &[100, 20_000]),
            ("DescribeQuorum", "PartitionIndex") => self.pick(&[0], &[1]),
            ("UpdateFeatures", "MaxVersionLevel") => match &*self.name {
                // No level that Kafka would take: it cannot be taken back.
                "transaction.version" => self.pick(&[2], &[99]),
                _ => 99,
            },
            ("UpdateFeatures", "AllowDowngrade") => 0,
            ("UpdateFeatures", "UpgradeType") => self.pick(&[1], &[0, 2, 3, 4]),
            // Of one that is there Kafka would be alone.
            ("UnregisterBroker", "BrokerId") => self.pick(&[7, 8], &[-1]),
            (_, "MaxLifetimeMs" | "RenewPeriodMs" | "ExpiryTimePeriodMs") => self.pick(&[1000, -1], &[]),
            _ => return None,
        };
        Some(number)
    }

    /// A text of these requests: `None` if the field is none of theirs.
    pub(super) fn administration_text(&mut self, field: &Field, nullable: bool) -> Option<Option<String>> {
        let some = |text: &str| Some(Some(text.to_owned()));
        match (self.api, &*field.name) {
            ("DescribeConfigs" | "AlterConfigs" | "IncrementalAlterConfigs", name) => match name {
                "ResourceName" => {
                    self.settings_listed.clear();
                    // Two settings of one resource in a request are answered by Kafka twice, or never, and by us once.
                    let (good, odd): (&[&str], &[&str]) = match self.resource {
                        // Of all brokers at once Kafka keeps min.insync.replicas: no replacement goes without it.
                        BROKER if self.api == "AlterConfigs" => (&["1", "7", "x"], &[]),
                        BROKER | BROKER_LOGGER => (&["1", ""], &["7", "x"]),
                        CLIENT_METRICS => (&["first", "second"], &["", "nobody's"]),
                        GROUP => (&["one", "two", "static"], &["nobody's"]),
                        _ => return Some(Some(self.topic())),
                    };
                    let name = self.pick(good, odd);
                    let name = unlisted_of(&mut self.random, &mut self.listed, name, good);
                    Some(Some(name))
                }
                "ConfigurationKeys" | "Name" => {
                    let settings = self.settings();
                    let names: Vec<&str> = settings.iter().map(|(name, ..)| *name).collect();
                    let odd: &[&str] = if self.api == "DescribeConfigs" { &["no.such.key", ""] } else { &[] };
                    let name = self.pick(&names, odd);
                    let name = unlisted_of(&mut self.random, &mut self.settings_listed, name, &names);
                    self.setting = settings.iter().position(|(known, ..)| *known == name).unwrap_or(0);
                    Some(Some(name))
                }
                _ => {
                    if nullable && self.odd() {
                        return Some(None);
                    }
                    let (_, good, odd) = self.settings()[self.setting];
                    some(self.pick(good, odd))
                }
            },
            ("DescribeClientQuotas" | "AlterClientQuotas", "EntityType") => {
                let kinds = ["user", "client-id"];
                let kind = self.pick(&kinds, &["ip", "planet"]);
                let kind = unlisted_of(&mut self.random, &mut self.settings_listed, kind, &kinds);
                self.name.clone_from(&kind);
                Some(Some(kind))
            }
            ("DescribeClientQuotas", "Match") => match self.match_type {
                0 => some(self.pick(&["alice", "bob"], &["nobody"])),
                _ => Some(None),
            },
            ("AlterClientQuotas", "EntityName") => match &*self.name {
                "ip" => some("127.0.0.1"),
                _ if self.random.once_in(4) => Some(None),
                _ => some(self.pick(&["alice", "bob"], &[""])),
            },
            ("AlterClientQuotas", "Key") => {
                some(self.pick(&["producer_byte_rate", "consumer_byte_rate", "request_percentage"], &["nonsense"]))
            }
            ("DescribeUserScramCredentials" | "AlterUserScramCredentials", "Name") => {
                let name = self.pick(USERS, &["", "nobody"]);
                Some(Some(unlisted_of(&mut self.random, &mut self.settings_listed, name, USERS)))
            }
            ("DescribeQuorum", "TopicName") => some(self.pick(&["__cluster_metadata"], &["alpha"])),
            ("UpdateFeatures", "Feature") => {
                let known = ["transaction.version", "no.such.feature"];
                let name = self.pick(&known, &["metadata.version", "group.version"]);
                let name = unlisted_of(&mut self.random, &mut self.settings_listed, name, &known);
                self.name.clone_from(&name);
                Some(Some(name))
            }
            ("AlterReplicaLogDirs", "Path") => {
                let known = self.world.log_dir().filter(|_| self.random.once_in(2)).map(str::to_owned);
                Some(Some(known.unwrap_or_else(|| "/nope".to_owned())))
            }
            ("DescribeTopicPartitions", "TopicName") => Some(Some(self.topic())),
            // To one without a name Kafka 4.1 answers -1 for all: its own code fails.
            ("DescribeTopicPartitions", "Name") => {
                Some(Some(self.topic()).map(|name| if name.is_empty() { "missing".to_owned() } else { name }))
            }
            ("CreateAcls", "ResourceName") => some("alpha"),
            _ => None,
        }
    }

    /// How many there are of something in these requests: `None` if the field is none of theirs.
    pub(super) fn administration_count(&mut self, field: &Field) -> Option<Option<usize>> {
        let count = match (self.api, &*field.name) {
            ("AlterConfigs" | "IncrementalAlterConfigs", "Configs") => self.pick(&[1, 1, 2], &[0]),
            ("AlterConfigs" | "IncrementalAlterConfigs" | "DescribeConfigs", "Resources") => {
                self.pick(&[1, 1, 2], &[0])
            }
            ("DescribeConfigs", "ConfigurationKeys") if self.random.once_in(2) => return Some(None),
            ("DescribeConfigs", "ConfigurationKeys") => self.pick(&[1, 2, 3], &[0]),
            ("DescribeClientQuotas", "Components") => self.pick(&[0, 1, 1, 2], &[]),
            ("AlterClientQuotas", "Entity") => {
                self.settings_listed.clear();
                self.pick(&[1, 1, 2], &[0])
            }
            ("AlterClientQuotas", "Entries" | "Ops") => self.pick(&[1], &[0]),
            ("AlterUserScramCredentials", "Deletions") => {
                self.deletes = self.random.once_in(3);
                usize::from(self.deletes)
            }
            // One that was added beside the deletion of the last one of its mechanism, Kafka 4.1 does not have after it.
            ("AlterUserScramCredentials", "Upsertions") => {
                if self.deletes {
                    0
                } else {
                    self.pick(&[0, 1, 1], &[])
                }
            }
            ("DescribeQuorum", _) => 1,
            ("UpdateFeatures", _) => self.pick(&[1, 1, 2], &[0]),
            ("AlterReplicaLogDirs", "Dirs") => 1,
            // Both mean that there is nothing to go on from.
            ("DescribeTopicPartitions", "Cursor") if !self.random.once_in(4) => return Some(None),
            ("DescribeTopicPartitions", "Cursor") => 1,
            ("ListConfigResources", _) => self.pick(&[0, 1, 1, 2], &[]),
            _ => return None,
        };
        Some(Some(count))
    }
}
