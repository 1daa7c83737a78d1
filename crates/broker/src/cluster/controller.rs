//! The controller: one of the brokers, elected through the store, that sets new partitions up and elects leaders.
//!
//! It shows each new image to the pure machine ([`Controller`]) and commits what that gives out. Each commit checks the
//! controller's epoch, so a controller that was deposed without noticing changes nothing; and each expects the versions
//! of the topic and the state that were decided on, so a decision on an old image changes nothing either and is made
//! again once the image has caught up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use highwater_replication::{
    BrokerId, Commit, CommitResult, Completion, Controller, Election, PartitionFacts, PartitionState, PublishedEnd,
};
use highwater_storage::{TopicId, TopicPartition};
use tokio::sync::watch;

use super::agent::IN_FLIGHT;
use super::handle::Shared;
use super::tools::Tools;
use super::znodes::{self, CONTROLLER, CONTROLLER_EPOCH};
use super::{
    ClusterHandle, CommitCause, Coordination, CoordinationError, MetadataImage, Op, Registration, SessionState,
    StoreFailure, TopicImage, Watch, store, unix_ms,
};

/// How long a store that did not answer is left alone.
const BACKOFF: Duration = Duration::from_millis(200);

/// What the controller's task holds of its broker. It keeps no handle alive.
pub(super) struct Controlling {
    me: BrokerId,
    unclean_default: bool,
    /// How often leaderships are given back, and of how many in a hundred a broker may lack.
    rebalance: Option<(Duration, u32)>,
    store: Arc<dyn Coordination>,
    images: watch::Receiver<Arc<MetadataImage>>,
    registration: watch::Receiver<Registration>,
    session: watch::Receiver<SessionState>,
    shared: Weak<Shared>,
    /// Terms that this broker has won, or may have: elections without an answer.
    terms: BTreeSet<i32>,
}

/// How far logs go, by topic, partition and broker.
type Ends = BTreeMap<(TopicId, i32, BrokerId), PublishedEnd>;

/// One term as controller.
struct Term {
    epoch: i32,
    /// The version of the epoch's node in this term: the fencing token.
    version: i64,
}

impl Term {
    /// The first step of each commit.
    fn fence(&self) -> Op {
        Op::Check { path: CONTROLLER_EPOCH.to_owned(), version: self.version }
    }
}

impl Controlling {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            me: shared.config.id,
            unclean_default: shared.config.topic.unclean_leader_election,
            rebalance: shared.config.leader_rebalance.then(|| {
                let interval = Duration::from_secs(shared.config.leader_imbalance_check_interval_seconds.max(1));
                (interval, shared.config.leader_imbalance_percentage_max)
            }),
            store: shared.store.clone(),
            images: shared.image.subscribe(),
            registration: shared.registration.subscribe(),
            session: shared.store.session(),
            shared: Arc::downgrade(shared),
            terms: BTreeSet::new(),
        }
    }
}

/// Runs for controller, and is it while elected, for as long as the broker is registered.
pub(super) async fn run(mut controlling: Controlling) {
    while controlling.shared.strong_count() > 0 {
        let registered = controlling.registration.wait_for(|state| matches!(state, Registration::Registered(_)));
        if registered.await.is_err() {
            return;
        }
        let changed = controlling.store.watch(CONTROLLER, Watch::Data);
        match elect(&mut controlling).await {
            Ok(Some(term)) => {
                tracing::info!(broker = %controlling.me, epoch = term.epoch, "elected controller");
                match controlling.reign(&term).await {
                    Ok(()) => tracing::info!(broker = %controlling.me, epoch = term.epoch, "no longer controller"),
                    Err(error) => {
                        tracing::warn!(%error, epoch = term.epoch, "the controller cannot go on, running again");
                        tokio::time::sleep(BACKOFF).await;
                    }
                }
            }
            Ok(None) => {
                // Somebody else is: until that changes.
                if changed.await == Err(CoordinationError::Unavailable) {
                    tokio::time::sleep(BACKOFF).await;
                }
            }
            Err(error) => {
                tracing::debug!(%error, "cannot run for controller");
                tokio::time::sleep(BACKOFF).await;
            }
        }
    }
}

