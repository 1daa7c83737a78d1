//! What a partition's replicas agree on through the coordination store, as plain values.

use std::fmt;

use highwater_storage::LeaderEpoch;

/// A broker's number in its cluster (Kafka's `broker.id`), 0 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerId(pub i32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which life of a broker: the store's creation number of its registration, so a later registration has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BrokerEpoch(pub i64);

impl fmt::Display for BrokerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who leads a partition and who is in sync, as committed in the coordination store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The leader, or `None` while no eligible replica lives.
    pub leader: Option<BrokerId>,
    /// Grows with every election.
    pub leader_epoch: LeaderEpoch,
    /// The in-sync replicas. Only a leader takes members out, dead ones too; an election leaves all of them in.
    pub isr: Vec<BrokerId>,
    /// The members of the ISR that stopped uncleanly since they came in: each may lack the end of what it acknowledged. A
    /// leader takes them out of the ISR, and they join again like any other replica.
    pub doubtful: Vec<BrokerId>,
    /// The epoch of the controller that held the last election.
    pub controller_epoch: i32,
    /// The leader came out of an unclean election and has not settled yet (Kafka's `leader_recovery_state` 1).
    pub recovering: bool,
}

impl PartitionState {
    /// Whether this broker is in the ISR and has all that it acknowledged.
    pub fn is_whole(&self, id: BrokerId) -> bool {
        self.isr.contains(&id) && !self.doubtful.contains(&id)
    }
}

/// A value with the version the store gave it: a write that expects another version fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The store's compare-and-set version (Kafka's partition epoch). Higher is later.
    pub version: i64,
}

/// What became of a leader's proposal to change its ISR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsrDecision {
    /// It is committed; this is what the store holds now.
    Committed(Versioned<PartitionState>),
    /// The store holds this state, whose version is not the expected one: somebody else was first, or an earlier
    /// attempt of ours succeeded and its reply was lost.
    Conflict(Versioned<PartitionState>),
    /// This broker may not propose: its session is gone, or the partition is.
    Fenced,
    /// The store holds the expected version but a proposed member is not eligible (not registered, or in another
    /// life). The change did not happen and is not repeated until a fetch gives a new reason.
    Refused,
    /// The store did not answer: propose again later. The change may or may not have happened.
    Retry,
}

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// At once; the client hears nothing (`acks=0`).
    None,
    /// Once the leader's log holds it (`acks=1`); with [`ReplicaConfig::count_flushed`](crate::ReplicaConfig) once it
    /// is flushed there.
    Leader,
    /// Once the high watermark has passed it (`acks=all`).
    All,
}

/// Names something that waits at a partition: a produce for its acknowledgement or a fetch for data. Chosen by the
/// caller, unique among what waits at one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitToken(pub u64);

/// What of open and aborted transactions a consumer sees (Kafka's `isolation_level`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Everything below the high watermark.
    #[default]
    ReadUncommitted,
    /// Everything below the last stable offset.
    ReadCommitted,
}
