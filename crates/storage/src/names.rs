//! File and directory names, each format next to its parser.
//!
//! Parsers take only what the format side (ours or Kafka's) writes: `foo-01`, `1.log` or `00000000000000000000.log.bak`
//! are somebody else's and must not be mistaken for ours.

use std::fmt;

use crate::{Offset, TopicPartition};

/// The longest topic name (Kafka `Topic.MAX_NAME_LENGTH`): leaves room in a 255-byte directory name for the number.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// What happened to a partition other than being appended to: written by who keeps several replicas of it, left alone here.
pub const HISTORY_FILE: &str = "highwater-history";

/// The longest name a directory entry may have on the usual file systems.
const NAME_BYTES_MAX: usize = 255;

/// What one file of a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SegmentFile {
    /// Record batches (`.log`).
    Log,
    /// Offset index (`.index`).
    OffsetIndex,
    /// Time index (`.timeindex`).
    TimeIndex,
    /// Aborted transactions (`.txnindex`).
    TransactionIndex,
    /// State of idempotent producers before the offset in the name (`.snapshot`).
    ProducerSnapshot,
}

impl SegmentFile {
    const ALL: [Self; 5] =
        [Self::Log, Self::OffsetIndex, Self::TimeIndex, Self::TransactionIndex, Self::ProducerSnapshot];

    /// The suffix with its dot.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Log => ".log",
            Self::OffsetIndex => ".index",
            Self::TimeIndex => ".timeindex",
            Self::TransactionIndex => ".txnindex",
            Self::ProducerSnapshot => ".snapshot",
        }
    }
}

/// Where a file of a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SegmentFileState {
    /// In use (no further suffix).
    Live,
    /// Given up, to be removed after a while (`.deleted`).
    Deleted,
    /// Being written by the compactor; not complete (`.cleaned`).
    Cleaned,
    /// Complete, about to take the place of live files (`.swap`).
    Swap,
}

impl SegmentFileState {
    const ALL: [Self; 4] = [Self::Live, Self::Deleted, Self::Cleaned, Self::Swap];

    /// The further suffix with its dot; empty for a live file.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Live => "",
            Self::Deleted => ".deleted",
            Self::Cleaned => ".cleaned",
            Self::Swap => ".swap",
        }
    }
}

/// The name of a segment's file: twenty digits of the base offset, `.kind`, and `.state` if it is not live.
///
/// For a snapshot the offset is the end of what it covers, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentFileName {
    /// The offset in the name.
    pub base_offset: Offset,
    /// What the file holds.
    pub kind: SegmentFile,
    /// Where it is in its life.
    pub state: SegmentFileState,
}

impl SegmentFileName {
    /// The name of a live file.
    pub fn live(base_offset: Offset, kind: SegmentFile) -> Self {
        Self { base_offset, kind, state: SegmentFileState::Live }
    }

    /// Takes a name apart, or gives `None` if no segment has a file of that name.
    pub fn parse(name: &str) -> Option<Self> {
        let (digits, suffixes) = name.split_at_checked(20)?;
        let base_offset = Offset(parse_digits(digits)?);
        SegmentFile::ALL.into_iter().find_map(|kind| {
            let further = suffixes.strip_prefix(kind.suffix())?;
            let state = SegmentFileState::ALL.into_iter().find(|state| state.suffix() == further)?;
            Some(Self { base_offset, kind, state })
        })
    }
}

impl fmt::Display for SegmentFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}{}{}", self.base_offset.0, self.kind.suffix(), self.state.suffix())
    }
}

/// The name of a file with bytes that were cut off a segment's data file, put aside because batches in it are intact:
/// `<base offset>.log.damaged-<position>`, with `.<number>` behind it if there is one of that name already. Kafka leaves
/// such files alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SideFileName {
    /// The segment's base offset.
    pub base_offset: Offset,
    /// The position in the segment's data file of the first byte.
    pub position: u64,
    /// How many files of the same position there were before.
    pub again: u32,
}

impl SideFileName {
    /// Takes a name apart, or gives `None` if no such file has it.
    pub fn parse(name: &str) -> Option<Self> {
        let (base, rest) = name.split_once(SIDE_FILE_INFIX)?;
        let base_offset = Offset(parse_digits(base).filter(|_| base.len() == 20)?);
        let (position, again) = rest.split_once('.').unwrap_or((rest, "0"));
        let parsed = Self { base_offset, position: position.parse().ok()?, again: again.parse().ok()? };
        // Exactly what is written, and no other way to write the numbers.
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for SideFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { base_offset, position, again } = self;
        write!(f, "{:020}{SIDE_FILE_INFIX}{position}", base_offset.0)?;
        if *again > 0 { write!(f, ".{again}") } else { Ok(()) }
    }
}