/// Takes the office if it is free: the node and the next epoch in one commit.
async fn elect(controlling: &mut Controlling) -> Result<Option<Term>, StoreFailure> {
    let (me, store) = (controlling.me, Arc::clone(&controlling.store));
    let Some(node) = store::read(&*store, CONTROLLER_EPOCH).await? else { return Err(StoreFailure::Unavailable) };
    let epoch = znodes::parse_controller_epoch(&node.data)?.saturating_add(1);
    let ops = vec![
        Op::CreateEphemeral { path: CONTROLLER.to_owned(), data: znodes::encode_controller(me, unix_ms()) },
        Op::Set {
            path: CONTROLLER_EPOCH.to_owned(),
            data: znodes::encode_controller_epoch(epoch),
            version: Some(node.version),
        },
    ];
    let answer = store.commit(ops).await;
    if !answer.as_ref().is_err_and(|error| error.cause != CommitCause::Unavailable) {
        controlling.terms.insert(epoch);
    }
    match answer {
        Ok(done) => Ok(done.last().map(|done| Term { epoch, version: done.version })),
        // The office may be ours all the same: an election without an answer, or a watch that was lost with the connection.
        Err(error) if matches!(error.cause, CommitCause::Exists | CommitCause::Version | CommitCause::Unavailable) => {
            resume(controlling).await
        }
        Err(error) => Err(error.into()),
    }
}

/// The term that this broker is in already, if it is.
async fn resume(controlling: &mut Controlling) -> Result<Option<Term>, StoreFailure> {
    let store = &*controlling.store;
    // In this order: with an epoch from after it, a controller that was replaced in between would act in another's term.
    let Some(node) = store::read(store, CONTROLLER_EPOCH).await? else { return Err(StoreFailure::Unavailable) };
    let epoch = znodes::parse_controller_epoch(&node.data)?;
    let holder = store::read(store, CONTROLLER).await?.map(|node| znodes::parse_controller(&node.data));
    controlling.terms.retain(|&term| term >= epoch);
    let ours = holder == Some(Ok(controlling.me)) && controlling.terms.contains(&epoch);
    Ok(ours.then_some(Term { epoch, version: node.version }))
}

impl Controlling {
    /// Decides on each new image until the office is lost.
    async fn reign(&mut self, term: &Term) -> Result<(), StoreFailure> {
        let SessionState::Live(session) = *self.session.borrow_and_update() else { return Ok(()) };
        let mut deposed = self.store.watch(CONTROLLER, Watch::Data);
        let mut sight = Sight::new(term.epoch, self.unclean_default);
        let (interval, imbalance_max) = self.rebalance.unwrap_or((Duration::MAX, 100));
        let mut balanced = tokio::time::Instant::now();
        let mut tools = Tools::new(&self.store, term.fence());
        loop {
            sight.show(&self.images.borrow_and_update().clone());
            let mut unanswered = self.has_failed(tools.elect(&mut sight.controller).await);
            match self.commit_all(term, &mut sight).await {
                Committed::All => {}
                Committed::Unanswered => {
                    tokio::time::sleep(BACKOFF).await;
                    sight.controller.retry();
                    continue;
                }
                Committed::Deposed => return Ok(()),
            }
            if let Some(shared) = self.shared.upgrade() {
                unanswered |= self.has_failed(tools.reassign(&ClusterHandle { shared }).await);
            }
            tokio::select! {
                change = self.images.changed() => {
                    if change.is_err() {
                        return Ok(());
                    }
                }
                change = self.session.changed() => {
                    match *self.session.borrow_and_update() {
                        SessionState::Live(id) if id == session && change.is_ok() => {}
                        SessionState::Disconnected => {}
                        _ => return Ok(()),
                    }
                }
                () = tokio::time::sleep(interval.saturating_sub(balanced.elapsed())), if self.rebalance.is_some() => {
                    balanced = tokio::time::Instant::now();
                    sight.controller.balance(imbalance_max);
                }
                () = tools.changed() => {}
                () = tokio::time::sleep(BACKOFF), if unanswered => {}
                _ = &mut deposed => return Ok(()),
            }
        }
    }

