//! JoinGroup.

use super::{Group, Member, Phase};
use crate::config::GroupConfig;
use crate::step::{Purpose, Step};
use crate::timers::Timer;
use crate::vocabulary::{Answer, Join, Joined, Refused, Ticket};

impl Group {
    /// The id that is given out, if one is.
    pub(crate) fn join(&mut self, step: &mut Step<'_>, ticket: Ticket, join: Join) -> Option<String> {
        let (why, member) = self.take_in(step, ticket, &join).err()?;
        let given = (why == Refused::MemberIdRequired).then(|| member.clone());
        step.answer(ticket, Answer::Join(Err((why, member))));
        given
    }

    /// Whether that id was given out, and is waited for.
    pub(crate) fn has_pending(&self, member: &str) -> bool {
        self.pending.contains(member)
    }

    #[cfg(test)]
    pub(crate) fn pending_members(&self) -> usize {
        self.pending.len()
    }

    /// That id is not waited for any more.
    pub(crate) fn forget_pending(&mut self, step: &mut Step<'_>, member: &str) {
        if self.pending.remove(member) {
            self.timers.cancel(&Timer::Session(member.to_owned()));
            self.complete_join_if_all_are_there(step);
        }
    }

    /// Refusals come with the id that the answer names.
    fn take_in(&mut self, step: &mut Step<'_>, ticket: Ticket, join: &Join) -> Result<(), (Refused, String)> {
        let refuse = |why| (why, join.member_id.clone());
        if !self.has_room_for(step.config, &join.member_id) {
            self.pending.remove(&join.member_id);
            return Err(refuse(Refused::GroupMaxSizeReached));
        }
        if !self.agrees_with(join) {
            return Err(refuse(Refused::InconsistentGroupProtocol));
        }
        if join.member_id.is_empty() {
            return self.join_without_id(step, ticket, join);
        }
        if self.pending.contains(&join.member_id) && join.group_instance_id.is_none() {
            self.add(step, ticket, join.member_id.clone(), join);
            return Ok(());
        }
        self.validate(&join.member_id, join.group_instance_id.as_deref()).map_err(refuse)?;
        self.join_again(step, ticket, join);
        Ok(())
    }

    fn has_room_for(&self, config: &GroupConfig, member: &str) -> bool {
        match self.phase {
            Phase::Empty => true,
            // Of those that are in it since before the rebalance, the first that come back have a place.
            Phase::Preparing(_) => {
                let comes_back = self.members.get(member).is_some_and(|member| member.joining.is_some());
                let waiting = self.members.values().filter(|member| member.joining.is_some()).count();
                comes_back || waiting < config.members_max
            }
            Phase::Completing { .. } | Phase::Stable => {
                self.members.contains_key(member) || self.members.len() < config.members_max
            }
        }
    }

    fn join_without_id(&mut self, step: &mut Step<'_>, ticket: Ticket, join: &Join) -> Result<(), (Refused, String)> {
        let named = join.group_instance_id.as_ref().unwrap_or(&join.client_id);
        let member = format!("{named}-{}", join.fresh_id);
        if let Some(instance) = &join.group_instance_id {
            match self.static_members.get(instance).cloned() {
                Some(before) => self.replace_static(step, ticket, &before, member, join),
                None => self.add(step, ticket, member, join),
            }
            return Ok(());
        }
        if join.requires_known_member_id {
            let timeout_ms = u64::try_from(join.session_timeout_ms).unwrap_or(0);
            self.timers.set(Timer::Session(member.clone()), step.after_ms(timeout_ms));
            self.pending.insert(member.clone());
            return Err((Refused::MemberIdRequired, member));
        }
        self.add(step, ticket, member, join);
        Ok(())
    }

    /// Lets a new member in, which makes the group rebalance.
    fn add(&mut self, step: &mut Step<'_>, ticket: Ticket, id: String, join: &Join) {
        self.pending.remove(&id);
        self.joined += 1;
        if self.members.is_empty() {
            self.protocol_type = Some(join.protocol_type.clone());
        }
        let mut member = Member::new(id.clone(), join, self.joined);
        member.joining = Some(ticket);
        if let Some(instance) = &member.instance {
            self.static_members.insert(instance.clone(), id.clone());
        }
        self.members.insert(id.clone(), member);
        self.leader.get_or_insert_with(|| id.clone());
        self.touch(step, &id);
        if let Phase::Preparing(rebalance) = &mut self.phase {
            rebalance.has_grown = true;
        }
        self.rebalance(step);
    }

