//! replication

mod vocabulary;

pub use vocabulary::{BrokerEpoch, BrokerId, IsrDecision, PartitionState, Versioned};
