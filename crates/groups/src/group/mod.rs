//! One group of the classic protocol.

mod joining;
mod leaving;
mod members;
mod offsets;
mod rebalance;
mod subscription;
mod syncing;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::records::{GroupMember, GroupValue, OffsetsKey};
use crate::step::Step;
use crate::timers::{Timer, Timers};
use crate::vocabulary::{
    GroupDescription, GroupListing, GroupState, MemberAt, MemberDescription, Record, Refused, Ticket,
};

pub(crate) use members::Member;
pub(crate) use offsets::{OffsetKey, Offsets};
use rebalance::Rebalance;

/// A group, with its members, its offsets and its deadlines.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) id: String,
    phase: Phase,
    /// Since when it is in that phase, as records have it.
    state_timestamp_ms: i64,
    generation: i32,
    /// What it does, once somebody has joined.
    protocol_type: Option<String>,
    /// What its members agreed on.
    protocol: Option<String>,
    leader: Option<String>,
    members: BTreeMap<String, Member>,
    /// The ids of static members, by instance id.
    static_members: BTreeMap<String, String>,
    /// Who was told an id and has yet to join with it.
    pending: BTreeSet<String>,
    /// Members that have not asked for their assignment since the generation began.
    unsynced: BTreeSet<String>,
    /// How many members have joined ever: the first ones lead.
    joined: u64,
    timers: Timers,
    pub(crate) offsets: Offsets,
    /// It is being deleted: its tombstones are on their way.
    pub(crate) deleting: bool,
    /// An offset of it was written, maybe by a transaction that came to nothing. As in Kafka it is a group then until offsets
    /// are looked over, even if it has none any more.
    pub(crate) has_had_offsets: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Empty,
    Preparing(Rebalance),
    /// The leader is to give out the partitions; `storing` once it has and that is being written.
    Completing {
        storing: bool,
    },
    Stable,
}

impl Group {
    pub(crate) fn new(id: String) -> Self {
        Self {
            id,
            phase: Phase::Empty,
            state_timestamp_ms: -1,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            pending: BTreeSet::new(),
            unsynced: BTreeSet::new(),
            joined: 0,
            timers: Timers::default(),
            offsets: Offsets::default(),
            deleting: false,
            has_had_offsets: false,
        }
    }

    /// The group that a record of `__consumer_offsets` describes.
    pub(crate) fn load(&mut self, value: GroupValue) {
        self.forget_members();
        self.generation = value.generation;
        self.state_timestamp_ms = value.state_timestamp_ms;
        self.protocol_type = Some(value.protocol_type).filter(|kind| !kind.is_empty());
        if value.members.is_empty() {
            return;
        }
        self.phase = Phase::Stable;
        self.protocol = value.protocol;
        for stored in value.members {
            let protocol = self.protocol.clone().unwrap_or_default();
            self.joined += 1;
            let member = Member::loaded(stored, protocol, self.joined);
            if let Some(instance) = &member.instance {
                self.static_members.insert(instance.clone(), member.id.clone());
            }
            self.members.insert(member.id.clone(), member);
        }
        // A group without the leader that it names goes on with another one.
        self.leader = value.leader.filter(|leader| self.members.contains_key(leader)).or_else(|| self.eldest(|_| true));
    }

    /// It is coordinated here from now on: its members have a session, and those that are too many now are to join again.
    pub(crate) fn goes_on(&mut self, step: &mut Step<'_>) {
        for member in self.members.keys().cloned().collect::<Vec<_>>() {
            self.touch(step, &member);
        }
        if self.members.len() > step.config.members_max {
            self.rebalance(step);
        }
    }

    /// The log says that it has no members any more, nor ever had.
    pub(crate) fn forget_members(&mut self) {
        let offsets = std::mem::take(&mut self.offsets);
        *self = Self { offsets, ..Self::new(std::mem::take(&mut self.id)) };
    }

    /// How it is, as clients are told.
    pub(crate) fn state(&self) -> GroupState {
        match self.phase {
            Phase::Empty => GroupState::Empty,
            Phase::Preparing(_) => GroupState::PreparingRebalance,
            Phase::Completing { .. } => GroupState::CompletingRebalance,
            Phase::Stable => GroupState::Stable,
        }
    }

