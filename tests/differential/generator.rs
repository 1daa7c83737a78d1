//! Requests that a client might send, most of them in order, some with what no client should ask for.

mod administration;
mod transactions;

use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};
use highwater_tests::Random;
use highwater_tests::requests::{Field, Values};

use crate::world::{MADE_UP, World};

pub(crate) use transactions::TRANSACTIONAL_IDS;

/// Topics that are there from the beginning to the end, with records, and without.
pub(crate) const TOPICS: &[&str] = &["alpha", "beta", "gamma", "compacted", "stamped"];
/// Topics that come and go.
const FRESH: &[&str] = &["fresh-0", "fresh-1", "fresh-2", "fresh-3", "fresh.4", "fresh_5"];
const ODD_TOPICS: &[&str] = &["missing", "bad/name", "", "..", "alpha.beta", "alpha_beta"];
/// Groups; the members of the one come back under a name of their own.
pub(crate) const GROUPS: &[&str] = &["one", "two", "static"];
const ODD_GROUPS: &[&str] = &["", "nobody's"];

/// How old the first record is: past, and young enough for every topic to keep it.
pub(crate) const AGE_MS: i64 = 3_600_000;

/// The present, in whole seconds.
pub(crate) fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(now.as_secs()).expect("it fits for long") * 1000
}

/// Fills one request. The same random numbers give the same choices, whatever the world is.
pub(crate) struct Generator<'a> {
    api: &'a str,
    version: i16,
    random: Random,
    world: &'a World,
    first_time_ms: i64,
    /// Whether anything of this request is to be out of order.
    is_odd: bool,
    group: String,
    resource: i64,
    session: Option<(i32, i32)>,
    /// Whether an answer has no room for all that is asked for.
    is_small: bool,
    /// Whether a request to produce is about one partition only.
    is_alone: bool,
    member: bool,
    has_assignments: bool,
    listed: Vec<String>,
    partitions: Vec<i64>,
    by_id: bool,
    topics: usize,
    /// Of which kind, or called how, what comes next is about.
    name: String,
    match_type: i64,
    /// Whether credentials are deleted.
    deletes: bool,
    /// The setting whose value is next, and which have been named.
    setting: usize,
    settings_listed: Vec<String>,
    transactional: String,
    is_transactional: bool,
    names_itself: bool,
    /// A producer without transactions.
    plain: Option<(i64, i16)>,
}

/// A name, or another one if it is listed already; lists it.
fn unlisted_of(random: &mut Random, listed: &mut Vec<String>, name: &str, good: &[&str]) -> String {
    let mut name = name.to_owned();
    for _ in 0..20 {
        if !listed.contains(&name) {
            break;
        }
        name = (*random.choose(good)).to_owned();
    }
    listed.push(name.clone());
    name
}

impl<'a> Generator<'a> {
    pub(crate) fn new(api: &'a str, version: i16, mut random: Random, first_time_ms: i64, world: &'a World) -> Self {
        let is_odd = random.once_in(2);
        let group = String::new();
        Self {
            api,
            version,
            random,
            world,
            first_time_ms,
            is_odd,
            group,
            resource: 0,
            session: None,
            is_small: false,
            is_alone: false,
            member: false,
            has_assignments: false,
            listed: Vec::new(),
            partitions: Vec::new(),
            by_id: false,
            topics: 0,
            name: String::new(),
            match_type: 0,
            deletes: false,
            setting: 0,
            settings_listed: Vec::new(),
            transactional: String::new(),
            is_transactional: false,
            names_itself: false,
            plain: None,
        }
    }

    fn odd(&mut self) -> bool {
        self.is_odd && self.random.once_in(4)
    }

    fn pick<T: Copy>(&mut self, good: &[T], odd: &[T]) -> T {
        if !odd.is_empty() && self.odd() { *self.random.choose(odd) } else { *self.random.choose(good) }
    }

    fn topic(&mut self) -> String {
        self.partitions.clear();
        let comes_and_goes: &[&str] = match self.api {
            // What is there from the beginning stays, and its partitions stay as many.
            "CreateTopics" | "DeleteTopics" => {
                return self.unlisted(FRESH, &["alpha", "missing", "bad/name", "", ".."]);
            }
            "CreatePartitions" => return self.unlisted(FRESH, &["alpha", "missing", "bad/name", ""]),
            // What is written, and then gone or come again, is not gone or there at one time on both.
            "OffsetCommit" | "OffsetFetch" | "OffsetDelete" | "Produce" | "AddPartitionsToTxn" | "TxnOffsetCommit"
            | "WriteTxnMarkers" | "DeleteRecords" => &[],
            _ => FRESH,
        };
        if !comes_and_goes.is_empty() && self.random.once_in(8) {
            return self.unlisted(comes_and_goes, &[]);
        }
        self.unlisted(TOPICS, ODD_TOPICS)
    }

