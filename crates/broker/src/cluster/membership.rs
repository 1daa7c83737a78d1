//! Joining a cluster: the store's first nodes, partitions taken over from a data directory, registration, and what a
//! broker does before it after it stopped uncleanly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, return_doubtful};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::time::Instant;

use super::agent::IN_FLIGHT;
use super::znodes::{self, TopicNode};
use super::{
    ClusterConfig, CommitCause, CommitError, Coordination, Endpoint, JoinError, MetadataImage, Op, StoreFailure, Watch,
    admin, unix_ms,
};

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
    let mut ops = Vec::new();
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
        // Partitions between those found lived on other brokers; here they begin empty.
        let topic = TopicNode { id, assignment: (0..=last).map(|_| vec![me]).collect() };
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

/// Registers, waiting for an earlier life of this broker to expire if there is one.
pub(super) async fn register(
    store: &dyn Coordination,
    id: BrokerId,
    endpoint: &Endpoint,
    timeout_ms: u64,
) -> Result<BrokerEpoch, JoinError> {
    let path = znodes::broker_path(id);
    let data = znodes::encode_broker(&endpoint.host, endpoint.port, endpoint.rack.as_deref(), unix_ms());
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
                    && node.data == data
                {
                    return Ok(BrokerEpoch(node.created));
                }
                if tokio::time::timeout_at(deadline, changed).await.is_err() {
                    return Err(JoinError::DuplicateBroker { id, waited_ms: timeout_ms });
                }
            }
            Err(CommitError { at: 1, cause: CommitCause::Missing }) => {
                create_if_missing(store, &znodes::life_path(id), Bytes::new()).await?;
            }
            // If it did happen after all, this session holds the node and the next round waits for it in vain: look.
            Err(error) if error.cause == CommitCause::Unavailable && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                if let Ok(Some(node)) = store.read(&path).await
                    && node.data == data
                {
                    return Ok(BrokerEpoch(node.created));
                }
            }
            Err(error) => return Err(StoreFailure::from(error).into()),
        }
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
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            return Err(JoinError::DuplicateBroker { id, waited_ms: timeout_ms });
        }
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
                due.push(TopicPartition::new(topic.name.clone(), number));
            }
        }
    }
    let mut marked = 0;
    while !due.is_empty() {
        let mut again = Vec::new();
        for some in due.chunks(IN_FLIGHT) {
            marked += mark_some(store, me, some, &mut again).await?;
        }
        due = again;
    }
    if marked > 0 {
        tracing::info!(broker = %me, partitions = marked, "stopped uncleanly before: their logs may lack records");
    }
    Ok(())
}

/// Gives how many are marked now that were not. Those whose state was written by somebody else meanwhile go to `again`.
async fn mark_some(
    store: &dyn Coordination,
    me: BrokerId,
    some: &[TopicPartition],
    again: &mut Vec<TopicPartition>,
) -> Result<usize, StoreFailure> {
    // All are on their way before the first is awaited: they share the store's syncs.
    let path = |of: &TopicPartition| znodes::state_path(&of.topic, of.partition);
    let readings: Vec<_> = some.iter().map(|of| store.read(&path(of))).collect();
    let mut writes = Vec::new();
    for (of, reading) in some.iter().zip(readings) {
        let Some(node) = reading.await? else { continue };
        let stored = znodes::parse_state(&of.topic, of.partition, &node.data)?;
        if let Some(state) = return_doubtful(me, &stored) {
            let data = znodes::encode_state(&state);
            let commit = store.commit(vec![Op::Set { path: path(of), data, version: Some(node.version) }]);
            writes.push((of, state.doubtful != stored.doubtful, commit));
        }
    }
    let mut marked = 0;
    for (of, marks, commit) in writes {
        match commit.await {
            Ok(_) => marked += usize::from(marks),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => again.push(of.clone()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(marked)
}

#[cfg(test)]
mod tests;
