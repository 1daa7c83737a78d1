//! Making, growing and deleting topics. Any broker can do it: the store decides, and each change is one commit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::BrokerId;
use highwater_storage::TopicId;

use super::store::read_topic;
use super::znodes::{self, PARTITIONS_MAX, TOPICS, TopicNode};
use super::{ClusterHandle, CommitCause, Coordination, MetadataImage, Op, StoreFailure, TopicImage};
use crate::api::ErrorCode;
use crate::config::TopicConfig;

/// No name is longer: `<name>-<partition>.<32 characters>-delete` must still be told apart when it is cut to the 255
/// bytes that file systems allow.
const NAME_BYTES_MAX: usize = 249;

/// A topic to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: String,
    /// How many partitions; `None` for the broker's default.
    pub partitions: Option<i32>,
    /// How many replicas of each; `None` for the broker's default.
    pub replication_factor: Option<i16>,
    /// Instead of both: the replicas of each partition.
    pub assignment: Option<BTreeMap<i32, Vec<BrokerId>>>,
    /// Its configs.
    pub config: BTreeMap<String, String>,
}

/// A topic that was made, or would have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// Its identity; [`TopicId::ZERO`] if it was only checked.
    pub id: TopicId,
    /// How many partitions it has.
    pub partitions: i32,
    /// How many replicas the first one has.
    pub replication_factor: i16,
}

/// Whether to make the change or only to see whether it could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Make it.
    Apply,
    /// Only check it (`validate_only`).
    Validate,
}

/// Why a topic was not made, grown or deleted. The text is for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No name for a topic.
    #[error("Topic name is invalid: {0}")]
    InvalidTopic(String),
    /// There is one of this name.
    #[error("Topic '{0}' already exists.")]
    Exists(String),
    /// There is none of this name.
    #[error("This server does not host this topic-partition.")]
    UnknownTopic,
    /// There is none of this id.
    #[error("This server does not host this topic ID.")]
    UnknownTopicId,
    /// A number of partitions that cannot be.
    #[error("{0}")]
    InvalidPartitions(String),
    /// More than a topic may have.
    #[error("{0}")]
    TooMany(String),
    /// A number of replicas that cannot be.
    #[error("{0}")]
    InvalidReplicationFactor(String),
    /// Replicas that cannot be placed so.
    #[error("{0}")]
    InvalidAssignment(String),
    /// A config that does not exist, or a value it cannot have.
    #[error("{0}")]
    InvalidConfig(String),
    /// No reassignment to cancel.
    #[error("No partition reassignment is in progress.")]
    NoReassignment,
    /// Somebody leads as was asked for.
    #[error("Leader election not needed for topic partition.")]
    ElectionNotNeeded,
    /// The preferred replica cannot lead now.
    #[error("The preferred leader was not available.")]
    PreferredLeaderNotAvailable,
    /// No replica can.
    #[error("Eligible topic partition leaders are not available.")]
    EligibleLeadersNotAvailable,
    /// A request that contradicts itself.
    #[error("{0}")]
    InvalidRequest(String),
    /// What was to go is not there.
    #[error("{0}")]
    NotFound(String),
    /// Deleting topics is switched off.
    #[error("Topic deletion is disabled.")]
    DeletionDisabled,
    /// It was made, but has no leaders yet.
    #[error("The request timed out before all partitions had a leader.")]
    TimedOut,
    /// The store failed.
    #[error("{0}")]
    Store(#[from] StoreFailure),
}

