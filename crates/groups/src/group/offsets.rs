//! What a group has committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::subscription::Subscribed;
use super::{Group, Phase};
use crate::records::{OffsetValue, encode_offset_key};
use crate::step::Step;
use crate::vocabulary::{FetchOffsets, FetchedOffset, Record, Refused};

/// A topic and a partition of it.
pub(crate) type OffsetKey = (String, i32);

/// The offsets of one group. What is told is what the log has committed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    committed: BTreeMap<OffsetKey, Kept>,
    /// Appends that are under way, of each partition.
    writing: BTreeMap<OffsetKey, usize>,
    /// Those of them that are of transactions: as undecided as what those have written.
    writing_undecided: BTreeMap<OffsetKey, usize>,
    /// What undecided transactions have written, by producer id.
    transactions: BTreeMap<i64, BTreeMap<OffsetKey, Kept>>,
    /// Counts what was written, in the log's order.
    written: u64,
}

/// An offset, and the how-manieth it was to be written: of two the later one counts, even if its transaction is decided
/// before.
#[derive(Clone, Debug)]
struct Kept {
    number: u64,
    value: OffsetValue,
}

impl Offsets {
    pub(crate) fn is_empty(&self) -> bool {
        self.committed.is_empty() && self.writing.is_empty() && self.transactions.is_empty()
    }

    /// An append of that offset is under way, maybe of a transaction.
    pub(crate) fn begin(&mut self, key: &OffsetKey, is_transactional: bool) {
        *self.writing.entry(key.clone()).or_default() += 1;
        if is_transactional {
            *self.writing_undecided.entry(key.clone()).or_default() += 1;
        }
    }

    /// That append has ended.
    pub(crate) fn end(&mut self, key: &OffsetKey, is_transactional: bool) {
        count_down(&mut self.writing, key);
        if is_transactional {
            count_down(&mut self.writing_undecided, key);
        }
    }

    /// The log has that offset, of that producer's transaction if there is one.
    pub(crate) fn put(&mut self, key: OffsetKey, value: OffsetValue, transaction: Option<i64>) {
        self.written += 1;
        let kept = Kept { number: self.written, value };
        match transaction {
            None => self.committed.insert(key, kept),
            Some(producer) => self.transactions.entry(producer).or_default().insert(key, kept),
        };
    }

    /// The log has no such offset any more, nor will a transaction bring one back that wrote it before.
    pub(crate) fn remove(&mut self, key: &OffsetKey) {
        self.committed.remove(key);
        self.transactions.retain(|_, offsets| {
            offsets.remove(key);
            !offsets.is_empty()
        });
    }

    /// Whether that producer's transaction has written anything.
    pub(crate) fn take_part_in(&self, producer: i64) -> bool {
        self.transactions.contains_key(&producer)
    }

    /// A producer's transaction is decided.
    pub(crate) fn decide(&mut self, producer: i64, commits: bool) {
        for (key, kept) in self.transactions.remove(&producer).unwrap_or_default() {
            let newer = self.committed.get(&key).is_none_or(|before| before.number < kept.number);
            if commits && newer {
                self.committed.insert(key, kept);
            }
        }
    }

    fn is_unstable(&self, key: &OffsetKey) -> bool {
        self.writing_undecided.contains_key(key) || self.transactions.values().any(|offsets| offsets.contains_key(key))
    }

    fn fetch(&self, key: &OffsetKey, require_stable: bool) -> Result<Option<OffsetValue>, Refused> {
        if require_stable && self.is_unstable(key) {
            return Err(Refused::UnstableOffsetCommit);
        }
        Ok(self.committed.get(key).map(|kept| kept.value.clone()))
    }

    /// Those of the partitions, or all.
    pub(crate) fn fetch_all(&self, fetch: &FetchOffsets) -> Vec<FetchedOffset> {
        let told = |topic: &Arc<str>, key: &OffsetKey| FetchedOffset {
            topic: Arc::clone(topic),
            partition: key.1,
            offset: self.fetch(key, fetch.require_stable),
        };
        let mut answers = Vec::new();
        match &fetch.partitions {
            Some(partitions) => {
                let mut last: Option<(&Arc<str>, OffsetKey)> = None;
                for (topic, partition) in partitions {
                    let (_, key) = match &mut last {
                        Some(last) if Arc::ptr_eq(last.0, topic) => last,
                        _ => last.insert((topic, (topic.to_string(), 0))),
                    };
                    key.1 = *partition;
                    answers.push(told(topic, key));
                }
            }
            None => {
                // As in Kafka what only undecided transactions have written is told to those who ask for it by name.
                let mut topic: Arc<str> = "".into();
                for key in self.committed.keys() {
                    if *topic != *key.0 {
                        topic = key.0.as_str().into();
                    }
                    answers.push(told(&topic, key));
                }
            }
        }
        answers
    }

