//! What the controller decides, from an image alone.

use highwater_replication::{BrokerId, PartitionState};
use highwater_storage::{LeaderEpoch, TopicId, TopicPartition};

use super::{MetadataImage, PartitionImage, TopicImage};

/// A state to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) of: TopicPartition,
    pub(super) topic_id: TopicId,
    /// The version to replace; `None` to set a new partition up.
    pub(super) expected_version: Option<i64>,
    pub(super) state: PartitionState,
}

/// All that is to be committed in this image.
pub(super) fn decide(image: &MetadataImage, controller_epoch: i32, unclean_default: bool) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for topic in image.topics.values() {
        let unclean = unclean_allowed(topic, unclean_default);
        for (number, partition) in (0..).zip(&topic.partitions) {
            let live =
                |id: BrokerId| image.brokers.contains_key(&id) && !image.offline.contains(&(topic.id, number, id));
            if let Some(state) = next_state(partition, controller_epoch, unclean, live) {
                decisions.push(Decision {
                    of: TopicPartition::new(topic.name.clone(), number),
                    topic_id: topic.id,
                    expected_version: partition.is_set_up().then_some(partition.state.version),
                    state,
                });
            }
        }
    }
    decisions
}

fn unclean_allowed(topic: &TopicImage, default: bool) -> bool {
    topic.config.get("unclean.leader.election.enable").map_or(default, |value| value == "true")
}

