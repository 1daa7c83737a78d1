//! replication

mod config;
mod event;
mod lineage;
mod vocabulary;

pub use config::ReplicaConfig;
pub use event::{
    Acknowledged, Cut, CutReason, FenceReason, FetchError, FetchFailure, FetchGrant, FetchPlan, FetchReply,
    FetchRequest, FetchedRecords, Fetcher, FollowerStatus, ListedOffset, OffsetNotAvailable, Output, ProduceRefused,
    ProduceResult, Produced, Role, Status, Which,
};
pub use lineage::EpochEnd;
pub use vocabulary::{Acks, BrokerEpoch, BrokerId, Isolation, IsrDecision, PartitionState, Versioned, WaitToken};
