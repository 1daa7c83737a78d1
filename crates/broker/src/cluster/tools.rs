//! What Kafka's tools of the ZooKeeper age ask of the controller: they leave a node, and wait until it is gone.
//!
//! `/admin/preferred_replica_election` names partitions whose preferred replica is to lead, `/admin/reassign_partitions` the
//! replicas that partitions are to end up on. A move that is done goes from the node, as Kafka's controller has it (`--verify`
//! looks there), and the node goes with its last one. What is there is looked at again with each new image, so a controller
//! that has just taken over goes on where the last one stopped. What cannot be done is said in the log and left out: tools
//! refuse to ask while a node is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use highwater_replication::{BrokerId, Controller};
use highwater_storage::TopicPartition;

use super::store::{self, read_topic};
use super::znodes::{self, BadNode, PREFERRED_ELECTION, REASSIGN_PARTITIONS};
use super::{
    AdminError, BoxFuture, ClusterHandle, CommitCause, Coordination, CoordinationError, FactorChange, Move, Node, Op,
    StoreFailure, Watch,
};

/// A node that a tool may make, watched.
struct Asked {
    path: &'static str,
    changed: BoxFuture<'static, Result<(), CoordinationError>>,
    /// It has changed, or may have, since it was read last.
    is_due: bool,
}

impl Asked {
    fn of(store: &dyn Coordination, path: &'static str) -> Self {
        Self { path, changed: store.watch(path, Watch::Data), is_due: true }
    }

    /// What the node says, if that is not known yet; and `None` in place of it if there is no node.
    async fn news(&mut self, store: &dyn Coordination) -> Result<Option<Option<Node>>, StoreFailure> {
        if !self.is_due {
            return Ok(None);
        }
        // Before it is read, so that no change is missed.
        self.changed = store.watch(self.path, Watch::Data);
        let node = store::read(store, self.path).await?;
        self.is_due = false;
        Ok(Some(node))
    }
}

/// The nodes as one controller knows them, for one term.
pub(super) struct Tools {
    store: Arc<dyn Coordination>,
    /// What each commit checks: that this controller's term goes on.
    fence: Op,
    elections: Asked,
    /// The version of the node, and whom it names.
    elect: Option<(i64, Vec<TopicPartition>)>,
    moves: Asked,
    /// The version of the node, and the moves that are not done.
    moving: Option<(i64, BTreeMap<TopicPartition, Vec<BrokerId>>)>,
    /// Those that were begun in this term. One of them that is not under way any more is over: it is done, or was taken back.
    begun: BTreeMap<TopicPartition, Vec<BrokerId>>,
}

impl Tools {
    pub(super) fn new(store: &Arc<dyn Coordination>, fence: Op) -> Self {
        Self {
            store: Arc::clone(store),
            fence,
            elections: Asked::of(&**store, PREFERRED_ELECTION),
            elect: None,
            moves: Asked::of(&**store, REASSIGN_PARTITIONS),
            moving: None,
            begun: BTreeMap::new(),
        }
    }