    /// Whether something that a tool asked for is to be tried again.
    fn has_failed(&self, done: Result<(), StoreFailure>) -> bool {
        if let Err(error) = &done {
            tracing::debug!(broker = %self.me, %error, "cannot do what a tool asks for");
        }
        done.is_err()
    }

    /// Writes down the reassignments that are done, those of one topic at once: they are one node.
    async fn complete(&self, term: &Term, sight: &mut Sight) -> Committed {
        let more = std::iter::from_fn(|| sight.controller.poll_completion());
        let mut by_topic: BTreeMap<Arc<str>, Vec<Completion>> = BTreeMap::new();
        for completion in more.take(IN_FLIGHT) {
            by_topic.entry(completion.topic_partition.topic.clone()).or_default().push(completion);
        }
        let (mut deposed, mut unanswered) = (false, false);
        for (topic, done) in by_topic {
            let result = match sight.completion_ops(term, &topic, &done) {
                None => CommitResult::Conflict,
                Some(ops) => match self.store.commit(ops).await {
                    Ok(written) => CommitResult::Committed(written.last().map_or(0, |written| written.version)),
                    Err(error) if error.cause == CommitCause::Unavailable => {
                        unanswered = true;
                        CommitResult::Unknown
                    }
                    Err(error) => {
                        deposed |= error.at == 0;
                        CommitResult::Conflict
                    }
                },
            };
            sight.has_met_others |= result == CommitResult::Conflict;
            for completion in &done {
                if matches!(result, CommitResult::Committed(_)) {
                    let (partition, assignment) = (&completion.topic_partition, &completion.assignment);
                    tracing::info!(%partition, ?assignment, "reassigned");
                }
                sight.controller.completed(completion, &result);
            }
        }
        match (deposed, unanswered) {
            (true, _) => Committed::Deposed,
            (_, true) => Committed::Unanswered,
            _ => Committed::All,
        }
    }

    /// Commits what the machine gives out, until there is no more.
    async fn commit_all(&self, term: &Term, sight: &mut Sight) -> Committed {
        let (mut deposed, mut unanswered) = (false, false);
        while !deposed && !unanswered {
            let more = std::iter::from_fn(|| sight.controller.poll_commit());
            let wanted: Vec<Commit> = more.take(IN_FLIGHT).collect();
            if wanted.is_empty() {
                // What the machine gives out next goes by the next image.
                return self.complete(term, sight).await;
            }
            // These are on their way before the first is awaited: they share the store's syncs.
            let commits: Vec<_> = wanted.iter().map(|commit| self.store.commit(sight.ops(term, commit))).collect();
            for (commit, done) in wanted.iter().zip(commits) {
                let result = match done.await {
                    Ok(done) => {
                        note(commit);
                        CommitResult::Committed(done.last().map_or(0, |done| done.version))
                    }
                    Err(error) => match error.cause {
                        CommitCause::Unavailable => {
                            unanswered = true;
                            CommitResult::Unknown
                        }
                        _ => {
                            // Step 0 checks the epoch. Else the image is older than the store: the next will tell.
                            deposed |= error.at == 0;
                            CommitResult::Conflict
                        }
                    },
                };
                sight.has_met_others |= result == CommitResult::Conflict;
                sight.controller.committed(commit, &result);
            }
        }
        if deposed { Committed::Deposed } else { Committed::Unanswered }
    }
}

/// How a round of commits went.
enum Committed {
    /// Each was answered.
    All,
    /// The store did not answer some: they may have happened or not.
    Unanswered,
    /// Another controller has been elected, or the session is over.
    Deposed,
}

/// What the machine has been shown.
struct Sight {
    controller: Controller,
    unclean_default: bool,
    image: Arc<MetadataImage>,
    /// A commit has met something else than the image says: all of the next one is shown.
    has_met_others: bool,
}

