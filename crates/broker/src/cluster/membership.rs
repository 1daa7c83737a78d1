//! Joining a cluster: the store's first nodes, partitions taken over from a data directory, registration, and what a
//! broker does before it after it stopped uncleanly.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, return_doubtful};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::time::Instant;

use super::agent::IN_FLIGHT;
use super::store::read_topic;
use super::znodes::{self, TopicNode};
use super::{
    BoxFuture, ClusterConfig, CommitCause, CommitError, Coordination, CoordinationError, JoinError, MetadataImage, Op,
    StoreFailure, Watch, admin,
};

/// How long a store that did not answer is left alone.
pub(super) const BACKOFF: Duration = Duration::from_millis(100);

/// A partition found in the data directory of a broker that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundPartition {
    /// Which partition.
    pub topic_partition: TopicPartition,
    /// The topic's id, from `partition.metadata`; old directories have none.
    pub topic_id: Option<TopicId>,
    /// The last leader epoch in its log; [`LeaderEpoch::NONE`] for none.
    pub last_epoch: LeaderEpoch,
}

/// Makes the nodes that everything else hangs below, takes `adopt` over if there are no topics yet, and settles the
/// cluster's id, which it returns.
pub(super) async fn prepare(
    store: &dyn Coordination,
    config: &ClusterConfig,
    adopt: Vec<FoundPartition>,
) -> Result<String, JoinError> {
    for path in znodes::ROOTS {
        create_if_missing(store, path, Bytes::new()).await?;
    }
    create_if_missing(store, znodes::CONTROLLER_EPOCH, znodes::encode_controller_epoch(0)).await?;
    // Before the cluster's id: a crash in between leaves a store that still counts as new.
    if !adopt.is_empty() && store.children(znodes::TOPICS).await.map_err(StoreFailure::from)?.is_empty() {
        take_over(store, config.id, adopt).await?;
    }
    let proposed = match &config.cluster_id {
        Some(id) => id.clone(),
        None => admin::random_id().to_string(),
    };
    create_if_missing(store, znodes::CLUSTER_ID, znodes::encode_cluster_id(&proposed)).await?;
    let node = store.read(znodes::CLUSTER_ID).await.map_err(StoreFailure::from)?;
    let data = node.map(|node| node.data).unwrap_or_default();
    let stored = znodes::parse_cluster_id(&data).map_err(StoreFailure::from)?;
    match &config.cluster_id {
        Some(ours) if *ours != stored => Err(JoinError::ClusterId { ours: ours.clone(), stored }),
        _ => Ok(stored),
    }
}

async fn create_if_missing(store: &dyn Coordination, path: &str, data: Bytes) -> Result<(), StoreFailure> {
    match store.commit(vec![Op::Create { path: path.to_owned(), data }]).await {
        Err(error) if error.cause != CommitCause::Exists => Err(error.into()),
        _ => Ok(()),
    }
}

/// Makes topics of partitions that Kafka, or an earlier life of ours, left in the data directory. Each keeps its id, and
/// its state begins at the last epoch in its log without a leader, so that the first election goes above it. All topics
/// come in one commit: a crash leaves all or none.
async fn take_over(store: &dyn Coordination, me: BrokerId, found: Vec<FoundPartition>) -> Result<(), JoinError> {
    let mut topics: BTreeMap<_, BTreeMap<i32, FoundPartition>> = BTreeMap::new();
    for found in found {
        let topic = topics.entry(found.topic_partition.topic.clone()).or_default();
        topic.insert(found.topic_partition.partition, found);
    }
    let (mut ops, mut named) = (Vec::new(), BTreeMap::new());
    for (name, partitions) in &topics {
        let refuse = |what: String| JoinError::Adoption { topic: name.to_string(), what };
        admin::check_name(name).map_err(|error| refuse(error.to_string()))?;
        let ids: BTreeSet<TopicId> = partitions.values().filter_map(|found| found.topic_id).collect();
        if ids.len() > 1 {
            return Err(refuse(list("its partitions have different topic ids", ids.iter())));
        }
        let id = ids.first().copied().unwrap_or_else(admin::random_id);
        let last = partitions.keys().next_back().copied().unwrap_or(0);
        let known = |number: i32| (0..znodes::PARTITIONS_MAX).contains(&number);
        if let Some(number) = partitions.keys().find(|&&number| !known(number)) {
            return Err(refuse(format!("it has a partition {number}")));
        }
        if let Some(other) = named.insert(id, name) {
            return Err(refuse(format!("topic {other} has the same topic id, {id}")));
        }
        // Partitions between those found lived on other brokers; here they begin empty.
        let topic = TopicNode::new(id, (0..=last).map(|_| vec![me]).collect());
        ops.extend(admin::topic_ops(name, &topic, &BTreeMap::new()));
        for (&number, found) in partitions {
            let state = PartitionState {
                leader: None,
                leader_epoch: LeaderEpoch(found.last_epoch.0.max(0)),
                isr: vec![me],
                controller_epoch: 0,
                doubtful: Vec::new(),
                recovering: false,
            };
            ops.push(Op::Create { path: znodes::state_path(name, number), data: znodes::encode_state(&state) });
        }
    }
    tracing::info!(topics = topics.len(), "taking topics over from the data directory");
    store.commit(ops).await.map_err(StoreFailure::from)?;
    Ok(())
}