/// The state that follows from who lives, or `None` if it is as it should be.
///
/// A new partition is led by the first live replica, with all live ones in sync. Dead members leave the ISR, but the
/// last ones stay, for only they hold everything. A partition whose leader is dead is led by the first live in-sync
/// replica in the order of its assignment; without one it has no leader, unless an unclean election is allowed.
fn next_state(
    partition: &PartitionImage,
    controller_epoch: i32,
    unclean: bool,
    live: impl Fn(BrokerId) -> bool,
) -> Option<PartitionState> {
    let assigned: Vec<BrokerId> = partition.assignment.iter().copied().filter(|&id| live(id)).collect();
    if !partition.is_set_up() {
        let leader = assigned.first().copied()?;
        return Some(PartitionState {
            leader: Some(leader),
            leader_epoch: LeaderEpoch(0),
            isr: assigned,
            controller_epoch,
            recovering: false,
        });
    }
    let state = &partition.state.value;
    let next_epoch = LeaderEpoch(state.leader_epoch.0.saturating_add(1));
    let in_sync: Vec<BrokerId> = state.isr.iter().copied().filter(|&id| live(id)).collect();
    if let Some(leader) = state.leader.filter(|leader| in_sync.contains(leader)) {
        // The epoch stays: nobody has to truncate or to look for a new leader because a follower is gone.
        let shrunk = PartitionState { isr: in_sync, controller_epoch, leader: Some(leader), ..state.clone() };
        return (shrunk.isr != state.isr).then_some(shrunk);
    }
    if let Some(&leader) = assigned.iter().find(|id| in_sync.contains(id)) {
        return Some(PartitionState {
            leader: Some(leader),
            leader_epoch: next_epoch,
            isr: in_sync,
            controller_epoch,
            recovering: false,
        });
    }
    if let Some(&leader) = assigned.first().filter(|_| unclean) {
        return Some(PartitionState {
            leader: Some(leader),
            leader_epoch: next_epoch,
            isr: vec![leader],
            controller_epoch,
            recovering: true,
        });
    }
    state.leader.map(|_| PartitionState { leader: None, leader_epoch: next_epoch, controller_epoch, ..state.clone() })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use highwater_replication::{BrokerEpoch, Versioned};

    use super::*;
    use crate::cluster::BrokerInfo;

    fn ids(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn state(leader: i32, epoch: i32, isr: &[i32]) -> PartitionState {
        PartitionState {
            leader: (leader >= 0).then_some(BrokerId(leader)),
            leader_epoch: LeaderEpoch(epoch),
            isr: ids(isr),
            controller_epoch: 4,
            recovering: false,
        }
    }

    fn next(assignment: &[i32], now: PartitionState, live: &[i32], unclean: bool) -> Option<PartitionState> {
        let state = Versioned { value: now, version: 9 };
        let partition = PartitionImage { assignment: ids(assignment), state };
        next_state(&partition, 5, unclean, |id| live.contains(&id.0))
    }

    fn expect(leader: i32, epoch: i32, isr: &[i32]) -> Option<PartitionState> {
        Some(PartitionState { controller_epoch: 5, ..state(leader, epoch, isr) })
    }

    #[test]
    fn a_new_partition_is_led_by_its_first_live_replica() {
        let new = PartitionImage::new(ids(&[1, 2, 3]));
        assert_eq!(next_state(&new, 5, false, |id| id.0 != 1), expect(2, 0, &[2, 3]));
        assert_eq!(next_state(&new, 5, true, |_| false), None);
    }

    #[test]
    fn the_first_live_in_sync_replica_in_assignment_order_follows_a_dead_leader() {
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[1, 2, 3]), &[1, 2, 3], false), None);
        // Scenario 90 of the dossier, and the order is the assignment's, not the ISR's.
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[2, 3, 1]), &[2, 3], false), expect(2, 8, &[2, 3]));
        assert_eq!(next(&[1, 3, 2], state(1, 7, &[2, 3, 1]), &[2, 3], false), expect(3, 8, &[2, 3]));
        // 2 lives but is not in sync.
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[1, 3]), &[2, 3], true), expect(3, 8, &[3]));
    }

    #[test]
    fn a_dead_follower_leaves_the_isr_without_a_new_epoch() {
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[1, 2, 3]), &[1, 3], false), expect(1, 7, &[1, 3]));
    }

    #[test]
    fn the_last_in_sync_replicas_stay_and_only_they_return() {
        let dead = next(&[1, 2, 3], state(1, 7, &[1]), &[2, 3], false).unwrap();
        assert_eq!(Some(dead.clone()), expect(-1, 8, &[1]));
        assert_eq!(next(&[1, 2, 3], dead.clone(), &[2, 3], false), None);
        assert_eq!(next(&[1, 2, 3], dead, &[1, 2, 3], false), expect(1, 9, &[1]));
        // Two that died between two images had everything both.
        let both = next(&[1, 2, 3], state(1, 7, &[1, 2]), &[3], false).unwrap();
        assert_eq!(Some(both.clone()), expect(-1, 8, &[1, 2]));
        assert_eq!(next(&[1, 2, 3], both, &[2, 3], false), expect(2, 9, &[2]));
    }

    #[test]
    fn an_unclean_election_is_held_only_where_allowed_and_is_marked() {
        let mut unclean = expect(2, 8, &[2]).unwrap();
        unclean.recovering = true;
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[1]), &[2, 3], true), Some(unclean));
        assert_eq!(next(&[1, 2, 3], state(1, 7, &[1]), &[], true), expect(-1, 8, &[1]));
    }

    #[test]
    fn a_replica_whose_log_failed_counts_as_dead_and_topics_decide_for_themselves() {
        let broker = |id| BrokerInfo { id, epoch: BrokerEpoch(1), host: "h".into(), port: 1, rack: None };
        let topic = |name: &str, id, unclean: Option<&str>| TopicImage {
            name: name.into(),
            id: TopicId([id; 16]),
            config: unclean
                .map(|value| ("unclean.leader.election.enable".to_owned(), value.to_owned()))
                .into_iter()
                .collect(),
            partitions: vec![PartitionImage {
                assignment: ids(&[1, 2]),
                state: Versioned { value: state(1, 0, &[1]), version: 3 },
            }],
        };
        let mut image = MetadataImage {
            brokers: ids(&[1, 2]).into_iter().map(|id| (id, broker(id))).collect::<BTreeMap<_, _>>(),
            ..MetadataImage::default()
        };
        image.insert(Arc::new(topic("default", 1, None)));
        image.insert(Arc::new(topic("unclean", 2, Some("true"))));
        image.insert(Arc::new(topic("clean", 3, Some("false"))));
        assert_eq!(decide(&image, 5, true), []);

        image.offline = (1..=3).map(|id| (TopicId([id; 16]), 0, BrokerId(1))).collect::<BTreeSet<_>>();
        let leaders = |default| -> BTreeMap<String, Option<i32>> {
            decide(&image, 5, default)
                .into_iter()
                .map(|decision| (decision.of.topic.to_string(), decision.state.leader.map(|id| id.0)))
                .collect()
        };
        let expected = |default| -> BTreeMap<String, Option<i32>> {
            [("clean", None), ("default", default), ("unclean", Some(2))].map(|(k, v)| (k.to_owned(), v)).into()
        };
        assert_eq!(leaders(false), expected(None));
        assert_eq!(leaders(true), expected(Some(2)));
        assert_eq!(decide(&image, 5, false)[0].expected_version, Some(3));
    }
}