    /// Waits until a tool has asked for something.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            _ = &mut self.elections.changed, if !self.elections.is_due => self.elections.is_due = true,
            _ = &mut self.moves.changed, if !self.moves.is_due => self.moves.is_due = true,
            else => std::future::pending().await,
        }
    }

    /// Has the preferred replicas elected that are asked for. When there is nothing more to be decided of that the node goes:
    /// whatever was decided before is in the store.
    pub(super) async fn elect(&mut self, controller: &mut Controller) -> Result<(), StoreFailure> {
        if let Some(node) = self.elections.news(&*self.store).await? {
            self.elect = node.map(|node| {
                let named = told(znodes::parse_preferred_election(&node.data));
                tracing::info!(partitions = named.len(), "asked by a node to elect preferred replicas");
                (node.version, named)
            });
        }
        let Some((version, named)) = &self.elect else { return Ok(()) };
        if controller.prefer(named) == 0 {
            let gone = Op::Delete { path: self.elections.path.to_owned(), version: Some(*version) };
            self.write(gone).await?;
            self.elect = None;
        }
        Ok(())
    }

    /// Begins the moves that are asked for, and takes those that are over out of the node.
    pub(super) async fn reassign(&mut self, cluster: &ClusterHandle) -> Result<(), StoreFailure> {
        if let Some(node) = self.moves.news(&*self.store).await? {
            self.moving = node.map(|node| (node.version, told(znodes::parse_reassign_partitions(&node.data))));
            let moving = self.moving.as_ref().map(|(_, moving)| moving);
            self.begun.retain(|of, target| moving.is_some_and(|moving| moving.get(of) == Some(target)));
        }
        let Some((version, moving)) = self.moving.clone() else { return Ok(()) };
        let mut by_topic: BTreeMap<Arc<str>, BTreeMap<i32, Vec<BrokerId>>> = BTreeMap::new();
        for (of, target) in &moving {
            by_topic.entry(of.topic.clone()).or_default().insert(of.partition, target.clone());
        }
        let mut left = moving.clone();
        for (name, wanted) in by_topic {
            for number in self.advance(cluster, &name, wanted).await? {
                left.remove(&TopicPartition::new(name.clone(), number));
            }
        }
        if !left.is_empty() && left.len() == moving.len() {
            return Ok(());
        }
        let (path, version) = (self.moves.path.to_owned(), Some(version));
        self.write(match left.is_empty() {
            true => Op::Delete { path, version },
            false => Op::Set { path, data: znodes::encode_reassign_partitions(&left), version },
        })
        .await?;
        // What there is now is read again.
        (self.moving, self.moves.is_due) = (None, true);
        Ok(())
    }

    /// Begins moves of one topic that are not under way yet. Gives those that are over.
    async fn advance(
        &mut self,
        cluster: &ClusterHandle,
        name: &Arc<str>,
        wanted: BTreeMap<i32, Vec<BrokerId>>,
    ) -> Result<Vec<i32>, StoreFailure> {
        // Not by the image, which may be older than what this controller itself has begun.
        let Some((topic, _)) = read_topic(&*self.store, name).await? else {
            tracing::warn!(topic = %name, "asked by a node to move partitions of a topic that there is not");
            return Ok(wanted.into_keys().collect());
        };
        let (mut over, mut begin) = (Vec::new(), BTreeMap::new());
        for (number, target) in wanted {
            let of = TopicPartition::new(name.clone(), number);
            let assignment = usize::try_from(number).ok().and_then(|at| topic.assignment.get(at));
            let change = topic.reassignments.get(&number).filter(|change| change.is_under_way());
            let is_under_way =
                assignment.zip(change).is_some_and(|(assignment, change)| change.target(assignment) == target);
            if is_under_way {
                self.begun.insert(of, target);
            } else if self.begun.remove(&of).is_some() || (change.is_none() && assignment == Some(&target)) {
                over.push(number);
            } else {
                begin.insert(number, Move::To(target));
            }
        }
        if begin.is_empty() {
            return Ok(over);
        }
        let results = match cluster.reassign(name, &begin, FactorChange::Allowed).await {
            Ok(results) => results,
            Err(AdminError::Store(failure)) => return Err(failure),
            Err(error) => begin.keys().map(|number| (*number, Err(error.clone()))).collect(),
        };
        for (number, result) in results {
            let of = TopicPartition::new(name.clone(), number);
            match (result, begin.remove(&number)) {
                (Ok(()), Some(Move::To(target))) => {
                    tracing::info!(partition = %of, ?target, "asked by a node to move it: begun");
                    self.begun.insert(of, target);
                }
                (Err(error), _) => {
                    tracing::warn!(partition = %of, %error, "asked by a node to move it, which cannot be done");
                    over.push(number);
                }
                (Ok(()), _) => {}
            }
        }
        Ok(over)
    }

    /// Writes in this term. A node that somebody has changed meanwhile is read again, as its watch has told.
    async fn write(&mut self, op: Op) -> Result<(), StoreFailure> {
        match self.store.commit(vec![self.fence.clone(), op]).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.cause, CommitCause::Version | CommitCause::Missing) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a node asks for; nothing, if it cannot be understood.
