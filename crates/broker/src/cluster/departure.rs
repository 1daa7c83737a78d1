//! Leaving a cluster in order: what others can do is theirs before this broker stops.

use std::time::Duration;

use bytes::Bytes;
use highwater_replication::BrokerId;

use super::{ClusterHandle, CommitCause, MetadataImage, Op, Registration, znodes};

impl ClusterHandle {
    /// Says that this broker is about to stop, and waits until nobody depends on it any more who need not: its leaderships
    /// are with other in-sync replicas, and it is in no in-sync set that has another member. The broker goes on meanwhile.
    /// It is said up to `tries` times, and each time waited for `patience`. Returns in how many partitions others depend on
    /// it still.
    ///
    /// What is said ends with this session: [`Self::leave`] is next.
    pub async fn hand_over(&self, tries: u32, patience: Duration) -> usize {
        let (me, mut images) = (self.id(), self.changes());
        for _ in 0..tries {
            let registered = matches!(*self.registration().borrow(), Registration::Registered(_));
            if !registered || depending(&self.image(), me) == 0 {
                break;
            }
            let announced = tokio::time::timeout(patience, self.announce_leaving()).await;
            if announced != Ok(true) {
                tracing::debug!(broker = %me, "cannot tell the cluster that this broker stops");
                tokio::time::sleep(patience.min(Duration::from_millis(100))).await;
                continue;
            }
            let taken_over = images.wait_for(|image| depending(image, me) == 0);
            if tokio::time::timeout(patience, taken_over).await.is_ok() {
                break;
            }
        }
        depending(&self.image(), me)
    }

    /// Takes back what [`Self::hand_over`] said: this broker stays after all.
    #[cfg(test)]
    pub(crate) async fn stay(&self) {
        let path = znodes::leaving_path(self.id());
        self.shared.store.commit(vec![Op::Delete { path, version: None }]).await.unwrap();
    }

    async fn announce_leaving(&self) -> bool {
        let path = znodes::leaving_path(self.id());
        match self.shared.store.commit(vec![Op::CreateEphemeral { path, data: Bytes::new() }]).await {
            Ok(_) => true,
            Err(error) => error.cause == CommitCause::Exists,
        }
    }
}

/// The partitions that have this broker in their in-sync sets beside another member that can lead them.
fn depending(image: &MetadataImage, me: BrokerId) -> usize {
    let staying = image.staying_brokers();
    let partitions = image.topics.values().flat_map(|topic| (0..).zip(&topic.partitions).map(|of| (topic.id, of)));
    let depends = |(topic, (number, partition)): &(_, (i32, &super::PartitionImage))| {
        let state = &partition.state.value;
        let can_lead = |id: &BrokerId| {
            *id != me
                && staying.contains_key(id)
                && state.is_whole(*id)
                && partition.assignment.contains(id)
                && !image.offline.contains(&(*topic, *number, *id))
        };
        state.isr.contains(&me) && state.isr.iter().any(can_lead)
    };
    partitions.filter(depends).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::admin_tests::{cluster_of, make};

    const PATIENCE: Duration = Duration::from_millis(200);

    /// These members serve nothing, so nobody takes the one that leaves out of the in-sync set: it waits in vain for that,
    /// but not for ever.
    #[tokio::test]
    async fn leaderships_move_before_the_session_ends_and_the_wait_is_bounded() {
        let members = cluster_of(3).await;
        make(&members[0], "t", 6, 3).await;
        make(&members[0], "alone", 3, 1).await;
        let leaves = &members[1];
        let me = leaves.id();
        assert_eq!(leaves.hand_over(2, PATIENCE).await, 6, "in the in-sync sets still");
        let image = leaves.image();
        assert_eq!(image.leaving.iter().copied().collect::<Vec<_>>(), [me]);
        assert!(image.brokers.contains_key(&me));
        let leaders =
            |topic: &str| image.topic(topic).unwrap().partitions.iter().map(|partition| partition.state.value.leader);
        assert!(leaders("t").all(|leader| leader.is_some_and(|leader| leader != me)));
        assert_eq!(leaders("alone").filter(|leader| *leader == Some(me)).count(), 1, "nobody else has it");
        leaves.leave().await;
        let mut images = members[0].changes();
        images.wait_for(|image| image.brokers.len() == 2 && image.leaving.is_empty()).await.unwrap();
    }

    #[tokio::test]
    async fn nobody_is_told_where_nobody_depends_on_it() {
        let members = cluster_of(2).await;
        make(&members[0], "alone", 2, 1).await;
        assert_eq!(members[0].hand_over(3, PATIENCE).await, 0);
        assert_eq!(members[0].shared.store.children(znodes::LEAVING_BROKERS).await, Ok(Vec::new()));
    }
}
