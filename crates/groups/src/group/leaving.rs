//! Members that leave, and those that are heard of no more.

use super::{Group, Phase};
use crate::step::Step;
use crate::vocabulary::{Leaving, Refused};

impl Group {
    pub(crate) fn leave(&mut self, step: &mut Step<'_>, members: &[Leaving]) -> Vec<Result<(), Refused>> {
        members.iter().map(|member| self.leave_one(step, member)).collect()
    }

    fn leave_one(&mut self, step: &mut Step<'_>, leaving: &Leaving) -> Result<(), Refused> {
        let id = match &leaving.group_instance_id {
            // A static member may be taken out by whoever knows its instance id, as its administrator does.
            Some(instance) if leaving.member_id.is_empty() => {
                self.static_members.get(instance).cloned().ok_or(Refused::UnknownMemberId)?
            }
            _ => leaving.member_id.clone(),
        };
        if leaving.group_instance_id.is_none() && self.has_pending(&id) {
            self.forget_pending(step, &id);
            return Ok(());
        }
        self.validate(&id, leaving.group_instance_id.as_deref())?;
        self.remove_and_rebalance(step, &id);
        Ok(())
    }

    fn remove_and_rebalance(&mut self, step: &mut Step<'_>, member: &str) {
        self.remove(step, member, Refused::UnknownMemberId);
        if self.phase != Phase::Empty {
            self.rebalance(step);
        }
    }

    pub(super) fn session_ended(&mut self, step: &mut Step<'_>, id: &str) {
        if self.pending.remove(id) {
            return self.complete_join_if_all_are_there(step);
        }
        let Some(member) = self.members.get(id) else { return };
        // Who waits for an answer cannot say that it lives. Who waits to be let in has had minutes.
        let waits = member.joining.is_some() || member.syncing.is_some();
        if waits && !member.is_new {
            return;
        }
        self.remove_and_rebalance(step, id);
    }
}