impl Sight {
    fn new(epoch: i32, unclean_default: bool) -> Self {
        Self {
            controller: Controller::new(epoch),
            unclean_default,
            image: Arc::new(MetadataImage::default()),
            has_met_others: false,
        }
    }

    /// Shows what differs from the last image. Who lives comes first: with nobody alive the machine would take every
    /// leader's office away.
    fn show(&mut self, image: &Arc<MetadataImage>) {
        let before = std::mem::replace(&mut self.image, image.clone());
        let shows_all = std::mem::take(&mut self.has_met_others);
        let live = image.live_brokers();
        if before.live_brokers() != live {
            self.controller.set_brokers(&live);
        }
        self.controller.set_leaving(image.leaving.clone());
        self.controller.set_failed(failed(image));
        let said = topics_with_news(&before.ends, &image.ends);
        let unclean_default = unclean_by_default(image, self.unclean_default);
        let shows_all = shows_all || unclean_default != unclean_by_default(&before, self.unclean_default);
        for (name, topic) in &before.topics {
            let after = image.topics.get(name);
            let kept = after.filter(|after| after.id == topic.id).map_or(0, |after| after.partitions.len());
            for number in (0..).take(topic.partitions.len()).skip(kept) {
                self.controller.remove_partition(&TopicPartition::new(name.clone(), number));
            }
        }
        for (name, topic) in &image.topics {
            let unchanged = before.topics.get(name).is_some_and(|known| Arc::ptr_eq(known, topic));
            if unchanged && !shows_all && !said.contains(&topic.id) {
                continue;
            }
            let unclean_elections = unclean_allowed(topic, unclean_default);
            let same = |known: &&Arc<TopicImage>| {
                (known.id, known.version, &known.config) == (topic.id, topic.version, &topic.config)
            };
            let known = before.topics.get(name).filter(same).filter(|_| !shows_all && !said.contains(&topic.id));
            for number in (0..).take(topic.partitions.len()) {
                if known.is_some_and(|known| known.partition(number) == topic.partition(number)) {
                    continue;
                }
                let Some(facts) = facts_of(image, topic, number, unclean_elections) else { continue };
                self.controller.set_partition(TopicPartition::new(name.clone(), number), facts);
            }
        }
    }

    /// The topic's node with these assignments, and the states with them, over those that it was decided on. `None` if the topic has left the image.
    fn completion_ops(&self, term: &Term, name: &str, done: &[Completion]) -> Option<Vec<Op>> {
        let topic = self.image.topic(name)?;
        let mut node = znodes::TopicNode::new(topic.id, Vec::new());
        for (number, partition) in (0..).zip(&topic.partitions) {
            node.assignment.push(partition.assignment.clone());
            if partition.reassignment.is_under_way() {
                node.reassignments.insert(number, partition.reassignment.clone());
            }
        }
        let mut ops = vec![term.fence()];
        ops.extend(znodes::topic_id_path(topic.id).map(|path| Op::Exists { path }));
        for Completion { topic_partition, state_version, state, assignment } in done {
            let number = topic_partition.partition;
            node.reassignments.remove(&number);
            *node.assignment.get_mut(usize::try_from(number).ok()?)? = assignment.clone();
            let (path, data) = (znodes::state_path(name, number), znodes::encode_state(state));
            ops.push(Op::Set { path, data, version: Some(*state_version) });
        }
        let data = znodes::encode_topic(&node);
        ops.push(Op::Set { path: znodes::topic_path(name), data, version: Some(topic.version) });
        Some(ops)
    }

