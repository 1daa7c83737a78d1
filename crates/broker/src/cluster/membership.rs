//! Joining a cluster: the store's first nodes, partitions taken over from a data directory, registration, and what a
//! broker does before it after it stopped uncleanly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, PartitionState, return_unclean};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::time::Instant;

use super::store::read_versioned_state;
use super::znodes::{self, BROKER_IDS, TopicNode};
use super::{
    ClusterConfig, CommitCause, Coordination, Endpoint, JoinError, MetadataImage, Op, StoreFailure, Watch, admin,
    unix_ms,
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
        match store.commit(vec![Op::CreateEphemeral { path: path.clone(), data: data.clone() }]).await {
            Ok(done) => return Ok(BrokerEpoch(done.first().map_or(0, |done| done.created))),
            Err(error) if error.cause == CommitCause::Exists => {
                if tokio::time::timeout_at(deadline, changed).await.is_err() {
                    return Err(JoinError::DuplicateBroker { id, waited_ms: timeout_ms });
                }
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

/// What a broker does that may lack what it acknowledged, before it registers and once more right after: of two brokers
/// that boot at once neither saw the other live the first time.
///
/// It leaves the in-sync replicas of each partition that has another live one; what it writes otherwise, and why, is
/// [`return_unclean`]'s to say. `image` only tells which partitions can be concerned: their states are read afresh.
pub(super) async fn leave_in_sync_replicas(
    store: &dyn Coordination,
    me: BrokerId,
    image: &MetadataImage,
) -> Result<(), StoreFailure> {
    let mut left = 0;
    for topic in image.topics.values() {
        for (number, partition) in (0..).zip(&topic.partitions) {
            let mine = partition.assignment.contains(&me) || partition.state.value.isr.contains(&me);
            if mine && leave_one(store, me, &TopicPartition::new(topic.name.clone(), number)).await? {
                left += 1;
            }
        }
    }
    if left > 0 {
        tracing::info!(broker = %me, partitions = left, "stopped uncleanly before: left their in-sync replicas");
    }
    Ok(())
}

async fn leave_one(store: &dyn Coordination, me: BrokerId, of: &TopicPartition) -> Result<bool, StoreFailure> {
    let path = znodes::state_path(&of.topic, of.partition);
    loop {
        let Some(stored) = read_versioned_state(store, of).await? else { return Ok(false) };
        let live = store.children(BROKER_IDS).await?;
        let Some(state) = return_unclean(me, &stored.value, |id| live.contains(&id.to_string())) else {
            return Ok(false);
        };
        let data = znodes::encode_state(&state);
        match store.commit(vec![Op::Set { path: path.clone(), data, version: Some(stored.version) }]).await {
            Ok(_) => return Ok(stored.value.isr.contains(&me) && !state.isr.contains(&me)),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