    /// Nobody is in it, is about to join, or waits for an answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.pending.is_empty() && self.phase == Phase::Empty
    }

    /// Whether it has ever been written to the log.
    pub(crate) fn is_recorded(&self) -> bool {
        self.generation > 0
    }

    pub(crate) fn next_deadline_ms(&self) -> Option<u64> {
        self.timers.next_ms()
    }

    pub(crate) fn listing(&self) -> GroupListing {
        let protocol_type = self.protocol_type.clone().unwrap_or_default();
        GroupListing { group: self.id.clone(), protocol_type, state: self.state() }
    }

    pub(crate) fn describe(&self) -> GroupDescription {
        let protocol = self.protocol.as_deref().filter(|_| self.phase == Phase::Stable);
        let members = self.members.values().map(|member| MemberDescription {
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            metadata: protocol.map(|protocol| member.metadata(protocol)).unwrap_or_default(),
            assignment: member.assignment.clone(),
        });
        GroupDescription {
            listing: self.listing(),
            protocol: protocol.unwrap_or_default().to_owned(),
            members: members.collect(),
        }
    }

    /// A member says that it lives.
    pub(crate) fn heartbeat(&mut self, step: &Step<'_>, member: &MemberAt) -> Result<(), Refused> {
        self.validate(&member.member_id, member.group_instance_id.as_deref())?;
        if member.generation != self.generation {
            return Err(Refused::IllegalGeneration);
        }
        match self.phase {
            Phase::Empty => return Err(Refused::UnknownMemberId),
            Phase::Preparing(_) | Phase::Completing { .. } | Phase::Stable => self.touch(step, &member.member_id),
        }
        match self.phase {
            Phase::Preparing(_) => Err(Refused::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// Whether offsets may be committed by whoever asks.
    pub(crate) fn may_commit(
        &mut self,
        step: &Step<'_>,
        member: &MemberAt,
        transactional: bool,
    ) -> Result<(), Refused> {
        let anonymous = member.member_id.is_empty() && member.group_instance_id.is_none();
        if member.generation < 0 && self.phase == Phase::Empty {
            return Ok(());
        }
        if member.generation >= 0 || !anonymous {
            self.validate(&member.member_id, member.group_instance_id.as_deref())?;
            if member.generation != self.generation {
                return Err(Refused::IllegalGeneration);
            }
            self.touch(step, &member.member_id);
        } else if !transactional {
            return Err(Refused::UnknownMemberId);
        }
        if !transactional && matches!(self.phase, Phase::Completing { .. }) {
            return Err(Refused::RebalanceInProgress);
        }
        Ok(())
    }

    /// Something that was waited for has not come.
    pub(crate) fn fire(&mut self, step: &mut Step<'_>) {
        while let Some(timer) = self.timers.pop_due(step.now.uptime_ms) {
            match timer {
                Timer::Session(member) => self.session_ended(step, &member),
                Timer::Join => self.join_time_is_up(step),
                Timer::Sync => self.sync_time_is_up(step),
            }
        }
    }

    /// Everyone who waits, when the group goes on elsewhere.
    pub(crate) fn waiting(&self) -> Vec<(Ticket, bool, String)> {
        let of = |member: &Member| {
            let joining = member.joining.map(|ticket| (ticket, true, member.id.clone()));
            joining.into_iter().chain(member.syncing.map(|ticket| (ticket, false, member.id.clone())))
        };
        self.members.values().flat_map(|member| of(member).collect::<Vec<_>>()).collect()
    }

    /// Its record: what `assignments` say is what its members have, by the id of each.
    fn record(&self, assignment_of: impl Fn(&Member) -> Bytes) -> Record {
        let protocol = self.protocol.clone();
        let members = self.members.values().map(|member| GroupMember {
            member_id: member.id.clone(),
            group_instance_id: member.instance.clone(),
            client_id: member.client_id.clone(),
            client_host: member.client_host.clone(),
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            session_timeout_ms: member.session_timeout_ms,
            subscription: protocol.as_deref().map(|protocol| member.metadata(protocol)).unwrap_or_default(),
            assignment: assignment_of(member),
        });
        let value = GroupValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_timestamp_ms: self.state_timestamp_ms,
            members: members.collect(),
        };
        Record { key: OffsetsKey::Group(self.id.clone()).encode(), value: Some(value.encode()) }
    }

    fn enter(&mut self, step: &Step<'_>, phase: Phase) {
        self.phase = phase;
        self.state_timestamp_ms = step.now.timestamp_ms;
    }
}
