//! What operators do with the topic and its replicas: elections on request, moves, brokers that hand over, a topic made again.

use highwater_replication::{Brokers, ElectionKind, elect_on_request};

use super::coordination::{ids, topic_partition};
use super::*;
use crate::node::Running;

/// So long a broker waits for others to take over what depends on it.
const HAND_OVER_MS: i64 = 300;

impl World {
    /// Somebody asks for a leader, at any broker.
    pub(super) fn elect(&mut self, unclean: bool) {
        if self.store_down_until > self.now || (unclean && self.plan.promise != Promise::Nothing) {
            return;
        }
        let facts = self.facts();
        let Store { live, leaving, failed, controller_epoch, .. } = &self.store;
        let brokers = Brokers { live, leaving, failed: Some(failed) };
        let kind = if unclean { ElectionKind::Unclean } else { ElectionKind::Preferred };
        let Ok((state, why)) = elect_on_request(&facts, brokers, kind, *controller_epoch) else { return };
        let version = facts.state.map(|state| state.version);
        note!(self, STORE, "elected on request: {why:?}");
        assert!(self.store.commit(version, state), "nobody else writes meanwhile");
        self.count_election(&why);
        self.store_changed();
    }

    pub(super) fn count_election(&mut self, why: &Election) {
        let counts = &mut self.counts;
        match why {
            Election::Elected => counts.elections += 1,
            Election::Moved => counts.moved += 1,
            Election::Preferred => counts.preferred += 1,
            Election::Unclean { .. } => counts.unclean += 1,
            Election::Recovered { .. } => counts.recovered += 1,
            Election::Created | Election::LeaderLost => {}
        }
    }

    /// The replicas are to end up on these brokers.
    pub(super) fn reassign(&mut self, target: &[BrokerId]) {
        let Store { assignment, reassignment, .. } = &self.store;
        if self.store_down_until > self.now || reassignment.target(assignment) == target {
            return;
        }
        let (all, change) = reassignment.begin(assignment, target);
        note!(self, STORE, "the replicas move from {} to {}", ids(assignment), ids(target));
        self.counts.moves += 1;
        self.store.assign(all, change);
        self.store_changed();
    }

    pub(super) fn cancel_reassignment(&mut self) {
        let Store { assignment, reassignment, .. } = &self.store;
        if reassignment.is_under_way() && self.store_down_until <= self.now {
            let origin = reassignment.origin(assignment);
            self.counts.moves_cancelled += 1;
            self.reassign(&origin);
        }
    }

    /// Every broker has a replica again.
    pub(super) fn assign_all(&mut self) {
        let target_now = self.store.reassignment.target(&self.store.assignment);
        if target_now.len() < BROKERS {
            self.reassign(&target(0));
        }
    }

    /// The topic is deleted, with all that is in it, and another one made of its name. Clients begin anew.
    pub(super) fn make_again(&mut self) {
        if self.store_down_until > self.now {
            return;
        }
        self.counts.made_again += 1;
        self.store.make_again();
        // What the controller has under way for the former one fails.
        self.controller.remove_partition(&topic_partition());
        self.truth = Truth::default();
        self.history.clear();
        self.in_doubt = None;
        self.first_sequence = self.sequence;
        self.consumer.begins_anew();
        self.struck = false;
        self.store_changed();
    }

    /// Takes in what an image says of this broker's part: it may hold a replica no more, or one of another topic. Whether the
    /// image's state is for the replica that it has.
    pub(super) fn takes_in(&mut self, node: usize, image: &Image) -> bool {
        let id = self.nodes[node].id;
        let Some(running) = &mut self.nodes[node].running else { return false };
        if image.number < running.seen {
            return false; // It has seen a later one.
        }
        running.seen = image.number;
        let wanted = image.assignment.contains(&id);
        if running.topic != image.topic || (running.hosts && !wanted) {
            if running.partition.log().fence().is_some() {
                return false; // It is about to be started again, and sees to that then.
            }
            self.replace_replica(node, image);
            return false;
        }
        running.hosts = wanted;
        wanted
    }

    /// Removes a replica, and makes the one that may come in its place.
    fn replace_replica(&mut self, node: usize, image: &Image) {
        let broker = &mut self.nodes[node];
        let Some(Running { session, topic, .. }) = broker.running.take() else { return };
        // What is under way for it ends with it.
        broker.life += 1;
        broker.may_have_deleted_below = 0;
        note!(self, node, "removes its replica of topic {topic}");
        self.counts.removed += 1;
        if let Err(error) = self.nodes[node].start(&self.plan, session, image) {
            return self.fails_to_start(node, session, &error);
        }
        self.nodes[node].damaged = false;
        if self.store.live.get(&self.nodes[node].id) != Some(&session) {
            let after = self.nodes[node].random.between(1, 30);
            self.schedule(after, node, Event::SessionLostSeen);
        }
        self.schedule(1, node, Event::Reads);
        self.schedule(70, node, Event::Housekeeping);
        if self.store.leaving.contains(&self.nodes[node].id) {
            self.schedule(1, node, Event::Leaves(self.now));
        }
    }

    /// Says that it is about to stop.
    pub(super) fn leave(&mut self, node: usize) {
        let id = self.nodes[node].id;
        let registered = self.session_of(node).is_some_and(|session| self.store.live.get(&id) == Some(&session));
        if !registered || !self.in_touch(node) || !self.may_fail(node) || !self.store.leaving.insert(id) {
            return;
        }
        note!(self, node, "says that it is about to stop");
        self.store_changed();
        self.schedule(10, node, Event::Leaves(self.now));
    }

    /// Stops, once nobody depends on it any more who could do without.
    pub(super) fn leaves(&mut self, node: usize, since: i64) {
        let id = self.nodes[node].id;
        let staying = self.store.staying();
        let depends = self.store.state.as_ref().is_some_and(|state| {
            let can_lead =
                |other: &BrokerId| *other != id && staying.contains_key(other) && state.value.is_whole(*other);
            state.value.isr.contains(&id) && state.value.isr.iter().any(can_lead)
        });
        if (depends && self.now - since < HAND_OVER_MS) || !self.may_fail(node) {
            return self.schedule(10, node, Event::Leaves(since));
        }
        self.counts.handed_over += u64::from(!depends);
        self.stop(node, true);
    }
}
