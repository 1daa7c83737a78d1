//! The controller: one of the brokers, elected through the store, that sets new partitions up and elects leaders.
//!
//! It reads the same image as everybody else, decides (pure, in `elections`), and commits. Each of its commits checks
//! the controller's epoch, so a controller that was deposed without noticing changes nothing; and each expects the
//! version of the state it decided on, so a decision on an old image changes nothing either and is made again once
//! the image has caught up.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use highwater_replication::{BrokerId, PartitionState};
use highwater_storage::TopicId;
use tokio::sync::watch;

use super::elections::{self, Decision};
use super::handle::Shared;
use super::znodes::{self, CONTROLLER, CONTROLLER_EPOCH};
use super::{
    CommitCause, Coordination, CoordinationError, MetadataImage, Op, Registration, SessionState, StoreFailure, Watch,
    store, unix_ms,
};

/// How long a store that did not answer is left alone.
const BACKOFF: Duration = Duration::from_millis(200);

/// What the controller's task holds of its broker. It keeps no handle alive.
pub(super) struct Controlling {
    me: BrokerId,
    unclean_default: bool,
    store: Arc<dyn Coordination>,
    images: watch::Receiver<Arc<MetadataImage>>,
    registration: watch::Receiver<Registration>,
    session: watch::Receiver<SessionState>,
    shared: Weak<Shared>,
}

/// One term as controller.
struct Term {
    epoch: i32,
    /// The version of the epoch's node in this term: the fencing token.
    version: i64,
}

impl Controlling {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            me: shared.config.id,
            unclean_default: shared.config.topic.unclean_leader_election,
            store: shared.store.clone(),
            images: shared.image.subscribe(),
            registration: shared.registration.subscribe(),
            session: shared.store.session(),
            shared: Arc::downgrade(shared),
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
        match elect(&controlling).await {
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
async fn elect(controlling: &Controlling) -> Result<Option<Term>, StoreFailure> {
    let (me, store) = (controlling.me, &*controlling.store);
    let Some(node) = store::read(store, CONTROLLER_EPOCH).await? else { return Err(StoreFailure::Unavailable) };
    let epoch = znodes::parse_controller_epoch(&node.data)?.saturating_add(1);
    let ops = vec![
        Op::CreateEphemeral { path: CONTROLLER.to_owned(), data: znodes::encode_controller(me, unix_ms()) },
        Op::Set {
            path: CONTROLLER_EPOCH.to_owned(),
            data: znodes::encode_controller_epoch(epoch),
            version: Some(node.version),
        },
    ];
    match store.commit(ops).await {
        Ok(done) => Ok(done.last().map(|done| Term { epoch, version: done.version })),
        Err(error) if matches!(error.cause, CommitCause::Exists | CommitCause::Version) => Ok(None),
        Err(error) if error.cause == CommitCause::Unavailable => {
            // The office may be ours all the same, with nobody to hold it: look.
            let holder = store::read(store, CONTROLLER).await?.map(|node| znodes::parse_controller(&node.data));
            let now = store::read(store, CONTROLLER_EPOCH).await?;
            let ours = holder == Some(Ok(me));
            Ok(now
                .filter(|now| ours && znodes::parse_controller_epoch(&now.data) == Ok(epoch))
                .map(|now| Term { epoch, version: now.version }))
        }
        Err(error) => Err(error.into()),
    }
}

impl Controlling {
    /// Decides on each new image until the office is lost.
    async fn reign(&mut self, term: &Term) -> Result<(), StoreFailure> {
        let SessionState::Live(session) = *self.session.borrow_and_update() else { return Ok(()) };
        // Versions this controller has written and the image may not show yet.
        let mut written = BTreeMap::new();
        let mut deposed = self.store.watch(CONTROLLER, Watch::Data);
        loop {
            let image = self.images.borrow_and_update().clone();
            written.retain(|&(id, number), version| {
                let partition = image.topic_by_id(id).and_then(|topic| topic.partition(number));
                partition.is_some_and(|partition| partition.state.version < *version)
            });
            if !self.commit_all(term, &image, &mut written).await? {
                return Ok(());
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
                _ = &mut deposed => return Ok(()),
            }
        }
    }

    /// Commits what the image asks for. Whether this broker still is controller.
    async fn commit_all(
        &self,
        term: &Term,
        image: &MetadataImage,
        written: &mut BTreeMap<(TopicId, i32), i64>,
    ) -> Result<bool, StoreFailure> {
        let decisions: Vec<Decision> = elections::decide(image, term.epoch, self.unclean_default)
            .into_iter()
            .filter(|decision| !written.contains_key(&(decision.topic_id, decision.of.partition)))
            .collect();
        // All are on their way before the first is awaited: they share the store's syncs.
        let commits: Vec<_> = decisions.iter().map(|decision| self.store.commit(ops(term, decision))).collect();
        let (mut in_office, mut unanswered) = (true, false);
        for (decision, commit) in decisions.into_iter().zip(commits) {
            match commit.await {
                Ok(done) => {
                    note(&decision);
                    let version = done.last().map_or(0, |done| done.version);
                    written.insert((decision.topic_id, decision.of.partition), version);
                }
                Err(error) => match error.cause {
                    CommitCause::SessionLost => in_office = false,
                    CommitCause::Unavailable => unanswered = true,
                    _ if error.at == 0 => in_office = false,
                    // The image is older than the store: the next one will tell.
                    _ => {}
                },
            }
        }
        if unanswered && in_office { Err(StoreFailure::Unavailable) } else { Ok(in_office) }
    }
}

fn ops(term: &Term, decision: &Decision) -> Vec<Op> {
    let path = znodes::state_path(&decision.of.topic, decision.of.partition);
    let data = znodes::encode_state(&decision.state);
    vec![
        Op::Check { path: CONTROLLER_EPOCH.to_owned(), version: term.version },
        match decision.expected_version {
            Some(version) => Op::Set { path, data, version: Some(version) },
            None => Op::Create { path, data },
        },
    ]
}

/// Elections are rare and worth a line each; an unclean one may have lost records.
fn note(decision: &Decision) {
    let PartitionState { leader, leader_epoch, isr, recovering, .. } = &decision.state;
    let leader = leader.map_or(-1, |leader| leader.0);
    if *recovering {
        tracing::warn!(
            partition = %decision.of, leader, epoch = %leader_epoch,
            "unclean election: no in-sync replica is left, records may be lost"
        );
    } else {
        tracing::info!(partition = %decision.of, leader, epoch = %leader_epoch, ?isr, "elected");
    }
}