fn told<T: Default>(parsed: Result<T, BadNode>) -> T {
    parsed.inspect_err(|error| tracing::warn!(%error, "a tool asks for something")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;
    use crate::api::admin_tests::{cluster_of, make};

    /// Leaves a node and waits until it is gone.
    async fn ask(member: &ClusterHandle, path: &str, text: &str) {
        let store = &member.shared.store;
        let data = Bytes::copy_from_slice(text.as_bytes());
        store.commit(vec![Op::Create { path: path.to_owned(), data }]).await.unwrap();
        let gone = async {
            loop {
                let changed = store.watch(path, Watch::Data);
                if store.read(path).await.unwrap().is_none() {
                    return;
                }
                changed.await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), gone).await.expect("the node goes");
    }

    fn assignment(member: &ClusterHandle, number: i32) -> Vec<i32> {
        let image = member.image();
        image.topic("t").unwrap().partition(number).unwrap().assignment.iter().map(|id| id.0).collect()
    }

    #[tokio::test]
    async fn what_tools_ask_for_is_done_when_their_node_is_gone() {
        let members = cluster_of(2).await;
        make(&members[0], "t", 2, 2).await;
        let before = assignment(&members[0], 0);
        let target = [before[1], before[0]];
        // The order of the replicas: nobody has to come, so that it is done at once. What is no move keeps no other from it.
        let moves = format!(
            r#"{{"version":1,"partitions":[{{"topic":"t","partition":0,"replicas":{target:?}}},
                {{"topic":"t","partition":1,"replicas":[1,9]}},{{"topic":"t","partition":5,"replicas":[1]}},
                {{"topic":"u","partition":0,"replicas":[1]}}]}}"#
        );
        let other = assignment(&members[0], 1);
        ask(&members[0], REASSIGN_PARTITIONS, &moves).await;
        let mut images = members[0].changes();
        let moved = |image: &Arc<super::super::MetadataImage>| {
            image.topic("t").unwrap().partitions[0].assignment == target.map(BrokerId)
        };
        tokio::time::timeout(Duration::from_secs(20), images.wait_for(|image| moved(image))).await.unwrap().unwrap();
        assert_eq!(assignment(&members[0], 1), other);

        // The replica that is first now leads when it is asked for, and only it.
        let named = r#"{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"t","partition":9}]}"#;
        ask(&members[1], PREFERRED_ELECTION, named).await;
        let leader = |image: &Arc<super::super::MetadataImage>, number: i32| {
            let state = &image.topic("t").unwrap().partition(number).unwrap().state.value;
            (state.leader, state.leader_epoch.0)
        };
        let led = images.wait_for(|image| leader(image, 0) == (Some(BrokerId(target[0])), 1));
        let image = tokio::time::timeout(Duration::from_secs(20), led).await.unwrap().unwrap().clone();
        assert_eq!(leader(&image, 1), (Some(BrokerId(other[0])), 0));
        // There is nothing to be done, or nothing that can be understood.
        for text in [named, "{}", r#"{"partitions":[]}"#] {
            ask(&members[0], PREFERRED_ELECTION, text).await;
            ask(&members[0], REASSIGN_PARTITIONS, text).await;
        }
    }

    /// A move that somebody takes back is not begun again.
    #[tokio::test]
    async fn a_move_that_is_taken_back_goes_from_the_node() {
        let members = cluster_of(3).await;
        make(&members[0], "t", 1, 2).await;
        let before = assignment(&members[0], 0);
        let comes = (1..=3).find(|id| !before.contains(id)).unwrap();
        let moves = format!(
            r#"{{"version":1,"partitions":[{{"topic":"t","partition":0,"replicas":[{},{comes}]}}]}}"#,
            before[0]
        );
        // Nobody here replicates, so that it stays under way.
        let cancel = async {
            let mut images = members[1].changes();
            // It may not have heard of the topic yet.
            let begun = images.wait_for(|image| {
                image.topic("t").is_some_and(|topic| topic.partitions[0].reassignment.is_under_way())
            });
            begun.await.unwrap();
            let back = BTreeMap::from([(0, Move::Cancel)]);
            members[1].reassign("t", &back, FactorChange::Allowed).await.unwrap();
        };
        tokio::join!(ask(&members[0], REASSIGN_PARTITIONS, &moves), cancel);
        let mut images = members[0].changes();
        let back = images.wait_for(|image| {
            let partition = &image.topic("t").unwrap().partitions[0];
            !partition.reassignment.is_under_way() && partition.assignment.iter().map(|id| id.0).eq(before.clone())
        });
        tokio::time::timeout(Duration::from_secs(20), back).await.unwrap().unwrap();
    }
}