    fn ops(&self, term: &Term, commit: &Commit) -> Vec<Op> {
        let TopicPartition { topic, partition } = &commit.topic_partition;
        let (path, data) = (znodes::state_path(topic, *partition), znodes::encode_state(&commit.state));
        // -1 is no node's version, should the topic have left the image.
        let known = self.image.topic(topic);
        let topic_version = known.map_or(-1, |topic| topic.version);
        let mut ops = vec![term.fence(), Op::Check { path: znodes::topic_path(topic), version: topic_version }];
        // Made again under its name, the topic and its states may have the versions that they had before.
        ops.extend(known.and_then(|topic| znodes::topic_id_path(topic.id)).map(|path| Op::Exists { path }));
        ops.push(match commit.expected_version {
            Some(version) => Op::Set { path, data, version: Some(version) },
            None => Op::Create { path, data },
        });
        ops
    }
}

fn failed(image: &MetadataImage) -> BTreeMap<TopicPartition, BTreeSet<BrokerId>> {
    let mut failed: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (id, number, broker) in &image.offline {
        if let Some(topic) = image.topic_by_id(*id) {
            failed.entry(TopicPartition::new(topic.name.clone(), *number)).or_default().insert(*broker);
        }
    }
    failed
}

/// What is known of one partition, as the machine wants it.
pub(super) fn facts_of(
    image: &MetadataImage,
    topic: &TopicImage,
    number: i32,
    unclean_elections: bool,
) -> Option<PartitionFacts> {
    let partition = topic.partition(number)?;
    Some(PartitionFacts {
        assignment: partition.assignment.clone(),
        state: Some(partition.state.clone()).filter(|_| partition.is_set_up()),
        unclean_elections,
        ends: image.ends_of(topic.id, number),
        reassignment: partition.reassignment.clone(),
    })
}

/// The topics of which a replica says something else than before of how far its log goes.
fn topics_with_news(before: &Ends, now: &Ends) -> BTreeSet<TopicId> {
    if before == now {
        return BTreeSet::new();
    }
    let news = |one: &Ends, other: &Ends| {
        let differs = |(key, end): &(&(TopicId, i32, BrokerId), &PublishedEnd)| other.get(key) != Some(*end);
        one.iter().filter(differs).map(|(key, _)| key.0).collect::<BTreeSet<_>>()
    };
    news(before, now).union(&news(now, before)).copied().collect()
}

/// What the config is called, of a topic and of brokers.
const UNCLEAN: &str = "unclean.leader.election.enable";

fn unclean_allowed(topic: &TopicImage, default: bool) -> bool {
    topic.config.get(UNCLEAN).map_or(default, |value| is_true(value))
}

/// As it was set of brokers while they run, or else in this one's file.
fn unclean_by_default(image: &MetadataImage, of_file: bool) -> bool {
    let set = image.broker_config.get(UNCLEAN).or_else(|| image.broker_defaults.get(UNCLEAN));
    set.map_or(of_file, |value| is_true(value))
}

fn is_true(value: &str) -> bool {
    value.trim().eq_ignore_ascii_case("true")
}

/// Elections are rare and worth a line each; an unclean one may have lost records.
fn note(commit: &Commit) {
    let PartitionState { leader, leader_epoch, isr, .. } = &commit.state;
    let (partition, leader) = (&commit.topic_partition, leader.map_or(-1, |leader| leader.0));
    match &commit.why {
        Election::Unclean { abandoned } => tracing::warn!(
            %partition, leader, epoch = %leader_epoch, ?abandoned,
            "unclean election: no in-sync replica lives, records may be lost"
        ),
        Election::LeaderLost => tracing::warn!(
            %partition, epoch = %leader_epoch, in_sync = ?isr, "no in-sync replica lives: nobody leads until one returns"
        ),
        Election::Recovered { ends } => tracing::warn!(
            %partition, leader, epoch = %leader_epoch, ?ends,
            "all in-sync replicas stopped uncleanly: the one whose log has most leads"
        ),
        why => tracing::info!(%partition, leader, epoch = %leader_epoch, in_sync = ?isr, ?why, "elected"),
    }
}

#[cfg(test)]
mod tests {
    use highwater_replication::{BrokerEpoch, Versioned};
    use highwater_storage::{LeaderEpoch, TopicId};

    use super::*;
    use crate::cluster::{BrokerInfo, PartitionImage};