fn list(what: &str, ids: impl Iterator<Item = impl std::fmt::Display>) -> String {
    ids.fold(what.to_owned(), |mut text, id| {
        // Writing to a String does not fail.
        _ = write!(text, " {id}");
        text
    })
}

/// Registers with a node that holds `data`, waiting for an earlier life of this broker to expire if there is one.
pub(super) async fn register(
    store: &dyn Coordination,
    id: BrokerId,
    data: &Bytes,
    timeout_ms: u64,
) -> Result<BrokerEpoch, JoinError> {
    let path = znodes::broker_path(id);
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    loop {
        let changed = store.watch(&path, Watch::Data);
        let ops = vec![
            Op::CreateEphemeral { path: path.clone(), data: data.clone() },
            Op::Set { path: znodes::life_path(id), data: data.clone(), version: None },
        ];
        match store.commit(ops).await {
            Ok(done) => return Ok(BrokerEpoch(done.first().map_or(0, |done| done.created))),
            Err(error) if error.cause == CommitCause::Exists => {
                // An earlier round may have been carried out without an answer.
                if let Ok(Some(node)) = store.read(&path).await
                    && node.data == *data
                {
                    return Ok(BrokerEpoch(node.created));
                }
                wait_for_change(changed, deadline, id, timeout_ms).await?;
            }
            Err(CommitError { at: 1, cause: CommitCause::Missing }) => {
                create_if_missing(store, &znodes::life_path(id), Bytes::new()).await?;
            }
            // If it did happen after all, this session holds the node and the next round waits for it in vain: look.
            Err(error) if error.cause == CommitCause::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(BACKOFF).await;
                if let Ok(Some(node)) = store.read(&path).await
                    && node.data == *data
                {
                    return Ok(BrokerEpoch(node.created));
                }
            }
            Err(error) => return Err(StoreFailure::from(error).into()),
        }
    }
}