    /// Those that nothing is being done with and that may go.
    fn removable(&self, goes: impl Fn(&OffsetKey, &OffsetValue) -> bool) -> Vec<OffsetKey> {
        let idle = |key: &OffsetKey| !self.writing.contains_key(key) && !self.is_unstable(key);
        let goes = self.committed.iter().filter(|(key, kept)| idle(key) && goes(key, &kept.value));
        goes.map(|(key, _)| key.clone()).collect()
    }

    /// The topics of all that the log has.
    pub(crate) fn topics(&self) -> BTreeSet<String> {
        let named: BTreeSet<&str> = self.all().into_iter().map(|(topic, _)| topic.as_str()).collect();
        named.into_iter().map(str::to_owned).collect()
    }

    /// All that the log has or is about to have, of transactions as well.
    fn all(&self) -> BTreeSet<&OffsetKey> {
        let undecided = self.transactions.values().flat_map(BTreeMap::keys);
        self.committed.keys().chain(self.writing.keys()).chain(undecided).collect()
    }
}

fn count_down(counts: &mut BTreeMap<OffsetKey, usize>, key: &OffsetKey) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Group {
    /// The record of an offset of this group.
    pub(crate) fn offset_record(&self, (topic, partition): &OffsetKey, value: Option<&OffsetValue>) -> Record {
        Record { key: encode_offset_key(&self.id, topic, *partition), value: value.map(OffsetValue::encode) }
    }

    /// Which offsets are to be removed if those are asked to be deleted, and the result for each that was asked.
    pub(crate) fn deletable(&self, partitions: &[OffsetKey]) -> (Vec<OffsetKey>, Vec<Result<(), Refused>>) {
        let subscribed = self.subscribed();
        let result = |key: &OffsetKey| {
            if subscribed.may_read(&key.0) { Err(Refused::GroupSubscribedToTopic) } else { Ok(()) }
        };
        let there = self.offsets.all();
        let goes = partitions.iter().filter(|key| there.contains(key) && !subscribed.may_read(&key.0));
        (goes.cloned().collect(), partitions.iter().map(result).collect())
    }

    /// The offsets that nobody has used for so long that they go. Whoever is no member of anything has its time from each
    /// commit on; a group from when its last member left; a group of consumers that goes on loses what it is not subscribed to
    /// any more.
    pub(crate) fn expired(&self, step: &Step<'_>) -> Vec<OffsetKey> {
        let (now, retention_ms) = (step.now.timestamp_ms, step.config.offsets_retention_ms);
        let subscribed = self.subscribed();
        let simple = self.protocol_type.is_none();
        let since = |key: &OffsetKey, value: &OffsetValue| match self.phase {
            _ if simple => Some(value.commit_timestamp_ms),
            Phase::Empty if self.state_timestamp_ms >= 0 => Some(self.state_timestamp_ms),
            Phase::Empty => Some(value.commit_timestamp_ms),
            Phase::Stable if subscribed != Subscribed::Unknown && !subscribed.may_read(&key.0) => {
                Some(value.commit_timestamp_ms)
            }
            _ => None,
        };
        self.offsets.removable(|key, value| {
            let Some(since) = since(key, value) else { return false };
            if value.expire_timestamp_ms >= 0 {
                return value.expire_timestamp_ms <= now;
            }
            now.saturating_sub(since) >= retention_ms
        })
    }

    /// Offsets of a topic that is gone.
    pub(crate) fn of_topic(&self, topic: &str) -> Vec<OffsetKey> {
        self.offsets.all().into_iter().filter(|key| key.0 == topic).cloned().collect()
    }

    /// All of them, when the group is deleted.
    pub(crate) fn all_offsets(&self) -> Vec<OffsetKey> {
        self.offsets.all().into_iter().cloned().collect()
    }
}