const SIDE_FILE_INFIX: &str = ".log.damaged-";

/// The name of what a small file was before a repair made it anew, `<name>.damaged-<number>`: an index, a snapshot, a
/// checkpoint. Kafka goes by the ends of names, and leaves such files alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplacedFileName<'n> {
    /// The name of the file that was made anew.
    pub(crate) name: &'n str,
    /// How many were made anew before under this name.
    pub(crate) again: u32,
}

impl<'n> ReplacedFileName<'n> {
    /// Takes a name apart, or gives `None` if no such file has it.
    pub(crate) fn parse(file: &'n str) -> Option<Self> {
        let (name, again) = file.rsplit_once(REPLACED_INFIX)?;
        let parsed = Self { name, again: again.parse().ok()? };
        (parsed.to_string() == file).then_some(parsed)
    }
}

impl fmt::Display for ReplacedFileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{REPLACED_INFIX}{}", self.name, self.again)
    }
}

const REPLACED_INFIX: &str = ".damaged-";

/// A directory in a data root that belongs to a partition.
///
/// `<topic>-<partition>` for the partition itself, and `<topic>-<partition>.<32 hex digits>-delete|-future|-stray` (Kafka
/// `LocalLog`) for what is on its way out or in. The topic part of such a name may be cut to fit 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionDirName {
    /// Whose directory it is. For a directory that is set aside the topic may be cut short.
    pub topic_partition: TopicPartition,
    /// What is to become of it.
    pub role: PartitionDirRole,
}

/// What is to become of a partition's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PartitionDirRole {
    /// It is the partition.
    Current,
    /// To be removed; the number makes its name unique.
    Delete(u128),
    /// A copy being made by a move between roots.
    Future(u128),
    /// Holds data that the cluster does not know (any more); kept for the operator.
    Stray(u128),
}

impl PartitionDirRole {
    fn suffix(self) -> Option<(u128, &'static str)> {
        match self {
            Self::Current => None,
            Self::Delete(unique) => Some((unique, "-delete")),
            Self::Future(unique) => Some((unique, "-future")),
            Self::Stray(unique) => Some((unique, "-stray")),
        }
    }
}

impl PartitionDirName {
    /// The directory of a partition in use.
    pub fn current(topic_partition: TopicPartition) -> Self {
        Self { topic_partition, role: PartitionDirRole::Current }
    }

    /// Takes a name apart, or gives `None` if no partition has a directory of that name.
    pub fn parse(name: &str) -> Option<Self> {
        let with_role = |suffix, role: fn(u128) -> PartitionDirRole| name.strip_suffix(suffix).map(|rest| (rest, role));
        let set_aside = with_role("-delete", PartitionDirRole::Delete)
            .or_else(|| with_role("-future", PartitionDirRole::Future))
            .or_else(|| with_role("-stray", PartitionDirRole::Stray));
        if let Some((rest, role)) = set_aside {
            let (partition, unique) = rest.rsplit_once('.')?;
            // Exactly what Kafka writes: a directory is removed by this name, so no guessing.
            if unique.len() != 32 || !unique.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            let unique = u128::from_str_radix(unique, 16).ok()?;
            return Some(Self { topic_partition: parse_topic_partition(partition)?, role: role(unique) });
        }
        parse_topic_partition(name).map(Self::current)
    }
}

impl fmt::Display for PartitionDirName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TopicPartition { topic, partition } = &self.topic_partition;
        let Some((unique, suffix)) = self.role.suffix() else {
            return write!(f, "{topic}-{partition}");
        };
        let tail = format!("-{partition}.{unique:032x}{suffix}");
        // Topic names are ASCII, so any byte is a character boundary; a name that is not is given whole.
        let topic = topic.get(..NAME_BYTES_MAX.saturating_sub(tail.len())).unwrap_or(topic);
        write!(f, "{topic}{tail}")
    }
}

