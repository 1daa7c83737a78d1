//! Leader/follower replication of a commit log: Kafka's protocol as machines without I/O, clock or randomness.
//!
//! One [`Partition`] is a log and a [`Replica`] of it. Requests, replies, the store's states and the time go in as
//! values; what is to be done comes out as [`Effect`]s, and equal inputs give equal effects. Nothing in here starts a
//! thread, opens a socket, reads a clock or iterates over a map in random order, so the same code runs in a broker and
//! in a simulator.
//!
//! # One record with `acks=all`
//!
//! ```text
//!  producer            leader (epoch 7)                       follower
//!     │  produce(acks=all)  │                                     │
//!     ├────────────────────►│ log end 5 → 6, waits for HW > 5     │
//!     │                     │◄──────────── fetch from 5, epoch 7 ─┤ has everything below 5
//!     │                     ├─ record 5, HW 5 ───────────────────►│ appends: log end 6, HW 5
//!     │                     │◄──────────── fetch from 6, epoch 7 ─┤ *that* is its acknowledgement
//!     │   done(offset 5)    │ HW = min over the in-sync set = 6   │
//!     │◄────────────────────┤ wakes consumers that wait at 5      │
//!     │                     ├─ nothing new, HW 6 ────────────────►│ HW 6
//! ```
//!
//! # Rules
//!
//! * The coordination store holds the truth about leader, epoch and in-sync set ([`PartitionState`]). A leader changes
//!   its in-sync set, and a [`Controller`] the leader, by compare-and-set on the state's version. There is no second
//!   channel.
//! * The *high watermark* is the smallest log end over the maximal in-sync set: while a change of the set is under way,
//!   the larger one. It does not move while the committed set is below `min.insync.replicas`. Consumers never see a
//!   record at or above it.
//! * A follower joins the in-sync set when it has reached the high watermark and the start of the leader's epoch, and
//!   the leader can [vouch](vouches) for what it holds.
//! * A follower cuts its log where its history of leader epochs differs from the leader's ([`fit`], [`cut_for`]), never
//!   at its high watermark.
//! * Everything carries the leader epoch it was said in; what belongs to another one changes nothing.
//! * A leader's epoch is above every epoch in its own log that this process did not begin.
//!
//! # Invariants
//!
//! Checked after every step, in release builds too; a violation closes that one partition and is reported:
//! `log start ≤ high watermark ≤ log end`, `flushed end ≤ log end`, and no append re-assigns an offset below the high
//! watermark. `tests/sim/` of this repository checks the ones that take several replicas to see, and
//! `replica/exploration.rs` in every state that a small cluster can reach.

mod config;
mod controller;
mod event;
#[cfg(test)]
mod fixtures;
mod follower;
mod heal;
mod leader;
mod lineage;
#[cfg(test)]
mod model;
mod partition;
mod quorum;
mod replica;
mod vocabulary;
mod waiting;

pub use config::ReplicaConfig;
pub use controller::{
    Brokers, Commit, CommitResult, Completion, Controller, Election, ElectionKind, NotElected, PartitionFacts,
    PublishedEnd, Reassignment, elect_on_request, return_doubtful,
};
pub use event::{
    Acknowledged, Cut, CutReason, DeleteRefused, FenceReason, FetchError, FetchFailure, FetchGrant, FetchPlan,
    FetchReply, FetchRequest, FetchedRecords, Fetcher, FollowerStatus, ListedOffset, OffsetNotAvailable, Output,
    ProduceRefused, ProduceResult, Produced, Role, Status, Which,
};
pub use heal::HealPlan;
pub use highwater_storage::EpochEnd;
pub use lineage::{Fit, LogView, cut_for, fit, vouches};
pub use partition::{Effect, Partition, ProduceError};
pub use quorum::{needed_in_sync, smallest_end};
pub use replica::{AppendedBatch, Input, Replica, ReplyHead, ReplyStep};
pub use vocabulary::{Acks, BrokerEpoch, BrokerId, Isolation, IsrDecision, PartitionState, Versioned, WaitToken};
