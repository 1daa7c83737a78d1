//! Electing leaders and moving replicas at somebody's request. Any broker can do it: the store decides, and each change is one
//! commit.

use std::collections::{BTreeMap, BTreeSet};

use highwater_replication::{BrokerId, Brokers, ElectionKind, NotElected, elect_on_request};
use highwater_storage::TopicPartition;
use tokio::time::Instant;

use super::controller::facts_of;
use super::store::{read, read_topic};
use super::znodes::{self, CONTROLLER_EPOCH};
use super::{AdminError, ClusterHandle, CommitCause, Op, StoreFailure};

/// What to do with one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// It is to end up on these brokers, the first one preferred as leader.
    To(Vec<BrokerId>),
    /// The move that is under way is to be undone.
    Cancel,
}

/// Whether a move may change the number of a partition's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactorChange {
    /// It may.
    Allowed,
    /// It may not.
    Refused,
}

impl ClusterHandle {
    /// Elects a leader for one partition, and waits until this broker's image shows it. What is decided on is that image;
    /// whoever has changed the partition meanwhile is waited for, up to `deadline`.
    ///
    /// # Errors
    ///
    /// Why there was no election, or that its outcome was not seen in time.
    pub async fn elect_leader(
        &self,
        of: &TopicPartition,
        kind: ElectionKind,
        deadline: Instant,
    ) -> Result<(), AdminError> {
        let store = &*self.shared.store;
        let node = read(store, CONTROLLER_EPOCH).await?.ok_or(StoreFailure::Unavailable)?;
        let epoch = znodes::parse_controller_epoch(&node.data).map_err(StoreFailure::from)?;
        loop {
            let image = self.image();
            let topic = image.topic(&of.topic).ok_or(AdminError::UnknownTopic)?;
            let facts = facts_of(&image, topic, of.partition, false).ok_or(AdminError::UnknownTopic)?;
            let Some(known) = &facts.state else { return Err(AdminError::EligibleLeadersNotAvailable) };
            let failed: BTreeSet<BrokerId> = facts
                .assignment
                .iter()
                .copied()
                .filter(|id| image.offline.contains(&(topic.id, of.partition, *id)))
                .collect();
            let live = image.live_brokers();
            let brokers = Brokers { live: &live, leaving: &image.leaving, failed: Some(&failed) };
            let (state, why) = elect_on_request(&facts, brokers, kind, epoch).map_err(|not| match not {
                NotElected::NotNeeded => AdminError::ElectionNotNeeded,
                NotElected::PreferredNotAvailable => AdminError::PreferredLeaderNotAvailable,
                NotElected::NoneEligible => AdminError::EligibleLeadersNotAvailable,
            })?;
            let mut ops = vec![
                Op::Check { path: CONTROLLER_EPOCH.to_owned(), version: node.version },
                Op::Check { path: znodes::topic_path(&of.topic), version: topic.version },
            ];
            ops.extend(znodes::topic_id_path(topic.id).map(|path| Op::Exists { path }));
            let path = znodes::state_path(&of.topic, of.partition);
            ops.push(Op::Set { path, data: znodes::encode_state(&state), version: Some(known.version) });
            let (id, version) = (topic.id, known.version);
            let has_changed = |image: &std::sync::Arc<super::MetadataImage>| {
                let now = image.topic(&of.topic).filter(|topic| topic.id == id);
                now.and_then(|topic| topic.partition(of.partition)).is_none_or(|now| now.state.version > version)
            };
            let left_ms =
                u64::try_from(deadline.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX);
            match store.commit(ops).await {
                Ok(_) => {
                    let leader = state.leader.map_or(-1, |leader| leader.0);
                    tracing::info!(partition = %of, leader, epoch = %state.leader_epoch, ?why, "elected on request");
                    return self.wait_for_image(has_changed, left_ms).await;
                }
                // Another controller: the next attempt of the client's goes by its epoch.
                Err(error) if error.at == 0 && error.cause == CommitCause::Version => {
                    return Err(StoreFailure::Unavailable.into());
                }
                Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => {
                    self.wait_for_image(has_changed, left_ms).await?;
                }
                Err(error) => return Err(StoreFailure::from(error).into()),
            }
        }
    }

    /// Moves partitions of one topic, or takes moves back. What can be done of it is begun in one commit; the controller
    /// sees it through. Gives what became of each.
    ///
    /// # Errors
    ///
    /// Nothing was begun.
    pub async fn reassign(
        &self,
        name: &str,
        moves: &BTreeMap<i32, Move>,
        factor: FactorChange,
    ) -> Result<BTreeMap<i32, Result<(), AdminError>>, AdminError> {
        let store = &*self.shared.store;
        loop {
            let (mut topic, version) = read_topic(store, name).await?.ok_or(AdminError::UnknownTopic)?;
            let image = self.image();
            let mut results = BTreeMap::new();
            for (&number, wanted) in moves {
                let change = topic.reassignments.get(&number).cloned().unwrap_or_default();
                let at = usize::try_from(number).ok().and_then(|at| topic.assignment.get_mut(at));
                let Some(assignment) = at else {
                    results.insert(number, Err(AdminError::UnknownTopic));
                    continue;
                };
                let target = match wanted {
                    Move::Cancel if change.is_under_way() => Ok(change.origin(assignment)),
                    Move::Cancel => Err(AdminError::NoReassignment),
                    Move::To(target) => check_target(assignment, &change.origin(assignment), target, factor, |id| {
                        image.brokers.contains_key(&id)
                    }),
                };
                results.insert(
                    number,
                    target.map(|target| {
                        let (all, change) = change.begin(assignment, &target);
                        *assignment = all;
                        topic.reassignments.remove(&number);
                        if change.is_under_way() {
                            topic.reassignments.insert(number, change);
                        }
                    }),
                );
            }
            if results.values().all(Result::is_err) {
                return Ok(results);
            }
            let data = znodes::encode_topic(&topic);
            match store.commit(vec![Op::Set { path: znodes::topic_path(name), data, version: Some(version) }]).await {
                Ok(_) => return Ok(results),
                Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => {}
                Err(error) => return Err(StoreFailure::from(error).into()),
            }
        }
    }
}

/// Whether a partition can end up on `target`: brokers that are there, none twice. Of those that hold it already nothing is
/// asked.
fn check_target(
    assignment: &[BrokerId],
    origin: &[BrokerId],
    target: &[BrokerId],
    factor: FactorChange,
    is_live: impl Fn(BrokerId) -> bool,
) -> Result<Vec<BrokerId>, AdminError> {
    let invalid = |what: String| Err(AdminError::InvalidAssignment(what));
    if target.is_empty() {
        return invalid("The replica list is empty.".to_owned());
    }
    if target.iter().collect::<BTreeSet<_>>().len() != target.len() {
        return invalid("The replica list names a broker twice.".to_owned());
    }
    if let Some(unknown) = target.iter().find(|id| !assignment.contains(id) && !is_live(**id)) {
        return invalid(format!("The replica list includes broker {unknown}, but no such broker is registered."));
    }
    if factor == FactorChange::Refused && target.len() != origin.len() {
        return Err(AdminError::InvalidReplicationFactor(format!(
            "The replication factor is {} and must not be changed to {}.",
            origin.len(),
            target.len()
        )));
    }
    Ok(target.to_vec())
}