/// Why a text is no topic name (Kafka `Topic.validate`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTopicName {
    /// It has no characters.
    #[error("a topic name cannot be empty")]
    Empty,
    /// It would be a directory of its own meaning.
    #[error("a topic name cannot be \".\" or \"..\"")]
    Dots,
    /// The directory's name would be too long.
    #[error("a topic name cannot be longer than {TOPIC_NAME_BYTES_MAX} characters, and this one has {0}")]
    TooLong(usize),
    /// It has a character other than ASCII letters, digits, `.`, `_` and `-`.
    #[error("a topic name is made of ASCII letters and digits, \".\", \"_\" and \"-\", and not of {0:?}")]
    Character(char),
}

/// Checks a topic name by Kafka's rules.
///
/// # Errors
/// The rule that it breaks.
pub fn check_topic_name(topic: &str) -> Result<(), InvalidTopicName> {
    if topic.is_empty() {
        return Err(InvalidTopicName::Empty);
    }
    if topic == "." || topic == ".." {
        return Err(InvalidTopicName::Dots);
    }
    let legal = |character: char| character.is_ascii_alphanumeric() || matches!(character, '.' | '_' | '-');
    if let Some(character) = topic.chars().find(|&character| !legal(character)) {
        return Err(InvalidTopicName::Character(character));
    }
    if topic.len() > TOPIC_NAME_BYTES_MAX {
        return Err(InvalidTopicName::TooLong(topic.len()));
    }
    Ok(())
}

/// Whether two topic names cannot live side by side: they differ at most in `.` against `_`, which Kafka maps onto one
/// another in the names of its metrics (`Topic.hasCollision`).
pub fn topic_names_collide(one: &str, other: &str) -> bool {
    let unified = |name: &str| -> Vec<u8> { name.bytes().map(|byte| if byte == b'.' { b'_' } else { byte }).collect() };
    unified(one) == unified(other)
}

/// `<topic>-<partition>`, cut at the last dash: topic names may contain dashes, and begin with one.
fn parse_topic_partition(name: &str) -> Option<TopicPartition> {
    let (topic, partition) = name.rsplit_once('-')?;
    check_topic_name(topic).ok()?;
    // `foo-01` and `foo-1` must not both be partition 1.
    if partition.len() > 1 && partition.starts_with('0') {
        return None;
    }
    let partition = i32::try_from(parse_digits(partition)?).ok()?;
    Some(TopicPartition::new(topic, partition))
}