    /// One that this request has not named yet, if there is one.
    fn unlisted(&mut self, good: &[&str], odd: &[&str]) -> String {
        let name = self.pick(good, odd);
        let mut name = unlisted_of(&mut self.random, &mut self.listed, name, good);
        if self.api == "DeleteTopics" && name == "alpha" {
            "missing".clone_into(&mut name);
        }
        name
    }

    fn batch(&mut self) -> Vec<u8> {
        let codec =
            *self.random.choose(&[Codec::None, Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd]);
        let mut builder = BatchBuilder::new(codec);
        let transactional = self.world.transactional(&self.transactional).filter(|_| self.is_transactional);
        // By a batch that is refused for itself a partition takes part in Kafka, and not here: none of a transaction is.
        let transactional = transactional.filter(|_| !self.odd());
        let is_whole = transactional.is_some();
        if let Some((id, epoch)) = transactional {
            let sequence = *self.random.choose(&[0, 0, 0, 1, 2]);
            builder = builder.producer(id, epoch, sequence).transactional();
        } else if self.random.once_in(4) {
            let pick = self.random.below(3);
            let sequence = *self.random.choose(&[0, 0, 1, 2, 5]);
            if let Some((id, epoch)) = self.world.producer(pick) {
                builder = builder.producer(id, epoch, sequence);
            }
        }
        let records = 1 + self.random.below(3);
        for number in 0..records {
            let offset_ms = i64::try_from(self.random.below(3_000)).expect("it is small");
            let timestamp = TimestampMs(self.first_time_ms + offset_ms);
            let value = format!("value {number} {}", self.random.below(1000));
            let key = format!("key {}", self.random.below(4));
            builder.push(match self.random.below(4) {
                0 if !is_whole => Record::new(timestamp, value.as_bytes()),
                1 => Record { value: None, ..Record::keyed(timestamp, key.as_bytes(), b"") },
                2 => Record {
                    headers: &[("a", Some(b"b")), ("c", None)],
                    ..Record::keyed(timestamp, key.as_bytes(), value.as_bytes())
                },
                _ => Record::keyed(timestamp, key.as_bytes(), value.as_bytes()),
            });
        }
        let mut bytes = builder.build();
        if !is_whole && self.odd() {
            match self.random.below(7) {
                // The checksum, the last offset delta, the number of records, the magic, an unknown codec; cut off; none.
                0 => bytes[17] ^= 1,
                1 => bytes[26] ^= 1,
                2 => bytes[60] ^= 1,
                // By one that no format has Kafka refuses whatever else is in the request.
                3 => bytes[16] = *self.random.choose(if self.is_alone { &[0, 1, 3, 0x7f] } else { &[0, 1] }),
                // By an older request that has one all of the request fails within Kafka.
                4 if self.version >= 7 => bytes[22] |= 7,
                5 => bytes.truncate(self.random.below(bytes.len())),
                _ => bytes.clear(),
            }
        }
        bytes
    }

    /// What is said of an offset. By one that is refused as the first of its group Kafka makes the group, of which it tells to
    /// those who change something, and not to those who read.
    fn metadata(&mut self) -> String {
        let long = "x".repeat(5000);
        let odd = [long.as_str()];
        let has_members = self.world.member(&self.group).is_some();
        self.pick(&["", "some words"], if has_members { &odd } else { &[] }).to_owned()
    }

    fn group(&mut self) -> String {
        let group = self.pick(GROUPS, ODD_GROUPS);
        // Of one that is asked for twice Kafka tells twice, and we once.
        self.group = match self.api {
            "OffsetFetch" => {
                self.listed.clear();
                unlisted_of(&mut self.random, &mut self.settings_listed, group, GROUPS)
            }
            _ => group.to_owned(),
        };
        // Where the generation comes before the member, it is the member's.
        let may_be_nobody = matches!(self.api, "OffsetCommit" | "OffsetFetch" | "TxnOffsetCommit");
        self.member = !(self.odd() || may_be_nobody && self.random.once_in(2));
        if self.group == "static" && self.api == "JoinGroup" && self.version < 5 {
            // These versions have no names for members that come back.
            "one".clone_into(&mut self.group);
        }
        self.group.clone()
    }
}

