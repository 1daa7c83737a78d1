//! One input being handled.

use std::collections::BTreeMap;

use crate::config::GroupConfig;
use crate::group::OffsetKey;
use crate::records::OffsetValue;
use crate::vocabulary::{Answer, AppendId, Effect, Joined, Now, Producer, Record, Refused, Ticket};

/// What waits for an append.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// Nobody: a group without members that is written down.
    Note,
    /// The assignment that a leader made for a generation.
    Assignment { group: String, generation: i32 },
    /// A static member that came back under a new id, and whoever asked for that.
    StaticMember { group: String, instance: String, before: String, ticket: Option<Ticket>, joined: Joined },
    /// Offsets that are committed, and the result of each offset of the request.
    Offsets {
        group: String,
        ticket: Option<Ticket>,
        transaction: Option<Producer>,
        offsets: Vec<(OffsetKey, OffsetValue)>,
        results: Vec<Result<(), Refused>>,
    },
    /// Offsets that go. Appends end in the log's order: what is there by then was written before.
    DeletedOffsets { group: String, ticket: Option<Ticket>, offsets: Vec<OffsetKey>, results: Vec<Result<(), Refused>> },
    /// A group that goes.
    DeletedGroup { group: String, ticket: Option<Ticket> },
}

/// The appends that are under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Appends {
    next: u64,
    pub(crate) waiting: BTreeMap<AppendId, Purpose>,
}

/// The time, the settings, and what is to be done.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) now: Now,
    pub(crate) config: &'a GroupConfig,
    pub(crate) appends: &'a mut Appends,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl Step<'_> {
    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.effects.push(Effect::Answer(ticket, answer));
    }

    pub(crate) fn append(&mut self, transaction: Option<Producer>, records: Vec<Record>, purpose: Purpose) -> AppendId {
        let id = AppendId(self.appends.next);
        self.appends.next += 1;
        self.appends.waiting.insert(id, purpose);
        self.effects.push(Effect::Append { id, transaction, records });
        id
    }

    /// The time in so many milliseconds.
    pub(crate) fn after_ms(&self, milliseconds: u64) -> u64 {
        self.now.uptime_ms.saturating_add(milliseconds)
    }
}
