//! Kafka's consumer groups and transactions, as machines without I/O, clock or randomness.
//!
//! A [`Coordinator`] has the groups of one partition of `__consumer_offsets`. Requests, the records of that partition and the
//! time go in as values; what is to be answered and appended comes out as [`Effect`]s, and equal inputs give equal effects. Who
//! leads the partition makes one, gives it every batch from the start of the log ([`Input::Load`]), says that this was all
//! ([`Input::Loaded`]), and from then on the requests of clients. Nothing is answered that the log could still lose: commits
//! and assignments are told once their append is committed.
//!
//! ```
//! use highwater_groups::*;
//!
//! let mut coordinator = Coordinator::new(GroupConfig::default());
//! let now = Now { uptime_ms: 0, timestamp_ms: 1_700_000_000_000 };
//! coordinator.handle(now, Input::Loaded);
//! // Someone who is no member commits an offset.
//! let member = MemberAt { group: "readers".into(), generation: -1, ..MemberAt::default() };
//! let offset = CommittedOffset { topic: "books".into(), offset: 17, leader_epoch: -1, ..CommittedOffset::default() };
//! let commit = Commit { member, transaction: None, offsets: vec![offset] };
//! let effects = coordinator.handle(now, Input::Request(Ticket(1), Request::Commit(commit)));
//! let [Effect::Append { id, records, .. }] = &effects[..] else { panic!("{effects:?}") };
//! assert_eq!(records.len(), 1);
//! // It is answered when the log has it.
//! let effects = coordinator.handle(now, Input::Appended(*id, Appended::Committed));
//! assert_eq!(effects, [Effect::Answer(Ticket(1), Answer::Commit(Ok(vec![Ok(())])))]);
//! ```

mod config;
mod coordinator;
mod group;
mod guards;
mod pending;
pub mod records;
mod step;
#[cfg(test)]
mod tests;
mod timers;
pub mod transactions;
mod vocabulary;

pub use config::GroupConfig;
pub use coordinator::Coordinator;
pub use guards::{Guard, Guards, KnownProducer, may_be_appended};
pub use vocabulary::{
    Answer, AppendId, Appended, Commit, CommittedOffset, Effect, FetchOffsets, FetchedOffset, GroupDescription,
    GroupListing, GroupState, Input, Join, Joined, JoinedMember, Leaving, LoadedBatch, MemberAt, MemberDescription,
    Now, Producer, Record, Refused, Request, Sync, Synced, Ticket,
};