impl AdminError {
    /// The code that tells a client.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::InvalidTopic(_) => ErrorCode::InvalidTopicException,
            Self::Exists(_) => ErrorCode::TopicAlreadyExists,
            Self::UnknownTopic => ErrorCode::UnknownTopicOrPartition,
            Self::UnknownTopicId => ErrorCode::UnknownTopicId,
            Self::InvalidPartitions(_) => ErrorCode::InvalidPartitions,
            Self::TooMany(_) => ErrorCode::PolicyViolation,
            Self::InvalidReplicationFactor(_) => ErrorCode::InvalidReplicationFactor,
            Self::InvalidAssignment(_) => ErrorCode::InvalidReplicaAssignment,
            Self::InvalidConfig(_) => ErrorCode::InvalidConfig,
            Self::NoReassignment => ErrorCode::NoReassignmentInProgress,
            Self::ElectionNotNeeded => ErrorCode::ElectionNotNeeded,
            Self::PreferredLeaderNotAvailable => ErrorCode::PreferredLeaderNotAvailable,
            Self::EligibleLeadersNotAvailable => ErrorCode::EligibleLeadersNotAvailable,
            Self::InvalidRequest(_) => ErrorCode::InvalidRequest,
            Self::NotFound(_) => ErrorCode::ResourceNotFound,
            Self::DeletionDisabled => ErrorCode::TopicDeletionDisabled,
            Self::TimedOut => ErrorCode::RequestTimedOut,
            // Retriable, and clients look for another controller: what a broker without its store should bring about.
            Self::Store(StoreFailure::SessionLost | StoreFailure::Unavailable) => ErrorCode::NotController,
            Self::Store(_) => ErrorCode::UnknownServerError,
        }
    }
}

/// Which topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By id.
    Id(TopicId),
}

