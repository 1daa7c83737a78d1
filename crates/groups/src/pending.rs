//! The member ids that a coordinator has given out and that nobody has joined with yet, of all its groups.
//!
//! Each group keeps its own until their sessions end, which may be half an hour. Whoever asks again and again without an id, under
//! one group id or under many, would have that kept for each time. So the eldest are forgotten: to a client that is a session
//! that has ended, after which it asks anew and joins, while a refusal would be the end of it.

use std::collections::VecDeque;

/// About what is kept for an id beside the texts: its places here, in its group and among the group's deadlines, and the group.
const ID_BYTES: usize = 512;

/// Those that were given out, the eldest first. Some may have been joined with since, or have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingIds {
    given: VecDeque<GivenId>,
    bytes: usize,
}

/// A member id, and the group in which it was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenId {
    pub(crate) group: String,
    pub(crate) member: String,
}

impl GivenId {
    /// A group has each of its ids three times.
    fn bytes(&self) -> usize {
        ID_BYTES + 2 * self.group.len() + 4 * self.member.len()
    }
}

impl PendingIds {
    pub(crate) fn give(&mut self, group: String, member: String) {
        let id = GivenId { group, member };
        self.bytes += id.bytes();
        self.given.push_back(id);
    }

    /// The eldest, if it is one too many or nobody waits for it any more. The last one given stays.
    pub(crate) fn take_excess(
        &mut self,
        count_max: usize,
        bytes_max: usize,
        is_pending: impl Fn(&GivenId) -> bool,
    ) -> Option<GivenId> {
        let too_many = self.given.len() > 1 && (self.given.len() > count_max || self.bytes > bytes_max);
        if !too_many && is_pending(self.given.front()?) {
            return None;
        }
        let eldest = self.given.pop_front()?;
        self.bytes -= eldest.bytes();
        Some(eldest)
    }
}