impl Values for Generator<'_> {
    fn number(&mut self, field: &Field) -> i64 {
        if let Some(number) = self.administration_number(field).or_else(|| self.transaction_number(field)) {
            return number;
        }
        const MAX: i64 = i32::MAX as i64;
        let times = [self.first_time_ms, self.first_time_ms + 700, self.first_time_ms + 10_000];
        match (self.api, &*field.name) {
            ("Fetch", "MaxWaitMs") => self.pick(&[0, 1, 20], &[]),
            ("Fetch", "MinBytes") => self.pick(&[0, 1], &[-1, 1_000_000]),
            ("Fetch", "MaxBytes") => {
                let max = self.pick(&[1 << 20, 1 << 20, 200, 1], &[0, MAX]);
                self.is_small = max < 1 << 20;
                max
            }
            ("Fetch", "PartitionMaxBytes") => self.pick(&[1 << 20, 1 << 20, 150], &[0, 1, MAX]),
            ("Fetch", "SessionId") => {
                let pick = self.random.below(3);
                let mode = self.random.below(4);
                // Who comes first in a session whose answers are small is each broker's own affair.
                self.session = self.world.session(pick).filter(|_| !self.is_small);
                match (mode, self.session) {
                    (0, Some((id, _))) => i64::from(id),
                    (1, _) if self.is_odd => {
                        self.session = None;
                        12_345
                    }
                    _ => {
                        self.session = None;
                        0
                    }
                }
            }
            ("Fetch", "SessionEpoch") => match self.session {
                Some((_, next)) => {
                    let next = i64::from(next);
                    self.pick(&[next], &[next + 1, 0, -1])
                }
                None if self.is_small => -1,
                None => self.pick(&[-1, -1, 0], &[1, 7]),
            },
            ("Fetch", "FetchOffset") => self.pick(&[0, 0, 1, 3], &[-1, 1000, i64::MAX]),
            ("Fetch", "LastFetchedEpoch") => self.pick(&[-1], &[0, 1]),
            ("Fetch", "LogStartOffset") => -1,
            (_, "IsolationLevel") => self.pick(&[0, 1], &[]),
            (_, "ReplicaId") => self.pick(&[-1], &[-2]),
            ("ListOffsets", "Timestamp") => {
                let [first, middle, late] = times;
                self.pick(&[-1, -2, -3, -4, 0, first, middle, late], &[-5, -6, -7, -100, i64::MAX])
            }
            (_, "CurrentLeaderEpoch") => self.pick(&[-1, -1, 0], &[1, 5, -2]),
            ("OffsetForLeaderEpoch", "LeaderEpoch") => self.pick(&[0], &[-1, 1, 5, MAX]),
            // By a batch that is refused for its acks a partition takes part in a transaction in Kafka, and not here.
            ("Produce", "Acks") => self.pick(&[-1, 1], if self.is_transactional { &[] } else { &[2, -2] }),
            (_, "TimeoutMs") => self.pick(&[5_000], &[]),
            (_, "Partition" | "Index" | "PartitionIndex" | "PartitionIndexes" | "Partitions") => {
                // From the greatest number of all Kafka goes on at the least.
                let odd: &[i64] = if self.api == "DescribeTopicPartitions" { &[2, 7, -1] } else { &[2, 7, -1, MAX] };
                let mut number = self.pick(&[0, 0, 0, 1], odd);
                while self.partitions.contains(&number) {
                    number = if number == MAX { 0 } else { number + 1 };
                }
                self.partitions.push(number);
                number
            }
            ("FindCoordinator", "KeyType") => self.pick(&[0, 0, 1], &[2, 3, -1]),
            ("CreateTopics", "NumPartitions") => {
                let count = self.pick(&[1, 2, -1], &[0, -2]);
                if self.has_assignments && !self.odd() { -1 } else { count }
            }
            ("CreateTopics", "ReplicationFactor") => {
                let factor = self.pick(&[1, -1], &[0, 2, -2]);
                if self.has_assignments && !self.odd() { -1 } else { factor }
            }
            (_, "BrokerIds") => self.pick(&[1], &[0, 7, -1]),
            ("CreatePartitions", "Count") => self.pick(&[2, 3], &[1, 0, -1]),
            (_, "ValidateOnly") => self.pick(&[0, 0, 0, 1], &[]),
            (_, "AllowAutoTopicCreation") => 0,
            ("ElectLeaders", "ElectionType") => self.pick(&[0, 1], &[]),
            (_, "EndpointType") => self.pick(&[1], &[2, 3]),
            ("JoinGroup", "SessionTimeoutMs") => self.pick(&[300_000], &[0, 100, MAX, -1]),
            ("JoinGroup", "RebalanceTimeoutMs") => self.pick(&[300_000], &[]),
            (_, "GenerationId" | "Generation") => {
                let known = self.world.member(&self.group).map(|member| member.generation);
                let known = if self.member { known.unwrap_or(-1) } else { -1 };
                self.pick(&[known], &[0, 99, -1])
            }
            ("OffsetCommit", "Offset") => self.pick(&[0, 1, 5, 1000], &[-1, i64::MAX]),
            ("OffsetCommit", "LeaderEpoch") => self.pick(&[-1, 0, 3], &[]),
            ("OffsetCommit", "RetentionTimeMs") => self.pick(&[-1], &[0, 1000]),
            (_, "RequireStable") => self.pick(&[0, 1], &[]),
            (_, "MemberEpoch") => self.pick(&[-1], &[5]),
            _ => match field.value.as_deref().and_then(|value| value.parse().ok()) {
                Some(value) => self.pick(&[value], &[]),
                None => self.pick(&[0, 1], &[]),
            },
        }
    }

    fn text(&mut self, field: &Field, nullable: bool) -> Option<String> {
        let other = self.administration_text(field, nullable).or_else(|| self.transaction_text(field, nullable));
        if let Some(text) = other {
            return text;
        }
        let text = match (self.api, &*field.name) {
            ("Fetch", "ClusterId") => return None,
            ("Metadata", _) if nullable && !self.by_id => self.topic(),
            ("Metadata", _) if nullable => return None,
            ("DeleteTopics", _) if nullable && field.became_nullable() && self.random.once_in(2) => return None,
            ("CreateTopics", "Name") if self.resource == 1 => {
                let names =
                    ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes", "min.insync.replicas"];
                let odd = ["no.such.key", "", "compression.type"];
                self.pick(&names, &odd).to_owned()
            }
            ("CreateTopics", "Value") => {
                if nullable && self.odd() {
                    return None;
                }
                self.pick(&["1048576", "1", "delete"], &["compact", "-1", "abc", ""]).to_owned()
            }
            ("DescribeConfigs", "ResourceName") => match self.resource {
                4 => self.pick(&["1", "1", ""], &["7", "x"]).to_owned(),
                _ => self.topic(),
            },
            ("DescribeConfigs", "ConfigurationKeys") => {
                let names = ["retention.ms", "cleanup.policy", "segment.bytes", "num.partitions", "log.retention.ms"];
                self.pick(&names, &["no.such.key", ""]).to_owned()
            }
            (_, "Topic" | "Topics" | "Name" | "TopicNames") if !matches!(self.api, "JoinGroup") => self.topic(),
            (_, "GroupId" | "Groups" | "GroupsNames" | "Key" | "CoordinatorKeys") => self.group(),
            (_, "MemberId") => {
                let known = self.world.member(&self.group).map(|member| member.id.clone());
                if let ("JoinGroup", Some(known)) = (self.api, &known) {
                    // Another member, even one that was only given its id, would have all others wait for it.
                    return Some(if self.odd() { "somebody".to_owned() } else { known.clone() });
                }
                match known.filter(|_| self.member) {
                    Some(id) => id,
                    None if self.is_odd && self.random.once_in(3) => "somebody".to_owned(),
                    None => String::new(),
                }
            }
            (_, "GroupInstanceId") => match self.group == "static" && nullable {
                true => "instance".to_owned(),
                false => return None,
            },
            (_, "ProtocolType") => self.pick(&["consumer"], &["connect", ""]).to_owned(),
            ("JoinGroup", "Name") => self.pick(&["range"], &["roundrobin", ""]).to_owned(),
            ("SyncGroup", "ProtocolName") => self.pick(&["range"], &["other"]).to_owned(),
            ("ListGroups", "StatesFilter") => {
                self.pick(&["Stable", "Empty", "stable"], &["PreparingRebalance", "nonsense"]).to_owned()
            }
            ("ListGroups", "TypesFilter") => self.pick(&["classic", "Classic"], &["consumer", "nonsense"]).to_owned(),
            ("OffsetCommit", "Metadata") => {
                if nullable && self.random.once_in(4) {
                    return None;
                }
                self.metadata()
            }
            _ => match field.value.as_deref() {
                Some("null") => return None,
                Some(value) => value.to_owned(),
                None if nullable => return None,
                None => "words".to_owned(),
            },
        };
        Some(text)
    }

    fn bytes(&mut self, field: &Field, _: bool) -> Option<Vec<u8>> {
        if self.api == "JoinGroup" {
            // A consumer's subscription to `alpha`, version 0. Kafka reads it: by what is none it is stuck for good.
            return Some(b"\0\0\0\0\0\x01\0\x05alpha\xff\xff\xff\xff".to_vec());
        }
        if self.api != "Produce" {
            return Some(format!("bytes of {}", field.name).into_bytes());
        }
        // By none at all Kafka is stuck.
        Some(self.batch())
    }

    fn uuid(&mut self, _: &Field) -> [u8; 16] {
        if (self.api, self.version) == ("Metadata", 10) || (self.api, self.version) == ("Metadata", 11) {
            // Kafka takes ids from version 12 on, and tells nothing at all to who sends them earlier.
            self.by_id = false;
            return [0; 16];
        }
        if self.api == "Fetch" {
            // To an unknown id beside another topic, and to zeros, Kafka 4.1 answers -1: its own code fails.
            if self.topics == 1 && self.odd() {
                return *MADE_UP.as_bytes();
            }
            let name = self.unlisted(TOPICS, &[]);
            self.partitions.clear();
            return self.world.topic_id(&name);
        }
        if self.api == "Metadata" {
            let name = self.unlisted(TOPICS, &[]);
            return self.world.topic_id(&name);
        }
        if self.odd() {
            return if self.random.once_in(2) { [0; 16] } else { *MADE_UP.as_bytes() };
        }
        self.by_id = self.random.once_in(2);
        if self.api == "Metadata" && !self.by_id {
            return [0; 16];
        }
        // A name beside the id, where there is one, is null or nothing.
        let name = self.topic();
        self.world.topic_id(&name)
    }

    fn count(&mut self, field: &Field, nullable: bool) -> Option<usize> {
        if let Some(count) = self.administration_count(field).or_else(|| self.transaction_count(field).map(Some)) {
            return count;
        }
        // Fields of one name mean something else in the arrays they are in.
        match (self.api, &*field.name) {
            ("CreateTopics", "Assignments") => {
                self.resource = 0;
                self.has_assignments = self.random.once_in(6);
                return Some(usize::from(self.has_assignments));
            }
            ("CreateTopics", "Configs") => {
                self.resource = 1;
                return Some(*self.random.choose(&[0, 0, 1]));
            }
            ("CreatePartitions", "Assignments") if !self.odd() => return None,
            ("CreateTopics" | "CreatePartitions" | "DeleteTopics", "Topics") => self.resource = 0,
            ("Produce", "Topics") => {
                let topics = self.pick(&[1], &[0, 2]);
                self.is_alone = topics == 1;
                return Some(topics);
            }
            ("Produce", _) => {
                let partitions = self.pick(&[1], &[2]);
                self.is_alone &= partitions == 1;
                return Some(partitions);
            }
            ("Fetch", "Topics") => {
                self.topics = if self.is_small { 1 } else { self.pick(&[1, 2, 3], &[]) };
                return Some(self.topics);
            }
            ("Fetch", "Partitions") if self.is_small => {
                // Kafka counts the part of a batch that an answer may end in; how much is left for the next differs by that.
                return Some(1);
            }
            ("Fetch", "Forgotten") => return Some(self.pick(&[0], if self.session.is_some() { &[1] } else { &[] })),
            // Of two protocols with one name Kafka never answers.
            ("JoinGroup", "Protocols") => return Some(self.pick(&[1], &[0])),
            ("JoinGroup" | "SyncGroup" | "LeaveGroup", _) => return Some(1),
            (_, "BrokerIds") => return Some(self.pick(&[1], &[0, 2])),
            ("ListGroups", _) => return Some(*self.random.choose(&[0, 0, 1, 2])),
            _ => {}
        }
        if nullable && self.random.once_in(4) {
            return None;
        }
        // Of a topic without partitions Kafka says nothing where we say that there are none.
        let is_inner = field.name.starts_with("Partition");
        Some(self.pick(&[1, 1, 2, 3], if is_inner { &[] } else { &[0] }))
    }

    fn tagged(&mut self, field: &Field) -> bool {
        !matches!(&*field.name, "ReplicaState" | "ReplicaDirectoryId" | "HighWatermark") && self.random.once_in(2)
    }
}