/// Makes the nodes of topics' ids that are not there: of topics that Kafka, or an earlier version of this program, has made.
pub(super) async fn name_topics(store: &dyn Coordination, image: &MetadataImage) -> Result<(), StoreFailure> {
    let named: BTreeSet<String> = store.children(znodes::TOPIC_IDS).await?.into_iter().collect();
    for topic in image.topics.values().filter(|topic| !named.contains(&topic.id.to_string())) {
        let Some(path) = znodes::topic_id_path(topic.id) else { continue };
        let ops = vec![
            Op::Check { path: znodes::topic_path(&topic.name), version: topic.version },
            Op::Create { path: path.clone(), data: Bytes::new() },
        ];
        match store.commit(ops).await {
            Ok(_) => {}
            // Another broker made it, or the topic is gone.
            Err(CommitError { cause: CommitCause::Exists | CommitCause::Version | CommitCause::Missing, .. }) => {
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        // The topic's version does not tell it from one that was made again in between.
        if read_topic(store, &topic.name).await?.is_none_or(|(stored, _)| stored.id != topic.id) {
            delete_if_there(store, path).await?;
        }
    }
    Ok(())
}

async fn delete_if_there(store: &dyn Coordination, path: String) -> Result<(), StoreFailure> {
    match store.commit(vec![Op::Delete { path, version: None }]).await {
        Err(error) if error.cause != CommitCause::Missing => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits until the registration of an earlier life of this broker has expired, if there is one.
pub(super) async fn wait_for_former_life(
    store: &dyn Coordination,
    id: BrokerId,
    timeout_ms: u64,
) -> Result<(), JoinError> {
    let path = znodes::broker_path(id);
    let deadline = Instant::now() + Duration::from_millis(timeout_ms);
    loop {
        let changed = store.watch(&path, Watch::Data);
        if store.read(&path).await.map_err(StoreFailure::from)?.is_none() {
            return Ok(());
        }
        wait_for_change(changed, deadline, id, timeout_ms).await?;
    }
}

/// Until the watch fires, or a moment if the store cannot be reached: then it fails at once.
async fn wait_for_change(
    changed: BoxFuture<'static, Result<(), CoordinationError>>,
    deadline: Instant,
    id: BrokerId,
    waited_ms: u64,
) -> Result<(), JoinError> {
    match tokio::time::timeout_at(deadline, changed).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(CoordinationError::SessionLost)) => Err(StoreFailure::SessionLost.into()),
        Ok(Err(CoordinationError::Unavailable)) => {
            tokio::time::sleep(BACKOFF).await;
            Ok(())
        }
        Err(_) => Err(JoinError::DuplicateBroker { id, waited_ms }),
    }
}

/// What a broker does that may lack what it acknowledged, before it registers: it says so in the state of each of its
/// partitions. What it writes, and why, is [`return_doubtful`]'s to say. `image` only tells which partitions can be
/// concerned: their states are read afresh.
pub(super) async fn mark_doubtful(
    store: &dyn Coordination,
    me: BrokerId,
    image: &MetadataImage,
) -> Result<(), StoreFailure> {
    let mut due = Vec::new();
    for topic in image.topics.values() {
        for (number, partition) in (0..).zip(&topic.partitions) {
            if partition.assignment.contains(&me) || partition.state.value.isr.contains(&me) {
                due.push((TopicPartition::new(topic.name.clone(), number), topic.id));
            }
        }
    }
    let mut marked = 0;
    while !due.is_empty() {
        let mut failed = Vec::new();
        for some in due.chunks(IN_FLIGHT) {
            marked += mark_some(store, me, some, &mut failed).await?;
        }
        due.clear();
        let mut ids = BTreeMap::new();
        for of in failed {
            // The topic may be another one by now.
            let id = match ids.entry(of.topic.clone()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(unknown) => {
                    *unknown.insert(read_topic(store, &of.topic).await?.map(|(topic, _)| topic.id))
                }
            };
            due.extend(id.map(|id| (of, id)));
        }
    }
    if marked > 0 {
        tracing::info!(broker = %me, partitions = marked, "stopped uncleanly before: their logs may lack records");
    }
    Ok(())
}

/// Gives how many are marked now that were not. Those whose state was written by somebody else meanwhile, or whose topic is
/// not of that id any more, go to `failed`.
async fn mark_some(
    store: &dyn Coordination,
    me: BrokerId,
    some: &[(TopicPartition, TopicId)],
    failed: &mut Vec<TopicPartition>,
) -> Result<usize, StoreFailure> {
    // All are on their way before the first is awaited: they share the store's syncs.
    let path = |of: &TopicPartition| znodes::state_path(&of.topic, of.partition);
    let readings: Vec<_> = some.iter().map(|(of, _)| store.read(&path(of))).collect();
    let mut writes = Vec::new();
    for ((of, id), reading) in some.iter().zip(readings) {
        let Some(node) = reading.await? else { continue };
        let stored = znodes::parse_state(&of.topic, of.partition, &node.data)?;
        if let Some(state) = return_doubtful(me, &stored) {
            let data = znodes::encode_state(&state);
            let mut ops: Vec<Op> = znodes::topic_id_path(*id).map(|path| Op::Exists { path }).into_iter().collect();
            ops.push(Op::Set { path: path(of), data, version: Some(node.version) });
            writes.push((of, state.doubtful != stored.doubtful, store.commit(ops)));
        }
    }
    let mut marked = 0;
    for (of, marks, commit) in writes {
        match commit.await {
            Ok(_) => marked += usize::from(marks),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => failed.push(of.clone()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(marked)
}

#[cfg(test)]
mod tests;