/// Decimal digits and nothing else: no sign, no space.
fn parse_digits(digits: &str) -> Option<i64> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn segment_file_names_round_trip() {
        for kind in SegmentFile::ALL {
            for state in SegmentFileState::ALL {
                for base_offset in [0, 42, 2_147_483_649, i64::MAX].map(Offset) {
                    let name = SegmentFileName { base_offset, kind, state };
                    assert_eq!(SegmentFileName::parse(&name.to_string()), Some(name), "{name}");
                }
            }
        }
        let name = SegmentFileName::live(Offset(42), SegmentFile::Log);
        assert_eq!(name.to_string(), "00000000000000000042.log");
        let swap = SegmentFileName { state: SegmentFileState::Swap, ..name };
        assert_eq!(swap.to_string(), "00000000000000000042.log.swap");
    }

    #[test]
    fn other_names_are_no_segment_files() {
        for name in [
            "",
            "1.log",
            "notanumber.log",
            "1.blk.tmp",
            "00000000000000000000",
            "00000000000000000000.",
            "00000000000000000000.log.bak",
            "00000000000000000000.log.deleted.deleted",
            "00000000000000000000.index~",
            "0000000000000000000.log",
            "000000000000000000000.log",
            "-0000000000000000001.log",
            "+0000000000000000001.log",
            "99999999999999999999.log",
            "0000000000000000000é.log",
            "leader-epoch-checkpoint",
            "partition.metadata",
        ] {
            assert_eq!(SegmentFileName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn partition_directories_are_cut_at_the_last_dash() {
        let cases = [("x-3-0", "x-3", 0), ("-giveaway-0", "-giveaway", 0), ("a.b-12", "a.b", 12), ("__x-0", "__x", 0)];
        for (name, topic, partition) in cases {
            let expected = PartitionDirName::current(TopicPartition::new(topic, partition));
            assert_eq!(PartitionDirName::parse(name).as_ref(), Some(&expected));
            assert_eq!(expected.to_string(), name);
        }
        let largest = format!("t-{}", i32::MAX);
        assert_eq!(PartitionDirName::parse(&largest).unwrap().topic_partition.partition, i32::MAX);
    }

    #[test]
    fn other_names_are_no_partition_directories() {
        for name in [
            "",
            "foo",
            "foo-",
            "-0",
            "foo-abc",
            "foo-1.tmp",
            "lost+found",
            ".-0",
            "..-0",
            "foo-01",
            "foo-00",
            "foo--",
            "foo-2147483648",
            "foo-99999999999999999999",
            "foo-+1",
            "foo- 1",
            "ünï-0",
            "a b-0",
            "foo-1-delete",
            "foo-1.abc-delete",
            "foo-1.0123456789abcdef0123456789abcdef-purge",
            ".DS_Store",
            "foo-x.0123456789abcdef0123456789abcdef-delete",
            "foo-1.+123456789abcdef0123456789abcdef-delete",
        ] {
            assert_eq!(PartitionDirName::parse(name), None, "{name}");
        }
        // "foo--1" is partition 1 of the topic "foo-", and not partition -1 of "foo".
        assert_eq!(PartitionDirName::parse("foo--1").unwrap().topic_partition, TopicPartition::new("foo-", 1));
        assert_eq!(PartitionDirName::parse(&format!("{}-0", "t".repeat(250))), None);
    }

    #[test]
    fn set_aside_directories_are_recognised_and_kept_below_255_bytes() {
        // As Kafka writes them: UUID without dashes.
        let name = "a.b-7.4f9c27a0de1b4f0ca6c0f5d1a2b3c4d5-delete";
        let parsed = PartitionDirName::parse(name).unwrap();
        assert_eq!(parsed.topic_partition, TopicPartition::new("a.b", 7));
        assert_eq!(parsed.role, PartitionDirRole::Delete(0x4f9c_27a0_de1b_4f0c_a6c0_f5d1_a2b3_c4d5));
        assert_eq!(parsed.to_string(), name);

        let long = TopicPartition::new("t".repeat(TOPIC_NAME_BYTES_MAX), 12345);
        for role in [PartitionDirRole::Delete(1), PartitionDirRole::Stray(2), PartitionDirRole::Future(3)] {
            let name = PartitionDirName { topic_partition: long.clone(), role }.to_string();
            assert_eq!(name.len(), NAME_BYTES_MAX);
            let parsed = PartitionDirName::parse(&name).unwrap();
            assert_eq!((parsed.role, parsed.topic_partition.partition), (role, 12345));
        }
    }

    #[test]
    fn topic_names_follow_kafkas_rules() {
        for good in ["a", "-giveaway", "x-3", "a.b", "__x", "...", "A_b-9", &"t".repeat(249)] {
            assert_eq!(check_topic_name(good), Ok(()), "{good}");
        }
        let cases = [
            ("", InvalidTopicName::Empty),
            (".", InvalidTopicName::Dots),
            ("..", InvalidTopicName::Dots),
            ("a/b", InvalidTopicName::Character('/')),
            ("ünï", InvalidTopicName::Character('ü')),
            ("a\0", InvalidTopicName::Character('\0')),
            (&"t".repeat(250), InvalidTopicName::TooLong(250)),
        ];
        for (bad, why) in cases {
            assert_eq!(check_topic_name(bad), Err(why), "{bad}");
        }
        assert!(topic_names_collide("a.b", "a_b") && topic_names_collide("a.b", "a.b"));
        assert!(!topic_names_collide("a.b", "a-b") && !topic_names_collide("a", "ab"));
    }

    proptest! {
        #[test]
        fn whatever_parses_is_written_back_the_same(name in "[-a.0-9éA-F]{0,24}(-delete|-stray|\\.log|)") {
            if let Some(parsed) = PartitionDirName::parse(&name) {
                prop_assert_eq!(parsed.to_string(), name.clone());
            }
            if let Some(parsed) = SegmentFileName::parse(&name) {
                prop_assert_eq!(parsed.to_string(), name);
            }
        }

        #[test]
        fn partition_directories_round_trip(topic in "[-._a-zA-Z0-9]{1,40}", partition in 0..i32::MAX, unique: u128) {
            prop_assume!(check_topic_name(&topic).is_ok());
            for role in [PartitionDirRole::Current, PartitionDirRole::Delete(unique), PartitionDirRole::Stray(unique)] {
                let name = PartitionDirName { topic_partition: TopicPartition::new(topic.as_str(), partition), role };
                prop_assert_eq!(PartitionDirName::parse(&name.to_string()), Some(name));
            }
        }
    }
}