impl ClusterHandle {
    /// Makes a topic. Its partitions get their leaders from the controller right after: see [`Self::wait_for_leaders`].
    pub async fn create_topic(&self, new: &NewTopic, intent: Intent) -> Result<CreatedTopic, AdminError> {
        let (config, store) = (&self.shared.config, &*self.shared.store);
        check_name(&new.name)?;
        loop {
            // Every creation writes this node, so of two at once one starts over and sees the other: without that
            // `a.b` and `a_b` could pass each other by.
            let guard = super::store::read(store, TOPICS).await?.map_or(0, |node| node.version);
            let names = store.children(TOPICS).await.map_err(StoreFailure::from)?;
            check_collision(&new.name, &names)?;
            check_config(&config.topic, &new.config)?;
            let brokers: Vec<BrokerId> = self.image().brokers.keys().copied().collect();
            let id = random_id();
            let assignment = match &new.assignment {
                Some(_) if new.partitions.is_some() || new.replication_factor.is_some() => {
                    let what = "Both numPartitions or replicationFactor and replicasAssignments were set.";
                    return Err(AdminError::InvalidRequest(what.to_owned()));
                }
                Some(manual) => check_assignment(manual, 0, &brokers)?,
                None => {
                    let partitions = new.partitions.unwrap_or(config.partitions_default);
                    let replicas = new.replication_factor.unwrap_or(config.replication_factor_default);
                    check_counts(partitions, replicas, brokers.len())?;
                    place(0, partitions, usize::from(replicas.unsigned_abs()), &brokers, seed(id))
                }
            };
            let partitions = i32::try_from(assignment.len()).unwrap_or(i32::MAX);
            let factor = assignment.first().map_or(0, Vec::len);
            let replication_factor = i16::try_from(factor).unwrap_or(i16::MAX);
            let created = |id| CreatedTopic { id, partitions, replication_factor };
            let mut ops = vec![Op::Set { path: TOPICS.to_owned(), data: Bytes::new(), version: Some(guard) }];
            ops.extend(topic_ops(&new.name, &TopicNode::new(id, assignment), &new.config));
            check_fits(store, &new.name, partitions, &ops)?;
            if intent == Intent::Validate {
                return Ok(created(TopicId::ZERO));
            }
            match store.commit(ops).await {
                Ok(_) => return Ok(created(id)),
                Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Exists) => {}
                Err(error) if error.cause == CommitCause::Unavailable => {
                    // It may have happened: then it is our id that is there.
                    let stored = read_topic(store, &new.name).await?;
                    if stored.is_some_and(|(topic, _)| topic.id == id) {
                        return Ok(created(id));
                    }
                    return Err(StoreFailure::Unavailable.into());
                }
                Err(error) => return Err(StoreFailure::from(error).into()),
            }
        }
    }

    /// Makes a topic with the broker's defaults because a client asked for its metadata. However many ask at once, one
    /// makes it and the others find it made.
    pub async fn auto_create_topic(&self, name: &str) -> Result<(), AdminError> {
        let new = NewTopic { name: name.to_owned(), ..NewTopic::default() };
        match self.create_topic(&new, Intent::Apply).await {
            Ok(_) | Err(AdminError::Exists(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives a topic more partitions, `count` in all. `assignment` names the replicas of the new ones in order. Gives how many
    /// there were.
    pub async fn create_partitions(
        &self,
        name: &str,
        count: i32,
        assignment: Option<Vec<Vec<BrokerId>>>,
        intent: Intent,
    ) -> Result<usize, AdminError> {
        let store = &*self.shared.store;
        loop {
            let (mut topic, version) = read_topic(store, name).await?.ok_or(AdminError::UnknownTopic)?;
            let there = topic.assignment.len();
            let present = i32::try_from(there).unwrap_or(i32::MAX);
            if count == present {
                return Err(AdminError::InvalidPartitions(format!("Topic already has {present} partition(s).")));
            }
            if count < present {
                return Err(AdminError::InvalidPartitions(format!(
                    "The topic {name} currently has {present} partition(s); {count} would not be an increase."
                )));
            }
            if count > PARTITIONS_MAX {
                return Err(too_many(count));
            }
            let brokers: Vec<BrokerId> = self.image().brokers.keys().copied().collect();
            let added = match &assignment {
                Some(manual) => {
                    let missing = usize::try_from(count - present).unwrap_or(usize::MAX);
                    if manual.len() != missing {
                        return Err(AdminError::InvalidAssignment(format!(
                            "Attempted to add {missing} additional partition(s), but only {} assignment(s) were \
                             specified.",
                            manual.len()
                        )));
                    }
                    let numbered = (present..).zip(manual.iter().cloned()).collect();
                    let factor = topic.assignment.first().map(Vec::len);
                    let checked = check_assignment(&numbered, present, &brokers)?;
                    if checked.first().map(Vec::len) != factor {
                        let what = "The manual partition assignment has another replication factor than the topic.";
                        return Err(AdminError::InvalidAssignment(what.to_owned()));
                    }
                    checked
                }
                None => {
                    let factor = topic.assignment.first().map_or(1, Vec::len);
                    check_counts(count, i16::try_from(factor).unwrap_or(i16::MAX), brokers.len())?;
                    place(present, count - present, factor, &brokers, seed(topic.id))
                }
            };
            topic.assignment.extend(added);
            let mut ops = vec![Op::Set {
                path: znodes::topic_path(name),
                data: znodes::encode_topic(&topic),
                version: Some(version),
            }];
            ops.extend(
                (present..count)
                    .map(|number| Op::Create { path: znodes::partition_path(name, number), data: Bytes::new() }),
            );
            check_fits(store, name, count, &ops)?;
            if intent == Intent::Validate {
                return Ok(there);
            }
            match store.commit(ops).await {
                Ok(_) => return Ok(there),
                Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => {}
                Err(error) => return Err(StoreFailure::from(error).into()),
            }
        }
    }

    /// The topics that there are, as the store says.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub(crate) async fn topic_names(&self) -> Result<BTreeSet<String>, AdminError> {
        let names = self.shared.store.children(TOPICS).await.map_err(StoreFailure::from)?;
        Ok(names.into_iter().collect())
    }

    /// Deletes a topic; each broker removes its replicas when it sees that. Gives name and id of what was deleted.
    pub async fn delete_topic(&self, which: &TopicRef) -> Result<(String, TopicId), AdminError> {
        let store = &*self.shared.store;
        loop {
            let name = match which {
                TopicRef::Name(name) => name.clone(),
                TopicRef::Id(id) => {
                    let topic = self.image().topic_by_id(*id).cloned().ok_or(AdminError::UnknownTopicId)?;
                    topic.name.to_string()
                }
            };
            let unknown = match which {
                TopicRef::Name(_) => AdminError::UnknownTopic,
                TopicRef::Id(_) => AdminError::UnknownTopicId,
            };
            if check_name(&name).is_err() {
                return Err(unknown);
            }
            let Some((topic, version)) = read_topic(store, &name).await? else { return Err(unknown) };
            if matches!(which, TopicRef::Id(id) if *id != topic.id) {
                return Err(unknown);
            }
            let mut ops = vec![Op::Check { path: znodes::topic_path(&name), version }];
            if let Some(path) = znodes::topic_id_path(topic.id)
                && super::store::read(store, &path).await?.is_some()
            {
                ops.push(Op::Delete { path, version: None });
            }
            delete_below(store, znodes::topic_path(&name), &mut ops).await?;
            if super::store::read(store, &znodes::topic_config_path(&name)).await?.is_some() {
                ops.push(Op::Delete { path: znodes::topic_config_path(&name), version: None });
            }
            match store.commit(ops).await {
                Ok(_) => return Ok((name, topic.id)),
                // A state was set up, or partitions were added, in between.
                Err(error)
                    if matches!(error.cause, CommitCause::Version | CommitCause::Missing | CommitCause::NotEmpty) => {}
                Err(error) => return Err(StoreFailure::from(error).into()),
            }
        }
    }

    /// Waits until this broker's image has the topic with a leader for each of at least `partitions` partitions.
    pub async fn wait_for_leaders(&self, name: &str, partitions: i32, timeout_ms: u64) -> Result<(), AdminError> {
        self.wait_for_leaders_from(name, 0, partitions, timeout_ms).await
    }

    /// The same for the partitions from `first` on only: those before may have lost their leaders, which is no news of these.
    pub(crate) async fn wait_for_leaders_from(
        &self,
        name: &str,
        first: usize,
        partitions: i32,
        timeout_ms: u64,
    ) -> Result<(), AdminError> {
        let led = |image: &Arc<MetadataImage>| image.topic(name).is_some_and(|topic| is_led(topic, first, partitions));
        self.wait_for_image(led, timeout_ms).await
    }

    /// Waits until this broker's image has no topic of this id.
    pub async fn wait_for_deletion(&self, id: TopicId, timeout_ms: u64) -> Result<(), AdminError> {
        self.wait_for_image(|image| image.topics.values().all(|topic| topic.id != id), timeout_ms).await
    }

    pub(super) async fn wait_for_image(
        &self,
        seen: impl Fn(&Arc<MetadataImage>) -> bool,
        timeout_ms: u64,
    ) -> Result<(), AdminError> {
        let mut changes = self.changes();
        match tokio::time::timeout(Duration::from_millis(timeout_ms), changes.wait_for(seen)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(AdminError::TimedOut),
        }
    }
}

fn is_led(topic: &TopicImage, first: usize, partitions: i32) -> bool {
    let enough = i32::try_from(topic.partitions.len()).is_ok_and(|present| present >= partitions);
    enough && topic.partitions.iter().skip(first).all(|partition| partition.state.value.leader.is_some())
}

/// The commit's part that makes a topic without states: those come from the controller.
pub(super) fn topic_ops(name: &str, topic: &TopicNode, config: &BTreeMap<String, String>) -> Vec<Op> {
    let mut ops = vec![
        Op::Create { path: znodes::topic_config_path(name), data: znodes::encode_config(config) },
        Op::Create { path: znodes::topic_path(name), data: znodes::encode_topic(topic) },
        Op::Create { path: znodes::partitions_path(name), data: Bytes::new() },
    ];
    ops.extend(znodes::topic_id_path(topic.id).map(|path| Op::Create { path, data: Bytes::new() }));
    ops.extend(
        (0..)
            .take(topic.assignment.len())
            .map(|number| Op::Create { path: znodes::partition_path(name, number), data: Bytes::new() }),
    );
    ops
}

/// A topic comes, grows and goes in one commit each, so that no part of it is left behind: refused is one too large for that.
fn check_fits(store: &dyn Coordination, name: &str, partitions: i32, ops: &[Op]) -> Result<(), AdminError> {
    let deletion: Vec<Op> = (0..partitions)
        .flat_map(|number| [znodes::state_path(name, number), znodes::partition_path(name, number)])
        // Beside these: the topic's other nodes.
        .chain(std::iter::repeat_n(znodes::state_path(name, partitions), 8))
        .map(|path| Op::Delete { path, version: None })
        .collect();
    if store.fits(ops) && store.fits(&deletion) {
        return Ok(());
    }
    Err(AdminError::InvalidPartitions(format!(
        "A topic of this name with {partitions} partitions takes more than the coordination store changes at a time: it \
         could not be deleted as a whole. Spread the records over several topics."
    )))
}

/// Deletes `path` and all below it, deepest first.
async fn delete_below(store: &dyn Coordination, path: String, ops: &mut Vec<Op>) -> Result<(), StoreFailure> {
    let (mut open, mut found) = (vec![path], Vec::new());
    while let Some(path) = open.pop() {
        for child in store.children(&path).await? {
            open.push(format!("{path}/{child}"));
        }
        found.push(path);
    }
    // A parent was found before its children.
    ops.extend(found.into_iter().rev().map(|path| Op::Delete { path, version: None }));
    Ok(())
}

/// Kafka's rule for names (`org.apache.kafka.common.internals.Topic`).
pub fn check_name(name: &str) -> Result<(), AdminError> {
    let invalid = |what: &str| Err(AdminError::InvalidTopic(what.to_owned()));
    match name {
        "" => invalid("the empty string is not allowed"),
        "." | ".." => invalid("'.' or '..' is not allowed"),
        _ if name.len() > NAME_BYTES_MAX => {
            invalid(&format!("the length of '{name}' is longer than the max allowed length {NAME_BYTES_MAX}"))
        }
        _ if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')) => {
            invalid(&format!(
                "'{}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
                name.escape_default()
            ))
        }
        _ => Ok(()),
    }
}

/// Kafka keeps names apart also when dots become underscores, which they do in the names of metrics.
fn check_collision(name: &str, names: &[String]) -> Result<(), AdminError> {
    if names.iter().any(|other| other == name) {
        return Err(AdminError::Exists(name.to_owned()));
    }
    let flat = name.replace('.', "_");
    match names.iter().find(|other| other.replace('.', "_") == flat) {
        Some(other) => Err(AdminError::InvalidTopic(format!("Topic '{name}' collides with existing topic: {other}"))),
        None => Ok(()),
    }
}

fn check_config(defaults: &TopicConfig, config: &BTreeMap<String, String>) -> Result<(), AdminError> {
    let checked = config.iter().try_for_each(|(name, value)| TopicConfig::check_new(name, value));
    match checked.and_then(|()| TopicConfig::resolve(defaults, config)) {
        Ok(_) => Ok(()),
        Err(error) => Err(AdminError::InvalidConfig(error.to_string())),
    }
}

fn too_many(partitions: i32) -> AdminError {
    AdminError::TooMany(format!(
        "Excessively large number of partitions per request: {partitions} partitions are more than the {PARTITIONS_MAX} a topic may have."
    ))
}

fn check_counts(partitions: i32, replicas: i16, brokers: usize) -> Result<(), AdminError> {
    if partitions <= 0 {
        return Err(AdminError::InvalidPartitions(
            "Number of partitions was set to an invalid non-positive value.".to_owned(),
        ));
    }
    if partitions > PARTITIONS_MAX {
        return Err(too_many(partitions));
    }
    if replicas <= 0 {
        let what = "Replication factor must be larger than 0, or -1 to use the default value.";
        return Err(AdminError::InvalidReplicationFactor(what.to_owned()));
    }
    if usize::from(replicas.unsigned_abs()) > brokers {
        return Err(AdminError::InvalidReplicationFactor(format!(
            "Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} cannot be \
             reached because only {brokers} broker(s) are registered."
        )));
    }
    Ok(())
}

/// The replicas of partitions numbered from `first` on without holes, all as many, all distinct and registered.
fn check_assignment(
    manual: &BTreeMap<i32, Vec<BrokerId>>,
    first: i32,
    brokers: &[BrokerId],
) -> Result<Vec<Vec<BrokerId>>, AdminError> {
    let invalid = |what: String| Err(AdminError::InvalidAssignment(what));
    if manual.is_empty() || !manual.keys().copied().eq((first..).take(manual.len())) {
        return invalid("partitions should be a consecutive 0-based integer sequence".to_owned());
    }
    if manual.len() > usize::try_from(PARTITIONS_MAX).unwrap_or(usize::MAX) {
        return Err(too_many(i32::try_from(manual.len()).unwrap_or(i32::MAX)));
    }
    let factor = manual.values().next().map_or(0, Vec::len);
    for replicas in manual.values() {
        if replicas.is_empty() {
            return invalid("The manual partition assignment includes an empty replica list.".to_owned());
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = replicas.iter().find(|id| !seen.insert(**id)) {
            return invalid(format!("The manual partition assignment includes the broker {twice} more than once."));
        }
        if let Some(unknown) = replicas.iter().find(|id| !brokers.contains(id)) {
            return invalid(format!(
                "The manual partition assignment includes broker {unknown}, but no such broker is registered."
            ));
        }
        if replicas.len() != factor {
            return invalid(format!(
                "The manual partition assignment includes a partition with {} replica(s), but others have {factor}.",
                replicas.len()
            ));
        }
    }
    Ok(manual.values().cloned().collect())
}

/// Kafka's placement without racks (`AdminUtils.assignReplicasToBrokersRackUnaware`): leaders go round the brokers from a
/// random one on; the other replicas follow their leader at a distance that grows by one each time round, so that the
/// partitions of one leader have their followers on different brokers.
fn place(first: i32, count: i32, factor: usize, brokers: &[BrokerId], seed: u64) -> Vec<Vec<BrokerId>> {
    let total = brokers.len();
    let at = |index: usize| brokers.get(index % total.max(1)).copied();
    let number = |value: u64| usize::try_from(value % (total.max(1) as u64)).unwrap_or(0);
    let (start, mut shift) = (number(seed >> 32), number(seed & 0xffff_ffff));
    let first = usize::try_from(first).unwrap_or(0);
    // As many rounds as the partitions before these took.
    shift += first.checked_div(total).unwrap_or(0);
    (first..first + usize::try_from(count).unwrap_or(0))
        .map(|partition| {
            if partition > first && partition % total.max(1) == 0 {
                shift += 1;
            }
            let leader = partition + start;
            let distance = |replica: usize| 1 + (shift + replica) % (total - 1).max(1);
            at(leader).into_iter().chain((0..factor - 1).filter_map(|replica| at(leader + distance(replica)))).collect()
        })
        .collect()
}

/// Where a topic's placement begins: from its id, which is random, so that adding partitions goes on where creation
/// stopped.
fn seed(id: TopicId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = id.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// An id that nobody has: 122 random bits marked as a version 4 UUID, and not beginning with a dash when written, as
/// tools would take it for an option (Kafka's `Uuid.randomUuid`).
pub(crate) fn random_id() -> TopicId {
    loop {
        let mut bytes = [0; 16];
        let mut source = std::fs::File::open("/dev/urandom").expect("the system has a source of random bytes");
        source.read_exact(&mut bytes).expect("the system's source of random bytes does not run dry");
        let [.., g, _, i, _, _, _, _, _, _, _] = &mut bytes;
        *g = *g & 0x0f | 0x40;
        *i = *i & 0x3f | 0x80;
        let id = TopicId(bytes);
        if !id.to_string().starts_with('-') {
            return id;
        }
    }
}

#[cfg(test)]
mod tests;