    fn image(brokers: &[i32], topics: &[(&str, u8, Option<&str>)]) -> Arc<MetadataImage> {
        let broker = |&id: &i32| {
            let info = BrokerInfo { id: BrokerId(id), epoch: BrokerEpoch(1), host: "h".into(), port: 1, rack: None };
            (BrokerId(id), info)
        };
        let mut image = MetadataImage { brokers: brokers.iter().map(broker).collect(), ..MetadataImage::default() };
        for &(name, id, unclean) in topics {
            let value = PartitionState {
                leader: Some(BrokerId(1)),
                leader_epoch: LeaderEpoch(0),
                isr: vec![BrokerId(1)],
                controller_epoch: 1,
                doubtful: Vec::new(),
                recovering: false,
            };
            let config = unclean.map(|value| ("unclean.leader.election.enable".to_owned(), value.to_owned()));
            image.insert(Arc::new(TopicImage {
                name: name.into(),
                id: TopicId([id; 16]),
                version: 5,
                config: config.into_iter().collect(),
                partitions: vec![PartitionImage {
                    reassignment: Default::default(),
                    assignment: vec![BrokerId(1), BrokerId(2)],
                    state: Versioned { value, version: 3 },
                }],
            }));
        }
        Arc::new(image)
    }

    fn decided(sight: &mut Sight) -> Vec<(String, Option<i32>)> {
        std::iter::from_fn(|| sight.controller.poll_commit())
            .map(|commit| (commit.topic_partition.topic.to_string(), commit.state.leader.map(|id| id.0)))
            .collect()
    }

    #[test]
    fn topics_decide_for_themselves_about_unclean_elections() {
        let topics = [("clean", 1, Some("false")), ("default", 2, None), ("unclean", 3, Some("true"))];
        for (default, leader) in [(false, None), (true, Some(2))] {
            let mut sight = Sight::new(7, default);
            sight.show(&image(&[1, 2], &topics));
            assert_eq!(decided(&mut sight), []);
            sight.show(&image(&[2], &topics));
            let expected = [("clean", None), ("default", leader), ("unclean", Some(2))];
            assert_eq!(decided(&mut sight), expected.map(|(name, leader)| (name.to_owned(), leader)));
        }
    }

    #[test]
    fn a_replica_whose_log_failed_counts_as_dead_for_its_topic_only() {
        let topics = [("t", 1, Some("true")), ("u", 2, Some("true"))];
        let mut sight = Sight::new(7, false);
        let mut with_failure = MetadataImage::clone(&image(&[1, 2], &topics));
        // Of the topic `t` of today and of one that is gone.
        with_failure.offline.insert((TopicId([1; 16]), 0, BrokerId(1)));
        with_failure.offline.insert((TopicId([9; 16]), 0, BrokerId(1)));
        sight.show(&Arc::new(with_failure));
        assert_eq!(decided(&mut sight), [("t".to_owned(), Some(2))]);
    }

    #[test]
    fn what_has_not_changed_is_looked_at_again_after_a_conflict_only() {
        let topics = [("t", 1, None)];
        let mut sight = Sight::new(7, false);
        sight.show(&image(&[2], &topics));
        let commit = sight.controller.poll_commit().unwrap();
        sight.controller.committed(&commit, &CommitResult::Conflict);
        sight.show(&image(&[2], &topics));
        assert_eq!(decided(&mut sight), []);
        sight.has_met_others = true;
        sight.show(&image(&[2], &topics));
        assert_eq!(decided(&mut sight), [("t".to_owned(), None)]);
    }

    #[test]
    fn a_topic_made_again_is_looked_at_afresh() {
        let mut sight = Sight::new(7, false);
        sight.show(&image(&[2], &[("t", 1, None)]));
        assert_eq!(decided(&mut sight), [("t".to_owned(), None)], "under way, so nothing else is decided");
        sight.show(&image(&[2], &[("t", 2, None)]));
        assert_eq!(decided(&mut sight), [("t".to_owned(), None)]);
        sight.show(&image(&[2], &[]));
        assert_eq!(decided(&mut sight), []);
    }
}
