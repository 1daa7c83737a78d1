//! Members: who they are, and what they agree on.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::Group;
use crate::records::GroupMember;
use crate::step::Step;
use crate::timers::Timer;
use crate::vocabulary::{Answer, Join, JoinedMember, Refused, Ticket};

/// One member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: String,
    pub(crate) instance: Option<String>,
    pub(crate) client_id: String,
    pub(crate) client_host: String,
    pub(crate) session_timeout_ms: i32,
    pub(crate) rebalance_timeout_ms: i32,
    protocols: Protocols,
    pub(crate) assignment: Bytes,
    /// Its JoinGroup that waits.
    pub(crate) joining: Option<Ticket>,
    /// Its SyncGroup that waits.
    pub(crate) syncing: Option<Ticket>,
    /// It has never been told a generation.
    pub(crate) is_new: bool,
    /// The how-manieth it was to join.
    pub(crate) number: u64,
}

/// How a member would do it, dearest first, and in the order of names beside: a request may list thirty thousand of them, and to
/// search those of each member for each of another's would hold all groups up.
#[derive(Clone, Debug, Default)]
struct Protocols {
    all: Vec<(String, Bytes)>,
    /// Places in `all`, by name; of one that is there twice the first comes first.
    by_name: Vec<u32>,
}

impl Protocols {
    fn new(all: Vec<(String, Bytes)>) -> Self {
        let mut by_name: Vec<u32> = (0..).take(all.len()).collect();
        by_name.sort_by_key(|&place| all.get(place as usize).map(|(name, _)| name));
        Self { all, by_name }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| name.as_str())
    }

    fn find(&self, name: &str) -> Option<&Bytes> {
        let at = |place: u32| self.all.get(place as usize);
        let found = self.by_name.partition_point(|&place| at(place).is_some_and(|(other, _)| other.as_str() < name));
        let (other, metadata) = at(*self.by_name.get(found)?)?;
        (other == name).then_some(metadata)
    }
}

impl Member {
    pub(super) fn new(id: String, join: &Join, number: u64) -> Self {
        Self {
            id,
            instance: join.group_instance_id.clone(),
            client_id: join.client_id.clone(),
            client_host: join.client_host.clone(),
            session_timeout_ms: join.session_timeout_ms,
            rebalance_timeout_ms: join.rebalance_timeout_ms,
            protocols: Protocols::new(join.protocols.clone()),
            assignment: Bytes::new(),
            joining: None,
            syncing: None,
            is_new: true,
            number,
        }
    }

    pub(super) fn loaded(stored: GroupMember, protocol: String, number: u64) -> Self {
        Self {
            id: stored.member_id,
            instance: stored.group_instance_id,
            client_id: stored.client_id,
            client_host: stored.client_host,
            session_timeout_ms: stored.session_timeout_ms,
            rebalance_timeout_ms: stored.rebalance_timeout_ms,
            protocols: Protocols::new(vec![(protocol, stored.subscription)]),
            assignment: stored.assignment,
            joining: None,
            syncing: None,
            is_new: false,
            number,
        }
    }

    /// What it says of itself, again. Where it comes from is told as of when it came first, as Kafka does.
    pub(super) fn update(&mut self, join: &Join) {
        self.session_timeout_ms = join.session_timeout_ms;
        self.rebalance_timeout_ms = join.rebalance_timeout_ms;
        if !self.says(join) {
            self.protocols = Protocols::new(join.protocols.clone());
        }
    }

    /// Whether it says the same of itself.
    pub(super) fn says(&self, join: &Join) -> bool {
        self.protocols.all == join.protocols
    }

    pub(super) fn metadata(&self, protocol: &str) -> Bytes {
        self.protocols.find(protocol).cloned().unwrap_or_default()
    }

    pub(super) fn session_timeout_ms(&self) -> u64 {
        u64::try_from(self.session_timeout_ms).unwrap_or(0)
    }

    fn speaks(&self, protocol: &str) -> bool {
        self.protocols.find(protocol).is_some()
    }
}

impl Group {
    /// Whether whoever names this member is that member.
    pub(super) fn validate(&self, member: &str, instance: Option<&str>) -> Result<(), Refused> {
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(Refused::UnknownMemberId),
                Some(id) if id != member => return Err(Refused::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) { Ok(()) } else { Err(Refused::UnknownMemberId) }
    }

    /// It has been heard of: its session begins anew.
    pub(super) fn touch(&mut self, step: &Step<'_>, member: &str) {
        let Some(known) = self.members.get(member) else { return };
        let timeout_ms = if known.is_new { step.config.new_member_timeout_ms } else { known.session_timeout_ms() };
        self.timers.set(Timer::Session(member.to_owned()), step.after_ms(timeout_ms));
    }

    pub(super) fn is_leader(&self, member: &str) -> bool {
        self.leader.as_deref() == Some(member)
    }

    /// The longest that a member takes to join again.
    pub(super) fn rebalance_timeout_ms(&self) -> u64 {
        let longest = self.members.values().map(|member| member.rebalance_timeout_ms).max();
        longest.and_then(|timeout| u64::try_from(timeout).ok()).unwrap_or(0)
    }

    /// Who came first of those.
    pub(super) fn eldest(&self, of: impl Fn(&Member) -> bool) -> Option<String> {
        let eldest = self.members.values().filter(|member| of(member)).min_by_key(|member| member.number);
        eldest.map(|member| member.id.clone())
    }

    /// The leader's list.
    pub(super) fn joined_members(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let told = |member: &Member| JoinedMember {
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            metadata: member.metadata(protocol),
        };
        self.members.values().map(told).collect()
    }

    /// Whether a member that speaks these could be in the group.
    pub(super) fn agrees_with(&self, join: &Join) -> bool {
        if join.protocol_type.is_empty() || join.protocols.is_empty() {
            return false;
        }
        if self.members.is_empty() {
            return true;
        }
        // Whoever joins again is held to what it has spoken so far, even if it is alone.
        let spoken = |name: &str| self.members.values().all(|member| member.speaks(name));
        self.protocol_type.as_deref() == Some(&join.protocol_type)
            && join.protocols.iter().any(|(name, _)| spoken(name))
    }

    /// The protocol that most members like best, of those that all speak; of several the one that the first member put
    /// first.
    pub(super) fn elected_protocol(&self) -> Option<String> {
        let common: BTreeSet<&str> = self
            .members
            .values()
            .flat_map(|member| member.protocols.names())
            .filter(|name| self.members.values().all(|member| member.speaks(name)))
            .collect();
        let mut votes: BTreeMap<&str, usize> = BTreeMap::new();
        for member in self.members.values() {
            if let Some(name) = member.protocols.names().find(|name| common.contains(name)) {
                *votes.entry(name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        let first = self.members.values().min_by_key(|member| member.number)?;
        first.protocols.names().find(|name| votes.get(name) == Some(&most)).map(str::to_owned)
    }

    /// Takes a member out, and answers what it has waiting.
    pub(super) fn remove(&mut self, step: &mut Step<'_>, member: &str, why: Refused) {
        let Some(removed) = self.members.remove(member) else { return };
        self.timers.cancel(&Timer::Session(member.to_owned()));
        self.unsynced.remove(member);
        if let Some(instance) = &removed.instance {
            self.static_members.remove(instance);
        }
        if let Some(ticket) = removed.joining {
            step.answer(ticket, Answer::Join(Err((why, removed.id))));
        }
        if let Some(ticket) = removed.syncing {
            step.answer(ticket, Answer::Sync(Err(why)));
        }
        if self.is_leader(member) {
            self.leader = self.eldest(|_| true);
        }
    }
}
