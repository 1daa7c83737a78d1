//! Joining a cluster: the store's first nodes, partitions taken over from a data directory, registration, and what a
//! broker does before it after it stopped uncleanly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use highwater_replication::{BrokerEpoch, BrokerId, PartitionState};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};
use tokio::time::Instant;

use super::store::read_versioned_state;
use super::znodes::{self, BROKER_IDS, TopicNode};
use super::{
    ClusterConfig, CommitCause, Coordination, Endpoint, JoinError, LastStop, MetadataImage, Op, StoreFailure, Watch,
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

/// When [`begin_life`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// The cluster does not count on this broker yet.
    BeforeRegistering,
    /// It does, but nothing has been served in this life. Of two brokers that boot at once neither saw the other live
    /// before; now at least one of them does.
    AfterRegistering,
}

/// What a broker does before it registers, and after an unclean stop once more right after.
///
/// It lays down the leaderships of its earlier life: no two lives lead in one epoch, or a log that lost its end could
/// give the same epoch and offset to another record. If it may lack what it acknowledged, it also leaves the in-sync
/// replicas of each partition that has another live one, and rewrites unchanged the state of each partition it is
/// assigned to without being in sync: its earlier life may have caught up and its leader's proposal to take it in may be
/// on its way, and that must fail on the version.
pub(super) async fn begin_life(
    store: &dyn Coordination,
    me: BrokerId,
    image: &MetadataImage,
    last_stop: LastStop,
    moment: Moment,
) -> Result<(), StoreFailure> {
    let (mut laid_down, mut left) = (0, 0);
    for topic in image.topics.values() {
        for (number, partition) in (0..).zip(&topic.partitions) {
            // The image tells which partitions can be concerned; their states are read afresh.
            let known = &partition.state.value;
            let mine = known.leader == Some(me) || known.isr.contains(&me) || partition.assignment.contains(&me);
            if mine {
                let done =
                    begin_one(store, me, &TopicPartition::new(topic.name.clone(), number), last_stop, moment).await?;
                laid_down += usize::from(done.laid_down);
                left += usize::from(done.left);
            }
        }
    }
    if laid_down + left > 0 {
        tracing::info!(broker = %me, laid_down, left, ?last_stop, "laid down leaderships, left in-sync replicas");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Begun {
    laid_down: bool,
    left: bool,
}

async fn begin_one(
    store: &dyn Coordination,
    me: BrokerId,
    of: &TopicPartition,
    last_stop: LastStop,
    moment: Moment,
) -> Result<Begun, StoreFailure> {
    let path = znodes::state_path(&of.topic, of.partition);
    loop {
        let Some(stored) = read_versioned_state(store, of).await? else { return Ok(Begun::default()) };
        let live = match last_stop {
            LastStop::Clean => Vec::new(),
            LastStop::Unclean => store.children(BROKER_IDS).await?,
        };
        let Some((state, begun)) =
            state_at_start(me, &stored.value, last_stop, moment, |id| live.contains(&id.to_string()))
        else {
            return Ok(Begun::default());
        };
        let data = znodes::encode_state(&state);
        match store.commit(vec![Op::Set { path: path.clone(), data, version: Some(stored.version) }]).await {
            Ok(_) => return Ok(begun),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The state to write for a broker that begins a life, if any.
fn state_at_start(
    me: BrokerId,
    stored: &PartitionState,
    last_stop: LastStop,
    moment: Moment,
    live: impl Fn(BrokerId) -> bool,
) -> Option<(PartitionState, Begun)> {
    let mut state = stored.clone();
    let in_sync = state.isr.contains(&me);
    // The last whole replica stays: if it cannot lead, nobody can.
    let left =
        last_stop == LastStop::Unclean && in_sync && state.isr.iter().any(|&member| member != me && live(member));
    if left {
        state.isr.retain(|&member| member != me);
    }
    let before = moment == Moment::BeforeRegistering;
    // A leadership seen after registering is this life's own.
    let laid_down = state.leader == Some(me) && (before || left);
    if laid_down {
        state.leader = None;
        state.leader_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    }
    let rewrite = last_stop == LastStop::Unclean && before && !in_sync;
    (left || laid_down || rewrite).then_some((state, Begun { laid_down, left }))
}

#[cfg(test)]
mod tests;