    /// A member joins again: with nothing new it is told how things are, otherwise all join again.
    fn join_again(&mut self, step: &mut Step<'_>, ticket: Ticket, join: &Join) {
        let Some(member) = self.members.get(&join.member_id) else { return };
        let leads = self.is_leader(&join.member_id);
        let as_before = match self.phase {
            Phase::Completing { .. } => member.says(join),
            // A leader that joins again wants partitions to be given out anew.
            Phase::Stable => member.says(join) && !leads,
            Phase::Empty | Phase::Preparing(_) => false,
        };
        if as_before {
            let members = if leads { self.joined_members() } else { Vec::new() };
            self.touch(step, &join.member_id);
            return step.answer(ticket, Answer::Join(Ok(Joined { members, ..self.joined(&join.member_id) })));
        }
        self.update_and_rebalance(step, ticket, join);
    }

    fn update_and_rebalance(&mut self, step: &mut Step<'_>, ticket: Ticket, join: &Join) {
        self.park_join(step, &join.member_id, ticket, join);
        self.rebalance(step);
    }

    /// The member waits for the others. Whoever waits for it on another connection is told to ask again.
    fn park_join(&mut self, step: &mut Step<'_>, member: &str, ticket: Ticket, join: &Join) {
        let Some(member) = self.members.get_mut(member) else { return };
        member.update(join);
        if let Some(before) = member.joining.replace(ticket) {
            step.answer(before, Answer::Join(Err((Refused::RebalanceInProgress, member.id.clone()))));
        }
    }

    /// A static member comes back with a new id. If the others need not know, they are not disturbed (KIP-345).
    fn replace_static(&mut self, step: &mut Step<'_>, ticket: Ticket, before: &str, id: String, join: &Join) {
        let leader_before = self.leader.clone().unwrap_or_default();
        self.rename(step, before, &id, Refused::FencedInstanceId);
        let Some(member) = self.members.get_mut(&id) else { return };
        member.update(join);
        self.touch(step, &id);
        if self.phase != Phase::Stable || self.elected_protocol() != self.protocol {
            self.park_join(step, &id, ticket, join);
            return self.rebalance(step);
        }
        let leads = self.is_leader(&id);
        let mut joined = self.joined(&id);
        if leads && join.supports_skipping_assignment {
            joined.members = self.joined_members();
            joined.skip_assignment = true;
        } else {
            // Told that it leads it would give out partitions, which nobody asks for.
            joined.leader = leader_before;
        }
        let record = self.record(|member| member.assignment.clone());
        let purpose = Purpose::StaticMember {
            group: self.id.clone(),
            instance: join.group_instance_id.clone().unwrap_or_default(),
            before: before.to_owned(),
            ticket: Some(ticket),
            joined,
        };
        step.append(None, vec![record], purpose);
    }

    /// Whether what a static member is about to be told is still so.
    pub(crate) fn has_static_member(&self, instance: &str, member: &str, generation: i32) -> Result<(), Refused> {
        self.validate(member, Some(instance))?;
        if generation == self.generation { Ok(()) } else { Err(Refused::RebalanceInProgress) }
    }

    /// The record of a static member's new id was not written: it has the old one again, unless it has joined once more.
    pub(crate) fn static_member_not_written(&mut self, step: &mut Step<'_>, instance: &str, before: &str, now: &str) {
        if self.static_members.get(instance).map(String::as_str) == Some(now) && !self.members.contains_key(before) {
            self.rename(step, now, before, Refused::UnknownMemberId);
            self.touch(step, before);
        }
    }

    fn rename(&mut self, step: &mut Step<'_>, from: &str, to: &str, why: Refused) {
        let Some(mut member) = self.members.remove(from) else { return };
        self.timers.cancel(&Timer::Session(from.to_owned()));
        if let Some(ticket) = member.joining.take() {
            step.answer(ticket, Answer::Join(Err((why, from.to_owned()))));
        }
        if let Some(ticket) = member.syncing.take() {
            step.answer(ticket, Answer::Sync(Err(why)));
        }
        if self.is_leader(from) {
            self.leader = Some(to.to_owned());
        }
        if self.unsynced.remove(from) {
            self.unsynced.insert(to.to_owned());
        }
        if let Some(instance) = &member.instance {
            self.static_members.insert(instance.clone(), to.to_owned());
        }
        to.clone_into(&mut member.id);
        self.members.insert(to.to_owned(), member);
    }

    /// The answer to a member, without the list that leaders get.
    pub(super) fn joined(&self, member: &str) -> Joined {
        Joined {
            generation: self.generation,
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            protocol: self.protocol.clone().unwrap_or_default(),
            leader: self.leader.clone().unwrap_or_default(),
            member_id: member.to_owned(),
            skip_assignment: false,
            members: Vec::new(),
        }
    }
}
